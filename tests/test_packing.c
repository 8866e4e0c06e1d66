/* ctest: engine mpi sampled */
/* Packed documents: the loss and gradients of a sample with several documents are those of the documents alone, in
 * every family that can separate documents; also divided over ranks; and the refusals. */
#include "answers.h"
#include "hand_network.h"
#include "members.h"
#include "models/network/packing.h"
#include "real/objective.h"
#include "train.h"

enum { LETTERS = 32, LENGTH = 24, SAMPLES = 2, END = 3, MOST_NUMBERS = 2 * LENGTH * SAMPLES };
#define SECTION "\"gradient_clipping\": 0, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"weight_decay\": 0}}"

static tws_network *network_of(const cJSON *config) {
  char *text = cJSON_PrintUnformatted(config);
  tws_json *json = NULL;
  tws_network *network = NULL;
  HAND_OK(tws_json_parse(text, strlen(text), "config.json", &json, &err));
  ck_assert_msg(tws_network_from_json(json, 1, &network, &err) == TWS_OK, "%s: %s", text, err.message);
  tws_json_destroy(json);
  cJSON_free(text);
  return network;
}

static const char *config_text(int samples, int length, const char *more) {
  static char text[512];
  snprintf(text, sizeof text,
           "{\"train_micro_batch_size_per_gpu\": %d, " SECTION
           ", \"twinspeed\": {\"sequence_length\": %d, \"expert_capacity_factor\": 0%s}}",
           samples, length, more);
  return text;
}
static char packed_keys[64];

static tws_code pack(tws_network *network) {
  tws_config *config = NULL;
  HAND_OK(resolve(config_text(SAMPLES, LENGTH, packed_keys), 1, network->hidden, &config));
  const tws_code code = tws_network_pack(network, config, &err);
  tws_config_destroy(config);
  return code;
}

/* ---- documents alone ---- */

/* Lengths of the documents of both samples: one has a document of one token, the other is a single document. */
static const int lengths[SAMPLES][5] = {{7, 1, 12, 4}, {24}};

typedef struct batch {
  int32_t input[TWS_NETWORK_INPUTS][MOST_NUMBERS]; /* of the packed network */
  int32_t ids[SAMPLES * LENGTH], targets[SAMPLES * LENGTH];
} batch;

/* Makes a batch of random letters. Each target is the document's next letter, or for an encoder the letters of masked
 * tokens. */
static void make_batch(const tws_network *network, batch *b) {
  const int masked = network->objective == TWS_OBJECTIVE_MASKED;
  memset(b, 0, sizeof *b);
  for (int s = 0; s < SAMPLES; s++)
    for (int d = 0, first = s * LENGTH; first < (s + 1) * LENGTH; first += lengths[s][d++])
      for (int t = first; t < first + lengths[s][d]; t++) {
        const int last = t == first + lengths[s][d] - 1;
        b->ids[t] = last ? END : 4 + (int32_t)(tws_random_uniform(3, 1, (uint64_t)t) * (LETTERS - 4));
        if (t > first) b->targets[t - 1] = masked ? b->targets[t - 1] : b->ids[t];
        b->targets[t] = masked && t % 3 == 0 ? 4 + t % (LETTERS - 4) : -1;
      }
  for (uint32_t i = 0; i < network->input_count; i++)
    for (int t = 0; t < SAMPLES * LENGTH; t++) {
      int32_t documents[2 * LENGTH];
      const int s = t / LENGTH, at = t % LENGTH;
      tws_documents_find(b->ids + s * LENGTH, LENGTH, END, documents);
      switch (network->input[i].content) {
        case TWS_INPUT_TOKENS:
          b->input[i][t] = b->ids[t];
          break;
        case TWS_INPUT_TARGETS:
          b->input[i][t] = b->targets[t];
          break;
        case TWS_INPUT_LENGTHS:
          b->input[i][s] = LENGTH;
          break;
        case TWS_INPUT_DOCUMENTS:
          memcpy(b->input[i] + 2 * t, documents + 2 * at, 2 * sizeof *documents);
          break;
        case TWS_INPUT_POSITIONS:
          b->input[i][t] = at - documents[2 * at];
          break;
        default: /* segments */
          b->input[i][t] = 0;
      }
    }
}

