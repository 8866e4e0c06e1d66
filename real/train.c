/* Implements the training loop of one rank. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/host_memory.h"
#include "base/memory.h"
#include "config/aio.h"
#include "models/quantized.h"
#include "plan/hyper.h"
#include "real/agree.h"
#include "real/init.h"
#include "real/train_internal.h"
#include "traces/monitor.h"

/* ---- preparation ---- */

static tws_code check_options(const tws_training *t, tws_error *err) {
  const tws_config *c = t->config;
  if (t->options->steps < 1)
    return tws_fail(err, TWS_USAGE, NULL, "the number of steps is %ld", (long)t->options->steps);
  if (!t->options->data) return tws_fail(err, TWS_USAGE, "--data FILE: a text, or llm.c tokens", "no data was given");
  const tws_topology *topology = &t->options->plan.topology;
  const int64_t replicas = tws_topology_size(topology, TWS_AXES_DATA);
  if (tws_topology_world(topology) != t->world ||
      c->train_batch_size != c->micro_batch_size * c->accumulation_steps * replicas)
    return tws_fail(err, TWS_INTERNAL, NULL, "the job is not one of %d ranks", t->world);
  if (!t->ops) return tws_fail(err, TWS_ENVIRONMENT, NULL, "this build has no backend for the job's profile");
  return TWS_OK;
}

static uint32_t choose_fault_op(const tws_plan *plan) {
  for (uint32_t op = plan->op_count / 2; op < plan->op_count; op++)
    if (plan->ops[op].kind == TWS_OP_COLLECTIVE) return op;
  return plan->op_count / 2;
}

tws_code tws_training_plan(tws_training *t, tws_error *err) {
  tws_plan_request request = t->options->plan;
  request.rank = t->rank;
  request.program = TWS_PROGRAM_TRAIN;
  TWS_TRY(tws_plan_build(&request, &t->plan, err));
  t->fault_op = choose_fault_op(t->plan);
  t->counters = &t->plan->state->counters;
  t->programs[TWS_PROGRAM_TRAIN] = t->plan;
  if (t->options->eval_data || t->options->evaluates) {
    request.program = TWS_PROGRAM_EVALUATE;
    request.state = t->plan->state;
    TWS_TRY(tws_plan_build(&request, &t->evaluation, err));
    t->programs[TWS_PROGRAM_EVALUATE] = t->evaluation;
  }
  for (int program = TWS_PROGRAM_APPLY; program < TWS_PROGRAM_COUNT; program++) {
    if (!tws_plan_has_program(t->config, (tws_program)program)) continue;
    request.program = (tws_program)program;
    request.state = t->plan->state;
    TWS_TRY(tws_plan_build(&request, &t->between[program], err));
    t->programs[program] = t->between[program];
  }
  return tws_ledger_of_programs(t->programs, TWS_PROGRAM_COUNT, &t->ledger, err);
}

tws_code tws_training_shape(tws_training *t, tws_error *err) {
  const tws_config *c = t->config;
  const uint64_t routed = t->plan->buffers[t->plan->metrics].elements - TWS_METRIC_COUNT;
  t->shape = (tws_batch_shape){.train_batch = c->train_batch_size,
                               .micro_batch = c->micro_batch_size,
                               .accumulation = c->accumulation_steps,
                               .replica = t->plan->position.index[TWS_AXIS_DATA],
                               .replicas = t->plan->position.ranks[TWS_AXIS_DATA],
                               .part = t->plan->position.index[TWS_AXIS_SEQUENCE],
                               .parts = t->plan->position.ranks[TWS_AXIS_SEQUENCE],
                               .ignored = c->ignored_token,
                               .halves = tws_config_is_ring(c),
                               .chunks = c->attention_chunks};
  if (routed > 0) t->routed = tws_calloc(routed, sizeof *t->routed);
  return routed == 0 || t->routed ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}

tws_code tws_training_open_data(tws_training *t, tws_error *err) {
  const tws_config *c = t->config;
  TWS_TRY(tws_training_shape(t, err));
  TWS_TRY(tws_objective_open(t->options->plan.network, t->options->data, c->sequence_length, c->train_batch_size,
                             (uint64_t)c->seed, &t->data, err));
  if (t->resumed) tws_resume_place(t);
  TWS_TRY(tws_evaluation_open(t, err));
  TWS_TRY(tws_step_report_prepare(t, err));
  if (t->rank == 0) t->history = tws_calloc((size_t)(t->options->steps - t->first_step), sizeof *t->history);
  const uint64_t routed = t->plan->buffers[t->plan->metrics].elements - TWS_METRIC_COUNT;
  const int traces = t->options->trace_path != NULL;
  TWS_TRY(tws_trace_open(t, err));
  if (traces && routed > 0) t->traced_routed = tws_calloc(routed, sizeof *t->traced_routed);
  const int room = routed == 0 || !traces || t->traced_routed;
  if (!room || (t->rank == 0 && !t->history)) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  return TWS_OK;
}

