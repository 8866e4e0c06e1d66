/* Folders in the layout of DeepSpeed's autotuner: the configuration and the result of each experiment. */
#ifndef TWS_AUTOTUNE_FOLDERS_H
#define TWS_AUTOTUNE_FOLDERS_H

#include "autotune/autotune.h"

/* Values that state how results of an earlier search in the folder are treated. */
typedef enum tws_tune_earlier {
  TWS_EARLIER_REFUSE,  /* fails with TWS_USAGE */
  TWS_EARLIER_REPLACE, /* removes the earlier experiments */
  TWS_EARLIER_KEEP     /* keeps the earlier records, which the search reads: it is resumed */
} tws_tune_earlier;

typedef struct tws_tune_folders {
  const char *results, *experiments; /* experiments NULL: none */
  tws_tune_earlier earlier;
  const tws_job_spec *spec; /* the specification for cmd.txt; NULL: no commands are written */
  const char *data;         /* the training data of the commands; NULL: nothing is trained */
} tws_tune_folders;

/* Creates the folder of results alone, for the state file of a running search; earlier results stay. */
tws_code tws_tune_folders_make(const tws_tune_folders *folders, tws_error *err);
/* Creates the folders and treats earlier results as `earlier` says. */
tws_code tws_tune_folders_open(const tws_tune_folders *folders, tws_error *err);

/* Writes EXPERIMENTS/<name>.json, and RESULTS/<name>/ with exp.json, ds_config.json, metrics.json and cmd.txt. */
tws_code tws_tune_write_experiment(const tws_tune_candidate *candidate, const tws_tune_request *request,
                                   const tws_tune_folders *folders, int id, tws_error *err);
/* Writes the configuration of a variant to `path`. */
tws_code tws_tune_write_config(const tws_tune_request *request, const tws_variant *variant, const char *path,
                               tws_error *err);
/* Writes cmd.txt of a configuration to `path`; does nothing if folders->spec is NULL. */
tws_code tws_tune_write_command(const tws_tune_request *request, const tws_variant *variant,
                                const tws_tune_folders *folders, const char *config, const char *path, tws_error *err);
/* Writes and destroys `json`, which is destroyed on failure too. */
tws_code tws_tune_write_json(cJSON *json, const char *path, tws_error *err);
cJSON *tws_tune_variant_json(const tws_variant *variant);
#endif
