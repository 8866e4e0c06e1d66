#include "traces/recording.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "traces/measurements.h"

enum { MOST_KERNELS = 1 << 16, MOST_STEPS = 1 << 20, MOST_SIZES = 1024, NAME_LENGTH = 512 };

const char *tws_recording_format_name(int format) {
  return (const char *const[]){"Kineto trace", "nsys export",   "TensorBoard events", "CSV",           "JSON lines",
                               "Megatron log", "Trainer's log", "nvidia-smi CSV",     "nccl-tests log"}[format];
}

void tws_recording_free(tws_recording *r) {
  tws_free(r->kernels);
  tws_free(r->steps);
  tws_free(r->collectives);
  tws_free(r->slots);
  tws_arena_destroy(r->arena);
  *r = (tws_recording){0};
}

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a recording");
}

static uint64_t hash_of(const char *name, const char *under) {
  uint64_t hash = 14695981039346656037u; /* the hash function is FNV-1a */
  for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 1099511628211u;
  for (hash ^= 31; *under; under++) hash = (hash ^ (unsigned char)*under) * 1099511628211u;
  return hash;
}

static int64_t *slot_of(tws_recording *r, const char *name, const char *under) {
  size_t at = (size_t)hash_of(name, under) & (r->slot_count - 1);
  while (r->slots[at]) {
    const tws_recorded_kernel *k = &r->kernels[r->slots[at] - 1];
    if (strcmp(k->name, name) == 0 && strcmp(k->under, under) == 0) break;
    at = (at + 1) & (r->slot_count - 1);
  }
  return &r->slots[at];
}

tws_code tws_recording_add_kernel(tws_recording *r, const char *name, const char *under, int64_t calls, double seconds,
                                  tws_error *err) {
  char shortened[NAME_LENGTH];
  if (!isfinite(seconds) || seconds < 0 || seconds > 1e9 || calls < 0) return TWS_OK;
  if (!r->slots) {
    r->slot_count = 2 * MOST_KERNELS;
    r->slots = tws_calloc(r->slot_count, sizeof *r->slots);
    if (!r->arena) r->arena = tws_arena_create();
    if (!r->slots || !r->arena) return no_memory(err);
  }
  if (strlen(name) >= NAME_LENGTH) {
    memcpy(shortened, name, NAME_LENGTH - 1);
    shortened[NAME_LENGTH - 1] = '\0';
    name = shortened;
  }
  int64_t *slot = slot_of(r, name, under);
  if (!*slot) {
    if (r->kernel_count == MOST_KERNELS) {
      r->left_out++;
      return TWS_OK;
    }
    if (tws_reserve(&r->kernels, &r->kernel_capacity, r->kernel_count + 1, sizeof *r->kernels)) return no_memory(err);
    tws_recorded_kernel *k = &r->kernels[r->kernel_count];
    *k = (tws_recorded_kernel){tws_arena_strdup(r->arena, name), tws_arena_strdup(r->arena, under), 0, 0};
    if (!k->name || !k->under) return no_memory(err);
    *slot = (int64_t)++r->kernel_count;
  }
  r->kernels[*slot - 1].calls += calls;
  r->kernels[*slot - 1].seconds += seconds;
  return TWS_OK;
}

tws_code tws_recording_add_collective(tws_recording *r, const char *name, int ranks, double bytes, double seconds,
                                      tws_error *err) {
  if (ranks < 2 || !(bytes > 0) || !(seconds > 0) || !(bytes < 1e18) || !(seconds < 1e6)) return TWS_OK;
  for (size_t i = 0; i < r->collective_count; i++) {
    tws_recorded_collective *c = &r->collectives[i];
    if (c->ranks != ranks || c->bytes != bytes || strcmp(c->name, name) != 0) continue;
    c->calls++;
    c->seconds += seconds;
    return TWS_OK;
  }
  if (r->collective_count == MOST_SIZES) return TWS_OK;
  if (!r->arena) r->arena = tws_arena_create();
  if (!r->arena ||
      tws_reserve(&r->collectives, &r->collective_capacity, r->collective_count + 1, sizeof *r->collectives))
    return no_memory(err);
  r->collectives[r->collective_count] =
      (tws_recorded_collective){tws_arena_strdup(r->arena, name), ranks, bytes, seconds, 1};
  return r->collectives[r->collective_count++].name ? TWS_OK : no_memory(err);
}

tws_code tws_recording_add_step(tws_recording *r, double seconds, int64_t sequence, int64_t micro_batch,
                                tws_error *err) {
  if (!(seconds > 0) || !(seconds < 1e7) || r->step_count == MOST_STEPS) return TWS_OK;
  if (tws_reserve(&r->steps, &r->step_capacity, r->step_count + 1, sizeof *r->steps)) return no_memory(err);
  r->steps[r->step_count++] = (tws_recorded_step){seconds, sequence, micro_batch};
  return TWS_OK;
}

double tws_recording_step_s(const tws_recording *r) {
  const size_t first = r->step_count > 2;
  double *values = tws_calloc(r->step_count + 1, sizeof *values), median = 0;
  for (size_t i = first; values && i < r->step_count; i++) values[i - first] = r->steps[i].seconds;
  if (values && r->step_count) median = tws_sample_median(values, r->step_count - first);
  tws_free(values);
  return median;
}
