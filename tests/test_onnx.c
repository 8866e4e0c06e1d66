/* ONNX files as network files: ten models as torch.onnx.export writes them have PyTorch's parameters and outputs, are
 * trained and predict; activations in several nodes; faulty files. */
/* ctest: engine mpi */
#include "tests/answers.h"
#include "models/kernel.h"
#include "models/network/onnx.h"
#include "tests/failing_allocator.h"
#include "tests/hand_network.h"
#include "tests/members.h"
#include "tests/network_files.h"
#include "tests/onnx_writer.h"
#include "tests/train.h"

/* ---- PyTorch's outputs ---- */

static const char *const models[] = {"mlp",          "lenet",    "alexnet",       "vgg11", "resnet18",
                                     "mobilenet_v2", "convnext", "discriminator", "bert",  "gpt"};
enum { MODELS = sizeof models / sizeof *models };
static tws_json *golden;

static const char *model_path(const char *name) {
  static char path[600];
  snprintf(path, sizeof path, "%s/golden/onnx/%s.onnx", TWS_TEST_DIR, name);
  return path;
}

/* Returns element i of the inputs of the golden file: a number from -1 to 1. */
static double input_at(uint64_t i, uint64_t stream) {
  return word_of(i, stream) / 0x1p23 - 1;
}

typedef struct scores {
  const hand_job *job;
  uint32_t op, buffer;
  uint64_t first, count;
  float values[2000];
} scores;

/* Reads the scores before the loss, which overwrites them. */
static tws_code read_scores(void *user, uint32_t op, tws_error *why) {
  scores *s = user;
  if (op != s->op) return TWS_OK;
  return tws_executor_get(s->job->executor, TWS_PROGRAM_EVALUATE, s->buffer, s->first, s->values, s->count, why);
}

static void find_scores(scores *s) {
  const tws_plan *plan = s->job->evaluate;
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    if (op->kind != TWS_OP_COMPUTE || !tws_is_whole_loss((tws_kernel)plan->works[op->work].code)) continue;
    s->op = i;
    s->buffer = plan->operands[op->operand_first].buffer;
    s->first = plan->operands[op->operand_first].offset;
    s->count = plan->operands[op->operand_first].count;
  }
  ck_assert_uint_gt(s->count, 0);
  ck_assert_uint_le(s->count, sizeof s->values / sizeof *s->values);
}

/* Computes the scores of the inputs of stream `stream`, from the weights and statistics of the file. */
static void compute_scores(hand_job *job, const tws_network *network, const cJSON *want, uint64_t stream, scores *s) {
  const cJSON *shape = member(want, "input");
  int64_t dim[4] = {1, 1, 1, 1}, count = 1;
  for (int i = 0; i < cJSON_GetArraySize(shape); i++)
    count *= dim[i] = (int64_t)cJSON_GetArrayItem(shape, i)->valuedouble;
  float *pictures = calloc((size_t)count, sizeof *pictures);
  int32_t *ids = calloc((size_t)count, sizeof *ids), *targets = calloc((size_t)count, sizeof *targets);
  const int of_tokens = tws_network_input_of(network, TWS_INPUT_NUMBERS) == TWS_NONE;
  for (int64_t i = 0; i < count; i++) {
    const int64_t pixels = dim[2] * dim[3], sample = i / (dim[1] * pixels), channel = i / pixels % dim[1];
    if (of_tokens)
      ids[i] = (int32_t)((input_at((uint64_t)i, stream) + 1) / 2 * number(want, "rows"));
    else /* channels are last here */
      pictures[(sample * pixels + i % pixels) * dim[1] + channel] = (float)input_at((uint64_t)i, stream);
  }
  for (uint32_t p = 0; p < network->param_count; p++)
    tws_init_values(&network->params[p], p, 1, 0, (uint64_t)tws_param_numel(&network->params[p]),
                    job->weights + job->first[p]);
  hand_input(job, tws_network_input_of(network, of_tokens ? TWS_INPUT_TOKENS : TWS_INPUT_NUMBERS),
             of_tokens ? (const void *)ids : (const void *)pictures);
  hand_input(job, tws_network_input_of(network, TWS_INPUT_TARGETS), targets);
  hand_loss(job, job->weights, 0); /* sets weights and inputs */
  s->job = job;
  find_scores(s);
  for (uint32_t i = 0; i < network->input_count; i++)
    HAND_OK(tws_executor_put(job->executor, TWS_PROGRAM_EVALUATE, job->evaluate->input[i], 0, job->input[i],
                             job->evaluate->buffers[job->evaluate->input[i]].elements, &err));
  HAND_OK(tws_executor_step(job->executor, TWS_PROGRAM_EVALUATE, 1, NULL, read_scores, s, &err));
  free(pictures);
  free(ids);
  free(targets);
}

