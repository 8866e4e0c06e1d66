#include "launch/hostfile.h"
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/json.h"
#include "base/number.h"

static const char hostfile_hint[] = "a line is: worker-0 slots=4";

static const char name_hint[] = "a host's name has letters, digits and . _ : @ -, and does not begin with '-'";

int tws_is_host_name(const char *name, size_t length) {
  enum { LONGEST = 253 }; /* of the domain name system */
  if (length < 1 || length > LONGEST || *name == '-') return 0;
  for (size_t i = 0; i < length; i++)
    if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:@-", name[i]) || !name[i]) return 0;
  return 1;
}

static tws_host *find_host(const tws_hosts *hosts, const char *name, size_t length) {
  for (int i = 0; i < hosts->count; i++)
    if (strlen(hosts->host[i].name) == length && strncmp(hosts->host[i].name, name, length) == 0)
      return &hosts->host[i];
  return NULL;
}

/* One trimmed line: NAME whitespace slots=DIGITS, what follows is ignored. */
static tws_code parse_line(const char *line, size_t length, const char *place, tws_arena *arena, tws_hosts *out,
                           tws_error *err) {
  size_t name = 0, at;
  while (name < length && !isspace((unsigned char)line[name])) name++;
  for (at = name; at < length && isspace((unsigned char)line[at]); at++) continue;
  int bad =
      at == name || length - at < 7 || strncmp(line + at, "slots=", 6) != 0 || !isdigit((unsigned char)line[at + 6]);
  if (bad)
    return tws_fail(err, TWS_INVALID, hostfile_hint, "%s: bad entry \"%.*s\"", place,
                    (int)(length < 200 ? length : 200), line);
  if (!tws_is_host_name(line, name))
    return tws_fail(err, TWS_INVALID, name_hint, "%s: \"%.*s\" is not the name of a host", place,
                    (int)(name < 200 ? name : 200), line);
  const char *slots_text = line + at + 6, *end;
  int slots;
  if (!tws_text_int(slots_text, &end, 0, TWS_MAX_SLOTS, &slots))
    return tws_fail(err, TWS_INVALID, NULL, "%s: %.*s slots are more than %d", place,
                    (int)strspn(slots_text, "0123456789"), slots_text, TWS_MAX_SLOTS);
  if (out->count == TWS_MAX_HOSTS)
    return tws_fail(err, TWS_INVALID, NULL, "%s: more than %d hosts", place, TWS_MAX_HOSTS);
  if (find_host(out, line, name))
    return tws_fail(err, TWS_INVALID, "one line a host", "%s: multiple entries for %.*s", place,
                    (int)(name < 200 ? name : 200), line);
  tws_host *host = &out->host[out->count++];
  host->name = tws_arena_printf(arena, "%.*s", (int)name, line);
  if (!host->name) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int i = 0; i < slots; i++) host->slot[host->count++] = (short)i;
  return TWS_OK;
}

tws_code tws_hostfile_parse(const char *text, const char *name, tws_arena *arena, tws_hosts *out, tws_error *err) {
  size_t lines = 1;
  for (const char *c = text; *c && lines < TWS_MAX_HOSTS; c++) lines += *c == '\n';
  *out = (tws_hosts){.host = tws_arena_alloc(arena, lines, sizeof *out->host)};
  if (!out->host) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  int number = 1;
  for (const char *line = text; *line; number++) {
    const char *end = strchr(line, '\n'), *next = end ? end + 1 : line + strlen(line);
    size_t length = (size_t)((end ? end : next) - line);
    while (length && isspace((unsigned char)*line)) line++, length--;
    while (length && isspace((unsigned char)line[length - 1])) length--;
    char place[300];
    snprintf(place, sizeof place, "%.255s:%d", name, number);
    if (length && *line != '#') TWS_TRY(parse_line(line, length, place, arena, out, err));
    line = next;
  }
  if (out->count == 0) return tws_fail(err, TWS_INVALID, hostfile_hint, "%s names no host", name);
  return TWS_OK;
}

/* ---- Slurm ---- */

/* One host; its tasks are the next of `tasks`: "4", "4(x3)", separated by commas; the last holds for all that follow.
 */
