#include "plan/shard.h"

#include <stdio.h>
#include <string.h>

#include "plan/sequence_rules.h"

uint64_t tws_param_slice_whole(const tws_param_slice *slice, uint64_t index, uint64_t *run) {
  uint64_t columns = (uint64_t)slice->columns, row = index / columns, column = index % columns, skipped = 0;
  int block = 0;
  if (slice->repeats > 1) {
    const uint64_t each = (uint64_t)(slice->rows[0] + slice->rows[1] + slice->rows[2]);
    skipped = row / each * (uint64_t)slice->step;
    row %= each;
  }
  while (block < 2 && row >= (uint64_t)slice->rows[block] && slice->rows[block + 1] > 0) {
    row -= (uint64_t)slice->rows[block++];
  }
  int whole_rows = slice->columns == slice->whole_columns;
  *run = whole_rows ? ((uint64_t)slice->rows[block] - row) * columns - column : columns - column;
  return (skipped + (uint64_t)slice->first_row[block] + row) * (uint64_t)slice->whole_columns +
         (uint64_t)slice->first_column + column;
}

/* ---- construction of the local network ---- */

typedef struct maker {
  const tws_network *whole;
  const tws_sharding *how;
  int tensor, tensor_index, sequence, expert, expert_index;
  tws_network *net;
  tws_local_module *modules;
  tws_local_value *values;
  tws_placement *params;
  tws_param_slice *slices;
  uint32_t *consumer; /* per value of the unsplit network: the first module that reads it */
  uint32_t *current;  /* per value of the unsplit network: index of the local value that has its content */
  /* per value of the unsplit network: the local value after the last exchange inserted for one of its readers, or
   * TWS_NONE */
  uint32_t *changed;
  /* per value of the unsplit network: 1 if split and unsplit modules read it, so its memory is not taken over */
  uint8_t *shared;
  int found_shared;    /* 1: `shared` has a new entry, so the network is rebuilt */
  uint32_t origin;     /* the module of the unsplit network that is being converted */
  tws_split split;     /* tws_split of this module along "model" */
  tws_axis divided[3]; /* the axes along which modules have rules, in the order in which their exchanges are inserted */
  int divided_count;
  tws_error *err;
  tws_code failed;
} maker;

static tws_axis_rule rule_of(const maker *k, tws_axis axis, const tws_module *m) {
  tws_axis_rule rule = axis == TWS_AXIS_MODEL    ? tws_tensor_parallel_rule(m->type, k->split)
                       : axis == TWS_AXIS_EXPERT ? tws_expert_parallel_rule(m->type)
                                                 : tws_sequence_parallel_rule(m->type, k->how->ring);
  if (rule.leaves == TWS_BETWEEN) rule.leaves = (uint8_t)k->how->between;
  return rule;
}

static int64_t tensor_part(const maker *k, int64_t amount) {
  return amount / k->tensor;
}

static int attends(const tws_module *m) {
  return m->type == TWS_MODULE_ROPE || m->type == TWS_MODULE_ATTENTION || m->type == TWS_MODULE_CROSS_ATTENTION ||
         m->type == TWS_MODULE_DISENTANGLED;
}

static uint32_t add_module(maker *k, const tws_module *like) {
  uint32_t index = k->net->module_count++;
  k->net->modules[index] = *like;
  k->modules[index] = (tws_local_module){.origin = k->origin, .forward = TWS_NO_CHANGE, .backward = TWS_NO_CHANGE};
  return index;
}

/* Returns the number of ranks whose slots, or counts of slots, are concatenated in a value: all tensor-parallel ranks
 * if these gather slots, else 1. */
static int slot_parts(const maker *k, uint32_t value, tws_placement placement) {
  const tws_value *v = &k->whole->values[value];
  int slots = v->kind == TWS_VALUE_INDEX && k->whole->modules[v->producer].type == TWS_MODULE_ROUTER;
  for (int i = 0; i < v->row_dims; i++) {
    if (v->row[i].kind == TWS_DIM_SAMPLES) return 1; /* the value has routes of tokens, not slots */
    slots |= v->row[i].kind == TWS_DIM_CAPACITY;
  }
  return slots && tws_sharding_gathers_slots(k->how) && placement.on[TWS_AXIS_MODEL] != TWS_PLACED_TOKENS ? k->tensor
                                                                                                          : 1;
}

