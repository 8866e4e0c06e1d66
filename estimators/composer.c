#include "estimators/composer.h"

#include <string.h>

#include "estimators/rhythm.h"
#include "plan/fold.h"
#include "plan/pipeline_grid.h"
#include "plan/representatives.h"

/* ---- keys ---- */

/* Everything that a piece may depend on; what it does not depend on is set to zero. */
typedef struct key {
  const tws_network *network;
  tws_config config;
  tws_topology topology;
  int spread[TWS_AXIS_COUNT]; /* bodies: members of the axis' group on the node of the first */
  int backend, threads, bounded, split;
} key;

typedef struct entry {
  uint64_t hash;
  key key;
  void *value;
} entry;

typedef struct table {
  entry **slots;
  size_t count, size;
} table;

static uint64_t hash_of(const void *data, size_t bytes) {
  const unsigned char *at = data;
  uint64_t hash = 0x9e3779b97f4a7c15u;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word;
    memcpy(&word, at, 8);
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 29;
  }
  for (; bytes; bytes--) hash = (hash ^ *at++) * 0xc4ceb9fe1a85ec53u;
  return hash;
}

static entry *find(const table *t, const key *k, uint64_t hash) {
  if (!t->size) return NULL;
  for (size_t i = hash & (t->size - 1); t->slots[i]; i = (i + 1) & (t->size - 1))
    if (t->slots[i]->hash == hash && memcmp(&t->slots[i]->key, k, sizeof *k) == 0) return t->slots[i];
  return NULL;
}

static int grow(table *t) {
  const size_t size = t->size ? 2 * t->size : 256;
  entry **slots = tws_calloc(size, sizeof *slots);
  if (!slots) return 0;
  for (size_t i = 0; i < t->size; i++) {
    if (!t->slots[i]) continue;
    size_t at = t->slots[i]->hash & (size - 1);
    while (slots[at]) at = (at + 1) & (size - 1);
    slots[at] = t->slots[i];
  }
  tws_free(t->slots);
  t->slots = slots;
  t->size = size;
  return 1;
}

/* ---- what is kept ---- */

/* Alike layers of a sample that stands for any number of them: the first, two between, the last. */
enum { SAMPLED = 4 };

/* What a chunk begins and ends with. */
typedef struct range {
  int first, end; /* pipeline layers */
  int goes_on;    /* see tws_sample_request */
} range;

typedef struct body_sample {
  range of;
  tws_code code; /* not lowered: why */
  tws_sample_pieces pieces;
  struct body_sample *next;
} body_sample;

typedef struct body {
  body_sample *samples;
} body;

typedef struct tails {
  tws_code code; /* refused: why */
  tws_error refusal;
  tws_tail_pieces *stage;
  int stages, chunks;
} tails;

typedef struct programs {
  tws_pipeline_shape shape;
  tws_pipeline_program *stage;
  struct programs *next;
} programs;

typedef struct ranks { /* of a topology */
  tws_topology topology;
  int differ, alone; /* stage 3; whether one rank stands for each stage */
  int spread[TWS_AXIS_COUNT];
  struct ranks *next;
} ranks;

struct tws_composer {
  const tws_machine *machine;
  tws_costs costs;
  tws_arena *arena;
  table bodies, tails;
  programs *programs;
  size_t program_bytes;
  tws_arena *program_arena;
  ranks *ranks;
  tws_composer_counts counts;
};

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for composed steps");
}

static double work_seconds(void *user, const tws_plan *plan, uint32_t work) {
  return tws_plan_work_seconds(plan, work, user, 1);
}

static double message_seconds(void *user, const tws_topology *topology, int rank, int peer, uint64_t bytes) {
  const tws_machine *machine = user;
  const tws_node_mapping mapping = tws_machine_mapping(machine, tws_topology_world(topology));
  const int same_node = tws_mapping_node(&mapping, rank) == tws_mapping_node(&mapping, peer);
  const int sharers = tws_mapping_sharers(&mapping, topology, rank, peer);
  return tws_p2p_seconds(machine->cluster, machine->profile, same_node, (double)bytes * sharers);
}

tws_code tws_composer_create(const tws_machine *machine, const tws_costs *others, tws_composer **out, tws_error *err) {
  tws_composer *c = tws_calloc(1, sizeof *c);
  *out = c;
  if (c) c->arena = tws_arena_create();
  if (c) c->program_arena = tws_arena_create();
  if (!c || !c->arena || !c->program_arena) {
    tws_composer_destroy(c);
    *out = NULL;
    return no_memory(err);
  }
  c->machine = machine;
  c->costs = others ? *others
                    : (tws_costs){.work = work_seconds,
                                  .message = message_seconds,
                                  .host_op_s = tws_profile_host_op_s(machine->profile),
                                  .serial = tws_profile_serial_streams(machine->profile),
                                  .user = (void *)(uintptr_t)machine};
  return TWS_OK;
}

