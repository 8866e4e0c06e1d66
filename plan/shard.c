#include "plan/shard.h"

#include <string.h>

#include "plan/sequence_rules.h"

uint64_t tws_param_slice_whole(const tws_param_slice *slice, uint64_t index, uint64_t *run) {
  uint64_t columns = (uint64_t)slice->columns, row = index / columns, column = index % columns;
  int block = 0;
  while (block < 2 && row >= (uint64_t)slice->rows[block] && slice->rows[block + 1] > 0) {
    row -= (uint64_t)slice->rows[block++];
  }
  int whole_rows = slice->columns == slice->whole_columns;
  *run = whole_rows ? ((uint64_t)slice->rows[block] - row) * columns - column : columns - column;
  return ((uint64_t)slice->first_row[block] + row) * (uint64_t)slice->whole_columns + (uint64_t)slice->first_column +
         column;
}

tws_code tws_sequence_parallel_check(const tws_network *network, const tws_degrees *axes, int64_t sequence,
                                     tws_error *err) {
  tws_ulysses_part part;
  return tws_ulysses_part_of(network->heads / axes->tensor, network->kv_heads / axes->tensor, sequence, axes->sequence,
                             axes->sequence_index, &part, err);
}

/* ---- making the local network ---- */

typedef struct maker {
  const tws_network *whole;
  const tws_degrees *axes;
  tws_network *net;
  tws_local_module *modules;
  tws_local_value *values;
  uint8_t *sharing;
  tws_param_slice *slices;
  uint32_t *consumer; /* per whole value: its first reader */
  uint32_t *current;  /* per whole value: the local value that stands for it */
  uint32_t *entered;  /* per whole value: behind its COPY or GATHER; TWS_NONE before there is one */
  uint8_t *split, *wide, *headed;
  uint32_t origin; /* module of the whole network at work */
} maker;

static int64_t part(const maker *k, int64_t amount) {
  return amount / k->axes->tensor;
}

static uint32_t add_module(maker *k, const tws_module *like) {
  uint32_t index = k->net->module_count++;
  k->net->modules[index] = *like;
  k->modules[index] = (tws_local_module){.origin = k->origin};
  return index;
}

static uint32_t add_value(maker *k, uint32_t module, int slot, uint32_t like, int64_t per_row, tws_local_value tokens) {
  uint32_t index = k->net->value_count++;
  k->net->values[index] = k->whole->values[like];
  k->net->values[index].producer = module;
  k->net->values[index].per_row = (uint32_t)per_row;
  k->values[index] = tokens;
  k->net->modules[module].out[slot] = index;
  return index;
}

/* An exchange of the local value that stands for the whole network's `value`. */
static uint32_t add_exchange(maker *k, tws_exchange exchange, uint32_t value, uint32_t in, int64_t per_row,
                             tws_local_value tokens) {
  const tws_module *origin = &k->whole->modules[k->origin];
  tws_module module;
  tws_module_clear(&module, TWS_MODULE_EXCHANGE, origin->name, origin->layer);
  module.in[0] = in;
  module.out_features = k->net->values[in].per_row;
  module.heads = origin->heads;
  module.kv_heads = origin->kv_heads;
  module.head_size = origin->head_size;
  uint32_t index = add_module(k, &module);
  k->modules[index].exchange = (uint8_t)exchange;
  return add_value(k, index, 0, value, per_row, tokens);
}

/* What a COLUMN layer reads: all tokens, with a gradient that is summed over the ranks. */
static uint32_t enter(maker *k, uint32_t value) {
  if (k->entered[value] != TWS_NONE) return k->entered[value];
  uint32_t in = k->current[value];
  tws_local_value tokens = k->values[in];
  int tensor_sequence_parallel = tokens.split > 1;
  tokens.split = 1;
  k->entered[value] = add_exchange(k, tensor_sequence_parallel ? TWS_EXCHANGE_GATHER : TWS_EXCHANGE_COPY, value, in,
                                   k->net->values[in].per_row, tokens);
  if (!tensor_sequence_parallel) k->current[value] = k->entered[value]; /* it took the memory over */
  return k->entered[value];
}

/* Partial sums become the value that the rest of the network reads. */
static uint32_t leave(maker *k, uint32_t value, uint32_t in) {
  tws_local_value tokens = k->values[in];
  if (k->axes->tensor_sequence_parallel) tokens.split = (uint16_t)k->axes->tensor;
  return add_exchange(k, k->axes->tensor_sequence_parallel ? TWS_EXCHANGE_SCATTER : TWS_EXCHANGE_REDUCE, value, in,
                      k->net->values[in].per_row, tokens);
}

