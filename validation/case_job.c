/* From a measured run to a job: tables that choose machine and software, and texts of a model and a configuration. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "models/hardware/runtime.h"
#include "validation/case_fields.h"
#include "validation/cases.h"

static tws_code lacks(tws_error *err, const char *reason) {
  return tws_fail(err, TWS_UNSUPPORTED, NULL, "%s", reason);
}

/* ---- the machine ---- */

/* What the row's "gpu" holds, the first that fits; memory: GB, 0: any; devices of a node, 0: any. domain: GPUs on one
 * NVLink switch, 0: a node's. Sixteen V100 of 32 GB in one node are a DGX-2's. */
static const struct {
  const char *gpu;
  int memory;
  const char *profile, *cluster;
  int domain, devices;
} machines[] = {
    {"V100", 16, "v100-16gb", "quad-v100", 0, 4},
    {"V100-SXM2-16GB", 0, "v100-16gb", "dgx1-v100", 0, 0},
    {"V100-16GB", 0, "v100-16gb", "dgx1-v100", 0, 0},
    {"V100", 16, "v100-16gb", "dgx1-v100", 0, 0},
    {"V100-SXM3", 0, "v100-sxm3-32gb", "dgx2-v100", 0, 0},
    {"V100", 32, "v100-sxm3-32gb", "dgx2-v100", 0, 16},
    {"V100", 0, "v100-32gb", "quad-v100", 0, 4},
    {"V100", 0, "v100-32gb", "dgx1-v100", 0, 0},
    {"A100-SXM4-40GB", 0, "a100-40gb-nccl", "dgx-a100-40gb", 0, 0},
    {"A100-40GB", 0, "a100-40gb-nccl", "dgx-a100-40gb", 0, 0},
    {"A100", 40, "a100-40gb-nccl", "dgx-a100-40gb", 0, 0},
    {"A100", 0, "a100-80gb-nccl", "dgx-a100", 0, 0},
    {"H100-SXM-96GB", 0, "h100-96gb-500w", "dgx-h100", 0, 0},
    {"H100-PCIe", 0, "h100-pcie", "dgx-h100", 0, 0},
    {"H100", 0, "h100-sxm", "dgx-h100", 0, 0},
    {"H200", 0, "h200", "dgx-h200", 0, 0},
    {"GB200", 0, "gb200", "dgx-b200", 72, 0},
    {"GB300", 0, "gb300", "dgx-b200", 72, 0},
    {"B300", 0, "b300", "dgx-b200", 0, 0},
    {"B200", 0, "b200", "dgx-b200", 0, 0},
    {"RTX4090", 0, "a100-40gb", "dgx-a100-40gb", 0, 0}, /* Ampere's profile for Ada: memory alone is compared */
    {"A6000", 0, "a100-40gb", "dgx-a100-40gb", 0, 0},
};

/* Networks by what the row calls them: ports a node (0: one a GPU), Gbit/s each, what rings reach of that. InfiniBand
 * and RoCE 0.95; Omni-Path 0.24, fitted to half of bloom-prequel and within the 23 to 90 of 400 Gbit/s that its authors
 * measured in all-reduces. Messages between two ranks reach 0.95 of all of them. */
static const struct {
  const char *name;
  int ports;
  double gbit, reached;
} networks[] = {
    {"4x Omni-Path", 4, 100, 0.24},   {"800 Gbps/node", 4, 200, 0.95}, {"1600 Gbps/node", 8, 200, 0.95},
    {"3200 Gbps/node", 8, 400, 0.95}, {"HDR200", 8, 200, 0.95},        {"NDR400", 8, 400, 0.95},
    {"EDR100", 8, 100, 0.95},         {"400 Gb", 0, 400, 0.95},        {"800 Gbps", 8, 100, 0.95},
    {"660 Gbps", 8, 82.5, 1},         {"4.1 Gbps", 1, 4.1, 1},
};

/* Bytes/s of rings through the node of 16 V100 of DeepSpeed's autotuning examples, where NVSwitch gives over 100:
 * fitted to every second of their end-to-end runs. What was between these GPUs is not known; runs of all stages say the
 * same.
 */
#define AUTOTUNER_LINK 24e9

