/* Configurations (ds_config.json): one table of keys with types is the source of parsing, validation, defaults, the
 * effective configuration, the JSON Schema and the documentation. The rest of the program reads configurations through
 * this header. */
#ifndef TWS_CONFIG_DS_CONFIG_H
#define TWS_CONFIG_DS_CONFIG_H

#include <stdint.h>
#include "base/dtype.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/status.h"
#include "config/axes.h"
#include "config/optimizer.h"

/* The algorithm by which ranks that share a sequence compute attention. */
typedef enum tws_sequence_algorithm { TWS_SEQUENCE_ULYSSES, TWS_SEQUENCE_RING } tws_sequence_algorithm;

/* twinspeed.matmul_dtype: the type to which operands of matrix products are cast in layers with 16-bit parameters. */
#define TWS_MATMUL_WORDS "auto|fp8|fp8-rowwise|mxfp8|nvfp4"
typedef enum tws_matmul_dtype {
  TWS_MATMUL_AUTO,
  TWS_MATMUL_FP8,
  TWS_MATMUL_FP8_ROWWISE,
  TWS_MATMUL_MXFP8,
  TWS_MATMUL_NVFP4,
  TWS_MATMUL_COUNT
} tws_matmul_dtype;
/* twinspeed.fp8_recipe: what the scale of a tensor in 8 bits is computed from. */
#define TWS_FP8_RECIPE_WORDS "tensorwise|delayed"
typedef enum tws_fp8_recipe {
  TWS_FP8_TENSORWISE, /* the tensor's largest absolute value (current scaling) */
  TWS_FP8_DELAYED     /* the largest ones of the last steps (delayed scaling) */
} tws_fp8_recipe;
const char *tws_matmul_dtype_name(tws_matmul_dtype dtype);
/* The program in whose format a configuration file is. */
typedef enum tws_config_format {
  TWS_FORMAT_NONE, /* there is no file */
  TWS_FORMAT_DEEPSPEED,
  TWS_FORMAT_HUGGING_FACE, /* a ds_config.json with "auto" for Hugging Face's Trainer */
  TWS_FORMAT_MEGATRON,
  TWS_FORMAT_MEGATRON_DEEPSPEED, /* is only read */
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
  TWS_RECOMPUTED_MLP, /* matrix products before and after an activation function, and the function */
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
  int allgather_sequential;        /* stage 3: 1 issues one all-gather for each parameter */
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
  int by_block;                         /* twinspeed.shard_by_block: 1: one gather for each layer, as with FSDP */
  int offload_optimizer, offload_param; /* 0: not offloaded, 1: to the host's memory (cpu), 2: to a disk (nvme) */
  int offload_optimizer_pinned;         /* offload_optimizer.pin_memory: page-locked */
  int pipeline_read, pipeline_write;    /* offload_optimizer: 1 overlaps reads or writes of the disk with the update */
  double offload_optimizer_ratio;       /* share of the offloaded sub-groups that the host updates */
  int offload_param_pinned;             /* offload_param.pin_memory */
  int64_t param_buffer_count, param_buffer_size, max_in_cpu; /* offload_param, nvme: buffers; elements in one; in host
                                                              * memory */
} tws_zero_config;

/* Settings of ZenFlow (the section "zero_optimization.zenflow"): the device updates selected columns of each matrix,
 * the host updates all others. Intervals are 0 if the configuration leaves them to Twinspeed; read them with the
 * functions tws_zenflow_*(). */
typedef enum tws_zenflow_strategy { TWS_ZENFLOW_AUTO, TWS_ZENFLOW_STEP, TWS_ZENFLOW_EPOCH } tws_zenflow_strategy;
typedef struct tws_zenflow {
  int on;            /* 1: the section is given */
  double topk_ratio; /* share (0 to 1) of the columns of a matrix that the device updates */
  int strategy;      /* unit of select_interval (tws_zenflow_strategy) */
  int64_t select_interval, update_interval, steps_per_epoch;
  int overlap_step, offload;
  int64_t warm_up;   /* steps without selection (key full_warm_up_rounds) */
  double auto_ratio; /* share (0 to 1) of the matrices whose gradients end an interval of measured length */
} tws_zenflow;

