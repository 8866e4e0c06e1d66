/* Tensor parallelism from the module graph (Shoeybi et al. 2019): two linear layers form a pair if all modules between
 * them process each head or each feature separately. The first layer is split by its outputs, the second by its inputs,
 * and partial sums are reduced after the second layer. The vocabulary is split too: rows of the embedding, columns of
 * the logits. */
#include <stdio.h>
#include <string.h>

#include "models/network/module.h"
#include "plan/shard.h"

/* Rules by which tensor parallelism splits each type of module; types that are not listed are not split. */
static const struct {
  uint8_t
      /* 1: works on each head separately, so a split width passes through it, as it does through pointwise modules */
      keeps_features;
  uint8_t ends_features; /* 1: can consume a split width */
  tws_axis_rule column, row;
} types[TWS_MODULE_TYPE_COUNT] = {
    [TWS_MODULE_EMBEDDING] = {.column = {TWS_ANY_PLACEMENT, TWS_PLACED_PARTIAL, TWS_BETWEEN, TWS_PLACED_ROWS,
                                         TWS_PLACED_REPLICATED}},
    [TWS_MODULE_LINEAR] = {.ends_features = 1,
                           .column = {TWS_PLACED_BROADCAST, TWS_PLACED_FEATURES, TWS_PLACED_FEATURES, TWS_PLACED_ROWS,
                                      TWS_PLACED_ROWS},
                           .row = {TWS_PLACED_FEATURES, TWS_PLACED_PARTIAL, TWS_BETWEEN, TWS_PLACED_COLUMNS,
                                   TWS_PLACED_REPLICATED}},
    /* partial sums of slots are reduced before slots are sent back to their tokens, whatever the placement of the
     * tokens */
    [TWS_MODULE_EXPERT_LINEAR] = {.ends_features = 1,
                                  .column = {TWS_PLACED_BROADCAST, TWS_PLACED_FEATURES, TWS_PLACED_FEATURES,
                                             TWS_PLACED_ROWS, TWS_PLACED_ROWS},
                                  .row = {TWS_PLACED_FEATURES, TWS_PLACED_PARTIAL, TWS_BETWEEN, TWS_PLACED_COLUMNS,
                                          TWS_PLACED_REPLICATED}},
    [TWS_MODULE_LOSS] = {.ends_features = 1,
                         .column = {TWS_PLACED_FEATURES, TWS_PLACED_FEATURES, TWS_PLACED_FEATURES,
                                    TWS_PLACED_REPLICATED, TWS_PLACED_REPLICATED}},
    /* y += B h: the rows of B are split as the features of y are; every rank has all of h */
    [TWS_MODULE_LOW_RANK] = {.keeps_features = 1,
                             .column = {TWS_PLACED_FEATURES, TWS_PLACED_FEATURES, TWS_PLACED_FEATURES, TWS_PLACED_ROWS,
                                        TWS_PLACED_ROWS}},
    [TWS_MODULE_PART_BIAS] = {.keeps_features = 1,
                              .column = {TWS_PLACED_FEATURES, TWS_PLACED_FEATURES, TWS_PLACED_FEATURES, TWS_PLACED_ROWS,
                                         TWS_PLACED_ROWS}},
    [TWS_MODULE_HEADS_NORM] = {.keeps_features = 1},
    [TWS_MODULE_ROPE] = {.keeps_features = 1},
    [TWS_MODULE_ATTENTION] = {.keeps_features = 1},
    [TWS_MODULE_CROSS_ATTENTION] = {.keeps_features = 1},
    [TWS_MODULE_DISENTANGLED] = {.keeps_features = 1},
    [TWS_MODULE_DROPOUT] = {.keeps_features = 1},
};

/* Returns 1 for a linear module whose weight other modules use too: split by rows here, it would be split by columns
 * there. */
static int shares_weight(const tws_network *network, const tws_module *m) {
  return m->type == TWS_MODULE_LINEAR && network->params[m->param[0]].shared;
}

/* Returns 1 if a value reaches a module that can consume split features, through modules that process each feature
 * separately. */
