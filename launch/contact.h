/* A rank's connection to its launcher. */
#ifndef TWS_LAUNCH_CONTACT_H
#define TWS_LAUNCH_CONTACT_H

#include "base/status.h"
#include "launch/link.h"

/* Connects to the launcher's local socket `name`, checks that its process belongs to this user, and sends HELLO. */
tws_code tws_contact_local(const char *name, int rank, tws_link *link, tws_error *err);
/* Connects to the first address of "@ADDRESS:PORT,..." whose listener proves that it knows the secret. A launcher that
 * already has its maximum of connections closes a new one, and a busy network may lose it: attempts are repeated for
 * half a minute. Fails with TWS_ENVIRONMENT when all attempts have failed. */
tws_code tws_contact_remote(const char *name, const uint8_t secret[TWS_SECRET], int rank, tws_link *link,
                            tws_error *err);
/* Reads the job's secret and removes it from the environment; a rank that srun has started reads it as a line of its
 * standard input. Fails with TWS_ENVIRONMENT if this process has received no secret. */
tws_code tws_contact_secret(uint8_t secret[TWS_SECRET], tws_error *err);

#endif