static void free_table(table *t) {
  for (size_t i = 0; i < t->size; i++) tws_free(t->slots[i]);
  tws_free(t->slots);
}

void tws_composer_destroy(tws_composer *c) {
  if (!c) return;
  free_table(&c->bodies);
  free_table(&c->tails);
  tws_arena_destroy(c->arena);
  tws_arena_destroy(c->program_arena);
  tws_free(c);
}

tws_composer_counts tws_composer_count(const tws_composer *c) {
  return c->counts;
}

static int is_same(const tws_topology *a, const tws_topology *b) {
  if (a->axes != b->axes) return 0;
  for (int i = 0; i < a->axes; i++)
    if (a->axis[i] != b->axis[i] || a->dim[i] != b->dim[i]) return 0;
  return 1;
}

static int beside_first(const tws_node_mapping *m, const tws_topology *t, tws_axes axes) {
  const int size = tws_topology_size(t, axes), node = tws_mapping_node(m, 0);
  int count = 0;
  for (int i = 0; i < size; i++) count += tws_mapping_node(m, tws_topology_member(t, 0, axes, i)) == node;
  return count;
}

static tws_code find_ranks(tws_composer *c, const tws_plan_request *request, const ranks **out, tws_error *err) {
  const int differ = request->config->zero.stage == 3;
  const tws_topology *t = &request->topology;
  for (ranks *r = c->ranks; r; r = r->next)
    if (r->differ == differ && is_same(&r->topology, t)) {
      *out = r;
      return TWS_OK;
    }
  const tws_node_mapping mapping = tws_machine_mapping(c->machine, tws_topology_world(t));
  tws_rank_set set;
  ranks *r = tws_arena_alloc(c->arena, 1, sizeof *r);
  if (!r) return no_memory(err);
  TWS_TRY(tws_representatives(t, &mapping, request->config->zero.stage, &set, err));
  *r = (ranks){
      .topology = *t, .differ = differ, .alone = set.count == tws_topology_size(t, TWS_AXES_PIPE), .next = c->ranks};
  tws_rank_set_free(&set);
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++) r->spread[axis] = beside_first(&mapping, t, 1u << axis);
  c->ranks = r;
  *out = r;
  return TWS_OK;
}

/* What no piece depends on. */
static void begin_key(const tws_plan_request *request, key *k) {
  memset(k, 0, sizeof *k);
  k->network = request->network;
  k->backend = (int)request->backend;
  k->threads = request->threads;
  memcpy(&k->config, request->config, sizeof k->config);
  tws_config *config = &k->config;
  config->store = NULL;
  config->train_batch_size = config->accumulation_steps = config->ranks = config->steps_per_print = 0;
  config->pipeline_schedule = 0;
}

/* Gradients that are whole until the end of the step, so that micro-batches move none. */
static int is_flat(const tws_plan_request *request) {
  const tws_axes replicas = tws_axes_that_divide(TWS_DIVIDES_SAMPLES) | tws_axes_that_divide(TWS_DIVIDES_TOKENS);
  const tws_zero_config *z = &request->config->zero;
  if (z->offload_optimizer && z->stage >= 2) return 0;
  return z->stage <= 1 || tws_topology_size(&request->topology, replicas) == 1;
}

static void body_key(const tws_plan_request *request, const ranks *r, int split, key *k) {
  begin_key(request, k);
  tws_config *config = &k->config;
  const int stage = is_flat(request) ? 0 : config->zero.stage;
  memset(&config->zero, 0, sizeof config->zero);
  config->zero.stage = stage;
  config->pipeline_stages = config->virtual_stages = 0;
  config->pipeline_partition = NULL;
  k->bounded = stage > 0;
  k->split = split;
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++) {
    if (axis == TWS_AXIS_PIPE || axis == TWS_AXIS_DATA) continue;
    k->spread[axis] = (r->spread[axis] << 16) + tws_topology_size(&request->topology, 1u << axis);
  }
}

