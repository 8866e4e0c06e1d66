/* ctest: engine mpi */
/* A convolution network on pictures, written down by hand: verified, laid out, costed, simulated, executed on the host,
 * compared with finite differences and with float64, and trained on several ranks. */
#include "hand_network.h"

#include "checkpoint/slice.h"
#include "tests/oracle.h"
#include "tests/suite.h"
#include "tests/thread_ranks.h"

enum {
  SIZE = 8,
  CHANNELS = 3,
  WIDTH = 4,
  CLASSES = 6,
  SAMPLES = 3,
  MOST = 64,
  RANKS = 2,
  MICRO_BATCHES = 2,
  MOST_RUNNING = 256,
  MOST_PIECES = 256
};
static const double EPSILON = 1e-5, MOMENTUM = 0.2;

static const tws_dim samples_alone[] = {{.kind = TWS_DIM_SAMPLES}};

/* ---- the network ---- */

static uint32_t add_convolution(hand_network *h, int layer, const char *name, uint32_t x, tws_convolution like) {
  like.std = 0.4f;
  x = tws_build_convolution(&h->b, layer, tws_build_name(&h->b, "%s.conv", name), x, x == TWS_NONE ? 0 : TWS_NONE,
                            &like);
  return tws_build_batch_norm(&h->b, layer, tws_build_name(&h->b, "%s.bn", name), x, EPSILON, MOMENTUM);
}

static uint32_t add_relu(hand_network *h, int layer, const char *name, uint32_t x) {
  return tws_build_pointwise(&h->b, layer, name, TWS_MODULE_RELU, x, h->net->values[x].per_row);
}

/* Adds a residual block of He et al. 2016, with a projection where the size changes. */
static uint32_t add_block(hand_network *h, int layer, uint32_t x, int64_t out, int64_t stride) {
  tws_network_builder *b = &h->b;
#define NAME(part) tws_build_name(b, "layer.%d." part, layer)
  uint32_t y =
      add_convolution(h, layer, NAME("1"), x, (tws_convolution){.out = out, .side = 3, .stride = stride, .padding = 1});
  y = add_relu(h, layer, NAME("1.relu"), y);
  y = add_convolution(h, layer, NAME("2"), y,
                      (tws_convolution){.out = out, .side = 3, .stride = 1, .padding = 1, .groups = 2});
  if (stride > 1)
    x = add_convolution(h, layer, NAME("down"), x, (tws_convolution){.out = out, .side = 1, .stride = stride});
  return add_relu(h, layer, NAME("relu"), tws_build_add(b, layer, NAME("add"), x, y));
#undef NAME
}

static void small_resnet(hand_network *h) {
  hand_network_begin(h, CLASSES, MOST);
  h->net->hidden = 2 * WIDTH;
  tws_build_pictures(&h->b, "pictures", SIZE, SIZE, CHANNELS);
  tws_build_input(&h->b, "classes", TWS_INPUT_TARGETS, samples_alone, 1);
  uint32_t x =
      add_convolution(h, -1, "stem", TWS_NONE, (tws_convolution){.out = WIDTH, .side = 3, .stride = 1, .padding = 1});
  x = add_relu(h, -1, "stem.relu", x);
  x = tws_build_pool(&h->b, -1, "stem.pool", TWS_MODULE_MAX_POOL, x, 3, 2, 1);
  x = add_block(h, 0, x, WIDTH, 1);
  x = add_block(h, 1, x, 2 * WIDTH, 2);
  x = tws_build_convolution(
      &h->b, -2, "neck", x, TWS_NONE,
      &(tws_convolution){.out = 2 * WIDTH, .side = 2, .stride = 1, .padding = 1, .std = 0.4f, .bias = 1});
  x = add_relu(h, -2, "neck.relu", x);
  x = tws_build_pool(&h->b, -2, "pool", TWS_MODULE_AVERAGE_POOL, x, 0, 0, 0);
  tws_build_loss(&h->b, tws_build_linear(&h->b, -2, "fc", x, 2 * WIDTH, CLASSES, 0.4f, 1, NULL, TWS_NONE));
}

typedef struct batch {
  float pictures[MICRO_BATCHES * SAMPLES * SIZE * SIZE * CHANNELS];
  int32_t classes[MICRO_BATCHES * SAMPLES];
} batch;

