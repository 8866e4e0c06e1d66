/* ds_config.json: one typed table of keys drives parsing, validation, defaults, the effective configuration, the JSON
 * Schema and the documentation. This header is what the rest of the engine reads. */
#ifndef TWS_CONFIG_DS_CONFIG_H
#define TWS_CONFIG_DS_CONFIG_H

#include <stdint.h>
#include "base/dtype.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/status.h"
#include "config/axes.h"
#include "config/optimizer.h"

/* Algorithms of attention among ranks that share a sequence. */
typedef enum tws_sequence_algorithm { TWS_SEQUENCE_ULYSSES, TWS_SEQUENCE_RING } tws_sequence_algorithm;

/* twinspeed.matmul_dtype: of what enters the products of 16-bit layers. */
#define TWS_MATMUL_WORDS "auto|fp8|fp8-rowwise|mxfp8|nvfp4"
typedef enum tws_matmul_dtype {
  TWS_MATMUL_AUTO,
  TWS_MATMUL_FP8,
  TWS_MATMUL_FP8_ROWWISE,
  TWS_MATMUL_MXFP8,
  TWS_MATMUL_NVFP4,
  TWS_MATMUL_COUNT
} tws_matmul_dtype;
const char *tws_matmul_dtype_name(tws_matmul_dtype dtype);
/* Whose configuration a file is. */
typedef enum tws_config_format {
  TWS_FORMAT_NONE, /* there is no file */
  TWS_FORMAT_DEEPSPEED,
  TWS_FORMAT_HUGGING_FACE, /* a ds_config.json with "auto" for Hugging Face's Trainer */
  TWS_FORMAT_MEGATRON,
  TWS_FORMAT_BRIDGE,
  TWS_FORMAT_TORCHTITAN,
  TWS_FORMAT_ACCELERATE,
  TWS_FORMAT_ACCELERATE_FSDP,
  TWS_FORMAT_TRAINER,
  TWS_FORMAT_AXOLOTL,
  TWS_FORMAT_LLAMA_FACTORY,
  TWS_FORMAT_COUNT
} tws_config_format;
typedef enum tws_recompute {
  TWS_RECOMPUTE_NONE,
  TWS_RECOMPUTE_SELECTIVE,
  TWS_RECOMPUTE_FULL,
  TWS_RECOMPUTE_OPERATIONS,
  TWS_RECOMPUTE_COUNT
} tws_recompute;
/* Values of twinspeed.recompute_operations: kinds of operations whose results are recomputed in the backward pass. */
typedef enum tws_recomputed {
  TWS_RECOMPUTED_NORM,
  TWS_RECOMPUTED_ACTIVATION,
  TWS_RECOMPUTED_SUM,
  TWS_RECOMPUTED_PRODUCT,
  TWS_RECOMPUTED_ATTENTION,
  TWS_RECOMPUTED_MLP, /* products on both sides of an activation function, and it */
  TWS_RECOMPUTED_COUNT
} tws_recomputed;
typedef enum tws_scheduler {
  TWS_SCHEDULER_NONE,
  TWS_SCHEDULER_LR_RANGE_TEST,
  TWS_SCHEDULER_ONE_CYCLE,
  TWS_SCHEDULER_WARMUP,
  TWS_SCHEDULER_WARMUP_DECAY,
  TWS_SCHEDULER_WARMUP_COSINE
} tws_scheduler;

