/* Device memory that other software takes from the first gradient to the end of a step. */
#ifndef TWS_JOB_SOFTWARE_STEP_H
#define TWS_JOB_SOFTWARE_STEP_H

#include "job/job.h"
#include "models/hardware/step_buffers.h"

/* Returns the bytes of buffers at one moment of a step on a rank of a stage, by the rows of the profile's runtime
 * (models/hardware/step_buffers.def); 0 if it has none. */
double tws_software_moment(const tws_job *job, const tws_stage_estimate *stage, tws_step_moment moment);
/* Returns the largest value of tws_software_moment() over the moments after activations are freed. */
double tws_software_step_most(const tws_job *job, const tws_stage_estimate *stage);

/* Return the sizes from which buffers are computed: parameters of a stage that have gradients; ranks among which the
 * optimizer's states are partitioned; elements of the largest trained tensor. */
double tws_software_trained(const tws_job *job, const tws_stage_estimate *stage);
double tws_software_shards(const tws_job *job);
double tws_software_largest_parameter(const tws_job *job);

#endif
