/* Prints the goodput under failures of the best candidates of a search: the interval between checkpoints, and the
 * remaining throughput. */
#ifndef TWS_CLI_FAULTS_VIEW_H
#define TWS_CLI_FAULTS_VIEW_H

#include "autotune/goodput.h"
#include "cli/cli.h"

tws_code tws_faults_print(const tws_cli *cli, const tws_goodput *goodput, tws_error *err);
/* Adds a member "faults" to the document; its member "best" has the first candidates of the ranking. */
tws_code tws_faults_add_json(const tws_goodput *goodput, tws_text *document, tws_error *err);

#endif
