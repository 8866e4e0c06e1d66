/* ctest: engine mpi waits sampled */
/* The verb train: its output and its files; the ledger's bytes are those allocated; a rank that fails ends the job and
 * leaves no process and no file. */
#include <dirent.h>
#include <signal.h>
#include "base/json.h"
#include "base/memory.h"
#include "members.h"
#include "train.h"

static void check_trace(const char *path, int ranks) {
  tws_json *json = NULL;
  tws_error err = {0};
  ck_assert_msg(tws_json_read(path, &json, &err) == TWS_OK, "%s", err.message);
  const cJSON *event, *events = cJSON_GetObjectItemCaseSensitive(json->root, "traceEvents");
  int begun[64] = {0}, collectives = 0;
  cJSON_ArrayForEach(event, events) {
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(event, "name");
    const cJSON *ph = cJSON_GetObjectItemCaseSensitive(event, "ph");
    if (!cJSON_IsString(ph) || strcmp(ph->valuestring, "X") != 0) continue;
    ck_assert_double_ge(number(event, "ts"), 0.0);
    ck_assert_double_ge(number(event, "dur"), 0.0);
    begun[(int)number(event, "pid") % 64]++;
    collectives += strstr(name->valuestring, "all_gather") != NULL;
  }
  int processes = 0, most = 0;
  for (int i = 0; i < 64; i++) {
    processes += begun[i] > 0;
    if (begun[i] > most) most = begun[i];
  }
  ck_assert_int_eq(processes, ranks);
  for (int i = 0; i < 64; i++) ck_assert(begun[i] == 0 || begun[i] > most - 4); /* padding fills differ by rank */
  ck_assert_int_ge(collectives, ranks);
  tws_json_destroy(json);
}

/* Returns a column of a CSV of steps as text; NULL: the line has fewer columns. */
static char *csv_column(const char *path, int line, int column) {
  static char text[512];
  FILE *file = fopen(path, "r");
  ck_assert_ptr_nonnull(file);
  for (int i = 0; i <= line; i++) ck_assert_ptr_nonnull(fgets(text, sizeof text, file));
  fclose(file);
  text[strcspn(text, "\n")] = '\0';
  char *at = text;
  while (at && column-- > 0) at = (at = strchr(at, ',')) ? at + 1 : NULL;
  if (at) at[strcspn(at, ",")] = '\0';
  return at;
}

/* Evaluations change no digit of the training; their losses are in the output, the CSV and the summary, and the memory
 * of both programs is the predicted one. */
START_TEST(evaluation) {
  char plain[96], evaluated[96], other[96], loss[32];
  snprintf(plain, sizeof plain, "%s", in_folder("plain.csv"));
  snprintf(evaluated, sizeof evaluated, "%s", in_folder("evaluated.csv"));
  snprintf(other, sizeof other, "%s", in_folder("other.txt"));
  write_story(other, 1500);
  command_result r = twinspeed(JOB "%s --steps 5 --csv %s --quiet", text_path, plain);
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_ptr_null(csv_column(plain, 1, 8));
  command_free(&r);
  r = twinspeed(JOB "%s --steps 5 --csv %s --eval-data %s --eval-every 2 --eval-steps 3", text_path, evaluated, other);
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_msg(strstr(r.out, "eval loss") && strstr(r.out, "equal to the byte"), "%s", r.out);
  ck_assert_str_eq(csv_column(evaluated, 0, 8), "eval_loss");
  for (int step = 1; step <= 5; step++) {
    snprintf(loss, sizeof loss, "%s", csv_column(plain, step, 1));
    ck_assert_str_eq(csv_column(evaluated, step, 1), loss);
    const char *found = csv_column(evaluated, step, 8);
    if (step % 2 && step < 5)
      ck_assert_str_eq(found, "");
    else
      ck_assert(strtod(found, NULL) > 3 && strtod(found, NULL) < 7);
  }
  command_free(&r);
  r = twinspeed(JOB "%s --steps 1 --json --quiet --eval-data %s --eval-steps 99", text_path, other);
  ck_assert_msg(r.status == 0 && strstr(r.out, "\"evaluations\""), "%s%s", r.out, r.err);
  command_free(&r);
  r = twinspeed(JOB "%s --eval-every 2", text_path);
  ck_assert_msg(r.status == 2 && strstr(r.err, "--eval-data"), "%s", r.err);
  command_free(&r);
  r = twinspeed(JOB "%s --eval-data %s", text_path, in_folder("absent"));
  ck_assert_msg(r.status == 4 && strstr(r.err, "absent"), "%d: %s", r.status, r.err);
  command_free(&r);
}
END_TEST

