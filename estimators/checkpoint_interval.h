/* How often to save, for a job whose failures come at random.
 *
 * J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; J. T. Daly, "A
 * higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006. Failures are
 * exponential with a mean time between them, of the whole job; they strike in saves and restarts too. Seconds
 * everywhere. */
#ifndef TWS_ESTIMATORS_CHECKPOINT_INTERVAL_H
#define TWS_ESTIMATORS_CHECKPOINT_INTERVAL_H

/* Work between the end of a save and the next, where a save holds the job up for `save_s`. */
double tws_interval_young(double save_s, double between_failures_s);
double tws_interval_daly(double save_s, double between_failures_s);
/* Share of the time that goes into work which is kept: interval_s of work, then a save; restart_s from a failure until
 * work goes on. Daly's exact expectation, his equation 20. between_failures_s INFINITY: without failures. */
double tws_interval_goodput(double interval_s, double save_s, double restart_s, double between_failures_s);

#endif
