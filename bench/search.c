/* Cost of a search: GPT-3 175B on 64 A100, in CPU seconds of one core: points considered, bounds of single points, and
 * the whole search with the plans of the ten best. With a Python interpreter that has llm-analysis (bench-search
 * PYTHON), that analytic model searches the same cluster, and the ratio is printed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autotune/evaluate.h"
#include "autotune/points.h"
#include "bench/support.h"

static const tws_variant_schedule schedules[] = {
    {TWS_PIPELINE_1F1B, 1},         {TWS_PIPELINE_INTERLEAVED, 2}, {TWS_PIPELINE_INTERLEAVED, 3},
    {TWS_PIPELINE_INTERLEAVED, 4},  {TWS_PIPELINE_INTERLEAVED, 6}, {TWS_PIPELINE_INTERLEAVED, 8},
    {TWS_PIPELINE_INTERLEAVED, 12}, {TWS_PIPELINE_ZB_H1, 1},       {TWS_PIPELINE_GPIPE, 1}};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

/* 3,386,880 points. */
static void fill(tws_tune_space *s) {
  *s = (tws_tune_space){.global_batch = 1536, .ranks = {64}, .ranks_count = 1};
  for (int degree = 1; degree <= 64; degree *= 2) {
    s->tensor[s->tensor_count++] = degree;
    s->pipeline[s->pipeline_count++] = degree;
  }
  memcpy(s->schedules, schedules, sizeof schedules);
  s->schedule_count = SCHEDULES;
  for (int m = 1; m <= 1536; m++)
    if (1536 % m == 0) s->micro[s->micro_count++] = m;
  for (int i = 0; i < 4; i++) {
    s->stages[s->stage_count++] = i;
    s->reduce_bucket[s->reduce_bucket_count++] = 50000000LL << i;
  }
  for (int i = 0; i < 3; i++) s->recompute[s->recompute_count++] = (tws_recompute)i;
  for (int i = 0; i < 2; i++) {
    s->sequence_parallel[s->sequence_parallel_count++] = i;
    s->overlap[s->overlap_count++] = i + 1;
    s->offload[s->offload_count++] = i + 1;
  }
}

/* ---- bounds ---- */

typedef struct bounding {
  const tws_tune_request *request;
  int64_t seen, bounded;
  double cpu_s;
} bounding;

/* Computes the bound of every ONE_OF-th point, so that all kinds of points are included, for ten CPU seconds. */
static int bound_some(void *user, int64_t number, const tws_variant *variant) {
  enum { ONE_OF = 97 };
  bounding *b = user;
  tws_error err = {0};
  (void)number;
  if (b->seen++ % ONE_OF) return 1;
  tws_tune_candidate c = tws_tune_candidate_of(variant);
  const double start = cpu_s();
  need(tws_tune_bound(b->request, &c, &err), &err);
  b->cpu_s += cpu_s() - start;
  b->bounded++;
  return b->cpu_s < 10;
}

static double run_bounds(const tws_tune_request *request) {
  tws_points points;
  tws_error err = {0};
  bounding b = {.request = request};
  need(tws_points_fill(request, &points, &err), &err);
  const double start = cpu_s();
  const int64_t own = tws_points_count_distinct(&points, INT64_MAX);
  const double listed_s = cpu_s() - start;
  tws_points_each(&points, bound_some, &b);
  printf("%lld points, %lld of them legal and different: listed in %.2f s, %.0f considered a second\n",
         (long long)points.points, (long long)own, listed_s, (double)points.points / listed_s);
  printf("%lld bounds of single points: %.0f a second\n", (long long)b.bounded, (double)b.bounded / b.cpu_s);
  tws_points_free(&points);
  return (double)b.bounded / b.cpu_s;
}

/* ---- the search ---- */

static double run_search(const tws_tune_request *request) {
  tws_tune_result *result;
  tws_error err = {0};
  need(tws_tune(request, &result, &err), &err);
  const tws_tune_swept *s = &result->swept;
  const double cpu = s->search_cpu_s + s->plan_cpu_s;
  printf(
      "the search: %.2f s of CPU looking at divisions, %.2f s for %lld bounds and %lld plans; %lld illegal, %lld "
      "equal, %lld too large, %lld ruled out; the best takes %.1f s\n",
      s->search_cpu_s, s->plan_cpu_s, (long long)s->bounds, (long long)s->plans, (long long)s->illegal,
      (long long)s->equal, (long long)s->too_large, (long long)s->ruled_out, result->candidates[0].estimate.step_s);
  const double rate = (double)tws_tune_points(result) / cpu;
  printf("configurations decided a CPU second: %.0f\n", rate);
  tws_tune_result_destroy(result);
  return rate;
}

/* Returns the configurations per second that the peer program searches, or 0 if it fails. */
static double run_peer(const char *python) {
  char script[1024];
  snprintf(script, sizeof script, "%s/bench/peer/analytic_search.py", TWS_SOURCE_DIR);
  const char *const arguments[] = {python, script, NULL};
  const tws_process process = {.arguments = arguments, .limit_s = 3600};
  tws_process_end end;
  double rate = 0;
  if (tws_process_run(&process, &end, NULL) != TWS_OK) return 0;
  for (const char *line = end.output.data ? end.output.data : ""; *line; line += *line == '\n') {
    const int length = (int)strcspn(line, "\n");
    const char *unit = strstr(line, "configurations/s"), *rest;
    printf("%.*s\n", length, line);
    if (unit && unit < line + length) tws_text_number(line, &rest, 0, 1e18, &rate);
    line += length;
  }
  const int failed = end.status != 0 || end.timed_out;
  tws_text_free(&end.output);
  return failed ? 0 : rate;
}

int main(int argc, char **argv) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_error err = {0};
  tws_job *job;
  tws_keep_freed_memory();
  printf("GPT-3 175B on 64 A100, 1536 sequences a step; CPU seconds of one core\n");
  spec.model = "gpt-3-175b";
  spec.cluster = "dgx-a100:8";
  spec.dtype = "bf16";
  need(tws_job_open(&spec, &job, &err), &err);
  job->config->micro_batch_size = 0;
  tws_tune_request request = {.job = job, .trials = 10, .workers = 1};
  fill(&request.space);
  run_bounds(&request);
  const double rate = run_search(&request), peer = argc > 1 ? run_peer(argv[1]) : 0;
  if (peer > 0) printf("of the peer's configurations a second: %.1f times as many are decided\n", rate / peer);
  tws_job_destroy(job);
  return 0;
}
