#include "compat/software_rules.h"

#include <string.h>

static const cJSON *at(const cJSON *root, const char *first, const char *second, const char *third) {
  const char *const path[] = {first, second, third};
  for (int i = 0; i < 3 && path[i]; i++) root = cJSON_GetObjectItemCaseSensitive(root, path[i]);
  return root;
}

static int64_t integer(const cJSON *item, int64_t otherwise) {
  const int is = cJSON_IsNumber(item) && item->valuedouble > -9e15 && item->valuedouble < 9e15;
  return is ? (int64_t)item->valuedouble : otherwise;
}

static tws_code broken(tws_error *err, const char *rule) {
  return tws_fail(err, TWS_INVALID, NULL, "%s", rule);
}

#define RULE(holds, text) \
  if (!(holds)) return broken(err, text)

/* ---- DeepSpeed ---- */

static tws_code check_batch(const cJSON *config, int64_t world, tws_error *err) {
  const int64_t batch = integer(at(config, "train_batch_size", NULL, NULL), 0);
  const int64_t micro = integer(at(config, "train_micro_batch_size_per_gpu", NULL, NULL), 0);
  const int64_t steps = integer(at(config, "gradient_accumulation_steps", NULL, NULL), 0);
  const int64_t sharers = integer(at(config, "sequence_parallel_size", NULL, NULL), 1);
  const int64_t replicas = sharers > 0 ? world / sharers : 0;
  RULE(batch > 0 || micro > 0, "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided");
  RULE(replicas > 0 && world % sharers == 0, "sequence_parallel_size divides the ranks");
  const int64_t m = micro > 0 ? micro : steps > 0 ? batch / replicas / steps : batch / replicas;
  const int64_t g = steps > 0 ? steps : batch > 0 && m > 0 ? batch / m / replicas : 1;
  RULE(m > 0, "Micro batch size per gpu is greater than 0");
  RULE(g > 0, "Gradient accumulation steps is greater than 0");
  RULE(batch == 0 || batch == m * g * replicas,
       "train_batch_size equals micro_batch_per_gpu * gradient_acc_step * world_size");
  return TWS_OK;
}

