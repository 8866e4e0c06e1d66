/* Private to config/: the keys as they were given. A configuration shares its source documents with its clones;
 * overrides from the command line take precedence over the file. */
#ifndef TWS_CONFIG_STORE_H
#define TWS_CONFIG_STORE_H

#include "config/keys.h"
#include "config/refusals.h"

typedef struct tws_source {
  int users; /* number of configurations that share this source; atomic */
  int command_line;
  tws_json *json;
} tws_source;

typedef struct tws_override {
  const tws_key *key; /* NULL: the override is a list of sections, which replaces the whole list of the file */
  char *path;
  tws_source *source;
  const cJSON *item;
} tws_override;

struct tws_config_store {
  tws_source *origin; /* the file */
  tws_override *overrides;
  size_t count, capacity;
  int64_t derived[3]; /* train, micro, accumulation: value that tws_config_resolve() derived; 0: it was given */
  int overlap_derived;
  char *unread; /* sentence that lists keys of another program's file without a row; NULL: none */
};

typedef struct tws_given {
  const cJSON *item; /* NULL: not given (or null) */
  const tws_source *source;
} tws_given;

tws_given tws_store_get(const struct tws_config_store *store, const tws_key *key);
tws_given tws_store_at(const struct tws_config_store *store, const char *path); /* without aliases */
/* ignores aliases */
int tws_store_has(const struct tws_config_store *store, const char *path);
int tws_given_auto(tws_given given);
int tws_given_true(tws_given given);
/* Returns the given string, or NULL if no string is given. */
const char *tws_given_text(tws_given given);
/* Returns 1 and sets *value if an integer is given, or a fraction for a rounded key, which is truncated; else 0. */
int tws_given_integer(const tws_key *key, tws_given given, int64_t *value);
/* Returns 1 if a fraction is given for a rounded key, which truncates it. */
int tws_given_fraction(const tws_key *key, tws_given given);

/* Fails with TWS_INVALID, or with `code`, and a message that begins with the position of the given value (or with the
 * name of the file). */
tws_code tws_store_fail(const struct tws_config_store *store, tws_given given, tws_code code, tws_error *err,
                        const char *hint, const char *format, ...) __attribute__((format(printf, 6, 7)));

/* If optimizer.params is a list of groups, as PyTorch takes one, moves its entries to optimizer.param_groups, and the
 * one without "params", which has the values of all other parameters, to optimizer.params. optimizer: the section, a
 * part of the document `json`. */
tws_code tws_config_split_params(const tws_json *json, cJSON *optimizer, tws_error *err);
/* Fails with TWS_INVALID or TWS_UNSUPPORTED if optimizer.param_groups is not valid, or if a list of the schedule does
 * not have one value per group. */
tws_code tws_config_check_param_groups(const tws_config *config, tws_error *err);

/* Fails if Adafactor is requested together with a feature that does not support it, or if eps does not have the form
 * that the optimizer requires (a number, or a pair). */
tws_code tws_config_check_factored(const tws_config *config, tws_error *err);
/* Fails if an optimizer with states of 8 bits is asked for with a feature that it is not supported with, or optim_bits
 * is neither 8 nor 32. */
tws_code tws_config_check_eight_bits(const tws_config *config, tws_error *err);
/* Fails if Muon is asked for with a feature that it is not supported with. */
tws_code tws_config_check_muon(const tws_config *config, tws_error *err);
/* Fails if master weights in two halves are asked for with an optimizer or a feature that they do not go with. */
tws_code tws_config_check_split_masters(const tws_config *config, tws_error *err);

/* Visits every key below `item`, whose path is `segments`, in document order. An unknown key is refused, unless
 * DeepSpeed ignores it and it is not a misspelling of a known key; the visitor may refuse more. */
typedef struct tws_walk {
  const struct tws_config_store *store;
  const tws_source *source;
  tws_error *err;
  const char *segments[TWS_KEY_DEPTH];
  int n;
  tws_code (*visit)(struct tws_walk *walk, const tws_key *key, const cJSON *item);
  /* called for a list of sections in place of visits of their keys; NULL: the keys are visited */
  tws_code (*list)(struct tws_walk *walk, const cJSON *item);
  /* called for unknown keys that DeepSpeed ignores; may be NULL */
  tws_code (*ignored)(struct tws_walk *walk, const cJSON *item, const char *hint);
  int unknown;            /* number of unknown keys found until now */
  tws_refusals *refusals; /* collects errors, and the walk continues; NULL: the walk ends at the first error */
  void *user;
} tws_walk;
tws_code tws_store_walk(tws_walk *walk, const cJSON *item);
/* Visits all given keys: those of the file that no override replaces, then the overrides. */
tws_code tws_store_walk_all(tws_walk *walk);

/* Returns the reason why a key, whose value is not the default, has no effect in this configuration: a feature on which
 * it depends is not in use. NULL: the key has an effect. */
const char *tws_key_no_effect_reason(const tws_config *config, const tws_key *key);
/* Returns the index-th section whose presence enables a feature that Twinspeed does not have, or NULL; *first is a key
 * of the section, whose row has the reason. */
const char *tws_section_switch(int index, const tws_key **first);
/* Returns 1 if the path is that of a section whose presence switches a feature on, or of a key inside such a
 * section. */
int tws_section_switches(const char *path);

/* Computes fields of *config from the given keys: those of one top-level section, or all if `section` is NULL. */
void tws_config_apply(tws_config *config, const char *section);

#endif
