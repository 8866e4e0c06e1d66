#include "launch/health.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <gsl/gsl_version.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "base/host_memory.h"
#include "base/number.h"
#include "base/process.h"
#include "base/system.h"
#include "base/units.h"
#include "job/job.h"
#include "job/modules.h"

void tws_health_add(const tws_health_listener *listener, tws_health health, const char *what, const char *remedy,
                    const char *format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  const tws_finding finding = {health, what, text, health == TWS_HEALTH_OKAY ? NULL : remedy};
  listener->tell(listener->user, &finding);
}

int tws_health_run_program(const char *const *arguments, int with_errors, char *line, size_t size) {
  const tws_process process = {.arguments = arguments, .limit_s = TWS_HEALTH_LIMIT_S, .with_errors = with_errors};
  return tws_process_line(&process, line, size);
}

static void examine_machine(const tws_health_listener *p) {
  tws_system s;
  char total[32], available[32];
  tws_system_read(&s);
  tws_health_add(p, s.cores_usable < s.cores_online ? TWS_HEALTH_WARN : TWS_HEALTH_OKAY, "cores",
                 "this process is confined (taskset or a cgroup); ranks x threads should not exceed what is usable",
                 "%.3g usable of %d, %s", s.cores_usable, s.cores_online, s.processor);
  tws_host_memory memory = tws_host_memory_read();
  tws_health_add(p, memory.limited ? TWS_HEALTH_WARN : TWS_HEALTH_OKAY, "memory",
                 "a control group limits it; estimates for this host count with that", "%s%s, %s available",
                 tws_format_bytes((double)memory.total_bytes, total, sizeof total), memory.limited ? " (limit)" : "",
                 tws_format_bytes((double)memory.available_bytes, available, sizeof available));
  struct statvfs shm;
  if (statvfs("/dev/shm", &shm) == 0) {
    double bytes = (double)shm.f_frsize * (double)shm.f_bavail;
    tws_health_add(p, bytes < 64 * TWS_MIB ? TWS_HEALTH_FAIL : TWS_HEALTH_OKAY, "/dev/shm",
                   "MPI passes messages through it: docker run --shm-size=1g", "%s free",
                   tws_format_bytes(bytes, total, sizeof total));
  } else {
    tws_health_add(p, TWS_HEALTH_FAIL, "/dev/shm", "MPI passes messages through it: mount a tmpfs there",
                   "not mounted");
  }
}

static void examine_version(const tws_health_listener *p, const char *what, const char *program, const char *remedy,
                            tws_health absent) {
  const char *const arguments[] = {program, "--version", NULL};
  char line[256];
  if (tws_health_run_program(arguments, 0, line, sizeof line))
    tws_health_add(p, TWS_HEALTH_OKAY, what, NULL, "%s", line);
  else
    tws_health_add(p, absent, what, remedy, "not found");
}

/* Reads sockets, threads a core and NUMA nodes from the output of lscpu, such as "Socket(s):   2". */
static void examine_topology(const tws_health_listener *p) {
  static const struct {
    const char *key, *name;
  } facts[] = {{"Thread(s) per core:", "threads per core"}, {"Socket(s):", "sockets"}, {"NUMA node(s):", "NUMA nodes"}};
  const char *const arguments[] = {"lscpu", NULL};
  const tws_process process = {.arguments = arguments, .limit_s = TWS_HEALTH_LIMIT_S};
  tws_process_end end;
  tws_text found = {0};
  const int ran = tws_process_run(&process, &end, NULL) == TWS_OK && end.status == 0 && end.output.data;
  for (const char *line = ran ? end.output.data : ""; *line; line += strcspn(line, "\n"), line += *line == '\n')
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
      const size_t key = strlen(facts[i].key);
      int count;
      const char *rest;
      if (strncmp(line, facts[i].key, key) == 0 && tws_text_int(line + key, &rest, 0, INT32_MAX, &count))
        tws_text_add(&found, "%s%s %d", found.length ? ", " : "", facts[i].name, count);
    }
  tws_text_free(&end.output);
  tws_health_add(p, found.length ? TWS_HEALTH_OKAY : TWS_HEALTH_WARN, "topology", "apt-get install util-linux", "%s",
                 found.length ? found.data : "not found");
  tws_text_free(&found);
}