static uint32_t add_value(maker *k, uint32_t module, int slot, uint32_t like, int64_t per_row,
                          tws_placement placement) {
  uint32_t index = k->net->value_count++;
  k->net->values[index] = k->whole->values[like];
  k->net->values[index].producer = module;
  k->net->values[index].per_row = (uint32_t)per_row;
  int parts = 1;
  for (int i = 0; i < k->divided_count; i++)
    if (placement.on[k->divided[i]] == TWS_PLACED_TOKENS) parts *= k->how->position.ranks[k->divided[i]];
  const int slots = slot_parts(k, like, placement);
  k->values[index] = (tws_local_value){.placement = placement,
                                       .token_parts = (uint16_t)(slots > 1 ? parts * slots : parts),
                                       .slot_parts = (uint16_t)slots};
  k->net->modules[module].out[slot] = index;
  return index;
}

/* ---- exchanges ---- */

/* Sets the numbers of heads that a rank has: the module's heads divided along "model", and inside attention also along
 * "sequence". */
static void local_heads(const maker *k, tws_module *m, int inside) {
  m->heads = (int32_t)tensor_part(k, m->heads);
  m->kv_heads = (int32_t)tensor_part(k, m->kv_heads);
  if (!inside || k->how->ring) return;
  m->heads /= k->sequence;
  m->kv_heads = (int32_t)tws_ulysses_kv_count(m->kv_heads, k->sequence);
}

/* Returns the width of a value after its placement along an axis became `to`. */
static int64_t changed_width(const maker *k, tws_axis axis, tws_placed to, int64_t width) {
  tws_module inside = k->whole->modules[k->origin];
  if (axis != TWS_AXIS_SEQUENCE) return width;
  if (to == TWS_PLACED_TOKENS) return width * k->sequence;
  local_heads(k, &inside, 1);
  return (int64_t)(inside.heads + 2 * inside.kv_heads) * inside.head_size;
}

/* Adds an exchange that changes the placement of a local value along one axis, and returns the new local value, which
 * represents `value` of the unsplit network. */
static uint32_t add_exchange(maker *k, tws_axis axis, tws_placed to, uint32_t value, uint32_t in) {
  const tws_module *origin = &k->whole->modules[k->origin];
  tws_placement placement = k->values[in].placement;
  const tws_placed from = (tws_placed)placement.on[axis];
  const int forward = tws_placed_change(from, to);
  const int backward = tws_placed_change(tws_placed_dual(to), tws_placed_dual(from));
  if (forward == TWS_NO_CHANGE || backward == TWS_NO_CHANGE) {
    if (k->failed == TWS_OK)
      k->failed = tws_fail(k->err, TWS_UNSUPPORTED, NULL, "%s: along '%s' what is %s cannot become %s", origin->name,
                           tws_axis_name(axis), tws_placed_name(from), tws_placed_name(to));
    return in;
  }
  tws_module module;
  tws_module_clear(&module, TWS_MODULE_EXCHANGE, origin->name, origin->layer);
  module.in[0] = in;
  module.out_features = k->net->values[in].per_row;
  module.heads = origin->heads;
  module.kv_heads = origin->kv_heads;
  module.head_size = origin->head_size;
  local_heads(k, &module, 0); /* the heads of all sequence-parallel ranks, among which values are exchanged */
  if (to == TWS_PLACED_TOKENS) module.kv_heads = 0;
  const uint32_t index = add_module(k, &module);
  k->modules[index].axis = (uint8_t)axis;
  k->modules[index].to = (uint8_t)to;
  k->modules[index].forward = (int8_t)forward;
  k->modules[index].backward = (int8_t)backward;
  k->modules[index].shares = forward == TWS_NO_COMMUNICATION && k->shared[value];
  placement.on[axis] = (uint8_t)to;
  return add_value(k, index, 0, value, changed_width(k, axis, to, k->net->values[in].per_row), placement);
}

/* Returns the placement that a module requires of an input. If the first input of an adapter is split, its second input
 * is needed whole on all ranks. Counts of slots are not split, but are gathered if slots are gathered. */
