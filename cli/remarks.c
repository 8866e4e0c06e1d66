#include "cli/remarks.h"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "config/autotuning.h"
#include "job/assumed.h"
#include "job/measured.h"
#include "job/notes.h"

/* Prints a note that "-m gpt2" names a built-in model, if the working folder has a file or folder "gpt2", too. */
static void remark_name(const tws_cli *cli, const char *model) {
  const char *const *name = tws_network_builtin_names();
  while (model && *name && strcmp(*name, model) != 0) name++;
  if (model && *name && access(model, F_OK) == 0)
    tws_say(cli, "note: %s is the built-in model; -m ./%s takes what is in this folder", model, model);
}

void tws_noise_remark(const tws_cli *cli, const tws_profile *profile) {
  if (tws_profile_is_noisy(profile))
    tws_warn(cli,
             "the machine was not quiet when profile %s was measured: a repeated product drifted by %.0f %%, samples "
             "spread by %.0f %%; what is predicted with it is no surer",
             tws_profile_name(profile), 100 * tws_profile_drift(profile), 100 * tws_profile_spread(profile));
}

static void remark_measured(const tws_cli *cli, const tws_job *job) {
  const tws_rescaling *r = &job->rescaling;
  tws_text text = {0};
  if (r->steps + r->rates == 0) return;
  tws_rescaling_text(r, &text);
  const int count = r->steps + r->rates;
  if (text.data) tws_say(cli, "note: by %d measurement%s, %s", count, count > 1 ? "s" : "", text.data);
  tws_text_free(&text);
}

void tws_model_remark(const tws_cli *cli, const char *model, const tws_job *job) {
  remark_name(cli, model);
  if (job->network->open_positions && job->config->sequence_length > job->network->positions)
    tws_say(cli,
            "note: a sequence of %lld is longer than the model's %lld positions: rotary positions have no table, so "
            "that it is planned",
            (long long)job->config->sequence_length, (long long)job->network->positions);
  tws_noise_remark(cli, job->profile);
  remark_measured(cli, job);
}

void tws_notes_say(const tws_cli *cli, tws_text *text) {
  for (char *rest = text->data, *line; (line = strsep(&rest, "\n"));)
    if (*line) tws_say(cli, "note: %s", line);
  tws_text_free(text);
}

void tws_config_remark(const tws_cli *cli, const tws_config *config) {
  tws_text text = {0};
  int count = 0;
  if (tws_config_notes(config, &text, &count, NULL) == TWS_OK)
    tws_notes_say(cli, &text);
  else
    tws_text_free(&text);
}

static void remark_ignored(const tws_cli *cli, const tws_job *job) {
  tws_text text = {0};
  tws_job_ignored(job, &text);
  tws_notes_say(cli, &text);
}

static void remark_idle_keys(const tws_cli *cli, const tws_config *config, int tunes) {
  tws_text text = {0};
  int count = 0;
  if (tws_config_no_effect(config, &text, &count, NULL) == TWS_OK && text.data)
    for (char *rest = text.data, *line; (line = strsep(&rest, "\n"));)
      if (*line && !(tunes && tws_autotuning_is_read(line))) tws_warn(cli, "%s", line);
  tws_text_free(&text);
  tws_config_remark(cli, config);
}

static void remark(const tws_cli *cli, const char *model, const tws_job *job, int tunes) {
  remark_idle_keys(cli, job->config, tunes);
  remark_ignored(cli, job);
  tws_model_remark(cli, model, job);
  for (const char *line = job->network->notes; line && *line;) {
    size_t length = strcspn(line, "\n");
    if (length) tws_say(cli, "note: %.*s", (int)length, line);
    line += length + (line[length] == '\n');
  }
}

void tws_job_remarks(const tws_cli *cli, const char *model, const tws_job *job) {
  remark(cli, model, job, 0);
}

void tws_tune_remarks(const tws_cli *cli, const char *model, const tws_job *job) {
  remark(cli, model, job, 1);
}

void tws_job_assumed_remark(const tws_cli *cli, const tws_job *job, int trains) {
  /* assumptions that concern predictions alone: a training uses the real values */
  static const char *const predicted[] = {"runtime", "memory margin", "NICs", "update interval"};
  tws_assumption list[TWS_ASSUMPTIONS];
  tws_text text = {0};
  int kept = 0;
  for (int i = 0, count = tws_job_assumed(job, list); i < count; i++) {
    int decides = 1;
    for (int k = 0; k < 4; k++) decides &= !trains || strcmp(list[i].what, predicted[k]) != 0;
    if (decides) list[kept++] = list[i];
  }
  tws_assumptions_text(list, kept, &text);
  if (text.length) tws_say(cli, "note: assumed: %s", text.data);
  tws_text_free(&text);
}

void tws_data_remark(const tws_cli *cli, const char *path, const tws_network *network) {
  unsigned char head[4] = {0};
  const int is_text = network->classes == 0 && network->vocabulary > 256;
  int fd = path && is_text ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
  if (fd < 0) return;
  const ssize_t got = read(fd, head, sizeof head);
  close(fd);
  const uint32_t magic = head[0] | (uint32_t)head[1] << 8 | (uint32_t)head[2] << 16 | (uint32_t)head[3] << 24;
  /* the numbers with which llm.c's token files begin (real/data.h) */
  if (got > 0 && magic != 20240520 && magic != 20240801)
    tws_say(cli, "note: the tokens are the bytes of %s: ids up to 255 of a vocabulary of %lld", path,
            (long long)network->vocabulary);
}
