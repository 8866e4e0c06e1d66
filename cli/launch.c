/* twinspeed launch: run any command once per rank; which host and device each rank gets is printed first. */
#include <string.h>
#include "base/process.h"
#include "cli/cli.h"
#include "launch/command.h"
#include "cli/launch_options.h"

typedef struct options {
  int64_t ranks, threads;
  tws_launch_flags flags;
  int dry_run, print_map, print_command;
} options;

/* The command that starts the ranks, quoted as a shell takes it. */
static tws_code show_command(const tws_launch_options *launch, tws_arena *arena, tws_error *err) {
  const char **words;
  TWS_TRY(tws_launch_command(launch, arena, &words, err));
  tws_text line = {0};
  for (int i = 0; words[i]; i++) {
    if (i) tws_text_add(&line, " ");
    tws_process_quote(&line, words[i]);
  }
  tws_text_add(&line, "\n");
  return tws_out_text(&line, err);
}

static tws_code start_command(tws_cli *cli, const options *o, int argc, char **argv, tws_arena *arena, tws_error *err) {
  tws_hosts hosts;
  tws_launch_options launch = {.to_stderr = cli->json, .log = &cli->log};
  TWS_TRY(tws_launch_flags_read(&o->flags, o->ranks, arena, &hosts, &launch, err));
  launch.threads = tws_launch_threads(o->threads, launch.ranks);
  if (!o->dry_run) TWS_TRY(tws_command_find(argv[0], err));
  const char **command = tws_arena_alloc(arena, (size_t)argc + 2, sizeof *command);
  if (!command) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  command[launch.argument_count++] = "launch";
  command[launch.argument_count++] = "--";
  for (int i = 0; i < argc; i++) command[launch.argument_count++] = argv[i];
  launch.arguments = command;
  if (o->print_command) return show_command(&launch, arena, err);
  if (o->dry_run || !cli->json) TWS_TRY(tws_launch_show(cli, &hosts, o->dry_run || o->print_map, err));
  if (o->dry_run) return TWS_OK;
  TWS_TRY(tws_launch(&launch, err));
  return cli->json ? tws_launch_show(cli, &hosts, 1, err) : TWS_OK;
}

static tws_code run_launch(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  const options *o = raw;
  if (argc == 0 && !o->dry_run && !o->print_command)
    return tws_fail(err, TWS_USAGE, "twinspeed launch -n 4 -- COMMAND ...", "launch: no command was given");
  tws_arena *arena = tws_arena_create();
  char **command = arena ? tws_arena_alloc(arena, (size_t)argc + 1, sizeof *command) : NULL; /* ends with NULL */
  tws_code code = command ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (command) memcpy(command, argv, (size_t)argc * sizeof *command);
  if (code == TWS_OK)
    code = tws_worker_is() ? tws_command_run(command, err) : start_command(cli, o, argc, command, arena, err);
  tws_arena_destroy(arena);
  return code;
}

static const tws_option table[] = {
    TWS_INTEGER("ranks", 'n', "N", options, ranks, 1, TWS_MAX_SLOTS, "ranks on this machine (default 1)"),
    TWS_LAUNCH_OPTIONS(options, flags),
    TWS_INTEGER("threads", 0, "N", options, threads, 1, 1024, "threads of a rank (default: cores / ranks)"),
    TWS_FLAG("dry-run", 0, options, dry_run, "print rank -> host -> device and stop"),
    TWS_FLAG("print-map", 0, options, print_map, "print rank -> host -> device to standard output, and go on"),
    TWS_FLAG("print-command", 0, options, print_command, "print the command that starts the ranks and stop"),
    TWS_OPTIONS_END};

const tws_verb tws_verb_launch = {
    .name = "launch",
    .summary = "runs a command once per rank and watches over it",
    .usage = "[-n N | --hostfile FILE] [options] -- COMMAND [arguments]",
    .examples =
        "  twinspeed launch -n 4 -- ./my-mpi-program --steps 10\n"
        "  twinspeed launch --hostfile hosts --include worker-0@worker-1:0,2 --dry-run\n",
    .notes =
        "The command runs under mpirun, on this machine or on the hosts of a hostfile (through ssh, without a "
        "password;\n"
        "this program and the command at the same place everywhere), or under srun within a Slurm allocation. It "
        "finds\n"
        "RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment. The first "
        "rank\n"
        "that fails ends all others; its number is in the message and the exit code is 5. There is no deadline, since "
        "a\n"
        "foreign program does not say whether it still computes: `timeout 2h twinspeed launch ...` limits the whole "
        "job,\n"
        "and ends all ranks. With --json the command's\n"
        "output goes to standard error, and where each rank ran to standard output, once all have ended well.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .arguments_max = -1,
    .arguments_rest = 1,
    .run = run_launch,
};
