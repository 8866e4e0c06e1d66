/* The program from outside: every verb's conventions, exit codes, and what bad input gives. */
#include <check.h>
#include <ctype.h>
#include <signal.h>
#include "base/json.h"
#include "base/memory.h"
#include "tests/command.h"

static char folder[256];

static void make_folder(void) {
  snprintf(folder, sizeof folder, "/tmp/twinspeed-cli-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(folder));
}
static void remove_folder(void) {
  char command[512];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  ck_assert_int_eq(system(command), 0);
}

static const char *file(const char *name) {
  static char paths[8][512];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

/* One error line, at most one hint, nothing else on standard error, nothing on standard output. */
static void assert_one_error(const command_result *r, int status, const char *what) {
  ck_assert_msg(r->status == status, "%s: exit %d instead of %d: %s", what, r->status, status, r->err);
  ck_assert_msg(count_lines_with(r->err, "twinspeed: ") == 1, "%s: %s", what, r->err);
  int lines = 0;
  for (const char *c = r->err; *c; c++) lines += *c == '\n';
  ck_assert_msg(lines == 1 + count_lines_with(r->err, "hint: ") && lines <= 2, "%s: %s", what, r->err);
  ck_assert_msg(r->out[0] == '\0', "%s: output %s", what, r->out);
}

static cJSON *assert_json(const command_result *r, const char *schema) {
  cJSON *json = cJSON_Parse(r->out);
  ck_assert_msg(json != NULL, "not JSON: %.300s\n%s", r->out, r->err);
  const cJSON *name = cJSON_GetObjectItemCaseSensitive(json, "schema");
  ck_assert_msg(cJSON_IsString(name), "no schema in %.300s", r->out);
  ck_assert_str_eq(name->valuestring, schema);
  return json;
}

static const char *const verbs[] = {"estimate", "check",     "simulate", "tune",   "train",   "profile",
                                    "validate", "calibrate", "report",   "doctor", "convert", "launch"};

START_TEST(help_of_every_verb) {
  command_result r = twinspeed("--help");
  ck_assert_int_eq(r.status, 0);
  for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
    ck_assert_msg(strstr(r.out, verbs[i]) != NULL, "--help does not list %s", verbs[i]);
  command_free(&r);
  for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
    r = twinspeed("%s --help", verbs[i]);
    ck_assert_msg(r.status == 0 && r.err[0] == '\0', "%s --help: %s", verbs[i], r.err);
    const char *examples = strstr(r.out, "Examples:"), *usage = strstr(r.out, "Usage:");
    ck_assert_msg(examples && usage && examples < usage, "%s: examples come first", verbs[i]);
    ck_assert_msg(strstr(r.out, "--json") != NULL, "%s: no --json", verbs[i]);
    for (char letter = 'a'; letter <= 'z'; letter++) { /* one letter, one meaning */
      const char row[] = {' ', ' ', '-', letter, ',', '\0'};
      ck_assert_msg(count_lines_with(r.out, row) <= 1, "%s: -%c has two meanings", verbs[i], letter);
    }
    command_free(&r);
    r = twinspeed("help %s", verbs[i]);
    ck_assert_int_eq(r.status, 0);
    command_free(&r);
  }
}
END_TEST

START_TEST(version_lists_features) {
  command_result r = twinspeed("--version");
  ck_assert_int_eq(r.status, 0);
  ck_assert_ptr_nonnull(strstr(r.out, "twinspeed 0."));
  ck_assert_ptr_nonnull(strstr(r.out, "GSL"));
  ck_assert_ptr_nonnull(strstr(r.out, "simulator"));
  ck_assert_ptr_nonnull(strstr(r.out, "engine"));
  command_free(&r);
}
END_TEST

START_TEST(wrong_usage) {
  static const struct {
    const char *line, *says;
  } cases[] = {
      {"estimat", "did you mean \"estimate\""},
      {"xyzzy", "--help"},
      {"estimate --modle gpt2", "did you mean --model"},
      {"estimate --stage", "needs a value"},
      {"estimate --stage 4 -m gpt2", "--stage"},
      {"estimate --stage x -m gpt2", "--stage"},
      {"estimate --json=1 -m gpt2", "takes no value"},
      {"estimate", "-m MODEL"},
      {"estimate gpt2", "unexpected argument"},
      {"estimate -m gpt2 --micro-batch 0", "--micro-batch"},
      {"estimate -m gpt2 --micro-batch -3", "--micro-batch"},
      {"estimate -m gpt2 --micro-batch 99999999999999999999", "--micro-batch"},
      {"estimate -m gpt2 --set stage", "KEY=VALUE"},
      {"estimate -m gpt2 --dtype int4", "fp32"},
      {"estimate --zero3 --compat deepspeed", "--total-params"},
      {"estimate --zero3 --zero2 --total-params 1", "exclude"},
      {"estimate -m gpt2 --compat megatron", "deepspeed"},
      {"check", "-c"},
      {"convert token a b", "did you mean \"tokens\""},
      {"completion tcsh", "bash"},
      {"launch", "COMMAND"},
      {"train --hlep", "did you mean --help"},
      {"check -m gpt2 --pp 0", "--pp: 0 is outside"},
      {"check -m gpt2 --pp two", "--pp"},
      {"check -m gpt2 --tp -4", "--tp"},
      {"check -m gpt2 --tp 65537", "--tp"},
      {"check -m gpt2 --sp 1.5", "--sp"},
      {"check -m gpt2 --sp", "needs a value"},
      {"check -m gpt2 --virtual-stages 0", "--virtual-stages"},
      {"check -m gpt2 --schedule gipe", "did you mean \"gpipe\""},
      {"check -m gpt2 --axis-order pipe,data", "--axis-order: "},
      {"check -m gpt2 --axis-order pipe,pipe,sequence,model", "in some order"},
      {"check -m gpt2 --sequence-regions=yes", "takes no value"},
      {"check -m gpt2 --sequence-region", "did you mean --sequence-regions"},
      {"check -m gpt2 --recompute ful", "did you mean \"full\""},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    command_result r = twinspeed("%s", cases[i].line);
    assert_one_error(&r, 2, cases[i].line);
    ck_assert_msg(strstr(r.err, cases[i].says) != NULL, "%s: no \"%s\" in: %s", cases[i].line, cases[i].says, r.err);
    command_free(&r);
  }
  command_result r = twinspeed(" ");
  ck_assert_int_eq(r.status, 2);
  ck_assert_str_eq(r.out, "");
  command_free(&r);
}
END_TEST

START_TEST(deepspeed_tables) {
  tws_json *golden;
  ck_assert_int_eq(tws_json_read(TWS_TEST_DIR "/golden/estimators.json", &golden, NULL), TWS_OK);
  int checked = 0;
  for (int stage = 2; stage <= 3; stage++) {
    const cJSON *list = cJSON_GetObjectItem(golden->root, stage == 3 ? "zero3_print" : "zero2_print"), *one;
    cJSON_ArrayForEach(one, list) {
      const cJSON *largest = cJSON_GetObjectItem(one, "largest_layer_params");
      const cJSON *python = cJSON_GetObjectItem(one, "python");
      if (python && strcmp(python->valuestring, "py<=3.10") != 0) continue; /* newer Pythons print the enum's class */
      char extra[96] = "";
      if (largest) snprintf(extra, sizeof extra, "--largest-layer-params %.0f", largest->valuedouble);
      command_result r = twinspeed(
          "estimate --zero%d --compat deepspeed --total-params %.0f %s --gpus-per-node %d --nodes %d", stage,
          cJSON_GetObjectItem(one, "total_params")->valuedouble, extra,
          cJSON_GetObjectItem(one, "num_gpus_per_node")->valueint, cJSON_GetObjectItem(one, "num_nodes")->valueint);
      ck_assert_int_eq(r.status, 0);
      ck_assert_str_eq(r.out, cJSON_GetObjectItem(one, "stdout")->valuestring);
      ck_assert_str_eq(r.err, "");
      command_free(&r);
      checked++;
    }
  }
  ck_assert_int_ge(checked, 4);
  tws_json_destroy(golden);
  command_result r = twinspeed(
      "estimate --zero3 --total-params 2851e6 --largest-layer-params 32e6 --gpus-per-node 8 --nodes 1 --compat "
      "deepspeed");
  ck_assert_ptr_nonnull(strstr(r.out, "\n   63.72GB |   0.78GB | offload_param=none, "));
  command_free(&r);
}
END_TEST

START_TEST(estimate_says_no) {
  command_result r =
      twinspeed("estimate -m llama-2-70b --cluster dgx-a100 --stage 0 --dtype bf16 --micro-batch 1 --json");
  ck_assert_msg(r.status == 1, "exit %d: %s", r.status, r.err);
  ck_assert_int_eq(count_lines_with(r.err, "twinspeed: does not fit"), 1);
  cJSON *json = assert_json(&r, "twinspeed-estimate-1");
  const cJSON *verdict = cJSON_GetObjectItem(json, "verdict");
  ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(verdict, "fits")));
  ck_assert_double_gt(cJSON_GetObjectItem(verdict, "device_need_bytes")->valuedouble,
                      16.0 * 68e9); /* states of 16 bytes a parameter cannot be less */
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* The remedy in the hint must be true: applying it makes the answer yes. */
START_TEST(estimate_remedy_works) {
  const char *job = "estimate -m gpt2-xl --cluster dgx1-v100 --micro-batch 4 --seq 1024";
  command_result r = twinspeed("%s --stage 0", job);
  ck_assert_msg(r.status == 1, "exit %d: %s%s", r.status, r.err, r.out);
  char words[128] = "";
  const char *hint = strstr(r.err, "it fits with ");
  ck_assert_ptr_nonnull(hint);
  sscanf(hint, "it fits with %127[^:]", words);
  command_result yes = twinspeed("%s --stage 0 %s", job, words);
  ck_assert_msg(yes.status == 0, "with \"%s\": %s", words, yes.err);
  command_free(&yes);
  command_free(&r);
}
END_TEST

