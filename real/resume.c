/* Resumes a training from a checkpoint, whatever sharding it was saved with: every rank reads the slices of its own
 * state. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/memory.h"
#include "checkpoint/export.h"
#include "checkpoint/folder.h"
#include "checkpoint/read.h"
#include "real/remote_files.h"
#include "real/train_internal.h"

/* ---- check that it is a checkpoint of this training ---- */

static tws_code foreign(const tws_saved_index *x, tws_error *err, const char *what) {
  return tws_fail(err, TWS_INVALID, "resume with the model that it was saved from", "%s: %s", x->path, what);
}

/* Compares the shapes of two parameters. The number of padded rows of the vocabulary may differ, as they have no
 * meaning. */
static int same_shape(const tws_training *t, const tws_param *a, const tws_param *b) {
  const tws_network *network = t->plan->network;
  if (a->columns != b->columns) return 0;
  return a->rows == b->rows || (a->rows == network->padded_vocabulary && b->rows == t->resumed->padded_vocabulary &&
                                network->vocabulary == t->resumed->vocabulary);
}

static tws_code check_model(const tws_training *t, tws_error *err) {
  const tws_saved_index *x = t->resumed;
  /* the network of the job: that of a plan for inference has other inputs, such as the cache */
  const tws_network *network = t->options->plan.network;
  char what[512], model[24];
  for (uint32_t i = 0; i < network->param_count; i++) {
    const tws_param *p = &network->params[i];
    const uint32_t saved = tws_saved_param_of(x, p->name);
    if (saved == TWS_NONE) {
      snprintf(what, sizeof what, "it has no parameter \"%.300s\" of the model", p->name);
      return foreign(x, err, what);
    }
    const tws_param *s = &x->params[saved];
    if (same_shape(t, p, s)) continue;
    snprintf(what, sizeof what,
             "its \"%.300s\" has %" PRId64 " x %" PRId64 " elements, and the model's %" PRId64 " x %" PRId64, p->name,
             s->rows, s->columns, p->rows, p->columns);
    return foreign(x, err, what);
  }
  snprintf(model, sizeof model, "%016" PRIx64, tws_network_fingerprint(network));
  if (strcmp(model, x->model) == 0 && x->param_count == network->param_count) return TWS_OK;
  return foreign(x, err, "its model has the same parameters and works otherwise (heads, norms or positions)");
}

static tws_code check_place(const tws_training *t, tws_error *err) {
  const tws_saved_index *x = t->resumed;
  if (x->counters.seed != t->config->seed)
    return tws_fail(err, TWS_INVALID, "set twinspeed.seed to that of the checkpoint",
                    "%s: it was trained with seed %" PRId64 ", and the configuration says %" PRId64, x->path,
                    x->counters.seed, t->config->seed);
  if (x->counters.steps < t->options->steps) return TWS_OK;
  return tws_fail(err, TWS_USAGE, "--steps counts from the beginning of the training: ask for more",
                  "%s: it has %" PRId64 " steps already, and %" PRId64 " are asked for", x->path, x->counters.steps,
                  t->options->steps);
}

/* ---- correspondence of saved entries and entries of the state ---- */

/* Returns the saved entry with this entry's name and type or, for an entry that holds parameters, the widest saved
 * entry that holds them, whatever its precision. */
static uint32_t source_of(const tws_saved_index *x, const tws_state_entry *entry) {
  const uint32_t named = tws_saved_entry_of(x, entry->name);
  if (entry->initial != TWS_INITIAL_PARAMETER) return named;
  if (named != TWS_NONE && x->entries[named].dtype == entry->dtype) return named;
  return tws_saved_weights(x);
}

static int is_wanted(const tws_training *t, const tws_state_entry *entry) {
  return entry->checkpointed && (!t->weights_only || entry->initial == TWS_INITIAL_PARAMETER);
}

