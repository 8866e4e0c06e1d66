#include "models/hardware/profile_build.h"

#include <math.h>
#include <string.h>
#include "models/hardware/profile_internal.h"

typedef struct kernel_sample {
  tws_work work;
  int threads, busy;
  double reread_bytes, seconds;
} kernel_sample;
typedef struct collective_sample {
  tws_collective collective; /* TWS_COLLECTIVE_COUNT: a point-to-point message */
  int ranks;
  double bytes, seconds;
} collective_sample;
typedef struct detail {
  const char *key, *text;
} detail;

struct tws_profile_builder {
  tws_arena *arena;
  const char *name, *provenance;
  tws_backend_kind backend;
  int cores, failed;
  double memory_bytes, overhead_bytes, bandwidth, node_bandwidth, launch_s, spread, drift;
  double peak[TWS_DTYPE_COUNT];
  tws_copy_rates copies[TWS_PROFILE_COPIES];
  int copies_ranks[TWS_PROFILE_COPIES], copies_count;
  tws_pass_costs passes;
  kernel_sample *kernels;
  collective_sample *collectives;
  detail *details;
  size_t kernel_count, kernel_capacity, collective_count, collective_capacity, detail_count, detail_capacity;
};

static const char *keep_text(tws_profile_builder *b, const char *text) {
  char *copy = tws_arena_strdup(b->arena, text);
  if (copy == NULL) b->failed = 1;
  return copy != NULL ? copy : "";
}

tws_profile_builder *tws_profile_builder_create(const char *name, tws_backend_kind backend) {
  tws_arena *arena = tws_arena_create();
  tws_profile_builder *b = arena != NULL ? tws_arena_alloc(arena, 1, sizeof *b) : NULL;
  if (b == NULL) {
    tws_arena_destroy(arena);
    return NULL;
  }
  b->arena = arena;
  b->backend = backend;
  b->name = keep_text(b, name);
  b->provenance = "";
  return b;
}

void tws_profile_builder_destroy(tws_profile_builder *builder) {
  if (builder == NULL) return;
  tws_free(builder->kernels);
  tws_free(builder->collectives);
  tws_free(builder->details);
  tws_arena_destroy(builder->arena);
}

void tws_profile_builder_provenance(tws_profile_builder *builder, const char *line) {
  builder->provenance = keep_text(builder, line);
}

void tws_profile_builder_noise(tws_profile_builder *builder, double spread, double drift) {
  builder->spread = spread;
  builder->drift = drift;
}

void tws_profile_builder_detail(tws_profile_builder *builder, const char *key, const char *text) {
  if (tws_reserve(&builder->details, &builder->detail_capacity, builder->detail_count + 1, sizeof(detail)) != 0) {
    builder->failed = 1;
    return;
  }
  builder->details[builder->detail_count++] = (detail){keep_text(builder, key), keep_text(builder, text)};
}

void tws_profile_builder_node(tws_profile_builder *builder, int cores, double memory_bytes, double overhead_bytes) {
  builder->cores = cores;
  builder->memory_bytes = memory_bytes;
  builder->overhead_bytes = overhead_bytes;
}

void tws_profile_builder_peak(tws_profile_builder *builder, tws_dtype dtype, double flops_per_s) {
  if ((unsigned)dtype < TWS_DTYPE_COUNT) builder->peak[dtype] = flops_per_s;
}

void tws_profile_builder_bandwidth(tws_profile_builder *builder, double one_rank, double whole_node) {
  builder->bandwidth = one_rank;
  builder->node_bandwidth = whole_node;
}

void tws_profile_builder_copies(tws_profile_builder *builder, int ranks, const tws_copy_rates *rates) {
  if (builder->copies_count == TWS_PROFILE_COPIES) return;
  builder->copies_ranks[builder->copies_count] = ranks;
  builder->copies[builder->copies_count++] = *rates;
}

static int is_usable(double value) {
  return isfinite(value) && value > 0;
}

void tws_profile_builder_passes(tws_profile_builder *builder, const tws_pass_costs *costs) {
  tws_pass_costs *p = &builder->passes;
  *p = *costs;
  p->choice_count = 0;
  for (int i = 0; i < costs->choice_count; i++)
    if (is_usable(costs->choice[i].seconds)) p->choice[p->choice_count++] = costs->choice[i];
}