static void examine_modules(const tws_health_listener *p, const char *version) {
  tws_error err = {0};
  char path[4096];
  const tws_sim_api *sim;
  tws_health_add(p, TWS_HEALTH_OKAY, "planning", NULL, "twinspeed %s, cJSON %s, GSL %s", version, cJSON_Version(),
                 GSL_VERSION);
  if (tws_sim_load(&sim, &err) == TWS_OK)
    tws_health_add(p, TWS_HEALTH_OKAY, "simulator", NULL, "%s (%s)", sim->description(),
                   tws_module_path("twinspeed_sim.so", path, (int)sizeof path));
  else
    tws_health_add(p, TWS_HEALTH_FAIL, "simulator", err.hint, "%s", err.message);
  const tws_real_api *real;
  if (tws_real_load(&real, &err) == TWS_OK)
    tws_health_add(p, TWS_HEALTH_OKAY, "engine", NULL, "%s (%s)", real->description(),
                   tws_module_path("twinspeed_real.so", path, (int)sizeof path));
  else
    tws_health_add(p, TWS_HEALTH_FAIL, "engine", err.hint, "%s", err.message);
}

static void examine_gpu(const tws_health_listener *p) {
  int number = 0;
  const int gpus = tws_system_gpus(&number);
  if (gpus == 0) {
    tws_health_add(p, TWS_HEALTH_WARN, "gpu", "planning and simulating GPUs works without one",
                   "no NVIDIA GPU or driver");
    return;
  }
  tws_health_add(p, TWS_HEALTH_OKAY, "gpu", NULL, "%d NVIDIA GPU%s, driver for CUDA %d.%d", gpus, gpus > 1 ? "s" : "",
                 number / 1000, number % 1000 / 10);
  void *nccl = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  int version = 0;
  int (*ask)(int *) = NULL;
  if (nccl) *(void **)(void *)&ask = dlsym(nccl, "ncclGetVersion");
  if (ask && ask(&version) == 0)
    tws_health_add(p, TWS_HEALTH_OKAY, "NCCL", NULL, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  else
    tws_health_add(p, TWS_HEALTH_FAIL, "NCCL", "apt-get install libnccl2, or LD_LIBRARY_PATH=... to where it is",
                   "not found");
  if (nccl) dlclose(nccl);
}

/* ---- limits of the shell and the system ---- */

static void examine_limit(const tws_health_listener *p, const char *what, int resource, double least, double unit,
                          const char *unit_name, const char *remedy) {
  struct rlimit limit;
  if (getrlimit((__rlimit_resource_t)resource, &limit) != 0) return;
  if (limit.rlim_cur == RLIM_INFINITY)
    tws_health_add(p, TWS_HEALTH_OKAY, what, NULL, "unlimited");
  else
    tws_health_add(p, (double)limit.rlim_cur < least ? TWS_HEALTH_WARN : TWS_HEALTH_OKAY, what, remedy, "%.6g%s",
                   (double)limit.rlim_cur / unit, unit_name);
}

static void examine_limits(const tws_health_listener *p, int gpus) {
  double most;
  examine_limit(p, "memlock", RLIMIT_MEMLOCK, gpus > 0 ? 1024 * TWS_MIB : 0, TWS_MIB, " MiB may be pinned",
                "pinned host memory needs it: ulimit -l unlimited (docker run --ulimit memlock=-1)");
  examine_limit(p, "open files", RLIMIT_NOFILE, 1024, 1, "", "a rank takes about 8: ulimit -n 65536");
  examine_limit(p, "processes", RLIMIT_NPROC, 512, 1, "", "ranks and their threads count: ulimit -u 4096");
  if (tws_system_most_processes(&most))
    tws_health_add(p, most < 512 ? TWS_HEALTH_WARN : TWS_HEALTH_OKAY, "cgroup pids", "docker run --pids-limit -1",
                   "at most %.0f processes and threads", most);
}

static void examine_disk(const tws_health_listener *p, const char *what, const char *path) {
  struct statvfs disk;
  char text[32];
  if (statvfs(path, &disk) != 0) {
    tws_health_add(p, TWS_HEALTH_FAIL, what, "name a folder that is there", "%s: %s", path, strerror(errno));
    return;
  }
  const double bytes = (double)disk.f_frsize * (double)disk.f_bavail;
  const int writable = access(path, W_OK) == 0;
  tws_health_add(p, !writable || bytes < 1024 * TWS_MIB ? TWS_HEALTH_WARN : TWS_HEALTH_OKAY, what,
                 writable ? "checkpoints and traces need room: `df -h` says where there is some"
                          : "results and checkpoints cannot be written here: cd somewhere else",
                 "%s free in %s%s", tws_format_bytes(bytes, text, sizeof text), path, writable ? "" : ", not writable");
}

/* Returns 1 if this process can bind the port. Ranks on other nodes connect to a port that the kernel chooses; commands
 * that are launched use port 29500 for their rendezvous. */
static int can_bind(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int ok = s >= 0 && bind(s, (struct sockaddr *)&address, sizeof address) == 0 && listen(s, 1) == 0;
  if (s >= 0) close(s);
  return ok;
}

static void examine_network(const tws_health_listener *p) {
  struct timex clock = {0};
  char line[256];
  if (!can_bind(0))
    tws_health_add(p, TWS_HEALTH_FAIL, "ports",
                   "ranks on other nodes need one: look at seccomp and the network of the container",
                   "no TCP port can be opened");
  else
    tws_health_add(p, can_bind(29500) ? TWS_HEALTH_OKAY : TWS_HEALTH_WARN, "ports",
                   "MASTER_PORT=29501 twinspeed launch ...",
                   can_bind(29500) ? "can be opened, 29500 is free" : "can be opened, 29500 is in use");
  const int state = adjtimex(&clock);
  tws_health_add(p, state == TIME_ERROR ? TWS_HEALTH_WARN : TWS_HEALTH_OKAY, "clock",
                 "timedatectl set-ntp true (or chronyd)",
                 state == TIME_ERROR ? "not synchronised: traces of several nodes may not fit together"
                                     : "synchronised, within %.3g ms",
                 (double)clock.esterror * 1e-3);
  const char *const ssh[] = {"ssh", "-V", NULL};
  if (tws_health_run_program(ssh, 1, line, sizeof line))
    tws_health_add(p, TWS_HEALTH_OKAY, "ssh", NULL, "%s", line);
  else
    tws_health_add(p, TWS_HEALTH_WARN, "ssh", "apt-get install openssh-client; only several nodes need it",
                   "not found");
}

/* Runs a tiny job through planning, verifier and ledger, to test the core on this machine. */
static void examine_core(const tws_health_listener *p) {
  tws_error err = {0};
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  spec.model = "gpt2";
  spec.cluster = "dgx-a100";
  spec.stage = 3;
  spec.ranks = 2;
  tws_job *job = NULL;
  tws_plan *plans[2] = {NULL, NULL};
  tws_ledger ledger;
  double start = tws_clock_s();
  tws_code code = tws_job_load(&spec, &job, &err);
  for (int i = 0; i < 2 && code == TWS_OK; i++) code = tws_job_plan(job, i, &plans[i], &err);
  if (code == TWS_OK) code = tws_plans_verify((const tws_plan *const *)plans, 2, &err);
  if (code == TWS_OK) code = tws_ledger_read(plans[0], &ledger, &err);
  char took[32];
  if (code == TWS_OK)
    tws_health_add(p, TWS_HEALTH_OKAY, "self test", NULL,
                   "gpt2, ZeRO-3, 2 ranks: %u operations planned and verified in %s", plans[0]->op_count,
                   tws_format_seconds(tws_clock_s() - start, took, sizeof took));
  else
    tws_health_add(p, TWS_HEALTH_FAIL, "self test", "please report this", "%s", err.message);
  tws_plan_destroy(plans[0]);
  tws_plan_destroy(plans[1]);
  tws_job_destroy(job);
}

void tws_health_machine(const tws_health_listener *p, const char *version) {
  examine_machine(p);
  examine_modules(p, version);
  examine_version(p, "mpirun", "mpirun", "apt-get install openmpi-bin", TWS_HEALTH_FAIL);
  examine_version(p, "compiler", "cc", "apt-get install build-essential; only building needs it", TWS_HEALTH_WARN);
  examine_topology(p);
  examine_version(p, "gnuplot", "gnuplot", "apt-get install gnuplot-nox; only plots need it", TWS_HEALTH_WARN);
  examine_gpu(p);
  examine_limits(p, tws_system_gpus(NULL));
  examine_disk(p, "disk", ".");
  examine_disk(p, "disk for MPI", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
  examine_network(p);
  examine_core(p);
}
