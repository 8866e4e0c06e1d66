#include <string.h>

#include "estimators/rhythm.h"

/* ---- what an order depends on ---- */

typedef struct chunk_form {
  uint8_t has[TWS_CONTEXT_EVENTS], message_buffer[TWS_CONTEXT_EVENTS];
  uint16_t slot[TWS_MESSAGE_BUFFERS]; /* the first buffer of the stage that has as many bytes */
  uint8_t count[2][TWS_CONTEXT_EVENTS];
  uint8_t points[2][TWS_CONTEXT_EVENTS][2 * TWS_PIECE_POINTS];
} chunk_form;

typedef struct kept_order {
  tws_pipeline_shape shape;
  chunk_form *form; /* [stage][chunk] */
  tws_rhythm_order order;
  size_t bytes;
  uint64_t used; /* when it was asked for last */
} kept_order;

enum { KEPT_ORDERS = 64, KEPT_BYTES = 48 << 20 };

struct tws_rhythm_orders {
  kept_order kept[KEPT_ORDERS];
  int count;
  size_t bytes;
  uint64_t asked;
};

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the rhythm of a pipeline");
}

tws_rhythm_orders *tws_rhythm_orders_create(void) {
  return tws_calloc(1, sizeof(tws_rhythm_orders));
}

static void drop(tws_rhythm_orders *all, int at) {
  kept_order *k = &all->kept[at];
  tws_free(k->form);
  tws_free(k->order.moves);
  tws_free(k->order.before);
  all->bytes -= k->bytes;
  *k = all->kept[--all->count];
}

void tws_rhythm_orders_destroy(tws_rhythm_orders *all) {
  while (all && all->count) drop(all, 0);
  tws_free(all);
}

static uint16_t slot_of(const tws_rhythm_stage *stage, uint64_t bytes) {
  for (uint16_t at = 0;; at++)
    if (stage->chunks[at / TWS_MESSAGE_BUFFERS]->pieces->slot_bytes[at % TWS_MESSAGE_BUFFERS] == bytes) return at;
}

static void read_form(const tws_rhythm_stage *stage, int chunk, chunk_form *f) {
  const tws_chunk_times *times = stage->chunks[chunk];
  memset(f, 0, sizeof *f);
  for (int b = 0; b < times->pieces->buffers; b++) f->slot[b] = slot_of(stage, times->pieces->slot_bytes[b]);
  for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
    if (!times->pieces->has[e]) continue;
    f->has[e] = 1;
    f->message_buffer[e] = times->pieces->message_buffer[e];
    for (int is_later = 0; is_later < 2; is_later++) {
      const tws_chunk_event *event = &times->event[is_later][e];
      f->count[is_later][e] = (uint8_t)event->point_count;
      for (int i = 0; i < event->point_count; i++) {
        f->points[is_later][e][2 * i] = event->points[i].kind;
        f->points[is_later][e][2 * i + 1] = event->points[i].buffer;
      }
    }
  }
}

/* Most chunks are as others of the stage before. */
static void read_forms(const tws_rhythm *r, chunk_form *forms) {
  const int v = r->shape->virtual_stages;
  for (int s = 0; s < r->shape->stages; s++) {
    int same = s > 0;
    for (int c = 0; c < v && same; c++) same = r->stages[s].chunks[c]->pieces == r->stages[s - 1].chunks[c]->pieces;
    if (same)
      memcpy(forms + s * v, forms + (s - 1) * v, (size_t)v * sizeof *forms);
    else
      for (int c = 0; c < v; c++) read_form(&r->stages[s], c, &forms[s * v + c]);
  }
}

static int same_shape(const tws_pipeline_shape *a, const tws_pipeline_shape *b) {
  return a->kind == b->kind && a->stages == b->stages && a->virtual_stages == b->virtual_stages &&
         a->micro_batches == b->micro_batches;
}

/* ---- making one ---- */

typedef struct runner {
  const tws_rhythm *r;
  tws_rhythm_order *order;
  uint32_t *next;  /* per stage: event */
  uint8_t *waits;  /* per stage: for the other end of a message */
  size_t states;   /* of a stage: [chunk][micro-batch][buffer] */
  int32_t *before; /* [stage][state]: what lay in its slot, or -1 */
  struct slot {
    uint64_t bytes;
    int32_t state; /* of all stages */
  } * *slots;      /* per stage: free ones in the order in which they came free */
  int *slot_count;
  size_t *slot_capacity;
} runner;

enum { SPARE_SLOTS = 2 }; /* as plan/layout.c */

static void take_slot(runner *u, int s, uint64_t bytes, int32_t *before) {
  struct slot *slots = u->slots[s];
  int oldest = -1, fitting = 0;
  for (int i = 0; i < u->slot_count[s]; i++) {
    if (slots[i].bytes != bytes) continue;
    if (fitting++ == 0) oldest = i;
    if (fitting > SPARE_SLOTS) break;
  }
  *before = -1;
  if (fitting <= SPARE_SLOTS) return;
  *before = slots[oldest].state;
  u->slot_count[s]--;
  memmove(slots + oldest, slots + oldest + 1, (size_t)(u->slot_count[s] - oldest) * sizeof *slots);
}

