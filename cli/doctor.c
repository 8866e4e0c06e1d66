/* twinspeed doctor: what this machine has, what is missing, and the remedy. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <gsl/gsl_version.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>
#include "base/host_memory.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/launch_options.h"
#include "job/job.h"
#include "job/modules.h"
#include "base/system.h"
#include "cli/version.h"

typedef enum health { OKAY, WARN, FAIL } health;

typedef struct options {
  tws_launch_flags flags;
} options;

typedef struct patient {
  const tws_cli *cli;
  cJSON *findings; /* NULL: print text */
  int bad;
} patient;

static void add_finding(patient *p, health h, const char *what, const char *remedy, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
static void add_finding(patient *p, health h, const char *what, const char *remedy, const char *format, ...) {
  static const char *const words[] = {"OKAY", "WARN", "FAIL"};
  char text[512];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  p->bad += h == FAIL;
  if (p->findings) {
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "what", what);
    cJSON_AddStringToObject(one, "state", words[h]);
    cJSON_AddStringToObject(one, "found", text);
    if (h != OKAY && remedy) cJSON_AddStringToObject(one, "remedy", remedy);
    cJSON_AddItemToArray(p->findings, one);
    return;
  }
  tws_style_name style = h == OKAY ? TWS_GREEN : h == FAIL ? TWS_RED : TWS_BOLD;
  tws_out_wrapped(21, "%s%-6s%s%-14s %s", tws_style(p->cli, style), words[h], tws_style(p->cli, TWS_PLAIN_OUTPUT), what,
                  text);
  if (h != OKAY && remedy) tws_out_wrapped(24, "%20s -> %s", "", remedy);
}

static void examine_machine(patient *p) {
  tws_system s;
  char total[32], available[32];
  tws_system_read(&s);
  add_finding(p, s.cores_usable < s.cores_online ? WARN : OKAY, "cores",
              "this process is confined (taskset or a cgroup); ranks x threads should not exceed what is usable",
              "%.3g usable of %d, %s", s.cores_usable, s.cores_online, s.processor);
  tws_host_memory memory = tws_host_memory_read();
  add_finding(p, memory.limited ? WARN : OKAY, "memory",
              "a control group limits it; estimates for this host count with that", "%s%s, %s available",
              tws_format_bytes((double)memory.total_bytes, total, sizeof total), memory.limited ? " (limit)" : "",
              tws_format_bytes((double)memory.available_bytes, available, sizeof available));
  struct statvfs shm;
  if (statvfs("/dev/shm", &shm) == 0) {
    double bytes = (double)shm.f_frsize * (double)shm.f_bavail;
    add_finding(p, bytes < 64 * TWS_MIB ? FAIL : OKAY, "/dev/shm",
                "MPI passes messages through it: docker run --shm-size=1g", "%s free",
                tws_format_bytes(bytes, total, sizeof total));
  } else {
    add_finding(p, FAIL, "/dev/shm", "MPI passes messages through it: mount a tmpfs there", "not mounted");
  }
}

static void examine_command(patient *p, const char *what, const char *command, const char *remedy, health absent) {
  char line[256];
  if (tws_command_line(command, line, sizeof line))
    add_finding(p, OKAY, what, NULL, "%s", line);
  else
    add_finding(p, absent, what, remedy, "not found");
}

static void examine_modules(patient *p) {
  tws_error err = {0};
  char path[4096];
  const tws_sim_api *sim;
  add_finding(p, OKAY, "planning", NULL, "twinspeed %s, cJSON %s, GSL %s", TWS_VERSION, cJSON_Version(), GSL_VERSION);
  if (tws_sim_load(&sim, &err) == TWS_OK)
    add_finding(p, OKAY, "simulator", NULL, "%s (%s)", sim->description(),
                tws_module_path("twinspeed_sim.so", path, (int)sizeof path));
  else
    add_finding(p, FAIL, "simulator", err.hint, "%s", err.message);
  const tws_real_api *real;
  if (tws_real_load(&real, &err) == TWS_OK)
    add_finding(p, OKAY, "engine", NULL, "%s (%s)", real->description(),
                tws_module_path("twinspeed_real.so", path, (int)sizeof path));
  else
    add_finding(p, FAIL, "engine", err.hint, "%s", err.message);
}

