/* Lowers EXCHANGE modules, which move values between the ranks of a replica: collectives of tensor parallelism and the
 * all-to-alls around attention (plan/shard.h determines where they are). With overlap, exchanges are issued slice by
 * slice on a separate stream. The tokens of a split value are then divided among ranks within each slice, in all
 * exchanges of the network alike. */
#include "plan/lower.h"

static void emit_on(tws_lower *l, tws_stream stream, tws_collective kind, uint32_t group, tws_operand from,
                    tws_operand to) {
  int in_place = kind == TWS_COLLECTIVE_ALL_REDUCE;
  uint64_t whole = from.count > to.count ? from.count : to.count;
  if (l->b.failed != TWS_OK) return;
  tws_dtype dtype = (tws_dtype)l->b.plan->buffers[from.buffer].dtype;
  tws_operand operands[2] = {from, to};
  operands[0].access = in_place ? TWS_READ_WRITE : TWS_READ;
  operands[1].access = TWS_WRITE;
  tws_builder_collective(&l->b, stream, kind, group, dtype, whole * tws_dtype_bytes(dtype), 1, 0, operands,
                         in_place ? 1 : 2);
}

static void emit_exchange_collective(tws_lower *l, tws_collective kind, uint32_t group, tws_operand from,
                                     tws_operand to) {
  const tws_stream stream = group == l->group[TWS_AXIS_MODEL] ? l->streams.exchange : TWS_STREAM_COMPUTE;
  emit_on(l, stream, kind, group, from, to);
}

/* Emits a collective among the tensor-parallel ranks, slice by slice. */
static void exchange_sliced(tws_lower *l, tws_collective kind, tws_operand from, tws_operand to) {
  tws_lower_slice(l, from.buffer);
  tws_lower_slice(l, to.buffer);
  for (int i = 0; i < l->streams.slices; i++) {
    emit_exchange_collective(l, kind, l->group[TWS_AXIS_MODEL], tws_operand_slice(l, from, i),
                             tws_operand_slice(l, to, i));
  }
}

void tws_exchange_gather_into(tws_lower *l, tws_stream stream, tws_operand operand, tws_operand all) {
  emit_on(l, stream, TWS_COLLECTIVE_ALL_GATHER, l->group[TWS_AXIS_MODEL], operand, all);
}

tws_operand tws_exchange_gather(tws_lower *l, tws_operand operand, const char *name) {
  tws_operand all = tws_lower_scratch(l, name, (tws_dtype)l->b.plan->buffers[operand.buffer].dtype,
                                      operand.count * (uint64_t)l->sharding.position.ranks[TWS_AXIS_MODEL]);
  emit_exchange_collective(l, TWS_COLLECTIVE_ALL_GATHER, l->group[TWS_AXIS_MODEL], operand, all);
  all.access = TWS_READ;
  return all;
}

/* ---- all-to-all around attention ---- */

static tws_work heads_work(const tws_lower *l, const tws_module *m, tws_kernel kernel) {
  tws_work work = tws_kernel_work(kernel, l->config->dtype, 0);
  work.d[0] = l->extent.tokens / l->at.tiles;
  work.d[1] = l->sharding.position.ranks[TWS_AXIS_SEQUENCE];
  work.d[2] = m->heads;
  work.d[3] = m->kv_heads;
  work.d[4] = m->head_size;
  return work;
}

static tws_operand exchange_scratch(tws_lower *l, const char *name, uint64_t elements) {
  return tws_lower_scratch(l, name, l->config->dtype, elements);
}

/* Returns 1 if the all-to-all has to be transposed, [ranks][batch][...] <-> [batch][ranks][...]; 0 if the batch, or the
 * chunk of attention, is one sequence, so that both orders are equal. */
static int transposes(const tws_lower *l) {
  return l->config->micro_batch_size > 1 && !l->at.chunk_role;
}

static void run_kernel(tws_lower *l, const tws_work *work, tws_operand from, tws_operand to) {
  from.access = TWS_READ;
  to.access = TWS_WRITE;
  tws_operand operands[2] = {from, to};
  tws_lower_compute(l, work, operands, 2);
}

/* Emits a transposition of segments of any type, [a][b] to [b][a]. */
static void swap_pieces(tws_lower *l, int a, int b, tws_operand from, tws_operand to) {
  tws_work work = tws_kernel_work(TWS_KERNEL_TRANSPOSE, (tws_dtype)l->b.plan->buffers[from.buffer].dtype, 0);
  work.d[0] = a;
  work.d[1] = b;
  work.d[2] = (int64_t)from.count / (a * b);
  run_kernel(l, &work, from, to);
}

static void transpose(tws_lower *l, int ranks_first, tws_operand from, tws_operand to) {
  const int ranks = l->sharding.position.ranks[TWS_AXIS_SEQUENCE], batch = (int)l->config->micro_batch_size;
  swap_pieces(l, ranks_first ? ranks : batch, ranks_first ? batch : ranks, from, to);
}

