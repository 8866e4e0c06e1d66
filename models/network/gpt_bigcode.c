/* StarCoder and SantaCoder (Li et al., 2023; keys as in Hugging Face's GPTBigCodeConfig): GPT-2 with one key head. */
#include "models/network/decoder.h"

tws_code tws_build_gpt_bigcode(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"multi_query",
                                      "scale_attn_weights",
                                      "attention_softmax_in_fp32",
                                      "scale_attention_softmax_in_fp32",
                                      "add_cross_attention",
                                      "n_ctx",
                                      "inference_runner",
                                      "max_batch_size",
                                      "max_sequence_length",
                                      "pad_key_length",
                                      "pre_allocate_kv_cache",
                                      "validate_runner_input",
                                      NULL};
  static const tws_decoder_names names = {.embedding = "transformer.wte",
                                          .positions = "transformer.wpe",
                                          .layer = "transformer.h.",
                                          .norm = {"ln_1", NULL, "ln_2"},
                                          .qkv = "attn.c_attn",
                                          .attention = "attn",
                                          .output = "attn.c_proj",
                                          .up = "mlp.c_fc",
                                          .act = "mlp.act",
                                          .down = "mlp.c_proj",
                                          .final_norm = "transformer.ln_f",
                                          .head = "lm_head"};
  int multi_query = 1;
  TWS_TRY(tws_json_bool(b->json, b->json->root, "multi_query", 0, 1, &multi_query, err));
  static const tws_decoder_drops drops = {
      .attention = "attn_pdrop", .attended = "resid_pdrop", .inner = "resid_pdrop", .embedding = "embd_pdrop"};
  tws_decoder d = {.drops = &drops,
                   .names = &names,
                   .keys = &tws_gpt2_keys,
                   .positions = 1024,
                   .kv_heads = multi_query,
                   .inner = 4,
                   .activation = "gelu_pytorch_tanh",
                   .ungated = 1,
                   .layer_norm = 1,
                   .norm_bias = 1,
                   .position = TWS_POSITIONS_LEARNED,
                   .qkv_bias = 1,
                   .output_bias = 1,
                   .mlp_bias = 1,
                   .qkv_groups = -1,
                   .epsilon = 1e-5,
                   .tied = 1};
  TWS_TRY(tws_build_expect_bool(b, "scale_attn_weights", 1, "set it to true", err));
  TWS_TRY(tws_build_expect_bool(b, "add_cross_attention", 0, "only decoders are supported", err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