START_TEST(categories_add_up) {
  command_result r = twinspeed("estimate -m gpt2 --cluster dgx-a100 --stage 2 --micro-batch 2 --dtype bf16 --json");
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-estimate-1");
  const cJSON *device = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "memory"), "device"), *one;
  double sum = cJSON_GetObjectItem(device, "gap_bytes")->valuedouble;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(device, "categories")) sum += one->valuedouble;
  ck_assert_double_eq(sum, cJSON_GetObjectItem(device, "arena_bytes")->valuedouble);
  ck_assert_double_eq(cJSON_GetObjectItem(json, "parameters")->valuedouble, 124439808);
  ck_assert_double_gt(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "time"), "step_s")->valuedouble, 0);
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* The file, then --set, then flags. */
START_TEST(precedence) {
  const char *config = file("ds.json");
  write_text(config, "{\"train_micro_batch_size_per_gpu\": 2, \"zero_optimization\": {\"stage\": 1}}");
  static const struct {
    const char *words;
    int stage;
  } cases[] = {{"", 1}, {"--set zero_optimization.stage=2", 2}, {"--stage 3 --set zero_optimization.stage=2", 3}};
  for (int i = 0; i < 3; i++) {
    command_result r = twinspeed("check -m gpt2 -c %s --cluster dgx-a100 %s --json", config, cases[i].words);
    ck_assert_msg(r.status == 0, "%s", r.err);
    cJSON *json = assert_json(&r, "twinspeed-check-1");
    ck_assert_int_eq(cJSON_GetObjectItem(json, "zero_stage")->valueint, cases[i].stage);
    ck_assert_int_eq(cJSON_GetObjectItem(json, "train_batch")->valueint, 16);
    cJSON_Delete(json);
    command_free(&r);
  }
}
END_TEST

