#include "job/serving_memory.h"

#include <math.h>

#include "models/quantized.h"

int tws_serve_divides_prompts(const tws_serve_request *request, int64_t texts) {
  const int64_t most = request->server->memory.batched_tokens;
  return most > 0 && texts * request->prompt > most;
}

/* Returns how many weights of a row share a scale in the software of the request; 0: as many as in this program. */
static int64_t code_block(const tws_job *job, const tws_serve_request *request) {
  enum { OF_FOUR_BITS = 128 };
  if (!request->server->memory.own_scales || request->weight_codes == TWS_CODES_NONE) return 0;
  const tws_network *n = job->network;
  const int64_t ranks = tws_job_ranks_along(job, TWS_AXIS_MODEL);
  /* the bits that all lengths of rows have in common, of which the lowest divides every one */
  const int64_t rows = n->hidden / ranks | n->intermediate / ranks | n->heads * n->head_size / ranks;
  const int64_t divides = rows & -rows;
  return tws_code_bits(request->weight_codes) == 8 || divides < OF_FOUR_BITS ? divides : OF_FOUR_BITS;
}

/* Bytes of a rank's buffers that are not alive all the time. */
static uint64_t passing_bytes(const tws_ledger_tier *tier) {
  return tier->category[TWS_CATEGORY_ACTIVATION] + tier->category[TWS_CATEGORY_WORKSPACE];
}

static void add(tws_ledger_tier *tier, tws_category category, double bytes) {
  if (!(bytes > 0)) return;
  tier->category[category] += (uint64_t)bytes;
  tier->arena_bytes += (uint64_t)bytes;
}

tws_code tws_serve_programs(const tws_job *job, const tws_serve_request *request, int64_t micro, int64_t prompt,
                            int64_t text, tws_config *config, tws_serving *out, tws_error *err) {
  tws_plan_request base = tws_job_request(job, 0);
  *config = *job->config;
  config->micro_batch_size = micro;
  config->train_batch_size = micro * config->accumulation_steps * tws_topology_size(&job->topology, TWS_AXES_DATA);
  base.config = config;
  return tws_serving_make(&base,
                          (tws_serving_sizes){.prompt = prompt,
                                              .text = text,
                                              .weight_codes = request->weight_codes,
                                              .block = code_block(job, request),
                                              .cache_bits = request->cache_bits,
                                              .cache_block = request->cache_block},
                          out, err);
}

tws_job tws_serve_job_of(const tws_job *job, tws_serving *serving, int program) {
  tws_job one = *job;
  one.network = serving->network[program];
  one.config = &serving->config[program];
  one.program = serving->request[program].program;
  return one;
}

/* Finds the bytes of the buffers of a pass over as many tokens of prompts as the software processes at once. */
static tws_code part_of_prompts(const tws_job *job, const tws_serve_request *request, double *bytes, tws_error *err) {
  tws_serving serving;
  tws_ledger ledger;
  tws_config config;
  const int64_t most = request->server->memory.batched_tokens;
  const int64_t prompt = request->prompt < most ? request->prompt : most;
  TWS_TRY(tws_serve_programs(job, request, most / prompt, prompt, prompt + 1, &config, &serving, err));
  const tws_job prefill = tws_serve_job_of(job, &serving, 0);
  const tws_code code = tws_job_live(&prefill, &ledger, err);
  tws_serving_close(&serving);
  if (code == TWS_OK) *bytes = (double)passing_bytes(&ledger.tier[TWS_TIER_DEVICE]);
  return code;
}

tws_code tws_serve_add_memory(const tws_job *job, const tws_serve_request *request, int64_t micro, tws_ledger *ledger,
                              tws_error *err) {
  const tws_server_memory *m = &request->server->memory;
  const tws_network *n = job->network;
  tws_ledger_tier *tier = &ledger->tier[TWS_TIER_DEVICE];
  const double element = (double)tws_dtype_bytes((tws_dtype)job->config->dtype);
  const double ranks = tws_job_ranks_along(job, TWS_AXIS_MODEL), tokens = (double)(micro * request->prompt);
  const double vocabulary = (double)n->padded_vocabulary;
  double passing = 0;
  if (tws_serve_divides_prompts(request, micro)) TWS_TRY(part_of_prompts(job, request, &passing, err));
  passing = fmax(passing, (m->whole_rows + m->divided_rows / ranks) * tokens * (double)n->hidden * element +
                              m->score_bytes * (double)n->heads / ranks * tokens * (double)request->prompt);
  passing = fmax(passing, m->sampled_texts * TWS_SAMPLING_BYTES * vocabulary);
  add(tier, TWS_CATEGORY_ACTIVATION, passing - (double)passing_bytes(tier));
  const double of_model = n->tied ? 1 : 2, tables = m->whole_tables ? of_model : m->tables;
  add(tier, TWS_CATEGORY_WORKSPACE, (tables - of_model / ranks) * vocabulary * (double)n->hidden * element);
  return TWS_OK;
}
