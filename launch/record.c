/* Checks records: which side may send each kind, its length and its contents. */
#include <math.h>
#include <string.h>
#include "launch/protocol.h"

enum { MOST_RANKS = 1 << 20 };
static const double most_patience_s = 1e6;

static size_t payload_bytes(const tws_launch_record *record) {
  switch (record->kind) {
    case TWS_RECORD_WELCOME:
      return sizeof record->place;
    case TWS_RECORD_FAILED:
      return sizeof record->error;
    case TWS_RECORD_ACTIVITY:
      return TWS_BOARD_LINE;
    case TWS_RECORD_OUTPUT:
      return record->bytes > 0 ? (size_t)record->bytes : 0;
    default:
      return 0;
  }
}

size_t tws_record_bytes(const tws_launch_record *record) {
  return offsetof(tws_launch_record, text) + payload_bytes(record);
}

static int ends(const char *text, size_t size) {
  return memchr(text, '\0', size) != NULL;
}

static int is_one_of(int32_t at, int32_t count) {
  return count >= 1 && count <= MOST_RANKS && at >= 0 && at < count;
}

static int check_place(const tws_rank_place *p) {
  if (!is_one_of(0, p->ranks) || !is_one_of(p->local_rank, p->local_ranks) || !is_one_of(p->node, p->nodes)) return 0;
  if ((p->given != 0 && p->given != 1) || p->device_count < 0 || p->device_count > TWS_MAX_SLOTS) return 0;
  for (int i = 0; i < p->device_count; i++)
    if (p->device[i] < 0 || p->device[i] >= TWS_MAX_SLOTS) return 0;
  return ends(p->master, sizeof p->master) && p->patience_s >= 0 && p->patience_s <= most_patience_s;
}

static int check_error(const tws_error *e) {
  int32_t code; /* any number may have been received, so it is not read as an enumeration */
  memcpy(&code, &e->code, sizeof code);
  return code >= 0 && code < TWS_CODE_COUNT && ends(e->message, sizeof e->message) && ends(e->hint, sizeof e->hint);
}

int tws_record_check(const tws_launch_record *record, size_t bytes, int from_rank, int ranks) {
  if (bytes < offsetof(tws_launch_record, text) || bytes > sizeof *record) return 0;
  const uint32_t kind = record->kind;
  if (kind == TWS_RECORD_OUTPUT && (record->bytes < 1 || record->bytes > TWS_RECORD_TEXT)) return 0;
  if (bytes != tws_record_bytes(record)) return 0;
  if (from_rank < 0)
    return kind == TWS_RECORD_END || kind == TWS_RECORD_NEWS ||
           (kind == TWS_RECORD_WELCOME && check_place(&record->place) && record->rank >= 0 &&
            record->rank < record->place.ranks);
  if (from_rank >= ranks || record->rank != from_rank) return 0;
  switch (kind) {
    case TWS_RECORD_DONE:
      return 1;
    case TWS_RECORD_FAILED:
      return check_error(&record->error);
    case TWS_RECORD_OUTPUT:
      return record->stream == 0 || record->stream == 1;
    case TWS_RECORD_ACTIVITY:
      return ends(record->text, TWS_BOARD_LINE);
    default:
      return 0;
  }
}
