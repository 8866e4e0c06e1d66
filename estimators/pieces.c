#include "estimators/pieces.h"

#include <string.h>

#include "estimators/piece_reader.h"
#include "estimators/tail_order.h"
#include "estimators/tail_reductions.h"

/* ---- reading a sample ---- */

typedef tws_piece_reader reader;
typedef tws_message_buffer message_buffer;

double tws_piece_seconds_of(reader *r, uint32_t work) {
  if (r->seconds[work] < 0) r->seconds[work] = r->costs->work(r->costs->user, r->plan, work);
  return r->seconds[work];
}

static double launches_of(const tws_costs *costs, const tws_work *work) {
  return costs->launches ? costs->launches(costs->user, work) : 1;
}

/* Whether an operation is none of the layers' own, but of what ZeRO moves: gathers, their codes, what neighbours keep
 * of them, reductions, padding of parts. */
static int is_move(const tws_plan *plan, const tws_op *o) {
  const tws_work *work = &plan->works[o->work];
  if (o->stream == TWS_STREAM_EXCHANGE || tws_op_moves_checkpoint(plan, o)) return 0;
  if (o->stream != TWS_STREAM_COMPUTE || o->module == TWS_NONE || o->channel == TWS_CHANNEL_REPLICAS) return 1;
  if (work->kind == TWS_OP_COMPUTE)
    return work->code == TWS_KERNEL_QUANTIZE_PARTS || work->code == TWS_KERNEL_DEQUANTIZE_PARTS;
  for (int k = 0; k < o->operand_count; k++) {
    const tws_buffer *b = &plan->buffers[plan->operands[o->operand_first + (uint32_t)k].buffer];
    if (b->category == TWS_CATEGORY_PARAMETER && b->lifetime == TWS_LIFETIME_OPS) return 1;
  }
  return 0;
}

int tws_piece_beside(const reader *r, const tws_op *o) {
  if (r->costs->serial) return -1;
  if (o->stream == TWS_STREAM_EXCHANGE) return TWS_OWN_EXCHANGES;
  if (!tws_op_moves_checkpoint(r->plan, o)) return -1;
  return o->stream == TWS_STREAM_COPY_OUT ? TWS_OWN_COPIES : TWS_OWN_BRINGS;
}

int tws_piece_leaves_out(const reader *r, const tws_op *o) {
  return r->layers_alone && is_move(r->plan, o);
}

void tws_piece_add_time(reader *r, const tws_op *o, tws_piece_time *time, double *launches, double *axis_s) {
  const tws_work *work = &r->plan->works[o->work];
  if (tws_piece_beside(r, o) >= 0 || tws_piece_leaves_out(r, o)) return;
  if (tws_is_launched(work)) {
    time->kernel += tws_piece_seconds_of(r, o->work);
    if (o->phase != TWS_PHASE_STEP) *launches += launches_of(r->costs, work);
  } else {
    time->other += tws_piece_seconds_of(r, o->work);
    if (axis_s && !tws_op_computes(o))
      axis_s[tws_piece_axis(tws_report_of_op(r->plan, o))] += tws_piece_seconds_of(r, o->work);
  }
}

/* The context that an operation belongs to; -1: the tail, or none. */
static int context_of(const tws_plan_sample *s, uint32_t op) {
  for (int i = 0; i < s->part_count; i++)
    if (op >= s->parts[i].first_op && op < s->parts[i].end_op) return s->parts[i].micro_batch;
  return -1;
}

static int is_counted(const reader *r, const tws_buffer *b) {
  if (b->lifetime != TWS_LIFETIME_OPS || b->first_op == TWS_NONE || b->last_op == TWS_NONE) return 0;
  if (b->tier != TWS_TIER_DEVICE) return 0;
  return !r->activations || b->category == TWS_CATEGORY_ACTIVATION || b->category == TWS_CATEGORY_CHECKPOINT ||
         b->category == TWS_CATEGORY_ACTIVATION_GRADIENT || b->category == TWS_CATEGORY_WORKSPACE;
}

/* What begins and ends with each operation. Returns whether every buffer is a single context's. */
static int read_lifetimes(reader *r, int contexts) {
  const tws_plan *plan = r->plan;
  int closed = 1;
  for (uint32_t i = 0; i < plan->buffer_count; i++) {
    const tws_buffer *b = &plan->buffers[i];
    if (i == plan->gradients || !is_counted(r, b)) continue;
    if (contexts && context_of(r->sample, b->first_op) != context_of(r->sample, b->last_op)) {
      closed = 0;
      continue;
    }
    r->begin[b->first_op] += (int64_t)b->bytes;
    r->end[b->last_op] += (int64_t)b->bytes;
  }
  return closed;
}

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the pieces of a step");
}

