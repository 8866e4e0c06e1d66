/* Reference pages of docs/ that are made from the program's own tables: keys of ds_config.json, keys of a cluster file,
 * runtimes, and verbs with their options. With TWINSPEED_UPDATE=1 the suite writes them again. */
#include <check.h>
#include <cjson/cJSON.h>
#include <ctype.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/cluster.h"
#include "config/keys.h"
#include "models/hardware/runtime.h"
#include "tests/command.h"
#include "tests/page.h"
#include "tests/suite.h"

#define DOCS TWS_TEST_DIR "/../docs/"
#define UPDATE "`TWINSPEED_UPDATE=1 build/tests/test_reference` writes it again"

static tws_error err;

/* Prints a cell of a table; a vertical bar is escaped, because it would begin the next cell. */
static void print_cell(FILE *out, const char *text) {
  for (; *text; text++) fprintf(out, *text == '|' ? "\\|" : *text == '<' ? "&lt;" : "%c", *text);
}

/* ---- keys of ds_config.json ---- */

static const char *const type_names[] = {
    [TWS_KEY_ANY] = "any",
    [TWS_KEY_BOOL] = "boolean",
    [TWS_KEY_INT] = "integer",
    [TWS_KEY_NUMBER] = "number",
    [TWS_KEY_STRING] = "string",
    [TWS_KEY_INT_OR_STRING] = "integer or string",
    [TWS_KEY_NUMBER_OR_LIST] = "number or list",
    [TWS_KEY_NUMBER_OR_PAIR] = "number or two",
    [TWS_KEY_PAIR] = "two numbers",
    [TWS_KEY_LIST] = "list",
    [TWS_KEY_STRING_LIST] = "list of strings",
    [TWS_KEY_INT_LIST] = "list of integers",
    [TWS_KEY_OBJECT] = "object",
    [TWS_KEY_BOOL_OR_OBJECT] = "boolean or object",
    [TWS_KEY_AXES] = "axes",
};

static void print_effect(FILE *out, const tws_key *key) {
  static const char *const words[] = {"memory", "time", "training", "reports"};
  const char *between = "";
  if (key->reason) {
    fprintf(out, "none: ");
    print_cell(out, key->reason);
    return;
  }
  for (int i = 0; i < 4; i++)
    if (key->parts & 1 << i) fprintf(out, "%s%s", between, words[i]), between = ", ";
  if (!*between) fprintf(out, key->moved_to ? "as `%s`" : "none", key->moved_to);
}

static void print_key(FILE *out, const tws_key *key) {
  fprintf(out, "| `%s`", key->path);
  if (key->alias) fprintf(out, " (also `%s`)", key->alias);
  fprintf(out, " | %s | ", type_names[key->type]);
  if (key->fallback) fprintf(out, "`%s`", *key->fallback ? key->fallback : "\"\"");
  fprintf(out, "%s | ", key->automatic ? (key->fallback ? " or `auto`" : "`auto`") : "");
  print_effect(out, key);
  fprintf(out, " | ");
  print_cell(out, key->doc ? key->doc : "");
  for (const char *word = key->values; word && *word;) {
    const int length = (int)strcspn(word, "|");
    fprintf(out, "%s`%.*s`", word == key->values ? " One of " : ", ", length, word);
    word += length + (word[length] == '|');
  }
  fprintf(out, "%s |\n", key->values ? "." : "");
}

static char *page_of_keys(void) {
  char *text = NULL, section[64] = "";
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  fprintf(
      out,
      "# Keys of ds_config.json\nAll keys that DeepSpeed documents and Twinspeed's own (`twinspeed.*`), from the table "
      "in `config/keys_*.inc` (" UPDATE
      "). The column *effect* says whether a key changes the predicted *memory*, the predicted *time*, the *training* "
      "itself, or only *reports*; for a key without an effect it says why. `twinspeed check -c ds_config.json` lists "
      "the keys of a file that have none; `--all-keys` prints every key with its value. `&lt;x>` is any name, `[]` a "
      "list of objects.\n");
  for (int general = 1; general >= 0; general--)
    for (size_t i = 0; i < tws_key_count; i++) {
      const tws_key *key = &tws_keys[i];
      const int head = (int)strcspn(key->path, ".");
      if ((strchr(key->path, '.') == NULL) != general) continue;
      if (general ? !*section : strncmp(section, key->path, (size_t)head) != 0 || section[head]) {
        snprintf(section, sizeof section, "%.*s", general ? 7 : head, general ? "General" : key->path);
        fprintf(out, "\n## %s\n| key | type | default | effect | meaning |\n|---|---|---|---|---|\n", section);
      }
      print_key(out, key);
    }
  fclose(out);
  return text;
}

