/* Private to config/: the table of keys. One row describes a key; parsing, validation, defaults, the effective
 * configuration, the JSON Schema and the report of keys without effect are all generated from the table. */
#ifndef TWS_CONFIG_KEYS_H
#define TWS_CONFIG_KEYS_H

#include <stddef.h>
#include "config/ds_config.h"

typedef enum tws_key_type {
  TWS_KEY_ANY,
  TWS_KEY_BOOL,
  TWS_KEY_INT,
  TWS_KEY_NUMBER,
  TWS_KEY_STRING,
  TWS_KEY_INT_OR_STRING,
  TWS_KEY_NUMBER_OR_LIST, /* a list holds one number for each parameter group */
  TWS_KEY_NUMBER_OR_PAIR, /* a number, or a list of two, each a number or null */
  TWS_KEY_PAIR,           /* two numbers */
  TWS_KEY_LIST,
  TWS_KEY_STRING_LIST, /* a single string is accepted as a list of one */
  TWS_KEY_INT_LIST,
  TWS_KEY_OBJECT, /* an object with any members; members may have rows of their own */
  TWS_KEY_BOOL_OR_OBJECT,
  TWS_KEY_AXES /* a tws_axis_order as text */
} tws_key_type;

/* Type of the field of tws_config that stores the value of a key that has an effect. */
typedef enum tws_key_store {
  TWS_STORE_NOWHERE,
  TWS_STORE_I64,
  TWS_STORE_I32, /* int or bool */
  TWS_STORE_F64,
  TWS_STORE_ENUM,   /* index into `values` */
  TWS_STORE_SPECIAL /* the field depends on several keys: see apply.c */
} tws_key_store;

/* Effects of a key. REPORT: it affects only the reports of a training, not its results. */
enum { TWS_KEY_MEMORY = 1, TWS_KEY_TIME = 2, TWS_KEY_TRAIN = 4, TWS_KEY_REPORT = 8 };
enum { TWS_KEY_DEPTH = 128 };

typedef struct tws_key {
  const char *path; /* segments separated by dots; <x> matches any key, [] an array of objects */
  tws_key_type type;
  const char *fallback; /* default as JSON text; NULL: none */
  const char *doc;
  const char *values;   /* allowed strings, with | between them */
  const char *alias;    /* another name for the last segment of the path; NULL: none */
  const char *moved_to; /* the key is deprecated: path of the key that replaced it; NULL: it is not */
  const char *owners;   /* schedules that take this argument, separated by |; for optimizers see config/optimizer.h */
  const char *reason;   /* the reason why the key has no effect; NULL if it has one */
  double low, high;     /* bounds of the value, if `bounded` is 1 */
  size_t offset;
  unsigned char store, parts, bounded, automatic, strict, any_case; /* strict: 10.0 is refused; parts: set of effects */
  unsigned char rounded; /* 1: a fraction is accepted for this count and truncated, with a note */
} tws_key;

extern const tws_key tws_keys[];
extern const size_t tws_key_count;

/* Returns the row for a path, or NULL. *below is 1 if the path is a section, that is, rows below it exist; 2 if it is
 * an array of such sections; otherwise 0. */
const tws_key *tws_key_find(const char *const *segments, int n, int *below);
const tws_key *tws_key_at(const char *path); /* returns the row with exactly this path, or NULL */
/* Returns the index of `word` in the |-separated list, or -1 if the list does not have it. */
int tws_key_word(const char *list, const char *word, int any_case);
/* Returns the preferred name of the last segment, which differs from the segment only if that is an alias. */
const char *tws_key_canonical(const char *const *segments, int n);
/* Returns 1 if "auto" is accepted for every key of the section and means the key's default. */
int tws_key_lax_section(const char *section);
/* Returns 1 if DeepSpeed validates the section against a schema: it refuses unknown keys, and accepts "2" for 2 and
 * "yes" for true. In all other sections DeepSpeed ignores unknown keys. */
int tws_key_checked_section(const char *section);
/* Returns the name of the argument if the path is that of an argument in optimizer.params, else NULL. */
const char *tws_key_optimizer_argument(const char *path);
/* Kinds of unknown keys: NONE: unlike any known key; ELSEWHERE: a known key of another section; SLIP: a misspelled
 * key. */
typedef enum tws_key_guess { TWS_GUESS_NONE, TWS_GUESS_ELSEWHERE, TWS_GUESS_SLIP } tws_key_guess;
/* Writes a hint for an unknown key: a similar key of its section or of another one, or the known keys of its section.
 * Returns the kind of the key. */
tws_key_guess tws_key_suggest(const char *const *segments, int n, char *hint, size_t size);
/* Writes the segments, joined by dots, into `text`. */
void tws_key_join(const char *const *segments, int n, char *text, size_t size);
/* Splits a dotted path in place; returns the number of segments, or -1 if there are too many or an empty one. */
int tws_key_split(char *path, const char **segments, int capacity);

#endif
