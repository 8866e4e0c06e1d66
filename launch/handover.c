#include "launch/handover.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/process.h"
#include "base/system.h"
#include "launch/cores.h"
#include "launch/env_file.h"
#include "launch/session.h"
#include "launch/starter.h"

extern char **environ;

typedef struct words {
  tws_arena *arena;
  const char **word;
  int count, capacity, failed;
} words;

static void add(words *w, const char *word) {
  if (w->count + 1 >= w->capacity) {
    const int capacity = w->capacity ? 2 * w->capacity : 64;
    const char **more = tws_arena_alloc(w->arena, (size_t)capacity, sizeof *more);
    if (more && w->count) memcpy(more, w->word, (size_t)w->count * sizeof *more);
    w->failed |= !more;
    if (!more) return;
    w->word = more;
    w->capacity = capacity;
  }
  w->failed |= !word;
  w->word[w->count++] = word;
}

static void add_all(words *w, const char *const *list) {
  while (*list) add(w, *list++);
}

static void add_number(words *w, int64_t number) {
  add(w, tws_arena_printf(w->arena, "%lld", (long long)number));
}

/* ---- the environment of the ranks ---- */

/* Returns 1 for the variables of its environment that DeepSpeed's launcher exports. */
static int is_exported(const char *variable) {
  static const char *const beginnings[] = {"MLFLOW", "PYTHON", "MV2", "UCX", "NCCL", "LD_LIBRARY", "PATH"};
  for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
    if (strncmp(variable, beginnings[i], strlen(beginnings[i])) == 0) return 1;
  return 0;
}

static int compare_words(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Lists the variables to export as "NAME=VALUE", in alphabetical order: those of .deepspeed_env, and those of this
 * environment that .deepspeed_env does not set (srun passes the environment on by itself). */
static tws_code list_exports(words *exports, int own, tws_error *err) {
  tws_env_file file = {0};
  TWS_TRY(tws_env_file_read(exports->arena, &file, err));
  for (int i = 0; i < file.count; i++) add(exports, file.set[i]);
  for (char **variable = environ; own && *variable; variable++)
    if (is_exported(*variable) && !tws_env_file_find(&file, *variable, strcspn(*variable, "=")))
      add(exports, *variable);
  if (exports->failed) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (exports->count) qsort(exports->word, (size_t)exports->count, sizeof *exports->word, compare_words);
  return TWS_OK;
}

/* Adds "-genv NAME VALUE", an option of the launcher hydra. */
static void add_genv(words *w, const char *name, const char *value) {
  add(w, "-genv");
  add(w, name);
  add(w, value);
}

static void add_genvs(words *w, const words *exports) {
  for (int i = 0; i < exports->count; i++) {
    const char *equals = strchr(exports->word[i], '=');
    add_genv(w, tws_arena_printf(w->arena, "%.*s", (int)(equals - exports->word[i]), exports->word[i]), equals + 1);
  }
}

/* ---- helpers of all launchers ---- */

static int64_t port_of(const tws_handover *h) {
  return h->job.master_port ? h->job.master_port : 29500;
}

static const char *master_of(const tws_handover *h) {
  return h->job.master_address ? h->job.master_address : h->hosts->host[0].name;
}

/* Adds the command line that is started for one rank or, if `node` is not NULL, for all ranks of that node. */
static void add_rank(words *w, const tws_handover *h, const char *node) {
  char program[4096];
  add(w, tws_arena_strdup(w->arena, tws_program_path(program, (int)sizeof program)));
  add(w, "launch");
  add(w, tws_arena_printf(w->arena, "--world_info=%s", tws_hosts_world_info(h->hosts, w->arena)));
  if (node) add(w, node);
  add(w, tws_arena_printf(w->arena, "--master_addr=%s", master_of(h)));
  add(w, tws_arena_printf(w->arena, "--master_port=%lld", (long long)port_of(h)));
  if (h->job.bind_cores) add(w, "--bind_cores_to_rank");
  if (h->job.bind_cores && h->job.core_list)
    add(w, tws_arena_printf(w->arena, "--bind_core_list=%s", h->job.core_list));
  add(w, "--");
  for (char *const *word = h->command; *word; word++) add(w, node ? *word : tws_launched_argument(*word, w->arena));
}

/* Returns the hosts as "worker-0,worker-1" or, with `counts`, as "worker-0:4,worker-1:4". */
static const char *list_hosts(const tws_hosts *hosts, int counts, tws_arena *arena) {
  tws_text text = {0};
  for (int h = 0; h < hosts->count; h++) {
    tws_text_add(&text, "%s%s", h ? "," : "", hosts->host[h].name);
    if (counts) tws_text_add(&text, ":%d", hosts->host[h].count);
  }
  const char *list = text.failed ? NULL : tws_arena_strdup(arena, text.data);
  tws_text_free(&text);
  return list;
}

static tws_code check_equal(const tws_handover *h, const char *name, tws_error *err) {
  const tws_host *host = h->hosts->host;
  for (int i = 1; i < h->hosts->count; i++)
    if (host[i].count != host[0].count)
      return tws_fail(err, TWS_UNSUPPORTED, "choose equal numbers, or --launcher pdsh, openmpi or ssh",
                      "--launcher %s starts as many ranks on every node, and %s has %d slots where %s has %d", name,
                      host[i].name, host[i].count, host[0].name, host[0].count);
  return TWS_OK;
}

/* ---- the launchers ---- */

/* Builds the pdsh command: one command line for the shell of each node, in which pdsh replaces %n by the number of the
 * node, and %% by %. */
static tws_code add_pdsh(words *w, const tws_handover *h, const words *exports, tws_error *err) {
  static const char *const fixed[] = {"-R", "ssh", "-b", "-S", "-f", "1024", "-w", NULL};
  char folder[4096];
  tws_text plain = {0}, remote = {0};
  words start = {.arena = w->arena};
  if (!getcwd(folder, sizeof folder))
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "the working folder has no name: %s", strerror(errno));
  add_rank(&start, h, "--node_rank=%n");
  for (int i = 0; i < exports->count; i++) {
    const char *equals = strchr(exports->word[i], '=');
    tws_text_add(&plain, "export %.*s=", (int)(equals - exports->word[i]), exports->word[i]);
    tws_process_quote(&plain, equals + 1);
    tws_text_add(&plain, "; ");
  }
  tws_text_add(&plain, "cd ");
  tws_process_quote(&plain, folder);
  tws_text_add(&plain, ";");
  for (int i = 0; i < start.count && !start.failed; i++) {
    tws_text_add(&plain, " ");
    tws_process_quote(&plain, start.word[i]);
  }
  for (const char *c = plain.data; c && *c; c++) {
    const int rank = strncmp(c, "%n", 2) == 0 && c - plain.data > 12 && strncmp(c - 12, "--node_rank=", 12) == 0;
    tws_text_add(&remote, *c == '%' && !rank ? "%%%%" : "%c", *c);
  }
  add_all(w, fixed);
  add(w, list_hosts(h->hosts, 0, w->arena));
  add(w, remote.data ? tws_arena_strdup(w->arena, remote.data) : NULL);
  w->failed |= start.failed || plain.failed || remote.failed;
  tws_text_free(&plain);
  tws_text_free(&remote);
  return TWS_OK;
}

