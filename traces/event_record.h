/* TensorBoard's event files: TFRecord records, each an Event of tensorflow/core/util/event.proto.
 *
 * A record is its length (64 bits, little endian), the masked CRC-32C of these eight bytes, the bytes, and their
 * masked CRC-32C (tensorflow/core/lib/io/record_writer.h). An Event has wall_time (1, double), step (2), and one of
 * file_version (3), summary (5) and session_log (7); a Summary has values (1) with tag (1), simple_value (2, float),
 * tensor (8) and metadata (9). These few fields are encoded by hand, in the order of their numbers, so that the
 * bytes equal those of protobuf's own writers: a generated writer would need a library, a schema compiler and ten
 * schemas of TensorFlow for nine fields. */
#ifndef TWS_TRACES_EVENT_RECORD_H
#define TWS_TRACES_EVENT_RECORD_H

#include <stdint.h>
#include "base/memory.h"
#include "traces/step_report.h"

/* CRC-32C (Castagnoli; RFC 3720, appendix B.4). "123456789" has e3069283. */
uint32_t tws_crc32c(const void *bytes, size_t count);

/* Each function appends one whole record. `out` grows where it has too little room; out->failed is set if there is
 * no memory. wall_time: seconds since 1970. */
/* The first record of a file: "brain.Event:2". */
void tws_event_version(tws_text *out, double wall_time);
/* The known values of the step, as scalars of one event whose step is report->samples. */
void tws_event_step(tws_text *out, const tws_step_report *report);
/* One scalar. */
void tws_event_scalar(tws_text *out, const char *tag, float value, double wall_time, int64_t step);
/* A text for TensorBoard's text plugin, which reads Markdown. */
void tws_event_text(tws_text *out, const char *tag, const char *text, double wall_time, int64_t step);
/* Start of a resumed run: TensorBoard ignores later steps of earlier files. */
void tws_event_start(tws_text *out, double wall_time, int64_t step);

#endif
