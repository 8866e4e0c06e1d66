/* Fills the scalars of one update that kernels read from the plan's buffer of hyperparameters. */
#ifndef TWS_PLAN_HYPER_H
#define TWS_PLAN_HYPER_H

#include <stdint.h>
#include "config/ds_config.h"
#include "models/kernel.h"

/* Fills the scalars of update number `update`, counted from 1. Returns the learning rate, not rounded to float32. */
double tws_hyper_fill(const tws_config *config, int64_t update, double loss_scale, float hyper[TWS_HYPER_COUNT]);

/* Fills the scalars of update number `update` for all parameter groups of the configuration, one group after another.
 * Returns the learning rate of the first group. hyper: room for TWS_PARAM_GROUPS groups. */
double tws_hyper_fill_groups(const tws_config *config, int64_t update, double loss_scale, float *hyper);

/* Fills the scalars of an update that the host performs every few steps (plan/zenflow.c): the learning rate and the
 * betas of the device's update number `update`, and the bias corrections of the host's update number `own`. */
void tws_hyper_fill_late(const tws_config *config, int64_t update, int64_t own, float hyper[TWS_HYPER_COUNT]);

#endif
