/* MiCS (Zhang et al. 2022, "MiCS: Near-linear Scaling for Training Gigantic Model on Public Cloud"; PyTorch's hybrid
 * shards): ranks are in groups, and each group has all partitions of the parameters. A micro-batch gathers and reduces
 * only inside a group; after the last micro-batch of a step, the ranks that have the same partition add up its
 * gradients.
 *
 * A group of several nodes gathers in two levels, so that each part is sent to a node once: first each rank gathers the
 * parts of the ranks with its index on all nodes of the group, then the ranks of a node gather these parts, node by
 * node, directly into the whole parameter. */
#include "plan/zero.h"

void tws_groups_begin(tws_lower *l) {
  tws_zero *z = &l->zero;
  tws_zero_groups *g = &z->groups;
  const tws_topology *t = &l->b.plan->topology;
  const tws_axes near = TWS_AXES_NODE_SHARDS | TWS_AXES_SEQUENCE;
  *g = (tws_zero_groups){.copies = 1, .nodes = 1};
  if (z->stage != 3) return;
  g->copies = tws_topology_size(t, TWS_AXES_DATA_COPIES);
  g->nodes = tws_topology_size(t, TWS_AXES_SHARD_NODES);
  if (g->copies > 1 && !l->extent.evaluates) g->copies_group = tws_lower_group(l, TWS_AXES_DATA_COPIES);
  if (g->nodes < 2) return;
  g->intra = tws_topology_size(t, near);
  g->inter_group = tws_lower_group(l, TWS_AXES_SHARD_NODES);
  g->intra_group = tws_lower_group(l, near);
}

void tws_groups_add_up(tws_lower *l, const uint32_t *params, uint32_t count) {
  const tws_zero *z = &l->zero;
  const uint32_t gradients = l->b.plan->gradients;
  if (z->groups.copies < 2 || l->b.micro_batch + 1u != (uint32_t)l->extent.accumulation || l->b.failed != TWS_OK)
    return;
  tws_operand *ranges = tws_calloc(count + 1u, sizeof *ranges);
  uint64_t elements = 0;
  uint32_t n = 0;
  if (!ranges) tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  for (uint32_t i = 0; i < count && ranges; i++) {
    const uint64_t part = (uint64_t)z->part[params[i]], offset = z->flat_offset[params[i]];
    elements += part;
    if (n > 0 && ranges[n - 1].offset + ranges[n - 1].count == offset)
      ranges[n - 1].count += part;
    else
      ranges[n++] = tws_update(gradients, offset, part);
  }
  const tws_dtype dtype = l->config->accumulation_dtype;
  if (n > 0)
    tws_builder_collective(&l->b, l->streams.reduce, TWS_COLLECTIVE_ALL_REDUCE, z->groups.copies_group, dtype,
                           elements * tws_dtype_bytes(dtype), n, 0, ranges, (int)n);
  tws_free(ranges);
}

static void gather(tws_lower *l, uint32_t group, const tws_operand *pairs, int count) {
  const tws_buffer *buffers = l->b.plan->buffers;
  uint64_t bytes = 0;
  if (l->b.failed != TWS_OK) return;
  for (int i = 1; i < count; i += 2)
    bytes += pairs[i].count * tws_dtype_bytes((tws_dtype)buffers[pairs[i].buffer].dtype);
  tws_builder_collective(&l->b, l->streams.gather, TWS_COLLECTIVE_ALL_GATHER, group,
                         (tws_dtype)buffers[pairs[0].buffer].dtype, bytes, (uint32_t)(count / 2), 0, pairs, count);
}

/* Emits a gather in two levels. far: scratch array for the operands of the inter-node level, which gathers the parts of
 * the ranks with the same index on all nodes; near: the same for the intra-node level, which gathers these parts. */
static void gather_in_steps(tws_lower *l, const tws_operand *operands, int count, tws_operand *far, tws_operand *near) {
  const tws_zero_groups *g = &l->zero.groups;
  const uint64_t nodes = (uint64_t)g->nodes, ranks = (uint64_t)g->intra;
  int n = 0;
  for (int i = 0; i < count && l->b.failed == TWS_OK; i += 2) {
    const tws_operand own = operands[i], whole = operands[i + 1];
    const uint32_t parts =
        tws_builder_buffer(&l->b, "parts of nodes", TWS_CATEGORY_GATHERED,
                           (tws_dtype)l->b.plan->buffers[own.buffer].dtype, own.count * nodes, TWS_LIFETIME_OPS);
    far[i] = own;
    far[i + 1] = tws_write(parts, 0, own.count * nodes);
    for (uint64_t k = 0; k < nodes; k++) {
      near[n++] = tws_read(parts, own.count * k, own.count);
      near[n++] = tws_write(whole.buffer, whole.offset + own.count * ranks * k, own.count * ranks);
    }
  }
  gather(l, g->inter_group, far, count);
  gather(l, g->intra_group, near, n);
}

void tws_groups_gather(tws_lower *l, uint32_t group, const tws_operand *operands, int count) {
  /* most: largest number of operands per call that the two levels can process, since an operation's count has 16
   * bits */
  const int nodes = l->zero.groups.nodes, most = UINT16_MAX / (2 * nodes) * 2;
  if (nodes < 2) {
    gather(l, group, operands, count);
    return;
  }
  tws_operand *far = tws_calloc((size_t)count + 1, sizeof *far);
  tws_operand *near = tws_calloc((size_t)count * (size_t)nodes + 1, sizeof *near);
  if (!far || !near) tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  for (int i = 0; i < count && l->b.failed == TWS_OK; i += most)
    gather_in_steps(l, operands + i, count - i < most ? count - i : most, far, near);
  tws_free(far);
  tws_free(near);
}
