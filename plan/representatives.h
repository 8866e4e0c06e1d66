/* Chooses representative ranks: every rank of a job has the same plan as one of them. No other file chooses ranks.
 *
 * If all groups of an axis are placed on nodes in the same pattern, the ranks of one pipeline stage run the same
 * operations at the same time, and one of them represents the others; sequence-parallel ranks, and with ZeRO-3
 * tensor-parallel ranks, have one representative each. If groups are placed unevenly (tensor parallelism over 3 of a
 * node's 8 devices), the slow groups delay the others: then all ranks are chosen.
 *
 * This is an approximation in two cases: under ZeRO-1 and 2 replicas keep different shards of a bucket at different
 * times (the step time of plans of all ranks is up to about 1 % longer than that of one representative; with an
 * offloaded optimizer, to which the ranks copy the shards, up to a sixth longer), and tensor-parallel ranks of a
 * pipeline's first stage look up different numbers of embedding rows. Memory is that of the rank with the most in all
 * cases. */
#ifndef TWS_PLAN_REPRESENTATIVES_H
#define TWS_PLAN_REPRESENTATIVES_H

#include "config/ds_config.h"
#include "plan/node_mapping.h"

/* A list of ranks. The caller frees it, also when the function that filled it failed. */
typedef struct tws_rank_set {
  int *ranks, count;
} tws_rank_set;
void tws_rank_set_free(tws_rank_set *set);

/* Chooses the representatives, ordered by stage; the first representative of each stage is the rank that
 * tws_pipeline_grid_stage() returns. */
tws_code tws_representatives(const tws_topology *topology, const tws_node_mapping *mapping, const tws_config *config,
                             tws_rank_set *out, tws_error *err);
/* Returns 1 if data-parallel ranks run the same operations at the same time; 0 if the optimizer is on the host at
 * stages 1 and 2: each rank then copies its own shard of the gradients to the host when a bucket is reduced, and ranks
 * wait for each other, so that the step time of a single representative is too short. */
int tws_replicas_are_synchronous(const tws_config *config);
/* Lists all ranks in order. */
tws_code tws_every_rank(int ranks, tws_rank_set *out, tws_error *err);

/* A set of ranks that are verified together, about `most` of them and at least one of each stage. If the job has at
 * most about `most` ranks, the set has all of its ranks. Otherwise it has all ranks of some replicas, among them the
 * first and the last, or, if even two replicas have too many ranks, one rank of each pipeline stage of these
 * replicas. */
typedef struct tws_verified_set {
  tws_rank_set set;
  int whole_replicas; /* number of whole replicas in the set; 0: the set has one rank of each stage per replica */
} tws_verified_set;
tws_code tws_ranks_to_verify(const tws_topology *topology, int64_t most, tws_verified_set *out, tws_error *err);

#endif
