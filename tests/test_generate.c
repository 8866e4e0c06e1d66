/* ctest: engine mpi */
/* Generating: which token is chosen of which scores, and what the verb does with a checkpoint. */
#include "answers.h"
#include "members.h"
#include "real/sample.h"
#include "train.h"

enum { COUNT = 5 };
static const float scores[COUNT] = {1.0f, 3.0f, -2.0f, 3.0f, 0.5f};

static int32_t sample(double temperature, int64_t k, double p, double uniform, double *likely) {
  tws_candidate room[COUNT];
  const tws_sampling how = {.temperature = temperature, .top_k = k, .top_p = p};
  return tws_sample(scores, COUNT, &how, uniform, room, likely);
}

/* Computes the share of each token among tokens drawn with evenly spread numbers. */
static void spread(double temperature, int64_t k, double p, double share[COUNT]) {
  enum { DRAWS = 20000 };
  double likely;
  memset(share, 0, COUNT * sizeof *share);
  for (int i = 0; i < DRAWS; i++) share[sample(temperature, k, p, (i + 0.5) / DRAWS, &likely)] += 1.0 / DRAWS;
}

START_TEST(choices) {
  double share[COUNT], likely, all = 0;
  for (int i = 0; i < COUNT; i++) all += exp((double)scores[i]);
  ck_assert_int_eq(sample(0, 0, 1, 0.99, &likely), 1); /* the smaller of two equals */
  ck_assert_double_eq_tol(likely, 3 - log(all), 1e-12);
  for (int t = 1; t <= 2; t++) {
    double weights = 0;
    spread(t, 0, 1, share);
    for (int i = 0; i < COUNT; i++) weights += exp((double)scores[i] / t);
    for (int i = 0; i < COUNT; i++) ck_assert_double_eq_tol(share[i], exp((double)scores[i] / t) / weights, 1e-4);
  }
  spread(1, 3, 1, share);
  ck_assert(share[2] == 0 && share[4] == 0);
  ck_assert_double_eq_tol(share[0], exp(1) / (exp(1) + 2 * exp(3)), 1e-4);
  spread(1, 0, 0.5, share); /* the two likeliest have 0.88 of it, one has 0.44 */
  ck_assert(share[1] == 0.5 || fabs(share[1] - 0.5) < 1e-9);
  ck_assert_double_eq_tol(share[1] + share[3], 1, 1e-9);
  spread(1, 0, 0.4, share);
  ck_assert_double_eq_tol(share[1], 1, 1e-9);
  spread(1, 0, 0, share);
  ck_assert_double_eq_tol(share[1], 1, 1e-9);
  spread(1, 1, 1, share);
  ck_assert_double_eq_tol(share[1], 1, 1e-9);
  ck_assert_int_eq(sample(1e-3, 0, 1, 0.999999, &likely), 3);
  ck_assert_int_eq(sample(1, 0, 1, 0.0, &likely), 1);
  ck_assert_int_eq(sample(1, 0, 1, 1 - 1e-16, &likely), 2);
}
END_TEST

#define GO_ON "generate -m tiny-gpt2 --quiet --threads 1 --resume %s/run "

static char *told(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *told(const char *format, ...) {
  char line[2048];
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  command_result r = twinspeed_to(command_scratch(), line);
  ck_assert_msg(r.status == 0, "%s", r.err);
  free(r.err);
  return r.out;
}

/* The same seed says the same, another one something else; sequences may be longer than the model sees; precision and
 * what divided the training do not matter. */
START_TEST(generation_continues_the_prompt) {
  command_result r = twinspeed(
      "train -m tiny-gpt2 --quiet --seq 32 --micro-batch 2 --accumulation 1 -n 2 --stage 3 "
      "--threads 1 --steps 40 --data %s --save %s/run",
      text_path, folder);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  char *one = told(GO_ON "--prompt 'the ' --tokens 100 --seed 4 --top-k 20 --seq 32", folder);
  char *same = told(GO_ON "--prompt 'the ' --tokens 100 --seed 4 --top-k 20 --seq 32", folder);
  char *other = told(GO_ON "--prompt 'the ' --tokens 100 --seed 5 --top-k 20 --seq 32", folder);
  ck_assert_uint_eq(strlen(one), 4 + 100 + 1);
  ck_assert(strncmp(one, "the ", 4) == 0 && strcmp(one, same) == 0 && strcmp(one, other) != 0);
  int letters = 0;
  for (const char *c = one; *c; c++) letters += (*c >= 'a' && *c <= 'z') || *c == ' ' || *c == '.' || *c == '\n';
  ck_assert_int_gt(letters, 80); /* it has learnt which bytes there are */
  char *greedy = told(GO_ON "--prompt 'the ' --tokens 8 --temperature 0 --seq 32", folder);
  char *halves = told(GO_ON "--prompt 'the ' --tokens 8 --temperature 0 --seq 64 --dtype bf16", folder);
  ck_assert_str_eq(greedy, halves);
  char *ids = told(GO_ON "--prompt-ids 116,104,101,32 --tokens 8 --temperature 0 --seq 32", folder);
  ck_assert_int_eq(atoi(ids), (unsigned char)greedy[4]);
  char elastic[64]; /* the training's batch is none of a text's */
  snprintf(elastic, sizeof elastic, "%s/elastic.json", folder);
  write_text(elastic, "{\"elasticity\": {\"enabled\": true, \"max_train_batch_size\": 4, \"micro_batch_sizes\": [2]}}");
  char *of_elastic = told(GO_ON "-c %s --prompt ab --tokens 4 --temperature 0", folder, elastic);
  char *of_none = told(GO_ON "--prompt ab --tokens 4 --temperature 0", folder);
  ck_assert_str_eq(of_elastic, of_none);
  free(of_elastic), free(of_none);
  free(one), free(same), free(other), free(greedy), free(halves), free(ids);
}
END_TEST

static void refused(int status, const char *words, const char *rest) {
  command_result r = twinspeed("generate -m tiny-gpt2 --quiet %s", rest);
  assert_one_error(&r, status, rest);
  ck_assert_msg(strstr(r.err, words) != NULL, "not \"%s\" but %s", words, r.err);
  command_free(&r);
}

START_TEST(refusals) {
  refused(2, "no weights were given", "--prompt a");
  refused(2, "no prompt was given", "--init-from x");
  refused(2, "several prompts", "--init-from x --prompt a --prompt-ids 1");
  refused(2, "is no token", "--init-from x --prompt-ids 1,b");
  refused(2, "--tag without --resume", "--init-from x --prompt a --tag y");
  refused(3, "on one rank", "--init-from x --prompt a -n 2");
  refused(2, "the prompt is empty", "--init-from x --prompt ''");
  refused(3, "token 2 of the prompt is 256, and the vocabulary has 256", "--init-from x --prompt-ids 1,256");
  refused(4, "No such file", "--init-from /no/where --prompt a");
}
END_TEST

int main(void) {
  Suite *suite = suite_create("generate");
  TCase *tests = tcase_create("generate");
  tcase_add_test(tests, choices);
  tcase_add_test(tests, generation_continues_the_prompt);
  tcase_add_test(tests, refusals);
  tcase_set_timeout(tests, 120);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
