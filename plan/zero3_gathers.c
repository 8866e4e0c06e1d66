/* Emits the gathers and releases of whole parameters of ZeRO-3, at the visits that plan/zero3_schedule.h determines. If
 * shards are not on the device, the rank's shard is first copied to its position in the whole parameter. */
#include "plan/offload.h"
#include "plan/turns.h"
#include "plan/zero.h"

/* Makes the schedule of the visits of a chunk. */
static void make_schedule(tws_lower *l, const tws_visit_list *list, tws_zero3_schedule *schedule) {
  tws_zero *z = &l->zero;
  tws_zero3_visit *visits = tws_lower_memory(l, list->count, sizeof *visits);
  uint32_t *params = tws_lower_memory(l, TWS_MODULE_PARAMS * (size_t)list->count, sizeof *params);
  int64_t *sizes = tws_lower_memory(l, l->network->param_count, sizeof *sizes);
  if (l->b.failed != TWS_OK) return;
  for (uint32_t p = 0; p < l->network->param_count; p++) sizes[p] = (int64_t)tws_zero_numel(l, p);
  for (uint32_t i = 0; i < list->count; i++) {
    visits[i].params = params;
    if (list->items[i].module == TWS_NONE) continue;
    const tws_visit *visit = &list->items[i];
    const tws_module *m = &l->network->modules[visit->module];
    for (int k = 0; k < TWS_MODULE_PARAMS; k++) {
      uint32_t at = (uint32_t)visits[i].count;
      if (m->param[k] == TWS_NONE) continue;
      const uint32_t param = tws_visit_param(l, m->param[k], visit->weight_tile);
      for (; at > 0 && params[at - 1] > param; at--) params[at] = params[at - 1]; /* keeps params ascending */
      params[at] = param;
      visits[i].count++;
    }
    params += visits[i].count;
  }
  tws_zero3_limits limits = {.prefetch_bucket_size = l->config->zero.prefetch_bucket_size,
                             .max_live_parameters = l->config->zero.max_live_parameters,
                             .max_reuse_distance = l->config->zero.max_reuse_distance};
  tws_code code = z->unit ? tws_zero3_make_unit_schedule(visits, list->count, l->network->param_count, sizes, z->unit,
                                                         l->scratch, schedule, l->b.err)
                          : tws_zero3_make_schedule(visits, list->count, l->network->param_count, sizes, z->persistent,
                                                    &limits, 1, l->scratch, schedule, l->b.err);
  if (code != TWS_OK) l->b.failed = code;
}

/* Returns the rank's shard of an unquantized parameter, which the gather sends. */
static tws_operand own_part(tws_lower *l, const tws_zero_class *c, uint32_t p) {
  const tws_zero *z = &l->zero;
  const uint64_t part = (uint64_t)z->part[p];
  if (tws_secondary_has(z, p)) return tws_read(z->secondary.buffer, z->secondary.offset[p], tws_secondary_part(z, p));
  if (l->offload.param_tier != TWS_TIER_DEVICE)
    return tws_fetch(l, p, tws_write(z->gathered[p], part * (uint64_t)c->index, part));
  return tws_read(l->b.plan->parameters, z->flat_offset[p], part);
}

/* Writes the operands of a parameter's gather, two for each segment: the rank's part, and the whole. Returns the number
 * of operands. */
