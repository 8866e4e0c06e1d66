/* ctest: engine mpi sampled */
/* Trainings whose results do not depend on ranks, ZeRO stage, micro-batches, pipeline or recomputation. */
#include "train.h"

static void add_job(FILE *file, const char *name, const char *model, int stage, int micro, const char *more,
                    const char *recompute, int steps) {
  fprintf(file,
          "%s\t%s\t%d\t{%s,\"train_micro_batch_size_per_gpu\":%d,\"zero_optimization\":{\"stage\":%d,"
          "\"reduce_bucket_size\":20000,\"stage3_prefetch_bucket_size\":30000,\"stage3_param_persistence_threshold\":"
          "100%s},"
          "\"twinspeed\":{\"sequence_length\":32,\"seed\":7,\"recompute\":\"%s\"}}\n",
          name, model, steps, settings, micro, stage, more, recompute);
}

/* Adds jobs with pipelines: every schedule, both ZeRO stages that support pipelines, with and without recomputation.
 * Returns their number. */
static int add_pipelines(FILE *file, int ranks) {
  static const char *const schedules[] = {"gpipe", "1f1b", "interleaved", "zb-h1"};
  static const char *const models[] = {"tiny-gpt2", "tiny-llama"};
  int count = 0;
  for (int stages = 2; stages <= ranks; stages *= 2)
    for (int i = 0; i < 4; i++)
      for (int m = 0; m < 2; m++) {
        int virtual_stages = i == 2 && stages == 2 ? 2 : 1, zero = (i + m) % 2;
        fprintf(file,
                "%s-pipe%d-%s-zero%d\t%s\t%d\t{%s,\"train_micro_batch_size_per_gpu\":1,"
                "\"pipeline\":{\"stages\":%d,\"partition\":\"uniform\"},\"zero_optimization\":{\"stage\":%d},"
                "\"twinspeed\":{\"sequence_length\":32,\"seed\":7,\"recompute\":\"%s\",\"virtual_stages\":%d,"
                "\"pipeline_schedule\":\"%s\"}}\n",
                models[m], stages, schedules[i], zero, models[m], FEW_STEPS, settings, stages, zero,
                m ? "full" : "none", virtual_stages, schedules[i]);
        count++;
      }
  return count;
}

static int write_jobs(const char *path, int ranks) {
  static const char *const models[] = {"tiny-gpt2", "tiny-llama"};
  static const char *const modes[] = {"none", "full", "selective"};
  FILE *file = fopen(path, "w");
  char name[64];
  for (int m = 0; m < 2; m++)
    for (int stage = 0; stage < 4; stage++)
      for (int mode = 0; mode < 3; mode++) {
        if (mode == 2 && stage % 2) continue;
        snprintf(name, sizeof name, "%s-%d-%s", models[m], stage, modes[mode]);
        add_job(file, name, models[m], stage, 8 / ranks / (stage % 2 ? 2 : 1), "", modes[mode],
                ranks == 1 && stage == 0 && mode == 0 ? STEPS : FEW_STEPS);
      }
  add_job(file, "tiny-gpt2-1-overlap", "tiny-gpt2", 1, 1, ",\"overlap_comm\":true", "none", FEW_STEPS);
  add_job(file, "tiny-gpt2-2-plain", "tiny-gpt2", 2, 2,
          ",\"overlap_comm\":true,\"reduce_scatter\":true,\"use_multi_rank_bucket_allreduce\":false", "none",
          FEW_STEPS);
  add_job(file, "tiny-llama-3-allreduce", "tiny-llama", 3, 2, ",\"reduce_scatter\":false,\"overlap_comm\":false",
          "none", FEW_STEPS);
  add_job(file, "tiny-gpt2-3-sequential", "tiny-gpt2", 3, 2, ",\"stage3_allgather_sequential\":true", "none",
          FEW_STEPS);
  int pipelines = add_pipelines(file, ranks);
  fclose(file);
  return 24 + pipelines;
}

/* Losses of all stages, ranks, micro-batches and schedules equal those of stage 0 on one rank, and with recomputation
 * to the bit; the ranks themselves compare the arenas with the ledger. */