static void tail_key(const tws_plan_request *request, key *k) {
  begin_key(request, k);
  tws_config *config = &k->config;
  config->micro_batch_size = 0;
  config->recompute = (tws_recompute)0;
  config->loss_tiles = config->mlp_tiles = config->attention_chunks = 0;
  k->topology.axes = request->topology.axes;
  for (int i = 0; i < request->topology.axes; i++) {
    k->topology.axis[i] = request->topology.axis[i];
    k->topology.dim[i] = request->topology.dim[i];
  }
  if (tws_topology_size(&request->topology, TWS_AXES_PIPE) > 1) config->zero.overlap_comm = 0;
}

static entry *look_up(table *t, const key *k, int *is_new) {
  const uint64_t hash = hash_of(k, sizeof *k);
  entry *e = find(t, k, hash);
  *is_new = !e;
  if (e) return e;
  if (2 * t->count + 2 > t->size && !grow(t)) return NULL;
  e = tws_calloc(1, sizeof *e);
  if (!e) return NULL;
  e->hash = hash;
  memcpy(&e->key, k, sizeof *k);
  size_t at = hash & (t->size - 1);
  while (t->slots[at]) at = (at + 1) & (t->size - 1);
  t->slots[at] = e;
  t->count++;
  return e;
}

/* ---- tails ---- */

static tws_code sample_tail(tws_composer *c, const tws_plan_request *request, int stage, tws_tail_pieces *out,
                            tws_error *err) {
  tws_plan_request r = *request;
  tws_plan_sample sample;
  r.rank = tws_pipeline_grid_stage(&r.topology, 0, stage);
  TWS_TRY(tws_plan_sample_make(&(tws_sample_request){.plan = &r, .tail = 1}, &sample, err));
  const tws_code code = tws_pieces_of_tail(&sample, &c->costs, c->arena, out, err);
  tws_plan_sample_free(&sample);
  c->counts.tails++;
  return code;
}

static tws_code find_tails(tws_composer *c, const tws_plan_request *request, const tails **out, tws_error *err) {
  key k;
  int is_new;
  tail_key(request, &k);
  entry *e = look_up(&c->tails, &k, &is_new);
  if (!e) return no_memory(err);
  if (is_new) {
    tails *t = e->value = tws_arena_alloc(c->arena, 1, sizeof *t);
    if (!t) return no_memory(err);
    t->stages = tws_topology_size(&request->topology, TWS_AXES_PIPE);
    t->stage = tws_arena_alloc(c->arena, (size_t)t->stages, sizeof *t->stage);
    if (!t->stage) return no_memory(err);
    for (int s = 0; s < t->stages && t->code == TWS_OK; s++)
      t->code = sample_tail(c, request, s, &t->stage[s], &t->refusal);
  }
  const tails *t = e->value;
  if (t->code != TWS_OK) {
    if (err) *err = t->refusal;
    return t->code;
  }
  *out = t;
  return TWS_OK;
}

/* ---- bodies ---- */

static tws_code find_sample(tws_composer *c, const tws_plan_request *request, body *b, range of, int split, int bounded,
                            const tws_sample_pieces **out, tws_error *err) {
  for (body_sample *s = b->samples; s; s = s->next)
    if (s->of.first == of.first && s->of.end == of.end && s->of.goes_on == of.goes_on) {
      *out = &s->pieces;
      return s->code == TWS_OK ? TWS_OK : tws_fail(err, s->code, NULL, "a part of the model cannot be sampled");
    }
  const tws_sample_request wanted = {
      .plan = request, .first_layer = of.first, .end_layer = of.end, .goes_on = of.goes_on, .split = split};
  tws_plan_sample sample;
  body_sample *s = tws_arena_alloc(c->arena, 1, sizeof *s);
  if (!s) return no_memory(err);
  s->of = of;
  s->next = b->samples;
  b->samples = s;
  s->code = tws_plan_sample_make(&wanted, &sample, err);
  c->counts.bodies++;
  TWS_TRY(s->code);
  s->code = tws_pieces_of_body(&sample, &wanted, &c->costs, bounded, c->arena, &s->pieces, err);
  tws_plan_sample_free(&sample);
  *out = &s->pieces;
  return s->code;
}

static int same_piece(const tws_piece *a, const tws_piece *b) {
  return a->time.kernel == b->time.kernel && a->time.other == b->time.other && a->launches == b->launches &&
         a->delta == b->delta && a->before == b->before && a->after == b->after && a->begins == b->begins &&
         a->point_count == 0 && b->point_count == 0;
}

