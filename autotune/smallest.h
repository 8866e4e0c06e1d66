/* Answers "how many GPUs does a job need": the smallest number of devices of each kind on which the job fits, and
 * optionally reaches a given speed, with the settings for it. Each tried number of devices is one search of the
 * tuner. */
#ifndef TWS_AUTOTUNE_SMALLEST_H
#define TWS_AUTOTUNE_SMALLEST_H

#include "autotune/autotune.h"
#include "job/assumed.h"
#include "validation/evidence.h"

enum { TWS_SMALLEST_KINDS = 32, TWS_SMALLEST_MAX_DEVICES = 4096 };

typedef struct tws_smallest_request {
  const tws_job_spec *spec; /* stage, recompute, micro_batch, accumulation, axes and the configuration's batch are not
                             * varied if they are given; cluster: names separated by commas, each optionally with its
                             * maximum number of nodes; NULL: every built-in GPU cluster whose GPUs differ */
  double within_s;          /* upper limit of the seconds of a step; 0: no limit */
  double tokens_per_s;      /* lower limit of the rate of training; 0: no limit */
  tws_progress *progress;   /* may be NULL */
} tws_smallest_request;

/* Answer for one kind of cluster. */
typedef struct tws_smallest_answer {
  char cluster[256]; /* the cluster's name as given, without the number of nodes */
  char device[64];
  int found, nodes;
  tws_tune_candidate best; /* the fastest settings with the smallest number of devices */
  double tokens_per_s;
  tws_evidence evidence; /* evidence for the predicted time */
  int tried, most;       /* number of tried numbers of devices, and the largest of them */
  char reason[256];      /* reason why no number of devices suffices */
  /* Arguments for another subcommand about the same job, quoted for a shell ("-m gpt2 --cluster dgx-a100:2 ..."); "":
   * they are too long. */
  char arguments[1024];
} tws_smallest_answer;

/* Fills answers[TWS_SMALLEST_KINDS], ordered by the number of devices, then kinds of clusters that do not suffice.
 * Tried are the numbers of devices that divide the job, from a lower bound upwards that follows from its states (and
 * its FLOPs): fractions of a node, whole nodes up to 16, then eight numbers per doubling; finally all numbers between
 * the first that suffices and the last that does not. Fails with TWS_USAGE if ranks were given, or a time limit without
 * a batch to which it applies, and as tws_job_open() does. */
tws_code tws_smallest_find(const tws_smallest_request *request, tws_smallest_answer *answers, int *count,
                           tws_error *err);
/* Lists the assumptions about the job that do not depend on the kind of cluster. Returns their number. */
int tws_smallest_assumed(const tws_smallest_request *request, tws_assumption list[TWS_ASSUMPTIONS]);

#endif
