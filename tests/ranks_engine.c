/* The program that suites of trainings start once per rank.
 *
 *   ranks_engine comm              the communicator against sums computed here, on all transports, bit for bit
 *   ranks_engine train JOBS OUT    trains every job of a file, one "name <TAB> model <TAB> steps <TAB> ds_config
 *                                  text" a line, on the data file that the environment variable DATA names; rank 0
 *                                  writes "name loss norm loss norm ..." lines with all digits. A job whose name
 *                                  begins with "stale-N-" is updated one step late from step N on (tests/stale.h), one
 *                                  that begins with "columns-" in two parts (tests/columns.h); one that begins with
 *                                  "codes-N-" works with weights of 8 bits as N ranks make them, with
 *                                  "levels-N-" adds up gradients of 4 bits in nodes of N (tests/codes.h)
 * A rank that finds something wrong says so and ends with status 1. */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/random.h"
#include "codes.h"
#include "columns.h"
#include "hand_program.h"
#include "models/network/adapt.h"
#include "real/host/bind.h"
#include "real/cuda_loader.h"
#include "real/train_internal.h"
#include "sanitized.h"
#include "stale.h"

static int rank, world;

static void need(int ok, const char *what, const tws_error *err) {
  if (ok) return;
  fprintf(stderr, "rank %d: %s: %s\n", rank, what, err ? err->message : "");
  _exit(1);
}

/* ---- comm ---- */

enum { GROUPS = 7, SEGMENTS = 300, LARGE = 300000 };
static int members[GROUPS][64];
static tws_group groups[GROUPS];
static int group_count;

static uint64_t pick(uint64_t trial_number, uint64_t what, uint64_t n) {
  uint32_t word[4];
  tws_philox(7, trial_number, what, word);
  return word[0] % n;
}

/* Returns 1 if rank r is in this rank's part of group g. Groups divide the ranks as follows: 0 all together; 1 by
 * parity; 2 each rank alone; 3 to 5 at random, into parts that are rarely equal; 6 only the first and the last rank,
 * which other ranks do not have. */
static int together(int g, int r) {
  if (g == 1) return r % 2 == rank % 2;
  if (g == 2) return r == rank;
  if (g >= 3 && g < 6) return pick((uint64_t)g, (uint64_t)r, 3) == pick((uint64_t)g, (uint64_t)rank, 3);
  if (g == 6) return (r == 0 || r == world - 1) && (rank == 0 || rank == world - 1);
  return 1;
}

static void make_groups(void) {
  static const tws_axes axes[GROUPS] = {TWS_AXES_DATA,  TWS_AXES_MODEL,    TWS_AXES_SEQUENCE, TWS_AXES_PIPE,
                                        TWS_AXES_MODEL, TWS_AXES_SEQUENCE, TWS_AXES_TIED};
  group_count = rank == 0 || rank == world - 1 ? GROUPS : GROUPS - 1;
  for (int g = 0; g < group_count; g++) {
    groups[g] = (tws_group){.axes = axes[g], .ranks = members[g]};
    for (int i = 0; i < world; i++) {
      int r = g == 5 ? world - 1 - i : i; /* not in ascending order */
      if (!together(g, r)) continue;
      if (r == rank) groups[g].index = groups[g].size;
      members[g][groups[g].size++] = r;
    }
  }
}

typedef struct trial {
  uint64_t number;
  int group, root, in_place, segments;
  tws_collective collective;
  tws_dtype dtype[SEGMENTS];
  uint64_t count[SEGMENTS];
} trial;

/* Returns element i that rank `who` sends in a segment: floats of very different sizes, so that the order of a sum
 * shows. */
static double element(const trial *t, int who, int segment, uint64_t i) {
  const double smaller = t->dtype[segment] == TWS_F16 ? 0x1p-12 : 1; /* it reaches to 2^16 */
  uint64_t x = ((t->number * 64 + (uint64_t)who) * SEGMENTS + (uint64_t)segment) * 0x9e3779b97f4a7c15 + i;
  for (int turn = 0; turn < 2; turn++) x = (x ^ x >> 31) * 0xd6e8feb86659fd93; /* a cheap hash, because every rank
                                                                                * computes every other rank's
                                                                                * elements */
  x ^= x >> 32;
  return (double)(int32_t)x * 0x1p-31 * (double)(1 << (x >> 32) % 24) * smaller;
}