START_TEST(equal_losses) {
  for (int k = 0; k < 3; k++) {
    const char *jobs = in_folder("jobs");
    int count = write_jobs(jobs, 1 << k);
    run_jobs(k, jobs);
    ck_assert_int_eq(curve_count[k], count);
  }
  double worst = 0.0;
  for (int k = 0; k < 3; k++)
    for (int i = 0; i < curve_count[k]; i++) {
      const curve *c = &curves[k][i];
      const curve *reference = find(0, strstr(c->name, "gpt2") ? "tiny-gpt2-0-none" : "tiny-llama-0-none");
      ck_assert_int_eq(c->steps, c == reference ? STEPS : FEW_STEPS);
      for (int s = 0; s < c->steps; s++) {
        double error = fabs(c->loss[s] - reference->loss[s]) / reference->loss[s];
        double norm_error = fabs(c->norm[s] - reference->norm[s]) / reference->norm[s];
        ck_assert_msg(error < 1e-5, "%s on %d ranks, step %d: loss %.9g, not %.9g", c->name, 1 << k, s + 1, c->loss[s],
                      reference->loss[s]);
        ck_assert_msg(norm_error < 1e-3, "%s on %d ranks, step %d: norm %.9g, not %.9g", c->name, 1 << k, s + 1,
                      c->norm[s], reference->norm[s]);
        if (error > worst) worst = error;
      }
      char plain[64];
      memcpy(plain, c->name, sizeof plain);
      char *mode = strstr(plain, "-full") ? strstr(plain, "-full") : strstr(plain, "-selective");
      if (!mode) continue;
      strcpy(mode, "-none");
      const curve *without = find(k, plain);
      const size_t compared = (size_t)c->steps * sizeof *c->loss;
      ck_assert_msg(memcmp(c->loss, without->loss, compared) == 0 && memcmp(c->norm, without->norm, compared) == 0,
                    "%s differs from %s on %d ranks", c->name, plain, 1 << k);
    }
  printf("largest relative difference of a loss: %.2g\n", worst);
  for (int m = 0; m < 2; m++) {
    const curve *c = find(0, m ? "tiny-llama-0-none" : "tiny-gpt2-0-none");
    ck_assert_double_gt(c->loss[0], 5.0); /* about ln 256 */
    ck_assert_double_lt(c->loss[0], 6.2);
    ck_assert_double_lt(c->loss[STEPS - 1], 0.75 * c->loss[0]);
  }
}
END_TEST

/* ---- another optimizer than AdamW ---- */

static void add_lion(FILE *file, const char *name, int stage, int micro, const char *precision) {
  fprintf(file,
          "%s\ttiny-gpt2\t%d\t{\"optimizer\":{\"type\":\"Lion\",\"params\":{\"lr\":3e-4,\"weight_decay\":0.1,"
          "\"betas\":[0.9,0.99]}},\"gradient_clipping\":1.0,\"train_batch_size\":8,"
          "\"train_micro_batch_size_per_gpu\":%d,\"zero_optimization\":{\"stage\":%d,\"reduce_bucket_size\":20000}%s,"
          "\"twinspeed\":{\"sequence_length\":32,\"seed\":7}}\n",
          name, FEW_STEPS, micro, stage, precision);
}

/* Lion's weights are equal until a gradient near zero gets another sign by rounding of sums; then such a weight differs
 * by two learning rates. */
START_TEST(lion) {
  static const char masters[] =
      ",\"bf16\":{\"enabled\":true,\"bf16_master_weights_and_grads\":true,\"bf16_optimizer_states\":true}";
  const char *jobs = in_folder("jobs");
  char name[32];
  double worst = 0;
  for (int k = 0; k < 3; k++) {
    FILE *file = fopen(jobs, "w");
    for (int stage = 0; stage < 4; stage++) {
      snprintf(name, sizeof name, "lion-%d", stage);
      add_lion(file, name, stage, 2, "");
    }
    add_lion(file, "bf16", 2, 2, ",\"bf16\":{\"enabled\":true}");
    add_lion(file, "half", 3, 2, masters);
    fclose(file);
    run_jobs(k, jobs);
    for (int i = 0; i < curve_count[k]; i++) {
      const curve *c = &curves[k][i], *reference = find(0, "lion-0");
      const double limit = strncmp(c->name, "lion", 4) == 0 ? 1e-4 : 0.02;
      for (int s = 0; s < c->steps; s++) {
        const double error = fabs(c->loss[s] / reference->loss[s] - 1);
        ck_assert_msg(error < limit, "%s on %d ranks, step %d: loss %.9g, not %.9g", c->name, 1 << k, s + 1, c->loss[s],
                      reference->loss[s]);
        if (limit < 0.01 && error > worst) worst = error;
      }
      ck_assert_double_lt(c->loss[c->steps - 1], (TWS_SANITIZED ? 0.95 : 0.92) * c->loss[0]); /* it learns */
    }
  }
  printf("Lion: largest relative difference of a loss: %.2g\n", worst);
}
END_TEST

