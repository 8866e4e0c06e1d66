/* Measuring loops of `twinspeed calibrate`: one run measures one number of ranks, on the host or on GPUs.
 *
 * Kernels are timed as a training step meets them. Activations were touched a few kernels ago: such operands rotate
 * through eight times their size. Weights, gradients and optimizer states were not touched for a micro-batch or a step:
 * they rotate through a pool larger than the last cache, as buffers of collectives do. With several ranks all of them
 * run the same kernel at the same time, because they share memory and clocks. Everything is measured in passes over the
 * whole list, so that a disturbance hits one repetition of many cases and not all repetitions of one; lower quartiles
 * are reported, because other load on the machine only ever adds; of a GPU, which is not shared, medians. One matrix
 * product is timed before every pass to show drift. GPUs do not share memory or clocks: kernels are measured by a lone
 * rank, and several ranks measure what passes between them. */
#include "real/calibrate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/host_memory.h"
#include "base/number.h"
#include "models/collective.h"
#include "models/few_rows.h"
#include "real/calibrate_copies.h"
#include "real/calibrate_passes.h"
#include "real/case_operands.h"
#include "real/cuda_loader.h"
#include "real/host/bind.h"
#include "real/host/host.h"
#include "real/mpi_comm.h"
#include "real/stopwatch.h"
#include "real/train_internal.h"
#include "traces/measurements.h"

enum {
  MAX_PASSES = 64,
  LEAST_CASES = 96,
  REFERENCE = 256,
  NEAR_TIMES = 8,
  FILL_BYTE = 0x3f /* memory filled with bytes 0x3f reads as 0.75 in float32 and bfloat16, and as 5e-4 in float64 */
};

typedef struct bench_case {
  tws_work work;
  int declined; /* 1: the backend has declined the work when it was run first */
  tws_case_operand operand[TWS_CASE_OPERANDS];
  int operand_count;
  uint64_t bytes;      /* bytes of all operands, including padding */
  int set;             /* index into sets */
  int inner;           /* number of executions between two readings of the clock */
  uint64_t near_bytes; /* size of the pool through which recently touched operands rotate, bytes */
  /* size of the pool through which weights rotate that caches may hold, and of the weight; 0: the whole pool */
  uint64_t reread_bytes, weight_bytes;
  int seconds_count;
  float seconds[MAX_PASSES];
} bench_case;

/* One number of threads of a rank, with a backend of its own. */
typedef struct thread_set {
  int threads;
  tws_backend *backend;
  tws_stopwatch watch;
} thread_set;

typedef struct transfer_case {
  int collective; /* a tws_collective; -1: a message between ranks 0 and 1 */
  uint64_t bytes;
  int inner, seconds_count;
  float seconds[MAX_PASSES];
} transfer_case;

typedef struct bench {
  const tws_calibrate_options *options;
  const tws_backend_ops *ops;
  tws_backend_kind kind;
  const tws_cuda_api *cuda; /* NULL: on the host */
  tws_cuda_device device;
  double device_bytes;
  tws_comm *comm;
  tws_comm *device_comm; /* runs collectives among GPUs; `comm` runs all others */
  int rank, world, cores;
  tws_machine_parts machine; /* its caches; all 0: unknown */
  thread_set sets[2];
  int set_count;
  void *read_pool, *write_pool; /* pools of kernel operands, in the backend's memory */
  void *shared_pool;            /* pool of collectives, in the communicator's memory; or equal to message_pool */
  void *message_pool;           /* pool of collectives in the backend's memory, if ranks share no memory */
  /* at[written][far]: offset of the next operand in the pool, bytes */
  uint64_t pool_bytes, shared_bytes, shared_at, at[2][2];
  uint64_t shared_next; /* offset in the pool of collectives at which the next case begins, bytes */
  /* token ids of one case; and the memory in which the backend reads them: */
  int32_t *ids;
  void *ids_pool; /* equal to `ids` on the host */
  bench_case *cases;
  size_t case_count;
  transfer_case *transfers;
  size_t transfer_count;
  double reference[MAX_PASSES];
  int passes;
  double overhead_bytes;
  int no_float8; /* number of float8 products that the backend has declined */
  double block_s;
  double sustained_s, sustained_for_s; /* sustained_s: seconds of the reference product, repeated alternately with
                                        * additions without a pause; sustained_for_s: duration of that repetition */
  double restless_s;                   /* seconds of the reference product, repeated alone without a pause */
  tws_copy_measurement copies;         /* of all ranks between devices and pinned memory */
  double budget_s, began_s, said_s;    /* said_s: time of the last write of the results so far */
} bench;

enum { ID_COUNT = 1 << 16 };

static uint64_t padded(uint64_t bytes) {
  return (bytes + TWS_ALIGNMENT - 1) / TWS_ALIGNMENT * TWS_ALIGNMENT;
}

/* Reports this rank's work to the launcher: a line that is unchanged for the deadline means no progress. */
static void tell(const bench *b, const char *what, size_t number, size_t total) {
  const tws_calibrate_options *o = b->options;
  if (o->activity) snprintf(o->activity, o->activity_bytes, "pass %d, %s %zu of %zu", b->passes, what, number, total);
}

/* ---- one kernel ---- */