/* Sets the folder and parameters for arenas on a disk. */
tws_code tws_training_disk(const tws_training *t, tws_disk_setup *disk, tws_error *err) {
  *disk = (tws_disk_setup){.folder = tws_config_disk(t->config), .aio = t->config->aio};
  const int used = tws_plan_bytes(t->plan, TWS_TIER_DISK) > 0;
  if (used && tws_config_uses_gds(t->config))
    return tws_fail(err, TWS_UNSUPPORTED, "set aio.use_gds to false",
                    "aio.use_gds: GPUDirect Storage needs NVIDIA's library cuFile, which this build does not use; the "
                    "disk is reached through host memory");
  if (disk->folder || !used) return TWS_OK;
  return tws_fail(err, TWS_INVALID,
                  "give nvme_path next to the device in zero_optimization.offload_optimizer or offload_param: a folder "
                  "on a fast disk",
                  "states are offloaded to a disk, and no folder on one is given");
}

tws_code tws_training_make_executor(tws_training *t, tws_error *err) {
  const tws_train_options *o = t->options;
  int device = 0;
  if (t->cuda) TWS_TRY(tws_cuda_choose_device(t->cuda, &device, err));
  TWS_TRY(t->ops->create(device, t->threads, &t->backend, err));
  TWS_TRY(tws_inputs_open(t, err)); /* called before NCCL provides device memory, since NCCL rounds sizes up */
  int busy = (long)t->world * t->threads > sysconf(_SC_NPROCESSORS_ONLN);
  TWS_TRY(tws_comm_create(t->mpi, t->plan->groups, t->plan->group_count, TWS_TRANSPORT_AUTO, busy, &t->comm, err));
  if (t->cuda) TWS_TRY(tws_cuda_connect(t->cuda, t->backend, t->mpi, t->plan, &t->device_comm, err));
  TWS_TRY(tws_share_cores(t, err));
  if (t->fault.kind == TWS_FAULT_ALLOCATE)
    return tws_fail(err, TWS_MEMORY, "unset TWINSPEED_FAULT", "cannot allocate an arena (a fault on request)");
  tws_executor_setup setup = {.programs = t->programs,
                              .program_count = TWS_PROGRAM_COUNT,
                              .ops = t->ops,
                              .backend = t->backend,
                              .host = t->host,
                              .comm_ops = t->cuda ? t->cuda->comm_ops : tws_mpi_comm_ops(),
                              .comm = t->cuda ? t->device_comm : t->comm,
                              .activity = o->activity,
                              .activity_bytes = o->activity_bytes,
                              .device_limit = o->device_limit};
  TWS_TRY(tws_training_disk(t, &setup.disk, err));
  TWS_TRY(tws_executor_create(&setup, &t->executor, err));
  tws_watchdog_attach(t->watchdog, t->executor, t->comm);
  return TWS_OK;
}

static tws_code start_watching(tws_training *t, tws_error *err) {
  const tws_train_options *o = t->options;
  const tws_watchdog_setup watch = {.deadline_s = o->deadline_s,
                                    .rank = t->rank,
                                    .activity = o->activity,
                                    .activity_bytes = o->activity_bytes,
                                    .news = o->news,
                                    .on_hang = o->on_hang,
                                    .user = o->user};
  return tws_watchdog_create(&watch, &t->watchdog, err);
}

/* ---- weights ---- */

enum { CHUNK = 1 << 20 };

/* A range of values that the threads of this rank compute, round and write to a buffer. */
typedef struct weight_maker {
  float *values;
  unsigned short *rounded;
  int threads;
} weight_maker;

static tws_code put_weights(tws_training *t, weight_maker *m, uint32_t buffer, uint64_t offset, uint64_t from,
                            uint64_t count, tws_error *err) {
  const tws_dtype dtype = (tws_dtype)t->plan->buffers[buffer].dtype;
  if (dtype == TWS_F32)
    return tws_executor_put(t->executor, TWS_PROGRAM_TRAIN, buffer, offset, m->values + from, count, err);
  if (dtype != TWS_BF16 && dtype != TWS_F16 && dtype != TWS_LOW16)
    return tws_fail(err, TWS_UNSUPPORTED, "use fp32, bf16 or fp16", "parameters of type %s", tws_dtype_name(dtype));
  for (uint64_t i = from; i < from + count; i++)
    m->rounded[i] = dtype == TWS_LOW16 ? tws_low_half(m->values[i])
                    : dtype == TWS_F16 ? tws_to_f16(m->values[i])
                                       : tws_to_bf16(m->values[i]);
  return tws_executor_put(t->executor, TWS_PROGRAM_TRAIN, buffer, offset, m->rounded + from, count, err);
}