/* Trains on a document alone and adds its loss and gradients, weighted by the number of targets, which is returned. */
static int add_alone(const cJSON *model, const batch *b, const float *weights, int first, int length, double *loss,
                     double *gradients) {
  tws_network *network = network_of(model);
  hand_job job;
  int32_t input[TWS_NETWORK_INPUTS][LENGTH] = {{0}};
  int counted = 0;
  for (int t = 0; t < length; t++) counted += b->targets[first + t] >= 0;
  hand_job_begin(&job, network, config_text(1, length, ""));
  for (uint32_t i = 0; i < network->input_count; i++) {
    const tws_input_content content = network->input[i].content;
    const int32_t *of = content == TWS_INPUT_TOKENS ? b->ids : content == TWS_INPUT_TARGETS ? b->targets : NULL;
    for (int t = 0; t < length && of; t++) input[i][t] = of[first + t];
    for (int t = 0; t < length && content == TWS_INPUT_POSITIONS; t++) input[i][t] = t;
    if (content == TWS_INPUT_LENGTHS) input[i][0] = length;
    hand_input(&job, i, input[i]);
  }
  if (counted > 0) {
    *loss += counted * hand_loss(&job, weights, 1);
    for (uint64_t k = 0; k < job.first[network->param_count]; k++) gradients[k] += counted * (double)job.gradients[k];
  }
  hand_job_end(&job);
  tws_network_destroy(network);
  return counted;
}

static double worst;
static void compare_family(const cJSON *family, tws_network *network) {
  const cJSON *model = member(family, "config");
  const char *name = member(family, "name")->valuestring;
  hand_job job;
  batch b;
  double want = 0;
  int counted = 0;
  make_batch(network, &b);
  hand_job_begin(&job, network, config_text(SAMPLES, LENGTH, packed_keys));
  const uint64_t total = job.first[network->param_count];
  double *gradients = calloc(total + 1, sizeof *gradients);
  for (uint64_t w = 0; w < total; w++) /* larger weights than drawn ones, so that each affects the loss */
    if (fabsf(job.weights[w]) < 0.5F) job.weights[w] *= 4;
  for (uint32_t i = 0; i < network->input_count; i++) hand_input(&job, i, b.input[i]);
  const double got = hand_loss(&job, job.weights, 1), evaluated = hand_loss(&job, job.weights, 0);
  for (int s = 0; s < SAMPLES; s++)
    for (int d = 0, first = s * LENGTH; first < (s + 1) * LENGTH; first += lengths[s][d++])
      counted += add_alone(model, &b, job.weights, first, lengths[s][d], &want, gradients);
  want /= counted;
  ck_assert_msg(fabs(got / want - 1) < 1e-6, "%s loses %.9g, and %.9g apart", name, got, want);
  ck_assert_msg(fabs(evaluated / want - 1) < 1e-6, "%s: an evaluation says %.9g, not %.9g", name, evaluated, want);
  for (uint32_t p = 0; p < network->param_count; p++) {
    double size = 0, apart = 0;
    for (uint64_t w = job.first[p]; w < job.first[p + 1]; w++) {
      const double own = gradients[w] / counted, difference = job.gradients[w] - own;
      size += own * own;
      apart += difference * difference;
    }
    const double error = sqrt(apart) / (sqrt(size) + 1e-3); /* in smaller gradients rounding errors dominate */
    ck_assert_msg(error < 1e-5, "%s, gradient of %s: %.3g of %.3g apart", name, network->params[p].name, error,
                  sqrt(size));
    worst = fmax(worst, error);
  }
  free(gradients);
  hand_job_end(&job);
}

/* Compares the families of a file. Returns the number of families that can separate documents; *refused counts the
 * others, which are refused with a reason. */
static int compare_families(const char *file, int *refused) {
  tws_json *golden = golden_file(file);
  const cJSON *family;
  int done = 0;
  cJSON_ArrayForEach(family, member(golden->root, "families")) {
    tws_network *network = network_of(member(family, "config"));
    const tws_code code = pack(network);
    if (code == TWS_OK) compare_family(family, network);
    done += code == TWS_OK;
    if (code != TWS_OK) {
      ck_assert_msg(code == TWS_UNSUPPORTED && (strstr(err.message, "packed documents cannot be kept apart by ") ||
                                                strstr(err.message, "is one text by its form")),
                    "%s: %s", member(family, "name")->valuestring, err.message);
      ++*refused;
    }
    tws_network_destroy(network);
  }
  tws_json_destroy(golden);
  return done;
}

