#include "launch/watch.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/failure.h"
#include "base/fingerprint.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "launch/link.h"
#include "launch/process.h"
#include "launch/protocol.h"

/* Ranks on other nodes send a heartbeat every second (launch/worker.c). */
static const double look_s = 0.25, away_s = 1.0, remote_grace_s = 1.25, report_grace_s = 3.25, beat_slack_s = 0.5;
static const double answer_s = 2.0, state_ahead_s = 1.0, work_ahead_s = 1.5;

typedef struct watched {
  pid_t pid;  /* process ID; 0: not known, or on another machine */
  int socket; /* socket of a rank that has connected through the network, or -1 */
  int came, done;
  char state;     /* state of the process at the last check; 0: not known */
  double heard_s; /* time of the last message of a rank that has connected through the network */
} watched;

struct tws_watch {
  tws_watch_setup setup;
  pid_t mpirun;
  char mpirun_state;
  watched *rank;
  uint64_t print; /* hash of the board */
  double since_s; /* time of the last change */
  double looked_s, search_until_s;
  double began_s, worked_s; /* began_s: start of the job; worked_s: last time at which the processes of ranks that are
                             * starting had used more processor time */
  unsigned long long ticks; /* processor time that these processes had used by worked_s, clock ticks; 0: not read yet */
  pid_t *apart;             /* process IDs of the ranks that have connected */
};

tws_code tws_watch_create(const tws_watch_setup *setup, tws_watch **out, tws_error *err) {
  tws_watch *w = *out = tws_calloc(1, sizeof *w);
  if (w) w->rank = tws_calloc((size_t)setup->ranks, sizeof *w->rank);
  if (w) w->apart = tws_calloc((size_t)setup->ranks, sizeof *w->apart);
  if (!w || !w->rank || !w->apart) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  w->setup = *setup;
  for (int r = 0; r < setup->ranks; r++) w->rank[r].socket = -1;
  w->since_s = w->looked_s = w->began_s = w->worked_s = tws_clock_s();
  return TWS_OK;
}

void tws_watch_destroy(tws_watch *w) {
  if (w) tws_free(w->rank);
  if (w) tws_free(w->apart);
  tws_free(w);
}

void tws_watch_started(tws_watch *w, pid_t mpirun) {
  w->mpirun = mpirun;
  w->since_s = w->looked_s = w->began_s = w->worked_s = tws_clock_s();
}

void tws_watch_connected(tws_watch *w, int rank, pid_t pid, int socket) {
  watched *r = &w->rank[rank];
  if (pid > 0) r->pid = pid;
  r->socket = socket;
  r->came = 1;
  r->heard_s = w->since_s = tws_clock_s();
  w->search_until_s = r->heard_s + 4 * look_s;
  if (socket >= 0) tws_link_enable_keepalive(socket, 1);
}

void tws_watch_received(tws_watch *w, int rank) {
  w->rank[rank].heard_s = tws_clock_s();
}

void tws_watch_done(tws_watch *w, int rank) {
  w->rank[rank].done = 1;
  w->rank[rank].socket = -1;
  w->since_s = tws_clock_s();
}

pid_t tws_watch_pid(const tws_watch *w, int rank) {
  return w->rank[rank].pid;
}

/* ---- reading the state of the ranks ---- */

/* Finds the processes of ranks on this machine: they are children of mpirun, which passes each its number. The search
 * is repeated until all ranks have connected, since a rank may be suspended by a signal before it reports anything. */
static void find_processes(tws_watch *w) {
  enum { MOST = 1024 };
  pid_t children[MOST];
  int missing = 0, late = 0;
  for (int r = 0; r < w->setup.ranks; r++) {
    missing += w->rank[r].pid == 0 && !w->rank[r].done;
    late += !w->rank[r].came;
  }
  if (missing == 0 || w->mpirun <= 0 || (late == 0 && tws_clock_s() > w->search_until_s)) return;
  const int count = tws_process_children(w->mpirun, children, MOST);
  for (int i = 0; i < count; i++) {
    char number[16];
    if (!tws_process_variable(children[i], "OMPI_COMM_WORLD_RANK", number, sizeof number)) continue;
    int rank;
    if (!tws_text_int(number, NULL, 0, w->setup.ranks - 1, &rank)) continue;
    if (w->rank[rank].pid == 0) w->rank[rank].pid = children[i];
  }
}

/* Reads the board. Any change of it means progress: some rank has reported a new operation. */
static void read_board(tws_watch *w, double now) {
  const uint64_t print = tws_fingerprint_bytes(0, w->setup.board, (size_t)w->setup.ranks * TWS_BOARD_LINE);
  if (print != w->print) w->since_s = now;
  w->print = print;
}

static int all_came(const tws_watch *w) {
  int r = 0;
  while (r < w->setup.ranks && w->rank[r].came) r++;
  return r == w->setup.ranks;
}

/* Reads the processor time of the processes that start. On a busy machine starting takes long, which a short deadline
 * is not meant to detect: while they use processor time they are not late, up to four deadlines in total. Ranks that
 * have connected wait for the others, and are not counted. */
