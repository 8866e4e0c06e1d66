/* The command line: the only place that prints, reads argv and picks exit codes.
 *
 * A subcommand is a constant: a name, help texts, a table of options and a function. Each cli/<name>.c defines one
 *     const tws_verb tws_verb_<name> = {...};
 * and its name stands in TWS_VERBS below. main.c parses the options into a zeroed (or defaulted) struct by the table,
 * prints --help, and calls run(), so that help, completion and the manual page come from the same rows.
 *
 * Results go to standard output (tws_out, tws_out_json), narration to standard error (tws_say, silent with --quiet).
 * run() returns a tws_code; main.c prints err as one line "twinspeed: message" and one "hint: ..." and exits with
 * tws_code_exit(code). TWS_NO with a filled error says why the answer is no. */
#ifndef TWS_CLI_CLI_H
#define TWS_CLI_CLI_H

#include <cjson/cJSON.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/strings.h"

typedef struct tws_cli {
  const char *program; /* path of this executable, to start ranks with */
  int json;            /* --json: the result is one JSON document on standard output */
  int quiet;           /* --quiet: no narration, no progress */
  int verbose;         /* --verbose: debug narration */
  int color_out, color_err;
  int exit_code; /* exit status of the program if run() returns TWS_OK, such as a child's; 0: tws_code_exit(TWS_OK) */
  tws_log log;   /* receives the library's messages and writes them to standard error */
  const struct tws_verb *const *verbs; /* all subcommands of the program, ended by NULL */
} tws_cli;

/* ---- options ---- */
typedef enum tws_option_type {
  TWS_OPTION_FLAG,    /* the member is an int, which is set to 1 */
  TWS_OPTION_INTEGER, /* the member is an int64_t in [low, high]; 2851e6 is accepted */
  TWS_OPTION_NUMBER,  /* the member is a double in [low, high] */
  TWS_OPTION_BYTES,   /* the member is a double, in bytes: 40GiB, 512MB */
  TWS_OPTION_STRING,  /* the member is a const char * */
  TWS_OPTION_LIST     /* the member is a tws_strings: the option may be given several times */
} tws_option_type;

typedef struct tws_option {
  const char *name;     /* name without the dashes; NULL ends a table */
  char letter;          /* letter of the short form; 0: none */
  const char *argument; /* "FILE" for the help; NULL for a flag */
  tws_option_type type;
  size_t offset; /* offset of the target in the subcommand's options struct */
  double low, high;
  const char *help;
} tws_option;

#define TWS_FLAG(name, letter, type, field, help) \
  { name, letter, NULL, TWS_OPTION_FLAG, offsetof(type, field), 0, 0, help }
#define TWS_INTEGER(name, letter, argument, type, field, low, high, help) \
  { name, letter, argument, TWS_OPTION_INTEGER, offsetof(type, field), low, high, help }
#define TWS_NUMBER(name, letter, argument, type, field, low, high, help) \
  { name, letter, argument, TWS_OPTION_NUMBER, offsetof(type, field), low, high, help }
#define TWS_BYTES(name, letter, argument, type, field, help) \
  { name, letter, argument, TWS_OPTION_BYTES, offsetof(type, field), 0, 0, help }
#define TWS_BYTES_BETWEEN(name, letter, argument, type, field, low, high, help) \
  { name, letter, argument, TWS_OPTION_BYTES, offsetof(type, field), low, high, help }
#define TWS_STRING(name, letter, argument, type, field, help) \
  { name, letter, argument, TWS_OPTION_STRING, offsetof(type, field), 0, 0, help }
#define TWS_LIST(name, letter, argument, type, field, help) \
  { name, letter, argument, TWS_OPTION_LIST, offsetof(type, field), 0, 0, help }
#define TWS_OPTIONS_END \
  { NULL, 0, NULL, TWS_OPTION_FLAG, 0, 0, 0, NULL }
/* The parser does not record which options were given: use defaults that are not legal values to tell them apart. */

/* Lists given for options that accept them; the subcommand runs one job for each combination (cli/lists.h). */
enum { TWS_LISTS = 9, TWS_LIST_VALUES = 64 };
typedef struct tws_option_list {
  const char *name;
  size_t offset; /* offset of the option's int64_t in the subcommand's options struct */
  int count;     /* 0: no list was given */
  int64_t values[TWS_LIST_VALUES];
} tws_option_list;
typedef struct tws_option_lists {
  tws_option_list axis[TWS_LISTS]; /* the lists, in the order of tws_verb.swept */
} tws_option_lists;

