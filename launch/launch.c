/* Runs a job: welcomes its ranks, receives their records, and ends them. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/failure.h"
#include "base/number.h"
#include "base/system.h"
#include "launch/launch_job.h"
#include "launch/starter.h"

/* Time limits in seconds. When a rank dies, mpirun ends the other ranks by itself, and its exit status tells how the
 * rank died: mpirun has `notice_s` for that before the launcher asks it to end, and `reaction_s` after a rank has
 * reported a failure. Processes that were asked to end are killed after `patience_s`, or after `hang_s` if they hang.
 * After all ranks have ended well, mpirun has `patience_s` to end (`notice_s` if it has daemons on other machines), and
 * then `hang_s`. */
static const double notice_s = 10.0, reaction_s = 2.0, patience_s = 5.0, hang_s = 1.5;

static void ask_to_end(tws_launch_job *j) {
  if (j->kill_at_s > 0.0) return;
  j->kill_at_s = tws_clock_s() + patience_s;
  if (!j->ended) kill(-j->mpirun, SIGTERM);
}

/* Sets times for ending the job; the time is shorter after a hang, as processes that hang do not end by themselves. */
static void end_soon(tws_launch_job *j) {
  ask_to_end(j);
  j->kill_at_s = tws_clock_s() + hang_s;
}

static void ask_in(tws_launch_job *j, double seconds) {
  const double at = tws_clock_s() + seconds;
  if (j->ask_at_s == 0.0 || j->ask_at_s > at) j->ask_at_s = at;
}

static void end_by_force(tws_launch_job *j) {
  for (int r = 0; r < j->options->ranks; r++) {
    tws_launch_peer *p = &j->peers[r];
    if (p->link.socket >= 0 && p->pid > 0) kill(p->pid, SIGKILL);
    if (p->link.socket < 0 || !j->remote) continue;
    if (!p->said_end && !j->muted) j->muted = r + 1;
    tws_link_close(&p->link); /* the rank ends when it notices the closed connection */
  }
  if (!j->ended) kill(-j->mpirun, SIGKILL);
}

static tws_rank_place place_of(const tws_launch_job *j, int rank) {
  const tws_hosts *hosts = j->options->hosts;
  tws_rank_place p = {.ranks = j->options->ranks,
                      .local_rank = rank,
                      .local_ranks = j->options->ranks,
                      .nodes = 1,
                      .patience_s = j->remote ? j->silence_s : 0};
  snprintf(p.master, sizeof p.master, "127.0.0.1");
  if (!hosts) return p;
  const tws_host *host = tws_hosts_of_rank(hosts, rank, &p.local_rank);
  p.given = host != NULL;
  p.nodes = hosts->count;
  p.local_ranks = p.device_count = host ? host->count : 1;
  p.node = host ? (int)(host - hosts->host) : 0;
  if (host) memcpy(p.device, host->slot, sizeof host->slot);
  if (j->remote) snprintf(p.master, sizeof p.master, "%s", hosts->host[0].name);
  return p;
}

/* Sends WELCOME and, to a local rank, the files of its output and of the board. */
static int send_files(const tws_link *link, tws_launch_record *welcome, const int files[TWS_LAUNCH_FILES]) {
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(TWS_LAUNCH_FILES * sizeof(int))];
  } control;
  memset(&control, 0, sizeof control);
  struct iovec data = {welcome, tws_record_bytes(welcome)};
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(TWS_LAUNCH_FILES * sizeof(int));
  memcpy(CMSG_DATA(header), files, TWS_LAUNCH_FILES * sizeof(int));
  return sendmsg(link->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)data.iov_len;
}

static int send_welcome(tws_launch_job *j, tws_link *link, int rank) {
  tws_launch_record welcome = {.kind = TWS_RECORD_WELCOME, .rank = rank, .place = place_of(j, rank)};
  int files[TWS_LAUNCH_FILES] = {-1, -1, j->files[2]}, own;
  if (j->remote) return tws_link_try_send(link, &welcome);
  if (tws_printed_files(j->printed, rank, files, &own, NULL) != TWS_OK) return 0;
  const int sent = send_files(link, &welcome, files);
  for (int i = 0; own && i < 2; i++) close(files[i]);
  return sent;
}

