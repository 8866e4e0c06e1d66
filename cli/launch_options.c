#include "cli/launch_options.h"
#include <stdlib.h>
#include <unistd.h>
#include "cli/outputs.h"
#include "launch/handover.h"

int tws_launch_flags_given(const tws_launch_flags *f) {
  return f->hostfile || f->include || f->exclude || f->num_nodes || f->num_gpus ||
         (f->launcher && (getenv("SLURM_JOB_NODELIST") != NULL));
}

/* Returns the list of hosts of Slurm's allocation, if the launcher starts ranks in it; NULL: there is none. */
static const char *allocation(const tws_launch_flags *f, tws_launcher launcher) {
  const int knows = launcher == TWS_LAUNCHER_SRUN || launcher == TWS_LAUNCHER_MPIRUN || launcher == TWS_LAUNCHER_SLURM;
  return f->hostfile || !knows ? NULL : getenv("SLURM_JOB_NODELIST");
}

const char *tws_launch_flags_hostfile(const tws_launch_flags *f, int64_t ranks) {
  const char *named = getenv("TWINSPEED_HOSTFILE");
  tws_launcher launcher;
  if (f->hostfile || ranks) return f->hostfile;
  if (tws_launcher_parse(f->launcher, &launcher, NULL) != TWS_OK || launcher == TWS_LAUNCHER_LOCAL) return NULL;
  if (allocation(f, launcher)) return NULL;
  if (named) return *named ? named : NULL;
  return access(TWS_DEFAULT_HOSTFILE, F_OK) == 0 ? TWS_DEFAULT_HOSTFILE : NULL;
}

/* Checks or chooses the launcher for Twinspeed's own subcommands, whose ranks form one job of the MPI library with
 * which the program was built. */
static tws_code own_launcher(const tws_launch_flags *f, tws_launcher *launcher, tws_error *err) {
  if (f->any_command || !tws_launcher_hands_over(*launcher)) return TWS_OK;
  if (*launcher != TWS_LAUNCHER_OPENMPI && *launcher != TWS_LAUNCHER_SLURM)
    return tws_fail(err, TWS_USAGE, "use ssh, mpirun or srun; `twinspeed launch` starts other programs with it",
                    "--launcher %s: it cannot start ranks of Open MPI, which those of this verb are", f->launcher);
  *launcher = *launcher == TWS_LAUNCHER_SLURM ? TWS_LAUNCHER_SRUN : TWS_LAUNCHER_MPIRUN;
  return TWS_OK;
}

tws_code tws_launch_flags_read(const tws_launch_flags *f, int64_t ranks, tws_arena *arena, tws_hosts *hosts,
                               tws_launch_options *launch, tws_error *err) {
  int64_t least = 0, most = 0;
  TWS_TRY(tws_launcher_parse(f->launcher, &launch->launcher, err));
  TWS_TRY(own_launcher(f, &launch->launcher, err));
  TWS_TRY(tws_outputs_check_name("--logs", f->logs, err));
  const char *hostfile = tws_launch_flags_hostfile(f, ranks);
  if (f->num_nodes) TWS_TRY(tws_nodes_parse(f->num_nodes, f->elastic, &least, &most, err));
  const tws_hosts_request request = {.hostfile = hostfile,
                                     .nodelist = allocation(f, launch->launcher),
                                     .tasks = getenv("SLURM_TASKS_PER_NODE"),
                                     .include = f->include,
                                     .exclude = f->exclude,
                                     .ranks = ranks,
                                     .devices = tws_devices_here(),
                                     .num_nodes = least,
                                     .most_nodes = most,
                                     .num_gpus = f->num_gpus};
  if (ranks && (f->hostfile || f->include || f->exclude || f->num_gpus || f->num_nodes))
    return tws_fail(err, TWS_USAGE, "-n N on this machine, or --hostfile FILE with filters",
                    "-n does not go with --hostfile, --include, --exclude, --num-nodes and --num-gpus");
  if (f->remote_shell && launch->launcher != TWS_LAUNCHER_AUTO && launch->launcher != TWS_LAUNCHER_SSH)
    return tws_fail(err, TWS_USAGE, "leave one of them out", "--remote-shell does not go with --launcher %s",
                    f->launcher);
  const int slurm = launch->launcher == TWS_LAUNCHER_SRUN || launch->launcher == TWS_LAUNCHER_SLURM;
  if (slurm && !hostfile && !request.nodelist)
    return tws_fail(err, TWS_USAGE, "salloc or sbatch makes one; or give --hostfile FILE",
                    "--launcher %s: this is no Slurm allocation (SLURM_JOB_NODELIST is not set)", f->launcher);
  TWS_TRY(tws_hosts_find(&request, arena, hosts, err));
  launch->hosts = hostfile || request.nodelist || f->include || f->exclude ? hosts : NULL;
  launch->least_nodes = most > 0 ? (int)least : 0;
  launch->remote_shell = f->remote_shell;
  launch->log_folder = f->logs;
  launch->ranks = tws_hosts_ranks(hosts);
  return TWS_OK;
}

void tws_launch_flags_report(const tws_cli *cli, const tws_launch_flags *f, int64_t ranks) {
  const char *hostfile = tws_launch_flags_hostfile(f, ranks);
  if (hostfile && !f->hostfile) tws_say(cli, "the hosts are those of %s (-n N: this machine alone)", hostfile);
}

int tws_launch_flags_choose_devices(const tws_cli *cli, const tws_launch_flags *f) {
  const char *present = getenv("CUDA_VISIBLE_DEVICES");
  if (!f->include && !f->exclude && !f->num_gpus) return 0;
  if (present)
    tws_say(cli, "CUDA_VISIBLE_DEVICES=%s is left out: --include, --exclude or --num-gpus is given", present);
  unsetenv("CUDA_VISIBLE_DEVICES");
  return 1;
}

tws_code tws_launch_show(const tws_cli *cli, const tws_hosts *hosts, int first, int to_stdout, tws_error *err) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "twinspeed-ranks-1");
  cJSON *ranks = cJSON_AddArrayToObject(root, "ranks");
  int rank = first;
  for (int h = 0; h < hosts->count; h++)
    for (int i = 0; i < hosts->host[h].count; i++, rank++) {
      const tws_host *host = &hosts->host[h];
      cJSON *one = cJSON_CreateObject();
      cJSON_AddNumberToObject(one, "rank", rank);
      cJSON_AddStringToObject(one, "host", host->name);
      cJSON_AddNumberToObject(one, "device", host->slot[i]);
      cJSON_AddItemToArray(ranks, one);
      if (!cli->json && to_stdout) tws_out("rank %d -> %s -> device %d\n", rank, host->name, host->slot[i]);
      if (!to_stdout) tws_say(cli, "rank %d -> %s -> device %d", rank, host->name, host->slot[i]);
    }
  tws_arena *arena = tws_arena_create();
  const char *info = arena ? tws_hosts_world_info(hosts, arena) : NULL;
  if (info) cJSON_AddStringToObject(root, "world_info", info);
  tws_arena_destroy(arena);
  if (cli->json && to_stdout) return tws_out_json(root, err);
  cJSON_Delete(root);
  return TWS_OK;
}
