/* Activations that software whose modules run operation by operation keeps for backward in addition to a plan's. */
#ifndef TWS_JOB_SOFTWARE_KEPT_H
#define TWS_JOB_SOFTWARE_KEPT_H

#include "job/job.h"

double tws_software_tokens(const tws_job *job); /* tokens of a micro-batch on one rank */
/* Returns the micro-batches whose activations a pipeline stage keeps at once; 1 without a pipeline. */
double tws_software_in_flight(const tws_job *job, int stage);
/* Returns 1 if the runtime's weights are float32 and cast in each use: torch.autocast, and the configuration has
 * float32 copies of trained weights. */
int tws_software_casts(const tws_job *job);
/* Returns the bytes that a stage keeps by the runtime's row (tws_runtime_keeps): of all layers in flight or, where
 * layers are recomputed, of one layer. */
double tws_software_kept(const tws_job *job, const tws_stage_estimate *stage);

#endif
