/* Lists of values for `estimate` and `simulate`: one job for each combination, as in --seq 2048,4096 --micro-batch
 * 1,2,4. */
#ifndef TWS_CLI_LISTS_H
#define TWS_CLI_LISTS_H

#include "cli/cli.h"
#include "cli/job_options.h"
#include "job/serving.h"
#include "job/simulate.h"

#define TWS_LISTS_NOTES                                                                                               \
  "Lists: -n, --pp, --tp, --sp, --ep, --stage, --seq, --micro-batch and --accumulation take several values, as in\n"  \
  "--seq 2048,4096. Each combination is a row, in this order of options, of which the last varies fastest; what is\n" \
  "refused is a row with the reason. --json prints an array. Exit code 1: no row fits.\n"

/* Options that accept lists, slowest first: the last one given varies fastest in the rows. */
extern const char *const tws_listed_options[];

typedef struct tws_lists_request {
  const tws_option_lists *sweep;
  const void *options; /* the subcommand's options, whose tws_job_spec is at spec_offset */
  size_t options_bytes, spec_offset;
  const char *program;    /* value of --program */
  /* the question about inference, whose texts at a time are the job's micro batch; NULL: training steps */
  const tws_serve_request *serving;
  const char *csv;        /* file of the CSV; NULL: none; "-": standard output, in place of the table */
  const tws_sim_api *sim; /* the simulator; NULL: steps are estimated by their longest paths */
  tws_fidelity fidelity;
  int all_ranks;
} tws_lists_request;

int tws_lists_given(const tws_option_lists *sweep); /* returns 1 if any option was given as a list */
/* Evaluates all combinations in worker processes, prints them as a table, or as an array with --json, and writes the
 * CSV. TWS_NO: no combination fits. */
tws_code tws_lists_run(const tws_cli *cli, const tws_lists_request *request, tws_error *err);
/* Appends a text as a field of a CSV file, quoted if necessary. */
void tws_csv_field(tws_text *out, const char *text);

#endif
