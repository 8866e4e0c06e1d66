/* ctest: mpi sampled */
/* Trainings of small models with experts have the same losses however the experts are divided; a refused division names
 * the nearest legal one. */
#include "answers.h"
#include "members.h"
#include "train.h"

enum { TRAINED = TWS_SANITIZED ? 3 : 6 };

/* Trains a job and returns its losses and gradient norms; least: a lower bound of the auxiliary loss. */
static void train_model(const char *model, const char *division, int drops, double least, double losses[TRAINED],
                        double norms[TRAINED]) {
  command_result r = twinspeed(
      "train -m %s --data %s --steps %d --seq 32 --seed 1 --set optimizer.params.lr=0.003 --threads 1 "
      "--json --quiet %s",
      model, text_path, TRAINED, division);
  ck_assert_msg(r.status == 0, "%s: %s", division, r.err);
  cJSON *json = assert_json(&r, "twinspeed-train-1");
  for (int s = 0; s < TRAINED; s++) {
    const double auxiliary = cJSON_GetArrayItem(member(json, "auxiliary_losses"), s)->valuedouble;
    const double dropped = cJSON_GetArrayItem(member(json, "dropped_shares"), s)->valuedouble;
    ck_assert_msg(auxiliary >= least && auxiliary < 0.12 && (drops ? dropped > 0 && dropped < 0.3 : dropped == 0),
                  "%s: %g, %g", division, auxiliary, dropped);
    losses[s] = cJSON_GetArrayItem(member(json, "losses"), s)->valuedouble;
    norms[s] = cJSON_GetArrayItem(member(json, "gradient_norms"), s)->valuedouble;
  }
  cJSON_Delete(json);
  command_free(&r);
}

/* Trains tiny-mixtral: two layers, two experts per token; each layer's auxiliary loss is at least 0.02 per choice, when
 * balanced. */
static void train_experts(const char *division, double losses[TRAINED], double norms[TRAINED]) {
  train_model("tiny-mixtral", division, 1, 0.0799, losses, norms);
}

static void compare_curves(const char *what, const double *loss, const double *norm, const double *losses,
                           const double *norms) {
  for (int s = 0; s < TRAINED; s++) {
    ck_assert_msg(fabs(loss[s] / losses[s] - 1) < 1e-5, "%s, step %d: loss %.9g, not %.9g", what, s + 1, loss[s],
                  losses[s]);
    ck_assert_msg(fabs(norm[s] / norms[s] - 1) < 1e-4, "%s, step %d: norm %.9g, not %.9g", what, s + 1, norm[s],
                  norms[s]);
  }
}

static void compare_with(const char *const *divisions, const double *losses, const double *norms) {
  for (; *divisions; divisions++) {
    double loss[TRAINED], norm[TRAINED];
    train_experts(*divisions, loss, norm);
    compare_curves(*divisions, loss, norm, losses, norms);
  }
}

START_TEST(shared_out_or_not_the_loss_is_the_same) {
  static const char *const divisions[] = {"-n 4 --micro-batch 2 --ep 2",
                                          "-n 4 --micro-batch 2 --ep 4",
                                          "-n 4 --micro-batch 2 --stage 1 --ep 2",
                                          "-n 4 --micro-batch 2 --stage 2 --ep 4 --recompute full",
                                          "-n 4 --micro-batch 2 --stage 3 --ep 2 --recompute selective",
                                          "-n 4 --micro-batch 2 --stage 2 --ep 2 "
                                          "--set use_data_before_expert_parallelism=true",
                                          NULL};
  double losses[TRAINED], norms[TRAINED];
  train_experts("-n 4 --micro-batch 2 --ep 1", losses, norms);
  ck_assert(losses[TRAINED - 1] < losses[0] - 0.2);
  compare_with(divisions, losses, norms);
}
END_TEST

/* Exchanging slots in two steps, first among some of the ranks that share the experts, gives the same losses as one
 * step, to the last bit: with other replicas and partitions, with shared slots, and in every order of the ranks. */
