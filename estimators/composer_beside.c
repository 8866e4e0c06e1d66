/* Lines of ranks of a job without a pipeline, with all that runs beside their layers: gathers and reductions of ZeRO,
 * exchanges of tensor ranks and of rings. All lines go through the micro-batches at once. Each goes on until it waits
 * for something that is under way, or meets others in its layers; what it began beside starts when the last of its
 * group has begun it, behind what is before it on its stream and channel. */
#include "estimators/composer_beside.h"

#include <math.h>
#include <string.h>

#include "estimators/composer_step.h"

typedef tws_composed_step step;

enum { BEFORE = 4 };
typedef struct line_op { /* that a line has begun */
  tws_timed_op times;
  const tws_beside_op *op;
  /* 1 + numbers of those that hold it up: on its stream, on its channel, which brings what it takes, which has taken
   * what was where it goes; 0: none */
  uint32_t before[BEFORE];
  uint8_t is_ready, has_met;
} line_op;

typedef struct line {
  tws_line_events of[TWS_BESIDE_KINDS];
  const tws_line_events *going; /* of this micro-batch */
  size_t at;
  double stretch, now, began; /* began: the micro-batch */
  double computed_s;          /* of it, by the layers */
  double updating_s;          /* for so long its host updates when the step begins */
  double left_s;              /* when the one before had nothing under way: see end_micro_batch() */
  double open_since;    /* it waits since then, and until the micro-batch began, for this one of the one before; */
  uint32_t open_for;    /* 1 + number; 0: for none. What it computes next may wait for something else, longer */
  uint32_t base, begun; /* operations: when the micro-batch began, so far */
  uint32_t joining;     /* 1 + number of the one on the stream that computes which is to end; 0: none is */
  uint32_t on_stream[TWS_BESIDE_STREAMS], on_channel[TWS_CHANNEL_COUNT]; /* 1 + number of the last */
  uint32_t hosted[2];                                                    /* likewise, of the last two on the host */
  uint8_t arrives[TWS_BESIDE_KINDS]; /* per kind of micro-batch: what is copied to the host is added up there */
  line_op *ops;                      /* by number, in turns */
  uint32_t *pending, pending_count;  /* that have begun and not started */
  tws_beside_wait *waits;            /* of the last micro-batch */
  size_t wait_count;
} line;

typedef struct walk {
  step *s;
  const tws_rank_kind *ranks;
  tws_arena *arena;
  line *lines;
  int count, kinds, in_line;
  int between;                /* reductions of stage 1 are between the layers of the last micro-batch */
  uint32_t room;              /* for operations of a line */
  int failed;                 /* who waits for whom is not known */
  int is_last;                /* micro-batch: waits are wanted */
  tws_body_overlap **overlap; /* per line; NULL: nothing is reduced beside its last pass */
  tws_composed_account *account;
} walk;

void tws_account_gap(tws_composed_account *account, const tws_timed_op *(*at)(const void *of, uint32_t number),
                     const void *of, uint32_t last, double from, double to) {
  for (uint32_t i = last + 1; i && to > from; i = at(of, i - 1)->cause) {
    const tws_timed_op *t = at(of, i - 1);
    double axis_s[TWS_PIECE_AXES] = {0};
    const double met = fmin(fmax(t->met_s, from), to), ready = fmin(fmax(t->ready_s, from), met);
    if (t->axis < TWS_PIECE_AXES) axis_s[t->axis] = to - met;
    tws_expose(account, 1, axis_s);
    account->bubble_s += met - ready;
    to = ready;
  }
}

void tws_start_jointly(const uint8_t *of, int lines, uint32_t number, tws_timed_op *const *all) {
  double met_s[TWS_MOST_LINES] = {0};
  for (int i = 0; i < lines; i++) {
    tws_timed_op *own = all[i];
    if (number && own[-1].end_s > own->ready_s) {
      own->ready_s = own[-1].end_s;
      own->cause = number;
    }
    const int first = of ? of[i] : i;
    met_s[first] = fmax(met_s[first], own->ready_s);
  }
  for (int i = 0; i < lines; i++) {
    all[i]->met_s = met_s[of ? of[i] : i];
    all[i]->end_s = all[i]->met_s + all[i]->seconds;
  }
}

/* ---- what each line does ---- */

static int in_passes(const walk *w, const tws_beside_op *op) {
  return op->stream == TWS_BESIDE_JOINS || op->stream == TWS_BESIDE_COMPUTES ||
         (w->in_line && (op->stream == TWS_BESIDE_REDUCES || op->stream == TWS_BESIDE_GATHERS));
}

