/* Reads comma-separated tables with a header row, as the program writes them (traces/timeline_csv.c), back for suites. */
#ifndef TWS_TESTS_CSV_H
#define TWS_TESTS_CSV_H

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/status.h"

/* A parsed table: every cell as text, and as a number (NaN if it is none). */
typedef struct csv_table {
  int columns, rows;
  char **heading;  /* [column] */
  char **cells;    /* [row][column] */
  double *numbers; /* [row][column] */
  tws_arena *arena;
} csv_table;
/* Reads one cell at *at, moves *at past it, and returns its text (unquoted, zero-terminated); NULL: no memory, or
 * *bad_quote is set. */
static inline char *read_cell(tws_arena *arena, const char **at, const char *end, int *bad_quote) {
  const char *p = *at;
  char *text = NULL;
  if (p < end && *p == '"') {
    const char *first = ++p;
    size_t length = 0;
    for (; p < end && (*p != '"' || (p + 1 < end && p[1] == '"')); p++, length++) {
      if (*p == '"') p++;
    }
    if (p >= end) {
      *bad_quote = 1;
      return NULL;
    }
    text = tws_arena_alloc(arena, length + 1, 1);
    for (size_t i = 0; text && i < length; i++, first++) {
      if (*first == '"') first++;
      text[i] = *first;
    }
    p++;
  } else {
    while (p < end && *p != ',' && *p != '\n' && *p != '\r') p++;
    text = tws_arena_alloc(arena, (size_t)(p - *at) + 1, 1);
    if (text) memcpy(text, *at, (size_t)(p - *at));
  }
  *at = p;
  return text;
}

typedef struct cells {
  char **item;
  size_t count, capacity;
} cells;

/* Reads one line of cells; sets *more to 0 at the end of the text. */
static inline tws_code read_line(tws_arena *arena, const char **at, const char *end, cells *into, const char *name,
                                 int line, tws_error *err) {
  for (;;) {
    int bad_quote = 0;
    char *cell = read_cell(arena, at, end, &bad_quote);
    if (bad_quote)
      return tws_fail(err, TWS_INVALID, "close the quoted cell", "%.300s:%d: a quoted cell has no end", name, line);
    if (!cell || tws_reserve(&into->item, &into->capacity, into->count + 1, sizeof *into->item) != 0)
      return tws_fail(err, TWS_MEMORY, NULL, "out of memory while reading %.300s", name);
    into->item[into->count++] = cell;
    if (*at < end && **at == ',') {
      ++*at;
      continue;
    }
    if (*at < end && **at == '\r') ++*at;
    if (*at < end && **at != '\n')
      return tws_fail(err, TWS_INVALID, NULL, "%.300s:%d: text after a quoted cell", name, line);
    if (*at < end) ++*at;
    return TWS_OK;
  }
}

static inline tws_code fill_table(csv_table *csv, cells *all, const char *name, tws_error *err) {
  const size_t count = all->count - (size_t)csv->columns;
  csv->rows = (int)(count / (size_t)csv->columns);
  csv->heading = tws_arena_alloc(csv->arena, (size_t)csv->columns, sizeof(char *));
  csv->cells = tws_arena_alloc(csv->arena, count + 1, sizeof(char *));
  csv->numbers = tws_arena_alloc(csv->arena, count + 1, sizeof(double));
  if (!csv->heading || !csv->cells || !csv->numbers)
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory while reading %.300s", name);
  memcpy(csv->heading, all->item, (size_t)csv->columns * sizeof(char *));
  for (size_t i = 0; i < count; i++) {
    const char *cell = csv->cells[i] = all->item[(size_t)csv->columns + i];
    csv->numbers[i] = strcmp(cell, "inf") == 0 ? INFINITY : strcmp(cell, "-inf") == 0 ? -INFINITY : NAN;
    tws_text_number(cell, NULL, -HUGE_VAL, HUGE_VAL, &csv->numbers[i]);
  }
  return TWS_OK;
}

/* Parses a table. Fails with TWS_INVALID and names file and line if a line has another number of cells than the header
 * or an open quote. */
static inline tws_code csv_parse(const char *text, size_t length, const char *name, csv_table **out, tws_error *err) {
  const char *at = text, *end = text + length;
  cells all = {0};
  *out = NULL;
  tws_arena *arena = tws_arena_create();
  csv_table *csv = arena ? tws_arena_alloc(arena, 1, sizeof *csv) : NULL;
  if (!csv) {
    tws_arena_destroy(arena);
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory while reading %.300s", name);
  }
  csv->arena = arena;
  tws_code code = TWS_OK;
  if (length == 0) code = tws_fail(err, TWS_INVALID, NULL, "%.300s: empty, expected a heading line", name);
  for (int line = 1; code == TWS_OK && at < end; line++) {
    const size_t before = all.count;
    code = read_line(arena, &at, end, &all, name, line, err);
    const size_t found = all.count - before;
    if (line == 1) csv->columns = (int)found;
    if (code == TWS_OK && found != (size_t)csv->columns)
      code = tws_fail(err, TWS_INVALID, NULL, "%.300s:%d: %zu cells, but the heading has %d", name, line, found,
                      csv->columns);
  }
  if (code == TWS_OK) code = fill_table(csv, &all, name, err);
  tws_free(all.item);
  if (code != TWS_OK)
    tws_arena_destroy(arena);
  else
    *out = csv;
  return code;
}

static inline tws_code csv_read(const char *path, csv_table **out, tws_error *err) {
  char *text = NULL;
  size_t length = 0;
  *out = NULL;
  TWS_TRY(tws_read_file(path, (size_t)1 << 30, &text, &length, err));
  tws_code code = csv_parse(text, length, path, out, err);
  tws_free(text);
  return code;
}

static inline void csv_destroy(csv_table *csv) {
  if (csv) tws_arena_destroy(csv->arena);
}

static inline int csv_column(const csv_table *csv, const char *heading) {
  for (int i = 0; i < csv->columns; i++) {
    if (strcmp(csv->heading[i], heading) == 0) return i;
  }
  return -1;
}

#endif
