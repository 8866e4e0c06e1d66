/* ctest: engine mpi sampled */
/* Trainings with OneBitAdam, ZeroOneAdam and OneBitLamb on several ranks: plans of all divisions, bytes, losses, checkpoints. */
#include "base/json.h"
#include "members.h"
#include "traces/plot.h"
#include "train.h"

#define ONEBIT "--set optimizer.type=OneBitAdam --set optimizer.params.freeze_step=%d"
#define ZERO_ONE                                                                           \
  "--set optimizer.type=ZeroOneAdam --set optimizer.params.var_freeze_step=6 "             \
  "--set optimizer.params.var_update_scaler=3 --set optimizer.params.local_step_scaler=4 " \
  "--set optimizer.params.local_step_clipper=4"
#define LAMB "--set optimizer.type=OneBitLamb --set optimizer.params.freeze_step=%d"
#define TINY "-m tiny-gpt2 --seq 32 --micro-batch 2 --stage 0 --set optimizer.params.lr=0.002 "

static tws_json *json_of(command_result *r) {
  tws_error why = {0};
  tws_json *json = NULL;
  ck_assert_msg(r->status == 0, "%s%s", r->out, r->err);
  ck_assert_msg(tws_json_parse(r->out, strlen(r->out), "answer", &json, &why) == TWS_OK, "%s", why.message);
  command_free(r);
  return json;
}

/* All ranks' plans of each program are verified alone and together, for data, tensor and pipeline ranks. */
START_TEST(divisions) {
  static const char *const axes[] = {"-n 4",
                                     "-n 4 --tp 2",
                                     "-n 4 --pp 2 --accumulation 2",
                                     "-n 8 --tp 2 --pp 2 --accumulation 2",
                                     "-n 1",
                                     "-n 3 --set fp16.enabled=true",
                                     "-n 4 --tp 2 --dtype bf16"};
  static const char *const programs[] = {"train", "compressed", "local", "merge", "freeze"};
  for (size_t a = 0; a < sizeof axes / sizeof *axes; a++)
    for (int p = 0; p < 5; p++) {
      command_result r =
          twinspeed("check " TINY "%s " ZERO_ONE " --program %s --cluster dgx-a100", axes[a], programs[p]);
      ck_assert_msg(r.status == 0, "%s, %s: %s%s", axes[a], programs[p], r.out, r.err);
      command_free(&r);
      if (p == 2 || p == 3) continue; /* OneBitLamb has no local steps */
      r = twinspeed("check " TINY "%s " LAMB " --program %s --cluster dgx-a100", axes[a], 6, programs[p]);
      ck_assert_msg(r.status == 0, "%s, %s: %s%s", axes[a], programs[p], r.out, r.err);
      command_free(&r);
    }
}
END_TEST

/* Settings that cannot be combined are refused with the reason. */
START_TEST(refusals) {
  static const struct {
    const char *arguments, *reason;
  } cases[] = {{"--stage 1", "does not go with ZeRO: each rank compresses whole momenta"},
               {"--stage 0 --dtype bf16 --set bf16.bf16_master_weights_and_grads=true", "float32 master weights"},
               {"--stage 0 --sp 2", "ranks update their weights alone"},
               {"--stage 0 --set optimizer.params.freeze_step=3", "freeze_step"},
               {"--stage 0 --set optimizer.params.max_grad_norm=1", "max_grad_norm"}};
  static const char *const lamb[][2] = {
      {"--stage 2", "optimizer OneBitLamb does not go with ZeRO: each rank compresses"},
      {"--set optimizer.params.factor_min=5", "factor_min 5 is above factor_max 4"},
      {"--set optimizer.params.coeff_beta=2", "coeff_beta"},
      {"--set optimizer.params.var_freeze_step=3", "var_freeze_step"}};
  for (size_t i = 0; i < sizeof lamb / sizeof *lamb; i++) {
    command_result r = twinspeed("check " TINY "-n 4 " LAMB " %s --cluster dgx-a100", 6, lamb[i][0]);
    ck_assert_msg(r.status == 3 && strstr(r.err, lamb[i][1]), "%s: %s%s", lamb[i][0], r.out, r.err);
    command_free(&r);
  }
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    command_result r = twinspeed("check -m tiny-gpt2 --seq 32 --micro-batch 2 -n 4 " ZERO_ONE " %s --cluster dgx-a100",
                                 cases[i].arguments);
    ck_assert_msg(r.status != 0 && strstr(r.err, cases[i].reason), "%s: %s%s", cases[i].arguments, r.out, r.err);
    command_free(&r);
  }
  command_result r = twinspeed("check -m tiny-gpt2 --micro-batch 2 -n 4 --program compressed --cluster dgx-a100");
  ck_assert(r.status != 0 && strstr(r.err, "no program compressed"));
  command_free(&r);
}
END_TEST

