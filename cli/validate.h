/* The parts of `twinspeed validate`: one configuration in depth, the accuracy experiment over many configurations, and
 * published runs. */
#ifndef TWS_CLI_VALIDATE_H
#define TWS_CLI_VALIDATE_H

#include "cli/cli.h"
#include "job/simulate.h"

typedef struct tws_validate_options {
  tws_job_spec job;
  const char *data, *trace, *figures, *fidelity, *ranks, *save_profile, *cases;
  tws_strings group;
  int64_t steps, rounds, global_batch, worst;
  double tolerance; /* limit of the error in percent; -1: not given */
  int sweep, simulate, measured, force;
} tws_validate_options;

tws_code tws_validate_sweep(const tws_cli *cli, const tws_validate_options *o, tws_error *err);
tws_code tws_validate_cases(const tws_cli *cli, const tws_validate_options *o, tws_error *err);
/* Sets *served to 1 if a file of published runs is one of inference, which the second function compares. */
tws_code tws_validate_is_served(const char *path, int *served, tws_error *err);
tws_code tws_validate_served(const tws_cli *cli, const tws_validate_options *o, tws_error *err);
tws_code tws_validate_measured(const tws_cli *cli, const tws_validate_options *o, tws_error *err);
/* Prints "plot: gnuplot is not installed", or the path of the figure; a missing figure is never an error of the
 * subcommand. */
void tws_validate_figure_note(const tws_cli *cli, tws_code code, const char *path, const tws_error *err);

#endif
