/* The real engine: executes plans with kernels and communication. It is a shared module (twinspeed_real.so: MPI, host
 * kernels) with one exported table; a CUDA backend is a further module, which this one loads.
 *
 * Ranks are processes. The program starts them (launch/) through mpirun, which runs the program again as `twinspeed
 * rank-worker ...`; inside it this module is called with the same options. */
#ifndef TWS_REAL_H
#define TWS_REAL_H

#include "base/log.h"
#include "base/unfinished.h"
#include "communication/comm_log.h"
#include "estimators/estimators.h"
#include "plan/run_order.h"
#include "real/sample.h"
#include "traces/step_report.h"
#include "traces/timeline.h"
#include "traces/trace_schedule.h"

/* ---- backend: kernels on one device ---- */
typedef struct tws_backend tws_backend;
typedef struct tws_backend_ops {
  const char *name; /* "host", "cuda" */
  tws_code (*create)(int device, int threads, tws_backend **out, tws_error *err);
  void (*destroy)(tws_backend *backend);
  /* allocates one arena of a tier, zeroed and aligned to TWS_ALIGNMENT */
  tws_code (*allocate)(tws_backend *backend, tws_tier tier, uint64_t bytes, void **base, tws_error *err);
  void (*release)(tws_backend *backend, tws_tier tier, void *base);
  /* starts one kernel; arguments NULL: all are 0; operand[i] is the address of operand i, dtype[i] its type. May be
   * asynchronous on `stream`. */
  tws_code (*run)(tws_backend *backend, const tws_work *work, const tws_arguments *arguments, void *const *operand,
                  const tws_dtype *dtype, int operand_count, tws_stream stream, tws_error *err);
  /* copies `bytes` bytes between addresses of any two tiers */
  tws_code (*copy)(tws_backend *backend, void *to, const void *from, uint64_t bytes, tws_stream stream, tws_error *err);
  /* optional, both or none: backends whose streams run concurrently. signal() records the event on the stream;
   * wait() makes the stream wait for the last signal() of that event (as cudaEventRecord and cudaStreamWaitEvent).
   * Events are small numbers that may be reused. */
  tws_code (*signal)(tws_backend *backend, tws_stream stream, uint32_t event, tws_error *err);
  tws_code (*wait)(tws_backend *backend, tws_stream stream, uint32_t event, tws_error *err);
  /* optional, for backends with wait(): has `function` called on a thread of the process when all earlier work of the
   * stream has ended; later work of the stream begins after it has returned (as cudaLaunchHostFunc). A recording
   * contains the call, and each replay() repeats it. The function must not use the backend. */
  tws_code (*call)(tws_backend *backend, tws_stream stream, void (*function)(void *user), void *user, tws_error *err);
  tws_code (*synchronize)(tws_backend *backend, tws_error *err);
  int (*supports)(const tws_work *work); /* returns 1 if the backend has a kernel for this work */
  /* optional, both or none: work that is started between record(1) and record(0) is captured and not run (as a CUDA
   * graph); replay() launches all of it, as often as requested. Work of every shape must have run before. A new
   * recording replaces the previous one; a recording is valid as long as the memory and the communicator that it uses.
   * record(1) fails with TWS_UNSUPPORTED if recording is not wanted. record(-1) discards what is being recorded; after
   * that, and after an error of record(), the backend runs work as before. */
  tws_code (*record)(tws_backend *backend, int on, tws_error *err);
  tws_code (*replay)(tws_backend *backend, tws_error *err);
  /* optional, both or none, for backends with wait(): mark() records a time stamp on a stream; marked() returns, for
   * the first `count` time stamps, the seconds since time stamp 0. */
  tws_code (*mark)(tws_backend *backend, tws_stream stream, uint32_t index, tws_error *err);
  tws_code (*marked)(tws_backend *backend, uint32_t count, double *seconds, tws_error *err);
  /* optional: returns a message of one line, which stays valid, if any work has taken a slower path than it should;
   * NULL: none has so far */
  const char *(*slower)(const tws_backend *backend);
} tws_backend_ops;