START_TEST(decoders_apart) {
  int refused = 0;
  const int done = compare_families("decoders.json", &refused);
  printf("%d decoders; gradients are off by at most %.2g\n", done, worst);
  ck_assert_msg(done >= 64 && refused == 3, "%d packed, %d refused", done, refused); /* dynamic, longrope twice */
}
END_TEST

START_TEST(encoders_apart) {
  int refused = 0;
  const int done = compare_families("encoder_heads.json", &refused);
  printf("%d encoders; gradients are off by at most %.2g\n", done, worst);
  ck_assert_msg(done == 6, "%d packed", done); /* families whose samples are neither classified nor pairs */
}
END_TEST

/* Separating documents changes the loss; the gradients are those of the changed loss. */
START_TEST(differs) {
  static const char *const models[] = {
      "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":16,\"n_head\":4,\"vocab_size\":32,\"n_positions\":32}",
      "{\"model_type\":\"mistral\",\"num_hidden_layers\":2,\"hidden_size\":16,\"num_attention_heads\":4,"
      "\"num_key_value_heads\":2,\"vocab_size\":32,\"intermediate_size\":24,\"sliding_window\":5}",
  };
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    cJSON *config = cJSON_Parse(models[i]);
    tws_network *network = network_of(config), *plain = network_of(config);
    hand_job job, whole;
    batch b;
    HAND_OK(pack(network));
    make_batch(network, &b);
    hand_job_begin(&job, network, config_text(SAMPLES, LENGTH, ", \"document_end_token\": 3, \"dropout\": false"));
    hand_job_begin(&whole, plain, config_text(SAMPLES, LENGTH, ", \"dropout\": false"));
    for (uint64_t w = 0; w < job.first[network->param_count]; w++)
      if (fabsf(job.weights[w]) < 0.5F) job.weights[w] *= 8;
    for (uint32_t k = 0; k < network->input_count; k++) hand_input(&job, k, b.input[k]);
    for (uint32_t k = 0; k < plain->input_count; k++) hand_input(&whole, k, b.input[k]);
    const double apart = hand_loss(&job, job.weights, 0), together = hand_loss(&whole, job.weights, 0);
    ck_assert_msg(fabs(apart - together) > 1e-3, "%s: %.9g", models[i], apart);
    for (uint32_t m = 0; m < network->module_count; m++) network->modules[m].dropout = 0;
    hand_differentiate(&job, 0.02);
    hand_job_end(&whole);
    hand_job_end(&job);
    tws_network_destroy(plain);
    tws_network_destroy(network);
    cJSON_Delete(config);
  }
}
END_TEST

/* ---- inputs ---- */

/* Reads inputs from a file: each rank gets its part of positions and targets, and all documents of its samples. */
START_TEST(inputs) {
  enum { SEQUENCE = 40, PARTS = 4, OWN = SEQUENCE / PARTS, PLACES = 6, NEWLINE = 10 };
  tws_network network = {.name = "by hand",
                         .objective = TWS_OBJECTIVE_NEXT_TOKEN,
                         .vocabulary = 256,
                         .input_count = 4,
                         .input = {{.content = TWS_INPUT_TOKENS},
                                   {.content = TWS_INPUT_TARGETS},
                                   {.content = TWS_INPUT_DOCUMENTS},
                                   {.content = TWS_INPUT_POSITIONS}}};
  int32_t ids[PLACES][OWN], targets[PLACES][OWN], documents[PLACES][2 * SEQUENCE], positions[PLACES][OWN],
      text[SEQUENCE + 1];
  void *const input[TWS_NETWORK_INPUTS] = {ids, targets, documents, positions};
  tws_data data;
  int ends = 0;
  HAND_OK(tws_data_open(text_path, SEQUENCE, 256, PLACES, 7, &data, &err));
  for (int part = 0; part < PARTS; part++) {
    const tws_batch_shape shape = {.train_batch = PLACES,
                                   .micro_batch = PLACES / 2,
                                   .accumulation = 2,
                                   .replicas = 1,
                                   .part = part,
                                   .parts = PARTS,
                                   .ignored = -1};
    const tws_objective_source from = {&network, &data, &shape, TWS_F32, 0, NEWLINE};
    HAND_OK(tws_objective_fill(&from, 0, input, &err));
    for (int s = 0; s < PLACES; s++) {
      const uint64_t sample = tws_data_sample(&data, PLACES, 0, s);
      HAND_OK(tws_data_tokens_at(&data, sample * SEQUENCE, SEQUENCE + 1, text, &err));
      for (int t = 0, begin = 0; t < SEQUENCE; t++) {
        const int own = t - part * OWN, last = text[t] == NEWLINE, end = documents[s][2 * t + 1];
        ck_assert_int_eq(documents[s][2 * t], begin);
        ck_assert(end > t && (end == SEQUENCE || text[end - 1] == NEWLINE));
        if (own >= 0 && own < OWN) {
          ck_assert_int_eq(ids[s][own], text[t]);
          ck_assert_int_eq(positions[s][own], t - begin);
          ck_assert_int_eq(targets[s][own], last ? -1 : text[t + 1]);
          ends += last;
        }
        if (last) begin = t + 1;
      }
    }
  }
  ck_assert_int_gt(ends, 2);
  tws_data_close(&data);
}
END_TEST

