/* Reads step logs: CSV, JSON lines, the lines of Megatron-LM and of Hugging Face's Trainer, and nvidia-smi's CSV. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/number.h"
#include "traces/measurements.h"
#include "traces/recording.h"

enum { LONGEST_LINE = 1 << 16, MOST_COLUMNS = 256, MOST_CLOCKS = 1 << 16 };

/* Quantities that a column or member may have; their names are compared by letters and digits alone, in lower case. */
typedef enum field { STEP_S, STEP_MS, STEPS_PER_S, SEQUENCE, MICRO_BATCH, FIELDS } field;
static const struct {
  const char *name;
  field field;
} names[] = {{"steps", STEP_S},
             {"steptime", STEP_S},
             {"steptimes", STEP_S},
             {"stepseconds", STEP_S},
             {"secondsperstep", STEP_S},
             {"steptimeinseconds", STEP_S},
             {"iterationtime", STEP_S},
             {"iterationtimes", STEP_S},
             {"itertime", STEP_S},
             {"itertimes", STEP_S},
             {"traintimings", STEP_S},
             {"traintimesteptime", STEP_S},
             {"steptimesec", STEP_S},
             {"secperstep", STEP_S},
             {"timeperiteration", STEP_S},
             {"trainsteptiminginseconds", STEP_S},
             {"stepms", STEP_MS},
             {"steptimems", STEP_MS},
             {"itertimems", STEP_MS},
             {"iterationtimems", STEP_MS},
             {"elapsedms", STEP_MS},
             {"elapsedtimeperiterationms", STEP_MS},
             {"trainperformancesteptimems", STEP_MS},
             {"stepspersecond", STEPS_PER_S},
             {"trainstepspersecond", STEPS_PER_S},
             {"iterationspersecond", STEPS_PER_S},
             {"seq", SEQUENCE},
             {"seqlen", SEQUENCE},
             {"seqlength", SEQUENCE},
             {"sequence", SEQUENCE},
             {"sequencelength", SEQUENCE},
             {"microbatch", MICRO_BATCH},
             {"microbatchsize", MICRO_BATCH},
             {"perdevicetrainbatchsize", MICRO_BATCH}};

static int field_of(const char *text, size_t length) {
  char plain[64];
  size_t used = 0;
  for (size_t i = 0; i < length; i++)
    if (isalnum((unsigned char)text[i])) {
      if (used == sizeof plain - 1) return -1;
      plain[used++] = (char)tolower((unsigned char)text[i]);
    }
  plain[used] = '\0';
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(names[i].name, plain) == 0) return (int)names[i].field;
  return -1;
}

typedef struct row {
  double value[FIELDS]; /* values of a row, indexed by field; NaN: the row lacks the field */
} row;

static tws_code add_row(tws_recording *r, const row *one, tws_error *err) {
  const double *v = one->value;
  const double seconds = v[STEP_S] > 0        ? v[STEP_S]
                         : v[STEP_MS] > 0     ? v[STEP_MS] * 1e-3
                         : v[STEPS_PER_S] > 0 ? 1 / v[STEPS_PER_S]
                                              : 0;
  const int64_t sequence = v[SEQUENCE] >= 1 && v[SEQUENCE] < 1e9 ? (int64_t)v[SEQUENCE] : 0;
  const int64_t micro = v[MICRO_BATCH] >= 1 && v[MICRO_BATCH] < 1e9 ? (int64_t)v[MICRO_BATCH] : 0;
  return tws_recording_add_step(r, seconds, sequence, micro, err);
}

double tws_recording_seconds(const char *name, double value) {
  const int at = field_of(name, strlen(name));
  if (!(value > 0)) return 0;
  return at == STEP_S ? value : at == STEP_MS ? value * 1e-3 : at == STEPS_PER_S ? 1 / value : 0;
}

static void clear_row(row *one) {
  for (int i = 0; i < FIELDS; i++) one->value[i] = NAN;
}

