#include "cli/step_view.h"

#include "cli/cli.h"

void tws_print_phases(const tws_phase_seconds *p) {
  tws_out("time (ms) | fwd: %.2f | bwd: %.2f | bwd_inner: %.2f | bwd_allreduce: %.2f | step: %.2f\n", 1e3 * p->forward,
          1e3 * p->backward, 1e3 * p->backward_inner, 1e3 * p->reduction, 1e3 * p->step);
}
