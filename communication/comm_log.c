/* Merges the records of all ranks into the communication log: divides latencies into transfer and waiting, and finds
 * stragglers by the times of their kernels. */
#include "communication/comm_log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/memory.h"

/* A rank is a straggler if its kernels take at least SLOW times as long as the median over the ranks, and if this
 * difference exceeds SPREADS times the spread of the ranks' factors (scaled median absolute deviation). */
#define SLOW 1.2
#define SPREADS 6.0

/* Seconds that each rank takes for the same work (kernel and shape). */
typedef struct pace_row {
  uint64_t work;
  float *mean_s;  /* [rank] mean seconds of one execution; 0: the rank does not execute the work */
  double *counts; /* [rank] */
} pace_row;

typedef struct tws_comm_pace {
  pace_row *rows;
  size_t count, capacity;
} tws_comm_pace;

/* Slot of a hash table of the calls in which several ranks take part; used while the ranks' records are merged. */
typedef struct meeting {
  uint64_t id;
  uint32_t used;
} meeting;

/* Latencies, over all ranks, of a call in one step. */
typedef struct met {
  double min_s, sum_s;
  uint32_t ranks;
  int32_t last; /* index of the rank that entered last, whose latency is the shortest */
} met;

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the communication log");
}

tws_code tws_comm_log_create(int ranks, int world, tws_comm_log **out, tws_error *err) {
  tws_comm_log *log = *out = tws_calloc(1, sizeof *log);
  if (log) log->ranks = tws_calloc((size_t)ranks + 1, sizeof *log->ranks);
  if (log) log->pace = tws_calloc(1, sizeof *log->pace);
  if (!log || !log->ranks || !log->pace) {
    tws_comm_log_destroy(log);
    *out = NULL;
    return no_memory(err);
  }
  log->rank_count = ranks;
  log->world = world;
  return TWS_OK;
}

void tws_comm_log_destroy(tws_comm_log *log) {
  if (!log) return;
  for (size_t i = 0; i < log->row_count; i++) {
    tws_free(log->rows[i].latencies.s);
    tws_free(log->rows[i].transfers.s);
    tws_free(log->rows[i].waiting_s);
  }
  for (size_t i = 0; log->pace && i < log->pace->count; i++) {
    tws_free(log->pace->rows[i].mean_s);
    tws_free(log->pace->rows[i].counts);
  }
  if (log->pace) tws_free(log->pace->rows);
  tws_free(log->pace);
  tws_free(log->rows);
  tws_free(log->ranks);
  tws_free(log);
}

/* ---- meetings ---- */

typedef struct merger {
  tws_comm_log *log;
  const tws_comm_record *const *records;
  uint32_t steps;
  size_t slots; /* a power of 2 */
  meeting *table;
  met *figures; /* [slot of the table][step] */
} merger;

static size_t slot_of(const merger *m, uint64_t id) {
  size_t slot = (size_t)(id ^ id >> 29) & (m->slots - 1);
  while (m->table[slot].used && m->table[slot].id != id) slot = (slot + 1) & (m->slots - 1);
  return slot;
}

static tws_code prepare(merger *m, tws_error *err) {
  size_t calls = 0, most = 0;
  m->steps = m->records[0]->steps;
  for (int r = 0; r < m->log->rank_count; r++) {
    calls += m->records[r]->call_count;
    if (m->records[r]->call_count > most) most = m->records[r]->call_count;
    if (m->records[r]->steps != m->steps) return tws_fail(err, TWS_INTERNAL, NULL, "ranks have logged different steps");
  }
  /* A collective has at least two members, unless the records represent ranks that are not recorded. */
  for (m->slots = 64; m->slots < 2 * calls + 2 * most; m->slots *= 2) continue;
  m->table = tws_calloc(m->slots, sizeof *m->table);
  size_t distinct = 0;
  for (int r = 0; m->table && r < m->log->rank_count; r++)
    for (uint32_t c = 0; c < m->records[r]->call_count; c++) {
      meeting *one = &m->table[slot_of(m, m->records[r]->calls[c].id)];
      if (one->used) continue;
      one->id = m->records[r]->calls[c].id;
      one->used = 1 + (uint32_t)distinct++;
    }
  m->figures = tws_calloc(distinct * m->steps + 1, sizeof *m->figures);
  return m->table && m->figures ? TWS_OK : no_memory(err);
}