/* Nothing is beside the layers, nor do they meet others in them at another time. */
static void list_layers_alone(const tws_composed_chunk *chunk, double stretch, tws_line_events *of) {
  for (int later = 0; later < 2; later++) {
    tws_piece_time all = {0, 0};
    for (int e = 0; e < TWS_CONTEXT_EVENTS; e++)
      if (chunk->pieces.has[e]) all = tws_sum_of_times(all, chunk->pieces.event[later][e].time);
    of[later] = (tws_line_events){.computed_s = tws_stretched_seconds(all, stretch)};
  }
}

/* What the step before left is between what is gathered for the whole step and the first micro-batch; 0: no memory. */
static int add_late(walk *w, const tws_beside_moves *moves, const tws_tail_pieces *t, line *l) {
  static const int first_kinds[] = {TWS_BESIDE_FIRST, TWS_BESIDE_ONLY};
  const tws_moved_params *gathered = &moves->begin->params;
  const size_t begin = gathered->visit_count ? gathered->visits->gathered.end - gathered->visits->gathered.first : 0;
  if (!(t->late.kernel + t->late.other > 0)) return 1;
  tws_beside_op *op = tws_arena_alloc(w->arena, 1, sizeof *op);
  if (!op) return 0;
  *op = (tws_beside_op){
      .time = t->late, .axis = TWS_PIECE_AXES, .channel = TWS_CHANNEL_NONE, .stream = TWS_BESIDE_COMPUTES};
  for (int k = 0; k < 2 && first_kinds[k] < w->kinds; k++) {
    tws_line_events *of = &l->of[first_kinds[k]];
    tws_line_event *items = tws_arena_alloc_unset(w->arena, of->count + 2, sizeof *items);
    if (!items) return 0;
    for (size_t i = 0; i < of->count; i++) items[i + (i >= begin)] = of->items[i];
    items[begin] = (tws_line_event){.op = op, .number = of->ops++};
    of->items = items;
    of->count++;
    if (3 * of->ops + 1 > w->room) w->room = 3 * of->ops + 1;
  }
  return 1;
}

/* Lists a line's events at its stretch; 0: they are not known. */
static int list_line(walk *w, int number, double stretch) {
  const tws_chunk_set *set = tws_step_line_chunks(w->s, w->ranks, number);
  const tws_tail_pieces *t = tws_step_line_tail(w->s, 0, number);
  const tws_beside_moves *moves = w->s->bounded ? t->beside : tws_beside_nothing();
  const tws_composed_chunk *chunk = &set->chunks[set->chunk_at[0]];
  line *l = &w->lines[number];
  const int apart = w->count > 1 && (w->ranks->pass_apart || w->s->bounded); /* else all lines pass alike */
  if (!moves || !chunk->head) return 0;
  if (apart && (!chunk->head->joins || (chunk->tail && !chunk->tail->joins))) return 0;
  if (!chunk->in_order || chunk->pending || (w->s->bounded ? 0 : !chunk->exact)) return 0;
  if (number == 0) w->kinds = moves->kinds;
  if (number == 0) w->in_line = moves->in_line;
  if (moves->kinds != w->kinds || moves->in_line != w->in_line) return 0;
  const tws_beside_source from = {.memory = w->s->c->beside,
                                  .moves = moves,
                                  .chunk = chunk,
                                  .body = set->body_of[set->chunk_at[0]],
                                  .arena = w->s->c->arena,
                                  .joins = apart};
  l->stretch = stretch;
  if (!apart && !w->s->bounded && !chunk->exchanges) {
    list_layers_alone(chunk, stretch, l->of);
    return add_late(w, moves, t, l);
  }
  for (int kind = 0; kind < w->kinds; kind++) {
    if (!tws_beside_list_events(&from, kind, stretch, w->arena, &l->of[kind])) return 0;
    for (size_t i = 0; i < l->of[kind].count; i++)
      l->arrives[kind] |= l->of[kind].items[i].op && l->of[kind].items[i].op->stream == TWS_BESIDE_HOSTS;
    if (3 * l->of[kind].ops + 1 > w->room) w->room = 3 * l->of[kind].ops + 1;
  }
  return add_late(w, moves, t, l);
}

