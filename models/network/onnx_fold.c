#include "models/network/onnx_fold.h"

#include <math.h>
#include <string.h>

/* The operands of a node that is computed. */
typedef struct call {
  tws_onnx_folder *f;
  const tws_onnx_node *n;
  const tws_onnx_tensor *const *in;
  const tws_onnx_tensor **out;
} call;

static tws_code wrong(const call *c, tws_error *err) {
  return tws_fail(err, TWS_INVALID, "check the file with onnx.checker, or export it again with constant folding",
                  "%s: node %.200s: the operands of %.100s do not fit", c->f->path, c->n->name, c->n->op);
}

static int64_t count_of(int dims, const int64_t *shape) {
  int64_t count = 1;
  for (int i = 0; i < dims; i++) {
    if (shape[i] < 0 || (shape[i] > 0 && count > INT32_MAX / shape[i])) return -1;
    count *= shape[i];
  }
  return count;
}

static tws_onnx_tensor *new_tensor(tws_onnx_folder *f, int dims, const int64_t *shape, int is_float) {
  const int64_t count = dims <= TWS_ONNX_DIMS ? count_of(dims, shape) : -1;
  if (count < 0 || count > f->left) return NULL;
  f->left -= count;
  tws_onnx_tensor *t = tws_arena_alloc(f->arena, 1, sizeof *t);
  void *elements = tws_arena_alloc(f->arena, (size_t)count + 1, is_float ? sizeof *t->numbers : sizeof *t->integers);
  f->failed |= !t || !elements;
  if (!t || !elements) return NULL;
  *t = (tws_onnx_tensor){.name = "", .dims = dims, .count = count, .type = is_float ? TWS_ONNX_FLOAT : TWS_ONNX_INT64};
  for (int i = 0; i < dims; i++) t->shape[i] = shape[i];
  t->numbers = is_float ? elements : NULL;
  t->integers = is_float ? NULL : elements;
  return t;
}

int64_t *tws_onnx_new_integers(tws_onnx_folder *f, int dims, const int64_t *shape, tws_onnx_tensor **out) {
  *out = new_tensor(f, dims, shape, 0);
  return *out ? (int64_t *)(uintptr_t)(*out)->integers : NULL;
}

static tws_code too_large(const call *c, tws_error *err) {
  if (c->f->failed) return tws_fail(err, TWS_MEMORY, NULL, "%s: no memory for the file's constants", c->f->path);
  return tws_fail(err, TWS_UNSUPPORTED, "export the model with constant folding, or a smaller batch",
                  "%s: node %.200s: the constant that %.100s computes is too large", c->f->path, c->n->name, c->n->op);
}

/* The elements of a new tensor, which is written once. */
static float *numbers_of(const tws_onnx_tensor *t) {
  return (float *)(uintptr_t)t->numbers;
}
static int64_t *integers_of(const tws_onnx_tensor *t) {
  return (int64_t *)(uintptr_t)t->integers;
}

static void copy_element(const tws_onnx_tensor *to, int64_t i, const tws_onnx_tensor *from, int64_t k) {
  if (to->numbers)
    numbers_of(to)[i] = from->numbers[k];
  else
    integers_of(to)[i] = from->integers[k];
}

int tws_onnx_axis(int64_t axis, int dims) {
  if (axis < 0) axis += dims;
  return axis >= 0 && axis < dims ? (int)axis : -1;
}

double tws_onnx_element(const tws_onnx_tensor *t, int64_t i) {
  return t->numbers ? (double)t->numbers[i] : (double)t->integers[i];
}

static void strides_of(const tws_onnx_tensor *t, int64_t *stride) {
  int64_t step = 1;
  for (int i = t->dims - 1; i >= 0; i--) {
    stride[i] = step;
    step *= t->shape[i];
  }
}

/* Advances an index by one in row-major order, and *at, the position of its element, by strides. */
static void step_index(int dims, const int64_t *shape, const int64_t *stride, int64_t *index, int64_t *at) {
  for (int i = dims - 1; i >= 0; i--) {
    *at += stride[i];
    if (++index[i] < shape[i]) return;
    *at -= stride[i] * shape[i];
    index[i] = 0;
  }
}