/* ---- communicator: collectives among ranks of a group ---- */
typedef struct tws_comm tws_comm;
typedef struct tws_comm_segment {
  const void *send; /* address of the data to send; in place: equal to receive (all-reduce, reduce, broadcast) or inside
                     * it (all-gather) */
  void *receive;
  tws_dtype dtype;
  uint64_t count; /* number of elements: the sent and received data have this number times SENDS and RECEIVES of
                   * models/collectives.def */
  /* for uneven collectives: for each member the number of elements (of `count`) that are sent to it, then for each
   * member the number that are received from it; otherwise NULL. They are read when the operation runs; a communicator
   * that cannot read them (device memory) transfers all elements. */
  const int32_t *counts;
} tws_comm_segment;
typedef struct tws_comm_ops {
  const char *name; /* "mpi", "nccl" */
  tws_code (*collective)(tws_comm *comm, int group, tws_collective collective, int root,
                         const tws_comm_segment *segments, int count, tws_error *err);
  tws_code (*send)(tws_comm *comm, int peer, const void *data, uint64_t bytes, tws_error *err);
  tws_code (*receive)(tws_comm *comm, int peer, void *data, uint64_t bytes, tws_error *err);
  /* optional: allocates host memory that the transport accesses without copies; see real/mpi_comm.h */
  tws_code (*allocate)(tws_comm *comm, uint64_t bytes, void **base, tws_error *err);
  /* optional, both or none: start a collective or a message on a stream of the device's backend, and return. A
   * communicator that has them uses device memory, and its operations are ordered by the plan's streams; without them,
   * the executor waits for the device before it communicates. */
  tws_code (*start_collective)(tws_comm *comm, int group, tws_collective collective, int root,
                               const tws_comm_segment *segments, int count, tws_stream stream, tws_error *err);
  tws_code (*start_message)(tws_comm *comm, int peer, int receives, void *data, uint64_t bytes, tws_stream stream,
                            tws_error *err);
} tws_comm_ops;

/* ---- training ---- */
/* Paths of files that are written step by step in addition to those of the configuration's sections (traces/monitor.h),
 * and the peak FLOP/s for computing MFU. */
typedef struct tws_watching {
  const char *lines_path, *prometheus_path; /* paths of the files of JSON lines and of Prometheus; NULL: the file is not
                                             * written */
  const char *plots;                        /* folder of the scripts of TensorBoard's figures; NULL: not known */
  double peak_flops;                        /* peak FLOP/s of all devices of the job; 0: not known */
} tws_watching;

typedef struct tws_train_options {
  tws_plan_request plan; /* plan of a training step of any rank: network, resolved configuration, topology, backend,
                             threads */
  int share;             /* used with virtual ranks only. 1: ranks whose memory has equal bytes share storage
                           * (real/shared_pages.h) */
  const char *data;      /* path of a text file (a token per byte) or a token file (real/data.h) */
  int64_t steps;         /* total steps at the end of the training, those before a resumed checkpoint included */
  int evaluates;         /* 1: the plan of an evaluation is built even without eval_data */
  const char *eval_data; /* path of data whose loss is computed by forward passes alone; NULL: no evaluation */
  int64_t eval_every;    /* evaluation interval in steps; there is also one after the last step; 0: no other
                          * evaluation */
  /* number of global batches of one evaluation, which are the same in each evaluation; 0: all batches of the file */
  int64_t eval_steps;
  const char *save;       /* folder for checkpoints (checkpoint/folder.h), or NULL */
  int64_t save_every;     /* save interval in steps; there is also a save after the last step; 0: no other save */
  int64_t keep;           /* number of checkpoints that are kept; 0: all */
  const char *resume;     /* folder with checkpoints to resume from, or NULL: from initial weights */
  const char *tag;        /* tag of the checkpoint to resume; NULL: the latest */
  const char *init_from;  /* safetensors file, index or folder with the initial weights, or NULL: random ones */
  const char *trace_path; /* path of the Chrome trace of a step, or NULL */
  int64_t trace_step;     /* number of the traced step; 0: the last, or those of trace_schedule */
  tws_trace_schedule trace_schedule;
  const char *csv_path;   /* path of a table with one line per step, or NULL */
  tws_watching watching;
  /* fingerprints of model and plan that are written into the trace and the summary; NULL: none are written */
  const tws_fingerprint *fingerprint;
  const char *result_path; /* JSON summary written by rank 0 at the end, or NULL */
  double deadline_s;       /* the watchdog reports a hang after this many seconds without progress; 0:
                                       * never */
  uint64_t device_limit;   /* bytes that a rank's device tier may use; 0: all available memory */
  int quiet;
  char *activity; /* buffer for this rank's current operation (zero-terminated), or NULL */
  size_t activity_bytes;
  uint64_t (*news)(void *user); /* returns a number that changes when any rank of the job makes progress; called from
                                 * any thread. NULL: not available */
  void (*on_step)(void *user, const tws_step_report *report); /* called on rank 0 after each step */
  int (*should_end)(void *user); /* called after every step of a run that saves; 1: the run saves and ends. NULL:
                                  * never */
  /* 1: the communication log is kept, also without comms_logger in the configuration */
  int logs_communication;
  /* called on rank 0 at the end with the communication log of all ranks, and, if comms_logger.verbose is set, after
   * each step with the record of rank 0, whose last step is the newest */
  void (*on_communication)(void *user, tws_comm_log *log);
  void (*on_calls)(void *user, const tws_comm_record *record);
  void (*on_result)(void *user, const char *json); /* called on rank 0 at the end with the summary that is written to
                                                    * result_path */
  /* Called once, from another thread, when there was no progress for deadline_s; this process then ends with exit
   * status 124. */
  void (*on_hang)(void *user, const tws_error *err);
  void *user;
  const tws_log *log;
} tws_train_options;

