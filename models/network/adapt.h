/* Partial training: frozen parameters, quantized or not, and adapters added to linear layers (LoRA). */
#ifndef TWS_MODELS_ADAPT_H
#define TWS_MODELS_ADAPT_H

#include "config/ds_config.h"
#include "models/network/network.h"

/* Applies twinspeed.lora and twinspeed.frozen_parameters to a network; no change without them.
 *
 * LoRA (Hu et al. 2021): a target's y = W x + b becomes W x + b + s B A dropout(x), s = lora_alpha / r, with rslora
 * lora_alpha / sqrt(r) (Kalajdzievski 2023); everything but A and B is frozen. A target is a linear layer inside the
 * model's layers, by the name that Hugging Face's model gives it: parts of what is joined here are targets of their
 * own, which share what dropout leaves of x. A begins as normal numbers of the variance of PEFT's uniform ones, B with
 * 0.
 *
 * twinspeed.frozen_quantization (QLoRA, Dettmers et al. 2023) sets the bits of frozen weights that linear layers alone
 * use: not of tables that a head shares, of experts, of biases and norms.
 *
 * TWS_INVALID: names and patterns that fit nothing, or a part of what is one parameter here. TWS_UNSUPPORTED:
 * targets that are experts. */
tws_code tws_network_adapt(tws_network *network, const tws_config *config, tws_error *err);

/* Returns the factor that the products of adapters are multiplied by. */
double tws_lora_scale(const tws_config *config);
/* Elements that are trained. */
int64_t tws_network_trained(const tws_network *network);

#endif
