/* Predictions of inference: the answer of `estimate --serve`, and how its figures depend on each other. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "answers.h"
#include "members.h"
#include "suite.h"

static cJSON *serve(const char *rest) {
  command_result r = twinspeed("estimate --serve --json --quiet %s", rest);
  ck_assert_msg(r.status == 0, "%s: %s", rest, r.err);
  cJSON *json = assert_json(&r, "twinspeed-serve-1");
  command_free(&r);
  return json;
}

#define LLAMA "-m llama-2-7b --cluster dgx-a100:1x1 --dtype fp16 --software vllm "

static const cJSON *device(const cJSON *json) {
  return member(member(json, "memory"), "device");
}

/* Each token reads all weights and the cache once; rates follow from times; the texts of a batch share the reading of
 * the weights. */
START_TEST(figures_follow_from_each_other) {
  cJSON *one = serve(LLAMA "--micro-batch 1 --prompt-tokens 128 --output-tokens 128");
  cJSON *many = serve(LLAMA "--micro-batch 16 --prompt-tokens 128 --output-tokens 128");
  const double weights = 2 * 6738415616.0, token = number(one, "token_s"), first = number(one, "first_token_s");
  /* all weights except the table of embeddings, of which a token reads one row */
  ck_assert_double_eq_tol(number(one, "weight_bytes"), weights - 2 * 32000.0 * 4096, 0.01 * weights);
  ck_assert_double_gt(token, weights / 2.1e12);
  ck_assert_double_lt(token, 2 * weights / 2.039e12);
  ck_assert_double_eq_tol(number(one, "text_s"), first + 127 * token, 1e-9);
  ck_assert_double_eq_tol(number(one, "decoded_tokens_per_s"), 1 / token, 1e-6);
  double sum = 0;
  const cJSON *cause;
  cJSON_ArrayForEach(cause, member(one, "token_causes_s")) sum += cause->valuedouble;
  ck_assert_double_eq_tol(sum, token, 1e-9);
  const double cached = number(member(device(one), "categories"), "cached keys and values");
  ck_assert_double_eq(cached, 2.0 * 256 * 2 * 32 * 4096);
  ck_assert_double_eq(number(member(device(many), "categories"), "cached keys and values"), 16 * cached);
  ck_assert_double_gt(number(many, "decoded_tokens_per_s"), 10 * number(one, "decoded_tokens_per_s"));
  ck_assert_double_gt(number(many, "token_s"), token);
  ck_assert_double_eq(number(one, "largest_batch"), number(many, "largest_batch"));
  ck_assert_double_gt(number(one, "largest_batch"), 100);
  cJSON_Delete(many);
  cJSON_Delete(one);
}
END_TEST

/* Predicts a decode of tiny-gpt2 on a host whose profile has these costs around kernels, or none for "". */
static cJSON *serve_on_host(const char *passes, int texts) {
  char path[] = "/tmp/twinspeed-serve-XXXXXX", line[256];
  FILE *file = fdopen(mkstemp(path), "w");
  ck_assert_ptr_nonnull(file);
  fprintf(file,
          "{\"schema\":\"twinspeed-profile-1\",\"provenance\":\"a test\",\"backend\":\"host\",\"cores\":2,"
          "\"memory_bytes\":8e9,\"peak_flops\":{\"fp32\":5e10},\"bandwidth\":1e10%s}",
          passes);
  fclose(file);
  snprintf(line, sizeof line, "-m tiny-gpt2 --profile %s -n 1 --micro-batch %d --prompt-tokens 8 --output-tokens 8",
           path, texts);
  cJSON *json = serve(line);
  unlink(path);
  return json;
}

/* A host's pass takes its own seconds, those of choosing a token for each text, and those of starting each operation,
 * as many as the plan has; profiles of earlier versions have none of them. */
