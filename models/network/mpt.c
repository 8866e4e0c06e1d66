/* MPT (MosaicML, 2023; keys as in Hugging Face's MptConfig): ALiBi, LayerNorm without biases, joined projections. */
#include "models/network/decoder.h"

/* Checks the keys of the nested object with the configuration of attention. Newer versions of Transformers also save in
 * it the keys that all configurations have. */
static tws_code check_keys(tws_network_builder *b, const cJSON *object, const char *const *known, tws_error *err) {
  enum { MOST = 160 };
  const char *all[MOST];
  int count = 0;
  for (; *known && count < MOST - 2; known++) all[count++] = *known;
  for (const char *const *key = tws_build_metadata(); *key && count < MOST - 2; key++) all[count++] = *key;
  all[count++] = "is_encoder_decoder";
  all[count] = NULL;
  return tws_json_only(b->json, object, all, err);
}

static tws_code check_attention(tws_network_builder *b, tws_decoder *d, tws_error *err) {
  static const char *const known[] = {"attn_type", "attn_pdrop",     "attn_impl",  "qk_ln",
                                      "clip_qkv",  "softmax_scale",  "prefix_lm",  "attn_uses_sequence_id",
                                      "alibi",     "alibi_bias_max", "model_type", NULL};
  static const char *const off[] = {"qk_ln", "prefix_lm", "attn_uses_sequence_id", "is_encoder_decoder", NULL};
  static const char *const none[] = {"clip_qkv", "softmax_scale", NULL};
  const tws_json *json = b->json;
  const cJSON *object = cJSON_GetObjectItemCaseSensitive(json->root, "attn_config");
  int alibi = 1, on = 0;
  double most = 8, share = 0;
  if (object == NULL || cJSON_IsNull(object)) return TWS_OK;
  TWS_TRY(check_keys(b, object, known, err));
  TWS_TRY(tws_json_number(json, object, "attn_pdrop", 0, 0, 0.999, 0, &share, err));
  d->attention_dropout = d->attended_dropout = d->inner_dropout = share; /* one key gives all three */
  TWS_TRY(tws_json_bool(json, object, "alibi", 0, 1, &alibi, err));
  TWS_TRY(tws_json_number(json, object, "alibi_bias_max", 0, 0, 1e6, 8, &most, err));
  if (!alibi || most != 8)
    return tws_json_fail(json, object, err, "use alibi with alibi_bias_max 8", "other positions are not supported");
  for (int i = 0; off[i] != NULL; i++) {
    TWS_TRY(tws_json_bool(json, object, off[i], 0, 0, &on, err));
    if (on) return tws_json_fail(json, object, err, "set it to false", "\"%s\" is not supported", off[i]);
  }
  for (int i = 0; none[i] != NULL; i++) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, none[i]);
    if (item != NULL && !cJSON_IsNull(item))
      return tws_json_fail(json, item, err, "set it to null", "\"%s\" is not supported", none[i]);
  }
  return TWS_OK;
}

tws_code tws_build_mpt(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attn_config", "expansion_ratio", "emb_pdrop", "learned_pos_emb",
                                      "init_device", "logit_scale",     "no_bias",   "embedding_fraction",
                                      "norm_type",   "init_config",     "verbose",   NULL};
  static const tws_decoder_names names = {.embedding = "transformer.wte",
                                          .layer = "transformer.blocks.",
                                          .norm = {"norm_1", NULL, "norm_2"},
                                          .qkv = "attn.Wqkv",
                                          .attention = "attn",
                                          .output = "attn.out_proj",
                                          .up = "ffn.up_proj",
                                          .act = "ffn.act",
                                          .down = "ffn.down_proj",
                                          .final_norm = "transformer.norm_f",
                                          .head = "lm_head"};
  static const tws_decoder_keys keys = {.layers = "n_layers|num_hidden_layers",
                                        .hidden = "d_model|hidden_size",
                                        .heads = "n_heads|num_attention_heads",
                                        .positions = "max_seq_len",
                                        .epsilon = "layer_norm_epsilon"};
  const tws_json *json = b->json;
  const cJSON *scale = cJSON_GetObjectItemCaseSensitive(json->root, "logit_scale");
  static const tws_decoder_drops drops = {.attention = NULL};
  tws_decoder d = {.drops = &drops,
                   .names = &names,
                   .keys = &keys,
                   .positions = 2048,
                   .activation = "gelu",
                   .ungated = 1,
                   .layer_norm = 1,
                   .position = TWS_POSITIONS_LINEAR,
                   .qkv_groups = 1,
                   .epsilon = 1e-5,
                   .tied = 1};
  TWS_TRY(tws_build_expect_bool(b, "no_bias", 1, "set it to true", err));
  TWS_TRY(tws_json_int(json, json->root, "expansion_ratio", 0, 1, 64, 4, &d.inner, err));
  if (scale != NULL && !cJSON_IsNull(scale))
    return tws_json_fail(json, scale, err, "set it to null", "\"logit_scale\" is not supported");
  TWS_TRY(check_attention(b, &d, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  if ((b->net->heads & (b->net->heads - 1)) != 0)
    return tws_json_fail(json, NULL, err, "use a power of two", "MPT's biases of %lld heads are not modelled",
                         (long long)b->net->heads);
  return tws_decoder_build(b, &d, err);
}
