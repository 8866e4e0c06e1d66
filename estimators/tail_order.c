#include "estimators/tail_order.h"

#include <string.h>

enum { MOST_PATHS = 32 }; /* of one operation */

typedef struct path {
  tws_tail_path to;
  int aside; /* it leaves the stream that computes */
} path;

typedef struct path_set {
  int count;
  path items[MOST_PATHS];
} path_set;

typedef struct finder {
  const tws_tail_ops *of;
  const tws_plan *plan;
  tws_arena *arena, *scratch; /* of the answer, and until then */
  path **items;               /* per operation, and of the reductions behind all: until it has ended */
  int *count;
  uint32_t last[TWS_STREAM_COUNT]; /* operation, or TWS_NONE */
  int meeting, from;               /* the latest; what the stream that computes is counted from */
  int known;
} finder;

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the end of a step");
}

/* Kernels are stretched by 1 or more. */
static int is_no_longer(const tws_piece_time *a, const tws_piece_time *b) {
  return a->kernel <= b->kernel && a->kernel + a->other <= b->kernel + b->other;
}

static int is_covered(const tws_tail_path *p, const tws_tail_path *by) {
  return p->after == by->after && is_no_longer(&p->time, &by->time);
}

static void add_path(finder *f, path_set *set, const path *p) {
  int kept = 0;
  for (int i = 0; i < set->count; i++)
    if (is_covered(&p->to, &set->items[i].to)) return;
  for (int i = 0; i < set->count; i++)
    if (!is_covered(&set->items[i].to, &p->to)) set->items[kept++] = set->items[i];
  set->count = kept;
  if (set->count == MOST_PATHS)
    f->known = 0;
  else
    set->items[set->count++] = *p;
}

static void add_operation(finder *f, path_set *set, uint32_t op) {
  for (int i = 0; i < f->count[op]; i++) add_path(f, set, &f->items[op][i]);
}

static int is_on_device(const tws_plan *plan, const tws_op *o) {
  for (int k = 0; k < o->operand_count; k++)
    if (plan->buffers[plan->operands[o->operand_first + (uint32_t)k].buffer].tier == TWS_TIER_DEVICE) return 1;
  return 0;
}

static int has_path(const path_set *set, int after) {
  for (int i = 0; i < set->count; i++)
    if (after ? set->items[i].to.after == after : set->items[i].to.after >= 0) return 1;
  return 0;
}

/* What an operation that waits for none of the tail's own waits for: all before on the stream that computes; or the
 * step's beginning, where it takes nothing from the device. */
static void begin_path(finder *f, const tws_op *o, path_set *set) {
  path p = {.to = {.after = 0}, .aside = o->stream != TWS_STREAM_COMPUTE};
  if (has_path(set, 0) || has_path(set, TWS_TAIL_AFTER_REDUCED)) return;
  if (p.aside && !tws_op_ends_passes(f->plan, o)) {
    p.to.after = TWS_TAIL_AFTER_STEP;
    f->known &= !is_on_device(f->plan, o);
  }
  add_path(f, set, &p);
}

static void find_ready(finder *f, uint32_t op, path_set *set) {
  const tws_op *o = &f->plan->ops[op];
  set->count = 0;
  if (f->last[o->stream] != TWS_NONE) add_operation(f, set, f->last[o->stream]);
  for (uint32_t i = 0; i < o->dep_count; i++) add_operation(f, set, f->plan->deps[o->dep_first + i]);
  if (op >= f->of->reduced_at && tws_op_ends_passes(f->plan, o)) add_operation(f, set, f->plan->op_count);
  begin_path(f, o, set);
}

/* Where the compute stream alone is not all there is. */
static tws_code keep_aside(const finder *f, const path_set *set, tws_tail_paths *out, tws_error *err) {
  out->count = 0;
  out->items = tws_arena_alloc(f->arena, (size_t)set->count + 1, sizeof *out->items);
  if (!out->items) return no_memory(err);
  for (int i = 0; i < set->count; i++)
    if (set->items[i].aside || set->items[i].to.after != f->from) out->items[out->count++] = set->items[i].to;
  return TWS_OK;
}

