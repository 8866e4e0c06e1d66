/* Files of hardware profiles: a file that is written and read again has the same costs, and what is refused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "tests/failing_allocator.h"
#include "tests/made_up_machine.h"
#include "tests/suite.h"

START_TEST(round_trip) {
  tws_profile_builder *b = measured_machine(0.1);
  tws_error err;
  const char *path = TWS_BUILD_DIR "/test_profile.json";
  ck_assert_msg(tws_profile_builder_write(b, path, &err) == TWS_OK, "%s", err.message);
  tws_profile *direct = finish(b), *read = load(path);
  ck_assert_str_eq(tws_profile_name(read), "made-up");
  ck_assert_str_eq(tws_profile_provenance(read), "made up \"for\" a test\\");
  ck_assert_int_eq(tws_profile_cores(read), 4);
  ck_assert_double_eq(tws_profile_memory_bytes(read), 16e9);
  ck_assert_double_eq(tws_profile_peak_flops(read, TWS_BF16), 1e11);
  for (int kernel = 0; kernel < TWS_KERNEL_COUNT; kernel++) {
    tws_work work = {.code = (uint8_t)kernel, .dtype = TWS_F32, .dtype2 = TWS_F32, .d = {48, 100, 24, 8, 64}};
    ck_assert_double_eq(tws_kernel_seconds(read, &work, 1, 2), tws_kernel_seconds(direct, &work, 1, 2));
  }
  tws_profile_destroy(direct);
  tws_profile_destroy(read);
  remove(path);
}
END_TEST

#define HEAD \
  "{\"schema\":\"twinspeed-profile-1\",\"provenance\":\"x\",\"backend\":\"host\",\"memory_bytes\":1,\"bandwidth\":1"
#define PEAK ",\"peak_flops\":{\"fp32\":1e9}"
static const struct refusal {
  const char *text, *says;
} refusals[] = {
    {"[]", "object"},
    {"{}", "schema"},
    {"{\"schema\":\"twinspeed-profile-9\"}", "twinspeed-profile-9"},
    {HEAD PEAK ",\"bandwith\":3}", "bandwith"},
    {HEAD "}", "peak_flops"},
    {HEAD ",\"peak_flops\":{\"bf16\":1e9}}", "fp32"},
    {HEAD ",\"peak_flops\":{\"fp23\":1e9}}", "fp23"},
    {HEAD ",\"peak_flops\":{\"fp32\":-1}}", "fp32"},
    {HEAD ",\"peak_flops\":{\"fp32\":1e400}}", ""},
    {HEAD PEAK ",\"cores\":-1}", "cores"},
    {HEAD PEAK ",\"matmul\":{\"efficiency\":1.5}}", "efficiency"},
    {HEAD PEAK ",\"matmul\":[]}", "object"},
    {HEAD PEAK ",\"kernels\":{}}", "list"},
    {HEAD PEAK ",\"kernels\":[3]}", "object"},
    {HEAD PEAK ",\"kernels\":[{\"kernel\":\"lineal\",\"samples\":[[1,1,1,1]]}]}", "lineal"},
    {HEAD PEAK ",\"kernels\":[{\"kernel\":\"linear\"}]}", "samples"},
    {HEAD PEAK ",\"kernels\":[{\"kernel\":\"linear\",\"samples\":[]}]}", "samples"},
    {HEAD PEAK ",\"kernels\":[{\"kernel\":\"linear\",\"samples\":[[1,1,1]]}]}", "3 sizes"},
    {HEAD PEAK ",\"kernels\":[{\"kernel\":\"linear\",\"samples\":[[1,0,1,1]]}]}", "positive"},
    {HEAD PEAK ",\"kernels\":[{\"kernel\":\"linear\",\"samples\":[[1,0.5,1,1]]}]}", "at least 1"},
    {HEAD PEAK ",\"kernels\":[{\"kernel\":\"linear\",\"samples\":[[1,1,1,0]]}]}", "positive"},
    {HEAD PEAK ",\"kernels\":[{\"kernel\":\"linear\",\"samples\":[[1,1,1,\"x\"]]}]}", "positive"},
    {HEAD PEAK ",\"kernels\":[{\"kernel\":\"linear\",\"samples\":[[1e300,1,1,1]]}]}", "positive"},
    {HEAD PEAK ",\"kernels\":[{\"kernel\":\"linear\",\"flags\":[\"fast\"],\"samples\":[[1,1,1,1]]}]}", "flag"},
    {HEAD PEAK ",\"kernels\":[{\"kernel\":\"linear\",\"threads\":0,\"samples\":[[1,1,1,1]]}]}", "threads"},
    {HEAD PEAK ",\"collectives\":[{\"collective\":\"all_reduce\",\"ranks\":1,\"samples\":[[1,1]]}]}", "ranks"},
    {HEAD PEAK ",\"collectives\":[{\"collective\":\"all_reduce\",\"ranks\":2,\"samples\":[]}]}", "samples"},
    {HEAD PEAK ",\"collectives\":[{\"collective\":\"all_reduce\",\"ranks\":2,\"samples\":[[1,-1]]}]}", "positive"},
    {HEAD PEAK ",\"collectives\":[3]}", "object"},
    {HEAD PEAK ",\"corrections\":3}", "object"},
    {HEAD PEAK ",\"host_copies\":[3]}", "object"},
    {HEAD PEAK ",\"host_copies\":3}", "list"},
    {HEAD PEAK ",\"p2p\":3}", "list"},
    {HEAD PEAK ",\"p2p\":[[1]]}", "[bytes, seconds]"},
    {HEAD PEAK ",\"passes\":{\"choice_s\":[[1]]}}", "[scores, seconds]"},
    {HEAD PEAK ",\"passes\":{\"choice_s\":[[1,1.5]]}}", "positive numbers here, up to 1"},
    {HEAD PEAK ",\"passes\":{\"choice_s\":[[1,0]]}}", "positive"},
    {HEAD PEAK ",\"passes\":{\"choice_s\":[[1,1e18]]}}", "positive numbers here, up to 1"},
};

START_TEST(refuses) {
  tws_json *json = NULL;
  tws_profile *profile = NULL;
  tws_error err = {0};
  const char *text = refusals[_i].text;
  tws_code code = tws_json_parse(text, strlen(text), "profile.json", &json, &err);
  if (code == TWS_OK) code = tws_profile_from_json(json, &profile, &err);
  tws_json_destroy(json);
  ck_assert_ptr_null(profile);
  ck_assert_msg(code == TWS_INVALID && strstr(err.message, "profile.json:1:") != NULL &&
                    strstr(err.message, refusals[_i].says) != NULL,
                "%s: %s %s", text, tws_code_name(code), err.message);
  /* what is no object or list where one is expected: the hint shows one */
  const char *wanted = strstr(err.message, "must be an object") ? "{\""
                       : strstr(err.message, "must be a list")  ? "["
                                                                : "";
  ck_assert_msg(strstr(err.hint, wanted) != NULL, "%s: %s, hint \"%s\"", text, err.message, err.hint);
}
END_TEST

