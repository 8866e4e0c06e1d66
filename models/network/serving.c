#include "models/network/serving.h"

#include <string.h>

#include "models/kernel.h"
#include "models/quantized.h"

/* Returns 1 for a module on the rows of the source of an encoder-decoder. */
static int is_of_source(const tws_network *n, const tws_module *m) {
  const tws_value *value = &n->values[m->in[0]];
  return n->objective == TWS_OBJECTIVE_PAIRS && value->row_dims > 1 && value->row[1].kind == TWS_DIM_SEQUENCE;
}

const char *tws_network_unserved(const tws_network *network, const char **module) {
  *module = network->name;
  const int pairs = network->objective == TWS_OBJECTIVE_PAIRS;
  if (network->objective != TWS_OBJECTIVE_NEXT_TOKEN && !pairs) return "it does not predict the next token";
  if (tws_network_losses(network) != 1) return "it has several losses";
  if (tws_network_input_of(network, TWS_INPUT_DOCUMENTS) != TWS_NONE) return "its texts are packed documents";
  for (uint32_t i = 0; i < network->module_count; i++) {
    const tws_module *m = &network->modules[i];
    *module = m->name;
    if (m->type == TWS_MODULE_TOKEN_UNFOLD) return "it is a convolution over tokens";
    if (m->type == TWS_MODULE_DISENTANGLED) return "it is disentangled attention";
    if (m->type == TWS_MODULE_CROSS_ATTENTION && !pairs) return "it attends to another sequence";
    if (m->type == TWS_MODULE_ATTENTION && m->flags & TWS_BIDIRECTIONAL && !is_of_source(network, m))
      return "tokens attend to later ones";
  }
  return NULL;
}

static const tws_dim SAMPLES = {.kind = TWS_DIM_SAMPLES}, SEQUENCE = {.kind = TWS_DIM_SEQUENCE};

/* Adds a network input with `numbers` int32 numbers per sample, or, if per_token is 1, per token. Returns its index.
 * The array always has room, since networks that predict the next token have few inputs. */
static uint32_t add_input(tws_network *n, const char *name, tws_input_content content, int per_token, int numbers) {
  tws_network_input *input = &n->input[n->input_count];
  *input = (tws_network_input){.name = name, .content = content, .dim = {SAMPLES}, .dims = 1};
  if (per_token) input->dim[input->dims++] = SEQUENCE;
  if (numbers > 1 || content == TWS_INPUT_BLOCKS)
    input->dim[input->dims++] = (tws_dim){.kind = TWS_DIM_FIXED, .size = numbers};
  return n->input_count++;
}

/* Makes modules read the positions of tokens from inputs, instead of counting them from a sequence's first token. */
static void place_tokens(tws_network *n) {
  uint32_t documents = TWS_NONE, positions = tws_network_input_of(n, TWS_INPUT_POSITIONS);
  for (uint32_t i = 0; i < n->module_count; i++) {
    tws_module *m = &n->modules[i];
    const int turns = m->type == TWS_MODULE_ROPE || m->type == TWS_MODULE_LATENT;
    if (turns && documents == TWS_NONE) documents = add_input(n, "documents", TWS_INPUT_DOCUMENTS, 1, 2);
    if (turns) m->input[1] = documents;
    if (m->type != TWS_MODULE_EMBEDDING || m->param[1] == TWS_NONE) continue;
    if (positions == TWS_NONE) positions = add_input(n, "positions", TWS_INPUT_POSITIONS, 1, 1);
    m->input[2] = positions;
  }
}

/* Returns the index of the value that the head reads: the input of the last linear layer before the loss. */
static uint32_t head_input(const tws_network *n, uint32_t loss) {
  uint32_t value = n->modules[loss].in[0];
  while (n->modules[n->values[value].producer].type != TWS_MODULE_LINEAR)
    value = n->modules[n->values[value].producer].in[0];
  return n->modules[n->values[value].producer].in[0];
}

/* Inserts a module after the producer of value x that selects one row of each sample; all later modules then read only
 * these rows. */
static void pick_rows(tws_network *n, uint32_t x) {
  const uint32_t at = n->values[x].producer + 1, y = n->value_count++;
  const uint32_t rows = add_input(n, "rows of last tokens", TWS_INPUT_ROWS, 0, 1);
  memmove(n->modules + at + 1, n->modules + at, (n->module_count++ - at) * sizeof *n->modules);
  for (uint32_t v = 0; v < y; v++)
    if (n->values[v].producer >= at) {
      n->values[v].producer++;
      n->values[v].row_dims = 1;
      n->values[v].row[0] = SAMPLES;
    }
  for (uint32_t p = 0; p < n->param_count; p++)
    if (n->params[p].module >= at) n->params[p].module++;
  for (uint32_t m = at + 1; m < n->module_count; m++)
    for (int i = 0; i < TWS_MODULE_INS; i++)
      if (n->modules[m].in[i] == x) n->modules[m].in[i] = y;
  tws_module *pick = &n->modules[at];
  tws_module_clear(pick, TWS_MODULE_GATHER, "last tokens", -2);
  pick->in[0] = x;
  pick->out[0] = y;
  pick->input[0] = rows;
  pick->out_features = n->values[x].per_row;
  n->values[y] = n->values[x];
  n->values[y].name = "last tokens";
  n->values[y].producer = at;
  n->values[y].row_dims = 1;
  n->values[y].row[0] = SAMPLES;
}

