#include "plan/builder.h"

#include <stddef.h>
#include <string.h>

tws_code tws_builder_fail(tws_builder *b, tws_code code, const char *message) {
  if (b->failed == TWS_OK) b->failed = tws_fail(b->err, code, NULL, "plan: %s", message);
  return b->failed;
}

tws_plan *tws_plan_blank(void) {
  tws_plan *plan = tws_calloc(1, sizeof *plan);
  tws_arena *arena = plan ? tws_arena_create() : NULL;
  if (!arena) {
    tws_free(plan);
    return NULL;
  }
  *plan = (tws_plan){.arena = arena,
                     .world = 1,
                     .stages = 1,
                     .parameters = TWS_NONE,
                     .master = TWS_NONE,
                     .gradients = TWS_NONE,
                     .hyper = TWS_NONE,
                     .metrics = TWS_NONE,
                     .running = TWS_NONE,
                     .scores = TWS_NONE,
                     .threads = 1};
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++) plan->position.ranks[axis] = 1;
  memset(plan->input, 0xff, sizeof plan->input); /* TWS_NONE */
  return plan;
}

static int reserve(tws_builder *b, void *items, size_t *capacity, size_t need, size_t bytes) {
  if (b->failed != TWS_OK) return -1;
  if (tws_reserve(items, capacity, need, bytes)) {
    tws_builder_fail(b, TWS_MEMORY, "no memory");
    return -1;
  }
  return 0;
}

void tws_builder_updates(tws_builder *b, uint32_t gradient, uint64_t first, uint64_t count) {
  tws_plan *plan = b->plan;
  if (reserve(b, &plan->updates, &b->update_capacity, plan->update_count + (size_t)1, sizeof *plan->updates)) return;
  plan->updates[plan->update_count++] =
      (tws_plan_update){.op = plan->op_count - 1, .gradient = gradient, .first = first, .count = count};
}

uint32_t tws_builder_buffer(tws_builder *b, const char *name, tws_category category, tws_dtype dtype, uint64_t elements,
                            tws_lifetime lifetime) {
  tws_plan *plan = b->plan;
  size_t index = plan->buffer_count;
  if (reserve(b, &plan->buffers, &b->buffer_capacity, index + 1, sizeof *plan->buffers)) return 0;
  if (reserve(b, &b->segments, &b->segments_capacity, index + 1, sizeof *b->segments)) return 0;
  plan->buffers[index] = (tws_buffer){.name = name,
                                      .tier = TWS_TIER_DEVICE,
                                      .dtype = (uint8_t)dtype,
                                      .category = (uint8_t)category,
                                      .lifetime = (uint8_t)lifetime,
                                      .first_op = TWS_NONE,
                                      .last_op = TWS_NONE,
                                      .elements = elements,
                                      .bytes = elements * tws_dtype_bytes(dtype)};
  static const uint64_t zero = 0;
  b->segments[index] = (struct tws_buffer_segments){.start = &zero, .count = 1};
  plan->buffer_count++;
  return (uint32_t)index;
}

uint32_t tws_builder_state(tws_builder *b, const tws_state_entry *entry) {
  tws_plan *plan = b->plan;
  if (b->failed != TWS_OK) return 0;
  uint32_t at = TWS_NONE;
  if (plan->owns_state)
    b->failed = tws_state_add(plan->state, entry, &at, b->err);
  else
    at = tws_state_find(plan->state, entry->name);
  if (b->failed != TWS_OK) return 0;
  if (at == TWS_NONE || plan->state->entries[at].elements != entry->elements ||
      plan->state->entries[at].dtype != entry->dtype || plan->state->entries[at].tier != entry->tier) {
    b->failed = tws_fail(b->err, TWS_INTERNAL, NULL, "plan: the state that was given has no '%s' as this program wants",
                         entry->name);
    return 0;
  }
  const uint32_t buffer = tws_builder_buffer(b, entry->name, (tws_category)entry->category, (tws_dtype)entry->dtype,
                                             entry->elements, TWS_LIFETIME_STATE);
  if (b->failed != TWS_OK) return 0;
  plan->buffers[buffer].tier = entry->tier;
  plan->buffers[buffer].offset = plan->state->entries[at].offset;
  return buffer;
}

