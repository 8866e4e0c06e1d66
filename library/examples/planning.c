/* What a training step of a model needs on a cluster: `planning gpt2 dgx-a100`. */
#include <stdio.h>
#include <twinspeed.h>

static int fail(const twinspeed_error *error) {
  fprintf(stderr, "%s: %s\n%s\n", twinspeed_status_name(error->status), error->message, error->hint);
  return 1;
}

int main(int argc, char **argv) {
  twinspeed_options options;
  twinspeed_job *job;
  twinspeed_error error;
  twinspeed_estimate estimate;
  twinspeed_simulation simulation;
  twinspeed_options_init(&options);
  options.model = argc > 1 ? argv[1] : "gpt2";
  options.cluster = argc > 2 ? argv[2] : "dgx-a100";
  options.stage = 2;
  if (twinspeed_open(&options, &job, &error) != TWINSPEED_OK) return fail(&error);
  if (twinspeed_estimate_job(job, &estimate, &error) != TWINSPEED_OK) {
    twinspeed_close(job);
    return fail(&error);
  }
  printf("%s on %s: %.2f of %.2f GiB of a device, %.4f s a step, MFU %.1f %%\n", options.model, options.cluster,
         estimate.device_need / 1073741824, estimate.device_have / 1073741824, estimate.step_s, 100 * estimate.mfu);
  for (int c = 0; twinspeed_category_name(c); c++)
    if (estimate.bytes[0][c] > 0) printf("  %-22s %12.0f bytes\n", twinspeed_category_name(c), estimate.bytes[0][c]);
  if (twinspeed_simulate_job(job, NULL, &simulation, &error) == TWINSPEED_OK)
    printf("simulated: %.4f s a step\n", simulation.step_s);
  else
    printf("not simulated: %s\n", error.message);
  twinspeed_close(job);
  return 0;
}