/* Copies the elements of t at start + the sum of index[i] x stride[i], for all indices below `shape`. */
static tws_code view(const call *c, const tws_onnx_tensor *t, int dims, const int64_t *shape, const int64_t *stride,
                     int64_t start, const tws_onnx_tensor **out, tws_error *err) {
  tws_onnx_tensor *result = new_tensor(c->f, dims, shape, t->numbers != NULL);
  int64_t index[TWS_ONNX_DIMS] = {0}, at = start;
  if (!result) return too_large(c, err);
  for (int64_t i = 0; i < result->count; i++) {
    copy_element(result, i, t, at);
    step_index(dims, shape, stride, index, &at);
  }
  *out = result;
  return TWS_OK;
}

static tws_code alias(const call *c, const tws_onnx_tensor *t, int dims, const int64_t *shape, tws_error *err) {
  tws_onnx_tensor *same = tws_arena_alloc(c->f->arena, 1, sizeof *same);
  c->f->failed |= !same;
  if (!same) return too_large(c, err);
  *same = *t;
  same->dims = dims;
  for (int i = 0; i < dims; i++) same->shape[i] = shape[i];
  c->out[0] = same;
  return TWS_OK;
}

/* ---- shapes ---- */

/* Reads a list of axes: the second input, or an attribute in operators of older versions. */
static int64_t list_of(const call *c, int input, const char *attribute, const int64_t **list) {
  const tws_onnx_attribute *a = tws_onnx_attribute_of(c->n, attribute);
  *list = NULL;
  if (input < c->n->ins && c->in[input] && c->in[input]->integers) {
    *list = c->in[input]->integers;
    return c->in[input]->count;
  }
  if (!a) return -1;
  *list = a->ints;
  return a->int_count;
}

static int squeezed(const call *c, int dims, const int64_t *shape, int *new_dims, int64_t *new_shape) {
  const int adds = strcmp(c->n->op, "Unsqueeze") == 0;
  const int64_t *axes, count = list_of(c, 1, "axes", &axes), all = adds ? dims + count : dims;
  int marked[2 * TWS_ONNX_DIMS] = {0}, at = 0;
  if (count > TWS_ONNX_DIMS || all > TWS_ONNX_DIMS || (adds && count < 0)) return 0;
  for (int64_t i = 0; i < count; i++) {
    const int axis = tws_onnx_axis(axes[i], (int)all);
    if (axis < 0 || marked[axis]) return 0;
    marked[axis] = 1;
  }
  *new_dims = 0;
  for (int i = 0; i < all; i++) {
    if (adds) {
      new_shape[(*new_dims)++] = marked[i] ? 1 : shape[at++];
    } else if (count < 0 ? shape[i] != 1 : !marked[i]) {
      new_shape[(*new_dims)++] = shape[i];
    } else if (shape[i] != 1) {
      return 0;
    }
  }
  return 1;
}

static int reshaped(const call *c, int dims, const int64_t *shape, int *new_dims, int64_t *new_shape) {
  const int keeps_zero = tws_onnx_int(c->n, "allowzero", 0) != 0;
  const int64_t *wanted, count = list_of(c, 1, "shape", &wanted), elements = count_of(dims, shape);
  int64_t known = 1;
  int open = -1;
  if (count < 0 || count > TWS_ONNX_DIMS || elements < 0) return 0;
  for (int i = 0; i < count; i++) {
    new_shape[i] = wanted[i] == 0 && !keeps_zero ? (i < dims ? shape[i] : -2) : wanted[i];
    if (new_shape[i] == -1 && open < 0) {
      open = i;
    } else {
      if (new_shape[i] < 0 || (new_shape[i] > 0 && known > INT32_MAX / new_shape[i])) return 0;
      known *= new_shape[i];
    }
  }
  if (open >= 0 && (known == 0 || elements % known != 0)) return 0;
  if (open >= 0) new_shape[open] = elements / known;
  *new_dims = (int)count;
  return count_of((int)count, new_shape) == elements;
}

