/* The text with which reports describe a network of a network file. */
#include <string.h>

#include "models/network/network.h"

enum { MOST_TYPES = 24 };

/* The types of modules in the order in which they first occur, and how many modules are of each. */
typedef struct type_counts {
  const char *name[MOST_TYPES];
  int64_t count[MOST_TYPES];
  int types;
} type_counts;

/* Returns 1 for modules that a reader of the network's file counts: those with parameters, and attention. The runs of a
 * network that is trained alternately with others share their parameters, so that only the first run counts. The bias
 * of a transposed convolution is a module here. */
static int is_counted(const tws_network *network, uint32_t m) {
  const tws_module *module = &network->modules[m];
  if (module->type == TWS_MODULE_ATTENTION) return 1;
  if (module->param[0] == TWS_NONE || module->type == TWS_MODULE_PART_BIAS) return 0;
  return network->turns <= 1 || network->params[module->param[0]].module == m;
}

static void count_modules(const tws_network *network, type_counts *c) {
  for (uint32_t m = 0; m < network->module_count; m++) {
    const char *name = tws_module_name(&network->modules[m]);
    int at = 0;
    if (!is_counted(network, m)) continue;
    while (at < c->types && strcmp(c->name[at], name) != 0) at++;
    if (at == MOST_TYPES) continue;
    if (at == c->types) c->name[c->types++] = name;
    c->count[at]++;
  }
}

static void add_inputs(const tws_network *network, tws_text *out) {
  int pictures = 0;
  for (uint32_t i = 0; i < network->input_count; i++) {
    const tws_network_input *in = &network->input[i];
    if (in->content != TWS_INPUT_NUMBERS && in->content != TWS_INPUT_NOISE) continue;
    tws_text_add(out, "%s%s%lld x %lld x %lld", pictures++ ? " and " : ", reads ",
                 in->content == TWS_INPUT_NOISE ? "noise of " : "pictures of ", (long long)in->dim[1].size,
                 (long long)in->dim[2].size, (long long)in->dim[3].size);
  }
}

void tws_network_summary(const tws_network *network, tws_text *out) {
  type_counts c = {.types = 0};
  count_modules(network, &c);
  for (int i = 0; i < c.types; i++) tws_text_add(out, ", %lld %s", (long long)c.count[i], c.name[i]);
  if (network->objective != TWS_OBJECTIVE_PICTURES) {
    tws_text_add(out, ", vocabulary %lld, %lld positions", (long long)network->vocabulary,
                 (long long)network->positions);
    return;
  }
  add_inputs(network, out);
  if (tws_network_input_of(network, TWS_INPUT_TARGETS) != TWS_NONE && network->labels.count < 2)
    tws_text_add(out, ", %lld classes", (long long)network->vocabulary);
  for (int i = 0; i < network->labels.count && network->labels.count > 1; i++)
    tws_text_add(out, "%s%lld%s", i ? " and " : ", ", (long long)network->labels.classes[i],
                 i + 1 == network->labels.count ? " classes" : "");
  if (tws_network_losses(network) > 1) tws_text_add(out, ", %u losses", tws_network_losses(network));
  if (network->turns > 1) tws_text_add(out, " in %u turns", network->turns);
}
