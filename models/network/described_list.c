/* The list of modules of a network file: reads it, with repetitions written out and names resolved, and adds the
 * modules to the graph. */
#include <stdio.h>
#include <string.h>

#include "models/network/described.h"

const char tws_described_hint[] = "docs/networks.md says how a network is written down";

/* Finds a name first among the modules of the same block, which have its prefix, then among all earlier ones, and then
 * among the network's inputs, of which "input" is the first. */
static tws_code resolve(tws_described *d, const char *prefix, const cJSON *reference, int *out, tws_error *err) {
  const tws_json *json = d->b->json;
  if (!cJSON_IsString(reference))
    return tws_json_fail(json, reference, err, tws_described_hint, "an input is the name of an earlier module");
  *out = tws_described_named(d, prefix, reference->valuestring);
  if (*out >= 0 || strcmp(reference->valuestring, "input") == 0) return TWS_OK;
  for (int i = 0; i < d->input_count; i++)
    if (strcmp(d->inputs[i].name, reference->valuestring) == 0) {
      *out = -1 - i;
      return TWS_OK;
    }
  return tws_json_fail(json, reference, err, "modules read what is computed before them: a network has no cycles",
                       "no earlier module has the name \"%.80s\"", reference->valuestring);
}

/* Sets the inputs of a module: the modules that its key "input" names or, without that key, the previous module. */
static tws_code read_inputs(tws_described *d, tws_described_module *m, const char *prefix, tws_error *err) {
  const cJSON *given = cJSON_GetObjectItemCaseSensitive(m->item, "input");
  const int count = cJSON_IsArray(given) ? cJSON_GetArraySize(given) : given != NULL;
  m->in[0] = d->count - 1;
  if (count == 0 && m->type->inputs == 1) return TWS_OK;
  if (count != m->type->inputs)
    return tws_json_fail(d->b->json, given ? given : m->item, err, "\"input\": [\"one module\", \"another\"]",
                         "%s reads %d value%s, and %d are named", m->type->name, m->type->inputs,
                         m->type->inputs > 1 ? "s" : "", count);
  for (int i = 0; i < count; i++)
    TWS_TRY(resolve(d, prefix, cJSON_IsArray(given) ? cJSON_GetArrayItem(given, i) : given, &m->in[i], err));
  return TWS_OK;
}

static tws_code read_type(const tws_described *d, tws_described_module *m, tws_error *err) {
  const tws_json *json = d->b->json;
  const char *type;
  char hint[sizeof err->hint];
  TWS_TRY(tws_json_string(json, m->item, "type", 1, NULL, &type, err));
  m->type = tws_described_type_named(type);
  if (m->type) return TWS_OK;
  tws_described_types_hint(type, hint, sizeof hint);
  return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(m->item, "type"), err, hint,
                       "no module has the type \"%.60s\"", type);
}

/* Names the module: "<prefix><name>", or "<prefix><number>" with its number in its list of modules if it has no
 * name. */
static tws_code read_name(tws_described *d, tws_described_module *m, const char *prefix, int number, tws_error *err) {
  const char *name;
  TWS_TRY(tws_json_string(d->b->json, m->item, "name", 0, NULL, &name, err));
  if (name && (!*name || strlen(name) > 80 || strcmp(name, "input") == 0))
    return tws_json_fail(d->b->json, m->item, err, "another name", "\"%.40s\" is no name for a module", name);
  m->name = name ? tws_build_name(d->b, "%s%s", prefix, name) : tws_build_name(d->b, "%s%d", prefix, number);
  for (int i = 0; i < d->input_count; i++)
    if (strcmp(d->inputs[i].name, m->name) == 0)
      return tws_json_fail(d->b->json, m->item, err, "another name", "an input of the network has the name %s",
                           m->name);
  if (tws_described_named(d, "", m->name) < 0) return TWS_OK;
  return tws_json_fail(d->b->json, m->item, err, "every module has a name of its own", "two modules have the name %s",
                       m->name);
}