/* Fails if the configuration has a key of a feature that DeepSpeed 0.19.8 has removed, whatever the key's value. */
static tws_code check_removed(const cJSON *config, tws_error *err) {
  static const char *const keys[] = {"nebula",
                                     "compression_training",
                                     "amp",
                                     "quantize_training",
                                     "sparse_gradients",
                                     "eigenvalue",
                                     "sparse_attention",
                                     "elasticity",
                                     "graph_harvesting",
                                     "curriculum_learning",
                                     "progressive_layer_drop"};
  static const char *const zero[] = {"mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (at(config, keys[i], NULL, NULL)) return tws_fail(err, TWS_INVALID, NULL, "%s has been removed", keys[i]);
  for (size_t i = 0; i < sizeof zero / sizeof *zero; i++)
    if (at(config, "zero_optimization", zero[i], NULL))
      return tws_fail(err, TWS_INVALID, NULL, "zero_optimization.%s has been removed", zero[i]);
  return TWS_OK;
}

tws_code tws_deepspeed_check(const cJSON *config, int64_t world, tws_error *err) {
  const cJSON *zero = at(config, "zero_optimization", NULL, NULL);
  const int64_t stage = integer(at(zero, "stage", NULL, NULL), 0);
  const int64_t pipeline = integer(at(config, "pipeline", "stages", NULL), 1);
  const int64_t tensor = integer(at(config, "tensor_parallel", "autotp_size", NULL), 1);
  const cJSON *ratio = at(zero, "offload_optimizer", "ratio", NULL);
  const char *optimizer = cJSON_GetStringValue(at(zero, "offload_optimizer", "device", NULL));
  const char *parameters = cJSON_GetStringValue(at(zero, "offload_param", "device", NULL));
  TWS_TRY(check_removed(config, err));
  TWS_TRY(check_batch(config, world, err));
  RULE(stage >= 0 && stage <= 3, "a ZeRO stage is 0 to 3");
  RULE(pipeline < 2 || stage < 2, "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism");
  RULE(tensor < 2 || stage < 3, "autotp and zero_stage = 3 are not compatible");
  RULE(!cJSON_IsTrue(at(config, "fp16", "enabled", NULL)) || !cJSON_IsTrue(at(config, "bf16", "enabled", NULL)),
       "bfloat16 and fp16 modes are not enabled at once");
  RULE(!parameters || strcmp(parameters, "none") == 0 || stage == 3, "offload_param is of stage 3");
  RULE(!optimizer || strcmp(optimizer, "nvme") != 0 || stage == 3, "an optimizer on NVMe is of stage 3");
  RULE(!optimizer || strcmp(optimizer, "none") == 0 || stage > 0, "an offloaded optimizer is of stages 1 to 3");
  RULE((!optimizer || strcmp(optimizer, "nvme") != 0 || at(zero, "offload_optimizer", "nvme_path", NULL)) &&
           (!parameters || strcmp(parameters, "nvme") != 0 || at(zero, "offload_param", "nvme_path", NULL)),
       "nvme_path is given where the device is nvme");
  RULE(!cJSON_IsNumber(ratio) || ratio->valuedouble >= 1 || stage == 3,
       "offload_optimizer.ratio below 1 is of stage 3");
  RULE(integer(at(zero, "allgather_bucket_size", NULL, NULL), 0) % 2 == 0, "allgather_bucket_size is even");
  RULE(!at(config, "optimizer", "params", "max_grad_norm"), "max_grad_norm is gradient_clipping");
  return TWS_OK;
}

/* ---- Megatron ---- */

typedef struct megatron {
  const cJSON *arguments;
  int64_t tensor, pipeline, context, expert, chunks, micro, batch, sequence, positions, layers, experts;
  int fsdp, distributed;
} megatron;

static int flag(const megatron *m, const char *name) {
  return cJSON_IsTrue(at(m->arguments, name, NULL, NULL));
}

static int is_word(const megatron *m, const char *name, const char *word) {
  const char *text = cJSON_GetStringValue(at(m->arguments, name, NULL, NULL));
  return text && strcmp(text, word) == 0;
}

static tws_code check_pipeline(const megatron *m, int64_t replicas, tws_error *err) {
  if (m->chunks > 1) {
    RULE(m->pipeline > 1, "When interleaved schedule is used, pipeline-model-parallel size should be greater than 1");
    RULE(m->layers % (m->pipeline * m->chunks) == 0, "layers are divided by pipeline stages and virtual stages");
    RULE(m->batch / (m->micro * replicas) % m->pipeline == 0, "micro-batches are a multiple of pipeline stages");
  } else {
    RULE(m->layers % m->pipeline == 0, "Number of layers should be divisible by the pipeline-model-parallel size");
  }
  RULE(!m->fsdp || m->pipeline == 1, "--use-megatron-fsdp is not supported with pipeline parallelism");
  return TWS_OK;
}

static tws_code check_flags(const megatron *m, tws_error *err) {
  RULE(!m->fsdp || is_word(m, "ckpt_format", "fsdp_dtensor"), "Megatron FSDP only supports fsdp_dtensor");
  RULE(!flag(m, "overlap_param_gather") || m->distributed || m->fsdp,
       "--overlap-param-gather only supported with distributed optimizer or megatron fsdp");
  RULE(!flag(m, "overlap_param_gather") || flag(m, "overlap_grad_reduce"),
       "Must use --overlap-param-gather with --overlap-grad-reduce");
  RULE(!flag(m, "bf16") || !flag(m, "fp16"), "--bf16 and --fp16 exclude each other");
  RULE(!at(m->arguments, "fp8_format", NULL, NULL) || !at(m->arguments, "fp4_format", NULL, NULL),
       "--fp4-format and --fp8-format cannot be used simultaneously");
  RULE(!is_word(m, "recompute_granularity", "selective") || !at(m->arguments, "recompute_method", NULL, NULL),
       "recompute method is not yet supported for selective recomputing granularity");
  RULE(!flag(m, "tp_comm_overlap") || flag(m, "sequence_parallel"),
       "Tensor parallel communication/GEMM overlap can happen only when sequence parallelism is enabled");
  RULE(!flag(m, "optimizer_cpu_offload") || flag(m, "use_precision_aware_optimizer"),
       "The optimizer cpu offload must be used in conjunction with --use-precision-aware-optimizer");
  return TWS_OK;
}

tws_code tws_megatron_check(const cJSON *arguments, int64_t world, tws_error *err) {
#define INTEGER(name, otherwise) integer(at(arguments, name, NULL, NULL), otherwise)
  const megatron m = {.arguments = arguments,
                      .tensor = INTEGER("tensor_model_parallel_size", 1),
                      .pipeline = INTEGER("pipeline_model_parallel_size", 1),
                      .context = INTEGER("context_parallel_size", 1),
                      .expert = INTEGER("expert_model_parallel_size", 1),
                      .chunks = INTEGER("num_virtual_stages_per_pipeline_rank", 1),
                      .micro = INTEGER("micro_batch_size", 0),
                      .batch = INTEGER("global_batch_size", 0),
                      .sequence = INTEGER("seq_length", 0),
                      .positions = INTEGER("max_position_embeddings", 0),
                      .layers = INTEGER("num_layers", 0),
                      .experts = INTEGER("num_experts", 0),
                      .fsdp = cJSON_IsTrue(at(arguments, "use_megatron_fsdp", NULL, NULL)),
                      .distributed = cJSON_IsTrue(at(arguments, "use_distributed_optimizer", NULL, NULL))};
#undef INTEGER
  RULE(m.tensor > 0 && m.pipeline > 0 && m.context > 0 && m.expert > 0, "sizes of groups are above 0");
  const int64_t model = m.tensor * m.pipeline * m.context, replicas = world / model;
  RULE(world % model == 0, "world size is divisible by total_model_size");
  RULE(m.micro > 0 && m.batch > 0, "--micro-batch-size and --global-batch-size are above 0");
  RULE(m.batch % (m.micro * replicas) == 0, "the global batch is divisible by micro-batch x data-parallel size");
  RULE(m.layers > 0 && m.sequence > 0, "--num-layers and --seq-length are given");
  RULE(m.positions >= m.sequence, "max_position_embeddings is at least seq_length");
  RULE(m.context == 1 || m.sequence % (2 * m.context) == 0,
       "seq-length should be a multiple of 2 * context-parallel-size if context-parallel-size > 1");
  RULE(!cJSON_IsTrue(at(arguments, "sequence_parallel", NULL, NULL)) || m.sequence % m.tensor == 0,
       "the sequence is divisible by tensor ranks");
  RULE(m.expert == 1 || m.experts > 0, "num_experts must be non None to use expert model parallelism");
  RULE(m.expert == 1 || m.experts % m.expert == 0,
       "Number of experts should be a multiple of expert model parallel_size");
  RULE(m.expert == 1 || !cJSON_IsTrue(at(arguments, "fp16", NULL, NULL)),
       "Expert parallelism is not supported with fp16 training");
  RULE(m.experts == 0 || m.tensor == 1 || cJSON_IsTrue(at(arguments, "sequence_parallel", NULL, NULL)),
       "experts with tensor parallelism need sequence parallelism");
  TWS_TRY(check_pipeline(&m, replicas, err));
  return check_flags(&m, err);
}
