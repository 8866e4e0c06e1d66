/* Granite (Granite Team, 2024; keys as in Hugging Face's GraniteConfig): Llama with factors of embeddings, scores,
 * branches and logits. Granite 4's dense models (GraniteMoeHybridConfig with attention in all layers and no experts)
 * have gate and up joined, under names of their own, and may be without positions. */
#include <string.h>

#include "models/network/decoder.h"

#define FACTOR_KEYS "embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"

static tws_code read_factors(tws_network_builder *b, tws_decoder *d, tws_error *err) {
  const tws_json *json = b->json;
  double divisor;
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 0, &d->qkv_bias, err));
  d->output_bias = d->qkv_bias;
  TWS_TRY(tws_json_number(json, json->root, "embedding_multiplier", 0, 1e-9, 1e9, 1, &d->embedding_scale, err));
  TWS_TRY(tws_json_number(json, json->root, "attention_multiplier", 0, 1e-9, 1e9, 1, &d->attention_scale, err));
  TWS_TRY(tws_json_number(json, json->root, "residual_multiplier", 0, 1e-9, 1e9, 1, &d->residual_scale, err));
  TWS_TRY(tws_json_number(json, json->root, "logits_scaling", 0, 1e-9, 1e9, 1, &divisor, err));
  d->logit_scale = 1 / divisor;
  return TWS_OK;
}

tws_code tws_build_granite(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {FACTOR_KEYS, "attention_bias", "mlp_bias", NULL};
  tws_decoder d = {.positions = 2048};
  TWS_TRY(tws_json_bool(b->json, b->json->root, "mlp_bias", 0, 0, &d.mlp_bias, err));
  TWS_TRY(read_factors(b, &d, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}

/* Checks that all layers are attention and that there are no experts. */
static tws_code expect_dense(tws_network_builder *b, tws_error *err) {
  const tws_json *json = b->json;
  const cJSON *types = cJSON_GetObjectItemCaseSensitive(json->root, "layer_types"), *type;
  const char *const hint = "Granite 4's dense models are supported: attention in all layers, num_local_experts 0";
  int64_t experts = 0;
  if (!cJSON_IsArray(types)) types = cJSON_GetObjectItemCaseSensitive(json->root, "layers_block_type");
  if (!cJSON_IsArray(types))
    return tws_json_fail(json, types, err, hint, "a model without \"layer_types\" has Mamba in all layers");
  cJSON_ArrayForEach(type, types) {
    const char *word = cJSON_IsString(type) ? type->valuestring : "";
    if (strcmp(word, "attention") != 0 && strcmp(word, "full_attention") != 0)
      return tws_json_fail(json, type, err, hint, "a layer of \"%.40s\" is not supported", word);
  }
  TWS_TRY(tws_json_int(json, json->root, "num_local_experts", 0, 0, TWS_MAX_EXPERTS, 8, &experts, err));
  if (experts == 0) return TWS_OK;
  return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(json->root, "num_local_experts"), err, hint,
                       "%lld experts of this architecture are not supported", (long long)experts);
}

tws_code tws_build_granite_hybrid(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {FACTOR_KEYS,
                                      "attention_bias",
                                      "intermediate_size", /* width of experts */
                                      "num_local_experts",
                                      "num_experts_per_tok",
                                      "output_router_logits",
                                      "router_aux_loss_coef",
                                      "position_embedding_type",
                                      "layer_types",
                                      "layers_block_type",
                                      "normalization_function",
                                      "init_method",
                                      "mamba_n_heads",
                                      "mamba_n_groups",
                                      "mamba_d_state",
                                      "mamba_d_head",
                                      "mamba_d_conv",
                                      "mamba_expand",
                                      "mamba_chunk_size",
                                      "mamba_conv_bias",
                                      "mamba_proj_bias",
                                      "time_step_limit",
                                      NULL};
  const tws_json *json = b->json;
  tws_decoder_names names = tws_llama_names;
  tws_decoder_keys keys = tws_llama_keys;
  const char *position = "";
  names.up = "shared_mlp.input_linear";
  names.act = "shared_mlp.act";
  names.down = "shared_mlp.output_linear";
  keys.inner = "shared_intermediate_size";
  tws_decoder d = {.names = &names, .keys = &keys, .positions = 2048, .gate_up_whole = 1};
  TWS_TRY(expect_dense(b, err));
  TWS_TRY(tws_json_string(json, json->root, "position_embedding_type", 0, "", &position, err));
  TWS_TRY(read_factors(b, &d, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  if (strcmp(position, "rope") != 0) {
    d.turned = tws_arena_alloc(b->net->arena, (size_t)b->net->layers, 1);
    if (d.turned == NULL) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the model's graph");
  }
  return tws_decoder_build(b, &d, err);
}
