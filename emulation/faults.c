#include "emulation/faults.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <gsl/gsl_cdf.h>

#include "base/memory.h"
#include "base/random.h"

/* ---- draws ---- */

static double draw_wait(const tws_scenario *s, int event, int number) {
  const tws_fault_event *e = &s->events[event];
  const double u = tws_random_uniform(s->seed, 100 + (uint64_t)event, 2 * (uint64_t)number);
  return e->drawn == TWS_DRAWN_EXPONENTIAL ? gsl_cdf_exponential_Pinv(u, e->scale_s)
                                           : gsl_cdf_weibull_Pinv(u, e->scale_s, e->shape);
}

typedef struct list {
  tws_occurrence *all;
  int count, capacity;
  int failed;
} list;

static void add(list *l, const tws_occurrence *one) {
  if (l->count == l->capacity) {
    const int capacity = l->capacity ? 2 * l->capacity : 64;
    tws_occurrence *more = tws_realloc(l->all, (size_t)capacity, sizeof *more);
    l->failed |= !more;
    if (!more) return;
    l->all = more;
    l->capacity = capacity;
  }
  l->all[l->count++] = *one;
}

/* Adds the occurrences of a link that is down periodically: each time that it is down is one occurrence. */
static void add_flaps(list *l, const tws_occurrence *o) {
  enum { MOST = 100000 };
  const tws_fault_event *e = o->event;
  for (int64_t i = 0; i < MOST; i++) {
    tws_occurrence down = *o;
    down.from_s = o->from_s + (double)i * e->period_s;
    down.until_s = down.from_s + e->down_s;
    if (!(down.from_s < o->until_s)) return;
    add(l, &down);
  }
}

static void add_event(const tws_faults *f, list *l, int number) {
  const tws_scenario *s = f->scenario;
  const tws_fault_event *e = &s->events[number];
  const int places = e->target == TWS_TARGET_NODE ? f->nodes : f->nodes * f->slots;
  double at = e->at_s;
  if (e->kind == TWS_HAPPENS_STOP_IN_SAVE) at = INFINITY; /* the time is known when the save begins */
  for (int i = 0; i < (int)e->times; i++) {
    if (e->drawn) at += draw_wait(s, number, i);
    const uint64_t draw = (uint64_t)(tws_random_uniform(s->seed, 100 + (uint64_t)number, 2 * (uint64_t)i + 1) * 0x1p53);
    tws_occurrence o = {.event = e, .first = e->first, .last = e->last, .from_s = at, .draw = draw};
    if (e->target != TWS_TARGET_ALL && e->first < 0) o.first = o.last = (int)(draw % (uint64_t)places);
    o.until_s = at + e->for_s < e->until_s ? at + e->for_s : e->until_s;
    if (e->drawn && !(at < e->until_s)) return;
    if (e->kind == TWS_HAPPENS_FLAP)
      add_flaps(l, &o);
    else
      add(l, &o);
  }
}

static int by_time(const void *a, const void *b) {
  const tws_occurrence *x = a, *y = b;
  if (x->from_s != y->from_s) return x->from_s < y->from_s ? -1 : 1;
  return x->event != y->event ? (x->event < y->event ? -1 : 1) : 0;
}

static double mean_wait(const tws_fault_event *e) {
  return e->drawn == TWS_DRAWN_EXPONENTIAL ? e->scale_s : e->scale_s * tgamma(1 + 1 / e->shape);
}

tws_code tws_faults_open(const tws_scenario *scenario, int nodes, int slots, tws_arena *arena, tws_faults *out,
                         tws_error *err) {
  *out = (tws_faults){.scenario = scenario, .nodes = nodes, .slots = slots, .downtime_mean_s = INFINITY};
  list l = {0};
  double rate = 0;
  for (int i = 0; scenario && i < scenario->event_count; i++) {
    const tws_fault_event *e = &scenario->events[i];
    const int most = e->target == TWS_TARGET_NODE ? nodes : nodes * slots;
    if (e->last >= most) {
      tws_free(l.all);
      return tws_fail(err, TWS_INVALID, "they count from 0 on", "%s: event %d (%s) is of %s %d, and the cluster has %d",
                      scenario->name, i + 1, tws_fault_event_name(e->kind),
                      e->target == TWS_TARGET_NODE ? "node" : "rank", e->last, most);
    }
    add_event(out, &l, i);
    out->jitters |= e->kind == TWS_HAPPENS_JITTER;
    out->slows |= e->kind == TWS_HAPPENS_SLOW || e->kind == TWS_HAPPENS_LINK || e->kind == TWS_HAPPENS_FLAP ||
                  e->kind == TWS_HAPPENS_DISK;
    if (e->kind == TWS_HAPPENS_DEATH && e->drawn) rate += 1 / mean_wait(e);
  }
  if (rate > 0) out->downtime_mean_s = 1 / rate;
  if (!l.failed) out->all = tws_arena_alloc(arena, (size_t)l.count + 1, sizeof *out->all);
  for (int i = 0; out->all && i < l.count; i++) out->all[i] = l.all[i];
  tws_free(l.all);
  if (!out->all) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the events of a scenario");
  out->count = l.count;
  qsort(out->all, (size_t)out->count, sizeof *out->all, by_time);
  return TWS_OK;
}

