/* GPT-2's layers, for its files. Private to models/network. */
#ifndef TWS_MODELS_NETWORK_GPT2_H
#define TWS_MODELS_NETWORK_GPT2_H

#include "models/network/build.h"

typedef struct tws_gpt2 {
  double epsilon, range, residual_dropout, embedding_dropout, attention_dropout;
  int64_t inner;
  float residual_std;
  int32_t *experts; /* per layer, 0: none; NULL: in no layer */
  int64_t choices, least_slots;
  double auxiliary, capacity; /* capacity less than 0: what the configuration says */
  int residual, samples;
  tws_module_type activation;
  int scaled, scaled_by_layer; /* scores: by the head size, and by the number of the layer */
} tws_gpt2;

/* gpt2.c: the inner part of a layer. */
uint32_t tws_gpt2_add_inner(tws_network_builder *b, const tws_gpt2 *g, int layer, uint32_t x);
/* gpt2_experts.c: keys of layers of experts, where the file has them; such a layer in place of the inner part, at most
 * 15 modules. */
tws_code tws_gpt2_read_experts(tws_network_builder *b, tws_gpt2 *g, tws_error *err);
uint32_t tws_gpt2_add_experts(tws_network_builder *b, const tws_gpt2 *g, int layer, uint32_t x);

#endif