static void store(tws_dtype dtype, void *at, uint64_t i, double value) {
  if (dtype == TWS_F32) ((float *)at)[i] = (float)value;
  if (dtype == TWS_F64) ((double *)at)[i] = value;
  if (dtype == TWS_BF16) ((unsigned short *)at)[i] = tws_to_bf16((float)value);
  if (dtype == TWS_F16) ((unsigned short *)at)[i] = tws_to_f16((float)value);
  if (dtype == TWS_I32) ((int32_t *)at)[i] = (int32_t)(value * 200.0);
  if (dtype == TWS_U8) ((unsigned char *)at)[i] = (unsigned char)((int32_t)value & 0xff);
}

static double load(tws_dtype dtype, const void *at, uint64_t i) {
  if (dtype == TWS_F32) return ((const float *)at)[i];
  if (dtype == TWS_F64) return ((const double *)at)[i];
  if (dtype == TWS_F16) return tws_from_f16(((const unsigned short *)at)[i]);
  if (dtype == TWS_I32) return ((const int32_t *)at)[i];
  if (dtype == TWS_U8) return ((const unsigned char *)at)[i];
  return tws_from_bf16(((const unsigned short *)at)[i]);
}

static double rounded(tws_dtype dtype, double value) {
  if (dtype == TWS_F64) return value;
  if (dtype == TWS_F32) return (float)value;
  double cell[1] = {0.0};
  store(dtype, cell, 0, value);
  return load(dtype, cell, 0);
}

/* Returns the sum of element i in the order of the group's ranks: float32 (float64) additions, rounded to the type at
 * the end. */
static double ordered_sum(const trial *t, int segment, uint64_t i) {
  const tws_group *g = &groups[t->group];
  double wide = 0.0;
  float narrow = 0.0f;
  for (int m = 0; m < g->size; m++) {
    double x = rounded(t->dtype[segment], element(t, g->ranks[m], segment, i));
    wide = m ? wide + x : x;
    narrow = m ? narrow + (float)x : (float)x;
  }
  return t->dtype[segment] == TWS_F64 ? wide : rounded(t->dtype[segment], (double)narrow);
}

static int sums(tws_collective c) {
  return c == TWS_COLLECTIVE_ALL_REDUCE || c == TWS_COLLECTIVE_REDUCE || c == TWS_COLLECTIVE_REDUCE_SCATTER;
}

/* Draws a collective. All ranks choose the same group in a round, but its instances, which run at the same time, differ
 * in what they do. */
static trial choose(uint64_t round) {
  static const tws_dtype types[] = {TWS_F32, TWS_F64, TWS_BF16, TWS_F16, TWS_I32, TWS_U8};
  trial t = {.group = (int)pick(round, 0, GROUPS)};
  if (t.group >= group_count) return t; /* this rank is not in the group: a trial without segments */
  const tws_group *g = &groups[t.group];
  uint64_t number = t.number = round * 64 + (uint64_t)g->ranks[0];
  t.collective = (tws_collective)pick(number, 1, TWS_COLLECTIVE_BARRIER);
  t.in_place = (int)pick(number, 3, 2);
  t.root = (int)pick(number, 6, 64) % g->size;
  t.segments = round % 16 == 5 ? SEGMENTS : 1 + (int)pick(number, 4, 4);
  const int mixed = (int)pick(number, 7, 2);
  for (int s = 0; s < t.segments; s++)
    t.dtype[s] = types[pick(number, 2 + (mixed ? 1000 * (uint64_t)s : 0), sums(t.collective) ? 4 : 6)];
  for (int s = 0; s < t.segments; s++) t.count[s] = pick(number, 16 + (uint64_t)s, t.segments == SEGMENTS ? 40 : 5000);
  if (round % 8 == 3) t.count[0] = LARGE + pick(number, 5, 1000);
  return t;
}

/* Returns in *sent and *received the number of elements of a segment that a rank sends and receives. */
static void lengths(const trial *t, uint64_t count, uint64_t *sent, uint64_t *received) {
  uint64_t n = (uint64_t)groups[t->group].size;
  const int is_root = groups[t->group].index == t->root;
  *sent =
      t->collective == TWS_COLLECTIVE_REDUCE_SCATTER || t->collective == TWS_COLLECTIVE_ALL_TO_ALL ? count * n : count;
  *received =
      t->collective == TWS_COLLECTIVE_ALL_GATHER || t->collective == TWS_COLLECTIVE_ALL_TO_ALL ? count * n : count;
  if (t->collective == TWS_COLLECTIVE_GATHER) *received = is_root ? count * n : 0;
  if (t->collective == TWS_COLLECTIVE_SCATTER) *sent = is_root ? count * n : 0;
}

