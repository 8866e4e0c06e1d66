/* ctest: engine mpi sampled */
/* Trainings with the optimizer and parameters on the host or the disk: losses do not change, except with updates that
 * are one step late, which equal those of a loop. */
#include "answers.h"
#include "models/network/network.h"
#include "train.h"

static tws_error err;

static const struct {
  const char *name, *text;
} precisions[] = {{"fp32", ""},
                  {"bf16", ",\"bf16\":{\"enabled\":true}"},
                  {"fp16", ",\"fp16\":{\"enabled\":true,\"initial_scale_power\":40,\"hysteresis\":1}"},
                  {"half",
                   ",\"bf16\":{\"enabled\":true,\"bf16_master_weights_and_grads\":true,"
                   "\"bf16_optimizer_states\":true}"}};

static void add_training(FILE *file, int stage, int p, int offload, int ranks, const char *axes) {
  fprintf(file,
          "%s-%d-%s%s\ttiny-gpt2\t%d\t{%s,\"train_micro_batch_size_per_gpu\":%d,\"zero_optimization\":{\"stage\":%d,"
          "\"reduce_bucket_size\":20000,\"sub_group_size\":15000,\"overlap_comm\":%s,"
          "\"stage3_param_persistence_threshold\":100,"
          "\"offload_optimizer\":{\"device\":\"%s\",\"nvme_path\":\"%s\",\"pin_memory\":%s,\"ratio\":%s},"
          "\"offload_param\":{\"device\":\"%s\",\"nvme_path\":\"%s\",\"max_in_cpu\":%d,\"buffer_count\":3,"
          "\"buffer_size\":5000}}%s%s,"
          "\"twinspeed\":{\"sequence_length\":32,"
          "\"seed\":7}}\n",
          precisions[p].name, stage, offload ? "host" : "device", *axes ? "-axes" : "", 8, settings, ranks > 2 ? 1 : 2,
          stage, stage % 2 ? "true" : "false",
          !offload                                            ? "none"
          : stage == 3 && (p > 1 || (p == 0 && ranks == 2)) ? "nvme" /* of fp32 on two ranks a part */
                                                              : "cpu",
          folder, stage == 2 ? "false" : "true", stage == 3 && p < 2 ? "0.4" : "1",
          !offload || p == 0 ? "none"
          : p == 1           ? "cpu"
                             : "nvme",
          folder, p == 2 ? 9000 : 0, precisions[p].text, axes);
}

/* Losses with and without offloading are equal, on one, two and four ranks; the first loss scale of fp16 is so high
 * that steps are skipped. */
START_TEST(equal_losses) {
  double worst = 0;
  for (int k = 0; k < 3; k++) {
    const char *jobs = in_folder("jobs");
    FILE *file = fopen(jobs, "w");
    for (int stage = 1; stage < 4; stage++)
      for (int p = 0; p < (k == 2 ? 2 : 4); p++)
        for (int offload = 0; offload < 2; offload++) {
          add_training(file, stage, p, offload, 1 << k, "");
          if (k > 0 && p == 1 && stage < 3)
            add_training(file, stage, p, offload, 1 << k,
                         stage == 1 ? ",\"pipeline\":{\"stages\":2}" : ",\"tensor_parallel\":{\"autotp_size\":2}");
        }
    fclose(file);
    run_jobs(k, jobs);
    ck_assert_int_eq(curve_count[k], k == 0 ? 24 : k == 1 ? 28 : 16);
    for (int i = 0; i < curve_count[k]; i++) {
      const curve *c = &curves[k][i];
      char name[64];
      memcpy(name, c->name, sizeof name);
      char *at = strstr(name, "-host");
      if (!at) continue;
      snprintf(at, sizeof name - (size_t)(at - name), "-device%s", strstr(c->name, "-axes") ? "-axes" : "");
      const curve *reference = find(k, name);
      for (int s = 0; s < c->steps; s++) {
        const double error = fabs(c->loss[s] / reference->loss[s] - 1);
        ck_assert_msg(error < 1e-6, "%s on %d ranks, step %d: loss %.9g, not %.9g", c->name, 1 << k, s + 1, c->loss[s],
                      reference->loss[s]);
        worst = fmax(worst, error);
      }
      ck_assert_double_lt(c->loss[c->steps - 1], 5.6);
    }
  }
  printf("offloaded: largest relative difference of a loss: %.2g\n", worst);
}
END_TEST

