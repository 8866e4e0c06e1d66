/* State: the buffers that live between the programs of a job (steps, evaluations). They are laid out once, in arenas
 * that no other buffers use.
 *
 * Programs are plans over one state. A program's other buffers live at most as long as the program runs, so the
 * programs of one rank share one more arena for each tier, which is as large as the largest program needs. The memory
 * of a job is that of its state and of its largest program. Each entry of the state says which parameters of the model
 * its elements belong to, what its initial values are, and whether checkpoints contain it: the list of entries is the
 * table of contents of a checkpoint. */
#ifndef TWS_PLAN_STATE_H
#define TWS_PLAN_STATE_H

#include <stdint.h>
#include "base/dtype.h"
#include "base/memory.h"
#include "base/status.h"
#include "config/loss_scale.h"

/* The elements of a parameter that this rank has, and their position in the entries of the state. */
typedef struct tws_shard {
  uint32_t param; /* index of the parameter in the network */
  /* elements [param_first, param_first + count) of the flattened parameter, or of the rank's slice of it */
  uint64_t param_first, count;
  uint64_t storage_offset; /* offset of the first element, in elements, in entries with TWS_ELEMENTS_STORED */
  /* offset of the first element in entries with TWS_ELEMENTS_OWNED; TWS_NO_OFFSET: this rank does not update it */
  uint64_t owned_offset;
} tws_shard;
#define TWS_NO_OFFSET UINT64_MAX

/* The elements of the model's parameters for which an entry has one element each, and their positions in it. */
typedef enum tws_elements {
  TWS_ELEMENTS_NONE,   /* none: the entry has no relation to parameters */
  TWS_ELEMENTS_STORED, /* all elements that this rank stores, at storage_offset */
  TWS_ELEMENTS_OWNED,  /* the elements that this rank updates, at owned_offset */
  /* blocks of TWS_STATE_BLOCK adjacent elements of those, at owned_offset / TWS_STATE_BLOCK: the entry has one element
   * for each block. Blocks are counted from the first element of a parameter, and no shard divides one. */
  TWS_ELEMENTS_BLOCKS
} tws_elements;
enum { TWS_STATE_BLOCK = 256 };

/* Names of state entries for gradients that a later step uses: first, those that a step leaves for the next step
 * (plan/delayed.c). */
#define TWS_DELAYED_GRADIENTS "delayed gradients"
#define TWS_ZENFLOW_GRADIENTS "accumulated gradients" /* plan/zenflow.c */
#define TWS_ZENFLOW_STAGED "staged gradients"
#define TWS_ZENFLOW_STAGED_METRICS "staged metrics"
/* The names of the state entries for intervals of measured length (plan/zenflow.c): of each measured matrix the sums of
 * |gradient| over all columns and over selected ones, in the last step, each in as many parts; and what the engine
 * keeps about the interval (real/late_updates.c). */
#define TWS_ZENFLOW_SIZES "sizes of gradients"
#define TWS_ZENFLOW_INTERVAL "measured interval"
enum { TWS_INTERVAL_VALUES = 6 }; /* elements of the latter before its elements for each sum */
/* The names of the state entries for the scalars of the host's update that an OVERLAP computes (plan/zenflow.c). */
#define TWS_OVERLAPPED_HYPER "overlapped hyperparameters"
#define TWS_OVERLAPPED_METRICS "overlapped metrics"

typedef enum tws_initial {
  TWS_INITIAL_ZERO,
  TWS_INITIAL_PARAMETER, /* the parameter's own initial values, rounded to the entry's type */
  TWS_INITIAL_QUANTIZED, /* codes and scales of the parameters' initial values, as in tws_plan.quantized */
  TWS_INITIAL_RUNNING    /* initial running statistics of the network: tws_init_running() */
} tws_initial;

