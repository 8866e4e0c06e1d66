#include "sim/alone.h"

#include <math.h>

#include "base/memory.h"
#include "sim/fluid.h"

/* A directed edge of a ring: it leads from one rank of a node to the next rank, or from the node to the next node. */
typedef struct edge {
  int link, next, sent, got, busy;
  double latency_s;
} edge;

typedef struct run {
  tws_fluid *fluid;
  edge *edges;
  int steps, failed;
  double piece, now_s;
} run;

static void try_send(run *r, int index) {
  edge *h = &r->edges[index];
  if (h->busy || h->sent == r->steps || h->got < h->sent)
    return; /* the next message to forward has not arrived yet; only the first is the rank's own */
  h->busy = 1;
  r->failed |= tws_fluid_flow(r->fluid, &h->link, 1, r->piece, r->now_s, 2 * (uint64_t)index) != 0;
}

/* Builds links and edges. Links 0 to per_node - 1 are the ports from each rank to the next; link per_node + r is the
 * share of the node's NICs that ring r has. */
static void lay_out(run *r, const tws_cluster *cluster, int per_node, int rings) {
  const int devices = cluster->devices_per_node > per_node ? cluster->devices_per_node : per_node;
  const double nics = cluster->nics_per_node > 0 ? cluster->nics_per_node : 1;
  for (int p = 0; p < per_node; p++) tws_fluid_capacity(r->fluid, p, tws_cluster_port(cluster, per_node), 0);
  for (int ring = 0; ring < rings; ring++) {
    const int exit = (int)((int64_t)(ring + 1) * per_node / rings) - 1;
    tws_fluid_capacity(r->fluid, per_node + ring, cluster->inter.bandwidth * nics * per_node / devices / rings, 0);
    for (int p = 0; p < per_node; p++) {
      const int leaves = p == exit;
      r->edges[ring * per_node + p] = (edge){.link = leaves ? per_node + ring : p,
                                             .next = ring * per_node + (p + 1) % per_node,
                                             .latency_s = leaves ? cluster->inter.latency_s : cluster->intra.latency_s};
    }
  }
}

static double run_all(run *r, int edges) {
  double last_s = 0;
  for (int i = 0; i < edges; i++) try_send(r, i);
  while (!r->failed && isfinite(tws_fluid_next(r->fluid))) {
    r->now_s = tws_fluid_next(r->fluid);
    const uint64_t tag = tws_fluid_pop(r->fluid);
    edge *h = &r->edges[tag / 2];
    if (tag % 2 == 0) { /* the message left its sender */
      h->busy = 0;
      h->sent++;
      r->failed |= tws_fluid_date(r->fluid, r->now_s + h->latency_s, tag + 1) != 0;
      try_send(r, (int)(tag / 2));
    } else { /* the message arrived */
      last_s = r->now_s;
      r->edges[h->next].got++;
      try_send(r, h->next);
    }
  }
  return r->failed ? -1 : last_s;
}

double tws_ring_collective_s(const tws_cluster *cluster, int per_node, int rings, int steps, double piece) {
  const int edges = per_node * rings;
  run r = {.fluid = tws_fluid_create(per_node + rings),
           .edges = tws_calloc((size_t)edges, sizeof *r.edges),
           .steps = steps,
           .piece = piece};
  double seconds = -1;
  if (r.fluid && r.edges) {
    lay_out(&r, cluster, per_node, rings);
    seconds = run_all(&r, edges);
  }
  tws_fluid_destroy(r.fluid);
  tws_free(r.edges);
  return seconds;
}
