#include "emulation/scenario.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

static const char *const happening_names[] = {
#define X(name, text) text,
    TWS_HAPPENINGS(X)
#undef X
};

const char *tws_fault_event_name(tws_fault_event_kind kind) {
  return happening_names[kind];
}

typedef struct parser {
  const tws_json *json;
  tws_scenario *s;
  tws_error *err;
} parser;

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for a scenario");
}

/* Reads a text member and copies it into the scenario's arena, which outlives the JSON tree. */
static tws_code read_text(parser *p, const cJSON *object, const char *key, int required, const char **out) {
  const char *text;
  TWS_TRY(tws_json_string(p->json, object, key, required, NULL, &text, p->err));
  if (!text) return TWS_OK;
  *out = tws_arena_strdup(p->s->arena, text);
  return *out ? TWS_OK : no_memory(p->err);
}

/* Reads a path relative to the scenario's folder. A text without a slash and a period may be a built-in name. */
static tws_code read_path(parser *p, const cJSON *object, const char *key, int built_in, const char **out) {
  const char *slash = strrchr(p->json->name, '/');
  TWS_TRY(read_text(p, object, key, 0, out));
  if (!*out || **out == '/' || !slash || (built_in && !strpbrk(*out, "/."))) return TWS_OK;
  *out = tws_arena_printf(p->s->arena, "%.*s/%s", (int)(slash - p->json->name), p->json->name, *out);
  return *out ? TWS_OK : no_memory(p->err);
}

static tws_code object_of(parser *p, const cJSON *parent, const char *key, const cJSON **out) {
  *out = cJSON_GetObjectItemCaseSensitive(parent, key);
  if (!*out || cJSON_IsObject(*out)) return TWS_OK;
  return tws_json_fail(p->json, *out, p->err, NULL, "%s is an object", key);
}

static tws_code read_texts(parser *p, const cJSON *object, const char *key, const char *const **out) {
  const cJSON *item, *list = cJSON_GetObjectItemCaseSensitive(object, key);
  *out = NULL;
  if (!list) return TWS_OK;
  if (!cJSON_IsArray(list)) return tws_json_fail(p->json, list, p->err, NULL, "%s is a list of texts", key);
  const char **texts = tws_arena_alloc(p->s->arena, (size_t)cJSON_GetArraySize(list) + 1, sizeof *texts);
  int count = 0;
  if (!texts) return no_memory(p->err);
  cJSON_ArrayForEach(item, list) {
    if (!cJSON_IsString(item)) return tws_json_fail(p->json, item, p->err, NULL, "%s is a list of texts", key);
    texts[count] = tws_arena_strdup(p->s->arena, item->valuestring);
    if (!texts[count++]) return no_memory(p->err);
  }
  *out = texts;
  return TWS_OK;
}

/* ---- the job ---- */

static tws_code read_set(parser *p, const cJSON *job) {
  const char *const *texts;
  tws_job_spec *spec = &p->s->job;
  TWS_TRY(read_texts(p, job, "set", &texts));
  for (int i = 0; texts && texts[i]; i++) {
    if (spec->set.count == TWS_MAX_STRINGS)
      return tws_json_fail(p->json, cJSON_GetObjectItemCaseSensitive(job, "set"), p->err, NULL,
                           "set has more than %d settings", TWS_MAX_STRINGS);
    spec->set.item[spec->set.count++] = texts[i];
  }
  return TWS_OK;
}

