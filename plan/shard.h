/* Shards a network: builds the local network that one rank runs. Internal to plan/.
 *
 * The module graph alone determines which weights tensor parallelism splits and how (tensor_parallel.c; Shoeybi et al.
 * 2019, Korthikanti et al. 2022), before which modules values change from tokens to heads for attention (Ulysses;
 * Jacobs et al. 2023) and before which slots are exchanged between ranks for their experts (GShard; Lepikhin et al.
 * 2021). The local network has the same parameters, as slices, local widths, and EXCHANGE modules where a value changes
 * its placement. Later passes do not depend on the kind of parallelism. */
#ifndef TWS_PLAN_SHARD_H
#define TWS_PLAN_SHARD_H

#include "plan/placement.h"
#include "plan/plan.h"

/* The settings that determine how a network is sharded. */
typedef struct tws_sharding {
  tws_position position; /* number of ranks along each axis, and this rank's index along it */
  /* the placement along "model" of values between pairs of split weights: REPLICATED (all-reduce), or TOKENS (Megatron
   * sequence parallelism: all-gather and reduce-scatter) */
  tws_placed between;
  int ring;           /* 1: attention along "sequence" is ring attention (plan/ring_attention.c); 0: Ulysses */
  int splits_experts; /* 1: each expert's weights are split along "model", as the weights of dense layers are */
} tws_sharding;

typedef enum tws_split { TWS_SPLIT_NONE, TWS_SPLIT_COLUMN /* outputs */, TWS_SPLIT_ROW /* inputs */ } tws_split;

/* Returns 1 if tensor-parallel ranks all-gather the slots of experts: they route different tokens, and each has a slice
 * of every expert. */
static inline int tws_sharding_gathers_slots(const tws_sharding *sharding) {
  return sharding->splits_experts && sharding->between == TWS_PLACED_TOKENS;
}

/* The rule of a module along one axis. wants: the placement that the module requires of its inputs; gives: the
 * placement that its kernel gives its outputs; leaves: the placement that later modules see of its first output, after
 * an exchange if it differs from `gives`. */
typedef struct tws_axis_rule {
  uint8_t wants, gives, leaves; /* each a tws_placed, or a value of the enumeration below */
  /* tws_placed of the weight and of the vector: ROWS, COLUMNS, or REPLICATED (whole on every rank) */
  uint8_t weight, vector;
} tws_axis_rule;
enum {
  TWS_ANY_PLACEMENT = TWS_PLACED_COUNT, /* wants: any placement; gives: the placement of the first input */
  TWS_BETWEEN                           /* the placement of values between layers: tws_sharding.between */
};

typedef struct tws_local_module {
  uint32_t origin;  /* index of the module of the whole network that it is, or for which it was inserted */
  uint8_t axis, to; /* EXCHANGE: the axis along which the placement changes, and the new placement */
  /* EXCHANGE: the tws_collective of the forward and of the backward pass, or TWS_NO_COMMUNICATION; other modules:
   * TWS_NO_CHANGE */
  int8_t forward, backward;
  uint8_t split; /* tws_split of a LINEAR; COLUMN for an EMBEDDING or LOSS whose vocabulary is split */
  /* 1: an EXCHANGE without communication whose input has other readers, so that input and output share one buffer */
  uint8_t shares;
  uint8_t skips_vector; /* 1: another rank adds the bias (LINEAR) or the positions (EMBEDDING) */
  /* EMBEDDING, LOSS: first row, and number of rows, of the vocabulary that this rank has, without padding */
  int64_t first_row, rows;
} tws_local_module;

/* Returns 1 for an exchange that works in place, without communication or as an all-reduce: its output takes over the
 * input's memory. */
static inline int tws_local_exchanges_in_place(const tws_local_module *m) {
  return !m->shares && (m->forward == TWS_NO_COMMUNICATION || m->forward == TWS_COLLECTIVE_ALL_REDUCE);
}

typedef struct tws_local_value {
  tws_placement placement;
  uint16_t token_parts; /* number of ranks among which the tokens of the micro-batch are divided */
  uint16_t slot_parts;  /* number of ranks whose expert slots (or counts of these) are concatenated in the value */
} tws_local_value;

typedef struct tws_local {
  const tws_network *network; /* the network of this rank; the whole network itself if nothing is split */
  const tws_local_module *modules;
  const tws_local_value *values;
  const tws_placement *params; /* per parameter: its placement */
  /* per parameter: the slice that this rank has, allocated in the arena `keep`; NULL: all parameters are whole */
  const tws_param_slice *slices;
} tws_local;

/* tensor_parallel.c: tws_tensor_parallel_split() returns how the axis "model" splits a module, depending on whether its
 * input is split by features; tws_tensor_parallel_rule() returns the rule of a split module. */
tws_split tws_tensor_parallel_split(const tws_network *network, const uint32_t *consumer, uint32_t module,
                                    int has_features);
tws_axis_rule tws_tensor_parallel_rule(tws_module_type type, tws_split split);
/* Writes the number of rows of each block of a COLUMN module that is split separately (query, key and value; gate and
 * up), and returns the number of blocks. */
int tws_tensor_parallel_blocks(const tws_network *network, const uint32_t *consumer, uint32_t module,
                               int64_t blocks[3]);
/* Fails with TWS_INVALID if `tensor` ranks cannot split the network; the message names the violated rule and the
 * nearest legal degrees. */
tws_code tws_tensor_parallel_check(const tws_network *network, int tensor, tws_error *err);
/* Checks whether `tensor` ranks divide the widths of experts; called if experts are split too. Fails as
 * tws_tensor_parallel_check() does. */
tws_code tws_expert_tensor_check(const tws_network *network, int tensor, tws_error *err);
/* sequence_parallel.c: tws_sequence_parallel_rule() returns the rule of a module type under Ulysses (ring 0) or ring
 * attention (ring 1) along the axis "sequence"; tws_sequence_parallel_check() checks the sizes for Ulysses,
 * tws_ring_check() for ring attention. drops: 1 if the model has dropout, which ring attention does not support. */
tws_axis_rule tws_sequence_parallel_rule(tws_module_type type, int ring);
/* Returns a phrase that names the feature of an attention module that ring attention and chunked attention do not
 * support, since both merge partial results of causal attention. NULL: they support the module. sequence: tokens of a
 * sample; drops: 1 if dropout is applied. */
const char *tws_causal_parts_lack(const tws_module *m, int64_t sequence, int drops);
tws_code tws_sequence_parallel_check(const tws_network *network, const tws_position *position, int64_t sequence,
                                     tws_error *err);
tws_code tws_ring_check(const tws_network *network, int ranks, int64_t sequence, int drops, tws_error *err);

/* moe.c: returns the rule of a module along the axis "expert". */
tws_axis_rule tws_expert_parallel_rule(tws_module_type type);
/* Fails with TWS_INVALID if `ranks` does not divide the experts of every layer (the message names the nearest degrees
 * that do), and with TWS_UNSUPPORTED if the network has no experts. */
tws_code tws_expert_parallel_check(const tws_network *network, int ranks, tws_error *err);

/* Builds the local network of a rank. local->slices is allocated in `keep`, everything else in `scratch`. */
tws_code tws_shard_network(const tws_network *whole, const tws_sharding *sharding, tws_arena *scratch, tws_arena *keep,
                           tws_local *local, tws_error *err);
#endif
