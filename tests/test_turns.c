/* Networks that are trained alternately: a DCGAN against PyTorch's losses, on several ranks and ZeRO stages, gradients
 * against finite differences through the held discriminator, faulty files, and options that turns do not go with. */
/* ctest: engine mpi sampled */

#include "tests/answers.h"
#include "tests/members.h"
#include "tests/network_weights.h"
#include "tests/train.h"

enum { TRAINED = 20, NAMED = 3 };
static const char *const losses[NAMED] = {"real", "fake", "fooled"};
enum { BATCH_NORM, LAYER_NORM, MODELS };
static const struct {
  const char *name, *text;
} models[MODELS] = {{"batch_norm", DCGAN("batch_norm")}, {"layer_norm", DCGAN("layer_norm")}};
static tws_json *golden;

static void write_files(void) {
  char path[600];
  golden = golden_file("dcgan.json");
  write_pictures(in_folder("pictures.bin"));
  for (int i = 0; i < MODELS; i++) {
    const cJSON *job = member(golden->root, models[i].name);
    snprintf(path, sizeof path, "%s/%s.json", folder, models[i].name);
    write_text(path, models[i].text);
    tws_network *network = network_of(models[i].text);
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, models[i].name);
    write_weights(path, network, member(golden->root, "widths"));
    tws_network_destroy(network);
    tws_text text = {0};
    tws_text_add(&text,
                 "{\"optimizer\":{\"type\":\"Adam\",\"params\":{\"lr\":%g,\"betas\":[0.5,0.999],\"weight_decay\":0},"
                 "\"param_groups\":[{\"params\":[\"generator.*\"],\"lr\":%g}]},\"gradient_clipping\":%g}",
                 number(job, "lr"), number(job, "generator_lr"), number(job, "clip"));
    snprintf(path, sizeof path, "%s/%s.config", folder, models[i].name);
    write_text(path, text.data);
    tws_text_free(&text);
  }
}

/* ---- training ---- */

typedef struct curves_of {
  double loss[NAMED][TRAINED], evaluation;
} curves_of;

static void train_model(int model, const char *options, curves_of *out) {
  command_result r = twinspeed(
      "train --quiet --json -m %s/%s.json -c %s/%s.config --data %s/pictures.bin --eval-data "
      "%s/pictures.bin --init-from %s/%s.safetensors --steps %d --threads 1 %s",
      folder, models[model].name, folder, models[model].name, folder, folder, folder, models[model].name, TRAINED,
      options);
  ck_assert_msg(r.status == 0, "%s, %s: %s", models[model].name, options, r.err);
  out->evaluation = read_named_losses(&r, losses, NAMED, TRAINED, TRAINED, out->loss[0]);
}

/* Twenty steps, and the evaluation after them, are at most twice as far from float64 as PyTorch's own in float32. */
START_TEST(losses_are_pytorchs) {
  static const struct {
    int model;
    const char *options;
  } jobs[] = {
      {BATCH_NORM, "--micro-batch 16"},
      {BATCH_NORM, "--micro-batch 16 --stage 2 --set twinspeed.recompute=selective"},
      {BATCH_NORM, "--micro-batch 16 --set twinspeed.recompute=full"},
      {LAYER_NORM, "--micro-batch 16"},
      {LAYER_NORM, "-n 2 --micro-batch 8"},
      {LAYER_NORM, "-n 2 --stage 1 --micro-batch 8"},
      {LAYER_NORM, "-n 4 --stage 1 --micro-batch 4 --set zero_optimization.overlap_comm=true"},
      {LAYER_NORM, "-n 2 --stage 2 --micro-batch 8"},
      {LAYER_NORM, "-n 4 --stage 2 --micro-batch 4 --set zero_optimization.reduce_bucket_size=1000"},
      {LAYER_NORM, "-n 2 --stage 3 --micro-batch 8"},
      {LAYER_NORM, "-n 4 --stage 3 --micro-batch 4 --set zero_optimization.stage3_param_persistence_threshold=50"},
      {LAYER_NORM, "-n 2 --stage 3 --micro-batch 8 --set zero_optimization.stage3_param_persistence_threshold=0"}};
  double most[MODELS] = {0};
  for (size_t j = 0; j < sizeof jobs / sizeof *jobs; j++) {
    const cJSON *want = member(golden->root, models[jobs[j].model].name);
    const cJSON *exact = member(want, "float64"), *rounded = member(want, "float32");
    curves_of got;
    double own = fabs(number(rounded, "evaluation") - number(exact, "evaluation"));
    train_model(jobs[j].model, jobs[j].options, &got);
    double ours = fabs(got.evaluation - number(exact, "evaluation"));
    for (int h = 0; h < NAMED; h++)
      for (int i = 0; i < TRAINED; i++) {
        const double at = cJSON_GetArrayItem(member(exact, losses[h]), i)->valuedouble;
        own = fmax(own, fabs(cJSON_GetArrayItem(member(rounded, losses[h]), i)->valuedouble - at));
        ours = fmax(ours, fabs(got.loss[h][i] - at));
      }
    ck_assert_msg(ours <= 2 * own && ours < 1e-3, "%s, %s: %g, PyTorch %g", models[jobs[j].model].name, jobs[j].options,
                  ours, own);
    most[jobs[j].model] = fmax(most[jobs[j].model], ours / own);
  }
  for (int i = 0; i < MODELS; i++)
    printf("%s: the largest distance from float64 is %.2f times PyTorch's own in float32\n", models[i].name, most[i]);
}
END_TEST

