/* ctest: mpi sampled */
/* Families of models against the reference library: tests/golden/families.json has its losses with equal weights on the
 * same text; trainings on one rank and on two are compared with it. */
#include "answers.h"
#include "members.h"
#include "train.h"

/* Trains a job, writes its losses and returns their number. */
static int losses_of(const char *model, const char *text, int steps, const char *division, double *losses) {
  command_result r = twinspeed(
      "train -m %s --data %s --steps %d --seq 64 --seed 1 --set optimizer.params.lr=0.001 "
      "--set optimizer.params.weight_decay=0 --threads 1 --json --quiet %s",
      model, text, steps, division);
  ck_assert_msg(r.status == 0, "%s: %s", division, r.err);
  cJSON *json = assert_json(&r, "twinspeed-train-1");
  const cJSON *list = member(json, "losses");
  int count = 0;
  for (; count < steps && count < cJSON_GetArraySize(list); count++)
    losses[count] = cJSON_GetArrayItem(list, count)->valuedouble;
  cJSON_Delete(json);
  command_free(&r);
  return count;
}

START_TEST(families_lose_what_the_reference_loses) {
  static const char *const divisions[] = {
      "-n 1 --micro-batch 2", "-n 2 --stage 3 --micro-batch 1", "-n 2 --tp 2 --micro-batch 2 --sequence-parallel",
      "-n 2 --sp 2 --micro-batch 2 --recompute full", "-n 2 --pp 2 --micro-batch 1 --accumulation 2"};
  tws_json *golden = golden_file("families.json");
  char model[96], text[96];
  snprintf(text, sizeof text, "%s", in_folder("text"));
  FILE *file = fopen(text, "w");
  for (int i = 0; i < 64; i++) fputs(member(golden->root, "text")->valuestring, file);
  fclose(file);
  double worst = 0;
  const cJSON *family;
  cJSON_ArrayForEach(family, member(golden->root, "families")) {
    const cJSON *expected = member(family, "losses");
    const int steps = cJSON_GetArraySize(expected);
    double losses[16];
    char *config = cJSON_PrintUnformatted(member(family, "config"));
    snprintf(model, sizeof model, "%s", in_folder("model.json"));
    write_text(model, config);
    cJSON_free(config);
    for (size_t d = 0; d < sizeof divisions / sizeof *divisions; d++) {
      ck_assert_int_eq(losses_of(model, text, steps, divisions[d], losses), steps);
      for (int s = 0; s < steps; s++) {
        const double want = cJSON_GetArrayItem(expected, s)->valuedouble, error = fabs(losses[s] / want - 1);
        ck_assert_msg(error < 2e-6, "%s, %s, step %d: loss %.9g, not %.9g", member(family, "name")->valuestring,
                      divisions[d], s + 1, losses[s], want);
        worst = fmax(worst, error);
      }
    }
  }
  printf("largest relative difference of a loss: %.2g\n", worst);
  tws_json_destroy(golden);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("train_families");
  TCase *tests = tcase_create("train_families");
  tcase_add_test(tests, families_lose_what_the_reference_loses);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