static void make_batch(batch *data, uint64_t stream) {
  for (uint64_t i = 0; i < sizeof data->pictures / sizeof *data->pictures; i++)
    data->pictures[i] = (float)tws_random_normal(21, stream, i);
  for (uint64_t i = 0; i < sizeof data->classes / sizeof *data->classes; i++)
    data->classes[i] = (int32_t)(tws_random_uniform(22, stream, i) * CLASSES);
}

static const char *config_text(int stage, int recompute, int micro_batches, int ranks, const char *more) {
  static const char *const policies[] = {"none", "selective", "full"};
  static char text[512];
  snprintf(text, sizeof text,
           "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d, \"gradient_clipping\": 0, "
           "\"train_batch_size\": %d, \"zero_optimization\": {\"stage\": %d, \"reduce_bucket_size\": 300, "
           "\"stage3_param_persistence_threshold\": 20, \"stage3_prefetch_bucket_size\": 200}, "
           "\"twinspeed\": {\"sequence_length\": 1, \"recompute\": \"%s\"}%s}",
           SAMPLES, micro_batches, SAMPLES * micro_batches * ranks, stage, policies[recompute], more);
  return text;
}

/* ---- one rank ---- */

START_TEST(differentiated) {
  hand_network h;
  hand_job job;
  batch data;
  small_resnet(&h);
  hand_job_begin(&job, h.net, config_text(_i % 4, _i / 4, 1, 1, ""));
  make_batch(&data, 1);
  hand_input(&job, tws_network_input_of(h.net, TWS_INPUT_NUMBERS), data.pictures);
  hand_input(&job, tws_network_input_of(h.net, TWS_INPUT_TARGETS), data.classes);
  hand_differentiate(&job, 0.02);
  hand_job_end(&job);
  tws_network_destroy(h.net);
}
END_TEST

/* ---- in float64, module by module ---- */

/* The computation of a network in float64. running: the running statistics, or NULL where modules normalise by the
 * batch; then `follows` receives the updated running statistics. */
typedef struct exact {
  const tws_network *network;
  double *value[MOST], *param[MOST];
  const double *running;
  double *follows, loss;
  int64_t samples;
} exact;

static int64_t elements_of(const exact *e, uint32_t value) {
  const tws_value *v = &e->network->values[value];
  return tws_dims_count(v->row, v->row_dims, e->samples, 1) * v->per_row;
}

static tws_work exact_work(const exact *e, const tws_module *m, tws_kernel kernel) {
  static const tws_module_windows none;
  const tws_module_windows *w = m->windows ? m->windows : &none;
  const int64_t rows = m->in[0] != TWS_NONE ? elements_of(e, m->in[0]) / e->network->values[m->in[0]].per_row : 0;
  tws_work work = {.code = (uint8_t)kernel, .dtype = TWS_F32, .f = {(double)w->padding}};
  if (w->height > 0) {
    const int64_t d[] = {e->samples,      w->height, w->width,  m->in_features,
                         m->out_features, w->side,   w->stride, w->groups};
    const int64_t pool[] = {e->samples, w->height, w->width, m->out_features, w->side, w->stride};
    if (kernel == TWS_KERNEL_CONVOLUTION)
      memcpy(work.d, d, sizeof d);
    else
      memcpy(work.d, pool, sizeof pool);
  } else if (kernel == TWS_KERNEL_RELU || kernel == TWS_KERNEL_ADD) {
    work.d[0] = rows * m->out_features;
  } else {
    work.d[0] = rows, work.d[1] = m->out_features, work.d[2] = m->in_features;
  }
  if (kernel == TWS_KERNEL_BATCH_NORM || kernel == TWS_KERNEL_BATCH_NORM_EVALUATION)
    work.f[0] = m->epsilon, work.f[1] = m->momentum;
  if (m->param[1] != TWS_NONE) work.flags = TWS_BIAS;
  return work;
}

static void run_exact(exact *e, const tws_module *m, tws_kernel kernel, double **operands, int count) {
  const tws_work work = exact_work(e, m, kernel);
  tws_work with = work;
  if (kernel == TWS_KERNEL_BATCH_NORM) with.flags |= TWS_RUNNING;
  oracle_run(&with, &(tws_arguments){{1}}, operands, count);
}

