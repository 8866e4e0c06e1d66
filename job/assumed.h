/* Assumptions: values of a job's settings that neither the command line nor a file states. Predictions depend on them,
 * so reports list them. */
#ifndef TWS_JOB_ASSUMED_H
#define TWS_JOB_ASSUMED_H

#include "job/job.h"
#include "models/hardware/runtime.h"

typedef struct tws_assumption {
  /* the setting: "runtime", "type", "sequence length", "expert capacity factor", "memory margin", "NICs", "host",
   * "product rate" or "update interval" */
  const char *what;
  char value[64];   /* the assumed value: "bf16", "131,072 tokens" */
  char reason[128]; /* why this value is assumed: "as the model's file has it"; "": no reason is given */
  const char *give; /* the flag or key that states the setting instead */
} tws_assumption;
enum { TWS_ASSUMPTIONS = 9 };

/* Writes the assumptions of a job to `list`, in the order of the names above, and returns their number. For an open
 * job, it omits the assumptions that depend on the number of ranks. */
int tws_job_assumed(const tws_job *job, tws_assumption list[TWS_ASSUMPTIONS]);
/* Writes the assumptions as text: "runtime twinspeed (--runtime); type bf16, as the model's file has it (--dtype)"; ""
 * if there are none. */
void tws_assumptions_text(const tws_assumption *list, int count, tws_text *out);
/* Returns the assumptions as an array of objects: what, value, reason (if there is one), give. */
cJSON *tws_assumptions_json(const tws_assumption *list, int count);

#endif
