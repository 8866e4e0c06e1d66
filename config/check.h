/* Private to config/. */
#ifndef TWS_CONFIG_CHECK_H
#define TWS_CONFIG_CHECK_H

#include "config/store.h"

/* A visitor that holds the type, range and allowed values of the row against the item. */
tws_code tws_key_check(tws_walk *walk, const tws_key *key, const cJSON *item);

#endif
