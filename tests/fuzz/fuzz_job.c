/* A whole job: model, configuration and cluster, one after the other with a line "---" between them. An accepted job is
 * lowered for every rank; each plan verifies, alone and with the others, has a ledger that adds up, and an estimate. A
 * refused job has a reason. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "estimators/estimators.h"
#include "job/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RANKS = 8 };

static void require(int condition) {
  if (!condition) abort();
}

static int refused(tws_code code, const tws_error *err) {
  if (code == TWS_OK) return 0;
  require((code == TWS_INVALID || code == TWS_UNSUPPORTED) && err->message[0]);
  return 1;
}

/* Returns the next document and moves *at past it; NULL: the document is not JSON. */
static tws_json *next_document(const char **at, const char *end) {
  tws_json *json = NULL;
  const char *stop = memmem(*at, (size_t)(end - *at), "\n---\n", 5), *from = *at;
  *at = stop ? stop + 5 : end;
  return tws_json_parse(from, (size_t)((stop ? stop : end) - from), "fuzz", &json, NULL) == TWS_OK ? json : NULL;
}

/* What takes milliseconds. */
static int is_small(const tws_network *n) {
  return n->layers <= 4 && n->hidden <= 256 && n->vocabulary <= 4096 && n->positions <= 4096 && n->heads <= 64 &&
         n->module_count <= 96 && tws_network_params(n, 0) <= 4000000;
}

static int is_short(const tws_config *c) {
  return c->sequence_length <= 256 && c->micro_batch_size <= 8 && c->accumulation_steps <= 12 &&
         c->tensor_chunks <= 8 && c->loss_tiles <= 8 && c->mlp_tiles <= 8 && c->virtual_stages <= 4 &&
         c->zero.reduce_bucket_size >= 64 && c->zero.sub_group_size >= 64 &&
         (c->zero.stage < 3 || c->zero.prefetch_bucket_size >= 64);
}

static void check_ledger(const tws_plan *plan) {
  tws_ledger ledger;
  require(tws_ledger_read(plan, &ledger, NULL) == TWS_OK);
  for (int t = 0; t < TWS_TIER_COUNT; t++) {
    uint64_t sum = 0;
    for (int c = 0; c < TWS_CATEGORY_COUNT; c++) sum += ledger.tier[t].category[c];
    require(sum == ledger.tier[t].live_bytes && ledger.tier[t].arena_bytes >= sum);
  }
}

static void lower_job(tws_job *job) {
  tws_plan *plans[RANKS] = {NULL};
  tws_estimate estimate;
  tws_error err = {0};
  int built = 0;
  while (built < job->ranks) {
    const tws_code code = tws_job_plan(job, built, &plans[built], &err);
    if (refused(code, &err)) break;
    require(tws_plan_verify(plans[built], &err) == TWS_OK);
    check_ledger(plans[built]);
    built++;
  }
  require(built == 0 || built == job->ranks); /* all ranks or none */
  if (built) {
    require(tws_plans_verify((const tws_plan *const *)plans, built, &err) == TWS_OK);
    if (!refused(tws_job_estimate(job, &estimate, NULL, &err), &err))
      require(estimate.step_s > 0 && isfinite(estimate.step_s) &&
              estimate.ledger.tier[TWS_TIER_DEVICE].arena_bytes > 0);
  }
  for (int i = 0; i < built; i++) tws_plan_destroy(plans[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *at = (const char *)data, *end = at + size;
  tws_json *model = next_document(&at, end), *settings = next_document(&at, end), *machine = next_document(&at, end);
  tws_job_parts_given parts = {0};
  tws_job *job = NULL;
  tws_error err = {0};
  const int read =
      model && settings && machine && tws_config_from_json(settings, &parts.config, NULL) == TWS_OK &&
      tws_cluster_from_json(machine, &parts.cluster, NULL) == TWS_OK &&
      tws_network_from_json(model, tws_config_vocabulary_multiple(parts.config), &parts.network, NULL) == TWS_OK &&
      is_small(parts.network) && tws_profile_load("a100-80gb", &parts.profile, NULL) == TWS_OK;
  if (read) {
    const int64_t devices = (int64_t)parts.cluster.nodes * parts.cluster.devices_per_node;
    parts.ranks = devices < RANKS ? (int)devices : RANKS;
    const tws_code code = tws_job_assemble(&parts, &job, &err);
    if (!refused(code, &err) && is_short(job->config)) lower_job(job);
  } else {
    tws_network_destroy(parts.network);
    tws_config_destroy(parts.config);
    tws_profile_destroy(parts.profile);
  }
  tws_job_destroy(job);
  tws_json_destroy(model);
  tws_json_destroy(settings);
  tws_json_destroy(machine);
  return 0;
}
