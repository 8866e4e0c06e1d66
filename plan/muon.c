/* Muon's update of the matrices of layers. Momentum is computed where it is stored, element by element. A matrix that
 * is partitioned is then gathered: at stage 3 on one rank, round-robin, which orthogonalizes the matrix and scatters
 * the result; at stages 1 and 2, where a matrix is stored whole except at the boundaries of partitions, on all ranks,
 * and each owner of a part orthogonalizes the whole matrix, as in DeepSpeed. All products are kernels of linear
 * layers. */
#include "plan/muon.h"

#include <math.h>

#include "plan/zero.h"

enum { ITERATIONS = 5, RESTART = 2 }; /* RESTART: the iteration before which the Gram matrix is recomputed */

/* ---- the operations of one orthogonalization ---- */

typedef struct orthogonalization {
  tws_muon_operation *list;
  int count;
  int64_t rows, columns, side; /* side: the smaller of both */
  int wide, x, y;              /* wide: 1 if columns >= rows; x, y: buffers of this and the next iteration's matrix */
  double scale;
} orthogonalization;

static void add(orthogonalization *o, tws_work work, int operands, int first, int second, int third) {
  o->list[o->count++] = (tws_muon_operation){.work = work, .operand = {first, second, third}, .operands = operands};
}

static tws_work product_work(tws_kernel kernel, int64_t tokens, int64_t out, int64_t in) {
  tws_work work = tws_kernel_work(kernel, TWS_F32, 0);
  work.d[0] = tokens, work.d[1] = out, work.d[2] = in;
  return work;
}

/* Appends the operation gram <- X X^T, or X^T X if the matrix has more rows than columns. */
static void find_gram(orthogonalization *o, int gram) {
  if (o->wide)
    add(o, product_work(TWS_KERNEL_LINEAR, o->rows, o->rows, o->columns), 3, o->x, o->x, gram);
  else
    add(o, product_work(TWS_KERNEL_LINEAR_GRAD_WEIGHT, o->rows, o->columns, o->columns), 3, o->x, o->x, gram);
}

/* Appends the operation product <- a b. Both are polynomials of one symmetric matrix, so they are symmetric and
 * commute. */
static void multiply(orthogonalization *o, int a, int b, int product) {
  add(o, product_work(TWS_KERNEL_LINEAR, o->side, o->side, o->side), 3, a, b, product);
}

/* Appends the operations z <- the iteration's polynomial of gram; the last iteration's includes the scale of the
 * matrix. */
static void find_polynomial(orthogonalization *o, int gram, int z, int iteration) {
  tws_work work = tws_kernel_work(TWS_KERNEL_NEWTON_SCHULZ, TWS_F32, 0);
  multiply(o, gram, gram, z);
  work.d[0] = work.d[1] = o->side;
  work.f[0] = iteration + 1 == ITERATIONS ? o->scale : 1;
  add(o, work, 2, gram, z, 0);
}

/* Appends the operation X <- q X, or X q if the matrix has more rows than columns. */
static void apply(orthogonalization *o, int q) {
  const int y = o->y;
  if (o->wide)
    add(o, product_work(TWS_KERNEL_LINEAR_GRAD_INPUT, o->rows, o->rows, o->columns), 3, q, o->x, y);
  else
    add(o, product_work(TWS_KERNEL_LINEAR, o->rows, o->columns, o->columns), 3, o->x, q, y);
  o->y = o->x;
  o->x = y;
}

static void swap(int *a, int *b) {
  const int c = *a;
  *a = *b;
  *b = c;
}

static void divide_by_norm(orthogonalization *o, int from) {
  tws_work work = tws_kernel_work(TWS_KERNEL_UNIT_NORM, TWS_F32, 0);
  work.d[0] = o->rows * o->columns;
  add(o, work, 2, from, o->x, 0);
}

/* Iterates on the Gram matrix: its polynomials are collected in q, and the matrix is multiplied by q at the restart and
 * at the end. */
static void iterate_on_gram(orthogonalization *o) {
  int gram = TWS_MUON_SQUARE, z = gram + 1, q = gram + 2, spare = gram + 3, has_q = 0;
  divide_by_norm(o, TWS_MUON_X);
  find_gram(o, gram);
  for (int i = 0; i < ITERATIONS; i++) {
    if (i == RESTART) {
      apply(o, q);
      find_gram(o, gram);
      has_q = 0;
    }
    find_polynomial(o, gram, z, i);
    if (i + 1 < ITERATIONS && i + 1 != RESTART) { /* gram <- z gram z */
      multiply(o, z, gram, spare);
      multiply(o, z, spare, gram);
    }
    if (has_q) {
      multiply(o, z, q, spare);
      swap(&q, &spare);
    } else {
      swap(&q, &z);
      has_q = 1;
    }
  }
  apply(o, q);
}

