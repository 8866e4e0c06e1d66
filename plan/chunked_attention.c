/* Attention in chunks of the sequence (Yao et al., "Training Ultra Long Context Language Model with Fully Pipelined
 * Distributed Transformer", 2024: FPDT, Ulysses-Offload). The layer that computes queries, keys and values, rotary
 * positions, attention, the layer after it and the all-to-alls of Ulysses between them process one chunk of a sample
 * after another, so that no value between them exists whole. The keys and values of a chunk are copied to the host.
 * The queries of a later chunk attend to its own keys, and to those of each earlier chunk, which are copied back into
 * two alternating staging buffers: one is filled while attention reads the other; the partial results are merged as in
 * ring attention.
 *
 * The backward pass processes the chunks in descending order. It computes the queries, keys and values of a chunk
 * again, and copies attention's results back that the forward pass stored on the host. The gradients of the keys and
 * values of earlier chunks are sums on the host to which each later chunk adds; the sum of a chunk is complete when the
 * backward pass arrives at it.
 *
 * Buffers that copies use live for the whole program, so that no copy waits for memory that another buffer had. */
#include "plan/attention_parts.h"

#include <stdio.h>

#include "models/zigzag.h"

/* Host memory of one attention module for one micro-batch: buffers for the keys and values, and the results of
 * attention, of all tiles. */
typedef struct store {
  uint32_t module, micro_batch;
  int used;            /* 1: the store belongs to this module and micro-batch */
  uint32_t kv, o, lse; /* plan buffers; o and lse: TWS_NONE until a visit stores results */
} store;

/* Two device buffers that are used alternately: a copy fills one while a kernel reads the other. */
typedef struct slots {
  uint32_t buffer[2];
  uint32_t used; /* number of times that a buffer was taken */
} slots;

typedef struct tws_chunked {
  int chunks;      /* number of chunks of a sample */
  uint32_t *first; /* per module: the first module of its group, or TWS_NONE */
  uint32_t *last;  /* per module: the last module of its group */
  uint32_t *attention;
  store *stores;
  uint32_t store_count;
  size_t store_capacity;
  slots sent, fetched, gradients, o, lse;
  uint32_t sums; /* plan buffer on the host: the gradients of the keys and values of the chunks of a sample */
} tws_chunked;

/* One chunk of a sample in an attention module. */
typedef struct chunk {
  tws_lower *l;
  const tws_module *m;
  int index, tile;     /* number of the chunk in its sample, and of the tile in the micro-batch */
  int64_t length;      /* tokens */
  uint64_t q, kv, lse; /* elements of the chunk's queries, of its keys and values, and of its sums */
  store *store;
} chunk;

/* ---- groups of modules ---- */

int tws_chunked_group_of(const tws_lower *l, uint32_t module, tws_chunked_group *group) {
  const tws_chunked *c = l->chunked;
  if (!c || c->first[module] == TWS_NONE) return 0;
  *group = (tws_chunked_group){.first = c->first[module],
                               .attention = c->attention[module],
                               .last = c->last[module],
                               .tiles = c->chunks * (int)l->config->micro_batch_size};
  return 1;
}

/* Returns 1 if module `next` reads the first output of module `m`, and no other module does. */
static int is_only_reader(const tws_lower *l, uint32_t m, uint32_t next) {
  const tws_module *modules = l->network->modules;
  const uint32_t value = modules[m].out[0];
  int readers = 0;
  for (uint32_t i = m + 1; i < l->network->module_count && i <= next + 8; i++)
    for (int k = 0; k < TWS_MODULE_INS; k++) readers += modules[i].in[k] == value;
  return readers == 1 && modules[next].in[0] == value;
}

static int is_between(tws_module_type type) {
  return type == TWS_MODULE_EXCHANGE || type == TWS_MODULE_ROPE || type == TWS_MODULE_HEADS_NORM;
}

/* Finds the group of an attention module. Returns 0 if there is no layer before it, or after it, with only modules
 * between them that can process a chunk. */