START_TEST(exchanged_in_two_steps_the_loss_is_the_same) {
#define STEPS " --set twinspeed.expert_node_ranks=2"
  static const struct {
    const char *division;
    int drops;
  } cases[] = {
      {"-n 4 --micro-batch 2 --stage 2 --ep 4", 1},
      {"-n 8 --micro-batch 1 --stage 3 --ep 4 --recompute full --set use_data_before_expert_parallelism=true", 1},
      {"-n 4 --micro-batch 2 --ep 4 --set twinspeed.expert_dropless=true --set twinspeed.expert_bound=4", 0}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    double losses[TRAINED], norms[TRAINED], loss[TRAINED], norm[TRAINED];
    char division[256];
    snprintf(division, sizeof division, "%s" STEPS, cases[c].division);
    train_model("tiny-mixtral", cases[c].division, cases[c].drops, 0.0799, losses, norms);
    train_model("tiny-mixtral", division, cases[c].drops, 0.0799, loss, norm);
    ck_assert_msg(memcmp(loss, losses, sizeof loss) == 0 && memcmp(norm, norms, sizeof norm) == 0, "%s", division);
  }
#undef STEPS
}
END_TEST

/* Expert parallelism combined with the other axes gives the same losses: two replicas share the experts. */
START_TEST(experts_with_other_axes) {
  static const char *const divisions[] = {"-n 2 --micro-batch 2 --stage 1 --ep 2", "-n 4 --tp 2 --micro-batch 2 --ep 2",
                                          "-n 4 --pp 2 --micro-batch 2 --stage 1 --ep 2", NULL};
  double losses[TRAINED], norms[TRAINED];
  train_experts("-n 2 --micro-batch 2", losses, norms);
  compare_with(divisions, losses, norms);
}
END_TEST

#define SPLIT " --set twinspeed.expert_tensor_parallel=true"
static double weight_bytes(const char *division) {
  command_result r = twinspeed("estimate -m tiny-mixtral --seq 32 --micro-batch 2 --dtype fp32 --json %s", division);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = cJSON_Parse(r.out);
  const cJSON *device = member(member(json, "memory"), "device");
  const double bytes = member(member(device, "categories"), "parameters")->valuedouble;
  cJSON_Delete(json);
  command_free(&r);
  return bytes;
}

/* With each expert's weights split over two tensor ranks, and replicas that share experts, a rank has half of these
 * weights (two layers of four experts, three products of 64 x 48), losses are those of one rank, and ranks with another
 * division read the saved state. */
START_TEST(experts_split_over_tensor_ranks) {
  static const char *const one[] = {"-n 2 --tp 2 --micro-batch 4" SPLIT,
                                    "-n 4 --tp 2 --pp 2 --micro-batch 4 --stage 1" SPLIT, NULL};
  static const char *const two[] = {"-n 4 --tp 2 --ep 2 --micro-batch 2 --stage 2 --recompute full" SPLIT,
                                    "-n 4 --tp 2 --micro-batch 2 --stage 3" SPLIT, NULL};
  double losses[TRAINED], norms[TRAINED];
  train_experts("-n 1 --micro-batch 4", losses, norms);
  compare_with(one, losses, norms);
  train_experts("-n 2 --micro-batch 2", losses, norms);
  compare_with(two, losses, norms);
  const double whole = weight_bytes("-n 2 --tp 2"), split = weight_bytes("-n 2 --tp 2" SPLIT);
  ck_assert_double_eq(whole - split, 4.0 * 2 * 4 * 3 * 64 * 48 / 2);
  ck_assert_double_eq(weight_bytes("-n 4 --tp 2 --ep 2") - weight_bytes("-n 4 --tp 2 --ep 2" SPLIT),
                      4.0 * 2 * 2 * 3 * 64 * 48 / 2);
  static const char *const ways[] = {"-n 4 --tp 2 --ep 2 --micro-batch 2 --stage 1" SPLIT,
                                     "-n 2 --micro-batch 2 --stage 2", "-n 4 --tp 2 --micro-batch 2" SPLIT};
  for (int i = 0; i < 3; i++) {
    command_result r = twinspeed(
        "train -m tiny-mixtral --data %s --steps %d --seq 32 --seed 1 --set optimizer.params.lr=0.003 --threads 1 "
        "--json --quiet %s %s %s/split",
        text_path, i ? 2 : 1, ways[i], i ? "--resume" : "--save", folder);
    cJSON *json = assert_json(&r, "twinspeed-train-1");
    const cJSON *list = member(json, "losses");
    const double last = cJSON_GetArrayItem(list, cJSON_GetArraySize(list) - 1)->valuedouble;
    ck_assert_msg(fabs(last / losses[i > 0] - 1) < 1e-5, "%s: %.9g, not %.9g", ways[i], last, losses[i > 0]);
    cJSON_Delete(json);
    command_free(&r);
  }
}
END_TEST

