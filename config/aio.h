/* Reads the settings of the section "aio" that tws_aio (config/ds_config.h) does not have. */
#ifndef TWS_CONFIG_AIO_H
#define TWS_CONFIG_AIO_H

#include "config/ds_config.h"

/* Returns 1 if transfers between a disk and a device are to bypass host memory (aio.use_gds, GPUDirect Storage). */
int tws_config_uses_gds(const tws_config *config);

#endif
