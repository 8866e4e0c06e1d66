#include "launch/mpirun_cleanup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/number.h"
#include "launch/process.h"
#include "launch/protocol.h"

static const double patience_s = 2.0;

void tws_mpirun_cleanup_begin(tws_mpirun_cleanup *m) {
  int adopts = 0;
  prctl(PR_GET_CHILD_SUBREAPER, &adopts);
  *m = (tws_mpirun_cleanup){.adopts = adopts};
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

int tws_mpirun_cleanup_identify(tws_mpirun_cleanup *m, pid_t rank) {
  char job[32];
  int64_t number;
  if (!m->folder[0]) tws_process_variable(rank, "OMPI_MCA_orte_jobfam_session_dir", m->folder, sizeof m->folder);
  if (!m->job && tws_process_variable(rank, "PMIX_NAMESPACE", job, sizeof job) &&
      tws_text_integer(job, NULL, 1, UINT32_MAX, &number))
    m->job = (unsigned)number;
  return m->folder[0] && m->job;
}

/* ---- files ---- */

/* Opens a folder that belongs to this user; returns -1 if it does not. */
static int open_own(int in, const char *name) {
  struct stat info;
  const int fd = openat(in, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd >= 0 && fstat(fd, &info) == 0 && info.st_uid == geteuid()) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

static void remove_folder(int in, const char *name, int depth) {
  const int fd = open_own(in, name);
  DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
  if (!folder) {
    if (fd >= 0) close(fd);
    return;
  }
  for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    if (unlinkat(fd, entry->d_name, 0) != 0 && (errno == EISDIR || errno == EPERM) && depth > 0)
      remove_folder(fd, entry->d_name, depth - 1);
  }
  closedir(folder);
  unlinkat(in, name, AT_REMOVEDIR);
}

/* Sets the folder to Open MPI's default session folder. */
static void guess_folder(tws_mpirun_cleanup *m) {
  static const char *const names[] = {"OMPI_MCA_orte_tmpdir_base", "TMPDIR", "TEMP", "TMP"};
  char host[256] = "";
  const char *base = NULL;
  for (size_t i = 0; !base && i < sizeof names / sizeof *names; i++) base = getenv(names[i]);
  gethostname(host, sizeof host - 1);
  snprintf(m->folder, sizeof m->folder, "%.400s/ompi.%.255s.%u/pid.%d", base && *base ? base : "/tmp", host,
           (unsigned)geteuid(), (int)m->mpirun);
}

/* Removes the session folder and, if it has become empty, its parent, which other jobs share. */
static void remove_session(tws_mpirun_cleanup *m) {
  enum { DEPTH = 8 };
  char name[32];
  if (!m->folder[0]) guess_folder(m);
  snprintf(name, sizeof name, "pid.%d", (int)m->mpirun);
  char *own = strrchr(m->folder, '/');
  if (!own || strcmp(own + 1, name) != 0) return;
  *own = '\0';
  char *shared = strrchr(m->folder, '/');
  if (!shared || strncmp(shared + 1, "ompi.", 5) != 0) return;
  *shared = '\0';
  const int base = open(m->folder[0] ? m->folder : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int all = base >= 0 ? open_own(base, shared + 1) : -1;
  if (all >= 0) {
    remove_folder(all, name, DEPTH);
    snprintf(name, sizeof name, "jf.%u",
             m->job >> 16); /* the folder of the ranks' daemon, which exists if the hosts are other names of this
                             * machine */
    if (m->job) remove_folder(all, name, DEPTH);
    unlinkat(base, shared + 1, AT_REMOVEDIR);
    close(all);
  }
  if (base >= 0) close(base);
}

/* Returns 1 for the segments of this job's ranks, "vader_segment.HOST.UID.JOB.RANK" with JOB in hexadecimal. */
static int is_segment(const tws_mpirun_cleanup *m, const char *name) {
  char middle[64];
  snprintf(middle, sizeof middle, ".%u.%x.", (unsigned)geteuid(), m->job);
  const char *last = strrchr(name, '.');
  const size_t length = strlen(middle);
  if (strncmp(name, "vader_segment.", 14) != 0 || !last || (size_t)(last + 1 - name) < length) return 0;
  return strncmp(last + 1 - length, middle, length) == 0;
}

static void remove_segments(const tws_mpirun_cleanup *m) {
  struct stat info;
  DIR *folder = m->job ? opendir("/dev/shm") : NULL;
  for (const struct dirent *entry; folder && (entry = readdir(folder)) != NULL;)
    if (is_segment(m, entry->d_name) && fstatat(dirfd(folder), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        info.st_uid == geteuid())
      unlinkat(dirfd(folder), entry->d_name, 0);
  if (folder) closedir(folder);
}

/* ---- processes ---- */

/* Kills those children of this process that belong to the job; returns their number. */
static int end_processes(const char *value) {
  enum { MOST = 1024 };
  pid_t children[MOST];
  char of[1024];
  int left = 0;
  const int count = tws_process_children(getpid(), children, MOST);
  for (int i = 0; i < count; i++) {
    if (!tws_process_variable(children[i], TWS_LAUNCHER_VARIABLE, of, sizeof of) || strcmp(of, value) != 0) continue;
    kill(children[i], SIGKILL);
    left++;
    for (double until = tws_clock_s() + patience_s; tws_clock_s() < until && waitpid(children[i], NULL, WNOHANG) == 0;)
      usleep(2000);
  }
  return left;
}

void tws_mpirun_cleanup_run(tws_mpirun_cleanup *m, const char *value) {
  /* children of killed processes become children of this process, and are killed in the next round */
  for (int tries = 0; tries < 8 && end_processes(value) > 0; tries++) continue;
  if (m->mpirun > 0) remove_session(m);
  remove_segments(m);
  if (!m->adopts) prctl(PR_SET_CHILD_SUBREAPER, 0);
}