int tws_faults_marks(const tws_faults *f, double now_s, tws_mark **out) {
  static const char *const words[] = {"", "rank", "node"};
  int count = 0;
  *out = tws_calloc((size_t)f->count + 1, sizeof **out);
  for (int i = 0; *out && i < f->count; i++) {
    const tws_occurrence *o = &f->all[i];
    const int moment = o->event->kind == TWS_HAPPENS_DEATH || o->event->kind == TWS_HAPPENS_BIT ||
                       o->event->kind == TWS_HAPPENS_STOP_IN_SAVE;
    if (!(o->from_s <= now_s) || (moment && !o->done)) continue;
    tws_mark *m = &(*out)[count++];
    m->from_s = o->from_s;
    m->until_s = moment ? o->from_s : o->until_s < now_s ? o->until_s : now_s;
    int n = snprintf(m->name, sizeof m->name, "%s", tws_fault_event_name(o->event->kind));
    if (o->event->target == TWS_TARGET_ALL) continue;
    n += snprintf(m->name + n, sizeof m->name - (size_t)n, ", %s %d", words[o->event->target], o->first);
    if (o->last > o->first) snprintf(m->name + n, sizeof m->name - (size_t)n, " to %d", o->last);
  }
  return count;
}

void tws_faults_pass(tws_faults *f, double now_s) {
  while (f->over < f->count) {
    const tws_occurrence *o = &f->all[f->over];
    const int once = o->event->kind == TWS_HAPPENS_DEATH || o->event->kind == TWS_HAPPENS_BIT ||
                     o->event->kind == TWS_HAPPENS_STOP_IN_SAVE;
    if (once ? !o->done : o->until_s > now_s) return;
    f->over++;
  }
}

/* ---- speeds ---- */

static int is_at(const tws_occurrence *o, tws_rank_slot place) {
  if (o->event->target == TWS_TARGET_ALL) return 1;
  const int here = o->event->target == TWS_TARGET_NODE ? place.node : place.slot;
  return o->first <= here && here <= o->last;
}

/* Returns 1 if a transfer among these places uses the link of the event: a rank's link is used if one of several places
 * is the rank's, and a node's link if the transfer leaves or enters the node. */
static int crosses(const tws_occurrence *o, const tws_rank_slot *places, int count) {
  int inside = 0;
  for (int i = 0; i < count; i++) inside += is_at(o, places[i]);
  if (o->event->target == TWS_TARGET_RANK) return inside > 0;
  if (o->event->target == TWS_TARGET_NODE) return inside > 0 && inside < count;
  for (int i = 1; i < count; i++)
    if (places[i].node != places[0].node) return 1;
  return 0;
}

typedef struct question {
  tws_fault_event_kind kind, other;
  const tws_rank_slot *places;
  int count;
} question;

/* Returns the share of the speed that remains during the occurrence for the kind of work and the places of the
 * question; 1: that work is not affected. */
static double share_of(const tws_occurrence *o, const question *q) {
  const tws_fault_event_kind kind = o->event->kind;
  if (kind != q->kind && kind != q->other) return 1;
  const int links = kind == TWS_HAPPENS_LINK || kind == TWS_HAPPENS_FLAP;
  if (!(links ? crosses(o, q->places, q->count) : is_at(o, q->places[0]))) return 1;
  return kind == TWS_HAPPENS_FLAP ? 0 : kind == TWS_HAPPENS_SLOW ? 1 / o->event->factor : o->event->factor;
}

