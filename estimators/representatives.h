/* Which ranks' plans say what all ranks of a job need and do.
 *
 * Ranks fill nodes in order. Where every group of an axis lies on nodes as every other does, ranks of one pipeline
 * stage do the same at the same time, and one of them speaks for all; one for each part of sequence parallelism, and
 * with ZeRO-3 of tensor parallelism. Where groups lie unevenly (tensor parallelism over 3 of a node's 8 devices), the
 * slow ones hold up the others: then all ranks are taken.
 *
 * What this leaves out: under ZeRO-1 and 2 replicas keep different parts of a bucket at different times (a step of all
 * of them takes up to about one per cent longer than that of one), and tensor-parallel ranks of a pipeline's first
 * stage look up different numbers of rows. Memory is that of the fullest rank in all cases. */
#ifndef TWS_ESTIMATORS_REPRESENTATIVES_H
#define TWS_ESTIMATORS_REPRESENTATIVES_H

#include "estimators/estimators.h"

int tws_placement_is_even(const tws_topology *topology, const tws_machine *machine);
/* Ranks ordered by stage; the first of each stage is that of tws_pipeline_grid_stage(). The caller frees *ranks, also
 * on failure. request->rank is not looked at. */
tws_code tws_representatives(const tws_plan_request *request, const tws_machine *machine, int **ranks, int *count,
                             tws_error *err);

#endif
