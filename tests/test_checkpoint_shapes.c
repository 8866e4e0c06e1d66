/* ctest: engine mpi sampled */
/* A checkpoint of any shape is resumed at any other: losses are those of a training that was never interrupted. */
#include "checkpoint/folder.h"
#include "checkpoint/read.h"
#include "train_combinations.h"

/* Ranks, axes and stages of jobs. The first shape of a model saves the checkpoint from which all other shapes resume,
 * and resumes from the checkpoints that these save. */
static const combination shapes[] = {
    {GPT2, 2, .zero = 2, .micro = 2, .more = OVERLAP},
    {GPT2, 1, .micro = 2},
    {GPT2, 1, .zero = 3, .micro = 8},
    {GPT2, 2, .zero = 0, .micro = 4},
    {GPT2, 2, .zero = 1},
    {GPT2, 2, .zero = 3, .micro = 2},
    {GPT2, 2, .tensor = 2, .sequence_parallel = 1},
    {GPT2, 2, .pipe = 2, .schedule = "zb-h1"},
    {GPT2, 4, .zero = 1, .micro = 2},
    {GPT2, 4, .tensor = 4, .micro = 2},
    {GPT2, 4, .zero = 3, .micro = 2, .more = ",\"mics_shard_size\":2"},
    {GPT2, 4, .tensor = 2, .zero = 3, .sequence_parallel = 1},
    {GPT2, 4, .pipe = 2, .zero = 1, .schedule = "interleaved", .virtual_stages = 2},
    {GPT2, 4, .pipe = 2, .tensor = 2},
    {GPT2, 4, .tensor = 2, .sequence = 2, .zero = 2},

    {LLAMA, 4, .pipe = 2, .tensor = 2, .order = "model,pipe,data,sequence"},
    {LLAMA, 1, .micro = 4},
    {LLAMA, 2, .tensor = 2, .chunks = 2},
    {LLAMA, 4, .tensor = 4, .micro = 2},
    {LLAMA, 4, .sequence = 2, .zero = 3},
    {LLAMA, 4, .pipe = 2, .sequence = 2, .zero = 1},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, HALF = 10, LATER = 15 };

static void shape_name(int i, char *name, size_t size) {
  snprintf(name, size, "%s-%d", model_names[shapes[i].model], i);
}

static int first_of_model(int i) {
  return i == 0 || shapes[i].model != shapes[i - 1].model;
}

static int first_shape(int model) {
  int i = 0;
  while (shapes[i].model != model) i++;
  return i;
}

static int log2_of(int ranks) {
  return ranks == 1 ? 0 : ranks == 2 ? 1 : 2;
}

static int looked_at(int i) {
  return first_of_model(i) || i % (TWS_SANITIZED ? 3 : 1) == 0;
}

/* Writes the line of a job that saves to "save-<name>" and resumes from the checkpoint of shape `from`; -1: the job
 * begins anew. */
static void write_shape(FILE *file, int i, const char *name, int steps, int saves, int from, const char *tag) {
  char line[4096], source[64] = "";
  FILE *text = fmemopen(line, sizeof line, "w");
  write_combination(text, &shapes[i], name, in_folder(model_names[shapes[i].model]), steps, settings);
  fclose(text);
  line[strcspn(line, "\n")] = '\0';
  if (from >= 0) shape_name(from, source, sizeof source);
  fprintf(file, "%s\t", line);
  if (saves)
    fprintf(file, "%s/save-%s", folder, name);
  else
    fprintf(file, "-");
  if (from >= 0) fprintf(file, "\t%s/save-%s\t%s", folder, source, tag);
  fprintf(file, "\n");
}

static double compare_with(const curve *got, const curve *want, int first, const char *what) {
  double worst = 0;
  for (int s = 0; s < got->steps; s++) {
    if (s < first) {
      ck_assert_msg(isnan(got->loss[s]), "%s: step %d was done again", what, s + 1);
      continue;
    }
    const double error = fabs(got->loss[s] / want->loss[s] - 1);
    ck_assert_msg(error < 1e-6, "%s, step %d: loss %.9g, not %.9g", what, s + 1, got->loss[s], want->loss[s]);
    worst = fmax(worst, error);
  }
  return worst;
}

/* For each model: the first shape trains 20 steps without a break, and 10 steps; every other shape continues from those
 * 10; and the first shape continues from what the others save. */
