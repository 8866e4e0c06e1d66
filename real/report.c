/* Writes the output files of a training run on rank 0: a CSV file with a row per step, and a JSON summary. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/host_memory.h"
#include "base/json.h"
#include "base/memory.h"
#include "plan/pipeline_schedule.h"
#include "plan/volume.h"
#include "real/train_internal.h"
#include "traces/measurements.h"

/* ---- CSV ---- */

static tws_code csv_failed(const tws_training *t, tws_error *err) {
  return tws_fail(err, TWS_IO, "is the folder there, and is there room on the disk?", "%s: %s", t->options->csv_path,
                  strerror(errno));
}

static int has_experts(const tws_training *t) {
  return tws_network_has_experts(t->options->plan.network);
}

/* Finds the loss modules of a network with several losses, in order; returns their number, or 0 if there is one
 * loss. */
static int losses_of(const tws_training *t, const tws_module *found[TWS_LOSS_HEADS]) {
  const tws_network *network = t->options->plan.network;
  int count = 0;
  if (tws_network_losses(network) < 2) return 0;
  for (uint32_t m = 0; m < network->module_count; m++)
    if (network->modules[m].type == TWS_MODULE_LOSS) found[count++] = &network->modules[m];
  return count;
}

/* Writes the columns of a network with several losses: the names of the losses or, with a report, their values. */
static void write_losses(const tws_training *t, const tws_step_report *r, char *to, size_t size) {
  const tws_module *found[TWS_LOSS_HEADS];
  const int losses = losses_of(t, found);
  *to = 0;
  for (int h = 0; h < losses; h++) {
    const size_t used = strlen(to);
    if (r)
      snprintf(to + used, size - used, ",%.9g", r->head_loss[h]);
    else
      snprintf(to + used, size - used, ",loss of %s", found[h]->name);
  }
}

tws_code tws_report_csv_open(tws_training *t, tws_error *err) {
  char losses[400];
  if (t->rank != 0 || !t->options->csv_path) return TWS_OK;
  write_losses(t, NULL, losses, sizeof losses);
  int fd;
  TWS_TRY(tws_growing_file(t->options->csv_path, &fd, err));
  t->csv = fdopen(fd, "w");
  if (!t->csv ||
      fprintf(t->csv, "step,loss,lr,gradient_norm,seconds,tokens_per_s,loss_scale,skipped%s%s%s\n", losses,
              has_experts(t) ? ",auxiliary_loss,dropped_share,hottest_share" : "",
              t->evaluation ? ",eval_loss" : "") < 0 ||
      fflush(t->csv) != 0)
    return csv_failed(t, err);
  return TWS_OK;
}

tws_code tws_report_csv_step(tws_training *t, const tws_step_report *r, tws_error *err) {
  if (!t->csv) return TWS_OK;
  char routed[96] = "", evaluated[32] = "", losses[160]; /* empty in rows of steps without an evaluation */
  write_losses(t, r, losses, sizeof losses);
  if (r->evaluated) snprintf(evaluated, sizeof evaluated, "%.9g", r->eval_loss);
  if (has_experts(t))
    snprintf(routed, sizeof routed, ",%.9g,%.9g,%.9g", r->auxiliary_loss, r->dropped_share, r->hottest_share);
  int written = fprintf(t->csv, "%" PRId64 ",%.9g,%.9g,%.9g,%.6f,%.1f,%.15g,%d%s%s%s%s\n", r->step, r->loss, r->lr,
                        r->gradient_norm, r->seconds, r->tokens_per_s, r->loss_scale, r->skipped, losses, routed,
                        t->evaluation ? "," : "", evaluated);
  return written < 0 || fflush(t->csv) != 0 ? csv_failed(t, err) : TWS_OK;
}

/* ---- JSON summary ---- */

/* Values that every rank sends to rank 0. */
typedef struct rank_memory {
  tws_disk_traffic disk;
  uint64_t predicted[TWS_TIER_COUNT], allocated[TWS_TIER_COUNT], peak_rss, start_rss, inputs;
  tws_cuda_memory device;                                /* total 0: the rank has no device */
  char device_name[320], slower[256], not_recorded[256]; /* slower, not_recorded: "" if there is no such reason */
} rank_memory;

