/* ctest: mpi */
/* Encoders against the reference library: tests/golden/encoders.json says how many parameters its models have and what
 * it loses from equal weights on equal masked samples; the same divided over two ranks. Dropout draws the same bits for
 * every division. */
#include "answers.h"
#include "members.h"
#include "models/network/network.h"
#include "train.h"

enum { MOST_STEPS = 20 };

static void losses_of(const char *model, const char *text, int steps, const char *how, double *losses) {
  command_result r = twinspeed(
      "train -m %s --data %s --steps %d --seq 64 --seed 1 --set optimizer.params.lr=0.001 "
      "--set optimizer.params.weight_decay=0 --set twinspeed.ignored_token=126 --threads 1 --json --quiet %s",
      model, text, steps, how);
  ck_assert_msg(r.status == 0, "%s: %s", how, r.err);
  cJSON *json = assert_json(&r, "twinspeed-train-1");
  const cJSON *list = member(json, "losses");
  ck_assert_int_eq(cJSON_GetArraySize(list), steps);
  for (int i = 0; i < steps; i++) losses[i] = cJSON_GetArrayItem(list, i)->valuedouble;
  cJSON_Delete(json);
  command_free(&r);
}

static void write_model(const char *path, const cJSON *config) {
  char *text = cJSON_PrintUnformatted(config);
  write_text(path, text);
  cJSON_free(text);
}

static void write_data(const char *path, const tws_json *golden) {
  FILE *file = fopen(path, "w");
  for (int i = 0; i < 64; i++) fputs(member(golden->root, "text")->valuestring, file);
  fclose(file);
}

static const char *const divisions[] = {
    "-n 2 --stage 3 --micro-batch 1", "-n 2 --tp 2 --micro-batch 2", "-n 2 --tp 2 --micro-batch 2 --sequence-parallel",
    "-n 2 --sp 2 --micro-batch 2 --recompute full", "-n 2 --pp 2 --micro-batch 1 --accumulation 2"};
enum { DIVISIONS = sizeof divisions / sizeof *divisions };

START_TEST(encoders_lose_what_the_reference_loses) {
  tws_json *golden = golden_file("encoders.json");
  char model[96], text[96];
  snprintf(text, sizeof text, "%s", in_folder("text"));
  snprintf(model, sizeof model, "%s", in_folder("model.json"));
  write_data(text, golden);
  double worst = 0, losses[MOST_STEPS];
  const cJSON *family;
  cJSON_ArrayForEach(family, member(golden->root, "families")) {
    const cJSON *expected = member(family, "losses");
    write_model(model, member(family, "config"));
    for (int d = -1; d < DIVISIONS; d++) {
      const char *how = d < 0 ? "-n 1 --micro-batch 2" : divisions[d];
      const int steps = d < 0 ? cJSON_GetArraySize(expected) : 3;
      losses_of(model, text, steps, how, losses);
      for (int s = 0; s < steps; s++) {
        const double want = cJSON_GetArrayItem(expected, s)->valuedouble, error = fabs(losses[s] / want - 1);
        ck_assert_msg(error < 2e-6, "%s, %s, step %d: loss %.9g, not %.9g", member(family, "name")->valuestring, how,
                      s + 1, losses[s], want);
        worst = fmax(worst, error);
      }
    }
  }
  printf("largest relative difference of a loss: %.2g\n", worst);
  tws_json_destroy(golden);
}
END_TEST

/* Embeddings, probabilities and residual branches, in the order of norms of BERT and of GPT-2. */
START_TEST(dropout_is_the_same_for_every_division) {
  static const char *const models[] = {
      "{\"model_type\":\"bert\",\"vocab_size\":259,\"num_hidden_layers\":2,\"hidden_size\":32,"
      "\"num_attention_heads\":4,\"intermediate_size\":64,\"max_position_embeddings\":64,\"hidden_act\":\"gelu_new\","
      "\"hidden_dropout_prob\":0.1,\"attention_probs_dropout_prob\":0.2}",
      "{\"model_type\":\"gpt2\",\"vocab_size\":259,\"n_positions\":64,\"n_layer\":2,\"n_embd\":32,\"n_head\":4,"
      "\"attn_pdrop\":0.1,\"resid_pdrop\":0.2,\"embd_pdrop\":0.1}"};
  enum { FIRST_STEPS = 3 };
  tws_json *golden = golden_file("encoders.json");
  char model[96], text[96];
  snprintf(text, sizeof text, "%s", in_folder("text"));
  snprintf(model, sizeof model, "%s", in_folder("model.json"));
  write_data(text, golden);
  for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
    double one[FIRST_STEPS], whole[FIRST_STEPS], losses[FIRST_STEPS];
    write_text(model, models[m]);
    losses_of(model, text, FIRST_STEPS, "-n 1 --micro-batch 2", one);
    losses_of(model, text, FIRST_STEPS, "-n 1 --micro-batch 2 --set twinspeed.dropout=false", whole);
    ck_assert_double_gt(fabs(one[FIRST_STEPS - 1] / whole[FIRST_STEPS - 1] - 1), 1e-4);
    for (int d = 0; d < DIVISIONS; d++) {
      losses_of(model, text, FIRST_STEPS, divisions[d], losses);
      for (int s = 0; s < FIRST_STEPS; s++)
        ck_assert_msg(fabs(losses[s] / one[s] - 1) < 1e-6, "model %zu, %s, step %d: loss %.9g, not %.9g", m,
                      divisions[d], s + 1, losses[s], one[s]);
    }
  }
  tws_json_destroy(golden);
}
END_TEST

START_TEST(public_counts) {
  tws_json *golden = golden_file("encoders.json");
  const cJSON *row;
  tws_error err;
  cJSON_ArrayForEach(row, member(golden->root, "counts")) {
    char *text = cJSON_PrintUnformatted(member(row, "config"));
    tws_json *json = NULL;
    for (int multiple = 1; multiple <= 128; multiple += 127) {
      tws_network *network = NULL;
      ck_assert_msg(tws_json_parse(text, strlen(text), "config.json", &json, &err) == TWS_OK &&
                        tws_network_from_json(json, multiple, &network, &err) == TWS_OK,
                    "%s: %s", member(row, "name")->valuestring, err.message);
      ck_assert_msg((double)tws_network_params(network, 1) == member(row, "parameters")->valuedouble,
                    "%s: %lld parameters", member(row, "name")->valuestring, (long long)tws_network_params(network, 1));
      tws_network_destroy(network);
      tws_json_destroy(json);
    }
    cJSON_free(text);
  }
  tws_json_destroy(golden);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("train_encoders");
  TCase *tests = tcase_create("train_encoders");
  tcase_add_test(tests, public_counts);
  tcase_add_test(tests, encoders_lose_what_the_reference_loses);
  tcase_add_test(tests, dropout_is_the_same_for_every_division);
  tcase_set_timeout(tests, 600);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
