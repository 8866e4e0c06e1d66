/* Private to config/: the table of keys. One row says what a key is; parsing, validation, defaults, the effective
 * configuration, the JSON Schema and the report of keys without effect all read it. */
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
  TWS_KEY_PAIR,           /* two numbers */
  TWS_KEY_LIST,
  TWS_KEY_STRING_LIST, /* one string stands for a list of one */
  TWS_KEY_INT_LIST,
  TWS_KEY_OBJECT, /* any members, unless rows below name them */
  TWS_KEY_BOOL_OR_OBJECT,
  TWS_KEY_AXES /* a tws_axis_order as text */
} tws_key_type;

/* Where the value of an honoured key goes in tws_config. */
typedef enum tws_key_store {
  TWS_STORE_NOWHERE,
  TWS_STORE_I64,
  TWS_STORE_I32, /* int or bool */
  TWS_STORE_F64,
  TWS_STORE_ENUM,   /* index into `values` */
  TWS_STORE_SPECIAL /* the field follows from several keys: apply.c */
} tws_key_store;

/* Effects of a key. REPORT: only reports of a training, nothing that it computes. */
enum { TWS_KEY_MEMORY = 1, TWS_KEY_TIME = 2, TWS_KEY_TRAIN = 4, TWS_KEY_REPORT = 8 };
enum { TWS_KEY_DEPTH = 128 };

typedef struct tws_key {
  const char *path; /* segments parted by dots; <x> matches any key, [] an array of objects */
  tws_key_type type;
  const char *fallback; /* default as JSON text; NULL: none */
  const char *doc;
  const char *values;   /* allowed strings, parted by | */
  const char *alias;    /* another name for the last segment */
  const char *moved_to; /* deprecated in favour of this path */
  const char *owners;   /* types of the scheduler that take this argument; optimizers: config/optimizer.h */
  const char *reason;   /* why it has no effect; NULL when it has one */
  double low, high;     /* where bounded */
  size_t offset;
  unsigned char store, parts, bounded, automatic, strict, any_case; /* strict: 10.0 is no integer; parts: bit mask */
  unsigned char rounded; /* a count that people compute: of a fraction the whole part is taken, with a note */
} tws_key;

extern const tws_key tws_keys[];
extern const size_t tws_key_count;

/* The row for a path, or NULL; *below is 1 when rows lie below the path, that is, when it names a section, and 2 when
 * it names an array of such sections. */
const tws_key *tws_key_find(const char *const *segments, int n, int *below);
const tws_key *tws_key_at(const char *path); /* a row by its exact path; NULL if there is none */
/* Is `word` one of the |-separated `list`? Its index, or -1. */
int tws_key_word(const char *list, const char *word, int any_case);
/* The first name of the last segment, where it has two; the segment itself otherwise. */
const char *tws_key_canonical(const char *const *segments, int n);
/* Section in which "auto" anywhere means the default (specification 01 section 1). */
int tws_key_lax_section(const char *section);
/* Section that DeepSpeed itself holds against a schema: it refuses keys that it does not know, and reads "2" as 2 and
 * "yes" as true. Of all others it takes what it knows and leaves the rest. */
int tws_key_checked_section(const char *section);
/* The argument's name where the path is one of optimizer.params; else NULL. */
const char *tws_key_optimizer_argument(const char *path);
/* Classes of unknown keys: a misspelling, a known key at another path, or neither. */
typedef enum tws_key_guess { TWS_GUESS_NONE, TWS_GUESS_ELSEWHERE, TWS_GUESS_SLIP } tws_key_guess;
/* Writes a hint for an unknown key: a similar key of its section or of elsewhere in the table, or the known keys of its
 * section. */
tws_key_guess tws_key_suggest(const char *const *segments, int n, char *hint, size_t size);
/* Text with the segments joined by dots. */
void tws_key_join(const char *const *segments, int n, char *text, size_t size);
/* Split a dotted path in place; returns the number of segments, or -1 when there are too many or an empty one. */
int tws_key_split(char *path, const char **segments, int capacity);

#endif