/* ---- an optimizer that needs the norms of whole parameters ---- */

static void add_lamb(FILE *file, const char *name, const char *division) {
  fprintf(file,
          "%s\ttiny-gpt2\t%d\t{\"optimizer\":{\"type\":\"Lamb\",\"params\":{\"lr\":0.01,\"weight_decay\":0.1}},"
          "\"gradient_clipping\":1.0,\"train_batch_size\":8,\"train_micro_batch_size_per_gpu\":1,%s"
          "\"twinspeed\":{\"sequence_length\":32,\"seed\":7}}\n",
          name, FEW_STEPS, division);
}

/* Lamb computes the same norm of a parameter whether it is whole on every rank, partitioned by ZeRO, divided or copied
 * by tensor parallelism, or on a single stage. */
START_TEST(lamb) {
  static const struct {
    const char *name, *text;
    int ranks;
  } divisions[] = {{"data", "", 1},
                   {"zero1", "\"zero_optimization\":{\"stage\":1,\"reduce_bucket_size\":20000},", 1},
                   {"zero2", "\"zero_optimization\":{\"stage\":2,\"reduce_bucket_size\":20000},", 1},
                   {"zero3", "\"zero_optimization\":{\"stage\":3,\"stage3_param_persistence_threshold\":100},", 1},
                   {"zero1-tensor", "\"zero_optimization\":{\"stage\":1},\"tensor_parallel\":{\"autotp_size\":2},", 2},
                   {"tensor", "\"tensor_parallel\":{\"autotp_size\":2},", 2},
                   {"pipe", "\"pipeline\":{\"stages\":2},", 2},
                   {"both", "\"tensor_parallel\":{\"autotp_size\":2},\"pipeline\":{\"stages\":2},", 4}};
  const char *jobs = in_folder("jobs");
  double worst = 0;
  for (int k = 0; k < 3; k++) {
    FILE *file = fopen(jobs, "w");
    for (size_t i = 0; i < sizeof divisions / sizeof *divisions; i++)
      if (divisions[i].ranks <= 1 << k) add_lamb(file, divisions[i].name, divisions[i].text);
    fclose(file);
    run_jobs(k, jobs);
    const curve *reference = find(0, "data");
    for (int i = 0; i < curve_count[k]; i++) {
      const curve *c = &curves[k][i];
      for (int s = 0; s < c->steps; s++) {
        const double error = fabs(c->loss[s] / reference->loss[s] - 1);
        ck_assert_msg(error < 1e-5, "%s on %d ranks, step %d: loss %.9g, not %.9g", c->name, 1 << k, s + 1, c->loss[s],
                      reference->loss[s]);
        worst = fmax(worst, error);
      }
    }
    ck_assert_double_lt(reference->loss[FEW_STEPS - 1], 0.95 * reference->loss[0]);
  }
  printf("Lamb: largest relative difference of a loss: %.2g\n", worst);
}
END_TEST

/* ---- betas that a schedule moves ---- */

static void add_cycle(FILE *file, const char *name, const char *betas, const char *momentum) {
  fprintf(file,
          "%s\ttiny-gpt2\t%d\t{\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"betas\":[%s]}},\"train_batch_size\":4,"
          "\"scheduler\":{\"type\":\"OneCycle\",\"params\":{\"cycle_min_lr\":1e-3,\"cycle_max_lr\":4e-3,"
          "\"cycle_first_step_size\":4,%s}},\"twinspeed\":{\"sequence_length\":32,\"seed\":7}}\n",
          name, FEW_STEPS, betas, momentum);
}

/* A OneCycle schedule with constant momentum equals fixed betas, to the bit; with a changing momentum the training
 * differs. */
