/* Functions of optimizer states, gradients and parameters that are offloaded to the host or the disk; other passes of
 * the lowering call them. These functions emit no operation in a job without offloading. Internal to plan/. */
#ifndef TWS_PLAN_OFFLOAD_H
#define TWS_PLAN_OFFLOAD_H

#include "plan/lower.h"

/* Number of 2-byte elements in a disk block; every state type has at least 2 bytes, so that a range of a multiple of
 * this number of elements consists of whole disk blocks. */
enum { TWS_DISK_ELEMENTS = TWS_DISK_ALIGNMENT / 2 };

/* Largest number of elements that one copy between device and host transfers if the order of copies matters. The limit
 * makes each copy wait for few other operations. */
enum { TWS_OFFLOAD_RANGE = 1 << 25 };

/* Determines what is offloaded and to which tiers. Called when groups and stages are known, before parameters are laid
 * out. */
void tws_offload_begin(tws_lower *l);
/* Returns a new buffer in the tier of offloaded buffers. */
uint32_t tws_offload_buffer(tws_lower *l, const char *name, tws_category category, tws_dtype dtype, uint64_t elements);
int tws_offload_is_on_host(const tws_lower *l, uint32_t buffer);
/* Determines l->offload.cut, the number of elements that the device updates. Called after parameters are laid out and
 * before states are. */
void tws_offload_find_cut(tws_lower *l);
/* Adds the state entries of master weights (kind 0) or of optimizer state number kind - 1, for `elements` elements that
 * the rank updates, in the tiers in which these live. Returns the buffer of the first element. */
uint32_t tws_offload_owned(tws_lower *l, int kind, tws_state_entry *entry, uint64_t elements);
/* Adds the state entry of `kept` gradients that stay on the host until an update in a later step reads them. Returns
 * its buffer. */
uint32_t tws_offload_waiting_gradients(tws_lower *l, const char *name, tws_dtype dtype, uint64_t kept);
/* Returns 1 if the host updates this element. `element` counts the elements that the rank updates. */
static inline int tws_offload_updates(const tws_lower *l, uint64_t element) {
  return l->offload.optimizer && element >= l->offload.cut;
}
/* Writes the operands of this rank's gradients [first, first + count), and returns their number, at most two: gradients
 * below the cut are on the device, the others on the host. */
int tws_offload_kept(const tws_lower *l, uint64_t first, uint64_t count, tws_operand out[2]);
/* Creates the host's buffer of gradients; called when the plan's own gradient buffers exist. kept: number of elements
 * that this rank updates; starts: ascending offsets of `count` parameters among these elements. */
void tws_offload_gradients(tws_lower *l, uint64_t kept, const uint64_t *starts, uint32_t count);
/* Returns 1 if each reduced bucket is copied to the host separately. */
int tws_offload_copies_buckets(const tws_lower *l);
/* Copies a reduced range of gradients from the device to the host's gradients from `offset` on; add 1: the host adds it
 * to them. */
void tws_offload_keep(tws_lower *l, tws_operand from, uint64_t offset, int add);
/* Optimizer phase. tws_offload_rest_of_gradients() copies the gradients that no bucket has copied;
 * tws_offload_squares_begin() and _end() begin and end the computation of the sum of squares; tws_offload_scalars()
 * copies scalars to the host. */
void tws_offload_rest_of_gradients(tws_lower *l);
void tws_offload_squares_begin(tws_lower *l);
void tws_offload_squares_end(tws_lower *l);
void tws_offload_scalars(tws_lower *l);
/* Returns the operand of master weights (kind 0) or of optimizer state kind - 1 for an update: a range of `buffer`, or
 * of staging buffers if the range is on the disk. */
tws_operand tws_offload_state(const tws_lower *l, int kind, uint32_t buffer, uint64_t offset, uint64_t count,
                              uint32_t access);
/* Stages the elements that the rank updates from the disk range by range, calls `update` for each range, and writes the
 * range back to the disk. */
void tws_offload_stages(tws_lower *l, void (*update)(tws_lower *l, uint64_t first, uint64_t count, void *user),
                        void *user);
/* Returns 1 if updates read or write ranges on the disk. */
int tws_offload_has_ranges(const tws_lower *l);
/* Returns the operand to which an update, on the host or on the device, writes the 16-bit weights [first, first +
 * count), counted among those that the rank stores. */
tws_operand tws_offload_weights(tws_lower *l, uint64_t first, uint64_t count, int on_host);
/* Called when an update has been issued: copies the updated weights `from` to the buffer of these weights, immediately
 * or in a later operation. */
void tws_offload_updated(tws_lower *l, tws_operand from, uint64_t first, uint64_t count);
void tws_offload_end(tws_lower *l);

/* delayed.c. tws_delayed_begin() adds the state entries for `kept` elements that the rank updates; tws_delayed_update()
 * emits the previous step's update before the forward passes; tws_delayed_keep() keeps this step's gradients for the
 * next step; tws_delayed_clear() marks after TWS_PROGRAM_APPLY that no gradients are left. */
void tws_delayed_begin(tws_lower *l, uint64_t kept);
void tws_delayed_update(tws_lower *l);
void tws_delayed_keep(tws_lower *l);
void tws_delayed_clear(tws_lower *l);
/* Functions of delayed.c that ZenFlow uses too. tws_delayed_scalars() adds the state entries of the scalars of a
 * delayed update; tws_delayed_run() emits an update that reads these gradients and scalars, and defers the copies of
 * weights. */
void tws_delayed_scalars(tws_lower *l, const char *hyper, const char *metrics);
/* Adds the state entry of `elements` scalars on the host that every rank has and a later step reads. Returns its
 * buffer. */
uint32_t tws_delayed_scalar(tws_lower *l, const char *name, tws_dtype dtype, uint64_t elements);
void tws_delayed_run(tws_lower *l, uint32_t gradients);
/* Defers the copy of updated weights `from` to `to` until tws_offload_store() is called. That emits the deferred
 * copies, the last ones first: a copy waits for the last operation that reads the weights, and backward passes begin
 * with the last layers. */
void tws_delayed_defer_copy(tws_lower *l, tws_operand from, tws_operand to);
void tws_offload_store(tws_lower *l);

/* fetch.c: adds the state entries of the rank's parameters in the tiers in which they live; segments, count: as starts
 * and count of tws_builder_segments(). */
void tws_offload_parameters(tws_lower *l, uint64_t elements, const uint64_t *segments, uint32_t count);
/* Sets the list of parameters that are gathered at the start of the step, or in each micro-batch, in the order in which
 * they are gathered. Called once for each of the two lists, before tws_fetch_begin(). */
void tws_fetch_list_make(tws_lower *l, tws_fetch_time time, const uint32_t *params, uint32_t count);
void tws_fetch_begin(tws_lower *l, tws_fetch_time time);
/* Copies the rank's shard of a parameter, which has to be the next one of the list, to the device, and returns it as a
 * read operand. */
tws_operand tws_fetch(tws_lower *l, uint32_t param, tws_operand to);

#endif
