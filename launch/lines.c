#include "launch/lines.h"
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/memory.h"

enum { REGULAR, SOCKET, OTHER }; /* kinds of files */

void tws_shared_output_open(tws_shared_output *outlet, int file) {
  struct stat about;
  *outlet = (tws_shared_output){.file = file, .kind = OTHER};
  if (fstat(file, &about) != 0) return;
  if (S_ISREG(about.st_mode)) outlet->kind = REGULAR;
  if (S_ISSOCK(about.st_mode)) outlet->kind = SOCKET;
}

void tws_shared_output_close(tws_shared_output *outlet) {
  tws_free(outlet->waiting);
  *outlet = (tws_shared_output){.file = -1};
}

/* Writes some bytes without blocking. A pipe that poll() reports as writable accepts PIPE_BUF bytes. */
static ssize_t write_some(const tws_shared_output *outlet, const char *text, size_t count) {
  struct pollfd ready = {.fd = outlet->file, .events = POLLOUT};
  if (outlet->kind == SOCKET) return send(outlet->file, text, count, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (outlet->kind == REGULAR) return write(outlet->file, text, count);
  if (poll(&ready, 1, 0) != 1) {
    errno = EAGAIN;
    return -1;
  }
  return write(outlet->file, text, count < PIPE_BUF ? count : PIPE_BUF);
}

void tws_shared_output_write(tws_shared_output *outlet) {
  size_t done = 0;
  while (done < outlet->count) {
    const ssize_t written = write_some(outlet, outlet->waiting + done, outlet->count - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) break;
    if (written <= 0) {
      if (!outlet->failed) outlet->failed = written < 0 ? errno : EIO;
      done = outlet->count; /* the file accepts nothing, now or later */
      break;
    }
    done += (size_t)written;
  }
  if (done == 0) return;
  memmove(outlet->waiting, outlet->waiting + done, outlet->count - done);
  outlet->count -= done;
}

static void append(tws_shared_output *outlet, const char *text, size_t count) {
  if (tws_reserve(&outlet->waiting, &outlet->capacity, outlet->count + count, 1) != 0) {
    if (!outlet->failed) outlet->failed = ENOMEM;
    return;
  }
  memcpy(outlet->waiting + outlet->count, text, count);
  outlet->count += count;
}

/* Writes whole lines of one writer, or an incomplete one. */
static void put(tws_shared_output *outlet, int writer, const char *text, size_t count) {
  if (count == 0 || outlet->failed) return;
  if (outlet->writer && outlet->writer != writer + 1) append(outlet, "\n", 1);
  append(outlet, text, count);
  outlet->writer = text[count - 1] == '\n' ? 0 : writer + 1;
}

/* Returns the number of bytes up to the end of the last complete line. */
static size_t ended(const char *text, size_t count) {
  for (size_t n = count; n > 0; n--)
    if (text[n - 1] == '\n' || (text[n - 1] == '\r' && n < count)) return n;
  return 0;
}

void tws_line_add(tws_line *line, int writer, tws_shared_output *outlet, const char *text, size_t count) {
  if (!line->text) line->text = tws_calloc(TWS_LINE_MOST, 1);
  if (!line->text) {
    put(outlet, writer, text, count); /* a line that is too long is written in segments */
    count = 0;
  }
  while (count > 0) {
    const size_t room = TWS_LINE_MOST - line->count, taken = count < room ? count : room;
    memcpy(line->text + line->count, text, taken);
    line->count += taken;
    text += taken;
    count -= taken;
    size_t whole = ended(line->text, line->count);
    if (whole == 0 && line->count == TWS_LINE_MOST) whole = line->count;
    put(outlet, writer, line->text, whole);
    memmove(line->text, line->text + whole, line->count - whole);
    line->count -= whole;
  }
  tws_shared_output_write(outlet);
}

void tws_line_end(tws_line *line, int writer, tws_shared_output *outlet) {
  put(outlet, writer, line->text, line->count);
  tws_free(line->text);
  *line = (tws_line){0};
  tws_shared_output_write(outlet);
}