static void read_work(tws_watch *w, double now) {
  const double most_s = 4 * w->setup.deadline_s;
  /* processor time is read only shortly before the deadline */
  const int looks = now - w->since_s + work_ahead_s > w->setup.deadline_s;
  if (!looks) w->ticks = 0;
  if (!looks || all_came(w) || w->mpirun <= 0 || now - w->began_s > most_s) return;
  for (int r = 0; r < w->setup.ranks; r++) {
    w->apart[r] = w->rank[r].came ? w->rank[r].pid : 0;
    /* progress cannot be told: the processes of a remote rank are not known here */
    if (w->rank[r].came && w->rank[r].pid == 0) return;
  }
  const unsigned long long ticks = 1 + tws_process_descendant_ticks(getpid(), w->apart, w->setup.ranks);
  if (w->ticks > 0 && ticks != w->ticks) w->worked_s = now;
  w->ticks = ticks;
}

static void read_states(tws_watch *w) {
  w->mpirun_state = w->mpirun > 0 ? tws_process_state(w->mpirun, NULL) : 0;
  for (int r = 0; r < w->setup.ranks; r++)
    w->rank[r].state = w->rank[r].pid > 0 ? tws_process_state(w->rank[r].pid, NULL) : 0;
}

double tws_watch_next_check_s(const tws_watch *w) {
  return w->looked_s + look_s;
}

double tws_watch_look(tws_watch *w) {
  const double now = tws_clock_s(), away = now - w->looked_s;
  if (away < look_s) return 0;
  w->looked_s = now;
  if (away > away_s) {
    w->since_s = w->since_s + away < now ? w->since_s + away : now;
    w->began_s += away;
    for (int r = 0; r < w->setup.ranks; r++) w->rank[r].heard_s += away;
  }
  find_processes(w);
  read_board(w, now);
  if (w->setup.deadline_s > 0) read_work(w, now);
  if (w->setup.deadline_s > 0 && now - w->since_s + state_ahead_s > w->setup.deadline_s) read_states(w);
  return away > away_s ? away : 0;
}

int tws_watch_answers(const tws_watch *w, int rank, double within_s) {
  if (tws_process_is_stopped(w->rank[rank].state)) return 1;
  return w->rank[rank].socket >= 0 && tws_link_silence_s(w->rank[rank].socket) < within_s;
}

/* ---- the verdict ---- */

static int is_stopped(const tws_watch *w, int rank) {
  return !w->rank[rank].done && tws_process_is_stopped(w->rank[rank].state);
}

/* Returns 1 if no message arrived from the rank during the whole time without progress. */
static int is_silent(const tws_watch *w, int rank, double now) {
  const watched *r = &w->rank[rank];
  if (r->done || r->socket < 0 || (r->state && !tws_process_is_stopped(r->state))) return 0;
  return now - r->heard_s >= now - w->since_s - beat_slack_s && tws_watch_answers(w, rank, answer_s);
}

/* Returns the rank's last report. */
static const char *said(const tws_watch *w, int rank, char *text, size_t size) {
  snprintf(text, size, "%.*s", TWS_BOARD_LINE - 1, w->setup.board + (size_t)rank * TWS_BOARD_LINE);
  return text[0] ? text : "starting";
}

typedef struct sentence {
  char text[1200];
  int length;
} sentence;

