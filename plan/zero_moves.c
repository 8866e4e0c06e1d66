/* What a micro-batch gathers and reduces, without the layers, for samples; and the least that any cutting of it into
 * pieces costs. */
#include "plan/offload.h"
#include "plan/zero.h"

static double bytes_of(const tws_lower *l, uint32_t param) {
  const double count = (double)tws_zero_numel(l, param);
  if (!tws_is_quantized(l, param)) return count * (double)tws_dtype_bytes(l->config->dtype);
  tws_operand parts[TWS_QUANTIZED_PARTS];
  double bytes = 0;
  const int many =
      tws_quantized_stored(&l->b.plan->quantized, l->zero.flat_offset[param], tws_zero_numel(l, param), parts);
  for (int i = 0; i < many; i++)
    bytes += (double)(parts[i].count * tws_dtype_bytes((tws_dtype)l->b.plan->buffers[parts[i].buffer].dtype));
  return bytes;
}

void tws_zero_sample_completed(tws_lower *l) {
  const tws_zero *z = &l->zero;
  tws_zero_micro_begin(l);
  for (uint32_t i = 0; i < z->completed_count && l->b.failed == TWS_OK; i++)
    for (uint32_t use = 0; use < z->uses[z->completed[i]]; use++) tws_zero_contributed(l, z->completed[i]);
}

void tws_zero_sample_reductions(tws_lower *l) {
  const tws_zero *z = &l->zero;
  l->b.phase = TWS_PHASE_BACKWARD;
  l->b.module = TWS_NONE;
  l->b.micro_batch = (uint32_t)l->accumulation - 1;
  if (z->stage == 0) {
    tws_zero_micro_end(l);
    return;
  }
  l->overlap = 1; /* in the order in which they would be done beside a backward pass; their cost is that of any */
  tws_zero_sample_completed(l);
  l->overlap = 0;
}

/* Whether an operation writes something in the pieces of memory that another reads. */
static int writes_for(const tws_lower *l, const tws_op *o, const tws_operand *read) {
  const struct tws_pieces *pieces = &l->b.pieces[read->buffer];
  const uint32_t first = tws_builder_piece_at(pieces, read->offset);
  const uint32_t last = tws_builder_piece_at(pieces, read->offset + read->count - 1);
  for (int k = 0; k < o->operand_count; k++) {
    const tws_operand *w = &l->b.plan->operands[o->operand_first + (uint32_t)k];
    if (!(w->access & TWS_WRITE) || w->buffer != read->buffer || !w->count) continue;
    if (tws_builder_piece_at(pieces, w->offset) <= last &&
        tws_builder_piece_at(pieces, w->offset + w->count - 1) >= first)
      return 1;
  }
  return 0;
}

/* Of one bucket: which of its operations each copy to the host waits for. */
static void find_taken(const tws_lower *l, tws_op_range reduced, uint32_t first, uint32_t *takes) {
  const tws_plan *plan = l->b.plan;
  for (uint32_t op = reduced.first; op < reduced.end; op++) {
    const tws_op *o = &plan->ops[op];
    const tws_operand *read = &plan->operands[o->operand_first];
    if (o->stream != TWS_STREAM_COPY_OUT || !read->count) continue;
    uint32_t from = op;
    while (from > reduced.first && !writes_for(l, &plan->ops[from - 1], read)) from--;
    takes[op - first] = from > reduced.first ? op - (from - 1) : 0;
  }
}

static void find_all_taken(tws_lower *l, tws_arena *arena, tws_moved_gradients *out) {
  const uint32_t first = out->range.first, count = l->b.plan->op_count - first;
  out->takes = NULL;
  if (!tws_offload_copies_buckets(l) || l->b.failed != TWS_OK) return;
  out->takes = tws_arena_alloc(arena, count + 1u, sizeof *out->takes);
  if (!out->takes) tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  for (uint32_t i = 0; i < out->count && out->takes; i++) find_taken(l, out->items[i].reduced, first, out->takes);
}

/* Whatever buffers they come to. */
static void bring_all(tws_lower *l, tws_arena *arena, tws_moved_gradients *out) {
  const tws_zero *z = &l->zero;
  out->brought = tws_arena_alloc(arena, z->bucket_count + 1u, sizeof *out->brought);
  if (!out->brought) tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  for (uint32_t i = 0; i < z->bucket_count && l->b.failed == TWS_OK; i++) {
    const tws_bucket *bucket = &z->buckets[i];
    out->brought[i].first = l->b.plan->op_count;
    tws_zero_bring_sums(l, bucket,
                        tws_builder_buffer(&l->b, "gradient bucket", TWS_CATEGORY_BUCKET, z->grad_dtype,
                                           bucket->elements, TWS_LIFETIME_OPS));
    out->brought[i].end = l->b.plan->op_count;
  }
}