static tws_code check_entries(const tws_training *t, tws_error *err) {
  const tws_state *state = t->plan->state;
  const int late = tws_saved_entry_of(t->resumed, TWS_DELAYED_GRADIENTS) != TWS_NONE;
  if (late && t->rank == 0 && !t->weights_only && tws_state_find(state, TWS_DELAYED_GRADIENTS) == TWS_NONE)
    tws_log_write(t->options->log, TWS_LOG_WARNING,
                  "%s: an update that still waits there (twinspeed.delayed_update) is left out", t->resumed->path);
  const int waits = tws_saved_entry_of(t->resumed, TWS_ZENFLOW_GRADIENTS) != TWS_NONE;
  if (waits && t->rank == 0 && !t->weights_only && tws_state_find(state, TWS_ZENFLOW_GRADIENTS) == TWS_NONE)
    tws_log_write(t->options->log, TWS_LOG_WARNING,
                  "%s: gradients that wait there for the host (zero_optimization.zenflow) are left out",
                  t->resumed->path);
  for (uint32_t i = 0; i < state->count; i++) {
    const tws_state_entry *entry = &state->entries[i];
    if (!is_wanted(t, entry) || entry->continues || entry->optional ||
        (entry->role == TWS_ELEMENTS_NONE && !entry->everywhere) || source_of(t->resumed, entry) != TWS_NONE)
      continue;
    return tws_fail(err, TWS_INVALID, "resume with the optimizer that it was trained with",
                    "%s: it has no \"%s\", which the optimizer keeps", t->resumed->path, entry->name);
  }
  return TWS_OK;
}

/* ---- choice of the checkpoint ---- */

/* Rank 0's checkpoint, broadcast to all ranks: its path and its index; or the reason why there is none. */
typedef struct announced {
  tws_error failure;
  char path[TWS_FOLDER_SIZE];
  uint64_t length;
  char index[];
} announced;

static tws_code announce(const tws_train_options *o, announced **out, uint64_t *bytes, tws_error *err) {
  tws_error failure = {0};
  char path[TWS_FOLDER_SIZE] = "", *text = NULL;
  size_t length = 0;
  if (tws_folder_find(o->resume, o->tag, path, sizeof path, &failure) == TWS_OK)
    (void)tws_saved_explain_missing(path, tws_saved_read_index(path, &text, &length, &failure), &failure);
  *bytes = sizeof **out + length;
  *out = tws_calloc(*bytes, 1);
  if (*out) {
    (*out)->failure = failure;
    (*out)->length = length;
    memcpy((*out)->path, path, sizeof path);
    if (length > 0) memcpy((*out)->index, text, length);
  }
  tws_free(text);
  return *out ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory to read a checkpoint with");
}

static tws_code another_here(const tws_training *t, const char *path, tws_error *err) {
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  return tws_fail(err, TWS_INVALID,
                  "copy rank 0's there, or remove the one there: what is not there comes through the network",
                  "%.300s is not the same on %s (rank %d) as where rank 0 is", path, host, t->rank);
}

/* Opens the checkpoint on this node: the folder has the same one as on rank 0, or none (it is then fetched from rank
 * 0), or another one, which is an error. */
static tws_code open_announced(tws_training *t, const announced *a, tws_error *err) {
  char *text = NULL;
  size_t length = 0;
  if (a->failure.code != TWS_OK) {
    if (err) *err = a->failure;
    return a->failure.code;
  }
  if (t->rank == 0 || tws_mpi_world(t->mpi) == 1) return tws_saved_open(a->path, &t->resumed, err);
  if (tws_saved_read_index(a->path, &text, &length, NULL) != TWS_OK) {
    t->fetches = 1;
    return tws_saved_parse(a->index, a->length, a->path, &t->resumed, err);
  }
  const int same = length == a->length && memcmp(text, a->index, length) == 0;
  tws_free(text);
  return same ? tws_saved_open(a->path, &t->resumed, err) : another_here(t, a->path, err);
}