static unsigned char *take(void *pool, uint64_t pool_bytes, uint64_t *at, uint64_t bytes) {
  if (*at + bytes > pool_bytes) *at = 0;
  unsigned char *place = (unsigned char *)pool + *at;
  *at += padded(bytes);
  return place;
}

/* Returns the index of an operand's first integer among the integers of all operands of the case. */
static uint64_t first_id(const bench_case *c, int operand) {
  uint64_t first = 0;
  for (int i = 0; i < operand; i++)
    if (c->operand[i].below > 0) first += c->operand[i].elements;
  return first;
}

static tws_code run_once(bench *b, bench_case *c, tws_error *err) {
  void *operand[TWS_CASE_OPERANDS];
  tws_dtype dtype[TWS_CASE_OPERANDS];
  for (int i = 0; i < c->operand_count; i++) {
    const tws_case_operand *o = &c->operand[i];
    uint64_t bytes = o->elements * tws_dtype_bytes(o->dtype);
    dtype[i] = o->dtype;
    uint64_t span = o->far || c->near_bytes > b->pool_bytes ? b->pool_bytes : c->near_bytes;
    if (o->far && c->reread_bytes > 0) span = c->reread_bytes;
    if (o->below > 0)
      operand[i] = (int32_t *)b->ids_pool + first_id(c, i);
    else
      operand[i] = take(o->written ? b->write_pool : b->read_pool, span, &b->at[o->written][o->far], bytes);
  }
  return b->ops->run(b->sets[c->set].backend, &c->work, NULL, operand, dtype, c->operand_count, TWS_STREAM_COMPUTE,
                     err);
}

/* Work that the stopwatch starts. */
typedef struct timed {
  bench *b;
  bench_case *kernel, *second; /* second: a kernel that runs after the first one, or NULL */
  struct transfer_case *transfer;
} timed;

static tws_code start_kernel(void *user, tws_error *err) {
  timed *t = user;
  TWS_TRY(run_once(t->b, t->kernel, err));
  return t->second ? run_once(t->b, t->second, err) : TWS_OK;
}

static tws_code meet(void *user, tws_error *err) {
  timed *t = user;
  return t->b->world > 1 ? tws_comm_barrier(t->b->comm, err) : TWS_OK;
}

static tws_code run_block(bench *b, bench_case *c, int times, double *seconds, tws_error *err) {
  timed t = {.b = b, .kernel = c};
  return tws_stopwatch_measure(&b->sets[c->set].watch, start_kernel, meet, &t, times, seconds, err);
}

/* Sets the token ids of one case, which a multiplicative hash spreads over the vocabulary. */
static tws_code set_ids(bench *b, const bench_case *c, tws_error *err) {
  uint64_t at = 0;
  for (int i = 0; i < c->operand_count; i++) {
    const tws_case_operand *o = &c->operand[i];
    for (uint32_t j = 0; o->below > 0 && j < o->elements; j++)
      b->ids[at++] = (int32_t)(o->greatest ? o->below - 1 : (int64_t)((j * 2654435761u >> 8) % (uint64_t)o->below));
  }
  if (!b->cuda || at == 0) return TWS_OK;
  return b->ops->copy(b->sets[0].backend, b->ids_pool, b->ids, at * sizeof *b->ids, TWS_STREAM_COMPUTE, err);
}

/* Runs a case for the first time. Works that a GPU's library or kernel declines are left out of the profile, with a
 * message; a device error ends the run. */
static tws_code first_touch(bench *b, bench_case *c, tws_error *err) {
  TWS_TRY(set_ids(b, c, err));
  tws_error reason = {0};
  const tws_code code = run_once(b, c, &reason);
  if (code != TWS_OK && (!b->cuda || code == TWS_MEMORY)) {
    if (err) *err = reason;
    return code;
  }
  TWS_TRY(b->ops->synchronize(b->sets[c->set].backend, err));
  if (code == TWS_OK) return TWS_OK;
  const int64_t *d = c->work.d;
  c->declined = 1;
  if (c->work.flags & TWS_FP8 && b->no_float8++) return TWS_OK; /* one message is enough for all of these products */
  tws_log_write(b->options->log, TWS_LOG_WARNING, "not measured: %s of %s, %lld x %lld x %lld x %lld x %lld: %s",
                tws_kernel_name((tws_kernel)c->work.code), tws_dtype_name((tws_dtype)c->work.dtype), (long long)d[0],
                (long long)d[1], (long long)d[2], (long long)d[3], (long long)d[4], reason.message);
  return TWS_OK;
}

static tws_code choose_inner(bench *b, bench_case *c, tws_error *err) {
  double seconds;
  TWS_TRY(first_touch(b, c, err));
  if (c->declined) return TWS_OK;
  TWS_TRY(run_block(b, c, 1, &seconds, err));
  if (b->world > 1) TWS_TRY(tws_comm_max(b->comm, &seconds, err));
  double inner = b->block_s / (seconds > 1e-7 ? seconds : 1e-7);
  const int most = b->cuda ? 512 : 4096; /* limits the size of the recording that is made of the executions */
  c->inner = inner < 1 ? 1 : inner > most ? most : (int)inner;
  return TWS_OK;
}

/* Returns the bytes of the last cache before the backend's memory. */
static uint64_t cache_bytes(const bench *b) {
  if (b->cuda) return b->device.l2_bytes > 0 ? b->device.l2_bytes : 64u << 20;
  return b->machine.last_cache_bytes > 0 ? b->machine.last_cache_bytes : 32u << 20;
}

