/* Windows over pictures, which convolutions and pooling have in common: for hosts and devices alike. A picture is
 * height x width rows, one for each pixel, of its channels. */
#ifndef TWS_MODELS_WINDOWS_H
#define TWS_MODELS_WINDOWS_H

#include "base/philox.h"
#include "models/kernel.h"

typedef struct tws_windows {
  int64_t samples, height, width, in, out, groups; /* channels; pooling: as many out as in, in one group */
  int64_t rows, columns;                           /* pixels of a window */
  int64_t stride, padding;
  int64_t out_height, out_width; /* windows of a picture */
} tws_windows;

/* Work with matrices is done for some pictures after the other, so that their patches fit the workspace: for each
 * window the numbers that it sees, [side][side][in], a row of the product with the weights. */
typedef struct tws_patches {
  int64_t samples; /* at a time */
  int64_t width;   /* of a patch */
  int direct;      /* without patches: x is one matrix already, or there are groups */
} tws_patches;

#ifdef __cplusplus
extern "C" {
#endif
int tws_is_convolution(const tws_work *work);
/* Returns the windows of a convolution or of pooling. */
tws_windows tws_windows_of(const tws_work *work);
tws_patches tws_patches_of(const tws_work *work, tws_backend_kind backend);
/* Returns bytes: patches (float32 for the gradient of the input); after those of the gradient of the weights float32
 * sums of weights and biases, where the gradient has 16 bits and is added up over several patches; with groups float32
 * weights, or on a device TWS_CONVOLUTION_PARTS of them for the gradient of the weights. */
size_t tws_convolution_workspace(const tws_work *work, tws_backend_kind backend);
/* Where those sums begin. */
size_t tws_convolution_patch_bytes(const tws_work *work, tws_backend_kind backend);
#ifdef __cplusplus
}
#endif
enum { TWS_CONVOLUTION_PARTS = 32 };

static inline int64_t tws_windows_weights(const tws_windows *w) {
  return w->out * w->rows * w->columns * (w->in / w->groups);
}

/* Along one side the first and the end of the windows that see pixel `at`, of `extent` pixels. */
TWS_HOST_AND_DEVICE static inline void tws_windows_over(int64_t at, int64_t pixels, int64_t stride, int64_t padding,
                                                        int64_t count, int64_t *first, int64_t *end) {
  const int64_t last = (at + padding) / stride, before = at + padding - pixels; /* the last one that ends before it */
  *first = before < 0 ? 0 : before / stride + 1;
  *end = last + 1 < count ? last + 1 : count;
}

#endif