static const cJSON *key_of(const cJSON *json, const char *section, const char *key) {
  const cJSON *config = cJSON_GetObjectItem(json, "config");
  return cJSON_GetObjectItem(section ? cJSON_GetObjectItem(config, section) : config, key);
}

/* Flags of parallelism become keys, and win over what the file says, in either of the two places for tensor ranks. */
START_TEST(flags_of_parallelism) {
  const char *config = file("ds.json");
  write_text(config,
             "{\"train_batch_size\": 8, \"pipeline\": {\"stages\": 3}, \"sequence_parallel_size\": 3,\n"
             " \"tensor_parallel\": {\"tp\": {\"tp_size\": 16}}, \"twinspeed\": {\"tensor_sequence_regions\": false}}");
  command_result r = twinspeed(
      "check -c %s --pp 2 --tp 4 --sp 8 --schedule interleaved --virtual-stages 5 --axis-order "
      "model,data,pipe,sequence "
      "--sequence-regions --json",
      config);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-check-1");
  ck_assert_int_eq(key_of(json, "pipeline", "stages")->valueint, 2);
  ck_assert_int_eq(key_of(json, "tensor_parallel", "autotp_size")->valueint, 4);
  ck_assert_ptr_null(key_of(json, "tensor_parallel", "tensor_parallel"));
  ck_assert_int_eq(key_of(json, NULL, "sequence_parallel_size")->valueint, 8);
  ck_assert_str_eq(key_of(json, "twinspeed", "pipeline_schedule")->valuestring, "interleaved");
  ck_assert_int_eq(key_of(json, "twinspeed", "virtual_stages")->valueint, 5);
  ck_assert_str_eq(key_of(json, "twinspeed", "axis_order")->valuestring, "model,data,pipe,sequence");
  ck_assert(cJSON_IsTrue(key_of(json, "twinspeed", "tensor_sequence_regions")));
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(json, "no_effect")), 0);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("check --sequence-regions -c %s --tp 1 --set twinspeed.axis_order=data,pipe,model,sequence --json",
                config);
  json = assert_json(&r, "twinspeed-check-1");
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(json, "no_effect")), 1);
  ck_assert_str_eq(key_of(json, "twinspeed", "axis_order")->valuestring, "data,pipe,model,sequence");
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* Where the axes lie, in both forms of the result. */
START_TEST(axes_are_shown) {
  static const char *const orders[] = {"pipe,data,sequence,model", "data,pipe,sequence,model"};
  static const char *const shown[] = {"(pipe 2 x data 4)", "(data 4 x pipe 2)"};
  for (int i = 0; i < 2; i++) {
    command_result r =
        twinspeed("check -m gpt2 --cluster dgx-a100 --pp 2 --schedule gpipe --axis-order %s --json", orders[i]);
    ck_assert_msg(r.status == 0, "%s", r.err);
    cJSON *json = assert_json(&r, "twinspeed-check-1");
    const cJSON *axes = cJSON_GetObjectItem(json, "axes");
    ck_assert_int_eq(cJSON_GetObjectItem(axes, "pipe")->valueint, 2);
    ck_assert_int_eq(cJSON_GetObjectItem(axes, "data")->valueint, 4);
    ck_assert_int_eq(cJSON_GetObjectItem(axes, "sequence")->valueint, 1);
    ck_assert_int_eq(cJSON_GetObjectItem(axes, "model")->valueint, 1);
    ck_assert_str_eq(cJSON_GetObjectItem(json, "pipeline_schedule")->valuestring, "gpipe");
    ck_assert_str_eq(cJSON_GetObjectItem(json, "axis_order")->valuestring, orders[i]);
    ck_assert_int_eq(cJSON_GetObjectItem(json, "train_batch")->valueint, 4);
    cJSON_Delete(json);
    command_free(&r);
    r = twinspeed("estimate -m gpt2 --cluster dgx-a100 --pp 2 --schedule gpipe --axis-order %s", orders[i]);
    ck_assert_msg(r.status == 0, "%s", r.err);
    ck_assert_msg(strstr(r.out, "pipeline of 2 stages (gpipe)") && strstr(r.out, shown[i]), "%s", r.out);
    command_free(&r);
  }
}
END_TEST

/* The ranks that train starts are told the same as the one that starts them. */
START_TEST(ranks_are_told_their_axes) {
  static const char model[] =
      "{\"model_type\": \"gpt2\", \"vocab_size\": 257, \"n_positions\": 32, \"n_embd\": 16, \"n_layer\": 2, "
      "\"n_head\": 2}";
  static const struct {
    const char *words, *axis;
  } cases[] = {{"--pp 2 --schedule gpipe --axis-order data,pipe,model,sequence", "pipe"},
               {"--tp 2 --sequence-regions", "model"},
               {"--sp 2 --axis-order sequence,model,pipe,data", "sequence"}};
  char text[400];
  for (int i = 0; i < 399; i++) text[i] = (char)('a' + i % 26);
  text[399] = '\0';
  write_text(file("model.json"), model);
  write_text(file("text"), text);
  double losses[3];
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* in the ranks: MPI keeps memory */
  for (int i = 0; i < 3; i++) { /* two ranks are one replica, so the batch and the loss are those of one rank */
    command_result r =
        twinspeed("train -m %s -n 2 %s --accumulation 3 --seq 16 --threads 1 --steps 1 --data %s --json -q",
                  file("model.json"), cases[i].words, file("text"));
    ck_assert_msg(r.status == 0, "%s: %s", cases[i].words, r.err);
    cJSON *json = assert_json(&r, "twinspeed-train-1");
    const cJSON *configuration = cJSON_GetObjectItem(json, "configuration");
    ck_assert_int_eq(cJSON_GetObjectItem(configuration, "train_batch")->valueint, 3);
    ck_assert_int_eq(cJSON_GetObjectItem(cJSON_GetObjectItem(configuration, "axes"), cases[i].axis)->valueint, 2);
    losses[i] = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "losses"), 0)->valuedouble;
    ck_assert_double_eq_tol(losses[i], losses[0], 1e-5 * losses[0]);
    cJSON_Delete(json);
    command_free(&r);
  }
  unsetenv("ASAN_OPTIONS");
}
END_TEST

