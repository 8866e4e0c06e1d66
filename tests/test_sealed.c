/* Messages between the launcher and its ranks: the peers that are refused, the records that open and are accepted, and
 * lines that stay whole. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/memory.h"
#include "launch/lines.h"
#include "launch/link.h"
#include "launch/protocol.h"
#include "launch/seal.h"
#include "launch/rank_listener.h"
#include "tests/suite.h"

static void make_secret(uint8_t secret[TWS_SECRET]) {
  char text[TWS_SECRET_TEXT + 1];
  ck_assert(tws_secret_make(text) && tws_secret_read(text, secret));
}

/* Lets a rank and a launcher with equal or different secrets perform the handshake; *rank_believes and
 * *launcher_believes receive 1 where they accept the other. */
static void meet(const uint8_t *of_rank, const uint8_t *of_launcher, tws_session *rank, tws_session *launcher,
                 int *rank_believes, int *launcher_believes) {
  tws_hello hello;
  tws_answer answer;
  tws_handshake gate = {.rank = -1};
  uint8_t proof[TWS_RANDOM] = {0};
  int answers = 0;
  ck_assert(tws_hello_make(2, &hello));
  ck_assert_int_eq(
      tws_handshake_receive(&gate, of_launcher, 4, (const uint8_t *)&hello, sizeof hello, &answer, &answers), 0);
  ck_assert_int_eq(answers, 1);
  *rank_believes = tws_answer_check(of_rank, &hello, &answer, rank, proof);
  *launcher_believes = tws_handshake_receive(&gate, of_launcher, 4, proof, sizeof proof, &answer, &answers) == 1;
  *launcher = gate.session;
}

START_TEST(proofs) {
  uint8_t secret[TWS_SECRET], other[TWS_SECRET];
  tws_session rank, launcher, later;
  int rank_believes, launcher_believes, answers;
  make_secret(secret);
  make_secret(other);
  meet(secret, secret, &rank, &launcher, &rank_believes, &launcher_believes);
  ck_assert(rank_believes && launcher_believes);
  ck_assert(memcmp(rank.send_key, launcher.receive_key, 32) == 0 &&
            memcmp(rank.receive_key, launcher.send_key, 32) == 0);
  ck_assert(memcmp(rank.send_key, rank.receive_key, 32) != 0);
  meet(secret, secret, &later, &launcher, &rank_believes, &launcher_believes);
  ck_assert(memcmp(rank.send_key, later.send_key, 32) != 0); /* each connection has keys of its own */
  other[TWS_SECRET - 1] = secret[TWS_SECRET - 1] ^ 1;
  memcpy(other, secret, TWS_SECRET - 1);
  meet(secret, other, &rank, &launcher, &rank_believes, &launcher_believes);
  ck_assert(!rank_believes && !launcher_believes);
  /* The proof of an earlier connection, or the launcher's own proof, is not accepted as a rank's proof. */
  tws_hello hello;
  tws_answer answer, second;
  uint8_t proof[TWS_RANDOM];
  tws_handshake gate = {.rank = -1}, again = {.rank = -1};
  tws_hello_make(0, &hello);
  tws_handshake_receive(&gate, secret, 4, (const uint8_t *)&hello, sizeof hello, &answer, &answers);
  ck_assert(tws_answer_check(secret, &hello, &answer, &rank, proof));
  tws_handshake_receive(&again, secret, 4, (const uint8_t *)&hello, sizeof hello, &second, &answers);
  ck_assert_int_eq(tws_handshake_receive(&again, secret, 4, proof, sizeof proof, &second, &answers), -1);
  ck_assert(!tws_answer_check(secret, &hello, &(tws_answer){0}, &rank, proof));
  ck_assert_int_eq(tws_handshake_receive(&gate, secret, 4, answer.proof, sizeof answer.proof, &second, &answers), -1);
  hello.rank = 4; /* of four */
  gate = (tws_handshake){.rank = -1};
  ck_assert_int_eq(tws_handshake_receive(&gate, secret, 4, (const uint8_t *)&hello, sizeof hello, &answer, &answers),
                   -1);
}
END_TEST