/* Parameters of asynchronous disk reads and writes (the section "aio"). */
typedef struct tws_aio {
  int64_t block_size;  /* bytes per request */
  int64_t queue_depth; /* requests in flight per thread */
  int64_t threads;     /* the key intra_op_parallelism */
  int single_submit;   /* 1: one request per system call */
  int overlap_events;  /* 1: further requests are submitted while the thread waits for completed ones */
} tws_aio;

typedef struct tws_flops_section {
  int enabled, detailed;
  int64_t profile_step, module_depth, top_modules; /* module_depth -1: all levels */
  const char *output_file;                         /* file of the report, owned by `store`; NULL: standard output */
} tws_flops_section;

/* Settings of a monitor (traces/monitor.h), whose files are written in output_path/job_name. */
typedef struct tws_monitor_section {
  int enabled;
  const char *output_path, *job_name; /* strings owned by the configuration, or the defaults */
} tws_monitor_section;

/* Settings of the communication log (communication/comm_log.h). */
typedef struct tws_comms_section {
  int enabled, prof_all, verbose, debug;
  const struct cJSON *prof_ops; /* names of operations: a text or a list of texts; NULL: not given */
} tws_comms_section;

typedef struct tws_wandb_section {
  int enabled;
  const char *group, *team, *project; /* NULL: not given */
} tws_wandb_section;

typedef struct tws_comet_section {
  int enabled, online; /* online: 1: an online experiment is requested, which is not supported; -1: not given */
  int64_t samples_log_interval;
  const char *project, *workspace, *experiment_name, *experiment_key, *mode; /* NULL: not given */
} tws_comet_section;

typedef enum tws_quantization { TWS_QUANTIZATION_NONE, TWS_QUANTIZATION_INT8, TWS_QUANTIZATION_NF4 } tws_quantization;
typedef enum tws_bind_threads { TWS_THREADS_AUTO, TWS_THREADS_SHARE, TWS_THREADS_FREE } tws_bind_threads;

