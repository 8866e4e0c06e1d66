#include "real/calibrate_device.h"
#include <stdio.h>
#include <string.h>
#include "base/memory.h"
#include "base/random.h"
#include "base/units.h"
#include "real/stopwatch.h"

/* ---- values ---- */

enum { FIRST_BYTES = 1 << 20 };

tws_code tws_calibrate_fill(const tws_backend_ops *ops, tws_backend *backend, void *memory, uint64_t bytes,
                            tws_error *err) {
  uint16_t *values = tws_calloc(FIRST_BYTES / 2, sizeof *values);
  if (!values) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (uint32_t i = 0; i < FIRST_BYTES / 2; i += 8) {
    uint32_t word[4];
    tws_philox(1, 0, i, word);
    for (uint32_t j = 0; j < 8 && i + j < FIRST_BYTES / 2; j++) {
      const uint32_t bits = word[j / 2] >> 16 * (j % 2);
      values[i + j] = (uint16_t)((bits & 0x8000u) | 0x3e00u | (bits & 0x1ffu));
    }
  }
  uint64_t done = bytes < FIRST_BYTES ? bytes : FIRST_BYTES;
  tws_code code = ops->copy(backend, memory, values, done, TWS_STREAM_COMPUTE, err);
  tws_free(values);
  while (code == TWS_OK && done < bytes) { /* each pass doubles the filled range */
    const uint64_t part = bytes - done < done ? bytes - done : done;
    code = ops->copy(backend, (char *)memory + done, memory, part, TWS_STREAM_COMPUTE, err);
    done += part;
  }
  return code == TWS_OK ? ops->synchronize(backend, err) : code;
}

/* ---- the device ---- */

tws_code tws_calibrate_describe(const tws_calibrate_device *on, tws_measurements *m, tws_error *err) {
  tws_cuda_device device;
  tws_cuda_memory memory;
  char text[320], libraries[320];
  int devices = 0, length;
  TWS_TRY(on->cuda->device(&device, err));
  TWS_TRY(on->cuda->memory(on->backend, &memory, err));
  TWS_TRY(on->cuda->device_count(&devices, err));
  on->cuda->describe(on->backend, libraries, (int)sizeof libraries);
  snprintf(m->device, sizeof m->device, "%s", device.name);
  m->device_bytes = (double)memory.total;
  m->overhead_bytes = (double)(memory.used - memory.arenas);
  m->shared_device = on->world > devices;
  snprintf(m->description, sizeof m->description, "%.158s, NCCL %d.%d.%d%s%s", libraries, device.nccl / 10000,
           device.nccl / 100 % 100, device.nccl % 100, device.driver[0] ? ", driver " : "", device.driver);
  length = snprintf(text, sizeof text, "%d multiprocessors, %.0f MiB of second-level cache", device.multiprocessors,
                    (double)device.l2_bytes / 1048576);
  if (device.sm_limit_mhz > 0 && length > 0)
    snprintf(text + length, sizeof text - (size_t)length,
             "; multiprocessors at %d MHz after measuring, %d at most; memory at %d MHz; power limit %d W",
             device.sm_mhz, device.sm_limit_mhz, device.memory_mhz, device.power_limit_w);
  TWS_TRY(tws_measurements_add_note(m, "device", text, err));
  snprintf(text, sizeof text, "%.0f MiB when ready, %.0f MiB for workspaces, %.0f MiB for libraries since",
           (double)memory.context / 1048576, (double)memory.workspace / 1048576, (double)memory.libraries / 1048576);
  return tws_measurements_add_note(m, "memory outside arenas", text, err);
}

/* ---- starting work ---- */

typedef struct something {
  const tws_backend_ops *ops;
  tws_backend *backend;
  void *to, *from;
  uint64_t bytes;
} something;

static tws_code tiny_kernel(void *user, tws_error *err) {
  const something *s = user;
  const tws_work work = {.code = TWS_KERNEL_FILL, .dtype = TWS_F32, .dtype2 = TWS_F32, .d = {16}};
  const tws_dtype dtype = TWS_F32;
  return s->ops->run(s->backend, &work, NULL, (void *const[]){s->to}, &dtype, 1, TWS_STREAM_COMPUTE, err);
}

