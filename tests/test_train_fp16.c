/* ctest: engine mpi sampled */
/* Training in half precision: its losses against float32, in every division; overflows; reports. */
#include "base/json.h"
#include "base/memory.h"
#include "train_combinations.h"

static const combination halves[] = {
    {GPT2, 2, .zero = 0, .micro = 2},
    {LLAMA_TIED, 2, .zero = 1, .micro = 2},
    {GPT2, 2, .zero = 2, .more = OVERLAP},
    {LLAMA, 2, .zero = 3, .recompute = "full"},
    {GPT2, 2, .pipe = 2, .schedule = "zb-h1"},
    {LLAMA, 2, .tensor = 2, .sequence_parallel = 1, .loss_tiles = 2, .mlp_tiles = 2},
    {GPT2_UNTIED, 2, .sequence = 2, .zero = 1},
    {LLAMA, 4, .pipe = 2, .tensor = 2, .chunks = 2},
    {GPT2, 4, .tensor = 2, .zero = 3, .sequence_parallel = 1, .more = OVERLAP},
    {LLAMA_TIED, 4, .sequence = 2, .zero = 2, .micro = 2},
    {GPT2_UNTIED, 4, .pipe = 2, .sequence = 2, .zero = 1, .schedule = "interleaved", .virtual_stages = 2},
};
enum { HALVES = sizeof halves / sizeof *halves, HALF_MODES = 3 };

/* The options of each run. With the first loss scale of the last one about ten steps overflow. */
static const char *const half_modes[HALF_MODES] = {
    "\"fp16\":{\"enabled\":true,\"initial_scale_power\":10}",
    "\"fp16\":{\"enabled\":true,\"loss_scale\":512.0},\"data_types\":{\"grad_accum_dtype\":\"fp32\"}",
    "\"fp16\":{\"enabled\":true,\"initial_scale_power\":27,\"hysteresis\":1}"};

/* A learning rate at which the gradient shrinks from step to step. With that of the other suites the norm of GPT-2's
 * gradient grows twenty times in one step and shrinks again: there, differences of 1e-5 grow to 2e-2 by themselves. */
static const char steady[] =
    "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":0.001,\"weight_decay\":0.1}},\"gradient_clipping\":1.0,"
    "\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"warmup_num_steps\":5,\"warmup_max_lr\":0.001}},"
    "\"train_batch_size\":8";

static void half_name(const combination *c, int mode, char *name, size_t size) {
  snprintf(name, size, "half%d-mode%d", (int)(c - halves), mode);
}

static int float32_accumulation_goes(const combination *c) {
  return c->zero > 0;
}

static void run_halves(int k) {
  char jobs[96], name[64], with[1024];
  snprintf(jobs, sizeof jobs, "%s", in_folder("jobs")); /* in_folder() forgets */
  FILE *file = fopen(jobs, "w");
  int count = 0;
  for (int i = 0; k == 0 && i < MODELS; i++) {
    const combination one = {.model = i, .ranks = 1, .micro = 2};
    write_combination(file, &one, model_names[i], in_folder(model_names[i]), STEPS, steady);
    for (int mode = 0; mode < HALF_MODES; mode += 2) {
      snprintf(name, sizeof name, "%s-mode%d", model_names[i], mode);
      snprintf(with, sizeof with, "%s,%s", steady, half_modes[mode]);
      write_combination(file, &one, name, in_folder(model_names[i]), STEPS, with);
    }
    count += 3;
  }
  for (int i = 0; i < HALVES; i += EVERY) {
    const combination *c = &halves[i];
    for (int mode = 0; mode < HALF_MODES && c->ranks == 1 << k; mode++) {
      if (mode == 1 && !float32_accumulation_goes(c)) continue;
      half_name(c, mode, name, sizeof name);
      snprintf(with, sizeof with, "%s,%s", steady, half_modes[mode]);
      write_combination(file, c, name, in_folder(model_names[c->model]), STEPS, with);
      count++;
    }
  }
  fclose(file);
  run_jobs(k, jobs);
  ck_assert_int_eq(curve_count[k], count);
}

static double largest_apart(const curve *a, const curve *b, double *norm) {
  double loss = 0;
  ck_assert(a->steps == STEPS && b->steps == STEPS);
  for (int s = 0; s < STEPS; s++) {
    loss = fmax(loss, fabs(a->loss[s] / b->loss[s] - 1));
    *norm = fmax(*norm, fabs(a->norm[s] / b->norm[s] - 1));
  }
  return loss;
}