START_TEST(outputs_are_pytorchs) {
  const cJSON *want = member(golden->root, models[_i]), *values = member(want, "values"), *one;
  tws_network *network = NULL;
  scores *found = calloc(1, sizeof *found);
  hand_job job;
  char config[300];
  HAND_OK(tws_network_load(model_path(models[_i]), 1, &network, &err));
  ck_assert_int_eq(tws_network_params(network, 0), (int64_t)number(want, "parameters"));
  const cJSON *shape = member(want, "input");
  snprintf(config, sizeof config,
           "{\"train_micro_batch_size_per_gpu\":%d,\"gradient_clipping\":0,\"twinspeed\":{\"sequence_length\":%d}}",
           (int)cJSON_GetArrayItem(shape, 0)->valuedouble,
           cJSON_GetArraySize(shape) == 2 ? (int)cJSON_GetArrayItem(shape, 1)->valuedouble : 1);
  hand_job_begin(&job, network, config);
  compute_scores(&job, network, want, (uint64_t)_i, found);
  ck_assert_uint_eq(found->count, (uint64_t)cJSON_GetArraySize(values));
  double largest = 0;
  int i = 0;
  cJSON_ArrayForEach(one, values) largest = fmax(largest, fabs(found->values[i++] - one->valuedouble));
  ck_assert_msg(largest < 1e-5, "%s: outputs differ by %g, PyTorch's own in float32 by %g", models[_i], largest,
                number(want, "own_error"));
  hand_job_end(&job);
  tws_network_destroy(network);
  free(found);
}
END_TEST

/* ---- PyTorch's parameters ---- */

/* Parameters that do not have the name of PyTorch's tensor: tables of positions belong to the embedding, a layer that
 * shares its weight has another name than the embedding, and of a transposed weight without bias files have no name. */
static const struct {
  const char *model, *here, *there;
} renamed[] = {
    {"bert", "decoder.positions", "positions.weight"},
    {"bert", "decoder_2.bias", "decoder.bias"},
    {"gpt", "wte.positions", "wpe"},
    {"gpt", "node_linear_8.weight", "head.weight"},
};

static const char *name_there(const char *model, const char *name) {
  for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
    if (strcmp(renamed[i].model, model) == 0 && strcmp(renamed[i].here, name) == 0) return renamed[i].there;
  return name;
}

/* Checks the shape of PyTorch's tensor of this name: rows, and as many elements in each as there are columns; of a
 * convolution also the sides of its windows. Returns 0 if PyTorch has no such tensor, else its elements. */
static int64_t shape_is(const cJSON *tensors, const char *name, const tws_module *m, int64_t rows, int64_t columns) {
  const cJSON *shape = cJSON_GetObjectItemCaseSensitive(tensors, name), *dim;
  int64_t all = 1;
  if (!shape) return 0;
  const int dims = cJSON_GetArraySize(shape);
  cJSON_ArrayForEach(dim, shape) all *= (int64_t)dim->valuedouble;
  int64_t first = 1; /* dimensions of 1 in front are the sample that a table is added to */
  for (int d = 0; d < dims && first == 1 && dims > 1; d++) first = (int64_t)cJSON_GetArrayItem(shape, d)->valuedouble;
  ck_assert_msg(all == rows * columns && (dims == 1 ? rows == 1 : first == rows),
                "%s: %lld rows of %lld columns, and PyTorch's tensor has %d dimensions, %lld rows and %lld elements",
                name, (long long)rows, (long long)columns, dims, (long long)first, (long long)all);
  const int is_window = m->type == TWS_MODULE_CONVOLUTION || m->type == TWS_MODULE_TRANSPOSED_CONVOLUTION;
  for (int d = 2; d < 4 && is_window && dims == 4; d++)
    ck_assert_int_eq(cJSON_GetArrayItem(shape, d)->valueint, m->windows->side);
  return all;
}

