/* Elasticity: chooses a batch that many numbers of GPUs divide, so that a job may continue with fewer or more GPUs and
 * an unchanged batch. Rules and results are those of DeepSpeed's compute_elastic_config (0.19): version 0.1 counts
 * single GPUs, version 0.2 counts nodes of equal size with model parallelism inside. */
#ifndef TWS_CONFIG_ELASTICITY_H
#define TWS_CONFIG_ELASTICITY_H

#include <stdint.h>
#include "base/status.h"

enum { TWS_ELASTIC_MICROS = 64 };

typedef struct tws_elastic {
  double version;                    /* 0.1 or 0.2 */
  int64_t max_batch;                 /* most samples per step */
  int64_t micro[TWS_ELASTIC_MICROS]; /* the micro batches that a GPU may have */
  int micro_count;
  int64_t min_gpus, max_gpus;
  int64_t gpus_per_node, model_parallel; /* used by version 0.2 only */
  int prefer_smaller;                    /* 1: the smaller of equally good batches; 0: the larger */
} tws_elastic;

typedef struct tws_elastic_choice {
  int64_t batch;
  int64_t micro; /* micro batch for `world` GPUs; 0: `world` is 0, or no micro batch fits */
  int64_t *gpus; /* the numbers of data-parallel GPUs that can train the batch, ascending; free with tws_free() */
  int gpu_count;
} tws_elastic_choice;

/* Chooses the batch. world: the number of GPUs, or 0 to choose without a micro batch, which version 0.2 does not
 * support. Fails with TWS_INVALID and the reason if settings are contradictory or the batch cannot be trained by
 * `world` GPUs. */
tws_code tws_elastic_choose(const tws_elastic *elastic, int64_t world, tws_elastic_choice *out, tws_error *err);

typedef struct tws_elastic_row {
  int64_t gpus;                /* a number of GPUs for which tws_elastic_choose() finds the batch that all rows share */
  int64_t replicas;            /* data-parallel ranks: gpus / model-parallel size */
  int64_t micro, accumulation; /* batch = micro x accumulation x replicas */
} tws_elastic_row;
/* Chooses one batch for all numbers of GPUs, also for version 0.2 (out->micro is 0), and lists the numbers of GPUs that
 * can train this batch, ascending. Free *rows and out->gpus with tws_free(). */
tws_code tws_elastic_list(const tws_elastic *elastic, tws_elastic_choice *out, tws_elastic_row **rows, int *count,
                          tws_error *err);
/* Returns TWS_OK, the row and the batch if a job of `gpus` GPUs can train the batch of all rows, else TWS_NO with the
 * reason in *err. */
tws_code tws_elastic_ask(const tws_elastic *elastic, int64_t gpus, tws_elastic_row *row, int64_t *batch,
                         tws_error *err);

#endif