/* ---- JSON lines ---- */

static tws_code read_json_line(const char *line, const char *path, int number, tws_recording *r, tws_error *err) {
  cJSON *json = cJSON_Parse(line);
  const cJSON *item;
  row one;
  clear_row(&one);
  if (!cJSON_IsObject(json)) {
    cJSON_Delete(json);
    return tws_fail(err, TWS_INVALID, "each line is a JSON object", "%s:%d: no JSON object", path, number);
  }
  cJSON_ArrayForEach(item, json) {
    const int at = field_of(item->string, strlen(item->string));
    if (at >= 0 && cJSON_IsNumber(item)) one.value[at] = item->valuedouble;
  }
  cJSON_Delete(json);
  return add_row(r, &one, err);
}

/* ---- lines of programs ---- */

/* Finds `mark` in the line and reads the number after it into *value. Returns 0 if the line has none. */
static int number_after(const char *line, const char *mark, double *value) {
  const char *at = strstr(line, mark), *rest;
  return at && tws_text_number(at + strlen(mark) + strspn(at + strlen(mark), " :'\""), &rest, 0, 1e15, value);
}

/* Reads a line such as " iteration 10/ 100 | consumed samples: ... | elapsed time per iteration (ms): 1234.5 | ...". */
static tws_code read_megatron(const char *line, tws_recording *r, tws_error *err) {
  double ms;
  if (!number_after(line, "elapsed time per iteration (ms):", &ms)) return TWS_OK;
  r->format = TWS_RECORDING_MEGATRON;
  return tws_recording_add_step(r, ms * 1e-3, 0, 0, err);
}

/* Reads a line such as "{'loss': 2.1, ...}", "{'train_runtime': 12.3, 'train_steps_per_second': 1.6, ...}", or a
 * progress bar, "10/100 [00:12<01:50, 1.22s/it]". The summary in the last line is an average over all steps. */
static tws_code read_trainer(const char *line, double *summary, tws_recording *r, tws_error *err) {
  double rate;
  if (number_after(line, "train_steps_per_second'", &rate) && rate > 0) *summary = 1 / rate;
  for (const char *at = line; (at = strstr(at, "it")) != NULL; at += 2) {
    const int per_step = at - line > 2 && strncmp(at - 2, "s/it", 4) == 0, per_second = strncmp(at, "it/s", 4) == 0;
    const char *from = per_step ? at - 2 : at, *rest;
    while (from > line && (isdigit((unsigned char)from[-1]) || from[-1] == '.')) from--;
    if ((!per_step && !per_second) || !tws_text_number(from, &rest, 1e-9, 1e9, &rate)) continue;
    r->format = TWS_RECORDING_TRAINER;
    TWS_TRY(tws_recording_add_step(r, per_step ? rate : 1 / rate, 0, 0, err));
  }
  return TWS_OK;
}

/* ---- CSV ---- */

typedef struct columns {
  int field[MOST_COLUMNS], count; /* field of each column; -1: the column is not used */
  int name, memory, clock;        /* indices of nvidia-smi's columns; -1: there is none */
  double *clocks;
  size_t clock_count, clock_capacity;
} columns;

static size_t cell_of(const char *line, size_t *length, size_t *next) {
  const int quoted = *line == '"';
  const char *end = quoted ? strchr(line + 1, '"') : line + strcspn(line, ",");
  *length = end ? (size_t)(end - line) - (size_t)quoted : strlen(line) - (size_t)quoted;
  const size_t to = end ? (size_t)(end - line) + (size_t)quoted : strlen(line);
  *next = line[to] == ',' ? to + 1 : to + strcspn(line + to, ",") + (line[to + strcspn(line + to, ",")] == ',');
  return (size_t)quoted;
}

static int begins(const char *cell, size_t length, const char *word) {
  return length >= strlen(word) && strncmp(cell, word, strlen(word)) == 0;
}