/* Emits the all-to-all from this rank's tokens of all heads to all tokens of this rank's heads. */
static void to_heads(tws_lower *l, const tws_module *m, tws_operand from, tws_operand to) {
  tws_work pack = heads_work(l, m, TWS_KERNEL_HEADS_PACK);
  tws_operand sent = exchange_scratch(l, "heads to send", to.count);
  run_kernel(l, &pack, from, sent);
  tws_operand received = transposes(l) ? exchange_scratch(l, "heads received", to.count) : to;
  emit_exchange_collective(l, TWS_COLLECTIVE_ALL_TO_ALL, l->group[TWS_AXIS_SEQUENCE], sent, received);
  if (transposes(l)) transpose(l, 1, received, to);
}

/* Emits the all-to-all from all tokens of this rank's heads to this rank's tokens of all heads; gradients of replicated
 * key and value heads are summed. */
static void to_tokens(tws_lower *l, const tws_module *m, tws_operand from, tws_operand to) {
  tws_work unpack = heads_work(l, m, TWS_KERNEL_HEADS_UNPACK);
  tws_operand sent = from;
  if (transposes(l)) {
    sent = exchange_scratch(l, "tokens to send", from.count);
    transpose(l, 0, from, sent);
  }
  tws_operand received = exchange_scratch(l, "tokens received", from.count);
  emit_exchange_collective(l, TWS_COLLECTIVE_ALL_TO_ALL, l->group[TWS_AXIS_SEQUENCE], sent, received);
  run_kernel(l, &unpack, received, to);
}

/* ---- slots of experts ---- */

/* Returns the bytes of slots in e4m3, with a float32 scale for each 128 channels of a row (DeepSeek-V3, 2024, section
 * 3.3). */
static int64_t bytes_in_8_bits(uint64_t elements, uint64_t width) {
  return (int64_t)(elements + elements / width * ((width + 127) / 128) * 4);
}

/* Emits the all-to-all of slots in one level. Its work has the expected number of filled slots, from which the cost of
 * software that sends tokens instead of slots is computed; counts of slots are sent unchanged. */
static void exchange_at_once(tws_lower *l, const tws_module *m, tws_placed made, tws_operand from, tws_operand to) {
  const tws_routing *routing = l->b.plan->network->modules[tws_local_of(l, m)->origin].routing;
  const tws_dtype dtype = (tws_dtype)l->b.plan->buffers[from.buffer].dtype;
  const uint64_t size = tws_dtype_bytes(dtype), width = l->network->values[m->in[0]].per_row;
  const int64_t tokens =
      l->config->micro_batch_size * l->config->sequence_length / l->local.values[m->in[0]].token_parts;
  const int activations = l->network->values[m->in[0]].kind == TWS_VALUE_ACTIVATION;
  int64_t routed[6] = {0};
  if (routing && activations) {
    routed[0] = tokens * (int64_t)(width * size);
    routed[1] = routing->experts;
    routed[2] = routing->choices;
    routed[3] = routing->groups;
    routed[4] = routing->kept_groups;
  }
  if (l->config->expert_dispatch_fp8 && activations && made == TWS_PLACED_EXPERTS)
    routed[5] = bytes_in_8_bits(from.count, width);
  from.access = TWS_READ;
  to.access = TWS_WRITE;
  tws_builder_slots(&l->b, TWS_STREAM_COMPUTE, l->group[TWS_AXIS_EXPERT], dtype, from.count * size, routed, from, to);
}

/* Emits the all-to-all of slots. Slots are ordered by expert, and thus by rank, so the slots that a rank sends to
 * another one are one contiguous segment. In two levels (2DH; Hwang et al., 2023, appendix A), segments for ranks with
 * the same index in any node first go to the rank of this node with that index; each rank then sends to the ranks with
 * its index in other nodes the segments of all ranks of its node, so that fewer and larger messages leave a node.
 * Between the levels segments are ordered by destination; after the second level they have the order that one level
 * gives. */
static void exchange_slots(tws_lower *l, const tws_module *m, tws_placed made, tws_operand from, tws_operand to) {
  const tws_position *p = &l->sharding.position;
  const int nodes = p->ranks[TWS_AXIS_EXPERT_NODES], near = p->ranks[TWS_AXIS_NODE_EXPERT];
  if (l->b.failed != TWS_OK) return;
  if (l->group[TWS_AXIS_EXPERT] != TWS_NONE) {
    exchange_at_once(l, m, made, from, to);
    return;
  }
  tws_operand sorted =
      tws_lower_scratch(l, "pieces in order", (tws_dtype)l->b.plan->buffers[from.buffer].dtype, from.count);
  swap_pieces(l, nodes, near, from, sorted);
  emit_exchange_collective(l, TWS_COLLECTIVE_ALL_TO_ALL, l->group[TWS_AXIS_NODE_EXPERT], sorted, to);
  swap_pieces(l, near, nodes, to, sorted);
  emit_exchange_collective(l, TWS_COLLECTIVE_ALL_TO_ALL, l->group[TWS_AXIS_EXPERT_NODES], sorted, to);
}