/* ---- divided over ranks ---- */

enum { TRAINED = 4 };
static void losses_of(const char *model, const char *how, double *losses) {
  command_result r = twinspeed(
      "train -m %s --data %s --steps %d --seq 64 --seed 1 --set twinspeed.document_end_token=10 --set "
      "twinspeed.dropout=false --set optimizer.params.lr=0.003 --threads 1 --json --quiet %s",
      model, text_path, TRAINED, how);
  ck_assert_msg(r.status == 0, "%s: %s", how, r.err);
  cJSON *json = assert_json(&r, "twinspeed-train-1");
  const cJSON *list = member(json, "losses");
  ck_assert_int_eq(cJSON_GetArraySize(list), TRAINED);
  for (int i = 0; i < TRAINED; i++) losses[i] = cJSON_GetArrayItem(list, i)->valuedouble;
  const cJSON *rank;
  cJSON_ArrayForEach(rank, member(json, "memory")) ck_assert_double_eq(
      number(member(rank, "device"), "predicted_bytes"), number(member(rank, "device"), "allocated_bytes"));
  cJSON_Delete(json);
  command_free(&r);
}

START_TEST(divided) {
  static const char *const models[] = {
      "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":32,\"n_head\":4,\"vocab_size\":256,\"n_positions\":64}",
      "{\"model_type\":\"mistral\",\"num_hidden_layers\":2,\"hidden_size\":32,\"num_attention_heads\":4,"
      "\"num_key_value_heads\":2,\"vocab_size\":256,\"intermediate_size\":48,\"sliding_window\":20}",
      "{\"model_type\":\"roberta\",\"num_hidden_layers\":2,\"hidden_size\":32,\"num_attention_heads\":4,"
      "\"intermediate_size\":48,\"vocab_size\":256,\"max_position_embeddings\":70,\"pad_token_id\":1}",
  };
  static const char *const divisions[] = {"-n 2 --stage 1 --micro-batch 2",
                                          "-n 2 --stage 2 --micro-batch 1 --accumulation 2",
                                          "-n 2 --stage 3 --micro-batch 2",
                                          "-n 2 --tp 2 --micro-batch 4",
                                          "-n 2 --tp 2 --micro-batch 4 --sequence-parallel",
                                          "-n 2 --sp 2 --micro-batch 4 --recompute full",
                                          "-n 2 --pp 2 --micro-batch 1 --accumulation 4"};
  double most = 0;
  for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
    double want[TRAINED], got[TRAINED];
    write_text(in_folder("model.json"), models[m]);
    char model[128];
    snprintf(model, sizeof model, "%s", in_folder("model.json"));
    losses_of(model, "-n 1 --micro-batch 4", want);
    for (size_t d = 0; d < sizeof divisions / sizeof *divisions; d++) {
      losses_of(model, divisions[d], got);
      for (int s = 0; s < TRAINED; s++) {
        ck_assert_msg(fabs(got[s] / want[s] - 1) < 1e-6, "%s, %s, step %d: %.9g, not %.9g", models[m], divisions[d],
                      s + 1, got[s], want[s]);
        most = fmax(most, fabs(got[s] / want[s] - 1));
      }
    }
  }
  printf("losses of divisions are off by at most %.2g\n", most);
}
END_TEST