static int flattened(const call *c, int dims, const int64_t *shape, int *new_dims, int64_t *new_shape) {
  const int64_t given = tws_onnx_int(c->n, "axis", 1), axis = given < 0 ? given + dims : given;
  if (axis < 0 || axis > dims) return 0;
  *new_dims = 2;
  new_shape[0] = count_of((int)axis, shape);
  new_shape[1] = count_of(dims - (int)axis, shape + axis);
  return new_shape[0] >= 0 && new_shape[1] >= 0;
}

tws_code tws_onnx_reshaped(const tws_onnx_folder *f, const tws_onnx_node *n, int dims, const int64_t *shape,
                           const tws_onnx_tensor *second, int *new_dims, int64_t *new_shape, tws_error *err) {
  const tws_onnx_tensor *in[] = {NULL, second};
  tws_onnx_folder copy = *f;
  const call c = {.f = &copy, .n = n, .in = in};
  const int ok = strcmp(n->op, "Reshape") == 0   ? reshaped(&c, dims, shape, new_dims, new_shape)
                 : strcmp(n->op, "Flatten") == 0 ? flattened(&c, dims, shape, new_dims, new_shape)
                                                 : squeezed(&c, dims, shape, new_dims, new_shape);
  return ok ? TWS_OK : wrong(&c, err);
}

static tws_code fold_reshape(const call *c, tws_error *err) {
  const tws_onnx_tensor *x = c->in[0];
  int64_t shape[2 * TWS_ONNX_DIMS];
  int dims;
  TWS_TRY(tws_onnx_reshaped(c->f, c->n, x->dims, x->shape, c->n->ins > 1 ? c->in[1] : NULL, &dims, shape, err));
  return alias(c, x, dims, shape, err);
}

static tws_code fold_identity(const call *c, tws_error *err) {
  return alias(c, c->in[0], c->in[0]->dims, c->in[0]->shape, err);
}

static tws_code fold_transpose(const call *c, tws_error *err) {
  const tws_onnx_tensor *x = c->in[0];
  const tws_onnx_attribute *perm = tws_onnx_attribute_of(c->n, "perm");
  int64_t strides[TWS_ONNX_DIMS], shape[TWS_ONNX_DIMS], stride[TWS_ONNX_DIMS];
  int used[TWS_ONNX_DIMS] = {0};
  if (perm && perm->int_count != x->dims) return wrong(c, err);
  strides_of(x, strides);
  for (int i = 0; i < x->dims; i++) {
    const int from = perm ? tws_onnx_axis(perm->ints[i], x->dims) : x->dims - 1 - i;
    if (from < 0 || used[from]) return wrong(c, err);
    used[from] = 1;
    shape[i] = x->shape[from];
    stride[i] = strides[from];
  }
  return view(c, x, x->dims, shape, stride, 0, &c->out[0], err);
}

static int64_t clipped(int64_t value, int64_t size) {
  if (value < 0) value = value < -size ? 0 : value + size;
  return value > size ? size : value;
}

static tws_code fold_slice(const call *c, tws_error *err) {
  const tws_onnx_tensor *x = c->in[0];
  const int64_t *starts, *ends, *axes, *steps;
  const int64_t count = list_of(c, 1, "starts", &starts);
  int64_t shape[TWS_ONNX_DIMS], stride[TWS_ONNX_DIMS], start = 0;
  if (count < 0 || list_of(c, 2, "ends", &ends) != count) return wrong(c, err);
  const int64_t named = list_of(c, 3, "axes", &axes), stepped = list_of(c, 4, "", &steps);
  if ((named >= 0 && named != count) || (stepped >= 0 && stepped != count)) return wrong(c, err);
  strides_of(x, stride);
  memcpy(shape, x->shape, sizeof shape);
  for (int64_t i = 0; i < count; i++) {
    const int axis = tws_onnx_axis(named >= 0 ? axes[i] : i, x->dims);
    const int64_t step = stepped >= 0 ? steps[i] : 1;
    if (axis < 0 || step < 1 || step > INT32_MAX) return wrong(c, err);
    const int64_t size = x->shape[axis], first = clipped(starts[i], size), last = clipped(ends[i], size);
    shape[axis] = last > first ? (last - first + step - 1) / step : 0;
    start += first * stride[axis];
    stride[axis] *= step;
  }
  return view(c, x, x->dims, shape, stride, count_of(x->dims, shape) > 0 ? start : 0, &c->out[0], err);
}

