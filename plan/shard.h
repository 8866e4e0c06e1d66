/* The part of a network that one rank runs. Internal to plan/.
 *
 * From the module graph alone it follows which weights tensor parallelism splits and how (tensor_parallel.c; Shoeybi et
 * al. 2019, Korthikanti et al. 2022) and where attention changes from tokens to heads (Ulysses; Jacobs et al. 2023).
 * The result is a network of its own with the same parameters, of which this rank's are slices, local widths, and
 * EXCHANGE modules where values change hands. The passes behind it need not know about either kind of parallelism. */
#ifndef TWS_PLAN_SHARD_H
#define TWS_PLAN_SHARD_H

#include "plan/plan.h"

/* How many ranks share a replica's layers, and this one's place among them. */
typedef struct tws_degrees {
  int tensor, tensor_index;
  int sequence, sequence_index;
  int tensor_sequence_parallel; /* values between split weights are split by tokens: all-gather and reduce-scatter, not
                                   all-reduce */
} tws_degrees;

/*              forward                       backward                     in, out
 *   COPY       nothing                       all-reduce                   equal on all ranks
 *   REDUCE     all-reduce                    nothing                      partial sums, equal on all ranks
 *   GATHER     all-gather                    reduce-scatter               tokens split, all tokens
 *   SCATTER    reduce-scatter                all-gather                   partial sums, tokens split
 *   HEADS      all-to-all                    all-to-all                   some tokens of all heads, all of some heads
 *   TOKENS     all-to-all                    all-to-all                   the other way round
 * COPY and REDUCE work in place: their output is a value of its own that takes over the memory of the input. */
typedef enum tws_exchange {
  TWS_EXCHANGE_NONE,
  TWS_EXCHANGE_COPY,
  TWS_EXCHANGE_REDUCE,
  TWS_EXCHANGE_GATHER,
  TWS_EXCHANGE_SCATTER,
  TWS_EXCHANGE_HEADS,
  TWS_EXCHANGE_TOKENS,
} tws_exchange;

typedef enum tws_split { TWS_SPLIT_NONE, TWS_SPLIT_COLUMN /* outputs */, TWS_SPLIT_ROW /* inputs */ } tws_split;

/* Parameters of the ranks that share a replica's layers. */
typedef enum tws_sharing {
  TWS_SHARING_SPLIT,   /* each rank has its own part */
  TWS_SHARING_COPIED,  /* all have all of it, and equal gradients */
  TWS_SHARING_PARTIAL, /* all have all of it, and each a part of the gradient's sum */
  TWS_SHARING_COUNT
} tws_sharing;

typedef struct tws_local_module {
  uint32_t origin;         /* module of the whole network */
  uint8_t exchange;        /* EXCHANGE: which */
  uint8_t split;           /* LINEAR: tws_split */
  uint8_t skips_vector;    /* another rank adds the bias (LINEAR) or the positions (EMBEDDING) */
  int64_t first_row, rows; /* EMBEDDING, LOSS: rows of the vocabulary that this rank has, without padding */
} tws_local_module;

/* Tokens of a value: those of the rank's micro-batch x gather / split. */
typedef struct tws_local_value {
  uint16_t gather, split;
} tws_local_value;

typedef struct tws_local {
  const tws_network *network; /* of this rank: the whole one itself when nothing is split */
  const tws_local_module *modules;
  const tws_local_value *values;
  const uint8_t *sharing;        /* per parameter: tws_sharing */
  const tws_param_slice *slices; /* per parameter, in `keep`; NULL: all whole */
} tws_local;

/* How tensor parallelism treats the modules of a whole network: split[] per module (tws_split; an EMBEDDING or LOSS
 * whose vocabulary is split is COLUMN), wide[] per value: each rank has a part of its width. */
void tws_tensor_parallel_classify(const tws_network *network, const uint32_t *consumer, uint8_t *split, uint8_t *wide);
/* Rows of a COLUMN module's parts that are split one by one: query, key and value; gate and up. Returns how many. */
int tws_tensor_parallel_blocks(const tws_network *network, const uint32_t *consumer, uint32_t module,
                               int64_t blocks[3]);
/* TWS_INVALID with the rule that is broken and the nearest smaller degrees that are legal. */
tws_code tws_tensor_parallel_check(const tws_network *network, int tensor, tws_error *err);
tws_code tws_sequence_parallel_check(const tws_network *network, const tws_degrees *axes, int64_t sequence,
                                     tws_error *err);

/* Everything but `slices` lives in `scratch`, those in `keep`. */
tws_code tws_shard_network(const tws_network *whole, const tws_degrees *axes, tws_arena *scratch, tws_arena *keep,
                           tws_local *local, tws_error *err);

#endif