static int ends_split(const tws_network *network, const uint32_t *consumer, uint32_t value) {
  for (;;) {
    const uint32_t m = consumer[value];
    if (m == TWS_NONE) return 0;
    const tws_module_type type = network->modules[m].type;
    if (shares_weight(network, &network->modules[m])) return 0;
    if (type == TWS_MODULE_LOSS && !tws_module_scores_words(network, m)) return 0; /* a few labels are not split */
    /* returns 0 for the features inside an adapter, which are too few to be split */
    if (type == TWS_MODULE_LOW_RANK && network->modules[m].in[0] != value) return 0;
    /* a layer that scores the vocabulary is split by the rows of the vocabulary instead */
    if (tws_linear_scores_words(network, &network->modules[m])) return 0;
    if (types[type].ends_features) return 1;
    if (!types[type].keeps_features && !tws_module_row_of(type)->pointwise) return 0;
    value = network->modules[m].out[0];
  }
}

tws_split tws_tensor_parallel_split(const tws_network *network, const uint32_t *consumer, uint32_t module,
                                    int has_features) {
  const tws_module *m = &network->modules[module];
  switch (m->type) {
    case TWS_MODULE_EMBEDDING: /* the module is split by the rows of the vocabulary */
      return network->params[m->param[0]].rows == network->padded_vocabulary ? TWS_SPLIT_COLUMN : TWS_SPLIT_NONE;
    case TWS_MODULE_EXPERT_LINEAR: /* the module is split only if experts are split (plan/shard.c) */
    case TWS_MODULE_LINEAR:
      if (shares_weight(network, m)) return TWS_SPLIT_NONE;
      if (has_features) return TWS_SPLIT_ROW;
      return ends_split(network, consumer, m->out[0]) ? TWS_SPLIT_COLUMN : TWS_SPLIT_NONE;
    case TWS_MODULE_LOW_RANK:
    case TWS_MODULE_PART_BIAS:
    case TWS_MODULE_LOSS:
      return has_features ? TWS_SPLIT_COLUMN : TWS_SPLIT_NONE;
    default:
      return TWS_SPLIT_NONE;
  }
}

tws_axis_rule tws_tensor_parallel_rule(tws_module_type type, tws_split split) {
  if (split == TWS_SPLIT_NONE) return (tws_axis_rule){TWS_ANY_PLACEMENT, TWS_ANY_PLACEMENT, TWS_ANY_PLACEMENT, 0, 0};
  return split == TWS_SPLIT_COLUMN ? types[type].column : types[type].row;
}

/* Writes the widths of the parts of a fused layer (such as queries, keys, values) that have adapters, and returns their
 * number. */
static int low_rank_blocks(const tws_module *m, int64_t blocks[3]) {
  int count = 0;
  for (int i = 0; i < 3; i++)
    if (!m->low_rank->skip[i] && m->low_rank->width[i] > 0) blocks[count++] = m->low_rank->width[i];
  return count;
}

static int adds_to_parts(const tws_module *m) {
  return m->type == TWS_MODULE_LOW_RANK || m->type == TWS_MODULE_PART_BIAS;
}

int tws_tensor_parallel_blocks(const tws_network *network, const uint32_t *consumer, uint32_t module,
                               int64_t blocks[3]) {
  const tws_module *m = &network->modules[module];
  const int adapter = m->type == TWS_MODULE_LOW_RANK;
  const int product = m->type == TWS_MODULE_LINEAR || m->type == TWS_MODULE_EXPERT_LINEAR;
  uint32_t next = adapter || product ? consumer[m->out[0]] : TWS_NONE;
  if (adapter && m->low_rank->width[1] > 0) return low_rank_blocks(m, blocks);
  if (m->type == TWS_MODULE_PART_BIAS) {
    blocks[0] = blocks[1] = m->out_features / m->parts;
    return (m->parts + 1) / 2;
  }
  while (next != TWS_NONE && adds_to_parts(&network->modules[next])) next = consumer[network->modules[next].out[0]];
  const tws_module *reader = next != TWS_NONE ? &network->modules[next] : NULL;
  if (reader && reader->type == TWS_MODULE_CROSS_ATTENTION) { /* the module computes only queries, or keys and values */
    const int queries = reader->in[0] == m->out[0];
    blocks[0] = blocks[1] = (int64_t)(queries ? reader->heads : reader->kv_heads) * reader->head_size;
    return queries ? 1 : 2;
  }
  /* blocks of queries, keys and values; a layer of relative positions has only those that this attention reads */
  if (reader && reader->heads > 0) {
    const int positions = reader->type == TWS_MODULE_DISENTANGLED && reader->in[1] == m->out[0];
    blocks[0] = (int64_t)reader->heads * reader->head_size;
    blocks[1] = blocks[2] = (int64_t)reader->kv_heads * reader->head_size;
    return positions ? reader->parts : 3;
  }
  if (reader && (reader->type == TWS_MODULE_SWIGLU || reader->type == TWS_MODULE_GEGLU)) {
    blocks[0] = blocks[1] = reader->out_features;
    return 2;
  }
  blocks[0] = m->type == TWS_MODULE_EMBEDDING ? network->params[m->param[0]].rows : m->out_features;
  return 1;
}