static tws_code fold_split(const call *c, tws_error *err) {
  const tws_onnx_tensor *x = c->in[0];
  const int axis = tws_onnx_axis(tws_onnx_int(c->n, "axis", 0), x->dims);
  const int64_t *sizes, given = list_of(c, 1, "split", &sizes);
  int64_t shape[TWS_ONNX_DIMS], stride[TWS_ONNX_DIMS], at = 0;
  if (axis < 0 || (given >= 0 && given != c->n->outs)) return wrong(c, err);
  strides_of(x, stride);
  memcpy(shape, x->shape, sizeof shape);
  const int64_t even = (x->shape[axis] + c->n->outs - 1) / c->n->outs;
  for (int i = 0; i < c->n->outs; i++) {
    const int64_t left = x->shape[axis] - at, size = given >= 0 ? sizes[i] : left < even ? left : even;
    if (size < 0 || size > left) return wrong(c, err);
    shape[axis] = size;
    TWS_TRY(view(c, x, x->dims, shape, stride, size > 0 ? at * stride[axis] : 0, &c->out[i], err));
    at += size;
  }
  return TWS_OK;
}

static tws_code fold_gather(const call *c, tws_error *err) {
  const tws_onnx_tensor *x = c->in[0], *at = c->in[1];
  const int axis = tws_onnx_axis(tws_onnx_int(c->n, "axis", 0), x->dims);
  int64_t shape[2 * TWS_ONNX_DIMS], inner = 1, outer = 1;
  int dims = 0;
  if (axis < 0 || !at->integers) return wrong(c, err);
  for (int i = 0; i < axis; i++) outer *= shape[dims++] = x->shape[i];
  for (int i = 0; i < at->dims; i++) shape[dims++] = at->shape[i];
  for (int i = axis + 1; i < x->dims; i++) inner *= shape[dims++] = x->shape[i];
  for (int64_t i = 0; i < at->count; i++)
    if (at->integers[i] < -x->shape[axis] || at->integers[i] >= x->shape[axis]) return wrong(c, err);
  tws_onnx_tensor *result = new_tensor(c->f, dims, shape, x->numbers != NULL);
  if (!result) return too_large(c, err);
  int64_t to = 0;
  for (int64_t o = 0; o < outer; o++)
    for (int64_t i = 0; i < at->count; i++) {
      const int64_t row = at->integers[i] < 0 ? at->integers[i] + x->shape[axis] : at->integers[i];
      for (int64_t k = 0; k < inner; k++) copy_element(result, to++, x, (o * x->shape[axis] + row) * inner + k);
    }
  c->out[0] = result;
  return TWS_OK;
}

static tws_code fold_concat(const call *c, tws_error *err) {
  const tws_onnx_tensor *x = c->in[0];
  const int axis = tws_onnx_axis(tws_onnx_int(c->n, "axis", 0), x->dims);
  int64_t shape[TWS_ONNX_DIMS], outer = 1, inner = 1, at = 0;
  if (axis < 0) return wrong(c, err);
  memcpy(shape, x->shape, sizeof shape);
  for (int i = 1; i < c->n->ins; i++) {
    const tws_onnx_tensor *y = c->in[i];
    if (y->dims != x->dims || !y->numbers != !x->numbers) return wrong(c, err);
    for (int d = 0; d < x->dims; d++)
      if (d != axis && y->shape[d] != x->shape[d]) return wrong(c, err);
    shape[axis] += y->shape[axis];
  }
  tws_onnx_tensor *result = new_tensor(c->f, x->dims, shape, x->numbers != NULL);
  if (!result) return too_large(c, err);
  for (int d = 0; d < axis; d++) outer *= shape[d];
  for (int d = axis + 1; d < x->dims; d++) inner *= shape[d];
  for (int64_t o = 0; o < outer; o++)
    for (int i = 0; i < c->n->ins; i++) {
      const int64_t run = c->in[i]->shape[axis] * inner;
      for (int64_t k = 0; k < run; k++) copy_element(result, at++, c->in[i], o * run + k);
    }
  c->out[0] = result;
  return TWS_OK;
}

