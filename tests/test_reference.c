/* Reference pages of docs/ that are made from the program's own tables: keys of ds_config.json, keys of a cluster file,
 * runtimes, and verbs with their options. TWINSPEED_UPDATE=1 writes them again. */
#include <check.h>
#include <cjson/cJSON.h>
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

/* A cell of a table, in which a vertical bar would begin the next cell. */
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

/* Each of the pages is linked from the README, and all pages are in the index of the site. */
START_TEST(pages_are_linked) {
  static const char *const pages[] = {"keys.md",  "cluster-keys.md", "runtimes.md",
                                      "verbs.md", "operators.md",    "hardware.md"};
  const int file = open(TWS_TEST_DIR "/../README.md", O_RDONLY);
  ck_assert_int_ge(file, 0);
  char *readme = command_slurp(file);
  for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
    char link[64];
    snprintf(link, sizeof link, "(docs/%s)", pages[i]);
    ck_assert_msg(strstr(readme, link) != NULL, "README.md has no link to docs/%s", pages[i]);
  }
  free(readme);
}
END_TEST

int main(void) {
  Suite *s = suite_create("reference");
  TCase *pages = tcase_create("pages");
  tcase_add_test(pages, keys_are_those_of_the_table);
  tcase_add_test(pages, cluster_keys_are_those_of_the_schema);
  tcase_add_test(pages, runtimes_are_those_of_the_table);
  tcase_add_test(pages, verbs_are_those_of_the_program);
  tcase_add_test(pages, pages_are_linked);
  suite_add_tcase(s, pages);
  return run_suite(s);
}
