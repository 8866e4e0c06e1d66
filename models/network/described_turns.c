/* Files of several networks that are trained alternately, such as the generator and the discriminator of a GAN.
 *
 * A loss runs networks in succession: the first reads an input of the network file, each other one the output of the
 * network before it. One run of a network is a pass, and each pass is a copy of the network's modules in the graph; all
 * copies share parameters and running statistics. Losses whose successions begin alike share their first passes, in one
 * turn and across turns, as long as no network of these passes was updated since: then a second run would compute the
 * same values.
 *
 * The gradient of a loss flows back through its passes to the first network that its turn trains. A shared pass
 * therefore runs backward in at most one turn: the first turn that reads it and trains one of the networks up to it,
 * since later turns compute it anew. Losses of other turns that read the pass read a detached copy. A network that the
 * backward turn of a pass does not train is held there: gradients pass through it, and its parameters get none. */
#include <string.h>

#include "models/kernel.h"
#include "models/network/described.h"
#include "models/network/module.h"

enum { NETWORKS = 8, LOSSES = TWS_LOSS_HEADS, TURNS = TWS_LOSS_HEADS, PASSES = LOSSES * NETWORKS };
enum { PICTURES, NOISE, INPUTS, NEVER = -1 };
static const char *const input_names[INPUTS] = {"pictures", "noise"};

typedef struct network {
  const char *name;
  const cJSON *item;
  tws_described described;
  int layers;      /* number of layers of its list of modules */
  int turn;        /* the turn that trains it, or NEVER */
  int updates;     /* number of turns so far, in the order of a step, that updated it */
  int passes;      /* number of its passes in the graph */
  int first_layer; /* layer of its first module in its last pass */
} network;

typedef struct pass {
  int network, from;   /* from: the pass whose output it reads; -1 - i: input i */
  int updates;         /* number of updates of its network before it */
  int turn, backward;  /* turns of its forward pass and of its backward pass; backward NEVER: it has none */
  uint32_t read_in;    /* bit mask of the turns with a loss that runs it */
  uint32_t trained_in; /* bit mask of the turns that train its network or one before it */
  int built;
  uint32_t value; /* its output in the graph */
} pass;

typedef struct loss {
  const char *name;
  const cJSON *item;
  int turn, count;
  int pass[NETWORKS];
  int target; /* the constant with which scores are compared; -1: the class of the picture */
  tws_loss_kind kind;
  double weight;
} loss;

typedef struct turns {
  tws_network_builder *b;
  network networks[NETWORKS];
  pass passes[PASSES];
  loss losses[LOSSES];
  int network_count, pass_count, loss_count, count, layers;
  int64_t side[INPUTS], channels[INPUTS]; /* side 0: the file has no such input */
  uint32_t input[INPUTS], targets;        /* inputs of the graph, or TWS_NONE */
  double std;
} turns;

/* ---- the file ---- */

static int network_named(const turns *t, const char *name) {
  for (int i = 0; i < t->network_count; i++)
    if (strcmp(t->networks[i].name, name) == 0) return i;
  return -1;
}

static tws_code read_name(const turns *t, const cJSON *item, const char *what, const char **name, tws_error *err) {
  TWS_TRY(tws_json_string(t->b->json, item, "name", 1, NULL, name, err));
  if (**name && strlen(*name) <= 40 && !strchr(*name, ',') && !strchr(*name, '.')) return TWS_OK;
  return tws_json_fail(t->b->json, item, err, "a name of at most 40 letters, without commas and dots",
                       "\"%.40s\" is no name for a %s", *name, what);
}

