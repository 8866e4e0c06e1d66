#include "models/network/shorten.h"

#include <string.h>

typedef struct cut {
  const tws_network *whole;
  tws_network *out;
  uint32_t first, end, width;
  uint32_t *value, *param; /* numbers in the shorter network; TWS_NONE: none */
} cut;

static int is_left_out(const cut *c, uint32_t module) {
  return module >= c->first && module < c->end;
}

/* The same value of the layer before those that are left out. */
static uint32_t stand_in(const cut *c, uint32_t value) {
  const uint32_t producer = c->whole->values[value].producer;
  const tws_module *m = &c->whole->modules[producer];
  if (producer + c->width < c->end) return TWS_NONE;
  for (int i = 0; i < TWS_MODULE_OUTS; i++)
    if (m->out[i] == value) return c->whole->modules[producer - (c->end - c->first)].out[i];
  return TWS_NONE;
}

static void keep_values(cut *c) {
  for (uint32_t v = 0; v < c->whole->value_count; v++) {
    const tws_value *value = &c->whole->values[v];
    if (is_left_out(c, value->producer)) {
      const uint32_t other = stand_in(c, v);
      c->value[v] = other == TWS_NONE ? TWS_NONE : c->value[other];
      continue;
    }
    c->value[v] = c->out->value_count++;
    c->out->values[c->value[v]] = *value;
    if (value->producer >= c->end) c->out->values[c->value[v]].producer -= c->end - c->first;
  }
}

static void keep_params(cut *c) {
  const tws_network *whole = c->whole;
  for (uint32_t p = 0; p < whole->param_count; p++) {
    c->param[p] = TWS_NONE;
    if (is_left_out(c, whole->params[p].module)) continue;
    c->param[p] = c->out->param_count++;
    c->out->params[c->param[p]] = whole->params[p];
    if (whole->params[p].module >= c->end) c->out->params[c->param[p]].module -= c->end - c->first;
  }
}

/* 0: it refers to something that is not there. */
static int keep_module(cut *c, const tws_module *from) {
  tws_module *m = &c->out->modules[c->out->module_count++];
  *m = *from;
  for (int i = 0; i < TWS_MODULE_INS; i++)
    if (m->in[i] != TWS_NONE && (m->in[i] = c->value[m->in[i]]) == TWS_NONE) return 0;
  for (int i = 0; i < TWS_MODULE_OUTS; i++)
    if (m->out[i] != TWS_NONE) m->out[i] = c->value[m->out[i]];
  for (int i = 0; i < TWS_MODULE_PARAMS; i++)
    if (m->param[i] != TWS_NONE && (m->param[i] = c->param[m->param[i]]) == TWS_NONE) return 0;
  return 1;
}

const tws_network *tws_network_shorten(const tws_network *whole, uint32_t first, uint32_t end, uint32_t width,
                                       tws_arena *arena) {
  cut c = {.whole = whole, .first = first, .end = end, .width = width};
  if (first >= end || first < width || end > whole->module_count || whole->running_count) return NULL;
  c.out = tws_arena_alloc(arena, 1, sizeof *c.out);
  c.value = tws_arena_alloc(arena, whole->value_count + 1u, sizeof *c.value);
  c.param = tws_arena_alloc(arena, whole->param_count + 1u, sizeof *c.param);
  if (!c.out || !c.value || !c.param) return NULL;
  *c.out = *whole;
  c.out->modules = tws_arena_alloc(arena, whole->module_count + 1u, sizeof *c.out->modules);
  c.out->values = tws_arena_alloc(arena, whole->value_count + 1u, sizeof *c.out->values);
  c.out->params = tws_arena_alloc(arena, whole->param_count + 1u, sizeof *c.out->params);
  c.out->module_count = c.out->value_count = c.out->param_count = 0;
  if (!c.out->modules || !c.out->values || !c.out->params) return NULL;
  keep_values(&c);
  keep_params(&c);
  for (uint32_t m = 0; m < whole->module_count; m++)
    if (!is_left_out(&c, m) && !keep_module(&c, &whole->modules[m])) return NULL;
  if (c.out->logits != TWS_NONE && whole->logits < whole->value_count) c.out->logits = c.value[whole->logits];
  return c.out;
}
