/* Command R and Aya 23 (keys as in Hugging Face's CohereConfig): parallel branches after one LayerNorm without a bias,
 * rotary positions on adjacent elements of a head, logits times a factor, the embedding's weights as the head. Command
 * R+ has norms of queries and keys (use_qk_norm), which are not modelled. Command R7B and Command A (Cohere2Config)
 * have a window in three of four layers, and no positions in the fourth. */
#include <string.h>

#include "models/network/decoder.h"

static tws_decoder cohere(const tws_decoder_keys *keys, double theta) {
  return (tws_decoder){.keys = keys,
                       .positions = 8192,
                       .layer_norm = 1,
                       .order = TWS_ORDER_SIDE_BY_SIDE,
                       .epsilon = 1e-5,
                       .rope = {.interleaved = 1, .parameters = {theta}},
                       .tied = 1};
}

static tws_code finish(tws_network_builder *b, const char *const *known, tws_decoder *d, tws_error *err) {
  TWS_TRY(tws_build_expect_bool(b, "use_qk_norm", 0, "models without norms of queries and keys are supported", err));
  TWS_TRY(tws_json_bool(b->json, b->json->root, "attention_bias", 0, 0, &d->qkv_bias, err));
  TWS_TRY(tws_json_number(b->json, b->json->root, "logit_scale", 0, 1e-9, 1e9, 0.0625, &d->logit_scale, err));
  d->output_bias = d->qkv_bias;
  TWS_TRY(tws_decoder_read(b, known, d, err));
  return tws_decoder_build(b, d, err);
}

static tws_decoder_keys cohere_keys(void) {
  tws_decoder_keys keys = tws_llama_keys;
  keys.epsilon = "layer_norm_eps";
  return keys;
}

tws_code tws_build_cohere(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias", "logit_scale", "use_qk_norm", NULL};
  const tws_decoder_keys keys = cohere_keys();
  tws_decoder d = cohere(&keys, 500000);
  return finish(b, known, &d, err);
}

/* Checks the values of keys that published files have although Hugging Face's class does not read them: fails with
 * TWS_UNSUPPORTED if they contradict the graph. */
static tws_code expect_usual(tws_network_builder *b, tws_error *err) {
  static const struct {
    const char *key, *word;
  } usual[] = {{"order_of_interleaved_layers", "local_attn_first"}, {"position_embedding_type", "rope_gptj"}};
  const tws_json *json = b->json;
  double rotary;
  for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
    const char *word = usual[i].word;
    TWS_TRY(tws_json_string(json, json->root, usual[i].key, 0, word, &word, err));
    if (strcmp(word, usual[i].word) != 0)
      return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(json->root, usual[i].key), err, usual[i].word,
                           "%s \"%.60s\" is not supported", usual[i].key, word);
  }
  TWS_TRY(tws_json_number(json, json->root, "rotary_pct", 0, 1, 1, 1, &rotary, err));
  TWS_TRY(tws_build_expect_bool(b, "use_gated_activation", 1, "set it to true", err));
  return tws_build_expect_bool(b, "use_parallel_block", 1, "set it to true", err);
}

tws_code tws_build_cohere2(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias",
                                      "logit_scale",
                                      "use_qk_norm",
                                      "sliding_window",
                                      "sliding_window_pattern",
                                      "_sliding_window_pattern",
                                      "layer_switch",
                                      "layer_types",
                                      "order_of_interleaved_layers",
                                      "position_embedding_type",
                                      "rotary_pct",
                                      "use_gated_activation",
                                      "use_parallel_block",
                                      "use_parallel_embedding",
                                      "use_embedding_sharing",
                                      NULL};
  const cJSON *window = cJSON_GetObjectItemCaseSensitive(b->json->root, "sliding_window");
  const tws_decoder_keys keys = cohere_keys();
  tws_decoder d = cohere(&keys, 10000);
  int64_t period = 4;
  if (window == NULL || !cJSON_IsNull(window)) /* null means no window; without the key the class's default is 4096 */
    TWS_TRY(tws_build_size(b, "sliding_window", NULL, 0, TWS_MAX_WIDTH, 4096, &d.window, err));
  TWS_TRY(
      tws_build_size(b, "sliding_window_pattern", "_sliding_window_pattern", 0, TWS_MAX_LAYERS, period, &period, err));
  TWS_TRY(tws_build_size(b, "layer_switch", NULL, 0, TWS_MAX_LAYERS, period, &period, err));
  TWS_TRY(tws_decoder_read_layer_types(b, period, &d, err));
  d.turned = d.slides;
  TWS_TRY(expect_usual(b, err));
  return finish(b, known, &d, err);
}