void tws_profile_builder_launch(tws_profile_builder *builder, double seconds) {
  builder->launch_s = seconds;
}

tws_code tws_profile_builder_kernel(tws_profile_builder *builder, const tws_work *work, int threads, int busy,
                                    double seconds, tws_error *err) {
  return tws_profile_builder_rereading(builder, work, threads, busy, 0, seconds, err);
}

tws_code tws_profile_builder_rereading(tws_profile_builder *builder, const tws_work *work, int threads, int busy,
                                       double reread_bytes, double seconds, tws_error *err) {
  if (work->kind != 0 || work->code >= TWS_KERNEL_COUNT || threads < 1 || busy < 1 || !is_usable(seconds) ||
      !(reread_bytes >= 0 && reread_bytes <= 1e18)) {
    return tws_fail(err, TWS_INVALID, NULL, "not a timed kernel: kind %d, code %d, %d threads, %d busy, %g s",
                    work->kind, work->code, threads, busy, seconds);
  }
  for (int i = 0; i < tws_operator_of((tws_kernel)work->code)->dims; i++) {
    if (work->d[i] < tws_operator_of((tws_kernel)work->code)->least[i]) {
      return tws_fail(err, TWS_INVALID, NULL, "size %d of a timed %s is %lld", i,
                      tws_kernel_name((tws_kernel)work->code), (long long)work->d[i]);
    }
  }
  if (tws_reserve(&builder->kernels, &builder->kernel_capacity, builder->kernel_count + 1, sizeof(kernel_sample)) !=
      0) {
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a profile");
  }
  builder->kernels[builder->kernel_count++] = (kernel_sample){*work, threads, busy, reread_bytes, seconds};
  return TWS_OK;
}

static tws_code add_message(tws_profile_builder *b, tws_collective collective, int ranks, double bytes, double seconds,
                            tws_error *err) {
  if (ranks < 2 || !is_usable(bytes) || !is_usable(seconds)) {
    return tws_fail(err, TWS_INVALID, NULL, "not a timed message: %d ranks, %g bytes, %g s", ranks, bytes, seconds);
  }
  if (tws_reserve(&b->collectives, &b->collective_capacity, b->collective_count + 1, sizeof(collective_sample)) != 0) {
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a profile");
  }
  b->collectives[b->collective_count++] = (collective_sample){collective, ranks, bytes, seconds};
  return TWS_OK;
}

tws_code tws_profile_builder_collective(tws_profile_builder *builder, tws_collective collective, int ranks,
                                        double bytes, double seconds, tws_error *err) {
  if ((unsigned)collective >= TWS_COLLECTIVE_COUNT) return tws_fail(err, TWS_INVALID, NULL, "not a collective");
  return add_message(builder, collective, ranks, bytes, seconds, err);
}

tws_code tws_profile_builder_p2p(tws_profile_builder *builder, double bytes, double seconds, tws_error *err) {
  return add_message(builder, TWS_COLLECTIVE_COUNT, 2, bytes, seconds, err);
}

/* ---- writing ---- */

static void add_string(tws_text *out, const char *text) {
  tws_text_add(out, "\"");
  for (; *text != 0; text++) {
    unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\')
      tws_text_add(out, "\\%c", c);
    else if (c < 0x20)
      tws_text_add(out, "\\u%04x", c);
    else
      tws_text_add_bytes(out, text, 1);
  }
  tws_text_add(out, "\"");
}

