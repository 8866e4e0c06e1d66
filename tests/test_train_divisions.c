/* ctest: engine mpi sampled */
/* Every division of a training along the axes has the losses of one rank. */
#include "train_combinations.h"

enum { SHORT = 10 };

static void reference_name(int model, int ignored, char *name, size_t size) {
  snprintf(name, size, "%s%s", model_names[model], ignored ? "-ignored" : "");
}

static void run_combinations(int k) {
  char jobs[96], name[64];
  snprintf(jobs, sizeof jobs, "%s", in_folder("jobs")); /* in_folder() forgets */
  FILE *file = fopen(jobs, "w");
  int count = 0;
  for (int i = 0; k == 0 && i < 2 * MODELS; i++, count++) {
    combination one = {.model = i / 2, .ranks = 1, .micro = 2, .ignored = i % 2};
    reference_name(one.model, one.ignored, name, sizeof name);
    write_combination(file, &one, name, in_folder(model_names[one.model]), SHORT, settings);
  }
  for (int i = 0; i < COMBINATIONS; i++) {
    const combination *c = &combinations[i];
    if (!is_taken(i) || c->ranks != 1 << k) continue;
    combination_name(c, name, sizeof name);
    write_combination(file, c, name, in_folder(model_names[c->model]), SHORT, settings);
    count++;
  }
  fclose(file);
  run_jobs(k, jobs);
  ck_assert_int_eq(curve_count[k], count);
}

/* Jobs that are divided along all axes have the losses and norms of one rank, and after training the same loss on other
 * data. */
START_TEST(equal_divisions) {
  double worst = 0.0, worst_norm = 0.0, worst_eval = 0.0;
  int evaluated = 0, taken = 0;
  write_story(in_folder("evaluation"), 3000);
  setenv("EVAL_DATA", in_folder("evaluation"), 1);
  for (int m = 0; m < MODELS; m++) write_text(in_folder(model_names[m]), model_texts[m]);
  for (int k = 0; k < WORLDS; k++) run_combinations(k);
  for (int i = 0; i < COMBINATIONS; i++) {
    if (!is_taken(i)) continue;
    const combination *c = &combinations[i];
    char name[64], reference[64];
    combination_name(c, name, sizeof name);
    reference_name(c->model, c->ignored, reference, sizeof reference);
    taken++;
    const int k = c->ranks == 1 ? 0 : c->ranks == 2 ? 1 : c->ranks == 4 ? 2 : 3;
    const curve *got = find(k, name), *want = find(0, reference);
    ck_assert(got->steps == SHORT && want->steps == SHORT);
    for (int s = 0; s < SHORT; s++) {
      double error = fabs(got->loss[s] / want->loss[s] - 1.0), norm_error = fabs(got->norm[s] / want->norm[s] - 1.0);
      ck_assert_msg(error < 1e-5, "%s of %s, step %d: loss %.9g, not %.9g", name, reference, s + 1, got->loss[s],
                    want->loss[s]);
      ck_assert_msg(norm_error < 1e-4, "%s of %s, step %d: norm %.9g, not %.9g", name, reference, s + 1, got->norm[s],
                    want->norm[s]);
      ck_assert(isnan(got->eval[s]) == isnan(want->eval[s]) &&
                isnan(got->eval[s]) == ((s + 1) % 4 != 0 && s + 1 < SHORT));
      if (!isnan(got->eval[s])) {
        double eval_error = fabs(got->eval[s] / want->eval[s] - 1.0);
        ck_assert_msg(eval_error < 1e-6, "%s of %s, evaluation after step %d: loss %.9g, not %.9g", name, reference,
                      s + 1, got->eval[s], want->eval[s]);
        worst_eval = fmax(worst_eval, eval_error);
        evaluated++;
      }
      worst = fmax(worst, error);
      worst_norm = fmax(worst_norm, norm_error);
    }
  }
  ck_assert_int_ge(taken, COMBINATIONS / (2 * EVERY));
  ck_assert_int_ge(evaluated, 3 * taken);
  printf("largest relative difference of a loss: %.2g, of a norm: %.2g, of an evaluation: %.2g\n", worst, worst_norm,
         worst_eval);
  for (int m = 0; m < MODELS; m++) { /* ignored targets matter: the losses with and without them differ */
    char plain[64], ignored[64];
    reference_name(m, 0, plain, sizeof plain);
    reference_name(m, 1, ignored, sizeof ignored);
    ck_assert_double_gt(fabs(find(0, plain)->loss[SHORT - 1] - find(0, ignored)->loss[SHORT - 1]), 1e-3);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("train_divisions");
  TCase *tests = tcase_create("train_divisions");
  tcase_add_test(tests, equal_divisions);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
