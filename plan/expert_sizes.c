/* Computes the numbers of tokens, slots and experts that the modules of a mixture-of-experts layer process on this
 * rank. An expert has separate slots for the tokens of each rank, so that which tokens are dropped does not depend on
 * the placement of experts. */
#include <math.h>
#include <string.h>

#include "base/number.h"
#include "models/routing.h"
#include "plan/lower.h"

tws_axis_rule tws_expert_parallel_rule(tws_module_type type) {
  enum { SAMPLES = TWS_PLACED_SAMPLES, EXPERTS = TWS_PLACED_EXPERTS, ANY = TWS_ANY_PLACEMENT };
  if (type == TWS_MODULE_EXPERT_LINEAR) return (tws_axis_rule){EXPERTS, EXPERTS, EXPERTS, 0, 0};
  if (tws_module_row_of(type)->pointwise) return (tws_axis_rule){ANY, ANY, ANY, 0, 0};
  return (tws_axis_rule){SAMPLES, SAMPLES, SAMPLES, 0, 0};
}

int64_t tws_expert_shared(const tws_lower *l, const tws_module *m) {
  return l->config->expert_dropless ? m->routing->experts / l->sharding.position.ranks[TWS_AXIS_EXPERT] : 0;
}

/* Returns a size with the values of the configuration filled in. A factor below 0 is replaced by the configuration's
 * capacity factor times the number of choices of a token. The slots that all experts of a rank share are at most the
 * routes that the rank can receive. */
tws_dim tws_lower_dim(const tws_lower *l, tws_dim dim) {
  if (dim.kind == TWS_DIM_TARGET && dim.size == 0) dim.size = l->config->target_length;
  if (dim.kind != TWS_DIM_CAPACITY || dim.factor >= 0) return dim;
  const double choices = -dim.factor, each = (double)dim.parts / l->sharding.position.ranks[TWS_AXIS_EXPERT];
  dim.factor = choices * l->config->expert_capacity_factor;
  if (!l->config->expert_dropless) return dim;
  dim.factor = fmin(choices * l->config->expert_bound, dim.parts * fmin(choices, each) / each);
  dim.size = 1;
  return dim;
}

int64_t tws_expert_sources(const tws_lower *l, const tws_module *m) {
  return (int64_t)l->sharding.position.ranks[TWS_AXIS_EXPERT] * l->local.values[m->in[0]].slot_parts;
}

int64_t tws_expert_tokens(const tws_lower *l, const tws_module *m) {
  return (int64_t)tws_value_rows(l, m->in[1]);
}

/* Returns the number of slots of one expert. The rows of the module's first input are slots, or, for a router and a
 * dispatch, tokens. */
int64_t tws_expert_slots(const tws_lower *l, const tws_module *m) {
  const int64_t rows = (int64_t)tws_value_rows(l, m->in[0]);
  const int has_slots = m->type == TWS_MODULE_EXPERT_LINEAR || m->type == TWS_MODULE_COMBINE;
  const tws_dim slots = tws_lower_dim(l, m->routing->slots);
  const int64_t there = (int64_t)m->routing->experts * l->local.values[m->in[0]].slot_parts;
  return has_slots ? rows / there : tws_dims_count(&slots, 1, 1, rows);
}

/* ---- loads: shares of a layer's routes ---- */

/* Reads the next number of a list and returns the position after it; NULL: there is none. */
static const char *next_count(const char *text, double *count) {
  const char *end;
  if (!tws_text_number(text, &end, 0, 1e15, count) || (*end && *end != ',')) return NULL;
  return *end ? end + 1 : end;
}

static int read_zipf(const char *load, double *exponent) {
  return strncmp(load, "zipf:", 5) == 0 && tws_text_number(load + 5, NULL, 0, 16, exponent);
}

/* Returns the weight of an expert's load; *at is the position of the expert's weight in the list; the function advances
 * *at to the next weight. */
static double load_of(const char *load, int64_t expert, const char **at) {
  double count = 0, exponent;
  if (read_zipf(load, &exponent)) return pow((double)expert + 1, -exponent);
  *at = next_count(*at, &count);
  return count;
}

tws_code tws_expert_load_check(const tws_network *network, const char *load, tws_error *err) {
  static const char hint[] = "give uniform, zipf:1, or as many counts as a layer has experts: 4,1,1,2";
  int64_t counts = 0;
  double count, sum = 0;
  if (strncmp(load, "zipf:", 5) == 0) {
    if (read_zipf(load, &count)) return TWS_OK;
    return tws_fail(err, TWS_INVALID, hint, "twinspeed.expert_load: \"%.40s\" has no exponent from 0 to 16", load);
  }
  for (const char *at = load; at && *at; counts++) {
    at = next_count(at, &count);
    if (!at) return tws_fail(err, TWS_INVALID, hint, "twinspeed.expert_load \"%.60s\" is not a load", load);
    sum += count;
  }
  if (!(sum > 0)) return tws_fail(err, TWS_INVALID, hint, "twinspeed.expert_load: no expert gets anything");
  for (uint32_t m = 0; m < network->module_count; m++)
    if (network->modules[m].type == TWS_MODULE_ROUTER && network->modules[m].routing->experts != counts)
      return tws_fail(err, TWS_INVALID, hint, "twinspeed.expert_load has %lld counts, and %s %d experts",
                      (long long)counts, network->modules[m].name, network->modules[m].routing->experts);
  return TWS_OK;
}

/* Returns the number of filled slots per expert, rounded up, on the expert-parallel rank with the most filled slots,
 * for which the other ranks wait. */
static int64_t fullest(const tws_lower *l, const tws_module *m, int64_t tokens, int64_t slots) {
  const char *load = l->config->expert_load, *at = load;
  const int64_t experts = m->routing->experts, each = experts / l->sharding.position.ranks[TWS_AXIS_EXPERT];
  double all = 0, most = 0, filled = 0;
  for (int64_t e = 0; e < experts; e++) all += load_of(load, e, &at);
  at = load;
  for (int64_t e = 0; e < experts; e++) { /* at most `tokens` routes each, since a token chooses an expert once */
    const double routes = (double)(tokens * m->routing->choices) * load_of(load, e, &at) / all;
    filled += fmin(routes, (double)(tokens < slots || l->config->expert_dropless ? tokens : slots));
    if ((e + 1) % each) continue;
    most = fmax(most, fmin(filled, (double)(each * slots)));
    filled = 0;
  }
  return (int64_t)ceil(most / (double)each);
}

int64_t tws_expert_expected(const tws_lower *l, const tws_module *m) {
  const int64_t parts = l->local.values[m->in[0]].token_parts, slots = tws_expert_slots(l, m);
  const int64_t tokens = l->config->micro_batch_size * l->config->sequence_length / parts;
  if (l->config->expert_load) return fullest(l, m, tokens, slots);
  const int64_t routes = (tokens * m->routing->choices + m->routing->experts - 1) / m->routing->experts;
  return routes < slots ? routes : slots;
}

uint32_t tws_routers(const tws_network *network, uint32_t before, uint64_t *experts) {
  uint32_t count = 0;
  *experts = 0;
  for (uint32_t m = 0; m < network->module_count && m < before; m++) {
    if (network->modules[m].type != TWS_MODULE_ROUTER) continue;
    *experts += (uint64_t)network->modules[m].routing->experts;
    count++;
  }
  return count;
}
