/* ctest: engine mpi sampled */
/* Training in bfloat16, with float32 copies of the weights and without: its losses against float32, and small updates
 * that rounding to nearest loses. */
#include "base/json.h"
#include "train.h"

/* Training in bf16 with float32 masters reduces the loss like float32, whatever the stage and the axis. Rounding
 * changes single losses by one or two percent, in both directions. */
START_TEST(bf16_trains) {
  static const char *const axes[] = {"",
                                     "",
                                     "",
                                     "",
                                     "\"tensor_parallel\":{\"autotp_size\":2},",
                                     "\"sequence_parallel_size\":2,",
                                     "\"pipeline\":{\"stages\":2},"};
  enum { KINDS = sizeof axes / sizeof *axes };
  const char *jobs = in_folder("jobs");
  FILE *file = fopen(jobs, "w");
  for (int kind = 0; kind <= KINDS; kind++) { /* the last is float32 */
    int bf16 = kind < KINDS;
    fprintf(file,
            "%s-%d\ttiny-gpt2\t%d\t{%s,%s\"bf16\":{\"enabled\":%s},\"train_micro_batch_size_per_gpu\":2,"
            "\"zero_optimization\":{\"stage\":%d},\"twinspeed\":{\"sequence_length\":32,\"seed\":7}}\n",
            bf16 ? "bf16" : "fp32", kind, STEPS, settings, bf16 ? axes[kind] : "", bf16 ? "true" : "false",
            bf16 ? kind < 4 ? kind : 1 : 0);
  }
  fclose(file);
  run_jobs(1, jobs);
  ck_assert_int_eq(curve_count[1], KINDS + 1);
  const curve *exact = &curves[1][KINDS];
  for (int kind = 0; kind < KINDS; kind++) {
    const curve *c = &curves[1][kind];
    double apart = 0, side = 0;
    ck_assert(c->steps == STEPS && exact->steps == STEPS);
    ck_assert_double_lt(c->loss[STEPS - 1], 0.75 * c->loss[0]);
    for (int s = 0; s < STEPS; s++) {
      double error = c->loss[s] / exact->loss[s] - 1;
      apart += fabs(error) / STEPS;
      side += error / STEPS;
      ck_assert_msg(fabs(error) < 0.05, "kind %d, step %d: %g", kind, s + 1, error);
    }
    ck_assert_msg(apart < 0.006 && fabs(side) < 0.004, "kind %d: %g apart, %g to one side", kind, apart, side);
  }
}
END_TEST

/* Returns the mean of the first losses less that of the last ones. */
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

/* With a learning rate below half a unit in the last place of most weights, rounding to nearest never changes these
 * weights; float32 copies and stochastic rounding do. */
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

int main(void) {
  Suite *suite = suite_create("train_bf16");
  TCase *tests = tcase_create("train_bf16");
  tcase_add_test(tests, bf16_trains);
  tcase_add_test(tests, small_updates_are_not_lost);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
