/* Prints the program's output: results to standard output, messages to standard error. */
#include <ctype.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "base/escape.h"
#include "cli/cli.h"

static void clear_progress(void);

/* ---- escaping ---- */

static const char *const styles[] = {"\033[0m", "\033[1m", "\033[32m", "\033[31m", "\033[2m"};
static int styled; /* 1: standard output may show styles */

/* Returns the length in bytes of the style sequence with which the text begins, or 0. */
static size_t style_length(const char *text, size_t length) {
  for (size_t i = 0; i < sizeof styles / sizeof *styles && styled && *text == '\033'; i++)
    if (strlen(styles[i]) <= length && strncmp(text, styles[i], strlen(styles[i])) == 0) return strlen(styles[i]);
  return 0;
}

/* Appends a text with its control characters escaped, except newlines, tabs and the sequences of tws_style(): names of
 * hosts and files, and contents of files, must not send control sequences to the terminal. */
static void add_printable(tws_text *out, const char *text, size_t length) {
  for (size_t at = 0, from = 0; at <= length; at++) {
    const size_t style = at < length ? style_length(text + at, length - at) : 0;
    if (at < length && !style) continue;
    tws_escape_text(text + from, at - from, "\n\t", out);
    tws_text_add_bytes(out, text + at, style);
    from = at + style;
    if (style) at = from - 1;
  }
}

static void put(const char *text, size_t length) {
  tws_text out = {0};
  if (tws_escape_is_plain(text, length, "\n\t")) {
    fwrite(text, 1, length, stdout);
    return;
  }
  add_printable(&out, text, length);
  if (out.length) fwrite(out.data, 1, out.length, stdout);
  tws_text_free(&out);
}

void tws_out(const char *format, ...) {
  char line[2048], *text = line;
  clear_progress();
  va_list list, again;
  va_start(list, format);
  va_copy(again, list);
  const int length = vsnprintf(line, sizeof line, format, list);
  va_end(list);
  if (length >= (int)sizeof line) {
    text = tws_calloc((size_t)length + 1, 1);
    if (text) vsnprintf(text, (size_t)length + 1, format, again);
  }
  va_end(again);
  if (length > 0 && text) put(text, (size_t)length);
  if (text != line) tws_free(text);
}

void tws_out_bytes(const char *bytes, size_t count) {
  static tws_escape state;
  tws_text out = {0};
  clear_progress();
  if (!isatty(STDOUT_FILENO)) {
    fwrite(bytes, 1, count, stdout);
    return;
  }
  tws_escape_add(&state, bytes, count, "\n\t\r", &out);
  if (out.length) fwrite(out.data, 1, out.length, stdout);
  tws_text_free(&out);
}

/* ---- lines ---- */

/* Returns the number of terminal columns of a word; escape sequences and continuation bytes of UTF-8 take none. */
static int word_width(const char *word, size_t length) {
  int width = 0, escape = 0;
  for (size_t i = 0; i < length; i++) {
    if (word[i] == '\033') escape = 1;
    width += !escape && ((unsigned char)word[i] & 0xc0) != 0x80;
    if (escape && word[i] == 'm') escape = 0;
  }
  return width;
}

static void put_wrapped(const char *text, int indent) {
  int column = 0;
  for (const char *at = text; *at;) {
    size_t blanks = strspn(at, " "), length = strcspn(at + blanks, " ");
    const int width = word_width(at + blanks, length);
    if (column > indent && column + (int)blanks + width > TWS_WIDTH) {
      printf("\n%*s", indent, "");
      column = indent;
    } else {
      printf("%*s", (int)blanks, "");
      column += (int)blanks;
    }
    fwrite(at + blanks, 1, length, stdout);
    column += width;
    at += blanks + length;
  }
  putchar('\n');
}

void tws_out_wrapped(int indent, const char *format, ...) {
  char line[4096];
  clear_progress();
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  tws_text text = {0};
  add_printable(&text, line, strlen(line));
  put_wrapped(text.data ? text.data : "", indent);
  tws_text_free(&text);
}

tws_code tws_out_json(cJSON *json, tws_error *err) {
  char *text = json ? cJSON_Print(json) : NULL;
  cJSON_Delete(json);
  if (!text) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  clear_progress();
  tws_text out = {0};
  tws_escape state = {.json = 1}; /* cJSON escapes controls up to U+001F itself */
  if (tws_escape_is_plain(text, strlen(text), "\n\t")) {
    puts(text);
  } else {
    tws_escape_add(&state, text, strlen(text), "\n\t", &out);
    tws_escape_end(&state, &out);
    puts(out.data ? out.data : "");
  }
  const int failed = out.failed;
  tws_text_free(&out);
  cJSON_free(text);
  return failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory") : TWS_OK;
}

