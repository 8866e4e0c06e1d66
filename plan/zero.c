/* Storage and collectives of parameters and gradients, by ZeRO stage (Rajbhandari et al. 2020).
 *
 *   stage 0    parameters and gradients are replicated; gradients are all-reduced in the optimizer phase
 *   stage 1    as 0, but each rank updates its own partition; with overlap_comm buckets are reduced during the last
 *              micro-batch's backward pass
 *   stage 2    whole gradients exist only in buckets; every micro-batch reduces its buckets and adds the rank's shard
 *              to a buffer of the size of a partition
 *   stage 3    whole parameters exist only between a gather and a release; gradients are reduce-scattered
 *
 * Differences from DeepSpeed 0.19, on purpose: gradients are written straight into the bucket (no copy), a bucket is as
 * large as what is in it (DeepSpeed always allocates reduce_bucket_size), coalesced gathers land in place (DeepSpeed
 * gathers into a flat tensor and copies out), neither float32 training nor bf16_master_weights_and_grads keeps a second
 * copy of the weights as "master" weights, and persistent parameters are gathered at the start of a step instead of the
 * end of the previous step. */
#include "models/network/module.h"
#include "plan/adafactor.h"
#include "plan/turns.h"
#include "plan/zero.h"

#include <string.h>

#include "plan/compressed.h"
#include "plan/eight_bit.h"
#include "plan/onebit_lamb.h"
#include "plan/offload.h"
#include "plan/zenflow.h"
#include "plan/zero_partition.h"

static uint64_t numel(const tws_lower *l, uint32_t p) {
  return tws_zero_numel(l, p);
}

static void *scratch(tws_lower *l, size_t count, size_t bytes) {
  return tws_lower_memory(l, count, bytes);
}

/* ---- storage ---- */

/* Sets the offsets of the parameters of a ZeRO class, and appends the offsets at which a parameter, or the padding of
 * the class, begins to `starts`. Returns the new number of elements of `starts`. */
static uint32_t class_layout(tws_lower *l, tws_zero_class *c, const uint64_t *sizes, uint64_t *starts, uint32_t count) {
  tws_zero *z = &l->zero;
  for (uint32_t i = c->first; i < c->end; i++) {
    starts[count++] = z->flat_offset[z->order[i]] = c->stored + c->total;
    c->total += sizes[z->order[i]];
  }
  const int cut = (z->stage == 1 || z->stage == 2) && !c->frozen;
  c->aligned = !cut            ? c->total
               : c->eight_bits ? tws_eight_bit_aligned(c->total, c->ranks)
                               : (uint64_t)tws_zero_aligned_numel((int64_t)c->total, c->ranks);
  c->partition = cut ? c->aligned / (uint64_t)c->ranks : c->total;
  if (c->aligned > c->total) starts[count++] = c->stored + c->total;
  return count;
}

/* Adds shards of the stored elements [first, first + count) of a parameter: ranges that this rank updates are separate
 * from ranges that it does not update. */
static void add_shards(tws_lower *l, uint32_t param, uint64_t first, uint64_t count) {
  tws_state *state = l->b.plan->state;
  uint64_t in_weight;
  const uint32_t origin = tws_weight_tile_origin(l, param, &in_weight);
  const tws_zero_class *c = tws_zero_class_of(&l->zero, param);
  const uint64_t storage = l->zero.flat_offset[param], begin = tws_zero_kept_first(&l->zero, c);
  const uint64_t end = begin + c->partition, kept = c->kept;
  uint64_t cuts[4] = {storage, begin < storage ? storage : begin, end, storage + count};
  if (c->frozen) cuts[1] = cuts[2] = storage;
  if (cuts[1] > cuts[3]) cuts[1] = cuts[3];
  if (cuts[2] < cuts[1]) cuts[2] = cuts[1];
  if (cuts[2] > cuts[3]) cuts[2] = cuts[3];
  for (int i = 0; i < 3 && l->b.plan->owns_state; i++) {
    if (cuts[i + 1] <= cuts[i]) continue;
    state->shards[state->shard_count++] = (tws_shard){.param = origin,
                                                      .param_first = in_weight + first + cuts[i] - storage,
                                                      .count = cuts[i + 1] - cuts[i],
                                                      .storage_offset = cuts[i],
                                                      .owned_offset = i == 1 ? kept + cuts[i] - begin : TWS_NO_OFFSET};
  }
}

/* Returns a number by which parameters are ordered, so that those with equal placement along "model" are adjacent:
 * 0: split parameters; 1: copies with equal gradients; 2: copies of which each rank computes only a part of the sum
 * that is the gradient. */
static int kind_along_model(const tws_lower *l, int param) {
  const tws_placed placed = (tws_placed)l->local.params[param].on[TWS_AXIS_MODEL];
  return tws_placed_is_split(placed) ? 0 : placed == TWS_PLACED_REPLICATED ? 1 : 2;
}

/* Determines the order in which parameters are flattened: by ZeRO class. Within a class it is the network's order, or,
 * with round_robin_gradients, the order in which they are assigned to the ranks one by one. */
