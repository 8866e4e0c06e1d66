/* The instructions of DeepSpeed's pipeline schedules (TrainSchedule, InferenceSchedule, DataParallelSchedule), step by
 * step: what the orders of plan/pipeline_schedule.h are compared with. */
#ifndef TWS_TESTS_DEEPSPEED_INSTRUCTIONS_H
#define TWS_TESTS_DEEPSPEED_INSTRUCTIONS_H

#include "plan/pipeline_schedule.h"
#include <stdint.h>
#include "base/status.h"

#define TWS_INSTRUCTIONS(X)               \
  X(LOAD_MICRO_BATCH, "LoadMicroBatch")   \
  X(FORWARD_PASS, "ForwardPass")          \
  X(BACKWARD_PASS, "BackwardPass")        \
  X(SEND_ACTIVATION, "SendActivation")    \
  X(RECV_ACTIVATION, "RecvActivation")    \
  X(SEND_GRAD, "SendGrad")                \
  X(RECV_GRAD, "RecvGrad")                \
  X(REDUCE_TIED_GRADS, "ReduceTiedGrads") \
  X(REDUCE_GRADS, "ReduceGrads")          \
  X(OPTIMIZER_STEP, "OptimizerStep")
typedef enum tws_instruction_kind {
#define X(name, text) TWS_INSTRUCTION_##name,
  TWS_INSTRUCTIONS(X)
#undef X
      TWS_INSTRUCTION_COUNT
} tws_instruction_kind;
static inline const char *tws_instruction_name(tws_instruction_kind kind);

typedef struct tws_instruction {
  tws_instruction_kind kind;
  int buffer; /* -1: the instruction has none */
} tws_instruction;

typedef enum tws_instruction_schedule_kind {
  TWS_SCHEDULE_TRAIN,
  TWS_SCHEDULE_INFERENCE,
  TWS_SCHEDULE_DATA_PARALLEL
} tws_instruction_schedule_kind;

typedef struct tws_instruction_schedule {
  tws_instruction_schedule_kind kind;
  int stages, stage; /* ignored by DATA_PARALLEL */
  int micro_batches;
} tws_instruction_schedule;

enum { TWS_STEP_INSTRUCTIONS = 8 }; /* no step has more */

static inline tws_code tws_instruction_check(const tws_instruction_schedule *schedule, tws_error *err);
/* Return the number of steps, numbered from 0, and the number of activation buffers of a schedule that passes the
 * check. */
static inline int64_t tws_instruction_steps(const tws_instruction_schedule *schedule);
static inline int tws_instruction_buffers(const tws_instruction_schedule *schedule);
/* Returns the micro-batch of a step of TRAIN, outside 0 .. micro_batches - 1 when the step has none; *forward is 1 in a
 * forward step. */
static inline int64_t tws_instruction_micro_batch(const tws_instruction_schedule *schedule, int64_t step, int *forward);
/* Writes the instructions of a step in order and returns how many there are. */
static inline int tws_instruction_step(const tws_instruction_schedule *schedule, int64_t step,
                                       tws_instruction instructions[TWS_STEP_INSTRUCTIONS]);

/* ---- how ---- */

static inline const char *tws_instruction_name(tws_instruction_kind kind) {
  static const char *const names[TWS_INSTRUCTION_COUNT] = {
#define X(name, text) text,
      TWS_INSTRUCTIONS(X)
#undef X
  };
  return (unsigned)kind < TWS_INSTRUCTION_COUNT ? names[kind] : "unknown";
}

static inline tws_code tws_instruction_check(const tws_instruction_schedule *schedule, tws_error *err) {
  const int alone = schedule->kind == TWS_SCHEDULE_DATA_PARALLEL;
  const tws_pipeline_shape shape = {.kind = TWS_PIPELINE_1F1B,
                                    .stages = alone ? 1 : schedule->stages,
                                    .virtual_stages = 1,
                                    .micro_batches = schedule->micro_batches};
  TWS_TRY(tws_pipeline_check(&shape, err));
  if (alone) return TWS_OK;
  if (schedule->stage < 0 || schedule->stage >= schedule->stages) {
    return tws_fail(err, TWS_INVALID, NULL, "stage %d of a pipeline of %d stages", schedule->stage, schedule->stages);
  }
  return TWS_OK;
}

static inline int64_t tws_instruction_steps(const tws_instruction_schedule *schedule) {
  int64_t slots = (int64_t)schedule->micro_batches + schedule->stages - 1;
  if (schedule->kind == TWS_SCHEDULE_TRAIN) return 2 * slots;
  return schedule->kind == TWS_SCHEDULE_INFERENCE ? slots : schedule->micro_batches;
}

static inline int tws_instruction_buffers(const tws_instruction_schedule *schedule) {
  if (schedule->kind == TWS_SCHEDULE_DATA_PARALLEL) return 1;
  if (schedule->kind == TWS_SCHEDULE_INFERENCE) return 2;
  int after = schedule->stages - schedule->stage;
  int most = after < schedule->micro_batches ? after : schedule->micro_batches;
  return most > 2 ? most : 2;
}

