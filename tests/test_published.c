/* ctest: sampled */
/* Measured runs of other software: the file that comes with the program, and the scores of predictions. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "command.h"
#include "job/software_memory.h"
#include "models/hardware/runtime.h"
#include "tests/published.h"
#include "tests/sanitized.h"
#include "tests/suite.h"
#include "validation/cases.h"
#include "validation/evidence.h"

/* Predicted step times of the file's runs, by their numbers in the file, in memory that the processes of all tests
 * share: the comparison of groups makes them, and the table of evidence is compared with them. 0: not predicted yet. */
enum { MOST_RUNS = 1024 };
static double *predicted_s;

static double result_of(const tws_case *one, const char *key) {
  return cJSON_GetNumberValue(cJSON_GetObjectItem(cJSON_GetObjectItem(one->row, "result"), key));
}

/* The mean errors of each group of runs are within their bounds, which are those of the table in docs/accuracy.md. */
START_TEST(groups_are_predicted_within_their_bounds) {
  static const struct {
    const char *group;
    double time, memory;
    int least;
  } bounds[] = {{"sc21-table1", 4, 0, 6},    {"korthikanti-tab5", 8, 0, 4}, {"megatron2020-a100", 7, 0, 4},
                {"vtrain-single", 0, 0, 0},  {"vtrain-multi", 12, 0, 10},   {"llmfoundry", 10, 0, 15},
                {"bloom-prequel", 7, 6, 10}, {"jz-v100-mem", 10, 6, 1},     {"mlm-golden-tiny", 0, 4, 0},
                {"torchtitan", 12, 8, 3},    {"sc21-table2", 10, 0, 6},     {"ds-autotune-e2e", 15, 0, 5},
                {"jz-1b3", 12, 10, 3},       {"mt-nlg", 12, 0, 2},          {"llama3-405b", 8, 0, 1},
                {"stas-8b-z2", 25, 6, 1},    {"mbridge-skill", 10, 4, 3},   {"mbridge", 16, 0, 12},
                {"nemo2407", 10, 0, 5},      {"ds-bert-squad", 10, 0, 1},   {"stas-8b-z3off", 20, 5, 1}};
  tws_cases *cases = load(RUNS);
  ck_assert_int_le(cases->count, MOST_RUNS);
  /* under the sanitizers only every sixth group */
  for (size_t i = TWS_SANITIZED; i < sizeof bounds / sizeof *bounds; i += TWS_SANITIZED ? 6 : 1) {
    tws_case_comparison compared;
    tws_error err = {0};
    ck_assert_msg(tws_cases_compare(cases, &bounds[i].group, 1, NULL, &(tws_progress){0}, &compared, &err) == TWS_OK,
                  "%s", err.message);
    for (int k = 0; k < compared.count; k++)
      predicted_s[compared.results[k].of - cases->cases] = compared.results[k].predicted_s;
    const tws_case_group *g = &compared.groups[0];
    ck_assert_int_eq(compared.group_count, 1);
    ck_assert_int_ge(g->time_n, bounds[i].least);
    if (bounds[i].time > 0)
      ck_assert_msg(!(g->time_mape >= bounds[i].time), "%s: time off by %.1f %%", g->name, g->time_mape);
    if (strcmp(g->name, "vtrain-single") == 0) /* these times are composed of measured layers, and are scored
                                                * separately */
      ck_assert_msg(g->apart_n >= 20 && g->time_n == 0 && g->apart_mape < 14, "%d apart, %.1f %%", g->apart_n,
                    g->apart_mape);
    if (bounds[i].memory > 0) ck_assert_int_ge(g->mem_n, 1);
    if (bounds[i].memory > 0) ck_assert_msg(g->mem_mape < bounds[i].memory, "%s: memory %.1f %%", g->name, g->mem_mape);
    tws_case_comparison_free(&compared);
  }
  tws_cases_destroy(cases);
}
END_TEST