typedef struct tws_config {
  /* batch sizes and number of micro-batches; 0: not given, until tws_config_resolve() derives it */
  int64_t train_batch_size, micro_batch_size, accumulation_steps;
  double gradient_clipping;       /* bound of the gradients' global norm; 0: gradients are not clipped */
  tws_dtype dtype;                /* type of activations and parameters: fp16 or bf16 if enabled, else float32 */
  tws_dtype accumulation_dtype;   /* data_types.grad_accum_dtype; dtype if that is not given */
  int sparse_gradients;           /* gradients of embedding tables are communicated by rows (stage 0) */
  int prescales;                  /* prescale_gradients; see tws_config_divides() */
  double predivide;               /* gradient_predivide_factor */
  int communication_dtype;        /* communication_data_type as 1 + a tws_dtype; 0: not given */
  int sequence_communication;     /* seq_parallel_communication_data_type; see tws_config_communication_dtype() */
  int fp16_masters;               /* fp16.fp16_master_weights_and_grads; see tws_config_half_masters() */
  int bf16_masters, bf16_moments; /* read them with tws_config_bf16_masters() and tws_config_bf16_moments() */
  int dropout;                    /* twinspeed.dropout: 1: training applies the dropout of the model's file */
  int split_masters;              /* twinspeed.split_master_weights; read it with tws_config_split_masters() */
  int stochastic_rounding;        /* twinspeed.stochastic_rounding: 1 for weights updated without a float32 copy */
  struct {                        /* used if dtype is F16; see config/loss_scale.h */
    double loss_scale;            /* a fixed loss scale; 0: dynamic */
    int64_t initial_power, window, hysteresis, minimum;
    int consecutive;
  } fp16;
  tws_zero_config zero;
  const char *optimizer_path; /* folder zero_optimization.offload_optimizer.nvme_path, or NULL */
  int cpu_checkpointing;      /* activation_checkpointing: 1 stores the inputs of recomputed layers in host memory */
  int partition_activations;  /* activation_checkpointing: 1 divides those inputs among the tensor-parallel ranks */
  const char *param_path;     /* folder zero_optimization.offload_param.nvme_path, or NULL */
  tws_aio aio;
  tws_flops_section flops_profiler;
  int wall_clock_breakdown; /* 1: reports the times of the passes of each step */
  tws_optimizer optimizer;  /* the update rule; optimizers that are not in config/optimizers.def are refused by name */
  double lr, beta1, beta2, epsilon, weight_decay, max_coeff, min_coeff;
  double coeff_beta, factor_max, factor_min, factor_threshold; /* OneBitLamb: plan/onebit_lamb.c */
  double momentum, dampening;
  double beta2_decay, scale_epsilon, rms_limit; /* Adafactor: beta2_decay, the second number of eps, d */
  int64_t min_8bit_size; /* optimizers with states of 8 bits: least number of elements of a tensor with such states */
  int optim_bits;        /* the same optimizers: 8 or 32 */
  double muon_lr, adam_lr; /* learning rates of Muon's two kinds of groups; below 0: lr */
  int muon_method;         /* optimizer.params.ns_method: tws_muon_method */
  int narrow_moments;      /* 1: fp32_optimizer_states is false; read it with tws_config_bf16_moments() */
  int adam_w_mode, bias_correction, nesterov;
  /* optimizer.params of optimizers with phases (plan/phases.h), all counted in updates */
  int64_t freeze_step, var_freeze_step, var_update_scaler, local_step_scaler, local_step_clipper;
  int error_feedback; /* twinspeed.error_feedback: 0: compression errors are not added to the next values */
  int momentum_mask;  /* twinspeed.momentum_mask: 1 keeps the momentum of positions that no sequence reaches at 0 */
  tws_scheduler scheduler;
  struct {                 /* scheduler.params: the type determines which are used; defaults are DeepSpeed's */
    double min_lr, max_lr; /* max_lr < 0: the optimizer's learning rate */
    int64_t warmup_steps;
    int64_t total_steps; /* steps; 0: "auto", the length of the run, which the training program sets */
    int warmup_linear;   /* WarmupLR family: 1: linear warm-up, 0: logarithmic */
    double warmup_min_ratio, cos_min_ratio;
    double range_step_rate;
    int64_t range_step_size;
    int range_staircase;
    double cycle_min_lr, cycle_max_lr, cycle_decay_rate;
    double cycle_first, cycle_second;                /* steps of the cycle's two halves; second < 0: as the first */
    int64_t cycle_first_stairs, cycle_second_stairs; /* stairs in each half; 0: continuous; second < 0: as the first */
    int64_t cycle_decay_size;
    int cycle_momentum;
    double cycle_min_momentum, cycle_max_momentum, cycle_momentum_rate;
  } schedule;
  int64_t steps_per_print; /* steps between printed lines; 0: the program chooses */
  /* pipeline parallelism: 0 or 1 stages means none (pipeline.stages), and the other keys are then ignored */
  int64_t pipeline_stages;
  int64_t virtual_stages;                 /* twinspeed.virtual_stages: model chunks per pipeline stage */
  int pipe_partitioned, grad_partitioned; /* pipeline.*: 1: each tensor rank sends a part of a stage's output */
  int pipeline_schedule; /* twinspeed.pipeline_schedule: tws_pipeline_kind of plan/pipeline_schedule.h */
  /* tensor and sequence parallelism: 0 or 1 rank means none */
  int64_t tensor_ranks;          /* tensor_parallel.autotp_size */
  int tensor_overlap;            /* tensor_parallel.tp_overlap_comm */
  int64_t tensor_chunks;         /* twinspeed.tensor_overlap_chunks: segments of a product to overlap collectives */
  int tensor_sequence_parallel;  /* twinspeed.tensor_sequence_parallel: 1 splits tokens outside split layers */
  int64_t sequence_ranks;        /* sequence_parallel_size */
  int sequence_algorithm;        /* twinspeed.sequence_algorithm: tws_sequence_algorithm */
  int64_t expert_ranks;          /* twinspeed.expert_parallel_size: replicas that share a layer's experts */
  int64_t expert_node_ranks;     /* twinspeed.expert_node_ranks: group size of two-level all-to-alls; 0, 1: none */
  int expert_dispatch_fp8;       /* twinspeed.expert_dispatch_fp8: 1 sends tokens to experts as 8-bit floating point */
  double expert_capacity_factor; /* twinspeed.expert_capacity_factor; 0: slots suffice for every token */
  int expert_tensor_parallel;    /* twinspeed.expert_tensor_parallel: 1: tensor ranks split each expert */
  int expert_dropless;           /* twinspeed.expert_dropless: 1: all experts of a rank share its slots */
  double expert_bound;           /* twinspeed.expert_bound: slots of a rank / slots for evenly distributed tokens */
  double expert_bias_rate;       /* twinspeed.expert_bias_rate: step size of the routing biases that balance experts */
  const char *expert_load;       /* twinspeed.expert_load (string owned by the configuration); NULL: uniform */
  int data_before_experts;       /* use_data_before_expert_parallelism */
  tws_axis_order axis_order;     /* twinspeed.axis_order */
  int64_t loss_tiles, mlp_tiles; /* twinspeed.loss_tiles, .mlp_tiles: chunks of a micro-batch's tokens; 0: 1 */
  int64_t linear_tile_size;      /* twinspeed.linear_tile_size: weight elements gathered at once; 0: all */
  int64_t attention_chunks;      /* twinspeed.attention_chunks: chunks of a sequence in attention (FPDT) */
  int64_t ignored_token;         /* twinspeed.ignored_token: targets with this id add nothing to the loss; -1: none */
  /* keys of the section "twinspeed", which DeepSpeed ignores as an unknown top-level section */
  tws_matmul_dtype matmul_dtype;
  int fp8_recipe;               /* twinspeed.fp8_recipe: tws_fp8_recipe, of matmul_dtype fp8 */
  int64_t fp8_amax_history_len; /* twinspeed.fp8_amax_history_len: steps that a delayed scale is computed from */
  int64_t fp8_margin;           /* twinspeed.fp8_margin: a delayed scale leaves room for 2^margin times the amax */
  int matmul_keeps_wide; /* set by the runtime, no key: 1: operands of 8-bit products are saved in 16 bits */
  int casts_assumed;     /* no key: 1: casts are part of products' costs, not operations of the plan */
  tws_recompute recompute;
  double recompute_budget;    /* share (0 to 1) of recomputable matrix products whose results are saved instead */
  int recompute_whole;        /* full recomputation: 1: all operations of a layer are recomputed, even unneeded ones */
  int64_t recompute_every;    /* recomputed layers: 1: all, 2: every second one, ... */
  int64_t sequence_length;    /* tokens per sequence; 0: the model's number of positions */
  int64_t target_length;      /* tokens per target sequence; 0: as sequence_length */
  /* set by plan/serving.c, without keys: cache_length: rows of the cache of keys and values per sequence, 0: no cache;
   * cache_seen: number of positions that a decoded token is expected to see, on which costs depend */
  int64_t cache_length, cache_seen;
  /* no keys, as above: rows of a block of a cache in blocks, 0: a sequence's rows lie together; and the blocks of a
   * micro-batch's sequences, 0: as many as if each had cache_length rows */
  int64_t cache_block, cache_blocks;
  int cache_bits; /* no key, as above: 8: keys and values are cached in 8 bits, for predictions; 0: as activations */
  int64_t document_end_token; /* twinspeed.document_end_token: id that ends a document; -1: no packing */
  int64_t document_length;    /* twinspeed.document_length: expected tokens per packed document; 0: unknown */
  int bind_threads;           /* twinspeed.bind_threads: tws_bind_threads */
  tws_zenflow zenflow;
  int delayed_update;      /* twinspeed.delayed_update: 1: the host updates one step late, in parallel */
  int64_t delayed_warm_up; /* twinspeed.delayed_update_warm_up: number of first steps whose updates are not delayed */
  int64_t seed;
  int threads;                 /* threads per host rank; 0: cores / ranks of the node, at least 1 */
  int64_t vocabulary_multiple; /* the vocabulary is padded to a multiple of this; 1: not padded */
  int64_t ranks;               /* number of ranks; 0: the number that is launched */
  struct {                     /* twinspeed.lora, with PEFT's names; r 0: no adapters */
    int64_t r;
    double alpha, dropout;
    int rslora;
  } lora;
  struct {    /* twinspeed.frozen_quantization */
    int type; /* type of frozen weights (tws_quantization) */
    int64_t block, scale_block;
  } quantization;
  struct tws_config_store *store; /* the keys as given, for printing, the schema and warnings */
  /* `store` owns the following members; NULL: not given. */
  const char *pipeline_partition;         /* pipeline.partition; NULL: "parameters" */
  const char *recompute_operations;       /* names separated by commas; NULL: the default list */
  const struct cJSON *lora_targets;       /* twinspeed.lora.target_modules: a text or a list of them */
  const struct cJSON *frozen_parameters;  /* list of patterns of parameter names */
  const struct cJSON *param_groups;       /* optimizer.param_groups: a list of objects; see below */
  const struct cJSON *quantization_skips; /* twinspeed.frozen_quantization.skip_modules: a text or a list of texts */
  tws_comms_section comms_logger;
  tws_monitor_section tensorboard, csv_monitor;
  int tensorboard_images; /* 1: figures of the loss and of memory are also written to TensorBoard */
  tws_wandb_section wandb;
  tws_comet_section comet;
  tws_config_format format; /* format of the file that was loaded, from tws_config_format_of() */
} tws_config;