START_TEST(seconds_around_kernels) {
  static const char *const passes[] = {"", ",\"passes\":{\"pass_s\":1,\"choice_s\":[[50,0.5],[100000,0.5]]}",
                                       ",\"passes\":{\"start_s\":1}"};
  double token[2][3], first[2][3];
  for (int many = 0; many < 2; many++)
    for (int i = 0; i < 3; i++) {
      cJSON *json = serve_on_host(passes[i], many ? 4 : 1);
      token[many][i] = number(json, "token_s");
      first[many][i] = number(json, "first_token_s");
      cJSON_Delete(json);
    }
  for (int many = 0; many < 2; many++) {
    const double around_s = 1 + 0.5 * (many ? 4 : 1), started = token[many][2] - token[many][0];
    ck_assert_double_eq_tol(token[many][1] - token[many][0], around_s, 1e-6);
    ck_assert_double_eq_tol(first[many][1] - first[many][0], around_s, 1e-6);
    ck_assert_double_eq_tol(started, round(started), 1e-6);
    ck_assert_double_ge(started, 10);
  }
  ck_assert_double_eq_tol(token[1][2] - token[1][0], token[0][2] - token[0][0], 1e-6);
}
END_TEST

/* Tensor ranks divide the weights and the cache; stages divide the cache, and their times add up; weights in few bits
 * take fewer bytes. */
START_TEST(divisions_and_bits) {
  static const char *const how[] = {"--tp 1 -n 1", "--tp 2 -n 2", "--pp 2 -n 2", "--tp 1 -n 1 --weights int8",
                                    "--tp 1 -n 1 --weights nf4"};
  double token[5], bytes[5], cached[5];
  char line[256];
  for (int i = 0; i < 5; i++) {
    snprintf(line, sizeof line, "-m llama-2-7b --cluster dgx-a100 --dtype fp16 --micro-batch 4 %s", how[i]);
    cJSON *json = serve(line);
    token[i] = number(json, "token_s");
    bytes[i] = number(device(json), "arena_bytes");
    cached[i] = number(member(device(json), "categories"), "cached keys and values");
    cJSON_Delete(json);
  }
  ck_assert_double_lt(token[1], token[0]);
  ck_assert_double_lt(bytes[1], 0.6 * bytes[0]);
  ck_assert_double_eq(cached[1], cached[0] / 2);
  ck_assert_double_eq(cached[2], cached[0] / 2);
  ck_assert_double_eq_tol(token[2], token[0], 0.1 * token[0]);
  for (int i = 3; i < 5; i++) {
    ck_assert_double_lt(token[i], token[i == 3 ? 0 : 3]);
    ck_assert_double_lt(bytes[i], bytes[i == 3 ? 0 : 3]);
    ck_assert_double_eq(cached[i], cached[0]);
  }
}
END_TEST

static void refused(int status, const char *words, const char *rest) {
  command_result r = twinspeed("estimate --quiet %s", rest);
  assert_one_error(&r, status, rest);
  ck_assert_msg(strstr(r.err, words) != NULL, "not \"%s\" but %s", words, r.err);
  command_free(&r);
}

