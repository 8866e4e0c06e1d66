#include "cli/verdict.h"
#include "base/units.h"

static void print_line(const tws_cli *cli, const char *what, double need, double have, int tight, const char *detail) {
  char a[32], b[32], c[32];
  int fits = need <= have;
  tws_out_wrapped(2, "%s%s%s: %s needs %s and has %s%s; %s %s",
                  tws_style(cli, tight  ? TWS_BOLD
                                 : fits ? TWS_GREEN
                                        : TWS_RED),
                  tight  ? "tight"
                  : fits ? "fits"
                         : "does not fit",
                  tws_style(cli, TWS_PLAIN_OUTPUT), what, tws_format_bytes(need, a, sizeof a),
                  tws_format_bytes(have, b, sizeof b), detail,
                  tws_format_bytes(fits ? have - need : need - have, c, sizeof c), fits ? "stay free" : "short");
}

/* Prints the interval in which measured memory peaks lay, relative to their predictions, for runs with the job's
 * runtime. */
static void print_seen(const tws_fit *fit) {
  char low[32], high[32];
  if (!fit->seen || !(fit->seen->high > 1)) return;
  tws_out_wrapped(2, "  nine of ten measured peaks (%s) were between %s and %s for such a prediction", fit->seen->of,
                  tws_format_bytes(fit->device_need * fit->seen->low, low, sizeof low),
                  tws_format_bytes(fit->device_need * fit->seen->high, high, sizeof high));
}

void tws_fit_print(const tws_cli *cli, const tws_fit *fit) {
  char detail[128], bytes[32];
  if (!fit->capacity.host) {
    snprintf(detail, sizeof detail, " (%s of it for context and libraries)",
             tws_format_bytes(fit->capacity.overhead, bytes, sizeof bytes));
    print_line(cli, "one device", fit->device_need, fit->capacity.device, fit->tight,
               fit->capacity.overhead > 0 ? detail : "");
    print_seen(fit);
  }
  if (fit->capacity.node > 0 && (fit->capacity.host || fit->node_need > 0)) {
    const int used = snprintf(detail, sizeof detail, " host memory (%d rank%s", fit->capacity.ranks_per_node,
                              fit->capacity.ranks_per_node > 1 ? "s" : "");
    if (fit->node_software > 0)
      snprintf(detail + used, sizeof detail - (size_t)used, ", %s beyond the plan)",
               tws_format_bytes(fit->node_software, bytes, sizeof bytes));
    else
      snprintf(detail + used, sizeof detail - (size_t)used, ")");
    print_line(cli, "one node", fit->node_need, fit->capacity.node, 0, detail);
  }
}

void tws_fit_warn(const tws_cli *cli, const tws_fit *fit) {
  tws_error why = {0};
  if (fit->fits) return;
  tws_fit_refuse(fit, NULL, &why);
  tws_warn(cli, "%s; times are those of enough memory", why.message);
}

cJSON *tws_fit_json(const tws_fit *fit) {
  cJSON *json = cJSON_CreateObject();
  cJSON_AddBoolToObject(json, "fits", fit->fits);
  cJSON_AddStringToObject(json, "answer", fit->tight ? "tight" : fit->fits ? "fits" : "does not fit");
  cJSON_AddNumberToObject(json, "ranks_per_node", fit->capacity.ranks_per_node);
  if (!fit->capacity.host) {
    cJSON_AddNumberToObject(json, "device_need_bytes", fit->device_need);
    cJSON_AddNumberToObject(json, "device_overhead_bytes", fit->capacity.overhead);
    cJSON_AddNumberToObject(json, "device_have_bytes", fit->capacity.device);
    if (fit->seen) {
      cJSON *seen = cJSON_AddObjectToObject(json, "device_seen");
      cJSON_AddNumberToObject(seen, "low_bytes", fit->device_need * fit->seen->low);
      cJSON_AddNumberToObject(seen, "high_bytes", fit->device_need * fit->seen->high);
      cJSON_AddNumberToObject(seen, "runs", fit->seen->runs);
      cJSON_AddNumberToObject(seen, "groups", fit->seen->groups);
      cJSON_AddStringToObject(seen, "of", fit->seen->of);
    }
  }
  cJSON_AddNumberToObject(json, "node_need_bytes", fit->node_need);
  cJSON_AddNumberToObject(json, "node_software_bytes", fit->node_software);
  cJSON_AddNumberToObject(json, "node_have_bytes", fit->capacity.node);
  return json;
}

void tws_bottleneck_print(const tws_cli *cli, const tws_path_result *path) {
  const tws_bottleneck b = tws_path_bottleneck(path);
  char seconds[32], without[32];
  tws_out("%sBottleneck%s %s: %s%s%s\n", tws_style(cli, TWS_BOLD), tws_style(cli, TWS_PLAIN_OUTPUT), b.resource, b.what,
          b.axis >= 0 ? ", most of it along " : "", b.axis >= 0 ? tws_report_name(b.axis) : "");
  tws_out("  takes %s, %.0f %% of the step; next: %s, %.0f %%\n",
          tws_format_seconds(b.seconds, seconds, sizeof seconds), 100 * b.share, b.next, 100 * b.next_share);
  tws_out("  without it a step would take %s at least, %.3g times as fast at most\n",
          tws_format_seconds(b.without_s, without, sizeof without), b.without_s > 0 ? path->step_s / b.without_s : 1);
}

void tws_bottleneck_json(const tws_path_result *path, cJSON *result) {
  const tws_bottleneck b = tws_path_bottleneck(path);
  cJSON_AddStringToObject(result, "bottleneck", path->text);
  cJSON *json = cJSON_AddObjectToObject(result, "limited_by");
  cJSON_AddStringToObject(json, "resource", b.resource);
  cJSON_AddStringToObject(json, "what", b.what);
  if (b.axis >= 0) cJSON_AddStringToObject(json, "axis", tws_report_name(b.axis));
  cJSON_AddNumberToObject(json, "seconds", b.seconds);
  cJSON_AddNumberToObject(json, "share", b.share);
  cJSON_AddNumberToObject(json, "step_without_s", b.without_s);
  cJSON_AddStringToObject(json, "next", b.next);
  cJSON_AddNumberToObject(json, "next_share", b.next_share);
}

void tws_evidence_print(const tws_cli *cli, const tws_evidence *evidence) {
  char text[512];
  const int red = evidence->kind == TWS_EVIDENCE_WRONG;
  tws_evidence_text(evidence, text, sizeof text);
  if (*text)
    tws_out_wrapped(9, "%sEvidence%s %s", tws_style(cli, red ? TWS_RED : TWS_BOLD), tws_style(cli, TWS_PLAIN_OUTPUT),
                    text);
}

void tws_advice_print(const tws_cli *cli, const tws_advice *list, int count) {
  for (int i = 0; i < count; i++) {
    char bytes[32];
    const tws_advice *a = &list[i];
    tws_out_wrapped(9, "%s%s%s%s: fits, %+.0f %% tokens/s, %s a device%s (%s)", tws_style(cli, TWS_BOLD),
                    i ? "         " : "Advice   ", tws_style(cli, TWS_PLAIN_OUTPUT), a->words, 100 * a->gain,
                    tws_format_bytes(a->device_bytes, bytes, sizeof bytes),
                    a->changes_results ? "; it changes the training" : "", a->arguments);
  }
}