static tws_code read_network(turns *t, const cJSON *item, tws_error *err) {
  static const char *const known[] = {"name", "modules", NULL};
  const tws_json *json = t->b->json;
  network *n = &t->networks[t->network_count];
  *n = (network){.item = item, .turn = NEVER};
  if (!cJSON_IsObject(item)) return tws_json_fail(json, item, err, tws_described_hint, "a network is an object");
  TWS_TRY(tws_json_only(json, item, known, err));
  TWS_TRY(read_name(t, item, "network", &n->name, err));
  if (network_named(t, n->name) >= 0 || strcmp(n->name, input_names[PICTURES]) == 0 ||
      strcmp(n->name, input_names[NOISE]) == 0)
    return tws_json_fail(json, item, err, "every network has a name of its own, and pictures and noise are inputs",
                         "\"%s\" names something else already", n->name);
  n->described = (tws_described){.b = t->b,
                                 .of_pictures = 1,
                                 .inputs = {{.name = "input", .item = item, .in_graph = TWS_NONE}},
                                 .input_count = 1,
                                 .given = TWS_NONE,
                                 .std = t->std};
  const char *prefix = tws_build_name(t->b, "%s.", n->name);
  TWS_TRY(tws_described_read_list(&n->described, cJSON_GetObjectItemCaseSensitive(item, "modules"), prefix, &n->layers,
                                  err));
  for (int i = 0; i < n->described.count; i++)
    if (n->described.modules[i].type->in_graph == TWS_MODULE_ROUTER)
      return tws_json_fail(json, n->described.modules[i].item, err, "leave it out, or train the network alone",
                           "%s: networks that are trained alternately have no experts yet",
                           n->described.modules[i].name);
  TWS_TRY(tws_described_check_read(&n->described, err));
  t->network_count++;
  return TWS_OK;
}

/* Reads the networks that a turn trains: a name, or a list of names. */
static tws_code read_trained(turns *t, const cJSON *turn, tws_error *err) {
  const tws_json *json = t->b->json;
  const cJSON *given = cJSON_GetObjectItemCaseSensitive(turn, "train");
  const int count = cJSON_IsArray(given) ? cJSON_GetArraySize(given) : given != NULL;
  if (count == 0)
    return tws_json_fail(json, given ? given : turn, err, "\"train\": \"discriminator\", or a list of networks",
                         "a turn trains no network");
  for (int i = 0; i < count; i++) {
    const cJSON *name = cJSON_IsArray(given) ? cJSON_GetArrayItem(given, i) : given;
    const int at = cJSON_IsString(name) ? network_named(t, name->valuestring) : -1;
    if (at < 0)
      return tws_json_fail(json, name, err, "name one of \"networks\"", "\"train\" names no network of this file");
    if (t->networks[at].turn != NEVER)
      return tws_json_fail(json, name, err, "let one turn have all losses that train it",
                           "%s is trained twice in a step", t->networks[at].name);
    t->networks[at].turn = t->count;
  }
  return TWS_OK;
}

/* Returns the pass of network `of` that reads `from`, which is added unless there is one of the current parameters. */
static int find_pass(turns *t, int of, int from) {
  const int updates = t->networks[of].updates;
  int at = 0;
  while (at < t->pass_count &&
         (t->passes[at].network != of || t->passes[at].from != from || t->passes[at].updates != updates))
    at++;
  if (at == t->pass_count) {
    const uint32_t before = from < 0 ? 0 : t->passes[from].trained_in;
    const int turn = t->networks[of].turn;
    t->passes[t->pass_count++] = (pass){.network = of,
                                        .from = from,
                                        .updates = updates,
                                        .turn = t->count,
                                        .backward = NEVER,
                                        .trained_in = before | (turn == NEVER ? 0 : 1u << turn),
                                        .value = TWS_NONE};
  }
  t->passes[at].read_in |= 1u << t->count;
  return at;
}

/* Reads what a loss runs: an input, then networks. */
static tws_code read_run(turns *t, loss *l, tws_error *err) {
  static const char hint[] = "\"run\": [\"noise\", \"generator\", \"discriminator\"]";
  const tws_json *json = t->b->json;
  const cJSON *run = cJSON_GetObjectItemCaseSensitive(l->item, "run"), *item;
  int from = 0, position = 0;
  if (!cJSON_IsArray(run) || cJSON_GetArraySize(run) < 2 || cJSON_GetArraySize(run) > NETWORKS + 1)
    return tws_json_fail(json, run ? run : l->item, err, hint,
                         "\"run\" of the loss %s is no list of an input and of 1 to %d networks", l->name, NETWORKS);
  cJSON_ArrayForEach(item, run) {
    const char *name = cJSON_IsString(item) ? item->valuestring : "";
    if (position++ == 0) {
      while (from < INPUTS && strcmp(name, input_names[from]) != 0) from++;
      if (from == INPUTS || t->side[from] == 0)
        return tws_json_fail(json, item, err, "begin with \"pictures\" or \"noise\", which \"input\" has",
                             "the loss %s runs \"%.40s\" first, which is no input", l->name, name);
      from = -1 - from;
      continue;
    }
    const int at = network_named(t, name);
    if (at < 0)
      return tws_json_fail(json, item, err, hint, "the loss %s runs \"%.40s\", which is no network", l->name, name);
    from = l->pass[l->count++] = find_pass(t, at, from);
  }
  if (t->passes[from].trained_in >> l->turn & 1) return TWS_OK;
  return tws_json_fail(json, run, err, "run a network that the turn trains, or leave the loss out",
                       "the loss %s runs no network that its turn trains", l->name);
}

