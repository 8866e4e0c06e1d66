/* Runs jobs on the virtual cluster with many failures or orders of operations.
 *
 *   bench-faults deaths [N [SEED]]  N jobs in which a node dies at a random time, in every third job during a save. A
 *                                   job has to end with the loss of the undisturbed job: with equal bits if the node
 *                                   comes back, else with a difference of at most 1e-6.
 *   bench-faults goodput [N [FILE]] goodput at 20 failure rates, in N steps each, compared with Daly's formula;
 *                                   FILE: path of the figure
 *   bench-faults orders [N [SEED]]  N random small jobs of up to 12 ranks, each in the order of virtual time and in a
 *                                   random order: their bits have to be equal. A job whose bits differ is reduced to
 *                                   a smaller one, and the command that reproduces the difference is printed.
 *
 * TWINSPEED_MODULES is the folder of the modules; run bench-faults in the root folder of the sources. */
#include <ftw.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "bench/support.h"
#include "emulation/emulate.h"
#include "emulation/shrink.h"
#include "estimators/checkpoint_interval.h"
#include "job/modules.h"
#include "traces/plot.h"

static const tws_real_api *real;
static const tws_sim_api *sim;
static char folder[256];

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *where) {
  (void)status, (void)type, (void)where;
  return remove(path);
}

static void empty_folder(void) {
  nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static tws_emulation_request request_for(const tws_job_spec *spec, int64_t steps) {
  return (tws_emulation_request){.real = real,
                                 .sim = sim,
                                 .spec = spec,
                                 .data = "scenarios/faults/text.txt",
                                 .steps = steps,
                                 .order_seed = -1,
                                 .deadline_s = 10,
                                 .ignore_memory = 1};
}

static tws_job_spec small_job(void) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  spec.model = "scenarios/faults/model.json";
  spec.cluster = "scenarios/faults/cluster.json";
  spec.stage = 2;
  spec.set.item[spec.set.count++] = "train_batch_size=24";
  return spec;
}

static tws_code emulate(const tws_job_spec *spec, const tws_emulation_request *request, tws_emulation *out,
                        tws_error *err) {
  tws_job *job;
  memset(out, 0, sizeof *out);
  TWS_TRY(tws_job_load(spec, &job, err));
  const tws_code code = tws_emulate(job, request, out, err);
  tws_job_destroy(job);
  return code;
}

/* ---- deaths ---- */

static int one_death(uint64_t seed, uint64_t number, const tws_emulation *calm, double *largest) {
  const int in_save = number % 3 == 0, returns = number % 2 == 0;
  const double at_s = tws_random_uniform(seed, number, 0) * calm->virtual_s;
  tws_fault_event death = {.kind = in_save ? TWS_HAPPENS_STOP_IN_SAVE : TWS_HAPPENS_DEATH,
                           .target = TWS_TARGET_NODE,
                           .at_s = at_s,
                           .until_s = INFINITY,
                           .for_s = INFINITY,
                           .times = 1,
                           .repair_s = returns ? 0 : INFINITY,
                           .save = 1 + (int64_t)(tws_random_uniform(seed, number, 1) * 4),
                           .part = tws_random_uniform(seed, number, 2)};
  death.first = death.last = (int)(tws_random_uniform(seed, number, 3) * 4);
  const tws_scenario scenario = {.seed = seed, .events = &death, .event_count = 1};
  const tws_job_spec spec = small_job();
  tws_emulation_request request = request_for(&spec, 10);
  tws_emulation r;
  tws_error err = {0};
  request.save = folder;
  request.save_every = 2;
  request.synchronous = number % 4 < 2;
  request.restarts = 1;
  request.start_s = 0.01;
  request.scenario = &scenario;
  empty_folder();
  const tws_code code = emulate(&spec, &request, &r, &err);
  const double difference = fabs(r.last_loss - calm->last_loss);
  if (code == TWS_OK && difference > *largest) *largest = difference;
  const int same = r.ranks == 8 ? r.last_loss == calm->last_loss && r.digest == calm->digest : difference <= 1e-6;
  const int good = code == TWS_OK && r.restarts <= 1 && same;
  if (!good)
    printf("death %" PRIu64 " (%s, at %.6g s): %s, loss %.9g instead of %.9g, %d ranks\n", number,
           in_save ? "in a save" : "in a step", at_s, code == TWS_OK ? "ended" : err.message, r.last_loss,
           calm->last_loss, r.ranks);
  const int restarted = r.restarts == 1;
  tws_emulation_free(&r);
  return good ? restarted : -1;
}