static void add_figures(const tws_profile_builder *b, tws_text *out) {
  tws_text_add(out, "{\n  \"schema\": \"twinspeed-profile-1\",\n  \"name\": ");
  add_string(out, b->name);
  tws_text_add(out, ",\n  \"provenance\": ");
  add_string(out, b->provenance);
  tws_text_add(out, ",\n  \"details\": {");
  for (size_t i = 0; i < b->detail_count; i++) {
    tws_text_add(out, "%s\n    ", i > 0 ? "," : "");
    add_string(out, b->details[i].key);
    tws_text_add(out, ": ");
    add_string(out, b->details[i].text);
  }
  tws_text_add(out, "%s},\n", b->detail_count > 0 ? "\n  " : "");
  if (b->spread > 0 || b->drift > 0)
    tws_text_add(out, "  \"spread\": %.4g,\n  \"drift\": %.4g,\n", b->spread, b->drift);
  tws_text_add(out, "  \"backend\": \"%s\",\n", b->backend == TWS_BACKEND_CUDA ? "cuda" : "host");
  tws_text_add(out, "  \"cores\": %d,\n  \"memory_bytes\": %.0f,\n  \"overhead_bytes\": %.0f,\n", b->cores,
               b->memory_bytes, b->overhead_bytes);
  tws_text_add(out, "  \"peak_flops\": {");
  const char *separator = "";
  for (int i = 0; i < TWS_DTYPE_COUNT; i++) {
    if (!(b->peak[i] > 0)) continue;
    const char *name = i == TWS_E4M3 ? tws_narrow_name(TWS_NARROW_FP8) : tws_dtype_name((tws_dtype)i);
    tws_text_add(out, "%s\"%s\": %.6g", separator, name, b->peak[i]);
    separator = ", ";
  }
  tws_text_add(out, "},\n  \"bandwidth\": %.6g,\n  \"node_bandwidth\": %.6g,\n  \"launch_s\": %.6g", b->bandwidth,
               b->node_bandwidth, b->launch_s);
}

static void add_rate(tws_text *out, const char *key, double rate) {
  if (rate >= 1) tws_text_add(out, ", \"%s\": %.6g", key, rate);
}

static void add_copies(const tws_profile_builder *b, tws_text *out) {
  for (int i = 0; i < b->copies_count; i++) {
    tws_text_add(out, "%s{\"ranks\": %d", i == 0 ? ",\n  \"host_copies\": [" : ", ", b->copies_ranks[i]);
    add_rate(out, "to_device", b->copies[i].to_device);
    add_rate(out, "to_host", b->copies[i].to_host);
    add_rate(out, "both_ways", b->copies[i].both_ways);
    tws_text_add(out, "}");
  }
  if (b->copies_count > 0) tws_text_add(out, "]");
}

static void add_passes(const tws_profile_builder *b, tws_text *out) {
  const tws_pass_costs *p = &b->passes;
  if (!(p->pass_s > 0) && p->choice_count == 0) return;
  tws_text_add(out, ",\n  \"passes\": {\"start_s\": %.6g, \"pass_s\": %.6g", p->start_s, p->pass_s);
  for (int i = 0; i < p->choice_count; i++)
    tws_text_add(out, "%s[%.17g, %.9g]", i == 0 ? ", \"choice_s\": [" : ", ", p->choice[i].vocabulary,
                 p->choice[i].seconds);
  tws_text_add(out, p->choice_count > 0 ? "]}" : "}");
}

static void add_flags(tws_text *out, uint32_t flags) {
  const char *separator = "";
  for (int i = 0; i < TWS_KERNEL_FLAGS; i++) {
    if (!(flags >> i & 1) || tws_kernel_flag_name(i) == NULL) continue;
    tws_text_add(out, "%s\"%s\"", separator, tws_kernel_flag_name(i));
    separator = ", ";
  }
}

static int same_family(const kernel_sample *a, const kernel_sample *b) {
  return a->work.code == b->work.code && a->work.dtype == b->work.dtype && a->work.dtype2 == b->work.dtype2 &&
         a->work.flags == b->work.flags && a->threads == b->threads && a->busy == b->busy &&
         !(a->reread_bytes < b->reread_bytes || a->reread_bytes > b->reread_bytes);
}

