/* ctest: sampled */
/* Verbs on jobs whose ranks are divided along several axes: profile's sums against the model and against one rank, the
 * partners of the operations of printed plans, and the report of check. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/random.h"
#include "config/ds_config.h"
#include "models/network/network.h"
#include "plan/plan.h"
#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/suite.h"

static int64_t draw(uint64_t seed, uint64_t index, const int *from, uint64_t count) {
  uint32_t out[4];
  tws_philox(seed, 5, index, out);
  return from[out[0] % count];
}

/* ---- random jobs ---- */

enum { LAYERS = 4, HIDDEN = 64, HEADS = 4, POSITIONS = 64, VOCABULARY = 96, SEQUENCE = 64, MICRO = 2 };

typedef struct axes_job {
  int llama, pipe, data, sequence, model, sequence_parallel, ranks;
  char words[512]; /* the options, except those that divide the ranks */
  char axes[256];  /* the division */
} axes_job;

static axes_job random_job(uint64_t seed) {
  axes_job j = {.llama = (int)draw(seed, 0, (const int[]){0, 1}, 2),
                .pipe = (int)draw(seed, 1, (const int[]){1, 2, 4}, 3),
                .data = (int)draw(seed, 2, (const int[]){1, 2, 3}, 3),
                .sequence = (int)draw(seed, 3, (const int[]){1, 1, 2}, 3),
                .model = (int)draw(seed, 4, (const int[]){1, 2, 2}, 3)};
  static const char *const schedules[] = {"1f1b", "gpipe", "zb-h1"};
  j.sequence_parallel = j.model > 1 && draw(seed, 5, (const int[]){0, 1}, 2);
  j.ranks = j.pipe * j.data * j.sequence * j.model;
  char model[128], text[512];
  snprintf(model, sizeof model, "%s/%s.json", folder, j.llama ? "llama" : "gpt2");
  if (j.llama)
    snprintf(text, sizeof text,
             "{\"model_type\":\"llama\",\"num_hidden_layers\":%d,\"hidden_size\":%d,\"num_attention_heads\":%d,"
             "\"num_key_value_heads\":2,\"intermediate_size\":128,\"vocab_size\":%d,\"rms_norm_eps\":1e-5,"
             "\"max_position_embeddings\":%d,\"tie_word_embeddings\":false}",
             LAYERS, HIDDEN, HEADS, VOCABULARY, POSITIONS);
  else
    snprintf(
        text, sizeof text,
        "{\"model_type\":\"gpt2\",\"n_layer\":%d,\"n_embd\":%d,\"n_head\":%d,\"n_positions\":%d,\"vocab_size\":%d}",
        LAYERS, HIDDEN, HEADS, POSITIONS, VOCABULARY);
  write_text(model, text);
  snprintf(j.words, sizeof j.words, "-m %s --cluster dgx-a100:8 --seq %d --micro-batch %d --accumulation 4 --stage %d",
           model, SEQUENCE, MICRO, j.pipe > 1 ? 1 : (int)draw(seed, 6, (const int[]){0, 1, 2, 3}, 4));
  snprintf(j.axes, sizeof j.axes, "-n %d --pp %d --sp %d --tp %d --schedule %s --axis-order %s%s", j.ranks, j.pipe,
           j.sequence, j.model, schedules[draw(seed, 7, (const int[]){0, 1, 2}, 3)],
           draw(seed, 8, (const int[]){0, 1}, 2) ? "model,sequence,data,pipe" : "pipe,data,sequence,model",
           j.sequence_parallel ? " --sequence-parallel" : "");
  return j;
}

static cJSON *answer(const char *verb, const char *words, const char *more) {
  command_result r = twinspeed("%s %s %s --json", verb, words, more);
  ck_assert_msg(r.status == 0, "%s %s %s: %s", verb, words, more, r.err);
  cJSON *json = cJSON_Parse(r.out);
  ck_assert_msg(json != NULL, "%s %s: %.200s", verb, words, r.out);
  command_free(&r);
  return json;
}

/* ---- profile ---- */

static const cJSON *module_of(const cJSON *json, const char *name) {
  const cJSON *one;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(json, "modules")) {
    if (strcmp(cJSON_GetObjectItem(one, "name")->valuestring, name) == 0) return one;
  }
  ck_abort_msg("no module %s", name);
  return NULL;
}

/* Returns the sum over tensor ranks of a module's parameters: divided ones count once, replicated ones once per
 * rank. */
