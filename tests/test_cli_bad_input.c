/* Bad input: one clear error, exit code 3, never a crash. */
#include <check.h>
#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/suite.h"

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
      const char *path = in_folder("input.json");
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
    const char *path = in_folder("input.json");
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
      {"{\"fp16\": {\"enabled\": \"maybe\"}}", "enabled"},
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
       "use a train_batch_size of 2 or 4"},
      {"{\"train_batch_size\": 8, \"sequence_parallel_size\": 4, \"twinspeed\": {\"sequence_length\": 63}}",
       "60 or 64 tokens"},
      {"{\"train_batch_size\": 8, \"twinspeed\": {\"attention_chunks\": 3}}", "use a sequence of 1026 tokens"},
      {"{\"train_batch_size\": 8, \"twinspeed\": {\"loss_tiles\": 0}}", "loss_tiles"},
      {"{\"train_batch_size\": 8, \"twinspeed\": {\"mlp_tiles\": \"2\"}}", "mlp_tiles"},
      {"{\"train_batch_size\": 8, \"twinspeed\": {\"axis_order\": \"model,data\"}}", "axis_order"},
      {"{\"train_batch_size\": 8, \"twinspeed\": {\"tensor_overlap_chunks\": 0}}", "tensor_overlap_chunks"},
      {"{\"train_batch_size\": 8, \"twinspeed\": {\"tensor_sequence_parallel\": 1}}", "tensor_sequence_parallel"},
      {"{\"train_batch_size\": 8, \"twinspeed\": {\"ignored_token\": 50257}}", "vocabulary of 50257"},
      {"{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": \"fast\"}}}", "lr"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const char *path = in_folder("ds.json");
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
  } cases[] = {{"gpt2", "resnet", "convert list architectures"},
               {"\"n_embd\": 32", "\"n_embd\": 33", "hidden size 33"},
               {"\"n_embd\": 32", "\"n_embd\": -32", "n_embd"},
               {"\"n_embd\": 32", "\"n_embd\": 1e15", "n_embd"},
               {"\"n_embd\": 32", "\"n_embd\": \"wide\"", "n_embd"},
               {"\"n_layer\": 2", "\"n_layer\": 0", "n_layer"},
               {"\"n_layer\": 2", "\"n_layer\": 2000000000", "n_layer"},
               {"\"n_head\": 4", "\"n_head\": null", "n_head"},
               {"\"vocab_size\": 256", "\"vocab_size\": 2.5", "vocab_size"}};
  const char *path = in_folder("config.json");
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

/* Names that are empty, or that lead to a file where a folder is wanted, to a file that cannot be opened, to a list
 * without entries: the error says which, and what to do. */
START_TEST(bad_names) {
  static const struct {
    const char *line;
    int status;
    const char *says, *hint;
  } cases[] = {
      {"estimate -m gpt2 -c ''", 2, "--config: the name is empty", "--config FILE; is a variable of the shell empty?"},
      {"train -m gpt2 --data ''", 2, "--data: the name is empty", "--data FILE"},
      {"train -m gpt2 --data text --save ''", 2, "--save: the name is empty", "--save DIR"},
      {"validate --cases ''", 2, "--cases: the name is empty", "--cases FILE"},
      {"report ''", 4, "cannot open a file: its name is empty", "is a variable of the shell empty?"},
      {"inspect text", 4, "text: cannot open: Not a directory", "name the folder that --save was given"},
      {"generate -m gpt2 --resume text --prompt a", 4, "text: cannot open: Not a directory", "--save"},
      {"estimate -m loop", 4, "config.json: Too many levels of symbolic links", ""},
      {"estimate -m gpt2 --cluster text", 3, "./text:1:1", ""},
      {"validate --cases list.json", 3, "the list of measured runs is empty", "docs/accuracy.md"},
      {"generate -m gpt2 --init-from short --prompt a", 3, "too short for a header", "safetensors"},
      {"estimate -m gpt2 --set train_batch_size=", 3, "\"\" is not a value", "give a value"},
      {"convert list", 2, "say which names", "clusters"},
      {"convert", 2, "cluster or list", "twinspeed convert"},
  };
  write_text(in_folder("text"), "not a cluster");
  write_text(in_folder("short"), "1234");
  write_text(in_folder("list.json"), "[]");
  ck_assert(mkdir(in_folder("loop"), 0700) == 0 && symlink("config.json", in_folder("loop/config.json")) == 0);
  ck_assert_int_eq(chdir(folder), 0);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    command_result r = twinspeed("%s", cases[i].line);
    assert_one_error(&r, cases[i].status, cases[i].line);
    ck_assert_msg(strstr(r.err, cases[i].says) && strstr(r.err, cases[i].hint), "%s: %s", cases[i].line, r.err);
    command_free(&r);
  }
}
END_TEST

