/* Messages between the launcher and its ranks. The first byte of an input chooses which side receives and how far the
 * handshake has got: both sides refuse any bytes before a proof; sealed records that were changed do not open; whatever
 * a side that knows the secret sends is refused, or is a record whose numbers and texts are within their bounds. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch/lines.h"
#include "launch/link.h"
#include "launch/rank_listener.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RANKS = 4, RANK = 2 };

static void require(int condition) {
  if (!condition) abort();
}

static uint8_t secret[TWS_SECRET];

/* Checks that a launcher lets no connection in that has not proved that it knows the secret. */
static void refuse_stranger(const uint8_t *data, size_t size) {
  tws_handshake gate = {.rank = -1};
  tws_answer answer;
  int answers = 0;
  for (int said = 0; size > 0 && said == 0;) {
    const size_t wanted = tws_handshake_wanted_bytes(&gate), count = 1 + data[0] % wanted;
    const size_t taken = count < size ? count : size;
    require(wanted > 0 && wanted <= sizeof(tws_hello));
    said = tws_handshake_receive(&gate, secret, RANKS, data, taken, &answer, &answers);
    require(said <= 0 && gate.rank < RANKS);
    data += taken;
    size -= taken;
  }
}

/* Checks that a rank refuses a launcher that has not proved that it knows the secret. */
static void refuse_launcher(const uint8_t *data, size_t size) {
  tws_hello hello;
  tws_answer answer = {0};
  tws_session session;
  uint8_t proof[TWS_RANDOM];
  tws_hello_make(RANK, &hello);
  memcpy(&answer, data, size < sizeof answer ? size : sizeof answer);
  require(!tws_answer_check(secret, &hello, &answer, &session, proof));
}

static void check_record(const tws_launch_record *r, int from_launcher) {
  if (from_launcher) {
    require(r->kind == TWS_RECORD_WELCOME || r->kind == TWS_RECORD_END || r->kind == TWS_RECORD_NEWS);
    if (r->kind != TWS_RECORD_WELCOME) return;
    require(r->place.device_count >= 0 && r->place.device_count <= TWS_MAX_SLOTS);
    require(strnlen(r->place.master, sizeof r->place.master) < sizeof r->place.master);
    require(r->place.ranks > 0 && r->rank >= 0 && r->rank < r->place.ranks && r->place.patience_s >= 0);
    return;
  }
  require(r->rank == RANK);
  if (r->kind == TWS_RECORD_OUTPUT)
    require(r->bytes > 0 && r->bytes <= TWS_RECORD_TEXT && (r->stream == 0 || r->stream == 1));
  if (r->kind == TWS_RECORD_FAILED) require(r->error.code < TWS_CODE_COUNT && tws_code_exit(r->error.code) >= 0);
  if (r->kind == TWS_RECORD_FAILED) require(memchr(r->error.message, 0, sizeof r->error.message) != NULL);
  if (r->kind == TWS_RECORD_ACTIVITY) require(memchr(r->text, 0, TWS_BOARD_LINE) != NULL);
}

/* Opens a connection after both proofs: `near` is the side that is tested; returns the other side's socket. */
static int open_link(tws_link *near, int far, int from_launcher) {
  int ends[2];
  tws_session of_rank, of_launcher;
  tws_hello hello;
  tws_answer answer;
  uint8_t proof[TWS_RANDOM];
  require(socketpair(AF_UNIX, far ? SOCK_STREAM : SOCK_SEQPACKET, 0, ends) == 0);
  *near = (tws_link){.socket = ends[0], .remote = far, .from_rank = from_launcher ? -1 : RANK, .ranks = RANKS};
  if (!far) return ends[1];
  tws_hello_make(RANK, &hello);
  require(tws_hello_answer(secret, &hello, &answer, &of_launcher) &&
          tws_answer_check(secret, &hello, &answer, &of_rank, proof) && tws_proof_check(&of_launcher, proof));
  near->session = from_launcher ? of_rank : of_launcher;
  return ends[1];
}

static void listen_to(tws_link *near, int from_launcher, int may_come) {
  tws_launch_record record;
  for (int got = 1; got > 0;) {
    got = tws_link_receive(near, &record);
    if (got > 0) check_record(&record, from_launcher);
    require(got <= 0 || may_come);
  }
}

/* Sends the bytes as records that the other side has sealed, and checks the records that are received. */
static void take_records(const uint8_t *data, size_t size, int far, int from_launcher) {
  tws_link near;
  uint8_t wire[TWS_LINK_BYTES];
  const int other = open_link(&near, far, from_launcher);
  tws_session sender = near.session;
  memcpy(sender.send_key, near.session.receive_key, sizeof sender.send_key);
  while (size > 2) {
    size_t count = (size_t)(data[0] | data[1] << 8) % sizeof(tws_launch_record) + 1;
    data += 2;
    size -= 2;
    if (count > size) count = size;
    const size_t bytes = far ? tws_seal(&sender, data, count, wire) : count;
    if (send(other, far ? wire : data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)bytes) break;
    data += count;
    size -= count;
    listen_to(&near, from_launcher, 1);
  }
  close(other);
  listen_to(&near, from_launcher, 1);
  tws_link_close(&near);
}

/* Sends bytes with a wrong seal, as if the network had changed a record, and checks that none is received. */
static void refuse_wire(const uint8_t *data, size_t size, int from_launcher) {
  tws_link near;
  const int other = open_link(&near, 1, from_launcher);
  if (size > 0) (void)!send(other, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  close(other);
  listen_to(&near, from_launcher, 0);
  tws_link_close(&near);
}

/* Checks the lines that two ranks print: the output has all bytes of each rank in order, and only line feeds are
 * added. */
static void keep_lines(const uint8_t *data, size_t size) {
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  tws_shared_output outlet;
  tws_line line[2] = {{0}};
  tws_shared_output_open(&outlet, null);
  while (size > 1) {
    const int writer = data[0] & 1;
    size_t count = data[0] >> 1;
    data++;
    size--;
    if (count > size) count = size;
    tws_line_add(&line[writer], writer, &outlet, (const char *)data, count);
    require(line[writer].count < TWS_LINE_MOST && outlet.count == 0);
    require(!line[writer].text || !memchr(line[writer].text, '\n', line[writer].count));
    data += count;
    size -= count;
  }
  for (int i = 0; i < 2; i++) tws_line_end(&line[i], i, &outlet);
  tws_shared_output_close(&outlet);
  if (null >= 0) close(null);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static char text[TWS_SECRET_TEXT + 1];
  if (!tws_seal_available() || size < 1) return 0;
  if (!text[0]) require(tws_secret_make(text) && tws_secret_read(text, secret));
  const uint8_t choice = data[0];
  data++;
  size--;
  switch (choice % 9) {
    case 0:
      refuse_stranger(data, size);
      break;
    case 1:
      refuse_launcher(data, size);
      break;
    case 2:
      take_records(data, size, 1, 0);
      break;
    case 3:
      take_records(data, size, 1, 1);
      break;
    case 4:
      take_records(data, size, 0, 0);
      break;
    case 5:
      take_records(data, size, 0, 1);
      break;
    case 6:
      refuse_wire(data, size, 0);
      break;
    case 7:
      refuse_wire(data, size, 1);
      break;
    default:
      keep_lines(data, size);
      break;
  }
  return 0;
}
