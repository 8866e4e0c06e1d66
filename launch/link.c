#include "launch/link.h"
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h> /* the header of glibc lacks the field of the receive window */
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

void tws_link_close(tws_link *link) {
  if (link->socket >= 0) close(link->socket);
  link->socket = -1;
  link->have = link->pending = 0;
  tws_secret_wipe(&link->session, sizeof link->session);
}

static int receive_local(tws_link *link, tws_launch_record *record) {
  const ssize_t got = recv(link->socket, record, sizeof *record, MSG_DONTWAIT);
  /* The rank has closed its socket without reading everything that was sent to it; its last records may still be unread
   * here. */
  if (got < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNRESET)) return 0;
  return got > 0 && tws_record_check(record, (size_t)got, link->from_rank, link->ranks) ? 1 : -1;
}

int tws_link_receive(tws_link *link, tws_launch_record *record) {
  if (!link->remote) return receive_local(link, record);
  for (;;) {
    size_t whole = TWS_SEAL_HEAD;
    if (link->have >= TWS_SEAL_HEAD) whole = tws_sealed_bytes(link->in, sizeof *record);
    if (whole == 0) return -1;
    if (link->have >= TWS_SEAL_HEAD && link->have == whole) {
      link->have = 0;
      const size_t bytes = tws_unseal(&link->session, link->in, whole, record);
      return bytes > 0 && tws_record_check(record, bytes, link->from_rank, link->ranks) ? 1 : -1;
    }
    const ssize_t got = recv(link->socket, link->in + link->have, whole - link->have, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (got <= 0) return -1;
    link->have += (size_t)got;
  }
}

int tws_link_send(tws_link *link, const tws_launch_record *record) {
  const size_t bytes = tws_record_bytes(record);
  if (link->socket < 0 || link->remote) return 0;
  ssize_t sent;
  do sent = send(link->socket, record, bytes, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == (ssize_t)bytes;
}

/* ---- TCP state from the kernel ---- */

static int read_info(int socket, struct tcp_info *info, socklen_t *size) {
  *info = (struct tcp_info){0};
  return getsockopt(socket, IPPROTO_TCP, TCP_INFO, info, size) == 0;
}

void tws_link_enable_keepalive(int socket, int seconds) {
  const int on = 1, often = 120; /* keep-alive probes: the launcher decides before the kernel does */
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &often, sizeof often);
}

/* Returns the seconds since the last acknowledgement. While bytes are queued for a closed receive window, the kernel
 * sends window probes at intervals that grow, and no keep-alive probes. Then that time says nothing: the result is 0
 * until two probes are without an answer (one may be on its way). tws_link_flush() avoids this wherever the kernel
 * tells the receive window. */
double tws_link_silence_s(int socket) {
  struct tcp_info info;
  socklen_t size = sizeof info;
  int queued = 0;
  if (!read_info(socket, &info, &size)) return 0;
  if (ioctl(socket, SIOCOUTQ, &queued) == 0 && queued > 0 && info.tcpi_unacked == 0 && info.tcpi_probes < 2) return 0;
  return info.tcpi_last_ack_recv / 1000.0;
}

/* ---- sending ---- */

/* Returns the number of bytes that fit into the peer's receive window; SIZE_MAX where the kernel does not report it
 * (before Linux 5.4). The queue is read first: an acknowledgement between the two calls makes the result too small,
 * never too large. */
static size_t room_there(tws_link *link) {
  struct tcp_info info;
  socklen_t size = sizeof info;
  int queued = 0;
  if (!link->remote || ioctl(link->socket, SIOCOUTQ, &queued) != 0 || !read_info(link->socket, &info, &size))
    return SIZE_MAX;
  link->tells |= info.tcpi_snd_wnd > 0; /* the kernel returns zeros for fields that it does not have */
  if (!link->tells) return SIZE_MAX;
  return info.tcpi_snd_wnd > (unsigned)queued ? info.tcpi_snd_wnd - (unsigned)queued : 0;
}

int tws_link_flush(tws_link *link) {
  size_t done = 0;
  link->shut = 0;
  while (done < link->pending) {
    const size_t left = link->pending - done, room = room_there(link);
    link->shut = room == 0;
    if (link->shut) break;
    const ssize_t sent = send(link->socket, link->out + done, left < room ? left : room, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) return 0;
    if (sent <= 0) break;
    done += (size_t)sent;
  }
  memmove(link->out, link->out + done, link->pending - done);
  link->pending -= done;
  return 1;
}

int tws_link_try_send(tws_link *link, const tws_launch_record *record) {
  const size_t bytes = tws_record_bytes(record);
  if (link->socket < 0) return 0;
  if (!link->remote) return send(link->socket, record, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
  if (link->pending + bytes + TWS_SEAL_EXTRA > sizeof link->out) return 0;
  const size_t sealed = tws_seal(&link->session, record, bytes, link->out + link->pending);
  link->pending += sealed;
  return sealed > 0 && tws_link_flush(link);
}
