/* Implements the rank's side of the connection to the launcher. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/fingerprint.h"
#include "base/log.h"
#include "base/number.h"
#include "base/system.h"
#include "launch/contact.h"
#include "launch/launch.h"
#include "launch/link.h"
#include "launch/protocol.h"

static const double beat_s = 1.0, look_s = 0.2; /* beat_s: interval between heartbeats; look_s: interval between checks
                                                 * for changes */
static const double welcome_s = 30.0;           /* time limit for the launcher's first record */

/* State of this process as a worker; a process has at most one connection to a launcher. */
static struct {
  int rank;
  tws_link link;
  volatile int asked;
  char *activity;
  const char *board;      /* for a local rank: the board with every rank's line */
  volatile unsigned news; /* for a rank on another node: number of messages received
                           * from the launcher that some rank's current operation has changed */
  tws_rank_place place;
  /* for a rank on another node: pipes of its standard output and error, whose content is forwarded */
  int output[2];
  int said_last;
  pthread_mutex_t turn; /* held while sending and receiving records */
  char line[TWS_BOARD_LINE];
} worker = {.link.socket = -1, .output = {-1, -1}, .turn = PTHREAD_MUTEX_INITIALIZER};

int tws_worker_is(void) {
  const char *name = getenv(TWS_LAUNCHER_VARIABLE);
  return name && *name;
}

static int first_number(const char *const *names) {
  for (; *names; names++) {
    const char *text = getenv(*names);
    int number;
    if (text && tws_text_int(text, NULL, 0, INT32_MAX, &number)) return number;
  }
  return -1;
}

int tws_worker_rank(void) {
  static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", NULL};
  const int rank = tws_worker_is() ? first_number(names) : -1;
  return rank > 0 ? rank : 0;
}

int tws_started_by_other_launcher(int *rank, int *ranks) {
  static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
  static const char *const numbers[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", NULL};
  static const char *const tasks[] = {"SLURM_NTASKS", "SLURM_NPROCS", NULL};
  *rank = 0;
  *ranks = 1;
  if (tws_worker_is()) return 0;
  const int number = first_number(numbers);
  int size = first_number(sizes);
  if (size < 1 && number >= 0 && getenv("SLURM_STEP_ID")) size = first_number(tasks); /* srun sets this variable */
  if (number < 0 || size < 1) return 0;
  *rank = number;
  *ranks = size;
  return 1;
}

int tws_rank_job_is_checked(void) {
  int rank, ranks;
  return tws_worker_is() || (tws_started_by_other_launcher(&rank, &ranks) && rank > 0);
}

const tws_rank_place *tws_worker_place(void) {
  return &worker.place;
}

/* ---- records ---- */

static int hear_parent(void) {
  static tws_launch_record record;
  const int got = tws_link_receive(&worker.link, &record);
  if (got <= 0) return got == 0;
  if (record.kind == TWS_RECORD_END) worker.asked = 1;
  if (record.kind == TWS_RECORD_NEWS) worker.news++;
  return 1;
}

/* Returns 1 if the launcher's machine answers. A launcher that is stopped, or whose own output is full, reads
 * nothing, but still exists. */
static int machine_answers(void) {
  return worker.place.patience_s <= 0 || tws_link_silence_s(worker.link.socket) < worker.place.patience_s;
}

/* Sends a record through the network; bytes that the launcher does not read at once stay pending. */
static int send_line(const tws_launch_record *record) {
  enum { MOST_MS = 50, LOOK_MS = 200 };
  int there = tws_link_try_send(&worker.link, record);
  for (int nap_ms = 1; there && worker.link.pending > 0; nap_ms = nap_ms < MOST_MS ? 2 * nap_ms : MOST_MS) {
    const int shut = worker.link.shut;
    struct pollfd wait = {.fd = worker.link.socket, .events = (short)(POLLIN | (shut ? 0 : POLLOUT))};
    if (poll(&wait, 1, shut ? nap_ms : LOOK_MS) < 0 && errno != EINTR) return 0;
    if (wait.revents & ~POLLOUT) there = hear_parent();
    there = there && machine_answers() && tws_link_flush(&worker.link);
  }
  return there;
}

static int say_to_parent(const tws_launch_record *record) {
  return worker.link.remote ? send_line(record) : tws_link_send(&worker.link, record);
}

/* Waits for WELCOME through the network; the launcher has accepted this connection as a rank's. */
static int wait_for_welcome(tws_launch_record *record) {
  struct pollfd wait = {.fd = worker.link.socket, .events = POLLIN};
  for (int got = 0; got == 0;) {
    if (poll(&wait, 1, (int)(welcome_s * 1000)) == 0) return 0;
    got = tws_link_receive(&worker.link, record);
    if (got < 0) return 0;
  }
  return 1;
}

/* Receives WELCOME, and with it the files, on the local socket. */
static int receive_files(tws_launch_record *record, int files[TWS_LAUNCH_FILES]) {
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(TWS_LAUNCH_FILES * sizeof(int))];
  } control;
  struct iovec data = {record, sizeof *record};
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t got;
  do got = recvmsg(worker.link.socket, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  struct cmsghdr *header = got > 0 && tws_record_check(record, (size_t)got, -1, 0) ? CMSG_FIRSTHDR(&message) : NULL;
  if (!header || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(TWS_LAUNCH_FILES * sizeof(int)))
    return 0;
  memcpy(files, CMSG_DATA(header), TWS_LAUNCH_FILES * sizeof(int));
  return 1;
}

