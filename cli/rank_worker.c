/* twinspeed rank-worker VERB ARGUMENTS: the hidden subcommand that runs a subcommand as one rank of a job. */
#include <string.h>
#include <unistd.h>
#include "base/unfinished.h"
#include "cli/cli.h"
#include "launch/launch.h"

static tws_code run_as_rank(tws_cli *cli, int argc, char **argv, tws_error *err) {
  const tws_verb *verb = NULL;
  for (const tws_verb *const *v = cli->verbs; argc > 0 && *v; v++)
    if (strcmp((*v)->name, argv[0]) == 0 && !(*v)->hidden) verb = *v;
  if (!verb) return tws_fail(err, TWS_USAGE, NULL, "rank-worker: no verb was given");
  void *options = tws_calloc(1, verb->options_bytes + 1);
  if (!options) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (verb->defaults) memcpy(options, verb->defaults, verb->options_bytes);
  int count = 0, help = 0;
  tws_code code = tws_args_parse(verb, cli, options, argc - 1, argv + 1, &count, &help, err);
  cli->log.level = cli->verbose ? TWS_LOG_DEBUG : cli->quiet ? TWS_LOG_WARNING : TWS_LOG_INFO;
  if (code == TWS_OK && !help) code = verb->run(cli, options, count, argv + 1, err);
  tws_free(options);
  return code;
}

static tws_code run_rank_worker(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  (void)raw;
  TWS_TRY(tws_worker_connect(err));
  for (int i = 0; i < argc; i++) argv[i] = tws_worker_argument(argv[i]);
  tws_code code = run_as_rank(cli, argc, argv, err);
  if (code == TWS_OK) code = tws_flush_output(err);
  if (code == TWS_OK) {
    tws_worker_done();
    return TWS_OK;
  }
  /* The launcher prints the first failure; this process exits at once, without waiting for ranks that wait for it. */
  tws_error local = {.code = code};
  tws_worker_fail(err ? err : &local);
  tws_unfinished_remove();
  _exit(tws_code_exit(code));
}

const tws_verb tws_verb_rank_worker = {.name = "rank-worker",
                                       .summary = "one rank of a job (started by twinspeed itself)",
                                       .usage = "VERB [options]",
                                       .options = (const tws_option[]){TWS_OPTIONS_END},
                                       .arguments_max = -1,
                                       .arguments_rest = 1,
                                       .hidden = 1,
                                       .run = run_rank_worker};