typedef struct tws_zero_config {
  int stage;
  int64_t reduce_bucket_size; /* elements */
  int overlap_comm;           /* resolved: unset means on at stage 3 only */
  int reduce_scatter, round_robin_gradients;
  int allgather_sequential;        /* stage 3: one all-gather for each parameter */
  int multi_rank_bucket_allreduce; /* zero_optimization.use_multi_rank_bucket_allreduce */
  int64_t prefetch_bucket_size, param_persistence_threshold, model_persistence_threshold;
  int64_t max_live_parameters, max_reuse_distance, sub_group_size;
  int quantized_gradients;              /* zero_quantized_gradients: see tws_config_quantizes_gradients() */
  int64_t node_ranks;                   /* twinspeed.zero_node_ranks: see tws_config_node_ranks() */
  int quantized_weights;                /* zero_quantized_weights: see tws_config_quantizes_weights() */
  int quantized_frozen;                 /* zero_quantized_nontrainable_weights: see tws_config_frozen_type() */
  int64_t secondary_ranks;              /* zero_hpz_partition_size: see tws_config_secondary_ranks() */
  int64_t shard_ranks;                  /* mics_shard_size: see tws_config_shard_ranks() */
  int hierarchical_gather;              /* mics_hierarchical_params_gather: see tws_config_gather_ranks() */
  int by_block;                         /* twinspeed.shard_by_block: as FSDP wraps layers */
  int offload_optimizer, offload_param; /* 0 none, 1 cpu, 2 nvme */
  int offload_optimizer_pinned;         /* offload_optimizer.pin_memory: page-locked */
  int pipeline_read, pipeline_write;    /* offload_optimizer: reads and writes of the disk overlap with the update */
  double offload_optimizer_ratio;       /* the share of sub-groups that the host updates */
  int offload_param_pinned;             /* offload_param.pin_memory */
  int64_t param_buffer_count, param_buffer_size, max_in_cpu; /* offload_param, on nvme; sizes in elements */
} tws_zero_config;

/* Updates in two parts (the section "zero_optimization.zenflow"); the device updates chosen columns, the host the rest.
 * Intervals are 0 where the configuration leaves them to Twinspeed: read them by tws_zenflow_*(). */
typedef enum tws_zenflow_strategy { TWS_ZENFLOW_AUTO, TWS_ZENFLOW_STEP, TWS_ZENFLOW_EPOCH } tws_zenflow_strategy;
typedef struct tws_zenflow {
  int on;            /* the section is there */
  double topk_ratio; /* share of the columns of a matrix */
  int strategy;      /* what select_interval counts: tws_zenflow_strategy */
  int64_t select_interval, update_interval, steps_per_epoch;
  int overlap_step, offload;
  int64_t warm_up; /* full_warm_up_rounds */
} tws_zenflow;

/* Parameters of reading and writing a disk (the section "aio"). */
typedef struct tws_aio {
  int64_t block_size;  /* bytes of a request */
  int64_t queue_depth; /* requests in flight of each thread */
  int64_t threads;     /* intra_op_parallelism */
  int single_submit;   /* one request a call */
  int overlap_events;  /* more are submitted while others are waited for */
} tws_aio;

typedef struct tws_flops_section {
  int enabled, detailed;
  int64_t profile_step, module_depth, top_modules; /* module_depth -1: all */
  const char *output_file;                         /* in the store; NULL: standard output */
} tws_flops_section;

/* A monitor (traces/monitor.h): files below output_path/job_name. */
typedef struct tws_monitor_section {
  int enabled;
  const char *output_path, *job_name; /* in the store, or the default */
} tws_monitor_section;

typedef struct tws_wandb_section {
  int enabled;
  const char *group, *team, *project; /* NULL: none */
} tws_wandb_section;

typedef struct tws_comet_section {
  int enabled, online; /* online: 1 asked for, which nothing is; -1: not given */
  int64_t samples_log_interval;
  const char *project, *workspace, *experiment_name, *experiment_key, *mode; /* NULL: none */
} tws_comet_section;

typedef enum tws_quantization { TWS_QUANTIZATION_NONE, TWS_QUANTIZATION_INT8, TWS_QUANTIZATION_NF4 } tws_quantization;
typedef enum tws_bind_threads { TWS_THREADS_AUTO, TWS_THREADS_SHARE, TWS_THREADS_FREE } tws_bind_threads;

