/* Inference: the programs PREFILL and DECODE over one state that has the weights and a cache of keys and values,
 * without gradients, master weights and optimizer states. Their plans are built as those of a training: the requests
 * have a network whose inputs are the positions of tokens (models/network/serving.h), and a configuration whose
 * sequences are the prompts, or one token each. */
#ifndef TWS_PLAN_SERVING_H
#define TWS_PLAN_SERVING_H

#include "models/network/serving.h"
#include "plan/plan.h"

/* Sizes of a batch of texts. */
typedef struct tws_serving_sizes {
  int64_t prompt; /* tokens of the longest prompt */
  int weight_codes; /* type of codes of linear layers' weights, of which `block` of a row share a scale; 0: none */
  int cache_bits; /* 8: keys and values are cached in 8 bits (e4m3); 0: in the activations' type */
  int64_t block; /* 0: 64 */
  int64_t text;  /* tokens of a whole text, with those that are generated: positions of the cache */
  /* positions of a block of a cache in blocks, of which texts have as many as they need (models/operators_cache.def),
   * and the number of blocks of a micro-batch. 0 positions: a text's lie together; 0 blocks: as if all texts had `text`
   * tokens. Layers with a smaller window, those of latent attention and the keys of sources have no blocks */
  int64_t cache_block, cache_blocks;
} tws_serving_sizes;

enum { TWS_SERVING_PROGRAMS = 2 }; /* PREFILL, then DECODE */
typedef struct tws_serving {
  tws_config config[TWS_SERVING_PROGRAMS];
  tws_network *network[TWS_SERVING_PROGRAMS];
  tws_plan_request request[TWS_SERVING_PROGRAMS];
} tws_serving;

/* Makes the requests of both programs from that of a training or an evaluation, for its ranks, micro batch and
 * accumulation steps (a pipeline divides the texts of a batch into micro-batches). `base` and what it refers to must
 * outlive *out, and *out, whose requests refer to its configurations, must outlive the plans and not be moved. The cost
 * of a decoded token is that of the token in the middle of the generated ones. Fails with TWS_UNSUPPORTED if the
 * network cannot keep keys and values, or ranks divide sequences; TWS_INVALID if the text is not longer than the
 * prompt, or longer than the model's positions. On failure *out needs no close. */
tws_code tws_serving_make(const tws_plan_request *base, tws_serving_sizes sizes, tws_serving *out, tws_error *err);
void tws_serving_close(tws_serving *serving);

/* Returns the number of blocks of a cache that `positions` positions of a text need; block 0: 0. */
static inline int64_t tws_cache_blocks_of(int64_t positions, int64_t block) {
  return block > 0 ? (positions + block - 1) / block : 0;
}

/* Lets the experts of a configuration process every token: which tokens an expert would have no slot for depends on the
 * other texts of a batch, on which a text must not depend. */
void tws_serving_drop_nothing(tws_config *config);

/* Builds the plans of both programs of a rank over one state, which the first plan owns: destroy the second one
 * first. */
tws_code tws_serving_plans(const tws_serving *serving, int rank, tws_plan *out[TWS_SERVING_PROGRAMS], tws_error *err);

#endif