static int read_header(const char *line, columns *c) {
  int useful = 0;
  /* the files of `train --csv`; in other programs' files `seconds` may be the time since the training began */
  const int own = strncmp(line, "step,loss,lr,gradient_norm,seconds,", 35) == 0;
  c->name = c->memory = c->clock = -1;
  c->count = 0;
  while (*line && c->count < MOST_COLUMNS) {
    size_t length, next;
    line += strspn(line, " ");
    const char *cell = line + cell_of(line, &length, &next);
    if (begins(cell, length, "name") || begins(cell, length, "gpu_name")) c->name = c->count;
    if (begins(cell, length, "memory.total")) c->memory = c->count;
    if (begins(cell, length, "clocks.current.sm") || begins(cell, length, "clocks.sm")) c->clock = c->count;
    c->field[c->count] = own && length == 7 && begins(cell, length, "seconds") ? STEP_S : field_of(cell, length);
    useful += c->field[c->count] >= 0 && c->field[c->count] <= STEPS_PER_S;
    c->count++;
    line += next;
  }
  return useful || (c->name >= 0 && (c->memory >= 0 || c->clock >= 0));
}

static int is_smi(const columns *c) {
  return c->name >= 0 && (c->memory >= 0 || c->clock >= 0);
}

static tws_code read_smi_cell(const char *cell, size_t length, int at, columns *c, tws_recording *r, tws_error *err) {
  char text[128];
  double value;
  const char *rest;
  snprintf(text, sizeof text, "%.*s", length < sizeof text ? (int)length : (int)sizeof text - 1, cell);
  if (at == c->name) snprintf(r->device, sizeof r->device, "%s", text);
  if (at == c->memory && tws_text_number(text, &rest, 1, 1e12, &value)) r->device_bytes = value * 1048576;
  if (at != c->clock || !tws_text_number(text, &rest, 1, 1e6, &value) || c->clock_count == MOST_CLOCKS) return TWS_OK;
  if (tws_reserve(&c->clocks, &c->clock_capacity, c->clock_count + 1, sizeof *c->clocks))
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a log");
  c->clocks[c->clock_count++] = value;
  return TWS_OK;
}

static tws_code read_cells(const char *line, const char *path, int number, columns *c, tws_recording *r,
                           tws_error *err) {
  row one;
  int at = 0;
  clear_row(&one);
  while (*line && at < c->count) {
    size_t length, next;
    char text[64];
    const char *rest;
    line += strspn(line, " ");
    const char *cell = line + cell_of(line, &length, &next);
    TWS_TRY(read_smi_cell(cell, length, at, c, r, err));
    snprintf(text, sizeof text, "%.*s", length < sizeof text ? (int)length : (int)sizeof text - 1, cell);
    if (c->field[at] >= 0 && length > 0 && !tws_text_number(text, &rest, -1e18, 1e18, &one.value[c->field[at]]))
      return tws_fail(err, TWS_INVALID, "write a number, or leave the cell empty", "%s:%d: \"%.40s\" is no number",
                      path, number, text);
    at++;
    line += next;
  }
  if (at < c->count)
    return tws_fail(err, TWS_INVALID, "each row has a cell for each column of the header",
                    "%s:%d: %d cells under a header of %d", path, number, at, c->count);
  return add_row(r, &one, err);
}

/* ---- the file ---- */

typedef struct log_reader {
  const char *path;
  columns csv;
  int number, has_header;
  double summary; /* mean seconds of a step, from the Trainer's last line; 0: there is no such line */
} log_reader;

static int is_nccl_tests(const char *line) {
  return line[0] == '#' &&
         (strstr(line, "nThread") || strstr(line, "algbw") || strstr(line, "nccl-tests") || strstr(line, "rccl-tests"));
}