static tws_code add_module(tws_described *d, const cJSON *item, const char *prefix, int number, int layer,
                           tws_error *err) {
  static const char *const common[] = {"type", "name", "input"};
  enum { COMMON = 3, MOST = 24 };
  const char *known[MOST] = {common[0], common[1], common[2]};
  if (d->count == TWS_DESCRIBED_MODULES)
    return tws_json_fail(d->b->json, item, err, "repeat fewer blocks", "the network has more than %d modules",
                         TWS_DESCRIBED_MODULES);
  tws_described_module *m = &d->modules[d->count];
  *m = (tws_described_module){
      .item = item, .prefix = prefix, .layer = layer, .last_reader = d->count, .value = TWS_NONE};
  TWS_TRY(read_type(d, m, err));
  for (int i = 0; m->type->keys[i] && COMMON + i + 1 < MOST; i++) known[COMMON + i] = m->type->keys[i];
  TWS_TRY(tws_json_only(d->b->json, item, known, err));
  TWS_TRY(read_name(d, m, prefix, number, err));
  TWS_TRY(read_inputs(d, m, prefix, err));
  for (int i = 0; i < m->type->inputs; i++)
    if (m->in[i] >= 0)
      d->modules[m->in[i]].last_reader = d->count;
    else
      d->inputs[-1 - m->in[i]].is_read = 1;
  d->count++;
  return TWS_OK;
}

static tws_code add_list(tws_described *d, const cJSON *list, const char *prefix, int inside, int *layer,
                         tws_error *err);

/* Adds the modules of a block as often as its key "repeat" states: {"repeat": 4, "name": "block", "modules": [...]}.
 * Each repetition is one layer. */
static tws_code add_block(tws_described *d, const cJSON *item, const char *prefix, int number, int inside, int *layer,
                          tws_error *err) {
  static const char *const known[] = {"repeat", "name", "modules", NULL};
  const tws_json *json = d->b->json;
  const char *name;
  int64_t times;
  char fallback[16];
  if (inside)
    return tws_json_fail(json, item, err, "write the inner block out", "a block inside of a block is not repeated");
  snprintf(fallback, sizeof fallback, "%d", number);
  TWS_TRY(tws_json_only(json, item, known, err));
  TWS_TRY(tws_json_int(json, item, "repeat", 1, 1, TWS_DESCRIBED_MODULES, 1, &times, err));
  TWS_TRY(tws_json_string(json, item, "name", 0, fallback, &name, err));
  if (!*name || strlen(name) > 80) return tws_json_fail(json, item, err, "another name", "this is no name for a block");
  for (int64_t i = 0; i < times; i++, (*layer)++) {
    const char *own = tws_build_name(d->b, "%s%s.%lld.", prefix, name, (long long)i);
    TWS_TRY(add_list(d, cJSON_GetObjectItemCaseSensitive(item, "modules"), own, 1, layer, err));
  }
  return TWS_OK;
}

static tws_code add_list(tws_described *d, const cJSON *list, const char *prefix, int inside, int *layer,
                         tws_error *err) {
  const tws_json *json = d->b->json;
  const cJSON *item;
  int number = 0;
  if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) == 0)
    return tws_json_fail(json, list ? list : json->root, err, tws_described_hint, "\"modules\" is no list of modules");
  cJSON_ArrayForEach(item, list) {
    if (!cJSON_IsObject(item)) return tws_json_fail(json, item, err, tws_described_hint, "a module is an object");
    if (cJSON_HasObjectItem(item, "repeat")) {
      TWS_TRY(add_block(d, item, prefix, number++, inside, layer, err));
      continue;
    }
    TWS_TRY(add_module(d, item, prefix, number++, *layer, err));
    if (!inside) (*layer)++;
  }
  return TWS_OK;
}

tws_code tws_described_read_list(tws_described *d, const cJSON *list, const char *prefix, int *layers, tws_error *err) {
  d->modules = tws_arena_alloc(d->b->net->arena, TWS_DESCRIBED_MODULES, sizeof *d->modules);
  if (!d->modules) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the model's graph");
  return add_list(d, list, prefix, 0, layers, err);
}

tws_code tws_described_check_read(const tws_described *d, tws_error *err) {
  for (int i = 0; i < d->input_count; i++)
    if (!d->inputs[i].is_read)
      return tws_json_fail(d->b->json, d->inputs[i].item, err, "leave it out, or name it as a convolution's input",
                           "no module reads the input %s", d->inputs[i].name);
  for (int i = 0; i + 1 < d->count; i++)
    if (d->modules[i].last_reader == i)
      return tws_json_fail(d->b->json, d->modules[i].item, err, "leave it out, or name it as another module's input",
                           "no module reads the output of %s", d->modules[i].name);
  return TWS_OK;
}