/* Every parameter has name and shape of a tensor of PyTorch's model, and together they are all of its parameters.
 * Projections of attention are one weight here, and one or three of PyTorch's. */
START_TEST(parameters_are_pytorchs) {
  static const char *const parts[] = {"q", "k", "v"};
  const cJSON *want = member(golden->root, models[_i]), *tensors = member(want, "tensors");
  tws_network *network = NULL;
  int64_t found = 0;
  HAND_OK(tws_network_load(model_path(models[_i]), 1, &network, &err));
  for (uint32_t p = 0; p < network->param_count; p++) {
    const tws_param *param = &network->params[p];
    const tws_module *m = &network->modules[param->module];
    const char *name = name_there(models[_i], param->name), *joined = strstr(name, ".qkv.");
    const int vector = param->rows == 1;
    int64_t elements = shape_is(tensors, name, m, param->rows, param->columns);
    for (int i = 0; i < 3 && joined && elements < tws_param_numel(param); i++) {
      char part[200];
      snprintf(part, sizeof part, "%.*s.%s.%s", (int)(joined - name), name, parts[i], joined + strlen(".qkv."));
      elements +=
          shape_is(tensors, part, m, vector ? 1 : param->rows / 3, vector ? param->columns / 3 : param->columns);
    }
    ck_assert_msg(elements == tws_param_numel(param), "%s: PyTorch's %s has no such parameter", name, models[_i]);
    found += elements;
  }
  ck_assert_int_eq(found, (int64_t)number(want, "parameters"));
  tws_network_destroy(network);
}
END_TEST

/* ---- the program ---- */

/* Writes sixteen pictures of 16 x 16 pixels and three channels, of class i mod 10. */
static void write_small_pictures(const char *path) {
  enum { BYTES = 16 * 16 * 3 };
  FILE *file = fopen(path, "wb");
  for (int i = 0; i < PICTURES; i++) {
    fputc(i % CLASSES, file);
    for (uint64_t k = 0; k < BYTES; k++) fputc((int)(word_of(k, 1000 + (uint64_t)i) % 256), file);
  }
  fclose(file);
}

/* Returns the losses of a training of a file's network on pictures of a file. */
static void train_model(const char *name, const char *options, double *loss, int steps) {
  command_result r = twinspeed(
      "train --quiet --json -m %s --data %s --steps %d --threads 1 --set optimizer.type=SGD --set "
      "optimizer.params.lr=0.05 --set gradient_clipping=0 %s",
      model_path(name), in_folder("pictures.bin"), steps, options);
  ck_assert_msg(r.status == 0, "%s: %s", options, r.err);
  cJSON *json = cJSON_Parse(r.out);
  for (int i = 0; i < steps; i++) loss[i] = cJSON_GetArrayItem(member(json, "losses"), i)->valuedouble;
  cJSON_Delete(json);
  command_free(&r);
}

/* Ranks begin with the weights of the file, whatever part of them they have, and lose what one rank does. */
START_TEST(ranks_train_the_files_weights) {
  enum { STEPS_HERE = 5 };
  static const char *const jobs[] = {"-n 2 --stage 3 --micro-batch 8", "-n 2 --pp 2 --micro-batch 8 --accumulation 2",
                                     "-n 2 --tp 2 --micro-batch 16"};
  double alone[STEPS_HERE], loss[STEPS_HERE];
  write_small_pictures(in_folder("pictures.bin"));
  train_model("convnext", "--micro-batch 16", alone, STEPS_HERE);
  ck_assert(alone[STEPS_HERE - 1] < alone[0]);
  train_model("convnext", "--micro-batch 16 --set seed=77", loss, 1);
  ck_assert_double_eq_tol(loss[0], alone[0], 1e-9); /* no weight is random */
  for (size_t j = 0; j < sizeof jobs / sizeof *jobs; j++) {
    train_model("convnext", jobs[j], loss, STEPS_HERE);
    for (int i = 0; i < STEPS_HERE; i++)
      ck_assert_msg(fabs(loss[i] - alone[i]) < 1e-4, "%s, step %d: %.9g instead of %.9g", jobs[j], i + 1, loss[i],
                    alone[i]);
  }
}
END_TEST

