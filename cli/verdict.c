#include "cli/verdict.h"
#include "base/units.h"

static void print_line(const tws_cli *cli, const char *what, double need, double have, const char *detail) {
  char a[32], b[32], c[32];
  int fits = need <= have;
  tws_out("%s%s%s: %s needs %s and has %s%s; %s %s\n", tws_style(cli, fits ? TWS_GREEN : TWS_RED),
          fits ? "fits" : "does not fit", tws_style(cli, TWS_PLAIN), what, tws_format_bytes(need, a, sizeof a),
          tws_format_bytes(have, b, sizeof b), detail, tws_format_bytes(fits ? have - need : need - have, c, sizeof c),
          fits ? "stay free" : "are missing");
}

void tws_fit_print(const tws_cli *cli, const tws_fit *fit) {
  char detail[128], bytes[32];
  if (!fit->capacity.host) {
    snprintf(detail, sizeof detail, " (%s of it for context and libraries)",
             tws_format_bytes(fit->capacity.overhead, bytes, sizeof bytes));
    print_line(cli, "one device", fit->device_need, fit->capacity.device, fit->capacity.overhead > 0 ? detail : "");
  }
  if (fit->capacity.node > 0 && (fit->capacity.host || fit->node_need > 0)) {
    snprintf(detail, sizeof detail, " host memory (%d rank%s)", fit->capacity.ranks_per_node,
             fit->capacity.ranks_per_node > 1 ? "s" : "");
    print_line(cli, "one node", fit->node_need, fit->capacity.node, detail);
  }
}

cJSON *tws_fit_json(const tws_fit *fit) {
  cJSON *json = cJSON_CreateObject();
  cJSON_AddBoolToObject(json, "fits", fit->fits);
  cJSON_AddNumberToObject(json, "ranks_per_node", fit->capacity.ranks_per_node);
  if (!fit->capacity.host) {
    cJSON_AddNumberToObject(json, "device_need_bytes", fit->device_need);
    cJSON_AddNumberToObject(json, "device_overhead_bytes", fit->capacity.overhead);
    cJSON_AddNumberToObject(json, "device_have_bytes", fit->capacity.device);
  }
  cJSON_AddNumberToObject(json, "node_need_bytes", fit->node_need);
  cJSON_AddNumberToObject(json, "node_have_bytes", fit->capacity.node);
  return json;
}

void tws_evidence_print(const tws_cli *cli, const tws_evidence *evidence) {
  char text[320];
  const int red = evidence->kind == TWS_EVIDENCE_WRONG;
  tws_evidence_text(evidence, text, sizeof text);
  if (*text) tws_out("%sEvidence%s %s\n", tws_style(cli, red ? TWS_RED : TWS_BOLD), tws_style(cli, TWS_PLAIN), text);
}
