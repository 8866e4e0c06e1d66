/* Features of runtimes: schedules, ZeRO stages with and without pipelines, partitions, experts, context parallelism,
 * offloading, recomputation. One table for this program's own backends and for other software; searches are cut to it,
 * and answers say what the chosen runtime lacks. */
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

/* A bit for each feature. */
typedef uint64_t tws_features;
static inline int tws_features_have(tws_features set, tws_feature feature) {
  return (int)(set >> feature & 1);
}

/* The name of a runtime's family: "DeepSpeed", "Megatron-Core", "torchtitan"; of this program's own engine that of the
 * backend. */
const char *tws_runtime_family(const tws_runtime *runtime, tws_backend_kind backend);
/* Returns the features that a runtime can run. Rows that the table does not name take a family by what the runtime's
 * figures say of it. */
tws_features tws_runtime_features(const tws_runtime *runtime, tws_backend_kind backend);

/* Returns the features that a resolved configuration uses. */
tws_features tws_config_features(const tws_config *config);
/* Returns the features that a variant of an open job's configuration uses, of those that searches vary. */
tws_features tws_variant_features(const tws_config *config, const tws_variant *variant);
/* Returns 1 if the configuration has updates that overlap with other steps, which need an offloaded optimizer. */
int tws_config_updates_late(const tws_config *config);
/* Returns the features that the job uses and its runtime cannot run. */
tws_features tws_job_lacks(const tws_job *job);
/* For each that is lacked "has no WORDS (give REMEDY)", with semicolons between them. */
void tws_features_text(tws_features lacked, tws_text *out);

#endif
