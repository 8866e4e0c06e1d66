/* Winners of searches over small random spaces: each is exported for DeepSpeed or Megatron, and no rule of that
 * software refuses it. With TWS_WINNERS=FOLDER the files stay there, for tests/deepspeed_configs.py. */
/* ctest: slow */
#include <check.h>

#include "compat/software_rules.h"
#include "config/formats.h"
#include "tests/command.h"
#include "tests/draw.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/sample.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

enum { WINNERS = TWS_SANITIZED ? 20 : 200, SHARE = WINNERS / 10, LINE = 2048 };

static const char model[] =
    "{\"model_type\": \"%s\", \"num_hidden_layers\": 8, \"hidden_size\": 256, \"intermediate_size\": 512, "
    "\"num_attention_heads\": 8, \"num_key_value_heads\": 8, \"vocab_size\": 1024, \"max_position_embeddings\": 2048, "
    "%s\"torch_dtype\": \"bfloat16\"}";

static const struct {
  const char *format, *runtime;
} software[] = {{"deepspeed", "deepspeed-flash"}, {"megatron", "megatron"}};

/* Appends "OPTION A" or "OPTION A,B" with values of the list in `percent` of all seeds. */
static void add_list(uint64_t seed, int what, int percent, const char *option, const char *const *values, char *line) {
  int count = 0;
  while (values[count]) count++;
  if (draw(seed, 1000 + (uint64_t)what, 0, 99) >= percent) return;
  const int first = draw(seed, 2000 + (uint64_t)what, 0, count - 1), more = draw(seed, 3000 + (uint64_t)what, 0, 1);
  const size_t used = strlen(line);
  snprintf(line + used, LINE - used, " %s %s%s%s", option, values[first], more ? "," : "",
           more ? values[(first + 1) % count] : "");
}

/* Draws a small random search space; many spaces are empty. */
static void draw_space(uint64_t seed, const char *runtime, char *line) {
#define LIST(percent, option, ...) \
  {                                \
    percent, option, {             \
      __VA_ARGS__                  \
    }                              \
  }
  static const struct {
    int percent;
    const char *option, *values[8];
  } lists[] = {LIST(50, "--stages", "0", "1", "2", "3"),
               LIST(40, "--pp", "1", "2", "4"),
               LIST(40, "--tp", "1", "2", "4"),
               LIST(25, "--sp", "1", "2"),
               LIST(20, "--schedules", "1f1b", "interleaved", "gpipe", "zb-h1"),
               LIST(50, "--recomputes", "none", "selective", "full"),
               LIST(35, "--offloads", "none", "cpu", "nvme", "cpu+parameters", "nvme+parameters"),
               LIST(15, "--hpz", "0", "2", "4"),
               LIST(15, "--mics", "0", "2", "4"),
               LIST(30, "--overlaps", "off", "on"),
               LIST(20, "--buckets", "1000000", "50000001", "500000000"),
               LIST(20, "--sequence-parallel", "0", "1"),
               LIST(10, "--quantized-weights", "0", "1"),
               LIST(10, "--quantized-gradients", "0", "1"),
               LIST(10, "--prefetch-buckets", "0", "50000000"),
               LIST(10, "--persistence-thresholds", "0", "100000")};
  static const char *const clusters[] = {"dgx-a100", "dgx1-v100", "dgx-a100:2", "dgx-h100:2"};
  static const char *const few[] = {"2", "4", "8", NULL}, *const many[] = {"4", "8", "16", NULL};
  static const char *const types[] = {"bf16", "bf16", "fp16", "fp32"}, *const experts[] = {"1", "2", "4", NULL};
  static const char *const steps[] = {"1", "2", "3", "8", NULL};
  static const int batches[] = {16, 48, 64, 96};
  static const char *const goals[] = {"latency", "flops", "memory"};
  const int sparse = draw(seed, 1, 0, 3) == 0, cluster = draw(seed, 2, 0, 3);
  snprintf(line, LINE, "-m %s --cluster %s --runtime %s --dtype %s --seq %d --max-micro-batch %d --workers 1",
           in_folder(sparse ? "sparse.json" : "dense.json"), clusters[cluster], runtime, types[draw(seed, 3, 0, 3)],
           512 << draw(seed, 4, 0, 2), 2 << draw(seed, 5, 0, 2));
  add_list(seed, 100, 60, "-n", cluster > 1 ? many : few, line);
  if (sparse) add_list(seed, 101, 60, "--ep", experts, line);
  const int fixed = draw(seed, 6, 0, 2) == 0;
  size_t used = strlen(line);
  if (fixed) snprintf(line + used, LINE - used, " -b %d", batches[draw(seed, 9, 0, 3)]);
  if (!fixed) add_list(seed, 102, 40, "--accumulations", steps, line);
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    add_list(seed, (int)i, lists[i].percent, lists[i].option, lists[i].values, line);
  used = strlen(line);
  const int axes = draw(seed, 7, 0, 5), goal = draw(seed, 8, 0, 8);
  snprintf(line + used, LINE - used, "%s%s%s",
           axes == 0   ? " --axes on"
           : axes == 1 ? " --axes off"
                       : "",
           goal < 3 ? " --objective " : "", goal < 3 ? goals[goal] : "");
}

