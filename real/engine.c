#include "real/engine.h"

#include <string.h>

#include "base/memory.h"
#include "plan/hyper.h"
#include "real/agree.h"
#include "real/engine_internal.h"

/* ---- opening ---- */

static tws_code copy_text(const tws_engine *e, const char *from, const char **to, tws_error *err) {
  *to = from ? tws_arena_strdup(e->arena, from) : NULL;
  return from && !*to ? tws_fail(err, TWS_MEMORY, NULL, "no memory for an engine") : TWS_OK;
}

static tws_code copy_options(tws_engine *e, const tws_engine_options *o, tws_error *err) {
  /* the number of steps is not known: no step is the last one */
  e->options = (tws_train_options){.plan = o->plan,
                                   .steps = INT64_MAX,
                                   .evaluates = o->evaluates,
                                   .eval_steps = o->eval_steps,
                                   .device_limit = o->device_limit,
                                   .log = o->log};
  TWS_TRY(copy_text(e, o->data, &e->options.data, err));
  TWS_TRY(copy_text(e, o->eval_data, &e->options.eval_data, err));
  TWS_TRY(copy_text(e, o->init_from, &e->options.init_from, err));
  if (!o->fingerprint) return TWS_OK;
  e->fingerprint = *o->fingerprint;
  e->options.fingerprint = &e->fingerprint;
  return TWS_OK;
}

static tws_code check_ranks(const tws_engine *e, tws_error *err) {
  const int ranks = tws_topology_world(&e->options.plan.topology), there = e->t.world;
  if (!e->t.ops) return tws_fail(err, TWS_ENVIRONMENT, NULL, "this build has no backend for the job's devices");
  if (ranks == there) return TWS_OK;
  return tws_fail(err, TWS_USAGE,
                  there == 1 ? "start the program with mpirun -n, and MPI before the engine is opened"
                             : "open the job for as many ranks as the communicator has",
                  "the job has %d ranks, and the communicator %d", ranks, there);
}

/* Opens the files of the options. Without a file of training data, batches come from memory alone. */
static tws_code open_data(tws_engine *e, tws_error *err) {
  tws_training *t = &e->t;
  const tws_config *c = t->config;
  const tws_network *network = e->options.plan.network;
  const uint64_t seed = (uint64_t)c->seed;
  tws_error why = {0};
  TWS_TRY(tws_training_shape(t, err));
  tws_code code = tws_objective_open_memory(network, c->sequence_length, c->train_batch_size, seed, &e->memory, &why);
  if (code != TWS_OK && (code != TWS_UNSUPPORTED || !e->options.data)) {
    if (err) *err = why;
    return code;
  }
  if (e->options.data)
    TWS_TRY(tws_objective_open(network, e->options.data, c->sequence_length, c->train_batch_size, seed, &t->data, err));
  else
    t->data = (tws_data){.fd = -1, .path = "", .sequence = c->sequence_length};
  TWS_TRY(tws_evaluation_open(t, err));
  return tws_step_report_prepare(t, err);
}

static tws_code open_engine(tws_engine *e, tws_error *err) {
  tws_training *t = &e->t;
  TWS_TRY(check_ranks(e, err));
  if (e->options.plan.backend == TWS_BACKEND_CUDA) TWS_TRY(tws_cuda_load(&t->cuda, err));
  TWS_TRY(tws_training_plan(t, err));
  TWS_TRY(open_data(e, err));
  if (!e->options.data) e->options.data = ""; /* the name that checkpoints store */
  TWS_TRY(tws_training_make_executor(t, err));
  TWS_TRY(tws_training_agree(t, err));
  TWS_TRY(tws_training_weights(t, err));
  return tws_comm_barrier(t->comm, err);
}

static void engine_close(tws_engine *e) {
  if (!e) return;
  tws_training_release(&e->t);
  tws_data_close(&e->memory);
  tws_free(e->tokens);
  tws_free(e->targets);
  tws_mpi_free(e->ranks);
  tws_free(e->saved_folder);
  tws_free(e->saved_tag);
  tws_arena_destroy(e->arena);
  tws_free(e);
}

/* Refuses optimizers whose steps run several programs: steps in parts, saves, and reads of the state between steps are
 * implemented for steps of one program. */
static tws_code check_optimizer(const tws_engine_options *o, tws_error *err) {
  const tws_optimizer_row *row = tws_optimizer_of(o->plan.config->optimizer);
  if (row->phases == TWS_PHASES_ONE) return TWS_OK;
  return tws_fail(err, TWS_UNSUPPORTED, "use `twinspeed train`, or another optimizer",
                  "the library does not run steps of %s, which has several phases", row->type);
}

