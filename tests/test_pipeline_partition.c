/* The layers of each stage, and the groups of ranks: partitions and grids compared with golden vectors. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/deepspeed_grid.h"
#include "plan/pipeline_grid.h"
#include "plan/pipeline_partition.h"
#include "tests/draw.h"
#include "tests/members.h"
#include "tests/suite.h"

static int same(const cJSON *list, const int *actual, int count) {
  if (cJSON_GetArraySize(list) != count) return 0;
  int i = 0;
  const cJSON *item;
  cJSON_ArrayForEach(item, list) if ((int)item->valuedouble != actual[i++]) return 0;
  return 1;
}

/* ---- partitions ---- */

START_TEST(partitions_golden) {
  tws_json *json = golden_file("partition.json");
  tws_error err = {0};
  const cJSON *c, *weight;
  int bounds[512], balanced = 0, uniform = 0;
  cJSON_ArrayForEach(c, member(json->root, "balanced")) {
    int64_t weights[512];
    int count = 0, parts = integer(c, "num_parts");
    cJSON_ArrayForEach(weight, member(c, "weights")) weights[count++] = (int64_t)weight->valuedouble;
    ck_assert(tws_partition_balanced(weights, count, parts, bounds, &err) == TWS_OK);
    ck_assert_msg(same(member(c, "parts"), bounds, parts + 1), "balanced case %d", balanced);
    balanced++;
  }
  cJSON_ArrayForEach(c, member(json->root, "uniform")) {
    int count = integer(c, "num_items"), parts = integer(c, "num_parts");
    for (int i = 0; i <= parts; i++) bounds[i] = (int)tws_partition_uniform(count, parts, i);
    ck_assert_msg(same(member(c, "parts"), bounds, parts + 1), "uniform case %d", uniform);
    uniform++;
  }
  ck_assert_int_eq(balanced, 112);
  ck_assert_int_eq(uniform, 200);
  tws_json_destroy(json);
}
END_TEST

static void expect_bounds(const char *method, const tws_pipeline_layer *layers, int count, int parts,
                          const int *expected) {
  tws_error err = {0};
  int bounds[32];
  ck_assert_msg(tws_pipeline_partition(method, layers, count, parts, bounds, &err) == TWS_OK, "%s", err.message);
  for (int i = 0; i <= parts; i++) {
    ck_assert_msg(bounds[i] == expected[i], "%s: bound %d is %d, not %d", method ? method : "(default)", i, bounds[i],
                  expected[i]);
  }
}

static void expect_no_partition(const char *method, tws_code code, const char *says) {
  tws_error err = {0};
  int bounds[8];
  tws_pipeline_layer layers[3] = {{"Embedding", 10}, {"Block", 20}, {NULL, 0}};
  ck_assert_int_eq(tws_pipeline_partition(method, layers, 3, 2, bounds, &err), code);
  ck_assert_msg(strstr(err.message, says) != NULL, "%s", err.message);
}

