/* Parameter offloading (Rajbhandari et al. 2021, "ZeRO-Infinity"): shards of stage 3 are in host memory or, beyond
 * max_in_cpu elements of a rank, on a disk, from which they are read through buffer_count staging buffers in host
 * memory. A rank copies its own shard to the shard's position in the whole parameter, and the gather adds the shards of
 * other ranks.
 *
 * Differences from DeepSpeed 0.19, on purpose: a buffer is as large as the largest block that is read, which has at
 * most buffer_size elements; a larger shard is read in several blocks; adjacent shards are read in one block. */
#include "plan/offload.h"
#include "plan/zero.h"

static uint64_t block_floor(uint64_t elements) {
  return elements / TWS_DISK_ELEMENTS * TWS_DISK_ELEMENTS;
}

static uint64_t block_ceiling(uint64_t elements) {
  return block_floor(elements + TWS_DISK_ELEMENTS - 1);
}

void tws_offload_parameters(tws_lower *l, uint64_t elements, const uint64_t *segments, uint32_t count) {
  tws_offload *o = &l->offload;
  tws_plan *plan = l->b.plan;
  const uint64_t most = block_floor((uint64_t)l->config->zero.max_in_cpu);
  tws_state_entry entry = {.name = "parameters",
                           .tier = (uint8_t)o->param_host,
                           .dtype = (uint8_t)l->config->dtype,
                           .category = TWS_CATEGORY_PARAMETER,
                           .role = TWS_ELEMENTS_STORED,
                           .initial = TWS_INITIAL_PARAMETER,
                           .checkpointed = 1,
                           .elements = elements};
  o->param_disk = TWS_NONE;
  o->param_cut = o->param_tier != TWS_TIER_DISK || most > elements ? elements : most;
  if (o->param_cut == elements) o->param_tier = o->param_host;
  if (o->param_cut > 0 || elements == 0) {
    entry.elements = o->param_cut;
    plan->parameters = tws_builder_state(&l->b, &entry);
    if (o->param_cut == elements) {
      tws_builder_segments(&l->b, plan->parameters, segments, count);
      return;
    }
    entry.name = "parameters on the disk";
    entry.continues = 1 + tws_state_find(plan->state, "parameters");
  }
  entry.tier = TWS_TIER_DISK;
  entry.first = o->param_cut;
  entry.elements = block_ceiling(elements - o->param_cut);
  o->param_disk = tws_builder_state(&l->b, &entry);
  if (o->param_cut == 0) plan->parameters = o->param_disk;
}

/* ---- lists of the blocks to read ---- */

/* Adds a range of elements to the last block if the range begins at the end of the block and the block has room for it;
 * otherwise begins new blocks. */
static void add_elements(tws_fetch_list *list, uint64_t first, uint64_t end, uint64_t room) {
  while (first < end) {
    tws_fetch_block *last = list->count ? &list->blocks[list->count - 1] : NULL;
    if (!last || last->first + last->count != first || first - block_floor(last->first) >= room) {
      last = &list->blocks[list->count++];
      *last = (tws_fetch_block){first, 0};
    }
    const uint64_t to = block_floor(last->first) + room < end ? block_floor(last->first) + room : end;
    last->count += to - first;
    first = to;
  }
}

void tws_fetch_list_make(tws_lower *l, tws_fetch_time time, const uint32_t *params, uint32_t count) {
  tws_offload *o = &l->offload;
  tws_fetches *f = &o->fetches;
  tws_fetch_list *list = &f->lists[time];
  uint64_t room = block_floor((uint64_t)l->config->zero.param_buffer_size), most = 0;
  if (o->param_disk == TWS_NONE || l->b.failed != TWS_OK) return;
  if (room < TWS_DISK_ELEMENTS) room = TWS_DISK_ELEMENTS;
  for (uint32_t i = 0; i < count; i++) most += 2 + (uint64_t)l->zero.part[params[i]] / room;
  list->blocks = tws_lower_memory(l, most, sizeof *list->blocks);
  for (uint32_t i = 0; i < count && list->blocks; i++) {
    const uint64_t first = l->zero.flat_offset[params[i]], end = first + (uint64_t)l->zero.part[params[i]];
    add_elements(list, first > o->param_cut ? first : o->param_cut, end, room);
  }
  for (uint32_t i = 0; i < list->count && list->blocks; i++) {
    const tws_fetch_block *b = &list->blocks[i];
    const uint64_t elements = block_ceiling(b->first + b->count) - block_floor(b->first);
    if (elements > f->slot_elements) f->slot_elements = elements;
  }
  const int64_t wanted = l->config->zero.param_buffer_count > 0 ? l->config->zero.param_buffer_count : 1;
  const uint32_t slots = list->count < wanted ? list->count : (uint32_t)wanted;
  if (slots > f->slot_count) f->slot_count = slots;
}

