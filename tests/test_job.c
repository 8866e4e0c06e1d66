/* A job: the placement of its ranks, its representative ranks, its variants, and whether it fits. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/fit.h"
#include "suite.h"

static tws_error err;
#define OK(call) ck_assert_msg((call) == TWS_OK, "%s", err.message)

static tws_job_spec spec_of(const char *model, const char *cluster) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  spec.model = model;
  spec.cluster = cluster;
  return spec;
}

/* ---- ranks on nodes ---- */

START_TEST(ranks_fill_nodes) {
  tws_cluster cluster;
  OK(tws_cluster_load("dgx-a100:3", &cluster, &err));
  cluster.nics_per_node = 2;
  const tws_node_mapping m = tws_node_mapping_of(&cluster, 0, 20);
  ck_assert_int_eq(m.slots, 8);
  ck_assert_int_eq(m.nodes, 3);
  ck_assert_int_eq(tws_mapping_most_on_node(&m), 8);
  for (int rank = 0; rank < 20; rank++) {
    ck_assert_int_eq(tws_mapping_node(&m, rank), rank / 8);
    ck_assert_int_eq(tws_mapping_nic(&m, rank), rank / 4); /* four devices to a NIC */
  }
  ck_assert_int_eq(tws_mapping_ranks_on_first_node(&m, (const int[]){6, 7, 8, 5}, 4), 3);
  const tws_node_mapping host = tws_node_mapping_of(&cluster, 1, 5); /* ranks on hosts are spread over the nodes */
  ck_assert_int_eq(host.slots, 2);
  ck_assert_int_eq(host.nodes, 3);
  ck_assert_int_eq(tws_mapping_most_on_node(&host), 2);
  const tws_node_mapping one = tws_node_mapping_of(&cluster, 0, 3);
  ck_assert_int_eq(tws_mapping_most_on_node(&one), 3);
  ck_assert_int_eq(one.nodes, 1);
}
END_TEST

/* One rank represents all where groups are placed alike; all ranks are taken where tensor groups of three lie on nodes
 * of eight. */