static const cJSON *communication_of(const tws_json *json, const char *program) {
  const cJSON *item;
  cJSON_ArrayForEach(item, member(json->root, "communication")) if (strcmp(member(item, "program")->valuestring,
                                                                           program) == 0) return item;
  ck_abort_msg("no program %s", program);
  return NULL;
}

/* The configurations of DeepSpeed's manuals are accepted, except for a key that DeepSpeed refuses, too. */
START_TEST(printed_configurations) {
  static const char *const configurations[] = {
      "{\"optimizer\": {\"type\": \"OneBitAdam\", \"params\": {\"lr\": 0.001, \"betas\": [0.8, 0.999], \"eps\": 1e-8, "
      "\"weight_decay\": 3e-7, \"freeze_step\": 400, \"cuda_aware\": false, \"comm_backend_name\": \"nccl\"}}}",
      "{\"optimizer\": {\"type\": \"ZeroOneAdam\", \"params\": {\"lr\": 1e-3, \"weight_decay\": 0.01, "
      "\"bias_correction\": false, \"var_freeze_step\": 1000, \"var_update_scaler\": 16, \"local_step_scaler\": 1000, "
      "\"local_step_clipper\": 16, \"cuda_aware\": false, \"comm_backend_name\": \"nccl\"}}}",
      "{\"optimizer\": {\"type\": \"OneBitAdam\", \"params\": {\"lr\": 0.001, \"freeze_step\": 100000, "
      "\"bias_correction\": true, \"betas\": [0.9, 0.999], \"eps\": 1e-08, \"eps_inside_sqrt\": false, "
      "\"weight_decay\": 0.0, \"amsgrad\": false, \"cuda_aware\": false, \"comm_backend_name\": \"nccl\"}}}",
      "{\"optimizer\": {\"type\": \"OneBitLamb\", \"params\": {\"lr\": 11e-3, \"max_coeff\": 0.3, \"min_coeff\": 0.01, "
      "\"freeze_step\": 1000, \"cuda_aware\": false, \"comm_backend_name\": \"nccl\", \"coeff_beta\": 0.9, "
      "\"factor_max\": 4.0, \"factor_min\": 0.5, \"factor_threshold\": 0.1}}}"};
  for (size_t i = 0; i < sizeof configurations / sizeof *configurations; i++) {
    const char *path = in_folder("printed.json");
    FILE *file = fopen(path, "w");
    fputs(configurations[i], file);
    fclose(file);
    command_result r = twinspeed("check -m tiny-gpt2 -c %s --micro-batch 1 -n 2 --cluster dgx-a100", path);
    ck_assert_msg(r.status == 0 && !strstr(r.err, "no effect on"), "%s: %s", configurations[i], r.err);
    command_free(&r);
  }
}
END_TEST

/* The communicator counts the plan's bytes; a compressed step sends a sixteenth of the bytes of 16-bit gradients. */
START_TEST(bytes) {
  command_result r =
      twinspeed("train --json --quiet " TINY "-n 4 --threads 1 --dtype bf16 --steps 6 --data %s " ONEBIT, text_path, 3);
  tws_json *json = json_of(&r);
  const cJSON *train = communication_of(json, "train"), *compressed = communication_of(json, "compressed");
  ck_assert_int_eq(integer(train, "runs"), 3);
  ck_assert_int_eq(integer(compressed, "runs"), 3);
  ck_assert_double_eq(number(train, "sent_bytes"), number(train, "planned_bytes"));
  ck_assert_double_eq(number(compressed, "sent_bytes"), number(compressed, "planned_bytes"));
  const double share = number(compressed, "sent_bytes") / number(train, "sent_bytes");
  ck_assert_msg(share > 1.0 / 16 && share < 1.08 / 16, "share of bytes: %g", share); /* padding, scales, metrics */
  tws_json_destroy(json);
  r = twinspeed("train --json --quiet " TINY "-n 2 --threads 1 --steps 16 --data %s " ZERO_ONE, text_path);
  json = json_of(&r);
  static const char *const programs[] = {"train", "compressed", "local", "merge", "freeze"};
  for (int p = 0; p < 5; p++) {
    const cJSON *of = communication_of(json, programs[p]);
    ck_assert_msg(number(of, "sent_bytes") == number(of, "planned_bytes"), "%s", programs[p]);
  }
  ck_assert_double_eq(number(communication_of(json, "freeze"), "sent_bytes"), 0);
  ck_assert_double_lt(
      number(communication_of(json, "local"), "sent_bytes") / number(communication_of(json, "local"), "runs"),
      100); /* loss and squares alone */
  tws_json_destroy(json);
}
END_TEST

