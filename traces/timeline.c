#include "traces/timeline.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

tws_timeline *tws_timeline_create(const char *source) {
  tws_timeline *timeline = tws_calloc(1, sizeof *timeline);
  if (timeline) timeline->source = source;
  return timeline;
}

void tws_timeline_identify(tws_timeline *timeline, const char *model, const char *plan) {
  snprintf(timeline->model, sizeof timeline->model, "%s", model);
  snprintf(timeline->plan, sizeof timeline->plan, "%s", plan);
}

void tws_timeline_destroy(tws_timeline *timeline) {
  if (!timeline) return;
  for (uint32_t i = 0; i < timeline->name_count; i++) tws_free(timeline->names[i]);
  tws_free(timeline->names);
  tws_free(timeline->events);
  tws_free(timeline->counts);
  tws_free(timeline->slots);
  tws_free(timeline);
}

static size_t hash_text(const char *text) { /* FNV-1a */
  uint64_t hash = 0xcbf29ce484222325u;
  for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
  return (size_t)(hash ^ (hash >> 32));
}

static int grow_slots(tws_timeline *timeline) {
  const size_t count = timeline->slot_count ? 2 * timeline->slot_count : 256;
  uint32_t *slots = tws_calloc(count, sizeof *slots);
  if (!slots) return -1;
  for (uint32_t i = 0; i < timeline->name_count; i++) {
    size_t slot = hash_text(timeline->names[i]) & (count - 1);
    while (slots[slot]) slot = (slot + 1) & (count - 1);
    slots[slot] = i + 1;
  }
  tws_free(timeline->slots);
  timeline->slots = slots;
  timeline->slot_count = count;
  return 0;
}

uint32_t tws_timeline_name(tws_timeline *timeline, const char *name) {
  if (2 * ((size_t)timeline->name_count + 1) > timeline->slot_count && grow_slots(timeline) != 0) return UINT32_MAX;
  size_t slot = hash_text(name) & (timeline->slot_count - 1);
  for (; timeline->slots[slot]; slot = (slot + 1) & (timeline->slot_count - 1)) {
    if (strcmp(timeline->names[timeline->slots[slot] - 1], name) == 0) return timeline->slots[slot] - 1;
  }
  const size_t need = (size_t)timeline->name_count + 1;
  if (need >= UINT32_MAX || tws_reserve(&timeline->names, &timeline->name_capacity, need, sizeof(char *)) != 0)
    return UINT32_MAX;
  const size_t bytes = strlen(name) + 1;
  char *copy = tws_calloc(bytes, 1);
  if (!copy) return UINT32_MAX;
  memcpy(copy, name, bytes);
  timeline->names[timeline->name_count] = copy;
  timeline->slots[slot] = ++timeline->name_count;
  return timeline->name_count - 1;
}

int tws_timeline_add(tws_timeline *timeline, const tws_event *event) {
  if (tws_reserve(&timeline->events, &timeline->event_capacity, timeline->event_count + 1, sizeof *event) != 0)
    return -1;
  timeline->events[timeline->event_count++] = *event;
  return 0;
}

int tws_timeline_count(tws_timeline *timeline, const char *name, const char *series, double at_s, double value) {
  return tws_timeline_count_rank(timeline, -1, name, series, at_s, value);
}

int tws_timeline_count_rank(tws_timeline *timeline, int rank, const char *name, const char *series, double at_s,
                            double value) {
  const tws_count count = {.name = tws_timeline_name(timeline, name),
                           .series = tws_timeline_name(timeline, series),
                           .rank = rank,
                           .at_s = at_s,
                           .value = value};
  if (count.name == UINT32_MAX || count.series == UINT32_MAX ||
      tws_reserve(&timeline->counts, &timeline->count_capacity, timeline->count_count + 1, sizeof count) != 0)
    return -1;
  timeline->counts[timeline->count_count++] = count;
  return 0;
}

const char *tws_label_kind(const char *label) {
  const char *space = strrchr(label, ' ');
  return space ? space + 1 : label;
}

const char *tws_label_module(const char *label, int *length) {
  const char *kind = tws_label_kind(label), *space = strchr(label, ' ');
  const char *module = space ? space + 1 : kind;
  *length = kind > module ? (int)(kind - module) - 1 : 0;
  return module;
}

tws_code tws_timeline_check(const tws_timeline *timeline, tws_error *err) {
  for (size_t i = 0; i < timeline->event_count; i++) {
    const tws_event *event = &timeline->events[i];
    if (event->name >= timeline->name_count || event->stream >= timeline->stream_count ||
        event->phase >= timeline->phase_count)
      return tws_fail(err, TWS_INTERNAL, NULL, "%s timeline: event %zu of rank %d names no known row", timeline->source,
                      i, event->rank);
    if (!isfinite(event->start_s) || !isfinite(event->end_s) || event->end_s < event->start_s)
      return tws_fail(err, TWS_INTERNAL, NULL, "%s timeline: rank %d, \"%s\" runs from %g s to %g s", timeline->source,
                      event->rank, timeline->names[event->name], event->start_s, event->end_s);
  }
  for (size_t i = 0; i < timeline->count_count; i++)
    if (!isfinite(timeline->counts[i].at_s) || !isfinite(timeline->counts[i].value))
      return tws_fail(err, TWS_INTERNAL, NULL, "%s timeline: \"%s\" counts %g at %g s", timeline->source,
                      timeline->names[timeline->counts[i].name], timeline->counts[i].value, timeline->counts[i].at_s);
  return TWS_OK;
}