/* NULL: they are not known, or there is no memory. */
static walk *list_lines(step *s, const tws_rank_kind *ranks, int stretched) {
  tws_arena *arena = tws_arena_create();
  walk *w = arena ? tws_arena_alloc(arena, 1, sizeof *w) : NULL;
  if (!w) {
    tws_arena_destroy(arena);
    return NULL;
  }
  *w = (walk){.s = s, .ranks = ranks, .arena = arena, .count = ranks->line_count, .room = 1};
  w->lines = tws_arena_alloc(arena, (size_t)w->count, sizeof *w->lines);
  for (int i = 0; i < w->count; i++)
    if (!w->lines || !list_line(w, i, stretched ? tws_step_line_stretch(s, i)[0] : 1)) {
      tws_arena_destroy(arena);
      return NULL;
    }
  return w;
}

/* What passes still compute when gradients are complete; 0: it is not known of all lines, or there is no memory. */
static int find_overlaps(walk *w) {
  const step *s = w->s;
  w->overlap = tws_arena_alloc(w->arena, (size_t)w->count, sizeof *w->overlap);
  for (int i = 0; i < w->count && w->overlap; i++) {
    const tws_tail_pieces *t = tws_step_line_tail(s, 0, i);
    const tws_chunk_set *set = tws_step_line_chunks(s, w->ranks, i);
    tws_error none = {0};
    if (!t->overlapped) continue;
    if (tws_overlap_find(t->overlapped, &set->chunks[set->chunk_at[0]], set->body_of[set->chunk_at[0]], s->c->arena,
                         &w->overlap[i], &none) != TWS_OK)
      return 0;
    if (!w->overlap[i]->known) return 0;
  }
  return w->overlap != NULL;
}

int tws_step_knows_lines(step *s, const tws_rank_kind *ranks) {
  walk *w = list_lines(s, ranks, 0);
  int known = w && find_overlaps(w);
  for (int i = 0; known && i < w->count; i++)
    for (int kind = 0; kind < w->kinds; kind++) {
      const tws_line_events *of = &w->lines[i].of[kind];
      for (size_t k = 0; k < of->count && known; k++) {
        const tws_beside_op *op = of->items[k].op;
        if (op && op->meets) known = tws_step_add_groups(s, ranks, op->meets);
      }
    }
  if (w) tws_arena_destroy(w->arena);
  return known;
}

/* ---- going through them ---- */

static line_op *op_of(const walk *w, const line *l, uint32_t number) {
  return &l->ops[number % w->room];
}

typedef struct ops_of_line {
  const walk *w;
  const line *l;
} ops_of_line;

static const tws_timed_op *timed_op(const void *of, uint32_t number) {
  const ops_of_line *o = of;
  return &op_of(o->w, o->l, number)->times;
}

static int has_account(const walk *w, const line *l) {
  return w->account && l == &w->lines[w->s->line];
}

static void account_for(const walk *w, const line *l, uint32_t last, double from, double to) {
  const ops_of_line of = {w, l};
  if (has_account(w, l)) tws_account_gap(w->account, timed_op, &of, last, from, to);
}

/* What waited when the micro-batch began waits for nothing else. */
static void close_gap(const walk *w, line *l) {
  if (l->open_for) account_for(w, l, l->open_for - 1, l->open_since, l->began);
  l->open_for = 0;
}

/* What the layers compute until they have computed so much of the micro-batch. */
static void compute_until(const walk *w, line *l, double computed_s) {
  if (computed_s > l->computed_s) close_gap(w, l);
  l->now += computed_s - l->computed_s;
  l->computed_s = computed_s;
}

/* Of the last micro-batch: what the step's end waits for says which. */
static void account_for_both(const walk *w, line *l, uint32_t last, double from, double to) {
  const ops_of_line of = {w, l};
  tws_ended_line *ended = &w->s->ended_lines[l - w->lines];
  const uint32_t hosted = l->on_stream[TWS_BESIDE_HOSTS];
  if (!has_account(w, l) || to <= from) return;
  tws_account_gap(&ended->gap[0], timed_op, &of, last, from, to);
  if (hosted) tws_account_gap(&ended->gap[1], timed_op, &of, hosted - 1, from, to);
}

/* A copy takes what has been reduced to one of two places, whose last copy the host has taken; the host takes what was
 * copied. Others take what was there before them behind what computes, but for
 * reads of the disk, which come to the host's memory. */
