/* Decoders of Llama's family (Touvron et al., 2023): rotary positions, grouped-query attention, RMSNorm, SwiGLU. They
 * differ in a few keys, which each architecture's file reads. Private to models/network. */
#ifndef TWS_MODELS_NETWORK_DECODER_H
#define TWS_MODELS_NETWORK_DECODER_H

#include "models/network/build.h"

typedef struct tws_decoder {
  int64_t positions, kv_heads; /* where the file gives none; 0: as many as query heads */
  int qkv_bias, output_bias, mlp_bias;
  int64_t window, window_layer; /* sliding window of attention, from this layer on; 0: none */
  double epsilon, range, rope[5];
  tws_routing routing;      /* of layers of experts in place of the inner part; experts 0: there are none */
  int64_t expert_inner;     /* width of an expert's inner part */
  const char *expert_block; /* what the layer is called */
  const uint8_t *dense;     /* per layer: it has an inner part and no experts; NULL: all have experts */
  int64_t shared_inner;     /* of the inner part that all tokens go through beside their experts; 0: none */
  const char *shared_name;  /* what that is called */
  int shared_gate;          /* and it has a gate of its own */
} tws_decoder;

/* The keys that all of them have. Remarks on those that are neither these nor in `also_known`. */
tws_code tws_decoder_read(tws_network_builder *b, const char *const *also_known, tws_decoder *d, tws_error *err);
/* What the router of Mixtral and its like is given: the key that says the number of experts, and what stands for
 * missing keys. */
tws_code tws_decoder_read_routing(tws_network_builder *b, const char *count, int64_t experts, int64_t choices,
                                  double auxiliary, tws_decoder *d, tws_error *err);
/* The layer of experts: what is added to the residual stream. At most TWS_EXPERT_MODULES modules. */
enum { TWS_EXPERT_MODULES = 13 };
uint32_t tws_decoder_add_experts(tws_network_builder *b, const tws_decoder *d, int layer, uint32_t x);
tws_code tws_decoder_build(tws_network_builder *b, const tws_decoder *d, tws_error *err);

#endif
