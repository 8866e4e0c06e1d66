/* Networks that files describe module by module: training against PyTorch's losses, on several ranks and stages, random
 * networks through all readers and finite differences, and faulty files. */
/* ctest: engine mpi sampled */

#include "tests/answers.h"
#include "tests/hand_network.h"
#include "tests/members.h"
#include "tests/network_weights.h"
#include "tests/train.h"

enum { TRAINED = 20 };

enum { CNN, ALEXNET, BINARY, SQUARES, ONE_EXPERT, TWO_EXPERTS, FULL_EXPERTS, TIED, NETWORKS };
static const struct {
  const char *name, *text; /* its name in the golden file; NULL: the file in scenarios/networks */
} networks[NETWORKS] = {[CNN] = {"cnn", NULL},
                        [ALEXNET] = {"alexnet", SMALL_ALEXNET},
                        [BINARY] = {"binary", DECODER("binary_cross_entropy")},
                        [SQUARES] = {"squares", DECODER("mean_squared_error")},
                        [ONE_EXPERT] = {"experts", EXPERTS("\"capacity_factor\":4")},
                        [TWO_EXPERTS] = {"experts2", EXPERTS("\"capacity_factor\":2,\"top_k\":2,\"inner\":40,"
                                                             "\"activation\":\"gelu\",\"auxiliary\":0.02")},
                        [FULL_EXPERTS] = {"experts", EXPERTS("\"capacity_factor\":1")}, /* some rows are dropped */
                        [TIED] = {"tied", TIED_LAYERS}};
static char model_path[NETWORKS][600], weights_path[NETWORKS][600];
static tws_json *golden;

static void write_files(void) {
  golden = golden_file("networks.json");
  write_pictures(in_folder("pictures.bin"));
  for (int i = 0; i < NETWORKS; i++) {
    snprintf(model_path[i], sizeof model_path[i], "%s/../scenarios/networks/cifar10.json", TWS_TEST_DIR);
    snprintf(weights_path[i], sizeof weights_path[i], "%s/%d.safetensors", folder, i);
    if (networks[i].text) {
      snprintf(model_path[i], sizeof model_path[i], "%s/%d.json", folder, i);
      FILE *file = fopen(model_path[i], "w");
      ck_assert(file && fputs(networks[i].text, file) >= 0 && fclose(file) == 0);
    }
    char *text = text_of(model_path[i]);
    tws_network *network = network_of(text);
    write_weights(weights_path[i], network, member(member(golden->root, networks[i].name), "widths"));
    tws_network_destroy(network);
    tws_free(text);
  }
}

/* ---- training ---- */

static void train_described(int network, const char *options, double loss[TRAINED]) {
  command_result r = twinspeed(
      "train --quiet --json -m %s --data %s --init-from %s --steps %d --threads 1 --set optimizer.type=SGD --set "
      "optimizer.params.lr=0.01 --set optimizer.params.momentum=0.9 --set gradient_clipping=0 %s",
      model_path[network], in_folder("pictures.bin"), weights_path[network], TRAINED, options);
  ck_assert_msg(r.status == 0, "%s, %s: %s", networks[network].name, options, r.err);
  cJSON *json = cJSON_Parse(r.out);
  const cJSON *steps = member(json, "losses"), *one;
  ck_assert_int_eq(cJSON_GetArraySize(steps), TRAINED);
  int i = 0;
  cJSON_ArrayForEach(one, steps) loss[i++] = one->valuedouble;
  cJSON_Delete(json);
  command_free(&r);
}

