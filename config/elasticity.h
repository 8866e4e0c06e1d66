/* Elasticity: a batch that many numbers of GPUs divide, so that a job may go on with fewer or more of them and train
 * the same. The rules, and what they choose, are those of DeepSpeed's compute_elastic_config (0.19): version 0.1 counts
 * single GPUs, version 0.2 nodes of equal size with model parallelism inside. */
#ifndef TWS_CONFIG_ELASTICITY_H
#define TWS_CONFIG_ELASTICITY_H

#include <stdint.h>
#include "base/status.h"

enum { TWS_ELASTIC_MICROS = 64 };

typedef struct tws_elastic {
  double version;                    /* 0.1 or 0.2 */
  int64_t max_batch;                 /* samples of a step, at most */
  int64_t micro[TWS_ELASTIC_MICROS]; /* micro batches that a GPU may have */
  int micro_count;
  int64_t min_gpus, max_gpus;
  int64_t gpus_per_node, model_parallel; /* 0.2 */
  int prefer_smaller;                    /* of equal choices the smaller batch; 0: the larger */
} tws_elastic;

typedef struct tws_elastic_choice {
  int64_t batch;
  int64_t micro; /* for `world`; 0: none was asked for, or none divides */
  int64_t *gpus; /* numbers of data-parallel GPUs that divide it, ascending; tws_free() */
  int gpu_count;
} tws_elastic_choice;

/* world: GPUs that there are, or 0: the choice alone, which version 0.2 cannot make. TWS_INVALID with the reason:
 * settings that make no sense, or a world that is none of the numbers. */
tws_code tws_elastic_choose(const tws_elastic *elastic, int64_t world, tws_elastic_choice *out, tws_error *err);

#endif