START_TEST(representative_ranks) {
  static const struct {
    int ranks, tensor, pipeline, stage, expected;
  } cases[] = {{16, 1, 1, 2, 1}, {16, 2, 1, 1, 1},  {16, 2, 1, 3, 2},
               {16, 2, 4, 1, 4}, {12, 3, 1, 1, 12}, {6, 3, 1, 1, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_job_spec spec = spec_of("gpt2", "dgx-a100:2");
    tws_job *job;
    tws_rank_set set;
    spec.ranks = cases[i].ranks;
    spec.tensor_ranks = cases[i].tensor;
    spec.pipeline_stages = cases[i].pipeline;
    spec.stage = cases[i].stage;
    spec.accumulation = 4;
    OK(tws_job_load(&spec, &job, &err));
    OK(tws_job_representatives(job, 0, &set, &err));
    ck_assert_msg(set.count == cases[i].expected, "case %zu: %d ranks", i, set.count);
    if (set.count == tws_job_stages(job)) /* one rank per stage, the same as tws_job_stage_rank() returns */
      for (int s = 0; s < set.count; s++) ck_assert_int_eq(set.ranks[s], tws_job_stage_rank(job, s));
    tws_rank_set_free(&set);
    OK(tws_job_representatives(job, job->ranks, &set, &err));
    ck_assert_int_eq(set.count, job->ranks);
    tws_rank_set_free(&set);
    tws_job_destroy(job);
  }
}
END_TEST

/* The ranks that are verified are whole replicas, the first and the last among them, or one rank of each stage. */
START_TEST(ranks_that_are_verified) {
  tws_job_spec spec = spec_of("gpt2", "dgx-a100:4");
  tws_job *job;
  tws_verified_set chosen;
  spec.tensor_ranks = 2;
  spec.pipeline_stages = 2;
  spec.accumulation = 2;
  OK(tws_job_load(&spec, &job, &err));
  OK(tws_ranks_to_verify(&job->topology, 1000, &chosen, &err));
  ck_assert_int_eq(chosen.set.count, 32);
  ck_assert_int_eq(chosen.whole_replicas, 8);
  tws_rank_set_free(&chosen.set);
  OK(tws_ranks_to_verify(&job->topology, 11, &chosen, &err));
  ck_assert_int_eq(chosen.set.count, 8);
  ck_assert_int_eq(chosen.whole_replicas, 2);
  ck_assert_int_eq(chosen.set.ranks[0], 0);
  ck_assert_int_eq(chosen.set.ranks[7], 31);
  tws_rank_set_free(&chosen.set);
  OK(tws_ranks_to_verify(&job->topology, 1, &chosen, &err));
  ck_assert_int_eq(chosen.set.count, 2);
  ck_assert_int_eq(chosen.whole_replicas, 0);
  for (int s = 0; s < 2; s++) ck_assert_int_eq(chosen.set.ranks[s], tws_job_stage_rank(job, s));
  tws_rank_set_free(&chosen.set);
  tws_job_destroy(job);
}
END_TEST

/* ---- variants ---- */

/* A variant of an open job equals the job that another process loads from the variant's arguments. */
START_TEST(variants_are_jobs) {
  static const tws_variant variants[] = {
      {.stage = 0, .ranks = 1, .micro = 4, .accumulation = 2},
      {.stage = 3, .ranks = 16, .micro = 1, .accumulation = 1, .recompute = TWS_RECOMPUTE_FULL},
      {.stage = 1,
       .ranks = 8,
       .micro = 2,
       .accumulation = 8,
       .pipeline = 2,
       .tensor = 2,
       .sequence = 1,
       .schedule = {TWS_PIPELINE_INTERLEAVED, 2},
       .sequence_parallel = 1},
      {.stage = 2,
       .ranks = 8,
       .micro = 1,
       .accumulation = 2,
       .pipeline = 1,
       .tensor = 4,
       .sequence = 1,
       .schedule = {TWS_PIPELINE_1F1B, 1},
       .recompute = TWS_RECOMPUTE_SELECTIVE}};
  tws_job_spec spec = spec_of("gpt2", "dgx-a100:2");
  tws_job *base;
  spec.sequence = 128;
  spec.dtype = "bf16";
  OK(tws_job_open(&spec, &base, &err));
  ck_assert_int_eq(base->ranks, 0);
  for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
    const tws_variant *v = &variants[i];
    tws_variant_text text;
    const tws_job_spec asked = tws_variant_spec(&spec, v, &text);
    tws_job *derived, *loaded;
    tws_fingerprint a, b;
    tws_estimate first, second;
    OK(tws_job_derive(base, v, &derived, &err));
    OK(tws_job_load(&asked, &loaded, &err));
    ck_assert_int_eq(derived->ranks, loaded->ranks);
    ck_assert_int_eq(derived->network->padded_vocabulary, loaded->network->padded_vocabulary);
    OK(tws_job_fingerprint(derived, &a, &err));
    OK(tws_job_fingerprint(loaded, &b, &err));
    ck_assert_str_eq(a.model, b.model);
    ck_assert_str_eq(a.plan, b.plan);
    OK(tws_job_estimate(derived, &first, NULL, &err));
    OK(tws_job_estimate(loaded, &second, NULL, &err));
    ck_assert_double_eq(first.step_s, second.step_s);
    const tws_fit one = tws_job_fit(derived, &first.ledger), other = tws_job_fit(loaded, &second.ledger);
    ck_assert_int_eq(one.fits, other.fits);
    ck_assert_double_eq(one.device_need, other.device_need);
    tws_job_destroy(loaded);
    tws_job_destroy(derived);
  }
  tws_job_destroy(base);
}
END_TEST

/* ---- does it fit ---- */

/* A job that needs exactly the bytes of the device and the node fits; with one byte more it does not, and the answer
 * names the device or the node. */
START_TEST(fits_to_the_byte) {
  tws_job_spec spec = spec_of("gpt2", "dgx-a100");
  tws_job *job;
  OK(tws_job_load(&spec, &job, &err));
  const tws_capacity c = tws_capacity_of(&job->machine, job->ranks, 0);
  ck_assert_int_eq(c.ranks_per_node, 8);
  ck_assert_double_eq(c.rank_device, c.device - c.overhead);
  for (int more = 0; more < 2; more++) {
    tws_ledger device = {0}, node = {0};
    tws_error why;
    device.tier[TWS_TIER_DEVICE].arena_bytes = (uint64_t)c.rank_device + (uint64_t)more;
    tws_fit fit = tws_fit_of(&c, &device);
    ck_assert_int_eq(fit.fits, !more);
    ck_assert_double_eq(fit.device_need, c.device + more);
    ck_assert_int_eq(tws_fit_refuse(&fit, "hint", &why), TWS_NO);
    ck_assert_ptr_nonnull(strstr(why.message, "a device needs"));
    node.tier[TWS_TIER_HOST].arena_bytes = (uint64_t)(c.node / 8) + (uint64_t)more;
    fit = tws_fit_of(&c, &node);
    ck_assert_int_eq(fit.fits, !more);
    ck_assert_int_eq(fit.tier, more ? TWS_TIER_HOST : TWS_TIER_DEVICE);
    ck_assert_double_eq(fit.node_need, 8 * (double)node.tier[TWS_TIER_HOST].arena_bytes);
    if (more) {
      ck_assert_int_eq(tws_fit_refuse(&fit, "hint", &why), TWS_NO);
      ck_assert_ptr_nonnull(strstr(why.message, "a node needs"));
    }
  }
  const tws_capacity less = tws_capacity_of(&job->machine, job->ranks, 5e9);
  ck_assert_double_eq(less.rank_device, 5e9 - c.overhead);
  tws_job_destroy(job);
}
END_TEST