static tws_code open_saved(tws_training *t, tws_error *err) {
  void *data = NULL;
  uint64_t bytes = 0;
  announced *own = NULL;
  if (tws_mpi_rank(t->mpi) == 0) TWS_TRY(announce(t->options, &own, &bytes, err));
  data = own;
  tws_code code = tws_mpi_broadcast(t->mpi, &data, &bytes, err);
  if (code == TWS_OK) code = open_announced(t, data, err);
  tws_free(data);
  return code;
}

/* Checks the origin of frozen parameters, which a checkpoint does not contain. */
static tws_code check_base(const tws_training *t, tws_error *err) {
  const tws_saved_index *x = t->resumed;
  char hint[512];
  if (!tws_training_has_frozen(t)) {
    if (!t->options->init_from) return TWS_OK;
    return tws_fail(err, TWS_USAGE, "a checkpoint has the weights: leave out --init-from",
                    "--init-from together with a checkpoint whose parameters were all trained");
  }
  if ((*x->base != 0) == (t->options->init_from != NULL)) return TWS_OK;
  snprintf(hint, sizeof hint, *x->base ? "give --init-from %.400s" : "leave out --init-from", x->base);
  return tws_fail(err, TWS_INVALID, hint, "%s: its frozen parameters %s", x->path,
                  *x->base ? "came from a file" : "were drawn, not read");
}

tws_code tws_resume_open(tws_training *t, tws_error *err) {
  if (!t->options->resume) return TWS_OK;
  TWS_TRY(open_saved(t, err));
  TWS_TRY(check_model(t, err));
  TWS_TRY(check_entries(t, err));
  return check_base(t, err);
}

tws_code tws_resume_counters(tws_training *t, tws_error *err) {
  TWS_TRY(check_place(t, err));
  const tws_loss_scale start = t->counters->loss_scale;
  *t->counters = t->resumed->counters;
  const int scaled = t->config->dtype == TWS_F16 && strcmp(t->resumed->dtype, tws_dtype_name(TWS_F16)) == 0;
  if (!scaled || t->config->fp16.loss_scale > 0) t->counters->loss_scale = start;
  t->first_step = t->counters->steps;
  return TWS_OK;
}

void tws_resume_place(tws_training *t) {
  const tws_saved_index *x = t->resumed;
  const int64_t used = x->samples * x->sequence_length / t->config->sequence_length;
  t->data.offset = used - t->first_step * t->config->train_batch_size;
  if (t->rank == 0 && x->data_tokens != (int64_t)t->data.count)
    tws_log_write(t->options->log, TWS_LOG_WARNING,
                  "the checkpoint's data had %" PRId64 " tokens (%s), and this file has %" PRIu64
                  ": it is read from the sample after %" PRId64 " on",
                  x->data_tokens, x->data, t->data.count, used);
}

int tws_resume_needs_weights(const tws_training *t) {
  return t->plan->network->padded_vocabulary != t->resumed->padded_vocabulary;
}

/* ---- reading ---- */

enum { CHUNK = 1 << 20 };

typedef struct loader {
  tws_training *t;
  tws_saved_reader reader;
  void *values;  /* memory for a chunk of elements of the widest type, or for two chunks of float32 */
  int redivided; /* 1: the saved slices of this rank's parameters are others than this job's */
  int told;      /* 1: the user has been told what follows from that */
  uint32_t buffer, source;
  const tws_state_entry *entry;
} loader;

static tws_code load_run(loader *l, const tws_piece *piece, uint64_t done, uint64_t count, tws_error *err) {
  tws_training *t = l->t;
  const uint32_t saved = tws_saved_param_of(t->resumed, t->plan->network->params[piece->param].name);
  const uint64_t at = piece->at + done;
  if (tws_resume_needs_weights(t))
    TWS_TRY(tws_executor_get(t->executor, TWS_PROGRAM_TRAIN, l->buffer, at, l->values, count, err));
  TWS_TRY(tws_saved_read(&l->reader, l->source, saved, piece->copy, &piece->slice, piece->first + done, count,
                         (tws_dtype)l->entry->dtype, l->values, err));
  return tws_executor_put(t->executor, TWS_PROGRAM_TRAIN, l->buffer, at, l->values, count, err);
}