START_TEST(keys_are_those_of_the_table) {
  char *expected = page_of_keys();
  assert_page(DOCS "keys.md", expected, "docs/keys.md is not what config/keys_*.inc say: " UPDATE);
  free(expected);
}
END_TEST

/* ---- keys of a cluster file ---- */

static void print_members(FILE *out, const cJSON *schema, const char *prefix) {
  const cJSON *one, *word;
  cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(schema, "properties")) {
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(one, "type");
    const cJSON *words = cJSON_GetObjectItemCaseSensitive(one, "enum");
    const cJSON *about = cJSON_GetObjectItemCaseSensitive(one, "description");
    char path[128];
    snprintf(path, sizeof path, "%s%s", prefix, one->string);
    fprintf(out, "| `%s` | ", path);
    if (cJSON_IsString(type)) fprintf(out, "%s", type->valuestring);
    if (cJSON_IsArray(type))
      cJSON_ArrayForEach(word, type) fprintf(out, "%s%s", word == type->child ? "" : " or ", word->valuestring);
    fprintf(out, " | ");
    if (about) print_cell(out, about->valuestring);
    if (words) fprintf(out, "%sOne of ", about ? ". " : "");
    cJSON_ArrayForEach(word, words) fprintf(out, "%s`%s`", word == words->child ? "" : ", ", word->valuestring);
    fprintf(out, " |\n");
    snprintf(path, sizeof path, "%s%s.", prefix, one->string);
    print_members(out, one, path);
  }
}

static char *page_of_clusters(void) {
  char *text = NULL;
  size_t length = 0;
  tws_text schema = {0};
  FILE *out = open_memstream(&text, &length);
  ck_assert_int_eq(tws_cluster_print_schema(&schema, &err), TWS_OK);
  cJSON *root = cJSON_Parse(schema.data);
  ck_assert_ptr_nonnull(root);
  fprintf(
      out,
      "# Keys of a cluster file\nA cluster file is a JSON object for `--cluster FILE[:NODES[xDEVICES]]`. All keys but "
      "`schema` are optional; keys that are absent have the value of `base`. The table is that of `twinspeed check "
      "--print-cluster-schema` (" UPDATE
      "). [Profiles and clusters](profiles.md) has an example, [devices, boxes and instances](hardware.md) the "
      "built-in "
      "names; `twinspeed convert cluster NAME -` prints one as a file.\n\n| key | type | meaning |\n|---|---|---|\n");
  print_members(out, root, "");
  fclose(out);
  cJSON_Delete(root);
  tws_text_free(&schema);
  return text;
}

START_TEST(cluster_keys_are_those_of_the_schema) {
  char *expected = page_of_clusters();
  assert_page(DOCS "cluster-keys.md", expected, "docs/cluster-keys.md is not what the schema says: " UPDATE);
  free(expected);
}
END_TEST

/* ---- runtimes ---- */

static char *page_of_runtimes(void) {
  static const char *const attention[] = {"as the profile", "unfused", "flash"};
  char *text = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&text, &length);
  fprintf(out,
          "# Runtimes\nA runtime names the software whose training step is predicted: `--runtime NAME`, or the key "
          "`runtime` of a profile. The default, `twinspeed`, is Twinspeed's own engine. Each runtime is a row of "
          "figures in "
          "`models/hardware/runtime.c` that modify a hardware profile (" UPDATE
          "). [Accuracy](accuracy.md#runtime-styles) has their sources and their errors on published runs.\n\n"
          "| runtime | software | attention |\n|---|---|---|\n");
  for (const char *const *name = tws_runtime_names(); *name; name++) {
    const tws_runtime *r = tws_runtime_find(*name);
    ck_assert_ptr_nonnull(r);
    fprintf(out, "| `%s` | ", r->name);
    print_cell(out, r->about);
    fprintf(out, " | %s |\n", attention[r->attention]);
  }
  fclose(out);
  return text;
}

START_TEST(runtimes_are_those_of_the_table) {
  char *expected = page_of_runtimes();
  assert_page(DOCS "runtimes.md", expected, "docs/runtimes.md is not what the table says: " UPDATE);
  free(expected);
}
END_TEST

/* ---- verbs ---- */

START_TEST(verbs_are_those_of_the_program) {
  command_result r = twinspeed("manual --markdown");
  ck_assert_msg(r.status == 0, "%s", r.err);
  assert_page(DOCS "verbs.md", r.out, "docs/verbs.md is not what `twinspeed manual --markdown` prints: " UPDATE);
  command_free(&r);
}
END_TEST

/* ---- links ---- */

static char *read_page(const char *path) {
  const int file = open(path, O_RDONLY);
  return file < 0 ? NULL : command_slurp(file);
}

