#include "cli/outputs.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/output_file.h"
#include "checkpoint/folder.h"
#include "launch/launch.h"

void tws_inputs_add(tws_inputs *inputs, const char *path) {
  if (path && inputs->count < TWS_MAX_INPUTS) inputs->path[inputs->count++] = path;
}

tws_inputs tws_inputs_of_job(const tws_job_spec *spec) {
  tws_inputs inputs = {0};
  tws_inputs_add(&inputs, spec->model);
  tws_inputs_add(&inputs, spec->config);
  tws_inputs_add(&inputs, spec->cluster);
  tws_inputs_add(&inputs, spec->profile);
  return inputs;
}

static tws_code blocked_output(const tws_output *o, const char *path, tws_error *err) {
  char parent[PATH_MAX], hint[sizeof err->hint];
  int reason = errno;
  struct stat info;
  tws_parent_of(path, parent, sizeof parent);
  if (reason == ENOENT && stat(parent, &info) != 0)
    snprintf(hint, sizeof hint, "make the folder first: mkdir -p %.300s", parent);
  else
    snprintf(hint, sizeof hint, "choose a place that can be written to");
  return tws_fail(err, TWS_IO, hint, "%s: cannot write %.400s: %s", o->flag, path, strerror(reason));
}

/* Checks that a temporary file can be created in the folder, as writing does first. */
static tws_code probe_folder(const tws_output *o, const char *folder, const char *path, tws_error *err) {
  return tws_probe_folder(folder) == 0 ? TWS_OK : blocked_output(o, path, err);
}

static tws_code refuse_existing(const tws_output *o, const char *path, tws_error *err) {
  return tws_fail(err, TWS_USAGE, "--force overwrites it", "%s: %.400s exists", o->flag, path);
}

/* Options that print their document for "-" do not check it. With the others a user who means standard output would get
 * a file of that name. */
static tws_code refuse_dash(const char *flag, tws_error *err) {
  return tws_fail(err, TWS_USAGE, "standard output is /dev/stdout; ./- is a file or folder of that name",
                  "%s: \"-\" is no name of a file or folder here", flag);
}

static tws_code refuse_link(const tws_output *o, const char *path, tws_error *err) {
  return tws_fail(err, TWS_USAGE, "name the file itself; --force replaces the link, and not what it leads to",
                  "%s: %.400s is a symbolic link", o->flag, path);
}

/* Checks that a file that does not exist yet can be created: its name is no folder and not too long, and its folder is
 * writable. */
static tws_code check_free(const tws_output *o, const char *path, tws_error *err) {
  char parent[PATH_MAX];
  const size_t length = strlen(path);
  const char *name = strrchr(path, '/');
  name = name ? name + 1 : path;
  if (path[length - 1] == '/') return tws_fail(err, TWS_IO, "name a file", "%s: %.400s names a folder", o->flag, path);
  if (strlen(name) > NAME_MAX - 24) { /* leaves space for the suffix of the unfinished file */
    errno = ENAMETOOLONG;
    return blocked_output(o, path, err);
  }
  tws_parent_of(path, parent, sizeof parent);
  return probe_folder(o, parent, path, err);
}

static tws_code check_file(const tws_output *o, const char *path, int force, tws_error *err) {
  char parent[PATH_MAX];
  if (!*path) return tws_fail(err, TWS_USAGE, "give it the name of a file", "%s: the name is empty", o->flag);
  if (strcmp(path, "-") == 0) return refuse_dash(o->flag, err);
  switch (tws_path_kind_of(path)) {
    case TWS_PATH_FREE:
      return check_free(o, path, err);
    case TWS_PATH_FOLDER:
      return tws_fail(err, TWS_IO, "name a file in it", "%s: %.400s is a folder, and a file is to be written", o->flag,
                      path);
    case TWS_PATH_STREAM:
      return access(path, W_OK) == 0 ? TWS_OK : blocked_output(o, path, err);
    case TWS_PATH_SYSTEM:
      return tws_fail(err, TWS_USAGE, "name the file itself",
                      "%s: %.400s is a link of the system to a regular file, which is not replaced", o->flag, path);
    case TWS_PATH_LINK:
      if (!force) return refuse_link(o, path, err);
      break;
    case TWS_PATH_FILE:
      if (!force) return refuse_existing(o, path, err);
      if (access(path, W_OK) != 0) return blocked_output(o, path, err);
      break;
    case TWS_PATH_UNKNOWN:
      return blocked_output(o, path, err);
  }
  tws_parent_of(path, parent, sizeof parent);
  return probe_folder(o, parent, path, err);
}