static void exact_module(exact *e, const tws_module *m, double *pictures, const int32_t *classes, uint64_t *at) {
  double *x = m->in[0] != TWS_NONE ? e->value[m->in[0]] : pictures, *w = NULL, *b = NULL, *y = NULL, *stats = NULL;
  if (m->param[0] != TWS_NONE) w = e->param[m->param[0]];
  if (m->param[1] != TWS_NONE) b = e->param[m->param[1]];
  if (m->type != TWS_MODULE_LOSS) y = e->value[m->out[0]] = calloc((size_t)elements_of(e, m->out[0]) + 1, sizeof *y);
  switch (m->type) {
    case TWS_MODULE_CONVOLUTION:
      run_exact(e, m, TWS_KERNEL_CONVOLUTION, b ? (double *[]){x, w, b, y} : (double *[]){x, w, y, NULL}, b ? 4 : 3);
      break;
    case TWS_MODULE_BATCH_NORM:
      stats = e->value[m->out[1]] = calloc((size_t)(2 * m->out_features), sizeof *stats);
      if (e->running)
        run_exact(e, m, TWS_KERNEL_BATCH_NORM_EVALUATION, (double *[]){x, w, b, (double *)e->running + *at, y}, 5);
      else
        run_exact(e, m, TWS_KERNEL_BATCH_NORM, (double *[]){x, w, b, y, stats, e->follows + *at}, 6);
      *at += 2 * (uint64_t)m->out_features;
      break;
    case TWS_MODULE_LINEAR:
      run_exact(e, m, TWS_KERNEL_LINEAR, (double *[]){x, w, b, y}, 4);
      break;
    case TWS_MODULE_RELU:
      run_exact(e, m, TWS_KERNEL_RELU, (double *[]){x, y}, 2);
      break;
    case TWS_MODULE_ADD:
      run_exact(e, m, TWS_KERNEL_ADD, (double *[]){x, e->value[m->in[1]], y}, 3);
      break;
    case TWS_MODULE_MAX_POOL:
      run_exact(e, m, TWS_KERNEL_MAX_POOL, (double *[]){x, y}, 2);
      break;
    case TWS_MODULE_AVERAGE_POOL:
      run_exact(e, m, TWS_KERNEL_AVERAGE_POOL, (double *[]){x, y}, 2);
      break;
    default: /* the loss */
      for (int64_t t = 0; t < e->samples; t++) {
        double sum = 0;
        for (int i = 0; i < CLASSES; i++) sum += exp(x[t * CLASSES + i]);
        e->loss += (log(sum) - x[t * CLASSES + classes[t]]) / (double)e->samples;
      }
  }
}

/* Returns the loss of one micro-batch. running: see exact.running; where it is NULL the running statistics are updated
 * in `follows`. */
static double exact_loss(const tws_network *network, const float *weights, const batch *data, int micro_batch,
                         const double *running, double *follows) {
  exact e = {.network = network, .running = running, .follows = follows, .samples = SAMPLES};
  enum { PIXELS = SAMPLES * SIZE * SIZE * CHANNELS };
  static double pictures[PIXELS];
  uint64_t at = 0, first = 0;
  for (int i = 0; i < PIXELS; i++) pictures[i] = data->pictures[micro_batch * PIXELS + i];
  for (uint32_t p = 0; p < network->param_count; p++) {
    const uint64_t count = (uint64_t)tws_param_numel(&network->params[p]);
    e.param[p] = calloc(count, sizeof(double));
    for (uint64_t i = 0; i < count; i++) e.param[p][i] = weights[first++];
  }
  for (uint32_t m = 0; m < network->module_count; m++)
    exact_module(&e, &network->modules[m], pictures, data->classes + micro_batch * SAMPLES, &at);
  for (uint32_t v = 0; v < network->value_count; v++) free(e.value[v]);
  for (uint32_t p = 0; p < network->param_count; p++) free(e.param[p]);
  return e.loss;
}

static void begin_follows(const tws_plan *plan, double *follows) {
  float begin[MOST_RUNNING];
  ck_assert_uint_le(plan->buffers[plan->running].elements, MOST_RUNNING);
  tws_init_running(plan, begin);
  for (uint64_t i = 0; i < plan->buffers[plan->running].elements; i++) follows[i] = begin[i];
}

static void check_running(const float *running, const double *expected, uint64_t count, const char *what) {
  for (uint64_t i = 0; i < count; i++)
    ck_assert_msg(fabs(running[i] - expected[i]) < 1e-5 * (1 + fabs(expected[i])), "%s: statistic %d is %g, not %g",
                  what, (int)i, running[i], expected[i]);
}

/* Training on two micro-batches, then an evaluation with the running statistics, equals float64, with and without
 * recomputation. */
