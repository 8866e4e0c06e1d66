/* Private to config/: checks given values against the table of keys. */
#ifndef TWS_CONFIG_CHECK_H
#define TWS_CONFIG_CHECK_H

#include "config/store.h"

/* Checks the item against the type, range and allowed values of its key's row; it is a visitor for tws_store_walk(). */
tws_code tws_key_check(tws_walk *walk, const tws_key *key, const cJSON *item);

#endif