START_TEST(refusals) {
  refused(2, "no software for inference is called \"vlm\"", "--serve -m gpt2 --software vlm");
  refused(2, "--weights: no type is \"fp3\"", "--serve -m gpt2 --weights fp3");
  refused(2, "concern inference", "-m gpt2 --software vllm");
  static const char *const of_training[] = {"--program evaluate",
                                            "--runtime megatron",
                                            "--recompute full",
                                            "--seq 64",
                                            "--seq 64,128",
                                            "--steps 5",
                                            "--fit",
                                            "--no-tight",
                                            "--measured step=1",
                                            "--learning-rate 1",
                                            "--zero3",
                                            "--allocator fixed"};
  for (size_t i = 0; i < sizeof of_training / sizeof *of_training; i++) { /* none of them is ignored */
    char line[96], words[64];
    snprintf(line, sizeof line, "--serve -m gpt2 --cluster a100 %s", of_training[i]);
    snprintf(words, sizeof words, "%.*s concerns a training, not --serve", (int)strcspn(of_training[i], " "),
             of_training[i]);
    refused(2, words, line);
  }
  refused(2, "it needs the lengths of prompts and texts", "-m gpt2 --program decode");
  refused(3, "the job runs on a host", "--serve -m gpt2 --cluster host --device-share 0.5");
  refused(2, "--device-share: 1.5", "--serve -m gpt2 --cluster a100 --device-share 1.5");
  refused(3, "vllm runs on GPUs", "--serve -m gpt2 --cluster host --software vllm");
  refused(3,
          "a rank's rows of model.layers.0.mlp.down_proj.weight have 1376 elements, no multiple of the 64 that share a "
          "scale\nhint: use --tp 4, or leave out --weights",
          "--serve -m llama-2-7b --cluster dgx-a100 --tp 8 --weights int4");
  command_result r = twinspeed("estimate --serve --json --quiet -m llama-2-70b --cluster dgx-a100:1x1 --dtype fp16");
  ck_assert_int_eq(r.status, 1);
  ck_assert_msg(strstr(r.err, "does not fit") && strstr(r.err, "use more tensor ranks"), "%s", r.err);
  cJSON *json = cJSON_Parse(r.out);
  ck_assert_double_eq(number(json, "largest_batch"), 0);
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* Lists give a row for each combination, with the figures that it has alone; one that does not fit or cannot be divided
 * is a row with the reason. */
START_TEST(rows_of_lists) {
  command_result r =
      twinspeed("estimate --serve --json --quiet " LLAMA "--cluster dgx-a100:1x4 --tp 1,3,4 --micro-batch 8,1024");
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *rows = cJSON_Parse(r.out);
  ck_assert_int_eq(cJSON_GetArraySize(rows), 6);
  cJSON *alone = serve(LLAMA "--cluster dgx-a100:1x4 --tp 4 --micro-batch 8");
  const cJSON *row = cJSON_GetArrayItem(rows, 4);
  ck_assert_str_eq(member(row, "schema")->valuestring, "twinspeed-serve-sweep-1");
  ck_assert(number(row, "tp") == 4 && number(row, "micro_batch") == 8 && number(row, "texts") == 8);
  ck_assert_double_eq(number(row, "text_tokens"), 1024);
  static const char *const figures[] = {
      "first_token_s", "token_s", "text_s", "tokens_per_s", "decoded_tokens_per_s", "prompt_tokens_per_s"};
  for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
    ck_assert_msg(number(row, figures[i]) == number(alone, figures[i]), "%s", figures[i]);
  static const char *const status[] = {"fits", "does not fit", "refused", "refused", "fits", "does not fit"};
  for (int i = 0; i < 6; i++) ck_assert_str_eq(member(cJSON_GetArrayItem(rows, i), "status")->valuestring, status[i]);
  ck_assert_double_eq(number(cJSON_GetArrayItem(rows, 0), "texts"), 32); /* of four replicas */
  cJSON_Delete(alone);
  cJSON_Delete(rows);
  command_free(&r);
  r = twinspeed("estimate --serve --quiet " LLAMA "--micro-batch 1,2 --csv -");
  static const char head[] =
      "ranks,pp,tp,sp,ep,stage,text_tokens,micro_batch,accumulation,texts,status,first_token_s,token_s,text_s,"
      "tokens_per_s,decoded_tokens_per_s,prompt_tokens_per_s,device_bytes,device_limit_bytes,node_bytes,reason\n"
      "1,1,1,1,1,0,1024,1,1,1,fits,";
  ck_assert_msg(strncmp(r.out, head, sizeof head - 1) == 0, "%s%s", r.out, r.err);
  command_free(&r);
}
END_TEST

/* A training refuses a file that configures DeepSpeed's inference engine, by any of its keys. */
START_TEST(not_for_trainings) {
  static const char *const keys[] = {"\"tensor_parallel\": {\"tp_size\": 2}", "\"mp_size\": 2",
                                     "\"kernel_inject\": true", "\"max_out_tokens\": 64"};
  char path[] = "/tmp/twinspeed-serve-XXXXXX";
  const int file = mkstemp(path);
  ck_assert_int_ge(file, 0);
  close(file);
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    char text[96];
    snprintf(text, sizeof text, "{\"dtype\": \"fp16\", %s}", keys[i]);
    write_text(path, text);
    command_result r = twinspeed("check -m gpt2 --cluster dgx-a100 -c %s", path);
    assert_one_error(&r, 3, keys[i]);
    ck_assert_msg(strstr(r.err, "inference engine (init_inference)") && strstr(r.err, "estimate --serve"), "%s", r.err);
    command_free(&r);
  }
  unlink(path);
}
END_TEST

/* The software determines the costs around kernels: a training configuration, whose runtime is DeepSpeed, has no effect
 * on them, nor has its batch on the number of texts. The answer names the software. */
