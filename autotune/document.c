#include "autotune/document.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- text ---- */

/* Escapes the special characters of HTML, XML and SVG; control characters are dropped, since none of these formats
 * allows them. */
static void add_escaped(tws_text *out, const char *text) {
  for (; *text; text++) {
    const unsigned char c = (unsigned char)*text;
    if (c == '&')
      tws_text_add(out, "&amp;");
    else if (c == '<')
      tws_text_add(out, "&lt;");
    else if (c == '>')
      tws_text_add(out, "&gt;");
    else if (c == '"')
      tws_text_add(out, "&quot;");
    else
      tws_text_add(out, "%c", c < 32 ? ' ' : c);
  }
}

static void add_markdown(tws_text *out, const char *text) {
  for (; *text; text++) {
    if (strchr("|*_<>`\\", *text)) tws_text_add(out, "\\");
    tws_text_add(out, "%c", (unsigned char)*text < 32 ? ' ' : *text);
  }
}

static void add_plain(tws_document *d, const char *text) {
  if (d->dress == TWS_DOCUMENT_HTML)
    add_escaped(&d->text, text);
  else
    add_markdown(&d->text, text);
}

void tws_document_begin(tws_document *d, tws_document_format dress, const char *title) {
  *d = (tws_document){.dress = dress};
  if (dress == TWS_DOCUMENT_MARKDOWN) {
    tws_text_add(&d->text, "# ");
    add_plain(d, title);
    tws_text_add(&d->text, "\n");
    return;
  }
  tws_text_add(&d->text,
               "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n"
               "<meta charset=\"utf-8\"/>\n<title>");
  add_plain(d, title);
  tws_text_add(&d->text,
               "</title>\n<style>\n"
               "body { font: 15px/1.45 sans-serif; color: #222; max-width: 64em; margin: 2em auto; padding: 0 1em }\n"
               "table { border-collapse: collapse; margin: 1em 0; font-size: 90%% }\n"
               "th, td { border-bottom: 1px solid #ddd; padding: 0.25em 0.7em; text-align: left }\n"
               "th { border-bottom: 2px solid #888 }\n"
               "th, td:nth-child(n+2):nth-last-child(n+2) { white-space: nowrap }\n"
               "figure { margin: 1em 0 } figcaption { color: #555; font-size: 90%% }\n"
               "svg { max-width: 100%%; height: auto }\n"
               "</style>\n</head>\n<body>\n<h1>");
  add_plain(d, title);
  tws_text_add(&d->text, "</h1>\n");
}

void tws_document_end(tws_document *d) {
  if (d->dress == TWS_DOCUMENT_HTML) tws_text_add(&d->text, "</body>\n</html>\n");
}

static void wrapped(tws_document *d, const char *before, const char *text, const char *after) {
  if (d->dress == TWS_DOCUMENT_HTML) tws_text_add(&d->text, "<%s>", before);
  if (d->dress == TWS_DOCUMENT_MARKDOWN) tws_text_add(&d->text, "%s", after);
  add_plain(d, text);
  if (d->dress == TWS_DOCUMENT_HTML) tws_text_add(&d->text, "</%s>", before);
  tws_text_add(&d->text, "\n");
}

void tws_document_heading(tws_document *d, const char *text) {
  wrapped(d, "h2", text, "\n## ");
}

void tws_document_paragraph(tws_document *d, const char *format, ...) {
  char text[2048];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  wrapped(d, "p", text, "\n");
}

static void add_cells(tws_document *d, const char *const *cells, const char *tag) {
  if (d->dress == TWS_DOCUMENT_HTML) tws_text_add(&d->text, "<tr>");
  for (int i = 0; i < d->columns; i++) {
    if (d->dress == TWS_DOCUMENT_HTML) tws_text_add(&d->text, "<%s>", tag);
    if (d->dress == TWS_DOCUMENT_MARKDOWN) tws_text_add(&d->text, "| ");
    add_plain(d, cells[i] ? cells[i] : "");
    if (d->dress == TWS_DOCUMENT_HTML) tws_text_add(&d->text, "</%s>", tag);
    if (d->dress == TWS_DOCUMENT_MARKDOWN) tws_text_add(&d->text, " ");
  }
  tws_text_add(&d->text, d->dress == TWS_DOCUMENT_HTML ? "</tr>\n" : "|\n");
}

