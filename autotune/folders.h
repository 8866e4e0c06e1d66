/* Folders as DeepSpeed's autotuner leaves them: what each experiment is, and what came of it. */
#ifndef TWS_AUTOTUNE_FOLDERS_H
#define TWS_AUTOTUNE_FOLDERS_H

#include "autotune/autotune.h"

/* What to do with the results of an earlier search in the folder. */
typedef enum tws_tune_earlier {
  TWS_EARLIER_REFUSE,  /* TWS_USAGE */
  TWS_EARLIER_REPLACE, /* the experiments that it holds are removed */
  TWS_EARLIER_KEEP     /* their records are read: a search goes on */
} tws_tune_earlier;

typedef struct tws_tune_folders {
  const char *results, *experiments; /* experiments NULL: none */
  tws_tune_earlier earlier;
  const tws_job_spec *spec; /* for commands; NULL: none are written */
  const char *data;         /* NULL: nothing is trained */
} tws_tune_folders;

/* The folder of results alone, for what a search keeps while it works; earlier results stay. */
tws_code tws_tune_folders_make(const tws_tune_folders *folders, tws_error *err);
/* Makes them, and does with earlier results what is to be done. */
tws_code tws_tune_folders_open(const tws_tune_folders *folders, tws_error *err);

/* EXPERIMENTS/<name>.json, and RESULTS/<name>/ with exp.json, ds_config.json, metrics.json and cmd.txt. */
tws_code tws_tune_write_experiment(const tws_tune_candidate *candidate, const tws_tune_request *request,
                                   const tws_tune_folders *folders, int id, tws_error *err);
/* A configuration with a variant's settings, as a file. */
tws_code tws_tune_write_config(const tws_tune_request *request, const tws_variant *variant, const char *path,
                               tws_error *err);
/* cmd.txt of a configuration; nothing where folders->spec is NULL. */
tws_code tws_tune_write_command(const tws_tune_request *request, const tws_variant *variant,
                                const tws_tune_folders *folders, const char *config, const char *path, tws_error *err);
/* Takes json, also when it fails. */
tws_code tws_tune_write_json(cJSON *json, const char *path, tws_error *err);
cJSON *tws_tune_variant_json(const tws_variant *variant);
#endif
