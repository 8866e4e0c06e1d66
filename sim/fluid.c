#include "sim/fluid.h"

#include <math.h>

#include "base/memory.h"

#define NONE UINT32_MAX

/* A flow, or a timer (count 0). The flows of a link are a doubly linked list. An element of a list has the number flow
 * * TWS_FLUID_LINKS + k, where link[k] of the flow is the link of the list. */
typedef struct item {
  double left, rate, since_s; /* left: bytes not sent at date since_s; rate: bytes per second since then */
  uint64_t tag, order;
  uint32_t link[TWS_FLUID_LINKS], before[TWS_FLUID_LINKS], after[TWS_FLUID_LINKS];
  uint32_t at;    /* position of the item in the heap */
  uint32_t epoch; /* number of the recomputation of rates that visited it last */
  int count, settled;
} item;

typedef struct link {
  double capacity, left; /* capacity: bytes per second; left: capacity minus settled rates, while rates are computed */
  uint32_t first, flows, open;
  uint32_t epoch;
  int dirty;
} link;

typedef struct due {
  double date_s;
  uint32_t item;
} due;

struct tws_fluid {
  link *links;
  item *items;
  uint32_t free; /* head of the list of unused items, linked by after[0] */
  due *heap;
  uint32_t *dirty, *component_links, *component_flows, *full;
  size_t item_count, item_capacity, heap_count, heap_capacity, dirty_count, dirty_capacity, component_link_capacity,
      component_flow_capacity, full_capacity;
  uint64_t order;
  uint32_t epoch;
  double now_s;
};

tws_fluid *tws_fluid_create(int links) {
  tws_fluid *f = tws_calloc(1, sizeof *f);
  if (!f) return NULL;
  const size_t count = (size_t)links + 1;
  f->free = NONE;
  f->links = tws_calloc(count, sizeof *f->links);
  /* none of these arrays needs room for more than one element per link */
  if (!f->links || tws_reserve(&f->dirty, &f->dirty_capacity, count, sizeof *f->dirty) ||
      tws_reserve(&f->component_links, &f->component_link_capacity, count, sizeof *f->component_links) ||
      tws_reserve(&f->full, &f->full_capacity, count, sizeof *f->full)) {
    tws_fluid_destroy(f);
    return NULL;
  }
  for (size_t i = 0; i < count; i++) f->links[i].first = NONE;
  return f;
}

void tws_fluid_destroy(tws_fluid *f) {
  if (!f) return;
  tws_free(f->links);
  tws_free(f->items);
  tws_free(f->heap);
  tws_free(f->dirty);
  tws_free(f->component_links);
  tws_free(f->component_flows);
  tws_free(f->full);
  tws_free(f);
}

/* ---- the heap of events, by date ---- */

static int is_before(const tws_fluid *f, due a, due b) {
  return a.date_s != b.date_s ? a.date_s < b.date_s : f->items[a.item].order < f->items[b.item].order;
}

static void put(tws_fluid *f, size_t at, due d) {
  f->heap[at] = d;
  f->items[d.item].at = (uint32_t)at;
}

static void sift_up(tws_fluid *f, size_t at, due d) {
  while (at > 0 && is_before(f, d, f->heap[(at - 1) / 2])) {
    put(f, at, f->heap[(at - 1) / 2]);
    at = (at - 1) / 2;
  }
  put(f, at, d);
}

static void sift_down(tws_fluid *f, size_t at, due d) {
  for (size_t child; (child = 2 * at + 1) < f->heap_count; at = child) {
    if (child + 1 < f->heap_count && is_before(f, f->heap[child + 1], f->heap[child])) child++;
    if (!is_before(f, f->heap[child], d)) break;
    put(f, at, f->heap[child]);
  }
  put(f, at, d);
}

static void move_to(tws_fluid *f, uint32_t index, double date_s) {
  const size_t at = f->items[index].at;
  const due d = {date_s, index};
  if (at > 0 && is_before(f, d, f->heap[(at - 1) / 2]))
    sift_up(f, at, d);
  else
    sift_down(f, at, d);
}

