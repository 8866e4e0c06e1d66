/* ctest: sampled */
/* Searches find the same points as planning every point, and find them again when repeated. */
#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autotune/autotune.h"
#include "models/hardware/runtime.h"
#include "tests/draw.h"
#include "tests/folder.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

enum { SPACES = TWS_SANITIZED ? 3 : 20, BEST = 5 };

/* Returns the number of search spaces, which TWINSPEED_SEARCH_SPACES overrides. */
static uint64_t space_count(void) {
  const char *given = getenv("TWINSPEED_SEARCH_SPACES");
  return given && atoi(given) > 0 ? (uint64_t)atoi(given) : SPACES;
}

/* Returns 1 for jobs whose updates on the host are one step late, with all streams in one queue; other jobs may offload
 * parameters. */
static int is_late(uint64_t seed) {
  return seed % 3 == 2;
}

/* Returns 1 for jobs with adapters and base weights in few bits. */
static int has_few_bits(uint64_t seed) {
  return seed % 4 == 1;
}

static void set(tws_job *job, const char *key, const char *value) {
  tws_error err = {0};
  ck_assert_msg(tws_config_set(job->config, key, value, &err) == TWS_OK, "%s", err.message);
}

static tws_job *open_job(uint64_t seed) {
  static const char *const models[] = {"gpt2", "tiny-gpt2", "tiny-llama", "gpt2-medium"};
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_error err = {0};
  tws_job *job;
  spec.model = models[draw(seed, 1, 0, 3)];
  spec.cluster = "dgx-a100:1";
  spec.dtype = draw(seed, 2, 0, 1) ? "bf16" : "fp32";
  spec.sequence = 64 << draw(seed, 3, 0, 1);
  static const char *const adapters[] = {"twinspeed.lora.r=4", "twinspeed.lora.target_modules=\"all-linear\"",
                                         "twinspeed.frozen_quantization.type=\"nf4\""};
  for (int i = 0; i < 3 && has_few_bits(seed); i++) spec.set.item[spec.set.count++] = adapters[i];
  ck_assert_msg(tws_job_open(&spec, &job, &err) == TWS_OK, "%s", err.message);
  job->config->micro_batch_size = 0;
  if (draw(seed, 4, 0, 1)) set(job, "activation_checkpointing.cpu_checkpointing", "true");
  if (!is_late(seed)) return job;
  set(job, "twinspeed.delayed_update", "true");
  tws_profile *profile;
  ck_assert(tws_profile_load("a100-80gb", &profile, &err) == TWS_OK);
  ck_assert(tws_profile_set_runtime(profile, tws_runtime_find("fsdp-2022"), &err) == TWS_OK);
  tws_job_set_profile(job, profile);
  return job;
}