static double last_loss(const tws_json *json) {
  const cJSON *losses = member(json->root, "losses");
  return cJSON_GetArrayItem(losses, cJSON_GetArraySize(losses) - 1)->valuedouble;
}

/* Trains as two replicas on data ranks, pipeline stages and tensor-parallel ranks. Losses before the first compressed
 * update has an effect differ by rounding alone. Later ones differ by more, since an element that rounding puts on the
 * other side of 0 gets the other sign; with OneBitLamb also because each stage, and split and replicated parameters,
 * have scales of their own. The last loss is below `fall` times the first one. */
static void train_divisions(const char *optimizer, int freeze, double fall, double tolerance) {
  static const char *const axes[] = {"-n 2 --accumulation 2", "-n 4 --pp 2 --accumulation 2",
                                     "-n 4 --tp 2 --accumulation 2"};
  double loss[3][30];
  for (int a = 0; a < 3; a++) {
    command_result r =
        twinspeed("train --json --quiet " TINY "%s --threads 1 --steps 30 --data %s %s", axes[a], text_path, optimizer);
    tws_json *json = json_of(&r);
    int count = 0;
    const cJSON *item, *communication = member(json->root, "communication");
    cJSON_ArrayForEach(item, member(json->root, "losses")) loss[a][count++] = item->valuedouble;
    ck_assert_int_eq(count, 30);
    cJSON_ArrayForEach(item, communication) ck_assert_msg(number(item, "sent_bytes") == number(item, "planned_bytes"),
                                                          "%s, %s", axes[a], member(item, "program")->valuestring);
    tws_json_destroy(json);
    for (int i = 0; i < 30; i++) {
      const double difference = fabs(loss[a][i] / loss[0][i] - 1);
      ck_assert_msg(difference < (i <= freeze ? 5e-5 : tolerance), "%s, step %d: %.9g and %.9g", axes[a], i + 1,
                    loss[a][i], loss[0][i]);
    }
    ck_assert_msg(loss[a][29] < fall * loss[a][0], "%s: %g, then %g", axes[a], loss[a][0], loss[a][29]);
  }
}

START_TEST(trains) {
  char text[256];
  snprintf(text, sizeof text, ONEBIT, 12);
  train_divisions(text, 12, 0.85, 0.02);
}
END_TEST

START_TEST(trains_lamb) {
  char text[256];
  snprintf(text, sizeof text, LAMB, 12);
  train_divisions(text, 12, 0.95, 0.04);
}
END_TEST

/* Parameter groups with compressed updates: a group of all parameters trains as none does, to the last bit; vectors
 * with other values do not; until signs are sent, tensor-parallel ranks change nothing. Bytes are the plan's. */
START_TEST(param_groups) {
  static const char *const optimizers[] = {"--set optimizer.type=OneBitAdam --set optimizer.params.freeze_step=10",
                                           ZERO_ONE,
                                           "--set optimizer.type=OneBitLamb --set optimizer.params.freeze_step=10"};
  static const char *const groups[] = {
      "-n 2", "-n 2 --set 'optimizer.params=[{\"lr\":0.002},{\"params\":\"*\",\"lr\":0.002}]'",
      "-n 2 --set 'optimizer.params=[{\"lr\":0.002},{\"params\":\"vectors\",\"lr\":0.001,\"weight_decay\":0.1}]'",
      ("-n 4 --tp 2 --set "
       "'optimizer.params=[{\"lr\":0.002},{\"params\":\"vectors\",\"lr\":0.001,\"weight_decay\":0.1}]'")};
  for (int o = 0; o < 3; o++) {
    double loss[4][16];
    for (int g = 0; g < 4; g++) {
      command_result r =
          twinspeed("train --json --quiet " TINY "--accumulation 2 --threads 1 --steps 16 --data %s %s %s", text_path,
                    optimizers[o], groups[g]);
      tws_json *json = json_of(&r);
      const cJSON *item, *losses = member(json->root, "losses"), *programs = member(json->root, "communication");
      for (int i = 0; i < 16; i++) loss[g][i] = cJSON_GetArrayItem(losses, i)->valuedouble;
      cJSON_ArrayForEach(item, programs) ck_assert_msg(number(item, "sent_bytes") == number(item, "planned_bytes"),
                                                       "%s: %s", optimizers[o], member(item, "program")->valuestring);
      tws_json_destroy(json);
    }
    for (int i = 0; i < 16; i++) {
      ck_assert_msg(loss[1][i] == loss[0][i], "%s, step %d: %.9g and %.9g", optimizers[o], i + 1, loss[1][i],
                    loss[0][i]);
      const double difference = fabs(loss[3][i] / loss[2][i] - 1);
      if (i <= (o == 1 ? 3 : 10)) /* later, rounding changes some of the signs that are sent */
        ck_assert_msg(difference < 5e-5, "%s, step %d: %g", optimizers[o], i + 1, difference);
    }
    ck_assert(loss[2][15] != loss[0][15]);
  }
}
END_TEST

