/* twinspeed --version: the version and what this build and machine can do. */
#ifndef TWS_CLI_VERSION_H
#define TWS_CLI_VERSION_H

#include <cjson/cJSON.h>

#ifndef TWS_VERSION
#define TWS_VERSION "0.1.0"
#endif
void tws_print_version(void);

#endif
