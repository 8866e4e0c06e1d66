/* Training step by step, from a program of the user's that calls the library (library/twinspeed.h): the same plans,
 * executor and checkpoints as tws_real_api.train, one call for each step. Ranks are processes; every function is
 * collective unless its comment says otherwise: all ranks call it in the same order with equal arguments. After a
 * failure of one rank the others may wait for it, so that the caller has to end the job. */
#ifndef TWS_REAL_ENGINE_H
#define TWS_REAL_ENGINE_H

#include "checkpoint/folder.h"
#include "real/real.h"

typedef struct tws_engine tws_engine;

typedef struct tws_engine_options {
  tws_plan_request plan; /* plan of a training step of any rank; network and configuration have to outlive the engine */
  const void *ranks;     /* address of the MPI_Comm of the job's ranks; NULL: MPI_COMM_WORLD, or one rank without MPI */
  const char *data;      /* path of the training data, or NULL: every step is given its batch */
  const char *eval_data; /* path of the data of evaluations, or NULL: every evaluation is given its batch */
  const char *init_from; /* as in tws_train_options */
  int evaluates;         /* 1: the engine also holds the plan of an evaluation */
  int64_t eval_steps;    /* as in tws_train_options */
  uint64_t device_limit; /* as in tws_train_options */
  const tws_fingerprint *fingerprint; /* as in tws_train_options; copied */
  const tws_log *log;                 /* outlives the engine; NULL: nothing is logged */
} tws_engine_options;

/* A global batch in memory, equal on all ranks, from which each rank takes its share. tokens: [samples][sequence + 1];
 * targets: [samples][sequence], negative where none counts, or NULL: the tokens that follow. */
typedef struct tws_engine_batch {
  const int32_t *tokens, *targets;
} tws_engine_batch;

typedef struct tws_engine_api {
  /* Creates plans, memory and initial weights of this rank. The strings of the options are copied. Fails with
   * TWS_USAGE if the communicator has another number of ranks than the job. */
  tws_code (*open)(const tws_engine_options *options, tws_engine **out, tws_error *err);
  void (*close)(tws_engine *engine); /* NULL is allowed */
  int (*rank)(const tws_engine *engine);
  int64_t (*steps)(const tws_engine *engine); /* steps since the beginning of the training; not collective */
  /* Runs one step on a batch of train_batch_size samples; batch NULL: on the next one of the data. */
  tws_code (*train)(tws_engine *engine, const tws_engine_batch *batch, tws_step_report *report, tws_error *err);
  /* Computes the mean loss of a batch without changing the state; batch NULL: of the evaluation data. */
  tws_code (*evaluate)(tws_engine *engine, const tws_engine_batch *batch, double *loss, tws_error *err);
  /* Run a step in parts, for each of its micro-batches forward(), backward() and step(); the bits are those of train().
   * batch: of micro_batch_size x replicas samples, or NULL: the data. *loss: mean loss of the micro-batch over all
   * ranks. step() after the last micro-batch runs the optimizer and sets *report; after another one it only counts, and
   * report->step is 0. Fail with TWS_UNSUPPORTED for pipelines, and with TWS_USAGE in another order. */
  tws_code (*forward)(tws_engine *engine, const tws_engine_batch *batch, double *loss, tws_error *err);
  tws_code (*backward)(tws_engine *engine, tws_error *err);
  int (*is_boundary)(const tws_engine *engine); /* returns 1 during the last micro-batch of a step; not collective */
  tws_code (*step)(tws_engine *engine, tws_step_report *report, tws_error *err);
  /* Returns the name of a state of parameters: "parameter", "gradient", then the optimizer's as checkpoints name
   * them ("first moments"); NULL after the last. PyTorch's names for these ("exp_avg") are understood, too. Not
   * collective. */
  const char *(*state_name)(const tws_engine *engine, int index);
  /* Returns the number of elements of a whole parameter; if each rank has different experts, those of all experts. */
  uint64_t (*elements)(const tws_engine *engine, uint32_t param);
  /* Gathers a state of a whole parameter, in float32, on every rank. "parameter" is the widest copy, the master
   * weights. Gradients are those of the mean loss, without loss scale, and can be accessed between the last backward()
   * and step(). Fails with TWS_USAGE for a state that the parameter does not have. */
  tws_code (*get)(tws_engine *engine, uint32_t param, const char *state, float *values, tws_error *err);
  /* Replaces a state of a whole parameter by the values of rank `root` in all copies, rounded to their types. */
  tws_code (*set)(tws_engine *engine, uint32_t param, const char *state, int root, const float *values, tws_error *err);
  /* Reads the elements that this rank holds, in the order in which it holds them; not collective. values NULL: only
   * *count, which may be 0, is set. */
  tws_code (*local)(tws_engine *engine, uint32_t param, const char *state, float *values, uint64_t *count,
                    tws_error *err);
  /* Replaces the elements that each rank holds by values of that rank; collective. Where several ranks hold the same
   * element, the value of the highest rank is used. */
  tws_code (*set_local)(tws_engine *engine, uint32_t param, const char *state, const float *values, tws_error *err);
  /* Sets the learning rate of the following steps in place of the schedule's; negative: the schedule's again. */
  void (*set_lr)(tws_engine *engine, double lr);
  double (*lr)(const tws_engine *engine); /* returns the learning rate of the next step; not collective */
  /* Saves a checkpoint into a folder of checkpoints (checkpoint/folder.h), which is complete when the call returns.
   * keep: number of checkpoints that are kept there; 0: all. client_state: a text to store in it, or NULL. */
  tws_code (*save)(tws_engine *engine, const char *folder, const char *client_state, int64_t keep,
                   char tag[TWS_TAG_SIZE], tws_error *err);
  /* Replaces the whole state by that of a checkpoint; tag NULL: the latest. *client_state: the text that was stored, or
   * "", which lives until the next load. */
  tws_code (*load)(tws_engine *engine, const char *folder, const char *tag, const char **client_state, tws_error *err);
} tws_engine_api;

extern const tws_engine_api tws_engine_calls;

#endif
