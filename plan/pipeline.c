/* Lowers pipeline parallelism: the modules of a stage, its micro-batches in the schedule's order, messages to adjacent
 * stages, and the reduction of tied weights in the optimizer phase. A job without a pipeline is one stage with one
 * chunk, whose micro-batches run forward and backward one after another. */
#include <stdio.h>
#include <string.h>

#include "plan/checkpoints.h"
#include "plan/repetition.h"
#include "plan/lower.h"
#include "plan/pipeline_grid.h"
#include "plan/pipeline_partition.h"
#include "plan/pipeline_program.h"
#include "plan/turns.h"

static tws_code no_memory(tws_lower *l) {
  return tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
}

/* ---- modules of a stage ---- */

/* Returns 1 for modules that process logits: they stay on the stage of the layer that computes them, since logits are
 * the largest value. */
static int belongs_to_logits(tws_module_type type) {
  return type == TWS_MODULE_LOSS || type == TWS_MODULE_MULTIPLY || type == TWS_MODULE_SOFTCAP ||
         type == TWS_MODULE_SPANS;
}

/* Returns 1 for modules of a block of a transformer. In a network that is described by a network file, each layer is a
 * single module, or a block with the type of its first module. */
static int is_block(const tws_network *network, const tws_module *module) {
  return module->layer >= 0 && network->layer_stride > 0;
}

/* Lists the layers as DeepSpeed's pipeline modules do: the embedding, each transformer layer, then each later module.
 * No layer ends before an in-place ADD, which uses the layer's output buffer, nor at a boundary that more than one
 * value crosses: all modules that read the output of an encoder are in one layer with the encoder's last module.
 * `starts` has room for one more entry than there are layers. Returns their number. */
static int list_layers(const tws_network *network, const uint8_t *whole, uint32_t *starts, tws_pipeline_layer *layers) {
  int count = 0;
  for (uint32_t m = 0; m < network->module_count; m++) {
    const tws_module *module = &network->modules[m], *before = m ? module - 1 : NULL;
    int begins = !before || module->layer != before->layer ||
                 (module->layer == -2 && !belongs_to_logits(module->type) && before->type != TWS_MODULE_EXCHANGE);
    if (begins && (!before || !whole[m])) {
      starts[count] = m;
      layers[count++] = (tws_pipeline_layer){.type = is_block(network, module) ? "TransformerLayer"
                                                                               : tws_module_type_name(module->type)};
    }
    for (int i = 0; i < TWS_MODULE_PARAMS; i++) {
      if (module->param[i] != TWS_NONE) layers[count - 1].params += tws_param_numel(&network->params[module->param[i]]);
    }
  }
  starts[count] = network->module_count;
  return count;
}

/* Returns the only value that crosses a boundary between modules, or TWS_NONE if several do. */
static uint32_t value_across(const tws_network *network, uint32_t boundary) {
  uint32_t found = TWS_NONE;
  for (uint32_t m = boundary; m < network->module_count; m++) {
    for (int i = 0; i < TWS_MODULE_INS; i++) {
      uint32_t v = network->modules[m].in[i];
      if (v == TWS_NONE || network->values[v].producer >= boundary) continue;
      if (found != TWS_NONE && found != v) return TWS_NONE;
      found = v;
    }
  }
  return found;
}

/* Returns, per module, 1 if more than one value crosses the boundary before it, so that no stage can begin with it. */
static uint8_t *find_crossings(const tws_network *network, tws_arena *arena) {
  uint32_t *last = tws_arena_alloc(arena, network->value_count + 1u, sizeof *last), crossing = 0;
  uint32_t *ended = tws_arena_alloc(arena, network->module_count + 1u, sizeof *ended);
  uint32_t *begun = tws_arena_alloc(arena, network->module_count + 1u, sizeof *begun);
  uint8_t *several = tws_arena_alloc(arena, network->module_count + 1u, 1);
  if (!last || !ended || !begun || !several) return NULL;
  for (uint32_t m = 0; m < network->module_count; m++)
    for (int i = 0; i < TWS_MODULE_INS; i++)
      if (network->modules[m].in[i] != TWS_NONE) last[network->modules[m].in[i]] = m;
  for (uint32_t v = 0; v < network->value_count; v++) {
    const uint32_t producer = network->values[v].producer;
    ended[last[v]] += last[v] > producer;
    begun[producer] += last[v] > producer;
  }
  for (uint32_t m = 0; m < network->module_count; m++) {
    several[m] = crossing > 1;
    crossing += begun[m] - ended[m];
  }
  return several;
}