/* Creates a network for inference that shares all tables with `from` except those of modules, values and parameters,
 * which are copied, with room for one more module and value. */
static tws_code copy_network(const tws_network *from, tws_network **out, tws_error *err) {
  TWS_TRY(tws_network_create(from->name, out, err));
  tws_network *n = *out;
  tws_arena *arena = n->arena;
  *n = *from;
  n->arena = arena;
  n->modules = tws_arena_alloc(arena, from->module_count + 1u, sizeof *n->modules);
  n->values = tws_arena_alloc(arena, from->value_count + 1u, sizeof *n->values);
  n->params = tws_arena_alloc(arena, from->param_count + 1u, sizeof *n->params);
  if (!n->modules || !n->values || !n->params) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  memcpy(n->modules, from->modules, from->module_count * sizeof *n->modules);
  memcpy(n->values, from->values, from->value_count * sizeof *n->values);
  memcpy(n->params, from->params, from->param_count * sizeof *n->params);
  return TWS_OK;
}

/* Returns 1 if a linear layer expands compressed rows of latent attention to keys and values. A decode does not run it:
 * attention reads its weight. */
static int expands_latent(const tws_network *n, const tws_module *m) {
  for (uint32_t i = 0; i < n->module_count; i++)
    if (n->modules[i].type == TWS_MODULE_LATENT && n->modules[i].in[2] == m->out[0]) return 1;
  return 0;
}

/* Gives the weights that only linear layers of the network's layers have codes of this type. */
static void code_weights(tws_network *n, uint8_t type) {
  for (uint32_t i = 0; i < n->module_count; i++) {
    const tws_module *m = &n->modules[i];
    if (m->type != TWS_MODULE_LINEAR || m->layer < 0 || expands_latent(n, m)) continue;
    n->params[m->param[0]].code_type = type;
    n->params[m->param[0]].frozen = 1;
  }
  for (uint32_t i = 0; i < n->module_count; i++)
    for (int k = 0; k < TWS_MODULE_PARAMS; k++) {
      const uint32_t p = n->modules[i].param[k];
      if (p != TWS_NONE && (k > 0 || n->modules[i].type != TWS_MODULE_LINEAR)) n->params[p].code_type = 0;
    }
}

tws_code tws_network_serve(const tws_network *network, tws_serving_part part, int weight_codes, int64_t blocks,
                           tws_network **out, tws_error *err) {
  const char *module, *reason = tws_network_unserved(network, &module);
  uint32_t loss = 0;
  *out = NULL;
  if (reason)
    return tws_fail(err, TWS_UNSUPPORTED,
                    "estimate and run it as an evaluation: --program evaluate, generate --no-cache",
                    "%s: a cache of keys and values does not go with it: %s", module, reason);
  tws_code code = copy_network(network, out, err);
  if (code != TWS_OK) {
    tws_network_destroy(*out);
    *out = NULL;
    return code;
  }
  tws_network *n = *out;
  while (n->modules[loss].type != TWS_MODULE_LOSS) loss++;
  /* inference has no targets, so their input becomes the input of sequence lengths */
  tws_network_input *targets = &n->input[n->modules[loss].input[0]];
  const int pairs = n->objective == TWS_OBJECTIVE_PAIRS; /* which have lengths of sources already */
  *targets = (tws_network_input){.name = pairs ? "counts" : "lengths",
                                 .content = pairs ? TWS_INPUT_COUNTS : TWS_INPUT_LENGTHS,
                                 .dim = {SAMPLES},
                                 .dims = 1};
  n->modules[loss].input[0] = TWS_NONE;
  add_input(n, "starts", TWS_INPUT_STARTS, 0, 1);
  if (pairs) add_input(n, "ends of sources", TWS_INPUT_ENDS, 0, 1);
  if (blocks > 0) add_input(n, "blocks of the cache", TWS_INPUT_BLOCKS, 0, (int)blocks);
  if (weight_codes != TWS_CODES_NONE) code_weights(n, (uint8_t)weight_codes);
  if (part == TWS_SERVING_TOKENS)
    place_tokens(n);
  else if (!pairs) /* a prefill has one token of the decoder */
    pick_rows(n, head_input(n, loss));
  return TWS_OK;
}