static uint32_t new_item(tws_fluid *f, double date_s, uint64_t tag) {
  uint32_t index = f->free;
  if (index != NONE) {
    f->free = f->items[index].after[0];
  } else {
    const size_t count = f->item_count + 1;
    if (count >= NONE / TWS_FLUID_LINKS || tws_reserve(&f->items, &f->item_capacity, count, sizeof *f->items) ||
        tws_reserve(&f->component_flows, &f->component_flow_capacity, count, sizeof *f->component_flows) ||
        tws_reserve(&f->heap, &f->heap_capacity, count, sizeof *f->heap))
      return NONE;
    index = (uint32_t)f->item_count++;
  }
  f->items[index] = (item){.tag = tag, .order = f->order++};
  sift_up(f, f->heap_count++, (due){date_s, index});
  return index;
}

/* ---- flows ---- */

static void mark_dirty(tws_fluid *f, uint32_t index) {
  if (f->links[index].dirty) return;
  f->links[index].dirty = 1;
  f->dirty[f->dirty_count++] = index;
}

static void go_to(tws_fluid *f, double now_s) {
  if (now_s > f->now_s) f->now_s = now_s;
}

void tws_fluid_capacity(tws_fluid *f, int index, double bytes_per_s, double now_s) {
  if (f->links[index].capacity == bytes_per_s) return;
  tws_fluid_next(f); /* applies the current rates until now_s, so that only later bytes are sent at the new rates */
  go_to(f, now_s);
  f->links[index].capacity = bytes_per_s;
  if (f->links[index].flows) mark_dirty(f, (uint32_t)index);
}

int tws_fluid_flow(tws_fluid *f, const int *links, int count, double bytes, double now_s, uint64_t tag) {
  go_to(f, now_s);
  const uint32_t index = new_item(f, INFINITY, tag);
  if (index == NONE) return -1;
  item *flow = &f->items[index];
  flow->left = bytes;
  flow->since_s = f->now_s;
  flow->count = count;
  for (int k = 0; k < count; k++) {
    link *l = &f->links[links[k]];
    const uint32_t end = index * TWS_FLUID_LINKS + (uint32_t)k;
    flow->link[k] = (uint32_t)links[k];
    flow->before[k] = NONE;
    flow->after[k] = l->first;
    if (l->first != NONE) f->items[l->first / TWS_FLUID_LINKS].before[l->first % TWS_FLUID_LINKS] = end;
    l->first = end;
    l->flows++;
    mark_dirty(f, (uint32_t)links[k]);
  }
  return 0;
}

int tws_fluid_date(tws_fluid *f, double date_s, uint64_t tag) {
  return new_item(f, date_s, tag) == NONE ? -1 : 0;
}

static void leave_links(tws_fluid *f, const item *flow) {
  for (int k = 0; k < flow->count; k++) {
    link *l = &f->links[flow->link[k]];
    const uint32_t before = flow->before[k], after = flow->after[k];
    *(before == NONE ? &l->first : &f->items[before / TWS_FLUID_LINKS].after[before % TWS_FLUID_LINKS]) = after;
    if (after != NONE) f->items[after / TWS_FLUID_LINKS].before[after % TWS_FLUID_LINKS] = before;
    if (--l->flows > 0) mark_dirty(f, flow->link[k]);
  }
}

uint64_t tws_fluid_pop(tws_fluid *f) {
  const due top = f->heap[0];
  item *taken = &f->items[top.item];
  const uint64_t tag = taken->tag;
  go_to(f, top.date_s);
  leave_links(f, taken);
  const due last = f->heap[--f->heap_count];
  if (f->heap_count > 0) sift_down(f, 0, last);
  taken->after[0] = f->free;
  f->free = top.item;
  return tag;
}

/* ---- rates ---- */

