/* The cache of keys and values of inference: an entry of the state with, for each layer of attention of this rank, the
 * keys and values of every sequence (models/operators_cache.def). A prefill writes those of the prompts and attends
 * within the prompts; decoding writes those of one more token, which attends to the cache. Layers with a sliding window
 * keep as many rows as the window has. Layers of latent attention cache compressed rows, from which their keys and
 * values would be expanded; a prefill expands those of its prompts, a decode none. Of an encoder-decoder a prefill runs
 * the encoder and writes the keys and values of its output, and a decode runs the decoder alone. */
#include "plan/cache.h"

#include <math.h>

#include "models/network/module.h"
#include "plan/serving.h"

/* Returns 1 if a module caches keys and values: attention of tokens that follow one another, or of these to the source
 * of an encoder-decoder. Attention among the tokens of a source runs once for each text. */
static int has_cache(const tws_module *m) {
  return m->type == TWS_MODULE_CROSS_ATTENTION || (m->type == TWS_MODULE_ATTENTION && !(m->flags & TWS_BIDIRECTIONAL));
}

/* Returns the number of positions for which the cache of a layer stores the keys and values of a sequence. */
static int64_t cached_rows(const tws_lower *l, const tws_module *m) {
  if (m->type == TWS_MODULE_CROSS_ATTENTION) return l->values.whole_sequence[m->in[1]];
  const int64_t all = l->config->cache_length;
  return m->window > 0 && m->window < all ? m->window : all;
}

static tws_dtype cache_type(const tws_lower *l) {
  return l->config->cache_bits == 8 ? TWS_E4M3 : l->config->dtype;
}

/* The modules of a layer whose attention caches compressed rows: the one that makes heads of them, and the linear layer
 * that expands them to keys and values, whose weight a decode reads in its place. */
typedef struct latent_layer {
  const tws_module *heads, *expand;
} latent_layer;

static const tws_module *producer_of(const tws_lower *l, uint32_t value) {
  return &l->network->modules[l->network->values[value].producer];
}

/* Returns 1 and the modules if m is attention that caches compressed rows. Weights that are gathered for one module at
 * a time (stage 3), or are in codes, are read by their own module alone: such layers cache keys and values. */
static int is_latent(const tws_lower *l, const tws_module *m, latent_layer *out) {
  if (m->type != TWS_MODULE_ATTENTION || m->window > 0 || m->flags || l->zero.stage == 3) return 0;
  if (m->cap < 0 || m->cap > 0) return 0;
  out->heads = producer_of(l, m->in[0]);
  if (out->heads->type != TWS_MODULE_LATENT) return 0;
  out->expand = producer_of(l, out->heads->in[2]);
  return out->expand->type == TWS_MODULE_LINEAR && out->expand->param[1] == TWS_NONE &&
         !tws_is_quantized(l, out->expand->param[0]) &&
         tws_module_weight_tiles(l, (uint32_t)(out->expand - l->network->modules)) == 1;
}

/* Returns 1 for a module that computes rows of the source of an encoder-decoder: the encoder, and the keys and values
 * of its output. */
static int is_of_source(const tws_lower *l, const tws_module *m) {
  if (l->network->objective != TWS_OBJECTIVE_PAIRS || m->out[0] == TWS_NONE) return 0;
  const tws_value *value = &l->network->values[m->out[0]];
  return value->row_dims > 1 && value->row[1].kind == TWS_DIM_SEQUENCE;
}

int tws_cache_skips(const tws_lower *l, const tws_module *m) {
  enum { CLOSE = 6 }; /* attention follows the modules that make its keys and values */
  const tws_module *end = l->network->modules + l->network->module_count;
  latent_layer layer;
  if (l->b.plan->program == TWS_PROGRAM_DECODE && is_of_source(l, m)) return 1;
  if (l->b.plan->program != TWS_PROGRAM_DECODE || (m->type != TWS_MODULE_LATENT && m->type != TWS_MODULE_LINEAR))
    return 0;
  for (const tws_module *a = m + 1; a < end && a <= m + CLOSE; a++)
    if (is_latent(l, a, &layer) && (m == layer.heads || m == layer.expand)) return 1;
  return 0;
}

