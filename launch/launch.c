#include "launch/launch.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/escape.h"
#include "base/failure.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/output_file.h"
#include "base/number.h"
#include "base/system.h"
#include "launch/addresses.h"
#include "launch/link.h"
#include "launch/noise.h"
#include "launch/printed.h"
#include "launch/protocol.h"
#include "launch/mpirun_cleanup.h"
#include "launch/session.h"
#include "launch/starter.h"
#include "launch/rank_listener.h"
#include "launch/watch.h"

/* poll() entries for signals, connections and output; the entries of ranks follow */
enum { OTHER_POLLS = 2 + TWS_PRINTED_POLLS };

/* Time limits in seconds. When a rank dies, mpirun ends the other ranks by itself, and its exit status tells how the
 * rank died: mpirun has `notice_s` for that before the launcher asks it to end, and `reaction_s` after a rank has
 * reported a failure. Processes that were asked to end are killed after `patience_s`, or after `hang_s` if they hang.
 * After all ranks have ended well, mpirun has `patience_s` to end (`notice_s` if it has daemons on other machines), and
 * then `hang_s`. */
static const double notice_s = 10.0, reaction_s = 2.0, patience_s = 5.0, hang_s = 1.5;

typedef struct peer {
  tws_link link;
  int known;    /* 1: the rank has connected */
  pid_t pid;    /* process ID; 0: the rank is on another machine */
  int said_end; /* 1: the rank's DONE or FAILED record has arrived */
  double heard_s;
  tws_escape escape[2]; /* state of the escaping of its standard output and error, if they arrive through the network */
} peer;

typedef struct job {
  const tws_launch_options *options;
  int files[TWS_LAUNCH_FILES]; /* files that local ranks receive: standard output, standard error, board */
  char *board;
  int signals, noise; /* signals: descriptor of signals; noise: file with mpirun's own output */
  int remote;         /* 1: ranks connect through the network */
  tws_rank_listener *strangers;
  char name[1024]; /* the launcher's address for the ranks */
  char secret[TWS_SECRET_TEXT + 1];
  int *logs; /* [rank] log file, or -1 */
  tws_printed *printed;
  int waited; /* 1: the output was full when events were last waited for */
  double silence_s;
  int news; /* 1: a rank's current operation has changed, and ranks on other nodes have not been informed yet */
  double told_s;
  sigset_t old_mask;
  peer *peers;
  struct pollfd *polls;
  pid_t mpirun;
  int status, ended; /* status: exit status of mpirun; ended: 1 when mpirun has ended */
  int signal;        /* the signal that asked the launcher to stop */
  int passed_on;     /* 1: SIGTERM was forwarded to ranks that end by themselves */
  tws_watch *watch;
  tws_mpirun_cleanup remains;
  int learned;                /* mpirun's identifiers for the cleanup are known */
  double finish_s;            /* deadline for mpirun's end after all ranks have ended successfully; 0: not set */
  int finished;               /* 1: mpirun missed that deadline and was ended */
  int killed;                 /* mpirun was ended by a signal that is not the launcher's */
  int stopped_itself;         /* mpirun ended with status 1, and the launcher had not asked it to */
  double dead_s;              /* time at which the first rank ended without a final record */
  int lost;                   /* 1 + a rank of a node that sends nothing; 0: none */
  int first_dead;             /* the first rank that ended without a final record, or -1 */
  int muted;                  /* 1 + a rank whose connection was closed before its last record arrived; 0: none */
  tws_launch_record failure;  /* the first failure that was reported; failure.word 0: none */
  double ask_at_s, kill_at_s; /* times at which mpirun is asked to end (ask_at_s) and killed; 0: not set */
} job;

int tws_launch_cores(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? (int)online : 1;
}

int tws_launch_threads(int64_t configured, int ranks) {
  if (configured > 0) return (int)configured;
  int threads = tws_launch_cores() / (ranks > 0 ? ranks : 1);
  return threads > 0 ? threads : 1;
}

