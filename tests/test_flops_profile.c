/* The counts of `profile`: against exact formulas, and against a profile that DeepSpeed published. */
#include <check.h>
#include <math.h>

#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/suite.h"

static cJSON *profile(const char *words) {
  command_result r = twinspeed("profile %s --json", words);
  ck_assert_msg(r.status == 0, "%s: %s", words, r.err);
  cJSON *json = assert_json(&r, "twinspeed-profile-report-1");
  command_free(&r);
  return json;
}

static const cJSON *module(const cJSON *json, const char *name) {
  const cJSON *one;
  cJSON_ArrayForEach(one, member(json, "modules")) {
    if (strcmp(member(one, "name")->valuestring, name) == 0) return one;
  }
  ck_abort_msg("no module %s", name);
  return NULL;
}

static double macs(const cJSON *json, const char *name) {
  return number(module(json, name), "macs");
}

/* ---- GPT-2 ---- */

/* A causal query attends to itself and all earlier positions; each pair costs two products of the head's size. */
START_TEST(gpt2_by_formula) {
  const double h = 768, layers = 12, vocabulary = 50257, s = 1024, batch = 2, rows = s * batch;
  const double pairs = batch * 12 * s * (s + 1) / 2;
  cJSON *json = profile("-m gpt2 --cluster dgx-a100 -n 1 --dtype bf16 --micro-batch 2 --accumulation 3 --seq 1024");
  const double linear = rows * layers * 12 * h * h + rows * h * vocabulary, attention = layers * pairs * 2 * 64;
  ck_assert_double_eq_tol(number(json, "macs") / (linear + attention), 1, 1e-12);
  ck_assert_double_eq(number(module(json, ""), "macs"), number(json, "macs"));
  ck_assert_double_eq_tol(macs(json, "transformer.h.3.mlp"), rows * 8 * h * h, 1);
  /* In the backward pass a product becomes two: the gradients of its input and of its weight, which also sums the
   * bias */
  const double one_way = 2 * rows * h * 4 * h;
  const cJSON *up = module(json, "transformer.h.3.mlp.c_fc");
  ck_assert_double_ge(number(up, "backward_flops"), 2 * one_way);
  ck_assert_double_le(number(up, "backward_flops"), 2 * one_way * (1 + 1 / h));
  ck_assert_double_gt(number(up, "backward_s"), number(up, "forward_s"));
  const double worked = 3 * (number(json, "flops") + number(json, "backward_flops"));
  ck_assert_double_eq_tol(number(json, "mfu"), worked / (number(json, "iteration_s") * 312e12), 1e-9);
  ck_assert_double_eq(number(json, "hfu"), number(json, "mfu"));
  cJSON_Delete(json);
}
END_TEST

START_TEST(recomputed_flops_are_of_hfu_alone) {
  cJSON *json = profile("-m gpt2 --cluster dgx-a100 -n 1 --dtype bf16 --micro-batch 1 --seq 256 --recompute full");
  const double again = number(json, "recomputed_flops"), possible = number(json, "iteration_s") * 312e12;
  ck_assert_double_gt(again, 0);
  ck_assert_double_eq_tol(number(json, "hfu") - number(json, "mfu"), again / possible, 1e-9);
  cJSON_Delete(json);
}
END_TEST

/* ---- training a part of a model ---- */

enum { LAYERS = 4, HIDDEN = 256, INNER = 640, WORDS = 1024, SEQUENCE = 128, LOW = 8, MICRO = 2, STEPS = 3 };

static void write_llama(void) {
  write_text(in_folder("llama.json"),
             "{\"model_type\": \"llama\", \"num_hidden_layers\": 4, \"hidden_size\": 256, \"intermediate_size\": 640, "
             "\"num_attention_heads\": 4, \"vocab_size\": 1024, \"max_position_embeddings\": 128, "
             "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\"}");
}

static command_result answer(const char *verb, const char *more) {
  return twinspeed("%s -m %s --cluster dgx-a100 -n 1 --micro-batch %d --accumulation %d %s", verb,
                   in_folder("llama.json"), MICRO, STEPS, more);
}

#define LORA \
  "--set twinspeed.lora.r=8 --set twinspeed.lora.lora_alpha=16 --set 'twinspeed.lora.target_modules=\"all-linear\"'"

/* Returns the model FLOPs of a step, and asserts that the MFU follows from them and the step's seconds. */
static double model_flops(const char *verb, const char *more) {
  char words[512];
  snprintf(words, sizeof words, "%s --json", more);
  command_result r = answer(verb, words);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = cJSON_Parse(r.out);
  const cJSON *time = strcmp(verb, "estimate") == 0 ? member(json, "time") : json;
  const double flops = number(time, "model_flops");
  ck_assert_double_eq_tol(number(time, "mfu") * 312e12 * number(time, "step_s") / flops, 1, 1e-9);
  cJSON_Delete(json);
  command_free(&r);
  return flops;
}

