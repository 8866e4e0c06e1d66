/* Networks that are described in C through twinspeed.h: their texts are the network files of scenarios/networks, the
 * example trains as the program trains the file, and faults have a status, a place and a remedy. */
/* ctest: library ranks_library mpi */
#include <check.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "library/twinspeed.h"
#include "tests/members.h"
#include "tests/network_files.h"
#include "tests/train.h"

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))
#define LIST(array) (array), COUNT(array)

/* ---- the same networks as files ---- */

#define UP(out) \
  { .type = "transposed_convolution", .keys = "out=" out ", side=4, stride=2, padding=1, bias=false" }
#define DOWN(out) \
  { .type = "convolution", .keys = "out=" out ", side=4, stride=2, padding=1, bias=false" }
#define NORM \
  { .type = "batch_norm" }
#define LEAKY \
  { .type = "leaky_relu", .keys = "slope=0.2" }
static const twinspeed_module generator[] = {{.type = "transposed_convolution", .keys = "out=512,side=4,bias=false"},
                                             NORM,
                                             {.type = "relu"},
                                             UP("256"),
                                             NORM,
                                             {.type = "relu"},
                                             UP("128"),
                                             NORM,
                                             {.type = "relu"},
                                             UP("64"),
                                             NORM,
                                             {.type = "relu"},
                                             UP("3"),
                                             {.type = "tanh"}};
static const twinspeed_module discriminator[] = {
    DOWN("64"), LEAKY, DOWN("128"), NORM, LEAKY, DOWN("256"),
    NORM,       LEAKY, DOWN("512"), NORM, LEAKY, {.type = "convolution", .keys = "out=1, side=4, bias=false"}};
static const char *const real_run[] = {"pictures", "discriminator"},
                         *const fake_run[] = {"noise", "generator", "discriminator"},
                         *const trained[] = {"discriminator", "generator"};
static const twinspeed_loss first_losses[] = {{.name = "real", .run = real_run, .run_count = 2, .keys = "target=1"},
                                              {.name = "fake", .run = fake_run, .run_count = 3, .keys = "target=0"}},
                            second_losses[] = {{.name = "fooled", .run = fake_run, .run_count = 3, .keys = "target=1"}};
static const twinspeed_subnetwork networks[] = {{"generator", LIST(generator)}, {"discriminator", LIST(discriminator)}};
static const twinspeed_turn turns[] = {{&trained[0], 1, LIST(first_losses)}, {&trained[1], 1, LIST(second_losses)}};
static const twinspeed_picture large = {.side = 64, .channels = 3};

static const twinspeed_label labels[] = {{"coarse", 20}, {"fine", 100}};
static const twinspeed_picture small = {.side = 32, .channels = 3};
#define SAME(out) "out=" out ", side=3, padding=1, bias=false"
static const twinspeed_module two_labels[] = {
    {.type = "convolution", .name = "conv1", .keys = SAME("32")},
    {.type = "batch_norm", .name = "bn1"},
    {.type = "relu"},
    {.type = "max_pool", .keys = "side=2"},
    {.type = "convolution", .name = "conv2", .keys = SAME("64")},
    {.type = "batch_norm", .name = "bn2"},
    {.type = "relu"},
    {.type = "max_pool", .name = "body", .keys = "side=2"},
    {.type = "global_average_pool", .name = "early"},
    {.type = "linear", .name = "early_scores", .keys = "out=100"},
    {.type = "convolution", .name = "conv3", .input = {"body"}, .keys = SAME("128")},
    {.type = "batch_norm", .name = "bn3"},
    {.type = "relu"},
    {.type = "global_average_pool", .name = "features"},
    {.type = "linear", .name = "coarse_scores", .keys = "out=20"},
    {.type = "linear", .name = "fine_scores", .input = {"features"}, .keys = "out=100"}};
static const twinspeed_loss weighted[] = {
    {.name = "early", .of = "early_scores", .keys = "label=fine, weight=0.3"},
    {.name = "coarse", .of = "coarse_scores", .keys = " label = coarse , weight=0.5"},
    {.name = "fine", .of = "fine_scores", .keys = "label=fine"}};

/* A network of tokens with a block and a sum. */
static const twinspeed_module block[] = {{.type = "layer_norm", .name = "n"},
                                         {.type = "self_attention", .name = "t", .keys = "heads=2, causal=true"}};
static const twinspeed_module texts[] = {{.type = "embedding", .name = "e", .keys = "width=8, positions=true"},
                                         {.name = "block", .repeat = 3, .modules = block, .module_count = 2},
                                         {.type = "add", .input = {"e", "block.2.t"}},
                                         {.type = "linear", .keys = "out=11"}};