static tws_code load_machine(const cJSON *row, int ranks, tws_job_parts_given *parts, tws_error *err) {
  const char *gpu = tws_case_text(row, "hardware", "gpu"), *network = tws_case_text(row, "hardware", "inter_link");
  const int memory = tws_case_int(row, "hardware", "gpu_mem_gb");
  const int stated = tws_case_int(row, "hardware", "gpus_per_node");
  size_t at = 0;
  while (at < sizeof machines / sizeof *machines &&
         !(strstr(gpu, machines[at].gpu) && (!machines[at].memory || machines[at].memory == memory) &&
           (!machines[at].devices || machines[at].devices == stated)))
    at++;
  if (!*gpu) return lacks(err, "the GPU is not stated");
  if (at == sizeof machines / sizeof *machines) return lacks(err, "there is no profile of the GPU");
  tws_cluster *c = &parts->cluster;
  TWS_TRY(tws_cluster_load(machines[at].cluster, c, err));
  int devices = stated >= 1 ? stated : c->devices_per_node;
  c->nics_per_node = devices < c->nics_per_node ? devices : c->nics_per_node;
  if (machines[at].domain) { /* whole trays of a rack, a port for each GPU */
    devices = ranks < machines[at].domain ? ranks : 64;
    c->nics_per_node = devices;
  }
  c->devices_per_node = devices;
  c->nodes = (ranks + devices - 1) / devices;
  for (size_t i = 0; i < sizeof networks / sizeof *networks; i++) {
    if (!strstr(network, networks[i].name)) continue;
    c->nics_per_node = networks[i].ports ? networks[i].ports : devices;
    c->inter.bandwidth = networks[i].gbit / 8 * 1e9 * networks[i].reached;
    c->message_bandwidth = fmax(networks[i].gbit / 8 * 1e9 * 0.95, c->inter.bandwidth);
    break;
  }
  if (strstr(tws_case_text(row, "hardware", "framework"), "HF Trainer")) c->intra.bandwidth = AUTOTUNER_LINK;
  return tws_profile_load(machines[at].profile, &parts->profile, err);
}

/* ---- the software ---- */

/* By "framework", the first that fits; where given, its "version" and the "source" that dates it, and "notes" where a
 * setting shows there. */
static const struct {
  const char *framework, *version, *source, *notes, *runtime;
} software[] = {
    {"bigscience", NULL, NULL, "CUDA_LAUNCH_BLOCKING=1", "megatron-2021-blocking"},
    {"Megatron-LM v1.0", NULL, NULL, NULL, "megatron-2019"},
    {"Megatron-LM / Megatron-DeepSpeed 2021", NULL, NULL, NULL, "megatron-2021"},
    {"Megatron-LM/Core CI", NULL, NULL, NULL, "megatron"},
    {"Megatron-DeepSpeed new", NULL, NULL, NULL, "megatron"},
    {"Megatron-DeepSpeed", "2022-23", NULL, NULL, "megatron-2022"},
    {"Megatron-DeepSpeed", NULL, "2201.11990", NULL, "megatron-deepspeed-2021"},
    {"Megatron-DeepSpeed", NULL, NULL, NULL, "megatron-2021"},
    {"Megatron-Bridge", "26", NULL, NULL, "nemo-2026"},
    {"Megatron-Bridge", NULL, NULL, NULL, "nemo"},
    {"NeMo", NULL, NULL, NULL, "nemo"},
    {"Megatron-Core", NULL, NULL, NULL, "megatron"},
    {"Meta internal", NULL, NULL, NULL, "megatron"},
    {"Megatron-LM", NULL, "2205.05198", NULL, "megatron-2022"},
    {"Megatron-LM", NULL, NULL, NULL, "megatron-2021"},
    {"FSDP", NULL, NULL, NULL, "fsdp-2022"},
    {"torchtitan", "2024-04", NULL, NULL, "fsdp-2024"},
    {"torchtitan", NULL, NULL, NULL, "fsdp"},
    {"torchtune", NULL, NULL, NULL, "torchtune"},
    {"LitGPT", NULL, NULL, NULL, "litgpt"},
    /* its benchmark.py calls from_pretrained() and has no zero.Init */
    {"Liger", NULL, "when-to-upgrade-gpus", NULL, "deepspeed-whole"},
    {"Liger", NULL, NULL, NULL, "deepspeed-flash"},
    {"HF Trainer", NULL, NULL, NULL, "transformers-2021"},
    {"pytorch", NULL, NULL, "SQuAD", "pytorch-2020"},
    {"ALST", NULL, NULL, NULL, "deepspeed-flash"},
    {"", NULL, "DeepSpeed MoE NLG", NULL, "megatron-2021"}, /* Megatron-DeepSpeed; the row names none */
    {"", NULL, NULL, NULL, "deepspeed"},
};

static int is_ddp(const cJSON *row) {
  return strstr(tws_case_text(row, "parallel", "zero_stage"), "DDP") != NULL;
}