static int find_group(const tws_lower *l, uint32_t attention, uint32_t *first, uint32_t *last) {
  const tws_module *modules = l->network->modules;
  uint32_t at = attention;
  do {
    if (at == 0 || !is_only_reader(l, at - 1, at)) return 0;
    at--;
  } while (is_between((tws_module_type)modules[at].type));
  *first = at;
  if (modules[at].type != TWS_MODULE_LINEAR) return 0;
  at = attention;
  do {
    if (at + 1 >= l->network->module_count || !is_only_reader(l, at, at + 1)) return 0;
    at++;
  } while (modules[at].type == TWS_MODULE_EXCHANGE);
  *last = at;
  return modules[at].type == TWS_MODULE_LINEAR;
}

static tws_code check(const tws_lower *l, tws_error *err) {
  const tws_config *c = l->config;
  const tws_network *network = l->network;
  char hint[128];
  for (uint32_t m = 0; m < network->module_count; m++) {
    const char *what = tws_causal_parts_lack(&network->modules[m], c->sequence_length, c->dropout);
    if (what)
      return tws_fail(err, TWS_UNSUPPORTED, "set twinspeed.attention_chunks to 1",
                      "%s: attention in chunks does not process %s", network->modules[m].name, what);
  }
  if (l->sharding.ring)
    return tws_fail(err, TWS_UNSUPPORTED, "set twinspeed.sequence_algorithm to \"ulysses\"",
                    "attention in chunks (twinspeed.attention_chunks) is not combined with ring attention");
  if (l->sharding.position.ranks[TWS_AXIS_PIPE] > 1)
    return tws_fail(err, TWS_UNSUPPORTED, "set pipeline.stages to 1, or twinspeed.attention_chunks to 1",
                    "attention in chunks (twinspeed.attention_chunks) is not combined with pipeline stages");
  if (l->sharding.between == TWS_PLACED_TOKENS && l->sharding.position.ranks[TWS_AXIS_MODEL] > 1)
    return tws_fail(err, TWS_UNSUPPORTED, "set twinspeed.tensor_sequence_parallel to false",
                    "attention in chunks does not process tokens that tensor-parallel ranks divide");
  const int64_t parts = c->attention_chunks * l->sharding.position.ranks[TWS_AXIS_SEQUENCE];
  if (c->sequence_length % parts) {
    snprintf(hint, sizeof hint, "use a sequence of %lld tokens", (long long)((c->sequence_length / parts + 1) * parts));
    return tws_fail(err, TWS_INVALID, hint, "%lld chunks on each of %d ranks do not divide a sequence of %lld tokens",
                    (long long)c->attention_chunks, l->sharding.position.ranks[TWS_AXIS_SEQUENCE],
                    (long long)c->sequence_length);
  }
  if (c->attention_chunks * c->micro_batch_size > UINT16_MAX)
    return tws_fail(err, TWS_UNSUPPORTED, "use fewer chunks, or a smaller micro batch",
                    "%lld chunks of %lld samples are more than 65,535", (long long)c->attention_chunks,
                    (long long)c->micro_batch_size);
  return TWS_OK;
}

tws_code tws_chunked_begin(tws_lower *l, tws_error *err) {
  const uint32_t count = l->network->module_count;
  if (l->config->attention_chunks <= 1) return TWS_OK;
  TWS_TRY(check(l, err));
  tws_chunked *c = tws_lower_memory(l, 1, sizeof *c);
  if (!c) return l->b.failed;
  *c = (tws_chunked){.chunks = (int)l->config->attention_chunks, .sums = TWS_NONE};
  c->first = tws_lower_memory(l, count, sizeof *c->first);
  c->last = tws_lower_memory(l, count, sizeof *c->last);
  c->attention = tws_lower_memory(l, count, sizeof *c->attention);
  if (l->b.failed != TWS_OK) return l->b.failed;
  for (uint32_t m = 0; m < count; m++) c->first[m] = TWS_NONE;
  for (uint32_t m = 0; m < count; m++) {
    uint32_t first, last;
    if (l->network->modules[m].type != TWS_MODULE_ATTENTION) continue;
    if (!find_group(l, m, &first, &last))
      return tws_fail(err, TWS_UNSUPPORTED, "set twinspeed.attention_chunks to 1",
                      "%s: attention in chunks needs a layer directly before it (or before rotary positions and "
                      "norms of heads) and one directly after it",
                      l->network->modules[m].name);
    for (uint32_t i = first; i <= last; i++) c->first[i] = first, c->last[i] = last, c->attention[i] = m;
  }
  slots *const all[5] = {&c->sent, &c->fetched, &c->gradients, &c->o, &c->lse};
  for (int i = 0; i < 5; i++) all[i]->buffer[0] = all[i]->buffer[1] = TWS_NONE;
  l->chunked = c;
  return TWS_OK;
}