static int64_t steps_of_run(const tws_training *t) {
  return t->counters->steps - t->first_step;
}

/* Returns the median seconds of a step. The first step includes page faults and cold caches, and is left out if there
 * are more than two. */
static double median_step(const tws_training *t) {
  const int64_t steps = steps_of_run(t), skip = steps > 2 ? 1 : 0, count = steps - skip;
  double *seconds = tws_calloc((size_t)count + 1, sizeof *seconds);
  if (!seconds) return 0.0;
  for (int64_t i = 0; i < count; i++) seconds[i] = t->history[skip + i].seconds;
  const double median = count > 0 ? tws_sample_median(seconds, (size_t)count) : 0.0;
  tws_free(seconds);
  return median;
}

static void cpu_name(char *name, size_t size) {
  snprintf(name, size, "unknown");
  FILE *file = fopen("/proc/cpuinfo", "r");
  char line[256];
  while (file && fgets(line, sizeof line, file))
    if (strncmp(line, "model name", 10) == 0 && strchr(line, ':')) {
      snprintf(name, size, "%s", strchr(line, ':') + 2);
      name[strcspn(name, "\n")] = '\0';
      break;
    }
  if (file) fclose(file);
}

static void add_provenance(const tws_training *t, cJSON *root) {
  char host[256] = "unknown", cpu[256], when[32] = "";
  time_t now = time(NULL);
  struct tm utc;
  gethostname(host, sizeof host - 1);
  cpu_name(cpu, sizeof cpu);
  if (gmtime_r(&now, &utc)) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
  cJSON *p = cJSON_AddObjectToObject(root, "provenance");
  cJSON_AddStringToObject(p, "program", "twinspeed train");
  cJSON_AddStringToObject(p, "time", when);
  cJSON_AddStringToObject(p, "host", host);
  cJSON_AddStringToObject(p, "cpu", cpu);
  cJSON_AddNumberToObject(p, "cores", (double)sysconf(_SC_NPROCESSORS_ONLN));
  char device[256];
  cJSON_AddStringToObject(p, "engine",
                          t->cuda ? t->cuda->describe(t->backend, device, sizeof device) : tws_real_description());
  cJSON_AddStringToObject(p, "transport",
                          t->world == 1                 ? "none"
                          : tws_comm_is_shared(t->comm) ? "shared memory"
                                                        : "messages");
}

/* Adds the sizes of the four axes that every configuration has, and of further axes if they have several ranks. */
static void add_axes(const tws_training *t, cJSON *configuration) {
  const tws_config *c = t->config;
  const tws_plan *plan = t->plan;
  cJSON *axes = cJSON_AddObjectToObject(configuration, "axes");
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++)
    if (tws_axis_is_ordered((tws_axis)axis))
      cJSON_AddNumberToObject(axes, tws_axis_name((tws_axis)axis), plan->position.ranks[axis]);
  if (plan->position.ranks[TWS_AXIS_EXPERT] > 1)
    cJSON_AddNumberToObject(axes, "expert", plan->position.ranks[TWS_AXIS_EXPERT]);
  if (plan->position.ranks[TWS_AXIS_NODE_EXPERT] > 1)
    cJSON_AddNumberToObject(axes, "node-expert", plan->position.ranks[TWS_AXIS_NODE_EXPERT]);
  if (plan->stages > 1) {
    const tws_pipeline_kind kind = (tws_pipeline_kind)c->pipeline_schedule;
    cJSON_AddStringToObject(configuration, "pipeline_schedule", tws_pipeline_kind_name(kind));
    cJSON_AddNumberToObject(configuration, "virtual_stages", tws_config_division(c).virtual_stages);
  }
  if (plan->position.ranks[TWS_AXIS_MODEL] > 1) {
    cJSON_AddBoolToObject(configuration, "sequence_parallel", c->tensor_sequence_parallel);
    cJSON_AddNumberToObject(configuration, "overlap_chunks", c->tensor_overlap ? (double)c->tensor_chunks : 1);
  }
  if (c->ignored_token >= 0) cJSON_AddNumberToObject(configuration, "ignored_token", (double)c->ignored_token);
  if (c->document_end_token >= 0)
    cJSON_AddNumberToObject(configuration, "document_end_token", (double)c->document_end_token);
}

