/* twinspeed doctor: checks this machine and reports what is missing, with the remedy. */
#include <arpa/inet.h>
#include <ctype.h>
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
#include "base/number.h"
#include "base/process.h"
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

enum { LIMIT_S = 20 }; /* time limit of a program that is asked for its version */

/* Reads the first line that a program prints; 0: it is not installed, or fails. */
static int ask_program(const char *const *arguments, int with_errors, char *line, size_t size) {
  const tws_process process = {.arguments = arguments, .limit_s = LIMIT_S, .with_errors = with_errors};
  return tws_process_line(&process, line, size);
}

static void examine_version(patient *p, const char *what, const char *program, const char *remedy, health absent) {
  const char *const arguments[] = {program, "--version", NULL};
  char line[256];
  if (ask_program(arguments, 0, line, sizeof line))
    add_finding(p, OKAY, what, NULL, "%s", line);
  else
    add_finding(p, absent, what, remedy, "not found");
}

/* Extracts a number from lscpu's output: sockets, threads or NUMA nodes ("Socket(s): 2"). */
static void examine_topology(patient *p) {
  static const struct {
    const char *key, *name;
  } facts[] = {{"Thread(s) per core:", "threads per core"}, {"Socket(s):", "sockets"}, {"NUMA node(s):", "NUMA nodes"}};
  const char *const arguments[] = {"lscpu", NULL};
  const tws_process process = {.arguments = arguments, .limit_s = LIMIT_S};
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
  add_finding(p, found.length ? OKAY : WARN, "topology", "apt-get install util-linux", "%s",
              found.length ? found.data : "not found");
  tws_text_free(&found);
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

/* ---- the shell and system limits ---- */

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
  double most;
  examine_limit(p, "memlock", RLIMIT_MEMLOCK, gpus > 0 ? 1024 * TWS_MIB : 0, TWS_MIB, " MiB may be pinned",
                "pinned host memory needs it: ulimit -l unlimited (docker run --ulimit memlock=-1)");
  examine_limit(p, "open files", RLIMIT_NOFILE, 1024, 1, "", "a rank takes about 8: ulimit -n 65536");
  examine_limit(p, "processes", RLIMIT_NPROC, 512, 1, "", "ranks and their threads count: ulimit -u 4096");
  if (tws_system_most_processes(&most))
    add_finding(p, most < 512 ? WARN : OKAY, "cgroup pids", "docker run --pids-limit -1",
                "at most %.0f processes and threads", most);
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

/* Ranks on other nodes connect to a port that the kernel assigns; launched commands meet at port 29500. */
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
  const char *const ssh[] = {"ssh", "-V", NULL};
  if (ask_program(ssh, 1, line, sizeof line))
    add_finding(p, OKAY, "ssh", NULL, "%s", line);
  else
    add_finding(p, WARN, "ssh", "apt-get install openssh-client; only several nodes need it", "not found");
}

/* ---- other nodes ---- */

enum { SHELL_WORDS = 32 };

/* Builds the beginning of a command on another host: ssh, or the program of --remote-shell with its arguments,
 * separated by blanks as for mpirun. ssh gets "--" before the host, so that a host name cannot be an option; other
 * programs get the host alone. */
typedef struct remote_shell {
  char text[1024];
  const char *words[SHELL_WORDS + 8];
  int count;
} remote_shell;

static void read_shell(const char *given, remote_shell *shell) {
  snprintf(shell->text, sizeof shell->text, "%s", given ? given : "ssh");
  shell->count = 0;
  for (char *rest = shell->text, *word; shell->count < SHELL_WORDS && (word = strtok_r(rest, " ", &rest));)
    shell->words[shell->count++] = word;
  const char *slash = shell->count ? strrchr(shell->words[0], '/') : NULL;
  const int ssh = shell->count && strcmp(slash ? slash + 1 : shell->words[0], "ssh") == 0;
  static const char *const quiet[] = {"-o", "BatchMode=yes", "-o", "ConnectTimeout=5"};
  for (int i = 0; i < 4 && !given; i++) shell->words[shell->count++] = quiet[i];
  if (ssh) shell->words[shell->count++] = "--";
}

static int ask_host(const remote_shell *shell, const char *host, const char *program, const char *argument, char *line,
                    size_t size) {
  const char *words[SHELL_WORDS + 16];
  int count = 0;
  for (int i = 0; i < shell->count; i++) words[count++] = shell->words[i];
  words[count++] = host;
  words[count++] = program;
  words[count++] = argument;
  words[count] = NULL;
  return shell->count > 0 && ask_program(words, 0, line, size);
}

/* Checks each host of a hostfile: reachable without a password, same version of the program, clock in agreement. */
static void examine_host(patient *p, const options *o, const char *host) {
  char line[256], program[512], mine[256];
  struct timespec before, after;
  remote_shell shell;
  read_shell(o->flags.remote_shell, &shell);
  tws_program_path(program, (int)sizeof program);
  clock_gettime(CLOCK_REALTIME, &before);
  double there = 0;
  const int reached =
      ask_host(&shell, host, "date", "+%s.%N", line, sizeof line) && tws_text_number(line, NULL, 0, 1e12, &there);
  clock_gettime(CLOCK_REALTIME, &after);
  if (!reached) {
    add_finding(p, FAIL, host, "ssh-copy-id HOST; --remote-shell names another way", "cannot be reached by %s",
                o->flags.remote_shell ? o->flags.remote_shell : "ssh");
    return;
  }
  const double first = (double)before.tv_sec + 1e-9 * (double)before.tv_nsec;
  const double last = (double)after.tv_sec + 1e-9 * (double)after.tv_nsec;
  const double skew = there < first ? there - first : there > last ? there - last : 0; /* exceeds the round trip */
  /* quoted for the shell of the host */
  tws_text path = {0};
  tws_process_quote(&path, program);
  const int same = path.data && ask_host(&shell, host, path.data, "--version", line, sizeof line);
  tws_text_free(&path);
  const char *const own[] = {program, "--version", NULL};
  ask_program(own, 0, mine, sizeof mine);
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
  tws_launch_flags flags = o->flags;
  flags.any_command = 1; /* hosts are checked for any launcher */
  if (!tws_launch_flags_given(&o->flags)) return TWS_OK;
  tws_arena *arena = tws_arena_create();
  tws_code code = arena ? tws_launch_flags_read(&flags, 0, arena, &hosts, &launch, err)
                        : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int h = 0; code == TWS_OK && h < hosts.count; h++) examine_host(p, o, hosts.host[h].name);
  tws_arena_destroy(arena);
  return code;
}

/* Plans, verifies and sums up a tiny job, to check that the core works on this machine. */
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
  examine_version(&p, "mpirun", "mpirun", "apt-get install openmpi-bin", FAIL);
  examine_version(&p, "compiler", "cc", "apt-get install build-essential; only building needs it", WARN);
  examine_topology(&p);
  examine_version(&p, "gnuplot", "gnuplot", "apt-get install gnuplot-nox; only plots need it", WARN);
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
