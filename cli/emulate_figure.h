/* Draws the figure of an emulated run: losses over virtual time, and a breakdown of that time. */
#ifndef TWS_CLI_EMULATE_FIGURE_H
#define TWS_CLI_EMULATE_FIGURE_H

#include "base/strings.h"
#include "emulation/emulate.h"
#include "traces/loss_curve.h"

/* Draws the figure to the file `out`. compared: files that other runs wrote with --csv, whose losses are drawn too.
 * Fails with TWS_IO or TWS_INVALID if one of these files cannot be read. */
tws_code tws_emulation_figure(const tws_emulation *r, const tws_loss_curve *curve, const char *name,
                              const tws_strings *compared, const char *title, const char *out, tws_error *err);

#endif
