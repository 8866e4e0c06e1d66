/* Read the members of a measured run's row, and its recorded properties (tws_case.facts), which the rules about its
 * source derive (case_rules.h). `section` is an object inside the row; NULL: the row itself. Private to validation/. */
#ifndef TWS_VALIDATION_CASE_FIELDS_H
#define TWS_VALIDATION_CASE_FIELDS_H

#include <cjson/cJSON.h>

#include "validation/cases.h"

/* Returns the member; NULL: it is absent or null */
const cJSON *tws_case_member(const cJSON *row, const char *section, const char *key);
/* Returns the number; 0: it is absent, or above 1e15 */
double tws_case_number(const cJSON *row, const char *section, const char *key);
/* Returns the integer; 0: it is absent, or above 1e9 */
int tws_case_int(const cJSON *row, const char *section, const char *key);
/* Returns the text; "": it is absent */
const char *tws_case_text(const cJSON *row, const char *section, const char *key);
int tws_case_flag(const cJSON *row, const char *section, const char *key);

/* Return a property of the run by the name that a rule of scenarios/published/sources.json gives it; NULL, 0 or "" if
 * the run has no such property. */
const cJSON *tws_case_fact(const tws_case *one, const char *name); /* returns any type of property */
double tws_case_fact_number(const tws_case *one, const char *name);
const char *tws_case_fact_text(const tws_case *one, const char *name);
int tws_case_fact_flag(const tws_case *one, const char *name);

/* Collects the properties of a row in *facts, which the caller deletes (case_facts.c): first those that follow from the
 * row's sizes, "llama", "plain" (a Llama without a gate), "kv_heads", "ffn_of_gpt", "ffn_of_llama", "ffn_of_experts",
 * and "trained_rank", the rank of adapters of queries and values; then those that the rules add. */
tws_code tws_case_find_facts(const tws_json *rules, const cJSON *row, cJSON **facts, tws_error *err);

#endif
