/* Optimizer offloading (Ren et al. 2021, "ZeRO-Offload").
 *
 * With offload_optimizer, master weights and optimizer states are in host memory, and the host's cores run the
 * optimizer:
 *
 *   gradients   a rank's shard is copied to the host as soon as its bucket is reduced, and micro-batches are added
 *               up on the host. Stage 1 adds them up on the device and copies out the last micro-batch's buckets.
 *               Gradients that are still to be reduced in the optimizer phase (tensor parallelism, tied weights of a
 *               pipeline) stay on the device until then
 *   the norm    is computed where the gradients are; its reduction and clipping run on the device, which then copies
 *               the scalars to the host
 *   weights     are updated in runs (sub-groups); while one run is updated the previous run is copied to the device
 *
 * Differences from DeepSpeed 0.19, on purpose: at stages 1 and 2 too sub_group_size says how much is updated at once,
 * and bf16 masters stay bf16 on the host. */
#include "plan/offload.h"

#include <string.h>

#include "plan/zero.h"
#include "plan/zero_partition.h"

_Static_assert(TWS_OPTIMIZER_STATES == 4, "a name for each that comes from the disk");

static int adds_later(const tws_lower *l) {
  const tws_position *p = &l->b.plan->position;
  return p->ranks[TWS_AXIS_MODEL] > 1 || p->ranks[TWS_AXIS_PIPE] > 1;
}

/* Returns the share of the sub-groups that the host updates. It is all of them below stage 3, and if a rank's swap file
 * has both its states and its parameters, whose blocks then have the same elements. */
static double host_share(const tws_lower *l) {
  const tws_zero_config *z = &l->config->zero;
  return z->stage != 3 || (z->offload_optimizer == 2 && z->offload_param == 2) ? 1 : z->offload_optimizer_ratio;
}

void tws_offload_begin(tws_lower *l) {
  tws_offload *o = &l->offload;
  const tws_plan *plan = l->b.plan;
  const int none = !(host_share(l) > 0); /* 1: the host updates nothing, so that nothing is offloaded */
  o->optimizer = l->config->zero.offload_optimizer && l->zero.stage > 0 && !none && !l->extent.parameters_only;
  o->tier = !o->optimizer                              ? TWS_TIER_DEVICE
            : l->config->zero.offload_optimizer_pinned ? TWS_TIER_PINNED
                                                       : TWS_TIER_HOST;
  /* with ZenFlow the device reads the gradients in the optimizer phase, so they stay there until then */
  o->early = o->optimizer && !adds_later(l) && !l->config->zenflow.on;
  o->state_tier = o->optimizer && l->config->zero.offload_optimizer == 2 ? TWS_TIER_DISK : o->tier;
  const int parameters = l->zero.stage == 3 ? l->config->zero.offload_param : 0;
  o->param_host = !parameters                            ? TWS_TIER_DEVICE
                  : l->config->zero.offload_param_pinned ? TWS_TIER_PINNED
                                                         : TWS_TIER_HOST;
  o->param_tier = parameters == 2 ? TWS_TIER_DISK : o->param_host;
  o->hyper = plan->hyper;
  o->metrics = plan->metrics;
  o->gradients = TWS_NONE;
}

uint32_t tws_offload_buffer(tws_lower *l, const char *name, tws_category category, tws_dtype dtype, uint64_t elements) {
  const uint32_t buffer = tws_builder_buffer(&l->b, name, category, dtype, elements, TWS_LIFETIME_OPS);
  if (l->b.failed == TWS_OK) l->b.plan->buffers[buffer].tier = (uint8_t)l->offload.tier;
  return buffer;
}

/* Returns the number of elements of a state, with padding if it is on the disk, where a state consists of whole
 * blocks. */
static uint64_t state_elements(const tws_lower *l, uint64_t elements) {
  if (l->offload.state_tier != TWS_TIER_DISK) return elements;
  return (elements + TWS_DISK_ELEMENTS - 1) / TWS_DISK_ELEMENTS * TWS_DISK_ELEMENTS;
}

/* Determines the cut: the host updates the last sub-groups of stage 3, which are offload_optimizer_ratio of the
 * elements, and the device updates the others. */