/* Tensor ranks divide the vocabulary; who asks for narration hears of it. */
START_TEST(vocabulary_is_padded_for_tensor_ranks) {
  write_text(file("model.json"),
             "{\"model_type\": \"gpt2\", \"vocab_size\": 257, \"n_positions\": 64, \"n_embd\": 32, \"n_layer\": 2, "
             "\"n_head\": 8}");
  static const struct {
    const char *words, *vocabulary;
    int remark;
  } cases[] = {{"--tp 1", "vocabulary 257,", 0},
               {"--tp 2", "vocabulary 258 ", 1},
               {"--tp 8 --vocab-multiple 12", "vocabulary 264 ", 0}, /* 24 divides it, as 12 does */
               {"--tp 8 --vocab-multiple 5", "vocabulary 280 ", 1}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    command_result r = twinspeed("estimate -m %s --cluster dgx-a100 %s -v", file("model.json"), cases[i].words);
    ck_assert_msg(r.status == 0, "%s: %s", cases[i].words, r.err);
    ck_assert_msg(strstr(r.out, cases[i].vocabulary) != NULL, "%s: %s", cases[i].words, r.out);
    ck_assert_int_eq(count_lines_with(r.err, "the vocabulary of 257 is padded to "), cases[i].remark);
    command_free(&r);
  }
}
END_TEST

START_TEST(check_covers_what_it_says) {
  command_result r = twinspeed("check -m gpt2 --cluster dgx-a100:4 --stage 3 --max-ranks 4 --json");
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-check-1");
  const cJSON *plan = cJSON_GetObjectItem(json, "plan");
  ck_assert_int_eq(cJSON_GetObjectItem(plan, "ranks")->valueint, 32);
  ck_assert_int_eq(cJSON_GetObjectItem(plan, "ranks_verified")->valueint, 4);
  ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(plan, "verified_together")));
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* The effective configuration is itself a configuration, and printing it again changes nothing. */
START_TEST(effective_configuration_is_stable) {
  const char *config = file("ds.json"), *again = file("again.json");
  write_text(config,
             "{\"train_batch_size\": 64, /* comment */ \"gradient_clipping\": 1.0,\n"
             " \"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": 5e7},}");
  command_result first = twinspeed("check -c %s", config);
  ck_assert_msg(first.status == 0, "%s", first.err);
  const char *start = strchr(first.out, '{');
  ck_assert_ptr_nonnull(start);
  write_text(again, start);
  command_result second = twinspeed("check -c %s", again);
  ck_assert_msg(second.status == 0, "%s", second.err);
  ck_assert_str_eq(first.out, second.out);
  command_free(&first);
  command_free(&second);
  command_result schema = twinspeed("check --print-schema");
  cJSON *json = cJSON_Parse(schema.out);
  ck_assert(schema.status == 0 && json != NULL);
  ck_assert_ptr_nonnull(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "properties"), "zero_optimization"));
  cJSON_Delete(json);
  command_free(&schema);
}
END_TEST

/* ---- bad input: one clear error, exit 3, never a crash ---- */
static const char good_model[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 64, \"n_embd\": 32, \"n_layer\": 2, \"n_head\": "
    "4}";

static void assert_bad(const char *option, const char *path, const char *what) {
  int model = strcmp(option, "-m") == 0;
  command_result r = twinspeed("check %s %s %s", model ? "" : "-m gpt2", option, path);
  assert_one_error(&r, 3, what);
  ck_assert_msg(strstr(r.err, strrchr(path, '/') + 1) != NULL, "%s: does not name the file: %s", what, r.err);
  command_free(&r);
}

static const char *const options_with_files[] = {"-c", "-m", "--cluster", "--profile"};

START_TEST(bad_files) {
  static const struct {
    const char *name, *text;
  } cases[] = {{"empty", ""},
               {"blank", " \n\t"},
               {"word", "hello"},
               {"array", "[1, 2]"},
               {"number", "17"},
               {"cut", "{\"train_batch_size\": 8, "},
               {"colon", "{\"a\" 1}"},
               {"comma", "{\"a\": 1 \"b\": 2}"},
               {"trailing", "{} {}"},
               {"string", "{\"a\": \"\x01\"}"},
               {"escape", "{\"a\": \"\\q\"}"},
               {"surrogate", "{\"a\": \"\\ud800\"}"},
               {"latin1", "{\"a\": \"\xe9t\xe9\"}"},
               {"overlong", "{\"a\": \"\xc0\xaf\"}"},
               {"overflow", "{\"train_batch_size\": 1e999}"},
               {"unknown", "{\"certainly_not_a_key\": 1}"},
               {"duplicate", "{\"train_batch_size\": 8, \"train_batch_size\": 8}"},
               {"nan", "{\"train_batch_size\": NaN}"},
               {"comment", "{ /* never closed"}};
  for (size_t k = 0; k < 4; k++)
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
      char what[64];
      const char *path = file("input.json");
      snprintf(what, sizeof what, "%s %s", options_with_files[k], cases[i].name);
      write_text(path, cases[i].text);
      assert_bad(options_with_files[k], path, what);
    }
}
END_TEST

START_TEST(bad_sizes) {
  enum { DEPTH = 100000 };
  char *deep = malloc(DEPTH + 1);
  memset(deep, '[', DEPTH);
  deep[DEPTH] = '\0';
  static const char zeros[] = "{\"train_batch_size\": 8}\0{}";
  for (size_t k = 0; k < 4; k++) {
    const char *path = file("input.json");
    write_text(path, deep);
    assert_bad(options_with_files[k], path, "nested");
    write_bytes(path, zeros, sizeof zeros);
    assert_bad(options_with_files[k], path, "NUL byte");
    write_text(path, "{");
    ck_assert_int_eq(truncate(path, 70 << 20), 0); /* sparse: 70 MiB of NUL */
    assert_bad(options_with_files[k], path, "huge");
  }
  free(deep);
}
END_TEST

