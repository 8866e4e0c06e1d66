/* Features that runtimes may have or lack: schedules, ZeRO stages with and without pipelines, partitions, experts,
 * context parallelism, offloading, recomputation. One table lists them for this program's own backends and for other
 * software. Searches omit variants that the chosen runtime cannot run, and reports list the features that it lacks. */
#ifndef TWS_JOB_FEATURES_H
#define TWS_JOB_FEATURES_H

#include "job/job.h"
#include "models/hardware/runtime.h"

typedef enum tws_feature {
#define X(name, words, remedy) TWS_FEATURE_##name,
#include "job/features.def"
#undef X
  TWS_FEATURE_COUNT
} tws_feature;
const char *tws_feature_words(tws_feature feature);
const char *tws_feature_remedy(tws_feature feature);

/* A set of features: bit i stands for feature number i. */
typedef uint64_t tws_features;
static inline int tws_features_have(tws_features set, tws_feature feature) {
  return (int)(set >> feature & 1);
}

/* Returns the name of a runtime's family: "DeepSpeed", "Megatron-Core", "torchtitan"; for this program's own engine the
 * name of the backend. */
const char *tws_runtime_family(const tws_runtime *runtime, tws_backend_kind backend);
/* Returns the features that a runtime can run. A runtime without a row in the table has a family by its figures. */
tws_features tws_runtime_features(const tws_runtime *runtime, tws_backend_kind backend);

/* Returns the features that a resolved configuration uses. sparse: 1 if the model has experts. */
tws_features tws_config_features(const tws_config *config, int sparse);
/* Returns the features that a variant of an open job's configuration uses, among those that searches vary. */
tws_features tws_variant_features(const tws_config *config, int sparse, const tws_variant *variant);
/* Returns 1 if the configuration has optimizer updates that overlap with later steps, which requires an offloaded
 * optimizer. */
int tws_config_updates_late(const tws_config *config);
/* The first returns the features that the job uses, the second those of them that its runtime cannot run. */
tws_features tws_job_features(const tws_job *job);
tws_features tws_job_unsupported_features(const tws_job *job);
/* Returns those of the job's features that its runtime cannot run and that searches do not vary, so that all variants
 * have them. */
tws_features tws_job_unsupported_everywhere(const tws_job *job);
/* Adds "missing" to a JSON object, a list of {"feature", "remedy"}; nothing if no feature is lacking. */
void tws_features_json(tws_features lacked, cJSON *json);
/* Appends, for each lacking feature, "has no WORDS (give REMEDY)", separated by semicolons; words and remedies are
 * those of features.def. */
void tws_features_text(tws_features lacked, tws_text *out);

#endif
