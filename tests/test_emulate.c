/* ctest: sampled */
/* `twinspeed emulate`: the losses of a training with ranks of its own, the times of a simulation, the bytes of the
 * ledger, all at once and twice the same. */
/* ctest: mpi */
#include <glob.h>
#include <stdarg.h>

#include "answers.h"
#include "estimators/checkpoint_interval.h"
#include "sample.h"
#include "sanitized.h"
#include "train.h"

enum { EMULATED_STEPS = 4, RANKS = 4 };

static void write_model(void) {
  FILE *file = fopen(in_folder("model.json"), "w");
  fputs("{\"model_type\":\"gpt2\",\"n_embd\":32,\"n_layer\":4,\"n_head\":4,\"n_positions\":32,\"vocab_size\":256}",
        file);
  fclose(file);
}

static double member_of(const cJSON *root, const char *name) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, name);
  ck_assert_msg(cJSON_IsNumber(item), "%s", name);
  return item->valuedouble;
}

/* Reads the losses of all steps from the CSV of either verb. */
static void read_losses(const char *path, char losses[EMULATED_STEPS][32]) {
  char line[512];
  FILE *file = fopen(path, "r");
  ck_assert_ptr_nonnull(file);
  ck_assert_ptr_nonnull(fgets(line, sizeof line, file));
  for (int i = 0; i < EMULATED_STEPS; i++) {
    ck_assert_ptr_nonnull(fgets(line, sizeof line, file));
    ck_assert_int_eq(sscanf(line, "%*[^,],%31[^,]", losses[i]), 1);
  }
  fclose(file);
}

#define COMMON "-m %s --threads 1 --quiet %s"

static void emulate_and_train(const char *flags) {
  char emulated[EMULATED_STEPS][32], trained[EMULATED_STEPS][32];
  const char *model = in_folder("model.json"), *one = in_folder("emulated.csv"), *two = in_folder("trained.csv");
  command_result result = twinspeed("emulate " COMMON " --data %s --steps %d --csv %s --force --json", model, flags,
                                    text_path, EMULATED_STEPS, one);
  ck_assert_msg(result.status == 0, "%s: %s", flags, result.err);
  cJSON *answer = assert_json(&result, "twinspeed-emulation-1");
  command_free(&result);
  result =
      twinspeed("train " COMMON " --data %s --steps %d --csv %s --force", model, flags, text_path, EMULATED_STEPS, two);
  ck_assert_msg(result.status == 0, "%s: %s", flags, result.err);
  command_free(&result);
  read_losses(one, emulated);
  read_losses(two, trained);
  for (int i = 0; i < EMULATED_STEPS; i++)
    ck_assert_msg(strcmp(emulated[i], trained[i]) == 0, "%s: step %d: emulated %s, trained %s", flags, i + 1,
                  emulated[i], trained[i]);
  ck_assert(member_of(answer, "allocated_bytes") == member_of(answer, "predicted_bytes"));
  result = twinspeed("simulate " COMMON " --json", model, flags);
  ck_assert_msg(result.status == 0, "%s: %s", flags, result.err);
  cJSON *simulated = assert_json(&result, "twinspeed-simulation-1");
  ck_assert_msg(member_of(answer, "median_step_s") == member_of(simulated, "step_s"), "%s: %.17g, simulated %.17g",
                flags, member_of(answer, "median_step_s"), member_of(simulated, "step_s"));
  cJSON_Delete(simulated);
  cJSON_Delete(answer);
  command_free(&result);
}

static const char *const divisions[] = {"-n 1",
                                        "-n 4 --stage 0",
                                        "-n 4 --stage 1",
                                        "-n 4 --stage 2 --dtype bf16",
                                        "-n 4 --stage 3",
                                        "-n 4 --tp 2 --stage 1 --sequence-parallel",
                                        "-n 4 --pp 2 --accumulation 4",
                                        "-n 4 --pp 4 --accumulation 8 --schedule zb-h1",
                                        "-n 4 --sp 2 --stage 3",
                                        "-n 8 --pp 2 --tp 2 --stage 1 --accumulation 4 --schedule zb-h1"};