static inline int64_t tws_instruction_micro_batch(const tws_instruction_schedule *schedule, int64_t step,
                                                  int *forward) {
  int64_t s = schedule->stage, stages = schedule->stages;
  /* Forward and backward steps alternate; adjacent stages are in opposite phases. */
  *forward = (step - s) % 2 == 0;
  if (*forward) return step / 2 - s / 2;
  return s % 2 == 0 ? (step - 1) / 2 - stages + 1 + s / 2 : step / 2 - stages + (s + 1) / 2;
}

typedef struct emitter {
  tws_instruction *out;
  int count;
} emitter;

static inline void emit(emitter *e, tws_instruction_kind kind, int64_t buffer) {
  e->out[e->count++] = (tws_instruction){.kind = kind, .buffer = (int)buffer};
}

static inline void train_step(const tws_instruction_schedule *schedule, int64_t step, emitter *e) {
  int64_t micro_batches = schedule->micro_batches, buffers = tws_instruction_buffers(schedule);
  int first = schedule->stage == 0, last = schedule->stage == schedule->stages - 1;
  int forward, ignored;
  int64_t now = tws_instruction_micro_batch(schedule, step, &forward);
  int64_t before = step > 0 ? tws_instruction_micro_batch(schedule, step - 1, &ignored) : -1;
  int has_now = now >= 0 && now < micro_batches, has_before = before >= 0 && before < micro_batches;
  /* One of two neighbouring stages sends first while the other receives first, so that blocking messages pair up. */
  if (forward) {
    if (has_before && !first) emit(e, TWS_INSTRUCTION_SEND_GRAD, before % buffers);
    if (has_now && !first) emit(e, TWS_INSTRUCTION_RECV_ACTIVATION, now % buffers);
    if (has_now && (first || last)) emit(e, TWS_INSTRUCTION_LOAD_MICRO_BATCH, now % buffers);
  } else {
    if (has_now && !last) emit(e, TWS_INSTRUCTION_RECV_GRAD, now % buffers);
    if (has_before && !last) emit(e, TWS_INSTRUCTION_SEND_ACTIVATION, before % buffers);
  }
  if (has_now) emit(e, forward ? TWS_INSTRUCTION_FORWARD_PASS : TWS_INSTRUCTION_BACKWARD_PASS, now % buffers);
  if (step == tws_instruction_steps(schedule) - 1) {
    emit(e, TWS_INSTRUCTION_REDUCE_TIED_GRADS, -1);
    emit(e, TWS_INSTRUCTION_REDUCE_GRADS, -1);
    emit(e, TWS_INSTRUCTION_OPTIMIZER_STEP, -1);
  }
}

static inline void inference_step(const tws_instruction_schedule *schedule, int64_t step, emitter *e) {
  int64_t now = step - schedule->stage;
  int first = schedule->stage == 0, last = schedule->stage == schedule->stages - 1, even = schedule->stage % 2 == 0;
  int64_t receive = even ? step % 2 : (step + 1) % 2, send = 1 - receive;
  int has_now = now >= 0 && now < schedule->micro_batches;
  int sends = !last && now >= 1 && now <= schedule->micro_batches, receives = !first && has_now;
  if (has_now && (first || last)) emit(e, TWS_INSTRUCTION_LOAD_MICRO_BATCH, receive);
  if (sends && even) emit(e, TWS_INSTRUCTION_SEND_ACTIVATION, send);
  if (receives) emit(e, TWS_INSTRUCTION_RECV_ACTIVATION, receive);
  if (sends && !even) emit(e, TWS_INSTRUCTION_SEND_ACTIVATION, send);
  if (has_now) emit(e, TWS_INSTRUCTION_FORWARD_PASS, receive);
}

static inline int tws_instruction_step(const tws_instruction_schedule *schedule, int64_t step,
                                       tws_instruction instructions[TWS_STEP_INSTRUCTIONS]) {
  emitter e = {.out = instructions};
  if (schedule->kind == TWS_SCHEDULE_TRAIN) {
    train_step(schedule, step, &e);
  } else if (schedule->kind == TWS_SCHEDULE_INFERENCE) {
    inference_step(schedule, step, &e);
  } else {
    emit(&e, TWS_INSTRUCTION_LOAD_MICRO_BATCH, 0);
    emit(&e, TWS_INSTRUCTION_FORWARD_PASS, 0);
    emit(&e, TWS_INSTRUCTION_BACKWARD_PASS, 0);
    if (step == tws_instruction_steps(schedule) - 1) {
      emit(&e, TWS_INSTRUCTION_REDUCE_GRADS, -1);
      emit(&e, TWS_INSTRUCTION_OPTIMIZER_STEP, -1);
    }
  }
  return e.count;
}

#endif