/* Experts' weights split over tensor ranks that route their own tokens, without dropped routes: the ranks gather all
 * slots and receive sums of theirs; with replicas that share experts, with stages 0 to 3, and with shared slots. */
START_TEST(experts_split_over_ranks_that_route) {
#define ROUTED " --sequence-parallel" SPLIT " --set twinspeed.expert_capacity_factor=0"
  static const char *const divisions[] = {
      "-n 2 --tp 2 --micro-batch 4 --stage 0" ROUTED, "-n 4 --tp 2 --ep 2 --micro-batch 2 --stage 2" ROUTED,
      "-n 4 --tp 2 --ep 2 --micro-batch 2 --stage 3 --recompute full --sequence-parallel" SPLIT
      " --set twinspeed.expert_dropless=true"
      " --set twinspeed.expert_bound=4"};
  double losses[TRAINED], norms[TRAINED], loss[TRAINED], norm[TRAINED];
  for (size_t d = 0; d < sizeof divisions / sizeof *divisions; d++) {
    if (d < 2)
      train_model("tiny-mixtral",
                  d ? "-n 1 --micro-batch 1 --accumulation 4 --set twinspeed.expert_capacity_factor=0"
                    : "-n 1 --micro-batch 2 --accumulation 2 --set twinspeed.expert_capacity_factor=0",
                  0, 0.0799, losses, norms);
    train_model("tiny-mixtral", divisions[d], 0, 0.0799, loss, norm);
    compare_curves(divisions[d], loss, norm, losses, norms);
  }
#undef ROUTED
}
END_TEST

/* With slots that a rank's experts share no route is dropped, and losses are those with a slot for every token; where
 * the bound is exceeded the error says where. */
START_TEST(dropless) {
  static const char *const divisions[] = {
      "-n 4 --micro-batch 2 --set twinspeed.expert_dropless=true",
      "-n 4 --micro-batch 2 --stage 2 --ep 2 --set twinspeed.expert_dropless=true",
      ("-n 4 --micro-batch 2 --stage 3 --ep 4 --recompute full --set twinspeed.expert_dropless=true "
       "--set twinspeed.expert_bound=4")};
  double losses[TRAINED], norms[TRAINED], loss[TRAINED], norm[TRAINED];
  train_model("tiny-mixtral", "-n 4 --micro-batch 2 --set twinspeed.expert_capacity_factor=0", 0, 0.0799, losses,
              norms);
  for (size_t d = 0; d < sizeof divisions / sizeof *divisions; d++) {
    train_model("tiny-mixtral", divisions[d], 0, 0.0799, loss, norm);
    compare_curves(divisions[d], loss, norm, losses, norms);
  }
  command_result r = twinspeed(
      "train -m tiny-mixtral --data %s --steps 1 --seq 32 --seed 1 -n 4 --ep 4 --set twinspeed.expert_dropless=true "
      "--set twinspeed.expert_bound=1",
      text_path);
  ck_assert_int_eq(r.status, 5);
  ck_assert_msg(strstr(r.err, "model.layers.0.block_sparse_moe.router") && strstr(r.err, "and their buffer has 16") &&
                    strstr(r.err, "raise twinspeed.expert_bound"),
                "%s", r.err);
  command_free(&r);
}
END_TEST

/* Writes a model of the golden file with additional keys and returns its path. */
static const char *family_with(const char *name, const char *keys) {
  static char path[96];
  tws_json *golden = golden_file("expert_families.json");
  const cJSON *family;
  snprintf(path, sizeof path, "%s", in_folder("with.json"));
  cJSON_ArrayForEach(family, member(golden->root, "families")) {
    if (strcmp(member(family, "name")->valuestring, name) != 0) continue;
    char *config = cJSON_PrintUnformatted(member(family, "config"));
    FILE *file = fopen(path, "w");
    fprintf(file, "%s,%.*s", keys, (int)strlen(config + 1), config + 1);
    fclose(file);
    cJSON_free(config);
  }
  tws_json_destroy(golden);
  return path;
}

/* Noise on the inputs of routers follows the position of tokens in the global batch, so that losses, also with a z-loss
 * on logits, do not depend on the division. */
