/* Where the passes of a sample's layers meet what runs beside them: what ZeRO moves, tensor-parallel exchanges, and
 * copies of activation checkpoints. */
#include <string.h>

#include "estimators/piece_reader.h"

typedef struct placed_mark {
  tws_mark mark;
  int layer; /* of the pass */
} placed_mark;

typedef struct marker {
  tws_piece_reader *r;
  uint32_t *first_place, *end_place; /* per buffer: in sample->moved, or TWS_NONE */
  placed_mark *items;
  size_t count, capacity;
  int layer, failed;
  tws_piece_time now; /* in it */
} marker;

static void put_mark(marker *m, tws_mark_kind kind, int layer, int own, uint32_t which) {
  if (tws_reserve(&m->items, &m->capacity, m->count + 1, sizeof *m->items)) {
    m->failed = 1;
    return;
  }
  placed_mark *p = &m->items[m->count++];
  *p = (placed_mark){.mark = {.kind = (uint8_t)kind, .layer = own, .which = which}, .layer = layer};
  if (layer == m->layer) p->mark.at = m->now;
}

/* The first place of an operand's buffer that reaches behind where the operand begins. */
static uint32_t place_at(const marker *m, const tws_operand *w) {
  const tws_plan_sample *s = m->r->sample;
  uint32_t low = m->first_place[w->buffer], high = m->end_place[w->buffer];
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (s->moved[middle].first + s->moved[middle].elements <= w->offset)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* What an operation reads of parameters, and writes of gradients. */
static void mark_operands(marker *m, const tws_op *o) {
  const tws_plan_sample *s = m->r->sample;
  for (int k = 0; k < o->operand_count; k++) {
    const tws_operand *w = &m->r->plan->operands[o->operand_first + (uint32_t)k];
    const tws_mark_kind kind = w->access & TWS_WRITE ? TWS_MARK_WRITES : TWS_MARK_READS;
    if (m->first_place[w->buffer] == TWS_NONE) continue;
    for (uint32_t i = place_at(m, w); i < s->moved_count; i++) {
      const tws_moved_place *of = &s->moved[i];
      if (of->buffer != w->buffer || of->first >= w->offset + w->count) break;
      put_mark(m, kind, m->layer, of->layer, of->which);
    }
  }
}

/* Visits, and gradients that modules have added to, before operation `op`; at the end of a part none but these. */
static void mark_events(marker *m, uint32_t *next, uint32_t op, int at_end) {
  const tws_plan_sample *s = m->r->sample;
  for (; *next < s->event_count && s->events[*next].op <= op; ++*next) {
    const tws_sample_event *e = &s->events[*next];
    if (e->which != TWS_NONE)
      put_mark(m, TWS_MARK_WRITTEN, m->layer, e->layer, e->which);
    else if (at_end)
      return;
    else if (e->layer >= 0)
      put_mark(m, TWS_MARK_VISIT, e->layer, e->layer, 0);
  }
}

/* ---- exchanges ---- */

static int part_of(const tws_plan_sample *s, uint32_t op) {
  int part = 0;
  while (part < s->part_count && (op < s->parts[part].first_op || op >= s->parts[part].end_op)) part++;
  return part;
}

/* What an exchange waits for beside the one before: something that its own action computes, or an earlier one of the
 * micro-batch; else messages alone. */
static void read_exchange(tws_piece_reader *r, uint32_t op, uint32_t *left, tws_piece_exchange *e) {
  const tws_plan *plan = r->plan;
  const tws_op *o = &plan->ops[op];
  const uint32_t before = e->behind;
  uint32_t computed = TWS_NONE;
  for (uint32_t i = 0; i < o->dep_count; i++) {
    const uint32_t dep = plan->deps[o->dep_first + i];
    if (plan->ops[dep].stream == TWS_STREAM_P2P) continue; /* a point says so */
    if (plan->ops[dep].stream != TWS_STREAM_COMPUTE || tws_piece_leaves_out(r, &plan->ops[dep])) r->unknown = 1;
    if (computed == TWS_NONE || dep > computed) computed = dep;
  }
  const tws_work *work = &plan->works[o->work];
  const tws_axes axes = o->kind == TWS_OP_COLLECTIVE ? plan->groups[work->group].axes : 0,
                 meets = tws_piece_meets(r, o);
  if (axes != 1u << TWS_AXIS_MODEL && !meets) r->unknown = 1;
  const int is_new = computed != TWS_NONE && (before == TWS_NONE || computed > before);
  *e = (tws_piece_exchange){.op = op,
                            .behind = is_new ? computed : before,
                            .part = part_of(r->sample, op),
                            .left = TWS_NONE,
                            .beside = {.time = {0, tws_piece_seconds_of(r, o->work)},
                                       .axis = (uint8_t)tws_piece_axis(tws_report_of_op(plan, o)),
                                       .channel = o->channel,
                                       .stream = TWS_BESIDE_EXCHANGES,
                                       .is_own = 1,
                                       .meets = meets}};
  if (e->part == r->sample->part_count) r->unknown = 1;
  e->early = e->behind == TWS_NONE || part_of(r->sample, e->behind) != e->part;
  if (!e->early || !is_new) return;
  e->left = (*left)++;
  if (plan->ops[computed].micro_batch != o->micro_batch || e->left >= TWS_TIMES_LEFT) r->unknown = 1;
}

/* Each may begin when the one before has ended and what it waits for has been computed. They are among tensor ranks, or
 * ranks that differ, and nothing else that runs beside has to do with them; else they are not known. */
tws_code tws_piece_find_exchanges(tws_piece_reader *r, tws_error *err) {
  const tws_plan *plan = r->plan;
  uint32_t count = 0, left = 0;
  for (uint32_t op = 0; op < plan->op_count; op++) count += plan->ops[op].stream == TWS_STREAM_EXCHANGE;
  r->exchanges = tws_arena_alloc_unset(r->arena, count + 1u, sizeof *r->exchanges);
  r->exchange_at = tws_arena_alloc(r->scratch, plan->op_count + 1u, sizeof *r->exchange_at);
  if (!r->exchanges || !r->exchange_at) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the pieces of a step");
  for (uint32_t op = 0; op < plan->op_count; op++) {
    if (plan->ops[op].stream != TWS_STREAM_EXCHANGE) continue;
    tws_piece_exchange *e = &r->exchanges[r->exchange_count];
    e->behind = r->exchange_count ? e[-1].behind : TWS_NONE;
    if (r->exchange_count && plan->ops[op].micro_batch != plan->ops[e[-1].op].micro_batch) left = 0;
    read_exchange(r, op, &left, e);
    r->exchange_at[op] = ++r->exchange_count;
  }
  return TWS_OK;
}

/* 1 + the number of the last on one of the layers' streams that an operation waits for, or 0. */
static uint32_t waits_for(const tws_piece_reader *r, const tws_op *o, int stream) {
  uint32_t last = 0;
  for (uint32_t i = 0; i < o->dep_count; i++) {
    const uint32_t dep = r->plan->deps[o->dep_first + i];
    if (r->exchange_at[dep] > last && tws_piece_beside(r, &r->plan->ops[dep]) == stream) last = r->exchange_at[dep];
  }
  return last;
}

/* Points before an operation, or behind it. */
static void mark_spots(marker *m, uint32_t op, int behind, int aside) {
  const tws_piece_reader *r = m->r;
  size_t low = 0, high = r->spot_count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    *(r->spots[middle].op < op ? &low : &high) = r->spots[middle].op < op ? middle + 1 : middle;
  }
  for (; low < r->spot_count && r->spots[low].op == op; low++) {
    if (r->spots[low].behind != behind) continue;
    put_mark(m, TWS_MARK_POINT, m->layer, -1, r->spots[low].buffer);
    if (m->failed) return;
    m->items[m->count - 1].mark.point = r->spots[low].kind;
    m->items[m->count - 1].mark.aside = (uint8_t)aside;
  }
}