START_TEST(files_predict) {
  write_pictures(in_folder("pictures.bin"));
  command_result r =
      twinspeed("predict --json --quiet -m %s --data %s", model_path("resnet18"), in_folder("pictures.bin"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = cJSON_Parse(r.out);
  ck_assert_int_eq(integer(json, "samples"), PICTURES);
  ck_assert_int_eq(cJSON_GetArraySize(member(json, "predictions")), PICTURES);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("predict --quiet -m %s --data %s", in_folder("network.json"), in_folder("pictures.bin"));
  ck_assert_int_eq(r.status, 2);
  ck_assert(strstr(r.err, "no weights were given"));
  command_free(&r);
}
END_TEST

/* ---- nodes ---- */

/* Reads a network of the nodes between a convolution of the input x, whose output is c, and a linear layer of y. */
static tws_code read_between(const char *const *nodes, int count, tws_network **network) {
  onnx_writer w = {.nodes = 0};
  tws_onnx_model *model = NULL;
  const tws_json *json;
  onnx_port(&w, 11, "x", ONNX_FLOATS, "?,2,4,4");
  onnx_port(&w, 12, "z", ONNX_FLOATS, "?,3");
  onnx_tensor(&w, "conv.weight", ONNX_FLOATS, "4,2,3,3", -0.5, 0.02);
  onnx_tensor(&w, "fc.weight", ONNX_FLOATS, "3,16", 0.3, -0.01);
  onnx_tensor(&w, "gamma", ONNX_FLOATS, "4", 1, 0.1);
  const struct {
    const char *name;
    double value;
  } scalars[] = {{"half", 0.5},      {"one", 1},      {"two", 2},
                 {"three", 3},       {"six", 6},      {"zero", 0},
                 {"root2", sqrt(2)}, {"k", 0.044715}, {"root2pi", sqrt(2 / M_PI)}};
  for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++)
    onnx_tensor(&w, scalars[i].name, ONNX_FLOATS, "", scalars[i].value, 0);
  onnx_node(&w, "Conv x,conv.weight -> c kernel_shape=3,3");
  for (int i = 0; i < count; i++) onnx_node(&w, nodes[i]);
  onnx_node(&w, "Flatten y -> flat");
  onnx_node(&w, "Gemm flat,fc.weight -> z transB=1");
  tws_text file = onnx_file(&w);
  *network = NULL;
  tws_code code = tws_onnx_read_bytes(file.data, file.length, "model.onnx", &model, &json, &err);
  if (code == TWS_OK) code = tws_network_from_json(json, 1, network, &err);
  if (code == TWS_OK) code = tws_onnx_give_weights(model, *network, &err);
  tws_onnx_close(model);
  tws_text_free(&file);
  return code;
}

enum { MOST_NODES_HERE = 10 };

/* Returns 1 if the error names the file and a remedy. */
static int is_complete(void) {
  return strncmp(err.message, "model.onnx: ", 12) == 0 && (err.hint[0] != 0 || strstr(err.message, "must be"));
}

START_TEST(functions_become_modules) {
  static const struct {
    tws_module_type type;
    const char *nodes[MOST_NODES_HERE];
  } forms[] = {
      {TWS_MODULE_RELU, {"Relu c -> y"}},
      {TWS_MODULE_RELU, {"Clip c,zero -> y"}},
      {TWS_MODULE_CLAMP, {"Clip c,zero,six -> y"}},
      {TWS_MODULE_CLAMP, {"Clip c -> y min=0.5f max=2.5f"}},
      {TWS_MODULE_LEAKY_RELU, {"LeakyRelu c -> y alpha=0.3f"}},
      {TWS_MODULE_SIGMOID, {"Sigmoid c -> y"}},
      {TWS_MODULE_SILU, {"Sigmoid c -> s", "Mul c,s -> y"}},
      {TWS_MODULE_SOFTCAP, {"Tanh c -> y"}},
      {TWS_MODULE_GELU_EXACT, {"Gelu c -> y"}},
      {TWS_MODULE_MULTIPLY, {"Mul c,half -> y"}},
      {TWS_MODULE_GELU_EXACT, {"Div c,root2 -> d", "Erf d -> e", "Add e,one -> p", "Mul c,p -> m", "Mul m,half -> y"}},
      {TWS_MODULE_GELU_EXACT, {"Div c,root2 -> d", "Erf d -> e", "Add one,e -> p", "Mul c,half -> h", "Mul h,p -> y"}},
      {TWS_MODULE_GELU,
       {"Pow c,three -> p", "Mul k,p -> q", "Add c,q -> s", "Mul s,root2pi -> t", "Tanh t -> u", "Add u,one -> v",
        "Mul c,half -> h", "Mul h,v -> y"}}};
  for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
    tws_network *network;
    int count = 0, found = 0;
    while (count < MOST_NODES_HERE && forms[f].nodes[count]) count++;
    HAND_OK(read_between(forms[f].nodes, count, &network));
    for (uint32_t m = 0; m < network->module_count; m++) found += network->modules[m].type == forms[f].type;
    ck_assert_msg(found == 1 && network->module_count == 5, "%s: %d of %u modules", forms[f].nodes[0], found,
                  network->module_count);
    tws_network_destroy(network);
  }
}
END_TEST