static uint8_t wanted_along(const maker *k, tws_axis axis, const tws_module *m, uint32_t value) {
  const int other = axis == TWS_AXIS_MODEL && m->type == TWS_MODULE_LOW_RANK && value != m->in[0];
  const uint8_t wants = rule_of(k, axis, m).wants;
  if (axis == TWS_AXIS_MODEL && m->type == TWS_MODULE_EXPERT_LINEAR && value != m->in[0])
    return k->split != TWS_SPLIT_NONE && tws_sharding_gathers_slots(k->how) ? TWS_PLACED_BROADCAST : TWS_ANY_PLACEMENT;
  return other && wants == TWS_PLACED_FEATURES ? TWS_PLACED_BROADCAST : wants;
}

static int is_wanted(const maker *k, const tws_module *m, uint32_t value, uint32_t local) {
  for (int i = 0; i < k->divided_count; i++) {
    const uint8_t wants = wanted_along(k, k->divided[i], m, value);
    if (wants != TWS_ANY_PLACEMENT && wants != k->values[local].placement.on[k->divided[i]]) return 0;
  }
  return 1;
}

/* Returns the local value that a module reads for an input: an existing one with the required placement, or the result
 * of a new exchange. */
static uint32_t wanted_input(maker *k, const tws_module *m, uint32_t value) {
  uint32_t local = k->current[value];
  if (is_wanted(k, m, value, local)) return local;
  if (k->changed[value] != TWS_NONE && is_wanted(k, m, value, k->changed[value])) return k->changed[value];
  int in_place = 1;
  for (int i = 0; i < k->divided_count; i++) {
    const uint8_t wants = wanted_along(k, k->divided[i], m, value);
    if (wants == TWS_ANY_PLACEMENT || wants == k->values[local].placement.on[k->divided[i]]) continue;
    local = add_exchange(k, k->divided[i], (tws_placed)wants, value, local);
    in_place &= tws_local_exchanges_in_place(&k->modules[k->net->module_count - 1]);
  }
  k->changed[value] = local;
  if (in_place) k->current[value] = local; /* updated in place: the old content no longer exists */
  return local;
}

/* ---- parameters ---- */

/* Makes the local parameter a slice of the whole parameter that has this rank's rows of each block; a vector has rows
 * of one element. */
static void slice_rows(maker *k, uint32_t p, const int64_t *blocks, int count) {
  tws_param *param = &k->net->params[p];
  const tws_param *whole = &k->whole->params[p];
  int vector = whole->rows == 1;
  int64_t columns = vector ? 1 : whole->columns, first = 0, rows = 0;
  tws_param_slice slice = {.columns = columns, .whole_columns = columns};
  for (int i = 0; i < count; i++) {
    slice.rows[i] = tensor_part(k, blocks[i]);
    slice.first_row[i] = first + slice.rows[i] * k->tensor_index;
    first += blocks[i];
    rows += slice.rows[i];
  }
  k->slices[p] = slice;
  param->rows = vector ? 1 : rows;
  param->columns = vector ? rows : columns;
  for (int i = 0; i < 3; i++) param->fused[i] = tensor_part(k, whole->fused[i]);
  k->params[p].on[TWS_AXIS_MODEL] = TWS_PLACED_ROWS;
}

static void slice_columns(maker *k, uint32_t p) {
  const tws_param *whole = &k->whole->params[p];
  int64_t columns = tensor_part(k, whole->columns);
  k->net->params[p].columns = columns;
  k->slices[p] = (tws_param_slice){.rows = {whole->rows},
                                   .first_column = columns * k->tensor_index,
                                   .columns = columns,
                                   .whole_columns = whole->columns};
  k->params[p].on[TWS_AXIS_MODEL] = TWS_PLACED_COLUMNS;
}

/* Keeps a parameter whole on every rank. If the module processes only some of the tokens or heads, the gradient is a
 * sum to which each rank contributes a part. */