/* The layers of a network, among which a pipeline chooses the boundaries of stages. */
typedef struct layer_list {
  uint32_t *starts; /* per layer: its first module; then the number of modules */
  tws_pipeline_layer *layers;
  int count;
} layer_list;

static tws_code find_layers(const tws_network *network, tws_arena *arena, layer_list *out, tws_error *err) {
  out->starts = tws_arena_alloc(arena, network->module_count + 1u, sizeof *out->starts);
  out->layers = tws_arena_alloc(arena, network->module_count + 1u, sizeof *out->layers);
  const uint8_t *several = find_crossings(network, arena);
  if (!out->starts || !out->layers || !several) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the layers");
  out->count = list_layers(network, several, out->starts, out->layers);
  return TWS_OK;
}

/* Returns the stage of a module, given the first module of each block. *block: a block at or before that of the module,
 * which the function advances. */
static int stage_of(const tws_lower *l, const uint32_t *first, int blocks, uint32_t m, int *block) {
  while (*block + 1 < blocks && first[*block + 1] <= m) ++*block;
  return tws_pipeline_block_stage(&l->pipeline.shape, *block);
}

/* Marks the stages that have a parameter, and returns their number. */
static int mark_stages(const tws_lower *l, const uint32_t *first, int blocks, uint32_t param, uint8_t *stages) {
  int block = 0, count = 0;
  memset(stages, 0, (size_t)l->pipeline.shape.stages);
  for (uint32_t m = 0; m < l->network->module_count; m++) {
    const int stage = stage_of(l, first, blocks, m, &block);
    for (int i = 0; i < TWS_MODULE_PARAMS; i++)
      if (l->network->modules[m].param[i] == param && !stages[stage]) stages[stage] = 1, count++;
  }
  return count;
}

/* Finds the parameters that are tied across stages. A stage reduces the gradients of all of its tied parameters in one
 * group, so that the same stages must have them. */
static tws_code find_shared(tws_lower *l, const uint32_t *first, int blocks, tws_error *err) {
  const int stages = l->pipeline.shape.stages;
  uint32_t *user = tws_lower_memory(l, l->network->param_count + 1u, sizeof *user);
  uint8_t *marked = tws_lower_memory(l, (size_t)stages, 1);
  l->pipeline.tied_stages = tws_lower_memory(l, (size_t)stages, 1);
  if (!user || !marked || !l->pipeline.tied_stages) return no_memory(l);
  int block = 0, found = 0;
  for (uint32_t m = 0; m < l->network->module_count && stages > 1; m++) {
    const uint32_t stage = (uint32_t)stage_of(l, first, blocks, m, &block);
    for (int i = 0; i < TWS_MODULE_PARAMS; i++) {
      const uint32_t p = l->network->modules[m].param[i];
      if (p == TWS_NONE || l->pipeline.param_stages[p]) continue;
      if (user[p] && user[p] != stage + 1) l->pipeline.param_stages[p] = 1;
      user[p] = stage + 1;
    }
  }
  for (uint32_t p = 0; p < l->network->param_count; p++) {
    if (!l->pipeline.param_stages[p]) continue;
    l->pipeline.param_stages[p] = (uint16_t)mark_stages(l, first, blocks, p, marked);
    if (!marked[l->pipeline.stage]) continue;
    if (found && memcmp(marked, l->pipeline.tied_stages, (size_t)stages) != 0)
      return tws_fail(err, TWS_UNSUPPORTED, "use fewer stages, or another pipeline.partition",
                      "%s is tied across other stages than another parameter of stage %d", l->network->params[p].name,
                      l->pipeline.stage);
    memcpy(l->pipeline.tied_stages, marked, (size_t)stages);
    found = 1;
  }
  return TWS_OK;
}

/* Makes a chunk of the modules that each turn of a step runs forward. */
static tws_code make_turns(tws_lower *l) {
  const int turns = tws_turns(l);
  l->pipeline.chunks = tws_lower_memory(l, (size_t)turns, sizeof *l->pipeline.chunks);
  l->pipeline.param_stages = tws_lower_memory(l, l->network->param_count, sizeof *l->pipeline.param_stages);
  if (!l->pipeline.chunks || !l->pipeline.param_stages) return no_memory(l);
  l->pipeline.chunk_count = turns;
  for (uint32_t m = 0, t = 0; t < (uint32_t)turns; t++) {
    tws_chunk *chunk = &l->pipeline.chunks[t];
    chunk->first = m;
    while (m < l->network->module_count && l->network->modules[m].forward_turn <= t) m++;
    chunk->end = m;
    chunk->in_value = chunk->out_value = TWS_NONE;
  }
  return TWS_OK;
}

