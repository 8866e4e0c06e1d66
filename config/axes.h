/* Defines the axes along which the ranks of a job are divided, and sets of such axes, from config/axes.def. */
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

/* A set of axes; axis i is in the set if bit i is set. */
typedef uint32_t tws_axes;
enum {
#define AXIS(id, ...) TWS_AXES_##id = 1u << TWS_AXIS_##id,
#include "config/axes.def"
#undef AXIS
};

/* The quantity that the ranks along an axis divide among them. */
typedef enum tws_divides {
  TWS_DIVIDES_LAYERS,
  TWS_DIVIDES_SAMPLES,
  TWS_DIVIDES_TOKENS,
  TWS_DIVIDES_WEIGHTS
} tws_divides;

const char *tws_axis_name(tws_axis axis);
tws_axis tws_axis_find(const char *name, size_t length); /* returns TWS_AXIS_NONE if no axis has this name */
tws_axis tws_axis_parent(tws_axis axis);                 /* returns TWS_AXIS_NONE if it is not a sub-axis */
tws_axis tws_axis_whole(tws_axis axis);                  /* returns the outermost parent axis, or the axis itself */
tws_axis tws_axis_reported(tws_axis axis);               /* returns the axis under which reports count its time */
tws_divides tws_axis_divides(tws_axis axis);
int tws_axis_is_ordered(tws_axis axis);          /* returns 1 if the axis can appear in twinspeed.axis_order */
tws_axes tws_axes_that_divide(tws_divides what); /* returns the axes that divide it, without sub-axes */
/* Returns 1 if `axis`, or one of its parent axes, is in the set. */
int tws_axes_cover(tws_axes set, tws_axis axis);
/* Returns the name of the set's first axis in the order of the table, which names a group along several axes; "" for
 * the empty set. */
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
  uint8_t axis[TWS_ORDERED_AXES]; /* values of tws_axis, slowest first */
} tws_axis_order;
#define TWS_AXIS_ORDER_DEFAULT "pipe,data,sequence,model"
enum { TWS_AXIS_ORDER_TEXT = 128 }; /* bytes; more than the longest text of an order has */

/* Sets *order to number `index` of all possible orders, sorted by the table's order. Returns 1, or 0 if there is no
 * such order. */
int tws_axis_order_nth(int index, tws_axis_order *order);
/* Parses a text like the default "pipe,data,sequence,model", in which each ordered axis must occur exactly once.
 * Returns 1, or 0 if the text is no such order. */
int tws_axis_order_parse(const char *text, tws_axis_order *order);
/* Writes the order as text, such as "pipe,data,sequence,model", into `text`, which has TWS_AXIS_ORDER_TEXT bytes, and
 * returns `text`. */
const char *tws_axis_order_text(const tws_axis_order *order, char *text);

#endif