typedef struct tws_config {
  /* batch triple; 0 means not given until tws_config_resolve() */
  int64_t train_batch_size, micro_batch_size, accumulation_steps;
  double gradient_clipping;       /* 0: none */
  tws_dtype dtype;                /* from fp16.enabled, bf16.enabled */
  tws_dtype accumulation_dtype;   /* data_types.grad_accum_dtype or dtype */
  int communication_dtype;        /* communication_data_type: 1 + a tws_dtype, 0: not given; */
  int sequence_communication;     /* seq_parallel_communication_data_type likewise: tws_config_communication_dtype() */
  int bf16_masters, bf16_moments; /* read by tws_config_bf16_masters(), _moments() */
  int dropout;                    /* twinspeed.dropout: what the model's file says of dropout is done in training */
  int stochastic_rounding;        /* twinspeed.stochastic_rounding: of what is updated without a float32 copy */
  struct {                        /* read when dtype is F16; config/loss_scale.h says what they do */
    double loss_scale;            /* fixed; 0: adapted */
    int64_t initial_power, window, hysteresis, minimum;
    int consecutive;
  } fp16;
  tws_zero_config zero;
  const char *optimizer_path; /* zero_optimization.offload_optimizer.nvme_path, or NULL */
  int cpu_checkpointing;      /* activation_checkpointing: what enters a recomputed layer waits in the host's memory */
  int partition_activations;  /* likewise: tensor-parallel ranks share out what all of them have */
  const char *param_path;     /* likewise of offload_param */
  tws_aio aio;
  tws_flops_section flops_profiler;
  int wall_clock_breakdown; /* the times of the passes of each step */
  tws_optimizer optimizer;  /* others than those of config/optimizers.def are refused by name */
  double lr, beta1, beta2, epsilon, weight_decay, max_coeff, min_coeff;
  int adam_w_mode, bias_correction;
  tws_scheduler scheduler;
  struct {                 /* scheduler.params, meaning by type, defaults of the specification */
    double min_lr, max_lr; /* max_lr < 0: the optimizer's lr */
    int64_t warmup_steps;
    int64_t total_steps; /* 0: "auto", the length of the run: whoever trains fills it in */
    int warmup_linear;   /* WarmupLR family: linear (1) or log (0) */
    double warmup_min_ratio, cos_min_ratio;
    double range_step_rate;
    int64_t range_step_size;
    int range_staircase;
    double cycle_min_lr, cycle_max_lr, cycle_decay_rate;
    double cycle_first, cycle_second;                /* steps; second < 0: as the first */
    int64_t cycle_first_stairs, cycle_second_stairs; /* 0: continuous; second < 0: as the first */
    int64_t cycle_decay_size;
    int cycle_momentum;
    double cycle_min_momentum, cycle_max_momentum, cycle_momentum_rate;
  } schedule;
  int64_t steps_per_print; /* 0: every step is the program's choice */
  /* pipeline parallelism: stages 0 or 1 is none (pipeline.stages); the rest is read when there are more */
  int64_t pipeline_stages;
  int64_t virtual_stages;                 /* twinspeed.virtual_stages: chunks of layers a stage holds */
  int pipe_partitioned, grad_partitioned; /* pipeline.*: tensor ranks each send a part of what stages exchange */
  int pipeline_schedule; /* twinspeed.pipeline_schedule: tws_pipeline_kind of plan/pipeline_schedule.h */
  /* tensor and sequence parallelism: 0 or 1 rank is none */
  int64_t tensor_ranks;          /* tensor_parallel.autotp_size */
  int tensor_overlap;            /* tensor_parallel.tp_overlap_comm */
  int64_t tensor_chunks;         /* twinspeed.tensor_overlap_chunks: segments of a product whose collective is
                                    overlapped, 2 */
  int tensor_sequence_parallel;  /* twinspeed.tensor_sequence_parallel: tokens are split where weights are not */
  int64_t sequence_ranks;        /* sequence_parallel_size */
  int sequence_algorithm;        /* twinspeed.sequence_algorithm: tws_sequence_algorithm */
  int64_t expert_ranks;          /* twinspeed.expert_parallel_size: of the replicas */
  int64_t expert_node_ranks;     /* twinspeed.expert_node_ranks: that exchange first; 0, 1: one exchange among all */
  int expert_dispatch_fp8;       /* twinspeed.expert_dispatch_fp8: activations go to experts in 8 bits */
  double expert_capacity_factor; /* twinspeed.expert_capacity_factor, 0: every token has a slot */
  int expert_tensor_parallel;    /* twinspeed.expert_tensor_parallel: tensor ranks split each expert */
  int expert_dropless;           /* twinspeed.expert_dropless: the experts of a rank share their slots */
  double expert_bound;           /* twinspeed.expert_bound: how many those are, in even shares */
  double expert_bias_rate;       /* twinspeed.expert_bias_rate: of biases that balance experts */
  const char *expert_load;       /* twinspeed.expert_load, in the store; NULL: uniform */
  int data_before_experts;       /* use_data_before_expert_parallelism */
  tws_axis_order axis_order;     /* twinspeed.axis_order */
  int64_t loss_tiles, mlp_tiles; /* twinspeed.loss_tiles, .mlp_tiles: chunks of a micro-batch's tokens, 0 or 1: whole */
  int64_t linear_tile_size;      /* twinspeed.linear_tile_size: most elements of a weight gathered at once, 0: all */
  int64_t attention_chunks;      /* twinspeed.attention_chunks: 1, as chunks need an offload tier */
  int64_t ignored_token;         /* twinspeed.ignored_token: targets with this id do not count; -1: none */
  /* section "twinspeed", ours; DeepSpeed ignores unknown top-level sections */
  tws_matmul_dtype matmul_dtype;
  int matmul_keeps_wide; /* no key: software that keeps what enters narrow products in 16 bits, and casts it again */
  int casts_assumed;     /* no key: its casts are costs of products, as another runtime has them, and not in plans */
  tws_recompute recompute;
  double recompute_budget;    /* of the products among them, the share whose results are kept */
  int recompute_whole;        /* full: layers run again to their ends, whether or not anything reads what comes out */
  int64_t recompute_every;    /* layers: 1 all, 2 every second one... */
  int64_t sequence_length;    /* 0: the model's number of positions */
  int64_t target_length;      /* 0: as many */
  int64_t document_end_token; /* twinspeed.document_end_token: of packed documents; -1: a sample is one text */
  int64_t document_length;    /* twinspeed.document_length: expected of them, 0: unknown */
  int bind_threads;           /* twinspeed.bind_threads: tws_bind_threads */
  tws_zenflow zenflow;
  int delayed_update;      /* twinspeed.delayed_update: the host updates one step late, overlapped with the device's
                              work */
  int64_t delayed_warm_up; /* twinspeed.delayed_update_warm_up: steps before which it does not */
  int64_t seed;
  int threads;                 /* per host rank; 0: cores / ranks of the node, at least 1 */
  int64_t vocabulary_multiple; /* pad the vocabulary; 1: no padding */
  int64_t ranks;               /* 0: as launched */
  struct {                     /* twinspeed.lora, in the words of PEFT; r 0: none */
    int64_t r;
    double alpha, dropout;
    int rslora;
  } lora;
  struct {    /* twinspeed.frozen_quantization */
    int type; /* tws_quantization */
    int64_t block, scale_block;
  } quantization;
  struct tws_config_store *store; /* every key as given, for echo, schema and warnings */
  /* In the store; NULL: none given. */
  const char *pipeline_partition;         /* pipeline.partition; by parameters */
  const char *recompute_operations;       /* names with commas; NULL: those before attention */
  const struct cJSON *lora_targets;       /* twinspeed.lora.target_modules: a text or a list of them */
  const struct cJSON *frozen_parameters;  /* patterns of names */
  const struct cJSON *quantization_skips; /* twinspeed.frozen_quantization.skip_modules, as lora_targets */
  tws_monitor_section tensorboard, csv_monitor;
  tws_wandb_section wandb;
  tws_comet_section comet;
  tws_config_format format; /* of the file that was loaded: tws_config_format_of() */
} tws_config;