static tws_code add_node(const char *name, const char **tasks, int *times, tws_arena *arena, tws_hosts *out,
                         tws_error *err) {
  int slots = 1, repeated = 1;
  const char *end;
  if (!tws_is_host_name(name, strlen(name)))
    return tws_fail(err, TWS_INVALID, name_hint, "SLURM_JOB_NODELIST: \"%.200s\" is not the name of a host", name);
  if (out->count == TWS_MAX_HOSTS) return tws_fail(err, TWS_INVALID, NULL, "SLURM_JOB_NODELIST: too many hosts");
  if (*tasks) {
    int good = tws_text_int(*tasks, &end, 1, TWS_MAX_SLOTS, &slots);
    if (good && strncmp(end, "(x", 2) == 0)
      good = tws_text_int(end + 2, &end, 1, INT32_MAX, &repeated) && *end++ == ')';
    if (!good || (*end && *end != ','))
      return tws_fail(err, TWS_INVALID, NULL, "SLURM_TASKS_PER_NODE: bad entry \"%.80s\"", *tasks);
    if (++*times >= repeated && *end == ',') {
      *tasks = end + 1;
      *times = 0;
    }
  }
  tws_host *host = &out->host[out->count++];
  host->name = tws_arena_strdup(arena, name);
  if (!host->name) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int i = 0; i < slots; i++) host->slot[host->count++] = (short)i;
  return TWS_OK;
}

/* "first" or "first-last" at *at, which is advanced past it; the digits of the first are the width of all. */
static int read_range(const char **at, int *width, int *first, int *last) {
  enum { MOST = 999999999 };
  *width = (int)strspn(*at, "0123456789");
  if (*width < 1 || *width > 9 || !tws_text_int(*at, at, 0, MOST, first)) return 0;
  *last = *first;
  if (**at == '-' && (!isdigit((unsigned char)(*at)[1]) || !tws_text_int(*at + 1, at, 0, MOST, last))) return 0;
  return *last >= *first && *last - *first <= TWS_MAX_HOSTS;
}

tws_code tws_nodelist_parse(const char *nodelist, const char *tasks, tws_arena *arena, tws_hosts *out, tws_error *err) {
  int times = 0;
  *out = (tws_hosts){.host = tws_arena_alloc(arena, TWS_MAX_HOSTS, sizeof *out->host)};
  if (!out->host) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (const char *at = nodelist; *at;) {
    const size_t prefix = strcspn(at, "[,");
    const char *begin = at;
    char name[300];
    at += prefix;
    if (prefix > 253)
      return tws_fail(err, TWS_INVALID, name_hint, "SLURM_JOB_NODELIST: \"%.40s...\" is too long for a host", begin);
    if (*at != '[') {
      snprintf(name, sizeof name, "%.*s", (int)prefix, begin);
      TWS_TRY(add_node(name, &tasks, &times, arena, out, err));
    } else {
      do { /* "01-03" keeps its width */
        int width, first, last;
        at++;
        if (!read_range(&at, &width, &first, &last))
          return tws_fail(err, TWS_INVALID, "a list is: gpu[01-12,20],login",
                          "SLURM_JOB_NODELIST: bad range in \"%.200s\"", nodelist);
        for (; first <= last; first++) {
          snprintf(name, sizeof name, "%.*s%0*d", (int)prefix, begin, width, first);
          TWS_TRY(add_node(name, &tasks, &times, arena, out, err));
        }
      } while (*at == ',');
      if (*at != ']') return tws_fail(err, TWS_INVALID, NULL, "SLURM_JOB_NODELIST: bad list \"%.200s\"", nodelist);
      at++;
    }
    if (*at == ',')
      at++;
    else if (*at)
      return tws_fail(err, TWS_INVALID, NULL, "SLURM_JOB_NODELIST: bad list \"%.200s\"", nodelist);
  }
  return TWS_OK;
}

/* ---- filters ---- */

typedef struct selection { /* per host: listed with slots, or as a whole */
  unsigned char whole, listed, slot[TWS_MAX_SLOTS];
} selection;

/* "NAME" or "NAME:0,2" */
static tws_code select_one(const tws_hosts *hosts, const char *word, size_t length, const char *option,
                           selection *chosen, tws_error *err) {
  const char *colon = memchr(word, ':', length);
  size_t name = colon ? (size_t)(colon - word) : length;
  tws_host *host = find_host(hosts, word, name);
  if (!host)
    return tws_fail(err, TWS_INVALID, "hosts and filters must agree in spelling",
                    "%s: host \"%.*s\" is not in the hostfile", option, (int)(name < 200 ? name : 200), word);
  selection *mine = &chosen[host - hosts->host];
  mine->listed = 1;
  if (!colon) {
    mine->whole = 1;
    return TWS_OK;
  }
  const char *c = colon + 1, *end = word + length;
  for (;;) {
    const char *after;
    int slot;
    if (c >= end || !isdigit((unsigned char)*c) || !tws_text_int(c, &after, 0, TWS_MAX_SLOTS - 1, &slot) ||
        (after < end && *after != ','))
      return tws_fail(err, TWS_INVALID, "slots are numbers: worker-0:0,2", "%s: bad slot list in \"%.*s\"", option,
                      (int)(length < 200 ? length : 200), word);
    int there = 0;
    for (int i = 0; i < host->count; i++) there |= host->slot[i] == slot;
    if (!there) {
      char hint[96];
      snprintf(hint, sizeof hint, "its slots are 0 to %d", host->count - 1);
      return tws_fail(err, TWS_INVALID, host->count ? hint : NULL, "%s: no slot %d on host %s", option, slot,
                      host->name);
    }
    mine->slot[slot] = 1;
    if (after == end) return TWS_OK;
    c = after + 1;
  }
}