void tws_builder_grow(tws_builder *b, uint32_t buffer, uint64_t elements) {
  tws_buffer *own = b->failed == TWS_OK ? &b->plan->buffers[buffer] : NULL;
  if (!own || elements <= own->elements) return;
  own->elements = elements;
  own->bytes = elements * tws_dtype_bytes((tws_dtype)own->dtype);
}

void tws_builder_begin(tws_builder *b, uint32_t buffer) {
  if (b->failed == TWS_OK && b->plan->buffers[buffer].first_op == TWS_NONE)
    b->plan->buffers[buffer].first_op = b->plan->op_count;
}

void tws_builder_begin_after(tws_builder *b, uint32_t buffer, uint32_t op) {
  if (b->failed == TWS_OK) b->segments[buffer].after = op + 1;
}

void tws_builder_hold(tws_builder *b, uint32_t buffer) {
  if (b->failed == TWS_OK) b->segments[buffer].until = b->plan->op_count;
}

void tws_builder_segments(tws_builder *b, uint32_t buffer, const uint64_t *starts, uint32_t count) {
  if (b->failed != TWS_OK || !starts || !count) return;
  b->segments[buffer].start = starts;
  b->segments[buffer].count = count;
}

uint32_t tws_builder_segment_at(const struct tws_buffer_segments *segments, uint64_t element) {
  uint32_t low = 0, high = segments->count;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    *(segments->start[middle] <= element ? &low : &high) = middle;
  }
  return low;
}

/* Returns a hash of the fields by which works of one plan differ most often; lookups compare all fields. */
static uint64_t hash_work(const tws_work *work) {
  uint64_t head[2];
  memcpy(head, work, sizeof head);
  const uint64_t hash = head[0] * 0x9e3779b97f4a7c15u + head[1] * 0xc2b2ae3d27d4eb4fu +
                        (uint64_t)work->d[0] * 0xff51afd7ed558ccdu + (uint64_t)work->d[1] * 0xc4ceb9fe1a85ec53u +
                        (uint64_t)work->d[2] * 0x165667b19e3779f9u + (uint64_t)work->d[3] * 0x87c37b91114253d5u;
  return hash ^ hash >> 32;
}
_Static_assert(offsetof(tws_work, d) == 16, "two words before the sizes");

static int grow_work_table(tws_builder *b) {
  uint32_t size = b->work_table_size ? b->work_table_size * 2 : 256;
  uint32_t *table = tws_calloc(size, sizeof *table);
  if (!table) {
    tws_builder_fail(b, TWS_MEMORY, "no memory");
    return -1;
  }
  for (uint32_t i = 0; i < b->plan->work_count; i++) {
    uint64_t slot = hash_work(&b->plan->works[i]) & (size - 1);
    while (table[slot]) slot = (slot + 1) & (size - 1);
    table[slot] = i + 1;
  }
  tws_free(b->work_table);
  b->work_table = table;
  b->work_table_size = size;
  return 0;
}

static uint32_t intern_work(tws_builder *b, const tws_work *work) {
  tws_plan *plan = b->plan;
  if (plan->work_count * 2 + 2 > b->work_table_size && grow_work_table(b)) return 0;
  uint64_t slot = hash_work(work) & (b->work_table_size - 1);
  for (; b->work_table[slot]; slot = (slot + 1) & (b->work_table_size - 1)) {
    uint32_t index = b->work_table[slot] - 1;
    if (memcmp(&plan->works[index], work, sizeof *work) == 0) return index;
  }
  if (reserve(b, &plan->works, &b->work_capacity, plan->work_count + 1u, sizeof *work)) return 0;
  plan->works[plan->work_count] = *work;
  b->work_table[slot] = plan->work_count + 1;
  return plan->work_count++;
}

