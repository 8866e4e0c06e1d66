#include "estimators/exchanges.h"

#include <string.h>

typedef struct maker {
  const tws_composed_chunk *chunk;
  double stretch, waited, exchanged, behind; /* see tws_action_steps */
  int apart;                                 /* ranks differ: who waits for whom depends on the others */
  tws_action_step *items;
  size_t count, capacity;
  int going[TWS_OWN_STREAMS]; /* some may be under way there */
  int drained;                /* none was under way when the section began, with step number `section` */
  int ends;                   /* none is under way any more since the wait that is the last step */
  size_t section;
  int failed;
  tws_piece_time since; /* layers before the one at hand */
} maker;

/* Exchanges of a section, with what computes waits for them. */
typedef struct folded {
  double end[TWS_OWN_STREAMS][TWS_EXCHANGES_BACK], ended[TWS_OWN_STREAMS];
  uint32_t begun[TWS_OWN_STREAMS];
  double waited, exchanged, behind;
} folded;

/* What one operation waits for, from step `from` on, which begins there and no later; returns how many steps that is.
 */
static size_t fold_waits(const maker *m, size_t from, folded *f) {
  const double at = m->items[from].at;
  double until = at + f->waited;
  size_t count = 0;
  int last = -1;
  for (; from + count < m->count; count++) {
    const tws_action_step *s = &m->items[from + count];
    if (s->kind != TWS_STEP_WAIT || s->at > at) break;
    const double end = f->end[s->stream][(f->begun[s->stream] - 1 - s->which) % TWS_EXCHANGES_BACK];
    if (end > until) last = s->stream;
    if (end > until) until = end;
  }
  if (last == TWS_OWN_EXCHANGES) f->exchanged += until - at - f->waited;
  if (m->items[from].aside) f->behind += until - at - f->waited;
  f->waited = until - at;
  return count;
}

static void fold_exchange(const tws_action_step *s, double at, folded *f) {
  double *ended = &f->ended[s->stream];
  *ended = (*ended > at ? *ended : at) + s->seconds;
  f->end[s->stream][f->begun[s->stream]++ % TWS_EXCHANGES_BACK] = *ended;
}

/* What it waits since the section began is known: exchanges and waits are no steps any more, but when the last ended is
 * the next one's to know, where it may begin before what computes comes to it. */
static void fold(maker *m) {
  const double began = m->items[m->section].at;
  folded f = {.ended = {began, began, began}};
  const int follows = m->section > 0 && m->items[m->section - 1].kind == TWS_STEP_ENDED;
  size_t kept = m->section - (size_t)follows;
  int ended = follows;
  for (size_t i = m->section; i < m->count; i++) {
    tws_action_step s = m->items[i];
    const double at = s.at + f.waited;
    if (s.kind == TWS_STEP_EXCHANGE) {
      fold_exchange(&s, at, &f);
      ended |= s.stream == TWS_OWN_EXCHANGES;
    } else if (s.kind == TWS_STEP_WAIT) {
      i += fold_waits(m, i, &f) - 1;
    } else if (s.kind == TWS_STEP_ENDED) {
      double *last = &f.ended[TWS_OWN_EXCHANGES];
      *last = *last > at ? *last : at;
      ended = 1;
    } else {
      s.at = at;
      m->items[kept++] = s;
    }
  }
  if (ended) m->items[kept++] = (tws_action_step){.at = f.ended[TWS_OWN_EXCHANGES], .kind = TWS_STEP_ENDED};
  m->count = kept;
  m->waited += f.waited;
  m->exchanged += f.exchanged;
  m->behind += f.behind;
}

/* What computes waits there. */
static int waits_for_message(const tws_action_step *s) {
  return s->kind == TWS_STEP_POINT && !s->aside && (s->point == TWS_POINT_TAKE || s->point == TWS_POINT_WAIT);
}

/* None but those that compute, and do not wait. */
static int is_own(const tws_action_step *s) {
  if (s->kind == TWS_STEP_POINT) return !s->aside && !waits_for_message(s);
  return s->kind == TWS_STEP_EXCHANGE || s->kind == TWS_STEP_WAIT || s->kind == TWS_STEP_ENDED;
}

