/* The ends of lines of ranks that go through a step together. Reductions that run beside the last backward pass hold up
 * what first needs them; each line goes from one collective that it shares with others to the next; and updated
 * parameters are gathered beside the update, where that is known. */
#include <math.h>

#include "estimators/composer_beside.h"
#include "estimators/composer_step.h"

typedef tws_composed_step step;

typedef struct ending {
  step *s;
  const tws_rank_kind *ranks;
  int stages;
  int *at, *joined; /* [line][stage]: its next step, and 1 + the one that it has met others for */
  tws_ended_line *lines;
  tws_composed_account *account;
} ending;

static tws_rhythm_stage *stage_of(const ending *e, int line, int stage) {
  return &e->s->of_lines[line * e->stages + stage];
}

static tws_composed_account *account_of(const ending *e, int line, int stage) {
  return e->account && line == e->s->line ? &e->account[stage] : NULL;
}

/* NULL: it is done, but for what is gathered beside. */
static const tws_tail_step *next_of(const ending *e, int line, int stage) {
  const tws_tail_pieces *t = tws_step_line_tail(e->s, stage, line);
  const int at = e->at[line * e->stages + stage];
  return at < t->step_count - tws_gathers_beside(t) ? &t->steps[at] : NULL;
}

/* Where reductions would be met in that run beside. */
static int is_of_reductions(const ending *e, int line, int stage) {
  const tws_tail_pieces *t = tws_step_line_tail(e->s, stage, line);
  return t->overlaps && e->at[line * e->stages + stage] == t->reduced_step;
}

/* Whether its next step is one that others have to come to first. */
static int waits_for_lines(const ending *e, int line, int stage) {
  const int i = line * e->stages + stage;
  const tws_tail_step *next = next_of(e, line, stage);
  return next && !next->sync && next->meets && e->joined[i] != e->at[i] + 1 && !is_of_reductions(e, line, stage);
}

static const tws_timed_op *reduction(const void *of, uint32_t number) {
  return &((const tws_ended_line *)of)->reduced[number];
}

/* Reductions that what its end computes until then needs: before, it has computed for passed_s. */
static void wait_for_reduced(const ending *e, int line, double until_s) {
  const tws_tail_pieces *t = tws_step_line_tail(e->s, 0, line);
  const double stretch = tws_step_line_stretch(e->s, line)[0], step_s = tws_stretched_seconds(t->step_time, stretch);
  tws_ended_line *l = &e->lines[line];
  tws_rhythm_stage *own = stage_of(e, line, 0);
  for (; l->reduced && l->waited < t->wait_count; l->waited++) {
    const uint32_t needed = t->overlapped->needed[l->waited];
    const double at_s = step_s - tws_stretched_seconds(t->waits[l->waited].to_the_end, stretch);
    if (at_s > until_s + 1e-12 * step_s) return;
    if (!needed) continue;
    if (at_s > l->passed_s) {
      own->compute_s += at_s - l->passed_s;
      l->passed_s = at_s;
    }
    const double end_s = l->reduced[needed - 1].end_s;
    if (end_s <= own->compute_s) continue;
    tws_composed_account *account = account_of(e, line, 0);
    if (account) tws_account_gap(account, reduction, l, needed - 1, own->compute_s, end_s);
    own->compute_s = end_s;
  }
}

static void pass_step(const ending *e, int line, int stage, const tws_tail_step *next) {
  const double seconds = tws_stretched_seconds(next->time, tws_step_line_stretch(e->s, line)[stage]);
  tws_composed_account *account = account_of(e, line, stage);
  if (account) tws_expose(account, 1, next->axis_s);
  if (e->stages > 1) {
    stage_of(e, line, stage)->compute_s += seconds;
    return;
  }
  tws_ended_line *l = &e->lines[line];
  const double until_s = l->passed_s + seconds;
  wait_for_reduced(e, line, until_s);
  stage_of(e, line, 0)->compute_s += until_s - l->passed_s;
  l->passed_s = until_s;
}

/* Up to one that others are met in; returns whether there was any. */
static int go_on(const ending *e, int line, int stage) {
  for (int moved = 0;; moved = 1) {
    const tws_tail_step *next = next_of(e, line, stage);
    if (e->stages == 1) wait_for_reduced(e, line, e->lines[line].passed_s);
    if (!next || next->sync || waits_for_lines(e, line, stage)) return moved;
    pass_step(e, line, stage, next);
    e->at[line * e->stages + stage]++;
  }
}

