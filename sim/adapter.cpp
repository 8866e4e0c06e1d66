/* The one C++ file of the simulator: SimGrid's programmatic platform, completion callbacks and timers have no C
 * interface. */
#include "sim/adapter.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include <simgrid/kernel/Timer.hpp>
#include <simgrid/kernel/routing/NetPoint.hpp>
#include <simgrid/kernel/routing/NetZoneImpl.hpp>
#include <simgrid/s4u.hpp>
#include <simgrid/version.h>

namespace {

using simgrid::kernel::routing::NetPoint;
using simgrid::kernel::routing::NetZoneImpl;
using simgrid::kernel::routing::Route;
using simgrid::kernel::timer::Timer;
namespace s4u = simgrid::s4u;

constexpr double host_speed = 1e12; /* flops; so large that the solver's tolerance is negligible */

/* SimGrid's flows have a whole number of bytes, so bytes are scaled by this factor. */
constexpr double byte_parts = 1024, most_bytes = 1e16, least_capacity = 1e-3;

/* Signals whose handlers SimGrid replaces, restored after it started. */
constexpr int guarded_signals[] = {SIGSEGV, SIGINT, SIGABRT, SIGBUS, SIGFPE, SIGTERM};

struct Engine {
  s4u::Engine *engine = nullptr;
  s4u::NetZone *root = nullptr;
  std::vector<s4u::Host *> hosts;
  std::unordered_map<const s4u::Activity *, std::pair<s4u::ActivityPtr, uint64_t>> pending;
  s4u::ActivityPtr finished; /* the latest, kept because SimGrid still uses it after the callback */
  tws_engine_done done = nullptr;
  void *user = nullptr;
  double origin = 0;
  bool begun = false; /* an experiment */
  Timer *alarms[TWS_ALARM_KINDS] = {};
  std::vector<s4u::Link *> links;
  std::vector<double> capacities; /* of links, now */
  s4u::Host *ends[2] = {};        /* of all flows */
  std::vector<s4u::Link *> route; /* of the flow that starts */
  std::string error;
};
Engine *state = nullptr;
std::string start_error;

/* A flow crosses the links that it was given, whatever its ends are. */
class HostZone : public NetZoneImpl {
 public:
  explicit HostZone(const std::string &name) : NetZoneImpl(name) {}
  void get_local_route(const NetPoint *, const NetPoint *, Route *route, double *) override {
    for (s4u::Link *link : state->route) route->link_list_.push_back(link->get_impl());
  }
};

int fail(const std::string &text) {
  if (state != nullptr)
    state->error = text;
  else
    start_error = text;
  return -1;
}

void completed(const s4u::Activity &activity) {
  auto found = state->pending.find(&activity);
  if (found == state->pending.end()) return;
  const uint64_t tag = found->second.second;
  state->finished = std::move(found->second.first); /* releases the previous one, which SimGrid no longer uses */
  state->pending.erase(found);
  state->done(state->user, tag);
}

/* Configures the network model: max-min fair shares of link capacities, without factors that are fitted to TCP. Dates
 * and amounts are exact; by default SimGrid merges events within 10 us (3.32). */
int start_engine() {
  try {
    static char words[][48] = {"twinspeed",
                               "--log=root.thres:critical",
                               "--cfg=network/model:CM02",
                               "--cfg=network/TCP-gamma:0",
                               "--cfg=network/crosstraffic:0",
                               "--cfg=surf/precision:1e-12",
                               "--cfg=maxmin/precision:1e-9"};
    constexpr int count = sizeof words / sizeof *words;
    static char *argv[count + 1];
    int argc = count;
    for (int i = 0; i < count; i++) argv[i] = words[i];
    auto *fresh = new Engine;
    fresh->engine = s4u::Engine::get_instance(&argc, argv);
#if SIMGRID_VERSION < 40100
    fresh->root = (new HostZone("twinspeed"))->get_iface(); /* the first zone is the root */
#else
    fresh->root = fresh->engine->get_netzone_root();
#endif
    s4u::Exec::on_completion_cb(completed);
    if constexpr (!std::is_same_v<decltype(&s4u::Exec::on_completion_cb), decltype(&s4u::Comm::on_completion_cb)>)
      s4u::Comm::on_completion_cb(completed); /* newer versions have another signal */
    state = fresh;
  } catch (const std::exception &problem) {
    return fail(std::string("SimGrid does not start: ") + problem.what());
  }
  return 0;
}

/* SimGrid has one clock for the life of the process, which is never reset. Sums of times between 2^n and 2^(n + 1) are
 * all rounded to the same multiples, so an experiment that begins at a multiple of origin_step takes the same time to
 * the last digit wherever between them it begins. The first begins at first_origin: until 2^10 seconds have been
 * simulated times are rounded to 2^-42 s, then for 2^11 seconds to 2^-41 s. */
constexpr double first_origin = 1024, origin_step = 1.0 / 1024;

int go_to_origin() {
  const double origin = std::ceil(s4u::Engine::get_clock() / origin_step) * origin_step;
  state->origin = std::max(origin, first_origin);
  if (state->origin == s4u::Engine::get_clock()) return 0;
  Timer::set(state->origin, [] {});
  return tws_engine_run();
}

int start() {
  if (state != nullptr) return 0;
  if (!start_error.empty()) return -1;
  struct sigaction saved[sizeof guarded_signals / sizeof *guarded_signals];
  int index = 0;
  for (int number : guarded_signals) sigaction(number, nullptr, &saved[index++]);
  const int result = start_engine();
  index = 0;
  for (int number : guarded_signals) sigaction(number, &saved[index++], nullptr);
  return result;
}

/* Adds hosts and links in a zone of their own, since SimGrid seals a zone at its first use. */
s4u::NetZone *new_zone(const std::string &name) {
  auto *zone = new HostZone(name);
  const NetZoneImpl *root = state->root->get_impl();
  zone->set_network_model(root->get_network_model());
  zone->set_cpu_pm_model(root->get_cpu_pm_model());
  zone->set_cpu_vm_model(root->get_cpu_vm_model());
  zone->set_disk_model(root->get_disk_model());
  zone->set_host_model(root->get_host_model());
  return zone->get_iface();
}

s4u::Host *new_host(s4u::NetZone *zone, const std::string &name) {
#if SIMGRID_VERSION < 40100
  return zone->create_host(name, host_speed)->seal();
#else
  return zone->add_host(name, host_speed)->seal();
#endif
}

/* Sets a link's bandwidth. SimGrid bounds a flow's rate for its whole life by the least bandwidth of its links when it
 * starts. So links keep their largest bandwidth, and a callback returns the capacity that flows share. */
s4u::Link *new_link(s4u::NetZone *zone, int index) {
  const std::string name = "link" + std::to_string(index);
#if SIMGRID_VERSION < 40100
  s4u::Link *link = zone->create_link(name, 1.0);
#else
  s4u::Link *link = zone->add_link(name, 1.0);
#endif
  link->set_sharing_policy(s4u::Link::SharingPolicy::NONLINEAR,
                           [index](double, int) { return state->capacities[static_cast<size_t>(index)]; });
  return link->seal();
}

}  // namespace

