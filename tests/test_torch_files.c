/* Files of torch.save and DeepSpeed's checkpoints are read without executing their contents: files that DeepSpeed
 * wrote, compared with its own conversion (tests/golden/deepspeed.json), and malicious files. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/random.h"
#include "checkpoint/deepspeed.h"
#include "failing_allocator.h"
#include "members.h"
#include "models/network/safetensors.h"
#include "models/network/torch_file.h"
#include "tests/answers.h"
#include "tests/command.h"
#include "tests/folder.h"
#include "tests/sanitized.h"
#include "tests/suite.h"
#include "torch_writer.h"

static const char *golden_folder(const char *name, const char *more) {
  static char paths[4][512];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/golden/deepspeed/%s%s", TWS_TEST_DIR, name, more);
  return path;
}

static void shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void shell(const char *format, ...) {
  char command[2048];
  va_list list;
  va_start(list, format);
  vsnprintf(command, sizeof command, format, list);
  va_end(list);
  ck_assert_msg(system(command) == 0, "%s", command);
}

/* ---- DeepSpeed's checkpoints ---- */

/* Returns 1 if the file has exactly these tensors. */
static int same_tensors(const char *path, const cJSON *tensors) {
  tws_safetensors *list = NULL;
  const cJSON *tensor;
  tws_error err = {0};
  ck_assert_msg(tws_safetensors_open(path, &list, &err) == TWS_OK, "%s", err.message);
  int same = (int)list->count == cJSON_GetArraySize(tensors);
  FILE *file = fopen(path, "rb");
  cJSON_ArrayForEach(tensor, tensors) {
    const tws_safetensor *found = tws_safetensors_find(list, tensor->string);
    const cJSON *shape = member(tensor, "shape");
    const char *want = member(tensor, "bytes")->valuestring;
    same = same && found && strcmp(found->dtype, member(tensor, "dtype")->valuestring) == 0 &&
           found->dims == cJSON_GetArraySize(shape) && (size_t)(found->end - found->begin) * 2 == strlen(want);
    for (int i = 0; same && i < found->dims; i++) same = found->shape[i] == cJSON_GetArrayItem(shape, i)->valueint;
    if (!same) break;
    ck_assert_int_eq(fseek(file, (long)found->begin, SEEK_SET), 0);
    for (const char *at = want; *at && same; at += 2) {
      unsigned int byte = 256;
      same = sscanf(at, "%2x", &byte) == 1 && fgetc(file) == (int)byte;
    }
  }
  fclose(file);
  tws_safetensors_close(list);
  return same;
}

/* Checkpoints of ZeRO 0, 2 and 3, in bfloat16 and fp16, with frozen and tied parameters and buffers, give the tensors
 * of DeepSpeed's zero_to_fp32. */
START_TEST(deepspeed) {
  tws_json *golden = golden_file("deepspeed.json");
  const cJSON *one;
  cJSON_ArrayForEach(one, member(golden->root, "checkpoints")) {
    const char *from = golden_folder(member(one, "folder")->valuestring, "");
    command_result r = twinspeed("convert checkpoint %s %s --force --json", from, in_folder("out"));
    ck_assert_msg(r.status == 0, "%s: %s", from, r.err);
    cJSON *json = assert_json(&r, "twinspeed-weights-1");
    ck_assert_int_eq(integer(json, "step"), 3);
    ck_assert_int_eq(integer(json, "tensors"), cJSON_GetArraySize(member(one, "tensors")));
    cJSON_Delete(json);
    command_free(&r);
    ck_assert_msg(same_tensors(in_folder("out"), member(one, "tensors")), "%s", from);
    if (strcmp(member(one, "folder")->valuestring, "zero2") != 0) continue;
    r = twinspeed("convert checkpoint %s %s --force", golden_folder("universal", ""),
                  in_folder("out")); /* made of it */
    ck_assert_msg(r.status == 0, "%s", r.err);
    command_free(&r);
    ck_assert(same_tensors(in_folder("out"), member(one, "tensors")));
  }
  tws_json_destroy(golden);
}
END_TEST

static tws_code convert(const char *from, const char *to, tws_error *err) {
  tws_deepspeed checkpoint;
  tws_export_result result;
  TWS_TRY(tws_deepspeed_open(from, &checkpoint, err));
  const tws_code code = tws_gathering_write(&checkpoint.weights, to, &result, err);
  tws_deepspeed_close(&checkpoint);
  return code;
}

