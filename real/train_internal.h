/* What the parts of the training loop share. */
#ifndef TWS_REAL_TRAIN_INTERNAL_H
#define TWS_REAL_TRAIN_INTERNAL_H

#include <stdio.h>
#include "checkpoint/index.h"
#include "real/cuda_loader.h"
#include "real/data.h"
#include "real/executor.h"
#include "real/fault.h"
#include "real/mpi_comm.h"
#include "real/objective.h"
#include "real/watchdog.h"

typedef struct tws_training {
  const tws_train_options *options;
  const tws_config *config;
  int rank, world, threads;
  uint64_t start_rss; /* the most memory of this process until weights were made or loaded, bytes */
  tws_fault fault;
  uint32_t fault_op; /* before which a rank dies or hangs */
  tws_data data;
  tws_batch_shape shape;
  tws_plan *plan;       /* of a training step */
  tws_plan *evaluation; /* over the same state; NULL: none is asked for */
  tws_plan *between[TWS_PROGRAM_COUNT]; /* likewise, of what is done between steps; NULL: it is not */
  const tws_plan *programs[TWS_PROGRAM_COUNT];
  tws_ledger ledger; /* of the whole job: the state and the largest program */
  const tws_backend_ops *ops;
  tws_backend *backend;
  tws_comm *comm;
  const tws_cuda_api *cuda; /* NULL: on the host */
  tws_comm *device_comm;    /* the plan's collectives on GPUs; `comm` has the rest */
  tws_executor *executor;
  tws_disk_count on_disk; /* moved by training steps */
  tws_watchdog *watchdog;
  tws_data eval_data;
  int64_t eval_batches;            /* of one evaluation */
  struct tws_inputs_ahead *ahead;  /* inputs of steps on a device; NULL: on the host */
  void *input[TWS_NETWORK_INPUTS]; /* on the host: of one step, of either program, what the plan's buffers hold; or NULL
                                    */
  double step_ended_s;             /* the end of the last step, or of what was done behind it, by tws_clock_s() */
  double *times;                   /* [op_count][2] of the last step, when a trace is wanted */
  double trace_start_s;
  int64_t traced_step;      /* 0: none was */
  double *traced_routed;    /* routed, of that step */
  int64_t first_step;       /* steps that were done before this run */
  tws_saved_index *resumed; /* what it goes on from; NULL: from initial weights */
  int fetches;              /* its files are on rank 0's disk alone (real/far.h) */
  uint64_t fetched;         /* bytes of them that came */
  /* by rank, where there is one: who does not see the folder that is saved to; of rank 0, who fetches what it goes on
   * from. NULL: all see them */
  uint8_t *far_writers, *far_readers;
  struct tws_checkpoint *checkpoint; /* where it saves; NULL: nowhere */
  int weights_only;                  /* what the optimizer keeps is not read */
  int skipped;                       /* the last step was */
  int ended;                         /* asked to, before the last step */
  int warned[2];                     /* of a slower way, of steps that are not recorded */
  int vanished;                      /* warned of gradients that are all 0 */
  double *routed;                    /* routes to experts, router by router; NULL without experts */
  tws_step_report *history;          /* rank 0: one per step of this run */
  tws_counters *counters;            /* of the plan's state */
  FILE *csv;                         /* rank 0 */
} tws_training;

tws_code tws_real_generate(const tws_generate_options *options, tws_error *err);
/* ---- the parts of a training (real/train.c), each for one rank. Without a communicator they need no other ---- */
tws_code tws_training_plan(tws_training *t, tws_error *err);
tws_code tws_training_open_data(tws_training *t, tws_error *err);
/* ---- inputs (real/inputs.c) ---- */
/* Room for them: on the host memory of this process; where the backend's streams run side by side two pieces of pinned
 * memory, which are filled in turn, and one of device memory, each for one step of any program. Needs the plans. */
tws_code tws_inputs_open(tws_training *t, tws_error *err);
void tws_inputs_close(tws_training *t);
uint64_t tws_inputs_device_bytes(const tws_training *t); /* 0 on the host */
/* Batch `batch` (from 0 on) of the data into the program's inputs. */
tws_code tws_training_put_inputs(tws_training *t, tws_program program, const tws_data *data, int64_t batch,
                                 tws_error *err);
