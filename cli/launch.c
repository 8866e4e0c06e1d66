/* twinspeed launch: runs any command once per rank, after printing the host and device of each rank. */
#include <string.h>
#include "base/process.h"
#include "cli/cli.h"
#include "cli/launch_options.h"
#include "launch/command.h"
#include "launch/cores.h"
#include "launch/handover.h"

typedef struct options {
  int64_t ranks, threads;
  tws_launch_flags flags;
  /* all hosts of the job, if a launcher on each other node starts the ranks there; NULL: none */
  const char *world_info;
  int64_t node_rank; /* number of this node in the job; -1: not given */
  const char *master_address, *core_list;
  int64_t master_port;
  int no_ssh, bind_cores;
  int dry_run, print_map, print_command;
} options;

/* Prints the command that starts the ranks, quoted for a shell. */
static tws_code show_words(const char *const *words, tws_error *err) {
  tws_text line = {0};
  for (int i = 0; words[i]; i++) {
    if (i) tws_text_add(&line, " ");
    tws_process_quote(&line, words[i]);
  }
  tws_text_add(&line, "\n");
  return tws_out_text(&line, err);
}

static tws_command_job job_of(const options *o, const tws_hosts *world) {
  return (tws_command_job){.world = world,
                           .node = (int)o->node_rank,
                           .master_address = o->master_address,
                           .master_port = o->master_port,
                           .bind_cores = o->bind_cores || o->core_list,
                           .core_list = o->core_list};
}

static tws_code check_options(const options *o, tws_error *err) {
  tws_cores cores;
  if (o->master_address && !tws_is_host_name(o->master_address, strlen(o->master_address)))
    return tws_fail(err, TWS_USAGE, NULL, "--master-addr: \"%.200s\" is not the name or address of a host",
                    o->master_address);
  if (o->no_ssh && o->node_rank < 0)
    return tws_fail(err, TWS_USAGE, "give --node-rank N too, 0 on the first host of the hostfile",
                    "--no-ssh starts the ranks of one node, and which is not said");
  if (o->node_rank >= 0 && !o->no_ssh && !o->world_info)
    return tws_fail(err, TWS_USAGE, "give --no-ssh too, and the same command on every node",
                    "--node-rank is for jobs that are started on each node");
  if ((o->no_ssh || o->world_info) && o->flags.launcher)
    return tws_fail(err, TWS_USAGE, "leave one of them out", "--launcher does not go with %s",
                    o->no_ssh ? "--no-ssh" : "--world-info");
  return o->core_list ? tws_cores_parse(o->core_list, &cores, err) : TWS_OK;
}

/* Adds the arguments of `twinspeed rank-worker`: this subcommand again, with the settings that the ranks need. */
static tws_code add_arguments(tws_launch_options *launch, const tws_command_job *job, char **command, int argc,
                              tws_arena *arena, tws_error *err) {
  const char **words = tws_arena_alloc(arena, (size_t)argc + 16, sizeof *words);
  int n = 0, failed = !words;
  if (failed) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  words[n++] = "launch";
  if (job->world) {
    words[n++] = tws_arena_printf(arena, "--world-info=%s", tws_hosts_world_info(job->world, arena));
    words[n++] = tws_arena_printf(arena, "--node-rank=%d", job->node);
  }
  if (job->master_address) words[n++] = tws_arena_printf(arena, "--master-addr=%s", job->master_address);
  if (job->master_port) words[n++] = tws_arena_printf(arena, "--master-port=%lld", (long long)job->master_port);
  if (job->bind_cores) words[n++] = "--bind-cores-to-rank";
  if (job->core_list) words[n++] = tws_arena_printf(arena, "--bind-core-list=%s", job->core_list);
  for (int i = 0; i < n; i++) failed |= !words[i];
  words[n++] = "--";
  for (int i = 0; i < argc; i++) words[n++] = command[i];
  launch->arguments = words;
  launch->argument_count = n;
  return failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory") : TWS_OK;
}

