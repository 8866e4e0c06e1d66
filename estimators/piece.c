/* Pieces of a step, put together. */
#include <string.h>

#include "estimators/pieces.h"

tws_piece tws_piece_empty(void) {
  tws_piece p;
  memset(&p, 0, sizeof p);
  p.before = p.after = TWS_PIECE_LEAST;
  return p;
}

static void add_bytes(tws_piece *p, const tws_piece *next) {
  const int64_t before = p->delta + next->before, after = p->delta + next->after;
  if (p->begins) {
    p->after = tws_larger_bytes(p->after, tws_larger_bytes(before, after));
  } else {
    p->before = tws_larger_bytes(p->before, before);
    p->after = tws_larger_bytes(p->after, after);
  }
  p->begins |= next->begins;
  p->delta += next->delta;
}

int tws_piece_axis(int reported) {
  int at = 0;
  for (int axis = 0; axis < reported; axis++) at += tws_report_has(axis);
  return at;
}

void tws_add_axes(double *axis_s, double times, const double *more_s) {
  for (int axis = 0; axis < TWS_PIECE_AXES; axis++) axis_s[axis] += times * more_s[axis];
}

int tws_piece_append(tws_piece *p, const tws_piece *next) {
  if (p->point_count + next->point_count > TWS_PIECE_POINTS) return 0;
  for (int i = 0; i < next->point_count; i++) {
    tws_point *point = &p->points[p->point_count++];
    *point = next->points[i];
    point->at.kernel += p->time.kernel;
    point->at.other += p->time.other;
  }
  p->time = tws_sum_of_times(p->time, next->time);
  p->launches += next->launches;
  tws_add_axes(p->axis_s, 1, next->axis_s);
  add_bytes(p, next);
  return 1;
}

int tws_same_pieces(const tws_piece *a, const tws_piece *b) {
  return tws_same_times(a->time, b->time) && a->launches == b->launches && a->delta == b->delta &&
         a->before == b->before && a->after == b->after && a->begins == b->begins &&
         memcmp(a->axis_s, b->axis_s, sizeof a->axis_s) == 0 && a->point_count == 0 && b->point_count == 0;
}

tws_piece tws_piece_repeat(const tws_piece *piece, int times) {
  tws_piece all = tws_piece_empty(), last = *piece;
  if (times < 1) return all;
  all = *piece;
  if (times > 2) { /* peaks of sums lie at their ends */
    all.delta += (times - 2) * piece->delta;
    all.before = all.begins ? all.before : tws_larger_bytes(all.before, (times - 2) * piece->delta + piece->before);
    if (all.begins)
      all.after =
          tws_larger_bytes(all.after, (times - 2) * piece->delta + tws_larger_bytes(piece->before, piece->after));
  }
  if (times > 1) add_bytes(&all, &last);
  all.time.kernel = times * piece->time.kernel;
  all.time.other = times * piece->time.other;
  all.launches = times * piece->launches;
  tws_add_axes(all.axis_s, times - 1, piece->axis_s);
  return all;
}

tws_context_event tws_context_event_of(int event, int action) {
  const int backward = action != TWS_ACTION_FORWARD;
  if (event == TWS_EVENT_ACTION)
    return action == TWS_ACTION_BACKWARD_WEIGHT ? TWS_CONTEXT_WEIGHT
           : backward                           ? TWS_CONTEXT_BACKWARD
                                                : TWS_CONTEXT_FORWARD;
  if (event == TWS_EVENT_RECV) return backward ? TWS_CONTEXT_RECV_GRADIENT : TWS_CONTEXT_RECV;
  return backward ? TWS_CONTEXT_SEND_GRADIENT : TWS_CONTEXT_SEND;
}

/* ---- micro-batches ---- */

static int same_ops(const tws_beside_op *a, const tws_beside_op *b) {
  if (!a || !b) return a == b;
  return tws_same_times(a->time, b->time) && a->axis == b->axis && a->channel == b->channel && a->stream == b->stream &&
         a->is_own == b->is_own && a->meets == b->meets;
}

static int same_marks(const tws_marks *a, const tws_marks *b) {
  int same = a->count == b->count;
  for (uint32_t i = 0; i < a->count && same; i++) {
    const tws_mark *x = &a->items[i], *y = &b->items[i];
    same = tws_same_times(x->at, y->at) && x->layer == y->layer && x->which == y->which && x->kind == y->kind &&
           same_ops(x->op, y->op) && x->point == y->point && x->aside == y->aside && x->stream == y->stream;
  }
  return same;
}

static int same_cuts(const tws_cuts *a, const tws_cuts *b) {
  int same = a->count == b->count && !a->items == !b->items;
  for (uint32_t i = 0; i < a->count && same; i++)
    same = tws_same_times(a->items[i].at, b->items[i].at) && a->items[i].layer == b->items[i].layer;
  return same;
}

int tws_pieces_repeat(const tws_sample_pieces *s) {
  int same = s->closed && !s->exchanges;
  for (int e = 0; e < TWS_CONTEXT_EVENTS && same; e++) {
    if (!s->whole.has[e]) continue;
    same = tws_same_pieces(&s->whole.event[0][e], &s->whole.event[1][e]) && !s->whole.message_bytes[e] &&
           !s->completions[0][e] && !s->completions[1][e] && !s->layer[0][e] == !s->layer[1][e] &&
           !s->marks[0][e] == !s->marks[1][e] && same_cuts(&s->cuts[0][e], &s->cuts[1][e]);
    for (int i = 0; i < s->layers && same; i++)
      same = (!s->layer[0][e] || tws_same_pieces(&s->layer[0][e][i], &s->layer[1][e][i])) &&
             (!s->marks[0][e] || same_marks(&s->marks[0][e][i], &s->marks[1][e][i]));
  }
  return same;
}