static tws_code read_line(log_reader *l, const char *line, tws_recording *r, tws_error *err) {
  if (r->format == TWS_RECORDING_NCCL_TESTS || !*line) return TWS_OK;
  if (is_nccl_tests(line)) {
    r->format = TWS_RECORDING_NCCL_TESTS;
    return TWS_OK;
  }
  if (l->has_header) return read_cells(line, l->path, l->number, &l->csv, r, err);
  if (line[0] == '{' && line[1 + strspn(line + 1, " ")] == '"') {
    r->format = TWS_RECORDING_JSON_LINES;
    return read_json_line(line, l->path, l->number, r, err);
  }
  if (strstr(line, "elapsed time per iteration")) return read_megatron(line, r, err);
  if (strstr(line, "s/it") || strstr(line, "it/s") || strstr(line, "train_steps_per_second"))
    return read_trainer(line, &l->summary, r, err);
  if (r->step_count == 0 && strchr(line, ',') && read_header(line, &l->csv)) {
    l->has_header = 1;
    r->format = is_smi(&l->csv) ? TWS_RECORDING_SMI : TWS_RECORDING_CSV;
  } else if (r->step_count == 0 && read_header(line, &l->csv) && l->csv.count == 1 && l->csv.field[0] >= 0) {
    l->has_header = 1;
    r->format = TWS_RECORDING_CSV;
  }
  return TWS_OK;
}

static tws_code finish(log_reader *l, tws_recording *r, tws_error *err) {
  if (l->summary > 0) { /* the summary covers all steps, so the rates of the progress bar are dropped */
    r->step_count = 0;
    r->format = TWS_RECORDING_TRAINER;
    TWS_TRY(tws_recording_add_step(r, l->summary, 0, 0, err));
  }
  if (l->csv.clock_count) r->clock_mhz = tws_sample_median(l->csv.clocks, l->csv.clock_count);
  if (r->step_count || r->format == TWS_RECORDING_NCCL_TESTS || *r->device) return TWS_OK;
  return tws_fail(err, TWS_INVALID,
                  "a CSV needs a column such as step_s or step_time_ms, JSON lines a member of such a name; "
                  "docs/calibration.md lists all formats",
                  "%s: no line says how long a step takes", l->path);
}

/* Reads all lines of a file. Carriage returns end lines too, since progress bars overwrite themselves with them. */
static tws_code read_lines(FILE *file, log_reader *l, tws_recording *r, tws_error *err) {
  char *line = tws_calloc(LONGEST_LINE, 1);
  size_t used = 0;
  int byte;
  tws_code code = line ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory for a log");
  l->number = 1;
  while (code == TWS_OK && (byte = getc(file)) != EOF) {
    if (byte == '\n' || byte == '\r') {
      line[used] = '\0';
      code = read_line(l, line, r, err);
      used = 0;
      l->number += byte == '\n';
    } else if (byte == 0) {
      code = tws_fail(err, TWS_INVALID, "give a log as text", "%s:%d: a byte 0: this is no text", l->path, l->number);
    } else if (used < LONGEST_LINE - 1) {
      line[used++] = (char)byte;
    } else {
      code = tws_fail(err, TWS_INVALID, "give a log of lines", "%s:%d: a line of more than %d bytes", l->path,
                      l->number, LONGEST_LINE - 1);
    }
  }
  if (code == TWS_OK && used) {
    line[used] = '\0';
    code = read_line(l, line, r, err);
  }
  tws_free(line);
  return code;
}

tws_code tws_recording_read_log(int fd, const char *path, tws_recording *r, tws_error *err) {
  log_reader l = {.path = path};
  const int own = dup(fd);
  FILE *file = own >= 0 ? fdopen(own, "r") : NULL;
  if (!file) {
    if (own >= 0) close(own);
    return tws_fail(err, TWS_MEMORY, NULL, "%s: cannot be read", path);
  }
  r->format = TWS_RECORDING_CSV;
  tws_code code = read_lines(file, &l, r, err);
  if (code == TWS_OK) code = finish(&l, r, err);
  fclose(file);
  tws_free(l.csv.clocks);
  return code;
}