static const char texts_file[] =
    "{\"model_type\":\"network\",\"input\":{\"tokens\":{\"vocabulary\":11,\"positions\":5}},\"init_std\":0.5,"
    "\"modules\":[{\"type\":\"embedding\",\"name\":\"e\",\"width\":8,\"positions\":true},{\"repeat\":3,\"name\":"
    "\"block\",\"modules\":[{\"type\":\"layer_norm\",\"name\":\"n\"},{\"type\":\"self_attention\",\"name\":\"t\","
    "\"heads\":2,\"causal\":true}]},{\"type\":\"add\",\"input\":[\"e\",\"block.2.t\"]},{\"type\":\"linear\",\"out\":"
    "11}]}";

/* Describes network `i`; returns the name of its file, or NULL if its text is texts_file. */
static const char *describe(int i, twinspeed_network *n) {
  twinspeed_network_init(n);
  if (i == 0) {
    n->pictures = &large, n->picture_count = 1;
    n->noise = (twinspeed_picture){.side = 1, .channels = 100};
    n->networks = networks, n->network_count = COUNT(networks);
    n->turns = turns, n->turn_count = COUNT(turns);
    n->keys = "init_std=0.02";
    return "dcgan.json";
  }
  if (i == 1) {
    n->pictures = &small, n->picture_count = 1;
    n->labels = labels, n->label_count = COUNT(labels);
    n->modules = two_labels, n->module_count = COUNT(two_labels);
    n->losses = weighted, n->loss_count = COUNT(weighted);
    return "cifar100.json";
  }
  n->vocabulary = 11, n->positions = 5;
  n->modules = texts, n->module_count = COUNT(texts);
  n->keys = "init_std=0.5";
  return NULL;
}

/* Replaces lists of one trained network by its name, as files have it, and leaves the description out. */
static void unify(cJSON *root) {
  cJSON *turn;
  cJSON_DeleteItemFromObject(root, "name");
  cJSON_ArrayForEach(turn, cJSON_GetObjectItem(root, "turns")) {
    cJSON *train = cJSON_GetObjectItem(turn, "train");
    if (cJSON_IsArray(train) && cJSON_GetArraySize(train) == 1)
      cJSON_ReplaceItemInObject(turn, "train", cJSON_CreateString(cJSON_GetArrayItem(train, 0)->valuestring));
  }
}

enum { DESCRIBED = 3 };
START_TEST(texts_are_the_files) {
  twinspeed_network network;
  twinspeed_options options;
  twinspeed_error error;
  twinspeed_estimate answer[2];
  char *text, path[600];
  const char *name = describe(_i, &network);
  ck_assert_msg(twinspeed_network_text(&network, &text, &error) == TWINSPEED_OK, "%s", error.message);
  snprintf(path, sizeof path, "%s/%s", folder, "texts.json");
  if (name)
    snprintf(path, sizeof path, "%s/scenarios/networks/%s", TWS_SOURCE_DIR, name);
  else
    write_text(path, texts_file);
  tws_json *file;
  tws_error err = {0};
  ck_assert(tws_json_read(path, &file, &err) == TWS_OK);
  cJSON *root = cJSON_Parse(text);
  ck_assert_ptr_nonnull(root);
  unify(root);
  unify(file->root);
  ck_assert_msg(cJSON_Compare(root, file->root, 1), "%s: %s", path, text);
  cJSON_Delete(root);
  tws_json_destroy(file);
  for (int i = 0; i < 2; i++) {
    twinspeed_job *job;
    twinspeed_options_init(&options);
    options.model = i ? path : text;
    options.cluster = "dgx-a100";
    options.stage = 2;
    options.micro_batch = 4;
    ck_assert_msg(twinspeed_open(&options, &job, &error) == TWINSPEED_OK, "%s", error.message);
    ck_assert_msg(twinspeed_estimate_job(job, &answer[i], &error) == TWINSPEED_OK, "%s", error.message);
    twinspeed_close(job);
  }
  ck_assert_double_eq(answer[0].step_s, answer[1].step_s);
  ck_assert_double_eq(answer[0].device_need, answer[1].device_need);
  twinspeed_free(text);
}
END_TEST