int64_t tws_chunk_first_token(const tws_lower *l) {
  if (!l->at.chunk_role) return 0;
  return l->config->sequence_length / l->chunked->chunks * (l->at.tile % l->chunked->chunks);
}

int tws_has_token_parts(const tws_lower *l) {
  return l->chunked && l->sharding.position.ranks[TWS_AXIS_SEQUENCE] > 1;
}

int tws_token_parts(const tws_lower *l) {
  return l->chunked->chunks * (int)l->config->micro_batch_size;
}

tws_operand tws_part_of_tokens(const tws_lower *l, tws_operand tokens, int part) {
  tokens.count /= (uint64_t)tws_token_parts(l);
  tokens.offset += tokens.count * (uint64_t)part;
  return tokens;
}

tws_operand tws_positions_of_part(const tws_lower *l, const tws_module *m, tws_operand table, int part) {
  const tws_position *at = &l->sharding.position;
  const tws_token_ranges ranges = tws_token_ranges_of(l->config->sequence_length, at->ranks[TWS_AXIS_SEQUENCE],
                                                      at->index[TWS_AXIS_SEQUENCE], 0, l->chunked->chunks);
  const int64_t row = ranges.first + part % l->chunked->chunks * (ranges.length + ranges.gap);
  table.offset += (uint64_t)((m->first_position + row) * m->out_features);
  table.count = (uint64_t)(ranges.length * m->out_features);
  table.access = TWS_READ;
  return table;
}

/* ---- buffers ---- */

static uint32_t program_buffer(tws_lower *l, const char *name, tws_tier tier, tws_category category, tws_dtype dtype,
                               uint64_t elements) {
  const uint32_t buffer = tws_builder_buffer(&l->b, name, category, dtype, elements, TWS_LIFETIME_PROGRAM);
  if (l->b.failed == TWS_OK) l->b.plan->buffers[buffer].tier = (uint8_t)tier;
  return buffer;
}

/* Returns a host buffer with `elements` elements for each of `count` chunks. Hazards are tracked separately for each
 * chunk. */
static uint32_t host_buffer(tws_lower *l, const char *name, tws_category category, tws_dtype dtype, uint64_t elements,
                            int count) {
  const uint32_t buffer = program_buffer(l, name, TWS_TIER_PINNED, category, dtype, elements * (uint64_t)count);
  uint64_t *starts = tws_arena_alloc(l->b.plan->arena, (size_t)count, sizeof *starts);
  if (!starts) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return buffer;
  }
  for (int i = 0; i < count; i++) starts[i] = elements * (uint64_t)i;
  tws_builder_segments(&l->b, buffer, starts, (uint32_t)count);
  return buffer;
}

/* Returns an operand that is one of two device buffers, which successive calls return alternately; a buffer is created
 * when it is first used. */
static tws_operand take(tws_lower *l, slots *s, const char *name, tws_category category, tws_dtype dtype,
                        uint64_t elements) {
  uint32_t *buffer = &s->buffer[s->used++ % 2];
  if (*buffer == TWS_NONE) *buffer = program_buffer(l, name, TWS_TIER_DEVICE, category, dtype, elements);
  return tws_write(*buffer, 0, elements);
}

/* Returns the part of a host buffer that belongs to one chunk. */
static tws_operand part_of(uint32_t buffer, int index, uint64_t elements, uint32_t access) {
  return (tws_operand){buffer, access, (uint64_t)index * elements, elements};
}

/* Returns the store of a module in the current micro-batch; if it has none yet, an unused store, or a new one. NULL:
 * out of memory. */
