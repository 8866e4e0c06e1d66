/* ctest: engine mpi sampled */
/* Weights of linear layers in tiles: the memory that a device saves, the gathers, and losses that do not change. */
#include "plan/plan.h"
#include "train.h"

static tws_error err;

enum { RANKS = 2, JOB_STEPS = 6 };

/* A job of ranks_engine. zero: members of zero_optimization; more: members of "twinspeed"; top: members of the whole
 * configuration. */
typedef struct tiled_job {
  const char *name, *model, *zero, *more, *top;
} tiled_job;

static const char host[] = ",\"offload_param\":{\"device\":\"cpu\"}";
static const char bf16[] = ",\"bf16\":{\"enabled\":true}";

static void write_job(char *text, size_t size, const tiled_job *j) {
  snprintf(
      text, size,
      "{%s,\"train_micro_batch_size_per_gpu\":1,\"zero_optimization\":{\"stage\":3,\"reduce_bucket_size\":4000,"
      "\"stage3_prefetch_bucket_size\":1000,\"stage3_max_reuse_distance\":0,\"stage3_param_persistence_threshold\":"
      "100%s}%s,\"twinspeed\":{\"sequence_length\":32,\"seed\":7%s}}",
      settings, j->zero, j->top, j->more);
}

static void add_job(FILE *file, const tiled_job *j, const char *checkpoints) {
  char text[2048];
  write_job(text, sizeof text, j);
  fprintf(file, "%s\t%s\t%d\t%s%s\n", j->name, j->model, JOB_STEPS, text, checkpoints);
}

