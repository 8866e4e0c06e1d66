/* The simulation of PyTorch's caching allocator: sizes of segments, choice and splitting of blocks, what it could
 * return to CUDA, and a plan's allocations. */
#include <check.h>
#include <string.h>

#include "base/random.h"
#include "job/job.h"
#include "models/hardware/caching_allocator.h"
#include "models/hardware/runtime.h"
#include "tests/suite.h"

#define MIB 1048576u

static tws_caching_allocator *made(tws_allocator_kind kind) {
  tws_caching_allocator *allocator = tws_caching_allocator_create(kind, 0);
  ck_assert_ptr_nonnull(allocator);
  return allocator;
}

static uint32_t allocate(tws_caching_allocator *allocator, uint64_t bytes) {
  tws_error err = {0};
  uint32_t block;
  ck_assert_int_eq(tws_caching_allocator_allocate(allocator, bytes, &block, &err), TWS_OK);
  return block;
}

static void release(tws_caching_allocator *allocator, uint32_t block) {
  tws_error err = {0};
  ck_assert_int_eq(tws_caching_allocator_free(allocator, block, &err), TWS_OK);
}

#define ASSERT_USE(allocator, allocated_, reserved_, idle_)                   \
  do {                                                                        \
    const tws_allocator_use counted = tws_caching_allocator_use(allocator);   \
    ck_assert_uint_eq(counted.allocated, allocated_);                         \
    ck_assert_uint_eq(counted.reserved, reserved_);                           \
    ck_assert_uint_eq(counted.idle, idle_);                                   \
  } while (0)

/* The first request of each size: what is reserved for it, and what counts as allocated. The rest of a block of the
 * large pool is cut off if it has more than 1 MiB. */
START_TEST(segments_have_pytorchs_sizes) {
  static const struct {
    uint64_t bytes, allocated, reserved;
  } cases[] = {{1, 512, 2 * MIB},
               {512, 512, 2 * MIB},
               {513, 1024, 2 * MIB},
               {MIB, MIB, 2 * MIB},
               {MIB + 1, MIB + 512, 20 * MIB},
               {10 * MIB - 512, 10 * MIB - 512, 20 * MIB},
               {10 * MIB, 10 * MIB, 10 * MIB},
               {10 * MIB + 1, 10 * MIB + 512, 12 * MIB},
               {11 * MIB, 12 * MIB, 12 * MIB},
               {11 * MIB - 512, 11 * MIB - 512, 12 * MIB},
               {1000 * MIB, 1000 * MIB, 1000 * MIB}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_caching_allocator *a = made(TWS_ALLOCATOR_SEGMENTS);
    const uint32_t block = allocate(a, cases[i].bytes);
    ASSERT_USE(a, cases[i].allocated, cases[i].reserved, 0);
    release(a, block);
    ASSERT_USE(a, 0, cases[i].reserved, cases[i].reserved);
    tws_caching_allocator_destroy(a);
  }
}
END_TEST

/* A request takes the smallest free block that is large enough, and adjacent free blocks become one block. */
START_TEST(blocks_are_reused_and_joined) {
  tws_caching_allocator *a = made(TWS_ALLOCATOR_SEGMENTS);
  const uint32_t first = allocate(a, 4 * MIB), second = allocate(a, 4 * MIB), third = allocate(a, 4 * MIB);
  const uint32_t large = allocate(a, 30 * MIB);
  ASSERT_USE(a, 42 * MIB, 50 * MIB, 0); /* the three small ones share a segment, of which 8 MiB are left */
  release(a, large);
  const uint32_t fourth = allocate(a, 8 * MIB); /* the rest of the shared segment, not the free one of 30 MiB */
  ASSERT_USE(a, 20 * MIB, 50 * MIB, 30 * MIB);
  release(a, first);
  release(a, third);
  release(a, second);
  const uint32_t joined = allocate(a, 12 * MIB);
  ASSERT_USE(a, 20 * MIB, 50 * MIB, 30 * MIB);
  release(a, joined);
  release(a, fourth);
  ASSERT_USE(a, 0, 50 * MIB, 50 * MIB);
  tws_caching_allocator_destroy(a);
}
END_TEST

/* A segment with one block in use cannot be returned to CUDA, so that its free blocks are lost to a request that is
 * larger than each of them. Pages of an expandable segment are reused for any size. */
