/* Ring attention (context parallelism) over a sequence whose tokens are divided among ranks: keys and values circulate
 * on the ring of the axis "sequence" while each rank computes attention with the keys and values that it currently has
 * (Liu et al., "Ring Attention with Blockwise Transformers", 2023). Partial softmax results are merged by their sums of
 * exponentials. The sequence has 2n segments, of which rank r has r and 2n - 1 - r (models/zigzag.h), so that causal
 * attention has equal work on all ranks: all queries of a rank attend to the first half of the keys of each lower rank,
 * and the second half of its queries attends to all keys of each higher rank. Masked blocks are not computed. In the
 * backward pass the gradients of keys and values circulate with them, one step later, and return to their ranks. */
#include "plan/attention_parts.h"

typedef struct ring {
  tws_lower *l;
  const tws_module *m;
  int ranks, index;
  int64_t batch, length; /* samples of a micro-batch, and tokens of a sample on this rank */
  uint64_t q, kv;        /* elements of one token's queries, and of its keys and values */
  tws_dtype dtype;
} ring;

/* The queries of this rank and the keys of another rank that attend to each other in one step of the ring. */
typedef struct block {
  /* per sample: first query, number of queries, and number of keys, from the first key on */
  int64_t first_query, queries, keys;
} block;

static ring ring_of(tws_lower *l, const tws_module *m) {
  const int ranks = l->sharding.position.ranks[TWS_AXIS_SEQUENCE];
  return (ring){.l = l,
                .m = m,
                .ranks = ranks,
                .index = l->sharding.position.index[TWS_AXIS_SEQUENCE],
                .batch = l->config->micro_batch_size,
                .length = l->config->sequence_length / ranks,
                .q = (uint64_t)m->heads * (uint64_t)m->head_size,
                .kv = 2 * (uint64_t)m->kv_heads * (uint64_t)m->head_size,
                .dtype = l->config->dtype};
}

/* Returns the block that is computed after `step` shifts, when this rank has the keys of the rank that is `step`
 * positions before it on the ring. */
static block block_at(const ring *r, int step) {
  const int64_t half = r->length / 2;
  const int from_before = r->index - step >= 0;
  return from_before ? (block){0, r->length, half} : (block){half, half, r->length};
}

static tws_operand scratch(const ring *r, const char *name, uint64_t width) {
  return tws_lower_scratch(r->l, name, r->dtype, (uint64_t)(r->batch * r->length) * width);
}

/* Returns the operand of tokens [first, first + count) of one sample; `whole` has `length` tokens of each sample. */
static tws_operand tokens_of(tws_operand whole, int64_t sample, int64_t length, int64_t first, int64_t count,
                             uint64_t width, uint32_t access) {
  whole.offset += (uint64_t)(sample * length + first) * width;
  whole.count = (uint64_t)count * width;
  whole.access = access;
  return whole;
}

static void split_heads(const ring *r, tws_operand qkv, tws_operand q, tws_operand kv) {
  tws_heads_split(r->l, r->m, r->batch * r->length, qkv, q, kv);
}

/* Emits a collective that sends an operand to the next rank and receives that of the previous rank, overlapped with
 * compute. Returns the received operand. */
static tws_operand shift(const ring *r, tws_operand sent, const char *name) {
  const tws_operand received = scratch(r, name, r->kv);
  const tws_operand operands[2] = {tws_with_access(sent, TWS_READ), received};
  tws_builder_collective(&r->l->b, TWS_STREAM_EXCHANGE, TWS_COLLECTIVE_SHIFT, r->l->group[TWS_AXIS_SEQUENCE], r->dtype,
                         sent.count * tws_dtype_bytes(r->dtype), 1, 0, operands, 2);
  return tws_with_access(received, TWS_READ);
}

/* own_work() returns the work of attention of this rank's queries to its own keys; block_work() that of one sample's
 * queries to keys of another rank. */
static tws_work own_work(const ring *r, tws_kernel kernel) {
  return tws_attention_own_work(r->l, r->m, kernel, r->batch, r->length);
}
static tws_work block_work(const ring *r, tws_kernel kernel, const block *b) {
  return tws_attention_block_work(r->l, r->m, kernel, b->queries, b->keys);
}