static void order_params(tws_lower *l) {
  tws_zero *z = &l->zero;
  const uint32_t n = l->network->param_count;
  const int deals = l->config->zero.round_robin_gradients && z->stage > 0 && z->stage < 3;
  const int kinds = l->sharding.position.ranks[TWS_AXIS_MODEL] > 1 ? 3 : 1;
  int *members = scratch(l, n, sizeof *members), *dealt = scratch(l, n, sizeof *dealt);
  uint32_t count = 0;
  if (l->b.failed != TWS_OK) return;
  for (uint32_t k = 0; k < z->class_count; k++) {
    tws_zero_class *c = &z->classes[k];
    int in_class = 0;
    for (uint32_t p = 0; p < n; p++)
      if (z->class_of[p] == k) members[in_class++] = (int)p;
    tws_zero_flatten_order(in_class, c->ranks, deals, dealt);
    c->first = count;
    for (int kind = 0; kind < kinds; kind++)
      for (int i = 0; i < in_class; i++)
        if (kinds == 1 || kind_along_model(l, members[dealt[i]]) == kind) z->order[count++] = members[dealt[i]];
    c->end = count;
  }
}

/* Returns the number of elements, among the `owned` elements that the rank updates, that have optimizer state number
 * `index`: matrices that Muon updates, which come last, have only state 0. */
static uint64_t state_count(const tws_lower *l, int index, uint64_t owned) {
  const tws_zero *z = &l->zero;
  for (uint32_t k = 0; k < z->trained_count && index > 0; k++)
    if (tws_config_is_muon_group(l->config, z->classes[k].param_group)) return z->classes[k].kept;
  return owned;
}

static void make_state(tws_lower *l, uint64_t elements, uint64_t owned, const uint64_t *segments, uint32_t count) {
  const tws_optimizer_row *optimizer = tws_optimizer_of(l->config->optimizer);
  tws_plan *plan = l->b.plan;
  tws_offload_parameters(l, elements, segments, count);
  if (l->extent.parameters_only) return;
  const tws_dtype moments = tws_config_bf16_moments(l->config) ? TWS_BF16 : TWS_F32;
  /* If the host updates parameters that the device uses, they have separate master weights, even if both are
   * float32. */
  const tws_dtype masters = tws_config_half_masters(l->config)    ? l->config->dtype
                            : tws_config_split_masters(l->config) ? TWS_LOW16
                                                                  : TWS_F32;
  tws_state_entry entry = {.name = "master weights",
                           .dtype = (uint8_t)masters,
                           .category = TWS_CATEGORY_MASTER,
                           .role = TWS_ELEMENTS_OWNED,
                           .initial = TWS_INITIAL_PARAMETER,
                           .checkpointed = 1};
  if (l->config->dtype != masters || l->offload.optimizer || l->offload.param_tier != TWS_TIER_DEVICE)
    plan->master = tws_offload_owned(l, 0, &entry, owned);
  plan->optimizer_states = optimizer->states;
  const uint64_t narrow = tws_eight_bit_begin(l); /* the first elements have other states */
  for (int i = 0; i < optimizer->states; i++) {
    entry = (tws_state_entry){.name = optimizer->eight_bits ? tws_eight_bit_others[i] : optimizer->state[i],
                              .dtype = (uint8_t)moments,
                              .category = TWS_CATEGORY_MOMENT,
                              .role = TWS_ELEMENTS_OWNED,
                              .initial = TWS_INITIAL_ZERO,
                              .checkpointed = 1,
                              .first = narrow};
    plan->optimizer_state[i] = tws_offload_owned(l, 1 + i, &entry, state_count(l, i, owned) - narrow);
  }
  tws_delayed_begin(l, owned);
  tws_zenflow_begin(l, owned);
  tws_compressed_begin(l);
  tws_onebit_lamb_begin(l);
  tws_adafactor_begin(l);
}

/* Creates the buffers of gradients; an evaluation has none. */
static void make_gradients(tws_lower *l, uint64_t elements, const uint64_t *segments, uint32_t count) {
  tws_plan *plan = l->b.plan;
  if (l->extent.evaluates) return;
  plan->gradients = tws_builder_buffer(&l->b, "gradients", TWS_CATEGORY_GRADIENT, l->config->accumulation_dtype,
                                       elements, TWS_LIFETIME_OPS);
  if (segments) tws_builder_segments(&l->b, plan->gradients, segments, count);
}

static uint32_t starts_below(const uint64_t *starts, uint32_t count, uint64_t end) {
  while (count > 0 && starts[count - 1] >= end) count--;
  return count;
}

/* Returns the offset, in elements, at which frozen parameters begin after `stored` elements; where a gap is left there,
 * its offset is appended to starts[*count]. Updated weights are written to a disk in whole blocks, so frozen
 * ones begin with a new block. */
static uint64_t frozen_first(const tws_lower *l, uint64_t stored, uint64_t *starts, uint32_t *count) {
  const uint64_t over = l->offload.param_tier == TWS_TIER_DISK ? stored % TWS_DISK_ELEMENTS : 0;
  if (over > 0) starts[(*count)++] = stored;
  return over > 0 ? stored + TWS_DISK_ELEMENTS - over : stored;
}

/* Lays out all ZeRO classes one after another in the flat buffers. sizes: number of elements of each parameter that the
 * rank stores. */