void tws_document_table(tws_document *d, const char *const *heads, int columns) {
  d->columns = columns;
  tws_text_add(&d->text, d->dress == TWS_DOCUMENT_HTML ? "<table>\n" : "\n");
  add_cells(d, heads, "th");
  if (d->dress == TWS_DOCUMENT_HTML) return;
  for (int i = 0; i < columns; i++) tws_text_add(&d->text, "|---");
  tws_text_add(&d->text, "|\n");
}

void tws_document_row(tws_document *d, const char *const *cells) {
  add_cells(d, cells, "td");
}

void tws_document_table_end(tws_document *d) {
  if (d->dress == TWS_DOCUMENT_HTML) tws_text_add(&d->text, "</table>\n");
}

void tws_document_figure(tws_document *d, const char *svg, const char *file, const char *caption) {
  if (d->dress == TWS_DOCUMENT_HTML) {
    tws_text_add(&d->text, "<figure>\n%s<figcaption>", svg);
    add_plain(d, caption);
    tws_text_add(&d->text, "</figcaption>\n</figure>\n");
    return;
  }
  tws_text_add(&d->text, "\n![");
  add_plain(d, caption);
  tws_text_add(&d->text, "](%s)\n", file);
}

/* ---- figures ---- */

enum { WIDTH = 760, HEIGHT = 420, LEFT = 90, RIGHT = 30, TOP = 20, BOTTOM = 56, BAR = 22, NAMES = 300 };
#define BLUE "#2b6cb0"
#define GREY "#b8c4d0"

static void begin_svg(tws_text *svg, int height) {
  tws_text_add(svg,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
               "font-family=\"sans-serif\" font-size=\"12\">\n",
               WIDTH, height, WIDTH, height);
}