/* ---- new constants ---- */

static tws_code fold_constant(const call *c, tws_error *err) {
  const tws_onnx_attribute *a;
  const int64_t none = 0;
  if ((a = tws_onnx_attribute_of(c->n, "value")) && a->t) return alias(c, a->t, a->t->dims, a->t->shape, err);
  const int is_float =
      tws_onnx_attribute_of(c->n, "value_float") != NULL || tws_onnx_attribute_of(c->n, "value_floats") != NULL;
  const char *const names[] = {"value_int", "value_ints", "value_float", "value_floats"};
  for (int i = 0; i < 4; i++) {
    if (!(a = tws_onnx_attribute_of(c->n, names[i]))) continue;
    const int64_t count = i == 1 ? a->int_count : a->float_count;
    tws_onnx_tensor *t = new_tensor(c->f, i % 2, i % 2 ? &count : &none, is_float);
    if (!t) return too_large(c, err);
    for (int64_t k = 0; k < t->count; k++)
      if (is_float)
        numbers_of(t)[k] = i == 2 ? (float)a->f : a->floats[k];
      else
        integers_of(t)[k] = i == 0 ? a->i : a->ints[k];
    c->out[0] = t;
    return TWS_OK;
  }
  return wrong(c, err);
}

static tws_code fold_constant_of_shape(const call *c, tws_error *err) {
  const tws_onnx_attribute *value = tws_onnx_attribute_of(c->n, "value");
  const tws_onnx_tensor *given = value && value->t && value->t->count == 1 ? value->t : NULL, *shape = c->in[0];
  if (!shape->integers || shape->count > TWS_ONNX_DIMS) return wrong(c, err);
  tws_onnx_tensor *t = new_tensor(c->f, (int)shape->count, shape->integers, !given || given->numbers);
  if (!t) return too_large(c, err);
  for (int64_t i = 0; i < t->count && given; i++) copy_element(t, i, given, 0);
  c->out[0] = t;
  return TWS_OK;
}

static tws_code fold_range(const call *c, tws_error *err) {
  if (c->n->ins < 3 || c->in[0]->count != 1 || c->in[1]->count != 1 || c->in[2]->count != 1) return wrong(c, err);
  const double start = tws_onnx_element(c->in[0], 0), end = tws_onnx_element(c->in[1], 0),
               step = tws_onnx_element(c->in[2], 0), many = ceil((end - start) / step);
  if (!(fabs(many) < 1e9) || !(fabs(start) < 1e15) || !(fabs(step) < 1e9)) return wrong(c, err);
  const int64_t count = many > 0 ? (int64_t)many : 0;
  tws_onnx_tensor *t = new_tensor(c->f, 1, &count, c->in[0]->numbers != NULL);
  if (!t) return too_large(c, err);
  for (int64_t i = 0; i < count; i++)
    if (t->numbers)
      numbers_of(t)[i] = (float)(start + (double)i * step);
    else
      integers_of(t)[i] = (int64_t)(start + (double)i * step);
  c->out[0] = t;
  return TWS_OK;
}

static tws_code fold_trilu(const call *c, tws_error *err) {
  const tws_onnx_tensor *x = c->in[0], *shift = c->n->ins > 1 ? c->in[1] : NULL;
  const int64_t k = shift && shift->integers && shift->count == 1 ? shift->integers[0] : 0;
  if (x->dims < 2 || k < INT32_MIN || k > INT32_MAX) return wrong(c, err);
  tws_onnx_tensor *t = new_tensor(c->f, x->dims, x->shape, x->numbers != NULL);
  if (!t) return too_large(c, err);
  const int upper = tws_onnx_int(c->n, "upper", 1) != 0;
  const int64_t rows = x->shape[x->dims - 2], columns = x->shape[x->dims - 1];
  for (int64_t i = 0; i < t->count; i++) {
    const int64_t above = i % columns - i / columns % rows; /* number of the diagonal, positive above the main one */
    if (upper ? above >= k : above <= k) copy_element(t, i, x, i);
  }
  c->out[0] = t;
  return TWS_OK;
}