START_TEST(software_is_not_a_training_runtime) {
  char path[] = "/tmp/twinspeed-serve-XXXXXX";
  const int file = mkstemp(path);
  ck_assert_int_ge(file, 0);
  close(file);
  write_text(path, "{\"train_batch_size\": 64, \"fp16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 2}}");
  for (int i = 0; i < 2; i++) {
    char line[160];
    snprintf(line, sizeof line, "-m gpt2-xl --cluster dgx-a100 --software %s", i ? "vllm" : "twinspeed --dtype fp16");
    cJSON *without = serve(line);
    snprintf(line, sizeof line, "-m gpt2-xl --cluster dgx-a100 --software %s -c %s", i ? "vllm" : "twinspeed", path);
    cJSON *with = serve(line);
    static const char *const figures[] = {"texts", "first_token_s", "token_s", "largest_batch"};
    for (int f = 0; f < 4 && !i; f++) ck_assert_double_eq(number(with, figures[f]), number(without, figures[f]));
    ck_assert_str_eq(member(with, "software")->valuestring, i ? "vllm" : "twinspeed");
    ck_assert_ptr_null(cJSON_GetObjectItem(with, "runtime"));
    cJSON_Delete(with), cJSON_Delete(without);
  }
  unlink(path);
  command_result r = twinspeed("estimate --serve -m gpt2 --cluster a100 --software vllm");
  ck_assert_msg(strncmp(r.out, "Software vllm: vLLM", 19) == 0 && !strstr(r.out, "train batch"), "%s", r.out);
  command_free(&r);
  r = twinspeed("estimate --serve -m gpt2 --cluster a100");
  ck_assert_ptr_nonnull(strstr(r.out, "Assumed  software twinspeed (--software NAME)"));
  command_free(&r);
}
END_TEST

/* The best division within the limits of latency comes first; tighter limits reduce the throughput, and with impossible
 * ones no division is left. */
START_TEST(tuning_within_limits) {
  static const char *const limits[] = {"", "--token-within 0.02", "--token-within 0.02 --first-token-within 0.5"};
  double rate = INFINITY;
  for (int i = 0; i < 3; i++) {
    command_result r =
        twinspeed("tune --serve --json --quiet -m llama-2-13b --cluster dgx-a100:1x4 --software vllm %s", limits[i]);
    ck_assert_msg(r.status == 0, "%s", r.err);
    cJSON *json = assert_json(&r, "twinspeed-serve-tuning-1");
    const cJSON *points = member(json, "points"), *best = cJSON_GetArrayItem(points, 0), *point;
    ck_assert_int_eq(cJSON_GetArraySize(points), 6); /* six ways to write 4 as tensor ranks x stages x replicas */
    cJSON_ArrayForEach(point, points) {
      if (number(point, "texts") == 0) continue;
      ck_assert_double_le(number(point, "tokens_per_s"), number(best, "tokens_per_s"));
      if (i > 0) ck_assert_double_le(number(point, "token_s"), 0.02);
      if (i > 1) ck_assert_double_le(number(point, "first_token_s"), 0.5);
    }
    ck_assert_double_lt(number(best, "tokens_per_s"), rate * 1.0001);
    rate = number(best, "tokens_per_s");
    cJSON_Delete(json);
    command_free(&r);
  }
  command_result r = twinspeed("tune --serve --quiet -m llama-2-13b --cluster dgx-a100:1x4 --token-within 0.0001");
  ck_assert_int_eq(r.status, 1);
  ck_assert_msg(strstr(r.err, "no division fits within the limits") != NULL, "%s", r.err);
  command_free(&r);
  static const char *const others[] = {"--tp 2",     "--ranks 3",  "--trials 5",      "--seq 128",
                                       "--stages 1", "--no-tight", "--csv points.csv"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) { /* nothing of a training's search is ignored */
    r = twinspeed("tune --serve -m llama-2-13b --cluster dgx-a100:1x4 %s", others[i]);
    ck_assert_int_eq(r.status, 2);
    ck_assert_msg(strstr(r.err, "concerns the search of a training") != NULL, "%s", r.err);
    ck_assert_msg(strncmp(strstr(r.err, "--"), others[i], strcspn(others[i], " ")) == 0, "%s", r.err);
    command_free(&r);
  }
}
END_TEST

/* DeepSpeed's inference configuration: keys take effect, or are explained; the weights' type and tensor ranks are those
 * of options. */