static void lay_out(tws_lower *l, const uint64_t *sizes, uint64_t *starts) {
  tws_zero *z = &l->zero;
  uint64_t stored = 0, kept = 0, trained = 0, wide = 0;
  uint32_t count = 0;
  for (uint32_t k = 0; k < z->class_count; k++) {
    tws_zero_class *c = &z->classes[k];
    if (k == z->trained_count) stored = frozen_first(l, stored, starts, &count);
    c->stored = stored;
    c->kept = kept;
    count = class_layout(l, c, sizes, starts, count);
    stored += c->aligned;
    if (c->frozen != TWS_FROZEN_QUANTIZED) wide = stored;
    if (c->frozen) continue;
    kept += c->partition;
    trained = stored;
  }
  tws_offload_find_cut(l);
  make_state(l, wide, kept, starts, starts_below(starts, count, wide));
  tws_quantized_state(l, wide, stored - wide);
  /* if the cut is above 0, the device stores only the gradients of elements below the cut */
  const uint64_t cut = l->offload.cut;
  if (cut > 0 && tws_offload_copies_buckets(l) && !z->flat_gradients)
    make_gradients(l, cut, starts, starts_below(starts, count, cut));
  else if (z->flat_gradients || z->stage == 3 || z->ranks == 1) /* a single rank uses several buckets at once */
    make_gradients(l, trained, starts, starts_below(starts, count, trained));
  else
    make_gradients(l, kept, NULL, 0);
  if (!l->extent.evaluates) tws_offload_gradients(l, kept, starts, starts_below(starts, count, kept));
}

static void begin_flat(tws_lower *l, uint64_t *sizes, uint64_t *starts) {
  const uint32_t n = l->network->param_count;
  for (uint32_t p = 0; p < n; p++) sizes[p] = numel(l, p);
  lay_out(l, sizes, starts);
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t p = (uint32_t)l->zero.order[i];
    add_shards(l, p, 0, sizes[p]);
  }
}

static void begin_sharded(tws_lower *l, uint64_t *sizes, uint64_t *starts) {
  tws_zero *z = &l->zero;
  uint32_t n = l->network->param_count;
  int64_t *whole = scratch(l, n, sizeof *whole), *small = scratch(l, n, sizeof *small);
  z->part = scratch(l, n, sizeof *z->part);
  z->persistent = scratch(l, n, 1);
  z->gathered = scratch(l, n, sizeof *z->gathered);
  z->gathered_parts = scratch(l, n, sizeof *z->gathered_parts);
  if (l->b.failed != TWS_OK) return;
  for (uint32_t p = 0; p < n; p++) {
    whole[p] = (int64_t)numel(l, p);
    /* a group of quantization blocks is not divided among ranks */
    const int64_t unit = tws_is_quantized(l, p)                ? tws_quantized_unit(&l->b.plan->quantized)
                         : tws_zero_class_of(z, p)->eight_bits ? TWS_STATE_BLOCK
                                                               : 1;
    z->part[p] = tws_zero3_part(whole[p] / unit, tws_zero_class_of(z, p)->ranks) * unit;
    sizes[p] = (uint64_t)z->part[p];
    z->gathered[p] = TWS_NONE;
    /* a tile of a divided weight, or a weight of which this rank stores nothing, is not persistent */
    small[p] = tws_is_weight_tile(l, p) || !whole[p] ? INT64_MAX : whole[p];
  }
  if (!z->unit)
    tws_zero3_persistent((int)n, small, l->config->zero.param_persistence_threshold,
                         l->config->zero.model_persistence_threshold, z->persistent);
  lay_out(l, sizes, starts);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t p = (uint32_t)z->order[i];
    uint64_t first = sizes[p] * (uint64_t)tws_zero_class_of(z, p)->index, end = first + sizes[p];
    if (end > (uint64_t)whole[p]) end = (uint64_t)whole[p];
    if (first < end) add_shards(l, p, first, end - first);
  }
}

/* ---- buckets: gradients that are reduced together, in the order in which they become complete ---- */

static void count_uses(tws_lower *l) {
  for (int c = 0; c < l->pipeline.chunk_count; c++) {
    for (uint32_t m = l->pipeline.chunks[c].first; m < l->pipeline.chunks[c].end; m++) {
      for (int i = 0; i < TWS_MODULE_PARAMS; i++) {
        const uint32_t param = l->network->modules[m].param[i];
        if (param == TWS_NONE) continue;
        /* a held module contributes to no gradient; a frozen parameter counts as used where it is stored */
        if (l->network->modules[m].held && !tws_is_frozen(l, param)) continue;
        const uint32_t tiles = tws_weight_tile_count(l, param);
        for (uint32_t t = 0; t < tiles; t++) l->zero.uses[tws_visit_param(l, param, t)]++;
        if (!tiles) l->zero.uses[param]++;
      }
    }
  }
}

/* Finds the units of FSDP: each transformer layer is a unit; outside of transformer layers, the parameters of each
 * module are a unit. */
static void find_units(tws_lower *l) {
  tws_zero *z = &l->zero;
  const uint32_t n = l->network->param_count;
  uint32_t *of_layer = scratch(l, (size_t)l->network->layers + 1, sizeof *of_layer), first;
  z->unit = scratch(l, n, sizeof *z->unit);
  if (l->b.failed != TWS_OK) return;
  for (uint32_t p = 0; p < n; p++) z->unit[p] = TWS_NONE;
  for (int64_t i = 0; i < l->network->layers; i++) of_layer[i] = TWS_NONE;
  for (uint32_t m = 0; m < l->network->module_count; m++) {
    const tws_module *module = &l->network->modules[m];
    const int inside = module->layer >= 0 && module->layer < l->network->layers;
    first = inside ? of_layer[module->layer] : TWS_NONE;
    for (int i = 0; i < TWS_MODULE_PARAMS; i++) {
      const uint32_t p = module->param[i];
      if (p == TWS_NONE || z->unit[p] != TWS_NONE) continue;
      if (first == TWS_NONE) first = p;
      z->unit[p] = first;
    }
    if (inside) of_layer[module->layer] = first;
  }
  for (uint32_t p = 0; p < n; p++)
    if (z->unit[p] == TWS_NONE) z->unit[p] = p;
}

