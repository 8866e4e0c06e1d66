/* ctest: engine mpi sampled */
/* ZeRO++: secondary partitions change no bit of a training, and reduce the inter-node bytes. */
#include "job/job.h"
#include "train.h"

static void add_job(FILE *file, const char *name, int accumulation, const char *recompute, const char *more) {
  fprintf(file,
          "%s\ttiny-llama\t%d\t{%s,\"train_micro_batch_size_per_gpu\":%d,\"zero_optimization\":{\"stage\":3,"
          "\"reduce_bucket_size\":20000,\"stage3_prefetch_bucket_size\":5000,\"stage3_max_reuse_distance\":0,"
          "\"stage3_max_live_parameters\":30000,\"stage3_param_persistence_threshold\":100%s},"
          "\"twinspeed\":{\"sequence_length\":32,\"seed\":7,\"recompute\":\"%s\"}}\n",
          name, FEW_STEPS, settings, 2 / accumulation, more, recompute);
}

static void same_curves(const curve *c, const curve *reference) {
  const size_t compared = (size_t)c->steps * sizeof *c->loss;
  ck_assert_int_eq(c->steps, FEW_STEPS);
  ck_assert_msg(memcmp(c->loss, reference->loss, compared) == 0 && memcmp(c->norm, reference->norm, compared) == 0,
                "%s differs from %s", c->name, reference->name);
}

/* ---- hpZ ---- */

START_TEST(secondary_parameters_are_the_same) {
  static const struct {
    const char *name, *recompute, *more;
    int accumulation;
  } jobs[] = {{"one", "none", "", 1},
              {"two", "none", "", 2},
              {"again", "full", "", 2},
              {"half", "none", "", 2},
              {"sequential", "none", ",\"stage3_allgather_sequential\":true,\"overlap_comm\":false", 2}};
  enum { KINDS = sizeof jobs / sizeof *jobs };
  const char *path = in_folder("jobs");
  FILE *file = fopen(path, "w");
  char name[64], more[160];
  for (int i = 0; i < KINDS; i++) {
    const char *type = strcmp(jobs[i].name, "half") == 0 ? "},\"bf16\":{\"enabled\":true" : "";
    snprintf(more, sizeof more, "%s%s", jobs[i].more, type);
    add_job(file, jobs[i].name, jobs[i].accumulation, jobs[i].recompute, more);
    snprintf(name, sizeof name, "%s-near", jobs[i].name);
    snprintf(more, sizeof more, ",\"zero_hpz_partition_size\":2%s%s", jobs[i].more, type);
    add_job(file, name, jobs[i].accumulation, jobs[i].recompute, more);
  }
  fclose(file);
  run_jobs(2, path);
  for (int i = 0; i < KINDS; i++) {
    snprintf(name, sizeof name, "%s-near", jobs[i].name);
    same_curves(find(2, name), find(2, jobs[i].name));
  }
}
END_TEST

/* ---- MiCS ---- */

/* Adds a job with twice as many samples, for eight ranks. */
static void add_groups(FILE *file, const char *name, int accumulation, const char *more, int node_ranks) {
  static const char batch[] = "\"train_batch_size\":8,";
  char line[900], nodes[40] = "";
  FILE *text = fmemopen(line, sizeof line, "w");
  add_job(text, name, accumulation, "none", more);
  fclose(text);
  if (node_ranks > 0) snprintf(nodes, sizeof nodes, ",\"zero_node_ranks\":%d", node_ranks);
  const char *at = strstr(line, batch), *end = strstr(line, "}}\n");
  ck_assert(at && end > at);
  fprintf(file, "%.*s\"train_batch_size\":16,", (int)(at - line), line);
  at += sizeof batch - 1;
  fprintf(file, "%.*s%s%s", (int)(end - at), at, nodes, end);
}

/* MiCS adds up what all ranks of plain stage 3 add up, in another order; hierarchical gathers change no bit. One group
 * of all ranks equals plain stage 3. */