static tws_code read_loss(turns *t, const cJSON *item, tws_error *err) {
  static const char *const known[] = {"name", "run", "loss", "target", "weight", NULL};
  const tws_json *json = t->b->json;
  loss *l = &t->losses[t->loss_count];
  *l = (loss){.item = item, .turn = t->count, .target = -1};
  if (!cJSON_IsObject(item)) return tws_json_fail(json, item, err, tws_described_hint, "a loss is an object");
  if (t->loss_count == LOSSES)
    return tws_json_fail(json, item, err, "leave some of them out", "a step has more than %d losses", LOSSES);
  TWS_TRY(tws_json_only(json, item, known, err));
  TWS_TRY(read_name(t, item, "loss", &l->name, err));
  for (int i = 0; i < t->loss_count; i++)
    if (strcmp(t->losses[i].name, l->name) == 0)
      return tws_json_fail(json, item, err, "every loss has a name of its own", "two losses have the name %s", l->name);
  if (network_named(t, l->name) >= 0)
    return tws_json_fail(json, item, err, "another name", "a loss has the name of the network %s", l->name);
  const cJSON *target = cJSON_GetObjectItemCaseSensitive(item, "target");
  if (target) {
    int64_t value;
    TWS_TRY(tws_json_int(json, item, "target", 1, 0, 1, 0, &value, err));
    l->target = (int)value;
  }
  TWS_TRY(tws_described_read_loss(json, item, target ? TWS_LOSS_SIGMOIDS : TWS_LOSS_SOFTMAX, &l->kind, err));
  if (target && l->kind == TWS_LOSS_SOFTMAX)
    return tws_json_fail(json, item, err, "use binary_cross_entropy or mean_squared_error, or leave \"target\" out",
                         "the loss %s compares scores of classes with a number", l->name);
  if (!target && t->b->net->vocabulary == 0)
    return tws_json_fail(json, item, err, "give the loss a \"target\" of 0 or 1, or the file \"classes\"",
                         "the loss %s is compared with the class of a picture, and there are no \"classes\"", l->name);
  TWS_TRY(tws_described_read_weight(json, item, &l->weight, err));
  TWS_TRY(read_run(t, l, err));
  t->loss_count++;
  return TWS_OK;
}

static tws_code read_turn(turns *t, const cJSON *item, tws_error *err) {
  static const char *const known[] = {"train", "losses", NULL};
  const tws_json *json = t->b->json;
  const cJSON *losses, *one;
  if (!cJSON_IsObject(item)) return tws_json_fail(json, item, err, tws_described_hint, "a turn is an object");
  TWS_TRY(tws_json_only(json, item, known, err));
  losses = cJSON_GetObjectItemCaseSensitive(item, "losses");
  if (!cJSON_IsArray(losses) || cJSON_GetArraySize(losses) == 0)
    return tws_json_fail(json, losses ? losses : item, err,
                         "\"losses\": [{\"name\": ..., \"run\": [...], \"target\": 1}]", "a turn has no losses");
  cJSON_ArrayForEach(one, losses) TWS_TRY(read_loss(t, one, err));
  for (int i = 0; i < t->network_count; i++) {
    network *n = &t->networks[i];
    int runs = 0;
    for (int p = 0; p < t->pass_count; p++) runs |= t->passes[p].network == i && t->passes[p].read_in >> t->count & 1;
    if (n->turn == t->count && !runs)
      return tws_json_fail(json, item, err, "run it in a loss of this turn, or train it in another",
                           "a turn trains %s, and none of its losses runs it", n->name);
    n->updates += n->turn == t->count;
  }
  t->count++;
  return TWS_OK;
}

