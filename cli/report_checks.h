/* Results come from files that anybody may have edited: what `report` reads of them has to be what it takes it for. */
#ifndef TWS_CLI_REPORT_CHECKS_H
#define TWS_CLI_REPORT_CHECKS_H

#include "base/json.h"

/* Every member of a known name has the type and the range that results give it. TWS_INVALID with the place. */
tws_code tws_report_check(const tws_json *json, tws_error *err);

#endif
