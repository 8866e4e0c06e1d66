/* A short list of texts that it does not own. */
#ifndef TWS_BASE_STRINGS_H
#define TWS_BASE_STRINGS_H

enum { TWS_MAX_STRINGS = 64 };
typedef struct tws_strings {
  int count;
  const char *item[TWS_MAX_STRINGS];
} tws_strings;

#endif