static void set_rate(tws_fluid *f, uint32_t index, double rate) {
  item *flow = &f->items[index];
  flow->settled = 1;
  for (int k = 0; k < flow->count; k++) {
    link *l = &f->links[flow->link[k]];
    l->left -= rate;
    l->open--;
  }
  if (rate == flow->rate) return;
  flow->left -= flow->rate * (f->now_s - flow->since_s);
  if (flow->left < 0) flow->left = 0;
  flow->since_s = f->now_s;
  flow->rate = rate;
  move_to(f, index, rate > 0 ? f->now_s + flow->left / rate : INFINITY);
}

/* Finds the connected component of link `first`: all links that share flows with it, directly or through others, and
 * these flows (f->component_links, f->component_flows). Returns the number of links. */
static size_t find_component(tws_fluid *f, uint32_t first, size_t *flows) {
  size_t links = 0;
  *flows = 0;
  f->links[first].epoch = f->epoch;
  f->component_links[links++] = first;
  for (size_t i = 0; i < links; i++) {
    link *l = &f->links[f->component_links[i]];
    l->left = l->capacity;
    l->open = l->flows;
    for (uint32_t end = l->first; end != NONE;) {
      item *flow = &f->items[end / TWS_FLUID_LINKS];
      if (flow->epoch != f->epoch) {
        flow->epoch = f->epoch;
        flow->settled = 0;
        f->component_flows[(*flows)++] = end / TWS_FLUID_LINKS;
        for (int k = 0; k < flow->count; k++) {
          if (f->links[flow->link[k]].epoch == f->epoch) continue;
          f->links[flow->link[k]].epoch = f->epoch;
          f->component_links[links++] = flow->link[k];
        }
      }
      end = flow->after[end % TWS_FLUID_LINKS];
    }
  }
  return links;
}

/* Computes the rates of a connected component by progressive filling. In each round, the links on which the flows
 * without a final rate would get the least are full: their flows get this rate, which is subtracted from the capacity
 * of the other links that they cross. */
static void share_component(tws_fluid *f, size_t links, size_t flows) {
  const double alike = 1 + 1e-12; /* rates that differ only by rounding are final in the same round */
  while (flows > 0) {
    double least = INFINITY;
    size_t count = 0;
    for (size_t i = 0; i < links;) {
      const link *l = &f->links[f->component_links[i]];
      if (l->open == 0) {
        f->component_links[i] = f->component_links[--links];
        continue;
      }
      const double share = l->left > 0 ? l->left / l->open : 0;
      if (share < least) least = share;
      i++;
    }
    for (size_t i = 0; i < links; i++) {
      const link *l = &f->links[f->component_links[i]];
      if (l->left <= least * alike * l->open) f->full[count++] = f->component_links[i];
    }
    for (size_t i = 0; i < count; i++)
      for (uint32_t end = f->links[f->full[i]].first; end != NONE;) {
        const uint32_t index = end / TWS_FLUID_LINKS;
        end = f->items[index].after[end % TWS_FLUID_LINKS];
        if (f->items[index].settled) continue;
        set_rate(f, index, least);
        flows--;
      }
  }
}

static void share_links(tws_fluid *f) {
  f->epoch++;
  for (size_t i = 0; i < f->dirty_count; i++) {
    const uint32_t first = f->dirty[i];
    size_t flows;
    f->links[first].dirty = 0;
    if (f->links[first].epoch == f->epoch || f->links[first].flows == 0) continue;
    const size_t links = find_component(f, first, &flows);
    share_component(f, links, flows);
  }
  f->dirty_count = 0;
}

double tws_fluid_next(tws_fluid *f) {
  if (f->heap_count == 0) return INFINITY;
  /* Events whose dates differ only by rounding are all removed before the rates of the remaining flows are
   * recomputed. */
  const double together_s = 1e-15 + 4e-16 * f->now_s;
  if (f->dirty_count > 0 && f->heap[0].date_s > f->now_s + together_s) share_links(f);
  return f->heap[0].date_s;
}
