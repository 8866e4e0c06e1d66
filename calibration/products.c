#include "calibration/products.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "traces/timeline.h"

static int by_size(const void *left, const void *right) {
  const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
  return (a > b) - (a < b);
}

static int by_seconds(const void *left, const void *right) {
  const tws_product_row *a = left, *b = right;
  return (a->measured_s < b->measured_s) - (a->measured_s > b->measured_s);
}

/* Reads the sizes after the last blank of a name such as "aten::mm 1024x256x768". Returns 1, or 0 if there are none. */
static int read_sizes(const char *name, int64_t size[3]) {
  const char *at = strrchr(name, ' ');
  if (!at || strncmp(name, "aten::", 6) != 0) return 0;
  at++;
  for (int i = 0; i < 3; i++) {
    if (!tws_text_integer(at, &at, 1, INT64_C(1) << 40, &size[i])) return 0;
    if (*at != (i < 2 ? 'x' : '\0')) return 0;
    at += i < 2;
  }
  qsort(size, 3, sizeof *size, by_size);
  return 1;
}

static tws_product_row *find_row(tws_product_row *rows, int count, const int64_t size[3]) {
  for (int i = 0; i < count; i++)
    if (memcmp(rows[i].size, size, sizeof rows[i].size) == 0) return &rows[i];
  return NULL;
}

/* Adds the plan's matrix products of one micro-batch, counted `times` times, to the rows with their sizes. */
static void add_plan(const tws_plan *plan, const tws_machine *machine, double times, tws_product_row *rows, int count) {
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_work *work = &plan->works[plan->ops[i].work];
    if (plan->ops[i].kind != TWS_OP_COMPUTE || work->code < TWS_KERNEL_LINEAR ||
        work->code > TWS_KERNEL_LINEAR_GRAD_WEIGHT)
      continue;
    int64_t size[3] = {work->d[0], work->d[1], work->d[2]};
    char label[160];
    int length;
    qsort(size, 3, sizeof *size, by_size);
    tws_product_row *row = find_row(rows, count, size);
    if (!row) continue;
    row->predicted_s += times * tws_plan_work_seconds(plan, plan->ops[i].work, machine, 1);
    const char *module = tws_label_module(tws_op_label(plan, i, label, sizeof label), &length);
    if (!row->modules[0] && length > 0 && length < (int)sizeof row->modules)
      snprintf(row->modules, sizeof row->modules, "%.*s", length, module);
  }
}

tws_code tws_products_by_size(const tws_recording *r, double steps, const tws_job *job, tws_product_row *rows,
                              int *count, tws_error *err) {
  tws_plan *plan;
  *count = 0;
  for (size_t i = 0; i < r->kernel_count; i++) {
    int64_t size[3];
    if (!read_sizes(r->kernels[i].name, size)) continue;
    tws_product_row *row = find_row(rows, *count, size);
    if (!row && *count == TWS_PRODUCT_ROWS) continue;
    if (!row) {
      row = &rows[(*count)++];
      *row = (tws_product_row){.size = {size[0], size[1], size[2]}};
    }
    row->measured_s += r->kernels[i].seconds / steps / r->devices;
  }
  if (*count == 0) return TWS_OK;
  TWS_TRY(tws_job_part_plan(job, 0, 1, &plan, err));
  add_plan(plan, &job->machine, (double)job->config->accumulation_steps, rows, *count);
  tws_plan_destroy(plan);
  qsort(rows, (size_t)*count, sizeof *rows, by_seconds);
  return TWS_OK;
}
