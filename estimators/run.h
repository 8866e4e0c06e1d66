/* Estimates a whole training whose steps run different programs (plan/phases.h). */
#ifndef TWS_ESTIMATORS_RUN_H
#define TWS_ESTIMATORS_RUN_H

#include "estimators/estimators.h"

/* The runs of one program in a training. */
typedef struct tws_run_phase {
  tws_program program;
  int64_t runs;      /* number of runs of the program */
  double seconds;    /* estimated seconds of one run */
  double sent_bytes; /* bytes that rank 0 sends in one run */
} tws_run_phase;

typedef struct tws_run_estimate {
  int64_t steps;
  tws_run_phase phase[TWS_PROGRAM_COUNT];
  int phases;                 /* number of programs that run at all */
  double seconds, sent_bytes; /* of the whole training */
  double mean_step_s;         /* seconds / steps */
} tws_run_estimate;

/* Estimates a training of `steps` steps. The request's program is ignored. */
tws_code tws_estimate_run(const tws_plan_request *request, const tws_machine *machine, int64_t steps,
                          tws_run_estimate *out, tws_error *err);

#endif
