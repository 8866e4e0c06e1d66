/* Elasticity compared with DeepSpeed's own answers. */
#include "config/elasticity.h"
#include <check.h>
#include "base/memory.h"
#include "config/ds_config.h"
#include "answers.h"
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

/* Reads a golden configuration from a file: some that DeepSpeed refuses later are refused here at once. A number of a
 * JSON file has no type, so 2.0 is 2 here; a section that is not enabled asks for nothing, and the minutes of a
 * scheduler have no effect, which a note says. */
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

/* The choices of all golden cases, except those for a version of DeepSpeed that is too old. */
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

/* The output of `twinspeed elastic` against DeepSpeed's answers: the batch and the numbers of GPUs, and the micro-batch
 * of the requested world, both in the table's row and with -n. */
START_TEST(printed_lists) {
  tws_json *golden = golden_file("elasticity.json");
  const cJSON *one;
  int lists = 0, worlds = 0, refused = 0;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(golden->root, "cases")) {
    const cJSON *config = cJSON_GetObjectItem(one, "config"), *result = cJSON_GetObjectItem(one, "result");
    const cJSON *error = cJSON_GetObjectItem(one, "error"), *gpus = cJSON_GetArrayItem(result, 1), *row;
    const int64_t world = whole(one, "world_size", 0);
    const int wrong_world = error && strcmp(error->valuestring, "ElasticityIncompatibleWorldSize") == 0;
    tws_elastic elastic;
    if (strcmp(cJSON_GetObjectItem(one, "version")->valuestring, "0.19.6") != 0 || !read_case(config, &elastic))
      continue;
    if (!result && !wrong_world) continue;
    cJSON *root = cJSON_CreateObject();
    cJSON_AddItemReferenceToObject(root, "elasticity", (cJSON *)(uintptr_t)config);
    char *text = cJSON_PrintUnformatted(root), *what = cJSON_PrintUnformatted(one), asked[32] = "";
    write_text(in_folder("elastic.json"), text);
    if (world) snprintf(asked, sizeof asked, "-n %lld", (long long)world);
    command_result r = twinspeed("elastic -c %s --json %s", in_folder("elastic.json"), asked);
    if (wrong_world) {
      assert_one_error(&r, 1, what);
      ck_assert_msg(strstr(r.err, "are none of the numbers that divide its batch") != NULL, "%s", r.err);
      refused++;
    } else {
      cJSON *json = assert_json(&r, "twinspeed-elastic-1");
      const cJSON *list = cJSON_GetObjectItem(json, "valid_gpus"), *own = cJSON_GetObjectItem(json, "asked");
      const int shared = !world || cJSON_GetArraySize(gpus) > 1; /* the batch is not chosen for this world alone */
      if (shared) {
        ck_assert_msg(cJSON_Compare(list, gpus, 1), "%s: %s", what, r.out);
        ck_assert_msg(cJSON_Compare(cJSON_GetObjectItem(json, "final_batch_size"), result->child, 1), "%s: %s", what,
                      r.out);
        lists++;
      }
      const cJSON *micro = cJSON_GetArrayItem(result, 2);
      cJSON_ArrayForEach(row, cJSON_GetObjectItem(json, "jobs")) {
        const int64_t batch = whole(row, "train_micro_batch_size_per_gpu", 0) * whole(row, "data_parallel", 0) *
                              whole(row, "gradient_accumulation_steps", 0);
        ck_assert_msg(batch == whole(row, "train_batch_size", -1), "%s: %s", what, r.out);
        if (shared && world && whole(row, "gpus", 0) == world) ck_assert_msg(cJSON_Compare(row, own, 1), "%s", r.out);
      }
      if (world && cJSON_IsNumber(micro)) {
        ck_assert_msg(cJSON_Compare(cJSON_GetObjectItem(own, "train_micro_batch_size_per_gpu"), micro, 1) &&
                          cJSON_Compare(cJSON_GetObjectItem(own, "train_batch_size"), result->child, 1),
                      "%s: %s", what, r.out);
        worlds++;
      }
      cJSON_Delete(json);
    }
    command_free(&r);
    cJSON_free(text);
    cJSON_free(what);
    cJSON_Delete(root);
  }
  ck_assert_int_ge(lists, 20);
  ck_assert_int_ge(worlds, 10);
  ck_assert_int_ge(refused, 2);
  tws_json_destroy(golden);
}
END_TEST

/* The output as text, with the section given by --set only, and the errors where there is no elasticity. */
START_TEST(printed_table) {
  static const char set[] =
      "elastic --set elasticity.enabled=true --set elasticity.max_train_batch_size=16 --set "
      "elasticity.micro_batch_sizes=[1,2,4]";
  command_result r = twinspeed("%s -n 2", set);
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_str_eq(r.out,
                   "elasticity 0.2: a batch of 12 samples (at most 16) for 6 numbers of GPUs\n"
                   "GPUs  data-parallel  micro batch  accumulation\n"
                   "   1              1            4             3\n"
                   "   2              2            2             3\n"
                   "   3              3            4             1\n"
                   "   4              4            1             3\n"
                   "   6              6            2             1\n"
                   "  12             12            1             1\n"
                   "2 GPUs: a batch of 12 = micro batch 2 x 3 accumulation steps x 2 data-parallel ranks\n");
  command_free(&r);
  write_text(in_folder("off.json"), "{\"elasticity\": {\"enabled\": false, \"max_train_batch_size\": 16}}");
  r = twinspeed("elastic -c %s", in_folder("off.json"));
  assert_one_error(&r, 3, "switched off");
  command_free(&r);
  r = twinspeed("elastic --set zero_optimization.stage=1");
  assert_one_error(&r, 3, "no section");
  command_free(&r);
  r = twinspeed("elastic");
  assert_one_error(&r, 2, "no configuration");
  command_free(&r);
  r = twinspeed("%s --set elasticity.max_train_batch_size=3", set);
  assert_one_error(&r, 3, "a micro batch that is too large");
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("elasticity");
  TCase *tests = tcase_create("elasticity");
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  tcase_add_test(tests, golden_choices);
  tcase_add_test(tests, printed_lists);
  tcase_add_test(tests, printed_table);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