static void attend_block(const ring *r, const block *b, tws_operand q, tws_operand kv, tws_operand o, tws_operand lse) {
  const tws_work work = block_work(r, TWS_KERNEL_ATTENTION, b);
  const uint64_t heads = (uint64_t)r->m->heads, queries = (uint64_t)(r->batch * b->queries);
  const tws_operand part = tws_lower_scratch(r->l, "attention to some keys", r->dtype, queries * r->q);
  const tws_operand lse_part = tws_lower_scratch(r->l, "their sums", TWS_F32, queries * heads);
  for (int64_t i = 0; i < r->batch; i++) {
    const tws_operand operands[5] = {tokens_of(q, i, r->length, b->first_query, b->queries, r->q, TWS_READ),
                                     tokens_of(kv, i, r->length, 0, b->keys, r->kv, TWS_READ),
                                     tokens_of(part, i, b->queries, 0, b->queries, r->q, TWS_WRITE),
                                     tokens_of(lse_part, i, b->queries, 0, b->queries, heads, TWS_WRITE),
                                     tws_lower_workspace(r->l, &work)};
    tws_lower_compute(r->l, &work, operands, 5);
  }
  tws_attention_merge(r->l, r->m, r->batch, r->length, b->queries, part, lse_part, o, lse);
}

void tws_ring_forward(tws_lower *l, const tws_module *m) {
  const ring r = ring_of(l, m);
  const tws_operand qkv = tws_value_read(l, m->in[0]);
  const tws_operand q = scratch(&r, "queries", r.q);
  tws_operand kv = scratch(&r, "keys and values", r.kv);
  if (l->b.failed != TWS_OK) return;
  split_heads(&r, qkv, q, kv);
  tws_operand next = shift(&r, kv, "keys and values");
  const tws_work own = own_work(&r, TWS_KERNEL_ATTENTION);
  const tws_operand o = tws_value_write(l, m->out[0]), lse = tws_value_write(l, m->out[1]);
  const tws_operand operands[4] = {qkv, o, lse, tws_lower_workspace(l, &own)};
  tws_lower_compute(l, &own, operands, 4);
  for (int step = 1; step < r.ranks && l->b.failed == TWS_OK; step++) {
    const block b = block_at(&r, step);
    kv = next;
    if (step < r.ranks - 1) next = shift(&r, kv, "keys and values");
    attend_block(&r, &b, q, kv, o, lse);
  }
}

typedef struct backward {
  tws_operand q, d_o, o, lse, later_lse; /* later_lse: lse of the second half of each sample's queries */
  tws_operand dq, dkv;                   /* sums of the gradients so far */
  int has_dq;
} backward;

/* Returns the second half of each sequence of lse, which is [batch][heads][length]: a transposition makes it
 * contiguous, as the kernel for the second half of the queries needs it. */
static tws_operand split_lse(const ring *r, tws_operand lse) {
  tws_work work = tws_kernel_work(TWS_KERNEL_TRANSPOSE, TWS_F32, 0);
  const tws_operand halves = tws_lower_scratch(r->l, "sums of halves", TWS_F32, lse.count);
  work.d[0] = r->batch * r->m->heads;
  work.d[1] = 2;
  work.d[2] = r->length / 2;
  const tws_operand operands[2] = {tws_with_access(lse, TWS_READ), halves};
  tws_lower_compute(r->l, &work, operands, 2);
  return (tws_operand){halves.buffer, TWS_READ, halves.offset + halves.count / 2, halves.count / 2};
}

/* Emits the gradients of one block. Kernels write directly to a sum that is still empty, otherwise to scratch memory,
 * which is then added to the sum. */
