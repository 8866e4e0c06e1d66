/* Programs that a test writes down with the plan's builder, over a state of its own. */
#ifndef TWS_TESTS_HAND_PROGRAM_H
#define TWS_TESTS_HAND_PROGRAM_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/operator.h"
#include "plan/builder.h"

/* Aborts with the message `what` unless the condition holds. Programs that are not suites of Check call it, too. */
static inline void hand_need(int holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "a program by hand: %s\n", what);
  abort();
}

typedef struct hand_program {
  tws_builder b;
  tws_error err;
} hand_program;

/* Begins a program over a state that the caller owns, with the entries that it has by then; NULL: the program has no
 * state. */
static inline void hand_begin(hand_program *h, tws_state *state, int rank, int world) {
  const tws_axis axis = TWS_AXIS_DATA;
  memset(h, 0, sizeof *h);
  tws_plan *plan = tws_plan_blank();
  plan->state = state;
  plan->rank = rank;
  plan->world = world;
  tws_topology_make(&plan->topology, 1, &axis, &world, NULL);
  plan->position = tws_topology_position(&plan->topology, rank);
  plan->groups = tws_arena_alloc(plan->arena, 1, sizeof *plan->groups);
  int *ranks = tws_arena_alloc(plan->arena, (size_t)world, sizeof *ranks);
  for (int r = 0; r < world; r++) ranks[r] = r;
  plan->groups[plan->group_count++] = (tws_group){.axes = TWS_AXES_DATA, .size = world, .index = rank, .ranks = ranks};
  h->b = (tws_builder){.plan = plan, .module = TWS_NONE, .err = &h->err};
}

static inline tws_plan *hand_end(hand_program *h) {
  hand_need(tws_builder_finish(&h->b) == TWS_OK, h->err.message);
  tws_builder_free(&h->b);
  hand_need(tws_plan_verify(h->b.plan, &h->err) == TWS_OK, h->err.message);
  return h->b.plan;
}

static inline uint32_t hand_add_state(tws_state *state, const char *name, tws_tier tier, tws_dtype dtype,
                                      uint64_t elements) {
  const tws_state_entry entry = {.name = name,
                                 .tier = (uint8_t)tier,
                                 .dtype = (uint8_t)dtype,
                                 .category = TWS_CATEGORY_PARAMETER,
                                 .checkpointed = 1,
                                 .elements = elements};
  uint32_t index;
  hand_need(tws_state_add(state, &entry, &index, NULL) == TWS_OK, name);
  return index;
}

/* Returns the program's buffer of the state entry of this name. */
static inline uint32_t hand_state(hand_program *h, const char *name) {
  const uint32_t index = tws_state_find(h->b.plan->state, name);
  hand_need(index != TWS_NONE, name);
  return tws_builder_state(&h->b, &h->b.plan->state->entries[index]);
}

static inline uint32_t hand_buffer(hand_program *h, const char *name, tws_tier tier, tws_dtype dtype, uint64_t elements,
                                   tws_lifetime lifetime) {
  const uint32_t buffer = tws_builder_buffer(&h->b, name, TWS_CATEGORY_ACTIVATION, dtype, elements, lifetime);
  h->b.plan->buffers[buffer].tier = (uint8_t)tier;
  return buffer;
}

/* Adds a kernel to the program. `constant`: the first parameter of the kernel or, where it has none, its first
 * argument. */
static inline void hand_compute(hand_program *h, tws_stream stream, tws_kernel kernel, int64_t count, double constant,
                                const tws_operand *operands, int operand_count) {
  tws_work work;
  memset(&work, 0, sizeof work);
  work.kind = TWS_OP_COMPUTE;
  work.code = (uint8_t)kernel;
  work.dtype = work.dtype2 = TWS_F32;
  work.d[0] = count;
  const tws_operator *row = tws_operator_of(kernel);
  if (row->parameters > 0) work.f[0] = constant;
  const int has_arguments = row->parameters == 0 && row->arguments > 0;
  tws_builder_compute_with(&h->b, stream, &work, has_arguments ? &(tws_arguments){{constant}} : NULL, operands,
                           operand_count);
}

/* ---- an all-to-all whose counts are known only when it runs, as for experts' tokens ---- */

enum { UNEVEN_CAPACITY = 96 };

/* Makes a plan whose buffers are the counts, the slots that are sent and the slots that are received; the expected
 * traffic is half of the capacity. */
