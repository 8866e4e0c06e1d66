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

/* Returns the bytes of the optimizer's states of a parameter, on average over trained parameters: 4 for each float32
 * state, and 2 + 8/256 with states of 8 bits, of whose steps bitsandbytes has no temporaries. */
double tws_software_state_bytes(const tws_job *job);
/* Returns the bytes of states that a rank of a stage has outside of PyTorch's allocator, in memory that the device and
 * the host share, so that they leave the device for activations: those of tensors of 100,000 elements or more with
 * bitsandbytes' paged optimizers; 0 with others and for this program's own engine. */
double tws_software_paged_bytes(const tws_job *job, const tws_stage_estimate *stage);

#endif
