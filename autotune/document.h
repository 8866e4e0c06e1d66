/* One text in two dresses: HTML that needs nothing but itself (SVG figures inside, well-formed as XML), or Markdown. */
#ifndef TWS_AUTOTUNE_DOCUMENT_H
#define TWS_AUTOTUNE_DOCUMENT_H

#include "base/memory.h"

typedef enum tws_dress { TWS_DRESS_HTML, TWS_DRESS_MARKDOWN } tws_dress;
typedef struct tws_document {
  tws_dress dress;
  tws_text text;
  int columns; /* of the table that is open */
} tws_document;

void tws_document_begin(tws_document *document, tws_dress dress, const char *title);
void tws_document_end(tws_document *document);
void tws_document_heading(tws_document *document, const char *text);
void tws_document_paragraph(tws_document *document, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Cells are texts, whatever is in them. */
void tws_document_table(tws_document *document, const char *const *heads, int columns);
void tws_document_row(tws_document *document, const char *const *cells);
void tws_document_table_end(tws_document *document);
/* svg: tws_figure_svg(); file: where the same figure lies beside a Markdown document. */
void tws_document_figure(tws_document *document, const char *svg, const char *file, const char *caption);

/* ---- figures ---- */
typedef struct tws_mark {
  double x, y;
  int strong;        /* stands out, and joins the line through those that do */
  const char *label; /* NULL: none; left out where it would cover another */
  const char *tip;   /* shown when it is pointed at; NULL: none */
  int line_only;     /* the line leads through it, and nothing is drawn there */
} tws_mark;
/* Points in a plane; strong ones are joined in their order. Axes begin at 0 unless all values lie far from it. */
void tws_figure_points(const tws_mark *marks, int count, const char *x_title, const char *y_title, tws_text *svg);
/* Horizontal bars from 0 to each y, with the label before and `values` behind. */
void tws_figure_bars(const tws_mark *marks, const char *const *values, int count, const char *title, tws_text *svg);

#endif