static tws_code make_chunks(tws_lower *l, tws_error *err) {
  const tws_network *network = l->network;
  int blocks = l->pipeline.shape.stages * l->pipeline.shape.virtual_stages;
  layer_list list = {.count = 0};
  TWS_TRY(find_layers(network, l->scratch, &list, err));
  const uint32_t *starts = list.starts;
  const int count = list.count;
  uint32_t *first = tws_arena_alloc(l->scratch, (size_t)blocks + 1, sizeof *first);
  int *bounds = tws_arena_alloc(l->scratch, (size_t)blocks + 1, sizeof *bounds);
  l->pipeline.chunks =
      tws_arena_alloc(l->scratch, (size_t)l->pipeline.shape.virtual_stages, sizeof *l->pipeline.chunks);
  l->pipeline.param_stages = tws_arena_alloc(l->scratch, network->param_count + 1u, sizeof *l->pipeline.param_stages);
  if (!first || !bounds || !l->pipeline.chunks || !l->pipeline.param_stages) return no_memory(l);
  const char *method = l->config->pipeline_partition;
  if (method && strcmp(method, "best") == 0) method = NULL;
  if (count < blocks) {
    char hint[160];
    snprintf(
        hint, sizeof hint, "use %s%d stages in all%s", count > 1 ? "at most " : "", count,
        network->objective == TWS_OBJECTIVE_PAIRS ? ": a decoder, all of which reads the encoder, is one of them" : "");
    return tws_fail(err, TWS_INVALID, hint,
                    "%d pipeline stages with %d chunks each need %d layers, and the model has %d",
                    l->pipeline.shape.stages, l->pipeline.shape.virtual_stages, blocks, count);
  }
  TWS_TRY(tws_pipeline_partition(method, list.layers, count, blocks, bounds, err));
  for (int b = 0; b <= blocks; b++) first[b] = starts[bounds[b]];
  l->pipeline.chunk_count = l->pipeline.shape.virtual_stages;
  for (int b = 0; b < blocks; b++) {
    if (first[b] == first[b + 1]) {
      return tws_fail(err, TWS_INVALID, "use fewer stages, or pipeline.partition \"uniform\"",
                      "pipeline block %d of %d would have no layers", b, blocks);
    }
    if (tws_pipeline_block_stage(&l->pipeline.shape, b) != l->pipeline.stage) continue;
    tws_chunk *chunk = &l->pipeline.chunks[tws_pipeline_block_chunk(&l->pipeline.shape, b)];
    chunk->first = first[b];
    chunk->end = first[b + 1];
    chunk->in_value = b > 0 ? value_across(network, chunk->first) : TWS_NONE;
    chunk->out_value = b + 1 < blocks ? value_across(network, chunk->end) : TWS_NONE;
    if ((b > 0 && chunk->in_value == TWS_NONE) || (b + 1 < blocks && chunk->out_value == TWS_NONE)) {
      return tws_builder_fail(&l->b, TWS_INTERNAL, "more than one value crosses a pipeline boundary");
    }
  }
  return find_shared(l, first, blocks, err);
}

/* ---- groups: all pipeline stages; the stages that hold a tied parameter ---- */

static tws_code make_groups(tws_lower *l) {
  tws_plan *plan = l->b.plan;
  const int stages = l->pipeline.shape.stages;
  int count = 0;
  if (stages == 1) return TWS_OK;
  l->group[TWS_AXIS_PIPE] = tws_lower_group(l, TWS_AXES_PIPE);
  int *members = tws_lower_memory(l, (size_t)stages, sizeof *members);
  if (!members) return no_memory(l);
  for (int s = 0; s < stages; s++)
    if (l->pipeline.tied_stages[s])
      members[count++] = s == l->pipeline.stage ? plan->rank : tws_pipeline_grid_stage(&plan->topology, plan->rank, s);
  if (count > 0) l->group[TWS_AXIS_TIED] = tws_lower_add_group(l, TWS_AXES_TIED, members, count);
  return l->b.failed;
}