/* A checkpoint of a job with the optimizer on the host, and parameters on the host and the disk, resumes without
 * offloading, and the reverse. */
START_TEST(checkpoints) {
  static const char *const settled[] = {"none", "cpu"};
  const char *jobs = in_folder("jobs");
  char whole[64];
  FILE *file = fopen(jobs, "w");
  for (int p = 0; p < 2; p++)
    for (int turn = 0; turn < 4; turn++) { /* two jobs save, and two resume from the other one's checkpoint */
      snprintf(whole, sizeof whole, "%s/saved-%d-%d", folder, p, turn < 2 ? turn : 3 - turn);
      fprintf(
          file,
          "%s-%d\ttiny-llama\t8\t{%s,\"train_micro_batch_size_per_gpu\":2,\"zero_optimization\":{\"stage\":%d,"
          "\"reduce_bucket_size\":20000,\"offload_optimizer\":{\"device\":\"%s\"},\"offload_param\":{\"device\":"
          "\"%s\",\"nvme_path\":\"%s\",\"max_in_cpu\":9000}}%s,\"twinspeed\":{\"sequence_length\":32,\"seed\":7}}\t%s",
          precisions[p].name, turn, settings, 2 + p, settled[turn % 2], p && turn % 2 ? "nvme" : "none", folder,
          precisions[p].text, turn < 2 ? whole : "-");
      fprintf(file, turn < 2 ? "\n" : "\t%s\tglobal_step5\n", whole);
    }
  fclose(file);
  run_jobs(1, jobs);
  for (int p = 0; p < 2; p++) {
    char name[32];
    snprintf(name, sizeof name, "%s-0", precisions[p].name);
    const curve *reference = find(1, name);
    for (int turn = 1; turn < 4; turn++) {
      snprintf(name, sizeof name, "%s-%d", precisions[p].name, turn);
      const curve *c = find(1, name);
      ck_assert_int_eq(c->steps, 8);
      for (int s = turn < 2 ? 0 : 5; s < 8; s++)
        ck_assert_msg(fabs(c->loss[s] / reference->loss[s] - 1) < 1e-6, "%s, step %d: loss %.9g, not %.9g", name, s + 1,
                      c->loss[s], reference->loss[s]);
    }
  }
}
END_TEST

/* ---- updates that are one step late ---- */

static void add_late(FILE *file, const char *name, int p, int stage, int ranks, int warm_up, const char *devices) {
  fprintf(file,
          "%s\ttiny-gpt2\t8\t{%s,\"train_micro_batch_size_per_gpu\":%d,\"zero_optimization\":{\"stage\":%d,"
          "\"reduce_bucket_size\":20000,\"sub_group_size\":15000,\"stage3_param_persistence_threshold\":100%s}%s,"
          "\"twinspeed\":{\"sequence_length\":32,\"seed\":7%s,\"delayed_update_warm_up\":%d}}",
          name, settings, ranks > 2 ? 1 : 2, stage, devices, precisions[p].text,
          *devices ? ",\"delayed_update\":true" : "", warm_up);
}

/* Late updates have the losses of a loop that updates with the gradients of the step before, and evaluations after its
 * last update, at all stages, precisions, warm-ups and numbers of ranks. */