/* ---- reduction ---- */

/* Appends a range to `operands`, or extends the last operand if the range begins where that operand ends. */
static void add_range(tws_operand *operands, int *count, tws_operand range) {
  if (*count > 0 && operands[*count - 1].buffer == range.buffer &&
      operands[*count - 1].offset + operands[*count - 1].count == range.offset) {
    operands[*count - 1].count += range.count;
  } else {
    operands[(*count)++] = range;
  }
}

static uint64_t range_elements(const tws_operand *operands, int count) {
  uint64_t elements = 0;
  for (int i = 0; i < count; i++) elements += operands[i].count;
  return elements;
}

static void all_reduce(tws_lower *l, const tws_zero_class *c, const tws_operand *ranges, int count, tws_dtype dtype) {
  tws_zero_divide(l, ranges, count, 0);
  tws_builder_collective(&l->b, l->streams.reduce, TWS_COLLECTIVE_ALL_REDUCE, c->group, dtype,
                         range_elements(ranges, count) * tws_dtype_bytes(dtype), (uint32_t)count, 0, ranges, count);
  tws_zero_divide(l, ranges, count, 1);
}

/* Emits reductions of the slices that each rank updates (owns) to their owner alone, one collective per owner
 * (use_multi_rank_bucket_allreduce false). All ranges are in one buffer; flat[]: offset of each range in its ZeRO
 * class. */
static void reduce_to_owners(tws_lower *l, const tws_zero_class *c, const tws_operand *ranges, const uint64_t *flat,
                             int count, tws_dtype dtype) {
  tws_operand *mine = l->zero.room.others;
  uint64_t first = UINT64_MAX, last = 0; /* bounds of all ranges */
  for (int i = 0; i < count; i++) {
    if (!ranges[i].count) continue;
    if (flat[i] < first) first = flat[i];
    if (flat[i] + ranges[i].count > last) last = flat[i] + ranges[i].count;
  }
  for (int owner = last ? (int)(first / c->partition) : 0; owner < c->ranks && c->partition * (uint64_t)owner < last;
       owner++) {
    uint64_t begin = c->partition * (uint64_t)owner, end = begin + c->partition;
    int n = 0;
    for (int i = 0; i < count; i++) {
      uint64_t from = flat[i] > begin ? flat[i] : begin;
      uint64_t to = flat[i] + ranges[i].count < end ? flat[i] + ranges[i].count : end;
      if (from < to) add_range(mine, &n, tws_update(ranges[i].buffer, ranges[i].offset + from - flat[i], to - from));
    }
    if (!n) continue;
    tws_builder_collective(&l->b, l->streams.reduce, TWS_COLLECTIVE_REDUCE, c->group, dtype,
                           range_elements(mine, n) * tws_dtype_bytes(dtype), (uint32_t)n, (uint32_t)owner, mine, n);
  }
}

static void reduce_ranges(tws_lower *l, const tws_zero_class *c, const tws_operand *ranges, const uint64_t *flat,
                          int count, tws_dtype dtype) {
  if (l->zero.stage > 0 && l->config->zero.reduce_scatter && !l->config->zero.multi_rank_bucket_allreduce) {
    reduce_to_owners(l, c, ranges, flat, count, dtype);
    return;
  }
  int n = 0;
  for (int i = 0; i < count; i++) add_range(l->zero.room.others, &n, ranges[i]);
  all_reduce(l, c, l->zero.room.others, n, dtype);
}

static void keep_on_device(tws_lower *l, tws_operand from, uint64_t offset) {
  tws_plan *plan = l->b.plan;
  tws_dtype source = (tws_dtype)plan->buffers[from.buffer].dtype, target = l->config->accumulation_dtype;
  if (l->b.micro_batch == 0 && source == target) {
    tws_builder_copy(&l->b, l->streams.reduce, from, tws_write(plan->gradients, offset, from.count));
    return;
  }
  int add = l->b.micro_batch > 0 && l->zero.ranks > 1;
  tws_work work = tws_kernel_work(add ? TWS_KERNEL_ACCUMULATE : TWS_KERNEL_CAST, source, 0);
  work.dtype2 = (uint8_t)target;
  work.d[0] = (int64_t)from.count;
  tws_operand to =
      add ? tws_update(plan->gradients, offset, from.count) : tws_write(plan->gradients, offset, from.count);
  tws_operand operands[2] = {from, to};
  tws_builder_compute(&l->b, l->streams.reduce, &work, operands, 2);
}

/* Emits the operation that copies a reduced range to this rank's gradients in the first micro-batch, and adds the range
 * to them in later micro-batches. */
static void keep_reduced(tws_lower *l, tws_operand from, uint64_t offset) {
  tws_operand kept[2];
  from.access = TWS_READ;
  if (l->b.failed != TWS_OK) return;
  if (!tws_offload_copies_buckets(l)) {
    keep_on_device(l, from, offset);
    return;
  }
  for (int i = 0, n = tws_offload_kept(l, offset, from.count, kept); i < n; i++) {
    const tws_operand part = tws_read(from.buffer, from.offset, kept[i].count);
    from.offset += part.count;
    if (tws_offload_is_on_host(l, kept[i].buffer))
      tws_offload_keep(l, part, kept[i].offset, l->b.micro_batch > 0 && !l->zero.flat_gradients && l->zero.ranks > 1);
    else
      keep_on_device(l, part, kept[i].offset);
  }
}