START_TEST(losses_of_a_training_in_simulated_time) {
  emulate_and_train(divisions[_i]);
}
END_TEST

/* Emulates 64 GPUs on this machine, with many more ranks than cores, twice with the same output. */
START_TEST(a_cluster_of_devices) {
  const char *model = in_folder("model.json"), *trace = in_folder("trace.json");
  char *first = NULL;
  for (int run = 0; run < 2; run++) {
    command_result result = twinspeed(
        "emulate -m %s --data %s --steps 2 --cluster dgx-a100:8 --stage 3 --trace %s "
        "--force --quiet",
        model, text_path, trace);
    ck_assert_msg(result.status == 0, "%s", result.err);
    char *took = strstr(result.out, "\nit took"); /* here: not the same twice */
    ck_assert_ptr_nonnull(took);
    *took = '\0';
    if (run == 0)
      first = strdup(result.out);
    else
      ck_assert_str_eq(result.out, first);
    command_free(&result);
  }
  free(first);
  tws_json *json = NULL;
  tws_error err = {0};
  ck_assert_msg(tws_json_read(trace, &json, &err) == TWS_OK, "%s", err.message);
  int processes = 0;
  const cJSON *event, *events = cJSON_GetObjectItem(json->root, "traceEvents");
  cJSON_ArrayForEach(event, events) processes +=
      strcmp(cJSON_GetObjectItem(event, "name")->valuestring, "process_name") == 0;
  ck_assert_int_eq(processes, 64);
  tws_json_destroy(json);
}
END_TEST

/* ---- resuming, evaluating, orders ---- */

static cJSON *emulate(const char *flags, ...) __attribute__((format(printf, 1, 2)));
static cJSON *emulate(const char *flags, ...) {
  char line[2000];
  va_list arguments;
  va_start(arguments, flags);
  vsnprintf(line, sizeof line, flags, arguments);
  va_end(arguments);
  command_result result = twinspeed("emulate %s --json --quiet --threads 1", line);
  ck_assert_msg(result.status == 0, "%s: %s", line, result.err);
  cJSON *answer = assert_json(&result, "twinspeed-emulation-1");
  command_free(&result);
  return answer;
}

static const char *digest_of(const cJSON *answer) {
  return cJSON_GetObjectItemCaseSensitive(answer, "digest")->valuestring;
}

/* A job of train resumes from a checkpoint of emulate, and the reverse; losses and evaluations are those of a training
 * without a break. */
START_TEST(saves_and_evaluations_are_those_of_a_training) {
  const char *model = in_folder("model.json");
  char saved[160], trained[160];
  snprintf(saved, sizeof saved, "%s", in_folder("saved"));
  snprintf(trained, sizeof trained, "%s", in_folder("trained"));
  cJSON *whole = emulate("-m %s --data %s -n 2 --stage 2 --steps 6 --eval-data %s --eval-every 2 --eval-steps 1", model,
                         text_path, text_path);
  cJSON_Delete(emulate("-m %s --data %s -n 2 --stage 2 --steps 4 --save %s --save-every 2", model, text_path, saved));
  command_result result = twinspeed(
      "train -m %s --data %s -n 2 --stage 2 --steps 6 --threads 1 --resume %s --save %s --json --quiet --eval-data %s "
      "--eval-steps 1",
      model, text_path, saved, trained, text_path);
  ck_assert_msg(result.status == 0, "%s", result.err);
  cJSON *train = cJSON_Parse(result.out);
  const cJSON *losses = cJSON_GetObjectItem(train, "losses"), *evaluations = cJSON_GetObjectItem(train, "evaluations");
  ck_assert(cJSON_GetArrayItem(losses, cJSON_GetArraySize(losses) - 1)->valuedouble == member_of(whole, "last_loss"));
  ck_assert(member_of(cJSON_GetArrayItem(evaluations, 0), "loss") == member_of(whole, "eval_loss"));
  command_free(&result);
  cJSON *on = emulate("-m %s --data %s -n 2 --stage 2 --steps 6 --resume %s", model, text_path, saved);
  ck_assert_str_eq(digest_of(on), digest_of(whole));
  cJSON *after = emulate("-m %s --data %s -n 2 --stage 2 --steps 7 --resume %s", model, text_path, trained);
  cJSON *seven = emulate("-m %s --data %s -n 2 --stage 2 --steps 7", model, text_path);
  ck_assert_str_eq(digest_of(after), digest_of(seven));
  cJSON_Delete(train);
  cJSON_Delete(whole);
  cJSON_Delete(on);
  cJSON_Delete(after);
  cJSON_Delete(seven);
}
END_TEST

