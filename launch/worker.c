/* The rank's side of the launcher. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/fingerprint.h"
#include "base/log.h"
#include "base/number.h"
#include "base/system.h"
#include "launch/launch.h"
#include "launch/protocol.h"

static const double beat_s = 1.0, look_s = 0.2; /* between signs of life; and looks at what has changed */

/* A process is a worker or it is not: the one connection it may have. */
static struct {
  int socket, rank, far; /* far: through the network */
  volatile int asked;
  char *activity;
  const char *board;      /* of a near one: every rank's line */
  volatile unsigned news; /* of a far one: how often there was some */
  tws_rank_place place;
  /* of a far one: what its standard output and error are, to be sent on */
  int output[2];
  pthread_mutex_t lock, order; /* of the socket; of what is sent on */
  char line[TWS_BOARD_LINE];
} worker = {.socket = -1, .output = {-1, -1}, .lock = PTHREAD_MUTEX_INITIALIZER, .order = PTHREAD_MUTEX_INITIALIZER};

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

int tws_started_elsewhere(int *rank, int *ranks) {
  static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
  static const char *const numbers[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", NULL};
  static const char *const tasks[] = {"SLURM_NTASKS", "SLURM_NPROCS", NULL};
  *rank = 0;
  *ranks = 1;
  if (tws_worker_is()) return 0;
  const int number = first_number(numbers);
  int size = first_number(sizes);
  if (size < 1 && number >= 0 && getenv("SLURM_STEP_ID")) size = first_number(tasks); /* srun says it so */
  if (number < 0 || size < 1) return 0;
  *rank = number;
  *ranks = size;
  return 1;
}

int tws_rank_follows(void) {
  int rank, ranks;
  return tws_worker_is() || (tws_started_elsewhere(&rank, &ranks) && rank > 0);
}

const tws_rank_place *tws_worker_place(void) {
  return &worker.place;
}

/* ---- records ---- */

/* Whole or not at all: with a socket that has to be waited for, whatever happens to be free of it. */
static int send_record(const tws_launch_record *record) {
  const char *at = (const char *)record;
  for (size_t left = sizeof *record; left > 0;) {
    const ssize_t sent = send(worker.socket, at, left, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return 0;
    at += sent;
    left -= (size_t)sent;
  }
  return 1;
}

static int say_to_parent(const tws_launch_record *record) {
  pthread_mutex_lock(&worker.lock);
  const int said = send_record(record);
  pthread_mutex_unlock(&worker.lock);
  return said;
}

/* With the answer come files, on the local socket. */
static int receive_welcome(int files[TWS_LAUNCH_FILES]) {
  tws_launch_record record;
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(TWS_LAUNCH_FILES * sizeof(int))];
  } control;
  struct iovec data = {&record, sizeof record};
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  size_t have = 0;
  if (worker.far) {
    for (ssize_t got; have < sizeof record; have += (size_t)got) {
      got = recv(worker.socket, (char *)&record + have, sizeof record - have, 0);
      if (got < 0 && errno == EINTR)
        got = 0;
      else if (got <= 0)
        return 0;
    }
  } else {
    ssize_t got;
    do got = recvmsg(worker.socket, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    struct cmsghdr *header = got == (ssize_t)sizeof record ? CMSG_FIRSTHDR(&message) : NULL;
    if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(TWS_LAUNCH_FILES * sizeof(int)))
      return 0;
    memcpy(files, CMSG_DATA(header), TWS_LAUNCH_FILES * sizeof(int));
  }
  worker.place = record.place;
  return record.kind == TWS_RECORD_WELCOME;
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

static int connect_here(const char *name) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const size_t length = strlen(name);
  if (length >= sizeof address.sun_path) return 0;
  memcpy(address.sun_path + 1, name, length); /* an abstract name: a zero byte first */
  worker.socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  return worker.socket >= 0 && connect(worker.socket, (struct sockaddr *)&address,
                                       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)) == 0;
}

/* ---- through the network ---- */

static int connect_within(const struct sockaddr_in *address, int milliseconds) {
  const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  struct pollfd wait = {.fd = s, .events = POLLOUT};
  int failed = 0, one = 1;
  socklen_t size = sizeof failed;
  if (s < 0) return -1;
  if ((connect(s, (const struct sockaddr *)address, sizeof *address) != 0 && errno != EINPROGRESS) ||
      poll(&wait, 1, milliseconds) != 1 || getsockopt(s, SOL_SOCKET, SO_ERROR, &failed, &size) != 0 || failed) {
    close(s);
    return -1;
  }
  fcntl(s, F_SETFL, fcntl(s, F_GETFL) & ~O_NONBLOCK);
  setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return s;
}

/* "@PORT/SECRET/ADDRESS,...": the first address that answers is the launcher's. */
static int connect_far(const char *name, char secret[2 * TWS_SECRET + 1]) {
  int port;
  const char *at;
  if (*name != '@' || !tws_text_int(name + 1, &at, 1, UINT16_MAX, &port) || *at++ != '/') return 0;
  const size_t digits = strspn(at, "0123456789abcdef");
  if (digits != 2 * TWS_SECRET || at[digits] != '/') return 0;
  snprintf(secret, 2 * TWS_SECRET + 1, "%s", at);
  for (const char *list = at + digits + 1; *list && worker.socket < 0;) {
    char text[64];
    const size_t length = strcspn(list, ",");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    snprintf(text, sizeof text, "%.*s", (int)length, list);
    if (inet_pton(AF_INET, text, &address.sin_addr) == 1) worker.socket = connect_within(&address, 5000);
    list += length + (list[length] == ',');
  }
  return worker.socket >= 0;
}

