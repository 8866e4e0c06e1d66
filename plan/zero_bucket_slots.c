/* Reuses buffers for the gradient buckets of a single rank whose optimizer is on the host. All buckets share a few
 * buffers that live for the whole program, so no operation waits for memory. From the second micro-batch on, the
 * accumulated sums are copied back into a bucket, so that kernels add to them as without offloading. This copy is
 * issued when the previous bucket in the same buffer has been copied out, and overlaps with the filling of another
 * bucket; for the first bucket of each buffer it is issued when the micro-batch begins, or when its backward pass
 * begins if the forward pass fetches parameters. */
#include "plan/offload.h"
#include "plan/zero.h"

/* Allocates the state for `buckets` buckets; returns 0 if out of memory. */
static int make_slots(uint32_t buckets, tws_arena *arena, tws_bucket_slots *out) {
  uint32_t *all = tws_arena_alloc(arena, 5 * ((size_t)buckets + 1), sizeof *all);
  *out = (tws_bucket_slots){.begun_last = TWS_NONE};
  if (!all) return 0;
  uint32_t **const of[] = {&out->place, &out->next, &out->first, &out->last, &out->freed};
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) *of[i] = all + i * ((size_t)buckets + 1);
  return 1;
}

static uint32_t find_slot(const tws_bucket_slots *t) {
  uint32_t best = TWS_NONE;
  for (uint32_t i = 0; i < t->places; i++)
    if (t->freed[i] && t->last[i] != t->begun_last && (best == TWS_NONE || t->freed[i] < t->freed[best])) best = i;
  return best;
}

static void begin_bucket(tws_bucket_slots *t, uint32_t bucket) {
  uint32_t place = find_slot(t);
  if (place == TWS_NONE) {
    place = t->places++;
    t->first[place] = bucket;
  } else {
    t->next[t->last[place]] = bucket;
  }
  t->place[bucket] = place;
  t->next[bucket] = TWS_NONE;
  t->last[place] = bucket;
  t->freed[place] = 0;
  t->begun_last = bucket;
}

static void end_bucket(tws_bucket_slots *t, uint32_t bucket) {
  t->freed[t->place[bucket]] = 1 + t->ended++;
}

int tws_zero_reuses_buffers(const tws_lower *l) {
  return l->zero.ranks == 1 && !l->zero.flat_gradients;
}

static void bring_sums(tws_lower *l, const tws_bucket *bucket, uint32_t buffer) {
  const tws_zero *z = &l->zero;
  const uint32_t *params = z->bucket_params + bucket->first, module = l->b.module;
  l->b.module = TWS_NONE;
  for (uint32_t i = 0, next; i < bucket->count; i = next) {
    const uint64_t first = z->flat_offset[params[i]];
    uint64_t count = 0, slot = z->slot[params[i]];
    for (next = i; next < bucket->count && z->flat_offset[params[next]] == first + count; next++)
      count += tws_zero_numel(l, params[next]);
    tws_operand kept[2];
    for (int k = 0, n = tws_offload_kept(l, first, count, kept); k < n; k++) {
      tws_builder_copy(&l->b, TWS_STREAM_COPY_IN, kept[k], tws_write(buffer, slot, kept[k].count));
      slot += kept[k].count;
    }
  }
  l->b.module = module;
}

static void bring(tws_lower *l, uint32_t bucket) {
  tws_zero *z = &l->zero;
  bring_sums(l, &z->buckets[bucket], z->slot_buffers[z->bucket_slots.place[bucket]]);
  z->brought[bucket] = 1;
}

static int begin_buckets(tws_lower *l) {
  tws_zero *z = &l->zero;
  if (z->slot_buffers || l->b.failed != TWS_OK) return l->b.failed == TWS_OK;
  z->slot_buffers = tws_lower_memory(l, z->bucket_count, sizeof *z->slot_buffers);
  z->brought = tws_lower_memory(l, z->bucket_count, 1);
  if (z->slot_buffers && z->brought && make_slots(z->bucket_count, l->scratch, &z->bucket_slots)) return 1;
  tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  return 0;
}

void tws_zero_buckets_pass(tws_lower *l, int backward) {
  tws_zero *z = &l->zero;
  const int in_backward = l->offload.param_tier != TWS_TIER_DEVICE;
  if (!tws_zero_reuses_buffers(l) || !z->slot_buffers || l->b.micro_batch == 0 || l->b.failed != TWS_OK) return;
  if (!backward) memset(z->brought, 0, z->bucket_count);
  for (uint32_t i = 0; i < z->bucket_slots.places && backward == in_backward; i++)
    if (!z->brought[z->bucket_slots.first[i]]) bring(l, z->bucket_slots.first[i]);
}

/* Returns the buffer of a bucket. A buffer is as large as the largest bucket in it, which the first micro-batch
 * determines. */
uint32_t tws_zero_bucket_begin(tws_lower *l, uint32_t bucket) {
  tws_zero *z = &l->zero;
  const tws_bucket *b = &z->buckets[bucket];
  if (!begin_buckets(l)) return 0;
  if (l->b.micro_batch > 0) {
    /* a tiled loss computes gradients in the forward pass, before the sums of buckets are copied back for the backward
     * pass */
    if (!z->brought[bucket]) bring(l, bucket);
    return z->slot_buffers[z->bucket_slots.place[bucket]];
  }
  const uint32_t places = z->bucket_slots.places;
  begin_bucket(&z->bucket_slots, bucket);
  uint32_t *buffer = &z->slot_buffers[z->bucket_slots.place[bucket]];
  if (z->bucket_slots.places > places)
    *buffer = tws_builder_buffer(&l->b, "gradient bucket", TWS_CATEGORY_BUCKET, z->grad_dtype, b->elements,
                                 TWS_LIFETIME_PROGRAM);
  tws_builder_grow(&l->b, *buffer, b->elements);
  return *buffer;
}

void tws_zero_bucket_end(tws_lower *l, uint32_t bucket) {
  tws_bucket_slots *t = &l->zero.bucket_slots;
  if (l->b.failed != TWS_OK) return;
  if (l->b.micro_batch == 0)
    end_bucket(t, bucket);
  else if (t->next[bucket] != TWS_NONE)
    bring(l, t->next[bucket]);
}
