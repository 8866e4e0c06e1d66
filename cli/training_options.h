/* Option rows of the subcommands that train, on this machine or on a virtual cluster. */
#ifndef TWS_CLI_TRAINING_OPTIONS_H
#define TWS_CLI_TRAINING_OPTIONS_H

#include "cli/cli.h"

#define TWS_TRACE_SCHEDULE_OPTION(type)                             \
  TWS_STRING("trace-schedule", 0, "NUMBERS", type, trace_schedule, \
             "with --trace: which steps, as torch.profiler: wait=1,warmup=1,active=3,repeat=2,skip_first=0")

#define TWS_COMM_LOG_OPTION(type)                    \
  TWS_STRING("comm-log", 0, "LAYOUT", type, comm_log, \
             "communication by operation and size, as comms_logger: a table like deepspeed's or nccl's (nccl-tests)")

/* `type`: the subcommand's options struct, with the members save, resume, tag, init_from, json_lines, prometheus and
 * comm_log;
 * `run`: empty, or the member followed by a dot that has data, eval_data, eval_every, eval_steps, save_every, keep and
 * restarts. */
#define TWS_TRAINING_OPTIONS(type, run)                                                                           \
  TWS_STRING("data", 'd', "FILE", type, run data, "text, or llm.c tokens (.bin)"),                                \
      TWS_STRING("eval-data", 0, "FILE", type, run eval_data,                                                     \
                 "text or tokens whose loss is evaluated, by forward passes"),                                    \
      TWS_INTEGER("eval-every", 0, "N", type, run eval_every, 1, 1000000000,                                      \
                  "evaluate after every N-th step, and after the last (default: only then)"),                     \
      TWS_INTEGER("eval-steps", 0, "K", type, run eval_steps, 1, 1000000000,                                      \
                  "global batches of an evaluation, the same each time (default: all of the file)"),              \
      TWS_STRING("save", 0, "DIR", type, save, "save checkpoints there, after the last step"),                    \
      TWS_INTEGER("save-every", 0, "N", type, run save_every, 1, 1000000000, "and save after every N-th step"),   \
      TWS_INTEGER("keep", 0, "K", type, run keep, 1, 1000000000, "keep the newest K checkpoints (default: all)"), \
      TWS_STRING("resume", 0, "DIR", type, resume,                                                                \
                 "continue from a checkpoint of any number of ranks, parallel axes and precision"),               \
      TWS_STRING("tag", 0, "TAG", type, tag,                                                                      \
                 "its name, such as global_step100 (default: the one that DIR/latest names)"),                    \
      TWS_STRING("init-from", 0, "FILE", type, init_from,                                                         \
                 "initial weights from a Hugging Face model: .safetensors, its index or its folder"),             \
      TWS_STRING("json-lines", 0, "FILE", type, json_lines,                                                       \
                 "write the report of every step as a line of JSON; --resume appends to it"),                     \
      TWS_STRING("prometheus", 0, "FILE", type, prometheus,                                                       \
                 "keep the numbers of the newest step there, for Prometheus' textfile collector (.prom)"),        \
      TWS_COMM_LOG_OPTION(type),                                                                                  \
      TWS_INTEGER("restarts", 0, "N", type, run restarts, 0, 1000000,                                             \
                  "up to N times, restart without the failed host or rank from the last complete checkpoint")

#endif
