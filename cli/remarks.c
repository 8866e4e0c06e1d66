/* What has to be said about a job before its results: keys without effect, what of the model is left out, and what was
 * assumed because nobody said it. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "base/units.h"
#include "cli/job_view.h"

/* From here on float32 costs more than anybody who did not ask for it has in mind. */
#define LARGE_MODEL 1e9

tws_code tws_job_assume_dtype(tws_config *config, const tws_network *network, int *assumed, tws_error *err) {
  const tws_dtype dtype = network->dtype;
  *assumed = 0;
  if (tws_config_says_dtype(config, dtype)) return TWS_OK;
  *assumed = 1;
  if (dtype == TWS_F32) return TWS_OK;
  return tws_config_set(config, dtype == TWS_BF16 ? "bf16.enabled" : "fp16.enabled", "true", err);
}

static void remark_dtype(const tws_cli *cli, const tws_network *network) {
  static const char *const others[] = {[TWS_F32] = "bf16", [TWS_BF16] = "fp32", [TWS_F16] = "bf16"};
  char count[32];
  if (network->dtype != TWS_F32)
    tws_say(cli, "note: %s, as the model's file has it and nothing else was said (--dtype %s)",
            tws_dtype_name(network->dtype), others[network->dtype]);
  else if ((double)tws_network_params(network, 0) >= LARGE_MODEL)
    tws_say(cli,
            "note: fp32 for %s parameters, as neither model nor configuration says a type: did you mean --dtype bf16?",
            tws_format_count((double)tws_network_params(network, 0), count, sizeof count));
}

/* "-m gpt2" in a folder that has a "gpt2" of its own. */
static void remark_name(const tws_cli *cli, const char *model) {
  const char *const *name = tws_network_builtin_names();
  while (model && *name && strcmp(*name, model) != 0) name++;
  if (model && *name && access(model, F_OK) == 0)
    tws_say(cli, "note: %s is the built-in model; -m ./%s takes what is in this folder", model, model);
}

void tws_model_assumptions(const tws_cli *cli, const char *model, const tws_network *network, int assumed_dtype) {
  remark_name(cli, model);
  if (assumed_dtype) remark_dtype(cli, network);
}

void tws_model_remarks(const tws_cli *cli, const char *model, const tws_network *network, int assumed_dtype) {
  tws_model_assumptions(cli, model, network, assumed_dtype);
  for (const char *line = network->notes; line && *line;) {
    size_t length = strcspn(line, "\n");
    if (length) tws_say(cli, "note: %.*s", (int)length, line);
    line += length + (line[length] == '\n');
  }
}

void tws_config_remarks(const tws_cli *cli, const tws_config *config) {
  tws_text text = {0};
  int count = 0;
  if (tws_config_no_effect(config, &text, &count, NULL) == TWS_OK && text.data)
    for (char *rest = text.data, *line; (line = strsep(&rest, "\n"));)
      if (*line) tws_warn(cli, "%s", line);
  tws_text_free(&text);
}

void tws_job_remarks(const tws_cli *cli, const tws_job_options *options, const tws_job *job) {
  tws_config_remarks(cli, job->config);
  tws_model_remarks(cli, options->model, job->network, job->assumed_dtype);
}

void tws_data_remark(const tws_cli *cli, const char *path, const tws_network *network) {
  unsigned char head[4] = {0};
  int fd = path && network->vocabulary > 256 ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
  if (fd < 0) return;
  const ssize_t got = read(fd, head, sizeof head);
  close(fd);
  const uint32_t magic = head[0] | (uint32_t)head[1] << 8 | (uint32_t)head[2] << 16 | (uint32_t)head[3] << 24;
  if (got > 0 && magic != 20240520 && magic != 20240801) /* llm.c's token files, see real/data.h */
    tws_say(cli, "note: the tokens are the bytes of %s: ids up to 255 of a vocabulary of %lld", path,
            (long long)network->vocabulary);
}

tws_code tws_config_strict(const tws_config *config, tws_error *err) {
  tws_text text = {0};
  int count = 0;
  TWS_TRY(tws_config_no_effect(config, &text, &count, err));
  tws_code code = TWS_OK;
  if (count > 0) {
    while (text.length && text.data[text.length - 1] == '\n') text.data[--text.length] = '\0';
    code = tws_fail(err, TWS_INVALID, "without --strict these are warnings", "%s", text.data);
  }
  tws_text_free(&text);
  return code;
}