/* Every run becomes a job of as many ranks as it had GPUs, or is excluded with a reason that several runs share. */
START_TEST(each_run_is_a_job_or_says_why_not) {
  tws_cases *cases = load(RUNS);
  int jobs = 0;
  ck_assert_int_ge(cases->count, 200);
  for (int i = 0; i < cases->count; i++) {
    tws_job *job;
    tws_error err = {0};
    tws_code code = tws_case_job(cases, i, &job, &err);
    const double gpus =
        cJSON_GetNumberValue(cJSON_GetObjectItem(cJSON_GetObjectItem(cases->cases[i].row, "hardware"), "n_gpus"));
    jobs += code == TWS_OK;
    if (code == TWS_OK && gpus > 0) ck_assert_int_eq(tws_topology_world(&job->topology), (int)gpus);
    if (code != TWS_OK) ck_assert_msg(code == TWS_UNSUPPORTED || code == TWS_INVALID, "%s", err.message);
    if (code == TWS_UNSUPPORTED) ck_assert_ptr_null(strstr(err.message, cases->cases[i].id));
    if (code == TWS_OK) tws_job_destroy(job);
  }
  ck_assert_int_ge(jobs, 120);
  tws_cases_destroy(cases);
}
END_TEST

/* Hybrid shards are groups of ranks that each hold all partitions: as many ranks as the row says, or those of a
 * node. */
START_TEST(hybrid_shards_are_groups) {
  static const char id[] = "llmfoundry/a100_40gb-7b-s2048-g128-mb18-bf16-pure";
  tws_cases *cases = load(RUNS);
  const int at = find(cases, id);
  cJSON *parallel = cJSON_GetObjectItem((cJSON *)cases->cases[at].row, "parallel");
  tws_error err = {0};
  tws_job *job;
  for (int i = 0; i < 3; i++) {
    cJSON *fsdp = i ? cJSON_CreateNumber(i == 1 ? 8 : 32) : cJSON_CreateString("HYBRID_SHARD");
    ck_assert(fsdp && cJSON_ReplaceItemInObject(parallel, "fsdp", fsdp));
    ck_assert_msg(tws_case_job(cases, at, &job, &err) == TWS_OK, "%s", err.message);
    ck_assert_int_eq(tws_topology_size(&job->topology, TWS_AXES_DATA_COPIES), i == 2 ? 4 : 16);
    ck_assert_int_eq(tws_topology_size(&job->topology, TWS_AXES_DATA_SHARDS), i == 2 ? 32 : 8);
    tws_job_destroy(job);
  }
  ck_assert(cJSON_ReplaceItemInObject(parallel, "zero_stage", cJSON_CreateNumber(2)));
  ck_assert_int_eq(tws_case_job(cases, at, &job, &err), TWS_UNSUPPORTED);
  ck_assert_msg(strstr(err.message, "alone in a part of the replicas") != NULL, "%s", err.message);
  tws_cases_destroy(cases);
}
END_TEST

/* The predictions in the table of evidence equal the library's, for all runs that are both in the file and in that
 * table. Long pipelines are left out to save time. */
START_TEST(printed_predictions_are_the_librarys) {
  tws_cases *cases = load(RUNS);
  int count, checked = 0, published = 0;
  const tws_evidence_run *known = tws_evidence_runs(&count);
  ck_assert_int_gt(count, 1000);
  for (int i = 0; i < count; i++) {
    int index = 0;
    while (index < cases->count && strcmp(cases->cases[index].id, known[i].id) != 0) index++;
    if (index == cases->count) continue; /* the table of evidence also has runs that the file lacks */
    const tws_case *one = &cases->cases[index];
    tws_job *job;
    tws_error err = {0};
    ck_assert_msg(tws_case_job(cases, index, &job, &err) == TWS_OK, "%s: %s", one->id, err.message);
    if (tws_job_stages(job) <= 4 && job->config->accumulation_steps <= 64) {
      tws_case_prediction p = {.step_s = predicted_s[index]};
      if (!(p.step_s > 0))
        ck_assert_msg(tws_case_predict(one, job, NULL, &p, &err) == TWS_OK, "%s: %s", one->id, err.message);
      const double measured = tws_case_step_s(one, job), error = p.step_s / measured - 1;
      ck_assert_msg(fabs(tws_evidence_error(&known[i]) - error) < 0.02, "%s: the evidence has %.1f %%, it is %.1f %%",
                    one->id, 100 * tws_evidence_error(&known[i]), 100 * error);
      ck_assert_double_eq_tol(known[i].measured_s / measured, 1, 1e-3);
      const tws_evidence_key key = tws_evidence_describe(job, p.step_s);
      ck_assert_int_eq(known[i].key.gpus, key.gpus);
      ck_assert_double_eq_tol(known[i].key.parameters / key.parameters, 1, 1e-3);
      ck_assert_int_eq(known[i].key.stage, key.stage);
      ck_assert_int_eq(known[i].key.model, key.model);
      ck_assert_str_eq(known[i].key.runtime, key.runtime);
      ck_assert_int_eq(known[i].key.generation, key.generation);
      ck_assert_ptr_nonnull(strstr(key.gpu, known[i].key.gpu));
      if (known[i].part != TWS_EVIDENCE_APART)
        ck_assert_int_eq(known[i].part == TWS_EVIDENCE_FITTING, tws_case_is_for_fitting(one->id));
      published += tws_evidence_of_job(job, p.step_s).kind == TWS_EVIDENCE_PUBLISHED;
      checked++;
    }
    tws_job_destroy(job);
  }
  ck_assert_int_ge(checked, 60);
  ck_assert_int_ge(published, checked * 9 / 10);
  tws_cases_destroy(cases);
}
END_TEST

