/* Reads TensorBoard's event files (traces/event_record.h): the scalars that are step times, or, if there are none, the
 * time between steps. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "traces/event_record.h"
#include "traces/recording.h"

enum { LARGEST_RECORD = 16 << 20, TAG = 128 };

typedef struct events {
  const char *path;
  tws_recording *r;
  char tag[TAG]; /* tag of the scalars whose wall times are used for the time between steps */
  double wall, last_wall;
  int64_t step, last_step, record;
  int named; /* 1: some scalar is a step's time, so that `between` is not used */
  double *between;
  size_t count, capacity;
} events;

/* ---- protocol buffers ---- */

typedef struct bytes {
  const unsigned char *at, *end;
} bytes;

static int varint(bytes *b, uint64_t *value) {
  *value = 0;
  for (int shift = 0; shift < 64 && b->at < b->end; shift += 7) {
    const unsigned char byte = *b->at++;
    *value |= (uint64_t)(byte & 127) << shift;
    if (!(byte & 128)) return 1;
  }
  return 0;
}

typedef struct member {
  uint32_t number, type;
  uint64_t value; /* value of a member of wire type 0, 1 or 5 */
  bytes inside;   /* bytes of a member of wire type 2 */
} member;

static int fixed(bytes *b, int size, uint64_t *value) {
  if (b->end - b->at < size) return 0;
  *value = 0;
  for (int i = 0; i < size; i++) *value |= (uint64_t)b->at[i] << (8 * i);
  b->at += size;
  return 1;
}

/* Reads the next member of a message into *m. Returns 1; 0: the message has ended; -1: it is malformed. */
static int next_member(bytes *b, member *m) {
  uint64_t key, length;
  if (b->at == b->end) return 0;
  if (!varint(b, &key) || key >> 3 == 0 || key >> 32) return -1;
  m->number = (uint32_t)(key >> 3);
  m->type = key & 7;
  if (m->type == 0) return varint(b, &m->value) ? 1 : -1;
  if (m->type == 1) return fixed(b, 8, &m->value) ? 1 : -1;
  if (m->type == 5) return fixed(b, 4, &m->value) ? 1 : -1;
  if (m->type != 2 || !varint(b, &length) || length > (uint64_t)(b->end - b->at)) return -1;
  m->inside = (bytes){b->at, b->at + length};
  b->at += length;
  return 1;
}

