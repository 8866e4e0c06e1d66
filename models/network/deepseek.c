/* DeepSeek-V2 and V3 (DeepSeek-AI, 2024; keys as in Hugging Face's DeepseekV2Config and DeepseekV3Config): latent
 * attention, a few layers without experts first, then experts and a shared expert; V3 has a sigmoid router. The biases
 * that balance V3's experts stay 0 in this program, and the modules of multi-token prediction are left out. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/network/decoder.h"
#include "models/routing.h"

typedef struct deepseek {
  tws_decoder d; /* routing, and the features shared with other decoders */
  tws_latent latent;
  int64_t query_rank; /* width of compressed queries; 0: queries are not compressed */
  int third;
} deepseek;

static const char *const known[] = {"num_hidden_layers",
                                    "hidden_size",
                                    "num_attention_heads",
                                    "num_key_value_heads",
                                    "intermediate_size",
                                    "moe_intermediate_size",
                                    "max_position_embeddings",
                                    "n_routed_experts",
                                    "num_local_experts",
                                    "n_shared_experts",
                                    "num_experts_per_tok",
                                    "first_k_dense_replace",
                                    "moe_layer_freq",
                                    "n_group",
                                    "topk_group",
                                    "topk_method",
                                    "scoring_func",
                                    "norm_topk_prob",
                                    "routed_scaling_factor",
                                    "aux_loss_alpha",
                                    "seq_aux",
                                    "kv_lora_rank",
                                    "q_lora_rank",
                                    "qk_nope_head_dim",
                                    "qk_rope_head_dim",
                                    "v_head_dim",
                                    "head_dim",
                                    "qk_head_dim",
                                    "rope_interleave",
                                    "rope_theta",
                                    "rope_scaling",
                                    "rope_parameters",
                                    "rms_norm_eps",
                                    "initializer_range",
                                    "tie_word_embeddings",
                                    "hidden_act",
                                    "attention_bias",
                                    "attention_dropout",
                                    "mlp_bias",
                                    "vocab_size",
                                    "pretraining_tp",
                                    "ep_size",
                                    "num_nextn_predict_layers",
                                    "quantization_config",
                                    "router_aux_loss_coef",
                                    "router_z_loss_coef",
                                    "output_router_logits",
                                    NULL};

static tws_code read_sizes(tws_network_builder *b, deepseek *s, tws_error *err) {
  tws_network *net = b->net;
  tws_latent *l = &s->latent;
  int64_t keys = 0;
  TWS_TRY(tws_build_size(b, "num_hidden_layers", NULL, 1, TWS_MAX_LAYERS, 0, &net->layers, err));
  TWS_TRY(tws_build_size(b, "hidden_size", NULL, 1, TWS_MAX_WIDTH, 0, &net->hidden, err));
  TWS_TRY(tws_build_size(b, "intermediate_size", NULL, 1, TWS_MAX_WIDTH / 2, 0, &net->intermediate, err));
  TWS_TRY(tws_build_size(b, "max_position_embeddings", NULL, 0, TWS_MAX_WIDTH, 4096, &net->positions, err));
  TWS_TRY(tws_build_size(b, "num_attention_heads", NULL, 1, TWS_MAX_HEADS, 0, &net->heads, err));
  TWS_TRY(tws_build_size(b, "num_key_value_heads", NULL, 0, TWS_MAX_HEADS, net->heads, &keys, err));
  if (keys != net->heads)
    return tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(b->json->root, "num_key_value_heads"), err, NULL,
                         "latent attention has as many key heads as query heads, %lld, not %lld", (long long)net->heads,
                         (long long)keys);
  TWS_TRY(tws_build_size(b, "kv_lora_rank", NULL, 0, TWS_MAX_WIDTH, 512, &l->rank, err));
  TWS_TRY(tws_build_size(b, "qk_nope_head_dim", NULL, 0, TWS_MAX_HEADS, 128, &l->nope, err));
  TWS_TRY(tws_build_size(b, "qk_rope_head_dim", NULL, 0, 1024, 64, &l->rope, err));
  TWS_TRY(tws_build_size(b, "v_head_dim", NULL, 0, TWS_MAX_HEADS, 128, &l->value, err));
  const cJSON *rank = cJSON_GetObjectItemCaseSensitive(b->json->root, "q_lora_rank");
  if (!cJSON_IsNull(rank)) TWS_TRY(tws_build_size(b, "q_lora_rank", NULL, 0, TWS_MAX_WIDTH, 1536, &s->query_rank, err));
  if (l->rope % 2 || l->value > l->nope + l->rope)
    return tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(b->json->root, "qk_rope_head_dim"), err,
                         "pairs of elements are turned, and values are no wider than keys",
                         "qk_rope_head_dim %lld, and v_head_dim %lld", (long long)l->rope, (long long)l->value);
  if (net->heads * (2 * l->nope + l->rope + l->value) * 3 > TWS_MAX_WIDTH)
    return tws_json_fail(b->json, b->json->root, err, NULL, "heads together exceed %d elements", TWS_MAX_WIDTH);
  net->kv_heads = net->heads;
  net->head_size = l->nope + l->rope;
  return TWS_OK;
}

