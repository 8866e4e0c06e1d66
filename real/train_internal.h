/* Declarations that the files of the training loop share. */
#ifndef TWS_REAL_TRAIN_INTERNAL_H
#define TWS_REAL_TRAIN_INTERNAL_H

#include <stdio.h>
#include "plan/phases.h"
#include "checkpoint/index.h"
#include "estimators/phase_clock.h"
#include "real/cuda_loader.h"
#include "real/data.h"
#include "real/executor.h"
#include "real/fault.h"
#include "real/mpi_comm.h"
#include "real/objective.h"
#include "real/watchdog.h"

/* The interval between ZenFlow's updates on the host that ended with the last step. */
typedef struct tws_interval {
  int64_t steps;  /* number of its steps; 0: no interval has ended */
  int64_t update; /* number of the host's update after it, counted from 1 */
  int selects;    /* 1: columns are selected anew after it */
} tws_interval;

typedef struct tws_training {
  const tws_train_options *options;
  const tws_config *config;
  const void *mpi; /* the MPI communicator of the ranks (real/mpi_comm.h); NULL: all ranks of the process's job */
  int rank, world, threads;
  uint64_t start_rss; /* peak resident memory of this process before weights are initialized or loaded, bytes */
  tws_fault fault;
  uint32_t fault_op; /* index of the operation before which an injected fault occurs */
  tws_data data;
  const tws_data *batch; /* a batch in memory, which the next step takes in place of `data`; NULL: none */
  tws_batch_shape shape;
  tws_plan *plan;       /* plan of a training step */
  tws_plan *evaluation; /* plan of an evaluation over the same state; NULL: the run evaluates nothing */
  /* plans over the same state that run between steps, or as steps of later phases of the optimizer; NULL: there is
   * none */
  tws_plan *between[TWS_PROGRAM_COUNT];
  tws_step_kind kind; /* the current step's program */
  const tws_plan *programs[TWS_PROGRAM_COUNT];
  tws_program pending; /* the program of the next step: TRAIN, or an OVERLAP with the update of the last interval */
  tws_interval interval;
  tws_ledger ledger; /* memory of the whole job: the state plus the largest of its programs */
  const tws_backend_ops *ops;
  tws_backend *backend;
  tws_comm *comm;
  tws_host_work *host; /* runs offloaded work on the host's cores; NULL: the rank computes on the host, or its plans
                        * have no such work */
  const tws_cuda_api *cuda; /* functions of the CUDA module; NULL: the rank computes on the host */
  tws_comm *device_comm;    /* runs the plan's collectives on GPUs; `comm` runs the others */
  tws_executor *executor;
  tws_disk_count on_disk; /* bytes transferred by training steps */
  tws_watchdog *watchdog;
  tws_data eval_data;
  int64_t eval_batches;                /* number of global batches of one evaluation */
  struct tws_prefetched_inputs *ahead; /* prefetched inputs of steps on a device; NULL: on the host */
  void *input[TWS_NETWORK_INPUTS];     /* on the host: [input] buffer for one step of any program; NULL: the plan has no
                                    * such input */
  double step_ended_s;            /* time at which the last step, or the delayed update after it, ended, on the clock
                                    * of tws_clock_s() */
  double *times;                  /* [op_count][2] times of the last step's operations, if a trace is wanted */
  double trace_start_s;           /* time at which the first traced step began */
  int64_t traced_step;            /* number of the last traced step; 0: none was traced */
  int64_t ran[TWS_PROGRAM_COUNT]; /* per program: number of its runs as a step or between steps */
  double sent[TWS_PROGRAM_COUNT]; /* per program: bytes that this rank has sent in these runs, by the communicator */
  double *traced_routed;          /* copy of `routed` after the last traced step */
  tws_text trace;                 /* the traced steps of this rank, for rank 0 */
  int64_t first_step;             /* steps completed before this run */
  tws_saved_index *resumed;       /* the checkpoint that is resumed; NULL: initial weights */
  int fetches;                    /* 1: the files of `resumed` are only on rank 0's disk, and are requested from it
                             * (real/remote_files.h) */
  uint64_t fetched;               /* bytes of the files of `resumed` that were received */
  /* [rank] flags. far_writers: ranks that do not see the folder for saving; far_readers, on rank 0: ranks that fetch
   * the resumed checkpoint from it. NULL: all ranks see the folders */
  uint8_t *far_writers, *far_readers;
  struct tws_checkpoint *checkpoint; /* state of saving; NULL: the run does not save */
  int save_waits;                    /* 1: a save was due after a step that left the ranks' weights different */
  int weights_only;                  /* 1: the checkpoint's optimizer state is not read */
  int skipped;                       /* 1: the last step was skipped because of an overflow */
  int ended;                         /* 1: the run was asked to end before the last step */
  int warned[2];                     /* [kind] 1: a warning was given: of work on a slower path; of steps that are not
                                      * recorded */
  int has_set_lr;                    /* 1: steps use set_lr, not the schedule's learning rate */
  double set_lr;
  /* 1: a process that is not this program trains through the library (real/engine.h): every rank fills reports of
   * steps, not only rank 0, and threads are bound to cores only if the configuration requests it */
  int is_library;
  const char *client_state;    /* text of the caller that the next save stores in the checkpoint; NULL: none */
  int vanished;                /* 1: the warning that all gradients are 0 was given */
  double *routed;              /* [router][expert] number of routes in the last step; NULL without experts */
  tws_step_report *history;    /* rank 0: one report per step of this run */
  tws_counters *counters;      /* counters of steps and samples, in the plan's state */
  FILE *csv;                   /* on rank 0: the open CSV file with one line per step */
  struct tws_monitor *monitor; /* on rank 0; NULL: no monitor is configured */
  /* on rank 0, per program that is a training step: computes the phases of the step; NULL: not wanted */
  tws_phase_clock *phases[TWS_PROGRAM_COUNT];
  double *phase_times;         /* for `phases` and `calls`: [op_count][2] times of a step that is not traced */
  tws_comm_recorder *calls;    /* latencies of this rank's communication; NULL: no log is kept */
  tws_comm_log *communication; /* on rank 0: the log of all ranks */
  double model_flops;          /* model FLOPs of one step of all ranks */
  double data_wait_s;          /* seconds for which the last step waited for its inputs */
  double saves_waited_s;       /* total seconds for which training had waited for saves at the last report */
} tws_training;

