/* State: what lives between the programs of a job (steps, evaluations), laid out once in arenas of its own.
 *
 * Programs are plans over one state. A program's other buffers live at most as long as the program runs, so programs of
 * one rank share one more arena for each tier, as large as the largest needs: a job's memory is its state plus its
 * largest program. An entry says what it is, where its elements belong in the model, how it begins, and whether a
 * checkpoint holds it: the list is a checkpoint's table of contents. */
#ifndef TWS_PLAN_STATE_H
#define TWS_PLAN_STATE_H

#include <stdint.h>
#include "base/dtype.h"
#include "base/memory.h"
#include "base/status.h"
#include "config/loss_scale.h"

/* Where a parameter lives on this rank. */
typedef struct tws_shard {
  uint32_t param;              /* network parameter */
  uint64_t param_first, count; /* elements [first, first + count) of the flat parameter, or of the rank's part of it */
  uint64_t storage_offset;     /* element offset in entries with TWS_ELEMENTS_STORED */
  uint64_t owned_offset;       /* in entries with TWS_ELEMENTS_OWNED; TWS_NO_OFFSET: not owned here */
} tws_shard;
#define TWS_NO_OFFSET UINT64_MAX

/* Which elements of the model's parameters an entry has one element for, and where. */
typedef enum tws_elements {
  TWS_ELEMENTS_NONE,   /* it has no relation to parameters */
  TWS_ELEMENTS_STORED, /* all that this rank keeps, at storage_offset */
  TWS_ELEMENTS_OWNED   /* those that it updates, at owned_offset */
} tws_elements;

/* The entry of gradients that steps leave to the next (plan/delayed.c). */
#define TWS_DELAYED_GRADIENTS "delayed gradients"
#define TWS_ZENFLOW_GRADIENTS "accumulated gradients" /* plan/zenflow.c */

typedef enum tws_initial {
  TWS_INITIAL_ZERO,
  TWS_INITIAL_PARAMETER, /* the parameter's own initial values, rounded to the entry's type */
  TWS_INITIAL_QUANTIZED, /* codes and scales of the parameters' initial values, as in tws_plan.quantized */
  TWS_INITIAL_RUNNING    /* initial running statistics of the network: tws_init_running() */
} tws_initial;

typedef struct tws_state_entry {
  const char *name; /* unique in its state */
  uint8_t tier, dtype, category;
  uint8_t role; /* tws_elements */
  uint8_t initial;
  uint8_t optional;         /* initialized if a checkpoint does not have it */
  uint8_t everywhere;       /* with TWS_ELEMENTS_NONE: equal on all ranks */
  uint8_t checkpointed;     /* 0: it can be recomputed from the other entries */
  uint32_t continues;       /* 1 + the entry that it continues in another tier; a checkpoint joins the two; 0: none */
  uint64_t first;           /* its first element among those of its role; 0 unless it continues another entry */
  uint64_t elements, bytes; /* bytes = elements x size, not padded */
  uint64_t offset;          /* in the state's arena of its tier, a multiple of TWS_ALIGNMENT */
} tws_state_entry;

/* Counters of the host. Random numbers, and the position in the data, are functions of the seed and of these counters;
 * together with the entries they are the content of a checkpoint. */
typedef struct tws_counters {
  int64_t seed;
  int64_t steps, skipped;    /* since the start of training; skipped steps changed no weight */
  tws_loss_scale loss_scale; /* of the next step */
} tws_counters;

typedef struct tws_state {
  tws_arena *arena;
  tws_state_entry *entries; /* in the order in which they were added */
  uint32_t count;
  size_t capacity;
  tws_shard *shards; /* sorted by storage_offset; in `arena` */
  uint32_t shard_count;
  uint64_t arena_bytes[TWS_TIER_COUNT];
  tws_counters counters;
} tws_state;

tws_code tws_state_create(tws_state **out, tws_error *err);
void tws_state_destroy(tws_state *state); /* NULL is allowed */
/* Appends an entry and sets its bytes and offset. *index: its index. The name has to outlive the state. */
tws_code tws_state_add(tws_state *state, const tws_state_entry *entry, uint32_t *index, tws_error *err);
/* Returns the index of the entry with that name, or TWS_NONE. */
uint32_t tws_state_find(const tws_state *state, const char *name);

/* Returns 1 if an entry is equal on all ranks of a pipeline of `stages` stages. */
static inline int tws_state_everywhere(const tws_state_entry *entry, int stages) {
  return entry->everywhere || (entry->initial == TWS_INITIAL_RUNNING && stages == 1);
}

/* A range of an entry's elements that is also contiguous in a parameter. */
typedef struct tws_state_part {
  uint32_t param;
  uint64_t param_first, count; /* as in tws_shard */
  uint64_t first;              /* element of the entry */
} tws_state_part;
/* Clips elements [*first, *first + *count) of an entry's role to those that the entry has, and converts *first to an
 * index in the entry; *skipped: number of elements before these. Returns 0 if it has none of them. */
int tws_state_clip(const tws_state_entry *entry, uint64_t *first, uint64_t *count, uint64_t *skipped);
/* Iterates over the parts of an entry: *shard is 0 before the first call, and the caller does not change it. Returns 0
 * after the last. */
int tws_state_next_part(const tws_state *state, uint32_t entry, uint32_t *shard, tws_state_part *part);

#endif
