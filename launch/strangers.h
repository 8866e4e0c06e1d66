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
  pid_t pid;           /* process ID of a local process of this user; 0: the rank is connected through the network */
  tws_session session; /* keys, if the rank is connected through the network */
} tws_newcomer;
enum { TWS_NEWCOMERS = 32 };

/* Opens a local socket; `name` receives its address for the ranks. */
tws_code tws_strangers_here(int ranks, char *name, size_t size, tws_strangers **out, tws_error *err);
/* Opens ports on these addresses of this machine, for ranks that know the secret. */
tws_code tws_strangers_remote(int ranks, const struct in_addr *address, int count, const char *secret, char *name,
                              size_t size, tws_strangers **out, tws_error *err);
/* becomes readable when tws_strangers_look() is to be called */
int tws_strangers_fd(const tws_strangers *s);
int tws_strangers_look(tws_strangers *s, tws_newcomer out[TWS_NEWCOMERS]); /* returns the number of newcomers */
void tws_strangers_close(tws_strangers *s);                                /* NULL is allowed */

/* ---- the launcher's state of a handshake, without the socket ---- */
typedef struct tws_gate {
  int rank; /* number in the received HELLO; -1: none has arrived */
  size_t have;
  uint8_t in[sizeof(tws_hello)];
  tws_session session;
} tws_gate;
/* Consumes received bytes, at most tws_gate_wants(). Returns 1 if the rank is known, 0 if more bytes are needed, -1 if
 * the peer is no rank. *answers 1: `answer` is to be sent. secret NULL: a local socket, where HELLO suffices. */
int tws_gate_take(tws_gate *gate, const uint8_t *secret, int ranks, const uint8_t *bytes, size_t count,
                  tws_answer *answer, int *answers);
size_t tws_gate_wants(const tws_gate *gate);

#endif
