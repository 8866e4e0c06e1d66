/* Compares the result of a scenario with the scenario's expectations. */
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "checkpoint/folder.h"
#include "emulation/emulate.h"

static tws_code not_met(tws_error *err, const char *what, const char *expected, const char *seen) {
  return tws_fail(err, TWS_NO, NULL, "not as expected: %s: expected %s, and it is %s", what, expected, seen);
}

static tws_code check_number(const char *what, int64_t expected, int64_t seen, tws_error *err) {
  char a[32], b[32];
  if (expected < 0 || expected == seen) return TWS_OK;
  snprintf(a, sizeof a, "%" PRId64, expected);
  snprintf(b, sizeof b, "%" PRId64, seen);
  return not_met(err, what, a, b);
}

static tws_code check_range(const char *what, double low, double high, double seen, tws_error *err) {
  char a[96], b[32];
  if (seen >= low && seen <= high) return TWS_OK;
  snprintf(a, sizeof a, "%.9g to %.9g", low, high);
  snprintf(b, sizeof b, "%.9g", seen);
  return not_met(err, what, a, b);
}

static tws_code check_status(const tws_expectations *x, tws_code code, const tws_error *failure, tws_error *err) {
  const char *expected = x->status ? x->status : "ok", *seen = tws_code_name(code);
  char text[2200];
  if (strcasecmp(expected, seen) == 0) return TWS_OK;
  snprintf(text, sizeof text, "%s%s%s", seen, code == TWS_OK ? "" : ": ", code == TWS_OK ? "" : failure->message);
  return not_met(err, "status", expected, text);
}

static tws_code check_names(const tws_expectations *x, const tws_emulation *r, tws_code code, const tws_error *failure,
                            tws_error *err) {
  const char *said = code != TWS_OK ? failure->message : r->last_failure.message;
  for (int i = 0; x->names && x->names[i]; i++)
    if (!strstr(said, x->names[i]))
      return not_met(err, "what the failure names", x->names[i], *said ? said : "nothing");
  return TWS_OK;
}

static int is_there(const char *folder, const char *tag) {
  char path[TWS_FOLDER_SIZE];
  return tws_folder_find(folder, tag, path, sizeof path, NULL) == TWS_OK;
}

static tws_code check_folder(const tws_expectations *x, const char *folder, tws_error *err) {
  char seen[1024] = "";
  int64_t there = 0, wanted = 0, leftovers = 0;
  if (!x->has_checkpoints && x->leftovers < 0) return TWS_OK;
  DIR *list = folder ? opendir(folder) : NULL;
  for (const struct dirent *d = list ? readdir(list) : NULL; d; d = readdir(list)) {
    leftovers += strncmp(d->d_name, ".saving-", 8) == 0;
    if (tws_step_of_tag(d->d_name) < 0) continue;
    there++;
    snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%s%.64s", *seen ? " " : "", d->d_name);
  }
  if (list) closedir(list);
  TWS_TRY(check_number("unfinished saves that are left", x->leftovers, leftovers, err));
  if (!x->has_checkpoints) return TWS_OK;
  for (; x->checkpoints[wanted]; wanted++)
    if (!folder || !is_there(folder, x->checkpoints[wanted]))
      return not_met(err, "checkpoints", x->checkpoints[wanted], *seen ? seen : "not there");
  return check_number("checkpoints that are left", wanted, there, err);
}

/* Returns TWS_NO and names the first expectation that is not met, or TWS_OK, also if an expected failure has occurred.
 * `code` and `failure`: the result of tws_emulate(); folder: the folder of its checkpoints, or NULL. */
static tws_code expectations_check(const tws_expectations *x, const tws_emulation *r, tws_code code,
                                   const tws_error *failure, const char *folder, tws_error *err) {
  TWS_TRY(check_status(x, code, failure, err));
  TWS_TRY(check_names(x, r, code, failure, err));
  if (x->has_loss && !(fabs(r->last_loss - x->loss) <= x->loss_tolerance)) {
    char a[96], b[32];
    snprintf(a, sizeof a, "%.9g within %.3g", x->loss, x->loss_tolerance);
    snprintf(b, sizeof b, "%.9g", r->last_loss);
    return not_met(err, "loss", a, b);
  }
  TWS_TRY(check_range("seconds of a step", x->step_min_s, x->step_max_s, r->median_step_s, err));
  TWS_TRY(check_range("goodput", x->goodput_min, x->goodput_max, tws_emulation_goodput(r), err));
  TWS_TRY(check_number("restarts", x->restarts, r->restarts, err));
  TWS_TRY(check_number("steps", x->steps, r->steps, err));
  TWS_TRY(check_number("skipped steps", x->skipped, r->skipped, err));
  return check_folder(x, folder, err);
}

tws_code tws_expectations_judge(const tws_expectations *expect, const tws_emulation *emulation, tws_code code,
                                const char *folder, tws_error *err) {
  tws_error why = {0};
  if (code != TWS_OK && code != TWS_RANK && code != TWS_HANG && code != TWS_INVALID && code != TWS_IO) return code;
  if (expectations_check(expect, emulation, code, err, folder, &why) != TWS_OK) {
    if (code != TWS_OK && !expect->status) return code;
    *err = why;
    return TWS_NO;
  }
  if (code != TWS_OK) *err = (tws_error){0};
  return TWS_OK;
}
