#include "traces/step_report.h"

#include <math.h>
#include <stdio.h>

static const tws_step_value_row rows[] = {
#define X(identifier, tag, name, value, known, help) {tag, name, help},
#include "traces/step_values.def"
#undef X
};

const tws_step_value_row *tws_step_value_of(int index) {
  return &rows[index];
}

int tws_step_value(const tws_step_report *r, int index, double *value) {
  switch (index) {
#define X(identifier, tag, name, value_, known_, help) \
  case TWS_STEP_##identifier:                          \
    *value = (double)(value_);                         \
    return (known_) ? 1 : 0;
#include "traces/step_values.def"
#undef X
    default:
      return 0;
  }
}

int tws_step_value_text(double value, char text[TWS_STEP_TEXT_SIZE]) {
  if (isnan(value)) return snprintf(text, TWS_STEP_TEXT_SIZE, "nan"); /* the sign of a NaN has no meaning */
  const int whole = fabs(value) < 9007199254740992.0 && value == trunc(value);
  return snprintf(text, TWS_STEP_TEXT_SIZE, whole ? "%.0f" : "%.9g", value);
}

const char *tws_step_value_python(double value, char text[TWS_STEP_TEXT_SIZE]) {
  if (isnan(value)) return "NaN";
  if (isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  tws_step_value_text(value, text);
  return text;
}

int tws_step_line(const tws_step_report *report, char line[TWS_STEP_LINE]) {
  char number[TWS_STEP_TEXT_SIZE];
  size_t used = (size_t)snprintf(line, TWS_STEP_LINE, "{\"step\": %lld, \"samples\": %lld, \"time\": %.6f",
                                 (long long)report->step, (long long)report->samples, report->at_s);
  for (int i = 0; i < TWS_STEP_VALUE_COUNT; i++) {
    double value;
    if (!tws_step_value(report, i, &value)) continue;
    tws_step_value_text(value, number);
    used += (size_t)snprintf(line + used, TWS_STEP_LINE - used, ", \"%s\": %s", tws_step_value_of(i)->name,
                             isfinite(value) ? number : "null");
  }
  return (int)(used + (size_t)snprintf(line + used, TWS_STEP_LINE - used, "}\n"));
}
