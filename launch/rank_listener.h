/* The launcher's listening sockets, and connections that have not yet proved which rank they are (strangers).
 *
 * No function here blocks. The number of strangers is limited, in all and for each address, and each has ten
 * seconds. One more closes the oldest; a rank whose connection is closed in this way connects again
 * (launch/contact.h). One epoll descriptor covers all of them, and a call handles a few events at most, so that
 * known ranks are not delayed. */
#ifndef TWS_LAUNCH_RANK_LISTENER_H
#define TWS_LAUNCH_RANK_LISTENER_H

#include <netinet/in.h>
#include <sys/types.h>
#include "base/status.h"
#include "launch/seal.h"

typedef struct tws_rank_listener tws_rank_listener;

/* A rank that has proved its identity. The caller owns the socket. */
typedef struct tws_connected_rank {
  int socket, rank;
  pid_t pid;           /* process ID of a local process of this user; 0: the rank is connected through the network */
  tws_session session; /* keys, if the rank is connected through the network */
} tws_connected_rank;
enum { TWS_NEWCOMERS = 32 };

/* Opens a local socket; `name` receives its address for the ranks. */
tws_code tws_rank_listener_open_local(int ranks, char *name, size_t size, tws_rank_listener **out, tws_error *err);
/* Opens ports on these addresses of this machine, for ranks that know the secret. */
tws_code tws_rank_listener_open_remote(int ranks, const struct in_addr *address, int count, const char *secret,
                                       char *name, size_t size, tws_rank_listener **out, tws_error *err);
/* becomes readable when tws_rank_listener_poll() is to be called */
int tws_rank_listener_fd(const tws_rank_listener *s);
int tws_rank_listener_poll(tws_rank_listener *s,
                           tws_connected_rank out[TWS_NEWCOMERS]); /* returns the number of newcomers */
void tws_rank_listener_close(tws_rank_listener *s);                /* NULL is allowed */

/* ---- the launcher's state of a handshake, without the socket ---- */
typedef struct tws_handshake {
  int rank; /* number in the received HELLO; -1: none has arrived */
  size_t have;
  uint8_t in[sizeof(tws_hello)];
  tws_session session;
} tws_handshake;
/* Consumes received bytes, at most tws_handshake_wanted_bytes(). Returns 1 if the rank is known, 0 if more bytes are
 * needed, -1 if the peer is no rank. *answers 1: `answer` is to be sent. secret NULL: a local socket, where HELLO
 * suffices. */
int tws_handshake_receive(tws_handshake *gate, const uint8_t *secret, int ranks, const uint8_t *bytes, size_t count,
                          tws_answer *answer, int *answers);
size_t tws_handshake_wanted_bytes(const tws_handshake *gate);

#endif
