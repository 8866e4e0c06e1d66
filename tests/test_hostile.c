/* A hostile user: senseless command lines, invalid files, resource limits and signals. Each gives the documented exit
 * code and one error line, and leaves no file. */
#include <check.h>
#include <dirent.h>
#include <signal.h>

#include "base/philox.h"
#include "base/random.h"
#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

#define MODEL(more)                                                                                                   \
  "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 64, \"n_embd\": 32, \"n_layer\": 2, \"n_head\": " \
  "4" more "}"

static void fill_folder(void) {
  make_folder_with_text();
  write_text(in_folder("short"), "abc");
  write_text(in_folder("empty"), "");
  write_text(in_folder("model.json"), MODEL(""));
  write_text(in_folder("ds.json"), "{\"train_micro_batch_size_per_gpu\": 1}");
  write_text(in_folder("bad.json"), "{\"train_batch_size\": ");
  write_text(in_folder("binary"),
             "\x7f"
             "ELF\x01\x02\x03");
  write_text(in_folder("tokens.bin"), "not tokens at all");
  write_text(in_folder("hosts"), "localhost slots=4\n");
  mkdir(in_folder("folder"), 0777);
  mkfifo(in_folder("fifo"), 0666);
  symlink("missing", in_folder("dangling"));
  symlink("loop", in_folder("loop"));
}

/* '@' is the folder. */
static command_result run_line(const char *line) {
  char words[4096];
  size_t used = 0;
  for (const char *c = line; *c && used + 64 < sizeof words; c++) {
    if (*c == '@')
      used += (size_t)snprintf(words + used, sizeof words - used, "%s", folder);
    else
      words[used++] = *c;
  }
  words[used] = '\0';
  return twinspeed_to(command_scratch(), words);
}

static void assert_tidy(const char *line) {
  DIR *directory = opendir(folder);
  for (struct dirent *entry; (entry = readdir(directory));)
    ck_assert_msg(!strstr(entry->d_name, ".new"), "%s left %s", line, entry->d_name);
  closedir(directory);
}

static void assert_line(const char *line, int status) {
  command_result r = run_line(line);
  ck_assert_msg(r.status == status, "%s: exit %d instead of %d: %s", line, r.status, status, r.err);
  if (status > 1) ck_assert_msg(count_lines_with(r.err, "twinspeed: ") == 1, "%s: %s", line, r.err);
  for (const char *c = r.err; *c; c++) ck_assert_msg((unsigned char)*c >= 32 || *c == '\n', "%s: control %d", line, *c);
  assert_tidy(line);
  command_free(&r);
}

