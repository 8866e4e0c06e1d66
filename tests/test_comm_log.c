/* ctest: mpi */
/* The communication log: bandwidths as DeepSpeed and nccl-tests define them, waiting apart from transfers, stragglers,
 * and the same rows in a run on real ranks, an emulation and a simulation. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "base/random.h"
#include "command.h"
#include "emulation/disturb.h"
#include "communication/comm_log.h"
#include "failing_allocator.h"
#include "job/simulate.h"
#include "members.h"
#include "tests/folder.h"
#include "tests/sanitized.h"
#include "tests/sim_module.h"
#include "tests/suite.h"

static tws_error err;

/* ---- formulas ---- */

START_TEST(bandwidths_and_sizes_are_deepspeeds) {
  tws_json *json = golden_file("communication_bandwidths.json");
  const cJSON *row;
  int rows = 0;
  cJSON_ArrayForEach(row, member(json->root, "bw")) {
    const char *name = cJSON_GetArrayItem(row, 1)->valuestring;
    const int operation = tws_comm_find(name);
    ck_assert_msg(operation >= 0, "%s", name);
    const tws_comm_bandwidth rate = tws_comm_deepspeed_gbps(operation, (uint32_t)cJSON_GetArrayItem(row, 0)->valueint,
                                                            (uint64_t)cJSON_GetArrayItem(row, 2)->valuedouble,
                                                            1e-3 * cJSON_GetArrayItem(row, 3)->valuedouble);
    const double algorithm = cJSON_GetArrayItem(row, 4)->valuedouble, bus = cJSON_GetArrayItem(row, 5)->valuedouble;
    ck_assert_msg(fabs(rate.algorithm - algorithm) <= 1e-12 * algorithm && fabs(rate.bus - bus) <= 1e-12 * algorithm,
                  "%s: %.17g and %.17g, not %.17g and %.17g", name, rate.algorithm, rate.bus, algorithm, bus);
    rows++;
  }
  ck_assert_int_gt(rows, 100);
  cJSON_ArrayForEach(row, member(json->root, "size")) {
    char text[TWS_COMM_SIZE_TEXT];
    ck_assert_str_eq(tws_comm_size_text((uint64_t)cJSON_GetArrayItem(row, 0)->valuedouble, text),
                     cJSON_GetArrayItem(row, 1)->valuestring);
  }
  tws_json_destroy(json);
  const tws_comm_bandwidth nccl = tws_comm_nccl_gbs(TWS_COLLECTIVE_ALL_REDUCE, 8, 1000000000, 0.01);
  ck_assert_double_eq_tol(nccl.algorithm, 100, 1e-9);
  ck_assert_double_eq_tol(nccl.bus, 175, 1e-9);
  ck_assert_double_eq_tol(tws_comm_nccl_gbs(TWS_COLLECTIVE_REDUCE_SCATTER, 4, 1000000000, 0.01).bus, 75, 1e-9);
  ck_assert_double_eq(tws_comm_nccl_gbs(TWS_COMM_SEND, 2, 1000000000, 0).bus, 0);
}
END_TEST

/* ---- merging ---- */

enum { RANKS = 3 };

/* Fills in two steps of three ranks: an all-reduce of all, a message from the first to the second, and one kernel,
 * which takes the third rank three times as long. */
