/* ctest: simulator */
/* The simulator's own solver of flows against SimGrid's network model, on random jobs of up to 64 devices. The suite is
 * linked with the simulator, so that it can give a link another capacity in SimGrid's platform alone. */
#include "base/random.h"
#include "sim/adapter.h"
#include "tests/sim_plans.h"

const tws_sim_api *tws_sim_module(void);
void __real_tws_engine_capacity(int link, double bytes_per_s);
void __wrap_tws_engine_capacity(int link, double bytes_per_s);

static int changed_link = -1;

void __wrap_tws_engine_capacity(int link, double bytes_per_s) {
  __real_tws_engine_capacity(link, link == changed_link ? bytes_per_s / 2 : bytes_per_s);
}

typedef struct draw {
  uint64_t seed, index;
} draw;

static int pick(draw *d, int low, int high) {
  return low + (int)(tws_random_uniform(d->seed, 1, d->index++) * (high - low + 1));
}

typedef enum kind { RINGS, TREES, SHARED_NICS, ODD_NICS, UNEVEN_NODES, KINDS } kind;
static const char *const kinds[] = {"rings", "trees", "shared NICs", "NICs that do not divide devices", "uneven nodes"};

/* Makes a random machine of a kind and returns its number of ranks. */
static int random_machine(draw *d, kind what, machine *gpu) {
  const int nodes = 1 << pick(d, what == RINGS ? 0 : 1, 3), devices = 1 << pick(d, 1, 3);
  switch (what) {
    case TREES:
      make_gpus(gpu, nodes, devices, devices);
      gpu->cluster.leaf_nodes = pick(d, 1, nodes / 2);
      gpu->cluster.oversubscription = pick(d, 2, 5);
      gpu->cluster.nccl = pick(d, 0, 1);
      return nodes * devices;
    case SHARED_NICS:
      make_gpus(gpu, nodes, devices, devices / 2);
      return nodes * devices;
    case ODD_NICS: {
      static const int odd[][2] = {{8, 3}, {8, 5}, {6, 4}, {4, 3}, {3, 2}, {7, 2}};
      const int *of = odd[pick(d, 0, 5)];
      make_gpus(gpu, nodes, of[0], of[1]);
      return nodes * of[0];
    }
    case UNEVEN_NODES: { /* the last node is not full, so groups lie across nodes */
      const int many = pick(d, 3, 8);
      make_gpus(gpu, nodes, many, pick(d, 0, 1) ? many : 1);
      return nodes * many - pick(d, 1, many - 1);
    }
    default:
      make_gpus(gpu, nodes, devices, devices);
      return nodes * devices;
  }
}

/* Returns a random size of groups that divides the number of ranks. */
static int random_part(draw *d, int ranks) {
  int size = pick(d, 2, ranks);
  while (ranks % size != 0) size--;
  return size > 1 ? size : ranks;
}

/* Makes random plans with the same operations on every rank: collectives of all, of adjacent and of strided ranks, and
 * messages, with different computation in between. Streams overlap, so that flows of several operations share links. */
static void random_job(draw *shape, kind what, maker *m, int ranks) {
  const int near = random_part(shape, ranks), apart = random_part(shape, ranks), stride = ranks / apart,
            blocks = pick(shape, 2, 8), half = ranks / 2;
  for (int rank = 0; rank < ranks; rank++) {
    draw common = {shape->seed + 1, 0}, own = {shape->seed + 2 + (uint64_t)rank, 0};
    begin(&m[rank], rank, ranks);
    uint32_t groups[3] = {group(&m[rank], ranks, 0, 1)}; /* each of other ranks */
    if (near < ranks) groups[1] = group(&m[rank], near, rank - rank % near, 1);
    if (apart < ranks) groups[2] = group(&m[rank], apart, rank % stride, stride);
    for (int block = 0; block < blocks; block++) {
      if (pick(&own, 0, 1)) compute(&m[rank], TWS_STREAM_COMPUTE, pick(&own, 1, 500) * 1e-6);
      const int of = pick(&common, 0, 2), chain = what == TREES && pick(&common, 0, 1);
      const tws_collective code =
          chain ? (pick(&common, 0, 1) ? TWS_COLLECTIVE_BROADCAST : TWS_COLLECTIVE_REDUCE)
                : (tws_collective)pick(&common, TWS_COLLECTIVE_ALL_REDUCE, TWS_COLLECTIVE_ALL_TO_ALL);
      const double bytes = pick(&common, 1, 1000) * (pick(&common, 0, 1) ? 1e3 : 1e5);
      collective(&m[rank], of ? TWS_STREAM_REDUCE : TWS_STREAM_GATHER, code, groups[of], bytes);
      const double sent = pick(&common, 1, 1000) * 1e4;
      if (pick(&common, 0, 2) == 0 && rank < 2 * half)
        message(&m[rank], rank < half ? TWS_OP_SEND : TWS_OP_RECV, rank < half ? rank + half : rank - half, sent);
    }
  }
}

