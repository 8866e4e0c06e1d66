/* Twinspeed as a library: what the training of a network needs and how long it takes, and the training itself.
 *
 * Link with -ltwinspeed (pkg-config twinspeed). Every function that can fail returns a status and takes a
 * `twinspeed_error *` as its last argument, which may be NULL. Nothing here prints, exits or changes the signals of the
 * process. Calls come from one thread at a time; several jobs may be open at once. Sizes are bytes, times are
 * seconds, rates are per second, unless a name says otherwise.
 *
 *   twinspeed_options options;
 *   twinspeed_options_init(&options);
 *   options.model = "llama-3-8b";
 *   options.cluster = "dgx-h100";
 *   options.stage = 3;
 *   twinspeed_job *job;
 *   twinspeed_estimate answer;
 *   twinspeed_error error;
 *   if (twinspeed_open(&options, &job, &error) == TWINSPEED_OK &&
 *       twinspeed_estimate_job(job, &answer, &error) == TWINSPEED_OK)
 *     printf("%.2f GiB of a device, %.3f s a step\n", answer.device_need / 1073741824, answer.step_s);
 *   twinspeed_close(job);
 */
#ifndef TWINSPEED_H
#define TWINSPEED_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined __GNUC__
#define TWINSPEED_API __attribute__((visibility("default")))
#else
#define TWINSPEED_API
#endif

/* ---- errors ---- */

typedef enum twinspeed_status {
  TWINSPEED_OK,
  TWINSPEED_NO,          /* the answer is no: for example, the job does not fit */
  TWINSPEED_USAGE,       /* arguments contradict each other, or are missing */
  TWINSPEED_INVALID,     /* a file or a value is wrong */
  TWINSPEED_UNSUPPORTED, /* valid input that the library does not support */
  TWINSPEED_IO,
  TWINSPEED_MEMORY,
  TWINSPEED_ENVIRONMENT, /* something is missing on the machine, such as the simulator's module */
  TWINSPEED_RANK,        /* a rank of a training failed */
  TWINSPEED_INTERNAL     /* an internal error of the library */
} twinspeed_status;

typedef struct twinspeed_error {
  twinspeed_status status;
  char message[2048]; /* the problem, with its position: file:line:column and key */
  char hint[4096];    /* the remedy; may be empty */
} twinspeed_error;

TWINSPEED_API const char *twinspeed_version(void); /* "0.1.0" */
/* Returns the word for a status, such as "INVALID". */
TWINSPEED_API const char *twinspeed_status_name(twinspeed_status status);

/* ---- networks of one's own ---- */

/* A network, module by module, with the types and keys of a network file (docs/networks.md): one means what the other
 * does. NULL and 0 mean "not given". `keys` have the further keys of an object of the file, "KEY=VALUE, KEY=VALUE",
 * where a value is a number, true or false, or a text without quotes: "out=6, side=5, bias=false".
 *
 *   static const twinspeed_picture picture = {.side = 32, .channels = 3};
 *   static const twinspeed_module modules[] = {{.type = "convolution", .name = "conv1", .keys = "out=6, side=5"},
 *                                              {.type = "relu"},
 *                                              {.type = "flatten"},
 *                                              {.type = "linear", .name = "fc", .keys = "out=10"}};
 *   twinspeed_network network;
 *   char *text;
 *   twinspeed_network_init(&network);
 *   network.pictures = &picture, network.picture_count = 1;
 *   network.classes = 10;
 *   network.modules = modules, network.module_count = 4;
 *   if (twinspeed_network_text(&network, &text, &error) == TWINSPEED_OK) options.model = text;
 */
typedef struct twinspeed_module {
  const char *type, *name;
  const char *input[2]; /* names of the modules or inputs that it reads; none: the module before it */
  const char *keys;
  int repeat; /* > 0: the block of the following modules, this many times; it has a name, and no type */
  const struct twinspeed_module *modules;
  int module_count;
} twinspeed_module;
/* Pictures of a record: side x side pixels, with one byte for each of the channels. name: if there are several. */
typedef struct twinspeed_picture {
  const char *name;
  int64_t side, channels;
} twinspeed_picture;
typedef struct twinspeed_label {
  const char *name;
  int64_t classes;
} twinspeed_label;
/* A loss: of the outputs of a module (of), or of networks that are run in succession on an input (run). Its keys are
 * loss, label, target and weight. */