static void examine_gpu(patient *p) {
  int number = 0;
  const int gpus = tws_system_gpus(&number);
  if (gpus == 0) {
    add_finding(p, WARN, "gpu", "planning and simulating GPUs works without one", "no NVIDIA GPU or driver");
    return;
  }
  add_finding(p, OKAY, "gpu", NULL, "%d NVIDIA GPU%s, driver for CUDA %d.%d", gpus, gpus > 1 ? "s" : "", number / 1000,
              number % 1000 / 10);
  void *nccl = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  int version = 0;
  int (*ask)(int *) = NULL;
  if (nccl) *(void **)(void *)&ask = dlsym(nccl, "ncclGetVersion");
  if (ask && ask(&version) == 0)
    add_finding(p, OKAY, "NCCL", NULL, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  else
    add_finding(p, FAIL, "NCCL", "apt-get install libnccl2, or LD_LIBRARY_PATH=... to where it is", "not found");
  if (nccl) dlclose(nccl);
}

/* ---- what the shell and the system allow ---- */

static void examine_limit(patient *p, const char *what, int resource, double least, double unit, const char *unit_name,
                          const char *remedy) {
  struct rlimit limit;
  if (getrlimit((__rlimit_resource_t)resource, &limit) != 0) return;
  if (limit.rlim_cur == RLIM_INFINITY)
    add_finding(p, OKAY, what, NULL, "unlimited");
  else
    add_finding(p, (double)limit.rlim_cur < least ? WARN : OKAY, what, remedy, "%.6g%s", (double)limit.rlim_cur / unit,
                unit_name);
}

static void examine_limits(patient *p, int gpus) {
  char pids[64];
  examine_limit(p, "memlock", RLIMIT_MEMLOCK, gpus > 0 ? 1024 * TWS_MIB : 0, TWS_MIB, " MiB may be pinned",
                "pinned host memory needs it: ulimit -l unlimited (docker run --ulimit memlock=-1)");
  examine_limit(p, "open files", RLIMIT_NOFILE, 1024, 1, "", "a rank takes about 8: ulimit -n 65536");
  examine_limit(p, "processes", RLIMIT_NPROC, 512, 1, "", "ranks and their threads count: ulimit -u 4096");
  if (tws_command_line("cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null", pids, sizeof pids) &&
      strcmp(pids, "max") != 0)
    add_finding(p, atof(pids) < 512 ? WARN : OKAY, "cgroup pids", "docker run --pids-limit -1",
                "at most %s processes and threads", pids);
}

static void examine_disk(patient *p, const char *what, const char *path) {
  struct statvfs disk;
  char text[32];
  if (statvfs(path, &disk) != 0) {
    add_finding(p, FAIL, what, "name a folder that is there", "%s: %s", path, strerror(errno));
    return;
  }
  const double bytes = (double)disk.f_frsize * (double)disk.f_bavail;
  const int writable = access(path, W_OK) == 0;
  add_finding(p, !writable || bytes < 1024 * TWS_MIB ? WARN : OKAY, what,
              writable ? "checkpoints and traces need room: `df -h` says where there is some"
                       : "results and checkpoints cannot be written here: cd somewhere else",
              "%s free in %s%s", tws_format_bytes(bytes, text, sizeof text), path, writable ? "" : ", not writable");
}

/* Ranks on other nodes come through a port that the kernel chooses; rendezvous of launched commands is at 29500. */
static int can_bind(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int ok = s >= 0 && bind(s, (struct sockaddr *)&address, sizeof address) == 0 && listen(s, 1) == 0;
  if (s >= 0) close(s);
  return ok;
}

static void examine_network(patient *p) {
  struct timex clock = {0};
  char line[256];
  if (!can_bind(0))
    add_finding(p, FAIL, "ports", "ranks on other nodes need one: look at seccomp and the network of the container",
                "no TCP port can be opened");
  else
    add_finding(p, can_bind(29500) ? OKAY : WARN, "ports", "MASTER_PORT=29501 twinspeed launch ...",
                can_bind(29500) ? "can be opened, 29500 is free" : "can be opened, 29500 is in use");
  const int state = adjtimex(&clock);
  add_finding(p, state == TIME_ERROR ? WARN : OKAY, "clock", "timedatectl set-ntp true (or chronyd)",
              state == TIME_ERROR ? "not synchronised: traces of several nodes may not fit together"
                                  : "synchronised, within %.3g ms",
              (double)clock.esterror * 1e-3);
  if (tws_command_line("ssh -V 2>&1", line, sizeof line))
    add_finding(p, OKAY, "ssh", NULL, "%s", line);
  else
    add_finding(p, WARN, "ssh", "apt-get install openssh-client; only several nodes need it", "not found");
}

/* Each host of a hostfile: is it reached without a password, is the same program there, does its clock agree? */
static void examine_host(patient *p, const options *o, const char *host) {
  char command[1024], line[256], program[512], mine[256];
  const char *shell = o->flags.remote_shell ? o->flags.remote_shell : "ssh -o BatchMode=yes -o ConnectTimeout=5";
  tws_program_path(program, (int)sizeof program);
  struct timespec before, after;
  clock_gettime(CLOCK_REALTIME, &before);
  snprintf(command, sizeof command, "timeout 20 %s %s date +%%s.%%N 2>/dev/null </dev/null", shell, host);
  const int reached = tws_command_line(command, line, sizeof line);
  clock_gettime(CLOCK_REALTIME, &after);
  if (!reached) {
    add_finding(p, FAIL, host, "ssh-copy-id HOST; --remote-shell names another way", "cannot be reached by %s", shell);
    return;
  }
  const double first = (double)before.tv_sec + 1e-9 * (double)before.tv_nsec, there = atof(line);
  const double last = (double)after.tv_sec + 1e-9 * (double)after.tv_nsec;
  const double skew = there < first ? there - first : there > last ? there - last : 0; /* beyond what the way took */
  snprintf(command, sizeof command, "timeout 20 %s %s %s --version 2>/dev/null </dev/null", shell, host, program);
  const int same = tws_command_line(command, line, sizeof line);
  snprintf(command, sizeof command, "%s --version", program);
  tws_command_line(command, mine, sizeof mine);
  if (!same || strcmp(line, mine) != 0)
    add_finding(p, FAIL, host, "install the same version at the same place on every node", "%s: %s", program,
                same ? line : "is not there");
  else
    add_finding(p, skew > 0.5 || skew < -0.5 ? WARN : OKAY, host, "timedatectl set-ntp true there and here",
                "reached, the same program, clock %+.3f s", skew);
}

static tws_code examine_hosts(patient *p, const options *o, tws_error *err) {
  tws_hosts hosts;
  tws_launch_options launch = {0};
  if (!tws_launch_flags_given(&o->flags)) return TWS_OK;
  tws_arena *arena = tws_arena_create();
  tws_code code = arena ? tws_launch_flags_read(&o->flags, 0, arena, &hosts, &launch, err)
                        : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int h = 0; code == TWS_OK && h < hosts.count; h++) examine_host(p, o, hosts.host[h].name);
  tws_arena_destroy(arena);
  return code;
}

