/* Members of a measured run's row; private to validation/. section NULL: the row itself. */
#ifndef TWS_VALIDATION_CASE_FIELDS_H
#define TWS_VALIDATION_CASE_FIELDS_H

#include <cjson/cJSON.h>

const cJSON *tws_case_member(const cJSON *row, const char *section, const char *key); /* NULL: absent or null */
double tws_case_number(const cJSON *row, const char *section, const char *key);       /* 0: absent */
const char *tws_case_text(const cJSON *row, const char *section, const char *key);    /* "": absent */
int tws_case_flag(const cJSON *row, const char *section, const char *key);

#endif
