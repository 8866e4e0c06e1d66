/* Determines which operations of different ranks belong together. The k-th collective that a rank issues on a group
 * belongs to the k-th collective of every other member, and the k-th message that rank a sends to rank b to the k-th
 * message that b receives from a. So all rendezvous are known before any operation runs. */
#include "plan/rendezvous.h"

#include <string.h>

#include "plan/collective.h"

enum { SLOTS = 4096 };

typedef struct finder {
  tws_run *run;
  uint32_t slot[SLOTS]; /* per hash value: 1 + index of the first communicator in its chain; 0: empty */
  tws_error *err;
} finder;

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the order of operations");
}

static uint32_t hash_ranks(const int *ranks, int size) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int i = 0; i < size; i++) hash = (hash ^ (uint64_t)ranks[i]) * 0x100000001b3u;
  return (uint32_t)(hash ^ (hash >> 32)) % SLOTS;
}

/* Returns the communicator of these ranks, which it creates if there is none yet; TWS_NONE: out of memory. Two
 * communicators may have the same ranks: the communicator of a pipeline, and the communicator of the stages with a tied
 * parameter. */
static uint32_t find_communicator(finder *f, const int *ranks, int size, int message, tws_axes axes) {
  tws_run *run = f->run;
  const uint32_t slot = message ? ((uint32_t)ranks[0] * 31 + (uint32_t)ranks[1]) % SLOTS : hash_ranks(ranks, size);
  for (uint32_t i = f->slot[slot]; i; i = run->communicators[i - 1].next) {
    const tws_communicator *c = &run->communicators[i - 1];
    if (c->size == size && c->message == message && c->axes == axes &&
        memcmp(c->ranks, ranks, (size_t)size * sizeof *ranks) == 0)
      return i - 1;
  }
  if (tws_reserve(&run->communicators, &run->communicator_capacity, run->communicator_count + 1,
                  sizeof *run->communicators) != 0)
    return TWS_NONE;
  int *copy = tws_arena_alloc(run->arena, (size_t)size, sizeof *copy);
  uint32_t *entered = tws_arena_alloc(run->arena, (size_t)size, sizeof *entered);
  if (!copy || !entered) return TWS_NONE;
  memcpy(copy, ranks, (size_t)size * sizeof *copy);
  tws_communicator *c = &run->communicators[run->communicator_count];
  *c = (tws_communicator){.ranks = copy, .size = size, .message = message, .entered = entered, .axes = axes};
  c->next = f->slot[slot];
  for (int i = 0; i < size; i++) c->present += run->rank_of[ranks[i]] >= 0;
  f->slot[slot] = (uint32_t)++run->communicator_count;
  return f->slot[slot] - 1;
}

static uint64_t operand_bytes(const tws_plan *plan, const tws_op *op) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < op->operand_count; i++) {
    const tws_operand *operand = &plan->operands[op->operand_first + i];
    bytes += operand->count * tws_dtype_bytes((tws_dtype)plan->buffers[operand->buffer].dtype);
  }
  return bytes;
}

static uint64_t bytes_of(const tws_plan *plan, const tws_op *op) {
  const int64_t bytes = plan->works[op->work].d[0];
  return bytes > 0 ? (uint64_t)bytes : op->kind == TWS_OP_COLLECTIVE ? 0 : operand_bytes(plan, op);
}

/* Returns 1 if two collectives with segments of several types have equal types in the same order. */
static int same_types(const tws_plan *a, const tws_op *x, const tws_plan *b, const tws_op *y) {
  for (uint32_t i = 0, j = 0; i < x->operand_count && j < y->operand_count;) {
    tws_plan_segment s, t;
    if (tws_plan_next_segment(a, x, &i, &s, NULL) != TWS_OK || tws_plan_next_segment(b, y, &j, &t, NULL) != TWS_OK ||
        s.dtype != t.dtype)
      return 0;
  }
  return 1;
}

