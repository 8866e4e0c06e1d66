#include "real/split_masters.h"

#include "base/memory.h"

enum { CHUNK = 1 << 18 };

/* Elements of both halves: where they are in memory, or memory to copy them to. */
typedef struct halves {
  tws_executor *executor;
  const tws_plan *plan;
  uint32_t low;             /* buffer of the lower halves */
  unsigned short *copied[2]; /* NULL: the backend's memory can be read directly */
} halves;

tws_dtype tws_whole_dtype(const tws_state_entry *entry) {
  return entry->dtype == TWS_LOW16 ? TWS_F32 : (tws_dtype)entry->dtype;
}

static tws_code read_half(const halves *h, int half, uint64_t at, uint64_t count, const unsigned short **read,
                          tws_error *err) {
  const uint32_t buffer = half == 0 ? h->low : h->plan->parameters;
  const void *found = h->copied[half];
  TWS_TRY(h->copied[half]
              ? tws_executor_get(h->executor, TWS_PROGRAM_TRAIN, buffer, at, h->copied[half], count, err)
              : tws_executor_find(h->executor, TWS_PROGRAM_TRAIN, buffer, at, count, &found, err));
  *read = found;
  return TWS_OK;
}

/* Joins `count` adjacent elements of one shard: lower halves from `low` on, parameters from `upper` on. */
static tws_code join_run(const halves *h, uint64_t low, uint64_t upper, uint64_t count, float *to, tws_error *err) {
  for (uint64_t done = 0; done < count; done += CHUNK) {
    const uint64_t n = count - done < CHUNK ? count - done : CHUNK;
    const unsigned short *bits, *rounded;
    TWS_TRY(read_half(h, 0, low + done, n, &bits, err));
    TWS_TRY(read_half(h, 1, upper + done, n, &rounded, err));
    for (uint64_t i = 0; i < n; i++) to[done + i] = tws_join_halves(rounded[i], bits[i]);
  }
  return TWS_OK;
}

static tws_code join_all(const halves *h, uint64_t at, uint64_t count, float *to, tws_error *err) {
  const tws_state *state = h->plan->state;
  for (uint32_t i = 0; i < state->shard_count; i++) {
    const tws_shard *s = &state->shards[i];
    if (s->owned_offset == TWS_NO_OFFSET) continue;
    const uint64_t end = s->owned_offset + s->count < at + count ? s->owned_offset + s->count : at + count;
    const uint64_t begin = s->owned_offset > at ? s->owned_offset : at;
    if (begin >= end) continue;
    TWS_TRY(join_run(h, begin, s->storage_offset + begin - s->owned_offset, end - begin, to + (begin - at), err));
  }
  return TWS_OK;
}

tws_code tws_whole_get(tws_executor *executor, const tws_plan *plan, uint32_t buffer, uint64_t at, uint64_t count,
                       void *to, tws_error *err) {
  halves h = {.executor = executor, .plan = plan, .low = buffer};
  if (plan->buffers[buffer].dtype != TWS_LOW16)
    return tws_executor_get(executor, TWS_PROGRAM_TRAIN, buffer, at, to, count, err);
  unsigned short *memory = NULL;
  if (plan->backend != TWS_BACKEND_HOST) {
    memory = tws_calloc(2 * CHUNK, sizeof *memory);
    if (!memory) return tws_fail(err, TWS_MEMORY, NULL, "no memory to read master weights with");
    h.copied[0] = memory;
    h.copied[1] = memory + CHUNK;
  }
  const tws_code code = join_all(&h, at, count, to, err);
  tws_free(memory);
  return code;
}