/* Computes scores of samples (real/predict.c). */
tws_code tws_real_predict(const tws_predict_options *options, tws_predict_result *result, tws_error *err);
tws_code tws_real_generate(const tws_generate_options *options, tws_generate_result *result, tws_error *err);
/* Generates texts with a cache of keys and values (real/serve.c); the options are checked. */
tws_code tws_real_serve(const tws_generate_options *options, tws_generate_result *result, tws_error *err);
/* ---- parts of a training (real/train.c), each for one rank; without a communicator they do not need other ranks
 * ---- */
tws_code tws_training_plan(tws_training *t, tws_error *err);
/* Sets t->shape and allocates t->routed. */
tws_code tws_training_shape(tws_training *t, tws_error *err);
tws_code tws_training_open_data(tws_training *t, tws_error *err);
/* Creates backend, inputs, communicator and executor; collective. */
tws_code tws_training_make_executor(tws_training *t, tws_error *err);
/* ---- inputs (real/inputs.c) ---- */
/* Allocates input buffers: on the host in memory of this process; with concurrent streams two buffers of pinned
 * memory, used alternately, and one of device memory, each for one step of any program. Needs the plans. */
tws_code tws_inputs_open(tws_training *t, tws_error *err);
void tws_inputs_close(tws_training *t);
uint64_t tws_inputs_device_bytes(const tws_training *t); /* returns 0 on the host */
/* Copies batch `batch` (counted from 0) of the data into the program's inputs. */
tws_code tws_training_put_inputs(tws_training *t, tws_program program, const tws_data *data, int64_t batch,
                                 tws_error *err);
/* Called while a step runs on a device: prepares a batch and copies it to the device on the copy stream, overlapped
 * with the step. If tws_training_put_inputs() requests this batch next, only a copy within the device remains. On
 * the host it does nothing. Errors in the data are reported by tws_training_put_inputs(). */