static const tws_runtime *runtime_of(const cJSON *row) {
  const char *framework = tws_case_text(row, "hardware", "framework");
  const char *version = tws_case_text(row, "hardware", "version"), *notes = tws_case_text(row, NULL, "notes");
  const char *title = tws_case_text(row, "source", "title"), *url = tws_case_text(row, "source", "url");
  size_t at = 0;
  while (!strstr(framework, software[at].framework) ||
         (software[at].source && !strstr(title, software[at].source) && !strstr(url, software[at].source)) ||
         (software[at].version && !strstr(version, software[at].version)) ||
         (software[at].notes && !strstr(notes, software[at].notes)))
    at++;
  if (tws_case_is_rebased(row)) return tws_runtime_find("megatron-2022");
  if (tws_case_keeps_scores(row)) return tws_runtime_find("megatron-unfused");
  if (strcmp(software[at].runtime, "fsdp") == 0 && tws_case_flag(row, "parallel", "compile"))
    return tws_runtime_find("fsdp-compiled");
  if (strcmp(software[at].runtime, "nemo-2026") == 0 && tws_case_has_experts(row))
    return tws_runtime_find(tws_case_experts_runtime(row));
  if (strcmp(software[at].runtime, "transformers-2021") == 0 && is_ddp(row))
    return tws_runtime_find("transformers-2021-ddp");
  return tws_runtime_find(software[at].runtime);
}

static int is_selective(const cJSON *row) {
  return strncmp(tws_case_text(row, "parallel", "recompute"), "selective", 9) == 0 ||
         strstr(tws_case_text(row, "parallel", "recompute"), "SAC") != NULL;
}

static tws_matmul_dtype matmul_dtype(const cJSON *row) {
  const char *precision = tws_case_text(row, "parallel", "precision");
  if (strstr(precision, "FP4")) return TWS_MATMUL_NVFP4;
  if (strstr(precision, "rowwise")) return TWS_MATMUL_FP8_ROWWISE;
  return strstr(precision, "fp8") || strstr(precision, "FP8") || strstr(precision, "float8") ? TWS_MATMUL_FP8
                                                                                             : TWS_MATMUL_AUTO;
}

static tws_code apply_software(const cJSON *row, tws_profile *profile, tws_error *err) {
  TWS_TRY(tws_profile_set_runtime(profile, runtime_of(row), err));
  if (is_selective(row)) tws_profile_recompute_scores(profile);
  if (tws_case_flag(row, "parallel", "ep_overlap")) tws_profile_overlap_experts(profile);
  if (tws_case_issues_in_turns(row)) tws_profile_issue_in_turns(profile);
  if (tws_case_drops(row)) tws_profile_keep_masks(profile);
  return TWS_OK;
}

/* ---- the model ---- */

static int holds_any(const char *text, const char *const *words) {
  for (int i = 0; words[i]; i++)
    if (strstr(text, words[i])) return 1;
  return 0;
}

static tws_code check_model(const cJSON *row, tws_error *err) {
  static const char *const encoders[] = {"BERT", "bert", "DeBERTa", "deberta", NULL};
  static const char *const others[] = {"T5",         "t5_", "Mamba", "mamba", "hybrid",
                                       "Nemotron_3", "VL",  "FLUX",  "Wan",   NULL};
  const char *name = tws_case_text(row, "model", "name");
  if (holds_any(name, encoders) && !tws_case_encoder(row)) return lacks(err, "encoder models");
  if (holds_any(name, others)) return lacks(err, "neither a GPT nor a Llama");
  if (!(tws_case_number(row, "model", "layers") > 0) || !(tws_case_number(row, "model", "hidden") > 0) ||
      !(tws_case_number(row, "model", "heads") > 0))
    return lacks(err, "the model's sizes are not stated");
  if (tws_case_has_experts(row) && !tws_case_knows_experts(row))
    return lacks(err, "the sizes of the model's experts are not stated");
  if (tws_case_test_lacks(row)) return lacks(err, tws_case_test_lacks(row));
  if (!(tws_case_vocabulary(row) > 0) && !tws_case_is_gpt_with_experts(row))
    return lacks(err, "the vocabulary is not stated");
  if (!(tws_case_number(row, "model", "seq_len") > 0)) return lacks(err, "the sequence length is not stated");
  return TWS_OK;
}

/* A gated feed-forward layer is stated, or follows from its width; fewer key heads than query heads are Llama's. */
static int is_llama(const cJSON *row) {
  const double h = tws_case_number(row, "model", "hidden"), ffn = tws_case_number(row, "model", "ffn");
  const double kv = tws_case_number(row, "model", "kv_heads");
  return tws_case_flag(row, "model", "swiglu") || (kv > 0 && kv < tws_case_number(row, "model", "heads")) ||
         (ffn > 0 && ffn != 4 * h && strstr(tws_case_text(row, "model", "name"), "GPT") == NULL);
}