static void add_configuration(const tws_training *t, cJSON *root) {
  const tws_config *c = t->config;
  cJSON *o = cJSON_AddObjectToObject(root, "configuration");
  cJSON_AddStringToObject(o, "model", t->options->plan.network->name);
  cJSON_AddNumberToObject(o, "parameters", (double)tws_network_params(t->options->plan.network, 0));
  if (has_experts(t))
    cJSON_AddNumberToObject(o, "active_parameters", (double)tws_network_active_params(t->options->plan.network, 0));
  cJSON_AddStringToObject(o, "data", t->options->data);
  if (t->evaluation) {
    cJSON_AddStringToObject(o, "eval_data", t->options->eval_data);
    cJSON_AddNumberToObject(o, "eval_batches", (double)t->eval_batches);
  }
  cJSON_AddNumberToObject(o, "zero_stage", c->zero.stage);
  cJSON_AddStringToObject(o, "runtime", "twinspeed");
  cJSON_AddStringToObject(o, "dtype", tws_dtype_name(c->dtype));
  cJSON_AddStringToObject(o, "recompute", tws_recompute_name(c->recompute));
  cJSON_AddNumberToObject(o, "train_batch", (double)c->train_batch_size);
  cJSON_AddNumberToObject(o, "micro_batch", (double)c->micro_batch_size);
  cJSON_AddNumberToObject(o, "accumulation_steps", (double)c->accumulation_steps);
  cJSON_AddNumberToObject(o, "sequence_length", (double)c->sequence_length);
  cJSON_AddNumberToObject(o, "seed", (double)c->seed);
  cJSON_AddNumberToObject(o, "threads", t->threads);
  add_axes(t, o);
}

/* Adds the device memory as the driver reports it, and the part of it that the plan has allocated. */
static void add_device(const rank_memory *memory, cJSON *rank) {
  cJSON *o = cJSON_AddObjectToObject(rank, "gpu");
  cJSON_AddStringToObject(o, "name", memory->device_name);
  if (memory->slower[0]) cJSON_AddStringToObject(o, "slower", memory->slower);
  if (memory->not_recorded[0]) cJSON_AddStringToObject(o, "not_recorded", memory->not_recorded);
  cJSON_AddNumberToObject(o, "total_bytes", (double)memory->device.total);
  cJSON_AddNumberToObject(o, "used_bytes", (double)memory->device.used);
  cJSON_AddNumberToObject(o, "arena_bytes", (double)(memory->device.arenas - memory->inputs));
  cJSON_AddNumberToObject(o, "inputs_bytes", (double)memory->inputs);
  cJSON_AddNumberToObject(o, "workspace_bytes", (double)memory->device.workspace);
  cJSON_AddNumberToObject(o, "context_bytes", (double)memory->device.context);
  cJSON_AddNumberToObject(o, "libraries_bytes", (double)memory->device.libraries);
}

static void add_memory(const tws_training *t, cJSON *root, const rank_memory *memory) {
  cJSON *list = cJSON_AddArrayToObject(root, "memory");
  for (int r = 0; r < t->world; r++) {
    cJSON *one = cJSON_CreateObject();
    char place[96];
    cJSON_AddNumberToObject(one, "rank", r);
    cJSON_AddStringToObject(one, "place", tws_topology_repr(&t->plan->topology, r, 0, place, (int)sizeof place));
    for (int tier = 0; tier < TWS_TIER_COUNT; tier++) {
      if (!memory[r].predicted[tier] && !memory[r].allocated[tier]) continue;
      cJSON *o = cJSON_AddObjectToObject(one, tws_tier_name((tws_tier)tier));
      cJSON_AddNumberToObject(o, "predicted_bytes", (double)memory[r].predicted[tier]);
      cJSON_AddNumberToObject(o, "allocated_bytes", (double)memory[r].allocated[tier]);
    }
    cJSON_AddNumberToObject(one, "peak_rss_bytes", (double)memory[r].peak_rss);
    cJSON_AddNumberToObject(one, "start_peak_rss_bytes", (double)memory[r].start_rss);
    if (memory[r].device.total) add_device(&memory[r], one);
    cJSON_AddItemToArray(list, one);
  }
}

