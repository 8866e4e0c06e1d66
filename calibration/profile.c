/* Builds a hardware profile from measurements. */
#include <math.h>
#include <stdio.h>
#include <sys/utsname.h>
#include <time.h>

#include "base/host_memory.h"
#include "base/system.h"
#include "base/units.h"
#include "calibration/calibration.h"

/* The best rates and the sizes in the samples so far, from which properties of the device are derived. */
typedef struct measured_limits {
  double least_bytes;           /* bytes from which an ADD kernel exceeds the caches; 0: 8e6 */
  double peak[TWS_DTYPE_COUNT]; /* largest flop/s of one thread, per type */
  /* bytes/s of ADD kernels that exceed the caches: of one rank, and of all ranks of the node */
  double rank_bandwidth, node_bandwidth;
  /* bytes and bytes/s of the largest ADD kernel, used if no ADD kernel exceeds the caches */
  double most_bytes, most_bandwidth;
  int rank_busy;   /* number of busy ranks when rank_bandwidth was measured */
  double launch_s; /* seconds of the shortest kernel */
  double spread;   /* median over all samples of their relative spread, set by finish_limits() */
  double *spreads;
  size_t spread_count, spread_capacity;
} measured_limits;

static void raise_to(double *value, double to) {
  if (to > *value) *value = to;
}

static void note_limits(const tws_kernel_sample *sample, measured_limits *limits) {
  const tws_work *work = &sample->work;
  if (sample->threads == 1) {
    if (work->code == TWS_KERNEL_LINEAR)
      raise_to(&limits->peak[work->flags & TWS_FP8 ? TWS_E4M3 : work->dtype], tws_work_flops(work) / sample->seconds);
    if (limits->launch_s <= 0 || sample->seconds < limits->launch_s) limits->launch_s = sample->seconds;
  }
  double bytes = tws_work_bytes(work), least = limits->least_bytes > 0 ? limits->least_bytes : 8e6;
  if (work->code != TWS_KERNEL_ADD || work->dtype != TWS_F32) return;
  if (bytes > limits->most_bytes) {
    limits->most_bytes = bytes;
    limits->most_bandwidth = bytes / sample->seconds;
  }
  if (bytes < least) return;
  if (sample->busy <= limits->rank_busy || limits->rank_busy == 0) { /* rank_bandwidth: with the fewest busy ranks */
    if (sample->busy < limits->rank_busy) limits->rank_bandwidth = 0;
    limits->rank_busy = sample->busy;
    raise_to(&limits->rank_bandwidth, bytes / sample->seconds);
  }
  raise_to(&limits->node_bandwidth, sample->busy * bytes / sample->seconds);
}

/* ---- under load ---- */

/* Sustained load. longer: factor by which arithmetic takes longer without pauses than in the short measurements;
 * flops_per_byte: arithmetic intensity above which a kernel is bound by arithmetic and not by memory. */
typedef struct sustained_load {
  double longer, flops_per_byte;
} sustained_load;

static sustained_load load_of(const tws_measurements *m) {
  double most_bytes = 0, bandwidth = 0;
  for (size_t i = 0; i < m->kernel_count; i++) { /* the bandwidth is that of the largest float32 ADD */
    const tws_kernel_sample *s = &m->kernels[i];
    const double bytes = tws_work_bytes(&s->work);
    if (s->work.code != TWS_KERNEL_ADD || s->work.dtype != TWS_F32 || bytes < most_bytes || !(s->seconds > 0)) continue;
    most_bytes = bytes;
    bandwidth = bytes / s->seconds;
  }
  const double clearly = 1.01;
  if (!(m->sustained_reference_s > clearly * m->reference_s) || !(m->reference_s > 0) || !(bandwidth > 0))
    return (sustained_load){1, 0};
  return (sustained_load){m->sustained_reference_s / m->reference_s, m->reference_flops / m->reference_s / bandwidth};
}

