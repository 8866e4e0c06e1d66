#include "validation/case_rules.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "job/modules.h"

/* The objects in which the reference "section.key" of a rule is looked up. */
typedef struct view {
  const cJSON *row, *facts;
} view;

static const cJSON *at(const view *v, const char *place) {
  char section[64];
  const char *point = strchr(place, '.');
  const cJSON *object = v->row;
  if (point) {
    snprintf(section, sizeof section, "%.*s", (int)(point - place), place);
    object = strcmp(section, "fact") == 0 ? v->facts : cJSON_GetObjectItemCaseSensitive(v->row, section);
    place = point + 1;
  }
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, place);
  return item && !cJSON_IsNull(item) ? item : NULL;
}

static const char *text_of(const cJSON *item) {
  return cJSON_IsString(item) ? item->valuestring : "";
}

static double number_of(const cJSON *item) {
  return cJSON_IsNumber(item) && fabs(item->valuedouble) <= 1e15 ? item->valuedouble : 0;
}

/* ---- tests of a text or a number ---- */

static int contains(const char *text, const char *word) {
  return strstr(text, word) != NULL;
}

static int begins(const char *text, const char *word) {
  return strncmp(text, word, strlen(word)) == 0;
}

static int ends(const char *text, const char *word) {
  const size_t a = strlen(text), b = strlen(word);
  return a >= b && strcmp(text + a - b, word) == 0;
}

static int is(const char *text, const char *word) {
  return strcmp(text, word) == 0;
}

/* Returns 1 if the test holds for `words`, or for one of them if it is a list. */
static int fits(int (*test)(const char *text, const char *word), const char *text, const cJSON *words) {
  const cJSON *word;
  if (cJSON_IsString(words)) return test(text, words->valuestring);
  cJSON_ArrayForEach(word, words) if (test(text, text_of(word))) return 1;
  return 0;
}

/* Returns 1 if the list contains the text `words`, or one of them if it is a list. */
static int has(const cJSON *list, const cJSON *words) {
  const cJSON *item;
  cJSON_ArrayForEach(item, list) if (fits(is, text_of(item), words)) return 1;
  return 0;
}

typedef enum argument { TEXTS, NUMBER, TRUE, PLACE, CONDITION } argument;
static const struct {
  const char *name;
  argument takes;
} questions[] = {{"contains", TEXTS},  {"begins", TEXTS},   {"ends", TEXTS},   {"lacks", TEXTS},   {"above", NUMBER},
                 {"at_least", NUMBER}, {"at_most", NUMBER}, {"before", TEXTS}, {"same_as", PLACE}, {"is_false", TRUE},
                 {"is_text", TRUE},    {"not", CONDITION},  {"has", TEXTS}};
enum {
  CONTAINS,
  BEGINS,
  ENDS,
  LACKS,
  ABOVE,
  AT_LEAST,
  AT_MOST,
  BEFORE,
  SAME_AS,
  IS_FALSE,
  IS_TEXT,
  NOT,
  HAS,
  QUESTIONS
};

static int question_of(const char *name) {
  int i = 0;
  while (i < QUESTIONS && strcmp(questions[i].name, name) != 0) i++;
  return i;
}

static int holds_of(const view *v, const cJSON *item, const cJSON *asked);

static int answer(const view *v, const cJSON *item, const cJSON *question) {
  const char *text = text_of(item);
  const double number = number_of(item);
  switch (question_of(question->string)) {
    case CONTAINS:
      return fits(contains, text, question);
    case BEGINS:
      return fits(begins, text, question);
    case ENDS:
      return fits(ends, text, question);
    case LACKS:
      return !fits(contains, text, question);
    case ABOVE:
      return number > question->valuedouble;
    case AT_LEAST:
      return number >= question->valuedouble;
    case AT_MOST:
      return number <= question->valuedouble;
    case BEFORE:
      return strncmp(text, question->valuestring, strlen(question->valuestring)) < 0;
    case SAME_AS:
      return number == number_of(at(v, question->valuestring));
    case IS_FALSE:
      return cJSON_IsFalse(item);
    case IS_TEXT:
      return cJSON_IsString(item);
    case HAS:
      return has(item, question);
    default:
      return !holds_of(v, item, question);
  }
}