START_TEST(sealing) {
  uint8_t secret[TWS_SECRET], wire[3][TWS_LINK_BYTES], opened[TWS_LINK_BYTES], changed[TWS_LINK_BYTES];
  tws_session rank, launcher, fresh;
  int rank_believes, launcher_believes;
  size_t bytes[3];
  make_secret(secret);
  meet(secret, secret, &rank, &launcher, &rank_believes, &launcher_believes);
  static const char *const texts[] = {"the first line of text", "the second line of text", "x"};
  for (int i = 0; i < 3; i++) {
    bytes[i] = tws_seal(&rank, texts[i], strlen(texts[i]), wire[i]);
    ck_assert_uint_eq(bytes[i], strlen(texts[i]) + TWS_SEAL_EXTRA);
    ck_assert_uint_eq(tws_sealed_bytes(wire[i], 64), bytes[i]);
    ck_assert(!memmem(wire[i], bytes[i], "line", 4));
  }
  ck_assert_uint_eq(tws_sealed_bytes(wire[0], strlen(texts[0]) - 1), 0); /* longer than there is room for */
  ck_assert_uint_eq(tws_sealed_bytes((const uint8_t[]){0, 0, 0, 0}, 64), 0);
  ck_assert_uint_eq(tws_sealed_bytes((const uint8_t[]){255, 255, 255, 255}, 64), 0);
  for (size_t i = 0; i < bytes[0]; i++) { /* a record with any changed bit, also in its length, does not open */
    memcpy(changed, wire[0], bytes[0]);
    changed[i] ^= 4;
    ck_assert_uint_eq(tws_unseal(&launcher, changed, bytes[0], opened), 0);
  }
  fresh = launcher;
  ck_assert_uint_eq(tws_unseal(&fresh, wire[1], bytes[1], opened), 0); /* one is left out */
  ck_assert_uint_eq(tws_unseal(&rank, wire[0], bytes[0], opened), 0);  /* sent back to its sender */
  for (int i = 0; i < 3; i++) {
    ck_assert_uint_eq(tws_unseal(&launcher, wire[i], bytes[i], opened), strlen(texts[i]));
    ck_assert(memcmp(opened, texts[i], strlen(texts[i])) == 0);
    ck_assert_uint_eq(tws_unseal(&launcher, wire[i], bytes[i], opened), 0); /* a second time */
  }
}
END_TEST

/* Records that a false launcher or a false rank may send are refused. */
START_TEST(records) {
  tws_launch_record welcome = {.kind = TWS_RECORD_WELCOME,
                               .rank = 1,
                               .place = {.ranks = 2,
                                         .local_ranks = 1,
                                         .node = 1,
                                         .nodes = 2,
                                         .given = 1,
                                         .device_count = 1,
                                         .master = "node1",
                                         .patience_s = 20}};
  const size_t size = tws_record_bytes(&welcome);
  const tws_launch_record good = welcome;
  ck_assert(tws_record_check(&welcome, size, -1, 0));
  ck_assert(!tws_record_check(&welcome, size - 1, -1, 0) && !tws_record_check(&welcome, sizeof welcome, -1, 0));
  ck_assert(!tws_record_check(&welcome, size, 1, 2)); /* no rank welcomes the launcher */
#define REFUSED(...)                                     \
  do {                                                   \
    __VA_ARGS__;                                         \
    ck_assert(!tws_record_check(&welcome, size, -1, 0)); \
    welcome = good;                                      \
  } while (0)
  REFUSED(welcome.place.device_count = 257);
  REFUSED(welcome.place.device_count = 100000);
  REFUSED(welcome.place.device_count = -1);
  REFUSED(welcome.place.device[0] = -32768);
  REFUSED(memset(welcome.place.master, 'A', sizeof welcome.place.master));
  REFUSED(welcome.place.patience_s = 0.0 / 0.0);
  REFUSED(welcome.place.patience_s = 1e300);
  REFUSED(welcome.place.ranks = -1);
  REFUSED(welcome.place.node = 2);
  REFUSED(welcome.rank = 2);
  REFUSED(welcome.kind = 99);
  tws_launch_record failed = {.kind = TWS_RECORD_FAILED, .rank = 1, .error = {.code = TWS_IO, .message = "disk"}};
  const tws_launch_record told = failed;
  ck_assert(tws_record_check(&failed, tws_record_bytes(&failed), 1, 2));
  ck_assert(!tws_record_check(&failed, tws_record_bytes(&failed), 0, 2)); /* another rank's */
  for (int i = 0; i < 4; i++) {
    const int32_t code = i ? -7 : 12345;
    if (i < 2) memcpy(&failed.error.code, &code, sizeof code);
    if (i == 2) memset(failed.error.message, 'A', sizeof failed.error.message);
    if (i == 3) failed.rank = INT32_MAX;
    ck_assert_msg(!tws_record_check(&failed, tws_record_bytes(&failed), 1, 2), "%d", i);
    failed = told;
  }
  static const struct {
    int32_t stream, bytes;
    int good;
  } outputs[] = {{0, 10, 1}, {1, 2048, 1}, {0, 2049, 0}, {0, INT32_MAX, 0},
                 {0, -1, 0}, {0, 0, 0},    {7, 10, 0},   {-1, 10, 0}};
  for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
    tws_launch_record output = {
        .kind = TWS_RECORD_OUTPUT, .rank = 1, .stream = outputs[i].stream, .bytes = outputs[i].bytes};
    ck_assert_int_eq(tws_record_check(&output, tws_record_bytes(&output), 1, 2), outputs[i].good);
  }
  tws_launch_record activity = {.kind = TWS_RECORD_ACTIVITY, .rank = 1};
  ck_assert(tws_record_check(&activity, tws_record_bytes(&activity), 1, 2));
  memset(activity.text, 'Z', sizeof activity.text);
  ck_assert(!tws_record_check(&activity, tws_record_bytes(&activity), 1, 2));
}
END_TEST

