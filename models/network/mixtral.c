/* Mixtral (Jiang et al., 2024; keys as in Hugging Face's MixtralConfig): Mistral with a layer of experts instead of
 * each MLP; the softmax that weights a token's experts is over the chosen experts only. */
#include "models/network/decoder.h"

tws_code tws_build_mixtral(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {
      "sliding_window",       "num_local_experts",   "num_experts_per_tok", "router_aux_loss_coef",
      "output_router_logits", "router_jitter_noise", "router_z_loss_coef",  NULL};
  const tws_json *json = b->json;
  tws_decoder d = {.positions = 131072, .kv_heads = 8, .expert_block = "block_sparse_moe"};
  const cJSON *window = cJSON_GetObjectItemCaseSensitive(json->root, "sliding_window");
  if (window != NULL && !cJSON_IsNull(window))
    TWS_TRY(tws_build_size(b, "sliding_window", NULL, 0, TWS_MAX_WIDTH, 4096, &d.window, err));
  TWS_TRY(tws_json_number(json, json->root, "router_jitter_noise", 0, 0, 1, 0, &d.expert_jitter, err));
  TWS_TRY(tws_decoder_read_routing(b, "num_local_experts", 8, 2, 0.001, &d, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  d.expert_inner = b->net->intermediate;
  return tws_decoder_build(b, &d, err);
}