/* Properties of the model from which values "auto" may be resolved. */
typedef struct tws_auto_context {
  int64_t hidden_size;
} tws_auto_context;

/* Parse and validate a configuration, which the caller destroys with tws_config_destroy(). An unknown key fails with
 * TWS_INVALID, file:line:column and a suggestion. tws_config_default() returns the configuration of an empty object. */
tws_code tws_config_load(const char *path, tws_config **out, tws_error *err);
tws_code tws_config_from_json(const tws_json *json, tws_config **out, tws_error *err);
tws_code tws_config_default(tws_config **out, tws_error *err);
tws_code tws_config_clone(const tws_config *config, tws_config **out, tws_error *err);
void tws_config_destroy(tws_config *config);

/* Returns 1 if the key with this dotted path is given by the file or by an override. */
int tws_config_has_key(const tws_config *config, const char *path);
/* Returns 1 if the configuration determines whether activations and parameters have this type. "auto" determines
 * nothing; bf16.enabled false determines only that the type is not bf16. */
int tws_config_states_dtype(const tws_config *config, tws_dtype dtype);

/* Returns the format of the file that was loaded. A ds_config.json has the format HUGGING_FACE if a value is "auto",
 * else DEEPSPEED. */
tws_config_format tws_config_format_of(const tws_config *config);