static void find_taken(line *l, const tws_line_event *e, line_op *o, uint32_t number) {
  const int copies = o->op->stream == TWS_BESIDE_COPIES && !o->op->is_own, hosts = o->op->stream == TWS_BESIDE_HOSTS;
  if (e->takes.one) o->before[2] = number + 1 - e->takes.one;
  if (e->takes.other) o->before[3] = number + 1 - e->takes.other;
  if (copies && e->takes.one) o->times.ready_s = 0;
  if (hosts) o->times.ready_s = l->updating_s;
  if (o->op->stream == TWS_BESIDE_READS) o->times.ready_s = l->left_s;
  if (copies && l->arrives[l->going - l->of]) o->before[3] = l->hosted[0];
  if (!hosts) return;
  o->before[2] = l->on_stream[TWS_BESIDE_COPIES];
  l->hosted[0] = l->hosted[1];
  l->hosted[1] = number + 1;
}

/* But for rounding; which of two tells then has to be the one that tws_path_read() takes. */
static int is_tied(double a, double b) {
  return fabs(a - b) <= 1e-12 * b;
}

/* When what was begun may start, once that is known of all before it; 0: it is not yet. */
static int find_ready(const walk *w, const line *l, line_op *o) {
  for (int k = 0; k < BEFORE; k++)
    if (o->before[k] && !op_of(w, l, o->before[k] - 1)->has_met) return 0;
  for (int k = 0; k < BEFORE; k++) {
    const double end = o->before[k] ? op_of(w, l, o->before[k] - 1)->times.end_s : 0;
    const int told =
        is_tied(end, o->times.ready_s) ? o->times.cause && o->before[k] > o->times.cause : end > o->times.ready_s;
    if (told) o->times.cause = o->before[k]; /* what computes was issued last */
    o->times.ready_s = fmax(o->times.ready_s, end);
  }
  return o->is_ready = 1;
}

static void start_op(line_op *o, double met_s) {
  o->times.met_s = met_s;
  o->times.end_s = met_s + o->times.seconds;
  o->has_met = 1;
}

/* Whether other lines have to come. */
static int meets_others(const walk *w, const tws_beside_op *op) {
  return op->meets && w->count > 1;
}

static void begin_op(walk *w, line *l, const tws_line_event *e) {
  const uint32_t number = l->base + e->number;
  const tws_beside_op *op = e->op;
  line_op *o = op_of(w, l, number);
  const double seconds = tws_stretched_seconds(op->time, l->stretch);
  *o = (line_op){.times = {.ready_s = l->now, .seconds = seconds, .axis = op->axis}, .op = op};
  l->begun = number + 1;
  find_taken(l, e, o, number);
  if (!(o->times.ready_s < l->now)) o->times.cause = l->open_for; /* that computation was issued last */
  if (op->channel != TWS_CHANNEL_NONE) {
    o->before[1] = l->on_channel[op->channel];
    l->on_channel[op->channel] = number + 1;
  }
  if (in_passes(w, op)) {
    l->joining = number + 1;
  } else {
    o->before[0] = l->on_stream[op->stream];
    l->on_stream[op->stream] = number + 1;
  }
  if (find_ready(w, l, o) && !meets_others(w, op))
    start_op(o, o->times.ready_s);
  else
    l->pending[l->pending_count++] = number;
}

static void note_wait(const walk *w, line *l) {
  if (w->is_last) l->waits[l->wait_count++] = (tws_beside_wait){l->computed_s, l->now - l->began - l->computed_s};
}

/* What computes waits until one of these has ended. */
static void wait_until(const walk *w, line *l, uint32_t number, double end) {
  if (end <= l->now) return;
  account_for(w, l, number, l->open_for ? l->open_since : l->now, end);
  l->open_for = 0;
  l->now = end;
}

/* A collective between the layers, whose time nobody has counted yet. */
static int is_exposed(const walk *w, const tws_beside_op *op) {
  const int counted = w->s->moves_exact || op->stream == TWS_BESIDE_JOINS;
  return op->channel != TWS_CHANNEL_NONE && (w->in_line || w->between) && !counted;
}

/* A collective on the stream that computes; 0: others have not come yet. */
static int end_join(walk *w, line *l) {
  const line_op *o = op_of(w, l, l->joining - 1);
  if (!o->has_met) return 0;
  close_gap(w, l);
  if (o->times.cause) account_for(w, l, o->times.cause - 1, l->now, o->times.ready_s);
  if (has_account(w, l)) {
    double axis_s[TWS_PIECE_AXES] = {0};
    if (is_exposed(w, o->op)) axis_s[o->times.axis] = o->times.seconds;
    w->account->bubble_s += o->times.met_s - o->times.ready_s;
    tws_expose(w->account, 1, axis_s);
  }
  l->now = o->op->stream == TWS_BESIDE_JOINS ? o->times.met_s : o->times.end_s;
  l->joining = 0;
  note_wait(w, l);
  return 1;
}

