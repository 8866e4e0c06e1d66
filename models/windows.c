#include "models/windows.h"

/* Largest number of bytes of patches: if those of all pictures take more, patches are built for a few pictures at a
 * time. A processor's caches hold this many bytes until the product reads them; on a device, products of this size are
 * fast. */
static const int64_t most_bytes[] = {[TWS_BACKEND_HOST] = 4 << 20, [TWS_BACKEND_CUDA] = 128 << 20};

int tws_is_convolution(const tws_work *work) {
  return work->kind == 0 && (work->code == TWS_KERNEL_CONVOLUTION || work->code == TWS_KERNEL_CONVOLUTION_GRAD_INPUT ||
                             work->code == TWS_KERNEL_CONVOLUTION_GRAD_WEIGHT);
}

static int64_t count_windows(int64_t extent, int64_t pixels, int64_t stride, int64_t padding) {
  const int64_t room = extent + 2 * padding - pixels;
  return room < 0 ? 0 : room / stride + 1;
}

static int64_t at_least_one(int64_t value) {
  return value > 0 ? value : 1;
}

tws_windows tws_windows_of(const tws_work *work) {
  const int64_t *d = work->d;
  tws_windows w = {.samples = d[0], .height = d[1], .width = d[2], .in = d[3], .padding = (int64_t)work->f[0]};
  if (tws_is_convolution(work)) {
    w.out = d[4];
    w.rows = w.columns = at_least_one(d[5]);
    w.stride = at_least_one(d[6]);
    w.groups = at_least_one(d[7]);
  } else {
    w.out = w.in;
    w.groups = 1;
    w.rows = d[4] > 0 ? d[4] : w.height;
    w.columns = d[4] > 0 ? d[4] : w.width;
    w.stride = at_least_one(d[5]);
    if (d[4] <= 0) w.padding = 0;
  }
  w.out_height = count_windows(w.height, w.rows, w.stride, w.padding);
  w.out_width = count_windows(w.width, w.columns, w.stride, w.padding);
  return w;
}

static int64_t sample_bytes(const tws_work *work, const tws_windows *w) {
  const int64_t element = work->code == TWS_KERNEL_CONVOLUTION_GRAD_INPUT
                              ? (int64_t)sizeof(float)
                              : (int64_t)tws_dtype_bytes((tws_dtype)work->dtype);
  return w->out_height * w->out_width * w->rows * w->columns * w->in * element;
}

tws_patches tws_patches_of(const tws_work *work, tws_backend_kind backend) {
  const tws_windows w = tws_windows_of(work);
  tws_patches p = {.width = w.rows * w.columns * w.in};
  p.direct = w.groups > 1 || (p.width == w.in && w.stride == 1 && w.padding == 0);
  p.samples = at_least_one(most_bytes[backend] / at_least_one(sample_bytes(work, &w)));
  if (p.direct || p.samples > w.samples) p.samples = w.samples;
  return p;
}

size_t tws_convolution_patch_bytes(const tws_work *work, tws_backend_kind backend) {
  const tws_windows w = tws_windows_of(work);
  const tws_patches p = tws_patches_of(work, backend);
  const int64_t line = 256, bytes = p.direct ? 0 : p.samples * sample_bytes(work, &w);
  return (size_t)((bytes + line - 1) / line * line);
}

size_t tws_convolution_workspace(const tws_work *work, tws_backend_kind backend) {
  const tws_windows w = tws_windows_of(work);
  const tws_patches p = tws_patches_of(work, backend);
  const int is_weight = work->code == TWS_KERNEL_CONVOLUTION_GRAD_WEIGHT;
  int64_t floats = 1; /* at least one element, because operands must not be empty */
  if (w.groups > 1)
    floats = tws_windows_weights(&w) * (is_weight && backend == TWS_BACKEND_CUDA ? TWS_CONVOLUTION_PARTS : 1);
  else if (is_weight && work->dtype2 != TWS_F32 && p.samples < w.samples)
    floats = tws_windows_weights(&w) + w.out;
  return tws_convolution_patch_bytes(work, backend) + (size_t)at_least_one(floats) * sizeof(float);
}
