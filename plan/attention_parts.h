/* Computes attention of some queries to some keys, and merges such partial results: with ring attention
 * (ring_attention.c) the keys are those of other ranks, with attention in chunks (chunked_attention.c) those of other
 * chunks of the sequence. Internal to plan/. */
#ifndef TWS_PLAN_ATTENTION_PARTS_H
#define TWS_PLAN_ATTENTION_PARTS_H

#include "plan/lower.h"

/* attention_parts.c: kernels that ring attention and chunked attention share. A row of `kv` has a token's key heads,
 * then its value heads. */
/* tws_heads_split() copies the query heads to q, and the key and value heads to kv, of `tokens` tokens of the operand
 * qkv; tws_heads_join() adds q and kv to qkv. */
void tws_heads_split(tws_lower *l, const tws_module *m, int64_t tokens, tws_operand qkv, tws_operand q, tws_operand kv);
void tws_heads_join(tws_lower *l, const tws_module *m, int64_t tokens, tws_operand q, tws_operand kv, tws_operand qkv);
/* Returns the work of causal attention among `length` tokens of each of `samples` samples; and that of `queries`
 * queries of one sample with `keys` keys, where all queries attend to all keys. */
tws_work tws_attention_own_work(const tws_lower *l, const tws_module *m, tws_kernel kernel, int64_t samples,
                                int64_t length);
tws_work tws_attention_block_work(const tws_lower *l, const tws_module *m, tws_kernel kernel, int64_t queries,
                                  int64_t keys);
/* Merges the results `part` and `lse_part` of the last `rows` queries of each sample with some keys into those with
 * other keys, `o` and `lse` of all `length` queries. */
void tws_attention_merge(tws_lower *l, const tws_module *m, int64_t samples, int64_t length, int64_t rows,
                         tws_operand part, tws_operand lse_part, tws_operand o, tws_operand lse);
static inline tws_operand tws_with_access(tws_operand operand, uint32_t access) {
  operand.access = access;
  return operand;
}

/* ring_attention.c: lower the forward and the backward pass of a module ATTENTION if l->sharding.ring is 1. */
void tws_ring_forward(tws_lower *l, const tws_module *m);
void tws_ring_backward(tws_lower *l, const tws_module *m);

/* The role of a visit in a group of modules around chunked attention (tws_chunked_group); each tile of such a visit is
 * a chunk of a sample. */
typedef enum tws_chunk_role {
  TWS_CHUNK_NONE,  /* the module does not belong to such a group */
  TWS_CHUNK_PASS,  /* a forward pass: later chunks read its keys and values */
  TWS_CHUNK_STORE, /* a forward pass that also stores results of attention for the backward pass */
  /* a visit of the backward pass, whose chunks are in descending order; the visit of attention before the backward one
   * copies the stored results back */
  TWS_CHUNK_RETURN
} tws_chunk_role;

/* Returns 1 if the current visit is the first, or the last, of the visits of its module's tiles in this pass. */
static inline int tws_is_first_tile(const tws_lower *l) {
  return l->at.tile == (l->at.chunk_role == TWS_CHUNK_RETURN ? l->at.tiles - 1 : 0);
}
static inline int tws_is_last_tile(const tws_lower *l) {
  return l->at.tile == (l->at.chunk_role == TWS_CHUNK_RETURN ? 0 : l->at.tiles - 1);
}

/* chunked_attention.c: the first finds the groups of modules that are processed in chunks, if the configuration has
 * twinspeed.attention_chunks; it fails with TWS_UNSUPPORTED if the network or the configuration has what these do not
 * support, and with TWS_INVALID if the chunks do not divide a sequence. */
tws_code tws_chunked_begin(tws_lower *l, tws_error *err);
/* A chunked group: the modules that process a sample chunk by chunk, from the layer that computes queries, keys and
 * values to the layer after attention. */
typedef struct tws_chunked_group {
  uint32_t first, attention, last; /* indices of modules */
  int tiles;                       /* chunks of all samples of a micro-batch */
} tws_chunked_group;
/* Returns 1 and writes the chunked group of a module to *group; returns 0 if the module belongs to no such group. */
int tws_chunked_group_of(const tws_lower *l, uint32_t module, tws_chunked_group *group);
/* Lower a module ATTENTION for the chunk of the current visit, if the visit has a tws_chunk_role. */
void tws_chunked_forward(tws_lower *l, const tws_module *m);
void tws_chunked_backward(tws_lower *l, const tws_module *m);
/* Returns the position, in its sequence, of the first token of the current visit's chunk; 0 if the visit is not
 * chunked. */
int64_t tws_chunk_first_token(const tws_lower *l);
/* With attention in chunks, a sequence-parallel rank has a part of each chunk. Returns 1 if there are several such
 * parts of a sample with other ranks' tokens between them. */
int tws_has_token_parts(const tws_lower *l);
/* tws_token_parts() returns the number of the rank's separate ranges of tokens in a micro-batch. Range number `part`:
 * tws_part_of_tokens() returns its tokens in an operand of all tokens, and tws_positions_of_part() the rows of its
 * positions in the position table of an EMBEDDING module, whose whole operand is `table`. */
int tws_token_parts(const tws_lower *l);
tws_operand tws_part_of_tokens(const tws_lower *l, tws_operand tokens, int part);
tws_operand tws_positions_of_part(const tws_lower *l, const tws_module *m, tws_operand table, int part);

#endif