typedef struct twinspeed_loss {
  const char *name, *of;
  const char *const *run;
  int run_count;
  const char *keys;
} twinspeed_loss;
/* One of several networks that are trained alternately. */
typedef struct twinspeed_subnetwork {
  const char *name;
  const twinspeed_module *modules;
  int module_count;
} twinspeed_subnetwork;
/* The losses of a turn, after which the optimizer updates the networks that it trains. */
typedef struct twinspeed_turn {
  const char *const *train;
  int train_count;
  const twinspeed_loss *losses;
  int loss_count;
} twinspeed_turn;
typedef struct twinspeed_network {
  size_t size; /* sizeof the structure, set by twinspeed_network_init() */
  const twinspeed_picture *pictures;
  int picture_count;
  twinspeed_picture noise;       /* random numbers of the form of pictures */
  int64_t vocabulary, positions; /* of tokens instead of pictures */
  int64_t classes;               /* of pictures with one label */
  const twinspeed_label *labels; /* of pictures with several labels */
  int label_count;
  const twinspeed_module *modules; /* of one network */
  int module_count;
  const twinspeed_loss *losses; /* several losses of one network */
  int loss_count;
  const twinspeed_subnetwork *networks; /* instead of modules and losses: networks that are trained alternately */
  int network_count;
  const twinspeed_turn *turns;
  int turn_count;
  const char *keys; /* name, loss, init_std, dtype */
} twinspeed_network;
TWINSPEED_API void twinspeed_network_init(twinspeed_network *network);
/* Writes the network as the text of a network file, for twinspeed_options.model or a file; the caller frees *text with
 * twinspeed_free(). Only the form is checked here: twinspeed_open() checks the network, and its messages have the line
 * and column of the text ("network:12:7"). Fails with TWINSPEED_INVALID for keys of another form. */
TWINSPEED_API twinspeed_status twinspeed_network_text(const twinspeed_network *network, char **text,
                                                      twinspeed_error *error);

/* ---- jobs: a model, a configuration, a cluster and a number of ranks ---- */

/* Options of a job. The strings are only read by twinspeed_open(). NULL, 0 or -1 (stage, seed) mean "not given". Names
 * and files are those of the command line: see `twinspeed estimate --help`. New versions of the library append members;
 * `size` says which version the caller was compiled for. */
typedef struct twinspeed_options {
  size_t size;            /* sizeof the structure, set by twinspeed_options_init() */
  const char *model;      /* a built-in name such as "gpt2", the path of a Hugging Face config.json, of a network file
                             or of an ONNX file, or the text of such a JSON file, which begins with "{" */
  const char *config;     /* path of a ds_config.json */
  const char *cluster;    /* "dgx-h100:4", a device's name, or the path of a cluster file; NULL: this machine */
  const char *profile;    /* profile of the devices: a name or a file; NULL: the cluster's */
  const char *runtime;    /* software whose memory and time are predicted: "twinspeed", "megatron", ...;
                              NULL: that of the format of `config` */
  const char *dtype;      /* "float32", "bf16", "fp16", "fp8" */
  const char *recompute;  /* "none", "selective", "full" */
  const char *schedule;   /* pipeline schedule: "1f1b", "gpipe", "interleaved", "zb-h1" ... */
  const char *const *set; /* settings "KEY=VALUE", applied after the configuration file */
  size_t set_count;
  int64_t ranks, sequence_length, micro_batch, accumulation;
  int64_t pipeline_ranks, tensor_ranks, sequence_ranks, expert_ranks;
  int64_t stage; /* ZeRO stage, 0 to 3 */
  int64_t seed;
} twinspeed_options;

typedef struct twinspeed_job twinspeed_job;

TWINSPEED_API void twinspeed_options_init(twinspeed_options *options);
/* Loads, validates and resolves a job. The caller closes *job with twinspeed_close(); it is NULL after a failure. */
TWINSPEED_API twinspeed_status twinspeed_open(const twinspeed_options *options, twinspeed_job **job,
                                              twinspeed_error *error);
/* Frees a job; NULL is allowed. */
TWINSPEED_API void twinspeed_close(twinspeed_job *job);