START_TEST(inference_configuration) {
  char path[] = "/tmp/twinspeed-inference-XXXXXX", line[256];
  const int file = mkstemp(path);
  ck_assert_int_ge(file, 0);
  close(file);
#define CONFIG(text) write_text(path, text)
  CONFIG(
      "{\"kernel_inject\": true, \"tensor_parallel\": {\"tp_size\": 4}, \"dtype\": \"fp16\", "
      "\"enable_cuda_graph\": false, \"quant\": {\"weight\": {\"num_bits\": 8}}}");
  snprintf(line, sizeof line, "-m llama-2-7b --cluster dgx-a100 -c %s", path);
  cJSON *by_file = serve(line),
        *by_options = serve("-m llama-2-7b --cluster dgx-a100 --tp 4 -n 4 --dtype fp16 --micro-batch 1 --weights int8");
  ck_assert_double_eq(number(by_file, "token_s"), number(by_options, "token_s"));
  ck_assert_double_eq(number(device(by_file), "arena_bytes"), number(device(by_options), "arena_bytes"));
  cJSON_Delete(by_options);
  cJSON_Delete(by_file);
  command_result r = twinspeed("estimate --serve %s", line);
  static const char *const notes[] = {"note: kernel_inject has no effect: the engine has kernels of its own",
                                      "note: enable_cuda_graph has no effect", "note: quant: weights of linear layers"};
  const char *note = r.err;
  for (int i = 0; i < 3; i++) { /* each is a line of its own */
    ck_assert_msg(strncmp(note, notes[i], strlen(notes[i])) == 0, "not \"%s\" but %s", notes[i], note);
    note = strchr(note, '\n') + 1;
  }
  ck_assert_str_eq(note, "");
  static const char *const experts[] = {"{\"dtype\": \"bf16\", \"moe\": {\"ep_size\": 4}}",
                                        "{\"dtype\": \"bf16\", \"ep_size\": 4}",
                                        "{\"dtype\": \"bf16\", \"moe\": {\"enabled\": false, \"ep_size\": 4}}"};
  for (int i = 0; i < 3; i++) {
    write_text(path, experts[i]);
    snprintf(line, sizeof line, "-m mixtral-8x7b --cluster dgx-b200 --micro-batch 1 -c %s", path);
    by_file = serve(line);
    by_options = serve(i < 2 ? "-m mixtral-8x7b --cluster dgx-b200 --micro-batch 1 --dtype bf16 --ep 4"
                             : "-m mixtral-8x7b --cluster dgx-b200 --micro-batch 1 --dtype bf16");
    ck_assert_double_eq(number(by_file, "token_s"), number(by_options, "token_s"));
    ck_assert_double_eq(number(device(by_file), "arena_bytes"), number(device(by_options), "arena_bytes"));
    cJSON_Delete(by_options), cJSON_Delete(by_file);
  }
  command_free(&r);
  snprintf(line, sizeof line, "--serve -m gpt2 -c %s", path);
  CONFIG("{\"dtype\": \"fp12\"}");
  refused(3, "\"dtype\": no such type", line);
  CONFIG("{\"dtype\": \"fp16\", \"kernel_injekt\": 1}");
  refused(3, "unknown key \"kernel_injekt\"", line);
  CONFIG("{\"quant\": {\"weight\": {\"num_bits\": 3}}}");
  refused(3, "\"quant.weight.num_bits\" is 3", line);
  CONFIG("{\"max_out_tokens\": 100}");
  refused(3, "max_out_tokens is 100, and texts have 512 + 512 tokens", line);
  CONFIG("{\"dtype\": \"bf16\", \"moe\": {\"experts\": 2}}");
  refused(3, "experts", line);
  snprintf(line, sizeof line, "--serve -m gpt2 -c %s", path);
  CONFIG("{\"mp_size\": 0}");
  refused(3, "mp_size", line);
  unlink(path);
}
END_TEST