static void add(sentence *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(sentence *s, const char *format, ...) {
  va_list list;
  const int room = (int)sizeof s->text - s->length;
  va_start(list, format);
  const int n = room > 1 ? vsnprintf(s->text + s->length, (size_t)room, format, list) : 0;
  va_end(list);
  s->length += n < room ? n : room > 1 ? room - 1 : 0;
}

enum { MOST_NAMED = 4 };

static tws_code judge_stopped(const tws_watch *w, int *rank, tws_error *err) {
  const double quiet = tws_clock_s() - w->since_s;
  sentence s = {.length = 0};
  char what[TWS_BOARD_LINE];
  int count = 0;
  *rank = -1;
  for (int r = 0; r < w->setup.ranks; r++) {
    if (!is_stopped(w, r)) continue;
    if (count == 0) *rank = r;
    if (count++ < MOST_NAMED)
      add(&s, "%srank %d is stopped%s (process %d), at: %s", count > 1 ? "; " : "", r,
          w->rank[r].state == 't' ? " by a debugger" : "", (int)w->rank[r].pid, said(w, r, what, sizeof what));
  }
  if (count == 0) return TWS_OK;
  if (count > MOST_NAMED) add(&s, "; and %d more are stopped", count - MOST_NAMED);
  return tws_fail(err, TWS_HANG, "`kill -CONT` continues a stopped process, before the deadline",
                  "nothing has happened for %.3g s: %s", quiet < w->setup.deadline_s ? quiet : w->setup.deadline_s,
                  s.text);
}

static tws_code judge_silent(const tws_watch *w, double now, int *rank, tws_error *err) {
  sentence s = {.length = 0};
  char what[TWS_BOARD_LINE];
  int count = 0;
  for (int r = 0; r < w->setup.ranks; r++) {
    if (!is_silent(w, r, now)) continue;
    if (count == 0) *rank = r;
    if (count++ < MOST_NAMED)
      add(&s, "%srank %d is silent, while its machine answers, since: %s", count > 1 ? "; " : "", r,
          said(w, r, what, sizeof what));
  }
  if (count == 0) return TWS_OK;
  if (count > MOST_NAMED) add(&s, "; and %d more are silent", count - MOST_NAMED);
  return tws_fail(err, TWS_HANG, "is its process stopped? `kill -CONT` continues it, before the deadline",
                  "nothing has happened for %.3g s: %s", w->setup.deadline_s, s.text);
}

tws_code tws_watch_stopped(const tws_watch *w, int *rank, tws_error *err) {
  const double now = w->looked_s; /* the time of the last check, because this process may have been stopped since */
  const tws_code code = judge_stopped(w, rank, err);
  if (code != TWS_OK || now - w->since_s - w->setup.deadline_s < remote_grace_s) return code;
  return judge_silent(w, now, rank, err);
}

static tws_code judge_missing(const tws_watch *w, int *rank, tws_error *err) {
  int count = 0, first = -1;
  char others[48] = "";
  for (int r = w->setup.ranks; r-- > 0;)
    if (!w->rank[r].came) {
      first = r;
      count++;
    }
  if (count == 0) return TWS_OK;
  *rank = first;
  if (count > 1) snprintf(others, sizeof others, " (nor did %d other%s)", count - 1, count > 2 ? "s" : "");
  return tws_fail(err, TWS_HANG, "does `mpirun -n 2 hostname` work on this machine?",
                  "rank %d did not start within %.3g s%s", first, w->setup.deadline_s, others);
}

/* Appends "ranks 0, 1 and 3", the ranks that report the same operation as this one, if it is the first of them; returns
 * their number. */
static int list_alike(const tws_watch *w, int rank, sentence *s) {
  char what[TWS_BOARD_LINE], other[TWS_BOARD_LINE];
  int count = 0, last = -1;
  said(w, rank, what, sizeof what);
  for (int r = 0; r < w->setup.ranks; r++) {
    if (w->rank[r].done || strcmp(said(w, r, other, sizeof other), what) != 0) continue;
    if (r < rank) return 0;
    count++;
    last = r;
  }
  add(s, count > 1 ? "ranks %d" : "rank %d", rank);
  for (int r = rank + 1, listed = 1; r <= last && listed <= MOST_NAMED; r++) {
    if (w->rank[r].done || strcmp(said(w, r, other, sizeof other), what) != 0) continue;
    if (r < last && listed == MOST_NAMED)
      add(s, " and %d more", count - listed);
    else
      add(s, r < last ? ", %d" : " and %d", r);
    listed++;
  }
  return count;
}

/* Reports a hang of which no stuck rank is known, with every rank's operation. */
static tws_code judge_unknown(const tws_watch *w, tws_error *err) {
  sentence places = {.length = 0};
  char what[TWS_BOARD_LINE];
  int left = 0, groups = 0;
  for (int r = 0; r < w->setup.ranks; r++) left += !w->rank[r].done;
  for (int r = 0; r < w->setup.ranks; r++) {
    sentence alike = {.length = 0};
    const int count = w->rank[r].done ? 0 : list_alike(w, r, &alike);
    if (count == 0) continue;
    const char *are = count < left ? "" : left == 1 ? " does not continue" : left == 2 ? " are both" : " are all";
    add(&places, "%s%.100s%s at: %s", groups++ ? "; " : "", alike.text, are, said(w, r, what, sizeof what));
  }
  if (left == 0) return TWS_OK;
  return tws_fail(err, TWS_HANG, TWS_FAILURE_HANG_HINT, "nothing has happened for %.3g s: %s%s", w->setup.deadline_s,
                  places.text, left > 1 ? "; one of them does not continue" : "");
}

tws_code tws_watch_judge(const tws_watch *w, int *rank, tws_error *err) {
  const double now = w->looked_s, over = now - w->since_s - w->setup.deadline_s;
  *rank = -1;
  if (w->setup.deadline_s <= 0 || over < 0) return TWS_OK;
  tws_code code = judge_stopped(w, rank, err);
  if (code == TWS_OK && tws_process_is_stopped(w->mpirun_state))
    code = tws_fail(err, TWS_HANG, "`kill -CONT` continues a stopped process, before the deadline",
                    "nothing has happened for %.3g s: mpirun is stopped (process %d)", w->setup.deadline_s,
                    (int)w->mpirun);
  if (code == TWS_OK && over >= remote_grace_s) code = judge_silent(w, now, rank, err);
  const int starts = !all_came(w) && now - w->worked_s < w->setup.deadline_s;
  if (code == TWS_OK && starts) return TWS_OK;
  if (code == TWS_OK) code = judge_missing(w, rank, err);
  if (code == TWS_OK && over >= report_grace_s) code = judge_unknown(w, err);
  return code;
}

void tws_watch_kill_stopped(const tws_watch *w) {
  for (int r = 0; r < w->setup.ranks; r++)
    if (is_stopped(w, r)) kill(w->rank[r].pid, SIGKILL);
}