static tws_code read_job(parser *p) {
  static const char *const keys[] = {"model",
                                     "config",
                                     "cluster",
                                     "profile",
                                     "dtype",
                                     "schedule",
                                     "recompute",
                                     "ranks",
                                     "stage",
                                     "pp",
                                     "tp",
                                     "sp",
                                     "ep",
                                     "seq",
                                     "micro_batch",
                                     "accumulation",
                                     "threads",
                                     "seed",
                                     "virtual_stages",
                                     "sequence_parallel",
                                     "set",
                                     NULL};
  tws_job_spec *spec = &p->s->job;
  const cJSON *job;
  TWS_TRY(object_of(p, p->json->root, "job", &job));
  *spec = (tws_job_spec)TWS_JOB_SPEC_DEFAULTS;
  if (!job) return TWS_OK; /* a caller that only simulates events has a job already */
  TWS_TRY(tws_json_only(p->json, job, keys, p->err));
  TWS_TRY(read_path(p, job, "model", 1, &spec->model));
  TWS_TRY(read_path(p, job, "config", 0, &spec->config));
  TWS_TRY(read_path(p, job, "cluster", 1, &spec->cluster));
  TWS_TRY(read_path(p, job, "profile", 1, &spec->profile));
  TWS_TRY(read_text(p, job, "dtype", 0, &spec->dtype));
  TWS_TRY(read_text(p, job, "schedule", 0, &spec->schedule));
  TWS_TRY(read_text(p, job, "recompute", 0, &spec->recompute));
  const struct {
    const char *key;
    int64_t low, high, fallback, *to;
  } numbers[] = {{"ranks", 1, 65536, 0, &spec->ranks},
                 {"stage", 0, 3, -1, &spec->stage},
                 {"pp", 1, 4096, 0, &spec->pipeline_stages},
                 {"tp", 1, 65536, 0, &spec->tensor_ranks},
                 {"sp", 1, 65536, 0, &spec->sequence_ranks},
                 {"ep", 1, 65536, 0, &spec->expert_ranks},
                 {"seq", 1, 16777216, 0, &spec->sequence},
                 {"micro_batch", 1, 1048576, 0, &spec->micro_batch},
                 {"accumulation", 1, 1048576, 0, &spec->accumulation},
                 {"threads", 1, 1024, 0, &spec->threads},
                 {"seed", 0, INT64_C(9007199254740992), -1, &spec->seed},
                 {"virtual_stages", 1, 4096, 0, &spec->virtual_stages}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    TWS_TRY(tws_json_int(p->json, job, numbers[i].key, 0, numbers[i].low, numbers[i].high, numbers[i].fallback,
                         numbers[i].to, p->err));
  TWS_TRY(tws_json_bool(p->json, job, "sequence_parallel", 0, 0, &spec->sequence_parallel, p->err));
  return read_set(p, job);
}

/* ---- events ---- */

static tws_code range_of(parser *p, const cJSON *item, tws_fault_event *e) {
  int64_t one;
  if (cJSON_IsString(item) && strcmp(item->valuestring, "any") == 0) return TWS_OK;
  if (cJSON_IsArray(item) && cJSON_GetArraySize(item) == 2) {
    int64_t two;
    if (tws_json_integer(p->json, item->child, &one, NULL) && one >= 0 && one < 65536 &&
        tws_json_integer(p->json, item->child->next, &two, NULL) && two >= one && two < 65536) {
      e->first = (int)one;
      e->last = (int)two;
      return TWS_OK;
    }
  } else if (tws_json_integer(p->json, item, &one, NULL) && one >= 0 && one < 65536) {
    e->first = e->last = (int)one;
    return TWS_OK;
  }
  return tws_json_fail(p->json, item, p->err, "3, [0, 3] for 0 to 3, or \"any\"", "%s is no number or range",
                       item->string);
}

static tws_code read_target(parser *p, const cJSON *item, tws_fault_event *e) {
  static const char *const keys[] = {"rank", "node", "switch"};
  const cJSON *found = NULL;
  e->first = e->last = -1;
  for (int i = 0; i < 3; i++) {
    const cJSON *target = cJSON_GetObjectItemCaseSensitive(item, keys[i]);
    if (!target) continue;
    if (found) return tws_json_fail(p->json, target, p->err, "give one of them", "%s and %s", found->string, keys[i]);
    found = target;
    e->target = i == 0 ? TWS_TARGET_RANK : TWS_TARGET_NODE;
    TWS_TRY(range_of(p, target, e));
  }
  const int somebody = e->kind == TWS_HAPPENS_DEATH || e->kind == TWS_HAPPENS_FLAP;
  if (!found && somebody)
    return tws_json_fail(p->json, item, p->err, "\"rank\", \"node\" or \"switch\": 3, [0, 3] or \"any\"",
                         "an event \"%s\" names no target", tws_fault_event_name(e->kind));
  return TWS_OK;
}

static tws_code read_draw(parser *p, const cJSON *item, tws_fault_event *e) {
  static const char *const keys[] = {"distribution", "mean_s", "scale_s", "shape", NULL};
  const cJSON *drawn;
  const char *name;
  TWS_TRY(object_of(p, item, "drawn", &drawn));
  if (!drawn) return TWS_OK;
  TWS_TRY(tws_json_only(p->json, drawn, keys, p->err));
  TWS_TRY(tws_json_string(p->json, drawn, "distribution", 1, NULL, &name, p->err));
  if (strcmp(name, "exponential") == 0) {
    e->drawn = TWS_DRAWN_EXPONENTIAL;
    e->shape = 1;
    return tws_json_number(p->json, drawn, "mean_s", 1, 1e-9, 1e12, 0, &e->scale_s, p->err);
  }
  if (strcmp(name, "weibull") != 0)
    return tws_json_fail(p->json, drawn, p->err, "exponential or weibull", "unknown distribution \"%s\"", name);
  e->drawn = TWS_DRAWN_WEIBULL;
  TWS_TRY(tws_json_number(p->json, drawn, "scale_s", 1, 1e-9, 1e12, 0, &e->scale_s, p->err));
  return tws_json_number(p->json, drawn, "shape", 1, 0.05, 100, 0, &e->shape, p->err);
}

static tws_code read_times(parser *p, const cJSON *item, tws_fault_event *e) {
  TWS_TRY(read_draw(p, item, e));
  TWS_TRY(tws_json_number(p->json, item, "at_s", 0, 0, 1e12, 0, &e->at_s, p->err));
  TWS_TRY(tws_json_number(p->json, item, "until_s", 0, 0, 1e12, INFINITY, &e->until_s, p->err));
  TWS_TRY(tws_json_number(p->json, item, "for_s", 0, 0, 1e12, INFINITY, &e->for_s, p->err));
  TWS_TRY(tws_json_int(p->json, item, "times", 0, 1, 100000, e->drawn ? 100000 : 1, &e->times, p->err));
  if (e->drawn && cJSON_GetObjectItemCaseSensitive(item, "at_s"))
    return tws_json_fail(p->json, item, p->err, "leave one of them out", "a time and a distribution");
  if (!(e->until_s > e->at_s)) return tws_json_fail(p->json, item, p->err, NULL, "it ends before it begins");
  return TWS_OK;
}

static tws_code read_bit(parser *p, const cJSON *item, tws_fault_event *e) {
  static const char *const places[] = {"buffer", "message", "checkpoint"};
  const char *in;
  int64_t bit;
  TWS_TRY(tws_json_string(p->json, item, "in", 0, "buffer", &in, p->err));
  int place = 0;
  while (place < 3 && strcmp(in, places[place]) != 0) place++;
  if (place == 3) return tws_json_fail(p->json, item, p->err, "buffer, message or checkpoint", "a bit in \"%s\"", in);
  e->place = (tws_bit_place)place;
  e->entry = "parameters";
  TWS_TRY(read_text(p, item, "entry", 0, &e->entry));
  TWS_TRY(tws_json_int(p->json, item, "element", 0, 0, INT64_C(1) << 53, 0, &e->element, p->err));
  TWS_TRY(tws_json_int(p->json, item, "bit", 0, 0, 63, 0, &bit, p->err));
  e->bit = (int)bit;
  return TWS_OK;
}

static tws_code read_kind(parser *p, const cJSON *item, tws_fault_event *e) {
  const char *name;
  int kind = 0;
  TWS_TRY(tws_json_string(p->json, item, "kind", 1, NULL, &name, p->err));
  while (kind < TWS_HAPPENINGS_COUNT && strcmp(name, happening_names[kind]) != 0) kind++;
  e->kind = (tws_fault_event_kind)kind;
  if (kind < TWS_HAPPENINGS_COUNT) return TWS_OK;
  const char *close = tws_closest(name, happening_names, TWS_HAPPENINGS_COUNT);
  return tws_json_fail(p->json, cJSON_GetObjectItemCaseSensitive(item, "kind"), p->err, close, "unknown event \"%s\"",
                       name);
}

static tws_code read_event(parser *p, const cJSON *item, tws_fault_event *e) {
  static const char *const keys[] = {"kind",  "rank",   "node",    "switch",   "at_s",   "until_s",  "for_s", "drawn",
                                     "times", "factor", "sigma",   "period_s", "down_s", "repair_s", "save",  "part",
                                     "in",    "entry",  "element", "bit",      "full",   NULL};
  if (!cJSON_IsObject(item)) return tws_json_fail(p->json, item, p->err, NULL, "an event is an object");
  TWS_TRY(tws_json_only(p->json, item, keys, p->err));
  TWS_TRY(read_kind(p, item, e));
  TWS_TRY(read_target(p, item, e));
  TWS_TRY(read_times(p, item, e));
  TWS_TRY(tws_json_bool(p->json, item, "full", 0, 0, &e->full, p->err));
  const int slow = e->kind == TWS_HAPPENS_SLOW;
  const int shares = e->kind == TWS_HAPPENS_LINK || (e->kind == TWS_HAPPENS_DISK && !e->full);
  TWS_TRY(
      tws_json_number(p->json, item, "factor", slow || shares, slow ? 1e-3 : 0, slow ? 1e6 : 1, 1, &e->factor, p->err));
  if (e->kind == TWS_HAPPENS_DISK && !e->full && !(e->factor > 0))
    return tws_json_fail(p->json, item, p->err, "\"full\": true, or a factor above 0", "a disk of no bandwidth");
  TWS_TRY(tws_json_number(p->json, item, "sigma", e->kind == TWS_HAPPENS_JITTER, 0, 10, 0, &e->sigma, p->err));
  const int flaps = e->kind == TWS_HAPPENS_FLAP;
  TWS_TRY(tws_json_number(p->json, item, "period_s", flaps, 1e-9, 1e12, 0, &e->period_s, p->err));
  TWS_TRY(tws_json_number(p->json, item, "down_s", flaps, 0, 1e12, 0, &e->down_s, p->err));
  if (flaps && !(e->down_s < e->period_s))
    return tws_json_fail(p->json, item, p->err, "down_s < period_s", "a link that is never up does not flap");
  TWS_TRY(tws_json_number(p->json, item, "repair_s", 0, 0, 1e12, INFINITY, &e->repair_s, p->err));
  TWS_TRY(tws_json_int(p->json, item, "save", 0, 1, 1000000000, 1, &e->save, p->err));
  TWS_TRY(tws_json_number(p->json, item, "part", 0, 0, 1, 0.5, &e->part, p->err));
  return e->kind == TWS_HAPPENS_BIT ? read_bit(p, item, e) : TWS_OK;
}

static tws_code read_events(parser *p) {
  const cJSON *item, *list = cJSON_GetObjectItemCaseSensitive(p->json->root, "events");
  if (!list) return TWS_OK;
  if (!cJSON_IsArray(list)) return tws_json_fail(p->json, list, p->err, NULL, "events is a list");
  if (cJSON_GetArraySize(list) > 1024) return tws_json_fail(p->json, list, p->err, NULL, "more than 1024 events");
  p->s->events = tws_arena_alloc(p->s->arena, (size_t)cJSON_GetArraySize(list) + 1, sizeof *p->s->events);
  if (!p->s->events) return no_memory(p->err);
  cJSON_ArrayForEach(item, list) TWS_TRY(read_event(p, item, &p->s->events[p->s->event_count++]));
  return TWS_OK;
}

/* ---- expectations ---- */

static tws_code read_bounds(parser *p, const cJSON *object, const char *key, double *low, double *high) {
  static const char *const keys[] = {"min", "max", NULL};
  const cJSON *bounds;
  *low = 0;
  *high = INFINITY;
  TWS_TRY(object_of(p, object, key, &bounds));
  if (!bounds) return TWS_OK;
  TWS_TRY(tws_json_only(p->json, bounds, keys, p->err));
  TWS_TRY(tws_json_number(p->json, bounds, "min", 0, 0, 1e12, 0, low, p->err));
  return tws_json_number(p->json, bounds, "max", 0, 0, 1e12, INFINITY, high, p->err);
}

static tws_code read_expected_loss(parser *p, const cJSON *expect, tws_expectations *x) {
  static const char *const keys[] = {"value", "tolerance", NULL};
  const cJSON *loss;
  TWS_TRY(object_of(p, expect, "loss", &loss));
  if (!loss) return TWS_OK;
  TWS_TRY(tws_json_only(p->json, loss, keys, p->err));
  x->has_loss = 1;
  TWS_TRY(tws_json_number(p->json, loss, "value", 1, -1e300, 1e300, 0, &x->loss, p->err));
  return tws_json_number(p->json, loss, "tolerance", 0, 0, 1e300, 0, &x->loss_tolerance, p->err);
}

static tws_code read_expectations(parser *p) {
  static const char *const keys[] = {"status",  "loss",  "step_s",      "goodput",   "restarts", "steps",
                                     "skipped", "names", "checkpoints", "leftovers", NULL};
  tws_expectations *x = &p->s->expect;
  const cJSON *expect;
  int64_t leftovers;
  *x = (tws_expectations){
      .restarts = -1, .steps = -1, .skipped = -1, .leftovers = -1, .step_max_s = INFINITY, .goodput_max = INFINITY};
  TWS_TRY(object_of(p, p->json->root, "expect", &expect));
  if (!expect) return TWS_OK;
  TWS_TRY(tws_json_only(p->json, expect, keys, p->err));
  TWS_TRY(read_text(p, expect, "status", 0, &x->status));
  TWS_TRY(read_expected_loss(p, expect, x));
  TWS_TRY(read_bounds(p, expect, "step_s", &x->step_min_s, &x->step_max_s));
  TWS_TRY(read_bounds(p, expect, "goodput", &x->goodput_min, &x->goodput_max));
  TWS_TRY(tws_json_int(p->json, expect, "restarts", 0, 0, 1000000000, -1, &x->restarts, p->err));
  TWS_TRY(tws_json_int(p->json, expect, "steps", 0, 0, 1000000000, -1, &x->steps, p->err));
  TWS_TRY(tws_json_int(p->json, expect, "skipped", 0, 0, 1000000000, -1, &x->skipped, p->err));
  TWS_TRY(tws_json_int(p->json, expect, "leftovers", 0, 0, 1000, -1, &leftovers, p->err));
  x->leftovers = (int)leftovers;
  TWS_TRY(read_texts(p, expect, "names", &x->names));
  TWS_TRY(read_texts(p, expect, "checkpoints", &x->checkpoints));
  x->has_checkpoints = x->checkpoints != NULL;
  return TWS_OK;
}

/* ---- the whole ---- */

static tws_code read_saving(parser *p) {
  static const char *const keys[] = {"every", "keep", "synchronous", NULL};
  tws_scenario *s = p->s;
  const cJSON *save;
  TWS_TRY(object_of(p, p->json->root, "save", &save));
  if (!save) return TWS_OK;
  TWS_TRY(tws_json_only(p->json, save, keys, p->err));
  const cJSON *every = cJSON_GetObjectItemCaseSensitive(save, "every");
  if (cJSON_IsString(every) && strcmp(every->valuestring, "optimum") == 0)
    s->run.save_every = -1;
  else
    TWS_TRY(tws_json_int(p->json, save, "every", 1, 1, 1000000000, 0, &s->run.save_every, p->err));
  TWS_TRY(tws_json_int(p->json, save, "keep", 0, 0, 1000000000, 0, &s->run.keep, p->err));
  return tws_json_bool(p->json, save, "synchronous", 0, 0, &s->run.synchronous, p->err);
}

static tws_code read_scenario(parser *p) {
  static const char *const keys[] = {"schema",     "description", "job",    "data",   "eval_data", "eval_every",
                                     "eval_steps", "fidelity",    "steps",  "seed",   "save",      "restarts",
                                     "deadline_s", "start_s",     "events", "expect", NULL};
  tws_scenario *s = p->s;
  const cJSON *root = p->json->root;
  const char *schema;
  int64_t seed;
  if (!cJSON_IsObject(root)) return tws_json_fail(p->json, root, p->err, NULL, "a scenario is an object");
  TWS_TRY(tws_json_only(p->json, root, keys, p->err));
  TWS_TRY(tws_json_string(p->json, root, "schema", 1, NULL, &schema, p->err));
  if (strcmp(schema, "twinspeed-scenario-1") != 0)
    return tws_json_fail(p->json, root, p->err, "\"schema\": \"twinspeed-scenario-1\"", "it is no scenario but \"%s\"",
                         schema);
  TWS_TRY(read_text(p, root, "description", 0, &s->description));
  TWS_TRY(read_path(p, root, "data", 0, &s->run.data));
  TWS_TRY(read_path(p, root, "eval_data", 0, &s->run.eval_data));
  TWS_TRY(read_text(p, root, "fidelity", 0, &s->run.fidelity));
  TWS_TRY(tws_json_int(p->json, root, "eval_every", 0, 1, 1000000000, 0, &s->run.eval_every, p->err));
  TWS_TRY(tws_json_int(p->json, root, "eval_steps", 0, 1, 1000000000, 0, &s->run.eval_steps, p->err));
  TWS_TRY(tws_json_int(p->json, root, "steps", 0, 1, 1000000000, 10, &s->run.steps, p->err));
  TWS_TRY(tws_json_int(p->json, root, "seed", 0, 0, INT64_C(9007199254740992), 0, &seed, p->err));
  s->seed = (uint64_t)seed;
  TWS_TRY(tws_json_int(p->json, root, "restarts", 0, 0, 1000000000, 0, &s->run.restarts, p->err));
  TWS_TRY(tws_json_number(p->json, root, "deadline_s", 0, 0, 1e9, 1800, &s->run.deadline_s, p->err));
  TWS_TRY(tws_json_number(p->json, root, "start_s", 0, 0, 1e9, 0, &s->run.start_s, p->err));
  TWS_TRY(read_saving(p));
  TWS_TRY(read_job(p));
  TWS_TRY(read_events(p));
  return read_expectations(p);
}

tws_code tws_scenario_from_json(const tws_json *json, tws_scenario **out, tws_error *err) {
  tws_arena *arena = tws_arena_create();
  tws_scenario *s = arena ? tws_arena_alloc(arena, 1, sizeof *s) : NULL;
  *out = NULL;
  if (!s) {
    tws_arena_destroy(arena);
    return no_memory(err);
  }
  s->arena = arena;
  s->name = tws_arena_strdup(arena, json->name);
  if (!s->name) {
    tws_arena_destroy(arena);
    return no_memory(err);
  }
  parser p = {json, s, err};
  const tws_code code = read_scenario(&p);
  if (code != TWS_OK)
    tws_arena_destroy(arena);
  else
    *out = s;
  return code;
}

tws_code tws_scenario_load(const char *path, tws_scenario **out, tws_error *err) {
  tws_json *json;
  *out = NULL;
  TWS_TRY(tws_json_read(path, &json, err));
  const tws_code code = tws_scenario_from_json(json, out, err);
  tws_json_destroy(json);
  return code;
}

void tws_scenario_destroy(tws_scenario *scenario) {
  if (scenario) tws_arena_destroy(scenario->arena);
}
