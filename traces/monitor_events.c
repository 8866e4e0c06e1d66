/* Writes one file of TensorBoard's events, a new one for each run, named as TensorBoard's own writers name it: files of
 * earlier runs in the folder stay. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/output_file.h"
#include "traces/event_figures.h"
#include "traces/event_record.h"
#include "traces/monitor.h"

enum { PATH_SIZE = 4096, NAME_SIZE = 200, ROOM = 8192, TRIES = 1000 };

typedef struct event_sink {
  tws_sink sink;
  int folder, fd;
  tws_text bytes;             /* the records of one step */
  tws_event_figures *figures; /* NULL: no figures are asked for */
  char path[PATH_SIZE + NAME_SIZE];
} event_sink;

static tws_code write_bytes(event_sink *s, tws_error *err) {
  if (s->bytes.failed) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const tws_code code = tws_write_all(s->fd, s->path, s->bytes.data, s->bytes.length, err);
  s->bytes.length = 0;
  return code;
}

static tws_code event_write(tws_sink *sink, const tws_step_report *report, tws_error *err) {
  event_sink *s = (event_sink *)sink;
  tws_event_step(&s->bytes, report);
  tws_event_figures_add(s->figures, report);
  return write_bytes(s, err);
}

static tws_code event_close(tws_sink *sink, tws_code ended, tws_error *err) {
  event_sink *s = (event_sink *)sink;
  tws_code code = ended == TWS_OK ? tws_event_figures_losses(s->figures, &s->bytes, err) : TWS_OK;
  if (code == TWS_OK && s->bytes.length > 0 && ended == TWS_OK) code = write_bytes(s, err);
  if (s->fd >= 0 && close(s->fd) != 0 && code == TWS_OK) code = tws_output_failed(s->path, "write", err);
  if (s->folder >= 0) close(s->folder);
  tws_text_free(&s->bytes);
  tws_free(s->figures);
  tws_free(s);
  return code;
}

/* Creates the file "events.out.tfevents.<seconds>.<host>.<process>.<number>"; TensorBoard reads the files of a folder
 * in the order of their names. */
static tws_code make_file(event_sink *s, const char *folder, double now_s, tws_error *err) {
  char name[NAME_SIZE], host[100] = "host";
  gethostname(host, sizeof host - 1);
  for (int i = 0;; i++) {
    snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%ld.%d", (long long)now_s, host, (long)getpid(), i);
    snprintf(s->path, sizeof s->path, "%s/%s", folder, name);
    const tws_code code = tws_exclusive_file(s->folder, name, s->path, &s->fd, err);
    if (code == TWS_OK && err) *err = (tws_error){0}; /* clears the error of a name that existed already */
    if (code == TWS_OK || errno != EEXIST || i == TRIES) return code;
  }
}

/* Writes the first records: the version, the configuration as a code block in Markdown, and figures of memory. */
static tws_code write_first(event_sink *s, const tws_monitor_setup *setup, tws_error *err) {
  tws_text text = {0};
  tws_event_version(&s->bytes, setup->now_s);
  if (setup->continues) tws_event_start(&s->bytes, setup->now_s, setup->samples + 1);
  if (setup->configuration) {
    tws_text_add(&text, "```json\n%s\n```\n", setup->configuration);
    if (!text.failed) tws_event_text(&s->bytes, "configuration", text.data, setup->now_s, setup->samples);
    s->bytes.failed |= text.failed;
    tws_text_free(&text);
  }
  TWS_TRY(tws_event_figures_open(setup, &s->bytes, &s->figures, err));
  const size_t used = s->bytes.length;
  /* reserves memory for the records of later steps */
  for (int i = 0; used < ROOM && i < ROOM; i += 64) tws_text_add(&s->bytes, "%64s", "");
  if (!s->bytes.failed) s->bytes.length = used;
  return write_bytes(s, err);
}

tws_code tws_event_sink_open(const tws_monitor_setup *setup, tws_sink **out, tws_error *err) {
  event_sink *s = tws_calloc(1, sizeof *s);
  *out = NULL;
  if (!s) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  s->sink = (tws_sink){event_write, event_close};
  s->fd = s->folder = -1;
  tws_code code = tws_make_folder(setup->event_folder, &s->folder, err);
  if (code == TWS_OK) code = make_file(s, setup->event_folder, setup->now_s, err);
  if (code == TWS_OK) code = write_first(s, setup, err);
  if (code == TWS_OK)
    *out = &s->sink;
  else
    event_close(&s->sink, code, NULL);
  return code;
}