/* ---- gradients ---- */

/* Two networks whose functions have derivatives everywhere, with a third one that no turn trains between them. */
static const char smooth[] =
    "{\"model_type\":\"network\",\"init_std\":0.5,\"input\":{\"pictures\":{\"side\":6,\"channels\":2},\"noise\":{"
    "\"side\":3,\"channels\":2}},\"networks\":[{\"name\":\"g\",\"modules\":[{\"type\":\"transposed_convolution\","
    "\"out\":3,"
    "\"side\":2,\"stride\":2},{\"type\":\"batch_norm\"},{\"type\":\"gelu\"},{\"type\":\"convolution\",\"out\":2,"
    "\"side\":1}]},"
    "{\"name\":\"fixed\",\"modules\":[{\"type\":\"convolution\",\"out\":2,\"side\":1},{\"type\":\"tanh\"}]},"
    "{\"name\":\"d\",\"modules\":[{\"type\":\"convolution\",\"out\":4,\"side\":3},{\"type\":\"batch_norm\"},{\"type\":"
    "\"gelu\"},{\"type\":\"flatten\"},{\"type\":\"linear\",\"out\":1}]},{\"name\":\"e\",\"modules\":[{\"type\":"
    "\"convolution\",\"out\":1,\"side\":6}]}],\"turns\":[{\"train\":\"d\",\"losses\":[{\"name\":"
    "\"real\",\"run\":[\"pictures\",\"d\"],\"target\":1},{\"name\":\"fake\",\"run\":[\"noise\",\"g\",\"fixed\",\"d\"],"
    "\"target\":0}]},{\"train\":\"g\",\"losses\":[{\"name\":\"fooled\",\"run\":[\"noise\",\"g\",\"fixed\",\"d\"],"
    "\"target\":1},{\"name\":\"near\",\"run\":[\"noise\",\"g\",\"e\"],\"target\":0,\"loss\":\"mean_squared_error\"}]}]"
    "}";

enum { SAMPLES = 3 };

/* Returns the sum of the losses of one turn with these weights; the job's learning rate is 0, so that all turns compute
 * with them. */
static double losses_of_turn(hand_job *job, const float *weights, int turn) {
  const tws_network *network = job->train->network;
  double metrics[TWS_METRIC_COUNT], sum = 0;
  hand_loss(job, weights, 1);
  HAND_OK(tws_executor_get(job->executor, TWS_PROGRAM_TRAIN, job->train->metrics, 0, metrics, TWS_METRIC_COUNT, &err));
  for (uint32_t m = 0; m < network->module_count; m++)
    if (network->modules[m].type == TWS_MODULE_LOSS && network->modules[m].forward_turn == turn)
      sum += metrics[tws_loss_slot(network, &network->modules[m])];
  return sum;
}

/* The gradients of a turn are the slopes of its own losses: nothing of other turns is in them, and they pass through
 * networks that are held or never trained. */