/* A file that is cut or has one changed byte gives an error that names it, or the same weights, where the byte does not
 * matter. */
START_TEST(damage) {
  static const char *const files[] = {"zero_pp_rank_0_mp_rank_00_model_states.pt",
                                      "zero_pp_rank_1_mp_rank_00_optim_states.pt"};
  tws_json *golden = golden_file("deepspeed.json");
  const cJSON *tensors = member(cJSON_GetArrayItem(member(golden->root, "checkpoints"), 2), "tensors");
  char out[64];
  int errors = 0;
  snprintf(out, sizeof out, "%s", in_folder("out"));
  shell("cp -r %s/global_step3 %s/copy", golden_folder("zero3", ""), folder);
  for (int i = 0; i < (TWS_SANITIZED ? 60 : 200); i++) {
    char path[256];
    unsigned char byte;
    struct stat info;
    tws_error err = {0};
    snprintf(path, sizeof path, "%s/copy/%s", folder, files[i % 2]);
    const int fd = open(path, O_RDWR);
    ck_assert(fd >= 0 && fstat(fd, &info) == 0);
    const off_t at = (off_t)(tws_random_uniform(5, 1, (uint64_t)i) * (double)info.st_size);
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    const unsigned char other = byte ^ (unsigned char)(1 << i / 2 % 8);
    ck_assert_int_eq(pwrite(fd, &other, 1, at), 1);
    const tws_code code = convert(in_folder("copy"), out, &err);
    ck_assert_msg(
        code == TWS_OK || ((code == TWS_INVALID || code == TWS_UNSUPPORTED) && strstr(err.message, files[i % 2])),
        "byte %ld: %s", (long)at, err.message);
    ck_assert_msg(code != TWS_OK || same_tensors(out, tensors), "byte %ld of %s", (long)at, files[i % 2]);
    errors += code != TWS_OK;
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    if (i % 20 == 0) { /* cuts the file at this byte */
      ck_assert_int_eq(ftruncate(fd, at), 0);
      ck_assert(convert(in_folder("copy"), out, &err) == TWS_INVALID);
      close(fd);
      shell("cp %s/%s %s", golden_folder("zero3", "/global_step3"), files[i % 2], path);
    } else {
      close(fd);
    }
  }
  ck_assert_int_gt(errors, 20);
  tws_json_destroy(golden);
}
END_TEST

/* Tensors that are missing, duplicated, or of a kind that zero_to_fp32 does not support either, are refused. */
START_TEST(folders) {
  static const struct {
    const char *folder, *command, *words;
    int status;
  } cases[] = {
      {"zero2", "rm bf16_zero_pp_rank_1*", "2 ranks saved it, and there are 1 files", 3},
      {"zero2", "rm bf16_zero_pp_rank_0*", "rank 0's *_optim_states.pt is missing", 3},
      {"zero2",
       "mv bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt x; mv bf16_zero_pp_rank_1* "
       "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt; mv x bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
       "it has what rank 1 saved: files that changed places?", 3},
      {"universal", "truncate -s -3 zero/a.weight/fp32.pt", "zero/a.weight/fp32.pt", 3},
      {"universal", "cp mp_rank* zero/a.weight/fp32.pt", "/a.weight: it has no tensor of masters", 3},
      {"zero2", "rm bf16_zero*", "there is no file *_optim_states.pt with its masters", 3},
      {"zero2", "rm mp_rank*", "mp_rank_00_model_states.pt", 4},
      {"zero2", "cp bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt zero_pp_rank_0_mp_rank_00_optim_states.pt",
       "two files of rank 0's optimizer", 3},
      {"zero2", "cp bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt",
       "tensor parallelism", 3},
      {"zero2", "touch layer_0_expert_1_mp_rank_00_model_states.pt", "experts", 3},
      {"zero2", "touch layer_01-model_00-model_states.pt", "a pipeline's layers", 3},
      {"zero3", "rm zero_pp_rank_1_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt", 4},
      {"zero3", "cp %s/zero2/global_step3/*optim_states.pt .", "two files of rank ", 3},
      {"zero0", "cp %s/zero2/global_step3/*optim_states.pt .", "it has no param_shapes", 3},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char command[512];
    snprintf(command, sizeof command, cases[i].command, golden_folder("", "."));
    shell("rm -rf %s/copy; cp -r %s %s/copy; cd %s/copy/global_step3 && %s", folder, golden_folder(cases[i].folder, ""),
          folder, folder, command);
    command_result r = twinspeed("convert checkpoint %s %s --force", in_folder("copy"), in_folder("out"));
    assert_one_error(&r, cases[i].status, cases[i].command);
    ck_assert_msg(strstr(r.err, cases[i].words) != NULL, "%s: %s", cases[i].command, r.err);
    command_free(&r);
  }
}
END_TEST

