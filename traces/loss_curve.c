#include "traces/loss_curve.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/number.h"

void tws_loss_curve_add(tws_loss_curve *c, double at_s, double loss) {
  if (c->count == c->capacity) {
    const int capacity = c->capacity ? 2 * c->capacity : 256;
    double *at = tws_realloc(c->at_s, (size_t)capacity, sizeof *at);
    if (at) c->at_s = at;
    double *value = tws_realloc(c->loss, (size_t)capacity, sizeof *value);
    if (value) c->loss = value;
    if (!at || !value) return;
    c->capacity = capacity;
  }
  c->at_s[c->count] = at_s;
  c->loss[c->count++] = loss;
}

void tws_loss_curve_free(tws_loss_curve *c) {
  tws_free(c->at_s);
  tws_free(c->loss);
}

/* Reads the losses over time from a CSV that `twinspeed emulate` has written: the loss is the second column, and the
 * time the last one. */
tws_code tws_loss_curve_read(const char *path, tws_loss_curve *curve, tws_error *err) {
  char *text;
  size_t length;
  TWS_TRY(tws_read_file(path, 0, &text, &length, err));
  const char *line = strchr(text, '\n');
  const int good = line && line - text > 5 && strncmp(line - 5, ",at_s", 5) == 0;
  while (good && line && line[1]) {
    line++;
    const char *comma = strchr(line, ','), *end = strchr(line, '\n'), *last = NULL;
    for (const char *at = line; at && (!end || at < end); at = strchr(at + 1, ',')) last = *at == ',' ? at : last;
    if (!comma || !last) break;
    double at_s, loss;
    const char *rest;
    if (tws_text_number(last + 1, &rest, 0, 1e18, &at_s))
      tws_loss_curve_add(curve, at_s, tws_text_number(comma + 1, &rest, -1e300, 1e300, &loss) ? loss : NAN);
    line = end;
  }
  tws_free(text);
  if (good && curve->count > 0) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "twinspeed emulate ... --csv FILE writes one", "%s: not the steps of an emulation",
                  path);
}

double tws_perplexity(double log_probabilities, int64_t tokens) {
  return exp(-log_probabilities / (double)tokens);
}
