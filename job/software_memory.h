/* Device memory that other software needs to run a plan, in addition to the plan's buffers. */
#ifndef TWS_JOB_SOFTWARE_MEMORY_H
#define TWS_JOB_SOFTWARE_MEMORY_H

#include "job/job.h"
#include "models/hardware/runtime.h"

/* Returns the bytes of tensors on one rank of a stage during forward and backward, in addition to the plan's, by the
 * figures of the profile's runtime; 0 for this program's own:
 *   copies of logits in the last stage (runtime->logit_bytes each, or those of a pipeline engine that keeps the outputs
 *     of several micro-batches: runtime->kept_outputs)
 *   gradients of bf16 training: in float32 and in 16 bits (4 bytes per parameter more), or accumulated in float32
 *     alone (2 more than the plan's, where that has them in 16 bits)
 *   two boundary tensors per micro-batch in flight of a pipeline
 *   scores and masks of unfused attention, 5 a s^2 b bytes per layer (a heads, s tokens, b samples; 9 in float32; other
 *     software: runtime->kept_score_bytes), kept
 *     between the passes or, where layers are recomputed, of one layer (Korthikanti et al., 2022, equation 1), and two
 *     bytes of dropout masks per token, hidden and kept layer
 *   results that recomputation by operation keeps although backward does not read them, two bytes a token, hidden and
 *     layer
 *   the copy of a bucket of gradients that ZeRO-2 and 3 reduce, and ZeRO-2's second bucket, in full
 *     (runtime->copies_buckets)
 *   buffers that are allocated during all passes, by models/hardware/step_buffers.def (runtime->step)
 *   gradients of whole layers on each rank, frozen ones too, where FSDP accumulates (runtime->flat_gradients)
 *   DDP's buckets, a second copy of gradients (runtime->bucket_copies), and what FSDP has gathered in addition to the
 *     plan (runtime->root_stays, gather_copies)
 *   under adapters over quantized weights, the float32 copies of other frozen parameters and of the inputs of
 *     recomputed layers (runtime->widens_frozen)
 *   workspaces of libraries
 * less the 16-bit parameters of recomputed layers that autocast makes for one layer at a time (runtime->casts_weights)
 * and less the activations of experts that a plan keeps and the software does not (runtime->weighs_early), which can
 * make the sum negative. */
double tws_software_bytes(const tws_job *job, const tws_stage_estimate *stage);

/* Returns the peak of allocated bytes, the largest of these moments:
 *   forward and backward: the plan's bytes (tws_job_planned_bytes()) and tws_software_bytes(), without gradients
 *     that are not allocated yet
 *     (runtime->late_gradients, stages 0 and 1). With full recomputation, if loss_bytes are known, copies of logits
 *     and the activations of one layer are not counted at the same time
 *   the optimizer step, after activations are freed: states and the optimizer's buffers, which are copies of the
 *     shard's gradients in 16 bits and in float32 (6 bytes a parameter, Megatron's fp16) or the rows of
 *     step_buffers.def (DeepSpeed)
 *   with the optimizer on the host, the moment after a large gradient has been reduced
 *   loading of the model
 *   the moment at which FSDP joins the gradients of one flat parameter. */
double tws_software_stage_peak(const tws_job *job, const tws_stage_estimate *stage);
/* Returns the bytes that a caching allocator holds after a step: the sum of the bytes during the passes and during the
 * optimizer step, since freed blocks of activations cannot hold a flat copy, and the share that it reserves in
 * addition. */
double tws_software_stage_reserved(const tws_job *job, const tws_stage_estimate *stage);

/* Returns the peak of the job's fullest stage: stages has tws_job_stages(); reserved may be NULL. */
double tws_software_peak(const tws_job *job, const tws_stage_estimate *stages, double *reserved);
/* Returns the peak of the fullest stage on a device that has no memory left whenever the allocator asks for more, which
 * decides whether the job fits. */
double tws_software_needed(const tws_job *job, const tws_stage_estimate *stages);

/* Return the bytes of the functions above for a job without estimates of its stages; layers and parameters count as
 * divided evenly: the first returns tws_software_bytes() of the stage that needs the most, the second
 * tws_software_stage_peak() for a plan of `planned` bytes (tws_job_planned_bytes()), of which loss_bytes are alive
 * while the loss is computed (0: unknown). */
double tws_job_software_bytes(const tws_job *job);
double tws_job_software_peak(const tws_job *job, double planned, double loss_bytes);
/* Returns the bytes that a plan holds at its peak on a device: the arena's for this program's own engine, which places
 * buffers when the plan is built; under a caching allocator what a replay of the plan's allocations holds
 * (tws_ledger_replay()), and at least 1.5 % more than the allocated bytes, of which a plan's are live_bytes. */
double tws_job_planned_bytes(const tws_job *job, const tws_ledger *ledger);

/* Returns the bytes of a device's memory that are not tensors: the contexts of CUDA and its libraries, and one NCCL
 * communicator for each axis that has more than one rank. */
double tws_job_context_bytes(const tws_job *job);

#endif