/* Adds the newly connected ranks, which have proved their identity, to the job. */
static void welcome_ranks(tws_launch_job *j) {
  tws_connected_rank new[TWS_NEWCOMERS];
  const int count = tws_rank_listener_poll(j->strangers, new);
  for (int i = 0; i < count; i++) {
    tws_launch_peer *p = &j->peers[new[i].rank];
    tws_link link = {.socket = new[i].socket,
                     .remote = j->remote,
                     .from_rank = new[i].rank,
                     .ranks = j->options->ranks,
                     .session = new[i].session};
    if (p->known || !send_welcome(j, &link, new[i].rank)) {
      tws_link_close(&link);
      continue;
    }
    p->link = link;
    p->known = 1;
    p->pid = new[i].pid;
    p->heard_s = tws_clock_s();
    tws_watch_connected(j->watch, new[i].rank, new[i].pid, j->remote ? new[i].socket : -1);
  }
  tws_secret_wipe(new, sizeof new);
}

static void print_and_free(tws_launch_job *j, int rank, int stream, tws_text *printable) {
  if (printable->length) tws_printed_add(j->printed, rank, stream, printable->data, printable->length);
  tws_text_free(printable);
}

/* Prints output of a rank on another machine. It is escaped, so that it cannot control this machine's terminal. */
static void print_escaped(tws_launch_job *j, int rank, int stream, const char *text, size_t bytes) {
  tws_text printable = {0};
  tws_escape_add(&j->peers[rank].escape[stream], text, bytes, "\n\t\r", &printable);
  print_and_free(j, rank, stream, &printable);
}

/* Ends the output of a rank on another machine; an incomplete multi-byte character at its end is printed too. */
static void end_printed(tws_launch_job *j, int rank) {
  for (int i = 0; i < 2; i++) {
    tws_text printable = {0};
    tws_escape_end(&j->peers[rank].escape[i], &printable);
    print_and_free(j, rank, i, &printable);
  }
  tws_printed_end(j->printed, rank);
}

/* Keeps the first failure that is reported. After a report of a hang, this process examines which process is stopped,
 * as it may know better than the rank that waits. */
static void note_failure(tws_launch_job *j, const tws_launch_record *record) {
  if (!j->failure.kind && j->first_dead < 0 && !j->lost) {
    int stopped = -1;
    j->failure = *record;
    if (record->error.code == TWS_HANG && tws_watch_stopped(j->watch, &stopped, &j->failure.error) != TWS_OK)
      j->failure.rank = stopped;
  }
  ask_in(j, j->first_dead < 0 ? reaction_s : notice_s);
}

static void take_record(tws_launch_job *j, int rank, const tws_launch_record *record) {
  tws_launch_peer *p = &j->peers[rank];
  if (record->kind == TWS_RECORD_ACTIVITY) {
    char *line = j->board + (size_t)rank * TWS_BOARD_LINE;
    j->news |= strncmp(line, record->text, TWS_BOARD_LINE - 1) != 0;
    memcpy(line, record->text, TWS_BOARD_LINE - 1);
    return;
  }
  if (record->kind == TWS_RECORD_OUTPUT) {
    print_escaped(j, rank, record->stream, record->text, (size_t)record->bytes);
    return;
  }
  if (record->kind == TWS_RECORD_FAILED) note_failure(j, record);
  p->said_end = 1;
  tws_watch_done(j->watch, rank);
  if (j->remote) { /* the rank waits for its connection to be closed before it ends */
    end_printed(j, rank);
    tws_link_close(&p->link);
  }
}