START_TEST(cycled_betas) {
  const char *jobs = in_folder("jobs");
  FILE *file = fopen(jobs, "w");
  add_cycle(file, "given", "0.85,0.99", "\"cycle_momentum\":false");
  add_cycle(file, "still", "0.9,0.999", "\"cycle_min_mom\":0.85,\"cycle_max_mom\":0.85");
  add_cycle(file, "moving", "0.9,0.999", "\"cycle_min_mom\":0.8,\"cycle_max_mom\":0.9");
  fclose(file);
  run_jobs(0, jobs);
  const curve *given = find(0, "given"), *still = find(0, "still"), *moving = find(0, "moving");
  double apart = 0;
  for (int s = 0; s < FEW_STEPS; s++) {
    ck_assert_msg(given->loss[s] == still->loss[s], "step %d: %.9g, not %.9g", s + 1, still->loss[s], given->loss[s]);
    apart = fmax(apart, fabs(moving->loss[s] / given->loss[s] - 1));
  }
  ck_assert_double_gt(apart, 1e-3);
}
END_TEST

/* Trains with an optimizer that updates each element independently, at all stages, on the device and on the host, and
 * asserts that the losses of all are those of stage 0 on one rank. */
static void train_everywhere(const char *name, const char *optimizer, int steps) {
  static const char *const offload[] = {"", ",\"offload_optimizer\":{\"device\":\"cpu\"}"};
  const char *jobs = in_folder("jobs");
  char first[48];
  double worst = 0;
  snprintf(first, sizeof first, "%s-0", name);
  for (int k = 0; k < 3; k++) {
    FILE *file = fopen(jobs, "w");
    for (int i = 0; i < 7; i++) {
      const int stage = i < 4 ? i : i - 3, host = i > 3;
      fprintf(file,
              "%s-%d%s\ttiny-gpt2\t%d\t{\"optimizer\":%s,\"gradient_clipping\":1.0,\"train_batch_size\":8,"
              "\"train_micro_batch_size_per_gpu\":2,\"zero_optimization\":{\"stage\":%d,\"reduce_bucket_size\":20000"
              "%s},\"twinspeed\":{\"sequence_length\":32,\"seed\":7}}\n",
              name, stage, host ? "-host" : "", steps, optimizer, stage, offload[host]); /* the first steps overshoot */
    }
    fclose(file);
    run_jobs(k, jobs);
    ck_assert_int_eq(curve_count[k], 7);
    for (int i = 0; i < curve_count[k]; i++) {
      const curve *c = &curves[k][i], *reference = find(0, first);
      for (int s = 0; s < c->steps; s++) {
        const double error = fabs(c->loss[s] / reference->loss[s] - 1);
        ck_assert_msg(error < 1e-5, "%s on %d ranks, step %d: loss %.9g, not %.9g", c->name, 1 << k, s + 1, c->loss[s],
                      reference->loss[s]);
        worst = fmax(worst, error);
      }
      ck_assert_double_lt(c->loss[c->steps - 1], 0.9 * c->loss[0]);
    }
  }
  printf("%s: largest relative difference of a loss: %.2g\n", name, worst);
}

/* Adagrad's sums of squares only grow, so updates have no jumps: every stage and number of ranks has the same losses,
 * also with updates on the host. */
START_TEST(adagrad) {
  train_everywhere("adagrad", "{\"type\":\"Adagrad\",\"params\":{\"lr\":0.01,\"weight_decay\":0.01}}", STEPS);
}
END_TEST

START_TEST(sgd) {
  train_everywhere("sgd",
                   "{\"type\":\"SGD\",\"params\":{\"lr\":0.1,\"momentum\":0.9,\"nesterov\":true,"
                   "\"weight_decay\":0.001}}",
                   FEW_STEPS);
}
END_TEST