static const struct {
  int status;
  const char *line;
} cases[] = {
    /* words that are none */
    {2, "''"},
    {2, "-"},
    {2, "--"},
    {2, "estimat"},
    {2, "ESTIMATE"},
    {2, "--json"},
    {2, "help nothing"},
    {2, "estimate"},
    {2, "estimate gpt2"},
    {2, "estimate -m"},
    {2, "estimate --model"},
    {2, "estimate -m gpt2 --no-such-flag"},
    {2, "estimate -m gpt2 -Z"},
    {2, "estimate -m gpt2 extra words"},
    {2, "estimate -m gpt2 --json=yes"},
    {2, "estimate -m gpt2 --dtype fp8"},
    {2, "estimate -m gpt2 --dtype ''"},
    {2, "estimate -m gpt2 --recompute some"},
    {2, "estimate -m gpt2 --schedule 2f2b"},
    {2, "estimate -m gpt2 --axis-order data"},
    {2, "estimate -m gpt2 --stage 4"},
    {2, "estimate -m gpt2 --set"},
    {2, "estimate -m gpt2 --set stage"},
    {2, "estimate -m gpt2 --set =3"},
    {2, "estimate --zero2 --zero3 --total-params 1"},
    {2, "estimate --zero3 --total-params 1"},
    {2, "estimate --zero2"},
    {2, "estimate --zero2 --total-params -1"},
    {2, "estimate --zero2 --total-params nan"},
    {2, "estimate --zero2 --total-params 1 --compat other"},
    {2, "estimate --compat deepspeed"},
    {2, "simulate -m gpt2 --fidelity exact"},
    {2, "simulate -m gpt2 --rank 0"},
    {2, "simulate -m gpt2 --print-plan --rank 7"},
    {2, "simulate -m gpt2 --print-plan --csv @/new"},
    {2, "check"},
    {2, "check -m gpt2 --max-ranks 0"},
    {2, "tune"},
    {2, "tune -m gpt2 --tuner best -o @/t"},
    {2, "tune -m gpt2 --axes maybe -o @/t"},
    {2, "tune -m gpt2 --stages 7 -o @/t"},
    {2, "tune -m gpt2 --stages , -o @/t"},
    {2, "tune -m gpt2 --recomputes half -o @/t"},
    {2, "tune -m gpt2 --schedules 1f1b:4 -o @/t"},
    {2, "tune -m gpt2 --micro-batches 0 -o @/t"},
    {2, "tune -m gpt2 -b 8 --accumulations 2 -o @/t"},
    {2, "tune -m gpt2 --validate 2 -o @/t"},
    {2, "tune -m gpt2 -o ''"},
    {2, "train -m tiny-gpt2"},
    {2, "train --data @/text"},
    {2, "train -m tiny-gpt2 --data @/text --steps 0"},
    {2, "train -m tiny-gpt2 --data @/text --csv ''"},
    {2, "train -m tiny-gpt2 --data @/text --csv @/a --trace @/a"},
    {2, "train -m tiny-gpt2 --data @/text --csv @/text --force"},
    {3, "train -m tiny-gpt2 -c - -n 2 --data @/text"},
    {2, "validate -m tiny-gpt2"},
    {2, "validate -m tiny-gpt2 --data @/text --steps 1"},
    {2, "validate -m tiny-gpt2 --data @/text --tolerance -1"},
    {2, "calibrate"},
    {2, "calibrate -o @/text"},
    {2, "calibrate -o @/p.json --device tpu"},
    {2, "calibrate -o @/p.json -n 0"},
    {2, "report"},
    {2, "convert"},
    {2, "convert tokens"},
    {2, "convert tokens @/text"},
    {2, "convert tokens @/text @/short"},
    {2, "convert tokens @/text @/text --force"},
    {2, "convert config"},
    {2, "convert model"},
    {2, "convert nothing @/text"},
    {2, "launch"},
    {2, "launch -n 0 -- true"},
    {2, "launch -n 2 --hostfile @/text -- true"},
    {2, "launch --include a -- true"},
    {2, "rank-worker train"},
    {2, "completion tcsh"},
    /* names and contents that are invalid */
    {3, "estimate -m gpt5"},
    {3, "estimate -m ''"},
    {3, "estimate -m @/empty"},
    {3, "estimate -m @/binary"},
    {3, "estimate -m @/ds.json"},
    {3, "estimate -m @/bad.json"},
    {3, "estimate -m /dev/null"},
    {3, "estimate -m gpt2 --cluster dgx"},
    {3, "estimate -m gpt2 --cluster ''"},
    {3, "estimate -m gpt2 --cluster dgx-a100:0"},
    {3, "estimate -m gpt2 --cluster dgx-a100:x"},
    {3, "estimate -m gpt2 --cluster dgx-a100:-4"},
    {3, "estimate -m gpt2 --cluster dgx-a100:99999999999"},
    {3, "estimate -m gpt2 --cluster @/ds.json"},
    {3, "estimate -m gpt2 --profile tpu"},
    {3, "estimate -m gpt2 --profile @/ds.json"},
    {3, "estimate -m gpt2 -c @/bad.json"},
    {3, "estimate -m gpt2 -c @/empty"},
    {3, "estimate -m gpt2 -c @/binary"},
    {3, "estimate -m gpt2 --set stage=3"},
    {3, "estimate -m gpt2 --set zero_optimization.stge=3"},
    {3, "estimate -m gpt2 --set zero_optimization.stage=7"},
    {3, "estimate -m gpt2 --set zero_optimization.stage={"},
    {3, "estimate -m gpt2 --set zero_optimization=null"},
    {3, "estimate -m gpt2 --set train_batch_size=1e400"},
    {3, "estimate -m gpt2 --set train_batch_size=-1"},
    {3, "estimate -m gpt2 --set train_batch_size=nan"},
    {3, "estimate -m gpt2 --set a.b.c.d=1"},
    {3, "estimate -m gpt2 --set .=1"},
    {3, "estimate -m gpt2 --set fp16.enabled=true --set bf16.enabled=true"},
    {3, "estimate -m gpt2 --cluster dgx-a100 -n 9"},
    {3, "estimate -m gpt2 --cluster dgx-a100 --tp 5"},
    {3, "estimate -m gpt2 --cluster dgx-a100 --pp 3"},
    {3, "estimate -m gpt2 --cluster dgx-a100 --sp 7"},
    {3, "estimate -m gpt2 --cluster dgx-a100 --pp 2 --stage 2"},
    {3, "estimate -m gpt2 --cluster dgx-a100:4 --pp 32"},
    {3, "estimate -m gpt2 --cluster dgx-a100 --set train_batch_size=7"},
    {3, "estimate -m gpt2 -c @/ds.json --set train_micro_batch_size_per_gpu=null"},
    {3, "estimate --safetensors @/text"},
    {3, "estimate --safetensors @/empty"},
    {3, "check -c @/bad.json"},
    {3, "check -c @/text"},
    {3, "check -c @/ds.json --set log=1"},
    {3, "simulate -m gpt2 --cluster dgx-a100 --tp 7"},
    {3, "profile -m tiny-gpt2 --measured @/ds.json"},
    {3, "profile -m tiny-gpt2 --measured @/text"},
    {3, "tune -m gpt2-xl --tp 2 -n 8 --cluster dgx-a100 --no-simulation -o @/t"},
    {3, "tune -m gpt2 -b 7 -n 8 --cluster dgx-a100 --no-simulation -o @/t"},
    {3, "tune -m gpt2 --cluster dgx-a100 -n 9 --no-simulation -o @/t"},
    {3, "train -m tiny-gpt2 --seq 32 --data @/short --quiet"},
    {3, "train -m tiny-gpt2 --seq 32 --data @/empty --quiet"},
    {3, "train -m tiny-gpt2 --seq 32 --data @/tokens.bin --quiet"},
    {3, "train -m tiny-gpt2 --seq 32 --micro-batch 4096 --data @/text --quiet"},
    {3, "report @/ds.json"},
    {3, "report @/bad.json"},
    {3, "report @/empty"},
    {3, "convert config @/bad.json"},
    {3, "convert tokens @/empty @/out.bin"},
    {3, "convert model @/ds.json"},
    {3, "validate --cases @/ds.json"},
    {3, "launch --hostfile @/text -- true"},
    {3, "launch --hostfile @/empty -- true"},
    {3, "launch --hostfile @/hosts --exclude localhost:9 --dry-run"},
    {3, "launch --hostfile @/hosts --exclude elsewhere --dry-run"},
    {3, "train -m tiny-gpt2 --cluster host:2x4 --data @/text"},
    /* errors of the file system and of the machine */
    {4, "estimate -m @/none.json"},
    {4, "estimate -m @/folder"},
    {4, "estimate -m @/dangling"},
    {4, "estimate -m @/loop"},
    {4, "estimate -m gpt2 -c @/none"},
    {4, "estimate -m gpt2 -c @/folder"},
    {4, "estimate -m gpt2 --cluster @/none.json"},
    {4, "estimate -m gpt2 --profile @/none.json"},
    {4, "estimate -m gpt2 --ledger-csv @/none/x"},
    {4, "estimate -m gpt2 --ledger-csv @/folder"},
    {4, "estimate -m gpt2 --ledger-csv @/text/x"},
    {4, "estimate -m gpt2 --ledger-csv /proc/x"},
    {4, "estimate --safetensors @/none.safetensors"},
    {4, "simulate -m tiny-gpt2 --trace @/none/x"},
    {2, "simulate -m tiny-gpt2 --csv @/loop"}, /* a symbolic link as an output is refused */
    {4, "profile -m tiny-gpt2 --measured @/none"},
    {4, "tune -m tiny-gpt2 -o @/text"},
    {4, "tune -m tiny-gpt2 -o @/none/x"},
    {4, "train -m tiny-gpt2 --data @/none --quiet"},
    {4, "train -m tiny-gpt2 --data @/folder --quiet"},
    {4, "train -m tiny-gpt2 --data @/fifo --quiet"},
    {4, "train -m tiny-gpt2 --data /dev/null --quiet"},
    {4, "train -m tiny-gpt2 --data @/text --result @/none/x"},
    {4, "validate --cases @/none"},
    {4, "calibrate -o @/none/x"},
    {4, "report @/none"},
    {4, "report @/text --plot @/text"},
    {4, "convert config @/none"},
    {4, "convert tokens @/none @/out.bin"},
    {4, "convert model @/none.json"},
    {4, "launch --hostfile @/none -- true"},
    {4, "launch -- no-such-program-anywhere"},
    /* an honest no */
    {1, "estimate -m gpt-3-175b --cluster dgx1-v100"},
    {1, "estimate -m gpt2 --cluster dgx1-v100 --micro-batch 100000"},
    {1, "tune -m gpt2 --cluster dgx-a100 --memory 0 --no-simulation -o @/t"},
    {1, "tune -m gpt2 --cluster dgx-a100 --memory 1 --no-simulation -o @/t"},
    {1, "train -m gpt2 --micro-batch 100000 --data @/text --quiet"},
    /* odd, and right */
    {0, "estimate -m tiny-gpt2 --quiet"},
    {0, "estimate --model=tiny-gpt2 --json"},
    {0, "estimate -m @/model.json -c @/ds.json"},
    {0, "estimate -m tiny-gpt2 --ledger-csv /dev/null"},
    {0, "estimate -m tiny-gpt2 -v -v -q"},
    {0, "check -c @/ds.json"},
    {0, "check @/ds.json"},
    {0, "convert config @/ds.json"},
    {0, "convert model tiny-gpt2"},
    {0, "simulate -m tiny-gpt2 --print-plan"},
    {0, "profile -m tiny-gpt2"},
    {0, "help"},
    {0, "help tune"},
    {0, "--version"},
};
enum { CASES = sizeof cases / sizeof cases[0] };

