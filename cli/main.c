/* twinspeed: finds the subcommand, parses its options by its table, runs it, reports its error and picks the exit
 * code. */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/memory.h"
#include "base/json.h"
#include "base/system.h"
#include "cli/cli.h"
#include "cli/runtime_view.h"
#include "cli/signals.h"
#include "launch/launch.h"
#include "job/modules.h"
#include "cli/version.h"

static const tws_verb *const *all_verbs(void) {
  static const tws_verb *const list[] = {
#define X(name) &tws_verb_##name,
      TWS_VERBS(X)
#undef X
          NULL};
  return list;
}

static void print_usage(FILE *to) {
  fprintf(to,
          "Usage: twinspeed VERB [options]\n\n"
          "Predicts, tunes and runs the training of large neural networks.\n\n"
          "Examples:\n"
          "  twinspeed estimate -m llama-3-8b -c ds_config.json --cluster dgx-h100:4\n"
          "  twinspeed tune -m gpt2 -c ds_config.json --cluster dgx-a100:2\n"
          "  twinspeed train -m config.json -c ds_config.json -n 4 --data book.txt --steps 200\n\n"
          "Verbs:\n");
  for (const tws_verb *const *verb = all_verbs(); *verb; verb++)
    if (!(*verb)->hidden) fprintf(to, "  %-10s  %s\n", (*verb)->name, (*verb)->summary);
  fprintf(to,
          "\n\"twinspeed VERB --help\" explains a verb. \"twinspeed --version\" lists what this build can do.\n"
          "Exit codes: 0 yes; 1 the answer is no; 2 usage; 3 invalid input; 4 environment; 5 a rank "
          "failed;\n124 hang.\n");
}

static const tws_verb *find_verb(const char *name, tws_error *err) {
  const char *names[32];
  size_t count = 0;
  for (const tws_verb *const *verb = all_verbs(); *verb; verb++) {
    if (strcmp((*verb)->name, name) == 0) return *verb;
    if (!(*verb)->hidden) names[count++] = (*verb)->name;
  }
  const char *close = tws_closest(name, names, count);
  char hint[128];
  if (close)
    snprintf(hint, sizeof hint, "did you mean \"%s\"?", close);
  else
    snprintf(hint, sizeof hint, "\"twinspeed --help\" lists the verbs");
  tws_fail(err, TWS_USAGE, hint, "unknown verb \"%.100s\"", name);
  return NULL;
}

static void write_log(void *user, tws_log_level level, const char *line) {
  const tws_cli *cli = user;
  if (level == TWS_LOG_ERROR || level == TWS_LOG_WARNING)
    tws_warn(cli, "%s", line);
  else
    tws_say(cli, "%s", line);
}

static int wants_color(int fd) {
  const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
  return isatty(fd) && !(no_color && *no_color) && term && strcmp(term, "dumb") != 0;
}

/* Flushes standard output. A full disk is an error, not a silent loss. A reader that has closed the pipe (`| head`) is
 * no error: the remaining output is dropped, and the exit code is that of the subcommand. */
tws_code tws_flush_output(tws_error *err) {
  if (fflush(stdout) == 0 && !ferror(stdout)) return TWS_OK;
  struct pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT};
  if (poll(&output, 1, 0) == 1 && output.revents & (POLLERR | POLLHUP)) return TWS_OK;
  return tws_fail(err, TWS_IO, "is the disk full?", "cannot write to standard output");
}

static tws_code run_verb(tws_cli *cli, const tws_verb *verb, int argc, char **argv, tws_error *err) {
  void *options = tws_calloc(1, verb->options_bytes ? verb->options_bytes : 1);
  if (!options) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (verb->defaults) memcpy(options, verb->defaults, verb->options_bytes);
  int count = 0, help = 0;
  tws_code code = tws_args_parse(verb, cli, options, argc, argv, &count, &help, err);
  if (code == TWS_OK) {
    cli->log.level = cli->verbose ? TWS_LOG_DEBUG : cli->quiet ? TWS_LOG_WARNING : TWS_LOG_INFO;
    if (help == TWS_HELP_RUNTIMES)
      tws_runtimes_print();
    else if (help)
      tws_print_help(verb);
    else
      code = verb->run(cli, options, count, argv, err);
  }
  tws_free(options);
  return code;
}

static int is_word(const char *word, const char *const *list) {
  while (*list && strcmp(word, *list) != 0) list++;
  return *list != NULL;
}

static tws_code answer_verb(tws_cli *cli, int argc, char **argv, tws_error *err) {
  static const char *const helps[] = {"--help", "-h", "help", NULL}, *const versions[] = {"--version", "-V", NULL};
  const int help = is_word(argv[1], helps);
  if (is_word(argv[1], versions)) {
    tws_print_version();
    return TWS_OK;
  }
  if (help && argc == 2) {
    print_usage(stdout);
    return TWS_OK;
  }
  const tws_verb *verb = find_verb(argv[1 + help], err);
  if (!verb) return err->code;
  if (!help) return run_verb(cli, verb, argc - 2, argv + 2, err);
  tws_print_help(verb);
  return TWS_OK;
}

/* Opens /dev/null for closed standard streams, so that no file gets their descriptor and receives the output. */
static void open_standard_streams(void) {
  int fd;
  do fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

int main(int argc, char **argv) {
  static char path[4096];
  tws_keep_freed_memory();
  open_standard_streams();
  tws_cli cli = {.program = tws_program_path(path, (int)sizeof path), .verbs = all_verbs()};
  cli.log = (tws_log){.write = write_log, .user = &cli, .level = TWS_LOG_INFO};
  cli.color_out = wants_color(STDOUT_FILENO);
  cli.color_err = wants_color(STDERR_FILENO);
  tws_catch_signals(tws_worker_is());
  setvbuf(stdout, NULL, _IOLBF, 1 << 14); /* line-buffered: a reader of the pipe gets complete lines at once */
  if (argc < 2) {
    print_usage(stderr);
    return tws_code_exit(TWS_USAGE);
  }
  tws_error err = {0}, late = {0};
  tws_code code = answer_verb(&cli, argc, argv, &err);
  if ((code == TWS_OK || code == TWS_NO) && tws_flush_output(&late) != TWS_OK) {
    err = late;
    code = late.code;
  }
  if (code != TWS_OK && code != TWS_NO && !err.message[0]) tws_fail(&err, code, NULL, "%s", tws_code_text(code));
  if (code != TWS_OK && err.message[0]) tws_print_error(&cli, &err);
  return code == TWS_OK && cli.exit_code > 0 ? cli.exit_code : tws_code_exit(code);
}