/* ---- parameters ---- */

static void share(maker *k, uint32_t p, tws_sharing sharing) {
  if (p != TWS_NONE) k->sharing[p] = (uint8_t)sharing;
}

/* Rows of a parameter, block by block; a vector counts as rows of one element. */
static void slice_rows(maker *k, uint32_t p, const int64_t *blocks, int count) {
  if (p == TWS_NONE) return;
  tws_param *param = &k->net->params[p];
  const tws_param *whole = &k->whole->params[p];
  int vector = whole->rows == 1;
  int64_t columns = vector ? 1 : whole->columns, first = 0, rows = 0;
  tws_param_slice slice = {.columns = columns, .whole_columns = columns};
  for (int i = 0; i < count; i++) {
    slice.rows[i] = part(k, blocks[i]);
    slice.first_row[i] = first + slice.rows[i] * k->axes->tensor_index;
    first += blocks[i];
    rows += slice.rows[i];
  }
  k->slices[p] = slice;
  param->rows = vector ? 1 : rows;
  param->columns = vector ? rows : columns;
  for (int i = 0; i < 3; i++) param->fused[i] = part(k, whole->fused[i]);
  share(k, p, TWS_SHARING_SPLIT);
}

static void slice_columns(maker *k, uint32_t p) {
  const tws_param *whole = &k->whole->params[p];
  int64_t columns = part(k, whole->columns);
  k->net->params[p].columns = columns;
  k->slices[p] = (tws_param_slice){.rows = {whole->rows},
                                   .first_column = columns * k->axes->tensor_index,
                                   .columns = columns,
                                   .whole_columns = whole->columns};
  share(k, p, TWS_SHARING_SPLIT);
}

static void keep_whole(maker *k, uint32_t p) {
  if (p == TWS_NONE || !k->slices) return;
  const tws_param *whole = &k->whole->params[p];
  k->slices[p] = (tws_param_slice){.rows = {whole->rows}, .columns = whole->columns, .whole_columns = whole->columns};
}

/* Parameters of a module that is not split: copies, whose gradients are partial where tokens are split. */
static void copy_params(maker *k, const tws_module *m, tws_local_value tokens) {
  for (int i = 0; i < TWS_MODULE_PARAMS; i++) {
    keep_whole(k, m->param[i]);
    if (k->axes->tensor > 1) share(k, m->param[i], tokens.split > 1 ? TWS_SHARING_PARTIAL : TWS_SHARING_COPIED);
  }
}

/* ---- modules ---- */

/* Rows of the vocabulary that this rank has. */
static void vocabulary_part(const maker *k, tws_local_module *local) {
  int64_t rows = part(k, k->whole->padded_vocabulary);
  local->first_row = rows * k->axes->tensor_index;
  local->rows = k->whole->vocabulary - local->first_row;
  if (local->rows > rows) local->rows = rows;
  if (local->rows < 0) local->rows = 0;
}

static void embedding(maker *k, const tws_module *m) {
  uint32_t index = add_module(k, m), value = m->out[0];
  uint32_t x = add_value(k, index, 0, value, k->whole->values[value].per_row, (tws_local_value){1, 1});
  vocabulary_part(k, &k->modules[index]);
  if (k->axes->tensor == 1) {
    copy_params(k, m, (tws_local_value){1, 1});
  } else {
    slice_rows(k, m->param[0], &k->whole->params[m->param[0]].rows, 1);
    keep_whole(k, m->param[1]);
    share(k, m->param[1], TWS_SHARING_COPIED);
    k->modules[index].skips_vector = k->axes->tensor_index > 0;
    x = leave(k, value, x);
  }
  k->current[value] = x;
}

static void column_linear(maker *k, const tws_module *m) {
  int64_t blocks[3];
  int count = tws_tensor_parallel_blocks(k->whole, k->consumer, k->origin, blocks);
  uint32_t in = enter(k, m->in[0]), index = add_module(k, m);
  slice_rows(k, m->param[0], blocks, count);
  slice_rows(k, m->param[1], blocks, count);
  k->net->modules[index].in[0] = in;
  k->net->modules[index].out_features = part(k, m->out_features);
  k->modules[index].split = TWS_SPLIT_COLUMN;
  k->current[m->out[0]] = add_value(k, index, 0, m->out[0], part(k, m->out_features), k->values[in]);
}

