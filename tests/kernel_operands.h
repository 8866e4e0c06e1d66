/* Operands of every kernel, from the table in models/kernel.h: sizes, types, access and what to put into them. Shared
 * by the kernel tests and benchmarks. */
#ifndef TWS_TESTS_KERNEL_OPERANDS_H
#define TWS_TESTS_KERNEL_OPERANDS_H

#include "base/dtype.h"
#include "models/kernel.h"

#ifndef KERNEL_BACKEND /* whose workspaces are meant: an expression */
#define KERNEL_BACKEND TWS_BACKEND_HOST
#endif

enum { KERNEL_MAX_OPERANDS = 7 };
enum { ACCESS_R = 1, ACCESS_W = 2, ACCESS_RW = 3 };
typedef enum fill_kind {
  FILL_NORMAL,   /* standard normal */
  FILL_WEIGHT,   /* 1 + normal / 10 */
  FILL_POSITIVE, /* squares of normals: second moments */
  FILL_IDS,      /* integers below the vocabulary; of a part of it, around the part */
  FILL_TARGETS,  /* the same, and some -1 */
  FILL_STATS,    /* what VOCABULARY_STATS gives, of several ranks */
  FILL_DERIVED,  /* follows from other operands (statistics, forward outputs) */
  FILL_HYPER,
  FILL_METRICS,
  FILL_SCRATCH /* content does not matter before or after */
} fill_kind;

typedef struct operand_info {
  int64_t count;
  tws_dtype dtype;
  int access;
  fill_kind fill;
} operand_info;

