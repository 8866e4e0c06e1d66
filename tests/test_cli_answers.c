/* ctest: sampled */
/* Answers of verbs: numbers add up, hints are true, and other verbs read the results. */
#include <check.h>
#include <math.h>
#include "base/memory.h"
#include "models/hardware/profile.h"
#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/suite.h"

START_TEST(deepspeed_tables) {
  tws_json *golden = golden_file("estimators.json");
  int checked = 0;
  for (int stage = 2; stage <= 3; stage++) {
    const cJSON *list = cJSON_GetObjectItem(golden->root, stage == 3 ? "zero3_print" : "zero2_print"), *one;
    cJSON_ArrayForEach(one, list) {
      const cJSON *largest = cJSON_GetObjectItem(one, "largest_layer_params");
      const cJSON *python = cJSON_GetObjectItem(one, "python");
      if (python && strcmp(python->valuestring, "py<=3.10") != 0) continue; /* newer Pythons print the enum's class */
      char extra[96] = "";
      if (largest) snprintf(extra, sizeof extra, "--largest-layer-params %.0f", largest->valuedouble);
      command_result r = twinspeed(
          "estimate --zero%d --compat deepspeed --total-params %.0f %s --gpus-per-node %d --nodes %d", stage,
          cJSON_GetObjectItem(one, "total_params")->valuedouble, extra,
          cJSON_GetObjectItem(one, "num_gpus_per_node")->valueint, cJSON_GetObjectItem(one, "num_nodes")->valueint);
      ck_assert_int_eq(r.status, 0);
      ck_assert_str_eq(r.out, cJSON_GetObjectItem(one, "stdout")->valuestring);
      ck_assert_str_eq(r.err, "");
      command_free(&r);
      checked++;
    }
  }
  ck_assert_int_ge(checked, 4);
  tws_json_destroy(golden);
  command_result r = twinspeed(
      "estimate --zero3 --total-params 2851e6 --largest-layer-params 32e6 --gpus-per-node 8 --nodes 1 --compat "
      "deepspeed");
  ck_assert_ptr_nonnull(strstr(r.out, "\n   63.72GB |   0.78GB | offload_param=none, "));
  command_free(&r);
}
END_TEST

START_TEST(estimate_says_no) {
  command_result r =
      twinspeed("estimate -m llama-2-70b --cluster dgx-a100 --stage 0 --dtype bf16 --micro-batch 1 --json");
  ck_assert_msg(r.status == 1, "exit %d: %s", r.status, r.err);
  ck_assert_int_eq(count_lines_with(r.err, "twinspeed: does not fit"), 1);
  cJSON *json = assert_json(&r, "twinspeed-estimate-1");
  const cJSON *verdict = cJSON_GetObjectItem(json, "verdict");
  ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(verdict, "fits")));
  ck_assert_double_gt(cJSON_GetObjectItem(verdict, "device_need_bytes")->valuedouble,
                      16.0 * 68e9); /* 16 bytes of states for each of 68e9 parameters */
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* The estimate of a forward pass alone has parameters and no optimizer states, and no hint mentions an optimizer. */
START_TEST(evaluation_alone) {
  static const char *const more[] = {"--dtype bf16 --stage 0", "--dtype fp16 --stage 1", "--dtype fp32 --stage 2",
                                     "--dtype bf16 --stage 2 --set zero_optimization.offload_optimizer.device=cpu"};
  static const double element[] = {2, 2, 4, 2};
  for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
    command_result r = twinspeed("estimate -m gpt2 --cluster dgx-a100 --program evaluate --json %s", more[i]);
    cJSON *json = assert_json(&r, "twinspeed-estimate-1");
    const cJSON *memory = member(json, "memory"), *categories = member(member(memory, "device"), "categories"), *one;
    cJSON_ArrayForEach(one, categories) {
      ck_assert_msg(strcmp(one->string, "master weights") != 0 && strcmp(one->string, "optimizer moments") != 0 &&
                        strcmp(one->string, "gradients") != 0,
                    "%s: %s", more[i], one->string);
    }
    const double parameters = number(categories, "parameters") - element[i] * number(json, "parameters");
    ck_assert_msg(parameters >= 0 && parameters < 4096, "%s: %g", more[i], parameters); /* padding */
    ck_assert_msg(cJSON_GetArraySize(memory) == 1, "%s: %s", more[i], r.out);           /* nothing is on the host */
    cJSON_Delete(json);
    command_free(&r);
  }
  assert_says("estimate -m llama-2-70b --cluster dgx-a100 --stage 0 --dtype bf16 --program evaluate", 1,
              "hint: it fits with --stage 3: ");
  assert_says("estimate -m llama-3-405b --cluster dgx-a100 --stage 0 --dtype bf16 --program evaluate", 1,
              "hint: it fits with --stage 3 --set zero_optimization.offload_param.device=cpu: ");
  assert_says(
      "check -m gpt2 --cluster dgx-a100 --stage 3 --program evaluate --set "
      "zero_optimization.offload_param.device=cpu --set zero_optimization.offload_optimizer.device=cpu",
      0, "verified together");
  assert_says("simulate -m gpt2 --cluster dgx-a100 --stage 1 --program evaluate", 0, "Simulated step");
}
END_TEST

