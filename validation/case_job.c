/* Builds a job from a measured run: its machine, its software, its degrees of parallelism, and the JSON texts of a
 * model and a configuration. The rules about the run's source add properties that its row does not state
 * (case_rules.h). */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "models/hardware/runtime.h"
#include "validation/case_fields.h"

static tws_code lacks(tws_error *err, const char *reason) {
  return tws_fail(err, TWS_UNSUPPORTED, NULL, "%s", reason);
}

/* ---- the machine ---- */

static tws_code load_machine(const tws_case *one, int ranks, tws_job_parts_given *parts, tws_error *err) {
  const int stated = tws_case_int(one->row, "hardware", "gpus_per_node");
  const int domain = (int)tws_case_fact_number(one, "nvlink_domain");
  if (!*tws_case_text(one->row, "hardware", "gpu")) return lacks(err, "the GPU is not stated");
  if (!*tws_case_fact_text(one, "profile")) return lacks(err, "there is no profile of the GPU");
  tws_cluster *c = &parts->cluster;
  TWS_TRY(tws_cluster_load(tws_case_fact_text(one, "cluster"), c, err));
  int devices = stated >= 1 ? stated : c->devices_per_node;
  c->nics_per_node = devices < c->nics_per_node ? devices : c->nics_per_node;
  /* An NVLink domain is a rack. A job that fits into one rack uses as many of its GPUs as it has ranks; a larger job
   * uses 64 GPUs of each rack, which are whole trays. Each GPU has a NIC. */
  if (domain) {
    devices = ranks < domain ? ranks : 64;
    c->nics_per_node = devices;
  }
  c->devices_per_node = devices;
  c->nodes = (ranks + devices - 1) / devices;
  if (tws_case_fact(one, "network_gbit")) { /* a message between two ranks reaches 0.95 of the bandwidth of all NICs */
    const double gbit = tws_case_fact_number(one, "network_gbit");
    const int ports = (int)tws_case_fact_number(one, "network_ports");
    c->nics_per_node = ports ? ports : devices;
    c->inter.bandwidth = gbit / 8 * 1e9 * tws_case_fact_number(one, "network_reached");
    c->message_bandwidth = fmax(gbit / 8 * 1e9 * 0.95, c->inter.bandwidth);
  }
  const double intra = tws_case_fact_number(one, "intra_bytes_per_s");
  if (intra > 0) c->intra.bandwidth = intra;
  return tws_profile_load(tws_case_fact_text(one, "profile"), &parts->profile, err);
}

/* ---- the software ---- */

static const tws_runtime *runtime_of(const tws_case *one) {
  return tws_runtime_find(tws_case_fact_text(one, "runtime"));
}

/* Fails with TWS_UNSUPPORTED for software without a runtime, since the runtime determines the step's time. */
static tws_code check_software(const tws_case *one, tws_error *err) {
  const char *named = tws_case_text(one->row, "hardware", "framework");
  if (*tws_case_fact_text(one, "runtime")) return TWS_OK;
  tws_text list = {0};
  for (const char *const *name = tws_runtime_names(); *name; name++)
    tws_text_add(&list, "%s%s", list.length ? ", " : "", *name);
  const tws_code code =
      list.failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory for a measured run")
      : *named    ? tws_fail(err, TWS_UNSUPPORTED, NULL,
                             "\"hardware.framework\" is \"%.80s\", and no runtime is known for it; name the "
                                "software, or one of the runtimes: %s",
                             named, list.data)
                  : tws_fail(err, TWS_UNSUPPORTED, NULL,
                             "the software is not stated: \"hardware.framework\" names it, or one of the runtimes: %s",
                             list.data);
  tws_text_free(&list);
  return code;
}