/* Out of the scratch memory; NULL: no memory. */
static void *keep(const reader *r, const void *items, size_t count, size_t bytes) {
  void *kept = tws_arena_alloc_unset(r->arena, count + 1, bytes);
  return kept && count ? memcpy(kept, items, count * bytes) : kept;
}

static tws_code prepare(reader *r, tws_error *err) {
  const tws_plan *plan = r->plan;
  const size_t ops = plan->op_count + 1u;
  r->scratch = plan->arena;
  r->seconds = tws_arena_alloc_unset(r->scratch, plan->work_count + 1u, sizeof *r->seconds);
  r->begin = tws_arena_alloc(r->scratch, ops, sizeof *r->begin);
  r->end = tws_arena_alloc(r->scratch, ops, sizeof *r->end);
  r->begins = tws_arena_alloc(r->scratch, ops, 1);
  r->sent = tws_arena_alloc(r->scratch, ops, 1);
  if (!r->seconds || !r->begin || !r->end || !r->begins || !r->sent) return no_memory(err);
  for (uint32_t i = 0; i < plan->work_count; i++) r->seconds[i] = -1;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    for (int k = 0; k < o->operand_count; k++)
      if (plan->operands[o->operand_first + (uint32_t)k].buffer == plan->gradients) r->begins[op] = 1;
  }
  return TWS_OK;
}

static int message_of(const reader *r, uint32_t buffer) {
  for (int i = 0; i < r->messages; i++)
    if (r->message[i].buffer == buffer) return i;
  return -1;
}

/* 0: it computes, or is on a stream of which nothing is known; 1 + the number of the layers' own. */
static int stream_of(const reader *r, const tws_op *o) {
  return r->exchanges ? 1 + tws_piece_beside(r, o) : 0;
}

/* What a message waits for: whoever wrote last, or, with exchanges, what it depends on. */
static void mark_sent(reader *r, const tws_op *send, uint32_t written) {
  if (!r->exchanges) r->sent[written] = 1;
  for (uint32_t i = 0; r->exchanges && i < send->dep_count; i++) r->sent[r->plan->deps[send->dep_first + i]] = 1;
}

/* The buffers that a context sends or receives, in the order of their numbers, and when each was written last before it
 * is sent. */
static int find_messages(reader *r, int micro_batch) {
  const tws_plan *plan = r->plan;
  r->messages = 0;
  for (int i = 0; i < r->sample->part_count; i++) {
    const tws_sample_part *part = &r->sample->parts[i];
    if (part->micro_batch != micro_batch || part->event == TWS_EVENT_ACTION) continue;
    if (part->end_op != part->first_op + 1) return 0;
    const uint32_t buffer = plan->operands[plan->ops[part->first_op].operand_first].buffer;
    if (message_of(r, buffer) >= 0) continue;
    int at = r->messages++;
    for (; at > 0 && r->message[at - 1].buffer > buffer; at--) r->message[at] = r->message[at - 1];
    r->message[at] = (message_buffer){.buffer = buffer, .written = TWS_NONE};
    memset(r->message[at].last_kernel, 0xff, sizeof r->message[at].last_kernel); /* TWS_NONE */
  }
  for (int i = 0; i < r->sample->part_count; i++) {
    const tws_sample_part *part = &r->sample->parts[i];
    if (part->micro_batch != micro_batch) continue;
    for (uint32_t op = part->first_op; op < part->end_op; op++) {
      const tws_op *o = &plan->ops[op];
      for (int k = 0; k < o->operand_count; k++) {
        const tws_operand *operand = &plan->operands[o->operand_first + (uint32_t)k];
        const int m = message_of(r, operand->buffer);
        if (m < 0) continue;
        if (part->event == TWS_EVENT_ACTION) r->message[m].last_kernel[stream_of(r, o)] = op;
        if (part->event == TWS_EVENT_ACTION && (operand->access & TWS_WRITE)) r->message[m].written = op;
        if (part->event == TWS_EVENT_SEND && r->message[m].written != TWS_NONE) mark_sent(r, o, r->message[m].written);
      }
    }
  }
  return 1;
}

static int add_point(tws_piece *p, tws_point_kind kind, int buffer) {
  if (p->point_count == TWS_PIECE_POINTS) return 0;
  p->points[p->point_count++] = (tws_point){p->time, (uint8_t)kind, (uint8_t)buffer};
  return 1;
}

static int access_of(const tws_plan *plan, const tws_op *o, uint32_t buffer) {
  int access = 0;
  for (int k = 0; k < o->operand_count; k++) {
    const tws_operand *operand = &plan->operands[o->operand_first + (uint32_t)k];
    if (operand->buffer == buffer) access |= (int)operand->access;
  }
  return access;
}

