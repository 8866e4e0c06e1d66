#include "plan/sequence_rules.h"

#include <stdio.h>

static const char *broken_rule(int64_t heads, int64_t kv_heads, int64_t sequence, int64_t ranks) {
  if (heads % ranks != 0) return "attention heads";
  if (sequence % ranks != 0) return "tokens of a sequence";
  if (kv_heads % ranks != 0 && ranks % kv_heads != 0) return "key and value heads";
  return NULL;
}

tws_code tws_ulysses_part_of(int64_t heads, int64_t kv_heads, int64_t sequence, int ranks, int rank,
                             tws_ulysses_part *part, tws_error *err) {
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0) {
    return tws_fail(err, TWS_INVALID, "query heads are a multiple of key and value heads",
                    "attention with %lld query heads and %lld key and value heads", (long long)heads,
                    (long long)kv_heads);
  }
  if (sequence < 1 || ranks < 1 || rank < 0 || rank >= ranks) {
    return tws_fail(err, TWS_INVALID, NULL, "rank %d of %d over a sequence of %lld tokens", rank, ranks,
                    (long long)sequence);
  }
  const char *rule = broken_rule(heads, kv_heads, sequence, ranks);
  if (rule) {
    int legal = ranks - 1;
    while (broken_rule(heads, kv_heads, sequence, legal)) legal--;
    char hint[80];
    snprintf(hint, sizeof hint, "the nearest smaller degree that is legal is %d", legal);
    return tws_fail(err, TWS_INVALID, hint,
                    "sequence parallelism over %d ranks does not divide the %s (%lld heads, %lld of keys and values, "
                    "%lld tokens)",
                    ranks, rule, (long long)heads, (long long)kv_heads, (long long)sequence);
  }
  int copies = kv_heads < ranks ? (int)(ranks / kv_heads) : 1;
  int64_t kv_count = tws_ulysses_kv_count(kv_heads, ranks);
  *part = (tws_ulysses_part){.token_first = sequence / ranks * rank,
                             .token_count = sequence / ranks,
                             .head_first = heads / ranks * rank,
                             .head_count = heads / ranks,
                             .kv_first = rank / copies * kv_count,
                             .kv_count = kv_count,
                             .kv_copies = copies};
  return TWS_OK;
}

int64_t tws_ulysses_elements(const tws_ulysses_tensor *tensor) {
  return tensor->batch * (tensor->sequence / tensor->ranks) * tensor->heads * tensor->width;
}

int64_t tws_ulysses_sent(const tws_ulysses_tensor *tensor) {
  return tws_ulysses_elements(tensor) / tensor->ranks * (tensor->ranks - 1);
}

typedef struct place {
  int64_t batch, token, head, column;
} place;

static place split_index(const tws_ulysses_tensor *t, int64_t tokens, int64_t heads, int64_t index) {
  place at;
  at.column = index % t->width;
  index /= t->width;
  at.head = index % heads;
  index /= heads;
  int64_t inner = t->sequence_first ? t->batch : tokens;
  at.batch = t->sequence_first ? index % inner : index / inner;
  at.token = t->sequence_first ? index / inner : index % inner;
  return at;
}

static int64_t join_index(const tws_ulysses_tensor *t, int64_t tokens, int64_t heads, const place *at) {
  int64_t outer = t->sequence_first ? at->token * t->batch + at->batch : at->batch * tokens + at->token;
  return (outer * heads + at->head) * t->width + at->column;
}

void tws_ulysses_before_attention(const tws_ulysses_tensor *tensor, int rank, int64_t index, int *from_rank,
                                  int64_t *from_index) {
  int64_t tokens = tensor->sequence / tensor->ranks, heads = tensor->heads / tensor->ranks;
  place at = split_index(tensor, tensor->sequence, heads, index);
  *from_rank = (int)(at.token / tokens);
  at.token %= tokens;
  at.head += rank * heads;
  *from_index = join_index(tensor, tokens, tensor->heads, &at);
}

void tws_ulysses_after_attention(const tws_ulysses_tensor *tensor, int rank, int64_t index, int *from_rank,
                                 int64_t *from_index) {
  int64_t tokens = tensor->sequence / tensor->ranks, heads = tensor->heads / tensor->ranks;
  place at = split_index(tensor, tokens, tensor->heads, index);
  *from_rank = (int)(at.head / heads);
  at.head %= heads;
  at.token += rank * tokens;
  *from_index = join_index(tensor, tensor->sequence, heads, &at);
}
