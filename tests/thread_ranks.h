/* Ranks of a job as threads of one process: collectives and messages among them. */
#ifndef TESTS_THREAD_RANKS_H
#define TESTS_THREAD_RANKS_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "real/executor.h"
#include "real/local_comm.h"

enum { THREAD_RANKS = 8 }; /* the most */

typedef struct rendezvous_point {
  tws_axes axes;
  int first;
  pthread_barrier_t barrier;
  const tws_comm_segment *segments[THREAD_RANKS];
} rendezvous_point;

typedef struct letter {
  struct letter *next;
  int from, to;
  char data[];
} letter;

typedef struct thread_world {
  pthread_mutex_t lock;
  pthread_cond_t arrived;
  letter *mail; /* the oldest first */
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

/* Runs a collective: the group's first member computes it for all members, while the others wait. */
static inline tws_code thread_collective(tws_comm *comm, int group, tws_collective collective, int root,
                                         const tws_comm_segment *segments, int count, tws_error *why) {
  const tws_group *g = &comm->plan->groups[group];
  rendezvous_point *p = point_of(comm->world, g);
  tws_code code = TWS_OK;
  p->segments[g->index] = segments;
  pthread_barrier_wait(&p->barrier);
  if (g->index == 0) code = tws_local_collective(collective, root, p->segments, g->size, count, why);
  pthread_barrier_wait(&p->barrier);
  return code;
}

/* Sends a message: a copy of the data waits for the receiver, so that no sender waits. */
static inline tws_code thread_send(tws_comm *comm, int peer, const void *data, uint64_t bytes, tws_error *why) {
  letter *sent = malloc(sizeof *sent + bytes), **end = &comm->world->mail;
  (void)why;
  *sent = (letter){.from = comm->plan->rank, .to = peer};
  memcpy(sent->data, data, bytes);
  pthread_mutex_lock(&comm->world->lock);
  while (*end) end = &(*end)->next;
  *end = sent;
  pthread_cond_broadcast(&comm->world->arrived);
  pthread_mutex_unlock(&comm->world->lock);
  return TWS_OK;
}

static inline tws_code thread_receive(tws_comm *comm, int peer, void *data, uint64_t bytes, tws_error *why) {
  letter **at, *found;
  (void)why;
  pthread_mutex_lock(&comm->world->lock);
  for (;;) {
    for (at = &comm->world->mail; *at && ((*at)->from != peer || (*at)->to != comm->plan->rank); at = &(*at)->next)
      ;
    if (*at) break;
    pthread_cond_wait(&comm->world->arrived, &comm->world->lock);
  }
  found = *at;
  *at = found->next;
  pthread_mutex_unlock(&comm->world->lock);
  memcpy(data, found->data, bytes);
  free(found);
  return TWS_OK;
}

static const tws_comm_ops thread_ranks_comm = {
    .name = "threads", .collective = thread_collective, .send = thread_send, .receive = thread_receive};

static inline void thread_world_end(thread_world *world) {
  for (int i = 0; i < world->count; i++) pthread_barrier_destroy(&world->points[i].barrier);
}

#endif
