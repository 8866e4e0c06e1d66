/* Falcon (Almazrouei et al., 2023; keys as in Hugging Face's FalconConfig): attention and MLP in parallel; one key head
 * (7B), or with new_decoder_architecture several key heads and a norm for each branch (40B); files group the joined
 * projection by key heads. Falcon-RW has linear biases, which are scaled like scores. */
#include "models/network/decoder.h"

typedef struct falcon {
  int newer, multi_query, side_by_side, bias, alibi;
  int64_t norms;
} falcon;

static tws_code read_form(tws_network_builder *b, falcon *f, tws_error *err) {
  const tws_json *json = b->json;
  TWS_TRY(tws_json_bool(json, json->root, "new_decoder_architecture", 0, 0, &f->newer, err));
  TWS_TRY(tws_json_bool(json, json->root, "multi_query", 0, 1, &f->multi_query, err));
  TWS_TRY(tws_json_bool(json, json->root, "parallel_attn", 0, 1, &f->side_by_side, err));
  TWS_TRY(tws_json_bool(json, json->root, "bias", 0, 0, &f->bias, err));
  TWS_TRY(tws_build_size(b, "num_ln_in_parallel_attn", NULL, 0, 2, f->newer ? 2 : 1, &f->norms, err));
  return tws_json_bool(json, json->root, "alibi", 0, 0, &f->alibi, err);
}

/* Checks that the width factor of the MLP agrees with ffn_hidden_size, which Transformers reads instead of the
 * factor. */
static tws_code check_factor(tws_network_builder *b, tws_error *err) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(b->json->root, "ff_factor");
  int64_t factor = 0;
  if (!item || cJSON_IsNull(item)) return TWS_OK;
  TWS_TRY(tws_json_int(b->json, b->json->root, "ff_factor", 1, 1, TWS_MAX_WIDTH, 0, &factor, err));
  if (factor * b->net->hidden == b->net->intermediate) return TWS_OK;
  return tws_json_fail(b->json, item, err, "leave ff_factor out, or let it agree with ffn_hidden_size",
                       "\"ff_factor\" is %lld, and the inner part has %lld elements for a width of %lld",
                       (long long)factor, (long long)b->net->intermediate, (long long)b->net->hidden);
}

tws_code tws_build_falcon(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"new_decoder_architecture",
                                      "multi_query",
                                      "parallel_attn",
                                      "bias",
                                      "num_ln_in_parallel_attn",
                                      "alibi",
                                      "num_kv_heads",
                                      "n_head_kv",
                                      "apply_residual_connection_post_layernorm",
                                      "ff_factor",
                                      NULL};
  static const tws_decoder_keys keys = {.layers = "num_hidden_layers|n_layer",
                                        .hidden = "hidden_size",
                                        .heads = "num_attention_heads|n_head",
                                        .inner = "ffn_hidden_size",
                                        .positions = "max_position_embeddings",
                                        .epsilon = "layer_norm_epsilon",
                                        .activation = "activation"};
  falcon f = {0};
  TWS_TRY(read_form(b, &f, err));
  const int two = f.side_by_side && f.newer && f.norms == 2;
  const tws_decoder_names names = {
      .embedding = "transformer.word_embeddings",
      .layer = "transformer.h.",
      .norm = {two ? "ln_attn" : "input_layernorm", NULL, two ? "ln_mlp" : "post_attention_layernorm"},
      .qkv = "self_attention.query_key_value",
      .rope = "self_attention.rope",
      .attention = "self_attention",
      .output = "self_attention.dense",
      .up = "mlp.dense_h_to_4h",
      .act = "mlp.act",
      .down = "mlp.dense_4h_to_h",
      .final_norm = "transformer.ln_f",
      .head = "lm_head"};
  static const tws_decoder_drops drops = {
      .attention = "attention_dropout", .attended = "attention_dropout", .inner = "hidden_dropout", .together = 1};
  tws_decoder d = {.drops = &drops,
                   .names = &names,
                   .keys = &keys,
                   .positions = 2048,
                   .inner = 4,
                   .activation = "gelu",
                   .ungated = 1,
                   .layer_norm = 1,
                   .norm_bias = 1,
                   .order = f.side_by_side ? TWS_ORDER_SIDE_BY_SIDE : TWS_ORDER_BEFORE,
                   .two_norms = two,
                   .qkv_bias = f.bias,
                   .output_bias = f.bias,
                   .mlp_bias = f.bias,
                   .qkv_groups = -1,
                   .position = f.alibi ? TWS_POSITIONS_LINEAR : TWS_POSITIONS_ROTARY,
                   .scaled_biases = 1,
                   .epsilon = 1e-5,
                   .tied = 1};
  TWS_TRY(tws_build_expect_bool(b, "apply_residual_connection_post_layernorm", 0, "set it to false", err));
  if (f.newer)
    TWS_TRY(tws_build_size(b, "num_kv_heads", "n_head_kv", 0, TWS_MAX_HEADS, 0, &d.kv_heads, err));
  else if (f.multi_query)
    d.kv_heads = 1;
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  TWS_TRY(check_factor(b, err));
  return tws_decoder_build(b, &d, err);
}