/* A cluster's file needs neither a folder nor the ending .json. */
START_TEST(cluster_files_of_any_name) {
  ck_assert_int_eq(chdir(folder), 0);
  command_result r = twinspeed("convert cluster dgx-a100 mine.json --quiet");
  ck_assert_msg(r.status == 0 && rename("mine.json", "mine") == 0, "%s", r.err);
  command_free(&r);
  r = twinspeed("estimate -m gpt2 --cluster mine");
  ck_assert_msg(r.status == 0 && strstr(r.out, "1 node of 8 a100-80gb"), "%s%s", r.out, r.err);
  command_free(&r);
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

/* A module of an earlier build is refused, because structs are shared and it would read the wrong bytes. */
START_TEST(stale_modules) {
  setenv("TWINSPEED_MODULES", TWS_BUILD_DIR "/stale", 1);
  command_result r = twinspeed("simulate -m tiny-gpt2");
  setenv("TWINSPEED_MODULES", TWS_BUILD_DIR, 1);
  assert_one_error(&r, 4, "built from other headers");
  command_free(&r);
}
END_TEST

/* A collective of stage 3 over many layers has more segments than an operation of the plan can have: the error names
 * the keys that help. */
START_TEST(more_operands_than_fit) {
  static const char lower[] =
      "--set zero_optimization.stage3_param_persistence_threshold=0 "
      "--set zero_optimization.stage3_prefetch_bucket_size=100000 "
      "--set zero_optimization.reduce_bucket_size=100000";
  write_text(in_folder("deep.json"),
             "{\"model_type\": \"gpt2\", \"vocab_size\": 9, \"n_positions\": 8, \"n_embd\": 8, "
             "\"n_layer\": 2800, \"n_head\": 1}");
  command_result r = twinspeed("check -m %s -n 4 --seq 8 --stage 3", in_folder("deep.json"));
  assert_one_error(&r, 3, "operands");
  ck_assert_msg(strstr(r.err, "all_gather, has 67208 operands") && strstr(r.err, "65535 is the most"), "%s", r.err);
  ck_assert_msg(strstr(r.err, "hint: lower zero_optimization's reduce_bucket_size, stage3_prefetch"), "%s", r.err);
  command_free(&r);
  r = twinspeed("check -m %s -n 4 --seq 8 --stage 3 %s", in_folder("deep.json"), lower);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cli_bad_input");
  TCase *bad = tcase_create("bad input");
  tcase_set_timeout(bad, 120);
  tcase_add_checked_fixture(bad, make_folder, remove_folder);
  tcase_add_test(bad, bad_files);
  tcase_add_test(bad, more_operands_than_fit);
  tcase_add_test(bad, bad_sizes);
  tcase_add_test(bad, bad_configurations);
  tcase_add_test(bad, bad_models);
  tcase_add_test(bad, bad_clusters);
  tcase_add_test(bad, bad_names);
  tcase_add_test(bad, cluster_files_of_any_name);
  tcase_add_test(bad, stale_modules);
  suite_add_tcase(suite, bad);
  return run_suite(suite);
}
