/* ctest: engine mpi sampled */
/* communication_data_type: losses of trainings whose gradients are reduced in each type, compared with a loop in
 * PyTorch that does the same (tests/golden/communication.json), for types of models and sums, ZeRO stages and numbers
 * of ranks. */
#include "members.h"
#include "train.h"

static const char *word(const cJSON *run, const char *key) {
  return member(run, key)->valuestring;
}

/* Returns 1 if a stage reduces as often as the golden run: every micro-batch, or once the accumulated gradients.
 * Accumulation in another type than the model's needs ZeRO. */
static int has_stage(const cJSON *run, int stage) {
  if ((stage > 1) != is_true(run, "every_micro_batch")) return 0;
  return stage > 0 || strcmp(word(run, "model"), word(run, "accumulation")) == 0;
}

static void name_of(const cJSON *run, int index, int stage, char *name, size_t size) {
  snprintf(name, size, "%d-%s-%s-%s-zero%d", index, word(run, "model"), word(run, "accumulation"),
           word(run, "communication"), stage);
}

/* Writes a job with buckets of a few parameters; every other job overlaps reductions, and reduces in one of the ways of
 * its stage. */
static void write_job(FILE *file, const char *name, const char *model, const cJSON *golden, const cJSON *run, int index,
                      int stage) {
  static const char *const ways[] = {"", ",\"reduce_scatter\":false", ",\"use_multi_rank_bucket_allreduce\":false"};
  const char *type = word(run, "model");
  fprintf(file,
          "%s\t%s\t%d\t{\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":%g,\"weight_decay\":0}},"
          "\"gradient_clipping\":0,\"train_batch_size\":8,\"gradient_accumulation_steps\":2,"
          "\"bf16\":{\"enabled\":%s},\"fp16\":{\"enabled\":%s,\"loss_scale\":1024},"
          "\"communication_data_type\":\"%s\",",
          name, model, cJSON_GetArraySize(member(run, "losses")), number(run, "learning_rate"),
          strcmp(type, "bf16") == 0 ? "true" : "false", strcmp(type, "fp16") == 0 ? "true" : "false",
          word(run, "communication"));
  if (strcmp(type, word(run, "accumulation")) != 0)
    fprintf(file, "\"data_types\":{\"grad_accum_dtype\":\"%s\"},", word(run, "accumulation"));
  fprintf(file,
          "\"zero_optimization\":{\"stage\":%d,\"overlap_comm\":%s,\"reduce_bucket_size\":2000%s},"
          "\"twinspeed\":{\"sequence_length\":16,\"seed\":%d}}\n",
          stage, index % 2 ? "true" : "false", ways[(index + stage) % 3], integer(golden, "seed"));
}

/* The allowed differences per type: where the last bits of a gradient differ, rounding may go the other way, so a
 * coarser type makes losses differ more, and norms still more. */
typedef struct precision {
  const char *model, *type; /* type: of reductions */
  double loss, norm;        /* limits of relative differences */
  double worst_loss, worst_norm;
} precision;
static precision precisions[] = {
    {.model = "fp32", .type = "fp32", .loss = 2e-7, .norm = 2e-6},
    {.model = "fp32", .type = "fp16", .loss = 8e-7, .norm = 2e-5},
    {.model = "fp32", .type = "bf16", .loss = 4e-6, .norm = 2e-4},
    {.model = "fp16", .loss = 1e-4, .norm = 5e-3},
    {.model = "bf16", .loss = 3e-4, .norm = 1e-2},
};
enum { PRECISIONS = sizeof precisions / sizeof *precisions };

static precision *precision_of(const cJSON *run) {
  for (int i = 0; i < PRECISIONS; i++)
    if (strcmp(precisions[i].model, word(run, "model")) == 0 &&
        (!precisions[i].type || strcmp(precisions[i].type, word(run, "communication")) == 0))
      return &precisions[i];
  ck_abort_msg("no limits for %s", word(run, "model"));
  return NULL;
}

static void compare(const curve *c, const cJSON *run) {
  const cJSON *losses = member(run, "losses"), *norms = member(run, "norms");
  precision *p = precision_of(run);
  ck_assert_int_eq(c->steps, cJSON_GetArraySize(losses));
  for (int s = 0; s < c->steps; s++) {
    const double loss = fabs(c->loss[s] / cJSON_GetArrayItem(losses, s)->valuedouble - 1);
    const double norm = fabs(c->norm[s] / cJSON_GetArrayItem(norms, s)->valuedouble - 1);
    ck_assert_msg(loss < p->loss, "%s, step %d: loss %.9g, not %.9g", c->name, s + 1, c->loss[s],
                  cJSON_GetArrayItem(losses, s)->valuedouble);
    ck_assert_msg(norm < p->norm, "%s, step %d: norm %.9g, not %.9g", c->name, s + 1, c->norm[s],
                  cJSON_GetArrayItem(norms, s)->valuedouble);
    p->worst_loss = fmax(p->worst_loss, loss);
    p->worst_norm = fmax(p->worst_norm, norm);
  }
}

/* Returns the largest relative difference between the losses of two golden runs. */
static double apart(const cJSON *a, const cJSON *b) {
  double most = 0;
  const cJSON *x = member(a, "losses")->child, *y = member(b, "losses")->child;
  for (; x && y; x = x->next, y = y->next) most = fmax(most, fabs(x->valuedouble / y->valuedouble - 1));
  return most;
}

/* Asserts that the types of reductions can be told apart by the losses of float32 trainings, which have hardly any
 * other rounding. */
