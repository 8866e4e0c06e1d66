/* ctest: sampled */
/* The tuner: the space of its points, and a whole search on a synthetic cluster. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "build_interface.h"
#include "autotune/results.h"
#include "command.h"
#include "folder.h"
#include "sim_module.h"
#include "suite.h"

static tws_error err;
static double number(const cJSON *item, const char *key) {
  return cJSON_GetObjectItemCaseSensitive(item, key)->valuedouble; /* null reads as 0 */
}
/* ---- searches ---- */

typedef struct fixture {
  tws_job *job;
  tws_tune_request request;
} fixture;

static void set_up(fixture *f, const char *model, const char *cluster, int64_t sequence) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  spec.model = model;
  spec.cluster = cluster;
  spec.sequence = sequence;
  ck_assert_msg(tws_job_open(&spec, &f->job, &err) == TWS_OK, "%s", err.message);
  f->job->config->micro_batch_size = 0; /* the space decides */
  f->request = (tws_tune_request){.job = f->job};
}

static void tear_down(fixture *f) {
  tws_job_destroy(f->job);
}

START_TEST(space_keeps_the_global_batch) {
  fixture f;
  set_up(&f, "tiny-gpt2", "dgx-a100:2", 32);
  f.request.space.global_batch = 48;
  tws_variant *points;
  int count;
  ck_assert_int_eq(tws_tune_enumerate(&f.request, &points, &count, &err), TWS_OK);
  /* 48 over 1, 2, 4, 8, 16 ranks: the divisors of 48, 24, 12, 6, 3; one rank has nothing for stages to divide */
  ck_assert_int_eq(count, 3 * 10 + 4 * 3 * (8 + 6 + 4 + 2));
  for (int i = 0; i < count; i++) {
    ck_assert_int_eq(points[i].micro * points[i].accumulation * points[i].ranks, 48);
    for (int j = 0; j < i; j++) ck_assert_mem_ne(&points[i], &points[j], sizeof points[i]);
  }
  tws_free(points);
  f.request.space.global_batch = 7;
  f.request.space.ranks[0] = 4;
  f.request.space.ranks_count = 1;
  ck_assert_int_eq(tws_tune_enumerate(&f.request, &points, &count, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "empty"));
  tear_down(&f);
}
END_TEST

/* With "fast" the section autotuning gives these points: all devices, stage by stage from the user's micro-batch, none
 * above the largest batch, and each point once. Less memory gives smaller batches, or an error. */
