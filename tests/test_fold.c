/* ctest: sampled */
/* Steps of many micro-batches: plans with few micro-batches predict the time and memory of all, to the byte, for every
 * schedule and stage; steps that are too long are refused before memory is allocated. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "config/cluster.h"
#include "estimators/estimators.h"
#include "job/simulate.h"
#include "models/hardware/profile.h"
#include "plan/fold.h"
#include "plan/representatives.h"
#include "tests/drawn_job.h"
#include "tests/legal_job.h"
#include "tests/sample.h"
#include "tests/sanitized.h"
#include "tests/sim_module.h"
#include "tests/suite.h"

enum { JOBS = TWS_SANITIZED ? 6 : 20, ANY_JOBS = TWS_SANITIZED ? 22 : 66 };

static int close_to(double a, double b, double whole) {
  return fabs(a - b) <= 1e-9 * whole;
}

static void check_same_path(const tws_path_result *folded, const tws_path_result *whole, uint64_t seed) {
  const double step = whole->step_s;
  int wrong = !close_to(folded->step_s, step, step) + 2 * !close_to(folded->exposed_s, whole->exposed_s, step) +
              4 * !close_to(folded->bubble_s, whole->bubble_s, step) +
              8 * !close_to(folded->flops, whole->flops, whole->flops);
  for (int i = 0; i < TWS_STREAM_COUNT; i++)
    wrong |= 16 * !close_to(folded->stream_busy_s[i], whole->stream_busy_s[i], step);
  for (int i = 0; i < TWS_COLLECTIVE_COUNT; i++)
    wrong |= 32 * !close_to(folded->collective_s[i], whole->collective_s[i], step);
  for (int i = 0; i < TWS_KERNEL_COUNT; i++) wrong |= 64 * !close_to(folded->kernel_s[i], whole->kernel_s[i], step);
  ck_assert_msg(wrong == 0, "seed %d: differs (%d): %.12g s folded, %.12g s whole", (int)seed, wrong, folded->step_s,
                step);
}

/* Number of parts of a job that were planned with fewer micro-batches. */
typedef struct planned {
  int few_timed, few_laid_out; /* 1: fewer micro-batches than the job has were timed, or laid out */
} planned;

/* Compares the estimate, which plans few micro-batches, with the whole plans of all representative ranks. */
static planned check_job(const tws_plan_request *job, const tws_machine *machine, uint64_t seed) {
  tws_error err = {0};
  tws_rank_set set;
  tws_estimate estimate, between;
  double step_s;
  ck_assert(tws_estimate_ranks(job, machine, &set, &err) == TWS_OK);
  tws_plan **plans = calloc((size_t)set.count, sizeof *plans);
  tws_path_result *paths = calloc((size_t)set.count, sizeof *paths);
  tws_ledger fullest = {0}, live;
  uint64_t most_live = 0;
  ck_assert_msg(tws_estimate_step(job, machine, &estimate, &err) == TWS_OK, "seed %d: %s", (int)seed, err.message);
  for (int i = 0; i < set.count; i++) {
    tws_plan_request request = *job;
    tws_ledger ledger;
    request.rank = set.ranks[i];
    ck_assert_msg(tws_plan_build(&request, &plans[i], &err) == TWS_OK, "seed %d: %s", (int)seed, err.message);
    ck_assert_msg(i > 0 || tws_plan_verify(plans[i], &err) == TWS_OK, "seed %d: %s", (int)seed, err.message);
    ck_assert(tws_ledger_read(plans[i], &ledger, &err) == TWS_OK);
    if (ledger.tier[0].arena_bytes > fullest.tier[0].arena_bytes) fullest = ledger;
    if (ledger.tier[0].live_bytes > most_live) most_live = ledger.tier[0].live_bytes;
  }
  ck_assert(tws_job_path((const tws_plan *const *)plans, set.count, machine, paths, &step_s, &err) == TWS_OK);
  ck_assert_msg(tws_estimate_live(job, machine, &live, &err) == TWS_OK, "seed %d: %s", (int)seed, err.message);
  ck_assert_msg(live.tier[0].live_bytes == most_live, "seed %d: %.0f live bytes, not %.0f", (int)seed,
                (double)live.tier[0].live_bytes, (double)most_live);
  ck_assert(tws_estimate_between(job, machine, &between, &err) == TWS_OK);
  step_s += between.step_s;
  ck_assert_msg(close_to(estimate.step_s, step_s, step_s), "seed %d: %.12g s from %d micro-batches, %.12g s from %d",
                (int)seed, estimate.step_s, (int)estimate.timed, step_s, (int)job->config->accumulation_steps);
  int busiest = 0;
  for (int i = 1; i < set.count; i++)
    if (paths[i].bubble_s < paths[busiest].bubble_s - 1e-9 * step_s) busiest = i;
  tws_path_add(&paths[busiest], &between.path, 1);
  if (between.ledger.tier[0].arena_bytes > fullest.tier[0].arena_bytes) fullest = between.ledger;
  if (set.count == 1 || paths[busiest].bubble_s > 0) check_same_path(&estimate.path, &paths[busiest], seed);
  const tws_ledger_tier *few = &estimate.ledger.tier[0], *all = &fullest.tier[0];
  ck_assert_msg(few->arena_bytes == all->arena_bytes && few->live_bytes == all->live_bytes &&
                    memcmp(few->category, all->category, sizeof all->category) == 0,
                "seed %d: %llu bytes from %d micro-batches, %llu from all", (int)seed,
                (unsigned long long)few->arena_bytes, (int)estimate.built, (unsigned long long)all->arena_bytes);
  for (int i = 0; i < set.count; i++) tws_plan_destroy(plans[i]);
  free(paths);
  free(plans);
  tws_rank_set_free(&set);
  return (planned){estimate.timed < job->config->accumulation_steps, estimate.built < job->config->accumulation_steps};
}

