/* Passes the output of ranks to the launcher's output in whole lines, without blocking the launcher on a slow reader.
 *
 * A line ends with a line feed, or with a carriage return that another character follows (a progress bar). A line
 * longer than TWS_LINE_MOST bytes is passed on in segments; a line that is incomplete when its rank ends is passed
 * on as it is. If a line of another rank follows such an incomplete line, a line feed is put between them. */
#ifndef TWS_LAUNCH_LINES_H
#define TWS_LAUNCH_LINES_H

#include <stddef.h>

enum { TWS_LINE_MOST = 64 * 1024 };

/* A file that several ranks write to. */
typedef struct tws_shared_output {
  int file;
  int failed; /* errno of the first failed write, after which output is discarded; EPIPE: the reader has closed the
               * pipe */
  int kind;   /* method of writing without blocking */
  int writer; /* 1 + writer of the incomplete last line; 0: the last line is complete */
  char *waiting;
  size_t count, capacity; /* count: bytes that the file has not accepted yet; capacity: size of their buffer */
} tws_shared_output;

/* An incomplete line of one rank. */
typedef struct tws_line {
  char *text;
  size_t count;
} tws_line;

void tws_shared_output_open(tws_shared_output *outlet, int file); /* the caller owns the file */
void tws_shared_output_close(tws_shared_output *outlet);
void tws_shared_output_write(tws_shared_output *outlet); /* writes as many bytes as the file accepts without blocking */
/* Appends text to the line of one rank and stream, and passes complete lines on; `writer` identifies the rank and
 * stream. */
void tws_line_add(tws_line *line, int writer, tws_shared_output *outlet, const char *text, size_t count);
/* passes the incomplete line on, when its rank has ended */
void tws_line_end(tws_line *line, int writer, tws_shared_output *outlet);

#endif