tws_code tws_out_text(tws_text *text, tws_error *err) {
  int failed = text->failed;
  clear_progress();
  if (text->data) put(text->data, text->length);
  tws_text_free(text);
  return failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory") : TWS_OK;
}

/* The number of progress lines that the terminal shows: the next output replaces them. */
volatile sig_atomic_t tws_progress_lines;
static int lines_width; /* width of the terminal in columns when they were drawn */

int tws_erases_lines(void) { /* a dumb terminal has no control sequences */
  const char *terminal = getenv("TERM");
  return isatty(STDERR_FILENO) && terminal && strcmp(terminal, "dumb") != 0;
}

static void terminal_size(int *columns, int *rows) {
  struct winsize size = {0};
  const int known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0;
  *columns = known && size.ws_col > 0 ? size.ws_col : 80;
  *rows = known && size.ws_row > 0 ? size.ws_row : 24;
}

/* Writes the sequence that erases the progress lines, the last of which the cursor is on; returns its length. In a
 * terminal whose width has changed since, the lines may have other lengths: they stay. */
static int erase_sequence(char *to, size_t size) {
  int columns, rows;
  terminal_size(&columns, &rows);
  if (tws_progress_lines > 1 && columns != lines_width) return snprintf(to, size, "\n");
  if (tws_progress_lines > 1) return snprintf(to, size, "\r\033[%dA\033[J", (int)tws_progress_lines - 1);
  return snprintf(to, size, "\r\033[K");
}

static void clear_progress(void) {
  char erase[32];
  if (!tws_progress_lines) return;
  erase_sequence(erase, sizeof erase);
  fputs(erase, stderr);
  tws_progress_lines = 0;
}

/* Draws progress lines in place of the previous ones, with relative moves of the cursor only: whenever the process
 * ends, the terminal is as usable as before. */
void tws_draw_lines(const char *const *lines, int count) {
  char text[4096];
  int columns, rows, length = 0;
  terminal_size(&columns, &rows);
  fflush(stdout); /* keeps the order if both streams go to one terminal */
  if (count > rows - 2) count = rows > 3 ? rows - 2 : 1;
  if (tws_progress_lines) length = erase_sequence(text, sizeof text);
  for (int i = 0; i < count; i++) {
    const int room = (int)sizeof text - length, width = columns - 1;
    const int written = snprintf(text + length, (size_t)room, "%s\033[K%.*s", i ? "\n" : "", width, lines[i]);
    if (written < 0 || written >= room) break;
    length += written;
  }
  lines_width = columns;
  tws_progress_lines = count;
  if (write(STDERR_FILENO, text, (size_t)length) < 0) tws_progress_lines = 0;
}

/* Prints one line: newlines and tabs become blanks, and other control characters are escaped. */
static void put_error(const char *text) {
  tws_text out = {0};
  for (; *text; text += strcspn(text, "\n\t\r")) {
    for (; *text == '\n' || *text == '\t' || *text == '\r'; text++) tws_text_add(&out, " ");
    tws_escape_text(text, strcspn(text, "\n\t\r"), "", &out);
  }
  if (out.data) fputs(out.data, stderr);
  tws_text_free(&out);
}

static void print_line(const char *text) {
  put_error(text);
  fputc('\n', stderr);
}

static void print_formatted(const char *format, va_list list) {
  char line[4096];
  vsnprintf(line, sizeof line, format, list);
  print_line(line);
}

void tws_say(const tws_cli *cli, const char *format, ...) {
  if (cli->quiet) return;
  fflush(stdout); /* keeps the order if both streams go to one terminal */
  clear_progress();
  va_list list;
  va_start(list, format);
  print_formatted(format, list);
  va_end(list);
}

void tws_warn(const tws_cli *cli, const char *format, ...) {
  fflush(stdout);
  clear_progress();
  fputs(cli->color_err ? "\033[33mwarning:\033[0m " : "warning: ", stderr);
  va_list list;
  va_start(list, format);
  print_formatted(format, list);
  va_end(list);
}

void tws_print_error(const tws_cli *cli, const tws_error *err) {
  fflush(stdout);
  if (!tws_progress_lines)
    tws_progress_lines = tws_erases_lines(); /* a rank that has exited may have left a progress line */
  clear_progress();
  for (const char *line = err->message; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
    char one[sizeof err->message];
    snprintf(one, sizeof one, "%.*s", (int)strcspn(line, "\n"), line);
    fputs(cli->color_err ? "\033[31mtwinspeed:\033[0m " : "twinspeed: ", stderr);
    print_line(one);
  }
  if (err->hint[0]) {
    fputs("hint: ", stderr);
    print_line(err->hint);
  }
}

