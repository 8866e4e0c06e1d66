/* Tokenizers compared with Hugging Face's library token for token, encoding and decoding, on texts in many languages
 * and with unusual characters; refusals; every allocation failing. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "failing_allocator.h"
#include "members.h"
#include "sanitized.h"
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

static void check_file(const char *file, int expected_cases, int least_texts) {
  tws_json *golden = golden_file(file);
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
  ck_assert_int_eq(cases, expected_cases);
  ck_assert_int_ge(texts, least_texts);
  tws_json_destroy(golden);
}

START_TEST(as_the_library) {
  check_file("tokenizers.json", 7, 7 * 25);
}
END_TEST

/* BERT's WordPiece, uncased and cased, on accents, ideographs, unusual characters and invalid UTF-8. */
START_TEST(word_pieces) {
  check_file("wordpiece.json", 3, 120);
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
      {"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[],\"end_of_word_suffix\":\""
       "0123456789012345678901234567890123456789012345678901234567890123456789\"}}",
       TWS_INVALID, "at most 64 bytes"},
      {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{}}}", TWS_UNSUPPORTED, "known are BPE, Unigram and WordPiece"},
      {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", TWS_INVALID, "the unknown token \"[UNK]\" is no token"},
      {"{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", TWS_INVALID, "\"vocab\" must be an object"},
      {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", TWS_INVALID, "must be below"},
      {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", TWS_INVALID, "is no token"},
      {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", TWS_INVALID, "a merge must be"},
      {"{\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{\"a\":0},\"merges\":[]}}", TWS_INVALID, "dropout"},
      {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", TWS_INVALID, "expected [token, score]"},
      {"{" MODEL ",\"normalizer\":{\"type\":\"Nmt\"}}", TWS_UNSUPPORTED, "\"Nmt\" is not known"},
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
  static char pieces[] =
      "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"[UNK]\":0,\"a\":1,\"##b\":2}},\"normalizer\":{\"type\":"
      "\"BertNormalizer\"},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"decoder\":{\"type\":\"WordPiece\"}}";
  char *const files[] = {bpe, unigram, pieces};
  for (int i = 0; i < 3; i++) {
    long bad = 0;
    const long tried = fail_every_allocation(read_and_use, files[i], &bad);
    ck_assert_int_gt(tried, 20);
    ck_assert_int_eq(bad, 0);
  }
}
END_TEST

/* Parses a tokenizer in which a member (normalizer, pre-tokenizer or decoder) repeats `content` `times` times, with
 * `more` after it. */
static tws_code make_growing(const char *member, const char *content, size_t times, const char *more, tws_tokenizer **t,
                             tws_error *err) {
  tws_text text = {0};
  tws_text_add(&text, "{\n%s", member);
  for (size_t i = 0; i < times; i++) tws_text_add(&text, "%s", content);
  tws_text_add(&text, "%s,\n\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}", more);
  const tws_code code = tws_tokenizer_parse(text.data, text.length, "t.json", t, err);
  tws_text_free(&text);
  return code;
}

/* A small tokenizer and a small text cannot make the program allocate gigabytes: each case runs in a process with a
 * memory limit. */
START_TEST(memory_of_a_text_is_bounded) {
  enum { MIB = 1 << 20, TEXT = 30000 };
  static const struct {
    const char *member;
    size_t times;
    const char *more, *says;
  } cases[] = {{"\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"", MIB, "\"}",
                "t.json:2:1: \"Replace\" makes more than 964096 bytes of 30000"},
               {"\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"", 40, "\"}",
                "\"Replace\" makes more than"},
               {"\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"", MIB, "\"}", "\"Prepend\" makes more than"},
               {"\"added_tokens\":[{\"id\":2,\"content\":\"b\",\"normalized\":false}],\"normalizer\":{\"type\":"
                "\"Prepend\",\"prepend\":\"",
                3000, "\"}", "\"Prepend\" makes more than"}};
  struct rlimit memory = {(rlim_t)1 << 30, (rlim_t)1 << 30};
  if (!TWS_SANITIZED) setrlimit(RLIMIT_AS, &memory);
  char *text = malloc(TEXT);
  for (int i = 0; i < TEXT; i++) text[i] = i % 2 ? 'b' : 'a';
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_tokenizer *t = NULL;
    tws_token_list list = {0};
    tws_error err = {0};
    ck_assert_msg(make_growing(cases[i].member, "a", cases[i].times, cases[i].more, &t, &err) == TWS_OK, "%s",
                  err.message);
    if (i < 3) memset(text, 'a', TEXT);
    ck_assert_msg(tws_tokenizer_encode(t, text, TEXT, 0, &list, &err) == TWS_INVALID, "%zu", i);
    ck_assert_msg(strstr(err.message, cases[i].says) && err.hint[0], "%s", err.message);
    ck_assert_uint_le(list.count, 4096 + 32 * TEXT);
    tws_token_free(&list);
    tws_tokenizer_close(t);
    for (int k = 0; k < TEXT; k++) text[k] = k % 2 ? 'b' : 'a';
  }
  free(text);
}
END_TEST

START_TEST(memory_of_tokens_is_bounded) {
  enum { MIB = 1 << 20, TOKENS = 20000 };
  static int32_t ids[TOKENS];
  tws_tokenizer *t = NULL;
  tws_error err = {0};
  char *text = NULL;
  size_t length = 0;
  struct rlimit memory = {(rlim_t)1 << 30, (rlim_t)1 << 30};
  if (!TWS_SANITIZED) setrlimit(RLIMIT_AS, &memory);
  static const char replace[] = "\"decoder\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"";
  ck_assert_int_eq(make_growing(replace, "c", MIB, "\"}", &t, &err), TWS_OK);
  ck_assert_int_eq(tws_tokenizer_decode(t, ids, TOKENS, 0, &text, &length, &err), TWS_INVALID);
  ck_assert_msg(strstr(err.message, "t.json:2:1: \"Replace\" makes more than") && err.hint[0], "%s", err.message);
  tws_tokenizer_close(t);
  static const char added[] = "\"added_tokens\":[{\"id\":0,\"content\":\"";
  ck_assert_int_eq(make_growing(added, "c", MIB, "\"}]", &t, &err), TWS_OK);
  ck_assert_int_eq(tws_tokenizer_decode(t, ids, TOKENS, 0, &text, &length, &err), TWS_INVALID);
  ck_assert_msg(strstr(err.message, "more than 1024 bytes a token"), "%s", err.message);
  tws_tokenizer_close(t);
  static const char twice[] = "{\"type\":\"ByteLevel\"},";
  ck_assert_int_eq(make_growing("\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[", twice, 3,
                                "{\"type\":\"Whitespace\"}]}", &t, &err),
                   TWS_INVALID);
  ck_assert_msg(strstr(err.message, "\"ByteLevel\" more than 2 times"), "%s", err.message);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("tokens");
  TCase *tests = tcase_create("tokens"), *growth = tcase_create("growth");
  tcase_add_test(tests, as_the_library);
  tcase_add_test(tests, word_pieces);
  tcase_add_test(tests, refusals);
  tcase_add_test(tests, not_utf8);
  tcase_add_test(tests, no_memory);
  tcase_add_test(growth, memory_of_a_text_is_bounded);
  tcase_add_test(growth, memory_of_tokens_is_bounded);
  suite_add_tcase(suite, growth);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
