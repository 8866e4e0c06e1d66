/* The builder: passes emit buffers and operations through it; equal works are stored once. Internal to plan/. After a
 * failure the builder ignores further calls and reports the failure at the end, so that passes need not check each
 * call. */
#ifndef TWS_PLAN_BUILDER_H
#define TWS_PLAN_BUILDER_H

#include "plan/repetition.h"
#include "plan/plan.h"

/* Number of messages so far between this rank and another in one direction. */
typedef struct tws_peer_count {
  uint32_t peer, kind, messages;
} tws_peer_count;

typedef struct tws_builder {
  tws_plan *plan;
  tws_code failed;
  tws_error *err;
  size_t op_capacity, operand_capacity, buffer_capacity, work_capacity, dep_capacity, argument_capacity;
  uint32_t *work_table; /* open addressing, index + 1 */
  uint32_t work_table_size;
  uint32_t *group_matches; /* per group: number of collectives so far */
  size_t group_match_capacity;
  tws_peer_count *peers;
  size_t peer_capacity;
  uint32_t peer_count;
  /* per buffer: segments (such as the parameters of a flat buffer) by which hazards are tracked separately */
  struct tws_pieces {
    const uint64_t *start;
    uint32_t count;
    uint32_t first_cell;
    uint32_t hint;  /* the segment that was found last */
    uint32_t after; /* 1 + operation that its first operation waits for; 0: none */
    uint32_t until; /* operation up to which its memory is reserved even if no operation uses it; 0: none */
  } * pieces;
  size_t pieces_capacity;
  /* phase, module and micro-batch of the next operations */
  tws_phase phase;
  uint32_t module, micro_batch;
  tws_repetition repeats; /* of a periodic step (plan/repetition.h); otherwise zeros */
  int no_wait_for_memory;
  tws_plan_use use;
  /* per buffer, if no operation waits for memory: first and last operation of its reservation; otherwise NULL */
  uint32_t *taken, *held;
} tws_builder;

/* Creates an empty plan of a single rank, with an arena; NULL: no memory. Free it with tws_plan_destroy(). */
tws_plan *tws_plan_blank(void);
void tws_builder_free(tws_builder *b); /* does not free the plan */
/* Reserves room for about this number of operations, to avoid repeated reallocations. */
void tws_builder_expect(tws_builder *b, size_t operations);

tws_code tws_builder_fail(tws_builder *b, tws_code code, const char *message);

uint32_t tws_builder_buffer(tws_builder *b, const char *name, tws_category category, tws_dtype dtype, uint64_t elements,
                            tws_lifetime lifetime);
/* Returns the buffer of an entry of the state. The entry is added to a state that the plan owns; in a given state it is
 * found by name and has to be equal. */
uint32_t tws_builder_state(tws_builder *b, const tws_state_entry *entry);
/* Grows a buffer to at least `elements` elements. */
void tws_builder_grow(tws_builder *b, uint32_t buffer, uint64_t elements);
/* Begins the lifetime of a buffer at the next operation, even if that does not use it. */
void tws_builder_begin(tws_builder *b, uint32_t buffer);
/* Makes the first operation of a buffer wait for `op`, which is on another stream. */
void tws_builder_begin_after(tws_builder *b, uint32_t buffer, uint32_t op);
/* Reserves the memory of a buffer until the next operation, in plans in which no operation waits for memory. */
void tws_builder_hold(tws_builder *b, uint32_t buffer);
/* Divides a buffer into segments for the tracking of hazards. starts: ascending first elements, starts[0] = 0; lives as
 * long as the plan's arena. */
void tws_builder_pieces(tws_builder *b, uint32_t buffer, const uint64_t *starts, uint32_t count);
/* Returns the index of the segment that contains an element. */
uint32_t tws_builder_piece_at(const struct tws_pieces *pieces, uint64_t element);

static inline tws_operand tws_read(uint32_t buffer, uint64_t offset, uint64_t count) {
  return (tws_operand){.buffer = buffer, .access = TWS_READ, .offset = offset, .count = count};
}
static inline tws_operand tws_write(uint32_t buffer, uint64_t offset, uint64_t count) {
  return (tws_operand){.buffer = buffer, .access = TWS_WRITE, .offset = offset, .count = count};
}
static inline tws_operand tws_update(uint32_t buffer, uint64_t offset, uint64_t count) {
  return (tws_operand){.buffer = buffer, .access = TWS_READ_WRITE, .offset = offset, .count = count};
}
/* the whole buffer */
static inline tws_operand tws_all(const tws_builder *b, uint32_t buffer, uint32_t access) {
  return (tws_operand){buffer, access, 0, b->failed == TWS_OK ? b->plan->buffers[buffer].elements : 0};
}

/* Emits a kernel: on TWS_STREAM_HOST it runs on the host's cores, on other streams on the device. */
void tws_builder_compute(tws_builder *b, tws_stream stream, const tws_work *work, const tws_operand *operands,
                         int count);
/* The same with arguments (NULL: none). */
void tws_builder_compute_with(tws_builder *b, tws_stream stream, const tws_work *work, const tws_arguments *arguments,
                              const tws_operand *operands, int count);
/* Emits a collective of `segments` segments with one operand each in place, otherwise two (sent, received);
 * whole_bytes: tws_work.d[0]; dtype: of the first segment. */
void tws_builder_collective(tws_builder *b, tws_stream stream, tws_collective collective, uint32_t group,
                            tws_dtype dtype, uint64_t whole_bytes, uint32_t segments, uint32_t root,
                            const tws_operand *operands, int count);
/* Emits an all-to-all of expert slots; routed: d[1] to d[6] of its work (tws_traffic_of() in
 * models/hardware/profile.h). */
void tws_builder_slots(tws_builder *b, tws_stream stream, uint32_t group, tws_dtype dtype, uint64_t whole_bytes,
                       const int64_t routed[6], tws_operand send, tws_operand receive);
/* Emits an all-to-all of partly filled slots; counts: int32 [2][ranks], elements sent to and received from each;
 * expected_bytes: expected total over all ranks, in the place of tws_work.d[0]. */
void tws_builder_uneven(tws_builder *b, tws_stream stream, uint32_t group, tws_dtype dtype, uint64_t expected_bytes,
                        tws_operand send, tws_operand receive, tws_operand counts);
/* Emits a point-to-point message; kind: SEND or RECV. */
void tws_builder_message(tws_builder *b, tws_op_kind kind, uint32_t peer, tws_operand operand);
/* Emits a copy; the tiers of both buffers determine the copy engine. */
void tws_builder_copy(tws_builder *b, tws_stream stream, tws_operand from, tws_operand to);

/* Derives lifetimes, offsets and dependencies (plan/finish.c). */
tws_code tws_builder_finish(tws_builder *b);
/* Derives dependencies without offsets: no operation waits for the reuse of memory. */
tws_code tws_builder_depend(tws_builder *b);

#endif
