/* ctest: engine mpi sampled */
/* Training with bfloat16 weights that have no float32 copy: its losses against those with copies, in every division. */
#include "train_combinations.h"

#define NO_COPY "\"bf16\":{\"enabled\":true,\"bf16_master_weights_and_grads\":true"
static const char *const copies[] = {"\"bf16\":{\"enabled\":true}", NO_COPY "}",
                                     NO_COPY ",\"bf16_optimizer_states\":true}"};
enum { COPIES = sizeof copies / sizeof *copies };

/* Jobs with one micro-batch per step, so that stages differ only in which rank holds what; then divisions along the
 * axes. */
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
    {LLAMA, 4, .zero = 3, .tensor = 2, .sequence_parallel = 1, .micro = 4},
};
enum { WITHOUT = sizeof without_copies / sizeof *without_copies, PLAIN = 10 };

static int alone(int model) {
  return model == LLAMA ? 3 : 0;
}

/* Returns the number of steps of a job; jobs with which others are compared train longer. */
static int steps_of(int index) {
  return index == alone(GPT2) || index == alone(LLAMA) ? STEPS : FEW_STEPS;
}

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
      write_combination(file, &without_copies[i], name, in_folder(model_names[without_copies[i].model]), steps_of(i),
                        with);
    }
  fclose(file);
  run_jobs(k, jobs);
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
  for (int s = 0; s < a->steps; s++) {
    double error = a->loss[s] / b->loss[s] - 1;
    apart += fabs(error) / a->steps;
    *side += error / a->steps;
  }
  return apart;
}

/* At equal numbers of ranks all ZeRO stages draw the same random bits for the same weights, so losses are equal to the
 * last place. Other numbers of ranks draw the same bits but round gradients differently; tensor-parallel ranks draw
 * other bits. */
START_TEST(weights_without_copies_train) {
  double same_bits = 0, other_bits = 0, beside_copies = 0, side;
  for (int m = 0; m < MODELS; m++) write_text(in_folder(model_names[m]), model_texts[m]);
  for (int k = 0; k < 3; k++) run_without_copies(k);
  for (int i = 0; i < WITHOUT; i++)
    for (int mode = 0; mode < COPIES; mode++) {
      const combination *c = &without_copies[i];
      const curve *got = without(i, mode), *one = without(alone(c->model), mode);
      ck_assert_int_eq(got->steps, steps_of(i));
      const double own = mean_apart(got, one, &side);
      ck_assert_msg(own < (c->tensor ? 4e-3 : 6e-4), "%s: %g from one rank", got->name, own);
      if (got->steps == STEPS) ck_assert_double_lt(got->loss[STEPS - 1], 0.75 * got->loss[0]);
      *(c->tensor ? &other_bits : &same_bits) = fmax(c->tensor ? other_bits : same_bits, own);
      const double apart = mean_apart(got, without(alone(c->model), 0), &side);
      ck_assert_msg(apart < 4e-3 && fabs(side) < 3e-3, "%s: %g from float32 copies, %g to one side", got->name, apart,
                    side);
      beside_copies = fmax(beside_copies, apart);
      const curve *first = i < PLAIN ? without(i - c->zero + 1, mode) : got;
      ck_assert_msg(memcmp(got->loss, first->loss, (size_t)got->steps * sizeof *got->loss) == 0, "%s differs from %s",
                    got->name, first->name);
    }
  printf(
      "bf16: losses differ by %.2g on average from float32 copies, by %.2g between divisions, tensor-parallel %.2g\n",
      beside_copies, same_bits, other_bits);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("train_masters");
  TCase *tests = tcase_create("train_masters");
  tcase_add_test(tests, weights_without_copies_train);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
