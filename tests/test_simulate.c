/* `twinspeed simulate`, run as a user runs it. */
#include <check.h>
#include <math.h>
#include <unistd.h>

#include "base/json.h"
#include "command.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/suite.h"

static tws_json *parse(const command_result *result) {
  tws_json *json = NULL;
  tws_error err = {0};
  ck_assert_msg(result->status == 0, "exit %d: %s", result->status, result->err);
  ck_assert_msg(tws_json_parse(result->out, strlen(result->out), "output", &json, &err) == TWS_OK, "%s", err.message);
  return json;
}

#define JOB "simulate -m gpt2 --stage 3 --seq 256 --micro-batch 2 --cluster dgx-a100:2 "

START_TEST(result_is_consistent) {
  double step[4];
  static const char *const levels[] = {"analytic", "flow", "message", "simgrid"};
  for (int i = 0; i < 4; i++) {
    command_result result = twinspeed(JOB "--fidelity %s --json", levels[i]);
    tws_json *json = parse(&result);
    const cJSON *root = json->root, *item, *phases = cJSON_GetObjectItem(root, "compute_phase_s");
    double computing = 0;
    step[i] = number(root, "step_s");
    ck_assert_str_eq(cJSON_GetObjectItem(root, "fidelity")->valuestring, levels[i]);
    ck_assert_double_eq_tol(number(root, "tokens_per_s") * step[i], 16 * 2 * 256, 1e-6);
    cJSON_ArrayForEach(item, phases) computing += item->valuedouble;
    ck_assert_double_eq_tol(computing + number(root, "exposed_s"), step[i], 1e-3 * step[i]);
    ck_assert_double_gt(number(root, "mfu"), 0);
    ck_assert_double_lt(number(root, "mfu"), 1);
    ck_assert_double_gt(number(cJSON_GetObjectItem(root, "collective_s"), "all_gather"), 0);
    tws_json_destroy(json);
    command_free(&result);
  }
  ck_assert_double_gt(step[1], step[0] * 0.999999); /* sharing links never helps */
  ck_assert_double_lt(fabs(step[2] / step[0] - 1), 0.2);
  ck_assert_double_lt(fabs(step[3] / step[1] - 1), 1e-6); /* the same flows */
}
END_TEST

START_TEST(text_and_trace) {
  char path[256];
  tws_json *json = NULL;
  tws_error err = {0};
  snprintf(path, sizeof path, "%s/simulate-%ld.json", TWS_BUILD_DIR, (long)getpid());
  command_result result = twinspeed(JOB "--all-ranks --trace %s", path);
  ck_assert_msg(result.status == 0, "%s", result.err);
  ck_assert_ptr_nonnull(strstr(result.out, "Simulated step"));
  ck_assert_ptr_nonnull(strstr(result.out, "all 16 ranks"));
  ck_assert_ptr_nonnull(strstr(result.out, "communication not hidden"));
  command_free(&result);
  ck_assert_msg(tws_json_read(path, &json, &err) == TWS_OK, "%s", err.message);
  unlink(path);
  const cJSON *event, *events = cJSON_GetObjectItem(json->root, "traceEvents");
  int processes = 0, gathers = 0;
  cJSON_ArrayForEach(event, events) {
    const char *name = cJSON_GetObjectItem(event, "name")->valuestring;
    processes += strcmp(name, "process_name") == 0;
    gathers += strstr(name, "all_gather") != NULL;
  }
  ck_assert_int_eq(processes, 16);
  ck_assert_int_ge(gathers, 16);
  tws_json_destroy(json);
}
END_TEST