START_TEST(noise_does_not_depend_on_the_division) {
  static const char *const divisions[] = {"-n 2 --micro-batch 1 --accumulation 2",
                                          "-n 4 --micro-batch 1 --ep 4 --stage 2 --recompute full"};
#define LONG " --set twinspeed.expert_dropless=true --set twinspeed.expert_bound=4"
  double losses[TRAINED], norms[TRAINED], loss[TRAINED], norm[TRAINED];
  const char *noisy = family_with("mixtral", "{\"router_jitter_noise\":0.2,\"router_z_loss_coef\":0.01");
  train_model(noisy, "-n 1 --micro-batch 1 --accumulation 4" LONG, 0, 0.01, losses, norms);
  for (size_t d = 0; d < sizeof divisions / sizeof *divisions; d++) {
    char division[192];
    snprintf(division, sizeof division, "%s" LONG, divisions[d]);
    train_model(noisy, division, 0, 0.01, loss, norm);
    compare_curves(division, loss, norm, losses, norms);
  }
  train_model(noisy, "-n 1 --micro-batch 1 --accumulation 4 --set twinspeed.dropout=false" LONG, 0, 0.01, loss, norm);
  ck_assert_double_gt(fabs(loss[1] - losses[1]), 1e-5);
#undef LONG
}
END_TEST

/* The routers' biases follow the routes of all ranks, and balance the experts. */
START_TEST(biases_balance_experts) {
  static const char *const divisions[] = {"-n 1 --micro-batch 2 --accumulation 2",
                                          "-n 2 --micro-batch 2 --ep 2 --stage 1",
                                          "-n 1 --micro-batch 2 --accumulation 2"};
  enum { LONG = 30, LAST = 10 };
  double hottest[3][LONG], loss[3][LONG], late[3] = {0};
  const char *model = family_with("deepseek_v3", "{\"note\":false");
  for (int d = 0; d < 3; d++) {
    command_result r = twinspeed(
        "train -m %s --data %s --steps %d --seq 32 --seed 1 --set optimizer.params.lr=0.001 --set "
        "twinspeed.expert_dropless=true --set twinspeed.expert_bias_rate=%s --threads 1 --json --quiet %s",
        model, text_path, LONG, d < 2 ? "0.005" : "0", divisions[d]);
    ck_assert_msg(r.status == 0, "%s", r.err);
    cJSON *json = assert_json(&r, "twinspeed-train-1");
    for (int s = 0; s < LONG; s++) {
      hottest[d][s] = cJSON_GetArrayItem(member(json, "hottest_shares"), s)->valuedouble;
      if (s >= LONG - LAST) late[d] += hottest[d][s] / LAST;
      loss[d][s] = cJSON_GetArrayItem(member(json, "losses"), s)->valuedouble;
    }
    const cJSON *routed = member(json, "routed"), *count;
    double routes = 0;
    cJSON_ArrayForEach(count, member(routed->child, "routes")) routes += count->valuedouble;
    ck_assert_int_eq(cJSON_GetArraySize(routed), 2); /* layers with experts */
    ck_assert_double_eq(routes, 4 * 32 * 3);
    cJSON_Delete(json);
    command_free(&r);
  }
  for (int s = 0; s < TRAINED; s++) {
    ck_assert_msg(fabs(loss[1][s] / loss[0][s] - 1) < 1e-5, "step %d: loss %.9g, not %.9g", s + 1, loss[1][s],
                  loss[0][s]);
    ck_assert_double_eq(hottest[1][s], hottest[0][s]);
  }
  ck_assert_msg(late[0] < 0.85 * late[2], "%g times an even share with biases, %g without", late[0], late[2]);
}
END_TEST

/* Returns the first or the last counter event of this name in a trace. */
static const cJSON *counter_of(const cJSON *trace, const char *name, int last) {
  const cJSON *event, *found = NULL;
  cJSON_ArrayForEach(event, member(trace, "traceEvents")) {
    if (strcmp(member(event, "ph")->valuestring, "C") != 0 || strcmp(member(event, "name")->valuestring, name) != 0)
      continue;
    if (!found || last) found = event;
  }
  ck_assert_msg(found != NULL, "no counter %s", name);
  return found;
}