START_TEST(deepspeeds_points_are_tried) {
  fixture f;
  set_up(&f, "gpt2", "dgx-a100", 512);
  f.request.space.deepspeed = (tws_ds_tuning){.start = 2, .max_train_batch = 8 * 24, .num = 3};
  tws_variant *points;
  int count, stages = 0;
  ck_assert_msg(tws_tune_enumerate(&f.request, &points, &count, &err) == TWS_OK, "%s", err.message);
  ck_assert(points[0].stage == 0 && points[0].micro == 2 && points[0].accumulation == 1);
  ck_assert(points[1].stage == 0 && points[1].micro == 24);
  for (int i = 0; i < count; i++) {
    stages |= 1 << points[i].stage;
    ck_assert_int_eq(points[i].ranks, 8);
    ck_assert_int_le(points[i].micro * points[i].accumulation, 24);
    if (i > 0) ck_assert_int_ge(points[i].stage, points[i - 1].stage);
    for (int j = 0; j < i; j++) ck_assert_mem_ne(&points[i], &points[j], sizeof points[i]);
  }
  ck_assert_int_eq(stages, 15);
  tws_free(points);
  f.request.memory_bytes = 9e9; /* less than the states and five sequences need */
  ck_assert_msg(tws_tune_enumerate(&f.request, &points, &count, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_lt(points[0].micro, 24);
  ck_assert_int_lt(points[count - 1].micro, 24);
  tws_free(points);
  f.request.memory_bytes = 1e7;
  ck_assert_int_eq(tws_tune_enumerate(&f.request, &points, &count, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "no room for a sequence"));
  tear_down(&f);
}
END_TEST

/* Threads of a host's ranks: ranks x threads stay within the cores unless oversubscription was asked for. */
START_TEST(host_space_respects_cores) {
  fixture f;
  set_up(&f, "tiny-gpt2", "host", 32);
  f.job->cluster.nodes = 1;
  f.job->cluster.cores_per_node = f.job->cluster.devices_per_node = 4;
  for (int over = 0; over < 2; over++) {
    f.request.space.oversubscribe = over;
    f.request.space.global_batch = 8;
    tws_variant *points;
    int count, beyond = 0;
    ck_assert_int_eq(tws_tune_enumerate(&f.request, &points, &count, &err), TWS_OK);
    for (int i = 0; i < count; i++) {
      ck_assert_int_ge(points[i].threads, 1);
      beyond += points[i].ranks * points[i].threads > 4;
    }
    ck_assert_int_eq(beyond > 0, over);
    tws_free(points);
  }
  tear_down(&f);
}
END_TEST

static int fake_calls;
static tws_code fake_simulate(const tws_sim_request *request, tws_sim_result *result, tws_error *e) {
  (void)e;
  fake_calls++;
  /* a machine on which the optimizer's stage alone decides, so that the simulation overrules the longest path */
  *result = (tws_sim_result){.step_s = 1.0 / (1 + request->plans[0]->zero.stage)};
  return TWS_OK;
}

static tws_tune_result *search(fixture *f) {
  tws_tune_result *result = 0;
  ck_assert_msg(tws_tune(&f->request, &result, &err) == TWS_OK, "%s", err.message);
  return result;
}

static int plans_simulated;
static tws_code counting_simulate(const tws_sim_request *request, tws_sim_result *result, tws_error *e) {
  const tws_sim_api *sim = load_simulator();
  plans_simulated = request->plan_count;
  if (sim) return sim->simulate(request, result, e);
  *result = (tws_sim_result){0};
  return tws_job_path(request->plans, request->plan_count, &request->machine, NULL, &result->step_s, e);
}

/* A pipeline with as many stages as a deep model has layers is simulated with one plan per stage. */
START_TEST(long_pipelines_are_simulated) {
  enum { STAGES = 72 };
  static const char model[] =
      "{\"model_type\":\"gpt2\",\"vocab_size\":512,\"n_positions\":64,\"n_embd\":64,\"n_layer\":72,\"n_head\":4}";
  const tws_sim_api sim = {.simulate = counting_simulate};
  tws_job_parts_given parts = {.ranks = STAGES};
  tws_json *json = NULL;
  tws_job *job;
  double step_s;
  tws_estimate estimate;
  ck_assert_int_eq(tws_cluster_load("dgx-a100", &parts.cluster, &err), TWS_OK);
  ck_assert_int_eq(tws_profile_load(parts.cluster.profile, &parts.profile, &err), TWS_OK);
  parts.cluster.nodes = STAGES / parts.cluster.devices_per_node;
  ck_assert_int_eq(tws_json_parse(model, strlen(model), "model", &json, &err), TWS_OK);
  ck_assert_int_eq(tws_network_from_json(json, 1, &parts.network, &err), TWS_OK);
  ck_assert_int_eq(tws_config_default(&parts.config, &err), TWS_OK);
  ck_assert_int_eq(tws_config_set(parts.config, "pipeline.stages", "72", &err), TWS_OK);
  ck_assert_int_eq(tws_config_set(parts.config, "pipeline.partition", "uniform", &err), TWS_OK);
  ck_assert_int_eq(tws_config_set(parts.config, "train_micro_batch_size_per_gpu", "1", &err), TWS_OK);
  ck_assert_int_eq(tws_config_set(parts.config, "gradient_accumulation_steps", "80", &err), TWS_OK);
  ck_assert_int_eq(tws_config_set(parts.config, "twinspeed.sequence_length", "64", &err), TWS_OK);
  ck_assert_msg(tws_job_assemble(&parts, &job, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_job_simulated_step(job, &sim, TWS_FIDELITY_ANALYTIC, &step_s, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(plans_simulated, STAGES);
  ck_assert_int_eq(tws_job_estimate(job, &estimate, NULL, &err), TWS_OK);
  ck_assert_double_eq_tol(step_s, estimate.step_s, 0.01 * estimate.step_s);
  tws_job_destroy(job);
  tws_json_destroy(json);
}
END_TEST

/* The memory that other software needs in addition to the plan counts in a search as in an estimate of the same
 * point. */
START_TEST(runtimes_fit_as_estimated) {
  static const char *const runtimes[] = {"twinspeed", "megatron-2021"};
  int fits[2] = {0, 0};
  for (int r = 0; r < 2; r++) {
    tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
    tws_job *job, *derived;
    tws_tune_result *result = NULL;
    spec.model = "gpt2-xl";
    spec.cluster = "dgx1-v100";
    spec.dtype = "fp16";
    spec.runtime = runtimes[r];
    ck_assert_msg(tws_job_open(&spec, &job, &err) == TWS_OK, "%s", err.message);
    job->config->micro_batch_size = 0;
    tws_tune_request request = {.job = job, .space = {.global_batch = 64}};
    ck_assert_msg(tws_tune(&request, &result, &err) == TWS_OK, "%s", err.message);
    for (int i = 0; i < result->count; i++) {
      const tws_tune_candidate *c = &result->candidates[i];
      if (c->implied || c->verdict == TWS_TUNE_NOT_SUPPORTED) continue;
      ck_assert_int_eq(tws_job_derive(job, &c->variant, &derived, &err), TWS_OK);
      const tws_fit fit = tws_job_fit(derived, &c->estimate.ledger);
      ck_assert_int_eq(fit.fits, c->verdict == TWS_TUNE_FITS);
      ck_assert_double_eq(fit.rank_need, c->needed_bytes);
      ck_assert_double_le(fit.device_need - c->needed_bytes, 4.0 * (1 << 30)); /* context and communicators */
      fits[r] += fit.fits;
      tws_job_destroy(derived);
    }
    tws_tune_result_destroy(result);
    tws_job_destroy(job);
  }
  ck_assert_int_gt(fits[1], 0);
  ck_assert_int_lt(fits[1], fits[0]);
}
END_TEST

START_TEST(search_rejects_by_memory_and_is_deterministic) {
  fixture f;
  set_up(&f, "gpt2", "dgx-a100", 512);
  f.request.space.global_batch = 64;
  f.request.memory_bytes = 6e9;
  tws_tune_result *result = search(&f), *again = search(&f);
  ck_assert_int_gt(result->fits, 0);
  ck_assert_int_lt(result->fits, result->count);
  int rejected = 0;
  for (int i = 0; i < result->rejection_count; i++) rejected += result->rejections[i].count;
  ck_assert_int_eq(rejected + result->fits, result->count);
  for (int i = 0; i < result->count; i++) {
    const tws_tune_candidate *c = &result->candidates[i];
    const tws_capacity capacity = tws_capacity_of(&f.job->machine, c->variant.ranks, 6e9);
    ck_assert_str_eq(c->name, again->candidates[i].name);
    ck_assert_int_eq(c->verdict == TWS_TUNE_FITS, i < result->fits);
    if (c->verdict == TWS_TUNE_FITS)
      ck_assert_double_le((double)c->estimate.ledger.tier[0].arena_bytes, capacity.rank_device);
    if (i > 0 && i < result->fits)
      ck_assert_double_ge(tws_tune_throughput(&result->candidates[i - 1]), tws_tune_throughput(c));
  }
  tws_tune_result_destroy(result);
  tws_tune_result_destroy(again);
  tear_down(&f);
}
END_TEST

/* The reason of an implied rejection is true: the plan of the rejected point does not fit either. */
START_TEST(implied_rejections_hold) {
  fixture f;
  set_up(&f, "gpt2", "dgx-a100", 512);
  f.request.space.max_micro = 64;
  f.request.memory_bytes = 5e9;
  tws_tune_result *result = search(&f);
  int checked = 0;
  for (int i = 0; i < result->count; i++) {
    const tws_tune_candidate *c = &result->candidates[i];
    if (!c->implied || c->variant.ranks != 8) continue;
    tws_job *job;
    tws_estimate estimate;
    ck_assert_msg(tws_job_derive(f.job, &c->variant, &job, &err) == TWS_OK, "%s", err.message);
    ck_assert_msg(tws_job_estimate(job, &estimate, NULL, &err) == TWS_OK, "%s", err.message);
    ck_assert_double_gt((double)estimate.ledger.tier[TWS_TIER_DEVICE].arena_bytes, c->available_bytes);
    ck_assert_double_ge((double)estimate.ledger.tier[TWS_TIER_DEVICE].arena_bytes, c->needed_bytes);
    tws_job_destroy(job);
    checked++;
  }
  ck_assert_int_gt(checked, 0);
  tws_tune_result_destroy(result);
  tear_down(&f);
}
END_TEST

START_TEST(simulation_decides_and_stops_early) {
  static const tws_sim_api sim = {.version = TWS_INTERFACE, .simulate = fake_simulate};
  fixture f;
  set_up(&f, "tiny-gpt2", "dgx-a100", 32);
  f.request.sim = &sim;
  f.request.space.global_batch = 16;
  f.request.trials = 1000;
  tws_tune_result *result = search(&f);
  ck_assert_int_eq(result->simulated, result->fits);
  ck_assert_int_eq(result->candidates[0].variant.stage, 3);
  tws_tune_result_destroy(result);
  f.request.trials = 5;
  f.request.tuner = TWS_TUNER_GRIDSEARCH;
  result = search(&f);
  ck_assert_int_eq(result->simulated, 5);
  ck_assert_int_eq(result->candidates[0].variant.stage, 0); /* the space starts with stage 0 */
  tws_tune_result_destroy(result);
  f.request.trials = 100;
  f.request.early_stopping = 3;
  result = search(&f);
  ck_assert_int_eq(result->simulated, 4); /* no later point is better than the first one of stage 0 */
  tws_tune_result_destroy(result);
  f.request.tuner = TWS_TUNER_RANDOM;
  f.request.early_stopping = 0;
  f.request.trials = 20;
  f.request.seed = 7;
  result = search(&f);
  tws_tune_result *again = search(&f);
  for (int i = 0; i < 20; i++) ck_assert_str_eq(result->candidates[i].name, again->candidates[i].name);
  tws_tune_result_destroy(result);
  tws_tune_result_destroy(again);
  tear_down(&f);
}
END_TEST

START_TEST(nothing_fits) {
  fixture f;
  set_up(&f, "gpt2-xl", "dgx-a100", 1024);
  f.request.space.global_batch = 16;
  f.request.memory_bytes = 5e8;
  tws_tune_result *result = search(&f);
  ck_assert_int_eq(result->fits, 0);
  ck_assert_int_ge(result->smallest, 0);
  const tws_tune_candidate *smallest = &result->candidates[result->smallest];
  ck_assert_double_gt(smallest->needed_bytes, smallest->available_bytes);
  ck_assert_int_ge(smallest->variant.stage, 2);
  ck_assert_int_eq(smallest->variant.ranks, 8);
  ck_assert_int_le(smallest->variant.micro, 2); /* one micro-batch of 2 needs no buffer to accumulate in */
  for (int i = 0; i < result->count; i++)
    ck_assert_double_ge(result->candidates[i].needed_bytes, smallest->needed_bytes);
  tws_tune_result_destroy(result);
  tear_down(&f);
}
END_TEST

static void write_results(const tws_tune_result *result, const tws_tune_request *request, tws_tune_earlier earlier) {
  const tws_tune_folders folders = {.results = folder, .earlier = earlier};
  const tws_tune_report report = {.request = request, .result = result};
  ck_assert_msg(tws_tune_folders_open(&folders, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_tune_write(&report, &folders, &err) == TWS_OK, "%s", err.message);
}

START_TEST(results_folder) {
  static const tws_sim_api sim = {.version = TWS_INTERFACE, .simulate = fake_simulate};
  fixture f;
  set_up(&f, "tiny-gpt2", "dgx-a100", 32);
  f.request.sim = &sim;
  f.request.space.global_batch = 16;
  f.request.trials = 4;
  tws_tune_result *result = search(&f);
  char path[512];
  make_folder();
  write_results(result, &f.request, TWS_EARLIER_REFUSE);
  const tws_tune_folders twice = {.results = folder};
  ck_assert_int_eq(tws_tune_folders_open(&twice, &err), TWS_USAGE);
  write_results(result, &f.request, TWS_EARLIER_REPLACE);
  /* the best configuration is one that the program reads, with the tuned values */
  snprintf(path, sizeof path, "%s/ds_config_optimal.json", folder);
  tws_config *best;
  ck_assert_msg(tws_config_load(path, &best, &err) == TWS_OK, "%s", err.message);
  const tws_variant *point = &result->candidates[0].variant;
  ck_assert_int_eq(best->zero.stage, point->stage);
  ck_assert_int_eq(best->micro_batch_size, point->micro);
  ck_assert_int_eq(best->accumulation_steps, point->accumulation);
  ck_assert_int_eq(best->train_batch_size, 16);
  ck_assert_int_eq(best->recompute, point->recompute);
  tws_config_destroy(best);
  result->candidates[1].measured_s = 0.5;
  write_results(result, &f.request, TWS_EARLIER_KEEP);
  snprintf(path, sizeof path, "%s/%s/metrics.json", folder, result->candidates[1].name);
  tws_json *metrics;
  ck_assert_msg(tws_json_read(path, &metrics, &err) == TWS_OK, "%s", err.message);
  ck_assert_double_eq(number(metrics->root, "measured_s"), 0.5);
  ck_assert_double_eq(number(metrics->root, "latency"), 0.5e6);
  ck_assert_double_eq_tol(number(metrics->root, "simulated_s"), result->candidates[1].simulated_s, 1e-12);
  tws_json_destroy(metrics);
  remove_folder();
  tws_tune_result_destroy(result);
  tear_down(&f);
}
END_TEST

/* ---- axes ---- */

static tws_job *derive(const fixture *f, const tws_variant *variant) {
  tws_job *job;
  ck_assert_msg(tws_job_derive(f->job, variant, &job, &err) == TWS_OK, "%s", err.message);
  /* a model's vocabulary is padded for the tensor ranks of a variant */
  if (variant->tensor > 1) ck_assert_int_eq(job->network->padded_vocabulary % variant->tensor, 0);
  return job;
}

/* Every point of a space with axes is legal and keeps the global batch; rough estimates of pipelines are near exact
 * ones and never reject what fits. */
START_TEST(points_with_axes_are_legal) {
  fixture f;
  tws_variant *points;
  int count, pipelines = 0, schedules = 0;
  set_up(&f, "gpt2", "dgx-a100", 512);
  f.request.space = (tws_tune_space){.axes = 1, .global_batch = 32, .sequence = {1, 2}, .sequence_count = 2};
  ck_assert_msg(tws_tune_enumerate(&f.request, &points, &count, &err) == TWS_OK, "%s", err.message);
  for (int i = 0; i < count; i++) {
    const tws_variant *p = &points[i];
    char name[TWS_VARIANT_NAME], other[TWS_VARIANT_NAME];
    tws_variant_name(p, name, sizeof name);
    ck_assert_int_eq(p->ranks, 8);
    ck_assert_int_eq(p->pipeline * p->tensor * p->sequence * tws_variant_replicas(p), 8);
    ck_assert_int_eq(p->micro * p->accumulation * tws_variant_replicas(p), 32);
    ck_assert(p->pipeline == 1 || (p->stage <= 1 && p->accumulation >= p->pipeline));
    schedules |= p->pipeline > 1 ? 1 << p->schedule.kind : 0;
    for (int j = 0; j < i; j++) {
      tws_variant_name(&points[j], other, sizeof other);
      ck_assert_str_ne(name, other);
    }
    if (i % 4) continue;
    tws_job *job = derive(&f, p);
    tws_plan_request plan = tws_job_request(job, 0);
    tws_estimate exact;
    tws_ledger live;
    ck_assert_msg(tws_estimate_step(&plan, &job->machine, &exact, &err) == TWS_OK, "%s: %s", name, err.message);
    ck_assert_msg(tws_estimate_live(&plan, &job->machine, &live, &err) == TWS_OK, "%s", err.message);
    const double memory = (double)exact.ledger.tier[TWS_TIER_DEVICE].arena_bytes;
    const double least = (double)live.tier[TWS_TIER_DEVICE].arena_bytes;
    ck_assert_msg(least <= memory && least > 0.8 * memory, "%s: %g bytes are not %g", name, least, memory);
    pipelines += p->pipeline > 1;
    tws_job_destroy(job);
  }
  ck_assert_int_gt(pipelines, 20);
  ck_assert_int_eq(schedules, 1 << TWS_PIPELINE_1F1B | 1 << TWS_PIPELINE_INTERLEAVED | 1 << TWS_PIPELINE_ZB_H1);
  tws_free(points);
  tear_down(&f);
}
END_TEST

/* A search over axes: what is listed was planned and fits, pipelines among it; what does not fit is counted; the files
 * say what was tuned. */
START_TEST(search_over_axes) {
  fixture f;
  set_up(&f, "gpt2", "dgx-a100", 128);
  f.request.memory_bytes = 2e9;
  ck_assert(tws_tune_needs_axes(&f.request)); /* 124 M parameters of 16 bytes, and what the libraries take */
  f.request.memory_bytes = 8e9;
  ck_assert(!tws_tune_needs_axes(&f.request));
  f.request.memory_bytes = 1.7e9;
  f.request.space = (tws_tune_space){.axes = 1, .global_batch = 16, .stages = {0, 1}, .stage_count = 2};
  f.request.trials = 150;
  tws_tune_result *result = search(&f), *again = search(&f);
  int pipelines = 0, written = 0;
  ck_assert(!result->every);
  ck_assert_int_gt(result->fits, 100);
  ck_assert_int_gt((int)result->swept.too_large, 100);
  ck_assert_int_eq(result->swept.considered, result->swept.illegal + result->swept.equal + result->swept.refused +
                                                 result->swept.too_large + result->swept.ruled_out +
                                                 result->swept.planned + result->swept.left);
  for (int i = 0; i < result->count; i++) {
    const tws_tune_candidate *c = &result->candidates[i];
    ck_assert_str_eq(c->name, again->candidates[i].name);
    ck_assert(c->verdict == TWS_TUNE_FITS && !c->rough && c->needed_bytes <= c->available_bytes);
    pipelines += c->variant.pipeline > 1;
  }
  ck_assert_int_gt(pipelines, 10);
  for (int i = 0; i < result->fits; i++) { /* writes the files of one point that uses every axis */
    tws_tune_candidate *c = &result->candidates[i];
    if (c->variant.pipeline != 2 || c->variant.tensor != 2 || c->variant.schedule.kind != TWS_PIPELINE_INTERLEAVED ||
        !c->variant.sequence_parallel)
      continue;
    tws_tune_result one = {.candidates = c, .count = 1, .fits = 1, .smallest = -1};
    make_folder();
    write_results(&one, &f.request, TWS_EARLIER_REFUSE);
    tws_config *best;
    ck_assert_msg(tws_config_load(in_folder("ds_config_optimal.json"), &best, &err) == TWS_OK, "%s", err.message);
    ck_assert_int_eq(best->pipeline_stages, 2);
    ck_assert_int_eq(best->tensor_ranks, 2);
    ck_assert_int_eq(best->tensor_sequence_parallel, 1);
    ck_assert_int_eq(best->pipeline_schedule, TWS_PIPELINE_INTERLEAVED);
    ck_assert_int_eq(best->virtual_stages, 2);
    ck_assert_int_eq(best->train_batch_size, 16);
    ck_assert_msg(tws_config_resolve(best, 8, NULL, &err) == TWS_OK, "%s", err.message);
    tws_config_destroy(best);
    tws_text json = {0};
    ck_assert_int_eq(tws_tune_json(&(tws_tune_report){.request = &f.request, .result = &one}, &json, &err), TWS_OK);
    ck_assert_ptr_nonnull(strstr(json.data, "\"pipe\":\t2"));
    ck_assert_ptr_nonnull(strstr(json.data, "\"pipeline_schedule\":\t\"interleaved\""));
    tws_text_free(&json);
    remove_folder();
    written = 1;
    break;
  }
  ck_assert(written);
  tws_tune_result_destroy(result);
  tws_tune_result_destroy(again);
  tear_down(&f);
}
END_TEST

/* The lists of axes on the command line of tune, and the errors for wrong ones. */
START_TEST(axes_on_the_command_line) {
  static const struct {
    const char *words;
    int status;
    const char *says;
  } wrong[] = {{"--schedules sometimes", 2, "gpipe, 1f1b, interleaved and zb-h1"},
               {"--schedules zb-h1:2", 2, "one chunk"},
               {"--axes maybe", 2, "--axes"},
               {"--tp 0", 2, "--tp"},
               {"--tp 3", 3, "empty"}};
  make_folder();
#define TUNE "tune -m tiny-llama -b 16 --seq 32 --cluster dgx-a100 -n 8 --no-simulation --force -o %s "
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    command_result result = twinspeed(TUNE "%s", folder, wrong[i].words);
    ck_assert_msg(result.status == wrong[i].status, "%s: exit %d", wrong[i].words, result.status);
    ck_assert_msg(strstr(result.err, wrong[i].says) != NULL, "%s: %s", wrong[i].words, result.err);
    command_free(&result);
  }
  command_result result =
      twinspeed(TUNE "--json --pp 1,2 --tp 2 --stages 1 --schedules zb-h1,interleaved:1 --recomputes none", folder);
  ck_assert_msg(result.status == 0, "%s", result.err);
  tws_json *json;
  ck_assert_int_eq(tws_json_parse(result.out, strlen(result.out), "output", &json, &err), TWS_OK);
  const cJSON *one;
  int pipelines = 0, others = 0;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(json->root, "candidates")) {
    const cJSON *axes = cJSON_GetObjectItem(one, "axes");
    double pipe = number(axes, "pipe"), data = number(axes, "data");
    ck_assert_double_eq(number(axes, "model"), 2);
    ck_assert_double_eq(pipe * 2 * data, 8);
    ck_assert_double_eq(number(one, "micro_batch") * number(one, "accumulation") * data, 16);
    ck_assert_int_eq(cJSON_HasObjectItem(one, "pipeline_schedule"), pipe > 1);
    pipelines += pipe > 1;
    others += pipe == 1;
  }
  ck_assert_int_gt(pipelines, 4);
  ck_assert_int_gt(others, 1);
  tws_json_destroy(json);
  command_free(&result);
  remove_folder();
}
END_TEST

/* A search varies the degree of expert parallelism and the capacity: it tries those that the experts and replicas
 * allow, and predicts for each what an estimate of it predicts. */
START_TEST(experts_are_searched) {
  static const struct {
    const char *words;
    int status;
    const char *says;
  } wrong[] = {{"-m tiny-llama --ep 2", 3, "the model has no experts"},
               {"-m tiny-llama --capacities 2", 3, "the model has no experts"},
               {"-m tiny-mixtral --ep 3", 3, "does not divide a layer's 4 experts"},
               {"-m tiny-mixtral --ep 0", 2, "--ep"},
               {"-m tiny-mixtral --capacities 1,much", 2, "not a number"},
               {"-m tiny-mixtral --capacities 1 --set twinspeed.expert_dropless=true", 3, "no effect"}};
  make_folder();
#undef TUNE
#define TUNE "tune -b 32 --seq 32 --cluster dgx-a100 -n 8 --no-simulation --force -o %s "
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    command_result result = twinspeed(TUNE "%s", folder, wrong[i].words);
    ck_assert_msg(result.status == wrong[i].status, "%s: exit %d", wrong[i].words, result.status);
    ck_assert_msg(strstr(result.err, wrong[i].says) != NULL, "%s: %s", wrong[i].words, result.err);
    command_free(&result);
  }
  command_result result = twinspeed(
      TUNE "-m tiny-mixtral --json --ep 1,2,3,4 --capacities 1,2 --stages 1 --recomputes none --micro-batches 2",
      folder);
  ck_assert_msg(result.status == 0, "%s", result.err);
  tws_json *json;
  ck_assert_int_eq(tws_json_parse(result.out, strlen(result.out), "output", &json, &err), TWS_OK);
  const cJSON *one;
  int count = 0;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(json->root, "candidates")) {
    const cJSON *expert = cJSON_GetObjectItem(cJSON_GetObjectItem(one, "axes"), "expert");
    command_result alone = twinspeed(
        "estimate -m tiny-mixtral -n 8 --cluster dgx-a100 --seq 32 --stage 1 --micro-batch 2 --accumulation 2 --ep %d "
        "--set twinspeed.expert_capacity_factor=%g --json",
        expert ? expert->valueint : 1, number(one, "expert_capacity_factor"));
    tws_json *estimate;
    ck_assert_msg(alone.status == 0, "%s", alone.err);
    ck_assert_int_eq(tws_json_parse(alone.out, strlen(alone.out), "output", &estimate, &err), TWS_OK);
    ck_assert_double_eq_tol(number(cJSON_GetObjectItem(estimate->root, "time"), "step_s"),
                            number(one, "predicted_step_s"), 1e-12);
    tws_json_destroy(estimate);
    command_free(&alone);
    count++;
  }
  ck_assert_int_eq(count, 6);
  tws_json_destroy(json);
  command_free(&result);
  remove_folder();
}
END_TEST

/* A search does not try exchanges that a point lacks or that exclude each other, and predicts for each point what an
 * estimate with its keys predicts. */
START_TEST(exchanges_are_searched) {
  static const struct {
    const char *words;
    int status;
    const char *says;
  } wrong[] = {{"-m tiny-llama --mics x", 2, "--mics"},
               {"-m tiny-llama --quantized-weights 2", 2, "--quantized-weights"}};
  static const char *const keys[TWS_EXCHANGE_COUNT] = {"zero_hpz_partition_size", "mics_shard_size",
                                                       "expert_node_ranks", "zero_quantized_weights",
                                                       "zero_quantized_gradients"};
  static const char *const lists[TWS_EXCHANGE_COUNT] = {"--hpz 0,2,3,8", "--mics 0,2,4,16", "--expert-nodes 0,2,3",
                                                        "--quantized-weights 0,1", "--quantized-gradients 0,1"};
  char words[400] = "";
  make_folder();
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    command_result result = twinspeed(TUNE "%s", folder, wrong[i].words);
    ck_assert_msg(result.status == wrong[i].status, "%s: exit %d", wrong[i].words, result.status);
    ck_assert_msg(strstr(result.err, wrong[i].says) != NULL, "%s: %s", wrong[i].words, result.err);
    command_free(&result);
  }
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++)
    snprintf(words + strlen(words), sizeof words - strlen(words), " %s", lists[i]);
  command_result result = twinspeed(
      TUNE "-m tiny-mixtral --json --ep 1,4 --stages 1,3 --recomputes none --micro-batches 2%s", folder, words);
  ck_assert_msg(result.status == 0, "%s", result.err);
  tws_json *json;
  ck_assert_int_eq(tws_json_parse(result.out, strlen(result.out), "output", &json, &err), TWS_OK);
  const cJSON *one;
  int count = 0, with[TWS_EXCHANGE_COUNT] = {0}, value[TWS_EXCHANGE_COUNT];
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(json->root, "candidates")) {
    char set[500] = "";
    const cJSON *expert = cJSON_GetObjectItem(cJSON_GetObjectItem(one, "axes"), "expert");
    const int stage = (int)number(one, "zero_stage"), experts = expert ? expert->valueint : 1;
    for (int i = 0; i < TWS_EXCHANGE_COUNT; i++) {
      const cJSON *item = cJSON_GetObjectItem(one, keys[i]);
      value[i] = !item ? 0 : cJSON_IsBool(item) ? cJSON_IsTrue(item) : item->valueint;
      with[i] += value[i] > 0;
      if (value[i])
        snprintf(set + strlen(set), sizeof set - strlen(set), " --set %s.%s=%s",
                 i == TWS_EXCHANGE_EXPERT_NODES ? "twinspeed" : "zero_optimization", keys[i],
                 i >= TWS_EXCHANGE_WEIGHTS ? "true"
                 : value[i] == 2           ? "2"
                                           : "4");
    }
    ck_assert(value[TWS_EXCHANGE_EXPERT_NODES] == 0 || experts == 4);
    ck_assert(stage == 3 || strstr(set, "zero_optimization") == NULL);
    command_result alone = twinspeed(
        "estimate -m tiny-mixtral -n 8 --cluster dgx-a100 --seq 32 --stage %d --micro-batch 2 --accumulation "
        "2 --ep %d%s --json",
        stage, experts, set);
    tws_json *estimate;
    ck_assert_msg(alone.status == 0, "%s: %s", set, alone.err);
    ck_assert_int_eq(tws_json_parse(alone.out, strlen(alone.out), "output", &estimate, &err), TWS_OK);
    ck_assert_double_eq_tol(number(cJSON_GetObjectItem(estimate->root, "time"), "step_s"),
                            number(one, "predicted_step_s"), 1e-12);
    tws_json_destroy(estimate);
    command_free(&alone);
    count++;
  }
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++) ck_assert_msg(with[i] > 0, "%s is not tried", keys[i]);
  /* stage 1: experts on one rank, or on four in one step or two. Stage 3 and experts on one rank: 4 without secondary
   * partitions and quantized or not, 4 of hpZ, 2 x 2 of MiCS; on four ranks 2 x 2, quantized weights and steps. */
  ck_assert_int_eq(count, 3 + 12 + 4);
  tws_json_destroy(json);
  command_free(&result);
  remove_folder();
}
END_TEST