/* Asserts that steps whose gradients overflow leave the weights unchanged on every rank, with the losses of one rank's
 * initial weights, and that the job trains afterwards. */
static void check_overflows(const curve *c, const curve *one) {
  int s = 0;
  ck_assert(c->steps == STEPS && one->steps == STEPS);
  for (; s < STEPS && isinf(c->norm[s]) && isinf(one->norm[s]); s++) continue;
  ck_assert_msg(s >= 5 && s <= STEPS - 6, "%s: %d steps were skipped", c->name, s);
  for (int i = 0; i <= s; i++)
    ck_assert_msg(fabs(c->loss[i] / one->loss[i] - 1) < 1e-4, "%s, step %d: loss %.9g, not %.9g", c->name, i + 1,
                  c->loss[i], one->loss[i]);
  ck_assert_msg(c->loss[STEPS - 1] < 0.97 * c->loss[0], "%s: loss %g -> %g", c->name, c->loss[0], c->loss[STEPS - 1]);
  int applied = 0;
  for (int i = s; i < STEPS; i++) applied += isfinite(c->norm[i]) != 0;
  ck_assert_msg(applied >= (STEPS - s) / 2, "%s: %d of %d steps count", c->name, applied, STEPS - s);
}

START_TEST(fp16_trains) {
  double worst = 0, worst_norm = 0, beside_float = 0, norm_beside_float = 0;
  for (int m = 0; m < MODELS; m++) write_text(in_folder(model_names[m]), model_texts[m]);
  for (int k = 0; k < 3; k++) run_halves(k);
  for (int m = 0; m < MODELS; m++) {
    char name[64];
    snprintf(name, sizeof name, "%s-mode0", model_names[m]);
    double apart = largest_apart(find(0, name), find(0, model_names[m]), &norm_beside_float);
    ck_assert_msg(apart < 2e-4, "%s: losses are %.2g from those of float32", name, apart);
    beside_float = fmax(beside_float, apart);
  }
  for (int i = 0; i < HALVES; i += EVERY) {
    const combination *c = &halves[i];
    char name[64], reference[64];
    for (int mode = 0; mode < HALF_MODES; mode++) {
      if (mode == 1 && !float32_accumulation_goes(c)) continue;
      half_name(c, mode, name, sizeof name);
      snprintf(reference, sizeof reference, "%s-mode%d", model_names[c->model], mode == 2 ? 2 : 0);
      const curve *got = find(c->ranks == 2 ? 1 : 2, name), *want = find(0, reference);
      if (mode == 2) {
        check_overflows(got, want);
        continue;
      }
      double apart = largest_apart(got, want, &worst_norm);
      ck_assert_msg(apart < 2e-4, "%s: losses are %.2g from those of %s", name, apart, reference);
      worst = fmax(worst, apart);
    }
  }
  ck_assert_msg(norm_beside_float < 0.002 && worst_norm < 0.002,
                "norms differ by %.2g from float32, by %.2g between divisions", norm_beside_float, worst_norm);
  printf("fp16: losses differ by %.2g from float32, by %.2g between divisions; norms by %.2g, %.2g\n", beside_float,
         worst, norm_beside_float, worst_norm);
}
END_TEST

/* Every step overflows: each is reported, none advances the schedule, and the losses are those of the initial
 * weights. */