/* Lines of a stage that share a collective, the first of them `first`; returns whether they were all there. */
static int join_lines(const ending *e, int first, int stage) {
  if (!waits_for_lines(e, first, stage)) return 0;
  const tws_axes axes = next_of(e, first, stage)->meets;
  const uint8_t *of = tws_lines_along(&e->s->groups, axes);
  double met = 0;
  if (!of || of[first] != first) return 0;
  for (int i = first; i < e->ranks->line_count; i++) {
    if (of[i] != first) continue;
    if (!waits_for_lines(e, i, stage) || next_of(e, i, stage)->meets != axes) return 0;
    if (stage_of(e, i, stage)->compute_s > met) met = stage_of(e, i, stage)->compute_s;
  }
  for (int i = first; i < e->ranks->line_count; i++) {
    if (of[i] != first) continue;
    tws_rhythm_stage *own = stage_of(e, i, stage);
    tws_composed_account *account = account_of(e, i, stage);
    if (account) account->bubble_s += met - own->compute_s;
    own->compute_s = met;
    e->joined[i * e->stages + stage] = e->at[i * e->stages + stage] + 1;
  }
  return 1;
}

/* Stages of a line in a collective of theirs; two of them, or all (NULL). */
static void join_stages(const ending *e, int line, const int *two) {
  const int count = two ? 2 : e->stages;
  double met = 0, seconds = 0;
  for (int k = 0; k < count; k++) {
    const int i = two ? two[k] : k;
    tws_rhythm_stage *stage = stage_of(e, line, i);
    const double own = next_of(e, line, i)->time.other;
    if (!two && stage->messages_s > stage->compute_s) { /* one channel with messages */
      if (account_of(e, line, i)) tws_rhythm_gap(stage, stage->compute_s, stage->messages_s);
      stage->compute_s = stage->messages_s;
    }
    if (stage->compute_s > met) met = stage->compute_s;
    if (own > seconds) seconds = own;
  }
  for (int k = 0; k < count; k++) {
    const int i = two ? two[k] : k;
    tws_composed_account *account = account_of(e, line, i);
    if (account) account->bubble_s += met - stage_of(e, line, i)->compute_s;
    if (account) account->axis_exposed_s[TWS_AXIS_PIPE] += seconds;
    stage_of(e, line, i)->compute_s = met + seconds;
    e->at[line * e->stages + i]++;
  }
}

/* Returns whether stages of the line met. */
static int meet_stages(const ending *e, int line) {
  int all = e->stages > 1, tied[2], tied_count = 0;
  for (int i = 0; i < e->stages; i++) {
    const tws_tail_step *next = next_of(e, line, i);
    const int sync = next ? next->sync : TWS_TAIL_ALONE;
    all &= sync == TWS_TAIL_STAGES;
    if (sync == TWS_TAIL_TIED && tied_count < 2) tied[tied_count++] = i;
  }
  if (tied_count < 2 && !all) return 0;
  join_stages(e, line, tied_count == 2 ? tied : NULL);
  return 1;
}

/* ---- gathers beside the update ---- */

static const tws_timed_op *gather(const void *of, uint32_t number) {
  return &((const tws_ended_line *)of)->gathered[number];
}

/* One of them, of all lines: each may begin it when it has updated what it gathers. */
static void gather_one(const ending *e, int number) {
  tws_timed_op *all[TWS_MOST_LINES];
  const tws_axes axes = tws_step_line_tail(e->s, 0, 0)->gathers[number].meets;
  for (int i = 0; i < e->ranks->line_count; i++) {
    const tws_tail_gather *g = &tws_step_line_tail(e->s, 0, i)->gathers[number];
    const double behind_s = tws_stretched_seconds(g->behind, tws_step_line_stretch(e->s, i)[0]);
    all[i] = &e->lines[i].gathered[number];
    *all[i] = (tws_timed_op){
        .ready_s = stage_of(e, i, 0)->compute_s - behind_s, .seconds = g->seconds, .axis = (uint8_t)g->axis};
  }
  tws_start_jointly(tws_lines_along(&e->s->groups, axes), e->ranks->line_count, (uint32_t)number, all);
}

static void gather_all(const ending *e) {
  const int count = tws_gathers_beside(tws_step_line_tail(e->s, 0, 0));
  for (int i = 0; i < count; i++) gather_one(e, i);
  for (int line = 0; line < e->ranks->line_count && count; line++) {
    tws_rhythm_stage *own = stage_of(e, line, 0);
    const double end_s = e->lines[line].gathered[count - 1].end_s;
    tws_composed_account *account = account_of(e, line, 0);
    if (end_s <= own->compute_s) continue;
    if (account) tws_account_gap(account, gather, &e->lines[line], (uint32_t)count - 1, own->compute_s, end_s);
    own->compute_s = end_s;
  }
}

