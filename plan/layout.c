#include "plan/layout.h"

#include <string.h>

typedef struct range {
  uint64_t begin, end;
} range;

typedef struct space { /* the free ranges in the order of their addresses; no two are adjacent */
  range *free;
  size_t count, capacity;
} space;

typedef struct layout {
  tws_builder *b;
  tws_plan *plan;
  /* Lists of buffers by their first operation, and by their last operation: the head of each operation's list, and for
   * each buffer the next one in the list. */
  uint32_t *starting, *starting_next, *ending, *ending_next;
  uint64_t *offset, *best;
  uint32_t *computed;           /* per operation: number of computations of modules before it */
  uint8_t *from_high, *message; /* per buffer: 1 if it is placed from the high end; 1 if it is sent or received */
  int has_messages;
  /* per buffer: the corresponding buffer one period earlier, or TWS_NONE; NULL: the plan is not periodic */
  uint32_t *before;
  uint32_t period; /* period in micro-batches; 0: no period is known */
  /* 1 + the last micro-batch with a buffer whose offset differs from that of one period earlier; 0: none */
  uint32_t unsettled;
  uint32_t ending_from; /* micro-batches from this one on may differ, since the step ends */
  range *kept_free;     /* scratch array of take_clear() */
  size_t kept_capacity;
  range *sorting; /* scratch array of sort_by_beginning() */
  size_t sorting_capacity;
  uint64_t *in_slots;  /* per buffer of messages: its offset in the memory of slots */
  uint64_t slot_bytes; /* bytes of all slots of the tier */
  range *slots;        /* free slots, in the order in which they became free */
  size_t slot_count, slot_capacity;
  space space;
  uint8_t *place; /* per buffer: its tier, or NO_TIER for a buffer of the state */
  uint8_t here;   /* the tier that is being laid out */
  int tier;
  uint64_t alignment; /* alignment in bytes in this tier: all sizes are multiples of it, and thus all offsets */
} layout;

static uint64_t padded(const layout *l, uint64_t bytes) {
  return (tws_layout_bytes(bytes) + l->alignment - 1) / l->alignment * l->alignment;
}

enum { NO_TIER = 255 };

static int is_here(const layout *l, uint32_t buffer) {
  return l->place[buffer] == l->here;
}

/* begin_of() returns the operation from which on a buffer has its memory, end_of() the operation until which it has it.
 * Buffers of messages are in slots, for which operations wait. */
static uint32_t begin_of(const layout *l, uint32_t buffer) {
  return l->b->taken && !l->message[buffer] ? l->b->taken[buffer] : l->plan->buffers[buffer].first_op;
}
static uint32_t end_of(const layout *l, uint32_t buffer) {
  return l->b->held && !l->message[buffer] ? l->b->held[buffer] : l->plan->buffers[buffer].last_op;
}

/* Returns 1 if an operation computes a module; such operations are the same on all replicas. */
static int computes_module(const tws_op *op) {
  return op->kind == TWS_OP_COMPUTE && op->module != TWS_NONE;
}

static int insert_range(space *s, size_t at, range r) {
  if (tws_reserve(&s->free, &s->capacity, s->count + 1, sizeof *s->free)) return -1;
  memmove(s->free + at + 1, s->free + at, (s->count - at) * sizeof *s->free);
  s->free[at] = r;
  s->count++;
  return 0;
}

static void remove_range(space *s, size_t at) {
  s->count--;
  memmove(s->free + at, s->free + at + 1, (s->count - at) * sizeof *s->free);
}

/* Takes `bytes` bytes from the smallest free range that is large enough; among ranges of equal size, from the highest
 * if `high` is 1, else from the lowest. Returns the offset. */
static uint64_t take_range(space *s, uint64_t bytes, int high) {
  size_t best = s->count;
  uint64_t size = UINT64_MAX;
  for (size_t i = 0; i < s->count; i++) {
    uint64_t room = s->free[i].end - s->free[i].begin;
    if (room < bytes || room > size || (room == size && !high)) continue;
    best = i;
    size = room;
  }
  if (best == s->count) return UINT64_MAX;
  range *r = &s->free[best];
  uint64_t offset = high ? r->end - bytes : r->begin;
  if (high) {
    r->end -= bytes;
  } else {
    r->begin += bytes;
  }
  if (r->begin == r->end) remove_range(s, best);
  return offset;
}