/* A parameter group of all parameters equals no group, and a group of vectors without decay changes the losses. */
START_TEST(param_groups) {
  static const char job[] =
      "%s\ttiny-gpt2\t%d\t{\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":%s,\"weight_decay\":%s},"
      "\"param_groups\":[%s]},\"train_batch_size\":8,\"twinspeed\":{\"sequence_length\":32,\"seed\":7}}\n";
  const char *jobs = in_folder("jobs");
  train_everywhere("groups",
                   "{\"type\":\"AdamW\",\"params\":{\"lr\":0.003,\"weight_decay\":0.1},\"param_groups\":["
                   "{\"params\":\"vectors\",\"weight_decay\":0},{\"params\":[\"*wte*\",\"*wpe*\"],\"lr\":0.001,"
                   "\"betas\":[0.8,0.99],\"eps\":1e-6}]}",
                   FEW_STEPS);
  FILE *file = fopen(jobs, "w");
  fprintf(file, job, "plain", FEW_STEPS, "0.003", "0.5", "");
  fprintf(file, job, "all", FEW_STEPS, "0.1", "0", "{\"params\":\"*\",\"lr\":0.003,\"weight_decay\":0.5}");
  fprintf(file, job, "vectors", FEW_STEPS, "0.003", "0.5", "{\"params\":\"vectors\",\"weight_decay\":0}");
  fclose(file);
  run_jobs(0, jobs);
  const curve *plain = find(0, "plain"), *all = find(0, "all"), *vectors = find(0, "vectors");
  for (int s = 0; s < plain->steps; s++) ck_assert_double_eq(all->loss[s], plain->loss[s]);
  ck_assert_double_ne(vectors->loss[FEW_STEPS - 1], plain->loss[FEW_STEPS - 1]);
}
END_TEST

/* Adafactor has the moments of whole matrices, and therefore the same losses, at all stages. */
START_TEST(adafactor) {
  const char *jobs = in_folder("jobs");
  double worst = 0;
  for (int k = 0; k < 3; k++) {
    FILE *file = fopen(jobs, "w");
    for (int i = 0; i < 6; i++)
      fprintf(file,
              "adafactor-%d\t%s\t%d\t{\"optimizer\":{\"type\":\"Adafactor\",\"params\":{\"lr\":0.03,"
              "\"weight_decay\":0.01,\"eps\":[null,0.01]},\"param_groups\":[{\"params\":\"vectors\",\"lr\":0.01}]},"
              "\"gradient_clipping\":1.0,\"train_batch_size\":8,\"train_micro_batch_size_per_gpu\":2,"
              "\"zero_optimization\":{\"stage\":%d,\"reduce_bucket_size\":20000},"
              "\"twinspeed\":{\"sequence_length\":32,\"seed\":7}}\n",
              i, i < 4 ? "tiny-gpt2" : "tiny-llama", FEW_STEPS,
              i < 4    ? i
              : i == 4 ? 0
                       : 3);
    fclose(file);
    run_jobs(k, jobs);
    ck_assert_int_eq(curve_count[k], 6);
    for (int i = 0; i < 6; i++) {
      const curve *c = &curves[k][i], *reference = find(0, c->name[10] < '4' ? "adafactor-0" : "adafactor-4");
      for (int s = 0; s < c->steps; s++) {
        const double error = fabs(c->loss[s] / reference->loss[s] - 1);
        ck_assert_msg(error < 1e-5, "%s on %d ranks, step %d: loss %.9g, not %.9g", c->name, 1 << k, s + 1, c->loss[s],
                      reference->loss[s]);
        worst = fmax(worst, error);
      }
      ck_assert_double_lt(c->loss[c->steps - 1], 0.97 * c->loss[0]);
    }
  }
  printf("adafactor: largest relative difference of a loss: %.2g\n", worst);
}
END_TEST

/* States of 8 bits: no block is divided among ranks, at any stage, so that the divisions differ only in the order in
 * which they add. Where that moves a moment over the border between two codes, the moment changes by up to 5 %. */
