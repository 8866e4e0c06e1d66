#include "estimators/ends.h"

#include <string.h>

#include "estimators/overlap.h"
#include "plan/pipeline_grid.h"

typedef struct stage_end { /* of a configuration, but for its virtual stages */
  tws_stage_layers of;
  tws_tail_pieces pieces;
  struct stage_end *next;
} stage_end;

typedef struct partition { /* of layers into blocks */
  int *bounds, blocks;
  int alike_first, alike_end;
  uint32_t *layer_modules; /* see tws_tail_pieces */
} partition;

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the ends of steps");
}

/* Where each layer begins in the network; NULL: its modules do not follow one another. */
static uint32_t *layer_modules_of(const tws_plan_sample *sample, tws_arena *arena) {
  const uint32_t modules = sample->plan->network->module_count;
  uint32_t *first = tws_arena_alloc(arena, (size_t)sample->layer_count + 1, sizeof *first);
  int layer = -1;
  for (uint32_t m = 0; m < modules && first; m++) {
    const int own = sample->layer_of[m];
    if (own != layer && own != layer + 1) return NULL;
    if (own != layer) first[own] = m;
    layer = own;
  }
  if (first) first[sample->layer_count] = modules;
  return layer + 1 == sample->layer_count ? first : NULL;
}

static tws_code keep_partition(tws_ends *c, const tws_plan_sample *sample, partition *cut, tws_error *err) {
  const size_t count = (size_t)sample->block_count + 1;
  cut->bounds = tws_arena_alloc(c->arena, count, sizeof *cut->bounds);
  if (!cut->bounds) return no_memory(err);
  memcpy(cut->bounds, sample->bounds, count * sizeof *cut->bounds);
  cut->blocks = sample->block_count;
  cut->alike_first = sample->alike_first;
  cut->alike_end = sample->alike_end;
  cut->layer_modules = layer_modules_of(sample, c->arena);
  return TWS_OK;
}

/* The ends of the stages of one step. */
typedef struct making {
  tws_ends *c;
  const tws_plan_request *request;
  const tws_rank_kind *ranks;
  const tws_piece_key *key; /* a tail's */
  int in_step;              /* stages 2 and 3 reduce and gather beside the layers (estimators/beside.h) */
  int stages, apart;        /* apart: reductions are made for each size of buckets, and the rest without them */
  int overlaps;             /* they run beside the last backward pass */
  int ordered;              /* the end has other streams: the order of its operations is looked for */
  partition *cut;
  stage_end *known;        /* without these */
  int runs;                /* see tws_step_ends */
  tws_end_rank *end_ranks; /* [line][stage]: which are to be run; NULL: they are not */
} making;

static tws_code sample_line(const making *m, int line, int stage, int reduced, tws_tail_pieces *out, tws_error *err) {
  tws_ends *c = m->c;
  partition *cut = m->cut;
  tws_plan_request r = *m->request;
  tws_plan_sample sample;
  tws_config alone = *m->request->config;
  r.rank = tws_pipeline_grid_stage(&r.topology, m->ranks->lines[line], stage);
  if (m->in_step || (m->overlaps && reduced)) { /* it begins when all is reduced */
    alone.zero.overlap_comm = 0;
    r.config = &alone;
  }
  const int shared = reduced && line == 0 && !tws_config_offloads(r.config);
  const tws_sample_request wanted = {.plan = &r,
                                     .tail = 1,
                                     .reduced = reduced,
                                     .bounds = cut->bounds,
                                     .ordered = m->ordered,
                                     .alike_known = cut->bounds != NULL,
                                     .memory = c->memory};
  if (shared)
    TWS_TRY(tws_moves_tail(&c->moves, &r, m->key, cut->bounds, &sample, err));
  else
    TWS_TRY(tws_plan_sample_make(&wanted, &sample, err));
  tws_code code = tws_pieces_of_tail(&sample, c->costs, m->ranks->apart, c->arena, out, err);
  if (!cut->bounds && code == TWS_OK) code = keep_partition(c, &sample, cut, err);
  out->alike_first = cut->alike_first;
  out->alike_end = cut->alike_end;
  out->layer_modules = cut->layer_modules;
  if (!shared) {
    tws_plan_sample_free(&sample);
    c->lowered++;
  }
  return code;
}