static char *written(tws_shared_output *outlet, int file) {
  static char text[3 * TWS_LINE_MOST];
  ck_assert_uint_eq(outlet->count, 0);
  ck_assert_int_eq(outlet->failed, 0);
  const ssize_t got = pread(file, text, sizeof text - 1, 0);
  ck_assert_int_ge(got, 0);
  text[got] = '\0';
  return text;
}

/* The lines of two ranks stay whole although they arrive in segments of any length. */
START_TEST(lines) {
  char name[] = "/tmp/twinspeed-lines-XXXXXX";
  const int file = mkstemp(name);
  unlink(name);
  tws_shared_output outlet;
  tws_line line[2] = {{0}};
  tws_shared_output_open(&outlet, file);
  tws_line_add(&line[0], 0, &outlet, "one ", 4);
  tws_line_add(&line[1], 1, &outlet, "a\nb", 3);
  ck_assert_str_eq(written(&outlet, file), "a\n");
  tws_line_add(&line[0], 0, &outlet, "line\ntwo", 8);
  tws_line_add(&line[1], 1, &outlet, "c\n 10 %\r", 8);
  ck_assert_str_eq(written(&outlet, file), "a\none line\nbc\n");
  tws_line_add(&line[1], 1, &outlet, " 20 %", 5); /* a bar of progress */
  ck_assert_str_eq(written(&outlet, file), "a\none line\nbc\n 10 %\r");
  tws_line_end(&line[0], 0, &outlet); /* the rank's last line has no line feed */
  ck_assert_str_eq(written(&outlet, file), "a\none line\nbc\n 10 %\r\ntwo");
  tws_line_end(&line[1], 1, &outlet);
  ck_assert_str_eq(written(&outlet, file), "a\none line\nbc\n 10 %\r\ntwo\n 20 %");
  tws_shared_output_close(&outlet);
  /* A line that is too long is split, and no line of another rank is appended to its segments. */
  ck_assert_int_eq(ftruncate(file, 0), 0);
  lseek(file, 0, SEEK_SET);
  char *most = malloc(TWS_LINE_MOST + 1);
  memset(most, 'x', TWS_LINE_MOST + 1);
  most[TWS_LINE_MOST] = '\n';
  tws_shared_output_open(&outlet, file);
  tws_line_add(&line[0], 0, &outlet, most, TWS_LINE_MOST);
  tws_line_add(&line[1], 1, &outlet, "b\n", 2);
  tws_line_add(&line[0], 0, &outlet, "y\n", 2);
  const char *text = written(&outlet, file);
  ck_assert(strspn(text, "x") == TWS_LINE_MOST);
  ck_assert_str_eq(text + TWS_LINE_MOST, "\nb\ny\n");
  for (int i = 0; i < 2; i++) tws_line_end(&line[i], i, &outlet);
  tws_shared_output_close(&outlet);
  free(most);
  close(file);
}
END_TEST

/* An output that is not read keeps the text that cannot be written yet, and does not block. */
START_TEST(outlets) {
  int ends[2];
  tws_shared_output outlet;
  tws_line line = {0};
  char text[1024], got[4096];
  size_t sent = 0, received = 0;
  memset(text, 'x', sizeof text);
  text[sizeof text - 1] = '\n';
  ck_assert_int_eq(pipe(ends), 0);
  tws_shared_output_open(&outlet, ends[1]);
  for (int i = 0; i < 200; i++, sent += sizeof text) tws_line_add(&line, 0, &outlet, text, sizeof text);
  ck_assert_uint_gt(outlet.count, 0);
  while (received < sent) {
    const ssize_t count = read(ends[0], got, sizeof got);
    ck_assert_int_gt(count, 0);
    received += (size_t)count;
    tws_shared_output_write(&outlet);
  }
  ck_assert_uint_eq(outlet.count, 0);
  ck_assert_int_eq(outlet.failed, 0);
  tws_shared_output_close(&outlet);
  const int full = open("/dev/full", O_WRONLY);
  tws_shared_output_open(&outlet, full);
  tws_line_add(&line, 0, &outlet, text, sizeof text);
  ck_assert_int_ne(outlet.failed, 0);
  tws_line_end(&line, 0, &outlet);
  tws_shared_output_close(&outlet);
  close(full);
  close(ends[0]);
  close(ends[1]);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("sealed");
  TCase *tests = tcase_create("sealed");
  if (tws_seal_available()) {
    tcase_add_test(tests, proofs);
    tcase_add_test(tests, sealing);
  } else {
    printf("sealed: built without libsodium\n");
  }
  tcase_add_test(tests, records);
  tcase_add_test(tests, lines);
  tcase_add_test(tests, outlets);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
