#include "base/failure.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

double tws_failure_silence_s(double deadline_s) {
  const double least_s = 3.0, most_s = 60.0, silence_s = deadline_s > 0.0 ? deadline_s / 2 : most_s;
  return silence_s < least_s ? least_s : silence_s > most_s ? most_s : silence_s;
}

tws_code tws_failure_death(int rank, int status, const char *doing, tws_error *err) {
  char how[64] = "ended without a word";
  if (status > 128 && status < 128 + 65)
    snprintf(how, sizeof how, "was ended by signal %d (%s)", status - 128, strsignal(status - 128));
  else if (status > 0)
    snprintf(how, sizeof how, "ended with status %d", status);
  const char *hint = status == 128 + SIGKILL
                         ? "was the machine out of memory? `dmesg` says so; see `twinspeed estimate`"
                     : status == 128 + SIGTERM ? NULL
                                               : "run with --verbose, or with -n 1 --deadline 0 under a debugger";
  return tws_fail(err, TWS_RANK, hint, "rank %d %s: %s", rank, how, doing);
}

tws_code tws_failure_lost(const char *node, int first, int count, double silence_s, int rank, const char *doing,
                          tws_error *err) {
  char ranks[128] = "";
  int n = 0;
  for (int i = 0; i < count && n < 100; i++) n += snprintf(ranks + n, sizeof ranks - (size_t)n, " %d", first + i);
  return tws_fail(err, TWS_RANK, "is the machine up, and its network?",
                  "node %s (rank%s%s) has not been heard of for %.3g s; rank %d was at: %s", node, count > 1 ? "s" : "",
                  ranks, silence_s, rank, doing);
}

tws_code tws_failure_hang(int64_t step, double after_s, int rank, int comes, const char *doing, tws_error *err) {
  return tws_fail(err, TWS_HANG, TWS_FAILURE_HANG_HINT,
                  "step %" PRId64 " is not done, and nothing has happened for %.3g s: rank %d %s operation '%s'", step,
                  after_s, rank, comes ? "is in" : "does not reach", doing);
}