/* A sum of two functions of one activation is an addition of the outputs of two modules, unless one module computes the
 * sum: x + x is 2 x, and x (1 + erf(x / sqrt 2)) / 2 has a sum within. */
START_TEST(sums_that_no_module_computes_are_additions) {
  static const struct {
    tws_module_type types[4]; /* of the modules between the convolution and the flattening */
    const char *nodes[MOST_NODES_HERE];
  } forms[] = {
      {{TWS_MODULE_SIGMOID, TWS_MODULE_ADD}, {"Sigmoid c -> s", "Add c,s -> y"}},
      {{TWS_MODULE_SIGMOID, TWS_MODULE_ADD}, {"Sigmoid c -> s", "Add s,c -> y"}},
      {{TWS_MODULE_SILU, TWS_MODULE_ADD}, {"Sigmoid c -> s", "Mul c,s -> m", "Add c,m -> y"}},
      {{TWS_MODULE_SIGMOID, TWS_MODULE_ADD, TWS_MODULE_MULTIPLY},
       {"Sigmoid c -> s", "Add c,s -> a", "Mul a,half -> y"}},
      {{TWS_MODULE_SIGMOID, TWS_MODULE_SIGMOID, TWS_MODULE_ADD}, {"Sigmoid c -> s", "Sigmoid c -> t", "Add s,t -> y"}},
      {{TWS_MODULE_SIGMOID, TWS_MODULE_MULTIPLY}, {"Sigmoid c -> s", "Add s,s -> y"}},
      {{TWS_MODULE_MULTIPLY}, {"Add c,c -> y"}},
      {{TWS_MODULE_GELU_EXACT, TWS_MODULE_ADD},
       {"Div c,root2 -> d", "Erf d -> e", "Add e,one -> p", "Mul c,p -> m", "Mul m,half -> g", "Add g,c -> y"}},
      {{TWS_MODULE_GELU_EXACT}, {"Div c,root2 -> d", "Erf d -> e", "Mul c,e -> m", "Add c,m -> p", "Mul p,half -> y"}}};
  for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
    tws_network *network;
    int nodes = 0, types = 0;
    while (nodes < MOST_NODES_HERE && forms[f].nodes[nodes]) nodes++;
    while (types < 4 && forms[f].types[types]) types++;
    HAND_OK(read_between(forms[f].nodes, nodes, &network));
    uint32_t first = 0;
    while (network->modules[first].type != forms[f].types[0] && first < network->module_count) first++;
    ck_assert_uint_eq(network->module_count, 4 + (uint32_t)types);
    for (int i = 0; i < types; i++)
      ck_assert_msg(network->modules[first + (uint32_t)i].type == forms[f].types[i], "%s: module %d", forms[f].nodes[0],
                    i);
    tws_network_destroy(network);
  }
}
END_TEST

