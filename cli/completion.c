/* twinspeed completion: shell completion, generated from the option tables of the subcommands. */
#include <string.h>
#include "cli/cli.h"
#include "cli/version.h"
#include "config/cluster.h"
#include "models/hardware/profile.h"
#include "models/hardware/runtime.h"
#include "models/network/network.h"

/* Returns 1 if the option's value is a file, so that file names are completed. */
static int takes_file(const tws_option *row) {
  return row->argument && (strstr(row->argument, "FILE") || strstr(row->argument, "DIR") ||
                           strcmp(row->argument, "MODEL") == 0 || strstr(row->argument, "NAME"));
}

static void add_names(const char *const *names, tws_text *words) {
  for (; *names; names++) tws_text_add(words, "%s%s", words->length ? " " : "", *names);
}

/* Appends the values of an option that are not files: built-in names, or its keywords. */
static void add_choices(const tws_option *row, tws_text *words) {
  static const struct {
    const char *option, *words;
  } known[] = {{"recompute", "none selective full operations"},
               {"dtype", "fp32 bf16 fp16"},
               {"sequence-algorithm", "ulysses ring"},
               {"schedule", "gpipe 1f1b interleaved zb-h1"},
               {"fidelity", "analytic flow message simgrid"},
               {"collectives", "rings nccl"},
               {"allocator", "fixed expandable"},
               {"measured", "step= product= memory= all-gather="},
               {"program", "train evaluate"},
               {"tuner", "model_based gridsearch random"},
               {"axes", "on off auto"},
               {"device", "host cuda"},
               {"launcher", "local mpirun ssh srun pdsh openmpi mpich impi mvapich slurm"},
               {"compat", "deepspeed deepspeed-0.3"},
               {"export", "deepspeed megatron torchtitan accelerate megatron-bridge"},
               {"stage", "0 1 2 3"},
               {"recomputes", "none selective full operations"},
               {"stages", "0 1 2 3"},
               {"schedules", "gpipe 1f1b interleaved zb-h1"},
               {"axis-order", "pipe,data,sequence,model"}};
  if (!row->argument) return;
  if (strcmp(row->name, "model") == 0) add_names(tws_network_builtin_names(), words);
  if (strcmp(row->name, "cluster") == 0) add_names(tws_cluster_builtin_names(), words);
  if (strcmp(row->name, "runtime") == 0) {
    add_names(tws_runtime_names(), words);
    tws_text_add(words, " help");
  }
  if (strcmp(row->name, "profile") == 0) add_names(tws_profile_builtin_names(), words);
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(known[i].option, row->name) == 0) tws_text_add(words, "%s", known[i].words);
}

/* Writes the choices of an option, such as "-m" and "--model", only once, since an option of several subcommands has
 * the same values in all of them. */
static void write_bash_choices(const tws_option *row, tws_text *seen) {
  for (; row && row->name; row++) {
    tws_text words = {0};
    char mark[80];
    snprintf(mark, sizeof mark, " --%s ", row->name);
    add_choices(row, &words);
    if (words.length && !(seen->data && strstr(seen->data, mark))) {
      tws_text_add(seen, "%s", mark);
      tws_out("    --%s", row->name);
      if (row->letter) tws_out("|-%c", row->letter);
      tws_out(") COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")%s); return ;;\n", words.data,
              takes_file(row) ? " $(compgen -f -- \"$cur\")" : "");
    }
    tws_text_free(&words);
  }
}

static void write_bash(const tws_verb *const *verbs) {
  tws_out(
      "# bash completion for twinspeed\n_twinspeed() {\n  local cur=${COMP_WORDS[COMP_CWORD]} words\n"
      "  COMPREPLY=()\n  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    words=\"--help --version");
  for (const tws_verb *const *verb = verbs; *verb; verb++)
    if (!(*verb)->hidden) tws_out(" %s", (*verb)->name);
  tws_out("\"\n  else\n    case ${COMP_WORDS[1]} in\n");
  for (const tws_verb *const *verb = verbs; *verb; verb++) {
    if ((*verb)->hidden) continue;
    tws_out("      %s) words=\"", (*verb)->name);
    for (const tws_option *row = (*verb)->options; row && row->name; row++) tws_out("--%s ", row->name);
    for (const tws_option *row = tws_global_options(); row->name; row++)
      tws_out("--%s%s", row->name, row[1].name ? " " : "\" ;;\n");
  }
  tws_text seen = {0};
  tws_out("    esac\n  fi\n  case ${COMP_WORDS[COMP_CWORD-1]} in\n");
  for (const tws_verb *const *verb = verbs; *verb; verb++)
    if (!(*verb)->hidden) write_bash_choices((*verb)->options, &seen);
  tws_text_free(&seen);
  tws_out(
      "  esac\n  case $cur in\n    -*) COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")) ;;\n"
      "    *) [ \"$COMP_CWORD\" -eq 1 ] && COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")) ;;\n  esac\n}\n"
      "complete -o bashdefault -o default -F _twinspeed twinspeed\n");
}

