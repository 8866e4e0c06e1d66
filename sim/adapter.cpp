/* The one C++ file of the simulator: SimGrid's programmatic platform, completion callbacks and timers have no C
 * interface. */
#include "sim/adapter.h"

#include <dlfcn.h>
#include <signal.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
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
namespace s4u = simgrid::s4u;

constexpr double host_speed = 1e12; /* work of one second on a whole host; makes the solver's tolerance negligible */

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
  double *clock = nullptr; /* SimGrid's clock, when it can be set back */
  double origin = 0;
  std::string error;
};
Engine *state = nullptr;
std::string start_error;

/* Nothing goes from one host to another. */
class HostZone : public NetZoneImpl {
 public:
  explicit HostZone(const std::string &name) : NetZoneImpl(name) {}
  void get_local_route(const NetPoint *, const NetPoint *, Route *, double *) override {}
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
  state->finished = std::move(found->second.first); /* lets go of the one before, which SimGrid is done with */
  state->pending.erase(found);
  state->done(state->user, tag);
}

/* SimGrid keeps one clock for the life of the process. Experiments that start at different times would differ in
 * rounding, so it is set back between them where its symbol is exported (it is in 3.32); else they run at an offset. */
double *find_clock() {
  auto *clock = static_cast<double *>(dlsym(RTLD_DEFAULT, "_ZN7simgrid6kernel10EngineImpl4now_E"));
  return clock != nullptr && *clock == s4u::Engine::get_clock() ? clock : nullptr;
}

int start_engine() {
  try {
    static char words[][40] = {"twinspeed", "--log=root.thres:critical"};
    static char *argv[] = {words[0], words[1], nullptr};
    int argc = 2;
    auto *fresh = new Engine;
    fresh->engine = s4u::Engine::get_instance(&argc, argv);
    fresh->root = (new HostZone("twinspeed"))->get_iface();
    s4u::Activity::on_completion_cb(completed);
    fresh->clock = find_clock();
    state = fresh;
  } catch (const std::exception &problem) {
    return fail(std::string("SimGrid does not start: ") + problem.what());
  }
  return 0;
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

}  // namespace

extern "C" {

/* A zone takes nothing more once it was used, so every growth is a zone of its own below the root. */
int tws_engine_reserve(int hosts) {
  if (start() != 0) return -1;
  const int old_hosts = static_cast<int>(state->hosts.size());
  if (hosts <= old_hosts) return 0;
  try {
    auto *zone = new HostZone("pool" + std::to_string(old_hosts));
    const NetZoneImpl *root = state->root->get_impl();
    zone->set_network_model(root->get_network_model());
    zone->set_cpu_pm_model(root->get_cpu_pm_model());
    zone->set_cpu_vm_model(root->get_cpu_vm_model());
    zone->set_disk_model(root->get_disk_model());
    zone->set_host_model(root->get_host_model());
    for (int i = old_hosts; i < hosts; i++)
      state->hosts.push_back(zone->get_iface()->create_host("host" + std::to_string(i), host_speed)->seal());
    zone->get_iface()->seal();
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
  if (state->clock != nullptr)
    *state->clock = 0;
  else /* a multiple of a power of two, so that sums with small times round alike for as long as possible */
    state->origin = std::ceil(s4u::Engine::get_clock() / 64) * 64;
  return 0;
}

double tws_engine_now(void) {
  return s4u::Engine::get_clock() - state->origin;
}

int tws_engine_timer(double date_s, uint64_t tag) {
  simgrid::kernel::timer::Timer::set(state->origin + date_s, [tag] { state->done(state->user, tag); });
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
    exec->vetoable_start();
  } catch (const std::exception &problem) {
    return fail(std::string("SimGrid execution: ") + problem.what());
  }
  return 0;
}

int tws_engine_run(void) {
  try {
    state->engine->run();
  } catch (const std::exception &problem) {
    return fail(std::string("SimGrid: ") + problem.what());
  }
  state->finished = nullptr;
  return 0;
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