/* While a step runs on a device: a batch is put together and goes there beside it, on a stream for copies. If it is the
 * one that tws_training_put_inputs() is asked for next that only has it copied on the device. On the host, nothing.
 * What is wrong with the data is left to tws_training_put_inputs(). */
tws_code tws_training_put_ahead(tws_training *t, const tws_data *data, int64_t batch, tws_error *err);

/* ---- the backends of this build (real/backends.c) ---- */
/* "host" or another backend's table; NULL: not there. */
const tws_backend_ops *tws_real_backend(const char *name);
const char *tws_real_description(void);

/* ---- shared by steps, checkpoints and initial weights (real/training.c) ---- */
/* What this rank does now, after or before a step (0: none), for its watchdog and for the launcher. */
void tws_training_at(const tws_training *t, int64_t step, const char *what, tws_phase_kind kind);
/* Writes codes and scales of values whose first is stored at element `offset`; whole blocks. */
tws_code tws_training_put_quantized(tws_training *t, uint64_t offset, const float *values, uint64_t count,
                                    tws_error *err);
int tws_training_has_frozen(const tws_training *t); /* whether the network has parameters that are not trained */
/* Of this rank alone, before its state is saved and when it was loaded: host and device have the same, where a plan has
 * such a program. */
tws_code tws_training_sync(tws_training *t, tws_error *err);
/* The plan's buffer of an entry of its state. */
uint32_t tws_training_buffer(const tws_plan *plan, const char *entry);

/* ---- steps (real/train.c) ---- */
/* A step is: inputs and scalars into their buffers; the plan; metrics; the counters go on, or an error where the
 * numbers are none. */
tws_code tws_training_begin_step(tws_training *t, int64_t step, tws_step_report *report, tws_error *err);
tws_code tws_training_read_metrics(tws_training *t, double metrics[TWS_METRIC_COUNT], tws_error *err);
tws_code tws_training_end_step(tws_training *t, const double metrics[TWS_METRIC_COUNT], double seconds,
                               tws_step_report *report, tws_error *err);

tws_code tws_real_train(const tws_train_options *options, tws_train_result *result, tws_error *err);

/* ---- all ranks in one process (real/virtual.c) ---- */
extern const tws_virtual_api tws_virtual_ranks;

/* Of the executor's arenas on a disk; TWS_INVALID: the configuration does not say where. */
tws_code tws_training_disk(const tws_training *t, tws_disk_setup *disk, tws_error *err);
/* Collective: binds this rank's threads to its share of the node's cores, as twinspeed.bind_threads says. */
tws_code tws_share_cores(tws_training *t, tws_error *err);
/* Weights and state as the options ask for them: drawn, of a file, or of a checkpoint; needs the executor. */
tws_code tws_training_weights(tws_training *t, tws_error *err);
/* All that a training has. */
void tws_training_release(tws_training *t);

/* Whether what this step, or some before it, left to the host is to be done behind it: of what is late while warming
 * up, and behind the last; of ZenFlow behind each interval. *program does it, behind tws_training_begin_apply(). */
int tws_training_applies(const tws_training *t, int64_t step, tws_program *program);
tws_code tws_training_begin_apply(tws_training *t, tws_program program, tws_error *err);
/* How long a step has taken in all. */
void tws_training_took(const tws_training *t, double seconds, tws_step_report *report);

/* ---- evaluation (real/evaluate.c) ---- */
tws_code tws_evaluation_open(tws_training *t, tws_error *err);
/* The mean loss over the tokens of t->eval_batches global batches; the state stays as it is. */
tws_code tws_evaluation_run(tws_training *t, int64_t step, double *loss, double *seconds, tws_error *err);
/* The same in parts, for ranks of one process: a batch into the program's buffers; when it has run, its loss and the
 * share of its tokens that count are added, or those of each of several losses; the (sum of the) means of what was
 * added. */
