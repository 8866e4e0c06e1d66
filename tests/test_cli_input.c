/* Standard input ("-"): the same answers as from a file, also where a job is loaded several times. */
#include <check.h>

#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/suite.h"

static const char model[] =
    "{\"model_type\": \"gpt2\", \"n_layer\": 48, \"n_embd\": 1600, \"n_head\": 25, "
    "\"vocab_size\": 50257, \"n_positions\": 1024}";
static const char config[] =
    "{\"train_micro_batch_size_per_gpu\": 4, \"zero_optimization\": {\"stage\": 0}, "
    "\"fp16\": {\"enabled\": true}}";

static const char small[] =
    "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_embd\": 32, \"n_head\": 2, \"vocab_size\": "
    "300, \"n_positions\": 64}";

static void write_inputs(void) {
  make_folder();
  write_text(in_folder("model.json"), model);
  write_text(in_folder("ds.json"), config);
}

/* Asserts that a line with %s in the place of a file's path gives the same answer with the file and with "-" and the
 * text `text` on standard input. */
static void assert_same(const char *text, const char *file, const char *line, int status, const char *says) {
  char with_file[512], with_input[512];
  snprintf(with_file, sizeof with_file, line, file); /* NOLINT: the formats are the literals of the tests below */
  snprintf(with_input, sizeof with_input, line, "-");
  command_result a = twinspeed("%s", with_file), b = twinspeed_fed(text, "%s", with_input);
  ck_assert_msg(a.status == status && strstr(status ? a.err : a.out, says), "%s: exit %d: %s%s", with_file, a.status,
                a.out, a.err);
  ck_assert_int_eq(b.status, a.status);
  const char *of_file = strstr(a.out, "\nCluster"), *of_input = strstr(b.out, "\nCluster"); /* the name is another */
  ck_assert_ptr_nonnull(of_input);
  ck_assert_str_eq(of_input, of_file);
  ck_assert_str_eq(b.err, a.err);
  command_free(&a);
  command_free(&b);
}

/* The search for a hint loads the job again for each try, and so does the comparison with another runtime: standard
 * input is still read only once. */
START_TEST(hints_and_comparisons) {
  write_inputs();
  const char *model_file = in_folder("model.json"), *config_file = in_folder("ds.json");
  char line[512];
  assert_same(model, model_file, "estimate -m %s --cluster dgx1-v100 --dtype fp16 --micro-batch 4 --stage 0 -q", 1,
              "hint: it fits with --recompute selective: 30.53 GiB");
  snprintf(line, sizeof line, "estimate -m %s -c %%s --cluster dgx1-v100 --runtime twinspeed -q", model_file);
  assert_same(config, config_file, line, 1, "hint: it fits with --recompute selective: 30.53 GiB");
  snprintf(line, sizeof line, "estimate -m %%s -c %s --stage 2 --cluster dgx-a100 --runtime megatron -q", config_file);
  assert_same(model, model_file, line, 0, "against this program's own engine");
  snprintf(line, sizeof line, "estimate -m %s -c %%s --stage 2 --cluster dgx-a100 --runtime megatron -q", model_file);
  assert_same(config, config_file, line, 0, "against this program's own engine");
  remove_folder();
}
END_TEST

/* tune loads the user's configuration once more, to compute the speedup of the best point over it. */
START_TEST(tuning) {
  write_inputs();
  char line[512];
  const char *own = "times as fast as your configuration";
  snprintf(line, sizeof line,
           "tune -m %s -c - --cluster dgx-a100 -b 64 --stages 2,3 --no-simulation --recomputes none,full -n 8 "
           "--set zero_optimization.stage=1 -q -o %s",
           in_folder("model.json"), in_folder("results"));
  command_result r = twinspeed_fed(
      "{\"train_micro_batch_size_per_gpu\": 1, \"train_batch_size\": 64, \"fp16\": {\"enabled\": true}}", "%s", line);
  ck_assert_msg(r.status == 0 && strstr(r.out, own), "%d: %s%s", r.status, r.out, r.err);
  command_free(&r);
  remove_folder();
}
END_TEST

START_TEST(one_reader) {
  static const struct {
    const char *line, *says;
  } cases[] = {
      {"estimate -m - -c -", "-m - and -c -: standard input is one file"},
      {"check -c - --cluster -", "-c - and --cluster -: standard input is one file"},
      {"estimate -m - --profile -", "-m - and --profile -: standard input is one file"},
      {"train -m - -n 2 --data %s", "-m -: standard input is read by one process, and others are to be started"},
      {"validate -m - --data %s", "-m -: standard input is read by one process"},
      {"validate -m - --data %s --sweep", "-m -: standard input is read by one process"},
      {"tune -m - -b 8 --validate 1 --data %s -o results", "-m -: standard input is read by one process"}};
  write_inputs();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char line[512];
    snprintf(line, sizeof line, cases[i].line, in_folder("ds.json")); /* NOLINT */
    command_result r = twinspeed_fed(small, "%s -q", line);
    assert_one_error(&r, 2, line);
    ck_assert_msg(strstr(r.err, cases[i].says) && strstr(r.err, "hint: save "), "%s: %s", line, r.err);
    command_free(&r);
  }
  remove_folder();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cli_input");
  TCase *tcase = tcase_create("cli_input");
  tcase_set_timeout(tcase, 300);
  tcase_add_test(tcase, hints_and_comparisons);
  tcase_add_test(tcase, tuning);
  tcase_add_test(tcase, one_reader);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
