/* The end of a step: gradient norm, clipping, AdamW on what this rank owns, and the gathering of what was updated.
 * All scalars stay in the plan's two small buffers, so that nothing here needs the host. */
#include <string.h>

#include "plan/zero.h"
#include "plan/zero_partition.h"

static void share_among(tws_lower *l, uint32_t group, uint64_t count) {
  if (group == TWS_NONE) return;
  tws_operand operand = tws_update(l->b.plan->metrics, TWS_METRIC_LOSS, count);
  tws_builder_collective(&l->b, TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_REDUCE, group, TWS_F64, count * sizeof(double),
                         1, 0, &operand, 1);
}

/* Loss, ignored tokens, squares. Data-parallel ranks with whole gradients each have all the squares. */
static void share_metrics(tws_lower *l) {
  if (l->zero.ranks > 1) share_among(l, l->zero.group, l->zero.stage == 0 ? 2 : 3);
  share_among(l, l->pipe_group, 3);
  share_among(l, l->model_group, 3);
}

/* Ranks that hold equal copies of a parameter: stages it is tied between, tensor-parallel ranks. Each counts its share
 * of the squares. */
static int copies_of(const tws_lower *l, uint32_t param) {
  return (l->param_stages[param] ? 2 : 1) * (l->local.sharing[param] != TWS_SHARING_SPLIT ? l->axes.tensor : 1);
}

static void add_squares(tws_lower *l, int copies, uint64_t first, uint64_t count) {
  tws_work work = tws_kernel_work(TWS_KERNEL_SQUARED_NORM, l->config->accumulation_dtype, 0);
  work.d[0] = (int64_t)count;
  work.f[0] = 1.0 / copies;
  tws_operand norm[2] = {tws_read(l->b.plan->gradients, first, count),
                         tws_update(l->b.plan->metrics, TWS_METRIC_SQUARES, 1)};
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, norm, 2);
}

static void update(tws_lower *l, uint64_t gradient, uint64_t parameter, uint64_t state, uint64_t count) {
  tws_plan *plan = l->b.plan;
  const tws_config *config = l->config;
  int master = plan->master != TWS_NONE;
  uint32_t flags = config->adam_w_mode || config->optimizer == TWS_OPTIMIZER_ADAMW ? 0 : TWS_L2;
  tws_work work = tws_kernel_work(TWS_KERNEL_ADAMW, config->accumulation_dtype, flags);
  work.dtype2 = (uint8_t)config->dtype;
  work.d[0] = (int64_t)count;
  work.f[0] = config->beta1;
  work.f[1] = config->beta2;
  work.f[2] = config->epsilon;
  work.f[3] = config->weight_decay;
  tws_operand operands[7] = {
      master ? tws_update(plan->master, state, count) : tws_update(plan->parameters, parameter, count),
      tws_update(plan->moment1, state, count),
      tws_update(plan->moment2, state, count),
      tws_read(plan->gradients, gradient, count),
      tws_all(&l->b, plan->hyper, TWS_READ),
      tws_all(&l->b, plan->metrics, TWS_READ),
      tws_write(plan->parameters, parameter, count),
  };
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, master ? 7 : 6);
}

static void update_sub_groups(tws_lower *l) {
  tws_zero *z = &l->zero;
  int n = (int)l->network->param_count;
  int *group_of = tws_arena_alloc(l->scratch, (size_t)n + 1, sizeof *group_of);
  int64_t *part = tws_arena_alloc(l->scratch, (size_t)n + 1, sizeof *part);
  if (!group_of || !part) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return;
  }
  for (int i = 0; i < n; i++) part[i] = z->part[z->order[i]];
  tws_zero3_sub_groups(n, part, l->config->zero.sub_group_size, group_of);
  for (int i = 0; i < n;) {
    uint64_t first = z->flat_offset[z->order[i]], count = 0;
    int group = group_of[i];
    for (; i < n && group_of[i] == group; i++) count += (uint64_t)part[i];
    update(l, first, first, first, count);
  }
}

static void gather_parameters(tws_lower *l) {
  tws_zero *z = &l->zero;
  tws_plan *plan = l->b.plan;
  if (z->ranks == 1 || z->stage == 0 || z->stage == 3) return;
  tws_operand operands[2] = {tws_read(plan->parameters, z->partition * (uint64_t)z->index, z->partition),
                             tws_all(&l->b, plan->parameters, TWS_WRITE)};
  tws_builder_collective(&l->b, l->gather_stream, TWS_COLLECTIVE_ALL_GATHER, z->group, l->config->dtype,
                         z->aligned * tws_dtype_bytes(l->config->dtype), 1, 0, operands, 2);
}

void tws_lower_step(tws_lower *l) {
  tws_zero *z = &l->zero;
  tws_plan *plan = l->b.plan;
  l->b.phase = TWS_PHASE_STEP;
  l->b.module = TWS_NONE;
  tws_zero_pad_gradients(l);
  /* this rank's own part of the reduced gradients */
  uint64_t part = z->partition * (uint64_t)(z->stage == 0 ? 0 : z->index);
  uint64_t gradient = z->flat_gradients && z->stage < 3 ? part : 0;
  tws_exchange_partial_gradients(l);
  tws_zero_kept_runs(l, copies_of, add_squares);
  share_metrics(l);
  tws_work work = tws_kernel_work(TWS_KERNEL_CLIP, TWS_F32, 0);
  work.f[0] = l->config->gradient_clipping;
  tws_operand operands[2] = {tws_all(&l->b, plan->metrics, TWS_READ_WRITE)};
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, tws_lower_scaled(l, &work, operands, 1));
  if (z->stage == 3) {
    update_sub_groups(l);
  } else {
    update(l, gradient, part, 0, z->partition);
    gather_parameters(l);
  }
}
