/* One connection between the launcher and a rank, seen from either side: a local socket that keeps the bounds of
 * messages, or one through the network, on which records are sealed. */
#ifndef TWS_LAUNCH_LINK_H
#define TWS_LAUNCH_LINK_H

#include "launch/protocol.h"
#include "launch/seal.h"

enum { TWS_LINK_BYTES = sizeof(tws_launch_record) + TWS_SEAL_EXTRA };

typedef struct tws_link {
  int socket;           /* -1: there is none, or no more */
  int far;              /* through the network */
  int from_rank, ranks; /* whose records come from it (tws_record_check) */
  tws_session session;  /* of a far one */
  size_t have, pending; /* bytes of the next record that came; that are still to be sent */
  int tells;            /* the kernel tells the other side's receive window (Linux 5.4) */
  int shut;             /* pending bytes wait for the receive window to open, which poll() does not report */
  uint8_t in[TWS_LINK_BYTES], out[2 * TWS_LINK_BYTES];
} tws_link;

void tws_link_close(tws_link *link); /* forgets the keys */
/* The next record, without waiting. 1: there is one; 0: not yet; -1: the other side has closed the connection, or has
 * sent what is no record of the session. A record may be larger than what was sent: what follows is undefined. */
int tws_link_receive(tws_link *link, tws_launch_record *record);
int tws_link_send(tws_link *link, const tws_launch_record *record); /* of a local one; 0: the other side is gone */
/* Without waiting: what the socket does not take now stays pending. 0: too much is, or the other side is gone.
 *
 * Through the network the kernel gets no more bytes than fit into the other side's receive window. Bytes that it cannot
 * send, because a stopped process does not read, would suspend TCP's keep-alive, which tells whether the other machine
 * answers. */
int tws_link_tell(tws_link *link, const tws_launch_record *record);
int tws_link_flush(tws_link *link); /* 0: the other side is gone */

/* ---- whether the other machine answers, whatever becomes of the process there ---- */
/* Turns on TCP's keep-alive: the kernel probes the other machine when it has heard nothing for `seconds`. */
void tws_link_ask(int socket, int seconds);
/* Seconds since the other machine last answered; 0 where the socket is none of TCP. */
double tws_link_silence_s(int socket);

#endif
