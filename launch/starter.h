/* The commands that start ranks. */
#ifndef TWS_LAUNCH_STARTER_H
#define TWS_LAUNCH_STARTER_H

#include "base/memory.h"
#include "launch/launch.h"

/* 1: ranks are on other machines as well, and reach the launcher through the network. */
int tws_launch_is_far(const tws_launch_options *options);

#endif