static void fill(tws_comm_record records[RANKS], tws_comm_call calls[RANKS][2], float latency[RANKS][4],
                 tws_comm_work works[RANKS]) {
  static const float all[RANKS][2] = {{5, 6}, {3, 7}, {1, 2}}, message[RANKS][2] = {{4, 1}, {2, 3}, {0, 0}};
  for (int r = 0; r < RANKS; r++) {
    works[r] = (tws_comm_work){.work = 7, .seconds = r == 2 ? 12 : 4, .count = 2};
    calls[r][0] = (tws_comm_call){
        .id = 1, .key = {.bytes = 1 << 20, .axes = 1, .ranks = RANKS, .operation = TWS_COLLECTIVE_ALL_REDUCE}};
    calls[r][1] = (tws_comm_call){
        .id = 2, .key = {.bytes = 64, .ranks = 2, .operation = r == 0 ? TWS_COMM_SEND : TWS_COMM_RECEIVE}};
    records[r] = (tws_comm_record){.rank = r,
                                   .steps = 2,
                                   .call_count = r < 2 ? 2 : 1,
                                   .work_count = 1,
                                   .weight = 1,
                                   .calls = calls[r],
                                   .latency_s = latency[r],
                                   .works = &works[r]};
    for (uint32_t step = 0, at = 0; step < 2; step++)
      for (uint32_t c = 0; c < records[r].call_count; c++) latency[r][at++] = c == 0 ? all[r][step] : message[r][step];
  }
}

static tws_code merge_records(void *user) {
  tws_comm_record records[RANKS], read[RANKS];
  tws_comm_call calls[RANKS][2];
  float latency[RANKS][4];
  tws_comm_work works[RANKS];
  const tws_comm_record *list[RANKS];
  tws_arena *arena = tws_arena_create();
  tws_comm_log *log = NULL;
  fill(records, calls, latency, works);
  tws_code code = arena ? TWS_OK : TWS_MEMORY;
  for (int r = 0; r < RANKS && code == TWS_OK; r++) { /* as other ranks send them */
    tws_text packed = {0};
    tws_comm_record_pack(&records[r], &packed);
    code = packed.failed
               ? TWS_MEMORY
               : tws_comm_record_unpack((const unsigned char *)packed.data, packed.length, arena, &read[r], &err);
    list[r] = &read[r];
    tws_text_free(&packed);
  }
  if (code == TWS_OK) code = tws_comm_log_create(RANKS, RANKS, &log, &err);
  if (code == TWS_OK) code = tws_comm_log_merge(log, list, &err);
  if (code == TWS_OK) code = tws_comm_log_finish(log, &err);
  tws_arena_destroy(arena);
  if (code == TWS_OK && user) {
    memcpy(user, &log, sizeof log);
    return code;
  }
  tws_comm_log_destroy(log);
  return code;
}

START_TEST(waiting_is_apart_from_transfers) {
  tws_comm_log *log;
  ck_assert_int_eq(merge_records(&log), TWS_OK);
  ck_assert_uint_eq(log->row_count, 3);
  const tws_comm_row *all = &log->rows[0], *send = &log->rows[1], *receive = &log->rows[2];
  ck_assert_int_eq(all->key.operation, TWS_COLLECTIVE_ALL_REDUCE);
  ck_assert_double_eq_tol(all->count, 2, 1e-9); /* one per step, whatever the number of ranks */
  ck_assert_double_eq_tol(all->latency_s, 3 + 5, 1e-6);
  ck_assert_double_eq_tol(all->transfer_s, 1 + 2, 1e-6);
  ck_assert_double_eq(all->min_s, 1);
  ck_assert_double_eq(all->waiting_s[0], 4 + 4);
  ck_assert_double_eq(all->waiting_s[1], 2 + 5);
  ck_assert_double_eq(all->waiting_s[2], 0);
  ck_assert_double_eq(send->count, 2);
  ck_assert_double_eq(send->latency_s, 5);
  ck_assert_double_eq(send->transfer_s, 3);
  ck_assert_double_eq(receive->latency_s, 5);
  ck_assert_double_eq(receive->transfer_s, 3);
  ck_assert_double_eq(log->ranks[2].waited_for_s, (4 + 2) / 2.0 + (4 + 5) / 2.0);
  ck_assert_double_eq(log->ranks[2].factor, 3);
  ck_assert(!log->ranks[0].is_straggler && !log->ranks[1].is_straggler && log->ranks[2].is_straggler);
  tws_comm_log_destroy(log);
  long bad;
  ck_assert_int_gt(fail_every_allocation(merge_records, NULL, &bad), 5);
  ck_assert_int_eq(bad, 0);
}
END_TEST

