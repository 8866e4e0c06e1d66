/* A job as every part of its estimate reads it. */
#include "estimators/program.h"

tws_estimated_job tws_estimated_job_of(const tws_plan_request *request, const tws_machine *machine) {
  const int ranks = tws_topology_world(&request->topology);
  const int stages = tws_topology_size(&request->topology, TWS_AXES_PIPE);
  return (tws_estimated_job){
      .request = request,
      .machine = machine,
      .ranks = ranks,
      .stages = stages,
      .replicas = tws_topology_size(&request->topology, TWS_AXES_DATA),
      .mapping = tws_machine_mapping(machine, ranks),
      .shape = tws_pipeline_shape_of(request->config, stages, request->config->accumulation_steps)};
}