/* Returns 1 if the text has a heading of that anchor, by GitHub's rule: letters in lower case, blanks as dashes, and no
 * punctuation but dashes and underscores. */
static int has_anchor(const char *text, const char *anchor) {
  for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
    const char *c = line + strspn(line, "#");
    size_t at = 0;
    if (c == line || *c != ' ') continue;
    for (c++; *c && *c != '\n' && (at == 0 || anchor[at - 1]); c++) {
      const int plain = isalnum((unsigned char)*c) || *c == '-' || *c == '_' || (unsigned char)*c >= 0x80;
      if (!plain && *c != ' ') continue;
      if (anchor[at] != (*c == ' ' ? '-' : tolower((unsigned char)*c))) break;
      at++;
    }
    if ((!*c || *c == '\n') && !anchor[at]) return 1;
  }
  return 0;
}

/* Checks the links of one page, given relative to the repository; returns their number. */
static int check_links(const char *page) {
  char path[512], folder[64], target[256];
  int count = 0;
  snprintf(path, sizeof path, TWS_TEST_DIR "/../%s", page);
  snprintf(folder, sizeof folder, "%.*s", strchr(page, '/') ? (int)(strchr(page, '/') + 1 - page) : 0, page);
  char *text = read_page(path);
  ck_assert_msg(text != NULL, "%s", page);
  for (const char *at = text; (at = strstr(at, "](")) != NULL; at += 2) {
    const int length = (int)strcspn(at + 2, ") \n");
    if (strncmp(at + 2, "http", 4) == 0 || at[2 + length] != ')' || length == 0) continue;
    snprintf(target, sizeof target, "%.*s", length, at + 2);
    char *anchor = strchr(target, '#');
    if (anchor) *anchor++ = '\0';
    snprintf(path, sizeof path, TWS_TEST_DIR "/../%s%s", *target ? folder : "", *target ? target : page);
    char *to = read_page(path);
    ck_assert_msg(to != NULL, "%s: the link to %s is dead", page, target);
    ck_assert_msg(!anchor || has_anchor(to, anchor), "%s: %s has no heading #%s", page, target, anchor);
    free(to);
    count++;
  }
  free(text);
  return count;
}

/* Links of the README, CONTRIBUTING and all pages lead to a file and a heading that exist; the README leads to the
 * reference pages, and the index of the site has every page once. */
START_TEST(links_lead_somewhere) {
  static const char *const linked[] = {"keys", "cluster-keys", "runtimes", "verbs", "operators", "hardware"};
  char *readme = read_page(TWS_TEST_DIR "/../README.md"), *index = read_page(DOCS "site/mkdocs.yml"), line[128];
  int links = check_links("README.md") + check_links("CONTRIBUTING.md");
  glob_t pages;
  ck_assert(readme && index);
  for (size_t i = 0; i < sizeof linked / sizeof *linked; i++) {
    snprintf(line, sizeof line, "(docs/%s.md)", linked[i]);
    ck_assert_msg(strstr(readme, line) != NULL, "README.md has no link to docs/%s.md", linked[i]);
  }
  ck_assert_int_eq(glob(DOCS "*.md", 0, NULL, &pages), 0);
  for (size_t i = 0; i < pages.gl_pathc; i++) {
    const char *name = strrchr(pages.gl_pathv[i], '/') + 1;
    snprintf(line, sizeof line, ": %s\n", name);
    const char *entry = strstr(index, line);
    ck_assert_msg(entry && !strstr(entry + 1, line), "docs/site/mkdocs.yml: nav has to name %s, once", name);
    snprintf(line, sizeof line, "docs/%s", name);
    links += check_links(line);
  }
  ck_assert_int_gt(links, 100);
  globfree(&pages);
  free(readme);
  free(index);
}
END_TEST

/* Without mkdocs `make site` prints what to install. */
START_TEST(site_without_mkdocs) {
  char *argv[] = {DOCS "site/build.sh", "/dev/null/site", NULL};
  setenv("MKDOCS", "/dev/null/mkdocs", 1);
  command_result r = command_execute(argv);
  ck_assert_msg(r.status == 4, "%d: %s", r.status, r.err);
  ck_assert_msg(strstr(r.err, "apt-get install mkdocs") != NULL, "%s", r.err);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *s = suite_create("reference");
  TCase *pages = tcase_create("pages");
  tcase_add_test(pages, keys_are_those_of_the_table);
  tcase_add_test(pages, cluster_keys_are_those_of_the_schema);
  tcase_add_test(pages, runtimes_are_those_of_the_table);
  tcase_add_test(pages, verbs_are_those_of_the_program);
  tcase_add_test(pages, links_lead_somewhere);
  tcase_add_test(pages, site_without_mkdocs);
  suite_add_tcase(s, pages);
  return run_suite(s);
}