START_TEST(lines_of_the_table) {
  for (int i = _i; i < CASES; i += 8) {
    assert_line(cases[i].line, cases[i].status);
  }
}
END_TEST

/* Returns 1 where the option takes a list of values: sizes of a job, in the verbs that answer for each combination. */
static int takes_list(const char *verb, const char *flag) {
  return (strncmp(verb, "estimate", 8) == 0 || strncmp(verb, "simulate", 8) == 0) && strcmp(flag, "--threads") != 0 &&
         strcmp(flag, "--seed") != 0 && strcmp(flag, "--vocab-multiple") != 0;
}

/* Numbers out of an option's range are refused. */
START_TEST(numbers_out_of_range) {
  static const char *const verbs[] = {"estimate -m gpt2", "check -m gpt2", "simulate -m gpt2", "profile -m gpt2",
                                      "train -m gpt2 --data @/text"};
  static const char *const flags[] = {"--micro-batch", "--accumulation", "--seq", "--tp",   "--pp",
                                      "--sp",          "--threads",      "-n",    "--seed", "--vocab-multiple"};
  static const char *const values[] = {"-1", "1.5", "abc", "''", "1e400", "99999999999999999999", "nan", "0x10", "1,2"};
  for (size_t f = 0; f < sizeof flags / sizeof flags[0]; f++)
    for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
      char line[160];
      const int list = strchr(values[v], ',') && takes_list(verbs[_i], flags[f]);
      snprintf(line, sizeof line, "%s %s %s", verbs[_i], flags[f], list ? "1,x" : values[v]);
      assert_line(line, 2);
    }
}
END_TEST