/* Returns how often the pool of a case is read before it is measured. A last-level cache keeps what is read in a cycle
 * only after several rounds: on a Zen 3 core, pools of 16 MiB were read at 23 GB/s in the first rounds, and at 45 GB/s
 * from about the tenth on, as the tokens of a decode read their weights. */
static uint64_t reads_before(const bench *b, const bench_case *c) {
  enum { FEW = 3, MANY = 12 };
  return c->reread_bytes <= cache_bytes(b) ? MANY : FEW;
}

static tws_code measure_case(bench *b, bench_case *c, tws_error *err) {
  double seconds;
  if (c->declined) return TWS_OK;
  TWS_TRY(set_ids(b, c, err));
  /* the weights of a pool that caches may hold have been read several times before, as in a decode */
  bench_case reads = *c;
  if (c->reread_bytes > 0) reads.work.d[0] = 1; /* a product of one row is the fastest that reads a weight */
  for (uint64_t read = 0; read < reads_before(b, c) * c->reread_bytes; read += padded(c->weight_bytes))
    TWS_TRY(run_once(b, &reads, err));
  TWS_TRY(run_block(b, c, c->inner, &seconds, err));
  if (b->world > 1) {
    double longest = seconds;
    TWS_TRY(tws_comm_max(b->comm, &longest, err));
    seconds = longest;
  }
  c->seconds[c->seconds_count++] = (float)seconds;
  return TWS_OK;
}

/* ---- one collective ---- */

static tws_code message(bench *b, int peer, int receives, void *data, uint64_t bytes, tws_error *err) {
  const tws_comm_ops *comm = tws_mpi_comm_ops();
  if (b->cuda)
    return b->cuda->comm_ops->start_message(b->device_comm, peer, receives, data, bytes, TWS_STREAM_COMPUTE, err);
  return receives ? comm->receive(b->comm, peer, data, bytes, err) : comm->send(b->comm, peer, data, bytes, err);
}

static tws_code transfer_once(bench *b, const transfer_case *t, tws_error *err) {
  const uint64_t whole = t->bytes / 4, part = whole / (uint64_t)b->world;
  unsigned char *whole_at = take(b->shared_pool, b->shared_bytes, &b->shared_at, t->bytes);
  if (t->collective < 0) {
    if (b->rank > 1) return TWS_OK;
    TWS_TRY(message(b, 1 - b->rank, b->rank, whole_at, t->bytes, err));
    return message(b, 1 - b->rank, !b->rank, whole_at, t->bytes, err);
  }
  const tws_collective kind = (tws_collective)t->collective;
  const tws_collective_parts parts = tws_collective_parts_of(kind, b->world, b->rank, 0);
  tws_comm_segment segment = {.send = whole_at, .receive = whole_at, .dtype = TWS_F32, .count = whole};
  if (parts.send > 1 || parts.receive > 1) segment.count = part;
  if (parts.send < parts.receive) segment.send = whole_at + (uint64_t)b->rank * part * 4;
  if (parts.send > parts.receive) segment.receive = take(b->shared_pool, b->shared_bytes, &b->shared_at, part * 4);
  if (b->cuda)
    return b->cuda->comm_ops->start_collective(b->device_comm, 0, kind, 0, &segment, 1, TWS_STREAM_COMPUTE, err);
  return tws_mpi_comm_ops()->collective(b->comm, 0, kind, 0, &segment, 1, err);
}

static tws_code start_transfer(void *user, tws_error *err) {
  timed *t = user;
  return transfer_once(t->b, t->transfer, err);
}

/* LATE_S: longer than a barrier polls before it sleeps, in seconds. */
static const double LATE_S = 300e-6;

/* Times large collectives of the host as a training step meets them, and as the communication log measures transfers:
 * one rank enters later than the others, which have gone to sleep by then. It finds all data at hand, so its call lasts
 * as long as the transfer, and as it takes to wake the others. Ranks are late in turn. The memory has left the caches,
 * as gradients have before they are reduced, unless the model is small. */
static tws_code time_skewed(bench *b, timed *what, int times, double *seconds, tws_error *err) {
  int own = 0;
  double sum = 0;
  for (int i = 0; i < times; i++) {
    TWS_TRY(meet(what, err));
    double began = tws_clock_s();
    const int late = i % b->world == b->rank;
    if (late) {
      const double until = began + LATE_S;
      while ((began = tws_clock_s()) < until) continue;
    }
    TWS_TRY(transfer_once(b, what->transfer, err));
    if (late) sum += tws_clock_s() - began, own++;
  }
  *seconds = own ? sum / own : 0;
  return TWS_OK;
}

static int is_skewed(const bench *b, const transfer_case *t) {
  enum { LARGE = 1 << 16 }; /* bytes; smaller collectives often follow each other without a pause */
  return !b->cuda && t->collective >= 0 && t->bytes >= LARGE;
}

static tws_code transfer_block(bench *b, transfer_case *t, int times, double *seconds, tws_error *err) {
  timed what = {.b = b, .transfer = t};
  /* all ranks begin at the same offset of the pool, after the buffers of the previous transfer */
  b->shared_at = b->shared_next;
  b->shared_next = (b->shared_next + (uint64_t)times * padded(t->bytes)) % b->shared_bytes;
  TWS_TRY(is_skewed(b, t) ? time_skewed(b, &what, times, seconds, err)
                          : tws_stopwatch_measure(&b->sets[0].watch, start_transfer, meet, &what, times, seconds, err));
  *seconds /= t->collective < 0 ? 2 : 1; /* the measured time is that of a message sent there and back */
  return tws_comm_max(b->comm, seconds, err);
}