static int is_litgpt(const cJSON *row) {
  return strstr(tws_case_text(row, "hardware", "framework"), "LitGPT") != NULL;
}

static void write_model(const cJSON *row, tws_text *text) {
  const long long layers = (long long)tws_case_number(row, "model", "layers");
  const long long hidden = (long long)tws_case_number(row, "model", "hidden");
  const long long heads = (long long)tws_case_number(row, "model", "heads");
  const long long vocabulary = (long long)tws_case_vocabulary(row);
  const long long positions = (long long)tws_case_number(row, "model", "seq_len");
  const long long kv = (long long)tws_case_number(row, "model", "kv_heads");
  long long ffn = (long long)tws_case_number(row, "model", "ffn");
  const cJSON *untied = tws_case_member(row, "model", "untied");
  if (tws_case_has_experts(row)) {
    tws_case_write_experts(row, text);
    return;
  }
  /* LitGPT's own class never ties its head, and the models in its tables that are no Llama have the layers of Phi but
     for another share of a head that is turned */
  if (!is_llama(row) && is_litgpt(row)) {
    tws_text_add(text,
                 "{\"model_type\":\"phi\",\"num_hidden_layers\":%lld,\"hidden_size\":%lld,\"num_attention_heads\":%lld,"
                 "\"intermediate_size\":%lld,\"max_position_embeddings\":%lld,\"vocab_size\":%lld,"
                 "\"partial_rotary_factor\":%g}",
                 layers, hidden, heads, ffn, positions, vocabulary,
                 strstr(tws_case_text(row, "model", "name"), "StableLM") ? 0.25 : 0.5);
    return;
  }
  if (tws_case_encoder(row)) {
    tws_case_write_encoder(row, text);
    return;
  }
  if (!is_llama(row)) {
    if (!ffn) ffn = 4 * hidden;
    tws_text_add(text,
                 "{\"model_type\":\"gpt2\",\"n_layer\":%lld,\"n_embd\":%lld,\"n_head\":%lld,\"n_inner\":%lld,"
                 "\"n_positions\":%lld,\"vocab_size\":%lld,\"tie_word_embeddings\":%s}",
                 layers, hidden, heads, ffn, positions, vocabulary, cJSON_IsTrue(untied) ? "false" : "true");
    return;
  }
  if (!ffn) ffn = (hidden * 8 / 3 + 255) / 256 * 256; /* Touvron et al., 2023 */
  /* grouped key heads without a gate (Nemotron, Megatron's own): StarCoder 2's layers, but for norms and biases */
  const cJSON *gated = tws_case_member(row, "model", "swiglu");
  const int plain = gated ? cJSON_IsFalse(gated) : ffn >= 4 * hidden;
  tws_text_add(text,
               "{\"model_type\":\"%s\",\"num_hidden_layers\":%lld,\"hidden_size\":%lld,"
               "\"num_attention_heads\":%lld,\"num_key_value_heads\":%lld,\"intermediate_size\":%lld,"
               "\"max_position_embeddings\":%lld,\"vocab_size\":%lld,\"tie_word_embeddings\":%s}",
               plain ? "starcoder2" : "llama", layers, hidden, heads, kv > 0 ? kv : heads, ffn, positions, vocabulary,
               cJSON_IsFalse(untied) || (tws_case_recipe_of(row) && tws_case_recipe_of(row)->tied) ? "true" : "false");
}

/* ---- the configuration ---- */

typedef struct division {
  int tensor, stages, sequence, data, chunks, experts, ranks;
  int ring; /* the ranks of a sequence are Megatron's context parallelism, or torchtitan's */
  long long micro, accumulation;
} division;

static int at_least_one(double value) {
  return value >= 1 && value <= 1e9 ? (int)value : 1;
}

static tws_code read_batch(const cJSON *row, division *d, tws_error *err) {
  const double global = tws_case_number(row, "parallel", "global_batch");
  d->micro = (long long)tws_case_number(row, "parallel", "micro_batch");
  d->accumulation = (long long)tws_case_number(row, "parallel", "grad_accum");
  if (d->micro < 1 && tws_case_is_gpt_with_experts(row)) d->micro = (long long)(global / d->data);
  if (d->micro < 1) return lacks(err, "the micro batch is not stated");
  if (!(global > 0) && d->accumulation < 1) d->accumulation = 1;
  if (global > 0) {
    const double each = global / ((double)d->micro * d->data);
    if (fabs(each - round(each)) > 1e-6 || each < 1)
      return lacks(err, "the global batch is no multiple of micro batch and replicas");
    d->accumulation = (long long)round(each);
  }
  return TWS_OK;
}

