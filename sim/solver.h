/* Who solves the flows of an experiment: the simulator's own solver (sim/fluid.h), whose next date the executor asks
 * for, or SimGrid's network model, which tells of an end as of any other event of the engine. Both share links max-min
 * fairly. The flows, their bytes and when they begin are the executor's in either case. */
#ifndef TWS_SIM_SOLVER_H
#define TWS_SIM_SOLVER_H

#include <stdint.h>

#include "base/status.h"

typedef enum tws_solver_kind { TWS_SOLVER_OWN, TWS_SOLVER_SIMGRID } tws_solver_kind;
typedef struct tws_solver tws_solver;

/* Of SimGrid there is one at a time. Links have no capacity until they are given one. */
tws_code tws_solver_create(tws_solver_kind kind, int links, tws_solver **solver, tws_error *err);
void tws_solver_destroy(tws_solver *solver); /* NULL is allowed */
/* Bytes per second, from date `now_s` on, which is the engine's now, or before an experiment. */
void tws_solver_capacity(tws_solver *solver, int link, double bytes_per_s, double now_s);
/* bytes > 0 over at most TWS_FLUID_LINKS different links, from `now_s` on. */
tws_code tws_solver_flow(tws_solver *solver, const int *links, int count, double bytes, double now_s, uint64_t tag,
                         tws_error *err);
/* An event at this date, without a flow. */
tws_code tws_solver_date(tws_solver *solver, double date_s, uint64_t tag, tws_error *err);
/* When the next of these is due, and takes it. Infinity: nothing is, or the engine tells of it. */
double tws_solver_next(tws_solver *solver);
uint64_t tws_solver_take(tws_solver *solver);

#endif
