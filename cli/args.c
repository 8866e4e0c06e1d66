/* Parses options by a table, suggests similar names for unknown ones, and prints the help from the same table. */
#include <string.h>
#include "base/json.h"
#include "base/units.h"
#include "cli/cli.h"

const tws_option *tws_global_options(void) {
  static const tws_option rows[] = {
      TWS_FLAG("json", 0, tws_cli, json, "the result as one JSON document"),
      TWS_FLAG("quiet", 'q', tws_cli, quiet, "no narration and no progress on standard error"),
      TWS_FLAG("verbose", 'v', tws_cli, verbose, "more narration"),
      {"no-color", 0, NULL, TWS_OPTION_FLAG, SIZE_MAX, 0, 0, "plain text (also: NO_COLOR=1)"},
      {"help", 'h', NULL, TWS_OPTION_FLAG, SIZE_MAX, 0, 0, "this text"},
      TWS_OPTIONS_END};
  return rows;
}

typedef struct found {
  const tws_option *option;
  void *base; /* struct to which the option's offset refers */
} found;

/* Accepted synonyms: former names of options, and names of DeepSpeed's launcher. */
static const struct {
  const char *former, *name;
} renamed[] = {{"sequence-regions", "sequence-parallel"}, {"num-accelerators", "num-gpus"}};

/* Returns 1 if the first `length` letters of a word are this name, with '_' accepted for '-': DeepSpeed's --num_gpus is
 * --num-gpus here. */
static int is_name(const char *name, const char *word, size_t length) {
  size_t i = 0;
  while (i < length && name[i] && (name[i] == word[i] || (name[i] == '-' && word[i] == '_'))) i++;
  return i == length && !name[i];
}

static const char *present_name(const char *name, size_t *length) {
  for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
    if (is_name(renamed[i].former, name, *length)) {
      *length = strlen(renamed[i].name);
      return renamed[i].name;
    }
  return name;
}

static found find_option(const tws_verb *verb, tws_cli *cli, void *options, const char *name, size_t length,
                         char letter) {
  const tws_option *tables[2] = {verb->options, tws_global_options()};
  void *bases[2] = {options, cli};
  if (!letter) name = present_name(name, &length);
  for (int t = 0; t < 2; t++)
    for (const tws_option *row = tables[t]; row && row->name; row++) {
      int same = letter ? row->letter == letter : is_name(row->name, name, length);
      if (same) return (found){row, bases[t]};
    }
  return (found){NULL, NULL};
}

static tws_code unknown_option(const tws_verb *verb, const char *word, const char *name, size_t length,
                               tws_error *err) {
  const char *names[96];
  char given[64], hint[160];
  size_t count = 0;
  const tws_option *tables[2] = {verb->options, tws_global_options()};
  for (int t = 0; t < 2; t++)
    for (const tws_option *row = tables[t]; row && row->name && count < 96; row++) names[count++] = row->name;
  snprintf(given, sizeof given, "%.*s", (int)(length < 60 ? length : 60), name);
  const char *close = length ? tws_closest(given, names, count) : NULL;
  if (close)
    snprintf(hint, sizeof hint, "did you mean --%s?", close);
  else
    snprintf(hint, sizeof hint, "\"twinspeed %s --help\" lists the options", verb->name);
  return tws_fail(err, TWS_USAGE, hint, "%s: unknown option \"%.80s\"", verb->name, word);
}

/* Parses "2048,4096" for an option that accepts lists; *is_list 0: a single value, or the option accepts no lists. */
static tws_code set_list(const tws_verb *verb, void *options, const tws_option *row, const char *what,
                         const char *value, int *is_list, tws_error *err) {
  *is_list = 0;
  for (int i = 0; verb->swept && verb->swept[i] && row->offset != SIZE_MAX; i++) {
    if (strcmp(verb->swept[i], row->name) != 0) continue;
    tws_option_lists *sweep = (tws_option_lists *)(void *)((char *)options + verb->sweep_offset);
    tws_option_list *axis = &sweep->axis[i];
    *axis = (tws_option_list){.name = row->name, .offset = row->offset};
    if (!strchr(value, ',')) return TWS_OK;
    *is_list = 1;
    return tws_parse_list(value, what, (int64_t)row->low, (int64_t)row->high, axis->values, TWS_LIST_VALUES,
                          &axis->count, err);
  }
  return TWS_OK;
}

/* Refuses an empty name of a file or folder, which an empty variable of the shell gives. */
static tws_code check_name(const tws_option *row, const char *value, tws_error *err) {
  char hint[96];
  if (*value || (strcmp(row->argument, "FILE") != 0 && strcmp(row->argument, "DIR") != 0)) return TWS_OK;
  snprintf(hint, sizeof hint, "--%s %s; is a variable of the shell empty?", row->name, row->argument);
  return tws_fail(err, TWS_USAGE, hint, "--%s: the name is empty", row->name);
}