static int segments_of(tws_lower *l, const tws_zero_class *c, uint32_t p, tws_operand *operands) {
  tws_zero *z = &l->zero;
  const uint64_t part = (uint64_t)z->part[p], ranks = (uint64_t)c->ranks;
  const char *name = l->network->params[p].name;
  if (!tws_is_quantized(l, p)) {
    z->gathered[p] =
        tws_builder_buffer(&l->b, name, TWS_CATEGORY_GATHERED, l->config->dtype, part * ranks, TWS_LIFETIME_OPS);
    const tws_operand own = own_part(l, c, p);
    if (tws_gathers_codes(l, p)) return tws_codes_segments(l, p, own, operands);
    operands[0] = own;
    operands[1] = tws_all(&l->b, z->gathered[p], TWS_WRITE);
    return 2;
  }
  static const char *const names[TWS_QUANTIZED_PARTS] = {NULL, "gathered scales", "gathered means"};
  tws_operand own[TWS_QUANTIZED_PARTS];
  const int parts = tws_quantized_stored(&l->b.plan->quantized, z->flat_offset[p], part, own);
  for (int i = 0; i < parts && l->b.failed == TWS_OK; i++) {
    z->gathered_parts[p][i] =
        tws_builder_buffer(&l->b, i ? names[i] : name, TWS_CATEGORY_GATHERED,
                           (tws_dtype)l->b.plan->buffers[own[i].buffer].dtype, own[i].count * ranks, TWS_LIFETIME_OPS);
    operands[2 * i] = own[i];
    operands[2 * i + 1] = tws_all(&l->b, z->gathered_parts[p][i], TWS_WRITE);
  }
  z->gathered[p] = z->gathered_parts[p][0];
  return 2 * parts;
}

static void gather_at_once(tws_lower *l, const uint32_t *params, uint32_t count) {
  enum { FEW = 8, OPERANDS = 2 * TWS_QUANTIZED_PARTS }; /* up to FEW parameters (mostly a module's) are not allocated */
  tws_zero *z = &l->zero;
  if (l->b.failed != TWS_OK) return;
  const tws_zero_class *c = tws_zero_class_of(z, params[0]);
  tws_operand few[OPERANDS * FEW], *operands = count > FEW ? tws_calloc(OPERANDS * (size_t)count, sizeof *few) : few;
  if (!operands) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return;
  }
  const int elsewhere = l->offload.param_tier != TWS_TIER_DEVICE;
  int n = 0;
  for (uint32_t i = 0; i < count; i++) n += segments_of(l, c, params[i], operands + n);
  if ((c->ranks > 1 || !elsewhere) && l->b.failed == TWS_OK)
    tws_groups_gather(l, tws_secondary_has(z, params[0]) ? z->secondary.group : c->group, operands, n);
  for (uint32_t i = 0; i < count && l->b.failed == TWS_OK; i++) tws_codes_decode(l, params[i]);
  for (uint32_t i = 0; i < count && l->b.failed == TWS_OK; i++) tws_secondary_keep(l, params[i]);
  if (operands != few) tws_free(operands);
}

static int gathered_alike(const tws_zero *z, uint32_t p, uint32_t q) {
  return tws_zero_class_of(z, p)->axes == tws_zero_class_of(z, q)->axes &&
         tws_secondary_has(z, p) == tws_secondary_has(z, q);
}

/* Returns 1 if all ZeRO classes have the same ranks, so that there is one class apart from frozen parameters. */
static int are_of_same_ranks(const tws_zero *z) {
  for (uint32_t k = 1; k < z->class_count; k++)
    if (z->classes[k].axes != z->classes[0].axes) return 0;
  return z->trained_count == 1;
}

/* Emits the gathers of parameters. Parameters that are adjacent in the list are gathered by one collective if they are
 * partitioned among the same ranks and are gathered from the same (primary or secondary) partition. */
static void gather_params(tws_lower *l, const uint32_t *params, uint32_t count) {
  const uint32_t most = l->config->zero.allgather_sequential ? 1 : count;
  const int alike = are_of_same_ranks(&l->zero) && l->zero.secondary.buffer == TWS_NONE;
  for (uint32_t i = 0, n; i < count; i += n) {
    for (n = alike && i + most <= count ? most : 1;
         n < most && i + n < count && gathered_alike(&l->zero, params[i + n], params[i]);)
      n++; /* the parameter joins the collective of the previous one */
    gather_at_once(l, params + i, n);
  }
}

/* Lists the parameters that a micro-batch gathers, in the order of the gathers, so that reads from the disk can be
 * issued ahead of them. */
