/* Elasticity against DeepSpeed's own answers. */
#include "config/elasticity.h"
#include <check.h>
#include "base/memory.h"
#include "config/ds_config.h"
#include "command.h"
#include "folder.h"
#include "members.h"
#include "suite.h"

static int64_t whole(const cJSON *object, const char *key, int64_t otherwise) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsNumber(item) ? (int64_t)item->valuedouble : otherwise;
}

static int read_case(const cJSON *config, tws_elastic *e) {
  const cJSON *version = cJSON_GetObjectItemCaseSensitive(config, "version"), *micro,
              *micros = cJSON_GetObjectItemCaseSensitive(config, "micro_batch_sizes");
  if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(config, "enabled"))) return 0;
  if (whole(config, "min_time", 0) < 0 || (micros && !cJSON_IsArray(micros))) return 0; /* the file's reader says so */
  *e = (tws_elastic){.version = version ? version->valuedouble : 0.2,
                     .max_batch = whole(config, "max_train_batch_size", 0),
                     .min_gpus = whole(config, "min_gpus", 1),
                     .max_gpus = whole(config, "max_gpus", 10000),
                     .gpus_per_node = whole(config, "num_gpus_per_node", 1),
                     .model_parallel = whole(config, "model_parallel_size", 1),
                     .prefer_smaller = cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(config, "prefer_larger_batch"))};
  cJSON_ArrayForEach(micro, micros) e->micro[e->micro_count++] = (int64_t)micro->valuedouble;
  return 1;
}

/* What the reader of the file refuses, where DeepSpeed does later. A number of a JSON file has no type, so 2.0 is 2
 * here; a section that is not enabled asks for nothing, and the minutes of a scheduler have no effect, which is said.
 */
static void compare_file(const cJSON *config, const cJSON *result, const char *what) {
  const int asks = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(config, "enabled")) && !strstr(what, "[2.0]") &&
                   !strstr(what, "min_time");
  cJSON *root = cJSON_CreateObject();
  cJSON_AddItemReferenceToObject(root, "elasticity", (cJSON *)(uintptr_t)config);
  char *text = cJSON_PrintUnformatted(root);
  write_text(in_folder("config.json"), text);
  tws_config *read = NULL;
  tws_error err = {0};
  const tws_code code = tws_config_load(in_folder("config.json"), &read, &err);
  ck_assert_msg(code == (asks && !result ? TWS_INVALID : TWS_OK), "%s: %s", what, err.message);
  ck_assert_msg(!asks || result || strstr(err.message, "elasticity."), "%s: %s", what, err.message);
  tws_config_destroy(read);
  cJSON_free(text);
  cJSON_Delete(root);
}

/* All of them but a version of DeepSpeed itself that is too old. */
START_TEST(golden_choices) {
  tws_json *golden = golden_file("elasticity.json");
  const cJSON *one;
  int compared = 0, refused = 0, files = 0;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(golden->root, "cases")) {
    const cJSON *config = cJSON_GetObjectItem(one, "config"), *result = cJSON_GetObjectItem(one, "result");
    const char *deepspeed = cJSON_GetObjectItem(one, "version")->valuestring;
    char *what = cJSON_PrintUnformatted(one);
    tws_elastic elastic;
    tws_elastic_choice choice;
    tws_error err = {0};
    const int old = strcmp(deepspeed, "0.19.6") != 0;
    const int odd = old || strstr(what, "[2.0]") != NULL || !read_case(config, &elastic);
    if (odd && !old) {
      compare_file(config, result, what);
      files++;
    }
    if (!odd) {
      const tws_code code = tws_elastic_choose(&elastic, whole(one, "world_size", 0), &choice, &err);
      ck_assert_msg((code == TWS_OK) == (result != NULL), "%s: %s", what, err.message);
      refused += code != TWS_OK;
      compared += code == TWS_OK;
    }
    if (!odd && result) {
      const cJSON *gpus = cJSON_GetArrayItem(result, 1), *micro = cJSON_GetArrayItem(result, 2);
      ck_assert_msg(choice.batch == (int64_t)cJSON_GetArrayItem(result, 0)->valuedouble, "%s: batch %lld", what,
                    (long long)choice.batch);
      ck_assert_msg(choice.gpu_count == cJSON_GetArraySize(gpus), "%s: %d numbers", what, choice.gpu_count);
      for (int i = 0; i < choice.gpu_count; i++)
        ck_assert_msg(choice.gpus[i] == (int64_t)cJSON_GetArrayItem(gpus, i)->valuedouble, "%s", what);
      if (cJSON_IsNumber(micro))
        ck_assert_msg(choice.micro == (int64_t)micro->valuedouble, "%s: micro %lld", what, (long long)choice.micro);
      tws_free(choice.gpus);
    }
    cJSON_free(what);
  }
  ck_assert_int_gt(compared, 40);
  ck_assert_int_gt(refused, 10);
  ck_assert_int_eq(files, 4);
  tws_json_destroy(golden);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("elasticity");
  TCase *tests = tcase_create("elasticity");
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  tcase_add_test(tests, golden_choices);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
