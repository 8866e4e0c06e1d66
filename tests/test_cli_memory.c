/* Memory of the software that people run, to the verdict: published sizes of models, what their runs took. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "command.h"
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

/* "verdict" and "parameters" of an estimate whose exit status is given. */
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

/* Bytes a parameter of a node's memory without its eight processes. */
static double per_parameter(const verdict *v) {
  return (v->node - 8 * 4e9) / v->parameters;
}

#define PINNED(value)                                            \
  " --set zero_optimization.offload_optimizer.pin_memory=" value \
  " --set zero_optimization.offload_param.pin_memory=" value
#define OFFLOADS                                                                        \
  " --dtype bf16 --stage 3 --set zero_optimization.offload_optimizer.device=cpu --set " \
  "zero_optimization.offload_param.device=cpu --micro-batch 1 --seq 2048 --recompute full -n 8"

/* Reports: 33 B on eight A100 do not run in 600 GB and take 750 to 800; 72 B ran out of 1.4 TB, and without pinned blocks
 * too. Bytes a parameter are those that were added up from sizes of each matrix by the sources of DeepSpeed. */
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
  const verdict own = judge(line, 0); /* this program's own engine holds its plan and nothing else */
  ck_assert_double_eq_tol(own.node / own.parameters, 16, 0.01);
  ck_assert_double_eq(own.software, 0);
  remove_folder();
}
END_TEST

/* Counted of DeepSpeed with two ranks: 18 bytes where the optimizer alone is offloaded, at stage 2 as at 3, 2 more there
 * where gradients are accumulated. */
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

/* What the verdict is of is printed beside DeepSpeed's formula. */
START_TEST(formulas_stand_beside_what_the_runtime_needs) {
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

int main(void) {
  Suite *suite = suite_create("cli_memory");
  TCase *tests = tcase_create("cli_memory");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, offloaded_states_take_what_deepspeed_holds);
  tcase_add_test(tests, an_offloaded_optimizer_takes_18_bytes);
  tcase_add_test(tests, formulas_stand_beside_what_the_runtime_needs);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
