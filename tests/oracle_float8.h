/* Products in 8 bits, and the casts of their operands, in float64 of the values that the codes stand for. */
#ifndef TWS_TESTS_ORACLE_FLOAT8_H
#define TWS_TESTS_ORACLE_FLOAT8_H

/* Returns the number of that type that is nearest to x, and of two equally near ones the one with an even code, by
 * comparing all numbers. */
static inline double oracle_nearest8(tws_dtype type, double x) {
  const int bias = type == TWS_E5M2 ? 15 : 7, fraction = type == TWS_E5M2 ? 2 : 3, codes = type == TWS_E5M2 ? 124 : 127;
  double best = 0, least = INFINITY;
  for (int code = 0; code < codes; ++code) {
    const int exponent = code >> fraction, rest = code & ((1 << fraction) - 1);
    const double number = ldexp((exponent ? 1 << fraction : 0) + rest, (exponent ? exponent : 1) - bias - fraction);
    const double away = fabs(fabs(x) - number);
    if (away < least || (away <= least && code % 2 == 0)) least = away, best = number;
  }
  return x < 0 ? -best : best;
}

static inline void oracle_amax(const tws_work *w, double **o) {
  o[1][0] = 0;
  for (int64_t i = 0; i < w->d[0]; ++i) o[1][0] = fmax(o[1][0], fabs(o[0][i]));
}

/* Casts to 8 bits. The multiplier is a float, and x times the multiplier is rounded to float. With TWS_LARGEST the last
 * operand becomes the larger of itself and |x|. */
static inline void oracle_quantize(const tws_work *w, double **o) {
  const int64_t rows = w->d[0], width = w->d[1];
  const tws_dtype type = (tws_dtype)w->dtype2;
  const float multiplier = o[1][0] > 0 ? (type == TWS_E5M2 ? 57344.0f : 448.0f) / (float)o[1][0] : 1.0f;
  double *y = w->flags & TWS_ROWS ? o[3] : NULL, *y_t = w->flags & TWS_COLUMNS ? o[y ? 4 : 3] : NULL;
  o[2][0] = 1 / (double)multiplier;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < width; ++i) {
      const double code = oracle_nearest8(type, (double)(float)(o[0][r * width + i] * (double)multiplier));
      if (y) y[r * width + i] = code;
      if (y_t) y_t[i * rows + r] = code;
    }
  if (!(w->flags & TWS_LARGEST)) return;
  double *largest = o[3 + (y != NULL) + (y_t != NULL)];
  for (int64_t i = 0; i < rows * width; ++i) *largest = fmax(*largest, fabs(o[0][i]));
}

/* Casts to e5m2, and adds the rows to the last operand, or with TWS_ACCUMULATE to what it has. */
static inline void oracle_quantize_sum(const tws_work *w, double **o, int count) {
  tws_work cast = *w;
  double *sums = o[count - 1];
  cast.dtype2 = TWS_E5M2;
  oracle_quantize(&cast, o);
  for (int64_t i = 0; i < w->d[1] && !(w->flags & TWS_ACCUMULATE); ++i) sums[i] = 0;
  for (int64_t i = 0; i < w->d[0] * w->d[1]; ++i) sums[i % w->d[1]] += o[0][i];
}

/* Moves each tensor's history on by one step, and finds its largest number. */
static inline void oracle_amax_history(const tws_work *w, double **o) {
  const int64_t tensors = w->d[0], steps = w->d[1];
  for (int64_t t = 0; t < tensors; ++t) {
    double *row = o[1] + t * steps, most = o[0][t];
    for (int64_t i = steps - 1; i > 0; --i) row[i] = row[i - 1], most = fmax(most, row[i]);
    row[0] = o[0][t];
    o[2][t] = fmin(ldexp(most, (int)w->f[0]), FLT_MAX);
    o[0][t] = 0;
  }
}

/* Returns an operand as a product in float64 takes it: times its scale, and not transposed. The caller frees it. */
static inline double *oracle_meaning(const double *codes, double scale, int64_t rows, int64_t columns, int transposed) {
  double *x = malloc((size_t)(rows * columns + 1) * sizeof *x);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      x[i * columns + j] = scale * codes[transposed ? j * rows + i : i * columns + j];
  return x;
}