START_TEST(bad_configurations) {
  static const struct {
    const char *text, *says;
  } cases[] = {
      {"{\"train_batch_size\": -8}", "train_batch_size"},
      {"{\"train_batch_size\": 0}", "train_batch_size"},
      {"{\"train_batch_size\": \"eight\"}", "train_batch_size"},
      {"{\"train_batch_size\": 8.5}", "train_batch_size"},
      {"{\"train_batch_size\": 1e30}", "train_batch_size"},
      {"{\"train_batch_size\": [8]}", "train_batch_size"},
      {"{\n  \"zero_optimisation\": {\"stage\": 1}\n}", "2:3"},
      {"{\n  \"zero_optimisation\": {\"stage\": 1}\n}", "did you mean"},
      {"{\"zero_optimization\": {\"stage\": 4}}", "stage"},
      {"{\"zero_optimization\": {\"stge\": 1}}", "did you mean"},
      {"{\"zero_optimization\": 3}", "zero_optimization"},
      {"{\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}", "bf16"},
      {"{\"fp16\": {\"enabled\": \"yes\"}}", "enabled"},
      {"{\"train_batch_size\": 7, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2}",
       "train_batch_size"},
      {"{\"gradient_clipping\": -1}", "gradient_clipping"},
      {"{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Nonesuch\"}}", "Nonesuch"},
      {"{\"train_batch_size\": 8, \"tensor_parallel\": {\"autotp_size\": \"four\"}}", "autotp_size"},
      {"{\"train_batch_size\": 8, \"tensor_parallel\": {\"autotp_size\": 3}}", "autotp_size 3 does not divide 8 ranks"},
      {"{\"train_batch_size\": 8, \"tensor_parallel\": {\"autotp_size\": 3}}",
       "6 or 9 ranks, or tensor_parallel.autotp_size 2 or 4"},
      {"{\"train_batch_size\": 8, \"tensor_parallel\": {\"autotp_size\": 2, \"tp\": {\"tp_size\": 4}}}",
       "keep one of them"},
      {"{\"train_batch_size\": 8, \"tensor_parallel\": {\"tp_overlap_comm\": 2}}", "tp_overlap_comm"},
      {"{\"train_batch_size\": 8, \"sequence_parallel_size\": 2.5}", "sequence_parallel_size"},
      {"{\"train_batch_size\": 8, \"pipeline\": {\"stages\": 4}, \"sequence_parallel_size\": 4}",
       "pipeline.stages 4 x sequence_parallel_size 4 = 16 do not divide 8 ranks"},
      {"{\"train_batch_size\": 3, \"pipeline\": {\"stages\": 2}, \"tensor_parallel\": {\"autotp_size\": 2}}",
       "train_batch_size 3 is not micro batch"},
      {"{\"train_batch_size\": 8, \"sequence_parallel_size\": 4, \"twinspeed\": {\"sequence_length\": 63}}",
       "60 or 64 tokens"},
      {"{\"train_batch_size\": 8, \"twinspeed\": {\"attention_chunks\": 2}}", "offload"},
      {"{\"train_batch_size\": 8, \"twinspeed\": {\"loss_tiles\": 0}}", "loss_tiles"},
      {"{\"train_batch_size\": 8, \"twinspeed\": {\"mlp_tiles\": \"2\"}}", "mlp_tiles"},
      {"{\"train_batch_size\": 8, \"twinspeed\": {\"axis_order\": \"model,data\"}}", "axis_order"},
      {"{\"train_batch_size\": 8, \"twinspeed\": {\"tensor_overlap_chunks\": 0}}", "tensor_overlap_chunks"},
      {"{\"train_batch_size\": 8, \"twinspeed\": {\"tensor_sequence_regions\": 1}}", "tensor_sequence_regions"},
      {"{\"train_batch_size\": 8, \"twinspeed\": {\"ignored_token\": 50257}}", "vocabulary of 50257"},
      {"{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": \"fast\"}}}", "lr"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const char *path = file("ds.json");
    write_text(path, cases[i].text);
    command_result r = twinspeed("check -m gpt2 --cluster dgx-a100 -c %s", path);
    assert_one_error(&r, 3, cases[i].text);
    ck_assert_msg(strstr(r.err, cases[i].says) != NULL, "%s: no \"%s\" in %s", cases[i].text, cases[i].says, r.err);
    command_free(&r);
  }
}
END_TEST

START_TEST(bad_models) {
  static const struct {
    const char *from, *to, *says;
  } cases[] = {{"gpt2", "resnet", "gpt2"},
               {"\"n_embd\": 32", "\"n_embd\": 33", "hidden size 33"},
               {"\"n_embd\": 32", "\"n_embd\": -32", "n_embd"},
               {"\"n_embd\": 32", "\"n_embd\": 1e15", "n_embd"},
               {"\"n_embd\": 32", "\"n_embd\": \"wide\"", "n_embd"},
               {"\"n_layer\": 2", "\"n_layer\": 0", "n_layer"},
               {"\"n_layer\": 2", "\"n_layer\": 2000000000", "n_layer"},
               {"\"n_head\": 4", "\"n_head\": null", "n_head"},
               {"\"vocab_size\": 256", "\"vocab_size\": 2.5", "vocab_size"}};
  const char *path = file("config.json");
  write_text(path, good_model);
  command_result good = twinspeed("check -m %s", path);
  ck_assert_msg(good.status == 0, "%s", good.err);
  command_free(&good);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[512];
    const char *at = strstr(good_model, cases[i].from);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good_model), good_model, cases[i].to,
             at + strlen(cases[i].from));
    write_text(path, text);
    command_result r = twinspeed("check -m %s", path);
    assert_one_error(&r, 3, text);
    ck_assert_msg(strstr(r.err, cases[i].says) != NULL, "%s: no \"%s\" in %s", text, cases[i].says, r.err);
    command_free(&r);
  }
  static const char *const names[] = {"gpt5", "llama-3-9b", "''"};
  for (size_t i = 0; i < 3; i++) {
    command_result r = twinspeed("check -m %s", names[i]);
    ck_assert_msg(r.status == 3 || r.status == 4, "%s: exit %d", names[i], r.status);
    assert_one_error(&r, r.status, names[i]);
    command_free(&r);
  }
}
END_TEST

