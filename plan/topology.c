#include "plan/topology.h"

#include <stdio.h>
#include <string.h>

static tws_code check_axis(const tws_topology *topology, tws_axis axis, int dim, tws_error *err) {
  if (dim < 1) return tws_fail(err, TWS_INVALID, NULL, "axis '%s' has dimension %d", tws_axis_name(axis), dim);
  for (int i = 0; i < topology->axes; i++) {
    const tws_axis other = topology->axis[i];
    if (other == axis) return tws_fail(err, TWS_INVALID, NULL, "axis '%s' is named twice", tws_axis_name(axis));
    if (tws_axes_cover(1u << other, axis) || tws_axes_cover(1u << axis, other))
      return tws_fail(err, TWS_INVALID, "give all of its parts, or the axis itself",
                      "axes '%s' and '%s': one is a part of the other", tws_axis_name(other), tws_axis_name(axis));
  }
  return TWS_OK;
}

tws_code tws_topology_make(tws_topology *topology, int axes, const tws_axis *axis, const int *dims, tws_error *err) {
  memset(topology, 0, sizeof *topology);
  if (axes < 1 || axes > TWS_MAX_AXES) {
    return tws_fail(err, TWS_INVALID, NULL, "a topology has 1 to %d axes, not %d", TWS_MAX_AXES, axes);
  }
  int64_t world = 1;
  for (int i = 0; i < axes; i++) {
    TWS_TRY(check_axis(topology, axis[i], dims[i], err));
    world *= dims[i];
    if (world > INT32_MAX) return tws_fail(err, TWS_INVALID, NULL, "the topology has more than 2^31 ranks");
    topology->axis[i] = axis[i];
    topology->dim[i] = dims[i];
    topology->axes = i + 1;
  }
  return TWS_OK;
}

int tws_topology_world(const tws_topology *topology) {
  int world = 1;
  for (int i = 0; i < topology->axes; i++) world *= topology->dim[i];
  return world;
}

int tws_topology_rank(const tws_topology *topology, const int *coordinates) {
  int rank = 0;
  for (int i = 0; i < topology->axes; i++) {
    if (coordinates[i] < 0 || coordinates[i] >= topology->dim[i]) return -1;
    rank = rank * topology->dim[i] + coordinates[i];
  }
  return rank;
}

void tws_topology_coordinates(const tws_topology *topology, int rank, int *coordinates) {
  for (int i = topology->axes - 1; i >= 0; i--) {
    coordinates[i] = rank % topology->dim[i];
    rank /= topology->dim[i];
  }
}

/* ---- groups ---- */

/* Writes the indices of the topology's axes that a set covers, beginning with the one that varies slowest, and returns
 * their number. */
static int covered(const tws_topology *topology, tws_axes set, int at[TWS_MAX_AXES]) {
  int count = 0;
  for (int i = 0; i < topology->axes; i++) {
    if (!tws_axes_cover(set, topology->axis[i])) continue;
    int k = count++;
    for (; k > 0 && tws_axis_whole(topology->axis[at[k - 1]]) > tws_axis_whole(topology->axis[i]); k--)
      at[k] = at[k - 1];
    at[k] = i;
  }
  return count;
}

int tws_topology_size(const tws_topology *topology, tws_axes set) {
  int size = 1;
  for (int i = 0; i < topology->axes; i++)
    if (tws_axes_cover(set, topology->axis[i])) size *= topology->dim[i];
  return size;
}

int tws_topology_index(const tws_topology *topology, int rank, tws_axes set) {
  int coordinates[TWS_MAX_AXES], at[TWS_MAX_AXES], index = 0;
  const int count = covered(topology, set, at);
  tws_topology_coordinates(topology, rank, coordinates);
  for (int i = 0; i < count; i++) index = index * topology->dim[at[i]] + coordinates[at[i]];
  return index;
}

int tws_topology_member(const tws_topology *topology, int rank, tws_axes set, int index) {
  int coordinates[TWS_MAX_AXES], at[TWS_MAX_AXES];
  const int count = covered(topology, set, at);
  tws_topology_coordinates(topology, rank, coordinates);
  for (int i = count; i-- > 0; index /= topology->dim[at[i]]) coordinates[at[i]] = index % topology->dim[at[i]];
  return tws_topology_rank(topology, coordinates);
}

int tws_topology_group(const tws_topology *topology, int rank, tws_axes set, int *ranks) {
  const int size = tws_topology_size(topology, set);
  for (int i = 0; i < size; i++) ranks[i] = tws_topology_member(topology, rank, set, i);
  return size;
}

tws_axes tws_topology_partitions(const tws_topology *topology) {
  const tws_axes samples = tws_axes_that_divide(TWS_DIVIDES_SAMPLES);
  return tws_axes_that_divide(TWS_DIVIDES_TOKENS) |
         (tws_topology_size(topology, TWS_AXES_DATA_COPIES) > 1 ? TWS_AXES_DATA_SHARDS : samples);
}

const char *tws_topology_repr(const tws_topology *topology, int rank, tws_axes omit, char *buffer, int size) {
  int coordinates[TWS_MAX_AXES], length = 0;
  tws_topology_coordinates(topology, rank, coordinates);
  buffer[0] = 0;
  for (int i = 0; i < topology->axes; i++) {
    if (tws_axes_cover(omit, topology->axis[i]) || length >= size) continue;
    length += snprintf(buffer + length, (size_t)(size - length), "%s%s_%02d", length ? "-" : "",
                       tws_axis_name(topology->axis[i]), coordinates[i]);
  }
  return buffer;
}

tws_position tws_topology_position(const tws_topology *topology, int rank) {
  tws_position position;
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++) {
    position.ranks[axis] = tws_topology_size(topology, 1u << axis);
    position.index[axis] = position.ranks[axis] > 1 ? tws_topology_index(topology, rank, 1u << axis) : 0;
  }
  return position;
}