/* A trace has counters of the routers over its step that equal the figures of the result. */
START_TEST(traces_count_routes) {
  command_result r = twinspeed(
      "train -m tiny-mixtral --data %s --steps 3 --seq 32 --seed 1 -n 2 --ep 2 --micro-batch 2 --threads 1 --json "
      "--quiet --trace %s/routes",
      text_path, folder);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-train-1");
  tws_json *trace = NULL;
  ck_assert_int_eq(tws_json_read(in_folder("routes"), &trace, NULL), TWS_OK);
  static const struct {
    const char *counter, *series, *result;
  } figures[] = {{"dropped share", "share", "dropped_shares"},
                 {"auxiliary loss", "loss", "auxiliary_losses"},
                 {"hottest expert", "even shares", "hottest_shares"}};
  for (int last = 0; last < 2; last++) {
    for (size_t f = 0; f < sizeof figures / sizeof *figures; f++) {
      const cJSON *counter = counter_of(trace->root, figures[f].counter, last);
      ck_assert_double_eq_tol(member(member(counter, "args"), figures[f].series)->valuedouble,
                              cJSON_GetArrayItem(member(json, figures[f].result), 2)->valuedouble, 1e-8);
      ck_assert(last ? member(counter, "ts")->valuedouble > 0 : member(counter, "ts")->valuedouble == 0);
    }
    const cJSON *router;
    cJSON_ArrayForEach(router, member(json, "routed")) {
      char name[128];
      snprintf(name, sizeof name, "routes %s", member(router, "router")->valuestring);
      const cJSON *series = member(counter_of(trace->root, name, last), "args")->child, *routes;
      cJSON_ArrayForEach(routes, member(router, "routes")) {
        ck_assert(series && series->valuedouble == routes->valuedouble);
        series = series->next;
      }
      ck_assert(!series);
    }
  }
  tws_json_destroy(trace);
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* Families of models with experts have the losses of the reference library (tests/golden/expert_families.json), without
 * dropped routes. */
START_TEST(families_lose_what_the_reference_loses) {
  static const char *const divisions[] = {"-n 1 --micro-batch 2", "-n 2 --micro-batch 1 --ep 2 --stage 2",
                                          "-n 2 --pp 2 --micro-batch 2 --recompute full"};
  tws_json *golden = golden_file("expert_families.json");
  char model[96], text[96];
  snprintf(text, sizeof text, "%s", in_folder("families"));
  snprintf(model, sizeof model, "%s", in_folder("family.json"));
  FILE *file = fopen(text, "w");
  for (int i = 0; i < 64; i++) fputs(member(golden->root, "text")->valuestring, file);
  fclose(file);
  const cJSON *family;
  cJSON_ArrayForEach(family, member(golden->root, "families")) {
    const cJSON *expected = member(family, "losses"), *norms = member(family, "norms");
    const int steps = TWS_SANITIZED ? 2 : cJSON_GetArraySize(expected);
    char *config = cJSON_PrintUnformatted(member(family, "config"));
    write_text(model, config);
    cJSON_free(config);
    for (size_t d = 0; d < sizeof divisions / sizeof *divisions - (TWS_SANITIZED ? 1 : 0); d++) {
      command_result r = twinspeed(
          "train -m %s --data %s --steps %d --seq 64 --seed 1 --set optimizer.params.lr=0.001 --set "
          "optimizer.params.weight_decay=0 --set twinspeed.expert_capacity_factor=0 --threads 1 --json --quiet %s",
          model, text, steps, divisions[d]);
      ck_assert_msg(r.status == 0, "%s: %s", divisions[d], r.err);
      cJSON *json = assert_json(&r, "twinspeed-train-1");
      for (int s = 0; s < steps; s++) {
        const double loss = cJSON_GetArrayItem(member(json, "losses"), s)->valuedouble,
                     norm = cJSON_GetArrayItem(member(json, "gradient_norms"), s)->valuedouble;
        ck_assert_msg(fabs(loss / cJSON_GetArrayItem(expected, s)->valuedouble - 1) < 2e-6 &&
                          fabs(norm / cJSON_GetArrayItem(norms, s)->valuedouble - 1) < 1e-5,
                      "%s, %s, step %d: loss %.9g, norm %.9g", member(family, "name")->valuestring, divisions[d], s + 1,
                      loss, norm);
      }
      cJSON_Delete(json);
      command_free(&r);
    }
  }
  tws_json_destroy(golden);
}
END_TEST

static double simulated(const char *load, double *products, double *longest) {
  static const char *const kernels[] = {"expert_linear", "expert_linear_grad_input", "expert_linear_grad_weight"};
  command_result r = twinspeed(
      "simulate -m %s --cluster dgx-a100:8 --ep 64 --stage 1 --micro-batch 1 --seq 4096 --json --quiet --set "
      "twinspeed.expert_capacity_factor=8 --set 'twinspeed.expert_load=\"%s\"'",
      in_folder("many.json"), load);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-simulation-1");
  const double step = number(json, "step_s");
  *longest = number(json, "longest_path_s");
  *products = 0;
  for (int k = 0; k < 3; k++) *products += number(member(json, "kernel_s"), kernels[k]);
  cJSON_Delete(json);
  command_free(&r);
  return step;
}

/* An expert with four times its share makes the experts' products of all layers about four times as long, and the step
 * longer by the difference, as the longest path does. */
START_TEST(a_hot_expert_is_waited_for) {
  char hot[256] = "4.2";
  double even, much, by_rank, longest[3];
  for (int e = 1; e < 64; e++) strcat(hot, ",1");
  write_text(in_folder("many.json"),
             "{\"model_type\":\"mixtral\",\"vocab_size\":32000,\"num_hidden_layers\":4,\"hidden_size\":2048,"
             "\"num_attention_heads\":16,\"num_key_value_heads\":16,\"intermediate_size\":1408,"
             "\"num_local_experts\":64,\"num_experts_per_tok\":6,\"torch_dtype\":\"bfloat16\"}");
  const double first = simulated("uniform", &even, &longest[0]), second = simulated(hot, &much, &longest[1]);
  const double third = simulated("zipf:0.5", &by_rank, &longest[2]);
  ck_assert_msg(much / even > 3.6 && much / even < 4.1, "%g times the products", much / even);
  ck_assert_double_eq_tol(second - first, much - even, 1e-9);
  ck_assert_double_eq_tol(first, longest[0], 1e-9);
  ck_assert_double_eq_tol(second, longest[1], 1e-9);
  ck_assert_double_eq_tol(third, longest[2], 1e-9);
  ck_assert_double_eq_tol(third - first, by_rank - even, 1e-9);
  ck_assert_double_gt(third, first);
}
END_TEST

static double first_loss(const char *model, const char *flags) {
  command_result r = twinspeed("train -m %s --data %s --steps 1 --seq 32 --seed 1 -n 2 --threads 1 --json --quiet %s",
                               model, text_path, flags);
  ck_assert_msg(r.status == 0, "%s: %s", flags, r.err);
  cJSON *json = assert_json(&r, "twinspeed-train-1");
  const double loss = member(json, "losses")->child->valuedouble;
  cJSON_Delete(json);
  command_free(&r);
  return loss;
}

/* A model whose experts are all initialized with a dense model's MLP computes what the dense model computes, whatever
 * its routers choose. */
START_TEST(experts_from_a_dense_model) {
#define SIZES                                                                                                          \
  "\"vocab_size\":259,\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":4,\"num_key_value_heads\":2," \
  "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,\"tie_word_embeddings\":false,"
  write_text(in_folder("dense.json"), "{\"model_type\":\"llama\"," SIZES "\"intermediate_size\":96}");
  write_text(in_folder("moe.json"), "{\"model_type\":\"mixtral\"," SIZES
                                    "\"intermediate_size\":96,\"num_local_experts\":4,\"num_experts_per_tok\":2}");
  write_text(in_folder("wide.json"), "{\"model_type\":\"mixtral\"," SIZES
                                     "\"intermediate_size\":128,\"num_local_experts\":4,\"num_experts_per_tok\":2}");
#undef SIZES
  char dense[96], moe[96], save[192], from[192];
  snprintf(dense, sizeof dense, "%s", in_folder("dense.json"));
  snprintf(moe, sizeof moe, "%s", in_folder("moe.json"));
  snprintf(save, sizeof save, "--save %s --set optimizer.params.lr=0.003", in_folder("dense"));
  first_loss(dense, save);
  command_result r = twinspeed("convert checkpoint %s/dense %s/dense.safetensors", folder, folder);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  snprintf(from, sizeof from, "--init-from %s/dense.safetensors --set twinspeed.expert_dropless=true", folder);
  const double expected = first_loss(dense, from);
  ck_assert_double_eq_tol(first_loss(moe, from), expected, 1e-5);
  strcat(from, " --ep 2 --stage 2");
  ck_assert_double_eq_tol(first_loss(moe, from), expected, 1e-5);
  r = twinspeed("train -m %s/wide.json --data %s --steps 1 --seq 32 --init-from %s/dense.safetensors", folder,
                text_path, folder);
  ck_assert_int_eq(r.status, 3);
  ck_assert_msg(strstr(r.err, "96 x 64") && strstr(r.err, "128 x 64"), "%s", r.err);
  command_free(&r);
}
END_TEST

START_TEST(refusals) {
  static const struct {
    const char *arguments, *says, *hint;
  } cases[] = {
      {"-m tiny-mixtral -n 4 --ep 3", "expert_parallel_size 3 does not divide 4 replicas", "expert_parallel_size 2"},
      {"-m tiny-mixtral -n 3 --ep 3", "does not divide a layer's 4 experts", "legal for this model is 2"},
      {"-m tiny-mixtral -n 4 --ep 4 --set twinspeed.expert_node_ranks=3", "expert_node_ranks 3 does not divide the 4",
       "2 and 4"},
      {"-m tiny-mixtral -n 4 --ep 4 --set twinspeed.expert_node_ranks=2 --set twinspeed.expert_dispatch_fp8=true",
       "not with twinspeed.expert_dispatch_fp8", "leave out twinspeed.expert_node_ranks"},
      {"-m tiny-llama -n 2 --ep 2", "the model has no experts", "expert_parallel_size"},
      {"-m tiny-mixtral -n 2 --set 'twinspeed.expert_load=\"1,2\"'", "has 2 counts", "uniform"},
      {"-m tiny-mixtral -n 2 --set 'twinspeed.expert_load=\"zipf:x\"'", "no exponent", "uniform"},
      {"-m %s -n 4 --tp 4" SPLIT, "do not divide the 50 features of an expert", "expert_tensor_parallel"},
      {"-m tiny-mixtral -n 2 --set twinspeed.expert_bias_rate=0.001", "have no biases", "router_aux_loss_coef"},
  };
  write_text(in_folder("narrow.json"),
             "{\"model_type\":\"qwen2_moe\",\"vocab_size\":260,\"num_hidden_layers\":1,\"hidden_size\":64,"
             "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"intermediate_size\":64,"
             "\"moe_intermediate_size\":50,\"shared_expert_intermediate_size\":64,\"num_experts\":4,"
             "\"num_experts_per_tok\":2}");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char arguments[512];
    snprintf(arguments, sizeof arguments, "check ");
    const char *model = strstr(cases[i].arguments, "%s");
    if (model)
      snprintf(arguments, sizeof arguments, "check -m %s%s", in_folder("narrow.json"), model + 2);
    else
      snprintf(arguments, sizeof arguments, "check %s", cases[i].arguments);
    command_result r = twinspeed("%s", arguments);
    ck_assert_int_ne(r.status, 0);
    ck_assert_msg(strstr(r.err, cases[i].says) && strstr(r.err, cases[i].hint), "%s%s", r.out, r.err);
    command_free(&r);
  }
  command_result r = twinspeed(
      "train -m tiny-mixtral --data %s --steps 1 --seq 32 -n 2 --ep 2 --threads 1 --quiet "
      "--set twinspeed.expert_dispatch_fp8=true",
      text_path);
  ck_assert_int_ne(r.status, 0);
  ck_assert_msg(strstr(r.err, "leave out twinspeed.expert_dispatch_fp8"), "%s%s", r.out, r.err);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("train_experts");
  TCase *tests = tcase_create("train_experts");
  tcase_set_timeout(tests, 300);
  tcase_add_test(tests, shared_out_or_not_the_loss_is_the_same);
  tcase_add_test(tests, exchanged_in_two_steps_the_loss_is_the_same);
  tcase_add_test(tests, experts_with_other_axes);
  tcase_add_test(tests, experts_split_over_tensor_ranks);
  tcase_add_test(tests, experts_split_over_ranks_that_route);
  tcase_add_test(tests, dropless);
  tcase_add_test(tests, noise_does_not_depend_on_the_division);
  tcase_add_test(tests, biases_balance_experts);
  tcase_add_test(tests, traces_count_routes);
  tcase_add_test(tests, experts_from_a_dense_model);
  tcase_add_test(tests, families_lose_what_the_reference_loses);
  tcase_add_test(tests, a_hot_expert_is_waited_for);
  tcase_add_test(tests, refusals);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