START_TEST(groups_lose_what_all_ranks_do) {
  static const struct {
    const char *name, *more;
    int accumulation;
  } jobs[] = {{"one", "", 1},
              {"two", "", 2},
              {"serial", ",\"overlap_comm\":false,\"stage3_allgather_sequential\":true", 2},
              {"whole", ",\"reduce_scatter\":false", 2},
              {"half", "},\"bf16\":{\"enabled\":true", 2}};
  enum { KINDS = sizeof jobs / sizeof *jobs };
  const char *path = in_folder("jobs");
  FILE *file = fopen(path, "w");
  char name[64], more[200];
  double worst[2] = {0, 0};
  for (int i = 0; i < KINDS; i++) {
    add_groups(file, jobs[i].name, jobs[i].accumulation, jobs[i].more, 0);
    for (int size = 2; size <= 8; size *= 2) {
      snprintf(name, sizeof name, "%s-%d", jobs[i].name, size);
      snprintf(more, sizeof more, ",\"mics_shard_size\":%d%s", size, jobs[i].more);
      add_groups(file, name, jobs[i].accumulation, more, 0);
    }
    snprintf(name, sizeof name, "%s-nodes", jobs[i].name);
    snprintf(more, sizeof more, ",\"mics_shard_size\":4,\"mics_hierarchical_params_gather\":true%s", jobs[i].more);
    add_groups(file, name, jobs[i].accumulation, more, 2);
  }
  fclose(file);
  run_jobs(3, path);
  for (int i = 0; i < KINDS; i++) {
    const curve *plain = find(3, jobs[i].name);
    const int half = strcmp(jobs[i].name, "half") == 0;
    for (int size = 2; size <= 4; size *= 2) {
      snprintf(name, sizeof name, "%s-%d", jobs[i].name, size);
      const curve *c = find(3, name);
      ck_assert_int_eq(c->steps, FEW_STEPS);
      for (int s = 0; s < FEW_STEPS; s++) {
        const double error = fmax(fabs(c->loss[s] / plain->loss[s] - 1), s ? 0 : fabs(c->norm[s] / plain->norm[s] - 1));
        ck_assert_msg(error <= (half ? 2e-3 : 1e-7), "%s, step %d: loss %.9g, not %.9g; norm %.9g, not %.9g", name,
                      s + 1, c->loss[s], plain->loss[s], c->norm[s], plain->norm[s]);
        worst[half] = fmax(worst[half], error);
      }
    }
    snprintf(name, sizeof name, "%s-8", jobs[i].name);
    same_curves(find(3, name), plain);
    snprintf(name, sizeof name, "%s-nodes", jobs[i].name);
    char flat[64];
    snprintf(flat, sizeof flat, "%s-4", jobs[i].name);
    same_curves(find(3, name), find(3, flat));
  }
  printf("groups: losses differ from those of plain stage 3 by up to %.2g, of 16 bits %.2g\n", worst[0], worst[1]);
}
END_TEST

/* ---- qwZ ---- */

/* Quantized weights equal those of a rank that quantizes for all, and with secondary partitions to the bit. With other
 * micro-batches weights differ in their last bits, and a weight halfway between two quantized values may be rounded to
 * the other one: after a few steps some are, which differ between machines. */