const char *tws_style(const tws_cli *cli, tws_style_name style) {
  styled |= cli->color_out;
  return cli->color_out ? styles[style] : "";
}

static void draw_progress(void *user, const char *line) {
  (void)user;
  fputs("\r\033[K", stderr);
  put_error(line);
  fflush(stderr);
  tws_progress_lines = 1;
}

tws_progress tws_cli_progress(const tws_cli *cli) {
  tws_progress progress = {0};
  if (!cli->quiet && tws_erases_lines()) progress.draw = draw_progress;
  return progress;
}

const char *tws_cell(const char *format, ...) {
  static char buffers[32][192];
  static unsigned next;
  char *buffer = buffers[next++ % 32];
  va_list list;
  va_start(list, format);
  vsnprintf(buffer, sizeof buffers[0], format, list);
  va_end(list);
  return buffer;
}

void tws_table_init(tws_table *table, int columns) {
  memset(table, 0, sizeof *table);
  table->columns = columns;
}

void tws_table_row(tws_table *table, const char *const *cells) {
  if (table->failed) return;
  if (table->rows == table->capacity) {
    int capacity = table->capacity ? 2 * table->capacity : 16;
    char **grown = tws_realloc(table->cells, (size_t)capacity * (size_t)table->columns, sizeof *grown);
    if (!grown) {
      table->failed = 1;
      return;
    }
    table->cells = grown;
    table->capacity = capacity;
  }
  char **row = table->cells + (size_t)table->rows * (size_t)table->columns;
  for (int c = 0; c < table->columns; c++) {
    tws_text cell = {0}; /* the escaped text, whose width determines the column's */
    tws_escape_text(cells[c] ? cells[c] : "", cells[c] ? strlen(cells[c]) : 0, "", &cell);
    tws_text_add_bytes(&cell, "", 0);
    row[c] = cell.data;
    table->failed |= cell.failed || !cell.data;
  }
  table->rows++;
}

static void remove_column(tws_table *table, int column) {
  for (int r = 0, to = 0; r < table->rows; r++)
    for (int c = 0; c < table->columns; c++) {
      char *cell = table->cells[r * table->columns + c];
      if (c == column)
        tws_free(cell);
      else
        table->cells[to++] = cell;
    }
  table->columns--;
}

void tws_table_compact(tws_table *table, int before, int after, tws_text *same) {
  for (int c = 0; c < table->columns && !table->failed;) {
    int empty = 1, alike = c >= before && c < table->columns - after;
    for (int r = 1; r < table->rows; r++) {
      const char *cell = table->cells[r * table->columns + c];
      empty &= !*cell || strcmp(cell, "-") == 0;
      alike &= strcmp(cell, table->cells[table->columns + c]) == 0;
    }
    if (!empty && alike)
      tws_text_add(same, "%s%s %s", same->length ? ", " : "", table->cells[c], table->cells[table->columns + c]);
    if (empty || alike)
      remove_column(table, c);
    else
      c++;
  }
}

static int looks_numeric(const char *text) {
  while (*text == ' ' || *text == '+' || *text == '-' || *text == '<' || *text == '~') text++;
  return isdigit((unsigned char)*text) || *text == '\0';
}

static int display_width(const char *text) { /* UTF-8: continuation bytes take no column */
  int width = 0;
  for (; *text; text++) width += ((unsigned char)*text & 0xc0) != 0x80;
  return width;
}

tws_code tws_table_print(const tws_cli *cli, tws_table *table, tws_error *err) {
  int failed = table->failed;
  for (int r = 0; r < table->rows && !failed; r++) {
    if (r == 0) fputs(tws_style(cli, TWS_BOLD), stdout);
    for (int c = 0; c < table->columns; c++) {
      int width = 0, right = table->rows > 1;
      for (int i = 0; i < table->rows; i++) {
        const char *cell = table->cells[i * table->columns + c];
        int w = display_width(cell);
        if (w > width) width = w;
        if (i > 0 && !looks_numeric(cell)) right = 0;
      }
      const char *cell = table->cells[r * table->columns + c];
      int pad = width - display_width(cell), last = c + 1 == table->columns;
      if (c) fputs("  ", stdout);
      if (right && !(last && !*cell)) printf("%*s", pad, "");
      fputs(cell, stdout);
      if (!right && !last) printf("%*s", pad, "");
    }
    if (r == 0) fputs(tws_style(cli, TWS_PLAIN_OUTPUT), stdout);
    putchar('\n');
  }
  for (int i = 0; i < table->rows * table->columns; i++) tws_free(table->cells[i]);
  tws_free(table->cells);
  memset(table, 0, sizeof *table);
  return failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory") : TWS_OK;
}
