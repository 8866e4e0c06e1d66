#include "traces/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"

enum { MAX_RANKS = 65536, TOP_OPERATIONS = 12 };
enum { SIMULATED, MEASURED, SIDES };

typedef struct sums { /* busy seconds by an index, of both sides */
  double *side[SIDES];
  uint32_t count;
} sums;

typedef struct job {
  const tws_timeline *timeline[SIDES];
  uint8_t *ranks; /* [MAX_RANKS], bit per side */
  int rank_count, steps[SIDES];
  double step_s[SIDES];
  tws_timeline *labels, *kinds; /* tables of names only */
  tws_arena *arena;
} job;

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "out of memory while comparing timelines");
}

static int is_shared(const job *j, const tws_event *event) {
  return j->ranks[event->rank] == (1 << SIDES) - 1;
}

/* ---- are both of the same plan? ---- */
typedef struct key {
  uint64_t op; /* rank and operation */
  const char *name;
} key;

static int compare_keys(const void *left, const void *right) {
  const uint64_t a = ((const key *)left)->op, b = ((const key *)right)->op;
  return (a > b) - (a < b);
}

static size_t collect_keys(const job *j, int side, key *keys) {
  const tws_timeline *timeline = j->timeline[side];
  size_t count = 0, unique = 0;
  for (size_t i = 0; i < timeline->event_count; i++) {
    const tws_event *event = &timeline->events[i];
    if (is_shared(j, event))
      keys[count++] = (key){(uint64_t)event->rank << 32 | event->op, timeline->names[event->name]};
  }
  qsort(keys, count, sizeof *keys, compare_keys);
  for (size_t i = 0; i < count; i++) {
    if (unique == 0 || keys[unique - 1].op != keys[i].op) keys[unique++] = keys[i];
  }
  return unique;
}

static tws_code check_keys(const job *j, const key *a, size_t a_count, const key *b, size_t b_count, tws_error *err) {
  const char *hint = "compare timelines of the same model, configuration and ranks";
  for (size_t i = 0; i < a_count && i < b_count; i++) {
    if (a[i].op == b[i].op && strcmp(a[i].name, b[i].name) == 0) continue;
    const key *first = a[i].op <= b[i].op ? &a[i] : &b[i];
    if (a[i].op == b[i].op)
      return tws_fail(err, TWS_INVALID, hint,
                      "the timelines are of different plans: operation %u of rank %u is \"%s\" in the %s and \"%s\" in "
                      "the %s one",
                      (unsigned)a[i].op, (unsigned)(a[i].op >> 32), a[i].name, j->timeline[SIMULATED]->source,
                      b[i].name, j->timeline[MEASURED]->source);
    return tws_fail(err, TWS_INVALID, hint,
                    "the timelines are of different plans: operation %u of rank %u, \"%s\", is in one of them only",
                    (unsigned)first->op, (unsigned)(first->op >> 32), first->name);
  }
  if (a_count != b_count)
    return tws_fail(err, TWS_INVALID, hint, "the timelines are of different plans: %zu against %zu operations", a_count,
                    b_count);
  return TWS_OK;
}

static tws_code check_same_plan(const job *j, tws_error *err) {
  key *keys[SIDES];
  size_t count[SIDES];
  for (int side = 0; side < SIDES; side++) keys[side] = tws_calloc(j->timeline[side]->event_count + 1, sizeof(key));
  tws_code code = TWS_OK;
  if (!keys[SIMULATED] || !keys[MEASURED]) {
    code = no_memory(err);
  } else {
    for (int side = 0; side < SIDES; side++) count[side] = collect_keys(j, side, keys[side]);
    code = check_keys(j, keys[SIMULATED], count[SIMULATED], keys[MEASURED], count[MEASURED], err);
  }
  for (int side = 0; side < SIDES; side++) tws_free(keys[side]);
  return code;
}

/* ---- ranks and steps ---- */
static tws_code find_ranks(job *j, tws_error *err) {
  for (int side = 0; side < SIDES; side++) {
    TWS_TRY(tws_timeline_check(j->timeline[side], err));
    for (size_t i = 0; i < j->timeline[side]->event_count; i++)
      j->ranks[j->timeline[side]->events[i].rank] |= (uint8_t)(1 << side);
  }
  for (int rank = 0; rank < MAX_RANKS; rank++) j->rank_count += j->ranks[rank] == (1 << SIDES) - 1;
  if (j->rank_count == 0)
    return tws_fail(err, TWS_INVALID, NULL, "the %s and the %s timeline have no rank in common",
                    j->timeline[SIMULATED]->source, j->timeline[MEASURED]->source);
  return TWS_OK;
}

