/* Values of a job that neither the command line nor a file gives and that were assumed; answers depend on them. */
#ifndef TWS_JOB_ASSUMED_H
#define TWS_JOB_ASSUMED_H

#include "job/job.h"
#include "models/hardware/runtime.h"

typedef struct tws_assumption {
  /* "runtime", "type", "sequence length", "expert capacity factor", "memory margin", "NICs", "host", "product rate" */
  const char *what;
  char value[64];   /* "bf16", "131,072 tokens" */
  char reason[128]; /* "as the model's file has it"; "": none */
  const char *give; /* the flag or key that says something else */
} tws_assumption;
enum { TWS_ASSUMPTIONS = 8 };

/* Into `list`, in the order above; returns how many. Of an open job, too, without what depends on its ranks. */
int tws_job_assumed(const tws_job *job, tws_assumption list[TWS_ASSUMPTIONS]);
/* "runtime twinspeed (--runtime); type bf16, as the model's file has it (--dtype)"; "" where nothing was assumed. */
void tws_assumptions_text(const tws_assumption *list, int count, tws_text *out);
/* The same as an array of objects: what, value, reason where there is one, give. */
cJSON *tws_assumptions_json(const tws_assumption *list, int count);

#endif
