#include "launch/contact.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "base/log.h"
#include "base/number.h"

enum { CONNECT_MS = 5000, ANSWER_MS = 10000, SECRET_MS = 10000, TRIES_S = 30 };

/* ---- the secret ---- */

/* Reads at most `size` - 1 characters and the line end, byte by byte: the bytes after the line are not this
 * program's. */
static int read_line(int file, char *line, size_t size) {
  for (size_t n = 0; n < size; n++) {
    struct pollfd wait = {.fd = file, .events = POLLIN};
    if (poll(&wait, 1, SECRET_MS) != 1 || read(file, line + n, 1) != 1) return 0;
    if (line[n] != '\n') continue;
    line[n] = '\0';
    return 1;
  }
  return 0;
}

tws_code tws_contact_secret(uint8_t secret[TWS_SECRET], tws_error *err) {
  char line[TWS_SECRET_TEXT + 2] = "", *given = getenv(TWS_SECRET_VARIABLE);
  int found = given && tws_secret_read(given, secret);
  if (given) {
    tws_secret_wipe(given, strlen(given)); /* erases the secret from the environment that /proc shows, too */
    unsetenv(TWS_SECRET_VARIABLE);
  } else if (!isatty(STDIN_FILENO)) {
    found = read_line(STDIN_FILENO, line, sizeof line) && tws_secret_read(line, secret);
    tws_secret_wipe(line, sizeof line);
  }
  if (found) return TWS_OK;
  return tws_fail(err, TWS_ENVIRONMENT, "the remote shell must pass its standard input on, and start a POSIX shell",
                  "the job's secret did not reach this process");
}

/* ---- on the launcher's machine ---- */

tws_code tws_contact_local(const char *name, int rank, tws_link *link, tws_error *err) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  struct ucred who = {0};
  socklen_t size = sizeof who;
  tws_hello hello;
  const size_t length = strlen(name);
  *link = (tws_link){.socket = -1, .from_rank = -1};
  if (length >= sizeof address.sun_path) return tws_fail(err, TWS_ENVIRONMENT, NULL, "the launcher's name is too long");
  memcpy(address.sun_path + 1, name, length); /* an abstract socket name begins with a zero byte */
  link->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (link->socket < 0 || connect(link->socket, (struct sockaddr *)&address,
                                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)) != 0)
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "%s", strerror(errno));
  if (getsockopt(link->socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 || who.uid != geteuid())
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "another user's process answers in its place");
  tws_hello_make(rank, &hello);
  if (send(link->socket, &hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello)
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "%s", strerror(errno));
  return TWS_OK;
}

/* ---- through the network ---- */

static int connect_within(const struct sockaddr_in *address) {
  const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;
  struct pollfd wait = {.fd = s, .events = POLLOUT};
  int failed = 0;
  socklen_t size = sizeof failed;
  if (s < 0) return -1;
  if (connect(s, (const struct sockaddr *)address, sizeof *address) != 0 && errno != EINPROGRESS)
    failed = errno;
  else if (poll(&wait, 1, CONNECT_MS) != 1 || getsockopt(s, SOL_SOCKET, SO_ERROR, &failed, &size) != 0)
    failed = ETIMEDOUT;
  if (failed) {
    close(s);
    errno = failed;
    return -1;
  }
  fcntl(s, F_SETFL, fcntl(s, F_GETFL) & ~O_NONBLOCK);
  setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return s;
}

/* Receives `bytes` bytes. Returns 1, 0 on a timeout, or -1 if the other side has closed the connection. */
static int receive_within(int s, void *to, size_t bytes) {
  const double until = tws_clock_s() + ANSWER_MS / 1000.0;
  for (size_t have = 0; have < bytes;) {
    struct pollfd wait = {.fd = s, .events = POLLIN};
    const double left = until - tws_clock_s();
    if (left <= 0 || poll(&wait, 1, (int)(left * 1000) + 1) < 1) return 0;
    const ssize_t got = recv(s, (char *)to + have, bytes - have, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return -1;
    have += (size_t)got;
  }
  return 1;
}

/* Results of an attempt to connect. After SILENT and CLOSED the attempt is repeated. */
typedef enum outcome { UNREACHABLE, STRANGER, SILENT, CLOSED, FOUND } outcome;

/* Lets both sides prove that they know the secret, and returns the outcome. */
static outcome prove(int s, const uint8_t secret[TWS_SECRET], int rank, tws_session *session) {
  tws_hello hello;
  tws_answer answer;
  uint8_t proof[TWS_RANDOM];
  if (!tws_hello_make(rank, &hello)) return SILENT;
  if (send(s, &hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello) return CLOSED;
  const int got = receive_within(s, &answer, sizeof answer);
  if (got <= 0) return got < 0 ? CLOSED : SILENT;
  if (!tws_answer_check(secret, &hello, &answer, session, proof)) return STRANGER;
  return send(s, proof, sizeof proof, MSG_NOSIGNAL) == (ssize_t)sizeof proof ? FOUND : CLOSED;
}

/* Parses the next "ADDRESS:PORT" of a list, and returns the position after it; NULL: the list has no valid one. */
static const char *next_address(const char *list, struct sockaddr_in *out) {
  char text[INET_ADDRSTRLEN + 8];
  int port;
  const size_t length = strcspn(list, ",");
  *out = (struct sockaddr_in){.sin_family = AF_INET};
  if (length >= sizeof text) return NULL;
  snprintf(text, sizeof text, "%.*s", (int)length, list);
  char *colon = strchr(text, ':');
  if (!colon || !tws_text_int(colon + 1, NULL, 1, UINT16_MAX, &port)) return NULL;
  *colon = '\0';
  out->sin_port = htons((uint16_t)port);
  if (inet_pton(AF_INET, text, &out->sin_addr) != 1) return NULL;
  return list + length + (list[length] == ',');
}

/* Waits for a time that differs between ranks, so that ranks whose connections were closed together do not retry
 * together. */
static void wait_a_little(int rank, int tries) {
  const struct timespec nap = {.tv_nsec = 20000000L + (long)((unsigned)(rank * 37 + tries * 61) % 181) * 1000000L};
  nanosleep(&nap, NULL);
}

tws_code tws_contact_remote(const char *name, const uint8_t secret[TWS_SECRET], int rank, tws_link *link,
                            tws_error *err) {
  const char *says[] = {"", "what answers there does not know the job's secret", "no answer",
                        "it closes the connection"};
  const double until = tws_clock_s() + TRIES_S;
  *link = (tws_link){.socket = -1, .remote = 1, .from_rank = -1};
  if (!tws_seal_available())
    return tws_fail(err, TWS_ENVIRONMENT, TWS_SEAL_HINT, "this program was built without libsodium");
  for (int tries = 0;; tries++) {
    outcome best = UNREACHABLE;
    for (const char *at = name + 1; *at;) {
      struct sockaddr_in address;
      at = next_address(at, &address);
      if (!at) return tws_fail(err, TWS_ENVIRONMENT, NULL, "\"%.80s\" is no list of a launcher's addresses", name);
      const int s = connect_within(&address);
      if (s < 0) says[UNREACHABLE] = strerror(errno);
      const outcome now = s >= 0 ? prove(s, secret, rank, &link->session) : errno == ETIMEDOUT ? SILENT : UNREACHABLE;
      if (now == FOUND) {
        link->socket = s;
        return TWS_OK;
      }
      if (s >= 0) close(s);
      if (now > best) best = now;
    }
    if (best < SILENT || tws_clock_s() > until) return tws_fail(err, TWS_ENVIRONMENT, NULL, "%s", says[best]);
    wait_a_little(rank, tries);
  }
}
