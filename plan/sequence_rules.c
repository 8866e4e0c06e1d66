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