static tws_code choose_transfer_inner(bench *b, transfer_case *t, tws_error *err) {
  double seconds;
  b->shared_at = 0;
  TWS_TRY(transfer_once(b, t, err)); /* the first transfer sets up connections */
  TWS_TRY(b->ops->synchronize(b->sets[0].backend, err));
  TWS_TRY(transfer_block(b, t, b->world, &seconds, err));
  if (is_skewed(b, t)) seconds += LATE_S;
  double inner = b->block_s / (seconds > 1e-7 ? seconds : 1e-7);
  t->inner = inner < 2 ? 2 : inner > 512 ? 512 : (int)inner;
  if (t->inner < b->world) t->inner = b->world; /* each rank is late once */
  return TWS_OK;
}

static tws_code measure_transfer(bench *b, transfer_case *t, tws_error *err) {
  double seconds;
  TWS_TRY(transfer_block(b, t, t->inner, &seconds, err));
  t->seconds[t->seconds_count++] = (float)seconds;
  return TWS_OK;
}

/* ---- lists ---- */

/* Returns the bytes of all operands of the kernel that needs the most memory. */
static uint64_t largest_case(const bench *b) {
  uint64_t bytes = b->cuda ? 6ull << 30 : 1ull << 30;
  if (b->cuda && (double)bytes > b->device_bytes / 8) bytes = (uint64_t)(b->device_bytes / 8);
  if (b->options->largest_bytes > 0 && bytes > b->options->largest_bytes) bytes = b->options->largest_bytes;
  return bytes;
}

/* Sizes of pools through which the weights of products of few rows rotate, in addition to the pool that exceeds the
 * caches: the second-level cache holds the first one, and the last-level cache the others. Small models decode so: a
 * token reads the same weights again as the token before it. */
enum { REREADS = 5 };
static int rereads_of(const bench *b, uint64_t bytes[REREADS]) {
  const uint64_t l2 = b->machine.second_cache_bytes > 0 ? b->machine.second_cache_bytes : 512u << 10,
                 l3 = cache_bytes(b);
  const uint64_t sizes[REREADS] = {l2 / 2, l3 / 8, l3 / 2, l3, 2 * l3};
  int count = 0;
  if (b->cuda) return 0;
  for (int i = 0; i < REREADS; i++) {
    if (b->options->largest_bytes > 0 && sizes[i] > b->options->largest_bytes) break;
    if ((!b->options->quick || i % 2 == 0) && (count == 0 || sizes[i] > bytes[count - 1])) bytes[count++] = sizes[i];
  }
  return count;
}

/* Adds a case again for each pool that holds its weight at least twice. */
static void add_rereads(bench *b) {
  uint64_t bytes[REREADS], weight = 0;
  const bench_case first = b->cases[b->case_count - 1];
  const int few = first.work.d[0] <= TWS_FEW_ROWS;
  if (first.work.code != TWS_KERNEL_LINEAR || first.work.d[0] > TWS_REREAD_ROWS) return;
  if (!few && first.work.flags != 0) return;
  for (int i = 0; i < first.operand_count; i++)
    if (first.operand[i].far) weight += first.operand[i].elements * tws_dtype_bytes(first.operand[i].dtype);
  const int count = rereads_of(b, bytes);
  for (int i = 0; i < count; i++) {
    if (2 * weight > bytes[i] || (!few && bytes[i] > cache_bytes(b))) continue;
    bench_case *again = &b->cases[b->case_count++];
    *again = first;
    again->reread_bytes = bytes[i];
    again->weight_bytes = weight;
  }
}

static tws_code add_cases(bench *b, tws_error *err) {
  const tws_calibrate_options *o = b->options;
  b->cases = tws_calloc((size_t)o->work_count * (size_t)b->set_count * (1 + REREADS) + 1, sizeof *b->cases);
  if (!b->cases) return tws_fail(err, TWS_MEMORY, 0, "no memory for %u cases", o->work_count);
  const uint64_t largest = largest_case(b);
  for (uint32_t i = 0; i < o->work_count; i++) {
    if (b->ops->supports && !b->ops->supports(&o->works[i])) continue;
    for (int set = 0; set < b->set_count; set++) {
      bench_case *c = &b->cases[b->case_count];
      *c = (bench_case){.work = o->works[i], .set = set};
      c->operand_count = tws_case_operands(&c->work, b->kind, b->sets[set].threads, c->operand);
      for (int j = 0; j < c->operand_count; j++)
        if (!c->operand[j].below)
          c->bytes += padded(c->operand[j].elements * tws_dtype_bytes(c->operand[j].dtype)) + TWS_ALIGNMENT;
      uint64_t near = 0;
      for (int j = 0; j < c->operand_count; j++)
        if (!c->operand[j].far) near += padded(c->operand[j].elements * tws_dtype_bytes(c->operand[j].dtype));
      if (c->bytes > largest || first_id(c, c->operand_count) > ID_COUNT) continue;
      if (c->bytes > b->pool_bytes) b->pool_bytes = c->bytes;
      c->near_bytes = NEAR_TIMES * near;
      b->case_count++;
      add_rereads(b);
    }
  }
  return TWS_OK;
}

