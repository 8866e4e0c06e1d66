#include "checkpoint/slice.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parts of parameters ---- */

tws_param_slice tws_slice_of(const tws_param *param, const tws_param_slice *slice) {
  const tws_param_slice whole = {.rows = {param->rows}, .columns = param->columns, .whole_columns = param->columns};
  tws_param_slice from = slice ? *slice : whole, to = {0};
  if (param->rows == 1 && from.rows[0] == 1 && from.columns == param->columns)
    from = (tws_param_slice){.rows = {param->columns}, .columns = 1, .whole_columns = 1};
  to.first_column = from.first_column;
  to.columns = from.columns;
  to.whole_columns = from.whole_columns;
  if (from.repeats > 1) to.repeats = from.repeats, to.step = from.step;
  for (int i = 0, last = -1; i < 3 && from.rows[i] > 0; i++) {
    if (last >= 0 && to.first_row[last] + to.rows[last] == from.first_row[i]) {
      to.rows[last] += from.rows[i];
      continue;
    }
    to.first_row[++last] = from.first_row[i];
    to.rows[last] = from.rows[i];
  }
  return to;
}

uint64_t tws_slice_count(const tws_param_slice *slice) {
  return (uint64_t)tws_param_slice_rows(slice) * (uint64_t)slice->columns;
}

uint64_t tws_slice_local(const tws_param_slice *slice, uint64_t whole, uint64_t *run) {
  const uint64_t wide = (uint64_t)slice->whole_columns, columns = (uint64_t)slice->columns;
  const uint64_t column = whole % wide, first = (uint64_t)slice->first_column;
  const uint64_t repeats = slice->repeats > 1 ? (uint64_t)slice->repeats : 1, step = (uint64_t)slice->step;
  /* Blocks of rows repeat: the row is mapped to the first repetition. next: first row of the nearest later block. */
  uint64_t row = whole / wide, before = 0, turn = 0, next = UINT64_MAX;
  if (repeats > 1) {
    const uint64_t cell = (uint64_t)slice->first_row[0] / step;
    turn = row / step > cell ? row / step - cell : 0;
    if (turn >= repeats) turn = repeats - 1;
    row -= turn * step;
    before = turn * ((uint64_t)tws_param_slice_rows(slice) / repeats);
  }
  for (int i = 0; i < 3 && slice->rows[i] > 0; i++) {
    const uint64_t begin = (uint64_t)slice->first_row[i], rows = (uint64_t)slice->rows[i];
    if (row >= begin && row < begin + rows) {
      *run = column < first ? first - column : wide - column;
      if (column < first || column >= first + columns) return UINT64_MAX;
      *run = columns == wide ? (begin + rows - row) * wide - column : first + columns - column;
      return (before + row - begin) * columns + column - first;
    }
    if (begin > row && begin < next) next = begin;
    before += rows;
  }
  if (next == UINT64_MAX && turn + 1 < repeats) next = (uint64_t)slice->first_row[0] + step;
  *run = next == UINT64_MAX ? UINT64_MAX : (next - row) * wide - column;
  return UINT64_MAX;
}

/* ---- the pieces that a rank holds ---- */

tws_code tws_pieces_of(const tws_plan *plan, tws_arena *arena, tws_piece **pieces, uint32_t *count, tws_error *err) {
  const tws_state *state = plan->state;
  const size_t most = (size_t)state->count * (state->shard_count + 1);
  *count = 0;
  *pieces = tws_arena_alloc(arena, most + 1, sizeof **pieces);
  if (!*pieces) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the list of what a checkpoint has");
  for (uint32_t e = 0; e < state->count; e++) {
    const tws_state_entry *entry = &state->entries[e];
    if (!entry->checkpointed) continue;
    const uint32_t whole = entry->continues ? entry->continues - 1 : e;
    const int everywhere = tws_state_everywhere(entry, plan->stages);
    if (entry->role == TWS_ELEMENTS_NONE)
      (*pieces)[(*count)++] = (tws_piece){.entry = whole,
                                          .held = e,
                                          .param = TWS_NONE,
                                          .copy = everywhere ? 0 : plan->rank,
                                          .rank = plan->rank,
                                          .count = entry->elements};
    uint32_t shard = 0;
    tws_state_part part;
    while (tws_state_next_part(state, e, &shard, &part)) {
      const tws_param *param = &plan->network->params[part.param];
      const tws_axes own = param->own_along;
      (*pieces)[(*count)++] = (tws_piece){.entry = whole,
                                          .held = e,
                                          .param = part.param,
                                          .copy = own ? tws_topology_index(&plan->topology, plan->rank, own) : 0,
                                          .rank = plan->rank,
                                          .slice = tws_slice_of(param, plan->slices ? &plan->slices[part.param] : NULL),
                                          .first = part.param_first,
                                          .count = part.count,
                                          .at = part.first};
    }
  }
  return TWS_OK;
}

/* ---- assignment of pieces to the ranks that write them ---- */

/* Orders pieces by entry, parameter, copy and slice, ignoring the range of elements and the rank. */
static int compare_parts(const tws_piece *a, const tws_piece *b) {
  if (a->entry != b->entry) return a->entry < b->entry ? -1 : 1;
  if (a->param != b->param) return a->param < b->param ? -1 : 1;
  if (a->copy != b->copy) return a->copy < b->copy ? -1 : 1;
  return memcmp(&a->slice, &b->slice, sizeof a->slice);
}

