#include "job/notes.h"

#include <string.h>

#include "models/hardware/runtime.h"
#include "plan/float8.h"

void tws_job_ignored(const tws_job *job, tws_text *out) {
  const tws_config *c = job->config;
  /* the profile is asked, since casts_assumed is not known before the number of ranks is */
  const int assumed = !tws_profile_plans_casts(job->profile);
  if (c->matmul_dtype == TWS_MATMUL_FP8 && assumed && c->fp8_recipe == TWS_FP8_DELAYED)
    tws_text_add(out, "runtime %s: casts to 8 bits are part of the products' time; twinspeed.fp8_recipe is ignored\n",
                 tws_profile_runtime(job->profile)->name);
}

/* Adds a note on how many matrix products run in 8 bits if twinspeed.matmul_dtype is fp8. */
static void note_float8(const tws_job *job, tws_text *out) {
  tws_plan *plan;
  if (job->config->matmul_dtype != TWS_MATMUL_FP8 || job->config->casts_assumed) return;
  if (tws_job_part_plan(job, 0, 1, &plan, NULL) != TWS_OK) return;
  const tws_float8_products count = tws_plan_float8_products(plan);
  tws_plan_destroy(plan);
  tws_text_add(out,
               "%u of the %u forward products of rank 0 are in 8 bits (e4m3, gradients e5m2, a scale for each tensor); "
               "the head, experts and what has sizes that are no multiples of 16 stay in 16 bits\n",
               count.eight, count.all);
}

static void note_vocabulary(const tws_job *job, tws_text *out) {
  const tws_network *n = job->network;
  if (n->padded_vocabulary != n->vocabulary)
    tws_text_add(out, "the vocabulary of %lld is padded to %lld\n", (long long)n->vocabulary,
                 (long long)n->padded_vocabulary);
  else if (n->vocabulary % 64 != 0 && job->backend == TWS_BACKEND_CUDA)
    tws_text_add(out, "a vocabulary of %lld is not a multiple of 64: --vocab-multiple 64 is faster on GPUs\n",
                 (long long)n->vocabulary);
}

tws_code tws_job_notes(const tws_job *job, tws_text *out, tws_error *err) {
  const tws_network *n = job->network;
  for (const char *line = n->notes; line && *line; line += line[0] == '\n') {
    const size_t length = strcspn(line, "\n");
    if (length) tws_text_add(out, "%.*s\n", (int)length, line);
    line += length;
  }
  if (n->tied) tws_text_add(out, "embeddings are tied: the head shares the embedding's weight\n");
  if (n->kv_heads != n->heads)
    tws_text_add(out, "grouped-query attention: %lld query heads share %lld key/value heads\n", (long long)n->heads,
                 (long long)n->kv_heads);
  if (n->head_size * n->heads != n->hidden)
    tws_text_add(out, "head size %lld is not hidden/heads (%lld/%lld)\n", (long long)n->head_size, (long long)n->hidden,
                 (long long)n->heads);
  note_vocabulary(job, out);
  if (job->config->sequence_length > n->positions && n->positions > 0)
    tws_text_add(out, "sequence length %lld is beyond the model's %lld positions\n",
                 (long long)job->config->sequence_length, (long long)n->positions);
  tws_job_ignored(job, out);
  note_float8(job, out);
  return out->failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory") : TWS_OK;
}