void tws_launch_set_threads(int threads) {
  char text[16];
  snprintf(text, sizeof text, "%d", threads);
  static const char *const names[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) setenv(names[i], text, 1);
  setenv("OMP_WAIT_POLICY", "passive", 0);
}

/* ---- setting up ---- */

/* Listens for ranks on other nodes, on the addresses from which this machine reaches their hosts. */
static tws_code open_remote_listener(job *j, tws_error *err) {
  struct in_addr address[TWS_MOST_ADDRESSES];
  const char *unknown;
  if (!tws_secret_make(j->secret))
    return tws_fail(err, TWS_ENVIRONMENT, TWS_SEAL_HINT,
                    "ranks on several machines need libsodium, without which this program was built");
  const int count = tws_addresses_for_hosts(j->options->hosts, tws_starter_shell(j->options), address, &unknown);
  if (unknown)
    tws_log_write(j->options->log, TWS_LOG_DEBUG,
                  "this machine knows no address of %s: ranks may connect to all of its addresses", unknown);
  return tws_rank_listener_open_remote(j->options->ranks, address, count, j->secret, j->name, sizeof j->name,
                                       &j->strangers, err);
}

static tws_code open_listener(job *j, tws_error *err) {
  if (j->remote) return open_remote_listener(j, err);
  return tws_rank_listener_open_local(j->options->ranks, j->name, sizeof j->name, &j->strangers, err);
}

static tws_code open_files(job *j, tws_error *err) {
  size_t board = (size_t)j->options->ranks * TWS_BOARD_LINE;
  j->files[0] = j->options->silent ? open("/dev/null", O_WRONLY | O_CLOEXEC)
                                   : fcntl(j->options->to_stderr ? STDERR_FILENO : STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  j->files[1] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  j->files[2] = memfd_create("twinspeed-board", MFD_CLOEXEC);
  j->noise = memfd_create("twinspeed-mpirun", MFD_CLOEXEC);
  /* this program was started with a closed output: the ranks receive /dev/null */
  if (j->files[0] < 0) j->files[0] = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (j->files[1] < 0) j->files[1] = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (j->files[0] < 0 || j->files[1] < 0 || j->files[2] < 0 || j->noise < 0 ||
      ftruncate(j->files[2], (off_t)board) != 0)
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot open the ranks' files: %s", strerror(errno));
  j->board = mmap(NULL, board, PROT_READ | PROT_WRITE, MAP_SHARED, j->files[2], 0);
  if (j->board == MAP_FAILED) {
    j->board = NULL;
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot map the ranks' board: %s", strerror(errno));
  }
  return TWS_OK;
}

static tws_code open_signals(job *j, tws_error *err) {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGINT);
  sigaddset(&mask, SIGTERM);
  sigaddset(&mask, SIGHUP);
  sigaddset(&mask, SIGCHLD);
  sigprocmask(SIG_BLOCK, &mask, &j->old_mask);
  signal(SIGCHLD, SIG_DFL); /* if a parent process ignores SIGCHLD, mpirun's end would not be noticed */
  j->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  return j->signals >= 0 ? TWS_OK : tws_fail(err, TWS_ENVIRONMENT, NULL, "signalfd: %s", strerror(errno));
}

