/* Axes of ranks and groups along sets of them: DeepSpeed's ProcessTopology and its groups of experts, axes that consist
 * of several, and the table of axes. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "tests/members.h"
#include "tests/suite.h"

static tws_error err;

static tws_axis axis_called(const char *name) {
  /* DeepSpeed's axes have any names: "x" and "y" stand for two of ours */
  if (strcmp(name, "x") == 0) return TWS_AXIS_SEQUENCE;
  if (strcmp(name, "y") == 0) return TWS_AXIS_MODEL;
  const tws_axis axis = tws_axis_find(name, strlen(name));
  ck_assert_msg(axis != TWS_AXIS_NONE, "no axis %s", name);
  return axis;
}

static tws_topology topology_of(int axes, const tws_axis *axis, const int *dims) {
  tws_topology t;
  ck_assert_msg(tws_topology_make(&t, axes, axis, dims, &err) == TWS_OK, "%s", err.message);
  return t;
}

/* ---- ProcessTopology ---- */

static void check_places(const tws_topology *t, const cJSON *mapping) {
  const cJSON *item;
  int rank = 0, coordinates[TWS_MAX_AXES];
  cJSON_ArrayForEach(item, mapping) {
    tws_topology_coordinates(t, rank, coordinates);
    same_list(item, coordinates, t->axes, "coordinates");
    ck_assert_int_eq(tws_topology_rank(t, coordinates), rank);
    const tws_position position = tws_topology_position(t, rank);
    for (int i = 0; i < t->axes; i++) {
      ck_assert_int_eq(position.ranks[t->axis[i]], t->dim[i]);
      ck_assert_int_eq(position.index[t->axis[i]], coordinates[i]);
    }
    rank++;
  }
  ck_assert_int_eq(rank, tws_topology_world(t));
}

/* Writes the ranks of all groups to lists[world], one group after another in the order of their first ranks
 * (DeepSpeed's order), and returns the number of groups. */
static int groups_of(const tws_topology *topology, tws_axes set, int *lists) {
  const int world = tws_topology_world(topology), size = tws_topology_size(topology, set);
  int count = 0;
  for (int rank = 0; rank < world; rank++) /* ranks in row-major order enumerate the coordinates on the other axes in
                                            * order */
    if (tws_topology_index(topology, rank, set) == 0)
      tws_topology_group(topology, rank, set, lists + (ptrdiff_t)size * count++);
  return count;
}

/* Writes the ranks whose index in their group is `index` in ascending order, and returns their number. */
static int ranks_at(const tws_topology *topology, tws_axes set, int index, int *ranks) {
  const int world = tws_topology_world(topology);
  int count = 0;
  for (int rank = 0; rank < world; rank++)
    if (tws_topology_index(topology, rank, set) == index) ranks[count++] = rank;
  return count;
}

static void check_lists(const tws_topology *t, const cJSON *c) {
  const cJSON *item, *list;
  int ranks[4096];
  cJSON_ArrayForEach(item, member(c, "comm_lists")) {
    const tws_axes set = 1u << axis_called(item->string);
    const int count = groups_of(t, set, ranks), size = tws_topology_size(t, set);
    int k = 0;
    ck_assert_int_eq(count, cJSON_GetArraySize(item));
    cJSON_ArrayForEach(list, item) same_list(list, ranks + size * k++, size, "comm list");
  }
  cJSON_ArrayForEach(item, member(c, "axis_list")) {
    int k = 0;
    cJSON_ArrayForEach(list, item) {
      const int count = ranks_at(t, 1u << axis_called(item->string), k++, ranks);
      same_list(list, ranks, count, "axis list");
    }
  }
}