/* Adds the number of routes to each expert of each layer in the last step, summed over all ranks. */
static void add_routed(const tws_training *t, cJSON *root) {
  const tws_network *network = t->options->plan.network;
  cJSON *list = cJSON_AddArrayToObject(root, "routed");
  const double *at = t->routed;
  for (uint32_t m = 0; m < network->module_count; m++) {
    if (network->modules[m].type != TWS_MODULE_ROUTER) continue;
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "router", network->modules[m].name);
    cJSON *counts = cJSON_AddArrayToObject(one, "routes");
    for (int32_t e = 0; e < network->modules[m].routing->experts; e++)
      cJSON_AddItemToArray(counts, cJSON_CreateNumber(*at++));
    cJSON_AddItemToArray(list, one);
  }
}

/* Adds the value of each of several losses for every step. */
static void add_losses(const tws_training *t, cJSON *root) {
  const tws_module *found[TWS_LOSS_HEADS];
  const int losses = losses_of(t, found);
  cJSON *all = losses > 0 ? cJSON_AddObjectToObject(root, "parts_of_losses") : NULL;
  for (int h = 0; h < losses; h++) {
    cJSON *list = cJSON_AddArrayToObject(all, found[h]->name);
    for (int64_t i = 0; i < steps_of_run(t); i++)
      cJSON_AddItemToArray(list, cJSON_CreateNumber(t->history[i].head_loss[h]));
  }
}

/* Adds what rank 0 has sent in each program's runs: the bytes that the communicator counted, and those of the plan. */
static void add_communication(const tws_training *t, cJSON *root) {
  cJSON *all = cJSON_AddArrayToObject(root, "communication");
  for (int p = 0; p < TWS_PROGRAM_COUNT; p++) {
    if (t->ran[p] == 0) continue;
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "program", tws_program_name((tws_program)p));
    cJSON_AddNumberToObject(one, "runs", (double)t->ran[p]);
    cJSON_AddNumberToObject(one, "sent_bytes", t->sent[p]);
    cJSON_AddNumberToObject(one, "planned_bytes", (double)t->ran[p] * tws_plan_sent_bytes(t->programs[p]));
    cJSON_AddItemToArray(all, one);
  }
}

/* Adds the times of the passes of each step. */
static void add_phases(const tws_training *t, cJSON *root) {
  static const char *const names[] = {"forward_s", "backward_s", "backward_inner_s", "reduction_s", "optimizer_s"};
  cJSON *all = cJSON_AddObjectToObject(root, "wall_clock_breakdown");
  for (int k = 0; k < 5; k++) {
    cJSON *list = cJSON_AddArrayToObject(all, names[k]);
    for (int64_t i = 0; i < steps_of_run(t); i++) {
      const tws_phase_seconds *p = &t->history[i].phase;
      const double seconds[] = {p->forward, p->backward, p->backward_inner, p->reduction, p->step};
      cJSON_AddItemToArray(list, cJSON_CreateNumber(seconds[k]));
    }
  }
}