static double copied(const axes_job *j, const char *name, const char *type) {
  size_t length = strlen(name);
  if (strstr(type, "Norm")) return j->llama ? HIDDEN : 2 * HIDDEN;
  if (!j->llama && strcmp(type, "Embedding") == 0) return POSITIONS * HIDDEN;
  if (!j->llama && length > 6 && strcmp(name + length - 6, "c_proj") == 0) return HIDDEN; /* the bias */
  return 0;
}

static void compare_modules(const axes_job *j, const cJSON *divided, const cJSON *single) {
  const cJSON *one;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(divided, "modules")) {
    const char *name = cJSON_GetObjectItem(one, "name")->valuestring,
               *type = cJSON_GetObjectItem(one, "type")->valuestring;
    const cJSON *alone = module_of(single, name);
    double parameters = number(one, "parameters"), held = number(one, "parameters_per_gpu");
    ck_assert_msg(parameters == number(alone, "parameters"), "%s: %s", j->axes, name);
    /* products are divided among tensor and sequence ranks without a remainder */
    ck_assert_msg(number(one, "macs") * j->model * j->sequence == number(alone, "macs"), "%s: MACs of %s", j->axes,
                  name);
    int leaf = strcmp(type, "Linear") == 0 || strstr(type, "Norm") || strcmp(type, "Embedding") == 0;
    if (!leaf) continue;
    ck_assert_msg(held * j->model == parameters + (j->model - 1) * copied(j, name, type) * (parameters > 0),
                  "%s: %s has %g of %g", j->axes, name, held, parameters);
    if (strcmp(type, "Linear") == 0 && j->llama) /* no biases */
      ck_assert_msg(number(one, "flops") * j->model * j->sequence == number(alone, "flops"), "%s: %s", j->axes, name);
    ck_assert_msg(number(one, "forward_s") > 0, "%s: no time for %s", j->axes, name);
  }
}

static void compare_stages(const axes_job *j, const cJSON *divided, const cJSON *estimate) {
  const cJSON *root = module_of(divided, ""), *stages = cJSON_GetObjectItem(divided, "stages");
  double held = 0, macs = 0, flops = 0, forward = 0;
  ck_assert_int_eq(cJSON_GetArraySize(stages), j->pipe);
  for (int s = 0; s < j->pipe; s++) {
    const cJSON *stage = cJSON_GetArrayItem(stages, s);
    ck_assert_int_eq((int)number(stage, "stage"), s);
    held += number(stage, "parameters_per_gpu");
    macs += number(stage, "macs");
    flops += number(stage, "flops");
    forward += number(stage, "forward_s");
    ck_assert_double_eq(number(stage, "parameters_per_gpu"),
                        number(cJSON_GetArrayItem(cJSON_GetObjectItem(estimate, "stages"), s), "parameters"));
  }
  double tied = !j->llama && j->pipe > 1 ? VOCABULARY * HIDDEN / j->model : 0; /* on the last stage once more */
  ck_assert_msg(held == number(root, "parameters_per_gpu") + tied, "%s: %g", j->axes, held);
  ck_assert_double_eq(macs, number(root, "macs"));
  ck_assert_double_eq(flops, number(root, "flops"));
  ck_assert_double_eq(flops * j->model * j->sequence, number(divided, "replica_flops"));
  ck_assert_double_ge(forward * (1 + 1e-12), number(root, "forward_s"));
}

START_TEST(profile_adds_up) {
  for (uint64_t seed = 0; seed < 24; seed++) {
    axes_job j = random_job(100 * (uint64_t)_i + seed);
    cJSON *divided = answer("profile", j.words, j.axes), *single = answer("profile", j.words, "-n 1");
    cJSON *estimate = answer("estimate", j.words, j.axes);
    const cJSON *axes = cJSON_GetObjectItem(divided, "axes");
    ck_assert(number(axes, "pipe") == j.pipe && number(axes, "data") == j.data &&
              number(axes, "sequence") == j.sequence && number(axes, "model") == j.model);
    ck_assert_double_eq(number(module_of(divided, ""), "parameters"), number(divided, "parameters"));
    compare_modules(&j, divided, single);
    compare_stages(&j, divided, estimate);
    double step = number(cJSON_GetObjectItem(estimate, "time"), "step_s");
    ck_assert_double_eq_tol(number(divided, "iteration_s"), step, 1e-12 * step);
    ck_assert_double_eq_tol(number(divided, "samples_per_s") * step, MICRO * 4.0 * j.data, 1e-9);
    cJSON_Delete(divided);
    cJSON_Delete(single);
    cJSON_Delete(estimate);
  }
}
END_TEST