typedef struct twinspeed_job_facts {
  int ranks, stages, replicas, tensor_ranks, sequence_ranks, expert_ranks, zero_stage;
  int64_t micro_batch, accumulation, sequence_length;
  double parameters, trained_parameters;
  char model[128], runtime[64], dtype[16], cluster[128];
} twinspeed_job_facts;
TWINSPEED_API void twinspeed_job_describe(const twinspeed_job *job, twinspeed_job_facts *facts);
/* Returns notes on the job, one per line ("" if there are none): values that were assumed, keys without effect, remarks
 * on model and configuration. The text lives until the next call for this job, or until the job is closed. Returns NULL
 * if memory is exhausted. */
TWINSPEED_API const char *twinspeed_job_notes(twinspeed_job *job);

/* ---- results ---- */

enum { TWINSPEED_TIERS = 4, TWINSPEED_CATEGORIES = 16, TWINSPEED_PHASES = 8 };

typedef enum twinspeed_verdict { TWINSPEED_DOES_NOT_FIT, TWINSPEED_TIGHT, TWINSPEED_FITS } twinspeed_verdict;

typedef struct twinspeed_estimate {
  twinspeed_verdict verdict;       /* tight: the prediction fits, but measured peaks of the runtime may not */
  double device_need, device_have; /* bytes of one device, needed (arena and libraries) and existing */
  double node_need, node_have;     /* bytes of host memory of a node, for all its ranks; have 0: not known */
  double disk_need, disk_have;     /* bytes of the disks of one node */
  /* peak bytes of the rank that needs the most memory, by tier and category */
  double bytes[TWINSPEED_TIERS][TWINSPEED_CATEGORIES];
  double step_s, tokens_per_s, model_flops, mfu;
  double communication_s;                     /* seconds of communication that are not overlapped with computation */
  double bubble_s;                            /* seconds of waiting for other pipeline stages */
  double host_s, copies_s, disk_s, loading_s; /* seconds not overlapped: host optimizer, copies, disks, samples */
  double phase_s[TWINSPEED_PHASES];           /* seconds of computation by phase */
  char bottleneck[256];                       /* a sentence that names the bottleneck */
} twinspeed_estimate;
/* Return the name of an index of the arrays above, such as "device", "parameters" and "forward"; NULL after the last
 * one. */
TWINSPEED_API const char *twinspeed_tier_name(int tier);
TWINSPEED_API const char *twinspeed_category_name(int category);
TWINSPEED_API const char *twinspeed_phase_name(int phase);

/* Estimates memory and time of a step from its plan. A job that does not fit is no failure: its verdict says so. */
TWINSPEED_API twinspeed_status twinspeed_estimate_job(const twinspeed_job *job, twinspeed_estimate *answer,
                                                      twinspeed_error *error);

typedef struct twinspeed_check {
  int ranks, ranks_verified;
  double operations; /* number of verified operations */
} twinspeed_check;
/* Verifies the plans of the ranks together: memory, order, collectives, messages and deadlocks. max_ranks: most ranks
 * to verify; 0: as many as a few seconds suffice for. */
TWINSPEED_API twinspeed_status twinspeed_check_job(const twinspeed_job *job, int max_ranks, twinspeed_check *answer,
                                                   twinspeed_error *error);

typedef struct twinspeed_simulation {
  double step_s, tokens_per_s, mfu, exposed_s;
  double bubble; /* share (0 to 1) of the step in which the average rank waits for others */
  double events;
} twinspeed_simulation;
/* Executes the plans in the simulator. fidelity: "analytic", "flow", "message" or "simgrid"; NULL: analytic. Fails with
 * TWINSPEED_ENVIRONMENT if the simulator's module is not installed. */
TWINSPEED_API twinspeed_status twinspeed_simulate_job(const twinspeed_job *job, const char *fidelity,
                                                      twinspeed_simulation *answer, twinspeed_error *error);

/* ---- search ---- */

typedef struct twinspeed_tune_options {
  size_t size;          /* sizeof the structure, set by twinspeed_tune_options_init() */
  int64_t global_batch; /* sequences per step; 0: not fixed */
  int axes;             /* 1: also tensor, pipeline, sequence and expert ranks; 0: not; -1: if needed */
  int workers;          /* processes that the search starts; 0: one for each core */
  int best;             /* most candidates to return */
  double budget_s;      /* time limit of the search in seconds; 0: none */
} twinspeed_tune_options;