/* Returns 1 if the rows of a layer are in blocks, of which sequences have as many as they need. */
static int is_paged(const tws_lower *l, const tws_module *m) {
  latent_layer layer;
  return l->config->cache_block > 0 && m->type == TWS_MODULE_ATTENTION &&
         cached_rows(l, m) == l->config->cache_length && !is_latent(l, m, &layer);
}

/* Returns the number of blocks of a layer for one micro-batch. */
static int64_t pool_of(const tws_lower *l) {
  const tws_config *c = l->config;
  return c->cache_blocks > 0 ? c->cache_blocks
                             : c->micro_batch_size * tws_cache_blocks_of(c->cache_length, c->cache_block);
}

static uint64_t cached_elements(const tws_lower *l, const tws_module *m) {
  latent_layer layer;
  if (is_paged(l, m)) return (uint64_t)(pool_of(l) * 2 * m->kv_heads * l->config->cache_block * m->head_size);
  if (is_latent(l, m, &layer)) {
    const tws_latent *sizes = layer.heads->latent;
    return (uint64_t)(l->config->micro_batch_size * cached_rows(l, m) * (sizes->rank + sizes->rope));
  }
  return (uint64_t)(l->config->micro_batch_size * 2 * m->kv_heads * cached_rows(l, m) * m->head_size);
}

/* Divides the cache's buffer into segments by layer and micro-batch, so that an operation waits only for accesses to
 * the segment that it uses. */
static void divide(tws_lower *l, uint32_t layers) {
  const uint64_t steps = (uint64_t)l->config->accumulation_steps;
  uint64_t *starts = tws_arena_alloc(l->b.plan->arena, layers * steps + 1, sizeof *starts);
  uint32_t count = 0;
  if (!starts) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return;
  }
  for (uint32_t m = 0; m < l->network->module_count; m++)
    for (uint64_t i = 0; l->cache.counts[m] > 0 && i < steps; i++)
      starts[count++] = l->cache.first[m] + i * l->cache.counts[m];
  tws_builder_segments(&l->b, l->cache.buffer, starts, count);
}

tws_code tws_cache_begin(tws_lower *l) {
  uint64_t elements = 0;
  uint32_t layers = 0;
  if (!tws_program_serves(l->b.plan->program)) return TWS_OK;
  l->cache.first = tws_lower_memory(l, l->network->module_count, sizeof *l->cache.first);
  l->cache.counts = tws_lower_memory(l, l->network->module_count, sizeof *l->cache.counts);
  for (int c = 0; c < l->pipeline.chunk_count && l->b.failed == TWS_OK; c++)
    for (uint32_t i = l->pipeline.chunks[c].first; i < l->pipeline.chunks[c].end; i++) {
      const tws_module *m = &l->network->modules[i];
      if (!has_cache(m)) continue;
      l->cache.first[i] = elements;
      l->cache.counts[i] = cached_elements(l, m);
      elements += l->cache.counts[i] * (uint64_t)l->config->accumulation_steps;
      layers++;
    }
  if (elements == 0 || l->b.failed != TWS_OK) return l->b.failed;
  const tws_state_entry entry = {.name = "keys and values",
                                 .tier = TWS_TIER_DEVICE,
                                 .dtype = (uint8_t)cache_type(l),
                                 .category = TWS_CATEGORY_CACHE,
                                 .role = TWS_ELEMENTS_NONE,
                                 .initial = TWS_INITIAL_ZERO,
                                 .elements = elements};
  l->cache.buffer = tws_builder_state(&l->b, &entry);
  if (l->b.failed == TWS_OK) divide(l, layers);
  return l->b.failed;
}

static tws_operand cache_of(const tws_lower *l, const tws_module *m, uint32_t access) {
  const size_t i = (size_t)(m - l->network->modules);
  return (tws_operand){.buffer = l->cache.buffer,
                       .access = access,
                       .offset = l->cache.first[i] + l->b.micro_batch * l->cache.counts[i],
                       .count = l->cache.counts[i]};
}

/* Returns the input with the numbers of tokens of the program's texts. */
static tws_input_content counts_of(const tws_lower *l) {
  return tws_network_input_of(l->network, TWS_INPUT_COUNTS) == TWS_NONE ? TWS_INPUT_LENGTHS : TWS_INPUT_COUNTS;
}

static tws_operand input_of(tws_lower *l, tws_input_content content) {
  return tws_input_read(l, tws_network_input_of(l->network, content));
}