static inline void oracle_linear(const tws_work *w, double **o);
static inline void oracle_linear_grad_input(const tws_work *w, double **o);
static inline void oracle_linear_grad_weight(const tws_work *w, double **o);

static inline void oracle_linear8(const tws_work *w, double **o, int count) {
  const int64_t m = w->d[0], n = w->d[1], k = w->d[2];
  const int forward = w->code == TWS_KERNEL_LINEAR, of_weight = w->code == TWS_KERNEL_LINEAR_GRAD_WEIGHT;
  tws_work plain = *w;
  double *operands[8];
  memcpy(operands, o, (size_t)count * sizeof *o);
  plain.flags &= ~(uint32_t)TWS_FP8;
  operands[0] = oracle_meaning(o[0], o[count - 2][0], m, forward ? k : n, of_weight);
  operands[1] = oracle_meaning(o[1], o[count - 1][0], of_weight ? m : n, k, !forward);
  if (forward)
    oracle_linear(&plain, operands);
  else if (of_weight)
    oracle_linear_grad_weight(&plain, operands);
  else
    oracle_linear_grad_input(&plain, operands);
  free(operands[0]);
  free(operands[1]);
}

static inline void oracle_run(const tws_work *w, const tws_arguments *arguments, double **o, int count);
static inline double stored(tws_dtype type, double x);

static inline int is_gated(const tws_work *w) {
  return w->code >= TWS_KERNEL_SWIGLU && w->code <= TWS_KERNEL_GEGLU_GRAD;
}

/* Returns 1 for gradients of activations, whose kernels cast the gradient of their input. */
static inline int is_cast_gradient(const tws_work *w) {
  return w->code == TWS_KERNEL_SWIGLU_GRAD || w->code == TWS_KERNEL_GEGLU_GRAD || w->code == TWS_KERNEL_RELU_GRAD ||
         w->code == TWS_KERNEL_SQUARED_RELU_GRAD || w->code == TWS_KERNEL_GELU_EXACT_GRAD;
}

/* Runs a kernel that casts its output: computes the output as without TWS_FP8, rounds it to the storage type, and casts
 * it as QUANTIZE does. A norm writes its row-major codes where its output is otherwise; other kernels have the operands
 * of QUANTIZE after their inputs. */
static inline void oracle_cast_output(const tws_work *w, const tws_arguments *arguments, double **o, int count) {
  const int norm = w->code == TWS_KERNEL_NORM, plane = norm || is_gated(w);
  const int gradient = is_cast_gradient(w);
  const int64_t width = !plane ? (int64_t)w->f[0] : gradient ? 2 * w->d[1] : w->d[1];
  const int64_t rows = plane ? w->d[0] : w->d[0] / width;
  const int biased = w->flags & TWS_BIAS && !(w->flags & TWS_RMS);
  const int at = !norm ? (gradient ? 2 : 1) : w->flags & TWS_PLAIN ? 1 : biased ? 3 : 2;
  double *y = malloc((size_t)(rows * width + 1) * sizeof *y), *operands[12];
  tws_work plain = *w;
  plain.flags &= ~(uint32_t)(TWS_FP8 | TWS_ROWS | TWS_COLUMNS);
  memcpy(operands, o, (size_t)(norm ? count - 3 : at) * sizeof *o);
  operands[at] = y;
  oracle_run(&plain, arguments, operands, norm ? count - 3 : at + 1);
  for (int64_t i = 0; i < rows * width; ++i) y[i] = stored((tws_dtype)w->dtype, y[i]);
  const tws_work cast = {.code = TWS_KERNEL_QUANTIZE,
                         .dtype = w->dtype,
                         .dtype2 = gradient ? TWS_E5M2 : TWS_E4M3,
                         .flags = norm ? TWS_ROWS | TWS_LARGEST : (w->flags & (TWS_ROWS | TWS_COLUMNS)) | TWS_LARGEST,
                         .d = {rows, width}};
  if (norm) oracle_quantize(&cast, (double *[]){y, o[count - 3], o[count - 2], o[at], o[count - 1]});
  memcpy(operands + 1, o + at, (size_t)(count - at) * sizeof *o);
  operands[0] = y;
  if (!norm) oracle_quantize(&cast, operands);
  free(y);
}

#endif
