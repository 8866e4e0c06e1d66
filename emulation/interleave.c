#include "emulation/interleave.h"

#include "base/memory.h"
#include "base/random.h"

typedef struct chooser {
  tws_run *run;
  tws_run_start *open; /* what may start */
  uint32_t count;
  uint64_t seed, draws;
} chooser;

static tws_code take_effect(const tws_interleaving *o, const tws_run *run, const tws_run_start *start, tws_error *err) {
  if (start->rendezvous == TWS_NONE) return o->api->run(o->ranks, o->program, start->rank, start->op, err);
  const tws_rendezvous *met = &run->rendezvous[start->rendezvous];
  return o->api->meet(o->ranks, o->program, &run->members[met->member_first], met->needed, err);
}

static void end(tws_run *run, const tws_run_start *start) {
  if (start->rendezvous == TWS_NONE) {
    tws_run_end(run, start->rank, start->op, 0);
    return;
  }
  const tws_rendezvous met = run->rendezvous[start->rendezvous];
  for (uint32_t i = 0; i < met.needed; i++) {
    const tws_run_member *member = &run->members[met.member_first + i];
    tws_run_end(run, member->rank, member->op, 0);
  }
}

static tws_code run_all(const tws_interleaving *o, chooser *c, tws_error *err) {
  tws_run_start start;
  for (;;) {
    while (tws_run_next(c->run, &start)) c->open[c->count++] = start;
    if (c->count == 0) return tws_run_check(c->run, err);
    uint32_t out[4];
    tws_philox(c->seed, 17, c->draws++, out);
    const uint32_t at = out[0] % c->count;
    start = c->open[at];
    c->open[at] = c->open[--c->count];
    TWS_TRY(take_effect(o, c->run, &start, err));
    end(c->run, &start);
  }
}

tws_code tws_interleave(const tws_interleaving *o, tws_error *err) {
  const tws_run_request request = {
      .plans = o->plans, .count = o->count, .mode = TWS_RUN_STREAMS, .every_rendezvous = 1};
  chooser c = {.seed = o->seed};
  TWS_TRY(tws_run_create(&request, &c.run, err));
  c.open = tws_calloc((size_t)o->count * TWS_STREAM_COUNT, sizeof *c.open); /* each is the head of a queue */
  const tws_code code = c.open ? run_all(o, &c, err) : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_free(c.open);
  tws_run_destroy(c.run);
  return code;
}
