/* Ulysses: the tokens and heads of each rank, compared with golden vectors and with an exchange of every element. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/sequence_rules.h"
#include "tests/draw.h"
#include "tests/members.h"
#include "tests/suite.h"

/* ---- Ulysses ---- */

/* A tensor of the whole sequence and all heads: [batch][sequence][heads][width], or [sequence][batch][heads][width].
 * Outside attention a rank holds sequence / ranks tokens of the tensor, inside it heads / ranks heads; `ranks` divides
 * both. */
typedef struct ulysses_tensor {
  int ranks, sequence_first;
  int64_t batch, sequence, heads, width;
} ulysses_tensor;

/* Returns the number of elements that a rank has, which is the same before and after the all-to-all. */
static int64_t ulysses_elements(const ulysses_tensor *tensor) {
  return tensor->batch * (tensor->sequence / tensor->ranks) * tensor->heads * tensor->width;
}

/* Returns the number of a rank's elements that are sent to other ranks. */
static int64_t ulysses_sent(const ulysses_tensor *tensor) {
  return ulysses_elements(tensor) / tensor->ranks * (tensor->ranks - 1);
}

typedef struct place {
  int64_t batch, token, head, column;
} place;

static place split_index(const ulysses_tensor *t, int64_t tokens, int64_t heads, int64_t index) {
  place at;
  at.column = index % t->width;
  index /= t->width;
  at.head = index % heads;
  index /= heads;
  int64_t inner = t->sequence_first ? t->batch : tokens;
  at.batch = t->sequence_first ? index % inner : index / inner;
  at.token = t->sequence_first ? index / inner : index % inner;
  return at;
}

static int64_t join_index(const ulysses_tensor *t, int64_t tokens, int64_t heads, const place *at) {
  int64_t outer = t->sequence_first ? at->token * t->batch + at->batch : at->batch * tokens + at->token;
  return (outer * heads + at->head) * t->width + at->column;
}

/* Computes the rank, and the index in its tensor, from which element `index` of a rank's tensor comes in the all-to-all
 * into attention, from token shards to head shards. */
static void ulysses_before_attention(const ulysses_tensor *tensor, int rank, int64_t index, int *from_rank,
                                     int64_t *from_index) {
  int64_t tokens = tensor->sequence / tensor->ranks, heads = tensor->heads / tensor->ranks;
  place at = split_index(tensor, tensor->sequence, heads, index);
  *from_rank = (int)(at.token / tokens);
  at.token %= tokens;
  at.head += rank * heads;
  *from_index = join_index(tensor, tokens, tensor->heads, &at);
}

/* Computes the source of an element in the inverse exchange, the all-to-all after attention. */
static void ulysses_after_attention(const ulysses_tensor *tensor, int rank, int64_t index, int *from_rank,
                                    int64_t *from_index) {
  int64_t tokens = tensor->sequence / tensor->ranks, heads = tensor->heads / tensor->ranks;
  place at = split_index(tensor, tokens, tensor->heads, index);
  *from_rank = (int)(at.head / heads);
  at.head %= heads;
  at.token += rank * tokens;
  *from_index = join_index(tensor, tensor->sequence, heads, &at);
}

START_TEST(ulysses_golden) {
  tws_json *json = golden_file("ulysses.json");
  const cJSON *c;
  int cases = 0;
  cJSON_ArrayForEach(c, member(json->root, "cases")) {
    const cJSON *shape = member(c, "shape"), *input = member(c, "local_in"), *output = member(c, "after_scatter_heads");
    int64_t dims[4];
    for (int i = 0; i < 4; i++) dims[i] = (int64_t)cJSON_GetArrayItem(shape, i)->valuedouble;
    int later = integer(c, "batch_dim_idx") == 1;
    ulysses_tensor tensor = {.ranks = integer(c, "P"),
                             .sequence_first = later,
                             .batch = dims[later],
                             .sequence = dims[!later],
                             .heads = dims[2],
                             .width = dims[3]};
    for (int rank = 0; rank < tensor.ranks; rank++) {
      const cJSON *expected = cJSON_GetArrayItem(output, rank);
      ck_assert_int_eq(ulysses_elements(&tensor), cJSON_GetArraySize(expected));
      for (int i = 0; i < cJSON_GetArraySize(expected); i++) {
        int from;
        int64_t index;
        ulysses_before_attention(&tensor, rank, i, &from, &index);
        double value = cJSON_GetArrayItem(cJSON_GetArrayItem(input, from), (int)index)->valuedouble;
        ck_assert_msg(value == cJSON_GetArrayItem(expected, i)->valuedouble, "case %d, rank %d, element %d", cases,
                      rank, i);
      }
    }
    cases++;
  }
  ck_assert_int_eq(cases, 4);
  tws_json_destroy(json);
}
END_TEST

