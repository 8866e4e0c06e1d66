#include "cli/tune_view.h"

#include <string.h>

#include "base/units.h"
#include "cli/job_view.h"
#include "cli/verdict.h"

const char *tws_variant_axes_cell(const tws_variant *v) {
  char pipeline[48] = "", tensor[32] = "", sequence[32] = "", experts[48] = "", exchange[96];
  if (v->pipeline > 1)
    snprintf(pipeline, sizeof pipeline, "pp %d %s%s", v->pipeline, tws_pipeline_kind_name(v->schedule.kind),
             v->schedule.virtual_stages > 1 ? tws_cell(":%d", v->schedule.virtual_stages) : "");
  if (v->tensor > 1) snprintf(tensor, sizeof tensor, "tp %d%s", v->tensor, v->sequence_parallel ? "+seq" : "");
  if (v->sequence > 1) snprintf(sequence, sizeof sequence, "sp %d", v->sequence);
  if (v->expert > 1) snprintf(experts, sizeof experts, "ep %d", v->expert);
  if (v->capacity > 0)
    snprintf(experts + strlen(experts), sizeof experts - strlen(experts), "%scapacity %g", v->expert > 1 ? ", " : "",
             v->capacity);
  tws_variant_exchanges(v, exchange, sizeof exchange);
  const char *const parts[] = {pipeline, tensor, sequence, experts, exchange};
  char all[272] = "";
  for (int i = 0; i < 5; i++)
    if (*parts[i]) snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", *all ? ", " : "", parts[i]);
  return tws_cell("%s", all);
}

static void add_candidate(const tws_tune_candidate *c, const tws_tune_request *request, tws_table *table) {
  const tws_variant *v = &c->variant;
  const double tokens = tws_tune_tokens_per_s(request, c);
  const tws_evidence evidence = tws_evidence_of_variant(request->job, v, tws_tune_predicted(c));
  char predicted[32], measured[32] = "-", memory[32], buckets[96];
  tws_variant_buckets(v, buckets, sizeof buckets);
  tws_format_seconds(tws_tune_predicted(c), predicted, sizeof predicted);
  if (c->measured_s > 0) tws_format_seconds(c->measured_s, measured, sizeof measured);
  tws_table_row(
      table,
      (const char *[]){
          tws_cell("%d", v->stage), tws_cell("%lld x %lld", (long long)v->micro, (long long)v->accumulation),
          tws_recompute_name(v->recompute), tws_variant_axes_cell(v), v->overlap ? v->overlap == 2 ? "on" : "off" : "",
          v->offload ? tws_offload_words[v->offload - 1] : "", tws_cell("%s", buckets), tws_cell("%d", v->ranks),
          v->threads > 0 ? tws_cell("%d", v->threads) : "-", evidence.nearest ? tws_evidence_word(evidence.kind) : "-",
          tws_cell("%s%s", c->simulated_s > 0 ? "" : "~", predicted), measured, tws_thousands((int64_t)(tokens + 0.5)),
          tws_cell("%s%s", tws_format_bytes(c->needed_bytes, memory, sizeof memory),
                   tws_tune_is_tight(request, c) ? " tight" : "")});
}