/* Compares with FLOPs counted by hand: frozen weights have no gradient, and the input of the first layer needs none. */
START_TEST(adapters_by_hand) {
  const double h = HIDDEN, i = INNER, r = LOW, s = SEQUENCE, tokens = (double)MICRO * STEPS * SEQUENCE;
  const double qkv = 2 * h * 3 * h, rest = 2 * (h * h + 3 * h * i), head = 2 * h * WORDS, attention = 4 * h * s;
  const double down_qkv = 2 * h * 3 * r, down = 2 * r * (h + 2 * h + i), up = 2 * r * (3 * h + h + 2 * i + h);
  const double forward = LAYERS * (qkv + rest + attention + down_qkv + down + up) + head;
  const double inputs = LAYERS * (qkv + rest + 2 * attention + down_qkv + down + up) + head - qkv - down_qkv;
  const double weights = LAYERS * (down_qkv + down + up);
  make_folder();
  write_llama();
  const double expected = tokens * (forward + inputs + weights);
  ck_assert_double_eq_tol(model_flops("estimate", LORA) / expected, 1, 1e-12);
  ck_assert_double_eq_tol(model_flops("simulate", LORA) / expected, 1, 1e-12);
  const double base = LAYERS * (qkv + rest + attention) + head;
  ck_assert_double_eq_tol(model_flops("estimate", "") / (tokens * 3 * base), 1, 1e-12);
  ck_assert_double_eq_tol(model_flops("estimate", "--program evaluate") / (tokens * base), 1, 1e-12);
  remove_folder();
}
END_TEST

/* Compares with FLOPs counted by hand where only the last layer and the head are trained: the backward pass ends at the
 * last layer's queries, keys and values. */
START_TEST(frozen_layers_by_hand) {
  const double h = HIDDEN, i = INNER, s = SEQUENCE, tokens = (double)MICRO * STEPS * SEQUENCE;
  const double qkv = 2 * h * 3 * h, rest = 2 * (h * h + 3 * h * i), head = 2 * h * WORDS, attention = 4 * h * s;
  make_folder();
  write_llama();
  const double expected = LAYERS * (qkv + rest + attention) + head + 2 * (rest + attention + head) + qkv;
  const double flops =
      model_flops("estimate",
                  "--set 'twinspeed.frozen_parameters=[\"*\",\"!model.layers.3.self_attn.*\",\"!model.layers.3.mlp.*\","
                  "\"!lm_head.*\"]'");
  ck_assert_double_eq_tol(flops / (tokens * expected), 1, 1e-12);
  remove_folder();
}
END_TEST

/* Rates are computed from the FLOPs that are executed: in the backward pass a frozen product counts once. */
START_TEST(rates_of_adapters) {
  make_folder();
  write_llama();
  command_result r = answer("profile", LORA " --json");
  cJSON *json = assert_json(&r, "twinspeed-profile-report-1");
  const double down = 2.0 * MICRO * SEQUENCE * HIDDEN * INNER; /* FLOPs of the gradient of the input; the weight has
                                                                * none */
  const cJSON *module_of_base = module(json, "model.layers.2.mlp.down_proj");
  ck_assert_double_ge(number(module_of_base, "backward_flops"), down);
  ck_assert_double_lt(number(module_of_base, "backward_flops"), 1.2 * down); /* with its adapter */
  char rate[64], line[64];
  const double counted = number(json, "backward_flops") / number(json, "backward_s");
  snprintf(rate, sizeof rate, "%g TFLOPS", round(counted / 1e10) / 100);
  command_free(&r);
  r = answer("profile", LORA);
  const char *at = strstr(r.out, "\nbwd FLOPS per GPU = bwd flops per GPU / bwd latency: ");
  ck_assert_msg(at != NULL, "%s", r.out);
  at = strchr(at, ':') + 1;
  snprintf(line, sizeof line, "%.*s", (int)strcspn(at + strspn(at, " "), "\n"), at + strspn(at, " "));
  while (*line && line[strlen(line) - 1] == ' ') line[strlen(line) - 1] = '\0';
  ck_assert_str_eq(line, rate);
  command_free(&r);
  cJSON_Delete(json);
  remove_folder();
}
END_TEST

/* ---- BERT-large, as published ---- */

/* Asserts that a value, rounded as DeepSpeed's profiler prints it (two decimals of the unit), is the published
 * figure. */
static void assert_same(double value, const char *published, const char *what) {
  char unit = 0, text[32];
  double figure = 0;
  ck_assert_int_eq(sscanf(published, "%lf %c", &figure, &unit), 2);
  snprintf(text, sizeof text, "%.2f", value / (unit == 'G' ? 1e9 : 1e6));
  ck_assert_msg(fabs(strtod(text, NULL) - figure) < 1e-9, "%s: %s %c, published %s", what, text, unit, published);
}