START_TEST(refuses_names_and_samples) {
  tws_profile *profile = NULL;
  tws_error err;
  ck_assert_int_eq(tws_profile_load("a100-80bg", &profile, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.hint, "a100-80gb"));
  tws_profile_builder *b = tws_profile_builder_create("x", TWS_BACKEND_HOST);
  tws_work work = linear(TWS_KERNEL_LINEAR, 1, 0, 1);
  ck_assert_int_eq(tws_profile_builder_kernel(b, &work, 1, 1, 1, &err), TWS_INVALID);
  work.d[1] = 1;
  ck_assert_int_eq(tws_profile_builder_kernel(b, &work, 1, 1, NAN, &err), TWS_INVALID);
  ck_assert_int_eq(tws_profile_builder_kernel(b, &work, 1, 0, 1, &err), TWS_INVALID);
  ck_assert_int_eq(tws_profile_builder_collective(b, TWS_COLLECTIVE_ALL_REDUCE, 1, 1, 1, &err), TWS_INVALID);
  ck_assert_int_eq(tws_profile_builder_finish(b, &profile, &err), TWS_INVALID); /* no figures yet */
  tws_profile_builder_destroy(b);
}
END_TEST

START_TEST(memory_runs_out) {
  static const char text[] = HEAD PEAK
      ",\"kernels\":[{\"kernel\":\"linear\",\"samples\":[[1,1,1,1]]},{\"kernel\":\"add\",\"samples\":[[1,1],[2,2],[3,3]"
      "]}],"
      "\"collectives\":[{\"collective\":\"all_reduce\",\"ranks\":2,\"samples\":[[1,1],[2,2]]}],\"p2p\":[[1,1]]}";
  int failures = 0;
  for (long allowed = 0;; allowed++) {
    tws_json *json = NULL;
    tws_profile *profile = NULL;
    tws_error err;
    failing_allocator limited = {.countdown = allowed};
    tws_set_allocator(&(tws_allocator){failing_resize, &limited});
    tws_code code = tws_json_parse(text, strlen(text), "p", &json, &err);
    if (code == TWS_OK) code = tws_profile_from_json(json, &profile, &err);
    tws_json_destroy(json);
    tws_profile_destroy(profile);
    tws_set_allocator(NULL);
    if (code == TWS_OK) break;
    ck_assert_msg(code == TWS_MEMORY, "allocation %ld: %s %s", allowed, tws_code_name(code), err.message);
    failures++;
  }
  ck_assert_int_gt(failures, 10);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("profile_files");
  TCase *test = tcase_create("profile_files");
  tcase_add_test(test, round_trip);
  tcase_add_loop_test(test, refuses, 0, (int)(sizeof refusals / sizeof refusals[0]));
  tcase_add_test(test, refuses_names_and_samples);
  tcase_add_test(test, memory_runs_out);
  suite_add_tcase(suite, test);
  return run_suite(suite);
}
