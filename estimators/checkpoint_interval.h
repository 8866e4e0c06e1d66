/* Computes the interval between checkpoints of a job with random failures.
 *
 * J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; J. T. Daly, "A
 * higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006. Failures of the whole
 * job are exponentially distributed with a mean time between them; they occur during saves and restarts too. All times
 * are in seconds. */
#ifndef TWS_ESTIMATORS_CHECKPOINT_INTERVAL_H
#define TWS_ESTIMATORS_CHECKPOINT_INTERVAL_H

/* Returns the optimal seconds of work between two saves, if each save stops the job for `save_s`. */
double tws_interval_young(double save_s, double between_failures_s);
double tws_interval_daly(double save_s, double between_failures_s);
/* Returns the share of time (0 to 1) spent in work that is not lost by a failure, if every interval_s of work are
 * followed by a save, and a restart takes restart_s from the failure until work continues. It is Daly's exact
 * expectation, his equation 20. between_failures_s INFINITY: there are no failures. */
double tws_interval_goodput(double interval_s, double save_s, double restart_s, double between_failures_s);

#endif