static void draw_space(uint64_t seed, tws_tune_space *s) {
  static const tws_variant_schedule schedules[] = {
      {TWS_PIPELINE_1F1B, 1}, {TWS_PIPELINE_INTERLEAVED, 2}, {TWS_PIPELINE_ZB_H1, 1}, {TWS_PIPELINE_GPIPE, 1}};
  *s = (tws_tune_space){.global_batch = 8 << draw(seed, 10, 0, 1), .axes = 1, .every_feature = 1};
  const int alone = seed % 5 == 3, parameters = alone || seed % 4 == 2; /* on the host, too */
  s->ranks[s->ranks_count++] = alone ? 1 : draw(seed, 11, 0, 1) ? 8 : 4;
  for (int i = 0; i < 4; i++)
    if (draw(seed, 20 + (uint64_t)i, 0, 2) == 0 || i == 1 || (i == 3 && (parameters || has_few_bits(seed))) ||
        (i == 2 && alone))
      s->stages[s->stage_count++] = i;
  s->tensor[s->tensor_count++] = 1;
  s->tensor[s->tensor_count++] = 2;
  s->pipeline[s->pipeline_count++] = 1;
  if (draw(seed, 30, 0, 2)) s->pipeline[s->pipeline_count++] = 2;
  s->schedules[s->schedule_count++] = schedules[draw(seed, 40, 0, 1)];
  s->schedules[s->schedule_count++] = schedules[draw(seed, 41, 2, 3)];
  s->micro[s->micro_count++] = 1;
  s->micro[s->micro_count++] = 2;
  s->recompute[s->recompute_count++] =
      draw(seed, 51, 0, 1) ? TWS_RECOMPUTE_FULL : (tws_recompute)draw(seed, 50, 0, TWS_RECOMPUTE_COUNT - 1);
  s->sequence_parallel[s->sequence_parallel_count++] = draw(seed, 60, 0, 1);
  for (int i = 1; i <= 2; i++) s->overlap[s->overlap_count++] = i;
  for (int i = 1; i <= 1 + (alone || is_late(seed) || draw(seed, 70, 0, 1)); i++) s->offload[s->offload_count++] = i;
  if (parameters) s->offload[s->offload_count++] = 4;
  s->reduce_bucket[s->reduce_bucket_count++] = 100000;
  /* limits of 1 + a number of elements: a small one, and one that exceeds the model. Not with one queue, where plans
   * that gather at other times take equally long. */
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT && !is_late(seed); i++)
    for (int k = 0; draw(seed, 90 + (uint64_t)i, 0, 2) == 0 && k < 2; k++)
      s->zero3[i][s->zero3_count[i]++] = 1 + (k ? 1000000000 : i == 2 ? 300000 : 1000);
  if (draw(seed, 80, 0, 1)) s->reduce_bucket[s->reduce_bucket_count++] = 50000000;
}

/* The figures of a point's plan; points with equal plans are one entry. */
typedef struct planned {
  tws_variant of;
  double samples_per_s;
  uint64_t bytes[TWS_TIER_COUNT];
} planned;

static int is_same_plan(const planned *a, const planned *b) {
  return a->of.overlap == b->of.overlap && a->of.pipeline == b->of.pipeline && a->of.tensor == b->of.tensor &&
         a->of.micro == b->of.micro && a->of.schedule.kind == b->of.schedule.kind &&
         a->samples_per_s == b->samples_per_s && memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static void add_planned(planned *all, int *count, const tws_tune_request *request, const tws_variant *v,
                        const tws_estimate *estimate) {
  planned one = {.of = *v, .samples_per_s = (double)request->space.global_batch / estimate->step_s};
  for (int t = 0; t < TWS_TIER_COUNT; t++) one.bytes[t] = estimate->ledger.tier[t].arena_bytes;
  for (int i = 0; i < *count; i++)
    if (is_same_plan(&all[i], &one)) return;
  all[(*count)++] = one;
}

static int count_or_one(int count) {
  return count > 0 ? count : 1;
}

static int knob_count(const tws_tune_space *s) {
  int count = s->overlap_count * s->offload_count * s->reduce_bucket_count;
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT; i++) count *= count_or_one(s->zero3_count[i]);
  return count;
}

/* Sets the limits of stage 3 for a combination, or no limits at other stages. Returns 0 if another combination gives
 * the same variant. */
static int set_limits(const tws_tune_space *s, int combination, tws_variant *v) {
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT; i++) {
    const int at = combination % count_or_one(s->zero3_count[i]);
    combination /= count_or_one(s->zero3_count[i]);
    if (v->stage != 3 && at > 0) return 0;
    if (v->stage == 3 && s->zero3_count[i]) v->zero3[i] = s->zero3[i][at];
  }
  return 1;
}