START_TEST(unknown_nodes_are_named) {
  static const struct {
    const char *says, *nodes[MOST_NODES_HERE];
  } wrong[] = {{"node node_1 (Einsum): this operator is not translated", {"Einsum c -> y"}},
               {"node node_1 (Softmax)", {"Softmax c -> y"}},
               {"node node_2 (Mul): it combines", {"Relu c -> r", "Mul c,r -> y"}},
               {"node node_1 (Mul): a tensor of constants", {"Mul c,gamma -> y"}},
               {"node node_2 (Erf): the function", {"Neg c -> n", "Erf n -> y"}},
               {"node node_1 (MaxPool): its kernel_shape", {"MaxPool c -> y kernel_shape=2,1"}},
               {"node node_1 (MaxPool): windows of side 3", {"MaxPool c -> y kernel_shape=3,3"}},
               {"node node_1 (AveragePool): its means count padding",
                {"AveragePool c -> y kernel_shape=2,2 pads=1,1,1,1 count_include_pad=1"}},
               {"node node_1 (Conv): its weight fits no input", {"Conv c,conv.weight -> y"}},
               {"node node_1 (Transpose): no module", {"Transpose c -> y perm=0,1,3,2"}},
               {"node node_1 (MatMul): its second operand", {"MatMul c,c -> y"}},
               {"which no earlier node computes", {"Relu later -> y", "Relu c -> later"}},
               {"which no earlier node computes", {"Add c,y -> y"}},
               {"which no earlier node computes", {"Relu nothing -> y"}},
               {"two values have the name c", {"Relu c -> c", "Relu c -> y"}},
               {"the operands of Reshape do not fit", {"Reshape c,gamma -> y"}}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    tws_network *network;
    int count = 0;
    while (count < MOST_NODES_HERE && wrong[i].nodes[count]) count++;
    const tws_code code = read_between(wrong[i].nodes, count, &network);
    ck_assert_msg(code == TWS_UNSUPPORTED || code == TWS_INVALID, "accepted: %s", wrong[i].nodes[0]);
    ck_assert_msg(is_complete(), "no place or remedy: %s", err.message);
    ck_assert_msg(strstr(err.message, wrong[i].says) != NULL, "\"%s\" instead of \"%s\"", err.message, wrong[i].says);
  }
}
END_TEST

/* ---- faulty files ---- */

static void read_or_refuse(const char *bytes, size_t length, int *refused) {
  tws_onnx_model *model = NULL;
  const tws_json *json;
  tws_network *network = NULL;
  tws_code code = tws_onnx_read_bytes(bytes, length, "model.onnx", &model, &json, &err);
  if (code == TWS_OK) code = tws_network_from_json(json, 1, &network, &err);
  if (code == TWS_OK) code = tws_onnx_give_weights(model, network, &err);
  if (code != TWS_OK) {
    ck_assert_msg(code == TWS_INVALID || code == TWS_UNSUPPORTED, "%s", err.message);
    ck_assert_msg(is_complete(), "no remedy: %s", err.message);
    ++*refused;
  }
  tws_network_destroy(network);
  tws_onnx_close(model);
}

/* Every file that is cut off is refused, and of files of which some bytes are others each is read or refused. */
START_TEST(damaged_files_are_read_or_refused) {
  enum { CHANGED = 300 };
  char *text;
  size_t length;
  int refused = 0, cut = 0;
  HAND_OK(tws_read_file(model_path(models[_i]), 0, &text, &length, &err));
  for (uint64_t i = 0; i < CHANGED / 10; i++)
    read_or_refuse(text, (size_t)(tws_random_uniform(3, 1, i) * (double)length), &cut);
  ck_assert_int_eq(cut, CHANGED / 10);
  char *changed = malloc(length);
  for (uint64_t i = 0; i < CHANGED; i++) {
    memcpy(changed, text, length);
    for (uint64_t k = 0; k < 1 + i % 4; k++) {
      /* the first bytes of the file, and those between its weights, are what decides */
      const size_t at = (size_t)(tws_random_uniform(4, k, i) * (double)(i % 2 && length > 6000 ? 6000 : length));
      changed[at] = (char)(int)(tws_random_uniform(5, k, i) * 256);
    }
    read_or_refuse(changed, length, &refused);
  }
  ck_assert_int_gt(refused, CHANGED / 10);
  free(changed);
  tws_free(text);
}
END_TEST

