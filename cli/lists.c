#include "cli/lists.h"

#include <string.h>

#include "autotune/worker_pool.h"
#include "base/json.h"
#include "base/units.h"
#include "cli/job_view.h"
#include "job/assumed.h"
#include "job/fit.h"
#include "job/measured.h"

const char *const tws_listed_options[] = {"ranks", "pp",  "tp",          "sp",           "ep",
                                          "stage", "seq", "micro-batch", "accumulation", NULL};
/* Names of the CSV's columns: those of the varied options, and those of the results. */
static const char axis_columns[] = "ranks,pp,tp,sp,ep,stage,seq,micro_batch,accumulation,train_batch";
static const char result_columns[] =
    "status,step_s,tokens_per_s,mfu,exposed_s,longest_path_s,device_bytes,device_limit_bytes,node_bytes,reason";
enum { POINTS = 4096, AXIS_VALUES = TWS_LISTS + 1 };

typedef enum status { FITS, TOO_LARGE, REFUSED } status;
static const char *const status_words[] = {"fits", "does not fit", "refused"};

typedef struct point {
  status status;
  /* the job's values of the options; 0 (stage: -1): the job was refused and the option is not given */
  int64_t axes[AXIS_VALUES];
  double step_s, tokens_per_s, mfu, exposed_s, longest_s, device_need, device_limit, node_need;
  char reason[512], hint[256], assumed[1024];
} point;

typedef struct runner {
  const tws_cli *cli;
  const tws_lists_request *request;
  point *points;
  int count;
} runner;

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

/* Sets the options of row `item` of the sweep, a point of the Cartesian product of the option lists: an option with a
 * list gets its value at this point; other options keep the value that the job has. */
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
    p->tokens_per_s = p->tokens_per_s * p->step_s / step;
    p->mfu = p->mfu * p->step_s / step;
    p->step_s = step;
    p->exposed_s = simulated.result.exposed_s;
  }
  tws_simulation_free(&simulated);
  return code;
}

static tws_code compute(const tws_lists_request *request, const tws_job *job, point *p, tws_error *err) {
  tws_estimate e;
  tws_assumption list[TWS_ASSUMPTIONS];
  tws_text text = {0};
  settled(job, p->axes);
  tws_assumptions_text(list, tws_job_assumed(job, list), &text);
  snprintf(p->assumed, sizeof p->assumed, "%s", text.data ? text.data : "");
  tws_text_free(&text);
  TWS_TRY(tws_job_estimate(job, &e, NULL, err));
  const tws_fit fit = tws_job_fit(job, &e.ledger);
  p->step_s = p->longest_s = e.step_s;
  p->tokens_per_s = e.tokens_per_s;
  p->mfu = e.mfu;
  p->exposed_s = e.path.exposed_s;
  p->device_need = fit.device_need;
  p->device_limit = fit.capacity.device;
  p->node_need = fit.node_need;
  if (request->sim) TWS_TRY(simulate(request, job, p, err));
  if (fit.fits) return TWS_OK;
  tws_error why = {0};
  tws_fit_refuse(&fit, NULL, &why);
  p->status = TOO_LARGE;
  snprintf(p->reason, sizeof p->reason, "%.500s", why.message);
  return TWS_OK;
}

/* Evaluates one combination, in a worker. A job that cannot be planned becomes a row with the reason, and the sweep
 * continues. */
