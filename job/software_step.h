/* Device memory that other software takes from the first gradient to the end of a step. */
#ifndef TWS_JOB_SOFTWARE_STEP_H
#define TWS_JOB_SOFTWARE_STEP_H

#include "job/job.h"
#include "models/hardware/step_buffers.h"

/* Bytes of one moment on a rank of a stage, by the rows of the profile's runtime (models/hardware/step_buffers.def); 0
 * where it has none. */
double tws_software_moment(const tws_job *job, const tws_stage_estimate *stage, tws_step_moment moment);
/* The most of the moments when activations are gone. */
double tws_software_step_most(const tws_job *job, const tws_stage_estimate *stage);

/* What they are of, and others too: parameters of a stage that have gradients; ranks that the optimizer's states are
 * divided among; elements of the largest parameter that is trained, as a tensor of its own. */
double tws_software_trained(const tws_job *job, const tws_stage_estimate *stage);
double tws_software_shards(const tws_job *job);
double tws_software_largest_parameter(const tws_job *job);

#endif