/* Returns the index (a fraction) of the pair of elements whose rotary angle makes `turns` full rotations over the
 * original context length. */
static double yarn_pair(const tws_latent *l, double original, double turns) {
  return (double)l->rope * log(original / (turns * 2 * M_PI)) / (2 * log(l->theta));
}

static tws_code read_yarn(tws_network_builder *b, const cJSON *yarn, tws_latent *l, tws_error *err) {
  const tws_json *json = b->json;
  double original, fast, slow, part, all;
  TWS_TRY(tws_json_number(json, yarn, "factor", 1, 1, 1e6, 0, &l->factor, err));
  TWS_TRY(tws_json_number(json, yarn, "original_max_position_embeddings", 0, 1, 1e9, (double)b->net->positions,
                          &original, err));
  TWS_TRY(tws_json_number(json, yarn, "beta_fast", 0, 1e-6, 1e6, 32, &fast, err));
  TWS_TRY(tws_json_number(json, yarn, "beta_slow", 0, 1e-6, 1e6, 1, &slow, err));
  TWS_TRY(tws_json_number(json, yarn, "mscale", 0, 0, 1e3, 1, &part, err));
  TWS_TRY(tws_json_number(json, yarn, "mscale_all_dim", 0, 0, 1e3, 0, &all, err));
  if (part != all)
    return tws_json_fail(json, yarn, err, "give mscale and mscale_all_dim the same value",
                         "mscale %g and mscale_all_dim %g: turned elements of another size are not modelled", part,
                         all);
  const double grown = 0.1 * all * log(l->factor) + 1;
  l->gain = grown * grown;
  l->low = fmax(floor(yarn_pair(l, original, fast)), 0);
  l->high = fmin(ceil(yarn_pair(l, original, slow)), (double)l->rope - 1);
  return TWS_OK;
}

static tws_code read_rope(tws_network_builder *b, tws_latent *l, tws_error *err) {
  const tws_json *json = b->json;
  const cJSON *scaling = cJSON_GetObjectItemCaseSensitive(json->root, "rope_parameters");
  const char *type = "default";
  if (!cJSON_IsObject(scaling)) scaling = cJSON_GetObjectItemCaseSensitive(json->root, "rope_scaling");
  l->gain = 1;
  TWS_TRY(tws_json_number(json, json->root, "rope_theta", 0, 1.5, 1e12, 10000, &l->theta, err));
  b->net->open_positions = !cJSON_IsObject(scaling);
  if (!cJSON_IsObject(scaling)) return TWS_OK;
  TWS_TRY(tws_json_number(json, scaling, "rope_theta", 0, 1.5, 1e12, l->theta, &l->theta, err));
  TWS_TRY(tws_json_string(json, scaling, "type", 0, type, &type, err));
  TWS_TRY(tws_json_string(json, scaling, "rope_type", 0, type, &type, err));
  if (strcmp(type, "yarn") == 0) return read_yarn(b, scaling, l, err);
  b->net->open_positions = strcmp(type, "default") == 0;
  if (b->net->open_positions) return TWS_OK;
  return tws_json_fail(json, scaling, err, "known: default and yarn", "rope scaling type \"%.60s\" is not supported",
                       type);
}

/* Reads the router's keys. V2 chooses by softmax scores among all experts ("greedy") or among some groups of experts,
 * V3 by sigmoid scores among some groups. */
