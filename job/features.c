#include "job/features.h"

#include <string.h>

#include "config/aio.h"

_Static_assert(TWS_FEATURE_COUNT <= 64, "features are bits");

static const struct {
  const char *words, *remedy;
} features[TWS_FEATURE_COUNT] = {
#define X(name, words, remedy) {words, remedy},
#include "job/features.def"
#undef X
};

const char *tws_feature_words(tws_feature feature) {
  return features[feature].words;
}

const char *tws_feature_remedy(tws_feature feature) {
  return features[feature].remedy;
}

/* ---- the table ---- */

#define BIT(name) (UINT64_C(1) << TWS_FEATURE_##name)
#define ALL ((UINT64_C(1) << TWS_FEATURE_COUNT) - 1)
#define STAGES_0_1 (BIT(STAGE_0) | BIT(STAGE_1))
#define STAGES (STAGES_0_1 | BIT(STAGE_2) | BIT(STAGE_3))
/* stages that FSDP has: replicas, partitioned gradients, and partitioned gradients and parameters */
#define SHARDED (BIT(STAGE_0) | BIT(STAGE_2) | BIT(STAGE_3))
#define PIPELINE_ZERO_1 (BIT(PIPELINE) | BIT(PIPELINE_STAGE_1) | BIT(ONE_F_ONE_B))
#define TENSOR_RANKS (BIT(TENSOR) | BIT(WHOLE_TOKENS) | BIT(SPLIT_TOKENS))
#define ZERO_PP (BIT(HPZ) | BIT(QUANTIZED_WEIGHTS) | BIT(QUANTIZED_GRADIENTS))
#define ZERO_OFFLOAD (BIT(OFFLOAD_OPTIMIZER) | BIT(OFFLOAD_PARAMETERS) | BIT(DISK) | BIT(GPUDIRECT_STORAGE))
#define CAST (BIT(FP16) | BIT(OVERLAP))
#define TUNED (BIT(LORA) | BIT(QUANTIZED_FROZEN))
#define SPARSE (BIT(EXPERTS) | BIT(EXPERTS_WHOLE_TOKENS))

/* Sources:
 *   host, cuda    real/: the executor refuses tokens in 8 bits and casts of scaled blocks, and transfers of a disk end
 *                 in host memory. A rank on a GPU also has the host backend's kernels (real/host_work.h), so that both
 *                 run the same jobs.
 *   DeepSpeed     0.19.8: config.py refuses MiCS, which has been removed; pipe/module.py asserts stages below 2 with a
 *                 pipeline and has one schedule (TrainSchedule); engine.py refuses AutoTP with stage 3; MoE layers go
 *                 with stages up to 2; optimizer states are on NVMe at stage 3 only.
 *   Transformers  its Trainer hands a model to DeepSpeed's engine whole: no pipelines and no MoE layers of DeepSpeed's.
 *   Megatron      megatron/training/arguments.py of 000c4ac: the distributed optimizer is stage 1; --use-torch-fsdp2
 *                 and --use-megatron-fsdp partition gradients and parameters without pipelines.
 *   torchtitan    torchtitan/config/job_config.py of 000204a: FSDP2 reshards (3) or not (2); tensor ranks always split
 *                 tokens; schedules of torch.distributed.pipelining; CPU offloading takes parameters too.
 *   nanotron      config/parallelism_config.py and config.py of 2411b02: pp_engine 1f1b or afab (all forward passes
 *                 first), tp_mode all_reduce or reduce_scatter, tp_linear_async_communication, expert_parallel_size,
 *                 recompute_layer; zero_stage 0 or 1 (optim/zero.py); ring attention in nn/ring_attention.py.
 *   llm.c         train_gpt2.cu and llmc/zero.cuh of f1e2ace: -z 0 or 1 (2 and 3 are refused), -r 1 recomputes GELU,
 *                 -r 2 LayerNorm too; gradients of a layer are reduced during backward; float16 models are not loaded.
 *   MaxText       configs/base.yml and types.py of e591f30: mesh axes data, fsdp, stage, context, tensor,
 *                 tensor_sequence, expert; shard_optimizer_over_data (stage 1); circular pipelines;
 *                 context_parallel_strategy ring or ulysses; remat_policy, also offloaded; host offloading of optimizer
 *                 and parameters; quantization fp8 and te_mxfp8. XLA overlaps tensor collectives (collective matmul).
 *   AutoModel     components/distributed/config.py of 36044ad: FSDP2 (reshard_after_forward, dp_replicate_size,
 *                 ep_size, cp_size, enable_async_tensor_parallel, CPUOffloadPolicy), Megatron-FSDP (zero_dp_strategy);
 *                 pipelining/config.py; activation_checkpointing.py by operation; LoRA and 4-bit weights; fp8, mxfp8.
 * Rows of PyTorch FSDP and DDP, Megatron-DeepSpeed and Megatron-LM before Core are recalled. */