static tws_code apply_software(const tws_case *one, tws_profile *profile, tws_error *err) {
  const tws_runtime *runtime = runtime_of(one);
  if (!runtime)
    return tws_fail(err, TWS_INVALID, NULL, "%s: there is no runtime \"%.60s\"", one->id,
                    tws_case_fact_text(one, "runtime"));
  TWS_TRY(tws_profile_set_runtime(profile, runtime, err));
  if (tws_case_fact_flag(one, "selective")) tws_profile_recompute_scores(profile);
  if (tws_case_flag(one->row, "parallel", "ep_overlap")) tws_profile_overlap_experts(profile);
  if (tws_case_fact_flag(one, "issues_in_turns")) tws_profile_issue_in_turns(profile);
  if (tws_case_fact_flag(one, "biased_experts")) tws_profile_bias_experts(profile);
  if (tws_case_fact_flag(one, "keeps_masks")) tws_profile_keep_masks(profile);
  if (tws_case_fact(one, "allocator"))
    TWS_TRY(tws_profile_set_allocator(profile, tws_case_fact_text(one, "allocator"), err));
  return TWS_OK;
}

/* ---- the configuration ---- */

typedef struct division {
  int tensor, stages, sequence, data, chunks, experts, ranks;
  int ring; /* 1: the sequence ranks are those of Megatron's or torchtitan's context parallelism */
  long long micro, accumulation;
} division;

static int at_least_one(double value) {
  return value >= 1 && value <= 1e9 ? (int)value : 1;
}