/* Sets one key by its dotted path from text, as a command-line override ("zero_optimization.stage" "3"), with the same
 * validation; errors name "command line" as position. A bare word is a string; an object sets each of its members. All
 * fields of the key's top-level section are computed again from the given keys, so set keys before changing fields
 * directly, and call tws_config_resolve() afterwards: it derives values anew. */
tws_code tws_config_set(tws_config *config, const char *path, const char *json_value, tws_error *err);

/* Resolves "auto", the batch keys for the number of replicas that `ranks` ranks form (floor division, then the equality
 * check) and values that depend on several keys. If nothing determines an "auto", it becomes the key's default;
 * the three ZeRO sizes need context->hidden_size (context may be NULL without them). May be called again for other
 * numbers of ranks. Fails with TWS_INVALID for contradictory keys, TWS_UNSUPPORTED for valid keys that Twinspeed does
 * not support. */
tws_code tws_config_resolve(tws_config *config, int64_t ranks, const tws_auto_context *context, tws_error *err);
/* Checks the rules that do not depend on the number of ranks, and that at least one number of ranks satisfies the batch
 * keys. */
tws_code tws_config_check(const tws_config *config, tws_error *err);
/* Reads the elasticity section into *elastic; fails with TWS_INVALID if it is missing or not enabled. */
struct tws_elastic;
tws_code tws_config_elastic(const tws_config *config, struct tws_elastic *out, tws_error *err);
/* Returns 1 if elasticity.enabled is true: the batch then follows from the ranks, and no batch key may be given. */
int tws_config_is_elastic(const tws_config *config);
/* Computes the batch that elasticity chooses for `ranks` ranks in `replicas` replicas of ranks / replicas ranks each.
 * Fails with TWS_INVALID and the reason if there is no such batch. */
tws_code tws_config_elastic_batch(const tws_config *config, int64_t ranks, int64_t replicas, int64_t *micro,
                                  int64_t *accumulation, tws_error *err);

