/* Placements along an axis, on ranks that are arrays: every change of a placement preserves the tensor, and the change
 * of its gradient in the reverse direction preserves the gradient. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "plan/placement.h"
#include "suite.h"

enum { RANKS = 3, TOKENS = 6, FEATURES = 9 };

typedef struct tensor {
  double at[RANKS][TOKENS][FEATURES]; /* elements that a rank does not hold are 0 */
} tensor;

static int has(tws_placed placed, int rank, int token, int feature) {
  if (placed == TWS_PLACED_TOKENS || placed == TWS_PLACED_SAMPLES) return token / (TOKENS / RANKS) == rank;
  if (placed == TWS_PLACED_FEATURES || placed == TWS_PLACED_EXPERTS) return feature / (FEATURES / RANKS) == rank;
  return 1;
}

/* Returns an element of the whole tensor from what the ranks hold. */
static double whole_at(const tensor *t, tws_placed placed, int token, int feature) {
  double sum = 0;
  for (int r = 0; r < RANKS; r++) {
    const double here = t->at[r][token][feature];
    if (placed == TWS_PLACED_PARTIAL || has(placed, r, token, feature)) sum += here;
    if (placed == TWS_PLACED_REPLICATED || placed == TWS_PLACED_BROADCAST)
      ck_assert_double_eq(here, t->at[0][token][feature]);
  }
  return placed == TWS_PLACED_REPLICATED || placed == TWS_PLACED_BROADCAST ? sum / RANKS : sum;
}

/* Makes a tensor in a placement, of numbers whose sums are exact. */
static tensor placed_tensor(tws_placed placed) {
  tensor t;
  memset(&t, 0, sizeof t);
  for (int r = 0; r < RANKS; r++)
    for (int i = 0; i < TOKENS; i++)
      for (int j = 0; j < FEATURES; j++) {
        const int who = placed == TWS_PLACED_PARTIAL ? r : 0; /* partial sums differ between ranks, copies do not */
        if (has(placed, r, i, j)) t.at[r][i][j] = (double)(1 + (i * FEATURES + j) * 7 % 31 + 100 * who);
      }
  return t;
}

/* Returns the tensor that the collective leaves on each rank, by the communicators' contract: parts of a reduce-scatter
 * and slots of an all-to-all are those of the placement that it produces. */
static tensor exchanged(const tensor *from, int change, tws_placed to) {
  tensor out;
  memset(&out, 0, sizeof out);
  if (change == TWS_NO_COMMUNICATION) return *from;
  for (int r = 0; r < RANKS; r++)
    for (int s = 0; s < RANKS; s++)
      for (int i = 0; i < TOKENS; i++)
        for (int j = 0; j < FEATURES; j++) {
          const int mine =
              change == TWS_COLLECTIVE_ALL_REDUCE || change == TWS_COLLECTIVE_ALL_GATHER || has(to, r, i, j);
          if (mine) out.at[r][i][j] += from->at[s][i][j];
        }
  return out;
}

static void same_whole(const tensor *a, tws_placed placed_a, const tensor *b, tws_placed placed_b) {
  for (int i = 0; i < TOKENS; i++)
    for (int j = 0; j < FEATURES; j++)
      ck_assert_msg(whole_at(a, placed_a, i, j) == whole_at(b, placed_b, i, j), "%s to %s: element %d, %d",
                    tws_placed_name(placed_a), tws_placed_name(placed_b), i, j);
}

static int is_of_value(tws_placed placed) {
  return placed <= TWS_PLACED_FEATURES || placed == TWS_PLACED_SAMPLES || placed == TWS_PLACED_EXPERTS;
}

START_TEST(changes_keep_values_and_gradients) {
  int changes = 0;
  for (int f = 0; f < TWS_PLACED_COUNT; f++)
    for (int t = 0; t < TWS_PLACED_COUNT; t++) {
      const tws_placed from = (tws_placed)f, to = (tws_placed)t;
      const int change = tws_placed_change(from, to);
      if (from == to) ck_assert_int_eq(change, TWS_NO_COMMUNICATION);
      if (change == TWS_NO_CHANGE || from == to || !is_of_value(from)) continue;
      const tensor before = placed_tensor(from), after = exchanged(&before, change, to);
      same_whole(&before, from, &after, to);
      /* the gradient makes the reverse change */
      const tws_placed given = tws_placed_dual(to), wanted = tws_placed_dual(from);
      const int back = tws_placed_change(given, wanted);
      ck_assert_msg(back != TWS_NO_CHANGE, "%s to %s has no way back", tws_placed_name(from), tws_placed_name(to));
      const tensor gradient = placed_tensor(given), passed = exchanged(&gradient, back, wanted);
      same_whole(&gradient, given, &passed, wanted);
      changes++;
    }
  ck_assert_int_eq(changes, 9);
}
END_TEST

START_TEST(duals) {
  for (int p = 0; p < TWS_PLACED_COUNT; p++) {
    const tws_placed placed = (tws_placed)p;
    ck_assert_int_eq(tws_placed_dual(tws_placed_dual(placed)), placed);
    if (tws_placed_is_split(placed)) ck_assert_int_eq(tws_placed_dual(placed), placed);
  }
  ck_assert_int_eq(tws_placed_dual(TWS_PLACED_REPLICATED), TWS_PLACED_REPLICATED);
  ck_assert_int_eq(tws_placed_dual(TWS_PLACED_PARTIAL), TWS_PLACED_BROADCAST);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("placement");
  TCase *c = tcase_create("placement");
  tcase_add_test(c, changes_keep_values_and_gradients);
  tcase_add_test(c, duals);
  suite_add_tcase(suite, c);
  return run_suite(suite);
}
