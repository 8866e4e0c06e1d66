#include "launch/addresses.h"
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int add(struct in_addr address, struct in_addr *out, int count) {
  for (int i = 0; i < count; i++)
    if (out[i].s_addr == address.s_addr) return count;
  if (count < TWS_MOST_ADDRESSES) out[count++] = address;
  return count;
}

/* The address that packets to `to` would carry; a datagram socket sends none to find out. */
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

int tws_addresses_towards(const tws_hosts *hosts, struct in_addr out[TWS_MOST_ADDRESSES], const char **unknown) {
  int count = 0;
  *unknown = NULL;
  for (int h = 0; hosts && h < hosts->count && !*unknown; h++)
    if (!add_host(hosts->host[h].name, out, &count)) *unknown = hosts->host[h].name;
  return count == 0 || *unknown ? add_all(out) : count;
}