/* The simulation of a job that does not fit says so and still gives its time. */
START_TEST(simulations_say_what_does_not_fit) {
  command_result r = twinspeed("simulate -m llama-3-8b --stage 0 --dtype bf16 --cluster dgx-a100 --json");
  cJSON *json = assert_json(&r, "twinspeed-simulation-1");
  const cJSON *verdict = member(json, "verdict");
  ck_assert(cJSON_IsFalse(member(verdict, "fits")) && number(json, "step_s") > 0);
  ck_assert_double_gt(number(verdict, "device_need_bytes"), number(verdict, "device_have_bytes"));
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("simulate -m llama-3-8b --stage 0 --dtype bf16 --cluster dgx-a100");
  ck_assert_msg(r.status == 0 && strstr(r.err, "warning: does not fit: a device needs "), "%s", r.err);
  command_free(&r);
  r = twinspeed("simulate -m llama-3-8b --stage 3 --recompute full --dtype bf16 --cluster dgx-a100");
  ck_assert_msg(r.status == 0 && !strstr(r.err, "does not fit"), "%s", r.err);
  command_free(&r);
}
END_TEST

/* The remedy in the hint must be true: applying it makes the answer yes. */
START_TEST(estimate_remedy_works) {
  static const struct {
    const char *job, *says;
  } jobs[] = {{"estimate -m gpt2-xl --cluster dgx1-v100 --micro-batch 4 --seq 1024 --stage 0", ""},
              {"estimate -m llama-2-7b --cluster dgx1-v100:4 --stage 3 --dtype fp16 --micro-batch 1 --seq 1024 "
               "--recompute full "
               "--set zero_optimization.mics_shard_size=2",
               "mics_shard_size="}};
  for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
    command_result r = twinspeed("%s", jobs[i].job);
    ck_assert_msg(r.status == 1, "exit %d: %s%s", r.status, r.err, r.out);
    char words[128] = "";
    const char *hint = strstr(r.err, "it fits with ");
    ck_assert_ptr_nonnull(hint);
    sscanf(hint, "it fits with %127[^:]", words);
    ck_assert_msg(strstr(words, jobs[i].says) != NULL, "%s", words);
    command_result yes = twinspeed("%s %s", jobs[i].job, words);
    ck_assert_msg(yes.status == 0, "with \"%s\": %s", words, yes.err);
    command_free(&yes);
    command_free(&r);
  }
}
END_TEST

static double tokens_per_s(const char *job, const char *words) {
  command_result r = twinspeed("%s %s --json", job, words);
  cJSON *json = assert_json(&r, "twinspeed-estimate-1");
  const double rate = number(member(json, "time"), "tokens_per_s");
  cJSON_Delete(json);
  command_free(&r);
  return rate;
}

/* A hint says what its whole change costs, as estimates of the job with it and without it have it: not what a part of
 * the change, such as offloading, costs. */
START_TEST(remedies_say_what_they_cost) {
  static const char *const jobs[] = {
      "estimate -m llama-2-7b --cluster dgx-a100 --stage 2 --dtype bf16 --micro-batch 8 --seq 4096",
      "estimate -m llama-2-7b --cluster dgx1-v100 --stage 0 --dtype fp16 --micro-batch 4 --seq 4096",
      "estimate -m llama-2-7b --cluster dgx-a100 -n 1 --stage 0 --dtype bf16 --micro-batch 4 --seq 4096"};
  int recomputed = 0, offloaded = 0;
  for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
    command_result r = twinspeed("%s", jobs[i]);
    char words[256] = "", rest[128] = "";
    const char *hint = strstr(r.err, "it fits with ");
    ck_assert_msg(r.status == 1 && hint, "%s: %s", jobs[i], r.err);
    ck_assert_int_eq(sscanf(hint, "it fits with %255[^:]: %127[^\n]", words, rest), 2);
    const double slower = 100 * (tokens_per_s(jobs[i], "") / tokens_per_s(jobs[i], words) - 1);
    const char *said = strrchr(rest, ',');
    ck_assert_msg(said && strstr(said, " % slower"), "%s: %s: %s", jobs[i], words, rest);
    ck_assert_msg(fabs(strtod(said + 1, NULL) - slower) <= 0.5 + 1e-9, "%s: %s: %s, and it is %g", jobs[i], words, rest,
                  slower);
    if (strstr(words, "--recompute full")) ck_assert_double_ge(slower, 15); /* a forward pass more */
    recomputed += strstr(words, "--recompute full") != NULL;
    offloaded += strstr(words, "offload") && strstr(rest, "on the host");
    command_free(&r);
  }
  ck_assert(recomputed > 0 && offloaded > 0);
}
END_TEST

START_TEST(categories_add_up) {
  command_result r = twinspeed("estimate -m gpt2 --cluster dgx-a100 --stage 2 --micro-batch 2 --dtype bf16 --json");
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-estimate-1");
  const cJSON *device = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "memory"), "device"), *one;
  double sum = cJSON_GetObjectItem(device, "gap_bytes")->valuedouble;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(device, "categories")) sum += one->valuedouble;
  ck_assert_double_eq(sum, cJSON_GetObjectItem(device, "arena_bytes")->valuedouble);
  ck_assert_double_eq(cJSON_GetObjectItem(json, "parameters")->valuedouble, 124439808);
  ck_assert_double_gt(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "time"), "step_s")->valuedouble, 0);
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* A value on the command line overrides the file: first the file applies, then --set, then flags. */
START_TEST(precedence) {
  const char *config = in_folder("ds.json");
  write_text(config, "{\"train_micro_batch_size_per_gpu\": 2, \"zero_optimization\": {\"stage\": 1}}");
  static const struct {
    const char *words;
    int stage;
  } cases[] = {{"", 1}, {"--set zero_optimization.stage=2", 2}, {"--stage 3 --set zero_optimization.stage=2", 3}};
  for (int i = 0; i < 3; i++) {
    command_result r = twinspeed("check -m gpt2 -c %s --cluster dgx-a100 %s --json", config, cases[i].words);
    ck_assert_msg(r.status == 0, "%s", r.err);
    cJSON *json = assert_json(&r, "twinspeed-check-1");
    ck_assert_int_eq(cJSON_GetObjectItem(json, "zero_stage")->valueint, cases[i].stage);
    ck_assert_int_eq(cJSON_GetObjectItem(json, "train_batch")->valueint, 16);
    cJSON_Delete(json);
    command_free(&r);
  }
}
END_TEST

