/* Inputs of steps. On a device they are prefetched by one step: while a step runs, the host prepares the next one's
 * inputs in pinned memory, and the stream for copies into the device transfers them to a staging buffer there;
 * before the next step one copy within the device, a few microseconds, moves them to the buffers that the plan
 * reads. */
#include <string.h>
#include "base/memory.h"
#include "real/train_internal.h"

/* TAKEN: the data on the device have been copied into a program's inputs; ARRIVED: data have arrived on the device */
enum { TAKEN, ARRIVED, EVENTS };

typedef struct tws_prefetched_inputs {
  const tws_data *data; /* data set of the prefetched batch; NULL: no batch is prefetched */
  int64_t batch;
  uint64_t bytes, at[TWS_NETWORK_INPUTS]; /* bytes: size of one step's inputs; at: offset of each input */
  char *pinned[2], *device;
  int next;       /* index of the pinned buffer that is filled next */
  int taken;      /* 1: the event TAKEN has been signalled */
  uint32_t event; /* number of the first of the two events; it is larger than the numbers of the plans' events */
} tws_prefetched_inputs;

static uint64_t padded(uint64_t bytes) {
  return (bytes + TWS_ALIGNMENT - 1) / TWS_ALIGNMENT * TWS_ALIGNMENT;
}

/* Returns the bytes of an input in the program that needs most. */
static uint64_t input_bytes(const tws_training *t, uint32_t input) {
  uint64_t most = 0;
  for (int p = 0; p < TWS_PROGRAM_COUNT; p++) {
    const tws_plan *plan = t->programs[p];
    if (!plan || plan->input[input] == TWS_NONE) continue;
    const uint64_t bytes = plan->buffers[plan->input[input]].bytes;
    if (bytes > most) most = bytes;
  }
  return most;
}

static tws_code open_on_host(tws_training *t, tws_error *err) {
  for (uint32_t i = 0; i < t->plan->network->input_count; i++) {
    const uint64_t bytes = input_bytes(t, i);
    if (bytes > 0) t->input[i] = tws_calloc(bytes, 1);
    if (bytes > 0 && !t->input[i]) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  }
  return TWS_OK;
}

static tws_code allocate(const tws_training *t, tws_tier tier, uint64_t bytes, char **out, tws_error *err) {
  void *memory = NULL;
  const tws_code code = t->ops->allocate(t->backend, tier, bytes, &memory, err);
  *out = memory;
  return code == TWS_OK ? code : tws_fail_in(err, code, "memory for the inputs of the next step");
}

tws_code tws_inputs_open(tws_training *t, tws_error *err) {
  if (!t->ops->wait) return open_on_host(t, err);
  tws_prefetched_inputs *a = t->ahead = tws_calloc(1, sizeof *a);
  if (!a) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (uint32_t i = 0; i < t->plan->network->input_count; i++) {
    a->at[i] = a->bytes;
    a->bytes += padded(input_bytes(t, i));
  }
  for (int p = 0; p < TWS_PROGRAM_COUNT; p++)
    if (t->programs[p] && t->programs[p]->op_count > a->event) a->event = t->programs[p]->op_count;
  if (a->bytes == 0) return TWS_OK; /* this pipeline stage reads no inputs */
  for (int i = 0; i < 2; i++) TWS_TRY(allocate(t, TWS_TIER_PINNED, a->bytes, &a->pinned[i], err));
  return allocate(t, TWS_TIER_DEVICE, a->bytes, &a->device, err);
}

void tws_inputs_close(tws_training *t) {
  tws_prefetched_inputs *a = t->ahead;
  for (int i = 0; i < TWS_NETWORK_INPUTS; i++) tws_free(t->input[i]);
  for (int i = 0; a && i < 2; i++)
    if (a->pinned[i]) t->ops->release(t->backend, TWS_TIER_PINNED, a->pinned[i]);
  if (a && a->device) t->ops->release(t->backend, TWS_TIER_DEVICE, a->device);
  tws_free(a);
  t->ahead = NULL;
}