START_TEST(plan_is_printed) {
  command_result text = twinspeed(JOB "--print-plan --rank 5"), json = twinspeed(JOB "--print-plan --json");
  ck_assert_int_eq(text.status, 0);
  ck_assert_ptr_nonnull(strstr(text.out, "# rank 5 of 16"));
  tws_json *parsed = parse(&json);
  const int operations = cJSON_GetArraySize(cJSON_GetObjectItem(parsed->root, "operations"));
  ck_assert_int_gt(operations, 100);
  ck_assert_ptr_nonnull(strstr(text.out, ", channel replicas"));
  const cJSON *operation;
  int on_channel = 0;
  cJSON_ArrayForEach(operation, cJSON_GetObjectItem(parsed->root, "operations")) {
    const cJSON *channel = cJSON_GetObjectItem(operation, "channel");
    const int collective = strcmp(cJSON_GetObjectItem(operation, "kind")->valuestring, "collective") == 0;
    ck_assert_int_eq(channel != NULL, collective); /* replicas are the only groups, and only collectives wait for other
                                                    * ranks */
    ck_assert(!channel || strcmp(channel->valuestring, "replicas") == 0);
    ck_assert_ptr_null(cJSON_GetObjectItem(operation, "place")); /* all of it is on the device */
    on_channel += collective;
  }
  ck_assert_int_gt(on_channel, 4);
  tws_json_destroy(parsed);
  command_free(&text);
  command_free(&json);
}
END_TEST

static void check_sum(const cJSON *object, double exposed, const char *exposed_key) {
  double sum = number(object, "bubble_s");
  const cJSON *axis;
  cJSON_ArrayForEach(axis, cJSON_GetObjectItem(object, "communication")) sum += number(axis, "exposed_s");
  ck_assert_msg(fabs(sum - exposed) < 1e-9, "%s: %.12g is not %.12g", exposed_key, sum, exposed);
}

/* With another runtime a step takes more time and memory than this program's own; estimate and simulate agree, and name
 * the runtime. */
START_TEST(runtimes_are_planned_alike) {
  static const char job[] = "-m gpt2 --dtype bf16 --micro-batch 2 --stage 1 --cluster dgx-a100 --json";
  command_result own = twinspeed("estimate %s", job), style = twinspeed("estimate --runtime megatron-2021 %s", job);
  command_result simulated = twinspeed("simulate --runtime megatron-2021 %s", job);
  tws_json *a = parse(&own), *b = parse(&style), *c = parse(&simulated);
  const double step = number(cJSON_GetObjectItem(b->root, "time"), "step_s");
  ck_assert_double_gt(step, 1.5 * number(cJSON_GetObjectItem(a->root, "time"), "step_s"));
  ck_assert_double_eq_tol(number(c->root, "step_s"), step, 1e-9);
  ck_assert_str_eq(cJSON_GetObjectItem(a->root, "runtime")->valuestring, "twinspeed");
  ck_assert_str_eq(cJSON_GetObjectItem(c->root, "runtime")->valuestring, "megatron-2021");
  ck_assert_double_eq(number(a->root, "runtime_bytes"), 0);
  ck_assert_ptr_null(cJSON_GetObjectItem(a->root, "own_engine")); /* answers for other runtimes also have the time of
                                                                   * this program's own engine */
  for (int i = 0; i < 2; i++)
    ck_assert_double_eq_tol(number(cJSON_GetObjectItem(i ? b->root : c->root, "own_engine"), "step_s"),
                            number(cJSON_GetObjectItem(a->root, "time"), "step_s"), 1e-12);
  ck_assert_double_gt(number(b->root, "runtime_bytes"), 12 * 5.0 * 12 * 1024 * 1024 * 2);
  tws_json_destroy(a);
  tws_json_destroy(b);
  tws_json_destroy(c);
  command_free(&own);
  command_free(&style);
  command_free(&simulated);
  own = twinspeed("estimate -m gpt2 --runtime megatron");
  ck_assert_msg(own.status == 3 && strstr(own.err, "runs on GPUs"), "%s", own.err);
  command_free(&own);
  own = twinspeed("estimate -m gpt2 --cluster dgx-a100 --runtime megatrom");
  ck_assert_msg(own.status == 3 && strstr(own.err, "megatron-2022"), "%s", own.err);
  command_free(&own);
}
END_TEST