static void row_linear(maker *k, const tws_module *m) {
  uint32_t in = k->current[m->in[0]], index = add_module(k, m);
  slice_columns(k, m->param[0]);
  keep_whole(k, m->param[1]);
  share(k, m->param[1], TWS_SHARING_COPIED);
  k->net->modules[index].in[0] = in;
  k->net->modules[index].in_features = part(k, m->in_features);
  k->modules[index].split = TWS_SPLIT_ROW;
  k->modules[index].skips_vector = k->axes->tensor_index > 0;
  uint32_t y = add_value(k, index, 0, m->out[0], m->out_features, k->values[in]);
  k->current[m->out[0]] = leave(k, m->out[0], y);
}

/* Heads of this rank, inside attention. */
static void local_heads(const maker *k, tws_module *m) {
  m->heads /= k->axes->tensor;
  m->kv_heads /= k->axes->tensor;
  m->heads /= k->axes->sequence;
  m->kv_heads = (int32_t)tws_ulysses_kv_count(m->kv_heads, k->axes->sequence);
}

/* Queries, keys and values of this rank's tokens -> of this rank's heads. */
static void enter_heads(maker *k, uint32_t value) {
  if (k->axes->sequence == 1 || k->headed[value]) return;
  tws_module m = k->whole->modules[k->origin];
  uint32_t in = k->current[value], index;
  tws_local_value tokens = k->values[in];
  tokens.gather = (uint16_t)(tokens.gather * k->axes->sequence);
  local_heads(k, &m);
  k->current[value] =
      add_exchange(k, TWS_EXCHANGE_HEADS, value, in, (int64_t)(m.heads + 2 * m.kv_heads) * m.head_size, tokens);
  index = k->net->module_count - 1;
  k->net->modules[index].heads /= k->axes->tensor; /* those of all the ranks it is among */
  k->net->modules[index].kv_heads /= k->axes->tensor;
}

static void leave_heads(maker *k, uint32_t value) {
  if (k->axes->sequence == 1) return;
  uint32_t in = k->current[value];
  tws_local_value tokens = k->values[in];
  tokens.gather = (uint16_t)(tokens.gather / k->axes->sequence);
  k->current[value] =
      add_exchange(k, TWS_EXCHANGE_TOKENS, value, in, (int64_t)k->net->values[in].per_row * k->axes->sequence, tokens);
  tws_module *m = &k->net->modules[k->net->module_count - 1];
  m->heads /= k->axes->tensor;
  m->kv_heads = 0;
}

static void plain(maker *k, const tws_module *m) {
  int attends = m->type == TWS_MODULE_ROPE || m->type == TWS_MODULE_ATTENTION;
  if (attends) enter_heads(k, m->in[0]);
  uint32_t index = add_module(k, m);
  tws_module *module = &k->net->modules[index];
  for (int i = 0; i < TWS_MODULE_INS; i++) {
    if (m->in[i] != TWS_NONE) module->in[i] = k->current[m->in[i]];
  }
  tws_local_value tokens = k->values[module->in[0]];
  copy_params(k, m, tokens);
  int wide = k->wide[m->in[0]];
  if (attends) local_heads(k, module);
  if (wide) {
    module->out_features = part(k, module->out_features);
    module->in_features = part(k, module->in_features);
  }
  if (m->type == TWS_MODULE_LOSS) vocabulary_part(k, &k->modules[index]);
  if (m->type == TWS_MODULE_LOSS && wide) k->modules[index].split = TWS_SPLIT_COLUMN;
  for (int i = 0; i < TWS_MODULE_OUTS; i++) {
    if (m->out[i] == TWS_NONE) continue;
    int64_t per_row = k->whole->values[m->out[i]].per_row;
    if (wide) per_row = part(k, per_row);
    if (attends && k->axes->sequence > 1) { /* o, lse: query heads; qkv: as the input */
      per_row = m->type == TWS_MODULE_ROPE ? k->net->values[module->in[0]].per_row : per_row / k->axes->sequence;
    }
    k->current[m->out[i]] = add_value(k, index, i, m->out[i], per_row, tokens);
    k->headed[m->out[i]] = m->type == TWS_MODULE_ROPE;
  }
  if (m->type == TWS_MODULE_ATTENTION) leave_heads(k, m->out[0]);
}