START_TEST(as_in_float64) {
  hand_network h;
  hand_job job;
  batch data[2];
  double follows[MOST_RUNNING];
  float running[MOST_RUNNING];
  small_resnet(&h);
  hand_job_begin(&job, h.net, config_text(0, _i, 1, 1, ""));
  const tws_plan *plan = job.train;
  const uint64_t count = plan->buffers[plan->running].elements;
  begin_follows(plan, follows);
  for (int step = 0; step < 2; step++) {
    make_batch(&data[step], (uint64_t)step);
    hand_input(&job, tws_network_input_of(h.net, TWS_INPUT_NUMBERS), data[step].pictures);
    hand_input(&job, tws_network_input_of(h.net, TWS_INPUT_TARGETS), data[step].classes);
    const double expected = exact_loss(h.net, job.weights, &data[step], 0, NULL, follows);
    ck_assert_double_eq_tol(hand_loss(&job, job.weights, 1), expected, 1e-5 * expected);
    HAND_OK(tws_executor_get(job.executor, 0, plan->running, 0, running, count, &err));
    check_running(running, follows, count, "one rank");
  }
  const double expected = exact_loss(h.net, job.weights, &data[1], 0, follows, NULL);
  ck_assert_double_eq_tol(hand_loss(&job, job.weights, 0), expected, 1e-5 * expected);
  HAND_OK(tws_executor_get(job.executor, 0, plan->running, 0, running, count, &err));
  check_running(running, follows, count, "after an evaluation");
  hand_job_end(&job);
  tws_network_destroy(h.net);
}
END_TEST

/* ---- several ranks ---- */

#define TRAIN TWS_PROGRAM_TRAIN
#define EVALUATE TWS_PROGRAM_EVALUATE

typedef struct rank_run {
  const tws_plan *programs[2];
  const tws_config *config;
  const hand_job *like; /* weights */
  thread_world *world;
  const batch *data;
  float *gradients, running[MOST_RUNNING];
  double loss[2];
  tws_code code;
  tws_error err;
} rank_run;

static tws_code run_program(rank_run *r, tws_executor *x, int program, tws_error *why) {
  const tws_plan *plan = r->programs[program];
  const uint32_t pictures = tws_plan_input(plan, TWS_INPUT_NUMBERS), classes = tws_plan_input(plan, TWS_INPUT_TARGETS);
  double metrics[TWS_METRIC_COUNT] = {0};
  float hyper[TWS_HYPER_COUNT];
  tws_hyper_fill(r->config, 1, 1, hyper);
  TWS_TRY(tws_executor_put(x, program, pictures, 0, r->data->pictures, plan->buffers[pictures].elements, why));
  TWS_TRY(tws_executor_put(x, program, classes, 0, r->data->classes, plan->buffers[classes].elements, why));
  TWS_TRY(tws_executor_put(x, program, plan->hyper, 0, hyper, TWS_HYPER_COUNT, why));
  TWS_TRY(tws_executor_put(x, program, plan->metrics, 0, metrics, TWS_METRIC_COUNT, why));
  TWS_TRY(tws_executor_step(x, program, 1, NULL, NULL, NULL, why));
  TWS_TRY(tws_executor_get(x, program, plan->metrics, 0, metrics, TWS_METRIC_COUNT, why));
  r->loss[program] = metrics[TWS_METRIC_LOSS];
  return TWS_OK;
}

/* Runs one training step, and an evaluation with the weights from before the step. */
static tws_code run_programs(rank_run *r, tws_executor *x, tws_error *why) {
  const tws_plan *plan = r->programs[TRAIN];
  const uint64_t count = plan->buffers[plan->running].elements;
  float begin[MOST_RUNNING];
  tws_init_running(plan, begin);
  TWS_TRY(tws_executor_put(x, TRAIN, plan->running, 0, begin, count, why));
  for (int program = 0; program < 2; program++) {
    for (uint32_t i = 0; i < plan->state->shard_count; i++) {
      const tws_shard *s = &plan->state->shards[i];
      const float *from = r->like->weights + r->like->first[s->param] + s->param_first;
      TWS_TRY(tws_executor_put(x, TRAIN, plan->parameters, s->storage_offset, from, s->count, why));
    }
    TWS_TRY(run_program(r, x, program, why));
  }
  for (uint32_t i = 0; i < plan->state->shard_count; i++) {
    const tws_shard *s = &plan->state->shards[i];
    float *to = r->gradients + r->like->first[s->param] + s->param_first;
    if (s->owned_offset == TWS_NO_OFFSET) continue;
    TWS_TRY(tws_executor_get(x, TRAIN, plan->optimizer_state[0], s->owned_offset, to, s->count, why));
    for (uint64_t k = 0; k < s->count; k++) to[k] /= (float)(1 - r->config->beta1);
  }
  return tws_executor_get(x, TRAIN, plan->running, 0, r->running, count, why);
}