static void end_section(maker *m) {
  int own = m->drained;
  for (size_t i = m->section; i < m->count && own; i++) own = is_own(&m->items[i]);
  if (own) fold(m);
  m->drained = 1;
  m->ends = 0;
  m->section = m->count;
}

static void add_step(maker *m, const tws_mark *k, tws_action_step_kind kind, uint32_t which) {
  if (tws_reserve(&m->items, &m->capacity, m->count + 1, sizeof *m->items)) {
    m->failed = 1;
    return;
  }
  const double at = m->stretch * (m->since.kernel + k->at.kernel) + m->since.other + k->at.other;
  tws_action_step step = {.at = at + m->waited,
                          .seconds = k->op ? k->op->time.other : 0,
                          .which = which,
                          .meets = k->op && m->apart && kind != TWS_STEP_LEAVE ? k->op->meets : 0,
                          .axis = k->op ? k->op->axis : 0,
                          .kind = (uint8_t)kind,
                          .point = k->point,
                          .aside = k->aside,
                          .stream = k->stream};
  /* what waits for a message, too, waits once */
  if (m->ends && !(waits_for_message(&step) && step.at <= m->items[m->count - 1].at)) {
    end_section(m);
    step.at = at + m->waited;
  }
  m->items[m->count++] = step;
}

static int is_going(const maker *m) {
  int going = 0;
  for (int stream = 0; stream < TWS_OWN_STREAMS; stream++) going |= m->going[stream];
  return going;
}

static void pass_mark(maker *m, const tws_mark *k) {
  switch ((tws_mark_kind)k->kind) {
    case TWS_MARK_EXCHANGES:
      add_step(m, k, TWS_STEP_EXCHANGE, 0);
      m->going[k->stream] = 1;
      return;
    case TWS_MARK_LATE:
      add_step(m, k, TWS_STEP_LATE, k->which);
      m->going[k->stream] = 1;
      return;
    case TWS_MARK_EARLY:
      if (k->which != TWS_NONE) add_step(m, k, TWS_STEP_LEAVE, k->which);
      return;
    case TWS_MARK_WAITS:
      add_step(m, k, TWS_STEP_WAIT, k->which - k->point);
      if (k->which == k->point) m->going[k->stream] = 0;
      m->ends = !m->apart && !is_going(m);
      return;
    case TWS_MARK_MEETS:
      add_step(m, k, TWS_STEP_ENDED, 0);
      return;
    case TWS_MARK_JOIN:
      if (m->apart) add_step(m, k, TWS_STEP_JOIN, 0);
      return;
    case TWS_MARK_POINT:
      add_step(m, k, TWS_STEP_POINT, k->which);
      return;
    default:
      return;
  }
}

int tws_action_steps_make(const tws_composed_chunk *chunk, int later, int event, double stretch, int apart,
                          tws_arena *arena, tws_action_steps *out) {
  /* those of tensor ranks may be under way when an action begins */
  const int among_ranks = chunk->head->among_ranks || (chunk->tail && chunk->tail->among_ranks);
  maker m = {.chunk = chunk, .stretch = stretch, .apart = apart, .drained = !among_ranks};
  const int layers = tws_chunk_layers(chunk);
  for (int i = 0; i < layers && !m.failed; i++) {
    int layer;
    const tws_sample_pieces *s = tws_composed_layer(chunk, event == TWS_CONTEXT_FORWARD ? i : layers - 1 - i, &layer);
    const tws_marks *marks = &s->marks[later][event][layer];
    for (uint32_t k = 0; k < marks->count && !m.failed; k++) pass_mark(&m, &marks->items[k]);
    m.since.kernel += s->layer[later][event][layer].time.kernel;
    m.since.other += s->layer[later][event][layer].time.other;
  }
  if (m.ends) end_section(&m);
  out->count = (uint32_t)m.count;
  out->waited_s = m.waited;
  out->exchanged_s = m.exchanged;
  out->behind_s = m.behind;
  out->items = m.failed ? NULL : tws_arena_alloc_unset(arena, m.count + 1, sizeof *out->items);
  if (out->items && m.count) memcpy(out->items, m.items, m.count * sizeof *m.items);
  tws_free(m.items);
  return out->items != NULL;
}