START_TEST(late_updates) {
  static const char *const devices[] = {
      ",\"offload_optimizer\":{\"device\":\"cpu\"}",
      ",\"offload_optimizer\":{\"device\":\"cpu\"},\"offload_param\":{\"device\":\"cpu\"}"};
  static curve reference[4][2];
  double worst = 0;
  setenv("EVAL_DATA", text_path, 1);
  for (int k = 0; k < 3; k++) {
    const char *jobs = in_folder("jobs");
    char name[64];
    FILE *file = fopen(jobs, "w");
    for (int p = 0; p < 4; p++)
      for (int warm_up = 0; warm_up < 4; warm_up += 3) {
        snprintf(name, sizeof name, "stale-%d-%s", warm_up, precisions[p].name);
        if (k == 0) add_late(file, name, p, p == 3, 1, warm_up, "");
        if (k == 0) fprintf(file, "\n");
        for (int stage = 1; stage < 4; stage++) {
          snprintf(name, sizeof name, "%s-%d-%d", precisions[p].name, warm_up, stage);
          add_late(file, name, p, stage, 1 << k, warm_up, devices[stage == 3 && p > 0]);
          fprintf(file, "\n");
        }
      }
    fclose(file);
    run_jobs(k, jobs);
    for (int i = 0, stage = 0; i < curve_count[k]; i++) {
      const curve *c = &curves[k][i];
      int warm_up = 0, p = 0;
      while (strncmp(c->name, precisions[p].name, strlen(precisions[p].name)) != 0 && p < 3) p++;
      if (strncmp(c->name, "stale-", 6) == 0) {
        for (p = 0; !strstr(c->name, precisions[p].name);) p++;
        reference[p][c->name[6] == '3'] = *c;
        continue;
      }
      ck_assert(sscanf(strchr(c->name, '-'), "-%d-%d", &warm_up, &stage) == 2);
      const curve *r = &reference[p][warm_up == 3];
      for (int s = 0; s < 8; s++) {
        /* sums of rounded gradients differ with the number of ranks, as without offloading */
        const double tolerance = p == 0 || k == 0 ? 1e-6 : p == 3 ? 0.02 : 5e-4;
        const double error = fabs(c->loss[s] / r->loss[s] - 1);
        ck_assert_msg(error < tolerance, "%s on %d ranks, step %d: loss %.9g, not %.9g", c->name, 1 << k, s + 1,
                      c->loss[s], r->loss[s]);
        if (p == 0) worst = fmax(worst, error);
        if (isfinite(r->eval[s])) ck_assert_double_le(fabs(c->eval[s] / r->eval[s] - 1), tolerance);
      }
      ck_assert(isfinite(r->eval[7]));
    }
  }
  unsetenv("EVAL_DATA");
  printf("late updates: largest relative difference of a loss in float32: %.2g\n", worst);
}
END_TEST

/* A checkpoint contains a pending late update, also for another number of ranks; a job without late updates ignores
 * it. */
START_TEST(late_checkpoints) {
  static const char devices[] = ",\"offload_optimizer\":{\"device\":\"cpu\"}";
  const char *jobs = in_folder("jobs");
  FILE *file = fopen(jobs, "w");
  add_late(file, "whole", 1, 2, 2, 2, devices);
  fprintf(file, "\t%s/late\n", folder);
  fclose(file);
  run_jobs(1, jobs);
  const curve whole = curves[1][0];
  for (int k = 0; k < 2; k++) {
    file = fopen(jobs, "w");
    add_late(file, "again", 1, 3 - k, 1 << k, 2, devices);
    fprintf(file, "\t-\t%s/late\tglobal_step5\n", folder);
    fclose(file);
    run_jobs(k, jobs);
    for (int s = 5; s < 8; s++)
      ck_assert_msg(fabs(curves[k][0].loss[s] / whole.loss[s] - 1) < (k ? 1e-6 : 5e-4), "step %d: %.9g, not %.9g",
                    s + 1, curves[k][0].loss[s], whole.loss[s]);
  }
}
END_TEST

/* Activation checkpoints in the host's memory, and partitioned ones, change no loss. */
START_TEST(equal_losses_with_checkpoints) {
  static const char *const ways[] = {"false,false", "true,false", "false,true", "true,true"};
  const char *jobs = in_folder("jobs");
  FILE *file = fopen(jobs, "w");
  for (int way = 0; way < 4; way++)
    fprintf(file,
            "%s\ttiny-llama\t4\t{%s,\"train_micro_batch_size_per_gpu\":2,\"bf16\":{\"enabled\":true},"
            "\"tensor_parallel\":{\"autotp_size\":2},\"activation_checkpointing\":{\"cpu_checkpointing\":%s,"
            "\"partition_activations\":%s},\"twinspeed\":{\"sequence_length\":32,\"seed\":7,\"recompute\":\"full\","
            "\"tensor_sequence_parallel\":false}}\n",
            ways[way], settings, way & 1 ? "true" : "false", way & 2 ? "true" : "false");
  fclose(file);
  run_jobs(1, jobs);
  for (int way = 1; way < 4; way++)
    for (int step = 0; step < 4; step++)
      ck_assert_msg(curves[1][way].loss[step] == curves[1][0].loss[step], "%s, step %d: %.9g, not %.9g", ways[way],
                    step + 1, curves[1][way].loss[step], curves[1][0].loss[step]);
}
END_TEST

