/* Adds the modules of networks on pictures. */
#include <math.h>
#include <string.h>

#include "models/network/build.h"

uint32_t tws_build_pictures(tws_network_builder *b, const char *name, int64_t height, int64_t width, int64_t channels) {
  const tws_dim dims[] = {{.kind = TWS_DIM_SAMPLES},
                          {.kind = TWS_DIM_PIXELS, .size = height},
                          {.kind = TWS_DIM_PIXELS, .size = width},
                          {.kind = TWS_DIM_FIXED, .size = channels}};
  return tws_build_input(b, name, TWS_INPUT_NUMBERS, dims, 4);
}

static int64_t count_windows(int64_t extent, int64_t side, int64_t stride, int64_t padding) {
  return side > 0 ? (extent + 2 * padding - side) / stride + 1 : 1;
}

static void set_windows(tws_network_builder *b, uint32_t module, tws_module_windows windows) {
  tws_module_windows *own = tws_arena_alloc(b->net->arena, 1, sizeof *own);
  if (own)
    *own = windows;
  else
    b->failed = 1;
  b->net->modules[module].windows = own;
}

/* Adds the output of a module with windows: a value with a row for each window of a picture, or for each picture if the
 * window is the whole picture. */
static uint32_t add_output(tws_network_builder *b, uint32_t module, int64_t channels) {
  static const tws_module_windows none; /* used if memory is exhausted, which is reported when the graph is complete */
  const tws_module_windows *own = b->net->modules[module].windows, *w = own ? own : &none;
  const tws_dim dims[] = {{.kind = TWS_DIM_SAMPLES},
                          {.kind = TWS_DIM_PIXELS, .size = count_windows(w->height, w->side, w->stride, w->padding)},
                          {.kind = TWS_DIM_PIXELS, .size = count_windows(w->width, w->side, w->stride, w->padding)}};
  return tws_build_value(b, module, 0, "y", dims, w->side > 0 ? 3 : 1, channels, TWS_VALUE_ACTIVATION);
}

uint32_t tws_build_convolution(tws_network_builder *b, int layer, const char *name, uint32_t x, uint32_t input,
                               const tws_convolution *convolution) {
  const uint32_t module = tws_build_module(b, TWS_MODULE_CONVOLUTION, layer, name);
  tws_module *m = &b->net->modules[module];
  const tws_dim *dim = x != TWS_NONE ? b->net->values[x].row : b->net->input[input].dim;
  const int64_t groups = convolution->groups > 0 ? convolution->groups : 1;
  m->in[0] = x;
  m->input[0] = input;
  m->in_features = x != TWS_NONE ? b->net->values[x].per_row : dim[3].size;
  m->out_features = convolution->out;
  set_windows(b, module,
              (tws_module_windows){.height = dim[1].size,
                                   .width = dim[2].size,
                                   .side = convolution->side,
                                   .stride = convolution->stride,
                                   .padding = convolution->padding,
                                   .groups = groups});
  tws_build_param(b, module, 0, tws_build_name(b, "%s.weight", name), m->out_features,
                  convolution->side * convolution->side * m->in_features / groups, (tws_init){convolution->std, 0});
  if (convolution->bias)
    tws_build_param(b, module, 1, tws_build_name(b, "%s.bias", name), 1, m->out_features, (tws_init){0, 0});
  return add_output(b, module, m->out_features);
}