/* Of all that one computation waits for, what ends last; 0: some has not started. */
static int end_waits(walk *w, line *l) {
  const tws_line_event *e = &l->going->items[l->at];
  uint32_t last = l->base + e->number;
  double until = 0;
  size_t count = 0;
  for (; l->at + count < l->going->count && !e[count].op && !(e[count].computed_s > e->computed_s); count++) {
    const line_op *o = op_of(w, l, l->base + e[count].number);
    if (!o->has_met) return 0;
    const double end = o->times.end_s;
    if (is_tied(end, until) ? l->base + e[count].number > last : end > until) last = l->base + e[count].number;
    until = fmax(until, end);
  }
  compute_until(w, l, e->computed_s);
  const double came = l->now;
  wait_until(w, l, last, until);
  if (l->now > came) note_wait(w, l);
  l->at += count;
  return 1;
}

/* A micro-batch begins when all of the one before is reduced, and copied to the host, and nothing is under way from
 * there. */
static int end_micro_batch(walk *w, line *l) {
  static const uint8_t left[] = {TWS_BESIDE_REDUCES, TWS_BESIDE_COPIES, TWS_BESIDE_BRINGS};
  const uint32_t hosted = w->is_last && has_account(w, l) ? l->on_stream[TWS_BESIDE_HOSTS] : 0;
  uint32_t last = 0;
  if (hosted && !op_of(w, l, hosted - 1)->has_met) return 0;
  for (size_t i = 0; i < sizeof left; i++) {
    const uint32_t number = w->in_line && left[i] == TWS_BESIDE_REDUCES ? 0 : l->on_stream[left[i]];
    if (!number) continue;
    const line_op *o = op_of(w, l, number - 1);
    if (!o->has_met) return 0;
    if (!last || o->times.end_s >= op_of(w, l, last - 1)->times.end_s) last = number;
  }
  compute_until(w, l, l->going->computed_s);
  close_gap(w, l);
  if (last) l->left_s = op_of(w, l, last - 1)->times.end_s;
  if (last && w->is_last && l->left_s > l->now) {
    account_for_both(w, l, last - 1, l->now, l->left_s);
    l->now = l->left_s;
  } else if (last && l->left_s > l->now) {
    l->open_since = l->now;
    l->open_for = last;
    l->now = l->left_s;
  }
  l->at++;
  return 1;
}

/* Returns whether it came further. */
static int go_on(walk *w, line *l) {
  for (int moved = 0;; moved = 1) {
    if (l->joining && !end_join(w, l)) return moved;
    if (l->at > l->going->count) return moved;
    if (l->at == l->going->count) {
      if (!end_micro_batch(w, l)) return moved;
      continue;
    }
    const tws_line_event *e = &l->going->items[l->at];
    if (!e->op) {
      if (!end_waits(w, l)) return moved;
      continue;
    }
    compute_until(w, l, e->computed_s);
    begin_op(w, l, e);
    l->at++;
  }
}

/* Of what a line has begun. */
static void find_all_ready(const walk *w, line *l) {
  for (uint32_t i = 0; i < l->pending_count; i++) {
    line_op *o = op_of(w, l, l->pending[i]);
    if (!o->is_ready) find_ready(w, l, o);
  }
}

static void start(const walk *w, line *l, uint32_t at, double met_s) {
  start_op(op_of(w, l, l->pending[at]), met_s);
  l->pending_count--;
  memmove(l->pending + at, l->pending + at + 1, (l->pending_count - at) * sizeof *l->pending);
}

static int start_alone(const walk *w, line *l) {
  int moved = 0;
  for (uint32_t i = 0; i < l->pending_count;) {
    const line_op *o = op_of(w, l, l->pending[i]);
    if (o->is_ready && !meets_others(w, o->op)) {
      start(w, l, i, o->times.ready_s);
      moved = 1;
    } else {
      i++;
    }
  }
  return moved;
}

/* The first that has not started of a channel; TWS_NONE: all have. */
static uint32_t first_on(const walk *w, const line *l, int channel) {
  for (uint32_t i = 0; i < l->pending_count; i++)
    if (op_of(w, l, l->pending[i])->op->channel == channel) return i;
  return TWS_NONE;
}