/* After the end of a document, predictions do not depend on earlier tokens. */
START_TEST(generated) {
  command_result r = twinspeed(
      "train -m tiny-gpt2 --quiet --seq 32 --micro-batch 2 --accumulation 1 -n 1 --threads 1 --steps 20 --data %s "
      "--set twinspeed.document_end_token=10 --save %s/run",
      text_path, folder);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  char *said[2];
  for (int i = 0; i < 2; i++) {
    r = twinspeed(
        "generate -m tiny-gpt2 --quiet --threads 1 --resume %s/run --seq 32 --set twinspeed.document_end_token=10 "
        "--prompt '%sthe ' --tokens 12 --seed 4",
        folder, i ? "captain\n" : "");
    ck_assert_msg(r.status == 0, "%s", r.err);
    said[i] = r.out;
    free(r.err);
  }
  const char *behind = strchr(said[1], '\n');
  ck_assert_msg(behind && strcmp(behind + 1, said[0]) == 0, "\"%s\" is not \"%s\"", said[1], said[0]);
  free(said[0]);
  free(said[1]);
}
END_TEST

/* ---- costs, and refusals ---- */

/* Attention within documents of a quarter of the sequence costs about a quarter; without a stated length of documents
 * it costs the whole. */
START_TEST(costs) {
  tws_work work = {.code = TWS_KERNEL_ATTENTION, .flags = TWS_DOCUMENTS, .d = {2, 64, 4, 4, 16}};
  const double whole = tws_work_flops(&work);
  work.f[4] = 16;
  ck_assert_double_eq(tws_work_flops(&work) / whole, 4 * (16.0 * 17) / (64.0 * 65));
  work.d[6] = 16; /* a window of the documents' length changes nothing */
  ck_assert_double_eq(tws_work_flops(&work) / whole, 4 * (16.0 * 17) / (64.0 * 65));
  work.f[4] = 64, work.d[6] = 0;
  ck_assert_double_eq(tws_work_flops(&work), whole);
  double seconds[3];
  static const char *const keys[] = {"", "--set twinspeed.document_end_token=0",
                                     "--set twinspeed.document_end_token=0 --set twinspeed.document_length=512"};
  for (int i = 0; i < 3; i++) {
    command_result r = twinspeed(
        "estimate -m llama-3-8b --cluster dgx-h100:4 --stage 3 --seq 8192 --micro-batch 1 %s --json", keys[i]);
    ck_assert_msg(r.status == 0, "%s", r.err);
    cJSON *json = assert_json(&r, "twinspeed-estimate-1");
    seconds[i] = number(member(json, "time"), "step_s");
    cJSON_Delete(json);
    command_free(&r);
  }
  ck_assert_double_eq_tol(seconds[1] / seconds[0], 1, 1e-3);
  ck_assert_double_lt(seconds[2], 0.95 * seconds[1]);
}
END_TEST

START_TEST(refused) {
  static const struct {
    const char *flags, *says;
    int status;
  } bad[] = {
      {"-m gpt2 --set twinspeed.document_end_token=50257", "vocabulary of 50257", 3},
      {"-m gpt2 --set twinspeed.document_length=100", "documents are not packed", 3},
      {"-m gpt2 --set twinspeed.document_end_token=-2", "from -1 to", 3},
      {"-m llama-3-8b -n 2 --sp 2 --set twinspeed.sequence_algorithm=ring --set twinspeed.document_end_token=1",
       "does not divide packed documents", 3},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    command_result r = twinspeed("check --cluster dgx-a100 %s", bad[i].flags);
    ck_assert_msg(r.status == bad[i].status && strstr(r.err, bad[i].says), "%s: %d, %s", bad[i].flags, r.status, r.err);
    command_free(&r);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("packed documents");
  TCase *tests = tcase_create("packed documents");
  snprintf(packed_keys, sizeof packed_keys, ", \"document_end_token\": %d", END);
  tcase_add_test(tests, decoders_apart);
  tcase_add_test(tests, encoders_apart);
  tcase_add_test(tests, differs);
  tcase_add_test(tests, inputs);
  tcase_add_test(tests, divided);
  tcase_add_test(tests, generated);
  tcase_add_test(tests, costs);
  tcase_add_test(tests, refused);
  tcase_set_timeout(tests, 120);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
