/* Training through twinspeed.h: with exactly the results of `twinspeed train`, on one and several ranks, from files and
 * from memory, several engines in one process. Most of it is in tests/ranks_library.c, which runs as the ranks. */
/* ctest: library ranks_library mpi */
#include <cjson/cJSON.h>
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "library/twinspeed.h"
#include "tests/members.h"
#include "tests/train.h"

static const char common[] = /* with the type of the optimizer */
    "\"optimizer\":{\"type\":\"%s\",\"params\":{\"lr\":0.003,\"weight_decay\":0.1}},\"gradient_clipping\":1.0,"
    "\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"warmup_num_steps\":5,\"warmup_max_lr\":0.003}},"
    "\"train_batch_size\":8";

static const struct {
  const char *name, *model, *json;
  int ranks;
  const char *mode;
} jobs[] = {
    {"dense", "tiny-gpt2", "\"train_micro_batch_size_per_gpu\":4", 1, "train"},
    {"bf16", "tiny-llama", "\"bf16\":{\"enabled\":true},\"zero_optimization\":{\"stage\":1}", 1, "train"},
    {"offload", "tiny-gpt2", "\"zero_optimization\":{\"stage\":2,\"offload_optimizer\":{\"device\":\"cpu\"}}", 2,
     "train"},
    {"sharded", "tiny-gpt2",
     "\"bf16\":{\"enabled\":true},\"zero_optimization\":{\"stage\":3,\"stage3_param_persistence_threshold\":100},"
     "\"train_micro_batch_size_per_gpu\":2",
     2, "train"},
    {"divided", "tiny-gpt2",
     "\"train_micro_batch_size_per_gpu\":2,\"pipeline\":{\"stages\":2},"
     "\"tensor_parallel\":{\"autotp_size\":2}",
     4, "train"},
    {"experts", "tiny-mixtral", "\"twinspeed\":{\"expert_parallel_size\":2},\"zero_optimization\":{\"stage\":1}", 4,
     "train"},
    {"float-0", "tiny-gpt2", "\"train_micro_batch_size_per_gpu\":4", 1, "state"},
    {"half", "tiny-llama",
     "\"bf16\":{\"enabled\":true},\"train_micro_batch_size_per_gpu\":2,\"zero_optimization\":{\"stage\":2,"
     "\"offload_optimizer\":{\"device\":\"cpu\"}}",
     1, "state"},
    {"float-experts", "tiny-mixtral", "\"train_micro_batch_size_per_gpu\":4", 1, "state"},
    {"float-1", "tiny-gpt2", "\"zero_optimization\":{\"stage\":1}", 2, "state"},
    {"float-2", "tiny-gpt2",
     "\"train_micro_batch_size_per_gpu\":2,\"zero_optimization\":{\"stage\":2,\"offload_optimizer\":{\"device\":"
     "\"cpu\"}}",
     2, "state"},
    {"fp16-3", "tiny-gpt2",
     "\"fp16\":{\"enabled\":true,\"initial_scale_power\":8},\"train_micro_batch_size_per_gpu\":2,\"zero_optimization\":"
     "{\"stage\":3}",
     2, "state"},
    {"float-3-4", "tiny-gpt2", "\"zero_optimization\":{\"stage\":3,\"stage3_param_persistence_threshold\":100}", 4,
     "state"},
    {"float-tensor", "tiny-gpt2",
     "\"train_micro_batch_size_per_gpu\":2,\"zero_optimization\":{\"stage\":2},\"tensor_parallel\":{\"autotp_size\":2}",
     4, "state"},
    {"float-experts-2", "tiny-mixtral",
     "\"twinspeed\":{\"expert_parallel_size\":2},\"zero_optimization\":{\"stage\":2}", 2, "state"},
    {"pipeline", "tiny-gpt2",
     "\"train_micro_batch_size_per_gpu\":2,\"pipeline\":{\"stages\":2},\"zero_optimization\":{\"stage\":1}", 4,
     "state"},
    {"halves", "tiny-llama",
     "\"bf16\":{\"enabled\":true},\"train_micro_batch_size_per_gpu\":2,\"zero_optimization\":{\"stage\":2},"
     "\"twinspeed\":{\"split_master_weights\":true}",
     2, "state"},
    {"codes-2", "tiny-gpt2", "\"zero_optimization\":{\"stage\":2}", 2, "codes"},
    {"codes-3", "tiny-gpt2", "\"zero_optimization\":{\"stage\":3}", 2, "codes"},
};
enum { JOBS = sizeof jobs / sizeof *jobs, TRAINED = 4 };

