#include "models/network/module.h"

#include <math.h>
#include <string.h>

#define SIZES(...)
#define SCALARS(...)
#define FLAGS(...)
#define TRAITS(...) TRAITS_(__VA_ARGS__, , )
#define TRAITS_(a, b, ...) TRAIT_##a TRAIT_##b
#define TRAIT_
#define TRAIT_CHEAP .cheap = 1,
#define TRAIT_POINTWISE .pointwise = 1,
#define FORWARD(...) .forward = {__VA_ARGS__{.kernel = 0}},
#define BACKWARD(...) .backward = {__VA_ARGS__{.kernel = 0}},
#define ENTRY(id, programs_, ...) {.kernel = TWS_KERNEL_##id, .programs = TWS_IN_##programs_, .binding = {__VA_ARGS__}},
#define KERNEL(id, ...) ENTRY(id, ALL, __VA_ARGS__)
#define TRAINING(id, ...) ENTRY(id, TRAINING, __VA_ARGS__)
#define EVALUATION(id, ...) ENTRY(id, EVALUATION, __VA_ARGS__)
#define BIND(source_, index_) \
  { .source = TWS_BIND_##source_, .index = index_ }
#define NONE BIND(NONE, 0)
#define IN(i) BIND(IN, i)
#define OUT(i) BIND(OUT, i)
#define PARAM(i) BIND(PARAM, i)
#define INPUT(i) BIND(INPUT, i)
#define IN_OR_INPUT(i) BIND(IN_OR_INPUT, i)
#define TAKE(i) BIND(TAKE, i)
#define UPDATE(i) BIND(UPDATE, i)
#define D_OUT(i) BIND(D_OUT, i)
#define D_IN(i) BIND(D_IN, i)
#define D_IN_PLACE(i) BIND(D_IN_PLACE, i)
#define D_IN_UPDATE(i) BIND(D_IN_UPDATE, i)
#define D_PARAM(i) BIND(D_PARAM, i)
#define WORKSPACE BIND(WORKSPACE, 0)
#define RUNNING BIND(RUNNING, 0)
#define RUNNING_UPDATE BIND(RUNNING_UPDATE, 0)
#define HYPER BIND(HYPER, 0)
#define METRICS BIND(METRICS, 0)
#define SCALE BIND(SCALE, 0)
#define MODULE(id, name_, summary_, sizes_, scalars_, flags_, traits_, forward_, backward_) \
  [TWS_MODULE_##id] = {.name = name_, .summary = summary_, traits_ forward_ backward_},
static const tws_module_row rows[TWS_MODULE_TYPE_COUNT] = {
#include "models/network/modules.def"
};

const tws_module_row *tws_module_row_of(tws_module_type type) {
  return (unsigned)type < TWS_MODULE_TYPE_COUNT ? &rows[type] : NULL;
}

const char *tws_module_type_name(tws_module_type type) {
  return (unsigned)type < TWS_MODULE_TYPE_COUNT ? rows[type].name : "unknown module";
}

const char *tws_module_name(const tws_module *module) {
  if (module->type == TWS_MODULE_NORM) return module->rms ? "RMSNorm" : "LayerNorm";
  if (module->type == TWS_MODULE_LOSS && module->loss == TWS_LOSS_SIGMOIDS) return "BCEWithLogitsLoss";
  if (module->type == TWS_MODULE_LOSS && module->loss == TWS_LOSS_SQUARES) return "MSELoss";
  return tws_module_type_name(module->type);
}

tws_module_memory tws_module_memory_of(tws_module_type type) {
  const tws_module_row *row = &rows[type];
  tws_module_memory memory = {.taken = -1};
  for (const tws_binding *b = row->forward[0].binding; b->source != TWS_BIND_END; b++)
    if (b->source == TWS_BIND_TAKE || b->source == TWS_BIND_UPDATE) memory.taken = (int8_t)b->index;
  for (int k = 0; k < TWS_MODULE_KERNELS; k++)
    for (const tws_binding *b = row->backward[k].binding; b->source != TWS_BIND_END; b++) {
      const uint8_t source = b->source == TWS_BIND_IN_OR_INPUT ? TWS_BIND_IN : b->source;
      int known = source != TWS_BIND_IN && source != TWS_BIND_OUT;
      for (int i = 0; i < memory.saved_count; i++)
        known |= memory.saved[i].source == source && memory.saved[i].index == b->index;
      if (!known) memory.saved[memory.saved_count++] = (tws_binding){.source = source, .index = b->index};
    }
  return memory;
}

void tws_module_clear(tws_module *module, tws_module_type type, const char *name, int layer) {
  memset(module, 0, sizeof *module);
  module->type = type;
  module->name = name;
  module->layer = layer;
  memset(module->in, 0xff, sizeof module->in); /* sets all of them to TWS_NONE */
  memset(module->out, 0xff, sizeof module->out);
  memset(module->param, 0xff, sizeof module->param);
  memset(module->input, 0xff, sizeof module->input);
  module->running = TWS_NONE;
}

uint32_t tws_network_input_of(const tws_network *network, tws_input_content content) {
  for (uint32_t i = 0; i < network->input_count; i++)
    if (network->input[i].content == content) return i;
  return TWS_NONE;
}

/* Returns the number of slots of an expert, computed in float32 as in DeepSpeed. */
static int64_t slots_of(const tws_dim *dim, int64_t tokens) {
  if (dim->factor <= 0) return tokens;
  const int64_t slots = (int64_t)ceilf((float)((double)tokens / dim->parts) * (float)dim->factor);
  return slots > dim->size ? slots : dim->size;
}

int64_t tws_dims_count(const tws_dim *dim, int dims, int64_t samples, int64_t sequence) {
  int64_t count = 1;
  for (int i = 0; i < dims; i++) {
    switch (dim[i].kind) {
      case TWS_DIM_FIXED:
      case TWS_DIM_PIXELS:
        count *= dim[i].size;
        break;
      case TWS_DIM_SAMPLES:
        count *= samples;
        break;
      case TWS_DIM_SEQUENCE:
      case TWS_DIM_TARGET:
        count *= dim[i].size > 0 ? dim[i].size : sequence;
        break;
      case TWS_DIM_CAPACITY:
        count *= slots_of(&dim[i], samples * sequence);
        break;
    }
  }
  return count;
}

static int64_t windows_along(int64_t extent, const tws_module_windows *w) {
  return w->side > 0 ? (extent + 2 * w->padding - w->side) / (w->stride > 0 ? w->stride : 1) + 1 : 1;
}

int64_t tws_module_windows_of_picture(const tws_module *m) {
  return windows_along(m->windows->height, m->windows) * windows_along(m->windows->width, m->windows);
}

double tws_module_rope(const tws_module *m, int64_t sequence, int parameter) {
  enum { THETA, FACTOR, ORIGINAL = 4, GAIN };
  if (!m->dynamic_rope) return m->rope[parameter];
  if (parameter == GAIN) return m->rope[GAIN];
  if (parameter != THETA) return 0;
  const double rotary = m->rotary > 0 ? m->rotary : m->head_size, times = (double)sequence / m->rope[ORIGINAL];
  if (times <= 1 || rotary <= 2) return m->rope[THETA];
  return m->rope[THETA] * pow(m->rope[FACTOR] * times - (m->rope[FACTOR] - 1), rotary / (rotary - 2));
}