uint32_t tws_build_transposed_convolution(tws_network_builder *b, int layer, const char *name, uint32_t x,
                                          uint32_t input, const tws_convolution *convolution, int64_t more) {
  const tws_convolution *c = convolution;
  const uint32_t module = tws_build_module(b, TWS_MODULE_TRANSPOSED_CONVOLUTION, layer, name);
  tws_module *m = &b->net->modules[module];
  const tws_dim *dim = x != TWS_NONE ? b->net->values[x].row : b->net->input[input].dim;
  const int64_t groups = c->groups > 0 ? c->groups : 1, added = c->side - 2 * c->padding + more;
  const int64_t height = (dim[1].size - 1) * c->stride + added, width = (dim[2].size - 1) * c->stride + added;
  const tws_dim dims[] = {
      {.kind = TWS_DIM_SAMPLES}, {.kind = TWS_DIM_PIXELS, .size = height}, {.kind = TWS_DIM_PIXELS, .size = width}};
  m->in[0] = x;
  m->input[0] = input;
  m->in_features = x != TWS_NONE ? b->net->values[x].per_row : dim[3].size;
  m->out_features = c->out;
  set_windows(b, module,
              (tws_module_windows){.height = height,
                                   .width = width,
                                   .side = c->side,
                                   .stride = c->stride,
                                   .padding = c->padding,
                                   .groups = groups});
  tws_build_param(b, module, 0, tws_build_name(b, "%s.weight", name), m->in_features,
                  c->side * c->side * c->out / groups, (tws_init){c->std, 0});
  const uint32_t y = tws_build_value(b, module, 0, "y", dims, 3, c->out, TWS_VALUE_ACTIVATION);
  if (!c->bias) return y;
  const char *bias = tws_build_name(b, "%s.bias", name);
  return tws_build_part_bias(b, layer, bias, bias, y, 1);
}

uint32_t tws_build_batch_norm(tws_network_builder *b, int layer, const char *name, uint32_t x, double epsilon,
                              double momentum) {
  tws_network *net = b->net;
  const uint32_t module = tws_build_module(b, TWS_MODULE_BATCH_NORM, layer, name);
  tws_module *m = &net->modules[module];
  const tws_value *like = &net->values[x];
  const int64_t width = like->per_row;
  m->in[0] = x;
  m->out_features = width;
  m->epsilon = epsilon;
  m->momentum = momentum;
  const char *running = tws_build_name(b, "%s.running", name);
  m->running = b->again ? 0 : net->running_count;
  while (m->running < net->running_count && strcmp(net->running[m->running].name, running) != 0) m->running++;
  if (m->running == net->running_count)
    net->running[net->running_count++] =
        (tws_running){.name = running, .rows = 2, .columns = width, .init_value = {0, 1}};
  tws_build_param(b, module, 0, tws_build_name(b, "%s.weight", name), 1, width, (tws_init){0, 1});
  tws_build_param(b, module, 1, tws_build_name(b, "%s.bias", name), 1, width, (tws_init){0, 0});
  const uint32_t y = tws_build_value(b, module, 0, "y", like->row, like->row_dims, width, TWS_VALUE_ACTIVATION);
  tws_build_value(b, module, 1, "stats", like->row, 0, 2 * width, TWS_VALUE_STATISTIC);
  return y;
}

uint32_t tws_build_pool(tws_network_builder *b, int layer, const char *name, tws_module_type type, uint32_t x,
                        int64_t side, int64_t stride, int64_t padding) {
  const uint32_t module = tws_build_module(b, type, layer, name);
  tws_module *m = &b->net->modules[module];
  const tws_value *like = &b->net->values[x];
  m->in[0] = x;
  m->out_features = like->per_row;
  set_windows(
      b, module,
      (tws_module_windows){
          .height = like->row[1].size, .width = like->row[2].size, .side = side, .stride = stride, .padding = padding});
  return add_output(b, module, m->out_features);
}

uint32_t tws_build_flatten(tws_network_builder *b, int layer, const char *name, uint32_t x) {
  const uint32_t module = tws_build_module(b, TWS_MODULE_FLATTEN, layer, name);
  tws_module *m = &b->net->modules[module];
  const tws_value *like = &b->net->values[x];
  const tws_dim sample[] = {{.kind = TWS_DIM_SAMPLES}};
  m->in[0] = x;
  m->in_features = like->per_row;
  m->out_features = like->row[1].size * like->row[2].size * like->per_row;
  return tws_build_value(b, module, 0, "y", sample, 1, m->out_features, TWS_VALUE_ACTIVATION);
}
