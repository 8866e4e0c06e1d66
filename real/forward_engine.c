#include "real/forward_engine.h"

#include <stdio.h>
#include <unistd.h>

tws_code tws_forward_begin(tws_training *t, const tws_train_options *options, tws_error *err) {
  const tws_plan_request *plan = &options->plan;
  const int on_gpu = plan->backend == TWS_BACKEND_CUDA;
  *t = (tws_training){.options = options,
                      .config = plan->config,
                      .rank = tws_mpi_rank(NULL),
                      .world = tws_mpi_world(NULL),
                      .threads = plan->threads > 0 ? plan->threads : 1,
                      .weights_only = 1,
                      .ops = tws_real_backend("host")};
  if (!on_gpu) return TWS_OK;
  TWS_TRY(tws_cuda_load(&t->cuda, err));
  t->ops = t->cuda->backend;
  return TWS_OK;
}

/* Tells the launcher what this rank does outside of programs: it ends a job in which nothing changes for its
 * deadline. */
static void begin_phase(const tws_training *t, const char *what) {
  const tws_train_options *o = t->options;
  if (o->activity) snprintf(o->activity, o->activity_bytes, "%s", what);
}

static tws_code create(tws_training *t, int count, int recorded, tws_error *err) {
  const tws_train_options *o = t->options;
  int device = 0;
  if (t->cuda) TWS_TRY(tws_cuda_choose_device(t->cuda, &device, err));
  TWS_TRY(t->ops->create(device, t->threads, &t->backend, err));
  const int busy = (long)t->world * t->threads > sysconf(_SC_NPROCESSORS_ONLN);
  TWS_TRY(tws_comm_create(NULL, t->plan->groups, t->plan->group_count, TWS_TRANSPORT_AUTO, busy, &t->comm, err));
  if (t->cuda) TWS_TRY(tws_cuda_connect(t->cuda, t->backend, NULL, t->plan, &t->device_comm, err));
  TWS_TRY(tws_share_cores(t, err));
  tws_executor_setup setup = {.programs = t->programs,
                              .program_count = count,
                              .recorded = recorded,
                              .ops = t->ops,
                              .backend = t->backend,
                              .host = t->host,
                              .comm_ops = t->cuda ? t->cuda->comm_ops : tws_mpi_comm_ops(),
                              .comm = t->cuda ? t->device_comm : t->comm,
                              .activity = o->activity,
                              .activity_bytes = o->activity_bytes};
  TWS_TRY(tws_training_disk(t, &setup.disk, err));
  return tws_executor_create(&setup, &t->executor, err);
}

tws_code tws_forward_start(tws_training *t, int count, int recorded, tws_error *err) {
  begin_phase(t, "opening the weights");
  TWS_TRY(tws_resume_open(t, err));
  begin_phase(t, "allocating memory");
  TWS_TRY(create(t, count, recorded, err));
  begin_phase(t, "reading the weights");
  return tws_training_weights(t, err);
}

uint64_t tws_forward_allocated(const tws_training *t) {
  uint64_t bytes = 0;
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++) bytes += tws_executor_allocated(t->executor, (tws_tier)tier);
  return bytes;
}
