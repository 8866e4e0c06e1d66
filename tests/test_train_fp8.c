/* ctest: engine mpi sampled */
/* Training with products in 8 bits: its losses against 16 bits, in every division. */
#include <cjson/cJSON.h>

#include "base/json.h"
#include "checkpoint/read.h"
#include "train_combinations.h"

/* Limits of mean relative differences of losses: from 16-bit training, between divisions with one scale per tensor, and
 * between divisions with several scales per tensor. */
#define MOST_BESIDE 8e-3
#define MOST_DIVIDED 4e-3
#define MOST_PARTED 1e-2

#define FP8 .products = "fp8"
#define DELAYED .products = "fp8\",\"fp8_recipe\":\"delayed"
static const combination jobs[] = {
    {GPT2, 1, FP8},
    {LLAMA, 1, FP8},
    {GPT2, 1, .zero = 0},
    {LLAMA, 1, .zero = 0},
    {GPT2, 1, FP8, .recompute = "selective"},
    {GPT2, 1, FP8, .recompute = "full"},
    {GPT2, 1, FP8, .recompute = "operations"},
    {LLAMA, 1, FP8, .recompute = "full"},
    {GPT2, 1, FP8, .micro = 2, .mlp_tiles = 2, .loss_tiles = 2},
    {GPT2, 2, FP8, .zero = 1},
    {GPT2, 2, FP8, .zero = 2, .more = OVERLAP},
    {GPT2, 2, FP8, .zero = 3},
    {LLAMA, 2, FP8, .zero = 3, .recompute = "full"},
    {GPT2, 2, FP8, .pipe = 2, .schedule = "zb-h1"},
    {LLAMA, 2, FP8, .pipe = 2, .zero = 1},
    {GPT2, 2, FP8, .tensor = 2},
    {LLAMA, 2, FP8, .tensor = 2, .sequence_parallel = 1, .micro = 2},
    {GPT2, 2, FP8, .tensor = 2, .chunks = 2, .micro = 2},
    {LLAMA, 2, FP8, .sequence = 2, .zero = 1},
    {GPT2, 4, FP8, .tensor = 4, .sequence_parallel = 1, .micro = 2},
    {GPT2, 4, FP8, .pipe = 2, .tensor = 2, .schedule = "interleaved", .virtual_stages = 2, .recompute = "full"},
    {LLAMA, 4, FP8, .tensor = 2, .zero = 3, .sequence_parallel = 1},
    {GPT2, 4, FP8, .zero = 2, .more = ",\"round_robin_gradients\":true"},
    {GPT2, 1, DELAYED},
    {GPT2, 1, DELAYED, .recompute = "full"},
    {GPT2, 1, DELAYED, .micro = 2, .mlp_tiles = 2, .loss_tiles = 2},
    {LLAMA, 2, DELAYED, .zero = 3, .recompute = "selective"},
    {GPT2, 2, DELAYED, .pipe = 2, .schedule = "zb-h1"},
    {LLAMA, 4, DELAYED, .tensor = 2, .zero = 1, .sequence_parallel = 1},
};
enum { JOBS = sizeof jobs / sizeof *jobs, OF_16_BITS = 2, AGAIN = 4, AGAIN_END = 8, FIRST_DELAYED = JOBS - 6 };

static const char *const types[] = {"\"bf16\":{\"enabled\":true}",
                                    "\"fp16\":{\"enabled\":true,\"initial_scale_power\":8}"};

static void job_name(int index, int type, char *name, size_t size) {
  snprintf(name, size, "eight%d-%d", index, type);
}

static void run_on(int k) {
  char path[96], name[64], with[1024];
  snprintf(path, sizeof path, "%s", in_folder("jobs")); /* in_folder() forgets */
  FILE *file = fopen(path, "w");
  int count = 0;
  for (int i = 0; i < JOBS; i++)
    for (int type = 0; type < 2 && jobs[i].ranks == 1 << k; type++) {
      if (type && i >= AGAIN && i % 8) continue;
      job_name(i, type, name, sizeof name);
      snprintf(with, sizeof with, "%s,%s", settings, types[type]);
      write_combination(file, &jobs[i], name, in_folder(model_names[jobs[i].model]), FEW_STEPS, with);
      count++;
    }
  fclose(file);
  run_jobs(k, path);
  ck_assert_int_eq(curve_count[k], count);
}