START_TEST(every_shape) {
  char jobs[96], name[64];
  curve whole[MODELS];
  double worst = 0;
  int compared = 0;
  snprintf(jobs, sizeof jobs, "%s", in_folder("jobs"));
  for (int m = 0; m < MODELS; m++) write_text(in_folder(model_names[m]), model_texts[m]);
  for (int k = 1; k < 3; k++) {
    FILE *file = fopen(jobs, "w");
    for (int i = 0; i < SHAPES; i++) {
      if (!first_of_model(i) || log2_of(shapes[i].ranks) != k) continue;
      write_shape(file, i, "whole", STEPS, 0, -1, NULL);
      shape_name(i, name, sizeof name);
      write_shape(file, i, name, HALF, 1, -1, NULL);
    }
    fclose(file);
    run_jobs(k, jobs);
    whole[k == 1 ? GPT2 : LLAMA] = *find(k, "whole");
  }
  for (int k = 0; k < 3; k++) {
    FILE *file = fopen(jobs, "w");
    for (int i = 0; i < SHAPES; i++) {
      if (first_of_model(i) || log2_of(shapes[i].ranks) != k || !looked_at(i)) continue;
      shape_name(i, name, sizeof name);
      write_shape(file, i, name, STEPS, 1, first_shape(shapes[i].model), "global_step10");
    }
    fclose(file);
    run_jobs(k, jobs);
    for (int i = 0; i < curve_count[k]; i++, compared++)
      worst = fmax(worst, compare_with(&curves[k][i], &whole[curves[k][i].name[0] == 'g' ? GPT2 : LLAMA], HALF,
                                       curves[k][i].name));
  }
  for (int k = 1; k < 3; k++) {
    FILE *file = fopen(jobs, "w");
    for (int i = 0; i < SHAPES; i++) {
      const int first = first_shape(shapes[i].model);
      if (first == i || log2_of(shapes[first].ranks) != k || !looked_at(i)) continue;
      snprintf(name, sizeof name, "back-%d", i);
      write_shape(file, first, name, STEPS, 0, i, "global_step15");
    }
    fclose(file);
    run_jobs(k, jobs);
    for (int i = 0; i < curve_count[k]; i++, compared++)
      worst = fmax(worst, compare_with(&curves[k][i], &whole[k == 1 ? GPT2 : LLAMA], LATER, curves[k][i].name));
  }
  ck_assert_int_ge(compared, TWS_SANITIZED ? 10 : 2 * (SHAPES - 2));
  printf("resumed at %d shapes: largest relative difference of a loss %.2g\n", compared, worst);
}
END_TEST

/* ---- the same shape ---- */

static void add_same(FILE *file, const char *name, const char *precision, const char *optimizer, int stage, int steps,
                     const char *where) {
  fprintf(file,
          "%s\ttiny-gpt2\t%d\t{\"optimizer\":{\"type\":\"%s\",\"params\":{\"lr\":0.003,\"weight_decay\":0.1}},"
          "\"gradient_clipping\":1.0,\"train_batch_size\":8,\"train_micro_batch_size_per_gpu\":2,%s"
          "\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"warmup_num_steps\":14,\"warmup_max_lr\":0.003}},"
          "\"zero_optimization\":{\"stage\":%d},\"twinspeed\":{\"sequence_length\":32,\"seed\":7}}\t%s\n",
          name, steps, optimizer, precision, stage, where);
}

/* Jobs with schedules, moments, masters, stochastic rounding and a changing loss scale resume with exactly the same
 * bits. */
START_TEST(same_bits) {
  static const struct {
    const char *name, *precision, *optimizer;
    int stage;
  } cases[] = {
      {"fp32", "", "AdamW", 3},
      {"bf16", "\"bf16\":{\"enabled\":true},", "AdamW", 2},
      {"alone", "\"bf16\":{\"enabled\":true,\"bf16_master_weights_and_grads\":true,\"bf16_optimizer_states\":true},",
       "Lion", 3},
      {"matrices", "", "Muon", 3},
      {"factors", "", "Adafactor", 2},
      {"codes", "\"bf16\":{\"enabled\":true},", "AdamW8bit", 3},
      {"fp16", "\"fp16\":{\"enabled\":true,\"initial_scale_power\":27,\"hysteresis\":3,\"loss_scale_window\":4},",
       "AdamW", 1}};
  enum { CASES = sizeof cases / sizeof *cases };
  const char *jobs = in_folder("jobs");
  char name[64], where[160];
  FILE *file = fopen(jobs, "w");
  for (int i = 0; i < CASES; i++) {
    add_same(file, cases[i].name, cases[i].precision, cases[i].optimizer, cases[i].stage, STEPS, "-");
    snprintf(where, sizeof where, "%s/same-%s", folder, cases[i].name);
    snprintf(name, sizeof name, "half-%s", cases[i].name);
    add_same(file, name, cases[i].precision, cases[i].optimizer, cases[i].stage, HALF, where);
    snprintf(where, sizeof where, "-\t%s/same-%s", folder, cases[i].name);
    snprintf(name, sizeof name, "rest-%s", cases[i].name);
    add_same(file, name, cases[i].precision, cases[i].optimizer, cases[i].stage, STEPS, where);
  }
  fclose(file);
  run_jobs(1, jobs);
  for (int i = 0; i < CASES; i++) {
    snprintf(name, sizeof name, "rest-%s", cases[i].name);
    const curve *whole = find(1, cases[i].name), *rest = find(1, name);
    for (int s = HALF; s < STEPS; s++)
      ck_assert_msg(memcmp(&whole->loss[s], &rest->loss[s], sizeof *rest->loss) == 0 &&
                        memcmp(&whole->norm[s], &rest->norm[s], sizeof *rest->norm) == 0,
                    "%s, step %d: loss %.17g, not %.17g", name, s + 1, rest->loss[s], whole->loss[s]);
  }
}
END_TEST

