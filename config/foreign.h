/* Private to config/: recognizes files of other programs that are given in place of a ds_config.json. Otherwise such
 * files would be accepted, because DeepSpeed ignores unknown top-level keys. */
#ifndef TWS_CONFIG_FOREIGN_H
#define TWS_CONFIG_FOREIGN_H

#include "base/json.h"

/* Fails with TWS_INVALID and a remedy if the file belongs to another program. json: the parsed text, or NULL if it is
 * not valid JSON (such as YAML): then only the text is searched. */
tws_code tws_config_refuse_foreign(const char *text, const char *name, const tws_json *json, tws_error *err);

#endif