/* With a device tier of a quarter of the model's states, the job is refused; with the optimizer on the host or the disk
 * it stays within that limit, and has the losses of a large device. */
START_TEST(a_small_device) {
  static curve reference;
  const char *jobs = in_folder("jobs");
  char limit[32];
  tws_network *network;
  ck_assert(tws_network_load("tiny-gpt2", 1, &network, &err) == TWS_OK);
  snprintf(limit, sizeof limit, "%lld", (long long)(tws_network_params(network, 0) * 16 / 4));
  tws_network_destroy(network);
  enum { DEVICE, HOST, DISK, PARAMETERS, KINDS }; /* the tier of the optimizer's states; PARAMETERS: also parameters on
                                                   * the host and the disk */
  for (int kind = 0; kind < KINDS; kind++) {
    static const char *const devices[KINDS] = {"none", "cpu", "nvme", "nvme"};
    const int ways = kind >= DISK ? 3 : 1;
    FILE *file = fopen(jobs, "w");
    for (int way = 0; way < ways; way++)
      fprintf(file,
              "%s%d\ttiny-gpt2\t6\t{%s,\"train_micro_batch_size_per_gpu\":1,\"bf16\":{\"enabled\":true},"
              "\"zero_optimization\":{\"stage\":%d,\"reduce_bucket_size\":5000,\"sub_group_size\":10000,"
              "\"stage3_prefetch_bucket_size\":5000,\"stage3_max_reuse_distance\":0,"
              "\"offload_optimizer\":{\"device\":\"%s\",\"nvme_path\":\"%s\",\"pipeline_read\":%s,"
              "\"pipeline_write\":%s},\"offload_param\":{\"device\":\"%s\",\"nvme_path\":\"%s\",\"max_in_cpu\":%d,"
              "\"buffer_count\":%d,\"buffer_size\":%d}},"
              "\"aio\":{\"block_size\":%d,\"queue_depth\":%d,\"intra_op_parallelism\":%d},"
              "\"twinspeed\":{\"sequence_length\":16,\"seed\":7,\"recompute\":\"full\",\"loss_tiles\":4}}\n",
              devices[kind], way, settings, kind == PARAMETERS ? 3 : 2, devices[kind], folder, way ? "true" : "false",
              way > 1 ? "true" : "false",
              kind < PARAMETERS ? "none"
              : way             ? "nvme"
                                : "cpu",
              folder, way > 1 ? 30000 : 0, 1 + 2 * way, 9000 / (1 + way), way ? 8192 : 1 << 20, 1 + 3 * way,
              1 + way / 2);
    fclose(file);
    if (kind > 0) setenv("DEVICE_LIMIT", limit, 1);
    run_jobs(0, jobs);
    if (kind == 0) reference = curves[0][0];
    ck_assert_int_eq(curve_count[0], ways);
    for (int c = 0; c < curve_count[0]; c++)
      for (int step = 0; step < 6; step++)
        ck_assert_msg(fabs(curves[0][c].loss[step] / reference.loss[step] - 1) < 1e-6, "%s, step %d: %.9g, not %.9g",
                      curves[0][c].name, step + 1, curves[0][c].loss[step], reference.loss[step]);
    if (kind > 0) continue;
    setenv("DEVICE_LIMIT", limit, 1);
    command_result r = twinspeed("launch --quiet -n 1 --threads 1 -- %s/tests/ranks_engine train %s %s", TWS_BUILD_DIR,
                                 jobs, in_folder("curves"));
    ck_assert_msg(r.status != 0 && strstr(r.err, "the device arenas need"), "%s%s", r.out, r.err);
    command_free(&r);
  }
  unsetenv("DEVICE_LIMIT");
}
END_TEST

/* The option --memory sets the same limit. */
START_TEST(memory_option) {
  command_result r =
      twinspeed("train --quiet -m tiny-gpt2 --seq 32 -n 1 --threads 1 --steps 1 --data %s --memory 1MiB", text_path);
  assert_one_error(&r, 4, "--memory");
  ck_assert_msg(strstr(r.err, "the device arenas need") && strstr(r.err, "1.00 MiB are allowed"), "%s", r.err);
  command_free(&r);
  r = twinspeed("train --quiet -m tiny-gpt2 --seq 32 -n 1 --threads 1 --steps 1 --data %s --memory 64MiB", text_path);
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
}
END_TEST