/* ---- another precision ---- */

/* Returns all saved elements of the entry, in float32. Free with free(). */
static float *read_all(const char *path, const char *entry, uint64_t *count) {
  tws_saved_index *index = NULL;
  tws_saved_reader reader;
  tws_error err = {0};
  ck_assert_msg(tws_saved_open(path, &index, &err) == TWS_OK, "%s", err.message);
  ck_assert(tws_saved_reader_open(index, &reader, &err) == TWS_OK);
  float *all = NULL;
  *count = 0;
  for (uint32_t p = 0; p < index->param_count; p++) {
    const tws_param *param = &index->params[p];
    const tws_param_slice whole = tws_slice_of(param, NULL);
    const uint64_t n = tws_slice_count(&whole);
    all = realloc(all, (*count + n) * sizeof *all);
    ck_assert_msg(tws_saved_read(&reader, tws_saved_entry_of(index, entry), p, 0, &whole, 0, n, TWS_F32, all + *count,
                                 &err) == TWS_OK,
                  "%s", err.message);
    *count += n;
  }
  tws_saved_reader_close(&reader);
  tws_saved_close(index);
  return all;
}

static void train_still(const char *precision, int stage, int ranks, int steps, const char *from, const char *to) {
  command_result r = twinspeed(
      "train --quiet -m tiny-gpt2 --seq 32 --micro-batch %d --accumulation 1 --stage %d -n %d --data %s --steps %d %s "
      "--set optimizer.type=AdamW --set optimizer.params.lr=%s --set optimizer.params.weight_decay=0 %s%s --save %s",
      8 / ranks, stage, ranks, text_path, steps, precision, *from ? "0" : "0.003", *from ? "--resume " : "", from, to);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
}

/* With a learning rate of 0 nothing changes but the precision: float32 weights become bfloat16's masters and float32
 * weights again, bfloat16 weights are the rounded ones, and fp16 does the same. */
START_TEST(other_precisions) {
  char paths[4][64], last[80];
  static const char *const tags[] = {"global_step3", "global_step4", "global_step5", "global_step6"};
  uint64_t counts[5];
  for (int i = 0; i < 4; i++) snprintf(paths[i], sizeof paths[i], "%s/precision%d", folder, i);
  train_still("", 1, 2, 3, "", paths[0]);
  train_still("--dtype bf16", 3, 2, 4, paths[0], paths[1]);
  train_still("--dtype fp16", 2, 1, 5, paths[1], paths[2]);
  train_still("", 0, 1, 6, paths[2], paths[3]);
  float *kept[5];
  for (int i = 0; i < 4; i++) {
    snprintf(last, sizeof last, "%s/%s", paths[i], tags[i]);
    kept[i] = read_all(last, i == 1 || i == 2 ? "master weights" : "parameters", &counts[i]);
    ck_assert_uint_eq(counts[i], counts[0]);
    ck_assert_msg(memcmp(kept[i], kept[0], counts[0] * sizeof **kept) == 0, "%s", paths[i]);
  }
  snprintf(last, sizeof last, "%s/%s", paths[1], tags[1]);
  kept[4] = read_all(last, "parameters", &counts[4]);
  int differ = 0;
  for (uint64_t i = 0; i < counts[4]; i++) {
    ck_assert_float_eq(kept[4][i], tws_from_bf16(tws_to_bf16(kept[0][i])));
    differ += kept[4][i] != kept[0][i];
  }
  ck_assert_int_gt(differ, 1000);
  for (int i = 0; i < 5; i++) free(kept[i]);
}
END_TEST

