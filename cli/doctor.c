/* twinspeed doctor: what this machine has, what is missing, and the remedy. */
#include <dlfcn.h>
#include <gsl/gsl_version.h>
#include <stdarg.h>
#include <string.h>
#include <sys/statvfs.h>
#include "base/host_memory.h"
#include "base/units.h"
#include "cli/cli.h"
#include "job/job.h"
#include "job/modules.h"
#include "base/system.h"
#include "cli/version.h"

typedef enum health { GOOD, NOTE, BAD } health;

typedef struct patient {
  const tws_cli *cli;
  cJSON *findings; /* NULL: print text */
  int bad;
} patient;

static void add_finding(patient *p, health h, const char *what, const char *remedy, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
static void add_finding(patient *p, health h, const char *what, const char *remedy, const char *format, ...) {
  static const char *const words[] = {"ok", "note", "missing"};
  char text[512];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  p->bad += h == BAD;
  if (p->findings) {
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "what", what);
    cJSON_AddStringToObject(one, "state", words[h]);
    cJSON_AddStringToObject(one, "found", text);
    if (h != GOOD && remedy) cJSON_AddStringToObject(one, "remedy", remedy);
    cJSON_AddItemToArray(p->findings, one);
    return;
  }
  tws_style_name style = h == GOOD ? TWS_GREEN : h == BAD ? TWS_RED : TWS_BOLD;
  tws_out_wrapped(21, "%s%-8s%s%-12s %s", tws_style(p->cli, style), words[h], tws_style(p->cli, TWS_PLAIN), what, text);
  if (h != GOOD && remedy) tws_out_wrapped(24, "%20s -> %s", "", remedy);
}

static void examine_machine(patient *p) {
  tws_system s;
  char total[32], available[32];
  tws_system_read(&s);
  add_finding(p, s.cores_usable < s.cores_online ? NOTE : GOOD, "cores",
              "this process is confined (taskset or a cgroup); ranks x threads should not exceed what is usable",
              "%.3g usable of %d, %s", s.cores_usable, s.cores_online, s.processor);
  tws_host_memory memory = tws_host_memory_read();
  add_finding(p, memory.limited ? NOTE : GOOD, "memory",
              "a control group limits it; estimates for this host count with that", "%s%s, %s available",
              tws_format_bytes((double)memory.total_bytes, total, sizeof total), memory.limited ? " (limit)" : "",
              tws_format_bytes((double)memory.available_bytes, available, sizeof available));
  struct statvfs shm;
  if (statvfs("/dev/shm", &shm) == 0) {
    double bytes = (double)shm.f_frsize * (double)shm.f_bavail;
    add_finding(p, bytes < 64 * TWS_MIB ? BAD : GOOD, "/dev/shm",
                "MPI passes messages through it: docker run --shm-size=1g", "%s free",
                tws_format_bytes(bytes, total, sizeof total));
  } else {
    add_finding(p, BAD, "/dev/shm", "MPI passes messages through it: mount a tmpfs there", "not mounted");
  }
}

static void examine_command(patient *p, const char *what, const char *command, const char *remedy, health absent) {
  char line[256];
  if (tws_command_line(command, line, sizeof line))
    add_finding(p, GOOD, what, NULL, "%s", line);
  else
    add_finding(p, absent, what, remedy, "not found");
}

static void examine_modules(patient *p) {
  tws_error err = {0};
  char path[4096];
  const tws_sim_api *sim;
  add_finding(p, GOOD, "planning", NULL, "twinspeed %s, cJSON %s, GSL %s", TWS_VERSION, cJSON_Version(), GSL_VERSION);
  if (tws_sim_load(&sim, &err) == TWS_OK)
    add_finding(p, GOOD, "simulator", NULL, "%s (%s)", sim->description(),
                tws_module_path("twinspeed_sim.so", path, (int)sizeof path));
  else
    add_finding(p, BAD, "simulator", err.hint, "%s", err.message);
  const tws_real_api *real;
  if (tws_real_load(&real, &err) == TWS_OK)
    add_finding(p, GOOD, "engine", NULL, "%s (%s)", real->description(),
                tws_module_path("twinspeed_real.so", path, (int)sizeof path));
  else
    add_finding(p, BAD, "engine", err.hint, "%s", err.message);
}

static void examine_gpu(patient *p) {
  int number = 0;
  const int gpus = tws_system_gpus(&number);
  if (gpus == 0) {
    add_finding(p, NOTE, "gpu", "planning and simulating GPUs works without one", "no NVIDIA GPU or driver");
    return;
  }
  add_finding(p, NOTE, "gpu", "the CUDA backend, where it is built, has not been run on a GPU yet",
              "%d NVIDIA GPU%s, driver for CUDA %d.%d", gpus, gpus > 1 ? "s" : "", number / 1000, number % 1000 / 10);
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
    add_finding(p, GOOD, "self test", NULL, "gpt2, ZeRO-3, 2 ranks: %u operations planned and verified in %s",
                plans[0]->op_count, tws_format_seconds(tws_clock_s() - start, took, sizeof took));
  else
    add_finding(p, BAD, "self test", "please report this", "%s", err.message);
  tws_plan_destroy(plans[0]);
  tws_plan_destroy(plans[1]);
  tws_job_destroy(job);
}

static tws_code run_doctor(tws_cli *cli, void *options, int argc, char **argv, tws_error *err) {
  (void)options;
  (void)argc;
  (void)argv;
  patient p = {.cli = cli, .findings = cli->json ? cJSON_CreateArray() : NULL};
  examine_machine(&p);
  examine_modules(&p);
  examine_command(&p, "mpirun", "mpirun --version 2>/dev/null", "apt-get install openmpi-bin", BAD);
  examine_command(&p, "gnuplot", "gnuplot --version 2>/dev/null", "apt-get install gnuplot-nox; only plots need it",
                  NOTE);
  examine_gpu(&p);
  examine_core(&p);
  if (cli->json) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "schema", "twinspeed-doctor-1");
    cJSON_AddBoolToObject(root, "healthy", p.bad == 0);
    cJSON_AddItemToObject(root, "findings", p.findings);
    TWS_TRY(tws_out_json(root, err));
  }
  if (p.bad)
    return tws_fail(err, TWS_ENVIRONMENT, "./install.sh installs what packages.txt lists", "%d thing%s missing", p.bad,
                    p.bad > 1 ? "s are" : " is");
  return TWS_OK;
}

const tws_verb tws_verb_doctor = {
    .name = "doctor",
    .summary = "what this machine has, what is missing, and the remedy",
    .usage = "[options]",
    .examples = "  twinspeed doctor\n  twinspeed doctor --json\n",
    .notes = "Exit code 4 when something that a verb needs is missing.\n",
    .run = run_doctor,
};
