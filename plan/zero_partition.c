#include "plan/zero_partition.h"

int64_t tws_zero_aligned_numel(int64_t total, int ranks) {
  int64_t unit = 2 * (int64_t)ranks;
  return (total + unit - 1) / unit * unit;
}

int64_t tws_zero_padding(int64_t total, int64_t part, int rank) {
  int64_t start = part * rank, end = start + part;
  if (start >= total) return part;
  return end > total ? end - total : 0;
}

void tws_zero_flatten_order(int count, int ranks, int round_robin, int *order) {
  int n = 0;
  if (!round_robin) ranks = 1;
  for (int first = 0; first < ranks && first < count; first++) {
    for (int i = first; i < count; i += ranks) order[n++] = i;
  }
}

int tws_zero3_sub_groups(int count, const int64_t *parts, int64_t sub_group_size, int *group_of) {
  int64_t total = 0, sum = 0;
  int group = 0;
  for (int i = 0; i < count; i++) total += parts[i];
  for (int i = 0; i < count; i++) {
    group_of[i] = group;
    sum += parts[i];
    if (sum >= sub_group_size && total > sub_group_size && i + 1 < count) {
      group++;
      sum = 0;
    }
  }
  return count ? group + 1 : 0;
}

void tws_zero3_persistent(int count, const int64_t *numel, int64_t threshold, int64_t model_threshold,
                          uint8_t *persistent) {
  int64_t total = 0;
  for (int i = 0; i < count; i++) {
    persistent[i] = numel[i] <= threshold && total + numel[i] <= model_threshold;
    if (persistent[i]) total += numel[i];
  }
}
