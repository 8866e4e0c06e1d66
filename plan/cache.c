/* The cache of keys and values of inference: an entry of the state with, for each layer of attention of this rank, the
 * keys and values of every sequence (models/operators_cache.def). A prefill writes the keys and values of the prompts,
 * whose tokens attend only to the prompt; decoding writes those of one more token, which attends to the cache. Layers
 * with a sliding window keep as many rows as the window has. */
#include "models/network/module.h"
#include "plan/lower.h"

/* Returns the number of positions for which the cache of a layer stores the keys and values of a sequence. */
static int64_t cached_rows(const tws_lower *l, const tws_module *m) {
  const int64_t all = l->config->cache_length;
  return m->window > 0 && m->window < all ? m->window : all;
}

static tws_dtype cache_type(const tws_lower *l) {
  return l->config->cache_bits == 8 ? TWS_E4M3 : l->config->dtype;
}

static uint64_t cached_elements(const tws_lower *l, const tws_module *m) {
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
      if (m->type != TWS_MODULE_ATTENTION) continue;
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

void tws_cache_attention(tws_lower *l, const tws_module *m) {
  const tws_operand qkv = tws_value_read(l, m->in[0]);
  const tws_operand starts = input_of(l, TWS_INPUT_STARTS), lengths = input_of(l, TWS_INPUT_LENGTHS);
  tws_work write = tws_kernel_work(TWS_KERNEL_CACHE_WRITE, l->config->dtype, 0);
  set_sizes(l, m, &write);
  const tws_operand written[] = {qkv, starts, lengths, cache_of(l, m, TWS_READ_WRITE)};
  tws_lower_compute(l, &write, written, 4);
  if (l->b.plan->program == TWS_PROGRAM_PREFILL) { /* a prefill attends to the prompt alone, without the cache */
    tws_lower_kernel(l, m, tws_module_row_of(m->type)->forward);
    return;
  }
  tws_arguments heads;
  tws_work work = tws_kernel_work(TWS_KERNEL_CACHED_ATTENTION, l->config->dtype, m->flags & TWS_ALIBI);
  set_sizes(l, m, &work);
  work.d[6] = l->config->cache_seen < work.d[5] ? l->config->cache_seen : 0;
  work.f[0] = m->scale;
  work.f[1] = m->cap;
  work.f[2] = m->slope;
  tws_dropout_arguments(l, m, TWS_KERNEL_ATTENTION, &heads);
  const tws_operand operands[] = {qkv, cache_of(l, m, TWS_READ), starts, lengths, tws_value_write(l, m->out[0])};
  tws_lower_compute_with(l, &work, &(tws_arguments){{heads.a[2], heads.a[3]}}, operands, 5);
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