static double under_load(const tws_kernel_sample *sample, const sustained_load *load) {
  const tws_work *work = &sample->work;
  const int half = work->dtype == TWS_BF16 || work->dtype == TWS_F16;
  const int bound = half && tws_work_flops(work) > load->flops_per_byte * tws_work_bytes(work);
  return sample->seconds * (bound ? load->longer : 1);
}

/* Appends a sentence with the rates of a matrix product in bursts and under sustained load; appends nothing if no
 * sustained load was measured. */
static void describe_load(const tws_measurements *m, char *text, size_t size) {
  char burst[48], sustained[48];
  const sustained_load load = load_of(m);
  if (size > 0) text[0] = '\0';
  if (!(m->sustained_reference_s > 0) || !(m->reference_s > 0)) return;
  snprintf(text, size,
           "; the reference product did %s in bursts and %s after %.1f s of it and of sums without a rest: %s",
           tws_format_rate(m->reference_flops / m->reference_s, "FLOP/s", burst, sizeof burst),
           tws_format_rate(m->reference_flops / m->sustained_reference_s, "FLOP/s", sustained, sizeof sustained),
           m->sustained_for_s,
           load.longer > 1 ? "what arithmetic bounds in 16-bit types takes as much longer here than it was measured"
                           : "times are as measured");
}

/* Adds the samples of one run to a profile, and raises the members of `limits` to the best values of this run. */
static tws_code merge_run(const tws_measurements *m, tws_profile_builder *builder, measured_limits *limits,
                          tws_error *err) {
  if (tws_reserve(&limits->spreads, &limits->spread_capacity,
                  limits->spread_count + m->kernel_count + m->collective_count + 1, sizeof *limits->spreads))
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for the measurements");
  const sustained_load load = load_of(m);
  for (size_t i = 0; i < m->kernel_count; i++) {
    tws_kernel_sample sample = m->kernels[i];
    if (!(sample.seconds > 0)) continue;
    sample.seconds = under_load(&sample, &load);
    TWS_TRY(tws_profile_builder_rereading(builder, &sample.work, sample.threads, sample.busy, sample.reread_bytes,
                                          sample.seconds, err));
    if (!(sample.reread_bytes > 0)) note_limits(&sample, limits); /* limits are those of kernels that read memory */
    limits->spreads[limits->spread_count++] = sample.spread;
  }
  for (size_t i = 0; i < m->collective_count; i++) {
    const tws_collective_sample *sample = &m->collectives[i];
    TWS_TRY(tws_profile_builder_collective(builder, sample->collective, sample->ranks, sample->bytes, sample->seconds,
                                           err));
    limits->spreads[limits->spread_count++] = sample->spread;
  }
  /* ranks that shared a device copied over its one link, which says nothing about several devices */
  if (m->copies.to_device > 0 && !m->shared_device) tws_profile_builder_copies(builder, m->world, &m->copies);
  if (m->passes.pass_s > 0) tws_profile_builder_passes(builder, &m->passes);
  for (size_t i = 0; i < m->message_count; i++)
    TWS_TRY(tws_profile_builder_p2p(builder, m->messages[i].bytes, m->messages[i].seconds, err));
  return TWS_OK;
}

/* Writes the limits to the builder and frees the memory that they use. */
static void finish_limits(measured_limits *limits, tws_profile_builder *builder) {
  for (int i = 0; i < TWS_DTYPE_COUNT; i++)
    if (limits->peak[i] > 0) tws_profile_builder_peak(builder, (tws_dtype)i, limits->peak[i]);
  if (limits->rank_bandwidth <= 0) limits->rank_bandwidth = limits->most_bandwidth;
  if (limits->rank_bandwidth > 0)
    tws_profile_builder_bandwidth(builder, limits->rank_bandwidth, limits->node_bandwidth);
  if (limits->launch_s > 0) tws_profile_builder_launch(builder, limits->launch_s);
  if (limits->spread_count > 0) limits->spread = tws_sample_median(limits->spreads, limits->spread_count);
  tws_free(limits->spreads);
  limits->spreads = 0;
  limits->spread_count = limits->spread_capacity = 0;
}

