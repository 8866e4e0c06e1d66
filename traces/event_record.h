/* TensorBoard's event files: TFRecord records, each an Event of tensorflow/core/util/event.proto.
 *
 * A record is its length (64 bits, little endian), the masked CRC-32C of these eight bytes, the bytes, and their
 * masked CRC-32C (tensorflow/core/lib/io/record_writer.h). An Event has wall_time (1, double), step (2), and one of
 * file_version (3), summary (5) and session_log (7); a Summary has values (1) with tag (1), simple_value (2, float),
 * image (4), tensor (8) and metadata (9). These few fields are encoded by hand, in the order of their numbers, so that
 * the bytes equal those of protobuf's own writers: a generated writer would need a library, a schema compiler and ten
 * schemas of TensorFlow for a dozen fields. */
#ifndef TWS_TRACES_EVENT_RECORD_H
#define TWS_TRACES_EVENT_RECORD_H

#include <stdint.h>
#include "base/memory.h"
#include "traces/step_report.h"

/* Returns the CRC-32C (Castagnoli; RFC 3720, appendix B.4) of `count` bytes; that of "123456789" is e3069283. */
uint32_t tws_crc32c(const void *bytes, size_t count);

/* Returns the checksum as TFRecord stores it: rotated, plus a constant, as in LevelDB, so that data which contain such
 * checksums can be checked too. */
uint32_t tws_crc32c_masked(const void *bytes, size_t count);

/* Each function appends one whole record. `out` grows where it has too little room; out->failed is set if there is
 * no memory. wall_time: seconds since 1970. */
/* Appends the first record of a file: "brain.Event:2". */
void tws_event_version(tws_text *out, double wall_time);
/* Appends one event with all known values of the step as scalars; the event's step is report->samples. */
void tws_event_step(tws_text *out, const tws_step_report *report);
/* Appends an event with one scalar. */
void tws_event_scalar(tws_text *out, const char *tag, float value, double wall_time, int64_t step);
/* Appends an event with a text for TensorBoard's text plugin, which reads Markdown. */
void tws_event_text(tws_text *out, const char *tag, const char *text, double wall_time, int64_t step);
/* Appends an event with a picture, which is a PNG, for TensorBoard's page of images. Sets out->failed if it is none. */
void tws_event_image(tws_text *out, const char *tag, const tws_text *png, double wall_time, int64_t step);
/* Appends the start event of a resumed run, because of which TensorBoard ignores later steps in earlier files. */
void tws_event_start(tws_text *out, double wall_time, int64_t step);

#endif
