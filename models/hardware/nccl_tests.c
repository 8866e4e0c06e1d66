#include "models/hardware/nccl_tests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "models/collective.h"
#include "models/hardware/profile_internal.h"

/* The columns of a row; the header line before it gives their order. Logs from before 2021 have the columns "root" and
 * "redop" only for tests with a root or a reduction. */
enum column { SIZE, COUNT, TYPE, REDOP, ROOT, TIME, COLUMNS };
enum { MOST_WORDS = 32 };
typedef struct row {
  double bytes, count, us;
  char type[24], redop[16];
  int root; /* rank of the root; -1: none */
} row;

/* Copies the next word of the line, truncated to `size`, and advances *at. Returns 1, or 0 at the end of the line. */
static int read_word(const char **at, char *word, size_t size) {
  const char *from = *at + strspn(*at, " \t");
  const size_t length = strcspn(from, " \t\r\n");
  snprintf(word, size, "%.*s", (int)(length < size ? length : size - 1), from);
  *at = from + length;
  return length > 0;
}

/* Reads a header such as "# size count type redop root time algbw busbw #wrong ..." and sets at[] to the positions of
 * the columns, -1 if absent. The first column "time" is that of the out-of-place test. */
static int read_header(const char *line, int at[COLUMNS]) {
  static const char *const names[COLUMNS] = {"size", "count", "type", "redop", "root", "time"};
  int found[COLUMNS] = {-1, -1, -1, -1, -1, -1};
  char word[24];
  line++; /* skips the '#' */
  for (int i = 0; i < MOST_WORDS && read_word(&line, word, sizeof word); i++)
    for (int c = 0; c < COLUMNS; c++)
      if (found[c] < 0 && strcmp(word, names[c]) == 0) found[c] = i;
  if (found[SIZE] != 0 || found[COUNT] < 0 || found[TYPE] < 0 || found[TIME] < 0) return 0;
  memcpy(at, found, sizeof found);
  return 1;
}

/* Returns 1 if the line is a row of these columns, 0 if it is another line, -1 if its words do not match the columns of
 * the header. */
static int read_row(const char *line, const int at[COLUMNS], row *r) {
  char words[MOST_WORDS][24];
  int count = 0, good = 1;
  *r = (row){.redop = "none", .root = -1};
  while (count < MOST_WORDS && read_word(&line, words[count], sizeof words[count])) count++;
  if (count < 2 || !tws_text_number(words[0], NULL, 0, 1e18, &r->bytes) ||
      !tws_text_number(words[1], NULL, 0, 1e18, &r->count))
    return 0;
  for (int c = 0; c < COLUMNS; c++) good &= at[c] < count;
  if (!good) return -1;
  snprintf(r->type, sizeof r->type, "%s", words[at[TYPE]]);
  if (at[REDOP] >= 0) snprintf(r->redop, sizeof r->redop, "%.15s", words[at[REDOP]]);
  if (at[ROOT] >= 0) good = tws_text_int(words[at[ROOT]], NULL, -1, INT32_MAX, &r->root);
  return good && tws_text_number(words[at[COUNT]], NULL, 0, 1e18, &r->count) &&
                 tws_text_number(words[at[TIME]], NULL, 0, 1e15, &r->us)
             ? 1
             : -1;
}

static int is_summed(const row *r) {
  return strcmp(r->redop, "none") != 0;
}

static double width_of(const char *type) {
  static const struct {
    const char *begin;
    double width;
  } types[] = {{"double", 8}, {"int64", 8}, {"uint64", 8}, {"half", 2}, {"bfloat16", 2},
               {"int8", 1},   {"uint8", 1}, {"fp8", 1},    {"f8", 1}};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (strncmp(type, types[i].begin, strlen(types[i].begin)) == 0) return types[i].width;
  return 4;
}

/* Returns 1 if `count` is the number of elements per rank, not of the whole tensor. */
static int is_parted(const row *r) {
  return r->count > 0 && r->bytes / r->count > 1.5 * width_of(r->type);
}