static tws_code add_transfers(bench *b, tws_error *err) {
  enum { KINDS = TWS_COLLECTIVE_COUNT + 1, SIZES = 16 }; /* messages are timed after the collectives */
  uint64_t largest = b->options->quick ? 1u << 22 : 1u << 24;
  if (b->cuda) largest = b->options->quick ? 1u << 24 : 1u << 28;
  if (b->options->largest_bytes > 0 && largest > b->options->largest_bytes) largest = b->options->largest_bytes;
  if (b->world == 1) return TWS_OK;
  b->shared_bytes = 4 * largest;
  /* a training's buffers have left the last cache when they are reduced or gathered; the pools of all ranks share it */
  const uint64_t beyond_cache = padded(4 * cache_bytes(b) / (uint64_t)b->world);
  if (!b->cuda && b->options->largest_bytes == 0 && b->shared_bytes < beyond_cache) b->shared_bytes = beyond_cache;
  b->transfers = tws_calloc((size_t)KINDS * SIZES, sizeof *b->transfers);
  if (!b->transfers) return tws_fail(err, TWS_MEMORY, 0, "no memory for the list of collectives");
  for (int kind = 0; kind < KINDS; kind++) {
    const int message = kind == TWS_COLLECTIVE_COUNT;
    if (!message && !tws_collective_of((tws_collective)kind)->calibrated) continue;
    for (uint64_t bytes = 1u << 10; bytes <= largest && b->transfer_count < KINDS * SIZES;
         bytes *= b->options->quick ? 8 : 4)
      b->transfers[b->transfer_count++] = (transfer_case){
          .collective = message ? -1 : kind, .bytes = bytes / (uint64_t)(4 * b->world) * (uint64_t)(4 * b->world)};
  }
  return TWS_OK;
}

/* ---- the run ---- */

static tws_code make_sets(bench *b, tws_error *err) {
  int all = b->options->threads > 0 ? b->options->threads : b->cores, device = 0;
  b->sets[b->set_count++].threads = 1;
  if (b->world == 1 && all > 1 && !b->cuda) b->sets[b->set_count++].threads = all;
  if (b->cuda) TWS_TRY(tws_cuda_choose_device(b->cuda, &device, err));
  for (int i = b->set_count - 1; i >= 0; i--) {
    TWS_TRY(b->ops->create(device, b->sets[i].threads, &b->sets[i].backend, err));
    b->sets[i].watch = (tws_stopwatch){
        .ops = b->ops, .backend = b->sets[i].backend, .alone = b->world == 1 && b->sets[i].threads == 1};
  }
  if (!b->cuda) return TWS_OK;
  tws_cuda_memory memory;
  TWS_TRY(b->cuda->memory(b->sets[0].backend, &memory, err));
  b->device_bytes = (double)memory.total;
  return b->cuda->device(&b->device, err);
}

/* Fills a pool: on the host with constants; on a GPU, whose power and thus clocks depend on the data, with random
 * values like those of a training. */
static tws_code fill_pool(const bench *b, void *pool, uint64_t bytes, tws_error *err) {
  if (b->cuda) return tws_calibrate_fill(b->ops, b->sets[0].backend, pool, bytes, err);
  memset(pool, FILL_BYTE, bytes);
  return TWS_OK;
}

static tws_code make_pools(bench *b, tws_error *err) {
  void **pools[] = {&b->read_pool, &b->write_pool};
  b->ids = tws_calloc(ID_COUNT, sizeof *b->ids);
  if (!b->ids) return tws_fail(err, TWS_MEMORY, 0, "no memory for token ids");
  b->ids_pool = b->ids;
  if (b->cuda)
    TWS_TRY(b->ops->allocate(b->sets[0].backend, TWS_TIER_DEVICE, ID_COUNT * sizeof *b->ids, &b->ids_pool, err));
  for (int i = 0; i < 2 && b->case_count > 0; i++) {
    TWS_TRY(b->ops->allocate(b->sets[0].backend, TWS_TIER_DEVICE, b->pool_bytes, pools[i], err));
    TWS_TRY(fill_pool(b, *pools[i], b->pool_bytes, err));
  }
  if (b->world == 1) return TWS_OK;
  if (!b->cuda) TWS_TRY(tws_comm_allocate(b->comm, b->shared_bytes, &b->shared_pool, err));
  if (!b->shared_pool) {
    TWS_TRY(b->ops->allocate(b->sets[0].backend, TWS_TIER_DEVICE, b->shared_bytes, &b->message_pool, err));
    b->shared_pool = b->message_pool;
  }
  return fill_pool(b, b->shared_pool, b->shared_bytes, err);
}

/* Returns the resident memory of this process, bytes; libraries need memory in addition to the arenas. */
static double resident_bytes(void) {
  double pages = 0;
  char line[128];
  const char *rest;
  FILE *file = fopen("/proc/self/statm", "r"); /* the file's first number is the size of all memory, and the second that
                                                * of the resident part */
  if (!file) return 0;
  if (fgets(line, sizeof line, file)) tws_text_number(line + strcspn(line, " "), &rest, 0, 1e15, &pages);
  fclose(file);
  return pages * (double)sysconf(_SC_PAGESIZE);
}

