/* Explains how a job has ended: which rank failed first, in which operation, and why. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include "base/failure.h"
#include "launch/launch_job.h"
#include "launch/noise.h"

static const char *what_it_did(const tws_launch_job *j, int rank, char *text, size_t size) {
  const char *line = j->board + (size_t)rank * TWS_BOARD_LINE;
  snprintf(text, size, "%.*s", TWS_BOARD_LINE - 1, line);
  return text[0] ? text : "starting";
}

static tws_code explain_death(const tws_launch_job *j, int rank, tws_error *err) {
  char what[TWS_BOARD_LINE];
  const int status = WIFEXITED(j->status) ? WEXITSTATUS(j->status) : 0;
  return tws_failure_death(rank, status, what_it_did(j, rank, what, sizeof what), err);
}

/* Reports the loss of a rank together with the other ranks of its node. */
static tws_code explain_loss(const tws_launch_job *j, int rank, tws_error *err) {
  char what[TWS_BOARD_LINE];
  int slot = 0;
  const tws_host *host = j->options->hosts ? tws_hosts_of_rank(j->options->hosts, rank, &slot) : NULL;
  return tws_failure_lost(host ? host->name : "?", rank - slot, host ? host->count : 0, j->silence_s, rank,
                          what_it_did(j, rank, what, sizeof what), err);
}

/* Logs the operation of every rank when one hangs; ranks in the same operation share one line. */
static void tell_places(const tws_launch_job *j) {
  char what[TWS_BOARD_LINE], other[TWS_BOARD_LINE], ranks[256];
  for (int r = 0; r < j->options->ranks; r++) {
    int n = 0, first = 1;
    what_it_did(j, r, what, sizeof what);
    for (int k = 0; k < j->options->ranks; k++) {
      if (strcmp(what_it_did(j, k, other, sizeof other), what) != 0) continue;
      first = first && k >= r;
      if (n < (int)sizeof ranks - 16) n += snprintf(ranks + n, sizeof ranks - (size_t)n, " %d", k);
    }
    if (first) tws_log_write(j->options->log, TWS_LOG_INFO, "at that time: rank%s: %s", ranks, what);
  }
}

static void name_failed(const tws_launch_job *j, int rank) {
  if (j->options->failed_rank) *j->options->failed_rank = rank;
}

/* Returns the error for a job whose only failure is that not all output of the ranks could be written. */
static tws_code explain_output(const tws_launch_job *j, tws_error *err) {
  const int failed = tws_printed_failed(j->printed);
  if (failed)
    return tws_fail(err, TWS_IO, "is the disk full?", "not all that the ranks printed was written: %s",
                    strerror(failed));
  if (!j->muted) return TWS_OK;
  return tws_fail(err, TWS_RANK, NULL, "the connection to rank %d was closed before all that it printed had come",
                  j->muted - 1);
}

tws_code tws_launch_explain(const tws_launch_job *j, tws_error *err) {
  char noise[4096];
  int explains, ranks = j->options->ranks, code = WIFEXITED(j->status) ? WEXITSTATUS(j->status) : 128;
  const int blamed = tws_noise_read(j->noise, noise, sizeof noise, &explains);
  if (j->signal)
    return tws_fail(err, j->signal == SIGTERM ? TWS_TERMINATED : TWS_INTERRUPTED, NULL, "%s; all ranks have ended",
                    j->signal == SIGTERM ? "asked to end" : "interrupted");
  if (j->finished) {
    tws_log_write(j->options->log, TWS_LOG_WARNING,
                  "all ranks have ended well, but mpirun did not within %.3g s, and was ended", j->finish_limit_s);
    return explain_output(j, err);
  }
  if (j->killed)
    return tws_fail(err, TWS_RANK,
                    WTERMSIG(j->status) == SIGKILL ? "was the machine out of memory? `dmesg` says so" : NULL,
                    "mpirun was ended by signal %d (%s), and all ranks with it", WTERMSIG(j->status),
                    strsignal(WTERMSIG(j->status)));
  if (j->stopped_itself && !explains && j->options->launcher != TWS_LAUNCHER_SRUN)
    return tws_fail(
        err, TWS_RANK, "did a person or a batch system end mpirun?",
        "mpirun ended all ranks and names none that failed: a signal from outside this job asked it to end");
  name_failed(j, j->lost ? j->lost - 1 : j->failure.kind ? j->failure.rank : j->first_dead);
  if (j->lost) return explain_loss(j, j->lost - 1, err);
  if (j->failure.kind) {
    if (j->failure.error.code == TWS_HANG) tell_places(j);
    if (err) *err = j->failure.error;
    int slot;
    const tws_host *host =
        j->remote && j->options->hosts ? tws_hosts_of_rank(j->options->hosts, j->failure.rank, &slot) : NULL;
    if (host && j->failure.rank > 0 && (j->failure.error.code == TWS_IO || j->failure.error.code == TWS_ENVIRONMENT))
      return tws_fail_in(err, j->failure.error.code, "node %s", host->name);
    return j->failure.error.code != TWS_OK ? j->failure.error.code : TWS_RANK;
  }
  if (j->first_dead >= 0) {
    int known = blamed >= 0 && blamed < ranks && j->peers[blamed].known && !j->peers[blamed].said_end;
    const int rank = known ? blamed : j->first_dead;
    name_failed(j, rank);
    return explain_death(j, rank, err);
  }
  if (code == 0) return explain_output(j, err);
  int started = 0;
  for (int r = 0; r < ranks; r++) started += j->peers[r].known;
  if (started == ranks) return tws_fail(err, TWS_RANK, NULL, "mpirun ended with status %d", code);
  return tws_fail(err, TWS_ENVIRONMENT,
                  j->remote ? "does `ssh HOST hostname` work from here, without a password, and is Open MPI there?"
                            : "does `mpirun -n 2 hostname` work on this machine?",
                  "mpirun did not start all ranks (status %d): %.400s", code, noise);
}