static double stretch(const tws_faults *f, const question *q, double start_s, double seconds) {
  double at = start_s, left = seconds;
  if (!f->slows || !(seconds > 0)) return seconds;
  for (;;) {
    double speed = 1, change = INFINITY;
    for (int i = f->over; i < f->count; i++) {
      const tws_occurrence *o = &f->all[i];
      if (!(o->until_s > at)) continue;
      const double share = share_of(o, q);
      if (share == 1) continue;
      if (o->from_s > at) {
        if (o->from_s < change) change = o->from_s;
        break;
      }
      speed *= share;
      if (o->until_s < change) change = o->until_s;
    }
    /* unaffected durations keep their value bit for bit */
    if (speed == 1 && at == start_s && !(start_s + seconds > change)) return seconds;
    if (speed > 0 && at + left / speed <= change) return at + left / speed - start_s;
    if (change - start_s > TWS_NEVER_S) return TWS_NEVER_S;
    left -= speed * (change - at);
    at = change;
  }
}

double tws_faults_compute(const tws_faults *f, tws_rank_slot place, uint64_t number, double start_s, double seconds) {
  const question q = {TWS_HAPPENS_SLOW, TWS_HAPPENS_SLOW, &place, 1};
  for (int i = f->over; f->jitters && i < f->count; i++) {
    const tws_occurrence *o = &f->all[i];
    if (o->event->kind != TWS_HAPPENS_JITTER || !is_at(o, place) || o->from_s > start_s || !(o->until_s > start_s))
      continue;
    const uint64_t stream = ((uint64_t)place.slot << 8) + (uint64_t)(o->event - f->scenario->events);
    seconds *= exp(o->event->sigma * tws_random_normal(f->scenario->seed, stream + (UINT64_C(1) << 40), number));
  }
  return stretch(f, &q, start_s, seconds);
}

double tws_faults_transfer(const tws_faults *f, const tws_rank_slot *places, int count, double start_s,
                           double seconds) {
  const question q = {TWS_HAPPENS_LINK, TWS_HAPPENS_FLAP, places, count};
  return stretch(f, &q, start_s, seconds);
}

/* Returns 1 if this occurrence affects the link, directly or through its node. */
static int is_of_link(const tws_occurrence *o, tws_rank_slot place, int network) {
  if (o->event->target == TWS_TARGET_ALL) return network;
  return is_at(o, place) && (network || o->event->target == TWS_TARGET_RANK);
}

double tws_faults_share(const tws_faults *f, tws_rank_slot place, int network, double at_s, double *until_s) {
  double share = 1;
  *until_s = INFINITY;
  for (int i = f->over; f->slows && i < f->count; i++) {
    const tws_occurrence *o = &f->all[i];
    const tws_fault_event_kind kind = o->event->kind;
    if ((kind != TWS_HAPPENS_LINK && kind != TWS_HAPPENS_FLAP) || !(o->until_s > at_s)) continue;
    if (!is_of_link(o, place, network)) continue;
    if (o->from_s > at_s) {
      if (o->from_s < *until_s) *until_s = o->from_s;
      break;
    }
    share *= kind == TWS_HAPPENS_FLAP ? 0 : o->event->factor;
    if (o->until_s < *until_s) *until_s = o->until_s;
  }
  return share;
}

int tws_faults_cut_off(const tws_faults *f, const tws_rank_slot *places, int count, double at_s) {
  double until_s;
  int nodes = 0;
  for (int i = 1; i < count; i++) nodes |= places[i].node != places[0].node;
  for (int i = 0; i < count; i++)
    for (int network = 0; network <= nodes; network++)
      if (tws_faults_share(f, places[i], network, at_s, &until_s) == 0) return i;
  return -1;
}

double tws_faults_disk(const tws_faults *f, int node, double start_s, double seconds) {
  const tws_rank_slot place = {.slot = node * f->slots, .node = node};
  const question q = {TWS_HAPPENS_DISK, TWS_HAPPENS_DISK, &place, 1};
  return stretch(f, &q, start_s, seconds);
}

int tws_faults_disk_is_full(const tws_faults *f, int node, double now_s) {
  const tws_rank_slot place = {.slot = node * f->slots, .node = node};
  for (int i = f->over; i < f->count; i++) {
    const tws_occurrence *o = &f->all[i];
    if (o->event->kind == TWS_HAPPENS_DISK && o->event->full && is_at(o, place) && o->from_s <= now_s &&
        o->until_s > now_s)
      return 1;
  }
  return 0;
}
