/* GPT-2 (Radford et al., 2019; keys as in Hugging Face's GPT2Config): learned positions, pre-norm layers with
 * LayerNorm and biases, GELU, output projection tied to the token embedding. Cerebras-GPT has GELU itself, not the
 * approximation by tanh. */
#include <math.h>
#include <string.h>
#include "models/network/gpt2.h"

static tws_code read_sizes(tws_network_builder *b, tws_gpt2 *g, tws_error *err) {
  tws_network *net = b->net;
  TWS_TRY(tws_build_size(b, "n_layer", "num_hidden_layers", 1, TWS_MAX_LAYERS, 0, &net->layers, err));
  TWS_TRY(tws_build_size(b, "n_embd", "hidden_size", 1, TWS_MAX_WIDTH, 0, &net->hidden, err));
  TWS_TRY(tws_build_size(b, "n_head", "num_attention_heads", 1, TWS_MAX_HEADS, 0, &net->heads, err));
  TWS_TRY(tws_build_size(b, "n_positions", "max_position_embeddings", 1, TWS_MAX_WIDTH, 0, &net->positions, err));
  TWS_TRY(tws_build_size(b, "n_inner", NULL, 0, TWS_MAX_WIDTH, 4 * net->hidden, &g->inner, err));
  if (net->hidden % net->heads != 0) {
    return tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(b->json->root, "n_head"), err,
                         "choose a number of heads that divides the hidden size",
                         "%lld heads do not divide the hidden size %lld", (long long)net->heads,
                         (long long)net->hidden);
  }
  net->kv_heads = net->heads;
  net->head_size = net->hidden / net->heads;
  net->intermediate = g->inner;
  return TWS_OK;
}

static tws_code read_activation(tws_network_builder *b, tws_gpt2 *g, tws_error *err) {
  static const struct {
    const char *name;
    tws_module_type type;
  } known[] = {{"gelu_new", TWS_MODULE_GELU},
               {"gelu_pytorch_tanh", TWS_MODULE_GELU},
               {"gelu", TWS_MODULE_GELU_EXACT},
               {"relu", TWS_MODULE_RELU}};
  const char *word = NULL;
  TWS_TRY(tws_json_string(b->json, b->json->root, "activation_function", 0, "gelu_new", &word, err));
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    g->activation = known[i].type;
    if (strcmp(word, known[i].name) == 0) return TWS_OK;
  }
  tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(b->json->root, "activation_function"), err,
                "known for GPT-2: gelu_new and gelu_pytorch_tanh (the same function), gelu and relu",
                "activation_function \"%.60s\" is not supported", word);
  if (err != NULL) err->code = TWS_UNSUPPORTED;
  return TWS_UNSUPPORTED;
}

static tws_code read_rest(tws_network_builder *b, tws_gpt2 *g, tws_error *err) {
  static const char *const known[] = {"n_layer",
                                      "num_hidden_layers",
                                      "n_embd",
                                      "hidden_size",
                                      "n_head",
                                      "num_attention_heads",
                                      "n_positions",
                                      "max_position_embeddings",
                                      "n_ctx",
                                      "n_inner",
                                      "vocab_size",
                                      "activation_function",
                                      "layer_norm_epsilon",
                                      "initializer_range",
                                      "tie_word_embeddings",
                                      "resid_pdrop",
                                      "embd_pdrop",
                                      "attn_pdrop",
                                      "scale_attn_weights",
                                      "scale_attn_by_inverse_layer_idx",
                                      "reorder_and_upcast_attn",
                                      "add_cross_attention",
                                      "is_encoder_decoder",
                                      "num_experts",
                                      "expert_interval",
                                      "topk",
                                      "mlp_type",
                                      "noisy_gate_policy",
                                      "moe_loss_coeff",
                                      "moe_train_capacity_factor",
                                      "moe_min_capacity",
                                      NULL};
  const cJSON *root = b->json->root;
  TWS_TRY(tws_json_number(b->json, root, "layer_norm_epsilon", 0, 1e-20, 1, 1e-5, &g->epsilon, err));
  TWS_TRY(tws_json_number(b->json, root, "initializer_range", 0, 0, 100, 0.02, &g->range, err));
  TWS_TRY(tws_json_bool(b->json, root, "tie_word_embeddings", 0, 1, &b->net->tied, err));
  TWS_TRY(read_activation(b, g, err));
  TWS_TRY(tws_json_bool(b->json, root, "scale_attn_weights", 0, 1, &g->scaled, err));
  TWS_TRY(tws_json_bool(b->json, root, "scale_attn_by_inverse_layer_idx", 0, 0, &g->scaled_by_layer, err));
  TWS_TRY(tws_build_expect_bool(b, "add_cross_attention", 0, "only decoders are supported", err));
  TWS_TRY(tws_build_expect_bool(b, "is_encoder_decoder", 0, "only decoders are supported", err));
  int upcast = 0;
  TWS_TRY(tws_json_bool(b->json, root, "reorder_and_upcast_attn", 0, 0, &upcast, err));
  if (upcast) tws_text_add(&b->notes, "reorder_and_upcast_attn has no effect: scores are float32 always\n");
  TWS_TRY(tws_build_dropout_share(b, "resid_pdrop", &g->residual_dropout, err));
  TWS_TRY(tws_build_dropout_share(b, "embd_pdrop", &g->embedding_dropout, err));
  TWS_TRY(tws_build_dropout_share(b, "attn_pdrop", &g->attention_dropout, err));
  tws_build_unknown_keys(b, known, NULL);
  return TWS_OK;
}

