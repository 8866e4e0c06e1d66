#include "launch/rank_listener.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/log.h"
#include "base/memory.h"

enum { MOST_LISTENERS = 32, MOST_STRANGERS = 256, LEAST_STRANGERS = 16, ACCEPTED_AT_ONCE = 32 };
static const double time_s = 10.0; /* seconds that each stranger has to prove its identity */

typedef struct stranger {
  int socket; /* -1: the slot is free */
  pid_t pid;
  uint32_t address;
  double since_s;
  tws_handshake gate;
} stranger;

struct tws_rank_listener {
  int events, timer, ranks, remote;
  int count, most, most_of_one; /* count: number of slots; most: maximum number of strangers; most_of_one: maximum for
                                 * one address */
  int listeners, listener[MOST_LISTENERS];
  int resting; /* the listeners are not polled until the timer expires: this process may open no more files */
  uint8_t secret[TWS_SECRET];
  stranger *place;
};

/* ---- the gate ---- */

size_t tws_handshake_wanted_bytes(const tws_handshake *gate) {
  return (gate->rank < 0 ? sizeof(tws_hello) : TWS_RANDOM) - gate->have;
}

int tws_handshake_receive(tws_handshake *gate, const uint8_t *secret, int ranks, const uint8_t *bytes, size_t count,
                          tws_answer *answer, int *answers) {
  *answers = 0;
  if (count > tws_handshake_wanted_bytes(gate)) return -1;
  memcpy(gate->in + gate->have, bytes, count);
  gate->have += count;
  if (tws_handshake_wanted_bytes(gate) > 0) return 0;
  gate->have = 0;
  if (gate->rank >= 0) return tws_proof_check(&gate->session, gate->in) ? 1 : -1;
  tws_hello hello;
  memcpy(&hello, gate->in, sizeof hello);
  gate->rank = tws_hello_rank(&hello, ranks);
  if (gate->rank < 0) return -1;
  if (!secret) return 1;
  if (!tws_hello_answer(secret, &hello, answer, &gate->session)) return -1;
  *answers = 1;
  return 0;
}

/* ---- places ---- */

static void leave(stranger *one) {
  if (one->socket >= 0) close(one->socket);
  tws_secret_wipe(one, sizeof *one);
  one->socket = -1;
}

/* Returns a free slot or, if there is none, the slot of the oldest stranger, which is closed. If the address already
 * has its maximum, its own oldest stranger is closed. */
static stranger *find_place(tws_rank_listener *s, uint32_t address) {
  stranger *free_one = NULL, *oldest = NULL, *own = NULL;
  int count = 0;
  for (int i = 0; i < s->most; i++) {
    stranger *one = &s->place[i];
    if (one->socket < 0) {
      free_one = one;
      continue;
    }
    if (!oldest || one->since_s < oldest->since_s) oldest = one;
    if (one->address != address) continue;
    count++;
    if (!own || one->since_s < own->since_s) own = one;
  }
  stranger *place = count >= s->most_of_one ? own : free_one ? free_one : oldest;
  leave(place);
  return place;
}

static void watch(tws_rank_listener *s, int file, int place) {
  struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)place};
  epoll_ctl(s->events, EPOLL_CTL_ADD, file, &event);
}

static void watch_listeners(tws_rank_listener *s, int yes) {
  for (int i = 0; i < s->listeners; i++) {
    struct epoll_event event = {.events = yes ? EPOLLIN : 0, .data.u32 = (uint32_t)(s->most + 1 + i)};
    epoll_ctl(s->events, EPOLL_CTL_MOD, s->listener[i], &event);
  }
  s->resting = !yes;
}

static void set_timer(tws_rank_listener *s, long nanoseconds) {
  const struct itimerspec when = {
      .it_value = {.tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000}};
  timerfd_settime(s->timer, 0, &when, NULL);
}

/* Makes room when this process may open no more files: closes the oldest stranger, or pauses the listeners for a
 * moment. */
static void make_room(tws_rank_listener *s) {
  int closed = 0;
  for (int i = 0; i < s->most; i++) {
    closed += s->place[i].socket >= 0;
    leave(&s->place[i]);
  }
  if (closed) return;
  watch_listeners(s, 0);
  set_timer(s, 100000000);
}

