/* Large weights of linear layers in tiles (memory-centric tiling; Rajbhandari et al. 2021, ZeRO-Infinity, section
 * 5.1.3).
 *
 * At stage 3 a weight exists whole while its layer computes, so the largest weight determines how much memory a device
 * needs. A tile is a range of rows of the weight, which computes a range of the layer's outputs. ZeRO treats tiles as
 * parameters: each is partitioned, gathered, released and reduced separately, and a layer is visited once for each
 * tile. The outputs of a tile are copied to their columns of the layer's output, and a tile reads its columns of the
 * output's gradient; gradients of inputs are added up over tiles. States and checkpoints have only the weight, of which
 * a rank stores several ranges instead of one.
 *
 * Biases are not tiled, nor are weights that several modules use, nor any weights of jobs whose parameters are not
 * gathered (stages 0 to 2). */
#include <stdio.h>

#include "plan/lower.h"

enum { MOST_TILES = 4096 }; /* largest number of tiles of a weight */

static int gathers(const tws_lower *l) {
  return l->config->zero.stage == 3 && (l->zero.ranks > 1 || l->config->zero.offload_param);
}

/* Returns the number of rows of a tile of at most `most` elements, chosen so that all tiles have about as many rows; if
 * possible it is a multiple of 8, with which tensor cores are fast. */
static int64_t rows_of_tiles(const tws_param *weight, int64_t most) {
  int64_t fit = most / weight->columns;
  if (fit >= 8) fit -= fit % 8;
  const int64_t count = (weight->rows + fit - 1) / fit, even = (weight->rows + count - 1) / count;
  return fit >= 8 ? (even + 7) / 8 * 8 : even;
}

static tws_code cut(const tws_lower *l, const tws_param *weight, tws_weight_tiles *tiles) {
  const int64_t most = l->config->linear_tile_size, least = (weight->rows + MOST_TILES - 1) / MOST_TILES;
  char hint[80];
  tiles->rows = most >= weight->columns ? rows_of_tiles(weight, most) : 1;
  tiles->count = (uint32_t)((weight->rows + tiles->rows - 1) / tiles->rows);
  if (most >= weight->columns && tiles->count <= MOST_TILES) return TWS_OK;
  snprintf(hint, sizeof hint, "use at least %lld",
           (long long)(weight->columns * (least > 8 ? (least + 7) / 8 * 8 : least)));
  if (most < weight->columns)
    return tws_fail(l->b.err, TWS_INVALID, hint,
                    "twinspeed.linear_tile_size: an output of %s has %lld weights, and a tile no more than %lld",
                    weight->name, (long long)weight->columns, (long long)most);
  return tws_fail(l->b.err, TWS_INVALID, hint, "twinspeed.linear_tile_size: %s has more than %d tiles of %lld elements",
                  weight->name, MOST_TILES, (long long)most);
}

/* Chooses the weights of linear layers that only one module uses and that exceed the tile size. */
static tws_code choose(const tws_lower *l, uint32_t *uses, uint32_t *all) {
  const tws_network *network = l->network;
  for (uint32_t m = 0; m < network->module_count; m++)
    for (int i = 0; i < TWS_MODULE_PARAMS; i++)
      if (network->modules[m].param[i] != TWS_NONE) uses[network->modules[m].param[i]]++;
  for (uint32_t m = 0; m < network->module_count; m++) {
    const tws_module *module = &network->modules[m];
    if (module->type != TWS_MODULE_LINEAR || uses[module->param[0]] > 1) continue;
    const tws_param *weight = &network->params[module->param[0]];
    const int plain = weight->rows == module->out_features && weight->columns == module->in_features;
    if (!plain || tws_param_numel(weight) <= l->config->linear_tile_size) continue;
    TWS_TRY(cut(l, weight, &l->tiling.weights[module->param[0]]));
    l->tiling.weights[module->param[0]].first = *all;
    *all += l->tiling.weights[module->param[0]].count;
  }
  return TWS_OK;
}

static void add_tiles(const tws_lower *l, uint32_t weight, tws_param *params, tws_placement *placed) {
  const tws_weight_tiles *tiles = &l->tiling.weights[weight];
  for (uint32_t i = 0; i < tiles->count; i++) {
    const int64_t left = params[weight].rows - tiles->rows * i;
    tws_param *tile = &params[tiles->first + i];
    *tile = (tws_param){.name = params[weight].name,
                        .rows = left < tiles->rows ? left : tiles->rows,
                        .columns = params[weight].columns,
                        .module = params[weight].module,
                        .frozen = params[weight].frozen,
                        .param_group = params[weight].param_group,
                        .code_type = params[weight].code_type};
    placed[tiles->first + i] = placed[weight];
    l->tiling.weight_of[tiles->first + i] = weight;
  }
}