#define NAME(suffix) tws_build_name(b, "transformer.h.%d." suffix, layer)
uint32_t tws_gpt2_add_inner(tws_network_builder *b, const tws_gpt2 *g, int layer, uint32_t x) {
  const int64_t hidden = b->net->hidden;
  uint32_t y = tws_build_linear(b, layer, NAME("mlp.c_fc"), x, hidden, g->inner, (float)g->range, 1, NULL, TWS_NONE);
  y = tws_build_pointwise(b, layer, NAME("mlp.act"), g->activation, y, g->inner);
  return tws_build_linear(b, layer, NAME("mlp.c_proj"), y, g->inner, hidden, g->residual_std, 1, NULL, TWS_NONE);
}

/* Returns the factor of attention scores; 0: the usual 1 / sqrt(head size). */
static double score_scale(const tws_network *net, const tws_gpt2 *g, int layer) {
  if (g->scaled && !g->scaled_by_layer) return 0;
  const double scale = g->scaled ? 1 / sqrt((double)net->head_size) : 1;
  return g->scaled_by_layer ? scale / (layer + 1) : scale;
}

static uint32_t add_layer(tws_network_builder *b, const tws_gpt2 *g, int layer, uint32_t x) {
  const int64_t hidden = b->net->hidden;
  uint32_t y = tws_build_norm(b, layer, NAME("ln_1"), x, 0, g->epsilon);
  y = tws_build_linear(b, layer, NAME("attn.c_attn"), y, hidden, 3 * hidden, (float)g->range, 1, NULL, TWS_NONE);
  y = tws_build_attention(b, layer, NAME("attn"), y);
  b->net->modules[b->net->module_count - 1].dropout = g->attention_dropout;
  b->net->modules[b->net->module_count - 1].scale = score_scale(b->net, g, layer);
  y = tws_build_linear(b, layer, NAME("attn.c_proj"), y, hidden, hidden, g->residual_std, 1, NULL, TWS_NONE);
  y = tws_build_dropout(b, layer, NAME("attn.resid_dropout"), y, g->residual_dropout);
  x = tws_build_add(b, layer, NAME("add_1"), x, y);
  y = tws_build_norm(b, layer, NAME("ln_2"), x, 0, g->epsilon);
  y = g->experts && g->experts[layer] > 0 ? tws_gpt2_add_experts(b, g, layer, y) : tws_gpt2_add_inner(b, g, layer, y);
  y = tws_build_dropout(b, layer, NAME("mlp.dropout"), y, g->residual_dropout);
  return tws_build_add(b, layer, NAME("add_2"), x, y);
}
#undef NAME

tws_code tws_build_gpt2(tws_network_builder *b, tws_error *err) {
  tws_network *net = b->net;
  tws_gpt2 g = {0};
  TWS_TRY(read_sizes(b, &g, err));
  TWS_TRY(read_rest(b, &g, err));
  TWS_TRY(tws_gpt2_read_experts(b, &g, err));
  g.residual_std = (float)(g.range / sqrt(2.0 * (double)net->layers));
  TWS_TRY(tws_build_reserve(b, (g.experts ? 24 : 12) * net->layers + 5, err));
  uint32_t x = tws_build_embedding(b, "transformer.embedding", "transformer.wte.weight", "transformer.wpe.weight",
                                   (float)g.range);
  x = tws_build_dropout(b, -1, "transformer.drop", x, g.embedding_dropout);
  net->layer_first = net->module_count;
  for (int layer = 0; layer < net->layers; layer++) x = add_layer(b, &g, layer, x);
  net->layer_stride = (net->module_count - net->layer_first) / (uint32_t)net->layers;
  x = tws_build_norm(b, -2, "transformer.ln_f", x, 0, g.epsilon);
  uint32_t tied = net->tied ? net->modules[0].param[0] : TWS_NONE;
  x = tws_build_linear(b, -2, "lm_head", x, net->hidden, net->padded_vocabulary, (float)g.range, 0, NULL, tied);
  tws_build_loss(b, x);
  return TWS_OK;
}
