/* twinspeed inspect: the contents of a saved checkpoint, without ranks: its tensors, their statistics, the histogram of
 * some, and the differences between two checkpoints. */
#include <math.h>
#include <string.h>
#include "base/units.h"
#include "checkpoint/folder.h"
#include "checkpoint/inspect.h"
#include "cli/cli.h"

typedef struct options {
  const char *tag, *other_tag, *tensor, *state;
  int statistics;
  int64_t histogram;
  double tolerance;
} options;

typedef struct opened {
  char path[TWS_FOLDER_SIZE];
  tws_saved_index *index;
  tws_saved_reader reader;
  tws_saved_tensor *tensors;
  uint32_t count;
} opened;

/* ---- reading ---- */

static tws_code open_checkpoint(const char *folder, const char *tag, tws_arena *arena, opened *c, tws_error *err) {
  TWS_TRY(tws_folder_find(folder, tag, c->path, sizeof c->path, err));
  TWS_TRY(tws_saved_open(c->path, &c->index, err));
  TWS_TRY(tws_saved_reader_open(c->index, &c->reader, err));
  return tws_saved_tensors(c->index, arena, &c->tensors, &c->count, err);
}

static void close_checkpoint(opened *c) {
  if (c->reader.index) tws_saved_reader_close(&c->reader);
  tws_saved_close(c->index);
}

static const char *name_of(const opened *c, const tws_saved_tensor *t) {
  return c->index->params[t->param].name;
}

static const char *state_of(const opened *c, const tws_saved_tensor *t) {
  return c->index->entries[t->entry].name;
}

static int is_wanted(const options *o, const opened *c, const tws_saved_tensor *t) {
  return (!o->tensor || strstr(name_of(c, t), o->tensor)) && (!o->state || strcmp(state_of(c, t), o->state) == 0);
}

/* Keeps the tensors that the options name; fails if there are none. */
static tws_code choose(const options *o, opened *c, tws_error *err) {
  uint32_t kept = 0;
  char hint[512] = "";
  for (uint32_t i = 0; i < c->index->entry_count; i++)
    snprintf(hint + strlen(hint), sizeof hint - strlen(hint), "%s%.60s",
             i ? ", " : "states: ", c->index->entries[i].name);
  for (uint32_t i = 0; i < c->count; i++)
    if (is_wanted(o, c, &c->tensors[i])) c->tensors[kept++] = c->tensors[i];
  c->count = kept;
  if (kept > 0) return TWS_OK;
  if (o->tensor && o->state)
    return tws_fail(err, TWS_INVALID, hint, "%s: no tensor of the state \"%.60s\" has a name with \"%.100s\"", c->path,
                    o->state, o->tensor);
  return tws_fail(err, TWS_INVALID, hint, "%s: no tensor %s \"%.100s\"", c->path,
                  o->tensor ? "has a name with" : "is of the state", o->tensor ? o->tensor : o->state);
}

/* ---- a checkpoint ---- */

static cJSON *checkpoint_json(const opened *c, const char *schema) {
  const tws_saved_index *x = c->index;
  cJSON *root = cJSON_CreateObject();
  if (schema) cJSON_AddStringToObject(root, "schema", schema);
  cJSON_AddStringToObject(root, "path", c->path);
  cJSON_AddStringToObject(root, "architecture", x->architecture);
  cJSON_AddStringToObject(root, "model", x->model);
  cJSON_AddStringToObject(root, "dtype", x->dtype);
  cJSON_AddNumberToObject(root, "steps", (double)x->counters.steps);
  cJSON_AddNumberToObject(root, "skipped", (double)x->counters.skipped);
  cJSON_AddNumberToObject(root, "samples", (double)x->samples);
  cJSON_AddNumberToObject(root, "ranks", (double)x->ranks);
  cJSON_AddNumberToObject(root, "zero_stage", (double)x->zero_stage);
  cJSON_AddNumberToObject(root, "train_batch_size", (double)x->train_batch);
  cJSON_AddNumberToObject(root, "sequence_length", (double)x->sequence_length);
  cJSON_AddStringToObject(root, "data", x->data);
  cJSON_AddStringToObject(root, "client_state", x->client_state);
  return root;
}

