#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "models/collective.h"
#include "models/operator.h"
#include "plan/plan.h"

static const char *work_name(const tws_plan *plan, const tws_op *op) {
  const tws_work *work = &plan->works[op->work];
  if (op->kind == TWS_OP_COMPUTE) return tws_kernel_name((tws_kernel)work->code);
  if (op->kind == TWS_OP_COLLECTIVE) return tws_collective_name((tws_collective)work->code);
  return tws_op_kind_name((tws_op_kind)op->kind);
}

const char *tws_op_label(const tws_plan *plan, uint32_t index, char *buffer, int size) {
  const tws_op *op = &plan->ops[index];
  const char *module = op->module != TWS_NONE ? plan->network->modules[op->module].name : "";
  snprintf(buffer, (size_t)size, "%s %s%s%s", tws_phase_name((tws_phase)op->phase), module, *module ? " " : "",
           work_name(plan, op));
  return buffer;
}

static void print_operand(const tws_plan *plan, const tws_operand *operand, int json, tws_text *out) {
  static const char *const access[] = {"?", "R", "W", "RW"};
  const tws_buffer *b = &plan->buffers[operand->buffer];
  uint64_t start = b->offset + operand->offset * tws_dtype_bytes((tws_dtype)b->dtype);
  uint64_t bytes = operand->count * tws_dtype_bytes((tws_dtype)b->dtype);
  if (json) {
    tws_text_add(out,
                 "{\"access\":\"%s\",\"buffer\":%u,\"name\":\"%s\",\"dtype\":\"%s\",\"tier\":\"%s\",\"arena\":\"%s\","
                 "\"first\":%" PRIu64 ",\"count\":%" PRIu64 ",\"address\":%" PRIu64 "}",
                 access[operand->access & 3], operand->buffer, b->name, tws_dtype_name((tws_dtype)b->dtype),
                 tws_tier_name((tws_tier)b->tier), b->lifetime == TWS_LIFETIME_STATE ? "state" : "program",
                 operand->offset, operand->count, start);
    return;
  }
  tws_text_add(out, " %s:%s[%s %s@%" PRIx64 "+%" PRIx64 "]", access[operand->access & 3], b->name,
               tws_dtype_name((tws_dtype)b->dtype), b->lifetime == TWS_LIFETIME_STATE ? "state" : "", start, bytes);
}

/* Prints the partners of an operation: for a collective its group (and the root as an index in the group), for a
 * message the other rank. */
static void print_partners(const tws_plan *plan, const tws_op *op, int json, tws_text *out) {
  if (op->kind == TWS_OP_COLLECTIVE) {
    const tws_work *work = &plan->works[op->work];
    const tws_group *group = &plan->groups[work->group];
    const int rooted = tws_collective_of((tws_collective)work->code)->root != TWS_ROOT_NONE;
    tws_text_add(out, json ? ",\"group\":{\"axis\":\"%s\",\"size\":%d,\"index\":%d}" : " over %s x %d",
                 tws_axes_name(group->axes), group->size, group->index);
    if (rooted) tws_text_add(out, json ? ",\"root\":%u" : ", root %u", op->peer);
  } else if (op->kind == TWS_OP_SEND) {
    tws_text_add(out, json ? ",\"peer\":%u" : " to rank %u", op->peer);
  } else if (op->kind == TWS_OP_RECV) {
    tws_text_add(out, json ? ",\"peer\":%u" : " from rank %u", op->peer);
  }
}

static void print_arguments(const tws_plan *plan, const tws_op *op, int json, tws_text *out) {
  const tws_arguments *arguments = tws_op_arguments(plan, op);
  if (!arguments) return;
  const tws_operator *row = tws_operator_of((tws_kernel)plan->works[op->work].code);
  if (json) tws_text_add(out, ",\"arguments\":{");
  for (int i = 0; i < row->arguments; i++)
    tws_text_add(out, json ? "%s\"%s\":%.17g" : "%s %s=%.17g", json && i ? "," : "", row->argument[i], arguments->a[i]);
  if (json) tws_text_add(out, "}");
}