tws_code tws_weight_tiles_begin(tws_lower *l) {
  const uint32_t count = l->network->param_count;
  uint32_t all = count;
  if (!l->config->linear_tile_size || !gathers(l)) return TWS_OK;
  l->tiling.weights = tws_lower_memory(l, count, sizeof *l->tiling.weights);
  uint32_t *uses = tws_lower_memory(l, count, sizeof *uses);
  if (!l->tiling.weights || !uses) return l->b.failed;
  TWS_TRY(choose(l, uses, &all));
  tws_network *network = tws_lower_memory(l, 1, sizeof *network);
  tws_param *params = tws_lower_memory(l, all, sizeof *params);
  tws_placement *placed = tws_lower_memory(l, all, sizeof *placed);
  l->tiling.weight_of = tws_lower_memory(l, all, sizeof *l->tiling.weight_of);
  if (!network || !params || !placed || !l->tiling.weight_of) return l->b.failed;
  *network = *l->network;
  for (uint32_t p = 0; p < count; p++) {
    params[p] = l->network->params[p];
    placed[p] = l->local.params[p];
  }
  for (uint32_t p = 0; p < count; p++) add_tiles(l, p, params, placed);
  network->params = params;
  network->param_count = all;
  l->network = l->local.network = network;
  l->local.params = placed;
  return TWS_OK;
}

uint32_t tws_weight_tile_origin(const tws_lower *l, uint32_t param, uint64_t *first) {
  *first = 0;
  if (!tws_is_weight_tile(l, param)) return param;
  const tws_weight_tiles *tiles = &l->tiling.weights[l->tiling.weight_of[param]];
  *first = (param - tiles->first) * (uint64_t)(tiles->rows * l->network->params[param].columns);
  return l->tiling.weight_of[param];
}

uint32_t tws_visit_param(const tws_lower *l, uint32_t param, uint32_t weight_tile) {
  return tws_weight_tile_count(l, param) > 0 ? l->tiling.weights[param].first + weight_tile : param;
}

/* ---- one visit of a linear layer ---- */

static uint32_t tiles_of(const tws_lower *l, const tws_module *m) {
  return tws_module_weight_tiles(l, (uint32_t)(m - l->network->modules));
}

tws_outputs tws_visit_outputs(const tws_lower *l, const tws_module *m) {
  if (tiles_of(l, m) == 1) return (tws_outputs){0, m->out_features};
  const tws_weight_tiles *tiles = &l->tiling.weights[m->param[0]];
  return (tws_outputs){tiles->rows * l->at.weight_tile, l->network->params[tiles->first + l->at.weight_tile].rows};
}

/* The first visit is that of tile 0 in the forward pass and that of the last tile in the backward pass, which visits
 * tiles in reverse order. */
int tws_is_first_weight_tile(const tws_lower *l, const tws_module *m) {
  return l->at.weight_tile == (l->b.phase == TWS_PHASE_BACKWARD ? tiles_of(l, m) - 1 : 0);
}

int tws_is_last_weight_tile(const tws_lower *l, const tws_module *m) {
  return l->at.weight_tile == (l->b.phase == TWS_PHASE_BACKWARD ? 0 : tiles_of(l, m) - 1);
}

static void move_outputs(tws_lower *l, const tws_module *m, tws_kernel kernel, uint32_t flags, tws_operand from,
                         tws_operand to) {
  const tws_outputs outputs = tws_visit_outputs(l, m);
  tws_work work = tws_kernel_work(kernel, tws_value_dtype(l, m->out[0]), flags);
  work.d[0] = tws_module_rows(l, m);
  work.d[1] = 1;
  work.d[2] = m->out_features;
  work.d[3] = outputs.count;
  from.access = TWS_READ;
  const tws_operand operands[2] = {from, to};
  tws_lower_compute_with(l, &work, &(tws_arguments){{(double)outputs.first}}, operands, 2);
}

static tws_operand one_tile(tws_lower *l, const tws_module *m, const char *name) {
  return tws_lower_scratch(l, name, tws_value_dtype(l, m->out[0]),
                           (uint64_t)(tws_module_rows(l, m) * tws_visit_outputs(l, m).count));
}

tws_operand tws_outputs_make(tws_lower *l, const tws_module *m) {
  return tiles_of(l, m) == 1 ? tws_value_write(l, m->out[0]) : one_tile(l, m, "outputs of a tile");
}

void tws_outputs_put(tws_lower *l, const tws_module *m, tws_operand outputs) {
  if (tiles_of(l, m) == 1 || l->b.failed != TWS_OK) return;
  const int first = tws_is_first_weight_tile(l, m);
  tws_operand all = first ? tws_value_write(l, m->out[0]) : tws_value_read(l, m->out[0]);
  if (!first) all.access = TWS_READ_WRITE;
  move_outputs(l, m, TWS_KERNEL_PART_GRAD, first ? 0 : TWS_ACCUMULATE, outputs, all);
}

tws_operand tws_outputs_gradient(tws_lower *l, const tws_module *m) {
  const tws_operand all = tws_value_gradient(l, m->out[0]);
  if (tiles_of(l, m) == 1 || l->b.failed != TWS_OK) return all;
  tws_operand part = one_tile(l, m, "gradient of a tile");
  move_outputs(l, m, TWS_KERNEL_PART, 0, all, part);
  part.access = TWS_READ;
  return part;
}