/* Twenty steps are at most twice as far from float64 as PyTorch's own in float32, whatever divides the job. */
START_TEST(losses_are_pytorchs) {
  static const struct {
    int network;
    const char *options;
  } jobs[] = {{CNN, "--micro-batch 16"},
              {CNN, "-n 2 --stage 1 --micro-batch 4 --accumulation 2"},
              {ALEXNET, "--micro-batch 16"},
              {ALEXNET, "--micro-batch 4 --accumulation 4 --set twinspeed.recompute=full"},
              {ALEXNET, "-n 2 --pp 2 --micro-batch 4 --accumulation 4"},
              {ALEXNET, "-n 2 --pp 2 --micro-batch 4 --accumulation 4 --set pipeline.partition=uniform"},
              {ALEXNET, "-n 2 --pp 2 --micro-batch 4 --accumulation 4 --set pipeline.partition=type:Conv2d"},
              {ALEXNET, "-n 4 --pp 4 --micro-batch 4 --accumulation 4"},
              {ALEXNET, "-n 4 --pp 2 --micro-batch 4 --accumulation 2"},
              {ALEXNET, "-n 2 --stage 1 --micro-batch 8"},
              {ALEXNET, "-n 2 --stage 2 --micro-batch 8"},
              {ALEXNET, "-n 2 --stage 3 --micro-batch 8"},
              {ALEXNET, "-n 2 --tp 2 --micro-batch 16"},
              {BINARY, "--micro-batch 16"},
              {BINARY, "-n 4 --pp 2 --micro-batch 4 --accumulation 2"},
              {BINARY, "-n 2 --stage 3 --micro-batch 8 --set twinspeed.recompute=full"},
              {BINARY, "-n 2 --tp 2 --micro-batch 16"},
              {SQUARES, "--micro-batch 4 --accumulation 4"},
              {SQUARES, "-n 2 --stage 2 --micro-batch 8 --set twinspeed.recompute=selective"},
              {ONE_EXPERT, "--micro-batch 16"},
              {ONE_EXPERT, "-n 2 --ep 2 --micro-batch 8"},
              {TWO_EXPERTS, "--micro-batch 16"},
              {TIED, "--micro-batch 16"},
              {TIED, "-n 2 --stage 3 --micro-batch 8"},
              {TIED, "-n 2 --tp 2 --micro-batch 16"},
              {TIED, "-n 2 --pp 2 --micro-batch 4 --accumulation 4"},
              {TIED, "-n 4 --pp 4 --micro-batch 4 --accumulation 4 --set pipeline.partition=uniform"},
              {TIED, "-n 6 --pp 3 --stage 1 --micro-batch 4 --accumulation 2 --set pipeline.partition=type:Linear"}};
  for (size_t j = 0; j < sizeof jobs / sizeof *jobs; j++) {
    const cJSON *want = member(golden->root, networks[jobs[j].network].name);
    double loss[TRAINED], own = 0, ours = 0;
    train_described(jobs[j].network, jobs[j].options, loss);
    for (int i = 0; i < TRAINED; i++) {
      const double exact = cJSON_GetArrayItem(member(want, "float64"), i)->valuedouble;
      own = fmax(own, fabs(cJSON_GetArrayItem(member(want, "float32"), i)->valuedouble - exact));
      ours = fmax(ours, fabs(loss[i] - exact));
    }
    ck_assert_msg(ours <= 2 * own && ours < 1e-3, "%s, %s: %g, PyTorch %g", networks[jobs[j].network].name,
                  jobs[j].options, ours, own);
  }
}
END_TEST

/* Ranks that divide the experts lose what ranks lose that each have all of them: rows are routed, dropped and weighed
 * within each rank's micro-batch. */
START_TEST(expert_ranks_lose_the_same) {
  static const struct {
    int network;
    const char *alone, *options;
  } jobs[] = {{FULL_EXPERTS, "-n 2 --micro-batch 8", "-n 2 --ep 2 --micro-batch 8"},
              {FULL_EXPERTS, "-n 4 --micro-batch 4", "-n 4 --ep 4 --stage 2 --micro-batch 4"},
              {TWO_EXPERTS, "-n 2 --micro-batch 8", "-n 2 --ep 2 --stage 1 --micro-batch 8"},
              {TWO_EXPERTS, "-n 4 --micro-batch 4", "-n 4 --ep 2 --stage 3 --micro-batch 4"}};
  for (size_t j = 0; j < sizeof jobs / sizeof *jobs; j++) {
    double alone[TRAINED], loss[TRAINED];
    train_described(jobs[j].network, jobs[j].alone, alone);
    train_described(jobs[j].network, jobs[j].options, loss);
    ck_assert(alone[TRAINED - 1] < alone[0]);
    for (int i = 0; i < TRAINED; i++)
      ck_assert_msg(fabs(loss[i] - alone[i]) < 1e-5 * alone[i], "%s, step %d: %.9g instead of %.9g", jobs[j].options,
                    i + 1, loss[i], alone[i]);
  }
}
END_TEST

