#include "cli/job_view.h"

#include <math.h>
#include <string.h>

#include "base/units.h"
#include "job/features.h"
#include "job/software_memory.h"
#include "plan/pipeline_schedule.h"

const char *tws_thousands(int64_t value) {
  char text[40];
  return tws_cell("%s", tws_format_integer(value, text, sizeof text));
}

void tws_job_remark(const tws_cli *cli, const tws_job *job) {
  const tws_network *n = job->network;
  int64_t own = job->config->vocabulary_multiple;
  if (!cli->verbose || n->padded_vocabulary == (n->vocabulary + own - 1) / own * own) return;
  tws_say(cli, "the vocabulary of %s is padded to %s: %lld tensor ranks divide it", tws_thousands(n->vocabulary),
          tws_thousands(n->padded_vocabulary), (long long)job->config->tensor_ranks);
}

/* Appends ", pipeline of 2 stages (1f1b), tensor parallel over 4": every axis with more than one rank. */
static void add_axes_text(const tws_job *job, tws_text *out) {
  const tws_config *c = job->config;
  int stages = tws_job_stages(job), tensor = tws_job_ranks_along(job, TWS_AXIS_MODEL);
  int sequence = tws_job_ranks_along(job, TWS_AXIS_SEQUENCE), replicas = tws_job_ranks_along(job, TWS_AXIS_DATA);
  if (stages > 1) {
    tws_text_add(out, ", pipeline of %d stages (%s", stages,
                 tws_pipeline_kind_name((tws_pipeline_kind)c->pipeline_schedule));
    if (c->virtual_stages > 1) tws_text_add(out, ", %lld chunks each", (long long)c->virtual_stages);
    tws_text_add(out, ")");
  }
  if (tensor > 1)
    tws_text_add(out, ", tensor parallel over %d%s", tensor, c->tensor_sequence_parallel ? " (sequence parallel)" : "");
  if (sequence > 1)
    tws_text_add(out, ", sequence parallel over %d%s", sequence,
                 c->sequence_algorithm == TWS_SEQUENCE_RING ? " (ring)" : "");
  if (job->topology.axes > 1) {
    tws_text_add(out, ", %d replica%s (", replicas, replicas > 1 ? "s" : "");
    for (int i = 0; i < job->topology.axes; i++)
      tws_text_add(out, "%s%s %d", i ? " x " : "", tws_axis_name(job->topology.axis[i]), job->topology.dim[i]);
    tws_text_add(out, ")");
  }
}

static void print_line_of(tws_text *line) {
  tws_out_wrapped(9, "%s", line->data ? line->data : "");
  tws_text_free(line);
}

void tws_assumptions_print(const tws_cli *cli, const tws_assumption *list, int count) {
  tws_text text = {0};
  tws_assumptions_text(list, count, &text);
  if (text.length)
    tws_out_wrapped(9, "%sAssumed%s  %s", tws_style(cli, TWS_BOLD), tws_style(cli, TWS_PLAIN_OUTPUT), text.data);
  tws_text_free(&text);
}

static void job_assumed_print(const tws_cli *cli, const tws_job *job) {
  tws_assumption list[TWS_ASSUMPTIONS];
  tws_assumptions_print(cli, list, tws_job_assumed(job, list));
}

void tws_runtime_print(const tws_cli *cli, const tws_job *job) {
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  tws_text line = {0};
  char bytes[32];
  if (job->backend == TWS_BACKEND_HOST) return;
  tws_text_add(&line, "%sRuntime%s  %s, %s: %s", tws_style(cli, TWS_BOLD), tws_style(cli, TWS_PLAIN_OUTPUT),
               runtime->name, *job->runtime_why ? job->runtime_why : "as the job says", runtime->about);
  if (runtime->attention != TWS_ATTENTION_AS_PROFILE && job->ranks > 0) {
    const double software = tws_job_software_bytes(job);
    tws_text_add(&line, "; holds %s %s", tws_format_bytes(fabs(software), bytes, sizeof bytes),
                 software < 0 ? "less than the plan, without the context" : "in addition to the plan and the context");
  }
  print_line_of(&line);
}

void tws_lacks_print(const tws_cli *cli, const tws_job *job, tws_features lacked, const char *jobs) {
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  tws_text text = {0};
  if (!lacked) return;
  tws_features_text(lacked, &text);
  tws_out_wrapped(9, "%sMissing%s  %s (%s) cannot run %s: it %s", tws_style(cli, TWS_BOLD),
                  tws_style(cli, TWS_PLAIN_OUTPUT), runtime->name, tws_runtime_family(runtime, job->backend), jobs,
                  text.data ? text.data : "");
  tws_text_free(&text);
}

/* Appends the sizes of a model: of one of a Hugging Face file those of its transformer, of a network file its
 * modules. */