/* Calls keep_reduced() for `count` ranges, from[i] to offset to[i]. Adjacent ranges with adjacent targets are passed as
 * one range, and are thus one operation. */
static void keep_ranges(tws_lower *l, const tws_operand *from, const uint64_t *to, int count) {
  for (int i = 0; i < count;) {
    tws_operand range = from[i];
    int k = i + 1;
    while (k < count && from[k].buffer == range.buffer && from[k].offset == range.offset + range.count &&
           to[k] == to[i] + range.count) {
      range.count += from[k++].count;
    }
    keep_reduced(l, range, to[i]);
    i = k;
  }
}

/* Reduces ranges of gradients over the ranks of a ZeRO class. If they are reduced in another type, `ranges` is replaced
 * by the ranges of the sums in this type; if the gradients are in one flat buffer, the sums are instead cast back into
 * this buffer. `ranges` has room for 2 x count operands. */
static void reduce_gradients(tws_lower *l, const tws_zero_class *c, tws_operand *ranges, const uint64_t *flat,
                             int count) {
  const tws_zero *z = &l->zero;
  if (z->ranks == 1) return;
  if (!tws_zero_casts(l)) {
    reduce_ranges(l, c, ranges, flat, count, z->grad_dtype);
    return;
  }
  tws_operand *copies = ranges + count;
  tws_zero_cast(l, ranges, copies, count);
  reduce_ranges(l, c, copies, flat, count, tws_config_communication_dtype(l->config));
  if (z->flat_gradients)
    tws_zero_cast_back(l, copies, ranges, count);
  else
    memcpy(ranges, copies, (size_t)count * sizeof *ranges);
}

/* Reduces a bucket of whole gradients and returns the buffer that was reduced. */
static uint32_t flush_flat_bucket(tws_lower *l, tws_bucket *bucket, tws_operand *ranges, uint64_t *flat) {
  tws_zero *z = &l->zero;
  const tws_zero_class *c = &z->classes[bucket->zero_class];
  const uint32_t *params = z->bucket_params + bucket->first;
  for (uint32_t i = 0; i < bucket->count; i++) {
    uint32_t p = params[i];
    flat[i] = z->flat_offset[p] - c->stored;
    ranges[i] = z->flat_gradients ? tws_update(l->b.plan->gradients, z->flat_offset[p], numel(l, p))
                                  : tws_update(bucket->buffer, z->slot[p], numel(l, p));
  }
  reduce_gradients(l, c, ranges, flat, (int)bucket->count);
  const uint32_t reduced = ranges[0].buffer;
  if (z->flat_gradients && !tws_offload_copies_buckets(l)) return reduced;
  uint64_t begin = c->partition * (uint64_t)c->index, end = begin + c->partition;
  int n = 0;
  for (uint32_t i = 0; i < bucket->count; i++) {
    uint64_t from = flat[i] > begin ? flat[i] : begin;
    uint64_t to = flat[i] + ranges[i].count < end ? flat[i] + ranges[i].count : end;
    if (from >= to) continue;
    ranges[n] = tws_read(ranges[i].buffer, ranges[i].offset + from - flat[i], to - from);
    flat[n++] = c->kept + from - begin; /* n <= i, so only elements that have been read already are overwritten */
  }
  keep_ranges(l, ranges, flat, n);
  return reduced;
}

/* Emits the reduce-scatter of gradients. Each gradient has two operands: the whole gradient, which consists of the
 * parts for all ranks, and the sum of all ranks' parts for this rank. Quantized reductions are emitted last. */
static void scatter(tws_lower *l, const tws_zero_class *c, const uint32_t *params, uint32_t count,
                    const tws_operand *operands, tws_dtype dtype) {
  const tws_zero *z = &l->zero;
  tws_operand *sorted = z->room.others;
  int64_t *part = z->room.part;
  uint32_t plain = 0, n = 0;
  uint64_t elements = 0;
  for (int coded = 0; coded < 2 && l->b.failed == TWS_OK; coded++)
    for (uint32_t i = 0; i < count; i++) {
      if (tws_reduces_quantized(l, params[i]) != coded) continue;
      memcpy(sorted + 2 * (size_t)n, operands + 2 * (size_t)i, 2 * sizeof *sorted);
      if (coded)
        part[n - plain] = z->part[params[i]];
      else
        elements += operands[2 * i].count, plain++;
      n++;
    }
  if (plain > 0 && l->b.failed == TWS_OK)
    tws_builder_collective(&l->b, l->streams.reduce, TWS_COLLECTIVE_REDUCE_SCATTER, c->group, dtype,
                           elements * tws_dtype_bytes(dtype), plain, 0, sorted, (int)(2 * plain));
  if (n > plain && l->b.failed == TWS_OK) tws_quantized_reduce(l, c, part, n - plain, sorted + 2 * (size_t)plain);
}

