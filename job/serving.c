#include "job/serving.h"

#include <math.h>
#include <string.h>

#include "job/serving_memory.h"

const char *tws_serve_cause_name(int cause) {
  static const char *const names[] = {
#define X(name, text) text,
      TWS_SERVE_CAUSES(X)
#undef X
  };
  return cause >= 0 && cause < TWS_SERVE_CAUSE_COUNT ? names[cause] : "?";
}

static int is_product(const tws_work *work) {
  return work->code == TWS_KERNEL_LINEAR || work->code == TWS_KERNEL_CODED_LINEAR ||
         work->code == TWS_KERNEL_EXPERT_LINEAR;
}

/* Divides the seconds of a decoded token by their causes. The kernels of the plan share the seconds that the device
 * computes as their own seconds do; a product counts as reading weights if that takes longer than its flops. */
static void find_causes(const tws_job *job, const tws_plan *plan, const tws_estimate *e, double software_s,
                        tws_serve_answer *out) {
  const double peak = tws_profile_peak_flops(job->profile, (tws_dtype)job->config->dtype);
  const double bandwidth = tws_profile_bandwidth(job->profile);
  double sum = 0, by[TWS_SERVE_CAUSE_COUNT] = {0};
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_work *work = &plan->works[plan->ops[i].work];
    if (plan->ops[i].kind != TWS_OP_COMPUTE) continue;
    const double seconds = tws_plan_work_seconds(plan, plan->ops[i].work, &job->machine, 1);
    const double bytes = tws_work_bytes(work), flops = tws_work_flops(work);
    int cause = TWS_SERVE_OTHER;
    if (work->code == TWS_KERNEL_CACHED_ATTENTION || work->code == TWS_KERNEL_LATENT_ATTENTION) cause = TWS_SERVE_CACHE;
    if (is_product(work)) cause = peak > 0 && bytes / bandwidth < flops / peak ? TWS_SERVE_COMPUTE : TWS_SERVE_WEIGHTS;
    if (is_product(work)) out->weight_bytes += bytes;
    /* latent attention also reads the weight that it multiplies queries by */
    const double absorbed = work->code == TWS_KERNEL_LATENT_ATTENTION
                                ? (double)(work->d[2] * (work->d[3] + work->d[5]) * work->d[6]) *
                                      (double)tws_dtype_bytes((tws_dtype)work->dtype)
                                : 0;
    if (cause == TWS_SERVE_CACHE) out->cache_bytes += bytes - absorbed;
    out->weight_bytes += absorbed;
    out->flops += flops;
    by[cause] += seconds;
    sum += seconds;
  }
  const double communication = tws_path_communicating(&e->path), waiting = e->path.bubble_s;
  const double computing = fmax(e->step_s - communication - waiting, 0);
  for (int c = 0; c < TWS_SERVE_CAUSE_COUNT; c++) out->cause_s[c] = sum > 0 ? by[c] / sum * computing : 0;
  out->cause_s[TWS_SERVE_COMMUNICATION] = communication;
  out->cause_s[TWS_SERVE_WAITING] = waiting;
  out->cause_s[TWS_SERVE_SOFTWARE] = software_s;
}

/* Merges the ledger of a program into that of the job: of each tier the larger arena. */
static void add_ledger(const tws_ledger *one, tws_ledger *all) {
  for (int t = 0; t < TWS_TIER_COUNT; t++)
    if (one->tier[t].arena_bytes > all->tier[t].arena_bytes) all->tier[t] = one->tier[t];
}

static tws_fit fit_of(const tws_job *job, const tws_serve_request *request, const tws_ledger *ledger) {
  double limit = 0;
  const double share = request->device_share > 0 ? request->device_share : request->server->device_share;
  if (share > 0 && job->backend == TWS_BACKEND_CUDA)
    limit = tws_capacity_of(&job->machine, job->ranks, 0).device * share;
  const tws_capacity capacity = tws_capacity_of(&job->machine, job->ranks, limit);
  return tws_fit_of(&capacity, ledger);
}

