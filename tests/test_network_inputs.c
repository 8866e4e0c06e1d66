/* Networks that read several pictures of a record or noise, and have several weighted losses of several labels: losses
 * against PyTorch's, gradients against finite differences, the factor of a weight, and faulty files. */
/* ctest: engine mpi */

#include "tests/answers.h"
#include "tests/hand_network.h"
#include "tests/members.h"
#include "tests/network_weights.h"
#include "tests/train.h"

enum { STEPS_ALL = 20, NAMED = 3, COARSE = 4, RIGHT_SIDE = 16 };
static const char *const losses[NAMED] = {"coarse", "early", "fine"};
static tws_json *golden;

/* Sixteen records: the classes i mod 10 and i mod 4, and pixels of both pictures by a formula. */
static void write_records(const char *path) {
  FILE *file = fopen(path, "wb");
  for (int i = 0; i < PICTURES; i++) {
    fputc(i % CLASSES, file);
    fputc(i % COARSE, file);
    for (uint64_t k = 0; k < SIDE * SIDE * CHANNELS + RIGHT_SIDE * RIGHT_SIDE; k++)
      fputc((int)(word_of(k, 1000 + (uint64_t)i) % 256), file);
  }
  fclose(file);
}

static void write_files(void) {
  golden = golden_file("network_inputs.json");
  write_records(in_folder("records.bin"));
  write_pictures(in_folder("pictures.bin"));
  write_text(in_folder("two.json"), TWO_PICTURES);
  tws_network *network = network_of(TWO_PICTURES);
  write_weights(in_folder("two.safetensors"), network, member(golden->root, "widths"));
  tws_network_destroy(network);
}

/* ---- training ---- */

typedef struct curves_of {
  double loss[NAMED][STEPS_ALL], evaluation;
} curves_of;

static void train_two(const char *options, int steps, curves_of *out) {
  command_result r = twinspeed(
      "train --quiet --json -m %s/two.json --data %s/records.bin --eval-data %s/records.bin --init-from "
      "%s/two.safetensors --steps %d --threads 1 --set optimizer.type=SGD --set optimizer.params.lr=0.01 --set "
      "optimizer.params.momentum=0.9 --set gradient_clipping=0 %s",
      folder, folder, folder, folder, steps, options);
  ck_assert_msg(r.status == 0, "%s: %s", options, r.err);
  out->evaluation = read_named_losses(&r, losses, NAMED, steps, STEPS_ALL, out->loss[0]);
}

static double exact_at(const char *type, int loss, int step) {
  return cJSON_GetArrayItem(member(member(golden->root, type), losses[loss]), step)->valuedouble;
}

/* Twenty steps, and the evaluation that follows nineteen, are at most twice as far from float64 as PyTorch's own in
 * float32, whatever divides the job. */
START_TEST(losses_are_pytorchs) {
  static const char *const jobs[] = {"--micro-batch 16",
                                     "--micro-batch 4 --accumulation 4 --set twinspeed.recompute=full",
                                     "--micro-batch 16 --set twinspeed.recompute=selective",
                                     "-n 2 --stage 1 --micro-batch 4 --accumulation 2",
                                     "-n 2 --stage 2 --micro-batch 8",
                                     "-n 4 --stage 3 --micro-batch 4",
                                     "-n 2 --tp 2 --micro-batch 16",
                                     "-n 2 --pp 2 --micro-batch 4 --accumulation 4",
                                     "-n 4 --pp 2 --stage 1 --micro-batch 4 --accumulation 2"};
  double own = 0, evaluation = 0;
  for (int h = 0; h < NAMED; h++)
    for (int i = 0; i < STEPS_ALL; i++) own = fmax(own, fabs(exact_at("float32", h, i) - exact_at("float64", h, i)));
  for (int h = 0; h < NAMED; h++) evaluation += exact_at("float64", h, STEPS_ALL - 1);
  for (size_t j = 0; j < sizeof jobs / sizeof *jobs; j++) {
    const int steps = STEPS_ALL - (int)(j % 2);
    curves_of got;
    double ours = 0;
    train_two(jobs[j], steps, &got);
    for (int h = 0; h < NAMED; h++)
      for (int i = 0; i < steps; i++) ours = fmax(ours, fabs(got.loss[h][i] - exact_at("float64", h, i)));
    if (steps < STEPS_ALL) ours = fmax(ours, fabs(got.evaluation - evaluation) / NAMED);
    ck_assert_msg(ours <= 2 * own && ours < 1e-3, "%s: %g, PyTorch %g", jobs[j], ours, own);
  }
}
END_TEST

/* ---- weights ---- */

