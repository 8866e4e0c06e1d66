/* Adds layers of experts to decoders, and reads the keys that several architectures have for them. */
#include "models/network/decoder.h"

/* Reads the number of experts of a layer, the number chosen per token, and the coefficient of the load-balancing loss,
 * which Transformers adds to the loss only if output_router_logits is true. */
tws_code tws_decoder_read_routing(tws_network_builder *b, const char *count, int64_t experts, int64_t choices,
                                  double auxiliary, tws_decoder *d, tws_error *err) {
  const tws_json *json = b->json;
  int balances = 0;
  TWS_TRY(tws_json_int(json, json->root, count, 0, 1, TWS_MAX_EXPERTS, experts, &experts, err));
  TWS_TRY(tws_json_int(json, json->root, "num_experts_per_tok", 0, 1, TWS_MAX_CHOICES, choices, &choices, err));
  if (choices > experts)
    return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(json->root, "num_experts_per_tok"), err,
                         "let a token choose at most as many experts as there are",
                         "a token chooses %lld of %lld experts", (long long)choices, (long long)experts);
  TWS_TRY(tws_json_number(json, json->root, "router_aux_loss_coef", 0, 0, 1e6, auxiliary, &auxiliary, err));
  TWS_TRY(tws_json_bool(json, json->root, "output_router_logits", 0, 0, &balances, err));
  d->routing = (tws_routing){.experts = (int32_t)experts, .choices = (int32_t)choices, .renormalizes = 1, .scale = 1};
  d->routing.auxiliary = balances ? auxiliary : 0;
  TWS_TRY(tws_json_number(json, json->root, "router_z_loss_coef", 0, 0, 1e6, 0, &d->routing.z, err));
  d->routing.slots =
      (tws_dim){.kind = TWS_DIM_CAPACITY, .parts = (int32_t)experts, .size = 4, .factor = -(double)choices};
  return TWS_OK;
}

static tws_code read_dense_layers(tws_network_builder *b, int64_t first, tws_decoder *d, tws_error *err) {
  int64_t layers = 0;
  TWS_TRY(tws_build_size(b, "num_hidden_layers", NULL, 1, TWS_MAX_LAYERS, 0, &layers, err));
  TWS_TRY(tws_json_int(b->json, b->json->root, "first_k_dense_replace", 0, 0, TWS_MAX_LAYERS, first, &first, err));
  uint8_t *dense = tws_arena_alloc(b->net->arena, (size_t)layers, 1);
  if (!dense) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the model's graph");
  for (int64_t layer = 0; layer < layers; layer++) dense[layer] = layer < first;
  d->dense = dense;
  return TWS_OK;
}

/* Reads the keys of experts as in DeepSeek-V3. Biases that balance experts stay 0 in this program, and the modules of
 * multi-token prediction are left out. */
tws_code tws_decoder_read_scored(tws_network_builder *b, const tws_decoder_scored *usual, tws_decoder *d,
                                 tws_error *err) {
  const tws_json *json = b->json;
  int64_t one, shared;
  TWS_TRY(tws_decoder_read_routing(b, usual->experts_key, usual->experts, usual->choices, 0, d, err));
  d->routing.auxiliary = 0;
  d->routing.sigmoid = d->routing.biased = 1;
  TWS_TRY(tws_json_bool(json, json->root, "norm_topk_prob", 0, usual->renormalizes, &d->routing.renormalizes, err));
  TWS_TRY(tws_json_number(json, json->root, "routed_scaling_factor", 0, 0, 1e6, usual->scale, &d->routing.scale, err));
  TWS_TRY(tws_json_int(json, json->root, "n_group", 0, 1, 1, 1, &one, err)); /* published models have one group */
  TWS_TRY(tws_json_int(json, json->root, "topk_group", 0, 1, 1, 1, &one, err));
  tws_build_note_unused(b, "num_nextn_predict_layers", "the next token alone is predicted");
  TWS_TRY(read_dense_layers(b, usual->dense_layers, d, err));
  TWS_TRY(tws_json_int(json, json->root, usual->shared_key, 0, 0, 1024, usual->shared, &shared, err));
  TWS_TRY(
      tws_build_size(b, "moe_intermediate_size", NULL, 0, TWS_MAX_WIDTH / 2048, usual->inner, &d->expert_inner, err));
  d->expert_block = "mlp";
  d->shared_name = "shared_experts";
  d->shared_inner = shared * d->expert_inner;
  tws_build_known_keys(b, usual->experts_key);
  tws_build_known_keys(b, usual->shared_key);
  return TWS_OK;
}

/* Adds an MLP: gate and up in one product, SwiGLU, down. */
static uint32_t add_shared(tws_network_builder *b, const tws_decoder *d, int layer, const char *name, uint32_t x) {
  const int64_t hidden = b->net->hidden, inner = d->shared_inner, rows[3] = {inner, inner, 0};
  const float std = (float)d->range;
  uint32_t y = tws_build_linear(b, layer, tws_build_name(b, "%s.gate_up_proj", name), x, hidden, 2 * inner, std, 0,
                                rows, TWS_NONE);
  y = tws_build_pointwise(b, layer, tws_build_name(b, "%s.act", name), TWS_MODULE_SWIGLU, y, inner);
  return tws_build_linear(b, layer, tws_build_name(b, "%s.down_proj", name), y, inner, hidden, std, 0, NULL, TWS_NONE);
}

/* Adds the experts of a layer: MLPs, of which each token is processed by a few. The modules that tensor parallelism
 * does not split come first, so that the shared expert can reuse the memory of their values. */
uint32_t tws_decoder_add_experts(tws_network_builder *b, const tws_decoder *d, int layer, uint32_t x) {
  const int64_t hidden = b->net->hidden, inner = d->expert_inner, rows[3] = {inner, inner, 0};
  const float std = (float)d->range;
  uint32_t gate = TWS_NONE;
#define NAME(suffix) tws_build_name(b, "model.layers.%d.%s." suffix, layer, d->expert_block)
  x = tws_build_jitter(b, layer, NAME("jitter"), x, d->expert_jitter);
  const uint32_t logits =
      tws_build_linear(b, layer, NAME("gate"), x, hidden, d->routing.experts, std, 0, NULL, TWS_NONE);
  const tws_routes routes = tws_build_router(b, layer, NAME("router"), logits, &d->routing);
  uint32_t y = tws_build_dispatch(b, layer, NAME("dispatch"), x, &routes);
  y = tws_build_expert_linear(b, layer, NAME("experts.gate_up_proj"), y, &routes, 2 * inner, std, 0, rows);
  y = tws_build_pointwise(b, layer, NAME("experts.act"), TWS_MODULE_SWIGLU, y, inner);
  y = tws_build_expert_linear(b, layer, NAME("experts.down_proj"), y, &routes, hidden, std, 0, NULL);
  y = tws_build_combine(b, layer, NAME("combine"), y, &routes);
  if (d->shared_inner == 0) return y;
  const char *name = tws_build_name(b, "model.layers.%d.%s.%s", layer, d->expert_block, d->shared_name);
  if (d->shared_gate) {
    const char *gate_name = tws_build_name(b, "%s_gate", name);
    gate = tws_build_linear(b, layer, gate_name, x, hidden, 1, std, 0, NULL, TWS_NONE);
  }
  uint32_t shared = add_shared(b, d, layer, name, x);
  if (d->shared_gate) shared = tws_build_gate(b, layer, tws_build_name(b, "%s_by_gate", name), shared, gate, 0);
  return tws_build_add(b, layer, NAME("add_shared"), y, shared);
#undef NAME
}