/* The configurations of DeepSpeed's manual: tensor ranks alone, and lists of checkpoints, whose keys are explained. */
START_TEST(configurations_of_the_manual) {
  static const struct {
    const char *text, *options, *note;
  } cases[] = {{"{\"tensor_parallel\": {\"tp_size\": 4}}", "--tp 4 -n 4", ""},
               {"{\"type\": \"ds_model\", \"version\": 0.0, \"checkpoints\": \"path_to_checkpoints\"}", "",
                "checkpoints has no effect: weights are those of --init-from"},
               {"{\"type\": \"Megatron\", \"version\": 0.0, \"checkpoints\": [\"mp_rank_00/model_optim_rng.pt\"]}", "",
                "type has no effect"}};
  char path[] = "/tmp/twinspeed-inference-XXXXXX", line[256];
  const int file = mkstemp(path);
  ck_assert_int_ge(file, 0);
  close(file);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_text(path, cases[i].text);
    snprintf(line, sizeof line, "-m llama-2-7b --cluster dgx-a100 --micro-batch 1 -c %s", path);
    command_result r = twinspeed("estimate --serve %s", line);
    ck_assert_msg(r.status == 0 && strstr(r.err, cases[i].note) != NULL, "%s", r.err);
    command_free(&r);
    cJSON *by_file = serve(line);
    snprintf(line, sizeof line, "-m llama-2-7b --cluster dgx-a100 --micro-batch 1 %s", cases[i].options);
    cJSON *by_options = serve(line);
    ck_assert_double_eq(number(by_file, "token_s"), number(by_options, "token_s"));
    cJSON_Delete(by_options), cJSON_Delete(by_file);
  }
  unlink(path);
}
END_TEST

/* The published runs as a whole: the median error of the half that nothing was fitted to, the order of runs in each
 * large group, and whether runs fit in memory. */