static void keep_whole(maker *k, const tws_module *m, uint32_t p, tws_placement input) {
  const tws_param *whole = &k->whole->params[p];
  for (int i = 0; i < k->divided_count; i++) {
    const int placed = input.on[k->divided[i]],
              heads = m->type == TWS_MODULE_HEADS_NORM && placed == TWS_PLACED_FEATURES;
    const int some = placed == TWS_PLACED_TOKENS || heads;
    k->params[p].on[k->divided[i]] = some ? TWS_PLACED_BROADCAST : TWS_PLACED_REPLICATED;
  }
  if (k->slices)
    k->slices[p] = (tws_param_slice){.rows = {whole->rows}, .columns = whole->columns, .whole_columns = whole->columns};
}

/* Makes the local parameter the slices of this rank's experts: of each expert the rows or the columns that tensor
 * parallelism gives to the rank. A vector is split like the rows of a matrix. */
static void slice_experts(maker *k, const tws_module *m, uint32_t p, int placed, const int64_t *blocks, int count) {
  tws_param *param = &k->net->params[p];
  const tws_param *whole = &k->whole->params[p];
  const int64_t each = whole->rows / whole->experts, experts = whole->experts / k->expert;
  tws_param_slice slice = {.rows = {each * experts},
                           .first_row = {each * experts * k->expert_index},
                           .columns = whole->columns,
                           .whole_columns = whole->columns};
  const int vector = each == 1, splits = placed == TWS_PLACED_ROWS || placed == TWS_PLACED_COLUMNS;
  if (vector && placed == TWS_PLACED_ROWS && count > 1 && k->failed == TWS_OK)
    k->failed = tws_fail(k->err, TWS_UNSUPPORTED, "leave twinspeed.expert_tensor_parallel out",
                         "%s: tensor ranks do not divide biases of two joined layers of experts", m->name);
  if (placed == TWS_PLACED_COLUMNS || (vector && splits)) {
    slice.columns = tensor_part(k, whole->columns);
    slice.first_column = slice.columns * k->tensor_index;
  } else if (splits) {
    int64_t first = each * experts * k->expert_index;
    for (int i = 0; i < count; i++) {
      slice.rows[i] = tensor_part(k, blocks[i]);
      slice.first_row[i] = first + slice.rows[i] * k->tensor_index;
      first += blocks[i];
    }
    slice.repeats = experts;
    slice.step = each;
    for (int i = 0; i < 3; i++) param->fused[i] = tensor_part(k, whole->fused[i]);
  }
  param->rows = tws_param_slice_rows(&slice);
  param->columns = slice.columns;
  param->experts = (int32_t)experts;
  if (k->expert > 1) param->own_along |= TWS_AXES_EXPERT;
  if (splits) k->params[p].on[TWS_AXIS_MODEL] = (uint8_t)placed;
  k->slices[p] = slice;
}

/* Fails if the tensor ranks do not divide each block of a module's outputs. */
static void check_blocks(maker *k, const tws_module *m, const int64_t *blocks, int count) {
  for (int i = 0; i < count && k->failed == TWS_OK; i++) {
    int legal = k->tensor - 1;
    char hint[96];
    if (blocks[i] % k->tensor == 0) continue;
    while (blocks[i] % legal) legal--;
    snprintf(hint, sizeof hint, "the nearest smaller degree that is legal for this layer is %d", legal);
    k->failed =
        tws_fail(k->err, TWS_INVALID, hint, "tensor parallelism over %d ranks does not divide the %lld features of %s",
                 k->tensor, (long long)blocks[i], m->name);
  }
}

static void place_params(maker *k, const tws_module *m, tws_placement input) {
  const tws_axis_rule rule = rule_of(k, TWS_AXIS_MODEL, m);
  int64_t blocks[3];
  const int count =
      k->split == TWS_SPLIT_COLUMN ? tws_tensor_parallel_blocks(k->whole, k->consumer, k->origin, blocks) : 0;
  if (m->type == TWS_MODULE_LINEAR) check_blocks(k, m, blocks, count);
  for (int i = 0; i < TWS_MODULE_PARAMS; i++) {
    if (m->param[i] == TWS_NONE) continue;
    const int placed = i ? rule.vector : rule.weight;
    keep_whole(k, m, m->param[i], input);
    if (k->whole->params[m->param[i]].experts > 0) {
      if (k->slices) slice_experts(k, m, m->param[i], placed, blocks, count);
      continue;
    }
    if (placed == TWS_PLACED_ROWS) slice_rows(k, m->param[i], blocks, count);
    /* 1: the parameter is a table of relative biases, whose columns are split by heads */
    const int by_head = m->buckets > 0 && input.on[TWS_AXIS_MODEL] == TWS_PLACED_FEATURES;
    if (placed == TWS_PLACED_COLUMNS || by_head) slice_columns(k, m->param[i]);
  }
}