/* For marks of what runs beside. */
static void keep_spot(reader *r, uint32_t op, tws_point_kind kind, int buffer, int behind) {
  if (!r->exchanges && !r->joins) return;
  if (tws_reserve(&r->spots, &r->spot_capacity, r->spot_count + 1, sizeof *r->spots))
    r->unknown = 1;
  else
    r->spots[r->spot_count++] = (tws_spot){op, (uint8_t)kind, (uint8_t)buffer, (uint8_t)behind};
}

/* At a point in its own stream. Those of what computes are the piece's, too. */
static int add_own_point(reader *r, uint32_t op, tws_point_kind kind, int buffer, int behind, tws_piece *p) {
  keep_spot(r, op, kind, buffer, behind);
  return stream_of(r, &r->plan->ops[op]) || add_point(p, kind, buffer);
}

/* Before an operation that uses the buffer of a message. Of one on a third stream, unless that is the layers' own,
 * nothing is known of when it runs: what computes does not wait there, and what waits for it is bounded by what else it
 * waits for. */
static int begin_use(reader *r, uint32_t op, int m, int access, int is_message, tws_piece *p) {
  const tws_op *o = &r->plan->ops[op];
  const int stream = stream_of(r, o), other = !r->costs->serial && o->stream != TWS_STREAM_COMPUTE;
  const int aside = !is_message && !stream && other;
  message_buffer *b = &r->message[m];
  int good = 1;
  r->unknown |= aside;
  if (r->plan->buffers[b->buffer].first_op == op) {
    good &= add_point(p, aside ? TWS_POINT_TAKE_ASIDE : stream ? TWS_POINT_TAKE_AHEAD : TWS_POINT_TAKE, m);
    if (!aside && !is_message) keep_spot(r, op, TWS_POINT_TAKE, m, 0);
  }
  if (aside) return good;
  if (is_message) {
    for (int i = 0; i <= TWS_OWN_STREAMS; i++) b->waits[i] = o->kind == TWS_OP_RECV ? 1 : 2;
  } else if (stream > 1 + TWS_OWN_EXCHANGES) {
    return good; /* it waits for what computes, which has waited */
  } else if (b->waits[stream] == 1 || (b->waits[stream] == 2 && (access & TWS_WRITE))) {
    good &= add_own_point(r, op, TWS_POINT_WAIT, m, 0, p);
    b->waits[stream] = 0;
  }
  return good;
}

static int end_use(reader *r, uint32_t op, int m, int access, int is_message, tws_piece *p) {
  const tws_op *o = &r->plan->ops[op];
  const int stream = stream_of(r, o), other = !r->costs->serial && o->stream != TWS_STREAM_COMPUTE;
  const int aside = !is_message && !stream && other;
  const message_buffer *b = &r->message[m];
  int good = 1;
  if (!aside && r->sent[op] && (access & TWS_WRITE)) good &= add_own_point(r, op, TWS_POINT_WRITTEN, m, 1, p);
  if (!aside && b->last_kernel[stream] == op) good &= add_own_point(r, op, TWS_POINT_USED, m, 1, p);
  if (r->plan->buffers[b->buffer].last_op == op) good &= add_point(p, TWS_POINT_GIVE, m);
  return good;
}

tws_axes tws_piece_meets(const reader *r, const tws_op *o) {
  const tws_plan *plan = r->plan;
  const tws_axes axes = o->kind == TWS_OP_COLLECTIVE ? plan->groups[plan->works[o->work].group].axes : 0;
  return axes & r->apart ? axes : 0;
}

static void add_cut(reader *r, const tws_piece *p) {
  if (r->cuts) r->cuts->items[r->cuts->count++] = (tws_cut){p->time, r->cut_layer};
}

/* One more operation; returns 0 when there are too many points. */
static int extend(reader *r, uint32_t op, int is_message, tws_piece *p) {
  const tws_op *o = &r->plan->ops[op];
  int access[TWS_MESSAGE_BUFFERS], good = 1, points = p->point_count;
  for (int m = 0; m < r->messages; m++) {
    access[m] = access_of(r->plan, o, r->message[m].buffer);
    if (access[m]) good &= begin_use(r, op, m, access[m], is_message, p);
  }
  if (p->point_count > points || tws_piece_meets(r, o)) add_cut(r, p);
  tws_piece_time own = {0, 0};
  if (r->begins[op]) p->begins = 1;
  p->delta += r->begin[op];
  *(p->begins ? &p->after : &p->before) = tws_larger_bytes(p->begins ? p->after : p->before, p->delta);
  p->delta -= r->end[op];
  if (!is_message) tws_piece_add_time(r, o, &own, &p->launches, p->axis_s);
  p->time = tws_sum_of_times(p->time, own);
  points = p->point_count;
  for (int m = 0; m < r->messages; m++)
    if (access[m]) good &= end_use(r, op, m, access[m], is_message, p);
  if (p->point_count > points) add_cut(r, p);
  return good;
}