/* What has been written goes to the launcher; 0 when the launcher is gone. */
static int forward(int stream) {
  tws_launch_record record = {.kind = TWS_RECORD_OUTPUT, .rank = worker.rank, .stream = stream};
  int there = 1;
  pthread_mutex_lock(&worker.order);
  while (there) {
    const ssize_t got = read(worker.output[stream], record.text, sizeof record.text);
    if (got <= 0) break;
    record.bytes = (int32_t)got;
    there = say_to_parent(&record);
  }
  pthread_mutex_unlock(&worker.order);
  return there;
}

static int hear_parent(void) {
  static tws_launch_record record;
  static size_t have;
  const ssize_t got = recv(worker.socket, (char *)&record + have, sizeof record - have, MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  have += (size_t)got;
  if (have < sizeof record) return got > 0;
  have = 0;
  if (record.kind == TWS_RECORD_END) worker.asked = 1;
  if (record.kind == TWS_RECORD_NEWS) worker.news++;
  return 1;
}

/* Nobody could say what becomes of this rank. Nor does anybody end mpirun's daemon on a node that was cut off. */
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
                             {.fd = worker.socket, .events = POLLIN}};
    int there = 1;
    if (poll(polls, 3, (int)(look_s * 1000)) > 0)
      there = forward(0) && forward(1) && (!polls[2].revents || hear_parent());
    const int late = tws_clock_s() >= beat_at;
    if (there && (late || strncmp(beat.text, worker.line, sizeof worker.line - 1) != 0)) {
      memcpy(beat.text, worker.line, sizeof worker.line - 1);
      there = say_to_parent(&beat);
      beat_at = tws_clock_s() + beat_s;
    }
    if (!there) end_without_launcher();
  }
  return NULL;
}

static int start_forwarding(void) {
  const unsigned patience = worker.place.patience_s > 0 ? (unsigned)(worker.place.patience_s * 1000) : 0;
  static const int standard[] = {STDOUT_FILENO, STDERR_FILENO};
  for (int i = 0; i < 2; i++) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0 || dup2(ends[1], standard[i]) < 0) return 0;
    close(ends[1]);
    worker.output[i] = ends[0];
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  setsockopt(worker.socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof patience);
  worker.activity = worker.line;
  pthread_t thread;
  sigset_t before;
  tws_hold_signals(&before); /* they are the rank's */
  const int started = pthread_create(&thread, NULL, keep_in_touch, NULL) == 0;
  tws_release_signals(&before);
  if (started) pthread_detach(thread);
  return started;
}

/* ---- both ---- */

tws_code tws_worker_connect(tws_error *err) {
  const char *name = getenv(TWS_LAUNCHER_VARIABLE);
  int files[TWS_LAUNCH_FILES];
  char secret[2 * TWS_SECRET + 1] = "", host[256] = "";
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* no rank outlives mpirun */
  if (!name || !*name)
    return tws_fail(err, TWS_USAGE, "start ranks with: twinspeed train -n 4 ...",
                    "rank-worker is started by twinspeed itself");
  worker.rank = tws_worker_rank();
  worker.far = *name == '@';
  gethostname(host, sizeof host - 1);
  tws_launch_record hello = {.kind = TWS_RECORD_HELLO, .rank = worker.rank};
  int ok = worker.far ? connect_far(name, secret) : connect_here(name);
  snprintf(hello.text, sizeof hello.text, "%s %s", secret, host);
  ok = ok && say_to_parent(&hello) && receive_welcome(files) && (worker.far ? start_forwarding() : take_over(files));
  if (ok) return TWS_OK;
  return tws_fail(err, TWS_ENVIRONMENT,
                  worker.far ? "is the launcher still running, and may nodes connect to its ports?"
                             : "is the launcher still running?",
                  "rank %d on %s cannot reach its launcher: %s", worker.rank, host, strerror(errno));
}

char *tws_worker_activity(size_t *bytes) {
  *bytes = worker.activity ? TWS_BOARD_LINE : 0;
  return worker.activity;
}

uint64_t tws_worker_news(void) {
  if (!worker.board) return worker.news;
  return tws_fingerprint_bytes(worker.news, worker.board, (size_t)worker.place.ranks * TWS_BOARD_LINE);
}

int tws_worker_asked_to_end(void) {
  tws_launch_record record = {0};
  if (worker.socket >= 0 && !worker.far && !worker.asked &&
      recv(worker.socket, &record, sizeof record, MSG_DONTWAIT) == (ssize_t)sizeof record)
    worker.asked = record.kind == TWS_RECORD_END;
  return worker.asked;
}

static void say_last(const tws_launch_record *record) {
  fflush(stdout);
  if (worker.socket < 0) return;
  for (int i = 0; i < 2 && worker.output[i] >= 0; i++) forward(i);
  say_to_parent(record);
}

void tws_worker_fail(const tws_error *err) {
  const tws_launch_record record = {.kind = TWS_RECORD_FAILED, .rank = worker.rank, .error = *err};
  say_last(&record);
}

void tws_worker_done(void) {
  const tws_launch_record record = {.kind = TWS_RECORD_DONE, .rank = worker.rank};
  say_last(&record);
}
