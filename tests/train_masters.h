/* Training with bfloat16 weights that have no float32 copy: what it loses beside copies, whatever the division; small
 * updates that rounding to nearest loses; memory. Part of test_train.c: it uses that file's jobs and curves. */
#ifndef TWS_TESTS_TRAIN_MASTERS_H
#define TWS_TESTS_TRAIN_MASTERS_H

#define NO_COPY "\"bf16\":{\"enabled\":true,\"bf16_master_weights_and_grads\":true"
static const char *const copies[] = {"\"bf16\":{\"enabled\":true}", NO_COPY "}",
                                     NO_COPY ",\"bf16_optimizer_states\":true}"};
enum { COPIES = sizeof copies / sizeof *copies };

/* Each with one micro-batch a step, so that stages differ in nothing but who keeps what; then along the axes. */
static const combination without_copies[] = {
    {GPT2, 1, .zero = 1, .micro = 8},
    {GPT2, 1, .zero = 2, .micro = 8},
    {GPT2, 1, .zero = 3, .micro = 8},
    {LLAMA, 1, .zero = 1, .micro = 8},
    {GPT2, 2, .zero = 1, .micro = 4},
    {GPT2, 2, .zero = 2, .micro = 4, .more = OVERLAP},
    {GPT2, 2, .zero = 3, .micro = 4},
    {GPT2, 4, .zero = 1, .micro = 2},
    {GPT2, 4, .zero = 2, .micro = 2, .more = ",\"round_robin_gradients\":true"},
    {GPT2, 4, .zero = 3, .micro = 2, .recompute = "full", .more = ",\"sub_group_size\":9000"},
    {GPT2, 2, .zero = 1, .pipe = 2},
    {LLAMA, 2, .zero = 1, .tensor = 2, .micro = 8},
    {LLAMA, 2, .zero = 3, .sequence = 2, .micro = 8},
    {GPT2, 4, .zero = 1, .pipe = 2, .tensor = 2, .schedule = "zb-h1"},
    {LLAMA, 4, .zero = 3, .tensor = 2, .regions = 1, .micro = 4},
};
enum { WITHOUT = sizeof without_copies / sizeof *without_copies, PLAIN = 10 };

static void without_name(int index, int mode, char *name, size_t size) {
  snprintf(name, size, "copies%d-%d", index, mode);
}

static void run_without_copies(int k) {
  char jobs[96], name[64], with[1024];
  snprintf(jobs, sizeof jobs, "%s", in_folder("jobs")); /* in_folder() forgets */
  FILE *file = fopen(jobs, "w");
  int count = 0;
  for (int i = 0; i < WITHOUT; i++)
    for (int mode = 0; mode < COPIES && without_copies[i].ranks == 1 << k; mode++, count++) {
      without_name(i, mode, name, sizeof name);
      snprintf(with, sizeof with, "%s,%s", settings, copies[mode]);
      write_combination(file, &without_copies[i], name, in_folder(model_names[without_copies[i].model]), STEPS, with);
    }
  fclose(file);
  run_jobs(k, jobs, STEPS);
  ck_assert_int_eq(curve_count[k], count);
}

static const curve *without(int index, int mode) {
  char name[64];
  without_name(index, mode, name, sizeof name);
  return find(without_copies[index].ranks / 2, name);
}

static double mean_apart(const curve *a, const curve *b, double *side) {
  double apart = 0;
  *side = 0;
  for (int s = 0; s < STEPS; s++) {
    double error = a->loss[s] / b->loss[s] - 1;
    apart += fabs(error) / STEPS;
    *side += error / STEPS;
  }
  return apart;
}

/* On equal ranks every ZeRO stage draws the same bits for the same weights: losses are equal to the last place. Other
 * numbers of ranks round gradients differently, and draw the same bits still; tensor-parallel ranks draw others. */
START_TEST(weights_without_copies_train) {
  double same_bits = 0, other_bits = 0, beside_copies = 0, side;
  for (int m = 0; m < MODELS; m++) write_text(in_folder(model_names[m]), model_texts[m]);
  for (int k = 0; k < 3; k++) run_without_copies(k);
  for (int i = 0; i < WITHOUT; i++)
    for (int mode = 0; mode < COPIES; mode++) {
      const combination *c = &without_copies[i];
      const int alone = c->model == LLAMA ? 3 : 0;
      const curve *got = without(i, mode);
      const double own = mean_apart(got, without(alone, mode), &side);
      ck_assert_msg(own < (c->tensor ? 4e-3 : 6e-4), "%s: %g from one rank", got->name, own);
      ck_assert_double_lt(got->loss[STEPS - 1], 0.75 * got->loss[0]);
      *(c->tensor ? &other_bits : &same_bits) = fmax(c->tensor ? other_bits : same_bits, own);
      const double apart = mean_apart(got, without(alone, 0), &side);
      ck_assert_msg(apart < 4e-3 && fabs(side) < 3e-3, "%s: %g from float32 copies, %g to one side", got->name, apart,
                    side);
      beside_copies = fmax(beside_copies, apart);
      const curve *first = i < PLAIN ? without(i - c->zero + 1, mode) : got;
      ck_assert_msg(memcmp(got->loss, first->loss, sizeof got->loss) == 0, "%s differs from %s", got->name,
                    first->name);
    }
  printf(
      "bf16: losses differ by %.2g on average from float32 copies, by %.2g between divisions, tensor-parallel %.2g\n",
      beside_copies, same_bits, other_bits);
}
END_TEST

/* The mean of the last losses, less that of the first. */
static double progress(const char *with, double *first) {
  enum { FEW = 20 };
  command_result r = twinspeed(
      "train -m tiny-llama --seq 32 --micro-batch 8 -n 1 --stage 1 --steps 100 --quiet --json "
      "--set optimizer.params.lr=1e-5 --set bf16.enabled=true --data %s %s",
      text_path, with);
  tws_json *json = NULL;
  double sum[2] = {0};
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  ck_assert_int_eq(tws_json_parse(r.out, strlen(r.out), "result", &json, NULL), TWS_OK);
  const cJSON *losses = cJSON_GetObjectItemCaseSensitive(json->root, "losses");
  const int count = cJSON_GetArraySize(losses);
  for (int i = 0; i < FEW; i++) {
    sum[0] += cJSON_GetArrayItem(losses, i)->valuedouble / FEW;
    sum[1] += cJSON_GetArrayItem(losses, count - 1 - i)->valuedouble / FEW;
  }
  tws_json_destroy(json);
  command_free(&r);
  *first = sum[0];
  return sum[0] - sum[1];
}

/* A learning rate below half a unit in the last place of most weights: to nearest these never move. */
START_TEST(small_updates_are_not_lost) {
#define MASTERS "--set bf16.bf16_master_weights_and_grads=true "
  double first;
  const double copied = progress("", &first), random = progress(MASTERS, &first);
  const double moments = progress(MASTERS "--set bf16.bf16_optimizer_states=true", &first);
  const double nearest = progress(MASTERS "--set twinspeed.stochastic_rounding=false", &first);
  printf(
      "small updates: loss falls by %.4f with float32 copies, %.4f without, %.4f with bf16 moments, %.4f to nearest\n",
      copied, random, moments, nearest);
  ck_assert_msg(copied > 0.03 * first, "%g of %g", copied, first);
  ck_assert_msg(fabs(random / copied - 1) < 0.03 && fabs(moments / copied - 1) < 0.03, "%g, %g instead of %g", random,
                moments, copied);
  ck_assert_msg(nearest < 0.4 * copied, "to nearest %g of %g", nearest, copied);
}
END_TEST

#endif