static void add_openmpi(words *w, const tws_handover *h, const words *exports) {
  static const char *const btl[] = {"--mca", "btl", "^openib", NULL};
  static const char *const interface[] = {"--mca", "btl_tcp_if_include", "eth0", NULL};
  add(w, "-n");
  add_number(w, tws_hosts_ranks(h->hosts));
  add(w, h->hostfile ? "-hostfile" : "-host");
  add(w, h->hostfile ? h->hostfile : list_hosts(h->hosts, 1, w->arena));
  add_all(w, btl);
  if (!getenv("OMPI_MCA_btl_tcp_if_include")) add_all(w, interface);
  if (h->job.bind_cores) {
    add(w, "--bind-to");
    add(w, "none");
  }
  if (geteuid() == 0) add(w, "--allow-run-as-root");
  for (int i = 0; i < exports->count; i++) {
    add(w, "-x");
    add(w, exports->word[i]);
  }
  add_rank(w, h, NULL);
}

/* Adds the variables that DeepSpeed's launcher gives to hydra's ranks, and the list of hosts. */
static void add_hydra(words *w, const tws_handover *h, const words *exports) {
  add_genvs(w, exports);
  add_genv(w, "MASTER_ADDR", master_of(h));
  add_genv(w, "MASTER_PORT", tws_arena_printf(w->arena, "%lld", (long long)port_of(h)));
  add_genv(w, "WORLD_SIZE", tws_arena_printf(w->arena, "%d", tws_hosts_ranks(h->hosts)));
  add_genv(w, "LOCAL_SIZE", tws_arena_printf(w->arena, "%d", h->hosts->host[0].count));
  if (h->launcher == TWS_LAUNCHER_IMPI) add_genv(w, "I_MPI_PIN", "0"); /* ranks are bound by their launcher alone */
  add(w, "-hosts");
  add(w, list_hosts(h->hosts, 0, w->arena));
}

