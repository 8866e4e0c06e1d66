#include "traces/event_figures.h"

#include <math.h>
#include <stdio.h>

#include "traces/event_record.h"
#include "traces/plot.h"

enum { MOST = 4096 };

/* Points of one line. When there is no room for another one, every second is dropped, and from then on twice as many
 * steps lie between two of them, so that a run of any length takes the same memory. */
typedef struct line {
  double samples[MOST], loss[MOST];
  int count;
  int64_t seen, every;
} line;

struct tws_event_figures {
  char plots[4096]; /* the folder of gnuplot's scripts */
  line train, evaluation;
  double at_s; /* time of the last report, seconds since 1970 */
  int64_t samples;
};

static void add_point(line *l, double samples, double loss) {
  if (l->seen++ % l->every != 0 || !isfinite(loss)) return;
  if (l->count == MOST) {
    for (int i = 0; i < MOST / 2; i++) {
      l->samples[i] = l->samples[2 * i];
      l->loss[i] = l->loss[2 * i];
    }
    l->count = MOST / 2;
    l->every *= 2;
  }
  l->samples[l->count] = samples;
  l->loss[l->count++] = loss;
}

static tws_code add_memory(const tws_monitor_setup *setup, tws_text *bytes, tws_error *err) {
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++) {
    char tag[64];
    tws_text picture = {0};
    if (!setup->images->memory[tier]) continue;
    snprintf(tag, sizeof tag, "memory of rank 0, %s", tws_tier_name((tws_tier)tier));
    const tws_code code = tws_plot_memory_png(setup->images->plots, setup->images->memory[tier], tag, &picture, err);
    if (code == TWS_OK) tws_event_image(bytes, tag, &picture, setup->now_s, setup->samples);
    tws_text_free(&picture);
    TWS_TRY(code);
  }
  return TWS_OK;
}

tws_code tws_event_figures_open(const tws_monitor_setup *setup, tws_text *bytes, tws_event_figures **out,
                                tws_error *err) {
  *out = NULL;
  if (!setup->images) return TWS_OK;
  if (!tws_plot_available())
    return tws_fail(err, TWS_ENVIRONMENT, "install it (Debian: gnuplot-nox), or leave the key out",
                    "twinspeed.tensorboard_images: the program gnuplot was not found");
  TWS_TRY(add_memory(setup, bytes, err));
  tws_event_figures *f = tws_calloc(1, sizeof *f);
  if (!f) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  snprintf(f->plots, sizeof f->plots, "%s", setup->images->plots);
  f->train.every = f->evaluation.every = 1;
  *out = f;
  return TWS_OK;
}

void tws_event_figures_add(tws_event_figures *f, const tws_step_report *report) {
  if (!f || report->custom) return;
  f->at_s = report->at_s;
  f->samples = report->samples;
  add_point(&f->train, (double)report->samples, report->loss);
  if (report->evaluated) add_point(&f->evaluation, (double)report->samples, report->eval_loss);
}

tws_code tws_event_figures_losses(const tws_event_figures *f, tws_text *bytes, tws_error *err) {
  tws_text picture = {0};
  if (!f || f->train.count == 0) return TWS_OK;
  const tws_plot_series series[] = {{"training", f->train.samples, f->train.loss, f->train.count},
                                    {"evaluation", f->evaluation.samples, f->evaluation.loss, f->evaluation.count}};
  const tws_code code = tws_plot_losses_png(f->plots, series, f->evaluation.count > 0 ? 2 : 1, "loss", &picture, err);
  if (code == TWS_OK) tws_event_image(bytes, "loss", &picture, f->at_s, f->samples);
  tws_text_free(&picture);
  return code;
}