static void add_steps(const tws_training *t, cJSON *root) {
  cJSON *losses = cJSON_AddArrayToObject(root, "losses"), *norms = cJSON_AddArrayToObject(root, "gradient_norms");
  cJSON *rates = cJSON_AddArrayToObject(root, "learning_rates"), *times = cJSON_AddArrayToObject(root, "step_s");
  for (int64_t i = 0; i < steps_of_run(t); i++) {
    cJSON_AddItemToArray(losses, cJSON_CreateNumber(t->history[i].loss));
    cJSON_AddItemToArray(norms, cJSON_CreateNumber(t->history[i].gradient_norm));
    cJSON_AddItemToArray(rates, cJSON_CreateNumber(t->history[i].lr));
    cJSON_AddItemToArray(times, cJSON_CreateNumber(t->history[i].seconds));
  }
  add_losses(t, root);
  cJSON *auxiliary = has_experts(t) ? cJSON_AddArrayToObject(root, "auxiliary_losses") : NULL;
  cJSON *dropped = has_experts(t) ? cJSON_AddArrayToObject(root, "dropped_shares") : NULL;
  cJSON *hottest = has_experts(t) ? cJSON_AddArrayToObject(root, "hottest_shares") : NULL;
  for (int64_t i = 0; auxiliary && i < steps_of_run(t); i++) {
    cJSON_AddItemToArray(auxiliary, cJSON_CreateNumber(t->history[i].auxiliary_loss));
    cJSON_AddItemToArray(dropped, cJSON_CreateNumber(t->history[i].dropped_share));
    cJSON_AddItemToArray(hottest, cJSON_CreateNumber(t->history[i].hottest_share));
  }
  if (t->routed) add_routed(t, root);
  if (t->phases[TWS_PROGRAM_TRAIN]) add_phases(t, root);
  cJSON *evaluations = t->evaluation ? cJSON_AddArrayToObject(root, "evaluations") : NULL;
  for (int64_t i = 0; evaluations && i < steps_of_run(t); i++) {
    if (!t->history[i].evaluated) continue;
    cJSON *one = cJSON_CreateObject();
    cJSON_AddNumberToObject(one, "step", (double)t->history[i].step);
    cJSON_AddNumberToObject(one, "loss", t->history[i].eval_loss);
    cJSON_AddNumberToObject(one, "seconds", t->history[i].eval_seconds);
    cJSON_AddItemToArray(evaluations, one);
  }
  if (t->config->dtype != TWS_F16) return;
  cJSON *scales = cJSON_AddArrayToObject(root, "loss_scales"), *skipped = cJSON_AddArrayToObject(root, "skipped_steps");
  for (int64_t i = 0; i < steps_of_run(t); i++) {
    cJSON_AddItemToArray(scales, cJSON_CreateNumber(t->history[i].loss_scale));
    if (t->history[i].skipped) cJSON_AddItemToArray(skipped, cJSON_CreateNumber((double)t->history[i].step));
  }
}

static tws_code write_summary(const tws_training *t, const tws_train_result *result, const rank_memory *memory,
                              tws_error *err) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "twinspeed-train-1");
  const tws_fingerprint *print = t->options->fingerprint;
  if (print) tws_fingerprint_json(print, root);
  add_provenance(t, root);
  add_configuration(t, root);
  cJSON_AddNumberToObject(root, "ranks", t->world);
  cJSON_AddNumberToObject(root, "steps", (double)t->counters->steps);
  if (t->resumed) cJSON_AddNumberToObject(root, "first_step", (double)t->first_step);
  add_steps(t, root);
  cJSON_AddNumberToObject(root, "median_step_s", result->median_step_s);
  cJSON_AddNumberToObject(root, "tokens_per_s", result->tokens_per_s);
  const double flops_per_s = t->model_flops / result->median_step_s, peak = t->options->watching.peak_flops;
  cJSON_AddNumberToObject(root, "model_flops_per_s", flops_per_s);
  if (peak > 0) cJSON_AddNumberToObject(root, "mfu", flops_per_s / peak);
  add_memory(t, root, memory);
  if (t->world > 1 && !t->cuda) add_communication(t, root);
  if (result->disk.planned_read || result->disk.planned_written) {
    cJSON *disk = cJSON_AddObjectToObject(root, "disk");
    cJSON_AddNumberToObject(disk, "planned_read_bytes", (double)result->disk.planned_read);
    cJSON_AddNumberToObject(disk, "read_bytes", (double)result->disk.read);
    cJSON_AddNumberToObject(disk, "planned_written_bytes", (double)result->disk.planned_written);
    cJSON_AddNumberToObject(disk, "written_bytes", (double)result->disk.written);
  }
  cJSON *largest = cJSON_AddObjectToObject(root, "largest_rank");
  cJSON_AddNumberToObject(largest, "rank", result->largest_rank);
  cJSON_AddNumberToObject(largest, "allocated_bytes", (double)result->largest_bytes);
  const tws_save_times saves = tws_checkpoint_times(t);
  cJSON *save = t->checkpoint ? cJSON_AddObjectToObject(root, "saves") : NULL;
  if (save) {
    cJSON_AddNumberToObject(save, "beside_training", (double)saves.overlapped);
    cJSON_AddNumberToObject(save, "waited_s", saves.waited_s);
  }
  if (t->communication) cJSON_AddItemToObject(root, "communication_log", tws_comm_log_json(t->communication));
  char *text = cJSON_Print(root);
  cJSON_Delete(root);
  if (!text) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_code code = TWS_OK;
  if (t->options->result_path) code = tws_write_file(t->options->result_path, text, strlen(text), err);
  if (code == TWS_OK && t->options->on_result) t->options->on_result(t->options->user, text);
  cJSON_free(text);
  return code;
}

