/* Axes along which the ranks of a job are divided, and sets of them: the table of config/axes.def. */
#ifndef TWS_CONFIG_AXES_H
#define TWS_CONFIG_AXES_H

#include <stddef.h>
#include <stdint.h>

typedef enum tws_axis {
#define AXIS(id, ...) TWS_AXIS_##id,
#include "config/axes.def"
#undef AXIS
  TWS_AXIS_COUNT,
  TWS_AXIS_NONE = TWS_AXIS_COUNT
} tws_axis;

/* A set of axes: one bit each. */
typedef uint32_t tws_axes;
enum {
#define AXIS(id, ...) TWS_AXES_##id = 1u << TWS_AXIS_##id,
#include "config/axes.def"
#undef AXIS
};

/* Quantities that the ranks along an axis divide. */
typedef enum tws_divides {
  TWS_DIVIDES_LAYERS,
  TWS_DIVIDES_SAMPLES,
  TWS_DIVIDES_TOKENS,
  TWS_DIVIDES_WEIGHTS
} tws_divides;

const char *tws_axis_name(tws_axis axis);
tws_axis tws_axis_find(const char *name, size_t length); /* TWS_AXIS_NONE: no axis has that name */
tws_axis tws_axis_parent(tws_axis axis);                 /* TWS_AXIS_NONE: it is no part of another */
tws_axis tws_axis_whole(tws_axis axis);                  /* what it is a part of in the end: itself without a parent */
tws_axis tws_axis_reported(tws_axis axis);               /* under which reports count it */
tws_divides tws_axis_divides(tws_axis axis);
int tws_axis_is_ordered(tws_axis axis);          /* a job can be divided along it by its own key or by what is left */
tws_axes tws_axes_that_divide(tws_divides what); /* without parts of others */
/* Returns 1 if `axis`, or an axis that it is a part of, is in the set. */
int tws_axes_cover(tws_axes set, tws_axis axis);
/* The first of the set in the order of the table; "" of none: what a group along several axes is called. */
const char *tws_axes_name(tws_axes set);

/* The order in which the axes of a topology vary, slowest first: adjacent ranks of a node differ along the last
 * axis. */
enum {
  TWS_ORDERED_AXES = 0
#define AXIS(id, name, parent, divides, channel, report, ordered, ranks, key) +ordered
#include "config/axes.def"
#undef AXIS
};
typedef struct tws_axis_order {
  uint8_t axis[TWS_ORDERED_AXES]; /* tws_axis */
} tws_axis_order;
#define TWS_AXIS_ORDER_DEFAULT "pipe,data,sequence,model"
enum { TWS_AXIS_ORDER_TEXT = 128 }; /* more than the longest text */

/* Order number `index` of all there are, by the table's order. Returns 0 past the last. */
int tws_axis_order_nth(int index, tws_axis_order *order);
/* From a text as the default, which names each of these axes once: returns 0 otherwise. */
int tws_axis_order_parse(const char *text, tws_axis_order *order);
/* The text; returns `text`, which has TWS_AXIS_ORDER_TEXT bytes. */
const char *tws_axis_order_text(const tws_axis_order *order, char *text);

#endif