static tws_code set_option(const tws_verb *verb, tws_cli *cli, const found *it, const char *value, tws_error *err) {
  const tws_option *row = it->option;
  if (row->offset == SIZE_MAX) {
    cli->color_out = cli->color_err = 0;
    return TWS_OK;
  }
  void *target = (char *)it->base + row->offset;
  char what[64];
  int is_list;
  snprintf(what, sizeof what, "--%s", row->name);
  if (row->type == TWS_OPTION_STRING || row->type == TWS_OPTION_LIST) TWS_TRY(check_name(row, value, err));
  switch (row->type) {
    case TWS_OPTION_FLAG:
      *(int *)target = 1;
      return TWS_OK;
    case TWS_OPTION_INTEGER:
      TWS_TRY(set_list(verb, it->base, row, what, value, &is_list, err));
      if (is_list) return TWS_OK;
      return tws_parse_integer(value, what, (int64_t)row->low, (int64_t)row->high, target, err);
    case TWS_OPTION_NUMBER:
      return tws_parse_number(value, what, row->low, row->high, target, err);
    case TWS_OPTION_BYTES:
      TWS_TRY(tws_parse_bytes(value, what, target, err));
      if (row->high > 0 && !(*(double *)target >= row->low && *(double *)target <= row->high))
        return tws_fail(err, TWS_USAGE, NULL, "%s: \"%.40s\" is outside %.0f .. %.0f bytes", what, value, row->low,
                        row->high);
      return TWS_OK;
    case TWS_OPTION_STRING:
      *(const char **)target = value;
      return TWS_OK;
    case TWS_OPTION_LIST: {
      tws_strings *list = target;
      if (list->count == TWS_MAX_STRINGS)
        return tws_fail(err, TWS_USAGE, NULL, "%s: --%s was given more than %d times", verb->name, row->name,
                        TWS_MAX_STRINGS);
      list->item[list->count++] = value;
      return TWS_OK;
    }
  }
  return tws_fail(err, TWS_INTERNAL, NULL, "option --%s has an unknown type", row->name);
}

/* Parses one word that starts with a dash; advances *i if the next word is its value. */
static tws_code parse_option(const tws_verb *verb, tws_cli *cli, void *options, int argc, char **argv, int *i,
                             int *help, tws_error *err) {
  const char *word = argv[*i], *value = NULL;
  found it;
  if (word[1] == '-') {
    const char *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) - 2 : strlen(word + 2);
    it = find_option(verb, cli, options, word + 2, length, 0);
    if (!it.option) return unknown_option(verb, word, word + 2, length, err);
    if (equals) value = equals + 1;
  } else {
    it = find_option(verb, cli, options, NULL, 0, word[1]);
    if (!it.option) return unknown_option(verb, word, word + 1, strlen(word + 1), err);
    if (word[2]) value = word + 2;
  }
  if (it.option->type == TWS_OPTION_FLAG) {
    if (value) {
      if (word[1] == '-') return tws_fail(err, TWS_USAGE, NULL, "%s: --%s takes no value", verb->name, it.option->name);
      return tws_fail(err, TWS_USAGE, "give letters one by one: -q -v", "%s: -%c takes no value", verb->name, word[1]);
    }
    if (strcmp(it.option->name, "help") == 0) {
      *help = 1;
      return TWS_OK;
    }
  } else if (!value) {
    if (*i + 1 >= argc)
      return tws_fail(err, TWS_USAGE, NULL, "%s: --%s needs a value: --%s %s", verb->name, it.option->name,
                      it.option->name, it.option->argument);
    value = argv[++*i];
  }
  if (strcmp(it.option->name, "runtime") == 0 && strcmp(value, "help") == 0) {
    *help = TWS_HELP_RUNTIMES;
    return TWS_OK;
  }
  return set_option(verb, cli, &it, value, err);
}

tws_code tws_args_parse(const tws_verb *verb, tws_cli *cli, void *options, int argc, char **argv, int *count, int *help,
                        tws_error *err) {
  int n = 0, only_arguments = 0;
  *help = 0;
  for (int i = 0; i < argc && !*help; i++) {
    char *word = argv[i];
    if (!only_arguments && strcmp(word, "--") == 0) {
      only_arguments = 1;
    } else if (!only_arguments && word[0] == '-' && word[1]) {
      TWS_TRY(parse_option(verb, cli, options, argc, argv, &i, help, err));
    } else {
      if (verb->arguments_max >= 0 && n >= verb->arguments_max)
        return tws_fail(err, TWS_USAGE, "put quotes around texts with spaces", "%s: unexpected argument \"%.80s\"",
                        verb->name, word);
      argv[n++] = word;
      if (verb->arguments_rest) only_arguments = 1;
    }
  }
  *count = n;
  return TWS_OK;
}