START_TEST(profile_names_the_sizes) {
  command_result r = twinspeed("profile -m gpt2 --cluster dgx-a100:2 --pp 2 --tp 2 --sp 2 --depth 0");
  ck_assert_msg(r.status == 0, "%s", r.err);
  static const char *const lines[] = {"world size:",
                                      "16",
                                      "data parallel size:",
                                      "2",
                                      "model parallel size = 2 pipeline stages * 2 tensor ranks:",
                                      "4",
                                      "sequence parallel size:",
                                      "2",
                                      "params of model:",
                                      "124.44 M"};
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i += 2) {
    const char *line = strstr(r.out, lines[i]);
    ck_assert_msg(line != NULL, "%s", lines[i]);
    line += strlen(lines[i]);
    line += strspn(line, " ");
    ck_assert_msg(strncmp(line, lines[i + 1], strlen(lines[i + 1])) == 0, "%s %.20s", lines[i], line);
  }
  command_free(&r);
}
END_TEST

/* ---- printed plans ---- */

/* Returns the number of ranks of an axis, as the options say; ZeRO's group, "data", includes the sequence ranks. */
static int axis_size(const axes_job *j, const char *axis) {
  if (strcmp(axis, "data") == 0) return j->data * j->sequence;
  if (strcmp(axis, "sequence") == 0) return j->sequence;
  if (strcmp(axis, "model") == 0) return j->model;
  return strcmp(axis, "pipe") == 0 ? j->pipe : 2; /* tied: two stages */
}

enum { MOST = 48 };

static void read_partners(const axes_job *j, int rank, const cJSON *plan, int (*messages)[MOST], int *seen) {
  const cJSON *op;
  int collectives = 0;
  cJSON_ArrayForEach(op, cJSON_GetObjectItem(plan, "operations")) {
    const char *kind = cJSON_GetObjectItem(op, "kind")->valuestring;
    const cJSON *group = cJSON_GetObjectItem(op, "group");
    ck_assert_int_eq(cJSON_IsObject(group), strcmp(kind, "collective") == 0);
    if (group) {
      const char *axis = cJSON_GetObjectItem(group, "axis")->valuestring;
      ck_assert_msg(number(group, "size") == axis_size(j, axis), "%s: %s has %g ranks", j->axes, axis,
                    number(group, "size"));
      ck_assert(number(group, "index") >= 0 && number(group, "index") < number(group, "size"));
      collectives++;
    }
    int send = strcmp(kind, "send") == 0, receive = strcmp(kind, "recv") == 0;
    ck_assert_int_eq(cJSON_IsNumber(cJSON_GetObjectItem(op, "peer")), send || receive);
    if (!send && !receive) continue;
    int peer = (int)number(op, "peer");
    ck_assert(peer >= 0 && peer < j->ranks && peer != rank);
    if (send)
      messages[rank][peer]++;
    else
      messages[peer][rank]--;
  }
  *seen += collectives;
}

/* Every message that a rank sends is received by its partner; texts and JSON name the same partners. */
START_TEST(plans_say_whom_they_meet) {
  int seen = 0;
  for (uint64_t seed = 0; seed < 6; seed++) {
    axes_job j = random_job(1000 + seed);
    int messages[MOST][MOST] = {0};
    ck_assert_int_le(j.ranks, MOST);
    for (int rank = 0; rank < j.ranks; rank++) {
      char more[320];
      snprintf(more, sizeof more, "%s --print-plan --rank %d", j.axes, rank);
      cJSON *plan = answer("simulate", j.words, more);
      int before = seen, lines = 0;
      read_partners(&j, rank, plan, messages, &seen);
      cJSON_Delete(plan);
      if (rank != j.ranks - 1) continue;
      command_result r = twinspeed("simulate %s %s", j.words, more);
      for (const char *at = strstr(r.out, " over "); at; at = strstr(at + 1, " over ")) {
        char axis[16];
        int size;
        ck_assert_msg(sscanf(at, " over %15s x %d", axis, &size) == 2, "%.40s", at);
        ck_assert_int_eq(size, axis_size(&j, axis));
        lines++;
      }
      ck_assert_int_eq(lines, seen - before);
      command_free(&r);
    }
    for (int a = 0; a < j.ranks; a++)
      for (int b = 0; b < j.ranks; b++) ck_assert_msg(messages[a][b] == 0, "%s: from %d to %d", j.axes, a, b);
  }
  ck_assert_int_gt(seen, 1000);
}
END_TEST

