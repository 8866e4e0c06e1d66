/* "How many GPUs do I need?": the smallest number of devices of a kind that holds a job, or that also makes its step
 * as fast as asked, with the settings that do. Each number that is tried is answered by the tuner; nothing is searched
 * in another way. */
#ifndef TWS_AUTOTUNE_SMALLEST_H
#define TWS_AUTOTUNE_SMALLEST_H

#include "autotune/autotune.h"
#include "job/assumed.h"
#include "validation/evidence.h"

enum { TWS_SMALLEST_KINDS = 32, TWS_SMALLEST_MAX_DEVICES = 4096 };

typedef struct tws_smallest_request {
  const tws_job_spec *spec; /* stage, recompute, micro_batch, accumulation and axes that it gives are kept, and the
                             * batch of its configuration; cluster: names with commas between them, each with the most
                             * nodes where it says any; NULL: every built-in of GPUs that differs in its GPUs */
  double within_s;          /* a step takes no longer; 0: any time */
  double tokens_per_s;      /* at least; 0: any rate */
  tws_progress *progress;   /* may be NULL */
} tws_smallest_request;

/* One kind of machine. */
typedef struct tws_smallest_answer {
  char cluster[256]; /* as it was named, without a number of nodes */
  char device[64];
  int found, nodes;
  tws_tune_candidate best; /* the fastest settings with that number of devices */
  double tokens_per_s;
  tws_evidence evidence; /* of the time */
  int tried, most;       /* numbers of devices: how many were tried, the largest */
  char reason[256];      /* why there is none */
  /* of another verb, for this very job, quoted for a shell ("-m gpt2 --cluster dgx-a100:2 ..."); "": too long */
  char arguments[1024];
} tws_smallest_answer;

/* Fills answers[TWS_SMALLEST_KINDS], the smallest first, then those without one. Numbers of devices that divide
 * the job are tried from what its states (and its flops) take upwards: parts of a node, whole nodes to 16, then eight
 * to each doubling and, between the one that does and the one before it, all. TWS_USAGE: ranks were given, or a time
 * without a batch to which it applies; else errors of tws_job_open(). */
tws_code tws_smallest_find(const tws_smallest_request *request, tws_smallest_answer *answers, int *count,
                           tws_error *err);
/* What was assumed of the job that does not depend on the kind of machine. Returns how many there are. */
int tws_smallest_assumed(const tws_smallest_request *request, tws_assumption list[TWS_ASSUMPTIONS]);

#endif
