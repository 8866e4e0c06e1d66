/* ctest: sampled */
/* The memory of runtimes in the verdict, compared with what published runs of known models needed. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "command.h"
#include "models/hardware/runtime_interval.h"
#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/suite.h"

/* LLaMA 33B and Qwen2.5 72B. */
static const char llama_33b[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_act\":\"silu\",\"hidden_size\":6656,"
    "\"intermediate_size\":17920,\"num_attention_heads\":52,\"num_hidden_layers\":60,\"vocab_size\":32000,"
    "\"max_position_embeddings\":2048,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}";
static const char qwen_72b[] =
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"hidden_act\":\"silu\",\"hidden_size\":8192,"
    "\"intermediate_size\":29568,\"num_attention_heads\":64,\"num_key_value_heads\":8,\"num_hidden_layers\":80,"
    "\"vocab_size\":152064,\"max_position_embeddings\":32768,\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":false}";

static void write_node(const char *path, const char *base, double host_memory) {
  char text[256];
  snprintf(text, sizeof text,
           "{\"schema\":\"twinspeed-cluster-1\",\"name\":\"n\",\"base\":\"%s\",\"nodes\":1,\"devices_per_node\":8,"
           "\"host_memory\":%.0f}",
           base, host_memory);
  write_text(path, text);
}

/* The numbers of an estimate's answer; judge() runs the estimate and asserts its exit status. */
typedef struct verdict {
  double parameters, node, software, device;
} verdict;
static verdict judge(const char *line, int status) {
  command_result r = twinspeed("%s --json", line);
  ck_assert_msg(r.status == status, "%s: %d %s", line, r.status, r.err);
  cJSON *json = cJSON_Parse(r.out);
  const cJSON *v = cJSON_GetObjectItem(json, "verdict");
  const verdict found = {cJSON_GetNumberValue(cJSON_GetObjectItem(json, "parameters")),
                         cJSON_GetNumberValue(cJSON_GetObjectItem(v, "node_need_bytes")),
                         cJSON_GetNumberValue(cJSON_GetObjectItem(v, "node_software_bytes")),
                         cJSON_GetNumberValue(cJSON_GetObjectItem(v, "device_need_bytes"))};
  cJSON_Delete(json);
  command_free(&r);
  return found;
}

/* Returns the bytes per parameter of a node's memory, without those of its eight processes. */
static double per_parameter(const verdict *v) {
  return (v->node - 8 * 4e9) / v->parameters;
}

#define PINNED(value)                                            \
  " --set zero_optimization.offload_optimizer.pin_memory=" value \
  " --set zero_optimization.offload_param.pin_memory=" value
#define OFFLOADS                                                                        \
  " --dtype bf16 --stage 3 --set zero_optimization.offload_optimizer.device=cpu --set " \
  "zero_optimization.offload_param.device=cpu --micro-batch 1 --seq 2048 --recompute full -n 8"

/* Published reports: 33 B parameters on eight A100 do not run in 600 GB and need 750 to 800 GB; 72 B ran out of 1.4 TB,
 * with pinned blocks and without. The bytes per parameter were computed from the size of each matrix with DeepSpeed's
 * sources. */
START_TEST(offloaded_states_take_what_deepspeed_holds) {
  static const struct {
    const char *pinned, *model;
    double memory, bytes;
    int status;
  } cases[] = {{PINNED("true"), "llama.json", 600e9, 23.03, 1},  {PINNED("true"), "llama.json", 800e9, 23.03, 0},
               {PINNED("false"), "llama.json", 600e9, 20.11, 1}, {PINNED("true"), "qwen.json", 1400e9, 26.04, 1},
               {PINNED("false"), "qwen.json", 1400e9, 21.78, 1}, {PINNED("false"), "qwen.json", 1700e9, 21.78, 0}};
  char line[2048];
  make_folder();
  write_text(in_folder("llama.json"), llama_33b);
  write_text(in_folder("qwen.json"), qwen_72b);
  const char *path = strcpy((char[320]){0}, in_folder("node.json"));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_node(path, "dgx-a100", cases[i].memory);
    snprintf(line, sizeof line, "estimate -m %s/%s --cluster %s" OFFLOADS "%s --runtime deepspeed-flash", folder,
             cases[i].model, path, cases[i].pinned);
    const verdict v = judge(line, cases[i].status);
    ck_assert_msg(fabs(per_parameter(&v) - cases[i].bytes) < 0.01, "%s: %.3f bytes a parameter", line,
                  per_parameter(&v));
  }
  write_node(path, "dgx-a100", 600e9);
  snprintf(line, sizeof line, "estimate -m %s/llama.json --cluster %s" OFFLOADS PINNED("true"), folder, path);
  const verdict own = judge(line, 0); /* this program's own engine needs the memory of its plan and nothing more */
  ck_assert_double_eq_tol(own.node / own.parameters, 16, 0.01);
  ck_assert_double_eq(own.software, 0);
  remove_folder();
}
END_TEST

