/* Reads Kineto's Chrome traces as a stream: each event is cut out of the text and parsed alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef TWS_HAVE_ZLIB
#include <zlib.h>
#endif

#include "base/json.h"
#include "base/number.h"
#include "traces/recording.h"

enum { BLOCK = 1 << 16, LARGEST_EVENT = 1 << 16, MOST_OPERATORS = 1 << 20, MOST_THREADS_DEPTH = 256, KEY = 32 };

/* ---- bytes ---- */

typedef struct source {
#ifdef TWS_HAVE_ZLIB
  gzFile gz;
#endif
  int fd;
  const char *path;
  unsigned char *block;
  int at, have, line;
} source;

static int fill(source *s) {
#ifdef TWS_HAVE_ZLIB
  s->have = gzread(s->gz, s->block, BLOCK);
#else
  s->have = (int)read(s->fd, s->block, BLOCK);
#endif
  s->at = 0;
  return s->have;
}

/* Returns the next byte of the unpacked text; -1: the text has ended, or cannot be unpacked. */
static inline int next_byte(source *s) {
  if (s->at == s->have && fill(s) <= 0) return -1;
  const int byte = s->block[s->at++];
  s->line += byte == '\n';
  return byte;
}

static tws_code open_source(int fd, const char *path, source *s, tws_error *err) {
  unsigned char head[2] = {0};
  *s = (source){.fd = fd, .path = path, .line = 1};
  const int gzip = pread(fd, head, 2, 0) == 2 && head[0] == 0x1f && head[1] == 0x8b;
  s->block = tws_calloc(BLOCK, 1);
  if (!s->block) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a trace");
#ifdef TWS_HAVE_ZLIB
  (void)gzip;
  const int own = dup(fd);
  s->gz = own >= 0 ? gzdopen(own, "rb") : NULL;
  if (!s->gz && own >= 0) close(own);
  if (!s->gz) return tws_fail(err, TWS_MEMORY, NULL, "%s: cannot be read", path);
#else
  if (gzip)
    return tws_fail(err, TWS_UNSUPPORTED, "unpack it with gzip -d, or build with zlib", "%s: this build reads no gzip",
                    path);
#endif
  return TWS_OK;
}

static void close_source(source *s) {
#ifdef TWS_HAVE_ZLIB
  if (s->gz) gzclose(s->gz);
#endif
  tws_free(s->block);
}

/* ---- CPU operators ---- */

typedef struct operator_event {
  double start, end; /* microseconds */
  int64_t thread;
  uint32_t name;
} operator_event;

typedef struct reader {
  source s;
  tws_recording *r;
  char *event; /* the text of the event that is being read */
  size_t length;
  int too_large, in_devices;
  operator_event *operators;
  size_t count, capacity;
  const char **names; /* names of operators, allocated in the recording's arena */
  uint32_t *slots;
  uint32_t name_count;
  size_t name_capacity;
  double first_us, last_us; /* start of the first and end of the last ProfilerStep#N, in microseconds */
  int64_t events;
} reader;

enum { NAME_SLOTS = 1 << 17, MOST_NAMES = 1 << 16 };

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a trace");
}