static int holds_of(const view *v, const cJSON *item, const cJSON *asked) {
  const cJSON *question;
  if (cJSON_IsBool(asked)) return cJSON_IsTrue(item) == cJSON_IsTrue(asked);
  if (cJSON_IsNumber(asked)) return number_of(item) == asked->valuedouble;
  if (!cJSON_IsObject(asked)) return fits(is, text_of(item), asked);
  cJSON_ArrayForEach(question, asked) if (!answer(v, item, question)) return 0;
  return 1;
}

/* ---- rules ---- */

static int holds(const view *v, const cJSON *when);

static int one_holds(const view *v, const cJSON *list) {
  const cJSON *when;
  cJSON_ArrayForEach(when, list) if (holds(v, when)) return 1;
  return 0;
}

static int holds(const view *v, const cJSON *when) {
  const cJSON *member;
  if (cJSON_IsArray(when)) return one_holds(v, when);
  cJSON_ArrayForEach(member, when) {
    const int kind = is(member->string, "any") ? 1 : is(member->string, "none") ? -1 : 0;
    if (kind ? one_holds(v, member) != (kind > 0) : !holds_of(v, at(v, member->string), member)) return 0;
  }
  return 1;
}

/* Returns a copy in which each "$REFERENCE" is replaced by the value to which it refers; NULL: memory is exhausted. */
static cJSON *say(const view *v, const cJSON *value) {
  const char *text = text_of(value);
  if (text[0] == '$') {
    const cJSON *there = at(v, text + 1);
    return there ? cJSON_Duplicate(there, 1) : cJSON_CreateNumber(0);
  }
  if (!cJSON_IsArray(value) && !cJSON_IsObject(value)) return cJSON_Duplicate(value, 1);
  cJSON *copy = cJSON_IsArray(value) ? cJSON_CreateArray() : cJSON_CreateObject();
  const cJSON *member;
  cJSON_ArrayForEach(member, value) {
    cJSON *part = say(v, member);
    if (part && (member->string ? cJSON_AddItemToObject(copy, member->string, part) : cJSON_AddItemToArray(copy, part)))
      continue;
    cJSON_Delete(part);
    cJSON_Delete(copy);
    return NULL;
  }
  return copy;
}

tws_code tws_case_rules_apply(const tws_json *rules, const cJSON *row, cJSON *facts, tws_error *err) {
  const view v = {row, facts};
  const cJSON *rule, *said;
  cJSON_ArrayForEach(rule, cJSON_GetObjectItemCaseSensitive(rules->root, "rules")) {
    if (!holds(&v, cJSON_GetObjectItemCaseSensitive(rule, "when"))) continue;
    cJSON_ArrayForEach(said, cJSON_GetObjectItemCaseSensitive(rule, "says")) {
      if (cJSON_GetObjectItemCaseSensitive(facts, said->string)) continue;
      cJSON *value = say(&v, said);
      if (value && cJSON_AddItemToObject(facts, said->string, value)) continue;
      cJSON_Delete(value);
      return tws_fail(err, TWS_MEMORY, NULL, "out of memory for measured runs");
    }
  }
  return TWS_OK;
}

/* ---- the file ---- */

static tws_code check_list(const tws_json *rules, const cJSON *list, tws_error *err);

static int is_texts(const cJSON *item) {
  const cJSON *word;
  if (!cJSON_IsArray(item)) return cJSON_IsString(item);
  cJSON_ArrayForEach(word, item) if (!cJSON_IsString(word)) return 0;
  return 1;
}

