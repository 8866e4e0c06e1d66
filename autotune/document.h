/* Writes one document either as HTML without external files (SVG figures inline, well-formed as XML) or as Markdown. */
#ifndef TWS_AUTOTUNE_DOCUMENT_H
#define TWS_AUTOTUNE_DOCUMENT_H

#include "base/memory.h"

typedef enum tws_document_format { TWS_DOCUMENT_HTML, TWS_DOCUMENT_MARKDOWN } tws_document_format;
typedef struct tws_document {
  tws_document_format dress;
  tws_text text;
  int columns; /* number of columns of the open table */
} tws_document;

void tws_document_begin(tws_document *document, tws_document_format dress, const char *title);
void tws_document_end(tws_document *document);
void tws_document_heading(tws_document *document, const char *text);
void tws_document_paragraph(tws_document *document, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Begins a table. Heads and cells are plain text, whose special characters are escaped. */
void tws_document_table(tws_document *document, const char *const *heads, int columns);
void tws_document_row(tws_document *document, const char *const *cells);
void tws_document_table_end(tws_document *document);
/* Adds a figure. svg: text from tws_figure_points() or tws_figure_bars(); file: path of the same figure, relative to
 * the Markdown document. */
void tws_document_figure(tws_document *document, const char *svg, const char *file, const char *caption);

/* ---- figures ---- */
typedef struct tws_mark {
  double x, y;
  int strong;        /* 1: highlighted, and connected to the other highlighted marks by a line */
  const char *label; /* text next to the mark; NULL: none; it is omitted if it would overlap another */
  const char *tip;   /* tooltip; NULL: none */
  int line_only;     /* 1: no mark is drawn; only the line of highlighted marks passes through the point */
} tws_mark;
/* Draws a scatter plot; highlighted marks are connected in their order. Axes begin at 0 unless all values are far from
 * 0. */
void tws_figure_points(const tws_mark *marks, int count, const char *x_title, const char *y_title, tws_text *svg);
/* Draws a horizontal bar from 0 to the y of each mark, with the label on the left and the text of `values` on the
 * right. */
void tws_figure_bars(const tws_mark *marks, const char *const *values, int count, const char *title, tws_text *svg);

#endif