static void find_consumers(maker *k) {
  memset(k->consumer, 0xff, k->whole->value_count * sizeof *k->consumer); /* TWS_NONE */
  for (uint32_t m = k->whole->module_count; m-- > 0;) {
    for (int i = 0; i < TWS_MODULE_INS; i++) {
      if (k->whole->modules[m].in[i] != TWS_NONE) k->consumer[k->whole->modules[m].in[i]] = m;
    }
  }
}

static void make(maker *k) {
  find_consumers(k);
  memset(k->entered, 0xff, k->whole->value_count * sizeof *k->entered);
  if (k->axes->tensor > 1) tws_tensor_parallel_classify(k->whole, k->consumer, k->split, k->wide);
  for (uint32_t m = 0; m < k->whole->module_count; m++) {
    const tws_module *module = &k->whole->modules[m];
    k->origin = m;
    if (module->type == TWS_MODULE_EMBEDDING) {
      embedding(k, module);
    } else if (module->type == TWS_MODULE_LINEAR && k->split[m] == TWS_SPLIT_COLUMN) {
      column_linear(k, module);
    } else if (module->type == TWS_MODULE_LINEAR && k->split[m] == TWS_SPLIT_ROW) {
      row_linear(k, module);
    } else {
      plain(k, module);
    }
  }
}

/* Nothing is split: the network itself. */
static tws_code stay_whole(const tws_network *whole, tws_arena *scratch, tws_local *local, tws_error *err) {
  tws_local_module *modules = tws_arena_alloc(scratch, whole->module_count + 1u, sizeof *modules);
  tws_local_value *values = tws_arena_alloc(scratch, whole->value_count + 1u, sizeof *values);
  uint8_t *sharing = tws_arena_alloc(scratch, whole->param_count + 1u, 1);
  if (!modules || !values || !sharing) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the plan");
  for (uint32_t m = 0; m < whole->module_count; m++) {
    modules[m] = (tws_local_module){.origin = m, .rows = whole->vocabulary};
  }
  for (uint32_t v = 0; v < whole->value_count; v++) values[v] = (tws_local_value){1, 1};
  *local = (tws_local){.network = whole, .modules = modules, .values = values, .sharing = sharing};
  return TWS_OK;
}

tws_code tws_shard_network(const tws_network *whole, const tws_degrees *axes, tws_arena *scratch, tws_arena *keep,
                           tws_local *local, tws_error *err) {
  if (axes->tensor == 1 && axes->sequence == 1) return stay_whole(whole, scratch, local, err);
  enum { ROOM = 3 }; /* local modules and values for one of the whole network, exchanges included */
  size_t modules = whole->module_count, values = whole->value_count, params = whole->param_count;
  tws_network *net = tws_arena_alloc(scratch, 1, sizeof *net);
  maker k = {.whole = whole, .axes = axes, .net = net};
  k.modules = tws_arena_alloc(scratch, ROOM * modules, sizeof *k.modules);
  k.values = tws_arena_alloc(scratch, ROOM * values, sizeof *k.values);
  k.sharing = tws_arena_alloc(scratch, params + 1, 1);
  k.consumer = tws_arena_alloc(scratch, values, sizeof *k.consumer);
  k.current = tws_arena_alloc(scratch, values, sizeof *k.current);
  k.entered = tws_arena_alloc(scratch, values, sizeof *k.entered);
  k.split = tws_arena_alloc(scratch, modules, 1);
  k.wide = tws_arena_alloc(scratch, values, 1);
  k.headed = tws_arena_alloc(scratch, values, 1);
  if (axes->tensor > 1) k.slices = tws_arena_alloc(keep, params + 1, sizeof *k.slices);
  if (!net || !k.modules || !k.values || !k.sharing || !k.consumer || !k.current || !k.entered || !k.split || !k.wide ||
      !k.headed || (axes->tensor > 1 && !k.slices)) {
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for the plan");
  }
  *net = *whole;
  net->module_count = net->value_count = 0;
  net->modules = tws_arena_alloc(scratch, ROOM * modules, sizeof *net->modules);
  net->values = tws_arena_alloc(scratch, ROOM * values, sizeof *net->values);
  net->params = tws_arena_alloc(scratch, params + 1, sizeof *net->params);
  if (!net->modules || !net->values || !net->params) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the plan");
  memcpy(net->params, whole->params, params * sizeof *net->params);
  make(&k);
  *local =
      (tws_local){.network = net, .modules = k.modules, .values = k.values, .sharing = k.sharing, .slices = k.slices};
  return TWS_OK;
}
