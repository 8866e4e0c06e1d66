/* Shards a network: builds the local network that one rank runs. Internal to plan/.
 *
 * The module graph alone determines which weights tensor parallelism splits and how (tensor_parallel.c; Shoeybi et al.
 * 2019, Korthikanti et al. 2022), where attention changes from tokens to heads (Ulysses; Jacobs et al. 2023) and where
 * slots are exchanged between ranks for their experts (GShard; Lepikhin et al. 2021). The local network has the same
 * parameters, as slices, local widths, and EXCHANGE modules where a value changes its placement. Later passes do not
 * depend on the kind of parallelism. */
#ifndef TWS_PLAN_SHARD_H
#define TWS_PLAN_SHARD_H

#include "plan/placement.h"
#include "plan/plan.h"

/* Input of the sharding. */
typedef struct tws_sharding {
  tws_position position; /* ranks along each axis, and this rank's index */
  /* placement of values between split weights, along "model": REPLICATED (all-reduce), or TOKENS (Megatron sequence
   * parallelism: all-gather and reduce-scatter) */
  tws_placed between;
  int ring;           /* attention along "sequence" is that of plan/ring_attention.c */
  int splits_experts; /* each expert's weights are split along "model", as those of dense layers are */
} tws_sharding;

typedef enum tws_split { TWS_SPLIT_NONE, TWS_SPLIT_COLUMN /* outputs */, TWS_SPLIT_ROW /* inputs */ } tws_split;

/* Returns 1 if tensor-parallel ranks all-gather the slots of experts: they route different tokens, and each has a slice
 * of every expert. */
static inline int tws_sharding_gathers_slots(const tws_sharding *sharding) {
  return sharding->splits_experts && sharding->between == TWS_PLACED_TOKENS;
}

/* The rule of a module along one axis: the placement that it requires of its inputs, the placement that its kernel
 * gives its outputs, and the placement that later modules see of its first output, after an exchange if they differ. */
typedef struct tws_axis_rule {
  uint8_t wants, gives, leaves; /* tws_placed, or one of those below */
  uint8_t weight, vector;       /* ROWS, COLUMNS; REPLICATED: whole on every rank */
} tws_axis_rule;
enum {
  TWS_AS_IT_COMES = TWS_PLACED_COUNT, /* wants: any placement; gives: that of the first input */
  TWS_BETWEEN                         /* tws_sharding.between */
};

typedef struct tws_local_module {
  uint32_t origin;          /* module of the whole network */
  uint8_t axis, to;         /* EXCHANGE: the axis, and the new placement along it */
  int8_t forward, backward; /* EXCHANGE: the collective of either pass, or TWS_MOVES_NOTHING; else TWS_NO_CHANGE */
  uint8_t split;            /* tws_split: of LINEAR; COLUMN for an EMBEDDING or LOSS whose vocabulary is split */
  uint8_t shares;           /* EXCHANGE without communication: its input has other readers, so both share one buffer */
  uint8_t skips_vector;     /* another rank adds the bias (LINEAR) or the positions (EMBEDDING) */
  int64_t first_row, rows;  /* EMBEDDING, LOSS: rows of the vocabulary that this rank has, without padding */
} tws_local_module;

/* Returns 1 for an exchange that works in place, without communication or as an all-reduce: its output takes over the
 * input's memory. */
static inline int tws_local_exchanges_in_place(const tws_local_module *m) {
  return !m->shares && (m->forward == TWS_MOVES_NOTHING || m->forward == TWS_COLLECTIVE_ALL_REDUCE);
}

typedef struct tws_local_value {
  tws_placement placement;
  uint16_t token_parts; /* ranks that share the tokens of the micro-batch */
  uint16_t slot_parts;  /* ranks whose expert slots (or counts of these) are concatenated in it */
} tws_local_value;

typedef struct tws_local {
  const tws_network *network; /* of this rank; the whole network itself if nothing is split */
  const tws_local_module *modules;
  const tws_local_value *values;
  const tws_placement *params;   /* per parameter */
  const tws_param_slice *slices; /* per parameter, in `keep`; NULL: all whole */
} tws_local;

/* tensor_parallel.c: return how the axis "model" splits a module, depending on whether its input is split by features,
 * and the rule of a split module. */
tws_split tws_tensor_parallel_split(const tws_network *network, const uint32_t *consumer, uint32_t module,
                                    int has_features);
tws_axis_rule tws_tensor_parallel_rule(tws_module_type type, tws_split split);
/* Writes the rows of the blocks of a COLUMN module that are split separately (query, key and value; gate and up), and
 * returns their number. */
int tws_tensor_parallel_blocks(const tws_network *network, const uint32_t *consumer, uint32_t module,
                               int64_t blocks[3]);
/* TWS_INVALID with the violated rule and the nearest smaller legal degrees. */
tws_code tws_tensor_parallel_check(const tws_network *network, int tensor, tws_error *err);
/* Checks the same for the widths of experts, if these are split too. */
tws_code tws_expert_tensor_check(const tws_network *network, int tensor, tws_error *err);
/* sequence_parallel.c: Ulysses or ring attention along the axis "sequence"; drops: 1 if the model has dropout, for the
 * ring. */
tws_axis_rule tws_sequence_parallel_rule(tws_module_type type, int ring);
tws_code tws_sequence_parallel_check(const tws_network *network, const tws_position *position, int64_t sequence,
                                     tws_error *err);
tws_code tws_ring_check(const tws_network *network, int ranks, int64_t sequence, int drops, tws_error *err);

/* moe.c: experts along the axis "expert". */
tws_axis_rule tws_expert_parallel_rule(tws_module_type type);
/* TWS_INVALID with the nearest degrees that divide the experts of every layer; TWS_UNSUPPORTED without experts. */
tws_code tws_expert_parallel_check(const tws_network *network, int ranks, tws_error *err);

/* Builds the local network. `slices` live in `keep`, everything else in `scratch`. */
tws_code tws_shard_network(const tws_network *whole, const tws_sharding *sharding, tws_arena *scratch, tws_arena *keep,
                           tws_local *local, tws_error *err);
#endif
