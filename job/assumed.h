/* Assumptions: values of a job that neither the command line nor a file gives. Predictions depend on them, so reports
 * list them. */
#ifndef TWS_JOB_ASSUMED_H
#define TWS_JOB_ASSUMED_H

#include "job/job.h"
#include "models/hardware/runtime.h"

typedef struct tws_assumption {
  /* "runtime", "type", "sequence length", "expert capacity factor", "memory margin", "NICs", "product rate" */
  const char *what;
  char value[64];   /* "bf16", "131,072 tokens" */
  char reason[128]; /* "as the model's file has it"; "": none */
  const char *give; /* the flag or key that overrides it */
} tws_assumption;
enum { TWS_ASSUMPTIONS = 7 };

/* Writes the assumptions to `list` in the order above and returns their number. Of an open job it omits those that
 * depend on the number of ranks. */
int tws_job_assumed(const tws_job *job, tws_assumption list[TWS_ASSUMPTIONS]);
/* "runtime twinspeed (--runtime); type bf16, as the model's file has it (--dtype)"; "" where nothing was assumed. */
void tws_assumptions_text(const tws_assumption *list, int count, tws_text *out);
/* Returns the assumptions as an array of objects: what, value, reason (if there is one), give. */
cJSON *tws_assumptions_json(const tws_assumption *list, int count);

#endif