/* A training with another global batch continues after the samples that the earlier training has used. */
START_TEST(other_batch) {
  char save[64], path[96];
  tws_saved_index *index = NULL;
  snprintf(save, sizeof save, "%s/batch", folder);
  for (int i = 0; i < 2; i++) {
    command_result r = twinspeed(
        "train --quiet -m tiny-gpt2 --seq 32 --micro-batch %d --accumulation 1 -n 1 --data %s "
        "--steps %d --save %s %s%s",
        i ? 5 : 4, text_path, i ? 8 : 5, save, i ? "--resume " : "", i ? save : "");
    ck_assert_msg(r.status == 0, "%s", r.err);
    command_free(&r);
  }
  snprintf(path, sizeof path, "%s/global_step8", save);
  ck_assert(tws_saved_open(path, &index, NULL) == TWS_OK);
  ck_assert_int_eq(index->samples, 5 * 4 + 3 * 5);
  ck_assert_int_eq(index->train_batch, 5);
  tws_saved_close(index);
}
END_TEST

/* ---- moments of rows and columns, and of 8 bits ---- */

/* Trains to step 10 with an optimizer and returns the number of losses. */
static int train_with(const char *optimizer, const char *ranks, const char *files, double *loss) {
  command_result r = twinspeed(
      "train --json --quiet -m tiny-llama --seq 16 --threads 1 --steps 10 --data %s --set train_batch_size=8 --set "
      "optimizer.type=%s --set gradient_clipping=1 %s %s",
      text_path, optimizer, ranks, files);
  int count = 0;
  const cJSON *item;
  ck_assert_msg(r.status == 0, "%s: %s", ranks, r.err);
  cJSON *json = cJSON_Parse(r.out);
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(json, "losses")) loss[count++] = item->valuedouble;
  cJSON_Delete(json);
  command_free(&r);
  return count;
}

/* Trains with an optimizer on some ranks, and resumes the checkpoint on others. Returns the largest relative difference
 * of a loss from the training that was not interrupted. */
static double resume_on_other_ranks(const char *name, const char *optimizer) {
  static const char *const from[] = {"-n 2 --stage 2", "-n 4 --stage 3"};
  static const char *const to[] = {"-n 1 --stage 0", "-n 4 --stage 1", "-n 2 --stage 1", "-n 2 --stage 3",
                                   "-n 4 --stage 0"};
  double worst = 0;
  for (int f = 0; f < 2; f++) {
    double whole[10], rest[10];
    char files[200];
    snprintf(files, sizeof files, "--save %s/%s-%d --save-every 5 --keep 9", folder, name, f);
    ck_assert_int_eq(train_with(optimizer, from[f], files, whole), 10);
    for (size_t i = (size_t)f; i < sizeof to / sizeof *to; i += 2) {
      snprintf(files, sizeof files, "--resume %s/%s-%d --tag global_step5", folder, name, f);
      ck_assert_int_eq(train_with(optimizer, to[i], files, rest), 5);
      for (int s = 0; s < 5; s++) worst = fmax(worst, fabs(rest[s] / whole[5 + s] - 1));
    }
  }
  printf("%s resumed on other ranks: largest relative difference of a loss %.2g\n", name, worst);
  return worst;
}

/* Adafactor's second moments are of whole matrices on all ranks: a checkpoint of any number of ranks and stage is resumed
 * on any other, and losses are those of the training that was not interrupted, except for the order of sums. */
START_TEST(factored_moments_on_other_ranks) {
  ck_assert_double_lt(resume_on_other_ranks("factored",
                                            "Adafactor --set 'optimizer.params=[{\"lr\":0.03,\"weight_decay\":0.01},"
                                            "{\"params\":\"vectors\",\"lr\":0.01}]'"),
                      1e-5);
}
END_TEST

/* Blocks of 8-bit states are never divided among ranks, so that codes and scales are read as they were saved. */
START_TEST(eight_bit_moments_on_other_ranks) {
  ck_assert_double_lt(resume_on_other_ranks("codes", "AdamW8bit --set optimizer.params.lr=0.01"), 1e-5);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("checkpoint_shapes");
  TCase *tests = tcase_create("checkpoint_shapes");
  tcase_add_test(tests, every_shape);
  tcase_add_test(tests, factored_moments_on_other_ranks);
  tcase_add_test(tests, eight_bit_moments_on_other_ranks);
  tcase_add_test(tests, same_bits);
  tcase_add_test(tests, other_precisions);
  tcase_add_test(tests, other_batch);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
