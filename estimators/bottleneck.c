/* Determines the bottleneck of a step from its time account. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "estimators/estimators.h"
#include "models/operator.h"

typedef struct part {
  const char *what, *resource;
  double seconds;
  int computes; /* 1: runs on the compute stream, so that operations of other streams may overlap with it */
} part;
enum { PARTS = 10 };

static void list_parts(const tws_path_result *r, part *parts) {
  const double matmul = r->kernel_s[TWS_KERNEL_LINEAR] + r->kernel_s[TWS_KERNEL_LINEAR_GRAD_INPUT] +
                        r->kernel_s[TWS_KERNEL_LINEAR_GRAD_WEIGHT];
  const double attention = r->kernel_s[TWS_KERNEL_ATTENTION] + r->kernel_s[TWS_KERNEL_ATTENTION_GRAD] +
                           r->kernel_s[TWS_KERNEL_DISENTANGLED] + r->kernel_s[TWS_KERNEL_DISENTANGLED_GRAD];
  const double offloading = tws_path_offloading(r);
  double update = 0, other = -matmul - attention;
  for (int k = 0; k < TWS_KERNEL_COUNT; k++)
    *(tws_operator_of((tws_kernel)k)->updates_weights ? &update : &other) += r->kernel_s[k];
  const part all[PARTS] = {
      {"matrix products", "arithmetic of the devices", matmul, 1},
      {"attention", "arithmetic of the devices", attention, 1},
      {"the optimizer's memory traffic", "memory bandwidth of the devices", update, 1},
      {"memory-bound kernels", "memory bandwidth of the devices", other, 1},
      {"communication that computation does not hide", "links between the ranks",
       r->exposed_s - r->bubble_s - offloading, 0},
      {"waiting for other ranks", "balance of the ranks", r->bubble_s, 0},
      {"the host's optimizer", "memory bandwidth of the hosts", r->host_exposed_s, 0},
      {"copies between device and host", "links between devices and hosts", r->copies_exposed_s, 0},
      {"the disk", "disks of the nodes", r->disk_exposed_s, 0},
      {"loading of samples", "data loaders of the nodes", r->loading_s, 0}};
  memcpy(parts, all, sizeof all);
}

tws_bottleneck tws_path_bottleneck(const tws_path_result *r) {
  part parts[PARTS];
  int first = 0, second = -1;
  list_parts(r, parts);
  for (int i = 1; i < PARTS; i++)
    if (parts[i].seconds > parts[first].seconds) first = i;
  for (int i = 0; i < PARTS; i++)
    if (i != first && (second < 0 || parts[i].seconds > parts[second].seconds)) second = i;
  const double step = r->step_s > 0 ? r->step_s : 1;
  tws_bottleneck b = {.what = parts[first].what,
                      .resource = parts[first].resource,
                      .seconds = parts[first].seconds,
                      .share = parts[first].seconds / step,
                      .axis = -1,
                      .without_s = fmax(0, r->step_s - parts[first].seconds),
                      .next = parts[second].what,
                      .next_share = parts[second].seconds / step};
  /* the step is no shorter than the operations of any other stream, which would still take their time */
  for (int s = 0; s < TWS_STREAM_COUNT && parts[first].computes; s++)
    if (s != TWS_STREAM_COMPUTE) b.without_s = fmax(b.without_s, fmin(r->stream_busy_s[s], r->step_s));
  for (int axis = 0; axis < TWS_REPORT_COUNT && b.resource == parts[4].resource; axis++)
    if (r->axis_exposed_s[axis] > 0 && (b.axis < 0 || r->axis_exposed_s[axis] > r->axis_exposed_s[b.axis]))
      b.axis = axis;
  return b;
}

double tws_path_offloading(const tws_path_result *r) {
  return r->host_exposed_s + r->copies_exposed_s + r->disk_exposed_s;
}

double tws_path_communicating(const tws_path_result *r) {
  return r->exposed_s - r->bubble_s - tws_path_offloading(r);
}

double tws_path_share(const tws_path_result *r, double seconds) {
  return r->step_s > 0 ? seconds / r->step_s : 0;
}

void tws_path_judge(tws_path_result *r) {
  const tws_bottleneck b = tws_path_bottleneck(r);
  const double step = r->step_s > 0 ? r->step_s : 1;
  const int several = b.what[strlen(b.what) - 1] == 's' && strncmp(b.what, "waiting", 7) != 0;
  int length = snprintf(r->text, sizeof r->text, "%s take%s %.0f %% of the step; communication left exposed %.0f %%",
                        b.what, several ? "" : "s", 100 * b.share, 100 * tws_path_communicating(r) / step);
  if (r->bubble_s > 0.005 * step)
    snprintf(r->text + length, sizeof r->text - (size_t)length, ", waiting for other ranks %.0f %%",
             100 * r->bubble_s / step);
  else if (tws_path_offloading(r) > 0.005 * step)
    snprintf(r->text + length, sizeof r->text - (size_t)length, ", offloading %.0f %%",
             100 * tws_path_offloading(r) / step);
  r->bottleneck = r->text;
}
