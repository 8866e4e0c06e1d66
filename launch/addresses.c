#include "launch/addresses.h"
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"

static int is_loopback(struct in_addr address) {
  return ntohl(address.s_addr) >> 24 == IN_LOOPBACKNET;
}

/* Adds an address that is not in the list yet. Loopback addresses are tried last: on another machine they denote that
 * machine itself. */
static int add(struct in_addr address, struct in_addr *out, int count) {
  int at = count;
  for (int i = 0; i < count; i++)
    if (out[i].s_addr == address.s_addr) return count;
  if (count == TWS_MOST_ADDRESSES) return count;
  for (; !is_loopback(address) && at > 0 && is_loopback(out[at - 1]); at--) out[at] = out[at - 1];
  out[at] = address;
  return count + 1;
}

/* Determines the address of this machine that packets to `to` would carry. It connects a datagram socket, which sends
 * no packet. */
static int source_towards(const struct sockaddr_in *to, struct in_addr *source) {
  struct sockaddr_in here = {0};
  socklen_t size = sizeof here;
  const int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int found = s >= 0 && connect(s, (const struct sockaddr *)to, sizeof *to) == 0 &&
                    getsockname(s, (struct sockaddr *)&here, &size) == 0;
  if (s >= 0) close(s);
  *source = here.sin_addr;
  return found;
}

static int add_host(const char *name, struct in_addr *out, int *count) {
  const struct addrinfo wanted = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM};
  struct addrinfo *list = NULL;
  int found = 0;
  if (getaddrinfo(name, "9", &wanted, &list) != 0) return 0;
  for (const struct addrinfo *i = list; i; i = i->ai_next) {
    struct in_addr source;
    if (i->ai_addrlen != sizeof(struct sockaddr_in) ||
        !source_towards((const struct sockaddr_in *)(const void *)i->ai_addr, &source))
      continue;
    *count = add(source, out, *count);
    found = 1;
  }
  freeaddrinfo(list);
  return found;
}

/* Reads the output of a program, at most `size` - 1 bytes; returns 1 if the program ends within five seconds. */
static int read_program(char *const *argv, char *text, size_t size) {
  const double until = tws_clock_s() + 5.0;
  int ends[2], status = 0;
  size_t count = 0;
  if (pipe2(ends, O_CLOEXEC) != 0) return 0;
  const pid_t child = fork();
  if (child == 0) {
    const int null = open("/dev/null", O_RDWR);
    dup2(null, STDIN_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    execvp(argv[0], argv);
    _exit(127);
  }
  close(ends[1]);
  while (child > 0 && count + 1 < size) {
    struct pollfd wait = {.fd = ends[0], .events = POLLIN};
    const double left = until - tws_clock_s();
    if (left <= 0 || poll(&wait, 1, (int)(left * 1000) + 1) <= 0) break;
    const ssize_t got = read(ends[0], text + count, size - count - 1);
    if (got <= 0) break;
    count += (size_t)got;
  }
  text[count] = '\0';
  close(ends[0]);
  if (child <= 0) return 0;
  if (tws_clock_s() >= until) kill(child, SIGKILL);
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Determines the host name that ssh's configuration gives for an alias: `ssh -G HOST` prints it without connecting. */
static int ask_ssh(const char *remote_shell, const char *host, char *name, size_t size) {
  enum { MOST_WORDS = 32, ANSWER_BYTES = 1 << 16 };
  char words[1024], *argv[MOST_WORDS + 4], *rest = NULL, option[] = "-G", last[] = "--", asked[256];
  static char answer[ANSWER_BYTES];
  int count = 0;
  if (strlen(remote_shell) >= sizeof words || strlen(host) >= sizeof asked) return 0;
  strcpy(words, remote_shell);
  strcpy(asked, host);
  for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
    if (count == MOST_WORDS) return 0;
    argv[count++] = word;
  }
  const char *slash = count ? strrchr(argv[0], '/') : NULL;
  if (!count || strcmp(slash ? slash + 1 : argv[0], "ssh") != 0) return 0;
  argv[count++] = option;
  argv[count++] = last;
  argv[count++] = asked;
  argv[count] = NULL;
  if (!read_program(argv, answer, sizeof answer)) return 0;
  for (const char *line = answer; line; line = strchr(line, '\n')) {
    line += *line == '\n';
    const size_t length = strcspn(line, "\n");
    if (strncmp(line, "hostname ", 9) != 0 || length - 9 >= size) continue;
    snprintf(name, size, "%.*s", (int)length - 9, line + 9);
    return 1;
  }
  return 0;
}

static int add_all(struct in_addr *out) {
  struct ifaddrs *list = NULL;
  int count = 0;
  if (getifaddrs(&list) != 0) return 0;
  for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
    if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP) || i->ifa_flags & IFF_LOOPBACK)
      continue;
    count = add(((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr, out, count);
  }
  freeifaddrs(list);
  return add((struct in_addr){htonl(INADDR_LOOPBACK)}, out, count);
}

int tws_addresses_for_hosts(const tws_hosts *hosts, const char *remote_shell, struct in_addr out[TWS_MOST_ADDRESSES],
                            const char **unknown) {
  char alias[256];
  int count = 0;
  *unknown = NULL;
  for (int h = 0; hosts && h < hosts->count && !*unknown; h++) {
    const char *name = hosts->host[h].name;
    const int known =
        add_host(name, out, &count) ||
        (remote_shell && ask_ssh(remote_shell, name, alias, sizeof alias) && add_host(alias, out, &count));
    if (!known) *unknown = name;
  }
  return count == 0 || *unknown ? add_all(out) : count;
}