static void apply_selection(tws_hosts *hosts, const selection *chosen, int including) {
  int kept = 0;
  for (int h = 0; h < hosts->count; h++) {
    tws_host host = hosts->host[h];
    const selection *mine = &chosen[h];
    tws_host result = {.name = host.name};
    if (including && !mine->whole) {
      for (short s = 0; s < TWS_MAX_SLOTS; s++)
        if (mine->slot[s]) result.slot[result.count++] = s;
    } else if (including) {
      result = host;
    } else if (!mine->whole) {
      for (int i = 0; i < host.count; i++)
        if (!mine->slot[host.slot[i]]) result.slot[result.count++] = host.slot[i];
    }
    if (result.count) hosts->host[kept++] = result;
  }
  hosts->count = kept;
}

tws_code tws_hosts_filter(tws_hosts *hosts, const char *include, const char *exclude, tws_error *err) {
  int including = include && *include, excluding = exclude && *exclude;
  if (including && excluding)
    return tws_fail(err, TWS_INVALID, "give one of the two", "--include and --exclude exclude each other");
  if (!including && !excluding) return TWS_OK;
  selection *chosen = tws_calloc((size_t)hosts->count, sizeof *chosen);
  if (!chosen) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_code code = TWS_OK;
  for (const char *word = including ? include : exclude; code == TWS_OK;) {
    size_t length = strcspn(word, "@");
    code = select_one(hosts, word, length, including ? "--include" : "--exclude", chosen, err);
    if (!word[length]) break;
    word += length + 1;
  }
  if (code == TWS_OK) apply_selection(hosts, chosen, including);
  tws_free(chosen);
  return code;
}

int tws_hosts_ranks(const tws_hosts *hosts) {
  int ranks = 0;
  for (int i = 0; i < hosts->count; i++) ranks += hosts->host[i].count;
  return ranks;
}

/* ---- which hosts ---- */

tws_code tws_nodes_parse(const char *text, int elastic, int64_t *least, int64_t *most, tws_error *err) {
  enum { MOST = 65536 };
  const char *end = text;
  *most = -1;
  *least = 0;
  int good = tws_text_integer(text, &end, 1, MOST, least);
  const int range = good && *end == ':';
  if (range) good = tws_text_integer(end + 1, &end, *least, MOST, most);
  if (!good || *end != '\0')
    return tws_fail(err, TWS_USAGE, "--num-nodes 4, or 2:4 with --restarts",
                    "--num-nodes: \"%.100s\" is neither a number nor MIN:MAX", text);
  if (!range || elastic) return TWS_OK;
  return tws_fail(err, TWS_USAGE, "give --restarts N too, or one number",
                  "--num-nodes: MIN:MAX is for training that can continue with fewer nodes");
}

static tws_code local_host(const tws_hosts_request *o, tws_arena *arena, tws_hosts *hosts, tws_error *err) {
  static char name[256];
  if (gethostname(name, sizeof name - 1) != 0) snprintf(name, sizeof name, "localhost");
  int64_t ranks = o->ranks ? o->ranks : o->num_gpus ? o->num_gpus : 1;
  *hosts = (tws_hosts){.host = tws_arena_alloc(arena, 1, sizeof *hosts->host), .count = 1};
  if (!hosts->host) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  hosts->host[0].name = name;
  for (short i = 0; i < ranks; i++) hosts->host[0].slot[hosts->host[0].count++] = i;
  return TWS_OK;
}

static int is_local(const char *name) {
  char mine[256];
  if (strcmp(name, "localhost") == 0 || strcmp(name, "127.0.0.1") == 0) return 1;
  return gethostname(mine, sizeof mine) == 0 && strcmp(name, mine) == 0;
}

int64_t tws_devices_here(void) {
  DIR *folder = opendir("/proc/driver/nvidia/gpus");
  int64_t count = 0;
  for (const struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) count += entry->d_name[0] != '.';
  if (folder) closedir(folder);
  return count < TWS_MAX_SLOTS ? count : TWS_MAX_SLOTS;
}