static void check_that_types_differ(const cJSON *runs) {
  const cJSON *run, *other;
  int pairs = 0;
  cJSON_ArrayForEach(run, runs) cJSON_ArrayForEach(other, runs) {
    if (run == other || strcmp(word(run, "model"), "fp32") != 0 || strcmp(word(other, "model"), "fp32") != 0) continue;
    if (integer(run, "ranks") != integer(other, "ranks")) continue;
    if (is_true(run, "every_micro_batch") != is_true(other, "every_micro_batch")) continue;
    const double limit = precision_of(run)->loss + precision_of(other)->loss;
    ck_assert_msg(apart(run, other) > 1.5 * limit, "%s and %s: %g", word(run, "communication"),
                  word(other, "communication"), apart(run, other));
    pairs++;
  }
  ck_assert_int_eq(pairs, 2 * 2 * 3 * 2);
}

START_TEST(losses_are_those_of_reductions_in_the_type) {
  tws_json *golden = golden_file("communication.json");
  const cJSON *runs = member(golden->root, "runs"), *run;
  char model[96], jobs[96], text[96], name[64];
  snprintf(model, sizeof model, "%s", in_folder("model.json"));
  char *config = cJSON_PrintUnformatted(member(golden->root, "config"));
  write_text(model, config);
  cJSON_free(config);
  snprintf(text, sizeof text, "%s", in_folder("text"));
  write_text(text, member(golden->root, "text")->valuestring);
  setenv("DATA", text, 1);
  check_that_types_differ(runs);
  for (int k = 1; k <= 2; k++) {
    snprintf(jobs, sizeof jobs, "%s", in_folder("jobs"));
    FILE *file = fopen(jobs, "w");
    int index = 0, count = 0;
    cJSON_ArrayForEach(run, runs) {
      for (int stage = 0; stage <= 3 && integer(run, "ranks") == 1 << k; stage++) {
        if (!has_stage(run, stage)) continue;
        name_of(run, index, stage, name, sizeof name);
        write_job(file, name, model, golden->root, run, index, stage);
        count++;
      }
      index++;
    }
    fclose(file);
    run_jobs(k, jobs);
    ck_assert_int_eq(curve_count[k], count);
    ck_assert_int_eq(count, 45);
    index = 0;
    cJSON_ArrayForEach(run, runs) {
      for (int stage = 0; stage <= 3 && integer(run, "ranks") == 1 << k; stage++) {
        if (!has_stage(run, stage)) continue;
        name_of(run, index, stage, name, sizeof name);
        compare(find(k, name), run);
      }
      index++;
    }
  }
  for (int i = 0; i < PRECISIONS; i++)
    printf("%s, reduced in %s: losses differ by %.2g from PyTorch's, norms by %.2g\n", precisions[i].model,
           precisions[i].type ? precisions[i].type : "all types", precisions[i].worst_loss, precisions[i].worst_norm);
  tws_json_destroy(golden);
}
END_TEST

/* sparse_gradients: rows of the embedding's gradient are reduced in place of the table. In float32 the host adds the
 * ranks in the same order in both cases, so that losses and norms are equal to the last bit; the communicator counts
 * the plan's bytes, which are fewer. Tensor-parallel ranks have parts of the table, and of pipeline stages the first
 * alone has it. With tied weights everything is all-reduced. */
START_TEST(sparse_gradients) {
  static const struct {
    const char *model, *axes;
    int fewer;
  } cases[] = {{"tiny-llama", "", 1},
               {"tiny-llama", "--tp 2", 1},
               {"tiny-llama", "--pp 2", 1},
               {"tiny-llama", "--sp 2 --set gradient_predivide_factor=3", 1},
               {"tiny-gpt2", "", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    double loss[2], norm[2], sent[2];
    for (int sparse = 0; sparse < 2; sparse++) {
      command_result r = twinspeed(
          "train --json --quiet -m %s --seq 16 --micro-batch 1 --accumulation 2 -n 4 --threads 1 --steps 3 --data %s "
          "--stage 0 --set sparse_gradients=%s %s",
          cases[i].model, text_path, sparse ? "true" : "false", cases[i].axes);
      ck_assert_msg(r.status == 0, "%s", r.err);
      cJSON *json = cJSON_Parse(r.out);
      const cJSON *train = cJSON_GetArrayItem(member(json, "communication"), 0);
      loss[sparse] = cJSON_GetArrayItem(member(json, "losses"), 2)->valuedouble;
      norm[sparse] = cJSON_GetArrayItem(member(json, "gradient_norms"), 2)->valuedouble;
      sent[sparse] = number(train, "sent_bytes");
      ck_assert_double_eq(sent[sparse], number(train, "planned_bytes"));
      cJSON_Delete(json);
      command_free(&r);
    }
    const double exact = strstr(cases[i].axes, "factor") ? 1e-6 : 0; /* gradient_predivide_factor multiplies the sum
                                                                      * twice, with rounding */
    ck_assert_msg(fabs(loss[1] / loss[0] - 1) <= exact && fabs(norm[1] / norm[0] - 1) <= exact, "%s %s: %.9g, %.9g",
                  cases[i].model, cases[i].axes, loss[1], loss[0]);
    ck_assert_msg(cases[i].fewer ? sent[1] < sent[0] : sent[1] == sent[0], "%s %s: %g and %g bytes", cases[i].model,
                  cases[i].axes, sent[1], sent[0]);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("train_communication");
  TCase *tests = tcase_create("train_communication");
  tcase_add_test(tests, sparse_gradients);
  tcase_add_test(tests, losses_are_those_of_reductions_in_the_type);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