/* Words in a random order give an answer or one error, and never a crash. */
START_TEST(random_lines) {
  static const char *const words[] = {"-m tiny-gpt2",
                                      "-m @/model.json",
                                      "-m @/bad.json",
                                      "-c @/ds.json",
                                      "-c @/bad.json",
                                      "-c @/empty",
                                      "--cluster dgx-a100",
                                      "--cluster host:2x4",
                                      "--cluster dgx1-v100:3",
                                      "--profile v100",
                                      "--stage 3",
                                      "--stage 1",
                                      "--tp 2",
                                      "--tp 3",
                                      "--pp 2",
                                      "--sp 4",
                                      "-n 6",
                                      "-n 8",
                                      "--seq 48",
                                      "--seq 1",
                                      "--micro-batch 3",
                                      "--accumulation 5",
                                      "--dtype bf16",
                                      "--dtype fp16",
                                      "--recompute full",
                                      "--set train_batch_size=24",
                                      "--set zero_optimization.reduce_bucket_size=1",
                                      "--set twinspeed.loss_tiles=7",
                                      "--set bf16.enabled=maybe",
                                      "--schedule zb-h1",
                                      "--schedule interleaved --virtual-stages 2",
                                      "--sequence-parallel",
                                      "--vocab-multiple 100",
                                      "--axis-order model,data,pipe,sequence",
                                      "--strict",
                                      "--json",
                                      "--quiet",
                                      "--nonsense",
                                      "--ledger-csv /dev/null",
                                      "--trace /dev/null"};
  static const char *const verbs[] = {"estimate", "check", "simulate", "profile"};
  for (uint64_t i = 0; i < 60; i++) {
    char line[1024];
    uint32_t draw[4];
    tws_philox(11, (uint64_t)_i, 100 * i, draw);
    int used = snprintf(line, sizeof line, "%s %s", verbs[_i], draw[1] % 4 ? "-m tiny-gpt2" : "");
    for (uint32_t k = 0; k < 1 + draw[0] % 6; k++) {
      uint32_t next[4];
      tws_philox(11, (uint64_t)_i, 100 * i + k + 1, next);
      used += snprintf(line + used, sizeof line - (size_t)used, " %s", words[next[0] % (sizeof words / sizeof *words)]);
    }
    command_result r = run_line(line);
    ck_assert_msg(r.status >= 0 && r.status <= 4, "%s: exit %d: %s", line, r.status, r.err);
    ck_assert_msg((r.status > 1) == (count_lines_with(r.err, "twinspeed: ") > 0) || r.status == 1, "%s: %d %s", line,
                  r.status, r.err);
    command_free(&r);
  }
}
END_TEST

