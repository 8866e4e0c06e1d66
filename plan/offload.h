/* What the passes ask of offloading. Without it nothing here emits an operation. Internal to plan/. */
#ifndef TWS_PLAN_OFFLOAD_H
#define TWS_PLAN_OFFLOAD_H

#include "plan/lower.h"

/* Whole blocks of the disk, of every type that states have. */
enum { TWS_DISK_ELEMENTS = TWS_DISK_ALIGNMENT / 2 };

/* After groups and stages are known, before anything is laid out. */
void tws_offload_begin(tws_lower *l);
/* A buffer in the tier of what is offloaded. */
uint32_t tws_offload_buffer(tws_lower *l, const char *name, tws_category category, tws_dtype dtype, uint64_t elements);
int tws_offload_is_on_host(const tws_lower *l, uint32_t buffer);
/* Once parameters are laid out, before states are. */
void tws_offload_find_cut(tws_lower *l);
/* Masters (kind 0) and states (1 ...) of so many elements that the rank updates: entries of the state, wherever they
 * live. Returns the buffer of the first element's. */
uint32_t tws_offload_owned(tws_lower *l, int kind, tws_state_entry *entry, uint64_t elements);
/* The entry of gradients, `kept` of them, that wait on the host from one step to a later one's update. */
uint32_t tws_offload_waiting_gradients(tws_lower *l, const char *name, tws_dtype dtype, uint64_t kept);
/* Whether the host updates this element of what the rank updates. */
static inline int tws_offload_updates(const tws_lower *l, uint64_t element) {
  return l->offload.optimizer && element >= l->offload.cut;
}
/* Where gradients [first, first + count) of what the rank keeps are: both sides of the cut at most. Returns how many.
 */
int tws_offload_kept(const tws_lower *l, uint64_t first, uint64_t count, tws_operand out[2]);
/* Says where gradients are kept, once the plan has its own; `kept`: elements that this rank updates; starts: where
 * parameters begin in them, ascending. */
void tws_offload_gradients(tws_lower *l, uint64_t kept, const uint64_t *starts, uint32_t count);
/* Whether reduced buckets are copied out one by one. */
int tws_offload_copies_buckets(const tws_lower *l);
/* Copies a reduced range of the device to the host's gradients from `offset` on, or adds it to them. */
void tws_offload_keep(tws_lower *l, tws_operand from, uint64_t offset, int add);
/* In the step: gradients that no bucket brought; before and after the sum of their squares; scalars for the update. */
void tws_offload_rest_of_gradients(tws_lower *l);
void tws_offload_squares_begin(tws_lower *l);
void tws_offload_squares_end(tws_lower *l);
void tws_offload_scalars(tws_lower *l);
/* Where an update finds masters (kind 0) and states (1 ...): in their buffer, or where they were brought. */
tws_operand tws_offload_state(const tws_lower *l, int kind, uint32_t buffer, uint64_t offset, uint64_t count,
                              uint32_t access);
/* Brings what the rank updates from the disk, range by range, calls `update` for each and takes it back. */
void tws_offload_stages(tws_lower *l, void (*update)(tws_lower *l, uint64_t first, uint64_t count, void *user),
                        void *user);
/* Whether an update works on ranges that come from the disk, or go there. */
int tws_offload_has_ranges(const tws_lower *l);
/* Where an update, on the host or on the device, writes 16-bit weights [first, first + count) of those that the rank
 * stores. */
tws_operand tws_offload_weights(tws_lower *l, uint64_t first, uint64_t count, int on_host);
/* The update of a run has been issued: `from` is to be copied to where these weights live. */
void tws_offload_updated(tws_lower *l, tws_operand from, uint64_t first, uint64_t count);
void tws_offload_end(tws_lower *l);

/* delayed.c: entries of the state for `kept` elements that the rank updates; before forward passes the update; when
 * gradients are there they wait for the next step; behind TWS_PROGRAM_APPLY nothing does. */
void tws_delayed_begin(tws_lower *l, uint64_t kept);
void tws_delayed_update(tws_lower *l);
void tws_delayed_keep(tws_lower *l);
void tws_delayed_clear(tws_lower *l);
/* Updated weights go to their place when tws_offload_store() is called. */
void tws_delayed_hold(tws_lower *l, tws_operand from, tws_operand to);
void tws_offload_store(tws_lower *l);

/* fetch.c: the entries of the state that have the rank's parameters, wherever they live; pieces: tws_builder_pieces()
 */
void tws_offload_parameters(tws_lower *l, uint64_t elements, const uint64_t *pieces, uint32_t count);
/* What is gathered at the start of the step, or in a micro-batch, in order: once for each, before tws_fetch_begin(). */
void tws_fetch_list_make(tws_lower *l, tws_fetch_time time, const uint32_t *params, uint32_t count);
void tws_fetch_begin(tws_lower *l, tws_fetch_time time);
/* Copies the rank's part of a parameter, the next of the list, to the device; returns it there, to be read. */
tws_operand tws_fetch(tws_lower *l, uint32_t param, tws_operand to);

#endif
