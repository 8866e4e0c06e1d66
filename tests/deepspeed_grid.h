/* Groups of ranks of a job with pipeline stages: DeepSpeed's PipelineParallelGrid over a topology with the axes "pipe"
 * and "data", and at choice "model". */
#ifndef TWS_TESTS_DEEPSPEED_GRID_H
#define TWS_TESTS_DEEPSPEED_GRID_H

#include <stddef.h>
#include "plan/topology.h"

/* Writes the prime factors of a number in ascending order and returns how many there are (at most 31). factors has room
 * for 31. */
static inline int tws_prime_factors(int number, int *factors);
/* Makes the topology of a job that configures none: the prime factors of the world, dealt alternately to "pipe" and
 * "data". */
static inline tws_code tws_pipeline_grid_default(int world, tws_topology *topology, tws_error *err);
/* Returns TWS_INVALID unless the topology has the axes "pipe" and "data" and `world` ranks. */
static inline tws_code tws_pipeline_grid_check(const tws_topology *topology, int world, tws_error *err);

typedef enum tws_grid_group {
  TWS_GRID_REPLICA, /* all stages and model shards of one data coordinate: norms and overflow ("model parallel") */
  TWS_GRID_DATA,
  TWS_GRID_PIPE,
  TWS_GRID_SLICE, /* the ranks along "model"; without that axis the rank alone */
  TWS_GRID_GROUP_COUNT
} tws_grid_group;

/* Writes the ranks of the group of this kind that `rank` is in, ascending; returns how many there are. ranks has room
 * for the world. */
static inline int tws_pipeline_grid_group(const tws_topology *topology, tws_grid_group kind, int rank, int *ranks);
/* Writes the ranks of group number `index` of a kind, in the order in which groups are created; returns how many there
 * are, or 0 where `index` is past the last group. Kinds follow each other as in the enumeration. */
static inline int tws_pipeline_grid_nth(const tws_topology *topology, tws_grid_group kind, int index, int *ranks);

/* ---- how ---- */

static inline int tws_prime_factors(int number, int *factors) {
  int count = 0;
  for (int64_t prime = 2; prime * prime <= number; prime++) {
    while (number % prime == 0) {
      factors[count++] = (int)prime;
      number = (int)(number / prime);
    }
  }
  if (number > 1) factors[count++] = number;
  return count;
}

static inline tws_code tws_pipeline_grid_default(int world, tws_topology *topology, tws_error *err) {
  int factors[31], dims[2] = {1, 1};
  if (world < 1) return tws_fail(err, TWS_INVALID, NULL, "a job of %d ranks", world);
  int count = tws_prime_factors(world, factors);
  for (int i = 0; i < count; i++) dims[i % 2] *= factors[i];
  return tws_topology_make(topology, 2, (const tws_axis[]){TWS_AXIS_PIPE, TWS_AXIS_DATA}, dims, err);
}

static inline int has_axis(const tws_topology *topology, tws_axis axis) {
  for (int i = 0; i < topology->axes; i++)
    if (topology->axis[i] == axis) return 1;
  return 0;
}

static inline tws_code tws_pipeline_grid_check(const tws_topology *topology, int world, tws_error *err) {
  static const tws_axis needed[] = {TWS_AXIS_PIPE, TWS_AXIS_DATA};
  for (int i = 0; i < 2; i++) {
    if (!has_axis(topology, needed[i])) {
      return tws_fail(err, TWS_INVALID, "give the axis a dimension of 1 when nothing is divided along it",
                      "a topology with pipeline stages has to have the axis '%s'", tws_axis_name(needed[i]));
    }
  }
  if (tws_topology_world(topology) != world) {
    return tws_fail(err, TWS_INVALID, "the product of the axes is the number of ranks",
                    "the topology has %d ranks and the job %d", tws_topology_world(topology), world);
  }
  return TWS_OK;
}

static const tws_axes axes_of[TWS_GRID_GROUP_COUNT] = {[TWS_GRID_REPLICA] = ~(tws_axes)TWS_AXES_DATA,
                                                       [TWS_GRID_DATA] = TWS_AXES_DATA,
                                                       [TWS_GRID_PIPE] = TWS_AXES_PIPE,
                                                       [TWS_GRID_SLICE] = TWS_AXES_MODEL};

static inline int tws_pipeline_grid_group(const tws_topology *topology, tws_grid_group kind, int rank, int *ranks) {
  return tws_topology_group(topology, rank, axes_of[kind], ranks);
}

static inline int tws_pipeline_grid_nth(const tws_topology *topology, tws_grid_group kind, int index, int *ranks) {
  const int world = tws_topology_world(topology);
  if (index < 0) return 0;
  for (int rank = 0; rank < world; rank++) { /* groups follow each other by their first ranks */
    if (tws_topology_index(topology, rank, axes_of[kind]) != 0) continue;
    if (index-- == 0) return tws_pipeline_grid_group(topology, kind, rank, ranks);
  }
  return 0;
}

#endif