static void write_jobs(void) {
  for (int i = 0; i < JOBS; i++) {
    char path[64], json[1024] = "{";
    const char *type = strcmp(jobs[i].mode, "codes") == 0 ? "AdamW8bit" : "AdamW";
    snprintf(path, sizeof path, "%s.json", jobs[i].name);
    snprintf(json + 1, sizeof json - 1, common, type);
    snprintf(json + strlen(json), sizeof json - strlen(json), ",%s}", jobs[i].json);
    write_text(in_folder(path), json);
  }
}

static void run_ranks(const char *mode, int ranks) {
  char list[1024] = "";
  for (int i = 0; i < JOBS; i++)
    if (jobs[i].ranks == ranks && strcmp(jobs[i].mode, mode) == 0)
      snprintf(list + strlen(list), sizeof list - strlen(list), " %s:%s", jobs[i].model, jobs[i].name);
  command_result r = twinspeed("launch --quiet -n %d --threads 1 -- %s/tests/ranks_library %s %s %s %d%s", ranks,
                               TWS_BUILD_DIR, mode, folder, text_path, TRAINED, list);
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  ck_assert_str_eq(r.out, ""); /* the library prints nothing */
  command_free(&r);
}

/* Compares the files of two checkpoints byte by byte. */
static void compare_files(const char *a, const char *b, int ranks) {
  for (int rank = 0; rank < ranks; rank++) {
    char name[2][256];
    unsigned char block[2][4096];
    snprintf(name[0], sizeof name[0], "%s/%s/global_step%d/rank-%05d.safetensors", folder, a, TRAINED, rank);
    snprintf(name[1], sizeof name[1], "%s/%s/global_step%d/rank-%05d.safetensors", folder, b, TRAINED, rank);
    FILE *one = fopen(name[0], "rb"), *two = fopen(name[1], "rb");
    ck_assert_msg(one && two, "%s or %s", name[0], name[1]);
    for (size_t n = 1, m; n > 0;) {
      n = fread(block[0], 1, sizeof block[0], one);
      m = fread(block[1], 1, sizeof block[1], two);
      ck_assert_msg(n == m && memcmp(block[0], block[1], n) == 0, "%s and %s differ", name[0], name[1]);
    }
    fclose(one);
    fclose(two);
  }
}

START_TEST(steps_are_those_of_the_program) {
  const int ranks = 1 << _i;
  char program[64], memory[64];
  run_ranks("train", ranks);
  for (int i = 0; i < JOBS; i++) {
    if (jobs[i].ranks != ranks || strcmp(jobs[i].mode, "train") != 0) continue;
    snprintf(memory, sizeof memory, "%s-memory", jobs[i].name);
    snprintf(program, sizeof program, "%s-program", jobs[i].name);
    command_result r = twinspeed(
        "train --quiet -m %s -c %s/%s.json --seq 32 -n %d --data %s --steps %d "
        "--save %s/%s",
        jobs[i].model, folder, jobs[i].name, ranks, text_path, TRAINED, folder, program);
    ck_assert_msg(r.status == 0, "%s: %s%s", jobs[i].name, r.out, r.err);
    command_free(&r);
    compare_files(jobs[i].name, memory, ranks);
    compare_files(jobs[i].name, program, ranks);
  }
}
END_TEST

START_TEST(states_are_read_and_set) {
  run_ranks("state", 1 << _i);
}
END_TEST

START_TEST(states_of_8_bits_are_read_and_set) {
  run_ranks("codes", 2);
}
END_TEST

/* library/examples/training.c: the step after resuming has the loss that it had before; the last time its two engines
 * both have states and parameters on a disk. */
