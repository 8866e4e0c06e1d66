/* What every figure does. Internal to traces/. */
#ifndef TWS_TRACES_DRAW_H
#define TWS_TRACES_DRAW_H

#include "base/memory.h"
#include "base/status.h"

/* A variable of a script: "name = 'value'; ", which ends nowhere else, whatever is in the value. */
void tws_plot_text(tws_text *settings, const char *name, const char *value);
/* Writes the data beside the picture, then draws it. `settings` has the script's further variables; both are freed. */
tws_code tws_plot_draw(const char *scripts, const char *script, tws_text *data, tws_text *settings, const char *title,
                       const char *out, tws_error *err);

#endif
