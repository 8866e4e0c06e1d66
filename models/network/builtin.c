#include <ctype.h>
#include <string.h>

#include "models/network/build.h"

const char *tws_network_builtin(const char *name) {
  static const struct {
    const char *name, *text;
  } models[] = {
#define MODEL(name_, text_) {.name = name_, .text = (text_)},
#include "models/network/builtin.def"
  };
  for (size_t i = 0; i < sizeof models / sizeof *models; i++)
    if (strcmp(models[i].name, name) == 0) return models[i].text;
  return NULL;
}

/* Removes every occurrence of a part of a name. */
static void remove_part(char *name, const char *part) {
  const size_t length = strlen(part);
  for (char *at; (at = strstr(name, part)) != NULL;) memmove(at, at + length, strlen(at + length) + 1);
}

const char *tws_network_builtin_of_hub(const char *id) {
  /* "" first: bert-base is a name, of which "-base" is no part */
  static const char *const parts[] = {"", "-uncased", "meta-", "-instruct", "-chat", "-hf", "-it", "-base"};
  const char *slash = strrchr(id, '/');
  char name[64];
  const char *const *names = tws_network_builtin_names();
  const size_t length = strlen(slash ? slash + 1 : id);
  if (length >= sizeof name || (slash && strchr(id, '/') != slash)) return NULL;
  for (size_t i = 0; i <= length; i++) name[i] = (char)tolower((unsigned char)(slash ? slash + 1 : id)[i]);
  for (size_t part = 0; part < sizeof parts / sizeof *parts; part++) {
    if (*parts[part]) remove_part(name, parts[part]);
    for (int i = 0; names[i]; i++)
      if (strcmp(names[i], name) == 0) return names[i];
  }
  return NULL;
}

const char *const *tws_network_builtin_names(void) {
  static const char *const names[] = {
#define MODEL(name_, text_) name_,
#include "models/network/builtin.def"
      NULL};
  return names;
}