START_TEST(damaged_records_are_refused) {
  tws_comm_record records[RANKS], read;
  tws_comm_call calls[RANKS][2];
  float latency[RANKS][4];
  tws_comm_work works[RANKS];
  tws_arena *arena = tws_arena_create();
  tws_text packed = {0};
  fill(records, calls, latency, works);
  tws_comm_record_pack(&records[0], &packed);
  for (size_t length = 0; length < packed.length; length += 7)
    ck_assert_int_eq(tws_comm_record_unpack((const unsigned char *)packed.data, length, arena, &read, &err),
                     TWS_INTERNAL);
  tws_text_free(&packed);
  tws_arena_destroy(arena);
}
END_TEST

/* ---- simulations ---- */

static tws_job *job_of(const tws_job_spec *spec) {
  tws_job *job;
  ck_assert_msg(tws_job_load(spec, &job, &err) == TWS_OK, "%s", err.message);
  return job;
}

static void simulate(const tws_job *job, const tws_sim_api *sim, int every, const tws_sim_effects *effects,
                     tws_simulation *out) {
  const tws_comm_filter all = {.operations = (1u << TWS_COMM_OPERATIONS) - 1};
  const tws_simulation_request request = {
      .sim = sim, .every_up_to = every ? job->ranks : 0, .communication = &all, .effects = effects};
  ck_assert_msg(tws_job_simulate(job, &request, out, &err) == TWS_OK, "%s", err.message);
}

/* The log of a simulation of representative ranks has the counts and sizes of all ranks. */
START_TEST(representatives_count_for_all) {
  static const struct {
    int64_t stage, pipeline, tensor, sequence, accumulation, ranks;
  } cases[] = {{3, 1, 1, 1, 1, 16}, {1, 4, 2, 1, 4, 16}, {3, 1, 2, 1, 1, 8}, {2, 1, 1, 2, 2, 8}, {0, 2, 1, 1, 3, 4}};
  const tws_sim_api *sim = load_simulator();
  for (size_t i = 0; sim && i < sizeof cases / sizeof *cases; i++) {
    tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
    spec.model = "gpt2";
    spec.cluster = "dgx-a100:2";
    spec.ranks = cases[i].ranks;
    spec.stage = cases[i].stage;
    spec.pipeline_stages = cases[i].pipeline;
    spec.tensor_ranks = cases[i].tensor;
    spec.sequence_ranks = cases[i].sequence;
    spec.accumulation = cases[i].accumulation;
    spec.sequence = 128;
    tws_job *job = job_of(&spec);
    tws_simulation few, all;
    simulate(job, sim, 0, NULL, &few);
    simulate(job, sim, 1, NULL, &all);
    ck_assert_int_lt(few.plan_count, all.plan_count);
    ck_assert_uint_gt(few.communication->row_count, 1);
    ck_assert_uint_eq(few.communication->row_count, all.communication->row_count);
    for (size_t r = 0; r < few.communication->row_count; r++) {
      const tws_comm_row *a = &few.communication->rows[r], *b = &all.communication->rows[r];
      ck_assert_int_eq(memcmp(&a->key, &b->key, sizeof a->key), 0);
      ck_assert_double_eq_tol(a->count, b->count, 1e-6);
      ck_assert_double_eq_tol(b->count, nearbyint(b->count), 1e-6);
    }
    tws_simulation_free(&few);
    tws_simulation_free(&all);
    tws_job_destroy(job);
  }
}
END_TEST

/* Writes a scenario in which kernels vary at random, and those of rank `slow` take `factor` times as long; factor 1: no
 * rank is slow. Returns its path. */
static const char *write_scenario(uint64_t seed, int slow, double factor) {
  const char *path = in_folder("scenario.json");
  FILE *file = fopen(path, "w");
  fprintf(file,
          "{\"schema\": \"twinspeed-scenario-1\", \"seed\": %d, \"events\": [{\"kind\": \"jitter\", \"sigma\": 0.05}",
          (int)seed);
  if (factor > 1) fprintf(file, ", {\"kind\": \"slow\", \"rank\": %d, \"factor\": %.3f}", slow, factor);
  fprintf(file, "]}");
  fclose(file);
  return path;
}

