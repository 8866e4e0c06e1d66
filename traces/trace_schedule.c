#include "traces/trace_schedule.h"

#include <string.h>

#include "base/number.h"

tws_code tws_trace_schedule_parse(const char *text, tws_trace_schedule *out, tws_error *err) {
  static const char *const names[] = {"skip_first", "wait", "warmup", "active", "repeat"};
  enum { NAMES = sizeof names / sizeof *names };
  static const char hint[] = "wait=1,warmup=1,active=3,repeat=2,skip_first=0, of which only active is needed";
  int64_t *const values[NAMES] = {&out->skip_first, &out->wait, &out->warm_up, &out->active, &out->repeat};
  unsigned seen = 0;
  *out = (tws_trace_schedule){0};
  for (const char *at = text; *at;) {
    int i = 0, value;
    while (i < NAMES && (strncmp(at, names[i], strlen(names[i])) != 0 || at[strlen(names[i])] != '=')) i++;
    const char *number = i < NAMES ? at + strlen(names[i]) + 1 : at, *rest = number;
    if (i == NAMES || (seen >> i & 1) || !tws_text_int(number, &rest, 0, 1000000000, &value) ||
        (*rest && (*rest != ',' || !rest[1])))
      return tws_fail(err, TWS_USAGE, hint, "--trace-schedule: \"%.60s\" is not understood", at);
    *values[i] = value;
    seen |= 1u << i;
    at = *rest ? rest + 1 : rest;
  }
  if (out->active > 0) return TWS_OK;
  return tws_fail(err, TWS_USAGE, hint, "--trace-schedule: no step is active");
}

tws_trace_phase tws_trace_schedule_at(const tws_trace_schedule *s, int64_t step) {
  const int64_t cycle = s->wait + s->warm_up + s->active, at = step - s->skip_first;
  if (s->active < 1 || at < 0 || (s->repeat > 0 && at / cycle >= s->repeat)) return TWS_TRACE_NONE;
  return at % cycle < s->wait                ? TWS_TRACE_NONE
         : at % cycle < s->wait + s->warm_up ? TWS_TRACE_WARM_UP
                                             : TWS_TRACE_ACTIVE;
}

int64_t tws_trace_schedule_recorded(const tws_trace_schedule *s, int64_t steps) {
  const int64_t cycle = s->wait + s->warm_up + s->active, of_run = steps - s->skip_first;
  if (s->active < 1 || of_run <= 0) return 0;
  int64_t cycles = of_run / cycle, rest = of_run % cycle - s->wait - s->warm_up;
  if (s->repeat > 0 && cycles >= s->repeat) return s->repeat * s->active;
  return cycles * s->active + (rest > 0 ? rest : 0);
}