static tws_code keep_ended(finder *f, uint32_t op, path_set *set, tws_error *err) {
  if (f->of->meets[op]) {
    set->count = 1;
    set->items[0] = (path){.to = {.after = f->meeting}};
  }
  const tws_op *o = &f->plan->ops[op];
  const int beside = !tws_op_computes(o) && o->stream != TWS_STREAM_COMPUTE;
  const int exchanges = beside ? 1 + tws_piece_axis(tws_report_of_op(f->plan, o)) : 0;
  for (int i = 0; i < set->count && exchanges; i++) /* all of a path is along one axis */
    f->known &= !set->items[i].to.exchanges || set->items[i].to.exchanges == exchanges;
  const tws_piece_time none = {0, 0}, *time = f->of->meets[op] ? &none : &f->of->times[op];
  f->items[op] = tws_arena_alloc(f->scratch, (size_t)set->count + 1, sizeof **f->items);
  if (!f->items[op]) return no_memory(err);
  for (int i = 0; i < set->count; i++) {
    path *p = &f->items[op][i];
    *p = set->items[i];
    p->to.time.kernel += time->kernel;
    p->to.time.other += time->other;
    p->aside |= o->stream != TWS_STREAM_COMPUTE;
    if (exchanges) p->to.exchanges = exchanges;
  }
  f->count[op] = set->count;
  f->last[f->plan->ops[op].stream] = op;
  return TWS_OK;
}

/* As an operation behind all others; what computes has waited for nothing before. */
static tws_code reduce(finder *f, tws_error *err) {
  const uint32_t op = f->plan->op_count, before = f->last[TWS_STREAM_COMPUTE];
  for (int i = 0; before != TWS_NONE && i < f->count[before]; i++) f->known &= !f->items[before][i].aside;
  f->items[op] = tws_arena_alloc(f->scratch, 1, sizeof **f->items);
  if (!f->items[op]) return no_memory(err);
  f->items[op]->to.after = f->from = TWS_TAIL_AFTER_REDUCED;
  f->count[op] = 1;
  f->last[TWS_STREAM_COMPUTE] = op;
  return TWS_OK;
}

static tws_code find(finder *f, tws_tail_paths *out, tws_error *err) {
  path_set set;
  for (uint32_t op = 0; op < f->plan->op_count && f->known; op++) {
    if (op == f->of->reduced_at) TWS_TRY(reduce(f, err));
    find_ready(f, op, &set);
    if (f->of->meets[op]) {
      TWS_TRY(keep_aside(f, &set, &out[f->meeting], err));
      f->from = ++f->meeting;
    }
    TWS_TRY(keep_ended(f, op, &set, err));
  }
  set.count = 0;
  for (int q = 0; q < TWS_STREAM_COUNT; q++)
    if (f->last[q] != TWS_NONE) add_operation(f, &set, f->last[q]);
  return keep_aside(f, &set, &out[f->meeting], err);
}

int tws_tail_has_own_layout(const tws_plan *plan) {
  for (uint32_t i = 0; i < plan->buffer_count; i++) {
    const tws_buffer *b = &plan->buffers[i];
    if (b->lifetime != TWS_LIFETIME_OPS || b->last_op == TWS_NONE || b->tier != TWS_TIER_DEVICE) continue;
    if (i == plan->gradients) continue;
    if (b->streams != 1u << TWS_STREAM_COMPUTE) return 0;
    if (plan->gradients != TWS_NONE && plan->buffers[plan->gradients].tier == TWS_TIER_DEVICE &&
        b->first_op > plan->buffers[plan->gradients].last_op)
      return 0;
  }
  return 1;
}

static tws_code prepare(finder *f, tws_tail_paths **found, tws_error *err) {
  size_t meetings = 0;
  for (uint32_t op = 0; op < f->plan->op_count; op++) meetings += f->of->meets[op];
  for (int q = 0; q < TWS_STREAM_COUNT; q++) f->last[q] = TWS_NONE;
  f->items = tws_arena_alloc(f->scratch, f->plan->op_count + 1u, sizeof *f->items);
  f->count = tws_arena_alloc(f->scratch, f->plan->op_count + 1u, sizeof *f->count);
  *found = tws_arena_alloc(f->arena, meetings + 1, sizeof **found);
  return f->items && f->count && *found ? TWS_OK : no_memory(err);
}

tws_code tws_tail_order_find(const tws_tail_ops *of, tws_arena *arena, tws_tail_paths **out, tws_error *err) {
  finder f = {.of = of, .plan = of->plan, .arena = arena, .known = tws_tail_has_own_layout(of->plan)};
  tws_tail_paths *found = NULL;
  *out = NULL;
  if (!f.known) return TWS_OK;
  f.scratch = tws_arena_create();
  if (!f.scratch) return no_memory(err);
  tws_code code = prepare(&f, &found, err);
  if (code == TWS_OK) code = find(&f, found, err);
  tws_arena_destroy(f.scratch);
  if (code == TWS_OK && f.known) *out = found;
  return code;
}