static tws_code host_seconds(something *s, tws_timed start, int times, double *seconds, tws_error *err) {
  TWS_TRY(s->ops->synchronize(s->backend, err));
  const double started = tws_clock_s();
  for (int i = 0; i < times; i++) TWS_TRY(start(s, err));
  TWS_TRY(s->ops->synchronize(s->backend, err));
  *seconds = (tws_clock_s() - started) / times;
  return TWS_OK;
}

static tws_code replay(void *user, tws_error *err) {
  const something *s = user;
  TWS_TRY(s->ops->replay(s->backend, err));
  return s->ops->synchronize(s->backend, err);
}

static tws_code note_starts(something *s, tws_measurements *m, tws_error *err) {
  enum { TIMES = 256 };
  tws_stopwatch watch = {.ops = s->ops, .backend = s->backend};
  double apart = 0, together = 0, recording = 0;
  char text[320], a[32], b[32], c[32];
  TWS_TRY(tiny_kernel(s, err));
  TWS_TRY(host_seconds(s, tiny_kernel, TIMES, &apart, err));
  TWS_TRY(tws_stopwatch_measure(&watch, tiny_kernel, NULL, s, TIMES, &together, err));
  if (watch.one_by_one) return TWS_OK;
  /* records one execution as a CUDA graph, which is then replayed */
  TWS_TRY(tws_stopwatch_measure(&watch, tiny_kernel, NULL, s, 1, &recording, err));
  TWS_TRY(host_seconds(s, replay, TIMES, &recording, err));
  snprintf(text, sizeof text,
           "%s a kernel started by the host, %s in a recording; %s to start a recording of one and see its end",
           tws_format_seconds(apart, a, sizeof a), tws_format_seconds(together, b, sizeof b),
           tws_format_seconds(recording, c, sizeof c));
  return tws_measurements_add_note(m, "smallest kernels", text, err);
}

/* ---- copies ---- */

static tws_code one_copy(void *user, tws_error *err) {
  const something *s = user;
  return s->ops->copy(s->backend, s->to, s->from, s->bytes, TWS_STREAM_COMPUTE, err);
}

/* Adds a note like "4 KiB 2.1 us, ... 256 MiB 4.8 ms (55 GB/s)". Times are those of the device's clock or, if `waits`,
 * those of the host's clock, with a wait for each copy. */
static tws_code note_copies(something *s, const char *key, int waits, uint64_t most, tws_measurements *m,
                            tws_error *err) {
  tws_stopwatch watch = {.ops = s->ops, .backend = s->backend};
  char text[320] = "", size[32], time[32];
  size_t length = 0;
  double seconds = 1;
  for (s->bytes = 4096; s->bytes <= most; s->bytes *= 16) {
    const int times = s->bytes > 1u << 24 ? 4 : 32;
    TWS_TRY(one_copy(s, err));
    TWS_TRY(waits ? host_seconds(s, one_copy, times, &seconds, err)
                  : tws_stopwatch_measure(&watch, one_copy, NULL, s, times, &seconds, err));
    length += (size_t)snprintf(text + length, sizeof text - length, "%s%s %s", length ? ", " : "",
                               tws_format_bytes((double)s->bytes, size, sizeof size),
                               tws_format_seconds(seconds, time, sizeof time));
  }
  snprintf(text + length, sizeof text - length, " (%.1f GB/s)", (double)s->bytes / 16 / seconds * 1e-9);
  return tws_measurements_add_note(m, key, text, err);
}