/* Reduces a bucket of sharded gradients (stage 3) and returns the buffer that was reduced. */
static uint32_t flush_sharded_bucket(tws_lower *l, tws_bucket *bucket, tws_operand *operands, uint64_t *to) {
  tws_zero *z = &l->zero;
  const tws_zero_class *c = &z->classes[bucket->zero_class];
  const uint32_t *params = z->bucket_params + bucket->first;
  const tws_dtype dtype = tws_config_communication_dtype(l->config);
  tws_operand whole = tws_all(&l->b, bucket->buffer, TWS_READ_WRITE);
  if (tws_zero_casts(l)) tws_zero_cast(l, &(tws_operand){whole.buffer, TWS_READ, 0, whole.count}, &whole, 1);
  int direct = l->b.micro_batch == 0 && dtype == l->config->accumulation_dtype && !tws_offload_copies_buckets(l);
  uint64_t parts = 0;
  for (uint32_t i = 0; i < bucket->count; i++) parts += (uint64_t)z->part[params[i]];
  if (!l->config->zero.reduce_scatter) { /* all-reduce whole gradients and keep one part of each */
    all_reduce(l, c, &whole, 1, dtype);
    for (uint32_t i = 0; i < bucket->count; i++) {
      uint64_t part = (uint64_t)z->part[params[i]];
      operands[i] = tws_read(whole.buffer, z->slot[params[i]] + part * (uint64_t)c->index, part);
      to[i] = z->flat_offset[params[i]];
    }
    keep_ranges(l, operands, to, (int)bucket->count);
    return whole.buffer;
  }
  uint32_t staging = direct ? l->b.plan->gradients
                            : tws_builder_buffer(&l->b, "reduced gradients", TWS_CATEGORY_BUCKET, dtype, parts, 0);
  uint64_t offset = 0;
  for (uint32_t i = 0; i < bucket->count; i++) {
    uint64_t part = (uint64_t)z->part[params[i]];
    operands[2 * i] = tws_read(whole.buffer, z->slot[params[i]], part * (uint64_t)c->ranks);
    operands[2 * i + 1] = tws_write(staging, direct ? z->flat_offset[params[i]] : offset, part);
    offset += part;
  }
  scatter(l, c, params, bucket->count, operands, dtype);
  if (direct) return whole.buffer;
  for (uint32_t i = 0; i < bucket->count; i++) {
    operands[i] = operands[2 * i + 1];
    to[i] = z->flat_offset[params[i]];
  }
  keep_ranges(l, operands, to, (int)bucket->count);
  return whole.buffer;
}

static void make_room(tws_lower *l) {
  const size_t n = l->network->param_count;
  l->zero.room = (tws_bucket_room){.operands = scratch(l, 2 * n, sizeof(tws_operand)),
                                   .others = scratch(l, 2 * n, sizeof(tws_operand)),
                                   .flat = scratch(l, n, sizeof(uint64_t)),
                                   .part = scratch(l, n, sizeof(int64_t))};
}

/* Returns the number of operations emitted so far, without the host operations after the last operation of the
 * device. */
static uint32_t device_ops(const tws_plan *plan) {
  uint32_t count = plan->op_count;
  while (count > 0 && plan->ops[count - 1].stream == TWS_STREAM_HOST) count--;
  return count;
}

static void flush_bucket(tws_lower *l, tws_bucket *bucket) {
  tws_zero *z = &l->zero;
  if (!z->room.operands) make_room(l);
  if (l->b.failed != TWS_OK) return;
  /* The lifetimes of the gradient buffers begin with the first bucket, even on ranks that update none of its elements,
   * so that all replicas need the same memory. */
  tws_builder_begin(&l->b, l->b.plan->gradients);
  tws_builder_begin(&l->b, l->offload.gradients);
  uint32_t module = l->b.module;
  l->b.module = TWS_NONE;
  uint32_t reduced;
  if (z->stage == 3 && z->ranks > 1) {
    reduced = flush_sharded_bucket(l, bucket, z->room.operands, z->room.flat);
    tws_groups_add_up(l, z->bucket_params + bucket->first, bucket->count);
  } else {
    reduced = flush_flat_bucket(l, bucket, z->room.operands, z->room.flat);
  }
  z->flushed[0] = z->flushed[1];
  z->flushed[1] = device_ops(l->b.plan);
  z->emptied[0] = z->emptied[1];
  z->emptied[1] = reduced;
  if (tws_zero_reuses_buffers(l)) tws_zero_bucket_end(l, (uint32_t)(bucket - z->buckets));
  bucket->buffer = TWS_NONE;
  l->b.module = module;
}

static void fill_zero(tws_lower *l, uint32_t buffer, uint64_t offset, uint64_t count) {
  if (!count) return;
  tws_work work = tws_kernel_work(TWS_KERNEL_FILL, (tws_dtype)l->b.plan->buffers[buffer].dtype, 0);
  work.d[0] = (int64_t)count;
  tws_operand operand = tws_write(buffer, offset, count);
  tws_builder_compute(&l->b, tws_offload_is_on_host(l, buffer) ? TWS_STREAM_HOST : TWS_STREAM_COMPUTE, &work, &operand,
                      1);
}

/* ---- the interface to the other passes ---- */

/* Returns 1 if reductions overlap with this micro-batch's backward pass. */
static int reduces_now(const tws_lower *l) {
  const tws_zero *z = &l->zero;
  if (z->stage == 0 || (z->ranks == 1 && z->flat_gradients)) return 0;
  if (z->stage >= 2) return 1;
  return l->streams.overlap && l->b.micro_batch + 1u == (uint32_t)l->extent.accumulation;
}