static tws_code read_routing(tws_network_builder *b, deepseek *s, tws_error *err) {
  const tws_json *json = b->json;
  const cJSON *root = json->root;
  tws_routing *r = &s->d.routing;
  int64_t groups = 0, kept = 0;
  const char *method = s->third ? "noaux_tc" : "greedy";
  TWS_TRY(tws_decoder_read_routing(b, "n_routed_experts", s->third ? 256 : 64, s->third ? 8 : 6, 0, &s->d, err));
  r->auxiliary = 0;
  r->sigmoid = r->biased = s->third;
  if (r->sigmoid && r->z > 0)
    return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(root, "router_z_loss_coef"), err,
                         "leave it out: deepseek_v2 can have one", "the z-loss is of a softmax, not of sigmoids");
  TWS_TRY(tws_json_bool(json, root, "norm_topk_prob", 0, s->third, &r->renormalizes, err));
  if (!s->third && r->renormalizes) { /* Transformers does not read norm_topk_prob in V2 */
    tws_text_add(&b->notes, "norm_topk_prob has no effect: weights are not divided by their sum\n");
    r->renormalizes = 0;
  }
  TWS_TRY(tws_json_number(json, root, "routed_scaling_factor", 0, 0, 1e6, s->third ? 2.5 : 1, &r->scale, err));
  TWS_TRY(tws_json_string(json, root, "topk_method", 0, method, &method, err));
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "n_group");
  if (!cJSON_IsNull(item))
    TWS_TRY(tws_json_int(json, root, "n_group", 0, 1, TWS_ROUTING_GROUPS, s->third ? 8 : 1, &groups, err));
  if (groups > 1 && strcmp(method, "greedy") != 0) {
    TWS_TRY(tws_json_int(json, root, "topk_group", 0, 1, groups, s->third ? 4 : 1, &kept, err));
    if (r->experts % groups || r->choices > r->experts / groups * kept)
      return tws_json_fail(json, item, err,
                           "let groups divide the experts, and keep groups of as many as a token chooses",
                           "%d experts in %lld groups, of which %lld are kept, and %d are chosen", r->experts,
                           (long long)groups, (long long)kept, r->choices);
    r->groups = (int32_t)groups;
    r->kept_groups = (int32_t)kept;
  }
  tws_build_note_unused(b, "aux_loss_alpha", "no loss balances the experts");
  tws_build_note_unused(b, "num_nextn_predict_layers", "the next token alone is predicted");
  return TWS_OK;
}

static tws_code read_layers(tws_network_builder *b, deepseek *s, tws_error *err) {
  const tws_json *json = b->json;
  int64_t first = 0, each = 1, shared = 0;
  const int64_t layers = b->net->layers;
  TWS_TRY(tws_json_int(json, json->root, "first_k_dense_replace", 0, 0, TWS_MAX_LAYERS, s->third ? 3 : 0, &first, err));
  TWS_TRY(tws_json_int(json, json->root, "moe_layer_freq", 0, 1, TWS_MAX_LAYERS, 1, &each, err));
  TWS_TRY(tws_json_int(json, json->root, "n_shared_experts", 0, 0, 1024, s->third ? 1 : 2, &shared, err));
  TWS_TRY(tws_build_size(b, "moe_intermediate_size", NULL, 0, TWS_MAX_WIDTH / 2048, s->third ? 2048 : 1407,
                         &s->d.expert_inner, err));
  uint8_t *dense = tws_arena_alloc(b->net->arena, (size_t)layers, 1);
  if (!dense) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the model's graph");
  for (int64_t layer = 0; layer < layers; layer++) dense[layer] = layer < first || layer % each != 0;
  s->d.dense = dense;
  s->d.expert_block = "mlp";
  s->d.shared_name = "shared_experts";
  s->d.shared_inner = shared * s->d.expert_inner;
  return TWS_OK;
}

static tws_code read_rest(tws_network_builder *b, deepseek *s, tws_error *err) {
  static const char *const dropouts[] = {"attention_dropout", NULL};
  const tws_json *json = b->json;
  const char *activation = "silu";
  TWS_TRY(tws_json_number(json, json->root, "rms_norm_eps", 0, 1e-20, 1, 1e-6, &s->d.epsilon, err));
  TWS_TRY(tws_json_number(json, json->root, "initializer_range", 0, 0, 100, 0.02, &s->d.range, err));
  TWS_TRY(tws_json_bool(json, json->root, "tie_word_embeddings", 0, 0, &b->net->tied, err));
  TWS_TRY(tws_json_string(json, json->root, "hidden_act", 0, "silu", &activation, err));
  if (strcmp(activation, "silu") != 0)
    return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(json->root, "hidden_act"), err, "known here: silu",
                         "hidden_act \"%.60s\" is not supported", activation);
  TWS_TRY(tws_build_expect_bool(b, "attention_bias", 0, "projections have no biases here", err));
  TWS_TRY(tws_build_expect_bool(b, "rope_interleave", 1, "adjacent elements are rotated as pairs here", err));
  TWS_TRY(tws_build_dropouts(b, dropouts, err));
  tws_build_unknown_keys(b, known, NULL);
  return TWS_OK;
}

