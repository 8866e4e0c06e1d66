/* Simulates failures within an attempt, and their detection: the launcher sees the closed socket of a process that
 * dies; a node that dies is silent until a deadline; where no operation makes progress, the watchdog reports it. */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/failure.h"
#include "checkpoint/folder.h"
#include "checkpoint/shard.h"
#include "emulation/state.h"

/* ---- places ---- */

/* Marks the places of a failed rank's node as unavailable until `until_s`. */
static void emulator_lose(tws_emulator *e, tws_rank_slot place, double until_s) {
  double *until = &e->down_until[e->by_node ? place.node : place.slot];
  if (until_s > *until) *until = until_s;
}

int tws_emulator_places_alive(const tws_emulator *e, int *nodes) {
  int left = 0;
  const int all = e->by_node ? e->nodes : e->nodes * e->slots;
  for (int i = 0; i < all; i++) left += e->down_until[i] <= e->now_s;
  *nodes = e->by_node ? left : 1;
  return e->by_node ? left * e->slots : left;
}

/* Returns the lowest rank of the job whose place the death affects; -1: no rank is affected. */
static int hits(const tws_emulator *e, const tws_occurrence *o) {
  for (int r = 0; r < e->count; r++) {
    const int here = o->event->target == TWS_TARGET_NODE ? e->place[r].node : e->place[r].slot;
    if (o->first <= here && here <= o->last) return r;
  }
  return -1;
}

/* Marks the places that a death event affects as unavailable: all places of a node that lost a process, as in
 * `train`. */
static void take_places(tws_emulator *e, tws_occurrence *o) {
  for (int i = o->first; i <= o->last; i++) {
    const int node = o->event->target == TWS_TARGET_NODE ? i : i / e->slots;
    const tws_rank_slot place = {.node = node, .slot = o->event->target == TWS_TARGET_NODE ? i * e->slots : i};
    const int slots = o->event->target == TWS_TARGET_NODE && !e->by_node ? e->slots : 1;
    for (int k = 0; k < slots; k++)
      emulator_lose(e, (tws_rank_slot){.node = node, .slot = place.slot + k}, o->from_s + o->event->repair_s);
  }
  o->done = 1;
}

void tws_emulator_schedule_faults(tws_emulator *e) {
  e->break_s = e->flip_s = INFINITY;
  e->broken = NULL;
  for (int i = e->faults.over; i < e->faults.count; i++) {
    tws_occurrence *o = &e->faults.all[i];
    const tws_fault_event_kind kind = o->event->kind;
    if (o->done) continue;
    if (kind == TWS_HAPPENS_BIT && o->from_s < e->flip_s) e->flip_s = o->from_s;
    if ((kind == TWS_HAPPENS_DEATH || kind == TWS_HAPPENS_STOP_IN_SAVE) && o->from_s < e->break_s) {
      e->break_s = o->from_s;
      e->broken = o;
    }
  }
}

void tws_emulator_process_deaths(tws_emulator *e, double at_s) {
  tws_emulator_schedule_faults(e);
  while (e->broken && e->break_s <= at_s) {
    take_places(e, e->broken);
    tws_emulator_schedule_faults(e);
  }
}

/* ---- failures ---- */

static const char *what_it_did(const tws_emulator *e, int rank, char *text, size_t size) {
  char label[160];
  if (!e->ranks) {
    snprintf(text, size, "starting");
    return text;
  }
  const tws_plan *plan = e->plans[e->program][rank];
  snprintf(text, size, "step %" PRId64 ", %s", e->step, tws_op_label(plan, e->doing[rank], label, sizeof label));
  return text;
}

static tws_code strike(tws_emulator *e, int rank, tws_error *err) {
  tws_occurrence *o = e->broken;
  char doing[256], name[16];
  what_it_did(e, rank, doing, sizeof doing);
  e->failed_rank = rank;
  e->failed_s = e->known_s = o->from_s;
  take_places(e, o);
  tws_emulator_schedule_faults(e);
  if (o->event->target != TWS_TARGET_NODE) return tws_failure_death(rank, 128 + SIGKILL, doing, err);
  int first = rank, count = 0;
  const int node = e->place[rank].node;
  while (first > 0 && e->place[first - 1].node == node) first--;
  while (first + count < e->count && e->place[first + count].node == node) count++;
  const double silence_s = tws_failure_silence_s(e->request->deadline_s);
  e->known_s += silence_s;
  snprintf(name, sizeof name, "%d", node);
  return tws_failure_lost(name, first, count, silence_s, rank, doing, err);
}

/* Reports a hang of an operation. A rank that computes is reported at the deadline; ranks that wait in a collective are
 * given more time, and the report names the rank that has not arrived: the one whose link is down, or else the one that
 * became ready last. */
