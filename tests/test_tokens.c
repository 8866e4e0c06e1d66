/* Tokenizers against Hugging Face's library: token for token, there and back, on texts in many languages and on what is
 * odd in them; what is refused; every allocation failing. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "failing_allocator.h"
#include "members.h"
#include "suite.h"
#include "tokens/tokenizer.h"

static void check_ids(const tws_token_list *list, const cJSON *expected, const char *name, const char *text) {
  ck_assert_msg(list->count == (size_t)cJSON_GetArraySize(expected), "%s: %zu tokens, not %d, of \"%s\"", name,
                list->count, cJSON_GetArraySize(expected), text);
  const cJSON *one = expected->child;
  for (size_t i = 0; i < list->count; i++, one = one->next)
    ck_assert_msg(list->id[i] == (int32_t)one->valuedouble, "%s: token %zu is %d, not %.0f, of \"%s\"", name, i,
                  list->id[i], one->valuedouble, text);
}

static void check_text(tws_tokenizer *t, const cJSON *item, const char *name) {
  const char *text = cJSON_GetObjectItem(item, "text")->valuestring;
  tws_token_list plain = {0}, special = {0};
  tws_error err = {0};
  char *decoded = NULL;
  size_t length = 0;
  ck_assert_msg(tws_tokenizer_encode(t, text, strlen(text), 0, &plain, &err) == TWS_OK, "%s: %s", name, err.message);
  check_ids(&plain, cJSON_GetObjectItem(item, "ids"), name, text);
  ck_assert(tws_tokenizer_encode(t, text, strlen(text), 1, &special, &err) == TWS_OK);
  check_ids(&special, cJSON_GetObjectItem(item, "special"), name, text);
  ck_assert(tws_tokenizer_decode(t, plain.id, plain.count, 1, &decoded, &length, &err) == TWS_OK);
  ck_assert_msg(strcmp(decoded, cJSON_GetObjectItem(item, "decoded")->valuestring) == 0, "%s: \"%s\" became \"%s\"",
                name, text, decoded);
  tws_free(decoded);
  tws_token_free(&plain);
  tws_token_free(&special);
}

static tws_tokenizer *tokenizer_of(const cJSON *item) {
  char *text = cJSON_PrintUnformatted(cJSON_GetObjectItem(item, "tokenizer"));
  tws_tokenizer *t = NULL;
  tws_error err = {0};
  ck_assert_msg(tws_tokenizer_parse(text, strlen(text), "tokenizer.json", &t, &err) == TWS_OK, "%s", err.message);
  cJSON_free(text);
  return t;
}

START_TEST(as_the_library) {
  tws_json *golden = golden_file("tokenizers.json");
  const cJSON *one, *text;
  int cases = 0, texts = 0;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(golden->root, "cases")) {
    const char *name = cJSON_GetObjectItem(one, "name")->valuestring;
    tws_tokenizer *t = tokenizer_of(one);
    cJSON_ArrayForEach(text, cJSON_GetObjectItem(one, "texts")) {
      check_text(t, text, name);
      texts++;
    }
    tws_tokenizer_close(t);
    cases++;
  }
  ck_assert_int_eq(cases, 7);
  ck_assert_int_ge(texts, 7 * 25);
  tws_json_destroy(golden);
}
END_TEST

#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"

START_TEST(refusals) {
  static const struct {
    const char *text;
    tws_code code;
    const char *words;
  } cases[] = {
      {"[]", TWS_INVALID, "there is no \"model\" object"},
      {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", TWS_UNSUPPORTED, "known are BPE and Unigram"},
      {"{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", TWS_INVALID, "\"vocab\" must be an object"},
      {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", TWS_INVALID, "must be below"},
      {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", TWS_INVALID, "is no token"},
      {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", TWS_INVALID, "a merge must be"},
      {"{\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{\"a\":0},\"merges\":[]}}", TWS_INVALID, "dropout"},
      {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", TWS_INVALID, "expected [token, score]"},
      {"{" MODEL ",\"normalizer\":{\"type\":\"BertNormalizer\"}}", TWS_UNSUPPORTED, "\"BertNormalizer\" is not known"},
      {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"}}}", TWS_INVALID, "(a"},
      {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&[^b]]\"}}}", TWS_UNSUPPORTED,
       "intersections"},
      {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}}", TWS_INVALID, "one character"},
      {"{" MODEL ",\"decoder\":{\"type\":\"CTC\"}}", TWS_UNSUPPORTED, "\"CTC\" is not known"},
      {"{" MODEL ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}}", TWS_INVALID,
       "is damaged"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_tokenizer *t = NULL;
    tws_error err = {0};
    const tws_code code = tws_tokenizer_parse(cases[i].text, strlen(cases[i].text), "file", &t, &err);
    ck_assert_msg(code == cases[i].code && strstr(err.message, cases[i].words), "%s: %d %s", cases[i].text, code,
                  err.message);
    ck_assert_ptr_null(t);
  }
}
END_TEST

START_TEST(not_utf8) {
  tws_tokenizer *t = NULL;
  tws_token_list list = {0};
  tws_error err = {0};
  ck_assert(tws_tokenizer_parse("{" MODEL "}", strlen("{" MODEL "}"), "file", &t, &err) == TWS_OK);
  ck_assert(tws_tokenizer_encode(t, "ab\xff", 3, 0, &list, &err) == TWS_INVALID);
  ck_assert(strstr(err.message, "byte 2 is not UTF-8") != NULL);
  ck_assert_int_eq((int)list.count, 0);
  ck_assert_int_eq((int)tws_tokenizer_vocabulary(t), 3);
  ck_assert_int_eq((int)tws_tokenizer_find(t, "ab"), 2);
  ck_assert_int_eq((int)tws_tokenizer_end(t), -1);
  tws_token_free(&list);
  tws_tokenizer_close(t);
}
END_TEST

static tws_code read_and_use(void *user) {
  static const char text[] = "a \xc3\xa9 ab<|endoftext|>b  a";
  const char *file = user;
  tws_tokenizer *t = NULL;
  tws_token_list list = {0};
  char *decoded = NULL;
  size_t length;
  tws_code code = tws_tokenizer_parse(file, strlen(file), "file", &t, NULL);
  if (code == TWS_OK) code = tws_tokenizer_encode(t, text, strlen(text), 1, &list, NULL);
  if (code == TWS_OK) code = tws_tokenizer_decode(t, list.id, list.count, 0, &decoded, &length, NULL);
  tws_free(decoded);
  tws_token_free(&list);
  tws_tokenizer_close(t);
  return code;
}

START_TEST(no_memory) {
  static char bpe[] =
      "{" MODEL
      ",\"added_tokens\":[{\"id\":7,\"content\":\"<|endoftext|>\",\"normalized\":true}],"
      "\"normalizer\":{\"type\":\"Lowercase\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
      "{\"type\":\"Metaspace\",\"replacement\":\"_\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":true}]},"
      "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},"
      "{\"type\":\"Replace\",\"pattern\":{\"String\":\"_\"},\"content\":\" \"},{\"type\":\"ByteLevel\"}]}}";
  static char unigram[] =
      "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],[\"a\",-1],[\"b\",-2.5],[\"ab\",-1.5]]},"
      "\"pre_tokenizer\":{\"type\":\"Whitespace\"},\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"_\"}}";
  char *const files[] = {bpe, unigram};
  for (int i = 0; i < 2; i++) {
    long bad = 0;
    const long tried = fail_every_allocation(read_and_use, files[i], &bad);
    ck_assert_int_gt(tried, 20);
    ck_assert_int_eq(bad, 0);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("tokens");
  TCase *tests = tcase_create("tokens");
  tcase_add_test(tests, as_the_library);
  tcase_add_test(tests, refusals);
  tcase_add_test(tests, not_utf8);
  tcase_add_test(tests, no_memory);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