static void accept_some(tws_rank_listener *s, int listener) {
  for (int i = 0; i < ACCEPTED_AT_ONCE; i++) {
    union {
      struct sockaddr any;
      struct sockaddr_in in;
      struct sockaddr_un un;
    } from = {0};
    socklen_t size = sizeof from;
    const int socket = accept4(listener, &from.any, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) make_room(s);
    if (socket < 0) return;
    struct ucred who = {0};
    size = sizeof who;
    if (!s->remote &&
        /* the process belongs to another user */
        (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 || who.uid != geteuid())) {
      close(socket);
      continue;
    }
    const int one = 1;
    if (s->remote) setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    stranger *place = find_place(s, s->remote ? from.in.sin_addr.s_addr : 0);
    *place = (stranger){.socket = socket,
                        .pid = s->remote ? 0 : who.pid,
                        .address = s->remote ? from.in.sin_addr.s_addr : 0,
                        .since_s = tws_clock_s(),
                        .gate.rank = -1};
    watch(s, socket, (int)(place - s->place));
    if (!s->resting) set_timer(s, 1000000000);
  }
}

/* Reads from a stranger. Returns 1 if it has become a known rank, and 0 if it has not yet, or if its connection is
 * closed. */
static int hear(tws_rank_listener *s, stranger *one) {
  uint8_t bytes[sizeof(tws_hello)];
  tws_answer answer;
  int answers = 0, known = 0;
  for (int turns = 0; turns < 4 && known == 0; turns++) {
    const ssize_t got = recv(one->socket, bytes, tws_handshake_wanted_bytes(&one->gate), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    known = got <= 0 ? -1
                     : tws_handshake_receive(&one->gate, s->remote ? s->secret : NULL, s->ranks, bytes, (size_t)got,
                                             &answer, &answers);
    if (answers && send(one->socket, &answer, sizeof answer, MSG_NOSIGNAL) != (ssize_t)sizeof answer) known = -1;
  }
  if (known < 0) leave(one);
  return known > 0;
}

static void take_timer(tws_rank_listener *s) {
  uint64_t ticks;
  int left = 0;
  if (read(s->timer, &ticks, sizeof ticks) < 0) return;
  if (s->resting) watch_listeners(s, 1);
  for (int i = 0; i < s->most; i++) {
    if (s->place[i].socket >= 0 && tws_clock_s() - s->place[i].since_s > time_s) leave(&s->place[i]);
    left += s->place[i].socket >= 0;
  }
  if (left) set_timer(s, 1000000000);
}

int tws_rank_listener_fd(const tws_rank_listener *s) {
  return s->events;
}

int tws_rank_listener_poll(tws_rank_listener *s, tws_connected_rank out[TWS_NEWCOMERS]) {
  struct epoll_event event[TWS_NEWCOMERS];
  int found = 0;
  const int events = epoll_wait(s->events, event, TWS_NEWCOMERS, 0);
  /* Known connections are handled before new ones: a new one may replace the oldest. */
  for (int i = 0; i < events; i++) {
    const int at = (int)event[i].data.u32;
    if (at >= s->most || s->place[at].socket < 0 || !hear(s, &s->place[at])) continue;
    stranger *one = &s->place[at];
    out[found++] = (tws_connected_rank){
        .socket = one->socket, .rank = one->gate.rank, .pid = one->pid, .session = one->gate.session};
    epoll_ctl(s->events, EPOLL_CTL_DEL, one->socket, NULL);
    one->socket = -1; /* the socket belongs to the caller now */
    leave(one);
  }
  for (int i = 0; i < events; i++) {
    const int at = (int)event[i].data.u32;
    if (at == s->most) take_timer(s);
    if (at > s->most) accept_some(s, s->listener[at - s->most - 1]);
  }
  return found;
}

/* ---- opening and closing ---- */

/* Returns the number of connections that may be open in addition to the files that the job needs. */
static int most_strangers(int ranks) {
  struct rlimit files;
  const rlim_t others = 64 + 8 * (rlim_t)ranks;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return LEAST_STRANGERS + ranks;
  const rlim_t wanted = others + MOST_STRANGERS + (rlim_t)ranks;
  if (files.rlim_cur < wanted) {
    files.rlim_cur = files.rlim_max == RLIM_INFINITY || files.rlim_max > wanted ? wanted : files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0) getrlimit(RLIMIT_NOFILE, &files);
  }
  if (files.rlim_cur >= wanted) return MOST_STRANGERS + ranks;
  return files.rlim_cur > others + LEAST_STRANGERS ? (int)(files.rlim_cur - others) : LEAST_STRANGERS;
}

