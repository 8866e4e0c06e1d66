#include "autotune/optimizers.h"

#include <math.h>

enum { GAIN_PARTS = 20 }; /* compression pays if it saves 1 / GAIN_PARTS of a training's time */

/* Returns a copy of the configuration with another optimizer, for a training of `steps` steps. */
static tws_config with_optimizer(const tws_config *config, tws_optimizer optimizer, int64_t steps) {
  tws_config other = *config;
  const int phased = tws_optimizer_of(config->optimizer)->phases != TWS_PHASES_ONE;
  other.optimizer = optimizer;
  other.adam_w_mode = 1;
  if (tws_optimizer_of(optimizer)->phases != TWS_PHASES_ONE) other.bias_correction = 0;
  if (!phased) other.freeze_step = other.var_freeze_step = steps / 5;
  return other;
}

static tws_code check(const tws_job *job, tws_error *err) {
  if (tws_topology_size(&job->topology, TWS_AXES_DATA) < 2)
    return tws_fail(err, TWS_INVALID, "use several replicas", "tune: --optimizers compares what replicas communicate");
  return TWS_OK;
}

/* Returns the bandwidth at which the speedup falls below the limit, interpolated on a logarithmic scale; speedups
 * decrease with the bandwidth. 0: all are below the limit, infinity: none is. */
static double last_gain(const tws_optimizer_comparison *all, const tws_compared_optimizer *o) {
  const double limit = 1 + 1.0 / (GAIN_PARTS - 1);
  double before = 0;
  for (int i = 0; i < all->count; i++) {
    const double gain = o->speedup[i];
    if (gain < limit && i == 0) return 0;
    if (gain < limit) {
      const double part = (before - limit) / (before - gain);
      return all->value[i - 1] * pow(all->value[i] / all->value[i - 1], part);
    }
    before = gain;
  }
  return INFINITY;
}

tws_code tws_compare_optimizers(tws_job *job, const tws_knee_sweep *sweep, int64_t steps, tws_optimizer_comparison *out,
                                tws_error *err) {
  tws_optimizer optimizers[TWS_COMPARED_OPTIMIZERS] = {TWS_OPTIMIZER_ADAMW};
  const tws_cluster cluster = job->cluster;
  tws_code code = check(job, err);
  out->count = sweep->count;
  out->optimizers = 1;
  for (int o = 0; o < TWS_OPTIMIZER_COUNT && out->optimizers < TWS_COMPARED_OPTIMIZERS; o++)
    if (tws_optimizer_of((tws_optimizer)o)->phases != TWS_PHASES_ONE) optimizers[out->optimizers++] = (tws_optimizer)o;
  out->steps = steps;
  for (int i = 0; i < sweep->count && code == TWS_OK; i++) {
    out->value[i] = tws_knee_set(&job->cluster, sweep, i);
    for (int k = 0; k < out->optimizers && code == TWS_OK; k++) {
      const tws_config config = with_optimizer(job->config, optimizers[k], steps);
      tws_plan_request request = tws_job_request(job, 0);
      request.config = &config;
      out->optimizer[k].name = tws_optimizer_of(optimizers[k])->type;
      out->frozen_from = config.freeze_step;
      code = tws_estimate_run(&request, &job->machine, steps, &out->optimizer[k].run[i], err);
      out->optimizer[k].speedup[i] = out->optimizer[0].run[i].seconds / out->optimizer[k].run[i].seconds;
    }
  }
  job->cluster = cluster;
  for (int k = 0; k < out->optimizers && code == TWS_OK; k++)
    out->optimizer[k].pays_up_to = last_gain(out, &out->optimizer[k]);
  return code;
}