START_TEST(program_output) {
  command_result r = twinspeed(JOB "%s --steps 4 --csv %s --trace %s --result %s", text_path, in_folder("csv"),
                               in_folder("trace"), in_folder("result"));
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  ck_assert_ptr_nonnull(strstr(r.out, "equal to the byte"));
  ck_assert_ptr_nonnull(strstr(r.out, "4 steps"));
  command_free(&r);
  check_trace(in_folder("trace"), 3);
  char *csv = NULL;
  size_t length;
  ck_assert_int_eq(tws_read_file(in_folder("csv"), 0, &csv, &length, NULL), TWS_OK);
  ck_assert_int_eq(count_lines_with(csv, "step,loss,lr,gradient_norm,seconds,tokens_per_s"), 1);
  for (int i = 1; i <= 4; i++) ck_assert_int_eq(count_lines_with(csv, (char[]){(char)('0' + i), ',', '\0'}), 1);
  tws_free(csv);
  tws_json *json = NULL;
  ck_assert_int_eq(tws_json_read(in_folder("result"), &json, NULL), TWS_OK);
  const cJSON *memory = cJSON_GetObjectItemCaseSensitive(json->root, "memory"), *one;
  ck_assert_str_eq(cJSON_GetObjectItemCaseSensitive(json->root, "schema")->valuestring, "twinspeed-train-1");
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(json->root, "losses")), 4);
  ck_assert_int_eq(cJSON_GetArraySize(memory), 3);
  cJSON_ArrayForEach(one, memory) {
    const cJSON *device = cJSON_GetObjectItemCaseSensitive(one, "device");
    ck_assert_double_eq(number(device, "predicted_bytes"), number(device, "allocated_bytes"));
    ck_assert_double_ge(number(one, "peak_rss_bytes"), number(device, "allocated_bytes"));
  }
  tws_json_destroy(json);
}
END_TEST

/* A training whose output is not read any more continues to its end. */
START_TEST(output_without_a_reader) {
  command_result r = twinspeed_unread(JOB "%s --steps 4 --csv %s", text_path, in_folder("unread"));
  ck_assert_msg(r.status == 0 && count_lines_with(r.err, "twinspeed: ") == 0, "exit %d: %s", r.status, r.err);
  command_free(&r);
  char *csv = NULL;
  size_t length;
  ck_assert_int_eq(tws_read_file(in_folder("unread"), 0, &csv, &length, NULL), TWS_OK);
  for (int i = 1; i <= 4; i++) ck_assert_int_eq(count_lines_with(csv, (char[]){(char)('0' + i), ',', '\0'}), 1);
  tws_free(csv);
}
END_TEST

