/* Quantized weights: codes of few bits times scales; groups of scales may themselves be quantized. */
#include "models/quantized.h"
#include "real/host/kernels/kernels.h"

enum { SPAN = 256 };

static void read_codes(const uint8_t *codes, int64_t first, int64_t count, int bits, float *out) {
  static const float level[16] = TWS_NF4_LEVELS;
  if (bits == 8) {
    for (int64_t i = 0; i < count; i++) out[i] = (float)(int8_t)codes[first + i];
    return;
  }
  for (int64_t i = 0; i < count; i += 2) {
    const uint8_t pair = codes[(first + i) / 2];
    out[i] = level[pair >> 4];
    out[i + 1] = level[pair & 15];
  }
}

/* Returns the scale of a block. group 0: scales are float32. */
static float scale_of(const tws_host_call *call, int64_t group, int64_t block) {
  if (group == 0) return ((const float *)call->operand[1])[block];
  return tws_scale_of(((const uint8_t *)call->operand[1])[block], (const float *)call->operand[2] + block / group * 2);
}

static void dequantize_blocks(const tws_host_call *call, int64_t group, int to, int thread, int threads) {
  const int64_t block = call->work->d[1];
  const int bits = (int)call->work->d[2];
  void *w = call->operand[to];
  float values[SPAN];
  const host_range r = share(call->work->d[0] / block, 1, thread, threads);
  for (int64_t b = r.begin; b < r.end; b++) {
    const vf scale = v_set(scale_of(call, group, b));
    for (int64_t done = 0, count; done < block; done += count) {
      const int64_t first = b * block + done;
      count = block - done < SPAN ? block - done : SPAN;
      read_codes(call->operand[0], first, count, bits, values);
      FOR_TYPE(call->dtype[to], T,
               EACH_VECTOR(i, n, 0, count, v_put(T, w, first + i, v_get(TWS_F32, values, i, n) * scale, n)));
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
