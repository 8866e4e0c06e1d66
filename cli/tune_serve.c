#include "cli/tune_serve.h"

#include <string.h>

#include "base/units.h"
#include "cli/job_view.h"
#include "cli/remarks.h"
#include "cli/serve_view.h"

/* Prints software, model, cluster and assumptions, which all divisions share. */
static tws_code print_shared(const tws_cli *cli, const tws_job_spec *spec, const tws_serve_request *request,
                             tws_error *err) {
  tws_job *job;
  TWS_TRY(tws_job_load(spec, &job, err));
  const tws_code code = tws_job_set_server(job, request->server, err);
  if (code == TWS_OK) tws_serve_job_print(cli, job, request, 0);
  tws_job_destroy(job);
  tws_out("\n");
  return code;
}

static tws_code print_points(const tws_cli *cli, const tws_serve_point *points, int count, tws_error *err) {
  tws_table table;
  char first[32], token[32];
  tws_table_init(&table, 8);
  tws_table_row(
      &table, (const char *[]){"tensor ranks", "stages", "replicas", "texts", "first token", "token", "tokens/s", ""});
  for (int i = 0; i < count; i++) {
    const tws_serve_point *p = &points[i];
    const tws_serve_answer *a = &p->answer;
    const int some = a->texts > 0;
    tws_table_row(
        &table, (const char *[]){tws_cell("%d", p->tensor), tws_cell("%d", p->stages), tws_cell("%d", p->replicas),
                                 some ? tws_cell("%lld", (long long)a->texts) : "",
                                 some ? tws_cell("%s", tws_format_seconds(a->first_token_s, first, sizeof first)) : "",
                                 some ? tws_cell("%s", tws_format_seconds(a->token_s, token, sizeof token)) : "",
                                 some ? tws_thousands((int64_t)(a->tokens_per_s + 0.5)) : "",
                                 some          ? ""
                                 : *p->refused ? tws_cell("%.100s", p->refused)
                                               : "does not fit, or is slower than the limits"});
  }
  TWS_TRY(tws_table_print(cli, &table, err));
  const tws_serve_point *best = &points[0];
  if (best->answer.texts > 0)
    tws_out_wrapped(2,
                    "the first in detail: twinspeed estimate --serve, with the same options and --tp %d --pp %d "
                    "--micro-batch %lld --accumulation %d",
                    best->tensor, best->stages, (long long)best->micro, best->stages);
  return TWS_OK;
}

static cJSON *points_json(const tws_serve_point *points, int count) {
  cJSON *root = cJSON_CreateObject(), *list;
  cJSON_AddStringToObject(root, "schema", "twinspeed-serve-tuning-1");
  list = cJSON_AddArrayToObject(root, "points");
  for (int i = 0; i < count; i++) {
    const tws_serve_point *p = &points[i];
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(list, item);
    cJSON_AddNumberToObject(item, "tensor_ranks", p->tensor);
    cJSON_AddNumberToObject(item, "pipeline_stages", p->stages);
    cJSON_AddNumberToObject(item, "replicas", p->replicas);
    cJSON_AddNumberToObject(item, "texts", (double)p->answer.texts);
    if (*p->refused) cJSON_AddStringToObject(item, "refused", p->refused);
    if (p->answer.texts == 0) continue;
    cJSON_AddNumberToObject(item, "micro_batch", (double)p->micro);
    cJSON_AddNumberToObject(item, "first_token_s", p->answer.first_token_s);
    cJSON_AddNumberToObject(item, "token_s", p->answer.token_s);
    cJSON_AddNumberToObject(item, "tokens_per_s", p->answer.tokens_per_s);
  }
  return root;
}

tws_code tws_tune_serve(tws_cli *cli, const tws_job_spec *spec, const tws_tune_serve_options *o, tws_error *err) {
  tws_serve_request request;
  tws_job_spec serving = *spec;
  tws_serve_point points[TWS_SERVE_POINTS];
  int count = 0;
  TWS_TRY(tws_serve_options_read(&o->texts, &request, err));
  tws_text notes = {0};
  const tws_code read = tws_serve_spec(&serving, &request, &notes, err);
  if (read == TWS_OK) tws_notes_say(cli, &notes);
  tws_text_free(&notes);
  TWS_TRY(read);
  /* all divisions are tried, whatever a configuration of DeepSpeed's inference engine says */
  serving.ranks = spec->ranks;
  serving.tensor_ranks = spec->tensor_ranks;
  serving.expert_ranks = spec->expert_ranks;
  tws_arena *arena = tws_arena_create();
  if (!arena) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const tws_serve_limits limits = {o->first_token_s, o->token_s};
  tws_code code = tws_serve_tune(&serving, &request, limits, arena, points, &count, err);
  if (code == TWS_OK && !cli->json) code = print_shared(cli, &serving, &request, err);
  if (code == TWS_OK)
    code = cli->json ? tws_out_json(points_json(points, count), err) : print_points(cli, points, count, err);
  tws_arena_destroy(arena);
  if (code == TWS_OK && points[0].answer.texts == 0)
    return tws_fail(err, TWS_NO, "allow more time, or use more or larger devices",
                    "no division fits within the limits");
  return code;
}
