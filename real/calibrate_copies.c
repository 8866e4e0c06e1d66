/* Measures copies between devices and pinned memory. A round starts COPIES copies on each stream that takes part (the
 * streams for copies into the device and out of it) and reads the device's clock before the first and after the last
 * copy of each stream. A stream alone gives the rate of its direction: bytes over seconds. With both streams the faster
 * direction ends first, and the rest of the other one runs alone, at the rate of its direction; the rate of both is
 * thus that of the bytes that were copied until the first stream ended. Ranks start each round together, and the
 * slowest of them determines the rate of all. Medians of several rounds are taken.
 *
 * A machine with several NUMA nodes copies faster from memory of the node that a device is attached to. The thread that
 * allocates pinned memory and starts the copies is therefore bound to that node. The variable TWINSPEED_SYSFS names a
 * folder that is read in place of /sys. */
#include "real/calibrate_copies.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/memory.h"
#include "real/mpi_comm.h"

enum { COPIES = 4, ROUNDS = 5, TO_DEVICE = 0, TO_HOST = 1 };

typedef struct copier {
  const tws_backend_ops *ops;
  tws_backend *backend;
  tws_comm *comm;
  double world;
  uint64_t bytes;
  void *device[2], *pinned[2]; /* buffers of each direction */
} copier;

static const tws_stream streams[] = {TWS_STREAM_COPY_IN, TWS_STREAM_COPY_OUT};

static tws_code one_copy(const copier *c, int way, tws_error *err) {
  void *to = way == TO_DEVICE ? c->device[way] : c->pinned[way];
  const void *from = way == TO_DEVICE ? c->pinned[way] : c->device[way];
  return c->ops->copy(c->backend, to, from, c->bytes, streams[way], err);
}

/* Runs one round of the directions [first, end) and returns in began and ended the seconds of the device's clock. */
static tws_code run_round(const copier *c, int first, int end, double began[2], double ended[2], tws_error *err) {
  double moments[4];
  uint32_t marks = 0;
  TWS_TRY(c->ops->synchronize(c->backend, err));
  if (c->comm) TWS_TRY(tws_comm_barrier(c->comm, err));
  for (int way = first; way < end; way++) TWS_TRY(c->ops->mark(c->backend, streams[way], marks++, err));
  for (int i = 0; i < COPIES; i++)
    for (int way = first; way < end; way++) TWS_TRY(one_copy(c, way, err));
  for (int way = first; way < end; way++) TWS_TRY(c->ops->mark(c->backend, streams[way], marks++, err));
  TWS_TRY(c->ops->marked(c->backend, marks, moments, err));
  for (int way = first; way < end; way++) {
    began[way] = moments[way - first];
    ended[way] = moments[way - first + (int)marks / 2];
  }
  return TWS_OK;
}

/* Returns in *rate the rate of all ranks: the number of ranks times that of the slowest. */
static tws_code of_all(const copier *c, double own, double *rate, tws_error *err) {
  double seconds_a_byte = own > 0 ? 1 / own : INFINITY;
  if (c->comm) TWS_TRY(tws_comm_max(c->comm, &seconds_a_byte, err));
  *rate = c->world / seconds_a_byte;
  return TWS_OK;
}

static tws_code one_way(const copier *c, int way, double *rate, tws_error *err) {
  double rates[ROUNDS], began[2], ended[2];
  for (int i = 0; i < ROUNDS; i++) {
    TWS_TRY(run_round(c, way, way + 1, began, ended, err));
    TWS_TRY(of_all(c, COPIES * (double)c->bytes / (ended[way] - began[way]), &rates[i], err));
  }
  *rate = tws_sample_median(rates, ROUNDS);
  return TWS_OK;
}

/* alone: rates of all ranks in each direction alone */
static tws_code both_ways(const copier *c, const double alone[2], double *rate, tws_error *err) {
  double rates[ROUNDS], began[2], ended[2];
  for (int i = 0; i < ROUNDS; i++) {
    TWS_TRY(run_round(c, TO_DEVICE, TO_HOST + 1, began, ended, err));
    const int last = ended[TO_HOST] > ended[TO_DEVICE] ? TO_HOST : TO_DEVICE;
    const double rest = fmin(COPIES * (double)c->bytes, (ended[last] - ended[!last]) * alone[last] / c->world);
    const double together = ended[!last] - fmin(began[TO_DEVICE], began[TO_HOST]);
    TWS_TRY(of_all(c, (2 * COPIES * (double)c->bytes - rest) / together, &rates[i], err));
  }
  *rate = fmin(tws_sample_median(rates, ROUNDS), alone[TO_DEVICE] + alone[TO_HOST]);
  return TWS_OK;
}

static tws_code measure(copier *c, tws_copy_rates *rates, tws_error *err) {
  double alone[2];
  for (int way = 0; way < 2; way++) {
    TWS_TRY(c->ops->allocate(c->backend, TWS_TIER_DEVICE, c->bytes, &c->device[way], err));
    TWS_TRY(c->ops->allocate(c->backend, TWS_TIER_PINNED, c->bytes, &c->pinned[way], err));
    TWS_TRY(one_copy(c, way, err)); /* the first copy of a stream is not timed */
  }
  for (int way = 0; way < 2; way++) TWS_TRY(one_way(c, way, &alone[way], err));
  TWS_TRY(both_ways(c, alone, &rates->both_ways, err));
  rates->to_device = alone[TO_DEVICE];
  rates->to_host = alone[TO_HOST];
  return TWS_OK;
}

