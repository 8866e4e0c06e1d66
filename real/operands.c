#include "real/operands.h"
#include <stdio.h>
#include "models/operator.h"

_Static_assert((int)TWS_MAX_OPERANDS >= (int)TWS_OPERATOR_OPERANDS, "operands of any kernel");

static int is_computable(uint8_t type) {
  return type == TWS_F32 || type == TWS_BF16 || type == TWS_F16;
}

static tws_code unsupported(const char *device, tws_error *err, const char *text) {
  char hint[80];
  snprintf(hint, sizeof hint, "%s computes on fp32, bf16 and fp16", device);
  return tws_fail(err, TWS_UNSUPPORTED, hint, "%s", text);
}

static tws_code check_types(const tws_work *work, const tws_kernel_operand *operands, const tws_dtype *dtype, int count,
                            const char *device, tws_error *err) {
  const char *name = tws_kernel_name((tws_kernel)work->code);
  char text[160];
  for (int i = 0; i < count; ++i) {
    const tws_kernel_operand *o = &operands[i];
    if (o->content == TWS_HOLDS_SCRATCH || o->dtype == dtype[i]) continue;
    snprintf(text, sizeof text, "%s: operand %d (%s) cannot be %s here but is %s of this work", name, i, o->name,
             tws_dtype_name(dtype[i]), tws_dtype_name(o->dtype));
    return unsupported(device, err, text);
  }
  if (tws_operands_supported(work)) return TWS_OK;
  snprintf(text, sizeof text, "%s on %s and %s", name, tws_dtype_name((tws_dtype)work->dtype),
           tws_dtype_name((tws_dtype)work->dtype2));
  return unsupported(device, err, text);
}

tws_code tws_check_operands(const tws_work *work, void *const *operand, const tws_dtype *dtype, int count,
                            const char *device, tws_error *err) {
  if (work->code >= TWS_KERNEL_COUNT) return tws_fail(err, TWS_INTERNAL, NULL, "kernel %d is not known", work->code);
  const char *name = tws_kernel_name((tws_kernel)work->code);
  tws_kernel_operand expected[TWS_OPERATOR_OPERANDS];
  const int needed = tws_work_operands(work, NULL, expected);
  if (count != needed) return tws_fail(err, TWS_INTERNAL, NULL, "%s: %d operands instead of %d", name, count, needed);
  for (int i = 0; i < count; ++i)
    if (!operand[i])
      return tws_fail(err, TWS_INTERNAL, NULL, "%s: operand %d (%s) has no address", name, i, expected[i].name);
  TWS_TRY(check_types(work, expected, dtype, count, device, err));
  for (int i = 0; i < TWS_WORK_DIMS; ++i)
    if (work->d[i] < 0) return tws_fail(err, TWS_INVALID, NULL, "%s: size %d is negative", name, i);
  return TWS_OK;
}

tws_code tws_check_operand_size(const tws_work *work, int index, uint64_t elements, tws_error *err) {
  tws_kernel_operand expected[TWS_OPERATOR_OPERANDS];
  if (index >= tws_work_operands(work, NULL, expected))
    return TWS_OK; /* kernels check the number of elements themselves before they use them */
  const tws_kernel_operand *o = &expected[index];
  if ((double)elements >= o->elements) return TWS_OK;
  return tws_fail(err, TWS_INTERNAL, NULL, "%s: operand %d (%s) has %llu elements instead of %.0f",
                  tws_kernel_name((tws_kernel)work->code), index, o->name, (unsigned long long)elements, o->elements);
}

/* Returns 1 for the kernels of updates that are scaled by norms. */
static int has_norms(uint8_t code) {
  switch (code) {
#define TENSOR_UPDATE_RULE(id, ...) case TWS_KERNEL_##id:
#define UPDATE_RULE(...)
#include "config/optimizers.def"
    return 1;
    default:
      return 0;
  }
}

int tws_operands_supported(const tws_work *work) {
  if (work->code >= TWS_KERNEL_COUNT) return 0;
  if (work->code == TWS_KERNEL_CLIP) return 1;
  /* this kernel copies data and computes nothing */
  if (work->code == TWS_KERNEL_TRANSPOSE && work->dtype == TWS_I32) return 1;
  if (work->code == TWS_KERNEL_QUANTIZE)
    return is_computable(work->dtype) && (work->dtype2 == TWS_E4M3 || work->dtype2 == TWS_E5M2);
  const int caches = work->code == TWS_KERNEL_CACHE_WRITE || work->code == TWS_KERNEL_CACHED_ATTENTION ||
                     work->code == TWS_KERNEL_LATENT_WRITE || work->code == TWS_KERNEL_LATENT_ATTENTION;
  if (caches && work->dtype2 == TWS_E4M3) return is_computable(work->dtype);
  if (work->flags & TWS_SPLIT_WEIGHTS)
    return !has_norms(work->code) && !(work->flags & TWS_HALF_WEIGHTS) && is_computable(work->dtype) &&
           work->dtype2 == TWS_BF16;
  if (work->flags & TWS_HALF_WEIGHTS && work->dtype == TWS_F16)
    return work->dtype2 == TWS_F16 && !(work->flags & (TWS_HALF_MOMENTS | TWS_STOCHASTIC));
  if (work->flags & TWS_HALF_WEIGHTS) return work->dtype == TWS_BF16 && work->dtype2 == TWS_BF16;
  return is_computable(work->dtype) && is_computable(work->dtype2);
}