/* 200 jobs. */
START_TEST(both_solvers_agree) {
  static maker m[64];
  double worst[KINDS] = {0};
  for (int i = 0; i < 40; i++) {
    machine gpu;
    draw d = {7000 + 100000 * (uint64_t)(KINDS * i + _i), 0};
    const int ranks = random_machine(&d, (kind)_i, &gpu);
    random_job(&d, (kind)_i, m, ranks);
    const double own = step(&gpu, m, ranks, TWS_FIDELITY_FLOW), other = step(&gpu, m, ranks, TWS_FIDELITY_SIMGRID);
    worst[_i] = fmax(worst[_i], fabs(other / own - 1));
    ck_assert_msg(fabs(other / own - 1) < 1e-6,
                  "%s, job %d: %d ranks on %d nodes of %d devices and %d NICs: %.9g, SimGrid %.9g", kinds[_i], i, ranks,
                  gpu.cluster.nodes, gpu.cluster.devices_per_node, gpu.cluster.nics_per_node, own, other);
    drop_machine(&gpu);
  }
  printf("%s: at most %.2g apart\n", kinds[_i], worst[_i]);
}
END_TEST

/* Both solvers give the time that is computed by hand: two devices' messages share one NIC. When SimGrid's platform
 * alone has half of that NIC's bandwidth, SimGrid takes twice as long, and the simulator's own solver does not
 * change. */
START_TEST(one_changed_link_parts_them) {
  static maker m[4];
  machine gpu;
  make_gpus(&gpu, 2, 2, 1);
  for (int rank = 0; rank < 4; rank++) {
    begin(&m[rank], rank, 4);
    message(&m[rank], rank < 2 ? TWS_OP_SEND : TWS_OP_RECV, rank < 2 ? rank + 2 : rank - 2, 1e8);
  }
  const double bytes_s = 2e8 / nic_bandwidth;
  same(step(&gpu, m, 4, TWS_FIDELITY_FLOW), bytes_s + 5e-6, 1e-6);
  same(step(&gpu, m, 4, TWS_FIDELITY_SIMGRID), bytes_s + 5e-6, 1e-6);
  changed_link = 2 * 4; /* number of the first node's outgoing NIC, which follows the ports of four devices */
  same(step(&gpu, m, 4, TWS_FIDELITY_FLOW), bytes_s + 5e-6, 1e-6);
  same(step(&gpu, m, 4, TWS_FIDELITY_SIMGRID), 2 * bytes_s + 5e-6, 1e-6);
  changed_link = -1;
  same(step(&gpu, m, 4, TWS_FIDELITY_SIMGRID), bytes_s + 5e-6, 1e-6);
  drop_machine(&gpu);
}
END_TEST

static double quarter(void *user, int rank, int network, double at_s, double *until_s) {
  const double recovers_s = *(const double *)user;
  (void)rank;
  if (!network || at_s >= recovers_s) return 1;
  *until_s = recovers_s;
  return 0.25;
}

/* A flow that began while its link was slow uses the whole link when the link has recovered, in both solvers. */
START_TEST(links_recover_for_both) {
  static maker m[2];
  machine gpu;
  double recovers_s = 0.01;
  const tws_sim_effects effects = {.share = quarter, .user = &recovers_s};
  make_gpus(&gpu, 2, 1, 1);
  for (int rank = 0; rank < 2; rank++) {
    begin(&m[rank], rank, 2);
    message(&m[rank], rank == 0 ? TWS_OP_SEND : TWS_OP_RECV, 1 - rank, 2e8);
  }
  const tws_plan *plans[] = {&m[0].plan, &m[1].plan};
  for (int simgrid = 0; simgrid < 2; simgrid++) {
    tws_sim_result result;
    tws_error err = {0};
    const tws_sim_request request = {.plans = plans,
                                     .plan_count = 2,
                                     .machine = gpu.machine,
                                     .fidelity = simgrid ? TWS_FIDELITY_SIMGRID : TWS_FIDELITY_FLOW,
                                     .effects = &effects};
    ck_assert_msg(api->simulate(&request, &result, &err) == TWS_OK, "%s", err.message);
    same(result.step_s, 0.0275 + 1.25e-6, 1e-5);
  }
  drop_machine(&gpu);
}
END_TEST

int main(void) {
  api = tws_sim_module();
  Suite *suite = suite_create("sim_solvers");
  TCase *tcase = tcase_create("sim_solvers");
  tcase_add_loop_test(tcase, both_solvers_agree, 0, KINDS);
  tcase_add_test(tcase, one_changed_link_parts_them);
  tcase_add_test(tcase, links_recover_for_both);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