static void iterate_on_matrix(orthogonalization *o) {
  const int gram = TWS_MUON_SQUARE, z = gram + 1;
  o->x = TWS_MUON_Y; /* the number of products is odd, so the last one writes to X */
  o->y = TWS_MUON_X;
  divide_by_norm(o, TWS_MUON_X);
  for (int i = 0; i < ITERATIONS; i++) {
    find_gram(o, gram);
    find_polynomial(o, gram, z, i);
    apply(o, z);
  }
}

int tws_muon_orthogonalize(int64_t rows, int64_t columns, tws_muon_method method,
                           tws_muon_operation list[TWS_MUON_MOST_OPERATIONS]) {
  const int wide = rows <= columns;
  orthogonalization o = {.list = list,
                         .rows = rows,
                         .columns = columns,
                         .side = wide ? rows : columns,
                         .wide = wide,
                         .x = TWS_MUON_X,
                         .y = TWS_MUON_Y,
                         .scale = wide ? 1 : sqrt((double)rows / (double)columns)};
  if (method == TWS_MUON_GRAM && rows != columns) /* a square matrix is as large as its Gram matrix: nothing is saved */
    iterate_on_gram(&o);
  else
    iterate_on_matrix(&o);
  return o.count;
}

/* ---- the matrices of a ZeRO class ---- */

/* A matrix of the ZeRO class, and the part of it that this rank updates. */
typedef struct matrix {
  const tws_zero_class *of;
  uint32_t param;
  int number;            /* index among the matrices of the ZeRO class */
  uint64_t elements;     /* number of elements; stage 3: with the padding of the ranks' shards */
  uint64_t first, count; /* the part that this rank updates: its first element in the matrix, and number of elements */
  uint64_t at;           /* index of the part's first element in the flat order */
  uint32_t buffer[2];    /* plan buffers of the two matrices of an iteration, which are input and output in turn */
} matrix;

static uint32_t make_buffer(tws_lower *l, const char *name, uint64_t elements) {
  return tws_builder_buffer(&l->b, name, TWS_CATEGORY_WORKSPACE, TWS_F32, elements, TWS_LIFETIME_OPS);
}

static matrix find_matrix(const tws_lower *l, const tws_zero_class *c, uint32_t param, int number) {
  const tws_zero *z = &l->zero;
  matrix m = {
      .of = c, .param = param, .number = number, .elements = tws_zero_numel(l, param), .at = z->flat_offset[param]};
  if (z->stage == 3) { /* with the padding */
    m.count = (uint64_t)z->part[param];
    m.elements = m.count * (uint64_t)c->ranks;
    return m;
  }
  const tws_zero_part part = tws_zero_part_of(l, c, param);
  if (part.count == 0) return m;
  m.first = part.first;
  m.count = part.count;
  m.at = part.at;
  return m;
}

/* Emits the operation that updates the momentum of this rank's part of the matrix and writes to `change` the values
 * that are then orthogonalized: the momentum or, with Nesterov's, the gradient added to it. */
static void find_change(tws_lower *l, const matrix *m, tws_operand change) {
  const tws_plan *plan = l->b.plan;
  tws_config own;
  const uint64_t kept = m->of->kept + m->at - tws_zero_kept_first(&l->zero, m->of);
  tws_config_of_param_group(l->config, m->of->param_group, &own);
  tws_work work = tws_kernel_work(TWS_KERNEL_MUON_MOMENTUM, l->config->accumulation_dtype, 0);
  work.d[0] = (int64_t)change.count;
  work.f[0] = own.momentum;
  const tws_operand operands[4] = {tws_update(plan->optimizer_state[0], kept, change.count),
                                   tws_read(plan->gradients, l->zero.flat_gradients ? m->at : kept, change.count),
                                   tws_read(plan->metrics, 0, TWS_METRIC_COUNT), change};
  tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, 4);
  tws_builder_updates(&l->b, 1, kept, change.count);
}

/* Emits the orthogonalization of `rows` rows of a matrix from row `first` on, in place. */
static void orthogonalize_rows(tws_lower *l, const matrix *m, int64_t first, int64_t rows) {
  const int64_t columns = l->network->params[m->param].columns, side = rows < columns ? rows : columns;
  tws_muon_operation list[TWS_MUON_MOST_OPERATIONS];
  uint32_t squares[4];
  const int count = tws_muon_orthogonalize(rows, columns, (tws_muon_method)l->config->muon_method, list);
  for (int i = 0; i < 4; i++) squares[i] = TWS_NONE;
  for (int i = 0; i < count && l->b.failed == TWS_OK; i++) {
    tws_operand operands[3];
    for (int k = 0; k < list[i].operands; k++) {
      const int buffer = list[i].operand[k], square = buffer - TWS_MUON_SQUARE;
      const int last = k + 1 == list[i].operands;
      const uint32_t access = !last                                           ? TWS_READ
                              : list[i].work.code == TWS_KERNEL_NEWTON_SCHULZ ? TWS_READ_WRITE
                                                                              : TWS_WRITE;
      if (square >= 0 && squares[square] == TWS_NONE)
        squares[square] = make_buffer(l, "squares of a matrix", (uint64_t)(side * side));
      operands[k] = (tws_operand){.buffer = square >= 0 ? squares[square] : m->buffer[buffer],
                                  .access = (uint8_t)access,
                                  .offset = square >= 0 ? 0 : (uint64_t)(first * columns),
                                  .count = (uint64_t)(square >= 0 ? side * side : rows * columns)};
    }
    tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &list[i].work, operands, list[i].operands);
  }
}