/* The buffers of the state entries that are initialized with the values of parameters. */
typedef struct weight_buffers {
  int count;
  uint32_t buffer[8];
  const tws_state_entry *entry[8];
} weight_buffers;

static weight_buffers find_weight_buffers(const tws_plan *plan) {
  weight_buffers found = {0};
  for (uint32_t i = 0; i < plan->buffer_count && found.count < 8; i++) {
    if (plan->buffers[i].lifetime != TWS_LIFETIME_STATE) continue;
    const tws_state_entry *entry = &plan->state->entries[tws_state_find(plan->state, plan->buffers[i].name)];
    if (entry->initial != TWS_INITIAL_PARAMETER) continue;
    found.entry[found.count] = entry;
    found.buffer[found.count++] = i;
  }
  return found;
}

/* Finds the first weight that buffer i needs of a chunk of a shard, which begins `done` elements after the shard's
 * first; returns 0 if the buffer needs none of it. */
static int weights_in(const weight_buffers *to, int i, const tws_shard *shard, uint64_t done, uint64_t *first,
                      uint64_t *count, uint64_t *skipped) {
  *first = to->entry[i]->role == TWS_ELEMENTS_STORED ? shard->storage_offset : shard->owned_offset;
  if (*first == TWS_NO_OFFSET) return 0;
  *first += done;
  return tws_state_clip(to->entry[i], first, count, skipped);
}

static tws_code init_shard(tws_training *t, weight_maker *m, const weight_buffers *to, const tws_shard *shard,
                           tws_error *err) {
  const tws_plan *plan = t->plan;
  const tws_param_slice *slice = plan->slices ? &plan->slices[shard->param] : NULL;
  const int quantized = tws_shard_is_quantized(plan, shard);
  const uint64_t chunk = quantized ? tws_quantized_chunk(plan, CHUNK) : CHUNK;
  for (uint64_t done = 0; done < shard->count; done += chunk) {
    uint64_t n = shard->count - done < chunk ? shard->count - done : chunk;
    tws_watchdog_count_progress(t->watchdog);
    tws_init_part_with(m->threads, &plan->network->params[shard->param], shard->param, (uint64_t)t->config->seed, slice,
                       shard->param_first + done, n, m->values);
    if (quantized) TWS_TRY(tws_training_put_quantized(t, shard->storage_offset + done, m->values, n, err));
    for (int i = 0; i < to->count; i++) {
      uint64_t first, skipped, count = n;
      if (weights_in(to, i, shard, done, &first, &count, &skipped))
        TWS_TRY(put_weights(t, m, to->buffer[i], first, skipped, count, err));
    }
  }
  return TWS_OK;
}

static tws_code make_weight_maker(const tws_training *t, uint64_t values, weight_maker *m, tws_error *err) {
  /* A rank on a GPU may use its share of the cores, which are idle otherwise; one on the host uses its own threads. */
  const int share = (int)(sysconf(_SC_NPROCESSORS_ONLN) / (t->world > 0 ? t->world : 1));
  *m = (weight_maker){.values = tws_calloc(values, sizeof *m->values),
                      .rounded = tws_calloc(values, sizeof *m->rounded),
                      .threads = t->cuda && share > t->threads ? share : t->threads};
  return m->values && m->rounded ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}

static void free_weight_maker(weight_maker *m) {
  tws_free(m->values);
  tws_free(m->rounded);
}

static tws_code init_running(tws_training *t, tws_error *err) {
  if (t->plan->running == TWS_NONE) return TWS_OK;
  const uint64_t count = t->plan->buffers[t->plan->running].elements;
  float *values = tws_calloc(count, sizeof *values);
  if (!values) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_init_running(t->plan, values);
  const tws_code code = tws_executor_put(t->executor, TWS_PROGRAM_TRAIN, t->plan->running, 0, values, count, err);
  tws_free(values);
  return code;
}

static tws_code init_weights(tws_training *t, tws_error *err) {
  weight_maker maker;
  const tws_state *state = t->plan->state;
  const weight_buffers buffers = find_weight_buffers(t->plan);
  tws_code code = make_weight_maker(t, CHUNK, &maker, err);
  for (uint32_t i = 0; i < state->shard_count && code == TWS_OK; i++)
    code = init_shard(t, &maker, &buffers, &state->shards[i], err);
  free_weight_maker(&maker);
  return code;
}

/* ---- steps ---- */

/* Sets the scalars of a step. A skipped step is no update: neither the learning-rate schedule nor the bias correction
 * of the moments counts it. */