/* On several nodes, secondary partitions are within one node. */
START_TEST(secondary_partitions_are_within_a_node) {
  fixture f;
  tws_variant *points;
  int count, with[TWS_EXCHANGE_COUNT] = {0};
  set_up(&f, "gpt2", "dgx-a100:2", 512);
  f.request.space = (tws_tune_space){.axes = 1, .global_batch = 32};
  ck_assert_msg(tws_tune_enumerate(&f.request, &points, &count, &err) == TWS_OK, "%s", err.message);
  for (int i = 0; i < count; i++) {
    const tws_variant *p = &points[i];
    for (int k = 0; k < TWS_EXCHANGE_COUNT; k++) {
      if (p->exchange[k] < 2) continue;
      with[k]++;
      ck_assert_int_eq(p->stage, 3);
      ck_assert_int_eq((p->exchange[k] - 1) * p->tensor, 8);
    }
    ck_assert(p->exchange[TWS_EXCHANGE_HPZ] < 2 || p->exchange[TWS_EXCHANGE_MICS] < 2);
  }
  ck_assert_int_gt(with[TWS_EXCHANGE_HPZ], 0);
  ck_assert_int_gt(with[TWS_EXCHANGE_MICS], 0);
  ck_assert(!with[TWS_EXCHANGE_EXPERT_NODES] && !with[TWS_EXCHANGE_WEIGHTS] && !with[TWS_EXCHANGE_GRADIENTS]);
  tws_free(points);
  tear_down(&f);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("autotune");
  TCase *tuner = tcase_create("tuner");
  tcase_set_timeout(tuner, 120);
  tcase_add_test(tuner, space_keeps_the_global_batch);
  tcase_add_test(tuner, deepspeeds_points_are_tried);
  tcase_add_test(tuner, host_space_respects_cores);
  tcase_add_test(tuner, exchanges_are_searched);
  tcase_add_test(tuner, secondary_partitions_are_within_a_node);
  tcase_add_test(tuner, search_rejects_by_memory_and_is_deterministic);
  tcase_add_test(tuner, runtimes_fit_as_estimated);
  tcase_add_test(tuner, implied_rejections_hold);
  tcase_add_test(tuner, simulation_decides_and_stops_early);
  tcase_add_test(tuner, nothing_fits);
  tcase_add_test(tuner, long_pipelines_are_simulated);
  tcase_add_test(tuner, results_folder);
  tcase_add_test(tuner, points_with_axes_are_legal);
  tcase_add_test(tuner, search_over_axes);
  tcase_add_test(tuner, axes_on_the_command_line);
  tcase_add_test(tuner, experts_are_searched);
  suite_add_tcase(suite, tuner);
  return run_suite(suite);
}
