/* Rules about the sources of measured runs, which add properties that the rows do not state. They are read from a data
 * file in the folder of the published rows (scenarios/published/sources.json). Private to validation/.
 *
 * The file is {"rules": [{"about", "when", "says"}, ...]}. Rules are evaluated in their order; if the "when" of a
 * rule holds for a row, the members of "says" are added to the row's properties, except those that an earlier rule has
 * added.
 *
 * "when" is an object all of whose members hold, or a list of such objects of which one holds; absent: always. The
 * name of a member is a reference: "section.key" or "key" of the row, or "fact.NAME" for a property. Its value is the
 * condition: true, false (not true), a number, a text, a list of texts of which one is equal, or an object of the
 * following tests, all of which hold:
 *   contains, begins, ends, lacks   a text, or a list of texts of which one (lacks: none) does
 *   above, at_least, at_most        a number; an absent member counts as 0
 *   before                          a text that follows the start of the member in the alphabet: releases ("26.02")
 *   same_as                         a reference to a member with an equal number
 *   is_false, is_text               true: the member is present and false, or is a text
 *   has                             a text; the member is a list that contains it, or one of a list of texts
 *   not                             a condition that does not hold
 * "any" is a list of conditions of which one holds, "none" a list of which none holds. In "says" a text "$REFERENCE"
 * stands for the value of that member, or for 0 if it is absent, in objects and lists too. */
#ifndef TWS_VALIDATION_CASE_RULES_H
#define TWS_VALIDATION_CASE_RULES_H

#include "base/json.h"

/* Reads the file of the rules. Fails with TWS_ENVIRONMENT if it does not exist, and with TWS_INVALID and the line if it
 * is not a list of rules. */
tws_code tws_case_rules_load(tws_json **rules, tws_error *err);
tws_code tws_case_rules_check(const tws_json *rules, tws_error *err);
/* Adds the properties that the rules derive from a row to `facts`. */
tws_code tws_case_rules_apply(const tws_json *rules, const cJSON *row, cJSON *facts, tws_error *err);

#endif