static uint32_t add_attention(tws_network_builder *b, const deepseek *s, int layer, uint32_t x) {
  const tws_network *net = b->net;
  const tws_latent *l = &s->latent;
  const int64_t hidden = net->hidden, heads = net->heads, head = net->head_size;
  const float std = (float)s->d.range;
#define NAME(suffix) tws_build_name(b, "model.layers.%d.self_attn." suffix, layer)
#define LINEAR(suffix, from, in, out) tws_build_linear(b, layer, NAME(suffix), from, in, out, std, 0, NULL, TWS_NONE)
  uint32_t q = x;
  if (s->query_rank > 0) {
    q = LINEAR("q_a_proj", x, hidden, s->query_rank);
    q = tws_build_norm(b, layer, NAME("q_a_layernorm"), q, 1, 1e-6);
    q = LINEAR("q_b_proj", q, s->query_rank, heads * head);
  } else {
    q = LINEAR("q_proj", x, hidden, heads * head);
  }
  const uint32_t compressed = LINEAR("kv_a_proj_with_mqa", x, hidden, l->rank + l->rope);
  uint32_t kv = tws_build_part(b, layer, NAME("latent"), compressed, 1, l->rank);
  kv = tws_build_norm(b, layer, NAME("kv_a_layernorm"), kv, 1, 1e-6);
  kv = LINEAR("kv_b_proj", kv, l->rank, heads * (l->nope + l->value));
  uint32_t y = tws_build_latent(b, layer, NAME("heads"), q, compressed, kv, l);
  y = tws_build_attention(b, layer, tws_build_name(b, "model.layers.%d.self_attn", layer), y);
  if (l->value < head) y = tws_build_part(b, layer, NAME("values"), y, heads, l->value);
  return LINEAR("o_proj", y, heads * l->value, hidden);
#undef LINEAR
#undef NAME
}

static uint32_t add_inner(tws_network_builder *b, const deepseek *s, int layer, uint32_t x) {
  const int64_t hidden = b->net->hidden, inner = b->net->intermediate, rows[3] = {inner, inner, 0};
  const float std = (float)s->d.range;
#define NAME(suffix) tws_build_name(b, "model.layers.%d.mlp." suffix, layer)
  uint32_t y = tws_build_linear(b, layer, NAME("gate_up_proj"), x, hidden, 2 * inner, std, 0, rows, TWS_NONE);
  y = tws_build_pointwise(b, layer, NAME("act"), TWS_MODULE_SWIGLU, y, inner);
  return tws_build_linear(b, layer, NAME("down_proj"), y, inner, hidden, std, 0, NULL, TWS_NONE);
#undef NAME
}

static tws_code build(tws_network_builder *b, int third, tws_error *err) {
  tws_network *net = b->net;
  deepseek s = {.third = third};
  TWS_TRY(read_sizes(b, &s, err));
  TWS_TRY(read_rope(b, &s.latent, err));
  TWS_TRY(read_routing(b, &s, err));
  TWS_TRY(read_layers(b, &s, err));
  TWS_TRY(read_rest(b, &s, err));
  TWS_TRY(tws_build_reserve(b, (15 + TWS_EXPERT_MODULES) * net->layers + 4, err));
  uint32_t x = tws_build_embedding(b, "model.embed_tokens", "model.embed_tokens.weight", NULL, (float)s.d.range);
  net->layer_first = net->module_count;
#define NAME(suffix) tws_build_name(b, "model.layers.%d." suffix, layer)
  for (int layer = 0; layer < net->layers; layer++) {
    uint32_t y = tws_build_norm(b, layer, NAME("input_layernorm"), x, 1, s.d.epsilon);
    x = tws_build_add(b, layer, NAME("add_1"), x, add_attention(b, &s, layer, y));
    y = tws_build_norm(b, layer, NAME("post_attention_layernorm"), x, 1, s.d.epsilon);
    y = s.d.dense[layer] ? add_inner(b, &s, layer, y) : tws_decoder_add_experts(b, &s.d, layer, y);
    x = tws_build_add(b, layer, NAME("add_2"), x, y);
  }
#undef NAME
  net->layer_stride = (net->module_count - net->layer_first) / (uint32_t)net->layers;
  x = tws_build_norm(b, -2, "model.norm", x, 1, s.d.epsilon);
  const uint32_t tied = net->tied ? net->modules[0].param[0] : TWS_NONE;
  x = tws_build_linear(b, -2, "lm_head", x, net->hidden, net->padded_vocabulary, (float)s.d.range, 0, NULL, tied);
  tws_build_loss(b, x);
  return TWS_OK;
}

tws_code tws_build_deepseek_v2(tws_network_builder *b, tws_error *err) {
  return build(b, 0, err);
}
tws_code tws_build_deepseek_v3(tws_network_builder *b, tws_error *err) {
  return build(b, 1, err);
}
