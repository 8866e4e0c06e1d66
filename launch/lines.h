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
typedef struct tws_outlet {
  int file;
  int failed; /* errno of the first failed write, after which output is lost; EPIPE: its reader has closed it */
  int kind;   /* method of writing without blocking */
  int writer; /* writer of the incomplete line, + 1; 0: the last line is complete */
  char *waiting;
  size_t count, capacity; /* bytes that the file did not accept yet */
} tws_outlet;

/* An incomplete line of one rank. */
typedef struct tws_line {
  char *text;
  size_t count;
} tws_line;

void tws_outlet_open(tws_outlet *outlet, int file); /* the caller owns the file */
void tws_outlet_close(tws_outlet *outlet);
void tws_outlet_write(tws_outlet *outlet); /* as much as the file accepts without blocking */
/* `writer` identifies the rank and stream. */
void tws_line_add(tws_line *line, int writer, tws_outlet *outlet, const char *text, size_t count);
void tws_line_end(tws_line *line, int writer, tws_outlet *outlet); /* its rank writes no more */

#endif
