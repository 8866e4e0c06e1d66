/* The changes of a job's settings that remedies try (autotune/remedy.h). Internal to autotune/. */
#ifndef TWS_AUTOTUNE_SPACE_CHANGES_H
#define TWS_AUTOTUNE_SPACE_CHANGES_H

#include "job/job.h"

/* 0 and NULL keep what is there. */
typedef struct tws_change {
  const char *recompute;
  int stage, micro_one, shorten; /* micro_one: a smaller micro batch, 1 at last; shorten: divide the sequence by this */
  int tensor;                    /* divide replicas among tensor ranks of a node */
  int offload;                   /* to the host: 1 the optimizer, 2 parameters too */
  int tiles;                     /* in which the largest linear layer is gathered */
  int groups;                    /* so many of mics_shard_size are one; -1: all are */
} tws_change;
/* From the least intrusive to the most: number `index`, or NULL after the last. */
const tws_change *tws_change_at(size_t index);

/* The options with a change, and the flags that say it. */
typedef struct tws_changed {
  tws_job_spec spec;
  char flags[512], tile_size[64], group_size[64];
} tws_changed;
/* 0 when it changes nothing. The global batch stays. to_micro: what a smaller micro batch is. */
int tws_change_apply(const tws_job_spec *given, const tws_change *change, const tws_job *job, int64_t to_micro,
                     tws_changed *to);

#endif