/* ---- the tutorials' networks ---- */

START_TEST(sizes_are_published) {
  static const struct {
    const char *file;
    int64_t parameters;
    double macs;
  } published[] = {{"cifar10.json", 62006, 0},
                   {"alexnet.json", 61100840, 714.19e6}, /* torchvision's; fvcore's count */
                   /* 61,156 before the last layer; 4 experts and the branch, the router, 2 gates and the last layer */
                   {"cifar10_experts.json", 61156 + 5 * 7140 + 336 + 170 + 850, 0}};
  for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
    command_result r = twinspeed("profile --json --quiet -m %s/../scenarios/networks/%s --micro-batch 1", TWS_TEST_DIR,
                                 published[i].file);
    ck_assert_msg(r.status == 0, "%s", r.err);
    cJSON *json = cJSON_Parse(r.out);
    ck_assert(number(json, "parameters") == (double)published[i].parameters);
    if (published[i].macs > 0) ck_assert_double_eq_tol(number(json, "macs"), published[i].macs, 5e3);
    cJSON_Delete(json);
    command_free(&r);
  }
}
END_TEST

/* torchvision's AlexNet layer by layer: parameters, and multiply-adds of a picture, which are weights times pixels of
 * the output (Krizhevsky et al., 2012, with the widths of "One weird trick", 2014). */
START_TEST(alexnets_profile_is_by_layer) {
  static const struct {
    const char *type;
    double parameters, macs;
  } layers[] = {{"Conv2d", 23296, 70276800},    {"Conv2d", 307392, 223948800}, {"Conv2d", 663936, 112140288},
                {"Conv2d", 884992, 149520384},  {"Conv2d", 590080, 99680256},  {"Linear", 37752832, 37748736},
                {"Linear", 16781312, 16777216}, {"Linear", 4097000, 4096000}};
  command_result r =
      twinspeed("profile --json --quiet -m %s/../scenarios/networks/alexnet.json --micro-batch 1", TWS_TEST_DIR);
  cJSON *json = cJSON_Parse(r.out);
  const cJSON *module;
  size_t found = 0;
  cJSON_ArrayForEach(module, member(json, "modules")) {
    const char *type = member(module, "type")->valuestring;
    if (strcmp(type, "Conv2d") != 0 && strcmp(type, "Linear") != 0) continue;
    ck_assert_uint_lt(found, sizeof layers / sizeof *layers);
    ck_assert_str_eq(type, layers[found].type);
    ck_assert_double_eq(number(module, "parameters"), layers[found].parameters);
    ck_assert_double_eq(number(module, "macs"), layers[found].macs);
    found++;
  }
  ck_assert_uint_eq(found, sizeof layers / sizeof *layers);
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* The line on the model counts modules by type, and has no sizes of transformers. */
START_TEST(reports_say_modules) {
  static const char *const lines[][2] = {
      {"../scenarios/networks/cifar10.json", "), 2 Conv2d, 3 Linear, reads pictures of 32 x 32 x 3, 10 classes\n"},
      {"../scenarios/networks/cifar100.json",
       "), 3 Conv2d, 3 BatchNorm2d, 3 Linear, reads pictures of 32 x 32 x 3, 20 and 100 classes, 3 losses\n"},
      {"../scenarios/networks/dcgan.json",
       "), 5 Conv2d, 7 BatchNorm2d, 5 ConvTranspose2d, reads pictures of 64 x 64 x 3 and noise of 1 x 1 x 100, 3 losses "
       "in 2 turns\n"},
      {"golden/onnx/bert.onnx",
       "), 1 Embedding, 6 LayerNorm, 10 Linear, 2 Attention, vocabulary 40, 12 positions, tied embeddings\n"}};
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    command_result r = twinspeed("estimate --quiet -m %s/%s --micro-batch 4", TWS_TEST_DIR, lines[i][0]);
    ck_assert_msg(r.status == 0, "%s", r.err);
    tws_text line = {0};
    for (const char *at = strstr(r.out, "Model "); at && *at; at++) { /* lines that are continued begin with blanks */
      if (*at == '\n' && at[1] != ' ') break;
      if (*at == ' ' && (at[1] == ' ' || at[1] == '\n')) continue;
      tws_text_add_bytes(&line, *at == '\n' ? "" : at, *at != '\n');
    }
    tws_text_add(&line, "\n");
    ck_assert_msg(strstr(line.data, lines[i][1]) != NULL, "%s: %s", lines[i][0], line.data);
    tws_text_free(&line);
    command_free(&r);
  }
}
END_TEST