/* A training that resumes starts with compression errors of 0 and otherwise with the saved state; a save that is due
 * while the ranks' weights differ waits for their next synchronization. */
START_TEST(checkpoints) {
  char save[128];
  snprintf(save, sizeof save, "%s/saved", folder);
  command_result r = twinspeed("train --json --quiet " TINY
                               "-n 2 --threads 1 --steps 19 --save %s --save-every 15 "
                               "--keep 9 --data %s " ZERO_ONE,
                               save, text_path);
  tws_json *whole = json_of(&r);
  r = twinspeed("train --json --quiet " TINY "-n 2 --threads 1 --steps 22 --resume %s --data %s " ZERO_ONE, save,
                text_path);
  tws_json *rest = json_of(&r);
  ck_assert_int_eq(cJSON_GetArraySize(member(rest->root, "losses")), 3);
  ck_assert_double_lt(fabs(last_loss(rest) / last_loss(whole) - 1), 0.2);
  tws_json_destroy(whole);
  tws_json_destroy(rest);
  char step16[192];
  snprintf(step16, sizeof step16, "%s/global_step16", save);
  ck_assert_msg(access(step16, R_OK) == 0, "the save of step 15 is not at step 16");
}
END_TEST

/* OneBitLamb's compressed steps resume on other numbers of ranks with the saved trust ratios, factors and scales. */
START_TEST(resumes_lamb) {
  char save[128];
  snprintf(save, sizeof save, "%s/lamb", folder);
  command_result r = twinspeed("train --json --quiet " TINY
                               "-n 2 --accumulation 2 --threads 1 --steps 18 --save %s "
                               "--save-every 12 --data %s " LAMB,
                               save, text_path, 8);
  tws_json *whole = json_of(&r);
  static const char *const axes[] = {"-n 4 --tp 2 --accumulation 2", "-n 4 --pp 2 --accumulation 2"};
  for (int a = 0; a < 2; a++) {
    r = twinspeed("train --json " TINY "%s --threads 1 --steps 18 --resume %s --tag global_step12 --data %s " LAMB,
                  axes[a], save, text_path, 8);
    ck_assert_msg(!strstr(r.err, "begins anew"), "%s", r.err);
    tws_json *rest = json_of(&r);
    const cJSON *now = member(rest->root, "losses"), *then = member(whole->root, "losses");
    ck_assert_int_eq(cJSON_GetArraySize(now), 6);
    for (int i = 0; i < 6; i++) {
      const double before = cJSON_GetArrayItem(then, 12 + i)->valuedouble;
      const double difference = fabs(cJSON_GetArrayItem(now, i)->valuedouble / before - 1);
      ck_assert_msg(difference < (i == 0 ? 1e-6 : 0.01), "%s, step %d: %g", axes[a], 13 + i, difference);
    }
    tws_json_destroy(rest);
  }
  tws_json_destroy(whole);
}
END_TEST

/* An emulation gives the same losses as a training. */
START_TEST(emulates) {
  command_result r =
      twinspeed("train --json --quiet " TINY "-n 2 --threads 1 --steps 14 --data %s " ZERO_ONE, text_path);
  tws_json *real = json_of(&r);
  r = twinspeed("emulate --json --quiet " TINY "-n 2 --threads 1 --steps 14 --data %s " ZERO_ONE, text_path);
  tws_json *virtual = json_of(&r);
  ck_assert_double_eq_tol(number(virtual->root, "last_loss"), last_loss(real), 1e-9);
  tws_json_destroy(real);
  tws_json_destroy(virtual);
  r = twinspeed("train --json --quiet " TINY "-n 2 --threads 1 --steps 8 --data %s " LAMB, text_path, 4);
  real = json_of(&r);
  r = twinspeed("emulate --json --quiet " TINY "-n 2 --threads 1 --steps 8 --data %s " LAMB, text_path, 4);
  virtual = json_of(&r);
  ck_assert_double_eq_tol(number(virtual->root, "last_loss"), last_loss(real), 1e-9);
  tws_json_destroy(real);
  tws_json_destroy(virtual);
}
END_TEST

