/* Which operations belong together. The k-th collective that a rank issues on a group is the k-th of every other
 * member; likewise the k-th send from a to b and the k-th receive. So meetings are known before anything runs. */
#include <string.h>

#include "sim/executor.h"

enum { SLOTS = 4096 };

typedef struct finder {
  tws_sim *sim;
  uint32_t slot[SLOTS]; /* heads of hash chains of parties, index + 1 */
  tws_error *err;
} finder;

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "out of memory while simulating");
}

static uint32_t hash_ranks(const int *ranks, int size, int message) {
  uint64_t hash = 0xcbf29ce484222325u ^ (uint64_t)message;
  for (int i = 0; i < size; i++) hash = (hash ^ (uint64_t)ranks[i]) * 0x100000001b3u;
  return (uint32_t)(hash ^ (hash >> 32)) % SLOTS;
}

/* Two groups may have the same ranks: those of a pipeline, and those that share a parameter. */
static int same_axis(const char *a, const char *b) {
  return a == b || (a && b && strcmp(a, b) == 0);
}

/* The party of these ranks, made when it is new; TWS_NONE without memory. */
static uint32_t find_party(finder *f, const int *ranks, int size, int message, const char *axis) {
  tws_sim *sim = f->sim;
  const uint32_t slot = hash_ranks(ranks, size, message);
  for (uint32_t i = f->slot[slot]; i; i = sim->parties[i - 1].next) {
    const tws_sim_party *party = &sim->parties[i - 1];
    if (party->size == size && party->message == message && same_axis(party->axis, axis) &&
        memcmp(party->ranks, ranks, (size_t)size * sizeof *ranks) == 0)
      return i - 1;
  }
  if (tws_reserve(&sim->parties, &sim->party_capacity, sim->party_count + 1, sizeof *sim->parties) != 0)
    return TWS_NONE;
  int *copy = tws_arena_alloc(sim->arena, (size_t)size, sizeof *copy);
  uint32_t *entered = tws_arena_alloc(sim->arena, (size_t)size, sizeof *entered);
  if (!copy || !entered) return TWS_NONE;
  memcpy(copy, ranks, (size_t)size * sizeof *copy);
  tws_sim_party *party = &sim->parties[sim->party_count];
  *party = (tws_sim_party){.ranks = copy, .size = size, .message = message, .entered = entered, .axis = axis};
  party->next = f->slot[slot];
  for (int i = 0; i < size; i++) party->simulated += sim->rank_of[ranks[i]] >= 0;
  f->slot[slot] = (uint32_t)++sim->party_count;
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

static uint64_t meeting_bytes(const tws_plan *plan, const tws_op *op) {
  const int64_t bytes = plan->works[op->work].d[0];
  return bytes > 0 ? (uint64_t)bytes : op->kind == TWS_OP_COLLECTIVE ? 0 : operand_bytes(plan, op);
}

static tws_code check_same(finder *f, const tws_sim_meeting *meeting, uint32_t rank, uint32_t op) {
  const tws_sim *sim = f->sim;
  const tws_sim_member *first = &sim->members[meeting->member_first];
  const tws_plan *a = sim->ranks[first->rank].plan, *b = sim->ranks[rank].plan;
  const tws_work *x = &a->works[a->ops[first->op].work], *y = &b->works[b->ops[op].work];
  char here[256], there[256];
  const uint64_t bytes = meeting_bytes(b, &b->ops[op]);
  const int message = meeting->kind == TWS_OP_SEND;
  if (bytes == meeting->bytes &&
      (message || (x->code == y->code && x->segments == y->segments && a->ops[first->op].peer == b->ops[op].peer)))
    return TWS_OK;
  return tws_fail(f->err, TWS_INTERNAL, "the ranks' plans do not fit together",
                  "%s of %llu bytes meets %s of %llu bytes", tws_sim_describe(sim, rank, op, here, sizeof here),
                  (unsigned long long)bytes, tws_sim_describe(sim, first->rank, first->op, there, sizeof there),
                  (unsigned long long)meeting->bytes);
}

/* Operation `op` is the next that member number `index` of the party enters. */
static tws_code enter(finder *f, uint32_t party_index, int index, uint32_t rank, uint32_t op) {
  tws_sim *sim = f->sim;
  tws_sim_party *party = &sim->parties[party_index];
  const tws_plan *plan = sim->ranks[rank].plan;
  const uint32_t order = party->entered[index]++;
  if (order >= party->meeting_count) {
    if (tws_reserve(&party->meetings, &party->meeting_capacity, party->meeting_count + 1, sizeof(uint32_t)) != 0 ||
        tws_reserve(&sim->meetings, &sim->meeting_capacity, sim->meeting_count + 1, sizeof *sim->meetings) != 0 ||
        tws_reserve(&sim->members, &sim->member_capacity, sim->member_count + (size_t)party->simulated,
                    sizeof *sim->members) != 0)
      return no_memory(f->err);
    sim->meetings[sim->meeting_count] = (tws_sim_meeting){.party = party_index,
                                                          .member_first = (uint32_t)sim->member_count,
                                                          .needed = (uint32_t)party->simulated,
                                                          .kind = party->message ? TWS_OP_SEND : TWS_OP_COLLECTIVE,
                                                          .bytes = meeting_bytes(plan, &plan->ops[op])};
    sim->member_count += (size_t)party->simulated;
    party->meetings[party->meeting_count++] = (uint32_t)sim->meeting_count++;
  }
  const uint32_t id = party->meetings[order];
  tws_sim_meeting *meeting = &sim->meetings[id];
  if (meeting->filled > 0) TWS_TRY(check_same(f, meeting, rank, op));
  sim->members[meeting->member_first + meeting->filled++] = (tws_sim_member){rank, op};
  sim->ranks[rank].ops[op].meeting = id;
  return TWS_OK;
}

static tws_code enter_message(finder *f, uint32_t rank, uint32_t op) {
  tws_sim *sim = f->sim;
  const tws_plan *plan = sim->ranks[rank].plan;
  const int sends = plan->ops[op].kind == TWS_OP_SEND, peer = (int)plan->ops[op].peer;
  char here[256];
  if (plan->ops[op].peer >= (uint32_t)sim->world || peer == plan->rank)
    return tws_fail(f->err, TWS_INTERNAL, NULL, "%s has no other rank as its peer",
                    tws_sim_describe(sim, rank, op, here, sizeof here));
  if (sim->rank_of[peer] < 0)
    return tws_fail(f->err, TWS_INVALID, "simulate one rank of each pipeline stage at least, or all ranks",
                    "%s needs rank %d, which is not simulated", tws_sim_describe(sim, rank, op, here, sizeof here),
                    peer);
  const int pair[2] = {sends ? plan->rank : peer, sends ? peer : plan->rank};
  const uint32_t party = find_party(f, pair, 2, 1, NULL);
  return party == TWS_NONE ? no_memory(f->err) : enter(f, party, sends ? 0 : 1, rank, op);
}

static tws_code find_groups(finder *f, uint32_t rank, uint32_t *party_of) {
  const tws_plan *plan = f->sim->ranks[rank].plan;
  for (uint32_t i = 0; i < plan->group_count; i++) {
    const tws_group *group = &plan->groups[i];
    int good =
        group->size > 0 && group->index >= 0 && group->index < group->size && group->ranks[group->index] == plan->rank;
    for (int k = 0; k < group->size && good; k++) {
      good = group->ranks[k] >= 0 && group->ranks[k] < f->sim->world;
      if (good && f->sim->rank_of[group->ranks[k]] < 0 && !f->sim->request->fold)
        return tws_fail(f->err, TWS_INVALID, "simulate all ranks of a group, or fold them",
                        "rank %d communicates with rank %d, which is not simulated", plan->rank, group->ranks[k]);
    }
    if (!good)
      return tws_fail(f->err, TWS_INTERNAL, NULL, "rank %d: group %u does not have it at its place", plan->rank, i);
    party_of[i] = find_party(f, group->ranks, group->size, 0, group->axis);
    if (party_of[i] == TWS_NONE) return no_memory(f->err);
  }
  return TWS_OK;
}

static tws_code enter_all(finder *f, uint32_t rank) {
  tws_sim *sim = f->sim;
  const tws_plan *plan = sim->ranks[rank].plan;
  uint32_t *party_of = tws_calloc(plan->group_count + 1u, sizeof *party_of);
  if (!party_of) return no_memory(f->err);
  tws_code code = find_groups(f, rank, party_of);
  for (uint32_t op = 0; op < plan->op_count && code == TWS_OK; op++) {
    sim->ranks[rank].ops[op].meeting = TWS_NONE;
    const int kind = plan->ops[op].kind;
    if (kind == TWS_OP_COLLECTIVE) {
      const uint32_t group = plan->works[plan->ops[op].work].group;
      if (group >= plan->group_count)
        code = tws_fail(f->err, TWS_INTERNAL, NULL, "rank %d, operation %u: no group %u", plan->rank, op, group);
      else
        code = enter(f, party_of[group], plan->groups[group].index, rank, op);
    } else if (kind == TWS_OP_SEND || kind == TWS_OP_RECV) {
      code = enter_message(f, rank, op);
    }
  }
  tws_free(party_of);
  return code;
}

tws_code tws_sim_meetings(tws_sim *sim, tws_error *err) {
  finder f = {.sim = sim, .err = err};
  char here[256];
  for (int rank = 0; rank < sim->rank_count; rank++) TWS_TRY(enter_all(&f, (uint32_t)rank));
  for (size_t i = 0; i < sim->meeting_count; i++) {
    const tws_sim_meeting *meeting = &sim->meetings[i];
    if (meeting->filled == meeting->needed) continue;
    const tws_sim_member *first = &sim->members[meeting->member_first];
    return tws_fail(err, TWS_INTERNAL, "the ranks' plans do not fit together",
                    "%s waits for %u ranks, but only %u issue it",
                    tws_sim_describe(sim, first->rank, first->op, here, sizeof here), meeting->needed, meeting->filled);
  }
  return TWS_OK;
}
