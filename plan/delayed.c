/* Delayed parameter update (Ren et al. 2021, "ZeRO-Offload", section 5.2): the host updates the weights with the
 * gradients of the previous step while the device computes the gradients of this step.
 *
 *   first       master weights are updated with the previous step's gradients, hyperparameters and clipping
 *   meanwhile   forward and backward passes run with unchanged weights
 *   last        this step's gradients and scalars replace those; the updated weights are copied to the device and
 *               gathered
 *
 * If no gradients are left (at the start, and after TWS_PROGRAM_APPLY) the clipping coefficient is 0, and updates
 * change nothing. The program APPLY runs only the first and the last part, after which no update is pending. */
#include "plan/offload.h"

uint32_t tws_delayed_scalar(tws_lower *l, const char *name, tws_dtype dtype, uint64_t elements) {
  const tws_state_entry entry = {.name = name,
                                 .tier = (uint8_t)l->offload.tier,
                                 .dtype = (uint8_t)dtype,
                                 .category = TWS_CATEGORY_INPUT,
                                 .role = TWS_ELEMENTS_NONE,
                                 .initial = TWS_INITIAL_ZERO,
                                 .checkpointed = 1,
                                 .optional = 1,
                                 .everywhere = 1,
                                 .elements = elements};
  return tws_builder_state(&l->b, &entry);
}

void tws_delayed_begin(tws_lower *l, uint64_t kept) {
  tws_delayed *d = &l->offload.delayed;
  d->on = l->config->delayed_update && l->offload.optimizer;
  if (!d->on) return;
  d->gradients = tws_offload_waiting_gradients(l, TWS_DELAYED_GRADIENTS, l->config->accumulation_dtype, kept);
  tws_delayed_scalars(l, "delayed hyperparameters", "delayed metrics");
}

void tws_delayed_scalars(tws_lower *l, const char *hyper, const char *metrics) {
  tws_delayed *d = &l->offload.delayed;
  d->hyper = tws_delayed_scalar(l, hyper, TWS_F32, tws_hyper_count(l->config));
  d->metrics = tws_delayed_scalar(l, metrics, TWS_F64, TWS_METRIC_COUNT);
}

void tws_delayed_update(tws_lower *l) {
  const tws_delayed *d = &l->offload.delayed;
  if (d->on && !l->extent.evaluates) tws_delayed_run(l, d->gradients);
}

void tws_delayed_run(tws_lower *l, uint32_t gradients) {
  tws_offload *o = &l->offload;
  if (l->b.failed != TWS_OK) return;
  const tws_offload now = *o;
  const tws_phase phase = l->b.phase;
  l->b.phase = TWS_PHASE_STEP;
  o->gradients = gradients;
  o->hyper = o->delayed.hyper;
  o->metrics = o->delayed.metrics;
  o->delayed.on = 1; /* 1: updated weights stay on the host until tws_offload_store() emits their copies */
  tws_lower_update(l);
  o->delayed.on = now.delayed.on;
  o->gradients = now.gradients;
  o->hyper = now.hyper;
  o->metrics = now.metrics;
  l->b.phase = phase;
  l->b.plan->previous_step_ops = l->b.plan->op_count;
}

void tws_delayed_keep(tws_lower *l) {
  const tws_offload *o = &l->offload;
  if (o->gradients == o->delayed.gradients || l->b.failed != TWS_OK) return;
  tws_builder_copy(&l->b, TWS_STREAM_HOST, tws_all(&l->b, o->gradients, TWS_READ),
                   tws_all(&l->b, o->delayed.gradients, TWS_WRITE));
}

void tws_delayed_clear(tws_lower *l) {
  /* the engine has set all metrics to 0, so the clipping coefficient that is copied below is 0 */
  const tws_offload *o = &l->offload;
  if (l->b.failed != TWS_OK) return;
  tws_builder_copy(&l->b, TWS_STREAM_COPY_OUT, tws_read(l->b.plan->metrics, 0, TWS_METRIC_COUNT),
                   tws_write(o->delayed.metrics, 0, TWS_METRIC_COUNT));
}

void tws_delayed_defer_copy(tws_lower *l, tws_operand from, tws_operand to) {
  tws_delayed *d = &l->offload.delayed;
  tws_deferred_copy *held = tws_lower_memory(l, 1, sizeof *held);
  if (!held) return;
  from.access = TWS_READ;
  *held = (tws_deferred_copy){.from = from, .to = to, .next = d->first};
  d->first = held;
}
