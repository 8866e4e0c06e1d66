/* Plans with delayed scaling of 8-bit products: kernels that cast what they compute. Part of test_plan.c, whose
 * functions build plans. */
#ifndef TWS_TESTS_PLAN_CASTS_H
#define TWS_TESTS_PLAN_CASTS_H

typedef struct casting_kernels {
  int norms, gates, gate_gradients, transpositions, casts; /* casts: the number of kernels QUANTIZE */
} casting_kernels;

static casting_kernels count_casting(const tws_network *network, const tws_config *config) {
  casting_kernels count = {0};
  tws_plan *plan = build(network, config, 1, 0);
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_work *work = &plan->works[plan->ops[i].work];
    if (plan->ops[i].kind != TWS_OP_COMPUTE) continue;
    const int eight = (work->flags & TWS_FP8) != 0;
    count.norms += eight && work->code == TWS_KERNEL_NORM;
    count.gates += eight && work->code == TWS_KERNEL_SWIGLU;
    count.gate_gradients += eight && work->code == TWS_KERNEL_SWIGLU_GRAD;
    count.transpositions += work->code == TWS_KERNEL_TRANSPOSE_CODES;
    count.casts += work->code == TWS_KERNEL_QUANTIZE;
  }
  tws_plan_destroy(plan);
  return count;
}

/* In each layer, two norms, SwiGLU and its gradient cast what they compute. What is left to QUANTIZE: attention's
 * output, four weights forward and backward, and the gradients of three products' outputs. Recomputed values are cast
 * again in the same way. With tiles of an MLP, and with current scaling, QUANTIZE casts everything. */
START_TEST(kernels_cast_what_they_compute) {
  enum { LAYERS = 2 };
  tws_network *network = network_of("tiny-llama");
  tws_config c = small_config();
  c.dtype = TWS_BF16;
  c.sequence_length = 32;
  c.matmul_dtype = TWS_MATMUL_FP8;
  c.fp8_recipe = TWS_FP8_DELAYED;
  c.fp8_amax_history_len = 4;
  const casting_kernels kept = count_casting(network, &c);
  ck_assert_int_eq(kept.norms, 2 * LAYERS);
  ck_assert_int_eq(kept.transpositions, 2 * LAYERS);
  ck_assert_int_eq(kept.gates, LAYERS);
  ck_assert_int_eq(kept.gate_gradients, LAYERS);
  ck_assert_int_eq(kept.casts, LAYERS * (1 + 2 * 4 + 3));
  c.recompute = TWS_RECOMPUTE_FULL;
  const casting_kernels again = count_casting(network, &c);
  ck_assert_int_eq(again.norms, 4 * LAYERS);
  ck_assert_int_eq(again.gates, 2 * LAYERS);
  ck_assert_int_eq(again.transpositions, 2 * LAYERS);
  c.recompute = TWS_RECOMPUTE_NONE;
  c.mlp_tiles = 2;
  const casting_kernels tiled = count_casting(network, &c);
  ck_assert_int_eq(tiled.norms + tiled.gates + tiled.gate_gradients + tiled.transpositions, 0);
  c.mlp_tiles = 1;
  c.fp8_recipe = TWS_FP8_TENSORWISE;
  const casting_kernels current = count_casting(network, &c);
  ck_assert_int_eq(current.norms + current.gates + current.gate_gradients + current.transpositions, 0);
  tws_network_destroy(network);
}
END_TEST

/* Returns the bytes that a kernel and QUANTIZE of its output move, less those of the kernel that casts its output
 * (a norm's row-major codes are transposed by another kernel), for each of the output's elements. */
static double saved_an_element(tws_kernel kernel, int64_t tokens, int64_t width, int64_t columns) {
  const int norm = kernel == TWS_KERNEL_NORM;
  tws_work plain = {.code = (uint8_t)kernel, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .flags = norm ? TWS_RMS : 0},
           casts = plain, cast = {.code = TWS_KERNEL_QUANTIZE, .dtype = TWS_BF16, .dtype2 = TWS_E4M3},
           turn = {.code = TWS_KERNEL_TRANSPOSE_CODES, .dtype = TWS_BF16, .dtype2 = TWS_BF16};
  plain.d[0] = tokens, plain.d[1] = width;
  memcpy(casts.d, plain.d, sizeof casts.d);
  cast.flags = TWS_ROWS | TWS_COLUMNS | TWS_LARGEST;
  casts.flags |= TWS_FP8 | (norm ? 0 : TWS_ROWS | TWS_COLUMNS);
  cast.d[0] = turn.d[0] = tokens, cast.d[1] = turn.d[1] = columns;
  const double apart = tws_work_bytes(&plain) + tws_work_bytes(&cast);
  const double together = tws_work_bytes(&casts) + (norm ? tws_work_bytes(&turn) : 0);
  return (apart - together) / (double)(tokens * columns);
}

/* A norm and its casts write, read and write 1 byte of an element each in place of 2; gated activations write 2 bytes
 * in place of writing, reading and writing 2. */
START_TEST(casting_kernels_move_fewer_bytes) {
  const int64_t tokens = 4096, width = 8192;
  ck_assert_double_eq_tol(saved_an_element(TWS_KERNEL_NORM, tokens, width, width), 3, 1e-4);
  ck_assert_double_eq_tol(saved_an_element(TWS_KERNEL_SWIGLU, tokens, width, width), 4, 1e-4);
  ck_assert_double_eq_tol(saved_an_element(TWS_KERNEL_SWIGLU_GRAD, tokens, width, 2 * width), 4, 1e-4);
}
END_TEST

#endif