START_TEST(eight_bits) {
  const char *jobs = in_folder("jobs");
  double worst = 0;
  for (int k = 0; k < 3; k++) {
    FILE *file = fopen(jobs, "w");
    for (int i = 0; i < 6; i++)
      fprintf(file,
              "eight-%d\t%s\t%d\t{\"optimizer\":{\"type\":\"%s\",\"params\":{\"lr\":0.003,"
              "\"weight_decay\":0.1},\"param_groups\":[{\"params\":\"embeddings\",\"optim_bits\":32}]},"
              "\"gradient_clipping\":1.0,\"train_batch_size\":8,\"train_micro_batch_size_per_gpu\":2,"
              "\"zero_optimization\":{\"stage\":%d,\"reduce_bucket_size\":20000},"
              "\"twinspeed\":{\"sequence_length\":32,\"seed\":7}}\n",
              i, i < 4 ? "tiny-gpt2" : "tiny-llama", FEW_STEPS, i % 2 ? "PagedAdamW8bit" : "AdamW8bit",
              i < 4    ? i
              : i == 4 ? 0
                       : 3);
    fclose(file);
    run_jobs(k, jobs);
    ck_assert_int_eq(curve_count[k], 6);
    for (int i = 0; i < 6; i++) {
      const curve *c = &curves[k][i], *reference = find(0, c->name[6] < '4' ? "eight-0" : "eight-4");
      for (int s = 0; s < c->steps; s++) {
        const double error = fabs(c->loss[s] / reference->loss[s] - 1);
        ck_assert_msg(error < 3e-5, "%s on %d ranks, step %d: loss %.9g, not %.9g", c->name, 1 << k, s + 1, c->loss[s],
                      reference->loss[s]);
        worst = fmax(worst, error);
      }
      ck_assert_double_lt(c->loss[c->steps - 1], 0.97 * c->loss[0]);
    }
  }
  printf("8-bit states: largest relative difference of a loss: %.2g\n", worst);
}
END_TEST

/* Muon: matrices whole on their owners, at all stages, and the rest by Adam. */
START_TEST(muon) {
  static const char *const methods[] = {"gram", "standard"};
  const char *jobs = in_folder("jobs");
  char name[32];
  for (int k = 0; k < 3; k++) {
    FILE *file = fopen(jobs, "w");
    for (int stage = 0; stage < 4; stage++)
      for (int i = 0; i < 2; i++)
        fprintf(
            file,
            "%s-%d\t%s\t%d\t{\"optimizer\":{\"type\":\"Muon\",\"params\":{\"muon_lr\":0.02,\"adam_lr\":0.003,"
            "\"weight_decay\":0.01,\"ns_method\":\"%s\"}},\"gradient_clipping\":1.0,\"train_batch_size\":8,"
            "\"train_micro_batch_size_per_gpu\":2,\"zero_optimization\":{\"stage\":%d,\"reduce_bucket_size\":20000},"
            "\"twinspeed\":{\"sequence_length\":32,\"seed\":7}}\n",
            methods[i], stage, i ? "tiny-llama" : "tiny-gpt2", FEW_STEPS, methods[i], stage);
    fprintf(
        file, /* the rates of gram-0, given by a parameter group */
        "gram-rates\ttiny-gpt2\t%d\t{\"optimizer\":{\"type\":\"Muon\",\"params\":{\"lr\":0.02,\"weight_decay\":0.01},"
        "\"param_groups\":[{\"params\":[\"*ln_*\",\"*.bias\",\"*.wte.*\",\"*.wpe.*\"],\"lr\":0.003}]},"
        "\"gradient_clipping\":1.0,\"train_batch_size\":8,\"train_micro_batch_size_per_gpu\":2,"
        "\"twinspeed\":{\"sequence_length\":32,\"seed\":7}}\n",
        FEW_STEPS);
    fclose(file);
    run_jobs(k, jobs);
    ck_assert_int_eq(curve_count[k], 9);
    for (int i = 0; i < curve_count[k]; i++) {
      const curve *c = &curves[k][i];
      snprintf(name, sizeof name, "%s-0", methods[c->name[0] == 's']);
      const curve *reference = find(0, name);
      for (int s = 0; s < c->steps; s++)
        ck_assert_msg(fabs(c->loss[s] / reference->loss[s] - 1) < 1e-4, "%s on %d ranks, step %d: loss %.9g, not %.9g",
                      c->name, 1 << k, s + 1, c->loss[s], reference->loss[s]);
      ck_assert_double_lt(c->loss[c->steps - 1], 0.97 * c->loss[0]);
    }
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("train_stages");
  TCase *tests = tcase_create("train_stages");
  tcase_add_test(tests, equal_losses);
  tcase_add_test(tests, lion);
  tcase_add_test(tests, adagrad);
  tcase_add_test(tests, sgd);
  tcase_add_test(tests, param_groups);
  tcase_add_test(tests, adafactor);
  tcase_add_test(tests, eight_bits);
  tcase_add_test(tests, muon);
  tcase_add_test(tests, lamb);
  tcase_add_test(tests, cycled_betas);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