/* Of all lines of ranks. */
static tws_code sample_tail(const making *m, int stage, int reduced, tws_tail_pieces *out, tws_error *err) {
  const int count = m->ranks->line_count - 1;
  TWS_TRY(sample_line(m, 0, stage, reduced, out, err));
  if (!count) return TWS_OK;
  tws_tail_pieces *others = tws_arena_alloc(m->c->arena, (size_t)count, sizeof *others);
  if (!others) return no_memory(err);
  for (int i = 0; i < count; i++) TWS_TRY(sample_line(m, i + 1, stage, reduced, &others[i], err));
  out->others = others;
  out->other_count = count;
  return TWS_OK;
}

/* What micro-batches move. */
static tws_code add_moves(const making *m, int stage, tws_tail_pieces *t, tws_error *err) {
  tws_kept_moves *moves = &m->c->moves;
  TWS_TRY(tws_moves_of_micro_batches(moves, m->request, m->key, t, err));
  if (!t->other_count || m->request->config->zero.stage < 2) return TWS_OK;
  tws_tail_pieces *others = tws_arena_alloc(m->c->arena, (size_t)t->other_count, sizeof *others);
  if (!others) return no_memory(err);
  memcpy(others, t->others, (size_t)t->other_count * sizeof *others);
  for (int i = 0; i < t->other_count; i++) {
    tws_plan_request r = *m->request;
    tws_piece_key key = *m->key;
    r.rank = tws_pipeline_grid_stage(&r.topology, m->ranks->lines[i + 1], stage);
    key.place = i + 1;
    others[i].in_step = t->in_step;
    others[i].runs = t->runs;
    TWS_TRY(tws_moves_of_micro_batches(moves, &r, &key, &others[i], err));
  }
  t->others = others;
  return TWS_OK;
}

/* Reductions are the same of all lines, unless they lie unevenly on nodes. */
static tws_code add_reductions(const making *m, int stage, const tws_stage_layers *k, tws_tail_pieces *out,
                               tws_error *err) {
  tws_plan_request r = *m->request;
  r.rank = tws_pipeline_grid_stage(&r.topology, 0, stage);
  TWS_TRY(tws_moves_that_wait(&m->c->moves, &r, m->key, k, m->cut->bounds, out, err));
  if (!out->other_count) return TWS_OK;
  tws_tail_pieces *others = tws_arena_alloc(m->c->arena, (size_t)out->other_count, sizeof *others);
  if (!others) return no_memory(err);
  memcpy(others, out->others, (size_t)out->other_count * sizeof *others);
  for (int i = 0; i < out->other_count; i++) {
    tws_piece_key key = *m->key;
    others[i].overlaps = out->overlaps;
    others[i].runs = out->runs;
    others[i].between = out->between;
    if (m->ranks->uneven) {
      r.rank = tws_pipeline_grid_stage(&r.topology, m->ranks->lines[i + 1], stage);
      key.place = i + 1;
    }
    TWS_TRY(tws_moves_that_wait(&m->c->moves, &r, &key, k, m->cut->bounds, &others[i], err));
  }
  out->others = others;
  return TWS_OK;
}

/* The end of one rank, with all that is beside it. */
static tws_code sample_rank(const making *m, int line, int stage, tws_plan_sample *out, tws_error *err) {
  tws_plan_request r = *m->request;
  r.rank = tws_pipeline_grid_stage(&r.topology, m->ranks->lines[line], stage);
  const tws_sample_request wanted = {
      .plan = &r, .tail = 1, .bounds = m->cut->bounds, .ordered = 1, .alike_known = 1, .memory = m->c->memory};
  m->c->lowered++;
  return tws_plan_sample_make(&wanted, out, err);
}

/* In one queue copies to the host stand behind the reductions that are between the layers. */
static tws_code add_copies(const making *m, int stage, tws_tail_pieces *out, tws_error *err) {
  tws_tail_pieces *others = tws_arena_alloc(m->c->arena, (size_t)out->other_count + 1, sizeof *others);
  if (!others) return no_memory(err);
  if (out->other_count) memcpy(others, out->others, (size_t)out->other_count * sizeof *others);
  out->others = others;
  for (int line = 0; line <= out->other_count; line++) {
    tws_tail_pieces *t = line ? &others[line - 1] : out;
    tws_plan_sample sample;
    const uint32_t count = t->overlapped ? t->overlapped->count : 0;
    double *seconds = tws_arena_alloc(m->c->arena, count + 1u, sizeof *seconds);
    if (!seconds) return no_memory(err);
    TWS_TRY(sample_rank(m, line, stage, &sample, err));
    t->exact &= tws_end_copies(&sample, m->c->costs, count, seconds);
    t->copied = seconds;
    tws_plan_sample_free(&sample);
  }
  return TWS_OK;
}