/* Number of ranks of a replica along each axis, and of virtual stages per pipeline stage; 1 if the key is not given. */
typedef struct tws_division {
  int pipeline, tensor, sequence, virtual_stages;
} tws_division;
tws_division tws_config_division(const tws_config *config);

/* Returns the type in which gradients are reduced among replicas and sequence-parallel ranks: the model's type unless a
 * key gives another. With sequence-parallel ranks, DeepSpeed's default is fp32 instead of the model's type. */
static inline tws_dtype tws_config_communication_dtype(const tws_config *config) {
  const int apart = config->sequence_ranks > 1 && config->sequence_communication;
  const int given = apart ? config->sequence_communication : config->communication_dtype;
  return given ? (tws_dtype)(given - 1) : config->dtype;
}
/* Returns 1 if operations before or after the reductions of gradients divide them by the number of ranks; 0 if the
 * weight of the loss includes the division, as always with a reduce-scatter of ZeRO (as in DeepSpeed). */
static inline int tws_config_divides(const tws_config *config) {
  const int scatters = config->zero.stage > 0 && config->zero.reduce_scatter;
  const int given = config->prescales || (config->predivide > 0 && config->predivide != 1);
  return given && !scatters && config->expert_ranks <= 1;
}
/* Returns 1 if activation checkpoints are stored in host memory. */
static inline int tws_config_checkpoints_on_host(const tws_config *config) {
  return config->cpu_checkpointing && config->recompute == TWS_RECOMPUTE_FULL;
}
/* Returns 1 if attention among sequence-parallel ranks passes keys and values around a ring. */
static inline int tws_config_is_ring(const tws_config *config) {
  return config->sequence_ranks > 1 && config->sequence_algorithm == TWS_SEQUENCE_RING;
}
/* Returns 1 if parameters (ZeRO stage 3) are stored in host memory or on disk between uses. */
static inline int tws_config_fetches(const tws_config *config) {
  return config->zero.stage == 3 && config->zero.offload_param;
}
/* Returns 1 if optimizer states or parameters are stored in host memory or on disk between uses. */
static inline int tws_config_offloads(const tws_config *config) {
  const tws_zero_config *z = &config->zero;
  return (z->stage > 0 && z->offload_optimizer) || tws_config_fetches(config);
}
/* Returns the folder for swap files, or NULL if nothing is offloaded to a disk or no folder is given. */
static inline const char *tws_config_disk(const tws_config *config) {
  const tws_zero_config *z = &config->zero;
  const int optimizer = z->stage > 0 && z->offload_optimizer == 2, parameters = z->stage == 3 && z->offload_param == 2;
  if (optimizer && config->optimizer_path) return config->optimizer_path;
  return parameters ? config->param_path : NULL;
}

/* tws_config_bf16_masters() returns 1 if the bfloat16 parameters are the only copy of the weights;
 * tws_config_bf16_moments() returns 1 if the optimizer's moments are bfloat16 too. */
static inline int tws_config_bf16_masters(const tws_config *config) {
  return config->dtype == TWS_BF16 && config->bf16_masters;
}
/* tws_config_split_masters() returns 1 if float32 master weights are kept as their lower 16 bits, next to the bfloat16
 * parameters (LOW16 of base/dtype.h). */
static inline int tws_config_split_masters(const tws_config *config) {
  return config->dtype == TWS_BF16 && config->split_masters && !config->bf16_masters;
}
/* Returns 1 if weights have no float32 copy: bfloat16 masters, or float16 ones, which the host updates. */
static inline int tws_config_half_masters(const tws_config *config) {
  return tws_config_bf16_masters(config) || (config->dtype == TWS_F16 && config->fp16_masters);
}
static inline int tws_config_bf16_moments(const tws_config *config) {
  return tws_config_bf16_masters(config) && (config->bf16_moments || config->narrow_moments);
}

/* Return ZenFlow's intervals in steps, with "auto" and epochs resolved. Both are counted from the end of the warm-up:
 * the host updates after every tws_zenflow_update_interval()-th step, and columns are selected again after every
 * tws_zenflow_select_interval()-th step, a multiple of the update interval. The warm-up has at least one step. If
 * tws_zenflow_measures() returns 1, a training determines the intervals from its gradients (real/late_updates.c), and
 * these lengths are the assumption of predictions. */