/* Enables micro-batch barriers for ZeRO 2 and 3 with overlap or offloading, if they have communication or copies. In
 * these plans, with overlapped exchanges, and with activation checkpoints on the host, no operation waits for memory: a
 * bucket is filled while the previous one is reduced or copied, or all buckets have buffers of their own. */
static void keep_in_step(tws_lower *l) {
  const tws_zero *z = &l->zero;
  const int checkpoints = l->checkpoints.on && l->checkpoints.tier != TWS_TIER_DEVICE;
  const int moves = z->ranks > 1 || !z->flat_gradients || l->offload.param_tier != TWS_TIER_DEVICE;
  l->b.plan->micro_batch_barriers = z->stage >= 2 && moves && (tws_config_offloads(l->config) || l->streams.overlap);
  l->b.no_wait_for_memory = l->b.plan->micro_batch_barriers || l->streams.exchanges_overlap || checkpoints;
}

void tws_zero_choose_ranks(tws_lower *l, tws_axes replicas) {
  l->zero.group = tws_lower_group(l, replicas);
  l->zero.ranks = tws_topology_size(&l->b.plan->topology, replicas);
  l->zero.stage = l->config->zero.stage;
}

tws_code tws_zero_begin(tws_lower *l) {
  tws_zero *z = &l->zero;
  uint32_t n = l->network->param_count;
  tws_offload_begin(l);
  z->flat_gradients = z->stage <= 1 || (z->ranks == 1 && !tws_offload_copies_buckets(l));
  z->grad_dtype = z->flat_gradients || z->ranks == 1 ? l->config->accumulation_dtype : l->config->dtype;
  z->flat_offset = scratch(l, n, sizeof *z->flat_offset);
  z->order = scratch(l, n, sizeof *z->order);
  z->written = scratch(l, n, 1);
  z->uses = scratch(l, n, sizeof *z->uses);
  z->left = scratch(l, n, sizeof *z->left);
  uint64_t *sizes = scratch(l, n, sizeof *sizes);
  uint64_t *starts = tws_arena_alloc(l->b.plan->arena, n + TWS_ZERO_CLASSES, sizeof *starts);
  tws_state *state = l->b.plan->state;
  const size_t shards = 3 * (size_t)n + 1;
  if (l->b.plan->owns_state) state->shards = tws_arena_alloc(state->arena, shards, sizeof *state->shards);
  if (!starts || !state->shards) tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  if (l->b.failed != TWS_OK) return l->b.failed;
  if (z->ranks == 1 && z->stage == 3 && l->offload.param_tier == TWS_TIER_DEVICE)
    z->stage = 2; /* a single rank has nothing to partition, so parameters need not be gathered */
  keep_in_step(l);
  count_uses(l);
  if (l->config->zero.by_block && z->stage >= 2) find_units(l);
  tws_zero_make_classes(l);
  order_params(l);
  if (l->b.failed != TWS_OK) return l->b.failed;
  if (z->stage == 3) {
    begin_sharded(l, sizes, starts);
  } else {
    begin_flat(l, sizes, starts);
  }
  tws_zero_make_buckets(l);
  if (l->b.failed == TWS_OK && z->stage == 3) tws_zero3_gathers_begin(l);
  return l->b.failed;
}

void tws_zero_micro_begin(tws_lower *l) {
  tws_zero *z = &l->zero;
  memcpy(z->left, z->uses, l->network->param_count * sizeof *z->left);
  if (!z->flat_gradients) memset(z->written, 0, l->network->param_count);
  for (uint32_t i = 0; i < z->bucket_count; i++) z->buckets[i].pending = z->buckets[i].count;
  z->flushed[0] = z->flushed[1] = 0;
  tws_zero_buckets_pass(l, 0);
  tws_fetch_begin(l, TWS_FETCH_MICRO_BATCH);
}

/* Keeps the memory of a reduced bucket reserved until the next operation, also on ranks that copy none of its gradients
 * to the host, so that all replicas need the same memory. */
static void hold_emptied(tws_lower *l, int which) {
  const tws_zero *z = &l->zero;
  if (z->flushed[which] && tws_offload_copies_buckets(l)) tws_builder_hold(&l->b, z->emptied[which]);
}

void tws_zero_micro_end(tws_lower *l) {
  tws_zero *z = &l->zero;
  for (int i = 0; i < 2 && l->b.plan->micro_batch_barriers; i++) hold_emptied(l, i);
  if (z->ranks == 1 || l->b.micro_batch + 1u != (uint32_t)l->extent.accumulation) return;
  if (tws_gradients_stay_local(l)) return;
  l->b.module = TWS_NONE;
  l->b.phase = TWS_PHASE_BACKWARD;
  if (z->stage == 0) { /* DeepSpeed's stage 0: groups of up to 500 million elements, in flat order */
    const uint64_t group = 500000000;
    make_room(l);
    if (l->b.failed != TWS_OK) return;
    for (uint32_t k = 0; k < z->trained_count; k++) {
      const tws_zero_class *c = &z->classes[k];
      if (!tws_zero_has_turn(l, c)) continue;
      for (uint64_t at = 0; at < c->total;) {
        uint32_t table = TWS_NONE;
        uint64_t end = c->total;
        const int by_rows = tws_sparse_next(l, c, at, &table, &end);
        for (; at < end; at += group) {
          tws_operand range[2] = {
              tws_update(l->b.plan->gradients, c->stored + at, at + group < end ? group : end - at)};
          reduce_gradients(l, c, range, NULL, 1);
        }
        at = end;
        if (!by_rows) break;
        tws_sparse_reduce(l, c, table);
        at += numel(l, table);
      }
    }
  } else if (z->stage == 1 && !l->streams.overlap) {
    for (uint32_t i = 0; i < z->bucket_count; i++)
      if (tws_zero_has_turn(l, &z->classes[z->buckets[i].zero_class])) flush_bucket(l, &z->buckets[i]);
  }
}

