/* Networks of network files for suites that train them: the network of a text, and files with made weights. */
#ifndef TWS_TESTS_NETWORK_WEIGHTS_H
#define TWS_TESTS_NETWORK_WEIGHTS_H

#include <ctype.h>
#include "base/json.h"
#include "base/output_file.h"
#include "tests/hand_network.h"
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

#endif
