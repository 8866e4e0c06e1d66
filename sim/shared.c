/* Simulates resources that the ranks of a node share: links between devices and their host (one for the devices of a
 * PCIe switch in each direction, and one that both directions share), the host's memory, and the disk. Copies between
 * tiers and kernels on the host are flows over these resources. An operation may have several flows in succession: a
 * copy of pageable memory first passes through the driver's pinned buffer. The bytes are those that the estimators
 * count (estimators/path.c), but the estimators divide each link evenly among all ranks. */
#include <math.h>

#include "models/hardware/runtime.h"
#include "sim/executor.h"

enum { MOST_SEGMENTS = 3 };
typedef struct segment {
  tws_shared_link link;
  double bytes;
  double latency_s; /* seconds that a segment takes in addition to the transfer of its bytes */
} segment;

static int copy_segments(const tws_sim *sim, const tws_work *work, segment segments[MOST_SEGMENTS]) {
  const int from = work->tiers / TWS_TIER_COUNT, to = work->tiers % TWS_TIER_COUNT;
  const double bytes = (double)work->d[0];
  int n = 0;
  if (from == TWS_TIER_DISK || to == TWS_TIER_DISK) {
    segments[n++] = (segment){from == TWS_TIER_DISK ? TWS_LINK_DISK_READ : TWS_LINK_DISK_WRITE, bytes, 0};
    return n;
  }
  if (from != TWS_TIER_DEVICE && to != TWS_TIER_DEVICE) {
    segments[n++] = (segment){TWS_LINK_MEMORY, 2 * bytes, 0};
    return n;
  }
  if (sim->platform.cluster->host_link.latency_s > 0)
    segments[n++] = (segment){TWS_LINK_IN, 0, sim->platform.cluster->host_link.latency_s};
  if (from == TWS_TIER_HOST || to == TWS_TIER_HOST) segments[n++] = (segment){TWS_LINK_MEMORY, 2 * bytes, 0};
  segments[n++] = (segment){to == TWS_TIER_DEVICE ? TWS_LINK_IN : TWS_LINK_OUT, bytes, 0};
  return n;
}

static int segments_of(const tws_sim *sim, uint32_t rank, uint32_t op, segment segments[MOST_SEGMENTS]) {
  const tws_plan *plan = sim->ranks[rank].plan;
  const tws_work *work = &plan->works[plan->ops[op].work];
  if (work->kind == TWS_OP_COPY && work->tiers) return copy_segments(sim, work, segments);
  if (work->kind != TWS_OP_COMPUTE || work->place != TWS_PLACE_HOST) return 0;
  segments[0] = (segment){TWS_LINK_MEMORY, tws_profile_host_bytes(sim->request->machine.profile, work), 0};
  return 1;
}

int tws_sim_is_shared(const tws_sim *sim, uint32_t rank, uint32_t op) {
  segment segments[MOST_SEGMENTS];
  return sim->host_flows && segments_of(sim, rank, op, segments) > 0;
}

void tws_sim_begin_shared(tws_sim *sim, uint32_t rank, uint32_t op, int index) {
  segment segments[MOST_SEGMENTS];
  const int count = segments_of(sim, rank, op, segments);
  const double now = index == 0 ? sim->run->ranks[rank].times[op].ready_s : sim->now_s;
  if (index >= count) {
    tws_sim_finish(sim, rank, op, now);
    return;
  }
  const uint64_t tag = tws_sim_tag((tws_sim_event)(TWS_EVENT_SHARED + index), rank, op);
  if (segments[index].latency_s > 0) {
    tws_sim_date(sim, now + segments[index].latency_s, tag);
    return;
  }
  const tws_shared_link kind = segments[index].link;
  const int global = sim->ranks[rank].plan->rank;
  const double bytes = segments[index].bytes < 1 ? 1 : segments[index].bytes;
  int links[TWS_PATH_MAX], count_of_links = 1;
  if (kind == TWS_LINK_IN || kind == TWS_LINK_OUT)
    count_of_links = tws_platform_copy_path(&sim->platform, global, kind == TWS_LINK_OUT, links);
  else
    links[0] = tws_platform_shared(&sim->platform, global, kind);
  if (sim->failed == TWS_OK)
    sim->failed = tws_solver_flow(sim->platform.solver, links, count_of_links, bytes, now, tag, sim->err);
}
