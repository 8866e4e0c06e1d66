/* Which ranks' plans say what all ranks of a job need and do: the one place that chooses ranks.
 *
 * Where every group of an axis lies on nodes as every other does, ranks of one pipeline stage do the same at the same
 * time, and one of them speaks for all; one for each part of sequence parallelism, and with ZeRO-3 of tensor
 * parallelism. Where groups lie unevenly (tensor parallelism over 3 of a node's 8 devices), the slow ones hold up the
 * others: then all ranks are taken.
 *
 * What this leaves out: under ZeRO-1 and 2 replicas keep different parts of a bucket at different times (a step of all
 * of them takes up to about one per cent longer than that of one; with an offloaded optimizer, where they copy them
 * out, a sixth), and tensor-parallel ranks of a pipeline's first stage look up different numbers of rows. Memory is
 * that of the fullest rank in all cases. */
#ifndef TWS_PLAN_REPRESENTATIVES_H
#define TWS_PLAN_REPRESENTATIVES_H

#include "config/ds_config.h"
#include "plan/node_mapping.h"

/* Ranks that the caller frees, also on failure. */
typedef struct tws_rank_set {
  int *ranks, count;
} tws_rank_set;
void tws_rank_set_free(tws_rank_set *set);

/* Those that stand for all, ordered by stage; the first of each stage is that of tws_pipeline_grid_stage(). */
tws_code tws_representatives(const tws_topology *topology, const tws_node_mapping *mapping, const tws_config *config,
                             tws_rank_set *out, tws_error *err);
/* Whether ranks that see different samples do the same at the same time. They do not where each copies its own part of
 * the gradients to the host when a bucket is reduced (the optimizer on the host at stages 1 and 2): each waits for the
 * others there, and one that stands for all is too fast. */
int tws_replicas_keep_time(const tws_config *config);
/* Every rank in order. */
tws_code tws_every_rank(int ranks, tws_rank_set *out, tws_error *err);

/* Ranks that can be verified together, at most about `most` of them and at least one of each stage: all of them when
 * they are few enough; else whole replicas, the first and the last among them; else one rank of each stage of those. */
typedef struct tws_verified_set {
  tws_rank_set set;
  int whole_replicas; /* among them; 0: one rank of each stage */
} tws_verified_set;
tws_code tws_ranks_to_verify(const tws_topology *topology, int64_t most, tws_verified_set *out, tws_error *err);

#endif
