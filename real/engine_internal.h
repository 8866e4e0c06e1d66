/* Declarations that the files of the engine's calls share. */
#ifndef TWS_REAL_ENGINE_INTERNAL_H
#define TWS_REAL_ENGINE_INTERNAL_H

#include "real/engine.h"
#include "real/train_internal.h"

/* What follows in a step that is run in parts: forward() (also between steps), backward(), step(). */
typedef enum tws_micro_state { TWS_MICRO_FORWARD, TWS_MICRO_BACKWARD, TWS_MICRO_STEP } tws_micro_state;

/* A range of elements of a parameter, and where this rank holds it. */
typedef struct tws_engine_part {
  tws_piece piece; /* entry TWS_NONE: it is a gradient; `at`: offset of the first element in the buffer */
  uint32_t buffer; /* of the training program */
} tws_engine_part;

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
  /* a step in parts (real/engine_micro.c) */
  tws_micro_state micro_state;
  int64_t micro;                /* number of micro-batches of the current step that are complete */
  uint32_t next;                /* index of the first operation of the step that has not run; 0: no step has begun */
  double loss_sum[TWS_METRIC_COUNT]; /* this rank's metrics before the current micro-batch */
  int32_t *tokens, *targets;    /* the batch of the current step, [samples][sequence + 1] and [samples][sequence] */
  int has_targets;
  tws_step_report report; /* of the current step */
  /* parts of parameters that this rank holds (real/engine_state.c) */
  tws_engine_part *parts;
  uint32_t part_count;
};

/* Fails with TWS_USAGE if an earlier step failed, or if a step in parts has begun. */
tws_code tws_engine_ready(const tws_engine *e, tws_error *err);
/* Returns TWS_OK on all ranks if all of them call it with TWS_OK; otherwise the ranks whose code is TWS_OK fail with
 * TWS_RANK. Collective. `what` completes "another rank failed in ...". */
tws_code tws_engine_together(tws_engine *e, tws_code code, const char *what, tws_error *err);
/* Sets the batch of the next step or evaluation: one in memory, or NULL for the data of the options. Fails with
 * TWS_USAGE if there are none. */
tws_code tws_engine_choose_batch(tws_engine *e, const tws_engine_batch *batch, const char *path, tws_error *err);

/* ---- steps in parts (real/engine_micro.c) ---- */
tws_code tws_engine_forward(tws_engine *e, const tws_engine_batch *batch, double *loss, tws_error *err);
tws_code tws_engine_backward(tws_engine *e, tws_error *err);
int tws_engine_is_boundary(const tws_engine *e);
tws_code tws_engine_step(tws_engine *e, tws_step_report *report, tws_error *err);
/* Ends the current step without completing it. */
void tws_engine_forget_step(tws_engine *e);
/* Fails with TWS_USAGE unless all gradients of the step are complete and the optimizer has not begun, and with
 * TWS_UNSUPPORTED if there is no such moment in this plan. */
tws_code tws_engine_has_gradients(const tws_engine *e, tws_error *err);

/* ---- access to the state (real/engine_state.c) ---- */
const char *tws_engine_state_name(const tws_engine *e, int index);
tws_code tws_engine_get(tws_engine *e, uint32_t param, const char *state, float *values, tws_error *err);
tws_code tws_engine_set(tws_engine *e, uint32_t param, const char *state, int root, const float *values,
                        tws_error *err);
tws_code tws_engine_local(tws_engine *e, uint32_t param, const char *state, float *values, uint64_t *count,
                          tws_error *err);
tws_code tws_engine_set_local(tws_engine *e, uint32_t param, const char *state, const float *values, tws_error *err);
uint64_t tws_engine_elements(const tws_engine *e, uint32_t param);

#endif
