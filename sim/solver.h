/* The solver computes the rates of an experiment's flows. It is this project's own solver (sim/fluid.h), which the
 * executor polls for its next event, or SimGrid's network model, in which the end of a flow is an event of the engine.
 * Both share links max-min fairly. In both cases the executor determines the flows, their bytes and when they begin. */
#ifndef TWS_SIM_SOLVER_H
#define TWS_SIM_SOLVER_H

#include <stdint.h>

#include "base/status.h"

typedef enum tws_solver_kind { TWS_SOLVER_OWN, TWS_SOLVER_SIMGRID } tws_solver_kind;
typedef struct tws_solver tws_solver;

/* Creates a solver without flows. At most one SimGrid solver exists at a time. Links have no capacity until
 * tws_solver_capacity() sets it. */
tws_code tws_solver_create(tws_solver_kind kind, int links, tws_solver **solver, tws_error *err);
void tws_solver_destroy(tws_solver *solver); /* NULL is allowed */
/* Sets a link's bandwidth from date `now_s` on, which is the engine's current time. It may also be called before an
 * experiment starts. */
void tws_solver_capacity(tws_solver *solver, int link, double bytes_per_s, double now_s);
/* Starts a flow of bytes > 0 over at most TWS_FLUID_LINKS distinct links at `now_s`. */
tws_code tws_solver_flow(tws_solver *solver, const int *links, int count, double bytes, double now_s, uint64_t tag,
                         tws_error *err);
/* Adds an event at this date, without a flow. */
tws_code tws_solver_date(tws_solver *solver, double date_s, uint64_t tag, tws_error *err);
/* tws_solver_next() returns the date of the solver's next event; infinity: there is none, or it will be an event of the
 * engine. tws_solver_pop() removes this event and returns its tag. */
double tws_solver_next(tws_solver *solver);
uint64_t tws_solver_pop(tws_solver *solver);

#endif