START_TEST(the_example_resumes) {
  const char *first, *again;
  char text[512], config[128] = "";
  if (_i == 2) {
    snprintf(text, sizeof text,
             "{\"zero_optimization\":{\"stage\":3,\"offload_optimizer\":{\"device\":\"nvme\",\"nvme_path\":\"%s\"},"
             "\"offload_param\":{\"device\":\"nvme\",\"nvme_path\":\"%s\"}}}",
             folder, folder);
    snprintf(config, sizeof config, "%s/on_disk.json", folder);
    FILE *file = fopen(config, "w");
    ck_assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
  }
  command_result r = twinspeed("launch --quiet -n %d --threads 1 -- env -C %s %s/tests/example_training tiny-llama %s",
                               _i ? 2 : 1, folder, TWS_BUILD_DIR, config);
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  first = strstr(r.out, "step 6: loss ");
  again = strstr(r.out, "step 6 again: loss ");
  ck_assert_msg(first && again && strncmp(first + 13, again + 19, 6) == 0, "%s", r.out);
  ck_assert_ptr_nonnull(strstr(r.out, "resumed after step 4 with {\"epoch\": 1}\n"));
  ck_assert_ptr_nonnull(strstr(r.out, ": 256 x 64, begins with "));
  command_free(&r);
}
END_TEST

static twinspeed_job *open_small(int64_t ranks) {
  twinspeed_options o;
  twinspeed_error error;
  twinspeed_job *job;
  twinspeed_options_init(&o);
  o.model = "tiny-gpt2";
  o.sequence_length = 32;
  o.micro_batch = 2;
  o.ranks = ranks;
  ck_assert_msg(twinspeed_open(&o, &job, &error) == TWINSPEED_OK, "%s", error.message);
  return job;
}

/* Errors of the library are return values: the process and its engine work after each of them. */
START_TEST(faults_are_told) {
  int32_t tokens[2][33] = {{0}}, targets[2][32] = {{0}};
  twinspeed_batch batch = {.tokens = tokens[0]};
  twinspeed_engine_options o;
  twinspeed_engine *engine;
  twinspeed_error error;
  twinspeed_step step, counted;
  double loss;
  twinspeed_job *job = open_small(2);
  ck_assert_int_eq(twinspeed_engine_open(job, NULL, &engine, &error), TWINSPEED_USAGE);
  ck_assert_str_eq(error.message, "the job has 2 ranks, and the communicator 1");
  ck_assert_ptr_null(engine);
  twinspeed_close(job);
  job = open_small(1);
  twinspeed_engine_options_init(&o);
  o.data = "/no/such/file";
  ck_assert_int_eq(twinspeed_engine_open(job, &o, &engine, &error), TWINSPEED_IO);
  o.data = NULL;
  o.evaluation = 0;
  ck_assert_msg(twinspeed_engine_open(job, &o, &engine, &error) == TWINSPEED_OK, "%s", error.message);
  ck_assert_int_eq(twinspeed_train_batch(engine, NULL, &step, &error), TWINSPEED_USAGE);
  ck_assert_int_eq(twinspeed_eval_batch(engine, &batch, &loss, &error), TWINSPEED_USAGE);
  tokens[1][3] = 256;
  ck_assert_int_eq(twinspeed_train_batch(engine, &batch, &step, &error), TWINSPEED_INVALID);
  ck_assert_str_eq(error.message, "the batch: token 3 of sample 1 is 256, and the model's vocabulary has 256");
  tokens[1][3] = 7;
  ck_assert_int_eq(twinspeed_load(engine, folder, NULL, NULL, &error), TWINSPEED_IO);
  ck_assert_int_eq(twinspeed_backward(engine, &error), TWINSPEED_USAGE);
  ck_assert_str_eq(error.message, "backward() was called, and forward() is next");
  twinspeed_set_learning_rate(engine, 0.25);
  ck_assert_double_eq(twinspeed_learning_rate(engine), 0.25);
  ck_assert_int_eq(twinspeed_train_batch(engine, &batch, &step, &error), TWINSPEED_OK);
  ck_assert_double_eq(step.learning_rate, 0.25);
  twinspeed_set_learning_rate(engine, 0);
  batch.targets = targets[0];
  for (int i = 0; i < 32; i++) targets[0][i] = i % 2 ? -100 : tokens[0][i + 1], targets[1][i] = tokens[1][i + 1];
  ck_assert_int_eq(twinspeed_train_batch(engine, &batch, &counted, &error), TWINSPEED_OK);
  batch.targets = NULL;
  ck_assert_int_eq(twinspeed_train_batch(engine, &batch, &step, &error), TWINSPEED_OK);
  ck_assert_double_ne(step.loss, counted.loss); /* equal weights (the learning rate is 0), but other targets count */
  for (int i = 0; i < 32; i++) targets[0][i] = tokens[0][i + 1];
  batch.targets = targets[0];
  ck_assert_int_eq(twinspeed_train_batch(engine, &batch, &counted, &error), TWINSPEED_OK);
  ck_assert_double_eq(step.loss, counted.loss);
  twinspeed_engine_close(engine);
  twinspeed_engine_close(NULL);
  twinspeed_close(job);
}
END_TEST