static void add_layers(tws_stage_layers *k, int first, int end) {
  if (first >= end) return;
  if (k->other_count && k->others[k->other_count - 1] == first) {
    k->others[k->other_count - 1] = end;
    return;
  }
  k->others[k->other_count++] = first;
  k->others[k->other_count++] = end;
}

/* 0: its layers lie in too many places. */
static int class_of(const partition *cut, int stage, int stages, tws_stage_layers *k) {
  memset(k, 0, sizeof *k);
  for (int b = stage; b < cut->blocks; b += stages) {
    const int first = cut->bounds[b], end = cut->bounds[b + 1];
    const int from = first > cut->alike_first ? first : cut->alike_first;
    const int to = end < cut->alike_end ? end : cut->alike_end;
    if (k->other_count > (int)(sizeof k->others / sizeof *k->others) - 4) return 0;
    if (to > from) k->alike += to - from;
    add_layers(k, first, end < cut->alike_first ? end : cut->alike_first);
    add_layers(k, first > cut->alike_end ? first : cut->alike_end, end);
  }
  return 1;
}

/* The chunks are the stage's own. */
static tws_code give_chunks(tws_ends *c, const partition *cut, int stage, int stages, tws_tail_pieces *t,
                            tws_error *err) {
  t->chunk_count = cut->blocks / stages;
  t->chunks = tws_arena_alloc(c->arena, (size_t)t->chunk_count, sizeof *t->chunks);
  if (!t->chunks) return no_memory(err);
  for (int i = 0; i < t->chunk_count; i++)
    t->chunks[i] = (tws_sample_chunk){cut->bounds[i * stages + stage], cut->bounds[i * stages + stage + 1]};
  return TWS_OK;
}

/* Of one stage: lowered, or known of one that has equal layers. */
static tws_code find_end(making *m, int stage, tws_tail_pieces *out, tws_error *err) {
  tws_stage_layers k;
  int lowered = 0;
  if (!m->cut->bounds) {
    TWS_TRY(sample_tail(m, stage, m->apart, out, err));
    lowered = 1;
  }
  if (!class_of(m->cut, stage, m->stages, &k))
    return lowered && !m->apart ? TWS_OK : sample_tail(m, stage, 0, out, err);
  stage_end *e = m->known;
  while (e && memcmp(&e->of, &k, sizeof k) != 0) e = e->next;
  if (e) {
    *out = e->pieces;
    TWS_TRY(give_chunks(m->c, m->cut, stage, m->stages, out, err));
  } else {
    if (!lowered) TWS_TRY(sample_tail(m, stage, m->apart, out, err));
    tws_moves_are_of(&m->c->moves, &k);
    e = tws_arena_alloc(m->c->arena, 1, sizeof *e);
    if (!e) return no_memory(err);
    *e = (stage_end){k, *out, m->known};
    m->known = e;
  }
  out->overlaps |= m->overlaps;
  out->between = m->overlaps && m->c->costs->serial;
  out->in_step = m->in_step && out->gathers;
  if (m->in_step && !out->gathers) { /* what is beside the update is not known */
    m->in_step = 0;
    TWS_TRY(sample_tail(m, stage, 0, out, err));
  }
  if (!m->apart) return TWS_OK;
  TWS_TRY(add_reductions(m, stage, &k, out, err));
  if (!m->overlaps) return TWS_OK;
  if (out->overlapped) return tws_config_offloads(m->request->config) ? add_copies(m, stage, out, err) : TWS_OK;
  TWS_TRY(sample_tail(m, stage, 0, out, err)); /* what more there is beside it is not known */
  out->overlaps = 1;
  out->between = m->c->costs->serial;
  return TWS_OK;
}

/* Whether copies of gradients to the host wait for all reductions: else they go between them, or these in an order that
 * the moves of a step have not (plan/offload.c). */