typedef struct twinspeed_candidate {
  char name[256]; /* such as "z3_r8_mb4_..." */
  int zero_stage, ranks, pipeline_ranks, tensor_ranks, sequence_ranks, expert_ranks;
  int64_t micro_batch, accumulation;
  char recompute[16];
  double step_s, tokens_per_s, device_need, device_have;
} twinspeed_candidate;

TWINSPEED_API void twinspeed_tune_options_init(twinspeed_tune_options *options);
/* Searches for the configurations that train fastest. *candidates receives *count of them, best first, or none if
 * nothing fits; the caller frees it with twinspeed_free(). Each candidate replaces the batch keys and the ZeRO stage of
 * `options` by its own. */
TWINSPEED_API twinspeed_status twinspeed_tune(const twinspeed_options *options, const twinspeed_tune_options *how,
                                              twinspeed_candidate **candidates, int *count, twinspeed_error *error);
TWINSPEED_API void twinspeed_free(void *memory);

/* ---- custom metrics ---- */

/* The monitors that a configuration enables (tensorboard, csv_monitor, wandb, comet), for a program that trains by
 * other means: DeepSpeed's MonitorMaster. Only one process of a job should open them. */
typedef struct twinspeed_monitor twinspeed_monitor;
/* Creates folders and files. samples: the samples of an earlier run that this one continues, or 0. Fails with
 * TWINSPEED_INVALID if the configuration enables no monitor. */
TWINSPEED_API twinspeed_status twinspeed_monitor_open(const char *config, int64_t samples, twinspeed_monitor **monitor,
                                                      twinspeed_error *error);
/* Writes one number, at `samples` samples since the beginning of the training, to all monitors. tag: at most 128
 * printable ASCII characters without quotes and backslashes, "Train/Samples/accuracy". */
TWINSPEED_API twinspeed_status twinspeed_monitor_write(twinspeed_monitor *monitor, const char *tag, double value,
                                                       int64_t samples, twinspeed_error *error);
/* Closes and frees; NULL is allowed. */
TWINSPEED_API twinspeed_status twinspeed_monitor_close(twinspeed_monitor *monitor, twinspeed_error *error);

/* ---- DeepSpeed's estimators ---- */

typedef struct twinspeed_zero_memory {
  double cpu_bytes, gpu_bytes, largest_layer_bytes;
} twinspeed_zero_memory;
typedef struct twinspeed_zero_request {
  double parameters, largest_layer_parameters; /* largest_layer_parameters: used by stage 3 only */
  int gpus_per_node, nodes;
  int cpu_offload, cpu_offload_params, zero_init;
  double factor;    /* DeepSpeed's "additional_buffer_factor": 1.5 */
  int deepspeed_03; /* 1: stage 2 as DeepSpeed 0.3 computed it */
} twinspeed_zero_request;
/* Return the results of DeepSpeed's estimate_zero2_model_states_mem_needs() and
 * estimate_zero3_model_states_mem_needs(). */
TWINSPEED_API twinspeed_zero_memory twinspeed_zero2(const twinspeed_zero_request *request);
TWINSPEED_API twinspeed_zero_memory twinspeed_zero3(const twinspeed_zero_request *request);
/* Returns the table that DeepSpeed's memory estimator of stage 2 or 3 prints, character by character; NULL if memory is
 * exhausted. The caller frees the text with twinspeed_free(). */
TWINSPEED_API char *twinspeed_zero_table(int stage, const twinspeed_zero_request *request);

/* ---- saved checkpoints, read without ranks ---- */

typedef struct twinspeed_checkpoint twinspeed_checkpoint;
typedef struct twinspeed_checkpoint_facts {
  int64_t steps, skipped, samples, ranks, train_batch, sequence_length;
  int zero_stage, tensors; /* tensors: number of tensors that twinspeed_checkpoint_tensor() describes */
  char path[4096], architecture[64], dtype[16];
} twinspeed_checkpoint_facts;
typedef struct twinspeed_tensor {
  char name[256], state[64], dtype[16]; /* name of the parameter; state such as "parameters", "master weights" */
  int64_t rows, columns;
  uint64_t elements;
} twinspeed_tensor;
/* Opens a checkpoint of a folder; tag NULL: the latest. The caller closes *checkpoint; it is NULL after a failure. */
TWINSPEED_API twinspeed_status twinspeed_checkpoint_open(const char *folder, const char *tag,
                                                         twinspeed_checkpoint **checkpoint, twinspeed_error *error);