static tws_code print_candidates(const tws_cli *cli, const tws_tune_result *result, const tws_tune_request *request,
                                 int rows, tws_error *err) {
  tws_table table;
  tws_text same = {0};
  int paths = 0, tight = 0;
  tws_table_init(&table, 14);
  tws_table_row(&table,
                (const char *[]){"ZeRO", "batch", "recompute", "parallel", "overlap", "offload", "buckets", "ranks",
                                 "threads", "evidence", "step", "measured", "tokens/s", "memory/rank"});
  for (int i = 0; i < result->fits && i < rows; i++) {
    add_candidate(&result->candidates[i], request, &table);
    paths |= !(result->candidates[i].simulated_s > 0);
    tight |= tws_tune_is_tight(request, &result->candidates[i]);
  }
  tws_table_compact(&table, 2, 4, &same);
  tws_code code = tws_table_print(cli, &table, err);
  if (result->fits > rows) tws_out("... and %d more that fit\n", result->fits - rows);
  tws_out_wrapped(5, "%s%s%sbatch: micro batch x accumulation%s", same.length ? "with " : "",
                  same.length ? same.data : "", same.length ? "; " : "",
                  paths ? "; ~: longest path, not simulated" : "");
  if (tight) {
    const tws_memory_interval *seen = tws_runtime_memory_interval(tws_profile_runtime(request->job->profile));
    tws_out_wrapped(2,
                    "tight: one in twenty measured peaks (%s) exceeded the prediction by %.1f %% or more, which is "
                    "beyond the device; --no-tight leaves these out",
                    seen->of, 100 * (seen->high - 1));
  }
  tws_text_free(&same);
  return code;
}

/* Prints the counts of points by outcome for a space that was not planned completely. */
static void print_swept(const tws_tune_swept *s) {
  char search[32], plan[32], simulate[32];
  tws_out("%s bounds and %s plans were made, in %s and %s of CPU", tws_thousands(s->bounds), tws_thousands(s->plans),
          tws_format_seconds(s->search_cpu_s, search, sizeof search),
          tws_format_seconds(s->plan_cpu_s, plan, sizeof plan));
  if (s->simulate_cpu_s > 0)
    tws_out("; simulations took %s", tws_format_seconds(s->simulate_cpu_s, simulate, sizeof simulate));
  tws_out("\n");
  for (int i = 0; i < TWS_SWEPT_OUTCOMES; i++) {
    const tws_swept_outcome way = tws_tune_swept_outcome(s, i);
    if (way.count > 0) tws_out("  %12s  %s\n", tws_thousands(way.count), way.what);
  }
}

static void print_left(const tws_tune_result *result) {
  const tws_tune_swept *s = &result->swept;
  if (s->left == 0) return;
  if (s->left_better < 0)
    tws_out("the budget ended the search: how much better what is left could be is not known\n");
  else if (s->left_better == 0)
    tws_out("the budget ended the search, and nothing that is left is better than the best\n");
  else
    tws_out("the budget ended the search: what is left is at most %.1f %% better than the best\n",
            100 * s->left_better);
}

/* Prints the predicted step of the best candidate, its interval, and the nearest measured run. */
static void print_winner(const tws_cli *cli, const tws_tune_request *request, const tws_tune_candidate *first) {
  const double step_s = tws_tune_predicted(first);
  const tws_evidence evidence = tws_evidence_of_variant(request->job, &first->variant, step_s);
  char step[32], interval[96];
  tws_evidence_interval_text(&evidence, step_s, interval, sizeof interval);
  if (*interval)
    tws_out("%sStep of the first%s   %s%s\n", tws_style(cli, TWS_BOLD), tws_style(cli, TWS_PLAIN_OUTPUT),
            tws_format_seconds(step_s, step, sizeof step), interval);
  tws_evidence_print(cli, &evidence);
}

tws_code tws_tune_print(const tws_cli *cli, const tws_tune_result *result, const tws_tune_request *request, int rows,
                        tws_error *err) {
  const tws_tune_swept *s = &result->swept;
  if (result->fits > 0) TWS_TRY(print_candidates(cli, result, request, rows, err));
  tws_out("%s configurations: %s planned that fit, %s rejected, %d simulated\n", tws_thousands(tws_tune_points(result)),
          tws_thousands(s->planned), tws_thousands(s->too_large + s->refused), result->simulated);
  if (!result->every) print_swept(s);
  print_left(result);
  for (int i = 0; i < result->rejection_count; i++)
    tws_out("  %6s  %s\n", tws_thousands(result->rejections[i].count), result->rejections[i].reason);
  if (result->fits == 0) return TWS_OK;
  print_winner(cli, request, &result->candidates[0]);
  return TWS_OK;
}
