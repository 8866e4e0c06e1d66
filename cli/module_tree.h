/* The tree of a network's modules by their dotted names, with sums from the leaves up. */
#ifndef TWS_CLI_MODULE_TREE_H
#define TWS_CLI_MODULE_TREE_H

#include "base/memory.h"
#include "models/network/network.h"

typedef struct tws_module_node {
  const char *path, *name, *type; /* "transformer.h.0", "0", "GPT2Block" */
  int depth, parent;              /* root: depth 0, parent -1 */
  int64_t params;                 /* own; after tws_module_tree_sum(): with those below; tied ones once */
  double flops, macs, seconds;    /* forward */
} tws_module_node;

typedef struct tws_module_tree {
  tws_arena *arena;
  tws_module_node *nodes; /* in forward order, parents first */
  int count, depth;       /* depth: of the deepest node */
  int *of_module;         /* node of each network module */
} tws_module_tree;

enum { TWS_MAX_CLASSES = 32 };
typedef struct tws_module_class {
  const char *name;
  int64_t params;
  double macs, seconds;
} tws_module_class;

tws_code tws_module_tree_create(const tws_network *network, tws_module_tree **out, tws_error *err);
void tws_module_tree_destroy(tws_module_tree *tree);
void tws_module_tree_add(tws_module_tree *tree, uint32_t module, double flops, double macs, double seconds);
void tws_module_tree_sum(tws_module_tree *tree);
/* Sums by class at a depth; returns how many. */
int tws_module_tree_classes(const tws_module_tree *tree, int depth, tws_module_class *classes);
void tws_module_classes_sort(tws_module_class *classes, int count, int kind); /* 0 params, 1 MACs, 2 time */

#endif
