/* Flows that share links: random flows that start and end at random times, on links whose capacities change, compared
 * with rates that are recomputed from scratch after every event; and an example of two flows by hand. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "suite.h"

#include "sim/fluid.c" /* included, because the module exports only its table */

enum { LINKS = 12, FLOWS = 60, CHANGES = 4 };

/* ---- the same, slowly ---- */

typedef struct slow_flow {
  int links[2], count, begun, ended;
  double start_s, left, rate, end_s;
} slow_flow;

/* Computes max-min fair rates: each round fixes the rates of all flows through the link with the smallest fair
 * share. */
static void slow_rates(slow_flow *flows, const double *capacity) {
  int held[FLOWS] = {0};
  for (;;) {
    double least = INFINITY, left[LINKS];
    int tightest = -1, open[LINKS] = {0};
    memcpy(left, capacity, sizeof left);
    for (int i = 0; i < FLOWS; i++)
      for (int k = 0; k < flows[i].count && flows[i].begun && !flows[i].ended; k++) {
        if (held[i]) left[flows[i].links[k]] -= flows[i].rate;
        open[flows[i].links[k]] += !held[i];
      }
    for (int l = 0; l < LINKS; l++)
      if (open[l] && left[l] / open[l] < least) {
        least = left[l] / open[l];
        tightest = l;
      }
    if (tightest < 0) return;
    for (int i = 0; i < FLOWS; i++)
      for (int k = 0; k < flows[i].count && flows[i].begun && !flows[i].ended && !held[i]; k++)
        if (flows[i].links[k] == tightest) {
          flows[i].rate = least;
          held[i] = 1;
        }
  }
}

typedef struct change {
  double at_s, capacity;
  int link;
} change;

static void run_slowly(slow_flow *flows, double *capacity, const change *changes) {
  double now_s = 0;
  for (int left = FLOWS, changed = 0; left > 0;) {
    double next_s = changed < CHANGES ? changes[changed].at_s : INFINITY;
    slow_rates(flows, capacity);
    for (int i = 0; i < FLOWS; i++) {
      if (flows[i].ended) continue;
      const double at_s = flows[i].begun ? now_s + flows[i].left / flows[i].rate : flows[i].start_s;
      if (at_s < next_s) next_s = at_s;
    }
    for (int i = 0; i < FLOWS; i++) {
      if (flows[i].ended) continue;
      if (flows[i].begun && now_s + flows[i].left / flows[i].rate <= next_s) {
        flows[i].ended = 1;
        flows[i].end_s = next_s;
        left--;
      } else if (flows[i].begun) {
        flows[i].left -= flows[i].rate * (next_s - now_s);
      } else if (flows[i].start_s <= next_s) {
        flows[i].begun = 1;
      }
    }
    now_s = next_s;
    for (; changed < CHANGES && changes[changed].at_s <= now_s; changed++)
      capacity[changes[changed].link] = changes[changed].capacity;
  }
}

/* ---- tests ---- */

static uint64_t draw_number(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

static void draw(uint64_t *random, slow_flow *flows, double *capacity, change *changes) {
  for (int l = 0; l < LINKS; l++) capacity[l] = 1 + (double)(draw_number(random) % 4);
  for (int i = 0; i < FLOWS; i++) {
    const int first = (int)(draw_number(random) % LINKS);
    flows[i] = (slow_flow){.links = {first, (first + 1 + (int)(draw_number(random) % (LINKS - 1))) % LINKS},
                           .count = draw_number(random) % 8 ? 2 : 1,
                           .start_s = (double)(draw_number(random) % 20),
                           .left = 1 + (double)(draw_number(random) % 8)};
  }
  for (int i = 0; i < CHANGES; i++)
    changes[i] = (change){2.5 + 5 * i, 0.5 + (double)(draw_number(random) % 4), (int)(draw_number(random) % LINKS)};
}

/* Runs the flows with the simulator's code and writes their ends; the starts of flows and the changes of capacity are
 * dates in its list. */
static void run_fast(const slow_flow *flows, const double *capacity, const change *changes, double *ends) {
  tws_fluid *fluid = tws_fluid_create(LINKS);
  ck_assert_ptr_nonnull(fluid);
  for (int l = 0; l < LINKS; l++) tws_fluid_capacity(fluid, l, capacity[l], 0);
  for (int i = 0; i < FLOWS; i++) ck_assert_int_eq(tws_fluid_date(fluid, flows[i].start_s, (uint64_t)i), 0);
  for (int i = 0; i < CHANGES; i++)
    ck_assert_int_eq(tws_fluid_date(fluid, changes[i].at_s, 2 * FLOWS + (uint64_t)i), 0);
  for (double now_s; (now_s = tws_fluid_next(fluid)) < INFINITY;) {
    const uint64_t tag = tws_fluid_pop(fluid);
    if (tag < FLOWS)
      ck_assert_int_eq(tws_fluid_flow(fluid, flows[tag].links, flows[tag].count, flows[tag].left, now_s, FLOWS + tag),
                       0);
    else if (tag < 2 * FLOWS)
      ends[tag - FLOWS] = now_s;
    else
      tws_fluid_capacity(fluid, changes[tag - 2 * FLOWS].link, changes[tag - 2 * FLOWS].capacity, now_s);
  }
  tws_fluid_destroy(fluid);
}

START_TEST(random_flows_have_max_min_rates) {
  for (uint64_t seed = 1; seed <= 200; seed++) {
    uint64_t random = seed;
    slow_flow flows[FLOWS];
    double capacity[LINKS], ends[FLOWS] = {0}, again[FLOWS] = {0};
    change changes[CHANGES];
    draw(&random, flows, capacity, changes);
    run_fast(flows, capacity, changes, ends);
    run_fast(flows, capacity, changes, again);
    ck_assert_mem_eq(ends, again, sizeof ends);
    run_slowly(flows, capacity, changes);
    for (int i = 0; i < FLOWS; i++)
      ck_assert_msg(fabs(ends[i] - flows[i].end_s) <= 1e-9 * flows[i].end_s, "seed %llu, flow %d: %.15g is not %.15g",
                    (unsigned long long)seed, i, ends[i], flows[i].end_s);
  }
}
END_TEST

START_TEST(two_flows) {
  const int both[2] = {0, 1}, second[1] = {1};
  tws_fluid *fluid = tws_fluid_create(2);
  ck_assert_ptr_nonnull(fluid);
  tws_fluid_capacity(fluid, 0, 1, 0);
  tws_fluid_capacity(fluid, 1, 4, 0);
  tws_fluid_flow(fluid, both, 2, 4, 0, 7);   /* 1 a second: link 0 is full */
  tws_fluid_flow(fluid, second, 1, 9, 0, 8); /* 3 per second: the rest of link 1 */
  ck_assert_double_eq(tws_fluid_next(fluid), 3);
  ck_assert_uint_eq(tws_fluid_pop(fluid), 8);
  tws_fluid_capacity(fluid, 0, 0, 3); /* nothing moves */
  ck_assert(isinf(tws_fluid_next(fluid)));
  tws_fluid_capacity(fluid, 0, 0.5, 10);
  ck_assert_double_eq(tws_fluid_next(fluid), 12);
  ck_assert_uint_eq(tws_fluid_pop(fluid), 7);
  ck_assert(isinf(tws_fluid_next(fluid)));
  tws_fluid_destroy(fluid);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("fluid");
  TCase *tcase = tcase_create("fluid");
  tcase_add_test(tcase, random_flows_have_max_min_rates);
  tcase_add_test(tcase, two_flows);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
