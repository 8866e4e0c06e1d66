/* Checks the form of result files, which a user may have edited, before their members are read. */
#ifndef TWS_VALIDATION_RESULT_CHECKS_H
#define TWS_VALIDATION_RESULT_CHECKS_H

#include "base/json.h"

/* Checks that every member with a known name has the type and the range of that member in results. Fails with
 * TWS_INVALID and the position. */
tws_code tws_result_check(const tws_json *json, tws_error *err);

#endif