tws_operand tws_zero_param(tws_lower *l, uint32_t param) {
  const tws_zero *z = &l->zero;
  if (z->stage == 3 && z->gathered[param] == TWS_NONE) {
    tws_builder_fail(&l->b, TWS_INTERNAL, l->network->params[param].name);
    return (tws_operand){0};
  }
  if (tws_is_quantized(l, param)) return tws_dequantized(l, param);
  if (z->stage != 3) return tws_read(l->b.plan->parameters, z->flat_offset[param], numel(l, param));
  return tws_read(z->gathered[param], 0, numel(l, param));
}

int tws_zero_adds(const tws_lower *l, uint32_t param) {
  const tws_zero *z = &l->zero;
  if (z->flat_gradients || z->buckets[z->bucket_of[param]].buffer != TWS_NONE) return z->written[param];
  return z->written[param] || (z->ranks == 1 && l->b.micro_batch > 0);
}

static void begin_bucket(tws_lower *l, tws_bucket *bucket) {
  tws_zero *z = &l->zero;
  if (tws_zero_reuses_buffers(l)) {
    bucket->buffer = tws_zero_bucket_begin(l, (uint32_t)(bucket - z->buckets));
    return;
  }
  bucket->buffer =
      tws_builder_buffer(&l->b, "gradient bucket", TWS_CATEGORY_BUCKET, z->grad_dtype, bucket->elements, 0);
  /* hazards in the bucket are tracked separately for each gradient */
  uint64_t *starts = tws_arena_alloc(l->b.plan->arena, bucket->count, sizeof *starts);
  for (uint32_t i = 0; starts && i < bucket->count; i++) starts[i] = z->slot[z->bucket_params[bucket->first + i]];
  tws_builder_segments(&l->b, bucket->buffer, starts, bucket->count);
  /* one bucket is filled while another is reduced and copied: DeepSpeed has two buffers, too */
  if (!l->b.plan->micro_batch_barriers || !z->flushed[0]) return;
  tws_builder_begin_after(&l->b, bucket->buffer, z->flushed[0] - 1);
  hold_emptied(l, 0);
}

tws_operand tws_zero_gradient(tws_lower *l, uint32_t param, int *accumulate) {
  tws_zero *z = &l->zero;
  *accumulate = z->written[param];
  z->written[param] = 1;
  tws_operand gradient = {.access = *accumulate ? TWS_READ_WRITE : TWS_WRITE, .count = numel(l, param)};
  if (z->flat_gradients) {
    gradient.buffer = l->b.plan->gradients;
    gradient.offset = z->flat_offset[param];
    return gradient;
  }
  tws_bucket *bucket = &z->buckets[z->bucket_of[param]];
  if (bucket->buffer == TWS_NONE) {
    begin_bucket(l, bucket);
    if (z->ranks == 1 && l->b.micro_batch > 0) { /* the bucket contains the sums of earlier micro-batches */
      for (uint32_t i = 0; i < bucket->count; i++) z->written[z->bucket_params[bucket->first + i]] = 1;
      *accumulate = 1;
      gradient.access = TWS_READ_WRITE;
    }
  }
  gradient.buffer = bucket->buffer;
  gradient.offset = z->slot[param];
  return gradient;
}

void tws_zero_contributed(tws_lower *l, uint32_t param) {
  tws_zero *z = &l->zero;
  if (--z->left[param] > 0 || !reduces_now(l)) return;
  tws_bucket *bucket = &z->buckets[z->bucket_of[param]];
  if (z->stage == 3) { /* the padding is filled with zeros, since the gradient norm includes it */
    uint64_t padded = (uint64_t)z->part[param] * (uint64_t)tws_zero_class_of(z, param)->ranks, n = numel(l, param);
    const uint32_t module = l->b.module;
    l->b.module = TWS_NONE; /* reductions belong to no module */
    fill_zero(l, bucket->buffer, z->slot[param] + n, padded - n);
    l->b.module = module;
  }
  if (--bucket->pending == 0) flush_bucket(l, bucket);
}

static void fill_kept(tws_lower *l, uint64_t first, uint64_t count) {
  tws_operand kept[2];
  const int n = count > 0 && l->b.failed == TWS_OK ? tws_offload_kept(l, first, count, kept) : 0;
  for (int i = 0; i < n; i++) fill_zero(l, kept[i].buffer, kept[i].offset, kept[i].count);
}

void tws_zero_pad_gradients(tws_lower *l) {
  const tws_zero *z = &l->zero;
  if (z->stage == 3 || z->stage == 0) return;
  for (uint32_t k = 0; k < z->trained_count; k++) {
    const tws_zero_class *c = &z->classes[k];
    if (!tws_zero_has_turn(l, c)) continue;
    const uint64_t padding = (uint64_t)tws_zero_padding((int64_t)c->total, (int64_t)c->partition, c->index);
    if (z->flat_gradients)
      fill_zero(l, l->b.plan->gradients, c->stored + c->total, c->aligned - c->total);
    else
      fill_kept(l, c->kept + c->partition - padding, padding);
  }
}