static const curve *lost(int index, int type) {
  char name[64];
  job_name(index, type, name, sizeof name);
  return find(jobs[index].ranks / 2, name);
}

static double mean_apart(const curve *a, const curve *b) {
  double apart = 0;
  for (int s = 0; s < a->steps; s++) apart += fabs(a->loss[s] / b->loss[s] - 1) / a->steps;
  return apart;
}

/* Returns 1 if a division has the scales of one rank: its ranks have whole tensors of the same tokens. */
static int has_same_scales(const combination *c) {
  return !c->tensor && !c->sequence && at_least_one(c->micro) == 1 && !strstr(c->products, "delayed");
}

/* Losses differ little from 16-bit training; recomputation gives exactly the same codes; divisions with the same
 * tensors have the same codes, and differ only in the order of sums. With delayed scaling all scales differ from those
 * of one rank with current scaling. */
START_TEST(eight_bits_train) {
  double beside = 0, divided = 0, parted = 0;
  for (int m = 0; m < MODELS; m++) write_text(in_folder(model_names[m]), model_texts[m]);
  for (int k = 0; k < 3; k++) run_on(k);
  for (int i = 0; i < JOBS; i++)
    for (int type = 0; type < 2; type++) {
      if (type && i >= AGAIN && i % 8) continue;
      const combination *c = &jobs[i];
      const int alone = c->model == LLAMA ? 1 : 0;
      const curve *got = lost(i, type), *one = lost(alone, type), *wide = lost(alone + OF_16_BITS, type);
      ck_assert_int_eq(got->steps, FEW_STEPS);
      ck_assert_double_lt(got->loss[FEW_STEPS - 1], (TWS_SANITIZED ? 0.95 : 0.75) * got->loss[0]);
      if (!c->products) continue;
      const double from_wide = mean_apart(got, wide), from_one = mean_apart(got, one);
      ck_assert_msg(from_wide > 0 && from_wide < MOST_BESIDE, "%s: %g from 16 bits", got->name, from_wide);
      beside = fmax(beside, from_wide);
      if (i >= AGAIN && i < AGAIN_END)
        ck_assert_msg(memcmp(got->loss, one->loss, sizeof got->loss) == 0, "%s differs from %s", got->name, one->name);
      else
        ck_assert_msg(from_one < (has_same_scales(c) ? MOST_DIVIDED : MOST_PARTED), "%s: %g from one rank", got->name,
                      from_one);
      double *most = has_same_scales(c) ? &divided : &parted;
      *most = fmax(*most, from_one);
    }
  const curve *kept = lost(FIRST_DELAYED, 0), *recomputed = lost(FIRST_DELAYED + 1, 0);
  ck_assert(memcmp(kept->loss, recomputed->loss, sizeof kept->loss) == 0);
  ck_assert(memcmp(kept->loss, lost(0, 0)->loss, sizeof kept->loss) != 0);
  printf("fp8: losses differ by %.2g on average from 16 bits, by %.2g between divisions, by %.2g with other scales\n",
         beside, divided, parted);
}
END_TEST

/* A run that resumes from a checkpoint has the same bits as an uninterrupted one: current scaling keeps nothing between
 * steps, and with delayed scaling a checkpoint has the history. On another number of ranks, or from a checkpoint
 * without a history, it begins with an empty one. */