static tws_code put_scalars(tws_training *t, double *lr, tws_error *err) {
  const int64_t step = t->counters->steps - t->counters->skipped + 1;
  float hyper[TWS_PARAM_GROUPS * TWS_HYPER_COUNT];
  const uint64_t count = (uint64_t)tws_config_param_groups(t->config) * TWS_HYPER_COUNT;
  const int program = (int)t->kind.program;
  const tws_plan *plan = t->programs[program];
  *lr = tws_hyper_fill_groups(t->config, step, t->counters->loss_scale.scale, hyper);
  tws_training_use_set_lr(t, lr, hyper);
  TWS_TRY(tws_executor_put(t->executor, program, plan->hyper, 0, hyper, count, err));
  return tws_executor_zero(t->executor, program, plan->metrics, err);
}

/* Fault injection: sets one weight of the network's last module, which the loss depends on, to NaN. */
static tws_code spoil_weights(tws_training *t, tws_error *err) {
  weight_maker one;
  const tws_state *state = t->plan->state;
  const tws_shard *last = &state->shards[0];
  for (uint32_t i = 0; i < state->shard_count; i++)
    if (state->shards[i].param > last->param) last = &state->shards[i];
  const weight_buffers buffers = find_weight_buffers(t->plan);
  tws_code code = make_weight_maker(t, 1, &one, err);
  if (code == TWS_OK) one.values[0] = NAN;
  for (int i = 0; i < buffers.count && code == TWS_OK; i++) {
    uint64_t first, skipped, count = 1;
    if (buffers.entry[i]->role == TWS_ELEMENTS_STORED && weights_in(&buffers, i, last, 0, &first, &count, &skipped))
      code = put_weights(t, &one, buffers.buffer[i], first, 0, 1, err);
  }
  free_weight_maker(&one);
  return code;
}

static int strikes(const tws_training *t, int64_t step) {
  return t->fault.step == step && t->fault.kind >= TWS_FAULT_KILL && t->fault.kind <= TWS_FAULT_SLOW;
}

/* Called before each operation: an operation that changes state waits until the snapshot of a save is complete. */
static tws_code before_op(void *user, uint32_t op, tws_error *err) {
  tws_training *t = user;
  (void)err;
  if (op == tws_checkpoint_gate(t) && t->kind.program == TWS_PROGRAM_TRAIN) tws_checkpoint_wait_copied(t);
  const int now = op == t->fault_op || t->fault.kind == TWS_FAULT_SLOW;
  if (now && strikes(t, t->counters->steps + 1)) tws_fault_strike(t->fault.kind);
  return TWS_OK;
}

static int is_traced(const tws_training *t, int64_t step) {
  return tws_trace_phase_of(t, step) == TWS_TRACE_ACTIVE;
}

/* Returns the memory for the times of the step's operations; NULL: no times are recorded. Phases are those of TRAIN. */
static double *times_of(const tws_training *t, int64_t step) {
  if (tws_trace_phase_of(t, step) != TWS_TRACE_NONE) return t->times;
  return tws_program_overlaps(t->kind.program) ? NULL : t->phase_times;
}

/* Logs once each reason why this run is slower than it should be. Ranks may differ; the summary has all reasons. */
static void warn_of_slowness(tws_training *t) {
  const char *why[] = {t->ops->slower ? t->ops->slower(t->backend) : NULL, tws_executor_not_recorded(t->executor)};
  static const char *const what[] = {"", "steps are not recorded, operations are started one by one: "};
  for (int i = 0; i < 2; i++) {
    if (!why[i] || t->warned[i]) continue;
    t->warned[i] = 1;
    tws_log_write(t->options->log, t->rank == 0 ? TWS_LOG_WARNING : TWS_LOG_INFO, "rank %d: %s%s", t->rank, what[i],
                  why[i]);
  }
}

/* Called while a step runs: prefetches the inputs of the program that follows it. */
static tws_code put_following(tws_training *t, int64_t step, tws_error *err) {
  if (tws_evaluation_is_due(t, step)) return tws_training_prefetch_inputs(t, &t->eval_data, 0, err);
  return step < t->options->steps ? tws_training_prefetch_inputs(t, &t->data, step, err) : TWS_OK;
}

/* Counts a run of a program. before: bytes that the communicator had sent when it began. */
static void count_sent(tws_training *t, int program, double before) {
  t->ran[program]++;
  t->sent[program] += tws_comm_sent_bytes(t->comm) - before;
}

