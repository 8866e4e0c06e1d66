/* Computes the nodes of an ONNX graph that depend on constants alone; private to models/network. */
#ifndef TWS_MODELS_NETWORK_ONNX_FOLD_H
#define TWS_MODELS_NETWORK_ONNX_FOLD_H

#include "models/network/onnx_file.h"

typedef struct tws_onnx_folder {
  tws_arena *arena; /* has the results */
  const char *path; /* for messages */
  int64_t left;     /* number of elements that results may have in all from now on */
  int failed;       /* 1: memory is exhausted */
} tws_onnx_folder;

/* Returns 1 if nodes of this operator can be computed. */
int tws_onnx_folds(const char *op);
/* Computes the outputs of a node from its inputs, of which absent ones are NULL: out[i] for i < n->outs. Fails with
 * TWS_INVALID for shapes that do not fit, with TWS_UNSUPPORTED for an attribute that is not implemented and for results
 * that are too large. */
tws_code tws_onnx_fold(tws_onnx_folder *f, const tws_onnx_node *n, const tws_onnx_tensor *const *in,
                       const tws_onnx_tensor **out, tws_error *err);
/* Computes the shape of the result of Reshape, Flatten, Squeeze or Unsqueeze of a tensor with this shape. `second`: the
 * node's second input, or NULL. Fails if the number of elements would change. */
tws_code tws_onnx_reshaped(const tws_onnx_folder *f, const tws_onnx_node *n, int dims, const int64_t *shape,
                           const tws_onnx_tensor *second, int *new_dims, int64_t *new_shape, tws_error *err);
/* Adds a tensor of integers with this shape to the folder's arena, and returns its elements; NULL: it is too large, or
 * memory is exhausted. */
int64_t *tws_onnx_new_integers(tws_onnx_folder *f, int dims, const int64_t *shape, tws_onnx_tensor **out);
/* Returns axis counted from the front, or -1 if a tensor of `dims` dimensions does not have it. */
int tws_onnx_axis(int64_t axis, int dims);
/* Returns element i as a number. */
double tws_onnx_element(const tws_onnx_tensor *t, int64_t i);

#endif
