/* Kernels that write 8-bit codes in place of their output (TWS_FP8), and the transposition of codes. Part of
 * test_kernels.c, included after kernel_identities.h. */
#ifndef TWS_TESTS_KERNEL_CASTS_H
#define TWS_TESTS_KERNEL_CASTS_H

/* A kernel with its operands; y: the index of the output that is cast; rows: number of rows of that output. */
typedef struct computing {
  tws_work work;
  tensor x[8];
  int count, y;
  int64_t rows;
} computing;

/* An activation of `rows` x `width` elements, or the gradient of one. */
static computing random_activation(tws_kernel kernel, tws_dtype dtype, int64_t rows, int64_t width, uint64_t s) {
  computing c = {.work = {.code = (uint8_t)kernel, .dtype = (uint8_t)dtype, .dtype2 = (uint8_t)dtype}, .rows = rows};
  c.work.d[0] = rows * width;
  if (is_cast_gradient(&c.work)) c.x[c.count++] = random_tensor(dtype, rows * width, s + 1);
  c.x[c.count++] = random_tensor(dtype, rows * width, s);
  c.x[c.y = c.count++] = make_tensor(dtype, rows * width);
  return c;
}

static computing random_gate(tws_kernel kernel, tws_dtype dtype, int64_t tokens, int64_t width, uint64_t s) {
  const int grad = kernel == TWS_KERNEL_SWIGLU_GRAD || kernel == TWS_KERNEL_GEGLU_GRAD;
  computing c = {.work = {.code = (uint8_t)kernel, .dtype = (uint8_t)dtype, .dtype2 = (uint8_t)dtype}, .y = 1 + grad};
  c.work.d[0] = c.rows = tokens, c.work.d[1] = width;
  if (grad) c.x[c.count++] = random_tensor(dtype, tokens * width, s + 1);
  c.x[c.count++] = random_tensor(dtype, tokens * 2 * width, s);
  c.x[c.count++] = make_tensor(dtype, tokens * width * (1 + grad));
  return c;
}

static computing random_norm(tws_dtype dtype, int64_t tokens, int64_t width, uint64_t s) {
  const uint32_t flags = (uint32_t)(draw(s, 3, 0, 1) * TWS_RMS | draw(s, 4, 0, 1) * TWS_RESIDUAL | TWS_BIAS);
  computing c = {.work = {.code = TWS_KERNEL_NORM, .dtype = (uint8_t)dtype, .dtype2 = (uint8_t)dtype, .flags = flags}};
  c.work.d[0] = c.rows = tokens, c.work.d[1] = width, c.work.f[0] = 1e-5;
  c.x[c.count++] = random_tensor(dtype, tokens * width, s);
  c.x[c.count++] = random_tensor(dtype, width, s + 1);
  if (!(flags & TWS_RMS)) c.x[c.count++] = random_tensor(dtype, width, s + 2);
  c.x[c.y = c.count++] = make_tensor(dtype, tokens * width);
  c.x[c.count++] = make_tensor(TWS_F32, tokens * (flags & TWS_RMS ? 1 : 2));
  if (flags & TWS_RESIDUAL) {
    c.x[c.count++] = random_tensor(dtype, tokens * width, s + 3);
    c.x[c.count++] = make_tensor(dtype, tokens * width);
  }
  return c;
}

/* Clears the sign of codes that are not numbers: a processor takes that sign from either factor of a product. */
static void clear_signs_of_nan(tensor *codes) {
  const int least = codes->dtype == TWS_E4M3 ? 0x7f : 0x7d;
  uint8_t *code = codes->data;
  for (int64_t i = 0; i < codes->count; ++i)
    if ((code[i] & 0x7f) >= least) code[i] &= 0x7f;
}

/* Runs a kernel and QUANTIZE of its output, then the kernel that casts: codes, scale and the raised largest magnitude
 * have the same bits, except the signs of NaNs of activations without a gate, and so have the other outputs.
 * Transposing the row-major codes gives the transposed ones. */
