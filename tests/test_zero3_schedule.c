/* The ZeRO-3 coordinator compared with golden traces: recorded events of DeepSpeed's hooks and the schedule's
 * actions. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/zero3_schedule.h"
#include "plan/zero_partition.h"
#include "tests/configs.h"
#include "tests/members.h"
#include "tests/suite.h"

typedef struct trace {
  int64_t numel[16];
  uint8_t persistent[16];
  uint32_t params[64], param_count, layers;
  tws_zero3_visit visits[64];
  uint32_t visit_count;
  char visit_name[64][16];
} trace;

static uint32_t parse_param(const trace *t, const char *name) {
  unsigned layer, index;
  ck_assert_int_eq(sscanf(name, "m%u.p%u", &layer, &index), 2);
  return t->visits[layer + 1].params[index];
}

static void make_trace(trace *t, const cJSON *c) {
  memset(t, 0, sizeof *t);
  const cJSON *layer, *item;
  uint32_t n = 0;
  t->visit_count = 1; /* root */
  cJSON_ArrayForEach(layer, member(c, "layers")) {
    tws_zero3_visit *v = &t->visits[t->visit_count++];
    v->params = t->params + n;
    cJSON_ArrayForEach(item, layer) {
      t->numel[n] = (int64_t)item->valuedouble;
      t->params[n] = n;
      n++;
      v->count++;
    }
  }
  t->layers = t->visit_count - 1;
  t->param_count = n;
  t->visit_count++; /* root, backward */
  for (uint32_t i = t->layers; i > 0; i--) t->visits[t->visit_count++] = t->visits[i];
  tws_zero3_persistent((int)n, t->numel, integer(c, "param_persistence_threshold"), INT64_MAX / 2, t->persistent);
}

static void expect_set(const trace *t, const cJSON *names, const uint32_t *params, uint32_t count) {
  ck_assert_uint_eq(count, (unsigned)cJSON_GetArraySize(names));
  const cJSON *name;
  cJSON_ArrayForEach(name, names) {
    int found = 0;
    for (uint32_t i = 0; i < count; i++) found += params[i] == parse_param(t, name->valuestring);
    ck_assert_msg(found == 1, "%s is not gathered", name->valuestring);
  }
}

/* Asserts that the event's only parameter is number `index` of the parameters that the actions gather, those gathered
 * at once first, then the prefetched ones. */
static void expect_next(const trace *t, const cJSON *names, const tws_zero3_schedule *s, const tws_zero3_actions *a,
                        uint32_t index) {
  ck_assert_int_eq(cJSON_GetArraySize(names), 1);
  ck_assert_uint_lt(index, a->gather_count + a->prefetch_count);
  const uint32_t at = index < a->gather_count ? a->gather_first + index : a->prefetch_first + index - a->gather_count;
  ck_assert_uint_eq(s->params[at], parse_param(t, names->child->valuestring));
}

/* Returns the bucket that the configuration gives a case. */
static int64_t prefetch_bucket(const cJSON *c) {
  char text[256];
  tws_config *config = NULL;
  snprintf(text, sizeof text,
           "{\"train_batch_size\":2,\"zero_optimization\":{\"stage\":3,\"stage3_prefetch_bucket_size\":%d,"
           "\"stage3_allgather_sequential\":%s}}",
           integer(c, "prefetch_bucket_size"), is_true(c, "allgather_sequential") ? "true" : "false");
  ck_assert_msg(resolve(text, 2, 0, &config) == TWS_OK, "%s", err.message);
  const int64_t elements = config->zero.prefetch_bucket_size;
  tws_config_destroy(config);
  return elements;
}

static void check_iteration(const trace *t, const cJSON *c, const cJSON *iteration) {
  const int sequential = is_true(c, "allgather_sequential");
  tws_zero3_limits limits = {.prefetch_bucket_size = prefetch_bucket(c),
                             .max_live_parameters = integer(c, "max_live_parameters"),
                             .max_reuse_distance = integer(c, "max_reuse_distance")};
  tws_arena *arena = tws_arena_create();
  tws_zero3_schedule s;
  int complete = is_true(iteration, "trace_complete");
  ck_assert(tws_zero3_make_schedule(t->visits, t->visit_count, t->param_count, t->numel, t->persistent, &limits,
                                    complete, arena, &s, NULL) == TWS_OK);
  int visit = -1, root = 0;
  uint32_t gathered = 0, released = 0;
  const cJSON *event;
  cJSON_ArrayForEach(event, member(iteration, "events")) {
    const char *kind = cJSON_GetArrayItem(event, 0)->valuestring;
    const cJSON *what = cJSON_GetArrayItem(event, 1);
    if (strncmp(kind, "pre_", 4) == 0) {
      int is_root = strcmp(what->valuestring, "root") == 0, index = is_root ? 0 : atoi(what->valuestring + 1) + 1;
      visit = kind[4] == 'f' ? index : is_root ? (int)t->layers + 1 : 2 * (int)t->layers + 2 - index;
      gathered = released = 0;
      root = is_root;
    } else if (strcmp(kind, "allgather") == 0) {
      const tws_zero3_actions *a = &s.actions[visit];
      if (sequential) {
        expect_next(t, what, &s, a, gathered++);
        continue;
      }
      int prefetch = gathered > 0 || a->gather_count == 0;
      expect_set(t, what, s.params + (prefetch ? a->prefetch_first : a->gather_first),
                 prefetch ? a->prefetch_count : a->gather_count);
      gathered += (uint32_t)cJSON_GetArraySize(what);
    } else if (strcmp(kind, "release") == 0) {
      const tws_zero3_actions *a = &s.actions[visit];
      int found = 0;
      for (uint32_t i = 0; i < a->release_count; i++) {
        found |= s.params[a->release_first + i] == parse_param(t, what->valuestring);
      }
      ck_assert_msg(found, "%s is not released after visit %d", what->valuestring, visit);
      released++;
    } else if (strncmp(kind, "post_", 5) == 0 && !root) {
      ck_assert_uint_eq(gathered, s.actions[visit].gather_count + s.actions[visit].prefetch_count);
    } else if (strcmp(kind, "avail") == 0 && released) {
      ck_assert_uint_eq(released, s.actions[visit].release_count);
    }
  }
  tws_arena_destroy(arena);
}

