#include "cli/tune_csv.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/lists.h"
#include "cli/tune_view.h"

static void add_candidate(const tws_tune_candidate *c, int fits, const tws_tune_request *request, tws_text *out) {
  const tws_variant *v = &c->variant;
  const double step_s = c->simulated_s > 0 ? c->simulated_s : c->estimate.step_s;
  const int supported = c->verdict != TWS_TUNE_NOT_SUPPORTED, computed = supported && !c->implied && !c->rough;
  char buckets[96];
  tws_variant_buckets(v, buckets, sizeof buckets);
  tws_text_add(out, "%d,%lld,%lld,%s,", v->stage, (long long)v->micro, (long long)v->accumulation,
               tws_recompute_name(v->recompute));
  tws_csv_field(out, tws_variant_axes_cell(v));
  tws_text_add(out, ",%s,%s,", v->overlap ? v->overlap == 2 ? "on" : "off" : "",
               v->offload ? tws_offload_words[v->offload - 1] : "");
  tws_csv_field(out, buckets);
  tws_text_add(out, v->threads > 0 ? ",%d,%d" : ",%d,", v->ranks, v->threads);
  tws_text_add(out, ",%s,%s",
               fits                     ? "fits"
               : computed || c->implied ? "does not fit"
                                        : "refused",
               c->simulated_s > 0 ? "yes" : "no");
  if (computed)
    tws_text_add(out, ",%.9g,%.9g", step_s, tws_tune_throughput(c) * (double)tws_job_sequence(request->job));
  else
    tws_text_add(out, ",,");
  tws_text_add(out, c->measured_s > 0 ? ",%.9g" : ",", c->measured_s);
  tws_text_add(out, ",%.0f,%.0f,", c->needed_bytes, c->available_bytes);
  tws_csv_field(out, c->reason);
  tws_text_add(out, "\n");
}

tws_code tws_tune_csv_write(const char *path, const tws_tune_result *result, const tws_tune_request *request,
                            tws_error *err) {
  tws_text out = {0};
  tws_code code = TWS_OK;
  tws_text_add(
      &out,
      "stage,micro_batch,accumulation,recompute,parallel,overlap,offload,buckets,ranks,threads,status,simulated,"
      "step_s,tokens_per_s,measured_s,needed_bytes,available_bytes,reason\n");
  for (int i = 0; i < result->count; i++) add_candidate(&result->candidates[i], i < result->fits, request, &out);
  /* The search knows only the counts by reason of rejected points that it has not kept. */
  for (int i = 0; i < result->rejection_count; i++) {
    char reason[256];
    long long count = (long long)result->rejections[i].count;
    for (int k = result->fits; k < result->count; k++)
      count -= strcmp(result->candidates[k].reason, result->rejections[i].reason) == 0;
    if (count < 1) continue;
    snprintf(reason, sizeof reason, "%lld point%s: %.200s", count, count == 1 ? "" : "s", result->rejections[i].reason);
    tws_text_add(&out, ",,,,,,,,,,rejected,no,,,,,,");
    tws_csv_field(&out, reason);
    tws_text_add(&out, "\n");
  }
  if (out.failed)
    code = tws_fail(err, TWS_MEMORY, NULL, "out of memory for a table");
  else if (strcmp(path, "-") == 0)
    tws_out_bytes(out.data, out.length);
  else
    code = tws_write_file(path, out.data, out.length, err);
  tws_text_free(&out);
  return code;
}