/* Prints the place where an operation runs and its channel, unless it runs on the device and has no channel. */
static void print_where(const tws_op *op, int json, tws_text *out) {
  const char *place = tws_place_name((tws_place)op->place), *channel = tws_channel_name((tws_channel)op->channel);
  if (op->place != TWS_PLACE_DEVICE) tws_text_add(out, json ? ",\"place\":\"%s\"" : ", on %s", place);
  if (op->channel != TWS_CHANNEL_NONE) tws_text_add(out, json ? ",\"channel\":\"%s\"" : ", channel %s", channel);
}

static void print_op(const tws_plan *plan, uint32_t index, int json, tws_text *out) {
  const tws_op *op = &plan->ops[index];
  const tws_work *work = &plan->works[op->work];
  char label[160];
  tws_op_label(plan, index, label, sizeof label);
  if (json) {
    tws_text_add(
        out,
        "%s\n    {\"op\":%u,\"kind\":\"%s\",\"stream\":\"%s\",\"phase\":\"%s\",\"micro_batch\":%u,\"label\":\"%s\"",
        index ? "," : "", index, tws_op_kind_name((tws_op_kind)op->kind), tws_stream_name((tws_stream)op->stream),
        tws_phase_name((tws_phase)op->phase), op->micro_batch, label);
    print_partners(plan, op, 1, out);
    print_where(op, 1, out);
    print_arguments(plan, op, 1, out);
    tws_text_add(out, ",\"d\":[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "],\"flags\":%u,\"waits\":[",
                 work->d[0], work->d[1], work->d[2], work->d[3], work->d[4], work->flags);
  } else {
    tws_text_add(out, "%6u %-8s mb%-3u %-56s", index, tws_stream_name((tws_stream)op->stream), op->micro_batch, label);
    print_partners(plan, op, 0, out);
    print_where(op, 0, out);
    print_arguments(plan, op, 0, out);
    if (op->dep_count) tws_text_add(out, " waits");
  }
  for (uint32_t i = 0; i < op->dep_count; i++) {
    tws_text_add(out, json ? (i ? ",%u" : "%u") : " %u", plan->deps[op->dep_first + i]);
  }
  if (json) tws_text_add(out, "],\"operands\":[");
  for (uint32_t i = 0; i < op->operand_count; i++) {
    if (json && i) tws_text_add(out, ",");
    print_operand(plan, &plan->operands[op->operand_first + i], json, out);
  }
  tws_text_add(out, json ? "]}" : "\n");
}

tws_code tws_plan_print(const tws_plan *plan, int json, tws_text *out, tws_error *err) {
  char size[32];
  if (json) {
    tws_text_add(out, "{\"schema\":\"twinspeed-plan-1\",\"rank\":%d,\"world\":%d,\"arena_bytes\":{", plan->rank,
                 plan->world);
    for (int t = 0; t < TWS_TIER_COUNT; t++) {
      tws_text_add(out, "%s\"%s\":%" PRIu64, t ? "," : "", tws_tier_name((tws_tier)t),
                   tws_plan_bytes(plan, (tws_tier)t));
    }
    tws_text_add(out, "},\"operations\":[");
  } else {
    tws_text_add(out, "# rank %d of %d: %u operations, %u buffers, %u dependencies between streams, arena %s\n",
                 plan->rank, plan->world, plan->op_count, plan->buffer_count, plan->dep_count,
                 tws_format_bytes((double)tws_plan_bytes(plan, TWS_TIER_DEVICE), size, sizeof size));
    tws_text_add(out,
                 "#   op stream   micro label; waits: operations of other streams; operands: access:buffer[type "
                 "@address+bytes], state@ in the arena that lives between programs\n");
  }
  for (uint32_t op = 0; op < plan->op_count; op++) print_op(plan, op, json, out);
  if (json) tws_text_add(out, "\n]}\n");
  return out->failed ? tws_fail(err, TWS_MEMORY, NULL, "no memory to print the plan") : TWS_OK;
}