START_TEST(bad_clusters) {
  static const char *const names[] = {"dgx-z100", "dgx-a100:0", "dgx-a100:-1", "dgx-a100:x", "dgx-a100:999999999999",
                                      "dgx-a100:"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    command_result r = twinspeed("estimate -m gpt2 --cluster %s", names[i]);
    assert_one_error(&r, 3, names[i]);
    command_free(&r);
  }
  command_result r = twinspeed("estimate -m gpt2 --cluster dgx-a100 -n 9");
  assert_one_error(&r, 3, "more ranks than devices");
  command_free(&r);
  r = twinspeed("estimate -m gpt2 --cluster dgx-a100 --profile no-such-profile");
  assert_one_error(&r, 3, "unknown profile");
  command_free(&r);
}
END_TEST

/* Text from files and arguments must not drive the terminal. */
START_TEST(no_escapes_from_input) {
  write_text(file("ds.json"), "{\"\\u001b[31mred\\u0007\": 1}");
  command_result r = twinspeed("check -c %s", file("ds.json"));
  assert_one_error(&r, 3, "escape in a key");
  for (const char *c = r.err; *c; c++) ck_assert_msg(!iscntrl((unsigned char)*c) || *c == '\n', "control %d", *c);
  command_free(&r);
}
END_TEST

START_TEST(output_to_full_disk) {
  char *argv[] = {(char *)"/bin/sh", (char *)"-c", (char *)TWS_BUILD_DIR "/twinspeed check --print-schema > /dev/full",
                  NULL};
  command_result r = command_execute(argv);
  ck_assert_int_eq(r.status, 4);
  ck_assert_int_eq(count_lines_with(r.err, "twinspeed: "), 1);
  command_free(&r);
}
END_TEST

START_TEST(profile_adds_up) {
  command_result r = twinspeed("profile -m gpt2 --cluster dgx-a100 --micro-batch 1 --seq 1024 --json");
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-profile-report-1");
  const cJSON *modules = cJSON_GetObjectItem(json, "modules"), *one;
  const cJSON *root = cJSON_GetArrayItem(modules, 0);
  ck_assert_double_eq(cJSON_GetObjectItem(root, "parameters")->valuedouble, 124439808);
  double params = 0, seconds = 0;
  int block = 0;
  cJSON_ArrayForEach(one, modules) {
    if (cJSON_GetObjectItem(one, "depth")->valueint == 1) {
      params += cJSON_GetObjectItem(one, "parameters")->valuedouble;
      seconds += cJSON_GetObjectItem(one, "forward_s")->valuedouble;
    }
    if (strcmp(cJSON_GetObjectItem(one, "type")->valuestring, "GPT2Block") == 0) {
      ck_assert_double_eq(cJSON_GetObjectItem(one, "parameters")->valuedouble, 7087872); /* 12 h^2 + 13 h */
      block++;
    }
    if (strcmp(cJSON_GetObjectItem(one, "name")->valuestring, "transformer.h.0.mlp.c_fc") == 0)
      ck_assert_double_eq(cJSON_GetObjectItem(one, "macs")->valuedouble, 1024.0 * 768 * 3072);
  }
  ck_assert_int_eq(block, 12);
  ck_assert_double_eq(params, 124439808);
  ck_assert_double_eq_tol(seconds, cJSON_GetObjectItem(root, "forward_s")->valuedouble, 1e-9);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("profile -m llama-3-8b --cluster dgx-h100 --seq 128 --depth 3");
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_ptr_nonnull(strstr(r.out, "LlamaDecoderLayer"));
  ck_assert_ptr_nonnull(strstr(r.out, "params of model = params per GPU * mp_size: "));
  command_free(&r);
}
END_TEST

START_TEST(conversions) {
  write_text(file("text"), "In the beginning\n\xc3\xa9");
  command_result r = twinspeed("convert tokens %s %s --json", file("text"), file("out.bin"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON_Delete(assert_json(&r, "twinspeed-tokens-1"));
  command_free(&r);
  char *bytes;
  size_t length;
  ck_assert_int_eq(tws_read_file(file("out.bin"), 0, &bytes, &length, NULL), TWS_OK);
  ck_assert_uint_eq(length, 1024 + 2 * 19);
  int header[3];
  memcpy(header, bytes, sizeof header);
  ck_assert(header[0] == 20240520 && header[1] == 1 && header[2] == 19);
  unsigned short last;
  memcpy(&last, bytes + length - 2, 2);
  ck_assert_uint_eq(last, 0xa9);
  tws_free(bytes);
  r = twinspeed("convert tokens %s %s", file("text"), file("out.bin"));
  assert_one_error(&r, 2, "overwriting");
  command_free(&r);
  write_text(file("loose.json"), "{ // comment\n \"a\": [1, 2,], # other\n}");
  r = twinspeed("convert config %s", file("loose.json"));
  ck_assert_int_eq(r.status, 0);
  cJSON *strict = cJSON_Parse(r.out);
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(strict, "a")), 2);
  cJSON_Delete(strict);
  command_free(&r);
  r = twinspeed("convert model llama-3-8b --json");
  cJSON *model = assert_json(&r, "twinspeed-model-1");
  ck_assert_double_eq(cJSON_GetObjectItem(model, "parameters")->valuedouble, 8030261248.0);
  cJSON_Delete(model);
  command_free(&r);
}
END_TEST