START_TEST(gradients_are_slopes_of_their_turns) {
  static const char *const policies[] = {"none", "selective", "full"};
  char config[400];
  hand_job job;
  float pictures[SAMPLES * 6 * 6 * 2], noise[SAMPLES * 3 * 3 * 2];
  int32_t constants[2][SAMPLES];
  tws_network *network = network_of(smooth);
  snprintf(
      config, sizeof config,
      "{\"train_micro_batch_size_per_gpu\":%d,\"gradient_clipping\":0,\"optimizer\":{\"type\":\"AdamW\",\"params\":{"
      "\"lr\":0}},\"zero_optimization\":{\"stage\":%d},\"twinspeed\":{\"sequence_length\":1,\"recompute\":\"%s\"}}",
      SAMPLES, _i, policies[_i % 3]);
  hand_job_begin(&job, network, config);
  ck_assert_int_eq(job.train->optimizer_phases, 2);
  for (uint64_t i = 0; i < sizeof pictures / sizeof *pictures; i++) pictures[i] = (float)tws_random_normal(21, 1, i);
  for (uint64_t i = 0; i < sizeof noise / sizeof *noise; i++) noise[i] = (float)tws_random_normal(21, 2, i);
  for (int i = 0; i < 2 * SAMPLES; i++) constants[i / SAMPLES][i % SAMPLES] = i / SAMPLES;
  for (uint32_t i = 0; i < network->input_count; i++) {
    const tws_network_input *in = &network->input[i];
    hand_input(&job, i,
               in->content == TWS_INPUT_NUMBERS ? (const void *)pictures
               : in->content == TWS_INPUT_NOISE ? (const void *)noise
                                                : (const void *)constants[in->value]);
  }
  const uint64_t total = job.first[network->param_count];
  float *moved = malloc(total * sizeof *moved), *gradients = malloc(total * sizeof *gradients);
  hand_loss(&job, job.weights, 1);
  memcpy(gradients, job.gradients, total * sizeof *gradients);
  for (uint32_t p = 0; p < network->param_count; p++) {
    const tws_param *param = &network->params[p];
    const uint64_t count = job.first[p + 1] - job.first[p];
    const double h = 4e-3;
    double at[2], expected = 0, size = 0;
    if (param->frozen) continue;
    for (int side = 0; side < 2; side++) {
      memcpy(moved, job.weights, total * sizeof *moved);
      expected = size = 0;
      for (uint64_t e = job.first[p]; e < job.first[p + 1]; e++) {
        const double direction = tws_random_normal(9, p, e) / sqrt((double)count);
        moved[e] += (float)((side ? h : -h) * direction);
        expected += direction * gradients[e];
        size += (double)gradients[e] * gradients[e];
      }
      at[side] = losses_of_turn(&job, moved, param->turn);
    }
    const double found = (at[1] - at[0]) / (2 * h), scale = sqrt(size / (double)count) + 1e-4;
    ck_assert_msg(fabs(found - expected) < 0.02 * (fabs(expected) + scale) + 1e-4,
                  "%s: the losses of turn %d change by %g along a direction, the gradient says %g", param->name,
                  param->turn, found, expected);
    ck_assert_msg(size > 0, "%s has no gradient", param->name);
  }
  free(moved);
  free(gradients);
  hand_job_end(&job);
  tws_network_destroy(network);
}
END_TEST

/* ---- the tutorial's file ---- */

/* The sizes of the tutorial's networks, and all verbs that read plans. */
START_TEST(tutorial_is_read_by_all_verbs) {
  static const char *const verbs[] = {"estimate --cluster dgx-a100:1 -n 8 --stage 2",
                                      "simulate --cluster dgx-a100:1 -n 8", "check -n 2 --stage 3"};
  command_result r =
      twinspeed("profile --json --quiet -m %s/../scenarios/networks/dcgan.json --micro-batch 1", TWS_TEST_DIR);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = cJSON_Parse(r.out);
  ck_assert(number(json, "parameters") == 3576704 + 2765568);
  cJSON_Delete(json);
  command_free(&r);
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
    r = twinspeed("%s --quiet -m %s/../scenarios/networks/dcgan.json --micro-batch 16", verbs[i], TWS_TEST_DIR);
    ck_assert_msg(r.status == 0, "%s: %s", verbs[i], r.err);
    command_free(&r);
  }
}
END_TEST

