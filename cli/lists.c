#include "cli/lists.h"

#include <string.h>

#include "autotune/worker_pool.h"
#include "base/json.h"
#include "base/units.h"
#include "cli/job_view.h"
#include "cli/serve_options.h"
#include "cli/serve_view.h"
#include "job/assumed.h"
#include "job/fit.h"
#include "job/measured.h"

const char *const tws_listed_options[] = {"ranks", "pp",  "tp",          "sp",           "ep",
                                          "stage", "seq", "micro-batch", "accumulation", NULL};
enum { POINTS = 4096, AXIS_VALUES = TWS_LISTS + 1, MOST_RESULTS = 6 };

/* A column of results other than memory: its name in the CSV and in JSON, its head in the table (NULL: it is not in the
 * table), and how the table prints it. */
typedef enum unit { SECONDS, TOKENS_PER_S, SHARE } unit;
typedef struct column {
  const char *name, *head;
  unit unit;
  int simulated; /* 1: JSON has it only of simulated steps */
} column;

/* A kind of question: the names of the options' columns, and the columns of results. */
typedef struct question {
  const char *schema, *axes;
  int count;
  column columns[MOST_RESULTS];
} question;

enum { STEP, STEP_TOKENS, MFU, EXPOSED, LONGEST }; /* results of a training step, in the order of its columns */
static const question training = {"twinspeed-sweep-1",
                                  "ranks,pp,tp,sp,ep,stage,seq,micro_batch,accumulation,train_batch",
                                  LONGEST + 1,
                                  {{"step_s", "step", SECONDS, 0},
                                   {"tokens_per_s", "tokens/s", TOKENS_PER_S, 0},
                                   {"mfu", "MFU", SHARE, 0},
                                   {"exposed_s", NULL, SECONDS, 0},
                                   {"longest_path_s", NULL, SECONDS, 1}}};
enum { FIRST_TOKEN, TOKEN, TEXT, TEXT_TOKENS, DECODED_TOKENS, PROMPT_TOKENS }; /* results of an inference */
static const question inference = {"twinspeed-serve-sweep-1",
                                   "ranks,pp,tp,sp,ep,stage,text_tokens,micro_batch,accumulation,texts",
                                   PROMPT_TOKENS + 1,
                                   {{"first_token_s", "first token", SECONDS, 0},
                                    {"token_s", "a token", SECONDS, 0},
                                    {"text_s", "a text", SECONDS, 0},
                                    {"tokens_per_s", "tokens/s", TOKENS_PER_S, 0},
                                    {"decoded_tokens_per_s", NULL, TOKENS_PER_S, 0},
                                    {"prompt_tokens_per_s", NULL, TOKENS_PER_S, 0}}};

typedef enum status { FITS, TOO_LARGE, REFUSED } status;
static const char *const status_words[] = {"fits", "does not fit", "refused"};

typedef struct point {
  status status;
  /* the job's values of the options; 0 (stage: -1): the job was refused and the option is not given */
  int64_t axes[AXIS_VALUES];
  double results[MOST_RESULTS]; /* of the question's columns */
  double device_need, device_limit, node_need;
  char reason[512], hint[256], assumed[1024];
} point;

typedef struct runner {
  const tws_cli *cli;
  const tws_lists_request *request;
  point *points;
  int count;
} runner;

static const question *question_of(const tws_lists_request *request) {
  return request->serving ? &inference : &training;
}

int tws_lists_given(const tws_option_lists *sweep) {
  for (int i = 0; i < TWS_LISTS; i++)
    if (sweep->axis[i].count > 0) return 1;
  return 0;
}

static int64_t point_count(const tws_option_lists *sweep) {
  int64_t count = 1;
  for (int i = 0; i < TWS_LISTS && count <= POINTS; i++)
    if (sweep->axis[i].count > 0) count *= sweep->axis[i].count;
  return count;
}

/* Sets the options of point `item` of the Cartesian product of the option lists; options without a list keep the job's
 * value. */
