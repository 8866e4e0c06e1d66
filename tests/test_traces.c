/* ctest: mpi */
/* Traces of runs, emulations and simulations: the contents of their events, memory in use, flows between ranks, steps
 * chosen by a schedule, compressed files, and averages. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "base/json.h"
#include "command.h"
#include "estimators/estimators.h"
#include "estimators/memory_track.h"
#include "failing_allocator.h"
#include "job/job.h"
#include "members.h"
#include "tests/folder.h"
#include "tests/suite.h"
#include "traces/gzip.h"
#include "traces/key_averages.h"
#include "traces/trace_schedule.h"

static tws_error err;

/* ---- schedules ---- */

/* The phases of torch.profiler.schedule(): N: none, W: warm-up, A: recorded. */
START_TEST(schedules_are_those_of_pytorch) {
  static const struct {
    const char *text, *phases;
  } cases[] = {{"wait=1,warmup=1,active=3,repeat=2", "NWAAANWAAANNNN"},
               {"active=2", "AAAAAA"},
               {"active=1,wait=2", "NNANNANNA"},
               {"skip_first=3,warmup=1,active=1,repeat=1", "NNNWANNN"},
               {"repeat=0,active=1,warmup=2,skip_first=1", "NWWAWWAWW"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_trace_schedule schedule;
    int64_t recorded = 0;
    ck_assert_msg(tws_trace_schedule_parse(cases[i].text, &schedule, &err) == TWS_OK, "%s", err.message);
    for (int step = 0; cases[i].phases[step]; step++) {
      ck_assert_int_eq("NWA"[tws_trace_schedule_at(&schedule, step)], cases[i].phases[step]);
      recorded += cases[i].phases[step] == 'A';
      ck_assert_int_eq(tws_trace_schedule_recorded(&schedule, step + 1), recorded);
    }
  }
  static const char *const wrong[] = {"",          "active=0", "active=1,",  "active=1,active=2",
                                      "active=-1", "active=x", "activity=1", "active=1;wait=2",
                                      "wait=3",    "active"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    tws_trace_schedule schedule;
    ck_assert_msg(tws_trace_schedule_parse(wrong[i], &schedule, &err) == TWS_USAGE, "%s", wrong[i]);
  }
}
END_TEST

/* ---- memory ---- */

typedef struct tracked {
  const tws_plan *plan;
  const double *times;
} tracked;

static tws_code track(void *user) {
  const tracked *t = user;
  tws_memory_change *changes = NULL;
  size_t count;
  const tws_code code = tws_memory_track(t->plan, t->times, &changes, &count, &err);
  tws_free(changes);
  return code;
}

/* Where operations run one after another, the most memory over time is the ledger's peak, in each tier. */
START_TEST(tracks_have_the_peak_of_the_ledger) {
  static const int64_t stages[] = {0, 3};
  for (int i = 0; i < 2; i++) {
    tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
    spec.model = "tiny-gpt2";
    spec.cluster = "dgx-a100:1";
    spec.stage = stages[i];
    spec.accumulation = 2;
    tws_job *job;
    tws_plan *plan;
    tws_ledger ledger;
    tws_memory_change *changes;
    size_t count;
    ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
    ck_assert_int_eq(tws_job_plan(job, 3, &plan, &err), TWS_OK);
    ck_assert_int_eq(tws_ledger_read(plan, &ledger, &err), TWS_OK);
    double *times = tws_calloc(plan->op_count, 2 * sizeof *times);
    for (uint32_t op = 0; op < plan->op_count; op++) {
      times[2 * op] = op;
      times[2 * op + 1] = op + 0.5; /* an operation frees its memory before the next one begins */
    }
    ck_assert_int_eq(tws_memory_track(plan, times, &changes, &count, &err), TWS_OK);
    for (int tier = 0; tier < TWS_TIER_COUNT; tier++) {
      uint64_t most = 0;
      for (size_t c = 0; c < count; c++) {
        if (changes[c].tier != tier) continue;
        if (changes[c].bytes > most) most = changes[c].bytes;
        if (c > 0 && changes[c - 1].tier == tier) ck_assert(changes[c - 1].at_s < changes[c].at_s);
      }
      ck_assert_uint_eq(most, ledger.tier[tier].live_bytes);
    }
    tracked all = {plan, times};
    long bad;
    ck_assert_int_eq(fail_every_allocation(track, &all, &bad), 2);
    ck_assert_int_eq(bad, 0);
    tws_free(changes);
    tws_free(times);
    tws_plan_destroy(plan);
    tws_job_destroy(job);
  }
}
END_TEST

/* ---- files ---- */

static int is_event(const cJSON *event, const char *phase) {
  return strcmp(member(event, "ph")->valuestring, phase) == 0;
}

/* Returns the event of this row during which the point of a flow lies. */
static const cJSON *event_at(const cJSON *events, const cJSON *point) {
  const cJSON *event;
  const double at = number(point, "ts");
  cJSON_ArrayForEach(event, events) {
    if (!is_event(event, "X") || number(event, "pid") != number(point, "pid") ||
        number(event, "tid") != number(point, "tid"))
      continue;
    if (number(event, "ts") - 2e-3 <= at && at <= number(event, "ts") + number(event, "dur") + 2e-3) return event;
  }
  ck_abort_msg("a point of a flow at %g us lies in no event", at);
  return NULL;
}

static int ends_with(const char *text, const char *end) {
  const size_t length = strlen(text), of_end = strlen(end);
  return length >= of_end && strcmp(text + length - of_end, end) == 0;
}

/* Requires what importers of Chrome traces require, which drop other events without a message: whole numbers for
 * processes and threads, times that are not negative, names for every thread that has events, and events of a thread
 * that lie in each other or apart, in the order of their times. */
static void check_importable(const cJSON *events) {
  enum { THREADS = 1024 };
  static double end[THREADS], start[THREADS];
  static int64_t thread[THREADS][2];
  static int named[THREADS];
  int threads = 0;
  const cJSON *event;
  cJSON_ArrayForEach(event, events) {
    const cJSON *phase = member(event, "ph"), *tid = cJSON_GetObjectItem(event, "tid");
    const int64_t of[2] = {integer(event, "pid"), tid ? integer(event, "tid") : -1};
    ck_assert_msg(strlen(phase->valuestring) == 1 && strchr("MXCsft", *phase->valuestring), "%s", phase->valuestring);
    ck_assert_str_ne(member(event, "name")->valuestring, "");
    int i = 0;
    while (i < threads && memcmp(thread[i], of, sizeof of) != 0) i++;
    ck_assert_int_lt(i, THREADS);
    if (i == threads) {
      memcpy(thread[threads++], of, sizeof of);
      start[i] = end[i] = named[i] = 0;
    }
    if (is_event(event, "M")) {
      const int names = ends_with(member(event, "name")->valuestring, "_name");
      ck_assert(!names || cJSON_IsString(member(member(event, "args"), "name")));
      named[i] |= names;
      continue;
    }
    const double at = number(event, "ts");
    ck_assert(at >= 0);
    ck_assert_msg(named[i] || is_event(event, "C"), "thread %lld of process %lld has no name", (long long)of[1],
                  (long long)of[0]);
    if (!is_event(event, "X")) continue;
    const double until = at + number(event, "dur");
    ck_assert(until >= at && at >= start[i]);
    ck_assert_msg(at >= end[i] - 2e-3 || until <= end[i] + 2e-3,
                  "%s: from %.3f to %.3f us, and one before ends at %.3f", member(event, "name")->valuestring, at,
                  until, end[i]);
    start[i] = at;
    if (until > end[i]) end[i] = until;
  }
}

/* Parses a trace strictly: JSON without the extensions of base/json.h. */
static cJSON *read_trace(const char *path) {
  char *text = NULL;
  size_t length;
  ck_assert_msg(tws_read_file(path, 0, &text, &length, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_gzip_expand(path, &text, &length, &err) == TWS_OK, "%s", err.message);
  cJSON *root = cJSON_ParseWithOpts(text, NULL, 1);
  ck_assert_msg(root != NULL, "%s is not JSON", path);
  tws_free(text);
  check_importable(member(root, "traceEvents"));
  return root;
}

/* Requires that every flow connects events that meet, and returns the number of flows. */
static int check_flows(const cJSON *events) {
  const cJSON *point, *begin = NULL;
  int flows = 0, points = 0;
  cJSON_ArrayForEach(point, events) {
    const int starts = is_event(point, "s"), ends = is_event(point, "f");
    if (!starts && !ends && !is_event(point, "t")) continue;
    const cJSON *event = event_at(events, point), *args = member(event, "args");
    if (starts) {
      begin = event;
      points = 0;
      ck_assert_int_eq(integer(point, "id"), flows);
      flows++;
    }
    points++;
    const char *name = member(event, "name")->valuestring, *first = member(begin, "name")->valuestring;
    if (ends_with(first, " send")) {
      ck_assert_msg(starts || (ends && ends_with(name, " recv")), "%s after %s", name, first);
      if (ends) ck_assert_double_eq(number(member(begin, "args"), "bytes"), number(args, "bytes"));
    } else {
      ck_assert_str_eq(name, first);
      ck_assert_double_eq(number(args, "bytes"), number(member(begin, "args"), "bytes"));
      if (ends) ck_assert_int_eq(points, integer(args, "ranks"));
    }
  }
  return flows;
}

static int count_events(const cJSON *events, const char *phase) {
  const cJSON *event;
  int count = 0;
  cJSON_ArrayForEach(event, events) count += is_event(event, phase);
  return count;
}

/* Asserts that the events are those of the steps in this list, which 0 ends, and that their members are right. */
static void check_events(const cJSON *events, const int *steps, const char *algorithm) {
  const cJSON *event;
  unsigned seen = 0, wanted = 0;
  cJSON_ArrayForEach(event, events) {
    if (!is_event(event, "X")) continue;
    const cJSON *args = member(event, "args");
    const char *name = member(event, "name")->valuestring;
    const cJSON *step = cJSON_GetObjectItem(args, "step");
    seen |= 1u << (step ? step->valueint : 0);
    ck_assert(cJSON_IsString(member(args, "dtype")) && number(args, "bytes") > 0);
    if (ends_with(name, " linear"))
      ck_assert(number(args, "flops") > 0 && strncmp(member(args, "shape")->valuestring, "tokens ", 7) == 0);
    if (ends_with(name, " all_reduce"))
      ck_assert(cJSON_IsString(member(args, "group")) && number(args, "ranks") > 1 &&
                strcmp(member(args, "algorithm")->valuestring, algorithm) == 0);
    if (ends_with(name, " send")) ck_assert_ptr_nonnull(member(args, "peer"));
  }
  for (; *steps >= 0; steps++) wanted |= 1u << *steps;
  ck_assert_uint_eq(seen, wanted);
}

static void check_counters(const cJSON *events, int ranks) {
  const cJSON *event;
  unsigned seen = 0;
  cJSON_ArrayForEach(event, events) {
    if (!is_event(event, "C") || strcmp(member(event, "name")->valuestring, "memory, device") != 0) continue;
    ck_assert_double_gt(number(member(event, "args"), "bytes"), 1e5);
    seen |= 1u << (integer(event, "pid") - 1); /* the process of the rank */
  }
  ck_assert_uint_eq(seen, (1u << ranks) - 1);
}

static command_result run_ok(const char *format, const char *a, const char *b) {
  command_result r = twinspeed(format, a, b);
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  return r;
}

#define JOB "-m tiny-gpt2 --seq 32 --pp 2 --accumulation 2 --stage 1 -n 4 --threads 1 --quiet "

/* A run of four ranks traces two cycles of a schedule into one compressed file. */
START_TEST(runs_trace_the_steps_of_a_schedule) {
  char path[300];
  snprintf(path, sizeof path, "%s", in_folder("run.json.gz"));
  command_result r =
      run_ok("train " JOB "--data %s --steps 8 --trace %s --trace-schedule wait=1,warmup=1,active=1,repeat=2",
             in_folder("text"), path);
  command_free(&r);
  cJSON *root = read_trace(path);
  const cJSON *events = member(root, "traceEvents");
  check_events(events, (const int[]){3, 6, -1}, "shared memory");
  check_counters(events, 4);
  ck_assert_int_eq(check_flows(events), 2 * 18); /* two steps, each with as many flows as the simulated step below */
  tws_key_averages all;
  double calls = 0;
  ck_assert_msg(tws_key_averages_read(path, 0, &all, &err) == TWS_OK, "%s", err.message);
  for (size_t i = 0; i < all.count; i++) {
    calls += (double)all.rows[i].calls;
    if (i > 0) ck_assert(all.rows[i - 1].total_s >= all.rows[i].total_s);
    ck_assert(all.rows[i].least_s <= all.rows[i].total_s / (double)all.rows[i].calls + 1e-12);
  }
  ck_assert_double_eq(calls, count_events(events, "X"));
  tws_key_averages_free(&all);
  cJSON_Delete(root);
  r = run_ok("report --key-averages --by-shape %s%s", path, "");
  ck_assert(strstr(r.out, "Operation") && strstr(r.out, "tokens 32, out 192, in 64"));
  command_free(&r);
  r = run_ok("report --key-averages --json %s%s", path, "");
  ck_assert(strstr(r.out, "twinspeed-key-averages-1") && strstr(r.out, "\"linear\""));
  command_free(&r);
}
END_TEST

START_TEST(simulations_and_emulations_trace_likewise) {
  char path[300];
  snprintf(path, sizeof path, "%s", in_folder("one.json"));
  command_result r = run_ok("simulate " JOB "--trace %s%s", path, "");
  command_free(&r);
  cJSON *root = read_trace(path);
  check_events(member(root, "traceEvents"), (const int[]){0, -1}, "ring");
  check_counters(member(root, "traceEvents"), 4);
  ck_assert_int_eq(check_flows(member(root, "traceEvents")), 18);
  cJSON_Delete(root);
  snprintf(path, sizeof path, "%s", in_folder("two.json"));
  r = run_ok("emulate " JOB
             "--cluster dgx-a100:1 --data %s --steps 4 --trace %s --trace-schedule skip_first=1,active=2,repeat=1",
             in_folder("text"), path);
  command_free(&r);
  root = read_trace(path);
  check_events(member(root, "traceEvents"), (const int[]){2, 3, -1}, "ring");
  check_counters(member(root, "traceEvents"), 4);
  ck_assert_int_eq(check_flows(member(root, "traceEvents")), 2 * 18);
  cJSON_Delete(root);
}
END_TEST

/* With --collectives nccl the algorithm of a collective is the one that NCCL would choose for its size. */
START_TEST(simulated_algorithms_are_nccls) {
  char path[300];
  const cJSON *event;
  int trees = 0;
  snprintf(path, sizeof path, "%s", in_folder("nccl.json"));
  command_result r =
      run_ok("simulate -m gpt2 --stage 0 --cluster dgx-a100:2 --collectives nccl --trace %s --quiet%s", path, "");
  command_free(&r);
  cJSON *root = read_trace(path);
  cJSON_ArrayForEach(event, member(root, "traceEvents")) {
    if (!is_event(event, "X") || !ends_with(member(event, "name")->valuestring, " all_reduce")) continue;
    const char *algorithm = member(member(event, "args"), "algorithm")->valuestring;
    trees += strcmp(algorithm, "tree") == 0;
  }
  ck_assert_int_gt(trees, 0);
  cJSON_Delete(root);
}
END_TEST

START_TEST(traces_that_cannot_be_are_refused) {
  static const struct {
    const char *arguments, *says;
    int status;
  } cases[] = {{"train -m tiny-gpt2 --data %s --trace-schedule active=1", "--trace-schedule without --trace", 2},
               {"train -m tiny-gpt2 --data %s --steps 2 --trace t.json --trace-schedule wait=5,active=1",
                "none of the 2 steps of this run is traced", 2},
               {"train -m tiny-gpt2 --data %s --steps 2 --trace t.json --trace-schedule active=1.5",
                "\"active=1.5\" is not understood", 2},
               {"emulate -m tiny-gpt2 --data %s --trace-schedule active=1", "--trace-schedule without --trace", 2},
               {"report --by-shape %s", "--by-shape without --key-averages", 2},
               {"report --key-averages %s", "text:1:1", 3}};
  char cwd[400];
  ck_assert_ptr_nonnull(getcwd(cwd, sizeof cwd));
  ck_assert_int_eq(chdir(folder), 0);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    command_result r = twinspeed(cases[i].arguments, in_folder("text"));
    ck_assert_msg(r.status == cases[i].status && strstr(r.err, cases[i].says), "%zu: %d: %s", i, r.status, r.err);
    command_free(&r);
  }
  ck_assert_int_eq(chdir(cwd), 0);
}
END_TEST

/* A compressed file that is cut short or changed is an error, never a shorter trace. */
START_TEST(damaged_files_are_refused) {
  const char *path = in_folder("a.gz");
  char *packed, *text;
  size_t length, of_text;
  tws_text long_text = {0};
  for (int i = 0; i < 40000; i++) tws_text_add(&long_text, "%d, ", i * i);
  ck_assert_msg(tws_gzip_write(path, long_text.data, long_text.length, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(tws_read_file(path, 0, &packed, &length, &err), TWS_OK);
  ck_assert_uint_lt(length, long_text.length);
  for (size_t cut = 2; cut <= length; cut += cut + 64 < length ? length / 9 : 1) {
    of_text = cut;
    text = tws_calloc(cut + 1, 1);
    memcpy(text, packed, cut);
    const tws_code code = tws_gzip_expand(path, &text, &of_text, &err);
    ck_assert_int_eq(code, cut == length ? TWS_OK : TWS_INVALID);
    if (cut == length) ck_assert(of_text == long_text.length && memcmp(text, long_text.data, of_text) == 0);
    tws_free(text);
  }
  packed[length / 2] ^= 0x40;
  ck_assert_int_eq(tws_gzip_expand(path, &packed, &length, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "damaged gzip file"));
  tws_free(packed);
  tws_text_free(&long_text);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("traces");
  TCase *tests = tcase_create("traces");
  tcase_add_checked_fixture(tests, make_folder_with_text, remove_folder);
  tcase_add_test(tests, schedules_are_those_of_pytorch);
  tcase_add_test(tests, tracks_have_the_peak_of_the_ledger);
  tcase_add_test(tests, runs_trace_the_steps_of_a_schedule);
  tcase_add_test(tests, simulations_and_emulations_trace_likewise);
  tcase_add_test(tests, simulated_algorithms_are_nccls);
  tcase_add_test(tests, traces_that_cannot_be_are_refused);
  tcase_add_test(tests, damaged_files_are_refused);
  suite_add_tcase(suite, tests);
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* for the ranks: LeakSanitizer would report memory that MPI never
                                                * frees */
  return run_suite(suite);
}