/* The ranks of a node share its disks, where the cluster states their size. */
START_TEST(nodes_share_their_disks) {
  tws_job_spec spec = spec_of("gpt2", "dgx-a100");
  tws_job *job;
  tws_ledger ledger = {0};
  spec.ranks = 8;
  OK(tws_job_load(&spec, &job, &err));
  ledger.tier[TWS_TIER_DISK].arena_bytes = 1000000000001;
  ck_assert(tws_job_fit(job, &ledger).fits);
  job->cluster.disk_bytes = 8e12;
  const tws_fit fit = tws_job_fit(job, &ledger);
  ck_assert(!fit.fits && fit.tier == TWS_TIER_DISK && fit.rank_have == 1e12 && fit.disk_need == 8e12 + 8);
  tws_error why = {0};
  ck_assert_int_eq(tws_fit_refuse(&fit, "hint", &why), TWS_NO);
  ck_assert_ptr_nonnull(strstr(why.message, "a node's disk needs"));
  ledger.tier[TWS_TIER_DISK].arena_bytes--;
  ck_assert(tws_job_fit(job, &ledger).fits);
  tws_job_destroy(job);
}
END_TEST

/* The ranks of a host share one memory, whatever tier their bytes are in. */
START_TEST(hosts_share_their_memory) {
  tws_job_spec spec = spec_of("tiny-gpt2", "host");
  tws_job *job;
  spec.ranks = 3;
  OK(tws_job_load(&spec, &job, &err));
  job->cluster.nodes = 1;
  job->cluster.host_memory_bytes = 3e9;
  const tws_capacity c = tws_capacity_of(&job->machine, 3, 0);
  ck_assert_int_eq(c.ranks_per_node, 3);
  tws_ledger ledger = {0};
  ledger.tier[TWS_TIER_DEVICE].arena_bytes = 400000000;
  ledger.tier[TWS_TIER_HOST].arena_bytes = (uint64_t)(1e9 - c.overhead) - 400000000;
  tws_fit fit = tws_fit_of(&c, &ledger);
  ck_assert(fit.fits);
  ck_assert_double_eq(fit.node_need, 3e9);
  ledger.tier[TWS_TIER_HOST].arena_bytes++;
  fit = tws_fit_of(&c, &ledger);
  ck_assert(!fit.fits);
  ck_assert_double_eq(fit.node_need, 3e9 + 3);
  tws_job_destroy(job);
}
END_TEST

/* A job that cannot be built leaves no file and leaks no memory. */
START_TEST(bad_specifications) {
  static const struct {
    const char *model, *cluster, *set;
    int64_t ranks;
    tws_code code;
  } cases[] = {{NULL, "dgx-a100", NULL, 0, TWS_USAGE},
               {"gpt2", "dgx-a100", "zero_optimization.stge=1", 0, TWS_INVALID},
               {"gpt2", "dgx-a100", "twinspeed.ignored_token=50257", 0, TWS_INVALID},
               {"gpt2", "dgx-a100", NULL, 9, TWS_INVALID},
               {"gpt2", "dgx-a100", "tensor_parallel.autotp_size=3", 8, TWS_INVALID}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_job_spec spec = spec_of(cases[i].model, cases[i].cluster);
    tws_job *job = (tws_job *)&spec;
    if (cases[i].set) spec.set.item[spec.set.count++] = cases[i].set;
    spec.ranks = cases[i].ranks;
    const tws_code code = tws_job_load(&spec, &job, &err);
    ck_assert_msg(code == cases[i].code, "case %zu: %d, %s", i, code, err.message);
    ck_assert_ptr_null(job);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("job");
  TCase *tests = tcase_create("job");
  tcase_add_test(tests, ranks_fill_nodes);
  tcase_add_test(tests, representative_ranks);
  tcase_add_test(tests, ranks_that_are_verified);
  tcase_add_test(tests, variants_are_jobs);
  tcase_add_test(tests, fits_to_the_byte);
  tcase_add_test(tests, hosts_share_their_memory);
  tcase_add_test(tests, nodes_share_their_disks);
  tcase_add_test(tests, bad_specifications);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