typedef struct span {
  uint32_t step;
  double start_s, end_s;
} span;

static int compare_spans(const void *left, const void *right) {
  const span *a = left, *b = right;
  return (a->step > b->step) - (a->step < b->step);
}

static tws_code measure_steps(job *j, int side, tws_error *err) {
  const tws_timeline *timeline = j->timeline[side];
  span *spans = tws_calloc(timeline->event_count + 1, sizeof *spans);
  size_t count = 0;
  if (!spans) return no_memory(err);
  for (size_t i = 0; i < timeline->event_count; i++) {
    const tws_event *event = &timeline->events[i];
    if (!is_shared(j, event)) continue;
    if (count && spans[count - 1].step == event->step) { /* the usual case: events of one step stand together */
      spans[count - 1].start_s = fmin(spans[count - 1].start_s, event->start_s);
      spans[count - 1].end_s = fmax(spans[count - 1].end_s, event->end_s);
    } else {
      spans[count++] = (span){event->step, event->start_s, event->end_s};
    }
  }
  qsort(spans, count, sizeof *spans, compare_spans);
  double total = 0;
  int steps = 0;
  for (size_t i = 0, next; i < count; i = next) {
    double start_s = spans[i].start_s, end_s = spans[i].end_s;
    for (next = i + 1; next < count && spans[next].step == spans[i].step; next++) {
      start_s = fmin(start_s, spans[next].start_s);
      end_s = fmax(end_s, spans[next].end_s);
    }
    total += end_s - start_s;
    steps++;
  }
  tws_free(spans);
  j->steps[side] = steps;
  j->step_s[side] = total / steps;
  return TWS_OK;
}

/* ---- sums ---- */
static int make_sums(job *j, sums *s, uint32_t count) {
  s->count = count;
  for (int side = 0; side < SIDES; side++) {
    s->side[side] = tws_arena_alloc(j->arena, (size_t)count + 1, sizeof(double));
    if (!s->side[side]) return -1;
  }
  return 0;
}

typedef struct tables {
  sums phase, stream, kind, label;
} tables;

static tws_code add_up(job *j, tables *t, tws_error *err) {
  uint32_t *label[SIDES], *kind_of;
  for (int side = 0; side < SIDES; side++) { /* names of both timelines -> indexes of common tables */
    const tws_timeline *timeline = j->timeline[side];
    label[side] = tws_arena_alloc(j->arena, (size_t)timeline->name_count + 1, sizeof(uint32_t));
    if (!label[side]) return no_memory(err);
    for (uint32_t i = 0; i < timeline->name_count; i++) {
      label[side][i] = tws_timeline_name(j->labels, timeline->names[i]);
      if (label[side][i] == UINT32_MAX) return no_memory(err);
    }
  }
  kind_of = tws_arena_alloc(j->arena, (size_t)j->labels->name_count + 1, sizeof(uint32_t));
  if (!kind_of) return no_memory(err);
  for (uint32_t i = 0; i < j->labels->name_count; i++) {
    kind_of[i] = tws_timeline_name(j->kinds, tws_label_kind(j->labels->names[i]));
    if (kind_of[i] == UINT32_MAX) return no_memory(err);
  }
  if (make_sums(j, &t->phase, (uint32_t)j->timeline[MEASURED]->phase_count) != 0 ||
      make_sums(j, &t->stream, (uint32_t)j->timeline[MEASURED]->stream_count) != 0 ||
      make_sums(j, &t->kind, j->kinds->name_count) != 0 || make_sums(j, &t->label, j->labels->name_count) != 0)
    return no_memory(err);
  for (int side = 0; side < SIDES; side++) {
    const tws_timeline *timeline = j->timeline[side];
    const double share = 1.0 / ((double)j->rank_count * j->steps[side]);
    for (size_t i = 0; i < timeline->event_count; i++) {
      const tws_event *event = &timeline->events[i];
      if (!is_shared(j, event)) continue;
      const double seconds = (event->end_s - event->start_s) * share;
      const uint32_t name = label[side][event->name];
      t->phase.side[side][event->phase] += seconds;
      t->stream.side[side][event->stream] += seconds;
      t->kind.side[side][kind_of[name]] += seconds;
      t->label.side[side][name] += seconds;
    }
  }
  return TWS_OK;
}