static const struct {
  const char *family;
  tws_features features;
} families[] = {
#define OWN_ENGINE \
  (ALL & ~(BIT(DISPATCH_FP8) | BIT(NARROW) | BIT(PIPELINE_STAGE_2) | BIT(PIPELINE_STAGE_3) | BIT(GPUDIRECT_STORAGE)))
    {"host backend", OWN_ENGINE},
    {"CUDA backend", OWN_ENGINE},
    {"DeepSpeed", STAGES | PIPELINE_ZERO_1 | BIT(TENSOR) | BIT(WHOLE_TOKENS) | BIT(TENSOR_OVERLAP) | BIT(ULYSSES) |
                      SPARSE | BIT(EXPERTS_FP16) | BIT(EXPERT_TENSOR) | ZERO_PP | ZERO_OFFLOAD |
                      BIT(CHECKPOINTS_ON_HOST) | BIT(ZENFLOW) | BIT(FULL) | BIT(SELECTIVE) | BIT(MLP_TILES) |
                      BIT(ATTENTION_CHUNKS) | BIT(LINEAR_TILES) | CAST | TUNED},
    {"Hugging Face Transformers with DeepSpeed", STAGES | BIT(TENSOR) | BIT(WHOLE_TOKENS) | BIT(TENSOR_OVERLAP) |
                                                     BIT(EXPERTS_WHOLE_TOKENS) | BIT(ULYSSES) | ZERO_PP | ZERO_OFFLOAD |
                                                     BIT(ZENFLOW) | BIT(FULL) | CAST | TUNED},
    {"Megatron-DeepSpeed", STAGES | PIPELINE_ZERO_1 | TENSOR_RANKS | BIT(ULYSSES) | SPARSE | BIT(EXPERTS_FP16) |
                               ZERO_OFFLOAD | BIT(CHECKPOINTS_ON_HOST) | BIT(FULL) | BIT(SELECTIVE) | BIT(MLP_TILES) |
                               BIT(ATTENTION_CHUNKS) | CAST},
    {"Megatron-LM", STAGES_0_1 | PIPELINE_ZERO_1 | BIT(INTERLEAVED) | TENSOR_RANKS | BIT(FULL) | BIT(SELECTIVE) | CAST},
    {"Megatron-Core", STAGES | PIPELINE_ZERO_1 | BIT(INTERLEAVED) | TENSOR_RANKS | BIT(TENSOR_STAGE_3) |
                          BIT(TENSOR_OVERLAP) | BIT(ULYSSES) | BIT(RING) | BIT(EXPERTS) | BIT(EXPERTS_STAGE_3) |
                          BIT(EXPERT_NODES) | BIT(EXPERT_TENSOR) | BIT(DISPATCH_FP8) | BIT(OFFLOAD_OPTIMIZER) |
                          BIT(FULL) | BIT(SELECTIVE) | BIT(OPERATIONS) | BIT(FP8) | BIT(NARROW) | CAST | BIT(LORA)},
    {"torchtitan", SHARDED | BIT(PIPELINE) | BIT(PIPELINE_STAGE_2) | BIT(PIPELINE_STAGE_3) | BIT(GPIPE) |
                       BIT(ONE_F_ONE_B) | BIT(INTERLEAVED) | BIT(TENSOR) | BIT(SPLIT_TOKENS) | BIT(TENSOR_STAGE_3) |
                       BIT(TENSOR_OVERLAP) | BIT(RING) | BIT(EXPERTS) | BIT(EXPERTS_STAGE_3) | BIT(MICS) |
                       BIT(OFFLOAD_PARAMETERS) | BIT(FULL) | BIT(SELECTIVE) | BIT(OPERATIONS) | BIT(OVERLAP) |
                       BIT(FP8) | BIT(NARROW)},
    {"PyTorch FSDP",
     SHARDED | BIT(MICS) | BIT(OFFLOAD_PARAMETERS) | BIT(FULL) | BIT(SELECTIVE) | BIT(OPERATIONS) | CAST | TUNED},
    {"PyTorch DDP", BIT(STAGE_0) | BIT(FULL) | CAST | TUNED},
    {"nanotron", STAGES_0_1 | PIPELINE_ZERO_1 | BIT(GPIPE) | TENSOR_RANKS | BIT(TENSOR_OVERLAP) | BIT(RING) | SPARSE |
                     BIT(FULL) | BIT(OVERLAP)},
    {"llm.c", STAGES_0_1 | BIT(SELECTIVE) | BIT(OPERATIONS) | BIT(OVERLAP)},
    {"MaxText", BIT(STAGE_0) | BIT(STAGE_1) | BIT(STAGE_3) | BIT(PIPELINE) | BIT(PIPELINE_STAGE_3) | BIT(GPIPE) |
                    BIT(INTERLEAVED) | TENSOR_RANKS | BIT(TENSOR_STAGE_3) | BIT(TENSOR_OVERLAP) | BIT(RING) |
                    BIT(ULYSSES) | SPARSE | BIT(EXPERTS_STAGE_3) | BIT(MICS) | BIT(OFFLOAD_OPTIMIZER) |
                    BIT(OFFLOAD_PARAMETERS) | BIT(CHECKPOINTS_ON_HOST) | BIT(FULL) | BIT(SELECTIVE) | BIT(OPERATIONS) |
                    BIT(OVERLAP) | BIT(FP8) | BIT(NARROW)},
    {"NeMo AutoModel", STAGES | BIT(PIPELINE) | BIT(PIPELINE_STAGE_2) | BIT(PIPELINE_STAGE_3) | BIT(GPIPE) |
                           BIT(ONE_F_ONE_B) | BIT(INTERLEAVED) | TENSOR_RANKS | BIT(TENSOR_STAGE_3) |
                           BIT(TENSOR_OVERLAP) | BIT(RING) | SPARSE | BIT(EXPERTS_STAGE_3) | BIT(MICS) |
                           BIT(OFFLOAD_PARAMETERS) | BIT(FULL) | BIT(SELECTIVE) | BIT(OPERATIONS) | BIT(OVERLAP) |
                           BIT(FP8) | BIT(NARROW) | TUNED},
};
enum { HOST, CUDA, DEEPSPEED, TRANSFORMERS, MEGATRON_DEEPSPEED, MEGATRON_LM, MEGATRON_CORE, TORCHTITAN, FSDP, DDP };