static void choose_point(const tws_option_lists *sweep, int item, char *options) {
  for (int i = TWS_LISTS - 1; i >= 0; i--) {
    const tws_option_list *axis = &sweep->axis[i];
    if (axis->count == 0) continue;
    *(int64_t *)(void *)(options + axis->offset) = axis->values[item % axis->count];
    item /= axis->count;
  }
}

static void asked_for(const tws_job_spec *spec, int64_t axes[AXIS_VALUES]) {
  const int64_t asked[AXIS_VALUES] = {
      spec->ranks, spec->pipeline_stages, spec->tensor_ranks, spec->sequence_ranks, spec->expert_ranks,
      spec->stage, spec->sequence,        spec->micro_batch,  spec->accumulation,   0};
  memcpy(axes, asked, sizeof asked);
}

static void settled(const tws_job *job, int64_t axes[AXIS_VALUES]) {
  const tws_config *c = job->config;
  const int64_t found[AXIS_VALUES] = {job->ranks,
                                      tws_job_stages(job),
                                      tws_job_ranks_along(job, TWS_AXIS_MODEL),
                                      tws_job_ranks_along(job, TWS_AXIS_SEQUENCE),
                                      tws_job_ranks_along(job, TWS_AXIS_EXPERT),
                                      c->zero.stage,
                                      tws_job_sequence(job),
                                      c->micro_batch_size,
                                      c->accumulation_steps,
                                      c->train_batch_size};
  memcpy(axes, found, sizeof found);
}

static tws_code simulate(const tws_lists_request *request, const tws_job *job, point *p, tws_error *err) {
  enum { MOST_PLANS = 4096 };
  const int every = request->all_ranks || job->backend == TWS_BACKEND_HOST;
  const tws_simulation_request how = {.sim = request->sim,
                                      .fidelity = request->fidelity,
                                      .every_up_to = every ? job->ranks : 0,
                                      .most_plans = MOST_PLANS};
  tws_simulation simulated = {0};
  const tws_code code = tws_job_simulate(job, &how, &simulated, err);
  const double step = simulated.result.step_s;
  if (code == TWS_OK && step > 0) {
    p->results[STEP_TOKENS] = p->results[STEP_TOKENS] * p->results[STEP] / step;
    p->results[MFU] = p->results[MFU] * p->results[STEP] / step;
    p->results[STEP] = step;
    p->results[EXPOSED] = simulated.result.exposed_s;
  }
  tws_simulation_free(&simulated);
  return code;
}

static void note_assumptions(const tws_assumption *list, int count, point *p) {
  tws_text text = {0};
  tws_assumptions_text(list, count, &text);
  snprintf(p->assumed, sizeof p->assumed, "%s", text.data ? text.data : "");
  tws_text_free(&text);
}

static void note_memory(const tws_fit *fit, point *p) {
  tws_error why = {0};
  p->device_need = fit->device_need;
  p->device_limit = fit->capacity.device;
  p->node_need = fit->node_need;
  if (fit->fits) return;
  tws_fit_refuse(fit, NULL, &why);
  p->status = TOO_LARGE;
  snprintf(p->reason, sizeof p->reason, "%.500s", why.message);
}

static tws_code compute_step(const tws_lists_request *request, tws_job_spec *spec, point *p, tws_error *err) {
  tws_estimate e;
  tws_job *job;
  tws_assumption assumed[TWS_ASSUMPTIONS];
  TWS_TRY(tws_measured_load(spec, &job, err));
  tws_code code = tws_job_choose_program(job, request->program, err);
  if (code == TWS_OK) {
    settled(job, p->axes);
    note_assumptions(assumed, tws_job_assumed(job, assumed), p);
    code = tws_job_estimate(job, &e, NULL, err);
  }
  if (code == TWS_OK) {
    const tws_fit fit = tws_job_fit(job, &e.ledger);
    p->results[STEP] = p->results[LONGEST] = e.step_s;
    p->results[STEP_TOKENS] = e.tokens_per_s;
    p->results[MFU] = e.mfu;
    p->results[EXPOSED] = e.path.exposed_s;
    if (request->sim) code = simulate(request, job, p, err);
    if (code == TWS_OK) note_memory(&fit, p);
  }
  tws_job_destroy(job);
  return code;
}

