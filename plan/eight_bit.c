#include "plan/eight_bit.h"

#include "base/dynamic_map.h"
#include "models/operator.h"
#include "plan/zero.h"

_Static_assert((int)TWS_STATE_BLOCK == (int)TWS_DYNAMIC_BLOCK, "scales of the state are those of the kernel's blocks");

const char *const tws_eight_bit_others[2] = {"first moments of small tensors", "second moments of small tensors"};

static int is_used(const tws_lower *l) {
  return tws_optimizer_of(l->config->optimizer)->eight_bits;
}

int tws_has_eight_bits(const tws_lower *l, uint32_t param) {
  enum { LEAST = 4096 }; /* bitsandbytes has no such states of smaller tensors, whatever min_8bit_size is */
  const int64_t elements = tws_param_numel(&l->network->params[param]);
  tws_config own;
  if (!is_used(l) || elements < LEAST || elements % TWS_STATE_BLOCK != 0) return 0;
  tws_config_of_param_group(l->config, l->network->params[param].param_group, &own);
  return own.optim_bits == 8 && elements >= own.min_8bit_size;
}

uint64_t tws_eight_bit_aligned(uint64_t total, int ranks) {
  const uint64_t unit = (uint64_t)TWS_STATE_BLOCK * (uint64_t)ranks;
  return (total + unit - 1) / unit * unit;
}

uint64_t tws_eight_bit_begin(tws_lower *l) {
  static const char *const codes[2] = {"8-bit first moments", "8-bit second moments"};
  static const char *const scales[2] = {"scales of first moments", "scales of second moments"};
  tws_eight_bit *e = &l->moments.eight_bit;
  for (uint32_t k = 0; k < l->zero.trained_count; k++)
    if (l->zero.classes[k].eight_bits) e->elements += l->zero.classes[k].partition;
  for (int i = 0; i < 2 && is_used(l); i++) { /* on all ranks, since checkpoints number the entries */
    tws_state_entry entry = {.name = scales[i],
                             .dtype = TWS_F32,
                             .category = TWS_CATEGORY_MOMENT,
                             .role = TWS_ELEMENTS_BLOCKS,
                             .initial = TWS_INITIAL_ZERO,
                             .checkpointed = 1,
                             .elements = e->elements / TWS_STATE_BLOCK};
    e->scales[i] = tws_builder_state(&l->b, &entry);
    entry.name = codes[i];
    entry.dtype = TWS_U8;
    entry.role = TWS_ELEMENTS_OWNED;
    entry.elements = e->elements;
    entry.scales = 1 + tws_state_find(l->b.plan->state, scales[i]);
    e->codes[i] = tws_builder_state(&l->b, &entry);
  }
  return e->elements;
}

void tws_eight_bit_update(tws_lower *l, const tws_zero_class *c, uint64_t at, uint64_t count) {
  const tws_plan *plan = l->b.plan;
  const tws_eight_bit *e = &l->moments.eight_bit;
  const uint64_t kept = c->kept + at - tws_zero_kept_first(&l->zero, c);
  const int master = plan->master != TWS_NONE, half = tws_config_half_masters(l->config);
  tws_config own;
  tws_config_of_param_group(l->config, c->param_group, &own);
  tws_work work = tws_kernel_work(TWS_KERNEL_ADAMW8, l->config->accumulation_dtype, half ? TWS_HALF_WEIGHTS : 0);
  work.dtype2 = (uint8_t)l->config->dtype;
  work.d[0] = (int64_t)count;
  work.f[0] = own.epsilon, work.f[1] = own.weight_decay;
  const tws_operand grad = tws_read(plan->gradients, l->zero.flat_gradients ? at : kept, count);
  work.dtype = plan->buffers[grad.buffer].dtype;
  const uint64_t block = kept / TWS_STATE_BLOCK, blocks = count / TWS_STATE_BLOCK;
  tws_operand operands[9] = {tws_update(master ? plan->master : plan->parameters, master ? kept : at, count),
                             tws_update(e->codes[0], kept, count),
                             tws_update(e->codes[1], kept, count),
                             tws_update(e->scales[0], block, blocks),
                             tws_update(e->scales[1], block, blocks),
                             grad,
                             tws_hyper_of(plan->hyper, c->param_group),
                             tws_read(plan->metrics, 0, TWS_METRIC_COUNT)};
  int n = 8;
  if (master && !half) operands[n++] = tws_write(plan->parameters, at, count);
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, n);
  tws_builder_updates(&l->b, 5, kept, count);
}
