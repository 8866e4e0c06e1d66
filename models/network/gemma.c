/* Gemma 1, 2 and 3 (Gemma Team, 2024 and 2025; keys as in Hugging Face's GemmaConfig, Gemma2Config, Gemma3TextConfig):
 * GeGLU, embeddings times sqrt(hidden size), norms that add one to their weights; from 2 on norms before and after both
 * branches, layers with and without a window, and capped scores and logits; in 3 norms of queries and keys instead. */
#include <math.h>
#include <string.h>

#include "models/network/decoder.h"

static tws_decoder gemma(const tws_decoder_names *names, const tws_decoder_keys *keys) {
  return (tws_decoder){.names = names,
                       .keys = keys,
                       .positions = 8192,
                       .head_size = 256,
                       .activation = "gelu_pytorch_tanh",
                       .norm_offset = 1,
                       .tied = 1};
}

static tws_code finish(tws_network_builder *b, const char *const *known, tws_decoder *d, tws_error *err) {
  TWS_TRY(tws_json_bool(b->json, b->json->root, "attention_bias", 0, 0, &d->qkv_bias, err));
  TWS_TRY(tws_build_expect_bool(b, "use_bidirectional_attention", 0, "only decoders are supported", err));
  d->output_bias = d->qkv_bias;
  TWS_TRY(tws_decoder_read(b, known, d, err));
  d->embedding_scale = sqrt((double)b->net->hidden);
  return tws_decoder_build(b, d, err);
}

tws_code tws_build_gemma(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias", "use_bidirectional_attention", "hidden_activation",
                                      "hidden_act", NULL};
  tws_decoder_keys keys = tws_llama_keys;
  tws_decoder d = gemma(NULL, &keys);
  const char *also = "gelu_pytorch_tanh", *word = also; /* older files have the activation under two keys */
  TWS_TRY(tws_json_string(b->json, b->json->root, "hidden_act", 0, word, &word, err));
  if (strcmp(word, "gelu") == 0) keys.activation = NULL; /* Google's files mean the tanh approximation by "gelu" */
  TWS_TRY(tws_json_string(b->json, b->json->root, "hidden_activation", 0, also, &also, err));
  if (strcmp(also, d.activation) != 0)
    return tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(b->json->root, "hidden_activation"), err,
                         "known here: gelu_pytorch_tanh", "hidden_activation \"%.60s\" is not supported", also);
  return finish(b, known, &d, err);
}

static const char *const known_later[] = {"attention_bias",
                                          "use_bidirectional_attention",
                                          "query_pre_attn_scalar",
                                          "sliding_window",
                                          "sliding_window_size",
                                          "layer_types",
                                          "sliding_window_pattern",
                                          "_sliding_window_pattern",
                                          "rope_local_base_freq",
                                          "attn_logit_softcapping",
                                          "final_logit_softcapping",
                                          "hidden_act", /* known, but the class only reads hidden_activation */
                                          NULL};

static tws_code build_later(tws_network_builder *b, int64_t period, double score_cap, double logit_cap, tws_decoder *d,
                            tws_error *err) {
  const tws_json *json = b->json;
  double scalar;
  d->kv_heads = 4;
  TWS_TRY(tws_json_number(json, json->root, "query_pre_attn_scalar", 0, 1e-6, 1e9, 256, &scalar, err));
  d->attention_scale = 1 / sqrt(scalar);
  TWS_TRY(tws_build_optional_number(b, "attn_logit_softcapping", score_cap, &d->score_cap, err));
  TWS_TRY(tws_build_optional_number(b, "final_logit_softcapping", logit_cap, &d->logit_cap, err));
  TWS_TRY(tws_build_size(b, "sliding_window", NULL, 0, TWS_MAX_WIDTH, 4096, &d->window, err));
  TWS_TRY(
      tws_build_size(b, "sliding_window_pattern", "_sliding_window_pattern", 0, TWS_MAX_LAYERS, period, &period, err));
  TWS_TRY(tws_decoder_read_layer_types(b, period, d, err));
  return finish(b, known_later, d, err);
}

/* Returns the names of norms of Gemma 2 and 3, which have norms before and after each branch. */
static tws_decoder_names later_names(void) {
  tws_decoder_names names = tws_llama_names;
  names.norm[2] = "pre_feedforward_layernorm";
  return names;
}
static tws_decoder_keys later_keys(void) {
  tws_decoder_keys keys = tws_llama_keys;
  keys.activation = "hidden_activation";
  return keys;
}

tws_code tws_build_gemma2(tws_network_builder *b, tws_error *err) {
  const tws_decoder_names names = later_names();
  const tws_decoder_keys keys = later_keys();
  tws_decoder d = gemma(&names, &keys);
  d.order = TWS_ORDER_BOTH;
  return build_later(b, 2, 50, 30, &d, err);
}

/* Builds VaultGemma: Gemma 2 without norms after the branches, trained with differential privacy (Sinha et al.,
 * 2025). */
tws_code tws_build_vaultgemma(tws_network_builder *b, tws_error *err) {
  const tws_decoder_names names = later_names();
  const tws_decoder_keys keys = later_keys();
  tws_decoder d = gemma(&names, &keys);
  return build_later(b, 2, 50, 30, &d, err);
}

tws_code tws_build_gemma3(tws_network_builder *b, tws_error *err) {
  const tws_decoder_names names = later_names();
  const tws_decoder_keys keys = later_keys();
  tws_decoder d = gemma(&names, &keys);
  d.order = TWS_ORDER_BOTH;
  d.positions = 131072;
  d.head_norms = TWS_HEADS_APART;
  d.rope.parameters[0] = 1e6;
  TWS_TRY(tws_json_number(b->json, b->json->root, "rope_local_base_freq", 0, 1, 1e12, 10000, d.sliding_rope.parameters,
                          err));
  return build_later(b, 6, 0, 0, &d, err);
}