START_TEST(check_covers_what_it_says) {
  command_result r = twinspeed("check -m gpt2 --cluster dgx-a100:4 --stage 3 --max-ranks 4 --json");
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-check-1");
  const cJSON *plan = cJSON_GetObjectItem(json, "plan");
  ck_assert_int_eq(cJSON_GetObjectItem(plan, "ranks")->valueint, 32);
  ck_assert_int_eq(cJSON_GetObjectItem(plan, "ranks_verified")->valueint, 4);
  ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(plan, "verified_together")));
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* The effective configuration is itself a configuration, and printing it again changes nothing. */
START_TEST(effective_configuration_is_stable) {
  const char *config = in_folder("ds.json"), *again = in_folder("again.json");
  write_text(config,
             "{\"train_batch_size\": 64, /* comment */ \"gradient_clipping\": 1.0,\n"
             " \"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": 5e7},}");
  command_result first = twinspeed("check -c %s", config);
  ck_assert_msg(first.status == 0, "%s", first.err);
  const char *start = strchr(first.out, '{');
  ck_assert_ptr_nonnull(start);
  write_text(again, start);
  command_result second = twinspeed("check -c %s", again);
  ck_assert_msg(second.status == 0, "%s", second.err);
  ck_assert_str_eq(first.out, second.out);
  command_free(&first);
  command_free(&second);
  command_result schema = twinspeed("check --print-schema");
  cJSON *json = cJSON_Parse(schema.out);
  ck_assert(schema.status == 0 && json != NULL);
  ck_assert_ptr_nonnull(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "properties"), "zero_optimization"));
  cJSON_Delete(json);
  command_free(&schema);
}
END_TEST

START_TEST(profile_adds_up) {
  command_result r = twinspeed("profile -m gpt2 --cluster dgx-a100 --micro-batch 1 --seq 1024 --json");
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-profile-report-1");
  const cJSON *modules = cJSON_GetObjectItem(json, "modules"), *one;
  const cJSON *root = cJSON_GetArrayItem(modules, 0);
  ck_assert_double_eq(cJSON_GetObjectItem(root, "parameters")->valuedouble, 124439808);
  double params = 0, seconds = 0;
  int block = 0;
  cJSON_ArrayForEach(one, modules) {
    if (cJSON_GetObjectItem(one, "depth")->valueint == 1) {
      params += cJSON_GetObjectItem(one, "parameters")->valuedouble;
      seconds += cJSON_GetObjectItem(one, "forward_s")->valuedouble;
    }
    if (strcmp(cJSON_GetObjectItem(one, "type")->valuestring, "GPT2Block") == 0) {
      ck_assert_double_eq(cJSON_GetObjectItem(one, "parameters")->valuedouble, 7087872); /* 12 h^2 + 13 h */
      block++;
    }
    if (strcmp(cJSON_GetObjectItem(one, "name")->valuestring, "transformer.h.0.mlp.c_fc") == 0)
      ck_assert_double_eq(cJSON_GetObjectItem(one, "macs")->valuedouble, 1024.0 * 768 * 3072);
  }
  ck_assert_int_eq(block, 12);
  ck_assert_double_eq(params, 124439808);
  ck_assert_double_eq_tol(seconds, cJSON_GetObjectItem(root, "forward_s")->valuedouble, 1e-9);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("profile -m llama-3-8b --cluster dgx-h100 --seq 128 --depth 3");
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_ptr_nonnull(strstr(r.out, "LlamaDecoderLayer"));
  ck_assert_ptr_nonnull(strstr(r.out, "params of model = params per GPU * mp_size: "));
  command_free(&r);
}
END_TEST

START_TEST(conversions) {
  write_text(in_folder("text"), "In the beginning\n\xc3\xa9");
  command_result r = twinspeed("convert tokens %s %s --json", in_folder("text"), in_folder("out.bin"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON_Delete(assert_json(&r, "twinspeed-tokens-1"));
  command_free(&r);
  char *bytes;
  size_t length;
  ck_assert_int_eq(tws_read_file(in_folder("out.bin"), 0, &bytes, &length, NULL), TWS_OK);
  ck_assert_uint_eq(length, 1024 + 2 * 19);
  int header[3];
  memcpy(header, bytes, sizeof header);
  ck_assert(header[0] == 20240520 && header[1] == 1 && header[2] == 19);
  unsigned short last;
  memcpy(&last, bytes + length - 2, 2);
  ck_assert_uint_eq(last, 0xa9);
  tws_free(bytes);
  r = twinspeed("convert tokens %s %s", in_folder("text"), in_folder("out.bin"));
  assert_one_error(&r, 2, "overwriting");
  command_free(&r);
  write_text(in_folder("loose.json"), "{ // comment\n \"a\": [1, 2,], # other\n}");
  r = twinspeed("convert config %s", in_folder("loose.json"));
  ck_assert_int_eq(r.status, 0);
  cJSON *strict = cJSON_Parse(r.out);
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(strict, "a")), 2);
  cJSON_Delete(strict);
  command_free(&r);
  r = twinspeed("convert model llama-3-8b --json");
  cJSON *model = assert_json(&r, "twinspeed-model-1");
  ck_assert_double_eq(cJSON_GetObjectItem(model, "parameters")->valuedouble, 8030261248.0);
  cJSON_Delete(model);
  command_free(&r);
}
END_TEST