static tws_code run_plan(tws_training *t, int64_t step, tws_error *err) {
  double *times = times_of(t, step);
  const uint32_t gate = tws_checkpoint_gate(t);
  const int program = (int)t->kind.program;
  /* the gate is an operation of TRAIN; other programs begin after the snapshot */
  if (gate != TWS_NONE && program != TWS_PROGRAM_TRAIN) tws_checkpoint_wait_copied(t);
  if (t->fault.kind == TWS_FAULT_NAN && t->fault.step == step) {
    if (gate != TWS_NONE) tws_checkpoint_wait_copied(t);
    TWS_TRY(spoil_weights(t, err));
  }
  tws_executor_probe probe = gate != TWS_NONE || strikes(t, step) ? before_op : NULL;
  tws_watchdog_begin(t->watchdog, step);
  const tws_disk_count before = tws_executor_disk_transferred(t->executor);
  const double sent = tws_comm_sent_bytes(t->comm);
  TWS_TRY(tws_executor_start(t->executor, program, step, times, probe, t, err));
  TWS_TRY(put_following(t, step, err));
  TWS_TRY(tws_executor_finish(t->executor, program, times, err));
  warn_of_slowness(t);
  count_sent(t, program, sent);
  const tws_disk_count after = tws_executor_disk_transferred(t->executor);
  t->on_disk.read += after.read - before.read;
  t->on_disk.written += after.written - before.written;
  TWS_TRY(tws_comm_barrier(t->comm, err));
  tws_training_at(t, step, "reading what the step computed", TWS_PHASE_ALONE);
  return TWS_OK;
}

/* Adjusts the loss scale. Every rank has the same metrics, so all ranks continue with the same scale. */
static tws_code advance_scale(tws_training *t, int overflow, tws_step_report *r, tws_error *err) {
  r->skipped = t->skipped = overflow;
  if (overflow) r->gradient_norm = INFINITY; /* the norm may also be NaN, which is reported as infinity too */
  r->loss_scale = t->counters->loss_scale.scale;
  if (tws_loss_scale_update(&t->counters->loss_scale, t->config, overflow)) {
    const int fixed = t->config->fp16.loss_scale > 0;
    return tws_fail(err, TWS_RANK,
                    fixed ? "use a smaller fp16.loss_scale, or 0 for one that adapts itself"
                          : "fp16 reaches to 65504: lower the learning rate, use bf16, or look for bad data",
                    fixed ? "the fixed loss scale %.15g overflowed %d times in a row"
                          : "the loss scale is at its minimum, %.15g, and still overflows: it cannot decrease further",
                    r->loss_scale, TWS_LOSS_SCALE_PATIENCE);
  }
  r->next_scale = t->counters->loss_scale.scale;
  t->counters->skipped += overflow;
  return TWS_OK;
}

/* Warns if all gradients are 0: fp16 has no numbers below 6e-8, so with a tiny loss scale all gradients become 0, and
 * nothing is trained. */
static void warn_of_vanished(tws_training *t, const tws_step_report *r) {
  if (t->vanished || r->skipped || t->config->dtype != TWS_F16 || r->gradient_norm != 0) return;
  t->vanished = 1;
  if (t->rank == 0)
    tws_log_write(t->options->log, TWS_LOG_WARNING,
                  "step %" PRId64
                  ": the gradient norm is 0: at a loss scale of %.9g all gradients vanish in fp16, and no "
                  "weight learns; %s",
                  r->step, r->loss_scale,
                  t->config->fp16.loss_scale > 0 ? "use a larger fp16.loss_scale, or 0 for one that adapts itself"
                                                 : "use a larger fp16.initial_scale_power");
}

static tws_code check_finite(const tws_step_report *r, tws_error *err) {
  if (r->skipped) return TWS_OK;
  if (isfinite(r->loss) && isfinite(r->gradient_norm)) return TWS_OK;
  return tws_fail(err, TWS_RANK, "lower the learning rate, warm it up, clip gradients, or look for bad data",
                  "the loss is %g and the gradient norm %g", r->loss, r->gradient_norm);
}

tws_code tws_training_begin_step(tws_training *t, int64_t step, tws_step_report *report, tws_error *err) {
  *report = (tws_step_report){.step = step};
  const double start = tws_clock_s();
  t->kind = tws_step_kind_of(t->config, t->counters->steps - t->counters->skipped + 1, step == t->options->steps);
  if (t->pending != TWS_PROGRAM_TRAIN) t->kind.program = t->pending;
  TWS_TRY(tws_training_put_inputs(t, t->kind.program, t->batch ? t->batch : &t->data, step - 1, err));
  t->data_wait_s = tws_clock_s() - start;
  return put_scalars(t, &report->lr, err);
}

tws_code tws_training_read_metrics(tws_training *t, double metrics[TWS_METRIC_COUNT], tws_error *err) {
  const int program = (int)t->kind.program;
  return tws_executor_get(t->executor, program, t->programs[program]->metrics, 0, metrics, TWS_METRIC_COUNT, err);
}

static size_t routes_counted(const tws_training *t) {
  return t->plan->buffers[t->plan->metrics].elements - TWS_METRIC_COUNT;
}

/* Reads the counters of routers, summed over all ranks, and computes the largest share of an expert. Fails if a buffer
 * without dropped tokens was too small, which the device itself cannot report. */