START_TEST(quantized_gathers) {
  const char *path = in_folder("jobs");
  FILE *file = fopen(path, "w");
  fprintf(file,
          "codes-4-one\ttiny-llama\t%d\t{%s,\"train_micro_batch_size_per_gpu\":2,\"zero_optimization\":{\"stage\":0,"
          "\"stage3_param_persistence_threshold\":100},\"twinspeed\":{\"sequence_length\":32,\"seed\":7}}\n",
          FEW_STEPS, settings);
  fclose(file);
  run_jobs(0, path);
  file = fopen(path, "w");
  add_job(file, "exact", 2, "none", "");
  add_job(file, "codes", 2, "none", ",\"zero_quantized_weights\":true");
  add_job(file, "near", 2, "full", ",\"zero_quantized_weights\":true,\"zero_hpz_partition_size\":2");
  add_job(file, "host", 1, "none", ",\"zero_quantized_weights\":true,\"offload_param\":{\"device\":\"cpu\"}");
  fclose(file);
  run_jobs(2, path);
  same_curves(find(2, "near"), find(2, "codes"));
  double mean = 0, apart = 0;
  const curve *reference = find(0, "codes-4-one"), *exact = find(2, "exact"), *c = find(2, "codes");
  ck_assert_mem_eq(find(2, "host")->loss, reference->loss, FEW_STEPS * sizeof *c->loss);
  for (int s = 0; s < FEW_STEPS; s++) {
    const double error = fabs(c->loss[s] / reference->loss[s] - 1);
    ck_assert_msg(s > 3 || error <= (s ? 1e-6 : 1e-7), "codes, step %d: loss %.9g, not %.9g", s + 1, c->loss[s],
                  reference->loss[s]);
    mean += error / FEW_STEPS;
    apart = fmax(apart, fabs(c->loss[s] / exact->loss[s] - 1));
    if (s == 0) ck_assert_double_gt(apart, 1e-6);
  }
  printf(
      "gathered codes: losses differ from the reference's by %.2g on average, from those of exact weights by up to "
      "%.2g\n",
      mean, apart);
  ck_assert_double_lt(mean, 1e-4);
  ck_assert_double_gt(apart, TWS_SANITIZED ? 1e-4 : 4e-4); /* of few steps less */
  ck_assert_double_lt(apart, 0.02);
}
END_TEST

/* ---- qgZ ---- */

/* Gradients that are quantized once, or per node first, give the same losses twice, close to those of exact gradients,
 * and the model learns as much. Codes of 4 bits have errors of up to a 14th of a block's largest value. */
START_TEST(quantized_reductions) {
  static const char *const names[] = {"all", "nodes", "near", "half"};
  static const char coded[] = ",\"zero_quantized_gradients\":true";
  const char *path = in_folder("jobs");
  char more[200];
  FILE *file = fopen(path, "w");
  for (int near = 2; near <= 4; near += 2)
    fprintf(file,
            "levels-%d-one\ttiny-llama\t%d\t{%s,\"train_micro_batch_size_per_gpu\":2,"
            "\"twinspeed\":{\"sequence_length\":32,\"seed\":7}}\n",
            near, FEW_STEPS, settings);
  fclose(file);
  run_jobs(0, path);
  file = fopen(path, "w");
  add_job(file, "exact", 1, "none", "");
  add_job(file, "all", 1, "none", coded);
  snprintf(more, sizeof more, "%s,\"zero_hpz_partition_size\":2", coded);
  add_job(file, "near", 1, "none", more);
  add_job(file, "near-again", 1, "none", more);
  snprintf(more, sizeof more, "%s,\"zero_quantized_weights\":true},\"bf16\":{\"enabled\":true", coded);
  add_job(file, "half", 2, "none", more);
  fprintf(file,
          "nodes\ttiny-llama\t%d\t{%s,\"train_micro_batch_size_per_gpu\":2,\"zero_optimization\":{\"stage\":3,"
          "\"reduce_bucket_size\":20000,\"stage3_param_persistence_threshold\":100%s},"
          "\"twinspeed\":{\"sequence_length\":32,\"seed\":7,\"zero_node_ranks\":2}}\n",
          FEW_STEPS, settings, coded);
  fclose(file);
  run_jobs(2, path);
  same_curves(find(2, "near"), find(2, "near-again"));
  same_curves(find(2, "near"), find(2, "nodes"));
  for (int i = 0; i < 3; i++) {
    const curve *c = find(2, names[i]), *reference = find(0, i ? "levels-2-one" : "levels-4-one");
    double worst = 0;
    for (int s = 0; s < FEW_STEPS; s++) {
      const double error = fabs(c->loss[s] / reference->loss[s] - 1);
      ck_assert_msg(error < (s < 6 ? 5e-6 : 2e-3), "%s, step %d: loss %.9g, not %.9g", c->name, s + 1, c->loss[s],
                    reference->loss[s]);
      worst = fmax(worst, error);
    }
    printf("%s: losses differ from the reference's by %.2g\n", c->name, worst);
  }
  for (int i = 0; i < 4; i++) {
    const curve *c = find(2, names[i]), *exact = find(2, "exact");
    double apart = 0;
    for (int s = 0; s < FEW_STEPS; s++) apart = fmax(apart, fabs(c->loss[s] / exact->loss[s] - 1));
    const double norm = fabs(c->norm[0] / exact->norm[0] - 1);
    printf("%s: the first norm is off by %.2g, losses by up to %.2g\n", c->name, norm, apart);
    ck_assert_double_lt(norm, 0.03);
    ck_assert_double_gt(norm, 1e-6);
    ck_assert_double_lt(apart, 0.03);
  }
}
END_TEST