/* Whether the sample's layers between are alike indeed, so that any number of them can be. */
static int repeats(const tws_sample_pieces *s, int between) {
  const int at = between - s->first_layer;
  for (int later = 0; later < 2; later++)
    for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
      if (e != TWS_CONTEXT_FORWARD && e != TWS_CONTEXT_BACKWARD && e != TWS_CONTEXT_WEIGHT) continue;
      if (!s->whole.has[e]) continue;
      if (!s->layer[later][e] || !same_piece(&s->layer[later][e][at], &s->layer[later][e][at + 1])) return 0;
    }
  return s->closed;
}

/* Layers [from, end) of a sample, behind (or, backward, before) what is there. */
static int append_layers(const tws_sample_pieces *s, int later, int e, int from, int end, tws_piece *to) {
  const int down = e != TWS_CONTEXT_FORWARD;
  for (int i = from; i < end; i++) {
    const int layer = (down ? end - 1 - (i - from) : i) - s->first_layer;
    if (!tws_piece_append(to, &s->layer[later][e][layer])) return 0;
  }
  return 1;
}

/* One chunk from two samples: up to the second of `head`'s alike layers, so many between, from the last of `tail`'s
 * alike layers on. */
static int put_together(const tws_sample_pieces *head, int head_alike, const tws_sample_pieces *tail, int tail_alike,
                        int between, tws_chunk_pieces *out) {
  memset(out->has, 0, sizeof out->has);
  for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
    const int enters = e == TWS_CONTEXT_RECV || e == TWS_CONTEXT_SEND_GRADIENT;
    const int is_action = e == TWS_CONTEXT_FORWARD || e == TWS_CONTEXT_BACKWARD || e == TWS_CONTEXT_WEIGHT;
    const tws_sample_pieces *of = enters ? head : tail;
    if (!of->whole.has[e]) continue;
    out->has[e] = 1;
    out->message_bytes[e] = of->whole.message_bytes[e];
    out->message_buffer[e] = of->whole.message_buffer[e];
    for (int later = 0; later < 2; later++) {
      tws_piece *to = &out->event[later][e];
      if (!is_action) {
        *to = of->whole.event[later][e];
        continue;
      }
      const tws_piece middle = tws_piece_repeat(&head->layer[later][e][head_alike + 1 - head->first_layer], between);
      *to = tws_piece_empty();
      int good;
      if (e == TWS_CONTEXT_FORWARD)
        good = append_layers(head, later, e, head->first_layer, head_alike + 1, to) && tws_piece_append(to, &middle) &&
               append_layers(tail, later, e, tail_alike + SAMPLED - 1, tail->first_layer + tail->layers, to);
      else
        good = append_layers(tail, later, e, tail_alike + SAMPLED - 1, tail->first_layer + tail->layers, to) &&
               tws_piece_append(to, &middle) && append_layers(head, later, e, head->first_layer, head_alike + 1, to);
      if (!good) return 0;
    }
  }
  out->buffers = tail->whole.buffers > head->whole.buffers ? tail->whole.buffers : head->whole.buffers;
  memcpy(out->slot_bytes, (head == tail || head->whole.buffers > 0 ? head : tail)->whole.slot_bytes,
         sizeof out->slot_bytes);
  return 1;
}

typedef struct chunk_of {
  range of;
  int exact, closed;
  double input_bytes;
  tws_chunk_pieces pieces;
} chunk_of;

/* From samples of few layers; 0: it is not regular enough. */
static int compose_chunk(tws_composer *c, const tws_plan_request *request, body *b, const tws_tail_pieces *t, int split,
                         int bounded, chunk_of *chunk) {
  const int first = chunk->of.first, end = chunk->of.end;
  const int from = first > t->alike_first ? first : t->alike_first, to = end < t->alike_end ? end : t->alike_end;
  const int prefix = first<t->alike_first, suffix = end> t->alike_end, alike = to - from;
  if (alike <= SAMPLED || t->alike_end - t->alike_first < SAMPLED + 2) return 0;
  const tws_sample_pieces *head = NULL, *tail = NULL;
  tws_error why = {0};
  /* a chunk in the middle stands anywhere but at the first alike layer */
  const int middle = first > t->alike_first ? t->alike_first + 1 : t->alike_first;
  const int head_alike = prefix ? t->alike_first : suffix ? t->alike_end - SAMPLED : middle;
  const int tail_alike = suffix ? t->alike_end - SAMPLED : head_alike;
  const range whole_head = {prefix ? first : head_alike, prefix || !suffix ? head_alike + SAMPLED : end,
                            prefix && suffix};
  if (find_sample(c, request, b, whole_head, split, bounded, &head, &why) != TWS_OK) return 0;
  tail = head;
  if (prefix && suffix &&
      find_sample(c, request, b, (range){tail_alike, end, 0}, split, bounded, &tail, &why) != TWS_OK)
    return 0;
  if (!repeats(head, head_alike + 1) || !repeats(tail, tail_alike + 1)) return 0;
  if (!put_together(head, head_alike, tail, tail_alike, alike - 2, &chunk->pieces)) return 0;
  chunk->exact = head->exact && tail->exact;
  chunk->closed = head->closed && tail->closed;
  chunk->input_bytes = head->input_bytes;
  return 1;
}