static int compare_pieces(const void *x, const void *y) {
  const tws_piece *a = x, *b = y;
  const int parts = compare_parts(a, b);
  if (parts) return parts;
  if (a->first != b->first) return a->first < b->first ? -1 : 1;
  if (a->count != b->count) return a->count < b->count ? -1 : 1;
  return a->rank - b->rank;
}

typedef struct sharing {
  const uint8_t *sizes, *far;
  uint64_t *load; /* [rank] bytes assigned to the rank so far */
  tws_piece *chosen;
  uint32_t count;
  size_t capacity;
} sharing;

static int choose(sharing *s, const tws_piece *holder, uint64_t begin, uint64_t end) {
  tws_piece *last = s->count ? &s->chosen[s->count - 1] : NULL;
  s->load[holder->rank] += (end - begin) * s->sizes[holder->entry];
  if (last && last->rank == holder->rank && compare_parts(last, holder) == 0 && last->first + last->count == begin &&
      last->at + last->count == holder->at + begin - holder->first) {
    last->count += end - begin;
    return 0;
  }
  if (tws_reserve(&s->chosen, &s->capacity, s->count + 1u, sizeof *s->chosen)) return -1;
  s->chosen[s->count] = *holder;
  s->chosen[s->count].first = begin;
  s->chosen[s->count].at += begin - holder->first;
  s->chosen[s->count++].count = end - begin;
  return 0;
}

static int is_far(const sharing *s, const tws_piece *piece) {
  return s->far && s->far[piece->rank];
}

static int is_better(const sharing *s, const tws_piece *a, const tws_piece *b) {
  if (is_far(s, a) != is_far(s, b)) return is_far(s, b);
  return s->load[a->rank] < s->load[b->rank];
}

/* Assigns the elements of one slice to the ranks that hold them. The pieces are sorted by first element; between two
 * boundaries of pieces, the same ranks hold all elements. Returns 0, or -1 if memory is exhausted. */
static int share_part(sharing *s, const tws_piece *held, uint32_t count) {
  uint64_t at = held[0].first;
  uint32_t begin = 0;
  for (;;) {
    const tws_piece *best = NULL;
    uint64_t next = UINT64_MAX;
    while (begin < count && held[begin].first + held[begin].count <= at) begin++;
    if (begin == count) return 0;
    for (uint32_t i = begin; i < count; i++) {
      const tws_piece *piece = &held[i];
      const uint64_t end = piece->first + piece->count;
      if (piece->first > at) {
        if (piece->first < next) next = piece->first;
        break;
      }
      if (end <= at) continue;
      if (end < next) next = end;
      if (!best || is_better(s, piece, best)) best = piece;
    }
    if (best && choose(s, best, at, next)) return -1;
    at = next;
  }
}

tws_code tws_pieces_share(tws_piece *held, uint32_t count, const uint8_t *sizes, const uint8_t *far, int world,
                          tws_arena *arena, tws_piece **chosen, uint32_t *chosen_count, tws_error *err) {
  sharing s = {.sizes = sizes, .far = far, .load = tws_calloc((size_t)world, sizeof *s.load)};
  int failed = !s.load;
  if (count > 0) qsort(held, count, sizeof *held, compare_pieces);
  for (uint32_t i = 0, end; i < count && !failed; i = end) {
    for (end = i + 1; end < count && compare_parts(&held[i], &held[end]) == 0;) end++;
    failed = share_part(&s, held + i, end - i) != 0;
  }
  *chosen = failed ? NULL : tws_arena_alloc(arena, s.count + 1u, sizeof **chosen);
  if (*chosen && s.count > 0) memcpy(*chosen, s.chosen, s.count * sizeof **chosen);
  *chosen_count = s.count;
  tws_free(s.chosen);
  tws_free(s.load);
  return *chosen ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for the list of what a checkpoint has");
}

const char *tws_piece_name(const tws_piece *piece, const char *param, const char *entry, int64_t whole_rows,
                           int64_t whole_columns, char *buffer, size_t size) {
  const tws_param_slice *s = &piece->slice;
  size_t length;
  if (piece->param == TWS_NONE) {
    snprintf(buffer, size, "%s of rank %d", entry, piece->copy);
    return buffer;
  }
#define ADD(...) \
  length += (size_t)snprintf(buffer + (length < size ? length : size), length < size ? size - length : 0, __VA_ARGS__)
  length = 0;
  ADD("%s", param);
  if (piece->copy > 0) ADD(" copy %d", piece->copy);
  ADD(" %s", entry);
  const int64_t rows = whole_rows == 1 && s->whole_columns == 1 ? whole_columns : whole_rows;
  if (s->repeats > 1) ADD(" %" PRId64 " times every %" PRId64, s->repeats, s->step);
  if (s->rows[0] != rows) {
    ADD(" rows");
    for (int i = 0; i < 3 && s->rows[i] > 0; i++)
      ADD(" %" PRId64 ":%" PRId64, s->first_row[i], s->first_row[i] + s->rows[i]);
  }
  if (s->columns != s->whole_columns)
    ADD(" columns %" PRId64 ":%" PRId64, s->first_column, s->first_column + s->columns);
  if (piece->count != tws_slice_count(s))
    ADD(" elements %" PRIu64 ":%" PRIu64, piece->first, piece->first + piece->count);
#undef ADD
  return buffer;
}
