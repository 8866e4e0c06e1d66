/* Checkpoints that DeepSpeed saved: its weights in float32, under the names that its module has. */
#ifndef TWS_CHECKPOINT_DEEPSPEED_H
#define TWS_CHECKPOINT_DEEPSPEED_H

#include "checkpoint/weights.h"

typedef struct tws_deepspeed {
  tws_gathering weights; /* buffers, frozen parameters, parameters, aliases, in this order */
  int64_t stage, ranks;  /* ranks: that have a part of the masters each; 0 without */
  int64_t step;          /* -1: not known */
  int masters;           /* 0: none were saved, and the weights are those of the module */
} tws_deepspeed;

/* 1: the folder of a tag has files that are called as DeepSpeed's. */
int tws_deepspeed_is(const char *folder);

/* Opens a checkpoint by the rules of DeepSpeed's zero_to_fp32: ZeRO 1 and 2 have one flat vector for each group of
 * parameters, partitioned among the ranks; ZeRO 3 has each parameter partitioned among them, in groups of its own at
 * each rank. A universal checkpoint (the folder zero/) has them merged, each in a folder; ranks is 0 then. Files are
 * opened one after another, and the checksum of every storage that is used is compared. TWS_INVALID: damaged, files
 * missing, or sizes that do not match; TWS_UNSUPPORTED: more than one model-parallel rank, experts, pipelines. */
tws_code tws_deepspeed_open(const char *folder, tws_deepspeed *out, tws_error *err);
void tws_deepspeed_close(tws_deepspeed *checkpoint);

#endif
