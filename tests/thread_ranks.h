/* Ranks of a job as threads of one process: collectives among them. */
#ifndef TESTS_THREAD_RANKS_H
#define TESTS_THREAD_RANKS_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "real/executor.h"

enum { THREAD_RANKS = 8 }; /* the most */

typedef struct rendezvous_point {
  tws_axes axes;
  int first;
  pthread_barrier_t barrier;
  const tws_comm_segment *segments[THREAD_RANKS];
} rendezvous_point;

typedef struct thread_world {
  pthread_mutex_t lock;
  rendezvous_point points[32];
  int count;
} thread_world;

struct tws_comm {
  thread_world *world;
  const tws_plan *plan;
};

static inline rendezvous_point *point_of(thread_world *world, const tws_group *g) {
  pthread_mutex_lock(&world->lock);
  int i = 0;
  while (i < world->count && (world->points[i].axes != g->axes || world->points[i].first != g->ranks[0])) i++;
  if (i == world->count) {
    world->points[world->count++] = (rendezvous_point){.axes = g->axes, .first = g->ranks[0]};
    pthread_barrier_init(&world->points[i].barrier, NULL, (unsigned)g->size);
  }
  pthread_mutex_unlock(&world->lock);
  return &world->points[i];
}

static inline double read_number(tws_dtype dtype, const void *at, uint64_t i) {
  return dtype == TWS_F64 ? ((const double *)at)[i] : (double)((const float *)at)[i];
}

static inline void write_number(tws_dtype dtype, void *at, uint64_t i, double value) {
  if (dtype == TWS_F64)
    ((double *)at)[i] = value;
  else
    ((float *)at)[i] = (float)value;
}

/* What this rank receives of a segment; NULL: nothing. */
static inline void *received(const rendezvous_point *p, const tws_group *g, tws_collective collective, int root,
                             int segment, uint64_t *bytes) {
  const tws_dtype dtype = p->segments[g->index][segment].dtype;
  const uint64_t count = p->segments[g->index][segment].count, size = tws_dtype_bytes(dtype);
  const int gathers = collective == TWS_COLLECTIVE_ALL_GATHER;
  if (collective == TWS_COLLECTIVE_REDUCE && g->index != root) return NULL;
  *bytes = count * size * (uint64_t)(gathers ? g->size : 1);
  char *out = malloc(*bytes + 1);
  const uint64_t first = collective == TWS_COLLECTIVE_REDUCE_SCATTER ? count * (uint64_t)g->index : 0;
  for (int m = 0; gathers && m < g->size; m++)
    memcpy(out + (uint64_t)m * count * size, p->segments[m][segment].send, count * size);
  for (uint64_t i = 0; !gathers && i < count; i++) {
    double sum = 0;
    for (int m = 0; m < g->size; m++) sum += read_number(dtype, p->segments[m][segment].send, first + i);
    write_number(dtype, out, i, sum);
  }
  return out;
}

static inline tws_code thread_collective(tws_comm *comm, int group, tws_collective collective, int root,
                                         const tws_comm_segment *segments, int count, tws_error *why) {
  const tws_group *g = &comm->plan->groups[group];
  rendezvous_point *p = point_of(comm->world, g);
  void **results = calloc((size_t)count, sizeof *results);
  uint64_t *bytes = calloc((size_t)count, sizeof *bytes);
  (void)why;
  p->segments[g->index] = segments;
  pthread_barrier_wait(&p->barrier);
  for (int i = 0; i < count; i++) results[i] = received(p, g, collective, root, i, &bytes[i]);
  pthread_barrier_wait(&p->barrier); /* all have read */
  for (int i = 0; i < count; i++) {
    if (results[i]) memcpy(segments[i].receive, results[i], bytes[i]);
    free(results[i]);
  }
  free(results);
  free(bytes);
  return TWS_OK;
}

static const tws_comm_ops thread_ranks_comm = {.name = "threads", .collective = thread_collective};

static inline void thread_world_end(thread_world *world) {
  for (int i = 0; i < world->count; i++) pthread_barrier_destroy(&world->points[i].barrier);
}

#endif