static met *met_of(const merger *m, const tws_comm_call *call, uint32_t step) {
  return &m->figures[(size_t)(m->table[slot_of(m, call->id)].used - 1) * m->steps + step];
}

static void meet(const merger *m) {
  for (int r = 0; r < m->log->rank_count; r++) {
    const tws_comm_record *record = m->records[r];
    for (uint32_t c = 0; c < record->call_count; c++) {
      met *first = met_of(m, &record->calls[c], 0);
      for (uint32_t step = 0; step < m->steps; step++) {
        const double s = record->latency_s[(size_t)step * record->call_count + c];
        met *one = first + step;
        if (one->ranks == 0 || s < one->min_s) {
          one->min_s = s;
          one->last = r;
        }
        one->sum_s += s;
        one->ranks++;
      }
    }
  }
}

/* ---- rows ---- */

static int order_keys(const void *a, const void *b) {
  const tws_comm_key *x = &((const tws_comm_row *)a)->key, *y = &((const tws_comm_row *)b)->key;
  if (x->operation != y->operation) return x->operation - y->operation;
  if (x->axes != y->axes) return x->axes < y->axes ? -1 : 1;
  if (x->ranks != y->ranks) return x->ranks < y->ranks ? -1 : 1;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
  if (x->dtype != y->dtype) return x->dtype - y->dtype;
  return strcmp(x->caller, y->caller);
}

static tws_code row_of(tws_comm_log *log, const tws_comm_key *key, tws_comm_row **out, tws_error *err) {
  for (size_t i = log->row_count; i-- > 0;) {
    *out = &log->rows[i];
    if (memcmp(&log->rows[i].key, key, sizeof *key) == 0) return TWS_OK;
  }
  if (tws_reserve(&log->rows, &log->row_capacity, log->row_count + 1, sizeof *log->rows) != 0) return no_memory(err);
  *out = &log->rows[log->row_count];
  **out = (tws_comm_row){.key = *key, .min_s = INFINITY};
  (*out)->waiting_s = tws_calloc((size_t)log->rank_count + 1, sizeof *(*out)->waiting_s);
  if (!(*out)->waiting_s) return no_memory(err);
  log->row_count++;
  return TWS_OK;
}

static tws_code add_sample(tws_comm_samples *samples, double seconds, tws_error *err) {
  if (samples->count >= TWS_COMM_SAMPLES) return TWS_OK;
  if (tws_reserve(&samples->s, &samples->capacity, samples->count + 1, sizeof *samples->s) != 0) return no_memory(err);
  samples->s[samples->count++] = (float)seconds;
  return TWS_OK;
}

/* Adds the calls of one rank. Each of the n ranks of a collective adds 1/n of a call, and the rank that entered last
 * adds the samples. Sending and receiving a message are two calls. */
static tws_code add_rank(const merger *m, int r, tws_error *err) {
  const tws_comm_record *record = m->records[r];
  tws_comm_rank *rank = &m->log->ranks[r];
  rank->rank = record->rank;
  for (uint32_t c = 0; c < record->call_count; c++) {
    const tws_comm_call *call = &record->calls[c];
    const int message = call->key.operation >= TWS_COMM_SEND;
    const double part = record->weight / (message ? 1 : call->key.ranks);
    const met *first = met_of(m, call, 0);
    tws_comm_row *row = NULL;
    TWS_TRY(row_of(m->log, &call->key, &row, err));
    for (uint32_t step = 0; step < m->steps; step++) {
      const double s = record->latency_s[(size_t)step * record->call_count + c];
      const met *one = first + step;
      row->count += part;
      row->latency_s += part * s;
      row->transfer_s += part * one->min_s;
      if (one->min_s < row->min_s) row->min_s = one->min_s;
      row->waiting_s[r] += s - one->min_s;
      rank->waiting_s += s - one->min_s;
      rank->transfer_s += one->min_s;
      if (one->last == r && one->ranks > 1)
        rank->waited_for_s += (one->sum_s - one->ranks * one->min_s) / (one->ranks - 1);
      if (!message && one->last != r) continue;
      TWS_TRY(add_sample(&row->latencies, message ? s : one->sum_s / one->ranks, err));
      TWS_TRY(add_sample(&row->transfers, one->min_s, err));
    }
  }
  return TWS_OK;
}

/* ---- pace ---- */

