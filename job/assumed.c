#include "job/assumed.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/units.h"

/* Number of parameters from which on the assumption of float32 is reported with a reason, because float32 costs more
 * than most users expect. */
#define LARGE_MODEL 1e9

static tws_assumption *add(tws_assumption *list, int *count, const char *what, const char *give, const char *format,
                           ...) __attribute__((format(printf, 5, 6)));
static tws_assumption *add(tws_assumption *list, int *count, const char *what, const char *give, const char *format,
                           ...) {
  tws_assumption *one = &list[(*count)++];
  *one = (tws_assumption){.what = what, .give = give};
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(one->value, sizeof one->value, format, arguments);
  va_end(arguments);
  return one;
}

static void add_type(const tws_job *job, tws_assumption *list, int *count) {
  const tws_dtype dtype = job->network->dtype;
  tws_assumption *one = add(list, count, "type", "--dtype TYPE", "%s", tws_dtype_name(dtype));
  if (dtype != TWS_F32)
    snprintf(one->reason, sizeof one->reason, "as the model's file has it");
  else
    snprintf(one->reason, sizeof one->reason, "as neither model nor configuration says one%s",
             (double)tws_network_params(job->network, 0) >= LARGE_MODEL ? ": did you mean --dtype bf16?" : "");
}

static void add_sequence(const tws_job *job, tws_assumption *list, int *count) {
  char tokens[40];
  tws_assumption *one = add(list, count, "sequence length", "--seq TOKENS", "%s tokens",
                            tws_format_integer(tws_job_sequence(job), tokens, sizeof tokens));
  snprintf(one->reason, sizeof one->reason,
           job->network->positions > 0 ? "all positions of the model" : "as the model has no limit");
}

/* Returns 1 if an expert layer takes its slots per expert from the configuration's capacity factor, not from the
 * model's file. */
static int has_configured_slots(const tws_network *network) {
  for (uint32_t m = 0; m < network->module_count; m++)
    if (network->modules[m].type == TWS_MODULE_ROUTER && network->modules[m].routing->slots.factor < 0) return 1;
  return 0;
}

static void add_capacity(const tws_job *job, tws_assumption *list, int *count) {
  static const char key[] = "twinspeed.expert_capacity_factor";
  const tws_config *config = job->config;
  if (config->expert_dropless || tws_config_has_key(config, key) || !has_configured_slots(job->network)) return;
  tws_assumption *one = add(list, count, "expert capacity factor",
                            "--set twinspeed.expert_capacity_factor=X, or --set twinspeed.expert_dropless=true", "%g",
                            config->expert_capacity_factor);
  snprintf(one->reason, sizeof one->reason, "so that an expert drops tokens beyond %g even shares",
           config->expert_capacity_factor);
}

static void add_margin(const tws_job *job, tws_assumption *list, int *count) {
  char bytes[32];
  if (job->backend == TWS_BACKEND_HOST || job->cluster.device_memory_bytes > 0) return;
  tws_assumption *one = add(list, count, "memory margin", "device_memory in a cluster file", "none");
  snprintf(one->reason, sizeof one->reason, "only %s of a device for context and libraries",
           tws_format_bytes(tws_profile_overhead_bytes(job->profile), bytes, sizeof bytes));
}

static void add_nics(const tws_job *job, tws_assumption *list, int *count) {
  const tws_cluster *c = &job->cluster;
  if (!c->assumed_nics || c->nodes < 2 || (job->ranks > 0 && job->mapping.nodes < 2)) return;
  tws_assumption *one = add(list, count, "NICs", "nics_per_node and inter in a cluster file", "%d of %g GB/s a node",
                            c->nics_per_node, c->inter.bandwidth / 1e9);
  snprintf(one->reason, sizeof one->reason,
           c->builtin ? "as %.60s has them" : "as the file of %.60s does not say how many", c->name);
}

/* Adds the assumption about the host, if --cluster names a device. */
static void add_host(const tws_job *job, tws_assumption *list, int *count) {
  const tws_cluster *c = &job->cluster;
  char memory[32];
  if (!c->lone_device) return;
  tws_assumption *one = add(list, count, "host", "a cluster file", "%d cores and %s", c->cores_per_node,
                            tws_format_bytes(c->host_memory_bytes, memory, sizeof memory));
  snprintf(one->reason, sizeof one->reason, "as %.40s is a device: a node of one, its PCIe of %.3g GB/s", c->name,
           tws_cluster_copy_rate(c, 0) / 1e9);
}

/* Adds the assumption about the share of peak arithmetic that matrix products reach, if it was not measured on this
 * device. */
static void add_products(const tws_job *job, tws_assumption *list, int *count) {
  const tws_rates rates = tws_profile_rates(job->profile);
  if (rates == TWS_RATES_OWN) return;
  tws_assumption *one = add(list, count, "product rate", "--profile FILE of measurements", "%.2f of the peak",
                            tws_profile_product_share(job->profile));
  snprintf(one->reason, sizeof one->reason,
           rates == TWS_RATES_MEASURED ? "by published measurements of %.60s" : "by data sheet, not measured on %.60s",
           tws_profile_name(job->profile));
}

/* Adds the assumption about ZenFlow's interval between updates on the host, if a training determines it. */
static void add_interval(const tws_job *job, tws_assumption *list, int *count) {
  if (!tws_zenflow_measures(job->config)) return;
  tws_assumption *one = add(list, count, "update interval", "--set zero_optimization.zenflow.update_interval=STEPS",
                            "%" PRId64 " steps", tws_zenflow_update_interval(job->config));
  snprintf(one->reason, sizeof one->reason, "as only a training compares gradients");
}

int tws_job_assumed(const tws_job *job, tws_assumption list[TWS_ASSUMPTIONS]) {
  int count = 0;
  if (job->assumed_runtime && job->backend != TWS_BACKEND_HOST)
    add(list, &count, "runtime", "--runtime STYLE", "%s", tws_profile_runtime(job->profile)->name);
  if (job->assumed_dtype) add_type(job, list, &count);
  if (job->assumed_sequence || !job->config->sequence_length) add_sequence(job, list, &count);
  add_capacity(job, list, &count);
  add_margin(job, list, &count);
  add_nics(job, list, &count);
  add_host(job, list, &count);
  add_products(job, list, &count);
  add_interval(job, list, &count);
  return count;
}

void tws_assumptions_text(const tws_assumption *list, int count, tws_text *out) {
  for (int i = 0; i < count; i++)
    tws_text_add(out, "%s%s %s%s%s (%s)", i ? "; " : "", list[i].what, list[i].value, *list[i].reason ? ", " : "",
                 list[i].reason, list[i].give);
}

cJSON *tws_assumptions_json(const tws_assumption *list, int count) {
  cJSON *all = cJSON_CreateArray();
  for (int i = 0; i < count; i++) {
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "what", list[i].what);
    cJSON_AddStringToObject(one, "value", list[i].value);
    if (*list[i].reason) cJSON_AddStringToObject(one, "reason", list[i].reason);
    cJSON_AddStringToObject(one, "give", list[i].give);
    cJSON_AddItemToArray(all, one);
  }
  return all;
}