/* Estimate and simulate give equal answers for a job with every axis, and their figures add up. */
START_TEST(axes_are_reported) {
  static const char job[] =
      "-m gpt2 --seq 256 --micro-batch 1 --accumulation 4 --stage 1 --cluster dgx-a100:2 --set pipeline.stages=2 --set "
      "sequence_parallel_size=2 --set tensor_parallel.autotp_size=2 --set twinspeed.vocabulary_multiple=2 --json";
  command_result estimated = twinspeed("estimate %s", job), simulated = twinspeed("simulate %s", job);
  command_result all = twinspeed("simulate --all-ranks --fidelity flow %s", job);
  tws_json *a = parse(&estimated), *b = parse(&simulated), *c = parse(&all);
  const cJSON *time = cJSON_GetObjectItem(a->root, "time"), *stages[2];
  static const char *const axes[] = {"data", "pipe", "sequence", "model"};
  double step = number(time, "step_s"), largest = 0;
  ck_assert_double_eq_tol(number(b->root, "step_s"), step, 1e-12);
  ck_assert_double_eq_tol(number(c->root, "step_s"), step, 1e-3 * step);
  ck_assert_double_eq_tol(number(time, "tokens_per_s") * step, 2 * 4 * 256, 1e-6); /* two replicas of eight ranks */
  ck_assert_double_gt(number(time, "bubble"), 0.1);
  ck_assert_double_eq_tol(number(time, "bubble"), number(b->root, "bubble"), 1e-9);
  check_sum(time, number(time, "exposed_s"), "estimate");
  check_sum(b->root, number(b->root, "exposed_s"), "simulate");
  check_sum(c->root, number(c->root, "exposed_s"), "all ranks");
  for (int i = 0; i < 4; i++)
    ck_assert_double_gt(number(cJSON_GetObjectItem(cJSON_GetObjectItem(time, "communication"), axes[i]), "busy_s"), 0);
  for (int i = 0; i < 2; i++) {
    stages[i] = cJSON_GetArrayItem(cJSON_GetObjectItem(a->root, "stages"), i);
    const cJSON *other = cJSON_GetArrayItem(cJSON_GetObjectItem(b->root, "stages"), i);
    ck_assert(
        cJSON_Compare(cJSON_GetObjectItem(stages[i], "memory_bytes"), cJSON_GetObjectItem(other, "memory_bytes"), 1));
    ck_assert_double_eq_tol(number(stages[i], "compute_s"), number(other, "compute_s"), 1e-12);
    ck_assert_double_eq(number(stages[i], "layers"), 6);
    check_sum(stages[i], step - number(stages[i], "compute_s"), "stage");
    largest = fmax(largest, number(stages[i], "memory_bytes"));
  }
  const cJSON *device = cJSON_GetObjectItem(cJSON_GetObjectItem(a->root, "memory"), "device");
  ck_assert_double_eq(number(device, "arena_bytes"), largest); /* the verdict is on it */
  ck_assert_double_eq_tol(number(time, "memory_imbalance"),
                          2 * largest / (number(stages[0], "memory_bytes") + number(stages[1], "memory_bytes")), 1e-12);
  tws_json_destroy(a);
  tws_json_destroy(b);
  tws_json_destroy(c);
  command_free(&estimated);
  command_free(&simulated);
  command_free(&all);
}
END_TEST

static double step_of(const char *words) {
  command_result result = twinspeed(JOB "%s --json", words);
  tws_json *json = parse(&result);
  const double step = number(json->root, "step_s");
  tws_json_destroy(json);
  command_free(&result);
  return step;
}

static void write_events(const char *path, const char *events) {
  FILE *file = fopen(path, "w");
  ck_assert_ptr_nonnull(file);
  fprintf(file, "{\"schema\": \"twinspeed-scenario-1\", \"seed\": 3, \"events\": [%s]}\n", events);
  fclose(file);
}

/* Simulating a step with a scenario: all ranks wait for a slow device, random draws repeat, a slow link lengthens the
 * step, and a death is refused, because one step cannot show it. */
START_TEST(scenarios_disturb_a_step) {
  char path[] = "/tmp/twinspeed-scenario-XXXXXX", words[200];
  close(mkstemp(path));
  snprintf(words, sizeof words, "--fidelity flow --scenario %s", path);
  const double quiet = step_of("--fidelity flow");
  write_events(path, "");
  ck_assert_double_eq_tol(step_of(words), quiet, 1e-9 * quiet);
  write_events(path, "{\"kind\": \"slow\", \"rank\": 5, \"factor\": 2}");
  const double slow = step_of(words);
  ck_assert_double_gt(slow, 1.5 * quiet);
  ck_assert_double_lt(slow, 2.01 * quiet);
  write_events(path, "{\"kind\": \"jitter\", \"sigma\": 0.2}");
  const double drawn = step_of(words);
  ck_assert_double_gt(drawn, quiet);
  ck_assert_double_eq(step_of(words), drawn);
  write_events(path, "{\"kind\": \"link\", \"node\": 1, \"factor\": 0.01}");
  ck_assert_double_gt(step_of(words), 2 * quiet);
  write_events(path, "{\"kind\": \"death\", \"rank\": 0, \"at_s\": 0}");
  command_result result = twinspeed(JOB "%s", words);
  ck_assert_msg(result.status == 3 && strstr(result.err, "death"), "%d: %s", result.status, result.err);
  command_free(&result);
  unlink(path);
}
END_TEST