/* Plans all points of the space and lists each distinct plan that fits once; returns their number. */
static int plan_everything(const tws_tune_request *request, planned *all) {
  const tws_tune_space *s = &request->space;
  int count = 0;
  for (int st = 0; st < s->stage_count; st++)
    for (int t = 0; t < s->tensor_count; t++)
      for (int p = 0; p < s->pipeline_count; p++)
        for (int k = 0; k < s->schedule_count; k++)
          for (int m = 0; m < s->micro_count; m++)
            for (int knobs = 0; knobs < knob_count(s); knobs++) {
              tws_variant v = {
                  .stage = s->stages[st],
                  .recompute = s->recompute[0],
                  .ranks = s->ranks[0],
                  .micro = s->micro[m],
                  .pipeline = s->pipeline[p],
                  .tensor = s->tensor[t],
                  .sequence = 1,
                  .schedule = s->schedules[k],
                  .sequence_parallel = s->tensor[t] > 1 ? s->sequence_parallel[0] : 0,
                  .overlap = s->overlap[knobs % s->overlap_count],
                  .offload = s->offload[knobs / s->overlap_count % s->offload_count],
                  .reduce_bucket =
                      s->reduce_bucket[knobs / s->overlap_count / s->offload_count % s->reduce_bucket_count]};
              const int rest = knobs / s->overlap_count / s->offload_count / s->reduce_bucket_count;
              if (!set_limits(s, rest, &v)) continue;
              if (v.pipeline == 1) v.schedule = (tws_variant_schedule){TWS_PIPELINE_1F1B, 1};
              /* equal plans are counted once, as the search counts them */
              if ((v.pipeline == 1 && k > 0) || (v.stage == 0 && (v.offload == 2 || knobs > 0))) continue;
              if ((v.pipeline > 1 || v.ranks == 1) && v.overlap == 2) continue;
              if (tws_variant_offloads(&v, 1) && v.stage != 3) continue;
              const int replicas = tws_variant_replicas(&v);
              if (v.ranks % (v.pipeline * v.tensor) || s->global_batch % (replicas * v.micro)) continue;
              v.accumulation = s->global_batch / (replicas * v.micro);
              if (v.accumulation < v.pipeline) continue; /* a search does not try these unless accumulations are
                                                          * given */
              tws_error err = {0};
              tws_job *job = NULL;
              tws_estimate estimate;
              tws_code code = tws_job_derive(request->job, &v, &job, &err);
              if (code == TWS_OK) code = tws_job_estimate(job, &estimate, NULL, &err);
              if (code == TWS_OK && tws_job_fit(job, &estimate.ledger).fits)
                add_planned(all, &count, request, &v, &estimate);
              tws_job_destroy(job);
            }
  return count;
}

static int downwards(const void *left, const void *right) {
  const double a = ((const planned *)left)->samples_per_s, b = ((const planned *)right)->samples_per_s;
  return a > b ? -1 : a < b;
}

static void assert_same_table(const tws_tune_result *a, const tws_tune_result *b) {
  ck_assert_int_eq(a->fits, b->fits);
  for (int i = 0; i < a->fits; i++) {
    ck_assert_str_eq(a->candidates[i].name, b->candidates[i].name);
    ck_assert(a->candidates[i].estimate.step_s == b->candidates[i].estimate.step_s);
    ck_assert(memcmp(&a->candidates[i].estimate.ledger, &b->candidates[i].estimate.ledger, sizeof(tws_ledger)) == 0);
  }
}

static void assert_same_result(const tws_tune_result *a, const tws_tune_result *b) {
  const tws_tune_swept *x = &a->swept, *y = &b->swept;
  assert_same_table(a, b);
  ck_assert(x->illegal == y->illegal && x->equal == y->equal && x->too_large == y->too_large &&
            x->ruled_out == y->ruled_out && x->refused == y->refused && x->left == y->left && x->planned == y->planned);
}

static tws_tune_request draw_request(uint64_t seed, int workers) {
  tws_tune_request request = {.job = open_job(seed), .trials = BEST, .workers = workers, .list_up_to = -1};
  draw_space(seed, &request.space);
  return request;
}