/* Values that "auto" may be resolved from (specification 01 section 4). */
typedef struct tws_auto_context {
  int64_t hidden_size;
} tws_auto_context;

/* Parse and validate. Unknown key: TWS_INVALID with file:line:column and a did-you-mean. Destroy with
 * tws_config_destroy(). tws_config_default() gives what an empty object gives. */
tws_code tws_config_load(const char *path, tws_config **out, tws_error *err);
tws_code tws_config_from_json(const tws_json *json, tws_config **out, tws_error *err);
tws_code tws_config_default(tws_config **out, tws_error *err);
tws_code tws_config_clone(const tws_config *config, tws_config **out, tws_error *err);
void tws_config_destroy(tws_config *config);

/* Is the key with this dotted path given, by the file or by an override? */
int tws_config_gives(const tws_config *config, const char *path);
/* Has it been said that the model is of this type, or of another? "auto" says nothing; "bf16 off" only that it
 * is not. */
int tws_config_says_dtype(const tws_config *config, tws_dtype dtype);

/* Returns the format of the file that was loaded. DEEPSPEED is HUGGING_FACE where a value is "auto". */
tws_config_format tws_config_format_of(const tws_config *config);

/* Set one key by its dotted path from text, as a command-line override ("zero_optimization.stage" "3"); same
 * validation, the place is "command line". A bare word is a string; an object sets each of its members. The fields of
 * the key's whole top-level section are read anew, so set keys before changing fields by hand, and resolve after it:
 * values that an earlier tws_config_resolve() derived are derived again. */