static tws_code prepare(bench *b, tws_error *err) {
  static const int max_world = 4096;
  if (b->world > max_world) return tws_fail(err, TWS_INVALID, 0, "calibration runs on at most %d ranks", max_world);
  int ranks[4096];
  for (int i = 0; i < b->world; i++) ranks[i] = i;
  tws_group group = {.axes = TWS_AXES_DATA, .size = b->world, .index = b->rank, .ranks = ranks};
  const tws_plan plan = {.groups = &group, .group_count = 1};
  if (b->world > 1) TWS_TRY(tws_comm_create(NULL, &group, 1, TWS_TRANSPORT_AUTO, b->world > b->cores, &b->comm, err));
  TWS_TRY(make_sets(b, err));
  if (b->cuda && b->world > 1)
    TWS_TRY(tws_cuda_connect(b->cuda, b->sets[0].backend, NULL, &plan, &b->device_comm, err));
  b->overhead_bytes = resident_bytes();
  if (!b->cuda && tws_machine_count_parts(NULL, NULL, &b->machine, NULL) != TWS_OK)
    b->machine = (tws_machine_parts){.cores = 0}; /* a build without hwloc */
  b->pool_bytes = 4 * cache_bytes(b);
  /* with more ranks than cores, ranks would compete for cores */
  const int kernels = b->cuda ? b->world == 1 : b->world <= b->cores;
  if (kernels) TWS_TRY(add_cases(b, err));
  TWS_TRY(add_transfers(b, err));
  TWS_TRY(make_pools(b, err));
  return tws_host_check_limit(err);
}

static void release(bench *b) {
  void *pools[] = {b->read_pool, b->write_pool, b->message_pool, b->cuda ? b->ids_pool : NULL};
  for (int i = 0; i < 4; i++)
    if (pools[i]) b->ops->release(b->sets[0].backend, TWS_TIER_DEVICE, pools[i]);
  if (b->device_comm) b->cuda->comm_destroy(b->device_comm);
  for (int i = 0; i < b->set_count; i++)
    if (b->sets[i].backend) b->ops->destroy(b->sets[i].backend);
  if (b->comm) tws_comm_destroy(b->comm);
  tws_free(b->cases);
  tws_free(b->transfers);
  tws_free(b->ids);
}

/* Returns the size of a matrix product that fills a GPU, or a small one if only small kernels are requested. */
static int64_t reference_size(const bench *b) {
  if (!b->cuda) return REFERENCE;
  return b->options->largest_bytes == 0 && b->pool_bytes >= 3ull * 4096 * 4096 * 2 ? 4096 : 64;
}

static double reference_flops(const bench *b) {
  const double size = (double)reference_size(b);
  return 2 * size * size * size;
}

/* Measures the reference product under sustained load. In a training, products alternate with kernels that wait for
 * memory, in which a device draws less power; here they alternate with a float32 sum that takes about a quarter of the
 * time, for three seconds or less if the budget is small. For comparison, the product is then repeated alone for one
 * second. */
static tws_code sustain_reference(bench *b, bench_case *c, tws_error *err) {
  const tws_calibrate_device on = {.cuda = b->cuda, .backend = b->sets[0].backend, .world = b->world};
  bench_case add = {.work = {.code = TWS_KERNEL_ADD, .dtype = TWS_F32, .dtype2 = TWS_F32}};
  add.work.d[0] = reference_size(b) * reference_size(b);
  add.operand_count = tws_case_operands(&add.work, b->kind, 1, add.operand);
  add.near_bytes = b->pool_bytes;
  timed t = {.b = b, .kernel = c};
  double between;
  TWS_TRY(run_once(b, &add, err));
  TWS_TRY(run_block(b, &add, 20, &between, err));
  b->sustained_for_s = b->budget_s < 10 ? 0.3 * b->budget_s : 3;
  TWS_TRY(tws_calibrate_sustain(&on, start_kernel, &t, b->sustained_for_s / 3, &b->restless_s, err));
  t.second = &add;
  TWS_TRY(tws_calibrate_sustain(&on, start_kernel, &t, b->sustained_for_s, &b->sustained_s, err));
  b->sustained_s -= between;
  return TWS_OK;
}

static tws_code measure_reference(bench *b, tws_error *err) {
  if (b->case_count == 0) return TWS_OK;
  const uint8_t dtype = b->cuda ? TWS_BF16 : TWS_F32;
  bench_case c = {
      .work = {.code = TWS_KERNEL_LINEAR, .dtype = dtype, .dtype2 = dtype},
  };
  for (int i = 0; i < 3; i++) c.work.d[i] = reference_size(b);
  c.operand_count = tws_case_operands(&c.work, b->kind, 1, c.operand);
  c.near_bytes = b->pool_bytes;
  double seconds;
  if (b->passes == 0) TWS_TRY(run_once(b, &c, err));
  TWS_TRY(run_block(b, &c, 20, &seconds, err));
  b->reference[b->passes++] = seconds;
  return b->cuda && b->passes == 1 ? sustain_reference(b, &c, err) : TWS_OK;
}

static tws_code fail_in_case(const bench_case *c, tws_code code, tws_error *err) {
  const int64_t *d = c->work.d;
  return tws_fail_in(err, code, "measuring %s of %s, %lld x %lld x %lld x %lld x %lld",
                     tws_kernel_name((tws_kernel)c->work.code), tws_dtype_name((tws_dtype)c->work.dtype),
                     (long long)d[0], (long long)d[1], (long long)d[2], (long long)d[3], (long long)d[4]);
}