/* ---- check ---- */

START_TEST(check_covers_axes) {
  static const struct {
    const char *words;
    int verified, replicas, all;
  } cases[] = {{"", 32, 8, 1},
               {"--max-ranks 31", 28, 7, 0},
               {"--max-ranks 9", 8, 2, 0},
               {"--max-ranks 4", 4, 1, 0},
               {"--max-ranks 3", 2, 0, 0}, /* one rank of each stage */
               {"--max-ranks 1", 2, 0, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    cJSON *json = answer("check", "-m tiny-gpt2 --cluster dgx-a100:4 --pp 2 --tp 2 --accumulation 4", cases[i].words);
    const cJSON *plan = cJSON_GetObjectItem(json, "plan");
    ck_assert_int_eq((int)number(plan, "ranks"), 32);
    ck_assert_msg(number(plan, "ranks_verified") == cases[i].verified, "%s: %g", cases[i].words,
                  number(plan, "ranks_verified"));
    ck_assert_int_eq((int)number(plan, "replicas_verified"), cases[i].replicas);
    ck_assert_int_eq(cJSON_IsTrue(cJSON_GetObjectItem(plan, "verified_together")), cases[i].all);
    cJSON_Delete(json);
  }
}
END_TEST

/* Some of the ranks are verified as strictly as all of them, except that group members may be missing. */
START_TEST(a_part_is_verified) {
  static const char *const keys[] = {"pipeline.stages", "tensor_parallel.autotp_size", "gradient_accumulation_steps",
                                     "train_micro_batch_size_per_gpu", "twinspeed.sequence_length"};
  static const int replica[] = {0, 1, 4, 5}; /* pipe 2 x data 2 x model 2 */
  tws_error err = {0};
  tws_network *network;
  tws_config *config;
  tws_plan *plans[4];
  ck_assert(tws_network_load("tiny-gpt2", 2, &network, &err) == TWS_OK && tws_config_default(&config, &err) == TWS_OK);
  for (int i = 0; i < 5; i++) ck_assert(tws_config_set(config, keys[i], i < 4 ? "2" : "32", &err) == TWS_OK);
  tws_auto_context context = {.hidden_size = network->hidden};
  ck_assert_msg(tws_config_resolve(config, 8, &context, &err) == TWS_OK, "%s", err.message);
  tws_plan_request request = {.network = network, .config = config, .backend = TWS_BACKEND_HOST, .threads = 1};
  ck_assert(tws_plan_topology(config, 8, &request.topology, &err) == TWS_OK);
  for (int i = 0; i < 4; i++) {
    request.rank = replica[i];
    ck_assert_msg(tws_plan_build(&request, &plans[i], &err) == TWS_OK, "%s", err.message);
  }
  const tws_plan *const *part = (const tws_plan *const *)plans;
  ck_assert_msg(tws_plans_verify_part(part, 4, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_ne(tws_plans_verify(part, 4, &err), TWS_OK);      /* the other replica's ranks are missing */
  ck_assert_int_ne(tws_plans_verify_part(part, 3, &err), TWS_OK); /* a message without a receiver */
  tws_plan *plan = plans[1];
  for (uint32_t op = 0; op < plan->op_count; op++) {
    if (plan->ops[op].kind != TWS_OP_COLLECTIVE) continue;
    plan->works[plan->ops[op].work].d[0]++;
    break;
  }
  memset(&err, 0, sizeof err);
  ck_assert_int_eq(tws_plans_verify_part(part, 4, &err), TWS_INTERNAL);
  ck_assert_msg(strstr(err.message, "instead") != NULL, "%s", err.message);
  for (int i = 0; i < 4; i++) tws_plan_destroy(plans[i]);
  tws_config_destroy(config);
  tws_network_destroy(network);
}
END_TEST

/* ---- flags and narration ---- */

static const cJSON *key_of(const cJSON *json, const char *section, const char *key) {
  const cJSON *config = cJSON_GetObjectItem(json, "config");
  return cJSON_GetObjectItem(section ? cJSON_GetObjectItem(config, section) : config, key);
}

/* Flags of parallelism set keys and override the file; for tensor ranks they override both keys. */
START_TEST(flags_of_parallelism) {
  const char *config = in_folder("ds.json");
  write_text(
      config,
      "{\"train_batch_size\": 8, \"pipeline\": {\"stages\": 3}, \"sequence_parallel_size\": 3,\n"
      " \"tensor_parallel\": {\"tp\": {\"tp_size\": 16}}, \"twinspeed\": {\"tensor_sequence_parallel\": false}}");
  command_result r = twinspeed(
      "check -c %s --pp 2 --tp 4 --sp 8 --schedule interleaved --virtual-stages 5 --axis-order "
      "model,data,pipe,sequence "
      "--sequence-parallel --json",
      config);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-check-1");
  ck_assert_int_eq(key_of(json, "pipeline", "stages")->valueint, 2);
  ck_assert_int_eq(key_of(json, "tensor_parallel", "autotp_size")->valueint, 4);
  ck_assert_ptr_null(key_of(json, "tensor_parallel", "tensor_parallel"));
  ck_assert_int_eq(key_of(json, NULL, "sequence_parallel_size")->valueint, 8);
  ck_assert_str_eq(key_of(json, "twinspeed", "pipeline_schedule")->valuestring, "interleaved");
  ck_assert_int_eq(key_of(json, "twinspeed", "virtual_stages")->valueint, 5);
  ck_assert_str_eq(key_of(json, "twinspeed", "axis_order")->valuestring, "model,data,pipe,sequence");
  ck_assert(cJSON_IsTrue(key_of(json, "twinspeed", "tensor_sequence_parallel")));
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(json, "no_effect")), 0);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("check --sequence-parallel -c %s --tp 1 --set twinspeed.axis_order=data,pipe,model,sequence --json",
                config);
  json = assert_json(&r, "twinspeed-check-1");
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(json, "no_effect")), 1);
  ck_assert_str_eq(key_of(json, "twinspeed", "axis_order")->valuestring, "data,pipe,model,sequence");
  cJSON_Delete(json);
  command_free(&r);
  write_text(config,
             "{\"train_batch_size\": 8, \"twinspeed\": {\"tensor_sequence_regions\": true}}"); /* former names */
  const char *const former[] = {
      "check --tp 2 -c %s --json",
      "check --tp 2 -c %s --set twinspeed.tensor_sequence_parallel=false --sequence-regions --json"};
  for (int i = 0; i < 2; i++) {
    r = twinspeed(former[i], config);
    json = assert_json(&r, "twinspeed-check-1");
    ck_assert(cJSON_IsTrue(key_of(json, "twinspeed", "tensor_sequence_parallel")));
    cJSON_Delete(json);
    command_free(&r);
  }
}
END_TEST