void tws_zero_sample_gradients(tws_lower *l, tws_moved_kind kind, tws_arena *arena, tws_moved_gradients *out) {
  const tws_zero *z = &l->zero;
  const tws_plan *plan = l->b.plan;
  const tws_gradient_place *at = tws_sample_place(l);
  out->items = tws_arena_alloc(arena, z->completed_count + 1u, sizeof *out->items);
  if (!out->items) tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  out->count = 0;
  out->buckets = z->bucket_count;
  l->b.phase = TWS_PHASE_BACKWARD;
  l->b.module = TWS_NONE;
  l->b.micro_batch = kind.later;
  l->accumulation = l->b.micro_batch + (kind.last ? 1 : 2);
  tws_zero_micro_begin(l);
  for (uint32_t i = 0; i < z->completed_count && at && l->b.failed == TWS_OK; i++) {
    const uint32_t p = z->completed[i], first = plan->op_count;
    int accumulate;
    for (uint32_t use = 0; use < z->uses[p]; use++) {
      tws_zero_gradient(l, p, &accumulate);
      tws_zero_contributed(l, p);
    }
    const int pads =
        z->stage == 3 && (uint64_t)z->part[p] * (uint64_t)tws_zero_class_of(z, p)->ranks > tws_zero_numel(l, p);
    const uint32_t padded = first + (uint32_t)pads;
    out->items[out->count++] =
        (tws_moved_gradient){at[p].layer, at[p].which, z->bucket_of[p], {first, padded}, {padded, plan->op_count}};
  }
  out->turns = z->ranks > 1 || z->flat_gradients          ? TWS_TURNS_NONE
               : l->offload.param_tier == TWS_TIER_DEVICE ? TWS_TURNS_WITH_MICRO_BATCH
                                                          : TWS_TURNS_WITH_BACKWARD;
  out->brought = NULL;
  if (out->turns != TWS_TURNS_NONE && kind.later) bring_all(l, arena, out);
  find_all_taken(l, arena, out);
}

static int writes_to(const tws_plan *plan, const tws_op *o, uint32_t buffer) {
  for (int k = 0; k < o->operand_count; k++) {
    const tws_operand *w = &plan->operands[o->operand_first + (uint32_t)k];
    if (w->buffer == buffer && w->access & TWS_WRITE) return 1;
  }
  return 0;
}

/* The operation of a range that gathers into this buffer, which is the range's: the last that writes to it, where a
 * part of it came from the host before. */
static uint32_t gather_of(const tws_lower *l, tws_op_range range, uint32_t buffer) {
  const tws_plan *plan = l->b.plan;
  const uint32_t first = plan->buffers[buffer].first_op;
  uint32_t op = plan->op_count;
  if (l->offload.param_tier == TWS_TIER_DEVICE) return first >= range.first && first < range.end ? first : TWS_NONE;
  while (op > range.first && !writes_to(plan, &plan->ops[op - 1], buffer)) op--;
  return op > range.first ? op - 1 : TWS_NONE;
}

typedef struct touches { /* per buffer: 1 + the last operation that did, or 0 */
  uint32_t *read, *written;
} touches;

/* The last operation before on another stream that this one waits for: what it takes came from there, or what was where
 * its own goes. */
static uint32_t waits_for(const tws_plan *plan, const tws_op *o, const touches *t) {
  uint32_t last = 0;
  for (int k = 0; k < o->operand_count; k++) {
    const tws_operand *operand = &plan->operands[o->operand_first + (uint32_t)k];
    if (!operand->count) continue;
    const uint32_t before[] = {t->written[operand->buffer], operand->access & TWS_WRITE ? t->read[operand->buffer] : 0};
    for (int i = 0; i < 2; i++)
      if (before[i] > last && plan->ops[before[i] - 1].stream != o->stream) last = before[i];
  }
  return last;
}

/* Of what comes from the host or the disk and is gathered then, whole buffers: what is told of it is all there is. */
static void find_fetched(tws_lower *l, tws_arena *arena, uint32_t first, tws_moved_params *out) {
  const tws_plan *plan = l->b.plan;
  out->range = (tws_op_range){first, plan->op_count};
  out->takes = NULL;
  if (l->offload.param_tier == TWS_TIER_DEVICE || l->b.failed != TWS_OK) return;
  out->takes = tws_arena_alloc(arena, plan->op_count - first + 1u, sizeof *out->takes);
  touches t = {.read = tws_calloc(plan->buffer_count + 1u, sizeof *t.read),
               .written = tws_calloc(plan->buffer_count + 1u, sizeof *t.written)};
  if (!out->takes || !t.read || !t.written) tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  for (uint32_t op = 0; op < plan->op_count && l->b.failed == TWS_OK; op++) {
    const tws_op *o = &plan->ops[op];
    const uint32_t last = op >= first ? waits_for(plan, o, &t) : 0;
    if (last) out->takes[op - first] = op + 1 - last;
    for (int k = 0; k < o->operand_count; k++) {
      const tws_operand *operand = &plan->operands[o->operand_first + (uint32_t)k];
      (operand->access & TWS_WRITE ? t.written : t.read)[operand->buffer] = op + 1;
    }
  }
  tws_free(t.read);
  tws_free(t.written);
}