static int run_deaths(uint64_t count, uint64_t seed) {
  const tws_job_spec spec = small_job();
  tws_emulation_request request = request_for(&spec, 10);
  tws_emulation calm;
  tws_error err = {0};
  uint64_t bad = 0, restarted = 0;
  double largest = 0;
  request.save = folder;
  request.save_every = 2;
  request.synchronous = 1;
  need(emulate(&spec, &request, &calm, &err), &err);
  for (uint64_t i = 0; i < count; i++) {
    const int came = one_death(seed, i, &calm, &largest);
    bad += came < 0;
    restarted += came == 1;
  }
  printf("%" PRIu64 " deaths: %" PRIu64 " jobs continued by themselves, %" PRIu64
         " ended before; largest difference of a loss %.3g; %" PRIu64 " bad\n",
         count, restarted, count - restarted - bad, largest, bad);
  tws_emulation_free(&calm);
  return bad != 0;
}

/* ---- goodput ---- */

/* Builds a job of two ranks, the fewest that can continue after a failure: the first rank dies and returns. */
static tws_job_spec two_ranks(void) {
  tws_job_spec spec = small_job();
  spec.ranks = 2;
  spec.cluster = "dgx-a100";
  spec.set.item[0] = "train_batch_size=2";
  return spec;
}

static tws_plot_goodput one_rate(int number, int64_t steps, double step_s, double save_s) {
  const double wait_s = 40 * step_s * pow(1.15, number), start_s = 3 * step_s;
  int64_t every = (int64_t)(tws_interval_daly(save_s, wait_s) / step_s + 0.5);
  if (every < 1) every = 1;
  tws_fault_event death = {.kind = TWS_HAPPENS_DEATH,
                           .target = TWS_TARGET_RANK,
                           .drawn = TWS_DRAWN_EXPONENTIAL,
                           .scale_s = wait_s,
                           .shape = 1,
                           .until_s = INFINITY,
                           .for_s = INFINITY,
                           .times = 100000,
                           .repair_s = 0};
  const tws_scenario scenario = {.seed = 100 + (uint64_t)number, .events = &death, .event_count = 1};
  const tws_job_spec spec = two_ranks();
  tws_emulation_request request = request_for(&spec, steps);
  tws_emulation r;
  tws_error err = {0};
  request.save = folder;
  request.save_every = every;
  request.synchronous = 1;
  request.keep = 1;
  request.restarts = 1000000;
  request.start_s = start_s;
  request.scenario = &scenario;
  empty_folder();
  tws_emulation_request before = request_for(&spec, every); /* a checkpoint to begin with */
  before.save = folder;
  need(emulate(&spec, &before, &r, &err), &err);
  tws_emulation_free(&r);
  request.resume = folder;
  request.steps += every;
  need(emulate(&spec, &request, &r, &err), &err);
  const double restart_s = r.restarts > 0 ? (r.restart_s + r.detect_s) / (double)r.restarts : start_s;
  const tws_plot_goodput point = {
      .failures_per_h = 3600 / wait_s,
      .measured = tws_emulation_goodput(&r),
      .formula = tws_interval_goodput((double)every * r.median_step_s, r.one_save_s, restart_s, wait_s)};
  printf("%8.4g  %6" PRId64 "  %6" PRId64 "  %9.3f %%  %9.3f %%  %+.2f %%\n", wait_s, every, r.restarts,
         100 * point.measured, 100 * point.formula, 100 * (point.measured / point.formula - 1));
  fflush(stdout);
  tws_emulation_free(&r);
  return point;
}