static const char VOCABULARY[] = "rows of the vocabulary";

/* Returns the name of the first size of the network (such as its heads) that `tensor` ranks do not divide, and writes
 * the size to *amount; NULL: they divide all sizes. */
static const char *broken_rule(const tws_network *network, int tensor, int64_t *amount) {
  const struct {
    const char *name;
    int64_t amount;
  } rules[] = {{"attention heads", network->heads},
               {"key and value heads", network->kv_heads},
               {"features of an intermediate layer", network->intermediate},
               {VOCABULARY, network->padded_vocabulary}};
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    *amount = rules[i].amount;
    if (*amount % tensor) return rules[i].name;
  }
  return NULL;
}

/* Returns 1 if `tensor` ranks divide all sizes, and the vocabulary with its padding or without. */
static int is_legal(const tws_network *network, int tensor) {
  int64_t amount = 0;
  const char *rule = broken_rule(network, tensor, &amount);
  return !rule || (rule == VOCABULARY && network->vocabulary % tensor == 0);
}

tws_code tws_tensor_parallel_check(const tws_network *network, int tensor, tws_error *err) {
  int64_t amount = 0;
  for (uint32_t m = 0; m < network->module_count; m++)
    if (network->modules[m].flags & TWS_TOGETHER && network->modules[m].type == TWS_MODULE_HEADS_NORM)
      return tws_fail(err, TWS_UNSUPPORTED, "use data, pipeline or sequence parallelism",
                      "%s normalises over all heads, which tensor parallelism would divide", network->modules[m].name);
  for (uint32_t m = 0; m < network->module_count; m++)
    if (network->modules[m].latent)
      return tws_fail(err, TWS_UNSUPPORTED, "divide it by data, experts and pipeline stages",
                      "%s: tensor parallelism does not divide latent attention", network->modules[m].name);
  const char *rule = broken_rule(network, tensor, &amount);
  if (!rule) return TWS_OK;
  char hint[128];
  if (rule == VOCABULARY) {
    snprintf(hint, sizeof hint, "use --vocab-multiple %d (twinspeed.vocabulary_multiple), or a multiple of it", tensor);
  } else {
    int below = tensor - 1, above = tensor + 1;
    while (!is_legal(network, below)) below--;
    while (above <= network->heads && !is_legal(network, above)) above++;
    if (above <= network->heads)
      snprintf(hint, sizeof hint, "the nearest degrees that are legal for this model are %d and %d", below, above);
    else
      snprintf(hint, sizeof hint, "the nearest smaller degree that is legal for this model is %d", below);
  }
  return tws_fail(err, TWS_INVALID, hint, "tensor parallelism over %d ranks does not divide the model's %lld %s",
                  tensor, (long long)amount, rule);
}

tws_code tws_expert_tensor_check(const tws_network *network, int tensor, tws_error *err) {
  char hint[128];
  for (uint32_t i = 0; i < network->module_count; i++) {
    const tws_module *m = &network->modules[i];
    if (m->type != TWS_MODULE_EXPERT_LINEAR || m->in_features % tensor == 0) continue;
    int legal = tensor - 1;
    while (m->in_features % legal) legal--;
    snprintf(hint, sizeof hint, "leave twinspeed.expert_tensor_parallel out; for this layer %d ranks would do", legal);
    return tws_fail(err, TWS_INVALID, hint, "%s: %d tensor ranks do not divide the %lld features of an expert", m->name,
                    tensor, (long long)m->in_features);
  }
  return TWS_OK;
}