/* ---- malicious pickles ---- */

static tws_code parse(const char *bytes, size_t count, tws_error *err) {
  tws_arena *arena = tws_arena_create();
  tws_pickle out;
  const tws_code code = tws_pickle_parse((const unsigned char *)bytes, count, "file", arena, &out, err);
  tws_arena_destroy(arena);
  return code;
}

/* A pickle of a tensor of `shape` and `stride` that begins at element `first` of a storage of `elements`. */
#define TENSOR(elements, first, shape, stride)                                               \
  "\x80\x02"                                                                                 \
  "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0" \
  "0X\x03\0\0\0cpu" elements "tQ" first shape stride                                         \
  "\x89"                                                                                     \
  "ccollections\nOrderedDict\n)RtR."
#define HUGE "\x8a\x08\0\0\0\0\0\0\0\x20"

START_TEST(harm) {
  static const struct {
    const char *bytes;
    size_t count;
    const char *words; /* NULL: it is read */
  } cases[] = {
#define CASE(bytes, words) {bytes, sizeof(bytes) - 1, words}
      CASE("\x80\x02}q\0.", NULL),
      CASE(TENSOR("K\x0c", "K\0", "K\x03K\x04\x86", "K\x04K\x01\x86"), NULL),
      CASE(TENSOR("K\x0c", "K\x04", "K\x02K\x04\x86", "K\x04K\x01\x86"), NULL),
      CASE(TENSOR("K\x0c", "K\x05", "K\x02K\x04\x86", "K\x04K\x01\x86"),
           "byte 128: a tensor reaches beyond its storage"),
      CASE(TENSOR("K\x0c", "K\0", "K\x03K\x04\x86", "K\x05K\x01\x86"), "a tensor reaches beyond its storage"),
      CASE(TENSOR("K\x0c", "K\0", "K\x03K\x04\x86", HUGE "K\x01\x86"), "a tensor reaches beyond its storage"),
      CASE(TENSOR("K\x0c", "K\0", HUGE HUGE "\x86", "K\0K\0\x86"), "a tensor's shape overflows"),
      CASE(TENSOR("K\x0c", "K\0", HUGE "\x85", "K\0\x85"), "a tensor's shape overflows"),
      CASE(TENSOR("K\x0c", "K\0", "J\xff\xff\xff\xff\x85", "K\x01\x85"), "not a tensor's shape"),
      CASE(TENSOR("K\x0c", "K\0", "K\x01\x85", "K\x01K\x01\x86"), "not a tensor's storage, place, shape and strides"),
      CASE(TENSOR(HUGE, "K\0", "K\x01\x85", "K\x01\x85"), "a storage of more elements than there can be"),
      CASE("\x80\x02"
           "cos\nsystem\nX\x02\0\0\0ls\x85R.",
           "opcode 0x63 at byte 2: it names os.system"),
      CASE("\x80\x02"
           "cbuiltins\neval\nX\x01\0\0\0"
           "1\x85R.",
           "it names __builtin__.eval"),
      CASE("\x80\x02"
           "cposix\nsystem\n.",
           "it names posix.system"),
      CASE("\x80\x02"
           "c__builtin__\ngetattr\n.",
           "it names __builtin__.getattr"),
      CASE("\x80\x02"
           "ctorch\nload\n.",
           "it names torch.load"),
      CASE("\x80\x02"
           "ctorch._utils\n_rebuild_tensor_v2\n)R.",
           "not a tensor's storage"),
      CASE("\x80\x02"
           "ctorch\nFloatStorage\n)R.",
           "a storage that is made by a call"),
      CASE("\x80\x02"
           "ctorch._tensor\n_rebuild_from_type_v2\n(h\0tR.",
           "a memo entry that does not exist"),
      CASE("\x80\x04\x95.", "pickle protocol 4"),
      CASE("\x80\x02(ios\nsystem\n.", "opcode 0x69 at byte 3: an opcode that files of weights do not have"),
      CASE("\x80\x02S'x'\n.", "opcode 0x53 at byte 2"),
      CASE("\x80\x02\x82\x01.", "opcode 0x82"),
      CASE("\x80\x02]q\0h\0"
           "ah\0"
           "ah\0"
           "a.",
           NULL), /* a list that contains itself three times */
      CASE("\x80\x02}q\0(X\x01\0\0\0ah\0h\0h\0u.", NULL),
      CASE("\x80\x02]r\xff\xff\xff\xff.", "a note of something that is not there"),
      CASE("\x80\x02h\x05.", "a memo entry that does not exist"),
      CASE("\x80\x02(((((.", "it ends with other than one value"),
      CASE("\x80\x02(q\0.", "a note of something that is not there"),
      CASE("\x80\x02K\x01K\x02.", "it ends with other than one value"),
      CASE("\x80\x02.", "it ends with other than one value"),
      CASE("\x80\x02u.", "there is no mark"),
      CASE("\x80\x02s.", "no dictionary to set items of"),
      CASE("\x80\x02](K\x01u.", "no dictionary to set items of"),
      CASE("\x80\x02K\x01"
           "a.",
           "no list to append to"),
      CASE("\x80\x02R.", "not a name and its arguments"),
      CASE("\x80\x02"
           "0.",
           "there is nothing on the stack"),
      CASE("\x80\x02Q.", "not a storage of numbers"),
      CASE("\x80\x02\x8a\x09\0\0\0\0\0\0\0\0\x01.", "an integer of more than 64 bits"),
      CASE("\x80\x02X\xff\xff\xff\xff"
           "abc.",
           "the pickle ends here"),
      CASE("\x80\x02", "the pickle ends here"),
      CASE("", "the pickle ends here"),
      CASE("\x80\x02"
           "cno line",
           "not a name"),
#undef CASE
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_error err = {0};
    const tws_code code = parse(cases[i].bytes, cases[i].count, &err);
    if (cases[i].words)
      ck_assert_msg(
          (code == TWS_INVALID || code == TWS_UNSUPPORTED) && strstr(err.message, cases[i].words) && *err.hint,
          "case %zu: not \"%s\" but %d: %s", i, cases[i].words, code, err.message);
    else
      ck_assert_msg(code == TWS_OK, "case %zu: %s", i, err.message);
  }
}
END_TEST

