/* A job of the program that runs while a test looks at its processes. */
#ifndef TWS_TESTS_RUNNING_JOB_H
#define TWS_TESTS_RUNNING_JOB_H

#include <signal.h>
#include <sys/wait.h>
#include "base/log.h"
#include "launch/process.h"
#include "launch/mpirun_cleanup.h"
#include "train.h"

#define RUNNING_MODEL \
  "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":4,\"n_embd\":64,\"n_positions\":64,\"vocab_size\":256}"
#define RUNNING_TRAIN \
  "train -m %s/model.json --seq 32 --micro-batch 2 --stage 1 --threads 1 --quiet --every 1 --data %s "

enum { RUNNING_RANKS = 4 };

typedef struct running_job {
  pid_t pid, mpirun; /* pid: process of the program; mpirun: process that started the ranks */
  int ranks;
  pid_t rank[RUNNING_RANKS]; /* 0: not found yet */
  tws_mpirun_cleanup remains;
  char out[96], err[96];
} running_job;

/* Starts a shell command that becomes a job of `ranks` ranks, in a process group of its own, with output and errors in
 * files of this name. */
static inline void running_start_command(running_job *j, const char *name, int ranks, const char *command) {
  *j = (running_job){.ranks = ranks};
  snprintf(j->out, sizeof j->out, "%s/%.24s.out", folder, name);
  snprintf(j->err, sizeof j->err, "%s/%.24s.err", folder, name);
  fflush(NULL);
  j->pid = fork();
  if (j->pid != 0) return;
  const int out = open(j->out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int err = open(j->err, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  setpgid(0, 0);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execl("/bin/sh", "sh", "-c", command, (char *)NULL);
  _exit(126);
}

/* `twinspeed LINE`. */
static inline void running_start(running_job *j, const char *name, int ranks, const char *line) {
  char command[4096];
  snprintf(command, sizeof command, "exec %s/twinspeed %s", TWS_BUILD_DIR, line);
  running_start_command(j, name, ranks, command);
}

static inline void running_find_below(running_job *j, pid_t parent, int depth) {
  pid_t children[64];
  char number[16];
  const int count = tws_process_children(parent, children, 64);
  for (int i = 0; i < count; i++) {
    const int named = tws_process_variable(children[i], "OMPI_COMM_WORLD_RANK", number, sizeof number);
    const int rank = j->ranks == 1 ? 0 : named ? atoi(number) : -1;
    if (rank >= 0 && rank < j->ranks && j->rank[rank] == 0) {
      j->rank[rank] = children[i];
      j->mpirun = j->remains.mpirun = parent;
      if (named) tws_mpirun_cleanup_identify(&j->remains, children[i]);
    }
    if (depth > 0 && rank < 0) running_find_below(j, children[i], depth - 1);
  }
}

/* Looks for the processes of the ranks. Returns 1 if those of all ranks are known. */
static inline int running_find(running_job *j) {
  int found = 0;
  for (int r = 0; r < j->ranks; r++) found += j->rank[r] > 0;
  if (found < j->ranks) running_find_below(j, j->pid, 12);
  return found == j->ranks;
}

static inline int running_has_line(const char *path, const char *start) {
  const int fd = open(path, O_RDONLY);
  char *text = fd >= 0 ? command_slurp(fd) : NULL;
  const int has = text && count_lines_with(text, start) > 0;
  free(text);
  return has;
}

/* Returns the job's standard error, cut to 2000 bytes because Check prints no more; the caller frees it. */
static inline char *running_errors(const running_job *j) {
  const int fd = open(j->err, O_RDONLY);
  char *text = fd >= 0 ? command_slurp(fd) : calloc(1, 1);
  if (strlen(text) > 2000) text[2000] = '\0';
  return text;
}

/* Writes a script that acts as a remote shell: all host names mean this machine, but each has its own TMPDIR. */
static inline void write_machines_shell(const char *path) {
  char text[512];
  snprintf(text, sizeof text, "#!/bin/sh\nexport TMPDIR=%s/$1\nmkdir -p $TMPDIR\nshift\nexec sh -c \"$*\"\n", folder);
  write_text(path, text);
  chmod(path, 0700);
}

static inline void running_kill(const running_job *j) {
  for (int r = 0; r < j->ranks; r++)
    if (j->rank[r] > 0) kill(j->rank[r], SIGKILL);
  kill(j->pid, SIGKILL);
  waitpid(j->pid, NULL, 0);
}

/* Waits until all ranks of the job are known and the job has printed a line that begins with `line`; fails after 60
 * s. */
static inline void running_reach(running_job *j, const char *line) {
  const double until = tws_clock_s() + 60;
  int there = 0, ended = 0;
  for (; !there && !ended && tws_clock_s() < until; usleep(10000)) {
    there = running_find(j) && running_has_line(j->out, line);
    ended = tws_process_state(j->pid, NULL) == 'Z';
  }
  if (there && !ended) return;
  char *err = running_errors(j);
  running_kill(j);
  ck_abort_msg("%s \"%s\": %s", ended ? "it has ended before" : "it does not reach", line, err);
}

/* Returns 1 if the job has ended, with its exit status in *status, or 128 plus the number of the signal that ended
 * it. */
static inline int running_has_ended(const running_job *j, int *status) {
  int how = 0;
  if (waitpid(j->pid, &how, WNOHANG) != j->pid) return 0;
  *status = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
  return 1;
}

/* Waits for the job and returns its exit status; fails if the job has not ended after 120 s. */
static inline int running_wait(const running_job *j) {
  int status = 0;
  for (const double until = tws_clock_s() + 120; !running_has_ended(j, &status); usleep(5000)) {
    if (tws_clock_s() < until) continue;
    char *err = running_errors(j);
    running_kill(j);
    ck_abort_msg("it hangs: %s", err);
  }
  return status;
}

/* Asserts that the job has left no process, no segment of shared memory and no folder of Open MPI on this machine. */
static inline void running_assert_gone(const running_job *j) {
  char path[512], host[256] = "";
  gethostname(host, sizeof host - 1);
  for (int r = 0; r < j->ranks; r++) {
    char state = 'R';
    for (int tries = 0; tries < 300 && j->rank[r] > 0 && state && state != 'Z'; tries++) {
      state = tws_process_state(j->rank[r], NULL);
      if (state && state != 'Z') usleep(10000);
    }
    ck_assert_msg(j->rank[r] == 0 || !state || state == 'Z', "rank %d still runs", r);
    snprintf(path, sizeof path, "/dev/shm/vader_segment.%.255s.%u.%x.%d", host, (unsigned)geteuid(), j->remains.job, r);
    if (j->remains.job) ck_assert_msg(access(path, F_OK) != 0, "it leaves %s", path);
  }
  if (j->remains.folder[0] && strstr(j->remains.folder, "/pid."))
    ck_assert_msg(access(j->remains.folder, F_OK) != 0, "it leaves %s", j->remains.folder);
}

#endif