static void compare_cast(tws_backend *backend, int device, const computing *c) {
  const int norm = c->work.code == TWS_KERNEL_NORM;
  const int64_t count = c->x[c->y].count, rows = c->rows;
  const tws_dtype type = c->y == 2 && !norm ? TWS_E5M2 : TWS_E4M3;
  const uint32_t layouts = TWS_ROWS | TWS_COLUMNS;
  tws_work cast = {.code = TWS_KERNEL_QUANTIZE, .dtype = c->work.dtype, .dtype2 = (uint8_t)type}, casts = c->work;
  tws_work turn = {.code = TWS_KERNEL_TRANSPOSE_CODES, .dtype = TWS_BF16, .dtype2 = TWS_BF16};
  cast.d[0] = rows, cast.d[1] = count / rows;
  cast.flags = layouts | TWS_LARGEST;
  casts.flags |= TWS_FP8 | (norm ? 0 : layouts);
  tws_work_set_parameter(&casts, "width", (double)(count / rows));
  memcpy(turn.d, cast.d, sizeof turn.d);
  tensor amax = make_tensor(TWS_F32, 1), again[KERNEL_MAX_OPERANDS];
  tensor out[2][4]; /* of both ways: scale, row-major codes, transposed codes, raised largest magnitude */
  put(TWS_F32, amax.data, 0, 0.75);
  for (int i = 0; i < 2; ++i) {
    out[i][0] = make_tensor(TWS_F32, 1), out[i][3] = make_tensor(TWS_F32, 1);
    out[i][1] = make_tensor(type, count), out[i][2] = make_tensor(type, count);
    put(TWS_F32, out[i][3].data, 0, 0.25);
  }
  run_tensors(backend, &c->work, NULL, c->x, c->count);
  RUN(backend, &cast, NULL, c->x[c->y], amax, out[0][0], out[0][1], out[0][2], out[0][3]);
  int n = 0;
  for (; n < (norm ? c->count : c->y); ++n) again[n] = c->x[n];
  for (int k = c->y + 1; k < n; ++k)
    if (k != c->y + 2) again[k] = make_tensor(c->x[k].dtype, c->x[k].count); /* the statistics and the sum of a norm */
  if (norm) again[c->y] = out[1][1];
  again[n++] = amax, again[n++] = out[1][0];
  if (!norm) again[n++] = out[1][1], again[n++] = out[1][2];
  again[n++] = out[1][3];
  run_tensors(backend, &casts, NULL, again, n);
  if (norm) out[1][1].dtype = out[1][2].dtype = TWS_E4M3;
  if (norm) RUN(backend, &turn, NULL, out[1][1], out[1][2]);
  for (int i = 0; i < 2 && !norm && !is_gated(&c->work); ++i)
    clear_signs_of_nan(&out[i][1]), clear_signs_of_nan(&out[i][2]);
  for (int k = 0; k < 4; ++k) REQUIRE(same_bits(&out[0][k], &out[1][k]), "%s", label(&casts, 0, device, k));
  for (int k = c->y + 1; norm && k < c->count; ++k) {
    REQUIRE(same_bits(&c->x[k], &again[k]), "%s", label(&casts, 0, device, k));
    if (k != c->y + 2) free(again[k].data);
  }
  for (int i = 0; i < 8; ++i) free(out[i / 4][i % 4].data);
  free(amax.data);
}

/* Rows of all widths that kernels process differently, in every type; infinity among them is seen. */
START_TEST(casts_in_the_kernel_that_computes) {
  const uint64_t s = 9700 + (uint64_t)_i;
  static const tws_kernel activations[] = {
      TWS_KERNEL_GELU,      TWS_KERNEL_GELU_EXACT,   TWS_KERNEL_GELU_EXACT_GRAD,  TWS_KERNEL_RELU,
      TWS_KERNEL_RELU_GRAD, TWS_KERNEL_SQUARED_RELU, TWS_KERNEL_SQUARED_RELU_GRAD};
  static const int64_t widths[] = {1, 40, 256, 770, 64, 1600, 4100};
  const int64_t tokens = draw(s, 2, 1, 150), width = widths[_i % 7];
  const tws_dtype dtype = some_type(s);
  for (int device = 0; device < 4; ++device) {
    tws_backend *backend = use_backend(device, 1 + _i % most_threads);
    if (!backend) continue;
    for (int k = 0; k < 5 + (int)(sizeof activations / sizeof *activations); ++k) {
      computing c = k > 4   ? random_activation(activations[k - 5], dtype, tokens, width, s)
                    : k > 3 ? random_norm(dtype, tokens, width, s)
                            : random_gate((tws_kernel)(TWS_KERNEL_SWIGLU + k), dtype, tokens, width, s);
      if (_i % 5 == 0) put(dtype, c.x[0].data, c.x[0].count - 1, _i % 2 ? NAN : INFINITY);
      compare_cast(backend, device, &c);
      free_tensors(c.x, c.count);
    }
  }
}
END_TEST