static double expected(const trial *t, int s, uint64_t i) {
  const tws_group *g = &groups[t->group];
  uint64_t count = t->count[s], me = (uint64_t)g->index;
  switch (t->collective) {
    case TWS_COLLECTIVE_SCATTER:
      return rounded(t->dtype[s], element(t, g->ranks[t->root], s, me * count + i));
    case TWS_COLLECTIVE_ALL_GATHER:
    case TWS_COLLECTIVE_GATHER:
      return rounded(t->dtype[s], element(t, g->ranks[i / count], s, i % count));
    case TWS_COLLECTIVE_ALL_TO_ALL:
      return rounded(t->dtype[s], element(t, g->ranks[i / count], s, me * count + i % count));
    case TWS_COLLECTIVE_BROADCAST:
      return rounded(t->dtype[s], element(t, g->ranks[t->root], s, i));
    case TWS_COLLECTIVE_SHIFT:
      return rounded(t->dtype[s], element(t, g->ranks[(g->index + g->size - 1) % g->size], s, i));
    case TWS_COLLECTIVE_REDUCE_SCATTER:
      return ordered_sum(t, s, me * count + i);
    default:
      return ordered_sum(t, s, i);
  }
}

static void run_trial(tws_comm *comm, uint64_t number, char *memory) {
  trial t = choose(number);
  const tws_group *g = &groups[t.group];
  tws_comm_segment segment[SEGMENTS];
  tws_error err = {0};
  if (t.segments == 0) return;
  char *at = memory;
  for (int s = 0; s < t.segments; s++) {
    uint64_t sent, received;
    const size_t size = tws_dtype_bytes(t.dtype[s]);
    lengths(&t, t.count[s], &sent, &received);
    char *receive = at, *send = at;
    at += (received * size + 63) / 64 * 64;
    const int may = t.collective != TWS_COLLECTIVE_REDUCE_SCATTER && t.collective != TWS_COLLECTIVE_ALL_TO_ALL &&
                    t.collective != TWS_COLLECTIVE_GATHER && t.collective != TWS_COLLECTIVE_SCATTER &&
                    t.collective != TWS_COLLECTIVE_SHIFT;
    if (may && t.in_place) {
      if (t.collective == TWS_COLLECTIVE_ALL_GATHER) send += (uint64_t)g->index * t.count[s] * size;
    } else {
      send = at;
      at += (sent * size + 63) / 64 * 64;
    }
    for (uint64_t i = 0; i < sent; i++) store(t.dtype[s], send, i, element(&t, rank, s, i));
    segment[s] = (tws_comm_segment){.send = send, .receive = receive, .dtype = t.dtype[s], .count = t.count[s]};
  }
  tws_code code = tws_mpi_comm_ops()->collective(comm, t.group, t.collective, t.root, segment, t.segments, &err);
  need(code == TWS_OK, "collective", &err);
  if (t.collective == TWS_COLLECTIVE_REDUCE && g->index != t.root) return;
  for (int s = 0; s < t.segments; s++) {
    uint64_t sent, received;
    lengths(&t, t.count[s], &sent, &received);
    for (uint64_t i = 0; i < received; i++)
      if (load(t.dtype[s], segment[s].receive, i) != expected(&t, s, i)) {
        tws_fail(&err, TWS_INTERNAL, NULL,
                 "trial %d: %s of %s, group %d, segment %d of %d, element %d of %d: %.9g, not %.9g", (int)number,
                 tws_collective_name(t.collective), tws_dtype_name(t.dtype[s]), t.group, s, t.segments, (int)i,
                 (int)received, load(t.dtype[s], segment[s].receive, i), expected(&t, s, i));
        need(0, "wrong", &err);
      }
  }
}

