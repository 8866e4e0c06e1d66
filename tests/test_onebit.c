/* ctest: engine */
/* Averages of compressed signs, and the optimizers that use them, compared with the results of DeepSpeed's classes. */
#include "base/random.h"
#include "members.h"
#include "onebit_ranks.h"
#include "suite.h"

/* ---- phases ---- */

static tws_config *phased(const char *type, const char *arguments) {
  char text[512];
  tws_config *config;
  snprintf(text, sizeof text,
           "{\"train_micro_batch_size_per_gpu\": 1, \"twinspeed\": {\"sequence_length\": 4}, \"optimizer\": {\"type\": "
           "\"%s\", \"params\": {%s}}}",
           type, arguments);
  ck_assert_msg(resolve(text, 2, 2, &config) == TWS_OK, "%s: %s", text, err.message);
  return config;
}

/* The variables that DeepSpeed's ZeroOneAdam keeps between updates. */
typedef struct zero_one {
  int64_t interval, counter, local_interval, local_counter;
  int frozen;
} zero_one;

static tws_program next_program(zero_one *z, const tws_config *c, int64_t step) {
  tws_program program = TWS_PROGRAM_TRAIN;
  if (step == 1) {
    *z = (zero_one){1, 0, 1, 0, 0};
    return program;
  }
  if (!z->frozen && step % z->interval != 0) program = TWS_PROGRAM_COMPRESSED;
  if (z->frozen) program = step % z->local_interval == 0 ? TWS_PROGRAM_MERGE : TWS_PROGRAM_LOCAL;
  if (!z->frozen && step % z->interval == 0 && ++z->counter == c->var_update_scaler) z->counter = 0, z->interval *= 2;
  if (z->frozen && ++z->local_counter == c->local_step_scaler) {
    z->local_counter = 0;
    z->local_interval = z->local_interval * 2 < c->local_step_clipper ? z->local_interval * 2 : c->local_step_clipper;
  }
  z->frozen |= step > c->var_freeze_step;
  return program;
}

START_TEST(kinds) {
  for (int i = 0; i < 40; i++) {
    char arguments[256];
    const uint64_t s = (uint64_t)i;
    snprintf(
        arguments, sizeof arguments,
        "\"var_freeze_step\": %d, \"var_update_scaler\": %d, \"local_step_scaler\": %d, \"local_step_clipper\": %d",
        (int)(tws_random_uniform(s, 1, 0) * 60), 1 + (int)(tws_random_uniform(s, 2, 0) * 9),
        1 + (int)(tws_random_uniform(s, 3, 0) * 20), 1 + (int)(tws_random_uniform(s, 4, 0) * 17));
    tws_config *config = phased("ZeroOneAdam", arguments);
    int64_t count[TWS_PROGRAM_COUNT] = {0}, told[TWS_PROGRAM_COUNT], since = 0;
    zero_one z = {0};
    for (int64_t step = 1; step <= 300; step++) {
      const tws_program program = next_program(&z, config, step);
      const tws_step_kind kind = tws_step_kind_of(config, step, 0), last = tws_step_kind_of(config, step, 1);
      ck_assert_msg(kind.program == program, "%s: update %d", arguments, (int)step);
      ck_assert(last.program == (program == TWS_PROGRAM_LOCAL ? TWS_PROGRAM_MERGE : program));
      ck_assert_int_eq(tws_step_agrees(config, step), program != TWS_PROGRAM_LOCAL);
      if (program >= TWS_PROGRAM_LOCAL) ck_assert_int_eq(kind.since, since > 0 ? since : step);
      since = program == TWS_PROGRAM_LOCAL ? kind.since : 0;
      count[TWS_PROGRAM_FREEZE] += kind.begins_phase;
      int64_t all[TWS_PROGRAM_COUNT];
      memcpy(all, count, sizeof all);
      all[last.program]++, count[program]++;
      tws_run_programs(config, step, told);
      for (int p = 0; p < TWS_PROGRAM_COUNT; p++)
        ck_assert_msg(told[p] == all[p], "%s: %d steps, %s: %d and %d", arguments, (int)step,
                      tws_program_name((tws_program)p), (int)told[p], (int)all[p]);
    }
    tws_config_destroy(config);
  }
}
END_TEST

