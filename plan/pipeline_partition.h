/* Partitions layers into pipeline stages by weights or names, as DeepSpeed's partition_method does. */
#ifndef TWS_PLAN_PIPELINE_PARTITION_H
#define TWS_PLAN_PIPELINE_PARTITION_H

#include <stdint.h>
#include "base/status.h"

/* Returns the first item of part `index` (0 .. parts) if items are divided into consecutive parts of equal size; the
 * first items % parts parts have one more. With fewer items than parts the last parts are empty. (DeepSpeed:
 * partition_uniform) */
static inline int64_t tws_partition_uniform(int64_t items, int64_t parts, int64_t index) {
  int64_t left = items % parts;
  return index * (items / parts) + (index < left ? index : left);
}

/* Divides `count` weights into consecutive parts; part i is [bounds[i], bounds[i + 1]), bounds has parts + 1 entries.
 * With no more items than parts the weights do not matter (one item each). Otherwise dynamic programming on the spread
 * (largest less smallest sum of a part), which keeps one solution per state and so may miss the optimum; among equal
 * solutions the one with the last boundary is chosen. Time count^2 x parts. (DeepSpeed: partition_balanced) TWS_INVALID
 * for negative weights or sums beyond 63 bits; TWS_MEMORY. */
tws_code tws_partition_balanced(const int64_t *weights, int count, int parts, int *bounds, tws_error *err);

typedef struct tws_pipeline_layer {
  const char *type; /* name that "type:" matches; NULL: none */
  int64_t params;   /* trainable elements */
} tws_pipeline_layer;

/* Methods, in any case:
 *   uniform      equal numbers of layers
 *   parameters   balanced by trainable parameters; also when method is NULL
 *   type:REGEX   balanced by the number of layers whose type contains a match of the POSIX extended regular expression,
 *                which is the text between the first and the second colon, in lower case; matches ignore case
 * TWS_INVALID: no match, bad expression, unknown method. TWS_UNSUPPORTED: profile. Parts may be empty when there are
 * fewer layers than parts, and have no matching layer when there are fewer matches than parts. */
tws_code tws_pipeline_partition(const char *method, const tws_pipeline_layer *layers, int count, int parts, int *bounds,
                                tws_error *err);

#endif
