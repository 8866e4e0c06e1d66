/* Private to config/: files of other programs that are taken for a ds_config.json, because DeepSpeed leaves top-level
 * keys alone that it does not know. */
#ifndef TWS_CONFIG_FOREIGN_H
#define TWS_CONFIG_FOREIGN_H

#include "base/json.h"

/* TWS_INVALID for a file of another program, with what to do with it. json: the text as it was read; NULL where it
 * could not be, as lists of YAML: the text alone is looked at then. */
tws_code tws_config_refuse_foreign(const char *text, const char *name, const tws_json *json, tws_error *err);

#endif