/* Those that meet line `first` in what it is to start next on a channel; returns whether they were all there. */
static int start_jointly(walk *w, int first, int channel) {
  uint32_t at[TWS_MOST_LINES];
  double met_s = 0;
  at[first] = first_on(w, &w->lines[first], channel);
  if (at[first] == TWS_NONE) return 0;
  const tws_axes axes = op_of(w, &w->lines[first], w->lines[first].pending[at[first]])->op->meets;
  const uint8_t *of = axes ? tws_lines_along(&w->s->groups, axes) : NULL;
  if (!of || of[first] != first) return 0;
  for (int i = first; i < w->count; i++) {
    if (of[i] != first) continue;
    at[i] = first_on(w, &w->lines[i], channel);
    if (at[i] == TWS_NONE) return 0;
    const line_op *o = op_of(w, &w->lines[i], w->lines[i].pending[at[i]]);
    if (!o->is_ready || o->op->meets != axes) return 0;
    met_s = fmax(met_s, o->times.ready_s);
  }
  for (int i = first; i < w->count; i++)
    if (of[i] == first) start(w, &w->lines[i], at[i], met_s);
  return 1;
}

static void go_through(walk *w, int kind) {
  int moved = 1;
  for (int i = 0; i < w->count; i++) {
    line *l = &w->lines[i];
    l->going = &l->of[kind];
    l->at = 0;
    l->base = l->begun;
    l->began = l->now;
    l->computed_s = 0;
    for (int k = 0; k < TWS_BESIDE_STREAMS; k++) {
      const line_op *o = l->on_stream[k] ? op_of(w, l, l->on_stream[k] - 1) : NULL;
      if (o && o->has_met && o->times.end_s <= l->now) l->on_stream[k] = 0;
    }
    for (int k = 0; k < TWS_CHANNEL_COUNT; k++) {
      const line_op *o = l->on_channel[k] ? op_of(w, l, l->on_channel[k] - 1) : NULL;
      if (o && o->has_met && o->times.end_s <= l->now) l->on_channel[k] = 0;
    }
  }
  while (moved) {
    moved = 0;
    for (int i = 0; i < w->count; i++) moved |= go_on(w, &w->lines[i]);
    for (int i = 0; i < w->count; i++) {
      find_all_ready(w, &w->lines[i]);
      moved |= start_alone(w, &w->lines[i]);
    }
    for (int i = 0; i < w->count && w->count > 1; i++)
      for (int channel = 0; channel < TWS_CHANNEL_COUNT; channel++) moved |= start_jointly(w, i, channel);
  }
  for (int i = 0; i < w->count; i++) w->failed |= w->lines[i].at <= w->lines[i].going->count;
}

/* When the last of these has ended; 0: there is none that may go on. */
static double end_of(const walk *w, const line *l, uint32_t number) {
  return number ? op_of(w, l, number - 1)->times.end_s : 0;
}

/* How long streams go on behind what computes, and the host's last but one. */
enum { GOING = TWS_BESIDE_STREAMS + 1 };
static void find_going(const walk *w, const line *l, double *going) {
  for (int k = 0; k < TWS_BESIDE_STREAMS; k++) going[k] = fmax(end_of(w, l, l->on_stream[k]) - l->now, 0);
  going[TWS_BESIDE_STREAMS] = fmax(end_of(w, l, l->hosted[0]) - l->now, 0);
}

/* How long something goes on that the end of the step knows nothing of. */
static double still_going(const walk *w, const line *l) {
  double going[GOING], longest = 0;
  find_going(w, l, going);
  for (int k = 0; k < TWS_BESIDE_STREAMS; k++)
    if (k != TWS_BESIDE_HOSTS) longest = fmax(longest, going[k]);
  return longest;
}

typedef struct line_before {
  double now, going[GOING];
} line_before;

/* Whether a micro-batch took all lines equally long, and left what it found; then the others do likewise. */
static int repeats(const walk *w, const line_before *before, double *seconds) {
  double least = INFINITY, most = 0, apart = 0;
  for (int i = 0; i < w->count; i++) {
    const line *l = &w->lines[i];
    if (l->pending_count) return 0;
    least = fmin(least, l->now - before[i].now);
    most = fmax(most, l->now - before[i].now);
    double going[GOING];
    find_going(w, l, going);
    for (int k = 0; k < GOING; k++) apart = fmax(apart, fabs(going[k] - before[i].going[k]));
  }
  *seconds = least;
  return most - least <= 1e-13 * most && apart <= 1e-13 * most;
}

static void move_on(walk *w, double seconds) {
  for (int i = 0; i < w->count; i++) {
    line *l = &w->lines[i];
    l->now += seconds;
    l->left_s += seconds;
    for (uint32_t k = 0; k < w->room; k++) {
      l->ops[k].times.ready_s += seconds;
      l->ops[k].times.met_s += seconds;
      l->ops[k].times.end_s += seconds;
    }
  }
}