static inline tws_plan *uneven_plan(int rank, int world) {
  const uint64_t slots = (uint64_t)world * UNEVEN_CAPACITY;
  hand_program h;
  hand_begin(&h, NULL, rank, world);
  const uint32_t counts =
      hand_buffer(&h, "counts", TWS_TIER_DEVICE, TWS_I32, 2 * (uint64_t)world, TWS_LIFETIME_PROGRAM);
  const uint32_t send = hand_buffer(&h, "slots", TWS_TIER_DEVICE, TWS_F32, slots, TWS_LIFETIME_PROGRAM);
  const uint32_t receive = hand_buffer(&h, "received", TWS_TIER_DEVICE, TWS_F32, slots, TWS_LIFETIME_OPS);
  const uint32_t sums = hand_buffer(&h, "sums", TWS_TIER_DEVICE, TWS_F32, slots, TWS_LIFETIME_PROGRAM);
  const tws_operand clear = tws_write(receive, 0, slots);
  hand_compute(&h, TWS_STREAM_COMPUTE, TWS_KERNEL_FILL, (int64_t)slots, -1, &clear, 1);
  tws_builder_uneven(&h.b, TWS_STREAM_EXCHANGE, 0, TWS_F32, slots * sizeof(float) / 2, tws_read(send, 0, slots),
                     tws_update(receive, 0, slots), tws_read(counts, 0, 2 * (uint64_t)world));
  const tws_operand add[3] = {tws_read(receive, 0, slots), tws_read(send, 0, slots), tws_write(sums, 0, slots)};
  hand_compute(&h, TWS_STREAM_COMPUTE, TWS_KERNEL_ADD, (int64_t)slots, 0, add, 3);
  return hand_end(&h);
}

/* Return the number of elements that rank `from` sends to rank `to`, and the value of the i-th: no two pairs are alike,
 * and some counts are 0. */
static inline int uneven_count(int from, int to) {
  return (from * 37 + to * 23) % (UNEVEN_CAPACITY + 1) * (from != to + 1);
}
static inline float uneven_value(int from, int to, int i) {
  return (float)(from * 10000 + to * 1000 + i);
}

/* ---- a gather to one rank, which doubles the values, and a scatter to all ---- */

enum { GATHERED = 1000, GATHER_ROOT = 1 };

/* Makes a rank's plan. Buffer 0 is what the rank sends to the root, and buffer 1 what it receives: twice the values of
 * buffer 0. Only the root has buffers for the values of all ranks. */
static inline tws_plan *gather_plan(int rank, int world) {
  const uint64_t count = GATHERED, all = count * (uint64_t)world;
  const int root = GATHER_ROOT % world, is_root = rank == root;
  hand_program h;
  hand_begin(&h, NULL, rank, world);
  const uint32_t given = hand_buffer(&h, "given", TWS_TIER_DEVICE, TWS_F32, count, TWS_LIFETIME_PROGRAM);
  const uint32_t got = hand_buffer(&h, "got", TWS_TIER_DEVICE, TWS_F32, count, TWS_LIFETIME_PROGRAM);
  tws_operand gather[2] = {tws_read(given, 0, count)}, scatter[2] = {tws_write(got, 0, count)};
  uint32_t gathered = TWS_NONE, doubled = TWS_NONE;
  if (is_root) {
    gathered = hand_buffer(&h, "gathered", TWS_TIER_DEVICE, TWS_F32, all, TWS_LIFETIME_OPS);
    doubled = hand_buffer(&h, "doubled", TWS_TIER_DEVICE, TWS_F32, all, TWS_LIFETIME_OPS);
    gather[1] = tws_write(gathered, 0, all);
    scatter[1] = scatter[0];
    scatter[0] = tws_read(doubled, 0, all);
  }
  tws_builder_collective(&h.b, TWS_STREAM_COMPUTE, TWS_COLLECTIVE_GATHER, 0, TWS_F32, all * sizeof(float), 1,
                         (uint32_t)root, gather, is_root ? 2 : 1);
  if (is_root) {
    const tws_operand add[3] = {tws_read(gathered, 0, all), tws_read(gathered, 0, all), tws_write(doubled, 0, all)};
    hand_compute(&h, TWS_STREAM_COMPUTE, TWS_KERNEL_ADD, (int64_t)all, 0, add, 3);
  }
  tws_builder_collective(&h.b, TWS_STREAM_COMPUTE, TWS_COLLECTIVE_SCATTER, 0, TWS_F32, all * sizeof(float), 1,
                         (uint32_t)root, scatter, is_root ? 2 : 1);
  return hand_end(&h);
}

#endif
