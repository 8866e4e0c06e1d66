/* Private to this folder: what a twinspeed_engine is. */
#ifndef TWS_LIBRARY_ENGINE_HANDLE_H
#define TWS_LIBRARY_ENGINE_HANDLE_H

#include "library/twinspeed.h"
#include "real/engine.h"

struct twinspeed_engine {
  const tws_real_api *real;
  const tws_engine_api *calls;
  tws_engine *engine;
  const tws_network *network;
  void (*write)(void *user, int level, const char *line); /* the caller's function for lines of the log, or NULL */
  void *user;
  tws_log log;
  double peak_flops; /* peak FLOP/s of all devices of the job; 0: not known */
};

void twinspeed_engine_report_(const twinspeed_engine *engine, const tws_step_report *report, twinspeed_step *out);
/* Returns the engine's form of a batch in *out; NULL without a batch. */
const tws_engine_batch *twinspeed_engine_batch_(const twinspeed_batch *batch, tws_engine_batch *out);

#endif