/* Compares QUANTIZE_SUM with QUANTIZE to e5m2 and PART_BIAS_GRAD: codes, scale and the raised largest magnitude have
 * the same bits, and the sums too on the host. A device adds in another order: float32 sums differ by 1e-6 of the sum
 * of magnitudes at most, and 16-bit ones by one unit in the last place. */
static void compare_sums(tws_backend *backend, int device, const tensor *x, int64_t rows, int64_t width,
                         tws_dtype sums_type, uint32_t accumulate) {
  const int64_t count = rows * width;
  const uint32_t flags = TWS_ROWS | TWS_COLUMNS | TWS_LARGEST;
  const tws_work cast = {.code = TWS_KERNEL_QUANTIZE,
                         .dtype = (uint8_t)x->dtype,
                         .dtype2 = TWS_E5M2,
                         .flags = flags,
                         .d = {rows, width}},
                 sum = {.code = TWS_KERNEL_PART_BIAS_GRAD,
                        .dtype = (uint8_t)x->dtype,
                        .dtype2 = (uint8_t)sums_type,
                        .flags = accumulate,
                        .d = {rows, 1, width}},
                 both = {.code = TWS_KERNEL_QUANTIZE_SUM,
                         .dtype = (uint8_t)x->dtype,
                         .dtype2 = (uint8_t)sums_type,
                         .flags = flags | accumulate,
                         .d = {rows, width}};
  tensor amax = make_tensor(TWS_F32, 1);
  tensor out[2][5]; /* apart and together: scale, row-major codes, transposed codes, largest magnitude, sums */
  put(TWS_F32, amax.data, 0, 0.75);
  for (int i = 0; i < 2; ++i) {
    out[i][0] = make_tensor(TWS_F32, 1), out[i][1] = make_tensor(TWS_E5M2, count);
    out[i][2] = make_tensor(TWS_E5M2, count), out[i][3] = make_tensor(TWS_F32, 1);
    out[i][4] = random_tensor(sums_type, width, 1); /* the gradients of an earlier micro-batch */
    put(TWS_F32, out[i][3].data, 0, 0.25);
  }
  RUN(backend, &cast, NULL, *x, amax, out[0][0], out[0][1], out[0][2], out[0][3]);
  RUN(backend, &sum, NULL, *x, out[0][4]);
  RUN(backend, &both, NULL, *x, amax, out[1][0], out[1][1], out[1][2], out[1][3], out[1][4]);
  const int same = backend_kind == TWS_BACKEND_HOST ? 5 : 4;
  for (int k = 0; k < same; ++k) REQUIRE(same_bits(&out[0][k], &out[1][k]), "%s", label(&both, 0, device, k));
  for (int64_t i = 0; i < width; ++i) {
    const double a = at_index(&out[0][4], i), b = at_index(&out[1][4], i);
    double magnitudes = fabs(a) + fabs(b);
    for (int64_t r = 0; r < rows; ++r) magnitudes += fabs(at_index(x, r * width + i));
    const double unit = sums_type == TWS_F32 ? 0 : ldexp(fabs(a), sums_type == TWS_BF16 ? -7 : -10);
    REQUIRE(fabs(a - b) <= 1e-6 * magnitudes + unit, "%s: %g and %g", label(&both, 0, device, 6), a, b);
  }
  for (int i = 0; i < 10; ++i) free(out[i / 5][i % 5].data);
  free(amax.data);
}

/* Rows of all widths that kernels process differently and numbers of rows of less than a tile to several tiles of a
 * block, in every type, written or added to what is there. */
START_TEST(sums_in_the_cast) {
  const uint64_t s = 9900 + (uint64_t)_i;
  static const int64_t widths[] = {1, 40, 256, 770, 64, 1600, 4100};
  const int64_t width = widths[_i % 7], rows = draw(s, 2, 1, width > 300 ? 150 : 2500);
  const tws_dtype dtype = some_type(s), sums = draw(s, 3, 0, 1) ? TWS_F32 : dtype;
  for (int device = 0; device < 4; ++device) {
    tws_backend *backend = use_backend(device, 1 + _i % most_threads);
    if (!backend) continue;
    tensor x = random_tensor(dtype, rows * width, s);
    compare_sums(backend, device, &x, rows, width, sums, _i % 2 ? TWS_ACCUMULATE : 0);
    free(x.data);
  }
}
END_TEST

#endif
