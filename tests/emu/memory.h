// memory.h - device memory: host memory with bounds, life time and an "initialised" bit per byte.
#pragma once
#include <map>
#include <memory>

#include "base.h"

namespace emu {

struct Allocation {
  u64 base = 0, size = 0;
  int device = 0;
  bool live = true;
  bool host = false;          // pinned host memory: always counts as initialised
  bool constant = false;      // a module's .const variable
  std::string what;           // "cuMemAlloc #3", "variable lut"
  void *raw = nullptr;
  size_t rawSize = 0;
  u8 *init = nullptr;         // one bit per byte; null if host
  std::vector<u32> writers;   // per 4 bytes: last write event of the launch `writtenBy`
  std::vector<u8> writerBytes;  // the bytes it wrote (mask; 0: all four); empty: all wrote all
  u64 writtenBy = 0;          // (hazards_global.cpp)
  bool contains(u64 a, u64 n) const { return a >= base && n <= size && a - base <= size - n; }
};

class Memory {
 public:
  Allocation *allocate(u64 size, int device, const std::string &what, bool host = false);
  bool release(u64 base);                    // false: not the start of a live allocation
  Allocation *find(u64 addr);                // live or freed; null: never allocated
  u64 used(int device) const;
  void markInit(Allocation *a, u64 addr, u64 n);
  bool isInit(const Allocation *a, u64 addr, u64 n) const;
  std::string describe(u64 addr, u64 n);     // for messages: what lies at or near this address
  bool guardsIntact(const Allocation *a, u64 *badOffset) const;

 private:
  void drop(Allocation *a);
  std::map<u64, std::unique_ptr<Allocation>> byEnd_;  // key: end of the guarded block
  std::vector<u64> quarantine_;                       // freed, kept to catch late accesses
  u64 quarantineBytes_ = 0;
  int serial_ = 0;
};

Memory &memory();

}  // namespace emu