static int run_goodput(int64_t steps, const char *file) {
  enum { RATES = 20 };
  tws_plot_goodput points[RATES];
  const tws_job_spec spec = two_ranks();
  tws_emulation_request request = request_for(&spec, 4);
  tws_emulation calm;
  tws_error err = {0};
  int bad = 0;
  request.save = folder;
  request.save_every = 2;
  request.synchronous = 1;
  need(emulate(&spec, &request, &calm, &err), &err);
  printf("a step takes %.4g s, a save %.4g s\nbetween s   every  deaths     goodput     formula   apart\n",
         calm.median_step_s, calm.one_save_s);
  for (int i = 0; i < RATES; i++) {
    points[i] = one_rate(i, steps, calm.median_step_s, calm.one_save_s);
    bad += fabs(points[i].measured / points[i].formula - 1) > 0.05;
  }
  printf("%d of %d rates are more than 5 %% apart\n", bad, RATES);
  tws_emulation_free(&calm);
  char scripts[512];
  if (file)
    need(tws_plot_goodputs(tws_data_path("plots", scripts, sizeof scripts), points, RATES,
                           "Goodput of virtual ranks that save at Daly's interval", file, &err),
         &err);
  return bad != 0;
}

/* ---- orders ---- */

typedef struct order_job {
  tws_job_spec spec;
  char batch[64];
} order_job;

static int64_t one_of(uint64_t seed, uint64_t index, const int64_t *from, int n) {
  return from[(int)(tws_random_uniform(seed, 5, index) * n)];
}

static void draw_job(uint64_t seed, order_job *j) {
  tws_job_spec *s = &j->spec;
  *s = (tws_job_spec)TWS_JOB_SPEC_DEFAULTS;
  s->model = "scenarios/faults/model.json";
  s->threads = 1;
  s->tensor_ranks = one_of(seed, 1, (const int64_t[]){1, 1, 2}, 3);
  s->sequence_ranks = s->tensor_ranks == 1 ? one_of(seed, 2, (const int64_t[]){1, 1, 2}, 3) : 1;
  s->pipeline_stages = one_of(seed, 3, (const int64_t[]){1, 1, 2}, 3);
  s->ranks = s->tensor_ranks * s->sequence_ranks * s->pipeline_stages * one_of(seed, 4, (const int64_t[]){1, 2, 3}, 3);
  s->stage = one_of(seed, 5, (const int64_t[]){0, 1, 2, 3}, s->pipeline_stages > 1 ? 2 : 4);
  s->accumulation = s->pipeline_stages > 1 ? 4 : one_of(seed, 6, (const int64_t[]){1, 2, 3}, 3);
  s->micro_batch = one_of(seed, 7, (const int64_t[]){1, 2}, 2);
  s->sequence_parallel = s->tensor_ranks > 1 && one_of(seed, 8, (const int64_t[]){0, 1}, 2);
  static const char *const types[] = {"fp32", "bf16", "fp16"}, *const schedules[] = {"1f1b", "zb-h1", "gpipe"};
  static const char *const modes[] = {"none", "selective", "full"};
  s->dtype = types[one_of(seed, 9, (const int64_t[]){0, 1, 2}, 3)];
  if (s->pipeline_stages > 1) s->schedule = schedules[one_of(seed, 10, (const int64_t[]){0, 1, 2}, 3)];
  s->recompute = modes[one_of(seed, 11, (const int64_t[]){0, 1, 2}, 3)];
  snprintf(j->batch, sizeof j->batch, "zero_optimization.reduce_bucket_size=%d",
           200 + (int)(8000 * tws_random_uniform(seed, 5, 12)));
  s->set.item[s->set.count++] = j->batch;
  if (one_of(seed, 13, (const int64_t[]){0, 1}, 2)) s->set.item[s->set.count++] = "zero_optimization.overlap_comm=true";
  s->cluster = "dgx-a100";
}