int64_t tws_zenflow_update_interval(const tws_config *config);
int64_t tws_zenflow_select_interval(const tws_config *config);
int64_t tws_zenflow_warm_up(const tws_config *config);
/* Returns 1 if update_interval is "auto" and there are both selected and other columns, whose gradients the training
 * compares. */
int tws_zenflow_measures(const tws_config *config);
/* Returns the number of steps after which columns are selected again if the configuration gives it, as steps or as
 * epochs of known length, not rounded; 0: it is given as a number of updates, TWS_ZENFLOW_SELECT_UPDATES. */
int64_t tws_zenflow_select_steps(const tws_config *config);
enum {
  TWS_ZENFLOW_SELECT_UPDATES = 4, /* select_interval "auto" without epochs: updates per selection */
  TWS_ZENFLOW_LONGEST = 16        /* largest number of steps in an interval of measured length */
};

/* Returns the number of ranks along an axis that has a key, or 1 for other axes, such as "data". */
int tws_config_axis_ranks(const tws_config *config, tws_axis axis);
/* Returns zero_hpz_partition_size, the number of adjacent ranks that hold a secondary partition of gathered parameters,
 * or 0 if the key has no effect. */
int64_t tws_config_secondary_ranks(const tws_config *config);
/* Returns mics_shard_size, the number of adjacent ranks among which the model is partitioned, or 0 if all ranks
 * partition it. */
int64_t tws_config_shard_ranks(const tws_config *config);
/* Returns the number of ranks of such a group (mics_shard_size) that are on one node, if groups gather in two levels:
 * first between nodes, then among these ranks; 0: groups gather in one level. */
int64_t tws_config_gather_ranks(const tws_config *config);
/* Returns 1 if training freezes some parameters. */
int tws_config_freezes(const tws_config *config);
/* Returns the number of steps from one printed line to the next in a run of `steps` steps: `asked` if it is above 0,
 * else steps_per_print; if neither is given, 1 for up to 40 steps, and for longer runs the interval that yields 20
 * lines. */
int64_t tws_config_print_interval(const tws_config *config, int64_t asked, int64_t steps);
/* Returns 1 if parameters are gathered as 8-bit codes, that is, zero_quantized_weights is given and has an effect. */
static inline int tws_config_quantizes_weights(const tws_config *config) {
  return config->zero.stage == 3 && config->zero.quantized_weights;
}
/* Returns the type in which frozen weights are stored, from twinspeed.frozen_quantization or
 * zero_quantized_nontrainable_weights. */
static inline tws_quantization tws_config_frozen_type(const tws_config *config) {
  if (config->quantization.type == TWS_QUANTIZATION_NONE && config->zero.quantized_frozen && tws_config_freezes(config))
    return TWS_QUANTIZATION_INT8;
  return (tws_quantization)config->quantization.type;
}
/* Returns 1 if gradients of matrices are reduced as 4-bit codes, that is, zero_quantized_gradients is given and has an
 * effect. */
static inline int tws_config_quantizes_gradients(const tws_config *config) {
  return config->zero.stage == 3 && config->zero.quantized_gradients;
}
/* Returns the number of adjacent ranks that ZeRO treats as one node: zero_hpz_partition_size, or, for quantized
 * gradients, twinspeed.zero_node_ranks; 0 if ZeRO does not distinguish nodes. */
int64_t tws_config_node_ranks(const tws_config *config);
/* Returns how many of `replicas` replicas form one node for ZeRO; 0 if ZeRO does not distinguish
 * nodes. */
int tws_config_node_replicas(const tws_config *config, int64_t replicas);
/* tws_config_group_replicas() returns the number of replicas of one MiCS group, tws_config_group_node_replicas() the
 * number of a group's replicas that are on one node; 0 if there are no groups, or if groups do not span nodes. If there
 * are sequence-parallel ranks, a group or a node may consist of one replica. */
int tws_config_group_replicas(const tws_config *config, int64_t replicas);
int tws_config_group_node_replicas(const tws_config *config);
/* Returns 1 if ranks that share experts run two-level all-to-alls, whose first level is inside groups of
 * twinspeed.expert_node_ranks ranks. */
