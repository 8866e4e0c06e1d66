/* A forward pass of the program EVALUATE on one rank, on the host or a GPU, of which the scores are wanted, not the
 * loss: they are read before the loss, which overwrites them. The program must have one loss. */
#ifndef TWS_REAL_SCORED_PASS_H
#define TWS_REAL_SCORED_PASS_H

#include "real/train_internal.h"

typedef struct tws_scored_pass {
  tws_training t;
  tws_train_options options;
  uint32_t loss_op, scores; /* loss_op: the operation that reads the scores; scores: the buffer that contains them */
  uint64_t first, count;    /* elements of the buffer: the first score, and how many there are */
  void *raw;
  float *values; /* [wanted] the scores that the last run read */
  uint64_t from, wanted;
} tws_scored_pass;

/* Builds the program, reads the weights and creates the engine. request: the job, whose program is replaced; resume,
 * tag and init_from: as in tws_train_options. Fails with TWS_UNSUPPORTED if the program has several losses, and as
 * reading weights does. After an error the caller still closes the pass. */
tws_code tws_scored_pass_open(tws_scored_pass *pass, const tws_plan_request *request, const char *resume,
                              const char *tag, const char *init_from, const tws_log *log, tws_error *err);
/* Allocates the values that runs read: `wanted` of them. */
tws_code tws_scored_pass_room(tws_scored_pass *pass, uint64_t wanted, tws_error *err);
/* Runs the program, whose inputs the caller has set, and reads scores [from, from + wanted) into pass->values. number:
 * of the pass, from 1. */
tws_code tws_scored_pass_run(tws_scored_pass *pass, int64_t number, uint64_t from, tws_error *err);
void tws_scored_pass_close(tws_scored_pass *pass);

#endif