static int named(const char *text, tws_collective *collective) {
  static const struct {
    const char *name;
    tws_collective is;
  } tests[] = {{"all_reduce_perf", TWS_COLLECTIVE_ALL_REDUCE},
               {"all_gather_perf", TWS_COLLECTIVE_ALL_GATHER},
               {"reduce_scatter_perf", TWS_COLLECTIVE_REDUCE_SCATTER},
               {"broadcast_perf", TWS_COLLECTIVE_BROADCAST},
               {"alltoall_perf", TWS_COLLECTIVE_COUNT},
               {"sendrecv_perf", TWS_COLLECTIVE_COUNT},
               {"hypercube_perf", TWS_COLLECTIVE_COUNT},
               {"scatter_perf", TWS_COLLECTIVE_COUNT},
               {"gather_perf", TWS_COLLECTIVE_COUNT},
               {"reduce_perf", TWS_COLLECTIVE_REDUCE}};
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
    if (!strstr(text, tests[i].name)) continue;
    *collective = tests[i].is;
    return 1;
  }
  return 0;
}

/* Returns 1 and writes the host's name if the line is of the form "# Rank 0 Group 0 Pid 1234 on host device 0 [0x07]
 * NVIDIA A100-SXM4-80GB". */
static int read_rank(const char *line, char *host, size_t size) {
  int rank;
  const char *on = strstr(line, " on "), *at = line + 1 + strspn(line + 1, " \t"), *rest;
  if (strncmp(at, "Rank", 4) != 0 || !tws_text_int(at + 4, &rest, 0, INT32_MAX, &rank) || !on) return 0;
  on += 4;
  return read_word(&on, host, size);
}

/* Reads the rows and ranks of a log. *last is the last row, *hosts is 1 if the log has ranks on several nodes, and
 * *bare is the line number of the first row without a header line before it, or 0. */
static tws_code read_lines(const char *text, const char *name, tws_nccl_log *out, row *last, int *hosts, int *bare,
                           tws_error *err) {
  char first[64] = "", host[64];
  int columns[COLUMNS], headed = 0, number = 0;
  row r;
  for (const char *line = text; line; line = strchr(line, '\n')) {
    line += *line == '\n';
    number++;
    if (*line == '#' && read_rank(line, host, sizeof host)) {
      out->ranks++;
      if (!first[0]) snprintf(first, sizeof first, "%s", host);
      *hosts |= strcmp(first, host) != 0;
    } else if (*line == '#') {
      headed |= read_header(line, columns);
    } else {
      static const int now[COLUMNS] = {0, 1, 2, 3, 4, 5};
      const int kind = read_row(line, headed ? columns : now, &r);
      if (kind == 1 && !headed && !*bare) *bare = number;
      if (kind < 0 && headed)
        return tws_fail(err, TWS_INVALID, "give the log as nccl-tests printed it",
                        "%s:%d: the row's columns are not those of the log's header line", name, number);
      if (kind != 1 || !(r.bytes > 0) || !(r.us > 0) || out->count == TWS_NCCL_TESTS_ROWS) continue;
      out->samples[out->count][0] = r.bytes;
      out->samples[out->count++][1] = 1e-6 * r.us;
      *last = r;
    }
  }
  return TWS_OK;
}