static void add_number(cJSON *to, const char *key, double value) {
  if (isfinite(value))
    cJSON_AddNumberToObject(to, key, value);
  else
    cJSON_AddNullToObject(to, key);
}

static void add_statistics(cJSON *item, const tws_saved_statistics *s) {
  add_number(item, "least", s->least);
  add_number(item, "largest", s->largest);
  add_number(item, "mean", s->mean);
  add_number(item, "deviation", s->deviation);
  add_number(item, "norm", s->norm);
  cJSON_AddNumberToObject(item, "zeros", (double)s->zeros);
  cJSON_AddNumberToObject(item, "nans", (double)s->nans);
  cJSON_AddNumberToObject(item, "infinities", (double)s->infinities);
}

static cJSON *tensor_json(const opened *c, const tws_saved_tensor *t) {
  cJSON *item = cJSON_CreateObject();
  cJSON_AddStringToObject(item, "name", name_of(c, t));
  cJSON_AddStringToObject(item, "state", state_of(c, t));
  cJSON_AddStringToObject(item, "dtype", tws_dtype_name((tws_dtype)c->index->entries[t->entry].dtype));
  cJSON *shape = cJSON_AddArrayToObject(item, "shape");
  cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)c->index->params[t->param].rows * t->copies));
  cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)c->index->params[t->param].columns));
  cJSON_AddNumberToObject(item, "elements", (double)t->elements);
  return item;
}

static tws_code histogram_of(const options *o, opened *c, const tws_saved_tensor *t, const tws_saved_statistics *s,
                             uint64_t counts[TWS_SAVED_BINS], tws_error *err) {
  if (!o->histogram) return TWS_OK;
  return tws_saved_histogram(&c->reader, t, s->least, s->largest, (int)o->histogram, counts, err);
}

static tws_code print_json(const options *o, opened *c, tws_error *err) {
  cJSON *root = checkpoint_json(c, "twinspeed-inspect-1"), *list;
  list = cJSON_AddArrayToObject(root, "tensors");
  tws_code code = TWS_OK;
  for (uint32_t i = 0; i < c->count && code == TWS_OK; i++) {
    const tws_saved_tensor *t = &c->tensors[i];
    tws_saved_statistics s;
    uint64_t counts[TWS_SAVED_BINS];
    cJSON *item = tensor_json(c, t);
    cJSON_AddItemToArray(list, item);
    if (!o->statistics && !o->histogram) continue;
    code = tws_saved_statistics_of(&c->reader, t, &s, err);
    if (code != TWS_OK) break;
    add_statistics(item, &s);
    code = histogram_of(o, c, t, &s, counts, err);
    cJSON *bins = o->histogram ? cJSON_AddArrayToObject(item, "histogram") : NULL;
    for (int b = 0; b < (int)o->histogram && code == TWS_OK; b++)
      cJSON_AddItemToArray(bins, cJSON_CreateNumber((double)counts[b]));
  }
  if (code == TWS_OK) return tws_out_json(root, err);
  cJSON_Delete(root);
  return code;
}

static void print_checkpoint(const opened *c) {
  const tws_saved_index *x = c->index;
  tws_out("%s: %s, step %lld", c->path, *x->architecture ? x->architecture : "a model", (long long)x->counters.steps);
  if (x->counters.skipped) tws_out(" (%lld skipped)", (long long)x->counters.skipped);
  tws_out(", %s, saved by %lld rank%s at ZeRO stage %lld, global batch %lld x %lld tokens\n", x->dtype,
          (long long)x->ranks, x->ranks == 1 ? "" : "s", (long long)x->zero_stage, (long long)x->train_batch,
          (long long)x->sequence_length);
  if (*x->client_state) tws_out("client state: %s\n", x->client_state);
}

