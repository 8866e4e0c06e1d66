#include "cli/serve_view.h"

#include <math.h>
#include <stdio.h>

#include "base/units.h"
#include "cli/job_view.h"
#include "cli/verdict.h"
#include "models/quantized.h"

int tws_serve_assumed(const tws_job *job, const tws_serve_request *request,
                      tws_assumption list[TWS_SERVE_ASSUMPTIONS]) {
  int count = 0;
  if (request->assumed_server && job->backend != TWS_BACKEND_HOST) {
    tws_assumption *one = &list[count++];
    *one = (tws_assumption){.what = "software", .give = "--software NAME"};
    snprintf(one->value, sizeof one->value, "%s", request->server->name);
  }
  return count + tws_job_assumed(job, list + count);
}

/* Prints the software, unless the job runs on CPUs, where there is this program's own engine alone. */
static void print_software(const tws_cli *cli, const tws_job *job, const tws_serve_request *request) {
  if (job->backend == TWS_BACKEND_HOST) return;
  tws_out_wrapped(9, "%sSoftware%s %s: %s", tws_style(cli, TWS_BOLD), tws_style(cli, TWS_PLAIN_OUTPUT),
                  request->server->name, request->server->about);
}

/* Prints the ranks and the types. */
static void print_ranks(const tws_cli *cli, const tws_job *job, const tws_serve_request *request) {
  tws_text line = {0};
  tws_job_ranks_text(cli, job, &line);
  if (job->config->zero.stage == 3) tws_text_add(&line, ", weights divided among replicas (ZeRO stage 3)");
  tws_text_add(&line, ", %s", tws_dtype_name(job->config->dtype));
  if (request->weight_codes) tws_text_add(&line, ", weights in %s", tws_code_type_name(request->weight_codes));
  if (request->cache_bits) tws_text_add(&line, ", keys and values in %d bits", request->cache_bits);
  tws_out_wrapped(9, "%s", line.data ? line.data : "");
  tws_text_free(&line);
}

void tws_serve_job_print(const tws_cli *cli, const tws_job *job, const tws_serve_request *request, int with_ranks) {
  tws_assumption assumed[TWS_SERVE_ASSUMPTIONS];
  tws_job_remark(cli, job);
  print_software(cli, job, request);
  tws_model_print(cli, job);
  tws_cluster_print(cli, job);
  if (with_ranks) print_ranks(cli, job, request);
  tws_assumptions_print(cli, assumed, tws_serve_assumed(job, request, assumed));
}

static void print_times(const tws_cli *cli, const tws_serve_request *request, const tws_serve_answer *a) {
  char first[32], token[32], whole[32], bytes[2][32], flops[32];
  tws_out("\n%sTexts of %lld tokens and %lld generated ones, %lld at a time%s\n", tws_style(cli, TWS_BOLD),
          (long long)request->prompt, (long long)request->output, (long long)a->texts,
          tws_style(cli, TWS_PLAIN_OUTPUT));
  tws_out("  first token after %s, then one every %s; a whole text %s\n",
          tws_format_seconds(a->first_token_s, first, sizeof first),
          tws_format_seconds(a->token_s, token, sizeof token), tws_format_seconds(a->text_s, whole, sizeof whole));
  tws_out("  %s generated tokens/s with the prompts, %s without; %s tokens/s of prompts\n",
          tws_thousands((int64_t)(a->tokens_per_s + 0.5)), tws_thousands((int64_t)(a->decoded_per_s + 0.5)),
          tws_thousands((int64_t)(a->prompt_tokens_per_s + 0.5)));
  tws_text causes = {0};
  for (int c = 0; c < TWS_SERVE_CAUSE_COUNT; c++)
    if (a->cause_s[c] >= 0.0005 * a->token_s)
      tws_text_add(&causes, "%s %s %.1f %%", causes.length ? "," : "", tws_serve_cause_name(c),
                   100 * a->cause_s[c] / a->token_s);
  tws_out_wrapped(4, "  of a token's time:%s", causes.data ? causes.data : "");
  tws_text_free(&causes);
  tws_out_wrapped(4, "  a rank reads %s of weights and %s of cached keys and values for it, and computes %s",
                  tws_format_bytes(a->weight_bytes, bytes[0], sizeof bytes[0]),
                  tws_format_bytes(a->cache_bytes, bytes[1], sizeof bytes[1]),
                  tws_format_rate(a->flops, "FLOP", flops, sizeof flops));
}

