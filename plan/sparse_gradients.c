/* sparse_gradients: the gradient of an embedding table is 0 except in the rows of the step's tokens. At stage 0 these
 * rows are gathered instead of all-reducing the whole table:
 *
 *   EMBEDDING_ROWS   each rank moves the rows of its step's tokens out of its gradient, one for each distinct id, in a
 *                    buffer that has room for one row of each token
 *   all-gather       of the rows, and of their numbers
 *   ADD_ROWS         all ranks add the rows of all ranks to their gradients, in the order of ranks: these stay equal
 *
 * A table that another module reads too (a head with tied weights), or that is split in tiles, has gradients in all
 * rows, and is all-reduced. */
#include "plan/zero.h"

/* Returns the EMBEDDING module whose table this parameter is, if only the rows of tokens in its gradient differ from 0;
 * else NULL. */
static const tws_module *table_of(const tws_lower *l, uint32_t param) {
  const uint32_t index = l->network->params[param].module;
  const tws_module *m = &l->network->modules[index];
  if (!l->config->sparse_gradients || l->zero.stage > 0 || l->zero.uses[param] != 1) return NULL;
  if (m->type != TWS_MODULE_EMBEDDING || m->param[0] != param || tws_weight_tile_count(l, param) > 0) return NULL;
  return tws_is_frozen(l, param) ? NULL : m;
}

int tws_sparse_next(const tws_lower *l, const tws_zero_class *c, uint64_t at, uint32_t *param, uint64_t *begin) {
  for (uint32_t i = c->first; i < c->end && c->ranks > 1; i++) {
    const uint32_t p = (uint32_t)l->zero.order[i];
    const uint64_t first = l->zero.flat_offset[p] - c->stored;
    if (first < at || tws_zero_numel(l, p) == 0 || !table_of(l, p)) continue;
    *param = p;
    *begin = first;
    return 1;
  }
  return 0;
}

static void gather(tws_lower *l, const tws_zero_class *c, uint32_t from, uint32_t to, tws_dtype dtype, uint64_t count) {
  const uint64_t all = count * (uint64_t)c->ranks;
  const tws_operand operands[2] = {tws_read(from, 0, count), tws_write(to, 0, all)};
  tws_builder_collective(&l->b, l->streams.reduce, TWS_COLLECTIVE_ALL_GATHER, c->group, dtype,
                         all * tws_dtype_bytes(dtype), 1, 0, operands, 2);
}

void tws_sparse_reduce(tws_lower *l, const tws_zero_class *c, uint32_t param) {
  const tws_module *m = table_of(l, param);
  const tws_param *table = &l->network->params[param];
  const tws_dtype type = tws_config_communication_dtype(l->config);
  const uint32_t input = l->b.plan->input[m->input[0]], micro_batch = l->b.micro_batch;
  const uint64_t tokens = l->b.plan->buffers[input].elements, ranks = (uint64_t)c->ranks;
  const uint64_t width = (uint64_t)table->columns, size = tws_zero_numel(l, param);
  const tws_category kind = TWS_CATEGORY_BUCKET;
  const int64_t skipped = m->param[1] == TWS_NONE ? m->first_position : 0;
  const tws_arguments first_id = {{(double)(tws_local_of(l, m)->first_row - skipped)}};
  const tws_operand gradient = tws_update(l->b.plan->gradients, l->zero.flat_offset[param], size);
  const uint32_t first = tws_builder_buffer(&l->b, "first tokens of rows", kind, TWS_I32, (uint64_t)table->rows, 0);
  const uint32_t places = tws_builder_buffer(&l->b, "numbers of rows", kind, TWS_I32, tokens, 0);
  const uint32_t all_places = tws_builder_buffer(&l->b, "numbers of all rows", kind, TWS_I32, tokens * ranks, 0);
  const uint32_t rows = tws_builder_buffer(&l->b, "rows of a gradient", kind, type, tokens * width, 0);
  const uint32_t all = tws_builder_buffer(&l->b, "rows of all gradients", kind, type, tokens * width * ranks, 0);
  if (l->b.failed != TWS_OK) return;
  l->b.micro_batch = (uint32_t)l->extent.accumulation;
  tws_work work = tws_kernel_work(TWS_KERNEL_EMBEDDING_ROWS, (tws_dtype)l->b.plan->buffers[gradient.buffer].dtype, 0);
  const int64_t d[] = {(int64_t)tokens, (int64_t)width, table->rows, c->ranks};
  memcpy(work.d, d, 3 * sizeof *d);
  work.dtype2 = (uint8_t)type;
  const tws_operand moves[5] = {tws_all(&l->b, input, TWS_READ), gradient, tws_all(&l->b, first, TWS_WRITE),
                                tws_all(&l->b, places, TWS_WRITE), tws_all(&l->b, rows, TWS_WRITE)};
  tws_builder_compute_with(&l->b, l->streams.reduce, &work, &first_id, moves, 5);
  l->b.micro_batch = micro_batch;
  const tws_operand own = tws_all(&l->b, rows, TWS_READ_WRITE), gathered = tws_all(&l->b, all, TWS_READ_WRITE);
  tws_zero_divide(l, &own, 1, 0);
  gather(l, c, places, all_places, TWS_I32, tokens);
  gather(l, c, rows, all, type, tokens * width);
  tws_zero_divide(l, &gathered, 1, 1);
  l->b.micro_batch = (uint32_t)l->extent.accumulation;
  work.code = TWS_KERNEL_ADD_ROWS;
  work.dtype2 = work.dtype;
  work.dtype = (uint8_t)type;
  memcpy(work.d, d, sizeof d);
  const tws_operand adds[3] = {tws_all(&l->b, all_places, TWS_READ), tws_all(&l->b, all, TWS_READ), gradient};
  tws_builder_compute(&l->b, l->streams.reduce, &work, adds, 3);
  l->b.micro_batch = micro_batch;
}