/* The family of runtimes whose names begin with this text; the first row that fits counts. */
static const struct {
  const char *name, *family;
} members[] = {{"transformers-2021-ddp", "PyTorch DDP"},
               {"transformers-ddp", "PyTorch DDP"},
               {"transformers-4-ddp", "PyTorch DDP"},
               {"transformers-4-fsdp", "PyTorch FSDP"},
               {"trl", "PyTorch DDP"},
               {"transformers-fsdp", "PyTorch FSDP"},
               {"transformers", "Hugging Face Transformers with DeepSpeed"},
               {"megatron-deepspeed", "Megatron-DeepSpeed"},
               {"megatron-2019", "Megatron-LM"},
               {"megatron-2021", "Megatron-LM"},
               {"megatron-2022", "Megatron-LM"},
               {"megatron", "Megatron-Core"},
               {"nemo-automodel", "NeMo AutoModel"},
               {"automodel", "NeMo AutoModel"},
               {"nemo", "Megatron-Core"},
               {"deepspeed", "DeepSpeed"},
               {"fsdp-2022", "PyTorch FSDP"},
               {"fsdp", "torchtitan"},
               {"torchtitan", "torchtitan"},
               {"torchtune", "PyTorch FSDP"},
               {"litgpt", "PyTorch FSDP"},
               {"fms-fsdp", "PyTorch FSDP"},
               {"peft", "PyTorch FSDP"},
               {"pytorch", "PyTorch DDP"},
               {"bert", "PyTorch DDP"},
               {"nanotron", "nanotron"},
               {"llm.c", "llm.c"},
               {"llmc", "llm.c"},
               {"maxtext", "MaxText"}};