/* The papers' closed formula equals the sum of the network's products: with recomputation layers run forward twice,
 * backward costs twice the forward pass, and logits are not recomputed. Stated times follow from stated rates. */
START_TEST(formula_counts_the_networks_products) {
  tws_cases *cases = load(RUNS);
  int checked = 0;
  for (int i = 0; i < cases->count; i++) {
    const tws_case *one = &cases->cases[i];
    tws_job *job;
    tws_error err = {0};
    if (strncmp(one->group, "sc21", 4) != 0 || strstr(one->id, "ZeRO3")) continue;
    ck_assert_int_eq(tws_case_job(cases, i, &job, &err), TWS_OK);
    double sequence = (double)job->config->sequence_length, samples = (double)job->config->train_batch_size;
    double logits = 2.0 * (double)job->network->hidden * (double)job->network->padded_vocabulary;
    double layers = tws_network_flops_per_token(job->network, job->config->sequence_length, 0, 0) -
                    2.0 * (double)job->network->hidden * (double)job->network->vocabulary;
    for (int recomputed = 0; recomputed < 2; recomputed++) {
      double expected = samples * sequence * ((recomputed ? 4 : 3) * layers + 3 * logits);
      ck_assert_double_eq_tol(tws_case_flops(job->network, samples, sequence, recomputed) / expected, 1, 1e-12);
    }
    tws_case rate = *one; /* the same run without its stated time */
    rate.measured_s = 0;
    ck_assert_double_eq_tol(tws_case_step_s(&rate, job) / tws_case_step_s(one, job), 1, 0.02);
    ck_assert_double_eq_tol(tws_case_step_s(one, job), result_of(one, "iter_time_s"), 1e-9);
    checked++;
    tws_job_destroy(job);
  }
  ck_assert_int_ge(checked, 9);
  tws_cases_destroy(cases);
}
END_TEST

/* Predicted memory of adapters is within 3 % of the measured one, with 4-bit weights within 6 %, without a fitted
 * figure; a run that exhausted memory is predicted not to fit. */