tws_code tws_training_prefetch_inputs(tws_training *t, const tws_data *data, int64_t batch, tws_error *err);

/* ---- the backends of this build (real/backends.c) ---- */
/* Returns the table of "host" or another backend; NULL: it is not available. */
const tws_backend_ops *tws_real_backend(const char *name);
const char *tws_real_description(void);

/* ---- shared by steps, checkpoints and initial weights (real/training.c) ---- */
/* Reports this rank's phase to its watchdog and the launcher. `step`: the step that the phase precedes or follows; 0:
 * none. */
void tws_training_at(const tws_training *t, int64_t step, const char *what, tws_phase_kind kind);
/* Writes the codes and scales of quantized values, the first of which is stored at element `offset`; the values must be
 * whole blocks. */
tws_code tws_training_put_quantized(tws_training *t, uint64_t offset, const float *values, uint64_t count,
                                    tws_error *err);
int tws_training_has_frozen(const tws_training *t); /* returns 1 if the network has parameters that are not trained */
/* Makes the copies of the state on the host and on the device equal, if the configuration has the program
 * TWS_PROGRAM_SYNC; called on each rank before its state is saved and after it was loaded. */
tws_code tws_training_sync(tws_training *t, tws_error *err);
/* Returns the index of the plan's buffer for an entry of its state. */
uint32_t tws_training_buffer(const tws_plan *plan, const char *entry);

/* ---- steps (real/train.c) ---- */
/* Runs a step in two calls: begin sets inputs and scalars and starts the plan; end reads the metrics and advances the
 * counters, or fails if the loss is not finite. */
tws_code tws_training_begin_step(tws_training *t, int64_t step, tws_step_report *report, tws_error *err);
tws_code tws_training_read_metrics(tws_training *t, double metrics[TWS_METRIC_COUNT], tws_error *err);
tws_code tws_training_end_step(tws_training *t, const double metrics[TWS_METRIC_COUNT], double seconds,
                               tws_step_report *report, tws_error *err);

/* Runs a whole step with the delayed update after it, if one is due; collective. It consists of tws_training_meet(),
 * tws_training_begin_step(), the plan's operations and tws_training_complete(). */
tws_code tws_training_step(tws_training *t, int64_t step, tws_step_report *report, tws_error *err);
/* Waits until all ranks have ended the previous step. */
tws_code tws_training_meet(tws_training *t, int64_t step, tws_error *err);
/* Reads what the step's operations computed, advances the counters and applies a delayed update. */
tws_code tws_training_complete(tws_training *t, int64_t step, tws_step_report *report, tws_error *err);

tws_code tws_real_train(const tws_train_options *options, tws_train_result *result, tws_error *err);

/* ---- all ranks in one process (real/virtual.c) ---- */
extern const tws_virtual_api tws_virtual_ranks;

/* Sets the folder and parameters of arenas on a disk; fails with TWS_INVALID if the configuration names no folder. */
tws_code tws_training_disk(const tws_training *t, tws_disk_setup *disk, tws_error *err);
/* Binds this rank's threads to its share of the node's cores, according to twinspeed.bind_threads. On a GPU it first
 * starts t->host if the plans need it, with the share's number of threads. All ranks have to call it. */
tws_code tws_share_cores(tws_training *t, tws_error *err);
/* Initializes weights and state as the options state: at random, from a file, or from a checkpoint. The executor must
 * exist. */
tws_code tws_training_weights(tws_training *t, tws_error *err);
/* Frees all members of a training. */
void tws_training_release(tws_training *t);

/* Returns 1 if a program runs after this step: a delayed update on the host, during warm-up, after the last step, and
 * with ZenFlow after each interval; or FREEZE, which begins a phase of the optimizer. *program is that program, which
 * the caller runs after tws_training_begin_apply(). */