/* The last is none that others stand for where its waits are asked for, or groups add up in it. */
static void go_through_all(walk *w, line_before *before, int reduces) {
  const int64_t all = w->s->shape.micro_batches, alone = w->kinds > 2 || reduces;
  for (int64_t i = 0; i < all && !w->failed; i++) {
    const int adds_up = w->kinds > 2 && i + 1 == all, reduces_in = w->between && i + 1 == all;
    double seconds;
    w->is_last = i + 1 == all;
    for (int k = 0; k < w->count; k++) {
      before[k].now = w->lines[k].now;
      find_going(w, &w->lines[k], before[k].going);
    }
    go_through(w, reduces_in || (adds_up && i > 0) ? TWS_BESIDE_LAST
                  : adds_up                        ? TWS_BESIDE_ONLY
                  : i > 0                          ? TWS_BESIDE_LATER
                                                   : TWS_BESIDE_FIRST);
    const int64_t more = all - alone - i - 1;
    if (i == 0 || more <= 0 || w->account || w->failed || !repeats(w, before, &seconds)) continue;
    move_on(w, (double)more * seconds);
    i += more;
  }
}

/* 0: no memory. */
static int prepare(walk *w) {
  for (int i = 0; i < w->count; i++) {
    line *l = &w->lines[i];
    size_t most = 0;
    for (int kind = 0; kind < TWS_BESIDE_KINDS; kind++)
      if (l->of[kind].count > most) most = l->of[kind].count;
    l->ops = tws_arena_alloc(w->arena, w->room, sizeof *l->ops);
    l->pending = tws_arena_alloc_unset(w->arena, w->room, sizeof *l->pending);
    l->waits = tws_arena_alloc_unset(w->arena, most + 1, sizeof *l->waits);
    if (!l->ops || !l->pending || !l->waits) return 0;
  }
  return 1;
}

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for composed steps");
}

/* ---- reductions beside the last backward pass ---- */

/* When a line has all that one of them takes. */
static double reduces_from(const walk *w, int number, uint32_t reduction) {
  const tws_tail_pieces *t = tws_step_line_tail(w->s, 0, number);
  const line *l = &w->lines[number];
  const tws_piece_time *behind = w->overlap[number]->behind[w->s->shape.micro_batches > 1];
  const tws_beside_waits waits = {l->waits, l->wait_count, l->computed_s, l->now - l->began - l->computed_s};
  const double behind_s = tws_overlap_behind(t->overlapped, behind, reduction, l->stretch);
  return l->now - behind_s - tws_beside_still_waits(&waits, behind_s);
}

static void reduce_one(walk *w, uint32_t number) {
  tws_timed_op *all[TWS_MOST_LINES];
  const tws_axes axes = tws_step_line_tail(w->s, 0, 0)->overlapped->meets[number];
  for (int i = 0; i < w->count; i++) {
    const tws_overlapped *of = tws_step_line_tail(w->s, 0, i)->overlapped;
    all[i] = &w->s->ended_lines[i].reduced[number];
    const double complete_s = w->s->ended_lines[i].complete_s[number] = reduces_from(w, i, number);
    *all[i] = (tws_timed_op){.ready_s = complete_s, .seconds = of->seconds[number], .axis = of->axis[number]};
  }
  tws_start_jointly(axes ? tws_lines_along(&w->s->groups, axes) : NULL, w->count, number, all);
}

