/* One connection between the launcher and a rank, seen from either side: a local socket that preserves message
 * boundaries, or a network connection with sealed (encrypted and authenticated) records. */
#ifndef TWS_LAUNCH_LINK_H
#define TWS_LAUNCH_LINK_H

#include "launch/protocol.h"
#include "launch/seal.h"

enum { TWS_LINK_BYTES = sizeof(tws_launch_record) + TWS_SEAL_EXTRA };

typedef struct tws_link {
  int socket;           /* -1: not connected, or closed */
  int remote;           /* 1: the connection is through the network */
  int from_rank, ranks; /* sender and number of ranks that received records are checked against (tws_record_check) */
  tws_session session;  /* keys of a network connection */
  size_t have, pending; /* have: received bytes of the next record; pending: bytes that are still to be sent */
  int tells;            /* 1: the kernel reports the peer's receive window (Linux 5.4) */
  int shut;             /* 1: pending bytes wait for the peer's receive window to open, which poll() does not report */
  uint8_t in[TWS_LINK_BYTES], out[2 * TWS_LINK_BYTES];
} tws_link;

void tws_link_close(tws_link *link); /* closes the socket and erases the keys */
/* Receives the next record without blocking. Returns 1 if there is one, 0 if not yet, and -1 if the peer has closed the
 * connection, or has sent bytes that are no record of the session. `record` may be larger than the record that was
 * sent: the rest is undefined. */
int tws_link_receive(tws_link *link, tws_launch_record *record);
/* sends on a local socket; returns 0 if the peer has closed it */
int tws_link_send(tws_link *link, const tws_launch_record *record);
/* Sends without blocking; bytes that the socket does not accept stay pending. Returns 0 if too many bytes are pending
 * or the peer has closed the connection, else 1.
 *
 * Through the network, the kernel receives no more bytes than fit into the peer's receive window. Bytes that it cannot
 * send, because a stopped process does not read, would suspend TCP's keep-alive, which detects whether the other
 * machine answers. */
int tws_link_try_send(tws_link *link, const tws_launch_record *record);
int tws_link_flush(tws_link *link); /* sends pending bytes; returns 0 if the peer has closed the connection */

/* ---- detects whether the other machine answers, independent of the process there ---- */
/* Turns on TCP's keep-alive: the kernel probes the other machine when it has heard nothing for `seconds`. */
void tws_link_enable_keepalive(int socket, int seconds);
/* Returns the seconds since the other machine last answered; 0 if the socket is not a TCP socket. */
double tws_link_silence_s(int socket);

#endif