extern "C" {

int tws_engine_reserve(int hosts) {
  if (start() != 0) return -1;
  const int old_hosts = static_cast<int>(state->hosts.size());
  if (hosts <= old_hosts) return 0;
  try {
    s4u::NetZone *zone = new_zone("hosts" + std::to_string(old_hosts));
    for (int i = old_hosts; i < hosts; i++) state->hosts.push_back(new_host(zone, "host" + std::to_string(i)));
    zone->seal();
  } catch (const std::exception &problem) {
    return fail(std::string("SimGrid platform: ") + problem.what());
  }
  return 0;
}

int tws_engine_reserve_links(int links) {
  if (start() != 0) return -1;
  const int old_links = static_cast<int>(state->links.size());
  if (links <= old_links) return 0;
  try {
    s4u::NetZone *zone = new_zone("links" + std::to_string(old_links));
    if (old_links == 0) {
      state->ends[0] = new_host(zone, "sender");
      state->ends[1] = new_host(zone, "receiver");
    }
    state->capacities.resize(static_cast<size_t>(links), 1.0);
    for (int i = old_links; i < links; i++) state->links.push_back(new_link(zone, i));
    zone->seal();
  } catch (const std::exception &problem) {
    return fail(std::string("SimGrid platform: ") + problem.what());
  }
  return 0;
}

int tws_engine_begin(tws_engine_done done, void *user) {
  if (start() != 0) return -1;
  if (!state->pending.empty()) return fail("an experiment is already running");
  state->finished = nullptr;
  state->done = done;
  state->user = user;
  state->error.clear();
  if (go_to_origin() != 0) return -1;
  state->begun = true;
  return 0;
}

double tws_engine_now(void) {
  return s4u::Engine::get_clock() - state->origin;
}

int tws_engine_timer(double date_s, uint64_t tag) {
  Timer::set(state->origin + date_s, [tag] { state->done(state->user, tag); });
  return 0;
}

int tws_engine_alarm(tws_engine_alarm_kind kind, double date_s, uint64_t tag) {
  Timer *&alarm = state->alarms[kind];
  if (alarm != nullptr) alarm->remove();
  alarm = nullptr;
  if (std::isinf(date_s)) return 0;
  alarm = Timer::set(state->origin + date_s, [kind, tag] {
    state->alarms[kind] = nullptr;
    state->done(state->user, tag);
  });
  return 0;
}

void tws_engine_capacity(int link, double bytes_per_s) {
  const auto index = static_cast<size_t>(link);
  const double capacity = std::max(bytes_per_s, least_capacity) * byte_parts;
  try {
    s4u::Link *changed = state->links.at(index);
    state->capacities[index] = capacity;
    changed->set_bandwidth(state->begun ? std::max(capacity, changed->get_bandwidth()) : capacity);
  } catch (const std::exception &problem) {
    fail(std::string("SimGrid link: ") + problem.what());
  }
}

int tws_engine_flow(const int *links, int count, double bytes, uint64_t tag) {
  if (!(bytes <= most_bytes)) return fail("a flow of more than 1e16 bytes is more than SimGrid takes");
  try {
    state->route.clear();
    for (int i = 0; i < count; i++) state->route.push_back(state->links.at(static_cast<size_t>(links[i])));
    s4u::CommPtr comm = s4u::Comm::sendto_init(state->ends[0], state->ends[1]);
    comm->set_payload_size(static_cast<uint64_t>(std::max(1.0, std::round(bytes * byte_parts))));
    state->pending.emplace(comm.get(), std::make_pair(s4u::ActivityPtr(comm), tag));
    comm->start();
  } catch (const std::exception &problem) {
    return fail(std::string("SimGrid flow: ") + problem.what());
  }
  return 0;
}

int tws_engine_execute(int host, double seconds, double share, uint64_t tag) {
  try {
    s4u::ExecPtr exec = s4u::Exec::init();
    exec->set_host(state->hosts.at(static_cast<size_t>(host)));
    exec->set_flops_amount(seconds * share * host_speed);
    exec->set_bound(share * host_speed);
    exec->set_priority(share);
    state->pending.emplace(exec.get(), std::make_pair(s4u::ActivityPtr(exec), tag));
    exec->start();
  } catch (const std::exception &problem) {
    return fail(std::string("SimGrid execution: ") + problem.what());
  }
  return 0;
}

int tws_engine_run(void) {
  try {
    state->engine->run();
  } catch (const std::exception &problem) {
    fail(std::string("SimGrid: ") + problem.what());
  }
  state->begun = false;
  state->finished = nullptr;
  return state->error.empty() ? 0 : -1;
}

const char *tws_engine_error(void) {
  return state != nullptr ? state->error.c_str() : start_error.c_str();
}

const char *tws_engine_description(void) {
  static char text[32];
  int major = 0, minor = 0, patch = 0;
  sg_version_get(&major, &minor, &patch);
  if (patch != 0)
    std::snprintf(text, sizeof text, "SimGrid %d.%d.%d", major, minor, patch);
  else
    std::snprintf(text, sizeof text, "SimGrid %d.%d", major, minor);
  return text;
}
}