/* (+) outputs are written, or read and written when accumulating. */
static inline int kernel_operands(const tws_work *w, int threads, operand_info *o) {
  const int64_t *d = w->d;
  const tws_dtype a = (tws_dtype)w->dtype, g = (tws_dtype)w->dtype2;
  const int bias = (w->flags & TWS_BIAS) != 0, rms = (w->flags & TWS_RMS) != 0;
  const int scaled = (w->flags & TWS_SCALED) != 0, gelu = (w->flags & TWS_GELU) != 0;
  const int plus = w->flags & TWS_ACCUMULATE ? ACCESS_RW : ACCESS_W;
  const int plus_param = w->flags & TWS_ACCUMULATE_PARAM ? ACCESS_RW : ACCESS_W;
  const int64_t workspace = (int64_t)(tws_work_workspace(w, KERNEL_BACKEND, threads) / sizeof(float));
  int n = 0;
#define OPERAND(count_, dtype_, access_, fill_) \
  o[n++] = (operand_info) {                     \
    (count_), (dtype_), (access_), (fill_)      \
  }
  switch ((tws_kernel)w->code) {
    case TWS_KERNEL_EMBEDDING:
      OPERAND(d[0], TWS_I32, ACCESS_R, FILL_IDS);
      OPERAND(d[2] * d[1], a, ACCESS_R, FILL_NORMAL);
      if (d[3]) OPERAND(d[3] * d[1], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0] * d[1], a, ACCESS_W, FILL_NORMAL);
      break;
    case TWS_KERNEL_EMBEDDING_GRAD:
      OPERAND(d[0], TWS_I32, ACCESS_R, FILL_IDS);
      OPERAND(d[0] * d[1], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[2] * d[1], g, plus, FILL_NORMAL);
      break;
    case TWS_KERNEL_POSITION_GRAD:
      OPERAND(d[0] * d[1], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[2] * d[1], g, plus, FILL_NORMAL);
      break;
    case TWS_KERNEL_NORM:
      OPERAND(d[0] * d[1], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[1], a, ACCESS_R, FILL_WEIGHT);
      if (bias && !rms) OPERAND(d[1], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0] * d[1], a, ACCESS_W, FILL_NORMAL);
      OPERAND(d[0] * (rms ? 1 : 2), TWS_F32, ACCESS_W, FILL_NORMAL);
      if (w->flags & TWS_RESIDUAL) OPERAND(d[0] * d[1], a, ACCESS_R, FILL_NORMAL);
      if (w->flags & TWS_RESIDUAL) OPERAND(d[0] * d[1], a, ACCESS_W, FILL_NORMAL);
      break;
    case TWS_KERNEL_NORM_GRAD:
      OPERAND(d[0] * d[1], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0] * d[1], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[1], a, ACCESS_R, FILL_WEIGHT);
      OPERAND(d[0] * (rms ? 1 : 2), TWS_F32, ACCESS_R, FILL_DERIVED);
      OPERAND(d[0] * d[1], a, plus, FILL_NORMAL);
      OPERAND(d[1], g, plus_param, FILL_NORMAL);
      if (bias && !rms) OPERAND(d[1], g, plus_param, FILL_NORMAL);
      break;
    case TWS_KERNEL_LINEAR:
      OPERAND(d[0] * d[2], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[1] * d[2], a, ACCESS_R, FILL_NORMAL);
      if (bias) OPERAND(d[1], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0] * d[1], a, ACCESS_W, FILL_NORMAL);
      if (gelu) OPERAND(d[0] * d[1], a, ACCESS_W, FILL_NORMAL);
      break;
    case TWS_KERNEL_LINEAR_GRAD_INPUT:
      OPERAND(d[0] * d[1], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[1] * d[2], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0] * d[2], a, plus, FILL_NORMAL);
      if (gelu) OPERAND(d[0] * d[2], a, ACCESS_R, FILL_NORMAL);
      break;
    case TWS_KERNEL_LINEAR_GRAD_WEIGHT:
      OPERAND(d[0] * d[1], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0] * d[2], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[1] * d[2], g, plus, FILL_NORMAL);
      if (bias) OPERAND(d[1], g, plus, FILL_NORMAL);
      break;
    case TWS_KERNEL_ROPE:
    case TWS_KERNEL_ROPE_GRAD:
      OPERAND(d[0] * (d[1] + 2 * d[2]) * d[3], a, ACCESS_RW, FILL_NORMAL);
      break;
    case TWS_KERNEL_ATTENTION:
      OPERAND(d[0] * d[1] * (d[2] + 2 * d[3]) * d[4], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0] * d[1] * d[2] * d[4], a, ACCESS_W, FILL_NORMAL);
      OPERAND(d[0] * d[1] * d[2], TWS_F32, ACCESS_W, FILL_NORMAL);
      OPERAND(workspace, TWS_F32, ACCESS_RW, FILL_SCRATCH);
      break;
    case TWS_KERNEL_ATTENTION_GRAD:
      OPERAND(d[0] * d[1] * d[2] * d[4], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0] * d[1] * (d[2] + 2 * d[3]) * d[4], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0] * d[1] * d[2] * d[4], a, ACCESS_R, FILL_DERIVED);
      OPERAND(d[0] * d[1] * d[2], TWS_F32, ACCESS_R, FILL_DERIVED);
      OPERAND(d[0] * d[1] * (d[2] + 2 * d[3]) * d[4], a, ACCESS_W, FILL_NORMAL);
      OPERAND(workspace, TWS_F32, ACCESS_RW, FILL_SCRATCH);
      break;
    case TWS_KERNEL_GELU_GRAD:
    case TWS_KERNEL_ADD:
      OPERAND(d[0], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0], a, ACCESS_W, FILL_NORMAL);
      break;
    case TWS_KERNEL_GELU:
      OPERAND(d[0], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0], a, ACCESS_W, FILL_NORMAL);
      break;
    case TWS_KERNEL_SWIGLU:
      OPERAND(2 * d[0] * d[1], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0] * d[1], a, ACCESS_W, FILL_NORMAL);
      break;
    case TWS_KERNEL_SWIGLU_GRAD:
      OPERAND(d[0] * d[1], a, ACCESS_R, FILL_NORMAL);
      OPERAND(2 * d[0] * d[1], a, ACCESS_R, FILL_NORMAL);
      OPERAND(2 * d[0] * d[1], a, ACCESS_W, FILL_NORMAL);
      break;
    case TWS_KERNEL_CROSS_ENTROPY:
      OPERAND(d[0] * d[2], a, ACCESS_RW, FILL_NORMAL);
      OPERAND(d[0], TWS_I32, ACCESS_R, FILL_TARGETS);
      OPERAND(2, TWS_F64, ACCESS_RW, FILL_NORMAL);
      if (scaled) OPERAND(TWS_HYPER_COUNT, TWS_F32, ACCESS_R, FILL_HYPER);
      break;
    case TWS_KERNEL_VOCABULARY_STATS:
      OPERAND(d[0] * d[2], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0], TWS_I32, ACCESS_R, FILL_TARGETS);
      OPERAND(d[0] * 3, TWS_F32, ACCESS_W, FILL_NORMAL);
      break;
    case TWS_KERNEL_VOCABULARY_LOSS:
      OPERAND(d[0] * d[2], a, ACCESS_RW, FILL_NORMAL);
      OPERAND(d[0], TWS_I32, ACCESS_R, FILL_TARGETS);
      OPERAND(d[3] * d[0] * 3, TWS_F32, ACCESS_R, FILL_STATS);
      OPERAND(2, TWS_F64, ACCESS_RW, FILL_NORMAL);
      if (scaled) OPERAND(TWS_HYPER_COUNT, TWS_F32, ACCESS_R, FILL_HYPER);
      break;
    case TWS_KERNEL_ADAMW: {
      const int half = (w->flags & TWS_HALF_WEIGHTS) != 0;
      const tws_dtype moments = w->flags & TWS_HALF_MOMENTS ? g : TWS_F32;
      OPERAND(d[0], half ? g : TWS_F32, ACCESS_RW, FILL_NORMAL);
      OPERAND(d[0], moments, ACCESS_RW, FILL_NORMAL);
      OPERAND(d[0], moments, ACCESS_RW, FILL_POSITIVE);
      OPERAND(d[0], a, ACCESS_R, FILL_NORMAL);
      OPERAND(TWS_HYPER_COUNT, TWS_F32, ACCESS_R, FILL_HYPER);
      OPERAND(TWS_METRIC_COUNT, TWS_F64, ACCESS_R, FILL_METRICS);
      if (g != TWS_F32 && !half) OPERAND(d[0], g, ACCESS_W, FILL_NORMAL);
      break;
    }
    case TWS_KERNEL_SQUARED_NORM:
      OPERAND(d[0], a, ACCESS_R, FILL_NORMAL);
      OPERAND(1, TWS_F64, ACCESS_RW, FILL_NORMAL);
      break;
    case TWS_KERNEL_CLIP:
      OPERAND(TWS_METRIC_COUNT, TWS_F64, ACCESS_RW, FILL_METRICS);
      if (scaled) OPERAND(TWS_HYPER_COUNT, TWS_F32, ACCESS_R, FILL_HYPER);
      break;
    case TWS_KERNEL_FILL:
      OPERAND(d[0], a, ACCESS_W, FILL_NORMAL);
      break;
    case TWS_KERNEL_ACCUMULATE:
      OPERAND(d[0], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0], g, ACCESS_RW, FILL_NORMAL);
      break;
    case TWS_KERNEL_CAST:
      OPERAND(d[0], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0], g, ACCESS_W, FILL_NORMAL);
      break;
    case TWS_KERNEL_TRANSPOSE:
      OPERAND(d[0] * d[1] * d[2], a, ACCESS_R, FILL_NORMAL);
      OPERAND(d[0] * d[1] * d[2], a, ACCESS_W, FILL_NORMAL);
      break;
    case TWS_KERNEL_HEADS_PACK:
    case TWS_KERNEL_HEADS_UNPACK: {
      const int unpack = w->code == TWS_KERNEL_HEADS_UNPACK;
      const int64_t share = d[3] > 0 && d[3] < d[1] ? 1 : d[3] / d[1];
      const int64_t whole = d[0] * (d[2] + 2 * d[3]) * d[4], parts = d[0] * (d[2] + 2 * d[1] * share) * d[4];
      OPERAND(unpack ? parts : whole, a, ACCESS_R, FILL_NORMAL);
      OPERAND(unpack ? whole : parts, a, ACCESS_W, FILL_NORMAL);
      break;
    }
    case TWS_KERNEL_COUNT:
      break;
  }
#undef OPERAND
  return n;
}

#endif