/* In a part, for number `last` - 1 on one of the layers' streams. */
static void mark_wait(marker *m, int part, int stream, uint32_t last, int behind) {
  tws_piece_reader *r = m->r;
  const uint32_t back = r->begun[stream] - last;
  uint32_t later = 0; /* parts' */
  for (uint32_t i = last; stream == TWS_OWN_EXCHANGES && i < r->begun[stream]; i++)
    later += r->exchanges[i].part > part;
  r->awaited[stream] = last;
  put_mark(m, TWS_MARK_WAITS, m->layer, -1, back);
  if (back >= TWS_EXCHANGES_BACK) r->unknown = 1;
  if (m->failed) return;
  tws_mark *mark = &m->items[m->count - 1].mark;
  mark->point = (uint8_t)later;
  mark->stream = (uint8_t)stream;
  mark->aside = (uint8_t)behind;
}

/* Before an operation that computes: for what is on the layers' streams from this one on. */
static void mark_waits(marker *m, uint32_t op, int stream) {
  tws_piece_reader *r = m->r;
  const int part = part_of(r->sample, op);
  for (; stream < TWS_OWN_STREAMS; stream++) {
    const uint32_t last = waits_for(r, &r->plan->ops[op], stream);
    if (last <= r->awaited[stream]) continue;
    mark_wait(m, part, stream, last, 0);
    if (stream == TWS_OWN_EXCHANGES && r->exchanges[last - 1].part != part) r->far = 1;
  }
}

