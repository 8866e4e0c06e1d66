/* Private to config/: what was given, as it was given. A configuration shares its source documents with its clones;
 * overrides from the command line lie on top and win. */
#ifndef TWS_CONFIG_STORE_H
#define TWS_CONFIG_STORE_H

#include "config/keys.h"
#include "config/refusals.h"

typedef struct tws_source {
  int users; /* atomic */
  int command_line;
  tws_json *json;
} tws_source;

typedef struct tws_override {
  const tws_key *key;
  char *path;
  tws_source *source;
  const cJSON *item;
} tws_override;

struct tws_config_store {
  tws_source *origin; /* the file */
  tws_override *overrides;
  size_t count, capacity;
  int64_t derived[3]; /* train, micro, accumulation as the last resolve derived them; 0: given */
  int overlap_derived;
  char *unread; /* a sentence with keys of another program's file that have no row; NULL: none */
};

typedef struct tws_given {
  const cJSON *item; /* NULL: not given (or null) */
  const tws_source *source;
} tws_given;

tws_given tws_store_get(const struct tws_config_store *store, const tws_key *key);
tws_given tws_store_at(const struct tws_config_store *store, const char *path); /* the same by exact path */
/* Is the path, a key or a section, given in any form? */
int tws_store_has(const struct tws_config_store *store, const char *path);
int tws_given_auto(tws_given given);
int tws_given_true(tws_given given);
/* The string given, or NULL. */
const char *tws_given_text(tws_given given);
/* 1 and *value where an integer is given, or for a rounded key a fraction, of which the whole part is taken. */
int tws_given_integer(const tws_key *key, tws_given given, int64_t *value);
/* Is it a fraction that a rounded key takes the whole part of? */
int tws_given_fraction(const tws_key *key, tws_given given);

/* TWS_INVALID, or `code`, with the place of what was given (or the name of the file) in front. */
tws_code tws_store_fail(const struct tws_config_store *store, tws_given given, tws_code code, tws_error *err,
                        const char *hint, const char *format, ...) __attribute__((format(printf, 6, 7)));

/* Visit every key below `item`, which stands at `segments`, in document order. Refuses what is no key, unless DeepSpeed
 * would not look at it and it is no slip of one; the visitor may refuse more. */
typedef struct tws_walk {
  const struct tws_config_store *store;
  const tws_source *source;
  tws_error *err;
  const char *segments[TWS_KEY_DEPTH];
  int n;
  tws_code (*visit)(struct tws_walk *walk, const tws_key *key, const cJSON *item);
  /* called for unknown keys that DeepSpeed ignores; NULL: not called */
  tws_code (*ignored)(struct tws_walk *walk, const cJSON *item, const char *hint);
  int unknown;            /* unknown keys so far */
  tws_refusals *refusals; /* collects refusals, and the walk continues; NULL: the walk ends at the first */
  void *user;
} tws_walk;
tws_code tws_store_walk(tws_walk *walk, const cJSON *item);
/* The same over everything given: the file without what is overridden, then the overrides. */
tws_code tws_store_walk_all(tws_walk *walk);

/* Why a key with an effect has none, given another value than its default: what it goes with is not in use. NULL: it
 * has one. */
const char *tws_key_unmet(const tws_config *config, const tws_key *key);
/* The index-th section that switches something on by being there, which Twinspeed does not have, or NULL; `first` is a
 * key of it, with the reason. */
const char *tws_section_switch(int index, const tws_key **first);
/* Is the path such a section, or in one? */
int tws_section_switches(const char *path);

/* Fields from what was given: those of one top-level section, or all (NULL). */
void tws_config_apply(tws_config *config, const char *section);

#endif
