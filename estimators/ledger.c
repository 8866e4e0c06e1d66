/* Computes the ledger: the bytes that are alive at each operation, by category. */
#include <inttypes.h>
#include <string.h>

#include "estimators/estimators.h"

typedef struct walker {
  const tws_plan *plan;
  uint32_t *starts, *ends; /* per operation: heads of the lists of buffers that begin and that end with it */
  uint32_t *next_start, *next_end;
  tws_arena *scratch;
} walker;

static tws_code walker_make(walker *w, const tws_plan *plan, tws_error *err) {
  memset(w, 0, sizeof *w);
  w->plan = plan;
  w->scratch = tws_arena_create();
  size_t ops = plan->op_count + 1u, buffers = plan->buffer_count + 1u;
  if (w->scratch) {
    w->starts = tws_arena_alloc_unset(w->scratch, ops, sizeof *w->starts);
    w->ends = tws_arena_alloc_unset(w->scratch, ops, sizeof *w->ends);
    w->next_start = tws_arena_alloc_unset(w->scratch, buffers, sizeof *w->next_start);
    w->next_end = tws_arena_alloc_unset(w->scratch, buffers, sizeof *w->next_end);
  }
  if (!w->starts || !w->ends || !w->next_start || !w->next_end) {
    tws_arena_destroy(w->scratch);
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for the ledger");
  }
  memset(w->starts, 0xff, ops * sizeof *w->starts);
  memset(w->ends, 0xff, ops * sizeof *w->ends);
  for (uint32_t i = 0; i < plan->buffer_count; i++) {
    const tws_buffer *b = &plan->buffers[i];
    if (b->lifetime != TWS_LIFETIME_OPS || b->first_op == TWS_NONE) continue;
    w->next_start[i] = w->starts[b->first_op];
    w->starts[b->first_op] = i;
    w->next_end[i] = w->ends[b->last_op];
    w->ends[b->last_op] = i;
  }
  return TWS_OK;
}

typedef struct live {
  uint64_t category[TWS_TIER_COUNT][TWS_CATEGORY_COUNT], total[TWS_TIER_COUNT];
} live;

static void count_bytes(live *l, const tws_buffer *b, int add) {
  uint64_t bytes = add ? b->bytes : (uint64_t)0 - b->bytes;
  l->category[b->tier][b->category] += bytes;
  l->total[b->tier] += bytes;
}

static void begin_walk(const walker *w, live *l) {
  memset(l, 0, sizeof *l);
  const tws_state *state = w->plan->state; /* all entries of the state, also those that this program does not use */
  for (uint32_t i = 0; i < w->plan->buffer_count; i++) {
    if (w->plan->buffers[i].lifetime == TWS_LIFETIME_PROGRAM) count_bytes(l, &w->plan->buffers[i], 1);
  }
  for (uint32_t i = 0; state && i < state->count; i++) {
    l->category[state->entries[i].tier][state->entries[i].category] += state->entries[i].bytes;
    l->total[state->entries[i].tier] += state->entries[i].bytes;
  }
}

static void enter_operation(const walker *w, live *l, uint32_t op) {
  for (uint32_t i = w->starts[op]; i != TWS_NONE; i = w->next_start[i]) count_bytes(l, &w->plan->buffers[i], 1);
}

static void leave_operation(const walker *w, live *l, uint32_t op) {
  for (uint32_t i = w->ends[op]; i != TWS_NONE; i = w->next_end[i]) count_bytes(l, &w->plan->buffers[i], 0);
}

static int is_loss(const tws_plan *plan, uint32_t op) {
  const tws_work *work = &plan->works[plan->ops[op].work];
  return work->kind == TWS_OP_COMPUTE &&
         (tws_is_whole_loss((tws_kernel)work->code) || work->code == TWS_KERNEL_VOCABULARY_LOSS);
}

