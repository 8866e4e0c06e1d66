#include "plan/zero3_schedule.h"

#include <stdlib.h>
#include <string.h>

typedef struct coordinator {
  const tws_zero3_visit *visits;
  uint32_t count;
  const int64_t *numel;
  const uint8_t *persistent;
  const tws_zero3_limits *limits;
  int complete;
  uint8_t *available;
  int64_t *fetched_for; /* per parameter: the last visit for which it was prefetched, or -1 */
  uint32_t *queue_param, *queue_visit;
  uint32_t queue_head, queue_count;
  /* use_first: per visit; next_use: per use (visit, parameter) the next visit that uses the parameter */
  uint32_t *use_first, *next_use;
  int64_t *traversed; /* per visit: number of elements of the parameters of all earlier visits */
  int64_t live;
  tws_zero3_schedule *out;
} coordinator;

static int by_id(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

static void take_param(coordinator *c, uint32_t param) {
  c->available[param] = 1;
  c->live += c->numel[param];
  c->out->params[c->out->param_count++] = param;
}

static void prefetch_after_visit(coordinator *c, tws_zero3_actions *actions) {
  int64_t budget = c->limits->max_live_parameters - c->live, taken = 0;
  if (budget > c->limits->prefetch_bucket_size) budget = c->limits->prefetch_bucket_size;
  uint32_t first = c->out->param_count;
  while (c->queue_head < c->queue_count && taken < budget) {
    uint32_t param = c->queue_param[c->queue_head], visit = c->queue_visit[c->queue_head];
    c->queue_head++;
    /* set even if the parameter is gathered already, since the entry prevents its release before that visit */
    c->fetched_for[param] = visit;
    if (c->available[param]) continue;
    taken += c->numel[param];
    take_param(c, param);
  }
  actions->prefetch_first = first;
  actions->prefetch_count = c->out->param_count - first;
  qsort(c->out->params + first, actions->prefetch_count, sizeof(uint32_t), by_id);
}

static void fetch_for_visit(coordinator *c, uint32_t visit) {
  tws_zero3_actions *actions = &c->out->actions[visit];
  const tws_zero3_visit *v = &c->visits[visit];
  actions->gather_first = c->out->param_count;
  for (uint32_t i = 0; i < v->count; i++) {
    if (!c->available[v->params[i]]) take_param(c, v->params[i]);
  }
  actions->gather_count = c->out->param_count - actions->gather_first;
  actions->prefetch_first = c->out->param_count;
  if (!c->complete) return;
  while (c->queue_head < c->queue_count && c->queue_visit[c->queue_head] <= visit) c->queue_head++;
  prefetch_after_visit(c, actions);
}

static void release_after_visit(coordinator *c, uint32_t visit) {
  tws_zero3_actions *actions = &c->out->actions[visit];
  const tws_zero3_visit *v = &c->visits[visit];
  actions->release_first = c->out->param_count;
  for (uint32_t i = 0; i < v->count; i++) {
    uint32_t param = v->params[i];
    int keep = c->complete && (c->persistent[param] || c->fetched_for[param] > (int64_t)visit);
    uint32_t next = c->next_use[c->use_first[visit] + i];
    if (c->complete && next < c->count) {
      keep |= c->traversed[next] - c->traversed[visit + 1] < c->limits->max_reuse_distance;
    }
    if (keep || !c->available[param]) continue;
    c->available[param] = 0;
    c->live -= c->numel[param];
    c->out->params[c->out->param_count++] = param;
  }
  actions->release_count = c->out->param_count - actions->release_first;
}

/* Walks the trace backwards once, so that the next use of a parameter can be looked up. */
static int index_uses(coordinator *c, size_t uses, uint32_t param_count, tws_arena *arena) {
  c->use_first = tws_arena_alloc(arena, c->count + 1, sizeof *c->use_first);
  c->next_use = tws_arena_alloc(arena, uses + 1, sizeof *c->next_use);
  c->traversed = tws_arena_alloc(arena, c->count + 2, sizeof *c->traversed);
  uint32_t *next = tws_arena_alloc(arena, param_count + 1, sizeof *next);
  if (!c->use_first || !c->next_use || !c->traversed || !next) return -1;
  for (uint32_t p = 0; p < param_count; p++) next[p] = c->count;
  uint32_t use = 0;
  for (uint32_t i = 0; i < c->count; i++) {
    c->use_first[i] = use;
    use += c->visits[i].count;
    c->traversed[i + 1] = c->traversed[i];
    for (uint32_t k = 0; k < c->visits[i].count; k++) c->traversed[i + 1] += c->numel[c->visits[i].params[k]];
  }
  for (uint32_t i = c->count; i-- > 0;) {
    for (uint32_t k = 0; k < c->visits[i].count; k++) {
      c->next_use[c->use_first[i] + k] = next[c->visits[i].params[k]];
      next[c->visits[i].params[k]] = i;
    }
  }
  return 0;
}

tws_code tws_zero3_make_schedule(const tws_zero3_visit *visits, uint32_t count, uint32_t param_count,
                                 const int64_t *numel, const uint8_t *persistent, const tws_zero3_limits *limits,
                                 int complete, tws_arena *arena, tws_zero3_schedule *out, tws_error *err) {
  size_t uses = 0;
  for (uint32_t i = 0; i < count; i++) uses += visits[i].count;
  coordinator c = {.visits = visits,
                   .count = count,
                   .numel = numel,
                   .persistent = persistent,
                   .limits = limits,
                   .complete = complete,
                   .out = out};
  out->peak_numel = 0;
  out->param_count = 0;
  out->actions = tws_arena_alloc(arena, count + 1, sizeof *out->actions);
  out->params =
      tws_arena_alloc(arena, 3 * uses + 1, sizeof *out->params); /* each use gathers and releases at most once */
  c.available = tws_arena_alloc(arena, param_count + 1, 1);
  c.fetched_for = tws_arena_alloc(arena, param_count + 1, sizeof *c.fetched_for);
  c.queue_param = tws_arena_alloc(arena, uses + 1, sizeof *c.queue_param);
  c.queue_visit = tws_arena_alloc(arena, uses + 1, sizeof *c.queue_visit);
  if (!out->actions || !out->params || !c.available || !c.fetched_for || !c.queue_param || !c.queue_visit ||
      index_uses(&c, uses, param_count, arena)) {
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for the ZeRO-3 schedule of %u visits", count);
  }
  for (uint32_t p = 0; p < param_count; p++) {
    c.fetched_for[p] = -1;
    c.available[p] = complete && persistent[p];
  }
  for (uint32_t i = 0; i < count; i++) {
    for (uint32_t k = 0; k < visits[i].count; k++) {
      c.queue_param[c.queue_count] = visits[i].params[k];
      c.queue_visit[c.queue_count++] = i;
    }
  }
  for (uint32_t i = 0; i < count; i++) {
    fetch_for_visit(&c, i);
    if (c.live > out->peak_numel) out->peak_numel = c.live;
    release_after_visit(&c, i);
  }
  return TWS_OK;
}

/* ---- schedules by units ---- */

typedef struct unit_trace {
  const tws_zero3_visit *visits;
  const uint32_t *unit;
  tws_zero3_visit *runs; /* runs of successive visits with the same units */
  uint32_t *run_of, run_count;
  uint32_t *member_first, *members; /* members of unit u: parameters members[member_first[u]] and following */
  uint32_t *units;                  /* units (parameters gathered together) of all runs, one run after another */
  uint32_t units_used;
} unit_trace;

/* Appends the units of a visit, ascending and without duplicates, after those of the last run. */
static uint32_t list_units(const unit_trace *t, const tws_zero3_visit *visit) {
  uint32_t *units = t->units + t->units_used, count = 0;
  for (uint32_t i = 0; i < visit->count; i++) {
    const uint32_t unit = t->unit[visit->params[i]];
    uint32_t at = count;
    while (at > 0 && units[at - 1] > unit) at--;
    if (at > 0 && units[at - 1] == unit) continue;
    for (uint32_t k = count++; k > at; k--) units[k] = units[k - 1];
    units[at] = unit;
  }
  return count;
}

static void find_runs(unit_trace *t, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t units = list_units(t, &t->visits[i]);
    const tws_zero3_visit *last = t->run_count ? &t->runs[t->run_count - 1] : NULL;
    const uint32_t *list = t->units + t->units_used;
    if (!last ||
        (units && last->count && (last->count != units || memcmp(last->params, list, units * sizeof *list) != 0))) {
      t->runs[t->run_count++] = (tws_zero3_visit){.params = list, .count = units};
      t->units_used += units;
    } else if (units && !last->count) {
      t->runs[t->run_count - 1] = (tws_zero3_visit){.params = list, .count = units};
      t->units_used += units;
    }
    t->run_of[i] = t->run_count - 1;
  }
}