static void add_model_text(const tws_network *n, tws_text *line) {
  if (strcmp(n->architecture, "described") == 0) {
    tws_network_summary(n, line);
  } else {
    tws_text_add(line, ", %lld layers, hidden %lld, %lld heads", (long long)n->layers, (long long)n->hidden,
                 (long long)n->heads);
    if (n->kv_heads != n->heads) tws_text_add(line, " (%lld key/value)", (long long)n->kv_heads);
    tws_text_add(line, ", vocabulary %lld", (long long)n->padded_vocabulary);
    if (n->padded_vocabulary != n->vocabulary) tws_text_add(line, " (%lld padded)", (long long)n->vocabulary);
  }
  tws_text_add(line, "%s", n->tied ? ", tied embeddings" : "");
}

void tws_model_print(const tws_cli *cli, const tws_job *job) {
  const tws_network *n = job->network;
  char count[32];
  tws_text line = {0};
  int64_t params = tws_network_params(n, 0);
  tws_text_add(&line, "%sModel%s    %s: %s parameters (%s", tws_style(cli, TWS_BOLD), tws_style(cli, TWS_PLAIN_OUTPUT),
               n->name, tws_thousands(params), tws_format_count((double)params, count, sizeof count));
  if (tws_network_has_experts(n))
    tws_text_add(&line, ", %s active", tws_format_count((double)tws_network_active_params(n, 0), count, sizeof count));
  tws_text_add(&line, ")");
  add_model_text(n, &line);
  print_line_of(&line);
}

void tws_cluster_print(const tws_cli *cli, const tws_job *job) {
  const tws_cluster *c = &job->cluster;
  char bytes[32];
  tws_text line = {0};
  double memory = job->backend == TWS_BACKEND_HOST ? c->host_memory_bytes
                  : c->device_memory_bytes > 0     ? c->device_memory_bytes
                                                   : tws_profile_memory_bytes(job->profile);
  tws_text_add(&line, "%sCluster%s  %s: %d node%s", tws_style(cli, TWS_BOLD), tws_style(cli, TWS_PLAIN_OUTPUT), c->name,
               c->nodes, c->nodes > 1 ? "s" : "");
  if (job->backend == TWS_BACKEND_HOST)
    tws_text_add(&line, ", %d cores and %s each, profile %s", c->cores_per_node,
                 tws_format_bytes(memory, bytes, sizeof bytes), tws_profile_name(job->profile));
  else
    tws_text_add(&line, " of %d %s with %s each", c->devices_per_node, tws_profile_name(job->profile),
                 tws_format_bytes(memory, bytes, sizeof bytes));
  print_line_of(&line);
}

void tws_job_ranks_text(const tws_cli *cli, const tws_job *job, tws_text *line) {
  tws_text_add(line, "%sJob%s      %d rank%s", tws_style(cli, TWS_BOLD), tws_style(cli, TWS_PLAIN_OUTPUT), job->ranks,
               job->ranks > 1 ? "s" : "");
  if (job->backend == TWS_BACKEND_HOST)
    tws_text_add(line, " of %d thread%s", job->threads, job->threads > 1 ? "s" : "");
  add_axes_text(job, line);
}

void tws_job_print(const tws_cli *cli, const tws_job *job) {
  const tws_config *config = job->config;
  tws_text line = {0};
  tws_job_remark(cli, job);
  tws_runtime_print(cli, job);
  tws_model_print(cli, job);
  tws_cluster_print(cli, job);
  tws_job_ranks_text(cli, job, &line);
  tws_text_add(&line,
               ", ZeRO stage %d, %s, micro batch %lld of %lld tokens, %lld accumulation step%s, train batch %lld, "
               "recompute %s",
               config->zero.stage, tws_dtype_name(config->dtype), (long long)config->micro_batch_size,
               (long long)config->sequence_length, (long long)config->accumulation_steps,
               config->accumulation_steps > 1 ? "s" : "", (long long)config->train_batch_size,
               tws_recompute_name(config->recompute));
  print_line_of(&line);
  tws_lacks_print(cli, job, tws_job_unsupported_features(job), "this job");
  job_assumed_print(cli, job);
}

/* ---- JSON ---- */

