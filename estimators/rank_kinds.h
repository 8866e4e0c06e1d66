/* Which ranks a composed step is made from: one of each stage of a pipeline where it speaks for all that an estimate
 * looks at; or a line of them for each part of the sequence, or each place on nodes, where these differ. Internal to
 * estimators/. */
#ifndef TWS_ESTIMATORS_RANK_KINDS_H
#define TWS_ESTIMATORS_RANK_KINDS_H

#include "estimators/estimators.h"
#include "plan/sample.h"

typedef struct tws_rank_kind { /* of requests with a topology, and with equal knobs that tell ranks apart */
  tws_topology topology;
  int stage, offloads; /* of ZeRO, the optimizer, where these matter */
  int alone;           /* one rank stands for each stage of a pipeline, or one of each line: */
  int line_count;      /* of ranks that differ along these axes, each of which speaks for its stages; else 1 */
  int *lines;          /* the first stage's rank of each; rank 0 is the first */
  tws_axes apart;
  int pass_apart; /* they differ in their passes */
  int every;      /* rank counts, and few meet all others */
  int uneven;     /* they differ in where their groups lie, too */
  int single;     /* as no other counts, in whatever network; else: */
  const tws_network *network;
  int knobs;
  int spread[TWS_AXIS_COUNT]; /* ranks of a group along one axis that are on one node */
  struct tws_rank_kind *next;
} tws_rank_kind;
/* Kept in `kinds`, which live in the arena. */
tws_code tws_rank_kind_find(tws_rank_kind **kinds, const tws_plan_request *request, const tws_machine *machine,
                            tws_sample_memory *memory, tws_arena *arena, const tws_rank_kind **out, tws_error *err);
/* Of the ranks of its group along each axis, those on the node of the first. */
void tws_rank_spread(const tws_machine *machine, const tws_topology *topology, int rank, int *spread);
int tws_topology_is_same(const tws_topology *a, const tws_topology *b);

#endif