/* Bytes read from and written to disks, by operations of the plan and by requests to the system. */
typedef struct tws_disk_traffic {
  uint64_t planned_read, planned_written, read, written;
} tws_disk_traffic;

typedef struct tws_train_result {
  /* numbers of all and of skipped steps since the beginning of the training; this run started after step first_step */
  int64_t steps, skipped;
  int64_t first_step;
  int ended;                                                 /* 1: should_end() ended the run */
  double first_loss, last_loss, median_step_s, tokens_per_s; /* losses: the first and the last loss that are finite */
  int evaluated;
  double last_eval_loss;
  uint64_t predicted_bytes[TWS_TIER_COUNT], allocated_bytes[TWS_TIER_COUNT]; /* [tier] bytes of this rank's arenas */
  /* on rank 0: bytes summed over all ranks and tiers */
  uint64_t job_predicted_bytes, job_allocated_bytes, job_peak_rss_bytes;
  uint64_t largest_bytes; /* on rank 0: bytes of the rank that allocated most, summed over tiers */
  int largest_rank;
  tws_disk_traffic disk; /* traffic of this run's training steps; on rank 0 the sum over ranks */
} tws_train_result;

typedef struct tws_prompt {
  const int32_t *token;
  int64_t count;
} tws_prompt;

typedef struct tws_generate_options {
  tws_plan_request plan;                /* plan of a rank; micro batch and accumulation are 1 */
  const char *resume, *tag, *init_from; /* as in tws_train_options; if all are NULL, weights are random */
  const tws_prompt *prompts;            /* `prompt_count` of them */
  int64_t prompt_count, count;          /* numbers of prompts, and of tokens to generate for each at most */
  int64_t batch;                        /* most texts that are generated at a time; 0: all */
  /* 1: keys and values of earlier tokens are kept; 0: each token is computed from the last sequence_length tokens of
   * its text, which is the only way for texts that are longer than that */
  int cache;
  int weight_codes; /* with a cache: type of codes of linear layers' weights (tws_code_type); 0: weights are not
                     * quantized */
  int cache_bits;   /* 8: keys and values are cached in 8 bits (e4m3); 0: in the type of activations */
  int64_t cache_block; /* positions of a block of the cache (plan/serving.h); 0: the cache has no blocks */
  /* 1: no tokens are generated: those of the prompts are passed to on_token with their log probabilities, from the
   * second one on. Only with a cache; `count` and `sampling` have no effect */
  int scores;
  tws_sampling sampling;
  uint64_t seed; /* seed of the random choices of tokens of the first text; each further text has the next seed */
  /* Receives each token of text number `prompt`; returns 1 if the text ends with it. Called on rank 0. */
  int (*on_token)(void *user, int64_t prompt, int32_t token, double log_probability);
  void *user;
  char *activity; /* buffer in which this rank's phase or operation is written for the launcher, or NULL */
  size_t activity_bytes;
  const tws_log *log;
} tws_generate_options;

typedef struct tws_generate_result {
  /* tokens that went through the forward pass, without those that fill up a batch; and generated tokens */
  int64_t forward_tokens, generated_tokens;
  int64_t batches;
  double prefill_s, decode_s; /* total seconds of passes over prompts (0 without a cache), and of all other passes */
  double prefill_cpu_s, decode_cpu_s; /* with a cache: CPU seconds of this rank's process in these passes */
  uint64_t predicted_bytes, allocated_bytes; /* bytes of this rank's arenas: by the plans, and as allocated */
  uint64_t cache_bytes;                      /* bytes of keys and values among these */
} tws_generate_result;

