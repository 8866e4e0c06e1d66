/* Status, memory, units, random numbers, element types, files. */
#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/host_memory.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/units.h"
#include "tests/failing_allocator.h"
#include "tests/folder.h"
#include "tests/suite.h"

static tws_error err;

static void put_file(const char *name, const char *text) {
  char command[512];
  snprintf(command, sizeof command, "mkdir -p $(dirname %s/%s)", folder, name);
  ck_assert_int_eq(system(command), 0);
  ck_assert_int_eq(tws_write_file(in_folder(name), text, strlen(text), &err), TWS_OK);
}

#define MIB 1048576ull
/* Limits of control groups, of version 1 and nested ones of version 2; a container sees its own group as the root. */
START_TEST(memory_of_control_groups) {
  make_folder();
  put_file("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n");
  put_file("proc/self/cgroup", "0::/\n");
  tws_host_memory m = tws_host_memory_read_under(folder);
  ck_assert(m.total_bytes == 16384 * MIB && m.available_bytes == 8192 * MIB && !m.limited);
  put_file("proc/self/cgroup", "0::/a/b\n");
  put_file("sys/fs/cgroup/a/b/memory.max", "max\n");
  put_file("sys/fs/cgroup/a/memory.max", "2147483648\n");
  put_file("sys/fs/cgroup/a/memory.current", "1073741824\n");
  put_file("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 536870912\n");
  m = tws_host_memory_read_under(folder);
  ck_assert(m.total_bytes == 2048 * MIB && m.available_bytes == 1536 * MIB && m.limited);
  put_file("sys/fs/cgroup/a/b/memory.max", "1073741824\n"); /* a tighter limit, but the parent group has less
                                                             * available */
  put_file("sys/fs/cgroup/a/b/memory.current", "0\n");
  put_file("sys/fs/cgroup/a/memory.current", "2147483648\n");
  m = tws_host_memory_read_under(folder);
  ck_assert(m.total_bytes == 1024 * MIB && m.available_bytes == 512 * MIB && m.limited);
  put_file("proc/self/cgroup", "0::/not/seen/from/inside\n");
  put_file("sys/fs/cgroup/memory.max", "3221225472\n");
  m = tws_host_memory_read_under(folder);
  ck_assert(m.total_bytes == 3072 * MIB && m.limited);
  remove_folder();
  make_folder();
  put_file("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n");
  put_file("proc/self/cgroup", "5:hugetlb,memory:/x\n4:cpu:/y\n0::/\n");
  put_file("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1073741824\n");
  put_file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  m = tws_host_memory_read_under(folder);
  ck_assert(m.total_bytes == 1024 * MIB && m.available_bytes == 1024 * MIB && m.limited);
  remove_folder();
}
END_TEST

START_TEST(status_codes_and_errors) {
  ck_assert_str_eq(tws_code_name(TWS_INVALID), "INVALID");
  ck_assert_int_eq(tws_code_exit(TWS_OK), 0);
  ck_assert_int_eq(tws_code_exit(TWS_UNSUPPORTED), 3);
  ck_assert_int_eq(tws_code_exit(TWS_HANG), 124);
  ck_assert_int_eq(tws_code_exit((tws_code)99), 4);
  ck_assert_int_eq(tws_fail(NULL, TWS_IO, NULL, "no caller listens"), TWS_IO);
  ck_assert_int_eq(tws_fail(&err, TWS_RANK, "restart", "rank %d", 3), TWS_RANK);
  ck_assert_int_eq(tws_fail_in(&err, TWS_RANK, "node %s", "b"), TWS_RANK);
  ck_assert_str_eq(err.message, "node b: rank 3");
  ck_assert_str_eq(err.hint, "restart");
  tws_fail(&err, TWS_RANK, err.hint, "again: %s", err.message); /* its own text as argument */
  ck_assert_str_eq(err.message, "again: node b: rank 3");
  char longer[2000];
  for (size_t i = 0; i + 1 < sizeof longer; i += 2) memcpy(longer + i, "\xc3\xa9", 2); /* two-byte letters */
  longer[1998] = 0;
  tws_fail(&err, TWS_IO, longer, "x%s", longer);
  ck_assert_uint_lt(strlen(err.message), sizeof err.message);
  ck_assert_uint_eq(strlen(err.message) % 2, 1); /* x and whole letters */
  for (int i = 0; i < 100; i++) tws_fail_in(&err, TWS_IO, "prefix of some length");
  ck_assert_uint_lt(strlen(err.message), sizeof err.message);
}
END_TEST

