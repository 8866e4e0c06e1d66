/* `twinspeed emulate`: the losses of a training with ranks of its own, the times of a simulation, the bytes of the
 * ledger, all at once and twice the same. */
/* ctest: mpi */
#include "answers.h"
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

/* Losses by step as the CSV of either verb has them. */
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
                                        "-n 4 --sp 2 --stage 3"};

START_TEST(losses_of_a_training_in_simulated_time) {
  emulate_and_train(divisions[_i]);
}
END_TEST

/* GPUs that are not there: more ranks than cores by far. */
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

START_TEST(what_cannot_be) {
  const char *model = in_folder("model.json"), *csv = in_folder("kept.csv");
  const struct {
    int status;
    char line[400];
    const char *says;
  } cases[] = {{2, "emulate -m %s", "no data"},
               {1, "emulate -m llama-3-70b --dtype bf16 --cluster dgx-a100 --data %s --quiet", "a device needs"},
               {1, "emulate -m gpt2-xl --dtype bf16 --cluster dgx-a100:64 --data %s --quiet", "this machine has"},
               {2, "emulate -m gpt2 --fidelity exact --data %s --quiet", "unknown level"}};
  for (int i = 0; i < 4; i++) {
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
  tcase_add_test(tests, what_cannot_be);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
