/* Measurements that other software left: what ran, how often and how long, read from its logs and traces.
 *
 * tws_recording_read() tells the format by the file's beginning and reads:
 *   - traces of PyTorch's profiler (Kineto; Chrome trace JSON, also gzip): kernels of devices, or operators of the
 *     processor by their own time where there are none, and ProfilerStep#N. A file is read as a stream: memory is
 *     bounded by the number of different kernels and by 2^20 operators of the processor.
 *   - nsys's export of a report to SQLite: CUPTI_ACTIVITY_KIND_KERNEL, ranges of NVTX named step or iteration
 *   - TensorBoard's event files: scalars of step times, or the time between steps
 *   - step logs: CSV with a header, JSON lines, lines of Megatron-LM and of Hugging Face's Trainer
 *   - `nvidia-smi --query-gpu=... --format=csv`: name, memory and clocks
 * Logs of nccl-tests and rccl-tests are models/hardware/nccl_tests.h's.
 * Errors are TWS_INVALID with file, line where there are lines, and a remedy; TWS_UNSUPPORTED without a library. */
#ifndef TWS_TRACES_RECORDING_H
#define TWS_TRACES_RECORDING_H

#include <stddef.h>
#include <stdint.h>
#include "base/memory.h"
#include "base/status.h"

typedef enum tws_recording_format {
  TWS_RECORDING_KINETO,
  TWS_RECORDING_NSYS,
  TWS_RECORDING_EVENTS,
  TWS_RECORDING_CSV,
  TWS_RECORDING_JSON_LINES,
  TWS_RECORDING_MEGATRON,
  TWS_RECORDING_TRAINER,
  TWS_RECORDING_SMI,
  TWS_RECORDING_NCCL_TESTS /* named only: not read here */
} tws_recording_format;
const char *tws_recording_format_name(int format);

/* A kernel, or an operator of the processor, by its name. `under`: the operator that called it, for one whose own name
 * says nothing; "": none. Both are the recording's. */
typedef struct tws_recorded_kernel {
  const char *name, *under;
  int64_t calls;
  double seconds; /* of all calls, of all devices */
} tws_recorded_kernel;

/* A collective of a device by its size: bytes of the whole tensor, as models/hardware/profile.h counts them. */
typedef struct tws_recorded_collective {
  const char *name; /* "allreduce", "_allgather_base": the recording's */
  int ranks;
  double bytes, seconds; /* seconds: of all calls */
  int64_t calls;
} tws_recorded_collective;

typedef struct tws_recorded_step {
  double seconds;
  int64_t sequence, micro_batch; /* 0: not said */
} tws_recorded_step;

typedef struct tws_recording {
  tws_recording_format format;
  tws_arena *arena;
  tws_recorded_kernel *kernels;
  size_t kernel_count, kernel_capacity;
  tws_recorded_collective *collectives;
  size_t collective_count, collective_capacity;
  tws_recorded_step *steps;
  size_t step_count, step_capacity;
  int64_t *slots; /* a hash table over kernels: index + 1 */
  size_t slot_count;
  int devices;         /* whose kernels are summed up; at least 1 */
  int on_device;       /* kernels of devices; 0: operators of the processor */
  char device[128];    /* its name as the driver has it; "": not said */
  double device_bytes; /* 0: not said */
  double clock_mhz;    /* median of the multiprocessors' clocks; 0: not said */
  int64_t left_out;    /* events that were too large, or beyond what is kept */
} tws_recording;

/* The caller frees *out in any case. */
tws_code tws_recording_read(const char *path, tws_recording *out, tws_error *err);
void tws_recording_free(tws_recording *recording);

/* The median of the steps but the first, which warms up, where there are three or more; 0 without any. */
double tws_recording_step_s(const tws_recording *recording);

/* ---- for the readers ---- */
tws_code tws_recording_add_kernel(tws_recording *r, const char *name, const char *under, int64_t calls, double seconds,
                                  tws_error *err);
tws_code tws_recording_add_step(tws_recording *r, double seconds, int64_t sequence, int64_t micro_batch,
                                tws_error *err);
tws_code tws_recording_add_collective(tws_recording *r, const char *name, int ranks, double bytes, double seconds,
                                      tws_error *err);
/* Seconds of a step by a name such as "step_time_ms" or "iteration-time" and its value; 0: it is not a step's time. */
double tws_recording_seconds(const char *name, double value);
/* Each reads an open file from its beginning and leaves it open; `path` is for messages. */
tws_code tws_recording_read_kineto(int fd, const char *path, tws_recording *r, tws_error *err);
tws_code tws_recording_read_events(int fd, const char *path, tws_recording *r, tws_error *err);
tws_code tws_recording_read_log(int fd, const char *path, tws_recording *r, tws_error *err);
tws_code tws_recording_read_nsys(const char *path, tws_recording *r, tws_error *err);

#endif