static tws_plan *plan_of(const tiled_job *j, tws_network **network, tws_config **config) {
  char text[2048];
  tws_json *json;
  tws_plan *plan;
  tws_plan_request request = {.backend = TWS_BACKEND_HOST, .threads = 1};
  write_job(text, sizeof text, j);
  ck_assert_msg(tws_json_parse(text, strlen(text), "job", &json, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_config_from_json(json, config, &err) == TWS_OK, "%s", err.message);
  tws_json_destroy(json);
  ck_assert(tws_network_load(j->model, 1, network, &err) == TWS_OK);
  const tws_auto_context context = {.hidden_size = (*network)->hidden};
  ck_assert_msg(tws_config_resolve(*config, RANKS, &context, &err) == TWS_OK, "%s", err.message);
  ck_assert(tws_plan_topology(*config, RANKS, &request.topology, &err) == TWS_OK);
  request.network = *network;
  request.config = *config;
  ck_assert_msg(tws_plan_build(&request, &plan, &err) == TWS_OK, "%s", err.message);
  return plan;
}

/* Returns the bytes of a device's arena; *largest: elements of the largest gathered buffer. */
static uint64_t device_bytes(const tiled_job *j, uint64_t *largest) {
  tws_network *network;
  tws_config *config;
  tws_plan *plan = plan_of(j, &network, &config);
  const uint64_t bytes = tws_plan_bytes(plan, TWS_TIER_DEVICE);
  *largest = 0;
  for (uint32_t b = 0; b < plan->buffer_count; b++)
    if (plan->buffers[b].category == TWS_CATEGORY_GATHERED && plan->buffers[b].elements > *largest)
      *largest = plan->buffers[b].elements;
  tws_plan_destroy(plan);
  tws_config_destroy(config);
  tws_network_destroy(network);
  return bytes;
}

/* Compares the losses of a job, from step `from` on, with those of the job `with`. Returns the largest relative
 * difference. */
static double compare(const char *name, const char *with, int from, double most) {
  const curve *c = find(1, name), *reference = find(1, with);
  double worst = 0;
  ck_assert_int_eq(c->steps, JOB_STEPS);
  for (int s = from; s < JOB_STEPS; s++) {
    const double error = fabs(c->loss[s] / reference->loss[s] - 1);
    ck_assert_msg(error < most, "%s, step %d: loss %.9g, not %.9g", name, s + 1, c->loss[s], reference->loss[s]);
    worst = fmax(worst, error);
  }
  return worst;
}

/* Losses do not change with tiles, of equal sizes and of others, together with other techniques that divide layers. In
 * bf16 the gradients of inputs are rounded once per tile. */
START_TEST(equal_losses) {
  static const struct {
    const char *with, *zero, *more, *top;
    double most;
  } ways[] = {{"even", "", "", "", 1e-6},
              {"moments", ",\"overlap_comm\":true,\"offload_optimizer\":{\"device\":\"cpu\"}",
               ",\"recompute\":\"full\"", bf16, 2e-4},
              {"parameters", host, ",\"loss_tiles\":4,\"mlp_tiles\":2,\"recompute\":\"operations\"", "", 1e-6},
              {"frozen", "", ",\"lora\":{\"r\":4,\"target_modules\":\"all-linear\"}", "", 1e-6}};
  static const char *const models[] = {"tiny-gpt2", "tiny-llama"};
  static const int sizes[] = {0, 1100, 4096};
  const char *jobs = in_folder("jobs");
  char name[64], whole[64], more[256];
  double worst[2] = {0, 0};
  FILE *file = fopen(jobs, "w");
  for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
    for (int m = 0; m < 2; m++)
      for (int s = 0; s < 3; s++) {
        snprintf(name, sizeof name, "%s-%s-%d", ways[w].with, models[m], sizes[s]);
        snprintf(more, sizeof more, "%s,\"linear_tile_size\":%d", ways[w].more, sizes[s]);
        add_job(file, &(tiled_job){name, models[m], ways[w].zero, more, ways[w].top}, "");
      }
  fclose(file);
  run_jobs(1, jobs);
  for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
    for (int m = 0; m < 2; m++)
      for (int s = 1; s < 3; s++) {
        snprintf(name, sizeof name, "%s-%s-%d", ways[w].with, models[m], sizes[s]);
        snprintf(whole, sizeof whole, "%s-%s-0", ways[w].with, models[m]);
        double *of = &worst[*ways[w].top != '\0'];
        *of = fmax(*of, compare(name, whole, 0, ways[w].most));
      }
  printf("tiles: largest relative difference of a loss: %.2g, in bf16 %.2g\n", worst[0], worst[1]);
}
END_TEST

/* With parameters on the host and a device limit that only tiles fit, the job without tiles is refused, and the job
 * with tiles trains with the same losses. */
START_TEST(a_device_too_small_for_whole_weights) {
  static const char more[] = ",\"recompute\":\"full\",\"loss_tiles\":8,\"linear_tile_size\":1600";
  static const char offload[] =
      ",\"offload_optimizer\":{\"device\":\"cpu\"},\"offload_param\":{\"device\":\"cpu\"},\"sub_group_size\":4000,"
      "\"stage3_max_live_parameters\":2000";
  const tiled_job whole = {"whole", "tiny-llama", offload, ",\"recompute\":\"full\",\"loss_tiles\":8", ""};
  const tiled_job tiled = {"tiled", "tiny-llama", offload, more, ""};
  const char *jobs = in_folder("jobs");
  uint64_t largest, largest_tile;
  const uint64_t bytes = device_bytes(&whole, &largest), least = device_bytes(&tiled, &largest_tile);
  char limit[32];
  ck_assert_msg(largest == 256 * 64 && largest_tile == 256 * 64, "%lld, %lld", (long long)largest,
                (long long)largest_tile); /* the embedding's table */
  ck_assert_msg(least < bytes, "%lld, not less than %lld", (long long)least, (long long)bytes);
  FILE *file = fopen(jobs, "w");
  add_job(file, &whole, "");
  fclose(file);
  run_jobs(1, jobs);
  const curve reference = *find(1, "whole");
  snprintf(limit, sizeof limit, "%llu", (unsigned long long)least);
  setenv("DEVICE_LIMIT", limit, 1);
  command_result r = twinspeed("launch --quiet -n %d --threads 1 -- %s/tests/ranks_engine train %s %s", RANKS,
                               TWS_BUILD_DIR, jobs, in_folder("curves"));
  ck_assert_msg(r.status != 0 && strstr(r.err, "the device arenas need"), "%s%s", r.out, r.err);
  command_free(&r);
  file = fopen(jobs, "w");
  add_job(file, &tiled, "");
  fclose(file);
  run_jobs(1, jobs);
  unsetenv("DEVICE_LIMIT");
  const curve *c = find(1, "tiled");
  for (int s = 0; s < JOB_STEPS; s++)
    ck_assert_msg(fabs(c->loss[s] / reference.loss[s] - 1) < 1e-6, "step %d: %.9g, not %.9g", s + 1, c->loss[s],
                  reference.loss[s]);
  printf("a device of %llu bytes in place of %llu\n", (unsigned long long)least, (unsigned long long)bytes);
}
END_TEST

/* A checkpoint of a job with tiles resumes without tiles and with tiles of another size, and the reverse. */
START_TEST(checkpoints) {
  const char *jobs = in_folder("jobs");
  char saved[2][64], last[2][160];
  for (int i = 0; i < 2; i++) {
    snprintf(saved[i], sizeof saved[i], "\t%s/saved-%d", folder, i);
    snprintf(last[i], sizeof last[i], "\t-\t%s/saved-%d\tglobal_step5", folder, i);
  }
  FILE *file = fopen(jobs, "w");
  add_job(file, &(tiled_job){"whole", "tiny-gpt2", "", "", ""}, saved[0]);
  add_job(file, &(tiled_job){"tiled", "tiny-gpt2", "", ",\"linear_tile_size\":1100", ""}, saved[1]);
  add_job(file, &(tiled_job){"whole-tiled", "tiny-gpt2", host, ",\"linear_tile_size\":4096", ""}, last[0]);
  add_job(file, &(tiled_job){"tiled-whole", "tiny-gpt2", "", "", ""}, last[1]);
  add_job(file, &(tiled_job){"tiled-tiled", "tiny-gpt2", "", ",\"linear_tile_size\":2000", ""}, last[1]);
  fclose(file);
  run_jobs(1, jobs);
  compare("tiled", "whole", 0, 1e-6);
  compare("whole-tiled", "whole", 5, 1e-6);
  compare("tiled-whole", "whole", 5, 1e-6);
  compare("tiled-tiled", "whole", 5, 1e-6);
}
END_TEST

/* Where only the weight of the head and its gradient are too large for the device, the hint names linear_tile_size, and
 * the job fits with it. */
START_TEST(remedy) {
#define LARGE                                                                                              \
  "estimate -m llama-3-405b --cluster dgx1-v100:16 --dtype fp16 --seq 5120 --micro-batch 1 "               \
  "--set zero_optimization.stage3_max_live_parameters=100000000 --set zero_optimization.stage3_max_reuse_" \
  "distance=0 --set zero_optimization.stage3_prefetch_bucket_size=10000000 "                               \
  "--set zero_optimization.reduce_bucket_size=10000000"
  char words[256] = "";
  command_result r = twinspeed(LARGE);
  ck_assert_int_eq(r.status, 1);
  const char *hint = strstr(r.err, "it fits with ");
  ck_assert_msg(hint && strstr(hint, "twinspeed.linear_tile_size="), "%s", r.err);
  ck_assert_int_eq(sscanf(hint, "it fits with %255[^:]", words), 1);
  command_free(&r);
  r = twinspeed(LARGE " %s", words);
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  command_free(&r);
#undef LARGE
}
END_TEST

int main(void) {
  Suite *suite = suite_create("linear_tiles");
  TCase *tests = tcase_create("linear_tiles");
  tcase_add_test(tests, equal_losses);
  tcase_add_test(tests, a_device_too_small_for_whole_weights);
  tcase_add_test(tests, checkpoints);
  tcase_add_test(tests, remedy);
  tcase_set_timeout(tests, 300);
  suite_add_tcase(suite, tests);
  return run_training(suite);
}