/* Estimates a training by programs, and tune compares optimizers: compression is faster only where the network is
 * slow. */
START_TEST(compares) {
  command_result r = twinspeed(
      "estimate --json -m gpt2 --micro-batch 4 --dtype fp16 --cluster dgx1-v100:2 --stage 0 " ONEBIT " --steps 1000",
      200);
  tws_json *json = json_of(&r);
  const cJSON *training = member(json->root, "training"), *programs = member(training, "programs");
  ck_assert_int_eq(cJSON_GetArraySize(programs), 2);
  const cJSON *train = cJSON_GetArrayItem(programs, 0), *compressed = cJSON_GetArrayItem(programs, 1);
  ck_assert_int_eq(integer(train, "runs"), 200);
  ck_assert_int_eq(integer(compressed, "runs"), 800);
  const double share = number(compressed, "sent_bytes") / number(train, "sent_bytes");
  ck_assert_msg(fabs(share * 16 - 1) < 0.01, "share of bytes: %g", share);
  ck_assert_double_eq_tol(number(training, "seconds"),
                          200 * number(train, "seconds") + 800 * number(compressed, "seconds"), 1e-6);
  tws_json_destroy(json);
  r = twinspeed(
      "tune --json -m gpt2 --micro-batches 1 --seq 256 --dtype fp16 --cluster dgx1-v100:4 -n 32 --optimizers 10000 "
      "--sweep net.bandwidth=1..1600G:5");
  json = json_of(&r);
  const cJSON *optimizer;
  ck_assert_int_eq(cJSON_GetArraySize(member(json->root, "optimizers")), 4);
  const cJSON *adam = member(cJSON_GetArrayItem(member(json->root, "optimizers"), 0), "points");
  for (int k = 1; k < 4; k++) {
    optimizer = cJSON_GetArrayItem(member(json->root, "optimizers"), k);
    const cJSON *points = member(optimizer, "points");
    double before = INFINITY;
    for (int i = 0; i < 5; i++) {
      const double gain =
          number(cJSON_GetArrayItem(adam, i), "mean_step_s") / number(cJSON_GetArrayItem(points, i), "mean_step_s");
      if (i == 0) ck_assert_msg(gain > 2, "gain at 1 Gbit/s: %g", gain);
      ck_assert_double_lt(gain, fmax(before, 1)); /* where compression does not help, only kernels differ */
      before = gain;
    }
  }
  tws_json_destroy(json);
  if (tws_plot_available()) {
    const char *figure = in_folder("optimizers.svg");
    r = twinspeed(
        "tune -m tiny-gpt2 --micro-batches 1 --cluster dgx1-v100 -n 2 --optimizers 100 --figure %s --sweep "
        "net.bandwidth=1..100G:3",
        figure);
    ck_assert_msg(r.status == 0 && access(figure, R_OK) == 0, "%s%s", r.out, r.err);
    ck_assert_msg(strstr(r.out, "OneBitAdam saves a twentieth") && strstr(r.out, "OneBitLamb saves a twentieth"), "%s",
                  r.out);
    command_free(&r);
  }
  r = twinspeed("tune -m tiny-gpt2 -n 1 --optimizers 100");
  ck_assert(r.status != 0 && strstr(r.err, "--optimizers compares what replicas communicate"));
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("onebit_train");
  TCase *cases = tcase_create("training");
  tcase_set_timeout(cases, 300);
  tcase_add_test(cases, divisions);
  tcase_add_test(cases, refusals);
  tcase_add_test(cases, printed_configurations);
  tcase_add_test(cases, bytes);
  tcase_add_test(cases, trains);
  tcase_add_test(cases, trains_lamb);
  tcase_add_test(cases, resumes_lamb);
  tcase_add_test(cases, param_groups);
  tcase_add_test(cases, checkpoints);
  tcase_add_test(cases, emulates);
  tcase_add_test(cases, compares);
  suite_add_tcase(suite, cases);
  return run_training(suite);
}