/* ---- random networks ---- */

static int pick(uint64_t seed, uint64_t index, int low, int high) {
  return low + (int)(tws_random_uniform(seed, 9, index) * (high - low + 1));
}

/* Writes a network of convolutions, pooling, norms, activations that have a derivative everywhere, residual sums and
 * linear layers. */
static void random_pictures(uint64_t seed, tws_text *out) {
  static const char *const activations[] = {"gelu", "gelu_tanh", "sigmoid", "silu", "tanh"},
                           *const losses[] = {"cross_entropy", "binary_cross_entropy", "mean_squared_error",
                                              "cross_entropy"};
  int side = pick(seed, 0, 5, 8), channels = pick(seed, 1, 1, 3), width = 0;
  tws_text_add(out,
               "{\"model_type\":\"network\",\"init_std\":0.5,\"input\":{\"pictures\":{\"side\":%d,\"channels\":%d}},"
               "\"classes\":4,\"loss\":\"%s\",\"modules\":[",
               side, channels, losses[pick(seed, 5, 0, 3)]);
  for (int i = 0; i < pick(seed, 2, 1, 4); i++) {
    const uint64_t at = 100 * (uint64_t)(i + 1);
    const int window = pick(seed, at, 1, side < 3 ? side : 3), padding = window == 3 ? pick(seed, at + 1, 0, 1) : 0;
    const int stride = pick(seed, at + 2, 1, 2), out_width = 2 * pick(seed, at + 3, 1, 3);
    const int normed = pick(seed, at + 5, 0, 1); /* a norm takes the bias out again */
    tws_text_add(out,
                 "{\"name\":\"c%d\",\"type\":\"convolution\",\"out\":%d,\"side\":%d,\"stride\":%d,\"padding\":%d,"
                 "\"bias\":%s,\"groups\":%d},",
                 i, out_width, window, stride, padding, normed ? "false" : "true",
                 i > 0 && width % 2 == 0 ? pick(seed, at + 4, 1, 2) : 1);
    width = out_width;
    side = (side + 2 * padding - window) / stride + 1;
    if (normed) tws_text_add(out, "{\"type\":\"batch_norm\"},");
    tws_text_add(out, "{\"name\":\"a%d\",\"type\":\"%s\"},", i, activations[pick(seed, at + 6, 0, 4)]);
    if (pick(seed, at + 7, 0, 1))
      tws_text_add(
          out,
          "{\"name\":\"r%d\",\"type\":\"convolution\",\"out\":%d,\"side\":1,\"bias\":false},{\"name\":\"s%d\",\"type\":"
          "\"add\",\"input\":[\"a%d\",\"r%d\"]},",
          i, width, i, i, i);
    if (side <= 6 && pick(seed, at + 9, 0, 2) == 0) {
      const int more = pick(seed, at + 10, 0, 1);
      width = 2 * pick(seed, at + 11, 1, 2);
      tws_text_add(out,
                   "{\"name\":\"t%d\",\"type\":\"transposed_convolution\",\"out\":%d,\"side\":3,\"stride\":2,"
                   "\"padding\":1,\"output_padding\":%d,\"groups\":%d,\"bias\":%s},",
                   i, width, more, pick(seed, at + 12, 1, 2), pick(seed, at + 13, 0, 1) ? "true" : "false");
      side = 2 * side - 1 + more;
    }
    if (side >= 2 && pick(seed, at + 8, 0, 2) == 0) {
      tws_text_add(out, "{\"type\":\"average_pool\",\"side\":2,\"stride\":1},");
      side--;
    }
  }
  tws_text_add(out, pick(seed, 3, 0, 1) ? "{\"type\":\"flatten\"}," : "{\"type\":\"global_average_pool\"},");
  if (pick(seed, 4, 0, 1))
    tws_text_add(out, "{\"type\":\"linear\",\"out\":5},{\"type\":\"gelu\"},{\"type\":\"layer_norm\"},");
  tws_text_add(out, "{\"type\":\"linear\",\"out\":4}]}");
}

