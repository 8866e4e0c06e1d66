/* The instructions of DeepSpeed's pipeline schedules (TrainSchedule, InferenceSchedule, DataParallelSchedule), step by
 * step: what the orders of plan/pipeline_schedule.h are compared with. */
#ifndef TWS_COMPAT_DEEPSPEED_INSTRUCTIONS_H
#define TWS_COMPAT_DEEPSPEED_INSTRUCTIONS_H

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
const char *tws_instruction_name(tws_instruction_kind kind);

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

tws_code tws_instruction_check(const tws_instruction_schedule *schedule, tws_error *err);
/* Steps, numbered from 0, and activation buffers, of a schedule that passes the check. */
int64_t tws_instruction_steps(const tws_instruction_schedule *schedule);
int tws_instruction_buffers(const tws_instruction_schedule *schedule);
/* TRAIN: the micro-batch that a step would work on, outside 0 .. micro_batches - 1 when it has none. */
int64_t tws_instruction_micro_batch(const tws_instruction_schedule *schedule, int64_t step, int *forward);
/* Instructions of a step in order; returns how many. */
int tws_instruction_step(const tws_instruction_schedule *schedule, int64_t step,
                         tws_instruction instructions[TWS_STEP_INSTRUCTIONS]);

#endif
