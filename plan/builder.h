/* The builder: passes of the lowering create buffers and operations through it; equal works are stored once. Internal
 * to plan/. After a failure the builder ignores further calls and reports the failure at the end, so that passes need
 * not check each call. */
#ifndef TWS_PLAN_BUILDER_H
#define TWS_PLAN_BUILDER_H

#include "plan/repetition.h"
#include "plan/plan.h"

/* The number of messages emitted so far between this rank and another one in one direction. */
typedef struct tws_peer_count {
  uint32_t peer, kind, messages;
} tws_peer_count;

typedef struct tws_builder {
  tws_plan *plan;
  tws_code failed;
  tws_error *err;
  size_t op_capacity, operand_capacity, buffer_capacity, work_capacity, dep_capacity, argument_capacity, update_capacity;
  uint32_t *work_table; /* hash table with open addressing: 1 + index of a work, 0: empty */
  uint32_t work_table_size;
  uint32_t *group_matches; /* per group: number of collectives emitted so far */
  size_t group_match_capacity;
  tws_peer_count *peers;
  size_t peer_capacity;
  uint32_t peer_count;
  /* per buffer: the segments for which hazards are tracked separately, such as the parameters in a flat buffer */
  struct tws_buffer_segments {
    const uint64_t *start;
    uint32_t count;
    uint32_t first_cell;
    uint32_t hint;  /* index of the segment that was found last */
    uint32_t after; /* 1 + index of the operation that the buffer's first operation waits for; 0: none */
    /* index of the operation up to which the buffer's memory is reserved, even if no operation uses it; 0: none */
    uint32_t until;
  } * segments;
  size_t segments_capacity;
  /* the phase, the module and the micro-batch that the next operations get */
  tws_phase phase;
  uint32_t module, micro_batch;
  tws_repetition repeats; /* the period of a periodic step (plan/repetition.h); zeros: the step is not periodic */
  int no_wait_for_memory;
  tws_plan_use use;
  /* per buffer, if no operation waits for memory: first and last operation for which its memory is reserved; otherwise
   * NULL */
  uint32_t *taken, *held;
} tws_builder;

/* Returns an empty plan of a single rank, with an arena; NULL: out of memory. */
tws_plan *tws_plan_blank(void);
void tws_builder_free(tws_builder *b); /* frees the builder, but not its plan */
/* Reserves room for about this number of operations, to avoid repeated reallocations. */
void tws_builder_expect(tws_builder *b, size_t operations);

tws_code tws_builder_fail(tws_builder *b, tws_code code, const char *message);

uint32_t tws_builder_buffer(tws_builder *b, const char *name, tws_category category, tws_dtype dtype, uint64_t elements,
                            tws_lifetime lifetime);
/* Returns the buffer of an entry of the state. The entry is added to a state that the plan owns; in a state that the
 * plan does not own, the entry is found by name and has to be equal to `entry`. */
uint32_t tws_builder_state(tws_builder *b, const tws_state_entry *entry);
/* Grows a buffer to `elements` elements if it has fewer. */
void tws_builder_grow(tws_builder *b, uint32_t buffer, uint64_t elements);
/* Begins the lifetime of a buffer at the next operation, even if the next operation does not use the buffer. */
void tws_builder_begin(tws_builder *b, uint32_t buffer);
/* Makes the first operation that uses a buffer wait for operation `op`, which is on another stream. */
void tws_builder_begin_after(tws_builder *b, uint32_t buffer, uint32_t op);
/* Reserves the memory of a buffer until the next operation, in plans in which no operation waits for memory. */
void tws_builder_hold(tws_builder *b, uint32_t buffer);
/* Divides a buffer into `count` segments, by which hazards are tracked. starts: the first element of each segment,
 * ascending, with starts[0] = 0; it has to live as long as the plan's arena. */
void tws_builder_segments(tws_builder *b, uint32_t buffer, const uint64_t *starts, uint32_t count);
/* Returns the index of the segment that contains an element. */
uint32_t tws_builder_segment_at(const struct tws_buffer_segments *segments, uint64_t element);

static inline tws_operand tws_read(uint32_t buffer, uint64_t offset, uint64_t count) {
  return (tws_operand){.buffer = buffer, .access = TWS_READ, .offset = offset, .count = count};
}
static inline tws_operand tws_write(uint32_t buffer, uint64_t offset, uint64_t count) {
  return (tws_operand){.buffer = buffer, .access = TWS_WRITE, .offset = offset, .count = count};
}
static inline tws_operand tws_update(uint32_t buffer, uint64_t offset, uint64_t count) {
  return (tws_operand){.buffer = buffer, .access = TWS_READ_WRITE, .offset = offset, .count = count};
}
/* Returns an operand that is the whole buffer. */
static inline tws_operand tws_all(const tws_builder *b, uint32_t buffer, uint32_t access) {
  return (tws_operand){buffer, access, 0, b->failed == TWS_OK ? b->plan->buffers[buffer].elements : 0};
}

/* Emits a kernel: on TWS_STREAM_HOST it runs on the host's cores, on other streams on the device. */
void tws_builder_compute(tws_builder *b, tws_stream stream, const tws_work *work, const tws_operand *operands,
                         int count);
/* Emits a kernel with arguments (NULL: without arguments). */
void tws_builder_compute_with(tws_builder *b, tws_stream stream, const tws_work *work, const tws_arguments *arguments,
                              const tws_operand *operands, int count);
/* Records that the operation emitted last updates elements [first, first + count) of those that this rank updates. */
void tws_builder_updates(tws_builder *b, uint64_t first, uint64_t count);
/* Emits a collective of `segments` coalesced segments, each of which has one operand if it is in place, otherwise two
 * (sent, received). whole_bytes: tws_work.d[0]; dtype: the type of the first segment. */
void tws_builder_collective(tws_builder *b, tws_stream stream, tws_collective collective, uint32_t group,
                            tws_dtype dtype, uint64_t whole_bytes, uint32_t segments, uint32_t root,
                            const tws_operand *operands, int count);
/* Emits an all-to-all of expert slots. routed: d[1] to d[6] of its work (tws_traffic_of() in
 * models/hardware/profile.h). */
void tws_builder_slots(tws_builder *b, tws_stream stream, uint32_t group, tws_dtype dtype, uint64_t whole_bytes,
                       const int64_t routed[6], tws_operand send, tws_operand receive);
/* Emits an all-to-all of partly filled slots. counts: operand of int32 [2][ranks], the numbers of elements that are
 * sent to and received from each rank; expected_bytes: expected total over all ranks, which is d[0] of its work. */
void tws_builder_uneven(tws_builder *b, tws_stream stream, uint32_t group, tws_dtype dtype, uint64_t expected_bytes,
                        tws_operand send, tws_operand receive, tws_operand counts);
/* Emits a point-to-point message. kind: TWS_OP_SEND or TWS_OP_RECV. */
void tws_builder_message(tws_builder *b, tws_op_kind kind, uint32_t peer, tws_operand operand);
/* Emits a copy; the tiers of both buffers determine the copy engine. */
void tws_builder_copy(tws_builder *b, tws_stream stream, tws_operand from, tws_operand to);

/* Derives lifetimes, offsets and dependencies (plan/finish.c). */
tws_code tws_builder_finish(tws_builder *b);
/* Derives dependencies without offsets: no operation waits for the reuse of memory. */
tws_code tws_builder_depend(tws_builder *b);

#endif
