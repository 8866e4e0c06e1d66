/* ctest: engine mpi */
/* Generating: the choice of a token by its scores, and the verb on a checkpoint. */
#include "answers.h"
#include "members.h"
#include "real/sample.h"
#include "train.h"

enum { COUNT = 5 };
static const float scores[COUNT] = {1.0f, 3.0f, -2.0f, 3.0f, 0.5f};

static int32_t sample(double temperature, int64_t k, double p, double uniform, double *likely) {
  tws_candidate room[COUNT];
  const tws_sampling how = {.temperature = temperature, .top_k = k, .top_p = p};
  return tws_sample(scores, COUNT, &how, NULL, uniform, room, likely);
}

/* min_p excludes tokens below a share of the largest probability, and the repetition penalty lowers tokens that the
 * text has. */
START_TEST(min_p_and_penalty) {
  static const uint8_t seen[COUNT] = {1, 1, 1, 0, 0};
  tws_candidate room[COUNT];
  tws_sampling how = {.temperature = 1, .top_p = 1, .min_p = 0.9};
  double likely, all = 0;
  for (int i = 0; i < COUNT; i++) all += exp((double)scores[i]);
  for (int i = 0; i < 100; i++) { /* only tokens 1 and 3 reach nine tenths of the largest probability */
    const int32_t token = tws_sample(scores, COUNT, &how, NULL, i / 100.0, room, &likely);
    ck_assert(token == 1 || token == 3);
  }
  how.min_p = 0.1; /* e^-2 of the largest probability is above min_p, e^-2.5 below */
  ck_assert_int_eq(tws_sample(scores, COUNT, &how, NULL, 0.999, room, &likely), 0);
  how = (tws_sampling){.temperature = 0, .top_p = 1, .repetition = 2};
  ck_assert_int_eq(tws_sample(scores, COUNT, &how, NULL, 0, room, &likely), 1);
  ck_assert_int_eq(tws_sample(scores, COUNT, &how, seen, 0, room, &likely), 3); /* 3 / 2 is less than 3 */
  ck_assert_double_eq_tol(likely, 3 - log(all), 1e-12);                         /* as without a penalty */
  how = (tws_sampling){.temperature = 1, .top_p = 1, .repetition = 2};
  ck_assert_int_eq(tws_sample(scores, COUNT, &how, seen, 1 - 1e-16, room, &likely), 2); /* -2 x 2 is the least */
}
END_TEST

/* Computes the share of each token among tokens drawn with evenly spread numbers. */
static void spread(double temperature, int64_t k, double p, double share[COUNT]) {
  enum { DRAWS = 20000 };
  double likely;
  memset(share, 0, COUNT * sizeof *share);
  for (int i = 0; i < DRAWS; i++) share[sample(temperature, k, p, (i + 0.5) / DRAWS, &likely)] += 1.0 / DRAWS;
}

START_TEST(choices) {
  double share[COUNT], likely, all = 0;
  for (int i = 0; i < COUNT; i++) all += exp((double)scores[i]);
  ck_assert_int_eq(sample(0, 0, 1, 0.99, &likely), 1); /* the smaller of two equals */
  ck_assert_double_eq_tol(likely, 3 - log(all), 1e-12);
  for (int t = 1; t <= 2; t++) {
    double weights = 0;
    spread(t, 0, 1, share);
    for (int i = 0; i < COUNT; i++) weights += exp((double)scores[i] / t);
    for (int i = 0; i < COUNT; i++) ck_assert_double_eq_tol(share[i], exp((double)scores[i] / t) / weights, 1e-4);
  }
  spread(1, 3, 1, share);
  ck_assert(share[2] == 0 && share[4] == 0);
  ck_assert_double_eq_tol(share[0], exp(1) / (exp(1) + 2 * exp(3)), 1e-4);
  spread(1, 0, 0.5, share); /* the two likeliest tokens have 0.88 of the probability, one has 0.44 */
  ck_assert(share[1] == 0.5 || fabs(share[1] - 0.5) < 1e-9);
  ck_assert_double_eq_tol(share[1] + share[3], 1, 1e-9);
  spread(1, 0, 0.4, share);
  ck_assert_double_eq_tol(share[1], 1, 1e-9);
  spread(1, 0, 0, share);
  ck_assert_double_eq_tol(share[1], 1, 1e-9);
  spread(1, 1, 1, share);
  ck_assert_double_eq_tol(share[1], 1, 1e-9);
  ck_assert_int_eq(sample(1e-3, 0, 1, 0.999999, &likely), 3);
  ck_assert_int_eq(sample(1, 0, 1, 0.0, &likely), 1);
  ck_assert_int_eq(sample(1, 0, 1, 1 - 1e-16, &likely), 2);
}
END_TEST