static void add_kernels(const tws_profile_builder *b, tws_text *out) {
  const char *separator = "";
  for (size_t i = 0; i < b->kernel_count; i++) {
    const kernel_sample *first = &b->kernels[i];
    size_t before = 0;
    while (before < i && !same_family(&b->kernels[before], first)) before++;
    if (before < i) continue; /* written before, with the first entry of its family */
    tws_text_add(out, "%s\n    {\"kernel\": \"%s\", \"dtype\": \"%s\", \"dtype2\": \"%s\", \"flags\": [", separator,
                 tws_kernel_name((tws_kernel)first->work.code), tws_dtype_name((tws_dtype)first->work.dtype),
                 tws_dtype_name((tws_dtype)first->work.dtype2));
    add_flags(out, first->work.flags);
    tws_text_add(out, "], \"threads\": %d, \"busy\": %d, ", first->threads, first->busy);
    if (first->reread_bytes > 0) tws_text_add(out, "\"reread_bytes\": %.17g, ", first->reread_bytes);
    tws_text_add(out, "\"samples\": [");
    const char *comma = "";
    for (size_t j = i; j < b->kernel_count; j++) {
      if (!same_family(&b->kernels[j], first)) continue;
      tws_text_add(out, "%s[", comma);
      for (int d = 0; d < tws_operator_of((tws_kernel)first->work.code)->dims; d++) {
        tws_text_add(out, "%lld, ", (long long)b->kernels[j].work.d[d]);
      }
      tws_text_add(out, "%.9g]", b->kernels[j].seconds);
      comma = ", ";
    }
    tws_text_add(out, "]}");
    separator = ",";
  }
}

static void add_messages(const tws_profile_builder *b, const collective_sample *first, tws_text *out) {
  const char *comma = "";
  for (size_t j = 0; j < b->collective_count; j++) {
    const collective_sample *sample = &b->collectives[j];
    if (sample->collective != first->collective || sample->ranks != first->ranks) continue;
    tws_text_add(out, "%s[%.17g, %.9g]", comma, sample->bytes, sample->seconds);
    comma = ", ";
  }
}

static void add_collectives(const tws_profile_builder *b, tws_text *out) {
  const collective_sample p2p = {TWS_COLLECTIVE_COUNT, 2, 0, 0};
  const char *separator = "";
  int messages = 0;
  for (size_t i = 0; i < b->collective_count; i++) {
    const collective_sample *first = &b->collectives[i];
    if (first->collective == TWS_COLLECTIVE_COUNT) {
      messages = 1;
      continue;
    }
    size_t before = 0;
    while (before < i &&
           (b->collectives[before].collective != first->collective || b->collectives[before].ranks != first->ranks)) {
      before++;
    }
    if (before < i) continue;
    tws_text_add(out, "%s\n    {\"collective\": \"%s\", \"ranks\": %d, \"samples\": [", separator,
                 tws_collective_name(first->collective), first->ranks);
    add_messages(b, first, out);
    tws_text_add(out, "]}");
    separator = ",";
  }
  tws_text_add(out, "\n  ]");
  if (!messages) return;
  tws_text_add(out, ",\n  \"p2p\": [");
  add_messages(b, &p2p, out);
  tws_text_add(out, "]");
}

tws_code tws_profile_builder_text(const tws_profile_builder *builder, tws_text *out, tws_error *err) {
  add_figures(builder, out);
  add_copies(builder, out);
  add_passes(builder, out);
  tws_text_add(out, ",\n  \"kernels\": [");
  add_kernels(builder, out);
  tws_text_add(out, "\n  ],\n  \"collectives\": [");
  add_collectives(builder, out);
  tws_text_add(out, "\n}\n");
  if (builder->failed || out->failed) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a profile");
  return TWS_OK;
}

tws_code tws_profile_builder_finish(const tws_profile_builder *builder, tws_profile **out, tws_error *err) {
  *out = NULL;
  tws_text text = {0};
  tws_json *json = NULL;
  tws_code code = tws_profile_builder_text(builder, &text, err);
  if (code == TWS_OK) code = tws_json_parse(text.data, text.length, builder->name, &json, err);
  if (code == TWS_OK) code = tws_profile_from_json(json, out, err);
  tws_json_destroy(json);
  tws_text_free(&text);
  return code;
}

tws_code tws_profile_builder_write(const tws_profile_builder *builder, const char *path, tws_error *err) {
  tws_profile *profile = NULL; /* check that the text is a valid profile */
  TWS_TRY(tws_profile_builder_finish(builder, &profile, err));
  tws_profile_destroy(profile);
  tws_text text = {0};
  tws_code code = tws_profile_builder_text(builder, &text, err);
  if (code == TWS_OK) code = tws_write_file(path, text.data, text.length, err);
  tws_text_free(&text);
  return code;
}
