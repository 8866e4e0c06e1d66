/* Private to config/. */
#ifndef TWS_CONFIG_CHECK_H
#define TWS_CONFIG_CHECK_H

#include "config/store.h"

/* Visitor for tws_store_walk(): checks the item against the type, range and allowed values of its key's row. */
tws_code tws_key_check(tws_walk *walk, const tws_key *key, const cJSON *item);

#endif