#define GO_ON "generate -m tiny-gpt2 --quiet --threads 1 --resume %s/run "

static char *told(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *told(const char *format, ...) {
  char line[2048];
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  command_result r = twinspeed_to(command_scratch(), line);
  ck_assert_msg(r.status == 0, "%s", r.err);
  free(r.err);
  return r.out;
}

/* The same seed gives the same text, another seed another one; texts may be longer than the model's sequence; the
 * precision and the division of the training do not matter. */
START_TEST(generation_continues_the_prompt) {
  command_result r = twinspeed(
      "train -m tiny-gpt2 --quiet --seq 32 --micro-batch 2 --accumulation 1 -n 2 --stage 3 "
      "--threads 1 --steps 40 --data %s --save %s/run",
      text_path, folder);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  char *one = told(GO_ON "--prompt 'the ' --tokens 100 --seed 4 --top-k 20 --seq 32", folder);
  char *same = told(GO_ON "--prompt 'the ' --tokens 100 --seed 4 --top-k 20 --seq 32", folder);
  char *other = told(GO_ON "--prompt 'the ' --tokens 100 --seed 5 --top-k 20 --seq 32", folder);
  ck_assert_uint_eq(strlen(one), 4 + 100 + 1);
  ck_assert(strncmp(one, "the ", 4) == 0 && strcmp(one, same) == 0 && strcmp(one, other) != 0);
  int letters = 0;
  for (const char *c = one; *c; c++) letters += (*c >= 'a' && *c <= 'z') || *c == ' ' || *c == '.' || *c == '\n';
  ck_assert_int_gt(letters, 80); /* the model has learnt which bytes occur */
  char *greedy = told(GO_ON "--prompt 'the ' --tokens 8 --temperature 0 --seq 32", folder);
  char *halves = told(GO_ON "--prompt 'the ' --tokens 8 --temperature 0 --seq 64 --dtype bf16", folder);
  ck_assert_str_eq(greedy, halves);
  char *ids = told(GO_ON "--prompt-ids 116,104,101,32 --tokens 8 --temperature 0 --seq 32", folder);
  ck_assert_int_eq(atoi(ids), (unsigned char)greedy[4]);
  char elastic[64]; /* elasticity's batch and the division are a training's, and have no effect on texts */
  snprintf(elastic, sizeof elastic, "%s/elastic.json", folder);
  write_text(elastic,
             "{\"elasticity\": {\"enabled\": true, \"max_train_batch_size\": 4, \"micro_batch_sizes\": [2]}, "
             "\"pipeline\": {\"stages\": 2}, \"twinspeed\": {\"virtual_stages\": 2, \"expert_parallel_size\": 2}}");
  char *of_elastic = told(GO_ON "-c %s --prompt ab --tokens 4 --temperature 0", folder, elastic);
  char *of_none = told(GO_ON "--prompt ab --tokens 4 --temperature 0", folder);
  ck_assert_str_eq(of_elastic, of_none);
  write_text(elastic, "{\"kernel_inject\": true, \"dtype\": \"fp32\", \"replace_method\": \"auto\"}");
  r = twinspeed("generate -m tiny-gpt2 --threads 1 --resume %s/run -c %s --prompt ab --tokens 4 --temperature 0",
                folder, elastic);
  ck_assert_msg(r.status == 0 && strcmp(r.out, of_none) == 0, "%s", r.err);
  ck_assert_msg(strstr(r.err, "\nnote: replace_method has no effect: ") != NULL, "%s", r.err); /* a line of its own */
  command_free(&r);
  free(of_elastic), free(of_none);
  /* the value of each limit that excludes no token is its default */
  char *unlimited = told(GO_ON "--prompt ab --tokens 20 --seed 6", folder);
  char *all = told(GO_ON "--prompt ab --tokens 20 --seed 6 --top-k 0 --top-p 1 --min-p 0 --temperature 1", folder);
  ck_assert_str_eq(unlimited, all);
  free(unlimited), free(all);
  free(one), free(same), free(other), free(greedy), free(halves), free(ids);
}
END_TEST

static cJSON *answer(const char *rest) {
  char line[512];
  snprintf(line, sizeof line, GO_ON "--json --temperature 0 %s", folder, rest);
  command_result r = twinspeed_to(command_scratch(), line);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-generation-1");
  command_free(&r);
  return json;
}

/* Returns the answer of a command. */
static cJSON *told_json(const char *format, ...) __attribute__((format(printf, 1, 2)));
static cJSON *told_json(const char *format, ...) {
  char line[1024];
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  command_result r = twinspeed_to(command_scratch(), line);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-generation-1");
  command_free(&r);
  return json;
}

static void same_tokens(const cJSON *a, const cJSON *b) {
  const cJSON *one = member(a, "tokens"), *other = member(b, "tokens");
  ck_assert_int_eq(cJSON_GetArraySize(one), cJSON_GetArraySize(other));
  for (int i = 0; i < cJSON_GetArraySize(one); i++) {
    ck_assert_int_eq(cJSON_GetArrayItem(one, i)->valueint, cJSON_GetArrayItem(other, i)->valueint);
    ck_assert_double_eq_tol(cJSON_GetArrayItem(member(a, "log_probabilities"), i)->valuedouble,
                            cJSON_GetArrayItem(member(b, "log_probabilities"), i)->valuedouble, 1e-4);
  }
}

/* Each text of a file gets the tokens that it gets alone, with a cache or without, in batches of any size. With a cache
 * each token but the last goes through the model once. */
START_TEST(prompts_of_a_file) {
  char path[64], line[256];
  static const char *const prompts[] = {"the ", "and the evening", "q", "In the beginning"};
  snprintf(path, sizeof path, "%s/prompts", folder);
  write_text(path, "\"the \"\n\n{\"prompt\": \"and the evening\"}\n[113]\n\"In the beginning\"");
  snprintf(line, sizeof line, "--prompts %s --tokens 12 --seq 32", path);
  cJSON *all = answer(line);
  ck_assert_int_eq(cJSON_GetArraySize(member(all, "texts")), 4);
  ck_assert_int_eq(member(all, "forward_tokens")->valueint, 4 + 15 + 1 + 16 + 4 * 11);
  ck_assert_int_eq(member(all, "generated_tokens")->valueint, 48);
  ck_assert_int_eq(member(all, "batches")->valueint, 1);
  ck_assert(cJSON_IsTrue(member(all, "cache")));
  ck_assert_double_eq(number(all, "predicted_bytes"), number(all, "allocated_bytes"));
  snprintf(line, sizeof line, "--prompts %s --tokens 12 --seq 32 --batch 3", path);
  cJSON *batches = answer(line);
  ck_assert_int_eq(member(batches, "batches")->valueint, 2);
  for (int i = 0; i < 4; i++) {
    const cJSON *text = cJSON_GetArrayItem(member(all, "texts"), i);
    snprintf(line, sizeof line, "--prompt '%s' --tokens 12 --seq 32 --no-cache", prompts[i]);
    cJSON *alone = answer(line);
    ck_assert(cJSON_IsFalse(member(alone, "cache")));
    same_tokens(text, alone);
    same_tokens(text, cJSON_GetArrayItem(member(batches, "texts"), i));
    cJSON_Delete(alone);
  }
  /* in blocks of 8 positions each text has as many as it needs, in place of those of the longest one; also in batches
   * */
  snprintf(line, sizeof line, "--prompts %s --tokens 12 --seq 32 --cache-block 8", path);
  cJSON *paged = answer(line);
  const double position = number(all, "cache_bytes") / (4 * 28);
  ck_assert_double_eq(number(paged, "cache_bytes"), 8 * (2 + 4 + 2 + 4) * position);
  ck_assert_double_eq(number(paged, "predicted_bytes"), number(paged, "allocated_bytes"));
  snprintf(line, sizeof line, "--prompts %s --tokens 12 --seq 32 --cache-block 8 --batch 3", path);
  cJSON *apart = answer(line);
  ck_assert_double_eq(number(apart, "cache_bytes"), 8 * (2 + 4 + 2) * position);
  snprintf(line, sizeof line, "--prompts %s --tokens 12 --seq 32 --cache-block 5 --tp 2 -n 4", path);
  cJSON *ranks = answer(line);
  for (int i = 0; i < 4; i++) {
    same_tokens(cJSON_GetArrayItem(member(all, "texts"), i), cJSON_GetArrayItem(member(paged, "texts"), i));
    same_tokens(cJSON_GetArrayItem(member(all, "texts"), i), cJSON_GetArrayItem(member(apart, "texts"), i));
    same_tokens(cJSON_GetArrayItem(member(all, "texts"), i), cJSON_GetArrayItem(member(ranks, "texts"), i));
  }
  cJSON_Delete(paged), cJSON_Delete(apart), cJSON_Delete(ranks);
  /* a text ends with the token that completes a stop text */
  const int stop = cJSON_GetArrayItem(member(cJSON_GetArrayItem(member(all, "texts"), 0), "tokens"), 4)->valueint;
  snprintf(line, sizeof line, "--prompt 'the ' --tokens 12 --seq 32 --stop '%c'", stop);
  cJSON *stopped = answer(line);
  const cJSON *tokens = member(stopped, "tokens");
  ck_assert_int_eq(cJSON_GetArrayItem(tokens, cJSON_GetArraySize(tokens) - 1)->valueint, stop);
  ck_assert_int_le(cJSON_GetArraySize(tokens), 5);
  ck_assert(cJSON_IsTrue(member(stopped, "stopped")));
  cJSON_Delete(stopped);
  cJSON_Delete(batches);
  cJSON_Delete(all);
}
END_TEST

/* Tensor ranks, pipeline stages, replicas with texts of their own and replicas that divide the weights give the tokens
 * of one rank. With fewer texts than replicas, one of them has none. */
START_TEST(ranks_agree) {
  static const char *const how[] = {"--tp 2",
                                    "--pp 2",
                                    "-n 2",
                                    "-n 2 --tp 1 --batch 1",
                                    "-n 2 --stage 3",
                                    "-n 4 --stage 3 --tp 2",
                                    "-n 3 --stage 3 --set zero_optimization.offload_param.device=cpu",
                                    "-n 1 --stage 3 --set zero_optimization.offload_param.device=nvme"};
  char path[64], line[512], disk[128];
  snprintf(path, sizeof path, "%s/few", folder);
  write_text(path, "\"the \"\n\"and the evening\"\n");
  snprintf(line, sizeof line, "--prompts %s --tokens 8 --seq 32", path);
  cJSON *alone = answer(line);
  for (int i = 0; i < 8; i++) {
    *disk = '\0';
    if (i == 7) snprintf(disk, sizeof disk, " --set zero_optimization.offload_param.nvme_path=%s", folder);
    snprintf(line, sizeof line, "--prompts %s --tokens 8 --seq 32 %s%s", path, how[i], disk);
    cJSON *divided = answer(line);
    ck_assert_int_eq(member(divided, "forward_tokens")->valueint, 4 + 15 + 2 * 7);
    ck_assert_double_eq(number(divided, "predicted_bytes"), number(divided, "allocated_bytes"));
    if (i < 4) ck_assert_double_lt(number(divided, "allocated_bytes"), number(alone, "allocated_bytes"));
    for (int t = 0; t < 2; t++)
      same_tokens(cJSON_GetArrayItem(member(alone, "texts"), t), cJSON_GetArrayItem(member(divided, "texts"), t));
    cJSON_Delete(divided);
  }
  cJSON_Delete(alone);
}
END_TEST

/* Weights in few bits take less memory, and the scores change little. */
START_TEST(weights_of_few_bits) {
  cJSON *whole = answer("--prompt 'the ' --tokens 2 --seq 32"), *coded;
  double bytes = number(whole, "allocated_bytes");
  const double likely = cJSON_GetArrayItem(member(whole, "log_probabilities"), 0)->valuedouble;
  command_result r = twinspeed("convert checkpoint %s/run %s/all.safetensors --quiet", folder, folder);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  for (int i = 0; i < 2; i++) {
    r = twinspeed(
        "generate -m tiny-gpt2 --quiet --threads 1 --json --temperature 0 --prompt 'the ' --tokens 2 --seq 32 "
        "--init-from %s/all.safetensors --weights %s",
        folder, i ? "nf4" : "int8");
    ck_assert_msg(r.status == 0, "%s", r.err);
    coded = assert_json(&r, "twinspeed-generation-1");
    command_free(&r);
    ck_assert_double_eq(number(coded, "predicted_bytes"), number(coded, "allocated_bytes"));
    ck_assert_double_lt(number(coded, "allocated_bytes"), bytes);
    bytes = number(coded, "allocated_bytes");
    const double got = cJSON_GetArrayItem(member(coded, "log_probabilities"), 0)->valuedouble;
    ck_assert_msg(fabs(got - likely) < (i ? 0.5 : 0.05) && got != likely, "%g, not %g", got, likely);
    cJSON_Delete(coded);
  }
  cJSON_Delete(whole);
}
END_TEST

/* Scores texts from the training data with weights of the type that `how` gives, and returns the answer. */
static cJSON *scored(const char *how) {
  char path[64];
  snprintf(path, sizeof path, "%s/scored", folder);
  command_result r = twinspeed(
      "generate -m tiny-gpt2 --quiet --threads 1 --json --score --prompts %s --seq 64 --init-from %s/all.safetensors "
      "%s",
      path, folder, how);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-generation-1");
  command_free(&r);
  return json;
}

/* Perplexity with weights in few bits is that of float32 within 1 % (8 bits) or 5 % (4 bits), in groups of 64; a linear
 * weight takes the bits of its code and, for each group, 32 bits, or 64 with a minimum. */
START_TEST(perplexity_of_few_bits) {
  static const struct {
    const char *type;
    double within, bits;
  } types[] = {{"int8", 0.01, 8 + 32 / 64.0},
               {"int8-asymmetric", 0.01, 8 + 64 / 64.0},
               {"int4", 0.05, 4 + 32 / 64.0},
               {"int4-asymmetric", 0.05, 4 + 64 / 64.0},
               {"nf4", 0.05, 4 + 32 / 64.0}};
  char path[64], how[64];
  snprintf(path, sizeof path, "%s/scored", folder);
  write_text(path,
             "\"And the evening and the morning were the first day.\"\n\"the face of the waters\"\n[116, 104, 101]\n");
  cJSON *whole = scored(""), *alone = scored("--batch 1"), *ranks = scored("--tp 2"),
        *parts = scored("--weights int8 --stage 3 -n 2");
  cJSON *eight = scored("--cache fp8");
  const double perplexity = number(whole, "perplexity"), bytes = number(whole, "allocated_bytes");
  ck_assert_double_eq(number(whole, "scored_tokens"), 50 + 21 + 2);
  ck_assert_double_eq(number(whole, "forward_tokens"), 50 + 21 + 2);
  ck_assert_double_gt(perplexity, 2);
  ck_assert_double_lt(perplexity, 256);
  ck_assert_double_eq_tol(number(alone, "perplexity"), perplexity, 1e-4 * perplexity);
  ck_assert_double_eq_tol(number(ranks, "perplexity"), perplexity, 1e-4 * perplexity);
  /* keys and values in 8 bits take a quarter of float32's bytes */
  ck_assert_double_eq_tol(number(eight, "perplexity"), perplexity, 0.01 * perplexity);
  ck_assert_double_ne(number(eight, "perplexity"), perplexity);
  ck_assert_double_eq(4 * number(eight, "cache_bytes"), number(whole, "cache_bytes"));
  ck_assert_double_eq(number(eight, "predicted_bytes"), number(eight, "allocated_bytes"));
  cJSON_Delete(eight);
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    snprintf(how, sizeof how, "--weights %s", types[i].type);
    cJSON *coded = scored(how);
    const double got = number(coded, "perplexity"), saved = bytes - number(coded, "allocated_bytes");
    ck_assert_msg(fabs(got / perplexity - 1) < types[i].within && got != perplexity, "%s: %g, not %g", types[i].type,
                  got, perplexity);
    if (i == 0) ck_assert_double_eq_tol(number(parts, "perplexity"), got, 1e-6 * got);
    const double elements = saved * 8 / (32 - types[i].bits); /* number of coded weights: a multiple of a layer's 12
                                                               * hidden^2 */
    ck_assert_msg(fmod(elements, 12 * 64 * 64) == 0, "%s: %.0f weights", types[i].type, elements);
    ck_assert_double_eq(number(coded, "predicted_bytes"), number(coded, "allocated_bytes"));
    cJSON_Delete(coded);
  }
  cJSON_Delete(whole), cJSON_Delete(alone), cJSON_Delete(ranks), cJSON_Delete(parts);
}
END_TEST

