/* twinspeed manual: writes the manual page in roff, and the reference page of all subcommands in Markdown, from their
 * option tables. */
#include <string.h>

#include "cli/cli.h"
#include "cli/version.h"

typedef struct options {
  int markdown;
} options;

static const struct {
  const char *status, *text;
} statuses[] = {{"0", "yes"},
                {"1", "the answer is no: it does not fit, a tolerance is exceeded"},
                {"2", "wrong usage"},
                {"3", "invalid input: a configuration, model, cluster, profile or data file"},
                {"4", "environment: something is missing, a file cannot be written, memory is exhausted"},
                {"5", "a rank failed"},
                {"124", "a rank made no progress before the deadline"},
                {"130", "interrupted"}};

/* ---- roff ---- */

/* Writes a text in roff: backslashes and dashes are escaped, and a dot or quote at the start of a line is protected. */
static void write_roff(const char *text) {
  int line_start = 1;
  for (; *text; text++) {
    if (line_start && (*text == '.' || *text == '\'')) tws_out("\\&");
    if (*text == '\\')
      tws_out("\\\\");
    else if (*text == '-')
      tws_out("\\-");
    else
      tws_out("%c", *text);
    line_start = *text == '\n';
  }
}

static void write_roff_rows(const tws_option *row) {
  for (; row && row->name; row++) {
    tws_out(".TP\n");
    if (row->letter) tws_out("\\fB\\-%c\\fR, ", row->letter);
    tws_out("\\fB\\-\\-");
    write_roff(row->name);
    tws_out("\\fR");
    if (row->argument) {
      tws_out(" \\fI");
      write_roff(row->argument);
      tws_out("\\fR");
    }
    tws_out("\n");
    write_roff(row->help);
    tws_out("\n");
  }
}

static void write_roff_verb(const tws_verb *verb) {
  tws_out(".SS twinspeed %s ", verb->name);
  write_roff(verb->usage ? verb->usage : "[options]");
  tws_out("\n");
  write_roff(verb->summary);
  tws_out(".\n");
  if (verb->examples) {
    tws_out(".PP\n.nf\n");
    write_roff(verb->examples);
    tws_out(".fi\n");
  }
  write_roff_rows(verb->options);
  if (verb->notes) {
    tws_out(".PP\n.nf\n");
    write_roff(verb->notes);
    tws_out(".fi\n");
  }
}

static void write_manual(const tws_verb *const *verbs) {
  tws_out(
      ".TH TWINSPEED 1 \"\" \"twinspeed %s\" \"User Commands\"\n.SH NAME\n"
      "twinspeed \\- predicts, tunes and runs the training of large neural networks\n"
      ".SH SYNOPSIS\n.B twinspeed\n.I VERB\n[options]\n.SH VERBS\n",
      TWS_VERSION);
  for (const tws_verb *const *verb = verbs; *verb; verb++)
    if (!(*verb)->hidden) write_roff_verb(*verb);
  tws_out(".SH OPTIONS OF EVERY VERB\n");
  write_roff_rows(tws_global_options());
  tws_out(".SH EXIT STATUS\n");
  for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
    tws_out(".TP\n%s\n%s\n", statuses[i].status, statuses[i].text);
  tws_out(
      ".SH ENVIRONMENT\n.TP\nNO_COLOR\nwhen set and not empty: plain text\n.TP\nTWINSPEED_MODULES\n"
      "the folder to load twinspeed_sim.so and twinspeed_real.so from\n");
}

/* ---- Markdown ---- */

/* Writes a cell of a table. A vertical bar in it is escaped, since it would begin the next cell. */
static void write_cell(const char *text) {
  for (; *text; text++) tws_out(*text == '|' ? "\\|" : *text == '<' ? "&lt;" : "%c", *text);
}

static void write_markdown_rows(const tws_option *row) {
  tws_out("\n| option | value | effect |\n|---|---|---|\n");
  for (; row && row->name; row++) {
    tws_out("| ");
    if (row->letter) tws_out("`-%c`, ", row->letter);
    tws_out("`--%s` | ", row->name);
    if (row->argument) write_cell(row->argument);
    tws_out(" | ");
    write_cell(row->help);
    tws_out(" |\n");
  }
}

/* Writes the examples as lines of a code block; in the option table they are indented by two spaces. */
static void write_markdown_examples(const char *text) {
  tws_out("\n<!-- not run: the suites of each verb run commands like these -->\n\n");
  while (*text) {
    const int length = (int)strcspn(text, "\n");
    tws_out("  %.*s\n", length, text);
    text += length + (text[length] == '\n');
  }
}

static void write_markdown(const tws_verb *const *verbs) {
  tws_out(
      "# Verbs and options\nThe output of `twinspeed manual --markdown`, from the option tables of the verbs (`cli/`); "
      "`TWINSPEED_UPDATE=1 build/tests/test_reference` writes it again. `twinspeed VERB --help` prints the options of "
      "one "
      "verb with its notes, [the command line](command-line.md) has the conventions.\n");
  for (const tws_verb *const *verb = verbs; *verb; verb++) {
    const tws_verb *v = *verb;
    if (v->hidden) continue;
    tws_out("\n## %s\n`twinspeed %s ", v->name, v->name);
    tws_out("%s`: %s.\n", v->usage ? v->usage : "[options]", v->summary);
    if (v->examples) write_markdown_examples(v->examples);
    write_markdown_rows(v->options);
  }
  tws_out("\n## Options of every verb\n");
  write_markdown_rows(tws_global_options());
  tws_out("\n## Exit status\n| status | meaning |\n|---|---|\n");
  for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
    tws_out("| %s | %s |\n", statuses[i].status, statuses[i].text);
}

static tws_code run_manual(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  const options *o = raw;
  (void)argc;
  (void)argv;
  (void)err;
  if (o->markdown)
    write_markdown(cli->verbs);
  else
    write_manual(cli->verbs);
  return TWS_OK;
}

static const tws_option table[] = {
    TWS_FLAG("markdown", 0, options, markdown, "print the reference of all verbs and options as a Markdown page"),
    TWS_OPTIONS_END};

const tws_verb tws_verb_manual = {
    .name = "manual",
    .summary = "prints the manual page in roff",
    .usage = "[--markdown] > twinspeed.1",
    .examples = "  twinspeed manual | man -l -\n",
    .options = table,
    .options_bytes = sizeof(options),
    .hidden = 1,
    .run = run_manual,
};
