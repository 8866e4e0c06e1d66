#include "plan/serving.h"
#include "models/quantized.h"

#include <string.h>

static const tws_program programs[TWS_SERVING_PROGRAMS] = {TWS_PROGRAM_PREFILL, TWS_PROGRAM_DECODE};

static tws_code check_sizes(const tws_plan_request *base, tws_serving_sizes sizes, tws_error *err) {
  const tws_network *n = base->network;
  if (sizes.prompt < 1 || sizes.text <= sizes.prompt)
    return tws_fail(err, TWS_INVALID, "generate at least one token", "a text of %lld tokens with a prompt of %lld",
                    (long long)sizes.text, (long long)sizes.prompt);
  if (n->positions > 0 && !n->open_positions && sizes.text > n->positions)
    return tws_fail(err, TWS_INVALID, "use a shorter prompt, or generate fewer tokens",
                    "a text of %lld tokens exceeds the model's %lld positions", (long long)sizes.text,
                    (long long)n->positions);
  const tws_position position = tws_topology_position(&base->topology, base->rank);
  if (n->objective == TWS_OBJECTIVE_PAIRS && position.ranks[TWS_AXIS_PIPE] > 1)
    return tws_fail(err, TWS_UNSUPPORTED, "divide it by tensor ranks and data",
                    "pipeline stages do not divide the inference of an encoder-decoder, whose decoder reads the "
                    "encoder's output once");
  if (position.ranks[TWS_AXIS_SEQUENCE] > 1)
    return tws_fail(err, TWS_UNSUPPORTED, "divide it by tensor ranks, pipeline stages and data",
                    "sequence parallelism does not divide a cache of keys and values");
  return TWS_OK;
}

void tws_serving_drop_nothing(tws_config *config) {
  config->expert_dropless = 1;
  config->expert_bound = 1e6; /* large enough that a rank has slots for all routes that it can receive */
}

/* Returns the configuration of a program: that of the base without what concerns training alone. pairs: the network is
 * an encoder-decoder, whose prompts are sources: the decoder has one token in either program, and its cache those that
 * are generated. */
static tws_config config_of(const tws_config *base, tws_program program, tws_serving_sizes sizes, int pairs) {
  tws_config c = *base;
  c.cache_length = pairs ? sizes.text - sizes.prompt : sizes.text;
  c.cache_seen = ((pairs ? 1 : sizes.prompt) + c.cache_length) / 2;
  c.sequence_length = program == TWS_PROGRAM_DECODE && !pairs ? 1 : sizes.prompt;
  if (pairs) c.target_length = 1;
  c.tensor_sequence_parallel = 0; /* divides the tokens of long sequences between split layers */
  c.recompute = TWS_RECOMPUTE_NONE;
  c.loss_tiles = c.mlp_tiles = c.attention_chunks = 1;
  c.dropout = 0;
  c.cache_bits = sizes.cache_bits;
  c.cache_block = sizes.cache_block;
  c.cache_blocks = sizes.cache_blocks;
  if (sizes.weight_codes != TWS_CODES_NONE) {
    c.quantization.block = sizes.block > 0 ? sizes.block : 64;
    c.quantization.scale_block = 0;
    c.quantization.type = TWS_QUANTIZATION_NONE; /* the request has replaced the types of the configuration */
    c.zero.quantized_frozen = 0;
  }
  tws_serving_drop_nothing(&c);
  c.delayed_update = 0;
  memset(&c.zenflow, 0, sizeof c.zenflow);
  return c;
}

tws_code tws_serving_make(const tws_plan_request *base, tws_serving_sizes sizes, tws_serving *out, tws_error *err) {
  *out = (tws_serving){.network = {NULL}};
  TWS_TRY(check_sizes(base, sizes, err));
  for (int i = 0; i < TWS_SERVING_PROGRAMS; i++) {
    const tws_serving_part part = programs[i] == TWS_PROGRAM_DECODE ? TWS_SERVING_TOKENS : TWS_SERVING_PROMPTS;
    const int64_t positions = base->network->objective == TWS_OBJECTIVE_PAIRS ? sizes.text - sizes.prompt : sizes.text;
    const tws_code code =
        tws_network_serve(base->network, part, sizes.weight_codes, tws_cache_blocks_of(positions, sizes.cache_block),
                          &out->network[i], err);
    if (code != TWS_OK) {
      tws_serving_close(out);
      return code;
    }
    out->config[i] = config_of(base->config, programs[i], sizes, base->network->objective == TWS_OBJECTIVE_PAIRS);
    out->request[i] = *base;
    out->request[i].network = out->network[i];
    out->request[i].config = &out->config[i];
    out->request[i].program = programs[i];
    out->request[i].parameters_only = 0;
    out->request[i].state = NULL;
  }
  return TWS_OK;
}

void tws_serving_close(tws_serving *serving) {
  for (int i = 0; i < TWS_SERVING_PROGRAMS; i++) tws_network_destroy(serving->network[i]);
  memset(serving, 0, sizeof *serving);
}

tws_code tws_serving_plans(const tws_serving *serving, int rank, tws_plan *out[TWS_SERVING_PROGRAMS], tws_error *err) {
  memset(out, 0, TWS_SERVING_PROGRAMS * sizeof *out);
  for (int i = 0; i < TWS_SERVING_PROGRAMS; i++) {
    tws_plan_request request = serving->request[i];
    request.rank = rank;
    request.state = i > 0 ? out[0]->state : NULL;
    const tws_code code = tws_plan_build(&request, &out[i], err);
    if (code == TWS_OK) continue;
    tws_plan_destroy(out[0]);
    out[0] = NULL;
    return code;
  }
  return TWS_OK;
}