START_TEST(memory_of_adapters) {
  tws_cases *cases = load(RUNS);
  int alone = 0, several = 0, full = 0, quantized = 0, scales = 0;
  for (int i = 0; i < cases->count; i++) {
    const tws_case *one = &cases->cases[i];
    tws_job *job;
    tws_case_prediction p;
    tws_error err = {0};
    const int twice = strstr(one->id, "-bnb.nf4-dq-mb") != NULL, few = twice || strstr(one->id, "-bnb.nf4-mb") != NULL;
    if (strncmp(one->id, "litgpt/lora-", 12) != 0 || (!few && !strstr(one->id, "-None-"))) continue;
    ck_assert_msg(tws_case_job(cases, i, &job, &err) == TWS_OK, "%s: %s", one->id, err.message);
    ck_assert_msg(tws_case_predict(one, job, NULL, &p, &err) == TWS_OK, "%s: %s", one->id, err.message);
    const int single = tws_topology_world(&job->topology) == 1;
    if (one->measured_bytes > 0) {
      const double error = p.bytes / one->measured_bytes - 1;
      ck_assert_msg(fabs(error) < (few ? 0.06 : 0.03), "%s: memory is %+.1f %% off", one->id, 100 * error);
      *(twice ? &scales : few ? &quantized : single ? &alone : &several) += 1;
    } else {
      ck_assert_msg(p.bytes > 40e9, "%s ran out of memory: %g bytes", one->id, p.bytes);
      full++;
    }
    ck_assert_double_eq(one->measured_s, 0);
    tws_job_destroy(job);
  }
  ck_assert_msg(alone == 6 && several == 8 && quantized == 4 && scales == 2 && full >= 3,
                "%d alone, %d on several GPUs, %d of 4 bits, %d with scales of 8, %d full", alone, several, quantized,
                scales, full);
  tws_cases_destroy(cases);
}
END_TEST

/* Predicted memory of torchtune's recipes, without a fitted figure; rows that leave something out are refused with the
 * reason. */
START_TEST(memory_of_recipes) {
  tws_cases *cases = load(RUNS);
  int planned = 0, adapters = 0, refused = 0;
  for (int i = 0; i < cases->count; i++) {
    const tws_case *one = &cases->cases[i];
    tws_job *job;
    tws_case_prediction p;
    tws_error err = {0};
    if (strncmp(one->id, "torchtune/", 10) != 0) continue;
    if (tws_case_job(cases, i, &job, &err) != TWS_OK) {
      ck_assert_msg(strstr(err.message, "optimizer") != NULL, "%s: %s", one->id, err.message);
      refused++;
      continue;
    }
    ck_assert_msg(tws_case_predict(one, job, NULL, &p, &err) == TWS_OK, "%s: %s", one->id, err.message);
    const double error = p.bytes / one->measured_bytes - 1, most = job->config->lora.r > 0 ? 0.05 : 0.06;
    ck_assert_msg(fabs(error) < most, "%s: memory is %+.1f %% off", one->id, 100 * error);
    adapters += job->config->lora.r > 0;
    planned++;
    tws_job_destroy(job);
  }
  ck_assert_msg(planned == 6 && adapters == 4 && refused == 2, "%d planned, %d of adapters, %d refused", planned,
                adapters, refused);
  tws_cases_destroy(cases);
}
END_TEST

/* Predicted memory of Megatron's small tests with experts: each layer has experts, as wide as the row says or as a
 * dense layer, and divided among tensor ranks like dense layers; other rows are refused. */
START_TEST(memory_of_tests_with_experts) {
  tws_cases *cases = load(RUNS);
  int planned = 0, narrow = 0, refused = 0;
  for (int i = 0; i < cases->count; i++) {
    const tws_case *one = &cases->cases[i];
    const cJSON *stated = cJSON_GetObjectItem(cJSON_GetObjectItem(one->row, "all_args"), "moe-ffn-hidden-size");
    tws_job *job;
    tws_case_prediction p;
    tws_error err = {0};
    if (strncmp(one->id, "mlm-golden-moe-gpt3_", 20) != 0) continue;
    if (strstr(one->id, "_etp2_")) {
      ck_assert_int_eq(tws_case_job(cases, i, &job, &err), TWS_UNSUPPORTED);
      ck_assert_msg(strstr(err.message, "other tensor ranks") != NULL, "%s", err.message);
      refused++;
      continue;
    }
    ck_assert_msg(tws_case_job(cases, i, &job, &err) == TWS_OK, "%s: %s", one->id, err.message);
    const double inner = cJSON_IsNumber(stated) ? stated->valuedouble : 2048, attention = 4 * 512 * 512;
    const double experts = 8 * 2 * 512 * inner, tables = (50257 + 1024) * 512.0;
    const double want = 12 * (attention + experts) + tables, found = (double)tws_network_params(job->network, 0);
    ck_assert_msg(fabs(found / want - 1) < 0.01, "%s: %g parameters, not %g", one->id, found, want);
    ck_assert_int_eq(job->config->expert_tensor_parallel, job->config->tensor_ranks > 1);
    ck_assert_int_eq(tws_case_predict(one, job, NULL, &p, &err), TWS_OK);
    ck_assert_msg(fabs(p.bytes / one->measured_bytes - 1) < 0.1, "%s: %g bytes, measured %g", one->id, p.bytes,
                  one->measured_bytes);
    tws_job_destroy(job);
    narrow += cJSON_IsNumber(stated);
    planned++;
  }
  ck_assert_msg(planned >= 4 && narrow >= 1 && refused >= 1, "%d planned, %d narrow, %d refused", planned, narrow,
                refused);
  tws_cases_destroy(cases);
}
END_TEST