static command_result shell(const char *format, const char *more) {
  char line[2048];
  snprintf(line, sizeof line, format, TWS_BUILD_DIR, folder, more);
  char *argv[] = {"/bin/sh", "-c", line, NULL};
  return command_execute(argv);
}

/* Exceeded limits of the shell give an error message and leave no unfinished file. */
START_TEST(limits) {
  command_result r = shell("ulimit -f 1; %s/twinspeed simulate -m gpt2 --quiet --trace %s/trace%s", "");
  ck_assert_msg(r.status == 4 && strstr(r.err, "File too large"), "%d %s", r.status, r.err);
  assert_tidy("ulimit -f");
  command_free(&r);
  r = shell("ulimit -n 32; %s/twinspeed train -m tiny-gpt2 -n 2 --seq 32 --steps 2 --data %s/text --quiet%s", "");
  ck_assert_msg(r.status == 4 && strstr(r.err, "(ulimit -n)"), "%d %s", r.status, r.err);
  command_free(&r);
  write_text(in_folder("mpirun"), "#!/bin/sh\nexec sleep 100\n");
  chmod(in_folder("mpirun"), 0755);
  r = shell(
      "b=%s PATH=%s:$PATH; exec $b/twinspeed train -m tiny-gpt2 -n 2 --seq 32 --data %s/text --deadline 1 --quiet",
      folder);
  ck_assert_msg(r.status == 124 && strstr(r.err, "rank 0 did not start within 1 s"), "%d %s", r.status, r.err);
  command_free(&r);
}
END_TEST