/* An encoder-decoder reads the prompt once: its tokens are those of the path without a cache, for texts alone and in a
 * batch, and for every division. Its cache has, for each layer of the decoder, the decoder's tokens and the source. */
START_TEST(encoder_decoder) {
  enum { LAYERS = 2, HEADS = 4, SIZE = 12, TOKENS = 7, LONGEST = 16 };
  static const char *const how[] = {"--tp 2", "-n 2 --tp 1", "-n 2 --stage 3", "-n 1 --dtype bf16"};
  static const char *const prompts[] = {"the ", "and the evening"};
  char base[400], path[64], line[256];
  snprintf(path, sizeof path, "%s/t5.json", folder);
  write_text(path,
             "{\"model_type\":\"t5\",\"vocab_size\":259,\"num_layers\":2,\"d_model\":32,\"d_kv\":12,\"d_ff\":48,"
             "\"num_heads\":4,\"feed_forward_proj\":\"gated-gelu\"}");
  command_result r = twinspeed(
      "train -m %s --quiet --seq 32 --micro-batch 2 --accumulation 1 -n 1 --threads 1 --steps 20 --data %s --save "
      "%s/t5",
      path, text_path, folder);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  snprintf(base, sizeof base, "generate -m %s --quiet --threads 1 --resume %s/t5 --json --temperature 0 --seq 32", path,
           folder);
  snprintf(path, sizeof path, "%s/sources", folder);
  write_text(path, "\"the \"\n\"and the evening\"\n");
  cJSON *all = told_json("%s --tokens %d --prompts %s", base, TOKENS, path);
  ck_assert(cJSON_IsTrue(member(all, "cache")));
  ck_assert_int_eq(member(all, "forward_tokens")->valueint, 5 + LONGEST + 2 * TOKENS); /* sources have an end token */
  ck_assert_double_eq(number(all, "predicted_bytes"), number(all, "allocated_bytes"));
  ck_assert_double_eq(number(all, "cache_bytes"), 4.0 * 2 * LAYERS * 2 * HEADS * SIZE * (TOKENS + LONGEST));
  for (int t = 0; t < 2; t++) {
    snprintf(line, sizeof line, "--no-cache --prompt '%s'", prompts[t]);
    cJSON *alone = told_json("%s --tokens %d %s", base, TOKENS, line);
    ck_assert(cJSON_IsFalse(member(alone, "cache")));
    same_tokens(cJSON_GetArrayItem(member(all, "texts"), t), alone);
    cJSON_Delete(alone);
  }
  for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
    cJSON *divided = told_json("%s --tokens %d --prompts %s %s", base, TOKENS, path, how[i]);
    ck_assert_double_eq(number(divided, "predicted_bytes"), number(divided, "allocated_bytes"));
    for (int t = 0; t < 2 && i < 3; t++)
      same_tokens(cJSON_GetArrayItem(member(all, "texts"), t), cJSON_GetArrayItem(member(divided, "texts"), t));
    cJSON_Delete(divided);
  }
  cJSON_Delete(all);
}
END_TEST

