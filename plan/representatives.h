/* Chooses representative ranks, whose plans are those of all ranks of a job. No other file chooses ranks.
 *
 * If all groups of an axis are placed on nodes in the same pattern, the ranks of one pipeline stage run the same
 * operations at the same time, and one of them represents all; one for each sequence-parallel rank, and with ZeRO-3 for
 * each tensor-parallel rank. If groups are placed unevenly (tensor parallelism over 3 of a node's 8 devices), the slow
 * groups delay the others: then all ranks are chosen.
 *
 * This is an approximation in two cases: under ZeRO-1 and 2 replicas keep different shards of a bucket at different
 * times (a step of all ranks takes up to about 1 % longer than that of one; with an offloaded optimizer, to which they
 * copy the shards, up to a sixth), and tensor-parallel ranks of a pipeline's first stage look up different numbers of
 * embedding rows. Memory is that of the rank with the most in all cases. */
#ifndef TWS_PLAN_REPRESENTATIVES_H
#define TWS_PLAN_REPRESENTATIVES_H

#include "config/ds_config.h"
#include "plan/node_mapping.h"

/* A list of ranks that the caller frees, also on failure. */
typedef struct tws_rank_set {
  int *ranks, count;
} tws_rank_set;
void tws_rank_set_free(tws_rank_set *set);

/* Chooses the representatives, ordered by stage; the first of each stage is that of tws_pipeline_grid_stage(). */
tws_code tws_representatives(const tws_topology *topology, const tws_node_mapping *mapping, const tws_config *config,
                             tws_rank_set *out, tws_error *err);
/* Returns 1 if data-parallel ranks run the same operations at the same time. They do not if each copies its own shard
 * of the gradients to the host when a bucket is reduced (optimizer on the host at stages 1 and 2): ranks then wait for
 * each other, and a single representative is too fast. */
int tws_replicas_keep_time(const tws_config *config);
/* Lists all ranks in order. */
tws_code tws_every_rank(int ranks, tws_rank_set *out, tws_error *err);

/* Chooses ranks that are verified together, about `most` of them and at least one of each stage: all if they are few
 * enough, otherwise whole replicas including the first and the last, otherwise one rank of each stage of these. */
typedef struct tws_verified_set {
  tws_rank_set set;
  int whole_replicas; /* number of whole replicas; 0: one rank of each stage */
} tws_verified_set;
tws_code tws_ranks_to_verify(const tws_topology *topology, int64_t most, tws_verified_set *out, tws_error *err);

#endif