void tws_builder_free(tws_builder *b) {
  tws_free(b->work_table);
  tws_free(b->segments);
  tws_free(b->group_matches);
  tws_free(b->peers);
}

void tws_builder_expect(tws_builder *b, size_t operations) {
  tws_plan *plan = b->plan;
  if (reserve(b, &plan->ops, &b->op_capacity, operations, sizeof *plan->ops) ||
      reserve(b, &plan->operands, &b->operand_capacity, 4 * operations, sizeof *plan->operands) ||
      reserve(b, &plan->buffers, &b->buffer_capacity, operations, sizeof *plan->buffers))
    return;
  reserve(b, &b->segments, &b->segments_capacity, operations, sizeof *b->segments);
}

static tws_op *emit(tws_builder *b, tws_op_kind kind, tws_stream stream, tws_channel channel, const tws_work *work,
                    const tws_operand *operands, int count) {
  tws_plan *plan = b->plan;
  if (b->failed != TWS_OK) return NULL;
  if (count > UINT16_MAX) {
    b->failed =
        tws_fail(b->err, TWS_UNSUPPORTED,
                 "lower zero_optimization's reduce_bucket_size, stage3_prefetch_bucket_size and "
                 "stage3_param_persistence_threshold (to 0), use another stage, or fewer layers",
                 "plan: operation %u, %s, has %d operands, one for each of its parameters and its parts, and %d "
                 "is the most",
                 plan->op_count,
                 kind == TWS_OP_COLLECTIVE ? tws_collective_name((tws_collective)work->code)
                                           : tws_kernel_name((tws_kernel)work->code),
                 count, UINT16_MAX);
    return NULL;
  }
  size_t index = plan->op_count, operand = plan->operand_count;
  if (reserve(b, &plan->ops, &b->op_capacity, index + 1, sizeof *plan->ops)) return NULL;
  if (reserve(b, &plan->operands, &b->operand_capacity, operand + (size_t)count, sizeof *operands)) return NULL;
  if (count) memcpy(plan->operands + operand, operands, (size_t)count * sizeof *operands);
  for (int i = 0; i < count; i++) {
    tws_buffer *buffer = &plan->buffers[operands[i].buffer];
    if (operands[i].offset + operands[i].count > buffer->elements) {
      tws_builder_fail(b, TWS_INTERNAL, "an operand reaches past the end of its buffer");
      return NULL;
    }
    if (buffer->first_op == TWS_NONE) buffer->first_op = (uint32_t)index;
    buffer->last_op = (uint32_t)index;
    buffer->streams |= (uint16_t)(1u << stream);
  }
  tws_op *op = &plan->ops[index];
  *op = (tws_op){.kind = (uint8_t)kind,
                 .stream = (uint8_t)stream,
                 .phase = (uint8_t)b->phase,
                 .place = work->place,
                 .channel = (uint8_t)channel,
                 .module = b->module,
                 .micro_batch = b->micro_batch,
                 .operand_first = (uint32_t)operand,
                 .operand_count = (uint16_t)count,
                 .peer = TWS_NONE};
  op->work = intern_work(b, work);
  plan->op_count++;
  plan->operand_count += (uint32_t)count;
  return op;
}

/* Returns 1 + the index of these arguments, which are stored once. Most operations have the same arguments as a recent
 * one, so these are compared first. */
static uint32_t intern_arguments(tws_builder *b, const tws_arguments *arguments) {
  enum { RECENT = 8 };
  tws_plan *plan = b->plan;
  const uint32_t count = plan->argument_count;
  for (uint32_t i = count; i > 0 && i + RECENT > count; i--)
    if (memcmp(&plan->arguments[i - 1], arguments, sizeof *arguments) == 0) return i;
  if (reserve(b, &plan->arguments, &b->argument_capacity, count + 1u, sizeof *arguments)) return 0;
  plan->arguments[count] = *arguments;
  return ++plan->argument_count;
}