static tws_code compute_inference(const tws_lists_request *request, tws_job_spec *spec, point *p, tws_error *err) {
  tws_serve_request serving = *request->serving;
  tws_serve_answer a;
  tws_job *job;
  tws_assumption assumed[TWS_SERVE_ASSUMPTIONS];
  TWS_TRY(tws_serve_spec(spec, &serving, NULL, err));
  TWS_TRY(tws_job_load(spec, &job, err));
  settled(job, p->axes);
  tws_code code = tws_job_set_server(job, serving.server, err);
  note_assumptions(assumed, tws_serve_assumed(job, &serving, assumed), p);
  if (code == TWS_OK) code = tws_job_serve(job, &serving, &a, err);
  tws_job_destroy(job);
  TWS_TRY(code);
  p->axes[TWS_LISTS] = a.texts;
  p->results[FIRST_TOKEN] = a.first_token_s;
  p->results[TOKEN] = a.token_s;
  p->results[TEXT] = a.text_s;
  p->results[TEXT_TOKENS] = a.tokens_per_s;
  p->results[DECODED_TOKENS] = a.decoded_per_s;
  p->results[PROMPT_TOKENS] = a.prompt_tokens_per_s;
  note_memory(&a.fit, p);
  return TWS_OK;
}

/* Evaluates one combination, in a worker. A job that cannot be planned becomes a row with the reason, and the sweep
 * continues. */
static tws_code work(void *user, int item, void *answer, tws_error *err) {
  const tws_lists_request *request = ((const runner *)user)->request;
  point *p = answer;
  tws_error why = {0};
  char *options = tws_calloc(1, request->options_bytes);
  if (!options) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  memcpy(options, request->options, request->options_bytes);
  choose_point(request->sweep, item, options);
  tws_job_spec *spec = (tws_job_spec *)(void *)(options + request->spec_offset);
  asked_for(spec, p->axes);
  const tws_code code = (request->serving ? compute_inference : compute_step)(request, spec, p, &why);
  if (code != TWS_OK) {
    p->status = REFUSED;
    snprintf(p->reason, sizeof p->reason, "%.500s", why.message);
    snprintf(p->hint, sizeof p->hint, "%.250s", why.hint);
  }
  tws_free(options);
  if (code == TWS_OK || (code != TWS_MEMORY && code != TWS_INTERNAL && code != TWS_ENVIRONMENT && code != TWS_IO))
    return TWS_OK;
  if (err) *err = why;
  return code;
}

static tws_code keep(void *user, int item, const void *answer, int *stop, tws_error *err) {
  runner *r = user;
  (void)stop, (void)err;
  r->points[item] = *(const point *)answer;
  return TWS_OK;
}

/* ---- printing ---- */

void tws_csv_field(tws_text *out, const char *text) {
  if (!strpbrk(text, ",\"\n\r")) {
    tws_text_add(out, "%s", text);
    return;
  }
  tws_text_add(out, "\"");
  for (; *text; text++) tws_text_add(out, *text == '"' ? "\"\"" : "%c", *text);
  tws_text_add(out, "\"");
}

static int is_said(const point *p, int axis) {
  return strcmp(axis < TWS_LISTS ? tws_listed_options[axis] : "", "stage") == 0 ? p->axes[axis] >= 0
                                                                                : p->axes[axis] > 0;
}