void tws_offload_find_cut(tws_lower *l) {
  const tws_zero *z = &l->zero;
  tws_offload *o = &l->offload;
  const int n = (int)z->classes[z->trained_count - 1].end;
  const double ratio = host_share(l);
  o->cut = 0;
  memset(o->above_cut, 0xff, sizeof o->above_cut); /* TWS_NONE */
  if (!l->config->zero.offload_optimizer || !(ratio < 1)) return;
  int64_t *part = tws_lower_memory(l, (size_t)n, sizeof *part);
  int *group_of = tws_lower_memory(l, (size_t)n, sizeof *group_of), kept = 0;
  if (l->b.failed != TWS_OK) return;
  for (int i = 0; i < n; i++) {
    const uint32_t p = (uint32_t)z->order[i];
    part[i] = tws_zero3_part((int64_t)tws_zero_numel(l, p), tws_zero_class_of(z, p)->ranks);
  }
  tws_zero3_sub_groups(n, part, l->config->zero.sub_group_size, group_of);
  while (kept < n && group_of[kept] < (int)((1 - ratio) * (group_of[n - 1] + 1))) o->cut += (uint64_t)part[kept++];
}

uint32_t tws_offload_owned(tws_lower *l, int kind, tws_state_entry *entry, uint64_t elements) {
  tws_offload *o = &l->offload;
  const char *name = entry->name;
  uint32_t first = TWS_NONE;
  if (o->cut > 0) {
    entry->tier = TWS_TIER_DEVICE;
    entry->elements = o->cut < elements ? o->cut : elements;
    first = tws_builder_state(&l->b, entry);
    if (entry->elements == elements || l->b.failed != TWS_OK) return first;
    entry->name = tws_arena_printf(l->b.plan->state->arena, "%s on the host", name);
    entry->continues = 1 + tws_state_find(l->b.plan->state, name);
    entry->first = o->cut;
    elements -= o->cut;
    if (!entry->name) {
      tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
      return first;
    }
  }
  entry->tier = (uint8_t)o->state_tier;
  entry->elements = state_elements(l, elements);
  const uint32_t rest = tws_builder_state(&l->b, entry);
  if (o->cut > 0) o->above_cut[kind] = rest;
  return o->cut > 0 ? first : rest;
}

uint32_t tws_offload_waiting_gradients(tws_lower *l, const char *name, tws_dtype dtype, uint64_t kept) {
  const tws_state_entry entry = {.name = name,
                                 .tier = (uint8_t)l->offload.tier,
                                 .dtype = (uint8_t)dtype,
                                 .category = TWS_CATEGORY_GRADIENT,
                                 .role = TWS_ELEMENTS_OWNED,
                                 .initial = TWS_INITIAL_ZERO,
                                 .checkpointed = 1,
                                 .optional = 1,
                                 .elements = kept};
  return tws_builder_state(&l->b, &entry);
}

int tws_offload_is_on_host(const tws_lower *l, uint32_t buffer) {
  return l->b.failed == TWS_OK && l->b.plan->buffers[buffer].tier != TWS_TIER_DEVICE;
}

/* Divides a buffer into one segment for each parameter. The buffer's first element is number `element` of the elements
 * that the rank updates; starts: the number of each parameter's first element. */
static void cut_pieces(tws_lower *l, uint32_t buffer, uint64_t element, const uint64_t *starts, uint32_t count) {
  uint64_t *own = tws_arena_alloc(l->b.plan->arena, count + 1u, sizeof *own);
  uint32_t n = 1; /* the first segment begins at the start of the buffer */
  if (!own) tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  for (uint32_t i = 0; i < count && own; i++)
    if (starts[i] > element) own[n++] = starts[i] - element;
  tws_builder_segments(&l->b, buffer, own, n);
}

void tws_offload_gradients(tws_lower *l, uint64_t kept, const uint64_t *starts, uint32_t count) {
  tws_offload *o = &l->offload;
  tws_plan *plan = l->b.plan;
  o->gradients = plan->gradients;
  o->arrived[0] = o->arrived[1] = TWS_NONE;
  if (!o->optimizer || l->b.failed != TWS_OK) return;
  if (o->early && !l->zero.flat_gradients && o->cut == 0)
    plan->buffers[plan->gradients].tier = (uint8_t)o->tier;
  else if (l->columns.on) /* ZenFlow: the host accumulates the gradients */
    o->gradients = l->columns.accumulated;
  /* gradients are copied to the state's buffer after the delayed update has read the previous ones */
  else if (o->delayed.on && !o->early)
    o->gradients = o->delayed.gradients;
  else
    o->gradients = tws_offload_buffer(l, "host gradients", TWS_CATEGORY_GRADIENT, l->config->accumulation_dtype,
                                      kept > o->cut ? kept - o->cut : 0);
  if (o->cut > 0 && kept > o->cut && l->b.failed == TWS_OK) cut_pieces(l, o->gradients, o->cut, starts, count);
}

