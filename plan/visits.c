/* Lists the module visits of a micro-batch, or of one turn of a step. The forward pass visits every module of the chunk
 * once. The backward pass visits them in reverse (that of a turn visits the modules whose backward_turn it is), and
 * before each one the values it needs that were not kept (recompute.c) are recomputed, from the nearest values that are
 * kept. Fusion comes last: GELU with the matrix product that it follows, GELU's gradient with the product that computes
 * it, a residual sum with the norm that reads it. A kernel that writes the output gradient of a linear layer can also
 * compute the gradient of that layer's bias. */
#include "plan/attention_parts.h"
#include "plan/turns.h"

/* Appends the visits of a module for one tile of tokens: one visit for each tile of its weight. */
static void push_tile(tws_lower *l, uint32_t module, tws_phase phase, int tile, int tiles, tws_chunk_role role) {
  tws_visit_list *list = &l->pipeline.chunk->visits;
  const uint32_t count = tws_module_weight_tiles(l, module);
  if (tws_reserve(&list->items, &list->capacity, list->count + count, sizeof *list->items)) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return;
  }
  for (uint32_t i = 0; i < count; i++)
    list->items[list->count++] = (tws_visit){.module = module,
                                             .phase = (uint8_t)phase,
                                             .tile = (uint16_t)tile,
                                             .tiles = (uint16_t)tiles,
                                             .weight_tile = (uint16_t)(phase == TWS_PHASE_BACKWARD ? count - 1 - i : i),
                                             .chunk_role = (uint8_t)role,
                                             .fused_with = TWS_NONE,
                                             .sums_for = TWS_NONE};
}

static void push_visit(tws_lower *l, uint32_t module, tws_phase phase) {
  push_tile(l, module, phase, 0, 1, TWS_CHUNK_NONE);
}

/* ---- tiles ----
 * A group of modules processes one tile of the micro-batch's tokens after another, so that no value between them exists
 * whole. The backward pass of the loss follows immediately, tile by tile; an MLP recomputes each tile in the backward
 * pass. Tiles of attention are chunks of a sample (plan/chunked_attention.c). */

typedef struct group {
  uint32_t first, count; /* modules [first, first + count) */
  int tiles, loss;
  uint32_t attention; /* the attention module of a group in chunks; TWS_NONE: the group has none */
} group;

/* largest number of modules of a group after its first one: the scaling and the capping of logits follow a head */
enum { MOST_TILED = 3 };
/* Returns 1 and writes the tiled group of module m to *g, if the module belongs to one; else returns 0. */
static int tiled_group(const tws_lower *l, uint32_t m, group *g) {
  const tws_module *modules = l->network->modules;
  uint32_t count = l->network->module_count;
  tws_chunked_group chunked;
  if (tws_chunked_group_of(l, m, &chunked)) {
    *g = (group){chunked.first, chunked.last + 1 - chunked.first, chunked.tiles, 0, chunked.attention};
    return 1;
  }
  if (l->config->loss_tiles <= 1 && l->config->mlp_tiles <= 1) return 0;
  for (uint32_t first = m < MOST_TILED ? 0 : m - MOST_TILED; first <= m; first++) {
    if (modules[first].type != TWS_MODULE_LINEAR || first + 1 >= count) continue;
    const tws_module_type next = modules[first + 1].type;
    uint32_t end = first + 1;
    while (tws_module_row_of(modules[end].type)->pointwise && end + 1 < count) end++;
    const int of_tokens = l->network->values[modules[first].in[0]].row_dims > 1;
    if (modules[end].type == TWS_MODULE_LOSS && of_tokens && l->config->loss_tiles > 1 && m <= end) {
      *g = (group){.first = first,
                   .count = end + 1 - first,
                   .tiles = (int)l->config->loss_tiles,
                   .loss = 1,
                   .attention = TWS_NONE};
      return 1;
    }
    if (tws_module_row_of(next)->pointwise && l->config->mlp_tiles > 1 && first + 2 < count &&
        modules[first + 2].type == TWS_MODULE_LINEAR && m <= first + 2) {
      *g = (group){.first = first, .count = 3, .tiles = (int)l->config->mlp_tiles, .attention = TWS_NONE};
      return 1;
    }
  }
  return 0;
}

static void mark_tiled(tws_lower *l) {
  group g;
  for (uint32_t m = 0; m < l->network->module_count; m++) {
    if (!tiled_group(l, m, &g)) continue;
    int whole_out = !g.loss && m == g.first + g.count - 1;
    const int outs = g.attention != TWS_NONE ? TWS_MODULE_OUTS : 1;
    for (int i = 0; i < outs && !whole_out; i++)
      if (l->network->modules[m].out[i] != TWS_NONE) l->tiled[l->network->modules[m].out[i]] = 1;
  }
}

