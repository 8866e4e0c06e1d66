#include "launch/supervise.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/folder.h"

/* One supervision, from its first attempt to its last. */
typedef struct supervision {
  tws_supervised *s;
  tws_attempt attempt;
  void *user;
  const tws_log *log;
  int64_t since;      /* time stamp of the folder before the job started, from tws_recovery_find() */
  const char *origin; /* tag of the checkpoint in that folder that the first attempt started from */
} supervision;

/* Sets the numbers of ranks. A job without a cluster gets one with as many nodes as hosts; several names of this
 * machine count as one. */
tws_code tws_supervised_place(tws_supervised *s, tws_error *err) {
  int most = 1;
  s->job.ranks = s->launch.ranks = tws_hosts_ranks(&s->hosts);
  if (!s->job.ranks) return tws_fail(err, TWS_INVALID, NULL, "no rank is left to start");
  for (int h = 0; h < s->hosts.count; h++) most = s->hosts.host[h].count > most ? s->hosts.host[h].count : most;
  const int here = tws_hosts_local(&s->hosts);
  s->launch.hosts = here ? NULL : &s->hosts;
  s->own_cluster |= !s->job.cluster;
  if (s->own_cluster) s->job.cluster = here ? "host" : tws_arena_printf(s->arena, "host:%dx%d", s->hosts.count, most);
  return s->job.cluster ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}

/* Removes the host of the rank that failed or, if it is the only host, one rank of it. */
static tws_code leave_out_failed(tws_supervised *s, tws_error *err) {
  int slot;
  if (!s->launch.hosts) {
    s->job.ranks = (s->job.ranks ? s->job.ranks : s->launch.ranks) - 1;
    return TWS_OK;
  }
  const tws_host *host = tws_hosts_of_rank(&s->hosts, s->failed_rank, &slot);
  const int at = host ? (int)(host - s->hosts.host) : 0;
  memmove(&s->hosts.host[at], &s->hosts.host[at + 1], (size_t)(--s->hosts.count - at) * sizeof *s->hosts.host);
  if (s->hosts.count < s->launch.least_nodes)
    return tws_fail(err, TWS_NO, NULL, "%d nodes are left, and --num-nodes asks for %d", s->hosts.count,
                    s->launch.least_nodes);
  return tws_supervised_place(s, err);
}

/* Reduces the job to the number of ranks that remain and that divide the batch: the last hosts then have fewer. */
static tws_code shrink(tws_supervised *s, tws_error *err) {
  int64_t ranks;
  TWS_TRY(leave_out_failed(s, err));
  TWS_TRY(tws_recovery_reshard(&s->job, s->job.ranks, &ranks, NULL, err));
  for (int64_t over = s->job.ranks - ranks; s->launch.hosts && over > 0; over--)
    if (--s->hosts.host[s->hosts.count - 1].count == 0) s->hosts.count--;
  s->job.ranks = ranks;
  return s->launch.hosts ? tws_supervised_place(s, err) : TWS_OK;
}

/* Returns 1 if the lock shows that rank 0 saved into a folder of another machine; then this machine cannot find the
 * latest checkpoint. */
static int is_elsewhere(const supervision *v, int64_t taken) {
  const tws_supervised *s = v->s;
  if (!s->launch.hosts || tws_folder_stamp(s->save, TWS_FOLDER_LOCK) != taken) return 0;
  tws_log_write(v->log, TWS_LOG_WARNING, "%s is not on this machine: continue by hand with --resume, on the first host",
                s->save);
  return 1;
}

/* Chooses the checkpoint from which the remaining ranks continue, after the failure was logged. */
static tws_code choose_point(const supervision *v, int64_t before, tws_error *err) {
  tws_supervised *s = v->s;
  const tws_recovery_point *point = &s->point;
  tws_log_write(v->log, TWS_LOG_WARNING, "%s", err->message);
  *err = (tws_error){0};
  TWS_TRY(tws_recovery_find(s->save, v->since, v->origin, &s->point, err));
  if (*point->damage.message) tws_log_write(v->log, TWS_LOG_WARNING, "%s", point->damage.message);
  tws_log_write(v->log, TWS_LOG_WARNING, "continuing with %" PRId64 " of %" PRId64 " ranks %s%s", s->job.ranks, before,
                *point->tag ? "from "
                : s->resume ? "from where it began: no checkpoint was saved since"
                            : "from the beginning: no checkpoint was saved yet",
                point->tag);
  s->force = 1;
  if (!*point->tag) return TWS_OK;
  s->resume = s->save;
  s->tag = point->tag;
  if (!point->has_base) s->init_from = NULL;
  return TWS_OK;
}

/* Runs an attempt. If the user named no tag, the job that saves into the folder may remove the checkpoint that was
 * found before all ranks have read it: the attempt is then repeated from the newest one. */
static tws_code run_from_newest(const supervision *v, tws_error *err) {
  enum { TRIES = 5 };
  tws_supervised *s = v->s;
  char path[TWS_FOLDER_SIZE], newer[TWS_TAG_SIZE];
  tws_code code = v->attempt(v->user, s, err);
  for (int i = 0; code == TWS_IO && s->found_tag && i < TRIES && !tws_rank_job_is_checked(); i++) {
    snprintf(path, sizeof path, "%.3500s/%.255s", s->resume, s->tag);
    (void)tws_folder_is_removed(path, newer, sizeof newer);
    if (!*newer) break;
    tws_log_write(v->log, TWS_LOG_WARNING, "%s was replaced meanwhile by the job that saves there; continuing from %s",
                  path, newer);
    snprintf(s->found_tag, TWS_TAG_SIZE, "%s", newer);
    *err = (tws_error){0};
    code = v->attempt(v->user, s, err);
  }
  return code;
}

/* Supervises the job. State of a lost rank or node is lost up to the last checkpoint, from which the remaining ranks
 * continue. */
tws_code tws_supervise(tws_supervised *s, tws_attempt attempt, void *user, const tws_log *log, tws_error *err) {
  tws_error unasked = {0};
  const supervision v = {.s = s,
                         .attempt = attempt,
                         .user = user,
                         .log = log,
                         .since = s->save ? tws_folder_stamp(s->save, "latest") : 0,
                         .origin = s->save && s->resume && tws_folder_same(s->save, s->resume) ? s->tag : NULL};
  if (!err) err = &unasked;
  s->launch.failed_rank = &s->failed_rank;
  int64_t taken = s->save ? tws_folder_stamp(s->save, TWS_FOLDER_LOCK) : 0;
  tws_code code = run_from_newest(&v, err);
  for (int64_t left = s->restarts; s->failed_rank >= 0 && !tws_rank_job_is_checked(); left--) {
    tws_error why = {0};
    const int64_t before = s->job.ranks > 0 ? s->job.ranks : s->launch.ranks;
    /* a file that one rank cannot read or write may be on a disk of its node alone */
    if (!tws_recovery_continues(code == TWS_IO ? TWS_RANK : code, left, before, s->save)) break;
    if (is_elsewhere(&v, taken)) break;
    if (shrink(s, &why) != TWS_OK) {
      tws_log_write(log, TWS_LOG_WARNING, "the job is not restarted: %s", why.message);
      break;
    }
    taken = tws_folder_stamp(s->save, TWS_FOLDER_LOCK);
    TWS_TRY(choose_point(&v, before, err));
    code = attempt(user, s, err);
  }
  return code;
}