tws_code tws_config_set(tws_config *config, const char *path, const char *json_value, tws_error *err);

/* Resolve "auto", the batch triple for the replicas that `ranks` ranks make (floor division, then the equality check)
 * and the interactions of specification 01 section 5. "auto" with nothing to take it from is the key's default; the
 * three ZeRO sizes need context->hidden_size (context may be NULL without them). May be called again, for other ranks.
 * TWS_INVALID: contradictory keys; TWS_UNSUPPORTED: valid, and not in Twinspeed (offload, other optimizers). */
tws_code tws_config_resolve(tws_config *config, int64_t ranks, const tws_auto_context *context, tws_error *err);
/* Checks the rules that do not depend on the number of ranks, and that some number satisfies the batch keys. */
tws_code tws_config_check(const tws_config *config, tws_error *err);
/* The elasticity section. TWS_INVALID: there is none, or it is not enabled. */
struct tws_elastic;
tws_code tws_config_elastic(const tws_config *config, struct tws_elastic *out, tws_error *err);
/* Returns 1 if elasticity.enabled is true: the batch then follows from the ranks, and no batch key may be given. */
int tws_config_is_elastic(const tws_config *config);
/* Computes the batch that elasticity chooses for `ranks` ranks, of which each replica takes ranks / replicas.
 * TWS_INVALID: there is none, with the reason. */
tws_code tws_config_elastic_batch(const tws_config *config, int64_t ranks, int64_t replicas, int64_t *micro,
                                  int64_t *accumulation, tws_error *err);

/* Ranks of a replica by axis, and the virtual stages of a pipeline stage: keys that are not given are 1. */
typedef struct tws_division {
  int pipeline, tensor, sequence, virtual_stages;
} tws_division;
tws_division tws_config_division(const tws_config *config);

/* The type in which gradients are reduced among replicas, and among sequence ranks with them: the model's unless a key
 * gives another. DeepSpeed takes fp32 in place of the model's where there are sequence ranks. */