/* ---- modules ---- */

/* Sets the rows of the vocabulary that this rank has. */
static void vocabulary_part(const maker *k, tws_local_module *local) {
  int64_t rows = tensor_part(k, k->whole->padded_vocabulary);
  local->first_row = rows * k->tensor_index;
  local->rows = k->whole->vocabulary - local->first_row;
  if (local->rows > rows) local->rows = rows;
  if (local->rows < 0) local->rows = 0;
}

/* Returns the placement that a module's kernel gives its output (before an exchange), from the placement of the
 * module's input. */
static tws_placement given_by(const maker *k, const tws_module *m, tws_placement input) {
  for (int i = 0; i < k->divided_count; i++) {
    const tws_axis_rule rule = rule_of(k, k->divided[i], m);
    if (rule.gives != TWS_ANY_PLACEMENT) input.on[k->divided[i]] = rule.gives;
  }
  return input;
}

/* Returns the width of a module's output on this rank: the number of elements per row. */
static int64_t output_width(const maker *k, const tws_module *m, uint32_t value, uint32_t in, tws_placement given) {
  int64_t width = k->whole->values[value].per_row;
  if (given.on[TWS_AXIS_SEQUENCE] == TWS_PLACED_FEATURES && m->in[0] != TWS_NONE) {
    if (width == k->whole->values[m->in[0]].per_row) return k->net->values[in].per_row;
    width /= k->sequence;
  }
  return given.on[TWS_AXIS_MODEL] == TWS_PLACED_FEATURES ? tensor_part(k, width) : width;
}

static void leave_placed(maker *k, const tws_module *m, uint32_t value) {
  for (int i = 0; i < k->divided_count; i++) {
    const tws_axis_rule rule = rule_of(k, k->divided[i], m);
    const uint32_t local = k->current[value];
    if (rule.leaves == TWS_ANY_PLACEMENT || rule.leaves == k->values[local].placement.on[k->divided[i]]) continue;
    k->current[value] = add_exchange(k, k->divided[i], (tws_placed)rule.leaves, value, local);
  }
}

/* Checks that a module's inputs have placements that fit each other. If an unsplit module reads a value that split
 * modules read before, it needs a buffer that the split modules have overwritten in place: the value is marked as
 * shared, and the network is rebuilt. */
static void check_input(maker *k, const tws_module *m, uint32_t value, tws_placement input, tws_placement other) {
  const int keeps = m->type == TWS_MODULE_LOW_RANK || m->type == TWS_MODULE_EXPERT_LINEAR;
  if (keeps && k->split != TWS_SPLIT_NONE) return;
  const int shared = k->split == TWS_SPLIT_NONE && other.on[TWS_AXIS_MODEL] == TWS_PLACED_BROADCAST;
  if (shared && !k->shared[value]) k->found_shared = k->shared[value] = 1;
  if (k->found_shared || k->failed != TWS_OK || (!shared && memcmp(&input, &other, sizeof input) == 0)) return;
  k->failed = tws_fail(
      k->err, TWS_UNSUPPORTED, "set twinspeed.tensor_sequence_parallel to false",
      "%s: tensor parallelism with tokens divided between split layers gives it inputs that do not fit", m->name);
}

