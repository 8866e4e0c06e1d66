#include "autotune/search_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autotune/crew.h"
#include "autotune/exhaustive.h"

static int is_better(const tws_finalist *a, const tws_finalist *b) {
  if (a->samples_per_s != b->samples_per_s) return a->samples_per_s > b->samples_per_s;
  return a->number < b->number;
}

static void sift_down(tws_best *b, int at) {
  for (;;) {
    int worst = at;
    for (int child = 2 * at + 1; child <= 2 * at + 2 && child < b->count; child++)
      if (is_better(&b->items[worst], &b->items[child])) worst = child;
    if (worst == at) return;
    const tws_finalist f = b->items[at];
    b->items[at] = b->items[worst];
    b->items[worst] = f;
    at = worst;
  }
}

void tws_finalists_offer(tws_best *b, const tws_finalist *f) {
  if (b->count < b->most) {
    int at = b->count++;
    for (; at > 0 && is_better(&b->items[(at - 1) / 2], f); at = (at - 1) / 2) b->items[at] = b->items[(at - 1) / 2];
    b->items[at] = *f;
    return;
  }
  const tws_finalist *out = is_better(f, &b->items[0]) ? &b->items[0] : f;
  b->dropped++;
  if (out->samples_per_s > b->best_dropped) b->best_dropped = out->samples_per_s;
  if (out == f) return;
  b->items[0] = *f;
  sift_down(b, 0);
}

static int by_worth(const void *left, const void *right) {
  return is_better(left, right) ? -1 : is_better(right, left);
}

/* ---- plans of the best ---- */

/* What is alive at once does not fit: then no layout does, and none is made. */
static tws_code estimate_live(const tws_job *job, tws_ledger *out, tws_error *err) {
  const tws_plan_request plan = tws_job_request(job, 0);
  return tws_estimate_live(&plan, &job->machine, out, err);
}

static tws_code plan_candidate(const tws_tune_request *request, tws_tune_candidate *c, tws_error *err) {
  tws_job *job = NULL;
  c->rough = 0;
  tws_code code = tws_job_derive(request->job, &c->variant, &job, err);
  if (code == TWS_OK) code = estimate_live(job, &c->estimate.ledger, err);
  if (code == TWS_OK) tws_tune_judge(request, job, c);
  if (code == TWS_OK && c->verdict == TWS_TUNE_FITS) {
    code = tws_job_estimate(job, &c->estimate, NULL, err);
    if (code == TWS_OK) tws_tune_judge(request, job, c);
  }
  tws_job_destroy(job);
  return code == TWS_OK ? TWS_OK : tws_fail_in(err, code, "%s", c->name);
}

static int is_planned(const tws_tune_candidate *c) {
  return c->verdict == TWS_TUNE_FITS || c->estimate.step_s > 0;
}

static tws_code plan_one(const tws_product *s, const tws_search_state *sweep, const tws_finalist *f,
                         tws_tune_candidate *c, tws_error *err) {
  tws_product_point p = {.number = f->number};
  const tws_search_state_plan *known = tws_search_state_plan_of(sweep, f->number);
  tws_product_digits(s, &p);
  memset(c, 0, sizeof *c);
  c->variant = tws_product_variant(s, &p);
  c->samples = (double)(c->variant.micro * c->variant.accumulation * tws_variant_replicas(&c->variant));
  tws_variant_name(&c->variant, c->name, sizeof c->name);
  if (known) {
    c->rough = 1;
    c->estimate.step_s = known->step_s;
    c->verdict = (tws_tune_verdict)known->verdict;
    c->needed_bytes = known->needed_bytes;
    c->available_bytes = known->available_bytes;
    snprintf(c->reason, sizeof c->reason, "%s", known->reason);
  } else {
    TWS_TRY(plan_candidate(s->request, c, err));
  }
  if (!is_planned(c)) return TWS_OK;
  const double apart = c->estimate.step_s - f->step_s, most = 1e-9 * c->estimate.step_s;
  if (apart >= -most && (!f->exact || apart <= most)) return TWS_OK;
  return tws_fail(err, TWS_INTERNAL, "the search and the plan disagree: please report it",
                  "%s: a step of %.12g s was composed, and %.12g s planned", c->name, f->step_s, c->estimate.step_s);
}

