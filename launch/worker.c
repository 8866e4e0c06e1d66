/* The rank's side of the launcher. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "launch/launch.h"
#include "launch/protocol.h"

/* A process is a worker or it is not: the one connection it may have. */
static struct {
  int socket, rank, asked;
  char *activity;
} worker = {.socket = -1};

int tws_worker_is(void) {
  const char *name = getenv(TWS_LAUNCHER_VARIABLE);
  return name && *name;
}

int tws_worker_rank(void) {
  const char *rank = getenv("OMPI_COMM_WORLD_RANK");
  return tws_worker_is() && rank ? atoi(rank) : 0;
}

static int say_to_parent(const tws_launch_record *record) {
  return send(worker.socket, record, sizeof *record, MSG_NOSIGNAL) == (ssize_t)sizeof *record;
}

static int receive_files(int files[TWS_LAUNCH_FILES]) {
  char byte;
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(TWS_LAUNCH_FILES * sizeof(int))];
  } control;
  struct iovec data = {&byte, 1};
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t got;
  do got = recvmsg(worker.socket, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  struct cmsghdr *header = got == 1 ? CMSG_FIRSTHDR(&message) : NULL;
  if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(TWS_LAUNCH_FILES * sizeof(int)))
    return 0;
  memcpy(files, CMSG_DATA(header), TWS_LAUNCH_FILES * sizeof(int));
  return 1;
}

static int take_over(const int files[TWS_LAUNCH_FILES]) {
  if (dup2(files[0], STDOUT_FILENO) < 0 || dup2(files[1], STDERR_FILENO) < 0) return 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  size_t page = (size_t)sysconf(_SC_PAGESIZE), at = (size_t)worker.rank * TWS_BOARD_LINE, first = at / page * page;
  char *board = mmap(NULL, at - first + TWS_BOARD_LINE, PROT_READ | PROT_WRITE, MAP_SHARED, files[2], (off_t)first);
  if (board == MAP_FAILED) return 0;
  worker.activity = board + (at - first);
  for (int i = 0; i < TWS_LAUNCH_FILES; i++) close(files[i]);
  return 1;
}

tws_code tws_worker_connect(tws_error *err) {
  const char *name = getenv(TWS_LAUNCHER_VARIABLE);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  size_t length = name ? strlen(name) : 0;
  int files[TWS_LAUNCH_FILES];
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* no rank outlives mpirun */
  if (length == 0 || length >= sizeof address.sun_path)
    return tws_fail(err, TWS_USAGE, "start ranks with: twinspeed train -n 4 ...",
                    "rank-worker is started by twinspeed itself");
  memcpy(address.sun_path + 1, name, length); /* an abstract name: a zero byte first */
  worker.rank = tws_worker_rank();
  worker.socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
  tws_launch_record hello = {.kind = TWS_RECORD_HELLO, .rank = worker.rank};
  if (worker.socket < 0 || connect(worker.socket, (struct sockaddr *)&address, size) != 0 || !say_to_parent(&hello) ||
      !receive_files(files) || !take_over(files))
    return tws_fail(err, TWS_ENVIRONMENT, "is the launcher still running?", "rank %d cannot reach its launcher: %s",
                    worker.rank, strerror(errno));
  return TWS_OK;
}

char *tws_worker_activity(size_t *bytes) {
  *bytes = worker.activity ? TWS_BOARD_LINE : 0;
  return worker.activity;
}

int tws_worker_asked_to_end(void) {
  tws_launch_record record = {0};
  if (worker.socket >= 0 && !worker.asked &&
      recv(worker.socket, &record, sizeof record, MSG_DONTWAIT) == (ssize_t)sizeof record)
    worker.asked = record.kind == TWS_RECORD_END;
  return worker.asked;
}

void tws_worker_fail(const tws_error *err) {
  tws_launch_record record = {.kind = TWS_RECORD_FAILED, .rank = worker.rank, .error = *err};
  fflush(stdout);
  if (worker.socket >= 0) say_to_parent(&record);
}

void tws_worker_done(void) {
  tws_launch_record record = {.kind = TWS_RECORD_DONE, .rank = worker.rank};
  fflush(stdout);
  if (worker.socket >= 0) say_to_parent(&record);
}