static tws_code read_routed(tws_training *t, tws_step_report *report, tws_error *err) {
  const tws_network *network = t->options->plan.network;
  const double *at = t->routed;
  int64_t hottest_expert = 0;
  const char *hottest = "";
  if (!t->routed) return TWS_OK;
  TWS_TRY(tws_executor_get(t->executor, (int)t->kind.program, t->programs[t->kind.program]->metrics, TWS_METRIC_COUNT,
                           t->routed, routes_counted(t), err));
  for (uint32_t m = 0; m < network->module_count; m++) {
    if (network->modules[m].type != TWS_MODULE_ROUTER) continue;
    const int64_t experts = network->modules[m].routing->experts;
    double all = 0;
    for (int64_t e = 0; e < experts; e++) all += at[e];
    for (int64_t e = 0; e < experts && all > 0; e++) {
      if (at[e] / all * (double)experts <= report->hottest_share) continue;
      report->hottest_share = at[e] / all * (double)experts;
      hottest = network->modules[m].name;
      hottest_expert = e;
    }
    at += experts;
  }
  if (!t->config->expert_dropless || report->dropped_share == 0) return TWS_OK;
  return tws_fail(err, TWS_RANK, "raise twinspeed.expert_bound, or balance the experts",
                  "step %" PRId64 ": experts get more rows than their buffer has; %s sends most to expert %" PRId64
                  ", %.1f times an even share",
                  report->step, hottest, hottest_expert, report->hottest_share);
}

void tws_training_set_step_seconds(const tws_training *t, double seconds, tws_step_report *report) {
  report->seconds = seconds;
  report->tokens_per_s = (double)(t->shape.train_batch * t->data.sequence) / seconds;
}

tws_code tws_training_end_step(tws_training *t, const double metrics[TWS_METRIC_COUNT], double seconds,
                               tws_step_report *report, tws_error *err) {
  tws_training_set_step_seconds(t, seconds, report);
  report->loss = metrics[TWS_METRIC_LOSS];
  for (int h = 0; h < TWS_LOSS_HEADS; h++) report->head_loss[h] = metrics[TWS_METRIC_HEADS + 2 * h];
  report->gradient_norm = metrics[TWS_METRIC_NORM];
  report->auxiliary_loss = metrics[TWS_METRIC_AUXILIARY];
  report->dropped_share = metrics[TWS_METRIC_DROPPED];
  report->hottest_share = 0;
  TWS_TRY(read_routed(t, report, err));
  TWS_TRY(advance_scale(t, metrics[TWS_METRIC_OVERFLOW] != 0, report, err));
  TWS_TRY(check_finite(report, err));
  warn_of_vanished(t, report);
  t->counters->steps = report->step;
  return tws_training_defer(t, metrics, err);
}

static tws_code apply(tws_training *t, tws_program program, int64_t step, tws_error *err) {
  TWS_TRY(tws_training_begin_apply(t, program, err));
  tws_watchdog_begin(t->watchdog, step);
  const double sent = tws_comm_sent_bytes(t->comm);
  TWS_TRY(tws_executor_step(t->executor, (int)program, step, NULL, NULL, NULL, err));
  count_sent(t, (int)program, sent);
  TWS_TRY(tws_comm_barrier(t->comm, err));
  tws_training_at(t, step, "between steps", TWS_PHASE_ALONE);
  return TWS_OK;
}

tws_code tws_training_meet(tws_training *t, int64_t step, tws_error *err) {
  tws_training_at(t, step, "meeting the others before the step", TWS_PHASE_MEETS);
  TWS_TRY(tws_comm_barrier(t->comm, err));
  tws_training_at(t, step, "reading the inputs", TWS_PHASE_ALONE);
  if (is_traced(t, step)) {
    if (t->traced_step == 0) t->trace_start_s = tws_clock_s();
    t->traced_step = step;
  }
  return TWS_OK;
}

tws_code tws_training_complete(tws_training *t, int64_t step, tws_step_report *report, tws_error *err) {
  tws_program behind;
  double metrics[TWS_METRIC_COUNT];
  TWS_TRY(tws_training_read_metrics(t, metrics, err));
  TWS_TRY(tws_training_end_step(t, metrics, tws_clock_s() - t->step_ended_s, report, err));
  if (is_traced(t, step)) TWS_TRY(tws_trace_keep(t, step, err));
  if (t->traced_routed && is_traced(t, step))
    memcpy(t->traced_routed, t->routed, sizeof *t->routed * routes_counted(t));
  if (tws_training_applies(t, step, &behind)) {
    TWS_TRY(apply(t, behind, step, err));
    tws_training_set_step_seconds(t, tws_clock_s() - t->step_ended_s, report);
  }
  t->step_ended_s = tws_clock_s();
  return TWS_OK;
}

tws_code tws_training_step(tws_training *t, int64_t step, tws_step_report *report, tws_error *err) {
  TWS_TRY(tws_training_meet(t, step, err));
  TWS_TRY(tws_training_begin_step(t, step, report, err));
  TWS_TRY(run_plan(t, step, err));
  return tws_training_complete(t, step, report, err);
}