static void *run_rank(void *raw) {
  rank_run *r = raw;
  tws_backend *backend = NULL;
  tws_executor *x = NULL;
  tws_comm comm = {.world = r->world, .plan = r->programs[0]};
  r->code = tws_host_backend()->create(0, 1, &backend, &r->err);
  const tws_executor_setup setup = {.programs = r->programs,
                                    .program_count = 2,
                                    .ops = tws_host_backend(),
                                    .backend = backend,
                                    .comm_ops = &thread_ranks_comm,
                                    .comm = &comm};
  if (r->code == TWS_OK) r->code = tws_executor_create(&setup, &x, &r->err);
  if (r->code == TWS_OK) r->code = run_programs(r, x, &r->err);
  tws_executor_destroy(x);
  if (backend) tws_host_backend()->destroy(backend);
  return NULL;
}

static tws_plan *make_plan(const tws_network *network, const tws_config *config, int ranks, int rank,
                           tws_program program, tws_state *state) {
  tws_plan_request request = {
      .network = network, .config = config, .rank = rank, .program = program, .state = state, .threads = 1};
  tws_plan *plan = NULL;
  HAND_OK(tws_plan_topology(config, ranks, &request.topology, &err));
  HAND_OK(tws_plan_build(&request, &plan, &err));
  HAND_OK(tws_plan_verify(plan, &err));
  return plan;
}

/* Asserts that a checkpoint contains the running statistics once, whatever the number of ranks. */
static void check_saved(const tws_plan *const *plans, int ranks) {
  tws_arena *arena = tws_arena_create();
  tws_piece held[RANKS * MOST_PIECES], *all, *own;
  uint32_t count = 0, own_count, saved = 0, running = 0;
  uint8_t sizes[8];
  memset(sizes, sizeof(float), sizeof sizes);
  ck_assert_uint_le(plans[0]->state->count, sizeof sizes);
  for (int r = 0; r < ranks; r++) {
    HAND_OK(tws_pieces_of(plans[r], arena, &own, &own_count, &err));
    ck_assert_uint_le(own_count, MOST_PIECES);
    memcpy(held + count, own, own_count * sizeof *own);
    count += own_count;
  }
  HAND_OK(tws_pieces_share(held, count, sizes, NULL, ranks, arena, &all, &saved, &err));
  for (uint32_t i = 0; i < saved; i++)
    if (all[i].param == TWS_NONE) running += all[i].count == plans[0]->buffers[plans[0]->running].elements ? 1 : 100;
  ck_assert_uint_eq(running, 1);
  tws_arena_destroy(arena);
}

