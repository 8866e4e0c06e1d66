#include "cli/emulate_view.h"

#include <inttypes.h>
#include <math.h>
#include "base/units.h"
#include "cli/job_view.h"

static const char *seconds(double s, char text[32]) {
  return tws_format_seconds(s, text, 32);
}

/* Prints the breakdown of virtual time under failures, and its expected value by formula. */
static void print_faults(const tws_emulation *r) {
  char a[32], b[32], c[32], d[32];
  if (r->saves > 0)
    tws_out("saves: %" PRId64 ", every %" PRId64 " steps; training waited %s for them\n", r->saves, r->save_every,
            seconds(r->save_s, a));
  if (r->restarts == 0) return;
  tws_out("restarts: %" PRId64
          ", the job ends with %d ranks; %s of work was lost, %s passed until failures were known, "
          "%s until training continued\n",
          r->restarts, r->ranks, seconds(r->lost_s, a), seconds(r->detect_s, b), seconds(r->restart_s, c));
  tws_out("goodput: %.2f %% of %s is work that was kept\n", 100 * tws_emulation_goodput(r), seconds(r->virtual_s, a));
  const tws_emulation_theory t = tws_emulation_expected(r);
  if (isnan(t.goodput)) return;
  tws_out("a failure every %s: saving every %s as here gives %.2f %%, ", seconds(r->between_failures_s, a),
          seconds(t.interval_s, b), 100 * t.goodput);
  if (t.daly_s > 0)
    tws_out("every %s (Young: %s) at best %.2f %%\n", seconds(t.daly_s, c), seconds(t.young_s, d),
            100 * t.daly_goodput);
  else
    tws_out("and a save holds up nothing: save as often as disks can\n");
}

void tws_emulation_print(const tws_job *job, const tws_emulation *r) {
  char median[32], virtual_time[32], wall[32], effects[32], bytes[32], evaluated[48] = "";
  if (!isnan(r->last_eval_loss)) snprintf(evaluated, sizeof evaluated, "; evaluation %.4f", r->last_eval_loss);
  tws_out("\nloss %.4f -> %.4f in %" PRId64 " steps%s; a virtual step takes %s (median), all of them %s\n",
          r->first_loss, r->last_loss, r->steps, evaluated, seconds(r->median_step_s, median),
          seconds(r->virtual_s, virtual_time));
  print_faults(r);
  tws_out("it took %s here, %s of it in kernels and copies; %s events\n", seconds(r->wall_s, wall),
          seconds(r->effects_s, effects), tws_thousands((int64_t)r->events));
  tws_out(
      "memory of %d rank%s: %s, %s\n", job->ranks, job->ranks > 1 ? "s" : "",
      tws_format_bytes((double)r->allocated_bytes, bytes, sizeof bytes),
      r->predicted_bytes == r->allocated_bytes ? "as predicted, to the byte" : "NOT as predicted: please report it");
  if (r->shared_bytes > 0)
    tws_out("%s of it are bits that other ranks hold too, and take no memory here\n",
            tws_format_bytes((double)r->shared_bytes, bytes, sizeof bytes));
}

static void add(cJSON *to, const char *name, double value) {
  if (isfinite(value)) cJSON_AddNumberToObject(to, name, value);
}

static void add_theory(cJSON *root, const tws_emulation *r) {
  const tws_emulation_theory t = tws_emulation_expected(r);
  if (isnan(t.goodput)) return;
  cJSON *to = cJSON_AddObjectToObject(root, "formula");
  add(to, "between_failures_s", r->between_failures_s);
  add(to, "interval_s", t.interval_s);
  add(to, "goodput", t.goodput);
  add(to, "young_s", t.young_s);
  add(to, "daly_s", t.daly_s);
  add(to, "daly_goodput", t.daly_goodput);
}

static void add_spans(cJSON *root, const tws_emulation *r) {
  cJSON *list = cJSON_AddArrayToObject(root, "spans");
  for (int i = 0; i < r->span_count; i++) {
    const tws_span *s = &r->spans[i];
    if (s->kind == TWS_SPAN_STEP) continue; /* the member "steps" has the steps */
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "kind", tws_span_name(s->kind));
    cJSON_AddNumberToObject(one, "from_s", s->from_s);
    cJSON_AddNumberToObject(one, "to_s", s->to_s);
    cJSON_AddNumberToObject(one, "step", (double)s->step);
    cJSON_AddItemToArray(list, one);
  }
}

tws_code tws_emulation_print_json(const tws_job *job, const tws_emulation *r, cJSON *steps, const tws_error *failure,
                                  tws_error *err) {
  char digest[24];
  cJSON *root = tws_job_json(job);
  cJSON_AddStringToObject(root, "schema", "twinspeed-emulation-1");
  add(root, "first_loss", r->first_loss);
  add(root, "last_loss", r->last_loss);
  add(root, "eval_loss", r->last_eval_loss);
  add(root, "skipped", (double)r->skipped);
  add(root, "median_step_s", r->median_step_s);
  add(root, "virtual_s", r->virtual_s);
  add(root, "useful_s", r->useful_s);
  add(root, "save_s", r->save_s);
  add(root, "lost_s", r->lost_s);
  add(root, "detect_s", r->detect_s);
  add(root, "restart_s", r->restart_s);
  add(root, "evaluate_s", r->evaluate_s);
  add(root, "goodput", tws_emulation_goodput(r));
  add(root, "restarts", (double)r->restarts);
  add(root, "ranks_at_end", r->ranks);
  add(root, "saves", (double)r->saves);
  add(root, "save_every", (double)r->save_every);
  add_theory(root, r);
  add(root, "wall_s", r->wall_s);
  add(root, "effects_s", r->effects_s);
  add(root, "events", (double)r->events);
  add(root, "predicted_bytes", (double)r->predicted_bytes);
  add(root, "allocated_bytes", (double)r->allocated_bytes);
  add(root, "shared_bytes", (double)r->shared_bytes);
  snprintf(digest, sizeof digest, "%016" PRIx64, r->digest);
  cJSON_AddStringToObject(root, "digest", digest);
  if (failure) cJSON_AddStringToObject(root, "failure", failure->message);
  if (r->last_failure.message[0]) cJSON_AddStringToObject(root, "went_on_from", r->last_failure.message);
  add_spans(root, r);
  if (r->communication) cJSON_AddItemToObject(root, "communication_log", tws_comm_log_json(r->communication));
  cJSON_AddItemToObject(root, "steps", steps);
  return tws_out_json(root, err);
}
