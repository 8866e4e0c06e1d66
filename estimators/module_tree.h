/* Builds the tree of a network's modules by their dotted names, with sums from the leaves up. */
#ifndef TWS_ESTIMATORS_MODULE_TREE_H
#define TWS_ESTIMATORS_MODULE_TREE_H

#include "base/memory.h"
#include "plan/plan.h"

enum { TWS_NO_STAGE = -1, TWS_SEVERAL_STAGES = -2 };

typedef struct tws_module_node {
  const char *path, *name, *type; /* "transformer.h.0", "0", "GPT2Block" */
  int depth, parent;              /* root: depth 0, parent -1 */
  int stage; /* index of the pipeline stage that runs the module, or TWS_NO_STAGE, TWS_SEVERAL_STAGES */
  /* number of elements of the module's own parameters; after tws_module_tree_sum() also of its children's, tied
   * parameters counted once */
  int64_t params;
  int64_t held; /* number of these elements that the GPU running the module holds before ZeRO partitions them */
  double flops, macs, seconds;       /* FLOPs, multiply-adds and seconds of the forward pass on that GPU */
  double backward_flops, backward_s; /* FLOPs and seconds of the backward pass, recomputation included */
} tws_module_node;

typedef struct tws_module_tree {
  tws_arena *arena;
  tws_module_node *nodes; /* in the order of the forward pass, parents before children */
  int count, depth;       /* number of nodes; depth of the deepest node */
  int *of_module;         /* per module of the network: index of its node */
} tws_module_tree;

enum { TWS_MAX_CLASSES = 32 };
typedef struct tws_module_class {
  const char *name;
  int64_t held;
  double macs, seconds;
} tws_module_class;

/* Creates a tree without sums. slices: the rows and columns of each parameter with which the rank of a plan computes;
 * NULL: whole parameters. */
tws_code tws_module_tree_create(const tws_network *network, const tws_param_slice *slices, tws_module_tree **out,
                                tws_error *err);
void tws_module_tree_destroy(tws_module_tree *tree);
void tws_module_tree_add(tws_module_tree *tree, uint32_t module, int stage, double flops, double macs, double seconds);
void tws_module_tree_add_backward(tws_module_tree *tree, uint32_t module, double flops, double seconds);
void tws_module_tree_sum(tws_module_tree *tree);
/* Sums the modules at a depth by class into `classes`, and returns the number of classes. */
int tws_module_tree_classes(const tws_module_tree *tree, int depth, tws_module_class *classes);
/* kind: sort key, 0 parameters, 1 MACs, 2 time */
void tws_module_classes_sort(tws_module_class *classes, int count, int kind);

#endif