START_TEST(skipped_steps) {
  command_result r =
      twinspeed(JOB
                "%s --steps 4 --every 100 --dtype fp16 --set fp16.initial_scale_power=40 --set fp16.hysteresis=3 "
                "--set scheduler.type=WarmupLR --result %s --csv %s --force",
                text_path, in_folder("result"), in_folder("csv"));
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  static const char *const lines[] = {"     1  skipped: overflow at loss scale 1099511627776, which is kept\n",
                                      "     2  skipped: overflow at loss scale 1099511627776, which is kept\n",
                                      "     3  skipped: overflow at loss scale 1099511627776 -> 549755813888\n",
                                      "     4  skipped: overflow at loss scale 549755813888 -> 274877906944\n"};
  for (int i = 0; i < 4; i++) ck_assert_msg(strstr(r.out, lines[i]) != NULL, "%s", r.out);
  ck_assert_ptr_nonnull(strstr(r.out, "in 4 steps (4 skipped)"));
  ck_assert_ptr_nonnull(strstr(r.out, "equal to the byte"));
  command_free(&r);
  tws_json *json = NULL;
  ck_assert_int_eq(tws_json_read(in_folder("result"), &json, NULL), TWS_OK);
  static const double scales[] = {0x1p40, 0x1p40, 0x1p40, 0x1p39};
  for (int i = 0; i < 4; i++) {
    const cJSON *root = json->root;
    ck_assert_double_eq(cJSON_GetArrayItem(cJSON_GetObjectItem(root, "loss_scales"), i)->valuedouble, scales[i]);
    ck_assert_int_eq(cJSON_GetArrayItem(cJSON_GetObjectItem(root, "skipped_steps"), i)->valueint, i + 1);
    ck_assert_double_eq(cJSON_GetArrayItem(cJSON_GetObjectItem(root, "learning_rates"), i)->valuedouble, 0);
    ck_assert(cJSON_IsNull(cJSON_GetArrayItem(cJSON_GetObjectItem(root, "gradient_norms"), i)));
  }
  tws_json_destroy(json);
  char *csv = NULL;
  size_t length;
  ck_assert_int_eq(tws_read_file(in_folder("csv"), 0, &csv, &length, NULL), TWS_OK);
  ck_assert_ptr_nonnull(strstr(csv, ",loss_scale,skipped\n"));
  ck_assert(strstr(csv, ",1099511627776,1\n") && strstr(csv, ",549755813888,1\n"));
  tws_free(csv);
}
END_TEST

START_TEST(scales_that_never_fit) {
  static const char *const cases[][2] = {
      {"--set fp16.loss_scale=1e25", "step 100: the fixed loss scale 1e+25 overflowed 100 times in a row"},
      {"--set fp16.initial_scale_power=30 --set fp16.min_loss_scale=536870912",
       "step 3: the loss scale is at its minimum, 536870912, and still overflows"}};
  for (int i = 0; i < 2; i++) {
    command_result r = twinspeed(JOB "%s --steps 200 --quiet --dtype fp16 %s", text_path, cases[i][0]);
    ck_assert_msg(r.status == 5 && strstr(r.err, cases[i][1]), "status %d: %s", r.status, r.err);
    ck_assert_msg(count_lines_with(r.err, "twinspeed: ") == 1, "one message: %s", r.err);
    command_free(&r);
  }
}
END_TEST

/* All gradients vanish at a tiny loss scale: one warning names the scale and the remedy. */
START_TEST(scales_so_small_that_gradients_vanish) {
  static const struct {
    const char *scale, *says, *remedy;
  } cases[] = {{"fp16.loss_scale=1e-20", "a loss scale of 1e-20 all gradients vanish", "use a larger fp16.loss_scale"},
               {"fp16.loss_scale=1024", NULL, NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    command_result r =
        twinspeed(JOB "%s --steps 3 --every 100 --quiet --dtype fp16 --set %s", text_path, cases[i].scale);
    ck_assert_msg(r.status == 0, "%s", r.err);
    ck_assert_int_eq(count_lines_with(r.err, "warning: step 1: the gradient norm is 0"), cases[i].says != NULL);
    ck_assert_int_eq(count_lines_with(r.err, "warning: step "), cases[i].says != NULL);
    if (cases[i].says) ck_assert_msg(strstr(r.err, cases[i].says) && strstr(r.err, cases[i].remedy), "%s", r.err);
    command_free(&r);
  }
}
END_TEST

static double category_of(const cJSON *memory, const char *tier, const char *category) {
  const cJSON *of = cJSON_GetObjectItem(cJSON_GetObjectItem(cJSON_GetObjectItem(memory, tier), "categories"), category);
  return of ? of->valuedouble : 0;
}

/* fp16 masters, which the host updates, take half the bytes of float32 ones and give the same losses within fp16's
 * rounding, at every ZeRO stage. */
START_TEST(float16_masters) {
  double loss[6];
  for (int i = 0; i < 6; i++) {
    char job[512];
    snprintf(job, sizeof job,
             "-m tiny-gpt2 --seq 32 --micro-batch 2 -n 2 --dtype fp16 --stage %d --set optimizer.params.lr=0.002 --set "
             "zero_optimization.offload_optimizer.device=cpu%s",
             1 + i / 2, i % 2 ? " --set fp16.fp16_master_weights_and_grads=true" : "");
    command_result r = twinspeed("train --json --quiet --threads 1 --steps 12 --data %s %s", text_path, job);
    ck_assert_msg(r.status == 0, "%s", r.err);
    cJSON *json = cJSON_Parse(r.out);
    loss[i] = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "losses"), 11)->valuedouble;
    ck_assert_double_lt(loss[i], 0.9 * cJSON_GetArrayItem(cJSON_GetObjectItem(json, "losses"), 0)->valuedouble);
    if (i % 2)
      ck_assert_msg(fabs(loss[i] / loss[i - 1] - 1) < 1e-3, "stage %d: %g, %g", 1 + i / 2, loss[i], loss[i - 1]);
    cJSON_Delete(json);
    command_free(&r);
    r = twinspeed("estimate --json %s --cluster dgx-a100", job);
    json = cJSON_Parse(r.out);
    const cJSON *memory = cJSON_GetObjectItem(json, "memory");
    /* 120576 parameters on two ranks, at 2 or 4 bytes */
    ck_assert_double_eq(category_of(memory, "pinned host", "master weights"), i % 2 ? 120576 : 241152);
    cJSON_Delete(json);
    command_free(&r);
  }
}
END_TEST