START_TEST(json_output) {
  command_result r = twinspeed(AXES_JOB "%s --steps 2 --json --quiet", text_path);
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  tws_json *json = NULL;
  tws_error err = {0};
  ck_assert_msg(tws_json_parse(r.out, strlen(r.out), "output", &json, &err) == TWS_OK, "%s", err.message);
  ck_assert_double_eq(number(json->root, "ranks"), 4);
  const cJSON *configuration = cJSON_GetObjectItemCaseSensitive(json->root, "configuration");
  const cJSON *axes = cJSON_GetObjectItemCaseSensitive(configuration, "axes");
  ck_assert_double_eq(number(axes, "pipe"), 2);
  ck_assert_double_eq(number(axes, "model"), 2);
  ck_assert_double_eq(number(axes, "sequence"), 1);
  ck_assert_double_eq(number(axes, "data"), 1);
  /* tokens per second count each token of the whole batch once, and not once per rank */
  double tokens = number(json->root, "tokens_per_s") * number(json->root, "median_step_s");
  ck_assert_double_eq_tol(tokens, 4 * 32, 1e-6);
  const cJSON *largest = cJSON_GetObjectItemCaseSensitive(json->root, "largest_rank"), *one;
  double most = 0.0;
  cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(json->root, "memory")) {
    double bytes = number(cJSON_GetObjectItemCaseSensitive(one, "device"), "allocated_bytes");
    most = fmax(most, bytes);
    if (number(one, "rank") == 3)
      ck_assert_str_eq(cJSON_GetObjectItemCaseSensitive(one, "place")->valuestring, "pipe_01-data_00-model_01");
    if (number(one, "rank") == number(largest, "rank")) ck_assert_double_eq(number(largest, "allocated_bytes"), bytes);
  }
  ck_assert_double_eq(number(largest, "allocated_bytes"), most);
  tws_json_destroy(json);
  command_free(&r);
}
END_TEST

/* ---- failures ---- */

/* Returns the number of processes whose command line names this test's folder, except this process. */
static int left_behind(void) {
  DIR *proc = opendir("/proc");
  struct dirent *entry;
  int count = 0;
  while ((entry = readdir(proc)) != NULL) {
    char path[300], line[4096];
    if (atoi(entry->d_name) <= 0) continue;
    snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
    FILE *file = fopen(path, "r");
    size_t got = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file) fclose(file);
    for (size_t i = 0; i < got; i++)
      if (line[i] == '\0') line[i] = ' ';
    line[got] = '\0';
    count += strstr(line, "rank-worker") && strstr(line, folder);
  }
  closedir(proc);
  return count;
}

#define PRODUCT "forward transformer.h.1.attn.c_proj all_reduce (model group of ranks 2 3)"
START_TEST(failures) {
  static const struct {
    const char *job, *fault, *options;
    int status;
    const char *says[2];
  } cases[] = {
      {JOB,
       "rank=2,step=2,kind=kill",
       "",
       5,
       {"rank 2 was ended by signal 9", "step 2, backward all_reduce (data group of ranks 0 1 2)"}},
      {JOB, "rank=0,step=1,kind=kill", "", 5, {"rank 0 was ended by signal 9", "step 1, "}},
      {JOB, "rank=1,step=1,kind=allocate", "", 5, {"rank 1: cannot allocate", ""}},
      {JOB,
       "rank=1,step=2,kind=hang",
       "--deadline 3",
       124,
       {"rank 1 is in operation 'backward all_reduce (data group of ranks 0 1 2)'", "step 2 is not done"}},
      {JOB, "rank=1,step=2,kind=slow", "--deadline 2", 0, {"", ""}},
      {JOB, "rank=2,step=2,kind=nan", "", 5, {"rank 2, step 2: operation", "not a finite number"}},
      {JOB, "rank=2,step=2", "", 2, {"TWINSPEED_FAULT", ""}},
      {AXES_JOB, "rank=2,step=2,kind=kill", "", 5, {"rank 2 was ended by signal 9", PRODUCT}},
      {AXES_JOB, "rank=3,step=2,kind=hang", "--deadline 3", 124, {"rank 3 is in operation '" PRODUCT, "step 2 is"}},
      {JOB, "rank=1,step=0,kind=hang", "--deadline 3", 124, {"nothing has happened for 3 s: rank 1 is planning", ""}},
  };
  setenv("TWINSPEED_FAULT", cases[_i].fault, 1);
  command_result r =
      twinspeed("%s%s --steps 3 --quiet %s", cases[_i].job ? cases[_i].job : JOB, text_path, cases[_i].options);
  unsetenv("TWINSPEED_FAULT");
  ck_assert_msg(r.status == cases[_i].status, "status %d: %s", r.status, r.err);
  for (int i = 0; i < 2; i++) ck_assert_msg(strstr(r.err, cases[_i].says[i]) != NULL, "%s", r.err);
  ck_assert_msg(count_lines_with(r.err, "twinspeed: ") == (r.status != 0), "one message: %s", r.err);
  ck_assert_int_eq(left_behind(), 0);
  command_free(&r);
}
END_TEST