static int64_t to_integer(double value) {
  if (!(value > -9e18)) return value < 0 ? INT64_MIN : 0;
  return value < 9e18 ? (int64_t)value : INT64_MAX;
}

static tws_code fold_cast(const call *c, tws_error *err) {
  const tws_onnx_tensor *x = c->in[0];
  const int64_t to = tws_onnx_int(c->n, "to", 0);
  const int is_float =
      to == TWS_ONNX_FLOAT || to == TWS_ONNX_FLOAT16 || to == TWS_ONNX_DOUBLE || to == TWS_ONNX_BFLOAT16;
  if (!is_float && to != TWS_ONNX_INT32 && to != TWS_ONNX_INT64 && to != TWS_ONNX_BOOL)
    return tws_fail(err, TWS_UNSUPPORTED, "export the model in float32",
                    "%s: node %.200s casts to the type %lld of onnx.proto", c->f->path, c->n->name, (long long)to);
  tws_onnx_tensor *t = new_tensor(c->f, x->dims, x->shape, is_float);
  if (!t) return too_large(c, err);
  for (int64_t i = 0; i < t->count; i++) {
    const double value = tws_onnx_element(x, i);
    if (is_float)
      numbers_of(t)[i] = (float)value;
    else if (to == TWS_ONNX_BOOL)
      integers_of(t)[i] = value < 0 || value > 0;
    else
      integers_of(t)[i] = x->integers ? x->integers[i] : to_integer(value);
  }
  c->out[0] = t;
  return TWS_OK;
}

/* ---- arithmetic, with NumPy's broadcasting ---- */

/* Computes the shape that operands are broadcast to, and the strides of each operand in it. */
static int broadcast(const tws_onnx_tensor *const *in, int count, int *dims, int64_t *shape,
                     int64_t stride[][TWS_ONNX_DIMS]) {
  *dims = 0;
  for (int k = 0; k < count; k++) *dims = in[k]->dims > *dims ? in[k]->dims : *dims;
  for (int i = 0; i < *dims; i++) {
    shape[i] = 1;
    for (int k = 0; k < count; k++) {
      const int at = i - (*dims - in[k]->dims);
      const int64_t size = at >= 0 ? in[k]->shape[at] : 1;
      if (size != 1 && shape[i] != 1 && size != shape[i]) return 0;
      if (size != 1) shape[i] = size;
    }
  }
  for (int k = 0; k < count; k++) {
    int64_t own[TWS_ONNX_DIMS] = {0};
    strides_of(in[k], own);
    for (int i = 0; i < *dims; i++) {
      const int at = i - (*dims - in[k]->dims);
      stride[k][i] = at >= 0 && in[k]->shape[at] != 1 ? own[at] : 0;
    }
  }
  return 1;
}

static tws_code fold_expand(const call *c, tws_error *err) {
  const tws_onnx_tensor *wanted = c->n->ins > 1 ? c->in[1] : NULL;
  tws_onnx_tensor like = {.name = ""};
  const tws_onnx_tensor *both[] = {c->in[0], &like};
  int64_t shape[TWS_ONNX_DIMS], stride[2][TWS_ONNX_DIMS];
  int dims;
  if (!wanted || !wanted->integers || wanted->count > TWS_ONNX_DIMS) return wrong(c, err);
  like.dims = (int)wanted->count;
  for (int i = 0; i < like.dims; i++) like.shape[i] = wanted->integers[i];
  if (count_of(like.dims, like.shape) < 0 || !broadcast(both, 2, &dims, shape, stride)) return wrong(c, err);
  return view(c, c->in[0], dims, shape, stride[0], 0, &c->out[0], err);
}

/* Operators of two operands: what each computes of two numbers and of two integers; whether the result is a Boolean.
 * Sums, differences and products of integers are modulo 2^64; their quotient is rounded toward 0, and a quotient or a
 * remainder by 0 is 0. */
