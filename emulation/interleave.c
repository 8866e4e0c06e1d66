#include "emulation/interleave.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "emulation/dead_memory.h"

/* What is kept of a rank. */
typedef struct progress {
  uint32_t *before;  /* by operation: the one before it on its stream, or TWS_NONE */
  uint32_t *earlier; /* likewise on its channel */
  tws_dead_ranges dead;
} progress;

typedef struct chooser {
  const tws_interleaving *order;
  tws_arena *arena;
  tws_run *run;
  progress *ranks;
  tws_run_start *open; /* what may start */
  uint32_t count;
  tws_run_member *stack; /* what is wanted, and what that waits for */
  uint64_t operations, draws;
} chooser;

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}

/* ---- one operation ---- */

static void spoil(chooser *c, uint32_t rank, const tws_dead_range *range) {
  const tws_interleaving *o = c->order;
  if (c->run->ranks[rank].state[range->writer] != TWS_RUN_ENDED)
    o->api->spoil(o->ranks, o->program, rank, range->buffer, range->offset, range->count);
}

static void end(chooser *c, uint32_t rank, uint32_t op) {
  const tws_dead_ranges *dead = &c->ranks[rank].dead;
  tws_run_end(c->run, rank, op, 0);
  for (uint32_t i = dead->count ? dead->first[op] : 0; dead->count && i < dead->first[op + 1]; i++) {
    tws_dead_range *range = &dead->all[dead->of[i]];
    if (--range->users == 0) spoil(c, rank, range);
  }
}

static tws_code check_channel(const chooser *c, uint32_t rank, uint32_t op, tws_error *err) {
  char here[256], there[256];
  const uint32_t earlier = c->ranks[rank].earlier[op];
  if (earlier == TWS_NONE || c->run->ranks[rank].state[earlier] == TWS_RUN_ENDED) return TWS_OK;
  return tws_fail(err, TWS_INTERNAL, NULL, "%s starts before %s, which its channel has first",
                  tws_run_describe(c->run, rank, op, here, sizeof here),
                  tws_run_describe(c->run, rank, earlier, there, sizeof there));
}

/* Number `at` of what may start, with its effect. */
static tws_code run_open(chooser *c, uint32_t at, tws_error *err) {
  const tws_interleaving *o = c->order;
  const tws_run_start start = c->open[at];
  c->open[at] = c->open[--c->count];
  if (start.rendezvous == TWS_NONE) {
    TWS_TRY(check_channel(c, start.rank, start.op, err));
    TWS_TRY(o->api->run(o->ranks, o->program, start.rank, start.op, err));
    end(c, start.rank, start.op);
    return TWS_OK;
  }
  const tws_rendezvous met = c->run->rendezvous[start.rendezvous];
  const tws_run_member *members = &c->run->members[met.member_first];
  for (uint32_t i = 0; i < met.needed; i++) TWS_TRY(check_channel(c, members[i].rank, members[i].op, err));
  TWS_TRY(o->api->meet(o->ranks, o->program, members, met.needed, err));
  for (uint32_t i = 0; i < met.needed; i++) end(c, members[i].rank, members[i].op);
  return TWS_OK;
}

static void see_what_may_start(chooser *c) {
  while (tws_run_next(c->run, &c->open[c->count])) c->count++;
}

static uint32_t draw(chooser *c, uint32_t among) {
  uint32_t out[4];
  tws_philox(c->order->seed, 17, c->draws++, out);
  return out[0] % among;
}

static tws_code run_any(chooser *c, tws_error *err) {
  for (;;) {
    see_what_may_start(c);
    if (c->count == 0) return tws_run_check(c->run, err);
    TWS_TRY(run_open(c, draw(c, c->count), err));
  }
}

/* ---- in a hurry ---- */

static int has_ended(const chooser *c, uint32_t rank, uint32_t op) {
  return c->run->ranks[rank].state[op] == TWS_RUN_ENDED;
}

/* Something that has to end before this one may start, on its rank; 0: nothing. */
static int waits_here(const chooser *c, const tws_run_member *m, tws_run_member *for_what) {
  const tws_plan *plan = c->order->plans[m->rank];
  const tws_op *op = &plan->ops[m->op];
  const uint32_t before = c->ranks[m->rank].before[m->op];
  *for_what = (tws_run_member){.rank = m->rank, .op = before};
  if (before != TWS_NONE && !has_ended(c, m->rank, before)) return 1;
  for (uint32_t i = 0; i < op->dep_count; i++) {
    for_what->op = plan->deps[op->dep_first + i];
    if (!has_ended(c, m->rank, for_what->op)) return 1;
  }
  return 0;
}

/* Returns 1 if the operation, or a member of its rendezvous, waits for one that has not run. */
static int waits(const chooser *c, const tws_run_member *m, tws_run_member *for_what) {
  const tws_run_rank *r = &c->run->ranks[m->rank];
  const uint32_t id = r->rendezvous ? r->rendezvous[m->op] : TWS_NONE;
  if (id == TWS_NONE) return waits_here(c, m, for_what);
  const tws_rendezvous *met = &c->run->rendezvous[id];
  for (uint32_t i = 0; i < met->needed; i++)
    if (waits_here(c, &c->run->members[met->member_first + i], for_what)) return 1;
  return 0;
}

