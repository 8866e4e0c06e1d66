/* Files of a finished search: JSON, and folders in the layout of DeepSpeed's autotuner. */
#ifndef TWS_AUTOTUNE_RESULTS_H
#define TWS_AUTOTUNE_RESULTS_H

#include "autotune/advice.h"
#include "autotune/analysis.h"
#include "autotune/measure.h"
#include "job/assumed.h"

typedef struct tws_tune_report {
  const tws_tune_request *request;
  const tws_tune_result *result;
  const tws_tune_trials *trials;     /* NULL: no trial was run */
  const tws_tune_analysis *analysis; /* NULL: not requested, or nothing fits */
  tws_advice advice[TWS_ADVICES];    /* changes that speed up the best candidate, or with which the smallest one fits */
  int advice_count;
} tws_tune_report;

/* Lists the assumptions of the search about its job, without the settings that it varies. Returns their number. */
int tws_tune_assumed(const tws_tune_request *request, tws_assumption list[TWS_ASSUMPTIONS]);

/* Returns the best variant, and its name in *name: the fastest measured one, or the first of the result if none was
 * measured; NULL: no configuration fits. */
const tws_variant *tws_tune_best(const tws_tune_report *report, const char **name);

tws_code tws_tune_json(const tws_tune_report *report, tws_text *out, tws_error *err);

/* Name of the file, in the folder of results, with the profile that training runs corrected. */
#define TWS_TUNE_PROFILE "profile_corrected.json"
/* Writes every simulated candidate as an experiment, the corrected profile if there is one, summary.txt,
 * ds_config_optimal.json, cmd_optimal.txt and results.json. */
tws_code tws_tune_write(const tws_tune_report *report, const tws_tune_folders *folders, tws_error *err);

/* Writes report.html, which needs no other file, and report.md with its figures in the same folder; only with an
 * analysis. */
tws_code tws_tune_write_documents(const tws_tune_report *report, const tws_tune_folders *folders, tws_error *err);

#endif
