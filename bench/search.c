/* How fast configurations are searched: GPT-3 175B on 64 A100, points considered and composed in a CPU second of one
 * core, without the plans and simulations of the best. With a Python interpreter that has llm-analysis
 * (bench-search PYTHON) the same cluster is asked of that analytic model, and the ratio is printed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autotune/exhaustive.h"
#include "bench/support.h"

typedef struct lists {
  const char *name;
  int tensor[8], pipeline[8], schedules, micro, buckets, stages;
  tws_compose_how how;
  int accumulations; /* 0: as many as 1536 sequences a step want */
} lists;

static const tws_variant_schedule all_schedules[] = {
    {TWS_PIPELINE_1F1B, 1},         {TWS_PIPELINE_INTERLEAVED, 2}, {TWS_PIPELINE_INTERLEAVED, 3},
    {TWS_PIPELINE_INTERLEAVED, 4},  {TWS_PIPELINE_INTERLEAVED, 6}, {TWS_PIPELINE_INTERLEAVED, 8},
    {TWS_PIPELINE_INTERLEAVED, 12}, {TWS_PIPELINE_ZB_H1, 1},       {TWS_PIPELINE_GPIPE, 1}};

static void fill(const lists *l, tws_tune_space *s) {
  *s = (tws_tune_space){.global_batch = l->accumulations ? 0 : 1536, .ranks = {64}, .ranks_count = 1};
  for (int i = 0; i < l->accumulations; i++) s->accumulation[s->accumulation_count++] = 4 * (i + 1);
  while (l->tensor[s->tensor_count]) {
    s->tensor[s->tensor_count] = l->tensor[s->tensor_count];
    s->tensor_count++;
  }
  while (l->pipeline[s->pipeline_count]) {
    s->pipeline[s->pipeline_count] = l->pipeline[s->pipeline_count];
    s->pipeline_count++;
  }
  for (int i = 0; i < l->schedules; i++) s->schedules[s->schedule_count++] = all_schedules[i];
  for (int m = 1; m <= 1536 && s->micro_count < l->micro; m++)
    if (1536 % m == 0) s->micro[s->micro_count++] = m;
  for (int i = 0; i < 4; i++)
    if (l->stages >> i & 1) s->stages[s->stage_count++] = i;
  for (int i = 0; i < l->buckets; i++) s->reduce_bucket[s->reduce_bucket_count++] = 50000000LL << i;
  for (int i = 0; i < 3; i++) s->recompute[s->recompute_count++] = (tws_recompute)i;
  for (int i = 0; i < 2; i++) {
    s->sequence_parallel[s->sequence_parallel_count++] = i;
    s->overlap[s->overlap_count++] = i + 1;
    s->offload[s->offload_count++] = i + 1;
  }
}

enum { LEAST_RUNS = 3, MOST_RUNS = 32 };
static const double enough_s = 1;

/* Points composed in a CPU second: the median of searches that begin with nothing, for a second at least. */
static double run(const lists *l) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_error err = {0};
  tws_job *job;
  tws_tune_swept swept;
  spec.model = "gpt-3-175b";
  spec.cluster = "dgx-a100:8";
  spec.dtype = "bf16";
  need(tws_job_open(&spec, &job, &err), &err);
  job->config->micro_batch_size = 0;
  tws_tune_request request = {.job = job, .trials = 10, .exhaustive = 1, .workers = 1};
  fill(l, &request.space);
  double each[MOST_RUNS], all = 0;
  int runs = 0;
  for (; runs < LEAST_RUNS || (runs < MOST_RUNS && all < enough_s); runs++) {
    need(tws_tune_compose_all(&request, l->how, &swept, &err), &err);
    all += each[runs] = swept.search_cpu_s;
  }
  const double seconds = median(each, runs), composed = (double)(swept.composed + swept.bounded);
  printf(
      "%-44s %9lld %7.4f s %10.0f /s | %7lld exact %7lld bounds %8.0f /s | %6lld lowered | %lld illegal, %lld equal, "
      "%lld too large, %lld too slow | %d runs, %.4f to %.4f s\n",
      l->name, (long long)swept.considered, seconds, (double)swept.considered / seconds, (long long)swept.composed,
      (long long)swept.bounded, composed / seconds, (long long)swept.lowered, (long long)swept.illegal,
      (long long)swept.equal, (long long)swept.too_large, (long long)swept.too_slow, runs, each[0], each[runs - 1]);
  fflush(stdout);
  tws_job_destroy(job);
  return composed / seconds;
}

/* Configurations a second of the peer, or 0. */
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
  static const lists all[] = {
      {"replicas and tensor ranks, all composed", {1, 2, 4, 8}, {1}, 1, 7, 8, 15, TWS_COMPOSE_HASTILY, 0},
      {"the same, with ends of all ranks", {1, 2, 4, 8}, {1}, 1, 7, 8, 15, TWS_COMPOSE_EXACTLY, 0},
      {"replicas, tensor ranks, 32 accumulations", {1, 2, 4, 8}, {1}, 1, 7, 8, 15, TWS_COMPOSE_HASTILY, 32},
      {"pipelines, ZeRO-1, all composed", {1, 2, 4, 8}, {2, 4, 8}, 2, 4, 8, 2, TWS_COMPOSE_HASTILY, 0},
      {"everything, pruned", {1, 2, 4, 8, 16, 32, 64}, {1, 2, 4, 8, 16, 32, 64}, 9, 20, 4, 15, TWS_COMPOSE_PRUNED, 0},
  };
  tws_keep_freed_memory();
  printf("GPT-3 175B on 64 A100, 1536 sequences a step; CPU seconds of one core\n");
  double most = 0;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    const double rate = run(&all[i]);
    if (rate > most) most = rate;
  }
  const double peer = argc > 1 ? run_peer(argv[1]) : 0;
  if (peer > 0)
    printf("of the peer's configurations a second: %.1f times as many are composed, at most\n", most / peer);
  return 0;
}