static tws_code engine_open(const tws_engine_options *o, tws_engine **out, tws_error *err) {
  *out = NULL;
  TWS_TRY(check_optimizer(o, err));
  tws_engine *e = tws_calloc(1, sizeof *e);
  if (e) e->arena = tws_arena_create();
  if (!e || !e->arena) {
    tws_free(e);
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for an engine");
  }
  tws_code code = copy_options(e, o, err);
  if (code == TWS_OK) code = tws_mpi_duplicate(o->ranks, &e->ranks, err);
  e->t = (tws_training){.options = &e->options,
                        .config = o->plan.config,
                        .is_library = 1,
                        .mpi = e->ranks,
                        .rank = tws_mpi_rank(e->ranks),
                        .world = tws_mpi_world(e->ranks),
                        .threads = o->plan.threads > 0 ? o->plan.threads : 1,
                        .ops = tws_real_backend(o->plan.backend == TWS_BACKEND_CUDA ? "cuda" : "host")};
  if (code == TWS_OK) code = open_engine(e, err);
  if (code == TWS_OK)
    *out = e;
  else
    engine_close(e);
  return code;
}

static int engine_rank(const tws_engine *e) {
  return e->t.rank;
}

static int64_t engine_steps(const tws_engine *e) {
  return e->t.counters->steps;
}

/* ---- steps ---- */

static tws_code engine_train(tws_engine *e, const tws_engine_batch *batch, tws_step_report *report, tws_error *err) {
  tws_training *t = &e->t;
  const int64_t step = t->counters->steps + 1;
  *report = (tws_step_report){0};
  TWS_TRY(tws_engine_ready(e, err));
  TWS_TRY(tws_engine_choose_batch(e, batch, e->options.data, err));
  t->step_ended_s = tws_clock_s();
  const tws_code code = tws_training_step(t, step, report, err);
  t->batch = NULL;
  e->failed = code != TWS_OK;
  if (code != TWS_OK) return tws_fail_in(err, code, "rank %d, step %lld", t->rank, (long long)step);
  tws_step_report_finish(t, t->phase_times, report);
  return TWS_OK;
}

static tws_code evaluate_batch(tws_training *t, const tws_data *data, double *loss, tws_error *err) {
  tws_evaluation_sum sum = {0};
  TWS_TRY(tws_evaluation_put(t, data, 0, err));
  TWS_TRY(tws_comm_barrier(t->comm, err));
  TWS_TRY(tws_executor_step(t->executor, TWS_PROGRAM_EVALUATE, t->counters->steps, NULL, NULL, NULL, err));
  TWS_TRY(tws_evaluation_add(t, &sum, err));
  return tws_evaluation_mean(&sum, loss, err);
}

static tws_code engine_evaluate(tws_engine *e, const tws_engine_batch *batch, double *loss, tws_error *err) {
  tws_training *t = &e->t;
  double seconds;
  *loss = 0;
  TWS_TRY(tws_engine_ready(e, err));
  if (!t->evaluation)
    return tws_fail(err, TWS_USAGE, "open the engine with evaluates 1", "the engine has no plan of an evaluation");
  TWS_TRY(tws_engine_choose_batch(e, batch, e->options.eval_data, err));
  t->batch = NULL;
  return batch ? evaluate_batch(t, &e->memory, loss, err)
               : tws_evaluation_run(t, t->counters->steps, loss, &seconds, err);
}

static void engine_set_lr(tws_engine *e, double lr) {
  e->t.has_set_lr = lr >= 0;
  e->t.set_lr = lr;
}

static double engine_lr(const tws_engine *e) {
  const tws_counters *counters = e->t.counters;
  float hyper[TWS_PARAM_GROUPS * TWS_HYPER_COUNT];
  return e->t.has_set_lr ? e->t.set_lr
                         : tws_hyper_fill_groups(e->t.config, counters->steps - counters->skipped + 1,
                                                 counters->loss_scale.scale, hyper);
}

/* ---- checkpoints ---- */

static void forget_folders(tws_training *t) {
  tws_free(t->far_writers);
  tws_free(t->far_readers);
  t->far_writers = t->far_readers = NULL;
  t->fetches = 0;
}

