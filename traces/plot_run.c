/* Figures of whole runs: losses over time, what time was spent on, goodput. */
#include "traces/draw.h"
#include "traces/plot.h"

/* gnuplot leaves out a block that has no line: one that is drawn outside is not missed. */
static void end_block(tws_text *data, int any) {
  tws_text_add(data, any ? "\n\n" : "-1 -1\n\n\n");
}

static void add_name(tws_text *settings, const char *name, int number) {
  tws_text_add(settings, "name%d = '", number);
  for (; *name; name++)
    if (*name != '\'' && (unsigned char)*name >= 32) tws_text_add_bytes(settings, name, 1);
  tws_text_add(settings, "'; ");
}

tws_code tws_plot_run(const char *scripts, const tws_plot_series *series, int count, const tws_plot_band *bands,
                      int band_count, const char *const *kinds, int kind_count, const char *title, const char *out,
                      tws_error *err) {
  tws_text data = {0}, settings = {0};
  double longest = 0;
  for (int i = 0; i < count; i++) {
    for (int k = 0; k < series[i].count; k++) {
      tws_text_add(&data, "%.9g %.9g\n", series[i].at_s[k], series[i].value[k]);
      if (series[i].at_s[k] > longest) longest = series[i].at_s[k];
    }
    end_block(&data, series[i].count);
    add_name(&settings, series[i].name, i + 1);
  }
  tws_text_add(&settings, "kinds = '");
  for (int kind = 0; kind < kind_count; kind++) {
    int any = 0;
    for (int i = 0; i < band_count; i++) {
      if (bands[i].kind != kind) continue;
      tws_text_add(&data, "%.9g %.9g\n", bands[i].from_s, bands[i].to_s);
      if (bands[i].to_s > longest) longest = bands[i].to_s;
      any = 1;
    }
    end_block(&data, any);
    tws_text_add(&settings, "%s%s", kind ? " " : "", kinds[kind]);
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