static uint32_t expand(const unit_trace *t, const uint32_t *units, uint32_t count, tws_zero3_schedule *out) {
  const uint32_t first = out->param_count;
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t k = t->member_first[units[i]]; k < t->member_first[units[i] + 1]; k++)
      out->params[out->param_count++] = t->members[k];
  qsort(out->params + first, out->param_count - first, sizeof(uint32_t), by_id);
  return out->param_count - first;
}

static void expand_actions(const unit_trace *t, const tws_zero3_schedule *by_unit, uint32_t count,
                           tws_zero3_schedule *out) {
  for (uint32_t i = 0; i < count; i++) {
    const tws_zero3_actions *from = &by_unit->actions[t->run_of[i]];
    const int begins = i == 0 || t->run_of[i] != t->run_of[i - 1];
    const int ends = i + 1 == count || t->run_of[i] != t->run_of[i + 1];
    tws_zero3_actions *to = &out->actions[i];
    to->gather_first = out->param_count;
    to->gather_count = expand(t, by_unit->params + from->gather_first, begins ? from->gather_count : 0, out);
    to->prefetch_first = out->param_count;
    to->prefetch_count = expand(t, by_unit->params + from->prefetch_first, begins ? from->prefetch_count : 0, out);
    to->release_first = out->param_count;
    to->release_count = expand(t, by_unit->params + from->release_first, ends ? from->release_count : 0, out);
  }
}