/* ---- DeepSpeed's safe_get and safe_set functions, tests/golden/state_access.json ---- */

typedef struct oracle {
  twinspeed_engine *engine;
  twinspeed_parameter params[32]; /* in the order of names */
  int count;
} oracle;

static int by_name(const void *a, const void *b) {
  return strcmp(((const twinspeed_parameter *)a)->name, ((const twinspeed_parameter *)b)->name);
}

static float *read_state(const oracle *o, int i, const char *state) {
  twinspeed_error error;
  float *values = calloc(o->params[i].elements, sizeof *values);
  ck_assert_msg(twinspeed_get_full(o->engine, o->params[i].name, state, values, &error) == TWINSPEED_OK, "%s",
                error.message);
  return values;
}

static void scale_state(const oracle *o, const char *state, float factor) {
  twinspeed_error error;
  for (int i = 0; i < o->count; i++) {
    float *values = read_state(o, i, state);
    for (uint64_t k = 0; k < o->params[i].elements; k++) values[k] *= factor;
    ck_assert_msg(twinspeed_set_full(o->engine, o->params[i].name, state, 0, values, &error) == TWINSPEED_OK, "%s",
                  error.message);
    free(values);
  }
}

/* Compares a state of all parameters with sum, norm, first, middle and last element of DeepSpeed's. */
static void compare_state(const oracle *o, const cJSON *step, const char *state, const char *known) {
  for (int i = 0; i < o->count; i++) {
    const uint64_t n = o->params[i].elements;
    const cJSON *item =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(step, known), o->params[i].name);
    ck_assert_msg(cJSON_GetArraySize(item) == 5, "%s of %s", known, o->params[i].name);
    float *values = read_state(o, i, state);
    double sum = 0, squares = 0;
    for (uint64_t k = 0; k < n; k++) sum += values[k], squares += (double)values[k] * values[k];
    const double got[] = {sum, sqrt(squares), values[0], values[n / 2], values[n - 1]};
    const double norm = cJSON_GetArrayItem(item, 1)->valuedouble;
    for (int k = 0; k < 5; k++) /* a larger tolerance for sums, whose terms cancel */
      ck_assert_msg(fabs(got[k] - cJSON_GetArrayItem(item, k)->valuedouble) < 2e-4 * norm * (k ? 1 : sqrt((double)n)),
                    "%s of %s, number %d: %.9g, not %.9g", known, o->params[i].name, k, got[k],
                    cJSON_GetArrayItem(item, k)->valuedouble);
    free(values);
  }
}

static void set_first_weights(const oracle *o) {
  twinspeed_error error;
  for (int i = 0; i < o->count; i++) {
    float *values = calloc(o->params[i].elements, sizeof *values);
    for (uint64_t k = 0; k < o->params[i].elements; k++)
      values[k] = (float)(0.2 * sin(0.37 * (double)k + 1.3 * i) + (i % 3 == 0 ? 0.5 : 0));
    ck_assert_msg(twinspeed_set_full(o->engine, o->params[i].name, "parameter", 0, values, &error) == TWINSPEED_OK,
                  "%s", error.message);
    free(values);
  }
}