static tws_code read_batch(const tws_case *one, division *d, tws_error *err) {
  const cJSON *row = one->row;
  const double global = tws_case_number(row, "parallel", "global_batch");
  d->micro = (long long)(tws_case_fact(one, "micro_batch") ? tws_case_fact_number(one, "micro_batch")
                                                           : tws_case_number(row, "parallel", "micro_batch"));
  d->accumulation = (long long)tws_case_number(row, "parallel", "grad_accum");
  if (d->micro < 1 && tws_case_fact_flag(one, "micro_batch_is_share")) d->micro = (long long)(global / d->data);
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

static tws_code read_division(const tws_case *one, division *d, tws_error *err) {
  const cJSON *row = one->row;
  const double gpus = tws_case_fact_number(one, "gpus"), dp = tws_case_number(row, "parallel", "dp");
  d->tensor = at_least_one(tws_case_number(row, "parallel", "tp"));
  d->stages = at_least_one(tws_case_number(row, "parallel", "pp"));
  d->sequence = at_least_one(tws_case_number(row, "parallel", "sp"));
  d->chunks = at_least_one(tws_case_fact(one, "chunks") ? tws_case_fact_number(one, "chunks")
                                                        : tws_case_number(row, "parallel", "vpp"));
  d->experts = at_least_one(tws_case_number(row, "parallel", "ep"));
  d->ring = tws_case_number(row, "parallel", "cp") > 1;
  if (d->ring) d->sequence = tws_case_int(row, "parallel", "cp");
  const double held = tws_case_number(row, "parallel", "vp_layers_per_stage");
  if (held > 0) d->chunks = at_least_one(tws_case_number(row, "model", "layers") / d->stages / held);
  if (tws_case_fact_flag(one, "one_layer_chunks"))
    d->chunks = at_least_one((tws_case_number(row, "model", "layers") + 2) / d->stages);
  const double replica = (double)d->tensor * d->stages * d->sequence;
  if (!(dp > 0) && !(gpus > 0)) return lacks(err, "the number of GPUs is not stated");
  d->data = at_least_one(dp > 0 && d->sequence == 1 ? dp : gpus / replica);
  if (replica * d->data > 1e6) return lacks(err, "more than 10^6 ranks");
  d->ranks = (int)replica * d->data;
  if (gpus > 0 && d->ranks != gpus) return lacks(err, "degrees of parallelism do not multiply to the GPUs");
  return read_batch(one, d, err);
}

/* Writes the recomputed operations that a row lists after "selective", in the terms of its software; returns 0 if it
 * lists none. */
static int lists_operations(const tws_case *one, tws_text *text) {
  const char *list = tws_case_text(one->row, "parallel", "recompute"), *comma = "";
  const cJSON *words = tws_case_fact(one, "recompute_words"), *word;
  if (!words || strlen(list) < 10) return 0;
  tws_text_add(text, ",\"recompute\":\"operations\",\"recompute_operations\":\"");
  for (list += strlen("selective "); *list; list += strspn(list, ",")) {
    const size_t length = strcspn(list, ",");
    cJSON_ArrayForEach(word, words) {
      if (length != strlen(word->string) || strncmp(list, word->string, length) != 0) continue;
      tws_text_add(text, "%s%s", comma, tws_case_text(words, NULL, word->string));
      comma = ",";
    }
    list += length;
  }
  tws_text_add(text, "\"");
  return 1;
}

/* Writes the recomputation mode. If the profile's runtime has fused attention, that kernel recomputes its scores
 * itself, so that the plan neither keeps nor recomputes them. */
static void write_recomputation(const tws_case *one, const tws_runtime *runtime, tws_text *text) {
  const char *mode = tws_case_fact_text(one, "recompute_mode");
  if (tws_case_fact_flag(one, "selective") && lists_operations(one, text)) return;
  if (*tws_case_fact_text(one, "recompute_operations")) {
    tws_text_add(text, ",\"recompute\":\"%s\",\"recompute_operations\":\"%s\"", tws_case_fact_text(one, "recompute"),
                 tws_case_fact_text(one, "recompute_operations"));
    return;
  }
  if (!*mode && tws_case_fact_flag(one, "selective") && runtime->attention != TWS_ATTENTION_UNFUSED)
    mode = runtime->contends ? "operations" : "selective";
  tws_text_add(text, ",\"recompute\":\"%s\",\"recompute_every\":%d", *mode ? mode : "none",
               tws_case_fact(one, "recompute_every") ? (int)tws_case_fact_number(one, "recompute_every") : 1);
  if (tws_case_fact(one, "recompute_budget"))
    tws_text_add(text, ",\"recompute_budget\":%g", tws_case_fact_number(one, "recompute_budget"));
}

/* Writes a key with the value of a property of the run as JSON. */
static void write_fact(const tws_case *one, const char *key, const char *name, tws_text *text) {
  char *json = cJSON_PrintUnformatted(tws_case_fact(one, name));
  if (!json) text->failed = 1;
  tws_text_add(text, "%s%s", key, json ? json : "");
  cJSON_free(json);
}

static void write_precision(const tws_case *one, tws_text *text) {
  const cJSON *section;
  cJSON_ArrayForEach(section, tws_case_fact(one, "dtype")) {
    char *json = cJSON_PrintUnformatted(section);
    if (!json) text->failed = 1;
    tws_text_add(text, "\"%s\":%s,", section->string, json ? json : "");
    cJSON_free(json);
  }
}

static int stage_of(const tws_case *one, const division *d) {
  const int least = (int)tws_case_fact_number(one, "least_stage");
  int stage = tws_case_fact(one, "stage") ? (int)tws_case_fact_number(one, "stage")
                                          : tws_case_int(one->row, "parallel", "zero_stage");
  if (d->stages > 1 && stage > 1) stage = 1; /* with pipelines, engines partition optimizer states only */
  return stage > least ? stage : least;
}

/* Writes the keys of zero_optimization that are known of the run's configuration. */
static void write_zero_keys(const tws_case *one, tws_text *text) {
  const cJSON *key;
  cJSON_ArrayForEach(key, tws_case_fact(one, "zero_keys")) {
    char *json = cJSON_PrintUnformatted(key);
    if (!json) text->failed = 1;
    tws_text_add(text, ",\"%s\":%s", key->string, json ? json : "");
    cJSON_free(json);
  }
}

/* Writes the keys that partition checkpointed activations among tensor ranks, or offload them to the host. */
static void write_checkpoints(const tws_case *one, const division *d, tws_text *text) {
  const char *on_host = tws_case_fact_flag(one, "offloads_checkpoints") ? "true" : "false";
  if (tws_case_fact_flag(one, "partitions_checkpoints"))
    tws_text_add(text, "\"activation_checkpointing\":{\"partition_activations\":%s,\"cpu_checkpointing\":%s},",
                 d->tensor > 1 ? "true" : "false", on_host);
  else if (tws_case_fact_flag(one, "offloads_checkpoints"))
    tws_text_add(text, "\"activation_checkpointing\":{\"cpu_checkpointing\":true},");
}

static void write_adapters(const tws_case *one, tws_text *text) {
  if (tws_case_fact_number(one, "lora_rank") > 0) {
    tws_text_add(text, ",\"lora\":{\"r\":%lld,\"lora_alpha\":16", (long long)tws_case_fact_number(one, "lora_rank"));
    if (tws_case_fact(one, "lora_dropout")) write_fact(one, ",\"lora_dropout\":", "lora_dropout", text);
    write_fact(one, ",\"target_modules\":", "lora_targets", text);
    tws_text_add(text, "}");
  }
  if (tws_case_fact(one, "frozen_quantization"))
    write_fact(one, ",\"frozen_quantization\":", "frozen_quantization", text);
}

static void write_own_section(const tws_case *one, const division *d, tws_text *text) {
  const cJSON *row = one->row;
  const tws_runtime *runtime = runtime_of(one);
  const char *products = tws_case_fact_text(one, "matmul_dtype");
  const double hidden = tws_case_number(row, "model", "hidden");
  tws_text_add(text, "\"twinspeed\":{\"sequence_length\":%lld", (long long)tws_case_number(row, "model", "seq_len"));
  if (d->ring) tws_text_add(text, ",\"sequence_algorithm\":\"ring\"");
  write_recomputation(one, runtime, text);
  tws_text_add(text, ",\"matmul_dtype\":\"%s\"", *products ? products : "auto");
  if (runtime->overlaps_tensor) tws_text_add(text, ",\"tensor_overlap_chunks\":%d", runtime->overlaps_tensor);
  if (tws_case_fact_flag(one, "loss_tiles_by_width") && hidden > 0)
    tws_text_add(text, ",\"loss_tiles\":%.0f", ceil(tws_case_number(row, "model", "vocab") / hidden));
  if (tws_case_fact(one, "loss_tiles")) write_fact(one, ",\"loss_tiles\":", "loss_tiles", text);
  if (d->chunks > 1 && d->stages > 1)
    tws_text_add(text, ",\"pipeline_schedule\":\"interleaved\",\"virtual_stages\":%d", d->chunks);
  if (d->tensor > 1 && tws_case_flag(row, "parallel", "sequence_parallel"))
    tws_text_add(text, ",\"tensor_sequence_parallel\":true");
  /* in benchmarks each expert receives an equal share of the tokens, and no token is dropped */
  if (d->experts > 1) tws_text_add(text, ",\"expert_parallel_size\":%d,\"expert_capacity_factor\":1", d->experts);
  if (d->experts > 1 && tws_case_fact_flag(one, "divides_experts"))
    tws_text_add(text, ",\"expert_tensor_parallel\":true");
  if (tws_case_fact_number(one, "document_length") > 0)
    tws_text_add(text, ",\"document_end_token\":0,\"document_length\":%d",
                 (int)tws_case_fact_number(one, "document_length"));
  write_adapters(one, text);
  const int multiple = (int)tws_case_fact_number(one, "vocabulary_multiple");
  tws_text_add(text, ",\"vocabulary_multiple\":%d}", (multiple ? multiple : 1) * d->tensor);
}

/* Returns 1 if a pipeline's chunks count the embedding and the head as layers. */
static int counts_ends(const tws_case *one, const division *d) {
  const int layers = tws_case_int(one->row, "model", "layers") + 2;
  return tws_case_fact_flag(one, "one_layer_chunks") ||
         (tws_case_fact_flag(one, "counts_ends") && layers % (d->stages * d->chunks) == 0);
}

static void write_config(const tws_case *one, const division *d, tws_text *text) {
  const cJSON *row = one->row;
  const tws_runtime *runtime = runtime_of(one);
  const int stage = stage_of(one, d);
  const long long groups = (long long)tws_case_fact_number(one, "group_ranks");
  const cJSON *said = tws_case_fact(one, "reduces_in_backward");
  const int reduces_in_backward = !said || cJSON_IsTrue(said);
  const int overlaps =
      !tws_case_fact_flag(one, "nothing_overlaps") &&
      (runtime->overlaps_data || runtime->contends || (stage == 0 && d->stages == 1 && reduces_in_backward));
  tws_text_add(text, "{");
  write_precision(one, text);
  tws_text_add(text, "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":0.0001}},\"gradient_clipping\":1.0,");
  if (runtime->float_gradients && stage > 0 && strncmp(tws_case_text(row, "parallel", "precision"), "fp32", 4) != 0)
    tws_text_add(text, "\"data_types\":{\"grad_accum_dtype\":\"fp32\"},\"communication_data_type\":\"fp32\",");
  tws_text_add(text, "\"train_micro_batch_size_per_gpu\":%lld,\"gradient_accumulation_steps\":%lld,", d->micro,
               d->accumulation);
  if (d->tensor > 1)
    tws_text_add(text, "\"tensor_parallel\":{\"autotp_size\":%d,\"tp_overlap_comm\":%s},", d->tensor,
                 runtime->overlaps_tensor ? "true" : "false");
  if (d->stages > 1)
    tws_text_add(text, "\"pipeline\":{\"stages\":%d,\"partition\":\"type:transformer%s\"},", d->stages,
                 counts_ends(one, d) ? "|embedding|lm_head" : "");
  if (d->sequence > 1) tws_text_add(text, "\"sequence_parallel_size\":%d,", d->sequence);
  tws_text_add(text, "\"zero_optimization\":{\"stage\":%d,\"overlap_comm\":%s", stage, overlaps ? "true" : "false");
  if (groups > 1) tws_text_add(text, ",\"mics_shard_size\":%lld", groups);
  if (!reduces_in_backward) tws_text_add(text, ",\"use_multi_rank_bucket_allreduce\":false");
  if (*tws_case_text(row, "parallel", "offload_optimizer") && stage > 0)
    tws_text_add(text, ",\"offload_optimizer\":{\"device\":\"cpu\"}");
  write_zero_keys(one, text);
  tws_text_add(text, "},");
  write_checkpoints(one, d, text);
  write_own_section(one, d, text);
  tws_text_add(text, "}");
}