static int family_named(const char *family) {
  for (size_t i = 0; i < sizeof families / sizeof *families; i++)
    if (strcmp(families[i].family, family) == 0) return (int)i;
  return DDP;
}

static int family_of(const tws_runtime *runtime, tws_backend_kind backend) {
  if (strcmp(runtime->name, "twinspeed") == 0) return backend == TWS_BACKEND_HOST ? HOST : CUDA;
  for (size_t i = 0; i < sizeof members / sizeof *members; i++)
    if (strncmp(runtime->name, members[i].name, strlen(members[i].name)) == 0) return family_named(members[i].family);
  if (runtime->copies_buckets) return DEEPSPEED;
  if (runtime->by_block) return FSDP;
  if (runtime->overlaps_tensor || runtime->sends_once || runtime->float_gradients) return MEGATRON_CORE;
  return DDP;
}

const char *tws_runtime_family(const tws_runtime *runtime, tws_backend_kind backend) {
  return families[family_of(runtime, backend)].family;
}

tws_features tws_runtime_features(const tws_runtime *runtime, tws_backend_kind backend) {
  return families[family_of(runtime, backend)].features;
}

/* ---- features in use ---- */

static tws_features bit_if(int used, tws_feature feature) {
  return used ? UINT64_C(1) << feature : 0;
}

/* The settings of a job that searches vary. */
typedef struct division {
  int stage, pipeline, tensor, tokens, sequence, ring, expert;
  int half, sparse; /* half: 1: the type is float16; sparse: 1: the model has experts */
  tws_pipeline_kind kind;
  int hpz, mics, weights, gradients, expert_nodes; /* 1: the configuration uses it */
  int optimizer, parameters, disk;                 /* 1: this state is offloaded */
  tws_recompute recompute;
} division;