/* Adds the parallel axes, in the format of training results. */
static void add_axes(const tws_job *job, cJSON *json) {
  const tws_config *c = job->config;
  char order[TWS_AXIS_ORDER_TEXT];
  cJSON *axes = cJSON_AddObjectToObject(json, "axes");
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++)
    if (tws_axis_is_ordered((tws_axis)axis))
      cJSON_AddNumberToObject(axes, tws_axis_name((tws_axis)axis), tws_job_ranks_along(job, (tws_axis)axis));
  if (tws_job_ranks_along(job, TWS_AXIS_EXPERT) > 1)
    cJSON_AddNumberToObject(axes, "expert", tws_job_ranks_along(job, TWS_AXIS_EXPERT));
  if (tws_job_ranks_along(job, TWS_AXIS_NODE_EXPERT) > 1)
    cJSON_AddNumberToObject(axes, "node-expert", tws_job_ranks_along(job, TWS_AXIS_NODE_EXPERT));
  if (job->topology.axes > 1) cJSON_AddStringToObject(json, "axis_order", tws_axis_order_text(&c->axis_order, order));
  if (tws_job_stages(job) > 1) {
    const char *schedule = tws_pipeline_kind_name((tws_pipeline_kind)c->pipeline_schedule);
    cJSON_AddStringToObject(json, "pipeline_schedule", schedule);
    cJSON_AddNumberToObject(json, "virtual_stages", tws_config_division(c).virtual_stages);
  }
  if (c->tensor_ranks > 1) {
    cJSON_AddBoolToObject(json, "sequence_parallel", c->tensor_sequence_parallel);
    cJSON_AddNumberToObject(json, "overlap_chunks", c->tensor_overlap ? (double)c->tensor_chunks : 1);
  }
  if (c->sequence_ranks > 1)
    cJSON_AddStringToObject(json, "sequence_algorithm",
                            c->sequence_algorithm == TWS_SEQUENCE_RING ? "ring" : "ulysses");
  if (c->loss_tiles > 1) cJSON_AddNumberToObject(json, "loss_tiles", (double)c->loss_tiles);
  if (c->mlp_tiles > 1) cJSON_AddNumberToObject(json, "mlp_tiles", (double)c->mlp_tiles);
  if (c->attention_chunks > 1) cJSON_AddNumberToObject(json, "attention_chunks", (double)c->attention_chunks);
  if (c->linear_tile_size > 0 && c->zero.stage == 3)
    cJSON_AddNumberToObject(json, "linear_tile_size", (double)c->linear_tile_size);
  if (c->ignored_token >= 0) cJSON_AddNumberToObject(json, "ignored_token", (double)c->ignored_token);
  if (c->document_end_token >= 0) cJSON_AddNumberToObject(json, "document_end_token", (double)c->document_end_token);
  if (c->document_length > 0) cJSON_AddNumberToObject(json, "document_length", (double)c->document_length);
}

static void add_measured(const tws_job *job, cJSON *json) {
  const tws_rescaling *r = &job->rescaling;
  if (r->steps + r->rates == 0) return;
  cJSON *measured = cJSON_AddObjectToObject(json, "measured");
  cJSON_AddNumberToObject(measured, "steps", r->steps);
  cJSON_AddNumberToObject(measured, "rates", r->rates);
  for (int i = 0; i < TWS_SCALE_COUNT; i++) cJSON_AddNumberToObject(measured, tws_scale_name(i), r->factor[i]);
}

cJSON *tws_job_json(const tws_job *job) {
  cJSON *json = cJSON_CreateObject();
  if (!json) return NULL;
  cJSON_AddStringToObject(json, "model", job->network->name);
  cJSON_AddNumberToObject(json, "parameters", (double)tws_network_params(job->network, 0));
  if (tws_network_has_experts(job->network))
    cJSON_AddNumberToObject(json, "active_parameters", (double)tws_network_active_params(job->network, 0));
  cJSON_AddStringToObject(json, "cluster", job->cluster.name);
  cJSON_AddStringToObject(json, "profile", tws_profile_name(job->profile));
  cJSON_AddStringToObject(json, "runtime", tws_profile_runtime(job->profile)->name);
  if (*job->runtime_why) cJSON_AddStringToObject(json, "runtime_reason", job->runtime_why);
  const char *allocator = tws_profile_allocator_name(job->profile);
  if (allocator) cJSON_AddStringToObject(json, "allocator", allocator);
  cJSON_AddNumberToObject(json, "runtime_bytes", tws_job_software_bytes(job));
  tws_features_json(tws_job_unsupported_features(job), json);
  cJSON_AddStringToObject(json, "profile_provenance", tws_profile_provenance(job->profile));
  cJSON_AddNumberToObject(json, "ranks", job->ranks);
  cJSON_AddNumberToObject(json, "threads", job->threads);
  cJSON_AddStringToObject(json, "dtype", tws_dtype_name(job->config->dtype));
  cJSON_AddNumberToObject(json, "zero_stage", job->config->zero.stage);
  cJSON_AddNumberToObject(json, "micro_batch", (double)job->config->micro_batch_size);
  cJSON_AddNumberToObject(json, "accumulation_steps", (double)job->config->accumulation_steps);
  cJSON_AddNumberToObject(json, "train_batch", (double)job->config->train_batch_size);
  cJSON_AddNumberToObject(json, "sequence_length", (double)job->config->sequence_length);
  cJSON_AddStringToObject(json, "recompute", tws_recompute_name(job->config->recompute));
  add_axes(job, json);
  add_measured(job, json);
  tws_assumption assumed[TWS_ASSUMPTIONS];
  cJSON_AddItemToObject(json, "assumptions", tws_assumptions_json(assumed, tws_job_assumed(job, assumed)));
  tws_fingerprint fingerprint;
  if (tws_job_fingerprint(job, &fingerprint, NULL) == TWS_OK) tws_fingerprint_json(&fingerprint, json);
  return json;
}