START_TEST(doctor_examines) {
  command_result r = twinspeed("doctor --json");
  ck_assert_msg(r.status == 0 || r.status == 4, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-doctor-2");
  const cJSON *one;
  int self_test = 0;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(json, "findings")) {
    if (strcmp(cJSON_GetObjectItem(one, "what")->valuestring, "self test") == 0)
      self_test = strcmp(cJSON_GetObjectItem(one, "state")->valuestring, "OKAY") == 0;
    if (strcmp(cJSON_GetObjectItem(one, "state")->valuestring, "OKAY") != 0)
      ck_assert_ptr_nonnull(cJSON_GetObjectItem(one, "remedy"));
  }
  ck_assert(self_test);
  cJSON_Delete(json);
  command_free(&r);
  write_text(in_folder("hosts"), "elsewhere.invalid slots=2\n");
  r = twinspeed("doctor --json --hostfile %s --remote-shell /bin/false", in_folder("hosts"));
  ck_assert_msg(r.status == 4 && strstr(r.out, "cannot be reached"), "%d %s", r.status, r.out);
  command_free(&r);
}
END_TEST

/* Results of jobs that differ only in their type or sequence length get rows of their own in a report; older files
 * state neither. */
START_TEST(reports_keep_jobs_apart) {
  static const struct {
    const char *file, *text;
  } files[] = {{"train",
                "\"schema\": \"twinspeed-train-1\", \"ranks\": 2, \"median_step_s\": 0.5, \"configuration\": "
                "{\"model\": \"gpt2\", \"dtype\": \"bf16\", \"sequence_length\": 128, \"micro_batch\": 2}"},
               {"bf16",
                "\"schema\": \"twinspeed-simulation-1\", \"ranks\": 2, \"step_s\": 0.45, \"model\": \"gpt2\", "
                "\"dtype\": \"bf16\", \"sequence_length\": 128, \"micro_batch\": 2"},
               {"fp32",
                "\"schema\": \"twinspeed-simulation-1\", \"ranks\": 2, \"step_s\": 0.9, \"model\": \"gpt2\", "
                "\"dtype\": \"fp32\", \"sequence_length\": 128, \"micro_batch\": 2"},
               {"long",
                "\"schema\": \"twinspeed-simulation-1\", \"ranks\": 2, \"step_s\": 1.8, \"model\": \"gpt2\", "
                "\"dtype\": \"bf16\", \"sequence_length\": 256, \"micro_batch\": 2"},
               {"tune",
                "\"schema\": \"twinspeed-tune-1\", \"model\": \"gpt2\", \"dtype\": \"fp32\", "
                "\"sequence_length\": 128, \"candidates\": [{\"ranks\": 2, \"micro_batch\": 2, "
                "\"measured_step_s\": 1}]"},
               {"old",
                "\"schema\": \"twinspeed-simulation-1\", \"ranks\": 2, \"step_s\": 3, \"model\": \"gpt2\", "
                "\"micro_batch\": 2"}};
  static const struct {
    const char *dtype;
    double sequence, predicted_s, measured_s;
  } rows[] = {{"bf16", 128, 0.45, 0.5}, {"fp32", 128, 0.9, 1}, {"bf16", 256, 1.8, 0}, {NULL, 0, 3, 0}};
  char words[512] = "report --json";
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    char text[512];
    snprintf(text, sizeof text, "{%s}", files[i].text);
    write_text(in_folder(files[i].file), text);
    snprintf(words + strlen(words), sizeof words - strlen(words), " %s", in_folder(files[i].file));
  }
  command_result r = twinspeed("%s", words);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-report-1");
  const cJSON *list = cJSON_GetObjectItem(json, "configurations");
  ck_assert_int_eq(cJSON_GetArraySize(list), 4);
  for (int i = 0; i < 4; i++) {
    const cJSON *row = cJSON_GetArrayItem(list, i), *dtype = cJSON_GetObjectItem(row, "dtype");
    const cJSON *sequence = cJSON_GetObjectItem(row, "sequence_length");
    const cJSON *measured = cJSON_GetObjectItem(row, "measured_step_s");
    ck_assert_pstr_eq(cJSON_GetStringValue(dtype), rows[i].dtype);
    ck_assert_double_eq(sequence ? sequence->valuedouble : 0, rows[i].sequence);
    ck_assert_double_eq(cJSON_GetObjectItem(row, "simulated_step_s")->valuedouble, rows[i].predicted_s);
    ck_assert_double_eq(measured ? measured->valuedouble : 0, rows[i].measured_s);
  }
  ck_assert_int_eq(cJSON_GetObjectItem(json, "compared")->valueint, 2);
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