/* Takes the range [begin, begin + bytes) and returns 1; returns 0 if it is not free. */
static int take_exactly(space *s, uint64_t begin, uint64_t bytes) {
  size_t low = 0, high = s->count;
  while (high - low > 1) {
    size_t middle = (low + high) / 2;
    *(s->free[middle].begin <= begin ? &low : &high) = middle;
  }
  if (low >= s->count || s->free[low].begin > begin || s->free[low].end < begin + bytes) return 0;
  const range whole = s->free[low];
  s->free[low].end = begin;
  if (begin + bytes < whole.end) {
    if (begin > whole.begin) return insert_range(s, low + 1, (range){begin + bytes, whole.end}) == 0;
    s->free[low] = (range){begin + bytes, whole.end};
  } else if (begin == whole.begin) {
    remove_range(s, low);
  }
  return 1;
}

static int give_range(space *s, uint64_t begin, uint64_t bytes) {
  size_t low = 0, high = s->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (s->free[middle].begin < begin) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  uint64_t end = begin + bytes;
  int before = low > 0 && s->free[low - 1].end == begin, after = low < s->count && s->free[low].begin == end;
  if (before && after) {
    s->free[low - 1].end = s->free[low].end;
    remove_range(s, low);
  } else if (before) {
    s->free[low - 1].end = end;
  } else if (after) {
    s->free[low].begin = begin;
  } else {
    return insert_range(s, low, (range){begin, end});
  }
  return 0;
}

/* ---- messages ---- Buffers of messages are in use until the other rank has reached the matching send or receive: if
 * their memory were reused at once, this rank would wait for the other rank, and if they got memory that a kernel has
 * just used, the other rank would wait for that kernel. Messages therefore have slots of their own, separate from all
 * other buffers. The slot that is unused for the longest time is taken first, and there are more slots than needed. */

enum { SPARE_SLOTS = 2 };

static range take_slot(layout *l, uint64_t bytes) {
  size_t oldest = l->slot_count, fitting = 0;
  for (size_t i = 0; i < l->slot_count; i++) { /* slots in the order in which they became free */
    if (l->slots[i].end - l->slots[i].begin != bytes) continue;
    if (fitting++ == 0) oldest = i;
  }
  if (fitting <= SPARE_SLOTS) {
    const range fresh = {l->slot_bytes, l->slot_bytes + bytes};
    l->slot_bytes = fresh.end;
    return fresh;
  }
  const range slot = l->slots[oldest];
  l->slot_count--;
  memmove(l->slots + oldest, l->slots + oldest + 1, (l->slot_count - oldest) * sizeof *l->slots);
  return slot;
}

/* Determines the slot of each buffer of messages from the order of operations alone. */
static int deal_slots(layout *l) {
  const tws_plan *plan = l->plan;
  l->slot_count = 0;
  l->slot_bytes = 0;
  for (uint32_t op = 0; l->has_messages && op < plan->op_count; op++) {
    for (uint32_t i = l->starting[op]; i != TWS_NONE; i = l->starting_next[i])
      if (l->message[i] && is_here(l, i)) l->in_slots[i] = take_slot(l, tws_layout_bytes(plan->buffers[i].bytes)).begin;
    for (uint32_t i = l->ending[op]; i != TWS_NONE; i = l->ending_next[i]) {
      if (!l->message[i] || !is_here(l, i)) continue;
      if (tws_reserve(&l->slots, &l->slot_capacity, l->slot_count + 1, sizeof *l->slots)) return -1;
      l->slots[l->slot_count++] = (range){l->in_slots[i], l->in_slots[i] + tws_layout_bytes(plan->buffers[i].bytes)};
    }
  }
  return 0;
}

/* ---- plans that repeat ----
 * A plan of few micro-batches has to show the layout of any number of them (plan/fold.h). A best fit alone does not
 * have this property, since it packs each micro-batch of a pipeline a little differently. Therefore a buffer is placed
 * at the offset of the corresponding buffer one period earlier whenever that memory is free. A period has as many
 * micro-batches as are needed for each buffer to end before the corresponding buffer of the next period begins. If the
 * memory is not free, because the earlier buffer was placed while the pipeline was still filling, the buffer is placed
 * where it overlaps with no buffer that begins during its lifetime, assuming that these have the offsets of one period
 * earlier. So no buffer has to move because another one did, and from the third period on, if not earlier, all buffers
 * have the offsets of one period earlier.
 *
 * The free memory is then equal to that of one period earlier, as soon as all buffers that are alive have the offsets
 * of one period earlier. A placement is a function of the free memory and of the offsets one period earlier, so all
 * later buffers repeat these offsets, by induction. */