/* ---- modules ---- */

/* Emits a collective `change` that writes a value in its new placement `made` to a separate operand `to`. */
static void move_value(tws_lower *l, const tws_module *m, int change, tws_placed made, tws_operand from,
                       tws_operand to) {
  if (tws_local_of(l, m)->axis == TWS_AXIS_EXPERT) exchange_slots(l, m, made, from, to);
  /* the slots of all ranks are concatenated in the order of ranks, which the collective does without a transposition */
  else if (l->local.values[m->in[0]].slot_parts != l->local.values[m->out[0]].slot_parts)
    emit_exchange_collective(l, (tws_collective)change, l->group[TWS_AXIS_MODEL], from, to);
  else if (change != TWS_COLLECTIVE_ALL_TO_ALL)
    exchange_sliced(l, (tws_collective)change, from, to);
  else if (made == TWS_PLACED_FEATURES)
    to_heads(l, m, from, to);
  else
    to_tokens(l, m, from, to);
}

void tws_exchange_forward(tws_lower *l, const tws_module *m) {
  const tws_local_module *local = tws_local_of(l, m);
  if (tws_local_exchanges_in_place(local)) {
    tws_operand value = tws_value_reuse(l, m->in[0], m->out[0], TWS_READ_WRITE);
    if (local->forward != TWS_NO_COMMUNICATION) exchange_sliced(l, (tws_collective)local->forward, value, value);
    return;
  }
  tws_operand from = tws_value_read(l, m->in[0]);
  if (local->shares) {
    tws_value_place(l, m->out[0], from.buffer);
    return;
  }
  move_value(l, m, local->forward, (tws_placed)local->to, from, tws_value_write(l, m->out[0]));
}

/* Returns the operand to which an exchange writes the gradient of its input: the gradient itself, or a separate buffer
 * that is added later if other modules have contributed to the gradient. */
static tws_operand gradient_target(tws_lower *l, uint32_t value, int *accumulate) {
  tws_operand to = tws_value_gradient_out(l, value, accumulate);
  return *accumulate ? exchange_scratch(l, "gradient to add", to.count) : to;
}

void tws_lower_pass_gradient(tws_lower *l, uint32_t in, tws_operand from) {
  if (l->values.gradient[in] == TWS_NONE) {
    tws_value_place_gradient(l, in, from.buffer);
  } else {
    tws_lower_add_gradient(l, in, from);
  }
}

void tws_exchange_backward(tws_lower *l, const tws_module *m) {
  uint32_t in = m->in[0];
  int accumulate = 0;
  if (l->network->values[in].kind == TWS_VALUE_INDEX) return; /* indices have no gradient */
  tws_operand from = tws_value_gradient(l, m->out[0]);
  if (l->b.failed != TWS_OK) return;
  const tws_local_module *local = tws_local_of(l, m);
  if (local->shares || tws_local_exchanges_in_place(local)) {
    if (local->backward != TWS_NO_COMMUNICATION) exchange_sliced(l, (tws_collective)local->backward, from, from);
    tws_lower_pass_gradient(l, in, from);
    return;
  }
  tws_operand to = gradient_target(l, in, &accumulate);
  const tws_placed before = (tws_placed)l->local.values[in].placement.on[local->axis];
  move_value(l, m, local->backward, tws_placed_dual(before), from, to);
  if (accumulate) tws_lower_add_gradient(l, in, to);
}

/* ---- parameters ---- */

static int is_partial(const tws_lower *l, uint32_t param) {
  return l->local.params[param].on[TWS_AXIS_MODEL] == TWS_PLACED_BROADCAST;
}

static void reduce_run(tws_lower *l, int partial, uint64_t first, uint64_t count) {
  if (!partial) return;
  tws_operand range = tws_update(l->b.plan->gradients, first, count);
  tws_dtype dtype = l->config->accumulation_dtype;
  const int change = tws_placed_change(TWS_PLACED_PARTIAL, TWS_PLACED_REPLICATED);
  tws_builder_collective(&l->b, TWS_STREAM_COMPUTE, (tws_collective)change, l->group[TWS_AXIS_MODEL], dtype,
                         count * tws_dtype_bytes(dtype), 1, 0, &range, 1);
}

void tws_exchange_partial_gradients(tws_lower *l) {
  tws_zero_kept_runs(l, is_partial, reduce_run);
}
