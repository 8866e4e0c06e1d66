/* Computes peak live bytes. They do not depend on the offsets of buffers, so the plans have no layout. The plans have
 * the few micro-batches that can differ: the first, a middle one and the last of a step; in a pipeline, those that the
 * rank's stage has in flight at once. Bytes do not depend on nodes either, so the representatives are those of a job on
 * one node, which are few even if groups are placed unevenly on nodes. */
#include <string.h>

#include "estimators/program.h"
#include "plan/fold.h"

static int64_t micro_batches_of(const tws_estimated_job *job, int stage) {
  enum { KINDS = 3 };
  const tws_pipeline_shape *shape = &job->shape;
  const int64_t all = shape->micro_batches;
  const int late = shape->irregular || tws_program_overlaps(job->request->program);
  if (late || (job->stages > 1 && shape->kind == TWS_PIPELINE_GPIPE)) return all;
  const int64_t every = tws_fold_step(shape), chunks = shape->virtual_stages;
  const int64_t in_flight = tws_pipeline_in_flight(shape, stage) / chunks + 2;
  const int64_t full = (in_flight + every - 1) / every * every + (every > 1 ? every : 0);
  const int64_t few = job->stages > 1 ? full : KINDS;
  return all < few ? all : few;
}

static tws_code read_rank(const tws_plan_request *request, tws_ledger *ledger, tws_error *err) {
  tws_plan *plan;
  TWS_TRY(tws_plan_lower(request, &plan, err));
  const tws_code code = tws_ledger_read(plan, ledger, err);
  tws_ledger_tier *device = &ledger->tier[TWS_TIER_DEVICE];
  for (uint32_t i = 0; i < TWS_NETWORK_INPUTS && code == TWS_OK; i++) { /* only the inputs grow with the number of
                                                                           micro-batches */
    if (plan->input[i] == TWS_NONE) continue;
    const uint64_t own = plan->buffers[plan->input[i]].bytes / (uint64_t)plan->accumulation_steps;
    const uint64_t more = own * (uint64_t)(request->config->accumulation_steps - plan->accumulation_steps);
    device->live_bytes += more;
    device->category[TWS_CATEGORY_INPUT] += more;
    if (ledger->loss_bytes > 0) ledger->loss_bytes += more;
  }
  for (int t = 0; t < TWS_TIER_COUNT && code == TWS_OK; t++) {
    ledger->tier[t].arena_bytes = ledger->tier[t].live_bytes;
    ledger->tier[t].gaps = 0;
  }
  tws_plan_destroy(plan);
  return code;
}

tws_code tws_estimate_live(const tws_plan_request *request, const tws_machine *machine, tws_ledger *out,
                           tws_error *err) {
  tws_estimated_job job = tws_estimated_job_of(request, machine);
  tws_rank_set set;
  memset(out, 0, sizeof *out);
  job.mapping = (tws_node_mapping){.ranks = job.ranks, .slots = job.ranks, .nodes = 1, .nics = 1};
  TWS_TRY(tws_estimate_job_ranks(&job, &set, err));
  tws_code code = TWS_OK;
  for (int i = 0; i < set.count && code == TWS_OK; i++) {
    tws_ledger own;
    tws_plan_request one = *request;
    one.rank = set.ranks[i];
    one.max_accumulation = micro_batches_of(&job, tws_topology_index(&request->topology, one.rank, TWS_AXES_PIPE));
    code = read_rank(&one, &own, err);
    if (code == TWS_OK && (i == 0 || own.tier[TWS_TIER_DEVICE].live_bytes > out->tier[TWS_TIER_DEVICE].live_bytes))
      *out = own;
  }
  tws_rank_set_free(&set);
  return code;
}
