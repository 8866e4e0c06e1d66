#include "real/operands.h"
#include <stdio.h>
#include <string.h>

/* One letter for each operand, in order.
 * a: the work's type; g: the type of gradient accumulation; x: float32 or a 16-bit type; h: a 16-bit type; f: float32;
 * b: bfloat16; d: float64; i: int32; w: anything (workspace). [Ba]: an `a` that is there on the condition B of
 * is_there(). */
static const char *const operands_of[TWS_KERNEL_COUNT] = {
    [TWS_KERNEL_EMBEDDING] = "ia[Pa]a",
    [TWS_KERNEL_EMBEDDING_GRAD] = "iax",
    [TWS_KERNEL_POSITION_GRAD] = "ax",
    [TWS_KERNEL_NORM] = "aa[Na]af[Raa]",
    [TWS_KERNEL_NORM_GRAD] = "aaafag[Ng]",
    [TWS_KERNEL_LINEAR] = "aa[Ba]a[Ga]",
    [TWS_KERNEL_LINEAR_GRAD_INPUT] = "aaa[Ga]",
    [TWS_KERNEL_LINEAR_GRAD_WEIGHT] = "aag[Bg]",
    [TWS_KERNEL_ROPE] = "a",
    [TWS_KERNEL_ROPE_GRAD] = "a",
    [TWS_KERNEL_ATTENTION] = "aafw",
    [TWS_KERNEL_ATTENTION_GRAD] = "aaafaw",
    [TWS_KERNEL_GELU] = "aa",
    [TWS_KERNEL_GELU_GRAD] = "aaa",
    [TWS_KERNEL_SWIGLU] = "aa",
    [TWS_KERNEL_SWIGLU_GRAD] = "aaa",
    [TWS_KERNEL_ADD] = "aaa",
    [TWS_KERNEL_CROSS_ENTROPY] = "aid[Sf]",
    [TWS_KERNEL_VOCABULARY_STATS] = "aif",
    [TWS_KERNEL_VOCABULARY_LOSS] = "aifd[Sf]",
    [TWS_KERNEL_ADAMW] = "[Wb][Ff][Mbb][Lff][Wb][Fx]fd", /* and perhaps h */
    [TWS_KERNEL_SQUARED_NORM] = "xd",
    [TWS_KERNEL_CLIP] = "d[Sf]",
    [TWS_KERNEL_FILL] = "x",
    [TWS_KERNEL_ACCUMULATE] = "xx",
    [TWS_KERNEL_CAST] = "xx",
    [TWS_KERNEL_TRANSPOSE] = "aa",
    [TWS_KERNEL_HEADS_PACK] = "aa",
    [TWS_KERNEL_HEADS_UNPACK] = "aa",
};

static int is_there(char condition, const tws_work *work) {
  switch (condition) {
    case 'P': /* learned positions */
      return work->d[3] != 0;
    case 'B':
      return (work->flags & TWS_BIAS) != 0;
    case 'N': /* a norm's bias: RMSNorm has none */
      return (work->flags & (TWS_BIAS | TWS_RMS)) == TWS_BIAS;
    case 'G':
      return (work->flags & TWS_GELU) != 0;
    case 'R':
      return (work->flags & TWS_RESIDUAL) != 0;
    case 'W': /* float32 weights or not, and moments */
      return (work->flags & TWS_HALF_WEIGHTS) != 0;
    case 'F':
      return (work->flags & TWS_HALF_WEIGHTS) == 0;
    case 'M':
      return (work->flags & TWS_HALF_MOMENTS) != 0;
    case 'L':
      return (work->flags & TWS_HALF_MOMENTS) == 0;
    default: /* S */
      return (work->flags & TWS_SCALED) != 0;
  }
}

static void expected_operands(const tws_work *work, char *out) {
  int there = 1;
  for (const char *at = operands_of[work->code]; at && *at; at++) {
    if (*at == '[') {
      there = is_there(*++at, work);
    } else if (*at == ']') {
      there = 1;
    } else if (there) {
      *out++ = *at;
    }
  }
  *out = '\0';
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
    case 'b':
      return type == TWS_BF16;
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
  if (work->code == TWS_KERNEL_ADAMW && count == TWS_MAX_OPERANDS && !(work->flags & TWS_HALF_WEIGHTS))
    strcat(letters, "h");
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
  if (work->flags & TWS_HALF_WEIGHTS) return work->dtype == TWS_BF16 && work->dtype2 == TWS_BF16;
  const int first = work->dtype == TWS_F32 || is_half((tws_dtype)work->dtype);
  const int second = work->dtype2 == TWS_F32 || is_half((tws_dtype)work->dtype2);
  return first && second;
}