typedef struct tws_verb {
  const char *name, *summary;
  const char *usage;    /* arguments after the subcommand: "-m MODEL [options]" */
  const char *examples; /* lines shown first in the help */
  const char *notes;    /* paragraphs shown last, or NULL */
  const tws_option *options;
  size_t options_bytes;     /* size of the options struct */
  const void *defaults;     /* an options struct to start from, or NULL for zeros */
  int arguments_max;        /* maximum number of positional arguments; -1: unlimited */
  int arguments_rest;       /* 1: the first positional argument ends the options ("launch -n 4 command --its-option") */
  int hidden;               /* 1: the help does not list this subcommand */
  const char *const *swept; /* integer options that take lists, NULL-terminated, at most TWS_LISTS; NULL: none do */
  size_t sweep_offset;      /* with `swept`: offset of a tws_option_lists in the options struct */
  tws_code (*run)(tws_cli *cli, void *options, int argc, char **argv, tws_error *err); /* argv: positional arguments */
} tws_verb;

/* clang-format off */
#define TWS_VERBS(X)                                                                                       \
  X(estimate) X(check) X(simulate) X(emulate) X(tune) X(train) X(profile) X(validate) X(calibrate) X(report) X(doctor) \
  X(generate) X(predict) X(score) X(convert) X(inspect) X(launch) X(elastic) X(completion) X(manual) X(rank_worker)    \
  X(remote_shell)
/* clang-format on */
#define X(name) extern const tws_verb tws_verb_##name;
TWS_VERBS(X)
#undef X

const tws_option *tws_global_options(void); /* options that every subcommand accepts; their offsets are in tws_cli */

/* Parses argv (without program and subcommand) into options and positional arguments, which are moved to the front of
 * argv; their number is *count. If --help or --runtime help (TWS_HELP_RUNTIMES) is met, only *help is set. */
enum { TWS_HELP_VERB = 1, TWS_HELP_RUNTIMES };
tws_code tws_args_parse(const tws_verb *verb, tws_cli *cli, void *options, int argc, char **argv, int *count, int *help,
                        tws_error *err);
/* Fails with TWS_USAGE and the message "--OPTION why" if an option has been given that is not among the
 * NULL-terminated names `allowed`: its value differs from that of verb->defaults, or it has a list of values. */
tws_code tws_args_only(const tws_verb *verb, const void *options, const char *const *allowed, const char *hint,
                       const char *why, tws_error *err);
void tws_print_help(const tws_verb *verb);

/* ---- output ----
 * Control characters in printed text are escaped (base/escape.h), except newlines, tabs and the styles below. */
/* Flushes standard output. Output that is lost because its reader closed the pipe is no error; fails with TWS_IO if
 * output was lost otherwise, as on a full disk. */
tws_code tws_flush_output(tws_error *err);
void tws_out(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints a result byte for byte (a generated text); it is escaped only if standard output is a terminal. */
void tws_out_bytes(const char *bytes, size_t count);
/* Prints a text wrapped to lines of at most TWS_WIDTH columns; all lines but the first are indented. */
enum { TWS_WIDTH = 100 };
void tws_out_wrapped(int indent, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints and destroys `json`; fails with TWS_MEMORY if it is NULL. */
tws_code tws_out_json(cJSON *json, tws_error *err);
/* Prints and frees a text. */
tws_code tws_out_text(tws_text *text, tws_error *err);
void tws_say(const tws_cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
void tws_warn(const tws_cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
void tws_print_error(const tws_cli *cli, const tws_error *err); /* prints the error and its hint to standard error */
/* Returns the escape sequence of a style, as in tws_style(cli, TWS_BOLD); "": standard output is not a terminal. */
typedef enum tws_style_name { TWS_PLAIN_OUTPUT, TWS_BOLD, TWS_GREEN, TWS_RED, TWS_DIM } tws_style_name;
const char *tws_style(const tws_cli *cli, tws_style_name style);
/* Returns a progress bar for long work, which is disabled with --quiet, or if standard error is not a terminal. */
tws_progress tws_cli_progress(const tws_cli *cli);

int tws_erases_lines(void); /* returns 1 if standard error is a terminal that can erase lines */
/* Shows lines of progress on standard error, cut to the width of the terminal, in place of those that it shows already;
 * the next output of another kind replaces them. The text must be printable. Allocates nothing. */
void tws_draw_lines(const char *const *lines, int count);
extern volatile sig_atomic_t tws_progress_lines; /* the number of progress lines that the terminal shows */

/* A table of texts with aligned columns. A column whose cells all look like numbers is right-aligned. */
typedef struct tws_table {
  int columns, rows, capacity;
  char **cells; /* row-major; row 0 is the heading */
  int failed;
} tws_table;
void tws_table_init(tws_table *table, int columns);
/* Adds a row of `columns` texts; NULL: an empty cell. */
void tws_table_row(tws_table *table, const char *const *cells);
/* Removes columns without any text ("" or "-"). Columns whose cells are all equal are removed too, except the first
 * `before` and the last `after`, and listed in `same`: "ranks 8, recompute none". */
void tws_table_compact(tws_table *table, int before, int after, tws_text *same);
tws_code tws_table_print(const tws_cli *cli, tws_table *table, tws_error *err); /* prints and frees */
/* Formats a cell as printf does. Returns one of 32 buffers of 192 bytes, which are reused in turn. */
const char *tws_cell(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
