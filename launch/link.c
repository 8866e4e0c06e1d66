#include "launch/link.h"
#include <errno.h>
#include <string.h>
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
  /* A reset comes before the last words of a rank that has not read everything that it was told. */
  if (got < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNRESET)) return 0;
  return got > 0 && tws_record_check(record, (size_t)got, link->from_rank, link->ranks) ? 1 : -1;
}

int tws_link_receive(tws_link *link, tws_launch_record *record) {
  if (!link->far) return receive_local(link, record);
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
  if (link->socket < 0 || link->far) return 0;
  ssize_t sent;
  do sent = send(link->socket, record, bytes, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == (ssize_t)bytes;
}

int tws_link_flush(tws_link *link) {
  size_t done = 0;
  while (done < link->pending) {
    const ssize_t sent = send(link->socket, link->out + done, link->pending - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) return 0;
    if (sent <= 0) break;
    done += (size_t)sent;
  }
  memmove(link->out, link->out + done, link->pending - done);
  link->pending -= done;
  return 1;
}

int tws_link_tell(tws_link *link, const tws_launch_record *record) {
  const size_t bytes = tws_record_bytes(record);
  if (link->socket < 0) return 0;
  if (!link->far) return send(link->socket, record, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
  if (link->pending + bytes + TWS_SEAL_EXTRA > sizeof link->out) return 0;
  const size_t sealed = tws_seal(&link->session, record, bytes, link->out + link->pending);
  link->pending += sealed;
  return sealed > 0 && tws_link_flush(link);
}
