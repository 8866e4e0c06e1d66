/* Flows over links that they share fairly, and dates: what moves on the network, between the engine's own events.
 *
 * Max-min fairness: rates rise together until a link is full; the flows over it keep theirs, the others go on
 * (Bertsekas and Gallager, Data Networks, 6.5.2). It is what SimGrid's model CM02 computes for links without latency.
 * It is solved here because an engine that knows nothing of rings searches lists when a flow ends: here a flow that
 * starts or ends costs the flows that it shares links with, directly or through others, and a heap.
 *
 * Time is the caller's: tws_fluid_next() says when something happens next, tws_fluid_take() takes it. Ties come in the
 * order in which they began, so two runs do the same. */
#ifndef TWS_SIM_FLUID_H
#define TWS_SIM_FLUID_H

#include <stdint.h>

typedef struct tws_fluid tws_fluid;
enum { TWS_FLUID_LINKS = 4 }; /* of a flow, at most */

/* NULL: no memory. Links have capacity 0 until they are given one. */
tws_fluid *tws_fluid_create(int links);
void tws_fluid_destroy(tws_fluid *fluid); /* NULL is allowed */
/* Bytes per second, from date `now_s` on. */
void tws_fluid_capacity(tws_fluid *fluid, int link, double bytes_per_s, double now_s);
/* bytes > 0 over different links. Returns 0, or -1 without memory; so the next. */
int tws_fluid_flow(tws_fluid *fluid, const int *links, int count, double bytes, double now_s, uint64_t tag);
int tws_fluid_date(tws_fluid *fluid, double date_s, uint64_t tag);
/* When the next flow or date is due; infinity: nothing moves. */
double tws_fluid_next(tws_fluid *fluid);
/* Takes what is due at tws_fluid_next(): its tag. */
uint64_t tws_fluid_take(tws_fluid *fluid);

#endif
