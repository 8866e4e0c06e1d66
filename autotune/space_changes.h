/* Changes of a job's settings that remedies try (autotune/remedy.h). Internal to autotune/. */
#ifndef TWS_AUTOTUNE_SPACE_CHANGES_H
#define TWS_AUTOTUNE_SPACE_CHANGES_H

#include "job/job.h"

/* One change of a job's settings; members with 0 or NULL keep their setting. */
typedef struct tws_change {
  const char *recompute;
  /* micro_one: 1: reduces the micro batch, to 1 if necessary; shorten: divides the sequence length by this number */
  int stage, micro_one, shorten;
  int tensor;  /* 1: converts replicas into tensor ranks of a node */
  int offload; /* offloads to the host: 1 the optimizer states, 2 the parameters too */
  int tiles;   /* number of tiles in which the largest linear layer is gathered */
  int groups;  /* number of mics_shard_size groups that are merged; -1: all */
} tws_change;
/* Returns change number `index`, from the least intrusive to the most; NULL after the last. */
const tws_change *tws_change_at(size_t index);

/* The options of a job after a change, and the command-line flags of the change. */
typedef struct tws_changed {
  tws_job_spec spec;
  char flags[512], tile_size[64], group_size[64];
} tws_changed;
/* Writes the options of the job after a change to *to and returns 1; returns 0 if the change has no effect. The global
 * batch stays the same. to_micro: the micro batch after the change that makes it smaller. */
int tws_change_apply(const tws_job_spec *given, const tws_change *change, const tws_job *job, int64_t to_micro,
                     tws_changed *to);

#endif
