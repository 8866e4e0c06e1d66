#include "emulation/dead_memory.h"

enum { LONGEST = 20000 };

/* Bytes of an arena. */
typedef struct extent {
  int arena;
  uint64_t first, end;
} extent;

static extent extent_of(const tws_plan *plan, const tws_operand *o) {
  const tws_buffer *b = &plan->buffers[o->buffer];
  const uint64_t size = tws_dtype_bytes((tws_dtype)b->dtype), first = b->offset + o->offset * size;
  return (extent){tws_buffer_arena(b), first, first + o->count * size};
}

/* Returns how an operation accesses a range (access flags; 0: not at all). *all: 1 if it writes the whole range. */
static uint32_t use_of(const tws_plan *plan, uint32_t op, const extent *range, int *all) {
  uint32_t access = 0;
  *all = 0;
  for (uint32_t i = 0; i < plan->ops[op].operand_count; i++) {
    const tws_operand *o = &plan->operands[plan->ops[op].operand_first + i];
    const extent e = extent_of(plan, o);
    if (e.arena != range->arena || e.first >= range->end || range->first >= e.end) continue;
    access |= o->access;
    *all |= (o->access & TWS_WRITE) && e.first <= range->first && range->end <= e.end;
  }
  return access;
}

/* Elements of operand `index` that the operation writes and does not read, first and count of up to two ranges: a part
 * of it may be what it reads, as of what is gathered in place. */
static int written_only(const tws_plan *plan, const tws_op *op, uint32_t index, uint64_t first[2], uint64_t count[2]) {
  const tws_operand *w = &plan->operands[op->operand_first + index];
  uint64_t from = w->offset, to = w->offset + w->count;
  int ranges = 0;
  if (w->access != TWS_WRITE) return 0;
  for (uint32_t i = 0; i < op->operand_count; i++) {
    const tws_operand *r = &plan->operands[op->operand_first + i];
    if (!(r->access & TWS_READ) || r->buffer != w->buffer) continue;
    const uint64_t end = r->offset + r->count;
    if (r->offset >= to || from >= end) continue;
    if (r->offset > from && ranges < 2) {
      first[ranges] = from;
      count[ranges++] = r->offset - from;
    }
    from = end;
    if (from >= to) return ranges;
  }
  if (ranges == 2) return 0;
  first[ranges] = from;
  count[ranges++] = to - from;
  return ranges;
}

/* Backwards to the one that last wrote all of it: what came before that has ended when it has. Calls with users NULL
 * count. */
static uint32_t users_of(const tws_plan *plan, const tws_dead_range *range, uint32_t *users) {
  const tws_operand operand = {.buffer = range->buffer, .offset = range->offset, .count = range->count};
  const extent e = extent_of(plan, &operand);
  uint32_t count = 0;
  for (uint32_t op = range->writer; op-- > 0;) {
    int all;
    const uint32_t access = use_of(plan, op, &e, &all);
    if (!access) continue;
    if (users) users[count] = op;
    count++;
    if (all && !(access & TWS_READ)) break;
  }
  return count;
}

static uint32_t list_ranges(const tws_plan *plan, tws_dead_range *out) {
  uint32_t n = 0;
  for (uint32_t op = 0; op < plan->op_count; op++)
    for (uint32_t i = 0; i < plan->ops[op].operand_count; i++) {
      uint64_t first[2], count[2];
      const tws_operand *o = &plan->operands[plan->ops[op].operand_first + i];
      if (plan->buffers[o->buffer].tier == TWS_TIER_DISK) continue;
      const int ranges = written_only(plan, &plan->ops[op], i, first, count);
      for (int k = 0; k < ranges; k++, n++)
        if (out) out[n] = (tws_dead_range){.writer = op, .buffer = o->buffer, .offset = first[k], .count = count[k]};
    }
  return n;
}

tws_code tws_dead_ranges_find(const tws_plan *plan, tws_arena *arena, tws_dead_ranges *out, tws_error *err) {
  *out = (tws_dead_ranges){0};
  if (plan->op_count > LONGEST) return TWS_OK;
  out->count = list_ranges(plan, NULL);
  out->all = tws_arena_alloc(arena, out->count + 1u, sizeof *out->all);
  out->first = tws_arena_alloc(arena, plan->op_count + 2u, sizeof *out->first);
  uint32_t *users = tws_arena_alloc(arena, plan->op_count + 1u, sizeof *users), total = 0;
  if (!out->all || !out->first || !users) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  list_ranges(plan, out->all);
  for (uint32_t i = 0; i < out->count; i++) {
    total += out->all[i].users = users_of(plan, &out->all[i], users);
    for (uint32_t k = 0; k < out->all[i].users; k++) out->first[users[k] + 2]++;
  }
  out->of = tws_arena_alloc(arena, total + 1u, sizeof *out->of);
  if (!out->of) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (uint32_t op = 2; op < plan->op_count + 2u; op++) out->first[op] += out->first[op - 1];
  for (uint32_t i = 0; i < out->count; i++) {
    users_of(plan, &out->all[i], users);
    for (uint32_t k = 0; k < out->all[i].users; k++) out->of[out->first[users[k] + 1]++] = i;
  }
  return TWS_OK;
}