/* Both forms of the result show how the axes are ordered. */
START_TEST(axes_are_shown) {
  static const char *const orders[] = {"pipe,data,sequence,model", "data,pipe,sequence,model"};
  static const char *const shown[] = {"(pipe 2 x data 4)", "(data 4 x pipe 2)"};
  for (int i = 0; i < 2; i++) {
    command_result r =
        twinspeed("check -m gpt2 --cluster dgx-a100 --pp 2 --schedule gpipe --axis-order %s --json", orders[i]);
    ck_assert_msg(r.status == 0, "%s", r.err);
    cJSON *json = assert_json(&r, "twinspeed-check-1");
    const cJSON *axes = cJSON_GetObjectItem(json, "axes");
    ck_assert_int_eq(cJSON_GetObjectItem(axes, "pipe")->valueint, 2);
    ck_assert_int_eq(cJSON_GetObjectItem(axes, "data")->valueint, 4);
    ck_assert_int_eq(cJSON_GetObjectItem(axes, "sequence")->valueint, 1);
    ck_assert_int_eq(cJSON_GetObjectItem(axes, "model")->valueint, 1);
    ck_assert_str_eq(cJSON_GetObjectItem(json, "pipeline_schedule")->valuestring, "gpipe");
    ck_assert_str_eq(cJSON_GetObjectItem(json, "axis_order")->valuestring, orders[i]);
    ck_assert_int_eq(cJSON_GetObjectItem(json, "train_batch")->valueint, 4);
    cJSON_Delete(json);
    command_free(&r);
    r = twinspeed("estimate -m gpt2 --cluster dgx-a100 --pp 2 --schedule gpipe --axis-order %s", orders[i]);
    ck_assert_msg(r.status == 0, "%s", r.err);
    ck_assert_msg(strstr(r.out, "pipeline of 2 stages (gpipe)") && strstr(r.out, shown[i]), "%s", r.out);
    command_free(&r);
  }
}
END_TEST