static inline tws_dtype tws_config_communication_dtype(const tws_config *config) {
  const int apart = config->sequence_ranks > 1 && config->sequence_communication;
  const int given = apart ? config->sequence_communication : config->communication_dtype;
  return given ? (tws_dtype)(given - 1) : config->dtype;
}
/* Returns 1 if activation checkpoints are kept in host memory. */
static inline int tws_config_checkpoints_on_host(const tws_config *config) {
  return config->cpu_checkpointing && config->recompute == TWS_RECOMPUTE_FULL;
}
/* Returns 1 if sequence ranks pass keys and values around a ring. */
static inline int tws_config_is_ring(const tws_config *config) {
  return config->sequence_ranks > 1 && config->sequence_algorithm == TWS_SEQUENCE_RING;
}
/* Returns 1 if parameters of stage 3 are kept outside the device between uses. */
static inline int tws_config_fetches(const tws_config *config) {
  return config->zero.stage == 3 && config->zero.offload_param;
}
/* Returns 1 if optimizer states or parameters are kept outside the device between uses. */
static inline int tws_config_offloads(const tws_config *config) {
  const tws_zero_config *z = &config->zero;
  return (z->stage > 0 && z->offload_optimizer) || tws_config_fetches(config);
}
/* The folder for swap files; NULL: nothing is offloaded to a disk, or none is given. */
static inline const char *tws_config_disk(const tws_config *config) {
  const tws_zero_config *z = &config->zero;
  const int optimizer = z->stage > 0 && z->offload_optimizer == 2, parameters = z->stage == 3 && z->offload_param == 2;
  if (optimizer && config->optimizer_path) return config->optimizer_path;
  return parameters ? config->param_path : NULL;
}

/* The first returns 1 if the bfloat16 parameters are the only copy of the weights, the second if moments are bfloat16
 * too. */
static inline int tws_config_bf16_masters(const tws_config *config) {
  return config->dtype == TWS_BF16 && config->bf16_masters;
}
static inline int tws_config_bf16_moments(const tws_config *config) {
  return tws_config_bf16_masters(config) && config->bf16_moments;
}

/* Return ZenFlow's intervals in steps, with "auto" and epochs resolved. Counted from the end of the warm-up, the host
 * updates after every tws_zenflow_update_interval()-th step, and columns are selected anew after every
 * tws_zenflow_select_interval()-th, a multiple of it. The warm-up has at least one step. */
int64_t tws_zenflow_update_interval(const tws_config *config);
int64_t tws_zenflow_select_interval(const tws_config *config);
int64_t tws_zenflow_warm_up(const tws_config *config);

/* Ranks along an axis that a key says; 1 along others, as along "data". */
int tws_config_axis_ranks(const tws_config *config, tws_axis axis);
/* Returns zero_hpz_partition_size where it has an effect: the adjacent ranks that hold a secondary partition of
 * gathered parameters; otherwise 0. */
int64_t tws_config_secondary_ranks(const tws_config *config);
/* Returns mics_shard_size, where it has an effect: the adjacent ranks that partition the model among them; 0: all ranks
 * do. */
int64_t tws_config_shard_ranks(const tws_config *config);
/* Returns how many of these are on one node and gather among themselves, after a gather between nodes; 0: all gather at
 * once. */
int64_t tws_config_gather_ranks(const tws_config *config);
/* Returns 1 if training freezes some parameters. */
int tws_config_freezes(const tws_config *config);
/* Returns how many steps of a run of `steps` a printed line stands for: `asked` where it is above 0, else
 * steps_per_print; where neither is given, each of up to 40 steps is printed, and 20 lines of longer runs. */
