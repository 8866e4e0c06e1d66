/* Sequence parallelism: every module works on this rank's tokens. Ring attention also works on this rank's tokens and
 * circulates keys and values (ring_attention.c); with Ulysses (Jacobs et al. 2023) attention works on all tokens of
 * this rank's heads, with an all-to-all before and after it. */
#include <stdio.h>

#include "plan/sequence_rules.h"
#include "plan/shard.h"

tws_axis_rule tws_sequence_parallel_rule(tws_module_type type, int ring) {
  enum { TOKENS = TWS_PLACED_TOKENS, HEADS = TWS_PLACED_FEATURES, WHOLE = TWS_PLACED_REPLICATED };
  switch (type) {
    case TWS_MODULE_EMBEDDING: /* each rank looks up the ids of its own tokens */
      return (tws_axis_rule){TWS_ANY_PLACEMENT, TOKENS, TOKENS, WHOLE, WHOLE};
    case TWS_MODULE_ROPE:
      if (ring) return (tws_axis_rule){TOKENS, TOKENS, TOKENS, WHOLE, WHOLE};
      return (tws_axis_rule){HEADS, HEADS, HEADS, WHOLE, WHOLE};
    case TWS_MODULE_HEADS_NORM: /* a norm before rotary positions works on tokens, one after them on heads */
      return (tws_axis_rule){TWS_ANY_PLACEMENT, TWS_ANY_PLACEMENT, TWS_ANY_PLACEMENT, WHOLE, WHOLE};
    case TWS_MODULE_ATTENTION:
      if (ring) return (tws_axis_rule){TOKENS, TOKENS, TOKENS, WHOLE, WHOLE};
      return (tws_axis_rule){HEADS, HEADS, TOKENS, WHOLE, WHOLE};
    default:
      return (tws_axis_rule){TOKENS, TOKENS, TOKENS, WHOLE, WHOLE};
  }
}

/* Returns a phrase that says how a module other than attention combines tokens of a sample; NULL: the module does not
 * combine tokens. */
static const char *reads_across(tws_module_type type) {
  return type == TWS_MODULE_GATHER         ? "is one token of a sample"
         : type == TWS_MODULE_SPANS        ? "scores all tokens of a sample together"
         : type == TWS_MODULE_TOKEN_UNFOLD ? "reads the adjacent tokens of each one of a sample"
                                           : NULL;
}

tws_code tws_sequence_parallel_check(const tws_network *network, const tws_position *position, int64_t sequence,
                                     tws_error *err) {
  const int tensor = position->ranks[TWS_AXIS_MODEL];
  tws_ulysses_part part;
  for (uint32_t m = 0; m < network->module_count; m++)
    if (network->modules[m].latent)
      return tws_fail(err, TWS_UNSUPPORTED, "divide it by data, experts and pipeline stages",
                      "%s: sequence parallelism does not divide latent attention", network->modules[m].name);
  for (uint32_t m = 0; m < network->module_count; m++)
    if (network->modules[m].windows)
      return tws_fail(err, TWS_UNSUPPORTED, "set sequence_parallel_size to 1",
                      "%s works on pictures, which sequence parallelism does not divide", network->modules[m].name);
  for (uint32_t m = 0; m < network->module_count; m++)
    if (reads_across(network->modules[m].type))
      return tws_fail(err, TWS_UNSUPPORTED, "set sequence_parallel_size to 1",
                      "%s %s, which sequence parallelism divides", network->modules[m].name,
                      reads_across(network->modules[m].type));
  for (uint32_t m = 0; m < network->module_count; m++)
    if (network->modules[m].buckets > 0)
      return tws_fail(err, TWS_UNSUPPORTED, "set sequence_parallel_size to 1: use data and tensor parallelism",
                      "%s: sequence parallelism does not divide attention with relative biases",
                      network->modules[m].name);
  return tws_ulysses_part_of(network->heads / tensor, network->kv_heads / tensor, sequence,
                             position->ranks[TWS_AXIS_SEQUENCE], position->index[TWS_AXIS_SEQUENCE], &part, err);
}

const char *tws_causal_parts_lack(const tws_module *m, int64_t sequence, int drops) {
  if (drops && (m->dropout > 0 || m->jitter > 0)) return "random numbers (set twinspeed.dropout to false)";
  if (m->latent) return "latent attention";
  if (m->type == TWS_MODULE_CROSS_ATTENTION) return "attention to another sequence";
  if (m->type == TWS_MODULE_DISENTANGLED) return "disentangled attention";
  if (m->type == TWS_MODULE_ROPE && m->input[1] != TWS_NONE) return "packed documents";
  if (m->type == TWS_MODULE_ROPE && m->flags & TWS_RUNNING) return "rotary positions with LongRoPE's factors";
  if (m->type != TWS_MODULE_ATTENTION) return NULL;
  if (m->buckets > 0) return "attention with relative biases";
  if (m->flags & TWS_ALIBI) return "attention with linear biases";
  if (m->flags & TWS_BIDIRECTIONAL) return "attention that is not causal";
  if (m->input[0] != TWS_NONE) return "padded sequences";
  if (m->input[1] != TWS_NONE) return "packed documents";
  return m->window > 0 && m->window < sequence ? "attention in windows" : NULL;
}

/* Returns the name of a feature of a module that ring attention does not support; NULL: ring attention supports the
 * module. */
static const char *ring_lacks(const tws_module *m, int64_t sequence, int drops) {
  if (m->windows) return "pictures";
  if (m->type == TWS_MODULE_GATHER) return "the one token of a sample that a classifier reads";
  if (reads_across(m->type)) return "what reads the other tokens of a sample";
  return tws_causal_parts_lack(m, sequence, drops);
}

tws_code tws_ring_check(const tws_network *network, int ranks, int64_t sequence, int drops, tws_error *err) {
  for (uint32_t m = 0; m < network->module_count; m++) {
    const char *lacks = ring_lacks(&network->modules[m], sequence, drops);
    if (lacks)
      return tws_fail(err, TWS_UNSUPPORTED,
                      "set twinspeed.sequence_algorithm to \"ulysses\", or sequence_parallel_size to 1",
                      "%s: a ring of sequence-parallel ranks does not divide %s", network->modules[m].name, lacks);
  }
  if (sequence % (2 * (int64_t)ranks) == 0) return TWS_OK;
  char hint[128];
  int legal = ranks - 1;
  while (legal > 1 && sequence % (2 * (int64_t)legal)) legal--;
  const int64_t longer = (sequence / (2 * (int64_t)ranks) + 1) * 2 * ranks;
  snprintf(hint, sizeof hint, "use a sequence of %lld tokens; the nearest smaller degree that is legal is %d",
           (long long)longer, legal);
  return tws_fail(err, TWS_INVALID, hint,
                  "a ring of %d ranks deals out a sequence in %lld chunks, which do not divide its %lld tokens", ranks,
                  2 * (long long)ranks, (long long)sequence);
}