uint64_t tws_inputs_device_bytes(const tws_training *t) {
  return t->ahead ? t->ahead->bytes : 0;
}

static tws_code fill(const tws_training *t, const tws_data *data, int64_t batch, void *const *input, tws_error *err) {
  const tws_objective_source source = {.network = t->plan->network,
                                       .data = data,
                                       .shape = &t->shape,
                                       .dtype = t->config->dtype,
                                       .target = t->config->target_length,
                                       .document_end = t->config->document_end_token};
  return tws_objective_fill(&source, batch, input, err);
}

/* Fills a pinned buffer and starts its copy to the device. The buffer was used last two batches before, by a step that
 * has ended since. */
static tws_code send_ahead(tws_training *t, const tws_data *data, int64_t batch, tws_error *err) {
  tws_prefetched_inputs *a = t->ahead;
  void *input[TWS_NETWORK_INPUTS] = {NULL};
  for (uint32_t i = 0; i < t->plan->network->input_count; i++)
    if (input_bytes(t, i) > 0) input[i] = a->pinned[a->next] + a->at[i];
  a->data = NULL;
  TWS_TRY(fill(t, data, batch, input, err));
  if (a->taken) TWS_TRY(t->ops->wait(t->backend, TWS_STREAM_COPY_IN, a->event + TAKEN, err));
  TWS_TRY(t->ops->copy(t->backend, a->device, a->pinned[a->next], a->bytes, TWS_STREAM_COPY_IN, err));
  TWS_TRY(t->ops->signal(t->backend, TWS_STREAM_COPY_IN, a->event + ARRIVED, err));
  a->next = 1 - a->next;
  a->data = data;
  a->batch = batch;
  return TWS_OK;
}

/* Copies the staged inputs into the program's inputs, ordered before the operations that the streams receive next. */
static tws_code take(tws_training *t, const tws_plan *plan, tws_program program, tws_error *err) {
  tws_prefetched_inputs *a = t->ahead;
  TWS_TRY(t->ops->wait(t->backend, TWS_STREAM_COMPUTE, a->event + ARRIVED, err));
  for (uint32_t i = 0; i < plan->network->input_count; i++) {
    const uint32_t buffer = plan->input[i];
    if (buffer != TWS_NONE)
      TWS_TRY(tws_executor_put(t->executor, (int)program, buffer, 0, a->device + a->at[i],
                               plan->buffers[buffer].elements, err));
  }
  a->taken = 1;
  return t->ops->signal(t->backend, TWS_STREAM_COMPUTE, a->event + TAKEN, err);
}

tws_code tws_training_put_inputs(tws_training *t, tws_program program, const tws_data *data, int64_t batch,
                                 tws_error *err) {
  const tws_plan *plan = t->programs[program];
  if (t->ahead) {
    if (data->tokens || t->ahead->data != data || t->ahead->batch != batch) TWS_TRY(send_ahead(t, data, batch, err));
    return take(t, plan, program, err);
  }
  TWS_TRY(fill(t, data, batch, t->input, err));
  for (uint32_t i = 0; i < plan->network->input_count; i++) {
    const uint32_t buffer = plan->input[i];
    if (buffer != TWS_NONE)
      TWS_TRY(tws_executor_put(t->executor, (int)program, buffer, 0, t->input[i], plan->buffers[buffer].elements, err));
  }
  return TWS_OK;
}

tws_code tws_training_prefetch_inputs(tws_training *t, const tws_data *data, int64_t batch, tws_error *err) {
  tws_error why = {0};
  if (!t->ahead || data->tokens) return TWS_OK; /* the caller sets a batch in memory only when its step begins */
  const tws_code code = send_ahead(t, data, batch, &why);
  /* errors in the data are reported when the batch is needed */
  if (code == TWS_OK || code == TWS_IO || code == TWS_INVALID) return TWS_OK;
  if (err) *err = why;
  return code;
}