/* Before the operations that gather them. */
static tws_moved_visit *begin_visit(tws_lower *l, int layer, int backward, tws_moved_params *out) {
  tws_moved_visit *v = &out->visits[out->visit_count++];
  *v = (tws_moved_visit){
      .layer = layer, .backward = backward, .gathered.first = l->b.plan->op_count, .first = out->count};
  return v;
}

static void add_gathered(tws_lower *l, const tws_moved_visit *v, uint32_t param, tws_moved_params *out) {
  const tws_gradient_place *at = tws_sample_place(l);
  const uint32_t op = gather_of(l, v->gathered, l->zero.gathered[param]);
  if (at) out->items[out->count++] = (tws_moved_param){at[param].layer, at[param].which, op};
}

void tws_zero_sample_params(tws_lower *l, tws_arena *arena, tws_moved_params *out) {
  const tws_zero3_schedule *s = &l->zero.schedule;
  const tws_visit_list *visits = &l->chunk->visits;
  const uint32_t first = l->b.plan->op_count;
  tws_fetch_begin(l, TWS_FETCH_MICRO_BATCH);
  out->visits = tws_arena_alloc(arena, visits->count + 1u, sizeof *out->visits);
  out->items = tws_arena_alloc(arena, s->param_count + 1u, sizeof *out->items);
  if (!out->visits || !out->items) tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  for (uint32_t v = 0; v < visits->count && l->b.failed == TWS_OK; v++) {
    const tws_zero3_actions *a = &s->actions[v];
    const uint32_t module = visits->items[v].module;
    const int layer = module == TWS_NONE ? -1 : l->sample->layer_of[l->local.modules[module].origin];
    tws_moved_visit *to = begin_visit(l, layer, v >= l->chunk->forward_visits, out);
    tws_zero_before(l, v);
    to->gathered.end = l->b.plan->op_count;
    for (uint32_t i = 0; i < a->gather_count; i++) add_gathered(l, to, s->params[a->gather_first + i], out);
    for (uint32_t i = 0; i < a->prefetch_count; i++) add_gathered(l, to, s->params[a->prefetch_first + i], out);
    to->end = out->count;
    tws_zero_after(l, v);
  }
  find_fetched(l, arena, first, out);
}

void tws_zero_sample_begin(tws_lower *l, tws_arena *arena, tws_moved_params *out) {
  out->visits = tws_arena_alloc(arena, 1, sizeof *out->visits);
  out->items = tws_arena_alloc(arena, l->network->param_count + 1u, sizeof *out->items);
  if (!out->visits || !out->items) tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  if (l->b.failed != TWS_OK) return;
  const uint32_t first = l->b.plan->op_count;
  tws_moved_visit *to = begin_visit(l, -1, 0, out);
  tws_zero_step_begin(l);
  to->gathered.end = l->b.plan->op_count;
  for (uint32_t p = 0; p < l->network->param_count; p++)
    if (l->zero.persistent[p]) add_gathered(l, to, p, out);
  to->end = out->count;
  find_fetched(l, arena, first, out);
}

void tws_zero_sample_least(tws_lower *l) {
  const tws_zero *z = &l->zero;
  double gathered = 0; /* bytes */
  uint64_t reduced = 0;
  if (z->ranks == 1 || !tws_zero_same_ranks(z)) return;
  for (uint32_t p = 0; p < l->network->param_count; p++) reduced += tws_is_frozen(l, p) ? 0 : tws_zero_numel(l, p);
  for (uint32_t v = 0; z->stage == 3 && v < l->chunk->visits.count; v++) {
    const tws_zero3_actions *a = &z->schedule.actions[v];
    for (uint32_t i = 0; i < a->gather_count; i++) gathered += bytes_of(l, z->schedule.params[a->gather_first + i]);
    for (uint32_t i = 0; i < a->prefetch_count; i++) gathered += bytes_of(l, z->schedule.params[a->prefetch_first + i]);
  }
  const tws_zero_config *c = &l->config->zero;
  const int to_owners = c->reduce_scatter && !c->multi_rank_bucket_allreduce;
  const tws_collective reduction = z->stage == 3 && c->reduce_scatter ? TWS_COLLECTIVE_REDUCE_SCATTER
                                   : z->stage != 3 && to_owners       ? TWS_COLLECTIVE_REDUCE
                                                                      : TWS_COLLECTIVE_ALL_REDUCE;
  if (gathered > 0)
    tws_builder_collective(&l->b, l->gather_stream, TWS_COLLECTIVE_ALL_GATHER, z->classes[0].group, l->config->dtype,
                           (uint64_t)gathered, 1, 0, NULL, 0);
  if (z->stage >= 2)
    tws_builder_collective(&l->b, l->reduce_stream, reduction, z->classes[0].group, z->grad_dtype,
                           reduced * tws_dtype_bytes(z->grad_dtype), 1, 0, NULL, 0);
}
