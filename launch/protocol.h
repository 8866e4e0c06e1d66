/* What the launcher and its ranks say to each other: one record a message, all of one size. The environment variable
 * says where: the name of a local socket, or, where ranks are on several nodes, "@PORT/SECRET/ADDRESS,ADDRESS...".
 *
 * A rank says HELLO (with the secret and its host's name) and is answered with WELCOME. On the local socket that
 * carries three open files: standard output, standard error, and the board, in which every rank has one line to say
 * what it is doing. A rank elsewhere sends its output (OUTPUT) and its line (ACTIVITY, every second: a sign of life)
 * instead. END asks ranks that end by themselves to do so; FAILED and DONE are a rank's last words. */
#ifndef TWS_LAUNCH_PROTOCOL_H
#define TWS_LAUNCH_PROTOCOL_H

#include <stdint.h>
#include "launch/launch.h"

#define TWS_LAUNCHER_VARIABLE "TWINSPEED_LAUNCHER"
enum { TWS_BOARD_LINE = 256, TWS_LAUNCH_FILES = 3, TWS_SECRET = 16, TWS_RECORD_TEXT = 2048 };

typedef enum tws_launch_word {
  TWS_RECORD_HELLO = 1,
  TWS_RECORD_WELCOME,
  TWS_RECORD_FAILED,
  TWS_RECORD_DONE,
  TWS_RECORD_END,
  TWS_RECORD_OUTPUT,
  TWS_RECORD_ACTIVITY,
  TWS_RECORD_NEWS
} tws_launch_word;

/* Where a rank is in its job. */
struct tws_rank_place {
  int32_t ranks, local_rank, local_ranks, node, nodes;
  int32_t given;        /* the devices below were chosen by a hostfile or its filters */
  int32_t device_count; /* of the node */
  int16_t device[256];
  char master[256];  /* the first host */
  double patience_s; /* a launcher that has been silent for so long is gone; 0: as long as it takes */
};

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

#endif