/* Counted in DeepSpeed with two ranks: 18 bytes per parameter where only the optimizer is offloaded, at stages 2 and 3;
 * 2 more at stage 2 where gradients are accumulated. */
START_TEST(an_offloaded_optimizer_takes_18_bytes) {
  static const struct {
    const char *settings;
    double bytes;
  } cases[] = {
      {"--stage 3", 18}, {"--stage 2", 18}, {"--stage 2 --accumulation 2", 20}, {"--stage 3 --accumulation 2", 18}};
  char line[512];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    snprintf(line, sizeof line,
             "estimate -m gpt2-xl --dtype bf16 --cluster dgx-a100 -n 8 --micro-batch 1 --runtime deepspeed-flash --set "
             "zero_optimization.offload_optimizer.device=cpu --set "
             "zero_optimization.offload_optimizer.pin_memory=false %s",
             cases[i].settings);
    const verdict v = judge(line, 0);
    ck_assert_msg(fabs(per_parameter(&v) - cases[i].bytes) < 0.02, "%s: %.3f bytes a parameter", line,
                  per_parameter(&v));
  }
}
END_TEST

/* The memory of the verdict is printed next to the result of DeepSpeed's formula. */
START_TEST(formulas_next_to_the_runtimes_memory) {
  command_result r = twinspeed(
      "estimate -m gpt2-xl --dtype bf16 --stage 3 --cluster dgx-a100 --set "
      "zero_optimization.offload_optimizer.device=cpu --runtime deepspeed-flash --compat deepspeed --json");
  cJSON *json = cJSON_Parse(r.out), *formula = cJSON_GetObjectItem(json, "deepspeed");
  const cJSON *v = cJSON_GetObjectItem(json, "verdict");
  ck_assert_int_eq(r.status, 0);
  ck_assert_double_eq(cJSON_GetNumberValue(cJSON_GetObjectItem(formula, "runtime_cpu_bytes")),
                      cJSON_GetNumberValue(cJSON_GetObjectItem(v, "node_need_bytes")));
  ck_assert_double_eq(cJSON_GetNumberValue(cJSON_GetObjectItem(formula, "runtime_gpu_bytes")),
                      cJSON_GetNumberValue(cJSON_GetObjectItem(v, "device_need_bytes")));
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* ---- three verdicts ---- */

#define LLAMA "estimate -m llama-3-8b --dtype bf16 --stage 3 -n 8 --micro-batch 1 --seq 4096 --recompute full "

/* Asserts the exit status and the answer of an estimate on devices with `memory` bytes. */
static void assert_answer(const char *runtime, double memory, const char *options, int status, const char *answer) {
  char text[256];
  snprintf(text, sizeof text,
           "{\"schema\":\"twinspeed-cluster-1\",\"name\":\"n\",\"base\":\"dgx-a100\",\"nodes\":1,"
           "\"devices_per_node\":8,\"device_memory\":%.0f}",
           memory);
  write_text(in_folder("tight.json"), text);
  command_result r = twinspeed(LLAMA "--runtime %s --cluster %s %s --json", runtime, in_folder("tight.json"), options);
  ck_assert_msg(r.status == status, "%s with %g bytes: %d %s", runtime, memory, r.status, r.err);
  cJSON *json = cJSON_Parse(r.out);
  const cJSON *v = cJSON_GetObjectItem(json, "verdict");
  ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(v, "answer")), answer);
  ck_assert_int_eq(cJSON_IsTrue(cJSON_GetObjectItem(v, "fits")), strcmp(answer, "does not fit") != 0);
  const int tight = strcmp(answer, "tight") == 0;
  ck_assert_int_eq(strstr(r.err, "warning: tight") != NULL, tight && status == 0);
  ck_assert_int_eq(strstr(r.err, "twinspeed: tight: a device needs") != NULL, tight && status == 1);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed(LLAMA "--runtime %s --cluster %s %s", runtime, in_folder("tight.json"), options);
  snprintf(text, sizeof text, "\n%s: one device needs ", answer);
  ck_assert_msg(strstr(r.out, text) != NULL, "%s", r.out);
  command_free(&r);
}