static tws_code check_same(finder *f, const tws_rendezvous *met, uint32_t rank, uint32_t op) {
  const tws_run *run = f->run;
  const tws_run_member *first = &run->members[met->member_first];
  const tws_plan *a = run->ranks[first->rank].plan, *b = run->ranks[rank].plan;
  const tws_work *x = &a->works[a->ops[first->op].work], *y = &b->works[b->ops[op].work];
  char here[256], there[256];
  const uint64_t bytes = bytes_of(b, &b->ops[op]);
  const int message = run->communicators[met->communicator].message;
  if (bytes == met->bytes &&
      (message || (x->code == y->code && x->dtype == y->dtype && x->segments == y->segments && x->flags == y->flags &&
                   (!(x->flags & TWS_MIXED) || same_types(a, &a->ops[first->op], b, &b->ops[op])) &&
                   a->ops[first->op].peer == b->ops[op].peer)))
    return TWS_OK;
  return tws_fail(f->err, TWS_INTERNAL, "the plans of these ranks do not fit together: please report it",
                  "%s of %llu bytes meets %s of %llu bytes: rank %d enters something else instead",
                  tws_run_describe(run, rank, op, here, sizeof here), (unsigned long long)bytes,
                  tws_run_describe(run, first->rank, first->op, there, sizeof there), (unsigned long long)met->bytes,
                  b->rank);
}

/* Records that operation `op` is the next one with which member number `index` enters the communicator. */
static tws_code enter_communicator(finder *f, uint32_t communicator, int index, uint32_t rank, uint32_t op) {
  tws_run *run = f->run;
  tws_communicator *c = &run->communicators[communicator];
  const tws_plan *plan = run->ranks[rank].plan;
  const uint32_t order = c->entered[index]++;
  char here[256];
  if (plan->ops[op].match != order)
    return tws_fail(f->err, TWS_INTERNAL, "this is a defect of the plan, not of the input: please report it",
                    "%s says it is number %u of its communicator, and is issued as number %u",
                    tws_run_describe(run, rank, op, here, sizeof here), plan->ops[op].match, order);
  if (c->present < 2 && !run->every_rendezvous) return TWS_OK;
  if (order >= c->rendezvous_count) {
    if (tws_reserve(&c->rendezvous, &c->rendezvous_capacity, c->rendezvous_count + 1, sizeof(uint32_t)) != 0 ||
        tws_reserve(&run->rendezvous, &run->rendezvous_capacity, run->rendezvous_count + 1, sizeof *run->rendezvous) !=
            0 ||
        tws_reserve(&run->members, &run->member_capacity, run->member_count + (size_t)c->present,
                    sizeof *run->members) != 0)
      return no_memory(f->err);
    run->rendezvous[run->rendezvous_count] = (tws_rendezvous){.communicator = communicator,
                                                              .member_first = (uint32_t)run->member_count,
                                                              .needed = (uint32_t)c->present,
                                                              .bytes = bytes_of(plan, &plan->ops[op])};
    run->member_count += (size_t)c->present;
    c->rendezvous[c->rendezvous_count++] = (uint32_t)run->rendezvous_count++;
  }
  const uint32_t id = c->rendezvous[order];
  tws_rendezvous *met = &run->rendezvous[id];
  if (met->entered > 0) TWS_TRY(check_same(f, met, rank, op));
  run->members[met->member_first + met->entered++] = (tws_run_member){rank, op};
  run->ranks[rank].rendezvous[op] = id;
  return TWS_OK;
}

static tws_code enter_message(finder *f, uint32_t rank, uint32_t op) {
  const tws_plan *plan = f->run->ranks[rank].plan;
  const tws_op *o = &plan->ops[op];
  const int sends = o->kind == TWS_OP_SEND, peer = (int)o->peer,
            ranks[2] = {sends ? plan->rank : peer, sends ? peer : plan->rank};
  char here[256];
  if (peer < 0 || peer >= f->run->world || peer == plan->rank)
    return tws_fail(f->err, TWS_INTERNAL, NULL, "%s has rank %d as its other end",
                    tws_run_describe(f->run, rank, op, here, sizeof here), peer);
  if (f->run->rank_of[peer] < 0 && f->run->absent != TWS_ABSENT_ANY)
    return tws_fail(f->err, TWS_INVALID, "give the plans of both ends of every message",
                    "%s needs rank %d, which has no plan here", tws_run_describe(f->run, rank, op, here, sizeof here),
                    peer);
  const uint32_t communicator = find_communicator(f, ranks, 2, 1, 0);
  return communicator == TWS_NONE ? no_memory(f->err) : enter_communicator(f, communicator, sends ? 0 : 1, rank, op);
}