tws_code tws_described_build(tws_described *d, tws_error *err) {
  for (int i = 0; i < d->count; i++) {
    tws_described_module *m = &d->modules[i];
    TWS_TRY(m->type->build(d, m, err));
    if (d->b->failed) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the model's graph");
  }
  return TWS_OK;
}

/* ---- inputs and losses ---- */

tws_code tws_described_read_pictures(const tws_json *json, const cJSON *pictures, int64_t *side, int64_t *channels,
                                     tws_error *err) {
  static const char *const known[] = {"side", "channels", NULL};
  if (!cJSON_IsObject(pictures))
    return tws_json_fail(json, pictures, err, tws_described_hint, "\"%s\" is no object", pictures->string);
  TWS_TRY(tws_json_only(json, pictures, known, err));
  TWS_TRY(tws_json_int(json, pictures, "side", 1, 1, TWS_DESCRIBED_SIDE, 0, side, err));
  return tws_json_int(json, pictures, "channels", 1, 1, 1024, 0, channels, err);
}

void tws_described_begin_pictures(tws_network *net, int64_t side, int64_t channels) {
  net->padded_vocabulary = net->vocabulary;
  net->positions = 1; /* a sample is one picture */
  net->picture = (tws_picture){.side = side, .patch = 1, .channels = channels};
  net->objective = TWS_OBJECTIVE_PICTURES;
}

tws_code tws_described_read_loss(const tws_json *json, const cJSON *object, tws_loss_kind fallback, tws_loss_kind *kind,
                                 tws_error *err) {
  static const char *const names[] = {[TWS_LOSS_SOFTMAX] = "cross_entropy",
                                      [TWS_LOSS_SIGMOIDS] = "binary_cross_entropy",
                                      [TWS_LOSS_SQUARES] = "mean_squared_error"};
  enum { LOSSES = sizeof names / sizeof *names };
  const cJSON *given = cJSON_GetObjectItemCaseSensitive(object, "loss");
  const char *name;
  char hint[sizeof err->hint];
  *kind = fallback;
  TWS_TRY(tws_json_string(json, object, "loss", 0, names[fallback], &name, err));
  for (int i = 0; i < LOSSES; i++)
    if (strcmp(name, names[i]) == 0) *kind = (tws_loss_kind)i;
  if (strcmp(name, names[*kind]) == 0) return TWS_OK;
  tws_names_hint(name, names, LOSSES, "losses:", NULL, hint, sizeof hint);
  return tws_json_fail(json, given, err, hint, "no loss is \"%.60s\"", name);
}

tws_code tws_described_check_scores(const tws_described *d, int of, int64_t classes, tws_loss_kind loss,
                                    tws_error *err) {
  const tws_network *net = d->b->net;
  const tws_json *json = d->b->json;
  const tws_described_module *m = &d->modules[of];
  const tws_value *scores = &net->values[m->value];
  const char *which = of == d->count - 1 ? "the last module, " : "";
  if (d->of_pictures && scores->row_dims != 1)
    return tws_json_fail(json, m->item, err, "add a module \"flatten\" or \"global_average_pool\"",
                         "%s%s, has an output for each pixel, not for each picture", which, m->name);
  if (scores->per_row == (d->of_pictures ? classes : net->padded_vocabulary)) return TWS_OK;
  /* one output is compared with the number of the class */
  if (scores->per_row == 1 && (loss == TWS_LOSS_SQUARES || (loss == TWS_LOSS_SIGMOIDS && classes == 2))) return TWS_OK;
  return tws_json_fail(json, m->item, err, "the module of which a loss is scores each of them",
                       "%s%s, has %u outputs, and there are %lld %s", which, m->name, scores->per_row,
                       (long long)classes, d->of_pictures ? "classes" : "tokens");
}

tws_code tws_described_read_weight(const tws_json *json, const cJSON *loss, double *weight, tws_error *err) {
  return tws_json_number(json, loss, "weight", 0, 1e-6, 1e6, 1, weight, err);
}

void tws_described_build_loss(tws_network_builder *b, const char *name, uint32_t scores, uint32_t targets,
                              int64_t classes, tws_loss_kind kind, double weight) {
  tws_build_loss_of(b, name, scores, targets, kind == TWS_LOSS_SOFTMAX ? classes : b->net->values[scores].per_row);
  tws_build_loss_kind(b, kind);
  b->net->modules[b->net->module_count - 1].scale = weight;
}
