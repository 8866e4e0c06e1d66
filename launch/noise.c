#include "launch/noise.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/number.h"

/* Returns the rank named in "process rank 3 with PID 71 on node ..." or "Process name: [[8007,1],3]", or -1. */
static int named_rank(const char *text) {
  const char *rank = strstr(text, "process rank "), *name = strstr(text, "Process name: [["), *rest;
  const char *number = rank ? rank + strlen("process rank ") : NULL;
  int value;
  if (!number && name) number = strstr(name, "],");
  if (number && !rank) number += 2;
  return number && tws_text_int(number, &rest, 0, INT32_MAX, &value) ? value : -1;
}

int tws_noise_read(int file, char *text, size_t size, int *explains) {
  const ssize_t got = pread(file, text, size - 1, 0);
  text[got > 0 ? got : 0] = '\0';
  const int rank = named_rank(text);
  *explains = strstr(text, "----------------") != NULL;
  char *to = text;
  for (const char *from = text; *from; from++) {
    const int blank = isspace((unsigned char)*from) || (*from == '-' && from[1] == '-') ||
                      (from > text && *from == '-' && from[-1] == '-');
    if (!blank)
      *to++ = *from;
    else if (to > text && to[-1] != ' ')
      *to++ = ' ';
  }
  *to = '\0';
  return rank;
}
