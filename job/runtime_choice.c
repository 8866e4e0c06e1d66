#include "job/runtime_choice.h"

#include <stdio.h>
#include <string.h>

/* Returns 1 if the profile is from a file that states that it was measured, as `calibrate` writes it. */
static int is_calibrated(const tws_job_spec *spec, const tws_profile *profile) {
  const char *const *name = tws_profile_builtin_names();
  while (spec->profile && *name && strcmp(*name, spec->profile) != 0) name++;
  return spec->profile && !*name && strncmp(tws_profile_provenance(profile), "measured ", 9) == 0;
}

static const char *own_engine_why(const tws_job_spec *spec, const tws_profile *profile) {
  if (profile && tws_profile_backend(profile) == TWS_BACKEND_HOST) return "as hosts run it";
  if (!spec->planned) return "as it runs the job";
  if (profile && is_calibrated(spec, profile)) return "as the profile was measured with it";
  return NULL;
}

/* The runtime whose current version reads a format; whole: the runtime if ZeRO partitions nothing, NULL: the same
 * runtime. */
static const struct {
  const char *runtime, *why, *whole;
} readers[TWS_FORMAT_COUNT] = {
    [TWS_FORMAT_NONE] = {"twinspeed", "as nothing names another", NULL},
    [TWS_FORMAT_DEEPSPEED] = {"deepspeed-flash", "as -c is a ds_config.json", NULL},
    [TWS_FORMAT_HUGGING_FACE] = {"transformers", "as \"auto\" in the ds_config.json is for Hugging Face's Trainer",
                                 NULL},
    [TWS_FORMAT_MEGATRON] = {"megatron", "as -c has Megatron's arguments", NULL},
    [TWS_FORMAT_MEGATRON_DEEPSPEED] = {"megatron-deepspeed", "as -c has Megatron-DeepSpeed's arguments", NULL},
    [TWS_FORMAT_BRIDGE] = {"nemo-2026", "as -c is a configuration of Megatron-Bridge", NULL},
    [TWS_FORMAT_TORCHTITAN] = {"fsdp", "as -c is a configuration of torchtitan", NULL},
    [TWS_FORMAT_ACCELERATE] = {"transformers", "as -c is a configuration of accelerate", NULL},
    [TWS_FORMAT_ACCELERATE_FSDP] = {"transformers-fsdp", "as -c is a configuration of accelerate with FSDP", NULL},
    [TWS_FORMAT_TRAINER] = {"transformers", "as -c has arguments of Hugging Face's Trainer", "transformers-ddp"},
    [TWS_FORMAT_AXOLOTL] = {"transformers", "as -c is a configuration of axolotl", "transformers-ddp"},
    [TWS_FORMAT_LLAMA_FACTORY] = {"transformers", "as -c is a configuration of LLaMA-Factory", "transformers-ddp"},
};

tws_code tws_runtime_choose(const tws_job_spec *spec, const tws_config *config, const tws_profile *profile,
                            tws_runtime_choice *out, tws_error *err) {
  const char *name = spec->runtime, *why = "as --runtime says";
  *out = (tws_runtime_choice){.given = name != NULL};
  if (!name && (why = own_engine_why(spec, profile)) != NULL) name = "twinspeed";
  if (!name) {
    const tws_config_format format = tws_config_format_of(config);
    name = readers[format].whole && config->zero.stage == 0 ? readers[format].whole : readers[format].runtime;
    why = readers[format].why;
  }
  snprintf(out->why, sizeof out->why, "%s", why);
  return tws_runtime_parse(name, &out->runtime, err);
}
