/* Elasticity: a batch that many numbers of GPUs divide, so that a job may continue with fewer or more of them and train
 * the same. Rules and results are those of DeepSpeed's compute_elastic_config (0.19): version 0.1 counts single GPUs,
 * version 0.2 nodes of equal size with model parallelism inside. */
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

typedef struct tws_elastic_row {
  int64_t gpus;                /* a world that tws_elastic_choose() takes with the batch that all rows share */
  int64_t replicas;            /* data-parallel ranks: GPUs over the model-parallel size */
  int64_t micro, accumulation; /* batch = micro x accumulation x replicas */
} tws_elastic_row;
/* The choice that holds for all numbers of GPUs, of version 0.2 too (out->micro is 0), and the worlds that can have it,
 * ascending; *rows by tws_free(), as out->gpus. */
tws_code tws_elastic_list(const tws_elastic *elastic, tws_elastic_choice *out, tws_elastic_row **rows, int *count,
                          tws_error *err);
/* Returns TWS_OK and the batch if a job of `gpus` GPUs can train; TWS_NO with the reason. */
tws_code tws_elastic_ask(const tws_elastic *elastic, int64_t gpus, tws_elastic_row *row, int64_t *batch,
                         tws_error *err);

#endif