int tws_training_applies(const tws_training *t, int64_t step, tws_program *program);
/* Returns the largest number of operations of a training step's programs. */
uint32_t tws_training_most_ops(const tws_training *t);
tws_code tws_training_begin_apply(tws_training *t, tws_program program, tws_error *err);
/* If the caller of the library has set a learning rate, puts it in place of the schedule's. */
void tws_training_use_set_lr(const tws_training *t, double *lr, float *hyper);
/* Sets t->pending at the start of a run, from the state: a resumed checkpoint may contain a pending update. */
tws_code tws_training_find_pending(tws_training *t, tws_error *err);
/* Called when a step has ended, with its metrics: determines whether an interval ended with it. If one did and the
 * host's update is to overlap with the next step, leaves the update's scalars in the state and sets t->pending. */
tws_code tws_training_defer(tws_training *t, const double ended[TWS_METRIC_COUNT], tws_error *err);
/* Sets the total seconds of a step in its report. */
void tws_training_set_step_seconds(const tws_training *t, double seconds, tws_step_report *report);

/* ---- evaluation (real/evaluate.c) ---- */
tws_code tws_evaluation_open(tws_training *t, tws_error *err);
/* Computes the mean loss over the tokens of t->eval_batches global batches; the state is unchanged. */
tws_code tws_evaluation_run(tws_training *t, int64_t step, double *loss, double *seconds, tws_error *err);
/* An evaluation in several calls, for ranks of one process: put() fills the program's buffers with a batch of the data;
 * after the program has run, add() adds the batch's loss, weighted by the share of its tokens that count, separately
 * for each of several losses; mean() returns the mean (or the sum of the means). */
typedef struct tws_evaluation_sum {
  double loss[TWS_LOSS_HEADS], counted[TWS_LOSS_HEADS];
} tws_evaluation_sum;
tws_code tws_evaluation_put(tws_training *t, const tws_data *data, int64_t batch, tws_error *err);
tws_code tws_evaluation_add(tws_training *t, tws_evaluation_sum *sum, tws_error *err);
tws_code tws_evaluation_mean(const tws_evaluation_sum *sum, double *loss, tws_error *err);
/* Returns 1 if an evaluation follows this step. */
int tws_evaluation_is_due(const tws_training *t, int64_t step);

/* ---- checkpoints (real/checkpoint.c) ---- */
/* Locks the folder for saving, on rank 0; does nothing if the run does not save. */
tws_code tws_checkpoint_lock(tws_training *t, tws_error *err);
/* Assigns the segments of the state to ranks for writing, and checks the free space; collective. */
tws_code tws_checkpoint_prepare(tws_training *t, tws_error *err);
int tws_checkpoint_is_due(const tws_training *t, int64_t step);
/* Begins a save; collective, called after a step. After the last step it also completes the save: files are on the
 * disk, and the folder has its name, when rank 0 returns. */
tws_code tws_checkpoint_save(tws_training *t, tws_error *err);
/* Checks the progress of a save that overlaps with training; collective, called after every step. Returns the error of
 * that save. */
tws_code tws_checkpoint_poll(tws_training *t, tws_error *err);
/* Returns the index of the operation of the training step that waits for the snapshot of the state; TWS_NONE: none
 * does. */
uint32_t tws_checkpoint_gate(const tws_training *t);
void tws_checkpoint_wait_copied(tws_training *t);
typedef struct tws_save_times {
  int64_t overlapped; /* number of saves that overlapped with training */
  double waited_s;    /* total seconds for which training waited for saves, except the last one */
} tws_save_times;
tws_save_times tws_checkpoint_times(const tws_training *t);
void tws_checkpoint_close(tws_training *t);
/* For `world` ranks in one process, after tws_checkpoint_lock() of each: prepare_all() assigns the segments,
 * write_all() writes every rank's file into the folder with its temporary name, and publish_all() gives the folder its
 * name, or drop_all() leaves it unfinished. */
tws_code tws_checkpoint_prepare_all(tws_training *ranks, int world, tws_error *err);
tws_code tws_checkpoint_write_all(tws_training *ranks, int world, tws_error *err);
tws_code tws_checkpoint_publish_all(tws_training *ranks, int world, tws_error *err);
void tws_checkpoint_drop_all(tws_training *ranks, int world);
/* Returns the bytes of the segments that this rank writes to a checkpoint. */
uint64_t tws_checkpoint_share_bytes(const tws_training *t);
const char *tws_checkpoint_tag(const tws_training *t); /* returns the tag of the latest save */

