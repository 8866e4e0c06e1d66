/* Counters of dropout's random numbers (counter-based generator). Random bits are a function of the job's seed, the
 * module, the step (hyper[STEP]) and an element's position in the global batch: recomputation and the gradient draw the
 * same bits as the forward pass, and the bits do not depend on the number of ranks, micro-batches or tensor-parallel
 * ranks. */
#include "plan/lower.h"

/* Returns the seed of a module: SplitMix64 (Steele et al. 2014) of the job's seed and the module, of which a double
 * holds 53 bits exactly. */
static double seed_of(const tws_lower *l, uint32_t module) {
  uint64_t x = (uint64_t)l->config->seed + (module + 1) * UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return (double)((x ^ x >> 31) & ((UINT64_C(1) << 53) - 1));
}

int64_t tws_first_sample(const tws_lower *l) {
  const tws_plan *plan = l->b.plan;
  const int64_t replicas = tws_topology_size(&plan->topology, TWS_AXES_DATA);
  const int64_t replica = tws_topology_index(&plan->topology, plan->rank, TWS_AXES_DATA);
  return ((int64_t)l->b.micro_batch * replicas + replica) * l->config->micro_batch_size;
}

static tws_arguments of_attention(const tws_lower *l, const tws_module *m, uint32_t origin) {
  const tws_position *at = &l->sharding.position;
  const int part = at->index[TWS_AXIS_MODEL] * at->ranks[TWS_AXIS_SEQUENCE] + at->index[TWS_AXIS_SEQUENCE];
  /* 1: the arguments are those of dropout; 0: those of attention with biases by distance (ALiBi), which depend only on
   * the head */
  const int drops = m->dropout > 0;
  return (tws_arguments){{drops ? seed_of(l, origin) : 0, drops ? (double)tws_first_sample(l) : 0,
                          (double)part * m->heads, (double)l->b.plan->network->modules[origin].heads}};
}

/* Returns the arguments for the value to which a module applies dropout. They describe which contiguous runs of the
 * whole value this rank has: a shard of tokens has a range of each sample along "sequence", or a range of each slice of
 * the micro-batch along "model"; a shard of features has a range of each row. */
static tws_arguments of_value(tws_lower *l, const tws_module *m, uint32_t origin) {
  const tws_local_value *value = &l->local.values[m->in[0]];
  const tws_position *at = &l->sharding.position;
  const uint64_t width = l->network->values[m->in[0]].per_row, own = width * l->values.rows[m->in[0]];
  const uint64_t whole = own * value->token_parts, samples = (uint64_t)l->config->micro_batch_size;
  const int by_sequence = value->token_parts > 1 && value->placement.on[TWS_AXIS_SEQUENCE] == TWS_PLACED_TOKENS;
  const int by_model = value->token_parts > 1 && value->placement.on[TWS_AXIS_MODEL] == TWS_PLACED_TOKENS;
  const int by_features = value->placement.on[TWS_AXIS_MODEL] == TWS_PLACED_FEATURES;
  /* the value is the same for all samples and on all ranks */
  if (l->network->values[m->in[0]].row[0].kind == TWS_DIM_FIXED) return (tws_arguments){{seed_of(l, origin)}};
  if (l->at.tiles > 1 || (by_sequence && (by_model || by_features)))
    tws_builder_fail(&l->b, TWS_UNSUPPORTED,
                     "dropout does not go with tiles, or with sequence parallelism and features that tensor "
                     "parallelism splits or "
                     "tokens that twinspeed.tensor_sequence_parallel divides: set twinspeed.dropout to false");
  if (by_features) { /* the rank has a range of each row */
    const uint64_t row = width * (uint64_t)at->ranks[TWS_AXIS_MODEL];
    const uint64_t first = (uint64_t)tws_first_sample(l) * (l->values.rows[m->in[0]] / samples) * row;
    return (tws_arguments){{seed_of(l, origin), (double)(first + width * (uint64_t)at->index[TWS_AXIS_MODEL]),
                            (double)width, (double)row}};
  }
  const uint64_t begin = (uint64_t)tws_first_sample(l) * (whole / samples);
  if (!by_sequence && !by_model) return (tws_arguments){{seed_of(l, origin), (double)begin}};
  const uint64_t parts = by_sequence ? samples : (uint64_t)l->streams.slices, run = own / parts;
  const int index = at->index[by_sequence ? TWS_AXIS_SEQUENCE : TWS_AXIS_MODEL];
  return (tws_arguments){
      {seed_of(l, origin), (double)(begin + run * (uint64_t)index), (double)run, (double)(whole / parts)}};
}

int tws_dropout_arguments(tws_lower *l, const tws_module *m, tws_kernel kernel, tws_arguments *arguments) {
  const uint32_t origin = tws_local_of(l, m)->origin;
  if (kernel == TWS_KERNEL_ATTENTION || kernel == TWS_KERNEL_ATTENTION_GRAD || kernel == TWS_KERNEL_DISENTANGLED ||
      kernel == TWS_KERNEL_DISENTANGLED_GRAD) {
    *arguments = of_attention(l, m, origin);
    return 1;
  }
  *arguments = of_value(l, m, origin);
  return 1;
}