static void check_messages(tws_comm *comm) {
  const tws_comm_ops *ops = tws_mpi_comm_ops();
  tws_error err = {0};
  int next = (rank + 1) % world, before = (rank + world - 1) % world, got = -1;
  for (int turn = 0; turn < 2 && world > 1; turn++) {
    tws_code code = turn == rank % 2 ? ops->send(comm, next, &rank, sizeof rank, &err) : TWS_OK;
    need(code == TWS_OK, "send", &err);
    if (turn == before % 2) need(ops->receive(comm, before, &got, sizeof got, &err) == TWS_OK, "receive", &err);
  }
  need(world == 1 || got == before, "a message came from the wrong rank", NULL);
  unsigned char *all = NULL;
  uint64_t *offset = NULL;
  char text[32];
  memset(text, 'a' + rank, sizeof text);
  need(tws_comm_gather(comm, text, (uint64_t)rank * 3, &all, &offset, &err) == TWS_OK, "gather", &err);
  for (int r = 0; rank == 0 && r < world; r++)
    for (uint64_t i = offset[r]; i < offset[r + 1]; i++)
      need(offset[r + 1] - offset[r] == (uint64_t)r * 3 && all[i] == 'a' + r, "gathered bytes", NULL);
  tws_free(all);
  tws_free(offset);
  double value = rank;
  need(tws_comm_max(comm, &value, &err) == TWS_OK && value == world - 1, "maximum", &err);
}

static void check_transport(tws_transport transport, uint64_t first, uint64_t trials) {
  tws_comm *comm = NULL;
  tws_error err = {0};
  void *memory = NULL;
  size_t bytes = (size_t)64 << 20;
  need(tws_comm_create(NULL, groups, (uint32_t)group_count, transport, 1, &comm, &err) == TWS_OK, "create", &err);
  need(tws_comm_is_shared(comm) == (transport != TWS_TRANSPORT_MESSAGES && world > 1), "transport", NULL);
  need(tws_comm_allocate(comm, bytes, &memory, &err) == TWS_OK, "allocate", &err);
  need((memory != NULL) == tws_comm_is_shared(comm), "memory", NULL);
  char *own = memory ? NULL : malloc(bytes);
  for (uint64_t i = first; i < first + trials; i++) run_trial(comm, i, memory ? memory : own);
  check_messages(comm);
  free(own);
  if (memory) { /* other memory goes by messages */
    own = malloc(bytes);
    for (uint64_t i = 0; i < 8; i++) run_trial(comm, i, own);
    free(own);
  }
  need(tws_comm_barrier(comm, &err) == TWS_OK, "barrier", &err);
  tws_comm_destroy(comm);
}

/* ---- an all-to-all whose counts are known only when it runs, in a plan of its own ---- */

static void check_uneven(tws_transport transport) {
  tws_plan *plan = uneven_plan(rank, world);
  const tws_plan *programs[] = {plan};
  tws_comm *comm = NULL;
  tws_backend *backend = NULL;
  tws_executor *executor = NULL;
  tws_error err = {0};
  const int slots = world * UNEVEN_CAPACITY;
  int32_t *counts = calloc(2 * (size_t)world, sizeof *counts);
  float *values = calloc((size_t)slots, sizeof *values), *got = calloc((size_t)slots, sizeof *got);
  need(tws_comm_create(NULL, plan->groups, plan->group_count, transport, 1, &comm, &err) == TWS_OK, "create", &err);
  need(tws_real_backend("host")->create(0, 1, &backend, &err) == TWS_OK, "backend", &err);
  const tws_executor_setup setup = {.programs = programs,
                                    .program_count = 1,
                                    .ops = tws_real_backend("host"),
                                    .backend = backend,
                                    .comm_ops = tws_mpi_comm_ops(),
                                    .comm = comm};
  need(tws_executor_create(&setup, &executor, &err) == TWS_OK, "executor", &err);
  for (int r = 0; r < world; r++) {
    counts[r] = uneven_count(rank, r);
    counts[world + r] = uneven_count(r, rank);
    for (int i = 0; i < UNEVEN_CAPACITY; i++) values[r * UNEVEN_CAPACITY + i] = uneven_value(rank, r, i);
  }
  need(tws_executor_put(executor, 0, 0, 0, counts, 2 * (uint64_t)world, &err) == TWS_OK, "counts", &err);
  need(tws_executor_put(executor, 0, 1, 0, values, (uint64_t)slots, &err) == TWS_OK, "values", &err);
  need(tws_executor_step(executor, 0, 1, NULL, NULL, NULL, &err) == TWS_OK, "step", &err);
  need(tws_executor_get(executor, 0, 3, 0, got, (uint64_t)slots, &err) == TWS_OK, "sums", &err);
  for (int i = 0; i < slots; i++) {
    const int from = i / UNEVEN_CAPACITY, at = i % UNEVEN_CAPACITY;
    const float received = at < uneven_count(from, rank) ? uneven_value(from, rank, at) : -1;
    need(got[i] == received + values[i], "an element came wrong", NULL);
  }
  tws_comm_barrier(comm, &err);
  counts[rank] = UNEVEN_CAPACITY + 1; /* every rank exceeds the capacity, so that no rank waits for another */
  need(tws_executor_put(executor, 0, 0, 0, counts, 2 * (uint64_t)world, &err) == TWS_OK, "counts", &err);
  need(tws_executor_step(executor, 0, 2, NULL, NULL, NULL, &err) == TWS_RANK && strstr(err.message, "room for 96"),
       "more than the capacity went", &err);
  tws_executor_destroy(executor);
  tws_real_backend("host")->destroy(backend);
  tws_comm_destroy(comm);
  tws_plan_destroy(plan);
  free(counts);
  free(values);
  free(got);
}

