/* One job for each combination of lists: --seq 2048,4096 --micro-batch 1,2,4. Of `estimate` and `simulate`. */
#ifndef TWS_CLI_LISTS_H
#define TWS_CLI_LISTS_H

#include "cli/cli.h"
#include "cli/job_options.h"
#include "job/simulate.h"

#define TWS_LISTS_NOTES                                                                                               \
  "Lists: -n, --pp, --tp, --sp, --ep, --stage, --seq, --micro-batch and --accumulation take several values, as in\n"  \
  "--seq 2048,4096. Each combination is a row, in this order of options, of which the last varies fastest; what is\n" \
  "refused is a row with the reason. --json prints an array. Exit code 1: no row fits.\n"

/* The options that take lists, slowest first: the last one given varies fastest in the rows. */
extern const char *const tws_listed_options[];

typedef struct tws_lists_request {
  const tws_option_lists *sweep;
  const void *options; /* of the verb, with the job's tws_job_spec at spec_offset */
  size_t options_bytes, spec_offset;
  const char *program;    /* as --program */
  const char *csv;        /* NULL: none; "-": in the place of the table */
  const tws_sim_api *sim; /* NULL: the longest path alone */
  tws_fidelity fidelity;
  int all_ranks;
} tws_lists_request;

int tws_lists_given(const tws_option_lists *sweep); /* whether any option was given as a list */
/* Computes all points in processes, prints them as a table, or as an array with --json, and writes the CSV.
 * TWS_NO where no point fits. */
tws_code tws_lists_run(const tws_cli *cli, const tws_lists_request *request, tws_error *err);
/* A text as a field of a CSV file, in quotes where it has to be. */
void tws_csv_field(tws_text *out, const char *text);

#endif