int tws_piece_layer_of(const reader *r, const tws_op *o, int before) {
  return o->module == TWS_NONE ? before : r->sample->layer_of[o->module];
}

/* Pieces of an action by layer; 0 when layers do not follow one another. */
static int cut_by_layer(reader *r, const tws_sample_part *part, tws_sample_pieces *out, tws_piece *pieces) {
  const int down = part->action != TWS_ACTION_FORWARD;
  int layer = down ? out->first_layer + out->layers - 1 : out->first_layer;
  for (int i = 0; i < out->layers; i++) pieces[i] = tws_piece_empty();
  for (uint32_t op = part->first_op; op < part->end_op; op++) {
    const int next = tws_piece_layer_of(r, &r->plan->ops[op], layer);
    if (down ? next > layer : next < layer) return 0;
    if (next < out->first_layer || next >= out->first_layer + out->layers) return 0;
    layer = next;
    r->cut_layer = layer - out->first_layer;
    if (!extend(r, op, 0, &pieces[r->cut_layer])) return 0;
  }
  return 1;
}

static int join(const tws_sample_pieces *out, const tws_piece *pieces, int down, tws_piece *whole) {
  int good = 1;
  *whole = tws_piece_empty();
  for (int i = 0; i < out->layers && good; i++) good = tws_piece_append(whole, &pieces[down ? out->layers - 1 - i : i]);
  return good;
}

/* ---- when gradients are complete ---- */

