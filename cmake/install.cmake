# make install: program, modules in <libdir>/twinspeed, static library, headers, pkg-config file, manual page, shell
# completion and scenarios. The last three of the program's own texts come from the program, so they cannot drift.
set(TWS_MODULE_INSTALL_DIR ${CMAKE_INSTALL_LIBDIR}/twinspeed)

install(TARGETS twinspeed ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS twinspeed-shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES library/twinspeed.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# The contracts; what a folder keeps to itself is not installed.
set(TWS_PUBLIC_HEADERS
    base/dtype.h base/host_memory.h base/json.h base/log.h base/memory.h base/output_file.h base/random.h base/status.h base/strings.h base/unfinished.h base/units.h
    compat/deepspeed_autotuner.h compat/deepspeed_memory.h
    config/axes.def config/axes.h config/cluster.h config/ds_config.h config/loss_scale.h
    config/optimizer.h config/optimizers.def
    models/collective.h models/collectives.def models/kernel.h models/operators.def models/operators_adapters.def models/operators_cache.def models/operators_columns.def models/operators_compressed.def models/operators_eight_bit.def models/operators_encoders.def models/operators_experts.def models/operators_factored.def models/operators_float8.def models/operators_gated.def models/operators_muon.def models/operators_networks.def models/operators_parts.def models/operators_sequence.def models/operators_sparse.def models/operator.h models/hardware/caching_allocator.h models/hardware/profile.h models/hardware/profile_build.h models/hardware/runtime.h models/hardware/runtime_interval.h models/hardware/host_buffers.h models/hardware/launches.h models/hardware/step_buffers.h models/network/modules.def models/network/network.h
    plan/plan.h plan/run_order.h plan/state.h plan/topology.h plan/pipeline_schedule.h plan/node_mapping.h plan/representatives.h estimators/estimators.h
    traces/compare.h traces/marks.h traces/measurements.h traces/plot.h traces/step_report.h traces/step_values.def traces/timeline.h traces/trace_schedule.h
    communication/comm_log.h estimators/flops_profile.h estimators/module_tree.h sim/sim.h real/engine.h real/real.h real/sample.h
    job/assumed.h job/deepspeed_comparison.h job/export.h job/features.def job/features.h job/fit.h job/job.h job/modules.h job/notes.h job/own_engine.h job/recovery.h job/rescaling.h job/runtime_choice.h job/saving.h job/simulate.h job/software_memory.h job/spec.h job/variant.h launch/hostfile.h launch/launch.h launch/supervise.h
    calibration/calibration.h checkpoint/folder.h validation/cases.h validation/evidence.h validation/results.h validation/sweep.h validation/trial.h validation/validation.h
    autotune/advice.h autotune/analysis.h autotune/autotune.h autotune/experiment.h autotune/folders.h autotune/goal.h autotune/goodput.h autotune/knee.h autotune/measure.h autotune/next_trial.h autotune/remedy.h autotune/results.h autotune/tuning.h)
foreach(header ${TWS_PUBLIC_HEADERS})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/twinspeed/${folder})
endforeach()
# The prefix is known when it is installed, not before: make install may name another than the build did.
foreach(package twinspeed twinspeed-core)
  configure_file(cmake/${package}.pc.in ${CMAKE_BINARY_DIR}/${package}.pc.in @ONLY)
  install(CODE "
    get_filename_component(TWS_PREFIX \"\${CMAKE_INSTALL_PREFIX}\" ABSOLUTE)
    file(READ \"${CMAKE_BINARY_DIR}/${package}.pc.in\" TWS_PC)
    string(REPLACE %PREFIX% \"\${TWS_PREFIX}\" TWS_PC \"\${TWS_PC}\")
    file(WRITE \"${CMAKE_BINARY_DIR}/${package}.pc\" \"\${TWS_PC}\")
    file(INSTALL \"${CMAKE_BINARY_DIR}/${package}.pc\" DESTINATION \"\${TWS_PREFIX}/${CMAKE_INSTALL_LIBDIR}/pkgconfig\")")
endforeach()
install(DIRECTORY scenarios/ DESTINATION ${CMAKE_INSTALL_DATADIR}/twinspeed/scenarios USE_SOURCE_PERMISSIONS)
# With what their links lead to, in the same places.
install(FILES LICENSE NOTICE README.md CONTRIBUTING.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)
install(DIRECTORY scenarios/demo scenarios/text DESTINATION ${CMAKE_INSTALL_DOCDIR}/scenarios)
foreach(module twinspeed_sim twinspeed_real twinspeed_cuda)
  if(TARGET ${module})
    install(TARGETS ${module} LIBRARY DESTINATION ${TWS_MODULE_INSTALL_DIR})
  endif()
endforeach()

if(TARGET twinspeed-program)
  install(TARGETS twinspeed-program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  set(texts ${CMAKE_BINARY_DIR}/texts)
  file(MAKE_DIRECTORY ${texts})
  add_custom_command(
    OUTPUT ${texts}/twinspeed.1 ${texts}/twinspeed.bash ${texts}/_twinspeed ${texts}/twinspeed.fish
    COMMAND twinspeed-program manual > ${texts}/twinspeed.1
    COMMAND twinspeed-program completion bash > ${texts}/twinspeed.bash
    COMMAND twinspeed-program completion zsh > ${texts}/_twinspeed
    COMMAND twinspeed-program completion fish > ${texts}/twinspeed.fish
    DEPENDS twinspeed-program COMMENT "Writing the manual page and shell completion")
  add_custom_target(texts ALL DEPENDS ${texts}/twinspeed.1)
  install(FILES ${texts}/twinspeed.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${texts}/twinspeed.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME twinspeed)
  install(FILES ${texts}/_twinspeed DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${texts}/twinspeed.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