/* 50 scenarios of 64 ranks with random variations of all kernels; in ten of them no rank is slow. */
START_TEST(slow_ranks_are_named) {
  enum { SCENARIOS = TWS_SANITIZED ? 10 : 50, WITHOUT = SCENARIOS / 5 };
  const tws_sim_api *sim = load_simulator();
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  spec.model = "tiny-gpt2";
  spec.cluster = "dgx-a100:8";
  spec.stage = 2;
  spec.sequence = 32;
  tws_job *job = job_of(&spec);
  ck_assert_int_eq(job->ranks, 64);
  int named_with_1_3 = 0, wanted = 0;
  for (int i = 0; sim && i < SCENARIOS; i++) {
    const int slow = (int)(64 * tws_random_uniform(11, 1, (uint64_t)i)), none = i < WITHOUT;
    const double factor = none ? 1 : 1.1 + 1.9 * tws_random_uniform(11, 2, (uint64_t)i);
    tws_perturbation *disturbance;
    tws_simulation s;
    ck_assert_msg(tws_perturbation_open(write_scenario((uint64_t)i, slow, factor), job, TWS_FIDELITY_ANALYTIC,
                                       &disturbance, &err) == TWS_OK,
                  "%s", err.message);
    simulate(job, sim, 1, tws_perturbation_effects(disturbance), &s);
    for (int r = 0; r < 64; r++) {
      const tws_comm_rank *rank = &s.communication->ranks[r];
      ck_assert_msg(!rank->is_straggler || (!none && r == slow), "scenario %d (rank %d, %.2f x) names rank %d: %.3f", i,
                    slow, factor, r, rank->factor);
    }
    wanted += factor >= 1.3;
    named_with_1_3 += factor >= 1.3 && s.communication->ranks[slow].is_straggler;
    tws_simulation_free(&s);
    tws_perturbation_close(disturbance);
  }
  ck_assert_int_eq(named_with_1_3, wanted);
  tws_job_destroy(job);
}
END_TEST

/* Recording a step in the log allocates no memory. */
START_TEST(steps_take_no_memory) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  spec.model = "tiny-gpt2";
  spec.cluster = "dgx-a100:1";
  spec.stage = 3;
  tws_job *job = job_of(&spec);
  const tws_comm_filter filter = {.operations = 1u << TWS_COLLECTIVE_ALL_GATHER, .by_caller = 1};
  tws_comm_recorder *recorder;
  tws_plan *plan;
  ck_assert_int_eq(tws_job_plan(job, 0, &plan, &err), TWS_OK);
  ck_assert_int_eq(tws_comm_recorder_create(plan, &filter, 1, 20, &recorder, &err), TWS_OK);
  double *times = tws_calloc(plan->op_count, 2 * sizeof *times);
  failing_allocator none = {.countdown = 0};
  tws_set_allocator(&(tws_allocator){failing_resize, &none});
  for (int step = 0; !tws_comm_recorder_is_full(recorder); step++) tws_comm_recorder_add(recorder, times);
  tws_set_allocator(NULL);
  ck_assert_int_eq(none.calls, 0);
  ck_assert_uint_eq(recorder->record.steps, 20);
  for (uint32_t c = 0; c < recorder->record.call_count; c++) {
    ck_assert_int_eq(recorder->record.calls[c].key.operation, TWS_COLLECTIVE_ALL_GATHER);
    ck_assert(strncmp(recorder->record.calls[c].key.caller, "forward", 7) == 0 ||
              strncmp(recorder->record.calls[c].key.caller, "backward", 8) == 0 ||
              strncmp(recorder->record.calls[c].key.caller, "step", 4) == 0);
  }
  ck_assert_uint_gt(recorder->record.call_count, 0);
  tws_free(times);
  tws_comm_recorder_destroy(recorder);
  tws_plan_destroy(plan);
  tws_job_destroy(job);
}
END_TEST