static int by_throughput(const void *left, const void *right) {
  const tws_tune_candidate *a = left, *b = right;
  const double x = a->samples / a->estimate.step_s, y = b->samples / b->estimate.step_s;
  if (x != y) return x > y ? -1 : 1;
  return strcmp(a->name, b->name);
}

enum { BATCH = 32 };

typedef struct planning {
  const tws_tune_request *request;
  const tws_product *s;
  tws_search_state *sweep;
  const tws_finalist *all;
  uint64_t *prints; /* of the plans of those that may be equal to another; else 0 */
  int items[BATCH]; /* of a batch: those that are looked at */
  int wanted;
  size_t capacity;
  tws_tune_result *result;
} planning;

static tws_code plan_item(void *user, int item, void *answer, tws_error *err) {
  const planning *p = user;
  return plan_one(p->s, p->sweep, &p->all[p->items[item]], answer, err);
}

/* Whether nothing from this one on can be among the best. */
static int is_behind(const planning *p, const tws_finalist *f) {
  const tws_tune_result *result = p->result;
  if (result->fits < p->wanted) return 0;
  const tws_tune_candidate *last = &result->candidates[p->wanted - 1];
  return f->samples_per_s < last->samples / last->estimate.step_s * (1 - 1e-12);
}

static tws_code read_plan(void *user, int item, const void *answer, int *stop, tws_error *err) {
  planning *p = user;
  tws_tune_result *result = p->result;
  const tws_finalist *f = &p->all[p->items[item]];
  if ((*stop = is_behind(p, f))) return TWS_OK;
  if (tws_reserve(&result->candidates, &p->capacity, (size_t)result->fits + 1, sizeof *result->candidates))
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for the finalists");
  tws_tune_candidate *c = &result->candidates[result->fits];
  memcpy(c, answer, sizeof *c);
  result->swept.planned += is_planned(c);
  tws_search_state_keep_plan(p->sweep, f->number, c);
  if (c->verdict != TWS_TUNE_FITS) {
    result->swept.too_large++;
    *(f->exact ? &result->swept.composed : &result->swept.bounded) -= 1;
    return TWS_OK;
  }
  result->fits++;
  qsort(result->candidates, (size_t)result->fits, sizeof *result->candidates, by_throughput);
  if (p->request->progress)
    tws_progress_update(p->request->progress, result->fits < p->wanted ? result->fits : p->wanted);
  return TWS_OK;
}

/* ---- equal plans ---- */

/* Whether two points may have the same plan: they differ in ZeRO's knobs alone, and promise the same. */
static int may_be_equal(const planning *p, int a, int b) {
  tws_product_point x = {.number = p->all[a].number}, y = {.number = p->all[b].number};
  if (p->all[a].step_s != p->all[b].step_s) return 0;
  tws_product_digits(p->s, &x);
  tws_product_digits(p->s, &y);
  return memcmp(x.digit, y.digit, TWS_DIGIT_STAGE * sizeof *x.digit) == 0;
}

static int has_twin(const planning *p, int count, int item) {
  for (int i = item; i-- > 0 && p->all[i].samples_per_s == p->all[item].samples_per_s;)
    if (may_be_equal(p, i, item)) return 1;
  for (int i = item + 1; i < count && p->all[i].samples_per_s == p->all[item].samples_per_s; i++)
    if (may_be_equal(p, i, item)) return 1;
  return 0;
}

static tws_code print_item(void *user, int item, void *answer, tws_error *err) {
  const planning *p = user;
  tws_product_point at = {.number = p->all[p->items[item]].number};
  tws_job *job = NULL;
  tws_product_digits(p->s, &at);
  const tws_variant v = tws_product_variant(p->s, &at);
  tws_code code = tws_job_derive(p->request->job, &v, &job, err);
  if (code == TWS_OK) {
    const tws_plan_request plan = tws_job_request(job, 0);
    code = tws_fingerprint_stages(&plan, answer, err);
  }
  tws_job_destroy(job);
  return code;
}