static tws_code intern(reader *k, const char *name, uint32_t *index, tws_error *err) {
  uint64_t hash = 14695981039346656037u;
  char cut[256];
  if (strlen(name) >= sizeof cut) {
    memcpy(cut, name, sizeof cut - 1);
    cut[sizeof cut - 1] = '\0';
    name = cut;
  }
  for (const char *c = name; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211u;
  size_t at = hash & (NAME_SLOTS - 1);
  if (!k->r->arena) k->r->arena = tws_arena_create();
  if (!k->slots) k->slots = tws_calloc(NAME_SLOTS, sizeof *k->slots);
  if (!k->slots || !k->r->arena) return no_memory(err);
  for (; k->slots[at]; at = (at + 1) & (NAME_SLOTS - 1))
    if (strcmp(k->names[k->slots[at] - 1], name) == 0) {
      *index = k->slots[at] - 1;
      return TWS_OK;
    }
  if (k->name_count == MOST_NAMES) {
    *index = 0;
    return TWS_OK;
  }
  if (tws_reserve(&k->names, &k->name_capacity, k->name_count + 1u, sizeof *k->names)) return no_memory(err);
  k->names[k->name_count] = tws_arena_strdup(k->r->arena, name);
  if (!k->names[k->name_count]) return no_memory(err);
  *index = k->name_count;
  k->slots[at] = ++k->name_count;
  return TWS_OK;
}

static tws_code add_operator(reader *k, const char *name, double start, double length, double thread, tws_error *err) {
  if (k->count == MOST_OPERATORS) {
    k->r->left_out++;
    return TWS_OK;
  }
  if (tws_reserve(&k->operators, &k->capacity, k->count + 1, sizeof *k->operators)) return no_memory(err);
  operator_event *o = &k->operators[k->count];
  *o = (operator_event){.start = start, .end = start + length, .thread = fabs(thread) < 1e15 ? (int64_t)thread : 0};
  TWS_TRY(intern(k, name, &o->name, err));
  k->count++;
  return TWS_OK;
}

static int by_thread_and_start(const void *left, const void *right) {
  const operator_event *a = left, *b = right;
  if (a->thread != b->thread) return a->thread < b->thread ? -1 : 1;
  if (a->start != b->start) return a->start < b->start ? -1 : 1;
  return a->end > b->end ? -1 : a->end < b->end;
}

/* Returns the name of the CPU operator that called operator i, or of the optimizer's step that encloses it, since all
 * work inside that step counts as the optimizer's; "": no operator called it. */
static const char *name_around(const reader *k, const size_t *caller, const char *const *around, size_t i) {
  if (caller[i] == SIZE_MAX) return "";
  const char *name = k->names[k->operators[caller[i]].name], *outer = around[caller[i]];
  return strncmp(outer, "Optimizer.", 10) == 0 ? outer : name;
}

/* Adds each operator to the recording with its own time: its duration without the operators that it calls. */
static tws_code add_own_times(reader *k, tws_error *err) {
  size_t stack[MOST_THREADS_DEPTH];
  int depth = 0;
  double *own = tws_calloc(k->count + 1, sizeof *own);
  size_t *caller = tws_calloc(k->count + 1, sizeof *caller);
  const char **around = tws_calloc(k->count + 1, sizeof *around);
  tws_code code = own && caller && around ? TWS_OK : no_memory(err);
  if (k->count > 1) qsort(k->operators, k->count, sizeof *k->operators, by_thread_and_start);
  for (size_t i = 0; i < k->count && code == TWS_OK; i++) {
    const operator_event *o = &k->operators[i];
    while (depth &&
           (k->operators[stack[depth - 1]].thread != o->thread || k->operators[stack[depth - 1]].end <= o->start))
      depth--;
    own[i] += o->end - o->start;
    caller[i] = depth ? stack[depth - 1] : SIZE_MAX;
    around[i] = name_around(k, caller, around, i);
    if (depth) own[caller[i]] -= fmin(o->end, k->operators[caller[i]].end) - o->start;
    if (depth < MOST_THREADS_DEPTH) stack[depth++] = i;
  }
  for (size_t i = 0; i < k->count && code == TWS_OK; i++) {
    const operator_event *o = &k->operators[i];
    const int outside = k->last_us > k->first_us && (o->end <= k->first_us || o->start >= k->last_us);
    if (!outside && own[i] > 0)
      code = tws_recording_add_kernel(k->r, k->names[o->name], around[i], 1, own[i] * 1e-6, err);
  }
  tws_free(own);
  tws_free(caller);
  tws_free(around);
  return code;
}

/* ---- events ---- */

static const char *text_of(const cJSON *object, const char *key) {
  const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
  return text ? text : "";
}

static double number_of(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  double value = NAN;
  if (cJSON_IsNumber(item)) return item->valuedouble;
  if (cJSON_IsString(item) && tws_text_number(item->valuestring, NULL, -1e18, 1e18, &value)) return value;
  return NAN;
}

static double bytes_of(const char *type) {
  static const struct {
    const char *name;
    double bytes;
  } types[] = {{"BFloat16", 2}, {"Half", 2}, {"Float", 4}, {"Double", 8},
               {"Byte", 1},     {"Char", 1}, {"Int", 4},   {"Long", 8}};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (strcmp(types[i].name, type) == 0) return types[i].bytes;
  return 0;
}

/* Adds a collective to the recording. The larger of its input and its output is the whole tensor. */
static tws_code add_collective(reader *k, const cJSON *arguments, double seconds, tws_error *err) {
  const char *name = text_of(arguments, "Collective name");
  const double in = number_of(arguments, "In msg nelems"), out = number_of(arguments, "Out msg nelems"),
               ranks = number_of(arguments, "Group size");
  if (!*name || strlen(name) > 63 || !(in >= 0) || !(out >= 0) || !(ranks >= 2) || !(ranks < 1e6)) return TWS_OK;
  return tws_recording_add_collective(k->r, name, (int)ranks, fmax(in, out) * bytes_of(text_of(arguments, "dtype")),
                                      seconds, err);
}

/* Returns the name of a product of matrices [m, k] and [k, n] with its sizes, "aten::mm 1024x256x768", if the trace has
 * the sizes, else `name`. The two matrices follow the bias in the inputs of addmm. */
static const char *product_name(const cJSON *event, const char *name, char *text, size_t size) {
  const int biased = strcmp(name, "aten::addmm") == 0;
  if (!biased && strcmp(name, "aten::mm") != 0) return name;
  const cJSON *dims = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(event, "args"), "Input Dims");
  const cJSON *left = cJSON_GetArrayItem(dims, biased), *right = cJSON_GetArrayItem(dims, biased + 1);
  const cJSON *m = cJSON_GetArrayItem(left, 0), *k = cJSON_GetArrayItem(left, 1), *n = cJSON_GetArrayItem(right, 1);
  if (!cJSON_IsNumber(m) || !cJSON_IsNumber(k) || !cJSON_IsNumber(n)) return name;
  snprintf(text, size, "%s %.0fx%.0fx%.0f", name, fmin(fabs(m->valuedouble), 1e12), fmin(fabs(k->valuedouble), 1e12),
           fmin(fabs(n->valuedouble), 1e12));
  return text;
}