/* Trains four ranks for `steps` steps; returns the last loss and sets the last gradient norm and loss scale. */
static double trained(const char *model, const char *dtype, int steps, const char *keys, double *norm, double *scale) {
  command_result r = twinspeed(
      "train --json --quiet -m %s --seq 16 --micro-batch 1 --accumulation 2 -n 4 --threads 1 --steps %d --data %s "
      "--dtype %s --set fp16.initial_scale_power=30 --set fp16.hysteresis=1 --set optimizer.params.lr=0.0001 %s",
      model, steps, text_path, dtype, keys);
  ck_assert_msg(r.status == 0, "%s: %s", keys, r.err);
  cJSON *json = cJSON_Parse(r.out);
  const cJSON *losses = cJSON_GetObjectItem(json, "losses"), *norms = cJSON_GetObjectItem(json, "gradient_norms");
  const cJSON *scales = cJSON_GetObjectItem(json, "loss_scales");
  const double loss = cJSON_GetArrayItem(losses, steps - 1)->valuedouble;
  *norm = cJSON_GetArrayItem(norms, steps - 1)->valuedouble;
  *scale = scales ? cJSON_GetArrayItem(scales, steps - 1)->valuedouble : 0;
  cJSON_Delete(json);
  command_free(&r);
  return loss;
}

/* prescale_gradients and gradient_predivide_factor are operations of the plan. In float32 they change losses and norms
 * by rounding alone, at all stages that support them, and with the losses of routers. In fp16 a factor below 1 makes
 * gradients larger before they are added up, so that a loss scale that is too high is halved more often. */
START_TEST(divisions_around_reductions) {
  static const char *const keys[] = {
      "", "--set prescale_gradients=true", "--set gradient_predivide_factor=3",
      "--stage 2 --set zero_optimization.reduce_scatter=false --set gradient_predivide_factor=3",
      "--stage 3 --set zero_optimization.reduce_scatter=false --set gradient_predivide_factor=3"};
  static const char *const models[] = {"tiny-gpt2", "tiny-mixtral"};
  double norm[5], scale[2];
  for (int m = 0; m < 2; m++) {
    double first = 0;
    for (int i = 0; i < 5; i++) {
      const double loss = trained(models[m], "fp32", 3, keys[i], &norm[i], scale);
      if (i == 0) first = loss;
      ck_assert_msg(fabs(loss / first - 1) < 1e-6, "%s %s: loss %.9g, not %.9g", models[m], keys[i], loss, first);
      ck_assert_msg(fabs(norm[i] / norm[0] - 1) < 1e-6, "%s %s: norm %g, not %g", models[m], keys[i], norm[i], norm[0]);
    }
  }
  trained("tiny-gpt2", "fp16", 20, keys[1], norm, &scale[0]);
  trained("tiny-gpt2", "fp16", 20, "--set gradient_predivide_factor=0.125", norm, &scale[1]);
  ck_assert_msg(scale[1] < scale[0], "%g, not below %g", scale[1], scale[0]);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("train_fp16");
  TCase *tests = tcase_create("train_fp16");
  tcase_add_test(tests, fp16_trains);
  tcase_add_test(tests, skipped_steps);
  tcase_add_test(tests, scales_that_never_fit);
  tcase_add_test(tests, float16_masters);
  tcase_add_test(tests, divisions_around_reductions);
  tcase_add_test(tests, scales_so_small_that_gradients_vanish);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