static tws_code read_division(const cJSON *row, division *d, tws_error *err) {
  const double gpus = tws_case_gpus(row), dp = tws_case_number(row, "parallel", "dp");
  d->tensor = at_least_one(tws_case_number(row, "parallel", "tp"));
  d->stages = at_least_one(tws_case_number(row, "parallel", "pp"));
  d->sequence = at_least_one(tws_case_number(row, "parallel", "sp"));
  d->chunks = at_least_one(tws_case_number(row, "parallel", "vpp"));
  d->experts = at_least_one(tws_case_number(row, "parallel", "ep"));
  d->ring = tws_case_number(row, "parallel", "cp") > 1;
  if (d->ring && d->sequence > 1) return lacks(err, "two kinds of sequence parallelism");
  /* Equal divisions and equal measured memory are 0 and 40 % below predictions there: something is not recorded. */
  const cJSON *group = cJSON_GetObjectItemCaseSensitive(row, "group");
  if (d->ring && cJSON_IsString(group) && strncmp(group->valuestring, "mlm-golden", 10) == 0)
    return lacks(err, "context parallelism in Megatron's own tests");
  if (d->ring) d->sequence = tws_case_int(row, "parallel", "cp");
  const double held = tws_case_number(row, "parallel", "vp_layers_per_stage");
  if (held > 0) d->chunks = at_least_one(tws_case_number(row, "model", "layers") / d->stages / held);
  if (tws_case_one_layer_chunks(row))
    d->chunks = at_least_one((tws_case_number(row, "model", "layers") + 2) / d->stages);
  const double replica = (double)d->tensor * d->stages * d->sequence;
  if (!(dp > 0) && !(gpus > 0)) return lacks(err, "the number of GPUs is not stated");
  d->data = at_least_one(dp > 0 && d->sequence == 1 ? dp : gpus / replica);
  if (replica * d->data > 1e6) return lacks(err, "more than 10^6 ranks");
  d->ranks = (int)replica * d->data;
  if (gpus > 0 && d->ranks != gpus) return lacks(err, "degrees of parallelism do not multiply to the GPUs");
  return read_batch(row, d, err);
}

/* NeMo's, and Megatron-Bridge's: rank 32, without dropout, one of queries, keys and values together (attention_qkv,
 * linear_qkv), which is planned as one of queries. */
static int is_nemo_lora(const cJSON *row) {
  const char *framework = tws_case_text(row, "hardware", "framework");
  const int stated = strcmp(tws_case_text(row, "parallel", "peft"), "LoRA") == 0 ||
                     strstr(tws_case_text(row, NULL, "notes"), "task=LoRA") != NULL;
  return stated && (strstr(framework, "NeMo") || strstr(framework, "Megatron-Bridge"));
}

/* LitGPT's adapters are of queries and values: trained numbers say the rank. */
static long long lora_rank(const cJSON *row) {
  const double trained = tws_case_number(row, "parallel", "trainable"), h = tws_case_number(row, "model", "hidden");
  const double heads = tws_case_number(row, "model", "heads"), kv = tws_case_number(row, "model", "kv_heads");
  if (is_nemo_lora(row)) return 32;
  if (tws_case_recipe_of(row)) return tws_case_recipe_of(row)->rank;
  if (!strstr(tws_case_text(row, "parallel", "peft"), "LoRA") || !is_litgpt(row)) return 0;
  const double values = kv > 0 && is_llama(row) ? h * kv / heads : h;
  const double each = tws_case_number(row, "model", "layers") * (3 * h + values), rank = trained / each;
  return rank >= 1 && fabs(rank - round(rank)) < 1e-9 ? (long long)round(rank) : 0;
}

/* Ranks that partition parameters among them, where other groups have copies (PyTorch's hybrid shards, of a node where
 * nothing else is said); 0: all do. */
static long long group_ranks(const cJSON *row) {
  const double stated = tws_case_number(row, "parallel", "fsdp");
  if (stated > 1) return (long long)stated;
  return strncmp(tws_case_text(row, "parallel", "fsdp"), "HYBRID_SHARD", 12) == 0 ? 8 : 0;
}