TWINSPEED_API void twinspeed_checkpoint_close(twinspeed_checkpoint *checkpoint); /* NULL is allowed */
TWINSPEED_API void twinspeed_checkpoint_describe(const twinspeed_checkpoint *checkpoint,
                                                 twinspeed_checkpoint_facts *facts);
/* Returns the text that twinspeed_save() was given, or ""; it lives until the checkpoint is closed. */
TWINSPEED_API const char *twinspeed_checkpoint_client_state(const twinspeed_checkpoint *checkpoint);
/* Describes the tensor with this index; returns 0 after the last one. */
TWINSPEED_API int twinspeed_checkpoint_tensor(const twinspeed_checkpoint *checkpoint, int index, twinspeed_tensor *out);
/* Reads elements [first, first + count) of a whole tensor, whichever ranks saved it, as float32, verified by their
 * checksums. */
TWINSPEED_API twinspeed_status twinspeed_checkpoint_read(twinspeed_checkpoint *checkpoint, int index, uint64_t first,
                                                         uint64_t count, float *values, twinspeed_error *error);

/* ---- training ---- */

/* An engine trains a job on this machine, as `twinspeed train` does: equal inputs give equal bits. Each rank is a
 * process with an engine of its own; a job of one rank needs no launcher, others are started with mpirun -n RANKS. All
 * calls that take an engine and return a status are collective: every rank makes them in the same order with equal
 * arguments. After a failure other ranks may wait for the one that failed, which should therefore end the job
 * (MPI_Abort, or exit: mpirun ends the others). Several engines may be open in one process.
 *
 *   int rank, ranks;
 *   twinspeed_ranks_start(&rank, &ranks, &error);
 *   options.ranks = ranks;
 *   twinspeed_open(&options, &job, &error);
 *   twinspeed_engine_open(job, NULL, &engine, &error);
 *   for (...) twinspeed_train_batch(engine, &batch, &step, &error);
 *   twinspeed_save(engine, "checkpoints", NULL, 0, NULL, &error);
 *   twinspeed_engine_close(engine);
 *   twinspeed_close(job);
 *   twinspeed_ranks_stop();
 */
typedef struct twinspeed_engine twinspeed_engine;

/* Starts MPI if the process was started by mpirun and MPI does not run yet, and returns this rank and the number of
 * ranks (0 and 1 without a launcher). twinspeed_ranks_stop() ends MPI: it is called once, after all engines are closed,
 * by programs that do not call MPI_Finalize() themselves. */
TWINSPEED_API twinspeed_status twinspeed_ranks_start(int *rank, int *ranks, twinspeed_error *error);
TWINSPEED_API void twinspeed_ranks_stop(void);

typedef struct twinspeed_engine_options {
  size_t size;              /* sizeof the structure, set by twinspeed_engine_options_init() */
  const void *communicator; /* address of an MPI_Comm with the job's ranks; NULL: MPI_COMM_WORLD, or one rank */
  const char *data;         /* file of training data, as --data; NULL: each step is given its batch */
  const char *eval_data;    /* file for evaluations, as --eval-data; NULL: each evaluation is given its batch */
  const char *init_from;    /* weights to begin with, as --init-from; NULL: random ones */
  int evaluation;           /* 1 (the default): twinspeed_eval_batch() may be called; its plan may need more memory */
  int ignore_memory;        /* 1: the engine is opened although this machine seems to have too little memory */
  int64_t eval_batches;     /* batches of eval_data in an evaluation; 0: all */
  int64_t device_limit;     /* bytes that a rank may use of its device; 0: all */
  /* receives lines about the training (level 0: error, 1: warning, 2: information); NULL: they are dropped */
  void (*log)(void *user, int level, const char *line);
  void *user;
} twinspeed_engine_options;
TWINSPEED_API void twinspeed_engine_options_init(twinspeed_engine_options *options);
/* Creates memory and initial weights of this rank. options may be NULL; its strings are only read by the call. The job
 * has to stay open until the engine is closed. Fails with TWINSPEED_NO if this machine has too little memory, and with
 * TWINSPEED_ENVIRONMENT if the engine's module is not installed. */