int tws_offload_kept(const tws_lower *l, uint64_t first, uint64_t count, tws_operand out[2]) {
  const tws_offload *o = &l->offload;
  const uint64_t here = !o->early || o->gradients == l->b.plan->gradients ? count
                        : first >= o->cut                                 ? 0
                        : o->cut - first < count                          ? o->cut - first
                                                                          : count;
  int n = 0;
  if (here > 0) out[n++] = tws_read(l->b.plan->gradients, first, here);
  if (here < count) out[n++] = tws_read(o->gradients, first + here - o->cut, count - here);
  return n;
}

int tws_offload_copies_buckets(const tws_lower *l) {
  return l->offload.early;
}

/* Returns the host buffer to which the next gradients are copied. There are two: one is filled while the host
 * accumulates the gradients of the other. Each is as large as the largest copy, and lives for the whole program, so
 * that no copy waits for memory. */
static uint32_t next_arrived(tws_lower *l, tws_dtype dtype, uint64_t elements) {
  tws_offload *o = &l->offload;
  uint32_t *arrived = &o->arrived[o->arrivals++ % 2];
  if (*arrived == TWS_NONE) {
    *arrived =
        tws_builder_buffer(&l->b, "arriving gradients", TWS_CATEGORY_BUCKET, dtype, elements, TWS_LIFETIME_PROGRAM);
    if (l->b.failed == TWS_OK) l->b.plan->buffers[*arrived].tier = (uint8_t)o->tier;
  }
  tws_builder_grow(&l->b, *arrived, elements);
  return *arrived;
}

void tws_offload_keep(tws_lower *l, tws_operand from, uint64_t offset, int add) {
  const uint32_t gradients = l->offload.gradients;
  const tws_dtype source = (tws_dtype)l->b.plan->buffers[from.buffer].dtype, target = l->config->accumulation_dtype;
  from.access = TWS_READ;
  if (!add && source == target) {
    tws_builder_copy(&l->b, TWS_STREAM_COPY_OUT, from, tws_write(gradients, offset, from.count));
    return;
  }
  const uint32_t arrived = next_arrived(l, source, from.count);
  tws_builder_copy(&l->b, TWS_STREAM_COPY_OUT, from, tws_write(arrived, 0, from.count));
  tws_work work = tws_kernel_work(add ? TWS_KERNEL_ACCUMULATE : TWS_KERNEL_CAST, source, 0);
  work.dtype2 = (uint8_t)target;
  work.d[0] = (int64_t)from.count;
  const tws_operand operands[2] = {tws_read(arrived, 0, from.count), add ? tws_update(gradients, offset, from.count)
                                                                         : tws_write(gradients, offset, from.count)};
  tws_builder_compute(&l->b, TWS_STREAM_HOST, &work, operands, 2);
}

/* Emits copies to the host of the gradients that no bucket has copied: the rank's whole shard with its padding, or only
 * the padding. */
void tws_offload_rest_of_gradients(tws_lower *l) {
  const tws_zero *z = &l->zero;
  tws_plan *plan = l->b.plan;
  if (!l->offload.optimizer || (l->offload.early && !z->flat_gradients) || l->columns.on) return;
  for (uint32_t k = 0; k < z->trained_count; k++) {
    const tws_zero_class *c = &z->classes[k];
    const uint64_t first = tws_zero_kept_first(z, c);
    uint64_t from = 0;
    /* a rank whose shard is after the last parameter has only padding */
    if (z->bucket_count > 0 && tws_offload_copies_buckets(l))
      from = first - c->stored < c->total ? c->total - (first - c->stored) : 0;
    if (c->kept + from < l->offload.cut) from = l->offload.cut - c->kept;
    if (from >= c->partition) continue;
    const uint64_t at = z->flat_gradients ? first : c->kept, count = c->partition - from;
    tws_builder_copy(&l->b, TWS_STREAM_COPY_OUT, tws_read(plan->gradients, at + from, count),
                     tws_write(l->offload.gradients, c->kept + from - l->offload.cut, count));
  }
}

