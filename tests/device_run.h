/* Runs one kernel on a backend with memory of its own: copies the operands there between guard zones, runs the kernel,
 * and copies them back. Addresses keep their remainder modulo 256 bytes, and operands at one address stay at one
 * address. */
#ifndef TWS_TESTS_DEVICE_RUN_H
#define TWS_TESTS_DEVICE_RUN_H

#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "real/real.h"
#include "tests/kernel_operands.h"

enum { DEVICE_GUARD = 256, DEVICE_PATTERN = 0xA5 };

typedef struct device_place {
  size_t offset[KERNEL_MAX_OPERANDS], bytes[KERNEL_MAX_OPERANDS], total;
} device_place;

static inline device_place device_places(const operand_info *info, int count, void *const *data) {
  device_place p = {.total = 0};
  for (int k = 0; k < count; ++k) {
    p.bytes[k] = (size_t)info[k].count * tws_dtype_bytes(info[k].dtype);
    int same = 0;
    while (same < k && data[same] != data[k]) ++same;
    if (same < k) {
      p.offset[k] = p.offset[same];
      continue;
    }
    p.offset[k] = p.total + DEVICE_GUARD + (size_t)((uintptr_t)data[k] % 256);
    p.total = (p.offset[k] + p.bytes[k] + DEVICE_GUARD + 255) / 256 * 256;
  }
  return p;
}

/* Runs a kernel on copies of the operands. Returns TWS_INTERNAL when the kernel wrote outside its operands. */
static inline tws_code device_run(const tws_backend_ops *ops, tws_backend *backend, const tws_work *w,
                                  const tws_arguments *a, const operand_info *info, void *const *data,
                                  const tws_dtype *types, int count, tws_error *err) {
  const device_place p = device_places(info, count, data);
  unsigned char *stage = malloc(p.total + 1), *owner = calloc(p.total + 1, 1);
  void *base = NULL, *address[KERNEL_MAX_OPERANDS];
  memset(stage, DEVICE_PATTERN, p.total);
  for (int k = 0; k < count; ++k) {
    memcpy(stage + p.offset[k], data[k], p.bytes[k]);
    memset(owner + p.offset[k], 1, p.bytes[k]);
  }
  tws_code code = ops->allocate(backend, TWS_TIER_DEVICE, p.total, &base, err);
  for (int k = 0; k < count && base; ++k) address[k] = (char *)base + p.offset[k];
  if (code == TWS_OK) code = ops->copy(backend, base, stage, p.total, TWS_STREAM_COMPUTE, err);
  if (code == TWS_OK) code = ops->run(backend, w, a, address, types, count, TWS_STREAM_COMPUTE, err);
  if (code == TWS_OK) code = ops->copy(backend, stage, base, p.total, TWS_STREAM_COMPUTE, err);
  if (code == TWS_OK) code = ops->synchronize(backend, err);
  if (base) ops->release(backend, TWS_TIER_DEVICE, base);
  for (size_t i = 0; i < p.total && code == TWS_OK; ++i)
    if (!owner[i] && stage[i] != DEVICE_PATTERN)
      code = tws_fail(err, TWS_INTERNAL, NULL, "a write outside the operands, at byte %zu of %zu", i, p.total);
  for (int k = 0; k < count && code == TWS_OK; ++k) memcpy(data[k], stage + p.offset[k], p.bytes[k]);
  free(stage);
  free(owner);
  return code;
}

#endif