/* Small files that expand to large data are refused: sets of sets of ... of a long list, each of them a copy, and lists
 * of lists of lists. */
START_TEST(bombs) {
  tws_error err = {0};
  tws_text text = {0};
  tws_text_add_bytes(&text, "\x80\x02](", 4);
  for (int i = 0; i < 100000; i++) tws_text_add_bytes(&text, "N", 1);
  tws_text_add_bytes(&text,
                     "eq\0c__builtin__\nset\nq\x01"
                     "0",
                     23);
  for (int i = 0; i < 20000; i++) tws_text_add_bytes(&text, "h\x01h\0\x85R0", 7);
  tws_text_add(&text, ".");
  ck_assert(parse(text.data, text.length, &err) == TWS_INVALID);
  ck_assert_msg(strstr(err.message, "more values than any file of weights has"), "%s", err.message);
  text.length = 0;
  tws_text_add_bytes(&text, "\x80\x02]q\0", 5);
  for (int i = 0; i < 200; i++) { /* 2^200 leaves */
    tws_text_add_bytes(&text, "](h", 3);
    put_number(&text, (uint64_t)i, 1);
    tws_text_add_bytes(&text, "h", 1);
    put_number(&text, (uint64_t)i, 1);
    tws_text_add_bytes(&text, "eq", 2);
    put_number(&text, (uint64_t)i + 1, 1);
  }
  tws_text_add(&text, ".");
  ck_assert(parse(text.data, text.length, &err) == TWS_INVALID); /* more than one value is left */
  tws_text_free(&text);
}
END_TEST

/* ---- malicious archives, and valid ones ---- */

static const float values[6] = {1, -2.5f, 3e-9f, 0, 7, 1e30f};

/* Writes an archive of {"w": 2 x 3} whose values have the name `stored` and `bytes` bytes. */
static void make_file(const char *path, const char *stored, size_t bytes, int method, const char *order) {
  torch_archive a = {.method = method};
  tws_text pickle = {0};
  const int64_t shape[] = {2, 3};
  tws_text_add_bytes(&pickle, "\x80\x02}", 3);
  pickle_text(&pickle, "w");
  pickle_tensor(&pickle, "FloatStorage", "0", shape, 2);
  tws_text_add(&pickle, "s.");
  archive_add(&a, "data.pkl", pickle.data, pickle.length);
  if (order) archive_add(&a, "byteorder", order, strlen(order));
  archive_add(&a, stored, values, bytes);
  archive_write(&a, path);
  tws_text_free(&pickle);
}