/* Runs one step. Its time begins at the end of the previous one, so that all work of every step is included;
 * evaluations and saves are timed separately. */
static tws_code one_step(tws_training *t, int64_t step, tws_error *err) {
  tws_step_report report;
  TWS_TRY(tws_training_step(t, step, &report, err));
  report.evaluated = tws_evaluation_is_due(t, step);
  if (report.evaluated) {
    TWS_TRY(tws_evaluation_run(t, step, &report.eval_loss, &report.eval_seconds, err));
    t->step_ended_s = tws_clock_s();
  }
  TWS_TRY(tws_comm_report_step(t, times_of(t, step), err));
  if (t->rank != 0) return TWS_OK;
  tws_step_report_finish(t, times_of(t, step), &report);
  t->history[step - 1 - t->first_step] = report;
  tws_training_at(t, step, "printing the step", TWS_PHASE_WRITES);
  TWS_TRY(tws_report_csv_step(t, &report, err));
  TWS_TRY(tws_monitor_step(t->monitor, &report, err));
  if (t->options->on_step) t->options->on_step(t->options->user, &report);
  return TWS_OK;
}

/* Makes all ranks save and end if one of them was asked to end. */
static tws_code ask_for_end(tws_training *t, tws_error *err) {
  const tws_train_options *o = t->options;
  double asked = o->should_end && o->should_end(o->user);
  tws_training_at(t, t->counters->steps, "agreeing with the others whether to end", TWS_PHASE_MEETS);
  TWS_TRY(tws_comm_max(t->comm, &asked, err));
  t->ended = asked > 0 && t->counters->steps < o->steps;
  return TWS_OK;
}

/* Returns 1 if the weights of all ranks are equal after the current step. */
static int weights_agree(const tws_training *t) {
  return t->kind.program != TWS_PROGRAM_LOCAL;
}

static tws_code step_and_save(tws_training *t, int64_t step, tws_error *err) {
  TWS_TRY(one_step(t, step, err));
  TWS_TRY(tws_checkpoint_poll(t, err));
  if (!t->checkpoint) return TWS_OK;
  TWS_TRY(ask_for_end(t, err));
  if (t->ended && !weights_agree(t)) t->ended = 0; /* the ranks are asked again after the next step */
  if (!weights_agree(t)) t->save_waits |= t->options->save_every > 0 && step % t->options->save_every == 0;
  if (!t->ended && !tws_checkpoint_is_due(t, step)) return TWS_OK;
  t->save_waits = 0;
  TWS_TRY(tws_checkpoint_save(t, err));
  t->step_ended_s = tws_clock_s();
  return TWS_OK;
}

static tws_code run_steps(tws_training *t, tws_error *err) {
  t->step_ended_s = tws_clock_s();
  for (int64_t step = t->first_step + 1; step <= t->options->steps && !t->ended; step++) {
    tws_code code = step_and_save(t, step, err);
    if (code != TWS_OK) return tws_fail_in(err, code, "rank %d, step %ld", t->rank, (long)step);
  }
  return TWS_OK;
}

/* ---- the whole training ---- */

/* Returns the code with which a failed training ends. In a job of several ranks an error of one rank ends all of them,
 * so the code becomes TWS_RANK; TWS_IO, a file that cannot be read or written, stays TWS_IO. */
static tws_code blame(const tws_training *t, tws_code code, tws_error *err) {
  if (t->world == 1 || code == TWS_IO) return code;
  if (err) err->code = TWS_RANK;
  return TWS_RANK;
}

/* Logs the seconds since the last call, to show the phases of the start. */
static void mark(const tws_training *t, const char *what, double *since) {
  double now = tws_clock_s();
  if (t->rank == 0) tws_log_write(t->options->log, TWS_LOG_DEBUG, "%s: %.3f s", what, now - *since);
  *since = now;
}

tws_code tws_training_weights(tws_training *t, tws_error *err) {
  const int frozen = tws_training_has_frozen(t);
  if (!t->resumed || frozen || tws_resume_needs_weights(t)) TWS_TRY(init_weights(t, err));
  TWS_TRY(init_running(t, err));
  if ((!t->resumed || frozen) && t->options->init_from) TWS_TRY(tws_init_from(t, err));
  if (t->resumed) {
    TWS_TRY(tws_resume_load(t, err));
    TWS_TRY(tws_training_sync(t, err));
  }
  return tws_training_find_pending(t, err);
}

/* Runs the training of one rank. Errors of the configuration and the data are the same on every rank, so they do not
 * name a rank. */
