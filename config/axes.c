#include "config/axes.h"

#include <stdio.h>
#include <string.h>

static const struct {
  const char *name;
  tws_axis parent, reported;
  tws_divides divides;
  int ordered;
} table[TWS_AXIS_COUNT] = {
#define AXIS(id, name, parent, divides, channel, report, ordered, ranks, key) \
  [TWS_AXIS_##id] = {name, TWS_AXIS_##parent, TWS_AXIS_##report, TWS_DIVIDES_##divides, ordered},
#include "config/axes.def"
#undef AXIS
};

const char *tws_axis_name(tws_axis axis) {
  return table[axis].name;
}

tws_axis tws_axis_find(const char *name, size_t length) {
  tws_axis axis = 0;
  while (axis < TWS_AXIS_COUNT && (strlen(table[axis].name) != length || memcmp(table[axis].name, name, length) != 0))
    axis++;
  return axis;
}

tws_axis tws_axis_parent(tws_axis axis) {
  return table[axis].parent;
}

tws_axis tws_axis_whole(tws_axis axis) {
  while (table[axis].parent != TWS_AXIS_NONE) axis = table[axis].parent;
  return axis;
}

tws_axis tws_axis_reported(tws_axis axis) {
  return table[axis].reported;
}

tws_divides tws_axis_divides(tws_axis axis) {
  return table[axis].divides;
}

int tws_axis_is_ordered(tws_axis axis) {
  return table[axis].ordered;
}

tws_axes tws_axes_that_divide(tws_divides what) {
  tws_axes set = 0;
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++)
    if (table[axis].divides == what && table[axis].parent == TWS_AXIS_NONE) set |= 1u << axis;
  return set;
}

int tws_axes_cover(tws_axes set, tws_axis axis) {
  for (; axis != TWS_AXIS_NONE; axis = table[axis].parent)
    if (set >> axis & 1) return 1;
  return 0;
}

const char *tws_axes_name(tws_axes set) {
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++)
    if (set >> axis & 1) return table[axis].name;
  return "";
}

int tws_axis_order_nth(int index, tws_axis_order *order) {
  uint8_t left[TWS_ORDERED_AXES];
  int count = 0, orders = 1;
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++)
    if (table[axis].ordered) left[count++] = (uint8_t)axis;
  for (int i = 2; i <= count; i++) orders *= i;
  if (index < 0 || index >= orders) return 0;
  for (int i = 0; count > 0; i++, count--) {
    orders /= count; /* number of orders that have the same first axes */
    const int next = index / orders;
    order->axis[i] = left[next];
    memmove(left + next, left + next + 1, (size_t)(count - next - 1));
    index %= orders;
  }
  return 1;
}

int tws_axis_order_parse(const char *text, tws_axis_order *order) {
  tws_axes seen = 0;
  int count = 0;
  while (text) {
    const size_t length = strcspn(text, ",");
    const tws_axis axis = tws_axis_find(text, length);
    if (axis == TWS_AXIS_NONE || !table[axis].ordered || seen >> axis & 1) return 0;
    seen |= 1u << axis;
    order->axis[count++] = (uint8_t)axis;
    text = text[length] ? text + length + 1 : NULL;
  }
  return count == TWS_ORDERED_AXES;
}

const char *tws_axis_order_text(const tws_axis_order *order, char *text) {
  size_t used = 0;
  text[0] = '\0';
  for (int i = 0; i < TWS_ORDERED_AXES; i++)
    used += (size_t)snprintf(text + used, TWS_AXIS_ORDER_TEXT - used, "%s%s", i ? "," : "", table[order->axis[i]].name);
  return text;
}
