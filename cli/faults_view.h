/* What failures mean for the best of a search: how often to save, and what is then left of their speed. */
#ifndef TWS_CLI_FAULTS_VIEW_H
#define TWS_CLI_FAULTS_VIEW_H

#include "autotune/goodput.h"
#include "cli/cli.h"

tws_code tws_faults_print(const tws_cli *cli, const tws_goodput *goodput, tws_error *err);
/* Adds a member "faults" to the document, "best" of which has the first few of the ranking. */
tws_code tws_faults_add_json(const tws_goodput *goodput, tws_text *document, tws_error *err);

#endif
