/* Random shapes of every kernel, included by kernel_cases.h after its table. */
#ifndef TWS_TESTS_KERNEL_RANDOM_CASES_H
#define TWS_TESTS_KERNEL_RANDOM_CASES_H

static int64_t draw(uint64_t seed, uint64_t index, int64_t low, int64_t high) {
  return low + (int64_t)(tws_random_uniform(7, seed, index) * (double)(high - low + 1));
}

static const int code_types[] = {TWS_CODES_NF4, TWS_CODES_INT8, TWS_CODES_INT4, TWS_CODES_INT4_ASYMMETRIC,
                                 TWS_CODES_INT8_ASYMMETRIC};

/* Returns random case `number`. Its shapes follow from the kernel's name and the number of the shape, so that a kernel
 * that is added to the list leaves the others' shapes as they are. */
static test_case random_case(int number) {
  test_case c = {.kernel = (tws_kernel)(number % TWS_KERNEL_COUNT)};
  const uint64_t s = sample_hash(1000 + (uint64_t)(number / TWS_KERNEL_COUNT), tws_kernel_name(c.kernel));
  c.dtype = (const tws_dtype[]){TWS_BF16, TWS_F16, TWS_F32, TWS_F32}[draw(s, 0, 0, 3)];
  c.dtype2 = draw(s, 1, 0, 1) ? c.dtype : TWS_F32;
  c.flags = (uint32_t)(draw(s, 2, 0, 1) * TWS_ACCUMULATE + draw(s, 3, 0, 1) * TWS_ACCUMULATE_PARAM +
                       draw(s, 4, 0, 1) * TWS_BIAS + draw(s, 5, 0, 1) * TWS_RMS + draw(s, 6, 0, 1) * TWS_L2 +
                       draw(s, 7, 0, 1) * TWS_SCALED + draw(s, 8, 0, 1) * TWS_GELU + draw(s, 9, 0, 1) * TWS_RESIDUAL);
  if (c.kernel != TWS_KERNEL_LINEAR && c.kernel != TWS_KERNEL_LINEAR_GRAD_INPUT) c.flags &= ~(uint32_t)TWS_GELU;
  if (c.kernel != TWS_KERNEL_NORM) c.flags &= ~(uint32_t)TWS_RESIDUAL;
  if (c.kernel == TWS_KERNEL_LINEAR || c.kernel == TWS_KERNEL_LINEAR_GRAD_WEIGHT)
    c.flags &= ~(uint32_t)TWS_NARROW; /* only predictions use narrow products */
  for (int i = 0; i < 5; ++i) c.d[i] = draw(s, 10 + (uint64_t)i, 1, i == 0 ? 70 : 150);
  c.f[0] = 1e-5;
  switch (c.kernel) {
    case TWS_KERNEL_EMBEDDING:
      if (c.d[4] > c.d[3]) c.d[3] = draw(s, 20, 0, 1) ? 0 : c.d[4];
      c.f[0] = (double)(draw(s, 21, 0, 1) * draw(s, 22, 1, 200));
      break;
    case TWS_KERNEL_ADD_ROWS:
      c.d[3] = 1 + c.d[3] % 4, c.d[2] += c.d[0] * c.d[3]; /* more rows than places */
      break;
    case TWS_KERNEL_EMBEDDING_ROWS:
    case TWS_KERNEL_EMBEDDING_GRAD:
      c.f[0] = (double)(draw(s, 21, 0, 1) * draw(s, 22, 1, 200));
      break;
    case TWS_KERNEL_NORM_GRAD: /* with few features the gradient is a small difference of large numbers, and with one it
                                * is 0 */
      if (c.d[1] < 8) c.d[1] += 8;
      c.flags |= (uint32_t)draw(s, 20, 0, 1) * TWS_SUMS;
      break;
    case TWS_KERNEL_HEADS_NORM:
    case TWS_KERNEL_HEADS_NORM_GRAD:
      c.d[1] = 1 + c.d[1] % 5, c.d[2] = 1 + c.d[2] % 3, c.d[3] += 8, c.f[1] = (double)draw(s, 20, 0, 1);
      c.flags |= (uint32_t)draw(s, 21, 0, 1) * TWS_TOGETHER;
      break;
    case TWS_KERNEL_POSITION_GRAD:
      if (c.d[3] > c.d[2]) c.d[3] = c.d[2];
      break;
    case TWS_KERNEL_QUANTIZE:
      c.dtype2 = draw(s, 20, 0, 1) ? TWS_E4M3 : TWS_E5M2;
      c.flags = (uint32_t[]){TWS_ROWS, TWS_COLUMNS, TWS_ROWS | TWS_COLUMNS}[draw(s, 21, 0, 2)];
      c.flags |= (uint32_t)draw(s, 22, 0, 1) * TWS_LARGEST;
      break;
    case TWS_KERNEL_QUANTIZE_SUM:
      c.flags &= TWS_ACCUMULATE;
      c.flags |= (uint32_t[]){TWS_ROWS, TWS_COLUMNS, TWS_ROWS | TWS_COLUMNS}[draw(s, 21, 0, 2)];
      c.flags |= (uint32_t)draw(s, 22, 0, 1) * TWS_LARGEST;
      break;
    case TWS_KERNEL_SWIGLU:
    case TWS_KERNEL_SWIGLU_GRAD:
    case TWS_KERNEL_GEGLU:
    case TWS_KERNEL_GEGLU_GRAD:
      c.flags = (uint32_t[]){0, TWS_ROWS, TWS_COLUMNS, TWS_ROWS | TWS_COLUMNS}[draw(s, 20, 0, 3)];
      if (c.flags) c.flags |= TWS_FP8;
      break;
    case TWS_KERNEL_GELU:
    case TWS_KERNEL_GELU_EXACT:
    case TWS_KERNEL_GELU_EXACT_GRAD:
    case TWS_KERNEL_RELU:
    case TWS_KERNEL_RELU_GRAD:
    case TWS_KERNEL_SQUARED_RELU:
    case TWS_KERNEL_SQUARED_RELU_GRAD:
      c.flags = (uint32_t[]){0, TWS_ROWS, TWS_COLUMNS, TWS_ROWS | TWS_COLUMNS}[draw(s, 20, 0, 3)];
      c.f[0] = 0;
      if (c.flags) c.flags |= TWS_FP8, c.f[0] = (double)c.d[1], c.d[0] *= c.d[1];
      break;
    case TWS_KERNEL_NORM:
      c.flags |= (uint32_t)draw(s, 20, 0, 1) * TWS_FP8;
      break;
    case TWS_KERNEL_AMAX_HISTORY:
      c.f[0] = (double)draw(s, 20, 0, 4), c.flags = 0;
      break;
    case TWS_KERNEL_LINEAR_GRAD_INPUT:
      if (c.flags & TWS_GELU) c.flags &= ~(uint32_t)TWS_ACCUMULATE;
      c.flags |= (uint32_t)draw(s, 20, 0, 1) * TWS_SUMS;
      break;
    case TWS_KERNEL_ROPE:
    case TWS_KERNEL_ROPE_GRAD:
      c.d[1] = 1 + c.d[1] % 5, c.d[2] = 1 + c.d[2] % 3, c.d[3] *= 2;
      c.d[5] = draw(s, 20, 0, 1) * 2 * draw(s, 21, 1, c.d[3] / 2);
      c.flags |= (uint32_t)draw(s, 22, 0, 1) * TWS_INTERLEAVED + (uint32_t)draw(s, 23, 0, 1) * TWS_DOCUMENTS;
      c.f[0] = 10000;
      break;
    case TWS_KERNEL_ATTENTION:
    case TWS_KERNEL_ATTENTION_GRAD:
      c.d[0] = 1 + c.d[0] % 3, c.d[3] = 1 + c.d[3] % 3, c.d[2] = c.d[3] * (1 + c.d[2] % 3);
      c.f[0] = 0, c.f[1] = 0.25, c.f[6] = 1, c.f[8] = (double)draw(s, 24, 0, 3), c.f[9] = (double)c.d[2] + c.f[8];
      c.f[2] = draw(s, 25, 0, 3) ? 0 : 2;
      if (!draw(s, 20, 0, 1)) break;
      for (int bit = 11; 1 << bit <= TWS_Q_K_V; ++bit) c.flags |= (uint32_t)draw(s, 20 + (uint64_t)bit, 0, 1) << bit;
      if (c.flags & (TWS_Q_KV | TWS_Q_K_V)) c.d[5] = draw(s, 21, 0, 150);
      if (c.d[5] == 0) c.flags |= (uint32_t)draw(s, 43, 0, 1) * TWS_DOCUMENTS;
      c.d[6] = draw(s, 22, 0, 1) * draw(s, 23, 2, 80); /* with a window of 1 gradients are nothing but rounding
                                                        * errors */
      if (!draw(s, 40, 0, 1)) break;
      c.flags |= TWS_RELATIVE, c.d[7] = 2 * draw(s, 41, 2, 20), c.f[3] = (double)(c.d[7] + draw(s, 42, 1, 100));
      break;
    case TWS_KERNEL_CLAMP:
    case TWS_KERNEL_CLAMP_GRAD:
      c.f[0] = -2 * tws_random_uniform(7, s, 20), c.f[1] = 2 * tws_random_uniform(7, s, 21);
      break;
    case TWS_KERNEL_LEAKY_RELU:
    case TWS_KERNEL_LEAKY_RELU_GRAD:
    case TWS_KERNEL_SOFTCAP:
    case TWS_KERNEL_SOFTCAP_GRAD:
    case TWS_KERNEL_MULTIPLY:
      c.f[0] = 0.5 + 2 * tws_random_uniform(7, s, 20);
      break;
    case TWS_KERNEL_DROPOUT:
      c.f[0] = 0.9 * tws_random_uniform(7, s, 20), c.f[2] = (double)draw(s, 21, 0, 1 << 30),
      c.f[3] = (double)draw(s, 22, 0, 99);
      c.d[0] *= draw(s, 23, 1, 30);
      break;
    case TWS_KERNEL_BATCH_NORM:
      c.f[1] = 0.1, c.f[2] = 0.5, c.flags |= (uint32_t)draw(s, 20, 0, 1) * TWS_RUNNING;
      break;
    case TWS_KERNEL_CONVOLUTION:
    case TWS_KERNEL_CONVOLUTION_GRAD_INPUT:
    case TWS_KERNEL_CONVOLUTION_GRAD_WEIGHT:
      c.d[0] = draw(s, 20, 1, 3), c.d[1] = draw(s, 21, 4, 14), c.d[2] = draw(s, 22, 4, 14), c.d[5] = draw(s, 23, 1, 4);
      c.d[6] = draw(s, 24, 1, 3), c.d[7] = (int64_t[]){0, 1, 2, 6}[draw(s, 25, 0, 3)];
      c.f[0] = (double)draw(s, 26, 0, c.d[5] / 2);
      c.d[3] = (c.d[7] > 0 ? c.d[7] : 1) * draw(s, 27, 1, 20), c.d[4] = (c.d[7] > 0 ? c.d[7] : 1) * draw(s, 28, 1, 20);
      break;
    case TWS_KERNEL_MAX_POOL:
    case TWS_KERNEL_MAX_POOL_GRAD:
    case TWS_KERNEL_AVERAGE_POOL:
    case TWS_KERNEL_AVERAGE_POOL_GRAD:
      c.d[0] = draw(s, 20, 1, 3), c.d[1] = draw(s, 21, 4, 14), c.d[2] = draw(s, 22, 4, 14), c.d[4] = draw(s, 23, 0, 4);
      c.d[5] = draw(s, 24, 1, 3), c.f[0] = (double)draw(s, 26, 0, c.d[4] / 2);
      break;
    case TWS_KERNEL_BINARY_CROSS_ENTROPY:
    case TWS_KERNEL_MEAN_SQUARED_ERROR:
    case TWS_KERNEL_CROSS_ENTROPY:
      if (c.d[1] < 2) c.d[1] = 2; /* with a vocabulary of 1 gradients are nothing but rounding errors */
      c.d[2] += c.d[1], c.f[0] = c.f[1] = 0.25;
      break;
    case TWS_KERNEL_VOCABULARY_STATS:
      c.d[2] += c.d[1], c.f[0] = (double)draw(s, 21, 0, 200);
      break;
    case TWS_KERNEL_VOCABULARY_LOSS:
      c.d[2] += c.d[1], c.d[3] = 1 + c.d[3] % 5, c.f[0] = c.f[1] = 0.25, c.f[2] = (double)draw(s, 21, 0, 200);
      break;
    case TWS_KERNEL_COUNT_IGNORED:
    case TWS_KERNEL_SQUARED_NORM:
      c.f[0] = 0.5;
      break;
    case TWS_KERNEL_COLUMN_NORMS:
      c.f[0] = (double)draw(s, 20, 0, c.d[1] - 1), c.d[0] *= draw(s, 21, 1, 30);
      break;
    case TWS_KERNEL_TOP_COLUMNS:
      c.d[0] = c.d[1] * draw(s, 20, 1, 20);
      break;
    case TWS_KERNEL_GATHER_COLUMNS:
    case TWS_KERNEL_SCATTER_COLUMNS:
      c.d[2] = draw(s, 20, 1, c.d[1]), c.f[0] = (double)draw(s, 21, 0, c.d[1] - 1), c.d[0] *= draw(s, 22, 1, 30);
      c.f[1] = draw(s, 23, 0, 1) ? (double)draw(s, 24, 0, c.d[2] - 1) : 0;
      c.d[3] = ((int64_t)c.f[0] + c.d[0] + c.d[1] - 1) / c.d[1];
      break;
    case TWS_KERNEL_TRANSPOSE:
      c.d[2] = draw(s, 20, 0, 1) ? 1 + c.d[2] % 80 : 1 + c.d[2] % 4;
      break;
    case TWS_KERNEL_HEADS_SPLIT:
    case TWS_KERNEL_HEADS_JOIN:
      c.d[1] = 1 + c.d[1] % 12, c.d[2] = 1 + c.d[2] % 8, c.d[3] = 1 + c.d[3] % 70;
      break;
    case TWS_KERNEL_ATTENTION_MERGE:
      c.d[0] = 1 + c.d[0] % 4, c.d[2] = 1 + c.d[2] % 8, c.d[3] = 1 + c.d[3] % 70, c.d[4] = draw(s, 20, 1, c.d[1]);
      break;
    case TWS_KERNEL_HEADS_PACK:
    case TWS_KERNEL_HEADS_UNPACK:
      c.d[1] = (int64_t)1 << draw(s, 20, 0, 3), c.d[2] = c.d[1] * (1 + c.d[2] % 4), c.d[4] = 1 + c.d[4] % 40;
      c.d[3] = draw(s, 21, 0, 1) ? c.d[1] * draw(s, 22, 0, 2) : (int64_t)1 << draw(s, 22, 0, 3);
      break;
    case TWS_KERNEL_ROUTER:
    case TWS_KERNEL_ROUTER_GRAD:
      c.d[1] = 2 + c.d[1] % 40, c.d[2] = 1 + draw(s, 20, 0, c.d[1] < 6 ? c.d[1] - 1 : 5), c.d[3] = 1 + c.d[3] % 20;
      c.f[0] = (double)draw(s, 21, 0, 2), c.f[1] = (double)draw(s, 22, 0, 1), c.f[2] = (double)draw(s, 23, 0, 1);
      c.f[3] = (double)draw(s, 24, 0, 2), c.f[4] = 1.5, c.f[5] = 0.5;
      if (c.kernel == TWS_KERNEL_ROUTER) c.f[5] = (double)draw(s, 25, 0, 1 << 30), c.f[7] = 0.5, c.f[8] = 0.01;
      c.d[4] = draw(s, 26, 0, 1) && c.d[1] % 2 == 0 && 2 * c.d[2] <= c.d[1] ? 2 : 0, c.d[5] = 1;
      break;
    case TWS_KERNEL_LATENT:
    case TWS_KERNEL_LATENT_GRAD:
      c.d[1] = 1 + c.d[1] % 4, c.d[2] = 1 + c.d[2] % 30, c.d[3] = 2 * (1 + c.d[3] % 9),
      c.d[4] = 1 + c.d[4] % (c.d[2] + c.d[3]);
      c.d[5] = draw(s, 20, 1, 30), c.d[6] = draw(s, 21, 1, c.d[0]), c.f[0] = 10000, c.f[1] = (double)draw(s, 22, 0, 3);
      c.f[2] = 1, c.f[3] = (double)draw(s, 23, 1, 5), c.f[4] = 1.25;
      c.flags = (uint32_t)draw(s, 24, 0, 1) * TWS_DOCUMENTS;
      break;
    case TWS_KERNEL_DISENTANGLED:
    case TWS_KERNEL_DISENTANGLED_GRAD:
      c.d[0] = draw(s, 20, 1, 3), c.d[1] = draw(s, 21, 2, 80), c.d[2] = draw(s, 22, 1, 4),
      c.d[3] = 2 * draw(s, 23, 4, 60);
      c.d[4] = draw(s, 24, 2, 40), c.f[2] = (double)(draw(s, 25, 0, 1) * (c.d[3] + draw(s, 26, 0, 50)));
      c.f[4] = (double)draw(s, 27, 1, 3), c.f[3] = (double)draw(s, 28, c.f[4] > 2 ? 2 : 1, 3);
      c.flags = (uint32_t)(draw(s, 29, 0, 1) * TWS_LENGTHS + draw(s, 30, 0, 1) * TWS_DROPOUT);
      c.f[1] = 0.4, c.f[5] = (double)draw(s, 31, 0, 1 << 30);
      break;
    case TWS_KERNEL_PART_BIAS:
    case TWS_KERNEL_PART_BIAS_GRAD:
      c.d[1] = 1 + c.d[1] % 3, c.flags &= c.kernel == TWS_KERNEL_PART_BIAS ? 0 : TWS_ACCUMULATE;
      break;
    case TWS_KERNEL_TOKEN_UNFOLD:
    case TWS_KERNEL_TOKEN_UNFOLD_GRAD:
    case TWS_KERNEL_SPANS:
    case TWS_KERNEL_SPANS_GRAD:
      c.d[0] = 1 + c.d[0] % 4, c.d[1] = 1 + c.d[1] % 40, c.d[2] = 1 + c.d[2] % 40, c.d[3] = 1 + 2 * (c.d[3] % 4);
      c.flags &= c.kernel == TWS_KERNEL_TOKEN_UNFOLD_GRAD ? TWS_ACCUMULATE : 0;
      c.flags |= (uint32_t)draw(s, 20, 0, 1) * TWS_LENGTHS;
      break;
    case TWS_KERNEL_PART:
    case TWS_KERNEL_PART_GRAD:
      c.d[1] = 1 + c.d[1] % 5, c.d[2] = 1 + c.d[2] % 50, c.d[3] = 1 + c.d[3] % c.d[2], c.flags &= TWS_ACCUMULATE;
      c.f[0] = (double)draw(s, 20, 0, c.d[2] - c.d[3]);
      if (c.kernel == TWS_KERNEL_PART) c.flags = 0;
      break;
    case TWS_KERNEL_CODED_LINEAR:
      c.d[3] = 2 * draw(s, 20, 1, 40), c.d[2] = c.d[3] * draw(s, 21, 1, 9), c.d[4] = code_types[draw(s, 22, 0, 4)];
      c.flags &= TWS_BIAS, c.dtype2 = c.dtype;
      break;
    case TWS_KERNEL_CACHE_WRITE:
    case TWS_KERNEL_CACHED_ATTENTION:
      c.d[3] = draw(s, 20, 1, 4), c.d[2] = c.d[3] * draw(s, 21, 1, 12), c.d[4] = draw(s, 22, 1, 140);
      c.d[0] = draw(s, 23, 1, 5), c.d[1] = draw(s, 24, 1, 3), c.d[5] = draw(s, 25, 1, 200);
      c.flags = 0, c.dtype2 = c.dtype;
      memset(c.f, 0, sizeof c.f);
      c.d[6] = c.d[7] = 0;
      c.flags = (uint32_t)draw(s, 30, 0, 1) * TWS_Q_KV;
      if (c.kernel == TWS_KERNEL_CACHE_WRITE && draw(s, 33, 0, 1)) { /* the first few blocks of a table differ */
        c.d[0] = draw(s, 34, 1, 2), c.d[6] = (c.d[5] + 1) / 2, c.d[7] = draw(s, 35, 4, 9), c.flags |= TWS_PAGED;
      }
      if (c.kernel == TWS_KERNEL_CACHE_WRITE) break;
      c.d[7] = draw(s, 26, 0, 1) * draw(s, 27, 1, 150);
      c.flags |= (uint32_t)draw(s, 28, 0, 1) * TWS_ALIBI, c.f[1] = (double)draw(s, 29, 0, 1) * 12;
      if (draw(s, 31, 0, 1)) c.flags |= TWS_RELATIVE, c.f[3] = 8 * (double)draw(s, 32, 1, 4), c.f[4] = 100;
      if (draw(s, 33, 0, 1)) c.flags |= TWS_PAGED, c.f[5] = (double)draw(s, 34, 1, 40), c.d[7] = draw(s, 35, 1, 300);
      break;
    case TWS_KERNEL_LATENT_WRITE:
    case TWS_KERNEL_LATENT_ATTENTION: {
      const int64_t rope = 2 * draw(s, 20, 1, 9), rank = draw(s, 21, 1, 90), nope = draw(s, 22, 1, 40);
      const int64_t seq = draw(s, 23, 1, 3), rows = draw(s, 24, seq, 150), texts = draw(s, 25, 1, 4);
      const int64_t written[8] = {texts, seq, rank, rope, rows};
      const int64_t read[8] = {texts, seq, draw(s, 26, 1, 5), nope, rope, draw(s, 27, 1, nope + rope), rank, rows};
      memcpy(c.d, c.kernel == TWS_KERNEL_LATENT_WRITE ? written : read, sizeof c.d);
      c.flags = 0, c.dtype2 = c.dtype;
      memset(c.f, 0, sizeof c.f);
      c.f[0] = 10000, c.f[1] = (double)draw(s, 28, 0, 3), c.f[2] = 1, c.f[3] = (double)draw(s, 29, 1, 5);
      if (c.kernel == TWS_KERNEL_LATENT_ATTENTION) c.f[4] = 0.3;
      break;
    }
    case TWS_KERNEL_DEQUANTIZE:
      c.d[1] = 2 * draw(s, 20, 1, 40), c.d[0] = c.d[1] * (1 + c.d[0] % 90), c.d[2] = code_types[draw(s, 21, 0, 4)];
      break;
    case TWS_KERNEL_DEQUANTIZE_TWICE:
      c.d[1] = 2 * draw(s, 20, 1, 40), c.d[2] = 4 * draw(s, 21, 1, 2), c.d[3] = draw(s, 22, 1, 70);
      c.d[0] = c.d[1] * c.d[3] * (1 + c.d[0] % 9);
      break;
    case TWS_KERNEL_QUANTIZE_PARTS:
    case TWS_KERNEL_DEQUANTIZE_PARTS:
      c.d[1] = 1 + c.d[1] % 5, c.d[2] = 1 + c.d[2] % 5, c.d[3] = 2 * draw(s, 20, 1, 40), c.d[4] = 4 * draw(s, 21, 1, 2);
      break;
    case TWS_KERNEL_SIGN_PACK:
      c.d[2] = 1 + c.d[2] % 8, c.d[1] = 8 * ((c.d[0] + 8 * c.d[2] - 1) / (8 * c.d[2])), c.flags = 0;
      break;
    case TWS_KERNEL_SIGN_AVERAGE:
      c.d[0] = 8 * (1 + c.d[0] % 300), c.d[1] = 1 + c.d[1] % 8, c.d[2] = 1 + c.d[2] % 5, c.flags = 0;
      c.f[0] = (double)draw(s, 20, 0, c.d[2] - 1);
      break;
    case TWS_KERNEL_SIGN_UNPACK:
      c.d[2] = 1 + c.d[2] % 8, c.d[1] = 8 * ((c.d[0] + 8 * c.d[2] - 1) / (8 * c.d[2])), c.d[3] = 1 + c.d[3] % 5;
      c.f[0] = (double)draw(s, 20, 0, c.d[3] - 1), c.flags = 0;
      break;
    case TWS_KERNEL_MOMENTUM:
      c.f[0] = (double)draw(s, 20, 1, 8), c.f[1] = (double)draw(s, 21, 0, 1), c.flags &= TWS_ACCUMULATE;
      break;
    case TWS_KERNEL_FROZEN_ADAM:
    case TWS_KERNEL_LOCAL_UNDO:
    case TWS_KERNEL_LOCAL_MERGE:
      c.f[0] = 1e-6, c.flags &= c.kernel == TWS_KERNEL_FROZEN_ADAM ? TWS_ACCUMULATE : 0;
      break;
    case TWS_KERNEL_SCALED_MOMENTUM:
    case TWS_KERNEL_MEAN_SQUARE:
      c.f[0] = (double)draw(s, 20, 1, 8), c.flags = 0;
      break;
    case TWS_KERNEL_FRESH_MOMENTS:
    case TWS_KERNEL_FROZEN_LAMB:
      c.f[0] = 1e-6, c.f[1] = 0.01, c.f[2] = c.kernel == TWS_KERNEL_FRESH_MOMENTS, c.flags = 0;
      break;
    case TWS_KERNEL_LAMB_FACTORS:
    case TWS_KERNEL_LAMB_RATIOS:
    case TWS_KERNEL_MOMENTUM_SCALES:
      c.d[1] = c.kernel == TWS_KERNEL_LAMB_FACTORS ? 1 + c.d[1] % 4 : 0;
      c.f[0] = 4, c.f[1] = 0.5, c.f[2] = 0.1, c.flags = 0;
      break;
    case TWS_KERNEL_LOW_RANK:
    case TWS_KERNEL_LOW_RANK_GRAD_INPUT:
    case TWS_KERNEL_LOW_RANK_GRAD_WEIGHT:
      c.d[1] = 1 + c.d[1] % 20, c.d[3] = draw(s, 20, 0, 40), c.d[4] = draw(s, 21, 0, 40), c.d[5] = 0;
      c.d[6] = draw(s, 22, 0, 1), c.d[7] = draw(s, 23, 0, 1);
      if (c.kernel != TWS_KERNEL_LOW_RANK_GRAD_WEIGHT) c.flags = 0;
      c.flags &= TWS_ACCUMULATE;
      break;
    case TWS_KERNEL_GATE:
    case TWS_KERNEL_GATE_GRAD:
      c.d[2] = 1 + c.d[2] % 2, c.f[0] = (double)draw(s, 20, 0, 1), c.flags = 0;
      break;
    case TWS_KERNEL_DISPATCH:
    case TWS_KERNEL_DISPATCH_GRAD:
    case TWS_KERNEL_COMBINE:
    case TWS_KERNEL_COMBINE_GRAD:
      c.d[2] = 1 + c.d[2] % 20, c.d[3] = 1 + draw(s, 20, 0, c.d[2] < 6 ? c.d[2] - 1 : 5), c.d[4] = 1 + c.d[4] % 30;
      if (c.kernel != TWS_KERNEL_DISPATCH_GRAD) c.flags = 0;
      break;
    case TWS_KERNEL_EXPERT_LINEAR:
    case TWS_KERNEL_EXPERT_LINEAR_GRAD_INPUT:
    case TWS_KERNEL_EXPERT_LINEAR_GRAD_WEIGHT:
      c.d[0] = 1 + c.d[0] % 3, c.d[1] = 1 + c.d[1] % 6, c.d[2] = 1 + c.d[2] % 80, c.d[5] = draw(s, 20, 0, 1) * c.d[2];
      if (c.dtype2 != TWS_F32) c.d[0] = 1; /* sums over several sources are rounded after each source */
      break;
    case TWS_KERNEL_LAMB:
    case TWS_KERNEL_LAMB_NORMS:
      c.f[0] = 1e-6, c.f[1] = 0.1, c.f[2] = 10, c.f[3] = 0.01, c.f[4] = 1, c.flags = 0;
      c.d[0] *= draw(s, 20, 1, 30);
      break;
    case TWS_KERNEL_MUON_MOMENTUM:
    case TWS_KERNEL_NEWTON_SCHULZ:
      c.f[0] = 0.9, c.flags = 0;
      break;
    case TWS_KERNEL_FACTOR_SUMS:
    case TWS_KERNEL_FACTOR_CHANGE: /* a part of the matrix */
      c.d[0] = draw(s, 20, 0, 40), c.d[1] = draw(s, 21, 1, 200), c.d[2] = c.d[0] > 0 ? c.d[0] * c.d[1] : c.d[1];
      c.f[0] = 1e-3, c.f[1] = (double)draw(s, 22, 0, c.d[2] - 1);
      c.d[2] -= (int64_t)c.f[1], c.flags = 0;
      if (c.kernel == TWS_KERNEL_FACTOR_SUMS) c.f[0] = c.f[1], c.f[1] = 0;
      break;
    case TWS_KERNEL_FACTOR_MOMENTS:
      c.f[0] = -0.8, c.flags = 0;
      break;
    case TWS_KERNEL_FACTOR_NORMS:
      c.f[0] = 0.5, c.flags = 0;
      break;
    case TWS_KERNEL_ADAFACTOR:
      c.f[0] = 0.1, c.f[1] = 1e-3, c.f[2] = 1, c.flags = 0;
      break;
    case TWS_KERNEL_ADAMW8:
      c.f[0] = 1e-8, c.f[1] = 0.1, c.flags = 0;
      c.d[0] *= draw(s, 20, 1, 30);
      if (c.dtype == TWS_F32 || !draw(s, 22, 0, 1)) break;
      c.flags = TWS_HALF_WEIGHTS, c.dtype2 = c.dtype;
      break;
    case TWS_KERNEL_MUON:
      c.f[0] = 0.1, c.f[1] = c.f[2] = 0, c.flags = 0;
      break;
    case TWS_KERNEL_SGD:
    case TWS_KERNEL_ADAGRAD:
    case TWS_KERNEL_LION:
      c.f[0] = 0.1, c.f[1] = (double)draw(s, 21, 0, 1 << 30), c.f[2] = (double)c.d[1], c.flags = 0;
      if (c.kernel == TWS_KERNEL_ADAGRAD) c.f[3] = c.f[2], c.f[2] = c.f[1], c.f[1] = 0.1, c.f[0] = 1e-8;
      if (c.kernel == TWS_KERNEL_SGD)
        c.f[5] = c.f[2], c.f[4] = c.f[1], c.f[3] = (double)draw(s, 25, 0, 1), c.f[2] = 0, c.f[1] = 0.9;
      c.d[0] *= draw(s, 20, 1, 30);
      if (!draw(s, 22, 0, 1)) break;
      c.flags |=
          (uint32_t)(TWS_HALF_WEIGHTS | draw(s, 23, 0, 1) * TWS_HALF_MOMENTS | draw(s, 24, 0, 1) * TWS_STOCHASTIC);
      c.dtype = c.dtype2 = TWS_BF16;
      break;
    case TWS_KERNEL_ADAMW:
      c.f[0] = 1e-8, c.f[1] = 0.1, c.f[2] = (double)draw(s, 21, 0, 1 << 30), c.f[3] = (double)c.d[1];
      c.flags &= TWS_L2;
      c.d[0] *= draw(s, 20, 1, 30);
      if (!draw(s, 22, 0, 1)) break;
      c.flags |=
          (uint32_t)(TWS_HALF_WEIGHTS | draw(s, 23, 0, 1) * TWS_HALF_MOMENTS | draw(s, 24, 0, 1) * TWS_STOCHASTIC);
      c.dtype = c.dtype2 = TWS_BF16;
      break;
    default:
      break;
  }
  return c;
}

#endif
