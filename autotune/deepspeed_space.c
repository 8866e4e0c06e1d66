#include "autotune/deepspeed_space.h"

typedef struct experiments {
  const tws_tune_request *request;
  tws_variant *items;
  size_t count, capacity;
  tws_code code;
  tws_error *err;
} experiments;

int tws_tune_has_deepspeed_points(const tws_tune_request *request) {
  const tws_tune_space *space = &request->space;
  return space->deepspeed.num > 0 && !space->axes && space->global_batch == 0 && space->micro_count == 0 &&
         space->ranks_count <= 1 && space->accumulation_count <= 1 &&
         tws_profile_backend(request->job->profile) != TWS_BACKEND_HOST && !tws_config_is_elastic(request->job->config);
}

static tws_variant point_of(const tws_tune_request *request, int stage, int64_t micro, int64_t accumulation) {
  const tws_cluster *cluster = &request->job->cluster;
  tws_variant point = tws_variant_given(request->job->config);
  point.stage = stage;
  point.recompute = request->space.recompute_count ? request->space.recompute[0] : request->job->config->recompute;
  point.ranks = request->space.ranks_count ? request->space.ranks[0] : cluster->devices_per_node * cluster->nodes;
  point.micro = micro;
  point.accumulation = accumulation;
  return point;
}

static tws_tune_candidate candidate_of(const tws_variant *point) {
  tws_tune_candidate c = {.variant = *point};
  c.samples = (double)(point->micro * point->accumulation * tws_variant_replicas(point));
  tws_variant_name(point, c.name, sizeof c.name);
  return c;
}

static int is_known(const experiments *e, const tws_variant *point) {
  for (size_t i = 0; i < e->count; i++)
    if (e->items[i].stage == point->stage && e->items[i].micro == point->micro &&
        e->items[i].accumulation == point->accumulation)
      return 1;
  return 0;
}

static double experiment(void *user, int stage, int64_t micro, int64_t accumulation) {
  experiments *e = user;
  const tws_variant point = point_of(e->request, stage, micro, accumulation);
  tws_tune_candidate c = candidate_of(&point);
  e->code = tws_tune_estimate(e->request, &c, e->err);
  if (e->code == TWS_OK && !is_known(e, &point)) {
    if (tws_reserve(&e->items, &e->capacity, e->count + 1, sizeof *e->items))
      e->code = tws_fail(e->err, TWS_MEMORY, NULL, "no memory for the search space");
    else
      e->items[e->count++] = point;
  }
  if (e->code != TWS_OK) return -1;
  return c.verdict == TWS_TUNE_FITS ? tws_tune_throughput(&c) : 0;
}

/* Computes the bytes of one sequence's activations: the difference in memory between micro batches of 2 and of 1 at
 * stage 3. (DeepSpeed measures a forward pass of one sequence.) */
static tws_code activations_of(const tws_tune_request *request, double *bytes, tws_error *err) {
  double needed[2];
  for (int i = 0; i < 2; i++) {
    const tws_variant point = point_of(request, 3, 1 + i, 1);
    tws_tune_candidate c = candidate_of(&point);
    TWS_TRY(tws_tune_estimate(request, &c, err));
    if (c.verdict == TWS_TUNE_NOT_SUPPORTED)
      return tws_fail(err, TWS_INVALID, "leave out autotuning.fast, or give --micro-batches",
                      "DeepSpeed's search measures activations at stage 3: %s", c.reason);
    needed[i] = c.needed_bytes;
  }
  *bytes = needed[1] - needed[0];
  return TWS_OK;
}

tws_code tws_tune_deepspeed_points(const tws_tune_request *request, tws_variant **points, int *count, tws_error *err) {
  const tws_tune_space *space = &request->space;
  const tws_config *config = request->job->config;
  const tws_variant one = point_of(request, 0, 1, 1);
  const tws_capacity capacity = tws_capacity_of(&request->job->machine, one.ranks, request->memory_bytes);
  tws_ds_tuning t = space->deepspeed;
  t.model_parallel = one.ranks / tws_variant_replicas(&one);
  t.nodes = 1;
  t.gpus_per_node = one.ranks;
  t.fp16 = config->dtype == TWS_F16;
  t.device_bytes = capacity.rank_device;
  t.accumulation = space->accumulation_count ? space->accumulation[0] : 1;
  for (int i = 0; i < 4; i++) t.stages |= space->stage_count ? 0 : 1U << i;
  for (int i = 0; i < space->stage_count; i++) t.stages |= 1U << space->stages[i];
  if (!(t.params > 0)) t.params = (double)tws_network_params(request->job->network, 0);
  if (!(t.activation_bytes > 0)) TWS_TRY(activations_of(request, &t.activation_bytes, err));
  experiments e = {.request = request, .err = err};
  tws_ds_tune(&t, experiment, &e);
  if (e.code == TWS_OK && e.count == 0)
    e.code = tws_fail(err, TWS_INVALID, "more GPUs, or tensor or pipeline ranks",
                      "the search space is empty: at stage 3 parameters, gradients and optimizer leave no room for a "
                      "sequence");
  if (e.code != TWS_OK) {
    tws_free(e.items);
    return e.code;
  }
  *points = e.items;
  *count = (int)e.count;
  return TWS_OK;
}