START_TEST(arena_gives_zeroed_aligned_memory) {
  tws_arena *arena = tws_arena_create();
  unsigned char *previous = NULL;
  size_t previous_size = 0, total = 0;
  for (int i = 0; i < 2000; i++) {
    size_t size = tws_random_permute(1, 5000, (uint64_t)i) * (i % 97 == 0 ? 100 : 1) / 7;
    unsigned char *p = tws_arena_alloc(arena, size, 1);
    ck_assert_ptr_nonnull(p);
    ck_assert_uint_eq((uintptr_t)p % 16, 0);
    size_t wrong = 0; /* an assertion per byte would take too long */
    for (size_t k = 0; k < size; k++) wrong += p[k] != 0;
    memset(p, 0xff, size);
    for (size_t k = 0; k < previous_size; k++) wrong += previous[k] != 0xff;
    ck_assert_uint_eq(wrong, 0);
    previous = p;
    previous_size = size;
    total += size;
  }
  ck_assert_uint_ge(tws_arena_bytes(arena), total);
  ck_assert_str_eq(tws_arena_printf(arena, "%s %d", "layer", 7), "layer 7");
  ck_assert_str_eq(tws_arena_strdup(arena, ""), "");
  ck_assert_ptr_null(tws_arena_alloc(arena, SIZE_MAX, 2));
  ck_assert_ptr_null(tws_arena_alloc(arena, SIZE_MAX / 2, 1));
  tws_arena_destroy(arena);
  tws_arena_destroy(NULL);
}
END_TEST

START_TEST(growth_survives_overflow_and_exhaustion) {
  int *items = NULL;
  size_t capacity = 0;
  ck_assert_int_eq(tws_reserve(&items, &capacity, 3, sizeof *items), 0);
  ck_assert_uint_ge(capacity, 3);
  items[2] = 5;
  size_t before = capacity;
  ck_assert_int_eq(tws_reserve(&items, &capacity, SIZE_MAX / 2, sizeof *items), -1);
  ck_assert_uint_eq(capacity, before);
  ck_assert_int_eq(items[2], 5);
  tws_free(items);
  ck_assert_ptr_null(tws_calloc(SIZE_MAX / 2, 3));
  ck_assert_ptr_null(tws_realloc(NULL, SIZE_MAX / 2, 3));

  failing_allocator f = {.countdown = 1};
  tws_set_allocator(&(tws_allocator){failing_resize, &f});
  tws_text text = {0};
  tws_text_add(&text, "%s", "abc");
  for (int i = 0; i < 100; i++) tws_text_add(&text, "%d", i);
  ck_assert_int_eq(text.failed, 1);
  ck_assert_int_eq(strncmp(text.data, "abc012", 6), 0); /* what fitted stays */
  tws_text_free(&text);
  tws_set_allocator(NULL);
  ck_assert_int_eq(f.held, 0);
}
END_TEST