static tws_code work(void *user, int item, void *answer, tws_error *err) {
  const tws_lists_request *request = ((const runner *)user)->request;
  point *p = answer;
  tws_error why = {0};
  tws_job *job = NULL;
  char *options = tws_calloc(1, request->options_bytes);
  if (!options) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  memcpy(options, request->options, request->options_bytes);
  choose_point(request->sweep, item, options);
  const tws_job_spec *spec = (const tws_job_spec *)(const void *)(options + request->spec_offset);
  asked_for(spec, p->axes);
  tws_code code = tws_measured_load(spec, &job, &why);
  if (code == TWS_OK) code = tws_job_choose_program(job, request->program, &why);
  if (code == TWS_OK) code = compute(request, job, p, &why);
  if (code != TWS_OK) {
    p->status = REFUSED;
    snprintf(p->reason, sizeof p->reason, "%.500s", why.message);
    snprintf(p->hint, sizeof p->hint, "%.250s", why.hint);
  }
  tws_job_destroy(job);
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

static void add_csv(tws_text *out, const point *points, int count) {
  tws_text_add(out, "%s,%s\n", axis_columns, result_columns);
  for (int i = 0; i < count; i++) {
    const point *p = &points[i];
    for (int a = 0; a < AXIS_VALUES; a++)
      tws_text_add(out, is_said(p, a) ? "%s%lld" : "%s", a ? "," : "", (long long)p->axes[a]);
    tws_text_add(out, ",%s", status_words[p->status]);
    if (p->status == REFUSED)
      tws_text_add(out, ",,,,,,,,,");
    else
      tws_text_add(out, ",%.9g,%.9g,%.6g,%.9g,%.9g,%.0f,%.0f,%.0f,", p->step_s, p->tokens_per_s, p->mfu, p->exposed_s,
                   p->longest_s, p->device_need, p->device_limit, p->node_need);
    tws_csv_field(out, p->reason);
    tws_text_add(out, "\n");
  }
}

static void add_axes_json(const point *p, cJSON *one) {
  const char *at = axis_columns;
  for (int a = 0; a < AXIS_VALUES; a++) {
    char name[32];
    const size_t length = strcspn(at, ",");
    snprintf(name, sizeof name, "%.*s", (int)length, at);
    if (is_said(p, a)) cJSON_AddNumberToObject(one, name, (double)p->axes[a]);
    at += length + (at[length] == ',');
  }
}

static cJSON *points_json(const tws_lists_request *request, const point *points, int count) {
  cJSON *array = cJSON_CreateArray();
  for (int i = 0; i < count; i++) {
    const point *p = &points[i];
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "schema", "twinspeed-sweep-1");
    add_axes_json(p, one);
    cJSON_AddStringToObject(one, "status", status_words[p->status]);
    if (p->status != REFUSED) {
      cJSON_AddNumberToObject(one, "step_s", p->step_s);
      if (request->sim) cJSON_AddNumberToObject(one, "longest_path_s", p->longest_s);
      cJSON_AddNumberToObject(one, "tokens_per_s", p->tokens_per_s);
      cJSON_AddNumberToObject(one, "mfu", p->mfu);
      cJSON_AddNumberToObject(one, "exposed_s", p->exposed_s);
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

static void add_row(const tws_option_lists *sweep, const point *p, tws_table *table) {
  const char *cells[TWS_LISTS + 6];
  char text[32];
  int n = 0;
  for (int a = 0; a < TWS_LISTS; a++)
    if (sweep->axis[a].count > 0) cells[n++] = tws_cell("%lld", (long long)p->axes[a]);
  const int computed = p->status != REFUSED;
  const double need = p->device_limit > 0 ? p->device_need : p->node_need;
  cells[n++] = computed ? tws_cell("%s", tws_format_seconds(p->step_s, text, sizeof text)) : "-";
  cells[n++] = computed ? tws_thousands((int64_t)(p->tokens_per_s + 0.5)) : "-";
  cells[n++] = computed ? tws_cell("%.1f %%", 100 * p->mfu) : "-";
  cells[n++] = computed ? tws_cell("%s", tws_format_bytes(need, text, sizeof text)) : "-";
  cells[n++] = status_words[p->status];
  tws_table_row(table, cells);
}

static tws_code print_points(const tws_cli *cli, const runner *r, tws_error *err) {
  const tws_option_lists *sweep = r->request->sweep;
  const char *heads[TWS_LISTS + 6];
  const char *assumed = "", *reason = "";
  int n = 0;
  tws_table table;
  for (int a = 0; a < TWS_LISTS; a++)
    if (sweep->axis[a].count > 0) heads[n++] = tws_listed_options[a];
  heads[n++] = "step";
  heads[n++] = "tokens/s";
  heads[n++] = "MFU";
  heads[n++] = "memory";
  heads[n++] = "";
  tws_table_init(&table, n);
  tws_table_row(&table, heads);
  for (int i = 0; i < r->count; i++) {
    add_row(sweep, &r->points[i], &table);
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
    add_csv(&text, r->points, r->count);
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
  tws_job *job; /* an error of the shared inputs is reported once */
  TWS_TRY(tws_measured_open(spec, &job, err));
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