static void hear_rank(tws_launch_job *j, int rank) {
  tws_launch_peer *p = &j->peers[rank];
  tws_launch_record record;
  const int got = tws_link_receive(&p->link, &record);
  if (got < 0) { /* the rank has ended, or has sent bytes that are no record of this job */
    if (j->remote) end_printed(j, rank);
    tws_link_close(&p->link);
    if (!p->said_end && !j->failure.kind && j->first_dead < 0 && !j->signal && !j->lost) {
      j->first_dead = rank;
      j->dead_s = tws_clock_s();
    }
    if (!p->said_end) ask_in(j, notice_s);
    tws_watch_done(j->watch, rank);
    return;
  }
  p->heard_s = tws_clock_s();
  tws_watch_received(j->watch, rank);
  if (got > 0) take_record(j, rank, &record);
}

/* Returns the first rank that has not connected or, in a job with a deadline, has reported no operation; -1: none. */
static int missing_rank(const tws_launch_job *j) {
  for (int r = 0; r < j->options->ranks; r++)
    if (!j->peers[r].known || (j->options->deadline_s > 0 && !j->board[(size_t)r * TWS_BOARD_LINE])) return r;
  return -1;
}

/* Sends a record to every rank without blocking; no second NEWS record is sent while one is pending. */
static void tell_all(tws_launch_job *j, tws_launch_word word) {
  const tws_launch_record record = {.kind = word};
  for (int r = 0; r < j->options->ranks; r++) {
    tws_link *link = &j->peers[r].link;
    if (link->socket >= 0 && (word == TWS_RECORD_END || link->pending == 0)) tws_link_try_send(link, &record);
  }
}

static void pass_on_news(tws_launch_job *j) {
  const double now = tws_clock_s();
  if (!j->news || now - j->told_s < 1) return;
  tell_all(j, TWS_RECORD_NEWS);
  j->news = 0;
  j->told_s = now;
}

/* Returns 1 if SIGTERM is forwarded: all ranks are connected, and have work that may be worth saving. */
static int pass_on(tws_launch_job *j) {
  if (!j->options->ends_itself || j->passed_on || j->failure.kind || j->first_dead >= 0 || missing_rank(j) >= 0)
    return 0;
  tell_all(j, TWS_RECORD_END);
  return j->passed_on = 1;
}

/* Records how mpirun has ended. An mpirun that a signal asks to end ends all ranks and returns 1 (tws_noise_read()). */
static void note_end(tws_launch_job *j) {
  j->ended = 1;
  j->stopped_itself = WIFEXITED(j->status) && WEXITSTATUS(j->status) == 1 && j->kill_at_s == 0.0 && !j->lost;
  j->killed = WIFSIGNALED(j->status) && j->kill_at_s == 0.0 && !j->failure.kind && !j->lost &&
              (j->first_dead < 0 || tws_clock_s() - j->dead_s < 1.0);
}

static void take_signals(tws_launch_job *j) {
  struct signalfd_siginfo info;
  while (read(j->signals, &info, sizeof info) == (ssize_t)sizeof info) {
    if (info.ssi_signo == SIGCHLD) {
      if (!j->ended && waitpid(j->mpirun, &j->status, WNOHANG) != 0) note_end(j);
      continue;
    }
    if (info.ssi_signo == SIGTERM && !j->signal && pass_on(j)) continue;
    if (j->signal) end_by_force(j); /* the second request to end */
    if (!j->signal) j->signal = (int)info.ssi_signo;
    ask_to_end(j);
  }
}

static int any_connected(const tws_launch_job *j) {
  for (int r = 0; r < j->options->ranks; r++)
    if (j->peers[r].link.socket >= 0) return 1;
  return 0;
}

/* Returns the time at which the rank that is silent for longest counts as lost, and sets *rank; 0: there is none. */
static double lost_at(const tws_launch_job *j, int *rank) {
  double at = 0;
  const double now = tws_clock_s();
  for (int r = 0; j->remote && r < j->options->ranks; r++) {
    const tws_launch_peer *p = &j->peers[r];
    if (p->link.socket < 0 || p->said_end || (at > 0 && p->heard_s + j->silence_s >= at)) continue;
    if (now >= p->heard_s + j->silence_s && tws_watch_answers(j->watch, r, j->silence_s)) continue;
    at = p->heard_s + j->silence_s;
    *rank = r;
  }
  return at;
}