/* Returns 1 if an optional entry was saved with another number of elements, as by ranks that divide the model in
 * another way, or with another length of a history. */
static int has_other_size(const loader *l, const tws_piece *piece) {
  return l->entry->optional && tws_saved_own_elements(l->t->resumed, l->source, piece->copy) != piece->count;
}

/* Returns 1 if a slice of a parameter that this rank holds was saved by no rank: the job divides tensors in another way
 * than the one that saved the checkpoint. */
static int is_redivided(loader *l, const tws_piece *held, uint32_t count) {
  const tws_saved_index *x = l->t->resumed;
  const tws_plan *plan = l->t->plan;
  for (uint32_t i = 0; i < count; i++) {
    const tws_state_entry *entry = &plan->state->entries[held[i].entry];
    if (held[i].param == TWS_NONE || plan->network->params[held[i].param].frozen || !is_wanted(l->t, entry)) continue;
    const uint32_t source = source_of(x, entry);
    const uint32_t param = tws_saved_param_of(x, plan->network->params[held[i].param].name);
    if (source != TWS_NONE && !tws_saved_has_slice(x, source, param, held[i].copy, &held[i].slice)) return 1;
  }
  return 0;
}

/* Returns 1 if the values are largest magnitudes of shards that no rank of this job has. */
static int is_of_other_shards(const loader *l) {
  return l->entry->magnitudes && l->redivided;
}

/* Returns 1 if the ranks of the checkpoint do not have magnitudes of the same tensors, so that their largest ones have
 * no meaning: stages of a pipeline. */
static int has_other_tensors(const loader *l, const tws_piece *piece) {
  if (!is_of_other_shards(l)) return 0;
  for (int r = 0; r < (int)l->t->resumed->ranks; r++)
    if (tws_saved_own_elements(l->t->resumed, l->source, r) != piece->count) return 1;
  return l->t->plan->stages > 1;
}

/* Reads `n` elements from element `done` on of state that belongs to no parameter: this rank's own, or of magnitudes of
 * other shards the largest ones of all ranks. */
static tws_code read_own(loader *l, const tws_piece *piece, uint64_t done, uint64_t n, tws_error *err) {
  const tws_dtype dtype = (tws_dtype)l->entry->dtype;
  if (!is_of_other_shards(l))
    return tws_saved_read(&l->reader, l->source, TWS_NONE, piece->copy, NULL, done, n, dtype, l->values, err);
  float *most = l->values, *other = most + CHUNK;
  memset(most, 0, n * sizeof *most);
  for (int r = 0; r < (int)l->t->resumed->ranks; r++) {
    TWS_TRY(tws_saved_read(&l->reader, l->source, TWS_NONE, r, NULL, done, n, dtype, other, err));
    for (uint64_t i = 0; i < n; i++) most[i] = other[i] > most[i] ? other[i] : most[i];
  }
  return TWS_OK;
}

/* Loads state that belongs to no parameter. It is only valid on the same number of ranks, unless all ranks have equal
 * values; otherwise it is initialized. */