static int copies_behind(const tws_plan_request *request) {
  const tws_topology *t = &request->topology;
  const int later = tws_topology_size(t, TWS_AXES_PIPE) > 1 || tws_topology_size(t, 1u << TWS_AXIS_MODEL) > 1;
  return later && !tws_network_has_experts(request->network);
}

/* Where streams run beside the one that computes, ranks that differ end together, and those that reduce beside passes.
 */
static int has_run(const tws_ends *c, const tws_plan_request *request, const making *m) {
  if (!tws_config_offloads(request->config) || c->costs->serial) return 0;
  if (tws_offloads_behind(request)) return m->ranks->line_count > 1 || m->overlaps;
  return tws_offloads_in_step(request) && m->stages == 1;
}

/* At stage 1 the ranks that share parameters reduce gradients of the last micro-batch: behind or beside it. */
static void find_reductions(const tws_ends *c, const tws_plan_request *request, const tws_piece_key *key, int alone,
                            making *m) {
  const tws_axes replicas = tws_axes_that_divide(TWS_DIVIDES_SAMPLES) | tws_axes_that_divide(TWS_DIVIDES_TOKENS);
  const tws_zero_config *z = &key->config.zero;
  const int reduces = z->stage == 1 && tws_topology_size(&request->topology, replicas) > 1;
  /* in one queue they are between the layers, where ranks that differ wait for each other */
  m->overlaps = reduces && z->overlap_comm && (!c->costs->serial || (m->ranks->line_count > 1 && m->stages == 1));
  m->ordered = z->stage == 0 && z->overlap_comm && m->stages == 1;
  m->runs = has_run(c, request, m);
  if (tws_config_offloads(request->config)) m->ordered = !m->runs && (!c->costs->serial || !m->overlaps);
  const int uneven = m->ranks->uneven && !m->overlaps;
  m->apart = reduces && !uneven && (alone || m->stages == 1); /* else stages are lowered one by one */
  const int offloads = tws_config_offloads(request->config), several = m->ranks->line_count > 1;
  const int between = m->overlaps && c->costs->serial;
  if (offloads && !between && (m->overlaps || several || !copies_behind(request))) m->apart = 0;
  m->in_step = alone && z->stage >= 2 && z->overlap_comm && !c->costs->serial && m->stages == 1 &&
               tws_topology_size(&request->topology, replicas) > 1 && !tws_config_offloads(request->config);
}

static tws_code make_tails(tws_ends *c, const tws_plan_request *request, const tws_piece_key *key,
                           const tws_rank_kind *ranks, tws_step_ends *t, tws_error *err) {
  tws_piece_key of_cut = *key, of_end;
  int is_new;
  t->stages = tws_topology_size(&request->topology, TWS_AXES_PIPE);
  const int alone = ranks->alone;
  making m = {.c = c, .request = request, .ranks = ranks, .key = key, .stages = t->stages};
  find_reductions(c, request, key, alone, &m);
  tws_end_key(key, &of_end);
  if (m.apart) of_end.config.zero.reduce_bucket_size = 0;
  if ((m.apart && !tws_config_offloads(request->config)) || m.in_step) of_end.config.zero.overlap_comm = 0;
  memset(&of_cut.config.zero, 0, sizeof of_cut.config.zero);
  tws_piece_entry *cuts = tws_piece_look_up(&c->partitions, &of_cut, &is_new);
  tws_piece_entry *ends = tws_piece_look_up(&c->stages, &of_end, &is_new);
  if (cuts && !cuts->value) cuts->value = tws_arena_alloc(c->arena, 1, sizeof(partition));
  t->stage = tws_arena_alloc(c->arena, (size_t)t->stages, sizeof *t->stage);
  if (!cuts || !ends || !cuts->value || !t->stage) return no_memory(err);
  m.cut = cuts->value;
  m.known = ends->value;
  t->runs = m.runs;
  /* parameters are dealt to ranks by their numbers in the whole network, and runs of an update are cut by that */
  const int deals = request->config->zero.round_robin_gradients && tws_config_offloads(request->config);
  const int apart = deals && t->stages > 1, one = (alone && !ranks->uneven) || t->stages == 1;
  if (apart) m.known = NULL;
  for (int s = 0; s < t->stages && t->code == TWS_OK; s++) {
    if (s > 0 && (apart || !one)) m.known = NULL; /* groups lie differently on nodes */
    t->code = find_end(&m, s, &t->stage[s], &t->refusal);
    if (t->stage[s].meetings >= t->most_met) t->most_met = t->stage[s].meetings + 1;
    if (t->code == TWS_OK) t->code = add_moves(&m, s, &t->stage[s], &t->refusal);
  }
  if (one && !apart) ends->value = m.known;
  return TWS_OK;
}