START_TEST(resumed_is_the_same) {
  const char *recipe = _i ? "--set twinspeed.fp8_recipe=delayed --set twinspeed.fp8_amax_history_len=2" : "";
  char save[96], first[96], second[96];
  snprintf(save, sizeof save, "%s", in_folder(_i ? "save2" : "save"));
  snprintf(first, sizeof first, "%s", in_folder(_i ? "first2.json" : "first.json"));
  snprintf(second, sizeof second, "%s", in_folder(_i ? "second2.json" : "second.json"));
#define TRAIN8 \
  "train --seq 32 --dtype bf16 --micro-batch 2 --stage 1 --quiet --set twinspeed.matmul_dtype=fp8 "
#define RUN8 TRAIN8 "-m tiny-llama "
  command_result r = twinspeed(RUN8 "-n 2 %s --data %s --steps 6 --result %s --save %s --save-every 3", recipe,
                               text_path, first, save);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  r = twinspeed(RUN8 "-n 2 %s --data %s --steps 6 --resume %s --tag global_step3 --result %s", recipe, text_path, save,
                second);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  tws_json *a, *b;
  ck_assert(tws_json_read(first, &a, NULL) == TWS_OK && tws_json_read(second, &b, NULL) == TWS_OK);
  const cJSON *whole = cJSON_GetObjectItem(a->root, "losses"), *rest = cJSON_GetObjectItem(b->root, "losses");
  ck_assert_int_eq(cJSON_GetArraySize(whole), 6);
  ck_assert_int_eq(cJSON_GetArraySize(rest), 3);
  for (int i = 0; i < 3; i++)
    ck_assert(cJSON_GetArrayItem(whole, 3 + i)->valuedouble == cJSON_GetArrayItem(rest, i)->valuedouble);
  tws_json_destroy(a);
  tws_json_destroy(b);
  r = twinspeed(RUN8 "-n 1 --micro-batch 4 --set twinspeed.fp8_recipe=delayed --data %s --steps 4 --resume %s --tag "
                     "global_step3",
                text_path, save);
  ck_assert_msg(r.status == 0 && (strstr(r.err, "amax history begins anew") != NULL) == (_i > 0), "%s", r.err);
  command_free(&r);
  r = twinspeed(RUN8 "-n 2 --set twinspeed.fp8_amax_history_len=3 --set twinspeed.fp8_recipe=delayed --data %s "
                     "--steps 4 --resume %s --tag global_step3",
                text_path, save);
  const char *said = strstr(r.err, "amax history begins anew: the checkpoint has ");
  ck_assert_msg(r.status == 0 && (said != NULL) == (_i > 0) && !strstr(r.err, "amax begins"), "%s", r.err);
  command_free(&r);
}
END_TEST

/* With delayed scaling norms and activations cast what they compute, in other passes and layouts with each kind of
 * recomputation (the suite `plan` counts these kernels): the losses have the same bits. The networks have SwiGLU, GELU,
 * and squared ReLU without biases. */
START_TEST(kernels_that_cast_recompute_the_same) {
  static const char *const kinds[] = {"none", "selective", "full"};
  double losses[3][4];
  char model[96] = "tiny-gpt2";
  if (_i == 0) snprintf(model, sizeof model, "tiny-llama");
  if (_i == 2) {
    snprintf(model, sizeof model, "%s", in_folder("arcee.json"));
    write_text(model, "{\"model_type\":\"arcee\",\"vocab_size\":256,\"max_position_embeddings\":64,"
                      "\"num_hidden_layers\":2,\"hidden_size\":64,\"intermediate_size\":96,"
                      "\"num_attention_heads\":4}");
  }
  for (int k = 0; k < 3; k++) {
    char name[32], result[96];
    snprintf(name, sizeof name, "%s%d", kinds[k], _i);
    snprintf(result, sizeof result, "%s", in_folder(name));
    command_result r =
        twinspeed(TRAIN8
                  "-n 1 -m %s --recompute %s --set twinspeed.fp8_recipe=delayed --data %s --steps 4 --learning-rate "
                  "0.003 --result %s",
                  model, kinds[k], text_path, result);
    ck_assert_msg(r.status == 0, "%s", r.err);
    command_free(&r);
    tws_json *json;
    ck_assert(tws_json_read(result, &json, NULL) == TWS_OK);
    const cJSON *list = cJSON_GetObjectItem(json->root, "losses");
    ck_assert_int_eq(cJSON_GetArraySize(list), 4);
    for (int i = 0; i < 4; i++) losses[k][i] = cJSON_GetArrayItem(list, i)->valuedouble;
    tws_json_destroy(json);
    ck_assert_msg(memcmp(losses[0], losses[k], sizeof losses[k]) == 0, "%s, recomputation %s", model, kinds[k]);
  }
}
END_TEST