static void copy_scalars(tws_lower *l, tws_stream stream, uint32_t from, uint32_t to, uint64_t first, uint64_t count) {
  tws_builder_copy(&l->b, stream, tws_read(from, first, count), tws_write(to, first, count));
}

/* Returns 1 if the host computes the sums of squares, since the gradients were never complete on the device. */
static int squares_on_host(const tws_lower *l) {
  const tws_offload *o = &l->offload;
  return o->optimizer && o->early && !l->zero.flat_gradients && l->b.failed == TWS_OK;
}

void tws_offload_squares_begin(tws_lower *l) {
  tws_offload *o = &l->offload;
  const tws_plan *plan = l->b.plan;
  if (!o->optimizer) return;
  o->metrics = tws_offload_buffer(l, "host metrics", TWS_CATEGORY_INPUT, TWS_F64, TWS_METRIC_COUNT);
  if (!o->delayed.on)
    o->hyper = tws_offload_buffer(l, "host hyperparameters", TWS_CATEGORY_INPUT, TWS_F32, tws_hyper_count(l->config));
  if (squares_on_host(l)) copy_scalars(l, TWS_STREAM_COPY_OUT, plan->metrics, o->metrics, TWS_METRIC_SQUARES, 1);
}

void tws_offload_squares_end(tws_lower *l) {
  const tws_plan *plan = l->b.plan;
  if (squares_on_host(l)) copy_scalars(l, TWS_STREAM_COPY_IN, l->offload.metrics, plan->metrics, TWS_METRIC_SQUARES, 1);
}

void tws_offload_scalars(tws_lower *l) {
  const tws_offload *o = &l->offload;
  const uint32_t metrics = o->delayed.on ? o->delayed.metrics : o->metrics;
  const uint32_t hyper = o->delayed.on ? o->delayed.hyper : o->hyper;
  if (!o->optimizer) return;
  copy_scalars(l, TWS_STREAM_COPY_OUT, l->b.plan->metrics, metrics, 0, TWS_METRIC_COUNT);
  copy_scalars(l, TWS_STREAM_COPY_OUT, l->b.plan->hyper, hyper, 0, tws_hyper_count(l->config));
}

/* ---- the disk ---- */

static int moves_states(const tws_lower *l) {
  return l->offload.state_tier == TWS_TIER_DISK;
}

tws_operand tws_offload_state(const tws_lower *l, int kind, uint32_t buffer, uint64_t offset, uint64_t count,
                              uint32_t access) {
  const tws_staged *staged = l->offload.staged;
  tws_operand operand = {.buffer = buffer, .access = access, .offset = offset, .count = count};
  if (staged && moves_states(l) && offset >= l->offload.cut) {
    operand.buffer = staged->buffer[kind];
    operand.offset -= staged->first;
  } else if (l->offload.cut > 0 && offset >= l->offload.cut) {
    operand.buffer = l->offload.above_cut[kind];
    operand.offset -= l->offload.cut;
  }
  return operand;
}

/* Returns the buffer on the disk of the master weights (kind 0) or a state. */
static uint32_t disk_buffer(const tws_lower *l, int kind) {
  const tws_plan *plan = l->b.plan;
  if (l->offload.cut > 0) return l->offload.above_cut[kind];
  return kind == 0 ? plan->master : plan->optimizer_state[kind - 1];
}

/* Emits the reads of a range's master weights and states from the disk, or (back 1) their writes. The elements below
 * the cut are on the device. */
static void move_range(tws_lower *l, tws_staged *s, int back) {
  const tws_plan *plan = l->b.plan;
  if (s->first < l->offload.cut) return;
  static const char *const names[1 + TWS_OPTIMIZER_STATES] = {"masters from the disk", "state 1 from the disk",
                                                              "state 2 from the disk", "state 3 from the disk",
                                                              "state 4 from the disk"};
  for (int kind = 0; kind <= plan->optimizer_states && l->b.failed == TWS_OK; kind++) {
    const uint32_t on_disk = disk_buffer(l, kind);
    const tws_buffer *of = &plan->buffers[on_disk];
    if (!back)
      s->buffer[kind] = tws_offload_buffer(l, names[kind], (tws_category)of->category, (tws_dtype)of->dtype, s->count);
    const tws_operand here = tws_all(&l->b, s->buffer[kind], back ? TWS_READ : TWS_WRITE);
    const tws_operand there = {on_disk, back ? TWS_WRITE : TWS_READ, s->first - l->offload.cut, s->count};
    tws_builder_copy(&l->b, TWS_STREAM_DISK, back ? here : there, back ? there : here);
  }
}

