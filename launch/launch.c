#include "launch/launch.h"
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/failure.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/system.h"
#include "launch/protocol.h"
#include "launch/remains.h"
#include "launch/starter.h"
#include "launch/watch.h"

/* mpirun ends the other ranks by itself when one dies, and its status then says how: it has `notice_s` for that before
 * it is asked to, and `reaction_s` after a failure that a rank has told of. Whoever was asked has `patience_s`, and is
 * then ended; `hang_s` where they hang, or where all ranks have ended well and mpirun alone has not after
 * `patience_s`, with daemons on other machines `notice_s`. */
static const double notice_s = 10.0, reaction_s = 2.0, patience_s = 5.0, hang_s = 1.5;

typedef struct peer {
  int socket;   /* -1: not connected (yet, or no more) */
  int known;    /* it was */
  pid_t pid;    /* 0: of another machine */
  int said_end; /* DONE or FAILED came */
  int log;      /* file, or -1 */
  double heard_s;
  size_t have; /* bytes of the next record */
  tws_launch_record *record;
} peer;

typedef struct job {
  const tws_launch_options *options;
  int files[TWS_LAUNCH_FILES]; /* for the ranks: output, error, board */
  char *board;
  int listener, signals, noise; /* noise: what mpirun itself says */
  int far;                      /* ranks come through the network */
  char name[1024];              /* of the listener */
  char secret[2 * TWS_SECRET + 1];
  double silence_s;
  int news; /* a line has changed that ranks elsewhere have not heard of */
  double told_s;
  sigset_t old_mask;
  peer *peers;
  struct pollfd *polls;
  pid_t mpirun;
  int status, ended; /* of mpirun */
  int signal;        /* that asked the launcher to stop */
  int passed_on;     /* SIGTERM was, to ranks that end by themselves */
  tws_watch *watch;
  tws_remains remains;
  int learned;                /* what may remain of mpirun is known */
  double finish_s;            /* when mpirun is late after all ranks have ended well; 0: they have not */
  int finished;               /* it was, and was ended */
  int killed;                 /* mpirun was ended by a signal that is not the launcher's */
  double dead_s;              /* when the first rank ended without a word */
  int lost;                   /* a rank of a node of which nothing is heard, + 1 */
  int first_dead;             /* rank that ended without a word, or -1 */
  tws_launch_record failure;  /* the first that was reported; word 0: none */
  double ask_at_s, kill_at_s; /* 0: not set; kill_at_s is set when the ranks were asked to end */
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

/* Where nodes may find this one: all of its addresses. Whoever does not know the secret is turned away. */
static tws_code open_far_listener(job *j, tws_error *err) {
  struct sockaddr_in address = {.sin_family = AF_INET};
  socklen_t size = sizeof address;
  struct ifaddrs *list = NULL;
  unsigned char random[TWS_SECRET];
  char text[INET_ADDRSTRLEN];
  j->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (j->listener < 0 || bind(j->listener, (struct sockaddr *)&address, size) != 0 ||
      listen(j->listener, j->options->ranks) != 0 ||
      getsockname(j->listener, (struct sockaddr *)&address, &size) != 0 ||
      getrandom(random, sizeof random, 0) != (ssize_t)sizeof random || getifaddrs(&list) != 0)
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot open a port for ranks on other nodes: %s", strerror(errno));
  for (int i = 0; i < TWS_SECRET; i++) snprintf(j->secret + 2 * i, 3, "%02x", random[i]);
  int n = snprintf(j->name, sizeof j->name, "@%d/%s/", ntohs(address.sin_port), j->secret);
  for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
    if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP) || i->ifa_flags & IFF_LOOPBACK)
      continue;
    const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)i->ifa_addr;
    if (inet_ntop(AF_INET, &in->sin_addr, text, sizeof text) && n + 32 < (int)sizeof j->name)
      n += snprintf(j->name + n, sizeof j->name - (size_t)n, "%s,", text);
  }
  freeifaddrs(list);
  snprintf(j->name + n, sizeof j->name - (size_t)n, "127.0.0.1");
  return TWS_OK;
}

