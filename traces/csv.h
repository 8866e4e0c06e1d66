/* Comma-separated tables with a header row: logs of training, timelines and comparisons, for gnuplot and
 * spreadsheets. */
#ifndef TWS_TRACES_CSV_H
#define TWS_TRACES_CSV_H

#include "base/memory.h"
#include "base/status.h"

/* tws_csv_text() and tws_csv_number() append one cell, after a comma unless it is the first of its line; text with
 * commas, quotes or line breaks is quoted (RFC 4180). tws_csv_end() ends the line. */
void tws_csv_text(tws_text *out, const char *text);
void tws_csv_number(tws_text *out, double value); /* appends the shortest text that reads back as the same number; nan
                                                   * and inf are written as such */
void tws_csv_integer(tws_text *out, long long value);
void tws_csv_end(tws_text *out);

/* A parsed table: every cell as text, and as a number (NaN if it is none). */
typedef struct tws_csv {
  int columns, rows;
  char **heading;  /* [column] */
  char **cells;    /* [row][column] */
  double *numbers; /* [row][column] */
  tws_arena *arena;
} tws_csv;
/* Parses a table. Fails with TWS_INVALID and names file and line if a line has another number of cells than the header
 * or an open quote. */
tws_code tws_csv_parse(const char *text, size_t length, const char *name, tws_csv **out, tws_error *err);
tws_code tws_csv_read(const char *path, tws_csv **out, tws_error *err);
void tws_csv_destroy(tws_csv *csv);
int tws_csv_column(const tws_csv *csv, const char *heading); /* returns the index of the column, or -1 */

#endif
