/* Messages between the launcher and its ranks. The environment variable TWINSPEED_LAUNCHER has the launcher's address:
 * the name of a local socket, or, where ranks are on several nodes, "@ADDRESS:PORT,ADDRESS:PORT...".
 *
 * A rank sends HELLO (launch/seal.h). On the local socket each side asks the kernel for the user of its peer;
 * through the network each side proves that it knows the job's secret, and every record after that is sealed. The
 * launcher then sends WELCOME. On the local socket that carries three open files: standard output, standard error,
 * and the board, shared memory with one line for every rank's current operation. A rank on another node sends its
 * output (OUTPUT) and its line (ACTIVITY, every second, which is its heartbeat) instead. END asks ranks to end by
 * themselves; FAILED and DONE are a rank's last records, and the launcher closes a network connection when it has
 * read one. */
#ifndef TWS_LAUNCH_PROTOCOL_H
#define TWS_LAUNCH_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>
#include "launch/launch.h"

#define TWS_LAUNCHER_VARIABLE "TWINSPEED_LAUNCHER"
/* The job's secret is passed in the environment of the programs that start ranks, never on a command line, and over
 * no other connection than the remote shell's. */
#define TWS_SECRET_VARIABLE "TWINSPEED_LAUNCHER_SECRET"
enum { TWS_BOARD_LINE = 256, TWS_LAUNCH_FILES = 3, TWS_RECORD_TEXT = 2048 };

typedef enum tws_launch_word {
  TWS_RECORD_WELCOME = 2,
  TWS_RECORD_FAILED,
  TWS_RECORD_DONE,
  TWS_RECORD_END,
  TWS_RECORD_OUTPUT,
  TWS_RECORD_ACTIVITY,
  TWS_RECORD_NEWS
} tws_launch_word;

/* A rank's position in its job. */
struct tws_rank_place {
  int32_t ranks, local_rank, local_ranks, node, nodes;
  int32_t given;        /* 1: a hostfile or its filters chose the devices below */
  int32_t device_count; /* of the node */
  int16_t device[TWS_MAX_SLOTS];
  char master[256];  /* the first host */
  double patience_s; /* the rank gives the launcher up when its machine has not answered for this long; 0: never */
};

/* A record. Only its first tws_record_bytes() bytes are sent. */
typedef struct tws_launch_record {
  uint32_t kind;
  int32_t rank;
  int32_t stream; /* OUTPUT: 0 standard output, 1 standard error */
  int32_t bytes;  /* OUTPUT: of the text */
  union {
    tws_error error;      /* FAILED */
    tws_rank_place place; /* WELCOME */
    char text[TWS_RECORD_TEXT];
  };
} tws_launch_record;

size_t tws_record_bytes(const tws_launch_record *record);
/* Returns 1 if the first `bytes` bytes are a record that this side accepts, with every number and text within its
 * bounds. from_rank: the sender is this rank of `ranks`; -1: the sender is the launcher. */
int tws_record_check(const tws_launch_record *record, size_t bytes, int from_rank, int ranks);

#endif
