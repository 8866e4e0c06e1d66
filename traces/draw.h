/* Functions that all figures share. Internal to traces/. */
#ifndef TWS_TRACES_DRAW_H
#define TWS_TRACES_DRAW_H

#include "base/memory.h"
#include "base/status.h"

/* Sets a variable of a gnuplot script: "name = 'value'; ", quoted so that no character of the value can end it. */
void tws_plot_text(tws_text *settings, const char *name, const char *value);
/* Draws a picture of this format ("png" or "svg") into *picture, which the caller frees, also after an error. */
tws_code tws_plot_picture(const char *scripts, const char *script, const char *format, const tws_text *data,
                          tws_text *settings, const char *title, tws_text *picture, tws_error *err);
/* Writes the data into a file next to the picture, then draws the picture. `settings` has further variables of the
 * script; both texts are freed. */
tws_code tws_plot_draw(const char *scripts, const char *script, tws_text *data, tws_text *settings, const char *title,
                       const char *out, tws_error *err);

#endif