static void set_sizes(const tws_lower *l, const tws_module *m, tws_work *work) {
  const int64_t sequence = l->values.whole_sequence[m->in[0]];
  work->d[0] = tws_module_rows(l, m) / sequence;
  work->d[1] = sequence;
  work->d[2] = m->heads;
  work->d[3] = m->kv_heads;
  work->d[4] = m->head_size;
  work->d[5] = cached_rows(l, m);
  work->dtype2 = (uint8_t)cache_type(l);
}

/* Sets the parameters of rotations of a kernel on compressed rows. */
static void set_rotation(const tws_latent *sizes, tws_work *work) {
  work->f[0] = sizes->theta;
  work->f[1] = sizes->factor;
  work->f[2] = sizes->low;
  work->f[3] = sizes->high;
}

static void write_latent(tws_lower *l, const tws_module *m, const latent_layer *layer) {
  const tws_latent *sizes = layer->heads->latent;
  const int64_t sequence = l->values.whole_sequence[m->in[0]];
  tws_work work = tws_kernel_work(TWS_KERNEL_LATENT_WRITE, l->config->dtype, 0);
  work.d[0] = tws_module_rows(l, m) / sequence;
  work.d[1] = sequence;
  work.d[2] = sizes->rank;
  work.d[3] = sizes->rope;
  work.d[4] = cached_rows(l, m);
  work.dtype2 = (uint8_t)cache_type(l);
  set_rotation(sizes, &work);
  const tws_operand operands[] = {tws_value_read(l, layer->expand->in[0]), tws_value_read(l, layer->heads->in[1]),
                                  input_of(l, TWS_INPUT_STARTS), input_of(l, counts_of(l)),
                                  cache_of(l, m, TWS_READ_WRITE)};
  tws_lower_compute(l, &work, operands, 5);
}

/* Lowers attention of one token of each text to compressed rows. */
static void decode_latent(tws_lower *l, const tws_module *m, const latent_layer *layer) {
  const tws_latent *sizes = layer->heads->latent;
  const int64_t sequence = l->values.whole_sequence[m->in[0]], rows = cached_rows(l, m);
  const double scale = m->scale > 0 ? m->scale : 1 / sqrt((double)m->head_size);
  tws_work work = tws_kernel_work(TWS_KERNEL_LATENT_ATTENTION, l->config->dtype, 0);
  work.d[0] = tws_module_rows(l, m) / sequence;
  work.d[1] = sequence;
  work.d[2] = m->heads;
  work.d[3] = sizes->nope;
  work.d[4] = sizes->rope;
  work.d[5] = sizes->value;
  work.d[6] = sizes->rank;
  work.d[7] = rows;
  work.dtype2 = (uint8_t)cache_type(l);
  set_rotation(sizes, &work);
  work.f[4] = scale * sizes->gain;
  work.f[5] = l->config->cache_seen < rows ? (double)l->config->cache_seen : 0;
  const tws_operand operands[] = {tws_value_read(l, layer->heads->in[0]),
                                  tws_zero_param(l, layer->expand->param[0]),
                                  cache_of(l, m, TWS_READ),
                                  input_of(l, TWS_INPUT_STARTS),
                                  input_of(l, counts_of(l)),
                                  tws_value_write(l, m->out[0])};
  tws_lower_compute(l, &work, operands, 6);
}

int tws_cache_has(const tws_lower *l, const tws_module *m) {
  return l->cache.buffer != TWS_NONE && has_cache(m);
}

/* Writes the keys and values of the program's tokens, or those of a source, all of whose tokens a prefill has. */
static void write_keys(tws_lower *l, const tws_module *m) {
  const int cross = m->type == TWS_MODULE_CROSS_ATTENTION;
  tws_work work = tws_kernel_work(TWS_KERNEL_CACHE_WRITE, l->config->dtype, cross ? TWS_Q_KV : 0);
  set_sizes(l, m, &work);
  if (cross) work.d[1] = l->values.whole_sequence[m->in[1]];
  tws_operand operands[5] = {tws_value_read(l, m->in[cross]), input_of(l, TWS_INPUT_STARTS),
                             input_of(l, cross ? TWS_INPUT_LENGTHS : counts_of(l)), cache_of(l, m, TWS_READ_WRITE)};
  if (is_paged(l, m)) {
    work.flags |= TWS_PAGED;
    work.d[6] = l->config->cache_block;
    work.d[7] = pool_of(l);
    operands[4] = input_of(l, TWS_INPUT_BLOCKS);
  }
  tws_lower_compute(l, &work, operands, work.flags & TWS_PAGED ? 5 : 4);
}

