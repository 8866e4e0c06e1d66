/* ctest: mpi sampled */
/* Encoders against the reference library: tests/golden/encoders.json has its parameter counts, and its losses with
 * equal weights on equal masked samples; trainings on one rank and on two are compared with it. Dropout draws the same
 * bits for every division. */
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

/* Dropout of embeddings, probabilities and residual branches is the same for every division, with the norms in BERT's
 * and in GPT-2's order, and with DeBERTa's positions. */
START_TEST(dropout_is_the_same_for_every_division) {
  static const char *const models[] = {
      "{\"model_type\":\"bert\",\"vocab_size\":259,\"num_hidden_layers\":2,\"hidden_size\":32,"
      "\"num_attention_heads\":4,\"intermediate_size\":64,\"max_position_embeddings\":64,\"hidden_act\":\"gelu_new\","
      "\"hidden_dropout_prob\":0.1,\"attention_probs_dropout_prob\":0.2}",
      "{\"model_type\":\"gpt2\",\"vocab_size\":259,\"n_positions\":64,\"n_layer\":2,\"n_embd\":32,\"n_head\":4,"
      "\"attn_pdrop\":0.1,\"resid_pdrop\":0.2,\"embd_pdrop\":0.1}",
      "{\"model_type\":\"deberta-v2\",\"vocab_size\":259,\"num_hidden_layers\":2,\"hidden_size\":32,"
      "\"num_attention_heads\":4,\"intermediate_size\":64,\"max_position_embeddings\":64,\"hidden_dropout_prob\":0.1,"
      "\"attention_probs_dropout_prob\":0.2,\"relative_attention\":true,\"pos_att_type\":\"p2c|c2p\","
      "\"position_buckets\":16,\"share_att_key\":true,\"norm_rel_ebd\":\"layer_norm\"}",
      "{\"model_type\":\"deberta\",\"vocab_size\":259,\"num_hidden_layers\":2,\"hidden_size\":32,"
      "\"num_attention_heads\":4,\"intermediate_size\":64,\"max_position_embeddings\":64,\"hidden_dropout_prob\":0.1,"
      "\"attention_probs_dropout_prob\":0.2,\"relative_attention\":true,\"pos_att_type\":\"c2p|p2c\"}",
      "{\"model_type\":\"deberta-v2\",\"vocab_size\":259,\"num_hidden_layers\":2,\"hidden_size\":32,"
      "\"num_attention_heads\":4,\"intermediate_size\":64,\"max_position_embeddings\":64,\"hidden_dropout_prob\":0.1,"
      "\"conv_kernel_size\":3}"};
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
      if (m >= 2 && strstr(divisions[d], "--sp")) continue; /* refused */
      if (m == 4 && strstr(divisions[d], "--sequence-parallel")) continue;
      losses_of(model, text, FIRST_STEPS, divisions[d], losses);
      for (int s = 0; s < FIRST_STEPS; s++)
        ck_assert_msg(fabs(losses[s] / one[s] - 1) < 1e-6, "model %zu, %s, step %d: loss %.9g, not %.9g", m,
                      divisions[d], s + 1, losses[s], one[s]);
    }
  }
  tws_json_destroy(golden);
}
END_TEST

/* Both losses of BERT's pre-training are the same for every division: each is a mean over its valid targets in the
 * whole batch, although ranks and micro-batches have different numbers of masked tokens. The data are a text, and lines
 * with labels. */