/* ---- the job ---- */

static tws_code load_texts(const tws_case *one, const division *d, tws_job_parts_given *parts, tws_error *err) {
  tws_text model = {0}, config = {0};
  tws_json *json = NULL;
  write_fact(one, "", "model", &model);
  write_config(one, d, &config);
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
  TWS_TRY(check_software(one, err));
  if (*tws_case_fact_text(one, "lacks")) return lacks(err, tws_case_fact_text(one, "lacks"));
  TWS_TRY(read_division(one, &d, err));
  TWS_TRY(load_machine(one, d.ranks, parts, err));
  TWS_TRY(apply_software(one, parts->profile, err));
  parts->ranks = d.ranks;
  return load_texts(one, &d, parts, err);
}

/* Removes the position from a message, since a position in a text that was generated here means nothing to a reader,
 * and would make equal reasons look different. */
static tws_code without_place(const char *name, const tws_error *why, tws_error *err) {
  const char *place = strncmp(why->message, name, strlen(name)) == 0 ? strstr(why->message + strlen(name), ": ") : NULL;
  return tws_fail(err, why->code, why->hint, "%s", place ? place + 2 : why->message);
}

tws_code tws_case_job(const tws_cases *cases, int index, tws_job **out, tws_error *err) {
  tws_job_parts_given parts = {0};
  tws_case one = cases->cases[index]; /* a copy, whose properties are derived from its row as it is now */
  tws_error why = {0};
  *out = NULL;
  tws_code code = tws_case_find_facts(cases->rules, one.row, &one.facts, &why);
  if (code == TWS_OK) code = load_parts(&one, &parts, &why);
  if (code == TWS_OK) {
    code = tws_job_assemble(&parts, out, &why);
  } else {
    tws_network_destroy(parts.network);
    tws_config_destroy(parts.config);
    tws_profile_destroy(parts.profile);
  }
  code = code == TWS_OK ? TWS_OK : without_place(one.id, &why, err);
  cJSON_Delete(one.facts);
  return code;
}