/* Runs all ranks of a job as threads, each with its own batch. */
static void run_ranks(const tws_network *network, const char *text, const hand_job *like, const batch *data, int ranks,
                      rank_run *runs) {
  tws_config *config = NULL;
  tws_plan *plans[2][RANKS];
  pthread_t threads[RANKS];
  thread_world world = {.lock = PTHREAD_MUTEX_INITIALIZER};
  ck_assert_msg(resolve(text, ranks, network->hidden, &config) == TWS_OK, "%s: %s", text, err.message);
  for (int r = 0; r < ranks; r++) {
    plans[TRAIN][r] = make_plan(network, config, ranks, r, TRAIN, NULL);
    plans[EVALUATE][r] = make_plan(network, config, ranks, r, EVALUATE, plans[TRAIN][r]->state);
  }
  for (int program = 0; program < 2; program++) {
    HAND_OK(tws_plans_verify((const tws_plan *const *)plans[program], ranks, &err));
    job_seconds((const tws_plan *const *)plans[program], ranks);
  }
  check_saved((const tws_plan *const *)plans[TRAIN], ranks);
  for (int r = 0; r < ranks; r++) {
    runs[r] = (rank_run){.programs = {plans[TRAIN][r], plans[EVALUATE][r]},
                         .config = config,
                         .like = like,
                         .world = &world,
                         .data = &data[r],
                         .gradients = calloc(like->first[network->param_count], sizeof(float))};
    ck_assert_int_eq(pthread_create(&threads[r], NULL, run_rank, &runs[r]), 0);
  }
  for (int r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
  for (int r = 0; r < ranks; r++) ck_assert_msg(runs[r].code == TWS_OK, "rank %d: %s", r, runs[r].err.message);
  thread_world_end(&world);
  for (int r = 0; r < ranks; r++) tws_plan_destroy(plans[EVALUATE][r]), tws_plan_destroy(plans[TRAIN][r]);
  tws_config_destroy(config);
}

/* On two ranks, each normalises its own samples: gradients, losses and running statistics are the means of those of the
 * ranks alone, and are equal on both ranks. */
START_TEST(on_two_ranks) {
  hand_network h;
  hand_job like;
  batch data[RANKS];
  rank_run alone[RANKS], together[RANKS];
  double follows[RANKS][MOST_RUNNING], loss = 0, evaluated = 0;
  small_resnet(&h);
  hand_job_begin(&like, h.net, config_text(0, 0, MICRO_BATCHES, 1, ""));
  const uint64_t count = like.train->buffers[like.train->running].elements, total = like.first[h.net->param_count];
  for (int r = 0; r < RANKS; r++) {
    make_batch(&data[r], 7 + (uint64_t)r);
    run_ranks(h.net, config_text(0, 0, MICRO_BATCHES, 1, ""), &like, &data[r], 1, &alone[r]);
    begin_follows(like.train, follows[r]);
    for (int i = 0; i < MICRO_BATCHES; i++)
      loss += exact_loss(h.net, like.weights, &data[r], i, NULL, follows[r]) / (RANKS * MICRO_BATCHES);
  }
  for (uint64_t i = 0; i < count; i++) follows[0][i] = (follows[0][i] + follows[1][i]) / RANKS;
  for (int r = 0; r < RANKS; r++)
    for (int i = 0; i < MICRO_BATCHES; i++)
      evaluated += exact_loss(h.net, like.weights, &data[r], i, follows[0], NULL) / (RANKS * MICRO_BATCHES);
  run_ranks(h.net, config_text(_i % 4, _i / 4, MICRO_BATCHES, RANKS, ""), &like, data, RANKS, together);
  for (uint64_t i = 0; i < total; i++) {
    const float expected = (alone[0].gradients[i] + alone[1].gradients[i]) / RANKS;
    const float found = together[0].gradients[i] != 0 ? together[0].gradients[i] : together[1].gradients[i];
    ck_assert_msg(fabsf(found - expected) < 1e-6F + 1e-4F * fabsf(expected), "gradient %d: %g, not %g", (int)i, found,
                  expected);
  }
  for (int r = 0; r < RANKS; r++) {
    check_running(together[r].running, follows[0], count, r ? "rank 1" : "rank 0");
    ck_assert_double_eq_tol(together[r].loss[TRAIN], loss, 1e-5 * loss);
    ck_assert_double_eq_tol(together[r].loss[EVALUATE], evaluated, 1e-5 * evaluated);
    free(alone[r].gradients);
    free(together[r].gradients);
  }
  hand_job_end(&like);
  tws_network_destroy(h.net);
}
END_TEST

/* Networks of pictures can be divided into two stages, and the last product with the loss among tensor ranks; sequence
 * parallelism is refused, because pictures have no sequence. */
START_TEST(other_axes) {
  static const char *const keys[] = {", \"pipeline\": {\"stages\": 2}", ", \"tensor_parallel\": {\"autotp_size\": 2}"};
  hand_network h;
  small_resnet(&h);
  for (int i = 0; i < 2; i++) {
    tws_config *config = NULL;
    tws_plan *plans[RANKS];
    const char *text = config_text(1, i, MICRO_BATCHES, 1, keys[i]);
    ck_assert_msg(resolve(text, RANKS, h.net->hidden, &config) == TWS_OK, "%s: %s", text, err.message);
    for (int r = 0; r < RANKS; r++) plans[r] = make_plan(h.net, config, RANKS, r, TRAIN, NULL);
    HAND_OK(tws_plans_verify((const tws_plan *const *)plans, RANKS, &err));
    job_seconds((const tws_plan *const *)plans, RANKS);
    for (int r = 0; r < RANKS; r++) tws_plan_destroy(plans[r]);
    tws_config_destroy(config);
  }
  tws_network_destroy(h.net);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("pictures");
  TCase *cases = tcase_create("networks");
  tcase_set_timeout(cases, 120);
  tcase_add_loop_test(cases, differentiated, 0, 12);
  tcase_add_loop_test(cases, as_in_float64, 0, 3);
  tcase_add_loop_test(cases, on_two_ranks, 0, 12);
  tcase_add_test(cases, other_axes);
  suite_add_tcase(suite, cases);
  return run_suite(suite);
}