static void random_tokens(uint64_t seed, tws_text *out) {
  tws_text_add(
      out,
      "{\"model_type\":\"network\",\"init_std\":0.5,\"input\":{\"tokens\":{\"vocabulary\":11,\"positions\":5}},"
      "\"modules\":[{\"name\":\"e\",\"type\":\"embedding\",\"width\":8,\"positions\":%s},",
      pick(seed, 0, 0, 1) ? "true" : "false");
  tws_text_add(out, "{\"repeat\":%d,\"name\":\"block\",\"modules\":[", pick(seed, 1, 1, 3));
  tws_text_add(out, "{\"name\":\"keep\",\"type\":\"scale\",\"factor\":0.9},{\"name\":\"n\",\"type\":\"%s\"},",
               pick(seed, 2, 0, 1) ? "layer_norm" : "rms_norm");
  tws_text_add(out, "{\"name\":\"t\",\"type\":\"self_attention\",\"heads\":%d,\"causal\":%s},",
               1 << pick(seed, 3, 0, 2), pick(seed, 4, 0, 1) ? "true" : "false");
  tws_text_add(out, "{\"name\":\"x\",\"type\":\"add\",\"input\":[\"keep\",\"t\"]},");
  tws_text_add(out,
               "{\"type\":\"linear\",\"out\":%d,\"bias\":%s},{\"type\":\"gelu\"},{\"name\":\"y\",\"type\":\"linear\","
               "\"out\":8},",
               pick(seed, 5, 3, 9), pick(seed, 6, 0, 1) ? "true" : "false");
  tws_text_add(out, "{\"type\":\"add\",\"input\":[\"x\",\"y\"]}]},{\"type\":\"linear\",\"out\":11}]}");
}

enum { RANDOM_NETWORKS = 100, NETWORK_SAMPLES = 2, POSITIONS = 5 };
START_TEST(random_networks) {
  static const char *const policies[] = {"none", "selective", "full", "operations"};
  const int of_tokens = _i % 3 == 2;
  tws_text text = {0};
  char config[300];
  float pictures[NETWORK_SAMPLES * 8 * 8 * 3];
  int32_t ids[NETWORK_SAMPLES * POSITIONS], targets[NETWORK_SAMPLES * POSITIONS];
  hand_job job;
  if (of_tokens)
    random_tokens((uint64_t)_i, &text);
  else
    random_pictures((uint64_t)_i, &text);
  tws_network *network = network_of(text.data);
  snprintf(config, sizeof config,
           "{\"train_micro_batch_size_per_gpu\":%d,\"gradient_clipping\":0,\"zero_optimization\":{\"stage\":%d},"
           "\"twinspeed\":{\"sequence_length\":%d,\"recompute\":\"%s\"}}",
           NETWORK_SAMPLES, _i % 4, of_tokens ? POSITIONS : 1, policies[_i / 4 % 4]);
  hand_job_begin(&job, network, config);
  for (uint64_t i = 0; i < sizeof pictures / sizeof *pictures; i++) pictures[i] = (float)tws_random_normal(21, 1, i);
  for (uint64_t i = 0; i < NETWORK_SAMPLES * POSITIONS; i++) {
    ids[i] = (int32_t)(word_of(i, 5) % 11);
    targets[i] = (int32_t)(word_of(i, 6) % (of_tokens ? 11 : 4));
  }
  hand_input(&job, tws_network_input_of(network, of_tokens ? TWS_INPUT_TOKENS : TWS_INPUT_NUMBERS),
             of_tokens ? (const void *)ids : (const void *)pictures);
  hand_input(&job, tws_network_input_of(network, TWS_INPUT_TARGETS), targets);
  hand_differentiate_by(&job, 0.02, 4e-3, 1e-4);
  hand_job_end(&job);
  tws_network_destroy(network);
  tws_text_free(&text);
}
END_TEST