uint32_t tws_gradient_at(const tws_gradient_list *g, uint64_t element) {
  uint32_t low = 0, high = g->count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (g->items[middle].first + g->items[middle].elements <= element)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

typedef struct latest { /* the last operation that wrote a gradient: its layer, -1: there is none, and when it ended */
  int layer;
  tws_piece_time at;
} latest;

static void find_latest(reader *r, const tws_sample_part *part, const tws_sample_pieces *of, latest *all) {
  const tws_gradient_list *g = &r->sample->gradients;
  latest now = {.layer = part->action == TWS_ACTION_FORWARD ? 0 : of->layers - 1};
  double launches = 0;
  for (uint32_t i = 0; i < g->count; i++) all[i].layer = -1;
  for (uint32_t op = part->first_op; op < part->end_op; op++) {
    const tws_op *o = &r->plan->ops[op];
    const int layer = tws_piece_layer_of(r, o, now.layer + of->first_layer) - of->first_layer;
    if (layer != now.layer) now = (latest){.layer = layer};
    tws_piece_add_time(r, o, &now.at, &launches, NULL);
    for (int k = 0; k < o->operand_count; k++) {
      const tws_operand *w = &r->plan->operands[o->operand_first + (uint32_t)k];
      if (w->buffer != r->plan->gradients || !(w->access & TWS_WRITE)) continue;
      for (uint32_t i = tws_gradient_at(g, w->offset); i < g->count && g->items[i].first < w->offset + w->count; i++)
        all[i] = now;
    }
  }
}

/* Of a pass that is cut by layer. */
static tws_code read_completions(reader *r, const tws_sample_part *part, const tws_piece *pieces,
                                 tws_sample_pieces *out, tws_error *err) {
  const tws_gradient_list *g = &r->sample->gradients;
  if (!g->count) return TWS_OK;
  tws_completions *of = tws_arena_alloc(r->arena, (size_t)out->layers + 1, sizeof *of);
  tws_completion *items = tws_arena_alloc(r->arena, g->count + 1u, sizeof *items);
  latest *all = tws_calloc(g->count + 1u, sizeof *all);
  if (!of || !items || !all) {
    tws_free(all);
    return no_memory(err);
  }
  find_latest(r, part, out, all);
  for (uint32_t i = 0; i < g->count; i++)
    if (all[i].layer >= 0) of[all[i].layer].count++;
  for (int i = 0; i < out->layers; i++) {
    of[i].items = items;
    items += of[i].count;
    of[i].count = 0;
  }
  for (uint32_t i = 0; i < g->count; i++) {
    if (all[i].layer < 0) continue;
    const tws_piece_time *whole = &pieces[all[i].layer].time;
    tws_completions *to = &of[all[i].layer];
    to->items[to->count++] = (tws_completion){{whole->kernel - all[i].at.kernel, whole->other - all[i].at.other},
                                              all[i].layer + out->first_layer - g->items[i].layer,
                                              g->items[i].which};
  }
  tws_free(all);
  out->completions[part->micro_batch][tws_context_event_of(part->event, part->action)] = of;
  return TWS_OK;
}

static tws_code no_pieces(tws_error *err) {
  return tws_fail(err, TWS_UNSUPPORTED, NULL, "a chunk sends and receives in more ways than its pieces say");
}

static tws_code read_part(reader *r, const tws_sample_part *part, tws_sample_pieces *out, tws_error *err) {
  const tws_context_event event = tws_context_event_of(part->event, part->action);
  tws_piece *whole = &out->whole.event[part->micro_batch][event];
  *whole = tws_piece_empty();
  out->whole.has[event] = 1;
  if (part->event != TWS_EVENT_ACTION) {
    const tws_op *o = &r->plan->ops[part->first_op];
    out->whole.message_bytes[event] = (uint64_t)r->plan->works[o->work].d[0];
    out->whole.message_buffer[event] = (uint8_t)message_of(r, r->plan->operands[o->operand_first].buffer);
    return extend(r, part->first_op, 1, whole) ? TWS_OK : no_pieces(err);
  }
  const message_buffer kept[TWS_MESSAGE_BUFFERS] = {r->message[0], r->message[1], r->message[2], r->message[3]};
  tws_piece *pieces = tws_arena_alloc(r->arena, (size_t)out->layers + 1, sizeof *pieces);
  r->cuts = r->apart ? &out->cuts[part->micro_batch][event] : NULL;
  if (r->cuts)
    r->cuts->items = tws_arena_alloc_unset(r->scratch, 2u * (part->end_op - part->first_op) + 1u, sizeof(tws_cut));
  if (!pieces || (r->cuts && !r->cuts->items)) return no_memory(err);
  const int cut = cut_by_layer(r, part, out, pieces);
  if (r->cuts && !(r->cuts->items = keep(r, r->cuts->items, r->cuts->count, sizeof(tws_cut)))) return no_memory(err);
  r->cuts = NULL;
  if (cut && join(out, pieces, part->action != TWS_ACTION_FORWARD, whole)) {
    out->layer[part->micro_batch][event] = pieces;
    TWS_TRY(tws_piece_read_marks(r, part, out, err));
    return read_completions(r, part, pieces, out, err);
  }
  memcpy(r->message, kept, sizeof kept);
  r->unknown = 1;
  *whole = tws_piece_empty();
  for (uint32_t op = part->first_op; op < part->end_op; op++)
    if (!extend(r, op, 0, whole)) return no_pieces(err);
  return TWS_OK;
}

/* moves, exchanges: those of what ZeRO moves, or of the layers' own, may be there, too. */
static int has_two_streams_alone(const tws_plan *plan, int moves, int exchanges, const tws_costs *costs) {
  uint32_t known = 1u << TWS_STREAM_COMPUTE | 1u << TWS_STREAM_P2P | (exchanges ? 1u << TWS_STREAM_EXCHANGE : 0);
  if (moves) known |= 1u << TWS_STREAM_GATHER | 1u << TWS_STREAM_REDUCE;
  if (moves && plan->in_step) known |= 1u << TWS_STREAM_COPY_OUT | 1u << TWS_STREAM_HOST;
  if (moves && plan->in_step) known |= 1u << TWS_STREAM_COPY_IN | 1u << TWS_STREAM_DISK;
  for (uint32_t op = 0; op < plan->op_count && !costs->serial; op++) {
    const tws_op *o = &plan->ops[op];
    if (!(known >> o->stream & 1) && !(exchanges && tws_op_moves_checkpoint(plan, o))) return 0;
  }
  return 1;
}

static tws_code read_parts(reader *r, int micro_batches, tws_sample_pieces *out, tws_error *err) {
  for (int micro_batch = 0; micro_batch < micro_batches; micro_batch++) {
    if (!find_messages(r, micro_batch)) return no_pieces(err);
    for (int i = 0; i < r->sample->part_count; i++)
      if (r->sample->parts[i].micro_batch == micro_batch) TWS_TRY(read_part(r, &r->sample->parts[i], out, err));
    out->pending |= r->awaited[TWS_OWN_EXCHANGES] < r->begun[TWS_OWN_EXCHANGES];
  }
  if (out->exchanges && (r->unknown || r->begun[TWS_OWN_EXCHANGES] < r->exchange_count)) out->in_order = out->exact = 0;
  if (r->unknown) out->joins = 0;
  out->among_ranks = r->exchange_count > 0;
  out->far = r->far || (r->follows && r->leaves);
  return TWS_OK;
}

static void repeat_first(tws_sample_pieces *out) {
  memcpy(out->whole.event[1], out->whole.event[0], sizeof out->whole.event[0]);
  memcpy(out->layer[1], out->layer[0], sizeof out->layer[0]);
  memcpy(out->completions[1], out->completions[0], sizeof out->completions[0]);
  memcpy(out->marks[1], out->marks[0], sizeof out->marks[0]);
  memcpy(out->cuts[1], out->cuts[0], sizeof out->cuts[0]);
}

tws_code tws_pieces_of_body(const tws_plan_sample *sample, const tws_sample_request *request, const tws_costs *costs,
                            int activations, tws_axes apart, tws_arena *arena, tws_sample_pieces *out, tws_error *err) {
  const tws_plan *plan = sample->plan;
  reader r = {
      .sample = sample, .plan = plan, .costs = costs, .activations = activations, .apart = apart, .arena = arena};
  memset(out, 0, sizeof *out);
  out->first_layer = request->first_layer;
  out->layers = request->end_layer - request->first_layer;
  out->exchanges = sample->depends && !costs->serial;
  out->in_order = has_two_streams_alone(plan, activations, out->exchanges, costs);
  out->exact = !activations && out->in_order;
  r.layers_alone = !out->exact;
  r.joins = out->joins = apart && out->in_order;
  TWS_TRY(prepare(&r, err));
  if (out->exchanges) TWS_TRY(tws_piece_find_exchanges(&r, err));
  out->closed = read_lifetimes(&r, 1);
  const tws_code code = read_parts(&r, request->once ? 1 : 2, out, err);
  tws_free(r.spots);
  TWS_TRY(code);
  if (request->once) repeat_first(out);
  out->whole.buffers = r.messages;
  for (int m = 0; m < r.messages; m++)
    out->whole.slot_bytes[m] =
        (plan->buffers[r.message[m].buffer].bytes + TWS_ALIGNMENT - 1) / TWS_ALIGNMENT * TWS_ALIGNMENT;
  for (uint32_t i = 0; i < TWS_NETWORK_INPUTS; i++)
    if (plan->input[i] != TWS_NONE) out->input_bytes += (double)plan->buffers[plan->input[i]].bytes / TWS_SAMPLE_STEPS;
  return TWS_OK;
}

/* ---- tails ---- */

static int sync_of(const tws_plan *plan, const tws_op *o) {
  if (o->kind != TWS_OP_COLLECTIVE) return TWS_TAIL_ALONE;
  const tws_axes axes = plan->groups[plan->works[o->work].group].axes;
  return axes == TWS_AXES_TIED ? TWS_TAIL_TIED : axes == TWS_AXES_PIPE ? TWS_TAIL_STAGES : TWS_TAIL_ALONE;
}

/* A step of no operations, which stands alone; or the last, if that does. */
static int begin_step(tws_tail_pieces *out) {
  if (out->step_count == 0 || out->steps[out->step_count - 1].sync)
    out->steps[out->step_count++] = (tws_tail_step){.sync = TWS_TAIL_ALONE};
  return out->step_count - 1;
}

/* Updated parameters are gathered on a stream of their own: 1 where that is the last that the tail does. */
static int is_gather(const tws_plan *plan, const tws_op *o) {
  return o->phase == TWS_PHASE_STEP && o->channel == TWS_CHANNEL_REPLICAS &&
         plan->works[o->work].code == TWS_COLLECTIVE_ALL_GATHER;
}

static int touches_parameters(const tws_plan *plan, const tws_op *o, const tws_op *gather) {
  for (int k = 0; k < gather->operand_count; k++) {
    const tws_operand *g = &plan->operands[gather->operand_first + (uint32_t)k];
    for (int i = 0; i < o->operand_count; i++) {
      const tws_operand *p = &plan->operands[o->operand_first + (uint32_t)i];
      if (p->buffer == g->buffer && p->offset < g->offset + g->count && g->offset < p->offset + p->count) return 1;
    }
  }
  return 0;
}

/* Those behind operation `first`; 0: something else follows, or no memory. */
static int read_gathers(reader *r, uint32_t first, tws_tail_pieces *out) {
  const tws_plan *plan = r->plan;
  double none = 0;
  out->gathers = tws_arena_alloc(r->arena, plan->op_count - first + 1u, sizeof *out->gathers);
  for (uint32_t op = first; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    if (!out->gathers || !is_gather(plan, o)) return 0;
    tws_tail_gather *g = &out->gathers[out->gather_count++];
    g->seconds = tws_piece_seconds_of(r, o->work);
    g->axis = tws_piece_axis(tws_report_of_op(plan, o));
    g->meets = plan->groups[plan->works[o->work].group].axes;
    for (uint32_t before = first; before > 0 && !touches_parameters(plan, &plan->ops[before - 1], o); before--)
      tws_piece_add_time(r, &plan->ops[before - 1], &g->behind, &none, NULL);
  }
  return 1;
}

/* What stays whole for the step is gathered when it begins: with what micro-batches gather, unless it comes from the
 * host. */
static uint32_t own_begin(const reader *r) {
  return r->sample->ordered && !r->plan->in_step ? 0 : r->sample->begun;
}

/* Where ranks differ, what the step before left is met before the passes, and not counted behind them. */
static int is_late(const reader *r, uint32_t op) {
  return r->apart && r->costs->serial && op >= r->sample->begun && op < r->sample->updated;
}

/* Who waits for reductions that run beside the last backward pass. They are done in the order of their stream, and on
 * one channel with what replicas exchange: behind the first of that nobody waits any more. */
static tws_code read_waits(reader *r, tws_tail_pieces *out, tws_error *err) {
  const tws_plan *plan = r->plan;
  tws_piece_time total = {0, 0};
  double none = 0;
  uint32_t most = 1, op;
  int begun = 0, all = 0;
  for (uint32_t i = 0; i < plan->op_count; i++) most += 1u + plan->ops[i].operand_count;
  tws_tail_wait *waits = tws_arena_alloc_unset(r->scratch, most, sizeof *waits);
  if (!waits) return no_memory(err);
  for (op = own_begin(r); op < plan->op_count && (is_late(r, op) || !is_gather(plan, &plan->ops[op])); op++) {
    const tws_op *o = &plan->ops[op];
    if (is_late(r, op)) continue;
    const int is_step = o->phase == TWS_PHASE_STEP, shared = o->channel == TWS_CHANNEL_REPLICAS;
    if (is_step && !begun) out->step_time = total;
    begun |= is_step;
    for (int k = 0; k < o->operand_count && is_step && !all; k++) {
      const tws_operand *g = &plan->operands[o->operand_first + (uint32_t)k];
      if (g->buffer == plan->gradients && g->count)
        waits[out->wait_count++] = (tws_tail_wait){g->offset, g->count, total};
    }
    if (is_step && !all && shared) waits[out->wait_count++] = (tws_tail_wait){.to_the_end = total};
    all |= is_step && shared;
    tws_piece_add_time(r, o, &total, &none, NULL);
  }
  if (!read_gathers(r, op, out)) out->gathers = NULL;
  if (!all || !out->gathers) return TWS_OK;
  for (int i = 0; i < out->wait_count; i++) {
    waits[i].to_the_end.kernel = total.kernel - waits[i].to_the_end.kernel;
    waits[i].to_the_end.other = total.other - waits[i].to_the_end.other;
  }
  out->step_time.kernel = total.kernel - out->step_time.kernel;
  out->step_time.other = total.other - out->step_time.other;
  out->waits = keep(r, waits, (size_t)out->wait_count, sizeof *waits);
  return out->waits ? TWS_OK : no_memory(err);
}

static void count_before_update(reader *r, const tws_op *o, tws_tail_pieces *out) {
  if (o->phase == TWS_PHASE_STEP || !tws_is_launched(&r->plan->works[o->work])) return;
  out->counted.kernel += tws_piece_seconds_of(r, o->work);
  out->launches += launches_of(r->costs, &r->plan->works[o->work]);
}

/* What the stage waits for besides before it meets others, or ends. */
static void end_step(tws_tail_pieces *out, const tws_tail_paths *ends) {
  if (!ends || !ends[out->meetings].count) return;
  out->steps[begin_step(out)].ends = ends[out->meetings];
}

static void begin_reduced(const reader *r, tws_tail_pieces *out) {
  if (r->apart && r->sample->reduced) out->steps[out->step_count++] = (tws_tail_step){.meets = TWS_MEETS_ALL};
  out->reduced_step = begin_step(out);
  out->reduced_after = out->meetings;
  out->reduced_time = out->steps[out->reduced_step].time;
}

/* ends: of operations on other streams; NULL: there are none, or they are not known. */
static void read_tail_steps(reader *r, uint32_t reduced_at, const tws_tail_paths *ends, tws_tail_pieces *out) {
  const tws_plan *plan = r->plan;
  int64_t alive = 0;
  double none = 0;
  int clipped = 0; /* what the host updates waits for that, and what is gathered for the host */
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    const int sync = sync_of(plan, o);
    clipped |= o->kind == TWS_OP_COMPUTE && plan->works[o->work].code == TWS_KERNEL_CLIP;
    const int averages = plan->running != TWS_NONE && plan->network->running[0].fixed == NULL;
    const int updates = clipped && o->stream == TWS_STREAM_HOST && !averages && !ends && !r->sample->late;
    alive += r->begin[op];
    out->peak = tws_larger_bytes(out->peak, alive);
    alive -= r->end[op];
    if (is_late(r, op)) tws_piece_add_time(r, o, &out->late, &none, NULL);
    if (op < own_begin(r) || is_late(r, op)) continue;
    count_before_update(r, o, out);
    if (op == reduced_at) begin_reduced(r, out);
    if ((!out->exact || ends || out->overlaps) && o->stream != TWS_STREAM_COMPUTE && !updates) continue;
    if (sync) {
      end_step(out, ends);
      out->meetings++;
    }
    const tws_axes met = tws_piece_meets(r, o);
    const int starts = out->step_count == 0 || sync || met || out->steps[out->step_count - 1].sync;
    if (starts) out->steps[out->step_count++] = (tws_tail_step){.sync = sync, .meets = met};
    tws_tail_step *step = &out->steps[out->step_count - 1];
    tws_piece_add_time(r, o, &step->time, &none, step->axis_s);
  }
  end_step(out, ends);
  if (reduced_at >= plan->op_count) begin_reduced(r, out);
}

