/* Members of a measured run's row, and the facts that the rules of its sources add (case_rules.h); private to
 * validation/. section NULL: the row itself. */
#ifndef TWS_VALIDATION_CASE_FIELDS_H
#define TWS_VALIDATION_CASE_FIELDS_H

#include <cjson/cJSON.h>

#include "validation/cases.h"

const cJSON *tws_case_member(const cJSON *row, const char *section, const char *key); /* NULL: absent or null */
double tws_case_number(const cJSON *row, const char *section, const char *key);       /* 0: absent, or above 1e15 */
int tws_case_int(const cJSON *row, const char *section, const char *key);             /* 0: the same, or above 1e9 */
const char *tws_case_text(const cJSON *row, const char *section, const char *key);    /* "": absent */
int tws_case_flag(const cJSON *row, const char *section, const char *key);

/* Facts of the run, by the names that the rules give them. */
const cJSON *tws_case_fact(const tws_case *one, const char *name); /* NULL: nothing */
double tws_case_fact_number(const tws_case *one, const char *name);
const char *tws_case_fact_text(const tws_case *one, const char *name);
int tws_case_fact_flag(const tws_case *one, const char *name);

/* case_facts.c: the facts of a row, beginning with sizes that follow from it: "llama", "plain" (a Llama without a
 * gate), "kv_heads", "ffn_of_gpt", "ffn_of_llama", "ffn_of_experts", and the rank of adapters of queries and values,
 * "trained_rank". The caller deletes *facts. */
tws_code tws_case_find_facts(const tws_json *rules, const cJSON *row, cJSON **facts, tws_error *err);

#endif
