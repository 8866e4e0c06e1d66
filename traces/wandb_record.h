/* The transaction log of Weights and Biases, run-<id>.wandb, as its client 0.31 writes it offline: seven bytes,
 * ":W&B", 0xbee1 and a version 0, then LevelDB's log format of Records of wandb/proto/wandb_internal.proto.
 * LevelDB's log (doc/log_format.md) has chunks in blocks of 32768 bytes, each with a CRC-32 of its type and its
 * bytes (IEEE and unmasked here), their number and the type. The Records are header, run, then for each step a
 * summary and a history, and at the end exit. */
#ifndef TWS_TRACES_WANDB_RECORD_H
#define TWS_TRACES_WANDB_RECORD_H

#include <stdint.h>
#include "base/memory.h"
#include "traces/step_report.h"

typedef struct tws_wandb_run {
  const char *id;                            /* ID of the run: eight letters and digits */
  const char *team, *project, *group, *host; /* NULL: not set */
  const struct cJSON *configuration;         /* a JSON object; NULL: not set */
  double start_s;                            /* start of the run, seconds since 1970 */
} tws_wandb_run;

typedef struct tws_wandb_log {
  const tws_wandb_run *run;
  uint64_t offset; /* bytes of the file that were written so far */
  int64_t count;   /* number of records that were written so far */
  tws_text record; /* the record that is being built */
} tws_wandb_log;

/* Each function appends the next bytes of the file to `out`, which grows as needed. */
void tws_wandb_begin(tws_wandb_log *log, tws_text *out); /* writes the header and the run record */
void tws_wandb_step(tws_wandb_log *log, const tws_step_report *report, tws_text *out); /* writes a step's record */
void tws_wandb_exit(tws_wandb_log *log, int exit_code, double now_s, tws_text *out);

#endif
