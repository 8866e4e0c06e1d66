/* Checks of result files, which a user may have edited, before their members are read. */
#ifndef TWS_VALIDATION_RESULT_CHECKS_H
#define TWS_VALIDATION_RESULT_CHECKS_H

#include "base/json.h"

/* Every member of a known name has the type and the range that results give it. TWS_INVALID with the place. */
tws_code tws_result_check(const tws_json *json, tws_error *err);

#endif
