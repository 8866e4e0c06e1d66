/* Reads nsys's export of a report to SQLite (nsys export --type sqlite): kernels by name, NVTX ranges, and the GPUs. */
#include <stdio.h>
#include <string.h>

#include "traces/recording.h"

#ifdef TWS_HAVE_SQLITE
#include <sqlite3.h>

static tws_code refuse(sqlite3 *db, const char *path, tws_error *err) {
  return tws_fail(err, TWS_INVALID, "write it with: nsys export --type sqlite -o report.sqlite report.nsys-rep",
                  "%s: is no export of nsys: %.200s", path, sqlite3_errmsg(db));
}

/* Calls `row` for each row of the query. needed 1: fails if the database lacks the query's tables; 0: does nothing
 * then. */
static tws_code query(sqlite3 *db, const char *path, const char *sql, int needed, tws_recording *r,
                      tws_code (*row)(sqlite3_stmt *s, tws_recording *r, tws_error *err), tws_error *err) {
  sqlite3_stmt *statement = NULL;
  if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK) {
    sqlite3_finalize(statement);
    return needed ? refuse(db, path, err) : TWS_OK;
  }
  tws_code code = TWS_OK;
  int step;
  while (code == TWS_OK && (step = sqlite3_step(statement)) == SQLITE_ROW) code = row(statement, r, err);
  if (code == TWS_OK && step != SQLITE_DONE) code = refuse(db, path, err);
  sqlite3_finalize(statement);
  return code;
}

static const char *text_at(sqlite3_stmt *s, int column) {
  const unsigned char *text = sqlite3_column_text(s, column);
  return text ? (const char *)text : "";
}

static tws_code add_kernel(sqlite3_stmt *s, tws_recording *r, tws_error *err) {
  r->on_device = 1;
  return tws_recording_add_kernel(r, text_at(s, 0), "", sqlite3_column_int64(s, 1), sqlite3_column_double(s, 2) * 1e-9,
                                  err);
}

static tws_code add_devices(sqlite3_stmt *s, tws_recording *r, tws_error *err) {
  (void)err;
  const int devices = sqlite3_column_int(s, 0);
  r->devices = devices > 0 && devices <= 65536 ? devices : 1;
  return TWS_OK;
}

static tws_code add_step(sqlite3_stmt *s, tws_recording *r, tws_error *err) {
  return tws_recording_add_step(r, sqlite3_column_double(s, 0) * 1e-9, 0, 0, err);
}

static tws_code add_gpu(sqlite3_stmt *s, tws_recording *r, tws_error *err) {
  (void)err;
  snprintf(r->device, sizeof r->device, "%s", text_at(s, 0));
  r->device_bytes = sqlite3_column_double(s, 1);
  return TWS_OK;
}

static tws_code add_view(sqlite3_stmt *s, tws_recording *r, tws_error *err) {
  (void)r;
  return tws_fail(err, TWS_INVALID, "write it with: nsys export --type sqlite -o report.sqlite report.nsys-rep",
                  "%s: %.60s is no table of an export of nsys: views and virtual tables are not read",
                  sqlite3_db_filename(sqlite3_db_handle(s), "main"), text_at(s, 0));
}

static tws_code read_tables(sqlite3 *db, const char *path, tws_recording *r, tws_error *err) {
  /* a range may have no end */
  TWS_TRY(
      query(db, path,
            "SELECT name FROM sqlite_master WHERE name IN ('CUPTI_ACTIVITY_KIND_KERNEL', 'StringIds', 'NVTX_EVENTS', "
            "'CUPTI_ACTIVITY_KIND_MEMCPY', 'TARGET_INFO_GPU') AND (type <> 'table' OR sql LIKE '%VIRTUAL%')",
            1, r, add_view, err));
  TWS_TRY(query(db, path,
                "SELECT s.value, count(*), sum(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
                "JOIN StringIds s ON s.id = k.demangledName GROUP BY k.demangledName ORDER BY k.demangledName",
                1, r, add_kernel, err));
  TWS_TRY(query(db, path,
                "SELECT CASE copyKind WHEN 1 THEN 'Memcpy HtoD' WHEN 2 THEN 'Memcpy DtoH' ELSE 'Memcpy DtoD' END, "
                "count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_MEMCPY GROUP BY 1 ORDER BY 1",
                0, r, add_kernel, err));
  TWS_TRY(query(db, path, "SELECT count(DISTINCT deviceId) FROM CUPTI_ACTIVITY_KIND_KERNEL", 1, r, add_devices, err));
  TWS_TRY(query(db, path,
                "SELECT n.end - n.start FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId WHERE n.end IS NOT "
                "NULL AND (lower(coalesce(n.text, s.value)) LIKE 'step%' OR lower(coalesce(n.text, s.value)) LIKE "
                "'iteration%' OR coalesce(n.text, s.value) LIKE 'ProfilerStep#%') ORDER BY n.start",
                0, r, add_step, err));
  TWS_TRY(query(db, path, "SELECT name, totalMemory FROM TARGET_INFO_GPU ORDER BY id LIMIT 1", 0, r, add_gpu, err));
  if (r->kernel_count == 0)
    return tws_fail(err, TWS_INVALID, "record it with: nsys profile --trace cuda,nvtx", "%s: no kernel was recorded",
                    path);
  return TWS_OK;
}

tws_code tws_recording_read_nsys(const char *path, tws_recording *r, tws_error *err) {
  sqlite3 *db = NULL;
  r->format = TWS_RECORDING_NSYS;
  tws_code code = TWS_OK;
  if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
    code = refuse(db, path, err);
  if (code == TWS_OK) {
    sqlite3_limit(db, SQLITE_LIMIT_LENGTH, 16 << 20);
    sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    code = read_tables(db, path, r, err);
  }
  sqlite3_close(db);
  return code;
}

#else

tws_code tws_recording_read_nsys(const char *path, tws_recording *r, tws_error *err) {
  r->format = TWS_RECORDING_NSYS;
  return tws_fail(err, TWS_UNSUPPORTED, "install libsqlite3-dev and build again",
                  "%s: this build reads no SQLite files", path);
}

#endif
