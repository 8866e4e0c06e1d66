#include "estimators/module_tree.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct builder {
  tws_module_tree *tree;
  const tws_network *network;
  size_t capacity;
} builder;

/* Returns the class name of a container, as in Transformers or DeepSpeed's models. */
static const char *container_type(builder *b, const char *name, int depth) {
  static const struct {
    const char *name, *class;
  } rows[] = {{"transformer", "Model"}, {"model", "Model"},         {"h", NULL},   {"layers", NULL},
              {"attn", "Attention"},    {"self_attn", "Attention"}, {"mlp", "MLP"}};
  const tws_network *network = b->network;
  const char *prefix = network->class_prefix ? network->class_prefix : "";
  if (depth == 0) return network->class_name ? network->class_name : "Model";
  if (isdigit((unsigned char)name[0]) && network->class_block && !*network->class_block) return "Module";
  if (isdigit((unsigned char)name[0]))
    return tws_arena_printf(b->tree->arena, "%s%s", prefix, network->class_block ? network->class_block : "Block");
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    if (strcmp(rows[i].name, name) == 0)
      return rows[i].class ? tws_arena_printf(b->tree->arena, "%s%s", prefix, rows[i].class) : "ModuleList";
  return "Module";
}

/* Returns the index of the child `name` of `parent`, which it adds if there is none; -1: out of memory. The search
 * begins with the last child, since modules come in forward order. */
static int child_named(builder *b, int parent, const char *name, size_t length, const char *path) {
  tws_module_tree *tree = b->tree;
  for (int i = tree->count - 1; i > parent; i--)
    if (tree->nodes[i].parent == parent && strlen(tree->nodes[i].name) == length &&
        strncmp(tree->nodes[i].name, name, length) == 0)
      return i;
  if (tws_reserve(&tree->nodes, &b->capacity, (size_t)tree->count + 1, sizeof *tree->nodes) != 0) return -1;
  tws_module_node node = {
      .parent = parent, .stage = TWS_NO_STAGE, .depth = parent < 0 ? 0 : tree->nodes[parent].depth + 1};
  node.name = tws_arena_printf(tree->arena, "%.*s", (int)length, name);
  node.path = tws_arena_printf(tree->arena, "%.*s", (int)(name + length - path), path);
  if (!node.name || !node.path) return -1;
  node.type = container_type(b, node.name, node.depth);
  if (!node.type) return -1;
  if (node.depth > tree->depth) tree->depth = node.depth;
  tree->nodes[tree->count] = node;
  return tree->count++;
}

static int add_module(builder *b, uint32_t index) {
  const char *path = b->network->modules[index].name;
  int node = 0;
  for (const char *part = path; node >= 0;) {
    size_t length = strcspn(part, ".");
    node = child_named(b, node, part, length, path);
    if (!part[length]) break;
    part += length + 1;
  }
  if (node < 0) return -1;
  /* The attention kernel has the name of the block around it. The block's type says more than the kernel's own, so it
   * is kept. */
  tws_module_node *leaf = &b->tree->nodes[node];
  if (strcmp(leaf->type, "Module") == 0) leaf->type = tws_module_name(&b->network->modules[index]);
  return b->tree->of_module[index] = node;
}

static int64_t slice_elements(const tws_param_slice *slice) {
  return tws_param_slice_rows(slice) * slice->columns;
}

tws_code tws_module_tree_create(const tws_network *network, const tws_param_slice *slices, tws_module_tree **out,
                                tws_error *err) {
  tws_module_tree *tree = tws_calloc(1, sizeof *tree);
  int ok = tree != NULL;
  if (ok) tree->arena = tws_arena_create();
  ok = ok && tree->arena;
  if (ok) tree->of_module = tws_arena_alloc(tree->arena, network->module_count, sizeof(int));
  builder b = {tree, network, 0};
  ok = ok && tree->of_module && child_named(&b, -1, "", 0, "") == 0;
  for (uint32_t i = 0; ok && i < network->module_count; i++) ok = add_module(&b, i) >= 0;
  for (uint32_t i = 0; ok && i < network->param_count; i++) {
    tws_module_node *node = &tree->nodes[tree->of_module[network->params[i].module]];
    int64_t whole = tws_param_numel(&network->params[i]);
    node->params += whole;
    node->held += slices ? slice_elements(&slices[i]) : whole;
  }
  if (!ok) {
    tws_module_tree_destroy(tree);
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  }
  *out = tree;
  return TWS_OK;
}

void tws_module_tree_destroy(tws_module_tree *tree) {
  if (!tree) return;
  tws_free(tree->nodes);
  tws_arena_destroy(tree->arena);
  tws_free(tree);
}

static int join_stages(int a, int b) {
  if (a == TWS_NO_STAGE || a == b) return b;
  return b == TWS_NO_STAGE ? a : TWS_SEVERAL_STAGES;
}

void tws_module_tree_add(tws_module_tree *tree, uint32_t module, int stage, double flops, double macs, double seconds) {
  tws_module_node *node = &tree->nodes[tree->of_module[module]];
  node->stage = join_stages(node->stage, stage);
  node->flops += flops;
  node->macs += macs;
  node->seconds += seconds;
}

void tws_module_tree_add_backward(tws_module_tree *tree, uint32_t module, double flops, double seconds) {
  tws_module_node *node = &tree->nodes[tree->of_module[module]];
  node->backward_flops += flops;
  node->backward_s += seconds;
}

void tws_module_tree_sum(tws_module_tree *tree) {
  for (int i = tree->count - 1; i > 0; i--) { /* children come after their parents */
    tws_module_node *node = &tree->nodes[i], *parent = &tree->nodes[node->parent];
    parent->stage = join_stages(parent->stage, node->stage);
    parent->params += node->params;
    parent->held += node->held;
    parent->flops += node->flops;
    parent->macs += node->macs;
    parent->seconds += node->seconds;
    parent->backward_flops += node->backward_flops;
    parent->backward_s += node->backward_s;
  }
}

int tws_module_tree_classes(const tws_module_tree *tree, int depth, tws_module_class *classes) {
  int count = 0;
  for (int i = 0; i < tree->count; i++) {
    const tws_module_node *node = &tree->nodes[i];
    if (node->depth != depth) continue;
    int at = 0;
    while (at < count && strcmp(classes[at].name, node->type) != 0) at++;
    if (at == count) {
      if (count == TWS_MAX_CLASSES) continue;
      classes[count++] = (tws_module_class){.name = node->type};
    }
    classes[at].held += node->held;
    classes[at].macs += node->macs;
    classes[at].seconds += node->seconds;
  }
  return count;
}

static double sort_key(const tws_module_class *c, int kind) {
  return kind == 0 ? (double)c->held : kind == 1 ? c->macs : c->seconds;
}

void tws_module_classes_sort(tws_module_class *classes, int count, int kind) {
  for (int i = 1; i < count; i++) /* insertion sort keeps the order of the model among equal ones */
    for (int k = i; k > 0 && sort_key(&classes[k], kind) > sort_key(&classes[k - 1], kind); k--) {
      tws_module_class swap = classes[k];
      classes[k] = classes[k - 1];
      classes[k - 1] = swap;
    }
}