/* Predicted memory of Megatron's BERT in a pipeline, which is that of the last stage, without a fitted figure. */
START_TEST(memory_of_berts_tests) {
  tws_cases *cases = load(RUNS);
  int planned = 0;
  for (int i = 0; i < cases->count; i++) {
    const tws_case *one = &cases->cases[i];
    tws_job *job;
    tws_case_prediction p;
    tws_error err = {0};
    if (strncmp(one->id, "mlm-golden-bert-bert_mcore", 26) != 0) continue;
    ck_assert_msg(tws_case_job(cases, i, &job, &err) == TWS_OK, "%s: %s", one->id, err.message);
    ck_assert_int_eq(tws_topology_world(&job->topology), 8);
    ck_assert_int_eq(job->config->virtual_stages, job->config->pipeline_stages == 4 ? 3 : 1);
    ck_assert_int_eq(tws_case_predict(one, job, NULL, &p, &err), TWS_OK);
    ck_assert_msg(fabs(p.bytes / one->measured_bytes - 1) < 0.03, "%s: %g bytes, measured %g", one->id, p.bytes,
                  one->measured_bytes);
    tws_job_destroy(job);
    planned++;
  }
  ck_assert_int_ge(planned, 2);
  tws_cases_destroy(cases);
}
END_TEST

/* ZeRO-3 with the optimizer on the host: with short sequences the peak is before the first step, because the runs'
 * script partitions a model that is whole on each device. */
START_TEST(memory_of_offloaded_runs) {
  tws_cases *cases = load(RUNS);
  int checked = 0;
  for (int i = 0; i < cases->count; i++) {
    const tws_case *one = &cases->cases[i];
    tws_job *job;
    tws_case_prediction p;
    tws_profile *profile;
    tws_error err = {0};
    if (strcmp(one->group, "stas-8b-z3off") != 0) continue;
    ck_assert_msg(tws_case_job(cases, i, &job, &err) == TWS_OK, "%s: %s", one->id, err.message);
    ck_assert_int_eq(job->config->zero.offload_optimizer, 1);
    ck_assert_int_eq(tws_case_predict(one, job, NULL, &p, &err), TWS_OK);
    const double whole = 2 * (double)tws_network_params(job->network, 0);
    ck_assert_double_eq_tol(tws_job_software_peak(job, 0, 0) / whole, 1, 1e-9);
    if (job->config->sequence_length == 8192) ck_assert_double_eq_tol(p.bytes / (1.06 * whole), 1, 1e-3);
    ck_assert_msg(fabs(p.bytes / one->measured_bytes - 1) < 0.1, "%s: %g bytes, measured %g", one->id, p.bytes,
                  one->measured_bytes);
    /* a model that is partitioned while it is created is never whole on a device; the copies of buckets are needed in
     * both cases */
    ck_assert_int_eq(tws_profile_load(tws_profile_name(job->profile), &profile, &err), TWS_OK);
    ck_assert_int_eq(tws_profile_set_runtime(profile, tws_runtime_find("deepspeed-flash"), &err), TWS_OK);
    tws_job_set_profile(job, profile);
    ck_assert_double_eq(tws_job_software_peak(job, 0, 0), tws_job_software_bytes(job));
    ck_assert_double_eq(tws_job_software_bytes(job), 2 * (double)job->config->zero.reduce_bucket_size);
    tws_job_destroy(job);
    checked++;
  }
  ck_assert_int_ge(checked, 2);
  tws_cases_destroy(cases);
}
END_TEST

