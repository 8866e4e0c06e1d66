/* Writes an offline run of Weights and Biases, a new one for each run of the program; "wandb sync" uploads it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/random.h"
#include "traces/monitor.h"
#include "traces/wandb_record.h"

enum { PATH_SIZE = 512, ID_SIZE = 9, ROOM = 16384, TRIES = 1000 };

typedef struct wandb_sink {
  tws_sink sink;
  int folder, fd;
  tws_wandb_run run;
  tws_wandb_log log;
  tws_text bytes; /* the records of one step */
  char path[PATH_SIZE], id[ID_SIZE], host[100];
} wandb_sink;

static tws_code write_bytes(wandb_sink *s, tws_error *err) {
  if (s->bytes.failed) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const tws_code code = tws_write_all(s->fd, s->path, s->bytes.data, s->bytes.length, err);
  s->bytes.length = 0;
  return code;
}

static tws_code wandb_write(tws_sink *sink, const tws_step_report *report, tws_error *err) {
  wandb_sink *s = (wandb_sink *)sink;
  tws_wandb_step(&s->log, report, &s->bytes);
  return write_bytes(s, err);
}

static tws_code wandb_close(tws_sink *sink, tws_code ended, tws_error *err) {
  wandb_sink *s = (wandb_sink *)sink;
  tws_code code = TWS_OK;
  if (s->log.count > 0) {
    tws_wandb_exit(&s->log, tws_code_exit(ended), tws_wall_s(), &s->bytes);
    code = write_bytes(s, err);
  }
  if (s->fd >= 0 && close(s->fd) != 0 && code == TWS_OK) code = tws_output_failed(s->path, "write", err);
  if (s->folder >= 0) close(s->folder);
  tws_text_free(&s->bytes);
  tws_text_free(&s->log.record);
  tws_free(s);
  return code;
}

/* Creates "wandb/offline-run-20261127_174014-pzn499eo/run-pzn499eo.wandb" in the current folder, with the client's
 * naming. */
static tws_code make_file(wandb_sink *s, double now_s, uint64_t number, tws_error *err) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
  const uint64_t seed = (uint64_t)(1e9 * now_s), stream = (uint64_t)getpid() << 16 | number;
  char folder[PATH_SIZE / 2], name[64], when[32] = "";
  const time_t now = (time_t)now_s;
  struct tm here;
  for (uint64_t i = 0; i < ID_SIZE - 1; i++) s->id[i] = letters[(int)(36 * tws_random_uniform(seed, stream, i))];
  if (localtime_r(&now, &here)) strftime(when, sizeof when, "%Y%m%d_%H%M%S", &here);
  snprintf(folder, sizeof folder, "wandb/offline-run-%s-%s", when, s->id);
  snprintf(name, sizeof name, "run-%s.wandb", s->id);
  snprintf(s->path, sizeof s->path, "%s/%s", folder, name);
  TWS_TRY(tws_make_folder(folder, &s->folder, err));
  const tws_code code = tws_exclusive_file(s->folder, name, s->path, &s->fd, err);
  if (code == TWS_OK) return TWS_OK;
  const int taken = errno == EEXIST;
  close(s->folder);
  s->folder = -1;
  if (!taken || number == TRIES) return code;
  if (err) *err = (tws_error){0};
  return make_file(s, now_s, number + 1, err);
}

static tws_code write_first(wandb_sink *s, const tws_monitor_setup *setup, tws_error *err) {
  tws_json *json = NULL;
  const char *text = setup->configuration;
  if (text) TWS_TRY(tws_json_parse(text, strlen(text), "the configuration", &json, err));
  gethostname(s->host, sizeof s->host - 1);
  s->run = (tws_wandb_run){.id = s->id,
                           .team = setup->wandb->team,
                           .project = setup->wandb->project,
                           .group = setup->wandb->group,
                           .host = s->host,
                           .configuration = json ? json->root : NULL,
                           .start_s = setup->now_s};
  s->log.run = &s->run;
  tws_wandb_begin(&s->log, &s->bytes);
  s->run.configuration = NULL;
  tws_json_destroy(json);
  TWS_TRY(write_bytes(s, err));
  for (tws_text *room = &s->bytes;; room = &s->log.record) { /* reserves memory for the longest step */
    room->length = 0;
    for (int i = 0; i < ROOM; i += 64) tws_text_add(room, "%64s", "");
    if (room->failed) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
    room->length = 0;
    if (room == &s->log.record) return TWS_OK;
  }
}

tws_code tws_wandb_sink_open(const tws_monitor_setup *setup, tws_sink **out, tws_error *err) {
  wandb_sink *s = tws_calloc(1, sizeof *s);
  *out = NULL;
  if (!s) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  s->sink = (tws_sink){wandb_write, wandb_close};
  s->fd = s->folder = -1;
  tws_code code = make_file(s, setup->now_s, 0, err);
  if (code == TWS_OK) code = write_first(s, setup, err);
  if (code == TWS_OK)
    *out = &s->sink;
  else
    wandb_close(&s->sink, code, NULL);
  return code;
}
