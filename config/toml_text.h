/* Private to config/: converts TOML to the text of a JSON document. It is implemented in C++, since toml++ has no
 * interface for C. */
#ifndef TWS_CONFIG_TOML_TEXT_H
#define TWS_CONFIG_TOML_TEXT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tws_toml_text {
  char *json;      /* from malloc(); NULL: an error */
  int unsupported; /* the build has no toml++ */
  int line, column;
  char message[200];
} tws_toml_text;
void tws_toml_to_json(const char *text, size_t length, tws_toml_text *out);

#ifdef __cplusplus
}
#endif

#endif