static store *store_of(chunk *c) {
  tws_lower *l = c->l;
  tws_chunked *all = l->chunked;
  const uint32_t module = (uint32_t)(c->m - l->network->modules);
  store *unused = NULL;
  for (uint32_t i = 0; i < all->store_count; i++) {
    store *s = &all->stores[i];
    if (s->used && s->module == module && s->micro_batch == l->b.micro_batch) return s;
    if (!s->used) unused = s;
  }
  if (!unused) {
    if (all->store_count == all->store_capacity) {
      const size_t room = all->store_capacity ? 2 * all->store_capacity : 8;
      store *more = tws_lower_memory(l, room, sizeof *more);
      if (!more) return NULL;
      for (uint32_t i = 0; i < all->store_count; i++) more[i] = all->stores[i];
      all->stores = more;
      all->store_capacity = room;
    }
    unused = &all->stores[all->store_count++];
    *unused = (store){.o = TWS_NONE};
    unused->kv =
        host_buffer(l, "keys and values on the host", TWS_CATEGORY_ACTIVATION, l->config->dtype, c->kv, l->at.tiles);
  }
  unused->module = module;
  unused->micro_batch = l->b.micro_batch;
  unused->used = 1;
  return unused;
}

/* Adds host buffers for the results of attention to the store, unless it has them. */
static void store_results(chunk *c) {
  tws_lower *l = c->l;
  store *s = c->store;
  if (s->o != TWS_NONE) return;
  s->o = host_buffer(l, "attention on the host", TWS_CATEGORY_ACTIVATION, l->config->dtype, c->q, l->at.tiles);
  s->lse = host_buffer(l, "its sums on the host", TWS_CATEGORY_ACTIVATION, TWS_F32, c->lse, l->at.tiles);
}

static chunk chunk_of(tws_lower *l, const tws_module *m) {
  const int64_t length = l->config->sequence_length / l->chunked->chunks;
  chunk c = {.l = l,
             .m = m,
             .index = l->at.tile % l->chunked->chunks,
             .tile = l->at.tile,
             .length = length,
             .q = (uint64_t)(length * m->heads * m->head_size),
             .kv = 2 * (uint64_t)(length * m->kv_heads * m->head_size),
             .lse = (uint64_t)(length * m->heads)};
  return c;
}

static tws_operand scratch(const chunk *c, const char *name, uint64_t elements) {
  return tws_lower_scratch(c->l, name, c->l->config->dtype, elements);
}

static void copy(const chunk *c, tws_stream stream, tws_operand from, tws_operand to) {
  tws_builder_copy(&c->l->b, stream, tws_with_access(from, TWS_READ), tws_with_access(to, TWS_WRITE));
}

/* Copies the keys and values of chunk `index` of the same sample from the host. */
static tws_operand fetch_keys(const chunk *c, int index) {
  const tws_operand to = take(c->l, &c->l->chunked->fetched, "keys and values of a chunk", TWS_CATEGORY_ACTIVATION,
                              c->l->config->dtype, c->kv);
  copy(c, TWS_STREAM_COPY_IN, part_of(c->store->kv, c->tile - c->index + index, c->kv, TWS_READ), to);
  return tws_with_access(to, TWS_READ);
}

/* ---- forward ---- */

/* Sets the next staging buffers of take() as the outputs of attention, and writes their operands. */
static void place_results(const chunk *c, tws_operand *o, tws_operand *lse) {
  tws_lower *l = c->l;
  *o = take(l, &l->chunked->o, "attention of a chunk", TWS_CATEGORY_ACTIVATION, l->config->dtype, c->q);
  *lse = take(l, &l->chunked->lse, "sums of a chunk", TWS_CATEGORY_ACTIVATION, TWS_F32, c->lse);
  tws_value_place(l, c->m->out[0], o->buffer);
  tws_value_place(l, c->m->out[1], lse->buffer);
}

/* Copies the stored results of attention back to the device. */
static void return_results(const chunk *c) {
  tws_operand o, lse;
  place_results(c, &o, &lse);
  if (c->l->b.failed != TWS_OK) return;
  copy(c, TWS_STREAM_COPY_IN, part_of(c->store->o, c->tile, c->q, TWS_READ), o);
  copy(c, TWS_STREAM_COPY_IN, part_of(c->store->lse, c->tile, c->lse, TWS_READ), lse);
}