typedef struct tws_evaluation_sum {
  double loss[TWS_LOSS_HEADS], counted[TWS_LOSS_HEADS];
} tws_evaluation_sum;
tws_code tws_evaluation_put(tws_training *t, int64_t batch, tws_error *err);
tws_code tws_evaluation_add(tws_training *t, tws_evaluation_sum *sum, tws_error *err);
tws_code tws_evaluation_mean(const tws_evaluation_sum *sum, double *loss, tws_error *err);
/* Whether one follows this step. */
int tws_evaluation_is_due(const tws_training *t, int64_t step);

/* ---- checkpoints (real/checkpoint.c) ---- */
/* Rank 0 takes the folder; nothing where none is asked for. */
tws_code tws_checkpoint_lock(tws_training *t, tws_error *err);
/* Collective: who writes what, and whether there is room for it. */
tws_code tws_checkpoint_prepare(tws_training *t, tws_error *err);
int tws_checkpoint_is_due(const tws_training *t, int64_t step);
/* Collective, behind a step: begins a save, and where it is the last finishes it: on the disk, and named, when rank 0
 * returns. */
tws_code tws_checkpoint_save(tws_training *t, tws_error *err);
/* Collective, behind every step: looks after a save that goes on beside training. Its error is that of the save. */
tws_code tws_checkpoint_poll(tws_training *t, tws_error *err);
/* The operation of the training step that waits until the state was copied; TWS_NONE: none. */
uint32_t tws_checkpoint_gate(const tws_training *t);
void tws_checkpoint_wait_copied(tws_training *t);
typedef struct tws_save_times {
  int64_t beside;  /* saves that went on beside training */
  double waited_s; /* that training has waited for saves in all, but for the last */
} tws_save_times;
tws_save_times tws_checkpoint_times(const tws_training *t);
void tws_checkpoint_close(tws_training *t);
/* Of `world` ranks in one process, all of which have a tws_checkpoint_lock(): who writes what; every rank's file into
 * the folder that has no name yet; the folder gets its name, or is left as it is. */
tws_code tws_checkpoint_prepare_all(tws_training *ranks, int world, tws_error *err);
tws_code tws_checkpoint_write_all(tws_training *ranks, int world, tws_error *err);
tws_code tws_checkpoint_publish_all(tws_training *ranks, int world, tws_error *err);
void tws_checkpoint_drop_all(tws_training *ranks, int world);
uint64_t tws_checkpoint_share_bytes(const tws_training *t); /* of the pieces that this rank writes */
const char *tws_checkpoint_tag(const tws_training *t);      /* of the save that was begun last */

/* ---- resuming (real/resume.c) ---- */
/* Finds the checkpoint, where one is asked for; TWS_INVALID where it is of another model or optimizer. */
tws_code tws_resume_open(tws_training *t, tws_error *err);
/* What the host counts in it; TWS_INVALID and TWS_USAGE where it cannot go on from there. */
tws_code tws_resume_counters(tws_training *t, tws_error *err);
/* Where in the data it goes on: behind what was used up. */
void tws_resume_place(tws_training *t);
/* Whether anything of the state is not in the checkpoint and begins as it does without one. */
int tws_resume_needs_weights(const tws_training *t);
/* This rank's state; needs the executor. */
tws_code tws_resume_load(tws_training *t, tws_error *err);

/* ---- weights of a Hugging Face model (real/init_from.c) ---- */
/* In place of the initial weights, those of padded rows but; needs the executor. TWS_INVALID names file and tensor. */
tws_code tws_init_from(tws_training *t, tws_error *err);

/* ---- reports (real/report.c); rank 0 writes ---- */
tws_code tws_report_csv_open(tws_training *t, tws_error *err);
tws_code tws_report_csv_step(tws_training *t, const tws_step_report *report, tws_error *err);
/* Collective: sums over ranks into the result, and the JSON summary when the options ask for it. */
tws_code tws_report_result(tws_training *t, tws_train_result *result, tws_error *err);
/* Collective: every rank's operations of the traced step, as one Chrome trace. */
tws_code tws_report_trace(tws_training *t, tws_error *err);

#endif
