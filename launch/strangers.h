/* The launcher's listening sockets, and connections that have not yet proved which rank they are (strangers).
 *
 * No function here blocks. The number of strangers is limited, in all and for each address, and each has ten
 * seconds. One more closes the oldest; a rank whose connection is closed in this way connects again
 * (launch/contact.h). One epoll descriptor covers all of them, and a call handles a few events at most, so that
 * known ranks are not delayed. */
#ifndef TWS_LAUNCH_STRANGERS_H
#define TWS_LAUNCH_STRANGERS_H

#include <netinet/in.h>
#include <sys/types.h>
#include "base/status.h"
#include "launch/seal.h"

typedef struct tws_strangers tws_strangers;

/* A rank that has proved its identity. The caller owns the socket. */
typedef struct tws_newcomer {
  int socket, rank;
  pid_t pid;           /* of a local process of this user; 0: through the network */
  tws_session session; /* through the network */
} tws_newcomer;
enum { TWS_NEWCOMERS = 32 };

/* Opens a local socket; `name` is its address for the ranks. */
tws_code tws_strangers_here(int ranks, char *name, size_t size, tws_strangers **out, tws_error *err);
/* Opens ports on these addresses of this machine, for ranks that know the secret. */
tws_code tws_strangers_remote(int ranks, const struct in_addr *address, int count, const char *secret, char *name,
                              size_t size, tws_strangers **out, tws_error *err);
int tws_strangers_fd(const tws_strangers *s);                              /* readable: call tws_strangers_look() */
int tws_strangers_look(tws_strangers *s, tws_newcomer out[TWS_NEWCOMERS]); /* returns how many there are */
void tws_strangers_close(tws_strangers *s);                                /* NULL is allowed */

/* ---- the launcher's state of a handshake, without the socket ---- */
typedef struct tws_gate {
  int rank; /* -1: HELLO has not arrived */
  size_t have;
  uint8_t in[sizeof(tws_hello)];
  tws_session session;
} tws_gate;
/* Consumes the bytes that arrived, at most tws_gate_wants(). 1: the rank is known; 0: more bytes are needed; -1: the
 * peer is no rank. *answers 1: `answer` is to be sent. secret NULL: a local socket, where HELLO suffices. */
int tws_gate_take(tws_gate *gate, const uint8_t *secret, int ranks, const uint8_t *bytes, size_t count,
                  tws_answer *answer, int *answers);
size_t tws_gate_wants(const tws_gate *gate);

#endif
