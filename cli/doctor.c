/* twinspeed doctor: checks this machine and reports what is missing, with the remedy. */
#include "cli/cli.h"
#include "cli/launch_options.h"
#include "cli/version.h"
#include "launch/health.h"

typedef struct options {
  tws_launch_flags flags;
} options;

typedef struct patient {
  const tws_cli *cli;
  cJSON *findings; /* findings for --json; NULL: they are printed as text */
  int bad;
} patient;

static void tell(void *user, const tws_finding *f) {
  static const char *const words[] = {"OKAY", "WARN", "FAIL"};
  patient *p = user;
  p->bad += f->health == TWS_HEALTH_FAIL;
  if (p->findings) {
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "what", f->what);
    cJSON_AddStringToObject(one, "state", words[f->health]);
    cJSON_AddStringToObject(one, "found", f->text);
    if (f->remedy) cJSON_AddStringToObject(one, "remedy", f->remedy);
    cJSON_AddItemToArray(p->findings, one);
    return;
  }
  const tws_style_name style = f->health == TWS_HEALTH_OKAY   ? TWS_GREEN
                               : f->health == TWS_HEALTH_FAIL ? TWS_RED
                                                              : TWS_BOLD;
  tws_out_wrapped(21, "%s%-6s%s%-14s %s", tws_style(p->cli, style), words[f->health],
                  tws_style(p->cli, TWS_PLAIN_OUTPUT), f->what, f->text);
  if (f->remedy) tws_out_wrapped(24, "%20s -> %s", "", f->remedy);
}

static tws_code examine_hosts(const tws_health_listener *listener, const options *o, tws_error *err) {
  tws_hosts hosts;
  tws_launch_options launch = {0};
  tws_launch_flags flags = o->flags;
  flags.any_command = 1; /* hosts are checked whatever their launcher */
  if (!tws_launch_flags_given(&o->flags)) return TWS_OK;
  tws_arena *arena = tws_arena_create();
  tws_code code = arena ? tws_launch_flags_read(&flags, 0, arena, &hosts, &launch, err)
                        : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int h = 0; code == TWS_OK && h < hosts.count; h++)
    tws_health_host(listener, o->flags.remote_shell, hosts.host[h].name);
  tws_arena_destroy(arena);
  return code;
}

static tws_code run_doctor(tws_cli *cli, void *raw, int argc, char **argv, tws_error *err) {
  (void)argc;
  (void)argv;
  patient p = {.cli = cli, .findings = cli->json ? cJSON_CreateArray() : NULL};
  const tws_health_listener listener = {tell, &p};
  tws_health_machine(&listener, TWS_VERSION);
  const tws_code asked = examine_hosts(&listener, raw, err);
  if (asked != TWS_OK) {
    cJSON_Delete(p.findings);
    return asked;
  }
  if (cli->json) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "schema", "twinspeed-doctor-2");
    cJSON_AddBoolToObject(root, "healthy", p.bad == 0);
    cJSON_AddItemToObject(root, "findings", p.findings);
    TWS_TRY(tws_out_json(root, err));
  }
  if (p.bad)
    return tws_fail(err, TWS_ENVIRONMENT, "./install.sh installs what packages.txt lists",
                    "%d thing%s missing or broken", p.bad, p.bad > 1 ? "s are" : " is");
  return TWS_OK;
}

static const tws_option table[] = {TWS_LAUNCH_OPTIONS(options, flags), TWS_OPTIONS_END};

const tws_verb tws_verb_doctor = {
    .name = "doctor",
    .summary = "checks this machine, and prints what is missing with the remedy",
    .usage = "[--hostfile FILE] [options]",
    .examples = "  twinspeed doctor\n  twinspeed doctor --json\n  twinspeed doctor --hostfile hosts\n",
    .notes = "Each finding is OKAY, WARN or FAIL, with the remedy. Exit code 4 if one of them is FAIL.\n",
    .options = table,
    .options_bytes = sizeof(options),
    .run = run_doctor,
};