/* Returns 1 if the option's member differs from its default. */
static int is_given(const tws_option *row, const void *options, const void *without) {
  static const size_t size[] = {[TWS_OPTION_FLAG] = sizeof(int),      [TWS_OPTION_INTEGER] = sizeof(int64_t),
                                [TWS_OPTION_NUMBER] = sizeof(double), [TWS_OPTION_BYTES] = sizeof(double),
                                [TWS_OPTION_STRING] = sizeof(char *), [TWS_OPTION_LIST] = sizeof(tws_strings)};
  return memcmp((const char *)options + row->offset, (const char *)without + row->offset, size[row->type]) != 0;
}

static int is_among(const char *name, const char *const *names) {
  while (*names && strcmp(*names, name) != 0) names++;
  return *names != NULL;
}

tws_code tws_args_only(const tws_verb *verb, const void *options, const char *const *allowed, const char *hint,
                       const char *why, tws_error *err) {
  for (const tws_option *row = verb->options; row->name; row++)
    if (!is_among(row->name, allowed) && is_given(row, options, verb->defaults))
      return tws_fail(err, TWS_USAGE, hint, "--%s %s", row->name, why);
  const tws_option_lists *lists =
      verb->swept ? (const tws_option_lists *)(const void *)((const char *)options + verb->sweep_offset) : NULL;
  for (int i = 0; lists && i < TWS_LISTS; i++)
    if (lists->axis[i].count > 0 && !is_among(verb->swept[i], allowed))
      return tws_fail(err, TWS_USAGE, hint, "--%s %s", verb->swept[i], why);
  return TWS_OK;
}

static void print_rows(const tws_option *row) {
  for (; row && row->name; row++) {
    char left[64];
    snprintf(left, sizeof left, "%c%c%c --%s%s%s", row->letter ? '-' : ' ', row->letter ? row->letter : ' ',
             row->letter ? ',' : ' ', row->name, row->argument ? " " : "", row->argument ? row->argument : "");
    if (strlen(left) > 30) {
      tws_out("  %s\n", left);
      left[0] = '\0';
    }
    tws_out_wrapped(34, "  %-30s  %s", left, row->help);
  }
}

/* Prints an example command; one that is too long is continued on the next line in shell syntax. */
static void print_example(const char *line, size_t length) {
  enum { INDENT = 6 };
  for (int first = 1; length > TWS_WIDTH; first = 0) {
    size_t cut = TWS_WIDTH - 2;
    while (cut > INDENT && !(line[cut] == ' ' && line[cut + 1] == '-')) cut--;
    if (cut == INDENT) break;
    tws_out("%*s%.*s \\\n", first ? 0 : INDENT, "", (int)cut, line);
    line += cut + 1;
    length -= cut + 1;
    if (length + INDENT <= TWS_WIDTH) {
      tws_out("%*s%.*s\n", INDENT, "", (int)length, line);
      return;
    }
  }
  tws_out("%.*s\n", (int)length, line);
}

static void print_examples(const char *text) {
  for (size_t length; *text; text += length + (text[length] == '\n')) {
    length = strcspn(text, "\n");
    print_example(text, length);
  }
}

/* Rewraps the lines of a paragraph; a short line ends a paragraph. */
static void print_notes(const char *text) {
  enum { SHORT = 72 };
  tws_text paragraph = {0};
  for (size_t length; *text; text += length + (text[length] == '\n')) {
    length = strcspn(text, "\n");
    tws_text_add(&paragraph, "%s%.*s", paragraph.length ? " " : "", (int)length, text);
    if (length >= SHORT && text[length] && text[length + 1]) continue;
    tws_out_wrapped(0, "%s", paragraph.data ? paragraph.data : "");
    tws_text_free(&paragraph);
  }
}

void tws_print_help(const tws_verb *verb) {
  tws_out_wrapped(2, "twinspeed %s: %s", verb->name, verb->summary);
  if (verb->examples) {
    tws_out("\nExamples:\n");
    print_examples(verb->examples);
  }
  tws_out("\n");
  tws_out_wrapped(6, "Usage: twinspeed %s %s", verb->name, verb->usage ? verb->usage : "[options]");
  if (verb->options && verb->options->name) {
    tws_out("\nOptions:\n");
    print_rows(verb->options);
  }
  tws_out("\nEverywhere:\n");
  print_rows(tws_global_options());
  if (verb->notes) {
    tws_out("\n");
    print_notes(verb->notes);
  }
}