/* With ZeRO-2 DeepSpeed holds, in addition to the plan's bucket, a second bucket, a flattened copy of the largest
 * gradient, which is larger than a bucket, and that gradient; a step holds six more bytes per parameter of its shard.
 * The published figure is reserved memory. */
START_TEST(memory_of_runs_of_stage_2) {
  tws_cases *cases = load(RUNS);
  int checked = 0;
  for (int i = 0; i < cases->count; i++) {
    const tws_case *one = &cases->cases[i];
    tws_job *job;
    tws_case_prediction p;
    tws_error err = {0};
    if (strcmp(one->group, "stas-8b-z2") != 0) continue;
    ck_assert_int_eq(one->counts, TWS_CASE_RESERVED);
    ck_assert_msg(tws_case_job(cases, i, &job, &err) == TWS_OK, "%s: %s", one->id, err.message);
    const double largest = 4096.0 * 128256, held = 2 * (5e8 + 2 * largest), step = 6 * 8030261248.0 / 8;
    ck_assert_double_eq_tol(tws_job_software_bytes(job) / held, 1, 1e-9);
    const tws_stage_estimate stage = {.layers = 32, .parameters = 8030261248.0};
    ck_assert_double_eq_tol(tws_software_stage_reserved(job, &stage) / (1.06 * (held + step)), 1, 1e-9);
    ck_assert_int_eq(tws_case_predict(one, job, NULL, &p, &err), TWS_OK);
    ck_assert_msg(fabs(p.bytes / one->measured_bytes - 1) < 0.06, "%s: %g bytes, measured %g", one->id, p.bytes,
                  one->measured_bytes);
    job->config->zero.overlap_comm = 0;
    ck_assert_double_eq_tol(tws_job_software_bytes(job) / (4 * largest), 1, 1e-9);
    job->config->zero.stage = 1;
    ck_assert_double_eq(tws_job_software_bytes(job), 0);
    tws_job_destroy(job);
    checked++;
  }
  ck_assert_int_ge(checked, 1);
  tws_cases_destroy(cases);
}
END_TEST

/* Recomputed layers hold no memory while the loss is computed, and their inputs are on the host, as in the runs'
 * scripts: the jobs that ran are predicted to fit. */
START_TEST(memory_of_runs_with_partitioned_checkpoints) {
  tws_cases *cases = load(RUNS);
  int checked = 0;
  for (int i = 0; i < cases->count; i++) {
    const tws_case *one = &cases->cases[i];
    tws_job *job;
    tws_case_prediction p;
    tws_error err = {0};
    if (strncmp(one->id, "jz-v100/", 8) != 0 || !strstr(one->id, "-z3")) continue;
    ck_assert_msg(tws_case_job(cases, i, &job, &err) == TWS_OK, "%s: %s", one->id, err.message);
    ck_assert_int_eq(job->config->partition_activations, strstr(one->id, "-tp1-") == NULL);
    ck_assert_int_eq(job->config->cpu_checkpointing, 1);
    /* 56.4 of the 400 Gbit/s of a node's four ports, as all-reduces among 16 of these nodes were measured */
    ck_assert_double_eq_tol(job->cluster.inter.bandwidth * job->cluster.nics_per_node, 56.4e9 / 8, 0.1e9);
    ck_assert_int_eq(tws_case_predict(one, job, NULL, &p, &err), TWS_OK);
    ck_assert_msg(p.fits && one->out_of_memory == 0, "%s: %g bytes", one->id, p.bytes);
    const double apart = tws_job_software_peak(job, 20e9, 10e9), together = tws_job_software_peak(job, 20e9, 0);
    const double logits = 10 * (double)job->config->micro_batch_size * (double)job->config->sequence_length *
                          (double)job->network->padded_vocabulary /
                          (double)(job->config->tensor_ranks > 0 ? job->config->tensor_ranks : 1);
    ck_assert_double_eq_tol(together - apart, logits, 1);
    tws_job_destroy(job);
    checked++;
  }
  ck_assert_int_ge(checked, 2);
  tws_cases_destroy(cases);
}
END_TEST

/* ---- scores ---- */