static tws_code start_now(chooser *c, const tws_run_member *m, tws_error *err) {
  const tws_run_rank *r = &c->run->ranks[m->rank];
  const uint32_t id = r->rendezvous ? r->rendezvous[m->op] : TWS_NONE;
  see_what_may_start(c);
  for (uint32_t i = 0; i < c->count; i++) {
    const tws_run_start *s = &c->open[i];
    if (s->rendezvous != id || (id == TWS_NONE && (s->rank != m->rank || s->op != m->op))) continue;
    return run_open(c, i, err);
  }
  return tws_run_check(c->run, err);
}

/* An operation, and before it what it waits for and nothing else. */
static tws_code run_up_to(chooser *c, uint32_t rank, uint32_t op, tws_error *err) {
  uint64_t depth = 0;
  c->stack[depth++] = (tws_run_member){.rank = rank, .op = op};
  while (depth > 0) {
    const tws_run_member top = c->stack[depth - 1];
    if (has_ended(c, top.rank, top.op)) {
      depth--;
      continue;
    }
    if (waits(c, &top, &c->stack[depth])) {
      if (++depth > c->operations) return tws_fail(err, TWS_INTERNAL, NULL, "operations wait for each other");
      continue;
    }
    TWS_TRY(start_now(c, &top, err));
    if (!has_ended(c, top.rank, top.op)) return tws_run_check(c->run, err);
  }
  return TWS_OK;
}

/* The stream number `at` of all ranks' that have operations; 0: there are fewer. */
static int stream_at(const tws_plan *const *plans, int count, uint64_t at, uint32_t *rank, int *stream) {
  for (*rank = 0; *rank < (uint32_t)count; ++*rank) {
    uint32_t used = 0;
    for (uint32_t op = 0; op < plans[*rank]->op_count; op++) used |= 1u << plans[*rank]->ops[op].stream;
    for (*stream = 0; *stream < TWS_STREAM_COUNT; ++*stream)
      if (used >> *stream & 1 && at-- == 0) return 1;
  }
  return 0;
}

static uint64_t streams_of(const tws_plan *const *plans, int count) {
  uint64_t n = 0;
  uint32_t rank;
  int stream;
  while (stream_at(plans, count, n, &rank, &stream)) n++;
  return n;
}

uint64_t tws_interleave_seeds(const tws_plan *const *plans, int count) {
  return (4 * streams_of(plans, count) + 2) / 3;
}

static tws_code hurry(chooser *c, tws_error *err) {
  const tws_interleaving *o = c->order;
  const uint64_t streams = streams_of(o->plans, o->count), turn = o->seed - o->seed / 4 - 1;
  uint32_t rank;
  int stream;
  if (streams == 0 || !stream_at(o->plans, o->count, turn % streams, &rank, &stream)) return TWS_OK;
  for (uint32_t op = 0; op < o->plans[rank]->op_count; op++)
    if (o->plans[rank]->ops[op].stream == stream) TWS_TRY(run_up_to(c, rank, op, err));
  return TWS_OK;
}

/* ---- all of it ---- */

static tws_code prepare_rank(chooser *c, uint32_t rank, tws_error *err) {
  const tws_plan *plan = c->order->plans[rank];
  progress *p = &c->ranks[rank];
  uint32_t last[TWS_STREAM_COUNT], channel[TWS_CHANNEL_COUNT];
  memset(last, 0xff, sizeof last);       /* TWS_NONE */
  memset(channel, 0xff, sizeof channel); /* TWS_NONE */
  p->before = tws_arena_alloc(c->arena, plan->op_count + 1u, sizeof *p->before);
  p->earlier = tws_arena_alloc(c->arena, plan->op_count + 1u, sizeof *p->earlier);
  if (!p->before || !p->earlier) return no_memory(err);
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    p->before[op] = last[o->stream];
    p->earlier[op] = o->channel == TWS_CHANNEL_NONE ? TWS_NONE : channel[o->channel];
    last[o->stream] = channel[o->channel] = op;
  }
  c->operations += plan->op_count;
  return tws_dead_ranges_find(plan, c->arena, &p->dead, err);
}

static tws_code run_all(chooser *c, tws_error *err) {
  const tws_interleaving *o = c->order;
  const tws_run_request request = {
      .plans = o->plans, .count = o->count, .mode = TWS_RUN_STREAMS, .every_rendezvous = 1};
  TWS_TRY(tws_run_create(&request, &c->run, err));
  c->ranks = tws_arena_alloc(c->arena, (size_t)o->count, sizeof *c->ranks);
  c->open = tws_arena_alloc(c->arena, (size_t)o->count * TWS_STREAM_COUNT + 1, sizeof *c->open); /* heads of queues */
  if (!c->ranks || !c->open) return no_memory(err);
  for (int rank = 0; rank < o->count; rank++) TWS_TRY(prepare_rank(c, (uint32_t)rank, err));
  c->stack = tws_arena_alloc(c->arena, c->operations + 2, sizeof *c->stack);
  if (!c->stack) return no_memory(err);
  for (int rank = 0; rank < o->count; rank++)
    for (uint32_t i = 0; i < c->ranks[rank].dead.count; i++)
      if (c->ranks[rank].dead.all[i].users == 0) spoil(c, (uint32_t)rank, &c->ranks[rank].dead.all[i]);
  if (o->seed % 4) TWS_TRY(hurry(c, err));
  return run_any(c, err);
}

tws_code tws_interleave(const tws_interleaving *o, tws_error *err) {
  chooser c = {.order = o, .arena = tws_arena_create()};
  const tws_code code = c.arena ? run_all(&c, err) : no_memory(err);
  tws_run_destroy(c.run);
  tws_arena_destroy(c.arena);
  return code;
}
