/* The engine of a job that only runs forward passes, to generate tokens (real/serve.c) or to compute scores
 * (real/scored_pass.c): backend, communicators and executor over the weights that the options name. */
#ifndef TWS_REAL_FORWARD_ENGINE_H
#define TWS_REAL_FORWARD_ENGINE_H

#include "real/train_internal.h"

/* Sets the members of a training that forward passes need: rank, world, threads, configuration and the backend's table.
 * On a GPU it loads the CUDA module, and fails with TWS_ENVIRONMENT if there is none. `options` must outlive *t. */
tws_code tws_forward_begin(tws_training *t, const tws_train_options *options, tws_error *err);
/* Opens the files of the weights, creates the engine for the first `count` of t->programs, the first of which is
 * t->plan, and reads the weights. A device that can record passes records program number `recorded` when it runs for
 * the second time. All ranks of the job have to call it. After an error the caller still releases *t. */
tws_code tws_forward_start(tws_training *t, int count, int recorded, tws_error *err);
/* Returns the bytes of all arenas of this rank. */
uint64_t tws_forward_allocated(const tws_training *t);

#endif