static void attend(const chunk *c, tws_operand q, tws_operand kv, tws_operand o, tws_operand lse) {
  tws_lower *l = c->l;
  const tws_work work = tws_attention_block_work(l, c->m, TWS_KERNEL_ATTENTION, c->length, c->length);
  const tws_operand part = scratch(c, "attention to some keys", c->q);
  const tws_operand lse_part = tws_lower_scratch(l, "their sums", TWS_F32, c->lse);
  const tws_operand operands[5] = {tws_with_access(q, TWS_READ), kv, part, lse_part, tws_lower_workspace(l, &work)};
  tws_lower_compute(l, &work, operands, 5);
  tws_attention_merge(l, c->m, 1, c->length, c->length, part, lse_part, o, lse);
}

/* Copies the keys and values of this chunk to the host, unless no later chunk reads them, and returns its queries. */
static tws_operand send_keys(const chunk *c, tws_operand qkv) {
  tws_lower *l = c->l;
  const tws_operand q = scratch(c, "queries", c->q);
  const tws_operand kv =
      take(l, &l->chunked->sent, "keys and values to the host", TWS_CATEGORY_ACTIVATION, l->config->dtype, c->kv);
  tws_heads_split(l, c->m, c->length, qkv, q, kv);
  if (c->index + 1 < l->chunked->chunks)
    copy(c, TWS_STREAM_COPY_OUT, kv, part_of(c->store->kv, c->tile, c->kv, TWS_WRITE));
  return q;
}

void tws_chunked_forward(tws_lower *l, const tws_module *m) {
  chunk c = chunk_of(l, m);
  c.store = store_of(&c);
  if (l->b.failed != TWS_OK) return;
  if (l->at.chunk_role == TWS_CHUNK_RETURN) {
    return_results(&c);
    /* the first chunk of a sample is the last visited in backward and reads no keys of earlier chunks, so the host
     * memory is free */
    if (tws_is_last_tile(l)) c.store->used = 0;
    return;
  }
  tws_operand next = {0}, o, lse;
  const tws_operand qkv = tws_value_read(l, m->in[0]);
  if (c.index > 0) next = fetch_keys(&c, 0);
  const tws_operand q = send_keys(&c, qkv);
  const tws_work own = tws_attention_own_work(l, m, TWS_KERNEL_ATTENTION, 1, c.length);
  place_results(&c, &o, &lse);
  const tws_operand operands[4] = {qkv, o, lse, tws_lower_workspace(l, &own)};
  tws_lower_compute(l, &own, operands, 4);
  for (int i = 0; i < c.index && l->b.failed == TWS_OK; i++) {
    const tws_operand kv = next;
    if (i + 1 < c.index) next = fetch_keys(&c, i + 1);
    attend(&c, q, kv, o, lse);
  }
  if (l->at.chunk_role == TWS_CHUNK_STORE) {
    store_results(&c);
    copy(&c, TWS_STREAM_COPY_OUT, o, part_of(c.store->o, c.tile, c.q, TWS_WRITE));
    copy(&c, TWS_STREAM_COPY_OUT, lse, part_of(c.store->lse, c.tile, c.lse, TWS_WRITE));
  } else if (tws_is_last_tile(l)) {
    c.store->used = 0;
  }
}

/* ---- backward ---- */

typedef struct backward {
  tws_operand q, d_o, o, lse;
  tws_operand dq; /* the sum of the gradients of the chunk's queries so far */
  int has_dq;
} backward;

/* Returns the sum, so far, of the gradients of the keys and values of a chunk: copied from the host if a later chunk
 * has contributed to it, otherwise a buffer without contents. */
static tws_operand fetch_sum(const chunk *c, int index) {
  tws_lower *l = c->l;
  const tws_operand sum = take(l, &l->chunked->gradients, "gradients of keys and values of a chunk",
                               TWS_CATEGORY_ACTIVATION_GRADIENT, l->config->dtype, c->kv);
  if (c->index + 1 < l->chunked->chunks)
    copy(c, TWS_STREAM_COPY_IN, part_of(l->chunked->sums, index, c->kv, TWS_READ), sum);
  return sum;
}