/* ---- rows ---- */
static double relative_error(double simulated, double measured) {
  return measured > 0 ? (simulated - measured) / measured : NAN;
}

static int largest_first(const void *left, const void *right) {
  const tws_comparison_row *a = left, *b = right;
  const double x = fmax(a->simulated_s, a->measured_s), y = fmax(b->simulated_s, b->measured_s);
  return x != y ? (x < y) - (x > y) : strcmp(a->name, b->name);
}

static int largest_difference_first(const void *left, const void *right) {
  const tws_comparison_row *a = left, *b = right;
  const double x = fabs(a->simulated_s - a->measured_s), y = fabs(b->simulated_s - b->measured_s);
  return x != y ? (x < y) - (x > y) : strcmp(a->name, b->name);
}

/* Appends a row for each index with a time above 0; returns their number. */
static int add_rows(tws_comparison *out, tws_comparison_group group, const sums *s, const char *const *names) {
  const int first = out->row_count;
  for (uint32_t i = 0; i < s->count; i++) {
    const double simulated = s->side[SIMULATED][i], measured = s->side[MEASURED][i];
    if (simulated == 0 && measured == 0) continue;
    char *name = tws_arena_strdup(out->arena, names[i]);
    if (!name) return -1;
    out->rows[out->row_count++] =
        (tws_comparison_row){group, name, simulated, measured, relative_error(simulated, measured)};
  }
  return out->row_count - first;
}

static tws_code make_rows(job *j, const tables *t, tws_comparison *out, tws_error *err) {
  const size_t room = 1 + (size_t)t->phase.count + t->stream.count + t->kind.count + t->label.count;
  out->rows = tws_arena_alloc(out->arena, room, sizeof *out->rows);
  if (!out->rows) return no_memory(err);
  out->rows[out->row_count++] =
      (tws_comparison_row){TWS_COMPARE_STEP, "step", j->step_s[SIMULATED], j->step_s[MEASURED],
                           relative_error(j->step_s[SIMULATED], j->step_s[MEASURED])};
  const int phases = add_rows(out, TWS_COMPARE_PHASE, &t->phase, j->timeline[MEASURED]->phase_names);
  const int streams = add_rows(out, TWS_COMPARE_STREAM, &t->stream, j->timeline[MEASURED]->stream_names);
  const int kinds = add_rows(out, TWS_COMPARE_KIND, &t->kind, (const char *const *)j->kinds->names);
  if (kinds > 0) qsort(out->rows + out->row_count - kinds, (size_t)kinds, sizeof *out->rows, largest_first);
  const int labels = add_rows(out, TWS_COMPARE_OPERATION, &t->label, (const char *const *)j->labels->names);
  if (labels > 0)
    qsort(out->rows + out->row_count - labels, (size_t)labels, sizeof *out->rows, largest_difference_first);
  if (phases < 0 || streams < 0 || kinds < 0 || labels < 0) return no_memory(err);
  if (labels > TOP_OPERATIONS) out->row_count -= labels - TOP_OPERATIONS;
  out->ranks = j->rank_count;
  out->simulated_steps = j->steps[SIMULATED];
  out->measured_steps = j->steps[MEASURED];
  return TWS_OK;
}

static tws_code run_job(job *j, tws_comparison *out, tws_error *err) {
  tables t;
  if (!j->ranks || !j->labels || !j->kinds || !out->arena) return no_memory(err);
  j->arena = out->arena;
  if (j->timeline[SIMULATED]->phase_count != j->timeline[MEASURED]->phase_count ||
      j->timeline[SIMULATED]->stream_count != j->timeline[MEASURED]->stream_count)
    return tws_fail(err, TWS_INTERNAL, NULL, "the timelines have different tables of streams or phases");
  TWS_TRY(find_ranks(j, err));
  TWS_TRY(check_same_plan(j, err));
  for (int side = 0; side < SIDES; side++) TWS_TRY(measure_steps(j, side, err));
  TWS_TRY(add_up(j, &t, err));
  return make_rows(j, &t, out, err);
}

