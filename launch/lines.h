/* What ranks print reaches the launcher's output in whole lines, and the launcher does not wait for its reader.
 *
 * A line ends with a line feed, or with a carriage return that something follows (a bar of progress). One that grows
 * beyond TWS_LINE_MOST bytes is passed on in pieces; so is one that its rank has not ended when the rank ends. Where a
 * line of another rank follows such a piece, a line feed is put between them. */
#ifndef TWS_LAUNCH_LINES_H
#define TWS_LAUNCH_LINES_H

#include <stddef.h>

enum { TWS_LINE_MOST = 64 * 1024 };

/* A file that several ranks write to. */
typedef struct tws_outlet {
  int file;
  int failed; /* errno of the first write that failed: something is lost; EPIPE: its reader wants no more */
  int kind;   /* how it is written without waiting */
  int writer; /* whose line has not ended, + 1; 0: the last one has */
  char *waiting;
  size_t count, capacity; /* bytes that it did not take yet */
} tws_outlet;

/* A line of one rank that has not ended yet. */
typedef struct tws_line {
  char *text;
  size_t count;
} tws_line;

void tws_outlet_open(tws_outlet *outlet, int file); /* the file is the caller's */
void tws_outlet_close(tws_outlet *outlet);
void tws_outlet_write(tws_outlet *outlet); /* as much as the file takes at once */
/* `writer` is a number of the rank and stream. */
void tws_line_add(tws_line *line, int writer, tws_outlet *outlet, const char *text, size_t count);
void tws_line_end(tws_line *line, int writer, tws_outlet *outlet); /* its rank writes no more */

#endif