static tws_code open_listener(job *j, tws_error *err) {
  if (j->far) return open_far_listener(j, err);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  socklen_t size = sizeof(sa_family_t); /* the kernel chooses an abstract name: nothing is left in the file system */
  j->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (j->listener < 0 || bind(j->listener, (struct sockaddr *)&address, size) != 0 ||
      listen(j->listener, j->options->ranks) != 0)
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot open a local socket: %s", strerror(errno));
  size = sizeof address;
  if (getsockname(j->listener, (struct sockaddr *)&address, &size) != 0)
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot name a local socket: %s", strerror(errno));
  size_t length = (size_t)size - offsetof(struct sockaddr_un, sun_path) - 1;
  if (length >= sizeof j->name) length = sizeof j->name - 1;
  memcpy(j->name, address.sun_path + 1, length);
  return TWS_OK;
}

static tws_code open_files(job *j, tws_error *err) {
  size_t board = (size_t)j->options->ranks * TWS_BOARD_LINE;
  j->files[0] = j->options->silent ? open("/dev/null", O_WRONLY | O_CLOEXEC)
                                   : fcntl(j->options->to_stderr ? STDERR_FILENO : STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  j->files[1] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  j->files[2] = memfd_create("twinspeed-board", MFD_CLOEXEC);
  j->noise = memfd_create("twinspeed-mpirun", MFD_CLOEXEC);
  if (j->files[0] < 0) j->files[0] = open("/dev/null", O_WRONLY | O_CLOEXEC); /* started with a closed output */
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
  signal(SIGCHLD, SIG_DFL); /* a parent that ignores it would hide mpirun's end */
  j->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  return j->signals >= 0 ? TWS_OK : tws_fail(err, TWS_ENVIRONMENT, NULL, "signalfd: %s", strerror(errno));
}

/* Open MPI meets tight limits with silence or with a page of its own command. */
static tws_code check_limits(int ranks, tws_error *err) {
  struct rlimit files, size;
  const rlim_t needed = 64 + 8 * (rlim_t)ranks, room = (rlim_t)16 << 20;
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
    j->peers[r].log = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (j->peers[r].log < 0) return tws_fail(err, TWS_IO, NULL, "%s: %s", path, strerror(errno));
  }
  return TWS_OK;
}

static tws_code set_up(job *j, tws_error *err) {
  size_t ranks = (size_t)j->options->ranks;
  j->peers = tws_calloc(ranks, sizeof *j->peers);
  j->polls = tws_calloc(ranks + 2, sizeof *j->polls);
  if (!j->peers || !j->polls) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (size_t r = 0; r < ranks; r++) j->peers[r].socket = j->peers[r].log = -1;
  TWS_TRY(check_limits(j->options->ranks, err));
  TWS_TRY(open_logs(j, err));
  TWS_TRY(open_listener(j, err));
  TWS_TRY(open_files(j, err));
  const tws_watch_setup watch = {.ranks = j->options->ranks, .deadline_s = j->options->deadline_s, .board = j->board};
  TWS_TRY(tws_watch_create(&watch, &j->watch, err));
  return open_signals(j, err);
}

static void tear_down(job *j) {
  for (int r = 0; j->peers && r < j->options->ranks; r++) {
    if (j->peers[r].socket >= 0) close(j->peers[r].socket);
    if (j->peers[r].log >= 0) close(j->peers[r].log);
    tws_free(j->peers[r].record);
  }
  for (int i = 0; i < TWS_LAUNCH_FILES; i++)
    if (j->files[i] >= 0) close(j->files[i]);
  if (j->board) munmap(j->board, (size_t)j->options->ranks * TWS_BOARD_LINE);
  if (j->listener >= 0) close(j->listener);
  if (j->noise >= 0) close(j->noise);
  if (j->signals >= 0) {
    close(j->signals);
    sigprocmask(SIG_SETMASK, &j->old_mask, NULL);
  }
  tws_watch_destroy(j->watch);
  tws_free(j->peers);
  tws_free(j->polls);
}

/* ---- mpirun ---- */

/* In the child: becomes mpirun, in a process group of its own, so that Ctrl-C reaches it through the launcher only. */
static void become_mpirun(const job *j, const char **command, pid_t launcher) {
  int null = open("/dev/null", O_RDONLY);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != launcher) _exit(127);
  if (null >= 0) dup2(null, STDIN_FILENO);
  dup2(j->noise, STDOUT_FILENO); /* ranks get their output through the socket; what comes here is mpirun's */
  dup2(j->noise, STDERR_FILENO);
  setenv(TWS_LAUNCHER_VARIABLE, j->name, 1);
  tws_launch_set_threads(j->options->threads);
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
    tws_remains_begin(&j->remains);
    j->mpirun = fork();
    if (j->mpirun == 0) become_mpirun(j, command, launcher);
    if (j->mpirun < 0) code = tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot start a process: %s", strerror(errno));
    if (j->mpirun > 0) setpgid(j->mpirun, j->mpirun); /* also here: whichever comes first */
    j->remains.mpirun = j->mpirun > 0 ? j->mpirun : 0;
    tws_watch_started(j->watch, j->remains.mpirun);
  }
  tws_arena_destroy(arena);
  return code;
}

