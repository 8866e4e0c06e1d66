/* Computes the windows over pictures that convolutions and pooling read. Kernels of hosts and of devices include this
 * file. A picture has height x width rows, one for each pixel, with its channels as columns. */
#ifndef TWS_MODELS_WINDOWS_H
#define TWS_MODELS_WINDOWS_H

#include "base/philox.h"
#include "models/kernel.h"

typedef struct tws_windows {
  int64_t samples, height, width, in, out, groups; /* in, out: channels (equal for pooling, with one group) */
  int64_t rows, columns;                           /* height and width of a window in pixels */
  int64_t stride, padding;
  int64_t out_height, out_width; /* number of windows of a picture, vertically and horizontally */
} tws_windows;

/* Convolutions as matrix products process a few pictures at a time, so that their patches fit into the workspace. A
 * patch has the input numbers of one window, [side][side][in]; it is a row of the matrix that is multiplied by the
 * weights. */
typedef struct tws_patches {
  int64_t samples; /* number of pictures at a time */
  int64_t width;   /* elements of a patch */
  int direct;      /* 1: no patches are built, because x has this form already or there are several groups */
} tws_patches;

#ifdef __cplusplus
extern "C" {
#endif
int tws_is_convolution(const tws_work *work);
/* Returns the windows of a convolution or of pooling. */
tws_windows tws_windows_of(const tws_work *work);
tws_patches tws_patches_of(const tws_work *work, tws_backend_kind backend);
/* Returns the bytes of a convolution's workspace. The workspace contains the patches (float32 for the gradient of the
 * input). For the gradient of the weights, float32 sums of weights and biases follow if the gradient has 16 bits and is
 * accumulated over several sets of patches. With several groups it contains float32 weights, of which a device needs
 * TWS_CONVOLUTION_PARTS copies for the gradient of the weights. */
size_t tws_convolution_workspace(const tws_work *work, tws_backend_kind backend);
/* Returns the offset in bytes of the float32 sums or weights in a convolution's workspace: the size of the patches. */
size_t tws_convolution_patch_bytes(const tws_work *work, tws_backend_kind backend);
#ifdef __cplusplus
}
#endif
enum { TWS_CONVOLUTION_PARTS = 32 };

static inline int64_t tws_windows_weights(const tws_windows *w) {
  return w->out * w->rows * w->columns * (w->in / w->groups);
}

/* Computes, along one side, the range [*first, *end) of windows that see pixel `at`; a window has `pixels` pixels. */
TWS_HOST_AND_DEVICE static inline void tws_windows_over(int64_t at, int64_t pixels, int64_t stride, int64_t padding,
                                                        int64_t count, int64_t *first, int64_t *end) {
  const int64_t last = (at + padding) / stride, before = at + padding - pixels; /* before: > 0: windows end before it */
  *first = before < 0 ? 0 : before / stride + 1;
  *end = last + 1 < count ? last + 1 : count;
}

#endif
