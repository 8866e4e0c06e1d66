#include "models/hardware/launches.h"

/* Rows of launches.def whose first word is no kernel, and flags that are no flag of a work. */
enum { TWS_KERNEL_MESSAGE = TWS_KERNEL_COUNT, TWS_KERNEL_OTHER };
#define SCORES (1u << 31)

static const struct {
  int kernel;
  uint32_t flag;
  double count[TWS_ISSUES_COUNT];
} launches[] = {
#define LAUNCHES(kernel, flag, megatron, engine, modules) {TWS_KERNEL_##kernel, flag, {1, megatron, engine, modules}},
#include "models/hardware/launches.def"
#undef LAUNCHES
};
enum { ROWS = sizeof launches / sizeof *launches };
_Static_assert(TWS_ISSUES_KERNELS == 0 && TWS_ISSUES_MEGATRON == 1 && TWS_ISSUES_ENGINE == 2 && TWS_ISSUES_MODULES == 3,
               "columns of launches.def are kinds of software");

/* Returns the sum of the rows of `kernel` whose flags are in `flags`, and in *found the number of these rows. */
static double issued_for(tws_issues issues, int kernel, uint32_t flags, int *found) {
  double sum = 0;
  *found = 0;
  for (int i = 0; i < ROWS; i++) {
    if (launches[i].kernel != kernel || (launches[i].flag && !(launches[i].flag & flags))) continue;
    sum += launches[i].count[issues];
    ++*found;
  }
  return sum;
}

double tws_issued_for_kernel(tws_issues issues, const tws_work *work, int stores_scores) {
  int found;
  if (issues == TWS_ISSUES_KERNELS) return 1;
  const double sum = issued_for(issues, work->code, work->flags | (stores_scores ? SCORES : 0), &found);
  return found ? sum : issued_for(issues, TWS_KERNEL_OTHER, 0, &found);
}

double tws_issued_for_message(tws_issues issues) {
  int found;
  return issues == TWS_ISSUES_KERNELS ? 0 : issued_for(issues, TWS_KERNEL_MESSAGE, 0, &found);
}
