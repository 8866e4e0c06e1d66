/* What is made of ranks that die, hang or are lost: how long it takes until somebody says so, and what is said. For the
 * launcher, the ranks' watchdog and the emulator, which have clocks of their own. */
#ifndef TWS_BASE_FAILURE_H
#define TWS_BASE_FAILURE_H

#include <stdint.h>
#include "base/status.h"

/* A rank elsewhere is lost when nothing was heard of it for half of the deadline, but no less than 3 s and no more than
 * 60. deadline_s 0: there is none. */
double tws_failure_silence_s(double deadline_s);
/* The deadline of a job whose user gives none. */
#define TWS_FAILURE_DEADLINE_S 1800.0
/* What a rank that waits for others gives them past the deadline: they know better what they wait for. */
#define TWS_FAILURE_GRACE_S 2.0

/* TWS_RANK: a rank's process ended with this exit status, above 128 by a signal; 0: without a word. */
tws_code tws_failure_death(int rank, int status, const char *doing, tws_error *err);
/* TWS_RANK: nothing is heard of a node's `count` ranks from `first` on. */
tws_code tws_failure_lost(const char *node, int first, int count, double silence_s, int rank, const char *doing,
                          tws_error *err);
/* TWS_HANG: in a step. comes: the rank is in this operation; 0: the others wait in it for the rank. */
tws_code tws_failure_hang(int64_t step, double after_s, int rank, int comes, const char *doing, tws_error *err);
#define TWS_FAILURE_HANG_HINT "raise --deadline if it is only slow; look at that rank's machine otherwise"

#endif