/* ---- bytes between nodes ---- */

static tws_job *job_of(const char *const *set) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_error err = {0};
  tws_job *job;
  spec.model = "gpt2";
  spec.cluster = "dgx-a100:4";
  spec.dtype = "bf16";
  spec.stage = 3;
  spec.sequence = 128;
  spec.micro_batch = 1;
  spec.accumulation = 2;
  while (*set) spec.set.item[spec.set.count++] = *set++;
  ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
  return job;
}

/* Returns the bytes that the first rank receives in collectives of a kind among ranks of several nodes. */
static double across_nodes(const tws_job *job, const tws_plan *plan, tws_collective collective) {
  double bytes = 0;
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_work *work = &plan->works[plan->ops[i].work];
    if (work->kind != TWS_OP_COLLECTIVE || work->code != collective) continue;
    const tws_group *g = &plan->groups[work->group];
    if (tws_mapping_ranks_on_first_node(&job->mapping, g->ranks, g->size) < g->size) bytes += (double)work->d[0];
  }
  return bytes;
}

static tws_plan *plan_of(const tws_job *job) {
  tws_plan *plan;
  tws_error err = {0};
  ck_assert_msg(tws_job_plan(job, 0, &plan, &err) == TWS_OK, "%s", err.message);
  return plan;
}

/* With secondary partitions one of four gathers in two micro-batches leaves the node; a rank keeps an eighth of the
 * gathered weights. */
START_TEST(gathers_stay_in_nodes) {
  tws_job *plain = job_of((const char *const[]){"zero_optimization.stage3_max_reuse_distance=0",
                                                "zero_optimization.stage3_prefetch_bucket_size=0", NULL});
  tws_job *near = job_of((const char *const[]){"zero_optimization.stage3_max_reuse_distance=0",
                                               "zero_optimization.stage3_prefetch_bucket_size=0",
                                               "zero_optimization.zero_hpz_partition_size=8", NULL});
  tws_plan *before = plan_of(plain), *after = plan_of(near);
  const double all = across_nodes(plain, before, TWS_COLLECTIVE_ALL_GATHER);
  const double fewer = across_nodes(near, after, TWS_COLLECTIVE_ALL_GATHER);
  printf("bytes that gathers bring from all nodes: %.4g, with secondary partitions %.4g\n", all, fewer);
  ck_assert_double_lt(fewer, 0.3 * all);
  uint64_t kept = 0;
  for (uint32_t i = 0; i < after->buffer_count; i++)
    if (strcmp(after->buffers[i].name, "secondary parameters") == 0) kept += after->buffers[i].bytes;
  const double eighth = 2.0 * (double)tws_network_params(plain->network, 0) / 8;
  ck_assert_double_le((double)kept, 1.001 * eighth);
  ck_assert_double_ge((double)kept, 0.99 * eighth);
  tws_plan_destroy(before);
  tws_plan_destroy(after);
  tws_job_destroy(plain);
  tws_job_destroy(near);
}
END_TEST

