/* Ulysses sequence parallelism (Jacobs et al. 2023): every module works on this rank's tokens, attention on all tokens
 * of this rank's heads, with an all-to-all before and behind it. */
#include "plan/sequence_rules.h"
#include "plan/shard.h"

tws_axis_rule tws_sequence_parallel_rule(tws_module_type type) {
  enum { TOKENS = TWS_PLACED_TOKENS, HEADS = TWS_PLACED_FEATURES, WHOLE = TWS_PLACED_REPLICATED };
  switch (type) {
    case TWS_MODULE_EMBEDDING: /* of this rank's ids */
      return (tws_axis_rule){TWS_AS_IT_COMES, TOKENS, TOKENS, WHOLE, WHOLE};
    case TWS_MODULE_ROPE:
      return (tws_axis_rule){HEADS, HEADS, HEADS, WHOLE, WHOLE};
    case TWS_MODULE_ATTENTION:
      return (tws_axis_rule){HEADS, HEADS, TOKENS, WHOLE, WHOLE};
    default:
      return (tws_axis_rule){TOKENS, TOKENS, TOKENS, WHOLE, WHOLE};
  }
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
    if (network->modules[m].type == TWS_MODULE_GATHER)
      return tws_fail(err, TWS_UNSUPPORTED, "set sequence_parallel_size to 1",
                      "%s is one token of a sample, which sequence parallelism divides", network->modules[m].name);
  for (uint32_t m = 0; m < network->module_count; m++)
    if (network->modules[m].buckets > 0)
      return tws_fail(err, TWS_UNSUPPORTED, "set sequence_parallel_size to 1: use data and tensor parallelism",
                      "%s: sequence parallelism does not divide attention with relative biases",
                      network->modules[m].name);
  return tws_ulysses_part_of(network->heads / tensor, network->kv_heads / tensor, sequence,
                             position->ranks[TWS_AXIS_SEQUENCE], position->index[TWS_AXIS_SEQUENCE], &part, err);
}