static void summarize(const bench *b, const float *seconds, int count, double *low, double *spread) {
  double copy[MAX_PASSES];
  for (int i = 0; i < count; i++) copy[i] = (double)seconds[i];
  *spread = tws_sample_spread(copy, (size_t)count);
  *low = b->cuda ? tws_sample_median(copy, (size_t)count) : tws_sample_low(copy, (size_t)count);
}

static tws_code describe_device(const bench *b, tws_measurements *m, tws_error *err) {
  const tws_calibrate_device on = {.cuda = b->cuda, .backend = b->sets[0].backend, .world = b->world};
  if (b->sustained_s > 0) {
    m->reference_flops = reference_flops(b);
    m->sustained_reference_s = b->sustained_s;
    m->sustained_for_s = b->sustained_for_s;
    char text[64];
    snprintf(text, sizeof text, "%.1f TFLOP/s", reference_flops(b) / b->restless_s * 1e-12);
    TWS_TRY(tws_measurements_add_note(m, "reference product without any rest", text, err));
  }
  return tws_calibrate_describe(&on, m, err);
}

static tws_code add_extras(const bench *b, tws_measurements *m, tws_error *err) {
  const tws_calibrate_device on = {.cuda = b->cuda, .backend = b->sets[0].backend, .world = b->world};
  TWS_TRY(tws_calibrate_note_copies(&b->copies, m, err));
  return tws_calibrate_extras(&on, b->options->largest_bytes, m, err);
}

static tws_code measure_copies(bench *b, tws_error *err) {
  const tws_calibrate_device on = {.cuda = b->cuda, .backend = b->sets[0].backend, .world = b->world};
  return b->cuda ? tws_calibrate_copies(&on, b->comm, b->options->largest_bytes, &b->copies, err) : TWS_OK;
}

static tws_code collect(bench *b, tws_measurements *m, tws_error *err) {
  m->world = b->world;
  m->elapsed_s = tws_clock_s() - b->began_s;
  m->cores = b->cores;
  m->overhead_bytes = b->overhead_bytes;
  m->copies = b->copies.rates;
  double copy[MAX_PASSES];
  memcpy(copy, b->reference, sizeof copy);
  if (b->passes > 0) {
    m->reference_s = tws_sample_median(copy, (size_t)b->passes);
    m->reference_min_s = copy[0];
    m->reference_max_s = copy[b->passes - 1];
  }
  snprintf(m->description, sizeof m->description, "%s", tws_real_description());
  if (b->cuda) TWS_TRY(describe_device(b, m, err));
  for (size_t i = 0; i < b->case_count; i++) {
    const bench_case *c = &b->cases[i];
    if (c->seconds_count == 0) continue; /* declined, or not measured yet */
    tws_kernel_sample sample = {.work = c->work, .threads = b->sets[c->set].threads, .busy = b->world,
                                .reread_bytes = (double)c->reread_bytes};
    summarize(b, c->seconds, c->seconds_count, &sample.seconds, &sample.spread);
    TWS_TRY(tws_measurements_add_kernel(m, &sample, err));
  }
  for (size_t i = 0; i < b->transfer_count; i++) {
    const transfer_case *t = &b->transfers[i];
    double low, spread;
    if (t->seconds_count == 0) continue;
    summarize(b, t->seconds, t->seconds_count, &low, &spread);
    if (t->collective < 0) {
      tws_p2p_sample sample = {.bytes = (double)t->bytes, .seconds = low};
      TWS_TRY(tws_measurements_add_message(m, &sample, err));
    } else {
      tws_collective_sample sample = {.collective = (tws_collective)t->collective,
                                      .ranks = b->world,
                                      .bytes = (double)t->bytes,
                                      .seconds = low,
                                      .spread = spread};
      TWS_TRY(tws_measurements_add_collective(m, &sample, err));
    }
  }
  return TWS_OK;
}

/* Writes the results so far: a machine with a device may be available for minutes only. `within`: called within a pass,
 * which writes every few seconds. */
static tws_code write_so_far(bench *b, int within, tws_error *err) {
  const double every_s = 3, now = tws_clock_s();
  if (!b->cuda || b->rank != 0 || (within && now - b->said_s < every_s)) return TWS_OK;
  tws_measurements m = {0};
  b->said_s = now;
  tws_code code = collect(b, &m, err);
  if (code == TWS_OK) code = tws_measurements_write(&m, b->options->out_path, err);
  tws_measurements_free(&m);
  return code;
}

static tws_code refill(const bench *b, tws_error *err) {
  if (b->cuda)
    return b->ops->copy(b->sets[0].backend, b->write_pool, b->read_pool, b->pool_bytes, TWS_STREAM_COMPUTE, err);
  return fill_pool(b, b->write_pool, b->pool_bytes, err);
}

static tws_code choose_case(bench *b, bench_case *c, tws_error *err) {
  const tws_code code = c->inner == 0 && !c->declined ? choose_inner(b, c, err) : TWS_OK;
  return code == TWS_OK ? code : fail_in_case(c, code, err);
}

/* Removes the kernels from number `from` on, with a warning. If a time was requested, the first pass uses most of it:
 * kernels that were not started within that time are skipped, except the first few. A GPU's kernels are measured by one
 * rank alone, so no other rank waits here. */