/* A training that is resumed from a checkpoint continues as one that was not interrupted. */
START_TEST(resumed) {
  curves_of whole;
  train_model(BATCH_NORM, "--micro-batch 16", &whole);
  command_result r = twinspeed(
      "train --quiet -m %s/batch_norm.json -c %s/batch_norm.config --data %s/pictures.bin "
      "--init-from %s/batch_norm.safetensors --micro-batch 16 --threads 1 --steps 10 --save "
      "%s/saved",
      folder, folder, folder, folder, folder);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  r = twinspeed(
      "train --quiet --json -m %s/batch_norm.json -c %s/batch_norm.config --data %s/pictures.bin --micro-batch "
      "16 --threads 1 --steps 20 --resume %s/saved",
      folder, folder, folder, folder);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = cJSON_Parse(r.out);
  for (int h = 0; h < NAMED; h++) {
    const cJSON *part = member(member(json, "parts_of_losses"), losses[h]);
    for (int i = 0; i < 10; i++) ck_assert(cJSON_GetArrayItem(part, i)->valuedouble == whole.loss[h][10 + i]);
  }
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* ---- classes ---- */

#define BODY \
  "{\"name\":\"body\",\"modules\":[{\"type\":\"convolution\",\"out\":8,\"side\":4,\"stride\":4},{\"type\":\"gelu\"}]}"
#define HEAD(name)                                                                                    \
  "{\"name\":\"" name                                                                                 \
  "\",\"modules\":[{\"type\":\"convolution\",\"out\":4,\"side\":3},{\"type\":\"flatten\"},{\"type\":" \
  "\"linear\",\"out\":10}]}"
#define CLASSIFIED(networks, turns)                                                                                 \
  "{\"model_type\":\"network\",\"classes\":10,\"input\":{\"pictures\":{\"side\":32,\"channels\":3}},\"networks\":[" \
  "" networks                                                                                                       \
  "],\"turns\":[{\"train\":[\"body\",\"head\"],\"losses\":[{\"name\":\"classes\",\"run\":[\"pictures\","            \
  "\"body\",\"head\"]}]}" turns "]}"

/* A second turn that reads a network of the first one, and trains another, changes none of the first turn's losses. */
START_TEST(turns_are_apart) {
  static const char *const texts[] = {
      CLASSIFIED(BODY "," HEAD("head"), ""),
      CLASSIFIED(
          BODY "," HEAD("head") "," HEAD("probe"),
          ",{\"train\":\"probe\",\"losses\":[{\"name\":\"probed\",\"run\":[\"pictures\",\"body\",\"probe\"]}]}")};
  double loss[2][TRAINED];
  for (int i = 0; i < 2; i++) {
    write_text(in_folder("classified.json"), texts[i]);
    command_result r = twinspeed(
        "train --quiet --json -m %s/classified.json --data %s/pictures.bin --micro-batch 8 -n 2 "
        "--stage 2 --steps %d --threads 1 --set gradient_clipping=0.1",
        folder, folder, TRAINED);
    ck_assert_msg(r.status == 0, "%s", r.err);
    cJSON *json = cJSON_Parse(r.out);
    const cJSON *list = i == 0 ? member(json, "losses") : member(member(json, "parts_of_losses"), "classes");
    for (int step = 0; step < TRAINED; step++) loss[i][step] = cJSON_GetArrayItem(list, step)->valuedouble;
    cJSON_Delete(json);
    command_free(&r);
  }
  ck_assert(loss[0][TRAINED - 1] < loss[0][0]);
  for (int step = 0; step < TRAINED; step++)
    ck_assert_msg(loss[0][step] == loss[1][step], "step %d: %.17g and %.17g", step + 1, loss[0][step], loss[1][step]);
}
END_TEST

/* ---- refusals ---- */

#define FILE_OF(networks, turns)                                                                           \
  "{\"model_type\":\"network\",\"input\":{\"pictures\":{\"side\":6,\"channels\":2},\"noise\":{\"side\":3," \
  "\"channels\":2}},"                                                                                      \
  "\"networks\":[" networks "],\"turns\":[" turns "]}"
#define G "{\"name\":\"g\",\"modules\":[{\"type\":\"transposed_convolution\",\"out\":2,\"side\":2,\"stride\":2}]}"
#define D "{\"name\":\"d\",\"modules\":[{\"type\":\"convolution\",\"out\":1,\"side\":6}]}"
#define REAL "{\"name\":\"real\",\"run\":[\"pictures\",\"d\"],\"target\":1}"
#define FAKE "{\"name\":\"fake\",\"run\":[\"noise\",\"g\",\"d\"],\"target\":0}"
#define TURN(train, losses) "{\"train\":" train ",\"losses\":[" losses "]}"
#define FOOLED TURN("\"g\"", "{\"name\":\"fooled\",\"run\":[\"noise\",\"g\",\"d\"],\"target\":1}")

START_TEST(faults_are_told) {
  static const char *const wrong[][2] = {
      {FILE_OF("", TURN("\"d\"", REAL)), "\"networks\" is no list"},
      {FILE_OF(D, ""), "\"turns\" is no list"},
      {FILE_OF("3", TURN("\"d\"", REAL)), "a network is an object"},
      {FILE_OF(D "," D, TURN("\"d\"", REAL)), "\"d\" names something else"},
      {FILE_OF("{\"name\":\"noise\",\"modules\":[]}", TURN("\"d\"", REAL)), "\"noise\" names something else"},
      {FILE_OF("{\"name\":\"a.b\",\"modules\":[]}", TURN("\"d\"", REAL)), "is no name for a network"},
      {FILE_OF("{\"name\":\"d\",\"modules\":[]}", TURN("\"d\"", REAL)), "no list of modules"},
      {FILE_OF(D, TURN("\"e\"", REAL)), "names no network"},
      {FILE_OF(D, TURN("[]", REAL)), "trains no network"},
      {FILE_OF(D, "3"), "trains no network"},
      {FILE_OF(D, TURN("\"d\"", "")), "has no losses"},
      {FILE_OF(D, TURN("[\"d\",\"d\"]", REAL)), "d is trained twice"},
      {FILE_OF(D, TURN("\"d\"", REAL) "," TURN("\"d\"", REAL)), "d is trained twice"},
      {FILE_OF(D, TURN("\"d\"", REAL "," REAL)), "two losses have the name real"},
      {FILE_OF(D, TURN("\"d\"", "{\"name\":\"d\",\"run\":[\"pictures\",\"d\"],\"target\":1}")),
       "the name of the network d"},
      {FILE_OF(D, TURN("\"d\"", "{\"name\":\"r\",\"run\":[\"d\"],\"target\":1}")), "no list of an input"},
      {FILE_OF(D, TURN("\"d\"", "{\"name\":\"r\",\"run\":[\"d\",\"d\"],\"target\":1}")), "which is no input"},
      {FILE_OF(D, TURN("\"d\"", "{\"name\":\"r\",\"run\":[\"pictures\",\"x\"],\"target\":1}")), "which is no network"},
      {FILE_OF(D, TURN("\"d\"", "{\"name\":\"r\",\"run\":[\"pictures\",\"d\"],\"target\":2}")), "target"},
      {FILE_OF(D, TURN("\"d\"", "{\"name\":\"r\",\"run\":[\"pictures\",\"d\"]}")), "there are no \"classes\""},
      {FILE_OF(D,
               TURN("\"d\"", "{\"name\":\"r\",\"run\":[\"pictures\",\"d\"],\"target\":1,\"loss\":\"cross_entropy\"}")),
       "compares scores of classes with a number"},
      {FILE_OF(D, TURN("\"d\"", "{\"name\":\"r\",\"run\":[\"pictures\",\"d\"],\"target\":1,\"loss\":\"hinge\"}")),
       "no loss is \"hinge\""},
      {FILE_OF(D, TURN("\"d\"", "{\"name\":\"r\",\"run\":[\"pictures\",\"d\"],\"targte\":1}")), "unknown key"},
      {FILE_OF(D "," G, TURN("\"d\"", REAL)), "no loss runs g"},
      {FILE_OF(D "," G, TURN("\"d\"", REAL "," FAKE) "," TURN("\"g\"",
                                                              "{\"name\":\"x\",\"run\":[\"pictures\",\"d\"],"
                                                              "\"target\":1}")),
       "runs no network that its turn trains"},
      {FILE_OF(D "," G, TURN("[\"d\",\"g\"]", REAL)), "trains g, and none of its losses runs it"},
      {FILE_OF(D "," G, TURN("\"d\"", REAL "," FAKE) "," TURN("\"g\"",
                                                              "{\"name\":\"x\",\"run\":[\"noise\",\"g\",\"d\","
                                                              "\"g\"],\"target\":1}")),
       "in the loss x"},
      {FILE_OF("{\"name\":\"d\",\"modules\":[{\"type\":\"convolution\",\"out\":3,\"side\":6}]}", TURN("\"d\"", REAL)),
       "compares 3 outputs of d"},
      {FILE_OF(D "," G, TURN("\"d\"", REAL ",{\"name\":\"again\",\"run\":[\"pictures\",\"d\"],\"target\":0}")),
       "overwrites an output"},
      {FILE_OF(
           "{\"name\":\"d\",\"modules\":[{\"type\":\"convolution\",\"out\":1,\"side\":6},{\"type\":\"flatten\"}]}," G,
           TURN("\"d\"", "{\"name\":\"x\",\"run\":[\"pictures\",\"d\",\"g\"],\"target\":1}")),
       "rows of pictures instead of pixels"},
      {FILE_OF("{\"name\":\"d\",\"modules\":[{\"type\":\"convolution\",\"out\":1,\"side\":6},{\"type\":\"flatten\"},{"
               "\"type\":\"experts\",\"experts\":2}]}",
               TURN("\"d\"", REAL)),
       "no experts yet"},
      {"{\"model_type\":\"network\",\"input\":{\"noise\":{\"side\":1,\"channels\":1}},\"networks\":[" D
       "],\"turns\":[" TURN("\"d\"", REAL) "]}",
       "read pictures"},
      {"{\"model_type\":\"network\",\"input\":{\"pictures\":{\"side\":6,\"channels\":2}},\"networks\":[" D "," G
       "],\"turns\":[" TURN("\"d\"", REAL "," FAKE) "," FOOLED "]}",
       "runs \"noise\" first"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_refused(wrong[i][0], wrong[i][1]);
}
END_TEST

/* Files of which one number or name is another one: each is read, or refused with its place and a remedy. */
START_TEST(changed_files_are_read_or_refused) {
  ck_assert_int_ge(count_refused_changes(models[BATCH_NORM].text, 77, 400), 250);
}
END_TEST

START_TEST(options_that_do_not_go_with_turns) {
  static const char *const refused[][2] = {
      {"-n 2 --pp 2", "a pipeline"},
      {"-n 2 --tp 2", "tensor ranks"},
      {"--accumulation 2", "gradient accumulation"},
      {"--dtype fp16", "float16"},
      {"-n 2 --stage 2 --set zero_optimization.offload_optimizer.device=cpu", "offloading"},
      {"-n 2 --set optimizer.type=OneBitAdam", "compress gradients"},
      {"--set optimizer.type=Adafactor", "Adafactor"}};
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    command_result r = twinspeed("estimate --quiet -m %s/batch_norm.json --micro-batch 4 %s", folder, refused[i][0]);
    ck_assert_msg(r.status == 3, "%s: status %d, %s", refused[i][0], r.status, r.err);
    ck_assert_msg(strstr(r.err, "trained alternately do not go with") && strstr(r.err, refused[i][1]), "%s: %s",
                  refused[i][0], r.err);
    command_free(&r);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("turns");
  TCase *tests = tcase_create("turns");
  tcase_add_unchecked_fixture(tests, write_files, NULL);
  tcase_add_test(tests, losses_are_pytorchs);
  tcase_add_loop_test(tests, gradients_are_slopes_of_their_turns, 0, 4);
  tcase_add_test(tests, tutorial_is_read_by_all_verbs);
  tcase_add_test(tests, resumed);
  tcase_add_test(tests, turns_are_apart);
  tcase_add_test(tests, faults_are_told);
  tcase_add_test(tests, changed_files_are_read_or_refused);
  tcase_add_test(tests, options_that_do_not_go_with_turns);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
