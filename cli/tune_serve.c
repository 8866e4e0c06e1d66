#include "cli/tune_serve.h"

#include <string.h>

#include "base/units.h"

static tws_code read_request(const tws_tune_serve_options *o, tws_serve_request *request, tws_error *err) {
  *request = (tws_serve_request){.prompt = o->prompt, .output = o->output};
  if (o->weights && tws_code_type_named(o->weights) == TWS_CODES_NONE)
    return tws_fail(err, TWS_USAGE, "--weights " TWS_CODE_TYPES, "--weights: no type is \"%.40s\"", o->weights);
  if (o->cache && strcmp(o->cache, "fp8") != 0)
    return tws_fail(err, TWS_USAGE, "--cache fp8, or none for the type of activations", "--cache: no type is \"%.40s\"",
                    o->cache);
  request->weight_codes = o->weights ? tws_code_type_named(o->weights) : TWS_CODES_NONE;
  request->cache_bits = o->cache ? 8 : 0;
  request->cache_block = o->cache_block;
  return tws_server_parse(o->software, &request->server, err);
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
                                 some ? tws_cell("%.0f", a->tokens_per_s) : "",
                                 some          ? ""
                                 : *p->refused ? tws_cell("%.100s", p->refused)
                                               : "does not fit, or is slower than the limits"});
  }
  return tws_table_print(cli, &table, err);
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
  tws_serve_point points[TWS_SERVE_POINTS];
  int count = 0;
  TWS_TRY(read_request(o, &request, err));
  tws_arena *arena = tws_arena_create();
  if (!arena) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const tws_serve_limits limits = {o->first_token_s, o->token_s};
  tws_code code = tws_serve_tune(spec, &request, limits, arena, points, &count, err);
  if (code == TWS_OK)
    code = cli->json ? tws_out_json(points_json(points, count), err) : print_points(cli, points, count, err);
  tws_arena_destroy(arena);
  if (code == TWS_OK && points[0].answer.texts == 0)
    return tws_fail(err, TWS_NO, "allow more time, or use more or larger devices",
                    "no division fits within the limits");
  return code;
}