/* Returns the value whose entry in l->kept determines whether the backward pass finds the stored results of a chunked
 * group: the softmax sums (lse) of attention. */
static uint32_t stored_value(const tws_lower *l, const group *g) {
  return l->network->modules[g->attention].out[1];
}

static int goes_backward(const tws_lower *l, uint32_t module) {
  return tws_module_goes_backward(l, &l->network->modules[module]);
}

static tws_chunk_role role_of(const tws_lower *l, const group *g, tws_phase phase) {
  if (g->attention == TWS_NONE) return TWS_CHUNK_NONE;
  const int stores = phase == TWS_PHASE_RECOMPUTE || (!l->extent.evaluates && l->kept[stored_value(l, g)]);
  return stores && goes_backward(l, g->first + g->count - 1) ? TWS_CHUNK_STORE : TWS_CHUNK_PASS;
}

static void push_group(tws_lower *l, const group *g, tws_phase phase) {
  const tws_chunk_role role = role_of(l, g, phase);
  for (int tile = 0; tile < g->tiles; tile++) {
    for (uint32_t i = 0; i < g->count; i++) push_tile(l, g->first + i, phase, tile, g->tiles, role);
    for (uint32_t i = g->count; g->loss && !l->extent.evaluates && i-- > 0;) {
      push_tile(l, g->first + i, TWS_PHASE_BACKWARD, tile, g->tiles, TWS_CHUNK_NONE);
    }
  }
}

/* Appends the backward visits of a chunked group, those of the last chunk first. Each chunk recomputes its queries,
 * keys and values, gets the results of attention from the host, and recomputes what follows attention, except the
 * group's output. */
static void push_chunks_backward(tws_lower *l, const group *g) {
  const uint32_t last = g->first + g->count - 1;
  for (int tile = g->tiles; tile-- > 0;) {
    for (uint32_t m = g->first; m < last; m++)
      if (m >= g->attention || goes_backward(l, g->attention))
        push_tile(l, m, TWS_PHASE_RECOMPUTE, tile, g->tiles, TWS_CHUNK_RETURN);
    for (uint32_t m = last + 1; m-- > g->first;)
      if (goes_backward(l, m)) push_tile(l, m, TWS_PHASE_BACKWARD, tile, g->tiles, TWS_CHUNK_RETURN);
  }
}

static void push_group_backward(tws_lower *l, const group *g) {
  for (int tile = 0; tile < g->tiles && !g->loss; tile++) {
    for (uint32_t i = 0; i + 1 < g->count; i++)
      push_tile(l, g->first + i, TWS_PHASE_RECOMPUTE, tile, g->tiles, TWS_CHUNK_NONE);
    for (uint32_t i = g->count; i-- > 0;)
      push_tile(l, g->first + i, TWS_PHASE_BACKWARD, tile, g->tiles, TWS_CHUNK_NONE);
  }
}

/* Returns 1 and writes to *value the input that a module overwrites in place, if there is one; else returns 0. */
static int consumes(const tws_lower *l, uint32_t index, uint32_t *value) {
  const tws_module *m = &l->network->modules[index];
  const int taken = tws_local_exchanges_in_place(&l->local.modules[index]) ? 0 : l->memory[m->type].taken;
  if (taken >= 0) *value = m->in[taken];
  return taken >= 0;
}

/* Appends the recomputation of `value` unless the value exists. The depth of recursion is at most the number of modules
 * of a layer. */
static void ensure_value(tws_lower *l, uint8_t *have, uint32_t value) {
  if (value == TWS_NONE || have[value] || l->b.failed != TWS_OK) return;
  uint32_t index = l->network->values[value].producer, consumed;
  const tws_module *m = &l->network->modules[index];
  group g;
  if (tiled_group(l, index, &g)) {
    ensure_value(l, have, l->network->modules[g.first].in[0]);
    push_group(l, &g, TWS_PHASE_RECOMPUTE);
    have[value] = 1;
    if (g.attention != TWS_NONE) have[stored_value(l, &g)] = 1;
    return;
  }
  for (int i = 0; i < TWS_MODULE_INS; i++) ensure_value(l, have, m->in[i]);
  push_visit(l, index, TWS_PHASE_RECOMPUTE);
  for (int i = 0; i < TWS_MODULE_OUTS; i++) {
    if (m->out[i] != TWS_NONE) have[m->out[i]] = 1;
  }
  if (consumes(l, index, &consumed)) have[consumed] = 0;
}

