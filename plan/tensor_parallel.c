/* Tensor parallelism from the module graph (Shoeybi et al. 2019): a linear layer whose output only passes through
 * modules that work on each head or each feature alone until the next linear layer makes a pair with it. The first
 * is split by its outputs, the second by its inputs, and partial sums meet behind the second. The vocabulary is split
 * too: rows of the embedding, columns of the logits. */
#include <stdio.h>
#include <string.h>

#include "models/network/module.h"
#include "plan/shard.h"

/* The linear layer (or loss) that a value reaches through modules that keep features apart; TWS_NONE otherwise. */
static uint32_t partner_of(const tws_network *network, const uint32_t *consumer, uint32_t value) {
  for (;;) {
    uint32_t m = consumer[value];
    if (m == TWS_NONE) return TWS_NONE;
    const tws_module *module = &network->modules[m];
    switch (module->type) {
      case TWS_MODULE_LINEAR:
      case TWS_MODULE_LOSS:
        return m;
      case TWS_MODULE_ROPE:
      case TWS_MODULE_ATTENTION:
        value = module->out[0];
        break;
      default:
        if (!tws_module_row_of(module->type)->pointwise) return TWS_NONE;
        value = module->out[0];
        break;
    }
  }
}

void tws_tensor_parallel_classify(const tws_network *network, const uint32_t *consumer, uint8_t *split, uint8_t *wide) {
  for (uint32_t m = 0; m < network->module_count; m++) {
    const tws_module *module = &network->modules[m];
    int in = module->in[0] != TWS_NONE && wide[module->in[0]], out = 0;
    split[m] = TWS_SPLIT_NONE;
    switch (module->type) {
      case TWS_MODULE_EMBEDDING:
        split[m] = TWS_SPLIT_COLUMN;
        break;
      case TWS_MODULE_LINEAR:
        if (in) {
          split[m] = TWS_SPLIT_ROW;
        } else if (partner_of(network, consumer, module->out[0]) != TWS_NONE) {
          split[m] = TWS_SPLIT_COLUMN;
          out = 1;
        }
        break;
      case TWS_MODULE_LOSS:
        split[m] = in ? TWS_SPLIT_COLUMN : TWS_SPLIT_NONE;
        out = in;
        break;
      default:
        out = in;
        break;
    }
    for (int i = 0; i < TWS_MODULE_OUTS; i++) {
      if (module->out[i] != TWS_NONE) wide[module->out[i]] = (uint8_t)out;
    }
  }
}

int tws_tensor_parallel_blocks(const tws_network *network, const uint32_t *consumer, uint32_t module,
                               int64_t blocks[3]) {
  const tws_module *m = &network->modules[module];
  uint32_t next = m->type == TWS_MODULE_LINEAR ? consumer[m->out[0]] : TWS_NONE;
  const tws_module *reader = next != TWS_NONE ? &network->modules[next] : NULL;
  if (reader && (reader->type == TWS_MODULE_ROPE || reader->type == TWS_MODULE_ATTENTION)) {
    blocks[0] = (int64_t)reader->heads * reader->head_size;
    blocks[1] = blocks[2] = (int64_t)reader->kv_heads * reader->head_size;
    return 3;
  }
  if (reader && reader->type == TWS_MODULE_SWIGLU) {
    blocks[0] = blocks[1] = reader->out_features;
    return 2;
  }
  blocks[0] = m->type == TWS_MODULE_EMBEDDING ? network->params[m->param[0]].rows : m->out_features;
  return 1;
}

/* What `tensor` ranks do not divide; NULL when they divide all. */
static const char *broken_rule(const tws_network *network, int tensor, int64_t *amount) {
  const struct {
    const char *name;
    int64_t amount;
  } rules[] = {{"attention heads", network->heads},
               {"key and value heads", network->kv_heads},
               {"features of an intermediate layer", network->intermediate},
               {"rows of the vocabulary", network->padded_vocabulary}};
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    *amount = rules[i].amount;
    if (*amount % tensor) return rules[i].name;
  }
  return NULL;
}

tws_code tws_tensor_parallel_check(const tws_network *network, int tensor, tws_error *err) {
  int64_t amount = 0, other;
  const char *rule = broken_rule(network, tensor, &amount);
  if (!rule) return TWS_OK;
  char hint[128];
  if (amount == network->padded_vocabulary && rule[0] == 'r') {
    snprintf(hint, sizeof hint, "set twinspeed.vocabulary_multiple to %d, or to a multiple of it", tensor);
  } else {
    int legal = tensor - 1;
    while (broken_rule(network, legal, &other)) legal--;
    snprintf(hint, sizeof hint, "the nearest smaller degree that is legal for this model is %d", legal);
  }
  return tws_fail(err, TWS_INVALID, hint, "tensor parallelism over %d ranks does not divide the model's %lld %s",
                  tensor, (long long)amount, rule);
}