static tws_code load_own(loader *l, const tws_piece *piece, tws_error *err) {
  tws_training *t = l->t;
  const int everywhere = tws_state_everywhere(l->entry, t->plan->stages);
  if (l->source == TWS_NONE || (t->resumed->ranks != t->world && !everywhere) || has_other_size(l, piece) ||
      has_other_tensors(l, piece)) {
    if (t->rank == 0 && t->resumed->ranks == t->world && l->source != TWS_NONE && has_other_size(l, piece))
      tws_log_write(t->options->log, TWS_LOG_WARNING,
                    "%s begins anew: the checkpoint has %" PRIu64 " elements of it for this rank, this job %" PRIu64,
                    l->entry->name, tws_saved_own_elements(t->resumed, l->source, piece->copy), piece->count);
    else if (t->rank == 0)
      tws_log_write(t->options->log, TWS_LOG_WARNING, "%s begins anew: the checkpoint has none for these ranks",
                    l->entry->name);
    return TWS_OK;
  }
  if (t->rank == 0 && is_of_other_shards(l) && !l->told)
    tws_log_write(
        t->options->log, TWS_LOG_INFO,
        "amax histories: tensors were divided in another way, and the largest numbers of all ranks are taken");
  l->told |= is_of_other_shards(l);
  for (uint64_t done = 0; done < piece->count; done += CHUNK) {
    const uint64_t n = piece->count - done < CHUNK ? piece->count - done : CHUNK;
    tws_watchdog_count_progress(t->watchdog);
    TWS_TRY(read_own(l, piece, done, n, err));
    TWS_TRY(tws_executor_put(t->executor, TWS_PROGRAM_TRAIN, l->buffer, piece->at + done, l->values, n, err));
  }
  return TWS_OK;
}

static tws_code load_pieces(loader *l, const tws_piece *held, uint32_t count, tws_error *err) {
  const tws_plan *plan = l->t->plan;
  l->redivided = is_redivided(l, held, count);
  for (uint32_t i = 0; i < count; i++) {
    l->entry = &plan->state->entries[held[i].entry];
    if (!is_wanted(l->t, l->entry)) continue;
    l->source = source_of(l->t->resumed, l->entry);
    if (l->entry->optional && l->source == TWS_NONE) continue;
    l->buffer = tws_training_buffer(plan, plan->state->entries[held[i].held].name);
    if (held[i].param != TWS_NONE && plan->network->params[held[i].param].frozen) continue;
    if (held[i].param == TWS_NONE) {
      TWS_TRY(load_own(l, &held[i], err));
      continue;
    }
    for (uint64_t done = 0; done < held[i].count; done += CHUNK) {
      const uint64_t left = held[i].count - done;
      tws_watchdog_count_progress(l->t->watchdog);
      TWS_TRY(load_run(l, &held[i], done, left < CHUNK ? left : CHUNK, err));
    }
  }
  return TWS_OK;
}

tws_code tws_resume_load(tws_training *t, tws_error *err) {
  loader l = {.t = t};
  tws_arena *arena = tws_arena_create();
  tws_piece *held = NULL;
  uint32_t count = 0;
  const double start = tws_clock_s();
  tws_code code = arena ? tws_pieces_of(t->plan, arena, &held, &count, err)
                        : tws_fail(err, TWS_MEMORY, NULL, "no memory to read a checkpoint with");
  if (code == TWS_OK) code = tws_saved_reader_open(t->resumed, &l.reader, err);
  if (code == TWS_OK) {
    if (t->fetches) l.reader.fetch = tws_remote_file_fetch;
    l.reader.user = t;
    l.values = tws_calloc(CHUNK, sizeof(double));
    code = l.values ? load_pieces(&l, held, count, err)
                    : tws_fail(err, TWS_MEMORY, NULL, "no memory to read a checkpoint with");
    tws_saved_reader_close(&l.reader);
  }
  tws_free(l.values);
  tws_arena_destroy(arena);
  if (code == TWS_OK && t->fetches) code = tws_remote_file_fetch_end(t, err);
  if (code == TWS_OK && t->far_readers) code = tws_remote_file_serve(t, err);
  if (code == TWS_OK && t->rank == 0)
    tws_log_write(t->options->log, TWS_LOG_INFO, "%s step %" PRId64 " of %s (read in %.3g s)",
                  t->weights_only ? "weights of" : "continues after", t->resumed->counters.steps, t->resumed->path,
                  tws_clock_s() - start);
  return code;
}