static tws_code check_technique(const cJSON *row, tws_error *err) {
  if (tws_case_is_torchtune(row)) return tws_case_recipe_of(row) ? TWS_OK : lacks(err, tws_case_recipe_lacks(row));
  const char *peft = tws_case_text(row, "parallel", "peft");
  const char *recompute = tws_case_text(row, "parallel", "recompute"), *quant = tws_case_text(row, "parallel", "quant");
  static const char *const whole[] = {"SFT", "full", NULL};
  if (*peft && !holds_any(peft, whole) && !is_nemo_lora(row) && strncmp(peft, "Finetuning with LoRA", 20) != 0)
    return lacks(err, "adapters");
  if (strstr(peft, "dapter")) return lacks(err, "adapters that are not LoRA");
  if ((strstr(peft, "LoRA") || strstr(tws_case_text(row, NULL, "id"), "LoRA")) && lora_rank(row) == 0)
    return lacks(err, "the adapters are not stated");
  if (strncmp(quant, "bnb", 3) == 0 && strncmp(quant, "bnb.nf4", 7) != 0) return lacks(err, "quantised weights");
  if (cJSON_IsString(tws_case_member(row, "parallel", "offload_activations")))
    return lacks(err, "offloaded activations");
  if (strncmp(recompute, "attn_", 5) == 0 || strncmp(recompute, "normalize", 9) == 0 ||
      strncmp(recompute, "all kernel", 10) == 0 || strcmp(recompute, "partial") == 0 ||
      strncmp(recompute, "kernel", 6) == 0)
    return lacks(err, "recomputation of single operations");
  if (group_ranks(row) > 1 && tws_case_number(row, "parallel", "zero_stage") != 3)
    return lacks(err, "gradients and states alone in a part of the replicas");
  return TWS_OK;
}

static const char *dtype_section(const cJSON *row) {
  const char *precision = tws_case_text(row, "parallel", "precision");
  if (tws_case_is_torchtune(row)) /* its parameters are the only weights */
    return "\"bf16\":{\"enabled\":true,\"bf16_master_weights_and_grads\":true,\"bf16_optimizer_states\":true},";
  const int either = strncmp(precision, "bf16/fp16", 9) == 0 && strstr(tws_case_text(row, NULL, "notes"), "fp16 opt");
  if (strncmp(precision, "fp32", 4) == 0) return "";
  if (strncmp(precision, "fp16", 4) == 0 || either) return "\"fp16\":{\"enabled\":true},";
  return "\"bf16\":{\"enabled\":true},";
}

/* vTrain's times on one node: its rows say that layers were recomputed, and all that the device limits are as fast as
 * without (docs/accuracy.md). */
static int is_measured_without(const cJSON *row) {
  return strstr(tws_case_text(row, "source", "url"), "2312.12391") && tws_case_number(row, "hardware", "n_gpus") <= 8;
}

/* Megatron-Core's recompute_modules are operations of a plan: writes the list behind "selective", if one is stated. */
static int lists_modules(const cJSON *row, tws_text *text) {
  static const struct {
    const char *module, *operation;
  } known[] = {
      {"core_attn", "attention"}, {"layernorm", "norm"}, {"moe_act", "activation"}, {"mlp", "mlp"}, {"moe", "mlp"}};
  const char *list = tws_case_text(row, "parallel", "recompute"), *comma = "";
  if (strstr(tws_case_text(row, "hardware", "framework"), "Megatron") == NULL || strlen(list) < 10) return 0;
  tws_text_add(text, ",\"recompute\":\"operations\",\"recompute_operations\":\"");
  for (list += strlen("selective "); *list; list += strspn(list, ",")) {
    const size_t length = strcspn(list, ",");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
      if (length != strlen(known[i].module) || strncmp(list, known[i].module, length) != 0) continue;
      tws_text_add(text, "%s%s", comma, known[i].operation);
      comma = ",";
    }
    list += length;
  }
  tws_text_add(text, "\"");
  return 1;
}

/* Scores that no plan keeps are made again by the profile's attention, not by the plan. Of PyTorch's FSDP: torchtitan's
 * "selective", by operation or every second layer; its list of operations has no scaled products. */
static void write_recomputation(const cJSON *row, const tws_runtime *runtime, tws_text *text) {
  const char *recompute = tws_case_text(row, "parallel", "recompute");
  const int layers = strstr(recompute, "selective layer") != NULL;
  const char *mode = "none";
  if (is_selective(row) && lists_modules(row, text)) return;
  if (tws_case_recomputes_experts(row)) {
    tws_text_add(text, ",\"recompute\":\"operations\",\"recompute_operations\":\"norm,activation\"");
    return;
  }
  if (is_selective(row) && runtime->attention != TWS_ATTENTION_UNFUSED)
    mode = runtime->contends ? "operations" : "selective";
  if (layers || (strncmp(recompute, "full", 4) == 0 && !is_measured_without(row))) mode = "full";
  if (!*recompute && tws_case_is_gpt_with_experts(row)) mode = "full";
  if (tws_case_recipe_of(row)) mode = tws_case_recipe_of(row)->recomputes ? "full" : "none";
  if (is_litgpt(row) && tws_case_gpus(row) > 1)
    mode = "full"; /* activation_checkpointing_policy of its FSDP strategy */
  tws_text_add(text, ",\"recompute\":\"%s\",\"recompute_every\":%d", mode, layers ? 2 : 1);
  const int by_operation = strstr(recompute, "selective op") || strstr(recompute, "per-op SAC");
  if (matmul_dtype(row) != TWS_MATMUL_AUTO && by_operation) tws_text_add(text, ",\"recompute_budget\":0");
}