/* ---- a gather and a scatter, by a plan of their own ---- */

static void check_gather(const char *device, tws_transport transport) {
  tws_plan *plan = gather_plan(rank, world);
  const tws_plan *programs[] = {plan};
  const tws_cuda_api *cuda = NULL;
  tws_comm *comm = NULL, *device_comm = NULL;
  tws_backend *backend = NULL;
  tws_executor *executor = NULL;
  tws_error err = {0};
  float values[GATHERED], got[GATHERED];
  if (strcmp(device, "cuda") == 0) need(tws_cuda_load(&cuda, &err) == TWS_OK, "module", &err);
  const tws_backend_ops *ops = cuda ? cuda->backend : tws_real_backend("host");
  need(tws_comm_create(NULL, plan->groups, plan->group_count, transport, 1, &comm, &err) == TWS_OK, "create", &err);
  need(ops->create(0, 1, &backend, &err) == TWS_OK, "backend", &err);
  if (cuda) need(tws_cuda_connect(cuda, backend, NULL, plan, &device_comm, &err) == TWS_OK, "connect", &err);
  const tws_executor_setup setup = {.programs = programs,
                                    .program_count = 1,
                                    .ops = ops,
                                    .backend = backend,
                                    .comm_ops = cuda ? cuda->comm_ops : tws_mpi_comm_ops(),
                                    .comm = cuda ? device_comm : comm};
  need(tws_executor_create(&setup, &executor, &err) == TWS_OK, "executor", &err);
  for (int i = 0; i < GATHERED; i++) values[i] = (float)(rank * 10000 + i);
  need(tws_executor_put(executor, 0, 0, 0, values, GATHERED, &err) == TWS_OK, "values", &err);
  for (int step = 1; step < 3; step++)
    need(tws_executor_step(executor, 0, step, NULL, NULL, NULL, &err) == TWS_OK, "step", &err);
  need(tws_executor_get(executor, 0, 1, 0, got, GATHERED, &err) == TWS_OK, "what came back", &err);
  for (int i = 0; i < GATHERED; i++) need(got[i] == 2 * values[i], "an element came back wrong", NULL);
  tws_executor_destroy(executor);
  if (cuda) cuda->comm_destroy(device_comm);
  ops->destroy(backend);
  tws_comm_destroy(comm);
  tws_plan_destroy(plan);
}

/* ---- train ---- */

static double losses[64], norms[64], evaluations[64]; /* evaluations[step - 1]: the loss of the evaluation after a step,
                                                       * NaN where none follows it */
static void keep(void *user, const tws_step_report *report) {
  (void)user;
  losses[report->step - 1] = report->loss;
  norms[report->step - 1] = report->gradient_norm;
  evaluations[report->step - 1] = report->evaluated ? report->eval_loss : NAN;
}

static tws_config *load_config(const char *text) {
  tws_json *json = NULL;
  tws_config *config = NULL;
  tws_error err = {0};
  need(tws_json_parse(text, strlen(text), "job", &json, &err) == TWS_OK, text, &err);
  need(tws_config_from_json(json, &config, &err) == TWS_OK, text, &err);
  tws_json_destroy(json);
  return config;
}