static uint32_t expanded_most(const unit_trace *t, const tws_zero3_schedule *by_unit) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < by_unit->param_count; i++)
    most += t->member_first[by_unit->params[i] + 1] - t->member_first[by_unit->params[i]];
  return most;
}

tws_code tws_zero3_make_unit_schedule(const tws_zero3_visit *visits, uint32_t count, uint32_t param_count,
                                      const int64_t *numel, const uint32_t *unit, tws_arena *arena,
                                      tws_zero3_schedule *out, tws_error *err) {
  static const tws_zero3_limits next_one = {
      .prefetch_bucket_size = 1, .max_live_parameters = INT64_MAX, .max_reuse_distance = 1};
  size_t uses = 0;
  for (uint32_t i = 0; i < count; i++) uses += visits[i].count;
  unit_trace t = {.visits = visits, .unit = unit};
  t.runs = tws_arena_alloc(arena, count + 1, sizeof *t.runs);
  t.run_of = tws_arena_alloc(arena, count + 1, sizeof *t.run_of);
  t.units = tws_arena_alloc(arena, uses + param_count + 1, sizeof *t.units);
  t.member_first = tws_arena_alloc(arena, param_count + 2, sizeof *t.member_first);
  t.members = tws_arena_alloc(arena, param_count + 1, sizeof *t.members);
  int64_t *sizes = tws_arena_alloc(arena, param_count + 1, sizeof *sizes);
  uint8_t *persistent = tws_arena_alloc(arena, param_count + 1, sizeof *persistent);
  if (!t.runs || !t.run_of || !t.units || !t.member_first || !t.members || !sizes || !persistent)
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for the ZeRO-3 schedule of %u visits", count);
  for (uint32_t p = 0; p < param_count; p++) {
    if (numel[p] > 0) t.member_first[unit[p] + 2]++;
    sizes[unit[p]] += numel[p];
  }
  for (uint32_t u = 0; u < param_count; u++) t.member_first[u + 2] += t.member_first[u + 1];
  for (uint32_t p = 0; p < param_count; p++)
    if (numel[p] > 0) t.members[t.member_first[unit[p] + 1]++] = p;
  find_runs(&t, count);
  tws_zero3_schedule by_unit;
  TWS_TRY(
      tws_zero3_make_schedule(t.runs, t.run_count, param_count, sizes, persistent, &next_one, 1, arena, &by_unit, err));
  out->peak_numel = by_unit.peak_numel;
  out->param_count = 0;
  out->actions = tws_arena_alloc(arena, count + 1, sizeof *out->actions);
  out->params = tws_arena_alloc(arena, expanded_most(&t, &by_unit) + 1, sizeof *out->params);
  if (!out->actions || !out->params)
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for the ZeRO-3 schedule of %u visits", count);
  expand_actions(&t, &by_unit, count, out);
  return TWS_OK;
}
