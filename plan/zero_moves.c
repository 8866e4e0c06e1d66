/* What a micro-batch has to gather and to reduce, for samples: the least that any cutting into pieces costs. */
#include "plan/zero.h"

static double bytes_of(const tws_lower *l, uint32_t param) {
  const double count = (double)tws_zero_numel(l, param);
  if (!tws_is_quantized(l, param)) return count * (double)tws_dtype_bytes(l->config->dtype);
  return count * l->network->params[param].bits / 8 + count / (double)l->config->quantization.block * sizeof(float);
}

void tws_zero_sample_moves(tws_lower *l) {
  const tws_zero *z = &l->zero;
  double gathered = 0; /* bytes */
  uint64_t reduced = 0;
  if (z->ranks == 1 || !tws_zero_same_ranks(z)) return;
  for (uint32_t p = 0; p < l->network->param_count; p++) reduced += tws_is_frozen(l, p) ? 0 : tws_zero_numel(l, p);
  for (uint32_t v = 0; z->stage == 3 && v < l->chunk->visits.count; v++) {
    const tws_zero3_actions *a = &z->schedule.actions[v];
    for (uint32_t i = 0; i < a->gather_count; i++) gathered += bytes_of(l, z->schedule.params[a->gather_first + i]);
    for (uint32_t i = 0; i < a->prefetch_count; i++) gathered += bytes_of(l, z->schedule.params[a->prefetch_first + i]);
  }
  const tws_zero_config *c = &l->config->zero;
  const int to_owners = c->reduce_scatter && !c->multi_rank_bucket_allreduce;
  const tws_collective reduction = z->stage == 3 && c->reduce_scatter ? TWS_COLLECTIVE_REDUCE_SCATTER
                                   : z->stage != 3 && to_owners       ? TWS_COLLECTIVE_REDUCE
                                                                      : TWS_COLLECTIVE_ALL_REDUCE;
  if (gathered > 0)
    tws_builder_collective(&l->b, l->gather_stream, TWS_COLLECTIVE_ALL_GATHER, z->group, l->config->dtype,
                           (uint64_t)gathered, 1, 0, NULL, 0);
  if (z->stage >= 2)
    tws_builder_collective(&l->b, l->reduce_stream, reduction, z->group, z->grad_dtype,
                           reduced * tws_dtype_bytes(z->grad_dtype), 1, 0, NULL, 0);
}