START_TEST(units_are_explicit) {
  static const struct {
    const char *text;
    double bytes; /* below 0: refused */
  } cases[] = {{"512", 512},
               {"40GiB", 40 * TWS_GIB},
               {"40 GB", 40e9},
               {"5e8", 5e8},
               {"2851e6", 2851e6},
               {" 1.5 MiB ", 1.5 * TWS_MIB},
               {"3kb", 3e3},
               {"0", 0},
               {"1KiB", 1024},
               {"", -1},
               {"GiB", -1},
               {"-1", -1},
               {"40G", -1},
               {"nan", -1},
               {"inf", -1},
               {"1e400", -1},
               {"1e290 PiB", 1e290 * 0x1p50},
               {"0x10", -1},
               {"5 GiB x", -1},
               {"1e308PiB", -1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    double bytes = -7;
    tws_code code = tws_parse_bytes(cases[i].text, "--memory", &bytes, &err);
    ck_assert_msg((code == TWS_OK) == (cases[i].bytes >= 0), "%s: %d", cases[i].text, (int)code);
    if (code == TWS_OK)
      ck_assert_double_eq(bytes, cases[i].bytes);
    else
      ck_assert_msg(code == TWS_USAGE && bytes == -7 && strstr(err.message, "--memory"), "%s", cases[i].text);
  }
  int64_t whole;
  ck_assert_int_eq(tws_parse_integer("9223372036854775807", "n", 0, INT64_MAX, &whole, &err), TWS_OK);
  ck_assert(whole == INT64_MAX);
  ck_assert_int_eq(tws_parse_integer("5e8", "n", 0, INT64_MAX, &whole, &err), TWS_OK);
  ck_assert(whole == 500000000);
  static const char *const bad[] = {"1.5", "9223372036854775808", "", "7x", "-1", "1e30", "two"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    ck_assert_msg(tws_parse_integer(bad[i], "n", 0, INT64_MAX, &whole, &err) == TWS_USAGE, "%s", bad[i]);
  double value;
  ck_assert_int_eq(tws_parse_number("0.5", "p", 0, 1, &value, &err), TWS_OK);
  ck_assert_int_eq(tws_parse_number("1.5", "p", 0, 1, &value, &err), TWS_USAGE);
}
END_TEST

START_TEST(units_read_well) {
  char b[64];
  ck_assert_str_eq(tws_format_bytes(0, b, sizeof b), "0 B");
  ck_assert_str_eq(tws_format_bytes(1536, b, sizeof b), "1.50 KiB");
  ck_assert_str_eq(tws_format_bytes(80 * TWS_GIB, b, sizeof b), "80.00 GiB");
  ck_assert_str_eq(tws_format_seconds(0.0124, b, sizeof b), "12.4 ms");
  ck_assert_str_eq(tws_format_seconds(2.5e-9, b, sizeof b), "2.50 ns");
  ck_assert_str_eq(tws_format_seconds(90, b, sizeof b), "90.0 s");
  ck_assert_str_eq(tws_format_seconds(260, b, sizeof b), "4.33 min");
  ck_assert_str_eq(tws_format_seconds(3600, b, sizeof b), "60.0 min");
  ck_assert_str_eq(tws_format_seconds(8460, b, sizeof b), "2.35 h");
  ck_assert_str_eq(tws_format_integer(0, b, sizeof b), "0");
  ck_assert_str_eq(tws_format_integer(999, b, sizeof b), "999");
  ck_assert_str_eq(tws_format_integer(-123456, b, sizeof b), "-123,456");
  ck_assert_str_eq(tws_format_integer(3386880, b, sizeof b), "3,386,880");
  ck_assert_str_eq(tws_format_rate(3.21e12, "FLOP/s", b, sizeof b), "3.21 TFLOP/s");
  ck_assert_str_eq(tws_format_count(124.4e6, b, sizeof b), "124.4 M");
  ck_assert_str_eq(tws_format_count(1.56e9, b, sizeof b), "1.56 B");
  ck_assert_str_eq(tws_format_count(12, b, sizeof b), "12");
  tws_format_bytes(1e30, b, 4); /* cut, not overrun */
  ck_assert_uint_le(strlen(b), 3);
}
END_TEST

/* Known answers published with Random123 (kat_vectors, philox4x32 with 10 rounds). */
START_TEST(philox_known_answers) {
  static const struct {
    uint64_t seed, stream, index;
    uint32_t out[4];
  } cases[] = {{0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
               {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
               {0x299f31d0a4093822u,
                0x0370734413198a2eu,
                0x85a308d3243f6a88u,
                {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (int c = 0; c < 3; c++) {
    uint32_t out[4];
    tws_philox(cases[c].seed, cases[c].stream, cases[c].index, out);
    for (int i = 0; i < 4; i++) ck_assert_uint_eq(out[i], cases[c].out[i]);
  }
}
END_TEST

START_TEST(random_moments) {
  enum { N = 200000 };
  double sum[4] = {0}, uniform = 0, low = 1, high = 0, pair = 0;
  for (int i = 0; i < N; i++) {
    double z = tws_random_normal(42, 7, (uint64_t)i), u = tws_random_uniform(42, 8, (uint64_t)i);
    double power = 1;
    for (int k = 0; k < 4; k++) sum[k] += (power *= z);
    pair += z * tws_random_normal(42, 7, (uint64_t)i ^ 1); /* the two halves of a Box-Muller pair */
    uniform += u;
    low = fmin(low, u);
    high = fmax(high, u);
  }
  ck_assert_double_lt(fabs(sum[0] / N), 0.01);
  ck_assert_double_lt(fabs(sum[1] / N - 1), 0.01);
  ck_assert_double_lt(fabs(sum[2] / N), 0.03);
  ck_assert_double_lt(fabs(sum[3] / N - 3), 0.1);
  ck_assert_double_lt(fabs(pair / N), 0.01);
  ck_assert_double_lt(fabs(uniform / N - 0.5), 0.005);
  ck_assert(low > 0 && low < 1e-4 && high < 1 && high > 1 - 1e-4);
  ck_assert(tws_random_normal(1, 2, 3) == tws_random_normal(1, 2, 3));
  ck_assert(tws_random_normal(1, 2, 3) != tws_random_normal(2, 2, 3));
}
END_TEST

START_TEST(permutations_are_permutations) {
  static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 100, 1000, 1023, 1024, 1025, 65537};
  static unsigned char seen[65537];
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    uint64_t n = sizes[s];
    for (uint64_t seed = 0; seed < 3; seed++) {
      uint64_t fixed = 0, wrong = 0;
      memset(seen, 0, n);
      for (uint64_t i = 0; i < n; i++) {
        uint64_t to = tws_random_permute(seed, n, i);
        wrong += to >= n || seen[to];
        if (to < n) seen[to] = 1;
        fixed += to == i;
      }
      ck_assert_uint_eq(wrong, 0);
      if (n >= 1000) ck_assert_uint_lt(fixed, 12); /* about one is expected */
    }
  }
  ck_assert_uint_lt(tws_random_permute(5, UINT64_MAX, 123), UINT64_MAX);
  ck_assert_uint_eq(tws_random_permute(5, 0, 0), 0);
}
END_TEST

START_TEST(bf16_rounds_to_nearest_even) {
  int wrong = 0;
  for (unsigned v = 0; v < 65536; v++) {
    float f = tws_from_bf16((unsigned short)v);
    wrong += isnan(f) ? !isnan(tws_from_bf16(tws_to_bf16(f))) : tws_to_bf16(f) != v;
  }
  for (uint64_t i = 0; i < 100000; i++) {
    uint32_t word[4];
    tws_philox(3, 3, i, word);
    float f;
    memcpy(&f, &word[0], 4);
    if (!isfinite(f) || fabsf(f) > 3e38f) continue;
    unsigned short down = (unsigned short)(word[0] >> 16), up = (unsigned short)(down + 1);
    double below = fabs((double)f - tws_from_bf16(down)), above = fabs((double)tws_from_bf16(up) - f);
    unsigned short nearest = below < above ? down : above < below ? up : down & 1 ? up : down;
    wrong += tws_to_bf16(f) != nearest;
  }
  ck_assert_int_eq(wrong, 0);
  ck_assert_uint_eq(tws_dtype_bytes(TWS_BF16), 2);
  ck_assert_uint_eq(tws_dtype_bytes(TWS_F64), 8);
  ck_assert_str_eq(tws_dtype_name(TWS_F16), "fp16");
  ck_assert_str_eq(tws_tier_name(TWS_TIER_PINNED), "pinned host");
}
END_TEST

START_TEST(files_are_replaced_whole) {
  char path[128], linked[128], missing[128], *text;
  size_t length;
  struct stat status;
  make_folder();
  snprintf(path, sizeof path, "%s/a.json", folder);
  snprintf(linked, sizeof linked, "%s/link", folder);
  snprintf(missing, sizeof missing, "%s/none/x", folder);
  ck_assert_int_eq(tws_write_file(path, "first", 5, &err), TWS_OK);
  ck_assert_int_eq(symlink("a.json", linked), 0);
  ck_assert_int_eq(tws_write_file(linked, "2nd", 3, &err), TWS_OK);
  ck_assert_int_eq(lstat(linked, &status), 0);
  ck_assert(S_ISREG(status.st_mode)); /* the link itself was replaced, and not the file that it led to */
  ck_assert_int_eq(tws_read_file(path, 0, &text, &length, &err), TWS_OK);
  ck_assert_str_eq(text, "first");
  tws_free(text);
  ck_assert_int_eq(tws_read_file(linked, 0, &text, &length, &err), TWS_OK);
  ck_assert_uint_eq(length, 3);
  ck_assert_str_eq(text, "2nd");
  tws_free(text);
  ck_assert_int_eq(tws_read_file(path, 2, &text, &length, &err), TWS_INVALID);
  ck_assert_ptr_null(text);
  ck_assert_int_eq(tws_read_file(folder, 0, &text, &length, &err), TWS_IO);
  ck_assert_int_eq(tws_read_file(missing, 0, &text, &length, &err), TWS_IO);
  ck_assert_ptr_nonnull(strstr(err.message, missing));
  ck_assert_int_eq(tws_write_file(missing, "y", 1, &err), TWS_IO);
  ck_assert_int_eq(tws_write_file("/dev/null", "y", 1, &err), TWS_OK); /* a device stays one */
  ck_assert_int_eq(stat("/dev/null", &status), 0);
  ck_assert(S_ISCHR(status.st_mode));
  unlink(linked);
  unlink(path);
  ck_assert_int_eq(rmdir(folder), 0); /* nothing else was left */
}
END_TEST

static void count_lines(void *user, tws_log_level level, const char *line) {
  (void)level;
  int *lines = user;
  if (strcmp(line, "step 3") == 0) ++*lines;
}
static void keep_line(void *user, const char *line) {
  snprintf(user, 256, "%s", line);
}

START_TEST(narration_obeys_its_level) {
  int lines = 0;
  tws_log log = {count_lines, &lines, TWS_LOG_INFO};
  tws_log_write(&log, TWS_LOG_INFO, "step %d", 3);
  tws_log_write(&log, TWS_LOG_DEBUG, "step %d", 3);
  tws_log_write(NULL, TWS_LOG_ERROR, "no caller");
  ck_assert_int_eq(lines, 1);
  char line[256] = "";
  tws_progress progress = {.draw = keep_line, .user = line}, silent = {0};
  tws_progress_begin(&progress, "tuning", 4);
  tws_progress_update(&progress, 2);
  tws_progress_end(&progress);
  ck_assert_ptr_nonnull(strstr(line, "tuning 100% (4 of 4)"));
  tws_progress_begin(&silent, "x", 0);
  tws_progress_update(&silent, 1);
  tws_progress_end(&silent);
}
END_TEST

START_TEST(closest_word) {
  static const char *const words[] = {"stage", "reduce_bucket_size", "allgather_bucket_size", "fp16", "bf16"};
  ck_assert_str_eq(tws_closest("stgae", words, 5), "stage");
  ck_assert_str_eq(tws_closest("Stage", words, 5), "stage");
  ck_assert_str_eq(tws_closest("reduce_bucket", words, 5), "reduce_bucket_size");
  ck_assert_str_eq(tws_closest("bfloat16", words, 5) ? "close" : "none", "none");
  ck_assert_ptr_null(tws_closest("momentum", words, 5));
  ck_assert_ptr_null(tws_closest("", words, 5));
  ck_assert_ptr_null(tws_closest("x", words, 0));
  char huge[500];
  memset(huge, 'a', sizeof huge - 1);
  huge[sizeof huge - 1] = 0;
  ck_assert_ptr_null(tws_closest(huge, words, 5));
  /* names of devices: a further part after a hyphen is nearer than other letters, another number is another device */
  static const char *const cards[] = {"rtx-4000-ada", "rtx-4070-ti", "rtx-4060-ti-16gb"};
  ck_assert_str_eq(tws_closest("RTX-4060-Ti", cards, 3), "rtx-4060-ti-16gb");
}
END_TEST

int main(void) {
  Suite *suite = suite_create("base");
  TCase *all = tcase_create("all");
  tcase_set_timeout(all, 60);
  tcase_add_test(all, status_codes_and_errors);
  tcase_add_test(all, arena_gives_zeroed_aligned_memory);
  tcase_add_test(all, growth_survives_overflow_and_exhaustion);
  tcase_add_test(all, units_are_explicit);
  tcase_add_test(all, units_read_well);
  tcase_add_test(all, philox_known_answers);
  tcase_add_test(all, random_moments);
  tcase_add_test(all, permutations_are_permutations);
  tcase_add_test(all, bf16_rounds_to_nearest_even);
  tcase_add_test(all, files_are_replaced_whole);
  tcase_add_test(all, narration_obeys_its_level);
  tcase_add_test(all, closest_word);
  tcase_add_test(all, memory_of_control_groups);
  suite_add_tcase(suite, all);
  return run_suite(suite);
}