/* In one queue they are between the layers, each behind the last operation that adds to its gradients; 0: no memory. */
static int put_between_layers(walk *w, int number) {
  const tws_tail_pieces *t = tws_step_line_tail(w->s, 0, number);
  const tws_piece_time *behind = w->overlap[number]->behind[w->s->shape.micro_batches > 1];
  line *l = &w->lines[number];
  const tws_line_events *in = &l->of[w->s->shape.micro_batches > 1];
  const uint32_t count = t->overlapped->count;
  const double near = 1e-12 * in->computed_s;
  tws_line_events *out = &l->of[TWS_BESIDE_LAST];
  tws_beside_op *ops = tws_arena_alloc(w->arena, 2 * (size_t)count + 1, sizeof *ops);
  double at_s = 0;
  size_t next = 0, put = 0;
  *out = *in;
  out->items = tws_arena_alloc_unset(w->arena, in->count + 2 * (size_t)count + 1, sizeof *out->items);
  if (!ops || !out->items) return 0;
  for (uint32_t i = 0; i < count; i++) {
    at_s = fmax(at_s, in->computed_s - tws_overlap_behind(t->overlapped, behind, i, l->stretch));
    for (; next < in->count && in->items[next].computed_s < at_s - near; next++) out->items[put++] = in->items[next];
    ops[i] = (tws_beside_op){.time = {0, t->overlapped->seconds[i]},
                             .axis = t->overlapped->axis[i],
                             .channel = TWS_CHANNEL_REPLICAS,
                             .stream = TWS_BESIDE_COMPUTES,
                             .meets = t->overlapped->meets[i]};
    out->items[put++] = (tws_line_event){.computed_s = at_s, .op = &ops[i], .number = out->ops++};
    if (!t->copied || !(t->copied[i] > 0)) continue;
    ops[count + i] = (tws_beside_op){
        .time = {0, t->copied[i]}, .axis = TWS_PIECE_AXES, .channel = TWS_CHANNEL_NONE, .stream = TWS_BESIDE_COMPUTES};
    out->items[put++] = (tws_line_event){.computed_s = at_s, .op = &ops[count + i], .number = out->ops++};
  }
  for (; next < in->count; next++) out->items[put++] = in->items[next];
  out->count = put;
  if (3 * out->ops + 1 > w->room) w->room = 3 * out->ops + 1;
  return 1;
}

/* Room in the step, for as many as its end has now. */
static int prepare_ends(walk *w) {
  step *s = w->s;
  for (int i = 0; i < w->count; i++) {
    const tws_tail_pieces *t = tws_step_line_tail(s, 0, i);
    tws_ended_line *l = &s->ended_lines[i];
    const size_t reductions = t->overlapped ? t->overlapped->count : 0, gathers = (size_t)tws_gathers_beside(t);
    *l = (tws_ended_line){.behind_s = 0};
    tws_timed_op *ops = tws_arena_alloc_unset(s->ends_arena, reductions + gathers + 1, sizeof *ops);
    l->complete_s = tws_arena_alloc_unset(s->ends_arena, reductions + 1, sizeof *l->complete_s);
    if (!ops || !l->complete_s) return 0;
    if (t->overlapped && !t->between) l->reduced = ops;
    l->gathered = ops + reductions;
  }
  return 1;
}

static tws_code walk_passes(walk *w, tws_error *err) {
  line_before *before = tws_arena_alloc(w->arena, (size_t)w->count, sizeof *before);
  const tws_overlapped *reduced = tws_step_line_tail(w->s, 0, 0)->overlapped;
  tws_arena_destroy(w->s->ends_arena);
  w->s->ends_arena = tws_arena_create();
  if (!before || !w->s->ends_arena || !find_overlaps(w)) return no_memory(err);
  w->between = w->s->tails->stage[0].between;
  for (int i = 0; i < w->count && w->between; i++)
    if (!put_between_layers(w, i)) return no_memory(err);
  if (!prepare(w) || !prepare_ends(w)) return no_memory(err);
  for (int i = 0; i < w->count && w->s->run; i++) w->lines[i].updating_s = w->s->run->ranks[i].updating_s;
  go_through_all(w, before, reduced != NULL);
  for (uint32_t i = 0; reduced && i < reduced->count && !w->failed && !w->between; i++) reduce_one(w, i);
  for (int i = 0; i < w->count; i++) {
    const line *l = &w->lines[i];
    w->s->end_s[0][i] = l->now;
    w->s->end_s[1][i] = 0;
    w->s->of_lines[i].exchanging = l->pending_count > 0;
    tws_ended_line *ended = &w->s->ended_lines[i];
    ended->behind_s = l->pending_count ? 0 : still_going(w, l);
    ended->reduced_s = end_of(w, l, l->on_stream[TWS_BESIDE_REDUCES]);
    ended->copied_s = end_of(w, l, l->on_stream[TWS_BESIDE_COPIES]);
    ended->brought_s = end_of(w, l, l->on_stream[TWS_BESIDE_BRINGS]);
    ended->hosted_s = end_of(w, l, l->on_stream[TWS_BESIDE_HOSTS]);
  }
  return TWS_OK;
}

tws_code tws_step_walk_lines(step *s, tws_composed_account *account, tws_error *err) {
  walk *w = list_lines(s, s->ranks, 1);
  if (!w) return no_memory(err);
  w->account = account;
  const tws_code code = walk_passes(w, err);
  if (w->failed) s->can_together = 0;
  tws_arena_destroy(w->arena);
  return code;
}