static double earlier(double a, double b) {
  return a == 0.0 || (b > 0.0 && b < a) ? b : a;
}

/* Returns 1 if only the end of the processes remains to be waited for. */
static int is_ending(const tws_launch_job *j) {
  return j->kill_at_s > 0.0 || j->ask_at_s > 0.0;
}

/* Returns the milliseconds until the next action is due; -1: none is due. */
static int time_left(const tws_launch_job *j) {
  int silent = -1;
  double due = j->kill_at_s > 0.0 ? j->kill_at_s : j->ask_at_s;
  if (due == 0.0) due = earlier(j->finish_s, lost_at(j, &silent));
  const int watches = j->options->deadline_s > 0.0 || j->remote || !j->learned;
  if (watches && !is_ending(j)) due = earlier(due, tws_watch_next_check_s(j->watch));
  if (due == 0.0) return -1;
  double left = due - tws_clock_s();
  return left > 0.0 ? (int)(left * 1000.0) + 1 : 0;
}

/* Gives up all ranks of the lost node, and reports the loss of the node as the failure. Returns 1 if a node is lost. */
static int give_up_lost(tws_launch_job *j) {
  int silent = -1;
  const double at = lost_at(j, &silent);
  if (at == 0 || tws_clock_s() < at || j->lost || j->failure.kind || j->first_dead >= 0 || j->signal) return 0;
  j->lost = silent + 1;
  return 1;
}

/* If this process itself was stopped, sets the ranks' last messages to now, since it could not read newer ones. */
static void note_away(tws_launch_job *j) {
  if (tws_watch_look(j->watch) <= 0.0) return;
  for (int r = 0; r < j->options->ranks; r++) j->peers[r].heard_s = tws_clock_s();
}

static void look_at_ranks(tws_launch_job *j) {
  note_away(j);
  for (int r = 0; r < j->options->ranks; r++) {
    const pid_t pid = tws_watch_pid(j->watch, r);
    if (j->peers[r].link.shut) tws_link_flush(&j->peers[r].link);
    if (!j->learned && pid > 0) j->learned = tws_mpirun_cleanup_identify(&j->remains, pid);
  }
  if (is_ending(j) || j->signal || j->lost || j->failure.kind || j->first_dead >= 0) return;
  tws_launch_record verdict = {.kind = TWS_RECORD_FAILED};
  if (tws_watch_judge(j->watch, &verdict.rank, &verdict.error) == TWS_OK) return;
  /* the stuck rank is unknown: a job that is restarted leaves the last rank out */
  if (verdict.rank < 0) verdict.rank = j->options->ranks - 1;
  j->failure = verdict;
  end_soon(j);
  tws_watch_kill_stopped(j->watch);
}

/* Called when all ranks have ended successfully, but mpirun has not: ends mpirun after its deadline. */
static void finish(tws_launch_job *j) {
  int done = 0;
  for (int r = 0; r < j->options->ranks; r++) done += j->peers[r].said_end;
  if (done < j->options->ranks || j->ended || j->failure.kind || is_ending(j)) return;
  if (j->finish_s == 0.0) j->finish_s = tws_clock_s() + j->finish_limit_s;
  if (tws_clock_s() < j->finish_s) return;
  j->finished = 1;
  end_soon(j);
}

static void do_what_is_due(tws_launch_job *j) {
  finish(j);
  look_at_ranks(j);
  if (give_up_lost(j)) end_soon(j); /* mpirun would wait for a daemon that it cannot reach */
  if (!is_ending(j) || time_left(j) != 0) return;
  if (j->kill_at_s == 0.0) {
    ask_to_end(j);
    return;
  }
  end_by_force(j);
  j->kill_at_s = tws_clock_s() + 1.0; /* SIGKILL is sent repeatedly until the processes have ended */
}