START_TEST(other_files_are_refused) {
  static const char nothing[] = "", json[] = "{\"model_type\": \"network\"}";
  int refused = 0;
  read_or_refuse(nothing, 0, &refused);
  read_or_refuse(json, sizeof json - 1, &refused);
  ck_assert_int_eq(refused, 2);
  /* elements in another file */
  onnx_writer w = {.nodes = 0};
  onnx_port(&w, 11, "x", ONNX_FLOATS, "?,3");
  onnx_port(&w, 12, "y", ONNX_FLOATS, "?,2");
  const size_t tensor = tws_protobuf_begin(&w.graph);
  tws_protobuf_integer(&w.graph, 1, 3);
  tws_protobuf_integer(&w.graph, 2, ONNX_FLOATS);
  tws_protobuf_text(&w.graph, 8, "far");
  tws_protobuf_text(&w.graph, 13, "");
  tws_protobuf_integer(&w.graph, 14, 1);
  tws_protobuf_end(&w.graph, 5, tensor);
  onnx_node(&w, "Relu x -> y");
  tws_text file = onnx_file(&w);
  read_or_refuse(file.data, file.length, &refused);
  ck_assert_msg(strstr(err.message, "tensor far are in another file") != NULL, "%s", err.message);
  tws_text_free(&file);
  /* constants that are too large: a chain of expansions */
  w = (onnx_writer){.nodes = 0};
  onnx_port(&w, 11, "x", ONNX_FLOATS, "?,3");
  onnx_port(&w, 12, "y", ONNX_FLOATS, "?,2");
  onnx_tensor(&w, "shape", ONNX_INTS, "4", 5000, 0);
  onnx_tensor(&w, "one", ONNX_FLOATS, "1", 1, 0);
  onnx_node(&w, "Expand one,shape -> e");
  onnx_node(&w, "Add x,e -> y");
  file = onnx_file(&w);
  read_or_refuse(file.data, file.length, &refused);
  ck_assert_int_eq(refused, 4);
  tws_text_free(&file);
  command_result r = twinspeed("estimate -m %s", in_folder("missing.onnx"));
  ck_assert_int_eq(r.status, 4);
  command_free(&r);
}
END_TEST

typedef struct file_bytes {
  char *bytes;
  size_t length;
} file_bytes;

static tws_code read_file(void *user) {
  const file_bytes *file = user;
  tws_onnx_model *model = NULL;
  const tws_json *json;
  tws_network *network = NULL;
  tws_code code = tws_onnx_read_bytes(file->bytes, file->length, "model.onnx", &model, &json, &err);
  if (code == TWS_OK) code = tws_network_from_json(json, 1, &network, &err);
  if (code == TWS_OK) code = tws_onnx_give_weights(model, network, &err);
  tws_network_destroy(network);
  tws_onnx_close(model);
  return code;
}

START_TEST(allocations_may_fail) {
  static const char *const names[] = {"pictures", "pictures_plain", "tokens"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char path[600];
    file_bytes file;
    long bad;
    snprintf(path, sizeof path, "%s/fuzz/corpus/onnx/%s.onnx", TWS_TEST_DIR, names[i]);
    HAND_OK(tws_read_file(path, 0, &file.bytes, &file.length, &err));
    ck_assert_int_gt(fail_every_allocation(read_file, &file, &bad), 30);
    ck_assert_msg(bad == 0, "%s: %ld allocations that failed were not reported, or others were not freed", names[i],
                  bad);
    tws_free(file.bytes);
  }
}
END_TEST

static void open_golden(void) {
  golden = golden_file("onnx.json");
}

int main(void) {
  Suite *suite = suite_create("onnx");
  TCase *tests = tcase_create("onnx");
  tcase_add_unchecked_fixture(tests, open_golden, NULL);
  tcase_add_loop_test(tests, outputs_are_pytorchs, 0, MODELS);
  tcase_add_loop_test(tests, parameters_are_pytorchs, 0, MODELS);
  tcase_add_test(tests, ranks_train_the_files_weights);
  tcase_add_test(tests, files_predict);
  tcase_add_test(tests, functions_become_modules);
  tcase_add_test(tests, sums_that_no_module_computes_are_additions);
  tcase_add_test(tests, unknown_nodes_are_named);
  tcase_add_loop_test(tests, damaged_files_are_read_or_refused, 0, MODELS);
  tcase_add_test(tests, other_files_are_refused);
  tcase_add_test(tests, allocations_may_fail);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