static void add_label(tws_text *svg, double x, double y, const char *anchor, const char *text) {
  tws_text_add(svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
  add_escaped(svg, text);
  tws_text_add(svg, "</text>\n");
}

/* Returns the distance between ticks: 1, 2 or 5 times a power of ten, such that there are at most ten ticks from 0 to
 * `end`. */
static double tick_of(double end) {
  double tick = pow(10, floor(log10(end / 10)));
  while (end / tick > 10) tick *= end / tick > 25 ? 5 : 2;
  return tick;
}

typedef struct axis {
  double begin, end, tick;
} axis;

/* Chooses the range of an axis. If the values are close together and far from 0, the axis does not begin at 0. */
static axis axis_of(double least, double most) {
  const double room = least > 0.5 * most ? 0.3 * (most - least) : 0;
  axis a = {0, most * 1.08, tick_of(most * 1.08)};
  if (!(room > 0)) return a;
  a.tick = tick_of(most - least + 2 * room);
  a.begin = floor((least - room) / a.tick) * a.tick;
  a.end = most + room;
  return a;
}

static double share_of(const axis *a, double value) {
  return (value - a->begin) / (a->end - a->begin);
}

static double x_of(const axis *a, double value) {
  return LEFT + share_of(a, value) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const axis *a, double value) {
  return HEIGHT - BOTTOM - share_of(a, value) * (HEIGHT - TOP - BOTTOM);
}

static void add_axis(tws_text *svg, const axis *a, int vertical, const char *title) {
  for (int i = 0; a->begin + i * a->tick <= a->end * 1.0001; i++) {
    const double value = a->begin + i * a->tick;
    const double x = vertical ? LEFT : x_of(a, value), y = vertical ? y_of(a, value) : HEIGHT - BOTTOM;
    char text[24];
    snprintf(text, sizeof text, "%.6g", value);
    tws_text_add(svg, "<path d=\"M%.1f %.1f%s\" stroke=\"#ddd\" fill=\"none\"/>\n", x, y,
                 vertical ? "H730" : "V20"); /* the grid line ends at x = WIDTH - RIGHT, or at y = TOP */
    add_label(svg, vertical ? x - 6 : x, vertical ? y + 4 : y + 16, vertical ? "end" : "middle", text);
  }
  if (vertical) tws_text_add(svg, "<g transform=\"translate(16 %d) rotate(-90)\">", (HEIGHT - BOTTOM + TOP) / 2);
  add_label(svg, vertical ? 0 : (LEFT + WIDTH - RIGHT) / 2.0, vertical ? 0 : HEIGHT - 14, "middle", title);
  if (vertical) tws_text_add(svg, "</g>\n");
}

static void add_points(tws_text *svg, const tws_mark *marks, int count, const axis *x_axis, const axis *y_axis) {
  int joined = 0;
  tws_text_add(svg, "<path stroke=\"" BLUE "\" fill=\"none\" d=\"M%d %d", LEFT, HEIGHT - BOTTOM);
  for (int i = 0; i < count; i++)
    if (marks[i].strong)
      tws_text_add(svg, "%s%.1f %.1f", joined++ ? "L" : "M", x_of(x_axis, marks[i].x), y_of(y_axis, marks[i].y));
  tws_text_add(svg, "\"/>\n");
  for (int i = 0; i < count; i++) {
    if (marks[i].line_only) continue;
    tws_text_add(svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\" fill=\"%s\">", x_of(x_axis, marks[i].x),
                 y_of(y_axis, marks[i].y), marks[i].strong ? 5 : 3, marks[i].strong ? BLUE : GREY);
    if (marks[i].tip) {
      tws_text_add(svg, "<title>");
      add_escaped(svg, marks[i].tip);
      tws_text_add(svg, "</title>");
    }
    tws_text_add(svg, "</circle>\n");
  }
}

/* Draws the labels in the order of the marks, and omits labels that would overlap an earlier one. */
static void add_labels(tws_text *svg, const tws_mark *marks, int count, const axis *x_axis, const axis *y_axis) {
  enum { MOST = 64, LINE = 14 };
  double left[MOST], right[MOST], at[MOST];
  int placed = 0;
  for (int i = 0; i < count && placed < MOST; i++) {
    if (!marks[i].label) continue;
    const double x = x_of(x_axis, marks[i].x), y = y_of(y_axis, marks[i].y),
                 width = 7.0 * (double)strlen(marks[i].label);
    const int before = x + 8 + width > WIDTH;
    left[placed] = before ? x - 8 - width : x + 8;
    right[placed] = left[placed] + width;
    at[placed] = y;
    int covers = 0;
    for (int k = 0; k < placed; k++)
      covers |= fabs(at[k] - y) < LINE && left[placed] < right[k] && left[k] < right[placed];
    if (covers) continue;
    placed++;
    add_label(svg, before ? x - 8 : x + 8, y + 4, before ? "end" : "start", marks[i].label);
  }
}

void tws_figure_points(const tws_mark *marks, int count, const char *x_title, const char *y_title, tws_text *svg) {
  double x_end = 0, y_end = 0, x_begin = HUGE_VAL, y_begin = HUGE_VAL;
  for (int i = 0; i < count; i++) {
    x_begin = fmin(x_begin, marks[i].x);
    y_begin = fmin(y_begin, marks[i].y);
    x_end = fmax(x_end, marks[i].x);
    y_end = fmax(y_end, marks[i].y);
  }
  begin_svg(svg, HEIGHT);
  if (x_end > 0 && y_end > 0 && isfinite(x_end) && isfinite(y_end)) {
    const axis x_axis = axis_of(x_begin, x_end), y_axis = axis_of(y_begin, y_end);
    add_axis(svg, &x_axis, 0, x_title);
    add_axis(svg, &y_axis, 1, y_title);
    add_points(svg, marks, count, &x_axis, &y_axis);
    add_labels(svg, marks, count, &x_axis, &y_axis);
  }
  tws_text_add(svg, "</svg>\n");
}

/* Returns the approximate width in pixels of the longest text, in the font size of the labels. */
static double width_of(const char *const *texts, int count) {
  size_t longest = 0;
  for (int i = 0; i < count; i++)
    if (strlen(texts[i]) > longest) longest = strlen(texts[i]);
  return 7.0 * (double)longest;
}

void tws_figure_bars(const tws_mark *marks, const char *const *values, int count, const char *title, tws_text *svg) {
  double low = 0, high = 0;
  for (int i = 0; i < count; i++) {
    low = fmin(low, marks[i].y);
    high = fmax(high, marks[i].y);
  }
  const double room = WIDTH - NAMES - 12 - width_of(values, count), scale = high - low > 0 ? room / (high - low) : 0,
               zero = NAMES - low * scale;
  begin_svg(svg, (count + 1) * BAR + 12);
  add_label(svg, NAMES, 14, "start", title);
  for (int i = 0; i < count; i++) {
    const double length = fabs(marks[i].y) * scale, y = (i + 1) * BAR;
    tws_text_add(svg, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n",
                 marks[i].y < 0 ? zero - length : zero, y, fmax(length, 1), BAR - 6, marks[i].strong ? BLUE : GREY);
    add_label(svg, NAMES - 8, y + BAR - 10, "end", marks[i].label ? marks[i].label : "");
    add_label(svg, fmax(zero, NAMES) + (marks[i].y > 0 ? length : 0) + 6, y + BAR - 10, "start", values[i]);
  }
  tws_text_add(svg, "</svg>\n");
}
