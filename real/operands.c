#include "real/operands.h"
#include <stdio.h>
#include <string.h>

/* One letter for each operand.
 * a: the work's type; g: the type of gradient accumulation; x: float32 or a 16-bit type; h: a 16-bit type; f: float32;
 * d: float64; i: int32; w: anything (workspace). */
static void expected_operands(const tws_work *work, char *out) {
  const int bias = (work->flags & TWS_BIAS) != 0, norm_bias = bias && !(work->flags & TWS_RMS);
  const int scaled = (work->flags & TWS_SCALED) != 0, gelu = (work->flags & TWS_GELU) != 0;
  const char *text = "";
  switch ((tws_kernel)work->code) {
    case TWS_KERNEL_EMBEDDING:
      text = work->d[3] ? "iaaa" : "iaa";
      break;
    case TWS_KERNEL_EMBEDDING_GRAD:
      text = "iax";
      break;
    case TWS_KERNEL_POSITION_GRAD:
      text = "ax";
      break;
    case TWS_KERNEL_NORM:
      text = work->flags & TWS_RESIDUAL ? norm_bias ? "aaaafaa" : "aaafaa" : norm_bias ? "aaaaf" : "aaaf";
      break;
    case TWS_KERNEL_NORM_GRAD:
      text = norm_bias ? "aaafagg" : "aaafag";
      break;
    case TWS_KERNEL_LINEAR:
      text = bias ? gelu ? "aaaaa" : "aaaa" : gelu ? "aaaa" : "aaa";
      break;
    case TWS_KERNEL_LINEAR_GRAD_INPUT:
      text = gelu ? "aaaa" : "aaa";
      break;
    case TWS_KERNEL_LINEAR_GRAD_WEIGHT:
      text = bias ? "aagg" : "aag";
      break;
    case TWS_KERNEL_ROPE:
    case TWS_KERNEL_ROPE_GRAD:
      text = "a";
      break;
    case TWS_KERNEL_ATTENTION:
      text = "aafw";
      break;
    case TWS_KERNEL_ATTENTION_GRAD:
      text = "aaafaw";
      break;
    case TWS_KERNEL_GELU:
      text = "aa";
      break;
    case TWS_KERNEL_GELU_GRAD:
      text = "aaa";
      break;
    case TWS_KERNEL_SWIGLU:
      text = "aa";
      break;
    case TWS_KERNEL_SWIGLU_GRAD:
      text = "aaa";
      break;
    case TWS_KERNEL_ADD:
      text = "aaa";
      break;
    case TWS_KERNEL_CROSS_ENTROPY:
      text = scaled ? "aidf" : "aid";
      break;
    case TWS_KERNEL_VOCABULARY_STATS:
      text = "aif";
      break;
    case TWS_KERNEL_VOCABULARY_LOSS:
      text = scaled ? "aifdf" : "aifd";
      break;
    case TWS_KERNEL_ADAMW:
      text = "fffxfd";
      break; /* and perhaps h */
    case TWS_KERNEL_SQUARED_NORM:
      text = "xd";
      break;
    case TWS_KERNEL_CLIP:
      text = scaled ? "df" : "d";
      break;
    case TWS_KERNEL_FILL:
      text = "x";
      break;
    case TWS_KERNEL_ACCUMULATE:
      text = "xx";
      break;
    case TWS_KERNEL_CAST:
      text = "xx";
      break;
    case TWS_KERNEL_TRANSPOSE:
    case TWS_KERNEL_HEADS_PACK:
    case TWS_KERNEL_HEADS_UNPACK:
      text = "aa";
      break;
    case TWS_KERNEL_COUNT:
      break;
  }
  snprintf(out, TWS_MAX_OPERANDS + 1, "%s", text);
}

static int is_half(tws_dtype type) {
  return type == TWS_BF16 || type == TWS_F16;
}

static int type_matches(char letter, tws_dtype type, const tws_dtype *types, const char *letters, int index) {
  switch (letter) {
    case 'f':
      return type == TWS_F32;
    case 'h':
      return is_half(type);
    case 'd':
      return type == TWS_F64;
    case 'i':
      return type == TWS_I32;
    case 'w':
      return 1;
    default:
      break;
  }
  if (type != TWS_F32 && !is_half(type)) return 0;
  if (letter == 'x') return 1;
  for (int i = 0; i < index; ++i) /* operands of one letter have one type */
    if (letters[i] == letter && types[i] != type) return 0;
  return 1;
}

static tws_code wrong_type(const char *name, int index, tws_dtype type, const char *device, tws_error *err) {
  char hint[80];
  snprintf(hint, sizeof hint, "%s computes on fp32, bf16 and fp16", device);
  return tws_fail(err, TWS_UNSUPPORTED, hint, "%s: operand %d cannot be %s here", name, index, tws_dtype_name(type));
}

tws_code tws_check_operands(const tws_work *work, void *const *operand, const tws_dtype *dtype, int count,
                            const char *device, tws_error *err) {
  if (work->code >= TWS_KERNEL_COUNT) return tws_fail(err, TWS_INTERNAL, NULL, "kernel %d is not known", work->code);
  const char *name = tws_kernel_name((tws_kernel)work->code);
  char letters[TWS_MAX_OPERANDS + 1];
  expected_operands(work, letters);
  if (work->code == TWS_KERNEL_ADAMW && count == TWS_MAX_OPERANDS) strcat(letters, "h");
  if ((size_t)count != strlen(letters))
    return tws_fail(err, TWS_INTERNAL, NULL, "%s: %d operands instead of %zu", name, count, strlen(letters));
  for (int i = 0; i < count; ++i) {
    if (!operand[i]) return tws_fail(err, TWS_INTERNAL, NULL, "%s: operand %d has no address", name, i);
    if (!type_matches(letters[i], dtype[i], dtype, letters, i)) return wrong_type(name, i, dtype[i], device, err);
  }
  for (int i = 0; i < 5; ++i)
    if (work->d[i] < 0) return tws_fail(err, TWS_INVALID, NULL, "%s: size %d is negative", name, i);
  return TWS_OK;
}

int tws_operands_supported(const tws_work *work) {
  if (work->code >= TWS_KERNEL_COUNT) return 0;
  if (work->code == TWS_KERNEL_CLIP) return 1;
  const int first = work->dtype == TWS_F32 || is_half((tws_dtype)work->dtype);
  const int second = work->dtype2 == TWS_F32 || is_half((tws_dtype)work->dtype2);
  return first && second;
}