/* Quantized gathers transfer 8 bits and a scale per block in place of 16 bits. */
START_TEST(quantized_gathers_have_half_the_bytes) {
  tws_job *plain = job_of((const char *const[]){NULL});
  tws_job *coded = job_of((const char *const[]){"zero_optimization.zero_quantized_weights=true", NULL});
  tws_plan *before = plan_of(plain), *after = plan_of(coded);
  const double all = across_nodes(plain, before, TWS_COLLECTIVE_ALL_GATHER);
  const double fewer = across_nodes(coded, after, TWS_COLLECTIVE_ALL_GATHER);
  printf("bytes that gathers bring from all nodes: %.4g, as codes %.4g\n", all, fewer);
  ck_assert_double_lt(fewer, 0.503 * all);
  tws_plan_destroy(before);
  tws_plan_destroy(after);
  tws_job_destroy(plain);
  tws_job_destroy(coded);
}
END_TEST

/* Frozen weights of linear layers are stored and transferred as codes; this program's keys give the same plan as
 * DeepSpeed's key. */
START_TEST(quantized_frozen_weights) {
#define LORA "twinspeed.lora.r=8", "twinspeed.lora.target_modules=\"all-linear\""
  tws_job *plain = job_of((const char *const[]){LORA, NULL});
  tws_job *words = job_of((const char *const[]){LORA, "twinspeed.frozen_quantization.type=int8", NULL});
  tws_job *key =
      job_of((const char *const[]){LORA, "zero_optimization.zero_quantized_nontrainable_weights=true", NULL});
  tws_plan *before = plan_of(plain), *same = plan_of(words), *after = plan_of(key);
  tws_text texts[2] = {{0}, {0}};
  tws_error err = {0};
  ck_assert(tws_plan_print(same, 0, &texts[0], &err) == TWS_OK && tws_plan_print(after, 0, &texts[1], &err) == TWS_OK);
  ck_assert_str_eq(texts[0].data, texts[1].data);
  const double all = across_nodes(plain, before, TWS_COLLECTIVE_ALL_GATHER);
  const double fewer = across_nodes(key, after, TWS_COLLECTIVE_ALL_GATHER);
  printf("bytes that gathers bring from all nodes: %.4g, with frozen weights as codes %.4g\n", all, fewer);
  ck_assert_double_lt(fewer, 0.75 * all); /* tables stay as they are */
  for (int i = 0; i < 2; i++) tws_text_free(&texts[i]);
  tws_plan *plans[] = {before, same, after};
  tws_job *jobs[] = {plain, words, key};
  for (int i = 0; i < 3; i++) {
    tws_plan_destroy(plans[i]);
    tws_job_destroy(jobs[i]);
  }
}
END_TEST

/* Quantized reductions send 4 bits in place of 16, and one sum per node in place of the values of all its ranks. */
START_TEST(quantized_reductions_on_nodes) {
  tws_job *plain = job_of((const char *const[]){NULL});
  tws_job *coded = job_of(
      (const char *const[]){"zero_optimization.zero_quantized_gradients=true", "twinspeed.zero_node_ranks=8", NULL});
  tws_plan *before = plan_of(plain), *after = plan_of(coded);
  const double all = across_nodes(plain, before, TWS_COLLECTIVE_REDUCE_SCATTER);
  const double vectors = across_nodes(coded, after, TWS_COLLECTIVE_REDUCE_SCATTER);
  const double codes = across_nodes(coded, after, TWS_COLLECTIVE_ALL_TO_ALL);
  printf("bytes that reductions send to all nodes: %.4g, as codes %.4g and %.4g of vectors\n", all, codes, vectors);
  ck_assert_double_lt(codes, 0.26 / 8 * all);
  ck_assert_double_gt(codes, 0.24 / 8 * all);
  ck_assert_double_lt(vectors, 0.01 * all);
  tws_plan_destroy(before);
  tws_plan_destroy(after);
  tws_job_destroy(plain);
  tws_job_destroy(coded);
}
END_TEST

