/* The part of a network that one rank runs. Internal to plan/.
 *
 * From the module graph alone it follows which weights tensor parallelism splits and how (tensor_parallel.c; Shoeybi et
 * al. 2019, Korthikanti et al. 2022), where attention changes from tokens to heads (Ulysses; Jacobs et al. 2023) and
 * where slots change ranks for their experts (GShard; Lepikhin et al. 2021).
 * The result is a network of its own with the same parameters, of which this rank's are slices, local widths, and
 * EXCHANGE modules where values change hands. The passes behind it need not know about either kind of parallelism. */
#ifndef TWS_PLAN_SHARD_H
#define TWS_PLAN_SHARD_H

#include "plan/placement.h"
#include "plan/plan.h"

/* What the part is made for. */
typedef struct tws_sharding {
  tws_position position; /* how many ranks share a replica's layers along each axis, and this one's place among them */
  tws_placed between;    /* values between split weights, along "model": REPLICATED, or TOKENS (Megatron sequence
                            parallelism): all-gather and reduce-scatter, not all-reduce */
  int ring;              /* attention along "sequence" is that of plan/ring_attention.c */
  int splits_experts;    /* each expert's weights are split along "model", as those of dense layers are */
} tws_sharding;

typedef enum tws_split { TWS_SPLIT_NONE, TWS_SPLIT_COLUMN /* outputs */, TWS_SPLIT_ROW /* inputs */ } tws_split;

/* Tensor ranks that route tokens of their own and have a part of every expert each gather the slots of all. */
static inline int tws_sharding_gathers_slots(const tws_sharding *sharding) {
  return sharding->splits_experts && sharding->between == TWS_PLACED_TOKENS;
}

/* How a module works along one axis: the placement that it wants of its inputs, that its kernel gives its outputs, and
 * that the network behind sees of the first of them, after an exchange where that is another. */
typedef struct tws_axis_rule {
  uint8_t wants, gives, leaves; /* tws_placed, or one of those below */
  uint8_t weight, vector;       /* ROWS, COLUMNS; REPLICATED: whole on every rank */
} tws_axis_rule;
enum {
  TWS_AS_IT_COMES = TWS_PLACED_COUNT, /* wants: any; gives: that of the first input */
  TWS_BETWEEN                         /* tws_sharding.between */
};

typedef struct tws_local_module {
  uint32_t origin;          /* module of the whole network */
  uint8_t axis, to;         /* EXCHANGE: the axis, and the placement that it makes along it */
  int8_t forward, backward; /* EXCHANGE: the collective of either pass, or TWS_MOVES_NOTHING; else TWS_NO_CHANGE */
  uint8_t split;            /* tws_split: of LINEAR; COLUMN for an EMBEDDING or LOSS whose vocabulary is split */
  uint8_t shares;           /* EXCHANGE that moves nothing: its input has other readers, so both stand for one memory */
  uint8_t skips_vector;     /* another rank adds the bias (LINEAR) or the positions (EMBEDDING) */
  int64_t first_row, rows;  /* EMBEDDING, LOSS: rows of the vocabulary that this rank has, without padding */
} tws_local_module;

/* An exchange that moves nothing or reduces works in place: its output is a value of its own that takes over the memory
 * of the input. */
static inline int tws_local_exchanges_in_place(const tws_local_module *m) {
  return !m->shares && (m->forward == TWS_MOVES_NOTHING || m->forward == TWS_COLLECTIVE_ALL_REDUCE);
}

typedef struct tws_local_value {
  tws_placement placement;
  uint16_t token_parts; /* ranks that share the tokens of the micro-batch */
  uint16_t slot_parts;  /* ranks whose slots of experts (or counts of these) lie behind each other in it */
} tws_local_value;

typedef struct tws_local {
  const tws_network *network; /* of this rank: the whole one itself when nothing is split */
  const tws_local_module *modules;
  const tws_local_value *values;
  const tws_placement *params;   /* per parameter */
  const tws_param_slice *slices; /* per parameter, in `keep`; NULL: all whole */
} tws_local;

/* tensor_parallel.c: how the axis "model" splits a module, where its input has or has not a part of the features on
 * each rank; and the rule for that. */
tws_split tws_tensor_parallel_split(const tws_network *network, const uint32_t *consumer, uint32_t module,
                                    int has_features);
tws_axis_rule tws_tensor_parallel_rule(tws_module_type type, tws_split split);
/* Rows of a COLUMN module's parts that are split one by one: query, key and value; gate and up. Returns how many. */
int tws_tensor_parallel_blocks(const tws_network *network, const uint32_t *consumer, uint32_t module,
                               int64_t blocks[3]);
/* TWS_INVALID with the rule that is broken and the nearest smaller degrees that are legal. */
tws_code tws_tensor_parallel_check(const tws_network *network, int tensor, tws_error *err);
/* The same for the widths of experts, where these are split too. */
tws_code tws_expert_tensor_check(const tws_network *network, int tensor, tws_error *err);
/* sequence_parallel.c: Ulysses or a ring along the axis "sequence"; for the latter, whether something drops numbers. */
tws_axis_rule tws_sequence_parallel_rule(tws_module_type type, int ring);
tws_code tws_sequence_parallel_check(const tws_network *network, const tws_position *position, int64_t sequence,
                                     tws_error *err);
tws_code tws_ring_check(const tws_network *network, int ranks, int64_t sequence, int drops, tws_error *err);

/* moe.c: experts along the axis "expert". */
tws_axis_rule tws_expert_parallel_rule(tws_module_type type);
/* TWS_INVALID with the nearest degrees that divide the experts of every layer; TWS_UNSUPPORTED without experts. */
tws_code tws_expert_parallel_check(const tws_network *network, int ranks, tws_error *err);

/* Everything but `slices` lives in `scratch`, those in `keep`. */
tws_code tws_shard_network(const tws_network *whole, const tws_sharding *sharding, tws_arena *scratch, tws_arena *keep,
                           tws_local *local, tws_error *err);
#endif
