/* Time: the longest path through a plan. */
#include <stdio.h>
#include <string.h>

#include "estimators/estimators.h"

/* Devices hold one rank each; a host's ranks are spread over its nodes and may outnumber cores. */
static int node_slots(const tws_plan *plan, const tws_machine *machine) {
  int nodes = machine->cluster->nodes > 0 ? machine->cluster->nodes : 1;
  if (tws_profile_cores(machine->profile) > 0) return (plan->world + nodes - 1) / nodes;
  return machine->cluster->devices_per_node > 0 ? machine->cluster->devices_per_node : 1;
}

static int ranks_per_node(const tws_plan *plan, const tws_machine *machine) {
  int slots = node_slots(plan, machine);
  return slots < plan->world ? slots : plan->world;
}

static int group_per_node(const tws_group *group, int slots) {
  int same = 0;
  for (int i = 0; i < group->size; i++) same += group->ranks[i] / slots == group->ranks[0] / slots;
  return same;
}

double tws_plan_work_seconds(const tws_plan *plan, uint32_t index, const tws_machine *machine, int stretch) {
  const tws_work *work = &plan->works[index];
  int cores = tws_profile_cores(machine->profile), ranks = ranks_per_node(plan, machine);
  int threads = plan->threads > 0 ? plan->threads : 1, busy = 1;
  if (cores > 0) { /* ranks that run at once: those that outnumber the cores take turns, which is stretched below */
    int at_once = threads < cores ? cores / threads : 1;
    busy = ranks < at_once ? ranks : at_once;
  }
  if (work->kind == TWS_OP_COMPUTE) {
    double seconds = tws_kernel_seconds(machine->profile, work, threads, busy);
    return stretch && cores > 0 && ranks * threads > cores ? seconds * ranks * threads / cores : seconds;
  }
  if (work->kind == TWS_OP_COLLECTIVE) {
    const tws_group *group = &plan->groups[work->group];
    return tws_collective_seconds(machine->cluster, machine->profile, (tws_collective)work->code, group->size,
                                  group_per_node(group, node_slots(plan, machine)), (double)work->d[0],
                                  (int)work->segments);
  }
  if (work->kind == TWS_OP_COPY) {
    double seconds = 2 * (double)work->d[0] / tws_profile_bandwidth(machine->profile); /* read and written */
    return stretch && cores > 0 && ranks * threads > cores ? seconds * ranks * threads / cores : seconds;
  }
  return tws_p2p_seconds(machine->cluster, machine->profile, 1, (double)work->d[0]);
}

double tws_plan_message_seconds(const tws_plan *plan, uint32_t peer, uint32_t work, const tws_machine *machine) {
  int slots = node_slots(plan, machine);
  return tws_p2p_seconds(machine->cluster, machine->profile, plan->rank / slots == (int)peer / slots,
                         (double)plan->works[work].d[0]);
}

void tws_path_account(const tws_plan *plan, uint32_t op, double seconds, tws_path_result *r) {
  const tws_op *o = &plan->ops[op];
  const tws_work *work = &plan->works[o->work];
  r->stream_busy_s[o->stream] += seconds;
  if (o->stream == TWS_STREAM_COMPUTE && o->kind != TWS_OP_COLLECTIVE) r->phase_s[o->phase] += seconds;
  if (o->kind == TWS_OP_COMPUTE) {
    r->kernel_s[work->code] += seconds;
    r->flops += tws_work_flops(work);
  } else if (o->kind == TWS_OP_COLLECTIVE) {
    r->collective_s[work->code] += seconds;
  }
}

/* One sentence on what to look at first. */
void tws_path_judge(tws_path_result *r) {
  double matmul = r->kernel_s[TWS_KERNEL_LINEAR] + r->kernel_s[TWS_KERNEL_LINEAR_GRAD_INPUT] +
                  r->kernel_s[TWS_KERNEL_LINEAR_GRAD_WEIGHT];
  double attention = r->kernel_s[TWS_KERNEL_ATTENTION] + r->kernel_s[TWS_KERNEL_ATTENTION_GRAD];
  double update = r->kernel_s[TWS_KERNEL_ADAMW], other = -matmul - attention - update;
  for (int k = 0; k < TWS_KERNEL_COUNT; k++) other += r->kernel_s[k];
  double step = r->step_s > 0 ? r->step_s : 1;
  const char *what = "matrix products";
  double most = matmul;
  const struct {
    const char *name;
    double s;
  } rivals[] = {{"attention", attention},
                {"the optimizer's memory traffic", update},
                {"memory-bound kernels", other},
                {"communication that computation does not hide", r->exposed_s}};
  for (size_t i = 0; i < sizeof rivals / sizeof *rivals; i++) {
    if (rivals[i].s > most) {
      most = rivals[i].s;
      what = rivals[i].name;
    }
  }
  snprintf(r->text, sizeof r->text, "%s take%s %.0f %% of the step; communication left exposed %.0f %%", what,
           what[strlen(what) - 1] == 's' ? "" : "s", 100 * most / step, 100 * r->exposed_s / step);
  r->bottleneck = r->text;
}

tws_code tws_longest_path(const tws_plan *plan, const tws_machine *machine, tws_path_result *result, tws_error *err) {
  memset(result, 0, sizeof *result);
  double *cost = tws_calloc(plan->work_count + 1u, sizeof *cost), *end = tws_calloc(plan->op_count + 1u, sizeof *end);
  if (!cost || !end) {
    tws_free(cost);
    tws_free(end);
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for the longest path");
  }
  for (uint32_t i = 0; i < plan->work_count; i++) cost[i] = tws_plan_work_seconds(plan, i, machine, 1);
  int serial = tws_profile_serial_streams(machine->profile);
  double free_at[TWS_STREAM_COUNT] = {0}, computing = 0;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    int stream = serial ? 0 : o->stream;
    double start = free_at[stream];
    for (uint32_t i = 0; i < o->dep_count; i++) {
      double done = end[plan->deps[o->dep_first + i]];
      if (done > start) start = done;
    }
    end[op] = free_at[stream] = start + cost[o->work];
    if (end[op] > result->step_s) result->step_s = end[op];
    if (o->kind == TWS_OP_COMPUTE || o->kind == TWS_OP_COPY)
      computing += o->stream == TWS_STREAM_COMPUTE || serial ? cost[o->work] : 0;
    tws_path_account(plan, op, cost[o->work], result);
  }
  result->exposed_s = result->step_s - computing;
  tws_path_judge(result);
  tws_free(cost);
  tws_free(end);
  return TWS_OK;
}