tws_code tws_nccl_tests_read(const char *text, const char *name, tws_nccl_log *out, tws_error *err) {
  int hosts = 0, bare = 0;
  row last = {0};
  *out = (tws_nccl_log){0};
  TWS_TRY(read_lines(text, name, out, &last, &hosts, &bare, err));
  if (out->count == 0)
    return tws_fail(err, TWS_INVALID, "all_reduce_perf -b 1M -e 1G -f 2 -g 8 > log.txt", "%s has no row of nccl-tests",
                    name);
  if (out->ranks < 2)
    return tws_fail(err, TWS_INVALID, "keep the lines that begin with \"#  Rank\"", "%s names %d rank%s", name,
                    out->ranks, out->ranks == 1 ? "" : "s");
  if (hosts)
    return tws_fail(err, TWS_INVALID, "give the cluster file an \"inter\" bandwidth that its bus bandwidth says",
                    "%s is of several nodes, and a profile's tables are of one", name);
  if (bare)
    return tws_fail(err, TWS_INVALID, "keep the line that begins with \"#       size         count\"",
                    "%s:%d: no line before this row says what its columns are", name, bare);
  if (!named(text, &out->collective))
    out->collective = is_summed(&last) ? (last.root >= 0     ? TWS_COLLECTIVE_REDUCE
                                          : is_parted(&last) ? TWS_COLLECTIVE_REDUCE_SCATTER
                                                             : TWS_COLLECTIVE_ALL_REDUCE)
                      : last.root >= 0 ? TWS_COLLECTIVE_BROADCAST
                                       : TWS_COLLECTIVE_ALL_GATHER;
  if (out->collective == TWS_COLLECTIVE_COUNT || !tws_collective_of(out->collective)->calibrated)
    return tws_fail(err, TWS_INVALID, NULL, "%s is of a test that a profile has no table of", name);
  return TWS_OK;
}

/* ---- adding a log to a profile ---- */

static void drop_same(cJSON *tables, const tws_nccl_log *log) {
  for (int i = cJSON_GetArraySize(tables) - 1; i >= 0; i--) {
    const cJSON *table = cJSON_GetArrayItem(tables, i);
    const cJSON *word = cJSON_GetObjectItemCaseSensitive(table, "collective");
    const cJSON *ranks = cJSON_GetObjectItemCaseSensitive(table, "ranks");
    if (cJSON_IsString(word) && strcmp(word->valuestring, tws_collective_name(log->collective)) == 0 &&
        cJSON_IsNumber(ranks) && ranks->valuedouble == (double)log->ranks)
      cJSON_DeleteItemFromArray(tables, i);
  }
}

static void add_table(cJSON *tables, const tws_nccl_log *log) {
  cJSON *table = cJSON_CreateObject(), *samples;
  cJSON_AddStringToObject(table, "collective", tws_collective_name(log->collective));
  cJSON_AddNumberToObject(table, "ranks", log->ranks);
  samples = cJSON_AddArrayToObject(table, "samples");
  for (int i = 0; i < log->count; i++) cJSON_AddItemToArray(samples, cJSON_CreateDoubleArray(log->samples[i], 2));
  cJSON_AddItemToArray(tables, table);
}

static void append(cJSON *root, const char *key, const char *more) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, key);
  char text[512];
  snprintf(text, sizeof text, "%.300s%.200s", cJSON_IsString(item) ? item->valuestring : "", more);
  cJSON_DeleteItemFromObjectCaseSensitive(root, key);
  cJSON_AddStringToObject(root, key, text);
}

void tws_nccl_tests_add(const tws_nccl_log *log, const char *by, const char *name, cJSON *root) {
  char more[200];
  cJSON *tables = cJSON_GetObjectItemCaseSensitive(root, "collectives");
  if (!tables) tables = cJSON_AddArrayToObject(root, "collectives");
  drop_same(tables, log);
  add_table(tables, log);
  const char *slash = strrchr(name, '/');
  snprintf(more, sizeof more, "; %s of %d ranks by %s (%.80s)", tws_collective_name(log->collective), log->ranks, by,
           slash ? slash + 1 : name);
  append(root, "provenance", more);
}

tws_code tws_nccl_tests_into(const tws_nccl_log *log, const char *name, const char *profile, cJSON **out,
                             tws_error *err) {
  tws_json *json;
  tws_profile *check;
  *out = NULL;
  TWS_TRY(tws_profile_open(profile, &json, err));
  tws_code code = tws_profile_from_json(json, &check, err); /* check that the result is a valid profile */
  if (code == TWS_OK) tws_profile_destroy(check);
  cJSON *root = code == TWS_OK ? cJSON_Duplicate(json->root, 1) : NULL;
  tws_json_destroy(json);
  TWS_TRY(code);
  if (!root) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a profile");
  tws_nccl_tests_add(log, "nccl-tests", name, root);
  *out = root;
  return TWS_OK;
}