static void add_part(maker *k, const tws_module *m) {
  uint32_t in[TWS_MODULE_INS];
  tws_placement input = {{0}};
  const uint32_t first = m->in[0] != TWS_NONE ? k->current[m->in[0]] : TWS_NONE;
  const int has_features = first != TWS_NONE && k->values[first].placement.on[TWS_AXIS_MODEL] == TWS_PLACED_FEATURES;
  const int splits = k->tensor > 1 && (m->type != TWS_MODULE_EXPERT_LINEAR || k->how->splits_experts);
  k->split = splits ? tws_tensor_parallel_split(k->whole, k->consumer, k->origin, has_features) : TWS_SPLIT_NONE;
  for (int i = 0; i < TWS_MODULE_INS; i++) {
    in[i] = TWS_NONE;
    if (m->in[i] == TWS_NONE) continue;
    in[i] = wanted_input(k, m, m->in[i]);
    if (i == 0) input = k->values[in[i]].placement;
    check_input(k, m, m->in[i], input, k->values[in[i]].placement);
  }
  const tws_placement given = given_by(k, m, input);
  const uint32_t index = add_module(k, m);
  tws_module *module = &k->net->modules[index];
  tws_local_module *local = &k->modules[index];
  memcpy(module->in, in, sizeof in);
  local->split = (uint8_t)k->split;
  if (input.on[TWS_AXIS_MODEL] == TWS_PLACED_FEATURES) module->in_features = tensor_part(k, m->in_features);
  if (given.on[TWS_AXIS_MODEL] == TWS_PLACED_FEATURES) module->out_features = tensor_part(k, m->out_features);
  if (attends(m)) local_heads(k, module, 1);
  if (m->type == TWS_MODULE_HEADS_NORM) local_heads(k, module, input.on[TWS_AXIS_SEQUENCE] == TWS_PLACED_FEATURES);
  const int has_words = m->type == TWS_MODULE_EMBEDDING && (k->split != TWS_SPLIT_NONE || k->tensor == 1);
  if (has_words || m->type == TWS_MODULE_LOSS) vocabulary_part(k, local);
  /* if the output is a partial sum, only one tensor-parallel rank adds the vector (the bias) */
  if (given.on[TWS_AXIS_MODEL] == TWS_PLACED_PARTIAL) local->skips_vector = k->tensor_index > 0;
  place_params(k, m, input);
  for (int i = 0; i < TWS_MODULE_OUTS; i++) {
    if (m->out[i] == TWS_NONE) continue;
    /* 1: the output has the statistics of a norm of each head */
    const int by_head = i > 0 && m->type == TWS_MODULE_HEADS_NORM && !(m->flags & TWS_TOGETHER);
    const int64_t width = by_head ? module->heads + module->kv_heads : output_width(k, m, m->out[i], in[0], given);
    k->current[m->out[i]] = add_value(k, index, i, m->out[i], width, given);
  }
  if (m->out[0] != TWS_NONE) leave_placed(k, m, m->out[0]);
}

/* Sets the placement of parameters among ranks that process different samples: each computes a part of the gradient's
 * sum, unless the parameter belongs to an expert of the rank. */
static void place_among_replicas(const tws_network *whole, tws_placement *params) {
  const tws_axes replicas = tws_axes_that_divide(TWS_DIVIDES_SAMPLES);
  tws_axis covered[TWS_AXIS_COUNT];
  int count = 0;
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++)
    if (tws_axes_cover(replicas, (tws_axis)axis)) covered[count++] = (tws_axis)axis;
  for (uint32_t p = 0; p < whole->param_count; p++) {
    const tws_axes along = whole->params[p].own_along;
    for (int i = 0; i < count; i++)
      params[p].on[covered[i]] = along && tws_axes_cover(along, covered[i]) ? TWS_PLACED_EXPERTS : TWS_PLACED_BROADCAST;
  }
}

static void find_consumers(maker *k) {
  memset(k->consumer, 0xff, k->whole->value_count * sizeof *k->consumer); /* TWS_NONE */
  for (uint32_t m = k->whole->module_count; m-- > 0;) {
    for (int i = 0; i < TWS_MODULE_INS; i++) {
      if (k->whole->modules[m].in[i] != TWS_NONE) k->consumer[k->whole->modules[m].in[i]] = m;
    }
  }
}

static void make_local(maker *k) {
  k->net->module_count = k->net->value_count = 0;
  k->found_shared = 0;
  memset(k->changed, 0xff, k->whole->value_count * sizeof *k->changed); /* TWS_NONE */
  for (uint32_t m = 0; m < k->whole->module_count && k->failed == TWS_OK; m++) {
    k->origin = m;
    add_part(k, &k->whole->modules[m]);
  }
}

