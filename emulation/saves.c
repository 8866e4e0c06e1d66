/* Checkpoints under the virtual clock: every node writes the data of its ranks to its virtual disk. The files are real,
 * and get their name when the virtual disk has written them. */
#include <math.h>

#include "base/memory.h"
#include "checkpoint/folder.h"
#include "emulation/state.h"
#include "estimators/checkpoint_interval.h"

/* Returns the seconds that the slowest node needs to write (`reads`: to read) the checkpoint data of its ranks. */
static double disk_seconds(const tws_emulator *e, int reads) {
  const tws_cluster *c = &e->job->cluster;
  const double write = c->disk_write > 0 ? c->disk_write : TWS_USUAL_DISK_WRITE;
  const double read = c->disk_read > 0 ? c->disk_read : TWS_USUAL_DISK_READ;
  double longest = 0, bytes = 0;
  for (int r = 0; r < e->count; r++) {
    const int node = e->place[r].node;
    bytes += (double)e->api->save_bytes(e->ranks, r);
    if (r + 1 < e->count && e->place[r + 1].node == node) continue;
    const double seconds = tws_faults_disk(&e->faults, node, e->now_s, bytes / (reads ? read : write));
    if (seconds > longest) longest = seconds;
    bytes = 0;
  }
  return longest;
}

tws_code tws_emulator_load(tws_emulator *e, tws_error *err) {
  const double from_s = e->now_s;
  const tws_code code = tws_emulator_wait(e, e->now_s + disk_seconds(e, 1), TWS_SPAN_RESTART, err);
  e->out->restart_s += e->now_s - from_s;
  return code;
}

/* Returns the seconds for which a save stops training: the whole save or, if saves are asynchronous, only the copy out
 * of the devices, since writing overlaps with training. */
static double hold_seconds(const tws_emulator *e, double writes_s) {
  const tws_cluster *c = &e->job->cluster;
  double most = 0;
  if (e->request->synchronous || e->step == e->request->steps) return writes_s;
  for (int r = 0; r < e->count; r++) {
    const double bytes = (double)e->api->save_bytes(e->ranks, r);
    if (bytes > most) most = bytes;
  }
  const double rate = tws_cluster_copy_rate(c, 1);
  return e->job->backend == TWS_BACKEND_HOST || !(rate > 0) ? 0 : most / rate;
}

/* Returns the optimal save interval for the scenario's failures, in steps that each take as long as the first. */
static int64_t optimum(const tws_emulator *e) {
  const double step_s = e->step_s[e->step - 1];
  const double seconds = tws_interval_daly(hold_seconds(e, disk_seconds(e, 0)), e->faults.downtime_mean_s);
  const double steps = seconds / step_s;
  return isfinite(steps) ? (steps > 1 ? (int64_t)(steps + 0.5) : 1) : e->request->steps;
}

int tws_emulator_save_is_due(tws_emulator *e) {
  if (!e->request->save) return 0;
  if (e->save_every < 0) e->save_every = optimum(e);
  if (e->save_every > 0 && e->step % e->save_every == 0) e->save_waits = 1;
  /* the ranks' weights differ after a local step */
  const int agree = e->api->program(e->ranks) != TWS_PROGRAM_LOCAL;
  const int due = e->step == e->request->steps || (e->save_waits && agree);
  if (due) e->save_waits = 0;
  return due;
}

/* Schedules a death that is to happen during this save. */
static void plan_stop(tws_emulator *e) {
  for (int i = 0; i < e->faults.count; i++) {
    tws_occurrence *o = &e->faults.all[i];
    if (o->event->kind != TWS_HAPPENS_STOP_IN_SAVE || o->done || o->event->save != e->saves_begun) continue;
    o->from_s = e->save.begin_s + o->event->part * (e->save.end_s - e->save.begin_s);
  }
  tws_emulator_schedule_faults(e);
}

static tws_code publish(tws_emulator *e, tws_error *err) {
  e->save.under_way = 0;
  TWS_TRY(e->api->publish(e->ranks, err));
  e->out->saves++;
  return TWS_OK;
}

/* Completes the save in progress; training waits for it. */
static tws_code finish(tws_emulator *e, tws_error *err) {
  if (!e->save.under_way) return TWS_OK;
  const double from_s = e->now_s;
  if (e->save.end_s > e->now_s) TWS_TRY(tws_emulator_wait(e, e->save.end_s, TWS_SPAN_SAVE, err));
  e->out->save_s += e->now_s - from_s;
  return publish(e, err);
}

static tws_code check_disks(const tws_emulator *e, tws_error *err) {
  uint64_t bytes = 0;
  for (int r = 0; r < e->count; r++) bytes += e->api->save_bytes(e->ranks, r);
  for (int r = 0; r < e->count; r++)
    if (tws_faults_disk_is_full(&e->faults, e->place[r].node, e->now_s))
      return tws_folder_refuse(e->request->save, bytes, 0, err);
  return TWS_OK;
}

tws_code tws_emulator_save(tws_emulator *e, tws_error *err) {
  const double writes_s = disk_seconds(e, 0), hold_s = hold_seconds(e, writes_s);
  const int last = e->step == e->request->steps;
  TWS_TRY(finish(e, err));
  if (e->saved_step == e->step) return TWS_OK;
  TWS_TRY(check_disks(e, err));
  TWS_TRY(e->api->save(e->ranks, err));
  e->saved_step = e->step;
  e->saves_begun++;
  e->save = (tws_emulated_save){.under_way = 1, .begin_s = e->now_s, .end_s = e->now_s + writes_s};
  plan_stop(e);
  if (e->request->synchronous || last) return finish(e, err);
  const double from_s = e->now_s;
  if (hold_s > 0) TWS_TRY(tws_emulator_wait(e, e->now_s + hold_s, TWS_SPAN_SAVE, err));
  e->out->save_s += e->now_s - from_s;
  return TWS_OK;
}

tws_code tws_emulator_poll_save(tws_emulator *e, tws_error *err) {
  if (!e->save.under_way || e->now_s < e->save.end_s) return TWS_OK;
  return publish(e, err);
}

/* Drops a save that was in progress when the job ended; its files stay as they are. */
void tws_emulator_drop_save(tws_emulator *e) {
  const double writes_s = e->save.end_s - e->save.begin_s;
  if (!e->save.under_way || !e->ranks) return;
  e->save.under_way = 0;
  e->api->drop(e->ranks, writes_s > 0 ? (e->failed_s - e->save.begin_s) / writes_s : 1);
}
