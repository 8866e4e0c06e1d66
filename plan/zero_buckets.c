/* Determines which gradients are reduced together (reduce_bucket_size), in the order in which they become complete. */
#include "plan/turns.h"
#include "plan/zero.h"

/* Counts one contribution to the gradient of a parameter, or of its tiles. If the gradient is then complete, appends
 * the parameter to `order`. Returns the new number of elements of `order`. */
static uint32_t complete(const tws_lower *l, uint32_t param, uint32_t *left, uint32_t *order, uint32_t count) {
  const uint32_t tiles = tws_weight_tile_count(l, param);
  if (!tiles && --left[param] == 0) order[count++] = param;
  for (uint32_t t = tiles; t-- > 0;) order[count++] = tws_visit_param(l, param, t);
  return count;
}

static uint32_t completion_order(tws_lower *l, uint32_t *order) {
  uint32_t count = 0;
  uint32_t *left = tws_lower_memory(l, l->network->param_count, sizeof *left);
  if (!left) return 0;
  memcpy(left, l->zero.uses, l->network->param_count * sizeof *left);
  for (int c = l->pipeline.chunk_count; c-- > 0;) {
    for (uint32_t m = l->pipeline.chunks[c].end; m-- > l->pipeline.chunks[c].first;) {
      const tws_module *module = &l->network->modules[m];
      for (const tws_module_kernel *k = tws_module_row_of(module->type)->backward; k->binding[0].source; k++)
        for (const tws_binding *b = k->binding; b->source != TWS_BIND_END; b++) {
          const uint32_t param = b->source == TWS_BIND_D_PARAM ? module->param[b->index] : TWS_NONE;
          if (param != TWS_NONE && tws_trains(l, module, param)) count = complete(l, param, left, order, count);
        }
    }
  }
  return count;
}

static void close_bucket(tws_lower *l, tws_bucket *bucket) {
  tws_zero *z = &l->zero;
  uint32_t *params = z->bucket_params + bucket->first;
  /* sorts the parameters in ascending order: reverses them, since they were added nearly in descending order, then
   * inserts */
  for (uint32_t i = 0, k = bucket->count - 1; i < k; i++, k--) {
    const uint32_t p = params[i];
    params[i] = params[k];
    params[k] = p;
  }
  for (uint32_t i = 1; i < bucket->count; i++) {
    uint32_t p = params[i], k = i;
    for (; k > 0 && params[k - 1] > p; k--) params[k] = params[k - 1];
    params[k] = p;
  }
  bucket->elements = 0;
  for (uint32_t i = 0; i < bucket->count; i++) {
    uint64_t elements = tws_zero_numel(l, params[i]);
    z->slot[params[i]] = bucket->elements;
    bucket->elements +=
        z->stage == 3 ? (uint64_t)z->part[params[i]] * (uint64_t)z->classes[bucket->zero_class].ranks : elements;
  }
}

/* Divides the gradients of the parameters of one ZeRO class (plan/lower.h) into buckets. The parameters are listed in
 * bucket_params from index `first` on. Returns the index after the last of them. */
static uint32_t fill_buckets(tws_lower *l, uint32_t zero_class, const uint32_t *order, uint32_t count, uint32_t first) {
  tws_zero *z = &l->zero;
  uint64_t limit = (uint64_t)l->config->zero.reduce_bucket_size, filled = 0;
  tws_bucket *bucket = NULL;
  int closed = 1;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t p = order[i];
    if (z->class_of[p] != zero_class) continue;
    /* A gradient to which several modules contribute is alive from the first contribution to the last. It has a bucket
     * of its own, so that it does not keep the memory of other gradients alive. A gradient that is larger than a bucket
     * also has its own, as in DeepSpeed. */
    const int alone = z->uses[p] > 1 || (!z->unit && tws_zero_numel(l, p) > limit);
    const int full =
        z->unit ? bucket && z->unit[p] != z->unit[z->bucket_params[first - 1]] : filled + tws_zero_numel(l, p) > limit;
    if (closed || alone || full) {
      bucket = &z->buckets[z->bucket_count++];
      *bucket = (tws_bucket){.first = first, .zero_class = zero_class, .buffer = TWS_NONE};
      filled = 0;
    }
    z->bucket_params[first++] = p;
    z->bucket_of[p] = z->bucket_count - 1;
    bucket->count++;
    filled += tws_zero_numel(l, p);
    closed = alone;
  }
  return first;
}

/* Returns 1 if gradients are reduced in buckets. */
static int has_buckets(const tws_lower *l) {
  const tws_zero *z = &l->zero;
  return z->stage > 0 && (z->ranks > 1 || !z->flat_gradients) && !l->extent.evaluates;
}

void tws_zero_make_buckets(tws_lower *l) {
  tws_zero *z = &l->zero;
  uint32_t n = l->network->param_count;
  if (l->b.failed != TWS_OK || !has_buckets(l)) return;
  uint32_t *completed = tws_lower_memory(l, n, sizeof *completed);
  z->buckets = tws_lower_memory(l, n, sizeof *z->buckets);
  z->bucket_params = tws_lower_memory(l, n, sizeof *z->bucket_params);
  z->bucket_of = tws_lower_memory(l, n, sizeof *z->bucket_of);
  z->slot = tws_lower_memory(l, n, sizeof *z->slot);
  if (l->b.failed != TWS_OK) return;
  const uint32_t count = completion_order(l, completed);
  for (uint32_t k = 0, first = 0; k < z->trained_count; k++) first = fill_buckets(l, k, completed, count, first);
  for (uint32_t i = 0; i < z->bucket_count; i++) close_bucket(l, &z->buckets[i]);
}
