/* Device memory that other software's style of running a plan takes beside the plan's buffers. */
#ifndef TWS_JOB_SOFTWARE_MEMORY_H
#define TWS_JOB_SOFTWARE_MEMORY_H

#include "job/job.h"
#include "models/hardware/runtime.h"

/* Bytes of tensors on one rank of a stage, by the figures of the profile's runtime; 0 for this program's own:
 *   copies of logits in the last stage (runtime->logit_bytes each)
 *   gradients in float32 for an optimizer whose steps are in 16 bits (per parameter of its shard; per parameter in
 * bf16) two boundary tensors a micro-batch in flight of a pipeline scores and masks of unfused attention, 5 a s^2 b a
 * layer, kept between the passes or, where layers are recomputed, of one layer (Korthikanti et al., 2022, equation 1),
 * and two bytes of dropout masks a token, hidden and kept layer. */
double tws_software_bytes(const tws_job *job, const tws_stage_estimate *stage);

/* Before there are plans: of the stage that takes the most, layers and parameters divided evenly. */
double tws_job_software_bytes(const tws_job *job);

/* Of the job's fullest stage, arena and the above: stages has tws_job_stages(). */
double tws_software_peak(const tws_job *job, const tws_stage_estimate *stages);

#endif