static tws_code find_groups(finder *f, uint32_t rank, uint32_t *communicator_of) {
  const tws_run *run = f->run;
  const tws_plan *plan = run->ranks[rank].plan;
  for (uint32_t i = 0; i < plan->group_count; i++) {
    const tws_group *group = &plan->groups[i];
    int good =
        group->size > 0 && group->index >= 0 && group->index < group->size && group->ranks[group->index] == plan->rank;
    for (int k = 0; k < group->size && good; k++) {
      good = group->ranks[k] >= 0 && group->ranks[k] < run->world;
      if (good && run->rank_of[group->ranks[k]] < 0 && run->absent == TWS_ABSENT_NONE)
        return tws_fail(f->err, TWS_INVALID, "give the plans of all ranks of a group, or fold them",
                        "rank %d communicates with rank %d, which has no plan here", plan->rank, group->ranks[k]);
    }
    if (!good)
      return tws_fail(f->err, TWS_INTERNAL, NULL, "rank %d: group %u does not have it at its place", plan->rank, i);
    communicator_of[i] = find_communicator(f, group->ranks, group->size, 0, group->axes);
    if (communicator_of[i] == TWS_NONE) return no_memory(f->err);
  }
  return TWS_OK;
}

static tws_code enter_rank(finder *f, uint32_t rank) {
  tws_run *run = f->run;
  const tws_plan *plan = run->ranks[rank].plan;
  uint32_t *communicator_of = tws_calloc(plan->group_count + 1u, sizeof *communicator_of);
  if (!communicator_of) return no_memory(f->err);
  tws_code code = find_groups(f, rank, communicator_of);
  for (uint32_t op = 0; op < plan->op_count && code == TWS_OK; op++) {
    const int kind = plan->ops[op].kind;
    run->ranks[rank].rendezvous[op] = TWS_NONE;
    if (kind == TWS_OP_COLLECTIVE) {
      const uint32_t group = plan->works[plan->ops[op].work].group;
      if (group >= plan->group_count)
        code = tws_fail(f->err, TWS_INTERNAL, NULL, "rank %d, operation %u: no group %u", plan->rank, op, group);
      else
        code = enter_communicator(f, communicator_of[group], plan->groups[group].index, rank, op);
    } else if (kind == TWS_OP_SEND || kind == TWS_OP_RECV) {
      code = enter_message(f, rank, op);
    }
  }
  tws_free(communicator_of);
  return code;
}

tws_code tws_rendezvous_make(tws_run *run, tws_error *err) {
  finder *f = tws_calloc(1, sizeof *f);
  char here[256];
  if (!f) return no_memory(err);
  *f = (finder){.run = run, .err = err};
  tws_code code = TWS_OK;
  for (int rank = 0; rank < run->rank_count && code == TWS_OK; rank++) code = enter_rank(f, (uint32_t)rank);
  tws_free(f);
  for (size_t i = 0; i < run->rendezvous_count && code == TWS_OK; i++) {
    const tws_rendezvous *met = &run->rendezvous[i];
    if (met->entered == met->needed) continue;
    const tws_run_member *first = &run->members[met->member_first];
    return tws_fail(err, TWS_INTERNAL, "the plans of these ranks do not fit together: please report it",
                    "%s waits for %u ranks, but only %u issue it",
                    tws_run_describe(run, first->rank, first->op, here, sizeof here), met->needed, met->entered);
  }
  return code;
}