static int give_slot(runner *u, int s, uint64_t bytes, uint32_t state) {
  if (tws_reserve(&u->slots[s], &u->slot_capacity[s], (size_t)u->slot_count[s] + 1, sizeof **u->slots)) return 0;
  u->slots[s][u->slot_count[s]++] = (struct slot){bytes, (int32_t)state};
  return 1;
}

static const tws_chunk_event *event_of(const runner *u, const tws_rhythm_end *end) {
  return &u->r->stages[end->stage].chunks[end->chunk]->event[end->is_later][end->event];
}

static const uint64_t *slot_bytes_of(const runner *u, const tws_rhythm_end *end) {
  return u->r->stages[end->stage].chunks[end->chunk]->pieces->slot_bytes;
}

/* Of the first buffer. */
static tws_rhythm_end end_of(const runner *u, int s, const tws_pipeline_event *at) {
  const size_t context = (size_t)at->action.chunk * (size_t)u->r->shape->micro_batches + at->action.micro_batch;
  return (tws_rhythm_end){.stage = (uint16_t)s,
                          .chunk = at->action.chunk,
                          .event = (uint8_t)tws_context_event_of(at->kind, at->action.kind),
                          .is_later = at->action.micro_batch > 0,
                          .sends = at->kind == TWS_EVENT_SEND,
                          .state = (uint32_t)((size_t)s * u->states + context * TWS_MESSAGE_BUFFERS)};
}

static int keep_before(runner *u, int32_t before) {
  tws_rhythm_order *o = u->order;
  if (tws_reserve(&o->before, &o->before_capacity, o->before_count + 1, sizeof *o->before)) return 0;
  o->before[o->before_count++] = before;
  return 1;
}

/* The move whose slots come next. */
static tws_rhythm_move *keep_move(runner *u) {
  tws_rhythm_order *o = u->order;
  if (tws_reserve(&o->moves, &o->capacity, o->count + 1, sizeof *o->moves)) return NULL;
  o->moves[o->count] = (tws_rhythm_move){.before = (uint32_t)o->before_count};
  return &o->moves[o->count++];
}

static int add_action(runner *u, int s, const tws_pipeline_event *at) {
  tws_rhythm_move *m = keep_move(u);
  if (!m) return 0;
  const tws_rhythm_end here = m->here = end_of(u, s, at);
  const tws_chunk_event *e = event_of(u, &here);
  const uint64_t *bytes = slot_bytes_of(u, &here);
  for (int i = 0; i < e->point_count; i++) {
    const tws_event_point *p = &e->points[i];
    const uint32_t state = here.state + p->buffer;
    const int waits = p->kind == TWS_POINT_TAKE || p->kind == TWS_POINT_TAKE_AHEAD;
    if (waits || p->kind == TWS_POINT_TAKE_ASIDE) take_slot(u, s, bytes[p->buffer], &u->before[state]);
    if (waits && !keep_before(u, u->before[state])) return 0;
    if (p->kind == TWS_POINT_GIVE && !give_slot(u, s, bytes[p->buffer], state)) return 0;
  }
  return 1;
}

/* This end, with the buffer of the message. */
static tws_rhythm_end message_end(const runner *u, int s, const tws_pipeline_event *at) {
  tws_rhythm_end end = end_of(u, s, at);
  end.state += u->r->stages[s].chunks[end.chunk]->pieces->message_buffer[end.event];
  return end;
}

static int has_point(const runner *u, const tws_rhythm_end *end, tws_point_kind kind) {
  const tws_chunk_event *e = event_of(u, end);
  for (int i = 0; i < e->point_count; i++)
    if (e->points[i].kind == kind) return 1;
  return 0;
}

static void begin_message(runner *u, int s, const tws_pipeline_event *at) {
  const tws_rhythm_end end = message_end(u, s, at);
  u->waits[s] = 1;
  if (has_point(u, &end, TWS_POINT_TAKE))
    take_slot(u, s, slot_bytes_of(u, &end)[end.state % TWS_MESSAGE_BUFFERS], &u->before[end.state]);
}

static int end_message(runner *u, const tws_rhythm_end *end) {
  const int s = end->stage;
  u->waits[s] = 0;
  u->next[s]++;
  if (!keep_before(u, has_point(u, end, TWS_POINT_TAKE) ? u->before[end->state] : -1)) return 0;
  return !has_point(u, end, TWS_POINT_GIVE) ||
         give_slot(u, s, slot_bytes_of(u, end)[end->state % TWS_MESSAGE_BUFFERS], end->state);
}