/* Checks the limits of processes and files: if they are too low, Open MPI fails without a useful message. */
static tws_code check_limits(int ranks, tws_error *err) {
  struct rlimit files, size, space;
  const rlim_t needed = 64 + 8 * (rlim_t)ranks, room = (rlim_t)16 << 20, addresses = (rlim_t)256 << 20;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < needed) {
    const rlim_t allowed = files.rlim_cur;
    files.rlim_cur = files.rlim_max == RLIM_INFINITY || files.rlim_max > needed ? needed : files.rlim_max;
    if (files.rlim_cur < needed || setrlimit(RLIMIT_NOFILE, &files) != 0)
      return tws_fail(err, TWS_ENVIRONMENT, "raise the limit, or use one rank: -n 1",
                      "%d ranks need about %llu open files, and the limit is %llu (ulimit -n)", ranks,
                      (unsigned long long)needed, (unsigned long long)allowed);
  }
  if (getrlimit(RLIMIT_FSIZE, &size) == 0 && size.rlim_cur != RLIM_INFINITY && size.rlim_cur < room)
    return tws_fail(err, TWS_ENVIRONMENT, "raise the limit, or use one rank: -n 1",
                    "Open MPI needs files of some MiB for %d ranks, and the limit is %llu bytes (ulimit -f)", ranks,
                    (unsigned long long)size.rlim_cur);
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY && space.rlim_cur < addresses)
    return tws_fail(err, TWS_ENVIRONMENT, "raise the limit (ulimit -v unlimited), or use one rank: -n 1",
                    "Open MPI needs %llu MiB of address space for each rank, and the limit is %llu KiB (ulimit -v)",
                    (unsigned long long)addresses >> 20, (unsigned long long)space.rlim_cur >> 10);
  return TWS_OK;
}

static tws_code open_logs(job *j, tws_error *err) {
  const char *folder = j->options->log_folder;
  char path[4096];
  if (!folder) return TWS_OK;
  if (mkdir(folder, 0777) != 0 && errno != EEXIST)
    return tws_fail(err, TWS_IO, NULL, "%s: %s", folder, strerror(errno));
  for (int r = 0; r < j->options->ranks; r++) {
    snprintf(path, sizeof path, "%s/rank-%d.log", folder, r);
    TWS_TRY(tws_growing_file(path, &j->logs[r], err));
  }
  return TWS_OK;
}

static tws_code set_up(job *j, tws_error *err) {
  size_t ranks = (size_t)j->options->ranks;
  j->peers = tws_calloc(ranks, sizeof *j->peers);
  j->polls = tws_calloc(ranks + OTHER_POLLS, sizeof *j->polls);
  j->logs = tws_calloc(ranks, sizeof *j->logs);
  if (!j->peers || !j->polls || !j->logs) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (size_t r = 0; r < ranks; r++) j->peers[r].link.socket = j->logs[r] = -1;
  TWS_TRY(check_limits(j->options->ranks, err));
  if (j->options->launcher != TWS_LAUNCHER_SRUN) TWS_TRY(tws_session_check(err));
  TWS_TRY(open_logs(j, err));
  TWS_TRY(open_listener(j, err));
  TWS_TRY(open_files(j, err));
  TWS_TRY(tws_printed_open(j->options->ranks, j->files, j->logs, &j->printed, err));
  const tws_watch_setup watch = {.ranks = j->options->ranks, .deadline_s = j->options->deadline_s, .board = j->board};
  TWS_TRY(tws_watch_create(&watch, &j->watch, err));
  return open_signals(j, err);
}

static void tear_down(job *j) {
  for (int r = 0; j->peers && r < j->options->ranks; r++) tws_link_close(&j->peers[r].link);
  tws_printed_close(j->printed);
  for (int r = 0; j->logs && r < j->options->ranks; r++)
    if (j->logs[r] >= 0) close(j->logs[r]);
  for (int i = 0; i < TWS_LAUNCH_FILES; i++)
    if (j->files[i] >= 0) close(j->files[i]);
  if (j->board) munmap(j->board, (size_t)j->options->ranks * TWS_BOARD_LINE);
  tws_rank_listener_close(j->strangers);
  tws_secret_wipe(j->secret, sizeof j->secret);
  if (j->noise >= 0) close(j->noise);
  if (j->signals >= 0) {
    close(j->signals);
    sigprocmask(SIG_SETMASK, &j->old_mask, NULL);
  }
  tws_watch_destroy(j->watch);
  tws_free(j->peers);
  tws_free(j->logs);
  tws_free(j->polls);
}

/* ---- mpirun ---- */

