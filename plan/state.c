#include "plan/state.h"

#include <string.h>

#include "plan/plan.h"

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the state of a job");
}

tws_code tws_state_create(tws_state **out, tws_error *err) {
  *out = tws_calloc(1, sizeof **out);
  if (!*out) return no_memory(err);
  (*out)->arena = tws_arena_create();
  if ((*out)->arena) return TWS_OK;
  tws_free(*out);
  *out = NULL;
  return no_memory(err);
}

void tws_state_destroy(tws_state *state) {
  if (!state) return;
  tws_free(state->entries);
  tws_arena_destroy(state->arena);
  tws_free(state);
}

tws_code tws_state_add(tws_state *state, const tws_state_entry *entry, uint32_t *index, tws_error *err) {
  *index = TWS_NONE;
  if (tws_state_find(state, entry->name) != TWS_NONE)
    return tws_fail(err, TWS_INTERNAL, NULL, "the state has two entries named '%s'", entry->name);
  if (tws_reserve(&state->entries, &state->capacity, state->count + 1u, sizeof *state->entries)) return no_memory(err);
  tws_state_entry *added = &state->entries[state->count];
  *added = *entry;
  added->bytes = entry->elements * tws_dtype_bytes((tws_dtype)entry->dtype);
  added->offset = state->arena_bytes[entry->tier];
  const uint64_t alignment = entry->tier == TWS_TIER_DISK ? TWS_DISK_ALIGNMENT : TWS_ALIGNMENT;
  state->arena_bytes[entry->tier] += (added->bytes + alignment - 1) / alignment * alignment;
  *index = state->count++;
  return TWS_OK;
}

uint32_t tws_state_find(const tws_state *state, const char *name) {
  for (uint32_t i = 0; i < state->count; i++)
    if (strcmp(state->entries[i].name, name) == 0) return i;
  return TWS_NONE;
}

int tws_state_clip(const tws_state_entry *entry, uint64_t *first, uint64_t *count, uint64_t *skipped) {
  const uint64_t begin = *first > entry->first ? *first : entry->first, last = entry->first + entry->elements;
  const uint64_t end = *first + *count < last ? *first + *count : last;
  if (begin >= end) return 0;
  *skipped = begin - *first;
  *first = begin - entry->first;
  *count = end - begin;
  return 1;
}

int tws_state_next_part(const tws_state *state, uint32_t entry, uint32_t *shard, tws_state_part *part) {
  const int role = state->entries[entry].role;
  if (role == TWS_ELEMENTS_NONE) return 0;
  while (*shard < state->shard_count) {
    const tws_shard *s = &state->shards[(*shard)++];
    const uint64_t first = role == TWS_ELEMENTS_STORED ? s->storage_offset : s->owned_offset;
    if (first == TWS_NO_OFFSET) continue;
    uint64_t skipped;
    const uint64_t unit = role == TWS_ELEMENTS_BLOCKS ? TWS_STATE_BLOCK : 1;
    *part = (tws_state_part){s->param, s->param_first / unit, s->count / unit, first / unit};
    if (!tws_state_clip(&state->entries[entry], &part->first, &part->count, &skipped)) continue;
    part->param_first += skipped;
    return 1;
  }
  return 0;
}