/* Lists the buffers of each micro-batch in the order of their creation in `list`, those of micro-batch m from
 * first[m] on. */
static int list_by_micro_batch(const tws_plan *plan, tws_arena *scratch, uint32_t **first, uint32_t **list) {
  const size_t micro_batches = (size_t)plan->accumulation_steps;
  *first = tws_arena_alloc(scratch, micro_batches + 2, sizeof **first);
  *list = tws_arena_alloc_unset(scratch, plan->buffer_count + 1u, sizeof **list);
  if (!*first || !*list) return -1;
  for (int fill = 0; fill < 2; fill++) { /* count the buffers, then fill the list */
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
      const tws_buffer *b = &plan->buffers[i];
      if (b->lifetime != TWS_LIFETIME_OPS || b->last_op == TWS_NONE) continue;
      const uint32_t at = plan->ops[b->first_op].micro_batch;
      if (at >= micro_batches) continue;
      if (fill)
        (*list)[(*first)[at + 1]++] = i;
      else
        (*first)[at + 2]++;
    }
    for (size_t m = 2; !fill && m < micro_batches + 2; m++) (*first)[m] += (*first)[m - 1];
  }
  return 0;
}

/* Returns the buffer of the micro-batch `apart` micro-batches earlier that corresponds to the k-th buffer of
 * `micro_batch`; TWS_NONE: there is none of equal size. */
static uint32_t same_before(const layout *l, const uint32_t *first, const uint32_t *list, uint32_t micro_batch,
                            uint32_t k, uint32_t apart) {
  const tws_plan *plan = l->plan;
  const uint32_t before = first[micro_batch - apart], count = first[micro_batch - apart + 1] - before;
  if (k >= count) return TWS_NONE;
  const uint32_t i = list[first[micro_batch] + k], other = list[before + k];
  return plan->buffers[i].bytes == plan->buffers[other].bytes && l->place[i] == l->place[other] ? other : TWS_NONE;
}

/* Returns 1 if each buffer ends its life before the corresponding one `apart` micro-batches later begins. Some buffers
 * of the first micro-batch are kept for the whole step. */
static int is_period(const layout *l, const uint32_t *first, const uint32_t *list, uint32_t apart) {
  for (uint32_t m = l->ending_from; m-- > apart + 1;) {
    for (uint32_t k = 0; k < first[m + 1] - first[m]; k++) {
      const uint32_t i = list[first[m] + k], other = same_before(l, first, list, m, k, apart);
      if (other != TWS_NONE && !l->message[i] && end_of(l, other) >= begin_of(l, i)) return 0;
    }
  }
  return l->ending_from > apart + 1;
}

static int find_repetition(layout *l, const tws_repetition *repeats, tws_arena *scratch) {
  const tws_plan *plan = l->plan;
  uint32_t *first, *list, apart = repeats->step;
  if (repeats->step == 0) return 0;
  const int64_t ending_from = plan->accumulation_steps - (int64_t)repeats->ending;
  l->ending_from = ending_from > 0 ? (uint32_t)ending_from : 0;
  if (list_by_micro_batch(plan, scratch, &first, &list)) return -1;
  while (apart < l->ending_from && !is_period(l, first, list, apart)) apart += repeats->step;
  l->period = apart;
  l->before = tws_arena_alloc_unset(scratch, plan->buffer_count + 1u, sizeof *l->before);
  if (!l->before) return -1;
  memset(l->before, 0xff, plan->buffer_count * sizeof *l->before); /* TWS_NONE */
  for (uint32_t m = apart; m < plan->accumulation_steps; m++)
    for (uint32_t k = 0; k < first[m + 1] - first[m]; k++)
      l->before[list[first[m] + k]] = same_before(l, first, list, m, k, apart);
  return 0;
}

uint8_t *tws_layout_find_messages(const tws_plan *plan, tws_arena *scratch) {
  uint8_t *message = tws_arena_alloc(scratch, plan->buffer_count + 1u, 1);
  for (uint32_t op = 0; message && op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    if (o->kind == TWS_OP_SEND || o->kind == TWS_OP_RECV) message[plan->operands[o->operand_first].buffer] = 1;
  }
  return message;
}

