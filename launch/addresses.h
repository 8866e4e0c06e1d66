/* Addresses of this machine. */
#ifndef TWS_LAUNCH_ADDRESSES_H
#define TWS_LAUNCH_ADDRESSES_H

#include <netinet/in.h>
#include "launch/hostfile.h"

enum { TWS_MOST_ADDRESSES = 32 };
/* Those from which this machine reaches the hosts, each once, and how many they are. *unknown: a host of which this
 * machine knows no address (a remote shell may); the addresses are then all that this machine has. NULL: none.
 * hosts NULL: all addresses, too. */
int tws_addresses_towards(const tws_hosts *hosts, struct in_addr out[TWS_MOST_ADDRESSES], const char **unknown);

#endif