tws_code tws_pipeline_begin(tws_lower *l) {
  const tws_config *c = l->config;
  tws_plan *plan = l->b.plan;
  l->pipeline.stage = plan->position.index[TWS_AXIS_PIPE];
  l->pipeline.shape = tws_pipeline_shape_of(c, plan->position.ranks[TWS_AXIS_PIPE], l->extent.accumulation);
  l->pipeline.shape.forward_only = l->extent.evaluates;
  if (l->pipeline.shape.stages == 1 && l->pipeline.shape.virtual_stages > 1) {
    return tws_fail(l->b.err, TWS_INVALID, "set pipeline.stages, or twinspeed.virtual_stages to 1",
                    "virtual stages need a pipeline");
  }
  plan->stage = l->pipeline.stage;
  plan->stages = l->pipeline.shape.stages;
  l->b.repeats = tws_fold_repetition(&l->pipeline.shape, l->pipeline.stage, c->accumulation_steps);
  if (l->pipeline.shape.stages > 1) {
    if (c->zero.stage > 1) {
      return tws_fail(l->b.err, TWS_INVALID, "use ZeRO stage 1 with a pipeline, or stage 2 or 3 without one",
                      "ZeRO stage %d does not go with pipeline parallelism: it would reduce gradients in every "
                      "micro-batch",
                      c->zero.stage);
    }
    TWS_TRY(tws_pipeline_check(&l->pipeline.shape, l->b.err));
  }
  TWS_TRY(tws_turns(l) > 1 ? make_turns(l) : make_chunks(l, l->b.err));
  TWS_TRY(make_groups(l));
  for (int i = 0; i < l->pipeline.chunk_count; i++) {
    l->pipeline.chunk = &l->pipeline.chunks[i];
    TWS_TRY(tws_lower_visits(l, l->pipeline.chunk));
  }
  l->pipeline.chunk = &l->pipeline.chunks[0];
  return TWS_OK;
}

/* ---- contexts ---- */

static tws_context *new_context(tws_lower *l) {
  uint32_t values = l->network->value_count;
  tws_context *c = l->pipeline.free_contexts;
  if (c) {
    l->pipeline.free_contexts = c->next;
  } else {
    c = tws_arena_alloc(l->scratch, 1, sizeof *c);
    uint32_t *state = c ? tws_arena_alloc_unset(l->scratch, 3 * ((size_t)values + 1), sizeof *state) : NULL;
    if (c) c->location = tws_arena_alloc_unset(l->scratch, values + 1u, 1);
    if (c && l->float8.on) c->codes = tws_arena_alloc_unset(l->scratch, 2 * ((size_t)values + 1), sizeof *c->codes);
    if (!state || !c->location || (l->float8.on && !c->codes)) {
      no_memory(l);
      return NULL;
    }
    c->value_buffer = state;
    c->value_gradient = state + values + 1;
    c->value_narrow = state + 2 * ((size_t)values + 1);
  }
  memset(c->value_buffer, 0xff, values * sizeof *c->value_buffer); /* TWS_NONE */
  memset(c->value_gradient, 0xff, values * sizeof *c->value_gradient);
  memset(c->value_narrow, 0xff, values * sizeof *c->value_narrow);
  memset(c->location, 0, values);
  if (c->codes) memset(c->codes, 0xff, 2 * (size_t)values * sizeof *c->codes);
  c->part[0] = c->part[1] = TWS_NONE;
  c->deferred_count = 0;
  c->events = 0;
  return c;
}

static void free_context(tws_lower *l, tws_context *c) {
  c->next = l->pipeline.free_contexts;
  l->pipeline.free_contexts = c;
}

static void enter_context(tws_lower *l, tws_chunk *chunk, tws_context *context, uint32_t micro_batch) {
  l->pipeline.chunk = chunk;
  l->pipeline.context = context;
  tws_values_enter(l, context);
  l->b.micro_batch = micro_batch;
}

/* ---- actions and messages ---- */

static void run_visits(tws_lower *l, uint32_t first, uint32_t end) {
  for (uint32_t i = first; i < end && l->b.failed == TWS_OK; i++) {
    tws_zero_before(l, i);
    tws_checkpoints_before(l, i);
    tws_lower_visit(l, &l->pipeline.chunk->visits.items[i]);
    tws_checkpoints_after(l, i);
    tws_zero_after(l, i);
  }
}

static void run_backward(tws_lower *l) {
  tws_backward_micro_begin(l);
  for (uint32_t v = 0; v < l->network->value_count; v++) {
    if (!l->kept[v]) tws_value_place(l, v, TWS_NONE);
  }
  l->b.phase = TWS_PHASE_BACKWARD;
  tws_zero_buckets_pass(l, 1);
  run_visits(l, l->pipeline.chunk->forward_visits, l->pipeline.chunk->visits.count);
}