/* The ranks that train starts receive the same options as the one that starts them. */
START_TEST(ranks_receive_their_axes) {
  static const char model[] =
      "{\"model_type\": \"gpt2\", \"vocab_size\": 257, \"n_positions\": 32, \"n_embd\": 16, \"n_layer\": 2, "
      "\"n_head\": 2}";
  static const struct {
    const char *words, *axis;
  } cases[] = {{"--pp 2 --schedule gpipe --axis-order data,pipe,model,sequence", "pipe"},
               {"--tp 2 --sequence-parallel", "model"},
               {"--sp 2 --axis-order sequence,model,pipe,data", "sequence"}};
  char text[400];
  for (int i = 0; i < 399; i++) text[i] = (char)('a' + i % 26);
  text[399] = '\0';
  write_text(in_folder("model.json"), model);
  write_text(in_folder("text"), text);
  double losses[3];
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* for the ranks: LeakSanitizer would report memory that MPI never
                                                * frees */
  for (int i = 0; i < 3; i++) { /* two ranks are one replica, so the batch and the loss are those of one rank */
    command_result r =
        twinspeed("train -m %s -n 2 %s --accumulation 3 --seq 16 --threads 1 --steps 1 --data %s --json -q",
                  in_folder("model.json"), cases[i].words, in_folder("text"));
    ck_assert_msg(r.status == 0, "%s: %s", cases[i].words, r.err);
    cJSON *json = assert_json(&r, "twinspeed-train-1");
    const cJSON *configuration = cJSON_GetObjectItem(json, "configuration");
    ck_assert_int_eq(cJSON_GetObjectItem(configuration, "train_batch")->valueint, 3);
    ck_assert_int_eq(cJSON_GetObjectItem(cJSON_GetObjectItem(configuration, "axes"), cases[i].axis)->valueint, 2);
    losses[i] = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "losses"), 0)->valuedouble;
    ck_assert_double_eq_tol(losses[i], losses[0], 1e-5 * losses[0]);
    cJSON_Delete(json);
    command_free(&r);
  }
  unsetenv("ASAN_OPTIONS");
}
END_TEST

/* The vocabulary is padded so that tensor ranks divide it, which -v reports. */
START_TEST(vocabulary_is_padded_for_tensor_ranks) {
  write_text(in_folder("model.json"),
             "{\"model_type\": \"gpt2\", \"vocab_size\": 257, \"n_positions\": 64, \"n_embd\": 32, \"n_layer\": 2, "
             "\"n_head\": 8}");
  static const struct {
    const char *words, *vocabulary;
    int remark;
  } cases[] = {{"--tp 1", "vocabulary 257,", 0},
               {"--tp 2", "vocabulary 258 ", 1},
               {"--tp 8 --vocab-multiple 12", "vocabulary 264 ", 0}, /* 24 divides it, as 12 does */
               {"--tp 8 --vocab-multiple 5", "vocabulary 280 ", 1}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    command_result r = twinspeed("estimate -m %s --cluster dgx-a100 %s -v", in_folder("model.json"), cases[i].words);
    ck_assert_msg(r.status == 0, "%s: %s", cases[i].words, r.err);
    ck_assert_msg(strstr(r.out, cases[i].vocabulary) != NULL, "%s: %s", cases[i].words, r.out);
    ck_assert_int_eq(count_lines_with(r.err, "the vocabulary of 257 is padded to "), cases[i].remark);
    command_free(&r);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cli_axes");
  TCase *tcase = tcase_create("axes");
  tcase_add_checked_fixture(tcase, make_folder, remove_folder);
  tcase_set_timeout(tcase, 240);
  tcase_add_loop_test(tcase, profile_adds_up, 0, 2);
  tcase_add_test(tcase, profile_names_the_sizes);
  tcase_add_test(tcase, plans_say_whom_they_meet);
  tcase_add_test(tcase, check_covers_axes);
  tcase_add_test(tcase, a_part_is_verified);
  tcase_add_test(tcase, flags_of_parallelism);
  tcase_add_test(tcase, axes_are_shown);
  tcase_add_test(tcase, ranks_receive_their_axes);
  tcase_add_test(tcase, vocabulary_is_padded_for_tensor_ranks);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
