/* Comma-separated tables with a header row: logs of training, timelines and comparisons, for gnuplot and
 * spreadsheets. */
#ifndef TWS_TRACES_CSV_H
#define TWS_TRACES_CSV_H

#include "base/memory.h"
#include "base/status.h"

/* Append one cell, after a comma unless it is the first of its line; text with commas, quotes or line breaks is
 * quoted (RFC 4180). tws_csv_end() ends the line. */
void tws_csv_text(tws_text *out, const char *text);
void tws_csv_number(tws_text *out, double value); /* shortest text that reads back the same; nan and inf as such */
void tws_csv_integer(tws_text *out, long long value);
void tws_csv_end(tws_text *out);

/* A parsed table: every column as texts, and as numbers (NaN where a cell is none). */
typedef struct tws_csv {
  int columns, rows;
  char **heading;  /* [columns] */
  char **cells;    /* [rows][columns] */
  double *numbers; /* [rows][columns] */
  tws_arena *arena;
} tws_csv;
/* TWS_INVALID with file and line if a line has another number of cells than the header or an open quote. */
tws_code tws_csv_parse(const char *text, size_t length, const char *name, tws_csv **out, tws_error *err);
tws_code tws_csv_read(const char *path, tws_csv **out, tws_error *err);
void tws_csv_destroy(tws_csv *csv);
int tws_csv_column(const tws_csv *csv, const char *heading); /* -1: not there */

#endif