START_TEST(folded_jobs_are_whole_jobs) {
  tws_error err = {0};
  tws_profile *profile = NULL;
  tws_cluster cluster;
  ck_assert_msg(tws_profile_load("a100-80gb", &profile, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_cluster_load("dgx-a100", &cluster, &err) == TWS_OK, "%s", err.message);
  cluster.nodes = 4;
  const tws_machine machine = {&cluster, profile};
  int folded[TWS_PIPELINE_KIND_COUNT + 1] = {0}, tried[TWS_PIPELINE_KIND_COUNT + 1] = {0};
  for (uint64_t seed = 9000; seed < 9000 + JOBS; seed++) {
    if (!takes(seed, 2)) continue;
    shape s;
    int world;
    tws_config config = legal_job(seed, &s, &world);
    const int stages = (int)config.pipeline_stages;
    const tws_pipeline_shape pipeline = tws_pipeline_shape_of(&config, stages, 1);
    const int64_t round = tws_fold_round(&pipeline);
    config.accumulation_steps = stages * (33 * round / stages + 1 + (int64_t)draw(seed, 60, 8));
    tws_network *network = network_of(&s, config.tensor_ranks);
    tws_plan_request request = {.network = network, .config = &config, .backend = TWS_BACKEND_CUDA, .threads = 1};
    ck_assert(tws_plan_topology(&config, world, &request.topology, &err) == TWS_OK);
    const int kind = stages > 1 ? (int)pipeline.kind : TWS_PIPELINE_KIND_COUNT;
    const int folds = check_job(&request, &machine, seed).few_timed;
    if (config.matmul_dtype == TWS_MATMUL_AUTO) { /* casts add sizes of buffers, and folding succeeds less often */
      tried[kind]++;
      folded[kind] += folds;
    }
    tws_network_destroy(network);
  }
  ck_assert_int_eq(folded[TWS_PIPELINE_GPIPE], 0);
  for (int k = 1; k <= TWS_PIPELINE_KIND_COUNT && takes_all(); k++)
    ck_assert_msg(2 * folded[k] >= tried[k], "schedule %d: %d of %d were folded", k, folded[k], tried[k]);
  tws_profile_destroy(profile);
}
END_TEST

/* Jobs of all kinds, with steps of a few and of many micro-batches. TWS_FOLD_JOBS is the number of jobs, TWS_FOLD_FIRST
 * the first. */
START_TEST(few_rounds_of_any_job) {
  static const uint64_t kinds[] = {0,         BESIDE, CODED,  OFFLOADED,    RANKED, IN_STEP,
                                   EXCHANGED, RINGED, HOSTED, CHECKPOINTED, 1 << 10};
  enum { KINDS = sizeof kinds / sizeof *kinds };
  const char *asked = getenv("TWS_FOLD_JOBS"), *from = getenv("TWS_FOLD_FIRST");
  const int jobs = asked ? atoi(asked) : ANY_JOBS, begin = from ? atoi(from) : 0;
  int tried[KINDS] = {0}, whole[KINDS] = {0}, whole_laid_out = 0, all = 0, all_whole = 0;
  for (int i = begin; i < begin + jobs; i++) {
    const uint64_t kind = (uint64_t)i % KINDS, seed = kinds[kind] + 100 + (uint64_t)i / KINDS;
    drawn_job j;
    draw_job(seed, 0, 1, &j);
    const int stages = (int)j.config.pipeline_stages;
    if (j.config.pipeline_schedule == TWS_PIPELINE_GPIPE) j.config.pipeline_schedule = TWS_PIPELINE_1F1B;
    j.config.delayed_update = j.config.sparse_gradients = 0; /* which are whole, too */
    const tws_pipeline_shape pipeline = tws_pipeline_shape_of(&j.config, stages, 1);
    int64_t steps = stages;
    while (!tws_fold_applies(&pipeline, steps)) steps += stages;
    j.config.accumulation_steps = steps + stages * (int64_t)draw(seed, 61, i % 2 ? 8 : 40);
    const planned p = check_job(&j.request, &j.machine, seed);
    tried[kind]++;
    whole[kind] += !p.few_timed;
    whole_laid_out += !p.few_laid_out;
    drop_job(&j);
  }
  for (int k = 0; k < KINDS; k++) {
    all += tried[k];
    all_whole += whole[k];
    if (asked) printf("kind %d: %d of %d were planned whole\n", k, whole[k], tried[k]);
  }
  printf("%d of %d jobs were planned whole for their times, %d for their memory\n", all_whole, all, whole_laid_out);
  ck_assert_int_le(20 * all_whole, all);
  ck_assert_int_le(20 * whole_laid_out, all);
}
END_TEST

static tws_job *job_of(int64_t stages, const char *schedule, int64_t steps) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_error err = {0};
  tws_job *job;
  spec.model = "gpt2";
  spec.cluster = "dgx-a100";
  spec.ranks = 4;
  spec.sequence = 128;
  spec.pipeline_stages = stages;
  spec.schedule = schedule;
  spec.accumulation = steps;
  ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
  return job;
}