/* A tiny job through planning, verifier and ledger: does the core hold together on this machine? */
static void examine_core(patient *p) {
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
    add_finding(p, OKAY, "self test", NULL, "gpt2, ZeRO-3, 2 ranks: %u operations planned and verified in %s",
                plans[0]->op_count, tws_format_seconds(tws_clock_s() - start, took, sizeof took));
  else
    add_finding(p, FAIL, "self test", "please report this", "%s", err.message);
  tws_plan_destroy(plans[0]);
  tws_plan_destroy(plans[1]);
  tws_job_destroy(job);
}

static tws_code run_doctor(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  (void)argc;
  (void)argv;
  patient p = {.cli = cli, .findings = cli->json ? cJSON_CreateArray() : NULL};
  examine_machine(&p);
  examine_modules(&p);
  examine_command(&p, "mpirun", "mpirun --version 2>/dev/null", "apt-get install openmpi-bin", FAIL);
  examine_command(&p, "compiler", "cc --version 2>/dev/null", "apt-get install build-essential; only building needs it",
                  WARN);
  examine_command(
      &p, "topology",
      "lscpu 2>/dev/null | awk -F: '/^Socket|^NUMA node\\(s|^Thread/ {gsub(/^ +/, \"\", $2); s = s (s ? \", \" : "
      "\"\") tolower($1) \" \" $2} END {if (s) print s}'",
      "apt-get install util-linux", WARN);
  examine_command(&p, "gnuplot", "gnuplot --version 2>/dev/null", "apt-get install gnuplot-nox; only plots need it",
                  WARN);
  examine_gpu(&p);
  examine_limits(&p, tws_system_gpus(NULL));
  examine_disk(&p, "disk", ".");
  examine_disk(&p, "disk for MPI", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
  examine_network(&p);
  examine_core(&p);
  const tws_code asked = examine_hosts(&p, raw, err);
  if (asked != TWS_OK) {
    cJSON_Delete(p.findings);
    return asked;
  }
  if (cli->json) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "schema", "twinspeed-doctor-2");
    cJSON_AddBoolToObject(root, "healthy", p.bad == 0);
    cJSON_AddItemToObject(root, "findings", p.findings);
    TWS_TRY(tws_out_json(root, err));
  }
  if (p.bad)
    return tws_fail(err, TWS_ENVIRONMENT, "./install.sh installs what packages.txt lists",
                    "%d thing%s missing or broken", p.bad, p.bad > 1 ? "s are" : " is");
  return TWS_OK;
}

static const tws_option table[] = {TWS_LAUNCH_OPTIONS(options, flags), TWS_OPTIONS_END};

const tws_verb tws_verb_doctor = {
    .name = "doctor",
    .summary = "what this machine has, what is missing, and the remedy",
    .usage = "[--hostfile FILE] [options]",
    .examples = "  twinspeed doctor\n  twinspeed doctor --json\n  twinspeed doctor --hostfile hosts\n",
    .notes = "Each finding is OKAY, WARN or FAIL, with what mends it. Exit code 4 when one of them is FAIL.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .run = run_doctor,
};