/* ---- faulty files ---- */

#define PICTURE_NET(modules)                                                                                    \
  "{\"model_type\":\"network\",\"input\":{\"pictures\":{\"side\":8,\"channels\":1}},\"classes\":3,\"modules\":" \
  "[" modules "]}"
#define TOKEN_NET(modules) \
  "{\"model_type\":\"network\",\"input\":{\"tokens\":{\"vocabulary\":7,\"positions\":4}},\"modules\":[" modules "]}"
#define CONV "{\"name\":\"c\",\"type\":\"convolution\",\"out\":2,\"side\":3}"
#define FLAT "{\"name\":\"f\",\"type\":\"flatten\"}"
#define HEAD "{\"name\":\"h\",\"type\":\"linear\",\"out\":3}"

START_TEST(faults_are_told) {
  static const char *const wrong[][2] = {
      {PICTURE_NET(""), "no list of modules"},
      {PICTURE_NET("3"), "a module is an object"},
      {PICTURE_NET("{\"type\":\"convolutoin\",\"out\":2,\"side\":3}," FLAT "," HEAD), "no module has the type"},
      {PICTURE_NET("{\"type\":\"convolution\",\"side\":3}," FLAT "," HEAD), "out"},
      {PICTURE_NET("{\"type\":\"convolution\",\"out\":2,\"side\":3,\"strid\":2}," FLAT "," HEAD), "unknown key"},
      {PICTURE_NET("{\"type\":\"convolution\",\"out\":2,\"side\":9}," FLAT "," HEAD), "windows of side 9"},
      {PICTURE_NET("{\"type\":\"convolution\",\"out\":3,\"side\":3,\"groups\":2}," FLAT "," HEAD), "2 groups"},
      {PICTURE_NET(CONV "," CONV "," FLAT "," HEAD), "two modules have the name c"},
      {PICTURE_NET(CONV "," FLAT "," HEAD
                        ",{\"type\":\"relu\",\"input\":\"later\"},{\"name\":\"later\",\"type\":\"relu\"}"),
       "no earlier module has the name \"later\""},
      {PICTURE_NET(
           CONV ",{\"type\":\"relu\",\"name\":\"lost\"},{\"name\":\"g\",\"type\":\"flatten\",\"input\":\"c\"}," HEAD),
       "no module reads the output of lost"},
      {PICTURE_NET(CONV "," HEAD), "for each pixel"},
      {PICTURE_NET(CONV "," FLAT ",{\"type\":\"linear\",\"out\":4}"), "has 4 outputs, and there are 3 classes"},
      {PICTURE_NET(CONV "," FLAT ",{\"type\":\"max_pool\",\"side\":2}," HEAD), "f has none"},
      {PICTURE_NET(FLAT "," HEAD), "only a convolution does"},
      {PICTURE_NET(CONV ",{\"type\":\"add\"}," FLAT "," HEAD), "add reads 2 values, and 0 are named"},
      {PICTURE_NET(CONV ",{\"type\":\"add\",\"input\":[\"c\",\"c\"]}," FLAT "," HEAD), "adds a value to itself"},
      {PICTURE_NET(CONV "," FLAT ",{\"type\":\"dropout\",\"probability\":1}," HEAD), "probability"},
      {PICTURE_NET(CONV ",{\"type\":\"transposed_convolution\",\"out\":2,\"side\":3,\"output_padding\":1}," FLAT
                        "," HEAD),
       "adds 1 pixels, and its stride is 1"},
      {PICTURE_NET("{\"type\":\"transposed_convolution\",\"out\":2,\"side\":3,\"stride\":9999}," FLAT "," HEAD),
       "makes pictures of"},
      {PICTURE_NET(CONV "," FLAT ",{\"type\":\"experts\",\"experts\":2,\"top_k\":3}," HEAD), "chooses 3 of 2 experts"},
      {PICTURE_NET(CONV ",{\"type\":\"experts\",\"experts\":2}," FLAT "," HEAD), "c has pixels"},
      {PICTURE_NET(CONV "," FLAT ",{\"type\":\"experts\",\"experts\":2,\"noise\":\"jitter\"}," HEAD), "is \"jitter\""},
      {PICTURE_NET(CONV "," FLAT ",{\"type\":\"linear\",\"out\":3,\"tied\":\"h\"}," HEAD), "no earlier layer"},
      {PICTURE_NET(CONV "," FLAT ",{\"name\":\"a\",\"type\":\"linear\",\"out\":4},{\"type\":\"linear\",\"out\":3,"
                        "\"tied\":\"a\"}"),
       "3 x 4"},
      {"{\"model_type\":\"network\",\"input\":{\"pictures\":{\"side\":8,\"channels\":1}},\"classes\":3,\"loss\":"
       "\"hinge\",\"modules\":[" CONV "," FLAT "," HEAD "]}",
       "no loss is \"hinge\""},
      {"{\"model_type\":\"network\",\"input\":{\"tokens\":{\"vocabulary\":7,\"positions\":4}},\"loss\":"
       "\"mean_squared_error\",\"modules\":[{\"type\":\"embedding\",\"width\":6}]}",
       "exclusive tokens"},
      {PICTURE_NET(CONV "," FLAT ",{\"name\":\"input\",\"type\":\"relu\"}," HEAD), "is no name"},
      {PICTURE_NET("{\"repeat\":5000,\"modules\":[" CONV "]}," FLAT "," HEAD), "repeat"},
      {PICTURE_NET("{\"repeat\":2,\"modules\":[{\"repeat\":2,\"modules\":[" CONV "]}]}," FLAT "," HEAD),
       "block inside"},
      {"{\"model_type\":\"network\",\"modules\":[]}", "has to say what the network reads"},
      {"{\"model_type\":\"network\",\"input\":{\"pictures\":{\"side\":8,\"channels\":1}},\"modules\":[]}", "classes"},
      {TOKEN_NET("{\"type\":\"linear\",\"out\":7}"), "only an embedding does"},
      {TOKEN_NET("{\"type\":\"embedding\",\"width\":6},{\"type\":\"self_attention\",\"heads\":4},{\"type\":\"linear\","
                 "\"out\":7}"),
       "4 heads and the width 6"},
      {TOKEN_NET("{\"name\":\"e\",\"type\":\"embedding\",\"width\":6},{\"name\":\"s\",\"type\":\"scale\",\"factor\":2},"
                 "{\"type\":\"add\",\"input\":[\"e\",\"s\"]},{\"type\":\"linear\",\"out\":7}"),
       "replaces the output of e in memory"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_refused(wrong[i][0], wrong[i][1]);
}
END_TEST

/* Files of which one number, name or bracket is another one: each is read, or refused with its place and a remedy. */
START_TEST(changed_files_are_read_or_refused) {
  char *text = text_of(model_path[0]);
  ck_assert_int_ge(count_refused_changes(text, 77, 400), 300);
  tws_free(text);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("networks");
  TCase *tests = tcase_create("networks");
  tcase_add_unchecked_fixture(tests, write_files, NULL);
  tcase_add_test(tests, losses_are_pytorchs);
  tcase_add_test(tests, expert_ranks_lose_the_same);
  tcase_add_test(tests, sizes_are_published);
  tcase_add_test(tests, alexnets_profile_is_by_layer);
  tcase_add_test(tests, reports_say_modules);
  tcase_add_loop_test(tests, random_networks, 0, RANDOM_NETWORKS);
  tcase_add_test(tests, faults_are_told);
  tcase_add_test(tests, changed_files_are_read_or_refused);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