/* Ranks bind their threads (tests/ranks_engine.c checks that), and have the losses of unbound ranks. */
START_TEST(bound_threads) {
  for (int k = 0; k < 3; k++) {
    const char *jobs = in_folder("jobs");
    FILE *file = fopen(jobs, "w");
    for (int way = 0; way < 3; way++)
      fprintf(file,
              "%d\ttiny-gpt2\t4\t{%s,\"train_micro_batch_size_per_gpu\":2,\"zero_optimization\":{\"stage\":2,"
              "\"offload_optimizer\":{\"device\":\"cpu\"}},\"twinspeed\":{\"sequence_length\":32,\"seed\":7,"
              "\"bind_threads\":\"%s\"}}\n",
              way, settings,
              way == 0   ? "none"
              : way == 1 ? "auto"
                         : "share");
    fclose(file);
    run_jobs(k, jobs);
    for (int way = 1; way < 3; way++)
      for (int s = 0; s < 4; s++) ck_assert_double_eq(curves[k][way].loss[s], curves[k][0].loss[s]);
  }
}
END_TEST

/* ---- making weights ---- */

/* Returns the most bytes that a rank used until its weights were created; *arena: the bytes of its arenas. */
static double start_bytes(const char *model, int stage, double *arena) {
  command_result r = twinspeed(
      "train --quiet --json -m %s -n 4 --threads 1 --steps 1 --seq 16 --micro-batch 1 --dtype bf16 --stage %d --data "
      "%s "
      "--set optimizer.type=Lion --set zero_optimization.stage3_max_live_parameters=1000000 --set "
      "zero_optimization.stage3_max_reuse_distance=0 --set zero_optimization.stage3_prefetch_bucket_size=0 --set "
      "zero_optimization.reduce_bucket_size=1000000",
      model, stage, text_path);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = cJSON_Parse(r.out), *rank;
  double most = 0;
  *arena = 0;
  cJSON_ArrayForEach(rank, cJSON_GetObjectItem(json, "memory")) {
    const double bytes = cJSON_GetNumberValue(cJSON_GetObjectItem(rank, "start_peak_rss_bytes"));
    ck_assert_double_gt(bytes, 0);
    ck_assert_double_le(bytes, cJSON_GetNumberValue(cJSON_GetObjectItem(rank, "peak_rss_bytes")));
    most = fmax(most, bytes);
    *arena = cJSON_GetNumberValue(cJSON_GetObjectItem(cJSON_GetObjectItem(rank, "device"), "allocated_bytes"));
  }
  cJSON_Delete(json);
  command_free(&r);
  return most;
}

/* At stage 3 a rank initializes its shard of the weights: in addition to its arena, which is laid out for the step, it
 * holds nothing of the model, and the whole shard is smaller than the weights in float32. At stage 0 every rank has the
 * model. */
START_TEST(no_rank_makes_the_whole_model) {
  const char *model = in_folder("model.json");
  FILE *file = fopen(model, "w");
  fprintf(file,
          "{\"model_type\":\"gpt2\",\"n_layer\":32,\"n_embd\":256,\"n_head\":4,\"n_inner\":1024,\"n_positions\":"
          "64,\"vocab_size\":512,\"tie_word_embeddings\":true}");
  fclose(file);
  const double parameters = 25419776, whole = 4 * parameters;
  double arena, whole_arena;
  const double program = start_bytes("tiny-gpt2", 3, &arena);
  const double part = start_bytes(model, 3, &arena) - program, all = start_bytes(model, 0, &whole_arena) - program;
  printf("making weights: %.0f MB a rank at stage 3, %.0f at stage 0, of a model of %.0f MB\n", part * 1e-6, all * 1e-6,
         whole * 1e-6);
  ck_assert_double_lt(part, arena + whole / 8);
  ck_assert_double_lt(part, whole);
  ck_assert_double_gt(all, 2 * whole);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("train_offload");
  TCase *tests = tcase_create("train_offload");
  tcase_add_test(tests, equal_losses);
  tcase_add_test(tests, checkpoints);
  tcase_add_test(tests, late_updates);
  tcase_add_test(tests, late_checkpoints);
  tcase_add_test(tests, equal_losses_with_checkpoints);
  tcase_add_test(tests, a_small_device);
  tcase_add_test(tests, memory_option);
  tcase_add_test(tests, bound_threads);
  tcase_add_test(tests, no_rank_makes_the_whole_model);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
