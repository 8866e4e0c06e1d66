/* ZeRO++'s quantized reductions (qgZ; Wang et al. 2023, section 4.3): gradients are sent as 4-bit codes with a scale
 * for each block, in all-to-alls, and the receiver adds them up in float32, in the order of the group's ranks. The
 * first level is inside a node, so that only one sum for each of its ranks leaves the node; the sums are quantized
 * again and exchanged between ranks with the same index on all nodes. If ZeRO does not distinguish nodes there is a
 * single level.
 *
 * Vectors are not quantized: they are reduced in their own type. */
#include "plan/zero.h"

enum { BITS = 4, BLOCK = 512 };

/* One level of a quantized reduction, among the ranks of `group`: each rank sends `parts` parts of each gradient to
 * every rank, and sums the parts that it receives. */
typedef struct level {
  uint32_t group;
  int64_t parts, ranks;
} level;

static uint32_t room_for(tws_lower *l, const char *name, tws_dtype dtype, uint64_t elements) {
  return tws_builder_buffer(&l->b, name, TWS_CATEGORY_BUCKET, dtype, elements, TWS_LIFETIME_OPS);
}

/* Quantizes one gradient. It writes four operands to `segment`: the codes, the buffer for codes that other ranks send,
 * the scales, and the buffer for scales that other ranks send. */
static void quantize(tws_lower *l, const level *h, int64_t part, tws_operand from, tws_operand segment[4]) {
  const uint64_t parts = (uint64_t)(h->parts * h->ranks);
  const uint64_t codes = parts * (((uint64_t)part * BITS + 7) / 8);
  const uint64_t scales = parts * (((uint64_t)part + BLOCK - 1) / BLOCK);
  for (int i = 0; i < 2; i++) {
    segment[i] = tws_write(room_for(l, i ? "received codes" : "codes of gradients", TWS_U8, codes), 0, codes);
    segment[2 + i] = tws_write(room_for(l, i ? "received scales" : "scales of gradients", TWS_F32, scales), 0, scales);
  }
  if (l->b.failed != TWS_OK) return;
  const tws_dtype dtype = (tws_dtype)l->b.plan->buffers[from.buffer].dtype;
  const tws_work work = tws_parts_work(TWS_KERNEL_QUANTIZE_PARTS, dtype, part, h->parts, h->ranks, BLOCK, BITS);
  from.access = TWS_READ;
  tws_builder_compute(&l->b, l->streams.reduce, &work, (tws_operand[]){from, segment[0], segment[2]}, 3);
  segment[0].access = segment[2].access = TWS_READ;
}

static void add_up(tws_lower *l, const level *h, int64_t part, const tws_operand segment[4], tws_operand to) {
  if (l->b.failed != TWS_OK) return;
  const tws_dtype dtype = (tws_dtype)l->b.plan->buffers[to.buffer].dtype;
  const tws_work work = tws_parts_work(TWS_KERNEL_DEQUANTIZE_PARTS, dtype, part, h->parts, h->ranks, BLOCK, BITS);
  const tws_operand operands[3] = {tws_read(segment[1].buffer, 0, segment[1].count),
                                   tws_read(segment[3].buffer, 0, segment[3].count), to};
  tws_builder_compute(&l->b, l->streams.reduce, &work, operands, 3);
}

/* Emits one level of the reduction: quantizes `count` gradients, exchanges them by one all-to-all and sums the results
 * into `to`. part[]: per gradient, the number of elements of one part. segments: scratch array of four operands per
 * gradient. */
static void emit_level(tws_lower *l, const level *h, const int64_t *part, uint32_t count, const tws_operand *from,
                       const tws_operand *to, tws_operand *segments) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count; i++) quantize(l, h, part[i], from[i], segments + 4 * (size_t)i);
  for (uint32_t i = 0; i < 4 * count && l->b.failed == TWS_OK; i += 2)
    bytes += l->b.plan->buffers[segments[i].buffer].bytes;
  tws_builder_collective(&l->b, l->streams.reduce, TWS_COLLECTIVE_ALL_TO_ALL, h->group, TWS_U8, bytes, 2 * count, 0,
                         segments, (int)(4 * count));
  for (uint32_t i = 0; i < count; i++) add_up(l, h, part[i], segments + 4 * (size_t)i, to[i]);
}

static void emit_levels(tws_lower *l, const tws_zero_class *c, const int64_t *part, uint32_t count,
                        const tws_operand *from, const tws_operand *to) {
  tws_quantized_levels *levels = &l->zero.quantized_levels;
  tws_operand *segments = tws_calloc(4 * (size_t)count, sizeof *segments), *sums = tws_calloc(count, sizeof *sums);
  if (!segments || !sums) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  } else if (levels->intra < 2) {
    emit_level(l, &(level){c->group, 1, c->ranks}, part, count, from, to, segments);
  } else {
    const int64_t nodes = c->ranks / levels->intra;
    for (uint32_t i = 0; i < count; i++) {
      const uint64_t elements = (uint64_t)(part[i] * nodes);
      sums[i] = tws_write(room_for(l, "sums of a node", TWS_F32, elements), 0, elements);
    }
    emit_level(l, &(level){levels->intra_group, nodes, levels->intra}, part, count, from, sums, segments);
    emit_level(l, &(level){levels->inter_group, 1, nodes}, part, count, sums, to, segments);
  }
  tws_free(segments);
  tws_free(sums);
}

void tws_quantized_reduce_begin(tws_lower *l) {
  tws_quantized_levels *levels = &l->zero.quantized_levels;
  const tws_topology *t = &l->b.plan->topology;
  const tws_axes near = TWS_AXES_NODE_DATA | TWS_AXES_SEQUENCE;
  const int ranks = tws_topology_size(t, near);
  if (!tws_config_quantizes_gradients(l->config) || l->extent.evaluates) return;
  if (tws_config_node_ranks(l->config) != ranks || ranks < 2 || ranks >= l->zero.ranks) return;
  levels->intra = ranks;
  levels->intra_group = tws_lower_group(l, near);
  levels->inter_group =
      tws_lower_group(l, ranks == tws_topology_size(t, TWS_AXES_SEQUENCE) ? TWS_AXES_DATA : TWS_AXES_DATA_NODES);
}

int tws_reduces_quantized(const tws_lower *l, uint32_t param) {
  return tws_config_quantizes_gradients(l->config) && l->network->params[param].rows > 1;
}

void tws_quantized_reduce(tws_lower *l, const tws_zero_class *c, const int64_t *part, uint32_t count,
                          const tws_operand *operands) {
  tws_operand *from = tws_calloc(2 * (size_t)count + 1, sizeof *from), *to = from + count;
  if (!from) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return;
  }
  for (uint32_t i = 0; i < count; i++) {
    from[i] = operands[2 * i];
    to[i] = operands[2 * i + 1];
  }
  if (count > 0) emit_levels(l, c, part, count, from, to);
  tws_free(from);
}