#define CRITICS(weight)                                                                                          \
  "{\"model_type\":\"network\",\"classes\":10,\"input\":{\"pictures\":{\"side\":32,\"channels\":3},\"noise\":{"  \
  "\"side\":32,\"channels\":3}},\"networks\":[{\"name\":\"a\",\"modules\":[{\"type\":\"convolution\",\"out\":1," \
  "\"side\":32}]},{\"name\":\"b\",\"modules\":[{\"type\":\"convolution\",\"out\":4,\"side\":32},{\"type\":"      \
  "\"flatten\"},{\"type\":\"linear\",\"out\":10}]}],\"turns\":[{\"train\":\"a\",\"losses\":[{\"name\":\"real\"," \
  "\"run\":[\"pictures\",\"a\"],\"target\":1" weight                                                             \
  "},{\"name\":\"made\",\"run\":[\"noise\",\"a\"],\"target\":0" weight                                           \
  "}]},{\"train\":\"b\",\"losses\":[{\"name\":\"class\",\"run\":[\"pictures\",\"b\"]" weight "}]}]}"

/* Losses of weight 2 with half the learning rate are twice those of weight 1, bit by bit. */
START_TEST(weights_are_factors) {
  static const char *const texts[] = {CRITICS(""), CRITICS(",\"weight\":2")}, *const rates[] = {"0.5", "0.25"},
                           *const named[] = {"real", "made", "class"};
  double loss[2][3][5];
  for (int i = 0; i < 2; i++) {
    write_text(in_folder("critics.json"), texts[i]);
    command_result r = twinspeed(
        "train --quiet --json -m %s/critics.json --data %s/pictures.bin --micro-batch 8 -n 2 --stage 2 --steps 5 "
        "--threads 1 --set optimizer.type=SGD --set optimizer.params.lr=%s --set gradient_clipping=0",
        folder, folder, rates[i]);
    ck_assert_msg(r.status == 0, "%s", r.err);
    cJSON *json = cJSON_Parse(r.out);
    for (int h = 0; h < 3; h++)
      for (int s = 0; s < 5; s++)
        loss[i][h][s] = cJSON_GetArrayItem(member(member(json, "parts_of_losses"), named[h]), s)->valuedouble;
    cJSON_Delete(json);
    command_free(&r);
  }
  for (int h = 0; h < 3; h++)
    for (int s = 0; s < 5; s++)
      ck_assert_msg(2 * loss[0][h][s] == loss[1][h][s], "%s, step %d: %.17g and %.17g", named[h], s + 1, loss[0][h][s],
                    loss[1][h][s]);
  ck_assert(loss[0][2][4] != loss[0][2][0]);
}
END_TEST

/* ---- gradients ---- */

/* A picture with noise, and losses of two places; all functions have derivatives everywhere. */
static const char noisy[] =
    "{\"model_type\":\"network\",\"init_std\":0.5,\"input\":{\"pictures\":[{\"name\":\"a\",\"side\":5,\"channels\":2},"
    "{\"name\":\"b\",\"side\":3,\"channels\":1}],\"noise\":{\"side\":5,\"channels\":1}},\"classes\":{\"x\":3,\"y\":2},"
    "\"modules\":[{\"name\":\"ca\",\"type\":\"convolution\",\"input\":\"a\",\"out\":3,\"side\":3},"
    "{\"name\":\"cn\",\"type\":\"convolution\",\"input\":\"noise\",\"out\":3,\"side\":3,\"bias\":false},"
    "{\"name\":\"s\",\"type\":\"add\",\"input\":[\"ca\",\"cn\"]},{\"name\":\"t\",\"type\":\"gelu\"},"
    "{\"name\":\"cb\",\"type\":\"convolution\",\"input\":\"b\",\"out\":3,\"side\":1},{\"name\":\"g\",\"type\":"
    "\"sigmoid\"},{\"type\":\"add\",\"input\":[\"t\",\"g\"]},{\"name\":\"p\",\"type\":\"global_average_pool\"},"
    "{\"name\":\"first\",\"type\":\"linear\",\"out\":1},{\"name\":\"last\",\"type\":\"linear\",\"input\":\"p\",\"out\":"
    "3}],\"losses\":[{\"name\":\"of y\",\"of\":\"first\",\"label\":\"y\",\"loss\":\"binary_cross_entropy\",\"weight\":"
    "2.5},{\"name\":\"of x\",\"of\":\"last\",\"label\":\"x\",\"weight\":0.25}]}";

