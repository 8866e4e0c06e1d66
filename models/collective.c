#include "models/collective.h"

#define PARTS_0 0
#define PARTS_1 0
#define PARTS_n 1
#define SENDS(expression) .sends = #expression, .sends_parts = PARTS_##expression
#define RECEIVES(expression) .receives = #expression, .receives_parts = PARTS_##expression
#define STEPS(expression) .steps = #expression
#define TRAITS(...) __VA_ARGS__
#define REDUCES .reduces = 1
#define FROM_ROOT .root = TWS_ROOT_SENDS
#define TO_ROOT .root = TWS_ROOT_RECEIVES
#define UNEVEN .uneven = 1
#define TO_NEXT .to_next = 1
#define CALIBRATED .calibrated = 1
#define COLLECTIVE(id, name_, summary_, pattern_, sends_, receives_, steps_, traits_) \
  [TWS_COLLECTIVE_##id] = {.identifier = #id,                                         \
                           .name = #name_,                                            \
                           .summary = summary_,                                       \
                           .pattern = TWS_PATTERN_##pattern_,                         \
                           .pattern_text = #pattern_,                                 \
                           sends_,                                                    \
                           receives_,                                                 \
                           steps_,                                                    \
                           traits_},
static const tws_collective_row rows[TWS_COLLECTIVE_COUNT] = {
#include "models/collectives.def"
};

const tws_collective_row *tws_collective_of(tws_collective collective) {
  return (unsigned)collective < TWS_COLLECTIVE_COUNT ? &rows[collective] : 0;
}

const char *tws_collective_name(tws_collective collective) {
  return (unsigned)collective < TWS_COLLECTIVE_COUNT ? rows[collective].name : "unknown collective";
}

#undef SENDS
#undef RECEIVES
#undef STEPS
#define SENDS(expression) (expression)
#define RECEIVES(expression) (expression)
#define STEPS(expression) (expression)

int tws_collective_steps(tws_collective collective, int size) {
  const int n = size;
  switch (collective) {
#define COLLECTIVE(id, name_, summary_, pattern_, sends_, receives_, steps_, traits_) \
  case TWS_COLLECTIVE_##id:                                                           \
    return steps_;
#include "models/collectives.def"
    case TWS_COLLECTIVE_COUNT:
      break;
  }
  return 0;
}

tws_collective_parts tws_collective_parts_of(tws_collective collective, int size, int index, int root) {
  const uint64_t n = (uint64_t)size;
  tws_collective_parts parts = {0, 0};
  switch (collective) {
#define COLLECTIVE(id, name_, summary_, pattern_, sends_, receives_, steps_, traits_) \
  case TWS_COLLECTIVE_##id:                                                           \
    parts = (tws_collective_parts){sends_, receives_};                                \
    break;
#include "models/collectives.def"
    case TWS_COLLECTIVE_COUNT:
      return parts;
  }
  if (rows[collective].pattern != TWS_PATTERN_PAIRS || index == root) return parts;
  if (rows[collective].root == TWS_ROOT_SENDS) parts.send = 0;
  if (rows[collective].root == TWS_ROOT_RECEIVES) parts.receive = 0;
  return parts;
}

double tws_collective_sent_bytes(tws_collective collective, int size, int index, int root, double bytes) {
  const tws_collective_row *row = tws_collective_of(collective);
  /* `end`: the last member of a chain, which sends nothing: the root if it receives, else the member before the root */
  const int end = row->root == TWS_ROOT_RECEIVES ? root : (root + size - 1) % size;
  double sum = 0;
  if (size < 2) return 0;
  switch (row->pattern) {
    case TWS_PATTERN_RING:
      return bytes / size * tws_collective_steps(collective, size);
    case TWS_PATTERN_CHAIN:
      return index == end ? 0 : bytes;
    case TWS_PATTERN_PAIRS:
      for (int to = 0; to < size; to++)
        if (to != index && tws_collective_moves(row, size, index, to, root))
          sum += tws_collective_pair_bytes(row, size, bytes);
      return sum;
    case TWS_PATTERN_SIGNAL:
      break;
  }
  return 0;
}
