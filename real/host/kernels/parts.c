/* Quantization of tensor ranges to few bits, and sums of them: models/operators_parts.def. */
#include <math.h>

#include "models/operator.h"
#include "real/host/kernels/kernels.h"

enum { SPAN = 256 };
static const float least = 1e-30f;
static const uint32_t infinite = 0x7f800000u; /* bits of infinity; those of NaN are larger */

static int64_t pieces_of(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

/* Returns the bits of the largest magnitude of x[first, first + count), which is one block. */
static uint32_t largest_bits(const tws_host_call *call, int64_t first, int64_t count) {
  float values[SPAN];
  uint32_t most = 0;
  for (int64_t done = 0; done < count; done += SPAN) {
    const int64_t n = count - done < SPAN ? count - done : SPAN;
    FOR_TYPE(call->dtype[0], T,
             EACH_VECTOR(i, lanes, 0, n,
                         v_put(TWS_F32, values, i, v_get(T, call->operand[0], first + done + i, lanes), lanes)));
    for (int64_t i = 0; i < n; i++) {
      uint32_t bits;
      memcpy(&bits, &values[i], sizeof bits);
      bits &= 0x7fffffffu;
      most = bits > most ? bits : most;
    }
  }
  return most;
}

/* Rounds to an integer by adding and subtracting a number so large that the sum has no fraction bits. The product is
 * read from memory, so that it is rounded to float32 first. */
static int rounded(float product) {
  return (int)((product + 12582912.0f) - 12582912.0f);
}

static void write_codes(const tws_host_call *call, int64_t first, int64_t count, float factor, uint8_t *codes) {
  const vf by = v_set(factor);
  const int bits = (int)call->work->d[4];
  float values[SPAN + 1] = {0};
  for (int64_t done = 0; done < count; done += SPAN) {
    const int64_t n = count - done < SPAN ? count - done : SPAN;
    FOR_TYPE(call->dtype[0], T,
             EACH_VECTOR(i, lanes, 0, n,
                         v_put(TWS_F32, values, i, v_get(T, call->operand[0], first + done + i, lanes) * by, lanes)));
    if (n < SPAN) values[n] = 0;
    if (bits == 8)
      for (int64_t i = 0; i < n; i++) codes[done + i] = (uint8_t)(int8_t)rounded(values[i]);
    else
      for (int64_t i = 0; i < n; i += 2)
        codes[(done + i) / 2] = (uint8_t)((rounded(values[i]) & 15) << 4 | (rounded(values[i + 1]) & 15));
  }
}

static void quantize_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t *d = call->work->d, part = d[0], nodes = d[1], node_ranks = d[2], block = d[3];
  const int64_t blocks = pieces_of(part, block), bytes = pieces_of(part * d[4], 8);
  const float most = d[4] == 8 ? 127 : 7;
  float *scales = call->operand[2];
  const host_range r = share(nodes * node_ranks * blocks, 1, thread, threads);
  for (int64_t b = r.begin; b < r.end; b++) {
    const int64_t to = b / blocks, from = to % nodes * node_ranks + to / nodes, first = b % blocks * block;
    const int64_t count = part - first < block ? part - first : block;
    uint8_t *codes = (uint8_t *)call->operand[1] + to * bytes + first * d[4] / 8;
    const uint32_t bits = largest_bits(call, from * part + first, count);
    float largest;
    memcpy(&largest, &bits, sizeof largest);
    const int there = bits < infinite && largest >= least;
    scales[b] = bits >= infinite ? NAN : there ? largest / most : 0;
    if (there)
      write_codes(call, from * part + first, count, most / largest, codes);
    else
      memset(codes, 0, (size_t)pieces_of(count * d[4], 8));
  }
}

HOST_KERNEL(quantize_parts) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), quantize_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* ---- dequantization ---- */

/* Adds the dequantized values of codes to sums; the first code is the first of a byte. */
static void add_codes(const uint8_t *codes, int64_t count, int bits, float scale, float *sums) {
  if (bits == 8) {
    for (int64_t i = 0; i < count; i++) sums[i] += (float)(int8_t)codes[i] * scale;
    return;
  }
  for (int64_t i = 0; i < count; i++) {
    const int code = i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
    sums[i] += (float)((code ^ 8) - 8) * scale;
  }
}

static void dequantize_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t *d = call->work->d, part = d[0], parts = d[1], sources = d[2], block = d[3];
  const int64_t blocks = pieces_of(part, block), bytes = pieces_of(part * d[4], 8);
  const uint8_t *codes = call->operand[0];
  const float *scales = call->operand[1];
  void *y = call->operand[2];
  const host_range r = share(parts * blocks, 1, thread, threads);
  for (int64_t b = r.begin; b < r.end; b++) {
    const int64_t p = b / blocks, begin = b % blocks * block;
    const int64_t end = part - begin < block ? part : begin + block;
    for (int64_t first = begin, n; first < end; first += n) {
      float sums[SPAN] = {0};
      n = end - first < SPAN ? end - first : SPAN;
      for (int64_t s = 0; s < sources; s++)
        add_codes(codes + (s * parts + p) * bytes + first * d[4] / 8, n, (int)d[4],
                  scales[(s * parts + p) * blocks + b % blocks], sums);
      FOR_TYPE(call->dtype[2], T,
               EACH_VECTOR(i, lanes, 0, n, v_put(T, y, p * part + first + i, v_get(TWS_F32, sums, i, lanes), lanes)));
    }
  }
}

HOST_KERNEL(dequantize_parts) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), dequantize_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