START_TEST(gradients_are_slopes) {
  enum { SAMPLES = 3 };
  static const char *const policies[] = {"none", "selective", "full", "operations"};
  char config[400];
  float numbers[3][SAMPLES * 5 * 5 * 2];
  int32_t labels[2][SAMPLES];
  hand_job job;
  tws_network *network = network_of(noisy);
  snprintf(config, sizeof config,
           "{\"train_micro_batch_size_per_gpu\":%d,\"gradient_clipping\":0,\"zero_optimization\":{\"stage\":%d},"
           "\"twinspeed\":{\"sequence_length\":1,\"recompute\":\"%s\"}}",
           SAMPLES, _i, policies[_i]);
  hand_job_begin(&job, network, config);
  ck_assert_int_eq(network->input_count, 5);
  for (int k = 0; k < 3; k++)
    for (uint64_t i = 0; i < sizeof *numbers / sizeof **numbers; i++)
      numbers[k][i] = (float)tws_random_normal(31, (uint64_t)k, i);
  for (int i = 0; i < SAMPLES; i++) labels[0][i] = i % 3, labels[1][i] = i % 2;
  for (uint32_t i = 0, k = 0; i < network->input_count; i++) {
    const tws_network_input *in = &network->input[i];
    hand_input(&job, i,
               in->content == TWS_INPUT_TARGETS ? (const void *)labels[in->value] : (const void *)numbers[k++]);
  }
  hand_differentiate_by(&job, 0.02, 4e-3, 1e-4);
  hand_job_end(&job);
  tws_network_destroy(network);
}
END_TEST

/* ---- refusals ---- */

#define OF(input, classes, modules, rest) \
  "{\"model_type\":\"network\",\"input\":{" input "},\"classes\":" classes ",\"modules\":[" modules "]" rest "}"
#define ONE "\"pictures\":{\"side\":4,\"channels\":1}"
#define TWO "\"pictures\":[{\"name\":\"u\",\"side\":4,\"channels\":1},{\"name\":\"v\",\"side\":4,\"channels\":2}]"
#define CONV(name, input) \
  "{\"name\":\"" name "\",\"type\":\"convolution\",\"out\":3,\"side\":4,\"input\":\"" input "\"},"
#define HEAD "{\"name\":\"f\",\"type\":\"flatten\"},{\"name\":\"h\",\"type\":\"linear\",\"out\":3}"
#define BOTH CONV("a", "u") CONV("b", "v") "{\"type\":\"add\",\"input\":[\"a\",\"b\"]}," HEAD
#define LOSSES(list) ",\"losses\":[" list "]"
#define H "{\"name\":\"main\",\"of\":\"h\"}"

