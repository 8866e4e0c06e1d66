/* A short list of texts; the list does not own the texts. */
#ifndef TWS_BASE_STRINGS_H
#define TWS_BASE_STRINGS_H

enum { TWS_MAX_STRINGS = 64 };
typedef struct tws_strings {
  int count;
  const char *item[TWS_MAX_STRINGS];
} tws_strings;

#endif