/* Without a hostfile the devices of this machine can be chosen: "localhost:1". Where their number is not known, a list
 * of slots is taken as it is; what a bare host and --exclude mean depends on that number. */
static tws_code filtered_local_host(const tws_hosts_request *o, tws_arena *arena, tws_hosts *hosts, tws_error *err) {
  const char *option = o->include ? "--include" : "--exclude", *filter = o->include ? o->include : o->exclude;
  const size_t name = strcspn(filter, ":@");
  tws_host *host = tws_arena_alloc(arena, 1, sizeof *host);
  char *own = host ? tws_arena_printf(arena, "%.*s", (int)(name < 256 ? name : 255), filter) : NULL;
  if (!own) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (o->include && o->exclude)
    return tws_fail(err, TWS_INVALID, "give one of the two", "--include and --exclude exclude each other");
  if (!is_local(own))
    return tws_fail(err, TWS_USAGE, "give --hostfile FILE, or localhost:0,1", "%s: %s is not this machine", option,
                    own);
  if (!o->devices && (strchr(filter, '@') || filter[name] != ':' || !o->include))
    return tws_fail(err, TWS_USAGE, "name the devices of this machine: --include localhost:0,1",
                    "%s %.100s needs a hostfile, which says how many devices there are", option, filter);
  host->name = own;
  const int64_t devices = o->devices > 0 ? o->devices : TWS_MAX_SLOTS;
  for (short i = 0; i < devices && i < TWS_MAX_SLOTS; i++) host->slot[host->count++] = i;
  *hosts = (tws_hosts){.host = host, .count = 1};
  return tws_hosts_filter(hosts, o->include, o->exclude, err);
}

static tws_code read_hostfile(const char *path, tws_arena *arena, tws_hosts *hosts, tws_error *err) {
  char *text;
  size_t length;
  TWS_TRY(tws_read_file(path, 0, &text, &length, err));
  tws_code code = strlen(text) == length ? tws_hostfile_parse(text, path, arena, hosts, err)
                                         : tws_fail(err, TWS_INVALID, NULL, "%s: not a text file", path);
  tws_free(text);
  return code;
}

tws_code tws_hosts_find(const tws_hosts_request *o, tws_arena *arena, tws_hosts *hosts, tws_error *err) {
  if ((o->include || o->exclude) && (o->num_nodes || o->num_gpus))
    return tws_fail(err, TWS_USAGE, "give filters or numbers",
                    "--num-nodes and --num-gpus do not go with --include and --exclude");
  if (!o->hostfile && !o->nodelist) {
    if (o->num_nodes > 1)
      return tws_fail(err, TWS_USAGE, "give --hostfile FILE", "--num-nodes %lld needs a hostfile",
                      (long long)o->num_nodes);
    if (o->include || o->exclude) return filtered_local_host(o, arena, hosts, err);
    return local_host(o, arena, hosts, err);
  }
  const char *source = o->hostfile ? o->hostfile : "the allocation";
  if (!o->hostfile)
    TWS_TRY(tws_nodelist_parse(o->nodelist, o->tasks, arena, hosts, err));
  else
    TWS_TRY(read_hostfile(o->hostfile, arena, hosts, err));
  TWS_TRY(tws_hosts_filter(hosts, o->include, o->exclude, err));
  if (o->num_nodes > hosts->count)
    return tws_fail(err, TWS_INVALID, NULL, "--num-nodes %lld: %s has %d hosts", (long long)o->num_nodes, source,
                    hosts->count);
  const int64_t most = o->most_nodes > 0 ? o->most_nodes : o->num_nodes;
  if (most > 0 && hosts->count > most) hosts->count = (int)most;
  for (int h = 0; o->num_gpus && h < hosts->count; h++) {
    tws_host *host = &hosts->host[h];
    if (o->num_gpus > host->count)
      return tws_fail(err, TWS_INVALID, "use fewer, or more slots in the hostfile",
                      "--num-gpus %lld: host %s has %d slots", (long long)o->num_gpus, host->name, host->count);
    host->count = (int)o->num_gpus;
  }
  return TWS_OK;
}

int tws_hosts_local(const tws_hosts *hosts) {
  for (int h = 0; h < hosts->count; h++)
    if (!is_local(hosts->host[h].name)) return 0;
  return 1;
}

const tws_host *tws_hosts_of_rank(const tws_hosts *hosts, int rank, int *slot) {
  for (int h = 0; h < hosts->count; rank -= hosts->host[h++].count)
    if (rank < hosts->host[h].count) {
      *slot = rank;
      return &hosts->host[h];
    }
  return NULL;
}