START_TEST(reports) {
  static const char job[] =
      "\"model\": \"demo/config.json\", \"zero_stage\": 1, \"micro_batch\": 2, \"threads\": 1,"
      "\"accumulation_steps\": 4, \"recompute\": \"none\", \"train_batch\": 16, \"sequence_length\": 128";
  char text[1024];
  snprintf(
      text, sizeof text,
      "{\"schema\": \"twinspeed-train-1\", \"configuration\": {%s}, \"ranks\": 2, \"steps\": 4, \"median_step_s\": 0.5,"
      " \"losses\": [5, 4, 3, 2], \"step_s\": [0.5, 0.4, 0.5, 0.6],"
      " \"memory\": [{\"rank\": 0, \"device\": {\"predicted_bytes\": 1024, \"allocated_bytes\": 1024}}]}",
      job);
  write_text(in_folder("train.json"), text);
  snprintf(text, sizeof text, "{\"schema\": \"twinspeed-simulation-1\", %s, \"ranks\": 2, \"step_s\": 0.45}", job);
  write_text(in_folder("simulation.json"), text);
  command_result r = twinspeed("report %s %s --json", in_folder("simulation.json"), in_folder("train.json"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-report-1");
  const cJSON *list = cJSON_GetObjectItem(json, "configurations");
  ck_assert_int_eq(cJSON_GetArraySize(list), 1);
  ck_assert_double_eq_tol(cJSON_GetObjectItem(cJSON_GetArrayItem(list, 0), "step_error")->valuedouble, -0.1, 1e-12);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("report %s %s --tolerance 9", in_folder("simulation.json"), in_folder("train.json"));
  ck_assert_msg(r.status == 1, "%s", r.err);
  command_free(&r);
  r = twinspeed("report %s %s --tolerance 11", in_folder("simulation.json"), in_folder("train.json"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_ptr_nonnull(strstr(r.out, "-10.0 %"));
  ck_assert_ptr_nonnull(strstr(r.out, "5.0000 -> 2.0000"));
  command_free(&r);
  write_text(in_folder("other.json"), "{\"schema\": \"other-1\"}");
  r = twinspeed("report %s", in_folder("other.json"));
  assert_one_error(&r, 3, "a foreign file");
  command_free(&r);
}
END_TEST

#define SMALL(more)                                                                                                   \
  "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 64, \"n_embd\": 32, \"n_layer\": 1, \"n_head\": " \
  "4" more "}"

/* The default type is that of the model's file; the configuration and flags override it; the answer states the type. */
START_TEST(default_types) {
  static const struct {
    const char *model, *config, *flags, *dtype;
  } cases[] = {{"", "{}", "", "fp32"},
               {", \"torch_dtype\": \"bfloat16\"", "{}", "", "bf16"},
               {", \"dtype\": \"float16\"", "{}", "", "fp16"},
               {", \"torch_dtype\": \"float32\"", "{}", "", "fp32"},
               {", \"torch_dtype\": \"bfloat16\"", "{\"fp16\": {\"enabled\": true}}", "", "fp16"},
               {", \"torch_dtype\": \"bfloat16\"", "{\"fp16\": {\"enabled\": \"auto\"}}", "", "bf16"},
               {", \"torch_dtype\": \"bfloat16\"", "{\"bf16\": {\"enabled\": false}}", "", "fp32"},
               {", \"torch_dtype\": \"bfloat16\"", "{\"fp16\": {\"enabled\": false}}", "", "bf16"},
               {", \"torch_dtype\": \"bfloat16\"", "{}", "--dtype fp32", "fp32"},
               {"", "{}", "--dtype bf16", "bf16"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[512];
    snprintf(text, sizeof text, SMALL("%s"), cases[i].model);
    write_text(in_folder("model.json"), text);
    write_text(in_folder("ds.json"), cases[i].config);
    command_result r = twinspeed("estimate -m %s -c %s --micro-batch 1 %s --json", in_folder("model.json"),
                                 in_folder("ds.json"), cases[i].flags);
    ck_assert_msg(r.status == 0, "%s", r.err);
    cJSON *json = assert_json(&r, "twinspeed-estimate-1");
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(json, "dtype")), cases[i].dtype);
    const int assumed = !*cases[i].flags && strstr(cases[i].model, "loat16") && strcmp(cases[i].dtype, "fp32") &&
                        !strstr(cases[i].config, "true");
    ck_assert_msg((strstr(r.out, "as the model's file has it") != NULL) == assumed, "%zu: %s", i, r.out);
    cJSON_Delete(json);
    command_free(&r);
  }
  assert_says("estimate -m gpt-3-175b --cluster dgx-a100:16 --stage 3", 1, "did you mean --dtype bf16?");
}
END_TEST

/* Every verb warns of the members of a model and of a configuration that it ignores. */
START_TEST(remarks_of_every_verb) {
  char line[512], text[4096];
  static const char *const verbs[] = {"estimate",
                                      "check",
                                      "simulate",
                                      "profile",
                                      "tune --no-simulation --force -o @/tune",
                                      "train --steps 1 --data @/text",
                                      "validate --steps 3 --data @/text"};
  write_text(in_folder("model.json"), SMALL(", \"resid_pdrop\": 0.1, \"reorder_and_upcast_attn\": true"));
  write_text(in_folder("ds.json"), "{train_batch_size: 1\n log: here\n wall_clock_breakdown: false}");
  memset(text, 'a', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  write_text(in_folder("text"), text);
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* for the ranks: LeakSanitizer would report memory that MPI never
                                                * frees */
  for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
    const char *at = strchr(verbs[i], '@');
    snprintf(line, sizeof line, "%.*s%s%s -m %s -c %s", at ? (int)(at - verbs[i]) : 100, verbs[i], at ? folder : "",
             at ? at + 1 : "", in_folder("model.json"), in_folder("ds.json"));
    command_result r = twinspeed("%s", line);
    ck_assert_msg(r.status == 0, "%s: %d %s", line, r.status, r.err);
    const char *notes = strncmp(line, "check", 5) == 0 ? r.out : r.err;
    ck_assert_msg(strstr(notes, "note: reorder_and_upcast_attn") != NULL, "%s: %s", line, r.err);
    ck_assert_msg(count_lines_with(r.err, "warning: ") - (strstr(r.err, "built-in profile") != NULL) == 1 &&
                      strstr(r.err, "unknown key \"log\""),
                  "%s: %s", line, r.err);
    command_free(&r);
    r = twinspeed("%s --strict", line);
    ck_assert_msg(r.status == 3 && strstr(r.err, "unknown key \"log\""), "%s --strict: %d %s", line, r.status, r.err);
    command_free(&r);
  }
  unsetenv("ASAN_OPTIONS");
}
END_TEST

/* A text without a tokenizer is read as bytes, whatever the model's vocabulary, and the answer says so. */
START_TEST(bytes_are_called_bytes) {
  char text[4096], line[256];
  memset(text, 'a', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  write_text(in_folder("text"), text);
  write_text(in_folder("model.json"),
             "{\"model_type\": \"gpt2\", \"vocab_size\": 500, \"n_positions\": 64, \"n_embd\": 32, "
             "\"n_layer\": 1, \"n_head\": 4}");
  snprintf(line, sizeof line, "train -m %s --steps 1 --data %s", in_folder("model.json"), in_folder("text"));
  assert_says(line, 0, "ids up to 255 of a vocabulary of 500");
  snprintf(line, sizeof line, "convert tokens %s %s", in_folder("text"), in_folder("text.bin"));
  assert_says(line, 0, "4095 tokens");
  command_result r = twinspeed("train -m %s --steps 1 --data %s", in_folder("model.json"), in_folder("text.bin"));
  ck_assert_msg(r.status == 0 && !strstr(r.err, "the tokens are the bytes"), "%s", r.err);
  command_free(&r);
}
END_TEST

/* Hints name the smallest change that helps, and the nearest numbers where one does not divide another. */
START_TEST(hints_are_near) {
  assert_says("estimate -m gpt2 --cluster dgx1-v100 --micro-batch 1000", 1, "--micro-batch ");
  assert_says("estimate -m gpt2 --cluster dgx-a100 --set train_batch_size=7", 3, "use a train_batch_size of 8 or");
  assert_says("estimate -m gpt2 --cluster dgx-a100 --micro-batch 2 --set train_batch_size=20", 3, "of 16 or 32");
  assert_says("tune -m gpt2 -b 64 --tp 16 --cluster dgx-a100 --no-simulation -o /tmp/none/at/all", 4, "--results");
  char line[256];
  snprintf(line, sizeof line, "tune -m gpt2 -b 64 --tp 16 --cluster dgx-a100 --no-simulation -o %s", in_folder("t"));
  assert_says(line, 3, "16 tensor ranks do not divide the 12 attention heads");
  snprintf(line, sizeof line, "tune -m gpt2-xl -b 64 --tp 2 --cluster dgx-a100 --no-simulation -o %s", in_folder("t"));
  assert_says(line, 3, "2 tensor ranks do not divide the 25 attention heads");
  snprintf(line, sizeof line, "tune -m gpt2 -b 61 -n 8 --cluster dgx-a100 --no-simulation -o %s", in_folder("t"));
  assert_says(line, 3, "8 replicas divide a global batch of 56 or 64");
  snprintf(line, sizeof line, "tune -m gpt2 -b 64 --pp 3 -n 8 --cluster dgx-a100 --no-simulation -o %s",
           in_folder("t"));
  assert_says(line, 3, "3 ranks of a replica (pipeline x tensor x sequence) do not divide 8 ranks");
  write_text(in_folder("auto.json"), "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\"}");
  snprintf(line, sizeof line, "estimate -m gpt2 -c %s", in_folder("auto.json"));
  assert_says(line, 3, "hint: --micro-batch N says what \"auto\"");
  assert_says("estimate -m /dev/null", 3, "is the file empty?");
  command_result r = twinspeed("estimate -m gpt2 --cluster dgx1-v100 --micro-batch 1000"); /* not as small as can be */
  ck_assert_msg(strstr(r.err, "--micro-batch ") && !strstr(r.err, "--micro-batch 1 "), "%s", r.err);
  command_free(&r);
}
END_TEST

/* Figures of DeepSpeed's manual, which were computed by an old version. */
START_TEST(the_manuals_zero2) {
  assert_says("estimate --zero2 --compat deepspeed-0.3 --total-params 2851e6 --gpus-per-node 8", 0,
              "  127.45GB |  15.93GB | offload_optimizer=none");
  assert_says("estimate --zero2 --compat deepspeed --total-params 2851e6 --gpus-per-node 8", 0,
              "  127.45GB |  11.28GB | offload_optimizer=none");
  assert_says("estimate --zero2 --compat deepspeed-0.4 --total-params 1", 2, "deepspeed-0.3");
}
END_TEST

/* DeepSpeed's formula for a job that offloads, next to the bytes of its plan: states of stage 3 differ by the
 * parameters that a layer gathers, and every buffer of the plan is counted. */
START_TEST(formulas_next_to_the_ledger) {
#define OFFLOADED                                                        \
  "estimate -m gpt2-xl --dtype bf16 --stage 3 --cluster dgx-a100 --set " \
  "zero_optimization.offload_optimizer.device=cpu "
  command_result r = twinspeed(OFFLOADED "--compat deepspeed --json");
  ck_assert_int_eq(r.status, 0);
  cJSON *json = assert_json(&r, "twinspeed-estimate-1"), *beside = cJSON_GetObjectItem(json, "deepspeed");
  const double total = number(json, "parameters"), device = number(beside, "gpu_bytes");
  cJSON *memory = cJSON_GetObjectItem(json, "memory");
  ck_assert_double_eq(number(beside, "cpu_bytes"), trunc(total * 16 * 1.5));
  ck_assert_double_ge(device, 2 * total / 8);
  ck_assert_double_ge(number(beside, "plan_states_gpu_bytes"), 2 * total / 8);
  ck_assert_double_lt(number(beside, "plan_states_gpu_bytes"), number(beside, "plan_gpu_bytes"));
  ck_assert_double_eq(number(beside, "plan_gpu_bytes"), number(cJSON_GetObjectItem(memory, "device"), "arena_bytes"));
  ck_assert_double_eq(number(beside, "plan_cpu_bytes"),
                      8 * number(cJSON_GetObjectItem(memory, "pinned host"), "arena_bytes"));
  ck_assert_double_ge(number(beside, "plan_states_cpu_bytes"), 14 * total);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed(OFFLOADED "--compat deepspeed");
  ck_assert(r.status == 0 && strstr(r.out, "DeepSpeed's formula: states") && strstr(r.out, "all of this plan"));
  command_free(&r);
  r = twinspeed(OFFLOADED);
  ck_assert(r.status == 0 && !strstr(r.out, "DeepSpeed's formula"));
  command_free(&r);
  assert_says("estimate -m gpt2 --compat deepspeed --stage 1", 2, "--stage 2 or 3");
  assert_says("estimate -m gpt2 --compat deepspeed --fit", 2, "--zero2 or --zero3");
}
END_TEST

/* The tuner's configuration contains the given and the chosen keys, and no others. */
START_TEST(tuned_configurations_are_small) {
  write_text(in_folder("ds.json"),
             "{\"train_batch_size\": 8, \"fp16\": {\"enabled\": \"auto\"}, \"log\": 1, "
             "\"bfloat16\": {\"enabled\": 1}}");
  command_result r = twinspeed("tune -m tiny-gpt2 -c %s --cluster dgx-a100 -n 2 --no-simulation --quiet -o %s",
                               in_folder("ds.json"), in_folder("tune"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  tws_json *json;
  ck_assert_int_eq(tws_json_read(in_folder("tune/ds_config_optimal.json"), &json, NULL), TWS_OK);
  static const char *const sections[] = {
      "train_batch_size",  "fp16",      "log", "bf16", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
      "zero_optimization", "twinspeed", NULL};
  ck_assert_int_eq(tws_json_only(json, json->root, sections, NULL), TWS_OK);
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(json->root, "zero_optimization")), 1);
  tws_json_destroy(json);
  r = twinspeed("estimate -m tiny-gpt2 -c %s --cluster dgx-a100 -n 2", in_folder("tune/ds_config_optimal.json"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
}
END_TEST

/* Models' configurations as other programs save them. */
#define LLAMA                                                                                        \
  "\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":128,\"num_attention_heads\":4," \
  "\"num_hidden_layers\":2,\"vocab_size\":256,\"max_position_embeddings\":64"
START_TEST(files_of_other_programs) {
  static const struct {
    const char *model, *options;
    int status;
    const char *out, *err;
  } cases[] = {
      {"{" LLAMA "}", "--seq 128", 0, "micro batch 1 of 128 tokens", "longer than the model's 64 positions"},
      {"{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", "--seq 128", 3, "", "exceeds the model's 64"},
      {"{\"model_type\":\"gpt2\",\"n_embd\":64,\"n_layer\":2,\"n_head\":4,\"n_positions\":64,\"vocab_size\":256}",
       "--seq 128", 3, "", "exceeds the model's 64"},
      {"{" LLAMA ",\"quantization_config\":{\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"nf4\"}}", "", 3, "",
       "--set twinspeed.frozen_quantization.type=nf4"},
      /* 256 x 64, 2 layers of 4 x 64 x 64 + 3 x 64 x 128 + 2 x 64, a norm of 64 and a score of 64 */
      {"{" LLAMA ",\"architectures\":[\"LlamaForSequenceClassification\"],\"id2label\":{\"0\":\"LABEL_0\"}}", "", 0,
       "98,688 parameters", "one label is a score"},
      {"{\"model_type\":\"falcon\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":"
       "256,"
       "\"ff_factor\":4}",
       "--seq 64", 0, "parameters", ""},
      {"{\"model_type\":\"falcon\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":"
       "256,"
       "\"ff_factor\":8}",
       "--seq 64", 3, "", "\"ff_factor\" is 8, and the inner part has 256 elements"},
      {"{\"model_type\":\"mpt\",\"d_model\":64,\"n_layers\":2,\"n_heads\":4,\"vocab_size\":256,\"max_seq_len\":64,\"no_"
       "bias\":true,"
       "\"attn_config\":{\"_name_or_path\":\"\",\"alibi\":true,\"is_encoder_decoder\":false,\"return_dict\":true}}",
       "", 0, "parameters", ""},
      {"{\"model_type\":\"nosuch\"}", "", 3, "", "; \"twinspeed convert list architectures\" prints all "},
  };
  char path[600];
  snprintf(path, sizeof path, "%s/config.json", folder);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_text(path, cases[i].model);
    command_result r = twinspeed("estimate -m %s --cluster h100 --micro-batch 1 %s", path, cases[i].options);
    ck_assert_msg((r.status == 0) == (cases[i].status == 0), "%zu: exit %d: %s", i, r.status, r.err);
    ck_assert_msg(strstr(r.out, cases[i].out) && strstr(r.err, cases[i].err), "%zu: %s%s", i, r.out, r.err);
    command_free(&r);
  }
}
END_TEST

START_TEST(names_and_sizes) {
  command_result r = twinspeed("estimate -m gpt2 --profile nosuch");
  ck_assert_msg(strstr(r.err, "; \"twinspeed convert list profiles\" prints all ") != NULL, "%s", r.err);
  command_free(&r);
  r = twinspeed("convert list profiles");
  for (const char *const *name = tws_profile_builtin_names(); *name; name++)
    ck_assert_msg(strstr(r.out, *name) != NULL, "%s is not in %s", *name, r.out);
  command_free(&r);
  r = twinspeed("estimate -m gpt2 --profile h20");
  ck_assert_msg(!strstr(r.err, "did you mean"), "%s", r.err);
  command_free(&r);
  r = twinspeed("calibrate --disk-bytes 1KiB");
  ck_assert_msg(r.status != 0 && strstr(r.err, "\"1KiB\" is outside 65536 .. 1000000000000 bytes"), "%s", r.err);
  command_free(&r);
  r = twinspeed("calibrate --disk %s/nosuch --disk-bytes 16MiB", folder);
  ck_assert_msg(r.status != 0 && !strstr(r.err, "not a number") && !strstr(r.err, "disk-bytes"), "%s", r.err);
  command_free(&r);
  r = twinspeed("estimate --help");
  ck_assert_ptr_nonnull(strstr(r.out, "NAME[:NODES[xDEVICES]]"));
  command_free(&r);
}
END_TEST

/* A name that is both a built-in model and a folder. */
START_TEST(one_name_for_two_models) {
  char line[256];
  mkdir(in_folder("gpt2"), 0777);
  snprintf(line, sizeof line, "cd %s && %s/twinspeed estimate -m gpt2", folder, TWS_BUILD_DIR);
  char *argv[] = {"/bin/sh", "-c", line, NULL};
  command_result r = command_execute(argv);
  ck_assert_msg(r.status == 0 && strstr(r.err, "gpt2 is the built-in model; -m ./gpt2 takes"), "%s", r.err);
  command_free(&r);
}
END_TEST

/* Refuses figures that no run can have, and files that only resemble results. */
START_TEST(results_that_do_not_belong) {
  static const char *const bad[] = {"\"step_s\": -1",
                                    "\"step_s\": 1e300",
                                    "\"step_s\": \"fast\"",
                                    "\"step_s\": 1, \"ranks\": -2",
                                    "\"step_s\": 1, \"micro_batch\": 1.5",
                                    "\"step_s\": 1, \"zero_stage\": 7",
                                    "\"step_s\": 1, \"model\": 3",
                                    "\"step_s\": true",
                                    "\"ranks\": 2"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    char text[256];
    snprintf(text, sizeof text, "{\"schema\": \"twinspeed-simulation-1\", %s}", bad[i]);
    write_text(in_folder("bad.json"), text);
    command_result r = twinspeed("report %s", in_folder("bad.json"));
    assert_one_error(&r, 3, bad[i]);
    ck_assert_msg(strstr(r.err, "bad.json:1:") != NULL, "%s", r.err);
    command_free(&r);
  }
  static const char models[2][256] = {
      "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 64, \"n_embd\": 32, \"n_layer\": 1, "
      "\"n_head\": "
      "4}",
      "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 64, \"n_embd\": 64, \"n_layer\": 1, "
      "\"n_head\": "
      "4}"};
  char line[256];
  for (int i = 0; i < 2; i++) { /* one name, two models */
    write_text(in_folder("config.json"), models[i]);
    command_result r = twinspeed("%s -m %s --json", i ? "estimate" : "simulate", in_folder("config.json"));
    ck_assert_msg(r.status == 0, "%s", r.err);
    write_text(in_folder(i ? "estimate.json" : "simulate.json"), r.out);
    command_free(&r);
  }
  snprintf(line, sizeof line, "report %s %s", in_folder("simulate.json"), in_folder("estimate.json"));
  command_result r = twinspeed("%s", line);
  assert_one_error(&r, 3, "two models");
  ck_assert_msg(strstr(r.err, "two models that the table could not tell apart") != NULL, "%s", r.err);
  command_free(&r);
  r = twinspeed(
      "estimate -m %s --set zero_optimization.stage=2 --set zero_optimization.reduce_bucket_size=1000 -n 2 "
      "--json",
      in_folder("config.json"));
  write_text(in_folder("estimate.json"), r.out);
  command_free(&r);
  r = twinspeed("simulate -m %s --stage 2 -n 2 --json", in_folder("config.json"));
  write_text(in_folder("simulate.json"), r.out);
  command_free(&r);
  r = twinspeed("%s", line);
  assert_one_error(&r, 3, "two plans");
  ck_assert_msg(strstr(r.err, "two plans of one model") != NULL, "%s", r.err);
  command_free(&r);
  r = twinspeed("estimate -m %s --stage 2 -n 2 --json", in_folder("config.json"));
  write_text(in_folder("estimate.json"), r.out);
  command_free(&r);
  r = twinspeed("%s --json", line);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-report-1");
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(json, "configurations")), 1);
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cli_answers");
  TCase *answers = tcase_create("answers");
  tcase_set_timeout(answers, 120);
  tcase_add_checked_fixture(answers, make_folder, remove_folder);
  tcase_add_test(answers, results_that_do_not_belong);
  tcase_add_test(answers, files_of_other_programs);
  tcase_add_test(answers, names_and_sizes);
  tcase_add_test(answers, default_types);
  tcase_add_test(answers, remarks_of_every_verb);
  tcase_add_test(answers, hints_are_near);
  tcase_add_test(answers, bytes_are_called_bytes);
  tcase_add_test(answers, the_manuals_zero2);
  tcase_add_test(answers, formulas_next_to_the_ledger);
  tcase_add_test(answers, tuned_configurations_are_small);
  tcase_add_test(answers, one_name_for_two_models);
  tcase_add_test(answers, deepspeed_tables);
  tcase_add_test(answers, estimate_says_no);
  tcase_add_test(answers, evaluation_alone);
  tcase_add_test(answers, simulations_say_what_does_not_fit);
  tcase_add_test(answers, estimate_remedy_works);
  tcase_add_test(answers, remedies_say_what_they_cost);
  tcase_add_test(answers, categories_add_up);
  tcase_add_test(answers, precedence);
  tcase_add_test(answers, check_covers_what_it_says);
  tcase_add_test(answers, effective_configuration_is_stable);
  tcase_add_test(answers, profile_adds_up);
  tcase_add_test(answers, conversions);
  tcase_add_test(answers, doctor_examines);
  tcase_add_test(answers, reports);
  tcase_add_test(answers, reports_keep_jobs_apart);
  suite_add_tcase(suite, answers);
  return run_suite(suite);
}