static tws_features division_features(const division *d) {
  static const tws_feature kinds[] = {[TWS_PIPELINE_GPIPE] = TWS_FEATURE_GPIPE,
                                      [TWS_PIPELINE_1F1B] = TWS_FEATURE_ONE_F_ONE_B,
                                      [TWS_PIPELINE_INTERLEAVED] = TWS_FEATURE_INTERLEAVED,
                                      [TWS_PIPELINE_ZB_H1] = TWS_FEATURE_ZB_H1};
  const int pipeline = d->pipeline > 1, tensor = d->tensor > 1, third = d->stage == 3, expert = d->expert > 1;
  tws_features used = UINT64_C(1) << (TWS_FEATURE_STAGE_0 + d->stage);
  if (pipeline) {
    used = bit_if(1, TWS_FEATURE_PIPELINE) | bit_if(1, kinds[d->kind]);
    if (d->stage > 0) used |= UINT64_C(1) << (TWS_FEATURE_PIPELINE_STAGE_1 + d->stage - 1);
  }
  used |= bit_if(tensor, TWS_FEATURE_TENSOR) | bit_if(tensor && third, TWS_FEATURE_TENSOR_STAGE_3);
  used |= bit_if(tensor, d->tokens ? TWS_FEATURE_SPLIT_TOKENS : TWS_FEATURE_WHOLE_TOKENS);
  used |= bit_if(d->sequence > 1, d->ring ? TWS_FEATURE_RING : TWS_FEATURE_ULYSSES);
  used |= bit_if(expert, TWS_FEATURE_EXPERTS) | bit_if(expert && third, TWS_FEATURE_EXPERTS_STAGE_3);
  used |= bit_if(expert && d->expert_nodes, TWS_FEATURE_EXPERT_NODES);
  used |= bit_if(expert && d->half, TWS_FEATURE_EXPERTS_FP16);
  used |= bit_if(tensor && d->sparse && !d->tokens, TWS_FEATURE_EXPERTS_WHOLE_TOKENS);
  used |= bit_if(third && d->hpz, TWS_FEATURE_HPZ) | bit_if(third && d->mics, TWS_FEATURE_MICS);
  used |= bit_if(third && d->weights, TWS_FEATURE_QUANTIZED_WEIGHTS);
  used |= bit_if(third && d->gradients, TWS_FEATURE_QUANTIZED_GRADIENTS);
  const int optimizer = d->stage > 0 && d->optimizer, parameters = third && d->parameters;
  used |= bit_if(optimizer && !parameters, TWS_FEATURE_OFFLOAD_OPTIMIZER);
  used |= bit_if(parameters, TWS_FEATURE_OFFLOAD_PARAMETERS);
  used |= bit_if((optimizer || parameters) && d->disk, TWS_FEATURE_DISK);
  used |= bit_if(optimizer && !third && d->disk, TWS_FEATURE_DISK_BELOW_3);
  used |= bit_if(d->recompute == TWS_RECOMPUTE_SELECTIVE, TWS_FEATURE_SELECTIVE);
  used |= bit_if(d->recompute == TWS_RECOMPUTE_FULL, TWS_FEATURE_FULL);
  return used | bit_if(d->recompute == TWS_RECOMPUTE_OPERATIONS, TWS_FEATURE_OPERATIONS);
}

static division division_of(const tws_config *c, int sparse) {
  const tws_division given = tws_config_division(c);
  return (division){.stage = c->zero.stage,
                    .pipeline = given.pipeline,
                    .tensor = given.tensor,
                    .tokens = c->tensor_sequence_parallel != 0,
                    .sequence = given.sequence,
                    .ring = c->sequence_algorithm == TWS_SEQUENCE_RING,
                    .expert = c->expert_ranks > 1 ? (int)c->expert_ranks : 1,
                    .half = c->dtype == TWS_F16,
                    .sparse = sparse,
                    .kind = (tws_pipeline_kind)c->pipeline_schedule,
                    .hpz = c->zero.secondary_ranks > 1,
                    .mics = c->zero.shard_ranks > 0,
                    .weights = c->zero.quantized_weights,
                    .gradients = c->zero.quantized_gradients,
                    .expert_nodes = c->expert_node_ranks > 1,
                    .optimizer = c->zero.offload_optimizer != 0,
                    .parameters = c->zero.offload_param != 0,
                    .disk = c->zero.offload_optimizer == 2 || (c->zero.stage == 3 && c->zero.offload_param == 2),
                    .recompute = c->recompute};
}

tws_features tws_variant_features(const tws_config *config, int sparse, const tws_variant *v) {
  division d = division_of(config, sparse);
  int *const exchanges[TWS_EXCHANGE_COUNT] = {[TWS_EXCHANGE_HPZ] = &d.hpz,
                                              [TWS_EXCHANGE_MICS] = &d.mics,
                                              [TWS_EXCHANGE_EXPERT_NODES] = &d.expert_nodes,
                                              [TWS_EXCHANGE_WEIGHTS] = &d.weights,
                                              [TWS_EXCHANGE_GRADIENTS] = &d.gradients};
  d.stage = v->stage;
  d.recompute = v->recompute;
  if (v->pipeline > 0) d.pipeline = v->pipeline;
  if (v->pipeline > 0) d.kind = v->schedule.kind;
  if (v->tensor > 0) d.tensor = v->tensor;
  if (v->tensor > 0) d.tokens = v->sequence_parallel;
  if (v->sequence > 0) d.sequence = v->sequence;
  if (v->expert > 0) d.expert = v->expert;
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++)
    if (v->exchange[i]) *exchanges[i] = v->exchange[i] > 1;
  if (v->offload) {
    d.optimizer = tws_variant_offloads(v, 0);
    d.parameters = tws_variant_offloads(v, 1);
    d.disk = strncmp(tws_offload_words[v->offload - 1], "nvme", 4) == 0;
  }
  return division_features(&d);
}

