/* How a rank finds its launcher. */
#ifndef TWS_LAUNCH_CONTACT_H
#define TWS_LAUNCH_CONTACT_H

#include "base/status.h"
#include "launch/link.h"

/* A socket to the launcher at a local name, of a process of this user, to which HELLO was sent. */
tws_code tws_contact_here(const char *name, int rank, tws_link *link, tws_error *err);
/* "@ADDRESS:PORT,...": a connection to the first that proves that it knows the secret. A launcher that has no place for
 * a connection closes it, and a busy network may lose it: it is tried again, for half a minute. TWS_ENVIRONMENT: there
 * is none. */
tws_code tws_contact_far(const char *name, const uint8_t secret[TWS_SECRET], int rank, tws_link *link, tws_error *err);
/* The job's secret, which this takes out of the environment; a rank that srun has started reads a line of its standard
 * input. TWS_ENVIRONMENT: it did not reach this process. */
tws_code tws_contact_secret(uint8_t secret[TWS_SECRET], tws_error *err);

#endif