/* Runs pdsh or another launcher that starts and monitors the ranks itself. */
static tws_code hand_over(const options *o, const tws_launch_options *launch, const tws_hosts *hosts, char **command,
                          tws_arena *arena, tws_error *err) {
  const tws_launch_flags *f = &o->flags;
  const int whole = !f->include && !f->exclude && !f->num_nodes && !f->num_gpus;
  const tws_handover handover = {.launcher = launch->launcher,
                                 .hosts = hosts,
                                 .hostfile = whole ? tws_launch_flags_hostfile(f, o->ranks) : NULL,
                                 .job = job_of(o, NULL),
                                 .command = command,
                                 .to_stderr = launch->to_stderr,
                                 .threads = launch->threads,
                                 .printed_only = o->print_command};
  const char **words;
  if (o->flags.logs)
    return tws_fail(err, TWS_USAGE, "leave it out", "--logs does not go with --launcher %s", o->flags.launcher);
  if (!o->print_command) return tws_handover_run(&handover, err);
  TWS_TRY(tws_handover_command(&handover, arena, &words, err));
  return show_words(words, err);
}

/* Selects the ranks of one node of a job that is started separately on each node: those of this machine, whatever its
 * name. */
static tws_code choose_node(const options *o, tws_hosts *world, tws_hosts *hosts, tws_launch_options *launch,
                            tws_error *err) {
  if (o->node_rank >= world->count)
    return tws_fail(err, TWS_INVALID, "the first host is 0", "--node-rank %lld of %d hosts", (long long)o->node_rank,
                    world->count);
  *hosts = (tws_hosts){.host = &world->host[o->node_rank], .count = 1};
  launch->hosts = NULL;
  launch->launcher = TWS_LAUNCHER_LOCAL;
  launch->ranks = hosts->host[0].count;
  return TWS_OK;
}

static tws_code find_hosts(const options *o, tws_arena *arena, tws_hosts *world, tws_launch_options *launch,
                           tws_error *err) {
  tws_launch_flags flags = o->flags;
  flags.any_command = 1;
  if (o->world_info) return tws_hosts_read_world_info(o->world_info, arena, world, err);
  TWS_TRY(tws_launch_flags_read(&flags, o->ranks, arena, world, launch, err));
  if (o->no_ssh && !launch->hosts)
    return tws_fail(err, TWS_USAGE, "give --hostfile FILE, the same on every node",
                    "--no-ssh needs a hostfile, which says how many ranks the other nodes have");
  return TWS_OK;
}

static tws_code start_command(tws_cli *cli, const options *o, int argc, char **argv, tws_arena *arena, tws_error *err) {
  tws_hosts world, hosts;
  tws_launch_options launch = {.to_stderr = cli->json, .log = &cli->log, .printed_only = o->print_command};
  TWS_TRY(find_hosts(o, arena, &world, &launch, err));
  if (!o->world_info) tws_launch_flags_report(cli, &o->flags, o->ranks);
  const int one_node = o->no_ssh || o->world_info;
  tws_launch_flags_choose_devices(cli, &o->flags);
  hosts = world;
  if (one_node) TWS_TRY(choose_node(o, &world, &hosts, &launch, err));
  launch.threads = tws_launch_threads(o->threads, launch.ranks);
  if (!o->dry_run && !o->print_command) TWS_TRY(tws_command_find(argv[0], err));
  const tws_command_job job = job_of(o, one_node ? &world : NULL);
  TWS_TRY(add_arguments(&launch, &job, argv, argc, arena, err));
  const int given_over = tws_launcher_hands_over(launch.launcher);
  if (o->print_command && !given_over) {
    const char **words;
    TWS_TRY(tws_launch_command(&launch, arena, &words, err));
    return show_words(words, err);
  }
  int first = 0;
  for (int h = 0; one_node && h < o->node_rank; h++) first += world.host[h].count;
  const int shows = !o->print_command && (o->dry_run || !cli->json);
  if (shows) TWS_TRY(tws_launch_show(cli, &hosts, first, o->dry_run || o->print_map, err));
  if (o->dry_run) return TWS_OK;
  TWS_TRY(given_over ? hand_over(o, &launch, &hosts, argv, arena, err) : tws_launch(&launch, err));
  return cli->json && !o->print_command ? tws_launch_show(cli, &hosts, first, 1, err) : TWS_OK;
}

/* Runs as a rank that this program or another launcher has started. */
static tws_code run_rank(const options *o, char **command, tws_arena *arena, tws_error *err) {
  tws_hosts world;
  if (o->world_info) TWS_TRY(tws_hosts_read_world_info(o->world_info, arena, &world, err));
  const tws_command_job job = job_of(o, o->world_info ? &world : NULL);
  if (tws_worker_is()) return tws_command_run(command, &job, err);
  for (int i = 0; command[i]; i++) command[i] = tws_worker_argument(command[i]);
  return tws_command_exec(command, &job, err);
}