tws_code tws_ledger_read(const tws_plan *plan, tws_ledger *ledger, tws_error *err) {
  walker w;
  live l;
  memset(ledger, 0, sizeof *ledger);
  TWS_TRY(walker_make(&w, plan, err));
  begin_walk(&w, &l);
  for (uint32_t op = 0; op < plan->op_count; op++) {
    enter_operation(&w, &l, op);
    for (int t = 0; t < TWS_TIER_COUNT; t++) {
      tws_ledger_tier *tier = &ledger->tier[t];
      if (l.total[t] <= tier->live_bytes) continue;
      tier->live_bytes = l.total[t];
      tier->peak_op = op;
      memcpy(tier->category, l.category[t], sizeof tier->category);
    }
    if (l.total[TWS_TIER_DEVICE] > ledger->loss_bytes && is_loss(plan, op))
      ledger->loss_bytes = l.total[TWS_TIER_DEVICE];
    leave_operation(&w, &l, op);
  }
  for (int t = 0; t < TWS_TIER_COUNT; t++) {
    ledger->tier[t].arena_bytes = tws_plan_bytes(plan, (tws_tier)t);
    ledger->tier[t].gaps = ledger->tier[t].arena_bytes - ledger->tier[t].live_bytes;
  }
  tws_arena_destroy(w.scratch);
  return TWS_OK;
}

/* ---- a caching allocator ---- */

/* Returns 1 for a buffer that exists for the whole program, or gradients of which the software keeps the memory. */
static int lasts(const tws_plan *plan, const tws_buffer *b, int keeps_gradients) {
  if (b->tier != TWS_TIER_DEVICE || b->lifetime == TWS_LIFETIME_PROGRAM) return b->tier == TWS_TIER_DEVICE;
  return keeps_gradients && b->lifetime == TWS_LIFETIME_OPS && b->category == TWS_CATEGORY_GRADIENT &&
         b->first_op != TWS_NONE && plan->ops[b->last_op].phase == TWS_PHASE_STEP;
}

/* Allocates what exists before the first operation: the state, and the buffers of the whole program. */
static tws_code allocate_lasting(const tws_plan *plan, int keeps_gradients, tws_caching_allocator *allocator,
                                 tws_error *err) {
  uint32_t unused;
  for (uint32_t i = 0; plan->state && i < plan->state->count; i++)
    if (plan->state->entries[i].tier == TWS_TIER_DEVICE && plan->state->entries[i].bytes > 0)
      TWS_TRY(tws_caching_allocator_allocate(allocator, plan->state->entries[i].bytes, &unused, err));
  for (uint32_t i = 0; i < plan->buffer_count; i++)
    if (lasts(plan, &plan->buffers[i], keeps_gradients))
      TWS_TRY(tws_caching_allocator_allocate(allocator, plan->buffers[i].bytes, &unused, err));
  return TWS_OK;
}

/* Allocates and frees the buffers of one run of the program. blocks: room for a number per buffer. */
static tws_code run_allocations(const walker *w, int keeps_gradients, tws_caching_allocator *allocator,
                                uint32_t *blocks, tws_error *err) {
  const tws_buffer *buffers = w->plan->buffers;
  for (uint32_t op = 0; op < w->plan->op_count; op++) {
    for (uint32_t i = w->starts[op]; i != TWS_NONE; i = w->next_start[i])
      if (buffers[i].tier == TWS_TIER_DEVICE && !lasts(w->plan, &buffers[i], keeps_gradients))
        TWS_TRY(tws_caching_allocator_allocate(allocator, buffers[i].bytes, &blocks[i], err));
    for (uint32_t i = w->ends[op]; i != TWS_NONE; i = w->next_end[i])
      if (buffers[i].tier == TWS_TIER_DEVICE && !lasts(w->plan, &buffers[i], keeps_gradients))
        TWS_TRY(tws_caching_allocator_free(allocator, blocks[i], err));
  }
  return TWS_OK;
}