static void insert_in_order(range *ranges, size_t count) {
  for (size_t i = 1; i < count; i++) {
    const range r = ranges[i];
    size_t at = i;
    for (; at > 0 && ranges[at - 1].begin > r.begin; at--) ranges[at] = ranges[at - 1];
    ranges[at] = r;
  }
}

/* Sorts ranges by their beginnings; equal ones keep their order. Plans of many layers sort thousands of ranges for each
 * buffer, for which a comparison sort took a third of the time of planning. Therefore 64 ranges and more are sorted by
 * digits, from the lowest to the highest in which beginnings differ; fewer than 1,024 ranges by smaller digits, whose
 * counters are cleared faster. `other`: room for as many ranges. */
static void sort_by_beginning(range *ranges, range *other, size_t count) {
  enum { MOST_BITS = 11, FEW = 64, MANY = 1024 };
  if (count < FEW) {
    insert_in_order(ranges, count);
    return;
  }
  uint64_t differ = 0;
  for (size_t i = 1; i < count; i++) differ |= ranges[i].begin ^ ranges[0].begin;
  const int bits = count < MANY ? 8 : MOST_BITS;
  const uint32_t digits = 1u << bits;
  range *from = ranges, *to = other;
  for (int shift = differ ? __builtin_ctzll(differ) : 64; shift < 64 && differ >> shift; shift += bits) {
    uint32_t first[(1 << MOST_BITS) + 1];
    memset(first, 0, (digits + 1) * sizeof *first);
    for (size_t i = 0; i < count; i++) first[(from[i].begin >> shift) % digits + 1]++;
    for (uint32_t d = 0; d < digits; d++) first[d + 1] += first[d];
    for (size_t i = 0; i < count; i++) to[first[(from[i].begin >> shift) % digits]++] = from[i];
    range *swap = from;
    from = to;
    to = swap;
  }
  if (from != ranges) memcpy(ranges, from, count * sizeof *ranges);
}

/* Lists the address ranges that other buffers will need during this buffer's life, sorted by address, and returns their
 * number. A micro-batch repeats the operations of the micro-batch before, and a buffer gets the address that the
 * corresponding buffer had there if it is free; so the ranges are the earlier addresses of the buffers that begin
 * during this buffer's life. */
static size_t find_kept_free(layout *l, uint32_t buffer) {
  const uint32_t begin = begin_of(l, buffer);
  size_t count = 0;
  for (uint32_t op = begin; op <= end_of(l, buffer); op++) {
    for (uint32_t i = l->starting[op]; i != TWS_NONE; i = l->starting_next[i]) {
      const uint32_t before = l->before[i];
      if (i == buffer || !is_here(l, i) || l->message[i] || before == TWS_NONE || begin_of(l, before) >= begin)
        continue;
      if (tws_reserve(&l->kept_free, &l->kept_capacity, count + 1, sizeof *l->kept_free)) return 0;
      const uint64_t at = l->offset[before];
      l->kept_free[count++] = (range){at, at + padded(l, l->plan->buffers[before].bytes)};
    }
  }
  if (tws_reserve(&l->sorting, &l->sorting_capacity, count, sizeof *l->sorting)) return 0;
  sort_by_beginning(l->kept_free, l->sorting, count);
  return count;
}

/* Takes the best-fitting free range that does not overlap the ranges of find_kept_free(); returns its offset. */
static uint64_t take_clear(layout *l, uint32_t buffer, uint64_t bytes, int high) {
  const size_t count = find_kept_free(l, buffer);
  uint64_t at = UINT64_MAX, size = UINT64_MAX;
  for (size_t f = 0, k = 0; f < l->space.count; f++) {
    const range whole = l->space.free[f];
    uint64_t begin = whole.begin;
    while (k > 0 && l->kept_free[k - 1].end > begin) k--;
    while (begin < whole.end) {
      while (k < count && l->kept_free[k].end <= begin) k++;
      const uint64_t next = k < count ? l->kept_free[k].begin : UINT64_MAX, end = next < whole.end ? next : whole.end;
      if (end > begin && end - begin >= bytes && (end - begin < size || (end - begin == size && high))) {
        size = end - begin;
        at = high ? end - bytes : begin;
      }
      if (next >= whole.end) break;
      if (l->kept_free[k].end > begin) begin = l->kept_free[k].end;
    }
  }
  return at != UINT64_MAX && take_exactly(&l->space, at, bytes) ? at : UINT64_MAX;
}

