/* Output of a job's ranks: it comes from pipes of ranks on this machine and from records of the others, and goes to
 * the launcher's standard output and error, or to a log of each rank, in whole lines (launch/lines.h). A local rank
 * whose output is a terminal, a log or the null device writes there itself. */
#ifndef TWS_LAUNCH_PRINTED_H
#define TWS_LAUNCH_PRINTED_H

#include <poll.h>
#include <stddef.h>
#include "base/status.h"

enum { TWS_PRINTED_POLLS = 3 };

typedef struct tws_printed tws_printed;
/* Opens the output of `ranks` ranks. files: standard output and error; log[rank]: the rank's log file, or -1. The
 * caller owns all files. */
tws_code tws_printed_open(int ranks, const int files[2], const int *log, tws_printed **out, tws_error *err);
void tws_printed_close(tws_printed *o); /* NULL is allowed */

/* Returns two files that a local rank writes its standard output and error to. *own 1: the caller closes them after it
 * has passed them to the rank. */
tws_code tws_printed_files(tws_printed *o, int rank, int files[2], int *own, tws_error *err);
void tws_printed_add(tws_printed *o, int rank, int stream, const char *text, size_t count);
void tws_printed_end(tws_printed *o, int rank); /* called when a rank on another node prints no more */

/* Returns 1 if the output is full, and nothing more is to be added until it has been written. */
int tws_printed_waits(const tws_printed *o);
void tws_printed_polls(const tws_printed *o, struct pollfd polls[TWS_PRINTED_POLLS]);
void tws_printed_handle_events(tws_printed *o, const struct pollfd polls[TWS_PRINTED_POLLS]);
int tws_printed_done(tws_printed *o);         /* called after the last rank has ended; returns 1 if all output is
                                               * written */
int tws_printed_failed(const tws_printed *o); /* returns the errno of a failed write; 0: none has failed */

#endif