static tws_op *emit_compute(tws_builder *b, tws_stream stream, const tws_work *work, const tws_operand *operands,
                            int count) {
  const uint8_t place = stream == TWS_STREAM_HOST ? TWS_PLACE_HOST : TWS_PLACE_DEVICE;
  if (work->place == place) return emit(b, TWS_OP_COMPUTE, stream, TWS_CHANNEL_NONE, work, operands, count);
  tws_work placed = *work;
  placed.place = place;
  return emit(b, TWS_OP_COMPUTE, stream, TWS_CHANNEL_NONE, &placed, operands, count);
}

void tws_builder_compute_with(tws_builder *b, tws_stream stream, const tws_work *work, const tws_arguments *arguments,
                              const tws_operand *operands, int count) {
  tws_op *op = emit_compute(b, stream, work, operands, count);
  if (op && arguments) op->arguments = intern_arguments(b, arguments);
}

void tws_builder_compute(tws_builder *b, tws_stream stream, const tws_work *work, const tws_operand *operands,
                         int count) {
  emit_compute(b, stream, work, operands, count);
}

static uint32_t next_match(tws_builder *b, uint32_t group) {
  const size_t before = b->group_match_capacity;
  if (reserve(b, &b->group_matches, &b->group_match_capacity, group + 1u, sizeof *b->group_matches)) return 0;
  if (b->group_match_capacity > before)
    memset(b->group_matches + before, 0, (b->group_match_capacity - before) * sizeof *b->group_matches);
  return b->group_matches[group]++;
}

static void emit_collective(tws_builder *b, tws_stream stream, const tws_work *work, uint32_t root,
                            const tws_operand *operands, int count) {
  const uint32_t group = work->group;
  tws_op *op =
      emit(b, TWS_OP_COLLECTIVE, stream, tws_channel_of_axes(b->plan->groups[group].axes), work, operands, count);
  if (!op) return;
  op->peer = root;
  op->match = next_match(b, group);
}

static tws_work collective_work(tws_collective collective, uint32_t group, tws_dtype dtype, uint64_t bytes) {
  tws_work work;
  memset(&work, 0, sizeof work); /* sets the padding to 0 too, since works are compared byte by byte */
  work.kind = TWS_OP_COLLECTIVE;
  work.code = (uint8_t)collective;
  work.dtype = work.dtype2 = (uint8_t)dtype;
  work.group = (uint16_t)group;
  work.segments = 1;
  work.d[0] = (int64_t)bytes;
  return work;
}

/* Returns the bytes of this rank's own parts that an all-gather copies into its output: of the segments whose own part
 * does not lie in the output already. */
static uint64_t own_parts_bytes(const tws_builder *b, const tws_group *group, const tws_operand *operands, int count) {
  uint64_t bytes = 0;
  for (int i = 0; i + 1 < count; i += 2) {
    const tws_operand *own = &operands[i], *whole = &operands[i + 1];
    const uint64_t place = whole->offset + (uint64_t)group->index * own->count;
    if (own->buffer == whole->buffer && own->offset == place) continue;
    bytes += own->count * tws_dtype_bytes((tws_dtype)b->plan->buffers[own->buffer].dtype);
  }
  return bytes;
}

void tws_builder_collective(tws_builder *b, tws_stream stream, tws_collective collective, uint32_t group,
                            tws_dtype dtype, uint64_t whole_bytes, uint32_t segments, uint32_t root,
                            const tws_operand *operands, int count) {
  tws_work work = collective_work(collective, group, dtype, whole_bytes);
  if (b->failed != TWS_OK) return;
  work.segments = segments;
  if (collective == TWS_COLLECTIVE_ALL_GATHER)
    work.d[7] = (int64_t)own_parts_bytes(b, &b->plan->groups[group], operands, count);
  for (int i = 0; i < count; i++)
    if (b->plan->buffers[operands[i].buffer].dtype != dtype) work.flags = TWS_MIXED;
  emit_collective(b, stream, &work, root, operands, count);
}