/* Scores equal their definitions, for runs of the same job whose measured time is the prediction times a factor. */
START_TEST(scores_equal_their_definitions) {
  static const double factors[] = {1, 0.8, 1.25, 0.5};
  tws_cases *cases = cases_of("[" ROW("a", "1", "1", "false") "," ROW("b", "1", "2", "true") "," ROW(
                                  "c", "1", "1", "false") "," ROW("d", "1", "1", "false") "]",
                              TWS_OK, "");
  tws_job *job;
  tws_case_prediction p;
  tws_error err = {0};
  ck_assert_msg(tws_case_job(cases, 0, &job, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(tws_case_predict(&cases->cases[0], job, NULL, &p, &err), TWS_OK);
  for (int i = 0; i < 4; i++) {
    cases->cases[i].measured_s = p.step_s * factors[i];
    cases->cases[i].measured_bytes = i == 1 ? 2 * p.bytes : 0;
  }
  tws_case_comparison compared;
  ck_assert_int_eq(tws_cases_compare(cases, NULL, 0, NULL, &(tws_progress){0}, &compared, &err), TWS_OK);
  const tws_case_group *g = &compared.groups[0];
  ck_assert_int_eq(g->n, 4);
  ck_assert_double_eq_tol(g->time_mape, (0 + 25 + 20 + 100) / 4.0, 1e-6);
  ck_assert_double_eq_tol(g->time_bias, (0 + 25 - 20 + 100) / 4.0, 1e-6);
  ck_assert_double_eq_tol(g->time_median_ape, 22.5, 1e-6);
  ck_assert_double_eq_tol(g->within_10, 25, 1e-9);
  ck_assert_double_eq_tol(g->concordance, 0.5, 1e-9); /* all are predicted alike */
  ck_assert_int_eq(g->mem_n, 1);
  ck_assert_double_eq_tol(g->mem_mape, 50, 1e-6);
  ck_assert_int_eq(g->oom_right, 3);
  ck_assert_int_eq(g->oom_wrong, 1);
  tws_case_comparison_free(&compared);
  tws_job_destroy(job);
  tws_cases_destroy(cases);
}
END_TEST

/* ---- refusals ---- */

START_TEST(bad_files_are_refused_with_the_place) {
  cases_of("{}", TWS_INVALID, "must be a list");
  cases_of("[1]", TWS_INVALID, "must be an object");
  cases_of("[{\"id\":\"a\"}]", TWS_INVALID, "group");
  cases_of("[{\"id\":\"a\",\"group\":\"g\",\"model\":3}]", TWS_INVALID, "\"model\" must be an object");
  cases_of("[{\"id\":\"a\",\"group\":\"g\"},{\"id\":\"a\",\"group\":\"g\"}]", TWS_INVALID, "a second run");
}
END_TEST

/* ---- the verb ---- */

/* Excluded runs are predicted and listed, and the means are those of the other runs. */
START_TEST(doubtful_runs_are_not_scored) {
  command_result result = twinspeed("validate --cases " RUNS " --group vtrain-multi --json");
  ck_assert_msg(result.status == 0, "%s", result.err);
  cJSON *json = cJSON_Parse(result.out);
  const cJSON *group = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "groups"), 0), *item;
  double sum = 0;
  int count = 0, doubtful = 0;
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(json, "cases")) {
    const double predicted = cJSON_GetObjectItem(item, "predicted_s")->valuedouble;
    ck_assert_double_gt(predicted, 0);
    if (cJSON_HasObjectItem(item, "doubt")) {
      doubtful++;
      ck_assert_str_eq(cJSON_GetObjectItem(item, "id")->valuestring, "vtrain-multi/0075");
      continue;
    }
    sum += 100 * fabs(predicted / cJSON_GetObjectItem(item, "measured_s")->valuedouble - 1);
    count++;
  }
  ck_assert_int_eq(doubtful, 1);
  ck_assert_int_eq(cJSON_GetObjectItem(group, "n")->valueint, count + 1);
  ck_assert_double_eq_tol(cJSON_GetObjectItem(group, "time_mape")->valuedouble, sum / count, 1e-9);
  cJSON_Delete(json);
  command_free(&result);
}
END_TEST

