/* Figures in TensorBoard's events, which `twinspeed.tensorboard_images` asks for: memory over the operations of a step
 * when a run begins, and its losses when it has ended. gnuplot draws them. */
#ifndef TWS_TRACES_EVENT_FIGURES_H
#define TWS_TRACES_EVENT_FIGURES_H

#include "base/memory.h"
#include "traces/monitor.h"

typedef struct tws_event_figures tws_event_figures;

/* Appends plots of memory by tier, PNG images in records of TensorBoard, to `bytes`, and creates *out, to which each
 * step's losses are added. Fails with TWS_ENVIRONMENT if gnuplot cannot draw. Without setup->images *out is NULL.
 * tws_free() frees *out. */
tws_code tws_event_figures_open(const tws_monitor_setup *setup, tws_text *bytes, tws_event_figures **out,
                                tws_error *err);
/* Adds the losses of a step; allocates nothing. figures may be NULL. */
void tws_event_figures_add(tws_event_figures *figures, const tws_step_report *report);
/* Appends a plot of the losses by step, a PNG image in a record of TensorBoard, to `bytes`, if any losses were added.
 * figures may be NULL. */
tws_code tws_event_figures_losses(const tws_event_figures *figures, tws_text *bytes, tws_error *err);

#endif