/* ---- the program ---- */

static command_result run_ok(const char *format, const char *a, const char *b) {
  command_result r = twinspeed(format, a, b);
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  return r;
}

#define JOB "-m tiny-gpt2 --seq 32 --pp 2 --accumulation 2 --stage 1 -n 4 --threads 1 --quiet "

/* A run on four ranks, and its simulation by a process that knows nothing of the run, have the same rows, sizes and
 * counts. */
START_TEST(runs_and_simulations_have_the_same_rows) {
  char run[300];
  snprintf(run, sizeof run, "%s", in_folder("run.json"));
  command_result r = run_ok("train " JOB "--data %s --steps 3 --comm-log nccl --result %s", in_folder("text"), run);
  ck_assert(strstr(r.out, "# all_reduce (") && strstr(r.out, "(us)   (GB/s)   (GB/s)\n") && strstr(r.out, "\nRank  "));
  command_free(&r);
  r = run_ok("simulate " JOB "--comm-against %s --json%s", run, "");
  tws_json *json;
  const cJSON *pair;
  int pairs = 0, messages = 0;
  ck_assert_msg(tws_json_parse(r.out, strlen(r.out), "out", &json, &err) == TWS_OK, "%s", err.message);
  cJSON_ArrayForEach(pair, member(json->root, "run_and_simulation")) {
    const cJSON *one = member(pair, "run"), *other = member(pair, "simulated");
    ck_assert_double_eq(number(one, "calls_of_a_step"), number(other, "calls_of_a_step"));
    ck_assert(number(one, "calls_of_a_step") >= 1 && number(one, "median_transfer_s") > 0);
    messages += strcmp(member(pair, "axis")->valuestring, "messages") == 0;
    pairs++;
  }
  ck_assert_int_ge(pairs, 4);
  ck_assert_int_eq(messages, 2);
  ck_assert_int_eq(cJSON_GetArraySize(member(member(json->root, "communication_log"), "ranks")), 4);
  tws_json_destroy(json);
  command_free(&r);
  r = run_ok("simulate " JOB "--comm-against %s%s", run, "");
  ck_assert(strstr(r.out, "\nRun and simulation") && strstr(r.out, "sizes and numbers of calls are equal\n"));
  command_free(&r);
  r = twinspeed("simulate " JOB "--comm-against %s", TWS_TEST_DIR "/golden/communication_bandwidths.json");
  ck_assert_msg(r.status == 3 && strstr(r.err, "has no communication log"), "%d: %s", r.status, r.err);
  command_free(&r);
}
END_TEST

static void write_config(const char *section) {
  FILE *file = fopen(in_folder("ds.json"), "w");
  fprintf(file, "{\"train_batch_size\": 8, \"twinspeed\": {\"sequence_length\": 32}, %s}\n", section);
  fclose(file);
}

#define CONFIGURED "-m tiny-gpt2 -c %s --data %s --threads 1 -n 2 --quiet --steps 2 "

/* The section comms_logger of DeepSpeed's documentation takes effect without a warning; `verbose` prints every call,
 * `debug` its caller. */