static tws_code find_chunk(tws_composer *c, const tws_plan_request *request, body *b, const tws_tail_pieces *t,
                           int split, int bounded, chunk_of *chunk, tws_error *err) {
  const tws_sample_pieces *whole = NULL;
  if (compose_chunk(c, request, b, t, split, bounded, chunk)) return TWS_OK;
  TWS_TRY(find_sample(c, request, b, chunk->of, split, bounded, &whole, err));
  chunk->pieces = whole->whole;
  chunk->exact = whole->exact;
  chunk->closed = whole->closed;
  chunk->input_bytes = whole->input_bytes;
  return TWS_OK;
}

/* ---- a step ---- */

typedef struct step {
  tws_composer *c;
  const tws_plan_request *request;
  const tails *tails;
  tws_pipeline_shape shape;
  chunk_of *chunks; /* those that differ */
  int chunk_count;
  int *chunk_at; /* [stage][virtual]: which */
  double *stretch;
  tws_rhythm_stage *stages;
  double *compute_s, *messages_s; /* per slot of a fold, stage */
  tws_arena *arena;
  int64_t *peak;
  int exact, closed;
} step;

static tws_code find_programs(tws_composer *c, const tws_pipeline_shape *shape, const tws_pipeline_program **out,
                              tws_error *err) {
  enum { KEPT_BYTES = 48 << 20 };
  for (programs *p = c->programs; p; p = p->next)
    if (p->shape.kind == shape->kind && p->shape.stages == shape->stages &&
        p->shape.virtual_stages == shape->virtual_stages && p->shape.micro_batches == shape->micro_batches) {
      *out = p->stage;
      return TWS_OK;
    }
  if (c->program_bytes > KEPT_BYTES) {
    tws_arena_destroy(c->program_arena);
    c->program_arena = tws_arena_create();
    c->programs = NULL;
    c->program_bytes = 0;
    if (!c->program_arena) return no_memory(err);
  }
  programs *p = tws_arena_alloc(c->program_arena, 1, sizeof *p);
  tws_pipeline_program *stage = tws_arena_alloc(c->program_arena, (size_t)shape->stages, sizeof *stage);
  if (!p || !stage) return no_memory(err);
  TWS_TRY(tws_pipeline_programs_make(shape, c->program_arena, stage, err));
  for (int s = 0; s < shape->stages; s++) c->program_bytes += stage[s].count * sizeof *stage[s].events;
  *p = (programs){*shape, stage, c->programs};
  c->programs = p;
  *out = stage;
  return TWS_OK;
}

static tws_code find_chunks(step *s, body *b, int split, int bounded, tws_error *err) {
  const int stages = s->shape.stages, v = s->tails->stage[0].chunk_count;
  s->chunks = tws_arena_alloc_unset(s->arena, (size_t)(stages * v), sizeof *s->chunks);
  s->chunk_at = tws_arena_alloc(s->arena, (size_t)(stages * v), sizeof *s->chunk_at);
  if (!s->chunks || !s->chunk_at) return no_memory(err);
  for (int i = 0; i < stages * v; i++) {
    const tws_tail_pieces *t = &s->tails->stage[i / v];
    const tws_sample_chunk *wanted = &t->chunks[i % v];
    range of = {wanted->first_layer, wanted->end_layer, 0};
    const int inside = of.first > t->alike_first && of.end <= t->alike_end;
    if (inside) of = (range){t->alike_first + 1, t->alike_first + 1 + of.end - of.first, 0}; /* stands anywhere */
    int at = 0;
    while (at < s->chunk_count && (s->chunks[at].of.first != of.first || s->chunks[at].of.end != of.end)) at++;
    if (inside && of.end > t->alike_end) return tws_fail(err, TWS_INTERNAL, NULL, "a chunk is longer than its layers");
    if (at == s->chunk_count) {
      s->chunks[at].of = of;
      TWS_TRY(find_chunk(s->c, s->request, b, t, split, bounded, &s->chunks[at], err));
      s->exact &= s->chunks[at].exact;
      s->closed &= s->chunks[at].closed;
      s->chunk_count++;
    }
    s->chunk_at[i] = at;
  }
  return TWS_OK;
}