/* Replays the program on one allocator; writes what it holds at most. */
static tws_code replay(const walker *w, const tws_replayed *software, int short_of_memory, uint32_t *blocks,
                       tws_allocator_use *use, tws_error *err) {
  enum { RUNS = 2 };
  tws_caching_allocator *allocator = tws_caching_allocator_create(software->kind, short_of_memory);
  tws_code code = allocator ? allocate_lasting(w->plan, software->keeps_gradients, allocator, err)
                            : tws_fail(err, TWS_MEMORY, NULL, "no memory for the ledger");
  for (int run = 0; run < RUNS && code == TWS_OK; run++)
    code = run_allocations(w, software->keeps_gradients, allocator, blocks, err);
  if (code == TWS_OK) *use = tws_caching_allocator_use(allocator);
  tws_caching_allocator_destroy(allocator);
  return code;
}

/* Returns 1 if an allocator that returns segments loses more than 2 % of what it hands out: it then asks for new
 * segments that an allocator with memory enough does not need, because the free blocks that are left are too small. */
static int can_need_less(const tws_allocator_use *use) {
  const double usual_gaps = 0.02;
  return (double)use->most_held > (1 + usual_gaps) * (double)use->most_allocated;
}

tws_code tws_ledger_replay(const tws_plan *plan, const tws_replayed *software, tws_replays replays,
                           tws_allocator_bytes *out, tws_error *err) {
  walker w;
  tws_allocator_use use = {0};
  *out = (tws_allocator_bytes){0};
  if (software->kind == TWS_ALLOCATOR_AHEAD) return TWS_OK;
  TWS_TRY(walker_make(&w, plan, err));
  uint32_t *blocks = tws_arena_alloc_unset(w.scratch, plan->buffer_count + 1u, sizeof *blocks);
  tws_code code = blocks ? replay(&w, software, 1, blocks, &use, err)
                         : tws_fail(err, TWS_MEMORY, NULL, "no memory for the ledger");
  out->needed = use.most_held;
  const int both = replays == TWS_REPLAY_ALL || (use.returned > 0 && can_need_less(&use));
  /* an allocator that returned nothing to CUDA did what it does on a device with memory enough */
  if (code == TWS_OK && both && use.returned > 0) code = replay(&w, software, 0, blocks, &use, err);
  if (both) {
    out->held = use.most_held;
    out->reserved = use.most_reserved;
  }
  tws_arena_destroy(w.scratch);
  return code;
}

tws_code tws_ledger_of_programs(const tws_plan *const *plans, int count, tws_ledger *ledger, tws_error *err) {
  for (int i = 0; i < count; i++) {
    tws_ledger one;
    if (!plans[i]) continue;
    TWS_TRY(tws_ledger_read(plans[i], &one, err));
    if (i == 0 || one.loss_bytes > ledger->loss_bytes) ledger->loss_bytes = one.loss_bytes;
    for (int t = 0; t < TWS_TIER_COUNT; t++)
      if (i == 0 || one.tier[t].arena_bytes > ledger->tier[t].arena_bytes) ledger->tier[t] = one.tier[t];
  }
  return TWS_OK;
}

tws_code tws_ledger_csv(const tws_plan *plan, tws_tier tier, tws_text *out, tws_error *err) {
  walker w;
  live l;
  char label[160];
  TWS_TRY(walker_make(&w, plan, err));
  tws_text_add(out, "op,phase,micro_batch,name");
  for (int c = 0; c < TWS_CATEGORY_COUNT; c++) tws_text_add(out, ",%s", tws_category_name((tws_category)c));
  tws_text_add(out, ",total\n");
  begin_walk(&w, &l);
  for (uint32_t op = 0; op < plan->op_count; op++) {
    enter_operation(&w, &l, op);
    tws_text_add(out, "%u,%s,%u,%s", op, tws_phase_name((tws_phase)plan->ops[op].phase), plan->ops[op].micro_batch,
                 tws_op_label(plan, op, label, sizeof label));
    for (int c = 0; c < TWS_CATEGORY_COUNT; c++) tws_text_add(out, ",%" PRIu64, l.category[tier][c]);
    tws_text_add(out, ",%" PRIu64 "\n", l.total[tier]);
    leave_operation(&w, &l, op);
  }
  tws_arena_destroy(w.scratch);
  return out->failed ? tws_fail(err, TWS_MEMORY, NULL, "no memory for the ledger") : TWS_OK;
}