tws_code tws_ends_find(tws_ends *c, const tws_plan_request *request, const tws_rank_kind *of, const tws_step_ends **out,
                       tws_error *err) {
  tws_piece_key k;
  int is_new;
  tws_tail_key(request, &k);
  tws_piece_entry *e = tws_piece_look_up(&c->steps, &k, &is_new);
  if (!e) return no_memory(err);
  if (is_new) {
    e->value = tws_arena_alloc(c->arena, 1, sizeof(tws_step_ends));
    if (!e->value) return no_memory(err);
    TWS_TRY(make_tails(c, request, &k, of, e->value, err));
  }
  const tws_step_ends *t = e->value;
  if (t->code != TWS_OK) {
    if (err) *err = t->refusal;
    return t->code;
  }
  *out = t;
  return TWS_OK;
}

/* ---- runs of all ranks ---- */

static tws_code take_rank(const making *m, int line, int stage, tws_error *err) {
  tws_plan_sample sample;
  TWS_TRY(sample_rank(m, line, stage, &sample, err));
  const tws_code code = tws_end_rank_take(&sample, m->c->costs, &m->end_ranks[line * m->stages + stage], err);
  tws_plan_sample_free(&sample);
  return code;
}

static tws_code run_stage(const making *m, int stage, tws_tail_pieces *t, tws_error *err) {
  tws_stage_layers k;
  for (int line = 0; line < m->ranks->line_count; line++) TWS_TRY(take_rank(m, line, stage, err));
  t->runs = 1;
  if (m->overlaps && class_of(m->cut, stage, m->stages, &k)) TWS_TRY(add_reductions(m, stage, &k, t, err));
  return add_moves(m, stage, t, err);
}

tws_code tws_ends_run(tws_ends *c, const tws_plan_request *request, const tws_rank_kind *of, tws_error *err) {
  tws_piece_key k, of_cut;
  int is_new;
  tws_tail_key(request, &k);
  of_cut = k;
  memset(&of_cut.config.zero, 0, sizeof of_cut.config.zero);
  tws_step_ends *t = tws_piece_look_up(&c->steps, &k, &is_new)->value; /* they have been found */
  making m = {.c = c, .request = request, .ranks = of, .key = &k, .stages = t->stages};
  find_reductions(c, request, &k, of->alone, &m);
  m.cut = tws_piece_look_up(&c->partitions, &of_cut, &is_new)->value;
  const int count = of->line_count * t->stages;
  m.end_ranks = tws_calloc((size_t)count, sizeof *m.end_ranks);
  if (!m.end_ranks) return no_memory(err);
  tws_code code = TWS_OK;
  for (int s = 0; s < t->stages && code == TWS_OK; s++) code = run_stage(&m, s, &t->stage[s], err);
  const tws_code made = tws_end_run_create(m.end_ranks, count, &t->run, code == TWS_OK ? err : NULL);
  if (!t->run) return code == TWS_OK ? made : code;
  t->run->next = c->runs;
  c->runs = t->run;
  c->run_bytes += t->run->bytes;
  return code;
}

/* ---- going through them ---- */

void tws_expose(tws_composed_account *account, double times, const double *axis_s) {
  for (int axis = 0; axis < TWS_REPORT_COUNT; axis++)
    if (tws_report_has(axis)) account->axis_exposed_s[axis] += times * axis_s[tws_piece_axis(axis)];
}

