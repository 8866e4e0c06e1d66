#include "plan/hyper.h"

#include <math.h>
#include <stddef.h>

#include "plan/phases.h"

/* Sets the scalars of an optimizer whose steps run different programs (plan/phases.h): the learning rate of the first
 * update is 0, and SUMMED_LR is the sum of the learning rates of the local steps since the last average. */
static void fill_phase(const tws_config *config, int64_t update, float hyper[TWS_HYPER_COUNT]) {
  double sum = 0;
  hyper[TWS_HYPER_SUMMED_LR] = 0;
  if (tws_optimizer_of(config->optimizer)->phases == TWS_PHASES_ONE) return;
  if (update == 1) hyper[TWS_HYPER_LR] = hyper[TWS_HYPER_REST1] = hyper[TWS_HYPER_REST2] = 0;
  const int64_t since = tws_step_kind_of(config, update, 0).since;
  for (int64_t i = since; since > 0 && i <= update; i++) sum += tws_config_lr(config, i - 1);
  hyper[TWS_HYPER_SUMMED_LR] = (float)sum;
}

double tws_hyper_fill(const tws_config *config, int64_t update, double loss_scale, float hyper[TWS_HYPER_COUNT]) {
  const double lr = tws_config_lr(config, update - 1);
  double beta1, beta2, bias1 = 1, bias2 = 1;
  tws_config_betas(config, update - 1, &beta1, &beta2);
  /* the bias correction uses only the betas of this update, as PyTorch does, even if earlier updates had other betas */
  if (config->bias_correction) {
    bias1 -= pow(beta1, (double)update);
    bias2 -= pow(beta2, (double)update);
  }
  hyper[TWS_HYPER_LR] = (float)lr;
  hyper[TWS_HYPER_BIAS1] = (float)bias1;
  hyper[TWS_HYPER_BIAS2] = (float)bias2;
  hyper[TWS_HYPER_SCALE] = (float)loss_scale;
  hyper[TWS_HYPER_STEP] = (float)(update % (1 << 24));
  hyper[TWS_HYPER_BETA1] = (float)beta1;
  hyper[TWS_HYPER_BETA2] = (float)beta2;
  hyper[TWS_HYPER_REST1] = (float)(1 - beta1);
  hyper[TWS_HYPER_REST2] = (float)(1 - beta2);
  fill_phase(config, update, hyper);
  return lr;
}

double tws_hyper_fill_groups(const tws_config *config, int64_t update, double loss_scale, float *hyper) {
  double first = 0;
  for (int group = 0; group < tws_config_param_groups(config); group++) {
    tws_config own;
    tws_config_of_param_group(config, group, &own);
    const double lr = tws_hyper_fill(&own, update, loss_scale, hyper + (ptrdiff_t)group * TWS_HYPER_COUNT);
    if (group == 0) first = lr;
  }
  return first;
}

void tws_hyper_fill_late(const tws_config *config, int64_t update, int64_t own, float hyper[TWS_HYPER_COUNT]) {
  double beta1, beta2;
  tws_hyper_fill(config, update, 1, hyper);
  tws_config_betas(config, update - 1, &beta1, &beta2);
  if (!config->bias_correction) return;
  hyper[TWS_HYPER_BIAS1] = (float)(1 - pow(beta1, (double)own));
  hyper[TWS_HYPER_BIAS2] = (float)(1 - pow(beta2, (double)own));
}