#define BINARY_OPERATORS(ROW)                                                                           \
  ROW(Add, 0, a + b, (int64_t)((uint64_t)a + (uint64_t)b))                                              \
  ROW(Sub, 0, a - b, (int64_t)((uint64_t)a - (uint64_t)b))                                              \
  ROW(Mul, 0, (a * b), (int64_t)((uint64_t)a * (uint64_t)b))                                            \
  ROW(Div, 0, a / b, b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b)                         \
  ROW(Pow, 0, pow(a, b), to_integer(pow((double)a, (double)b)))                                         \
  ROW(Mod, 0, fmod(a, b), b == 0 || b == -1 ? 0 : a % b != 0 && (a < 0) != (b < 0) ? a % b + b : a % b) \
  ROW(Min, 0, a < b ? a : b, a < b ? a : b)                                                             \
  ROW(Max, 0, a > b ? a : b, a > b ? a : b)                                                             \
  ROW(Equal, 1, !(a < b) && !(a > b), a == b)                                                           \
  ROW(Less, 1, a < b, a < b)                                                                            \
  ROW(LessOrEqual, 1, a <= b, a <= b)                                                                   \
  ROW(Greater, 1, a > b, a > b)                                                                         \
  ROW(GreaterOrEqual, 1, a >= b, a >= b)                                                                \
  ROW(And, 1, (a < 0 || a > 0) && (b < 0 || b > 0), a && b)                                             \
  ROW(Or, 1, (a < 0 || a > 0) || (b < 0 || b > 0), a || b)

#define DEFINE(name, is_boolean, number, integer)        \
  static double numbers_##name(double a, double b) {     \
    return number;                                       \
  }                                                      \
  static int64_t integers_##name(int64_t a, int64_t b) { \
    return integer;                                      \
  }
BINARY_OPERATORS(DEFINE)

typedef struct binary {
  const char *op;
  int is_boolean;
  double (*of_numbers)(double a, double b);
  int64_t (*of_integers)(int64_t a, int64_t b);
} binary;
#define ROW_OF(name, is_boolean, number, integer) {#name, is_boolean, numbers_##name, integers_##name},
static const binary binaries[] = {BINARY_OPERATORS(ROW_OF)};

static tws_code fold_binary(const call *c, tws_error *err) {
  int64_t shape[TWS_ONNX_DIMS], stride[2][TWS_ONNX_DIMS], index[2][TWS_ONNX_DIMS] = {{0}}, at[2] = {0};
  const binary *op = binaries;
  int dims;
  while (strcmp(op->op, c->n->op) != 0) op++; /* every operator of `folds` that names this function has a row */
  if (c->n->ins != 2 || !broadcast(c->in, 2, &dims, shape, stride)) return wrong(c, err);
  const int exact = c->in[0]->integers && c->in[1]->integers;
  tws_onnx_tensor *t = new_tensor(c->f, dims, shape, !exact && !op->is_boolean);
  if (!t) return too_large(c, err);
  for (int64_t i = 0; i < t->count; i++) {
    if (exact) {
      integers_of(t)[i] = op->of_integers(c->in[0]->integers[at[0]], c->in[1]->integers[at[1]]);
    } else {
      const double y = op->of_numbers(tws_onnx_element(c->in[0], at[0]), tws_onnx_element(c->in[1], at[1]));
      if (t->numbers)
        numbers_of(t)[i] = (float)y;
      else
        integers_of(t)[i] = y > 0;
    }
    for (int k = 0; k < 2; k++) step_index(dims, shape, stride[k], index[k], &at[k]);
  }
  c->out[0] = t;
  return TWS_OK;
}