static void print_memory(const tws_serve_answer *a) {
  char bytes[32];
  for (int t = 0; t < TWS_TIER_COUNT; t++) {
    const tws_ledger_tier *tier = &a->ledger.tier[t];
    if (!tier->arena_bytes) continue;
    tws_out("\nMemory of one rank, %s: %s\n", tws_tier_name((tws_tier)t),
            tws_format_bytes((double)tier->arena_bytes, bytes, sizeof bytes));
    for (int c = 0; c < TWS_CATEGORY_COUNT; c++)
      if (tier->category[c])
        tws_out("  %-28s %s\n", tws_category_name((tws_category)c),
                tws_format_bytes((double)tier->category[c], bytes, sizeof bytes));
  }
  if (a->largest >= 0) tws_out("  at most %s texts at a time fit\n", tws_thousands(a->largest));
  if (a->cached_tokens > 0)
    tws_out("  keys and values of %s tokens fill what the software has left\n",
            tws_thousands((int64_t)a->cached_tokens));
}

static cJSON *memory_json(const tws_ledger *ledger) {
  cJSON *tiers = cJSON_CreateObject();
  for (int t = 0; t < TWS_TIER_COUNT; t++) {
    const tws_ledger_tier *tier = &ledger->tier[t];
    if (!tier->arena_bytes) continue;
    cJSON *one = cJSON_AddObjectToObject(tiers, tws_tier_name((tws_tier)t));
    cJSON_AddNumberToObject(one, "arena_bytes", (double)tier->arena_bytes);
    cJSON *categories = cJSON_AddObjectToObject(one, "categories");
    for (int c = 0; c < TWS_CATEGORY_COUNT; c++)
      if (tier->category[c])
        cJSON_AddNumberToObject(categories, tws_category_name((tws_category)c), (double)tier->category[c]);
  }
  return tiers;
}

static cJSON *answer_json(const tws_job *job, const tws_serve_request *request, const tws_serve_answer *a) {
  static const char *const of_training[] = {"runtime",         "runtime_reason", "runtime_bytes", "recompute",
                                            "sequence_length", "train_batch",    "assumptions"};
  tws_assumption assumed[TWS_SERVE_ASSUMPTIONS];
  cJSON *root = tws_job_json(job);
  for (size_t i = 0; i < sizeof of_training / sizeof *of_training; i++)
    cJSON_DeleteItemFromObjectCaseSensitive(root, of_training[i]);
  cJSON_AddItemToObject(root, "assumptions", tws_assumptions_json(assumed, tws_serve_assumed(job, request, assumed)));
  cJSON_AddStringToObject(root, "schema", "twinspeed-serve-1");
  cJSON_AddStringToObject(root, "software", request->server->name);
  cJSON_AddNumberToObject(root, "prompt_tokens", (double)request->prompt);
  cJSON_AddNumberToObject(root, "output_tokens", (double)request->output);
  cJSON_AddNumberToObject(root, "texts", (double)a->texts);
  cJSON_AddNumberToObject(root, "first_token_s", a->first_token_s);
  cJSON_AddNumberToObject(root, "token_s", a->token_s);
  cJSON_AddNumberToObject(root, "text_s", a->text_s);
  cJSON_AddNumberToObject(root, "tokens_per_s", a->tokens_per_s);
  cJSON_AddNumberToObject(root, "decoded_tokens_per_s", a->decoded_per_s);
  cJSON_AddNumberToObject(root, "prompt_tokens_per_s", a->prompt_tokens_per_s);
  cJSON *causes = cJSON_AddObjectToObject(root, "token_causes_s");
  for (int c = 0; c < TWS_SERVE_CAUSE_COUNT; c++)
    cJSON_AddNumberToObject(causes, tws_serve_cause_name(c), a->cause_s[c]);
  cJSON_AddNumberToObject(root, "weight_bytes", a->weight_bytes);
  cJSON_AddNumberToObject(root, "cache_bytes", a->cache_bytes);
  cJSON_AddNumberToObject(root, "flops", a->flops);
  if (a->largest >= 0) cJSON_AddNumberToObject(root, "largest_batch", (double)a->largest);
  if (a->cached_tokens > 0) cJSON_AddNumberToObject(root, "cached_tokens", floor(a->cached_tokens));
  cJSON_AddItemToObject(root, "memory", memory_json(&a->ledger));
  cJSON_AddItemToObject(root, "verdict", tws_fit_json(&a->fit));
  return root;
}

tws_code tws_serve_print(tws_cli *cli, tws_job *job, const tws_serve_request *request, tws_error *err) {
  tws_serve_answer answer;
  char hint[128];
  TWS_TRY(tws_job_set_server(job, request->server, err));
  TWS_TRY(tws_job_serve(job, request, &answer, err));
  if (cli->json) {
    TWS_TRY(tws_out_json(answer_json(job, request, &answer), err));
  } else {
    tws_serve_job_print(cli, job, request, 1);
    print_times(cli, request, &answer);
    print_memory(&answer);
    tws_fit_print(cli, &answer.fit);
  }
  if (answer.fit.fits) return TWS_OK;
  snprintf(hint, sizeof hint, "at most %lld texts at a time fit: --micro-batch", (long long)answer.largest);
  return tws_fit_refuse(&answer.fit,
                        answer.largest > 0 ? hint : "use more tensor ranks (--tp) or pipeline stages (--pp)", err);
}