static void assert_rules(int which, const char *path, int ranks, const char *line) {
  tws_error why = {0};
  cJSON *root = NULL;
  int file = open(path, O_RDONLY);
  ck_assert_msg(file >= 0, "%s", line);
  char *text = command_slurp(file);
  if (which == 0)
    root = cJSON_Parse(text);
  else
    tws_format_arguments(text, path, &root, NULL);
  const tws_code code = which == 0 ? tws_deepspeed_check(root, ranks, &why) : tws_megatron_check(root, ranks, &why);
  ck_assert_msg(root && code == TWS_OK, "tune %s: %s\n%s", line, why.message, text);
  cJSON_Delete(root);
  free(text);
}

/* Searches a space and exports its winner. Returns 1 if there is one. */
static int export_winner(int which, uint64_t seed, int number) {
  const char *const kept = getenv("TWS_WINNERS");
  char line[LINE], path[512], ranks_path[512];
  draw_space(seed, software[which].runtime, line);
  snprintf(path, sizeof path, "%s/%s-%04d.json", kept ? kept : folder, software[which].format, number);
  command_result r = twinspeed("tune %s --no-simulation -q --force -o %s --json --export %s %s", line,
                               in_folder("results"), software[which].format, path);
  cJSON *json = cJSON_Parse(r.out);
  const cJSON *best = cJSON_GetObjectItem(json, "best");
  /* a space without a legal or fitting point makes the search fail, which is no fault of a winner */
  ck_assert_msg(r.status == 0 || (!best && (r.status == 1 || r.status == 3)), "tune %s: %d %s", line, r.status, r.err);
  if (best) {
    const int ranks = member(best, "ranks")->valueint;
    assert_rules(which, path, ranks, line);
    snprintf(ranks_path, sizeof ranks_path, "%s/%s-%04d.ranks", kept ? kept : folder, software[which].format, number);
    FILE *file = fopen(ranks_path, "w");
    ck_assert(file && fprintf(file, "%d\n", ranks) > 0 && fclose(file) == 0);
  }
  const int found = best != NULL;
  cJSON_Delete(json);
  command_free(&r);
  return found;
}

START_TEST(winners_are_accepted) {
  char text[512];
  snprintf(text, sizeof text, model, "llama", "");
  write_text(in_folder("dense.json"), text);
  snprintf(text, sizeof text, model, "mixtral", "\"num_local_experts\": 8, \"num_experts_per_tok\": 2, ");
  write_text(in_folder("sparse.json"), text);
  int found = 0, taken = 0;
  for (uint64_t seed = 1; found < (takes_all() ? WINNERS : WINNERS / SHARE) && seed < 40 * WINNERS; seed++) {
    if (!takes(seed, SHARE)) continue;
    taken++;
    found += export_winner(_i, seed, found);
  }
  ck_assert_int_ge(found, takes_all() ? WINNERS : WINNERS / SHARE);
  ck_assert_int_ge(4 * found, taken); /* most spaces have a winner */
}
END_TEST

int main(void) {
  Suite *suite = suite_create("winners");
  TCase *tcase = tcase_create("winners");
  tcase_set_timeout(tcase, 600);
  tcase_add_checked_fixture(tcase, make_folder, remove_folder);
  tcase_add_loop_test(tcase, winners_are_accepted, 0, 2);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
