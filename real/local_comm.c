#include "real/local_comm.h"

#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "models/collective.h"
#include "real/shared_comm.h"

typedef struct call {
  const tws_collective_row *row;
  int root, members;
  const tws_comm_segment *const *segments;
  const void **from; /* [member] addresses of the summands */
  void **to;
} call;

static tws_code sum_segment(const call *c, int s, tws_error *err) {
  const tws_comm_segment *first = &c->segments[0][s];
  const uint64_t part = first->count * tws_dtype_bytes(first->dtype);
  int receivers = 0;
  if (!tws_ordered_sum_supports(first->dtype))
    return tws_fail(err, TWS_UNSUPPORTED, "use fp32, bf16 or fp16", "sums of %s are not supported on the host",
                    tws_dtype_name(first->dtype));
  for (int m = 0; m < c->members; m++) c->from[m] = c->segments[m][s].send;
  if (!c->row->sends_parts) {
    for (int m = 0; m < c->members; m++)
      if (c->row->root == TWS_ROOT_NONE || m == c->root) c->to[receivers++] = c->segments[m][s].receive;
    tws_ordered_sum(first->dtype, c->from, c->members, c->to, receivers, first->count);
    return TWS_OK;
  }
  for (int to = 0; to < c->members; to++) {
    for (int m = 0; m < c->members; m++) c->from[m] = (const char *)c->segments[m][s].send + (uint64_t)to * part;
    c->to[0] = c->segments[to][s].receive;
    tws_ordered_sum(first->dtype, c->from, c->members, c->to, 1, first->count);
  }
  return TWS_OK;
}

static tws_code move_part(const call *c, int s, int from, int to, tws_error *err) {
  const tws_comm_segment *send = &c->segments[from][s], *receive = &c->segments[to][s];
  const uint64_t size = tws_dtype_bytes(send->dtype), part = send->count * size;
  uint64_t bytes = part;
  if (receive->counts) {
    const int32_t counted = receive->counts[c->members + from];
    if (counted < 0 || (uint64_t)counted > receive->count)
      return tws_fail(err, TWS_RANK, "raise the capacity that the plan was made for",
                      "%d elements are expected, and there is room for %" PRIu64, counted, receive->count);
    bytes = (uint64_t)counted * size;
  }
  const char *source = (const char *)send->send + (c->row->sends_parts ? (uint64_t)to * part : 0);
  char *target = (char *)receive->receive + (c->row->receives_parts ? (uint64_t)from * part : 0);
  if (source != target && bytes > 0) memcpy(target, source, bytes);
  return TWS_OK;
}

static tws_code move_segment(const call *c, int s, tws_error *err) {
  for (int to = 0; to < c->members; to++)
    for (int from = 0; from < c->members; from++)
      if (tws_collective_moves(c->row, c->members, from, to, c->root)) TWS_TRY(move_part(c, s, from, to, err));
  return TWS_OK;
}

tws_code tws_local_collective(tws_collective collective, int root, const tws_comm_segment *const *segments, int members,
                              int count, tws_error *err) {
  call c = {.row = tws_collective_of(collective), .root = root, .members = members, .segments = segments};
  if (c.row->pattern == TWS_PATTERN_SIGNAL) return TWS_OK;
  c.from = tws_calloc((size_t)members, sizeof *c.from);
  c.to = tws_calloc((size_t)members, sizeof *c.to);
  tws_code code = c.from && c.to ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int s = 0; s < count && code == TWS_OK; s++)
    code = c.row->reduces ? sum_segment(&c, s, err) : move_segment(&c, s, err);
  tws_free(c.from);
  tws_free(c.to);
  return code;
}