/* A simulation of few micro-batches gives the step of the whole simulation. A timeline shows every operation, and
 * therefore simulates all micro-batches. */
START_TEST(folded_simulations_are_whole_simulations) {
  static const struct {
    int64_t stages, steps;
    const char *schedule;
    tws_fidelity fidelity;
  } cases[] = {{1, 70, NULL, TWS_FIDELITY_ANALYTIC},
               {4, 135, "1f1b", TWS_FIDELITY_ANALYTIC},
               {4, 130, "zb-h1", TWS_FIDELITY_FLOW},
               {2, 134, "1f1b", TWS_FIDELITY_FLOW}};
  const tws_sim_api *sim = load_simulator();
  for (size_t i = 0; sim && i < sizeof cases / sizeof *cases; i++) {
    tws_job *job = job_of(cases[i].stages, cases[i].schedule, cases[i].steps);
    tws_simulation_request request = {.sim = sim, .fidelity = cases[i].fidelity};
    tws_simulation folded, whole;
    tws_error err = {0};
    ck_assert_msg(tws_job_simulate(job, &request, &folded, &err) == TWS_OK, "%s", err.message);
    request.timeline = tws_timeline_create("all");
    ck_assert_msg(tws_job_simulate(job, &request, &whole, &err) == TWS_OK, "%s", err.message);
    const double step = whole.result.step_s;
    ck_assert(folded.plans[0]->accumulation_steps < whole.plans[0]->accumulation_steps);
    ck_assert_int_eq(whole.plans[0]->accumulation_steps, cases[i].steps);
    ck_assert_msg(close_to(folded.result.step_s, step, step), "case %zu: %.12g s, %.12g s", i, folded.result.step_s,
                  step);
    ck_assert(close_to(folded.result.bubble, whole.result.bubble, 1));
    ck_assert(close_to(folded.result.rank_communication_s, whole.result.rank_communication_s, step));
    for (int rank = 0; rank < whole.plan_count; rank++) {
      check_same_path(&folded.paths[rank], &whole.paths[rank], i);
      ck_assert_uint_eq(
          tws_plan_bytes(folded.plans[rank], TWS_TIER_DEVICE) + tws_arena_growth(folded.plans[rank], cases[i].steps),
          tws_plan_bytes(whole.plans[rank], TWS_TIER_DEVICE));
    }
    tws_timeline_destroy(request.timeline);
    tws_simulation_free(&folded);
    tws_simulation_free(&whole);
    tws_job_destroy(job);
  }
}
END_TEST

