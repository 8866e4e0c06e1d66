#include "cli/forward.h"

#include "job/fit.h"
#include "job/modules.h"
#include "launch/launch.h"

tws_code tws_weights_check(const tws_weights_options *weights, const char *model, const char *verb, tws_error *err) {
  if (!weights->resume && !weights->init_from && !(model && tws_network_file_has_weights(model)))
    return tws_fail(err, TWS_USAGE,
                    "--resume DIR of `train --save DIR`, --init-from model.safetensors, or -m model.onnx",
                    "%s: no weights were given", verb);
  if (weights->tag && !weights->resume)
    return tws_fail(err, TWS_USAGE, "give --resume DIR too", "%s: --tag without --resume", verb);
  return TWS_OK;
}

tws_code tws_forward_load(const tws_cli *cli, const tws_job *job, const tws_job_spec *spec, const tws_real_api **api,
                          int *rank, tws_error *err) {
  char *arguments[] = {(char *)(uintptr_t)cli->program, NULL}, **argv = arguments;
  int argc = 1, world = 1;
  TWS_TRY(tws_job_check_engine(job, spec->cluster != NULL, spec->profile != NULL, err));
  tws_launch_set_threads(job->threads);
  TWS_TRY(tws_real_load(api, err));
  return (*api)->start(&argc, &argv, rank, &world, err);
}