static tws_code add_mpich(words *w, const tws_handover *h, const words *exports, tws_error *err) {
  TWS_TRY(check_equal(h, "mpich", err));
  add(w, "-n");
  add_number(w, tws_hosts_ranks(h->hosts));
  add(w, "-ppn");
  add_number(w, h->hosts->host[0].count);
  add_hydra(w, h, exports);
  add_rank(w, h, NULL);
  return TWS_OK;
}

/* Adds one argument block per rank, with the rank's number. */
static tws_code add_impi(words *w, const tws_handover *h, const words *exports, tws_error *err) {
  const int here = h->hosts->host[0].count, ranks = tws_hosts_ranks(h->hosts);
  TWS_TRY(check_equal(h, "impi", err));
  add(w, "-ppn");
  add_number(w, here);
  add_hydra(w, h, exports);
  for (int r = 0; r < ranks; r++) {
    if (r) add(w, ":");
    add(w, "-n");
    add(w, "1");
    add(w, "-env");
    add(w, "RANK");
    add_number(w, r);
    add(w, "-env");
    add(w, "LOCAL_RANK");
    add_number(w, r % here);
    add_rank(w, h, NULL);
  }
  return TWS_OK;
}

static tws_code add_mvapich(words *w, const tws_handover *h, const words *exports, tws_error *err) {
  static const char *const set[][2] = {{"MV2_SMP_USE_CMA", "0"},     {"MV2_DEBUG_SHOW_BACKTRACE", "1"},
                                       {"MV2_USE_CUDA", "1"},        {"MV2_SUPPORT_DL", "1"},
                                       {"MV2_ENABLE_AFFINITY", "0"}, {"MV2_INTER_ALLGATHER_TUNING", "5"},
                                       {"MV2_CUDA_USE_NAIVE", "0"}};
  TWS_TRY(check_equal(h, "mvapich", err));
  add(w, "-np");
  add_number(w, tws_hosts_ranks(h->hosts));
  add(w, "-ppn");
  add_number(w, h->hosts->host[0].count);
  for (size_t i = 0; i < sizeof set / sizeof *set; i++)
    if (!getenv(set[i][0])) add_genv(w, set[i][0], set[i][1]);
  add_hydra(w, h, exports);
  add_rank(w, h, NULL);
  return TWS_OK;
}

static tws_code add_slurm(words *w, const tws_handover *h, const words *exports, tws_error *err) {
  tws_text list = {0};
  TWS_TRY(check_equal(h, "slurm", err));
  for (int i = 0; i < exports->count; i++)
    if (strchr(exports->word[i], ','))
      return tws_fail(err, TWS_UNSUPPORTED, "set it in the environment of this command instead",
                      ".deepspeed_env: srun takes no value with a comma: %.200s", exports->word[i]);
  add(w, "-n");
  add_number(w, tws_hosts_ranks(h->hosts));
  add(w, tws_arena_printf(w->arena, "--nodes=%d", h->hosts->count));
  add(w, tws_arena_printf(w->arena, "--ntasks-per-node=%d", h->hosts->host[0].count));
  add(w, tws_arena_printf(w->arena, "--nodelist=%s", list_hosts(h->hosts, 0, w->arena)));
  add(w, "--kill-on-bad-exit=1");
  tws_text_add(&list, "--export=ALL");
  for (int i = 0; i < exports->count; i++) tws_text_add(&list, ",%s", exports->word[i]);
  add(w, list.failed ? NULL : tws_arena_strdup(w->arena, list.data));
  tws_text_free(&list);
  add_rank(w, h, NULL);
  return TWS_OK;
}

int tws_launcher_hands_over(tws_launcher launcher) {
  return launcher >= TWS_LAUNCHER_PDSH;
}

/* Finds the launcher's executable. If several MPI libraries are installed, Debian gives each mpirun a name of its
 * own. */
static tws_code find_launcher(const tws_handover *h, const char **name, tws_error *err) {
  static const char *const names[][2] = {
      {"pdsh"}, {"mpirun.openmpi", "mpirun"}, {"mpirun.mpich", "mpirun"}, {"mpirun"}, {"mpirun"}, {"srun"}};
  const char *const *mine = names[h->launcher - TWS_LAUNCHER_PDSH];
  char path[4096];
  *name = mine[0];
  if (mine[1] && !tws_process_find(mine[0], path, sizeof path)) *name = mine[1];
  if (h->printed_only || tws_process_find(*name, path, sizeof path)) return TWS_OK;
  return tws_fail(err, TWS_ENVIRONMENT, "--print-command prints the command without running it",
                  "%s was not found in PATH", *name);
}

