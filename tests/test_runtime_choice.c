/* ctest: sampled */
/* The choice of the runtime where no flag gives it; an answer's first line names the runtime and the reason. */
#include <check.h>

#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/suite.h"

static const char model[] =
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 256, \"intermediate_size\": 512, "
    "\"num_attention_heads\": 4, \"vocab_size\": 1024, \"max_position_embeddings\": 512, "
    "\"torch_dtype\": \"bfloat16\"}";
static const char plain[] = "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 2}}";
static const char automatic[] =
    "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3, "
    "\"reduce_bucket_size\": \"auto\"}}";

static void write_inputs(void) {
  make_folder();
  write_text(in_folder("model.json"), model);
  write_text(in_folder("plain.json"), plain);
  write_text(in_folder("auto.json"), automatic);
  write_text(in_folder("megatron.sh"), "torchrun pretrain_gpt.py --micro-batch-size 1 --bf16 --seq-length 512\n");
  write_text(in_folder("ulysses.sh"),
             "deepspeed pretrain_gpt.py --micro-batch-size 1 --bf16 --seq-length 512 --ds-sequence-parallel-size 2 "
             "--ds-sequence-parallel-fpdt --ds-sequence-parallel-fpdt-chunk-size 256\n");
}

/* For each configuration (or none) and options, the first line of the answer and two members of its JSON name the
 * runtime and the reason. */
START_TEST(the_first_line_says_which_and_why) {
  static const struct {
    const char *config, *options, *runtime, *why;
  } cases[] = {{NULL, "--cluster dgx-a100", "twinspeed", "as nothing names another"},
               {"plain.json", "--cluster dgx-a100", "deepspeed-flash", "as -c is a ds_config.json"},
               {"auto.json", "--cluster dgx-a100", "transformers",
                "as \"auto\" in the ds_config.json is for Hugging Face's Trainer"},
               {"plain.json", "--cluster dgx-a100 --set optimizer.params.lr=auto", "transformers",
                "as \"auto\" in the ds_config.json is for Hugging Face's Trainer"},
               {"megatron.sh", "--cluster dgx-a100", "megatron", "as -c has Megatron's arguments"},
               {"ulysses.sh", "--cluster dgx-a100", "megatron-deepspeed", "as -c has Megatron-DeepSpeed's arguments"},
               {"auto.json", "--cluster dgx-a100 --runtime megatron", "megatron", "as --runtime says"},
               {"plain.json", "--cluster dgx-a100 --runtime twinspeed", "twinspeed", "as --runtime says"}};
  static const char *const verbs[] = {"estimate", "check", "simulate", "tune --no-simulation --force -n 8 -o @"};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (size_t v = 0; v < 4; v++) {
      char config[128] = "", line[640], first[256];
      const char *at = strchr(verbs[v], '@');
      if (cases[i].config) snprintf(config, sizeof config, "-c %s", in_folder(cases[i].config));
      snprintf(line, sizeof line, "%.*s%s -m %s %s %s", at ? (int)(at - verbs[v]) : (int)strlen(verbs[v]), verbs[v],
               at ? in_folder("tuned") : "", in_folder("model.json"), config, cases[i].options);
      command_result text = twinspeed("%s", line), r = twinspeed("%s --json", line);
      ck_assert_msg(text.status == 0 && r.status == 0, "%s: %s", line, text.err);
      snprintf(first, sizeof first, "Runtime  %s, %.40s", cases[i].runtime, cases[i].why);
      ck_assert_msg(strncmp(text.out, first, strlen(first)) == 0, "%s: %s", line, text.out);
      cJSON *json = cJSON_Parse(r.out);
      ck_assert_str_eq(member(json, "runtime")->valuestring, cases[i].runtime);
      if (v < 3) ck_assert_str_eq(member(json, "runtime_reason")->valuestring, cases[i].why);
      cJSON_Delete(json);
      command_free(&text);
      command_free(&r);
    }
}
END_TEST

/* On hosts, with measured profiles and for verbs that run the job, the runtime is this program's own engine, whatever
 * configuration is given. */
START_TEST(our_engine_where_it_runs) {
  write_text(in_folder("cluster.json"),
             "{\"schema\": \"twinspeed-cluster-1\", \"profile\": \"a100-80gb\", \"nodes\": 1, \"devices_per_node\": 8, "
             "\"intra\": {\"bandwidth\": \"300 GB/s\", \"latency_s\": 2e-6}, \"inter\": {\"bandwidth\": \"12.5 GB/s\", "
             "\"latency_s\": 5e-6}}");
  const char *const lines[] = {"estimate -m %s -c %s -n 2 --json", "profile -m %s -c %s --cluster dgx-a100 --json"};
  for (size_t i = 0; i < 2; i++) {
    char line[512];
    snprintf(line, sizeof line, lines[i], in_folder("model.json"), in_folder("auto.json")); /* NOLINT: of above */
    command_result r = twinspeed("%s", line);
    ck_assert_msg(r.status == 0, "%s: %s", line, r.err);
    cJSON *json = cJSON_Parse(r.out);
    const cJSON *runtime = cJSON_GetObjectItem(json, "runtime");
    if (runtime) ck_assert_str_eq(runtime->valuestring, "twinspeed");
    cJSON_Delete(json);
    command_free(&r);
  }
}
END_TEST

