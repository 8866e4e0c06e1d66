/* Circles of calls: files that call each other, directly or through others, as the symbols of this build's objects tell.
 * A circle is read and changed as one; those that are accepted are listed, and none may grow. */
#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/suite.h"
#include "tests/symbols.h"

enum { LARGEST = 6, ACCEPTED_FILES = 8 };

/* The accepted circles: passes that call each other, formats that contain one another, and pairs of files of one
 * subject. */
static const char *const accepted[][ACCEPTED_FILES] = {
    {"plan/delayed.c", "plan/offload.c", "plan/optimizer.c", "plan/zenflow.c", "plan/zero.c", "plan/zero_bucket_slots.c"},
    {"checkpoint/deepspeed.c", "checkpoint/folder.c", "checkpoint/index.c", "checkpoint/read.c",
     "checkpoint/weights.c"},
    {"sim/collectives.c", "sim/executor.c", "sim/messages.c", "sim/patterns.c", "sim/shared.c"},
    {"validation/case_facts.c", "validation/cases.c"},
    {"tokens/bpe.c", "tokens/tokenizer.c", "tokens/unigram.c", "tokens/wordpiece.c"},
    {"models/hardware/cost.c", "models/hardware/profile.c", "models/hardware/runtime.c"},
    {"cli/validate.c", "cli/validate_cases.c", "cli/validate_sweep.c"},
    {"cli/main.c", "cli/rank_worker.c"},
    {"models/network/gpt2.c", "models/network/gpt2_experts.c"},
    {"plan/rendezvous.c", "plan/run_order.c"},
    {"models/network/safetensors.c", "models/network/torch_file.c"},
    {"calibration/profile.c", "calibration/run.c"},
    {"emulation/emulate.c", "emulation/saves.c"},
};
enum { CIRCLES = sizeof accepted / sizeof *accepted };

static calls *graph;

/* Reads an object file of the build: CMakeFiles/twinspeed.dir/plan/zero.c.o belongs to plan/zero.c. */
static int read_object(const char *path, const struct stat *status, int type, struct FTW *where) {
  const char *start = strstr(path, ".dir/"), *end = strrchr(path, '.');
  (void)where;
  if (type != FTW_F || !start || strcmp(end, ".o") != 0) return 0;
  char name[512];
  snprintf(name, sizeof name, "%.*s", (int)(end - start - 5), start + 5);
  char source[1024]; /* a build's folder may keep the object of a removed file */
  snprintf(source, sizeof source, "%s/%s", TWS_SOURCE_DIR, name);
  if (strncmp(name, "bench/", 6) == 0 || access(source, F_OK) != 0) return 0;
  const size_t size = (size_t)status->st_size;
  unsigned char *bytes = malloc(size + 1);
  FILE *file = fopen(path, "rb");
  ck_assert_msg(bytes && file && fread(bytes, 1, size, file) == size, "%s", path);
  fclose(file);
  ck_assert_msg(calls_read_object(graph, calls_file(graph, name), bytes, size), "%s is no object of 64 bits", path);
  free(bytes);
  return 0;
}

static void read_build(void) {
  graph = calloc(1, sizeof *graph);
  ck_assert_ptr_nonnull(graph);
  ck_assert_int_eq(nftw(TWS_BUILD_DIR "/CMakeFiles", read_object, 16, FTW_PHYS), 0);
  ck_assert_int_gt(graph->count, 250);
  calls_connect(graph);
}

static void forget_build(void) {
  calls_free(graph);
}

static int is_accepted(int circle, const char *file) {
  for (int i = 0; i < ACCEPTED_FILES && accepted[circle][i]; i++)
    if (strcmp(accepted[circle][i], file) == 0) return 1;
  return 0;
}

/* Writes the names of a circle's files to `text` and returns their number. */
static int members_of(const circles *found, int circle, char *text, size_t size) {
  int members = 0;
  size_t length = 0;
  text[0] = 0;
  for (int i = 0; i < graph->count; i++) {
    if (found->circle[i] != circle) continue;
    members++;
    if (length < size) length += (size_t)snprintf(text + length, size - length, " %s", graph->files[i]);
  }
  return members;
}

/* Returns the size of the largest circle; `outside` receives the files of one that is not within an accepted circle, or
 * is empty. */
static int largest_circle(char *outside, size_t size) {
  circles *found = circles_of(graph);
  int largest = 0;
  outside[0] = 0;
  for (int c = 0; c < found->count; c++) {
    char text[4096];
    const int members = members_of(found, c, text, sizeof text);
    if (members > largest) largest = members;
    int within = members == 1;
    for (int a = 0; a < CIRCLES && !within; a++) {
      within = 1;
      for (int i = 0; i < graph->count && within; i++)
        if (found->circle[i] == c) within = is_accepted(a, graph->files[i]);
    }
    if (!within) snprintf(outside, size, "%s", text);
  }
  free(found);
  return largest;
}

START_TEST(circles_of_calls_do_not_grow) {
  char outside[4096];
  read_build();
  const int largest = largest_circle(outside, sizeof outside);
  printf("%d files, the largest circle of calls has %d\n", graph->count, largest);
  ck_assert_msg(!outside[0], "a circle of calls that is not accepted:%s", outside);
  ck_assert_int_le(largest, LARGEST);
  ck_assert_int_gt(largest, 1);
  forget_build();
}
END_TEST

/* Adds one call to the graph: from a helper of every pass to a pass, from a level to a higher one, into a circle, or
 * between circles; the check has to notice it. */
START_TEST(a_call_that_closes_a_circle_is_noticed) {
  static const struct {
    const char *from, *to;
    int noticed;
  } mutants[] = {{"plan/lower.c", "plan/zero.c", 1},       {"base/file.c", "checkpoint/folder.c", 1},
                 {"plan/zero_quantized_reduce.c", "plan/zero.c", 1},   {"sim/fluid.c", "sim/executor.c", 1},
                 {"plan/zero.c", "plan/optimizer.c", 0},   {"estimators/compose.c", "plan/zero.c", 0},
                 {"checkpoint/folder.c", "base/file.c", 0}};
  char outside[4096];
  read_build();
  for (size_t i = 0; i < sizeof mutants / sizeof *mutants; i++) {
    const int files = graph->count, from = calls_file(graph, mutants[i].from), to = calls_file(graph, mutants[i].to);
    ck_assert_msg(graph->count == files, "%s or %s is no file of this build", mutants[i].from, mutants[i].to);
    const unsigned char before = graph->edge[from][to];
    graph->edge[from][to] = 1;
    largest_circle(outside, sizeof outside);
    ck_assert_msg((outside[0] != 0) == mutants[i].noticed, "%s calls %s:%s", mutants[i].from, mutants[i].to, outside);
    graph->edge[from][to] = before;
  }
  forget_build();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("house_calls");
  TCase *tests = tcase_create("calls");
  tcase_add_test(tests, circles_of_calls_do_not_grow);
  tcase_add_test(tests, a_call_that_closes_a_circle_is_noticed);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
