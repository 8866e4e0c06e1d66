/* Sets up a job's launcher, and starts mpirun or srun. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/memory.h"
#include "base/output_file.h"
#include "launch/addresses.h"
#include "launch/launch_job.h"
#include "launch/session.h"
#include "launch/starter.h"

/* Listens for ranks on other nodes, on the addresses from which this machine reaches their hosts. */
static tws_code open_remote_listener(tws_launch_job *j, tws_error *err) {
  struct in_addr address[TWS_MOST_ADDRESSES];
  const char *unknown;
  if (!tws_secret_make(j->secret))
    return tws_fail(err, TWS_ENVIRONMENT, TWS_SEAL_HINT,
                    "ranks on several machines need libsodium, without which this program was built");
  const int count = tws_addresses_for_hosts(j->options->hosts, tws_starter_shell(j->options), address, &unknown);
  if (unknown)
    tws_log_write(j->options->log, TWS_LOG_DEBUG,
                  "this machine knows no address of %s: ranks may connect to all of its addresses", unknown);
  return tws_rank_listener_open_remote(j->options->ranks, address, count, j->secret, j->name, sizeof j->name,
                                       &j->strangers, err);
}

static tws_code open_listener(tws_launch_job *j, tws_error *err) {
  if (j->remote) return open_remote_listener(j, err);
  return tws_rank_listener_open_local(j->options->ranks, j->name, sizeof j->name, &j->strangers, err);
}

static tws_code open_files(tws_launch_job *j, tws_error *err) {
  size_t board = (size_t)j->options->ranks * TWS_BOARD_LINE;
  j->files[0] = j->options->silent ? open("/dev/null", O_WRONLY | O_CLOEXEC)
                                   : fcntl(j->options->to_stderr ? STDERR_FILENO : STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  j->files[1] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  j->files[2] = memfd_create("twinspeed-board", MFD_CLOEXEC);
  j->noise = memfd_create("twinspeed-mpirun", MFD_CLOEXEC);
  /* this program was started with a closed output: the ranks receive /dev/null */
  if (j->files[0] < 0) j->files[0] = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (j->files[1] < 0) j->files[1] = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (j->files[0] < 0 || j->files[1] < 0 || j->files[2] < 0 || j->noise < 0 ||
      ftruncate(j->files[2], (off_t)board) != 0)
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot open the ranks' files: %s", strerror(errno));
  j->board = mmap(NULL, board, PROT_READ | PROT_WRITE, MAP_SHARED, j->files[2], 0);
  if (j->board == MAP_FAILED) {
    j->board = NULL;
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot map the ranks' board: %s", strerror(errno));
  }
  return TWS_OK;
}

static tws_code open_signals(tws_launch_job *j, tws_error *err) {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGINT);
  sigaddset(&mask, SIGTERM);
  sigaddset(&mask, SIGHUP);
  sigaddset(&mask, SIGCHLD);
  sigprocmask(SIG_BLOCK, &mask, &j->old_mask);
  signal(SIGCHLD, SIG_DFL); /* if a parent process ignores SIGCHLD, mpirun's end would not be noticed */
  j->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  return j->signals >= 0 ? TWS_OK : tws_fail(err, TWS_ENVIRONMENT, NULL, "signalfd: %s", strerror(errno));
}

/* Checks the limits of processes and files: if they are too low, Open MPI fails without a useful message. */
static tws_code check_limits(int ranks, tws_error *err) {
  struct rlimit files, size, space;
  const rlim_t needed = 64 + 8 * (rlim_t)ranks, room = (rlim_t)16 << 20, addresses = (rlim_t)256 << 20;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < needed) {
    const rlim_t allowed = files.rlim_cur;
    files.rlim_cur = files.rlim_max == RLIM_INFINITY || files.rlim_max > needed ? needed : files.rlim_max;
    if (files.rlim_cur < needed || setrlimit(RLIMIT_NOFILE, &files) != 0)
      return tws_fail(err, TWS_ENVIRONMENT, "raise the limit, or use one rank: -n 1",
                      "%d ranks need about %llu open files, and the limit is %llu (ulimit -n)", ranks,
                      (unsigned long long)needed, (unsigned long long)allowed);
  }
  if (getrlimit(RLIMIT_FSIZE, &size) == 0 && size.rlim_cur != RLIM_INFINITY && size.rlim_cur < room)
    return tws_fail(err, TWS_ENVIRONMENT, "raise the limit, or use one rank: -n 1",
                    "Open MPI needs files of some MiB for %d ranks, and the limit is %llu bytes (ulimit -f)", ranks,
                    (unsigned long long)size.rlim_cur);
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY && space.rlim_cur < addresses)
    return tws_fail(err, TWS_ENVIRONMENT, "raise the limit (ulimit -v unlimited), or use one rank: -n 1",
                    "Open MPI needs %llu MiB of address space for each rank, and the limit is %llu KiB (ulimit -v)",
                    (unsigned long long)addresses >> 20, (unsigned long long)space.rlim_cur >> 10);
  return TWS_OK;
}