/* ---- hostfiles: DeepSpeed's cases; a bare included host means all of its slots, as its documentation says ---- */
static void assert_hosts(const command_result *r, const cJSON *expected) {
  cJSON *json = assert_json(r, "twinspeed-ranks-1");
  const cJSON *one = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "ranks"), 0), *host, *slot;
  cJSON_ArrayForEach(host, expected) {
    const char *name = cJSON_GetArrayItem(host, 0)->valuestring;
    const cJSON *slots = cJSON_GetArrayItem(host, 1);
    int count = cJSON_IsNumber(slots) ? slots->valueint : cJSON_GetArraySize(slots);
    slot = slots->child;
    for (int i = 0; i < count; i++, one = one->next) {
      ck_assert_ptr_nonnull(one);
      ck_assert_str_eq(cJSON_GetObjectItem(one, "host")->valuestring, name);
      ck_assert_int_eq(cJSON_GetObjectItem(one, "device")->valueint, slot ? slot->valueint : i);
      if (slot) slot = slot->next;
    }
  }
  ck_assert_ptr_null(one);
  cJSON_Delete(json);
}

START_TEST(hostfiles) {
  tws_json *golden;
  ck_assert_int_eq(tws_json_read(TWS_TEST_DIR "/golden/launcher.json", &golden, NULL), TWS_OK);
  const cJSON *one;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(golden->root, "hostfile")) {
    const char *text = cJSON_GetObjectItem(one, "text")->valuestring;
    write_text(file("hosts"), text);
    command_result r = twinspeed("launch --hostfile %s --dry-run --json", file("hosts"));
    if (cJSON_GetObjectItem(one, "error")) {
      assert_one_error(&r, 3, text);
    } else {
      ck_assert_msg(r.status == 0, "%s: %s", text, r.err);
      assert_hosts(&r, cJSON_GetObjectItem(one, "result"));
    }
    command_free(&r);
  }
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(golden->root, "filter")) {
    const char *include = cJSON_GetObjectItem(one, "include")->valuestring;
    const char *exclude = cJSON_GetObjectItem(one, "exclude")->valuestring;
    char text[512] = "", what[256];
    const cJSON *host;
    cJSON_ArrayForEach(host, cJSON_GetObjectItem(one, "pool")) {
      size_t used = strlen(text);
      snprintf(text + used, sizeof text - used, "%s slots=%d\n", cJSON_GetArrayItem(host, 0)->valuestring,
               cJSON_GetArrayItem(host, 1)->valueint);
    }
    write_text(file("hosts"), text);
    snprintf(what, sizeof what, "include '%s' exclude '%s'", include, exclude);
    command_result r = twinspeed("launch --hostfile %s --dry-run --json '--include=%s' '--exclude=%s'", file("hosts"),
                                 include, exclude);
    cJSON *documented = NULL; /* where the reference program departs from its documentation */
    if (strcmp(include, "worker-0") == 0) documented = cJSON_Parse("[[\"worker-0\", [0,1,2,3]]]");
    if (strstr(include, "worker-1:0,2") && strstr(include, "worker-0"))
      documented = cJSON_Parse("[[\"worker-0\", [0,1,2,3]], [\"worker-1\", [0,2]]]");
    if (cJSON_GetObjectItem(one, "error")) {
      assert_one_error(&r, 3, what);
    } else {
      ck_assert_msg(r.status == 0, "%s: %s", what, r.err);
      assert_hosts(&r, documented ? documented : cJSON_GetObjectItem(one, "result"));
    }
    cJSON_Delete(documented);
    command_free(&r);
  }
  tws_json_destroy(golden);
  write_text(file("hosts"), "elsewhere.invalid slots=2\n");
  command_result r = twinspeed("launch -q --hostfile %s -- true", file("hosts"));
  assert_one_error(&r, 3, "another machine");
  command_free(&r);
}
END_TEST

START_TEST(launching) {
  command_result r = twinspeed("launch -q -n 2 -- sh -c 'echo rank; exit 0'");
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_int_eq(count_lines_with(r.out, "rank"), 2);
  command_free(&r);
  r = twinspeed("launch -q -n 2 -- sh -c 'exit 3'");
  assert_one_error(&r, 5, "a failing command");
  command_free(&r);
  r = twinspeed("launch -q -n 2 -- /no/such/program");
  assert_one_error(&r, 4, "a missing program");
  command_free(&r);
}
END_TEST

/* Ctrl-C ends the ranks: status 130, and the command's processes are gone. */
START_TEST(interrupting) {
  char pids[512], line[64];
  snprintf(pids, sizeof pids, "echo $$ >> %s; exec sleep 1000", file("pids"));
  char *argv[] = {(char *)TWS_BUILD_DIR "/twinspeed",
                  (char *)"launch",
                  (char *)"-q",
                  (char *)"-n",
                  (char *)"2",
                  (char *)"--",
                  (char *)"sh",
                  (char *)"-c",
                  pids,
                  NULL};
  pid_t child = fork();
  if (child == 0) {
    int null = open("/dev/null", O_RDWR);
    dup2(null, 1);
    dup2(null, 2);
    execv(argv[0], argv);
    _exit(126);
  }
  int lines = 0, status = 0;
  for (int tries = 0; tries < 600 && lines < 2; tries++) { /* until both ranks are there */
    usleep(50000);
    FILE *list = fopen(file("pids"), "r");
    for (lines = 0; list && fgets(line, sizeof line, list);) lines++;
    if (list) fclose(list);
  }
  ck_assert_int_eq(lines, 2);
  kill(child, SIGINT);
  waitpid(child, &status, 0);
  ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 130);
  FILE *list = fopen(file("pids"), "r");
  while (fgets(line, sizeof line, list)) {
    int alive = 1;
    for (int tries = 0; tries < 100 && alive; tries++) { /* a killed process is there until it is reaped */
      alive = kill((pid_t)atoi(line), 0) == 0;
      if (alive) usleep(50000);
    }
    ck_assert_msg(!alive, "process %s is still there", line);
  }
  fclose(list);
}
END_TEST