/* ---- resuming (real/resume.c) ---- */
/* Finds the checkpoint to resume, if any; fails with TWS_INVALID if it belongs to another model or optimizer. */
tws_code tws_resume_open(tws_training *t, tws_error *err);
/* Reads the checkpoint's counters of steps and samples; fails with TWS_INVALID or TWS_USAGE if this run cannot resume
 * from it. */
tws_code tws_resume_counters(tws_training *t, tws_error *err);
/* Sets the position in the training data to the first sample that was not consumed before the checkpoint. */
void tws_resume_place(tws_training *t);
/* Returns 1 if the checkpoint lacks a part of the state, which then needs initial values. */
int tws_resume_needs_weights(const tws_training *t);
/* Loads this rank's state from the checkpoint. The executor must exist. */
tws_code tws_resume_load(tws_training *t, tws_error *err);

/* ---- weights of a Hugging Face model (real/init_from.c) ---- */
/* Loads weights from the files of options->init_from in place of random ones, except padded rows. The executor must
 * exist. Fails with TWS_INVALID, naming the file and the tensor. */
tws_code tws_init_from(tws_training *t, tws_error *err);

/* ---- reports of steps (real/step_report.c) ---- */
/* Allocates t->phase_times, so that the times of all operations are recorded in each step. */
tws_code tws_training_keep_times(tws_training *t, tws_error *err);
/* Prepares on rank 0 the data that reports need. The plan must exist. */
tws_code tws_step_report_prepare(tws_training *t, tws_error *err);
/* Completes a report in which the caller has set the step, its seconds and its losses: computes all other members from
 * the training. */
void tws_step_report_complete(const tws_training *t, tws_step_report *report);
/* Completes the report of a step as tws_step_report_complete() does, and sets the time at which the step ended and the
 * seconds for which this rank waited for its inputs and for saves, on this machine's clock (tws_clock_s()). times:
 * start and end of each operation of the step; NULL: they were not recorded. */
void tws_step_report_finish(tws_training *t, const double *times, tws_step_report *report);
/* Opens the monitors of the configuration and the options, on rank 0. Fails with TWS_IO if a folder or a file cannot be
 * created. */
tws_code tws_step_report_open(tws_training *t, tws_error *err);

/* ---- the communication log (real/comm_report.c) ---- */
/* Opens the log on each rank, if the configuration or the options enable it. The plan must exist. */
tws_code tws_comm_report_open(tws_training *t, tws_error *err);
/* Adds the times of a step on this rank. When the records are full, sends them to rank 0; collective. */
tws_code tws_comm_report_step(tws_training *t, const double *times, tws_error *err);
/* Sends the remaining records to rank 0, which completes the log and passes it to options->on_communication();
 * collective. */
tws_code tws_comm_report_end(tws_training *t, tws_error *err);
void tws_comm_report_close(tws_training *t);

/* ---- reports of the run (real/report.c); rank 0 writes ---- */
tws_code tws_report_csv_open(tws_training *t, tws_error *err);
tws_code tws_report_csv_step(tws_training *t, const tws_step_report *report, tws_error *err);
/* Sums the ranks' figures into *result, and writes the JSON summary if the options request it; collective. */
tws_code tws_report_result(tws_training *t, tws_train_result *result, tws_error *err);

/* ---- traces (real/trace_report.c) ---- */
/* Prepares the trace that the options request. The plan must exist. */
tws_code tws_trace_open(tws_training *t, tws_error *err);
/* Returns the phase of a step: only steps of the phase ACTIVE are in the trace, and those of WARM_UP are timed, too. */
tws_trace_phase tws_trace_phase_of(const tws_training *t, int64_t step);
/* Keeps a step, whose times are in t->times, for the trace. */
tws_code tws_trace_keep(tws_training *t, int64_t step, tws_error *err);
/* Gathers every rank's operations of the traced steps, and writes them as one Chrome trace; collective. */
tws_code tws_report_trace(tws_training *t, tws_error *err);

#endif
