/* Training through twinspeed.h: equal to the bit to `twinspeed train`, on one and several ranks, from files and from
 * memory, several engines in one process. Most of it is in tests/ranks_library.c, which runs as the ranks. */
/* ctest: library ranks_library mpi */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "library/twinspeed.h"
#include "tests/train.h"

static const char common[] =
    "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":0.003,\"weight_decay\":0.1}},\"gradient_clipping\":1.0,"
    "\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"warmup_num_steps\":5,\"warmup_max_lr\":0.003}},"
    "\"train_batch_size\":8";

static const struct {
  const char *name, *model, *json;
  int ranks;
  const char *mode;
} jobs[] = {
    {"dense", "tiny-gpt2", "\"train_micro_batch_size_per_gpu\":4", 1, "train"},
    {"bf16", "tiny-llama", "\"bf16\":{\"enabled\":true},\"zero_optimization\":{\"stage\":1}", 1, "train"},
    {"offload", "tiny-gpt2", "\"zero_optimization\":{\"stage\":2,\"offload_optimizer\":{\"device\":\"cpu\"}}", 2,
     "train"},
    {"sharded", "tiny-gpt2",
     "\"bf16\":{\"enabled\":true},\"zero_optimization\":{\"stage\":3,\"stage3_param_persistence_threshold\":100},"
     "\"train_micro_batch_size_per_gpu\":2",
     2, "train"},
    {"divided", "tiny-gpt2",
     "\"train_micro_batch_size_per_gpu\":2,\"pipeline\":{\"stages\":2},"
     "\"tensor_parallel\":{\"autotp_size\":2}",
     4, "train"},
    {"experts", "tiny-mixtral", "\"twinspeed\":{\"expert_parallel_size\":2},\"zero_optimization\":{\"stage\":1}", 4,
     "train"},
    {"float-0", "tiny-gpt2", "\"train_micro_batch_size_per_gpu\":4", 1, "state"},
    {"half", "tiny-llama",
     "\"bf16\":{\"enabled\":true},\"train_micro_batch_size_per_gpu\":2,\"zero_optimization\":{\"stage\":2,"
     "\"offload_optimizer\":{\"device\":\"cpu\"}}",
     1, "state"},
    {"float-experts", "tiny-mixtral", "\"train_micro_batch_size_per_gpu\":4", 1, "state"},
    {"float-1", "tiny-gpt2", "\"zero_optimization\":{\"stage\":1}", 2, "state"},
    {"float-2", "tiny-gpt2",
     "\"train_micro_batch_size_per_gpu\":2,\"zero_optimization\":{\"stage\":2,\"offload_optimizer\":{\"device\":\"cpu\"}}", 2, "state"},
    {"fp16-3", "tiny-gpt2",
     "\"fp16\":{\"enabled\":true,\"initial_scale_power\":8},\"train_micro_batch_size_per_gpu\":2,\"zero_optimization\":{\"stage\":3}", 2, "state"},
    {"float-3-4", "tiny-gpt2",
     "\"zero_optimization\":{\"stage\":3,\"stage3_param_persistence_threshold\":100}", 4, "state"},
    {"float-tensor", "tiny-gpt2",
     "\"train_micro_batch_size_per_gpu\":2,\"zero_optimization\":{\"stage\":2},\"tensor_parallel\":{\"autotp_size\":2}", 4, "state"},
    {"float-experts-2", "tiny-mixtral",
     "\"twinspeed\":{\"expert_parallel_size\":2},\"zero_optimization\":{\"stage\":2}", 2, "state"},
    {"pipeline", "tiny-gpt2",
     "\"train_micro_batch_size_per_gpu\":2,\"pipeline\":{\"stages\":2},\"zero_optimization\":{\"stage\":1}", 4, "state"},
};
enum { JOBS = sizeof jobs / sizeof *jobs, TRAINED = 4 };

static void write_jobs(void) {
  for (int i = 0; i < JOBS; i++) {
    char path[64], json[1024];
    snprintf(path, sizeof path, "%s.json", jobs[i].name);
    snprintf(json, sizeof json, "{%s,%s}", common, jobs[i].json);
    write_text(in_folder(path), json);
  }
}

static void run_ranks(const char *mode, int ranks) {
  char list[1024] = "";
  for (int i = 0; i < JOBS; i++)
    if (jobs[i].ranks == ranks && strcmp(jobs[i].mode, mode) == 0)
      snprintf(list + strlen(list), sizeof list - strlen(list), " %s:%s", jobs[i].model, jobs[i].name);
  command_result r = twinspeed("launch --quiet -n %d --threads 1 -- %s/tests/ranks_library %s %s %s %d%s", ranks,
                               TWS_BUILD_DIR, mode, folder, text_path, TRAINED, list);
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  ck_assert_str_eq(r.out, ""); /* the library prints nothing */
  command_free(&r);
}

/* Compares the files of two checkpoints byte by byte. */
static void compare_files(const char *a, const char *b, int ranks) {
  for (int rank = 0; rank < ranks; rank++) {
    char name[2][256];
    unsigned char block[2][4096];
    snprintf(name[0], sizeof name[0], "%s/%s/global_step%d/rank-%05d.safetensors", folder, a, TRAINED, rank);
    snprintf(name[1], sizeof name[1], "%s/%s/global_step%d/rank-%05d.safetensors", folder, b, TRAINED, rank);
    FILE *one = fopen(name[0], "rb"), *two = fopen(name[1], "rb");
    ck_assert_msg(one && two, "%s or %s", name[0], name[1]);
    for (size_t n = 1, m; n > 0;) {
      n = fread(block[0], 1, sizeof block[0], one);
      m = fread(block[1], 1, sizeof block[1], two);
      ck_assert_msg(n == m && memcmp(block[0], block[1], n) == 0, "%s and %s differ", name[0], name[1]);
    }
    fclose(one);
    fclose(two);
  }
}

START_TEST(steps_are_those_of_the_program) {
  const int ranks = 1 << _i;
  char program[64], memory[64];
  run_ranks("train", ranks);
  for (int i = 0; i < JOBS; i++) {
    if (jobs[i].ranks != ranks || strcmp(jobs[i].mode, "train") != 0) continue;
    snprintf(memory, sizeof memory, "%s-memory", jobs[i].name);
    snprintf(program, sizeof program, "%s-program", jobs[i].name);
    command_result r = twinspeed("train --quiet -m %s -c %s/%s.json --seq 32 -n %d --threads 1 --data %s --steps %d "
                                 "--save %s/%s",
                                 jobs[i].model, folder, jobs[i].name, ranks, text_path, TRAINED, folder, program);
    ck_assert_msg(r.status == 0, "%s: %s%s", jobs[i].name, r.out, r.err);
    command_free(&r);
    compare_files(jobs[i].name, memory, ranks);
    compare_files(jobs[i].name, program, ranks);
  }
}
END_TEST

START_TEST(states_are_read_and_set) {
  run_ranks("state", 1 << _i);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("engine");
  TCase *tests = tcase_create("engine");
  tcase_add_loop_test(tests, steps_are_those_of_the_program, 0, 3);
  tcase_add_loop_test(tests, states_are_read_and_set, 0, 3);
  suite_add_tcase(suite, tests);
  set_up();
  write_jobs();
  const int status = run_suite(suite);
  remove_folder();
  return status;
}