tws_code tws_timeline_compare(const tws_timeline *simulated, const tws_timeline *measured, tws_comparison **out,
                              tws_error *err) {
  job j = {.timeline = {simulated, measured}};
  *out = NULL;
  tws_comparison *made = tws_calloc(1, sizeof *made);
  if (!made) return no_memory(err);
  made->arena = tws_arena_create();
  j.ranks = tws_calloc(MAX_RANKS, 1);
  j.labels = tws_timeline_create("");
  j.kinds = tws_timeline_create("");
  tws_code code = run_job(&j, made, err);
  tws_free(j.ranks);
  tws_timeline_destroy(j.labels);
  tws_timeline_destroy(j.kinds);
  if (code == TWS_OK)
    *out = made;
  else
    tws_comparison_destroy(made);
  return code;
}

void tws_comparison_destroy(tws_comparison *comparison) {
  if (!comparison) return;
  tws_arena_destroy(comparison->arena);
  tws_free(comparison);
}

/* ---- printing ---- */
static const char *const group_names[TWS_COMPARE_GROUPS] = {"step", "phase", "stream", "kind", "operation"};
static const char *const group_titles[TWS_COMPARE_GROUPS] = {"whole step", "by phase", "by stream", "by kind",
                                                             "largest differences"};

static void add_json_text(tws_text *out, const char *text) {
  tws_text_add_bytes(out, "\"", 1);
  for (; *text; text++) {
    const unsigned char c = (unsigned char)*text;
    if (c < 0x20 || c == '"' || c == '\\')
      tws_text_add(out, "\\u%04x", c);
    else
      tws_text_add_bytes(out, text, 1);
  }
  tws_text_add_bytes(out, "\"", 1);
}

static void print_json(const tws_comparison *c, tws_text *out) {
  tws_text_add(out, "{\"ranks\": %d, \"simulated_steps\": %d, \"measured_steps\": %d", c->ranks, c->simulated_steps,
               c->measured_steps);
  for (int i = 0; i < c->row_count; i++) {
    const tws_comparison_row *row = &c->rows[i];
    const int first = i == 0 || row->group != c->rows[i - 1].group;
    const int last = i + 1 == c->row_count || row->group != c->rows[i + 1].group;
    if (first) tws_text_add(out, ",\n \"%s\": [", group_names[row->group]);
    tws_text_add(out, "%s{\"name\": ", first ? "" : ",\n  ");
    add_json_text(out, row->name);
    tws_text_add(out, ", \"simulated_s\": %.9g, \"measured_s\": %.9g, \"error\": ", row->simulated_s, row->measured_s);
    if (isfinite(row->error))
      tws_text_add(out, "%.6g}", row->error);
    else
      tws_text_add(out, "null}");
    if (last) tws_text_add(out, "]");
  }
  tws_text_add(out, "}\n");
}

static void print_table(const tws_comparison *c, tws_text *out) {
  char simulated[32], measured[32], error[32];
  int width = 20;
  for (int i = 0; i < c->row_count; i++) {
    const int length = (int)strlen(c->rows[i].name);
    if (length > width) width = length > 56 ? 56 : length;
  }
  tws_text_add(out, "%-*s  %12s  %12s  %8s\n", width + 2, "busy time of a rank in a step", "simulated", "measured",
               "error");
  for (int i = 0; i < c->row_count; i++) {
    const tws_comparison_row *row = &c->rows[i];
    if (i == 0 || row->group != c->rows[i - 1].group) tws_text_add(out, "%s\n", group_titles[row->group]);
    if (isfinite(row->error))
      snprintf(error, sizeof error, "%+.1f %%", 100 * row->error);
    else
      snprintf(error, sizeof error, "-");
    tws_text_add(out, "  %-*s  %12s  %12s  %8s\n", width, row->name,
                 tws_format_seconds(row->simulated_s, simulated, sizeof simulated),
                 tws_format_seconds(row->measured_s, measured, sizeof measured), error);
  }
}

tws_code tws_comparison_print(const tws_comparison *comparison, int json, tws_text *out, tws_error *err) {
  if (json)
    print_json(comparison, out);
  else
    print_table(comparison, out);
  return out->failed ? no_memory(err) : TWS_OK;
}
