/* Plans with delayed scaling of 8-bit products: kernels that cast what they compute. Part of test_plan.c, whose
 * functions build plans. */
#ifndef TWS_TESTS_PLAN_CASTS_H
#define TWS_TESTS_PLAN_CASTS_H

#include "models/operator.h"

typedef struct casting_kernels {
  int norms, gates, gate_gradients, activations, activation_gradients, transpositions;
  /* numbers of kernels QUANTIZE and QUANTIZE_SUM, of the latter, of other kernels that sum for a bias, and of products
   * that also compute GELU */
  int casts, summing_casts, sums, activated;
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
    count.activations += eight && (work->code == TWS_KERNEL_GELU || work->code == TWS_KERNEL_SQUARED_RELU);
    count.activation_gradients += eight && work->code == TWS_KERNEL_SQUARED_RELU_GRAD;
    count.activated += work->code == TWS_KERNEL_LINEAR && work->flags & TWS_GELU;
    count.transpositions += work->code == TWS_KERNEL_TRANSPOSE_CODES;
    count.casts += work->code == TWS_KERNEL_QUANTIZE || work->code == TWS_KERNEL_QUANTIZE_SUM;
    count.summing_casts += work->code == TWS_KERNEL_QUANTIZE_SUM;
    count.sums += work->code == TWS_KERNEL_PART_BIAS_GRAD ||
                  (work->code == TWS_KERNEL_LINEAR_GRAD_WEIGHT && work->flags & TWS_BIAS);
  }
  tws_plan_destroy(plan);
  return count;
}

static tws_config delayed_config(void) {
  tws_config c = small_config();
  c.dtype = TWS_BF16;
  c.sequence_length = 32;
  c.matmul_dtype = TWS_MATMUL_FP8;
  c.fp8_recipe = TWS_FP8_DELAYED;
  c.fp8_amax_history_len = 4;
  return c;
}

/* In each layer, two norms, SwiGLU and its gradient cast what they compute. What is left to QUANTIZE: attention's
 * output, four weights forward and backward, and the gradients of three products' outputs. Recomputed values are cast
 * again in the same way. With tiles of an MLP, and with current scaling, QUANTIZE casts everything. */
