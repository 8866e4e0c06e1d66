/* Draws figures of whole runs: losses over time, activities over time, goodput. */
#include <stdio.h>

#include "traces/draw.h"
#include "traces/plot.h"

/* Ends a data block. An empty one gets a line outside of the drawn range, because gnuplot leaves out blocks without
 * lines. */
static void end_block(tws_text *data, int any) {
  tws_text_add(data, any ? "\n\n" : "-1 -1\n\n\n");
}

/* Adds a block of "x value" for each series, and the names; returns the largest x. */
static double add_series(const tws_plot_series *series, int count, tws_text *data, tws_text *settings) {
  double longest = 0;
  for (int i = 0; i < count; i++) {
    for (int k = 0; k < series[i].count; k++) {
      tws_text_add(data, "%.9g %.9g\n", series[i].at_s[k], series[i].value[k]);
      if (series[i].at_s[k] > longest) longest = series[i].at_s[k];
    }
    end_block(data, series[i].count);
    char name[32];
    snprintf(name, sizeof name, "name%d", i + 1);
    tws_plot_text(settings, name, series[i].name);
  }
  return longest;
}

tws_code tws_plot_losses_png(const char *scripts, const tws_plot_series *series, int count, const char *title,
                             tws_text *picture, tws_error *err) {
  tws_text data = {0}, settings = {0};
  add_series(series, count, &data, &settings);
  tws_text_add(&settings, "series = %d; ", count);
  const tws_code code = tws_plot_picture(scripts, "loss.gp", "png", &data, &settings, title, picture, err);
  tws_text_free(&data);
  tws_text_free(&settings);
  return code;
}

/* Adds the names of marks, at most as many as do not overlap. */
static void add_marks(tws_text *settings, const tws_mark *marks, int count) {
  enum { NAMED = 12, MOST = 200 };
  char name[32];
  const int shown = count < MOST ? count : MOST;
  for (int i = 0; i < shown; i++) {
    snprintf(name, sizeof name, "mark%d", i + 1);
    tws_plot_text(settings, name, count <= NAMED ? marks[i].name : "");
    tws_text_add(settings, "%s_from = %.9g; %s_until = %.9g; ", name, marks[i].from_s, name, marks[i].until_s);
  }
  tws_text_add(settings, "marks = %d; ", shown);
}

tws_code tws_plot_run(const char *scripts, const tws_plot_series *series, int count, const tws_plot_band *bands,
                      int band_count, const tws_mark *marks, int mark_count, const char *const *kinds, int kind_count,
                      const char *title, const char *out, tws_error *err) {
  tws_text data = {0}, settings = {0};
  double longest = add_series(series, count, &data, &settings);
  add_marks(&settings, marks, mark_count);
  tws_text_add(&settings, "kinds = '");
  for (int kind = 0, shown = 0; kind < kind_count; kind++) {
    int any = 0;
    for (int i = 0; i < band_count; i++) {
      if (bands[i].kind != kind) continue;
      tws_text_add(&data, "%.9g %.9g\n", bands[i].from_s, bands[i].to_s);
      if (bands[i].to_s > longest) longest = bands[i].to_s;
      any = 1;
    }
    if (!any) continue; /* a kind without bands is left out of the key, too */
    end_block(&data, any);
    tws_text_add(&settings, "%s%d %s", shown++ ? " " : "", kind + 1, kinds[kind]);
  }
  tws_text_add(&settings, "'; series = %d; longest_s = %.9g; ", count, longest);
  return tws_plot_draw(scripts, "run.gp", &data, &settings, title, out, err);
}

tws_code tws_plot_goodputs(const char *scripts, const tws_plot_goodput *points, int count, const char *title,
                           const char *out, tws_error *err) {
  tws_text data = {0}, settings = {0};
  for (int i = 0; i < count; i++)
    tws_text_add(&data, "%.9g %.9g %.9g\n", points[i].failures_per_h, 100 * points[i].measured,
                 100 * points[i].formula);
  return tws_plot_draw(scripts, "goodput.gp", &data, &settings, title, out, err);
}

tws_code tws_plot_speedups(const char *scripts, const tws_plot_speedup *points, int count, const char *const *names,
                           int optimizers, const char *title, const char *out, tws_error *err) {
  tws_text data = {0}, settings = {0};
  for (int i = 0; i < count; i++) {
    tws_text_add(&data, "%.9g", points[i].bits_per_s);
    for (int k = 0; k < optimizers; k++) tws_text_add(&data, " %.9g", points[i].speedup[k]);
    tws_text_add(&data, "\n");
  }
  tws_text_add(&settings, "names = '");
  for (int k = 0; k < optimizers; k++) tws_text_add(&settings, "%s%s", k > 0 ? " " : "", names[k]);
  tws_text_add(&settings, "'; ");
  return tws_plot_draw(scripts, "optimizers.gp", &data, &settings, title, out, err);
}