static tws_code add_event(reader *k, const cJSON *event, tws_error *err) {
  const char *category = text_of(event, "cat"), *name = text_of(event, "name");
  const double start = number_of(event, "ts"), length = number_of(event, "dur"), thread = number_of(event, "tid");
  if (strcmp(text_of(event, "ph"), "X") != 0) return TWS_OK;
  k->events++;
  if (!isfinite(start) || !(length >= 0) || !isfinite(length) || fabs(start) > 1e18 || length > 1e15) {
    if (!*category) return TWS_OK;
    return tws_fail(err, TWS_INVALID, "give a trace that export_chrome_trace() wrote",
                    "%s:%d: an event without a time \"ts\" and a length \"dur\" in microseconds", k->s.path, k->s.line);
  }
  if (strcmp(category, "kernel") == 0 || strcmp(category, "gpu_memcpy") == 0 || strcmp(category, "gpu_memset") == 0) {
    k->r->on_device = 1;
    TWS_TRY(add_collective(k, cJSON_GetObjectItemCaseSensitive(event, "args"), length * 1e-6, err));
    return tws_recording_add_kernel(k->r, name, "", 1, length * 1e-6, err);
  }
  if (strcmp(category, "user_annotation") == 0 && strncmp(name, "ProfilerStep#", 13) == 0) {
    if (!k->r->step_count || start < k->first_us) k->first_us = start;
    if (!k->r->step_count || start + length > k->last_us) k->last_us = start + length;
    return tws_recording_add_step(k->r, length * 1e-6, 0, 0, err);
  }
  const int processor = strcmp(category, "cpu_op") == 0 ||
                        (strcmp(category, "user_annotation") == 0 && strncmp(name, "Optimizer.", 10) == 0);
  char sized[96];
  return processor ? add_operator(k, product_name(event, name, sized, sizeof sized), start, length, thread, err)
                   : TWS_OK;
}

static void add_device(reader *k, const cJSON *device) {
  const double bytes = number_of(device, "totalGlobalMem");
  if (*text_of(device, "name")) snprintf(k->r->device, sizeof k->r->device, "%s", text_of(device, "name"));
  if (bytes > 0) k->r->device_bytes = bytes;
}

static tws_code finish_event(reader *k, tws_error *err) {
  if (k->too_large) {
    k->r->left_out++;
    return TWS_OK;
  }
  cJSON *event = cJSON_ParseWithLength(k->event, k->length);
  if (!event)
    return tws_fail(err, TWS_INVALID, "give a whole trace that export_chrome_trace() wrote",
                    "%s:%d: an event is no JSON object", k->s.path, k->s.line);
  tws_code code = TWS_OK;
  if (k->in_devices)
    add_device(k, event);
  else
    code = add_event(k, event, err);
  cJSON_Delete(event);
  return code;
}