static void print_histogram(const tws_saved_statistics *s, const uint64_t *counts, int bins) {
  enum { WIDTH = 50 };
  static const char bar[WIDTH + 1] = "##################################################";
  uint64_t most = 1;
  for (int b = 0; b < bins; b++)
    if (counts[b] > most) most = counts[b];
  for (int b = 0; b < bins; b++)
    tws_out("  %12.5g  %10llu  %.*s\n", s->least + (s->largest - s->least) * b / bins, (unsigned long long)counts[b],
            (int)((double)counts[b] / (double)most * WIDTH + 0.5), bar);
}

static void start_table(tws_table *table, int statistics) {
  tws_table_init(table, statistics ? 9 : 5);
  if (statistics)
    tws_table_row(table, (const char *[]){"tensor", "state", "least", "largest", "mean", "deviation", "norm", "zeros",
                                          "not finite"});
  else
    tws_table_row(table, (const char *[]){"tensor", "state", "type", "rows", "columns"});
}

static void add_row(tws_table *table, const opened *c, const tws_saved_tensor *t, const tws_saved_statistics *s) {
  const tws_param *p = &c->index->params[t->param];
  if (s)
    tws_table_row(
        table, (const char *[]){name_of(c, t), state_of(c, t), tws_cell("%.4g", s->least), tws_cell("%.4g", s->largest),
                                tws_cell("%.4g", s->mean), tws_cell("%.4g", s->deviation), tws_cell("%.6g", s->norm),
                                tws_cell("%llu", (unsigned long long)s->zeros),
                                tws_cell("%llu", (unsigned long long)(s->nans + s->infinities))});
  else
    tws_table_row(
        table,
        (const char *[]){name_of(c, t), state_of(c, t), tws_dtype_name((tws_dtype)c->index->entries[t->entry].dtype),
                         tws_cell("%lld", (long long)(p->rows * t->copies)), tws_cell("%lld", (long long)p->columns)});
}

static tws_code print_text(const tws_cli *cli, const options *o, opened *c, tws_error *err) {
  tws_table table;
  uint64_t counts[TWS_SAVED_BINS];
  tws_progress progress = tws_cli_progress(cli);
  print_checkpoint(c);
  if (!o->histogram) start_table(&table, o->statistics);
  tws_progress_begin(&progress, "tensors", (double)c->count);
  for (uint32_t i = 0; i < c->count; i++) {
    const tws_saved_tensor *t = &c->tensors[i];
    tws_saved_statistics s;
    if (o->statistics || o->histogram) TWS_TRY(tws_saved_statistics_of(&c->reader, t, &s, err));
    TWS_TRY(histogram_of(o, c, t, &s, counts, err));
    tws_progress_update(&progress, (double)i + 1);
    if (!o->histogram) add_row(&table, c, t, o->statistics ? &s : NULL);
    if (!o->histogram) continue;
    tws_out("%s, %s: %llu elements of %.5g to %.5g, mean %.5g, deviation %.5g\n", name_of(c, t), state_of(c, t),
            (unsigned long long)t->elements, s.least, s.largest, s.mean, s.deviation);
    print_histogram(&s, counts, (int)o->histogram);
  }
  tws_progress_end(&progress);
  return o->histogram ? TWS_OK : tws_table_print(cli, &table, err);
}

/* ---- two checkpoints ---- */

/* Returns the tensor of the other checkpoint with this name, state and size, or NULL. */
static const tws_saved_tensor *same_tensor(const opened *a, const tws_saved_tensor *t, const opened *b) {
  for (uint32_t i = 0; i < b->count; i++)
    if (strcmp(name_of(b, &b->tensors[i]), name_of(a, t)) == 0 &&
        strcmp(state_of(b, &b->tensors[i]), state_of(a, t)) == 0 && b->tensors[i].elements == t->elements)
      return &b->tensors[i];
  return NULL;
}

typedef struct comparison {
  tws_saved_difference all;           /* sums over all tensors; `largest` and `relative`: the largest of a tensor */
  uint32_t tensors, different, alone; /* alone: tensors that only one of the checkpoints has */
  cJSON *list;
  tws_table table;
} comparison;

