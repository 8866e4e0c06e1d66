/* The layers of GPT-2, shared by its files. Private to models/network. */
#ifndef TWS_MODELS_NETWORK_GPT2_H
#define TWS_MODELS_NETWORK_GPT2_H

#include "models/network/build.h"

typedef struct tws_gpt2 {
  double epsilon, range, residual_dropout, embedding_dropout, attention_dropout;
  int64_t inner;
  float residual_std;
  int32_t *experts; /* [layer] number of experts, 0: none; NULL: no layer has experts */
  int64_t choices, least_slots;
  double auxiliary, capacity; /* capacity < 0: the configuration's */
  int residual, samples;
  tws_module_type activation;
  /* scaled: 1: scores are divided by sqrt(head size); scaled_by_layer: 1: scores are divided by the layer's number */
  int scaled, scaled_by_layer;
} tws_gpt2;

/* Adds the MLP of a layer (gpt2.c). */
uint32_t tws_gpt2_add_inner(tws_network_builder *b, const tws_gpt2 *g, int layer, uint32_t x);
/* Read the keys of layers of experts if the file has them, and add such a layer in place of the MLP, with at most 15
 * modules (gpt2_experts.c). */
tws_code tws_gpt2_read_experts(tws_network_builder *b, tws_gpt2 *g, tws_error *err);
uint32_t tws_gpt2_add_experts(tws_network_builder *b, const tws_gpt2 *g, int layer, uint32_t x);

#endif