/* A step takes at least as long as loading its samples; loading that other work hides changes nothing. Of two nodes the
 * first has the first pipeline stage, whose 8 ranks take 4 samples each. */
START_TEST(samples_are_loaded) {
  static const char *const verbs[] = {"simulate", "estimate"};
  static const double rates[] = {0, 1e6, 50};
  double step[3][2], waited[3][2];
  make_folder();
  for (int i = 0; i < 3; i++) {
    FILE *file = fopen(in_folder("cluster.json"), "w");
    fprintf(file, "{\"schema\": \"twinspeed-cluster-1\", \"base\": \"dgx-a100\", \"nodes\": 2, \"samples_per_s\": %g}",
            rates[i]);
    fclose(file);
    for (int v = 0; v < 2; v++) {
      command_result result = twinspeed(
          "%s -m gpt2 --seq 256 --micro-batch 2 --accumulation 2 --pp 2 --stage 1 "
          "--cluster %s --json",
          verbs[v], in_folder("cluster.json"));
      tws_json *json = parse(&result);
      const cJSON *time = v ? cJSON_GetObjectItem(json->root, "time") : json->root;
      const cJSON *wait = cJSON_GetObjectItem(time, "loading_exposed_s");
      step[i][v] = number(time, "step_s");
      waited[i][v] = wait ? wait->valuedouble : 0;
      if (rates[i] > 0) ck_assert_double_eq_tol(number(time, "loading_s"), 32 / rates[i], 1e-9);
      tws_json_destroy(json);
      command_free(&result);
    }
  }
  for (int v = 0; v < 2; v++) {
    ck_assert(step[1][v] == step[0][v] && waited[0][v] <= 0 && waited[1][v] <= 0);
    ck_assert_double_eq_tol(step[2][v], 32 / 50.0, 1e-12);
    ck_assert_double_eq_tol(waited[2][v], step[2][v] - step[0][v], 1e-12);
  }
  remove_folder();
}
END_TEST

START_TEST(mistakes) {
  static const struct {
    const char *words;
    int status;
    const char *says;
  } cases[] = {{"--fidelity exact", 2, "analytic, flow, message or simgrid"},
               {"--rank 3", 2, "--print-plan"},
               {"--print-plan --rank 16", 2, "ranks 0 to 15"},
               {"--trace /no/such/folder/x.json", 4, "/no/such/folder"},
               {"-n 17", 3, "16 devices"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    command_result result = twinspeed(JOB "%s", cases[i].words);
    ck_assert_msg(result.status == cases[i].status, "%s: exit %d", cases[i].words, result.status);
    ck_assert_msg(strstr(result.err, cases[i].says) != NULL, "%s: %s", cases[i].words, result.err);
    command_free(&result);
  }
}
END_TEST

int main(void) {
  if (access(TWS_BUILD_DIR "/twinspeed_sim.so", R_OK) != 0) {
    fprintf(stderr, "skipped: built without the simulator\n");
    return EXIT_SUCCESS;
  }
  Suite *suite = suite_create("simulate");
  TCase *tcase = tcase_create("simulate");
  tcase_set_timeout(tcase, 120);
  tcase_add_test(tcase, result_is_consistent);
  tcase_add_test(tcase, text_and_trace);
  tcase_add_test(tcase, plan_is_printed);
  tcase_add_test(tcase, axes_are_reported);
  tcase_add_test(tcase, runtimes_are_planned_alike);
  tcase_add_test(tcase, scenarios_disturb_a_step);
  tcase_add_test(tcase, samples_are_loaded);
  tcase_add_test(tcase, mistakes);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