static tws_code open_logs(tws_launch_job *j, tws_error *err) {
  const char *folder = j->options->log_folder;
  char path[4096];
  if (!folder) return TWS_OK;
  if (mkdir(folder, 0777) != 0 && errno != EEXIST)
    return tws_fail(err, TWS_IO, NULL, "%s: %s", folder, strerror(errno));
  for (int r = 0; r < j->options->ranks; r++) {
    snprintf(path, sizeof path, "%s/rank-%d.log", folder, r);
    TWS_TRY(tws_growing_file(path, &j->logs[r], err));
  }
  return TWS_OK;
}

tws_code tws_launch_set_up(tws_launch_job *j, tws_error *err) {
  size_t ranks = (size_t)j->options->ranks;
  j->peers = tws_calloc(ranks, sizeof *j->peers);
  j->polls = tws_calloc(ranks + TWS_LAUNCH_POLLS, sizeof *j->polls);
  j->logs = tws_calloc(ranks, sizeof *j->logs);
  if (!j->peers || !j->polls || !j->logs) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (size_t r = 0; r < ranks; r++) j->peers[r].link.socket = j->logs[r] = -1;
  TWS_TRY(check_limits(j->options->ranks, err));
  if (j->options->launcher != TWS_LAUNCHER_SRUN) TWS_TRY(tws_session_check(err));
  TWS_TRY(open_logs(j, err));
  TWS_TRY(open_listener(j, err));
  TWS_TRY(open_files(j, err));
  TWS_TRY(tws_printed_open(j->options->ranks, j->files, j->logs, &j->printed, err));
  const tws_watch_setup watch = {.ranks = j->options->ranks, .deadline_s = j->options->deadline_s, .board = j->board};
  TWS_TRY(tws_watch_create(&watch, &j->watch, err));
  return open_signals(j, err);
}

void tws_launch_tear_down(tws_launch_job *j) {
  for (int r = 0; j->peers && r < j->options->ranks; r++) tws_link_close(&j->peers[r].link);
  tws_printed_close(j->printed);
  for (int r = 0; j->logs && r < j->options->ranks; r++)
    if (j->logs[r] >= 0) close(j->logs[r]);
  for (int i = 0; i < TWS_LAUNCH_FILES; i++)
    if (j->files[i] >= 0) close(j->files[i]);
  if (j->board) munmap(j->board, (size_t)j->options->ranks * TWS_BOARD_LINE);
  tws_rank_listener_close(j->strangers);
  tws_secret_wipe(j->secret, sizeof j->secret);
  if (j->noise >= 0) close(j->noise);
  if (j->signals >= 0) {
    close(j->signals);
    sigprocmask(SIG_SETMASK, &j->old_mask, NULL);
  }
  tws_watch_destroy(j->watch);
  tws_free(j->peers);
  tws_free(j->logs);
  tws_free(j->polls);
}

/* ---- mpirun ---- */

/* In the child: becomes mpirun, in a process group of its own, so that Ctrl-C reaches it through the launcher only. */
static void become_mpirun(const tws_launch_job *j, const char **command, pid_t launcher) {
  int input = j->remote && j->options->launcher == TWS_LAUNCHER_SRUN ? tws_starter_input(j->secret) : -1;
  if (input < 0) input = open("/dev/null", O_RDONLY);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != launcher) _exit(127);
  if (input >= 0) dup2(input, STDIN_FILENO);
  dup2(j->noise, STDOUT_FILENO); /* the pipe for mpirun's own output; output of ranks arrives through their sockets */
  dup2(j->noise, STDERR_FILENO);
  setenv(TWS_LAUNCHER_VARIABLE, j->name, 1);
  unsetenv(TWS_SECRET_VARIABLE);
  if (j->remote && j->options->launcher != TWS_LAUNCHER_SRUN) setenv(TWS_SECRET_VARIABLE, j->secret, 1);
  tws_launch_set_threads(j->options->threads);
  if (j->options->launcher != TWS_LAUNCHER_SRUN) tws_starter_set_environment();
  sigprocmask(SIG_SETMASK, &j->old_mask, NULL);
  signal(SIGPIPE, SIG_DFL);
  execv(command[0], (char *const *)command);
  _exit(127);
}

tws_code tws_launch_start(tws_launch_job *j, tws_error *err) {
  const char **command = NULL;
  tws_arena *arena = tws_arena_create();
  tws_code code =
      arena ? tws_launch_command(j->options, arena, &command, err) : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (code == TWS_OK) {
    fflush(NULL);
    pid_t launcher = getpid();
    tws_mpirun_cleanup_begin(&j->remains);
    j->mpirun = fork();
    if (j->mpirun == 0) become_mpirun(j, command, launcher);
    if (j->mpirun < 0) code = tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot start a process: %s", strerror(errno));
    if (j->mpirun > 0) setpgid(j->mpirun, j->mpirun); /* called in parent and child, since either may run first */
    j->remains.mpirun = j->mpirun > 0 ? j->mpirun : 0;
    tws_watch_started(j->watch, j->remains.mpirun);
  }
  tws_arena_destroy(arena);
  return code;
}
