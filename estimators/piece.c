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
  p->behind = next->begins ? next->behind : tws_sum_of_times(p->behind, next->time);
  p->time = tws_sum_of_times(p->time, next->time);
  p->launches += next->launches;
  tws_add_axes(p->axis_s, 1, next->axis_s);
  add_bytes(p, next);
  return 1;
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

double tws_piece_behind_gradients(const tws_piece *p, double stretch) {
  const tws_piece_time written = {p->time.kernel - p->behind.kernel, p->time.other - p->behind.other};
  if (!p->begins) return -1;
  for (int i = 0; i < p->point_count; i++) {
    const tws_point *point = &p->points[i];
    const int waits = point->kind == TWS_POINT_TAKE || point->kind == TWS_POINT_WAIT;
    if (waits && (point->at.kernel > written.kernel || point->at.other > written.other)) return -1;
  }
  return stretch * p->behind.kernel + p->behind.other;
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
