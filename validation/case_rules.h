/* Rules about the sources of measured runs, with facts that the rows do not state. They are read from a data file in
 * the folder of the published rows (scenarios/published/sources.json). Private to validation/.
 *
 * The file is {"rules": [{"about", "when", "says"}, ...]}. Rules are looked at in their order; one whose "when" holds
 * for a row adds the members of "says" to the row's facts, except those that an earlier rule has added.
 *
 * "when" is an object all of whose members hold, or a list of such objects of which one holds; absent: always. A member
 * is a place, "section.key" or "key" of the row or "fact.NAME", with what is asked of it: true, false (not true), a
 * number, a text, a list of texts of which it is one, or an object of these, all of which hold:
 *   contains, begins, ends, lacks   a text, or a list of which one (lacks: none) fits
 *   above, at_least, at_most        a number; what is absent is 0
 *   before                          a text that its beginning comes before in the alphabet: releases such as "26.02"
 *   same_as                         a place with the same number
 *   is_false, is_text               true: it is there and false; a text
 *   not                             what must not hold
 * "any" is a list of which one holds, "none" one of which none does. In "says" a text "$PLACE" stands for what is
 * there, 0 where nothing is; in objects and lists too. */
#ifndef TWS_VALIDATION_CASE_RULES_H
#define TWS_VALIDATION_CASE_RULES_H

#include "base/json.h"

/* TWS_ENVIRONMENT: the file does not exist; TWS_INVALID with the line: it is not a list of such rules. */
tws_code tws_case_rules_load(tws_json **rules, tws_error *err);
tws_code tws_case_rules_check(const tws_json *rules, tws_error *err);
/* Adds the facts that the rules derive from a row to its facts. */
tws_code tws_case_rules_apply(const tws_json *rules, const cJSON *row, cJSON *facts, tws_error *err);

#endif