/* Under any limit of the address space there is one error message, and no library aborts the process. */
START_TEST(little_address_space) {
  if (TWS_SANITIZED) return; /* which takes terabytes of it */
  for (int mib = 70 + _i; mib < 150; mib += 10) {
    char line[512];
    snprintf(line, sizeof line,
             "ulimit -c 0; ulimit -v %d; exec %s/twinspeed train -m tiny-gpt2 --seq 32 --steps 2 --threads 2 --data "
             "%s/text --quiet",
             mib << 10, TWS_BUILD_DIR, folder);
    char *argv[] = {"/bin/sh", "-c", line, NULL};
    command_result r = command_execute(argv);
    ck_assert_msg(r.status == 4 && count_lines_with(r.err, "twinspeed: ") == 1, "%d MiB: %d %s", mib, r.status, r.err);
    if (mib >= 110) ck_assert_msg(strstr(r.err, "(ulimit -v), leaves less than the 128 MiB"), "%d MiB: %s", mib, r.err);
    command_free(&r);
  }
  command_result r =
      shell("ulimit -v 102400; %s/twinspeed train -m tiny-gpt2 -n 2 --seq 32 --steps 2 --data %s/text --quiet%s", "");
  ck_assert_msg(r.status == 4 && strstr(r.err, "(ulimit -v)"), "%d %s", r.status, r.err);
  command_free(&r);
}
END_TEST

/* Each of these commands reads a pipe that no process writes to. A pipe in a checkpoint's or model's folder is refused
 * at once; a pipe on the command line is refused when no process has opened it for writing within five seconds. No
 * command waits longer. */
START_TEST(pipes_that_nothing_writes_to) {
  static const char at_once[] = "a pipe or a device, and a regular file is expected", *const late =
                                                                                          "no process has written to";
  static const struct {
    const char *line, *says, *pipe;
  } reads[] = {
      {"estimate -m @/f1", at_once, "f1/config.json"},
      {"estimate --safetensors @/f2", at_once, "f2/model.safetensors"},
      {"estimate --safetensors @/f3", at_once, "f3/model.safetensors.index.json"},
      {"convert checkpoint @/f4 @/out.safetensors", at_once, "f4/pytorch_model.bin.index.json"},
      {"convert checkpoint @/f5 @/out.safetensors", at_once, "f5/pytorch_model.bin"},
      {"convert merge @/text @/f6 @/out.safetensors", at_once, "f6/adapter_config.json"},
      {"convert merge @/text @/f7 @/out.safetensors", at_once, "f7/frozen_quantization.json"},
      {"convert merge @/f2 @/f8 @/out.safetensors", at_once, "f2/model.safetensors"},
      {"train -m tiny-gpt2 --seq 32 --data @/text --init-from @/pipe.safetensors", at_once, "pipe.safetensors"},
      {"launch --hostfile @/far --remote-shell true --print-command -- true", at_once, ".deepspeed_env"},
      {"estimate -m @/pipe.json", late, "pipe.json"},
      {"estimate -m tiny-gpt2 -c @/pipe.json", late, "pipe.json"},
      {"estimate -m tiny-gpt2 --cluster @/pipe.json", late, "pipe.json"},
      {"estimate -m tiny-gpt2 --profile @/pipe.json", late, "pipe.json"},
      {"launch --hostfile @/pipe --dry-run", late, "pipe"},
      {"report @/pipe.json", late, "pipe.json"},
      {"validate --cases @/pipe.json", late, "pipe.json"},
      {"profile -m tiny-gpt2 --measured @/pipe.json", late, "pipe.json"},
      {"emulate --scenario @/pipe.json", late, "pipe.json"},
      {"convert tokens @/text @/out.bin --tokenizer @/pipe.json", late, "pipe.json"},
      {"convert config @/pipe.json", late, "pipe.json"},
      {"convert tokens @/pipe @/out.bin", late, "pipe"},
      {"convert tokens @/pipe.jsonl @/out.bin", late, "pipe.jsonl"},
      {"convert topology @/pipe @/out.json", late, "pipe"},
      {"convert nccl-tests @/pipe @/out.json --profile a100", late, "pipe"},
      {"calibrate --disk @/folder --disk-bytes 65536 --quick --into @/pipe.json", at_once, "pipe.json"}};
  enum { READS = sizeof reads / sizeof *reads };
  pid_t running[READS];
  command_result out[READS];
  int err[READS];
  for (int i = 1; i <= 8; i++) {
    char name[16];
    snprintf(name, sizeof name, "f%d", i);
    ck_assert_int_eq(mkdir(in_folder(name), 0700), 0);
  }
  write_text(in_folder("f7/adapter_config.json"), "{\"r\": 1}");
  write_text(in_folder("f8/adapter_config.json"), "{\"r\": 1}");
  write_text(in_folder("far"), "elsewhere slots=1\n");
  for (int i = 0; i < READS; i++) (void)mkfifo(in_folder(reads[i].pipe), 0600);
  fflush(NULL);
  for (int i = 0; i < READS; i++) { /* all commands run at the same time, because some take five seconds */
    err[i] = command_scratch();
    running[i] = fork();
    if (running[i] != 0) continue;
    alarm(60);
    if (chdir(folder) != 0) _exit(125);
    command_result r = run_line(reads[i].line);
    if (write(err[i], r.err, strlen(r.err)) < 0) _exit(125);
    _exit(r.status);
  }
  for (int i = 0; i < READS; i++) {
    int status = 0;
    waitpid(running[i], &status, 0);
    out[i] = (command_result){.status = status, .err = command_slurp(err[i])};
  }
  for (int i = 0; i < READS; i++) {
    ck_assert_msg(WIFEXITED(out[i].status) && WEXITSTATUS(out[i].status) == 3, "%s: status %x: %s", reads[i].line,
                  (unsigned)out[i].status, out[i].err);
    ck_assert_msg(strstr(out[i].err, reads[i].says) && strstr(out[i].err, reads[i].pipe), "%s: %s", reads[i].line,
                  out[i].err);
    free(out[i].err);
  }
  command_result r =
      shell("b=%s; cd %s; (sleep 1; cat model.json >pipe.json) & exec $b/twinspeed estimate -m pipe.json%s", "");
  ck_assert_msg(r.status == 0, "a pipe that is written to later: %d %s", r.status, r.err);
  command_free(&r);
}
END_TEST