static void check_names(const tws_topology *t, const cJSON *names, tws_axes omit) {
  const cJSON *item;
  char text[128];
  int rank = 0;
  cJSON_ArrayForEach(item, names) {
    const char *ours = tws_topology_repr(t, rank++, omit, text, sizeof text);
    if (strncmp(item->valuestring, "x_", 2) != 0) {
      ck_assert_str_eq(ours, item->valuestring);
    } else { /* "x_00-y_01" */
      ck_assert_int_eq(strncmp(ours + strlen("sequence"), item->valuestring + 1, 4), 0);
      ck_assert_str_eq(ours + strlen("sequence_00-model"), item->valuestring + strlen("x_00-y"));
    }
  }
  ck_assert_int_eq(rank, tws_topology_world(t));
}

START_TEST(topology_golden) {
  tws_json *json = golden_file("topology.json");
  const cJSON *c, *item;
  int cases = 0;
  cJSON_ArrayForEach(c, member(json->root, "topologies")) {
    tws_axis axis[TWS_MAX_AXES];
    int dims[TWS_MAX_AXES], axes = 0;
    cJSON_ArrayForEach(item, member(c, "axes")) axis[axes++] = axis_called(item->valuestring);
    axes = 0;
    cJSON_ArrayForEach(item, member(c, "dims")) dims[axes++] = (int)item->valuedouble;
    const tws_topology t = topology_of(axes, axis, dims);
    check_places(&t, member(c, "mapping"));
    check_lists(&t, c);
    check_names(&t, member(c, "rank_repr"), TWS_AXES_DATA | TWS_AXES_PIPE);
    check_names(&t, member(c, "rank_repr_omit_data"), TWS_AXES_DATA);
    ck_assert_int_eq(tws_topology_size(&t, TWS_AXES_TIED), 1); /* no such axis */
    ck_assert_int_eq(tws_topology_index(&t, 0, TWS_AXES_TIED), 0);
    cases++;
  }
  ck_assert_int_gt(cases, 3);
  tws_json_destroy(json);
}
END_TEST

/* ---- groups of experts ---- */

/* Asserts that each list in the file is the group of its first rank, and that there are as many groups. */
static void check_groups(const tws_topology *t, const cJSON *lists, tws_axes set) {
  int all[64], mine[64];
  const int count = groups_of(t, set, all);
  ck_assert_int_eq(count, cJSON_GetArraySize(lists));
  const cJSON *list;
  cJSON_ArrayForEach(list, lists) {
    const int size = tws_topology_group(t, list->child->valueint, set, mine);
    same_list(list, mine, size, tws_axes_name(set));
  }
}

/* Makes a topology in which data = expert-data x expert; data_first, DeepSpeed's use_data_before_expert_parallelism,
 * decides which of the two varies faster. */
static tws_topology expert_topology(int world, int stages, int experts, int tensor, int data_first) {
  const int copies = world / stages / experts / tensor;
  const tws_axis axis[] = {TWS_AXIS_PIPE, data_first ? TWS_AXIS_EXPERT : TWS_AXIS_EXPERT_DATA,
                           data_first ? TWS_AXIS_EXPERT_DATA : TWS_AXIS_EXPERT, TWS_AXIS_MODEL};
  const int dims[] = {stages, data_first ? experts : copies, data_first ? copies : experts, tensor};
  const tws_topology t = topology_of(4, axis, dims);
  ck_assert_int_eq(tws_topology_size(&t, TWS_AXES_DATA), copies * experts);
  return t;
}

