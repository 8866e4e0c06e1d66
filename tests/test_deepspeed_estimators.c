/* DeepSpeed's memory formulas: golden values that its own functions computed, and tables that its documentation
 * prints. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "compat/deepspeed_memory.h"
#include "tests/members.h"
#include "tests/suite.h"

static int truth(const cJSON *object, const char *key) {
  return cJSON_IsTrue(cJSON_GetObjectItem(object, key));
}

START_TEST(numbers_of_zero2) {
  tws_json *json = golden_file("estimators.json");
  int count = 0;
  const cJSON *row = NULL;
  cJSON_ArrayForEach(row, cJSON_GetObjectItem(json->root, "zero2")) {
    tws_zero_memory m =
        tws_zero2_memory(number(row, "total_params"), (int)number(row, "num_gpus_per_node"),
                         (int)number(row, "num_nodes"), truth(row, "cpu_offload"), number(row, "factor"));
    ck_assert_msg(m.cpu_bytes == number(row, "cpu_mem") && m.gpu_bytes == number(row, "gpu_mem"), "row %d: %.0f %.0f",
                  count, m.cpu_bytes, m.gpu_bytes);
    count++;
  }
  ck_assert_int_gt(count, 100);
  tws_json_destroy(json);
}
END_TEST

START_TEST(numbers_of_zero3) {
  tws_json *json = golden_file("estimators.json");
  int count = 0;
  const cJSON *row = NULL;
  cJSON_ArrayForEach(row, cJSON_GetObjectItem(json->root, "zero3")) {
    tws_zero_memory m = tws_zero3_memory(number(row, "total_params"), number(row, "largest_layer_params"),
                                         (int)number(row, "num_gpus_per_node"), (int)number(row, "num_nodes"),
                                         truth(row, "cpu_offload"), truth(row, "cpu_offload_params"),
                                         truth(row, "zero_init"), number(row, "factor"));
    ck_assert_msg(m.cpu_bytes == number(row, "cpu_mem") && m.gpu_bytes == number(row, "gpu_mem") &&
                      m.largest_layer_bytes == number(row, "largest_layer_memory"),
                  "row %d: %.0f %.0f", count, m.cpu_bytes, m.gpu_bytes);
    count++;
  }
  ck_assert_int_gt(count, 100);
  tws_json_destroy(json);
}
END_TEST

/* Returns a text as older Pythons print it: newer ones print the enumeration's full name instead of its value padded to
 * four characters; everything else is equal. */
static char *as_printed(const char *text) {
  static const char *const from = "OffloadDeviceEnum.cpu", *const to = "cpu ";
  tws_text out = {0};
  for (const char *at = text; *at != 0;) {
    const char *next = strstr(at, from);
    size_t plain = next != NULL ? (size_t)(next - at) : strlen(at);
    tws_text_add_bytes(&out, at, plain);
    at += plain;
    if (next != NULL) tws_text_add(&out, "%s", to), at += strlen(from);
  }
  return out.data;
}

static void check_blocks(int stage) {
  tws_json *json = golden_file("estimators.json");
  int exact = 0;
  const cJSON *row = NULL;
  cJSON_ArrayForEach(row, cJSON_GetObjectItem(json->root, stage == 2 ? "zero2_print" : "zero3_print")) {
    tws_text out = {0};
    const char *expected = cJSON_GetObjectItem(row, "stdout")->valuestring;
    double params = number(row, "total_params");
    int gpus = (int)number(row, "num_gpus_per_node"), nodes = (int)number(row, "num_nodes");
    if (stage == 2)
      tws_zero2_print(params, gpus, nodes, 1.5, 0, &out);
    else
      tws_zero3_print(params, number(row, "largest_layer_params"), gpus, nodes, 1.5, &out);
    char *printed = as_printed(expected);
    ck_assert_str_eq(out.data, printed);
    exact += strcmp(out.data, expected) == 0;
    tws_free(printed);
    tws_text_free(&out);
  }
  ck_assert_int_ge(exact, 5); /* the texts of Python 3.10 and older are equal character by character */
  tws_json_destroy(json);
}
START_TEST(printed_zero2) {
  check_blocks(2);
}
END_TEST
START_TEST(printed_zero3) {
  check_blocks(3);
}
END_TEST

/* Returns 1 if bytes round to a published number, which has two digits; exact halves may round either way. */
static int rounds_to(double bytes, double gib) {
  return fabs(bytes / 1073741824.0 - gib) < 0.005001;
}

START_TEST(documentation) {
  tws_json *json = golden_file("estimator_published.json");
  int count = 0;
  const cJSON *row = NULL;
  cJSON_ArrayForEach(row, cJSON_GetObjectItem(json->root, "cases")) {
    double params = number(row, "total_params");
    int gpus = (int)number(row, "num_gpus_per_node"), nodes = (int)number(row, "num_nodes");
    tws_zero_memory m =
        number(row, "stage") == 2
            ? tws_zero2_memory(params, gpus, nodes, truth(row, "cpu_offload"), 1.5)
            : tws_zero3_memory(params, number(row, "largest_layer_params"), gpus, nodes, truth(row, "cpu_offload"),
                               truth(row, "cpu_offload_params"), truth(row, "zero_init"), 1.5);
    ck_assert_msg(
        rounds_to(m.cpu_bytes, number(row, "per_cpu_gb")) && rounds_to(m.gpu_bytes, number(row, "per_gpu_gb")),
        "%s: %.4f %.4f", cJSON_GetObjectItem(row, "id")->valuestring, m.cpu_bytes / 1073741824.0,
        m.gpu_bytes / 1073741824.0);
    count++;
  }
  ck_assert_int_eq(count, 26);
  const cJSON *large = cJSON_GetObjectItem(json->root, "t5_large");
  double params = number(large, "total_params"), layer = number(large, "largest_layer_params");
  int gpus = (int)number(large, "gpus");
  const double mib = 1048576;
  ck_assert_double_eq(floor(tws_zero3_memory(params, layer, gpus, 1, 0, 0, 1, 1.5).gpu_bytes / mib),
                      number(large, "no_offload_gpu_mib"));
  ck_assert_double_eq(floor(tws_zero3_memory(params, layer, gpus, 1, 1, 1, 1, 1.5).gpu_bytes / mib),
                      number(large, "offload_all_gpu_mib"));
  ck_assert_double_eq(floor(tws_zero3_memory(params, layer, gpus, 1, 1, 0, 1, 1.5).gpu_bytes / mib),
                      number(large, "offload_optimizer_gpu_mib"));
  tws_json_destroy(json);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("deepspeed_estimators");
  TCase *test = tcase_create("formulas");
  tcase_add_test(test, numbers_of_zero2);
  tcase_add_test(test, numbers_of_zero3);
  tcase_add_test(test, printed_zero2);
  tcase_add_test(test, printed_zero3);
  tcase_add_test(test, documentation);
  suite_add_tcase(suite, test);
  return run_suite(suite);
}