/* ---- the compressed all-reduce of golden/onebit.json ---- */

static const double *numbers_of(const cJSON *list, double *values, int *count) {
  const cJSON *item;
  *count = 0;
  cJSON_ArrayForEach(item, list) values[(*count)++] = item->valuedouble;
  return values;
}

static void near(const cJSON *want, const float *have, double scale, const char *what) {
  double values[512];
  int count;
  numbers_of(want, values, &count);
  for (int i = 0; i < count; i++)
    ck_assert_msg(fabs(values[i] - (double)have[i]) <= 2e-6 * scale, "%s, element %d: %.9g, not %.9g", what, i,
                  (double)have[i], values[i]);
}

/* Computes the offsets of the worker and server errors of parameter `param`: tensors follow one another in the order of
 * the flat buffers. */
static void error_offsets(const onebit_job *job, uint32_t param, uint64_t *worker, uint64_t *server) {
  const tws_state *state = job->rank[0].plan[0]->state;
  const uint64_t ranks = (uint64_t)job->ranks, unit = ranks % 4 == 0 ? 8 : ranks % 2 == 0 ? 8 : 8 * ranks;
  *worker = *server = 0;
  for (uint32_t i = 0; i < state->shard_count && state->shards[i].param != param; i++) {
    const uint64_t part = (state->shards[i].count + unit * ranks - 1) / (unit * ranks) * unit;
    *worker += part * (uint64_t)job->ranks;
    *server += part;
  }
}

START_TEST(compressed_all_reduce) {
  tws_json *golden = golden_file("onebit.json");
  const cJSON *list = member(golden->root, "compressed_allreduce"), *item, *round;
  cJSON_ArrayForEach(item, list) {
    const int ranks = integer(item, "ranks"), numel = integer(item, "numel"), padded = integer(item, "padded");
    const int64_t biases[] = {numel};
    onebit_job job;
    onebit_begin(&job, onebit_network(3, 2, biases, 1),
                 "{\"train_micro_batch_size_per_gpu\": 1, \"twinspeed\": {\"sequence_length\": 4}, \"optimizer\": "
                 "{\"type\": \"OneBitAdam\", \"params\": {\"freeze_step\": 2, \"betas\": [0, 0.999]}}}",
                 ranks);
    const uint32_t param = onebit_param(&job, "layer0.bias");
    const tws_plan *plan = job.rank[0].plan[TWS_PROGRAM_COMPRESSED];
    uint64_t worker, server;
    error_offsets(&job, param, &worker, &server);
    job.update = 2;
    cJSON_ArrayForEach(round, member(item, "rounds")) {
      double inputs[ONEBIT_RANKS][64];
      const double *own[ONEBIT_RANKS];
      int count;
      ck_assert_int_eq(onebit_next(&job).program, TWS_PROGRAM_COMPRESSED);
      onebit_clear(&job);
      for (int r = 0; r < ranks; r++)
        own[r] = numbers_of(cJSON_GetArrayItem(member(round, "inputs"), r), inputs[r], &count);
      for (int r = 0; r < ranks; r++) onebit_gradient(&job, r, param, own, numel);
      onebit_update(&job, 1);
      for (int r = 0; r < ranks; r++) {
        float have[128];
        onebit_move(&job, r, plan->optimizer_state[0], onebit_offset(&job, param), have, (uint64_t)numel, 0);
        near(member(round, "output"), have, 1, "average");
        onebit_move(&job, r, onebit_buffer(plan, "worker errors"), worker, have, (uint64_t)padded, 0);
        near(cJSON_GetArrayItem(member(round, "worker_error"), r), have, 1, "worker error");
        onebit_move(&job, r, onebit_buffer(plan, "server errors"), server, have, (uint64_t)(padded / ranks), 0);
        near(cJSON_GetArrayItem(member(round, "server_error"), r), have, 1, "server error");
      }
    }
    onebit_end(&job);
  }
  tws_json_destroy(golden);
}
END_TEST

