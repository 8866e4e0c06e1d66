/* Sets and reads factors by which the seconds of operations are multiplied: corrections from training runs, and scales
 * from measurements on the user's machine. */
#include <stdio.h>
#include <string.h>

#include "models/hardware/profile_internal.h"

static const char *kernel_word(int i) {
  return tws_kernel_name((tws_kernel)i);
}

static const char *collective_word(int i) {
  return tws_collective_name((tws_collective)i);
}

/* Returns the product of two factors, where 0 means the factor 1; 0 if both are 0. */
static double product(double own, double more) {
  return own > 0 && more > 0 ? own * more : own > 0 ? own : more;
}

void tws_profile_correct(tws_profile *profile, const tws_profile_correction *correction) {
  const tws_profile_correction *own = &profile->own_correction;
  for (int i = 0; i < TWS_KERNEL_COUNT; i++)
    profile->correction.kernel[i] = product(own->kernel[i], correction->kernel[i]);
  for (int i = 0; i < TWS_COLLECTIVE_COUNT; i++)
    profile->correction.collective[i] = product(own->collective[i], correction->collective[i]);
  profile->correction.message = product(own->message, correction->message);
}

const char *tws_scale_name(int scale) {
  return (const char *const[TWS_SCALE_COUNT]){"products", "memory", "links"}[scale];
}

void tws_profile_rescale(tws_profile *profile, const double factor[TWS_SCALE_COUNT]) {
  for (int i = 0; i < TWS_SCALE_COUNT; i++) profile->scale[i] = factor[i];
}

double tws_profile_bandwidth_share(const tws_profile *profile) {
  return profile->bandwidth_efficiency;
}

/* Returns the corrections of a profile, multiplied by the factors of the kinds of operations (tws_scale), so that a
 * file contains both; kernels without a correction get the factor of their kind. */
static tws_profile_correction with_scales(const tws_profile *profile) {
  tws_profile_correction all = profile->correction;
  for (int i = 0; i < TWS_KERNEL_COUNT; i++)
    all.kernel[i] = product(all.kernel[i], profile->scale[tws_kernel_scale((tws_kernel)i)]);
  for (int i = 0; i < TWS_COLLECTIVE_COUNT; i++)
    all.collective[i] = product(all.collective[i], profile->scale[TWS_SCALE_LINKS]);
  all.message = product(all.message, profile->scale[TWS_SCALE_LINKS]);
  return all;
}

static void write_factors(cJSON *object, const char *key, const char *(*word)(int), int count, const double *factors) {
  cJSON *list = cJSON_AddObjectToObject(object, key);
  for (int i = 0; i < count; i++)
    if (factors[i] > 0) cJSON_AddNumberToObject(list, word(i), factors[i]);
}

tws_code tws_profile_corrected_json(const char *spec, const tws_profile *profile, int runs, cJSON **out,
                                    tws_error *err) {
  const tws_profile_correction all = with_scales(profile);
  tws_json *json;
  *out = NULL;
  TWS_TRY(tws_profile_open(spec, &json, err));
  cJSON *root = cJSON_Duplicate(json->root, 1), *factors;
  tws_json_destroy(json);
  char provenance[1024];
  snprintf(provenance, sizeof provenance, "%.900s; corrected by %d training run%s", profile->provenance, runs,
           runs > 1 ? "s" : "");
  cJSON_DeleteItemFromObjectCaseSensitive(root, "corrections");
  cJSON_DeleteItemFromObjectCaseSensitive(root, "provenance");
  factors = cJSON_AddObjectToObject(root, "corrections");
  write_factors(factors, "kernels", kernel_word, TWS_KERNEL_COUNT, all.kernel);
  write_factors(factors, "collectives", collective_word, TWS_COLLECTIVE_COUNT, all.collective);
  if (all.message > 0) cJSON_AddNumberToObject(factors, "messages", all.message);
  if (!factors || !cJSON_AddStringToObject(root, "provenance", provenance)) {
    cJSON_Delete(root);
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a profile");
  }
  *out = root;
  return TWS_OK;
}