static uint64_t place_buffer(layout *l, uint32_t i, uint64_t bytes, int high) {
  if (!l->before) return take_range(&l->space, bytes, high);
  const uint32_t before = l->before[i], micro_batch = l->plan->ops[l->plan->buffers[i].first_op].micro_batch;
  if (before != TWS_NONE && end_of(l, before) < begin_of(l, i) && take_exactly(&l->space, l->offset[before], bytes))
    return l->offset[before];
  if (micro_batch >= l->unsettled && micro_batch < l->ending_from) l->unsettled = micro_batch + 1;
  return before != TWS_NONE ? take_clear(l, i, bytes, high) : take_range(&l->space, bytes, high);
}

/* Makes one pass over the operations inside [0, size). Returns the end of the used memory, or UINT64_MAX if the buffers
 * do not fit. */
static uint64_t attempt_layout(layout *l, uint64_t size, int two_ended) {
  const tws_plan *plan = l->plan;
  uint64_t reached = 0;
  l->space.count = 0;
  l->unsettled = 0;
  if (insert_range(&l->space, 0, (range){0, size})) {
    tws_builder_fail(l->b, TWS_MEMORY, "no memory");
    return UINT64_MAX;
  }
  for (uint32_t i = 0; i < plan->buffer_count; i++) {
    if (!is_here(l, i) || plan->buffers[i].lifetime != TWS_LIFETIME_PROGRAM) continue;
    l->offset[i] = take_range(&l->space, padded(l, plan->buffers[i].bytes), 0);
    if (l->offset[i] == UINT64_MAX) return UINT64_MAX;
    reached = l->offset[i] + padded(l, plan->buffers[i].bytes);
  }
  const uint64_t slots = l->slot_bytes ? take_range(&l->space, l->slot_bytes, 0) : 0;
  if (slots == UINT64_MAX) return UINT64_MAX;
  if (l->slot_bytes) reached = slots + l->slot_bytes;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    for (uint32_t i = l->starting[op]; i != TWS_NONE; i = l->starting_next[i]) {
      if (!is_here(l, i)) continue;
      if (l->message[i]) {
        l->offset[i] = slots + l->in_slots[i];
        continue;
      }
      uint64_t bytes = padded(l, plan->buffers[i].bytes);
      int high = two_ended && l->from_high[i];
      l->offset[i] = place_buffer(l, i, bytes, high);
      if (l->offset[i] == UINT64_MAX) return UINT64_MAX;
      if (l->offset[i] + bytes > reached) reached = l->offset[i] + bytes;
    }
    for (uint32_t i = l->ending[op]; i != TWS_NONE; i = l->ending_next[i]) {
      if (!is_here(l, i) || l->message[i]) continue;
      uint64_t bytes = padded(l, plan->buffers[i].bytes);
      if (give_range(&l->space, l->offset[i], bytes)) {
        tws_builder_fail(l->b, TWS_MEMORY, "no memory");
        return UINT64_MAX;
      }
    }
  }
  return reached;
}

static void keep_best(layout *l) {
  memcpy(l->best, l->offset, l->plan->buffer_count * sizeof *l->best);
}

/* Returns the bytes of the network's inputs, which grow with the number of micro-batches. */
static uint64_t input_bytes(const layout *l) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < TWS_NETWORK_INPUTS; i++) {
    const uint32_t input = l->plan->input[i];
    if (input != TWS_NONE && is_here(l, input)) bytes += padded(l, l->plan->buffers[input].bytes);
  }
  return bytes;
}

static uint64_t whole_program_bytes(const layout *l) {
  const tws_plan *plan = l->plan;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < plan->buffer_count; i++) {
    if (is_here(l, i) && plan->buffers[i].lifetime == TWS_LIFETIME_PROGRAM) bytes += padded(l, plan->buffers[i].bytes);
  }
  return bytes;
}

/* Returns a lower bound of the bytes that every layout of the arena needs: the largest sum of the sizes of buffers
 * alive at the same time, plus the slots, each of which is reserved for the whole step. */