/* ---- while it runs ---- */

static void ask_to_end(job *j) {
  if (j->kill_at_s > 0.0) return;
  j->kill_at_s = tws_clock_s() + patience_s;
  if (!j->ended) kill(-j->mpirun, SIGTERM);
}

/* Whoever hangs does not end by itself either. */
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
    if (p->socket >= 0 && p->pid > 0) kill(p->pid, SIGKILL);
    if (p->socket < 0 || !j->far) continue;
    close(p->socket); /* which ends it, as soon as it knows */
    p->socket = -1;
  }
  if (!j->ended) kill(-j->mpirun, SIGKILL);
}

static tws_rank_place place_of(const job *j, int rank) {
  const tws_hosts *hosts = j->options->hosts;
  tws_rank_place p = {.ranks = j->options->ranks,
                      .local_rank = rank,
                      .local_ranks = j->options->ranks,
                      .nodes = 1,
                      .patience_s = j->far ? j->silence_s : 0};
  snprintf(p.master, sizeof p.master, "127.0.0.1");
  if (!hosts) return p;
  const tws_host *host = tws_hosts_of_rank(hosts, rank, &p.local_rank);
  p.given = host != NULL;
  p.nodes = hosts->count;
  p.local_ranks = p.device_count = host ? host->count : 1;
  p.node = host ? (int)(host - hosts->host) : 0;
  if (host) memcpy(p.device, host->slot, sizeof host->slot);
  if (j->far) snprintf(p.master, sizeof p.master, "%s", hosts->host[0].name);
  return p;
}

/* With it a local rank gets the files; its own log in place of the first two, where there is one. */
static int send_welcome(const job *j, int to, int rank) {
  tws_launch_record welcome = {.kind = TWS_RECORD_WELCOME, .rank = rank, .place = place_of(j, rank)};
  int files[TWS_LAUNCH_FILES];
  memcpy(files, j->files, sizeof files);
  if (j->peers[rank].log >= 0) files[0] = files[1] = j->peers[rank].log;
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof files)];
  } control;
  memset(&control, 0, sizeof control);
  struct iovec data = {&welcome, sizeof welcome};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
  if (!j->far) {
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof files);
    memcpy(CMSG_DATA(header), files, sizeof files);
  }
  return sendmsg(to, &message, MSG_NOSIGNAL) == (ssize_t)sizeof welcome;
}