static void note(comparison *to, const opened *a, const tws_saved_tensor *t, const tws_saved_difference *d) {
  to->tensors++;
  to->all.elements += d->elements;
  to->all.different += d->different;
  to->all.largest = fmax(to->all.largest, d->largest);
  to->all.relative = fmax(to->all.relative, d->relative);
  if (d->different == 0) return;
  to->different++;
  tws_table_row(&to->table,
                (const char *[]){name_of(a, t), state_of(a, t), tws_cell("%llu", (unsigned long long)d->different),
                                 tws_cell("%llu", (unsigned long long)d->elements), tws_cell("%.4g", d->largest),
                                 tws_cell("%.4g", d->relative)});
  cJSON *item = cJSON_CreateObject();
  cJSON_AddItemToArray(to->list, item);
  cJSON_AddStringToObject(item, "name", name_of(a, t));
  cJSON_AddStringToObject(item, "state", state_of(a, t));
  cJSON_AddNumberToObject(item, "elements", (double)d->elements);
  cJSON_AddNumberToObject(item, "different", (double)d->different);
  add_number(item, "largest", d->largest);
  add_number(item, "norm", d->norm);
  add_number(item, "relative", d->relative);
}

static void note_alone(comparison *to, const opened *c, const tws_saved_tensor *t) {
  to->alone++;
  tws_table_row(&to->table, (const char *[]){name_of(c, t), state_of(c, t), "only in", c->path, "", ""});
  cJSON *item = cJSON_CreateObject();
  cJSON_AddItemToArray(to->list, item);
  cJSON_AddStringToObject(item, "name", name_of(c, t));
  cJSON_AddStringToObject(item, "state", state_of(c, t));
  cJSON_AddStringToObject(item, "only_in", c->path);
}

static tws_code compare(opened *a, opened *b, comparison *to, tws_error *err) {
  for (uint32_t i = 0; i < a->count; i++) {
    const tws_saved_tensor *other = same_tensor(a, &a->tensors[i], b);
    tws_saved_difference d;
    if (!other) {
      note_alone(to, a, &a->tensors[i]);
      continue;
    }
    TWS_TRY(tws_saved_compare(&a->reader, &a->tensors[i], &b->reader, other, &d, err));
    note(to, a, &a->tensors[i], &d);
  }
  for (uint32_t i = 0; i < b->count; i++)
    if (!same_tensor(b, &b->tensors[i], a)) note_alone(to, b, &b->tensors[i]);
  return TWS_OK;
}

static tws_code tell(const tws_cli *cli, const options *o, const opened *a, const opened *b, comparison *to,
                     tws_error *err) {
  const int equal = to->alone == 0 && (to->different == 0 || (o->tolerance > 0 && to->all.relative <= o->tolerance));
  if (cli->json) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "schema", "twinspeed-inspect-compare-1");
    cJSON_AddItemToObject(root, "first", checkpoint_json(a, NULL));
    cJSON_AddItemToObject(root, "second", checkpoint_json(b, NULL));
    cJSON_AddBoolToObject(root, "equal", equal);
    cJSON_AddNumberToObject(root, "tensors", to->tensors);
    cJSON_AddNumberToObject(root, "different_tensors", to->different);
    add_number(root, "largest", to->all.largest);
    add_number(root, "relative", to->all.relative);
    cJSON_AddItemToObject(root, "differences", to->list);
    to->list = NULL;
    TWS_TRY(tws_out_json(root, err));
  } else {
    print_checkpoint(a);
    print_checkpoint(b);
    if (to->different + to->alone > 0) TWS_TRY(tws_table_print(cli, &to->table, err));
    tws_out("%u tensors in both, %u of them differ; largest difference %.4g, largest relative norm %.4g\n", to->tensors,
            to->different, to->all.largest, to->all.relative);
  }
  if (equal) return TWS_OK;
  return tws_fail(err, TWS_NO, o->tolerance > 0 ? "" : "--tolerance X accepts relative differences up to X",
                  "the checkpoints differ: %u of %u tensors, and %u are in only one of them", to->different,
                  to->tensors, to->alone);
}

