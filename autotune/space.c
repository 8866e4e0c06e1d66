/* Lists the points of a search space. */
#include "autotune/points.h"

typedef struct point_list {
  tws_variant *items;
  size_t count, capacity;
  int failed;
} point_list;

static int add_point(void *user, int64_t number, const tws_variant *variant) {
  point_list *list = user;
  (void)number;
  list->failed = tws_reserve(&list->items, &list->capacity, list->count + 1, sizeof *list->items);
  if (!list->failed) list->items[list->count++] = *variant;
  return !list->failed;
}

int tws_tune_has_points(const tws_tune_request *request) {
  tws_points p;
  const int has = tws_points_fill(request, &p, NULL) == TWS_OK && tws_points_count_distinct(&p, 1) > 0;
  tws_points_free(&p);
  return has;
}

tws_code tws_tune_enumerate(const tws_tune_request *request, tws_variant **points, int *count, tws_error *err) {
  tws_points p;
  point_list list = {0};
  tws_code code = tws_points_fill(request, &p, err);
  if (code == TWS_OK) tws_points_each(&p, add_point, &list);
  if (code == TWS_OK && list.failed) code = tws_fail(err, TWS_MEMORY, NULL, "no memory for the search space");
  if (code == TWS_OK && list.count == 0) code = tws_points_explain_none(&p, err);
  tws_points_free(&p);
  if (code != TWS_OK) {
    tws_free(list.items);
    return code;
  }
  *points = list.items;
  *count = (int)list.count;
  return TWS_OK;
}