int tws_offload_has_ranges(const tws_lower *l) {
  return moves_states(l) || l->offload.param_disk != TWS_NONE;
}

/* Returns the number of elements that the rank updates, without the padding of the last disk block. */
static uint64_t updated_elements(const tws_lower *l) {
  uint64_t elements = 0;
  for (uint32_t k = 0; k < l->zero.trained_count; k++) elements += l->zero.classes[k].partition;
  return elements;
}

/* Creates the buffer in which the updated weights of a range are collected for the disk, and clears the padding of its
 * last block, since all of the block is written. */
static void begin_weights(tws_lower *l, tws_staged *s) {
  const uint64_t end = updated_elements(l);
  s->weights = TWS_NONE;
  if (l->offload.param_disk == TWS_NONE || s->first < l->offload.param_cut) return;
  const uint64_t count = (s->count + TWS_DISK_ELEMENTS - 1) / TWS_DISK_ELEMENTS * TWS_DISK_ELEMENTS;
  s->weights =
      tws_builder_buffer(&l->b, "weights for the disk", TWS_CATEGORY_BUCKET, l->config->dtype, count, TWS_LIFETIME_OPS);
  if (l->b.failed != TWS_OK) return;
  l->b.plan->buffers[s->weights].tier = (uint8_t)l->offload.param_host;
  if (s->first + count <= end) return;
  const uint64_t filled = end > s->first ? end - s->first : 0;
  tws_work work = tws_kernel_work(TWS_KERNEL_FILL, l->config->dtype, 0);
  work.d[0] = (int64_t)(count - filled);
  const tws_operand rest = tws_write(s->weights, filled, count - filled);
  tws_builder_compute(&l->b, TWS_STREAM_HOST, &work, &rest, 1);
}

static void end_weights(tws_lower *l, const tws_staged *s) {
  tws_offload_end(l); /* flushes updated weights that are not copied yet */
  if (s->weights == TWS_NONE || l->b.failed != TWS_OK) return;
  tws_builder_copy(
      &l->b, TWS_STREAM_DISK, tws_all(&l->b, s->weights, TWS_READ),
      tws_write(l->offload.param_disk, s->first - l->offload.param_cut, l->b.plan->buffers[s->weights].elements));
}

/* Returns the number of elements of all ranges: if states are on the disk, with the padding of their last block. */
static uint64_t ranged_elements(const tws_lower *l) {
  if (!moves_states(l) || l->offload.cut >= updated_elements(l)) return updated_elements(l);
  return l->offload.cut + l->b.plan->buffers[disk_buffer(l, 0)].elements;
}

/* Lists ranges of about sub_group_size elements. A range has either only parameters in host memory or only parameters
 * on the disk, and either only states on the device or only states on the disk. Returns their number. */
static int64_t list_ranges(tws_lower *l, tws_staged **out) {
  const uint64_t all = ranged_elements(l);
  uint64_t cut = l->offload.param_disk != TWS_NONE ? l->offload.param_cut : moves_states(l) ? l->offload.cut : 0;
  uint64_t size = (uint64_t)l->config->zero.sub_group_size / TWS_DISK_ELEMENTS * TWS_DISK_ELEMENTS;
  int64_t n = 0;
  if (size < TWS_DISK_ELEMENTS) size = TWS_DISK_ELEMENTS;
  if (cut > all) cut = all; /* frozen elements follow the updated ones, so the cut may be among them */
  tws_staged *ranges = *out = tws_lower_memory(l, (size_t)(all / size) + 2, sizeof *ranges);
  for (uint64_t at = 0; at < all && ranges; n++) {
    const uint64_t end = at < cut ? cut : all;
    ranges[n] = (tws_staged){.first = at, .count = end - at < size ? end - at : size};
    at += ranges[n].count;
  }
  return n;
}

/* Updates the ranges one by one. With pipeline_read the next range is read while one is updated, with pipeline_write
 * the previous one is written meanwhile. Reads are issued first, since updates wait for them. */
