/* The end of a step: gradient norm, clipping, AdamW on what this rank owns, and the gathering of what was updated.
 * All scalars stay in the plan's two small buffers, so that nothing here needs the host. */
#include <string.h>

#include "plan/zero.h"
#include "plan/zero_partition.h"

static void share_metrics(tws_lower *l) {
  if (l->zero.ranks == 1) {
    tws_pipeline_share_metrics(l);
    return;
  }
  /* Stages with whole gradients have the whole norm; the others only a part of the sum of squares. */
  uint64_t count = l->zero.stage == 0 ? 2 : 3;
  tws_operand operand = tws_update(l->b.plan->metrics, TWS_METRIC_LOSS, count);
  tws_builder_collective(&l->b, TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_REDUCE, l->zero.group, TWS_F64,
                         count * sizeof(double), 1, 0, &operand, 1);
  tws_pipeline_share_metrics(l);
}

static void add_square_range(tws_lower *l, uint64_t first, uint64_t count) {
  if (!count) return;
  tws_work work = tws_kernel_work(TWS_KERNEL_SQUARED_NORM, l->config->accumulation_dtype, 0);
  work.d[0] = (int64_t)count;
  work.f[0] = 1;
  tws_operand norm[2] = {tws_read(l->b.plan->gradients, first, count),
                         tws_update(l->b.plan->metrics, TWS_METRIC_SQUARES, 1)};
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, norm, 2);
}

/* Squares of this rank's own gradients, which begin at element `at` of the gradient buffer and at element `part` of the
 * flat order. A parameter that an earlier pipeline stage has too counts there. */
static void add_squares(tws_lower *l, uint64_t at, uint64_t part) {
  const tws_zero *z = &l->zero;
  uint64_t begin = part, end = part + z->partition;
  for (uint32_t i = 0; i < l->network->param_count && z->stage < 3; i++) {
    uint32_t p = (uint32_t)z->order[i];
    if (!z->uses[p] || !(l->param_stages[p] & 1)) continue;
    uint64_t first = z->flat_offset[p], last = first + (uint64_t)tws_param_numel(&l->network->params[p]);
    if (last <= begin || first >= end) continue;
    if (first > begin) add_square_range(l, at + begin - part, first - begin);
    begin = last < end ? last : end;
  }
  add_square_range(l, at + begin - part, end - begin);
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
  if (!group_of) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return;
  }
  tws_zero3_sub_groups(n, z->part, l->config->zero.sub_group_size, group_of);
  for (int p = 0; p < n;) {
    uint64_t first = z->flat_offset[p], count = 0;
    int group = group_of[p];
    for (; p < n && group_of[p] == group; p++) count += (uint64_t)z->part[p];
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
  add_squares(l, gradient, part);
  share_metrics(l);
  tws_work work = tws_kernel_work(TWS_KERNEL_CLIP, TWS_F32, 0);
  work.f[0] = l->config->gradient_clipping;
  tws_operand metrics = tws_all(&l->b, plan->metrics, TWS_READ_WRITE);
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, &metrics, 1);
  if (z->stage == 3) {
    update_sub_groups(l);
  } else {
    update(l, gradient, part, 0, z->partition);
    gather_parameters(l);
  }
}