/* Who is it? A local process of the same user, or one that knows the secret. */
static int is_one_of_us(const job *j, int s, const tws_launch_record *hello, pid_t *pid) {
  struct ucred who = {0};
  socklen_t size = sizeof who;
  *pid = 0;
  if (j->far) return strncmp(hello->text, j->secret, 2 * TWS_SECRET) == 0;
  if (getsockopt(s, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 || who.uid != geteuid()) return 0;
  *pid = who.pid;
  return 1;
}

/* A rank knocks. Others are turned away. */
static void welcome_ranks(job *j) {
  int s = accept4(j->listener, NULL, NULL, SOCK_CLOEXEC);
  if (s < 0) return;
  pid_t pid;
  struct timeval limit = {.tv_sec = 2};
  tws_launch_record *hello = tws_calloc(1, sizeof *hello);
  setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (!hello || recv(s, hello, sizeof *hello, MSG_WAITALL) != (ssize_t)sizeof *hello ||
      hello->kind != TWS_RECORD_HELLO || hello->rank < 0 || hello->rank >= j->options->ranks ||
      j->peers[hello->rank].known || !is_one_of_us(j, s, hello, &pid) || !send_welcome(j, s, hello->rank)) {
    tws_free(hello);
    close(s);
    return;
  }
  peer *p = &j->peers[hello->rank];
  *p = (peer){.socket = s, .known = 1, .pid = pid, .log = p->log, .heard_s = tws_clock_s(), .record = hello};
  tws_watch_came(j->watch, hello->rank, pid, j->far ? s : -1);
}

static void write_all(int file, const char *text, size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = write(file, text, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return; /* nobody reads it: as for a local rank */
    text += written;
    bytes -= (size_t)written;
  }
}

static void take_record(job *j, int rank) {
  peer *p = &j->peers[rank];
  tws_launch_record *record = p->record;
  if (record->kind == TWS_RECORD_ACTIVITY) {
    char *line = j->board + (size_t)rank * TWS_BOARD_LINE;
    j->news |= strncmp(line, record->text, TWS_BOARD_LINE - 1) != 0;
    memcpy(line, record->text, TWS_BOARD_LINE - 1);
    return;
  }
  if (record->kind == TWS_RECORD_OUTPUT) {
    const int known = record->bytes > 0 && record->bytes <= (int)sizeof record->text && record->stream >= 0;
    if (known && record->stream < 2)
      write_all(p->log >= 0 ? p->log : j->files[record->stream], record->text, (size_t)record->bytes);
    return;
  }
  p->said_end = 1;
  tws_watch_done(j->watch, rank);
  if (record->kind != TWS_RECORD_FAILED) return;
  record->error.message[sizeof record->error.message - 1] = record->error.hint[sizeof record->error.hint - 1] = '\0';
  if (!j->failure.kind && j->first_dead < 0 && !j->lost) {
    int stopped = -1;
    j->failure = *record;
    if (record->error.code == TWS_HANG && tws_watch_stopped(j->watch, &stopped, &j->failure.error) != TWS_OK)
      j->failure.rank = stopped; /* this process knows better */
  }
  ask_in(j, j->first_dead < 0 ? reaction_s : notice_s);
}

static void hear_rank(job *j, int rank) {
  peer *p = &j->peers[rank];
  ssize_t got = recv(p->socket, (char *)p->record + p->have, sizeof *p->record - p->have, MSG_DONTWAIT);
  /* A reset comes before the last words of a rank that has not read everything that it was told. */
  if (got < 0 && (errno == EAGAIN || errno == EINTR || (errno == ECONNRESET && !j->far))) return;
  if (got <= 0) { /* it is gone */
    close(p->socket);
    p->socket = -1;
    if (!p->said_end && !j->failure.kind && j->first_dead < 0 && !j->signal && !j->lost) {
      j->first_dead = rank;
      j->dead_s = tws_clock_s();
    }
    if (!p->said_end) ask_in(j, notice_s);
    tws_watch_done(j->watch, rank);
    return;
  }
  p->heard_s = tws_clock_s();
  tws_watch_heard(j->watch, rank);
  p->have += (size_t)got;
  if (p->have < sizeof *p->record) return;
  p->have = 0;
  take_record(j, rank);
}

/* The first rank that has not knocked yet, or, in a job with a deadline, not said what it does: or -1. */
static int missing_rank(const job *j) {
  for (int r = 0; r < j->options->ranks; r++)
    if (!j->peers[r].known || (j->options->deadline_s > 0 && !j->board[(size_t)r * TWS_BOARD_LINE])) return r;
  return -1;
}

/* To every rank, as far as it takes it at once: whoever does not read is late with it. */
static void tell_all(const job *j, tws_launch_word word) {
  tws_launch_record record = {.kind = word};
  for (int r = 0; r < j->options->ranks; r++)
    if (j->peers[r].socket >= 0) send(j->peers[r].socket, &record, sizeof record, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void pass_on_news(job *j) {
  const double now = tws_clock_s();
  if (!j->news || now - j->told_s < 1) return;
  tell_all(j, TWS_RECORD_NEWS);
  j->news = 0;
  j->told_s = now;
}

/* Ranks that are all there can end by themselves; otherwise nothing was begun that would be worth it. */
static int pass_on(job *j) {
  if (!j->options->ends_itself || j->passed_on || j->failure.kind || j->first_dead >= 0 || missing_rank(j) >= 0)
    return 0;
  tell_all(j, TWS_RECORD_END);
  return j->passed_on = 1;
}

/* A rank that has died for its own sake did so some time before mpirun was killed. */
static void note_end(job *j) {
  j->ended = 1;
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
    if (j->signal) end_by_force(j); /* asked twice */
    if (!j->signal) j->signal = (int)info.ssi_signo;
    ask_to_end(j);
  }
}

static int any_connected(const job *j) {
  for (int r = 0; r < j->options->ranks; r++)
    if (j->peers[r].socket >= 0) return 1;
  return 0;
}

/* When the rank that has been silent for longest is lost; 0: never. One whose machine answers is not lost. */
static double lost_at(const job *j, int *rank) {
  double at = 0;
  const double now = tws_clock_s();
  for (int r = 0; j->far && r < j->options->ranks; r++) {
    const peer *p = &j->peers[r];
    if (p->socket < 0 || p->said_end || (at > 0 && p->heard_s + j->silence_s >= at)) continue;
    if (now >= p->heard_s + j->silence_s && tws_watch_answers(j->watch, r)) continue;
    at = p->heard_s + j->silence_s;
    *rank = r;
  }
  return at;
}

static double earlier(double a, double b) {
  return a == 0.0 || (b > 0.0 && b < a) ? b : a;
}

/* Whether all that is left to do is to see the processes end. */
static int is_ending(const job *j) {
  return j->kill_at_s > 0.0 || j->ask_at_s > 0.0;
}

/* Milliseconds until something is due; -1: nothing is. */
static int time_left(const job *j) {
  int silent = -1;
  double due = j->kill_at_s > 0.0 ? j->kill_at_s : j->ask_at_s;
  if (due == 0.0) due = earlier(j->finish_s, lost_at(j, &silent));
  const int watches = j->options->deadline_s > 0.0 || j->far || !j->learned;
  if (watches && !is_ending(j)) due = earlier(due, tws_watch_due(j->watch));
  if (due == 0.0) return -1;
  double left = due - tws_clock_s();
  return left > 0.0 ? (int)(left * 1000.0) + 1 : 0;
}

/* Everything of the node is given up, and this is what is told. */
static int give_up_lost(job *j) {
  int silent = -1;
  const double at = lost_at(j, &silent);
  if (at == 0 || tws_clock_s() < at || j->lost || j->failure.kind || j->first_dead >= 0 || j->signal) return 0;
  j->lost = silent + 1;
  return 1;
}

/* This process may have been stopped itself: whoever could not be heard meanwhile is not lost for it. */
static void look_at_ranks(job *j) {
  const double away_s = tws_watch_look(j->watch);
  for (int r = 0; r < j->options->ranks; r++) {
    const pid_t pid = tws_watch_pid(j->watch, r);
    if (away_s > 0.0) j->peers[r].heard_s = tws_clock_s();
    if (!j->learned && pid > 0) j->learned = tws_remains_learn(&j->remains, pid);
  }
  if (is_ending(j) || j->signal || j->lost || j->failure.kind || j->first_dead >= 0) return;
  tws_launch_record verdict = {.kind = TWS_RECORD_FAILED};
  if (tws_watch_judge(j->watch, &verdict.rank, &verdict.error) == TWS_OK) return;
  if (verdict.rank < 0) verdict.rank = j->options->ranks - 1; /* a job that is started again leaves out some rank */
  j->failure = verdict;
  end_soon(j);
  tws_watch_kill_stopped(j->watch);
}

/* mpirun has daemons on other machines to end. */
static double finish_s(const job *j) {
  return j->far ? notice_s : patience_s;
}

/* All ranks have ended well, and the rest is mpirun's. */
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
  j->kill_at_s = tws_clock_s() + 1.0; /* and again, until they are gone */
}

/* Looks at rank 0's line: ranks that train begin it with their step (real/executor.c). */
static void show_progress(const job *j) {
  char line[48];
  long long step;
  snprintf(line, sizeof line, "%.47s", j->board);
  if (sscanf(line, "step %lld,", &step) == 1) tws_progress_update(j->options->progress, (double)step);
}

/* Until a rank says something, or so many milliseconds at most that what is due is done and progress is shown. */
static int wait_for_news(const job *j) {
  enum { PROGRESS_MS = 200 };
  const int left = time_left(j);
  if (!j->options->progress) return poll(j->polls, (nfds_t)j->options->ranks + 2, left);
  show_progress(j);
  return poll(j->polls, (nfds_t)j->options->ranks + 2, left < 0 || left > PROGRESS_MS ? PROGRESS_MS : left);
}

static void wait_for_all(job *j) {
  int ranks = j->options->ranks;
  while (!j->ended || any_connected(j)) {
    j->polls[0] = (struct pollfd){.fd = j->signals, .events = POLLIN};
    j->polls[1] = (struct pollfd){.fd = j->listener, .events = POLLIN};
    for (int r = 0; r < ranks; r++) j->polls[2 + r] = (struct pollfd){.fd = j->peers[r].socket, .events = POLLIN};
    if (j->ended) ask_in(j, reaction_s); /* mpirun is gone: its ranks follow at once */
    do_what_is_due(j);
    if (wait_for_news(j) <= 0) continue;
    for (int r = 0; r < ranks; r++)
      if (j->polls[2 + r].revents && j->peers[r].socket >= 0) hear_rank(j, r);
    if (j->polls[1].revents) welcome_ranks(j);
    pass_on_news(j);
    if (j->polls[0].revents) take_signals(j);
  }
}

/* ---- what came of it ---- */

/* mpirun knows which rank went first when several went within one wake-up of the launcher. */
static void read_noise(const job *j, char *text, size_t size, int *rank) {
  ssize_t got = pread(j->noise, text, size - 1, 0);
  text[got > 0 ? got : 0] = '\0';
  const char *line = strstr(text, "process rank ");
  if (line) sscanf(line, "process rank %d", rank);
  char *to = text; /* one line, without the rules around it */
  for (const char *from = text; *from; from++) {
    const int blank = isspace((unsigned char)*from) || (*from == '-' && from[1] == '-') ||
                      (from > text && *from == '-' && from[-1] == '-');
    if (!blank)
      *to++ = *from;
    else if (to > text && to[-1] != ' ')
      *to++ = ' ';
  }
  *to = '\0';
}

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

/* The ranks of its node share its fate. */
static tws_code explain_loss(const job *j, int rank, tws_error *err) {
  char what[TWS_BOARD_LINE];
  int slot = 0;
  const tws_host *host = j->options->hosts ? tws_hosts_of_rank(j->options->hosts, rank, &slot) : NULL;
  return tws_failure_lost(host ? host->name : "?", rank - slot, host ? host->count : 0, j->silence_s, rank,
                          what_it_did(j, rank, what, sizeof what), err);
}

/* Where everybody is, when somebody hangs: ranks that are at the same are one line. */
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

static tws_code explain_failure(job *j, tws_error *err) {
  char noise[4096];
  int blamed = -1, ranks = j->options->ranks, code = WIFEXITED(j->status) ? WEXITSTATUS(j->status) : 128;
  read_noise(j, noise, sizeof noise, &blamed);
  if (j->signal)
    return tws_fail(err, j->signal == SIGTERM ? TWS_TERMINATED : TWS_INTERRUPTED, NULL, "%s; all ranks have ended",
                    j->signal == SIGTERM ? "asked to end" : "interrupted");
  if (j->finished) {
    tws_log_write(j->options->log, TWS_LOG_WARNING,
                  "all ranks have ended well, but mpirun did not within %.3g s, and was ended", finish_s(j));
    return TWS_OK;
  }
  if (j->killed)
    return tws_fail(err, TWS_RANK,
                    WTERMSIG(j->status) == SIGKILL ? "was the machine out of memory? `dmesg` says so" : NULL,
                    "mpirun was ended by signal %d (%s), and all ranks with it", WTERMSIG(j->status),
                    strsignal(WTERMSIG(j->status)));
  name_failed(j, j->lost ? j->lost - 1 : j->failure.kind ? j->failure.rank : j->first_dead);
  if (j->lost) return explain_loss(j, j->lost - 1, err);
  if (j->failure.kind) {
    if (j->failure.error.code == TWS_HANG) tell_places(j);
    if (err) *err = j->failure.error;
    int slot;
    const tws_host *host =
        j->far && j->options->hosts ? tws_hosts_of_rank(j->options->hosts, j->failure.rank, &slot) : NULL;
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
  if (code == 0) return TWS_OK;
  int started = 0;
  for (int r = 0; r < ranks; r++) started += j->peers[r].known;
  if (started == ranks) return tws_fail(err, TWS_RANK, NULL, "mpirun ended with status %d", code);
  return tws_fail(err, TWS_ENVIRONMENT,
                  j->far ? "does `ssh HOST hostname` work from here, without a password, and is Open MPI there?"
                         : "does `mpirun -n 2 hostname` work on this machine?",
                  "mpirun did not start all ranks (status %d): %.400s", code, noise);
}

tws_code tws_launch(const tws_launch_options *options, tws_error *err) {
  job j = {.options = options, .files = {-1, -1, -1}, .listener = -1, .signals = -1, .noise = -1, .first_dead = -1};
  if (options->ranks < 1) return tws_fail(err, TWS_INVALID, NULL, "no rank is left to start");
  j.far = tws_launch_is_far(options);
  j.silence_s = tws_failure_silence_s(options->deadline_s);
  tws_code code = set_up(&j, err);
  if (code == TWS_OK) code = start_ranks(&j, err);
  if (code == TWS_OK) {
    wait_for_all(&j);
    code = explain_failure(&j, err);
    tws_remains_clear(&j.remains, j.name);
  }
  tear_down(&j);
  return code;
}
