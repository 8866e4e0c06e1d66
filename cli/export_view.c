#include "cli/export_view.h"

#include "base/output_file.h"
#include "cli/outputs.h"

tws_code tws_export_file(const char *format, int argc, char **argv, int force, const char **path, tws_error *err) {
  static char script[4096];
  *path = NULL;
  if (!format && argc > 0)
    return tws_fail(err, TWS_USAGE, "put quotes around texts with spaces", "unexpected argument \"%.80s\"", argv[0]);
  if (!format) return TWS_OK;
  TWS_TRY(tws_export_check(format, err));
  if (argc == 0 || snprintf(script, sizeof script, "%s.sbatch", argv[0]) >= (int)sizeof script)
    return tws_fail(err, TWS_USAGE, "for example --export megatron arguments.txt", "--export %.40s needs a file",
                    format);
  const tws_output outputs[] = {{"--export", argv[0], NULL}, {"--export", script, NULL}};
  TWS_TRY(tws_outputs_check(outputs, 2, NULL, force, err));
  *path = argv[0];
  return TWS_OK;
}

static void print_export(const tws_cli *cli, const tws_export *e, const char *format, const char *path) {
  if (cli->json) {
    tws_say(cli, "%s configuration written to %s; launch: %s", format, path, e->launch.data);
    return;
  }
  tws_out_wrapped(9, "%sExport%s   %s: %s, and %s.sbatch for Slurm", tws_style(cli, TWS_BOLD),
                  tws_style(cli, TWS_PLAIN_OUTPUT), format, path, path);
  tws_out("  launch: %s\n", e->launch.data);
  if (e->left.length) tws_out_wrapped(2, "  not in the file: %s", e->left.data);
}

tws_code tws_export_write(const tws_cli *cli, const tws_job *job, const char *format, const char *path,
                          tws_error *err) {
  tws_export e;
  tws_text script = {0};
  tws_code code = tws_job_export(job, format, path, &e, err);
  if (code == TWS_OK) {
    tws_text_add(&script, "%s.sbatch", path);
    if (script.failed) code = tws_fail(err, TWS_MEMORY, NULL, "no memory for the export");
  }
  if (code == TWS_OK) code = tws_write_file(path, e.file.data, e.file.length, err);
  if (code == TWS_OK) code = tws_write_file(script.data, e.sbatch.data, e.sbatch.length, err);
  if (code == TWS_OK) print_export(cli, &e, format, path);
  tws_text_free(&script);
  tws_export_free(&e);
  return code;
}