/* A signal gives one error line and the documented status, whatever the program was doing. */
START_TEST(signals) {
  static const char *const lines[] = {
      "train -m tiny-gpt2 --seq 32 --steps 1000000 --every 1000000 --quiet --data",
      "simulate -m gpt-3-175b --cluster dgx-a100:64 --stage 3 --all-ranks --quiet --csv"};
  static const struct { int number, status; } sent[] = {{SIGTERM, 143}, {SIGINT, 130}};
  for (int i = 0; i < 2; i++) {
    char line[1024];
    snprintf(
        line, sizeof line,
        "%s/twinspeed %s %s/%s & p=$!; i=0; while [ $i -lt 5 ]; do sleep 0.1; i=$((i+1)); done; kill -%d $p; wait $p",
        TWS_BUILD_DIR, lines[i], folder, i ? "new" : "text", sent[_i].number);
    char *argv[] = {"/bin/bash", "-c", line, NULL};
    if (sent[_i].number == SIGINT) { /* a shell without job control starts its children with SIGINT ignored */
      snprintf(line, sizeof line, "set -m; %s/twinspeed %s %s/%s & p=$!; sleep 0.5; kill -INT $p; wait $p",
               TWS_BUILD_DIR, lines[i], folder, i ? "new" : "text");
    }
    command_result r = command_execute(argv);
    ck_assert_msg(r.status == sent[_i].status, "%s: %d %s", line, r.status, r.err);
    ck_assert_msg(count_lines_with(r.err, "twinspeed: ") == 1, "%s: %s", line, r.err);
    ck_assert_msg(access(in_folder("new"), F_OK) != 0, "%s: a file was left", line);
    command_free(&r);
  }
}
END_TEST

/* ctest: mpi */
int main(void) {
  Suite *suite = suite_create("hostile");
  TCase *tcase = tcase_create("hostile");
  tcase_set_timeout(tcase, 120);
  tcase_add_checked_fixture(tcase, fill_folder, remove_folder);
  tcase_add_loop_test(tcase, lines_of_the_table, 0, 8);
  tcase_add_loop_test(tcase, numbers_out_of_range, 0, 5);
  tcase_add_loop_test(tcase, random_lines, 0, 4);
  tcase_add_test(tcase, limits);
  tcase_add_loop_test(tcase, little_address_space, 0, 2);
  tcase_add_test(tcase, pipes_that_nothing_writes_to);
  tcase_add_loop_test(tcase, signals, 0, 2);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
