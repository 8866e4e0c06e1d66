/* SimGrid behind C: one engine per process, started on first use, that runs experiments one after another.
 *
 * There are no actors. The caller starts timers and executions, and is told of each one's end through one function with
 * the tag it gave. Hosts and links are pools that grow between experiments. Functions
 * return 0, or -1 with a reason in tws_engine_error(). Not thread-safe, as SimGrid is not. */
#ifndef TWS_SIM_ADAPTER_H
#define TWS_SIM_ADAPTER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*tws_engine_done)(void *user, uint64_t tag);

/* Room for so many hosts, or links. Only between experiments. */
int tws_engine_reserve(int hosts);
int tws_engine_reserve_links(int links);

/* Begin an experiment at time 0. */
int tws_engine_begin(tws_engine_done done, void *user);
double tws_engine_now(void); /* seconds since the experiment began */
int tws_engine_timer(double date_s, uint64_t tag);
/* One timer of a kind, which may be moved: it replaces what was set before. Infinity: there is none. */
typedef enum tws_engine_alarm_kind { TWS_ALARM_NETWORK, TWS_ALARM_LINKS, TWS_ALARM_KINDS } tws_engine_alarm_kind;
int tws_engine_alarm(tws_engine_alarm_kind kind, double date_s, uint64_t tag);
/* What flows over a link share from now on, in bytes per second; before an experiment begins: the most that they ever
 * share in it. A failure is told by tws_engine_run(). */
void tws_engine_capacity(int link, double bytes_per_s);
/* A flow of SimGrid's network model over these links, which begins now. */
int tws_engine_flow(const int *links, int count, double bytes, uint64_t tag);
/* `share` of a host for `seconds`: an execution that ends after `seconds` when nothing else wants the host, and never
 * takes more than its share (0 < share <= 1). Beside others it gets capacity in proportion to its share. */
int tws_engine_execute(int host, double seconds, double share, uint64_t tag);
/* Returns when nothing is pending. */
int tws_engine_run(void);

const char *tws_engine_error(void);
const char *tws_engine_description(void); /* "SimGrid 3.32" */

#ifdef __cplusplus
}
#endif
#endif
