/* Addresses of this machine. */
#ifndef TWS_LAUNCH_ADDRESSES_H
#define TWS_LAUNCH_ADDRESSES_H

#include <netinet/in.h>
#include "launch/hostfile.h"

enum { TWS_MOST_ADDRESSES = 32 };
/* Finds the addresses of this machine from which it reaches the hosts, each once, and returns their number. A host name
 * may be an alias that only ssh's configuration resolves: if the remote shell (a command whose words are separated by
 * blanks; NULL: none) is ssh, it is asked. If a host has no known address, *unknown is set to its name (else NULL), and
 * all addresses of this machine are returned; they are also returned if hosts is NULL. */
int tws_addresses_for_hosts(const tws_hosts *hosts, const char *remote_shell, struct in_addr out[TWS_MOST_ADDRESSES],
                            const char **unknown);

#endif
