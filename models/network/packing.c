#include "models/network/packing.h"

#include "models/kernel.h"

/* Returns the name of a computation of the module that would mix tokens of different documents, or NULL if there is
 * none. */
static const char *crosses(const tws_module *m) {
  switch (m->type) {
    case TWS_MODULE_DISENTANGLED:
      return "disentangled attention";
    case TWS_MODULE_CROSS_ATTENTION:
      return "attention to another sequence";
    case TWS_MODULE_TOKEN_UNFOLD:
      return "a convolution over tokens";
    case TWS_MODULE_ROPE: /* refused if RoPE's parameters depend on a sequence's length, which differs by document */
      if (m->dynamic_rope) return "rotary positions that follow the length of a text (dynamic)";
      return m->flags & TWS_RUNNING ? "rotary positions that follow the length of a text (longrope)" : NULL;
    default:
      return NULL;
  }
}

static tws_code check(const tws_network *network, const tws_config *config, tws_error *err) {
  static const char *const remedy = "leave twinspeed.document_end_token out: a sample is then one text";
  if (config->document_end_token >= network->vocabulary)
    return tws_fail(err, TWS_INVALID, "name the id that ends each document, such as that of <|endoftext|>",
                    "twinspeed.document_end_token is %lld, and %s has a vocabulary of %lld",
                    (long long)config->document_end_token, network->name, (long long)network->vocabulary);
  if (network->objective != TWS_OBJECTIVE_NEXT_TOKEN && network->objective != TWS_OBJECTIVE_MASKED)
    return tws_fail(err, TWS_UNSUPPORTED, remedy,
                    "twinspeed.document_end_token: a sample of %s is one text by its form, not documents one after "
                    "another",
                    network->name);
  for (uint32_t m = 0; m < network->module_count; m++)
    if (crosses(&network->modules[m]))
      return tws_fail(err, TWS_UNSUPPORTED, remedy, "%s: packed documents cannot be kept apart by %s",
                      network->modules[m].name, crosses(&network->modules[m]));
  return TWS_OK;
}

static tws_code add_input(tws_network *network, const char *name, tws_input_content content, int numbers, uint32_t *out,
                          tws_error *err) {
  static const tws_dim rows[] = {{.kind = TWS_DIM_SAMPLES}, {.kind = TWS_DIM_SEQUENCE}};
  if (network->input_count == TWS_NETWORK_INPUTS)
    return tws_fail(err, TWS_INTERNAL, NULL, "%s has more than %d inputs", network->name, TWS_NETWORK_INPUTS);
  tws_network_input *input = &network->input[ *out = network->input_count++];
  *input = (tws_network_input){.name = name, .content = content, .dim = {rows[0], rows[1]}, .dims = 2};
  if (numbers > 1) input->dim[input->dims++] = (tws_dim){.kind = TWS_DIM_FIXED, .size = numbers};
  return TWS_OK;
}

tws_code tws_network_pack(tws_network *network, const tws_config *config, tws_error *err) {
  uint32_t documents = TWS_NONE, positions = tws_network_input_of(network, TWS_INPUT_POSITIONS);
  if (config->document_end_token < 0) {
    if (config->document_length > 0)
      return tws_fail(err, TWS_INVALID, "set twinspeed.document_end_token too, or leave it out",
                      "twinspeed.document_length is %lld, and documents are not packed",
                      (long long)config->document_length);
    return TWS_OK;
  }
  TWS_TRY(check(network, config, err));
  TWS_TRY(add_input(network, "documents", TWS_INPUT_DOCUMENTS, 2, &documents, err));
  for (uint32_t i = 0; i < network->module_count; i++) {
    tws_module *m = &network->modules[i];
    if (m->type == TWS_MODULE_ATTENTION || m->type == TWS_MODULE_ROPE || m->type == TWS_MODULE_LATENT)
      m->input[1] = documents;
    if (m->type == TWS_MODULE_ATTENTION) m->document = config->document_length;
    if (m->type != TWS_MODULE_EMBEDDING || m->param[1] == TWS_NONE) continue;
    if (positions == TWS_NONE) TWS_TRY(add_input(network, "positions", TWS_INPUT_POSITIONS, 1, &positions, err));
    m->input[2] = positions;
  }
  return TWS_OK;
}
