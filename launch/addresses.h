/* Addresses of this machine. */
#ifndef TWS_LAUNCH_ADDRESSES_H
#define TWS_LAUNCH_ADDRESSES_H

#include <netinet/in.h>
#include "launch/hostfile.h"

enum { TWS_MOST_ADDRESSES = 32 };
/* Those from which this machine reaches the hosts, each once, and how many they are. A name may be an alias that only
 * ssh's configuration knows: the remote shell (its words, separated by blanks; NULL: none) is asked when it is ssh.
 * *unknown: a host of which nothing knows an address; the addresses are then all that this machine has. NULL: none.
 * hosts NULL: all addresses, too. */
int tws_addresses_towards(const tws_hosts *hosts, const char *remote_shell, struct in_addr out[TWS_MOST_ADDRESSES],
                          const char **unknown);

#endif
