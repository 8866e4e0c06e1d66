/* Options that specify a job, which several subcommands share. */
#ifndef TWS_CLI_JOB_OPTIONS_H
#define TWS_CLI_JOB_OPTIONS_H

#include "cli/cli.h"
#include "job/job.h"

/* Options of the parallel axes. */
#define TWS_STAGE_OPTION(type, field) TWS_INTEGER("pp", 0, "N", type, field.pipeline_stages, 1, 4096, "pipeline stages")
#define TWS_TENSOR_OPTION(type, field) \
  TWS_INTEGER("tp", 0, "N", type, field.tensor_ranks, 1, 65536, "tensor-parallel ranks")
#define TWS_EXPERT_OPTION(type, field) \
  TWS_INTEGER("ep", 0, "N", type, field.expert_ranks, 1, 65536, "expert-parallel ranks, among the replicas")
#define TWS_ORDER_OPTION(type, field) \
  TWS_STRING("axis-order", 0, "AXES", type, field.axis_order, "slowest first (pipe,data,sequence,model)")
#define TWS_AXIS_OPTIONS(type, field)                                                                                  \
  TWS_STAGE_OPTION(type, field), TWS_TENSOR_OPTION(type, field),                                                       \
      TWS_INTEGER("sp", 0, "N", type, field.sequence_ranks, 1, 65536, "sequence-parallel ranks"),                      \
      TWS_STRING("sequence-algorithm", 0, "NAME", type, field.sequence_algorithm,                                      \
                 "with --sp: ulysses (default), or ring (context parallelism)"),                                       \
      TWS_EXPERT_OPTION(type, field),                                                                                  \
      TWS_STRING("schedule", 0, "KIND", type, field.schedule, "pipeline schedule: gpipe, 1f1b, interleaved or zb-h1"), \
      TWS_INTEGER("virtual-stages", 0, "N", type, field.virtual_stages, 1, 4096,                                       \
                  "model chunks of a stage (interleaved)"),                                                            \
      TWS_ORDER_OPTION(type, field),                                                                                   \
      TWS_FLAG("sequence-parallel", 0, type, field.sequence_parallel,                                                  \
               "with --tp: Megatron sequence parallelism (split tokens)")

/* Options for the values that Hugging Face's Trainer substitutes for "auto". */
#define TWS_LEARNING_OPTIONS(type, field)                                               \
  TWS_NUMBER("learning-rate", 0, "RATE", type, field.learning_rate, 1e-30, 1e6,         \
             "of the optimizer, and at the end of a warm-up"),                          \
      TWS_INTEGER("warmup-steps", 0, "N", type, field.warmup_steps, 1, 1099511627776.0, \
                  "steps of a schedule's warm-up")

#define TWS_STRICT_OPTION(type, field) \
  TWS_FLAG("strict", 0, type, field.strict, "warnings of the configuration are errors")

#define TWS_RUNTIME_OPTION(type, field)                                                                \
  TWS_STRING("runtime", 0, "STYLE", type, field.runtime,                                               \
             "runtime whose step is predicted (default: that of -c, else twinspeed; help lists all)"), \
      TWS_STRING("allocator", 0, "WORD", type, field.allocator,                                        \
                 "segments of PyTorch's allocator: fixed or expandable (default: the runtime's)"),     \
      TWS_STRING("collectives", 0, "WORD", type, field.collectives,                                    \
                 "rings (default), or nccl: the algorithm and protocol that NCCL would choose by size and ranks")

/* Rows for a subcommand's option table: `type` is its options struct, `field` the tws_job_spec member in it. First the
 * model, the configuration and the machine. */