static tws_code read_inputs(turns *t, tws_error *err) {
  const char *const known[] = {input_names[PICTURES], input_names[NOISE], NULL};
  const tws_json *json = t->b->json;
  const cJSON *input = cJSON_GetObjectItemCaseSensitive(json->root, "input");
  tws_network *net = t->b->net;
  if (!cJSON_IsObject(input) || !cJSON_HasObjectItem(input, known[PICTURES]))
    return tws_json_fail(
        json, input ? input : json->root, err,
        "\"input\": {\"pictures\": {\"side\": 64, \"channels\": 3}, \"noise\": {\"side\": 1, \"channels\": "
        "100}}",
        "networks that are trained alternately read pictures, and \"input\" says of which size");
  TWS_TRY(tws_json_only(json, input, known, err));
  for (int i = 0; i < INPUTS; i++) {
    const cJSON *given = cJSON_GetObjectItemCaseSensitive(input, known[i]);
    if (given) TWS_TRY(tws_described_read_pictures(json, given, &t->side[i], &t->channels[i], err));
  }
  TWS_TRY(tws_json_int(json, json->root, "classes", 0, 2, TWS_MAX_VOCABULARY, 0, &net->vocabulary, err));
  return TWS_OK;
}

/* Reads a list of networks or of turns. */
static tws_code read_list(turns *t, const char *key, int most, tws_code (*read)(turns *t, const cJSON *, tws_error *),
                          tws_error *err) {
  const tws_json *json = t->b->json;
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(json->root, key), *item;
  if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) == 0 || cJSON_GetArraySize(list) > most)
    return tws_json_fail(json, list ? list : json->root, err, tws_described_hint,
                         "\"%s\" is no list of 1 to %d of them", key, most);
  cJSON_ArrayForEach(item, list) TWS_TRY(read(t, item, err));
  return TWS_OK;
}

static tws_code read_trained_of(turns *t, const cJSON *item, tws_error *err) {
  TWS_TRY(read_trained(t, item, err));
  t->count++;
  return TWS_OK;
}

/* Returns 1 if a pass or another loss reads the output that this loss overwrites with its gradient. */
static int is_read_again(const turns *t, int of) {
  const int last = t->losses[of].pass[t->losses[of].count - 1];
  int readers = 0;
  for (int p = 0; p < t->pass_count; p++) readers += t->passes[p].from == last;
  for (int i = 0; i < t->loss_count; i++) readers += i != of && t->losses[i].pass[t->losses[i].count - 1] == last;
  return readers > 0;
}

static tws_code read_file(turns *t, tws_error *err) {
  static const char *const known[] = {"model_type", "architectures", "name",  "input",       "classes", "networks",
                                      "turns",      "init_std",      "dtype", "torch_dtype", NULL};
  const tws_json *json = t->b->json;
  TWS_TRY(tws_json_only(json, json->root, known, err));
  TWS_TRY(tws_json_number(json, json->root, "init_std", 0, 0, 100, 0, &t->std, err));
  TWS_TRY(read_inputs(t, err));
  TWS_TRY(read_list(t, "networks", NETWORKS, read_network, err));
  TWS_TRY(read_list(t, "turns", TURNS, read_trained_of, err)); /* passes depend on what later turns train */
  t->count = 0;
  TWS_TRY(read_list(t, "turns", TURNS, read_turn, err));
  for (int i = 0; i < t->loss_count; i++)
    if (is_read_again(t, i))
      return tws_json_fail(json, t->losses[i].item, err, "let another network read a copy: one of 1 x 1 convolutions",
                           "the loss %s overwrites an output that is read again", t->losses[i].name);
  for (int i = 0; i < t->network_count; i++) {
    int runs = 0;
    for (int p = 0; p < t->pass_count; p++) runs |= t->passes[p].network == i;
    if (!runs)
      return tws_json_fail(json, t->networks[i].item, err, "run it in a loss, or leave it out", "no loss runs %s",
                           t->networks[i].name);
  }
  return TWS_OK;
}