START_TEST(no_order_changes_a_bit) {
  const char *model = in_folder("model.json"), *flags = divisions[_i];
  cJSON *first = emulate("-m %s --data %s --steps 2 %s", model, text_path, flags);
  for (int seed = 1; seed <= 3; seed++) {
    cJSON *other = emulate("-m %s --data %s --steps 2 %s --seed-order %d", model, text_path, flags, seed);
    ck_assert_msg(strcmp(digest_of(first), digest_of(other)) == 0, "%s: seed %d", flags, seed);
    ck_assert(member_of(first, "median_step_s") == member_of(other, "median_step_s"));
    cJSON_Delete(other);
  }
  cJSON_Delete(first);
}
END_TEST

/* With --share, ranks that have equal bits store them once: no result changes, and `shared_bytes` counts the copies
 * that are not stored. */
START_TEST(storage_is_shared_by_ranks_with_equal_bits) {
  static const struct {
    const char *flags;
    double copies; /* copies of parameters and moments, 12 bytes per parameter, that are not stored */
  } jobs[] = {{"-n 8 --stage 0", 7}, {"-n 4 --tp 2 --stage 0 --seed-order 5", 1}, {"-n 8 --stage 1", 7.0 / 3}};
  const char *model = in_folder("wide.json");
  FILE *file = fopen(model, "w");
  fputs("{\"model_type\":\"gpt2\",\"n_embd\":128,\"n_layer\":2,\"n_head\":2,\"n_positions\":16,\"vocab_size\":256}",
        file);
  fclose(file);
  cJSON *own = emulate("-m %s --data %s --steps 3 --share off %s", model, text_path, jobs[_i].flags);
  cJSON *shared = emulate("-m %s --data %s --steps 3 --share on %s", model, text_path, jobs[_i].flags);
  ck_assert_str_eq(digest_of(shared), digest_of(own));
  ck_assert(member_of(shared, "last_loss") == member_of(own, "last_loss"));
  ck_assert(member_of(shared, "median_step_s") == member_of(own, "median_step_s"));
  ck_assert(member_of(own, "shared_bytes") == 0);
  const double parameters = 2 * (12 * 128 * 128 + 13 * 128) + (256 + 16 + 2) * 128;
  const double least = jobs[_i].copies * 12 * parameters;
  ck_assert_msg(member_of(shared, "shared_bytes") >= 0.9 * least, "%s: %.0f of %.0f bytes", jobs[_i].flags,
                member_of(shared, "shared_bytes"), least);
  cJSON_Delete(own);
  cJSON_Delete(shared);
}
END_TEST

/* ---- scenarios ---- */

START_TEST(every_scenario_comes_out_as_it_says) {
  glob_t found;
  ck_assert_int_eq(glob(TWS_SOURCE_DIR "/scenarios/faults/*.json", 0, NULL, &found), 0);
  int count = 0;
  for (size_t i = 0; i < found.gl_pathc; i++) {
    if (strstr(found.gl_pathv[i], "/model.json") || strstr(found.gl_pathv[i], "/cluster.json") ||
        strstr(found.gl_pathv[i], "/office.json"))
      continue;
    count++;
    if (TWS_SANITIZED && !takes(i, 3)) continue;
    command_result result = twinspeed("emulate --scenario %s --quiet", found.gl_pathv[i]);
    ck_assert_msg(result.status == 0, "%s: %s", found.gl_pathv[i], result.err);
    ck_assert_msg(strstr(result.out, "as expected") != NULL, "%s: %s", found.gl_pathv[i], result.out);
    command_free(&result);
  }
  ck_assert_int_ge(count, 16);
  globfree(&found);
}
END_TEST