typedef struct tws_predict_options {
  tws_plan_request plan;                /* plan of one rank on the host; micro batch and accumulation are 1 */
  const char *resume, *tag, *init_from; /* as in tws_train_options */
  const char *data;                     /* labelled texts or pictures, as training takes them (real/objective.h) */
  /* Receives the scores of a sample: `rows` x `columns`. Classes and pictures: 1 x classes; tags: tokens x classes;
   * spans: 2 x tokens, scores of the first and of the last token. index: of the sample in the file. tokens: how many
   * tokens of it were read, at most the sequence length (pictures: 1); scores of further ones are meaningless. label:
   * the number in the file of a class or a picture, else -1. Samples come in the order of the file. An error ends the
   * pass. */
  tws_code (*on_scores)(void *user, uint64_t index, const float *scores, int64_t rows, int64_t columns, int64_t tokens,
                        int64_t label, tws_error *err);
  void *user;
  const tws_log *log;
} tws_predict_options;

typedef struct tws_predict_result {
  uint64_t samples;
  double seconds; /* of all passes */
} tws_predict_result;

typedef struct tws_calibrate_options {
  const char *out_path;   /* path of the file of measurements (traces/measurements.h), which rank 0 writes */
  const char *device;     /* "host" (or NULL) or "cuda" */
  int quick;              /* 1: fewer shapes and repetitions, for demonstrations and tests */
  uint64_t largest_bytes; /* kernels with larger operands are skipped; 0: the limit follows from the device's memory */
  int threads;            /* threads of a rank that has the node to itself; 0: one for each core */
  int cores;              /* number of cores that the ranks share; 0: all cores of the machine */
  double budget_s;        /* approximate time of the repetitions, seconds; 0: it follows from `quick` */
  const tws_work *works;  /* the kernels to measure, `work_count` of them; NULL: none are measured */
  uint32_t work_count;
  char *activity; /* buffer for this rank's current operation (zero-terminated), or NULL */
  size_t activity_bytes;
  const tws_log *log;
  tws_progress *progress;
} tws_calibrate_options;

/* ---- all ranks of a training in one process, for an emulator (emulation/) that decides when their operations run:
 * on the host's kernels, without MPI and without start() ---- */
