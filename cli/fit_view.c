/* estimate --fit: prints how many GPUs of each kind a job needs. */
#include "cli/fit_view.h"

#include <string.h>

#include "base/units.h"
#include "cli/job_view.h"
#include "cli/tune_view.h"
#include "cli/verdict.h"

/* Returns the interval of measured peaks of the requested runtime; NULL: Twinspeed's own engine, whose peaks equal the
 * predicted ones. */
static const tws_memory_interval *margin_of(const tws_smallest_request *request) {
  const tws_runtime *runtime = request->spec->runtime ? tws_runtime_find(request->spec->runtime) : NULL;
  const tws_memory_interval *seen = runtime ? tws_runtime_memory_interval(runtime) : NULL;
  return seen && seen->high > 1 ? seen : NULL;
}

static tws_code fit_json(const tws_smallest_request *request, const tws_smallest_answer *answers, int count,
                         tws_error *err) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "twinspeed-fit-1");
  cJSON_AddStringToObject(root, "model", request->spec->model);
  if (request->within_s > 0) cJSON_AddNumberToObject(root, "within_s", request->within_s);
  if (request->tokens_per_s > 0) cJSON_AddNumberToObject(root, "wanted_tokens_per_s", request->tokens_per_s);
  tws_assumption assumed[TWS_ASSUMPTIONS];
  cJSON_AddItemToObject(root, "assumptions", tws_assumptions_json(assumed, tws_smallest_assumed(request, assumed)));
  const tws_memory_interval *margin = margin_of(request);
  cJSON *kept = cJSON_AddObjectToObject(root, "margin");
  cJSON_AddNumberToObject(kept, "share", margin ? 1 - 1 / margin->high : 0);
  if (margin) cJSON_AddStringToObject(kept, "of", margin->of);
  cJSON *list = cJSON_AddArrayToObject(root, "answers");
  for (int i = 0; i < count; i++) {
    const tws_smallest_answer *a = &answers[i];
    const tws_variant *v = &a->best.variant;
    cJSON *one = cJSON_CreateObject();
    cJSON_AddItemToArray(list, one);
    cJSON_AddStringToObject(one, "cluster", a->cluster);
    cJSON_AddStringToObject(one, "device", a->device);
    cJSON_AddBoolToObject(one, "fits", a->found);
    cJSON_AddNumberToObject(one, "numbers_tried", a->tried);
    if (!a->found) {
      cJSON_AddStringToObject(one, "reason", a->reason);
      continue;
    }
    cJSON_AddNumberToObject(one, "devices", v->ranks);
    cJSON_AddNumberToObject(one, "nodes", a->nodes);
    cJSON_AddNumberToObject(one, "zero_stage", v->stage);
    cJSON_AddNumberToObject(one, "micro_batch", (double)v->micro);
    cJSON_AddNumberToObject(one, "accumulation_steps", (double)v->accumulation);
    cJSON_AddStringToObject(one, "recompute", tws_recompute_name(v->recompute));
    tws_variant_axes_json(v, one);
    cJSON_AddNumberToObject(one, "rank_bytes", a->best.needed_bytes);
    cJSON_AddNumberToObject(one, "rank_limit_bytes", a->best.available_bytes);
    cJSON_AddNumberToObject(one, "step_s", a->best.estimate.step_s);
    tws_evidence_interval_json(&a->evidence, a->best.estimate.step_s, one);
    cJSON_AddNumberToObject(one, "tokens_per_s", a->tokens_per_s);
    cJSON_AddItemToObject(one, "evidence", tws_evidence_json(&a->evidence));
    cJSON_AddStringToObject(one, "arguments", a->arguments);
  }
  return tws_out_json(root, err);
}

static tws_code fit_table(const tws_cli *cli, const tws_smallest_answer *answers, int count, int with_margin,
                          tws_error *err) {
  tws_table table;
  tws_text same = {0};
  tws_table_init(&table, 9);
  tws_table_row(&table, (const char *[]){"GPUs", "cluster", "ZeRO", "batch", "recompute", "parallel", "memory", "step",
                                         "tokens/s"});
  for (int i = 0; i < count && answers[i].found; i++) {
    const tws_smallest_answer *a = &answers[i];
    const tws_variant *v = &a->best.variant;
    char step[32];
    tws_table_row(&table, (const char *[]){tws_cell("%d", v->ranks),
                                           a->nodes > 1 ? tws_cell("%s:%d", a->cluster, a->nodes) : a->cluster,
                                           tws_cell("%d", v->stage),
                                           tws_cell("%lld x %lld", (long long)v->micro, (long long)v->accumulation),
                                           tws_recompute_name(v->recompute), tws_variant_axes_cell(v),
                                           tws_cell("%.0f %%", 100 * a->best.needed_bytes / a->best.available_bytes),
                                           tws_format_seconds(a->best.estimate.step_s, step, sizeof step),
                                           tws_thousands((int64_t)(a->tokens_per_s + 0.5))});
  }
  tws_table_compact(&table, 2, 3, &same);
  TWS_TRY(tws_table_print(cli, &table, err));
  tws_out_wrapped(2, "the fastest settings there%s%s; batch: micro batch x accumulation; memory: of a GPU's%s",
                  same.length ? ", all with " : "", same.length ? same.data : "",
                  with_margin ? " without the margin" : "");
  tws_text_free(&same);
  return TWS_OK;
}

tws_code tws_fit_answer(tws_cli *cli, const tws_smallest_request *request, tws_error *err) {
  tws_smallest_answer *answers = tws_calloc(TWS_SMALLEST_KINDS, sizeof *answers);
  int count = 0;
  if (!answers) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_code code = tws_smallest_find(request, answers, &count, err);
  if (code == TWS_OK && cli->json) {
    code = fit_json(request, answers, count, err);
  } else if (code == TWS_OK) {
    if (answers[0].found) code = fit_table(cli, answers, count, margin_of(request) != NULL, err);
    for (int i = 0; i < count && code == TWS_OK; i++)
      if (!answers[i].found) tws_out_wrapped(8, "none    %s: %s", answers[i].cluster, answers[i].reason);
    const tws_memory_interval *margin = margin_of(request);
    if (margin)
      tws_out_wrapped(8,
                      "Margin  %.1f %% of a device is kept free: nine of ten measured peaks (%s) were at most %.1f %% "
                      "above what was predicted",
                      100 * (1 - 1 / margin->high), margin->of, 100 * (margin->high - 1));
    tws_assumption assumed[TWS_ASSUMPTIONS];
    tws_assumptions_print(cli, assumed, tws_smallest_assumed(request, assumed));
    if (code == TWS_OK && answers[0].found) tws_evidence_print(cli, &answers[0].evidence);
    if (answers[0].found) {
      tws_out("\n");
      if (answers[0].arguments[0]) tws_out_wrapped(2, "look closer: twinspeed estimate %s", answers[0].arguments);
    }
  }
  if (code == TWS_OK && !answers[0].found)
    code = tws_fail(err, TWS_NO, "a shorter sequence, a larger batch to divide, or fewer settings given",
                    "no number of GPUs that was tried does: %s", answers[0].reason);
  tws_free(answers);
  return code;
}