static double as_double(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static double as_float(uint64_t bits) {
  const uint32_t low = (uint32_t)bits;
  float value;
  memcpy(&value, &low, sizeof value);
  return (double)value;
}

/* Returns the number in a TensorProto, whose members are dtype (1; the value 1 is float), tensor_content (4) and
 * float_val (5). */
static double tensor_value(bytes b) {
  member m;
  uint64_t bits, type = 1;
  double value = NAN;
  while (next_member(&b, &m) > 0) {
    if (m.number == 1 && m.type == 0) type = m.value;
    if (m.number == 5 && m.type == 5) value = as_float(m.value);
    if ((m.number == 4 || m.number == 5) && m.type == 2 && type == 1 && fixed(&m.inside, 4, &bits))
      value = as_float(bits);
  }
  return value;
}

/* ---- events ---- */

static tws_code add_between(events *e, double seconds, tws_error *err) {
  if (tws_reserve(&e->between, &e->capacity, e->count + 1, sizeof *e->between))
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory for events");
  e->between[e->count++] = seconds;
  return TWS_OK;
}

static tws_code add_scalar(events *e, const char *tag, double value, tws_error *err) {
  const double seconds = tws_recording_seconds(tag, value);
  if (seconds > 0) {
    e->named = 1;
    return tws_recording_add_step(e->r, seconds, 0, 0, err);
  }
  if (!e->tag[0]) snprintf(e->tag, sizeof e->tag, "%s", tag);
  if (strcmp(e->tag, tag) != 0) return TWS_OK;
  const int64_t steps = e->step > e->last_step && e->last_wall > 0 ? e->step - e->last_step : 0;
  if (steps > 0 && steps < 1 << 30 && e->wall > e->last_wall)
    TWS_TRY(add_between(e, (e->wall - e->last_wall) / (double)steps, err));
  e->last_step = e->step;
  e->last_wall = e->wall;
  return TWS_OK;
}

/* Reads a Summary.Value, whose members are tag (1), simple_value (2) and tensor (8). */
static tws_code read_value(events *e, bytes b, tws_error *err) {
  char tag[TAG] = "";
  double value = NAN;
  member m;
  int found;
  while ((found = next_member(&b, &m)) > 0) {
    if (m.number == 1 && m.type == 2) {
      const size_t length = (size_t)(m.inside.end - m.inside.at);
      snprintf(tag, sizeof tag, "%.*s", length < sizeof tag ? (int)length : (int)sizeof tag - 1,
               (const char *)m.inside.at);
    }
    if (m.number == 2 && m.type == 5) value = as_float(m.value);
    if (m.number == 8 && m.type == 2) value = tensor_value(m.inside);
  }
  if (found < 0) return TWS_OK;
  return *tag && isfinite(value) ? add_scalar(e, tag, value, err) : TWS_OK;
}

/* Reads an Event, whose members are wall_time (1), step (2) and summary (5); a summary's members 1 are its values. */
static tws_code read_event(events *e, const unsigned char *data, size_t length, tws_error *err) {
  bytes b = {data, data + length}, summary = {NULL, NULL};
  member m;
  int found;
  e->wall = 0;
  e->step = 0;
  while ((found = next_member(&b, &m)) > 0) {
    if (m.number == 1 && m.type == 1) e->wall = as_double(m.value);
    if (m.number == 2 && m.type == 0) e->step = m.value < (uint64_t)1 << 62 ? (int64_t)m.value : 0;
    if (m.number == 5 && m.type == 2) summary = m.inside;
  }
  if (found < 0 || !isfinite(e->wall))
    return tws_fail(err, TWS_INVALID, "give a file events.out.tfevents.* of TensorBoard", "%s: record %lld is no event",
                    e->path, (long long)e->record);
  while (summary.at && next_member(&summary, &m) > 0)
    if (m.number == 1 && m.type == 2) TWS_TRY(read_value(e, m.inside, err));
  return TWS_OK;
}

/* ---- records ---- */

static uint64_t little(const unsigned char *at, int size) {
  uint64_t value = 0;
  for (int i = 0; i < size; i++) value |= (uint64_t)at[i] << (8 * i);
  return value;
}

static tws_code broken(const events *e, const char *what, tws_error *err) {
  return tws_fail(err, TWS_INVALID, "copy the file again: it is damaged, or no event file of TensorBoard",
                  "%s: record %lld %s", e->path, (long long)e->record, what);
}

/* Reads all records of a file. A file to which a training still writes ends in the middle of a record, which is left
 * out. */
static tws_code read_records(FILE *file, events *e, tws_error *err) {
  unsigned char head[12];
  unsigned char *data = NULL;
  tws_code code = TWS_OK;
  for (e->record = 1; code == TWS_OK && fread(head, 1, 12, file) == 12; e->record++) {
    const uint64_t length = little(head, 8);
    if (tws_crc32c_masked(head, 8) != little(head + 8, 4)) {
      code = broken(e, "has a wrong checksum of its length", err);
    } else if (length > LARGEST_RECORD) {
      code = broken(e, "has more than 16 MiB", err);
    } else {
      data = tws_calloc((size_t)length + 4, 1);
      if (!data) {
        code = tws_fail(err, TWS_MEMORY, NULL, "out of memory for events");
      } else if (fread(data, 1, (size_t)length + 4, file) != (size_t)length + 4) {
        tws_free(data);
        break;
      } else if (tws_crc32c_masked(data, (size_t)length) != little(data + length, 4)) {
        code = broken(e, "has a wrong checksum", err);
      } else {
        code = read_event(e, data, (size_t)length, err);
      }
      tws_free(data);
    }
  }
  return code;
}

tws_code tws_recording_read_events(int fd, const char *path, tws_recording *r, tws_error *err) {
  events e = {.path = path, .r = r};
  const int own = dup(fd);
  FILE *file = own >= 0 ? fdopen(own, "rb") : NULL;
  r->format = TWS_RECORDING_EVENTS;
  if (!file) {
    if (own >= 0) close(own);
    return tws_fail(err, TWS_MEMORY, NULL, "%s: cannot be read", path);
  }
  tws_code code = read_records(file, &e, err);
  for (size_t i = 0; code == TWS_OK && !e.named && i < e.count; i++)
    code = tws_recording_add_step(r, e.between[i], 0, 0, err);
  if (code == TWS_OK && r->step_count == 0)
    code = tws_fail(err, TWS_INVALID, "log a scalar such as step_time_ms, or a loss at two steps at least",
                    "%s: no scalar says how long a step takes", path);
  fclose(file);
  tws_free(e.between);
  return code;
}