static void go_backward(tws_lower *l, uint8_t *have, uint32_t m) {
  const tws_module *module = &l->network->modules[m];
  const tws_module_memory *memory = &l->memory[module->type];
  const int reads = module->type != TWS_MODULE_LINEAR || tws_trains(l, module, module->param[0]);
  if (!tws_module_goes_backward(l, module)) return;
  for (int i = 0; i < memory->saved_count && reads; i++) {
    const tws_binding b = memory->saved[i];
    ensure_value(l, have, b.source == TWS_BIND_IN ? module->in[b.index] : module->out[b.index]);
  }
  push_visit(l, m, TWS_PHASE_BACKWARD);
}

/* Recomputes a segment to its end, as reentrant checkpoints do, including values that backward does not read. Values in
 * tiles are not recomputed here, but tile by tile in their backward visits. */
static void make_whole(tws_lower *l, uint8_t *have, uint32_t last) {
  const tws_module *modules = l->network->modules;
  group g;
  const uint32_t first = l->config->recompute_whole ? tws_recompute_block(l, last) : TWS_NONE;
  if (first == TWS_NONE || !tws_module_goes_backward(l, &modules[last])) return;
  for (uint32_t m = first; m <= last; m++) {
    if (tiled_group(l, m, &g)) continue;
    for (int i = 0; i < TWS_MODULE_OUTS; i++) ensure_value(l, have, modules[m].out[i]);
  }
}

/* ---- fusion of adjacent modules ---- */

/* Two successive visits that one kernel executes; plan/modules.c and plan/backward.c pass the operands of both visits
 * to this kernel. */
typedef struct fusion {
  uint8_t first, second;                             /* tws_module_type, in the order of the visits */
  uint8_t backward;                                  /* 1: visits of backward passes; 0: of forward passes */
  enum { FIRST_DOES_BOTH, SECOND_DOES_BOTH } kernel; /* the visit whose kernel does both */
  uint8_t sole_reader;                               /* 1: only if no other module reads the value between them */
} fusion;
static const fusion fusions[] = {
    {TWS_MODULE_LINEAR, TWS_MODULE_GELU, 0, FIRST_DOES_BOTH, 1},
    {TWS_MODULE_LINEAR, TWS_MODULE_GELU, 1, FIRST_DOES_BOTH, 1}, /* a product that also computes GELU's gradient */
    {TWS_MODULE_ADD, TWS_MODULE_NORM, 0, SECOND_DOES_BOTH, 0},
};

static int fits_fusion(const fusion *f, const tws_module *a, const tws_module *b, int backward,
                       const uint8_t *readers) {
  const uint32_t between = backward ? b->out[0] : a->out[0];
  return f->first == a->type && f->second == b->type && f->backward == backward &&
         (backward ? a->in[0] : b->in[0]) == between && (!f->sole_reader || readers[between] == 1);
}

static void fuse_pair(const tws_lower *l, const uint8_t *readers, tws_visit *first, tws_visit *second) {
  const tws_module *modules = l->network->modules;
  if (first->module == TWS_NONE || second->module == TWS_NONE || first->phase != second->phase ||
      first->tile != second->tile || first->tiles != second->tiles || tws_module_weight_tiles(l, first->module) > 1 ||
      tws_module_weight_tiles(l, second->module) > 1)
    return;
  for (size_t i = 0; i < sizeof fusions / sizeof *fusions; i++) {
    if (!fits_fusion(&fusions[i], &modules[first->module], &modules[second->module], first->phase == TWS_PHASE_BACKWARD,
                     readers))
      continue;
    const int by_first = fusions[i].kernel == FIRST_DOES_BOTH;
    tws_visit *does = by_first ? first : second, *away = by_first ? second : first;
    does->fused_with = away->module;
    away->fused_away = 1;
    return;
  }
}

/* Returns the next backward visit after `from`; recomputation between the two changes no gradient. NULL: there is none,
 * or it belongs to another tile. */
static const tws_visit *next_backward(const tws_visit_list *visits, const tws_visit *from) {
  const tws_visit *end = visits->items + visits->count, *at = from + 1;
  while (at < end && (at->phase == TWS_PHASE_RECOMPUTE || at->fused_away)) at++;
  if (at == end || at->phase != TWS_PHASE_BACKWARD || at->module == TWS_NONE) return NULL;
  return at->tile == from->tile && at->tiles == from->tiles ? at : NULL;
}

/* Returns 1 if a module is a linear layer that needs the gradients of its weight and of its bias, and whose weight is
 * not tiled. */
static int takes_sums(const tws_lower *l, const tws_module *m) {
  return m->type == TWS_MODULE_LINEAR && m->param[1] != TWS_NONE && tws_trains(l, m, m->param[0]) &&
         tws_trains(l, m, m->param[1]) && tws_module_weight_tiles(l, (uint32_t)(m - l->network->modules)) == 1;
}

