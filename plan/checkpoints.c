/* Decides where activation checkpoints (inputs of recomputed layers) are stored until backward
 * (activation_checkpointing): whole on the device; or, with partition_activations, one part on each tensor-parallel
 * rank if all of these have equal copies, gathered when it is needed (Rajbhandari et al. 2020, section 6.1), or, with
 * cpu_checkpointing, in the host's page-locked memory. A checkpoint is copied to the host after its last use in the
 * forward pass. In the backward pass the next checkpoint is copied back while a layer runs. */
#include "plan/checkpoints.h"

/* Returns 1 if a module, or the module that is fused with it, uses a value. */
static int touches(const tws_lower *l, uint32_t module, uint32_t value) {
  if (module == TWS_NONE) return 0;
  const tws_module *m = &l->network->modules[module];
  for (int i = 0; i < TWS_MODULE_INS; i++)
    if (m->in[i] == value) return 1;
  for (int i = 0; i < TWS_MODULE_OUTS; i++)
    if (m->out[i] == value) return 1;
  return 0;
}

static void note_uses(tws_lower *l, uint32_t module, uint32_t visit, int backward) {
  tws_checkpoints *c = &l->checkpoints;
  if (module == TWS_NONE) return;
  const tws_module *m = &l->network->modules[module];
  for (int i = 0; i < TWS_MODULE_INS + TWS_MODULE_OUTS; i++) {
    const uint32_t v = i < TWS_MODULE_INS ? m->in[i] : m->out[i - TWS_MODULE_INS];
    if (v == TWS_NONE) continue;
    if (!backward)
      c->last[v] = visit;
    else if (c->first[v] == TWS_NONE)
      c->first[v] = visit;
  }
}

/* Finds the first and the last visit of a chunk that use each value. */
static void look_through(tws_lower *l) {
  tws_checkpoints *c = &l->checkpoints;
  const tws_chunk *chunk = l->pipeline.chunk;
  for (uint32_t v = 0; v < l->network->value_count; v++) c->last[v] = c->first[v] = TWS_NONE;
  for (uint32_t i = 0; i < chunk->visits.count; i++) {
    const tws_visit *visit = &chunk->visits.items[i];
    note_uses(l, visit->module, i, i >= chunk->forward_visits);
    note_uses(l, visit->fused_with, i, i >= chunk->forward_visits);
  }
  c->of = chunk;
}

void tws_checkpoints_begin(tws_lower *l) {
  tws_checkpoints *c = &l->checkpoints;
  const int on_host = l->config->cpu_checkpointing;
  const int parts = l->config->partition_activations ? l->sharding.position.ranks[TWS_AXIS_MODEL] : 1;
  if (l->config->recompute != TWS_RECOMPUTE_FULL || l->extent.evaluates || (!on_host && parts == 1)) return;
  c->on = 1;
  c->parts = parts;
  c->tier = on_host ? TWS_TIER_PINNED : TWS_TIER_DEVICE;
  c->last = tws_lower_memory(l, l->network->value_count, sizeof *c->last);
  c->first = tws_lower_memory(l, l->network->value_count, sizeof *c->first);
}

/* Returns the number of tensor-parallel ranks among which a checkpoint is partitioned; 1 if their copies of it are not
 * equal, or if their number does not divide its elements. */
static int parts_of(const tws_lower *l, uint32_t value) {
  const tws_checkpoints *c = &l->checkpoints;
  const int same = l->local.values[value].placement.on[TWS_AXIS_MODEL] == TWS_PLACED_REPLICATED;
  return same && tws_value_elements(l, value) % (uint64_t)c->parts == 0 ? c->parts : 1;
}

static uint32_t place_for(tws_lower *l, uint32_t value, tws_tier tier, uint64_t elements) {
  const uint32_t buffer = tws_builder_buffer(&l->b, l->network->values[value].name, TWS_CATEGORY_CHECKPOINT,
                                             tws_value_dtype(l, value), elements, TWS_LIFETIME_OPS);
  if (l->b.failed == TWS_OK) l->b.plan->buffers[buffer].tier = (uint8_t)tier;
  return buffer;
}

static int is_shared(const tws_lower *l, uint32_t value) {
  for (uint32_t v = 0; v < l->network->value_count; v++)
    if (v != value && l->values.buffer[v] == l->values.buffer[value]) return 1;
  return 0;
}

