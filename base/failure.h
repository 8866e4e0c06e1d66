/* Deadlines and messages for ranks that die, hang or are lost. The launcher, the ranks' watchdog and the emulator,
 * which have clocks of their own, report failures alike through this file. */
#ifndef TWS_BASE_FAILURE_H
#define TWS_BASE_FAILURE_H

#include <stdint.h>
#include "base/status.h"

/* Seconds without a message after which a rank on another node counts as lost: half of the deadline, at least 3 s
 * and at most 60. 0 where deadline_s is 0 (no deadline). */
double tws_failure_silence_s(double deadline_s);
/* Deadline of a job whose user gives none, in seconds. */
#define TWS_FAILURE_DEADLINE_S 1800.0
/* Seconds past the deadline that a waiting rank leaves to the ranks that it waits for: these know better why they
 * wait. */
#define TWS_FAILURE_GRACE_S 2.0

/* TWS_RANK: a rank's process ended with this exit status, 128 + signal where a signal ended it, 0 where it ended
 * without a report. */
tws_code tws_failure_death(int rank, int status, const char *doing, tws_error *err);
/* TWS_RANK: no message arrives from a node's `count` ranks, the first of which is `first`. */
tws_code tws_failure_lost(const char *node, int first, int count, double silence_s, int rank, const char *doing,
                          tws_error *err);
/* TWS_HANG: a step exceeds the deadline. comes 1: the rank is stuck in the operation `doing`; 0: the rank has not
 * arrived in that operation, in which the others wait for it. */
tws_code tws_failure_hang(int64_t step, double after_s, int rank, int comes, const char *doing, tws_error *err);
#define TWS_FAILURE_HANG_HINT "raise --deadline if it is only slow; look at that rank's machine otherwise"

#endif