static void assert_adds_up(const tws_tune_swept *s) {
  ck_assert_int_eq(s->considered,
                   s->illegal + s->equal + s->refused + s->too_large + s->ruled_out + s->planned + s->left);
}

static int is_near(double a, double b) {
  return fabs(a - b) <= 1e-9 * b;
}

/* Compares the speeds of two sorted lists. Plans of equal speed are one row or several in either list, depending on how
 * they are distinguished. */
static void assert_same_speeds(const tws_tune_result *whole, const planned *all, int count, uint64_t seed) {
  int row = 0, i = 0;
  while (row < whole->fits && i < count) {
    const double expected = all[i].samples_per_s;
    ck_assert_msg(is_near(tws_tune_throughput(&whole->candidates[row]), expected),
                  "seed %d: row %d, %s, has %.12g samples/s, by plans %.12g", (int)seed, row,
                  whole->candidates[row].name, tws_tune_throughput(&whole->candidates[row]), expected);
    while (row < whole->fits && is_near(tws_tune_throughput(&whole->candidates[row]), expected)) row++;
    while (i < count && is_near(all[i].samples_per_s, expected)) i++;
  }
  ck_assert_msg(row == whole->fits && i == count, "seed %d: %d of %d rows, %d of %d plans", (int)seed, row, whole->fits,
                i, count);
}

/* A search ranks points as their plans do, the best first, and in small spaces it lists every point. */
START_TEST(searches_rank_as_plans_do) {
  enum { MOST = 4096 };
  static planned all[MOST];
  int compared_best = 0, planned_less = 0;
  const uint64_t spaces = space_count();
  for (uint64_t seed = 1; seed <= spaces; seed++) {
    tws_tune_request request = draw_request(seed, 1 + (int)(seed % 2));
    tws_tune_result *result, *again, *whole;
    tws_error err = {0};
    ck_assert_msg(tws_tune(&request, &result, &err) == TWS_OK, "seed %d: %s", (int)seed, err.message);
    const int count = plan_everything(&request, all);
    qsort(all, (size_t)count, sizeof *all, downwards);
    const int wanted = count < BEST ? count : BEST;
    ck_assert_msg(result->fits == wanted, "seed %d: %d of %d", (int)seed, result->fits, wanted);
    for (int i = 0; i < wanted; i++, compared_best++) {
      const double found = tws_tune_throughput(&result->candidates[i]);
      const double expected = all[i].samples_per_s;
      ck_assert_msg(fabs(found - expected) <= 1e-9 * expected, "seed %d: number %d has %.12g samples/s, by plans %.12g",
                    (int)seed, i, found, expected);
    }
    ck_assert(!result->every);
    assert_adds_up(&result->swept);
    planned_less += result->swept.plans < count;
    request.workers = 3 - request.workers;
    ck_assert(tws_tune(&request, &again, &err) == TWS_OK);
    assert_same_result(again, result);
    request.list_up_to = MOST;
    ck_assert(tws_tune(&request, &whole, &err) == TWS_OK);
    ck_assert(whole->every);
    assert_same_speeds(whole, all, count, seed);
    assert_adds_up(&whole->swept);
    tws_tune_result_destroy(result);
    tws_tune_result_destroy(again);
    tws_tune_result_destroy(whole);
    tws_job_destroy(request.job);
  }
  ck_assert_int_ge(compared_best, 3 * (int)spaces);
  ck_assert_int_ge(planned_less, (int)spaces / 3);
}
END_TEST

/* ---- searches that end early, and searches that several processes share ---- */

static pid_t search_beside(const tws_tune_request *request) {
  const pid_t pid = fork();
  ck_assert_int_ge(pid, 0);
  if (pid > 0) return pid;
  tws_tune_result *result;
  _exit(tws_tune(request, &result, NULL) == TWS_OK ? 0 : 1);
}