tws_features tws_config_features(const tws_config *c, int sparse) {
  const division d = division_of(c, sparse);
  tws_features used = division_features(&d);
  const int tensor = d.tensor > 1, expert = d.expert > 1, reduces = d.stage > 0 && d.pipeline < 2;
  const tws_feature narrow = c->matmul_dtype == TWS_MATMUL_FP8 ? TWS_FEATURE_FP8 : TWS_FEATURE_NARROW;
  used |= bit_if(tensor && c->tensor_overlap, TWS_FEATURE_TENSOR_OVERLAP);
  used |= bit_if(tensor && c->expert_tensor_parallel, TWS_FEATURE_EXPERT_TENSOR);
  used |= bit_if(expert && c->expert_dispatch_fp8, TWS_FEATURE_DISPATCH_FP8);
  used |= bit_if(reduces && c->zero.overlap_comm, TWS_FEATURE_OVERLAP);
  used |= bit_if(tws_features_have(used, TWS_FEATURE_DISK) && tws_config_uses_gds(c), TWS_FEATURE_GPUDIRECT_STORAGE);
  used |= bit_if(tws_config_checkpoints_on_host(c), TWS_FEATURE_CHECKPOINTS_ON_HOST);
  used |= bit_if(c->zenflow.on, TWS_FEATURE_ZENFLOW) | bit_if(c->delayed_update, TWS_FEATURE_DELAYED_UPDATE);
  used |= bit_if(c->mlp_tiles > 1, TWS_FEATURE_MLP_TILES);
  used |= bit_if(c->attention_chunks > 1, TWS_FEATURE_ATTENTION_CHUNKS);
  used |= bit_if(d.stage == 3 && c->linear_tile_size > 0, TWS_FEATURE_LINEAR_TILES);
  used |= bit_if(c->dtype == TWS_F16, TWS_FEATURE_FP16) | bit_if(c->matmul_dtype != TWS_MATMUL_AUTO, narrow);
  used |= bit_if(c->lora.r > 0, TWS_FEATURE_LORA);
  return used | bit_if(tws_config_frozen_type(c) != TWS_QUANTIZATION_NONE, TWS_FEATURE_QUANTIZED_FROZEN);
}

int tws_config_updates_late(const tws_config *c) {
  return c->zenflow.on || c->delayed_update;
}

tws_features tws_job_features(const tws_job *job) {
  return tws_config_features(job->config, tws_network_has_experts(job->network));
}

tws_features tws_job_unsupported_features(const tws_job *job) {
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  return tws_job_features(job) & ~tws_runtime_features(runtime, job->backend);
}

tws_features tws_job_unsupported_everywhere(const tws_job *job) {
  const division d = division_of(job->config, tws_network_has_experts(job->network));
  const tws_features varied = division_features(&d) | BIT(OVERLAP);
  return tws_job_unsupported_features(job) & ~varied;
}

void tws_features_json(tws_features lacked, cJSON *json) {
  cJSON *list = lacked ? cJSON_AddArrayToObject(json, "missing") : NULL;
  for (int i = 0; list && i < TWS_FEATURE_COUNT; i++) {
    if (!tws_features_have(lacked, (tws_feature)i)) continue;
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "feature", features[i].words);
    cJSON_AddStringToObject(one, "remedy", features[i].remedy);
    cJSON_AddItemToArray(list, one);
  }
}

void tws_features_text(tws_features lacked, tws_text *out) {
  for (int i = 0; i < TWS_FEATURE_COUNT; i++)
    if (tws_features_have(lacked, (tws_feature)i))
      tws_text_add(out, "%sno %s (give %s)", out->length ? "; " : "has ", features[i].words, features[i].remedy);
}