START_TEST(all_published_runs) {
  command_result r =
      twinspeed("validate --cases %s/../scenarios/published/inference_runs.json --json --quiet", TWS_TEST_DIR);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-served-cases-1");
  const cJSON *half, *group, *run;
  int large = 0;
  cJSON_ArrayForEach(half, member(json, "halves")) {
    const double right = number(half, "verdicts_right"), wrong = number(half, "verdicts_wrong");
    ck_assert_double_ge(number(half, "timed"), 60);
    ck_assert_double_le(number(half, "median_ape"), 15);
    ck_assert_double_ge(right, 0.95 * (right + wrong));
    ck_assert_double_ge(number(half, "weighed"), 15);
    ck_assert_double_le(number(half, "memory_median_ape"), 5);
  }
  cJSON_ArrayForEach(run, member(json, "cases")) {
    const cJSON *why = cJSON_GetObjectItem(run, "skipped_because");
    ck_assert_msg(!cJSON_IsString(why) || !strstr(why->valuestring, "no cluster of the device: RTX"), "%s",
                  why->valuestring);
  }
  cJSON_ArrayForEach(group, member(json, "groups")) {
    if (number(group, "timed") < 10) continue;
    large++;
    if (strcmp(member(group, "group")->valuestring, "fastertransformer") == 0)
      ck_assert_double_le(number(group, "memory_median_ape"), 2);
    ck_assert_msg(number(group, "concordance") >= 0.9, "%s", member(group, "group")->valuestring);
  }
  ck_assert_int_ge(large, 4);
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* vLLM fills its share of a device with keys and values: 7,351 blocks of 16 tokens for Llama 2 7B on an A100 of 80 GB
 * (its pull request 2031). More of the device holds more tokens, by their bytes; longer texts hold as many. */
START_TEST(tokens_that_fill_a_device) {
  static const char vllm[] = "-m llama-2-7b --cluster dgx-a100:1x1 --dtype fp16 --software vllm-2023 ";
  char line[256];
  snprintf(line, sizeof line, "%s--prompt-tokens 2048 --output-tokens 2048", vllm);
  cJSON *published = serve(line);
  ck_assert_double_eq_tol(number(published, "cached_tokens"), 7351 * 16, 0.02 * 7351 * 16);
  snprintf(line, sizeof line, "%s--prompt-tokens 2048 --output-tokens 2048 --device-share 0.8", vllm);
  cJSON *smaller = serve(line);
  const double bytes = number(member(device(published), "categories"), "cached keys and values") / 4096;
  const double device_bytes = number(member(published, "verdict"), "device_have_bytes") / 0.9;
  ck_assert_double_eq_tol(number(published, "cached_tokens") - number(smaller, "cached_tokens"),
                          0.1 * device_bytes / bytes, 2);
  snprintf(line, sizeof line, "%s--micro-batch 4 --prompt-tokens 128 --output-tokens 64", vllm);
  cJSON *shorter = serve(line);
  ck_assert_double_eq_tol(number(shorter, "cached_tokens"), number(published, "cached_tokens"),
                          0.01 * number(published, "cached_tokens"));
  cJSON *own = serve("-m llama-2-7b --cluster dgx-a100:1x1 --dtype fp16"); /* it takes what its texts need */
  ck_assert_ptr_null(cJSON_GetObjectItem(own, "cached_tokens"));
  cJSON_Delete(own), cJSON_Delete(shorter), cJSON_Delete(smaller), cJSON_Delete(published);
}
END_TEST

/* Published runs of inference are predicted and compared group by group; runs that cannot be predicted are skipped with
 * the reason. */
START_TEST(published_runs) {
  command_result r = twinspeed(
      "validate --cases %s/../scenarios/published/inference_runs.json --json --quiet --group gpt-fast", TWS_TEST_DIR);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-served-cases-1");
  const cJSON *group = cJSON_GetArrayItem(member(json, "groups"), 0);
  ck_assert_str_eq(member(group, "group")->valuestring, "gpt-fast");
  ck_assert_int_ge(member(group, "timed")->valueint, 8);
  ck_assert_double_lt(number(group, "median_ape"), 20);
  ck_assert_double_ge(number(group, "concordance"), 0.9);
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* A row without a batch has as many texts at a time as its concurrency says; a closed loop, whose times include
 * prefills of other requests, is not compared. */
START_TEST(concurrency_is_the_batch) {
  static const struct {
    const char *texts, *kind, *skipped;
  } rows[] = {{"\"batch\":4", "decode_rate", NULL},
              {"\"batch\":null,\"concurrency\":4", "decode_rate", NULL},
              {"\"batch\":1,\"concurrency\":4", "decode_rate", NULL},
              {"\"batch\":null", "decode_rate", "neither batch nor concurrency is stated"},
              {"\"concurrency\":4", "serving_closed_loop", "no rate of a batch: serving_closed_loop"}};
  enum { ROWS = sizeof rows / sizeof *rows };
  char path[] = "/tmp/twinspeed-inference-XXXXXX";
  FILE *file = fdopen(mkstemp(path), "w");
  ck_assert_ptr_nonnull(file);
  for (int i = 0; i < ROWS; i++)
    fprintf(file,
            "%s{\"id\":\"%d\",\"group\":\"g\",\"core\":true,\"model\":{\"name\":\"Llama-2-7B\"},\"hardware\":"
            "{\"gpu\":\"A100-SXM4-80GB\"},\"software\":{\"name\":\"vLLM\"},\"config\":{\"weight_dtype\":\"fp16\","
            "\"tp\":1,\"pp\":1,%s,\"input_tokens\":128,\"output_tokens\":128},\"result\":"
            "{\"tokens_per_s_total\":200},\"measure\":{\"kind\":\"%s\"}}",
            i ? "," : "[", i, rows[i].texts, rows[i].kind);
  fprintf(file, "]");
  fclose(file);
  command_result r = twinspeed("validate --cases %s --json --quiet", path);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-served-cases-1");
  const cJSON *cases = member(json, "cases");
  double rate[ROWS] = {0};
  for (int i = 0; i < ROWS; i++) {
    const cJSON *one = cJSON_GetArrayItem(cases, i);
    if (rows[i].skipped)
      ck_assert_str_eq(member(one, "skipped_because")->valuestring, rows[i].skipped);
    else
      rate[i] = number(one, "predicted_tokens_per_s");
  }
  ck_assert_double_eq(rate[0], rate[1]);
  ck_assert_double_lt(rate[2], rate[1] / 2);
  cJSON_Delete(json);
  command_free(&r);
  unlink(path);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cli_serve");
  TCase *tests = tcase_create("cli_serve");
  tcase_add_test(tests, figures_follow_from_each_other);
  tcase_add_test(tests, seconds_around_kernels);
  tcase_add_test(tests, divisions_and_bits);
  tcase_add_test(tests, refusals);
  tcase_add_test(tests, rows_of_lists);
  tcase_add_test(tests, not_for_trainings);
  tcase_add_test(tests, software_is_not_a_training_runtime);
  tcase_add_test(tests, tuning_within_limits);
  tcase_add_test(tests, inference_configuration);
  tcase_add_test(tests, configurations_of_the_manual);
  tcase_add_test(tests, tokens_that_fill_a_device);
  tcase_add_test(tests, published_runs);
  tcase_add_test(tests, all_published_runs);
  tcase_add_test(tests, concurrency_is_the_batch);
  tcase_set_timeout(tests, 60);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
