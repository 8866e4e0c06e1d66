/* Networks of network files for suites that train them: the network of a text, and files with made weights. */
#ifndef TWS_TESTS_NETWORK_WEIGHTS_H
#define TWS_TESTS_NETWORK_WEIGHTS_H

#include <ctype.h>
#include "base/json.h"
#include "base/output_file.h"
#include "base/random.h"
#include "tests/answers.h"
#include "tests/hand_network.h"
#include "tests/members.h"
#include "tests/network_files.h"

static inline tws_network *network_of(const char *text) {
  tws_json *json = NULL;
  tws_network *network = NULL;
  HAND_OK(tws_json_parse(text, strlen(text), "network.json", &json, &err));
  HAND_OK(tws_network_from_json(json, 1, &network, &err));
  tws_json_destroy(json);
  return network;
}

/* Reads a text as a network file. Returns 1 if it is refused, which has to be with its place and a remedy; then `err`
 * has the message. */
static inline int is_refused(const char *text, size_t length) {
  tws_json *json = NULL;
  tws_network *network = NULL;
  tws_code code = tws_json_parse(text, length, "network.json", &json, &err);
  if (code == TWS_OK) code = tws_network_from_json(json, 1, &network, &err);
  if (code != TWS_OK) {
    ck_assert_msg(strncmp(err.message, "network.json:", 13) == 0 && isdigit((unsigned char)err.message[13]),
                  "no place: %s", err.message);
    ck_assert_msg(err.hint[0] != 0 || strstr(err.message, "must be"), "no remedy: %s", err.message);
  }
  tws_network_destroy(network);
  tws_json_destroy(json);
  return code != TWS_OK;
}

/* Reads `count` copies of a file in which one number, name or truth value is another one, and returns how many are
 * refused: each is read, or refused with its place and a remedy. `seed` chooses what changes. */
static inline int count_refused_changes(const char *text, uint64_t seed, uint64_t count) {
  static const char *const words[] = {"-1", "0", "1e300", "16777217", "\"4\"", "null", "[]", "true"};
  const size_t length = strlen(text);
  int refused = 0;
  for (uint64_t i = 0; i < count; i++) {
    tws_text changed = {0};
    size_t at = (size_t)(tws_random_uniform(seed, 1, i) * (double)(length - 1));
    while (at + 1 < length && !isalnum((unsigned char)text[at])) at++;
    if (!isalnum((unsigned char)text[at])) continue; /* only brackets follow */
    size_t end = at;
    while (end < length && (isalnum((unsigned char)text[end]) || text[end] == '.')) end++;
    while (at > 0 && (isalnum((unsigned char)text[at - 1]) || text[at - 1] == '.')) at--;
    size_t before = at;
    while (before > 0 && text[before - 1] == ' ') before--;
    tws_text_add_bytes(&changed, text, at);
    if (before > 0 && text[before - 1] == ':') /* a number or a truth value */
      tws_text_add(&changed, "%s", words[i % 8]);
    else if (i % 2)
      tws_text_add(&changed, "%.*sx", (int)(end - at), text + at);
    tws_text_add_bytes(&changed, text + end, length - end);
    refused += is_refused(changed.data, changed.length);
    tws_text_free(&changed);
  }
  return refused;
}

static inline void assert_refused(const char *text, const char *says) {
  ck_assert_msg(is_refused(text, strlen(text)), "accepted: %s", text);
  if (says) ck_assert_msg(strstr(err.message, says) != NULL, "\"%s\" instead of \"%s\"", err.message, says);
}

static inline char *text_of(const char *path) {
  char *text = NULL;
  size_t length;
  HAND_OK(tws_read_file(path, 0, &text, &length, &err));
  return text;
}

/* Writes weights by a formula as a file of a Hugging Face model: parameter p in a range of widths[p] around its initial
 * value, which is 1 for a norm's weight, and else 0. */
static inline void write_weights(const char *path, const tws_network *network, const cJSON *widths) {
  cJSON *header = cJSON_CreateObject();
  uint64_t at = 0;
  for (uint32_t p = 0; p < network->param_count; p++) {
    const tws_param *param = &network->params[p];
    const int experts = param->experts > 0 ? param->experts : 1; /* each expert is a tensor of its own */
    const int64_t rows = param->rows / experts;
    const char *after = strstr(param->name, ".experts.");
    for (int e = 0; e < experts; e++) {
      char name[100];
      snprintf(name, sizeof name, "%s", param->name);
      if (after)
        snprintf(name, sizeof name, "%.*s.experts.%d.%s", (int)(after - param->name), param->name, e, after + 9);
      cJSON *one = cJSON_AddObjectToObject(header, name), *shape, *range;
      cJSON_AddStringToObject(one, "dtype", "F32");
      shape = cJSON_AddArrayToObject(one, "shape");
      if (rows > 1) cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)rows));
      cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)param->columns));
      range = cJSON_AddArrayToObject(one, "data_offsets");
      cJSON_AddItemToArray(range, cJSON_CreateNumber((double)at));
      at += (uint64_t)(rows * param->columns) * sizeof(float);
      cJSON_AddItemToArray(range, cJSON_CreateNumber((double)at));
    }
  }
  char *text = cJSON_PrintUnformatted(header);
  const uint64_t length = strlen(text);
  FILE *file = fopen(path, "wb");
  fwrite(&length, sizeof length, 1, file);
  fwrite(text, 1, length, file);
  for (uint32_t p = 0; p < network->param_count; p++)
    for (uint64_t i = 0; i < (uint64_t)tws_param_numel(&network->params[p]); i++) {
      const double away = (word_of(i, p) / 0x1p24 - 0.5) * cJSON_GetArrayItem(widths, (int)p)->valuedouble;
      const float value = (float)(network->params[p].init_value + away);
      fwrite(&value, sizeof value, 1, file);
    }
  ck_assert(fclose(file) == 0);
  cJSON_free(text);
  cJSON_Delete(header);
}

/* Reads the losses that `train --json` printed, and frees the result: loss[n * room + i] is that of step i which has
 * the n-th name, of `room` numbers for each name. The loss of a step has to be the sum of its parts. Returns the loss
 * of the last evaluation. */
static inline double read_named_losses(command_result *r, const char *const *names, int count, int steps, int room,
                                       double *loss) {
  cJSON *json = cJSON_Parse(r->out);
  const cJSON *all = member(json, "losses"), *parts = member(json, "parts_of_losses");
  for (int i = 0; i < steps; i++) {
    double sum = 0;
    for (int n = 0; n < count; n++)
      sum += loss[n * room + i] = cJSON_GetArrayItem(member(parts, names[n]), i)->valuedouble;
    ck_assert_double_eq_tol(cJSON_GetArrayItem(all, i)->valuedouble, sum, 1e-7);
  }
  const cJSON *evaluations = member(json, "evaluations");
  const double last = number(cJSON_GetArrayItem(evaluations, cJSON_GetArraySize(evaluations) - 1), "loss");
  cJSON_Delete(json);
  command_free(r);
  return last;
}

#endif