/* Before one that ranks that differ begin together. */
static void mark_join(marker *m, const tws_op *o) {
  tws_piece_reader *r = m->r;
  const tws_axes meets = tws_piece_meets(r, o);
  if (!meets) return;
  tws_beside_op *op = tws_arena_alloc(r->arena, 1, sizeof *op);
  m->failed |= !op;
  if (!op) return;
  *op = (tws_beside_op){.time = {0, tws_piece_seconds_of(r, o->work)},
                        .axis = (uint8_t)tws_piece_axis(tws_report_of_op(r->plan, o)),
                        .channel = o->channel,
                        .stream = TWS_BESIDE_JOINS,
                        .meets = meets};
  put_mark(m, TWS_MARK_JOIN, m->layer, -1, 0);
  if (!m->failed) m->items[m->count - 1].mark.op = op;
}

static void mark_exchange(marker *m, const tws_piece_exchange *e, tws_mark_kind kind) {
  const int aside = 1 + TWS_OWN_EXCHANGES;
  if (kind != TWS_MARK_EARLY) mark_spots(m, e->op, 0, aside);
  put_mark(m, kind, m->layer, -1, e->left);
  if (!m->failed) m->items[m->count - 1].mark.op = &e->beside;
  if (kind != TWS_MARK_EARLY) mark_spots(m, e->op, 1, aside);
}

/* Where a checkpoint's copy is issued: it waits for what was computed before, and, as that does, for copies of the pass
 * before; for nothing else. */
static void mark_copy(marker *m, uint32_t at, int stream) {
  tws_piece_reader *r = m->r;
  const tws_op *o = &r->plan->ops[at];
  tws_beside_op *op = tws_arena_alloc(r->arena, 1, sizeof *op);
  m->failed |= !op;
  if (!op) return;
  for (uint32_t i = 0; i < o->dep_count; i++) {
    const tws_op *dep = &r->plan->ops[r->plan->deps[o->dep_first + i]];
    r->unknown |= dep->stream != TWS_STREAM_COMPUTE && tws_piece_beside(r, dep) <= TWS_OWN_EXCHANGES;
  }
  *op = (tws_beside_op){.time = {0, tws_piece_seconds_of(r, o->work)},
                        .axis = TWS_PIECE_AXES,
                        .channel = o->channel,
                        .stream = stream == TWS_OWN_COPIES ? TWS_BESIDE_COPIES : TWS_BESIDE_BRINGS,
                        .is_own = 1};
  put_mark(m, TWS_MARK_EXCHANGES, m->layer, -1, TWS_NONE);
  if (m->failed) return;
  m->items[m->count - 1].mark.op = op;
  m->items[m->count - 1].mark.stream = (uint8_t)stream;
  r->exchange_at[at] = ++r->begun[stream];
  mark_spots(m, at, 1, 1 + stream);
}

/* Behind an operation that computes: exchanges that may begin. */
static void mark_begun(marker *m, uint32_t op) {
  tws_piece_reader *r = m->r;
  for (uint32_t *begun = &r->begun[TWS_OWN_EXCHANGES]; *begun < r->exchange_count; ++*begun) {
    const tws_piece_exchange *e = &r->exchanges[*begun];
    if (e->behind != TWS_NONE && e->behind > op) return;
    mark_exchange(m, e, e->early ? TWS_MARK_EARLY : TWS_MARK_EXCHANGES);
  }
}

/* When a part begins: those that wait for none of it. */
static void mark_late(marker *m, int part) {
  tws_piece_reader *r = m->r;
  for (uint32_t i = 0; i < r->exchange_count; i++)
    if (r->exchanges[i].part == part && r->exchanges[i].early) {
      if (r->begun[TWS_OWN_EXCHANGES] <= i) r->begun[TWS_OWN_EXCHANGES] = i + 1; /* it waits for nothing computed */
      mark_exchange(m, &r->exchanges[i], TWS_MARK_LATE);
    }
}

/* Behind an operation that computes: whether it was one of the exchanges' communicator. Those before it have ended; of
 * an action that has issued none yet these are earlier actions'. */
static void mark_meeting(marker *m, const tws_op *o, int issued) {
  tws_piece_reader *r = m->r;
  if (!r->exchange_count || o->channel == TWS_CHANNEL_NONE || o->channel != r->exchanges[0].beside.channel) return;
  put_mark(m, TWS_MARK_MEETS, m->layer, -1, 0);
  r->follows |= !issued;
}

