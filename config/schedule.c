/* Computes learning rates by DeepSpeed's schedules. k: number of calls of the scheduler's step() so far; i = k - 1 is
 * DeepSpeed's last_batch_iteration, -1 before the first call. */
#include <math.h>

#include "config/ds_config.h"

static double range_test(const tws_config *c, int64_t k) {
  double interval = (double)k / (double)c->schedule.range_step_size;
  if (c->schedule.range_staircase) interval = floor(interval);
  return c->schedule.min_lr * (1 + c->schedule.range_step_rate * interval);
}

typedef struct cycle {
  double first, second, total;
  int64_t first_stairs, second_stairs;
} cycle;

static cycle cycle_of(const tws_config *c) {
  cycle y = {.first = c->schedule.cycle_first, .second = c->schedule.cycle_second};
  if (y.second < 0) y.second = y.first;
  y.total = y.first + y.second;
  y.first_stairs = c->schedule.cycle_first_stairs;
  y.second_stairs = c->schedule.cycle_second_stairs;
  if (y.second_stairs < 0) y.second_stairs = y.first_stairs;
  return y;
}

/* Returns the position in the cycle: 0 at both ends, 1 at the peak. */
static double cycle_scale(const cycle *y, int64_t i) {
  double b = (double)(i + 1);
  if (y->first_stairs > 0 || y->second_stairs > 0) {
    double position = fmod(b, y->total);
    if (position <= y->first) {
      double stairs = (double)y->first_stairs;
      if (stairs > 0) return floor(position * stairs / y->first) / stairs;
    } else if (y->second_stairs > 0) {
      double stairs = (double)y->second_stairs;
      return floor((y->total - position) * stairs / y->second) / stairs;
    }
  }
  double turns = floor(1 + b / y->total), x = 1 + b / y->total - turns, rise = y->first / y->total;
  return x <= rise ? x / rise : (x - 1) / (rise - 1);
}

/* Returns the number of decay intervals since the end of the cycle; 0 if decay is off. */
static double cycle_decays(const tws_config *c, const cycle *y, int64_t i) {
  if (c->schedule.cycle_decay_size <= 0) return 0;
  return ((double)i - y->total + 1) / (double)c->schedule.cycle_decay_size;
}

static double one_cycle(const tws_config *c, int64_t k) {
  double low = c->schedule.cycle_min_lr, high = c->schedule.cycle_max_lr;
  cycle y = cycle_of(c);
  int64_t i = k - 1;
  if (i < 0) return low;
  if ((double)i < y.total) return low + (high - low) * cycle_scale(&y, i);
  return low / (1 + c->schedule.cycle_decay_rate * cycle_decays(c, &y, i));
}

static double warmup_length(const tws_config *c) {
  return (double)(c->schedule.warmup_steps < 2 ? 2 : c->schedule.warmup_steps);
}

/* Returns the warm-up factor, which grows from 0 to 1; logarithmic warm-up reaches 1 one step earlier than linear. */
static double warmup_gamma(const tws_config *c, int64_t i) {
  double n = warmup_length(c);
  if ((double)i >= n) return 1;
  return c->schedule.warmup_linear ? (double)i / n : log((double)i + 1) / log(n);
}

static double warmup(const tws_config *c, int64_t k, int decay) {
  double low = c->schedule.min_lr, high = c->schedule.max_lr < 0 ? c->lr : c->schedule.max_lr;
  int64_t i = k - 1;
  if (i < 0) return low;
  double n = warmup_length(c), gamma = warmup_gamma(c, i), total = (double)c->schedule.total_steps;
  if (decay && (double)i >= n && total > 0) gamma = fmax(0, (total - (double)i) / fmax(1, total - n));
  return low + (high - low) * gamma;
}

static double warmup_cosine(const tws_config *c, int64_t k) {
  int64_t i = k - 1;
  if (i < 0) return 0;
  double n = warmup_length(c), total = (double)c->schedule.total_steps, floor_ratio = c->schedule.cos_min_ratio;
  double start = c->schedule.warmup_min_ratio;
  if ((double)i < n) return c->lr * (start + (1 - start) * warmup_gamma(c, i));
  if (total <= 0) return c->lr;
  double progress = fmin(1, ((double)i - n + 1) / fmax(1, total - n));
  double ratio = floor_ratio + (1 - floor_ratio) * (1 + cos(3.14159265358979323846 * progress)) / 2;
  return c->lr * fmax(0, ratio);
}

double tws_config_lr(const tws_config *config, int64_t k) {
  switch (config->scheduler) {
    case TWS_SCHEDULER_LR_RANGE_TEST:
      return range_test(config, k);
    case TWS_SCHEDULER_ONE_CYCLE:
      return one_cycle(config, k);
    case TWS_SCHEDULER_WARMUP:
      return warmup(config, k, 0);
    case TWS_SCHEDULER_WARMUP_DECAY:
      return warmup(config, k, 1);
    case TWS_SCHEDULER_WARMUP_COSINE:
      return warmup_cosine(config, k);
    case TWS_SCHEDULER_NONE:
      break;
  }
  return config->lr;
}

void tws_config_betas(const tws_config *config, int64_t k, double *beta1, double *beta2) {
  *beta1 = config->beta1;
  *beta2 = config->beta2;
  if (config->scheduler != TWS_SCHEDULER_ONE_CYCLE || !config->schedule.cycle_momentum) return;
  double low = config->schedule.cycle_min_momentum, high = config->schedule.cycle_max_momentum;
  cycle y = cycle_of(config);
  int64_t i = k - 1;
  *beta2 = 0.99; /* DeepSpeed sets beta2 to 0.99 from the first update on while beta1 cycles */
  if (i < 0)     /* as in DeepSpeed: the lowest value before the first step, although the cycle begins at the highest */
    *beta1 = low;
  else if ((double)i < y.total)
    *beta1 = high - (high - low) * cycle_scale(&y, i);
  else
    *beta1 = high * (1 + config->schedule.cycle_momentum_rate * cycle_decays(config, &y, i));
}
