/* twinspeed --version: prints the version, and the capabilities of this build and of this machine. */
#ifndef TWS_CLI_VERSION_H
#define TWS_CLI_VERSION_H

#include <cjson/cJSON.h>

#ifndef TWS_VERSION
#define TWS_VERSION "0.1.0"
#endif
void tws_print_version(void);

#endif