static void send_away(tws_lower *l, uint32_t value) {
  const tws_checkpoints *c = &l->checkpoints;
  const int parts = parts_of(l, value);
  if (l->values.buffer[value] == TWS_NONE || is_shared(l, value) || (parts == 1 && c->tier == TWS_TIER_DEVICE)) return;
  const uint64_t part = tws_value_elements(l, value) / (uint64_t)parts;
  const int index = parts > 1 ? l->sharding.position.index[TWS_AXIS_MODEL] : 0;
  const uint32_t away = place_for(l, value, c->tier, part);
  tws_builder_copy(&l->b, c->tier == TWS_TIER_DEVICE ? TWS_STREAM_COMPUTE : TWS_STREAM_COPY_OUT,
                   tws_read(l->values.buffer[value], part * (uint64_t)index, part), tws_write(away, 0, part));
  tws_value_place(l, value, away);
  l->pipeline.context->location[value] = TWS_CHECKPOINT_STORED;
}

/* Copies a checkpoint back to the device: copies the part that the host has, and gathers the parts of other ranks when
 * the whole checkpoint is needed. */
static void bring_back(tws_lower *l, uint32_t value) {
  const uint64_t part = tws_value_elements(l, value) / (uint64_t)parts_of(l, value);
  if (l->checkpoints.tier == TWS_TIER_DEVICE) return;
  const uint32_t here = place_for(l, value, TWS_TIER_DEVICE, part);
  tws_builder_copy(&l->b, TWS_STREAM_COPY_IN, tws_read(l->values.buffer[value], 0, part), tws_write(here, 0, part));
  tws_value_place(l, value, here);
}

static void gather_back(tws_lower *l, uint32_t value, tws_stream stream) {
  const int parts = parts_of(l, value);
  const uint64_t elements = tws_value_elements(l, value);
  if (parts > 1) {
    const uint32_t whole = place_for(l, value, TWS_TIER_DEVICE, elements);
    tws_exchange_gather_into(l, stream, tws_read(l->values.buffer[value], 0, elements / (uint64_t)parts),
                             tws_write(whole, 0, elements));
    tws_value_place(l, value, whole);
  }
  l->pipeline.context->location[value] = TWS_CHECKPOINT_ON_DEVICE;
}

/* Starts the copy of a checkpoint ahead of its use. The checkpoint is not gathered yet, since a gather that waits for
 * the copy from the host would delay computation and exchanges. */
static void come_closer(tws_lower *l, uint32_t value) {
  if (l->pipeline.context->location[value] != TWS_CHECKPOINT_STORED) return;
  bring_back(l, value);
  l->pipeline.context->location[value] = TWS_CHECKPOINT_RETURNING;
  if (l->checkpoints.tier == TWS_TIER_DEVICE || parts_of(l, value) == 1) gather_back(l, value, l->streams.exchange);
}

void tws_checkpoints_after(tws_lower *l, uint32_t visit) {
  tws_checkpoints *c = &l->checkpoints;
  if (!c->on || visit >= l->pipeline.chunk->forward_visits || l->b.failed != TWS_OK) return;
  if (c->of != l->pipeline.chunk) look_through(l);
  const tws_visit *at = &l->pipeline.chunk->visits.items[visit];
  if (at->module == TWS_NONE) return;
  for (uint32_t v = 0; v < l->network->value_count; v++)
    if (c->last[v] == visit && v != l->pipeline.chunk->out_value && l->kept[v] == TWS_KEPT_CHECKPOINT &&
        c->first[v] != TWS_NONE && (touches(l, at->module, v) || touches(l, at->fused_with, v)))
      send_away(l, v);
}

/* Copies back the checkpoints that this visit reads, and prefetches the next ones. */
void tws_checkpoints_before(tws_lower *l, uint32_t visit) {
  tws_checkpoints *c = &l->checkpoints;
  if (!c->on || visit < l->pipeline.chunk->forward_visits || l->b.failed != TWS_OK) return;
  if (c->of != l->pipeline.chunk) look_through(l);
  tws_lower_at_visit(l, &l->pipeline.chunk->visits.items[visit]);
  const uint8_t *away = l->pipeline.context->location;
  int needed = visit == l->pipeline.chunk->forward_visits;
  for (uint32_t v = 0; v < l->network->value_count; v++) {
    if (c->first[v] != visit || l->kept[v] != TWS_KEPT_CHECKPOINT) continue;
    needed = 1;
    come_closer(l, v);
    if (away[v] == TWS_CHECKPOINT_RETURNING) gather_back(l, v, TWS_STREAM_COMPUTE);
  }
  if (!needed) return;
  uint32_t next = TWS_NONE;
  for (uint32_t v = 0; v < l->network->value_count; v++)
    if (away[v] == TWS_CHECKPOINT_STORED && c->first[v] > visit && c->first[v] < next) next = c->first[v];
  for (uint32_t v = 0; v < l->network->value_count && next != TWS_NONE; v++)
    if (c->first[v] == next) come_closer(l, v);
}