/* Ctrl-C to a launcher, or SIGKILL, while a rank hangs in the second step, ends all processes. */
START_TEST(interrupted) {
  int out[2], sent = _i ? SIGKILL : SIGINT, status = 0;
  char line[256] = "";
  ck_assert_int_eq(pipe(out), 0);
  pid_t child = fork();
  if (child == 0) {
    dup2(out[1], 1);
    close(2);
    setenv("TWINSPEED_FAULT", "rank=1,step=2,kind=hang", 1);
    execl(TWS_BUILD_DIR "/twinspeed", "twinspeed", "train", "-m", "tiny-gpt2", "--seq", "32", "-n", "2", "--steps", "3",
          "--data", text_path, "--quiet", (char *)NULL);
    _exit(126);
  }
  close(out[1]);
  FILE *stream = fdopen(out[0], "r");
  while (strstr(line, "     1  ") != line && fgets(line, sizeof line, stream)) continue; /* the first step is done */
  ck_assert_msg(strncmp(line, "     1  ", 8) == 0, "%s", line);
  ck_assert_int_gt(left_behind(), 1);
  kill(child, sent);
  waitpid(child, &status, 0);
  if (sent == SIGINT) ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 130, "status %x", status);
  for (int i = 0; sent == SIGKILL && i < 100 && left_behind() > 0; i++) usleep(100000); /* they notice by themselves */
  ck_assert_int_eq(left_behind(), 0);
  fclose(stream);
}
END_TEST

/* When the data file is truncated during the training, the job ends with an error of the environment and without a
 * signal, on any number of ranks. */
START_TEST(data_cut_in_a_run) {
  int out[2], status = 0, err = command_scratch();
  char line[256] = "", *bytes = calloc(1 << 16, 1);
  memset(bytes, 'a', (1 << 16) - 1);
  write_text(in_folder("cut"), bytes);
  free(bytes);
  ck_assert_int_eq(pipe(out), 0);
  pid_t child = fork();
  if (child == 0) {
    dup2(out[1], 1);
    dup2(err, 2);
    execl(TWS_BUILD_DIR "/twinspeed", "twinspeed", "train", "-m", "tiny-gpt2", "--seq", "32", "-n", _i ? "2" : "1",
          "--steps", "100000", "--every", "1", "--data", in_folder("cut"), "--quiet", (char *)NULL);
    _exit(126);
  }
  close(out[1]);
  FILE *stream = fdopen(out[0], "r");
  while (strstr(line, "     1  ") != line && fgets(line, sizeof line, stream)) continue;
  ck_assert_int_eq(truncate(in_folder("cut"), 0), 0);
  while (fgets(line, sizeof line, stream)) continue;
  waitpid(child, &status, 0);
  char *says = command_slurp(err);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 4, "status %x: %s", status, says);
  ck_assert_msg(count_lines_with(says, "twinspeed: ") == 1 && strstr(says, "and has 0 now"), "%s", says);
  ck_assert_int_eq(left_behind(), 0);
  free(says);
  fclose(stream);
}
END_TEST

START_TEST(bad_input) {
  static const struct {
    const char *arguments;
    int status;
  } cases[] = {{"train -m tiny-gpt2 -n 2", 2},
               {"train -m tiny-gpt2 -n 2 --data %s/none", 4},
               {"train -m tiny-gpt2 -n 2 --data %s", 4},
               {"train -m tiny-gpt2 -n 2 --micro-batch 5000 --data %s/story.txt", 3},
               {"train -m tiny-gpt2 -n 2 --data %s/story.txt --csv %s/none/csv", 4},
               {"train -m gpt2 -n 2 --micro-batch 100000 --data %s/story.txt", 1},
               {"rank-worker train", 2}};
  char words[256];
  snprintf(words, sizeof words, cases[_i].arguments, folder, folder);
  command_result r = twinspeed("%s", words);
  ck_assert_msg(r.status == cases[_i].status, "%s: status %d: %s", words, r.status, r.err);
  ck_assert_msg(count_lines_with(r.err, "twinspeed: ") == 1, "one message: %s", r.err);
  ck_assert_int_eq(left_behind(), 0);
  command_free(&r);
}
END_TEST

