/* Describes operations for traces: sizes, shapes, groups, and which operations of different ranks meet. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/fingerprint.h"
#include "models/collective.h"
#include "models/operator.h"
#include "plan/plan.h"

uint64_t tws_op_meeting(const tws_plan *plan, uint32_t index) {
  const tws_op *op = &plan->ops[index];
  uint64_t id = TWS_FINGERPRINT_START;
  if (op->kind == TWS_OP_COLLECTIVE) {
    const tws_group *group = &plan->groups[plan->works[op->work].group];
    if (group->size < 2) return 0;
    id = tws_fingerprint_bytes(id, group->ranks, (size_t)group->size * sizeof *group->ranks);
    id = tws_fingerprint_integer(id, group->axes);
  } else if (op->kind == TWS_OP_SEND || op->kind == TWS_OP_RECV) {
    const int sends = op->kind == TWS_OP_SEND;
    id = tws_fingerprint_integer(id, sends ? plan->rank : (int64_t)op->peer);
    id = tws_fingerprint_integer(id, sends ? (int64_t)op->peer : plan->rank);
    id = tws_fingerprint_integer(id, -1);
  } else {
    return 0;
  }
  id = tws_fingerprint_integer(id, op->match);
  return id ? id : 1;
}

uint64_t tws_op_bytes(const tws_plan *plan, uint32_t index) {
  const tws_op *op = &plan->ops[index];
  const tws_work *work = &plan->works[op->work];
  uint64_t bytes = 0;
  if (op->kind == TWS_OP_COMPUTE || op->kind == TWS_OP_HOST) return (uint64_t)tws_work_bytes(work);
  if (work->d[0] > 0 || op->kind == TWS_OP_COLLECTIVE) return work->d[0] > 0 ? (uint64_t)work->d[0] : 0;
  for (uint32_t i = 0; i < op->operand_count; i++) {
    const tws_operand *o = &plan->operands[op->operand_first + i];
    bytes += o->count * tws_dtype_bytes((tws_dtype)plan->buffers[o->buffer].dtype);
  }
  return bytes;
}

/* A text buffer of `size` bytes that is extended at its end; text beyond this size is cut off. */
typedef struct limited {
  char *text;
  int size, length;
} limited;

static void add(limited *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(limited *to, const char *format, ...) {
  va_list list;
  const int room = to->size - to->length;
  va_start(list, format);
  const int length = vsnprintf(to->text + to->length, (size_t)room, format, list);
  va_end(list);
  if (length > 0 && length < room)
    to->length += length;
  else
    to->text[to->length] = '\0';
}

static void add_shape(const tws_work *work, limited *to) {
  const tws_operator *row = tws_operator_of((tws_kernel)work->code);
  if (!row || row->dims == 0) return;
  add(to, ",\"shape\":\"");
  for (int i = 0; i < row->dims; i++) add(to, "%s%s %" PRId64, i ? ", " : "", row->dim[i], work->d[i]);
  add(to, "\"");
}

static const char *pattern_name(tws_collective collective) {
  static const char *const names[] = {[TWS_PATTERN_RING] = "ring",
                                      [TWS_PATTERN_CHAIN] = "chain",
                                      [TWS_PATTERN_PAIRS] = "pairs",
                                      [TWS_PATTERN_SIGNAL] = "signal"};
  return names[tws_collective_of(collective)->pattern];
}

const char *tws_op_detail(const tws_plan *plan, uint32_t index, const char *algorithm, char *buffer, int size) {
  const tws_op *op = &plan->ops[index];
  const tws_work *work = &plan->works[op->work];
  limited to = {.text = buffer, .size = size};
  buffer[0] = '\0';
  add(&to, "\"bytes\":%" PRIu64, tws_op_bytes(plan, index));
  if (op->kind == TWS_OP_COMPUTE || op->kind == TWS_OP_HOST) {
    add(&to, ",\"flops\":%.0f", tws_work_flops(work));
    add_shape(work, &to);
  }
  add(&to, ",\"dtype\":\"%s\"", tws_dtype_name((tws_dtype)work->dtype));
  if (op->kind == TWS_OP_COLLECTIVE) {
    const tws_group *group = &plan->groups[work->group];
    add(&to, ",\"group\":\"%s\",\"ranks\":%d,\"algorithm\":\"%s\"", tws_axes_name(group->axes), group->size,
        algorithm ? algorithm : pattern_name((tws_collective)work->code));
    if (tws_collective_of((tws_collective)work->code)->root != TWS_ROOT_NONE) add(&to, ",\"root\":%u", op->peer);
    if (work->segments > 1) add(&to, ",\"segments\":%u", work->segments);
  } else if (op->kind == TWS_OP_SEND || op->kind == TWS_OP_RECV) {
    add(&to, ",\"peer\":%u", op->peer);
    if (algorithm) add(&to, ",\"algorithm\":\"%s\"", algorithm);
  }
  return buffer;
}