/* Tensors kept for backward have one byte instead of two, so that activations take less; refusals name a remedy. */
START_TEST(activations_and_refusals) {
  double bytes[2];
  for (int eight = 0; eight < 2; eight++) {
    command_result r = twinspeed(
        "estimate -m gpt2 --dtype bf16 --cluster dgx-h100 -n 1 --micro-batch 8 --json --set "
        "twinspeed.matmul_dtype=%s",
        eight ? "fp8" : "auto");
    ck_assert_msg(r.status == 0, "%s", r.err);
    tws_json *json;
    ck_assert(tws_json_parse(r.out, strlen(r.out), "estimate", &json, NULL) == TWS_OK);
    const cJSON *peak =
        cJSON_GetObjectItem(cJSON_GetObjectItem(cJSON_GetObjectItem(json->root, "memory"), "device"), "arena_bytes");
    ck_assert_ptr_nonnull(peak);
    bytes[eight] = peak->valuedouble;
    tws_json_destroy(json);
    command_free(&r);
  }
  ck_assert_msg(bytes[1] < 0.95 * bytes[0], "%g bytes, and %g with 8 bits", bytes[0], bytes[1]);
  static const struct {
    const char *with, *says, *hint;
  } cases[] = {
      {"--set twinspeed.matmul_dtype=fp8", "these are float32", "bf16.enabled"},
      {"--dtype bf16 --seq 24 --micro-batch 1 --set twinspeed.matmul_dtype=fp8", "8 bits allow", "multiples of 16"},
      {"--dtype bf16 --cluster dgx-a100 -n 1 --set twinspeed.matmul_dtype=fp8", "no rate of fp8", "Hopper"},
      {"--dtype bf16 --cluster dgx-h100 -n 1 --set twinspeed.matmul_dtype=mxfp8", "mxfp8 cannot be run",
       "set twinspeed.matmul_dtype to fp8"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    command_result r = twinspeed("emulate -m tiny-gpt2 --steps 1 --quiet --data %s %s", text_path, cases[i].with);
    ck_assert_int_eq(r.status, 3);
    ck_assert_msg(strstr(r.err, cases[i].says) && strstr(r.err, cases[i].hint), "%s", r.err);
    command_free(&r);
  }
  command_result r =
      twinspeed("check -m tiny-gpt2 --dtype bf16 --seq 32 --micro-batch 1 --set twinspeed.matmul_dtype=fp8");
  ck_assert_msg(r.status == 0 && strstr(r.out, "8 of the 9 forward products of rank 0 are in 8 bits"), "%s%s", r.out,
                r.err);
  command_free(&r);
}
END_TEST

/* Returns a rank's amax history in a checkpoint, which the caller frees. */
static float *saved_history(const char *path, int rank, uint64_t *count) {
  tws_saved_index *index = NULL;
  tws_saved_reader reader;
  tws_error err = {0};
  ck_assert_msg(tws_saved_open(path, &index, &err) == TWS_OK, "%s", err.message);
  ck_assert(tws_saved_reader_open(index, &reader, &err) == TWS_OK);
  const uint32_t entry = tws_saved_entry_of(index, "amax history");
  *count = tws_saved_own_elements(index, entry, rank);
  float *history = malloc(*count * sizeof *history);
  ck_assert_msg(tws_saved_read(&reader, entry, TWS_NONE, rank, NULL, 0, *count, TWS_F32, history, &err) == TWS_OK, "%s",
                err.message);
  tws_saved_reader_close(&reader);
  tws_saved_close(index);
  return history;
}

/* Where two tensor ranks become two data ranks, or the reverse, each number of the history becomes the larger one of
 * both ranks: that of the whole tensor. One more step moves them on by one place. */
START_TEST(histories_of_shards) {
  enum { LENGTH = 3 };
#define SHARDS                                                                                       \
  "train -m tiny-llama --seq 32 --dtype bf16 --stage 1 -n 2 --set twinspeed.matmul_dtype=fp8 --set " \
  "twinspeed.fp8_recipe=delayed --set twinspeed.fp8_amax_history_len=3 --data %s %s "
  static const char *const divided[] = {"--tp 2 --micro-batch 4", "--micro-batch 2"};
  char before[128], after[128], path[160];
  snprintf(before, sizeof before, "%s%d", in_folder("before"), _i);
  snprintf(after, sizeof after, "%s%d", in_folder("after"), _i);
  command_result r = twinspeed(SHARDS "--steps 3 --save %s", text_path, divided[_i], before);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  r = twinspeed(SHARDS "--steps 4 --resume %s --save %s", text_path, divided[1 - _i], before, after);
  ck_assert_msg(r.status == 0 && count_lines_with(r.err, "amax histories: tensors were divided") == 1, "%s", r.err);
  command_free(&r);
  float *old[2], *new[2];
  uint64_t count[4], apart = 0;
  for (int rank = 0; rank < 2; rank++) {
    snprintf(path, sizeof path, "%s/global_step3", before);
    old[rank] = saved_history(path, rank, &count[rank]);
    snprintf(path, sizeof path, "%s/global_step4", after);
    new[rank] = saved_history(path, rank, &count[2 + rank]);
    ck_assert(count[rank] > LENGTH && count[rank] == count[0] && count[2 + rank] == count[0]);
  }
  for (uint64_t i = 0; i < count[0]; i++) {
    if (i % LENGTH == LENGTH - 1) continue;
    apart += old[0][i] != old[1][i];
    for (int rank = 0; rank < 2; rank++) ck_assert(new[rank][i + 1] == fmaxf(old[0][i], old[1][i]));
  }
  ck_assert_msg(apart > 0, "both ranks had the same history");
  for (int rank = 0; rank < 2; rank++) free(old[rank]), free(new[rank]);
}
END_TEST

/* Every verb that plans a job for the software of others says once that the recipe makes no difference there. */
START_TEST(the_recipe_of_others_is_ignored) {
  static const char *const verbs[] = {"check --stage 1", "estimate --stage 1", "simulate --stage 1",
                                      "tune --no-simulation --micro-batches 1 --stages 1 -n 8 -o"};
  static const char note[] = "note: runtime nemo: casts to 8 bits are part of";
  for (int delayed = 0; delayed < 2; delayed++) {
    char folder_name[512];
    snprintf(folder_name, sizeof folder_name, "%s%d", in_folder("tuned"), delayed);
    command_result r = twinspeed(
        "%s %s -m llama-2-7b --cluster dgx-h100 --runtime nemo --dtype bf16 --seq 32 --set "
        "twinspeed.matmul_dtype=fp8 --set twinspeed.fp8_recipe=%s",
        verbs[_i], _i == 3 ? folder_name : "", delayed ? "delayed" : "tensorwise");
    const char *said = strstr(_i ? r.err : r.out, note);
    ck_assert_msg(r.status == 0 && (said != NULL) == delayed, "%s: %s%s", verbs[_i], r.out, r.err);
    ck_assert(!said || !strstr(said + 1, note));
    command_free(&r);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("train_fp8");
  TCase *tests = tcase_create("train_fp8");
  tcase_add_test(tests, eight_bits_train);
  tcase_add_loop_test(tests, resumed_is_the_same, 0, 2);
  tcase_add_loop_test(tests, kernels_that_cast_recompute_the_same, 0, 3);
  tcase_add_test(tests, activations_and_refusals);
  tcase_add_loop_test(tests, histories_of_shards, 0, 2);
  tcase_add_loop_test(tests, the_recipe_of_others_is_ignored, 0, 4);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
