#include "plan/plan.h"

const char *tws_op_kind_name(tws_op_kind kind) {
  static const char *const names[] = {
#define X(name, text) text,
      TWS_OP_KINDS(X)
#undef X
  };
  return (unsigned)kind < TWS_OP_KIND_COUNT ? names[kind] : "?";
}

const char *tws_stream_name(tws_stream stream) {
  static const char *const names[] = {
#define X(name, text) text,
      TWS_STREAMS(X)
#undef X
  };
  return (unsigned)stream < TWS_STREAM_COUNT ? names[stream] : "?";
}

const char *tws_place_name(tws_place place) {
  static const char *const names[] = {
#define X(name, text) text,
      TWS_PLACES(X)
#undef X
  };
  return (unsigned)place < TWS_PLACE_COUNT ? names[place] : "?";
}

const char *tws_channel_name(tws_channel channel) {
  static const char *const names[] = {
#define X(name, text) text,
      TWS_CHANNELS(X)
#undef X
  };
  return (unsigned)channel < TWS_CHANNEL_COUNT ? names[channel] : "?";
}

const char *tws_phase_name(tws_phase phase) {
  static const char *const names[] = {
#define X(name, text) text,
      TWS_PHASES(X)
#undef X
  };
  return (unsigned)phase < TWS_PHASE_COUNT ? names[phase] : "?";
}

const char *tws_category_name(tws_category category) {
  static const char *const names[] = {
#define X(name, text) text,
      TWS_CATEGORIES(X)
#undef X
  };
  return (unsigned)category < TWS_CATEGORY_COUNT ? names[category] : "?";
}

const char *tws_program_name(tws_program program) {
  static const char *const names[] = {
#define X(name, text) text,
      TWS_PROGRAMS(X)
#undef X
  };
  return (unsigned)program < TWS_PROGRAM_COUNT ? names[program] : "?";
}

int tws_plan_has_program(const tws_config *config, tws_program program) {
  const tws_optimizer_phases phases = tws_optimizer_of(config->optimizer)->phases;
  switch (program) {
    case TWS_PROGRAM_TRAIN:
    case TWS_PROGRAM_EVALUATE:
      return 1;
    case TWS_PROGRAM_APPLY:
      return config->zenflow.on || config->delayed_update;
    case TWS_PROGRAM_SELECT:
    case TWS_PROGRAM_SYNC:
      return config->zenflow.on;
    case TWS_PROGRAM_COMPRESSED:
      return phases != TWS_PHASES_ONE;
    case TWS_PROGRAM_LOCAL:
    case TWS_PROGRAM_MERGE:
      return phases == TWS_PHASES_INTERVALS;
    case TWS_PROGRAM_FREEZE:
      return phases == TWS_PHASES_SCALED || phases == TWS_PHASES_INTERVALS;
    case TWS_PROGRAM_PREFILL:
    case TWS_PROGRAM_DECODE:
      return config->cache_length > 0;
    case TWS_PROGRAM_OVERLAP:
    case TWS_PROGRAM_OVERLAP_SELECT:
      return config->zenflow.on && config->zenflow.overlap_step;
    case TWS_PROGRAM_COUNT:
      break;
  }
  return 0;
}

double tws_program_share(const tws_config *config, tws_program program) {
  const double choices = 1.0 / (double)tws_zenflow_select_interval(config);
  const double updates = 1.0 / (double)tws_zenflow_update_interval(config);
  const int overlaps = config->zenflow.on && config->zenflow.overlap_step;
  if (program == TWS_PROGRAM_TRAIN) return overlaps ? 1 - updates : 1;
  if (!config->zenflow.on || tws_program_overlaps(program) != overlaps) return 0;
  if (program == TWS_PROGRAM_SELECT || program == TWS_PROGRAM_OVERLAP_SELECT) return choices;
  return program == TWS_PROGRAM_APPLY || program == TWS_PROGRAM_OVERLAP ? updates - choices : 0;
}

tws_channel tws_channel_of_axes(tws_axes axes) {
  static const tws_channel channels[TWS_AXIS_COUNT] = {
#define AXIS(id, name, parent, divides, channel, ...) [TWS_AXIS_##id] = TWS_CHANNEL_##channel,
#include "config/axes.def"
#undef AXIS
  };
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++)
    if (axes >> axis & 1) return channels[axis];
  return TWS_CHANNEL_REPLICAS;
}