void tws_builder_slots(tws_builder *b, tws_stream stream, uint32_t group, tws_dtype dtype, uint64_t whole_bytes,
                       const int64_t routed[6], tws_operand send, tws_operand receive) {
  tws_work work = collective_work(TWS_COLLECTIVE_ALL_TO_ALL, group, dtype, whole_bytes);
  if (b->failed != TWS_OK) return;
  for (int i = 0; i < 6; i++) work.d[1 + i] = routed[i];
  const tws_operand operands[2] = {send, receive};
  emit_collective(b, stream, &work, 0, operands, 2);
}

void tws_builder_uneven(tws_builder *b, tws_stream stream, uint32_t group, tws_dtype dtype, uint64_t expected_bytes,
                        tws_operand send, tws_operand receive, tws_operand counts) {
  tws_work work = collective_work(TWS_COLLECTIVE_ALL_TO_ALL, group, dtype, expected_bytes);
  if (b->failed != TWS_OK) return;
  work.flags = TWS_UNEVEN;
  const tws_operand operands[3] = {send, receive, counts};
  emit_collective(b, stream, &work, 0, operands, 3);
}

static uint32_t next_message(tws_builder *b, tws_op_kind kind, uint32_t peer) {
  for (uint32_t i = 0; i < b->peer_count; i++)
    if (b->peers[i].peer == peer && b->peers[i].kind == (uint32_t)kind) return b->peers[i].messages++;
  if (reserve(b, &b->peers, &b->peer_capacity, b->peer_count + 1u, sizeof *b->peers)) return 0;
  b->peers[b->peer_count++] = (tws_peer_count){.peer = peer, .kind = (uint32_t)kind, .messages = 1};
  return 0;
}

void tws_builder_message(tws_builder *b, tws_op_kind kind, uint32_t peer, tws_operand operand) {
  if (b->failed != TWS_OK) return;
  tws_work work;
  memset(&work, 0, sizeof work);
  work.kind = (uint8_t)kind;
  work.dtype = work.dtype2 = b->plan->buffers[operand.buffer].dtype;
  work.d[0] = (int64_t)(operand.count * tws_dtype_bytes(work.dtype));
  tws_op *op = emit(b, kind, TWS_STREAM_P2P, TWS_CHANNEL_STAGES, &work, &operand, 1);
  if (!op) return;
  op->peer = peer;
  op->match = next_message(b, kind, peer);
}

/* Returns the channel of a copy: device memory has one copy engine for each direction, and a disk has a queue. */
static tws_channel copy_channel(int from, int to) {
  if (from == TWS_TIER_DISK || to == TWS_TIER_DISK) return TWS_CHANNEL_DISK;
  if ((from == TWS_TIER_DEVICE) == (to == TWS_TIER_DEVICE)) return TWS_CHANNEL_NONE;
  return to == TWS_TIER_DEVICE ? TWS_CHANNEL_COPY_IN : TWS_CHANNEL_COPY_OUT;
}

static tws_place copy_place(int from, int to) {
  if (from == TWS_TIER_DISK || to == TWS_TIER_DISK) return TWS_PLACE_DISK;
  return from == TWS_TIER_DEVICE || to == TWS_TIER_DEVICE ? TWS_PLACE_DEVICE : TWS_PLACE_HOST;
}

void tws_builder_copy(tws_builder *b, tws_stream stream, tws_operand from, tws_operand to) {
  if (b->failed != TWS_OK) return;
  tws_work work;
  memset(&work, 0, sizeof work);
  const int source = b->plan->buffers[from.buffer].tier, target = b->plan->buffers[to.buffer].tier;
  work.kind = TWS_OP_COPY;
  work.place = (uint8_t)copy_place(source, target);
  work.tiers = (uint8_t)(source * TWS_TIER_COUNT + target);
  work.dtype = work.dtype2 = b->plan->buffers[from.buffer].dtype;
  work.d[0] = (int64_t)(from.count * tws_dtype_bytes(work.dtype));
  tws_operand operands[2] = {from, to};
  emit(b, TWS_OP_COPY, stream, copy_channel(source, target), &work, operands, 2);
}
