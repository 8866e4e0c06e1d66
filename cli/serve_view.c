#include "cli/serve_view.h"

#include "base/units.h"
#include "cli/job_view.h"
#include "cli/verdict.h"

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
  tws_out("  of a token's time:");
  for (int c = 0, more = 0; c < TWS_SERVE_CAUSE_COUNT; c++) {
    if (a->cause_s[c] < 0.0005 * a->token_s) continue;
    tws_out("%s %s %.1f %%", more++ ? "," : "", tws_serve_cause_name(c), 100 * a->cause_s[c] / a->token_s);
  }
  tws_out("\n  a rank reads %s of weights and %s of cached keys and values for it, and computes %s\n",
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
  cJSON *root = tws_job_json(job);
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
    tws_job_print(cli, job);
    print_times(cli, request, &answer);
    print_memory(&answer);
    tws_fit_print(cli, &answer.fit);
  }
  if (answer.fit.fits) return TWS_OK;
  snprintf(hint, sizeof hint, "at most %lld texts at a time fit: --micro-batch", (long long)answer.largest);
  return tws_fit_refuse(&answer.fit,
                        answer.largest > 0 ? hint : "use more tensor ranks (--tp) or pipeline stages (--pp)", err);
}