static void write_config(const cJSON *row, const division *d, tws_text *text) {
  const tws_runtime *runtime = runtime_of(row);
  const char *fsdp = tws_case_text(row, "parallel", "fsdp");
  int stage = tws_case_int(row, "parallel", "zero_stage");
  if (strncmp(tws_case_text(row, "parallel", "zero_stage"), "FSDP", 4) == 0) stage = 1; /* optimizer and gradients */
  if (strncmp(fsdp, "SHARD_GRAD_OP", 13) == 0) stage = 2;
  if (d->stages > 1 && stage > 1) stage = 1; /* of pipelines, what engines shard */
  const tws_case_recipe *recipe = tws_case_recipe_of(row);
  if (recipe && stage == 0) stage = 1; /* on one GPU the same, and 16-bit weights alone are of stages */
  const int by_itself = strcmp(runtime->name, "transformers-2021") != 0; /* DeepSpeed reduces behind backward */
  const int overlaps = runtime->overlaps_data || runtime->contends || (stage == 0 && d->stages == 1 && by_itself);
  tws_text_add(text, "{%s\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":0.0001}},\"gradient_clipping\":1.0,",
               dtype_section(row));
  if (runtime->float_gradients && stage > 0 && strncmp(tws_case_text(row, "parallel", "precision"), "fp32", 4) != 0)
    tws_text_add(text, "\"data_types\":{\"grad_accum_dtype\":\"fp32\"},\"communication_data_type\":\"fp32\",");
  tws_text_add(text, "\"train_micro_batch_size_per_gpu\":%lld,\"gradient_accumulation_steps\":%lld,", d->micro,
               d->accumulation);
  if (d->tensor > 1)
    tws_text_add(text, "\"tensor_parallel\":{\"autotp_size\":%d,\"tp_overlap_comm\":%s},", d->tensor,
                 runtime->overlaps_tensor ? "true" : "false");
  if (d->stages > 1)
    tws_text_add(text, "\"pipeline\":{\"stages\":%d,\"partition\":\"type:transformer%s\"},", d->stages,
                 tws_case_one_layer_chunks(row) ? "|embedding|lm_head" : "");
  if (d->sequence > 1) tws_text_add(text, "\"sequence_parallel_size\":%d,", d->sequence);
  tws_text_add(text, "\"zero_optimization\":{\"stage\":%d,\"overlap_comm\":%s", stage, overlaps ? "true" : "false");
  if (group_ranks(row) > 1) tws_text_add(text, ",\"mics_shard_size\":%lld", group_ranks(row));
  if (!by_itself) tws_text_add(text, ",\"use_multi_rank_bucket_allreduce\":false"); /* a key of 0.7 */
  if (*tws_case_text(row, "parallel", "offload_optimizer") && stage > 0)
    tws_text_add(text, ",\"offload_optimizer\":{\"device\":\"cpu\"}");
  tws_text_add(text, "},");
  if (tws_case_partitions_checkpoints(row))
    tws_text_add(text, "\"activation_checkpointing\":{\"partition_activations\":%s,\"cpu_checkpointing\":%s},",
                 d->tensor > 1 ? "true" : "false", tws_case_offloads_checkpoints(row) ? "true" : "false");
  if (recipe && recipe->offloads) tws_text_add(text, "\"activation_checkpointing\":{\"cpu_checkpointing\":true},");
  tws_text_add(text, "\"twinspeed\":{\"sequence_length\":%lld", (long long)tws_case_number(row, "model", "seq_len"));
  if (d->ring) tws_text_add(text, ",\"sequence_algorithm\":\"ring\"");
  write_recomputation(row, runtime, text);
  tws_text_add(text, ",\"matmul_dtype\":\"%s\"", tws_matmul_dtype_name(matmul_dtype(row)));
  if (runtime->overlaps_tensor) tws_text_add(text, ",\"tensor_overlap_chunks\":%d", runtime->overlaps_tensor);
  /* Liger's loss takes the tokens in about vocabulary / hidden parts, each with its logits */
  const double hidden = tws_case_number(row, "model", "hidden");
  if (strstr(tws_case_text(row, "hardware", "framework"), "Liger") && hidden > 0)
    tws_text_add(text, ",\"loss_tiles\":%.0f", ceil(tws_case_number(row, "model", "vocab") / hidden));
  if (recipe) tws_text_add(text, ",\"loss_tiles\":8");
  if (d->chunks > 1 && d->stages > 1)
    tws_text_add(text, ",\"pipeline_schedule\":\"interleaved\",\"virtual_stages\":%d", d->chunks);
  if (d->tensor > 1 && tws_case_flag(row, "parallel", "sequence_parallel"))
    tws_text_add(text, ",\"tensor_sequence_parallel\":true");
  /* benchmarks spread tokens evenly over experts: nobody gets more than an even share, and nothing is dropped */
  if (d->experts > 1) tws_text_add(text, ",\"expert_parallel_size\":%d,\"expert_capacity_factor\":1", d->experts);
  if (d->experts > 1 && tws_case_divides_experts(row)) tws_text_add(text, ",\"expert_tensor_parallel\":true");
  if (recipe && recipe->rank > 0)
    tws_text_add(text, ",\"lora\":{\"r\":%d,\"lora_alpha\":16,\"target_modules\":%s}", recipe->rank, recipe->targets);
  else if (lora_rank(row) > 0)
    tws_text_add(text, ",\"lora\":{\"r\":%lld,\"lora_alpha\":16,\"lora_dropout\":%s,\"target_modules\":[\"q_proj\"%s]}",
                 lora_rank(row), is_nemo_lora(row) ? "0" : "0.05",
                 is_nemo_lora(row) ? "" : ",\"v_proj\""); /* LitGPT's: finetune/lora.py */
  const char *quant = tws_case_text(row, "parallel", "quant");
  if (recipe && recipe->quantizes)
    tws_text_add(text, ",\"frozen_quantization\":{\"type\":\"nf4\",\"scale_block_size\":256}");
  if (strncmp(quant, "bnb.nf4", 7) == 0) /* its head too; -dq: scales in 8 bits */
    tws_text_add(text, ",\"frozen_quantization\":{\"type\":\"nf4\",\"scale_block_size\":%d,\"skip_modules\":[]}",
                 strcmp(quant, "bnb.nf4-dq") == 0 ? 256 : 0);
  tws_text_add(text, ",\"vocabulary_multiple\":%d}}",
               strstr(runtime->name, "megatron") || strstr(runtime->name, "nemo") ? 128 * d->tensor : d->tensor);
}