static int check_traces(const char *file) {
  tws_json *json = golden_file(file);
  const cJSON *c, *iteration;
  int checked = 0;
  cJSON_ArrayForEach(c, member(json->root, "cases")) {
    trace t;
    make_trace(&t, c);
    int persistent = 0;
    for (uint32_t p = 0; p < t.param_count; p++) persistent |= t.persistent[p];
    cJSON_ArrayForEach(iteration, member(c, "iterations")) {
      /* The first iteration still records which parameters are persistent; plans describe the iterations after it. */
      if (persistent && !is_true(iteration, "trace_complete")) continue;
      check_iteration(&t, c, iteration);
      checked++;
    }
  }
  tws_json_destroy(json);
  return checked;
}

START_TEST(zero3_trace_golden) {
  ck_assert_int_ge(check_traces("zero3_trace.json"), 35);
}
END_TEST

START_TEST(sequential_trace_golden) {
  ck_assert_int_eq(check_traces("zero3_sequential.json"), 2);
}
END_TEST

/* Two layers of two and three parameters between an embedding and a head: forward, and backward with recomputation of
 * the second layer. Gathered parameters are present from the first visit of their unit to the last, and those of the
 * next unit are prefetched. */
START_TEST(units_are_gathered_whole) {
  static const uint32_t params[] = {0, 1, 2, 3, 4, 5, 6}, unit[] = {0, 1, 1, 3, 3, 3, 6};
  static const int64_t numel[] = {100, 10, 20, 1, 2, 3, 50};
  static const int of_visit[] = {-1, 0, 1, 2, 3, -1, 4, 5, 6, 6, 4, 5, 4, 3, 2, 1, 0};
  enum { COUNT = sizeof of_visit / sizeof *of_visit };
  tws_zero3_visit visits[COUNT];
  for (int i = 0; i < COUNT; i++)
    visits[i] = (tws_zero3_visit){.params = of_visit[i] < 0 ? params : params + of_visit[i], .count = of_visit[i] >= 0};
  tws_arena *arena = tws_arena_create();
  tws_zero3_schedule s;
  ck_assert(tws_zero3_make_unit_schedule(visits, COUNT, 7, numel, unit, arena, &s, &err) == TWS_OK);
  int there[7] = {0}, gathers = 0;
  int64_t live = 0, most = 0;
  for (int i = 0; i < COUNT; i++) {
    const tws_zero3_actions *a = &s.actions[i];
    for (uint32_t k = 0; k < a->gather_count; k++) there[s.params[a->gather_first + k]]++;
    for (uint32_t k = 0; k < a->prefetch_count; k++) there[s.params[a->prefetch_first + k]]++;
    gathers += (a->gather_count > 0) + (a->prefetch_count > 0);
    if (of_visit[i] >= 0) ck_assert_int_eq(there[of_visit[i]], 1);
    for (int p = 0; p < 7; p++) ck_assert_int_eq(there[p], there[unit[p]]);
    live = 0;
    for (int p = 0; p < 7; p++) live += there[p] ? numel[p] : 0;
    most = live > most ? live : most;
    for (uint32_t k = 0; k < a->release_count; k++) there[s.params[a->release_first + k]]--;
  }
  for (int p = 0; p < 7; p++) ck_assert_int_eq(there[p], 0);
  ck_assert_int_eq(gathers, 7); /* four units in the forward pass, three in the backward pass, because the head's
                                 * stays */
  ck_assert_int_eq(s.peak_numel, 130);
  ck_assert_int_eq(most, 130);
  tws_arena_destroy(arena);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("zero3 schedule");
  TCase *c = tcase_create("zero3 schedule");
  tcase_add_test(c, zero3_trace_golden);
  tcase_add_test(c, sequential_trace_golden);
  tcase_add_test(c, units_are_gathered_whole);
  suite_add_tcase(suite, c);
  return run_suite(suite);
}