/* ---- the optimizers of golden/onebit.json, one update after another ---- */

static void put_args(char *text, size_t size, const char *type, const cJSON *args) {
  char *params = cJSON_PrintUnformatted(args);
  snprintf(text, size,
           "{\"train_micro_batch_size_per_gpu\": 1, \"twinspeed\": {\"sequence_length\": 2}, \"optimizer\": {\"type\": "
           "\"%s\", \"params\": %s}}",
           type, params);
  cJSON_free(params);
}

/* Reads a parameter's values of a buffer of rank 0's state: an optimizer state or the weights. */
static void read_state(onebit_job *job, uint32_t buffer, uint32_t param, float *to) {
  const uint64_t count = (uint64_t)tws_param_numel(&job->network->params[param]);
  onebit_move(job, 0, buffer, onebit_offset(job, param), to, count, 0);
}

static void check_step(onebit_job *job, const cJSON *step, const uint32_t *params, int count, const char *what) {
  const tws_plan *plan = job->rank[0].plan[0];
  for (int i = 0; i < count; i++) {
    float have[64];
    read_state(job, plan->parameters, params[i], have);
    near(cJSON_GetArrayItem(member(step, "params"), i), have, 5, what);
    read_state(job, plan->optimizer_state[0], params[i], have);
    near(cJSON_GetArrayItem(member(step, "exp_avg"), i), have, 2, what);
    read_state(job, plan->optimizer_state[1], params[i], have);
    near(cJSON_GetArrayItem(member(step, "exp_avg_sq"), i), have, 1, what);
  }
}

START_TEST(golden_optimizers) {
  static const char *const types[] = {"OneBitAdam", "ZeroOneAdam", "OneBitLamb"};
  const int each = _i == 2 ? 4 : 8; /* OneBitLamb compresses all parameters as one tensor */
  tws_json *golden = golden_file("onebit.json");
  const cJSON *item = cJSON_GetArrayItem(member(golden->root, "optimizers"), _i), *step;
  const int64_t biases[] = {4};
  char text[1024], what[64];
  onebit_job job;
  put_args(text, sizeof text, types[_i], member(item, "args"));
  onebit_begin(&job, onebit_network(3, 2, biases, _i < 2), text, integer(item, "ranks"));
  const uint32_t params[] = {onebit_param(&job, "table"), onebit_param(&job, _i < 2 ? "layer0.bias" : "positions")};
  for (int r = 0; r < job.ranks; r++)
    for (int i = 0; i < 2; i++) {
      double values[64];
      float start[64];
      int count;
      numbers_of(cJSON_GetArrayItem(member(item, "params0"), i), values, &count);
      for (int k = 0; k < count; k++) start[k] = (float)values[k];
      onebit_move(&job, r, job.rank[r].plan[0]->parameters, onebit_offset(&job, params[i]), start, (uint64_t)count, 1);
    }
  cJSON_ArrayForEach(step, member(item, "steps")) {
    const tws_step_kind kind = onebit_next(&job);
    ck_assert_int_eq(is_true(step, "engine_allreduce_before"), kind.program == TWS_PROGRAM_TRAIN);
    const int averages = kind.program == TWS_PROGRAM_COMPRESSED || kind.program == TWS_PROGRAM_MERGE;
    if (job.update > 1) ck_assert_int_eq(cJSON_GetArraySize(member(step, "comm")), averages ? each : 0);
    onebit_clear(&job);
    for (int i = 0; i < 2; i++) {
      double own[ONEBIT_RANKS][64];
      const double *grads[ONEBIT_RANKS];
      int count;
      for (int r = 0; r < job.ranks; r++) {
        const cJSON *of = cJSON_GetArrayItem(member(step, "grads"), r);
        grads[r] = numbers_of(cJSON_GetArrayItem(of, i), own[r], &count);
      }
      for (int r = 0; r < job.ranks; r++) onebit_gradient(&job, r, params[i], grads, count);
    }
    onebit_update(&job, 1);
    snprintf(what, sizeof what, "%s, update %d", types[_i], (int)job.update);
    check_step(&job, step, params, 2, what);
  }
  onebit_end(&job);
  tws_json_destroy(golden);
}
END_TEST