void tws_fetch_begin(tws_lower *l, tws_fetch_time time) {
  tws_fetches *f = &l->offload.fetches;
  if (l->offload.param_disk == TWS_NONE || l->b.failed != TWS_OK) return;
  f->list = &f->lists[time];
  f->used = f->read = 0;
  if (f->slots || !f->slot_count) return;
  f->slots = tws_lower_memory(l, f->slot_count, sizeof *f->slots);
  for (uint32_t i = 0; i < f->slot_count && f->slots; i++) {
    f->slots[i] = tws_builder_buffer(&l->b, "parameters from the disk", TWS_CATEGORY_GATHERED, l->config->dtype,
                                     /* the buffers live for the whole program, so that no operation waits for memory */
                                     f->slot_elements, TWS_LIFETIME_PROGRAM);
    if (l->b.failed == TWS_OK) l->b.plan->buffers[f->slots[i]].tier = (uint8_t)l->offload.param_host;
  }
}

/* ---- reads ahead of the gathers ---- */

/* Emits reads of blocks ahead of their use, until as many blocks as there are buffers are read or in use. */
static void read_ahead(tws_lower *l) {
  tws_fetches *f = &l->offload.fetches;
  for (; f->read < f->list->count && f->read < f->used + f->slot_count && l->b.failed == TWS_OK; f->read++) {
    const tws_fetch_block *b = &f->list->blocks[f->read];
    const uint64_t first = block_floor(b->first), count = block_ceiling(b->first + b->count) - first;
    tws_builder_copy(&l->b, TWS_STREAM_DISK, tws_read(l->offload.param_disk, first - l->offload.param_cut, count),
                     tws_write(f->slots[f->read % f->slot_count], 0, count));
  }
}

static void fetch_from_disk(tws_lower *l, uint64_t first, tws_operand to) {
  tws_fetches *f = &l->offload.fetches;
  while (to.count > 0 && l->b.failed == TWS_OK) {
    const tws_fetch_block *b = &f->list->blocks[f->used];
    if (f->used >= f->list->count) {
      tws_builder_fail(&l->b, TWS_INTERNAL, "a parameter is gathered that was not to be");
      return;
    }
    if (first < b->first || first >= b->first + b->count) { /* true if the current block has been used to its end */
      f->used++;
      continue;
    }
    read_ahead(l);
    const uint64_t left = b->first + b->count - first, count = to.count < left ? to.count : left;
    tws_builder_copy(&l->b, TWS_STREAM_COPY_IN,
                     tws_read(f->slots[f->used % f->slot_count], first - block_floor(b->first), count),
                     tws_write(to.buffer, to.offset, count));
    first += count;
    to.offset += count;
    to.count -= count;
  }
}

tws_operand tws_fetch(tws_lower *l, uint32_t param, tws_operand to) {
  const tws_offload *o = &l->offload;
  const uint64_t first = l->zero.flat_offset[param], end = first + to.count;
  const uint64_t here = end <= o->param_cut ? to.count : first < o->param_cut ? o->param_cut - first : 0;
  if (here > 0)
    tws_builder_copy(&l->b, TWS_STREAM_COPY_IN, tws_read(l->b.plan->parameters, first, here),
                     tws_write(to.buffer, to.offset, here));
  if (here < to.count) fetch_from_disk(l, first + here, tws_write(to.buffer, to.offset + here, to.count - here));
  return tws_read(to.buffer, to.offset, to.count);
}