/* Emits the gradients of this chunk's queries, and of the keys and values of chunk `index`, to which they attend. */
static void differentiate(const chunk *c, backward *w, int index, tws_operand kv, tws_operand sum) {
  tws_lower *l = c->l;
  const int adds = c->index + 1 < l->chunked->chunks;
  const tws_work work = tws_attention_block_work(l, c->m, TWS_KERNEL_ATTENTION_GRAD, c->length, c->length);
  const tws_operand dq = w->has_dq ? scratch(c, "gradients of queries to add", c->q) : w->dq;
  const tws_operand dkv = adds ? scratch(c, "gradients of keys and values to add", c->kv) : sum;
  const tws_operand operands[8] = {w->d_o, w->q, kv, w->o, w->lse, dq, dkv, tws_lower_workspace(l, &work)};
  tws_lower_compute(l, &work, operands, 8);
  if (w->has_dq) tws_lower_accumulate(l, dq, w->dq);
  if (adds) tws_lower_accumulate(l, dkv, sum);
  w->has_dq = 1;
  copy(c, TWS_STREAM_COPY_OUT, sum, part_of(l->chunked->sums, index, c->kv, TWS_WRITE));
}

/* Adds the gradients from blocks of two different chunks to those of the chunk's own block. */
static void add_blocks(const chunk *c, const backward *w, tws_operand into) {
  tws_lower *l = c->l;
  tws_operand dkv;
  /* the sum starts at 0: the first chunk has no gradient from other chunks, since it attends to its own keys alone */
  if (!w->has_dq) tws_lower_clear(l, w->dq, l->config->dtype);
  if (c->index + 1 < l->chunked->chunks) {
    dkv = fetch_sum(c, c->index);
  } else { /* no later chunk has contributed to the gradients of the last chunk's keys */
    dkv = scratch(c, "gradients of keys and values", c->kv);
    tws_lower_clear(l, dkv, l->config->dtype);
  }
  tws_heads_join(l, c->m, c->length, w->dq, dkv, into);
}

void tws_chunked_backward(tws_lower *l, const tws_module *m) {
  int adds;
  tws_operand next = {0}, next_sum = {0};
  chunk c = chunk_of(l, m);
  if (!l->needed[m->in[0]]) return;
  if (c.index > 0) c.store = store_of(&c);
  if (l->b.failed != TWS_OK) return;
  const tws_operand into = tws_value_gradient_out(l, m->in[0], &adds);
  const tws_operand qkv = tws_value_read(l, m->in[0]);
  backward w = {.d_o = tws_value_gradient(l, m->out[0]),
                .o = part_of(tws_value_read(l, m->out[0]).buffer, 0, c.q, TWS_READ),
                .lse = part_of(tws_value_read(l, m->out[1]).buffer, 0, c.lse, TWS_READ)};
  if (l->chunked->sums == TWS_NONE)
    l->chunked->sums = host_buffer(l, "gradients of keys and values on the host", TWS_CATEGORY_ACTIVATION_GRADIENT,
                                   l->config->dtype, c.kv, l->chunked->chunks);
  w.q = scratch(&c, "queries", c.q);
  w.dq = scratch(&c, "gradients of queries", c.q);
  if (l->b.failed != TWS_OK) return;
  if (c.index > 0) next = fetch_keys(&c, 0), next_sum = fetch_sum(&c, 0);
  const tws_work own = tws_attention_own_work(l, m, TWS_KERNEL_ATTENTION_GRAD, 1, c.length);
  const tws_operand operands[6] = {w.d_o, qkv, w.o, w.lse, into, tws_lower_workspace(l, &own)};
  tws_lower_compute(l, &own, operands, 6);
  if (c.index > 0) tws_heads_split(l, m, c.length, qkv, w.q, scratch(&c, "keys and values", c.kv));
  w.q.access = TWS_READ;
  for (int i = 0; i < c.index && l->b.failed == TWS_OK; i++) {
    const tws_operand kv = next, sum = next_sum;
    if (i + 1 < c.index) next = fetch_keys(&c, i + 1), next_sum = fetch_sum(&c, i + 1);
    differentiate(&c, &w, i, kv, sum);
  }
  add_blocks(&c, &w, into);
}
