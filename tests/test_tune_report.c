/* ctest: sampled */
/* The report of a search on its winner: fronts and knobs compared with the verbs that print the same figures, and the
 * report as a document that is well-formed and needs no other file. */
#include <check.h>
#include <ctype.h>
#include <math.h>

#include "base/memory.h"
#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/suite.h"
#include "validation/results.h"

static cJSON *results;
static char *html, *markdown;

static char *slurp(const char *name) {
  char *text;
  size_t length;
  ck_assert_int_eq(tws_read_file(in_folder(name), 0, &text, &length, NULL), TWS_OK);
  return text;
}

/* Runs one search for all cases, with the user's own configuration and a price. */
static void search(void) {
  make_folder();
  write_text(in_folder("cluster.json"),
             "{\"schema\": \"twinspeed-cluster-1\", \"base\": \"dgx-a100\", \"name\": \"a <b> & \\\"c\\\"\", "
             "\"price_per_device_hour\": 3.6}");
  write_text(in_folder("ds.json"),
             "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 4, "
             "\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 3}}");
  command_result r = twinspeed("tune -m gpt2 -c %s --cluster %s --seq 256 -n 8 -k 6 --tp 1,2 --json -o %s",
                               in_folder("ds.json"), in_folder("cluster.json"), in_folder("t"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  results = assert_json(&r, "twinspeed-tune-1");
  command_free(&r);
  html = slurp("t/report.html");
  markdown = slurp("t/report.md");
}

static void forget(void) {
  cJSON_Delete(results);
  tws_free(html);
  tws_free(markdown);
  remove_folder();
}

/* ---- the document ---- */

enum { DEEPEST = 64, TAG = 32 };

static const char *end_of_entity(const char *at) {
  static const char *const known[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
  for (int i = 0; i < 4; i++)
    if (strncmp(at, known[i], strlen(known[i])) == 0) return at + strlen(known[i]);
  ck_abort_msg("an ampersand by itself: %.40s", at);
  return at;
}

/* Checks an element's attributes, which are name="value" without characters that need escaping; returns the closing
 * '>'. */
static const char *end_of_attributes(const char *at) {
  while (*at && *at != '>' && *at != '/') {
    while (isspace((unsigned char)*at)) at++;
    if (*at == '>' || *at == '/') break;
    while (isalnum((unsigned char)*at) || *at == '-' || *at == ':') at++;
    ck_assert_msg(at[0] == '=' && at[1] == '"', "an attribute without a value: %.40s", at);
    for (at += 2; *at && *at != '"';) {
      ck_assert_msg(*at != '<', "%.40s", at);
      at = *at == '&' ? end_of_entity(at) : at + 1;
    }
    ck_assert_int_eq(*at++, '"');
  }
  return at;
}

/* Asserts that a text is well-formed XML: every element is closed, in order, and there is one root. */
static void assert_well_formed(const char *text) {
  char open[DEEPEST][TAG];
  int depth = 0, roots = 0;
  const char *at = strncmp(text, "<!DOCTYPE html>", 15) == 0 ? text + 15 : text;
  while (*at) {
    if (*at == '&') {
      at = end_of_entity(at);
      continue;
    }
    ck_assert_msg(*at != '>', "a '>' by itself: %.40s", at);
    if (*at++ != '<') {
      ck_assert_msg(depth > 0 || isspace((unsigned char)at[-1]), "text outside of the root: %.40s", at - 1);
      continue;
    }
    const int closes = *at == '/';
    const char *name = at + closes;
    const size_t length = strcspn(name, " />\n");
    ck_assert_msg(length > 0 && length < TAG, "%.40s", at);
    if (closes) {
      ck_assert_int_gt(depth--, 0);
      ck_assert_msg(strlen(open[depth]) == length && strncmp(open[depth], name, length) == 0, "</%.20s closes %s", name,
                    open[depth]);
      at = name + length;
    } else {
      at = end_of_attributes(name + length);
      roots += depth == 0;
      if (*at == '/') {
        at++;
      } else {
        ck_assert_int_lt(depth, DEEPEST);
        snprintf(open[depth++], TAG, "%.*s", (int)length, name);
      }
    }
    ck_assert_int_eq(*at++, '>');
  }
  ck_assert_int_eq(depth, 0);
  ck_assert_int_eq(roots, 1);
}

START_TEST(documents) {
  assert_well_formed(html);
  ck_assert_ptr_nonnull(strstr(html, "<svg "));
  ck_assert_ptr_nonnull(strstr(html, "a &lt;b&gt; &amp; &quot;c&quot;"));
  for (const char *at = html; (at = strstr(at, "://")); at++) /* the namespaces of XHTML and SVG are the only
                                                               * addresses */
    ck_assert_msg(strncmp(at, "://www.w3.org/", 14) == 0, "%.60s", at);
  ck_assert_ptr_null(strstr(html, "src="));
  ck_assert_ptr_null(strstr(html, "href="));
  ck_assert_ptr_null(strstr(html, "<script"));
  static const char *const figures[] = {"pareto.svg", "sensitivity.svg"};
  for (int i = 0; i < 2; i++) {
    char name[64];
    snprintf(name, sizeof name, "t/%s", figures[i]);
    char *svg = slurp(name);
    assert_well_formed(svg);
    ck_assert_ptr_nonnull(strstr(html, svg)); /* the same figure */
    ck_assert_ptr_nonnull(strstr(markdown, figures[i]));
    tws_free(svg);
  }
}
END_TEST

static int count_texts(const char *text, const char *what) {
  int count = 0;
  for (; (text = strstr(text, what)) != NULL; text++) count++;
  return count;
}

/* Each point of the figure has a title with its name and speed, and the points of the front have labels. */
START_TEST(points_have_names) {
  char *svg = slurp("t/pareto.svg");
  const int fits = cJSON_GetArraySize(member(results, "candidates")),
            front = cJSON_GetArraySize(member(results, "pareto"));
  ck_assert_int_eq(count_texts(svg, "<circle "), fits);
  ck_assert_int_eq(count_texts(svg, "</title></circle>"), fits);
  ck_assert_int_eq(count_texts(svg, " tokens/s</title>"), fits);
  const int labels = count_texts(svg, "\">ZeRO-");
  ck_assert_msg(labels >= 1 && labels <= front, "%d labels of %d", labels, front);
  tws_free(svg);
}
END_TEST

/* A title is no path. */
START_TEST(titles) {
  static const char *const cases[][2] = {{"/a/demo/config.json", "demo"}, {"demo/config.json", "demo"},
                                         {"config.json", "config"},       {"/config.json", "config"},
                                         {"/a/b/small.json", "small"},    {"gpt2", "gpt2"},
                                         {"/a/llama-3/", "llama-3"}};
  char title[64];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_result_title(cases[i][0], title, sizeof title);
    ck_assert_str_eq(title, cases[i][1]);
  }
}
END_TEST

/* ---- what it says ---- */

static const cJSON *candidate(const char *name) {
  const cJSON *one;
  cJSON_ArrayForEach(one, member(results, "candidates")) {
    if (strcmp(member(one, "name")->valuestring, name) == 0) return one;
  }
  ck_abort_msg("no candidate %s", name);
  return NULL;
}

static int beats(const cJSON *a, const cJSON *b) {
  const double x = number(a, "samples_per_s"), y = number(b, "samples_per_s");
  const double p = number(a, "rank_bytes"), q = number(b, "rank_bytes");
  return x >= y && p <= q && (x > y || p < q);
}

/* The front contains exactly the points that no other point beats. With equal numbers of ranks the cost follows from
 * the throughput. */
START_TEST(front) {
  const cJSON *name, *one, *of_front;
  double before = INFINITY;
  ck_assert_int_gt(cJSON_GetArraySize(member(results, "pareto")), 1);
  cJSON_ArrayForEach(name, member(results, "pareto")) {
    const cJSON *on_it = candidate(name->valuestring);
    ck_assert_double_le(number(on_it, "samples_per_s"), before);
    before = number(on_it, "samples_per_s");
    cJSON_ArrayForEach(one, member(results, "candidates")) ck_assert(!beats(one, on_it));
  }
  cJSON_ArrayForEach(one, member(results, "candidates")) {
    int kept = 0;
    cJSON_ArrayForEach(of_front, member(results, "pareto")) {
      const cJSON *other = candidate(of_front->valuestring);
      kept |= other == one || beats(other, one) ||
              (number(other, "samples_per_s") == number(one, "samples_per_s") &&
               number(other, "rank_bytes") == number(one, "rank_bytes"));
    }
    ck_assert_msg(kept, "%s is beaten by nothing of the front", member(one, "name")->valuestring);
  }
}
END_TEST

/* Returns the seconds that `estimate` predicts for a configuration with one knob turned, which a knob's worth has to
 * equal. */
static double estimated(const cJSON *knob) {
  const cJSON *axes = member(knob, "axes");
  command_result r = twinspeed(
      "estimate -m gpt2 -c %s --cluster %s --seq 256 -n %d --stage %d --micro-batch %d --accumulation %d --recompute "
      "%s "
      "--tp %d --pp %d --sp %d --set train_batch_size=32 %s --json",
      in_folder("ds.json"), in_folder("cluster.json"), integer(knob, "ranks"), integer(knob, "zero_stage"),
      integer(knob, "micro_batch"), integer(knob, "accumulation"), member(knob, "recompute")->valuestring,
      integer(axes, "model"), integer(axes, "pipe"), integer(axes, "sequence"),
      is_true(knob, "sequence_parallel") ? "--sequence-parallel" : "");
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = cJSON_Parse(r.out);
  const double seconds = number(member(json, "time"), "step_s");

  cJSON_Delete(json);
  command_free(&r);
  return seconds;
}

START_TEST(knobs) {
  const cJSON *one, *best = member(results, "best");
  int turned = 0, checked = 0;
  cJSON_ArrayForEach(one, member(results, "sensitivity")) {
    ck_assert_str_ne(member(one, "winner")->valuestring, member(one, "value")->valuestring);
    if (!cJSON_GetObjectItem(one, "predicted_step_s")) {
      ck_assert_int_gt((int)strlen(member(one, "reason")->valuestring), 0);
      continue;
    }
    const double samples =
        number(one, "micro_batch") * number(one, "accumulation") * number(member(one, "axes"), "data");
    ck_assert_double_eq(samples, 32);
    turned++;
    if (turned % 3 != 1) continue;
    ck_assert_double_eq_tol(estimated(one) / number(one, "predicted_step_s"), 1, 1e-9);
    ck_assert_double_eq_tol(number(one, "change"),
                            number(best, "predicted_step_s") / number(one, "predicted_step_s") - 1, 1e-6);
    checked++;
  }
  ck_assert_int_ge(turned, 6);
  ck_assert_int_ge(checked, 2);
}
END_TEST

START_TEST(own_configuration_and_price) {
  const cJSON *own = member(results, "own_configuration"), *best = member(results, "best");
  ck_assert_int_eq(integer(own, "zero_stage"), 3);
  ck_assert_int_eq(integer(own, "accumulation"), 4);
  ck_assert_double_eq_tol(estimated(own) / number(own, "predicted_step_s"), 1, 1e-9);
  ck_assert_double_eq_tol(number(own, "gain"), number(own, "predicted_step_s") / number(best, "predicted_step_s"),
                          1e-6);
  /* the price: 3.6 per hour and device is a thousandth per second; eight devices; 32 x 256 tokens per step */
  ck_assert_double_eq_tol(number(own, "cost_per_million_tokens"),
                          8 * 1e-3 * number(own, "predicted_step_s") / (32 * 256) * 1e6, 1e-9);
  ck_assert_ptr_nonnull(strstr(markdown, "times as fast"));
  ck_assert_ptr_nonnull(strstr(markdown, "Nine of ten such runs took "));
}
END_TEST

/* The interval of the winner's predicted step is in the results and in the report. */
START_TEST(interval_of_the_winner) {
  const cJSON *best = cJSON_GetObjectItem(results, "best");
  const cJSON *step = cJSON_GetObjectItem(best, "simulated_step_s");
  if (!step) step = cJSON_GetObjectItem(best, "predicted_step_s");
  const cJSON *low = cJSON_GetObjectItem(best, "predicted_low_s"), *high = cJSON_GetObjectItem(best, "predicted_high_s");
  ck_assert(cJSON_IsNumber(step) && cJSON_IsNumber(low) && cJSON_IsNumber(high));
  ck_assert(low->valuedouble < step->valuedouble * 1.1 && high->valuedouble > step->valuedouble * 0.9);
  ck_assert_double_lt(low->valuedouble, high->valuedouble);
}
END_TEST

/* ---- objectives ---- */

/* For each objective the winner is the best of all candidates by that objective's figure. */
START_TEST(objectives) {
  static const char *const names[] = {"latency", "flops", "memory", "cost"};
  for (int goal = 0; goal < 4; goal++) {
    command_result r = twinspeed(
        "tune -m gpt2 -b 32 --cluster %s --seq 256 -n 2,4,8 --stages 0,3 --no-simulation "
        "--objective %s --json --force -o %s",
        in_folder("cluster.json"), names[goal], in_folder("goal"));
    ck_assert_msg(r.status == 0, "%s", r.err);
    cJSON *json = assert_json(&r, "twinspeed-tune-1");
    const cJSON *best = member(json, "best"), *one;
    ck_assert_str_eq(member(json, "objective")->valuestring, names[goal]);
    cJSON_ArrayForEach(one, member(json, "candidates")) {
      const double faster = number(one, "samples_per_s") / number(best, "samples_per_s");
      const double devices = number(one, "ranks") / number(best, "ranks");
      if (goal == 0) ck_assert_double_ge(number(one, "predicted_step_s"), number(best, "predicted_step_s"));
      if (goal == 1 || goal == 3) ck_assert_double_le(faster / devices, 1 + 1e-9);
      if (goal == 2) ck_assert_double_ge(number(one, "rank_bytes") * (1 + 2e-6), number(best, "rank_bytes"));
    }
    cJSON_Delete(json);
    command_free(&r);
  }
  command_result r = twinspeed("tune -m gpt2 -b 8 --cluster dgx-a100 --objective cost -o %s", in_folder("free"));
  assert_one_error(&r, 3, "price_per_device_hour");
  command_free(&r);
}
END_TEST

/* ---- sweeps over the cluster ---- */

/* In a sweep over the network's bandwidth the best step never gets slower with more bandwidth, the ends are the given
 * ones, and the knee is the point farthest from the chord; a search on a cluster file with that bandwidth gives the
 * same result. */
START_TEST(sweep_of_a_network) {
  command_result r = twinspeed(
      "tune -m gpt2-xl --dtype bf16 -b 64 --seq 512 --cluster dgx-a100:4 --stages 3 --recomputes none "
      "--axes off -n 32 --sweep net.bandwidth=10..800G:6 --no-simulation --json");
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-sweep-1");
  const cJSON *points = member(json, "points"), *one;
  double before = 0;
  ck_assert_int_eq(cJSON_GetArraySize(points), 6);
  ck_assert_double_eq_tol(number(points->child, "value"), 10e9, 1);
  cJSON_ArrayForEach(one, points) {
    ck_assert_double_ge(number(one, "samples_per_s"), before);
    before = number(one, "samples_per_s");
  }
  ck_assert_double_gt(before, 1.2 * number(points->child, "samples_per_s"));
  ck_assert_double_gt(number(json, "knee"), 10e9);
  write_text(in_folder("slow.json"),
             "{\"schema\": \"twinspeed-cluster-1\", \"base\": \"dgx-a100\", \"nodes\": 4, "
             "\"inter\": {\"bandwidth\": 1.25e9}}");
  command_result slow = twinspeed(
      "tune -m gpt2-xl --dtype bf16 -b 64 --seq 512 --cluster %s --stages 3 --recomputes none "
      "--axes off -n 32 --no-simulation --json -o %s",
      in_folder("slow.json"), in_folder("slow"));
  ck_assert_msg(slow.status == 0, "%s", slow.err);
  cJSON *same = assert_json(&slow, "twinspeed-tune-1");
  ck_assert_double_eq_tol(number(member(same, "best"), "samples_per_s"), number(points->child, "samples_per_s"), 1e-9);
  cJSON_Delete(same);
  cJSON_Delete(json);
  command_free(&slow);
  command_free(&r);
  static const char *const wrong[] = {"net.colour=1..2", "net.bandwidth", "net.bandwidth=8..1G",
                                      "net.bandwidth=1..8G:2"};
  for (int i = 0; i < 4; i++) {
    r = twinspeed("tune -m gpt2 -b 8 --cluster dgx-a100 --sweep %s", wrong[i]);
    assert_one_error(&r, 2, wrong[i]);
    command_free(&r);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("tune_report");
  TCase *tcase = tcase_create("tune_report");
  tcase_add_unchecked_fixture(tcase, search, forget);
  tcase_add_test(tcase, documents);
  tcase_add_test(tcase, points_have_names);
  tcase_add_test(tcase, titles);
  tcase_add_test(tcase, front);
  tcase_add_test(tcase, knobs);
  tcase_add_test(tcase, own_configuration_and_price);
  tcase_add_test(tcase, interval_of_the_winner);
  tcase_add_test(tcase, objectives);
  tcase_add_test(tcase, sweep_of_a_network);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