/* ---- the graph ---- */

static void find_backward_turns(turns *t) {
  for (int p = 0; p < t->pass_count; p++) {
    pass *at = &t->passes[p];
    for (int turn = t->count; turn-- > at->turn;)
      if (at->read_in & at->trained_in & 1u << turn) at->backward = turn;
  }
}

/* Sets what the network of a pass reads. */
static tws_code choose_input(turns *t, const pass *p, const loss *l, tws_error *err) {
  network *n = &t->networks[p->network];
  tws_described *d = &n->described;
  tws_described_input *input = &d->inputs[0];
  tws_network *net = t->b->net;
  int64_t side, channels;
  if (p->from < 0) {
    input->in_graph = t->input[-1 - p->from], d->given = TWS_NONE;
    side = t->side[-1 - p->from], channels = t->channels[-1 - p->from];
  } else {
    const pass *from = &t->passes[p->from];
    const tws_value *x = &net->values[from->value];
    if (x->row_dims != 3)
      return tws_json_fail(t->b->json, l->item, err, "let the last module of that network give pixels",
                           "%s reads the output of %s, which has rows of pictures instead of pixels", n->name,
                           t->networks[from->network].name);
    input->in_graph = TWS_NONE, d->given = from->value;
    side = x->row[1].size, channels = x->per_row;
    if (from->backward != NEVER && from->backward != p->backward) {
      d->given = tws_build_detach(t->b, t->layers, tws_build_name(t->b, "%s.detach of %s", n->name, l->name), d->given);
      t->b->net->modules[t->b->net->module_count - 1].forward_turn = (uint8_t)p->turn;
      t->b->net->modules[t->b->net->module_count - 1].backward_turn = (uint8_t)p->turn;
    }
  }
  if (n->passes > 0 && (input->side != side || input->channels != channels))
    return tws_json_fail(t->b->json, l->item, err, "equal sides and channels of all pictures that one network reads",
                         "%s reads %lld x %lld pixels of %lld channels in the loss %s, and %lld x %lld of %lld before",
                         n->name, (long long)side, (long long)side, (long long)channels, l->name,
                         (long long)input->side, (long long)input->side, (long long)input->channels);
  input->side = side, input->channels = channels;
  return TWS_OK;
}

static tws_code build_pass(turns *t, pass *p, const loss *l, tws_error *err) {
  network *n = &t->networks[p->network];
  tws_described *d = &n->described;
  tws_network *net = t->b->net;
  TWS_TRY(choose_input(t, p, l, err));
  const uint32_t modules = net->module_count, params = net->param_count;
  for (int i = 0; i < d->count; i++) d->modules[i].layer += t->layers - n->first_layer;
  n->first_layer = t->layers;
  t->layers += n->layers;
  t->b->again = n->passes++ > 0;
  const tws_code code = tws_described_build(d, err);
  t->b->again = 0;
  TWS_TRY(code);
  p->value = d->modules[d->count - 1].value;
  p->built = 1;
  for (uint32_t i = modules; i < net->module_count; i++) {
    net->modules[i].forward_turn = (uint8_t)p->turn;
    net->modules[i].backward_turn = (uint8_t)(p->backward == NEVER ? p->turn : p->backward);
    net->modules[i].held = p->backward == NEVER || p->backward != n->turn;
  }
  for (uint32_t i = params; i < net->param_count; i++) {
    net->params[i].turn = (uint8_t)(n->turn == NEVER ? 0 : n->turn);
    net->params[i].frozen = n->turn == NEVER;
  }
  for (int i = 0; i + 1 < d->count; i++) {
    const int64_t width = net->values[d->modules[i].value].per_row;
    if (net->hidden < width && net->values[d->modules[i].value].row_dims != 1) net->hidden = width;
  }
  return TWS_OK;
}

/* Returns the input with the constant target of a loss, with one element for each row of the scores. */
static uint32_t constant_of(turns *t, const loss *l, const tws_value *scores) {
  tws_network *net = t->b->net;
  for (uint32_t i = 0; i < net->input_count; i++)
    if (net->input[i].content == TWS_INPUT_CONSTANT && net->input[i].value == l->target &&
        net->input[i].dims == scores->row_dims &&
        memcmp(net->input[i].dim, scores->row, scores->row_dims * sizeof *scores->row) == 0)
      return i;
  const uint32_t added =
      tws_build_input(t->b, l->target ? "ones" : "zeros", TWS_INPUT_CONSTANT, scores->row, scores->row_dims);
  net->input[added].value = l->target;
  return added;
}

