#include "estimators/exchanges.h"

#include <string.h>

typedef struct maker {
  const tws_composed_chunk *chunk;
  double stretch, waited;
  int apart; /* ranks differ: who waits for whom depends on the others */
  tws_action_step *items;
  size_t count, capacity;
  uint32_t early; /* exchanges of later actions */
  int drained;    /* none was under way when the section began, with step number `section` */
  int ends;       /* none is under way any more since the wait that is the last step */
  size_t section;
  int failed;
  tws_piece_time since; /* layers before the one at hand */
} maker;

/* What it waits since the section began is known: exchanges and waits are no steps any more, but when the last ended is
 * the next one's to know. */
static void fold(maker *m) {
  double ends[TWS_EXCHANGES_BACK], waited = 0, ended = m->items[m->section].at;
  uint32_t begun = 0;
  const int follows = m->section > 0 && m->items[m->section - 1].kind == TWS_STEP_ENDED;
  size_t kept = m->section - (size_t)follows;
  for (size_t i = m->section; i < m->count; i++) {
    tws_action_step s = m->items[i];
    s.at += waited;
    if (s.kind == TWS_STEP_EXCHANGE) {
      ended = (ended > s.at ? ended : s.at) + s.seconds;
      ends[begun++ % TWS_EXCHANGES_BACK] = ended;
    } else if (s.kind == TWS_STEP_WAIT) {
      const double end = ends[(begun - 1 - s.which) % TWS_EXCHANGES_BACK];
      if (end > s.at) waited += end - s.at;
    } else if (s.kind == TWS_STEP_ENDED) {
      ended = ended > s.at ? ended : s.at;
    } else {
      m->items[kept++] = s;
    }
  }
  m->items[kept++] = (tws_action_step){.at = ended, .kind = TWS_STEP_ENDED};
  m->count = kept;
  m->waited += waited;
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
                          .aside = k->aside};
  /* what waits for a message, too, waits once */
  if (m->ends && !(waits_for_message(&step) && step.at <= m->items[m->count - 1].at)) {
    end_section(m);
    step.at = at + m->waited;
  }
  m->items[m->count++] = step;
}

static void pass_mark(maker *m, const tws_mark *k) {
  switch ((tws_mark_kind)k->kind) {
    case TWS_MARK_EXCHANGES:
      add_step(m, k, TWS_STEP_EXCHANGE, 0);
      return;
    case TWS_MARK_LATE:
      add_step(m, k, TWS_STEP_LATE, k->which);
      return;
    case TWS_MARK_EARLY:
      m->early++;
      if (k->which != TWS_NONE) add_step(m, k, TWS_STEP_LEAVE, k->which);
      return;
    case TWS_MARK_WAITS:
      add_step(m, k, TWS_STEP_WAIT, k->which - m->early);
      m->ends = !m->apart && k->which == m->early;
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
  maker m = {.chunk = chunk, .stretch = stretch, .apart = apart};
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
  out->items = m.failed ? NULL : tws_arena_alloc_unset(arena, m.count + 1, sizeof *out->items);
  if (out->items && m.count) memcpy(out->items, m.items, m.count * sizeof *m.items);
  tws_free(m.items);
  return out->items != NULL;
}