/* Operations on other streams than those that compute and send messages, where it is known when they end. */
static tws_code read_order(reader *r, tws_tail_paths **ends, tws_tail_pieces *out, tws_error *err) {
  const tws_plan *plan = r->plan;
  uint8_t *meets = tws_calloc(plan->op_count + 1u, 1);
  tws_piece_time *times = tws_calloc(plan->op_count + 1u, sizeof *times);
  double none = 0;
  const tws_tail_ops ops = {plan, meets, times, r->sample->reduced ? r->sample->reduced_at : TWS_NONE};
  const int known = meets && times;
  for (uint32_t op = 0; known && op < plan->op_count; op++) {
    meets[op] = sync_of(plan, &plan->ops[op]) != TWS_TAIL_ALONE;
    tws_piece_add_time(r, &plan->ops[op], &times[op], &none, NULL);
  }
  tws_code code = known ? tws_tail_reductions_find(plan, times, r->arena, out, err)
                        : tws_fail(err, TWS_MEMORY, NULL, "no memory for the pieces of a step");
  if (code == TWS_OK && !out->overlaps) code = tws_tail_order_find(&ops, r->arena, ends, err);
  tws_free(meets);
  tws_free(times);
  return code;
}

tws_code tws_pieces_of_tail(const tws_plan_sample *sample, const tws_costs *costs, tws_axes apart, tws_arena *arena,
                            tws_tail_pieces *out, tws_error *err) {
  const tws_plan *plan = sample->plan;
  reader r = {.sample = sample, .plan = plan, .costs = costs, .apart = apart, .arena = arena};
  tws_tail_paths *ends = NULL;
  memset(out, 0, sizeof *out);
  out->exact = has_two_streams_alone(plan, 0, 0, costs);
  TWS_TRY(prepare(&r, err));
  read_lifetimes(&r, 0);
  out->steps = tws_arena_alloc_unset(r.scratch, 2u * plan->op_count + 3u, sizeof *out->steps);
  out->chunks = tws_arena_alloc(arena, (size_t)sample->chunk_count + 1, sizeof *out->chunks);
  if (!out->steps || !out->chunks) return no_memory(err);
  memcpy(out->chunks, sample->chunks, (size_t)sample->chunk_count * sizeof *out->chunks);
  out->chunk_count = sample->chunk_count;
  out->layer_count = sample->layer_count;
  const int alone = out->exact;
  if (!alone && sample->ordered) TWS_TRY(read_order(&r, &ends, out, err));
  out->exact = alone || ends || out->overlaps;
  read_tail_steps(&r, sample->reduced_at, ends, out);
  out->steps = keep(&r, out->steps, (size_t)out->step_count, sizeof *out->steps);
  if (!out->steps) return no_memory(err);
  if (alone) TWS_TRY(read_waits(&r, out, err));
  for (uint32_t i = 0; i < plan->state->count; i++)
    out->state_bytes[plan->state->entries[i].tier] += plan->state->entries[i].bytes;
  for (uint32_t i = 0; i < plan->buffer_count; i++) {
    const tws_buffer *b = &plan->buffers[i];
    if (b->lifetime != TWS_LIFETIME_PROGRAM || b->tier != TWS_TIER_DEVICE) continue;
    int is_input = 0;
    for (uint32_t k = 0; k < TWS_NETWORK_INPUTS; k++) is_input |= plan->input[k] == i;
    if (!is_input) out->program_bytes += b->bytes;
  }
  if (plan->gradients != TWS_NONE && plan->buffers[plan->gradients].tier == TWS_TIER_DEVICE)
    out->gradient_bytes = plan->buffers[plan->gradients].bytes;
  return TWS_OK;
}