static int receive_welcome(int files[TWS_LAUNCH_FILES]) {
  tws_launch_record record;
  errno = 0;
  if (!(worker.link.remote ? wait_for_welcome(&record) : receive_files(&record, files))) return 0;
  if (record.kind != TWS_RECORD_WELCOME || record.rank != worker.rank) return 0;
  worker.place = record.place;
  return 1;
}

/* ---- on the launcher's machine ---- */

static int take_over(const int files[TWS_LAUNCH_FILES]) {
  if (dup2(files[0], STDOUT_FILENO) < 0 || dup2(files[1], STDERR_FILENO) < 0) return 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  char *board =
      mmap(NULL, (size_t)worker.place.ranks * TWS_BOARD_LINE, PROT_READ | PROT_WRITE, MAP_SHARED, files[2], 0);
  if (board == MAP_FAILED) return 0;
  worker.board = board;
  worker.activity = board + (size_t)worker.rank * TWS_BOARD_LINE;
  for (int i = 0; i < TWS_LAUNCH_FILES; i++) close(files[i]);
  return 1;
}

/* ---- through the network ---- */

/* Sends written output to the launcher, at most as much as a pipe holds, so that a process that writes without pause
 * does not keep this one from its other work. Returns 0 if the launcher has closed the connection. */
static int forward(int stream) {
  enum { RECORDS = (1 << 17) / TWS_RECORD_TEXT };
  tws_launch_record record = {.kind = TWS_RECORD_OUTPUT, .rank = worker.rank, .stream = stream};
  int there = 1;
  for (int i = 0; there && i < RECORDS; i++) {
    const ssize_t got = read(worker.output[stream], record.text, sizeof record.text);
    if (got <= 0) break;
    record.bytes = (int32_t)got;
    there = say_to_parent(&record);
  }
  return there;
}

/* Ends this process when the launcher is lost: no process would report the rank's failure, or end mpirun's daemon on a
 * node that is cut off. */
static void end_without_launcher(void) {
  char path[64], name[16] = "";
  snprintf(path, sizeof path, "/proc/%d/comm", (int)getppid());
  FILE *file = fopen(path, "r");
  if (file && fgets(name, sizeof name, file) && strcmp(name, "orted\n") == 0) kill(getppid(), SIGTERM);
  _exit(tws_code_exit(TWS_RANK));
}

static void *keep_in_touch(void *nothing) {
  tws_launch_record beat = {.kind = TWS_RECORD_ACTIVITY, .rank = worker.rank};
  (void)nothing;
  for (double beat_at = tws_clock_s();;) {
    struct pollfd polls[] = {{.fd = worker.output[0], .events = POLLIN},
                             {.fd = worker.output[1], .events = POLLIN},
                             {.fd = worker.link.socket, .events = POLLIN}};
    int there = 1;
    const int events = poll(polls, 3, (int)(look_s * 1000));
    pthread_mutex_lock(&worker.turn);
    if (worker.said_last) break;
    if (events > 0) there = forward(0) && forward(1) && (!polls[2].revents || hear_parent());
    there = there && machine_answers();
    const int late = tws_clock_s() >= beat_at;
    if (there && (late || strncmp(beat.text, worker.line, sizeof worker.line - 1) != 0)) {
      memcpy(beat.text, worker.line, sizeof worker.line - 1);
      there = say_to_parent(&beat);
      beat_at = tws_clock_s() + beat_s;
    }
    if (!there) end_without_launcher();
    pthread_mutex_unlock(&worker.turn);
  }
  pthread_mutex_unlock(&worker.turn);
  return NULL;
}

