/* ZeRO++'s secondary partition (hpZ; Wang et al. 2023, section 4.2): after the first gather of a step from all ranks,
 * the ranks of a node keep the parameter partitioned among themselves, so that later gathers of the step are
 * intra-node.
 *
 * Each of the h ranks of l->zero.secondary.group keeps 1/h of every parameter that is gathered again before it is
 * updated, in the model's type, from the parameter's first gather in the step to its last. Persistent parameters, those
 * that are gathered only once, and quantized weights have no secondary partition. */
#include "plan/zero.h"

void tws_secondary_begin(tws_lower *l) {
  tws_zero *z = &l->zero;
  tws_secondary *s = &z->secondary;
  const int64_t ranks = tws_config_secondary_ranks(l->config);
  const uint32_t n = l->network->param_count;
  const tws_topology *t = &l->b.plan->topology;
  s->buffer = TWS_NONE;
  if (z->stage != 3 || l->extent.evaluates || ranks < 2 || ranks >= z->ranks) return;
  const tws_axes near = TWS_AXES_NODE_DATA | TWS_AXES_SEQUENCE;
  s->ranks = tws_topology_size(t, near);
  s->index = tws_topology_index(t, l->b.plan->rank, near);
  s->group = tws_lower_group(l, near);
  s->offset = tws_lower_memory(l, n, sizeof *s->offset);
  s->has = tws_lower_memory(l, n, 1);
  uint32_t *gathers = tws_lower_memory(l, n, sizeof *gathers);
  uint64_t *starts = tws_arena_alloc(l->b.plan->arena, n + 1u, sizeof *starts);
  if (!starts) tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  if (l->b.failed != TWS_OK) return;
  for (uint32_t v = 0; v < l->pipeline.chunk->visits.count; v++) {
    const tws_zero3_actions *a = &z->schedules[0].actions[v];
    for (uint32_t i = 0; i < a->gather_count; i++) gathers[z->schedules[0].params[a->gather_first + i]]++;
    for (uint32_t i = 0; i < a->prefetch_count; i++) gathers[z->schedules[0].params[a->prefetch_first + i]]++;
  }
  uint64_t elements = 0;
  uint32_t count = 0;
  for (uint32_t p = 0; p < n; p++) {
    const int again = gathers[p] > 1 || (gathers[p] == 1 && l->config->accumulation_steps > 1);
    s->offset[p] = TWS_NO_OFFSET;
    if (!again || tws_is_quantized(l, p)) continue;
    starts[count++] = s->offset[p] = elements;
    elements += tws_secondary_part(z, p);
  }
  if (!elements) return;
  s->buffer = tws_builder_buffer(&l->b, "secondary parameters", TWS_CATEGORY_PARAMETER, l->config->dtype, elements,
                                 TWS_LIFETIME_OPS);
  tws_builder_segments(&l->b, s->buffer, starts, count);
}

void tws_secondary_keep(tws_lower *l, uint32_t param) {
  tws_secondary *s = &l->zero.secondary;
  if (s->buffer == TWS_NONE || s->offset[param] == TWS_NO_OFFSET || s->has[param]) return;
  const uint64_t part = tws_secondary_part(&l->zero, param);
  tws_builder_copy(&l->b, l->streams.gather, tws_read(l->zero.gathered[param], part * (uint64_t)s->index, part),
                   tws_write(s->buffer, s->offset[param], part));
  s->has[param] = 1;
}