static tws_rank_listener *create(int ranks, int remote) {
  tws_rank_listener *s = tws_calloc(1, sizeof *s);
  if (!s) return NULL;
  s->ranks = ranks;
  s->remote = remote;
  s->most = most_strangers(ranks);
  s->most_of_one = remote ? s->most - s->most / 4 : s->most;
  s->events = epoll_create1(EPOLL_CLOEXEC);
  s->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  s->place = tws_calloc((size_t)s->most, sizeof *s->place);
  for (int i = 0; s->place && i < s->most; i++) s->place[i].socket = -1;
  if (s->events >= 0 && s->timer >= 0 && s->place) {
    watch(s, s->timer, s->most);
    return s;
  }
  tws_rank_listener_close(s);
  return NULL;
}

static int listen_on(tws_rank_listener *s, int listener) {
  if (s->listeners == MOST_LISTENERS || listen(listener, SOMAXCONN) != 0) {
    close(listener);
    return 0;
  }
  watch(s, listener, s->most + 1 + s->listeners);
  s->listener[s->listeners++] = listener;
  return 1;
}

tws_code tws_rank_listener_open_local(int ranks, char *name, size_t size, tws_rank_listener **out, tws_error *err) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  socklen_t length = sizeof(sa_family_t); /* the kernel chooses an abstract socket name, which leaves no entry in the
                                           * file system */
  *out = create(ranks, 0);
  if (!*out) return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot watch a local socket: %s", strerror(errno));
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) != 0 || !listen_on(*out, listener))
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot open a local socket: %s", strerror(errno));
  length = sizeof address;
  if (getsockname(listener, (struct sockaddr *)&address, &length) != 0)
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot name a local socket: %s", strerror(errno));
  const size_t letters = (size_t)length - offsetof(struct sockaddr_un, sun_path) - 1;
  snprintf(name, size, "%.*s", (int)letters, address.sun_path + 1);
  return TWS_OK;
}

tws_code tws_rank_listener_open_remote(int ranks, const struct in_addr *address, int count, const char *secret,
                                       char *name, size_t size, tws_rank_listener **out, tws_error *err) {
  char text[INET_ADDRSTRLEN];
  size_t n = 0;
  *out = create(ranks, 1);
  if (!*out || !tws_secret_read(secret, (*out)->secret))
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot watch a port for ranks on other nodes: %s", strerror(errno));
  for (int i = 0; i < count; i++) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr = address[i]};
    socklen_t length = sizeof here;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    inet_ntop(AF_INET, &here.sin_addr, text, sizeof text);
    if (listener < 0 || bind(listener, (struct sockaddr *)&here, length) != 0 || !listen_on(*out, listener) ||
        getsockname(listener, (struct sockaddr *)&here, &length) != 0)
      return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot open a port of %s for ranks on other nodes: %s", text,
                      strerror(errno));
    if (n + 32 < size) n += (size_t)snprintf(name + n, size - n, "%s%s:%d", i ? "," : "@", text, ntohs(here.sin_port));
  }
  return TWS_OK;
}

void tws_rank_listener_close(tws_rank_listener *s) {
  if (!s) return;
  for (int i = 0; s->place && i < s->most; i++) leave(&s->place[i]);
  for (int i = 0; i < s->listeners; i++) close(s->listener[i]);
  if (s->events >= 0) close(s->events);
  if (s->timer >= 0) close(s->timer);
  tws_free(s->place);
  tws_secret_wipe(s, sizeof *s);
  tws_free(s);
}