static tws_code pace_of(tws_comm_log *log, uint64_t work, pace_row **out, tws_error *err) {
  tws_comm_pace *pace = log->pace;
  for (size_t i = 0; i < pace->count; i++) {
    *out = &pace->rows[i];
    if (pace->rows[i].work == work) return TWS_OK;
  }
  if (tws_reserve(&pace->rows, &pace->capacity, pace->count + 1, sizeof *pace->rows) != 0) return no_memory(err);
  *out = &pace->rows[pace->count++];
  **out = (pace_row){.work = work,
                     .mean_s = tws_calloc((size_t)log->rank_count, sizeof *(*out)->mean_s),
                     .counts = tws_calloc((size_t)log->rank_count, sizeof *(*out)->counts)};
  return (*out)->mean_s && (*out)->counts ? TWS_OK : no_memory(err);
}

/* Stores the mean seconds of each work of the rank. The record's seconds are sums over all steps so far, so later
 * records replace earlier ones. */
static tws_code add_pace(tws_comm_log *log, int r, const tws_comm_record *record, tws_error *err) {
  log->ranks[r].computing_s = 0;
  for (uint32_t w = 0; w < record->work_count; w++) {
    const tws_comm_work *work = &record->works[w];
    pace_row *row = NULL;
    log->ranks[r].computing_s += work->seconds;
    if (!(work->count > 0) || !(work->seconds > 0)) continue;
    TWS_TRY(pace_of(log, work->work, &row, err));
    row->mean_s[r] = (float)(work->seconds / work->count);
    row->counts[r] = work->count;
  }
  return TWS_OK;
}

tws_code tws_comm_log_merge(tws_comm_log *log, const tws_comm_record *const *records, tws_error *err) {
  merger m = {.log = log, .records = records};
  tws_code code = prepare(&m, err);
  if (code == TWS_OK) meet(&m);
  for (int r = 0; r < log->rank_count && code == TWS_OK; r++) {
    code = add_rank(&m, r, err);
    if (code == TWS_OK) code = add_pace(log, r, records[r], err);
  }
  log->steps += m.steps;
  tws_free(m.table);
  tws_free(m.figures);
  return code;
}

static int order_floats(const void *a, const void *b) {
  const float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

/* Returns the median. If the number of values is even, it is the lower of the two middle ones, so that two ranks are
 * compared with the faster. */
static float lower_median(float *values, size_t count) {
  if (count == 0) return 0;
  qsort(values, count, sizeof *values, order_floats);
  return values[(count - 1) / 2];
}

/* Sets each rank's factor: its seconds in kernels, relative to those at the median pace of all ranks that run the same
 * kernels. */
static void compare_paces(tws_comm_log *log, float *scratch) {
  for (size_t i = 0; i < log->pace->count; i++) {
    const pace_row *row = &log->pace->rows[i];
    size_t count = 0;
    for (int r = 0; r < log->rank_count; r++)
      if (row->counts[r] > 0) scratch[count++] = row->mean_s[r];
    const double median = lower_median(scratch, count);
    for (int r = 0; r < log->rank_count; r++) log->ranks[r].expected_s += row->counts[r] * median;
  }
  for (int r = 0; r < log->rank_count; r++) {
    tws_comm_rank *rank = &log->ranks[r];
    rank->factor = rank->expected_s > 0 ? rank->computing_s / rank->expected_s : 1;
  }
}

static void name_stragglers(tws_comm_log *log, float *scratch) {
  const size_t count = (size_t)log->rank_count;
  for (size_t r = 0; r < count; r++) scratch[r] = (float)log->ranks[r].factor;
  const double middle = lower_median(scratch, count);
  for (size_t r = 0; r < count; r++) scratch[r] = (float)fabs(log->ranks[r].factor - middle);
  const double spread = count > 2 ? 1.4826 * (double)lower_median(scratch, count) : 0;
  for (size_t r = 0; r < count; r++) {
    const double factor = log->ranks[r].factor;
    log->ranks[r].is_straggler = factor >= SLOW * middle && factor - middle > SPREADS * spread;
  }
}

tws_code tws_comm_log_finish(tws_comm_log *log, tws_error *err) {
  float *scratch = tws_calloc((size_t)log->rank_count + 1, sizeof *scratch);
  if (!scratch) return no_memory(err);
  if (log->row_count) qsort(log->rows, log->row_count, sizeof *log->rows, order_keys);
  compare_paces(log, scratch);
  name_stragglers(log, scratch);
  tws_free(scratch);
  return TWS_OK;
}