/* Verifies the plans of all ranks, each alone and all together. */
static void verify_plans(const char *name, const tws_network *network, const tws_config *config) {
  tws_plan **plans = calloc((size_t)world, sizeof *plans);
  tws_error err = {0};
  tws_plan_request request = {.network = network, .config = config, .backend = TWS_BACKEND_HOST, .threads = 1};
  need(tws_plan_topology(config, world, &request.topology, &err) == TWS_OK, name, &err);
  for (int program = 0; program < TWS_PROGRAM_COUNT; program++) {
    request.program = (tws_program)program;
    if (!tws_plan_has_program(config, request.program)) continue;
    for (request.rank = 0; request.rank < world; request.rank++) {
      need(tws_plan_build(&request, &plans[request.rank], &err) == TWS_OK, name, &err);
      need(tws_plan_verify(plans[request.rank], &err) == TWS_OK, name, &err);
    }
    need(tws_plans_verify((const tws_plan *const *)plans, world, &err) == TWS_OK, name, &err);
    for (int r = 0; r < world; r++) tws_plan_destroy(plans[r]);
  }
  free(plans);
}

static void print_curve(const char *name, int64_t steps, FILE *out) {
  if (!out) return;
  fprintf(out, "%s", name);
  for (int64_t i = 0; i < steps; i++) fprintf(out, " %.17g %.17g %.17g", losses[i], norms[i], evaluations[i]);
  fprintf(out, "\n");
}

/* Checks that ranks that share cores have bound their threads to some of the allowed cores, and that other ranks have
 * not. */
static void check_bound(const tws_config *config, const cpu_set_t *before) {
  tws_cpus allowed;
  tws_machine_parts parts;
  cpu_set_t now, both;
  if (tws_cpus_allowed(&allowed, NULL) != TWS_OK) return; /* built without hwloc */
  need(sched_getaffinity(0, sizeof now, &now) == 0, "affinity", NULL);
  need(tws_machine_count_parts(NULL, NULL, &parts, NULL) == TWS_OK, "machine", NULL);
  CPU_AND(&both, &now, before);
  need(CPU_EQUAL(&both, &now), "a thread is bound to what it may not use", NULL);
  const int enough = config->bind_threads == TWS_THREADS_SHARE && world > 1 && CPU_COUNT(before) >= parts.cores &&
                     parts.cores >= world;
  if (enough) need(CPU_COUNT(&now) < CPU_COUNT(before), "threads are not bound", NULL);
  if (config->bind_threads == TWS_THREADS_FREE) need(CPU_EQUAL(&now, before), "a thread is bound", NULL);
}

/* Runs one job. A line has the name, model, steps, configuration, the folder that the job saves to ("-": none), and the
 * checkpoint that it resumes. */