int tws_config_two_steps(const tws_config *config);
/* Returns the number of ranks of one replica of the model: the product of the numbers of ranks along all axes except
 * "data". */
int64_t tws_config_model_ranks(const tws_config *config);
/* Computes the number of replicas that `ranks` ranks form; fails with TWS_INVALID if the ranks of a replica do not
 * divide them. */
tws_code tws_config_replicas(const tws_config *config, int64_t ranks, int64_t *replicas, tws_error *err);
/* Returns the number to a multiple of which the vocabulary is padded: the least common multiple of vocabulary_multiple
 * and the number of tensor ranks. */
int64_t tws_config_vocabulary_multiple(const tws_config *config);

/* Returns the learning rate of the optimizer step with 0-based index k, that is, after k calls of the scheduler's
 * step(). */
double tws_config_lr(const tws_config *config, int64_t k);

/* Parameter groups: optimizer.param_groups lists sets of parameters for which the optimizer has separate values. Group
 * 0 has all other parameters, and group g those of entry g - 1 of the list. With Muon each of these sets is two groups:
 * first the matrices of layers, then its other parameters, which Adam updates. */
enum { TWS_PARAM_GROUPS = 16 }; /* largest number of groups */
typedef enum tws_muon_method {
  TWS_MUON_GRAM,
  TWS_MUON_STANDARD
} tws_muon_method; /* forms of Newton-Schulz iterations */
int tws_config_param_groups(const tws_config *config);
/* Returns the number of the group's entry in the list, counted from 1; 0: it has the parameters that no entry names. */
int tws_config_param_group_entry(const tws_config *config, int group);
/* Returns the patterns of the parameter names of a group, a text or a list of texts; NULL: the group has the parameters
 * that no entry names. */
const struct cJSON *tws_config_param_group_names(const tws_config *config, int group);
/* Returns 1 if Muon updates the matrices of the group. */
static inline int tws_config_is_muon_group(const tws_config *config, int group) {
  return tws_optimizer_of(config->optimizer)->matrices && group % 2 == 0;
}
/* Fills *own with a copy of `config` in which the group's values apply to all parameters. The copy owns nothing, and is
 * valid as long as `config`. */
void tws_config_of_param_group(const tws_config *config, int group, tws_config *own);

/* Computes Adam's betas of the optimizer step k: OneCycle with cycle_momentum varies beta1 and sets beta2 to 0.99;
 * every other schedule leaves both unchanged. */
void tws_config_betas(const tws_config *config, int64_t k, double *beta1, double *beta2);

/* Write reports into `out`: the effective configuration as JSON (a valid ds_config.json with every key that has an
 * effect); the JSON Schema of all keys; and one line, with the reason, for each key that has no effect in Twinspeed
 * although its value is not the default, and for each unknown key. */
tws_code tws_config_print(const tws_config *config, int all_keys, tws_text *out, tws_error *err);
/* Prints the keys that were given in the file or set since, without defaults, so that other programs find only keys
 * that the user chose. for_deepspeed: 1 if DeepSpeed itself is to read the text; the section elasticity, which
 * DeepSpeed refuses since 0.19.8, is then replaced by the batch that elasticity chose, so the configuration has to be
 * resolved. */
tws_code tws_config_print_given(const tws_config *config, int for_deepspeed, tws_text *out, tws_error *err);
/* Computes a hash of the effective values of all keys that change the results of a training; equal values yield equal
 * hashes. */
tws_code tws_config_fingerprint(const tws_config *config, uint64_t *out, tws_error *err);
tws_code tws_config_print_schema(tws_text *out, tws_error *err);
tws_code tws_config_no_effect(const tws_config *config, tws_text *out, int *count, tws_error *err);

/* Writes one line for each value that is rounded (a fraction given for a count), and one line for all keys that are
 * "auto" and were set to their default or from the model, with the flags that set them. */
tws_code tws_config_notes(const tws_config *config, tws_text *out, int *count, tws_error *err);

const char *tws_recompute_name(tws_recompute recompute);
/* Returns the set of operations named in the list, one bit for each tws_recomputed, or -1 if a name is unknown. */
int tws_recompute_list(const char *names);
/* Returns 1 if complete layers or complete MLPs are recomputed. */
int tws_config_recomputes_blocks(const tws_config *config);

#endif