static void list_fetches(tws_lower *l) {
  const tws_zero *z = &l->zero;
  const tws_zero3_schedule *schedule = &z->schedules[0];
  const size_t most = schedule->param_count + (size_t)l->network->param_count;
  uint32_t *params = tws_lower_memory(l, most, sizeof *params), count = 0;
  if (l->offload.param_tier == TWS_TIER_DEVICE || l->b.failed != TWS_OK) return;
  for (uint32_t p = 0; p < l->network->param_count; p++)
    if (z->persistent[p]) params[count++] = p;
  tws_fetch_list_make(l, TWS_FETCH_STEP, params, count);
  count = 0;
  for (uint32_t v = 0; v < l->pipeline.chunk->visits.count; v++) {
    const tws_zero3_actions *a = &schedule->actions[v];
    for (uint32_t i = 0; i < a->gather_count; i++) params[count++] = schedule->params[a->gather_first + i];
    for (uint32_t i = 0; i < a->prefetch_count; i++) params[count++] = schedule->params[a->prefetch_first + i];
  }
  tws_fetch_list_make(l, TWS_FETCH_MICRO_BATCH, params, count);
}

void tws_zero3_gathers_begin(tws_lower *l) {
  const int turns = tws_turns(l);
  l->zero.schedules = tws_lower_memory(l, (size_t)turns, sizeof *l->zero.schedules);
  for (int t = 0; t < turns && l->b.failed == TWS_OK; t++)
    make_schedule(l, &l->pipeline.chunks[t].visits, &l->zero.schedules[t]);
  if (l->b.failed != TWS_OK) return;
  tws_secondary_begin(l);
  tws_codes_begin(l);
  tws_quantized_reduce_begin(l);
  list_fetches(l);
}

/* Returns 1 if a module of this turn or a later one uses the parameter. */
static int is_used_from(const tws_lower *l, uint32_t param, int turn) {
  for (uint32_t m = l->pipeline.chunks[turn].first; m < l->network->module_count; m++)
    for (int k = 0; k < TWS_MODULE_PARAMS; k++)
      if (l->network->modules[m].param[k] == param) return 1;
  return 0;
}

void tws_zero_step_begin(tws_lower *l, int turn) {
  tws_zero *z = &l->zero;
  if (z->stage != 3 || (turn > 0 && l->extent.evaluates)) return;
  uint32_t count = 0, *params = tws_lower_memory(l, l->network->param_count, sizeof *params);
  for (uint32_t p = 0; params && p < l->network->param_count; p++) {
    const int updated = turn == 0 || (!tws_is_frozen(l, p) && l->network->params[p].turn == turn - 1);
    if (z->persistent[p] && updated && (turn == 0 || is_used_from(l, p, turn))) params[count++] = p;
  }
  tws_fetch_begin(l, TWS_FETCH_STEP);
  gather_params(l, params, count);
}

void tws_zero_before(tws_lower *l, uint32_t visit) {
  if (l->zero.stage != 3) return;
  const tws_zero3_schedule *schedule = &l->zero.schedules[l->pipeline.turn];
  const tws_zero3_actions *actions = &schedule->actions[visit];
  tws_lower_at_visit(l, &l->pipeline.chunk->visits.items[visit]);
  gather_params(l, schedule->params + actions->gather_first, actions->gather_count);
  gather_params(l, schedule->params + actions->prefetch_first, actions->prefetch_count);
}

void tws_zero_after(tws_lower *l, uint32_t visit) {
  if (l->zero.stage != 3) return;
  const tws_zero3_schedule *schedule = &l->zero.schedules[l->pipeline.turn];
  const tws_zero3_actions *actions = &schedule->actions[visit];
  const uint32_t *params = schedule->params + actions->release_first;
  for (uint32_t i = 0; i < actions->release_count; i++) l->zero.gathered[params[i]] = TWS_NONE;
}