static tws_code read_print(void *user, int item, const void *answer, int *stop, tws_error *err) {
  const planning *p = user;
  (void)stop;
  (void)err;
  memcpy(&p->prints[p->items[item]], answer, sizeof *p->prints);
  return TWS_OK;
}

static int is_equal_to_earlier(const planning *p, int item) {
  for (int i = item; p->prints[item] && i-- > 0 && p->all[i].samples_per_s == p->all[item].samples_per_s;)
    if (p->prints[i] == p->prints[item] && may_be_equal(p, i, item)) return 1;
  return 0;
}

/* ---- all of them ---- */

/* A batch, of which those that have the plan of an earlier one are left out. */
static tws_code plan_some(planning *p, int first, int end, int count, tws_error *err) {
  tws_tune_swept *swept = &p->result->swept;
  const int workers = tws_crew_size(p->request->workers);
  tws_crew_list prints = {0, sizeof(uint64_t), print_item, read_print, p};
  tws_crew_list plans = {0, sizeof(tws_tune_candidate), plan_item, read_plan, p};
  for (int i = first; i < end; i++)
    if (has_twin(p, count, i)) p->items[prints.items++] = i;
  TWS_TRY(tws_crew_do(&prints, workers, &swept->plan_cpu_s, err));
  for (int i = first; i < end; i++) {
    if (!is_equal_to_earlier(p, i)) {
      p->items[plans.items++] = i;
      continue;
    }
    swept->equal++;
    *(p->all[i].exact ? &swept->composed : &swept->bounded) -= 1;
  }
  return tws_crew_do(&plans, workers, &swept->plan_cpu_s, err);
}

static tws_code plan_batches(planning *p, int count, tws_error *err) {
  for (int first = 0; first < count && !is_behind(p, &p->all[first]); first += BATCH)
    TWS_TRY(plan_some(p, first, count - first < BATCH ? count : first + BATCH, count, err));
  return TWS_OK;
}

static tws_code plan_leader(void *user, int item, void *answer, tws_error *err) {
  const planning *p = user;
  tws_tune_candidate *c = answer;
  *c = p->result->candidates[item];
  return c->rough ? plan_candidate(p->request, c, err) : TWS_OK;
}

static tws_code read_leader(void *user, int item, const void *answer, int *stop, tws_error *err) {
  const planning *p = user;
  (void)stop;
  (void)err;
  memcpy(&p->result->candidates[item], answer, sizeof *p->result->candidates);
  return TWS_OK;
}

/* Those of which an earlier search knew no more than that they lead. */
static tws_code plan_leaders(planning *p, tws_error *err) {
  const tws_crew_list list = {p->result->fits, sizeof(tws_tune_candidate), plan_leader, read_leader, p};
  int rough = 0;
  for (int i = 0; i < p->result->fits; i++) rough |= p->result->candidates[i].rough;
  return rough ? tws_crew_do(&list, tws_crew_size(p->request->workers), &p->result->swept.plan_cpu_s, err) : TWS_OK;
}

tws_code tws_finalists_plan(const tws_product *s, tws_search_state *sweep, tws_finalist *all, int count, int wanted,
                            tws_tune_result *result, tws_error *err) {
  const tws_tune_request *request = s->request;
  planning p = {.request = request, .s = s, .sweep = sweep, .all = all, .wanted = wanted, .result = result};
  if (count == 0) return TWS_OK;
  qsort(all, (size_t)count, sizeof *all, by_worth);
  p.prints = tws_calloc((size_t)count, sizeof *p.prints);
  if (!p.prints) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the finalists");
  if (request->progress) tws_progress_begin(request->progress, "planning the best", wanted);
  tws_code code = plan_batches(&p, count, err);
  if (result->fits > wanted) result->fits = wanted;
  if (code == TWS_OK) code = plan_leaders(&p, err);
  if (request->progress) tws_progress_end(request->progress);
  tws_free(p.prints);
  result->count = result->fits;
  return code;
}
