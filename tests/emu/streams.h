// streams.h - deferred execution: streams, events, capture, and the order in which commands run.
//
// Nothing runs when it is enqueued. Every command knows what it has to come after (its predecessor
// in the stream, events waited for); at a synchronisation point ready commands are drawn in seeded
// random order until what was waited for is done. A launch on a wrong stream therefore shows.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>

#include "scheduler.h"

namespace emu {

struct Command;
using CommandPtr = std::shared_ptr<Command>;

struct Launch {
  std::shared_ptr<Program> prog;
  LaunchConfig cfg;
  std::vector<u8> params;
  int device = 0;
};

struct Command {
  std::vector<CommandPtr> after;
  CommandPtr previous;            // in the same stream (also in `after`)
  std::function<void()> run;      // empty: a marker
  std::shared_ptr<Launch> launch; // a kernel
  bool done = false;
  double time = 0;                // when it was done, in milliseconds
};

struct Graph {
  struct Node {
    std::function<void()> run;
    std::shared_ptr<Launch> launch;
    std::vector<size_t> after;
  };
  std::vector<Node> nodes;
  u64 id = 0;
};

struct Stream {
  u32 magic = 0x5354524d;
  int device = 0;
  bool nonBlocking = false, isDefault = false;
  CommandPtr tail;
  std::shared_ptr<Graph> capture;       // being captured
  bool captureOrigin = false;
  std::vector<size_t> captureTail;      // nodes the next one comes after
};

struct Event {
  u32 magic = 0x45564e54;
  bool timing = true;
  CommandPtr command;                   // null: never recorded
  std::shared_ptr<Graph> capture;
  std::vector<size_t> captureNodes;
};

std::recursive_mutex &driverLock();
Stream *defaultStream(int device);
std::vector<Stream *> &allStreams();

// Appends work to a stream (or to the graph that it is being captured into).
CommandPtr enqueue(Stream *s, std::function<void()> run, std::shared_ptr<Launch> launch = nullptr);
void enqueueWait(Stream *s, Event *e);
void recordEvent(Stream *s, Event *e);
void launchGraph(Stream *s, const Graph &g);

bool runOne();                          // one ready command, any stream; false: none left
void drain(const CommandPtr &until);    // null: everything
bool anyCapture();

}  // namespace emu