/* A link that flaps, has less bandwidth or is lost slows a step equally at the fidelities "analytic", "flow" and
 * "simgrid". */
START_TEST(links_are_as_slow_for_flows) {
  static const char *const names[] = {"flapping-nic", "degraded-link", "lost-link"};
  static const char *const levels[] = {"analytic", "flow", "simgrid"};
  double step_s[3];
  for (int flow = 0; flow < 3; flow++) {
    command_result result = twinspeed("emulate --scenario %s/scenarios/faults/%s.json --fidelity %s --json --quiet",
                                      TWS_SOURCE_DIR, names[_i], levels[flow]);
    ck_assert_msg(result.status == 0, "%s: %s", names[_i], result.err);
    cJSON *answer = assert_json(&result, "twinspeed-emulation-1");
    step_s[flow] = member_of(answer, "median_step_s");
    cJSON_Delete(answer);
    command_free(&result);
  }
  ck_assert_double_eq_tol(step_s[1] / step_s[0], 1, 1e-5);
  ck_assert_double_eq_tol(step_s[2] / step_s[1], 1, 1e-5);
}
END_TEST

#define SCENARIO                                                                                               \
  "{\"schema\":\"twinspeed-scenario-1\",\"job\":{\"model\":\"" TWS_SOURCE_DIR                                  \
  "/scenarios/faults/model.json\",\"cluster\":\"" TWS_SOURCE_DIR                                               \
  "/scenarios/faults/cluster.json\",\"stage\":2,\"set\":[\"train_batch_size=24\"]},\"data\":\"" TWS_SOURCE_DIR \
  "/scenarios/faults/text.txt\",\"steps\":8,"

static const char *write_scenario(const char *rest, ...) __attribute__((format(printf, 1, 2)));
static const char *write_scenario(const char *rest, ...) {
  const char *path = in_folder("scenario.json");
  FILE *file = fopen(path, "w");
  va_list arguments;
  fputs(SCENARIO, file);
  va_start(arguments, rest);
  vfprintf(file, rest, arguments);
  va_end(arguments);
  fputs("}", file);
  fclose(file);
  return path;
}

/* A node dies at a random time and is repaired: the job restarts by itself and ends with the same bits as a job without
 * a fault. bench-faults does this hundreds of times. */
START_TEST(deaths_leave_no_trace) {
  cJSON *calm = emulate("--scenario %s", write_scenario("\"save\":{\"every\":2}"));
  for (int i = 0; i < 6; i++) {
    const double at_s = 0.0026 + 0.0025 * tws_random_uniform(3, 1, (uint64_t)i);
    cJSON *hit = emulate("--scenario %s",
                         write_scenario("\"save\":{\"every\":2,\"synchronous\":%s},\"restarts\":1,\"deadline_s\":5,"
                                        "\"events\":[{\"kind\":\"death\",\"node\":%d,\"at_s\":%.9g,\"repair_s\":1}]",
                                        i % 2 ? "true" : "false", i % 4, at_s));
    ck_assert_int_eq((int)member_of(hit, "restarts"), 1);
    ck_assert_str_eq(digest_of(hit), digest_of(calm));
    const double parts = member_of(hit, "useful_s") + member_of(hit, "save_s") + member_of(hit, "lost_s") +
                         member_of(hit, "detect_s") + member_of(hit, "restart_s");
    ck_assert_double_eq_tol(parts, member_of(hit, "virtual_s"), 1e-9);
    cJSON_Delete(hit);
  }
  cJSON_Delete(calm);
}
END_TEST