START_TEST(faults_are_told) {
  static const char *const wrong[][2] = {
      {OF("\"pictures\":[]", "3", HEAD, ""), "no list of 1 to 3 pictures"},
      {OF("\"pictures\":[3]", "3", HEAD, ""), "a picture is no object"},
      {OF("\"pictures\":[{\"side\":4,\"channels\":1}]", "3", HEAD, ""), "name"},
      {OF("\"pictures\":[{\"name\":\"input\",\"side\":4,\"channels\":1}]", "3", HEAD, ""), "is no name for an input"},
      {OF("\"pictures\":[{\"name\":\"u\",\"side\":4,\"channels\":1},{\"name\":\"u\",\"side\":4,\"channels\":1}]", "3",
          HEAD, ""),
       "two inputs have the name u"},
      {OF("\"pictures\":[{\"name\":\"noise\",\"side\":4,\"channels\":1}],\"noise\":{\"side\":4,\"channels\":1}", "3",
          HEAD, ""),
       "noise is the name"},
      {OF("\"noise\":{\"side\":4,\"channels\":1}", "3", HEAD, ""), "has to say what the network reads"},
      {OF(ONE ",\"tokens\":{\"vocabulary\":7,\"positions\":4}", "3", HEAD, ""), "unknown key"},
      {OF(TWO, "3", CONV("a", "u") HEAD, ""), "no module reads the input v"},
      {OF(TWO, "3", CONV("a", "w") HEAD, ""), "no earlier module has the name \"w\""},
      {OF(TWO, "3", CONV("v", "u") HEAD, ""), "an input of the network has the name v"},
      {OF(TWO, "3", "{\"type\":\"relu\",\"input\":\"v\"}," HEAD, ""), "only a convolution does"},
      {OF(TWO, "{}", BOTH, ""), "no 1 to 4 labels"},
      {OF(TWO, "{\"x\":1}", BOTH, ""), "must be"},
      {OF(TWO, "{\"x\":3,\"y\":257}", BOTH, ""), "must be"},
      {OF(TWO, "{\"x\":3,\"y\":4}", BOTH, ""), "no \"losses\" say which of them"},
      {OF(TWO, "3", BOTH, ",\"losses\":{}"), "no list of 1 to 4 losses"},
      {OF(TWO, "3", BOTH, ",\"loss\":\"cross_entropy\"" LOSSES(H)), "both \"loss\" and \"losses\""},
      {OF(TWO, "3", BOTH, LOSSES("3")), "a loss is an object"},
      {OF(TWO, "3", BOTH, LOSSES("{\"of\":\"h\"}")), "name"},
      {OF(TWO, "3", BOTH, LOSSES("{\"name\":\"a,b\",\"of\":\"h\"}")), "is no name for a loss"},
      {OF(TWO, "3", BOTH, LOSSES("{\"name\":\"x\",\"of\":\"u\"}")), "which is no module"},
      {OF(TWO, "3", BOTH, LOSSES("{\"name\":\"x\",\"of\":\"f\"}")), "overwrites the output of f, which h reads"},
      {OF(TWO, "3", BOTH, LOSSES(H ",{\"name\":\"x\",\"of\":\"h\"}")), "which another loss reads"},
      {OF(TWO, "3", BOTH, LOSSES(H "," H)), "two losses have the name main"},
      {OF(TWO, "3", BOTH, LOSSES("{\"name\":\"x\",\"of\":\"h\",\"weight\":0}")), "must be"},
      {OF(TWO, "3", BOTH, LOSSES("{\"name\":\"x\",\"of\":\"h\",\"weight\":\"2\"}")), "must be"},
      {OF(TWO, "3", BOTH, LOSSES("{\"name\":\"x\",\"of\":\"h\",\"label\":\"x\"}")), "have no names here"},
      {OF(TWO, "{\"x\":3,\"y\":4}", BOTH, LOSSES(H)), "label"},
      {OF(TWO, "{\"x\":3,\"y\":4}", BOTH, LOSSES("{\"name\":\"m\",\"of\":\"h\",\"label\":\"z\"}")),
       "names no label \"z\""},
      {OF(TWO, "{\"x\":3,\"y\":4}", BOTH, LOSSES("{\"name\":\"m\",\"of\":\"h\",\"label\":\"y\"}")),
       "has 3 outputs, and there are 4 classes"},
      {OF(TWO, "3", BOTH ",{\"name\":\"k\",\"type\":\"linear\",\"input\":\"f\",\"out\":3}", LOSSES(H)),
       "no loss reads the output of k"},
      {OF(TWO, "3", BOTH, LOSSES(H ",{\"name\":\"x\",\"of\":\"b\",\"target\":1}")), "unknown key"},
      {OF("\"tokens\":{\"vocabulary\":7,\"positions\":4}", "3", "{\"type\":\"embedding\",\"width\":7}", ""),
       "has no \"classes\""},
      {"{\"model_type\":\"network\",\"input\":{\"tokens\":{\"vocabulary\":7,\"positions\":4}},\"losses\":[" H
       "],\"modules\":[{\"type\":\"embedding\",\"width\":7}]}",
       "has no \"losses\""}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_refused(wrong[i][0], wrong[i][1]);
}
END_TEST

/* Files of which one number, name or bracket is another one: each is read, or refused with its place and a remedy. */
START_TEST(changed_files_are_read_or_refused) {
  ck_assert_int_ge(count_refused_changes(noisy, 78, 400), 250);
}
END_TEST

/* Records of another size, or with a class that a label does not have, are refused. */
START_TEST(wrong_records_are_refused) {
  command_result r =
      twinspeed("train --quiet -m %s/two.json --data %s/pictures.bin --micro-batch 4 --steps 1", folder, folder);
  ck_assert_int_eq(r.status, 3);
  ck_assert_msg(strstr(r.err, "records of 3330 bytes, which are 2 labels and 2 pictures") != NULL, "%s", r.err);
  command_free(&r);
  FILE *file = fopen(in_folder("records.bin"), "r+b");
  ck_assert(file && fseek(file, 3330 * 2 + 1, SEEK_SET) == 0 && fputc(COARSE, file) == COARSE && fclose(file) == 0);
  r = twinspeed("train --quiet -m %s/two.json --data %s/records.bin --micro-batch 4 --steps 1", folder, folder);
  ck_assert_int_eq(r.status, 3);
  ck_assert_msg(strstr(r.err, "picture 2 is of class 4 by label 2, and the model has 4 classes") != NULL, "%s", r.err);
  command_free(&r);
  write_records(in_folder("records.bin"));
}
END_TEST

int main(void) {
  Suite *suite = suite_create("network_inputs");
  TCase *tests = tcase_create("network_inputs");
  tcase_add_unchecked_fixture(tests, write_files, NULL);
  tcase_add_test(tests, losses_are_pytorchs);
  tcase_add_test(tests, weights_are_factors);
  tcase_add_loop_test(tests, gradients_are_slopes, 0, 4);
  tcase_add_test(tests, faults_are_told);
  tcase_add_test(tests, changed_files_are_read_or_refused);
  tcase_add_test(tests, wrong_records_are_refused);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