/* Writes a text for single quotes of zsh and fish; for zsh, [, ] and : are escaped too. */
static void write_quoted(const char *text, int zsh) {
  for (; *text; text++) {
    if (*text == '\'')
      tws_out(zsh ? "'\\''" : "\\'");
    else if (zsh && strchr("[]:\\", *text))
      tws_out("\\%c", *text);
    else
      tws_out("%c", *text);
  }
}

static void write_zsh_rows(const tws_option *row) {
  for (; row && row->name; row++) {
    tws_out("        '--%s%s[", row->name, row->argument ? "=" : "");
    write_quoted(row->help, 1);
    tws_text words = {0};
    add_choices(row, &words);
    if (words.length && takes_file(row))
      tws_out("]:value:{compadd %s; _files}' \\\n", words.data);
    else if (words.length)
      tws_out("]:value:(%s)' \\\n", words.data);
    else
      tws_out("]%s' \\\n", !row->argument ? "" : takes_file(row) ? ":value:_files" : ":value:");
    tws_text_free(&words);
  }
}

static void write_zsh(const tws_verb *const *verbs) {
  tws_out("#compdef twinspeed\n_twinspeed() {\n  local -a verbs\n  verbs=(\n");
  for (const tws_verb *const *verb = verbs; *verb; verb++) {
    if ((*verb)->hidden) continue;
    tws_out("    '%s:", (*verb)->name);
    write_quoted((*verb)->summary, 1);
    tws_out("'\n");
  }
  tws_out(
      "  )\n  if (( CURRENT == 2 )); then\n    _describe verb verbs\n    return\n  fi\n  local verb=$words[2]\n"
      "  shift words\n  (( CURRENT-- ))\n  case $verb in\n");
  for (const tws_verb *const *verb = verbs; *verb; verb++) {
    if ((*verb)->hidden) continue;
    tws_out("    %s)\n      _arguments \\\n", (*verb)->name);
    write_zsh_rows((*verb)->options);
    write_zsh_rows(tws_global_options());
    tws_out("        '*:file:_files' ;;\n");
  }
  tws_out("  esac\n}\n_twinspeed \"$@\"\n");
}

static void write_fish_rows(const char *condition, const tws_option *row) {
  for (; row && row->name; row++) {
    tws_out("complete -c twinspeed -n '%s' -l %s", condition, row->name);
    if (row->letter) tws_out(" -s %c", row->letter);
    tws_text words = {0};
    add_choices(row, &words);
    if (row->argument) tws_out(takes_file(row) ? " -r -F" : " -x");
    if (words.length) tws_out(" -a '%s'", words.data);
    tws_text_free(&words);
    tws_out(" -d '");
    write_quoted(row->help, 0);
    tws_out("'\n");
  }
}

static void write_fish(const tws_verb *const *verbs) {
  for (const tws_verb *const *verb = verbs; *verb; verb++) {
    if ((*verb)->hidden) continue;
    tws_out("complete -c twinspeed -f -n __fish_use_subcommand -a %s -d '", (*verb)->name);
    write_quoted((*verb)->summary, 0);
    tws_out("'\n");
  }
  for (const tws_verb *const *verb = verbs; *verb; verb++) {
    char condition[96];
    if ((*verb)->hidden) continue;
    snprintf(condition, sizeof condition, "__fish_seen_subcommand_from %s", (*verb)->name);
    write_fish_rows(condition, (*verb)->options);
    write_fish_rows(condition, tws_global_options());
  }
}

static tws_code run_completion(tws_cli *cli, void *options, int argc, char **argv, tws_error *err) {
  (void)options;
  const char *shell = argc > 0 ? argv[0] : "";
  if (strcmp(shell, "bash") == 0)
    write_bash(cli->verbs);
  else if (strcmp(shell, "zsh") == 0)
    write_zsh(cli->verbs);
  else if (strcmp(shell, "fish") == 0)
    write_fish(cli->verbs);
  else
    return tws_fail(err, TWS_USAGE, "source <(twinspeed completion bash)",
                    "completion: name a shell: bash, zsh or fish");
  return TWS_OK;
}

const tws_verb tws_verb_completion = {
    .name = "completion",
    .summary = "prints completion for a shell",
    .usage = "bash|zsh|fish",
    .examples =
        "  source <(twinspeed completion bash)\n  twinspeed completion fish > "
        "~/.config/fish/completions/twinspeed.fish\n",
    .arguments_max = 1,
    .hidden = 1,
    .run = run_completion,
};
