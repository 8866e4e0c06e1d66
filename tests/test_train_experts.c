/* ctest: mpi */
/* A small model of experts on four ranks: however its experts are shared out, it loses the same; what is refused names
 * the nearest that is legal. */
#include "answers.h"
#include "members.h"
#include "train.h"

enum { TRAINED = TWS_SANITIZED ? 3 : 6 };

/* Losses and gradient norms of a job. */
static void train_experts(const char *division, double losses[TRAINED], double norms[TRAINED]) {
  command_result r = twinspeed(
      "train -m tiny-mixtral --data %s --steps %d --seq 32 --seed 1 --set optimizer.params.lr=0.003 --threads 1 "
      "--json --quiet %s",
      text_path, TRAINED, division);
  ck_assert_msg(r.status == 0, "%s: %s", division, r.err);
  cJSON *json = assert_json(&r, "twinspeed-train-1");
  for (int s = 0; s < TRAINED; s++) { /* two layers, of which a token chooses two experts: 0.02 each when even */
    const double auxiliary = cJSON_GetArrayItem(member(json, "auxiliary_losses"), s)->valuedouble;
    const double dropped = cJSON_GetArrayItem(member(json, "dropped_shares"), s)->valuedouble;
    ck_assert_msg(auxiliary > 0.0799 && auxiliary < 0.12 && dropped > 0 && dropped < 0.3, "%g, %g", auxiliary, dropped);
    losses[s] = cJSON_GetArrayItem(member(json, "losses"), s)->valuedouble;
    norms[s] = cJSON_GetArrayItem(member(json, "gradient_norms"), s)->valuedouble;
  }
  cJSON_Delete(json);
  command_free(&r);
}

static void compare_with(const char *const *divisions, const double *losses, const double *norms) {
  for (; *divisions; divisions++) {
    double loss[TRAINED], norm[TRAINED];
    train_experts(*divisions, loss, norm);
    for (int s = 0; s < TRAINED; s++) {
      ck_assert_msg(fabs(loss[s] / losses[s] - 1) < 1e-5, "%s, step %d: loss %.9g, not %.9g", *divisions, s + 1,
                    loss[s], losses[s]);
      ck_assert_msg(fabs(norm[s] / norms[s] - 1) < 1e-4, "%s, step %d: norm %.9g, not %.9g", *divisions, s + 1, norm[s],
                    norms[s]);
    }
  }
}

START_TEST(shared_out_or_not_the_loss_is_the_same) {
  static const char *const divisions[] = {"-n 4 --micro-batch 2 --ep 2",
                                          "-n 4 --micro-batch 2 --ep 4",
                                          "-n 4 --micro-batch 2 --stage 1 --ep 2",
                                          "-n 4 --micro-batch 2 --stage 2 --ep 4 --recompute full",
                                          "-n 4 --micro-batch 2 --stage 3 --ep 2 --recompute selective",
                                          "-n 4 --micro-batch 2 --stage 2 --ep 2 "
                                          "--set use_data_before_expert_parallelism=true",
                                          NULL};
  double losses[TRAINED], norms[TRAINED];
  train_experts("-n 4 --micro-batch 2 --ep 1", losses, norms);
  ck_assert(losses[TRAINED - 1] < losses[0] - 0.2);
  compare_with(divisions, losses, norms);
}
END_TEST

/* Beside the other axes: two replicas share the experts. */
START_TEST(beside_other_axes) {
  static const char *const divisions[] = {"-n 2 --micro-batch 2 --stage 1 --ep 2", "-n 4 --tp 2 --micro-batch 2 --ep 2",
                                          "-n 4 --pp 2 --micro-batch 2 --stage 1 --ep 2", NULL};
  double losses[TRAINED], norms[TRAINED];
  train_experts("-n 2 --micro-batch 2", losses, norms);
  compare_with(divisions, losses, norms);
}
END_TEST

START_TEST(refusals) {
  static const struct {
    const char *arguments, *says, *hint;
  } cases[] = {
      {"-m tiny-mixtral -n 4 --ep 3", "expert_parallel_size 3 does not divide 4 replicas", "expert_parallel_size 2"},
      {"-m tiny-mixtral -n 3 --ep 3", "does not divide a layer's 4 experts", "legal for this model is 2"},
      {"-m tiny-llama -n 2 --ep 2", "the model has no experts", "expert_parallel_size"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    command_result r = twinspeed("check %s", cases[i].arguments);
    ck_assert_int_ne(r.status, 0);
    ck_assert_msg(strstr(r.err, cases[i].says) && strstr(r.err, cases[i].hint), "%s%s", r.out, r.err);
    command_free(&r);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("train_experts");
  TCase *tests = tcase_create("train_experts");
  tcase_set_timeout(tests, 300);
  tcase_add_test(tests, shared_out_or_not_the_loss_is_the_same);
  tcase_add_test(tests, beside_other_axes);
  tcase_add_test(tests, refusals);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
