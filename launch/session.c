#include "launch/session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Variables that name the session directory, of Open MPI 4 (orte) and 5 (prte). */
static const char *const own_directory[] = {"OMPI_MCA_orte_top_session_dir", "OMPI_MCA_orte_jobfam_session_dir",
                                            "PRTE_MCA_prte_top_session_dir", "PRTE_MCA_prte_jobfam_session_dir"};
/* Variables that name the directory in which mpirun creates its session directory; for each of the two programs the
 * first variable that is set is used. */
static const char *const base_directory[][6] = {
    {"OMPI_MCA_orte_tmpdir_base", "OMPI_MCA_orte_local_tmpdir_base", "TMPDIR", "TEMP", "TMP", NULL},
    {"PRTE_MCA_prte_tmpdir_base", "PRTE_MCA_prte_local_tmpdir_base", "TMPDIR", "TEMP", "TMP", NULL}};

static const char removes[] = "mpirun removes this directory when it ends, and what links in it lead to";
enum { DEPTH = 16 };

typedef struct place {
  char path[4096];
  const char *variable; /* variable that names the directory; NULL: mpirun's default */
} place;

static tws_code refuse(const place *p, const char *what, tws_error *err) {
  char hint[256];
  if (p->variable)
    snprintf(hint, sizeof hint, "unset %s, or name an empty directory", p->variable);
  else
    snprintf(hint, sizeof hint, "look at the directory, and remove it; or set TMPDIR to a directory of your own");
  return tws_fail(err, TWS_ENVIRONMENT, hint, "%s%s%.800s %s: %s", p->variable ? p->variable : "",
                  p->variable ? ": " : "", p->path, what, removes);
}

/* Returns 1 for names that mpirun creates: "0", "contact.txt", "pid.71", "pmix_dstor_ds12_71", ... */
static int is_made_by_mpirun(const char *name) {
  static const char *const beginnings[] = {"contact.txt", "hwloc.sm", "pmix", "pid.",
                                           "jf.",         "ompi.",    "prte", "output-"};
  if (name[strspn(name, "0123456789")] == '\0') return 1;
  for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
    if (strncmp(name, beginnings[i], strlen(beginnings[i])) == 0) return 1;
  return 0;
}

/* Examines the entries of a directory; entries of other jobs may vanish meanwhile. `fd` is closed. */
static tws_code look_inside(int fd, place *p, int depth, tws_error *err) {
  const size_t length = strlen(p->path);
  tws_code code = TWS_OK;
  DIR *directory = fdopendir(fd);
  if (!directory) {
    close(fd);
    return refuse(p, "cannot be read", err);
  }
  for (const struct dirent *entry; code == TWS_OK && (entry = readdir(directory)) != NULL;) {
    struct stat info;
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    if (fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    snprintf(p->path + length, sizeof p->path - length, "/%s", entry->d_name);
    if (S_ISLNK(info.st_mode)) {
      code = refuse(p, "is a symbolic link", err);
    } else if (depth == 0 && p->variable && !is_made_by_mpirun(entry->d_name)) {
      code = refuse(p, "is not one of mpirun's own entries", err);
    } else if (S_ISDIR(info.st_mode)) {
      const int inner = openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      if (inner >= 0 && depth < DEPTH)
        code = look_inside(inner, p, depth + 1, err);
      else if (inner >= 0 || errno != ENOENT)
        code = refuse(p, "cannot be looked through", err);
      if (inner >= 0 && depth >= DEPTH) close(inner);
    }
    p->path[length] = '\0';
  }
  closedir(directory);
  return code;
}

static tws_code look_at(int in, const char *name, place *p, tws_error *err) {
  struct stat info;
  /* the folder does not exist yet: mpirun will create it */
  if (fstatat(in, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return TWS_OK;
  if (S_ISLNK(info.st_mode)) return refuse(p, "is a symbolic link", err);
  if (!p->variable && (info.st_uid != geteuid() || (info.st_mode & (S_IWGRP | S_IWOTH))))
    return refuse(p, "belongs to another user, or may be written by others", err);
  const int fd = openat(in, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd >= 0) return look_inside(fd, p, 0, err);
  return errno == ENOENT ? TWS_OK : refuse(p, "is not a directory that can be read", err);
}

/* Examines all entries named "ompi.HOST.UID" and "prterun.HOST.PID.UID", for any host name, since mpirun may use
 * another name of this machine. */
static tws_code look_in_base(const char *base, tws_error *err) {
  char user[32];
  tws_code code = TWS_OK;
  const int count = snprintf(user, sizeof user, ".%u", (unsigned)geteuid());
  DIR *directory = opendir(base);
  for (const struct dirent *entry; directory && code == TWS_OK && (entry = readdir(directory)) != NULL;) {
    const char *name = entry->d_name;
    const size_t length = strlen(name);
    place p = {.variable = NULL};
    if (strncmp(name, "ompi.", 5) != 0 && strncmp(name, "prte", 4) != 0) continue;
    if (length < (size_t)count || strcmp(name + length - (size_t)count, user) != 0) continue;
    snprintf(p.path, sizeof p.path, "%.2000s/%s", base, name);
    code = look_at(dirfd(directory), name, &p, err);
  }
  if (directory) closedir(directory);
  return code;
}

tws_code tws_session_check(tws_error *err) {
  for (size_t i = 0; i < sizeof own_directory / sizeof *own_directory; i++) {
    const char *path = getenv(own_directory[i]);
    place p = {.variable = own_directory[i]};
    if (!path || !*path) continue;
    snprintf(p.path, sizeof p.path, "%.2000s", path);
    TWS_TRY(look_at(AT_FDCWD, p.path, &p, err));
  }
  for (size_t i = 0; i < sizeof base_directory / sizeof *base_directory; i++) {
    const char *base = NULL;
    for (const char *const *name = base_directory[i]; *name && !(base && *base); name++) base = getenv(*name);
    TWS_TRY(look_in_base(base && *base ? base : "/tmp", err));
  }
  return TWS_OK;
}