START_TEST(fragmentation_is_what_cannot_be_returned) {
  for (int expandable = 0; expandable < 2; expandable++) {
    tws_caching_allocator *a = made(expandable ? TWS_ALLOCATOR_EXPANDABLE : TWS_ALLOCATOR_SEGMENTS);
    release(a, allocate(a, 30 * MIB));
    allocate(a, 10 * MIB); /* from the 30 MiB */
    allocate(a, 26 * MIB);
    const tws_allocator_use use = tws_caching_allocator_use(a);
    ck_assert_uint_eq(use.allocated, 36 * MIB);
    ck_assert_uint_eq(use.most_held, (expandable ? 40 : 56) * MIB);
    tws_caching_allocator_destroy(a);
    a = made(expandable ? TWS_ALLOCATOR_EXPANDABLE : TWS_ALLOCATOR_SEGMENTS);
    const uint32_t one = allocate(a, 40 * MIB), two = allocate(a, 40 * MIB);
    release(a, one);
    release(a, two);
    allocate(a, 60 * MIB); /* larger than either segment, both of which are free as a whole */
    ASSERT_USE(a, 60 * MIB, (expandable ? 80 : 140) * MIB, (expandable ? 20 : 80) * MIB);
    ck_assert_uint_eq(tws_caching_allocator_use(a).most_held, 80 * MIB);
    tws_caching_allocator_destroy(a);
  }
}
END_TEST

/* On a device without more memory, segments that are free as a whole are returned before a new one is asked for. */
START_TEST(free_segments_are_returned_where_memory_is_short) {
  tws_caching_allocator *a = tws_caching_allocator_create(TWS_ALLOCATOR_SEGMENTS, 1);
  ck_assert_ptr_nonnull(a);
  release(a, allocate(a, 30 * MIB));
  const uint32_t kept = allocate(a, 10 * MIB); /* of the 30 MiB, which are in use then */
  release(a, allocate(a, 40 * MIB));
  ASSERT_USE(a, 10 * MIB, 70 * MIB, 40 * MIB);
  const uint32_t large = allocate(a, 50 * MIB);
  ASSERT_USE(a, 60 * MIB, 80 * MIB, 0);
  release(a, kept);
  release(a, large);
  allocate(a, 100 * MIB);
  ASSERT_USE(a, 100 * MIB, 100 * MIB, 0);
  ck_assert_uint_eq(tws_caching_allocator_use(a).most_held, 100 * MIB);
  tws_caching_allocator_destroy(a);
}
END_TEST

/* Random requests: blocks in use have at least the requested bytes and fit into what is reserved, and after all are
 * freed every segment and every page could be returned. */
START_TEST(random_requests_leave_nothing) {
  enum { BLOCKS = 200, STEPS = 20000 };
  for (int kind = 0; kind < 3; kind++) {
    tws_caching_allocator *a =
        tws_caching_allocator_create(kind == 1 ? TWS_ALLOCATOR_EXPANDABLE : TWS_ALLOCATOR_SEGMENTS, kind == 2);
    ck_assert_ptr_nonnull(a);
    uint64_t bytes[BLOCKS] = {0}, requested = 0, most = 0;
    uint32_t blocks[BLOCKS];
    for (uint64_t i = 0; i < STEPS; i++) {
      const size_t at = (size_t)(tws_random_uniform(7, 0, i) * BLOCKS);
      const double size = tws_random_uniform(7, 1, i) * (i % 2 ? 64 : 2) * MIB;
      if (bytes[at]) release(a, blocks[at]);
      requested -= bytes[at];
      bytes[at] = bytes[at] ? 0 : 1 + (uint64_t)size;
      if (bytes[at]) blocks[at] = allocate(a, bytes[at]);
      requested += bytes[at];
      most = requested > most ? requested : most;
      const tws_allocator_use use = tws_caching_allocator_use(a);
      ck_assert(requested <= use.allocated && use.allocated <= use.reserved - use.idle);
    }
    for (int i = 0; i < BLOCKS; i++)
      if (bytes[i]) release(a, blocks[i]);
    const tws_allocator_use use = tws_caching_allocator_use(a);
    ck_assert(use.allocated == 0 && use.idle == use.reserved);
    ck_assert(most <= use.most_allocated && use.most_allocated <= use.most_held && use.most_held <= use.most_reserved);
    tws_caching_allocator_destroy(a);
  }
}
END_TEST

/* A runtime's row says what places the buffers of a plan: this program's own engine has no allocator, and with
 * expandable segments less memory is held than with fixed ones. */
