/* Members of a measured run's row; private to validation/. section NULL: the row itself. */
#ifndef TWS_VALIDATION_CASE_FIELDS_H
#define TWS_VALIDATION_CASE_FIELDS_H

#include <cjson/cJSON.h>

#include "base/memory.h"

const cJSON *tws_case_member(const cJSON *row, const char *section, const char *key); /* NULL: absent or null */
double tws_case_number(const cJSON *row, const char *section, const char *key);       /* 0: absent */
const char *tws_case_text(const cJSON *row, const char *section, const char *key);    /* "": absent */
int tws_case_flag(const cJSON *row, const char *section, const char *key);

/* case_experts.c: whether a row is of a model of experts, and of one whose sizes are known; its config.json. */
int tws_case_has_experts(const cJSON *row);
int tws_case_knows_experts(const cJSON *row);
int tws_case_is_gpt_with_experts(const cJSON *row);
void tws_case_write_experts(const cJSON *row, tws_text *text);

#endif
