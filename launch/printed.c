#include "launch/printed.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/memory.h"
#include "launch/lines.h"

enum { EVENTS = 32, READ_BYTES = 4096, PIPE_BYTES = 1 << 16 };

typedef struct line_pipe {
  tws_line line;
  int pipe;         /* read end of the pipe of a local rank; -1: the rank has none */
  size_t afterward; /* bytes that were read after all ranks had ended */
} line_pipe;

struct tws_printed {
  int ranks, events, ended;
  int direct[2]; /* [stream] 1: local ranks write to the file themselves */
  int same;      /* 1: standard output and standard error are the same file */
  tws_shared_output outlets[2], *logs;
  line_pipe *streams; /* two for each rank */
};

static tws_shared_output *outlet_of(tws_printed *o, int at) {
  tws_shared_output *log = &o->logs[at / 2];
  return log->file >= 0 ? log : &o->outlets[at % 2];
}

/* Returns 1 if local ranks can write to the file themselves: a terminal shows incomplete lines as well, and the null
 * device discards them. */
static int is_direct(int file) {
  struct stat about, null;
  if (isatty(file)) return 1;
  return fstat(file, &about) == 0 && S_ISCHR(about.st_mode) && stat("/dev/null", &null) == 0 &&
         about.st_rdev == null.st_rdev;
}

static int is_same(int a, int b) {
  struct stat one, other;
  return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

tws_code tws_printed_open(int ranks, const int files[2], const int *log, tws_printed **out, tws_error *err) {
  tws_printed *o = *out = tws_calloc(1, sizeof *o);
  if (!o) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  o->events = -1;
  o->logs = tws_calloc((size_t)ranks, sizeof *o->logs);
  o->streams = tws_calloc(2 * (size_t)ranks, sizeof *o->streams);
  if (!o->logs || !o->streams) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  o->ranks = ranks;
  for (int i = 0; i < 2 * ranks; i++) o->streams[i].pipe = -1;
  for (int r = 0; r < ranks; r++) tws_shared_output_open(&o->logs[r], log[r]);
  for (int i = 0; i < 2; i++) {
    tws_shared_output_open(&o->outlets[i], files[i]);
    o->direct[i] = is_direct(files[i]);
  }
  o->same = !o->direct[0] && !o->direct[1] && is_same(files[0], files[1]);
  o->events = epoll_create1(EPOLL_CLOEXEC);
  if (o->events < 0) return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot watch the ranks' output: %s", strerror(errno));
  return TWS_OK;
}

void tws_printed_close(tws_printed *o) {
  if (!o) return;
  for (int i = 0; i < 2 * o->ranks; i++) {
    if (o->streams[i].pipe >= 0) close(o->streams[i].pipe);
    tws_free(o->streams[i].line.text);
  }
  for (int r = 0; r < o->ranks; r++) tws_shared_output_close(&o->logs[r]);
  for (int i = 0; i < 2; i++) tws_shared_output_close(&o->outlets[i]);
  if (o->events >= 0) close(o->events);
  tws_free(o->logs);
  tws_free(o->streams);
  tws_free(o);
}

/* Opens a pipe whose content is read as stream `at`, and returns its write end, or -1. */
static int open_pipe(tws_printed *o, int at) {
  struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)at};
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  epoll_ctl(o->events, EPOLL_CTL_ADD, ends[0], &event);
  o->streams[at].pipe = ends[0];
  return ends[1];
}

tws_code tws_printed_files(tws_printed *o, int rank, int files[2], int *own, tws_error *err) {
  *own = 0;
  files[0] = files[1] = o->logs[rank].file;
  if (files[0] >= 0) return TWS_OK;
  for (int i = 0; i < 2; i++) {
    const int same = i == 1 && o->same; /* one pipe serves both streams, so that the order of the rank's output is
                                         * preserved */
    if (o->direct[i] || same)
      files[i] = fcntl(same ? files[0] : o->outlets[i].file, F_DUPFD_CLOEXEC, 3);
    else
      files[i] = open_pipe(o, 2 * rank + i);
  }
  *own = 1;
  if (files[0] >= 0 && files[1] >= 0) return TWS_OK;
  tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot open a pipe for what rank %d prints: %s", rank, strerror(errno));
  for (int i = 0; i < 2; i++)
    if (files[i] >= 0) close(files[i]);
  return TWS_ENVIRONMENT;
}

void tws_printed_add(tws_printed *o, int rank, int stream, const char *text, size_t count) {
  const int at = 2 * rank + stream;
  tws_line_add(&o->streams[at].line, at, outlet_of(o, at), text, count);
}

void tws_printed_end(tws_printed *o, int rank) {
  for (int at = 2 * rank; at < 2 * rank + 2; at++) tws_line_end(&o->streams[at].line, at, outlet_of(o, at));
}

int tws_printed_waits(const tws_printed *o) {
  return o->outlets[0].count > 0 || o->outlets[1].count > 0;
}

void tws_printed_polls(const tws_printed *o, struct pollfd polls[TWS_PRINTED_POLLS]) {
  for (int i = 0; i < 2; i++)
    polls[i] = (struct pollfd){.fd = o->outlets[i].count > 0 ? o->outlets[i].file : -1, .events = POLLOUT};
  polls[2] = (struct pollfd){.fd = tws_printed_waits(o) ? -1 : o->events, .events = POLLIN};
}

/* Reads from a pipe; returns 1 if there was data. */
static int read_pipe(tws_printed *o, int at) {
  char text[READ_BYTES];
  line_pipe *s = &o->streams[at];
  if (s->pipe < 0 || s->afterward > PIPE_BYTES) return 0;
  const ssize_t got = read(s->pipe, text, sizeof text);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return errno == EINTR;
  if (got <= 0) {
    close(s->pipe);
    s->pipe = -1;
    tws_line_end(&s->line, at, outlet_of(o, at));
    return 0;
  }
  if (o->ended) s->afterward += (size_t)got;
  tws_line_add(&s->line, at, outlet_of(o, at), text, (size_t)got);
  return 1;
}

void tws_printed_handle_events(tws_printed *o, const struct pollfd polls[TWS_PRINTED_POLLS]) {
  struct epoll_event event[EVENTS];
  for (int i = 0; i < 2; i++)
    if (polls[i].revents) tws_shared_output_write(&o->outlets[i]);
  if (!polls[2].revents) return;
  const int events = epoll_wait(o->events, event, EVENTS, 0);
  for (int i = 0; i < events && !tws_printed_waits(o); i++) read_pipe(o, (int)event[i].data.u32);
}

/* Reads the data that are in the pipes now, which were printed before the ranks ended; later data come from processes
 * that the ranks have started. */
int tws_printed_done(tws_printed *o) {
  o->ended = 1;
  for (int at = 0; at < 2 * o->ranks; at++)
    while (!tws_printed_waits(o) && read_pipe(o, at)) continue;
  if (tws_printed_waits(o)) return 0;
  for (int r = 0; r < o->ranks; r++) tws_printed_end(o, r);
  return !tws_printed_waits(o);
}

int tws_printed_failed(const tws_printed *o) {
  int failed = 0;
  for (int i = 0; i < 2; i++)
    if (o->outlets[i].failed && o->outlets[i].failed != EPIPE) failed = o->outlets[i].failed;
  for (int r = 0; r < o->ranks; r++)
    if (o->logs[r].failed) failed = o->logs[r].failed;
  return failed;
}