START_TEST(ulysses_returns_every_element) {
  for (uint64_t seed = 0; seed < 100; seed++) {
    int ranks = draw(seed, 0, 1, 5);
    ulysses_tensor tensor = {.ranks = ranks,
                             .sequence_first = (int)(seed % 2),
                             .batch = draw(seed, 1, 1, 3),
                             .sequence = ranks * draw(seed, 2, 1, 4),
                             .heads = ranks * draw(seed, 3, 1, 3),
                             .width = draw(seed, 4, 1, 3)};
    int64_t elements = ulysses_elements(&tensor), away = 0;
    for (int rank = 0; rank < ranks; rank++) {
      for (int64_t i = 0; i < elements; i++) {
        int there, home;
        int64_t at, back;
        ulysses_after_attention(&tensor, rank, i, &there, &at);
        ck_assert(there >= 0 && there < ranks && at >= 0 && at < elements);
        ulysses_before_attention(&tensor, there, at, &home, &back);
        ck_assert(home == rank && back == i);
        away += there != rank;
      }
    }
    ck_assert_int_eq(away, ulysses_sent(&tensor) * ranks);
  }
}
END_TEST

START_TEST(ulysses_heads) {
  tws_error err = {0};
  tws_ulysses_part part;
  int legal = 0;
  for (uint64_t seed = 0; seed < 500; seed++) {
    int group = draw(seed, 0, 1, 4), kv = draw(seed, 1, 1, 8), ranks = draw(seed, 2, 1, 8), tokens = 840;
    int heads = kv * group, held[32] = {0};
    for (int rank = 0; rank < ranks; rank++) {
      if (tws_ulysses_part_of(heads, kv, tokens, ranks, rank, &part, &err) != TWS_OK) {
        ck_assert(heads % ranks != 0 || (kv % ranks != 0 && ranks % kv != 0));
        int degree = 0; /* asserts that the degree in the hint is legal */
        ck_assert_int_eq(sscanf(err.hint, "the nearest smaller degree that is legal is %d", &degree), 1);
        ck_assert(tws_ulysses_part_of(heads, kv, tokens, degree, 0, &part, &err) == TWS_OK);
        break;
      }
      legal += rank == 0;
      ck_assert_int_eq(part.head_first, part.head_count * rank);
      ck_assert_int_eq(part.token_first, part.token_count * rank);
      /* each query head has its key and value head on the same rank */
      for (int64_t head = part.head_first; head < part.head_first + part.head_count; head++) {
        ck_assert(head / group >= part.kv_first && head / group < part.kv_first + part.kv_count);
      }
      for (int64_t head = part.kv_first; head < part.kv_first + part.kv_count; head++) held[head]++;
      if (rank == ranks - 1) {
        for (int head = 0; head < kv; head++) ck_assert_int_eq(held[head], part.kv_copies);
      }
    }
  }
  ck_assert_int_gt(legal, 100);
  ck_assert_int_eq(tws_ulysses_part_of(32, 8, 100, 8, 0, &part, &err), TWS_INVALID);
  ck_assert_msg(strstr(err.message, "tokens") && strstr(err.hint, "is 4"), "%s (%s)", err.message, err.hint);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("ulysses");
  TCase *c = tcase_create("ulysses");
  tcase_set_timeout(c, 120);
  tcase_add_test(c, ulysses_golden);
  tcase_add_test(c, ulysses_returns_every_element);
  tcase_add_test(c, ulysses_heads);
  suite_add_tcase(suite, c);
  return run_suite(suite);
}