static void describe_system(tws_profile_builder *b, const tws_measurements *results, int count,
                            const tws_system *system, const measured_limits *limits) {
  struct utsname os;
  char date[64] = "", line[768], text[128], load[256];
  time_t now = time(NULL);
  struct tm utc;
  if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &utc);
  if (uname(&os) != 0) snprintf(os.release, sizeof os.release, "unknown");
  double drift = 0;
  for (int i = 0; i < count; i++) drift = fmax(drift, tws_calibration_drift(&results[i]));
  tws_profile_builder_noise(b, limits->spread, drift);
  describe_load(&results[0], load, sizeof load);
  if (results[0].device[0])
    snprintf(line, sizeof line,
             "measured %s on %s; median spread of a sample %.1f %%, reference product drifted by %.0f %%%s", date,
             results[0].description, limits->spread * 100, drift * 100, load);
  else
    snprintf(line, sizeof line,
             "measured %s on %s, %d cores, Linux %.60s, %.200s; median spread of a sample %.1f %%, reference "
             "product drifted by %.0f %%",
             date, system->processor, results[0].cores, os.release, results[0].description, limits->spread * 100,
             drift * 100);
  tws_profile_builder_provenance(b, line);
  tws_profile_builder_detail(b, "cpu", system->processor);
  tws_profile_builder_detail(b, "kernel", os.release);
  tws_profile_builder_detail(b, "libraries", results[0].description);
  tws_profile_builder_detail(b, "date", date);
  for (size_t i = 0; i < results[0].note_count; i++)
    tws_profile_builder_detail(b, results[0].notes[i].key, results[0].notes[i].text);
  for (int i = 0; i < count; i++) {
    char key[48];
    const tws_measurements *m = &results[i];
    snprintf(key, sizeof key, "collectives of %d ranks", m->world);
    if (m->shared_device)
      tws_profile_builder_detail(b, key, "the ranks shared a GPU and talked over sockets: not representative");
    snprintf(key, sizeof key, "run with %d ranks", m->world);
    snprintf(text, sizeof text, "%.1f s; reference product %.3f ms (%.3f to %.3f)", m->elapsed_s, m->reference_s * 1e3,
             m->reference_min_s * 1e3, m->reference_max_s * 1e3);
    tws_profile_builder_detail(b, key, text);
  }
}

tws_code tws_calibration_profile(const char *name, const tws_measurements *results, int count, double *spread,
                                 tws_profile_builder **out, tws_error *err) {
  const int gpu = results[0].device[0] != '\0';
  tws_profile_builder *b =
      tws_profile_builder_create(gpu ? results[0].device : name, gpu ? TWS_BACKEND_CUDA : TWS_BACKEND_HOST);
  if (!b) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the profile");
  measured_limits limits = {.least_bytes = gpu ? 5e8 : 0}; /* bytes; larger than the caches of GPUs */
  tws_code code = TWS_OK;
  for (int i = 0; i < count && code == TWS_OK; i++) code = merge_run(&results[i], b, &limits, err);
  finish_limits(&limits, b);
  tws_system system;
  tws_system_read(&system);
  tws_host_memory memory = tws_host_memory_read();
  double overhead = 0;
  for (int i = 0; i < count; i++) overhead = fmax(overhead, results[i].overhead_bytes);
  tws_profile_builder_node(b, gpu ? 0 : results[0].cores, gpu ? results[0].device_bytes : (double)memory.total_bytes,
                           overhead);
  describe_system(b, results, count, &system, &limits);
  if (spread) *spread = limits.spread;
  if (code != TWS_OK) {
    tws_profile_builder_destroy(b);
    return code;
  }
  *out = b;
  return TWS_OK;
}