void tws_offload_stages(tws_lower *l, void (*update)(tws_lower *l, uint64_t first, uint64_t count, void *user),
                        void *user) {
  tws_staged *ranges;
  if (l->b.failed != TWS_OK) return;
  const int states = moves_states(l);
  const int64_t n = list_ranges(l, &ranges);
  const int64_t ahead = states && l->config->zero.pipeline_read, behind = states && l->config->zero.pipeline_write;
  for (int64_t turn = 0; turn < n + ahead + behind && l->b.failed == TWS_OK; turn++) {
    const int64_t now = turn - ahead, done = now - behind;
    if (turn < n && states) move_range(l, &ranges[turn], 0);
    if (behind && done >= 0) move_range(l, &ranges[done], 1);
    if (now < 0 || now >= n) continue;
    l->offload.staged = &ranges[now];
    begin_weights(l, &ranges[now]);
    update(l, ranges[now].first, ranges[now].count, user);
    if (l->offload.param_disk != TWS_NONE) end_weights(l, &ranges[now]);
    if (states && !behind) move_range(l, &ranges[now], 1);
  }
  l->offload.staged = NULL;
}

/* ---- updated weights ---- */

static int is_plain(const tws_lower *l) {
  return !l->offload.optimizer && l->offload.param_tier == TWS_TIER_DEVICE;
}

/* Returns the operand to which updated weights are written: their buffer in the state, or the buffer in which they are
 * collected for the disk. */
static tws_operand home_of(const tws_lower *l, uint64_t first, uint64_t count) {
  const tws_offload *o = &l->offload;
  if (o->param_disk == TWS_NONE || first < o->param_cut) return tws_write(l->b.plan->parameters, first, count);
  return tws_write(o->staged->weights, first - o->staged->first, count);
}

tws_operand tws_offload_weights(tws_lower *l, uint64_t first, uint64_t count, int on_host) {
  if (l->b.failed != TWS_OK) return (tws_operand){0};
  const tws_operand home = home_of(l, first, count);
  if (tws_offload_is_on_host(l, home.buffer) == on_host && !l->offload.delayed.on) return home;
  const uint32_t buffer = tws_offload_buffer(l, "updated weights", TWS_CATEGORY_BUCKET, l->config->dtype, count);
  if (on_host || l->b.failed != TWS_OK) return tws_write(buffer, 0, count);
  l->b.plan->buffers[buffer].tier = TWS_TIER_DEVICE;
  return tws_write(buffer, 0, count);
}

static void copy_updated(tws_lower *l) {
  tws_offload *o = &l->offload;
  if (o->to.count && l->b.failed == TWS_OK) {
    const int from = tws_offload_is_on_host(l, o->from.buffer), to = tws_offload_is_on_host(l, o->to.buffer);
    tws_builder_copy(&l->b,
                     from && to ? TWS_STREAM_HOST
                     : to       ? TWS_STREAM_COPY_OUT
                                : TWS_STREAM_COPY_IN,
                     o->from, o->to);
  }
  o->to.count = 0;
}

void tws_offload_updated(tws_lower *l, tws_operand from, uint64_t first, uint64_t count) {
  if (is_plain(l) || l->b.failed != TWS_OK) return;
  const tws_operand to = home_of(l, first, count);
  if (l->offload.delayed.on) {
    tws_delayed_defer_copy(l, from, to);
    return;
  }
  copy_updated(l); /* emits the copy of the previous run's weights after this run's update, so that both overlap */
  if (from.buffer == to.buffer) return; /* the update wrote the weights to their own buffer */
  from.access = TWS_READ;
  l->offload.from = from;
  l->offload.to = to;
}

void tws_offload_end(tws_lower *l) {
  if (!is_plain(l)) copy_updated(l);
}

void tws_offload_store(tws_lower *l) {
  tws_offload *o = &l->offload;
  for (const tws_deferred_copy *held = o->delayed.first; held; held = held->next) {
    for (uint64_t left = held->from.count; left > 0 && l->b.failed == TWS_OK;) {
      const uint64_t count = left < TWS_OFFLOAD_RANGE ? left : TWS_OFFLOAD_RANGE;
      left -= count;
      o->from = held->from;
      o->to = held->to;
      o->from.offset += left;
      o->to.offset += left;
      o->from.count = o->to.count = count;
      copy_updated(l);
    }
  }
}
