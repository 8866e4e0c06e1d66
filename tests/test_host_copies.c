/* Copies between devices and their host that run both ways at once: rates of links and nodes in cluster files and
 * profiles, in the longest path and in the simulator. */
#include "job/job.h"
#include "models/hardware/profile_build.h"
#include "tests/sim_plans.h"

static tws_error err;

static void copy(maker *m, int to_host, double bytes) {
  const int from = to_host ? TWS_TIER_DEVICE : TWS_TIER_PINNED, to = to_host ? TWS_TIER_PINNED : TWS_TIER_DEVICE;
  emit(m, TWS_OP_COPY, to_host ? TWS_STREAM_COPY_OUT : TWS_STREAM_COPY_IN,
       (tws_work){.tiers = (uint8_t)(from * TWS_TIER_COUNT + to), .d = {(int64_t)bytes}}, 0);
}

static double path(const machine *m, const maker *makers, int count) {
  const tws_plan *plans[MAX_RANKS];
  double step_s = 0;
  for (int i = 0; i < count; i++) plans[i] = &makers[i].plan;
  ck_assert_msg(tws_job_path(plans, count, &m->machine, NULL, &step_s, &err) == TWS_OK, "%s", err.message);
  return step_s;
}

/* Two copies that start at once share a link of 30 GB/s for both directions, of which each alone has 20 GB/s to the
 * device and 25 GB/s to the host; the rest of the longer copy runs alone. */
START_TEST(directions_share_a_link) {
  machine gpu;
  maker alone, equal, longer;
  make_gpus(&gpu, 1, 1, 1);
  gpu.cluster.host_link.latency_s = 0;
  begin(&alone, 0, 1);
  copy(&alone, 0, 20e9);
  begin(&equal, 0, 1);
  copy(&equal, 0, 15e9);
  copy(&equal, 1, 15e9);
  begin(&longer, 0, 1);
  copy(&longer, 0, 10e9);
  copy(&longer, 1, 20e9);
  for (int fidelity = TWS_FIDELITY_FLOW; fidelity <= TWS_FIDELITY_SIMGRID; fidelity++) {
    const double exact = fidelity == TWS_FIDELITY_SIMGRID ? 1e-6 : 1e-12;
    gpu.cluster.host_copies = (tws_copy_rates){0}; /* only the link's bandwidth is known: 10 GB/s each way */
    same(step(&gpu, &equal, 1, (tws_fidelity)fidelity), 1.5, exact);
    gpu.cluster.host_copies = (tws_copy_rates){20e9, 25e9, 0};
    same(step(&gpu, &equal, 1, (tws_fidelity)fidelity), 0.75, exact);
    gpu.cluster.host_copies.both_ways = 30e9;
    same(step(&gpu, &alone, 1, (tws_fidelity)fidelity), 1, exact);
    same(step(&gpu, &equal, 1, (tws_fidelity)fidelity), 1, exact);
    same(step(&gpu, &longer, 1, (tws_fidelity)fidelity), 10 / 15.0 + 10 / 25.0, exact);
  }
  /* with costs that are fixed, copies are lengthened as if they ran both ways as far as their bytes allow */
  same(path(&gpu, &alone, 1), 1, 1e-12);
  same(path(&gpu, &equal, 1), 1, 1e-12);
  same(path(&gpu, &longer, 1), 1, 1e-12);
  for (int i = 0; i < 2; i++)
    same(step(&gpu, i ? &longer : &equal, 1, TWS_FIDELITY_ANALYTIC), path(&gpu, i ? &longer : &equal, 1), 1e-12);
  /* copies of different phases do not run at the same time */
  equal.ops[1].phase = TWS_PHASE_STEP;
  same(path(&gpu, &equal, 1), 0.75, 1e-12);
  drop_machine(&gpu);
}
END_TEST

/* The copies of two devices with links of their own share what their node reaches in all. */
START_TEST(devices_share_a_node) {
  machine gpu;
  maker m[2];
  make_gpus(&gpu, 1, 2, 1);
  gpu.cluster.host_link.latency_s = 0;
  gpu.cluster.host_copies = (tws_copy_rates){20e9, 20e9, 40e9};
  gpu.cluster.node_copies = (tws_copy_rates){30e9, 30e9, 40e9};
  for (int ways = 1; ways <= 2; ways++) {
    for (int rank = 0; rank < 2; rank++) {
      begin(&m[rank], rank, 2);
      for (int way = 0; way < ways; way++) copy(&m[rank], way, 15e9);
    }
    const double expected = ways == 1 ? 1 : 1.5;
    for (int fidelity = TWS_FIDELITY_ANALYTIC; fidelity <= TWS_FIDELITY_SIMGRID; fidelity++)
      same(step(&gpu, m, 2, (tws_fidelity)fidelity), expected, 1e-6);
    same(path(&gpu, m, 2), expected, 1e-12);
  }
  /* one device alone is limited by its link, in the simulation of flows */
  begin(&m[1], 1, 2);
  begin(&m[0], 0, 2);
  copy(&m[0], 0, 15e9);
  same(step(&gpu, m, 2, TWS_FIDELITY_FLOW), 0.75, 1e-12);
  drop_machine(&gpu);
}
END_TEST