static void check_refused(const char *path, const char *words) {
  tws_torch_file *file = NULL;
  tws_error err = {0};
  const tws_code code = tws_torch_open(path, &file, &err);
  ck_assert_msg((code == TWS_INVALID || code == TWS_UNSUPPORTED) && strstr(err.message, words) && !file,
                "not \"%s\" but %d: %s", words, code, err.message);
}

/* Replaces one byte of a file; at < 0 counts from its end. */
static void patch(const char *path, long at, int byte) {
  FILE *file = fopen(path, "r+b");
  ck_assert(fseek(file, at, at < 0 ? SEEK_END : SEEK_SET) == 0 && fputc(byte, file) == byte);
  fclose(file);
}

START_TEST(archives) {
  char path[64];
  snprintf(path, sizeof path, "%s", in_folder("weights.bin"));
  make_file(path, "data/0", sizeof values, 0, "little");
  command_result r = twinspeed("convert checkpoint %s %s --force", path, in_folder("out"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  cJSON *want = cJSON_Parse(
      "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"bytes\":\"0000803f000020c08f284e31000000000000e040caf24971\"}}");
  ck_assert(same_tensors(in_folder("out"), want));
  cJSON_Delete(want);
  r = twinspeed("convert checkpoint %s %s --force", golden_folder("zero2", "/global_step3/mp_rank_00_model_states.pt"),
                in_folder("out"));
  ck_assert_msg(r.status == 0 && strstr(r.err, "12 tensors"), "%s", r.err);
  command_free(&r);
  make_file(path, "data/1", sizeof values, 0, NULL);
  check_refused(path, "storage \"0\" is not there");
  make_file(path, "data/0", sizeof values - 4, 0, NULL);
  check_refused(path, "has 20 bytes, and its storage of 6 elements of F32 24");
  make_file(path, "data/0", sizeof values, 8, NULL);
  check_refused(path, "is compressed or encrypted");
  make_file(path, "data/0", sizeof values, 0, "big");
  check_refused(path, "its byte order is \"big\"");
  make_file(path, "data.pkl", sizeof values, 0, NULL);
  check_refused(path, "is there twice");
  make_file(path, "data/0", sizeof values, 0, NULL);
  patch(path, -12, 255); /* bytes of the list */
  check_refused(path, "list of entries");
  make_file(path, "data/0", sizeof values, 0, NULL);
  patch(path, -10, 255); /* the number of entries is 65535, which announces a 64-bit list that the file lacks */
  patch(path, -9, 255);
  check_refused(path, "its list of entries");
  shell("printf '\\200\\002\\212\\012\\154\\374\\234\\106\\371\\040\\152\\250\\120\\031.' > %s", path);
  check_refused(path, "the format of PyTorch before 1.6");
  shell("printf 'PK\\003\\004' > %s", path);
  check_refused(path, "too short for an archive");
}
END_TEST

/* ---- every allocation fails in turn ---- */

static tws_code open_checkpoint(void *name) {
  tws_deepspeed checkpoint;
  TWS_TRY(tws_deepspeed_open(name, &checkpoint, NULL));
  tws_deepspeed_close(&checkpoint);
  return TWS_OK;
}

static tws_code open_list(void *path) {
  tws_safetensors *list = NULL;
  TWS_TRY(tws_safetensors_open(path, &list, NULL));
  tws_safetensors_close(list);
  return TWS_OK;
}

START_TEST(allocations) {
  long bad = 0;
  char path[64];
  snprintf(path, sizeof path, "%s", in_folder("weights.bin"));
  make_file(path, "data/0", sizeof values, 0, "little");
  ck_assert_int_gt(fail_every_allocation(open_checkpoint, (void *)golden_folder("zero3", "/global_step3"), &bad), 50);
  ck_assert_int_eq(bad, 0);
  ck_assert_int_gt(fail_every_allocation(open_list, path, &bad), 10);
  ck_assert_int_eq(bad, 0);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("torch_files");
  TCase *tests = tcase_create("torch_files");
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  tcase_add_test(tests, deepspeed);
  tcase_add_test(tests, damage);
  tcase_add_test(tests, folders);
  tcase_add_test(tests, harm);
  tcase_add_test(tests, bombs);
  tcase_add_test(tests, archives);
  tcase_add_test(tests, allocations);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