START_TEST(expert_groups_golden) {
  tws_json *json = golden_file("expert_groups.json");
  const cJSON *c, *item;
  int cases = 0;
  cJSON_ArrayForEach(c, member(json->root, "ep_dp")) {
    const int world = integer(c, "world"), size = integer(c, "ep_size");
    const tws_topology t = expert_topology(world, integer(c, "pp"), size, 1, is_true(c, "use_data_before_expert"));
    int rank = 0, all[64];
    cJSON_ArrayForEach(item, member(c, "rank_ep_edp")) {
      int count = tws_topology_group(&t, rank, TWS_AXES_EXPERT, all);
      same_list(item->child, all, count, "expert");
      count = tws_topology_group(&t, rank, TWS_AXES_EXPERT_DATA, all);
      same_list(item->child->next, all, count, "expert-data");
      /* both axes together form the replicas of the rank's stage, in order */
      count = tws_topology_group(&t, rank, TWS_AXES_EXPERT | TWS_AXES_EXPERT_DATA, all);
      ck_assert_int_eq(count, world / integer(c, "pp"));
      for (int i = 0; i < count; i++) ck_assert_int_eq(all[i], rank / count * count + i);
      ck_assert_int_eq(tws_topology_index(&t, rank, TWS_AXES_DATA), rank % count);
      rank++;
    }
    ck_assert_int_eq(rank, world);
    cases++;
  }
  cJSON_ArrayForEach(c, member(json->root, "ep_tp_dp")) {
    const tws_topology t = expert_topology(integer(c, "world"), integer(c, "pp"), integer(c, "ep"), integer(c, "tp"),
                                           is_true(c, "use_data_before_expert"));
    check_groups(&t, member(c, "expert_parallel_groups"), TWS_AXES_EXPERT);
    check_groups(&t, member(c, "expert_data_parallel_groups"), TWS_AXES_EXPERT_DATA);
    cases++;
  }
  ck_assert_int_eq(cases, 15);
  tws_json_destroy(json);
}
END_TEST

/* ---- sets of axes ---- */

/* A group's ranks agree on all other coordinates; all members have the same group, and their indices are their
 * positions in it. */
START_TEST(groups_along_sets) {
  const tws_axis axis[] = {TWS_AXIS_SEQUENCE, TWS_AXIS_DATA_NODES, TWS_AXIS_MODEL, TWS_AXIS_NODE_DATA, TWS_AXIS_PIPE};
  const int dims[] = {2, 3, 2, 2, 2};
  const tws_topology t = topology_of(5, axis, dims);
  const tws_axes sets[] = {
      TWS_AXES_DATA, TWS_AXES_NODE_DATA, TWS_AXES_DATA | TWS_AXES_SEQUENCE, TWS_AXES_MODEL | TWS_AXES_DATA_NODES, 0,
      ~(tws_axes)0};
  const int sizes[] = {6, 2, 12, 6, 1, 48};
  for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
    int members[48], again[48], at[TWS_MAX_AXES], here[TWS_MAX_AXES];
    for (int rank = 0; rank < 48; rank++) {
      ck_assert_int_eq(tws_topology_group(&t, rank, sets[s], members), sizes[s]);
      ck_assert_int_eq(members[tws_topology_index(&t, rank, sets[s])], rank);
      tws_topology_coordinates(&t, rank, here);
      for (int i = 0; i < sizes[s]; i++) {
        tws_topology_coordinates(&t, members[i], at);
        for (int a = 0; a < t.axes; a++) ck_assert(tws_axes_cover(sets[s], axis[a]) || at[a] == here[a]);
        tws_topology_group(&t, members[i], sets[s], again);
        ck_assert_mem_eq(again, members, (size_t)sizes[s] * sizeof *members);
      }
    }
  }
  /* data before sequence, although the sequence varies slowest in the topology */
  int members[12];
  tws_topology_group(&t, 0, TWS_AXES_DATA | TWS_AXES_SEQUENCE, members);
  ck_assert_int_eq(members[1], 24);
  ck_assert_str_eq(tws_axes_name(TWS_AXES_DATA | TWS_AXES_SEQUENCE), "data");
}
END_TEST

