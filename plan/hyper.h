/* Fills the scalars of one update that kernels read from the plan's buffer of hyperparameters. */
#ifndef TWS_PLAN_HYPER_H
#define TWS_PLAN_HYPER_H

#include <stdint.h>
#include "config/ds_config.h"
#include "models/kernel.h"

/* `update` counts from 1. Returns the learning rate, before it is rounded to float32. */
double tws_hyper_fill(const tws_config *config, int64_t update, double loss_scale, float hyper[TWS_HYPER_COUNT]);

/* Fills those of an update that the host does every few steps (plan/zenflow.c): learning rate and betas of the device's
 * update number `update`, and bias corrections of the host's update number `own`. */
void tws_hyper_fill_late(const tws_config *config, int64_t update, int64_t own, float hyper[TWS_HYPER_COUNT]);

#endif