/* Checks the form of the condition that a rule states for one member of a row. */
static tws_code check_asked(const tws_json *rules, const cJSON *asked, tws_error *err) {
  const cJSON *question;
  if (cJSON_IsBool(asked) || cJSON_IsNumber(asked) || is_texts(asked)) return TWS_OK;
  if (!cJSON_IsObject(asked))
    return tws_json_fail(rules, asked, err, "validation/case_rules.h has what can be asked",
                         "nothing that can be asked");
  cJSON_ArrayForEach(question, asked) {
    const int which = question_of(question->string);
    const argument takes = which < QUESTIONS ? questions[which].takes : TEXTS;
    const int good = takes == TEXTS && which != BEFORE ? is_texts(question)
                     : takes == NUMBER                 ? cJSON_IsNumber(question)
                     : takes == TRUE                   ? cJSON_IsTrue(question)
                     : takes == CONDITION              ? 1
                                                       : cJSON_IsString(question);
    if (which == QUESTIONS)
      return tws_json_fail(rules, question, err, "validation/case_rules.h has what can be asked",
                           "\"%.60s\" is nothing that can be asked", question->string);
    if (!good)
      return tws_json_fail(rules, question, err, NULL, "\"%.60s\" is asked with a value of another type",
                           question->string);
    if (takes == CONDITION) TWS_TRY(check_asked(rules, question, err));
  }
  return TWS_OK;
}

static tws_code check_when(const tws_json *rules, const cJSON *when, tws_error *err) {
  const cJSON *member;
  if (cJSON_IsArray(when)) return check_list(rules, when, err);
  if (!cJSON_IsObject(when))
    return tws_json_fail(rules, when, err, NULL, "\"when\" must be an object or a list of them");
  cJSON_ArrayForEach(member, when) {
    if (is(member->string, "any") || is(member->string, "none"))
      TWS_TRY(check_list(rules, member, err));
    else
      TWS_TRY(check_asked(rules, member, err));
  }
  return TWS_OK;
}

static tws_code check_list(const tws_json *rules, const cJSON *list, tws_error *err) {
  const cJSON *when;
  if (!cJSON_IsArray(list)) return tws_json_fail(rules, list, err, NULL, "must be a list of conditions");
  cJSON_ArrayForEach(when, list) {
    if (!cJSON_IsObject(when)) return tws_json_fail(rules, when, err, NULL, "a condition must be an object");
    TWS_TRY(check_when(rules, when, err));
  }
  return TWS_OK;
}

tws_code tws_case_rules_check(const tws_json *rules, tws_error *err) {
  static const char *const members[] = {"about", "when", "says", NULL}, *const whole[] = {"about", "rules", NULL};
  const cJSON *rule, *list = cJSON_GetObjectItemCaseSensitive(rules->root, "rules");
  if (!cJSON_IsObject(rules->root) || !cJSON_IsArray(list))
    return tws_json_fail(rules, rules->root, err, "{\"rules\": [...]}",
                         "what is known of the sources of measured runs must be a list of rules");
  TWS_TRY(tws_json_only(rules, rules->root, whole, err));
  cJSON_ArrayForEach(rule, list) {
    if (!cJSON_IsObject(rule)) return tws_json_fail(rules, rule, err, NULL, "a rule must be an object");
    TWS_TRY(tws_json_only(rules, rule, members, err));
    const cJSON *when = cJSON_GetObjectItemCaseSensitive(rule, "when");
    if (when) TWS_TRY(check_when(rules, when, err));
    if (!cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(rule, "says")))
      return tws_json_fail(rules, rule, err, NULL, "a rule says nothing: \"says\" must be an object");
  }
  return TWS_OK;
}

tws_code tws_case_rules_load(tws_json **rules, tws_error *err) {
  char path[4096];
  *rules = NULL;
  if (!*tws_data_path("published/sources.json", path, (int)sizeof path))
    return tws_fail(err, TWS_ENVIRONMENT, "install the program with make install",
                    "what is known of the sources of measured runs, published/sources.json, is not there");
  TWS_TRY(tws_json_read(path, rules, err));
  return tws_case_rules_check(*rules, err);
}
