/* A C interface to SimGrid: one engine per process, started on first use, which runs experiments one after another.
 *
 * There are no actors. The caller starts timers and executions with a tag, and the engine calls one function with that
 * tag when each ends. Hosts and links are pools that grow between experiments. Functions return 0, or -1 with a reason
 * in tws_engine_error(). Not thread-safe, as SimGrid is not. */
#ifndef TWS_SIM_ADAPTER_H
#define TWS_SIM_ADAPTER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*tws_engine_done)(void *user, uint64_t tag);

/* Grow the pools to at least this number of hosts, or of links. Allowed only between experiments. */
int tws_engine_reserve(int hosts);
int tws_engine_reserve_links(int links);

/* Begins an experiment at time 0; `done` is called when a timer, flow or execution ends. */
int tws_engine_begin(tws_engine_done done, void *user);
double tws_engine_now(void); /* seconds since the experiment began */
int tws_engine_timer(double date_s, uint64_t tag);
/* Sets the date at which the engine's only timer of a kind ends; infinity cancels the timer. */
typedef enum tws_engine_alarm_kind { TWS_ALARM_NETWORK, TWS_ALARM_LINKS, TWS_ALARM_KINDS } tws_engine_alarm_kind;
int tws_engine_alarm(tws_engine_alarm_kind kind, double date_s, uint64_t tag);
/* Sets the bandwidth of a link, in bytes per second, from now on. Before an experiment begins it sets the largest
 * bandwidth that the link has in the experiment. tws_engine_run() reports a failure. */
void tws_engine_capacity(int link, double bytes_per_s);
/* Starts a flow of SimGrid's network model over these links at the current time. */
int tws_engine_flow(const int *links, int count, double bytes, uint64_t tag);
/* Starts an execution that takes `seconds` on an idle host and never more than `share` of it (0 < share <= 1).
 * Concurrent executions get capacity in proportion to their shares. */
int tws_engine_execute(int host, double seconds, double share, uint64_t tag);
/* Runs the experiment until no timer, flow or execution is pending. */
int tws_engine_run(void);

const char *tws_engine_error(void);
const char *tws_engine_description(void); /* "SimGrid 3.32" */

#ifdef __cplusplus
}
#endif
#endif