static void add_piece(const tws_piece *p, double times, double *kernel, double *launches) {
  *kernel += times * p->time.kernel;
  *launches += times * p->launches;
}

/* tws_plan_host_stretch(), of a stage. */
static double stretch_of(const step *s, int stage) {
  const int v = s->tails->stage[stage].chunk_count;
  const tws_tail_pieces *t = &s->tails->stage[stage];
  double kernel = t->counted.kernel, launches = t->launches;
  if (!(s->c->costs.host_op_s > 0)) return 1;
  for (int i = 0; i < v; i++) {
    const tws_chunk_pieces *p = &s->chunks[s->chunk_at[stage * v + i]].pieces;
    for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
      if (!p->has[e]) continue;
      add_piece(&p->event[0][e], 1, &kernel, &launches);
      add_piece(&p->event[1][e], s->shape.micro_batches - 1, &kernel, &launches);
    }
  }
  const double host = launches * s->c->costs.host_op_s;
  return kernel > 0 && host > kernel ? host / kernel : 1;
}

static double message_of(void *user, int stage, int peer, uint64_t bytes) {
  const step *s = user;
  const tws_topology *t = &s->request->topology;
  return s->c->costs.message(s->c->costs.user, t, tws_pipeline_grid_stage(t, 0, stage),
                             tws_pipeline_grid_stage(t, 0, peer), bytes);
}

/* Alive in the forward and backward passes of a job without a pipeline, and when they end. */
static void run_alone(step *s, int bounded) {
  const tws_chunk_pieces *p = &s->chunks[0].pieces;
  const int64_t gradients = bounded ? 0 : (int64_t)s->tails->stage[0].gradient_bytes;
  double seconds = 0;
  int64_t peak = 0, begun = 0;
  for (int later = 0; later < 2; later++) {
    const double times = later ? s->shape.micro_batches - 1 : 1;
    if (later && times < 1) break;
    int64_t alive = 0;
    for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
      if (!p->has[e]) continue;
      const tws_piece *piece = &p->event[later][e];
      seconds += times * (s->stretch[0] * piece->time.kernel + piece->time.other);
      if (alive + begun + piece->before > peak) peak = alive + begun + piece->before;
      if (piece->begins) begun = gradients;
      if (alive + begun + piece->after > peak) peak = alive + begun + piece->after;
      alive += piece->delta;
    }
  }
  s->stages[0].compute_s = seconds;
  s->stages[0].messages_s = 0;
  s->stages[0].peak = peak;
  s->stages[0].held = begun;
}

static tws_code make_times(step *s, tws_error *err) {
  const int stages = s->shape.stages, v = s->tails->stage[0].chunk_count;
  for (int stage = 0; stage < stages; stage++) {
    const tws_chunk_times **list = tws_arena_alloc(s->arena, (size_t)v, sizeof *list);
    if (!list) return no_memory(err);
    for (int i = 0; i < v; i++) {
      const int at = stage * v + i;
      for (int before = 0; before < at && !list[i]; before++) /* most are as others are */
        if (s->chunk_at[before] == s->chunk_at[at] && s->stretch[before / v] == s->stretch[stage])
          list[i] = before / v == stage ? list[before % v] : s->stages[before / v].chunks[before % v];
      if (list[i]) continue;
      tws_chunk_times *times = tws_arena_alloc_unset(s->arena, 1, sizeof *times);
      if (!times) return no_memory(err);
      tws_chunk_times_of(&s->chunks[s->chunk_at[at]].pieces, s->stretch[stage], times);
      list[i] = times;
    }
    s->stages[stage].chunks = list;
    s->stages[stage].gradient_bytes = (int64_t)s->tails->stage[stage].gradient_bytes;
  }
  return TWS_OK;
}

static tws_code prepare_rhythm(step *s, int64_t micro_batches, tws_pipeline_shape *shape, tws_rhythm *r,
                               tws_error *err) {
  *shape = s->shape;
  shape->micro_batches = (int)micro_batches;
  *r =
      (tws_rhythm){.shape = shape, .stages = s->stages, .serial = s->c->costs.serial, .message = message_of, .user = s};
  return find_programs(s->c, shape, &r->programs, err);
}

