/* The largest |y|, which NORM and SWIGLU find while they write y (TWS_LARGEST). Part of test_kernels.c, included after
 * kernel_identities.h. */
#ifndef TWS_TESTS_KERNEL_LARGEST_H
#define TWS_TESTS_KERNEL_LARGEST_H

/* Runs a kernel and AMAX of its output y, then the kernel with TWS_LARGEST: all outputs have the same bits, and the
 * number that it finds is AMAX's. x: operands without the number, in the kernel's order; outputs: a bit for each one
 * that is an output. */
static void compare_largest(tws_backend *backend, int device, const tws_work *w, tensor *x, int count, int y,
                            unsigned outputs) {
  tensor again[KERNEL_MAX_OPERANDS], want = make_tensor(TWS_F32, 1), found = make_tensor(TWS_F32, 1);
  const tws_work amax = {.code = TWS_KERNEL_AMAX, .dtype = w->dtype, .dtype2 = w->dtype, .d = {x[y].count}};
  tws_work finds = *w;
  finds.flags |= TWS_LARGEST;
  for (int k = 0; k < count; ++k) again[k] = outputs >> k & 1 ? make_tensor(x[k].dtype, x[k].count) : x[k];
  again[count] = found;
  run_tensors(backend, w, NULL, x, count);
  RUN(backend, &amax, NULL, x[y], want);
  run_tensors(backend, &finds, NULL, again, count + 1);
  for (int k = 0; k < count; ++k) REQUIRE(same_bits(&x[k], &again[k]), "%s", label(&finds, 0, device, k));
  REQUIRE(same_bits(&want, &found), "%s: %g, not %g", label(&finds, 0, device, count), at_index(&found, 0),
          at_index(&want, 0));
  for (int k = 0; k < count; ++k)
    if (outputs >> k & 1) free(again[k].data);
  free(want.data), free(found.data);
}

/* Rows of all widths that kernels process differently, in every type, with all operands of a norm; a NaN is the
 * largest. */
START_TEST(largest_beside_the_output) {
  const uint64_t s = 9500 + (uint64_t)_i;
  static const int64_t widths[] = {1, 40, 256, 770, 1024, 1600, 4100};
  const int64_t tokens = draw(s, 2, 1, 30), width = widths[_i % 7];
  const tws_dtype dtype = some_type(s);
  const uint32_t flags = (uint32_t)(draw(s, 3, 0, 1) * TWS_RMS | draw(s, 4, 0, 1) * TWS_RESIDUAL | TWS_BIAS);
  tws_work norm = {.code = TWS_KERNEL_NORM, .dtype = (uint8_t)dtype, .dtype2 = (uint8_t)dtype, .flags = flags};
  tws_work gate = {.code = TWS_KERNEL_SWIGLU, .dtype = (uint8_t)dtype, .dtype2 = (uint8_t)dtype};
  norm.d[0] = gate.d[0] = tokens, norm.d[1] = gate.d[1] = width;
  norm.f[0] = 1e-5;
  for (int device = 0; device < 4; ++device) {
    tws_backend *backend = use_backend(device, 1 + _i % most_threads);
    if (!backend) continue;
    tensor x[8];
    int n = 0;
    unsigned outputs;
    x[n++] = random_tensor(dtype, tokens * width, s);
    if (_i % 5 == 0) put(dtype, x[0].data, tokens * width - 1, NAN);
    x[n++] = random_tensor(dtype, width, s + 1);
    if (!(flags & TWS_RMS)) x[n++] = random_tensor(dtype, width, s + 2);
    const int y = n;
    x[n++] = make_tensor(dtype, tokens * width);
    x[n++] = make_tensor(TWS_F32, tokens * (flags & TWS_RMS ? 1 : 2));
    outputs = 3U << y;
    if (flags & TWS_RESIDUAL) {
      x[n++] = random_tensor(dtype, tokens * width, s + 3);
      x[n++] = make_tensor(dtype, tokens * width);
      outputs |= 8U << y;
    }
    compare_largest(backend, device, &norm, x, n, y, outputs);
    free_tensors(x, n);
    x[0] = random_tensor(dtype, tokens * 2 * width, s + 4), x[1] = make_tensor(dtype, tokens * width);
    compare_largest(backend, device, &gate, x, 2, 1, 2);
    free_tensors(x, 2);
  }
}
END_TEST

#endif