static int add_message(runner *u, int s, const tws_pipeline_event *at, const tws_pipeline_event *there) {
  tws_rhythm_move *m = keep_move(u);
  if (!m) return 0;
  const tws_rhythm_end ends[2] = {message_end(u, s, at), message_end(u, at->peer, there)};
  m->is_message = 1;
  m->here = ends[0];
  m->there = ends[1];
  return end_message(u, &ends[0]) && end_message(u, &ends[1]);
}

/* -1: no memory; else whether something happened. */
static int run_stage(runner *u, int s) {
  const tws_pipeline_program *programs = u->r->programs, *program = &programs[s];
  int moved = 0;
  while (u->next[s] < program->count) {
    const tws_pipeline_event *at = &program->events[u->next[s]];
    if (at->kind == TWS_EVENT_ACTION) {
      if (!add_action(u, s, at)) return -1;
      u->next[s]++;
      moved = 1;
      continue;
    }
    if (!u->waits[s]) {
      begin_message(u, s, at);
      moved = 1;
    }
    const int peer = at->peer;
    if (!u->waits[peer]) return moved;
    const tws_pipeline_event *there = &programs[peer].events[u->next[peer]];
    if (there->peer != s || there->kind == at->kind) return moved;
    if (!add_message(u, s, at, there)) return -1;
    moved = 1;
  }
  return moved;
}

static tws_code run_stages(runner *u, tws_error *err) {
  const int stages = u->r->shape->stages;
  for (int moved = 1; moved;) {
    moved = 0;
    for (int s = 0; s < stages; s++) {
      const int here = run_stage(u, s);
      if (here < 0) return no_memory(err);
      moved |= here;
    }
  }
  for (int s = 0; s < stages; s++)
    if (u->next[s] < u->r->programs[s].count)
      return tws_fail(err, TWS_INTERNAL, NULL, "stage %d waits for ever in the rhythm of a pipeline", s);
  return TWS_OK;
}

static tws_code make(const tws_rhythm *r, tws_rhythm_order *order, tws_error *err) {
  const size_t stages = (size_t)r->shape->stages;
  tws_arena *arena = tws_arena_create();
  runner u = {.r = r, .order = order};
  u.states = (size_t)r->shape->virtual_stages * (size_t)r->shape->micro_batches * TWS_MESSAGE_BUFFERS;
  u.next = tws_arena_alloc(arena, stages, sizeof *u.next);
  u.waits = tws_arena_alloc(arena, stages, 1);
  u.slots = tws_arena_alloc(arena, stages, sizeof *u.slots);
  u.slot_count = tws_arena_alloc(arena, stages, sizeof *u.slot_count);
  u.slot_capacity = tws_arena_alloc(arena, stages, sizeof *u.slot_capacity);
  u.before = tws_arena_alloc_unset(arena, stages * u.states, sizeof *u.before);
  const int good = u.next && u.waits && u.slots && u.slot_count && u.slot_capacity && u.before;
  if (good) memset(u.before, 0xff, stages * u.states * sizeof *u.before);
  const tws_code code = good ? run_stages(&u, err) : no_memory(err);
  for (size_t s = 0; s < stages && u.slots; s++) tws_free(u.slots[s]);
  tws_arena_destroy(arena);
  return code;
}

/* ---- what is kept ---- */

static void make_room(tws_rhythm_orders *all) {
  while (all->count == KEPT_ORDERS || (all->count > 0 && all->bytes > KEPT_BYTES)) {
    int oldest = 0;
    for (int i = 1; i < all->count; i++)
      if (all->kept[i].used < all->kept[oldest].used) oldest = i;
    drop(all, oldest);
  }
}

tws_code tws_rhythm_order_find(tws_rhythm_orders *all, const tws_rhythm *r, const tws_rhythm_order **out,
                               tws_error *err) {
  const size_t chunks = (size_t)r->shape->stages * (size_t)r->shape->virtual_stages;
  chunk_form *forms = tws_realloc(NULL, chunks, sizeof *forms);
  if (!forms) return no_memory(err);
  read_forms(r, forms);
  for (int i = 0; i < all->count; i++) {
    kept_order *k = &all->kept[i];
    if (!same_shape(&k->shape, r->shape) || memcmp(k->form, forms, chunks * sizeof *forms) != 0) continue;
    tws_free(forms);
    k->used = ++all->asked;
    *out = &k->order;
    return TWS_OK;
  }
  make_room(all);
  const int at = all->count++;
  kept_order *k = &all->kept[at];
  *k = (kept_order){.shape = *r->shape, .form = forms, .used = ++all->asked};
  const tws_code code = make(r, &k->order, err);
  k->bytes = chunks * sizeof *forms + k->order.capacity * sizeof *k->order.moves +
             k->order.before_capacity * sizeof *k->order.before;
  all->bytes += k->bytes;
  if (code != TWS_OK) drop(all, at);
  *out = &k->order;
  return code;
}
