/* Deadlines and messages for ranks that die, hang or are lost. The launcher, the ranks' watchdog and the emulator,
 * which have different clocks, use these functions so that they report failures in the same way. */
#ifndef TWS_BASE_FAILURE_H
#define TWS_BASE_FAILURE_H

#include <stdint.h>
#include "base/status.h"

/* Returns the seconds without a message after which a rank on another node is reported as lost: half of the deadline,
 * at least 3 s and at most 60 s, or 0 if deadline_s is 0 (no deadline). */
double tws_failure_silence_s(double deadline_s);
/* Default deadline of a job in seconds. */
#define TWS_FAILURE_DEADLINE_S 1800.0
/* Seconds after the deadline during which a waiting rank does not report itself: the ranks that it waits for report
 * first, because they are nearer to the cause. */
#define TWS_FAILURE_GRACE_S 2.0

/* Fails with TWS_RANK: the process of `rank` ended with this exit status (128 + signal if a signal ended it; 0 if it
 * ended without a report) while it was `doing` something. */
tws_code tws_failure_death(int rank, int status, const char *doing, tws_error *err);
/* Fails with TWS_RANK: for silence_s seconds no message arrived from the `count` ranks of a node, the first of which
 * has the number `first`. */
tws_code tws_failure_lost(const char *node, int first, int count, double silence_s, int rank, const char *doing,
                          tws_error *err);
/* Fails with TWS_HANG: a step exceeds the deadline. `comes` 1: `rank` is stuck in the operation `doing`; 0: the other
 * ranks wait in that operation for `rank`, which has not reached it. */
tws_code tws_failure_hang(int64_t step, double after_s, int rank, int comes, const char *doing, tws_error *err);
#define TWS_FAILURE_HANG_HINT "raise --deadline if it is only slow; look at that rank's machine otherwise"

#endif