TWINSPEED_API twinspeed_status twinspeed_engine_open(const twinspeed_job *job, const twinspeed_engine_options *options,
                                                     twinspeed_engine **engine, twinspeed_error *error);
TWINSPEED_API void twinspeed_engine_close(twinspeed_engine *engine); /* collective; NULL is allowed */
TWINSPEED_API int twinspeed_engine_rank(const twinspeed_engine *engine);
/* Returns the number of steps since the beginning of the training; not collective. */
TWINSPEED_API int64_t twinspeed_engine_steps(const twinspeed_engine *engine);

/* A global batch in memory: micro_batch x accumulation x replicas samples, equal on all ranks, of which each takes its
 * share. tokens: [samples][sequence_length + 1]; each token is to be predicted from those before it. targets:
 * [samples][sequence_length], which replace the next tokens; a negative one does not count in the loss. NULL: the next
 * tokens. Networks of another objective (masked tokens) make their targets from the tokens, and take none. */
typedef struct twinspeed_batch {
  const int32_t *tokens, *targets;
} twinspeed_batch;

typedef struct twinspeed_step {
  int64_t step, samples;                                  /* numbers since the beginning of the training */
  double loss, learning_rate, gradient_norm;              /* gradient_norm: before clipping */
  double auxiliary_loss;                                  /* of experts' routers */
  double loss_scale;                                      /* of this step; 1 without fp16 */
  int skipped;                                            /* 1: an overflow in fp16; no weight was changed */
  double seconds, tokens_per_s, mfu;                      /* mfu 0: the devices' peak is not known */
  double data_s;                                          /* seconds until the batch was in place */
  int is_timed;                                           /* 1: the next four are known (wall_clock_breakdown) */
  double forward_s, backward_s, reduction_s, optimizer_s; /* reduction_s is part of backward_s */
  double memory_bytes[TWINSPEED_TIERS];                   /* of this rank's arenas */
} twinspeed_step;

/* Runs one whole step: all micro-batches, and the optimizer. batch NULL: the next batch of the engine's data. step may
 * be NULL. Fails with TWINSPEED_RANK if the loss is not finite. */
TWINSPEED_API twinspeed_status twinspeed_train_batch(twinspeed_engine *engine, const twinspeed_batch *batch,
                                                     twinspeed_step *step, twinspeed_error *error);
/* Computes the mean loss of a batch, or (batch NULL) of the engine's eval_data, without changing any weight. */
TWINSPEED_API twinspeed_status twinspeed_eval_batch(twinspeed_engine *engine, const twinspeed_batch *batch,
                                                    double *loss, twinspeed_error *error);
/* Return and set the learning rate of the next step. Once set, it replaces the schedule's until it is set again; a
 * negative one brings back the schedule. Every rank sets the same. */
TWINSPEED_API double twinspeed_learning_rate(const twinspeed_engine *engine);
TWINSPEED_API void twinspeed_set_learning_rate(twinspeed_engine *engine, double learning_rate);

/* Run a step in parts, for each of its micro-batches in this order; values are those of twinspeed_train_batch() to the
 * last bit. batch: micro_batch x replicas samples of the global batch, or NULL: the engine's data. *loss (may be NULL):
 * the mean loss of the micro-batch over all replicas. After the last micro-batch twinspeed_step_micro_batch() runs the
 * optimizer and fills *step; after others it only counts, and step->step is 0. Fail with TWINSPEED_UNSUPPORTED in
 * pipelines, as DeepSpeed does, and with TWINSPEED_USAGE in another order. */
TWINSPEED_API twinspeed_status twinspeed_forward(twinspeed_engine *engine, const twinspeed_batch *batch, double *loss,
                                                 twinspeed_error *error);
TWINSPEED_API twinspeed_status twinspeed_backward(twinspeed_engine *engine, twinspeed_error *error);
/* Returns 1 during the last micro-batch of a step, up to its twinspeed_step_micro_batch(); not collective. */
TWINSPEED_API int twinspeed_is_gradient_accumulation_boundary(const twinspeed_engine *engine);
TWINSPEED_API twinspeed_status twinspeed_step_micro_batch(twinspeed_engine *engine, twinspeed_step *step,
                                                          twinspeed_error *error);

/* ---- parameters, gradients and optimizer states of an engine ---- */

