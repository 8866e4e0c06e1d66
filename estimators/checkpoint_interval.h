/* The interval between checkpoints, for a job with random failures.
 *
 * J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; J. T. Daly, "A
 * higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006. Failures of the whole
 * job are exponentially distributed with a mean time between them; they occur during saves and restarts too. All times
 * are in seconds. */
#ifndef TWS_ESTIMATORS_CHECKPOINT_INTERVAL_H
#define TWS_ESTIMATORS_CHECKPOINT_INTERVAL_H

/* Returns the optimal work time between two saves, where a save stops the job for `save_s`. */
double tws_interval_young(double save_s, double between_failures_s);
double tws_interval_daly(double save_s, double between_failures_s);
/* Returns the share of time spent in work that is kept, where interval_s of work are followed by a save and a restart
 * takes restart_s from the failure until work continues. Daly's exact expectation, his equation 20. between_failures_s
 * INFINITY: no failures. */
double tws_interval_goodput(double interval_s, double save_s, double restart_s, double between_failures_s);

#endif
