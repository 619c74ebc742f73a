// streams.cpp - see streams.h.
#include "streams.h"

#include <algorithm>

namespace emu {
namespace {

std::vector<CommandPtr> pending;

double now() {
  auto t = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(t).count();
}

bool ready(const Command &c) {
  for (const CommandPtr &a : c.after)
    if (!a->done) return false;
  return true;
}

// A programmatic launch may run beside the kernel right before it in its stream.
CommandPtr programmaticSuccessor(const CommandPtr &c) {
  for (const CommandPtr &p : pending) {
    if (!p->launch || !p->launch->cfg.programmatic || p->previous != c) continue;
    bool others = true;
    for (const CommandPtr &a : p->after) others &= a == c || a->done;
    if (others) return p;
  }
  return nullptr;
}

void finish(const CommandPtr &c) {
  c->done = true;
  c->time = now();
  c->after.clear();
  c->previous.reset();
  c->run = nullptr;
  c->launch.reset();
  pending.erase(std::find(pending.begin(), pending.end(), c));
}

void runLaunches(const CommandPtr &first) {
  std::vector<CommandPtr> chain{first};
  while (CommandPtr next = programmaticSuccessor(chain.back())) chain.push_back(next);
  std::vector<std::unique_ptr<Grid>> grids;
  std::vector<Grid *> list;
  for (const CommandPtr &c : chain) {
    auto g = makeGrid(c->launch->prog, c->launch->cfg, c->launch->params, c->launch->device);
    if (!grids.empty()) g->after = grids.back().get();
    list.push_back(g.get());
    grids.push_back(std::move(g));
  }
  runGrids(list);
  for (const CommandPtr &c : chain) finish(c);
}

}  // namespace

std::recursive_mutex &driverLock() {
  static auto *m = new std::recursive_mutex;
  return *m;
}

std::vector<Stream *> &allStreams() {
  static auto *v = new std::vector<Stream *>;
  return *v;
}

Stream *defaultStream(int device) {
  for (Stream *s : allStreams())
    if (s->isDefault && s->device == device) return s;
  auto *s = new Stream;
  s->isDefault = true;
  s->device = device;
  allStreams().push_back(s);
  return s;
}

CommandPtr enqueue(Stream *s, std::function<void()> run, std::shared_ptr<Launch> launch) {
  if (s->capture) {
    s->capture->nodes.push_back({std::move(run), std::move(launch), s->captureTail});
    s->captureTail = {s->capture->nodes.size() - 1};
    return nullptr;
  }
  auto c = std::make_shared<Command>();
  c->run = std::move(run);
  c->launch = std::move(launch);
  auto comesAfter = [&](const CommandPtr &p) {
    if (p && !p->done) c->after.push_back(p);
  };
  c->previous = s->tail;
  comesAfter(s->tail);
  // The default stream and blocking streams wait for each other.
  for (Stream *o : allStreams())
    if (o != s && o->device == s->device && ((s->isDefault && !o->nonBlocking) ||
                                             (o->isDefault && !s->nonBlocking)))
      comesAfter(o->tail);
  s->tail = c;
  pending.push_back(c);
  return c;
}

void enqueueWait(Stream *s, Event *e) {
  if (e->capture) {  // joins the capture
    if (!s->capture) {
      s->capture = e->capture;
      s->captureTail.clear();
    }
    for (size_t n : e->captureNodes) s->captureTail.push_back(n);
    return;
  }
  if (!e->command || e->command->done) return;
  CommandPtr target = e->command;
  if (CommandPtr c = enqueue(s, nullptr)) c->after.push_back(target);
}

void recordEvent(Stream *s, Event *e) {
  if (s->capture) {
    e->capture = s->capture;
    e->captureNodes = s->captureTail;
    return;
  }
  e->capture.reset();
  e->command = enqueue(s, nullptr);
}

void launchGraph(Stream *s, const Graph &g) {
  CommandPtr start = enqueue(s, nullptr);
  std::vector<CommandPtr> made;
  for (const Graph::Node &n : g.nodes) {
    auto c = std::make_shared<Command>();
    c->run = n.run;
    c->launch = n.launch;
    if (n.after.empty()) c->after.push_back(start);
    for (size_t a : n.after) c->after.push_back(made[a]);
    if (n.after.size() == 1) c->previous = made[n.after[0]];
    pending.push_back(c);
    made.push_back(c);
  }
  CommandPtr end = enqueue(s, nullptr);
  for (const CommandPtr &c : made) end->after.push_back(c);
}

bool runOne() {
  std::vector<CommandPtr> choice;
  for (const CommandPtr &c : pending)
    if (ready(*c)) choice.push_back(c);
  if (choice.empty()) return false;
  CommandPtr c = choice[options().jitter ? rng().below(u32(choice.size())) : 0];
  if (c->launch && !stickyError()) {
    runLaunches(c);
  } else {
    if (c->run && !stickyError()) c->run();
    finish(c);
  }
  return true;
}

void drain(const CommandPtr &until) {
  while (until ? !until->done : !pending.empty())
    if (!runOne()) return;
}

bool anyCapture() {
  for (Stream *s : allStreams())
    if (s->capture) return true;
  return false;
}

}  // namespace emu
