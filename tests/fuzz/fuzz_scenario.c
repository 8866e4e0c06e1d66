/* Scenarios: any bytes give one error, or a scenario with consistent numbers whose events can be drawn. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "emulation/faults.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_event(const tws_fault_event *e) {
  if (e->kind >= TWS_HAPPENINGS_COUNT || e->last < e->first || e->first < -1 || e->times < 1 || e->times > 100000)
    abort();
  if (!(e->until_s > e->at_s) || !isfinite(e->at_s) || !isfinite(e->factor) || e->bit < 0 || e->bit > 63) abort();
  if (e->drawn && (!(e->scale_s > 0) || !(e->shape > 0))) abort();
  if (e->kind == TWS_HAPPENS_FLAP && !(e->period_s > e->down_s)) abort();
}

static void check_faults(tws_scenario *s) {
  tws_error err = {0};
  tws_faults faults;
  tws_arena *arena = tws_arena_create();
  for (int i = 0; i < s->event_count; i++) /* limits each event to 100 repetitions, to save time */
    if (s->events[i].times > 100) s->events[i].times = 100;
  const tws_code code = arena ? tws_faults_open(s, 4, 2, arena, &faults, &err) : TWS_MEMORY;
  if (code != TWS_OK && (code != TWS_INVALID || !err.message[0])) abort();
  const tws_rank_slot seats[2] = {{0, 0}, {2, 1}};
  if (code == TWS_OK && faults.count < 1000) {
    const double compute = tws_faults_compute(&faults, seats[0], 7, 1.0, 1e-3);
    const double transfer = tws_faults_transfer(&faults, seats, 2, 1.0, 1e-3);
    if (!(compute >= 0) || !(transfer >= 0) || transfer > TWS_NEVER_S) abort();
  }
  tws_arena_destroy(arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  tws_json *json = NULL;
  tws_scenario *scenario = NULL;
  tws_error err = {0};
  if (tws_json_parse((const char *)data, size, "folder/fuzz.json", &json, NULL) != TWS_OK) return 0;
  const tws_code code = tws_scenario_from_json(json, &scenario, &err);
  tws_json_destroy(json);
  if (code != TWS_OK) {
    if (code != TWS_INVALID || !err.message[0] || scenario) abort();
    return 0;
  }
  for (int i = 0; i < scenario->event_count; i++) check_event(&scenario->events[i]);
  check_faults(scenario);
  tws_scenario_destroy(scenario);
  return 0;
}