/* In the child: becomes mpirun, in a process group of its own, so that Ctrl-C reaches it through the launcher only. */
static void become_mpirun(const job *j, const char **command, pid_t launcher) {
  int input = j->remote && j->options->launcher == TWS_LAUNCHER_SRUN ? tws_starter_input(j->secret) : -1;
  if (input < 0) input = open("/dev/null", O_RDONLY);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != launcher) _exit(127);
  if (input >= 0) dup2(input, STDIN_FILENO);
  dup2(j->noise, STDOUT_FILENO); /* the pipe for mpirun's own output; output of ranks arrives through their sockets */
  dup2(j->noise, STDERR_FILENO);
  setenv(TWS_LAUNCHER_VARIABLE, j->name, 1);
  unsetenv(TWS_SECRET_VARIABLE);
  if (j->remote && j->options->launcher != TWS_LAUNCHER_SRUN) setenv(TWS_SECRET_VARIABLE, j->secret, 1);
  tws_launch_set_threads(j->options->threads);
  if (j->options->launcher != TWS_LAUNCHER_SRUN) tws_starter_set_environment();
  sigprocmask(SIG_SETMASK, &j->old_mask, NULL);
  signal(SIGPIPE, SIG_DFL);
  execv(command[0], (char *const *)command);
  _exit(127);
}

static tws_code start_ranks(job *j, tws_error *err) {
  const char **command = NULL;
  tws_arena *arena = tws_arena_create();
  tws_code code =
      arena ? tws_launch_command(j->options, arena, &command, err) : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (code == TWS_OK) {
    fflush(NULL);
    pid_t launcher = getpid();
    tws_mpirun_cleanup_begin(&j->remains);
    j->mpirun = fork();
    if (j->mpirun == 0) become_mpirun(j, command, launcher);
    if (j->mpirun < 0) code = tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot start a process: %s", strerror(errno));
    if (j->mpirun > 0) setpgid(j->mpirun, j->mpirun); /* called in parent and child, since either may run first */
    j->remains.mpirun = j->mpirun > 0 ? j->mpirun : 0;
    tws_watch_started(j->watch, j->remains.mpirun);
  }
  tws_arena_destroy(arena);
  return code;
}

/* ---- while the job runs ---- */

static void ask_to_end(job *j) {
  if (j->kill_at_s > 0.0) return;
  j->kill_at_s = tws_clock_s() + patience_s;
  if (!j->ended) kill(-j->mpirun, SIGTERM);
}

/* Sets times for ending the job; the time is shorter after a hang, as processes that hang do not end by themselves. */
static void end_soon(job *j) {
  ask_to_end(j);
  j->kill_at_s = tws_clock_s() + hang_s;
}

static void ask_in(job *j, double seconds) {
  const double at = tws_clock_s() + seconds;
  if (j->ask_at_s == 0.0 || j->ask_at_s > at) j->ask_at_s = at;
}

static void end_by_force(job *j) {
  for (int r = 0; r < j->options->ranks; r++) {
    peer *p = &j->peers[r];
    if (p->link.socket >= 0 && p->pid > 0) kill(p->pid, SIGKILL);
    if (p->link.socket < 0 || !j->remote) continue;
    if (!p->said_end && !j->muted) j->muted = r + 1;
    tws_link_close(&p->link); /* the rank ends when it notices the closed connection */
  }
  if (!j->ended) kill(-j->mpirun, SIGKILL);
}