static double last_end(const ending *e) {
  double last = 0;
  for (int line = 0; line < e->ranks->line_count; line++)
    for (int i = 0; i < e->stages; i++) {
      const tws_rhythm_stage *stage = stage_of(e, line, i);
      if (next_of(e, line, i)) return -1;
      if (stage->compute_s > last) last = stage->compute_s;
      if (stage->messages_s > last) last = stage->messages_s;
    }
  return last;
}

/* All lines go on from where their passes left off. */
static void begin_ends(step *s) {
  const int stages = s->shape.stages, passing = tws_step_passing(s);
  for (int i = 0; i < stages * s->ranks->line_count; i++) {
    const int passed = passing ? i : i % stages;
    if (!passing) s->of_lines[i] = s->stages[passed];
    s->of_lines[i].compute_s = s->end_s[0][passed];
    s->of_lines[i].messages_s = s->end_s[1][passed];
  }
}

/* Where streams run beside what computes. */
static tws_code run_ends(step *s, tws_composed_account *account, double *ended_s, tws_error *err) {
  tws_end_run *run = s->run;
  const int stages = s->shape.stages;
  for (int i = 0; i < run->count; i++) {
    const int line = i / stages, stage = i % stages;
    const double stretch = tws_step_line_stretch(s, line)[stage], computed_s = s->of_lines[i].compute_s;
    s->end_starts[i] = (tws_end_start){.computed_s = computed_s,
                                       .messages_s = s->of_lines[i].messages_s,
                                       .reduced_s = stages > 1 ? 0 : s->ended_lines[i].reduced_s,
                                       .copied_s = stages > 1 ? 0 : s->ended_lines[i].copied_s,
                                       .brought_s = stages > 1 ? 0 : s->ended_lines[i].brought_s,
                                       .hosted_s = stages > 1 ? 0 : s->ended_lines[i].hosted_s,
                                       .complete_s = stages > 1 ? NULL : s->ended_lines[i].complete_s,
                                       .stretch = stretch};
  }
  tws_end_run_go(run, s->end_starts, s->line_ended_s);
  *ended_s = 0;
  for (int i = 0; i < run->count; i++) {
    s->of_lines[i].compute_s = s->line_ended_s[i];
    *ended_s = fmax(*ended_s, fmax(s->line_ended_s[i], s->of_lines[i].messages_s));
  }
  for (int i = 0; i < stages && account; i++) {
    const int own = s->line * stages + i;
    TWS_TRY(tws_end_run_account(run, own, &s->of_lines[own], &account[i], err));
  }
  return TWS_OK;
}

/* What the line waited for when its passes had computed. */
static void account_for_passes(const step *s, tws_composed_account *account) {
  if (s->shape.stages > 1) return;
  const int by_host = s->run && tws_end_run_waits_for_host(s->run, s->line);
  const tws_composed_account *gap = &s->ended_lines[s->line].gap[by_host];
  account->bubble_s += gap->bubble_s;
  for (int axis = 0; axis < TWS_REPORT_COUNT; axis++) account->axis_exposed_s[axis] += gap->axis_exposed_s[axis];
}

tws_code tws_step_end_lines(step *s, tws_composed_account *account, double *ended_s, tws_error *err) {
  begin_ends(s);
  if (s->run) TWS_TRY(run_ends(s, account, ended_s, err));
  if (account) account_for_passes(s, account);
  if (s->run) return TWS_OK;
  const tws_rank_kind *ranks = s->ranks;
  const int all = s->shape.stages * ranks->line_count;
  const ending e = {.s = s,
                    .ranks = ranks,
                    .stages = s->shape.stages,
                    .at = s->line_at,
                    .joined = s->line_joined,
                    .lines = s->ended_lines,
                    .account = account};
  for (int i = 0; i < all; i++) e.at[i] = e.joined[i] = 0;
  for (int i = 0; i < ranks->line_count && e.stages == 1; i++) e.lines[i].passed_s = e.lines[i].waited = 0;
  for (int moved = 1; moved;) {
    moved = 0;
    for (int line = 0; line < ranks->line_count; line++)
      for (int i = 0; i < s->shape.stages; i++) moved |= go_on(&e, line, i) | join_lines(&e, line, i);
    for (int line = 0; line < ranks->line_count; line++) moved |= meet_stages(&e, line);
  }
  if (e.stages == 1) gather_all(&e);
  *ended_s = last_end(&e);
  return TWS_OK;
}