START_TEST(a_fit_that_the_interval_exceeds_is_tight) {
  const double need = judge(LLAMA "--cluster dgx-a100 --runtime fsdp", 0).device;
  const double own = judge(LLAMA "--cluster dgx-a100", 0).device;
  const double high = tws_runtime_memory_interval(tws_runtime_find("fsdp"))->high;
  make_folder();
  assert_answer("fsdp", need * high * 1.001, "", 0, "fits");
  assert_answer("fsdp", need * high * 1.001, "--no-tight", 0, "fits");
  assert_answer("fsdp", need * high * 0.999, "", 0, "tight");
  assert_answer("fsdp", need * high * 0.999, "--no-tight", 1, "tight");
  assert_answer("fsdp", need * 1.001, "", 0, "tight");
  assert_answer("fsdp", need * 0.999, "", 1, "does not fit");
  assert_answer("twinspeed", own, "--no-tight", 0, "fits"); /* exactly the bytes that this program's engine allocates */
  assert_answer("twinspeed", own - 1, "", 1, "does not fit");
  remove_folder();
}
END_TEST

/* --fit does not count a tight fit as a fit, and prints the margin. */
START_TEST(the_smallest_number_keeps_a_margin) {
  const double high = tws_runtime_memory_interval(tws_runtime_find("fsdp"))->high;
  command_result r = twinspeed("estimate --fit -m llama-3-8b --cluster dgx-a100 --runtime fsdp --json");
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = cJSON_Parse(r.out);
  const cJSON *one = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "answers"), 0);
  const double share = cJSON_GetNumberValue(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "margin"), "share"));
  ck_assert_double_eq_tol(share, 1 - 1 / high, 1e-9);
  command_result closer =
      twinspeed("estimate %s --no-tight", cJSON_GetStringValue(cJSON_GetObjectItem(one, "arguments")));
  ck_assert_msg(closer.status == 0, "%s", closer.err);
  command_free(&closer);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("estimate --fit -m llama-3-8b --cluster dgx-a100 --runtime fsdp");
  ck_assert(r.status == 0 && strstr(r.out, "\nMargin  "));
  command_free(&r);
  r = twinspeed("estimate --fit -m llama-3-8b --cluster dgx-a100");
  ck_assert(r.status == 0 && !strstr(r.out, "\nMargin  "));
  command_free(&r);
}
END_TEST

/* Each runtime has a memory interval, from at least eight measured runs of two groups. */
START_TEST(each_runtime_has_an_interval) {
  for (const char *const *name = tws_runtime_names(); *name; name++) {
    const tws_memory_interval *seen = tws_runtime_memory_interval(tws_runtime_find(*name));
    if (strcmp(*name, "twinspeed") == 0) {
      ck_assert(seen->low == 1 && seen->high == 1);
      continue;
    }
    ck_assert(seen->runs >= 8 && seen->groups >= 2);
    ck_assert(seen->low < 1 && seen->low > 0.8 && seen->high > 1 && seen->high < 1.2);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cli_memory");
  TCase *tests = tcase_create("cli_memory");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, offloaded_states_take_what_deepspeed_holds);
  tcase_add_test(tests, an_offloaded_optimizer_takes_18_bytes);
  tcase_add_test(tests, formulas_next_to_the_runtimes_memory);
  tcase_add_test(tests, a_fit_that_the_interval_exceeds_is_tight);
  tcase_add_test(tests, the_smallest_number_keeps_a_margin);
  tcase_add_test(tests, each_runtime_has_an_interval);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