typedef struct tws_state_entry {
  const char *name; /* name of the entry, unique in its state */
  uint8_t tier, dtype, category;
  uint8_t role; /* tws_elements */
  uint8_t initial;
  uint8_t optional;     /* 1: if a checkpoint does not contain it, it gets its initial values */
  uint8_t everywhere;   /* 1 (only with TWS_ELEMENTS_NONE): the entry is equal on all ranks */
  /* 1 (only with TWS_ELEMENTS_NONE): the elements are largest magnitudes of what the rank has of tensors, in float32;
   * of ranks with shards of the same tensors the largest one is that of the whole tensor */
  uint8_t magnitudes;
  uint8_t checkpointed; /* 1: checkpoints contain it; 0: it can be recomputed from the other entries */
  /* 1 + index of the entry of another tier that this entry continues (a checkpoint joins both); 0: none */
  uint32_t continues;
  uint32_t scales; /* 1 + index of the entry with the scales of its 8-bit codes (base/dynamic_map.h); 0: none */
  /* index of its first element among all elements of its role; 0 unless it continues another entry, or the first
   * elements have states in other entries (plan/eight_bit.c) */
  uint64_t first;
  uint64_t elements, bytes; /* number of elements; bytes = elements x size of the type, without padding */
  uint64_t offset;          /* offset in bytes in the state's arena of its tier, a multiple of TWS_ALIGNMENT */
} tws_state_entry;

/* Counters that the host keeps. Random numbers, and the position in the data, are functions of the seed and of these
 * counters. A checkpoint consists of the counters and the entries. */
typedef struct tws_counters {
  int64_t seed;
  /* numbers of steps since the start of training: all steps, and the skipped steps, which changed no weight */
  int64_t steps, skipped;
  tws_loss_scale loss_scale; /* loss scale of the next step */
} tws_counters;

typedef struct tws_state {
  tws_arena *arena;
  tws_state_entry *entries; /* entries in the order in which they were added */
  uint32_t count;
  size_t capacity;
  tws_shard *shards; /* the rank's shards, sorted by storage_offset; allocated in `arena` */
  uint32_t shard_count;
  uint64_t arena_bytes[TWS_TIER_COUNT];
  tws_counters counters;
} tws_state;

tws_code tws_state_create(tws_state **out, tws_error *err);
void tws_state_destroy(tws_state *state); /* NULL is allowed */
/* Appends an entry and sets its bytes and offset. *index: its index. Its name has to outlive the state. */
tws_code tws_state_add(tws_state *state, const tws_state_entry *entry, uint32_t *index, tws_error *err);
/* Returns the index of the entry called `name`, or TWS_NONE. */
uint32_t tws_state_find(const tws_state *state, const char *name);

/* Returns 1 if an entry is equal on all ranks of a pipeline of `stages` stages. */
static inline int tws_state_everywhere(const tws_state_entry *entry, int stages) {
  return entry->everywhere || (entry->initial == TWS_INITIAL_RUNNING && stages == 1);
}

/* A range of an entry's elements that is also contiguous in a parameter. Elements of an entry with TWS_ELEMENTS_BLOCKS
 * are blocks: param_first and count are then numbers of blocks of the parameter. */
typedef struct tws_state_part {
  uint32_t param;
  uint64_t param_first, count; /* elements [param_first, param_first + count) of the parameter, as in tws_shard */
  uint64_t first;              /* index of the first of these elements in the entry */
} tws_state_part;
/* Clips elements [*first, *first + *count), counted among all elements of the entry's role, to those that the entry
 * has, and converts *first to an index in the entry; *skipped: number of elements that were clipped at the beginning of
 * the range. Returns 1, or 0 if the entry has none of the elements. */
int tws_state_clip(const tws_state_entry *entry, uint64_t *first, uint64_t *count, uint64_t *skipped);
/* Writes the next part of an entry. The caller sets *shard to 0 before the first call and does not change it
 * afterwards. Returns 1, or 0 after the last part. */
int tws_state_next_part(const tws_state *state, uint32_t entry, uint32_t *shard, tws_state_part *part);

#endif