static tws_code hang(tws_emulator *e, const tws_run_member *members, uint32_t count, tws_error *err) {
  char label[160];
  int cut = -1;
  for (uint32_t i = 0; i < count; i++) e->together[i] = e->place[members[i].rank];
  if (count > 1) cut = tws_faults_cut_off(&e->faults, e->together, (int)count, e->last_s + e->request->deadline_s);
  const uint32_t at = cut >= 0 ? (uint32_t)cut : count - 1;
  const int rank = (int)members[at].rank;
  const double deadline_s = e->request->deadline_s;
  e->failed_rank = rank;
  e->failed_s = e->last_s;
  e->known_s = e->last_s + deadline_s + (count > 1 ? 2 * TWS_FAILURE_GRACE_S : 0);
  emulator_lose(e, e->place[rank], INFINITY);
  return tws_failure_hang(e->step, deadline_s, rank, cut < 0,
                          tws_op_label(e->plans[e->program][rank], members[at].op, label, sizeof label), err);
}

void tws_emulator_record_failure(tws_emulator *e, int rank) {
  if (e->failed_rank >= 0) return;
  e->failed_rank = rank;
  e->failed_s = e->known_s = e->now_s;
  emulator_lose(e, e->place[rank], INFINITY);
}

static tws_code flip_buffers(tws_emulator *e, double at_s, tws_error *err) {
  for (int i = e->faults.over; i < e->faults.count; i++) {
    tws_occurrence *o = &e->faults.all[i];
    if (o->event->kind != TWS_HAPPENS_BIT || o->done || o->from_s > at_s || o->event->place != TWS_BIT_BUFFER) continue;
    const int rank = o->event->target == TWS_TARGET_ALL ? 0 : hits(e, o);
    o->done = 1;
    if (rank >= 0)
      TWS_TRY(e->api->flip(e->ranks, rank, o->event->entry, (uint64_t)o->event->element, o->event->bit, err));
  }
  return TWS_OK;
}

tws_code tws_emulator_advance(tws_emulator *e, double at_s, const tws_run_member *members, uint32_t count,
                              tws_error *err) {
  const double deadline_s = e->request->deadline_s;
  const int late = members && deadline_s > 0 && at_s - e->last_s > deadline_s;
  const double until_s = late ? e->last_s + deadline_s : at_s;
  while (e->break_s <= until_s) {
    const int rank = hits(e, e->broken);
    if (rank >= 0) return strike(e, rank, err);
    take_places(e, e->broken); /* the death affects no rank of the job */
    tws_emulator_schedule_faults(e);
  }
  if (late) return hang(e, members, count, err);
  if (e->flip_s <= at_s && e->ranks) TWS_TRY(flip_buffers(e, at_s, err));
  e->last_s = at_s;
  return TWS_OK;
}

/* ---- bits elsewhere ---- */

void tws_emulator_flip_received(tws_emulator *e, double at_s, const tws_run_member *members, uint32_t count) {
  if (e->flip_s > at_s) return;
  for (int i = e->faults.over; i < e->faults.count; i++) {
    tws_occurrence *o = &e->faults.all[i];
    if (o->event->kind != TWS_HAPPENS_BIT || o->done || o->from_s > at_s || o->event->place != TWS_BIT_MESSAGE)
      continue;
    const int rank = o->event->target == TWS_TARGET_ALL ? (int)members[count - 1].rank : hits(e, o);
    for (uint32_t m = 0; m < count && !o->done; m++) {
      const tws_op *op = &e->plans[e->program][members[m].rank]->ops[members[m].op];
      if ((int)members[m].rank != rank || op->kind == TWS_OP_SEND) continue;
      e->api->flip_received(e->ranks, e->program, &members[m], (uint64_t)o->event->element, o->event->bit);
      o->done = 1;
    }
  }
  tws_emulator_schedule_faults(e);
}

static tws_code flip_file(const char *folder, int bit, tws_error *err) {
  char checkpoint[TWS_FOLDER_SIZE], path[TWS_FOLDER_SIZE + 64], name[64];
  unsigned char byte;
  struct stat info;
  TWS_TRY(tws_folder_find(folder, NULL, checkpoint, sizeof checkpoint, err));
  snprintf(path, sizeof path, "%s/%s", checkpoint, tws_shard_name(0, name, sizeof name));
  int fd;
  TWS_TRY(tws_changed_file(path, 0, &fd, err));
  int good = fd >= 0 && fstat(fd, &info) == 0 && info.st_size > 0;
  const off_t last = good ? info.st_size - 1 : 0; /* the flipped byte is the last one of the file: it belongs to the
                                                   * data, as the header comes first */
  good = good && pread(fd, &byte, 1, last) == 1;
  byte = (unsigned char)(good ? byte ^ 1u << (bit % 8) : 0u);
  good = good && pwrite(fd, &byte, 1, last) == 1;
  if (fd >= 0) close(fd);
  return good ? TWS_OK : tws_fail(err, TWS_IO, NULL, "%s cannot be changed", path);
}

tws_code tws_emulator_flip_saved(tws_emulator *e, tws_error *err) {
  const char *folder = e->request->save;
  if (e->flip_s > e->now_s || !folder || !tws_folder_has_checkpoints(folder)) return TWS_OK;
  for (int i = e->faults.over; i < e->faults.count; i++) {
    tws_occurrence *o = &e->faults.all[i];
    if (o->event->kind != TWS_HAPPENS_BIT || o->done || o->from_s > e->now_s || o->event->place != TWS_BIT_CHECKPOINT)
      continue;
    o->done = 1;
    TWS_TRY(flip_file(folder, o->event->bit, err));
  }
  tws_emulator_schedule_faults(e);
  return TWS_OK;
}