static void run_deferred(tws_lower *l) {
  l->b.phase = TWS_PHASE_BACKWARD;
  for (uint32_t i = 0; i < l->pipeline.context->deferred_count; i++) {
    const tws_deferred *d = &l->pipeline.context->deferred[i];
    l->b.module = d->module;
    tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &d->work, d->operands, d->count);
  }
}

static uint32_t boundary_buffer(tws_lower *l, uint32_t value, int gradient, int parts) {
  return tws_builder_buffer(&l->b, l->network->values[value].name,
                            gradient ? TWS_CATEGORY_ACTIVATION_GRADIENT : TWS_CATEGORY_ACTIVATION, l->config->dtype,
                            tws_value_elements(l, value) / (uint64_t)parts, 0);
}

/* Returns the number of parts in which stages exchange a value. It is the number of tensor-parallel ranks if the
 * configuration partitions messages and these ranks have equal copies of the value: each then sends one part, and the
 * receivers gather the whole value (Narayanan et al. 2021, section 4.1). Otherwise it is 1. */
static int message_parts(const tws_lower *l, uint32_t value, int gradient) {
  int partitioned = gradient ? l->config->grad_partitioned : l->config->pipe_partitioned;
  int tensor = l->sharding.position.ranks[TWS_AXIS_MODEL];
  return partitioned && l->local.values[value].placement.on[TWS_AXIS_MODEL] != TWS_PLACED_TOKENS &&
                 tws_value_elements(l, value) % (uint64_t)tensor == 0
             ? tensor
             : 1;
}

/* Gathers the whole value from the parts that were received. This is done when the value is needed, so that no
 * operation before waits for the message. */
static void gather_parts(tws_lower *l, int gradient) {
  uint32_t part = l->pipeline.context->part[gradient],
           value = gradient ? l->pipeline.chunk->out_value : l->pipeline.chunk->in_value;
  if (part == TWS_NONE || l->b.failed != TWS_OK) return;
  uint32_t whole = boundary_buffer(l, value, gradient, 1);
  l->b.phase = gradient ? TWS_PHASE_BACKWARD : TWS_PHASE_FORWARD;
  l->b.module = TWS_NONE;
  tws_exchange_gather_into(l, l->streams.exchange, tws_all(&l->b, part, TWS_READ), tws_all(&l->b, whole, TWS_WRITE));
  (gradient ? tws_value_place_gradient : tws_value_place)(l, value, whole);
  l->pipeline.context->part[gradient] = TWS_NONE;
}

static void lower_action(tws_lower *l, int kind) {
  switch (kind) {
    case TWS_ACTION_FORWARD:
      gather_parts(l, 0);
      tws_zero_micro_begin(l);
      run_visits(l, 0, l->pipeline.chunk->forward_visits);
      break;
    case TWS_ACTION_BACKWARD:
      gather_parts(l, 1);
      run_backward(l);
      break;
    case TWS_ACTION_BACKWARD_INPUT:
      gather_parts(l, 1);
      l->pipeline.split = 1;
      run_backward(l);
      l->pipeline.split = 0;
      break;
    default:
      run_deferred(l);
      break;
  }
}

/* Emits a message: activations are sent to later stages, gradients to earlier ones. Each message has one buffer, as
 * large as the value or its part. */
static void lower_message(tws_lower *l, const tws_pipeline_event *event) {
  tws_plan *plan = l->b.plan;
  int forward = event->action.kind == TWS_ACTION_FORWARD, send = event->kind == TWS_EVENT_SEND;
  uint32_t value = forward == send ? l->pipeline.chunk->out_value : l->pipeline.chunk->in_value;
  uint32_t peer = (uint32_t)tws_pipeline_grid_stage(&plan->topology, plan->rank, event->peer);
  const uint32_t buffer = forward ? l->values.buffer[value] : l->values.gradient[value];
  int parts = message_parts(l, value, !forward);
  l->b.phase = forward ? TWS_PHASE_FORWARD : TWS_PHASE_BACKWARD;
  l->b.module = TWS_NONE;
  if (!send) {
    uint32_t received = boundary_buffer(l, value, !forward, parts);
    if (parts > 1)
      l->pipeline.context->part[!forward] = received;
    else
      (forward ? tws_value_place : tws_value_place_gradient)(l, value, received);
    if (l->b.failed == TWS_OK) tws_builder_message(&l->b, TWS_OP_RECV, peer, tws_all(&l->b, received, TWS_WRITE));
    return;
  }
  if (l->b.failed != TWS_OK) return;
  if (buffer == TWS_NONE) {
    tws_builder_fail(&l->b, TWS_INTERNAL, "a message is sent before it is there");
    return;
  }
  tws_operand sent = tws_all(&l->b, buffer, TWS_READ);
  sent.count /= (uint64_t)parts;
  sent.offset = parts > 1 ? sent.count * (uint64_t)l->sharding.position.index[TWS_AXIS_MODEL] : 0;
  tws_builder_message(&l->b, TWS_OP_SEND, peer, sent);
}