/* Estimating and verifying a million micro-batches builds no more operations than a few dozen need. */
START_TEST(any_number_of_micro_batches) {
  for (int64_t stages = 1; stages <= 4; stages *= 4) {
    tws_job *job = job_of(stages, NULL, 1 << 20);
    tws_estimate few, many;
    tws_verification seen;
    tws_progress quiet = {0};
    tws_error err = {0};
    ck_assert_msg(tws_job_estimate(job, &many, NULL, &err) == TWS_OK, "%s", err.message);
    ck_assert_int_le(many.built, 200);
    ck_assert_msg(tws_job_verify(job, 0, &quiet, &seen, &err) == TWS_OK, "%s", err.message);
    ck_assert(seen.together && seen.operations < 400000);
    tws_job_destroy(job);
    job = job_of(stages, NULL, 1 << 10);
    ck_assert_msg(tws_job_estimate(job, &few, NULL, &err) == TWS_OK, "%s", err.message);
    const double ratio = many.path.flops / few.path.flops;
    ck_assert_msg(ratio > 1000 && ratio < 1024, "%g", ratio);
    tws_job_destroy(job);
  }
}
END_TEST

/* Plans that cannot be folded are refused above 2^23 operations: the plan that an engine runs, and GPipe's, which needs
 * every micro-batch. */
START_TEST(plans_of_too_many_operations_are_refused) {
  tws_job *jobs[2] = {job_of(1, NULL, 1 << 20), job_of(4, "gpipe", 1 << 20)};
  for (int i = 0; i < 2; i++) {
    tws_error err = {0};
    tws_plan *plan;
    tws_estimate estimate;
    ck_assert_msg(tws_job_plan(jobs[i], i, &plan, &err) == TWS_UNSUPPORTED, "job %d of %d", i,
                  (int)jobs[i]->config->accumulation_steps);
    ck_assert_msg(strstr(err.message, "2^23 operations") && strstr(err.hint, "accumulation steps"), "%s / %s",
                  err.message, err.hint);
    if (i == 1) ck_assert_int_eq(tws_job_estimate(jobs[i], &estimate, NULL, &err), TWS_UNSUPPORTED);
    tws_job_destroy(jobs[i]);
  }
}
END_TEST

/* For 2^26 ranks, representative ranks are computed, without a search through all ranks. */
START_TEST(representatives_of_many_ranks) {
  static const tws_axis axes[] = {TWS_AXIS_PIPE, TWS_AXIS_DATA, TWS_AXIS_MODEL};
  static const int dims[] = {4, 1 << 21, 8};
  tws_topology topology;
  tws_verified_set chosen;
  tws_error err = {0};
  ck_assert(tws_topology_make(&topology, 3, axes, dims, &err) == TWS_OK);
  ck_assert(tws_ranks_to_verify(&topology, 64, &chosen, &err) == TWS_OK);
  ck_assert_int_eq(chosen.set.count, 64);
  ck_assert_int_eq(chosen.whole_replicas, 2);
  for (int i = 0; i < 64; i++) {
    const int stage = i / 16, replica = i / 8 % 2, part = i % 8;
    ck_assert_int_eq(chosen.set.ranks[i], stage * (8 << 21) + replica * ((8 << 21) - 8) + part);
  }
  tws_rank_set_free(&chosen.set);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("fold");
  TCase *c = tcase_create("fold");
  tcase_set_timeout(c, 120);
  tcase_add_test(c, folded_jobs_are_whole_jobs);
  tcase_add_test(c, few_rounds_of_any_job);
  tcase_add_test(c, folded_simulations_are_whole_simulations);
  tcase_add_test(c, any_number_of_micro_batches);
  tcase_add_test(c, plans_of_too_many_operations_are_refused);
  tcase_add_test(c, representatives_of_many_ranks);
  suite_add_tcase(suite, c);
  return run_suite(suite);
}