int64_t tws_config_print_interval(const tws_config *config, int64_t asked, int64_t steps);
/* zero_quantized_weights, where it has an effect: parameters are gathered as 8-bit codes. */
static inline int tws_config_quantizes_weights(const tws_config *config) {
  return config->zero.stage == 3 && config->zero.quantized_weights;
}
/* In what frozen weights are kept: twinspeed.frozen_quantization, or zero_quantized_nontrainable_weights. */
static inline tws_quantization tws_config_frozen_type(const tws_config *config) {
  if (config->quantization.type == TWS_QUANTIZATION_NONE && config->zero.quantized_frozen && tws_config_freezes(config))
    return TWS_QUANTIZATION_INT8;
  return (tws_quantization)config->quantization.type;
}
/* zero_quantized_gradients likewise: gradients of matrices are reduced as 4-bit codes. */
static inline int tws_config_quantizes_gradients(const tws_config *config) {
  return config->zero.stage == 3 && config->zero.quantized_gradients;
}
/* Returns the number of adjacent ranks that ZeRO treats as a node: zero_hpz_partition_size, otherwise, for quantized
 * gradients, twinspeed.zero_node_ranks; 0: it does not distinguish nodes. */
int64_t tws_config_node_ranks(const tws_config *config);
/* Returns how many of `replicas` replicas ZeRO treats as those of a node; 0: it does not distinguish nodes. */
int tws_config_node_replicas(const tws_config *config, int64_t replicas);
/* Likewise of replicas that MiCS takes together: those of a group, and of them those of a node; 0: they are not in
 * groups, and groups not in nodes. With sequence ranks a group or node may be one replica. */
int tws_config_group_replicas(const tws_config *config, int64_t replicas);
int tws_config_group_node_replicas(const tws_config *config);
/* Returns 1 if ranks that share experts run two-level all-to-alls, first inside groups of
 * twinspeed.expert_node_ranks. */
int tws_config_two_steps(const tws_config *config);
/* Ranks that one replica of the model takes: those along all axes but "data". */
int64_t tws_config_model_ranks(const tws_config *config);
/* Replicas that `ranks` ranks make; TWS_INVALID when the ranks of a replica do not divide them. */
tws_code tws_config_replicas(const tws_config *config, int64_t ranks, int64_t *replicas, tws_error *err);
/* Returns the number that the padded vocabulary is a multiple of: vocabulary_multiple and the tensor ranks both divide
 * it. */
int64_t tws_config_vocabulary_multiple(const tws_config *config);

/* Learning rate for the optimizer step with 0-based index `step`, i.e. after step calls... of the scheduler
 * (specification 06 section 5: golden k = number of step() calls; lr used by optimizer step s is that of k = s). */
double tws_config_lr(const tws_config *config, int64_t k);
/* Betas of Adam at the same k: OneCycle with cycle_momentum moves the first and makes the second 0.99, every other
 * schedule leaves them alone. */
void tws_config_betas(const tws_config *config, int64_t k, double *beta1, double *beta2);

/* Reports into text: the effective configuration as JSON (valid ds_config.json, every honoured key), the JSON Schema of
 * all keys, and one line for each key that was given another value than its default and has no effect here, with the
 * reason, and for each unknown key. */
tws_code tws_config_print(const tws_config *config, int all_keys, tws_text *out, tws_error *err);
/* Prints the keys that were given in the file or set since, without defaults, so that other programs find only keys
 * that the user chose. */
tws_code tws_config_print_given(const tws_config *config, tws_text *out, tws_error *err);
/* Computes the fingerprint of the keys that have an effect on what is computed, by their effective values: equal for
 * equal values. */
tws_code tws_config_fingerprint(const tws_config *config, uint64_t *out, tws_error *err);
tws_code tws_config_print_schema(tws_text *out, tws_error *err);
tws_code tws_config_no_effect(const tws_config *config, tws_text *out, int *count, tws_error *err);

/* A line for each value that is taken otherwise than it was given, a fraction of a count, and one for all keys that are
 * "auto" and have their defaults or what the model says: which these are, and the flags that set them. */
tws_code tws_config_notes(const tws_config *config, tws_text *out, int *count, tws_error *err);

const char *tws_recompute_name(tws_recompute recompute);
/* A bit for each tws_recomputed; -1: a list of something else. */
int tws_recompute_list(const char *names);
/* Returns 1 if whole layers or whole MLPs are recomputed. */
int tws_config_recomputes_blocks(const tws_config *config);

#endif
