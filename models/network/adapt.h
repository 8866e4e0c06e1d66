/* Applies the changes of a network's parameters that the configuration requests: some are frozen, and may be quantized;
 * linear layers get adapters (LoRA); and each parameter gets its parameter group. */
#ifndef TWS_MODELS_ADAPT_H
#define TWS_MODELS_ADAPT_H

#include "config/ds_config.h"
#include "models/network/network.h"

/* Applies twinspeed.lora, twinspeed.frozen_parameters and optimizer.param_groups to a network; changes nothing without
 * these keys.
 *
 * LoRA (Hu et al. 2021): a target's y = W x + b becomes W x + b + s B A dropout(x), s = lora_alpha / r, or with rslora
 * lora_alpha / sqrt(r) (Kalajdzievski 2023); everything but A and B is frozen. A target is a linear layer inside the
 * model's layers, by its name in Hugging Face's model. The parts of a joined layer (queries, keys and values) have
 * separate adapters, which share dropout(x). Initially, A is normally distributed with the variance of PEFT's uniform
 * distribution, and B is 0.
 *
 * twinspeed.frozen_quantization (QLoRA, Dettmers et al. 2023) quantizes frozen weights that only linear layers use, but
 * not tables that a head shares, experts, biases and norms.
 *
 * Fails with TWS_INVALID for names and patterns that match nothing, or only a part of a joined parameter;
 * TWS_UNSUPPORTED for targets that are experts. */
tws_code tws_network_adapt(tws_network *network, const tws_config *config, tws_error *err);

/* Returns the factor by which the outputs of adapters are multiplied. */
double tws_lora_scale(const tws_config *config);
/* Returns the number of trained elements. */
int64_t tws_network_trained(const tws_network *network);

#endif