static tws_code build_loss(turns *t, const loss *l, tws_error *err) {
  static const tws_dim samples[] = {{.kind = TWS_DIM_SAMPLES}};
  tws_network *net = t->b->net;
  for (int i = 0; i < l->count; i++)
    if (!t->passes[l->pass[i]].built) TWS_TRY(build_pass(t, &t->passes[l->pass[i]], l, err));
  const pass *last = &t->passes[l->pass[l->count - 1]];
  const tws_described *d = &t->networks[last->network].described;
  const tws_value *scores = &net->values[last->value];
  if (l->target >= 0 && scores->per_row != 1)
    return tws_json_fail(t->b->json, l->item, err, "let its last module have one output",
                         "the loss %s compares %u outputs of %s with a number", l->name, scores->per_row,
                         t->networks[last->network].name);
  if (l->target < 0) TWS_TRY(tws_described_check_scores(d, d->count - 1, net->vocabulary, l->kind, err));
  if (l->target < 0 && t->targets == TWS_NONE)
    t->targets = tws_build_input(t->b, "targets", TWS_INPUT_TARGETS, samples, 1);
  const uint32_t targets = l->target >= 0 ? constant_of(t, l, scores) : t->targets;
  if (t->b->failed)
    return tws_json_fail(t->b->json, l->item, err, "losses whose scores have the same pixels, or one output each",
                         "the network has more than %d inputs", TWS_NETWORK_INPUTS);
  tws_described_build_loss(t->b, tws_build_name(t->b, "%s", l->name), last->value, targets, net->vocabulary, l->kind,
                           l->weight);
  net->modules[net->module_count - 1].forward_turn = net->modules[net->module_count - 1].backward_turn =
      (uint8_t)l->turn;
  return TWS_OK;
}

/* Reserves room for the modules of all passes. */
static tws_code reserve(turns *t, tws_error *err) {
  enum { MOST_GRAPH_MODULES = 16 }; /* that one described module becomes */
  int64_t count = 0;
  for (int p = 0; p < t->pass_count; p++) count += t->networks[t->passes[p].network].described.count;
  if (count > TWS_DESCRIBED_MODULES)
    return tws_json_fail(t->b->json, t->b->json->root, err, "repeat fewer blocks, or run fewer networks",
                         "all runs of networks together have more than %d modules", TWS_DESCRIBED_MODULES);
  return tws_build_reserve(t->b, count * MOST_GRAPH_MODULES + t->pass_count + t->loss_count, err);
}

static tws_code build(turns *t, tws_error *err) {
  tws_network *net = t->b->net;
  if (net->vocabulary == 0) net->vocabulary = 256; /* the class of a picture, a byte, is not used */
  tws_described_begin_pictures(net, t->side[PICTURES], t->channels[PICTURES]);
  TWS_TRY(reserve(t, err));
  for (int i = 0; i < INPUTS; i++) {
    if (t->side[i] == 0) continue;
    t->input[i] = tws_build_pictures(t->b, input_names[i], t->side[i], t->side[i], t->channels[i]);
    if (i == NOISE) net->input[t->input[i]].content = TWS_INPUT_NOISE;
  }
  find_backward_turns(t);
  for (int i = 0; i < t->loss_count; i++) TWS_TRY(build_loss(t, &t->losses[i], err));
  if (net->hidden == 0) net->hidden = 1;
  net->layers = t->layers;
  net->turns = (uint32_t)t->count;
  return TWS_OK;
}

tws_code tws_build_described_turns(tws_network_builder *b, tws_error *err) {
  turns *t = tws_arena_alloc(b->net->arena, 1, sizeof *t);
  if (!t) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the model's graph");
  *t = (turns){.b = b, .input = {TWS_NONE, TWS_NONE}, .targets = TWS_NONE};
  TWS_TRY(read_file(t, err));
  return build(t, err);
}