static tws_code save(tws_engine *e, int64_t keep, tws_error *err) {
  tws_training *t = &e->t;
  e->options.keep = keep;
  TWS_TRY(tws_engine_together(e, tws_checkpoint_lock(t, err), "locking the folder of checkpoints", err));
  forget_folders(t);
  TWS_TRY(tws_training_agree(t, err));
  TWS_TRY(tws_engine_together(e, tws_checkpoint_prepare(t, err), "preparing a checkpoint", err));
  TWS_TRY(tws_checkpoint_save(t, err));
  return tws_comm_barrier(t->comm, err);
}

static tws_code engine_save(tws_engine *e, const char *folder, const char *client_state, int64_t keep,
                            char tag[TWS_TAG_SIZE], tws_error *err) {
  tws_training *t = &e->t;
  tag[0] = '\0';
  TWS_TRY(tws_engine_ready(e, err));
  e->options.save = folder;
  t->client_state = client_state;
  const tws_code code = save(e, keep, err);
  if (code == TWS_OK) memcpy(tag, tws_checkpoint_tag(t), TWS_TAG_SIZE);
  tws_checkpoint_close(t);
  t->checkpoint = NULL;
  t->client_state = NULL;
  e->options.save = NULL;
  return code;
}

enum { ZEROS = 1 << 16 };

/* Sets all state to 0: a checkpoint may lack entries, which then have their initial values. */
static tws_code clear_state(tws_training *t, tws_error *err) {
  void *zeros = tws_calloc(ZEROS, sizeof(double));
  tws_code code = zeros ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (uint32_t b = 0; b < t->plan->buffer_count && code == TWS_OK; b++) {
    const tws_buffer *buffer = &t->plan->buffers[b];
    if (buffer->lifetime != TWS_LIFETIME_STATE) continue;
    for (uint64_t at = 0; at < buffer->elements && code == TWS_OK; at += ZEROS) {
      const uint64_t n = buffer->elements - at < ZEROS ? buffer->elements - at : ZEROS;
      code = tws_executor_put(t->executor, TWS_PROGRAM_TRAIN, b, at, zeros, n, err);
    }
  }
  tws_free(zeros);
  return code;
}

static char *copy_of(const char *text) {
  const size_t bytes = strlen(text) + 1;
  char *copy = tws_calloc(bytes, 1);
  if (copy) memcpy(copy, text, bytes);
  return copy;
}

static tws_code name_checkpoint(tws_engine *e, const char *folder, const char *tag, tws_error *err) {
  tws_free(e->saved_folder);
  tws_free(e->saved_tag);
  e->saved_folder = copy_of(folder);
  e->saved_tag = tag ? copy_of(tag) : NULL;
  e->options.resume = e->saved_folder;
  e->options.tag = e->saved_tag;
  return e->saved_folder && (!tag || e->saved_tag) ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}

static tws_code engine_load(tws_engine *e, const char *folder, const char *tag, const char **client_state,
                            tws_error *err) {
  tws_training *t = &e->t;
  *client_state = "";
  if (!e->failed) TWS_TRY(tws_engine_ready(e, err));
  TWS_TRY(name_checkpoint(e, folder, tag, err));
  tws_saved_close(t->resumed);
  t->resumed = NULL;
  forget_folders(t);
  TWS_TRY(tws_resume_open(t, err)); /* a failure of rank 0 is that of all ranks; the state is unchanged then */
  TWS_TRY(tws_resume_counters(t, err));
  e->failed = 1;
  TWS_TRY(tws_training_agree(t, err));
  if (t->data.samples > 0) tws_resume_place(t);
  TWS_TRY(clear_state(t, err));
  TWS_TRY(tws_engine_together(e, tws_training_weights(t, err), "reading the checkpoint", err));
  e->failed = 0;
  tws_engine_forget_step(e);
  *client_state = t->resumed->client_state;
  return TWS_OK;
}

const tws_engine_api tws_engine_calls = {.open = engine_open,
                                         .close = engine_close,
                                         .rank = engine_rank,
                                         .steps = engine_steps,
                                         .train = engine_train,
                                         .evaluate = engine_evaluate,
                                         .forward = tws_engine_forward,
                                         .backward = tws_engine_backward,
                                         .is_boundary = tws_engine_is_boundary,
                                         .step = tws_engine_step,
                                         .state_name = tws_engine_state_name,
                                         .elements = tws_engine_elements,
                                         .get = tws_engine_get,
                                         .set = tws_engine_set,
                                         .local = tws_engine_local,
                                         .set_local = tws_engine_set_local,
                                         .set_lr = engine_set_lr,
                                         .lr = engine_lr,
                                         .save = engine_save,
                                         .load = engine_load};