START_TEST(others_are_shown_and_listed) {
  command_result r =
      twinspeed("estimate -m %s -c %s --cluster dgx-a100 --json", in_folder("model.json"), in_folder("auto.json"));
  cJSON *json = assert_json(&r, "twinspeed-estimate-1");
  const cJSON *others = member(json, "other_runtimes");
  ck_assert_int_eq(cJSON_GetArraySize(others), 2);
  ck_assert_str_eq(member(cJSON_GetArrayItem(others, 0), "runtime")->valuestring, "deepspeed-flash");
  ck_assert_str_eq(member(cJSON_GetArrayItem(others, 1), "runtime")->valuestring, "twinspeed");
  command_result alone = twinspeed("estimate -m %s -c %s --cluster dgx-a100 --runtime deepspeed-flash --json",
                                   in_folder("model.json"), in_folder("auto.json"));
  cJSON *same = assert_json(&alone, "twinspeed-estimate-1");
  ck_assert_double_eq(number(cJSON_GetArrayItem(others, 0), "step_s"), number(member(same, "time"), "step_s"));
  cJSON_Delete(json);
  cJSON_Delete(same);
  command_free(&r);
  command_free(&alone);
  r = twinspeed("tune --runtime help");
  ck_assert_int_eq(r.status, 0);
  ck_assert_msg(strstr(r.out, "  deepspeed-flash ") && strstr(r.out, "  fsdp-compiled ") && !strstr(r.out, "Usage"),
                "%s", r.out);
  command_free(&r);
  r = twinspeed("completion bash");
  ck_assert_ptr_nonnull(strstr(r.out, "--runtime) COMPREPLY=($(compgen -W \"twinspeed megatron-2019"));
  command_free(&r);
}
END_TEST

/* For a configuration that offloads, a search also tries points without offloading. */
START_TEST(searches_try_without_offload) {
  write_text(in_folder("offload.json"),
             "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 2, "
             "\"offload_optimizer\": {\"device\": \"cpu\"}}}");
  command_result r = twinspeed("tune -m %s -c %s --cluster dgx-a100 -n 8 --no-simulation --force -o %s --json",
                               in_folder("model.json"), in_folder("offload.json"), in_folder("tuned"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = cJSON_Parse(r.out);
  ck_assert_ptr_nonnull(strstr(member(member(json, "best"), "name")->valuestring, "none"));
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

static double needed_bytes(const char *runtime, const char *allocator, const char *said) {
  command_result r = twinspeed("estimate -m llama-3-8b --dtype bf16 --stage 3 --cluster dgx-a100 --recompute full "
                               "--seq 4096 %s %s --json",
                               runtime, allocator);
  ck_assert_msg(r.status == 0 || r.status == 1, "%s %s: %s", runtime, allocator, r.err);
  cJSON *json = cJSON_Parse(r.out);
  ck_assert_str_eq(member(json, "allocator")->valuestring, said);
  const cJSON *device = member(member(json, "memory"), "device");
  const double needed = member(device, "allocator_bytes")->valuedouble;
  cJSON_Delete(json);
  command_free(&r);
  return needed;
}

/* --allocator replaces the allocator that a runtime's row names, so the bytes that a verdict counts are those of the
 * stated one, whichever runtime has it by default. */
START_TEST(allocator_is_the_stated_one) {
  const double fixed = needed_bytes("--runtime fsdp", "--allocator fixed", "fixed");
  const double expandable = needed_bytes("--runtime fsdp", "--allocator expandable", "expandable");
  ck_assert_double_eq(needed_bytes("--runtime fsdp", "", "expandable"), expandable);
  ck_assert_double_lt(expandable, fixed);
  const double megatron = needed_bytes("--runtime megatron", "", "fixed");
  ck_assert_double_eq(needed_bytes("--runtime megatron", "--allocator fixed", "fixed"), megatron);
  ck_assert_double_lt(needed_bytes("--runtime megatron", "--allocator expandable", "expandable"), megatron);
}
END_TEST

/* Other words are usage errors, and software without an allocator is refused. */
START_TEST(allocator_of_unknown_word_or_engine_is_refused) {
  command_result r = twinspeed("estimate -m gpt2 --cluster dgx-a100 --runtime fsdp --allocator slabs");
  ck_assert_int_eq(r.status, 2);
  ck_assert_msg(strstr(r.err, "--allocator: unknown word \"slabs\"") && strstr(r.err, "\"fixed\" or \"expandable\""),
                "%s", r.err);
  command_free(&r);
  const char *const engines[] = {"--cluster dgx-a100", "--cluster dgx-a100 --runtime twinspeed", "-n 1"};
  for (size_t i = 0; i < sizeof engines / sizeof *engines; i++) {
    r = twinspeed("estimate -m gpt2 %s --allocator expandable", engines[i]);
    ck_assert_msg(r.status == 3 && strstr(r.err, "without an allocator"), "%s: %d %s", engines[i], r.status, r.err);
    command_free(&r);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("runtime_choice");
  TCase *tcase = tcase_create("runtime_choice");
  tcase_set_timeout(tcase, 300);
  tcase_add_checked_fixture(tcase, write_inputs, remove_folder);
  tcase_add_test(tcase, the_first_line_says_which_and_why);
  tcase_add_test(tcase, our_engine_where_it_runs);
  tcase_add_test(tcase, others_are_shown_and_listed);
  tcase_add_test(tcase, searches_try_without_offload);
  tcase_add_test(tcase, allocator_is_the_stated_one);
  tcase_add_test(tcase, allocator_of_unknown_word_or_engine_is_refused);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