/* Predicts both programs for `micro` texts of a micro-batch. times 0: memory alone. */
static tws_code predict(const tws_job *job, const tws_serve_request *request, int64_t micro, int times,
                        tws_serve_answer *out, tws_error *err) {
  tws_serving serving;
  tws_config config;
  double seconds[TWS_SERVING_PROGRAMS] = {0};
  const int64_t each = micro * job->config->accumulation_steps;
  const int replicas = tws_topology_size(&job->topology, TWS_AXES_DATA);
  TWS_TRY(tws_serve_programs(job, request, micro, request->prompt, request->prompt + request->output, &config, &serving,
                             err));
  const double texts_of_all = (double)(each * replicas);
  const double software_s = request->server->pass_s + request->server->text_s * (double)each +
                            tws_profile_pass_s(job->profile, texts_of_all, (double)job->network->vocabulary);
  const int divided = tws_serve_divides_prompts(request, micro);
  tws_code code = TWS_OK;
  for (int i = 0; i < TWS_SERVING_PROGRAMS && code == TWS_OK; i++) {
    const int counts = i > 0 || !divided; /* a prefill in several passes has other memory, which is added below */
    if (!times && !counts) continue;
    const tws_job one = tws_serve_job_of(job, &serving, i);
    tws_estimate e;
    tws_plan *plan = NULL;
    tws_ledger live;
    code = times ? tws_job_estimate(&one, &e, NULL, err) : tws_job_live(&one, &live, err);
    if (code != TWS_OK) break;
    if (counts) add_ledger(times ? &e.ledger : &live, &out->ledger);
    if (!times) continue;
    seconds[i] = e.step_s + software_s;
    if (i == 0) continue;
    code = tws_job_part_plan(&one, tws_job_stage_rank(&one, e.stage), 0, &plan, err);
    if (code == TWS_OK) find_causes(&one, plan, &e, software_s, out);
    tws_plan_destroy(plan);
  }
  tws_serving_close(&serving);
  TWS_TRY(code);
  TWS_TRY(tws_serve_add_memory(job, request, micro, &out->ledger, err));
  out->texts = each * replicas;
  out->fit = fit_of(job, request, &out->ledger);
  if (!times) return TWS_OK;
  const double texts = (double)out->texts;
  out->first_token_s = seconds[0];
  out->token_s = seconds[1];
  out->text_s = seconds[0] + (double)(request->output - 1) * seconds[1];
  out->tokens_per_s = texts * (double)request->output / out->text_s;
  out->decoded_per_s = texts / seconds[1];
  out->prompt_tokens_per_s = texts * (double)request->prompt / seconds[0];
  return TWS_OK;
}

static tws_code fits_with(const tws_job *job, const tws_serve_request *request, int64_t micro, int *fits,
                          tws_error *err) {
  tws_serve_answer answer = {0};
  TWS_TRY(predict(job, request, micro, 0, &answer, err));
  *fits = answer.fit.fits;
  return TWS_OK;
}

/* Returns the tokens of a replica whose keys and values fill the rest of its devices: those of the batch, whose bytes
 * the ledger of the rank with the most has, and as many more as fit there. */
static double cached_tokens(const tws_serve_request *request, const tws_serve_answer *a, int replicas) {
  const double used = (double)a->ledger.tier[TWS_TIER_DEVICE].category[TWS_CATEGORY_CACHE];
  const double free_bytes = a->fit.rank_have - a->fit.rank_need;
  const double tokens = (double)(a->texts / replicas * (request->prompt + request->output));
  return used > 0 ? fmax(0, tokens * (used + free_bytes) / used) : 0;
}

/* Finds the largest micro batch that fits, up to 2^16 texts. */
static tws_code find_largest(const tws_job *job, const tws_serve_request *request, int64_t *largest, tws_error *err) {
  enum { MOST = 1 << 16 };
  int64_t low = 0, high = 1;
  int fits = 1;
  while (high <= MOST && fits) {
    TWS_TRY(fits_with(job, request, high, &fits, err));
    if (fits) low = high, high *= 2;
  }
  while (high - low > 1 && high - low > low / 128) {
    const int64_t middle = (low + high) / 2;
    TWS_TRY(fits_with(job, request, middle, &fits, err));
    *(fits ? &low : &high) = middle;
  }
  *largest = low;
  return TWS_OK;
}

tws_code tws_job_serve(const tws_job *job, const tws_serve_request *request, tws_serve_answer *out, tws_error *err) {
  int64_t largest = 0;
  *out = (tws_serve_answer){.largest = -1};
  if (request->device_share > 0 && job->backend == TWS_BACKEND_HOST)
    return tws_fail(err, TWS_INVALID, "leave out --device-share, or give a cluster of GPUs",
                    "the share of a device's memory is given, and the job runs on a host");
  TWS_TRY(predict(job, request, job->config->micro_batch_size, 1, out, err));
  if (request->server->fills_device && out->fit.tier == TWS_TIER_DEVICE)
    out->cached_tokens = cached_tokens(request, out, tws_topology_size(&job->topology, TWS_AXES_DATA));
  if (!request->finds_batch) return TWS_OK;
  TWS_TRY(find_largest(job, request, &largest, err));
  out->largest = largest * job->config->accumulation_steps * tws_topology_size(&job->topology, TWS_AXES_DATA);
  return TWS_OK;
}