/* ---- the job ---- */

static tws_code load_texts(const tws_case *one, const division *d, tws_job_parts_given *parts, tws_error *err) {
  tws_text model = {0}, config = {0};
  tws_json *json = NULL;
  write_model(one->row, &model);
  write_config(one->row, d, &config);
  tws_code code = model.failed || config.failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory for a measured run")
                                                : tws_json_parse(config.data, config.length, one->id, &json, err);
  if (code == TWS_OK) code = tws_config_from_json(json, &parts->config, err);
  tws_json_destroy(json);
  json = NULL;
  if (code == TWS_OK) code = tws_json_parse(model.data, model.length, one->id, &json, err);
  if (code == TWS_OK)
    code = tws_network_from_json(json, tws_config_vocabulary_multiple(parts->config), &parts->network, err);
  tws_json_destroy(json);
  tws_text_free(&model);
  tws_text_free(&config);
  return code;
}

static tws_code load_parts(const tws_case *one, tws_job_parts_given *parts, tws_error *err) {
  division d = {0};
  TWS_TRY(check_model(one->row, err));
  TWS_TRY(check_technique(one->row, err));
  TWS_TRY(read_division(one->row, &d, err));
  TWS_TRY(load_machine(one->row, d.ranks, parts, err));
  TWS_TRY(apply_software(one->row, parts->profile, err));
  parts->ranks = d.ranks;
  return load_texts(one, &d, parts, err);
}

/* Places in texts that nobody wrote say nothing, and would tell equal reasons apart. */
static tws_code without_place(const char *name, const tws_error *why, tws_error *err) {
  const char *place = strncmp(why->message, name, strlen(name)) == 0 ? strstr(why->message + strlen(name), ": ") : NULL;
  return tws_fail(err, why->code, why->hint, "%s", place ? place + 2 : why->message);
}

tws_code tws_case_job(const tws_cases *cases, int index, tws_job **out, tws_error *err) {
  tws_job_parts_given parts = {0};
  tws_error why = {0};
  *out = NULL;
  tws_code code = load_parts(&cases->cases[index], &parts, &why);
  if (code == TWS_OK) {
    code = tws_job_assemble(&parts, out, &why);
  } else {
    tws_network_destroy(parts.network);
    tws_config_destroy(parts.config);
    tws_profile_destroy(parts.profile);
  }
  return code == TWS_OK ? TWS_OK : without_place(cases->cases[index].id, &why, err);
}