START_TEST(comms_logger_takes_effect) {
  write_config(
      "\"comms_logger\": {\"enabled\": true, \"verbose\": true, \"prof_all\": false, \"debug\": true, "
      "\"prof_ops\": [\"all_gather_into_tensor\"]}, \"zero_optimization\": {\"stage\": 1}");
  command_result r = run_ok("train " CONFIGURED, in_folder("ds.json"), in_folder("text"));
  ck_assert_str_eq(r.err, "");
  ck_assert_ptr_nonnull(strstr(r.out, "comm op: all_gather | [Caller Func: step"));
  ck_assert_ptr_nonnull(strstr(r.out, " | algbw (Gbps): "));
  ck_assert_ptr_nonnull(strstr(r.out, "Comm. Op            Message Size        Count               Total Latency(ms)"));
  ck_assert_ptr_nonnull(strstr(r.out, "Breakdown with straggler effect"));
  ck_assert_ptr_null(strstr(r.out, "reduce"));
  command_free(&r);
  write_config("\"comms_logger\": {}");
  r = run_ok("emulate " CONFIGURED, in_folder("ds.json"), in_folder("text"));
  ck_assert_str_eq(r.err, "");
  ck_assert_ptr_nonnull(strstr(r.out, "all_reduce (data, 2 ranks)\n"));
  ck_assert_ptr_null(strstr(r.out, "comm op: "));
  command_free(&r);
  write_config("\"comms_logger\": {\"enabled\": false, \"verbose\": true}");
  r = run_ok("emulate " CONFIGURED, in_folder("ds.json"), in_folder("text"));
  ck_assert_ptr_null(strstr(r.out, "all_reduce"));
  command_free(&r);
  write_config("\"comms_logger\": {\"prof_ops\": [\"all_reduces\"]}");
  r = twinspeed("train " CONFIGURED, in_folder("ds.json"), in_folder("text"));
  ck_assert_msg(r.status == 3 && strstr(r.err, "comms_logger.prof_ops: there is no operation \"all_reduces\""),
                "%d: %s", r.status, r.err);
  command_free(&r);
  r = twinspeed("simulate -m tiny-gpt2 -n 2 --comm-log table");
  ck_assert_msg(r.status == 2 && strstr(r.err, "--comm-log: unknown layout \"table\""), "%d: %s", r.status, r.err);
  command_free(&r);
}
END_TEST

/* The log of an emulated training on 8 ranks names the slow one. */
START_TEST(emulations_name_the_slow_rank) {
  FILE *file = fopen(in_folder("slow.json"), "w");
  fprintf(file,
          "{\"schema\": \"twinspeed-scenario-1\", \"job\": {\"model\": \"tiny-gpt2\", \"cluster\": \"dgx-a100:1\", "
          "\"stage\": 2, \"seq\": 32, \"set\": [\"comms_logger.enabled=true\"]}, \"data\": \"text\", \"steps\": 2, "
          "\"events\": [{\"kind\": \"slow\", \"rank\": 6, \"factor\": 1.3}]}");
  fclose(file);
  command_result r = run_ok("emulate --scenario %s --json --quiet%s", in_folder("slow.json"), "");
  tws_json *json;
  ck_assert_msg(tws_json_parse(r.out, strlen(r.out), "out", &json, &err) == TWS_OK, "%s", err.message);
  const cJSON *log = member(json->root, "communication_log"), *slow = member(log, "stragglers");
  ck_assert_int_eq(cJSON_GetArraySize(slow), 1);
  ck_assert_int_eq(slow->child->valueint, 6);
  ck_assert_double_eq_tol(number(cJSON_GetArrayItem(member(log, "ranks"), 6), "factor"), 1.3, 1e-3);
  ck_assert_double_eq(number(cJSON_GetArrayItem(member(log, "ranks"), 6), "waiting_s"), 0);
  ck_assert(number(cJSON_GetArrayItem(member(log, "ranks"), 5), "waiting_s") > 0);
  tws_json_destroy(json);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("comm_log");
  TCase *tests = tcase_create("comm_log");
  tcase_add_checked_fixture(tests, make_folder_with_text, remove_folder);
  tcase_add_test(tests, bandwidths_and_sizes_are_deepspeeds);
  tcase_add_test(tests, waiting_is_apart_from_transfers);
  tcase_add_test(tests, damaged_records_are_refused);
  tcase_add_test(tests, representatives_count_for_all);
  tcase_add_test(tests, slow_ranks_are_named);
  tcase_add_test(tests, steps_take_no_memory);
  tcase_add_test(tests, runs_and_simulations_have_the_same_rows);
  tcase_add_test(tests, comms_logger_takes_effect);
  tcase_add_test(tests, emulations_name_the_slow_rank);
  suite_add_tcase(suite, tests);
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* for the ranks: LeakSanitizer would report memory that MPI never
                                                * frees */
  return run_suite(suite);
}