/* After the death of a rank the remaining ranks continue from the last checkpoint, with the batch that elasticity chose
 * for all numbers of ranks, and have the losses of an undisturbed job. */
START_TEST(elastic_restart) {
  static const char elastic[] =
      "{\"elasticity\": {\"enabled\": true, \"max_train_batch_size\": 16, \"micro_batch_sizes\": [1, 2, 4], "
      "\"version\": 0.1}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.003}}}";
  char whole[96];
  write_text(in_folder("elastic.json"), elastic);
  snprintf(whole, sizeof whole, "%s", in_folder("whole.csv"));
  command_result r = twinspeed("train -m tiny-gpt2 -c %s --seq 32 --data %s --steps 6 -n 3 --quiet --csv %s",
                               in_folder("elastic.json"), text_path, whole);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  setenv("TWINSPEED_FAULT", "rank=3,step=4,kind=kill", 1);
  r = twinspeed(
      "train -m tiny-gpt2 -c %s --seq 32 --data %s --steps 6 -n 4 --save %s --save-every 1 --restarts 1 --csv %s",
      in_folder("elastic.json"), text_path, in_folder("elastic"), in_folder("rest.csv"));
  unsetenv("TWINSPEED_FAULT");
  ck_assert_msg(r.status == 0 && strstr(r.err, "continuing with 3 of 4 ranks"), "%d: %s", r.status, r.err);
  ck_assert_msg(strstr(r.err, "rank 3 was ended by signal 9"), "%s", r.err);
  command_free(&r);
  const double wanted = strtod(csv_column(whole, 6, 1), NULL);
  setenv("TWINSPEED_FAULT", "rank=3,step=4,kind=kill", 1); /* before anything was saved */
  r = twinspeed(
      "train -m tiny-gpt2 -c %s --seq 32 --data %s --steps 6 -n 4 --save %s --save-every 5 --restarts 1 --csv "
      "%s",
      in_folder("elastic.json"), text_path, in_folder("early"), in_folder("early.csv"));
  unsetenv("TWINSPEED_FAULT");
  ck_assert_msg(r.status == 0 && strstr(r.err, "with 3 of 4 ranks from the beginning: no checkpoint was saved yet"),
                "%d: %s", r.status, r.err);
  command_free(&r);
  ck_assert(strtod(csv_column(in_folder("early.csv"), 6, 1), NULL) == wanted);
  int lines = 0;
  char line[512];
  FILE *file = fopen(in_folder("rest.csv"), "r");
  while (fgets(line, sizeof line, file)) lines++;
  fclose(file);
  ck_assert_double_eq_tol(strtod(csv_column(in_folder("rest.csv"), lines - 1, 1), NULL), wanted, 1e-6 * wanted);
  r = twinspeed("train -m tiny-gpt2 -c %s --seq 32 --data %s -n 5", in_folder("elastic.json"), text_path);
  ck_assert_msg(r.status == 3 && strstr(r.err, "use 4 or 6"), "%d: %s", r.status, r.err);
  ck_assert_int_eq(left_behind(), 0);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("train");
  TCase *tests = tcase_create("train");
  tcase_add_test(tests, program_output);
  tcase_add_test(tests, output_without_a_reader);
  tcase_add_test(tests, json_output);
  tcase_add_loop_test(tests, failures, 0, 10);
  tcase_add_loop_test(tests, interrupted, 0, 2);
  tcase_add_loop_test(tests, data_cut_in_a_run, 0, 2);
  tcase_add_test(tests, elastic_restart);
  tcase_add_test(tests, evaluation);
  tcase_add_loop_test(tests, bad_input, 0, 7);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