static tws_rank_place place_of(const job *j, int rank) {
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

static int send_welcome(job *j, tws_link *link, int rank) {
  tws_launch_record welcome = {.kind = TWS_RECORD_WELCOME, .rank = rank, .place = place_of(j, rank)};
  int files[TWS_LAUNCH_FILES] = {-1, -1, j->files[2]}, own;
  if (j->remote) return tws_link_try_send(link, &welcome);
  if (tws_printed_files(j->printed, rank, files, &own, NULL) != TWS_OK) return 0;
  const int sent = send_files(link, &welcome, files);
  for (int i = 0; own && i < 2; i++) close(files[i]);
  return sent;
}

/* Adds the newly connected ranks, which have proved their identity, to the job. */
static void welcome_ranks(job *j) {
  tws_connected_rank new[TWS_NEWCOMERS];
  const int count = tws_rank_listener_poll(j->strangers, new);
  for (int i = 0; i < count; i++) {
    peer *p = &j->peers[new[i].rank];
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

static void print_and_free(job *j, int rank, int stream, tws_text *printable) {
  if (printable->length) tws_printed_add(j->printed, rank, stream, printable->data, printable->length);
  tws_text_free(printable);
}

/* Prints output of a rank on another machine. It is escaped, so that it cannot control this machine's terminal. */
static void print_escaped(job *j, int rank, int stream, const char *text, size_t bytes) {
  tws_text printable = {0};
  tws_escape_add(&j->peers[rank].escape[stream], text, bytes, "\n\t\r", &printable);
  print_and_free(j, rank, stream, &printable);
}

/* Ends the output of a rank on another machine; an incomplete multi-byte character at its end is printed too. */
static void end_printed(job *j, int rank) {
  for (int i = 0; i < 2; i++) {
    tws_text printable = {0};
    tws_escape_end(&j->peers[rank].escape[i], &printable);
    print_and_free(j, rank, i, &printable);
  }
  tws_printed_end(j->printed, rank);
}

/* Keeps the first failure that is reported. After a report of a hang, this process examines which process is stopped,
 * as it may know better than the rank that waits. */
static void note_failure(job *j, const tws_launch_record *record) {
  if (!j->failure.kind && j->first_dead < 0 && !j->lost) {
    int stopped = -1;
    j->failure = *record;
    if (record->error.code == TWS_HANG && tws_watch_stopped(j->watch, &stopped, &j->failure.error) != TWS_OK)
      j->failure.rank = stopped;
  }
  ask_in(j, j->first_dead < 0 ? reaction_s : notice_s);
}

static void take_record(job *j, int rank, const tws_launch_record *record) {
  peer *p = &j->peers[rank];
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

static void hear_rank(job *j, int rank) {
  peer *p = &j->peers[rank];
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
static int missing_rank(const job *j) {
  for (int r = 0; r < j->options->ranks; r++)
    if (!j->peers[r].known || (j->options->deadline_s > 0 && !j->board[(size_t)r * TWS_BOARD_LINE])) return r;
  return -1;
}

/* Sends a record to every rank without blocking; no second NEWS record is sent while one is pending. */
static void tell_all(job *j, tws_launch_word word) {
  const tws_launch_record record = {.kind = word};
  for (int r = 0; r < j->options->ranks; r++) {
    tws_link *link = &j->peers[r].link;
    if (link->socket >= 0 && (word == TWS_RECORD_END || link->pending == 0)) tws_link_try_send(link, &record);
  }
}

static void pass_on_news(job *j) {
  const double now = tws_clock_s();
  if (!j->news || now - j->told_s < 1) return;
  tell_all(j, TWS_RECORD_NEWS);
  j->news = 0;
  j->told_s = now;
}

/* Returns 1 if SIGTERM is forwarded: all ranks are connected, and have work that may be worth saving. */
static int pass_on(job *j) {
  if (!j->options->ends_itself || j->passed_on || j->failure.kind || j->first_dead >= 0 || missing_rank(j) >= 0)
    return 0;
  tell_all(j, TWS_RECORD_END);
  return j->passed_on = 1;
}

/* Records how mpirun has ended. An mpirun that a signal asks to end ends all ranks and returns 1 (tws_noise_read()). */
static void note_end(job *j) {
  j->ended = 1;
  j->stopped_itself = WIFEXITED(j->status) && WEXITSTATUS(j->status) == 1 && j->kill_at_s == 0.0 && !j->lost;
  j->killed = WIFSIGNALED(j->status) && j->kill_at_s == 0.0 && !j->failure.kind && !j->lost &&
              (j->first_dead < 0 || tws_clock_s() - j->dead_s < 1.0);
}

static void take_signals(job *j) {
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

static int any_connected(const job *j) {
  for (int r = 0; r < j->options->ranks; r++)
    if (j->peers[r].link.socket >= 0) return 1;
  return 0;
}

/* Returns the time at which the rank that is silent for longest counts as lost, and sets *rank; 0: there is none. */
static double lost_at(const job *j, int *rank) {
  double at = 0;
  const double now = tws_clock_s();
  for (int r = 0; j->remote && r < j->options->ranks; r++) {
    const peer *p = &j->peers[r];
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
static int is_ending(const job *j) {
  return j->kill_at_s > 0.0 || j->ask_at_s > 0.0;
}

/* Returns the milliseconds until the next action is due; -1: none is due. */
static int time_left(const job *j) {
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
static int give_up_lost(job *j) {
  int silent = -1;
  const double at = lost_at(j, &silent);
  if (at == 0 || tws_clock_s() < at || j->lost || j->failure.kind || j->first_dead >= 0 || j->signal) return 0;
  j->lost = silent + 1;
  return 1;
}

/* If this process itself was stopped, sets the ranks' last messages to now, since it could not read newer ones. */
static void note_away(job *j) {
  if (tws_watch_look(j->watch) <= 0.0) return;
  for (int r = 0; r < j->options->ranks; r++) j->peers[r].heard_s = tws_clock_s();
}

static void look_at_ranks(job *j) {
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

/* Returns the time that mpirun has for ending: longer if it has daemons on other machines to end. */
static double finish_s(const job *j) {
  return j->remote ? notice_s : patience_s;
}

/* Called when all ranks have ended successfully, but mpirun has not: ends mpirun after its deadline. */
static void finish(job *j) {
  int done = 0;
  for (int r = 0; r < j->options->ranks; r++) done += j->peers[r].said_end;
  if (done < j->options->ranks || j->ended || j->failure.kind || is_ending(j)) return;
  if (j->finish_s == 0.0) j->finish_s = tws_clock_s() + finish_s(j);
  if (tws_clock_s() < j->finish_s) return;
  j->finished = 1;
  end_soon(j);
}

static void do_what_is_due(job *j) {
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
static void show_progress(const job *j) {
  char line[48];
  int64_t step;
  const char *rest;
  snprintf(line, sizeof line, "%.47s", j->board);
  if (strncmp(line, "step ", 5) == 0 && tws_text_integer(line + 5, &rest, 0, INT64_MAX, &step) && *rest == ',')
    tws_progress_update(j->options->progress, (double)step);
}

/* Waits until a rank reports something, or until the next task or progress display is due. */
static int wait_for_news(const job *j) {
  enum { PROGRESS_MS = 200 };
  const int left = time_left(j);
  const nfds_t count = (nfds_t)j->options->ranks + OTHER_POLLS;
  if (!j->options->progress) return poll(j->polls, count, left);
  show_progress(j);
  return poll(j->polls, count, left < 0 || left > PROGRESS_MS ? PROGRESS_MS : left);
}

static void set_polls(job *j) {
  const int waits = j->remote && tws_printed_waits(j->printed);
  j->polls[0] = (struct pollfd){.fd = j->signals, .events = POLLIN};
  j->polls[1] = (struct pollfd){.fd = tws_rank_listener_fd(j->strangers), .events = POLLIN};
  tws_printed_polls(j->printed, j->polls + 2);
  for (int r = 0; r < j->options->ranks; r++) {
    peer *p = &j->peers[r];
    const short out = p->link.pending > 0 && !p->link.shut ? POLLOUT : 0;
    j->polls[OTHER_POLLS + r] = (struct pollfd){.fd = waits ? -1 : p->link.socket, .events = (short)(POLLIN | out)};
    if (waits || j->waited) p->heard_s = tws_clock_s(); /* the rank's silence is caused by this process */
  }
  j->waited = waits;
}

static void hear_ranks(job *j) {
  for (int r = 0; r < j->options->ranks; r++) {
    const struct pollfd *polled = &j->polls[OTHER_POLLS + r];
    tws_link *link = &j->peers[r].link;
    if (!polled->revents || link->socket < 0) continue;
    if (polled->revents & POLLOUT) tws_link_flush(link);
    if (polled->revents & ~POLLOUT && !(j->remote && tws_printed_waits(j->printed))) hear_rank(j, r);
  }
}

/* Returns 1 if all ranks have ended and, unless the launcher was asked to stop, their output is written. */
static int is_over(const job *j) {
  return j->ended && !any_connected(j) && (tws_printed_done(j->printed) || j->signal);
}

static void wait_for_all(job *j) {
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

/* ---- the result of the job ---- */

static const char *what_it_did(const job *j, int rank, char *text, size_t size) {
  const char *line = j->board + (size_t)rank * TWS_BOARD_LINE;
  snprintf(text, size, "%.*s", TWS_BOARD_LINE - 1, line);
  return text[0] ? text : "starting";
}

static tws_code explain_death(const job *j, int rank, tws_error *err) {
  char what[TWS_BOARD_LINE];
  const int status = WIFEXITED(j->status) ? WEXITSTATUS(j->status) : 0;
  return tws_failure_death(rank, status, what_it_did(j, rank, what, sizeof what), err);
}

/* Reports the loss of a rank together with the other ranks of its node. */
static tws_code explain_loss(const job *j, int rank, tws_error *err) {
  char what[TWS_BOARD_LINE];
  int slot = 0;
  const tws_host *host = j->options->hosts ? tws_hosts_of_rank(j->options->hosts, rank, &slot) : NULL;
  return tws_failure_lost(host ? host->name : "?", rank - slot, host ? host->count : 0, j->silence_s, rank,
                          what_it_did(j, rank, what, sizeof what), err);
}

/* Logs the operation of every rank when one hangs; ranks in the same operation share one line. */
static void tell_places(const job *j) {
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

static void name_failed(const job *j, int rank) {
  if (j->options->failed_rank) *j->options->failed_rank = rank;
}

/* Returns the error for a job whose only failure is that not all output of the ranks could be written. */
static tws_code explain_output(const job *j, tws_error *err) {
  const int failed = tws_printed_failed(j->printed);
  if (failed)
    return tws_fail(err, TWS_IO, "is the disk full?", "not all that the ranks printed was written: %s",
                    strerror(failed));
  if (!j->muted) return TWS_OK;
  return tws_fail(err, TWS_RANK, NULL, "the connection to rank %d was closed before all that it printed had come",
                  j->muted - 1);
}

static tws_code explain_failure(job *j, tws_error *err) {
  char noise[4096];
  int explains, ranks = j->options->ranks, code = WIFEXITED(j->status) ? WEXITSTATUS(j->status) : 128;
  const int blamed = tws_noise_read(j->noise, noise, sizeof noise, &explains);
  if (j->signal)
    return tws_fail(err, j->signal == SIGTERM ? TWS_TERMINATED : TWS_INTERRUPTED, NULL, "%s; all ranks have ended",
                    j->signal == SIGTERM ? "asked to end" : "interrupted");
  if (j->finished) {
    tws_log_write(j->options->log, TWS_LOG_WARNING,
                  "all ranks have ended well, but mpirun did not within %.3g s, and was ended", finish_s(j));
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

tws_code tws_launch(const tws_launch_options *options, tws_error *err) {
  job j = {.options = options, .files = {-1, -1, -1}, .signals = -1, .noise = -1, .first_dead = -1};
  if (options->ranks < 1) return tws_fail(err, TWS_INVALID, NULL, "no rank is left to start");
  j.remote = tws_launch_is_remote(options);
  j.silence_s = tws_failure_silence_s(options->deadline_s);
  tws_code code = set_up(&j, err);
  if (code == TWS_OK) code = start_ranks(&j, err);
  if (code == TWS_OK) {
    wait_for_all(&j);
    code = explain_failure(&j, err);
    tws_mpirun_cleanup_run(&j.remains, j.name);
  }
  tear_down(&j);
  return code;
}