tws_code tws_handover_command(const tws_handover *h, tws_arena *arena, const char ***command, tws_error *err) {
  words w = {.arena = arena}, exports = {.arena = arena};
  const char *name;
  tws_code code = TWS_OK;
  TWS_TRY(find_launcher(h, &name, err));
  TWS_TRY(list_exports(&exports, h->launcher != TWS_LAUNCHER_SLURM, err));
  add(&w, name);
  switch (h->launcher) {
    case TWS_LAUNCHER_PDSH:
      code = add_pdsh(&w, h, &exports, err);
      break;
    case TWS_LAUNCHER_OPENMPI:
      add_openmpi(&w, h, &exports);
      break;
    case TWS_LAUNCHER_MPICH:
      code = add_mpich(&w, h, &exports, err);
      break;
    case TWS_LAUNCHER_IMPI:
      code = add_impi(&w, h, &exports, err);
      break;
    case TWS_LAUNCHER_MVAPICH:
      code = add_mvapich(&w, h, &exports, err);
      break;
    default:
      code = add_slurm(&w, h, &exports, err);
  }
  if (code != TWS_OK) return code;
  if (w.failed || exports.failed) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  w.word[w.count] = NULL;
  *command = w.word;
  return TWS_OK;
}

/* ---- running it ---- */

static void become_launcher(const tws_handover *h, const char **command, const sigset_t *mask, pid_t parent) {
  setpgid(0, 0); /* so that Ctrl-C reaches the launcher only once, through this process */
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);
  const int input = open("/dev/null", O_RDONLY); /* a process group in the background cannot read a terminal */
  if (input >= 0) dup2(input, STDIN_FILENO);
  if (h->to_stderr) dup2(STDERR_FILENO, STDOUT_FILENO);
  sigprocmask(SIG_SETMASK, mask, NULL);
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_DFL);
  execvp(command[0], (char *const *)command);
  _exit(127);
}

/* Waits for the launcher and returns its status. Signals that arrive meanwhile are forwarded to it; *asked becomes the
 * first of them. */
static int wait_for_launcher(pid_t child, const sigset_t *signals, int *asked) {
  int status = 0;
  *asked = 0;
  for (;;) {
    const pid_t got = waitpid(child, &status, WNOHANG);
    if (got == child || (got < 0 && errno != EINTR)) return status;
    const int number = sigwaitinfo(signals, NULL);
    if (number <= 0 || number == SIGCHLD) continue;
    kill(-child, number);
    if (!*asked) *asked = number;
  }
}

tws_code tws_handover_run(const tws_handover *h, tws_error *err) {
  sigset_t signals, before;
  const char **command;
  TWS_TRY(tws_session_check(err));
  tws_arena *arena = tws_arena_create();
  tws_code code =
      arena ? tws_handover_command(h, arena, &command, err) : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (code != TWS_OK) {
    tws_arena_destroy(arena);
    return code;
  }
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGHUP);
  sigprocmask(SIG_BLOCK, &signals, &before);
  fflush(NULL);
  if (!h->job.bind_cores) tws_launch_set_threads(h->threads);
  const pid_t parent = getpid(), child = fork();
  if (child == 0) become_launcher(h, command, &before, parent);
  if (child < 0) code = tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot start a process: %s", strerror(errno));
  int asked = 0;
  if (child > 0) {
    setpgid(child, child); /* called in parent and child, since either may run first */
    const int status = wait_for_launcher(child, &signals, &asked);
    if (asked)
      code = tws_fail(err, asked == SIGTERM ? TWS_TERMINATED : TWS_INTERRUPTED, NULL, "%s; %s has ended",
                      asked == SIGTERM ? "asked to end" : "interrupted", command[0]);
    else if (WIFSIGNALED(status))
      code = tws_fail(err, TWS_RANK, NULL, "%s was ended by signal %d (%s)", command[0], WTERMSIG(status),
                      strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status))
      code = tws_fail(err, TWS_RANK, "what it wrote above says which rank failed", "%s ended with status %d",
                      command[0], WEXITSTATUS(status));
  }
  sigprocmask(SIG_SETMASK, &before, NULL);
  tws_arena_destroy(arena);
  return code;
}