#define TWS_SOURCE_OPTIONS(type, field)                                                                              \
  TWS_STRING("model", 'm', "MODEL", type, field.model,                                                               \
             "Hugging Face config.json, ONNX file, or a built-in model's name"),                                     \
      TWS_STRING("config", 'c', "FILE", type, field.config,                                                          \
                 "ds_config.json, or Megatron's, torchtitan's, accelerate's, ... (\"-\": standard input)"),          \
      TWS_STRING("cluster", 0, "NAME[:NODES[xDEVICES]]", type, field.cluster,                                        \
                 "cluster file or built-in name (default: host)"),                                                   \
      TWS_STRING("profile", 0, "NAME", type, field.profile, "hardware profile: built-in name or a calibrated file"), \
      TWS_INTEGER("ranks", 'n', "N", type, field.ranks, 1, 65536, "number of ranks (default: all devices; host: 1)")

#define TWS_SEQUENCE_OPTION(type, field) \
  TWS_INTEGER("seq", 0, "TOKENS", type, field.sequence, 1, 16777216, "sequence length (default: the model's)")
#define TWS_DTYPE_OPTION(type, field) TWS_STRING("dtype", 0, "TYPE", type, field.dtype, "fp32, bf16 or fp16")

#define TWS_SETTING_OPTIONS(type, field)                                                                              \
  TWS_INTEGER("threads", 0, "N", type, field.threads, 1, 1024, "threads of one host rank"),                           \
      TWS_INTEGER("vocab-multiple", 0, "N", type, field.vocabulary_multiple, 1, 65536, "pad the vocabulary to this"), \
      TWS_INTEGER("seed", 0, "N", type, field.seed, 0, 9007199254740992.0, "seed of weights and data order"),         \
      TWS_LIST("set", 0, "KEY=VALUE", type, field.set, "set a configuration key: --set zero_optimization.stage=3"),   \
      TWS_STRICT_OPTION(type, field)

/* Options of a training. */
#define TWS_JOB_OPTIONS(type, field)                                                                            \
  TWS_SOURCE_OPTIONS(type, field), TWS_INTEGER("stage", 0, "0..3", type, field.stage, 0, 3, "ZeRO stage"),      \
      TWS_AXIS_OPTIONS(type, field), TWS_SEQUENCE_OPTION(type, field),                                          \
      TWS_INTEGER("micro-batch", 0, "N", type, field.micro_batch, 1, 1048576, "micro batch size of one rank"),  \
      TWS_INTEGER("accumulation", 0, "N", type, field.accumulation, 1, 1048576, "gradient accumulation steps"), \
      TWS_STRING("recompute", 0, "MODE", type, field.recompute, "none, selective or full"),                     \
      TWS_DTYPE_OPTION(type, field), TWS_LEARNING_OPTIONS(type, field), TWS_SETTING_OPTIONS(type, field)

/* Options of a job that only runs a model forward (tws_job_spec_generate()): those of a training that have an effect on
 * it. */
#define TWS_FORWARD_OPTIONS(type, field)                                                              \
  TWS_SOURCE_OPTIONS(type, field),                                                                    \
      TWS_INTEGER("stage", 0, "0..3", type, field.stage, 0, 3,                                        \
                  "3: replicas divide the weights (ZeRO-Inference); others have no effect"),          \
      TWS_STAGE_OPTION(type, field), TWS_TENSOR_OPTION(type, field), TWS_EXPERT_OPTION(type, field),  \
      TWS_ORDER_OPTION(type, field), TWS_SEQUENCE_OPTION(type, field), TWS_DTYPE_OPTION(type, field), \
      TWS_SETTING_OPTIONS(type, field)

#define TWS_MEASURED_OPTION(type, field)                      \
  TWS_LIST("measured", 0, "WHAT=VALUE", type, field.measured, \
           "rescale the profile by step=S[,OPTION=VALUE...], product=RATE, memory=RATE or all-gather=RATE")

#define TWS_PROGRAM_OPTION(type)                                                                       \
  TWS_STRING("program", 0, "NAME", type, program,                                                      \
             "program to plan: train (a step, default), evaluate, between steps apply, select, sync, " \
             "freeze, as steps of later phases of an optimizer compressed, local, merge, or overlap, " \
             "overlap-select (a step with the late update of overlap_step)")

#endif