static tws_code train(tws_training *t, tws_train_result *result, tws_error *err) {
  TWS_TRY(tws_fault_parse(getenv("TWINSPEED_FAULT"), t->rank, &t->fault, err));
  TWS_TRY(start_watching(t, err));
  tws_training_at(t, 0, "planning", TWS_PHASE_ALONE);
  if (t->fault.step == 0) tws_fault_strike(t->fault.kind);
  if (t->options->plan.backend == TWS_BACKEND_CUDA) TWS_TRY(tws_cuda_load(&t->cuda, err));
  TWS_TRY(check_options(t, err));
  double since = tws_clock_s();
  TWS_TRY(tws_training_plan(t, err));
  mark(t, "plan", &since);
  tws_training_at(t, 0, "opening files", t->options->resume ? TWS_PHASE_MEETS : TWS_PHASE_ALONE);
  TWS_TRY(tws_resume_open(t, err));
  tws_training_at(t, 0, "opening files", TWS_PHASE_ALONE);
  if (t->resumed) TWS_TRY(tws_resume_counters(t, err));
  TWS_TRY(tws_training_open_data(t, err));
  TWS_TRY(tws_comm_report_open(t, err));
  mark(t, "data", &since);
  TWS_TRY(tws_checkpoint_lock(t, err));
  TWS_TRY(tws_report_csv_open(t, err));
  TWS_TRY(tws_step_report_open(t, err));
  tws_training_at(t, 0, "taking memory and meeting the others", TWS_PHASE_MEETS);
  tws_code code = tws_training_make_executor(t, err);
  mark(t, "memory and communicator", &since);
  if (code == TWS_OK) {
    code = tws_training_agree(t, err);
    if (code != TWS_OK) return code; /* the error is the same on every rank */
  }
  tws_training_at(t, 0, t->resumed ? "loading the checkpoint" : "making weights", TWS_PHASE_ALONE);
  if (code == TWS_OK) code = tws_training_weights(t, err);
  t->start_rss = tws_peak_rss_bytes();
  mark(t, t->resumed ? "checkpoint" : "initial weights", &since);
  tws_training_at(t, 0, "meeting the others for the first step", TWS_PHASE_MEETS);
  if (code == TWS_OK) code = tws_checkpoint_prepare(t, err);
  if (code != TWS_OK) return blame(t, tws_fail_in(err, code, "rank %d", t->rank), err);
  if (code == TWS_OK) code = tws_comm_barrier(t->comm, err);
  if (code == TWS_OK) code = run_steps(t, err);
  if (code != TWS_OK) return blame(t, code, err);
  tws_training_at(t, 0, "gathering the results", TWS_PHASE_MEETS);
  if (t->traced_step > 0) TWS_TRY(tws_report_trace(t, err));
  TWS_TRY(tws_comm_report_end(t, err));
  struct tws_monitor *monitor = t->monitor;
  t->monitor = NULL;
  TWS_TRY(tws_monitor_close(monitor, TWS_OK, err));
  return tws_report_result(t, result, err);
}

void tws_training_release(tws_training *t) {
  tws_checkpoint_close(t);
  tws_saved_close(t->resumed);
  tws_free(t->far_writers);
  tws_free(t->far_readers);
  tws_watchdog_destroy(t->watchdog);
  tws_executor_destroy(t->executor);
  tws_host_work_destroy(t->host);
  if (t->device_comm) t->cuda->comm_destroy(t->device_comm);
  tws_comm_destroy(t->comm);
  tws_inputs_close(t);
  if (t->backend) t->ops->destroy(t->backend);
  tws_plan_destroy(t->evaluation);
  for (int i = 0; i < TWS_PROGRAM_COUNT; i++) tws_plan_destroy(t->between[i]);
  tws_plan_destroy(t->plan);
  tws_data_close(&t->data);
  tws_data_close(&t->eval_data);
  tws_free(t->times);
  tws_text_free(&t->trace);
  tws_free(t->routed);
  tws_free(t->traced_routed);
  tws_free(t->history);
  if (t->csv) fclose(t->csv);
  for (int i = 0; i < TWS_PROGRAM_COUNT; i++) tws_phase_clock_destroy(t->phases[i]);
  tws_free(t->phase_times);
  tws_comm_report_close(t);
  tws_monitor_close(t->monitor, TWS_RANK, NULL); /* closes the monitor after a failure; otherwise it is closed
                                                  * already */
}

tws_code tws_real_train(const tws_train_options *options, tws_train_result *result, tws_error *err) {
  const tws_plan_request *plan = &options->plan;
  tws_training t = {.options = options,
                    .config = plan->config,
                    .rank = tws_mpi_rank(NULL),
                    .world = tws_mpi_world(NULL),
                    .threads = plan->threads > 0 ? plan->threads : 1,
                    .ops = tws_real_backend(plan->backend == TWS_BACKEND_CUDA ? "cuda" : "host")};
  *result = (tws_train_result){0};
  tws_code code = train(&t, result, err);
  tws_training_release(&t);
  return code;
}