/* Stages meet in a collective of theirs. */
static void meet(const tws_step_ends *ends, const tws_tails_run *s, const int *stages, int count) {
  tws_composed_account *account = s->account;
  double met = 0, seconds = 0;
  for (int k = 0; k < count; k++) {
    const int i = stages ? stages[k] : k;
    tws_rhythm_stage *stage = &s->stages[i];
    const double own = ends->stage[i].steps[s->at[i]].time.other;
    if (!stages && stage->messages_s > stage->compute_s) { /* one channel with messages */
      if (account) tws_rhythm_gap(stage, stage->compute_s, stage->messages_s);
      stage->compute_s = stage->messages_s;
    }
    if (stage->compute_s > met) met = stage->compute_s;
    if (own > seconds) seconds = own;
  }
  for (int k = 0; k < count; k++) {
    const int i = stages ? stages[k] : k;
    if (account) {
      account[i].bubble_s += met - s->stages[i].compute_s;
      account[i].axis_exposed_s[TWS_AXIS_PIPE] += seconds;
    }
    s->stages[i].compute_s = met + seconds;
    s->met_s[i * ends->most_met + s->met[i]++] = met + seconds;
    s->at[i]++;
  }
}

/* What a stage waits for besides, from when its meetings have ended. */
static void wait_aside(const tws_tail_paths *ends, const double *met_s, double stretch, tws_rhythm_stage *stage,
                       tws_composed_account *account) {
  for (int i = 0; i < ends->count; i++) {
    const tws_tail_path *p = &ends->items[i];
    const double from = p->after >= 0 ? met_s[p->after] : 0;
    const double end = from + stretch * p->time.kernel + p->time.other;
    if (end <= stage->compute_s) continue;
    double exposed_s[TWS_PIECE_AXES] = {0};
    if (p->exchanges) exposed_s[p->exchanges - 1] = end - stage->compute_s;
    if (account) tws_expose(account, 1, exposed_s);
    stage->compute_s = end;
  }
}

/* All stages go through their tails, and wait for each other where they share something. */
double tws_tails_go(const tws_step_ends *ends, const tws_tails_run *s) {
  const int stages = ends->stages;
  tws_composed_account *account = s->account;
  int *at = s->at;
  double last = 0;
  for (int i = 0; i < stages; i++) {
    at[i] = 0;
    s->met[i] = 1;
    s->met_s[i * ends->most_met] = s->stages[i].compute_s = s->end_s[0][i];
    s->stages[i].messages_s = s->end_s[1][i];
  }
  for (int moved = 1; moved;) {
    int all = 1, tied[2], tied_count = 0;
    moved = 0;
    for (int i = 0; i < stages; i++) {
      const tws_tail_pieces *t = &ends->stage[i];
      tws_rhythm_stage *stage = &s->stages[i];
      for (; at[i] < t->step_count && t->steps[at[i]].sync == TWS_TAIL_ALONE; at[i]++, moved = 1) {
        if (account) tws_expose(&account[i], 1, t->steps[at[i]].axis_s);
        if (account) account[i].bubble_s += t->steps[at[i]].waits_s;
        stage->compute_s += s->stretch[i] * t->steps[at[i]].time.kernel + t->steps[at[i]].time.other;
        wait_aside(&t->steps[at[i]].ends, &s->met_s[i * ends->most_met], s->stretch[i], stage,
                   account ? &account[i] : NULL);
      }
      const int sync = at[i] < t->step_count ? t->steps[at[i]].sync : TWS_TAIL_ALONE;
      all &= sync == TWS_TAIL_STAGES;
      if (sync == TWS_TAIL_TIED && tied_count < 2) tied[tied_count++] = i;
      if (stages == 1 && sync == TWS_TAIL_TIED) tied_count = 0;
    }
    if (tied_count == 2 || (all && stages > 1)) {
      meet(ends, s, tied_count == 2 ? tied : NULL, tied_count == 2 ? 2 : stages);
      moved = 1;
    }
  }
  for (int i = 0; i < stages; i++) {
    if (at[i] < ends->stage[i].step_count) return -1;
    if (s->stages[i].compute_s > last) last = s->stages[i].compute_s;
    if (s->stages[i].messages_s > last) last = s->stages[i].messages_s;
  }
  return last;
}

void tws_ends_free(tws_ends *c) {
  tws_piece_table_free(&c->steps);
  tws_piece_table_free(&c->stages);
  tws_piece_table_free(&c->partitions);
  tws_kept_moves_free(&c->moves);
  for (tws_end_run *next; c->runs; c->runs = next) {
    next = c->runs->next;
    tws_end_run_destroy(c->runs);
  }
}