static const cJSON *published_of(const tws_json *golden, const char *name) {
  const cJSON *one;
  cJSON_ArrayForEach(one, member(golden->root, "modules")) {
    if (strcmp(member(one, "name")->valuestring, name) == 0) return one;
  }
  ck_abort_msg("%s", name);
  return NULL;
}

static void assert_module(const tws_json *golden, const char *name, double params, double counted) {
  const cJSON *one = published_of(golden, name), *of = cJSON_GetObjectItem(one, "params");
  if (of) assert_same(params, of->valuestring, name);
  assert_same(counted, member(one, "macs")->valuestring, name);
}

static cJSON *bert_large(void) {
  write_text(in_folder("bert.json"),
             "{\"model_type\": \"bert\", \"architectures\": [\"BertForMaskedLM\"], \"num_hidden_layers\": 24, "
             "\"hidden_size\": 1024, \"num_attention_heads\": 16, \"intermediate_size\": 4096, \"vocab_size\": 30522, "
             "\"max_position_embeddings\": 512, \"type_vocab_size\": 2}");
  char words[256];
  snprintf(words, sizeof words,
           "-m %s --vocab-multiple 8 --cluster dgx-a100 -n 1 --dtype fp16 --micro-batch 80 --seq 128",
           in_folder("bert.json"));
  return profile(words);
}

/* Compares this program's counts, converted to the rules of that DeepSpeed release (golden/bert_profile.json describes
 * them). The pooler and the classifier of the next sentence are not part of this model. */
START_TEST(bert_large_as_published) {
  tws_json *golden = golden_file("bert_profile.json");
  make_folder();
  cJSON *json = bert_large();
  const double h = number(golden->root, "hidden"), batch = number(golden->root, "batch"),
               s = number(golden->root, "sequence"), layers = number(golden->root, "layers"),
               heads = number(golden->root, "heads"), vocabulary = number(golden->root, "vocabulary");
  const double softmax = batch * heads * s * s, products = 2 * softmax * h / heads; /* of one layer */
  const char *layer = "bert.encoder.layer.7";
  char name[96];
#define OF(part) (snprintf(name, sizeof name, "%s%s", layer, part), name)
  const double attention = macs(json, OF(".attention")) - products + softmax;
  const double self =
      macs(json, OF(".attention.self")) + softmax; /* queries, keys and values; attention's products count elsewhere */
  ck_assert_double_eq(macs(json, OF("")) - products, 12 * h * h * batch * s); /* a layer's MACs include attention's
                                                                               * products once */
  assert_module(golden, "BertLayer", number(module(json, OF("")), "parameters"),
                macs(json, OF("")) - products + softmax);
  assert_module(golden, "BertAttention", number(module(json, OF(".attention")), "parameters"), attention);
  assert_module(golden, "BertSelfAttention", number(module(json, OF(".attention.self")), "parameters"), self);
  assert_module(golden, "BertSelfOutput", number(module(json, OF(".attention.output")), "parameters"),
                macs(json, OF(".attention.output")));
  assert_module(golden, "BertIntermediate", number(module(json, OF(".intermediate")), "parameters"),
                macs(json, OF(".intermediate")));
  const double encoder = macs(json, "bert.encoder") - layers * (products - softmax);
  assert_module(golden, "BertEncoder", number(module(json, "bert.encoder"), "parameters"), encoder);
  const double pooler = batch * h * h, pooler_params = h * h + h;
  assert_module(golden, "BertModel", number(module(json, "bert"), "parameters") + pooler_params, encoder + pooler);
  /* this program computes scores for all tokens, the published model for masked ones */
  const double transform = macs(json, "cls.predictions.transform");
  const double scores = macs(json, "cls.predictions") - transform;
  ck_assert_double_eq(scores, batch * s * h * vocabulary);
  const double head = transform + scores * number(golden->root, "masked_tokens") / (batch * s) + batch * 2 * h;
  assert_module(golden, "BertPreTrainingHeads", 0, head);
  assert_same(encoder + pooler + head, member(golden->root, "macs")->valuestring, "MACs");
  assert_same(number(json, "parameters_per_gpu") + pooler_params + 2 * h + 2,
              member(golden->root, "params")->valuestring, "parameters");
  cJSON_Delete(json);
  tws_json_destroy(golden);
  remove_folder();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("flops_profile");
  TCase *tcase = tcase_create("flops_profile");
  tcase_add_test(tcase, gpt2_by_formula);
  tcase_add_test(tcase, recomputed_flops_are_of_hfu_alone);
  tcase_add_test(tcase, adapters_by_hand);
  tcase_add_test(tcase, frozen_layers_by_hand);
  tcase_add_test(tcase, rates_of_adapters);
  tcase_add_test(tcase, bert_large_as_published);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
