/* Declarations that the files of the engine's calls share. */
#ifndef TWS_REAL_ENGINE_INTERNAL_H
#define TWS_REAL_ENGINE_INTERNAL_H

#include "real/engine.h"
#include "real/train_internal.h"

struct tws_engine {
  tws_training t; /* its options are `options` */
  tws_train_options options;
  tws_fingerprint fingerprint;
  tws_arena *arena;     /* the strings of the options */
  void *ranks;          /* duplicate of the caller's MPI communicator; NULL without MPI */
  tws_data memory;      /* the batch in memory of the current call */
  int failed;           /* 1: a step failed, so that the state is not that of a whole number of steps */
  char *saved_folder;   /* folder of the last load, which options.resume names */
  char *saved_tag;
};

/* Fails with TWS_USAGE if an earlier step failed. */
tws_code tws_engine_ready(const tws_engine *e, tws_error *err);
/* Returns TWS_OK on all ranks if all of them call it with TWS_OK; otherwise the ranks whose code is TWS_OK fail with
 * TWS_RANK. Collective. `what` completes "another rank failed in ...". */
tws_code tws_engine_together(tws_engine *e, tws_code code, const char *what, tws_error *err);
/* Sets the batch of the next step or evaluation: one in memory, or NULL for the data of the options. Fails with
 * TWS_USAGE if there are none. */
tws_code tws_engine_choose_batch(tws_engine *e, const tws_engine_batch *batch, const char *path, tws_error *err);

#endif