static void same_rates(const tws_copy_rates *rates, double to_device, double to_host, double both_ways) {
  ck_assert_msg(fabs(rates->to_device - to_device) + fabs(rates->to_host - to_host) +
                        fabs(rates->both_ways - both_ways) <=
                    1e-9 * to_device,
                "%g %g %g", rates->to_device, rates->to_host, rates->both_ways);
}

static void job_rates(const char *cluster, const char *profile, tws_copy_rates *one, tws_copy_rates *node) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_job *job;
  spec.model = "tiny-gpt2";
  spec.cluster = cluster;
  spec.profile = profile;
  ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
  *one = job->cluster.host_copies;
  *node = job->cluster.node_copies;
  tws_job_destroy(job);
}

/* A profile has the rates of one device and of several together; a job on a built-in cluster takes those of one device
 * and of the most devices, unless its cluster's file states rates. */
START_TEST(rates_come_from_profile_or_file) {
  char folder[] = "/tmp/tws-copies-XXXXXX", profile[64], cluster[64];
  tws_copy_rates one, node;
  ck_assert_ptr_nonnull(mkdtemp(folder));
  snprintf(profile, sizeof profile, "%s/profile.json", folder);
  snprintf(cluster, sizeof cluster, "%s/cluster.json", folder);
  tws_profile_builder *b = tws_profile_builder_create("measured", TWS_BACKEND_CUDA);
  tws_profile_builder_provenance(b, "made up");
  tws_profile_builder_node(b, 0, 80e9, 0);
  tws_profile_builder_peak(b, TWS_F32, 1e13);
  tws_profile_builder_bandwidth(b, 1e12, 0);
  tws_profile_builder_copies(b, 1, &(tws_copy_rates){50e9, 51e9, 80e9});
  tws_profile_builder_copies(b, 8, &(tws_copy_rates){200e9, 210e9, 300e9});
  tws_profile_builder_copies(b, 2, &(tws_copy_rates){100e9, 102e9, 160e9});
  ck_assert_msg(tws_profile_builder_write(b, profile, &err) == TWS_OK, "%s", err.message);
  tws_profile_builder_destroy(b);
  job_rates("dgx-h100:1", profile, &one, &node);
  same_rates(&one, 50e9, 51e9, 80e9);
  same_rates(&node, 200e9, 210e9, 300e9);
  FILE *file = fopen(cluster, "w");
  fprintf(file, "{\"schema\": \"twinspeed-cluster-1\", \"base\": \"dgx-h100:1\", \"host_link\": {\"bandwidth\": "
                "\"40 GB/s\", \"to_host\": 41e9, \"both_ways\": 60e9}, \"host_copies\": {\"both_ways\": 90e9}}");
  fclose(file);
  job_rates(cluster, profile, &one, &node);
  ck_assert(one.to_device == 0 && one.to_host == 41e9 && one.both_ways == 60e9 && node.both_ways == 90e9);
  tws_cluster read;
  ck_assert_int_eq(tws_cluster_load(cluster, &read, &err), TWS_OK);
  ck_assert(tws_cluster_copy_rate(&read, 0) == 40e9 && tws_cluster_copy_rate(&read, 1) == 41e9);
  job_rates("gb300-desktop-dgx-station", NULL, &one, &node); /* published measurements */
  same_rates(&one, 359.05e9, 377.15e9, 347.2e9);
  ck_assert(node.both_ways == 0);
  file = fopen(profile, "w");
  fprintf(file, "{\"schema\": \"twinspeed-profile-1\", \"provenance\": \"\", \"backend\": \"cuda\", \"memory_bytes\": "
                "1e9, \"peak_flops\": {\"fp32\": 1}, \"bandwidth\": 1, \"host_copies\": [{\"to_host\": 1}]}");
  fclose(file);
  tws_profile *bad;
  ck_assert_int_eq(tws_profile_load(profile, &bad, &err), TWS_INVALID);
  ck_assert_msg(strstr(err.message, "ranks") != NULL, "%s", err.message);
  unlink(profile);
  unlink(cluster);
  rmdir(folder);
}
END_TEST

int main(void) {
  const TTest *const tests[] = {directions_share_a_link, devices_share_a_node, rates_come_from_profile_or_file};
  return run_sim_suite("host_copies", tests, sizeof tests / sizeof *tests);
}
