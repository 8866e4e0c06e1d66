/* What the ranks of a node share: links between devices and their host (those behind one switch share it), the host's
 * memory, the disk. Copies between tiers and the host's computing are flows over these, one after another for one
 * operation: what is not page-locked passes through the driver's buffer first. The bytes are those that the estimators
 * count (estimators/path.c), which divide each link among all ranks instead. */
#include <math.h>

#include "models/hardware/runtime.h"
#include "sim/executor.h"

enum { MOST_PARTS = 3 };
typedef struct part {
  tws_shared_link link;
  double bytes;
  double latency_s; /* bytes 0: this alone */
} part;

static int copy_parts(const tws_sim *sim, const tws_work *work, part parts[MOST_PARTS]) {
  const int from = work->tiers / TWS_TIER_COUNT, to = work->tiers % TWS_TIER_COUNT;
  const double bytes = (double)work->d[0];
  int n = 0;
  if (from == TWS_TIER_DISK || to == TWS_TIER_DISK) {
    parts[n++] = (part){from == TWS_TIER_DISK ? TWS_LINK_DISK_READ : TWS_LINK_DISK_WRITE, bytes, 0};
    return n;
  }
  if (from != TWS_TIER_DEVICE && to != TWS_TIER_DEVICE) {
    parts[n++] = (part){TWS_LINK_MEMORY, 2 * bytes, 0};
    return n;
  }
  if (sim->platform.cluster->host_link.latency_s > 0)
    parts[n++] = (part){TWS_LINK_IN, 0, sim->platform.cluster->host_link.latency_s};
  if (from == TWS_TIER_HOST || to == TWS_TIER_HOST) parts[n++] = (part){TWS_LINK_MEMORY, 2 * bytes, 0};
  parts[n++] = (part){to == TWS_TIER_DEVICE ? TWS_LINK_IN : TWS_LINK_OUT, bytes, 0};
  return n;
}

static int parts_of(const tws_sim *sim, uint32_t rank, uint32_t op, part parts[MOST_PARTS]) {
  const tws_plan *plan = sim->ranks[rank].plan;
  const tws_work *work = &plan->works[plan->ops[op].work];
  if (work->kind == TWS_OP_COPY && work->tiers) return copy_parts(sim, work, parts);
  if (work->kind != TWS_OP_COMPUTE || work->place != TWS_PLACE_HOST) return 0;
  parts[0] = (part){TWS_LINK_MEMORY, tws_profile_host_bytes(sim->request->machine.profile, work), 0};
  return 1;
}

int tws_sim_is_shared(const tws_sim *sim, uint32_t rank, uint32_t op) {
  part parts[MOST_PARTS];
  return sim->host_flows && parts_of(sim, rank, op, parts) > 0;
}

void tws_sim_begin_shared(tws_sim *sim, uint32_t rank, uint32_t op, int index) {
  part parts[MOST_PARTS];
  const int count = parts_of(sim, rank, op, parts);
  const double now = index == 0 ? sim->run->ranks[rank].times[op].ready_s : sim->now_s;
  if (index >= count) {
    tws_sim_finish(sim, rank, op, now);
    return;
  }
  const uint64_t tag = tws_sim_tag((tws_sim_event)(TWS_EVENT_SHARED + index), rank, op);
  if (parts[index].latency_s > 0) {
    tws_sim_date(sim, now + parts[index].latency_s, tag);
    return;
  }
  const int link = tws_platform_shared(&sim->platform, sim->ranks[rank].plan->rank, parts[index].link);
  const double bytes = parts[index].bytes < 1 ? 1 : parts[index].bytes;
  if (sim->failed == TWS_OK) sim->failed = tws_solver_flow(sim->platform.solver, &link, 1, bytes, now, tag, sim->err);
}