static void run_program(tws_lower *l, const tws_pipeline_program *program) {
  size_t micro_batches = (size_t)l->extent.accumulation;
  tws_context **contexts =
      tws_arena_alloc(l->scratch, micro_batches * (size_t)l->pipeline.chunk_count, sizeof *contexts);
  uint32_t *events = tws_arena_alloc(l->scratch, micro_batches * (size_t)l->pipeline.chunk_count, sizeof *events);
  if (!contexts || !events) {
    no_memory(l);
    return;
  }
  for (uint32_t i = 0; i < program->count; i++) {
    const tws_pipeline_action *a = &program->events[i].action;
    events[(size_t)a->chunk * micro_batches + a->micro_batch]++;
  }
  for (uint32_t i = 0; i < program->count && l->b.failed == TWS_OK; i++) {
    const tws_pipeline_event *event = &program->events[i];
    size_t at = (size_t)event->action.chunk * micro_batches + event->action.micro_batch;
    if (!contexts[at] && !(contexts[at] = new_context(l))) return;
    enter_context(l, &l->pipeline.chunks[event->action.chunk], contexts[at], event->action.micro_batch);
    if (event->kind == TWS_EVENT_ACTION) {
      lower_action(l, event->action.kind);
    } else {
      lower_message(l, event);
    }
    if (--events[at] == 0) free_context(l, contexts[at]);
  }
}

/* Emits the reductions of tied parameters' gradients: every stage that has a tied parameter computes a part of its
 * gradient, and the parts are added up before the data-parallel reduction. */
static void reduce_tied(tws_lower *l) {
  if (l->group[TWS_AXIS_TIED] == TWS_NONE) return;
  l->b.phase = TWS_PHASE_BACKWARD;
  l->b.module = TWS_NONE;
  for (uint32_t p = 0; p < l->network->param_count && l->b.failed == TWS_OK; p++) {
    if (!l->zero.uses[p] || !l->pipeline.param_stages[p] || tws_is_frozen(l, p)) continue;
    uint64_t count = (uint64_t)tws_param_numel(&l->network->params[p]);
    tws_operand range = tws_update(l->b.plan->gradients, l->zero.flat_offset[p], count);
    tws_builder_collective(&l->b, TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_REDUCE, l->group[TWS_AXIS_TIED],
                           l->config->accumulation_dtype, count * tws_dtype_bytes(l->config->accumulation_dtype), 1, 0,
                           &range, 1);
  }
}

/* A later turn of a step continues with the values of its only micro-batch. */
static void run_alone(tws_lower *l) {
  for (int64_t i = 0; i < l->extent.accumulation && l->b.failed == TWS_OK; i++) {
    tws_context *context = l->pipeline.turn > 0 ? l->pipeline.context : new_context(l);
    if (!context) return;
    enter_context(l, &l->pipeline.chunks[l->pipeline.turn], context, (uint32_t)i);
    lower_action(l, TWS_ACTION_FORWARD);
    if (!l->extent.evaluates) {
      lower_action(l, TWS_ACTION_BACKWARD);
      tws_zero_micro_end(l);
    }
    if (l->pipeline.turn + 1 == tws_turns(l)) free_context(l, context);
  }
}

void tws_pipeline_run(tws_lower *l, int turn) {
  l->pipeline.turn = turn;
  if (l->pipeline.shape.stages == 1) {
    run_alone(l);
    return;
  }
  tws_pipeline_program program;
  tws_code code = tws_pipeline_program_make(&l->pipeline.shape, l->pipeline.stage, l->scratch, &program, l->b.err);
  if (code != TWS_OK) {
    l->b.failed = code;
    return;
  }
  run_program(l, &program);
  if (l->extent.evaluates) return;
  reduce_tied(l);
  l->b.micro_batch = (uint32_t)l->extent.accumulation - 1;
  tws_zero_micro_end(l);
}