static void oracle_step(const oracle *o, const cJSON *known, int k) {
  twinspeed_error error;
  twinspeed_step step;
  for (int micro = 0; micro < 2; micro++) {
    int32_t tokens[2][17];
    const twinspeed_batch batch = {.tokens = tokens[0]};
    double loss;
    for (int s = 0; s < 2; s++)
      for (int t = 0, sample = 4 * k + 2 * micro + s; t < 17; t++)
        tokens[s][t] = (7 * sample + 5 * t + sample * t * t) % 64;
    ck_assert_msg(twinspeed_forward(o->engine, &batch, &loss, &error) == TWINSPEED_OK, "%s", error.message);
    ck_assert_double_eq_tol(loss, cJSON_GetArrayItem(cJSON_GetObjectItem(known, "loss"), micro)->valuedouble, 1e-4);
    ck_assert_msg(twinspeed_backward(o->engine, &error) == TWINSPEED_OK, "%s", error.message);
    if (micro == 1) {
      compare_state(o, known, "gradient", "gradient");
      if (k == 2) scale_state(o, "gradient", 0.25F);
    }
    ck_assert_msg(twinspeed_step_micro_batch(o->engine, &step, &error) == TWINSPEED_OK, "%s", error.message);
  }
  const double norm = cJSON_GetObjectItem(known, "gradient_norm")->valuedouble;
  ck_assert_double_eq_tol(step.gradient_norm, norm, 1e-4 * norm);
  compare_state(o, known, "parameter", "parameter");
  compare_state(o, known, "exp_avg", "exp_avg");
  compare_state(o, known, "exp_avg_sq", "exp_avg_sq");
}

START_TEST(access_is_that_of_deepspeed) {
  tws_json *golden = golden_file("state_access.json");
  const cJSON *known;
  twinspeed_options options;
  twinspeed_error error;
  twinspeed_job *job;
  oracle o = {0};
  int k = 0;
  write_text(in_folder("gpt.json"),
             "{\"model_type\":\"gpt2\",\"vocab_size\":64,\"n_positions\":16,\"n_layer\":1,"
             "\"n_embd\":16,\"n_head\":2}");
  write_text(
      in_folder("access.json"),
      "{\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":0.01,\"weight_decay\":0.1}},\"gradient_clipping\":1.0,"
      "\"train_batch_size\":4,\"train_micro_batch_size_per_gpu\":2}");
  char model[128], config[128];
  snprintf(model, sizeof model, "%s/gpt.json", folder);
  snprintf(config, sizeof config, "%s/access.json", folder);
  twinspeed_options_init(&options);
  options.model = model;
  options.config = config;
  options.sequence_length = 16;
  options.ranks = 1;
  options.stage = 1 + _i;
  ck_assert_msg(twinspeed_open(&options, &job, &error) == TWINSPEED_OK, "%s", error.message);
  ck_assert_msg(twinspeed_engine_open(job, NULL, &o.engine, &error) == TWINSPEED_OK, "%s", error.message);
  while (o.count < 32 && twinspeed_parameter_describe(o.engine, o.count, &o.params[o.count])) o.count++;
  ck_assert_int_eq(o.count, 16);
  qsort(o.params, (size_t)o.count, sizeof *o.params, by_name);
  set_first_weights(&o);
  cJSON_ArrayForEach(known, cJSON_GetObjectItem(golden->root, "steps")) {
    oracle_step(&o, known, k);
    if (k++ > 0) continue;
    scale_state(&o, "parameter", 0.5F);
    scale_state(&o, "exp_avg", 2);
    scale_state(&o, "exp_avg_sq", 3);
  }
  ck_assert_int_eq(k, 3);
  twinspeed_engine_close(o.engine);
  twinspeed_close(job);
  tws_json_destroy(golden);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("engine");
  TCase *tests = tcase_create("engine");
  tcase_add_loop_test(tests, steps_are_those_of_the_program, 0, 3);
  tcase_add_loop_test(tests, states_are_read_and_set, 0, 3);
  tcase_add_test(tests, states_of_8_bits_are_read_and_set);
  tcase_add_loop_test(tests, the_example_resumes, 0, 3);
  tcase_add_test(tests, faults_are_told);
  tcase_add_loop_test(tests, access_is_that_of_deepspeed, 0, 3);
  suite_add_tcase(suite, tests);
  set_up();
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1); /* ranks that wait yield their cores to other processes */
  write_jobs();
  const int status = run_suite(suite);
  remove_folder();
  return status;
}
