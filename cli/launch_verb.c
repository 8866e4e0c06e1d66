/* twinspeed launch: run any command once per rank; which host and device each rank gets is printed first. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/json.h"
#include "cli/cli.h"
#include "cli/hostfile.h"
#include "cli/launch.h"
#include "cli/launch_protocol.h"

typedef struct options {
  int64_t ranks, threads, num_nodes, num_gpus;
  const char *hostfile, *include, *exclude;
  int dry_run;
} options;

static tws_code local_host(const options *o, tws_arena *arena, tws_hosts *hosts, tws_error *err) {
  static char name[256];
  if (gethostname(name, sizeof name - 1) != 0) snprintf(name, sizeof name, "localhost");
  int64_t ranks = o->ranks ? o->ranks : o->num_gpus ? o->num_gpus : 1;
  *hosts = (tws_hosts){.host = tws_arena_alloc(arena, 1, sizeof *hosts->host), .count = 1};
  if (!hosts->host) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  hosts->host[0].name = name;
  for (short i = 0; i < ranks; i++) hosts->host[0].slot[hosts->host[0].count++] = i;
  return TWS_OK;
}

static tws_code find_hosts(const options *o, tws_arena *arena, tws_hosts *hosts, tws_error *err) {
  if ((o->include || o->exclude) && (o->num_nodes || o->num_gpus))
    return tws_fail(err, TWS_USAGE, "give filters or numbers",
                    "--num-nodes and --num-gpus do not go with --include and --exclude");
  if (!o->hostfile) {
    if (o->include || o->exclude)
      return tws_fail(err, TWS_USAGE, "give --hostfile FILE", "--include and --exclude need a hostfile");
    return local_host(o, arena, hosts, err);
  }
  char *text;
  size_t length;
  TWS_TRY(tws_read_file(o->hostfile, 0, &text, &length, err));
  tws_code code = strlen(text) == length ? tws_hostfile_parse(text, o->hostfile, arena, hosts, err)
                                         : tws_fail(err, TWS_INVALID, NULL, "%s: not a text file", o->hostfile);
  tws_free(text);
  TWS_TRY(code);
  TWS_TRY(tws_hosts_filter(hosts, o->include, o->exclude, err));
  if (o->num_nodes > hosts->count)
    return tws_fail(err, TWS_INVALID, NULL, "--num-nodes %lld: %s has %d hosts", (long long)o->num_nodes, o->hostfile,
                    hosts->count);
  if (o->num_nodes) hosts->count = (int)o->num_nodes;
  for (int h = 0; o->num_gpus && h < hosts->count; h++) {
    tws_host *host = &hosts->host[h];
    if (o->num_gpus > host->count)
      return tws_fail(err, TWS_INVALID, "use fewer, or more slots in the hostfile",
                      "--num-gpus %lld: host %s has %d slots", (long long)o->num_gpus, host->name, host->count);
    host->count = (int)o->num_gpus;
  }
  return TWS_OK;
}

static int is_local(const char *name) {
  char mine[256];
  if (strcmp(name, "localhost") == 0 || strcmp(name, "127.0.0.1") == 0) return 1;
  return gethostname(mine, sizeof mine) == 0 && strcmp(name, mine) == 0;
}

static tws_code show(const tws_cli *cli, const tws_hosts *hosts, int to_stdout, tws_error *err) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "twinspeed-ranks-1");
  cJSON *ranks = cJSON_AddArrayToObject(root, "ranks");
  int rank = 0;
  for (int h = 0; h < hosts->count; h++)
    for (int i = 0; i < hosts->host[h].count; i++, rank++) {
      const tws_host *host = &hosts->host[h];
      cJSON *one = cJSON_CreateObject();
      cJSON_AddNumberToObject(one, "rank", rank);
      cJSON_AddStringToObject(one, "host", host->name);
      cJSON_AddNumberToObject(one, "device", host->slot[i]);
      cJSON_AddItemToArray(ranks, one);
      if (!cli->json && to_stdout) tws_out("rank %d -> %s -> device %d\n", rank, host->name, host->slot[i]);
      if (!to_stdout) tws_say(cli, "rank %d -> %s -> device %d", rank, host->name, host->slot[i]);
    }
  if (cli->json && to_stdout) return tws_out_json(root, err);
  cJSON_Delete(root);
  return TWS_OK;
}

/* Before mpirun starts: afterwards only a status without a reason would come back. */
static tws_code find_command(const char *name, tws_error *err) {
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

static pid_t command_pid; /* for the handler below */

static void pass_on(int number) {
  if (command_pid > 0) kill(command_pid, number);
}

static void become(char **argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGTERM, SIG_DFL);
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_DFL);
  unsetenv(TWS_LAUNCHER_VARIABLE); /* a twinspeed that the command starts is no rank of this job */
  execvp(argv[0], argv);
  _exit(127);
}