static tws_disk_traffic disk_traffic(const tws_training *t) {
  const tws_plan *plan = t->plan;
  const uint64_t steps = (uint64_t)steps_of_run(t);
  tws_disk_traffic disk = {.read = t->on_disk.read, .written = t->on_disk.written};
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    if (op->kind != TWS_OP_COPY || op->place != TWS_PLACE_DISK) continue;
    const int reads = plan->buffers[plan->operands[op->operand_first].buffer].tier == TWS_TIER_DISK;
    *(reads ? &disk.planned_read : &disk.planned_written) += steps * (uint64_t)plan->works[op->work].d[0];
  }
  return disk;
}

tws_code tws_report_result(tws_training *t, tws_train_result *result, tws_error *err) {
  rank_memory mine = {.disk = disk_traffic(t), .peak_rss = tws_peak_rss_bytes(), .start_rss = t->start_rss};
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++) {
    mine.predicted[tier] = result->predicted_bytes[tier] = t->ledger.tier[tier].arena_bytes;
    mine.allocated[tier] = result->allocated_bytes[tier] = tws_executor_allocated(t->executor, (tws_tier)tier);
  }
  if (t->cuda) {
    TWS_TRY(t->cuda->memory(t->backend, &mine.device, err));
    mine.inputs = tws_inputs_device_bytes(t);
    t->cuda->describe(t->backend, mine.device_name, (int)sizeof mine.device_name);
    const char *slower = t->ops->slower(t->backend), *not_recorded = tws_executor_not_recorded(t->executor);
    snprintf(mine.slower, sizeof mine.slower, "%s", slower ? slower : "");
    snprintf(mine.not_recorded, sizeof mine.not_recorded, "%s", not_recorded ? not_recorded : "");
  }
  result->disk = mine.disk;
  result->steps = t->counters->steps;
  result->first_step = t->first_step;
  result->ended = t->ended;
  unsigned char *all = NULL;
  uint64_t *offset = NULL;
  TWS_TRY(tws_comm_gather(t->comm, &mine, sizeof mine, &all, &offset, err));
  if (t->rank != 0) return TWS_OK;
  const rank_memory *memory = (const rank_memory *)(const void *)all;
  result->disk = (tws_disk_traffic){0, 0, 0, 0};
  for (int r = 0; r < t->world; r++) {
    uint64_t allocated = 0;
    result->disk.planned_read += memory[r].disk.planned_read;
    result->disk.planned_written += memory[r].disk.planned_written;
    result->disk.read += memory[r].disk.read;
    result->disk.written += memory[r].disk.written;
    for (int tier = 0; tier < TWS_TIER_COUNT; tier++) {
      result->job_predicted_bytes += memory[r].predicted[tier];
      allocated += memory[r].allocated[tier];
    }
    result->job_allocated_bytes += allocated;
    result->job_peak_rss_bytes += memory[r].peak_rss;
    if (allocated > result->largest_bytes) {
      result->largest_bytes = allocated;
      result->largest_rank = r;
    }
  }
  result->skipped = t->counters->skipped;
  int64_t first = 0, last = steps_of_run(t) - 1; /* a skipped step may have no value */
  while (first < last && !isfinite(t->history[first].loss)) first++;
  while (last > first && !isfinite(t->history[last].loss)) last--;
  result->first_loss = t->history[first].loss;
  result->last_loss = t->history[last].loss;
  for (int64_t i = 0; i < steps_of_run(t); i++) {
    if (!t->history[i].evaluated) continue;
    result->evaluated = 1;
    result->last_eval_loss = t->history[i].eval_loss;
  }
  result->median_step_s = median_step(t);
  result->tokens_per_s = (double)(t->shape.train_batch * t->data.sequence) / result->median_step_s;
  int wanted = t->options->result_path || t->options->on_result;
  tws_training_at(t, 0, "writing the results", TWS_PHASE_WRITES);
  tws_code code = wanted ? write_summary(t, result, memory, err) : TWS_OK;
  tws_free(all);
  tws_free(offset);
  return code;
}