static tws_code check_folder(const tws_output *o, int force, tws_error *err) {
  struct stat info;
  char path[PATH_MAX], parent[PATH_MAX];
  if (!*o->path) return tws_fail(err, TWS_USAGE, "give it the name of a folder", "%s: the name is empty", o->flag);
  if (strcmp(o->path, "-") == 0) return refuse_dash(o->flag, err);
  snprintf(path, sizeof path, "%s", o->path);
  for (size_t length = strlen(path); length > 1 && path[length - 1] == '/';) path[--length] = '\0';
  if (stat(path, &info) != 0) {
    if (errno != ENOENT) return blocked_output(o, path, err);
    tws_parent_of(path, parent, sizeof parent);
    return probe_folder(o, parent, path, err);
  }
  if (!S_ISDIR(info.st_mode))
    return tws_fail(err, TWS_IO, "name a folder, or one that is not there yet",
                    "%s: %.400s is a file, and a folder is wanted", o->flag, o->path);
  for (const char *const *member = o->members; *member && !force; member++) {
    char file[PATH_MAX];
    if ((size_t)snprintf(file, sizeof file, "%s/%s", path, *member) < sizeof file &&
        tws_path_kind_of(file) != TWS_PATH_FREE)
      return refuse_existing(o, file, err);
  }
  return probe_folder(o, path, path, err);
}

/* Returns 1 if two names denote one file. A file that does not exist yet is identified by its folder and its name. */
static int same_file(const char *a, const char *b) {
  struct stat x, y;
  int there = stat(a, &x) == 0;
  if (there != (stat(b, &y) == 0)) return 0;
  if (there) return S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
  char folder_a[PATH_MAX], folder_b[PATH_MAX];
  const char *name_a = strrchr(a, '/'), *name_b = strrchr(b, '/');
  tws_parent_of(a, folder_a, sizeof folder_a);
  tws_parent_of(b, folder_b, sizeof folder_b);
  if (strcmp(name_a ? name_a + 1 : a, name_b ? name_b + 1 : b) != 0) return 0;
  return stat(folder_a, &x) == 0 && stat(folder_b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static tws_code check_inputs(const tws_output *o, const tws_inputs *inputs, tws_error *err) {
  for (int i = 0; inputs && i < inputs->count; i++) {
    char inside[PATH_MAX];
    /* the given name of a model may be that of its folder */
    snprintf(inside, sizeof inside, "%s/config.json", inputs->path[i]);
    if (same_file(o->path, inputs->path[i]) || same_file(o->path, inside))
      return tws_fail(err, TWS_USAGE, "name another file", "%s: %.300s is read by this command, and would be lost",
                      o->flag, o->path);
  }
  return TWS_OK;
}

tws_code tws_outputs_check(const tws_output *outputs, int count, const tws_inputs *inputs, int force, tws_error *err) {
  if (tws_rank_job_is_checked()) return TWS_OK;
  for (int i = 0; i < count; i++) {
    const tws_output *o = &outputs[i];
    if (!o->path) continue;
    if (o->members) {
      TWS_TRY(check_folder(o, force, err));
      continue;
    }
    TWS_TRY(check_inputs(o, inputs, err));
    for (int j = 0; j < i; j++)
      if (outputs[j].path && !outputs[j].members && same_file(o->path, outputs[j].path))
        return tws_fail(err, TWS_USAGE, "give each a file of its own", "%s and %s both name %.300s", outputs[j].flag,
                        o->flag, o->path);
    TWS_TRY(check_file(o, o->path, force, err));
  }
  return TWS_OK;
}

tws_code tws_outputs_check_continued(const tws_output *outputs, int count, int continued, const tws_inputs *inputs,
                                     int force, tws_error *err) {
  /* checks names, data folders and inputs of all outputs */
  if (continued > 0) TWS_TRY(tws_outputs_check(outputs, count, inputs, 1, err));
  return tws_outputs_check(outputs + continued, count - continued, inputs, force, err);
}

tws_code tws_outputs_check_name(const char *flag, const char *path, tws_error *err) {
  if (!path) return TWS_OK;
  if (!*path) return tws_fail(err, TWS_USAGE, "give it a name", "%s: the name is empty", flag);
  return strcmp(path, "-") == 0 ? refuse_dash(flag, err) : TWS_OK;
}

tws_code tws_outputs_check_save(const char *save, const char *resume, int force, tws_error *err) {
  if (!save || tws_rank_job_is_checked()) return TWS_OK;
  TWS_TRY(tws_outputs_check_name("--save", save, err));
  const int goes_on = resume && tws_folder_same(save, resume);
  if (force || goes_on || !tws_folder_has_checkpoints(save)) return TWS_OK;
  return tws_fail(err, TWS_USAGE,
                  "--resume continues from them; --force overwrites those whose steps are reached again",
                  "--save: %.400s has checkpoints", save);
}