static uint64_t lower_bound(const layout *l) {
  const tws_plan *plan = l->plan;
  uint64_t live = whole_program_bytes(l) + l->slot_bytes, most = live;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    for (uint32_t i = l->starting[op]; i != TWS_NONE; i = l->starting_next[i]) {
      if (is_here(l, i) && !l->message[i]) live += padded(l, plan->buffers[i].bytes);
    }
    if (live > most) most = live;
    for (uint32_t i = l->ending[op]; i != TWS_NONE; i = l->ending_next[i]) {
      if (is_here(l, i) && !l->message[i]) live -= padded(l, plan->buffers[i].bytes);
    }
  }
  return most;
}

/* Determines which buffers are short-lived: those that live for at most 1 / `part` of a micro-batch. A
 * lifetime is the number of computations of modules in it, relative to that of the first micro-batch, so that it
 * depends neither on the number of micro-batches nor on how much of a bucket this rank keeps: replicas have equal
 * layouts. */
static void classify_ends(layout *l, uint32_t part) {
  const tws_plan *plan = l->plan;
  uint32_t ops = 0;
  for (uint32_t op = 0; op < plan->op_count; op++)
    ops += computes_module(&plan->ops[op]) && plan->ops[op].micro_batch == 0;
  for (uint32_t i = 0; i < plan->buffer_count; i++) {
    const tws_buffer *b = &plan->buffers[i];
    l->from_high[i] = b->lifetime == TWS_LIFETIME_OPS && b->last_op != TWS_NONE &&
                      l->computed[b->last_op] - l->computed[b->first_op] <= ops / part;
  }
}

/* Records the number of micro-batches after which the layouts of all tiers of the plan repeat. */
static void keep_settled(const layout *l, uint32_t unsettled) {
  const uint32_t settled = unsettled + l->period + (uint32_t)l->b->repeats.ending;
  if (!l->before) return;
  if (settled > l->plan->settled) l->plan->settled = settled;
  l->plan->period = l->period;
}

static void lay_out_tier(layout *l) {
  if (deal_slots(l)) {
    tws_builder_fail(l->b, TWS_MEMORY, "no memory");
    return;
  }
  uint64_t bound = lower_bound(l), best = attempt_layout(l, UINT64_MAX / 2, 0);
  if (l->b->failed != TWS_OK) return;
  keep_best(l);
  uint32_t unsettled = l->unsettled;
  static const double slack[] = {1, 1.01, 1.02, 1.04, 1.08, 1.16};
  static const uint32_t parts[] = {16, 4};
  /* Tighter packing makes streams wait for memory more often, so it is not tried to save only a few per cent. */
  const double state = l->plan->state ? (double)l->plan->state->arena_bytes[l->tier] : 0;
  /* the bytes of buffers that live for the whole program are excluded, so that the limit does not depend on the size of
   * inputs */
  const double moving = state + (double)(bound - whole_program_bytes(l));
  const double aside = (double)input_bytes(l);
  const double least = state + (double)best - aside;
  int worth = least > 1.05 * (state + (double)bound - aside);
  for (size_t s = 0; s < sizeof slack / sizeof *slack && worth; s++) {
    uint64_t size = bound + padded(l, (uint64_t)(moving * (slack[s] - 1)));
    if ((state + (double)size - aside) * 1.005 >= least) break;
    int fits = 0;
    for (size_t p = 0; p < sizeof parts / sizeof *parts && !fits; p++) {
      classify_ends(l, parts[p]);
      fits = attempt_layout(l, size, 1) != UINT64_MAX;
      if (l->b->failed != TWS_OK) return;
    }
    if (!fits) continue;
    best = size;
    keep_best(l);
    unsettled = l->unsettled;
    break;
  }
  for (uint32_t i = 0; i < l->plan->buffer_count; i++) {
    tws_buffer *b = &l->plan->buffers[i];
    if (!is_here(l, i)) continue;
    if (b->lifetime == TWS_LIFETIME_PROGRAM || b->last_op != TWS_NONE) b->offset = l->best[i];
  }
  l->plan->arena_bytes[l->tier] = best;
  keep_settled(l, unsettled);
}