static void mark_part(marker *m, const tws_sample_part *part, const tws_sample_pieces *of) {
  const tws_sample_event *events = m->r->sample->events;
  double launches = 0;
  uint32_t next = 0;
  int issued = 0;
  m->count = 0;
  m->layer = part->action == TWS_ACTION_FORWARD ? of->first_layer : of->first_layer + of->layers - 1;
  m->now = (tws_piece_time){0, 0};
  if (m->r->exchanges) mark_late(m, part_of(m->r->sample, part->first_op));
  while (next < m->r->sample->event_count &&
         (events[next].op < part->first_op || (events[next].op == part->first_op && events[next].which != TWS_NONE)))
    next++;
  for (uint32_t op = part->first_op; op < part->end_op; op++) {
    const tws_op *o = &m->r->plan->ops[op];
    const int layer = tws_piece_layer_of(m->r, o, m->layer), stream = tws_piece_beside(m->r, o);
    const int left_out = stream < 0 && tws_piece_leaves_out(m->r, o);
    if (left_out && o->stream == TWS_STREAM_COMPUTE && m->r->exchanges) mark_waits(m, op, TWS_OWN_COPIES);
    mark_events(m, &next, op, 0);
    if (layer != m->layer) m->now = (tws_piece_time){0, 0};
    m->layer = layer;
    issued |= stream == TWS_OWN_EXCHANGES;
    if (stream > TWS_OWN_EXCHANGES && m->r->exchanges) mark_copy(m, op, stream);
    if (left_out && m->r->exchanges && waits_for(m->r, o, TWS_OWN_EXCHANGES)) m->r->unknown = 1;
    if (stream >= 0 || left_out) continue;
    if (m->r->exchanges) mark_waits(m, op, 0);
    if (m->r->exchanges || m->r->joins) mark_spots(m, op, 0, 0);
    if (m->r->joins) mark_join(m, o);
    if (m->first_place) mark_operands(m, o);
    tws_piece_add_time(m->r, o, &m->now, &launches, NULL);
    if (m->r->exchanges) mark_meeting(m, o, issued);
    if (m->r->exchanges || m->r->joins) mark_spots(m, op, 1, 0);
    if (m->r->exchanges) mark_begun(m, op);
  }
  for (int stream = TWS_OWN_COPIES; stream < TWS_OWN_STREAMS; stream++)
    if (m->r->awaited[stream] < m->r->begun[stream]) mark_wait(m, 0, stream, m->r->begun[stream], 1);
  m->r->leaves |= m->r->awaited[TWS_OWN_EXCHANGES] < m->r->begun[TWS_OWN_EXCHANGES];
  mark_events(m, &next, part->end_op, 1);
}

/* 0: no memory. */
static int prepare(marker *m) {
  const tws_plan_sample *s = m->r->sample;
  const uint32_t buffers = m->r->plan->buffer_count;
  if (!s->moved_count) return 1;
  m->first_place = tws_calloc(2u * buffers + 2u, sizeof *m->first_place);
  if (!m->first_place) return 0;
  m->end_place = m->first_place + buffers + 1;
  memset(m->first_place, 0xff, buffers * sizeof *m->first_place); /* TWS_NONE */
  for (uint32_t i = s->moved_count; i-- > 0;) m->first_place[s->moved[i].buffer] = i;
  for (uint32_t i = 0; i < s->moved_count; i++) m->end_place[s->moved[i].buffer] = i + 1;
  return 1;
}

tws_code tws_piece_read_marks(tws_piece_reader *r, const tws_sample_part *part, tws_sample_pieces *out,
                              tws_error *err) {
  if (!r->sample->moved_count && !r->exchanges && !r->joins) return TWS_OK;
  marker m = {.r = r};
  tws_marks *of = tws_arena_alloc(r->arena, (size_t)out->layers + 1, sizeof *of);
  m.failed = !of || !prepare(&m);
  if (!m.failed) mark_part(&m, part, out);
  tws_mark *items = m.failed ? NULL : tws_arena_alloc_unset(r->arena, m.count + 1, sizeof *items);
  if (items) {
    for (size_t i = 0; i < m.count; i++) of[m.items[i].layer - out->first_layer].count++;
    for (int i = 0; i < out->layers; i++) {
      of[i].items = items;
      items += of[i].count;
      of[i].count = 0;
    }
    for (size_t i = 0; i < m.count; i++) {
      tws_marks *to = &of[m.items[i].layer - out->first_layer];
      to->items[to->count++] = m.items[i].mark;
    }
    out->marks[part->micro_batch][tws_context_event_of(part->event, part->action)] = of;
  }
  tws_free(m.first_place);
  tws_free(m.items);
  return items ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for the pieces of a step");
}
