/* Rules taken over from DeepSpeed's autotuner, against golden values that its own code computed. */
#include <check.h>
#include "base/json.h"
#include "build_interface.h"
#include "compat/deepspeed_autotuner.h"
#include "suite.h"

static tws_error err;
static tws_json *golden;

static void load_golden(void) {
  ck_assert_msg(tws_json_read(TWS_TEST_DIR "/golden/autotuner.json", &golden, &err) == TWS_OK, "%s", err.message);
}
static void unload_golden(void) {
  tws_json_destroy(golden);
}
static double number(const cJSON *item, const char *key) {
  return cJSON_GetObjectItemCaseSensitive(item, key)->valuedouble; /* null reads as 0 */
}

START_TEST(golden_instantiation_memory) {
  const cJSON *item;
  int cases = 0;
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(golden->root, "instantiation_memory")) {
    double bytes = tws_ds_instantiation_bytes(
        number(item, "params"), (int)number(item, "gpus"), (int)number(item, "nodes"), (int)number(item, "mp"),
        cJSON_IsTrue(cJSON_GetObjectItem(item, "fp16")), (int)number(item, "stage"));
    ck_assert_double_eq(bytes, number(item, "bytes"));
    cases++;
  }
  ck_assert_int_gt(cases, 50);
}
END_TEST

START_TEST(golden_micro_batches) {
  const cJSON *item;
  int cases = 0;
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(golden->root, "micro_batch_lists")) {
    int64_t list[64];
    int count = tws_ds_micro_batches((int64_t)number(item, "min"), (int64_t)number(item, "max"),
                                     (int)number(item, "num"), (int64_t)number(item, "max_train_batch_size"),
                                     (int64_t)number(item, "gas"), (int)number(item, "gpus"), 1, list, 64);
    const cJSON *expected = cJSON_GetObjectItem(item, "result");
    ck_assert_int_eq(count, cJSON_GetArraySize(expected));
    for (int i = 0; i < count; i++) ck_assert_int_eq(list[i], (int64_t)cJSON_GetArrayItem(expected, i)->valuedouble);
    cases++;
  }
  ck_assert_int_ge(cases, 10);
}
END_TEST

/* The default spaces have DeepSpeed's names, order and sizes; the micro-batches 4, 6, 8 are the last dimension. */
START_TEST(golden_spaces) {
  const cJSON *item;
  int spaces = 0;
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(golden->root, "spaces")) {
    const tws_ds_dimension *defaults;
    tws_ds_dimension dimensions[TWS_DS_SPACE_KEYS + 1];
    int stage = (int)number(item, "stage"), count = tws_ds_default_space(stage, &defaults);
    memcpy(dimensions, defaults, (size_t)count * sizeof *dimensions);
    dimensions[count++] = (tws_ds_dimension){"train_micro_batch_size_per_gpu", TWS_DS_NUMBER, 3, {4, 6, 8}};
    const char *keys[TWS_DS_SPACE_KEYS + 1];
    for (int i = 0; i < count; i++) keys[i] = dimensions[i].key;
    tws_text text = {0};
    tws_ds_space_name(stage, keys, count, &text);
    ck_assert_str_eq(text.data, cJSON_GetObjectItem(item, "space_name")->valuestring);
    tws_text_free(&text);
    tws_ds_setting settings[TWS_DS_SPACE_KEYS + 2];
    ck_assert_int_eq(tws_ds_enumerate(dimensions, count, 0, settings), (int64_t)number(item, "num_configs"));
    const cJSON *names = cJSON_GetObjectItem(item, "names");
    for (int i = 0; i < cJSON_GetArraySize(names); i++) {
      tws_ds_enumerate(dimensions, count, i, settings);
      settings[count] = (tws_ds_setting){"gradient_accumulation_steps", TWS_DS_NUMBER, 2, 0};
      tws_ds_experiment_name(stage, settings, count + 1, &text);
      ck_assert_str_eq(text.data, cJSON_GetArrayItem(names, i)->valuestring);
      tws_text_free(&text);
    }
    spaces++;
  }
  ck_assert_int_eq(spaces, 3);
}
END_TEST

typedef struct replay {
  const cJSON *item, *next; /* experiments in order */
} replay;

static double replayed(void *user, int stage, int64_t micro, int64_t accumulation) {
  replay *r = user;
  const int64_t got[] = {stage, micro, accumulation};
  ck_assert_msg(r->next != NULL, "z%d, %lld x %lld is one too many", stage, (long long)micro, (long long)accumulation);
  for (int i = 0; i < 3; i++) ck_assert_int_eq(got[i], (int64_t)cJSON_GetArrayItem(r->next, i)->valuedouble);
  const int runs = cJSON_GetArrayItem(r->next, 3)->valueint;
  r->next = r->next->next;
  const double gpus = number(r->item, "gpus") * number(r->item, "nodes"), m = (double)micro, g = (double)accumulation;
  return runs ? m * g * gpus /
                    (g * (number(r->item, "fixed") + number(r->item, "each") * m) +
                     number(r->item, "step") * (1 + 0.1 * stage))
              : 0;
}

static double given_number(const cJSON *item, const char *key) {
  return cJSON_HasObjectItem(item, key) ? number(item, key) : 0;
}

/* The batches of fast mode are DeepSpeed's; for BERT-large DeepSpeed published them: 93 from 324,358,144 bytes of
 * activations, 94 at stage 2. */
START_TEST(golden_fast_mode) {
  const cJSON *item;
  int cases = 0;
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(golden->root, "fast_mode")) {
    const tws_ds_tuning tuning = {.params = number(item, "params"),
                                  .activation_bytes = number(item, "activation"),
                                  .device_bytes = number(item, "device"),
                                  .gpus_per_node = (int)number(item, "gpus"),
                                  .nodes = (int)number(item, "nodes"),
                                  .model_parallel = 1,
                                  .fp16 = cJSON_IsTrue(cJSON_GetObjectItem(item, "fp16")),
                                  .stages = 15,
                                  .accumulation = (int64_t)given_number(item, "gas"),
                                  .start = (int64_t)given_number(item, "start"),
                                  .max_micro = (int64_t)given_number(item, "max_micro"),
                                  .max_train_batch = (int64_t)given_number(item, "max_train_batch"),
                                  .num = (int)given_number(item, "num")};
    replay r = {item, cJSON_GetObjectItem(item, "runs")->child};
    ck_assert_int_eq(tws_ds_tune(&tuning, replayed, &r), 0);
    ck_assert_ptr_null(r.next);
    cases++;
  }
  ck_assert_int_eq(cases, 9);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("deepspeed_autotuner");
  TCase *deepspeed = tcase_create("golden");
  tcase_add_checked_fixture(deepspeed, load_golden, unload_golden);
  tcase_add_test(deepspeed, golden_instantiation_memory);
  tcase_add_test(deepspeed, golden_micro_batches);
  tcase_add_test(deepspeed, golden_spaces);
  tcase_add_test(deepspeed, golden_fast_mode);
  suite_add_tcase(suite, deepspeed);
  return run_suite(suite);
}
