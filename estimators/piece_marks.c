/* Where the passes of a sample's layers meet what runs beside them: what ZeRO moves, and tensor-parallel exchanges. */
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

/* Each may begin when the one before has ended and what it waits for has been computed. They are among tensor ranks,
 * and nothing else that runs beside has to do with them; else they are not known. */
tws_code tws_piece_find_exchanges(tws_piece_reader *r, tws_error *err) {
  const tws_plan *plan = r->plan;
  uint32_t behind = TWS_NONE, count = 0;
  for (uint32_t op = 0; op < plan->op_count; op++) count += plan->ops[op].stream == TWS_STREAM_EXCHANGE;
  r->exchanges = tws_arena_alloc_unset(r->arena, count + 1u, sizeof *r->exchanges);
  r->exchange_at = tws_arena_alloc(r->arena, plan->op_count + 1u, sizeof *r->exchange_at);
  if (!r->exchanges || !r->exchange_at) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the pieces of a step");
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    if (o->stream != TWS_STREAM_EXCHANGE) continue;
    for (uint32_t i = 0; i < o->dep_count; i++) {
      const uint32_t dep = plan->deps[o->dep_first + i];
      if (plan->ops[dep].stream != TWS_STREAM_COMPUTE || tws_piece_is_move(plan, &plan->ops[dep])) r->unknown = 1;
      if (behind == TWS_NONE || dep > behind) behind = dep;
    }
    const tws_work *work = &plan->works[o->work];
    if (behind == TWS_NONE || plan->ops[behind].micro_batch != o->micro_batch) r->unknown = 1;
    if (o->kind != TWS_OP_COLLECTIVE || plan->groups[work->group].axes != 1u << TWS_AXIS_MODEL) r->unknown = 1;
    r->exchanges[r->exchange_count] =
        (tws_piece_exchange){.behind = behind,
                             .op = {.time = {0, tws_piece_seconds_of(r, o->work)},
                                    .axis = (uint8_t)tws_piece_axis(tws_report_of_op(plan, o)),
                                    .channel = o->channel,
                                    .stream = TWS_BESIDE_EXCHANGES}};
    r->exchange_at[op] = ++r->exchange_count;
  }
  return TWS_OK;
}

/* 1 + the number of the last exchange that an operation waits for, or 0. */
static uint32_t waits_for(const tws_piece_reader *r, const tws_op *o) {
  uint32_t last = 0;
  for (uint32_t i = 0; i < o->dep_count; i++) {
    const uint32_t dep = r->plan->deps[o->dep_first + i];
    if (r->exchange_at[dep] > last) last = r->exchange_at[dep];
  }
  return last;
}

/* Before an operation that computes. Where it may wait for a message no exchange is under way. */
static void mark_waits(marker *m, uint32_t op) {
  tws_piece_reader *r = m->r;
  const uint32_t last = waits_for(r, &r->plan->ops[op]), back = r->begun - last;
  if (last > r->awaited) {
    r->awaited = last;
    put_mark(m, TWS_MARK_WAITS, m->layer, -1, back);
    if (back >= TWS_EXCHANGES_BACK) r->unknown = 1;
  }
  if (r->points[0][op] && r->awaited < r->begun) r->unknown = 1;
}

static void mark_points(marker *m, uint32_t count) {
  while (count-- > 0) put_mark(m, TWS_MARK_POINT, m->layer, -1, 0);
}

static void mark_begun(marker *m, uint32_t op) {
  tws_piece_reader *r = m->r;
  while (r->begun < r->exchange_count && r->exchanges[r->begun].behind <= op) {
    put_mark(m, TWS_MARK_EXCHANGES, m->layer, -1, 0);
    if (!m->failed) m->items[m->count - 1].mark.op = &r->exchanges[r->begun].op;
    r->begun++;
  }
}

static void mark_part(marker *m, const tws_sample_part *part, const tws_sample_pieces *of) {
  const tws_sample_event *events = m->r->sample->events;
  double launches = 0;
  uint32_t next = 0;
  m->count = 0;
  m->layer = part->action == TWS_ACTION_FORWARD ? of->first_layer : of->first_layer + of->layers - 1;
  m->now = (tws_piece_time){0, 0};
  while (next < m->r->sample->event_count &&
         (events[next].op < part->first_op || (events[next].op == part->first_op && events[next].which != TWS_NONE)))
    next++;
  for (uint32_t op = part->first_op; op < part->end_op; op++) {
    const tws_op *o = &m->r->plan->ops[op];
    const int layer = tws_piece_layer_of(m->r, o, m->layer);
    mark_events(m, &next, op, 0);
    if (layer != m->layer) m->now = (tws_piece_time){0, 0};
    m->layer = layer;
    const int beside = o->stream == TWS_STREAM_EXCHANGE && !m->r->costs->serial;
    if (beside || tws_piece_is_move(m->r->plan, o)) {
      if (!beside && m->r->exchanges && waits_for(m->r, o)) m->r->unknown = 1;
      continue;
    }
    if (m->r->exchanges) mark_waits(m, op);
    if (m->r->exchanges) mark_points(m, m->r->points[0][op]);
    if (m->first_place) mark_operands(m, o);
    tws_piece_add_time(m->r, o, &m->now, &launches, NULL);
    if (m->r->exchanges) mark_points(m, m->r->points[1][op]);
    if (m->r->exchanges) mark_begun(m, op);
  }
  mark_events(m, &next, part->end_op, 1);
  m->r->across |= m->r->awaited < m->r->begun;
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
  if (!r->sample->moved_count && !r->exchanges) return TWS_OK;
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