/* Sets visit->sums_for if the kernel of a visit can compute the gradient of a bias too. The matrix product that
 * computes GELU's gradient can do so for the bias of the layer before GELU. The kernel of a norm's gradient, which is
 * also the gradient of the residual sum before the norm, can do so for the bias of the layer whose output only that sum
 * reads. */
static void fuse_sums(tws_lower *l, const uint8_t *readers, tws_visit_list *visits, uint32_t i) {
  const tws_module *modules = l->network->modules;
  tws_visit *visit = &visits->items[i];
  if (visit->phase != TWS_PHASE_BACKWARD || visit->module == TWS_NONE || visit->fused_away) return;
  const tws_module *m = &modules[visit->module];
  const int product = m->type == TWS_MODULE_LINEAR && visit->fused_with != TWS_NONE;
  if (!product && m->type != TWS_MODULE_NORM) return;
  const tws_visit *next = next_backward(visits, visit);
  if (!next) return;
  if (!product) {
    const tws_module *add = &modules[next->module];
    if (add->type != TWS_MODULE_ADD || add->out[0] != m->in[0] || !(next = next_backward(visits, next))) return;
    const uint32_t y = modules[next->module].out[0];
    if ((y != add->in[0] && y != add->in[1]) || add->in[0] == add->in[1] || readers[y] != 1) return;
  } else if (modules[next->module].out[0] != modules[visit->fused_with].in[0]) {
    return;
  }
  if (takes_sums(l, &modules[next->module])) visit->sums_for = next->module;
}

static void fuse_adjacent(tws_lower *l, tws_visit_list *visits) {
  const tws_network *network = l->network;
  /* per value: number of modules that read it: 0, 1, or 2 for more */
  uint8_t *readers = tws_arena_alloc(l->scratch, network->value_count + 1u, 1);
  if (!readers) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return;
  }
  for (uint32_t m = 0; m < network->module_count; m++) {
    for (int i = 0; i < TWS_MODULE_INS; i++) {
      uint32_t v = network->modules[m].in[i];
      if (v != TWS_NONE && readers[v] < 2) readers[v]++;
    }
  }
  for (uint32_t i = 0; i + 1 < visits->count; i++) fuse_pair(l, readers, &visits->items[i], &visits->items[i + 1]);
  for (uint32_t i = 0; i + 1 < visits->count; i++) fuse_sums(l, readers, visits, i);
}

tws_code tws_lower_visits(tws_lower *l, tws_chunk *chunk) {
  const tws_network *network = l->network;
  uint8_t *have = tws_arena_alloc(l->scratch, network->value_count + 1u, 1);
  if (!l->tiled) l->tiled = tws_lower_memory(l, network->value_count, 1);
  if (!have || !l->tiled) return tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  group g;
  mark_tiled(l);
  tws_recompute_decide(l);
  push_visit(l, TWS_NONE, TWS_PHASE_FORWARD);
  for (uint32_t m = chunk->first; m < chunk->end; m++) {
    if (!tiled_group(l, m, &g)) {
      push_visit(l, m, TWS_PHASE_FORWARD);
    } else if (m == g.first) {
      push_group(l, &g, TWS_PHASE_FORWARD);
    }
  }
  chunk->forward_visits = chunk->visits.count;
  if (l->extent.evaluates) {
    fuse_adjacent(l, &chunk->visits);
    return l->b.failed;
  }
  for (uint32_t v = 0; v < network->value_count; v++) have[v] = l->kept[v];
  /* a turn may run modules backward that earlier turns ran forward */
  const uint32_t first = tws_turns(l) > 1 ? 0 : chunk->first;
  for (uint32_t m = first; m < chunk->end; m++) {
    uint32_t consumed;
    if (consumes(l, m, &consumed)) have[consumed] = 0;
  }
  push_visit(l, TWS_NONE, TWS_PHASE_BACKWARD);
  for (uint32_t m = chunk->end; m-- > first;) {
    if (tws_turns(l) > 1 && network->modules[m].backward_turn != chunk - l->pipeline.chunks) continue;
    make_whole(l, have, m);
    if (!tiled_group(l, m, &g)) {
      go_backward(l, have, m);
      /* the last module of the group */
    } else if (m == g.first && tws_module_goes_backward(l, &network->modules[g.first + g.count - 1])) {
      if (!g.loss) ensure_value(l, have, network->modules[g.first].in[0]);
      if (g.attention == TWS_NONE) {
        push_group_backward(l, &g);
        continue;
      }
      if (!have[stored_value(l, &g)]) push_group(l, &g, TWS_PHASE_RECOMPUTE);
      push_chunks_backward(l, &g);
    }
  }
  tws_float8_visits(l, &chunk->visits);
  fuse_adjacent(l, &chunk->visits);
  return l->b.failed;
}
