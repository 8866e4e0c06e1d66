/* What a search leaves behind: JSON, and folders as DeepSpeed's autotuner leaves them. */
#ifndef TWS_AUTOTUNE_RESULTS_H
#define TWS_AUTOTUNE_RESULTS_H

#include "autotune/analysis.h"
#include "autotune/measure.h"
#include "job/assumed.h"

typedef struct tws_tune_report {
  const tws_tune_request *request;
  const tws_tune_result *result;
  const tws_tune_trials *trials;     /* NULL: nothing was run */
  const tws_tune_analysis *analysis; /* NULL: not wanted, or nothing fits */
} tws_tune_report;

/* What the search assumed of its job: not what it varies. */
int tws_tune_assumed(const tws_tune_request *request, tws_assumption list[TWS_ASSUMPTIONS]);

/* The best: the fastest that was measured, or the first of the result where nothing was. NULL: nothing fits. */
const tws_variant *tws_tune_best(const tws_tune_report *report, const char **name);

tws_code tws_tune_json(const tws_tune_report *report, tws_text *out, tws_error *err);

/* In the folder of results: the profile that training runs corrected. */
#define TWS_TUNE_PROFILE "profile_corrected.json"
/* Every simulated candidate as an experiment; the corrected profile where there is one, summary.txt,
 * ds_config_optimal.json, cmd_optimal.txt, results.json. */
tws_code tws_tune_write(const tws_tune_report *report, const tws_tune_folders *folders, tws_error *err);

/* report.html, which needs no other file, and report.md with its figures beside it: with an analysis only. */
tws_code tws_tune_write_documents(const tws_tune_report *report, const tws_tune_folders *folders, tws_error *err);

#endif