/* The intervals of Young's and Daly's formulas are close to the interval with the best expected goodput. */
START_TEST(the_best_interval) {
  for (int i = 0; i < 6; i++) {
    const double save_s = 1, between_s = 20 * pow(4, i), restart_s = 5;
    double best_s = 0, best = 0;
    for (double interval_s = 0.5; interval_s < 4 * between_s; interval_s *= 1.002) {
      const double goodput = tws_interval_goodput(interval_s, save_s, restart_s, between_s);
      if (goodput > best) best_s = interval_s;
      if (goodput > best) best = goodput;
    }
    ck_assert_double_eq_tol(tws_interval_daly(save_s, between_s) / best_s, 1, 0.02);
    ck_assert_double_eq_tol(tws_interval_young(save_s, between_s) / best_s, 1, 1.5 * sqrt(save_s / between_s));
  }
  command_result result =
      twinspeed("tune -m gpt2 --cluster dgx-a100 --faults 36000 --json --quiet --results %s", in_folder("tuned"));
  ck_assert_msg(result.status == 0, "%s", result.err);
  cJSON *tuned = cJSON_Parse(result.out), *faults = cJSON_GetObjectItem(tuned, "faults");
  ck_assert(member_of(faults, "save_every") >= 1 && member_of(faults, "goodput") > 0.9);
  ck_assert_double_eq(member_of(faults, "daly_s"), tws_interval_daly(member_of(faults, "hold_s"), 36000));
  const cJSON *one, *best = cJSON_GetObjectItem(faults, "best"); /* not for the winner alone */
  ck_assert_int_eq(cJSON_GetArraySize(best), 5);
  cJSON_ArrayForEach(one, best) ck_assert(member_of(one, "save_every") >= 1 && member_of(one, "goodput") > 0.9);
  ck_assert(member_of(cJSON_GetArrayItem(best, 0), "goodput") == member_of(faults, "goodput"));
  cJSON_Delete(tuned);
  command_free(&result);
}
END_TEST

/* A trace contains the events of the last step. */
START_TEST(events_are_in_the_trace) {
  const char *trace = in_folder("events.json");
  const char *scenario = write_scenario("\"events\":[{\"kind\":\"slow\",\"rank\":3,\"factor\":2,\"at_s\":0.0001}]");
  command_result result = twinspeed("emulate --scenario %s --trace %s --force --quiet", scenario, trace);
  ck_assert_msg(result.status == 0, "%s", result.err);
  command_free(&result);
  tws_json *json = NULL;
  tws_error err = {0};
  ck_assert_msg(tws_json_read(trace, &json, &err) == TWS_OK, "%s", err.message);
  int seen = 0;
  const cJSON *event, *events = cJSON_GetObjectItem(json->root, "traceEvents");
  cJSON_ArrayForEach(event, events) seen +=
      strcmp(cJSON_GetObjectItem(event, "ph")->valuestring, "i") == 0 &&
      strcmp(cJSON_GetObjectItem(event, "name")->valuestring, "slow, rank 3") == 0;
  ck_assert_int_eq(seen, 1);
  tws_json_destroy(json);
}
END_TEST

START_TEST(train_is_emulate_with_a_flag) {
  const char *model = in_folder("model.json");
  cJSON *emulated = emulate("-m %s --data %s --steps 2 --cluster dgx-a100 --stage 1", model, text_path);
  command_result result = twinspeed(
      "train --virtual -m %s --data %s --steps 2 --cluster dgx-a100 --stage 1 --json --quiet", model, text_path);
  ck_assert_msg(result.status == 0, "%s", result.err);
  cJSON *trained = assert_json(&result, "twinspeed-emulation-1");
  ck_assert_str_eq(digest_of(trained), digest_of(emulated));
  cJSON_Delete(emulated);
  cJSON_Delete(trained);
  command_free(&result);
}
END_TEST