typedef struct tws_virtual tws_virtual;
typedef struct tws_virtual_api {
  /* Creates plans, memory and weights of every rank. The options plan, data, evaluation data, steps, save, share, keep,
   * resume, tag, init_from and log are used; the options must outlive *out. Fails with TWS_UNSUPPORTED for a backend
   * other than the host's. */
  tws_code (*open)(const tws_train_options *options, tws_virtual **out, tws_error *err);
  void (*close)(tws_virtual *ranks); /* NULL is allowed */
  /* Return the plans of a training step, an evaluation or another program, indexed by rank, and their number; owned by
   * `ranks`. The first returns NULL if the options do not include this program. */
  const tws_plan *const *(*plans)(const tws_virtual *ranks, tws_program program, int *count);
  int64_t (*first_step)(const tws_virtual *ranks); /* returns the number of steps completed before the resumed
                                                    * checkpoint */
  /* A step is begin(), then every operation of every rank in an order that satisfies the plans, then end() with the
   * virtual seconds that the step took. */
  tws_code (*begin)(tws_virtual *ranks, int64_t step, tws_error *err);
  tws_program (*program)(const tws_virtual *ranks); /* returns the program of the step that began last */
  tws_code (*run)(tws_virtual *ranks, tws_program program, uint32_t rank, uint32_t op,
                  tws_error *err); /* runs an operation that needs no other rank */
  /* Runs a collective for all its members, or a message for its sender and receiver. */
  tws_code (*meet)(tws_virtual *ranks, tws_program program, const tws_run_member *members, uint32_t count,
                   tws_error *err);
  tws_code (*end)(tws_virtual *ranks, double seconds, tws_step_report *report, tws_error *err);
  /* After a step: returns 1 if a delayed update of the host is due, and sets *program to its program. Then
   * apply_begin(), every operation of that program, and apply_end() with the additional seconds. */
  int (*applies)(const tws_virtual *ranks, int64_t step, tws_program *program);
  tws_code (*apply_begin)(tws_virtual *ranks, tws_program program, tws_error *err);
  void (*apply_end)(const tws_virtual *ranks, double seconds, tws_step_report *report);
  /* An evaluation is evaluation_begin(), every operation and evaluation_end() for each of its batches; then
   * evaluation_loss() returns the mean loss. */
  int64_t (*evaluation_batches)(const tws_virtual *ranks);
  tws_code (*evaluation_begin)(tws_virtual *ranks, int64_t batch, tws_error *err);
  tws_code (*evaluation_end)(tws_virtual *ranks, tws_error *err);
  tws_code (*evaluation_loss)(tws_virtual *ranks, double *loss, tws_error *err);
  /* If the options set `save`, a checkpoint can be saved between steps: save() writes every rank's file into a folder
   * with a temporary name; publish() gives the folder its name; drop() leaves it in the state of a job that ends when
   * this share of the files was written. */
  tws_code (*save)(tws_virtual *ranks, tws_error *err);
  tws_code (*publish)(tws_virtual *ranks, tws_error *err);
  void (*drop)(tws_virtual *ranks, double written);
  /* returns the number of bytes of a checkpoint that the rank writes */
  uint64_t (*save_bytes)(const tws_virtual *ranks, int rank);
  /* Inject faults: flip one bit of an element of a state entry ("parameters"), or of the data that an operation
   * received last. */
  tws_code (*flip)(tws_virtual *ranks, int rank, const char *entry, uint64_t element, int bit, tws_error *err);
  void (*flip_received)(tws_virtual *ranks, tws_program program, const tws_run_member *member, uint64_t byte, int bit);
  /* Overwrites a range that no operation may read any more; used to test the order of operations. */
  void (*spoil)(tws_virtual *ranks, tws_program program, uint32_t rank, uint32_t buffer, uint64_t offset,
                uint64_t count);
  /* returns a hash of all bits of the state of all ranks */
  uint64_t (*digest)(const tws_virtual *ranks);
  /* returns the bytes of the rank's arenas on this tier */
  uint64_t (*allocated)(const tws_virtual *ranks, int rank, tws_tier tier);
  /* returns the bytes of memory that sharing storage currently saves */
  uint64_t (*saved)(const tws_virtual *ranks);
} tws_virtual_api;

typedef struct tws_real_api {
  int version; /* interface version, which has to equal TWS_INTERFACE of build_interface.h */
  /* Everything below is called between start() and stop() in every rank process. */
  tws_code (*start)(int *argc, char ***argv, int *rank, int *world, tws_error *err); /* MPI_Init */
  void (*stop)(void);
  /* Ends every rank: it prints nothing, the process exits with exit_code, and the launcher detects which rank has
   * ended. */
  void (*abort)(int exit_code);
  /* Trains. After an error in a world of several ranks, the others still wait for this rank: end it with abort(), not
   * with stop(). */
  tws_code (*train)(const tws_train_options *options, tws_train_result *result, tws_error *err);
  tws_code (*generate)(const tws_generate_options *options, tws_generate_result *result, tws_error *err);
  /* Computes the scores of a model of classes, tags, spans or pictures for samples of a file. One rank. */
  tws_code (*predict)(const tws_predict_options *options, tws_predict_result *result, tws_error *err);
  tws_code (*calibrate)(const tws_calibrate_options *options, tws_error *err);
  const tws_backend_ops *(*backend)(const char *name); /* returns the table of the backend with this name; NULL: there
                                                        * is none */
  const struct tws_engine_api *engine;                 /* training step by step: real/engine.h */
  const tws_virtual_api *virtual_ranks;
  void (*clear_swap_files)(const char *folder); /* removes swap files of ended processes: see real/swap.h */
  /* Measures the speed in bytes/s of a file of `bytes` bytes in `folder`, read and written with the parameters `aio`:
   * see real/disk.h. *direct: the transfers bypassed the page cache. */
  tws_code (*measure_disk)(const char *folder, const tws_aio *aio, uint64_t bytes, double *read, double *write,
                           int *direct, tws_error *err);
  void (*use_unfinished)(tws_unfinished *list); /* sets the program's list of unfinished files; to be called before any
                                                 * other function */
  const char *(*description)(void);             /* returns a description of the engine, "host (OpenBLAS 0.3.21
                                                 * SkylakeX), Open MPI 4.1.4" */
} tws_real_api;
#define TWS_REAL_MODULE_SYMBOL "tws_real_module"

#endif
