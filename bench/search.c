/* How fast configurations are searched: GPT-3 175B on 64 A100, points estimated in a CPU second of one core, without
 * simulations of the best. With a Python interpreter that has llm-analysis
 * (bench-search PYTHON) the same cluster is asked of that analytic model, and the ratio is printed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autotune/autotune.h"
#include "bench/support.h"

typedef struct lists {
  const char *name;
  int tensor[8], pipeline[8], schedules, micro, buckets, stages;
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

/* Points estimated in a CPU second. */
static double run(const lists *l) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_error err = {0};
  tws_job *job;
  tws_tune_result *result;
  spec.model = "gpt-3-175b";
  spec.cluster = "dgx-a100:8";
  spec.dtype = "bf16";
  need(tws_job_open(&spec, &job, &err), &err);
  job->config->micro_batch_size = 0;
  tws_tune_request request = {.job = job, .trials = 10, .workers = 1};
  fill(l, &request.space);
  const double start = cpu_s();
  need(tws_tune(&request, &result, &err), &err);
  const double seconds = cpu_s() - start;
  const int count = result->count;
  printf("%-44s %9d points %9.3f s %10.0f /s\n", l->name, count, seconds, count / seconds);
  fflush(stdout);
  tws_tune_result_destroy(result);
  tws_job_destroy(job);
  return count / seconds;
}

/* Configurations a second of the peer, or 0. */
static double run_peer(const char *python) {
  char command[4096], line[256];
  double rate = 0;
  snprintf(command, sizeof command, "'%s' '%s/bench/peer/analytic_search.py'", python, TWS_SOURCE_DIR);
  FILE *pipe = popen(command, "r");
  while (pipe && fgets(line, sizeof line, pipe)) {
    fputs(line, stdout);
    if (strstr(line, "configurations/s")) rate = strtod(line, NULL);
  }
  return pipe && pclose(pipe) == 0 ? rate : 0;
}

int main(int argc, char **argv) {
  static const lists all[] = {
      {"replicas and tensor ranks", {1, 2, 4, 8}, {1}, 1, 7, 1, 15, 0},
      {"pipelines, ZeRO-1", {4, 8}, {2, 4, 8}, 2, 4, 1, 2, 0},
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
    printf("of the peer's configurations a second: %.1f times as many are estimated, at most\n", most / peer);
  return 0;
}
