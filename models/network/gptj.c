/* GPT-J (Wang and Komatsuzaki, 2021; keys as in Hugging Face's GPTJConfig): rotary positions on adjacent elements of a
 * part of each head, attention and MLP in parallel after one LayerNorm. */
#include "models/network/decoder.h"

tws_code tws_build_gptj(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"rotary_dim", "rotary", "scale_attn_weights", "n_ctx", NULL};
  static const tws_decoder_names names = {.embedding = "transformer.wte",
                                          .layer = "transformer.h.",
                                          .norm = {"ln_1"},
                                          .qkv = "attn.qkv_proj",
                                          .rope = "attn.rope",
                                          .attention = "attn",
                                          .output = "attn.out_proj",
                                          .up = "mlp.fc_in",
                                          .act = "mlp.act",
                                          .down = "mlp.fc_out",
                                          .final_norm = "transformer.ln_f",
                                          .head = "lm_head"};
  static const tws_decoder_drops drops = {
      .attention = "attn_pdrop", .attended = "resid_pdrop", .inner = "resid_pdrop", .embedding = "embd_pdrop"};
  tws_decoder d = {.drops = &drops,
                   .names = &names,
                   .keys = &tws_gpt2_keys,
                   .positions = 2048,
                   .inner = 4,
                   .activation = "gelu_new",
                   .ungated = 1,
                   .layer_norm = 1,
                   .norm_bias = 1,
                   .order = TWS_ORDER_SIDE_BY_SIDE,
                   .mlp_bias = 1,
                   .head_bias = 1,
                   .epsilon = 1e-5,
                   .rope = {.interleaved = 1}};
  TWS_TRY(tws_build_size(b, "rotary_dim", NULL, 0, TWS_MAX_HEADS, 64, &d.rope.rotary, err));
  TWS_TRY(tws_build_expect_bool(b, "rotary", 1, "set it to true", err));
  TWS_TRY(tws_build_expect_bool(b, "scale_attn_weights", 1, "set it to true", err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  b->net->open_positions = 0; /* Transformers precomputes a sine table, so positions are limited */
  return tws_decoder_build(b, &d, err);
}