/* Updates the progress display from rank 0's line, which begins with the step (real/executor.c). */
static void show_progress(const tws_launch_job *j) {
  char line[48];
  int64_t step;
  const char *rest;
  snprintf(line, sizeof line, "%.47s", j->board);
  if (strncmp(line, "step ", 5) == 0 && tws_text_integer(line + 5, &rest, 0, INT64_MAX, &step) && *rest == ',')
    tws_progress_update(j->options->progress, (double)step);
}

/* Waits until a rank reports something, or until the next task or progress display is due. */
static int wait_for_news(const tws_launch_job *j) {
  enum { PROGRESS_MS = 200 };
  const int left = time_left(j);
  const nfds_t count = (nfds_t)j->options->ranks + TWS_LAUNCH_POLLS;
  if (!j->options->progress) return poll(j->polls, count, left);
  show_progress(j);
  return poll(j->polls, count, left < 0 || left > PROGRESS_MS ? PROGRESS_MS : left);
}

static void set_polls(tws_launch_job *j) {
  const int waits = j->remote && tws_printed_waits(j->printed);
  j->polls[0] = (struct pollfd){.fd = j->signals, .events = POLLIN};
  j->polls[1] = (struct pollfd){.fd = tws_rank_listener_fd(j->strangers), .events = POLLIN};
  tws_printed_polls(j->printed, j->polls + 2);
  for (int r = 0; r < j->options->ranks; r++) {
    tws_launch_peer *p = &j->peers[r];
    const short out = p->link.pending > 0 && !p->link.shut ? POLLOUT : 0;
    j->polls[TWS_LAUNCH_POLLS + r] =
        (struct pollfd){.fd = waits ? -1 : p->link.socket, .events = (short)(POLLIN | out)};
    if (waits || j->waited) p->heard_s = tws_clock_s(); /* the rank's silence is caused by this process */
  }
  j->waited = waits;
}

static void hear_ranks(tws_launch_job *j) {
  for (int r = 0; r < j->options->ranks; r++) {
    const struct pollfd *polled = &j->polls[TWS_LAUNCH_POLLS + r];
    tws_link *link = &j->peers[r].link;
    if (!polled->revents || link->socket < 0) continue;
    if (polled->revents & POLLOUT) tws_link_flush(link);
    if (polled->revents & ~POLLOUT && !(j->remote && tws_printed_waits(j->printed))) hear_rank(j, r);
  }
}

/* Returns 1 if all ranks have ended and, unless the launcher was asked to stop, their output is written. */
static int is_over(const tws_launch_job *j) {
  return j->ended && !any_connected(j) && (tws_printed_done(j->printed) || j->signal);
}

static void wait_for_all(tws_launch_job *j) {
  while (!is_over(j)) {
    set_polls(j);
    if (j->ended && !tws_printed_waits(j->printed))
      ask_in(j, reaction_s); /* mpirun has ended, so its ranks are asked to end at once */
    do_what_is_due(j);
    if (wait_for_news(j) <= 0) continue;
    note_away(j); /* called before any record is examined */
    tws_printed_handle_events(j->printed, j->polls + 2);
    hear_ranks(j);
    if (j->polls[1].revents) welcome_ranks(j);
    pass_on_news(j);
    if (j->polls[0].revents) take_signals(j);
  }
}

tws_code tws_launch(const tws_launch_options *options, tws_error *err) {
  tws_launch_job j = {.options = options, .files = {-1, -1, -1}, .signals = -1, .noise = -1, .first_dead = -1};
  if (options->ranks < 1) return tws_fail(err, TWS_INVALID, NULL, "no rank is left to start");
  j.remote = tws_launch_is_remote(options);
  j.finish_limit_s = j.remote ? notice_s : patience_s; /* longer if mpirun has daemons on other machines to end */
  j.silence_s = tws_failure_silence_s(options->deadline_s);
  tws_code code = tws_launch_set_up(&j, err);
  if (code == TWS_OK) code = tws_launch_start(&j, err);
  if (code == TWS_OK) {
    wait_for_all(&j);
    code = tws_launch_explain(&j, err);
    tws_mpirun_cleanup_run(&j.remains, j.name);
  }
  tws_launch_tear_down(&j);
  return code;
}