/* Emits the orthogonalization of a parameter's matrices: each expert's, and each of the tensors that are joined in it.
 */
static void orthogonalize(tws_lower *l, const matrix *m) {
  const tws_param *param = &l->network->params[m->param];
  const int64_t blocks = param->experts > 0 ? param->experts : 1, rows = param->rows / blocks;
  const int64_t joined = param->fused[0] + param->fused[1] + param->fused[2];
  for (int64_t b = 0; b < blocks; b++) {
    int64_t first = b * rows;
    if (joined != rows || param->groups > 0) {
      orthogonalize_rows(l, m, first, rows);
      continue;
    }
    for (int i = 0; i < 3; i++) {
      if (param->fused[i] > 0) orthogonalize_rows(l, m, first, param->fused[i]);
      first += param->fused[i];
    }
  }
}

static void make_buffers(tws_lower *l, matrix *m) {
  m->buffer[0] = make_buffer(l, "change of a matrix", m->elements);
  m->buffer[1] = make_buffer(l, "next change of a matrix", tws_zero_numel(l, m->param));
}

static void collective(tws_lower *l, const matrix *m, tws_collective kind, int root, uint64_t elements,
                       const tws_operand *operands, int count) {
  tws_builder_collective(&l->b, TWS_STREAM_COMPUTE, kind, m->of->group, TWS_F32, elements * sizeof(float), 1,
                         (uint32_t)root, operands, count);
}

/* Lowers a matrix at stage 3: one rank, chosen round-robin, orthogonalizes it. */
static void lower_sharded(tws_lower *l, matrix *m, tws_muon_update update) {
  const int owner = m->number % m->of->ranks, owns = owner == m->of->index;
  const uint32_t shard = make_buffer(l, "change of a shard", m->count);
  const tws_operand part = tws_read(shard, 0, m->count);
  if (owns) make_buffers(l, m);
  if (l->b.failed != TWS_OK) return;
  find_change(l, m, tws_write(shard, 0, m->count));
  const tws_operand gathered[2] = {part, tws_write(owns ? m->buffer[0] : shard, 0, m->elements)};
  collective(l, m, TWS_COLLECTIVE_GATHER, owner, m->elements, gathered, owns ? 2 : 1);
  if (owns) orthogonalize(l, m);
  const tws_operand scattered[2] = {tws_read(owns ? m->buffer[0] : shard, 0, m->elements),
                                    tws_write(shard, 0, m->count)};
  collective(l, m, TWS_COLLECTIVE_SCATTER, owner, m->elements, scattered + !owns, owns ? 2 : 1);
  update(l, m->of, m->at, part);
}

/* Lowers a matrix at stages 0 to 2: if several ranks own parts of it, each owner broadcasts its part. A broadcast is in
 * place, so a rank first sets the elements of other owners to zero. */
static void lower_flat(tws_lower *l, matrix *m, tws_muon_update update) {
  const tws_zero *z = &l->zero;
  const uint64_t start = z->flat_offset[m->param] - m->of->stored, size = m->of->partition;
  const int parted = z->stage > 0 && size > 0 && start / size != (start + m->elements - 1) / size;
  if (!m->count && !parted) return;
  make_buffers(l, m);
  if (l->b.failed != TWS_OK) return;
  if (m->count) find_change(l, m, tws_write(m->buffer[0], m->first, m->count));
  for (uint64_t at = start; parted && at < start + m->elements;) {
    const uint64_t owner = at / size, end = (owner + 1) * size;
    const uint64_t count = (end < start + m->elements ? end : start + m->elements) - at;
    const tws_operand range = tws_update(m->buffer[0], at - start, count);
    if ((int)owner != m->of->index) tws_lower_clear(l, tws_write(m->buffer[0], at - start, count), TWS_F32);
    collective(l, m, TWS_COLLECTIVE_BROADCAST, (int)owner, count, &range, 1);
    at += count;
  }
  if (!m->count) return;
  orthogonalize(l, m);
  update(l, m->of, m->at, tws_read(m->buffer[0], m->first, m->count));
}

void tws_muon_lower(tws_lower *l, const tws_zero_class *c, tws_muon_update update) {
  for (uint32_t i = c->first; i < c->end && l->b.failed == TWS_OK; i++) {
    const uint32_t param = (uint32_t)l->zero.order[i];
    if (!tws_zero_numel(l, param)) continue;
    matrix m = find_matrix(l, c, param, (int)(i - c->first));
    if (l->zero.stage == 3)
      lower_sharded(l, &m, update);
    else
      lower_flat(l, &m, update);
  }
}
