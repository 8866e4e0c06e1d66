/* A solver for flows over links that they share max-min fairly, with timers ("dates") in the same queue.
 *
 * Max-min fairness is computed by progressive filling (Bertsekas and Gallager, Data Networks, 6.5.2): all rates rise
 * together until a link is full; the flows over it keep their rate, and the others continue to rise. SimGrid's model
 * CM02 computes the same for links without latency. This solver is faster for many flows: when a flow starts or ends,
 * it recomputes only the connected component of flows that share links with it, directly or through others, and updates
 * a heap of end dates.
 *
 * The caller owns the clock: tws_fluid_next() returns the date of the next event, tws_fluid_pop() removes it.
 * Simultaneous events are taken in the order in which they were added, so runs are reproducible. */
#ifndef TWS_SIM_FLUID_H
#define TWS_SIM_FLUID_H

#include <stdint.h>

typedef struct tws_fluid tws_fluid;
enum { TWS_FLUID_LINKS = 4 }; /* largest number of links of a flow */

/* Returns a solver without flows; NULL: out of memory. Links have capacity 0 until tws_fluid_capacity() sets it. */
tws_fluid *tws_fluid_create(int links);
void tws_fluid_destroy(tws_fluid *fluid); /* NULL is allowed */
/* Sets a link's bandwidth from date `now_s` on. */
void tws_fluid_capacity(tws_fluid *fluid, int link, double bytes_per_s, double now_s);
/* tws_fluid_flow() adds a flow of bytes > 0 over distinct links, tws_fluid_date() adds a timer. Both return 0, or -1 if
 * out of memory. */
int tws_fluid_flow(tws_fluid *fluid, const int *links, int count, double bytes, double now_s, uint64_t tag);
int tws_fluid_date(tws_fluid *fluid, double date_s, uint64_t tag);
/* Returns the date at which the next flow ends or the next timer expires; infinity: there is none. */
double tws_fluid_next(tws_fluid *fluid);
/* Removes the event that is due at tws_fluid_next() and returns its tag. */
uint64_t tws_fluid_pop(tws_fluid *fluid);

#endif
