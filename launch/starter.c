#include "launch/starter.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/system.h"
#include "launch/env_file.h"
#include "launch/protocol.h"
#include "launch/seal.h"

extern char **environ;

tws_code tws_launcher_parse(const char *name, tws_launcher *out, tws_error *err) {
  static const char *const names[] = {"auto",    "local", "mpirun", "ssh",     "srun", "pdsh",
                                      "openmpi", "mpich", "impi",   "mvapich", "slurm"};
  *out = TWS_LAUNCHER_AUTO;
  for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
    if (strcmp(name, names[i]) == 0) {
      *out = (tws_launcher)i;
      return TWS_OK;
    }
  if (!name) return TWS_OK;
  return tws_fail(err, TWS_USAGE, "use local, mpirun, ssh, srun, pdsh, openmpi, mpich, impi, mvapich or slurm",
                  "--launcher: no launcher \"%.80s\"", name);
}

int tws_launch_is_remote(const tws_launch_options *o) {
  if (o->launcher == TWS_LAUNCHER_LOCAL) return 0;
  return o->launcher == TWS_LAUNCHER_SRUN || (o->hosts && !tws_hosts_local(o->hosts));
}

int tws_starter_input(const char *secret) {
  int ends[2];
  char line[TWS_SECRET_TEXT + 2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  const int count = snprintf(line, sizeof line, "%s\n", secret);
  const int written = write(ends[1], line, (size_t)count) == (ssize_t)count; /* a pipe has enough room for the line */
  tws_secret_wipe(line, sizeof line);
  close(ends[1]);
  if (written) return ends[0];
  close(ends[0]);
  return -1;
}

const char *tws_starter_shell(const tws_launch_options *o) {
  if (o->launcher == TWS_LAUNCHER_SRUN) return NULL;
  const char *given = o->remote_shell ? o->remote_shell : getenv("OMPI_MCA_plm_rsh_agent");
  return given && *given ? given : "ssh -x";
}

static const char *find_program(const char *name, tws_arena *arena) {
  const char *list = getenv("PATH");
  char path[4096];
  while (list && *list) {
    size_t length = strcspn(list, ":");
    int written = snprintf(path, sizeof path, "%.*s/%s", (int)length, list, name);
    if (length > 0 && written > 0 && (size_t)written < sizeof path && access(path, X_OK) == 0)
      return tws_arena_strdup(arena, path);
    list += length + (list[length] == ':');
  }
  return NULL;
}

typedef struct words {
  tws_arena *arena;
  const char **word;
  int count, capacity, failed;
} words;

static void add(words *w, const char *word) {
  if (!word || w->count + 1 >= w->capacity)
    w->failed = 1;
  else
    w->word[w->count++] = word;
}

static void add_all(words *w, const char *const *list) {
  while (*list) add(w, *list++);
}

/* Returns 1 for the variables of this environment that a rank on another node needs. */
static int is_passed_on(const char *variable) {
  static const char *const beginnings[] = {"TWINSPEED_", "OMP_",      "OPENBLAS_", "NCCL_",  "CUDA_",
                                           "UCX_",       "OMPI_MCA_", "PYTHON",    "PATH=",  "LD_LIBRARY_PATH=",
                                           "ASAN_",      "LSAN_",     "UBSAN_",    "MLFLOW", "DATA="};
  for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
    if (strncmp(variable, beginnings[i], strlen(beginnings[i])) == 0) return 1;
  return 0;
}

/* Adds mpirun's options that pass environment variables to the ranks; settings of .deepspeed_env override those of this
 * environment. */
static void add_environment(words *w, const tws_env_file *file) {
  static const char *const always[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_WAIT_POLICY"};
  add(w, "-x");
  add(w, TWS_LAUNCHER_VARIABLE);
  for (int i = 0; i < file->count; i++) {
    add(w, "-x");
    add(w, file->set[i]);
  }
  for (size_t i = 0; i < sizeof always / sizeof *always; i++) {
    if (tws_env_file_find(file, always[i], strlen(always[i]))) continue;
    add(w, "-x");
    add(w, always[i]);
  }
  for (char **variable = environ; *variable; variable++) {
    const size_t length = strcspn(*variable, "=");
    int known = !is_passed_on(*variable) || tws_env_file_find(file, *variable, length) ||
                strncmp(*variable, TWS_LAUNCHER_VARIABLE "=", sizeof TWS_LAUNCHER_VARIABLE) == 0 ||
                strncmp(*variable, TWS_SECRET_VARIABLE "=", sizeof TWS_SECRET_VARIABLE) == 0;
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
      known |= strlen(always[i]) == length && strncmp(always[i], *variable, length) == 0;
    if (known) continue;
    add(w, "-x");
    add(w, tws_arena_printf(w->arena, "%.*s", (int)length, *variable));
  }
}

/* Builds "--export=ALL,NAME=VALUE,...". */
static tws_code export_list(const tws_env_file *file, tws_arena *arena, const char **out, tws_error *err) {
  *out = "--export=ALL";
  for (int i = 0; *out && i < file->count; i++) {
    if (strchr(file->set[i], ','))
      return tws_fail(err, TWS_UNSUPPORTED, "set it in the environment of this command instead",
                      ".deepspeed_env: srun takes no value with a comma: %.200s", file->set[i]);
    *out = tws_arena_printf(arena, "%s,%s", *out, file->set[i]);
  }
  return TWS_OK;
}

/* Returns the hosts as "worker-0,worker-1" or, with `counts`, as "worker-0:2,worker-1:2". */
static const char *list_hosts(const tws_hosts *hosts, int counts, tws_arena *arena) {
  const char *text = "";
  for (int h = 0; text && h < hosts->count; h++) {
    const tws_host *host = &hosts->host[h];
    if (counts)
      text = tws_arena_printf(arena, "%s%s%s:%d", text, h ? "," : "", host->name, host->count);
    else
      text = tws_arena_printf(arena, "%s%s%s", text, h ? "," : "", host->name);
  }
  return text;
}

/* Returns the command that Open MPI runs as its remote shell: this program, which starts the given shell and passes the
 * secret to it (cli/remote_shell.c). Open MPI separates words at blanks. */
static const char *agent_of(const char *shell, tws_arena *arena) {
  char program[4096];
  int count = 0;
  for (const char *at = shell + strspn(shell, " "); *at; at += strspn(at, " "), count++) at += strcspn(at, " ");
  return tws_arena_printf(arena, "%s remote-shell %d %s", tws_program_path(program, (int)sizeof program), count, shell);
}

static void add_mpirun(words *w, const tws_launch_options *o, const char *path, const tws_env_file *file) {
  const int remote = tws_launch_is_remote(o);
  const int here = remote ? o->hosts->host[0].count : o->ranks, busy = here * o->threads > tws_launch_cores();
  add(w, path); /* without the option "-q", because mpirun's output names the rank that ended a job (launch/noise.h) */
  add(w, "-n");
  add(w, tws_arena_printf(w->arena, "%d", o->ranks));
  /* The kernel places the ranks: binding fails where a container has other cores than the machine. Messages go through
   * shared memory without process_vm_readv, which containers forbid. */
  static const char *const fixed[] = {"--oversubscribe",
                                      "--bind-to",
                                      "none",
                                      "--mca",
                                      "pml",
                                      "ob1",
                                      "--mca",
                                      "btl_vader_single_copy_mechanism",
                                      "none",
                                      NULL};
  static const char *const alone[] = {"--mca", "btl", "self,vader", "--mca", "plm", "isolated", NULL};
  static const char *const there[] = {"--mca", "btl", "self,vader,tcp", "--map-by", "slot", NULL};
  add_all(w, fixed);
  add_all(w, remote ? there : alone);
  if (remote && o->launcher != TWS_LAUNCHER_MPIRUN) {
    static const char *const shell[] = {"--mca", "plm", "rsh", NULL};
    add_all(w, shell);
  }
  if (remote) { /* disables a batch system that mpirun would detect by itself */
    static const char *const agent[] = {"--mca", "plm_rsh_agent", NULL};
    add_all(w, agent);
    add(w, agent_of(tws_starter_shell(o), w->arena));
  }
  if (remote) {
    add(w, "--host");
    add(w, list_hosts(o->hosts, 1, w->arena));
    add_environment(w, file);
  }
  if (geteuid() == 0) add(w, "--allow-run-as-root");
  if (getenv("OMPI_MCA_mpi_yield_when_idle")) return; /* a setting of the user takes precedence */
  add(w, "--mca");
  add(w, "mpi_yield_when_idle");
  add(w, busy ? "1" : "0");
}

void tws_starter_set_environment(void) {
  tws_mpi_skips_devices();
  setenv("PMIX_MCA_gds", "hash", 0); /* ranks get the job's data by messages: files in shared memory take longer */
}

static tws_code add_srun(words *w, const tws_launch_options *o, const char *path, const tws_env_file *file,
                         tws_error *err) {
  for (int h = 1; o->hosts && h < o->hosts->count; h++)
    if (o->hosts->host[h].count != o->hosts->host[0].count)
      return tws_fail(err, TWS_UNSUPPORTED, "choose equal numbers, or --launcher ssh",
                      "srun starts as many ranks on every node, and %s has %d slots where %s has %d",
                      o->hosts->host[h].name, o->hosts->host[h].count, o->hosts->host[0].name, o->hosts->host[0].count);
  static const char *const fixed[] = {"--mpi=pmix", "--kill-on-bad-exit=1", "--input=all", NULL};
  const char *variables = NULL;
  TWS_TRY(export_list(file, w->arena, &variables, err));
  add(w, path);
  add(w, tws_arena_printf(w->arena, "--ntasks=%d", o->ranks));
  if (o->hosts) {
    add(w, tws_arena_printf(w->arena, "--nodes=%d", o->hosts->count));
    add(w, tws_arena_printf(w->arena, "--ntasks-per-node=%d", o->hosts->host[0].count));
    add(w, tws_arena_printf(w->arena, "--nodelist=%s", list_hosts(o->hosts, 0, w->arena)));
  }
  add_all(w, fixed);
  add(w, variables);
  return TWS_OK;
}

/* Checks two paths, that of Open MPI's folder and that of the remote shell, which Open MPI writes into a command for
 * the shell of each node. */
static tws_code check_shell_words(const tws_launch_options *o, const char *mpirun, tws_error *err) {
  static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._+-";
  const char *shell = o->remote_shell ? o->remote_shell : "";
  if (!tws_launch_is_remote(o)) return TWS_OK;
  if (mpirun[strspn(mpirun, plain)])
    return tws_fail(err, TWS_ENVIRONMENT,
                    "put an mpirun on PATH whose folder has letters, digits and . _ + - in its name",
                    "%.400s: Open MPI would give the name of its folder to a shell of each node", mpirun);
  if (strpbrk(shell, "\"$`\\\n;|&<>"))
    return tws_fail(err, TWS_USAGE, "put what it is to do into a program, and name that",
                    "--remote-shell: Open MPI would give \"%.200s\" to a shell of each node", shell);
  return TWS_OK;
}

static int only_colons(const char *argument) {
  return *argument && !argument[strspn(argument, ":")];
}

const char *tws_launched_argument(const char *argument, tws_arena *arena) {
  return only_colons(argument) ? tws_arena_printf(arena, ":%s", argument) : argument;
}

char *tws_worker_argument(char *argument) {
  return argument[0] && only_colons(argument + 1) && argument[0] == ':' ? argument + 1 : argument;
}

tws_code tws_launch_command(const tws_launch_options *o, tws_arena *arena, const char ***command, tws_error *err) {
  const int srun = o->launcher == TWS_LAUNCHER_SRUN;
  int variables = 0;
  for (char **v = environ; *v; v++) variables++;
  tws_env_file file = {0};
  if (tws_launch_is_remote(o)) TWS_TRY(tws_env_file_read(arena, &file, err));
  words w = {.arena = arena, .capacity = o->argument_count + 2 * (variables + file.count) + 64};
  const char *name = srun ? "srun" : "mpirun", *path = find_program(name, arena);
  char program[4096];
  if (!path && o->printed_only) path = name;
  if (!path)
    return tws_fail(
        err, TWS_ENVIRONMENT,
        srun ? "--launcher ssh needs no Slurm" : "install Open MPI (Debian: openmpi-bin), or use one rank: -n 1",
        "%s was not found in PATH%s", name, srun ? "" : ": more than one rank needs it");
  if (o->launcher == TWS_LAUNCHER_LOCAL && o->hosts && !tws_hosts_local(o->hosts))
    return tws_fail(err, TWS_USAGE, "leave out --launcher local, or name this machine only",
                    "--launcher local: the hosts are not this machine alone");
  if (!srun) TWS_TRY(check_shell_words(o, path, err));
  if (tws_launch_is_remote(o) && !srun && strpbrk(tws_program_path(program, (int)sizeof program), " :"))
    return tws_fail(err, TWS_UNSUPPORTED, "move twinspeed to a path without them",
                    "%s: Open MPI cannot start a program on other machines whose path has a blank or a colon", program);
  w.word = tws_arena_alloc(arena, (size_t)w.capacity, sizeof *w.word);
  if (!w.word) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (srun)
    TWS_TRY(add_srun(&w, o, path, &file, err));
  else
    add_mpirun(&w, o, path, &file);
  add(&w, tws_arena_strdup(arena, tws_program_path(program, (int)sizeof program)));
  add(&w, "rank-worker");
  for (int i = 0; i < o->argument_count; i++) add(&w, tws_launched_argument(o->arguments[i], arena));
  if (w.failed) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  w.word[w.count] = NULL;
  *command = w.word;
  return TWS_OK;
}