static int index_lifetimes(layout *l, tws_arena *scratch) {
  tws_plan *plan = l->plan;
  l->computed = tws_arena_alloc_unset(scratch, plan->op_count + 1u, sizeof *l->computed);
  if (!l->computed) return -1;
  l->computed[0] = 0;
  for (uint32_t op = 0; op < plan->op_count; op++)
    l->computed[op + 1] = l->computed[op] + (uint32_t)computes_module(&plan->ops[op]);
  uint32_t **per_op[] = {&l->starting, &l->ending}, **per_buffer[] = {&l->starting_next, &l->ending_next};
  for (int i = 0; i < 2; i++) {
    *per_op[i] = tws_arena_alloc_unset(scratch, plan->op_count + 1u, sizeof **per_op[i]);
    *per_buffer[i] = tws_arena_alloc_unset(scratch, plan->buffer_count + 1u, sizeof **per_buffer[i]);
    if (!*per_op[i] || !*per_buffer[i]) return -1;
    memset(*per_op[i], 0xff, (plan->op_count + 1u) * sizeof **per_op[i]); /* TWS_NONE */
  }
  l->offset = tws_arena_alloc_unset(scratch, plan->buffer_count + 1u, sizeof *l->offset);
  l->best = tws_arena_alloc_unset(scratch, plan->buffer_count + 1u, sizeof *l->best);
  l->from_high = tws_arena_alloc(scratch, plan->buffer_count + 1u, 1);
  l->message = tws_layout_find_messages(plan, scratch);
  l->place = tws_arena_alloc_unset(scratch, plan->buffer_count + 1u, 1);
  if (!l->offset || !l->best || !l->from_high || !l->message || !l->place) return -1;
  for (uint32_t i = 0; i < plan->buffer_count; i++) {
    const int is_state = plan->buffers[i].lifetime == TWS_LIFETIME_STATE;
    l->has_messages |= l->message[i];
    l->place[i] = is_state ? NO_TIER : plan->buffers[i].tier;
  }
  if (l->has_messages) l->in_slots = tws_arena_alloc_unset(scratch, plan->buffer_count + 1u, sizeof *l->in_slots);
  if (l->has_messages && !l->in_slots) return -1;
  for (uint32_t i = plan->buffer_count; i-- > 0;) {
    const tws_buffer *b = &plan->buffers[i];
    if (b->lifetime != TWS_LIFETIME_OPS || b->last_op == TWS_NONE) continue;
    l->starting_next[i] = l->starting[begin_of(l, i)];
    l->starting[begin_of(l, i)] = i;
    l->ending_next[i] = l->ending[end_of(l, i)];
    l->ending[end_of(l, i)] = i;
  }
  return 0;
}

tws_code tws_layout_messages(tws_builder *b, tws_arena *scratch) {
  layout l = {.b = b, .plan = b->plan, .alignment = 1};
  if (index_lifetimes(&l, scratch)) return tws_builder_fail(b, TWS_MEMORY, "no memory");
  for (int at = 0; at < TWS_TIER_COUNT; at++) {
    int used = 0;
    l.here = (uint8_t)at;
    for (uint32_t i = 0; i < b->plan->buffer_count && !used; i++) used = l.message[i] && is_here(&l, i);
    if (!used) continue;
    if (deal_slots(&l)) return tws_builder_fail(b, TWS_MEMORY, "no memory");
    for (uint32_t i = 0; i < b->plan->buffer_count; i++)
      if (l.message[i] && is_here(&l, i)) b->plan->buffers[i].offset = l.in_slots[i];
  }
  tws_free(l.slots);
  return b->failed;
}

tws_code tws_layout_make(tws_builder *b, tws_arena *scratch) {
  layout l = {.b = b, .plan = b->plan};
  if (index_lifetimes(&l, scratch) || find_repetition(&l, &b->repeats, scratch))
    return tws_builder_fail(b, TWS_MEMORY, "no memory");
  for (l.tier = 0; l.tier < TWS_TIER_COUNT && b->failed == TWS_OK; l.tier++) {
    int used = 0;
    l.here = (uint8_t)l.tier;
    for (uint32_t i = 0; i < b->plan->buffer_count && !used; i++) used = is_here(&l, i);
    const int from_disk = b->plan->state && b->plan->state->arena_bytes[TWS_TIER_DISK] > 0;
    l.alignment = from_disk && (l.tier == TWS_TIER_PINNED || l.tier == TWS_TIER_HOST) ? TWS_DISK_ALIGNMENT : 1;
    if (used) lay_out_tier(&l);
  }
  tws_free(l.space.free);
  tws_free(l.slots);
  tws_free(l.kept_free);
  tws_free(l.sorting);
  return b->failed;
}