static tws_code run_launch(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  const options *o = raw;
  if (argc == 0 && !o->dry_run && !o->print_command)
    return tws_fail(err, TWS_USAGE, "twinspeed launch -n 4 -- COMMAND ...", "launch: no command was given");
  TWS_TRY(check_options(o, err));
  tws_arena *arena = tws_arena_create();
  /* the list of words ends with NULL */
  char **command = arena ? tws_arena_alloc(arena, (size_t)argc + 1, sizeof *command) : NULL;
  tws_code code = command ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (command) memcpy(command, argv, (size_t)argc * sizeof *command);
  const int is_rank = tws_worker_is() || (o->world_info && o->node_rank < 0);
  if (code == TWS_OK && is_rank && argc == 0)
    code = tws_fail(err, TWS_USAGE, "-- COMMAND", "launch: no command was given");
  else if (code == TWS_OK)
    code = is_rank ? run_rank(o, command, arena, err) : start_command(cli, o, argc, command, arena, err);
  tws_arena_destroy(arena);
  return code;
}

static const tws_option table[] = {
    TWS_INTEGER("ranks", 'n', "N", options, ranks, 1, TWS_MAX_SLOTS, "ranks on this machine (default 1)"),
    TWS_LAUNCH_OPTIONS(options, flags),
    TWS_STRING("master-addr", 0, "ADDRESS", options, master_address,
               "MASTER_ADDR of the ranks (default: the first host)"),
    TWS_INTEGER("master-port", 0, "PORT", options, master_port, 1, 65535, "MASTER_PORT of the ranks (default: 29500)"),
    TWS_FLAG("no-ssh", 0, options, no_ssh,
             "start the ranks of this node alone: for the same command on every node, with --node-rank"),
    TWS_INTEGER("node-rank", 0, "N", options, node_rank, 0, TWS_MAX_HOSTS - 1,
                "this node's number in the hostfile, from 0, with --no-ssh"),
    TWS_FLAG("bind-cores-to-rank", 0, options, bind_cores,
             "each rank runs on cores of its own, an equal part of those of its node"),
    TWS_STRING("bind-core-list", 0, "LIST", options, core_list, "the cores to divide among the ranks: 0-7,16-23"),
    TWS_STRING("world-info", 0, "TEXT", options, world_info,
               "hosts and devices of all nodes in base64, in place of a hostfile (other launchers give it)"),
    TWS_INTEGER("threads", 0, "N", options, threads, 1, 1024, "threads of a rank (default: cores / ranks)"),
    TWS_FLAG("dry-run", 0, options, dry_run, "print rank -> host -> device and stop"),
    TWS_FLAG("print-map", 0, options, print_map, "print rank -> host -> device to standard output, then start"),
    TWS_FLAG("print-command", 0, options, print_command, "print the command that starts the ranks and stop"),
    TWS_OPTIONS_END};

const tws_verb tws_verb_launch = {
    .name = "launch",
    .summary = "runs a command once per rank and monitors the ranks",
    .usage = "[-n N | --hostfile FILE] [options] -- COMMAND [arguments]",
    .examples =
        "  twinspeed launch -n 4 -- ./my-mpi-program --steps 10\n"
        "  twinspeed launch --hostfile hosts --include worker-0@worker-1:0,2 --dry-run\n"
        "  twinspeed launch --include localhost:1 -- ./my-cuda-program\n"
        "  twinspeed launch --hostfile hosts --launcher pdsh --master-port 29501 -- python train.py\n"
        "  twinspeed launch --hostfile hosts --no-ssh --node-rank 1 --master-addr 10.0.0.1 -- python train.py\n",
    .notes =
        "The command runs under mpirun, on this machine or on the hosts of a hostfile (through ssh without a\n"
        "password, with this program and the command at the same path on each), or under srun within a Slurm\n"
        "allocation. Its environment has RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and\n"
        "MASTER_PORT. When a rank fails all others are terminated; the message has its number and the exit code is\n"
        "5. There is no deadline, since the progress of other programs is not known: `timeout 2h twinspeed launch\n"
        "...` limits the job and terminates all ranks. With --json the command's output goes to standard error, and\n"
        "the mapping of ranks to standard output, after all have succeeded.\n"
        "With --launcher pdsh, openmpi, mpich, impi, mvapich or slurm that program starts and monitors the\n"
        "ranks, with the command line of DeepSpeed's launcher of that name; --print-command prints it, installed\n"
        "or not.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .defaults = &(const options){.node_rank = -1},
    .arguments_max = -1,
    .arguments_rest = 1,
    .run = run_launch,
};