static tws_code copies(const tws_calibrate_device *on, uint64_t most, void *memory[], tws_measurements *m,
                       tws_error *err) {
  enum { DEVICE, OTHER, PINNED, PAGEABLE };
  static const struct {
    const char *key;
    int to, from, waits;
  } kinds[] = {{"copies within the device", DEVICE, OTHER, 0},
               {"copies from pinned memory", DEVICE, PINNED, 0},
               {"copies to pinned memory", PINNED, DEVICE, 0},
               {"copies from pageable memory", DEVICE, PAGEABLE, 1},
               {"copies to pageable memory", PAGEABLE, DEVICE, 1}};
  something s = {.ops = on->cuda->backend, .backend = on->backend, .to = memory[DEVICE]};
  TWS_TRY(note_starts(&s, m, err));
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    s.to = memory[kinds[i].to];
    s.from = memory[kinds[i].from];
    TWS_TRY(note_copies(&s, kinds[i].key, kinds[i].waits, most, m, err));
  }
  return TWS_OK;
}

tws_code tws_calibrate_extras(const tws_calibrate_device *on, uint64_t most_bytes, tws_measurements *m,
                              tws_error *err) {
  static const tws_tier tiers[] = {TWS_TIER_DEVICE, TWS_TIER_DEVICE, TWS_TIER_PINNED, TWS_TIER_HOST};
  const tws_backend_ops *ops = on->cuda->backend;
  uint64_t most = 256u << 20;
  void *memory[4] = {NULL};
  if (most_bytes > 0 && most > most_bytes) most = most_bytes;
  if (most < 4096) most = 4096;
  tws_code code = TWS_OK;
  for (int i = 0; i < 4 && code == TWS_OK; i++) code = ops->allocate(on->backend, tiers[i], most, &memory[i], err);
  if (code == TWS_OK && memory[3]) memset(memory[3], 1, most); /* touches all pages before the measurement */
  if (code == TWS_OK) code = copies(on, most, memory, m, err);
  for (int i = 0; i < 4; i++)
    if (memory[i]) ops->release(on->backend, tiers[i], memory[i]);
  return code;
}

/* ---- sustained load ---- */

enum { SUSTAINED_RUNS = 64, SUSTAINED_LOOKS = 256 };

static tws_code many_runs(const tws_calibrate_device *on, int one_by_one, tws_timed start, void *user, tws_error *err) {
  if (!one_by_one) return on->cuda->backend->replay(on->backend, err);
  for (int i = 0; i < SUSTAINED_RUNS; i++) TWS_TRY(start(user, err));
  return TWS_OK;
}

/* Repeats SUSTAINED_RUNS executions between two time stamps of the device until for_s seconds have passed; reading the
 * time stamps takes microseconds, the executions milliseconds. The last third of the results is used. */
tws_code tws_calibrate_sustain(const tws_calibrate_device *on, tws_timed start, void *user, double for_s,
                               double *seconds, tws_error *err) {
  const tws_backend_ops *ops = on->cuda->backend;
  double looks[SUSTAINED_LOOKS], moments[2], from = 0;
  size_t count = 0;
  TWS_TRY(ops->synchronize(on->backend, err));
  tws_code code = ops->record(on->backend, 1, err);
  const int one_by_one = code == TWS_UNSUPPORTED;
  if (code != TWS_OK && !one_by_one) return code;
  if (!one_by_one) {
    TWS_TRY(many_runs(on, 1, start, user, err));
    TWS_TRY(ops->record(on->backend, 0, err));
  }
  for (const double began = tws_clock_s(); count == 0 || tws_clock_s() - began < for_s;) {
    TWS_TRY(ops->mark(on->backend, TWS_STREAM_COMPUTE, 0, err));
    TWS_TRY(many_runs(on, one_by_one, start, user, err));
    TWS_TRY(ops->mark(on->backend, TWS_STREAM_COMPUTE, 1, err));
    TWS_TRY(ops->marked(on->backend, 2, moments, err));
    from = tws_clock_s() - began;
    if (count > 0 && from < 2 * for_s / 3) count = 0; /* results of the first two thirds are not used */
    looks[count++ % SUSTAINED_LOOKS] = (moments[1] - moments[0]) / SUSTAINED_RUNS;
  }
  *seconds = tws_sample_median(looks, count < SUSTAINED_LOOKS ? count : SUSTAINED_LOOKS);
  return TWS_OK;
}