/* library/examples/network.c describes the network of scenarios/networks/cifar10.json, and has its losses. */
START_TEST(the_example_trains_as_the_file) {
  write_pictures(in_folder("pictures.bin"));
  command_result ours =
      twinspeed("launch --quiet -n 1 --threads 1 -- %s/tests/example_network %s/pictures.bin", TWS_BUILD_DIR, folder);
  ck_assert_msg(ours.status == 0, "%s%s", ours.out, ours.err);
  ck_assert_msg(strncmp(ours.out, "62006 parameters\n", 17) == 0, "%s", ours.out);
  command_result r = twinspeed(
      "train --quiet --json -m %s/scenarios/networks/cifar10.json --data %s/pictures.bin --micro-batch 8 --steps 5 "
      "--threads 1",
      TWS_SOURCE_DIR, folder);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = cJSON_Parse(r.out);
  for (int i = 0; i < 5; i++) {
    char line[80];
    snprintf(line, sizeof line, "step %d: loss %.9g\n", i + 1,
             cJSON_GetArrayItem(member(json, "losses"), i)->valuedouble);
    ck_assert_msg(strstr(ours.out, line) != NULL, "no \"%s\" in %s", line, ours.out);
  }
  cJSON_Delete(json);
  command_free(&r);
  command_free(&ours);
}
END_TEST

/* ---- faults ---- */

START_TEST(faults_are_told) {
  static const char *const keys[][2] = {{"out", "\"out\" in the keys of conv"},
                                        {"out=6,", ""},
                                        {"out=6,,side=5", "is no KEY=VALUE"},
                                        {"=6", "is no KEY=VALUE"},
                                        {"out=", "is no KEY=VALUE"},
                                        {"out=6, out=7", "has the key \"out\" twice"},
                                        {"type=relu", "has the key \"type\" twice"},
                                        {"out=six", "network:"},
                                        {"out=6, sied=5", "unknown key"},
                                        {"out=6, side=33", "network:"}};
  for (int i = 0; i < COUNT(keys); i++) {
    const twinspeed_module modules[] = {{.type = "convolution", .name = "conv", .keys = keys[i][0]},
                                        {.type = "flatten"},
                                        {.type = "linear", .keys = "out=3"}};
    twinspeed_network n;
    twinspeed_options options;
    twinspeed_error error;
    twinspeed_job *job = NULL;
    char *text;
    twinspeed_network_init(&n);
    n.pictures = &small, n.picture_count = 1;
    n.classes = 3;
    n.modules = modules, n.module_count = COUNT(modules);
    twinspeed_status status = twinspeed_network_text(&n, &text, &error);
    if (status != TWINSPEED_OK) {
      ck_assert_ptr_null(text);
      ck_assert(strncmp(error.message, "network: ", 9) == 0 &&
                (strstr(error.hint, "out=6") || strstr(error.hint, "once")));
    } else {
      twinspeed_options_init(&options);
      options.model = text;
      status = twinspeed_open(&options, &job, &error);
      ck_assert_ptr_null(job);
      ck_assert_msg(strncmp(error.message, "network:", 8) == 0 && error.message[8] >= '1' && error.message[8] <= '9',
                    "no line: %s", error.message);
      twinspeed_free(text);
    }
    ck_assert_int_eq(status, TWINSPEED_INVALID);
    ck_assert_msg(strstr(error.message, keys[i][1]) != NULL, "%s: %s", keys[i][0], error.message);
  }
}
END_TEST

START_TEST(wrong_structures_are_told) {
  twinspeed_network n = {.size = 0};
  twinspeed_error error;
  char *text;
  ck_assert_int_eq(twinspeed_network_text(&n, &text, &error), TWINSPEED_USAGE);
  ck_assert_ptr_nonnull(strstr(error.hint, "twinspeed_network_init()"));
  twinspeed_network_init(&n);
  n.module_count = 2;
  ck_assert_int_eq(twinspeed_network_text(&n, &text, &error), TWINSPEED_USAGE);
  n.module_count = -1;
  ck_assert_int_eq(twinspeed_network_text(&n, &text, NULL), TWINSPEED_USAGE);
  twinspeed_module within = {.name = "a", .repeat = 2, .module_count = 1};
  within.modules = &within; /* without an end */
  n.modules = &within, n.module_count = 1;
  ck_assert_int_eq(twinspeed_network_text(&n, &text, &error), TWINSPEED_INVALID);
  ck_assert_ptr_nonnull(strstr(error.message, "nested"));
  const twinspeed_module second = {.type = "add", .input = {NULL, "a"}};
  n.modules = &second;
  ck_assert_int_eq(twinspeed_network_text(&n, &text, &error), TWINSPEED_INVALID);
  ck_assert_ptr_nonnull(strstr(error.message, "second input"));
}
END_TEST

int main(void) {
  Suite *suite = suite_create("library_network");
  TCase *tests = tcase_create("library_network");
  tcase_add_loop_test(tests, texts_are_the_files, 0, DESCRIBED);
  tcase_add_test(tests, the_example_trains_as_the_file);
  tcase_add_test(tests, faults_are_told);
  tcase_add_test(tests, wrong_structures_are_told);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