static uint64_t state_bytes(const tws_plan *plan, tws_category category) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < plan->buffer_count; i++)
    if (plan->buffers[i].lifetime == TWS_LIFETIME_STATE && plan->buffers[i].category == category)
      bytes += plan->buffers[i].bytes;
  return bytes;
}

/* A group within one node exchanges only gradients of its partitions with other nodes, once a step; a group of two
 * nodes receives an eighth of its gathered weights from the other node. The states take those of plain stage 3 times
 * the number of groups. */
START_TEST(groups_of_nodes) {
  tws_job *plain = job_of((const char *const[]){NULL});
  tws_job *group = job_of((const char *const[]){"zero_optimization.mics_shard_size=8", NULL});
  tws_job *flat = job_of((const char *const[]){"zero_optimization.mics_shard_size=16", NULL});
  tws_job *steps = job_of((const char *const[]){"zero_optimization.mics_shard_size=16",
                                                "zero_optimization.mics_hierarchical_params_gather=true",
                                                "twinspeed.zero_node_ranks=8", NULL});
  tws_plan *all = plan_of(plain), *one = plan_of(group), *two = plan_of(flat), *hops = plan_of(steps);
  ck_assert_double_eq(across_nodes(group, one, TWS_COLLECTIVE_ALL_GATHER), 0);
  ck_assert_double_eq(across_nodes(group, one, TWS_COLLECTIVE_REDUCE_SCATTER), 0);
  const double gradients = across_nodes(group, one, TWS_COLLECTIVE_ALL_REDUCE);
  const double parts = 2.0 * (double)tws_network_params(plain->network, 0) / 8;
  printf("bytes that groups add up between nodes: %.5g of %.5g\n", gradients, parts);
  ck_assert_double_ge(gradients, parts);
  ck_assert_double_le(gradients, 1.001 * parts);
  const double whole = across_nodes(flat, two, TWS_COLLECTIVE_ALL_GATHER);
  const double eighth = across_nodes(steps, hops, TWS_COLLECTIVE_ALL_GATHER);
  printf("bytes that a group of two nodes gathers between them: %.5g, in two steps %.5g\n", whole, eighth);
  ck_assert_double_gt(whole, 0);
  ck_assert_double_eq_tol(eighth, whole / 8, 1e-6 * whole);
  const tws_category kinds[] = {TWS_CATEGORY_PARAMETER, TWS_CATEGORY_MASTER, TWS_CATEGORY_MOMENT};
  for (int k = 0; k < 3; k++)
    ck_assert_double_eq_tol((double)state_bytes(one, kinds[k]) / (double)state_bytes(all, kinds[k]), 4, 0.01);
  tws_plan *plans[] = {all, one, two, hops};
  tws_job *jobs[] = {plain, group, flat, steps};
  for (int i = 0; i < 4; i++) {
    tws_plan_destroy(plans[i]);
    tws_job_destroy(jobs[i]);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("train_zeropp");
  TCase *c = tcase_create("train_zeropp");
  tcase_set_timeout(c, 300);
  tcase_add_test(c, secondary_parameters_are_the_same);
  tcase_add_test(c, groups_lose_what_all_ranks_do);
  tcase_add_test(c, groups_of_nodes);
  tcase_add_test(c, quantized_gathers);
  tcase_add_test(c, quantized_reductions);
  tcase_add_test(c, gathers_stay_in_nodes);
  tcase_add_test(c, quantized_gathers_have_half_the_bytes);
  tcase_add_test(c, quantized_frozen_weights);
  tcase_add_test(c, quantized_reductions_on_nodes);
  suite_add_tcase(suite, c);
  return run_training(suite);
}