/* ---- 50 updates of DeepSpeed 0.19.6's classes ---- */

static uint32_t drawn(uint32_t *x) {
  return *x = 1664525U * *x + 1013904223U;
}

static float drawn_number(uint32_t *x) {
  return (float)(drawn(x) >> 8) / 8388608.0F - 1.0F;
}

static void check_params(onebit_job *job, const cJSON *want, uint32_t buffer, const char *what) {
  const cJSON *item = want->child;
  for (int i = 0; i < (int)job->network->param_count; i++) {
    float have[128];
    const int count = (int)tws_param_numel(&job->network->params[i]);
    read_state(job, buffer, (uint32_t)i, have);
    double largest = 0;
    const cJSON *scan = item;
    for (int k = 0; k < count; k++, scan = scan->next) largest = fmax(largest, fabs(scan->valuedouble));
    for (int k = 0; k < count; k++, item = item->next)
      ck_assert_msg(fabs(item->valuedouble - (double)have[k]) <= 1e-5 * largest,
                    "%s, parameter %d, element %d: %.9g, not %.9g", what, i, k, (double)have[k], item->valuedouble);
  }
}

START_TEST(fifty_updates) {
  tws_json *golden = golden_file("onebit_deepspeed.json");
  const cJSON *run = cJSON_GetArrayItem(member(golden->root, "runs"), _i), *check = member(run, "checks")->child;
  const char *type = member(run, "name")->valuestring, *reduced = member(run, "reduced")->valuestring;
  static const int64_t biases[] = {4, 7};
  char text[1024], what[96];
  onebit_job job;
  put_args(text, sizeof text, type, member(run, "args"));
  onebit_begin(&job, onebit_network(11, 5, biases, 2), text, integer(run, "ranks"));
  ck_assert_int_eq((int)job.network->param_count, cJSON_GetArraySize(member(golden->root, "shapes")));
  for (int i = 0; i < (int)job.network->param_count; i++) {
    const uint64_t count = (uint64_t)tws_param_numel(&job.network->params[i]);
    uint32_t x = 777U + (uint32_t)i;
    float start[128];
    for (uint64_t k = 0; k < count; k++) start[k] = drawn_number(&x);
    for (int r = 0; r < job.ranks; r++)
      onebit_move(&job, r, job.rank[r].plan[0]->parameters, onebit_offset(&job, (uint32_t)i), start, count, 1);
  }
  for (int step = 1; step <= integer(golden->root, "steps"); step++) {
    const tws_step_kind kind = onebit_next(&job);
    ck_assert_int_eq(reduced[step - 1] == '1', kind.program == TWS_PROGRAM_TRAIN);
    onebit_clear(&job);
    for (int i = 0; i < (int)job.network->param_count; i++) {
      const int count = (int)tws_param_numel(&job.network->params[i]);
      double own[ONEBIT_RANKS][128];
      const double *grads[ONEBIT_RANKS];
      for (int r = 0; r < job.ranks; r++) {
        uint32_t x = (uint32_t)(step * 1009 + r * 9176 + i * 40503 + 12345);
        for (int k = 0; k < count; k++) own[r][k] = (double)(drawn_number(&x) + 0.25F);
        grads[r] = own[r];
      }
      for (int r = 0; r < job.ranks; r++) onebit_gradient(&job, r, (uint32_t)i, grads, count);
    }
    onebit_update(&job, 1);
    if (!check || integer(check, "step") != step) continue;
    snprintf(what, sizeof what, "%s on %d ranks, update %d", type, job.ranks, step);
    check_params(&job, member(check, "params"), job.rank[0].plan[0]->parameters, what);
    check = check->next;
  }
  check_params(&job, member(run, "exp_avg"), job.rank[0].plan[0]->optimizer_state[0], "momentum");
  check_params(&job, member(run, "exp_avg_sq"), job.rank[0].plan[0]->optimizer_state[1], "second moments");
  onebit_end(&job);
  tws_json_destroy(golden);
}
END_TEST

