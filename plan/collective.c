#include "plan/collective.h"

#include <inttypes.h>

#include "models/collective.h"

static tws_code check_counts(const tws_plan *plan, const tws_work *work, const tws_plan_segment *segment,
                             tws_error *err) {
  const int size = plan->groups[work->group].size;
  if (segment->counts && segment->counts->count == 2 * (uint64_t)size &&
      plan->buffers[segment->counts->buffer].dtype == TWS_I32)
    return TWS_OK;
  return tws_fail(err, TWS_INTERNAL, NULL, "an uneven %s has no counts for %d ranks",
                  tws_collective_name((tws_collective)work->code), size);
}

tws_code tws_plan_next_segment(const tws_plan *plan, const tws_op *op, uint32_t *next, tws_plan_segment *segment,
                               tws_error *err) {
  const tws_work *work = &plan->works[op->work];
  const tws_group *group = &plan->groups[work->group];
  const tws_collective collective = (tws_collective)work->code;
  const tws_collective_parts parts = tws_collective_parts_of(collective, group->size, group->index, (int)op->peer);
  const tws_operand *o = plan->operands + op->operand_first + *next, *end = o + (op->operand_count - *next);
  *segment = (tws_plan_segment){.dtype = (tws_dtype)work->dtype};
  if (parts.send && o < end) segment->send = o++;
  const int in_place = segment->send && segment->send->access == TWS_READ_WRITE;
  if (parts.receive && (in_place || o < end)) segment->receive = in_place ? segment->send : o++;
  if (work->flags & TWS_UNEVEN && o < end) segment->counts = o++;
  *next = (uint32_t)(o - (plan->operands + op->operand_first));
  const uint64_t sent = segment->send ? segment->send->count : 0, size = (uint64_t)group->size;
  const uint64_t received = segment->receive ? segment->receive->count : 0;
  segment->count = parts.send ? sent / parts.send : parts.receive ? received / parts.receive : 0;
  if (!(parts.send || parts.receive) || !segment->send != !parts.send || !segment->receive != !parts.receive ||
      sent != segment->count * parts.send || received != segment->count * parts.receive)
    return tws_fail(err, TWS_INTERNAL, NULL,
                    "%s of %" PRIu64 " ranks: a segment sends %" PRIu64 " and receives %" PRIu64 " elements",
                    tws_collective_name(collective), size, sent, received);
  const tws_operand *one = segment->send ? segment->send : segment->receive;
  segment->dtype = (tws_dtype)plan->buffers[one->buffer].dtype;
  if (segment->receive && plan->buffers[segment->receive->buffer].dtype != segment->dtype)
    return tws_fail(err, TWS_INTERNAL, NULL, "%s sends and receives elements of unlike types",
                    tws_collective_name(collective));
  if (segment->dtype != work->dtype && !(work->flags & TWS_MIXED))
    return tws_fail(err, TWS_INTERNAL, NULL, "%s of %s has a segment of %s", tws_collective_name(collective),
                    tws_dtype_name((tws_dtype)work->dtype), tws_dtype_name(segment->dtype));
  if (work->flags & TWS_UNEVEN && !tws_collective_of(collective)->uneven)
    return tws_fail(err, TWS_INTERNAL, NULL, "%s has no uneven parts", tws_collective_name(collective));
  return work->flags & TWS_UNEVEN ? check_counts(plan, work, segment, err) : TWS_OK;
}
