/* What the launcher and its ranks say to each other: one record a message, on a local socket whose name is in the
 * environment. The launcher answers HELLO with three open files: standard output, standard error, and the board, in
 * which every rank has one line to say what it is doing; it sends END when it is asked to end and ranks end by themselves. */
#ifndef TWS_LAUNCH_PROTOCOL_H
#define TWS_LAUNCH_PROTOCOL_H

#include <stdint.h>
#include "base/status.h"

#define TWS_LAUNCHER_VARIABLE "TWINSPEED_LAUNCHER"
enum { TWS_BOARD_LINE = 256, TWS_LAUNCH_FILES = 3 };

typedef enum tws_launch_word { TWS_RECORD_HELLO = 1, TWS_RECORD_FAILED, TWS_RECORD_DONE, TWS_RECORD_END } tws_launch_word;
typedef struct tws_launch_record {
  uint32_t kind;
  int32_t rank;
  tws_error error; /* FAILED */
} tws_launch_record;

#endif