static tws_code run_command(char **argv, tws_error *err) {
  int status = 0, rank = tws_worker_rank();
  signal(SIGTERM, pass_on);
  fflush(NULL);
  command_pid = fork();
  if (command_pid == 0) become(argv);
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

/* ---- outside ---- */

static tws_code start(const tws_cli *cli, const options *o, const tws_hosts *hosts, int argc, char **argv,
                      tws_error *err) {
  for (int h = 0; h < hosts->count; h++)
    if (!is_local(hosts->host[h].name))
      return tws_fail(err, TWS_UNSUPPORTED,
                      "--dry-run prints the placement; start the command on each host by other means",
                      "host %s is not this machine, and ranks are started on this machine only", hosts->host[h].name);
  tws_launch_options launch = {.ranks = tws_hosts_ranks(hosts),
                               .threads = tws_launch_threads(o->threads, tws_hosts_ranks(hosts)),
                               .to_stderr = cli->json};
  TWS_TRY(find_command(argv[0], err));
  if (launch.ranks < 1) return tws_fail(err, TWS_INVALID, NULL, "no rank is left to start");
  const char **command = tws_calloc((size_t)argc + 2, sizeof *command);
  if (!command) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  command[launch.argument_count++] = "launch";
  command[launch.argument_count++] = "--";
  for (int i = 0; i < argc; i++) command[launch.argument_count++] = argv[i];
  launch.arguments = command;
  tws_code code = tws_launch(cli, &launch, err);
  tws_free(command);
  return code;
}

static tws_code run(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  const options *o = raw;
  if (argc == 0 && !o->dry_run)
    return tws_fail(err, TWS_USAGE, "twinspeed launch -n 4 -- COMMAND ...", "launch: no command was given");
  if (o->ranks && (o->hostfile || o->num_gpus || o->num_nodes))
    return tws_fail(err, TWS_USAGE, "-n N on this machine, or --hostfile FILE with filters",
                    "-n does not go with --hostfile, --num-nodes and --num-gpus");
  tws_arena *arena = tws_arena_create();
  char **command = tws_calloc((size_t)argc + 1, sizeof *command); /* ends with NULL */
  tws_hosts hosts;
  if (command) memcpy(command, argv, (size_t)argc * sizeof *command);
  if (command && tws_worker_is()) { /* the process ends with it */
    tws_code code = run_command(command, err);
    tws_free(command);
    tws_arena_destroy(arena);
    return code;
  }
  tws_code code =
      arena && command ? find_hosts(o, arena, &hosts, err) : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (code == TWS_OK && (o->dry_run || !cli->json)) code = show(cli, &hosts, o->dry_run, err);
  if (code == TWS_OK && !o->dry_run) code = start(cli, o, &hosts, argc, command, err);
  if (code == TWS_OK && !o->dry_run && cli->json) code = show(cli, &hosts, 1, err);
  tws_free(command);
  tws_arena_destroy(arena);
  return code;
}

static const tws_option table[] = {
    TWS_INTEGER("ranks", 'n', "N", options, ranks, 1, TWS_MAX_SLOTS, "ranks on this machine (default 1)"),
    TWS_STRING("hostfile", 'H', "FILE", options, hostfile, "hosts and slots, one \"NAME slots=N\" a line"),
    TWS_STRING("include", 'i', "FILTER", options, include, "only these: worker-0@worker-1:0,2"),
    TWS_STRING("exclude", 'e', "FILTER", options, exclude, "all but these"),
    TWS_INTEGER("num-nodes", 0, "N", options, num_nodes, 1, 65536, "the first N hosts"),
    TWS_INTEGER("num-gpus", 0, "N", options, num_gpus, 1, TWS_MAX_SLOTS, "the first N slots of each host"),
    TWS_INTEGER("threads", 0, "N", options, threads, 1, 1024, "threads of a rank (default: cores / ranks)"),
    TWS_FLAG("dry-run", 0, options, dry_run, "print rank -> host -> device and stop"),
    TWS_OPTIONS_END};

const tws_verb tws_verb_launch = {
    .name = "launch",
    .summary = "runs a command once per rank and watches over it",
    .usage = "[-n N | --hostfile FILE] [options] -- COMMAND [arguments]",
    .examples =
        "  twinspeed launch -n 4 -- ./my-mpi-program --steps 10\n"
        "  twinspeed launch --hostfile hosts --include worker-0@worker-1:0,2 --dry-run\n",
    .notes =
        "The command runs under mpirun. The first rank that fails ends all others; its number is in the message and\n"
        "the exit code is 5. Ranks are started on this machine only. With --json the command's output goes to "
        "standard\n"
        "error, and where each rank ran to standard output, once all have ended well.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .arguments_max = -1,
    .arguments_rest = 1,
    .run = run,
};
