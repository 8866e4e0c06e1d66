#include "cli/verdict.h"
#include <string.h>
#include "base/units.h"

void tws_verdict_read(const tws_job *job, const tws_ledger *ledger, tws_verdict *v) {
  memset(v, 0, sizeof *v);
  v->host = job->backend == TWS_BACKEND_HOST;
  const tws_node_mapping mapping = tws_machine_mapping(&job->machine, job->ranks);
  v->ranks_per_node = tws_mapping_most_on_node(&mapping);
  double arena = (double)ledger->tier[TWS_TIER_DEVICE].arena_bytes;
  double beside = (double)ledger->tier[TWS_TIER_PINNED].arena_bytes + (double)ledger->tier[TWS_TIER_HOST].arena_bytes;
  v->device_overhead = tws_profile_overhead_bytes(job->profile);
  v->node_have = job->cluster.host_memory_bytes;
  if (v->host) {
    v->node_need = v->ranks_per_node * (arena + beside + v->device_overhead);
  } else {
    v->device_have = job->cluster.device_memory_bytes > 0 ? job->cluster.device_memory_bytes
                                                          : tws_profile_memory_bytes(job->profile);
    v->device_need = arena + v->device_overhead;
    v->node_need = v->ranks_per_node * beside;
  }
  v->fits = (v->host || v->device_need <= v->device_have) && (v->node_have <= 0 || v->node_need <= v->node_have);
}

static void print_line(const tws_cli *cli, const char *what, double need, double have, const char *detail) {
  char a[32], b[32], c[32];
  int fits = need <= have;
  tws_out("%s%s%s: %s needs %s and has %s%s; %s %s\n", tws_style(cli, fits ? TWS_GREEN : TWS_RED),
          fits ? "fits" : "does not fit", tws_style(cli, TWS_PLAIN), what, tws_format_bytes(need, a, sizeof a),
          tws_format_bytes(have, b, sizeof b), detail, tws_format_bytes(fits ? have - need : need - have, c, sizeof c),
          fits ? "stay free" : "are missing");
}

void tws_verdict_print(const tws_cli *cli, const tws_verdict *v) {
  char detail[128], bytes[32];
  if (!v->host) {
    snprintf(detail, sizeof detail, " (%s of it for context and libraries)",
             tws_format_bytes(v->device_overhead, bytes, sizeof bytes));
    print_line(cli, "one device", v->device_need, v->device_have, v->device_overhead > 0 ? detail : "");
  }
  if (v->node_have > 0 && (v->host || v->node_need > 0)) {
    snprintf(detail, sizeof detail, " host memory (%d rank%s)", v->ranks_per_node, v->ranks_per_node > 1 ? "s" : "");
    print_line(cli, "one node", v->node_need, v->node_have, detail);
  }
}

cJSON *tws_verdict_json(const tws_verdict *v) {
  cJSON *json = cJSON_CreateObject();
  cJSON_AddBoolToObject(json, "fits", v->fits);
  cJSON_AddNumberToObject(json, "ranks_per_node", v->ranks_per_node);
  if (!v->host) {
    cJSON_AddNumberToObject(json, "device_need_bytes", v->device_need);
    cJSON_AddNumberToObject(json, "device_overhead_bytes", v->device_overhead);
    cJSON_AddNumberToObject(json, "device_have_bytes", v->device_have);
  }
  cJSON_AddNumberToObject(json, "node_need_bytes", v->node_need);
  cJSON_AddNumberToObject(json, "node_have_bytes", v->node_have);
  return json;
}

/* Would the job fit with this change? Anything that stands in the way of the answer counts as no. */
static int fits_with(const tws_job_options *options, double *need) {
  tws_job job;
  tws_estimate estimate;
  if (tws_job_load(options, &job, NULL) != TWS_OK) return 0;
  tws_plan_request request = tws_job_request(&job, 0);
  tws_verdict verdict = {0};
  if (tws_estimate_step(&request, &job.machine, &estimate, NULL) == TWS_OK)
    tws_verdict_read(&job, &estimate.ledger, &verdict);
  tws_job_release(&job);
  *need = verdict.host ? verdict.node_need : verdict.device_need;
  return verdict.fits;
}

/* Changes from the least intrusive to the most; 0 and NULL keep what is there. */
typedef struct change {
  const char *recompute;
  int stage, micro_one, shorten; /* micro_one: a smaller micro batch, 1 at last; shorten: divide the sequence by this */
  int tensor;                    /* divide replicas among tensor ranks of a node */
} change;
static const change changes[] = {
    {"selective", 0, 0, 0, 0}, {"full", 0, 0, 0, 0}, {NULL, 1, 0, 0, 0},   {NULL, 2, 0, 0, 0},   {NULL, 3, 0, 0, 0},
    {NULL, 0, 1, 0, 0},        {"full", 0, 1, 0, 0}, {"full", 2, 0, 0, 0}, {"full", 3, 0, 0, 0}, {"full", 3, 1, 0, 0},
    {NULL, 0, 0, 0, 1},        {"full", 0, 1, 0, 1}, {"full", 3, 1, 0, 1}, {"full", 3, 1, 2, 0}, {"full", 3, 1, 4, 0},
    {"full", 3, 1, 8, 0},      {"full", 3, 1, 16, 0}};