START_TEST(the_verb_prints_what_the_library_predicts) {
  static const char *const keys[] = {"group",           "n",         "skipped",   "time_mape",
                                     "time_median_ape", "time_bias", "within_10", "concordance",
                                     "mem_n",           "mem_mape",  "oom_right", "oom_wrong"};
  tws_cases *cases = load(RUNS);
  int index = find(cases, "sc21-table1/1.7B");
  tws_job *job;
  tws_case_prediction prediction;
  tws_error err = {0};
  ck_assert_int_eq(tws_case_job(cases, index, &job, &err), TWS_OK);
  ck_assert_int_eq(tws_case_predict(&cases->cases[index], job, NULL, &prediction, &err), TWS_OK);
  command_result result = twinspeed("validate --cases " RUNS " --group sc21-table1 --group ds-bert-squad --json");
  ck_assert_msg(result.status == 0, "%s", result.err);
  cJSON *json = cJSON_Parse(result.out);
  const cJSON *groups = cJSON_GetObjectItem(json, "groups"), *all = cJSON_GetObjectItem(json, "cases"), *item;
  ck_assert_int_eq(cJSON_GetArraySize(groups), 2);
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    ck_assert_msg(cJSON_HasObjectItem(cJSON_GetArrayItem(groups, 0), keys[i]), "%s", keys[i]);
  int found = 0, skipped = 0;
  cJSON_ArrayForEach(item, all) {
    skipped += cJSON_IsString(cJSON_GetObjectItem(item, "skipped_because"));
    if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(item, "id")), "sc21-table1/1.7B") != 0) continue;
    double step = cJSON_GetNumberValue(cJSON_GetObjectItem(item, "predicted_s"));
    ck_assert_double_eq_tol(step, prediction.step_s, 1e-9);
    ck_assert_double_eq_tol(cJSON_GetNumberValue(cJSON_GetObjectItem(item, "measured_s")), 3.515, 1e-9);
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(item, "skipped_because")));
    found = 1;
  }
  ck_assert(found);
  ck_assert_double_eq(cJSON_GetNumberValue(cJSON_GetObjectItem(cJSON_GetArrayItem(groups, 1), "skipped")), skipped);
  cJSON_Delete(json);
  command_free(&result);
  result = twinspeed("validate --cases " RUNS " --group sc21-table1 --worst 2 --tolerance 0.0001");
  ck_assert_int_eq(result.status, 1);
  ck_assert_ptr_nonnull(strstr(result.out, "farthest off"));
  command_free(&result);
  result = twinspeed("validate --cases " RUNS " --group ds-bert-squad");
  ck_assert_int_eq(result.status, 0);
  ck_assert_ptr_nonnull(strstr(result.out, "encoder models"));
  command_free(&result);
  result = twinspeed("validate --cases " RUNS " --group nothing-of-that-name");
  ck_assert_int_eq(result.status, 2);
  command_free(&result);
  tws_job_destroy(job);
  tws_cases_destroy(cases);
}
END_TEST

int main(void) {
  predicted_s = mmap(NULL, MOST_RUNS * sizeof *predicted_s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (predicted_s == MAP_FAILED) return EXIT_FAILURE;
  Suite *suite = suite_create("published");
  TCase *tests = tcase_create("published");
  tcase_set_timeout(tests, 240);
  tcase_add_test(tests, groups_are_predicted_within_their_bounds);
  tcase_add_test(tests, each_run_is_a_job_or_says_why_not);
  tcase_add_test(tests, hybrid_shards_are_groups);
  tcase_add_test(tests, printed_predictions_are_the_librarys);
  tcase_add_test(tests, doubtful_runs_are_not_scored);
  tcase_add_test(tests, formula_counts_the_networks_products);
  tcase_add_test(tests, memory_of_adapters);
  tcase_add_test(tests, memory_of_recipes);
  tcase_add_test(tests, memory_of_tests_with_experts);
  tcase_add_test(tests, memory_of_berts_tests);
  tcase_add_test(tests, memory_of_offloaded_runs);
  tcase_add_test(tests, memory_of_runs_of_stage_2);
  tcase_add_test(tests, memory_of_runs_with_partitioned_checkpoints);
  tcase_add_test(tests, scores_equal_their_definitions);
  tcase_add_test(tests, bad_files_are_refused_with_the_place);
  tcase_add_test(tests, the_verb_prints_what_the_library_predicts);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
