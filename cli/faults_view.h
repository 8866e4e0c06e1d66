/* What failures mean for the best of a search: how often to save, and what is then left of their speed. */
#ifndef TWS_CLI_FAULTS_VIEW_H
#define TWS_CLI_FAULTS_VIEW_H

#include "autotune/results.h"
#include "cli/cli.h"

/* between_s: between failures of the whole job. In JSON a member "faults" of the document, "best" of which
 * has the first few of the ranking. */
tws_code tws_faults_print(const tws_cli *cli, const tws_tune_report *report, double between_s, tws_error *err);
tws_code tws_faults_add_json(const tws_tune_report *report, double between_s, tws_text *document, tws_error *err);

#endif