static int start_forwarding(void) {
  static const int standard[] = {STDOUT_FILENO, STDERR_FILENO};
  for (int i = 0; i < 2; i++) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0 || dup2(ends[1], standard[i]) < 0) return 0;
    close(ends[1]);
    worker.output[i] = ends[0];
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  tws_link_enable_keepalive(worker.link.socket, worker.place.patience_s > 6 ? (int)worker.place.patience_s / 3 : 1);
  worker.activity = worker.line;
  pthread_t thread;
  sigset_t before;
  tws_hold_signals(&before); /* signals are handled by the rank's own threads */
  const int started = pthread_create(&thread, NULL, keep_in_touch, NULL) == 0;
  tws_release_signals(&before);
  if (started) pthread_detach(thread);
  return started;
}

/* ---- local and remote ranks ---- */

static tws_code connect_to_launcher(const char *name, tws_error *err) {
  uint8_t secret[TWS_SECRET];
  int files[TWS_LAUNCH_FILES];
  tws_code code;
  if (*name == '@') {
    code = tws_contact_secret(secret, err);
    if (code == TWS_OK) code = tws_contact_remote(name, secret, worker.rank, &worker.link, err);
    tws_secret_wipe(secret, sizeof secret);
  } else {
    code = tws_contact_local(name, worker.rank, &worker.link, err);
  }
  if (code != TWS_OK) return code;
  if (receive_welcome(files) && (worker.link.remote ? start_forwarding() : take_over(files))) return TWS_OK;
  return tws_fail(err, TWS_ENVIRONMENT, NULL, "%s", errno ? strerror(errno) : "its first record is none");
}

tws_code tws_worker_connect(tws_error *err) {
  const char *name = getenv(TWS_LAUNCHER_VARIABLE);
  char host[256] = "";
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* the rank is killed when mpirun ends */
  if (!name || !*name)
    return tws_fail(err, TWS_USAGE, "start ranks with: twinspeed train -n 4 ...",
                    "rank-worker is started by twinspeed itself");
  worker.rank = tws_worker_rank();
  gethostname(host, sizeof host - 1);
  const tws_code code = connect_to_launcher(name, err);
  if (code == TWS_OK) return TWS_OK;
  if (err && !err->hint[0])
    snprintf(err->hint, sizeof err->hint, "%s",
             *name == '@' ? "is the launcher still running, and may nodes connect to its ports?"
                          : "is the launcher still running?");
  return tws_fail_in(err, code, "rank %d on %s cannot reach its launcher", worker.rank, host);
}

char *tws_worker_activity(size_t *bytes) {
  *bytes = worker.activity ? TWS_BOARD_LINE : 0;
  return worker.activity;
}

uint64_t tws_worker_activity_count(void) {
  if (!worker.board) return worker.news;
  return tws_fingerprint_bytes(worker.news, worker.board, (size_t)worker.place.ranks * TWS_BOARD_LINE);
}

int tws_worker_asked_to_end(void) {
  tws_launch_record record = {0};
  if (worker.link.socket >= 0 && !worker.link.remote && !worker.asked && tws_link_receive(&worker.link, &record) == 1)
    worker.asked = record.kind == TWS_RECORD_END;
  return worker.asked;
}

/* Sends the last record. Through the network a rank then waits until the launcher has read everything and closes the
 * connection: data in transit would be lost if the process ended before. */
static void say_last(const tws_launch_record *record) {
  static tws_launch_record ignored;
  fflush(stdout);
  if (worker.link.socket < 0) return;
  pthread_mutex_lock(&worker.turn);
  int there = !worker.said_last;
  worker.said_last = 1; /* the thread has no more work, and no record may follow the last one */
  for (int i = 0; i < 2 && worker.output[i] >= 0; i++) there = there && forward(i);
  there = there && say_to_parent(record);
  while (there && worker.link.remote) {
    struct pollfd wait = {.fd = worker.link.socket, .events = POLLIN};
    there = poll(&wait, 1, (int)(look_s * 1000)) >= 0 ? tws_link_receive(&worker.link, &ignored) >= 0 : errno == EINTR;
    there = there && machine_answers();
  }
  pthread_mutex_unlock(&worker.turn);
}

void tws_worker_fail(const tws_error *err) {
  const tws_launch_record record = {.kind = TWS_RECORD_FAILED, .rank = worker.rank, .error = *err};
  say_last(&record);
}

void tws_worker_done(void) {
  const tws_launch_record record = {.kind = TWS_RECORD_DONE, .rank = worker.rank};
  say_last(&record);
}