START_TEST(kernels_cast_what_they_compute) {
  enum { LAYERS = 2 };
  tws_network *network = network_of("tiny-llama");
  tws_config c = delayed_config();
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

/* GPT-2's GELU casts what it computes, and is then no part of the product before it; the gradient of its input stays
 * part of a product, and QUANTIZE casts it, as do those of the three other outputs of products. With recomputation of
 * GELU alone its kernel casts in both passes. With tiles, and with current scaling, GELU is part of the product. */
START_TEST(gelu_casts_what_it_computes) {
  enum { LAYERS = 2 };
  tws_network *network = network_of("tiny-gpt2");
  tws_config c = delayed_config();
  const casting_kernels kept = count_casting(network, &c);
  ck_assert_int_eq(kept.activations, LAYERS);
  ck_assert_int_eq(kept.activated, 0);
  ck_assert_int_eq(kept.casts, LAYERS * (1 + 2 * 4 + 4));
  for (int mode = TWS_RECOMPUTE_SELECTIVE; mode <= TWS_RECOMPUTE_FULL; mode++) {
    c.recompute = (tws_recompute)mode;
    const casting_kernels again = count_casting(network, &c);
    ck_assert_int_eq(again.activations, 2 * LAYERS);
    ck_assert_int_eq(again.activated, 0);
  }
  c.recompute = TWS_RECOMPUTE_NONE;
  c.mlp_tiles = 2;
  const casting_kernels tiled = count_casting(network, &c);
  ck_assert_int_eq(tiled.activations, 0);
  ck_assert_int_gt(tiled.activated, 0);
  c.mlp_tiles = 1;
  c.fp8_recipe = TWS_FP8_TENSORWISE;
  const casting_kernels current = count_casting(network, &c);
  ck_assert_int_eq(current.activations, 0);
  ck_assert_int_eq(current.activated, LAYERS);
  tws_network_destroy(network);
}
END_TEST

/* An activation after a product without a bias casts its output and the gradient of its input, which no bias sums. With
 * a bias the gradient has 16 bits. What is left to QUANTIZE as above; with a bias also that gradient. */
START_TEST(activations_without_a_bias_cast_gradients) {
  enum { LAYERS = 2 };
  for (int bias = 0; bias < 2; bias++) {
    char text[512];
    tws_error err = {0};
    tws_json *json = NULL;
    tws_network *network = NULL;
    const int length = snprintf(text, sizeof text,
                                "{\"model_type\":\"arcee\",\"vocab_size\":256,\"max_position_embeddings\":64,"
                                "\"num_hidden_layers\":%d,\"hidden_size\":64,\"intermediate_size\":96,"
                                "\"num_attention_heads\":4,\"mlp_bias\":%s}",
                                LAYERS, bias ? "true" : "false");
    ck_assert_msg(tws_json_parse(text, (size_t)length, "arcee", &json, &err) == TWS_OK, "%s", err.message);
    ck_assert_msg(tws_network_from_json(json, 1, &network, &err) == TWS_OK, "%s", err.message);
    tws_config c = delayed_config();
    const casting_kernels count = count_casting(network, &c);
    ck_assert_int_eq(count.activations, LAYERS);
    ck_assert_int_eq(count.activation_gradients, bias ? 0 : LAYERS);
    ck_assert_int_eq(count.casts, LAYERS * (1 + 2 * 4 + 3 + bias));
    ck_assert_int_eq(count.summing_casts, bias * 2 * LAYERS);
    ck_assert_int_eq(count.sums, 0);
    tws_network_destroy(network);
    tws_json_destroy(json);
  }
}
END_TEST

/* The cast of the gradient of a layer's output also sums it for the bias, with either recipe and in tiles; no other
 * kernel does. Llama's layers have no biases. */
START_TEST(casts_sum_for_biases) {
  enum { LAYERS = 2 };
  tws_network *network = network_of("tiny-gpt2"), *without = network_of("tiny-llama");
  tws_config c = delayed_config();
  for (int recipe = 0; recipe < 2; recipe++) {
    c.fp8_recipe = recipe ? TWS_FP8_TENSORWISE : TWS_FP8_DELAYED;
    for (int tiles = 1; tiles <= 2; tiles++) {
      c.mlp_tiles = tiles;
      const casting_kernels count = count_casting(network, &c);
      ck_assert_int_eq(count.summing_casts, LAYERS * (2 + 2 * tiles));
      ck_assert_int_eq(count.sums, 0);
      ck_assert_int_eq(count_casting(without, &c).summing_casts, 0);
    }
  }
  tws_network_destroy(network);
  tws_network_destroy(without);
}
END_TEST

/* Returns the bytes that a kernel and QUANTIZE of its output move, less those of the kernel that casts its output
 * (a norm's row-major codes are transposed by another kernel), for each of the output's elements. */
static double saved_an_element(tws_kernel kernel, int64_t tokens, int64_t width, int64_t columns) {
  const int norm = kernel == TWS_KERNEL_NORM, plane = tws_operator_of(kernel)->dims == 2;
  tws_work plain = {.code = (uint8_t)kernel, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .flags = norm ? TWS_RMS : 0},
           casts = plain, cast = {.code = TWS_KERNEL_QUANTIZE, .dtype = TWS_BF16, .dtype2 = TWS_E4M3},
           turn = {.code = TWS_KERNEL_TRANSPOSE_CODES, .dtype = TWS_BF16, .dtype2 = TWS_BF16};
  plain.d[0] = plane ? tokens : tokens * width, plain.d[1] = plane ? width : 0;
  memcpy(casts.d, plain.d, sizeof casts.d);
  cast.flags = TWS_ROWS | TWS_COLUMNS | TWS_LARGEST;
  casts.flags |= TWS_FP8 | (norm ? 0 : TWS_ROWS | TWS_COLUMNS);
  tws_work_set_parameter(&casts, "width", (double)width);
  cast.d[0] = turn.d[0] = tokens, cast.d[1] = turn.d[1] = columns;
  const double apart = tws_work_bytes(&plain) + tws_work_bytes(&cast);
  const double together = tws_work_bytes(&casts) + (norm ? tws_work_bytes(&turn) : 0);
  return (apart - together) / (double)(tokens * columns);
}

/* A norm and its casts write, read and write 1 byte of an element each in place of 2; activations write 2 bytes in
 * place of writing, reading and writing 2. Where the product before GELU would compute GELU too, GELU's own kernel
 * saves the writing of GELU's output alone, 2 bytes. */
START_TEST(casting_kernels_move_fewer_bytes) {
  const int64_t tokens = 4096, width = 8192;
  ck_assert_double_eq_tol(saved_an_element(TWS_KERNEL_NORM, tokens, width, width), 3, 1e-4);
  ck_assert_double_eq_tol(saved_an_element(TWS_KERNEL_SWIGLU, tokens, width, width), 4, 1e-4);
  ck_assert_double_eq_tol(saved_an_element(TWS_KERNEL_SWIGLU_GRAD, tokens, width, 2 * width), 4, 1e-4);
  ck_assert_double_eq_tol(saved_an_element(TWS_KERNEL_SQUARED_RELU_GRAD, tokens, width, width), 4, 1e-4);
  tws_work product = {.code = TWS_KERNEL_LINEAR, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .flags = TWS_FP8 | TWS_BIAS};
  product.d[0] = tokens, product.d[1] = width, product.d[2] = width / 4;
  tws_work both = product, gelu = {.code = TWS_KERNEL_GELU, .dtype = TWS_BF16, .dtype2 = TWS_BF16};
  both.flags |= TWS_GELU;
  gelu.d[0] = tokens * width;
  const double apart = tws_work_bytes(&product) + tws_work_bytes(&gelu) - tws_work_bytes(&both);
  const double saved = saved_an_element(TWS_KERNEL_GELU, tokens, width, width) - apart / (double)(tokens * width);
  ck_assert_double_eq_tol(saved, 2, 1e-4);
}
END_TEST

/* A cast that sums for a bias does not read the gradient's 2 bytes an element a second time. */
START_TEST(casts_that_sum_move_fewer_bytes) {
  const int64_t tokens = 4096, width = 8192;
  const uint32_t flags = TWS_ROWS | TWS_COLUMNS | TWS_LARGEST;
  const tws_work
      cast = {.code = TWS_KERNEL_QUANTIZE, .dtype = TWS_BF16, .dtype2 = TWS_E5M2, .flags = flags, .d = {tokens, width}},
      sum = {.code = TWS_KERNEL_PART_BIAS_GRAD, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .d = {tokens, 1, width}},
      both = {
          .code = TWS_KERNEL_QUANTIZE_SUM, .dtype = TWS_BF16, .dtype2 = TWS_BF16, .flags = flags, .d = {tokens, width}};
  const double saved = tws_work_bytes(&cast) + tws_work_bytes(&sum) - tws_work_bytes(&both);
  ck_assert_double_eq_tol(saved / (double)(tokens * width), 2, 1e-9);
}
END_TEST

#endif