static void refused(int status, const char *words, const char *rest) {
  command_result r = twinspeed("generate -m tiny-gpt2 --quiet %s", rest);
  assert_one_error(&r, status, rest);
  ck_assert_msg(strstr(r.err, words) != NULL, "not \"%s\" but %s", words, r.err);
  command_free(&r);
}

START_TEST(refusals) {
  refused(2, "no weights were given", "--prompt a");
  refused(2, "no prompt was given", "--init-from x");
  refused(2, "several prompts", "--init-from x --prompt a --prompt-ids 1");
  refused(2, "is no token", "--init-from x --prompt-ids 1,b");
  refused(2, "--tag without --resume", "--init-from x --prompt a --tag y");
  refused(2, "unknown option \"--sp\"", "--init-from x --prompt a -n 2 --sp 2");
  refused(2, "5 ranks are not replicas of 2 tensor ranks x 1 stages", "--init-from x --prompt a -n 5 --tp 2");
  refused(3, "no experts\nhint: leave out --ep", "--init-from x --prompt a --ep 2");
  /* a size that the ranks do not divide is reported before the length of the text, which excludes several ranks too */
  refused(3,
          "over 3 ranks does not divide the model's 4 attention heads\nhint: the nearest degrees that are legal for "
          "this model are 2 and 4",
          "--init-from x --prompt a --tp 3");
  refused(3,
          "texts of up to 101 tokens exceed the context of 64 (--seq)\nhint: use a shorter prompt, or fewer --tokens; "
          "or use one rank",
          "--init-from x --prompt a --tp 2");
  refused(3, "fewer --tokens, or a larger --seq; or use one rank", "--init-from x --prompt a --tp 2 --seq 32");
  refused(3, "--no-cache was given\nhint: leave out --no-cache; or leave out --weights",
          "--init-from x --prompt a --weights int8 --no-cache");
  refused(3, "texts of up to 65 tokens exceed the context of 64 (--seq)\nhint: use shorter texts",
          "--init-from x --prompt 0123456789012345678901234567890123456789012345678901234567890123x --score");
  refused(3, "have 32 elements, no multiple of the 64 that share a scale\nhint: use --tp 1, or leave out --weights",
          "--init-from x --prompt a --tokens 4 --tp 2 --weights int4");
  refused(3, "no multiple of the 64 that share a scale\nhint: leave out --weights (",
          "-m tiny-llama --init-from x --prompt a --tokens 4 --weights nf4");
  refused(
      3, "leave out zero_optimization.offload_param, or --weights",
      "--init-from x --prompt a --tokens 4 --weights int8 --stage 3 --set zero_optimization.offload_param.device=cpu");
  refused(2, "the prompt is empty", "--init-from x --prompt ''");
  refused(3, "token 2 of the prompt is 256, and the vocabulary has 256", "--init-from x --prompt-ids 1,256");
  refused(2, "no type of weights is \"int3\"", "--init-from x --prompt a --weights int3");
  refused(3, "--weights with --resume", "--resume x --prompt a --weights int8");
  refused(2, "no type of a cache is \"int8\"", "--init-from x --prompt a --cache int8");
  refused(2, "--cache with --no-cache", "--init-from x --prompt a --cache fp8 --no-cache");
  refused(2, "--cache-block with --no-cache", "--init-from x --prompt a --cache-block 8 --no-cache");
  refused(2, "--score needs a cache", "--init-from x --prompt ab --score --no-cache");
  refused(2, "no set of tokens has the probability 0 (--top-p)", "--init-from x --prompt a --top-p 0");
  static const char *const limits[] = {"--top-p 1.01", "--top-p -1",       "--min-p 1.01", "--min-p -1",
                                       "--top-k -1",   "--temperature -1", "--top-p nan",  "--repetition-penalty 0"};
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
    char line[64], name[32];
    snprintf(line, sizeof line, "--init-from x --prompt a %s", limits[i]);
    snprintf(name, sizeof name, "%.*s: ", (int)strcspn(limits[i], " "), limits[i]);
    refused(2, name, line);
  }
  refused(2, "the text has 1 tokens", "--init-from x --prompt a --score");
  refused(2, "an empty text stops at once", "--init-from x --prompt a --stop ''");
  refused(4, "No such file", "--init-from x --prompts /no/where");
  char path[64], line[128];
  snprintf(path, sizeof path, "%s/bad", folder);
  snprintf(line, sizeof line, "--init-from x --prompts %s", path);
  write_text(path, "\"a\"\n[1, -2]\n");
  refused(3, "line 2:1:5: this is no token", line);
  write_text(path, "\"a\"\nfree text\n");
  refused(3, "line 2:1:", line);
  write_text(path, " \n\n");
  refused(3, "has no prompts", line);
  write_text(path, "\"a\"\n[300]\n");
  refused(3, "token 1 of the prompt 2 is 300, and the vocabulary has 256", line);
  refused(4, "No such file", "--init-from /no/where --prompt a");
}
END_TEST

int main(void) {
  Suite *suite = suite_create("generate");
  TCase *tests = tcase_create("generate");
  tcase_add_test(tests, choices);
  tcase_add_test(tests, min_p_and_penalty);
  tcase_add_test(tests, generation_continues_the_prompt);
  tcase_add_test(tests, prompts_of_a_file);
  tcase_add_test(tests, weights_of_few_bits);
  tcase_add_test(tests, perplexity_of_few_bits);
  tcase_add_test(tests, ranks_agree);
  tcase_add_test(tests, encoder_decoder);
  tcase_add_test(tests, refusals);
  tcase_set_timeout(tests, 120);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
