/* EXAONE 4.0 (LG AI Research, 2025; keys as in Hugging Face's Exaone4Config): norms after both branches and of each
 * query and key head; if layers with and without a window alternate, layers without a window have no positions.
 * K-EXAONE (ExaoneMoeConfig) has norms before both branches and, except in the first few layers, experts with a sigmoid
 * router. */
#include <string.h>

#include "models/network/decoder.h"

/* Reads the period of layers without a window: null (none), a number, or a word such as "LLLG", whose pattern repeats
 * the information in layer_types. */
static tws_code read_period(tws_network_builder *b, int64_t *period, tws_error *err) {
  const cJSON *types = cJSON_GetObjectItemCaseSensitive(b->json->root, "layer_types");
  const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(b->json->root, "sliding_window_pattern");
  *period = 4;
  if (pattern != NULL && cJSON_IsNull(pattern)) *period = 0;
  if (pattern == NULL || cJSON_IsNull(pattern) || (cJSON_IsString(pattern) && cJSON_IsArray(types))) return TWS_OK;
  return tws_build_size(b, "sliding_window_pattern", NULL, 0, TWS_MAX_LAYERS, *period, period, err);
}

static tws_code read_windows(tws_network_builder *b, tws_decoder *d, tws_error *err) {
  const cJSON *window = cJSON_GetObjectItemCaseSensitive(b->json->root, "sliding_window");
  int64_t period;
  if (window == NULL || !cJSON_IsNull(window)) /* null means no window; without the key the class's default is 4096 */
    TWS_TRY(tws_build_size(b, "sliding_window", NULL, 0, TWS_MAX_WIDTH, 4096, &d->window, err));
  TWS_TRY(read_period(b, &period, err));
  TWS_TRY(tws_decoder_read_layer_types(b, period, d, err));
  if (d->window > 0) d->turned = d->slides;
  return TWS_OK;
}

tws_code tws_build_exaone4(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"sliding_window", "sliding_window_pattern", "layer_types", NULL};
  tws_decoder d = {
      .positions = 2048, .kv_heads = 32, .order = TWS_ORDER_BEHIND, .head_norms = TWS_HEADS_APART, .epsilon = 1e-5};
  TWS_TRY(read_windows(b, &d, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}

/* Reads from `mlp_layer_types`, if the file has it, which layers have experts. */
static tws_code read_inner_types(tws_network_builder *b, tws_decoder *d, tws_error *err) {
  const cJSON *types = cJSON_GetObjectItemCaseSensitive(b->json->root, "mlp_layer_types"), *type;
  int64_t layers = 0, layer = 0;
  TWS_TRY(tws_build_size(b, "num_hidden_layers", NULL, 1, TWS_MAX_LAYERS, 0, &layers, err));
  if (types == NULL || cJSON_IsNull(types)) return TWS_OK;
  if (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != layers)
    return tws_json_fail(b->json, types, err, NULL, "\"mlp_layer_types\" must be a list of %lld words",
                         (long long)layers);
  uint8_t *dense = tws_arena_alloc(b->net->arena, (size_t)layers, 1);
  if (!dense) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the model's graph");
  cJSON_ArrayForEach(type, types) {
    const char *word = cJSON_IsString(type) ? type->valuestring : "";
    dense[layer] = strcmp(word, "dense") == 0;
    if (!dense[layer] && strcmp(word, "sparse") != 0)
      return tws_json_fail(b->json, type, err, "known: dense and sparse",
                           "layer %lld of \"mlp_layer_types\" is not supported", (long long)layer);
    layer++;
  }
  d->dense = dense;
  return TWS_OK;
}

tws_code tws_build_exaone_moe(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {TWS_SCORED_KEYS,
                                      "sliding_window",
                                      "sliding_window_pattern",
                                      "layer_types",
                                      "mlp_layer_types",
                                      "scoring_func",
                                      "topk_method",
                                      NULL};
  static const tws_decoder_scored usual = {.experts_key = "num_experts",
                                           .shared_key = "num_shared_experts",
                                           .experts = 64,
                                           .choices = 8,
                                           .inner = 1024,
                                           .shared = 1,
                                           .dense_layers = 1,
                                           .renormalizes = 1,
                                           .scale = 2.5};
  tws_decoder d = {.positions = 2048, .kv_heads = 32, .head_norms = TWS_HEADS_APART, .epsilon = 1e-5};
  TWS_TRY(read_windows(b, &d, err));
  TWS_TRY(tws_decoder_read_scored(b, &usual, &d, err));
  TWS_TRY(read_inner_types(b, &d, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