/* As many tensor ranks as the replicas, a node's devices and the model allow; 1: none. */
static int64_t tensor_choice(const tws_job *job) {
  const tws_network *n = job->network;
  int replicas = tws_job_ranks_along(job, TWS_AXIS_DATA), best = 1;
  if (job->backend == TWS_BACKEND_HOST || job->config->tensor_ranks > 1 || job->config->sequence_ranks > 1) return 1;
  for (int t = 2; t <= job->cluster.devices_per_node && t <= replicas; t++) {
    int divides = job->cluster.devices_per_node % t == 0 && replicas % t == 0;
    if (divides && n->heads % t == 0 && n->kv_heads % t == 0 && n->intermediate % t == 0) best = t;
  }
  return best;
}

/* The options with a change, and the words that say it; 0 when it changes nothing. The global batch stays.
 * to_micro: what a smaller micro batch is. */
static int apply(const change *c, const tws_job *job, int64_t to_micro, tws_job_options *options, char *words,
                 size_t size) {
  int64_t micro = job->config->micro_batch_size, accumulation = job->config->accumulation_steps;
  size_t used = 0;
  if (c->stage > job->config->zero.stage) {
    options->stage = c->stage;
    used += (size_t)snprintf(words + used, size - used, " --stage %d", c->stage);
  }
  if (c->recompute && strcmp(c->recompute, tws_recompute_name(job->config->recompute)) != 0) {
    options->recompute = c->recompute;
    used += (size_t)snprintf(words + used, size - used, " --recompute %s", c->recompute);
  }
  int64_t tensor = c->tensor ? tensor_choice(job) : 1, steps = accumulation * tensor;
  if (c->tensor && tensor == 1) return 0;
  if (tensor > 1) {
    options->tensor_ranks = tensor;
    used += (size_t)snprintf(words + used, size - used, " --tp %lld", (long long)tensor);
  }
  if (c->micro_one && micro > to_micro) {
    options->micro_batch = to_micro;
    steps *= micro / to_micro;
    used += (size_t)snprintf(words + used, size - used, " --micro-batch %lld", (long long)to_micro);
  }
  if (steps != accumulation) {
    options->accumulation = steps;
    used += (size_t)snprintf(words + used, size - used, " --accumulation %lld", (long long)steps);
  }
  if (c->shorten && job->config->sequence_length >= 2 * c->shorten) {
    options->sequence = job->config->sequence_length / c->shorten;
    used += (size_t)snprintf(words + used, size - used, " --seq %lld", (long long)options->sequence);
  }
  return used > 0;
}

/* A micro batch of 1 fits: so may a larger one. Of the divisors, which keep the global batch, the largest that does;
 * more need more, so the interval is halved. Gives what it needs, and its words. */
static double largest_micro(const tws_job_options *given, const change *c, const tws_job *job, double need, char *words,
                            size_t size) {
  enum { MOST = 512 };
  int64_t micro = job->config->micro_batch_size, divisors[MOST];
  int count = 0, low = 0;
  for (int64_t d = 1; d < micro && d <= 1 << 20 && count < MOST; d++)
    if (micro % d == 0) divisors[count++] = d;
  for (int high = count; high - low > 1;) {
    const int middle = (low + high) / 2;
    tws_job_options options = *given;
    char said[128] = "";
    double takes = 0;
    if (apply(c, job, divisors[middle], &options, said, sizeof said) && fits_with(&options, &takes)) {
      low = middle;
      need = takes;
      snprintf(words, size, "%s", said);
    } else {
      high = middle;
    }
  }
  return need;
}

/* bf16 in place of a float32 that nobody asked for. */
static int fits_in_bf16(const tws_job_options *given, const tws_job *job, char *text, size_t size) {
  tws_job_options options = *given;
  char bytes[32];
  double need = 0;
  if (!job->assumed_dtype || job->config->dtype != TWS_F32) return 0;
  options.dtype = "bf16";
  if (!fits_with(&options, &need)) return 0;
  snprintf(text, size, "it fits with --dtype bf16: %s", tws_format_bytes(need, bytes, sizeof bytes));
  return 1;
}

static int find_remedy(const tws_job_options *given, char *text, size_t size) {
  tws_job job;
  int found = 0;
  if (tws_job_load(given, &job, NULL) != TWS_OK) return 0;
  found = fits_in_bf16(given, &job, text, size);
  for (size_t i = 0; i < sizeof changes / sizeof changes[0] && !found; i++) {
    tws_job_options options = *given;
    char words[128] = "", bytes[32];
    double need = 0;
    found = apply(&changes[i], &job, 1, &options, words, sizeof words) && fits_with(&options, &need);
    if (found && changes[i].micro_one) need = largest_micro(given, &changes[i], &job, need, words, sizeof words);
    if (found) snprintf(text, size, "it fits with%s: %s", words, tws_format_bytes(need, bytes, sizeof bytes));
  }
  tws_job_release(&job);
  return found;
}

tws_code tws_verdict_fail(const tws_job_options *options, const tws_verdict *v, tws_error *err) {
  char a[32], b[32], hint[256];
  if (!find_remedy(options, hint, sizeof hint))
    snprintf(hint, sizeof hint,
             "no stage, recomputation, micro batch, tensor ranks or shorter sequence fits: use more or larger devices");
  int device = !v->host && v->device_need > v->device_have;
  double need = device ? v->device_need : v->node_need, have = device ? v->device_have : v->node_have;
  return tws_fail(err, TWS_NO, hint, "does not fit: %s needs %s and has %s", device ? "a device" : "a node",
                  tws_format_bytes(need, a, sizeof a), tws_format_bytes(have, b, sizeof b));
}