START_TEST(a_plans_buffers_are_placed_by_the_runtimes_allocator) {
  static const struct {
    const char *runtime;
    tws_allocator_kind kind;
  } cases[] = {{"twinspeed", TWS_ALLOCATOR_AHEAD},
               {"deepspeed-flash", TWS_ALLOCATOR_SEGMENTS},
               {"fsdp", TWS_ALLOCATOR_EXPANDABLE}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
    tws_job *job;
    tws_estimate estimate;
    tws_stage_estimate stage;
    tws_error err = {0};
    spec.model = "gpt2";
    spec.cluster = "h100";
    spec.dtype = "bf16";
    spec.runtime = cases[i].runtime;
    ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
    ck_assert_int_eq(tws_profile_allocator(job->profile), cases[i].kind);
    ck_assert_int_eq(tws_job_estimate(job, &estimate, &stage, &err), TWS_OK);
    const int placed = cases[i].kind == TWS_ALLOCATOR_AHEAD;
    ck_assert_int_eq(stage.allocator.held == 0 && stage.allocator.reserved == 0, placed);
    if (!placed) {
      ck_assert_uint_ge(stage.allocator.held, stage.live_bytes);
      ck_assert_uint_ge(stage.allocator.reserved, stage.allocator.held);
      ck_assert_double_lt((double)stage.allocator.held, 1.1 * (double)stage.live_bytes);
    }
    /* a verdict alone needs one replay, whose bytes are the same */
    tws_estimate verdict;
    ck_assert_int_eq(tws_job_estimate(job, &verdict, NULL, &err), TWS_OK);
    const tws_allocator_bytes alone = verdict.ledger.tier[TWS_TIER_DEVICE].allocator;
    ck_assert_uint_eq(alone.needed, stage.allocator.needed);
    ck_assert(alone.held == 0 && alone.reserved == 0);
    tws_job_destroy(job);
  }
}
END_TEST

/* Gradients of 150 MiB that are freed with each step leave a block that activations of 120 MiB of the next step take,
 * as it is the smallest that is large enough: the gradients then take the place of the activations, 50 MiB of which
 * are too few for the next 80. Gradients of one buffer for all steps, Megatron-Core's, are no such block. */
START_TEST(gradients_that_stay_are_not_cut) {
  enum { LARGEST, ACTIVATION, GRADIENT, LAST, BUFFERS, OPS = 6 };
  static const struct {
    uint64_t mib;
    uint32_t first, last;
  } of[BUFFERS] = {{200, 0, 0}, {120, 1, 4}, {150, 2, 5}, {80, 3, 4}};
  tws_buffer buffers[BUFFERS] = {0};
  tws_op ops[OPS] = {0};
  tws_plan plan = {.buffers = buffers, .buffer_count = BUFFERS, .ops = ops, .op_count = OPS};
  for (int i = 0; i < BUFFERS; i++) {
    buffers[i].tier = TWS_TIER_DEVICE;
    buffers[i].lifetime = TWS_LIFETIME_OPS;
    buffers[i].category = i == GRADIENT ? TWS_CATEGORY_GRADIENT : TWS_CATEGORY_ACTIVATION;
    buffers[i].bytes = of[i].mib * MIB;
    buffers[i].first_op = of[i].first;
    buffers[i].last_op = of[i].last;
  }
  ops[OPS - 1].phase = TWS_PHASE_STEP;
  for (int keeps = 0; keeps < 2; keeps++) {
    const tws_replayed software = {.kind = TWS_ALLOCATOR_SEGMENTS, .keeps_gradients = keeps};
    tws_allocator_bytes bytes;
    tws_error err = {0};
    ck_assert_int_eq(tws_ledger_replay(&plan, &software, TWS_REPLAY_ALL, &bytes, &err), TWS_OK);
    ck_assert_uint_eq(bytes.held, (keeps ? 350u : 430u) * MIB);
    ck_assert_uint_eq(bytes.reserved, bytes.held);
  }
  ck_assert(tws_runtime_find("nemo")->keeps_gradients && !tws_runtime_find("fsdp")->keeps_gradients);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("caching_allocator");
  TCase *tests = tcase_create("caching_allocator");
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, segments_have_pytorchs_sizes);
  tcase_add_test(tests, blocks_are_reused_and_joined);
  tcase_add_test(tests, fragmentation_is_what_cannot_be_returned);
  tcase_add_test(tests, free_segments_are_returned_where_memory_is_short);
  tcase_add_test(tests, random_requests_leave_nothing);
  tcase_add_test(tests, a_plans_buffers_are_placed_by_the_runtimes_allocator);
  tcase_add_test(tests, gradients_that_stay_are_not_cut);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