static tws_code measure(void *user, int64_t micro_batches, int slot, tws_fold_sample *sample, tws_error *err) {
  step *s = user;
  tws_pipeline_shape shape;
  tws_rhythm r;
  TWS_TRY(prepare_rhythm(s, micro_batches, &shape, &r, err));
  TWS_TRY(tws_rhythm_bytes(&r, err));
  TWS_TRY(tws_rhythm_run(&r, err));
  *sample = (tws_fold_sample){.step_s = 0};
  s->c->counts.rhythms++;
  for (int i = 0; i < s->shape.stages; i++) {
    s->compute_s[slot * s->shape.stages + i] = s->stages[i].compute_s;
    s->messages_s[slot * s->shape.stages + i] = s->stages[i].messages_s;
    if (s->stages[i].compute_s > sample->step_s) sample->step_s = s->stages[i].compute_s;
    sample->bytes += (uint64_t)s->stages[i].peak;
  }
  return TWS_OK;
}

static tws_code run_pipeline(step *s, tws_error *err) {
  tws_folded folded;
  const int n = s->shape.stages;
  s->compute_s = tws_arena_alloc(s->arena, (size_t)(TWS_FOLD_SAMPLES * n), sizeof *s->compute_s);
  s->messages_s = tws_arena_alloc(s->arena, (size_t)(TWS_FOLD_SAMPLES * n), sizeof *s->messages_s);
  if (!s->compute_s || !s->messages_s) return no_memory(err);
  TWS_TRY(tws_fold_find(&s->shape, s->shape.micro_batches, measure, s, &folded, err));
  for (int i = 0; i < n; i++) {
    const double *c = s->compute_s + i, *m = s->messages_s + i;
    s->stages[i].compute_s = c[folded.slot * n] + folded.more * (c[folded.slot * n] - c[folded.before * n]);
    s->stages[i].messages_s = m[folded.slot * n] + folded.more * (m[folded.slot * n] - m[folded.before * n]);
  }
  return TWS_OK;
}

/* ---- the end of a step ---- */

/* All stages go through their tails, and wait for each other where they share something. */
static double run_tails(step *s) {
  const int stages = s->shape.stages;
  int *at = tws_arena_alloc(s->arena, (size_t)stages, sizeof *at);
  double last = 0;
  if (!at) return -1;
  for (int moved = 1; moved;) {
    int all = 1, tied[2], tied_count = 0;
    moved = 0;
    for (int i = 0; i < stages; i++) {
      const tws_tail_pieces *t = &s->tails->stage[i];
      tws_rhythm_stage *stage = &s->stages[i];
      for (; at[i] < t->step_count && t->steps[at[i]].sync == TWS_TAIL_ALONE; at[i]++, moved = 1)
        stage->compute_s += s->stretch[i] * t->steps[at[i]].time.kernel + t->steps[at[i]].time.other;
      const int sync = at[i] < t->step_count ? t->steps[at[i]].sync : TWS_TAIL_ALONE;
      all &= sync == TWS_TAIL_STAGES;
      if (sync == TWS_TAIL_TIED && tied_count < 2) tied[tied_count++] = i;
      if (stages == 1 && sync == TWS_TAIL_TIED) tied_count = 0;
    }
    double met = 0, seconds = 0;
    if (tied_count == 2) {
      for (int k = 0; k < 2; k++) {
        const double own = s->tails->stage[tied[k]].steps[at[tied[k]]].time.other;
        if (s->stages[tied[k]].compute_s > met) met = s->stages[tied[k]].compute_s;
        if (own > seconds) seconds = own;
      }
      for (int k = 0; k < 2; k++) {
        s->stages[tied[k]].compute_s = met + seconds;
        at[tied[k]]++;
      }
      moved = 1;
    } else if (all && stages > 1) {
      for (int i = 0; i < stages; i++) {
        const double own = s->tails->stage[i].steps[at[i]].time.other;
        if (s->stages[i].compute_s > met) met = s->stages[i].compute_s;
        if (s->stages[i].messages_s > met) met = s->stages[i].messages_s; /* one channel with messages */
        if (own > seconds) seconds = own;
      }
      for (int i = 0; i < stages; i++) {
        s->stages[i].compute_s = met + seconds;
        at[i]++;
      }
      moved = 1;
    }
  }
  for (int i = 0; i < stages; i++) {
    if (at[i] < s->tails->stage[i].step_count) return -1;
    if (s->stages[i].compute_s > last) last = s->stages[i].compute_s;
    if (s->stages[i].messages_s > last) last = s->stages[i].messages_s;
  }
  return last;
}

/* ---- all of it ---- */