START_TEST(refused_scenarios) {
  static const struct {
    const char *rest, *says;
  } cases[] = {{"\"event\":[]", "unknown key \"event\""},
               {"\"events\":[{\"kind\":\"deth\",\"rank\":1}]", "unknown event \"deth\""},
               {"\"events\":[{\"kind\":\"death\"}]", "an event \"death\" names no target"},
               {"\"events\":[{\"kind\":\"death\",\"rank\":1,\"node\":0}]", "rank and node"},
               {"\"events\":[{\"kind\":\"slow\",\"rank\":1}]", "factor"},
               {"\"events\":[{\"kind\":\"slow\",\"rank\":8,\"factor\":2}]",
                "scenario.json: event 1 (slow) is of rank 8, and the cluster has 8"},
               {"\"events\":[{\"kind\":\"jitter\",\"sigma\":1,\"at_s\":2,\"until_s\":1}]", "ends before it begins"},
               {"\"events\":[{\"kind\":\"death\",\"rank\":\"any\",\"drawn\":{\"distribution\":\"poisson\"}}]",
                "unknown distribution"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    command_result result = twinspeed("emulate --scenario %s --json --quiet", write_scenario("%s", cases[i].rest));
    assert_one_error(&result, 3, cases[i].rest);
    ck_assert_msg(strstr(result.err, cases[i].says) != NULL, "%s", result.err);
    command_free(&result);
  }
  command_result result =
      twinspeed("emulate --scenario %s --json --quiet", write_scenario("\"expect\":{\"loss\":{\"value\":1}}"));
  assert_one_error(&result, 1, "an expectation that is not met");
  ck_assert_msg(strstr(result.err, "not as expected: loss") != NULL, "%s", result.err);
  command_free(&result);
}
END_TEST

START_TEST(impossible_faults) {
  const char *model = in_folder("model.json"), *csv = in_folder("kept.csv");
  const struct {
    int status;
    char line[400];
    const char *says;
  } cases[] = {{2, "emulate -m %s", "no data"},
               {1, "emulate -m llama-3-70b --dtype bf16 --cluster dgx-a100 --data %s --quiet", "a device needs"},
               {1, "emulate -m gpt2-xl --dtype bf16 --cluster dgx-a100:64 --data %s --quiet", "this machine has"},
               {3,
                "emulate -m tiny-gpt2 --seq 32 --dtype bf16 --cluster dgx-h100 -n 1 --data %s --quiet --set "
                "twinspeed.matmul_dtype=mxfp8",
                "products in mxfp8 cannot be run"},
               {2, "emulate -m gpt2 --fidelity exact --data %s --quiet", "unknown level"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char line[800];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(line, sizeof line, cases[i].line, i == 0 ? model : text_path);
#pragma GCC diagnostic pop
    command_result result = twinspeed("%s --json", line);
    assert_one_error(&result, cases[i].status, line);
    ck_assert_msg(strstr(result.err, cases[i].says) != NULL, "%s", result.err);
    command_free(&result);
  }
  FILE *file = fopen(csv, "w");
  fputs("mine\n", file);
  fclose(file);
  command_result result = twinspeed("emulate -m %s --data %s --csv %s --json --quiet", model, text_path, csv);
  assert_one_error(&result, 2, "an output that is there");
  command_free(&result);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("emulate");
  TCase *tests = tcase_create("emulate");
  tcase_set_timeout(tests, 120);
  tcase_add_checked_fixture(tests, write_model, NULL);
  tcase_add_loop_test(tests, losses_of_a_training_in_simulated_time, 0, sizeof divisions / sizeof *divisions);
  tcase_add_test(tests, a_cluster_of_devices);
  tcase_add_test(tests, saves_and_evaluations_are_those_of_a_training);
  tcase_add_loop_test(tests, no_order_changes_a_bit, 0, sizeof divisions / sizeof *divisions);
  tcase_add_loop_test(tests, storage_is_shared_by_ranks_with_equal_bits, 0, 3);
  tcase_add_test(tests, every_scenario_comes_out_as_it_says);
  tcase_add_loop_test(tests, links_are_as_slow_for_flows, 0, 3);
  tcase_add_test(tests, deaths_leave_no_trace);
  tcase_add_test(tests, the_best_interval);
  tcase_add_test(tests, events_are_in_the_trace);
  tcase_add_test(tests, train_is_emulate_with_a_flag);
  tcase_add_test(tests, refused_scenarios);
  tcase_add_test(tests, impossible_faults);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