static tws_code run_comparison(const tws_cli *cli, const options *o, opened *a, opened *b, tws_error *err) {
  comparison to = {.list = cJSON_CreateArray()};
  tws_table_init(&to.table, 6);
  tws_table_row(&to.table, (const char *[]){"tensor", "state", "different", "elements", "largest", "relative norm"});
  tws_code code = compare(a, b, &to, err);
  if (code == TWS_OK) code = tell(cli, o, a, b, &to, err);
  cJSON_Delete(to.list);
  return code;
}

static tws_code run_opened(const tws_cli *cli, const options *o, opened *a, opened *b, int count, char **folders,
                           tws_arena *arena, tws_error *err) {
  TWS_TRY(open_checkpoint(folders[0], o->tag, arena, a, err));
  TWS_TRY(choose(o, a, err));
  if (count == 1) return cli->json ? print_json(o, a, err) : print_text(cli, o, a, err);
  TWS_TRY(open_checkpoint(folders[1], o->other_tag ? o->other_tag : o->tag, arena, b, err));
  TWS_TRY(choose(o, b, err));
  return run_comparison(cli, o, a, b, err);
}

static tws_code run_inspect(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  const options *o = raw;
  opened a = {0}, b = {0};
  if (argc < 1)
    return tws_fail(err, TWS_USAGE, "twinspeed inspect run", "inspect: no folder with a checkpoint was given");
  if (argc == 2 && (o->statistics || o->histogram))
    return tws_fail(err, TWS_USAGE, "inspect one checkpoint for them",
                    "inspect: --statistics and --histogram do not apply to a comparison of two checkpoints");
  if (argc == 1 && (o->other_tag || o->tolerance > 0))
    return tws_fail(err, TWS_USAGE, "twinspeed inspect run other", "inspect: %s compares two checkpoints",
                    o->other_tag ? "--other-tag" : "--tolerance");
  tws_arena *arena = tws_arena_create();
  if (!arena) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const tws_code code = run_opened(cli, o, &a, &b, argc, argv, arena, err);
  close_checkpoint(&a);
  close_checkpoint(&b);
  tws_arena_destroy(arena);
  return code;
}

static const tws_option table[] = {
    TWS_STRING("tag", 0, "TAG", options, tag, "the checkpoint in the folder (default: the latest)"),
    TWS_STRING("other-tag", 0, "TAG", options, other_tag, "the checkpoint in the second folder (default: as --tag)"),
    TWS_STRING("tensor", 0, "TEXT", options, tensor, "only parameters whose names contain TEXT"),
    TWS_STRING("state", 0, "NAME", options, state,
               "only one state: \"parameters\", \"master weights\", \"first moments\""),
    TWS_FLAG("statistics", 0, options, statistics,
             "read the values: least, largest, mean, deviation, norm, zeros, NaN"),
    TWS_INTEGER("histogram", 0, "N", options, histogram, 1, TWS_SAVED_BINS,
                "read the values, and count them in N ranges of equal width"),
    TWS_NUMBER("tolerance", 0, "X", options, tolerance, 0, 1e9,
               "two checkpoints are equal if no tensor's difference has a larger norm than X times the first's"),
    TWS_OPTIONS_END};

const tws_verb tws_verb_inspect = {
    .name = "inspect",
    .summary = "what a saved checkpoint holds: tensors, statistics, histograms, differences of two",
    .usage = "DIR [OTHER_DIR] [options]",
    .examples =
        "  twinspeed inspect run\n"
        "  twinspeed inspect run --state \"first moments\" --statistics\n"
        "  twinspeed inspect run --tensor wte.weight --state \"master weights\" --histogram 20\n"
        "  twinspeed inspect run other --tag global_step100 --json\n",
    .notes =
        "No ranks are started, and no model file is needed: checkpoints of any number of ranks are read whole, one\n"
        "part after another, and every value that is read is verified by its checksum. --tensor and --state choose\n"
        "tensors for all forms. Two checkpoints are compared tensor by tensor, also if different numbers of ranks\n"
        "saved them; exit code 1: they differ.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .arguments_max = 2,
    .run = run_inspect,
};