/* ---- the text ---- */

/* Position of the reader in the text: the depth of brackets, the key at depth 1, and 1 if a list of objects is being
 * read. */
typedef struct place {
  int depth, list_depth, in_text, escaped, object_depth; /* object_depth: depth of the event's bracket; 0: none */
  char key[KEY];
  int key_length;
} place;

static void keep(reader *k, int byte) {
  if (k->length < LARGEST_EVENT)
    k->event[k->length++] = (char)byte;
  else
    k->too_large = 1;
}

static void read_text(place *p, int byte) {
  if (p->escaped)
    p->escaped = 0;
  else if (byte == '\\')
    p->escaped = 1;
  else if (byte == '"')
    p->in_text = 0;
  else if (p->depth == 1 && p->key_length < KEY - 1)
    p->key[p->key_length++] = (char)byte;
}

static tws_code read_byte(reader *k, place *p, int byte, tws_error *err) {
  if (p->object_depth) keep(k, byte);
  if (p->in_text) {
    read_text(p, byte);
    return TWS_OK;
  }
  switch (byte) {
    case '"':
      p->in_text = 1;
      if (p->depth == 1 && !p->list_depth) p->key_length = 0;
      break;
    case '{':
    case '[':
      p->key[p->key_length] = '\0';
      p->depth++;
      if (byte == '[' && !p->list_depth) {
        k->in_devices = p->depth == 2 && strcmp(p->key, "deviceProperties") == 0;
        if (p->depth == 1 || k->in_devices || (p->depth == 2 && strcmp(p->key, "traceEvents") == 0))
          p->list_depth = p->depth;
      } else if (byte == '{' && p->list_depth && p->depth == p->list_depth + 1) {
        p->object_depth = p->depth;
        k->length = 0;
        k->too_large = 0;
        keep(k, byte);
      }
      break;
    case '}':
    case ']':
      p->depth--;
      if (p->object_depth && p->depth < p->object_depth) {
        p->object_depth = 0;
        TWS_TRY(finish_event(k, err));
      }
      if (p->list_depth && p->depth < p->list_depth) p->list_depth = 0;
      break;
    default:
      break;
  }
  if (p->depth >= 0 && p->depth < 256) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "give a whole trace that export_chrome_trace() wrote",
                  "%s:%d: brackets do not match", k->s.path, k->s.line);
}

static tws_code read_trace(reader *k, tws_error *err) {
  place p = {0};
  int byte;
  while ((byte = next_byte(&k->s)) >= 0) TWS_TRY(read_byte(k, &p, byte, err));
  if (k->s.have < 0)
    return tws_fail(err, TWS_INVALID, "copy the file again, or unpack it to see where it is broken",
                    "%s: cannot be unpacked", k->s.path);
  if (p.depth != 0 && p.list_depth != 1) /* a list that is the whole file may lack its last bracket */
    return tws_fail(err, TWS_INVALID, "export the trace again: it ends in the middle", "%s:%d: the trace is cut off",
                    k->s.path, k->s.line);
  if (k->events == 0)
    return tws_fail(err, TWS_INVALID, "give a trace that export_chrome_trace() wrote", "%s: the trace has no events",
                    k->s.path);
  if (!k->r->on_device) TWS_TRY(add_own_times(k, err));
  if (k->r->kernel_count == 0)
    return tws_fail(err, TWS_INVALID, "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
                    "%s: no event is a kernel or an operator", k->s.path);
  return TWS_OK;
}

tws_code tws_recording_read_kineto(int fd, const char *path, tws_recording *r, tws_error *err) {
  reader *k = tws_calloc(1, sizeof *k);
  if (!k) return no_memory(err);
  k->r = r;
  r->format = TWS_RECORDING_KINETO;
  k->event = tws_calloc(LARGEST_EVENT + 1, 1);
  tws_code code = k->event ? open_source(fd, path, &k->s, err) : no_memory(err);
  if (code == TWS_OK) code = read_trace(k, err);
  close_source(&k->s);
  tws_free(k->event);
  tws_free(k->operators);
  tws_free(k->names);
  tws_free(k->slots);
  tws_free(k);
  return code;
}