START_TEST(topologies_that_are_none) {
  tws_topology t;
  const int dims[] = {2, 2};
  ck_assert(tws_topology_make(&t, 2, (const tws_axis[]){TWS_AXIS_DATA, TWS_AXIS_DATA}, dims, &err) == TWS_INVALID);
  ck_assert(tws_topology_make(&t, 2, (const tws_axis[]){TWS_AXIS_EXPERT, TWS_AXIS_DATA}, dims, &err) == TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "'expert' and 'data'"));
  ck_assert(tws_topology_make(&t, 0, NULL, dims, &err) == TWS_INVALID);
  ck_assert(tws_topology_make(&t, 1, (const tws_axis[]){TWS_AXIS_PIPE}, (const int[]){0}, &err) == TWS_INVALID);
  ck_assert(tws_topology_make(&t, 2, (const tws_axis[]){TWS_AXIS_PIPE, TWS_AXIS_DATA}, (const int[]){1 << 20, 1 << 20},
                              &err) == TWS_INVALID);
}
END_TEST

/* ---- the table ---- */

START_TEST(table_of_axes) {
  for (int a = 0; a < TWS_AXIS_COUNT; a++) {
    const tws_axis axis = (tws_axis)a, parent = tws_axis_parent(axis);
    ck_assert_int_eq(tws_axis_find(tws_axis_name(axis), strlen(tws_axis_name(axis))), axis);
    if (parent == TWS_AXIS_NONE) continue;
    ck_assert_int_eq(tws_axis_whole(axis), tws_axis_whole(parent));
    ck_assert_int_eq(tws_axis_divides(axis), tws_axis_divides(parent));
    ck_assert(tws_axes_cover(1u << parent, axis) && !tws_axes_cover(1u << axis, parent));
    ck_assert(!tws_axis_is_ordered(axis));
  }
  ck_assert_int_eq(tws_axis_find("model ", 6), TWS_AXIS_NONE);
  ck_assert_uint_eq(tws_axes_that_divide(TWS_DIVIDES_SAMPLES), TWS_AXES_DATA);
  ck_assert_int_eq(tws_channel_of_axes(TWS_AXES_MODEL), TWS_CHANNEL_LAYERS);
  ck_assert_int_eq(tws_channel_of_axes(TWS_AXES_PIPE), TWS_CHANNEL_STAGES);
  ck_assert_int_eq(tws_channel_of_axes(TWS_AXES_TIED), TWS_CHANNEL_REPLICAS);
}
END_TEST

/* Lists all orders of the axes: each occurs once, and there are no others. */
START_TEST(orders_of_axes) {
  char text[TWS_AXIS_ORDER_TEXT], seen[64][TWS_AXIS_ORDER_TEXT];
  tws_axis_order order, again;
  int count = 0, expected = 1;
  for (int i = 2; i <= TWS_ORDERED_AXES; i++) expected *= i;
  for (; tws_axis_order_nth(count, &order); count++) {
    snprintf(seen[count], sizeof seen[count], "%s", tws_axis_order_text(&order, text));
    for (int i = 0; i < count; i++) ck_assert_str_ne(seen[i], text);
    ck_assert(tws_axis_order_parse(text, &again) && memcmp(&again, &order, sizeof order) == 0);
  }
  ck_assert_int_eq(count, expected);
  ck_assert(tws_axis_order_parse(TWS_AXIS_ORDER_DEFAULT, &order));
  static const char *const wrong[] = {"",
                                      "pipe",
                                      "pipe,data,sequence",
                                      "pipe,data,sequence,sequence",
                                      "pipe,data,sequence,expert",
                                      "pipe,data,sequence,model,",
                                      ",pipe,data,sequence,model",
                                      "pipe, data,sequence,model"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    ck_assert_msg(!tws_axis_order_parse(wrong[i], &order), "%s", wrong[i]);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("topology");
  TCase *c = tcase_create("topology");
  tcase_add_test(c, topology_golden);
  tcase_add_test(c, expert_groups_golden);
  tcase_add_test(c, groups_along_sets);
  tcase_add_test(c, topologies_that_are_none);
  tcase_add_test(c, table_of_axes);
  tcase_add_test(c, orders_of_axes);
  suite_add_tcase(suite, c);
  return run_suite(suite);
}
