/* Reads measurements from logs and traces of other software: which kernels ran, how often and how long.
 *
 * tws_recording_read() detects the format by the beginning of the file and reads one of:
 *   - traces of PyTorch's profiler (Kineto; Chrome trace JSON, also gzip): kernels of devices, or, if it
 *     has none, CPU operators with their own time, and ProfilerStep#N. A file is read as a stream: memory is bounded by
 *     the number of different kernels and by 2^20 CPU operators.
 *   - nsys's export of a report to SQLite: CUPTI_ACTIVITY_KIND_KERNEL, NVTX ranges named step or iteration
 *   - TensorBoard's event files: scalars of step times, or the time between steps
 *   - step logs: CSV with a header, JSON lines, lines of Megatron-LM and of Hugging Face's Trainer
 *   - `nvidia-smi --query-gpu=... --format=csv`: name, memory and clocks
 * models/hardware/nccl_tests.h reads logs of nccl-tests and rccl-tests.
 * Fails with TWS_INVALID, with the file, the line of a text, and a remedy; with TWS_UNSUPPORTED if this build lacks the
 * library that reads the format. */
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
  TWS_RECORDING_NCCL_TESTS /* logs of nccl-tests, which models/hardware/nccl_tests.h reads */
} tws_recording_format;
const char *tws_recording_format_name(int format);

/* All calls of one kernel, or of one CPU operator, added up. `under`: name of the operator that called it, for an
 * operator whose own name says nothing; "": none. The recording's arena holds both texts. */
typedef struct tws_recorded_kernel {
  const char *name, *under;
  int64_t calls;
  double seconds; /* sum over all calls on all devices */
} tws_recorded_kernel;

/* All calls of one collective of one size, added up. bytes: size of the whole tensor, as models/hardware/profile.h
 * counts them. */
typedef struct tws_recorded_collective {
  const char *name; /* "allreduce", "_allgather_base"; the recording's arena holds it */
  int ranks;
  double bytes, seconds; /* seconds: sum over all calls */
  int64_t calls;
} tws_recorded_collective;

typedef struct tws_recorded_step {
  double seconds;
  int64_t sequence, micro_batch; /* tokens of a sample, samples of a micro-batch; 0: not stated */
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
  int64_t *slots; /* hash table over `kernels`: index + 1; 0: an empty slot */
  size_t slot_count;
  int devices;         /* number of devices whose kernels are added up; at least 1 */
  int on_device;       /* 1: `kernels` are kernels of devices; 0: they are CPU operators */
  char device[128];    /* name of the device as the driver states it; "": not stated */
  double device_bytes; /* memory of the device; 0: not stated */
  double clock_mhz;    /* median clock of the multiprocessors (SM clock); 0: not stated */
  int64_t left_out;    /* number of events that were dropped: too large, or more than the reader keeps */
} tws_recording;

/* Reads a file of any of the formats into *out. The caller frees *out with tws_recording_free(), after an error too. */
tws_code tws_recording_read(const char *path, tws_recording *out, tws_error *err);
void tws_recording_free(tws_recording *recording);

/* Returns the median seconds of a step, without the first step, which warms up, if there are three or more; 0: there
 * are no steps. */
double tws_recording_step_s(const tws_recording *recording);

/* ---- for the readers: they add what they read to a recording ---- */
tws_code tws_recording_add_kernel(tws_recording *r, const char *name, const char *under, int64_t calls, double seconds,
                                  tws_error *err);
tws_code tws_recording_add_step(tws_recording *r, double seconds, int64_t sequence, int64_t micro_batch,
                                tws_error *err);
tws_code tws_recording_add_collective(tws_recording *r, const char *name, int ranks, double bytes, double seconds,
                                      tws_error *err);
/* Converts a value to the seconds of a step by its name, such as "step_time_ms" or "iteration-time"; returns 0 if the
 * name is not that of a step's time. */
double tws_recording_seconds(const char *name, double value);
/* Read a file of one format into a recording, from its beginning. An open file stays open; `path` is for messages. */
tws_code tws_recording_read_kineto(int fd, const char *path, tws_recording *r, tws_error *err);
tws_code tws_recording_read_events(int fd, const char *path, tws_recording *r, tws_error *err);
tws_code tws_recording_read_log(int fd, const char *path, tws_recording *r, tws_error *err);
tws_code tws_recording_read_nsys(const char *path, tws_recording *r, tws_error *err);

#endif
