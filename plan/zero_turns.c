/* Buckets of a rank that is alone and has its optimizer on the host: they take turns in buffers that are there in all
 * of the program, so nobody waits for memory. The sums of micro-batches before come back, so that kernels add to them
 * as they do without offloading: those of a bucket when the one before it in its buffer has been copied out, while
 * another is filled, and of the first ones when the micro-batch begins, or its backward pass where parameters come to
 * the forward pass. */
#include "plan/offload.h"
#include "plan/zero.h"

int tws_zero_takes_turns(const tws_lower *l) {
  return l->zero.ranks == 1 && !l->zero.flat_gradients;
}

void tws_zero_bring_sums(tws_lower *l, const tws_bucket *bucket, uint32_t buffer) {
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
  tws_zero_bring_sums(l, &z->buckets[bucket], z->turn_buffers[z->turns.place[bucket]]);
  z->brought[bucket] = 1;
}

static int begin_turns(tws_lower *l) {
  tws_zero *z = &l->zero;
  if (z->turn_buffers || l->b.failed != TWS_OK) return l->b.failed == TWS_OK;
  z->turn_buffers = tws_lower_memory(l, z->bucket_count, sizeof *z->turn_buffers);
  z->brought = tws_lower_memory(l, z->bucket_count, 1);
  if (z->turn_buffers && z->brought && tws_bucket_turns_make(z->bucket_count, l->scratch, &z->turns)) return 1;
  tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  return 0;
}

void tws_zero_turns_pass(tws_lower *l, int backward) {
  tws_zero *z = &l->zero;
  const int in_backward = l->offload.param_tier != TWS_TIER_DEVICE;
  if (!tws_zero_takes_turns(l) || !z->turn_buffers || l->b.micro_batch == 0 || l->b.failed != TWS_OK) return;
  if (!backward) memset(z->brought, 0, z->bucket_count);
  for (uint32_t i = 0; i < z->turns.places && backward == in_backward; i++)
    if (!z->brought[z->turns.first[i]]) bring(l, z->turns.first[i]);
}

/* As large as the largest that has it, which the first micro-batch finds out. */
uint32_t tws_zero_turn_begin(tws_lower *l, uint32_t bucket) {
  tws_zero *z = &l->zero;
  const tws_bucket *b = &z->buckets[bucket];
  if (!begin_turns(l)) return 0;
  if (l->b.micro_batch > 0) {
    if (!z->brought[bucket]) bring(l, bucket); /* in a forward pass: of a loss in tiles */
    return z->turn_buffers[z->turns.place[bucket]];
  }
  const uint32_t places = z->turns.places;
  tws_bucket_turns_begin(&z->turns, bucket);
  uint32_t *buffer = &z->turn_buffers[z->turns.place[bucket]];
  if (z->turns.places > places)
    *buffer = tws_builder_buffer(&l->b, "gradient bucket", TWS_CATEGORY_BUCKET, z->grad_dtype, b->elements,
                                 TWS_LIFETIME_PROGRAM);
  tws_builder_grow(&l->b, *buffer, b->elements);
  return *buffer;
}

void tws_zero_turn_end(tws_lower *l, uint32_t bucket) {
  tws_bucket_turns *t = &l->zero.turns;
  if (l->b.failed != TWS_OK) return;
  if (l->b.micro_batch == 0)
    tws_bucket_turns_end(t, bucket);
  else if (t->next[bucket] != TWS_NONE)
    bring(l, t->next[bucket]);
}