/* An update that is skipped because a gradient overflowed changes no entry of the state. */
START_TEST(skipped) {
  static const char *const entries[][10] = {
      {"parameters", "first moments", "second moments", "worker errors", "server errors", "local changes"},
      {"parameters", "first moments", "second moments", "worker errors", "server errors", "fresh second moments",
       "trust ratios", "factors of trust ratios", "momentum scales", "padding of momenta"}};
  static const char *const optimizers[] = {
      "{\"type\": \"ZeroOneAdam\", \"params\": {\"var_freeze_step\": 3, \"local_step_scaler\": 2, "
      "\"var_update_scaler\": 1, \"local_step_clipper\": 2}}",
      "{\"type\": \"OneBitLamb\", \"params\": {\"freeze_step\": 4}}"};
  static const int programs[] = {
      1 << TWS_PROGRAM_TRAIN | 1 << TWS_PROGRAM_COMPRESSED | 1 << TWS_PROGRAM_LOCAL | 1 << TWS_PROGRAM_MERGE,
      1 << TWS_PROGRAM_TRAIN | 1 << TWS_PROGRAM_COMPRESSED};
  const int count = _i == 0 ? 6 : 10;
  char text[512];
  const int64_t biases[] = {9};
  onebit_job job;
  snprintf(text, sizeof text,
           "{\"train_micro_batch_size_per_gpu\": 1, \"twinspeed\": {\"sequence_length\": 4}, \"optimizer\": %s}",
           optimizers[_i]);
  onebit_begin(&job, onebit_network(3, 2, biases, 1), text, 2);
  const tws_plan *plan = job.rank[0].plan[0];
  int seen = 0;
  for (int step = 0; step < 12; step++) {
    float before[10][128], after[128];
    seen |= 1 << onebit_next(&job).program;
    for (int skips = 1; skips >= 0; skips--) {
      for (int r = 0; r < 2; r++) {
        const tws_plan *p = job.rank[r].plan[job.kind.program];
        float *values = calloc(p->buffers[p->gradients].elements, sizeof *values);
        for (uint64_t i = 0; i < p->buffers[p->gradients].elements; i++)
          values[i] = skips ? INFINITY : (float)tws_random_normal((uint64_t)step, (uint64_t)r, i);
        ONEBIT_OK(tws_executor_put(job.rank[r].executor, job.kind.program, p->gradients, 0, values,
                                   p->buffers[p->gradients].elements, &err));
        free(values);
      }
      for (int e = 0; e < count; e++) {
        const uint32_t b = onebit_buffer(plan, entries[_i][e]);
        ck_assert_uint_le(plan->buffers[b].elements, 128);
        onebit_move(&job, 0, b, 0, before[e], plan->buffers[b].elements, 0);
      }
      if (skips) job.kind.begins_phase = 0;
      onebit_update(&job, skips ? 0 : 1);
      job.kind = tws_step_kind_of(job.config, job.update, 0);
      for (int e = 0; e < count && skips; e++) {
        const uint32_t b = onebit_buffer(plan, entries[_i][e]);
        onebit_move(&job, 0, b, 0, after, plan->buffers[b].elements, 0);
        ck_assert_msg(memcmp(before[e], after, plan->buffers[b].elements * sizeof *after) == 0, "update %d changes %s",
                      step + 1, entries[_i][e]);
      }
    }
  }
  ck_assert_int_eq(seen, programs[_i]);
  onebit_end(&job);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("onebit");
  TCase *cases = tcase_create("phases");
  tcase_add_test(cases, kinds);
  suite_add_tcase(suite, cases);
  cases = tcase_create("deepspeed");
  tcase_add_test(cases, compressed_all_reduce);
  tcase_add_loop_test(cases, golden_optimizers, 0, 3);
  tcase_add_loop_test(cases, fifty_updates, 0, 4);
  tcase_add_loop_test(cases, skipped, 0, 2);
  suite_add_tcase(suite, cases);
  return run_suite(suite);
}
