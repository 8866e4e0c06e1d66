/* What is alive in a composed step. */
#include "estimators/composer_step.h"

typedef tws_composed_step step;

void tws_step_bytes_of(const step *s, tws_composed *out) {
  for (int i = 0; i < s->shape.stages; i++) {
    const tws_tail_pieces *t = &s->tails->stage[i];
    const int64_t gradients = (int64_t)t->gradient_bytes;
    int64_t peak = s->bytes_of ? s->stages[i].peak : 0;
    /* parts of gradients are there from the second micro-batch on */
    if (s->bounded && s->bytes_of && s->shape.micro_batches > 1) peak += gradients;
    if (gradients + t->peak > peak) peak = gradients + t->peak;
    const double inputs = s->chunk_count ? s->chunks[0].input_bytes * s->shape.micro_batches : 0;
    const uint64_t live = t->state_bytes[TWS_TIER_DEVICE] + t->program_bytes + (uint64_t)inputs + (uint64_t)peak;
    const uint64_t host = t->state_bytes[TWS_TIER_PINNED] + t->state_bytes[TWS_TIER_HOST];
    if (live > out->live_bytes) out->live_bytes = live;
    if (host > out->host_bytes) out->host_bytes = host;
    if (t->state_bytes[TWS_TIER_DISK] > out->disk_bytes) out->disk_bytes = t->state_bytes[TWS_TIER_DISK];
  }
}

/* What a context leaves alive after these events of a later micro-batch. */
static int64_t left_by(const tws_chunk_pieces *p, tws_context_event from, tws_context_event to) {
  int64_t bytes = 0;
  for (int e = (int)from; e <= (int)to; e++)
    if (p->has[e]) bytes += p->event[1][e].delta;
  return bytes;
}

/* What contexts in flight hold at least: all but one of those between their forward and backward passes, and of those
 * whose weight gradients are put off what these need. */
static void bound_bytes(step *s) {
  const int v = s->tails->stage[0].chunk_count;
  tws_pipeline_shape whole = s->shape;
  if (whole.kind == TWS_PIPELINE_ZB_H1) whole.kind = TWS_PIPELINE_1F1B; /* as many between forward and backward */
  for (int i = 0; i < s->shape.stages; i++) {
    int64_t least = INT64_MAX, least_put_off = INT64_MAX;
    for (int k = 0; k < v; k++) {
      const tws_chunk_pieces *p = &s->chunks[s->chunk_at[i * v + k]].pieces;
      const int64_t held = left_by(p, TWS_CONTEXT_RECV, TWS_CONTEXT_SEND);
      const int64_t put_off = held + left_by(p, TWS_CONTEXT_RECV_GRADIENT, TWS_CONTEXT_SEND_GRADIENT);
      if (held < least) least = held;
      if (put_off < least_put_off) least_put_off = put_off;
    }
    const int64_t in_flight = tws_pipeline_in_flight(&whole, i);
    const int64_t waiting = tws_pipeline_in_flight(&s->shape, i) - in_flight;
    s->stages[i].peak = (in_flight - 1) * (least > 0 ? least : 0) + waiting * (least_put_off > 0 ? least_put_off : 0);
  }
}

tws_code tws_step_find_bytes(step *s, double limit, tws_composed *out, tws_error *err) {
  tws_pipeline_shape shape;
  tws_rhythm rhythm;
  const int64_t all = s->shape.micro_batches, few = tws_step_few(&s->shape);
  const int64_t wanted = s->shape.kind != TWS_PIPELINE_GPIPE && all > few ? few : all;
  if (s->bytes_of != wanted && s->shape.stages > 1) {
    s->bytes_of = wanted;
    bound_bytes(s);
    tws_step_bytes_of(s, out);
    s->bytes_of = 0;
    if (limit > 0 && (double)out->live_bytes > limit) return TWS_OK;
    TWS_TRY(tws_step_rhythm(s, wanted, &shape, &rhythm, err));
    rhythm.stages = s->stages;
    TWS_TRY(tws_rhythm_bytes(&rhythm, err));
  }
  s->bytes_of = wanted;
  tws_step_bytes_of(s, out);
  return TWS_OK;
}
