/* Reads checkpoints that DeepSpeed saved and yields their weights in float32, under the parameter names of the PyTorch
 * module. */
#ifndef TWS_CHECKPOINT_DEEPSPEED_H
#define TWS_CHECKPOINT_DEEPSPEED_H

#include "checkpoint/weights.h"

typedef struct tws_deepspeed {
  tws_gathering weights; /* weights to write: buffers, frozen parameters, trained parameters, aliases, in this order */
  int64_t stage, ranks;  /* stage of ZeRO; number of ranks that saved a partition of the float32 master weights */
  int64_t step;          /* optimizer steps that the checkpoint had completed; -1: not known */
  int masters;           /* 1: float32 master weights were saved; 0: the weights are those of the module */
} tws_deepspeed;

/* Returns 1 if the folder of a tag contains files with names that DeepSpeed gives to its checkpoint files. */
int tws_deepspeed_is(const char *folder);

/* Opens a checkpoint by the rules of DeepSpeed's zero_to_fp32. ZeRO 1 and 2 store one flat vector for each parameter
 * group, partitioned among the ranks; ZeRO 3 partitions each parameter among the ranks, and each rank has groups of its
 * own. A universal checkpoint (the folder zero/) stores each parameter whole in a folder of its own; out->ranks is 0
 * then. Files are opened one after another, and the checksum of every storage that is read is compared. Fails with
 * TWS_INVALID if files are damaged or missing or sizes do not match, and with TWS_UNSUPPORTED for more than one
 * model-parallel rank, experts and pipelines. */
tws_code tws_deepspeed_open(const char *folder, tws_deepspeed *out, tws_error *err);
void tws_deepspeed_close(tws_deepspeed *checkpoint);

#endif
