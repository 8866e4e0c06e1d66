/* twinspeed launch: run any command once per rank; which host and device each rank gets is printed first. */
#include <string.h>
#include "cli/cli.h"
#include "launch/command.h"
#include "launch/hostfile.h"
#include "launch/launch.h"

typedef struct options {
  int64_t ranks, threads, num_nodes, num_gpus;
  const char *hostfile, *include, *exclude;
  int dry_run;
} options;

static tws_code find_hosts(const options *o, tws_arena *arena, tws_hosts *hosts, tws_error *err) {
  const tws_hosts_request request = {.hostfile = o->hostfile,
                                     .include = o->include,
                                     .exclude = o->exclude,
                                     .ranks = o->ranks,
                                     .num_nodes = o->num_nodes,
                                     .num_gpus = o->num_gpus};
  return tws_hosts_find(&request, arena, hosts, err);
}

static tws_code show_hosts(const tws_cli *cli, const tws_hosts *hosts, int to_stdout, tws_error *err) {
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

static tws_code start_command(const tws_cli *cli, const options *o, const tws_hosts *hosts, int argc, char **argv,
                              tws_error *err) {
  TWS_TRY(tws_hosts_check_local(hosts, err));
  tws_launch_options launch = {.ranks = tws_hosts_ranks(hosts),
                               .threads = tws_launch_threads(o->threads, tws_hosts_ranks(hosts)),
                               .to_stderr = cli->json};
  TWS_TRY(tws_command_find(argv[0], err));
  if (launch.ranks < 1) return tws_fail(err, TWS_INVALID, NULL, "no rank is left to start");
  const char **command = tws_calloc((size_t)argc + 2, sizeof *command);
  if (!command) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  command[launch.argument_count++] = "launch";
  command[launch.argument_count++] = "--";
  for (int i = 0; i < argc; i++) command[launch.argument_count++] = argv[i];
  launch.arguments = command;
  tws_code code = tws_launch(&launch, err);
  tws_free(command);
  return code;
}

static tws_code run_launch(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
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
    tws_code code = tws_command_run(command, err);
    tws_free(command);
    tws_arena_destroy(arena);
    return code;
  }
  tws_code code =
      arena && command ? find_hosts(o, arena, &hosts, err) : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (code == TWS_OK && (o->dry_run || !cli->json)) code = show_hosts(cli, &hosts, o->dry_run, err);
  if (code == TWS_OK && !o->dry_run) code = start_command(cli, o, &hosts, argc, command, err);
  if (code == TWS_OK && !o->dry_run && cli->json) code = show_hosts(cli, &hosts, 1, err);
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
    .run = run_launch,
};