START_TEST(sentences_are_the_same_for_every_division) {
  static const char *const divided[] = {"-n 2 --stage 3 --micro-batch 1", "-n 2 --tp 2 --micro-batch 2",
                                        "-n 1 --micro-batch 1 --accumulation 2",
                                        "-n 2 --pp 2 --micro-batch 1 --accumulation 2 --recompute full"};
  enum { FIRST_STEPS = 3, LINES = 8 };
  static const char line[] =
      "{\"input\": [256, %d, 72, 97, 257, 98, %d%s, 257], \"types\": [0, 0, 0, 0, 0, 1, 1%s, 1], "
      "\"label\": %d}\n";
  char model[96], data[2][96];
  double losses[FIRST_STEPS], one[FIRST_STEPS];
  snprintf(model, sizeof model, "%s", in_folder("model.json"));
  snprintf(data[0], sizeof data[0], "%s", in_folder("text"));
  snprintf(data[1], sizeof data[1], "%s", in_folder("lines.jsonl"));
  write_text(model,
             "{\"model_type\":\"bert\",\"architectures\":[\"BertForPreTraining\"],\"vocab_size\":259,"
             "\"num_hidden_layers\":2,\"hidden_size\":32,\"num_attention_heads\":4,\"intermediate_size\":64,"
             "\"max_position_embeddings\":64,\"hidden_dropout_prob\":0.1,\"attention_probs_dropout_prob\":0.2}");
  tws_json *golden = golden_file("encoders.json");
  write_data(data[0], golden);
  tws_json_destroy(golden);
  FILE *file = fopen(data[1], "w");
  for (int i = 0; i < LINES; i++)
    fprintf(file, line, 60 + i, 90 + i, i % 3 ? ", 65, 66, 67, 68, 69" : "", i % 3 ? ", 1, 1, 1, 1, 1" : "", i % 2);
  fclose(file);
  for (int from = 0; from < 2; from++) {
    losses_of(model, data[from], FIRST_STEPS, "-n 1 --micro-batch 2", one);
    for (size_t d = 0; d < sizeof divided / sizeof *divided; d++) {
      losses_of(model, data[from], FIRST_STEPS, divided[d], losses);
      for (int s = 0; s < FIRST_STEPS; s++)
        ck_assert_msg(fabs(losses[s] / one[s] - 1) < 1e-6, "%s, %s, step %d: loss %.9g, not %.9g", data[from],
                      divided[d], s + 1, losses[s], one[s]);
    }
  }
  command_result r =
      twinspeed("train -m %s --data %s --eval-data %s --steps 2 --seq 64 --micro-batch 2 --threads 1 --json --quiet",
                model, data[0], data[0]);
  cJSON *json = assert_json(&r, "twinspeed-train-1");
  const cJSON *parts = member(json, "parts_of_losses"), *list = member(json, "losses");
  for (int s = 0; s < 2; s++) {
    const double next = cJSON_GetArrayItem(member(parts, "next sentence"), s)->valuedouble,
                 words = cJSON_GetArrayItem(member(parts, "masked tokens"), s)->valuedouble;
    ck_assert(fabs(next - log(2)) < 0.1 && fabs(words - log(259)) < 0.5);
    ck_assert_double_eq_tol(next + words, cJSON_GetArrayItem(list, s)->valuedouble, 1e-12);
  }
  const double evaluated = number(cJSON_GetArrayItem(member(json, "evaluations"), 0), "loss");
  ck_assert_double_eq_tol(evaluated, log(2) + log(259), 0.5);
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* An encoder-decoder with dropout has the same losses for every division, on pairs of texts and on a text with left-out
 * spans. */
START_TEST(pairs_are_the_same_for_every_division) {
  static const char *const divided[] = {"-n 2 --stage 3 --micro-batch 1", "-n 2 --tp 2 --micro-batch 2",
                                        "-n 2 --tp 2 --micro-batch 2 --sequence-parallel",
                                        "-n 2 --pp 2 --micro-batch 1 --accumulation 2 --recompute full"};
  static const struct {
    const char *line, *says;
  } bad[] = {{"{\"input\": \"a\"}", "line 2: there is no \"target\""},
             {"{\"input\": \"a\", \"target\": \"\"}", "line 2: its target is empty"},
             {"{\"input\": [1, 260], \"target\": \"b\"}", "line 2: 260 is none of the model's 259 tokens"},
             {"[1, 2", "line 2: it is no JSON object"}};
  enum { FIRST_STEPS = 3, PAIRS = 12 };
  char model[96], pairs[96], lengths[96], how[400];
  double one[FIRST_STEPS], losses[FIRST_STEPS];
  snprintf(model, sizeof model, "%s", in_folder("model.json"));
  snprintf(pairs, sizeof pairs, "%s", in_folder("pairs.jsonl"));
  snprintf(lengths, sizeof lengths, "--set twinspeed.target_length=24 --set twinspeed.ignored_token=-1");
  write_text(model,
             "{\"model_type\":\"t5\",\"vocab_size\":259,\"num_layers\":2,\"d_model\":32,\"d_kv\":12,\"d_ff\":48,"
             "\"num_heads\":4,\"feed_forward_proj\":\"gated-gelu\","
             "\"dropout_rate\":0.1}");
  FILE *file = fopen(pairs, "w");
  for (int i = 0; i < PAIRS; i++) /* the longest are cut */
    fprintf(file, "{\"input\": \"%.*s\", \"target\": [%d, %d, 7]}\n\n", 9 * i,
            "all hands on deck and then down again to the boats, over the bar and out before the night is on us", i + 2,
            2 * i + 3);
  fclose(file);
  for (int of = 0; of < 2; of++) {
    const char *data = of ? text_path : pairs;
    snprintf(how, sizeof how, "-n 1 --micro-batch 2 %s", lengths);
    losses_of(model, data, FIRST_STEPS, how, one);
    for (size_t d = 0; d < sizeof divided / sizeof *divided; d++) {
      snprintf(how, sizeof how, "%s %s", divided[d], lengths);
      losses_of(model, data, FIRST_STEPS, how, losses);
      for (int s = 0; s < FIRST_STEPS; s++)
        ck_assert_msg(fabs(losses[s] / one[s] - 1) < 1e-5, "%s, %s, step %d: loss %.9g, not %.9g", data, divided[d],
                      s + 1, losses[s], one[s]);
    }
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char text[160];
    snprintf(text, sizeof text, "{\"input\": \"a\", \"target\": \"b\"}\n%s\n", bad[i].line);
    write_text(pairs, text);
    snprintf(how, sizeof how, "train -m %s --data %s --seq 64 --micro-batch 1 -n 1 --steps 1", model, pairs);
    assert_says(how, 3, bad[i].says);
  }
  snprintf(how, sizeof how, "estimate -m %s --pp 8 -n 8 --micro-batch 1", model);
  assert_says(how, 3, "8 pipeline stages");
  snprintf(how, sizeof how, "estimate -m %s --sp 2 -n 2 --micro-batch 1", model);
  assert_says(how, 3, "does not divide attention with relative biases");
}
END_TEST

/* Classifiers of texts and of tokens, and models of spans, have the same losses in every division, with dropout and
 * texts of several lengths, from lines with labels. */
START_TEST(labels_are_learned_in_every_division) {
#define BERT_SIZES                                                                                                    \
  "\"vocab_size\":259,\"num_hidden_layers\":2,\"hidden_size\":32,\"num_attention_heads\":4,\"intermediate_size\":64," \
  "\"max_position_embeddings\":64,\"id2label\":{\"0\":\"a\",\"1\":\"b\",\"2\":\"c\"}"
#define BERT(head) \
  "{\"model_type\":\"bert\",\"architectures\":[\"BertFor" head "\"],\"hidden_dropout_prob\":0.1," BERT_SIZES
  static const char *const models[] = {
      BERT("SequenceClassification") "}", BERT("TokenClassification") "}",
      BERT("QuestionAnswering") ",\"num_labels\":2}",
      "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForSequenceClassification\"]," BERT_SIZES "}"};
  static const char *const divided[] = {"-n 2 --stage 3 --micro-batch 1", "-n 2 --tp 2 --micro-batch 2",
                                        "-n 2 --pp 2 --micro-batch 1 --accumulation 2 --recompute full",
                                        "-n 2 --sp 2 --micro-batch 2"};
  static const struct {
    int model;
    const char *line, *says;
  } bad[] = {{0, "{\"input\": \"a\"}", "line 2: there is no number \"label\""},
             {0, "{\"input\": \"\", \"label\": 0}", "line 2: its input is empty"},
             {0, "{\"input\": \"a\", \"label\": 3}", "line 2: the label is 3, and the model has 3 classes"},
             {0, "{\"input\": \"a\", \"label\": -1}", "line 2: the label is -1"},
             {0, "{\"input\": \"ab\", \"label\": 0, \"types\": [0]}", "1 numbers in \"types\" for 2 tokens"},
             {0, "{\"input\": \"ab\", \"label\": 0, \"types\": [0, 2]}", "2 in \"types\" is none of the model's 2"},
             {1, "{\"input\": \"ab\", \"labels\": [0, \"b\"]}", "\"labels\" is none of the model's 3"},
             {1, "{\"input\": \"ab\", \"labels\": [0]}", "1 numbers in \"labels\" for 2 tokens"},
             {1, "{\"input\": \"ab\", \"label\": 0}", "0 numbers in \"labels\" for 2 tokens"},
             {2, "{\"input\": \"ab\", \"label\": 0}", "line 2: there are no two numbers \"span\""},
             {2, "{\"input\": \"ab\", \"span\": [1, 2]}", "its span is not one of its tokens"},
             {2, "{\"input\": \"ab\", \"span\": [1, 0]}", "its span is not one of its tokens"},
             {2, "{\"question\": \"a\"}", "neither an \"input\" nor texts"},
             {2, "{\"question\": \"a\", \"context\": \"b\"}", "no lists \"text\" and \"answer_start\""},
             {2, "{\"question\":\"a\",\"context\":\"bc\",\"answers\":{\"text\":[\"c\"],\"answer_start\":[0]}}",
              "the context does not have its answer where that starts"}};
  enum { FIRST_STEPS = 3, LINES = 12, MODELS = sizeof models / sizeof *models };
  char model[96], lines[96], how[400];
  double one[FIRST_STEPS], losses[FIRST_STEPS];
  snprintf(model, sizeof model, "%s", in_folder("model.json"));
  snprintf(lines, sizeof lines, "%s", in_folder("labels.jsonl"));
  for (int m = 0; m < MODELS; m++) {
    write_text(model, models[m]);
    FILE *file = fopen(lines, "w");
    for (int i = 0; i < LINES; i++) /* the longest are cut */
      fprintf(file,
              "{\"input\": [%d, 5%s], \"label\": %d, \"labels\": [2, -100%s], \"types\": [0, %d%s], "
              "\"span\": [%d, %d]}\n",
              i % 3, i % 2 ? ", 9, 9, 9" : "", i % 3, i % 2 ? ", 0, 1, 2" : "", m < 3,
              i % 2 == 0 ? ""
              : m < 3    ? ", 0, 0, 1"
                         : ", 0, 0, 0",
              i % 2, i % 2 ? 2 + i % 3 : 1);
    fclose(file);
    if (m == 3) continue;
    losses_of(model, lines, FIRST_STEPS, "-n 1 --micro-batch 2", one);
    for (int d = 0; d < (m == 1 ? 4 : 3); d++) {
      losses_of(model, lines, FIRST_STEPS, divided[d], losses);
      for (int s = 0; s < FIRST_STEPS; s++)
        ck_assert_msg(fabs(losses[s] / one[s] - 1) < 1e-5, "model %d, %s, step %d: loss %.9g, not %.9g", m, divided[d],
                      s + 1, losses[s], one[s]);
    }
  }
  double long_run[40];
  command_result r = twinspeed(
      "train -m %s --data %s --steps 40 --seq 8 --micro-batch 4 --set optimizer.params.lr=0.01 "
      "--threads 1 --json --quiet",
      model, lines);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-train-1");
  for (int i = 0; i < 40; i++) long_run[i] = cJSON_GetArrayItem(member(json, "losses"), i)->valuedouble;
  ck_assert_msg(long_run[0] > 0.8 && long_run[39] < 0.1, "losses from %g to %g", long_run[0], long_run[39]);
  cJSON_Delete(json);
  command_free(&r);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char text[160];
    write_text(model, models[bad[i].model]);
    snprintf(text, sizeof text, "{\"input\": \"a\", \"label\": 1, \"labels\": [1], \"span\": [0, 0]}\n%s\n",
             bad[i].line);
    write_text(lines, text);
    snprintf(how, sizeof how, "train -m %s --data %s --seq 64 --micro-batch 1 -n 1 --steps 1", model, lines);
    assert_says(how, 3, bad[i].says);
  }
  snprintf(how, sizeof how, "train -m %s --data %s --seq 64 --micro-batch 1 -n 1 --steps 1", model, text_path);
  assert_says(how, 3, "a classifier is trained on a file of lines with labels");
  write_text(model, models[0]);
  snprintf(how, sizeof how, "estimate -m %s --sp 2 -n 2 --micro-batch 1", model);
  assert_says(how, 3, "is one token of a sample");
  snprintf(how, sizeof how, "estimate -m %s --tp 2 --sequence-parallel -n 2 --micro-batch 2", model);
  assert_says(how, 3, "does not divide the tokens that a classifier reads");
  write_text(model, BERT("SequenceClassification") ",\"problem_type\":\"regression\"}");
  snprintf(how, sizeof how, "estimate -m %s -n 1 --micro-batch 1", model);
  assert_says(how, 3, "a head for regression is not supported");
  write_text(model, BERT("MultipleChoice") "}");
  assert_says(how, 3, "BertForMultipleChoice, which is not modelled");
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

/* Questions that are given as texts are tokenized as bytes, and positions of answers count characters. */
START_TEST(questions_are_texts) {
  enum { FIRST_STEPS = 3 };
  static const char *const as_texts =
      "{\"question\":\"q?\",\"context\":\"\xc3\xa9 is "
      "e\",\"answers\":{\"text\":[\"is\",\"e\"],\"answer_start\":[2,5]}}\n"
      "{\"question\":\"n\",\"context\":\"none\",\"answers\":{\"text\":[],\"answer_start\":[]}}\n";
  static const char *const as_tokens =
      "{\"input\":[113,63,195,169,32,105,115,32,101],\"types\":[0,0,1,1,1,1,1,1,1],\"span\":[5,6]}\n"
      "{\"input\":[110,110,111,110,101],\"types\":[0,1,1,1,1],\"span\":[0,0]}\n";
  char model[96], lines[96];
  double losses[2][FIRST_STEPS];
  snprintf(model, sizeof model, "%s", in_folder("model.json"));
  snprintf(lines, sizeof lines, "%s", in_folder("questions.jsonl"));
  write_text(model, BERT("QuestionAnswering") ",\"num_labels\":2}");
  for (int tokens = 0; tokens < 2; tokens++) {
    write_text(lines, tokens ? as_tokens : as_texts);
    losses_of(model, lines, FIRST_STEPS, "-n 1 --micro-batch 2", losses[tokens]);
  }
  for (int s = 0; s < FIRST_STEPS; s++)
    ck_assert_msg(losses[0][s] == losses[1][s] && losses[0][s] > 0.5, "step %d: %g, as tokens %g", s + 1, losses[0][s],
                  losses[1][s]);
  write_text(model, BERT("QuestionAnswering") "}");
  char how[200];
  snprintf(how, sizeof how, "estimate -m %s -n 1 --micro-batch 1", model);
  assert_says(how, 3, "has 3 labels, not the 2 of a span");
  write_text(model, BERT("QuestionAnswering") ",\"num_labels\":2}");
  snprintf(how, sizeof how, "estimate -m %s --sp 2 -n 2 --micro-batch 1", model);
  assert_says(how, 3, "scores all tokens of a sample together");
}
END_TEST

/* Weights with three dimensions keep their shape in a checkpoint and in the file converted from it. */
START_TEST(convolutions_keep_their_shape) {
  char model[96], run[96], weights[96], head[4096] = "";
  snprintf(model, sizeof model, "%s", in_folder("model.json"));
  snprintf(run, sizeof run, "%s", in_folder("run"));
  snprintf(weights, sizeof weights, "%s", in_folder("weights.safetensors"));
  write_text(
      model,
      "{\"model_type\":\"deberta-v2\",\"vocab_size\":259,\"num_hidden_layers\":1,\"hidden_size\":16,"
      "\"num_attention_heads\":4,\"intermediate_size\":24,\"max_position_embeddings\":64,\"conv_kernel_size\":3}");
  const char *const steps[] = {
      "train -m %s --data %s --seq 16 --micro-batch 1 -n 1 --threads 1 --steps 1 --save %s -q",
      "convert checkpoint %s %s",
      "train -m %s --data %s --seq 16 --micro-batch 1 -n 1 --threads 1 --steps 1 --init-from %s -q"};
  const char *const words[][3] = {{model, text_path, run}, {run, weights, ""}, {model, text_path, weights}};
  for (int i = 0; i < 3; i++) {
    command_result r = twinspeed(steps[i], words[i][0], words[i][1], words[i][2]);
    ck_assert_msg(r.status == 0, "%s: %s", steps[i], r.err);
    command_free(&r);
  }
  FILE *file = fopen(weights, "rb");
  ck_assert_ptr_nonnull(file);
  ck_assert_uint_gt(fread(head, 1, sizeof head - 1, file), 8);
  fclose(file);
  ck_assert_msg(strstr(head + 8, "[16,16,3]") != NULL, "%s", head + 8);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("train_encoders");
  TCase *tests = tcase_create("train_encoders");
  tcase_add_test(tests, public_counts);
  tcase_add_test(tests, encoders_lose_what_the_reference_loses);
  tcase_add_test(tests, sentences_are_the_same_for_every_division);
  tcase_add_test(tests, pairs_are_the_same_for_every_division);
  tcase_add_test(tests, labels_are_learned_in_every_division);
  tcase_add_test(tests, questions_are_texts);
  tcase_add_test(tests, convolutions_keep_their_shape);
  tcase_add_test(tests, dropout_is_the_same_for_every_division);
  tcase_set_timeout(tests, 600);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