/* A search that is killed several times at random moments and resumed gives the result of an uninterrupted one. */
START_TEST(killed_searches_continue) {
  enum { SEEDS = TWS_SANITIZED ? 2 : 6 };
  make_folder();
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    tws_tune_request request = draw_request(seed, 2);
    tws_tune_result *whole, *resumed;
    tws_error err = {0};
    ck_assert(tws_tune(&request, &whole, &err) == TWS_OK);
    const double took_s = whole->swept.search_s + whole->swept.plan_s;
    request.state = in_folder("state");
    for (int kill_at = 0; kill_at < 3; kill_at++) {
      const pid_t pid = search_beside(&request);
      usleep((useconds_t)(1e4 * took_s * draw(seed, 100 + (uint64_t)kill_at, 0, 99)));
      kill(pid, SIGKILL);
      waitpid(pid, NULL, 0);
      request.resume = 1;
    }
    ck_assert_msg(tws_tune(&request, &resumed, &err) == TWS_OK, "%s", err.message);
    assert_same_result(resumed, whole);
    tws_tune_result_destroy(resumed);
    /* the state of another search is refused, and so is a damaged one */
    request.space.micro_count--;
    ck_assert(tws_tune(&request, &resumed, &err) == TWS_INVALID);
    request.space.micro_count++;
    ck_assert_int_eq(truncate(request.state, 100), 0);
    ck_assert(tws_tune(&request, &resumed, &err) == TWS_INVALID);
    tws_tune_forget(&request);
    ck_assert(access(request.state, F_OK) != 0);
    tws_tune_result_destroy(whole);
    tws_job_destroy(request.job);
  }
  remove_folder();
}
END_TEST

/* Processes that divide a search find together what one process finds. */
START_TEST(divided_searches_find_the_same) {
  make_folder();
  tws_tune_request request = draw_request(3, 2);
  tws_tune_result *whole, *together;
  tws_error err = {0};
  ck_assert(tws_tune(&request, &whole, &err) == TWS_OK);
  request.workers = 1;
  request.parts = 2;
  request.state = in_folder("state");
  request.part = 1;
  const pid_t pid = search_beside(&request);
  request.part = 0;
  ck_assert_msg(tws_tune(&request, &together, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
  assert_same_table(together, whole);
  assert_adds_up(&together->swept);
  tws_tune_forget(&request);
  tws_tune_result_destroy(whole);
  tws_tune_result_destroy(together);
  tws_job_destroy(request.job);
  remove_folder();
}
END_TEST

/* With no time left a search finds nothing and counts every point that it has not evaluated; a later run continues. */
START_TEST(budgets_leave_the_rest) {
  make_folder();
  tws_tune_request request = draw_request(5, 1);
  tws_tune_result *whole, *result;
  tws_error err = {0};
  ck_assert(tws_tune(&request, &whole, &err) == TWS_OK);
  request.state = in_folder("state");
  request.budget_s = 1e-9;
  ck_assert(tws_tune(&request, &result, &err) == TWS_OK);
  ck_assert(result->fits == 0 && result->swept.left == result->swept.considered && result->swept.left_better < 0);
  tws_tune_result_destroy(result);
  request.resume = 1;
  request.budget_s = 1e6;
  ck_assert_msg(tws_tune(&request, &result, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(result->swept.left, 0);
  ck_assert_int_eq(result->fits, whole->fits);
  for (int i = 0; i < whole->fits; i++) ck_assert_str_eq(result->candidates[i].name, whole->candidates[i].name);
  tws_tune_forget(&request);
  tws_tune_result_destroy(whole);
  tws_tune_result_destroy(result);
  tws_job_destroy(request.job);
  remove_folder();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("search");
  TCase *c = tcase_create("search");
  tcase_add_test(c, searches_rank_as_plans_do);
  tcase_add_test(c, killed_searches_continue);
  tcase_add_test(c, divided_searches_find_the_same);
  tcase_add_test(c, budgets_leave_the_rest);
  suite_add_tcase(suite, c);
  return run_suite(suite);
}
