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
  int weight_codes; /* type of the codes of linear weights; `block` codes of a row share a scale; 0: not quantized */
  int cache_bits; /* 8: keys and values are cached in 8 bits (e4m3; host engine only); 0: in the activations' type */
  int64_t block; /* 0: 64 */
  int64_t text;  /* number of tokens of a whole text, generated ones included: the number of positions of the cache */
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

/* Changes a configuration so that experts process every token. If slots were limited, the tokens that an expert drops
 * would depend on the other texts of the batch, but the result for a text must not depend on them. */
void tws_serving_drop_nothing(tws_config *config);

/* Builds the plans of both programs of a rank over one state, which the first plan owns: destroy the second one
 * first. */
tws_code tws_serving_plans(const tws_serving *serving, int rank, tws_plan *out[TWS_SERVING_PROGRAMS], tws_error *err);

#endif