typedef struct twinspeed_parameter {
  char name[256];
  int64_t rows, columns;
  uint64_t elements; /* rows x columns; if each rank has different experts, the elements of all of them */
  int frozen;        /* 1: it is not trained */
} twinspeed_parameter;
/* Describes the parameter with this index; returns 0 after the last one. Not collective. */
TWINSPEED_API int twinspeed_parameter_describe(const twinspeed_engine *engine, int index, twinspeed_parameter *out);
/* Returns the name of a state: "parameter" (float32, the master weights if there are any), "gradient", then those of
 * the optimizer as checkpoints name them, such as "first moments" and "second moments"; NULL after the last one.
 * PyTorch's names, "exp_avg", "exp_avg_sq" and "sum", are understood, too. */
TWINSPEED_API const char *twinspeed_state_name(const twinspeed_engine *engine, int index);

/* Gathers a state of the whole parameter NAME from all ranks, devices, host memory and disks into `values` on every
 * rank: `elements` float32 numbers, rows one after another. What is read is what a checkpoint saved now contains.
 * "gradient": that of the mean loss of the global batch, before clipping; it can be read and set between the
 * twinspeed_backward() of the last micro-batch and twinspeed_step_micro_batch(). */
TWINSPEED_API twinspeed_status twinspeed_get_full(twinspeed_engine *engine, const char *name, const char *state,
                                                  float *values, twinspeed_error *error);
/* Replaces a state of the whole parameter NAME on all ranks by the values of `rank`; other ranks may pass NULL. Weights
 * in narrower types are rounded from these values. Not within a step in parts, except gradients. */
TWINSPEED_API twinspeed_status twinspeed_set_full(twinspeed_engine *engine, const char *name, const char *state,
                                                  int rank, const float *values, twinspeed_error *error);
/* Reads the elements that this rank itself holds, in the order of its memory. values NULL: only *count is set. Not
 * collective. */
TWINSPEED_API twinspeed_status twinspeed_get_local(twinspeed_engine *engine, const char *name, const char *state,
                                                   float *values, uint64_t *count, twinspeed_error *error);
/* Replaces the elements that each rank holds by the values that this rank passes. Where several ranks hold an element,
 * the value of the highest rank is used. */
TWINSPEED_API twinspeed_status twinspeed_set_local(twinspeed_engine *engine, const char *name, const char *state,
                                                   const float *values, twinspeed_error *error);

/* A scope in which whole parameters are in memory, as DeepSpeed's GatheredParameters. twinspeed_gather() opens it, and
 * twinspeed_gathered_values() returns the values of the parameter names[index], which may be changed.
 * twinspeed_gathered_end() ends it: modifier_rank >= 0: the values of that rank replace the parameters on all ranks;
 * -1: nothing is written back. The scope is freed also after a failure. */
typedef struct twinspeed_gathered twinspeed_gathered;
TWINSPEED_API twinspeed_status twinspeed_gather(twinspeed_engine *engine, const char *const *names, int count,
                                                twinspeed_gathered **scope, twinspeed_error *error);
TWINSPEED_API float *twinspeed_gathered_values(twinspeed_gathered *scope, int index);
TWINSPEED_API twinspeed_status twinspeed_gathered_end(twinspeed_gathered *scope, int modifier_rank,
                                                      twinspeed_error *error);

enum { TWINSPEED_TAG_SIZE = 256 };
/* Saves a checkpoint FOLDER/global_step<N>, which `twinspeed train --resume` reads, too; it is complete when the call
 * returns. client_state: a text in UTF-8 that is stored in it, or NULL. keep: number of checkpoints that stay in the
 * folder; 0: all. tag: receives the checkpoint's name; may be NULL. */
TWINSPEED_API twinspeed_status twinspeed_save(twinspeed_engine *engine, const char *folder, const char *client_state,
                                              int64_t keep, char tag[TWINSPEED_TAG_SIZE], twinspeed_error *error);
/* Replaces weights, optimizer states and counters by those of a checkpoint, saved by any number of ranks. tag NULL: the
 * latest. *client_state: the text that was stored, or "", until the next load; may be NULL. */
TWINSPEED_API twinspeed_status twinspeed_load(twinspeed_engine *engine, const char *folder, const char *tag,
                                              const char **client_state, twinspeed_error *error);

#ifdef __cplusplus
}
#endif
#endif
