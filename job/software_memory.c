#include "job/software_memory.h"

#include <math.h>
#include "plan/pipeline_schedule.h"

static double in_flight(const tws_job *job, int stage) {
  const int stages = tws_job_stages(job);
  if (stages < 2) return 1;
  const tws_pipeline_shape shape = tws_pipeline_shape_of(job->config, stages, job->config->accumulation_steps);
  return tws_pipeline_in_flight(&shape, stage) / (double)shape.virtual_stages;
}

/* 5 bytes a score, softmax's output twice in 16 bits and a mask; and masks of dropout of what layers hand on. */
static double attention_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const double tensor = tws_job_ranks_along(job, TWS_AXIS_MODEL), s = (double)c->sequence_length;
  const double b = (double)c->micro_batch_size, heads = (double)job->network->heads;
  if (runtime->attention != TWS_ATTENTION_UNFUSED) return 0;
  const double layer = 5 * heads * s * s * b / tensor, masks = 2 * s * b * (double)job->network->hidden;
  const double layers = stage->layers * in_flight(job, stage->stage);
  if (c->recompute == TWS_RECOMPUTE_FULL) return layer + masks;
  return (tws_profile_recomputes_scores(job->profile) ? layer : layers * layer) + layers * masks;
}

static double gradient_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const double replicas = tws_topology_size(&job->topology, TWS_AXES_DATA);
  if (!runtime->gradient_copies || c->dtype == TWS_F32 || c->zero.stage > 1) return 0;
  if (c->dtype == TWS_BF16) return 2 * stage->parameters; /* accumulated in float32 beside 16 bits */
  return 4 * stage->parameters / (c->zero.stage > 0 ? fmax(replicas, 1) : 1);
}

double tws_software_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  const tws_config *c = job->config;
  const double tokens = (double)c->micro_batch_size * (double)c->sequence_length;
  const double tensor = tws_job_ranks_along(job, TWS_AXIS_MODEL);
  double bytes = attention_bytes(job, runtime, stage) + gradient_bytes(job, runtime, stage);
  if (stage->stage == tws_job_stages(job) - 1)
    bytes += runtime->logit_bytes * tokens * (double)job->network->padded_vocabulary / tensor;
  if (tws_job_stages(job) > 1 && runtime->boundary_tensors)
    bytes += runtime->boundary_tensors * in_flight(job, stage->stage) * tokens * (double)job->network->hidden * 2;
  return bytes;
}

double tws_software_peak(const tws_job *job, const tws_stage_estimate *stages) {
  double most = 0;
  for (int i = 0; i < tws_job_stages(job); i++)
    most = fmax(most, (double)stages[i].arena_bytes[TWS_TIER_DEVICE] + tws_software_bytes(job, &stages[i]));
  return most;
}

double tws_job_software_bytes(const tws_job *job) {
  const int stages = tws_job_stages(job);
  const double parts = (double)stages * tws_job_ranks_along(job, TWS_AXIS_MODEL);
  double most = 0;
  for (int i = 0; i < stages; i++) {
    const tws_stage_estimate stage = {.stage = i,
                                      .layers = (int)((job->network->layers + stages - 1) / stages),
                                      .parameters = (double)tws_network_params(job->network, 0) / parts};
    most = fmax(most, tws_software_bytes(job, &stage));
  }
  return most;
}
