/* Building blocks for passes: buffers, operations, interned work. Internal to plan/. A builder that failed keeps
 * swallowing calls and reports at the end, so that passes need no checks of their own. */
#ifndef TWS_PLAN_BUILDER_H
#define TWS_PLAN_BUILDER_H

#include "plan/repetition.h"
#include "plan/plan.h"

/* Messages so far between this rank and another, in one direction. */
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
  uint32_t *group_matches; /* collectives so far, per group */
  size_t group_match_capacity;
  tws_peer_count *peers;
  size_t peer_capacity;
  uint32_t peer_count;
  /* per buffer: boundaries inside it, so that hazards are tracked by piece (a parameter of a flat buffer) */
  struct tws_pieces {
    const uint64_t *start;
    uint32_t count;
    uint32_t first_cell;
    uint32_t hint;  /* the piece that was looked up last */
    uint32_t after; /* 1 + the operation that its first one waits for; 0: none */
    uint32_t until; /* the operation before which it keeps its memory, whoever uses it last; 0: none */
  } * pieces;
  size_t pieces_capacity;
  /* what the next operations belong to */
  tws_phase phase;
  uint32_t module, micro_batch;
  tws_repetition repeats; /* of a step that few micro-batches say all of; else zeros */
  int nobody_waits_for_memory;
  tws_plan_use use;
  uint32_t *taken, *held; /* per buffer: the operations from and until which its memory is kept then; else NULL */
} tws_builder;

/* A plan of one rank alone, with an arena and without anything in it; NULL: no memory. For tws_plan_destroy(). */
tws_plan *tws_plan_blank(void);
void tws_builder_free(tws_builder *b); /* not the plan */
/* About so many operations are to come: makes room at once, instead of moving what is there again and again. */
void tws_builder_expect(tws_builder *b, size_t operations);

tws_code tws_builder_fail(tws_builder *b, tws_code code, const char *message);

uint32_t tws_builder_buffer(tws_builder *b, const char *name, tws_category category, tws_dtype dtype, uint64_t elements,
                            tws_lifetime lifetime);
/* A buffer that is an entry of the plan's state: added to a state of the plan's own, looked up by name in one that was
 * given, where it has to be the same. */
uint32_t tws_builder_state(tws_builder *b, const tws_state_entry *entry);
/* The buffer has so many elements at least. */
void tws_builder_grow(tws_builder *b, uint32_t buffer, uint64_t elements);
/* The buffer lives from the next operation on, whoever uses it first. */
void tws_builder_begin(tws_builder *b, uint32_t buffer);
/* Its first operation waits for this one, which is on another stream. */
void tws_builder_begin_after(tws_builder *b, uint32_t buffer, uint32_t op);
/* It keeps its memory until the next operation, where memory makes nobody wait. */
void tws_builder_hold(tws_builder *b, uint32_t buffer);
/* starts: ascending first elements of the pieces, starts[0] = 0; lives as long as the plan's arena */
void tws_builder_pieces(tws_builder *b, uint32_t buffer, const uint64_t *starts, uint32_t count);
/* The piece that has an element. */
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

/* On TWS_STREAM_HOST the host's cores compute, elsewhere the device. */
void tws_builder_compute(tws_builder *b, tws_stream stream, const tws_work *work, const tws_operand *operands,
                         int count);
/* The same with arguments (NULL: none). */
void tws_builder_compute_with(tws_builder *b, tws_stream stream, const tws_work *work, const tws_arguments *arguments,
                              const tws_operand *operands, int count);
/* segments: operand_per_segment (1 in place, 2 otherwise) operands each; whole_bytes as tws_work.d[0]; dtype of
 * the first, where they have several */
void tws_builder_collective(tws_builder *b, tws_stream stream, tws_collective collective, uint32_t group,
                            tws_dtype dtype, uint64_t whole_bytes, uint32_t segments, uint32_t root,
                            const tws_operand *operands, int count);
/* An all-to-all of slots; routed: d[1] to d[6] of its work (tws_traffic_of() in models/hardware/profile.h). */
void tws_builder_slots(tws_builder *b, tws_stream stream, uint32_t group, tws_dtype dtype, uint64_t whole_bytes,
                       const int64_t routed[6], tws_operand send, tws_operand receive);
/* All-to-all of slots that are filled in part: counts are int32 [2][ranks], `expected_bytes` what all ranks' slots hold
 * together as tws_work.d[0] of an even one. */
void tws_builder_uneven(tws_builder *b, tws_stream stream, uint32_t group, tws_dtype dtype, uint64_t expected_bytes,
                        tws_operand send, tws_operand receive, tws_operand counts);
/* a message between ranks: kind SEND or RECV */
void tws_builder_message(tws_builder *b, tws_op_kind kind, uint32_t peer, tws_operand operand);
/* Tiers say which engine copies. */
void tws_builder_copy(tws_builder *b, tws_stream stream, tws_operand from, tws_operand to);

/* Derive lifetimes, offsets and dependencies (plan/finish.c). */
tws_code tws_builder_finish(tws_builder *b);
/* Dependencies alone: no operation waits for memory that another one still uses. */
tws_code tws_builder_depend(tws_builder *b);

#endif
