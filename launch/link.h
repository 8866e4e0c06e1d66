/* One connection between the launcher and a rank, seen from either side: a local socket that preserves message
 * boundaries, or a network connection with sealed (encrypted and authenticated) records. */
#ifndef TWS_LAUNCH_LINK_H
#define TWS_LAUNCH_LINK_H

#include "launch/protocol.h"
#include "launch/seal.h"

enum { TWS_LINK_BYTES = sizeof(tws_launch_record) + TWS_SEAL_EXTRA };

typedef struct tws_link {
  int socket;           /* -1: not connected, or closed */
  int remote;           /* through the network */
  int from_rank, ranks; /* the sender of its records (tws_record_check) */
  tws_session session;  /* keys of a network connection */
  size_t have, pending; /* bytes of the next record that were received; bytes that are still to be sent */
  int tells;            /* the kernel reports the peer's receive window (Linux 5.4) */
  int shut;             /* pending bytes wait for the peer's receive window to open, which poll() does not report */
  uint8_t in[TWS_LINK_BYTES], out[2 * TWS_LINK_BYTES];
} tws_link;

void tws_link_close(tws_link *link); /* forgets the keys */
/* Returns the next record, without blocking. 1: there is one; 0: not yet; -1: the peer has closed the connection, or
 * has sent bytes that are no record of the session. `record` may be larger than the record that was sent: the rest
 * is undefined. */
int tws_link_receive(tws_link *link, tws_launch_record *record);
int tws_link_send(tws_link *link, const tws_launch_record *record); /* of a local one; 0: the peer is gone */
/* Sends without blocking; bytes that the socket does not accept stay pending. 0: too many are pending, or the peer is
 * gone.
 *
 * Through the network, the kernel receives no more bytes than fit into the peer's receive window. Bytes that it
 * cannot send, because a stopped process does not read, would suspend TCP's keep-alive, which detects whether the
 * other machine answers. */
int tws_link_tell(tws_link *link, const tws_launch_record *record);
int tws_link_flush(tws_link *link); /* 0: the peer is gone */

/* ---- detects whether the other machine answers, independent of the process there ---- */
/* Turns on TCP's keep-alive: the kernel probes the other machine when it has heard nothing for `seconds`. */
void tws_link_ask(int socket, int seconds);
/* Seconds since the other machine last answered; 0 where the socket is none of TCP. */
double tws_link_silence_s(int socket);

#endif