static void find_bytes(step *s, int bounded, tws_composed *out) {
  for (int i = 0; i < s->shape.stages; i++) {
    const tws_tail_pieces *t = &s->tails->stage[i];
    const int64_t gradients = (int64_t)t->gradient_bytes;
    int64_t peak = s->stages[i].peak;
    /* parts of gradients are there from the second micro-batch on */
    if (bounded && s->shape.micro_batches > 1) peak += gradients;
    if (gradients + t->peak > peak) peak = gradients + t->peak;
    const double inputs = s->chunks[0].input_bytes * s->shape.micro_batches;
    const uint64_t live = t->state_bytes[TWS_TIER_DEVICE] + t->program_bytes + (uint64_t)inputs + (uint64_t)peak;
    const uint64_t host = t->state_bytes[TWS_TIER_PINNED] + t->state_bytes[TWS_TIER_HOST];
    if (live > out->live_bytes) out->live_bytes = live;
    if (host > out->host_bytes) out->host_bytes = host;
  }
}

static tws_code compose_in(step *s, double limit_bytes, tws_composed *out, tws_error *err) {
  const tws_plan_request *request = s->request;
  const tws_config *config = request->config;
  const int stages = s->shape.stages, split = s->shape.kind == TWS_PIPELINE_ZB_H1 && stages > 1;
  const ranks *r = NULL;
  key k;
  int is_new;
  TWS_TRY(tws_pipeline_check(&s->shape, err));
  TWS_TRY(find_ranks(s->c, request, &r, err));
  TWS_TRY(find_tails(s->c, request, &s->tails, err));
  body_key(request, r, split, &k);
  entry *e = look_up(&s->c->bodies, &k, &is_new);
  if (!e) return no_memory(err);
  if (is_new) e->value = tws_arena_alloc(s->c->arena, 1, sizeof(body));
  s->stages = tws_arena_alloc(s->arena, (size_t)stages, sizeof *s->stages);
  s->stretch = tws_arena_alloc(s->arena, (size_t)stages, sizeof *s->stretch);
  if (!e->value || !s->stages || !s->stretch) return no_memory(err);
  s->exact = r->alone && !k.bounded;
  s->closed = !k.bounded;
  /* overlapped reductions run beside the last micro-batch; what is offloaded on streams of its own */
  if (config->zero.stage == 1 && config->zero.overlap_comm && stages == 1 && !s->c->costs.serial) s->exact = 0;
  if (config->zero.stage > 0 && config->zero.offload_optimizer) s->exact = s->closed = 0;
  for (int i = 0; i < stages; i++) s->exact &= s->tails->stage[i].exact;
  TWS_TRY(find_chunks(s, e->value, split, k.bounded, err));
  for (int i = 0; i < stages; i++) s->stretch[i] = s->exact ? stretch_of(s, i) : 1;
  if (stages > 1) {
    tws_pipeline_shape shape;
    tws_rhythm rhythm;
    TWS_TRY(make_times(s, err));
    if (!tws_fold_is_long(&s->shape, s->shape.micro_batches)) {
      TWS_TRY(prepare_rhythm(s, s->shape.micro_batches, &shape, &rhythm, err));
      TWS_TRY(tws_rhythm_bytes(&rhythm, err));
    } else {
      TWS_TRY(prepare_rhythm(s, 8 * tws_fold_round(&s->shape), &shape, &rhythm, err));
      TWS_TRY(tws_rhythm_bytes(&rhythm, err));
    }
  } else {
    run_alone(s, k.bounded);
  }
  find_bytes(s, k.bounded, out);
  out->bytes_exact = s->closed;
  out->exact = s->exact;
  s->c->counts.composed++;
  out->too_large = limit_bytes > 0 && (double)out->live_bytes > limit_bytes;
  if (out->too_large) return TWS_OK;
  if (stages > 1) TWS_TRY(run_pipeline(s, err));
  out->step_s = run_tails(s);
  return out->step_s >= 0 ? TWS_OK : tws_fail(err, TWS_INTERNAL, NULL, "stages wait for each other at a step's end");
}

tws_code tws_compose(tws_composer *c, const tws_plan_request *request, double limit_bytes, tws_composed *out,
                     tws_error *err) {
  const int stages = tws_topology_size(&request->topology, TWS_AXES_PIPE);
  step s = {.c = c,
            .request = request,
            .shape = tws_pipeline_shape_of(request->config, stages, request->config->accumulation_steps)};
  *out = (tws_composed){.exact = 0};
  s.arena = tws_arena_create();
  if (!s.arena) return no_memory(err);
  const tws_code code = compose_in(&s, limit_bytes, out, err);
  tws_arena_destroy(s.arena);
  return code;
}