static tws_code fold_where(const call *c, tws_error *err) {
  int64_t shape[TWS_ONNX_DIMS], stride[3][TWS_ONNX_DIMS], index[3][TWS_ONNX_DIMS] = {{0}}, at[3] = {0};
  int dims;
  if (c->n->ins != 3 || !c->in[0]->integers || !c->in[1]->numbers != !c->in[2]->numbers ||
      !broadcast(c->in, 3, &dims, shape, stride))
    return wrong(c, err);
  tws_onnx_tensor *t = new_tensor(c->f, dims, shape, c->in[1]->numbers != NULL);
  if (!t) return too_large(c, err);
  for (int64_t i = 0; i < t->count; i++) {
    const int from = c->in[0]->integers[at[0]] ? 1 : 2;
    copy_element(t, i, c->in[from], at[from]);
    for (int k = 0; k < 3; k++) step_index(dims, shape, stride[k], index[k], &at[k]);
  }
  c->out[0] = t;
  return TWS_OK;
}

static tws_code fold_unary(const call *c, tws_error *err) {
  const tws_onnx_tensor *x = c->in[0];
  const char *op = c->n->op;
  const int negates = strcmp(op, "Neg") == 0, inverts = strcmp(op, "Not") == 0, roots = strcmp(op, "Sqrt") == 0;
  tws_onnx_tensor *t = new_tensor(c->f, x->dims, x->shape, x->numbers != NULL);
  if (!t || (inverts && x->numbers) || (!negates && !inverts && x->integers))
    return t ? wrong(c, err) : too_large(c, err);
  for (int64_t i = 0; i < t->count; i++)
    if (x->integers)
      integers_of(t)[i] = inverts ? !x->integers[i] : (int64_t)(0 - (uint64_t)x->integers[i]);
    else
      numbers_of(t)[i] = negates ? -x->numbers[i] : roots ? sqrtf(x->numbers[i]) : 1 / x->numbers[i];
  c->out[0] = t;
  return TWS_OK;
}

#define FOLD_OF(name, is_boolean, number, integer) {#name, fold_binary},
static const struct {
  const char *op;
  tws_code (*fold)(const call *c, tws_error *err);
} folds[] = {{"Constant", fold_constant}, {"Identity", fold_identity}, {"Dropout", fold_identity},
             {"Cast", fold_cast},         {"Reshape", fold_reshape},   {"Flatten", fold_reshape},
             {"Squeeze", fold_reshape},   {"Unsqueeze", fold_reshape}, {"Transpose", fold_transpose},
             {"Slice", fold_slice},       {"Split", fold_split},       {"Gather", fold_gather},
             {"Concat", fold_concat},     {"Expand", fold_expand},     {"ConstantOfShape", fold_constant_of_shape},
             {"Range", fold_range},       {"Trilu", fold_trilu},       {"Where", fold_where},
             {"Neg", fold_unary},         {"Not", fold_unary},         {"Sqrt", fold_unary},
             {"Reciprocal", fold_unary},  BINARY_OPERATORS(FOLD_OF)};
enum { FOLDS = sizeof folds / sizeof *folds };

int tws_onnx_folds(const char *op) {
  for (int i = 0; i < FOLDS; i++)
    if (strcmp(folds[i].op, op) == 0) return 1;
  return 0;
}

tws_code tws_onnx_fold(tws_onnx_folder *f, const tws_onnx_node *n, const tws_onnx_tensor *const *in,
                       const tws_onnx_tensor **out, tws_error *err) {
  const call c = {.f = f, .n = n, .in = in, .out = out};
  for (int i = 0; i < FOLDS; i++) {
    if (strcmp(folds[i].op, n->op) != 0) continue;
    const int wants = strcmp(n->op, "Constant") == 0 ? 0 : strcmp(n->op, "Gather") == 0 ? 2 : 1;
    if (n->outs < 1 || n->ins < wants || (strcmp(n->op, "Split") != 0 && n->outs > 1 && strcmp(n->op, "Dropout") != 0))
      return wrong(&c, err);
    for (int k = 0; k < wants; k++)
      if (!in[k]) return wrong(&c, err);
    if (strcmp(n->op, "Concat") == 0 || folds[i].fold == fold_binary || folds[i].fold == fold_where ||
        folds[i].fold == fold_range)
      for (int k = 0; k < n->ins; k++)
        if (!in[k]) return wrong(&c, err);
    return folds[i].fold(&c, err);
  }
  return wrong(&c, err);
}