START_TEST(reports) {
  static const char job[] =
      "\"model\": \"demo/config.json\", \"zero_stage\": 1, \"micro_batch\": 2, \"threads\": 1,"
      "\"accumulation_steps\": 4, \"recompute\": \"none\", \"train_batch\": 16, \"sequence_length\": 128";
  char text[1024];
  snprintf(
      text, sizeof text,
      "{\"schema\": \"twinspeed-train-1\", \"configuration\": {%s}, \"ranks\": 2, \"steps\": 4, \"median_step_s\": 0.5,"
      " \"losses\": [5, 4, 3, 2], \"step_s\": [0.5, 0.4, 0.5, 0.6],"
      " \"memory\": [{\"rank\": 0, \"device\": {\"predicted_bytes\": 1024, \"allocated_bytes\": 1024}}]}",
      job);
  write_text(file("train.json"), text);
  snprintf(text, sizeof text, "{\"schema\": \"twinspeed-simulation-1\", %s, \"ranks\": 2, \"step_s\": 0.45}", job);
  write_text(file("simulation.json"), text);
  command_result r = twinspeed("report %s %s --json", file("simulation.json"), file("train.json"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-report-1");
  const cJSON *list = cJSON_GetObjectItem(json, "configurations");
  ck_assert_int_eq(cJSON_GetArraySize(list), 1);
  ck_assert_double_eq_tol(cJSON_GetObjectItem(cJSON_GetArrayItem(list, 0), "step_error")->valuedouble, -0.1, 1e-12);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("report %s %s --tolerance 9", file("simulation.json"), file("train.json"));
  ck_assert_msg(r.status == 1, "%s", r.err);
  command_free(&r);
  r = twinspeed("report %s %s --tolerance 11", file("simulation.json"), file("train.json"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_ptr_nonnull(strstr(r.out, "-10.0 %"));
  ck_assert_ptr_nonnull(strstr(r.out, "5.0000 -> 2.0000"));
  command_free(&r);
  write_text(file("other.json"), "{\"schema\": \"other-1\"}");
  r = twinspeed("report %s", file("other.json"));
  assert_one_error(&r, 3, "a foreign file");
  command_free(&r);
}
END_TEST

START_TEST(doctor_examines) {
  command_result r = twinspeed("doctor --json");
  ck_assert_msg(r.status == 0 || r.status == 4, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-doctor-1");
  const cJSON *one;
  int self_test = 0;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(json, "findings")) {
    if (strcmp(cJSON_GetObjectItem(one, "what")->valuestring, "self test") == 0)
      self_test = strcmp(cJSON_GetObjectItem(one, "state")->valuestring, "ok") == 0;
    if (strcmp(cJSON_GetObjectItem(one, "state")->valuestring, "missing") == 0)
      ck_assert_ptr_nonnull(cJSON_GetObjectItem(one, "remedy"));
  }
  ck_assert(self_test);
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

START_TEST(shell_texts) {
  char *argv[] = {(char *)"/bin/bash", (char *)"-c",
                  (char *)"set -e; source <(" TWS_BUILD_DIR
                          "/twinspeed completion bash); COMP_WORDS=(twinspeed estimate "
                          "--largest); COMP_CWORD=2; _twinspeed; echo \"${COMPREPLY[@]}\"",
                  NULL};
  command_result r = command_execute(argv);
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_str_eq(r.out, "--largest-layer-params\n");
  command_free(&r);
  r = twinspeed("manual");
  ck_assert_int_eq(r.status, 0);
  for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
    char section[64];
    snprintf(section, sizeof section, ".SS twinspeed %s ", verbs[i]);
    ck_assert_msg(strstr(r.out, section) != NULL, "the manual has no %s", verbs[i]);
  }
  command_free(&r);
  static const char *const shells[] = {"zsh", "fish"};
  for (int i = 0; i < 2; i++) {
    r = twinspeed("completion %s", shells[i]);
    ck_assert(r.status == 0 && strstr(r.out, "largest-layer-params") != NULL);
    command_free(&r);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cli");
  TCase *usage = tcase_create("usage");
  tcase_set_timeout(usage, 120);
  tcase_add_checked_fixture(usage, make_folder, remove_folder);
  tcase_add_test(usage, help_of_every_verb);
  tcase_add_test(usage, version_lists_features);
  tcase_add_test(usage, wrong_usage);
  tcase_add_test(usage, no_escapes_from_input);
  tcase_add_test(usage, output_to_full_disk);
  tcase_add_test(usage, shell_texts);
  suite_add_tcase(suite, usage);
  TCase *answers = tcase_create("answers");
  tcase_set_timeout(answers, 120);
  tcase_add_checked_fixture(answers, make_folder, remove_folder);
  tcase_add_test(answers, deepspeed_tables);
  tcase_add_test(answers, estimate_says_no);
  tcase_add_test(answers, estimate_remedy_works);
  tcase_add_test(answers, categories_add_up);
  tcase_add_test(answers, precedence);
  tcase_add_test(answers, flags_of_parallelism);
  tcase_add_test(answers, axes_are_shown);
  tcase_add_test(answers, ranks_are_told_their_axes);
  tcase_add_test(answers, vocabulary_is_padded_for_tensor_ranks);
  tcase_add_test(answers, check_covers_what_it_says);
  tcase_add_test(answers, effective_configuration_is_stable);
  tcase_add_test(answers, profile_adds_up);
  tcase_add_test(answers, conversions);
  tcase_add_test(answers, hostfiles);
  tcase_add_test(answers, doctor_examines);
  tcase_add_test(answers, launching);
  tcase_add_test(answers, interrupting);
  tcase_add_test(answers, reports);
  suite_add_tcase(suite, answers);
  TCase *bad = tcase_create("bad input");
  tcase_set_timeout(bad, 120);
  tcase_add_checked_fixture(bad, make_folder, remove_folder);
  tcase_add_test(bad, bad_files);
  tcase_add_test(bad, bad_sizes);
  tcase_add_test(bad, bad_configurations);
  tcase_add_test(bad, bad_models);
  tcase_add_test(bad, bad_clusters);
  suite_add_tcase(suite, bad);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