static void add_csv(const question *asked, tws_text *out, const point *points, int count) {
  tws_text_add(out, "%s,status", asked->axes);
  for (int c = 0; c < asked->count; c++) tws_text_add(out, ",%s", asked->columns[c].name);
  tws_text_add(out, ",device_bytes,device_limit_bytes,node_bytes,reason\n");
  for (int i = 0; i < count; i++) {
    const point *p = &points[i];
    for (int a = 0; a < AXIS_VALUES; a++)
      tws_text_add(out, is_said(p, a) ? "%s%lld" : "%s", a ? "," : "", (long long)p->axes[a]);
    tws_text_add(out, ",%s", status_words[p->status]);
    for (int c = 0; c < asked->count; c++)
      tws_text_add(out,
                   p->status == REFUSED              ? ","
                   : asked->columns[c].unit == SHARE ? ",%.6g"
                                                     : ",%.9g",
                   p->results[c]);
    tws_text_add(out, p->status == REFUSED ? ",,,," : ",%.0f,%.0f,%.0f,", p->device_need, p->device_limit,
                 p->node_need);
    tws_csv_field(out, p->reason);
    tws_text_add(out, "\n");
  }
}

static void add_axes_json(const question *asked, const point *p, cJSON *one) {
  const char *at = asked->axes;
  for (int a = 0; a < AXIS_VALUES; a++) {
    char name[32];
    const size_t length = strcspn(at, ",");
    snprintf(name, sizeof name, "%.*s", (int)length, at);
    if (is_said(p, a)) cJSON_AddNumberToObject(one, name, (double)p->axes[a]);
    at += length + (at[length] == ',');
  }
}

static cJSON *points_json(const tws_lists_request *request, const point *points, int count) {
  const question *asked = question_of(request);
  cJSON *array = cJSON_CreateArray();
  for (int i = 0; i < count; i++) {
    const point *p = &points[i];
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "schema", asked->schema);
    add_axes_json(asked, p, one);
    cJSON_AddStringToObject(one, "status", status_words[p->status]);
    if (p->status != REFUSED) {
      for (int c = 0; c < asked->count; c++)
        if (!asked->columns[c].simulated || request->sim)
          cJSON_AddNumberToObject(one, asked->columns[c].name, p->results[c]);
      cJSON_AddNumberToObject(one, "device_bytes", p->device_need);
      cJSON_AddNumberToObject(one, "device_limit_bytes", p->device_limit);
      cJSON_AddNumberToObject(one, "node_bytes", p->node_need);
    }
    if (*p->reason) cJSON_AddStringToObject(one, "reason", p->reason);
    if (*p->hint) cJSON_AddStringToObject(one, "hint", p->hint);
    if (*p->assumed) cJSON_AddStringToObject(one, "assumed", p->assumed);
    cJSON_AddItemToArray(array, one);
  }
  return array;
}

static const char *result_cell(unit of, double value) {
  char text[32];
  if (of == SECONDS) return tws_cell("%s", tws_format_seconds(value, text, sizeof text));
  if (of == SHARE) return tws_cell("%.1f %%", 100 * value);
  return tws_thousands((int64_t)(value + 0.5));
}

static void add_row(const tws_lists_request *request, const point *p, tws_table *table) {
  const question *asked = question_of(request);
  const char *cells[TWS_LISTS + MOST_RESULTS + 2];
  char text[32];
  int n = 0;
  for (int a = 0; a < TWS_LISTS; a++)
    if (request->sweep->axis[a].count > 0) cells[n++] = tws_cell("%lld", (long long)p->axes[a]);
  const int computed = p->status != REFUSED;
  const double need = p->device_limit > 0 ? p->device_need : p->node_need;
  for (int c = 0; c < asked->count; c++)
    if (asked->columns[c].head) cells[n++] = computed ? result_cell(asked->columns[c].unit, p->results[c]) : "-";
  cells[n++] = computed ? tws_cell("%s", tws_format_bytes(need, text, sizeof text)) : "-";
  cells[n++] = status_words[p->status];
  tws_table_row(table, cells);
}

