#include "cli/live.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>
#include "base/units.h"

static const char *const names[] = {"plain", "live", "json"};

const char *tws_progress_mode_name(tws_progress_mode mode) {
  return names[mode];
}

tws_code tws_progress_mode_read(const tws_cli *cli, const char *name, int is_rank, tws_progress_mode *out,
                                tws_error *err) {
  const int can = is_rank || tws_erases_lines();
  *out = can && !is_rank ? TWS_PROGRESS_LIVE : TWS_PROGRESS_PLAIN;
  for (int i = 0; name; i++) {
    if (i == (int)(sizeof names / sizeof *names))
      return tws_fail(err, TWS_USAGE, "use plain, live or json", "--progress: unknown mode \"%.40s\"", name);
    *out = (tws_progress_mode)i;
    if (strcmp(name, names[i]) == 0) break;
  }
  if (*out == TWS_PROGRESS_LIVE && !can) {
    tws_say(cli, "--progress live: standard error is no terminal that can erase lines, so progress is plain");
    *out = TWS_PROGRESS_PLAIN;
  }
  if (*out == TWS_PROGRESS_LIVE && cli->quiet) *out = TWS_PROGRESS_PLAIN;
  return TWS_OK;
}

void tws_live_open(const tws_job *job, tws_progress_mode mode, int64_t steps, tws_live *live) {
  tws_estimate estimate;
  *live = (tws_live){.mode = mode, .steps = steps, .started_s = tws_clock_s(), .first_step = -1};
  if (mode != TWS_PROGRESS_LIVE || tws_job_estimate(job, &estimate, NULL, NULL) != TWS_OK) return;
  const tws_bottleneck b = tws_path_bottleneck(&estimate.path);
  snprintf(live->bottleneck, sizeof live->bottleneck,
           "bottleneck, predicted: %s, %.0f %% of the step; next: %s, %.0f %%", b.what ? b.what : "none", 100 * b.share,
           b.next ? b.next : "none", 100 * b.next_share);
}

/* ---- lines ---- */

enum { LINES = 5, LINE = 256 };

static void say_progress(const tws_live *live, const tws_step_report *r, char *line) {
  char left[32] = "";
  const double done = (double)(r->step - live->first_step), rest = (double)(live->steps - r->step);
  const double spent = tws_clock_s() - live->started_s;
  if (done > 0 && rest > 0) tws_format_seconds(spent * rest / done, left, sizeof left);
  snprintf(line, LINE, "step %" PRId64 " of %" PRId64 ", %.0f %%%s%s%s", r->step, live->steps,
           floor(100 * (double)r->step / (double)live->steps), *left ? ", " : "", left, *left ? " left" : "");
}

static void say_memory(const tws_step_report *r, char *line) {
  int length = snprintf(line, LINE, "memory of rank 0:");
  for (int tier = 0; tier < TWS_TIER_COUNT && length < LINE; tier++) {
    char bytes[32];
    if (!r->memory_bytes[tier]) continue;
    length += snprintf(line + length, (size_t)(LINE - length), " %s %s", tws_tier_name((tws_tier)tier),
                       tws_format_bytes((double)r->memory_bytes[tier], bytes, sizeof bytes));
  }
}

static void draw(const tws_live *live, const tws_step_report *r) {
  char text[LINES][LINE], seconds[32], mfu[32] = "";
  const char *lines[LINES];
  int count = 4;
  say_progress(live, r, text[0]);
  if (r->skipped)
    snprintf(text[1], LINE, "skipped: overflow at loss scale %.9g", r->loss_scale);
  else
    snprintf(text[1], LINE, "loss %.5f, learning rate %.3e, gradient norm %.4g", r->loss, r->lr, r->gradient_norm);
  if (r->mfu > 0) snprintf(mfu, sizeof mfu, ", MFU %.1f %%", 100 * r->mfu);
  snprintf(text[2], LINE, "%.0f tokens/s, %s a step%s", r->tokens_per_s,
           tws_format_seconds(r->seconds, seconds, sizeof seconds), mfu);
  say_memory(r, text[3]);
  if (live->bottleneck[0]) snprintf(text[count++], LINE, "%.*s", LINE - 1, live->bottleneck);
  for (int i = 0; i < count; i++) lines[i] = text[i];
  tws_draw_lines(lines, count);
}

void tws_live_step(tws_live *live, const tws_step_report *r) {
  char line[TWS_STEP_LINE];
  if (live->first_step < 0) live->first_step = r->step - 1;
  if (live->mode == TWS_PROGRESS_JSON) {
    const int length = tws_step_line(r, line);
    if (write(STDERR_FILENO, line, (size_t)length) < 0) live->mode = TWS_PROGRESS_PLAIN; /* there is no reader */
  }
  if (live->mode != TWS_PROGRESS_LIVE) return;
  const double now = tws_clock_s();
  if (now - live->drawn_s < 0.1 && r->step < live->steps) return;
  live->drawn_s = now;
  draw(live, r);
}