static void differentiate_block(const ring *r, const block *b, backward *w, tws_operand kv, int is_first) {
  const tws_work work = block_work(r, TWS_KERNEL_ATTENTION_GRAD, b);
  const uint64_t heads = (uint64_t)r->m->heads;
  const tws_operand lse = b->first_query > 0 ? w->later_lse : w->lse;
  const tws_operand dq = w->has_dq ? scratch(r, "gradients of queries to add", r->q) : w->dq;
  const tws_operand dkv = is_first ? w->dkv : scratch(r, "gradients of keys and values to add", r->kv);
  const int64_t length = r->length;
  for (int64_t i = 0; i < r->batch; i++) {
    const tws_operand to_q = tokens_of(dq, i, length, b->first_query, b->queries, r->q, TWS_WRITE),
                      to_kv = tokens_of(dkv, i, length, 0, b->keys, r->kv, TWS_WRITE);
    const tws_operand operands[8] = {tokens_of(w->d_o, i, length, b->first_query, b->queries, r->q, TWS_READ),
                                     tokens_of(w->q, i, length, b->first_query, b->queries, r->q, TWS_READ),
                                     tokens_of(kv, i, length, 0, b->keys, r->kv, TWS_READ),
                                     tokens_of(w->o, i, length, b->first_query, b->queries, r->q, TWS_READ),
                                     tokens_of(lse, i, b->queries, 0, b->queries, heads, TWS_READ),
                                     to_q,
                                     to_kv,
                                     tws_lower_workspace(r->l, &work)};
    tws_lower_compute(r->l, &work, operands, 8);
    if (w->has_dq)
      tws_lower_accumulate(r->l, to_q, tokens_of(w->dq, i, length, b->first_query, b->queries, r->q, TWS_READ_WRITE));
    else if (b->first_query > 0)
      tws_lower_clear(r->l, tokens_of(w->dq, i, length, 0, b->first_query, r->q, TWS_WRITE), r->dtype);
    if (!is_first)
      tws_lower_accumulate(r->l, to_kv, tokens_of(w->dkv, i, length, 0, b->keys, r->kv, TWS_READ_WRITE));
    else if (b->keys < length)
      tws_lower_clear(r->l, tokens_of(w->dkv, i, length, b->keys, length - b->keys, r->kv, TWS_WRITE), r->dtype);
  }
  w->has_dq = 1;
}

static void differentiate(const ring *r, tws_operand into) {
  tws_lower *l = r->l;
  const tws_module *m = r->m;
  const tws_operand qkv = tws_value_read(l, m->in[0]);
  backward w = {.q = scratch(r, "queries", r->q),
                .d_o = tws_value_gradient(l, m->out[0]),
                .o = tws_value_read(l, m->out[0]),
                .lse = tws_value_read(l, m->out[1])};
  tws_operand kv = scratch(r, "keys and values", r->kv);
  if (l->b.failed != TWS_OK) return;
  split_heads(r, qkv, w.q, kv);
  tws_operand next = shift(r, kv, "keys and values");
  const tws_work own = own_work(r, TWS_KERNEL_ATTENTION_GRAD);
  const tws_operand operands[6] = {w.d_o, qkv, w.o, w.lse, into, tws_lower_workspace(l, &own)};
  tws_lower_compute(l, &own, operands, 6);
  if (r->index < r->ranks - 1) w.later_lse = split_lse(r, w.lse);
  w.dq = scratch(r, "gradients of queries", r->q);
  w.dkv = scratch(r, "gradients of keys and values", r->kv);
  for (int step = 1; step < r->ranks && l->b.failed == TWS_OK; step++) {
    const block b = block_at(r, step);
    kv = next;
    if (step < r->ranks - 1) next = shift(r, kv, "keys and values");
    differentiate_block(r, &b, &w, kv, step == 1);
    w.dkv = shift(r, w.dkv, "gradients of keys and values");
  }
  tws_heads_join(l, m, r->batch * r->length, w.dq, w.dkv, into);
}

void tws_ring_backward(tws_lower *l, const tws_module *m) {
  const ring r = ring_of(l, m);
  int adds;
  if (!l->needed[m->in[0]]) return;
  tws_operand into = tws_value_gradient_out(l, m->in[0], &adds);
  if (adds) into = tws_lower_scratch(l, "gradient to add", r.dtype, into.count);
  if (l->b.failed != TWS_OK) return;
  differentiate(&r, into);
  if (adds) tws_lower_add_gradient(l, m->in[0], into);
}