/* Makes the unsplit network the local network, since nothing is split. */
static tws_code stay_whole(const tws_network *whole, tws_arena *scratch, tws_local *local, tws_error *err) {
  tws_local_module *modules = tws_arena_alloc(scratch, whole->module_count + 1u, sizeof *modules);
  tws_local_value *values = tws_arena_alloc(scratch, whole->value_count + 1u, sizeof *values);
  tws_placement *params = tws_arena_alloc(scratch, whole->param_count + 1u, sizeof *params);
  if (!modules || !values || !params) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the plan");
  for (uint32_t m = 0; m < whole->module_count; m++) {
    modules[m] =
        (tws_local_module){.origin = m, .forward = TWS_NO_CHANGE, .backward = TWS_NO_CHANGE, .rows = whole->vocabulary};
  }
  for (uint32_t v = 0; v < whole->value_count; v++) values[v].token_parts = values[v].slot_parts = 1;
  place_among_replicas(whole, params);
  *local = (tws_local){.network = whole, .modules = modules, .values = values, .params = params};
  return TWS_OK;
}

tws_code tws_shard_network(const tws_network *whole, const tws_sharding *sharding, tws_arena *scratch, tws_arena *keep,
                           tws_local *local, tws_error *err) {
  const tws_position *position = &sharding->position;
  maker k = {.whole = whole,
             .how = sharding,
             .tensor = position->ranks[TWS_AXIS_MODEL],
             .tensor_index = position->index[TWS_AXIS_MODEL],
             .sequence = position->ranks[TWS_AXIS_SEQUENCE],
             .expert = tws_network_has_experts(whole) ? position->ranks[TWS_AXIS_EXPERT] : 1,
             .expert_index = position->index[TWS_AXIS_EXPERT],
             .err = err};
  if (k.sequence > 1) k.divided[k.divided_count++] = TWS_AXIS_SEQUENCE;
  /* 1: tensor-parallel ranks gather expert slots, so the exchange among experts comes before the gathering */
  const int gathers = tws_sharding_gathers_slots(sharding);
  if (gathers && k.expert > 1) k.divided[k.divided_count++] = TWS_AXIS_EXPERT;
  if (k.tensor > 1) k.divided[k.divided_count++] = TWS_AXIS_MODEL;
  if (!gathers && k.expert > 1) k.divided[k.divided_count++] = TWS_AXIS_EXPERT;
  if (k.divided_count == 0) return stay_whole(whole, scratch, local, err);
  /* largest number of local modules and values, including exchanges, for one of the unsplit network */
  enum { MOST = 3 };
  size_t modules = whole->module_count, values = whole->value_count, params = whole->param_count;
  tws_network *net = k.net = tws_arena_alloc(scratch, 1, sizeof *net);
  k.modules = tws_arena_alloc_unset(scratch, MOST * modules, sizeof *k.modules);
  k.values = tws_arena_alloc_unset(scratch, MOST * values, sizeof *k.values);
  k.params = tws_arena_alloc(scratch, params + 1, sizeof *k.params);
  k.consumer = tws_arena_alloc_unset(scratch, values, sizeof *k.consumer);
  k.current = tws_arena_alloc(scratch, values, sizeof *k.current);
  k.changed = tws_arena_alloc_unset(scratch, values, sizeof *k.changed);
  k.shared = tws_arena_alloc(scratch, values + 1, sizeof *k.shared);
  const int slices = k.tensor > 1 || k.expert > 1;
  if (slices) k.slices = tws_arena_alloc(keep, params + 1, sizeof *k.slices);
  if (!net || !k.modules || !k.values || !k.params || !k.consumer || !k.current || !k.changed || !k.shared ||
      (slices && !k.slices)) {
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for the plan");
  }
  *net = *whole;
  net->modules = tws_arena_alloc_unset(scratch, MOST * modules, sizeof *net->modules);
  net->values = tws_arena_alloc_unset(scratch, MOST * values, sizeof *net->values);
  net->params = tws_arena_alloc_unset(scratch, params + 1, sizeof *net->params);
  if (!net->modules || !net->values || !net->params) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the plan");
  memcpy(net->params, whole->params, params * sizeof *net->params);
  find_consumers(&k);
  make_local(&k);
  if (k.found_shared) make_local(&k);
  place_among_replicas(net, k.params);
  *local =
      (tws_local){.network = net, .modules = k.modules, .values = k.values, .params = k.params, .slices = k.slices};
  return k.failed;
}
