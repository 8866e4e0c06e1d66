/* Device memory that other software needs to run a plan, in addition to the plan's buffers. */
#ifndef TWS_JOB_SOFTWARE_MEMORY_H
#define TWS_JOB_SOFTWARE_MEMORY_H

#include "job/job.h"
#include "models/hardware/runtime.h"

/* Bytes of tensors on one rank of a stage in its passes, by the figures of the profile's runtime; 0 for this program's
 * own:
 *   copies of logits in the last stage (runtime->logit_bytes each)
 *   gradients: bf16's in float32 and in 16 bits (4 a parameter more), or accumulated in float32 alone (2 more than
 *     the plan's, where that has them in 16 bits)
 *   two boundary tensors a micro-batch in flight of a pipeline
 *   scores and masks of unfused attention, 5 a s^2 b a layer (9 in float32), kept between the passes or, where layers
 *     are recomputed, of one layer (Korthikanti et al., 2022, equation 1), and two bytes of dropout masks a token,
 *     hidden, kept layer
 *   what recomputation by operation keeps unread, two bytes a token, hidden and layer
 *   the copy of a bucket of gradients that ZeRO-2 and 3 reduce, and ZeRO-2's second bucket, in full
 *     (runtime->copies_buckets)
 *   what lies beside all passes by models/hardware/step_buffers.def (runtime->step)
 *   gradients of whole layers on each rank, frozen ones too, where FSDP accumulates (runtime->flat_gradients)
 *   workspaces of libraries
 * less the activations of experts that a plan keeps and the software does not (runtime->weighs_early), which can make
 * the sum negative. */
double tws_software_bytes(const tws_job *job, const tws_stage_estimate *stage);

/* Most that is allocated at once: what the plan holds and the above (where whole layers are recomputed and it is known
 * what is alive while the loss is computed, copies of logits then, what one layer keeps at another moment), less the
 * gradients that are not there yet, where they come late (runtime->late_gradients, stages 0 and 1); or, in the step of
 * the optimizer, when activations are gone, the states and what that holds: of fp16's copies of its shard's gradients,
 * flattened in 16 bits and in float32 (6 a parameter), of DeepSpeed's the rows of step_buffers.def; or, where the host
 * has the optimizer, when a large gradient has been reduced; or while a model is loaded; or while the gradient of a
 * flat parameter is made. */
double tws_software_stage_peak(const tws_job *job, const tws_stage_estimate *stage);
/* Returns the bytes that a caching allocator holds after a step: the sum of both moments, since freed blocks of
 * activations cannot hold a flat copy, and the share that it reserves in addition. */
double tws_software_stage_reserved(const tws_job *job, const tws_stage_estimate *stage);

/* Returns the peak of the job's fullest stage: stages has tws_job_stages(); reserved may be NULL. */
double tws_software_peak(const tws_job *job, const tws_stage_estimate *stages, double *reserved);

/* The same without estimates of the stages, with layers and parameters divided evenly: tws_software_bytes() of the
 * stage that needs the most, and tws_software_stage_peak() where the fullest rank's plan holds `planned` bytes
 * (tws_job_planned_bytes()), and loss_bytes are alive while the loss is computed (0: unknown). */
double tws_job_software_bytes(const tws_job *job);
double tws_job_software_peak(const tws_job *job, double planned, double loss_bytes);
/* Bytes that a plan holds at its peak on a device: the arena's for this program's own engine, which places buffers
 * ahead; under a caching allocator no more than 4 % beyond those of live buffers. */
double tws_job_planned_bytes(const tws_job *job, const tws_ledger *ledger);

/* Returns the bytes of a device that are not tensors: the contexts of CUDA and its libraries, and a communicator for
 * each axis with ranks. */
double tws_job_context_bytes(const tws_job *job);

#endif