/* Returns 1 if a job gives equal bits in both orders, 0 if it does not, and -1 if such a job is not possible. */
static int orders_agree(const tws_job_spec *spec, uint64_t seed, tws_error *err) {
  tws_emulation a, b;
  tws_emulation_request request = request_for(spec, 2);
  tws_code code = emulate(spec, &request, &a, err);
  if (code == TWS_INVALID || code == TWS_UNSUPPORTED) return -1;
  request.order_seed = (int64_t)seed;
  if (code == TWS_OK) code = emulate(spec, &request, &b, err);
  const int equal = code == TWS_OK && a.digest == b.digest && a.last_loss == b.last_loss;
  if (code == TWS_OK) tws_emulation_free(&b);
  tws_emulation_free(&a);
  return equal;
}

/* Returns 1 if the job's bits differ in the order of seed *user, or else of one of the seeds 1 to 24, and sets *user to
 * that seed: a smaller job has fewer streams that a seed can favour. */
static int orders_differ(void *user, const tws_job_spec *spec) {
  uint64_t *seed = user;
  for (uint64_t i = 0; i <= 24; i++) {
    const uint64_t other = i == 0 ? *seed : i;
    tws_error err = {0};
    const int agree = orders_agree(spec, other, &err);
    if (agree == 0) *seed = other;
    if (agree <= 0) return agree == 0;
  }
  return 0;
}

static void show_again(const tws_job_spec *s, uint64_t seed) {
  printf("  twinspeed emulate -m %s --data scenarios/faults/text.txt --steps 2 --cluster %s -n %" PRId64
         " --stage %" PRId64 " --tp %" PRId64 " --sp %" PRId64 " --pp %" PRId64 " --accumulation %" PRId64
         " --micro-batch %" PRId64,
         s->model, s->cluster, s->ranks, s->stage, s->tensor_ranks, s->sequence_ranks, s->pipeline_stages,
         s->accumulation, s->micro_batch);
  if (s->dtype) printf(" --dtype %s", s->dtype);
  if (s->schedule) printf(" --schedule %s", s->schedule);
  if (s->recompute) printf(" --recompute %s", s->recompute);
  for (int i = 0; i < s->set.count; i++) printf(" --set %s", s->set.item[i]);
  printf("%s --seed-order %" PRIu64 " --json\n", s->sequence_parallel ? " --sequence-parallel" : "", seed);
}

static int run_orders(uint64_t count, uint64_t seed) {
  uint64_t bad = 0, looked_at = 0;
  for (uint64_t i = 0; i < count; i++) {
    order_job j;
    tws_error err = {0};
    draw_job(seed + i, &j);
    uint64_t order = seed + i;
    const int agree = orders_agree(&j.spec, order, &err);
    looked_at += agree >= 0;
    if (agree != 0) continue;
    bad++;
    printf("seed %" PRIu64 ": other bits, or none: %s\n", seed + i, err.message);
    tws_job_minimize(&j.spec, orders_differ, &order);
    show_again(&j.spec, order);
  }
  printf("%" PRIu64 " seeds, %" PRIu64 " legal jobs: %" PRIu64 " bad\n", count, looked_at, bad);
  return bad != 0;
}

int main(int argc, char **argv) {
  tws_error err = {0};
  const char *what = argc > 1 ? argv[1] : "";
  const int64_t asked = argc > 2 ? argument_number(argv[2]) : 20;
  const uint64_t count = asked > 0 ? (uint64_t)asked : 0, seed = argc > 3 ? (uint64_t)argument_number(argv[3]) : 1;
  const char *temporary = getenv("TMPDIR"); /* saves wait for the disk, so a folder in memory is faster */
  snprintf(folder, sizeof folder, "%.200s/twinspeed-faults-%d", temporary ? temporary : "/tmp", (int)getpid());
  need(tws_sim_load(&sim, &err), &err);
  need(tws_real_load(&real, &err), &err);
  int bad = 2;
  if (count == 0) what = "";
  if (strcmp(what, "deaths") == 0) bad = run_deaths(count, seed);
  if (strcmp(what, "goodput") == 0) bad = run_goodput((int64_t)count, argc > 3 ? argv[3] : NULL);
  if (strcmp(what, "orders") == 0) bad = run_orders(count, seed);
  if (bad == 2) fprintf(stderr, "usage: bench-faults deaths|goodput|orders [N]\n");
  empty_folder();
  return bad;
}
