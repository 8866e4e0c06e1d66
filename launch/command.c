#include "launch/command.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/number.h"
#include "base/system.h"
#include "launch/cores.h"
#include "launch/launch.h"
#include "launch/protocol.h"

tws_code tws_command_find(const char *name, tws_error *err) {
  const char *path = getenv("PATH");
  int found = strchr(name, '/') && access(name, X_OK) == 0;
  for (const char *at = path ? path : ""; !found && !strchr(name, '/') && *at;) {
    char candidate[4096];
    size_t length = strcspn(at, ":");
    snprintf(candidate, sizeof candidate, "%.*s/%s", (int)length, at, name);
    found = access(candidate, X_OK) == 0;
    at += length + (at[length] == ':');
  }
  if (found) return TWS_OK;
  return tws_fail(err, TWS_ENVIRONMENT, "give its path, or put it on PATH", "launch: there is no program \"%.200s\"",
                  name);
}

/* ---- inside a rank: the command, and what became of it ---- */

static pid_t command_pid; /* read by the signal handler below */

static void pass_on(int number) {
  if (command_pid > 0) kill(command_pid, number);
}

static void set_number(const char *name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

/* Sets the environment variables that torchrun and DeepSpeed's launcher give to their commands. */
static void set_environment(int rank, const tws_rank_place *p, const tws_command_job *job) {
  char devices[1024] = "";
  int n = 0;
  set_number("RANK", rank);
  set_number("WORLD_SIZE", p->ranks);
  set_number("LOCAL_RANK", p->local_rank);
  set_number("LOCAL_WORLD_SIZE", p->local_ranks);
  set_number("LOCAL_SIZE", p->local_ranks);
  set_number("CROSS_RANK", p->node);
  set_number("CROSS_SIZE", p->nodes);
  if (job->master_address) setenv("MASTER_ADDR", job->master_address, 1);
  if (job->master_port) set_number("MASTER_PORT", (int)job->master_port);
  setenv("MASTER_ADDR", p->master, 0);
  setenv("MASTER_PORT", "29500", 0);
  for (int i = 0; p->given && i < p->device_count && n < (int)sizeof devices; i++)
    n += snprintf(devices + n, sizeof devices - (size_t)n, "%s%d", i ? "," : "", p->device[i]);
  if (p->given) setenv("CUDA_VISIBLE_DEVICES", devices, 0);
}

/* Returns the position of a rank among all ranks of several hosts. */
static tws_rank_place place_in(const tws_hosts *world, int rank) {
  tws_rank_place p = {.ranks = tws_hosts_ranks(world), .nodes = world->count, .given = 1};
  const tws_host *host = tws_hosts_of_rank(world, rank, &p.local_rank);
  p.node = (int)(host - world->host);
  p.local_ranks = p.device_count = host->count;
  memcpy(p.device, host->slot, sizeof host->slot);
  snprintf(p.master, sizeof p.master, "%s", world->host[0].name);
  return p;
}

/* Finds the rank number in the variables of other launchers: Open MPI, MPICH and Intel MPI, MVAPICH, Slurm. */
static tws_code find_rank(const tws_command_job *job, int *rank, tws_error *err) {
  static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK",
                                      "SLURM_PROCID"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *text = getenv(names[i]);
    if (!text) continue;
    if (tws_text_int(text, NULL, 0, tws_hosts_ranks(job->world) - 1, rank)) return TWS_OK;
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "%s is \"%.40s\" in a job of %d ranks", names[i], text,
                    tws_hosts_ranks(job->world));
  }
  return tws_fail(err, TWS_USAGE, "--node-rank N starts the ranks of a node",
                  "--world-info: neither mpirun, mpiexec nor srun started this process as a rank");
}

/* Determines the rank number of this process in the world. */
static tws_code find_place(const tws_command_job *job, int *rank, tws_rank_place *place, tws_error *err) {
  *rank = tws_worker_rank();
  if (!job->world) {
    *place = *tws_worker_place();
    return TWS_OK;
  }
  if (job->node < 0) TWS_TRY(find_rank(job, rank, err));
  for (int h = 0; h < job->node && h < job->world->count; h++) *rank += job->world->host[h].count;
  if (*rank >= tws_hosts_ranks(job->world))
    return tws_fail(err, TWS_USAGE, NULL, "--world-info: rank %d in a job of %d ranks", *rank,
                    tws_hosts_ranks(job->world));
  *place = place_in(job->world, *rank);
  return TWS_OK;
}

/* Sets the environment and cores of the rank, for this process and the command that it executes. */
static tws_code prepare(int rank, const tws_rank_place *place, const tws_command_job *job, tws_error *err) {
  tws_cores all, own;
  set_environment(rank, place, job);
  if (!job->bind_cores) return TWS_OK;
  TWS_TRY(tws_cores_parse(job->core_list, &all, err));
  TWS_TRY(tws_cores_of_rank(&all, place->local_rank, place->local_ranks, &own, err));
  TWS_TRY(tws_cores_bind(&own, err));
  tws_launch_set_threads(own.count);
  return TWS_OK;
}

/* Executes the command; returns if there is no such program. */
static void become_command(char **argv) {
  signal(SIGTERM, SIG_DFL);
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_DFL);
  unsetenv(TWS_SECRET_VARIABLE);
  unsetenv(TWS_LAUNCHER_VARIABLE); /* a twinspeed that the command starts is no rank of this job */
  tws_mpi_skipped_devices();
  execvp(argv[0], argv);
}

tws_code tws_command_exec(char **argv, const tws_command_job *job, tws_error *err) {
  int rank;
  tws_rank_place place;
  TWS_TRY(tws_command_find(argv[0], err));
  TWS_TRY(find_place(job, &rank, &place, err));
  TWS_TRY(prepare(rank, &place, job, err));
  become_command(argv);
  return tws_fail(err, TWS_ENVIRONMENT, NULL, "%.200s: %s", argv[0], strerror(errno));
}

tws_code tws_command_run(char **argv, const tws_command_job *job, tws_error *err) {
  int status = 0, rank;
  tws_rank_place place;
  TWS_TRY(find_place(job, &rank, &place, err));
  TWS_TRY(prepare(rank, &place, job, err));
  signal(SIGTERM, pass_on);
  fflush(NULL);
  command_pid = fork();
  if (command_pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    become_command(argv);
    _exit(127);
  }
  if (command_pid < 0) return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot start a process: %s", strerror(errno));
  while (waitpid(command_pid, &status, 0) < 0)
    if (errno != EINTR) break;
  if (WIFSIGNALED(status))
    return tws_fail(err, TWS_RANK, NULL, "rank %d of the command was ended by signal %d (%s)", rank, WTERMSIG(status),
                    strsignal(WTERMSIG(status)));
  if (WEXITSTATUS(status))
    return tws_fail(err, TWS_RANK, NULL, "rank %d of the command ended with status %d", rank, WEXITSTATUS(status));
  return TWS_OK;
}