static tws_code print_points(const tws_cli *cli, const runner *r, tws_error *err) {
  const tws_option_lists *sweep = r->request->sweep;
  const question *asked = question_of(r->request);
  const char *heads[TWS_LISTS + MOST_RESULTS + 2];
  const char *assumed = "", *reason = "";
  int n = 0;
  tws_table table;
  for (int a = 0; a < TWS_LISTS; a++)
    if (sweep->axis[a].count > 0) heads[n++] = tws_listed_options[a];
  for (int c = 0; c < asked->count; c++)
    if (asked->columns[c].head) heads[n++] = asked->columns[c].head;
  heads[n++] = "memory";
  heads[n++] = "";
  tws_table_init(&table, n);
  tws_table_row(&table, heads);
  for (int i = 0; i < r->count; i++) {
    add_row(r->request, &r->points[i], &table);
    if (!*assumed) assumed = r->points[i].assumed;
  }
  TWS_TRY(tws_table_print(cli, &table, err));
  for (int i = 0; i < r->count; i++) {
    const point *p = &r->points[i];
    if (p->status != REFUSED || strcmp(p->reason, reason) == 0) continue;
    reason = p->reason;
    tws_out_wrapped(4, "refused: %s%s%s", p->reason, *p->hint ? "; " : "", p->hint);
  }
  if (*assumed) tws_out_wrapped(9, "Assumed  %s", assumed);
  return TWS_OK;
}

static tws_code tell(const tws_cli *cli, const runner *r, tws_error *err) {
  const char *csv = r->request->csv;
  const int prints_csv = csv && strcmp(csv, "-") == 0;
  tws_text text = {0};
  tws_code code = TWS_OK;
  if (csv) {
    add_csv(question_of(r->request), &text, r->points, r->count);
    if (text.failed)
      code = tws_fail(err, TWS_MEMORY, NULL, "out of memory for a table");
    else if (prints_csv)
      tws_out_bytes(text.data, text.length);
    else
      code = tws_write_file(csv, text.data, text.length, err);
    tws_text_free(&text);
  }
  TWS_TRY(code);
  if (prints_csv) return TWS_OK;
  if (cli->json) return tws_out_json(points_json(r->request, r->points, r->count), err);
  return print_points(cli, r, err);
}

tws_code tws_lists_run(const tws_cli *cli, const tws_lists_request *request, tws_error *err) {
  const tws_job_spec *spec =
      (const tws_job_spec *)(const void *)((const char *)request->options + request->spec_offset);
  const int64_t count = point_count(request->sweep);
  double cpu_s = 0;
  int fits = 0;
  if (!spec->model)
    return tws_fail(err, TWS_USAGE, "give -m MODEL: a Hugging Face config.json or a built-in name such as gpt2",
                    "no model was given");
  if (count > POINTS)
    return tws_fail(err, TWS_USAGE, "give shorter lists", "the lists have more than %d combinations", POINTS);
  if (cli->json && request->csv && strcmp(request->csv, "-") == 0)
    return tws_fail(err, TWS_USAGE, "give one of them a file", "--json and --csv - both go to standard output");
  TWS_TRY(tws_job_spec_check_shared(spec, err));
  tws_job_spec shared = *spec; /* an error of the shared inputs is reported once */
  if (request->serving) {
    tws_serve_request serving = *request->serving;
    TWS_TRY(tws_serve_spec(&shared, &serving, NULL, err));
  }
  tws_job *job;
  TWS_TRY(tws_measured_open(&shared, &job, err));
  tws_job_destroy(job);
  runner r = {.cli = cli, .request = request, .count = (int)count};
  r.points = tws_calloc((size_t)count, sizeof *r.points);
  if (!r.points) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for %d points", r.count);
  const tws_worker_pool_list list = {
      .items = r.count, .answer_bytes = sizeof(point), .work = work, .read = keep, .user = &r, .large = 1};
  tws_code code = tws_worker_pool_process(&list, tws_worker_pool_size(0), &cpu_s, err);
  if (code == TWS_OK) code = tell(cli, &r, err);
  for (int i = 0; i < r.count; i++) fits += r.points[i].status == FITS;
  if (code == TWS_OK && fits == 0)
    code = tws_fail(err, TWS_NO, r.points[0].hint, "none of the %d points fits; the first: %s", r.count,
                    r.points[0].reason);
  tws_free(r.points);
  return code;
}