static void leave_out_the_rest(bench *b, size_t from) {
  tws_log_write(b->options->log, TWS_LOG_WARNING,
                "%zu of %zu kernels are measured, and the others left out: more --seconds, or none given, measure all",
                from, b->case_count);
  b->case_count = from;
}

static tws_code one_pass(bench *b, double until, double done, double share, tws_error *err) {
  const size_t total = b->case_count + b->transfer_count;
  /* results of one kernel are operands of others: the pool is filled again each time, so that values do not become
   * zero, infinite or NaN */
  if (b->write_pool) TWS_TRY(refill(b, err));
  TWS_TRY(measure_reference(b, err));
  for (size_t i = 0; i < total; i++) {
    tell(b, "measuring", i + 1, total);
    if (i < b->case_count) {
      if (b->passes == 1 && i >= LEAST_CASES && tws_clock_s() > until) {
        leave_out_the_rest(b, i);
        return TWS_OK;
      }
      TWS_TRY(choose_case(b, &b->cases[i], err));
      const tws_code code = measure_case(b, &b->cases[i], err);
      if (code != TWS_OK) return fail_in_case(&b->cases[i], code, err);
      if (b->passes == 1) TWS_TRY(write_so_far(b, 1, err));
    } else {
      TWS_TRY(measure_transfer(b, &b->transfers[i - b->case_count], err));
    }
    if (b->options->progress) tws_progress_update(b->options->progress, done + share * (double)(i + 1) / (double)total);
  }
  return TWS_OK;
}

/* Repeats passes until the budget is used: at least three, and all ranks agree on the end. On a device the first
 * execution of a work can take a second; it happens in the first pass. */
static tws_code measure(bench *b, tws_error *err) {
  const tws_calibrate_options *options = b->options;
  const double standard = b->cuda ? (options->quick ? 10 : 60) : options->quick ? 3 : 20;
  double budget = options->budget_s > 0 ? options->budget_s : standard, started = tws_clock_s();
  b->budget_s = budget;
  b->said_s = started;
  if (b->case_count == 0) budget /= 4; /* only collectives are measured */
  int least = options->quick || b->cuda ? 3 : 5;
  b->block_s = options->quick ? 0.4e-3 : b->cuda ? 2e-3 : 1.5e-3;
  if (options->progress) tws_progress_begin(options->progress, "measuring", budget);
  for (size_t i = 0; i < b->case_count && !b->cuda; i++) {
    tell(b, "trying kernel", i + 1, b->case_count);
    TWS_TRY(choose_case(b, &b->cases[i], err));
  }
  for (size_t i = 0; i < b->transfer_count; i++) {
    tell(b, "trying transfer", i + 1, b->transfer_count);
    TWS_TRY(choose_transfer_inner(b, &b->transfers[i], err));
  }
  const double most = 0.7, until = b->cuda && options->budget_s > 0 ? started + most * budget : INFINITY;
  double pass = 0;
  for (int i = 0; i < MAX_PASSES; i++) {
    double spent = tws_clock_s() - started;
    if (b->world > 1) TWS_TRY(tws_comm_max(b->comm, &spent, err));
    if (i >= least && spent + pass > budget) break;
    double left = pass > 0 ? pass : (budget - spent) / least;
    TWS_TRY(one_pass(b, until, spent, left, err));
    TWS_TRY(write_so_far(b, 0, err));
    pass = tws_clock_s() - started - spent;
    if (b->world > 1) TWS_TRY(tws_comm_max(b->comm, &pass, err));
  }
  if (options->progress) tws_progress_end(options->progress);
  return TWS_OK;
}

static tws_code choose_backend(bench *b, tws_error *err) {
  b->ops = tws_host_backend();
  b->kind = TWS_BACKEND_HOST;
  if (!b->options->device || strcmp(b->options->device, "cuda") != 0) return TWS_OK;
  TWS_TRY(tws_cuda_load(&b->cuda, err));
  b->ops = b->cuda->backend;
  b->kind = TWS_BACKEND_CUDA;
  return TWS_OK;
}

tws_code tws_real_calibrate(const tws_calibrate_options *options, tws_error *err) {
  bench b = {.options = options, .rank = tws_mpi_rank(NULL), .world = tws_mpi_world(NULL)};
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  b.cores = options->cores > 0 ? options->cores : cores > 0 ? (int)cores : 1;
  b.began_s = tws_clock_s();
  if (options->activity) snprintf(options->activity, options->activity_bytes, "preparing");
  tws_measurements m = {0};
  tws_code code = choose_backend(&b, err);
  if (code == TWS_OK) code = prepare(&b, err);
  if (code == TWS_OK) code = measure(&b, err);
  if (code == TWS_OK) code = measure_copies(&b, err);
  if (code == TWS_OK && b.rank == 0) {
    code = collect(&b, &m, err);
    if (code == TWS_OK && b.cuda && b.world == 1) code = add_extras(&b, &m, err);
    if (code == TWS_OK && !b.cuda && b.world == 1)
      code = tws_calibrate_passes(&b.sets[0].watch, options->quick, &m, err);
    if (code == TWS_OK) code = tws_measurements_write(&m, options->out_path, err);
    tws_measurements_free(&m);
  }
  release(&b);
  return code;
}