/* Lowers attention of one token of each text to its cache, or to that of its source, which it sees up to the end. */
static void decode_keys(tws_lower *l, const tws_module *m) {
  tws_arguments heads;
  const int cross = m->type == TWS_MODULE_CROSS_ATTENTION;
  const uint32_t flags = cross ? TWS_Q_KV : m->flags & (TWS_ALIBI | TWS_RELATIVE);
  tws_work work = tws_kernel_work(TWS_KERNEL_CACHED_ATTENTION, l->config->dtype, flags);
  set_sizes(l, m, &work);
  work.d[6] = !cross && l->config->cache_seen < work.d[5] ? l->config->cache_seen : 0;
  work.f[0] = m->scale;
  work.f[1] = m->cap;
  work.f[2] = m->slope;
  work.f[3] = flags & TWS_RELATIVE ? m->buckets : 0;
  work.f[4] = flags & TWS_RELATIVE ? m->max_distance : 0;
  tws_dropout_arguments(l, m, TWS_KERNEL_ATTENTION, &heads);
  int count = 5;
  tws_operand operands[7] = {tws_value_read(l, m->in[0]), cache_of(l, m, TWS_READ),
                             input_of(l, cross ? TWS_INPUT_ENDS : TWS_INPUT_STARTS), input_of(l, counts_of(l)),
                             tws_value_write(l, m->out[0])};
  if (flags & TWS_RELATIVE) operands[count++] = tws_zero_param(l, m->param[0]);
  if (is_paged(l, m)) {
    work.flags |= TWS_PAGED;
    work.f[5] = (double)l->config->cache_block;
    work.d[7] = pool_of(l);
    operands[count++] = input_of(l, TWS_INPUT_BLOCKS);
  }
  tws_lower_compute_with(l, &work, &(tws_arguments){{heads.a[2], heads.a[3]}}, operands, count);
}

void tws_cache_attention(tws_lower *l, const tws_module *m) {
  latent_layer layer;
  if (is_latent(l, m, &layer)) {
    write_latent(l, m, &layer);
    if (l->b.plan->program == TWS_PROGRAM_PREFILL)
      tws_lower_kernel(l, m, tws_module_row_of(m->type)->forward);
    else
      decode_latent(l, m, &layer);
    return;
  }
  const int cross = m->type == TWS_MODULE_CROSS_ATTENTION, prefill = l->b.plan->program == TWS_PROGRAM_PREFILL;
  /* a decode has the keys and values of a source from the prefill */
  if (!cross || prefill) write_keys(l, m);
  if (prefill) /* the prompts are all that there is */
    tws_lower_kernel(l, m, tws_module_row_of(m->type)->forward);
  else
    decode_keys(l, m);
}

void tws_cache_scores(tws_lower *l, const tws_module *m) {
  tws_plan *plan = l->b.plan;
  tws_operand logits = tws_value_read(l, m->in[0]);
  if (tws_local_of(l, m)->split != TWS_SPLIT_NONE) logits = tws_exchange_gather(l, logits, "scores of all ranks");
  if (l->b.failed != TWS_OK) return;
  if (plan->scores == TWS_NONE)
    plan->scores = tws_builder_buffer(&l->b, "scores", TWS_CATEGORY_ACTIVATION, TWS_F32,
                                      logits.count * (uint64_t)l->extent.accumulation, TWS_LIFETIME_PROGRAM);
  const tws_operand scores = tws_write(plan->scores, l->b.micro_batch * logits.count, logits.count);
  if (l->config->dtype == TWS_F32) {
    tws_builder_copy(&l->b, TWS_STREAM_COMPUTE, logits, scores);
    return;
  }
  tws_work work = tws_kernel_work(TWS_KERNEL_CAST, l->config->dtype, 0);
  work.dtype2 = TWS_F32;
  work.d[0] = (int64_t)logits.count;
  const tws_operand operands[] = {logits, scores};
  tws_lower_compute(l, &work, operands, 2);
}