static void run_job(char *line, FILE *out) {
  char *name = strtok(line, "\t"), *model = strtok(NULL, "\t"), *steps = strtok(NULL, "\t");
  const char *text = strtok(NULL, "\t\n"), *save = strtok(NULL, "\t\n"), *resume = save ? strtok(NULL, "\t\n") : NULL;
  const char *tag = resume ? strtok(NULL, "\t\n") : NULL;
  tws_network *network = NULL;
  tws_error err = {0};
  tws_train_result result;
  need(text != NULL, "job", NULL);
  tws_config *config = load_config(text);
  need(tws_network_load(model, tws_config_vocabulary_multiple(config), &network, &err) == TWS_OK, name, &err);
  need(tws_network_adapt(network, config, &err) == TWS_OK, name, &err);
  tws_auto_context context = {.hidden_size = network->hidden};
  need(tws_config_resolve(config, world, &context, &err) == TWS_OK, name, &err);
  tws_plan_request plan = {.network = network, .config = config, .backend = TWS_BACKEND_HOST, .threads = 1};
  need(tws_plan_topology(config, world, &plan.topology, &err) == TWS_OK, name, &err);
  tws_train_options options = {.plan = plan,
                               .data = getenv("DATA"),
                               .steps = atoi(steps),
                               .eval_data = getenv("EVAL_DATA"),
                               .eval_every = 4,
                               .eval_steps = 2,
                               .save = save && strcmp(save, "-") != 0 ? save : NULL,
                               .save_every = 5,
                               .resume = resume,
                               .tag = tag,
                               .deadline_s = 120.0,
                               .device_limit = getenv("DEVICE_LIMIT") ? (uint64_t)atoll(getenv("DEVICE_LIMIT")) : 0,
                               .on_step = keep};
  for (int i = 0; i < 64; i++)
    losses[i] = norms[i] = evaluations[i] = NAN; /* steps before the resumed checkpoint have no values */
  if (rank == 0) verify_plans(name, network, config);
  const int late = strncmp(name, "stale-", 6) == 0;
  const int coded = strncmp(name, "codes-", 6) == 0, levels = strncmp(name, "levels-", 7) == 0;
  if (late || coded || levels || strncmp(name, "columns-", 8) == 0) {
    const tws_code done = late     ? stale_train(&options, atoi(name + 6), &err)
                          : coded  ? codes_train(&options, atoi(name + 6), 0, &err)
                          : levels ? codes_train(&options, config->accumulation_steps, atoi(name + 7), &err)
                                   : columns_train(&options, &err);
    need(done == TWS_OK, name, &err);
    print_curve(name, options.steps, out);
    tws_config_destroy(config);
    tws_network_destroy(network);
    return;
  }
  cpu_set_t before;
  need(sched_getaffinity(0, sizeof before, &before) == 0, "affinity", NULL);
  tws_code code = tws_real_train(&options, &result, &err);
  need(code == TWS_OK, name, &err);
  check_bound(config, &before);
  sched_setaffinity(0, sizeof before, &before); /* for the next job */
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++)
    need(result.predicted_bytes[tier] == result.allocated_bytes[tier], "arena and ledger differ", NULL);
  need(result.allocated_bytes[TWS_TIER_DEVICE] > 0, "no arena", NULL);
  const tws_disk_traffic *disk = &result.disk;
  need(disk->read == disk->planned_read && disk->written == disk->planned_written, "other disk traffic than planned",
       NULL);
  need((disk->read > 0 && disk->written > 0) == (result.allocated_bytes[TWS_TIER_DISK] > 0), "an idle disk", NULL);
  print_curve(name, options.steps, out);
  tws_config_destroy(config);
  tws_network_destroy(network);
}

static void run_jobs(const char *jobs, const char *results) {
  static char line[8192];
  FILE *in = fopen(jobs, "r"), *out = rank == 0 ? fopen(results, "w") : NULL;
  need(in && (rank != 0 || out), "files", NULL);
  while (fgets(line, sizeof line, in)) run_job(line, out);
  fclose(in);
  if (out) need(fclose(out) == 0, "write", NULL);
}

int main(int argc, char **argv) {
  tws_error err = {0};
  need(tws_mpi_start(&argc, &argv, &rank, &world, &err) == TWS_OK, "start", &err);
  if (argc == 2 && strcmp(argv[1], "comm") == 0) {
    make_groups();
    const uint64_t part = TWS_SANITIZED ? 4 : 1; /* of the trials */
    check_transport(TWS_TRANSPORT_AUTO, 0, 96 / part);
    check_transport(TWS_TRANSPORT_MESSAGES, 96, 64 / part);
    check_transport(TWS_TRANSPORT_NODES_OF_2, 0, 64 / part);
    check_transport(TWS_TRANSPORT_NODES_OF_3, 160, 32 / part);
  } else if (argc == 2 && strcmp(argv[1], "uneven") == 0) {
    check_uneven(TWS_TRANSPORT_AUTO);
    check_uneven(TWS_TRANSPORT_MESSAGES);
    check_uneven(TWS_TRANSPORT_NODES_OF_2);
  } else if (argc == 3 && strcmp(argv[1], "gather") == 0) {
    check_gather(argv[2], TWS_TRANSPORT_AUTO);
    if (strcmp(argv[2], "host") == 0) check_gather(argv[2], TWS_TRANSPORT_MESSAGES);
    if (strcmp(argv[2], "host") == 0) check_gather(argv[2], TWS_TRANSPORT_NODES_OF_2);
  } else if (argc == 4 && strcmp(argv[1], "train") == 0) {
    run_jobs(argv[2], argv[3]);
  } else {
    need(0, "usage: ranks_engine comm | uneven | gather host|cuda | train JOBS OUT", NULL);
  }
  tws_mpi_stop();
  return 0;
}
