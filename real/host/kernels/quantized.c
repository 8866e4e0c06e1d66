/* Quantized weights: codes of few bits times scales; groups of scales may themselves be quantized. */
#include "models/quantized.h"
#include "real/host/kernels/kernels.h"

enum { SPAN = 256 };

/* Writes the values of codes, in units of the scale of their block, to `out`. */
static void read_codes(const uint8_t *codes, int64_t first, int64_t count, int type, float *out) {
  static const float nf4[16] = TWS_NF4_LEVELS, int4[16] = TWS_INT4_LEVELS, plain[16] = TWS_UNSIGNED_LEVELS;
  const float *level = type == TWS_CODES_NF4 ? nf4 : type == TWS_CODES_INT4 ? int4 : plain;
  if (type == TWS_CODES_INT8) {
    for (int64_t i = 0; i < count; i++) out[i] = (float)(int8_t)codes[first + i];
    return;
  }
  if (type == TWS_CODES_INT8_ASYMMETRIC) {
    for (int64_t i = 0; i < count; i++) out[i] = (float)codes[first + i];
    return;
  }
  for (int64_t i = 0; i < count; i += 2) {
    const uint8_t pair = codes[(first + i) / 2];
    out[i] = level[pair >> 4];
    out[i + 1] = level[pair & 15];
  }
}

/* Returns the scale of a block, and writes its minimum, 0 where the type of codes has none. group 0: scales are
 * float32. */
static float scale_of(const tws_host_call *call, int64_t group, int type, int64_t block, float *minimum) {
  const int each = tws_code_scales(type);
  const float *scales = call->operand[1];
  *minimum = group == 0 && each == 2 ? scales[2 * block + 1] : 0;
  if (group == 0) return scales[block * each];
  return tws_scale_of(((const uint8_t *)call->operand[1])[block], (const float *)call->operand[2] + block / group * 2);
}

static void dequantize_blocks(const tws_host_call *call, int64_t group, int to, int thread, int threads) {
  const int64_t block = call->work->d[1];
  const int type = (int)call->work->d[2];
  void *w = call->operand[to];
  float values[SPAN];
  const host_range r = share(call->work->d[0] / block, 1, thread, threads);
  for (int64_t b = r.begin; b < r.end; b++) {
    float minimum;
    const vf scale = v_set(scale_of(call, group, type, b, &minimum));
    for (int64_t done = 0, count; done < block; done += count) {
      const int64_t first = b * block + done;
      count = block - done < SPAN ? block - done : SPAN;
      read_codes(call->operand[0], first, count, type, values);
      FOR_TYPE(call->dtype[to], T,
               EACH_VECTOR(i, n, 0, count, v_put(T, w, first + i, v_get(TWS_F32, values, i, n) * scale + minimum, n)));
    }
  }
}

static void dequantize_task(void *arg, int thread, int threads) {
  dequantize_blocks(arg, 0, 2, thread, threads);
}

static void dequantize_twice_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  dequantize_blocks(call, call->work->d[3], 3, thread, threads);
}

HOST_KERNEL(dequantize) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), dequantize_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

HOST_KERNEL(dequantize_twice) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), dequantize_twice_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* ---- products with weights in codes ---- */

enum { COLUMNS_AT_ONCE = 512, TOKENS_AT_ONCE = 32 };

/* Computes outputs [first, first + count) of up to TOKENS_AT_ONCE tokens: a part of a weight's row is decoded once
 * for all of them. */
static void coded_rows(const tws_host_call *call, int64_t token, int64_t tokens, host_range rows) {
  const int64_t *d = call->work->d, out = d[1], in = d[2], block = d[3];
  const int has_bias = (call->work->flags & TWS_BIAS) != 0, y = 3 + has_bias;
  const int type = (int)d[4], each = tws_code_scales(type);
  const float *scales = call->operand[2];
  float weight[COLUMNS_AT_ONCE];
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    vf sum[TOKENS_AT_ONCE];
    for (int64_t t = 0; t < tokens; ++t) sum[t] = v_zero();
    for (int64_t begin = 0, count; begin < in; begin += count) {
      const int64_t left = block - begin % block, most = left < COLUMNS_AT_ONCE ? left : COLUMNS_AT_ONCE;
      count = in - begin < most ? in - begin : most;
      const float *of_block = scales + (row * in + begin) / block * each;
      const vf scale = v_set(of_block[0]), minimum = v_set(each == 2 ? of_block[1] : 0);
      read_codes(call->operand[1], row * in + begin, count, type, weight);
      FOR_TYPE(call->dtype[0], T, EACH_VECTOR(c, n, 0, count, {
                 const vf w = v_get(TWS_F32, weight, c, n) * scale + minimum;
                 for (int64_t t = 0; t < tokens; ++t)
                   sum[t] += w * v_get(T, call->operand[0], (token + t) * in + begin + c, n);
               }));
    }
    for (int64_t t = 0; t < tokens; ++t)
      FOR_TYPE(call->dtype[y], T, {
        vf total = v_set(v_sum(sum[t]));
        if (has_bias) total += v_get(T, call->operand[3], row, 1);
        v_put(T, call->operand[y], (token + t) * out + row, total, 1);
      });
  }
}

static void coded_linear_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t tokens = call->work->d[0];
  const host_range rows = share(call->work->d[1], 16, thread, threads);
  for (int64_t token = 0; token < tokens; token += TOKENS_AT_ONCE)
    coded_rows(call, token, tokens - token < TOKENS_AT_ONCE ? tokens - token : TOKENS_AT_ONCE, rows);
}

HOST_KERNEL(coded_linear) {
  (void)err;
  run_parallel(call, tws_work_flops(call->work), coded_linear_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