START_TEST(partition_methods) {
  /* embedding, 12 blocks, norm, head of GPT-2; the bounds by parameters are the reference's */
  tws_pipeline_layer layers[15] = {{"EmbeddingPipe", 38597376}, [13] = {"LayerNorm", 1536}, [14] = {"Head", 38597376}};
  for (int i = 1; i <= 12; i++) layers[i] = (tws_pipeline_layer){"ParallelTransformerLayerPipe", 7087872};
  expect_bounds(NULL, layers, 15, 4, (int[]){0, 1, 7, 13, 15});
  expect_bounds("Parameters", layers, 15, 3, (int[]){0, 3, 11, 15});
  expect_bounds("UNIFORM", layers, 15, 4, (int[]){0, 4, 8, 12, 15});
  /* three blocks in each part; the text is searched for in the name, in any case, up to the second colon */
  int blocks[5];
  tws_error err = {0};
  static const char *const methods[] = {"type:transformer", "Type:^PARALLEL.*Pipe$", "type:(layer)pipe:ignored"};
  for (int i = 0; i < 3; i++) {
    ck_assert(tws_pipeline_partition(methods[i], layers, 15, 4, blocks, &err) == TWS_OK);
    for (int part = 0; part < 4; part++) {
      int matches = 0;
      for (int layer = blocks[part]; layer < blocks[part + 1]; layer++) matches += layer >= 1 && layer <= 12;
      ck_assert_int_eq(matches, 3);
    }
  }
  expect_bounds("type:head", layers, 15, 15, (int[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  expect_no_partition("type:attention", TWS_INVALID, "attention");
  expect_no_partition("type:(", TWS_INVALID, "type:(");
  expect_no_partition("profile", TWS_UNSUPPORTED, "profile");
  expect_no_partition("balanced", TWS_INVALID, "balanced");
  int bounds[3];
  ck_assert(tws_partition_balanced((int64_t[]){1, -1, 1}, 3, 2, bounds, &err) == TWS_INVALID);
  ck_assert(tws_partition_balanced((int64_t[]){INT64_MAX, 1, 1}, 3, 2, bounds, &err) == TWS_INVALID);
}
END_TEST

START_TEST(balanced_parts_are_sound) {
  for (uint64_t seed = 0; seed < 500; seed++) {
    int count = draw(seed, 0, 0, 40), parts = draw(seed, 1, 1, 12), bounds[16];
    int64_t weights[40];
    for (int i = 0; i < count; i++) weights[i] = draw(seed, 2 + (uint64_t)i, 0, 1000) * (int64_t)1e12;
    ck_assert(tws_partition_balanced(weights, count, parts, bounds, NULL) == TWS_OK);
    ck_assert_int_eq(bounds[0], 0);
    ck_assert_int_eq(bounds[parts], count);
    for (int i = 0; i < parts; i++)
      ck_assert(bounds[i] < bounds[i + 1] || (bounds[i] == bounds[i + 1] && count < parts));
  }
}
END_TEST

/* ---- grid ---- */

static void check_rank(const tws_topology *topology, const cJSON *c) {
  static const char *const keys[TWS_GRID_GROUP_COUNT] = {"ds_model_group", "dp_group", "pp_group", "slice_group"};
  int ranks[64], rank = integer(c, "rank"), stages = tws_topology_size(topology, TWS_AXES_PIPE);
  for (int kind = 0; kind < TWS_GRID_GROUP_COUNT; kind++) {
    int count = tws_pipeline_grid_group(topology, (tws_grid_group)kind, rank, ranks);
    ck_assert_msg(same(member(c, keys[kind]), ranks, count), "rank %d: %s", rank, keys[kind]);
    if (kind != TWS_GRID_REPLICA) continue;
    ck_assert_int_eq(count, integer(c, "model_parallel_world"));
    ck_assert_int_eq(ranks[integer(c, "model_parallel_rank")], rank);
  }
  const tws_position position = tws_topology_position(topology, rank);
  const int stage = position.index[TWS_AXIS_PIPE];
  ck_assert_int_eq(stage, integer(c, "stage_id"));
  ck_assert_int_eq(position.index[TWS_AXIS_DATA], integer(c, "data_parallel_id"));
  ck_assert_int_eq(cJSON_IsTrue(member(c, "is_first")), stage == 0);
  ck_assert_int_eq(cJSON_IsTrue(member(c, "is_last")), stage == stages - 1);
  for (int s = 0; s < stages; s++) ranks[s] = tws_pipeline_grid_stage(topology, rank, s);
  ck_assert(same(member(c, "stage_to_global"), ranks, stages));
}

START_TEST(grid_golden) {
  tws_json *json = golden_file("topology.json");
  tws_error err = {0};
  int cases = 0, ranks[64];
  const cJSON *c, *item;
  cJSON_ArrayForEach(c, member(json->root, "grid")) {
    tws_topology topology;
    tws_axis names[TWS_MAX_AXES];
    int dims[TWS_MAX_AXES], axes = 0, world = integer(c, "world");
    cJSON_ArrayForEach(item, member(c, "axes")) names[axes++] =
        tws_axis_find(item->valuestring, strlen(item->valuestring));
    for (int i = 0; i < axes; i++) dims[i] = (int)cJSON_GetArrayItem(member(c, "dims"), i)->valuedouble;
    if (cJSON_IsTrue(member(c, "explicit_topology"))) {
      ck_assert(tws_topology_make(&topology, axes, names, dims, &err) == TWS_OK);
    } else {
      ck_assert(tws_pipeline_grid_default(world, &topology, &err) == TWS_OK);
      for (int i = 0; i < axes; i++) ck_assert_int_eq(topology.axis[i], names[i]);
      ck_assert(same(member(c, "dims"), topology.dim, topology.axes));
    }
    ck_assert(tws_pipeline_grid_check(&topology, world, &err) == TWS_OK);
    ck_assert(tws_pipeline_grid_check(&topology, world + 1, &err) == TWS_INVALID);
    const cJSON *group = member(c, "new_group_call_order")->child;
    for (int kind = 0; kind < TWS_GRID_GROUP_COUNT; kind++) {
      int count;
      for (int i = 0; (count = tws_pipeline_grid_nth(&topology, (tws_grid_group)kind, i, ranks)); i++) {
        ck_assert_msg(group && same(group, ranks, count), "case %d: group %d of kind %d", cases, i, kind);
        group = group->next;
      }
    }
    ck_assert_ptr_null(group);
    int rank = 0;
    cJSON_ArrayForEach(item, member(c, "p2p_groups")) {
      int stage = rank / (world / tws_topology_size(&topology, TWS_AXES_PIPE));
      ranks[0] = rank;
      ranks[1] = tws_pipeline_grid_stage(&topology, rank++, stage + 1);
      ck_assert(same(item, ranks, 2));
    }
    ck_assert_int_eq(rank, world);
    cJSON_ArrayForEach(item, member(c, "ranks")) check_rank(&topology, item);
    cases++;
  }
  ck_assert_int_eq(cases, 6);
  cJSON_ArrayForEach(item, member(json->root, "prime_factors")) {
    int factors[31], count = tws_prime_factors(atoi(item->string), factors);
    ck_assert_msg(same(item, factors, count), "factors of %s", item->string);
  }
  tws_json_destroy(json);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("pipeline_partition");
  TCase *c = tcase_create("pipeline_partition");
  tcase_set_timeout(c, 120);
  tcase_add_test(c, partitions_golden);
  tcase_add_test(c, partition_methods);
  tcase_add_test(c, balanced_parts_are_sound);
  tcase_add_test(c, grid_golden);
  suite_add_tcase(suite, c);
  return run_suite(suite);
}