static tws_code measure_and_free(copier *c, tws_copy_rates *rates, tws_error *err) {
  *rates = (tws_copy_rates){0};
  const tws_code code = measure(c, rates, err);
  for (int way = 0; way < 2; way++) {
    if (c->device[way]) c->ops->release(c->backend, TWS_TIER_DEVICE, c->device[way]);
    if (c->pinned[way]) c->ops->release(c->backend, TWS_TIER_PINNED, c->pinned[way]);
    c->device[way] = c->pinned[way] = NULL;
  }
  return code;
}

/* Measures with this thread and its pinned memory on node `index`. */
static tws_code measure_on(copier *c, const tws_numa_nodes *nodes, int index, tws_node_rates *out, tws_error *err) {
  tws_thread_place *before;
  TWS_TRY(tws_thread_bind(&nodes->cpus[index], nodes->number[index], &before, &out->is_bound, err));
  out->number = nodes->number[index];
  const tws_code code = measure_and_free(c, &out->rates, err);
  tws_thread_back(before);
  return code;
}

/* Measures memory of all nodes, and takes the rates of the near one, or of the fastest if none is known to be near. */
static tws_code measure_nodes(copier *c, const tws_numa_nodes *nodes, int near, tws_copy_measurement *out,
                              tws_error *err) {
  int chosen = 0;
  for (int i = 0; i < nodes->count; i++) {
    TWS_TRY(measure_on(c, nodes, i, &out->nodes[i], err));
    if (near < 0 && out->nodes[i].rates.both_ways > out->nodes[chosen].rates.both_ways) chosen = i;
  }
  out->count = nodes->count;
  out->rates = out->nodes[near < 0 ? chosen : near].rates;
  return TWS_OK;
}

/* Reads the machine's nodes, and returns the index of the one that the device is attached to; -1: not known. A build
 * without hwloc binds no thread, so that nodes->count is 0. */
static int find_near(const tws_calibrate_device *on, tws_numa_nodes *nodes) {
  const char *sysfs = getenv("TWINSPEED_SYSFS");
  tws_cuda_device device;
  tws_cpus allowed;
  nodes->count = 0;
  if (tws_cpus_allowed(&allowed, NULL) != TWS_OK) return -1;
  tws_numa_read(sysfs, &allowed, nodes);
  if (on->cuda->device(&device, NULL) != TWS_OK) return -1;
  return tws_numa_index(nodes, tws_numa_of_device(sysfs, device.bus));
}

tws_code tws_calibrate_copies(const tws_calibrate_device *on, tws_comm *comm, uint64_t most_bytes,
                              tws_copy_measurement *out, tws_error *err) {
  copier c = {.ops = on->cuda->backend, .backend = on->backend, .comm = comm, .world = on->world, .bytes = 256u << 20};
  if (most_bytes > 0 && c.bytes > most_bytes) c.bytes = most_bytes;
  if (c.bytes < 4096) c.bytes = 4096;
  tws_numa_nodes *nodes = tws_calloc(1, sizeof *nodes);
  if (!nodes) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the machine's NUMA nodes");
  const int near = find_near(on, nodes);
  *out = (tws_copy_measurement){.near = near < 0 ? -1 : nodes->number[near]};
  tws_node_rates one = {.number = -1};
  tws_code code;
  if (nodes->count < 2 || (comm && near < 0))
    code = measure_and_free(&c, &one.rates, err);
  else if (comm)
    code = measure_on(&c, nodes, near, &one, err);
  else
    code = measure_nodes(&c, nodes, near, out, err);
  if (out->count == 0) out->rates = one.rates;
  tws_free(nodes);
  return code;
}

static tws_code note_rates(const char *key, const tws_copy_rates *rates, const char *where, tws_measurements *m,
                           tws_error *err) {
  char text[320];
  snprintf(text, sizeof text, "%.1f GB/s to the device and %.1f GB/s to the host alone, %.1f GB/s together at once%s",
           rates->to_device * 1e-9, rates->to_host * 1e-9, rates->both_ways * 1e-9, where);
  return tws_measurements_add_note(m, key, text, err);
}

tws_code tws_calibrate_note_copies(const tws_copy_measurement *measured, tws_measurements *m, tws_error *err) {
  TWS_TRY(note_rates("copies both ways", &measured->rates, "", m, err));
  for (int i = 0; i < measured->count; i++) {
    const tws_node_rates *node = &measured->nodes[i];
    char key[64], where[96];
    snprintf(key, sizeof key, "copies both ways, memory of NUMA node %d", node->number);
    snprintf(where, sizeof where, "%s%s", node->number == measured->near ? "; the device is attached to this node" : "",
             node->is_bound ? "" : "; the kernel refused to take memory from this node alone");
    TWS_TRY(note_rates(key, &node->rates, where, m, err));
  }
  return TWS_OK;
}
