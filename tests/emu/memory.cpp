// memory.cpp - see memory.h.
#include "memory.h"

#include <sys/mman.h>

#include <algorithm>

namespace emu {
namespace {

constexpr u64 kGuard = 1024;             // bytes before and after each allocation
constexpr u64 kAlign = 512;              // what cuMemAlloc promises is 256
constexpr u8 kGuardByte = 0xA5;
constexpr u8 kFreshByte = 0xFF;          // NaN in every float type
constexpr u64 kFillLimit = 1ull << 28;   // larger allocations are left as zero pages
constexpr u64 kQuarantineLimit = 1ull << 28;

u64 roundUp(u64 x, u64 a) { return (x + a - 1) / a * a; }

}  // namespace

Memory &memory() {
  static Memory *m = new Memory;  // never destroyed: streams may outlive static destructors
  return *m;
}

Allocation *Memory::allocate(u64 size, int device, const std::string &what, bool host) {
  auto a = std::make_unique<Allocation>();
  a->rawSize = roundUp(size, kAlign) + 2 * kGuard + kAlign;
  a->raw = mmap(nullptr, a->rawSize, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (a->raw == MAP_FAILED) return nullptr;
  a->base = roundUp(u64(a->raw) + kGuard, kAlign);
  a->size = size;
  a->device = device;
  a->host = host;
  a->what = what + " #" + std::to_string(++serial_);
  memset(reinterpret_cast<void *>(a->base - kGuard), kGuardByte, kGuard);
  memset(reinterpret_cast<void *>(a->base + size), kGuardByte, kGuard);
  if (size <= kFillLimit && !host) memset(reinterpret_cast<void *>(a->base), kFreshByte, size);
  if (!host) {
    void *p = mmap(nullptr, size / 8 + 64, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) { munmap(a->raw, a->rawSize); return nullptr; }
    a->init = static_cast<u8 *>(p);
  }
  Allocation *result = a.get();
  byEnd_[a->base + size + kGuard] = std::move(a);
  return result;
}

bool Memory::release(u64 base) {
  Allocation *a = find(base);
  if (!a || a->base != base || !a->live) return false;
  a->live = false;
  quarantine_.push_back(base);
  quarantineBytes_ += a->size;
  while (quarantineBytes_ > kQuarantineLimit && !quarantine_.empty()) {
    Allocation *old = find(quarantine_.front());
    quarantine_.erase(quarantine_.begin());
    quarantineBytes_ -= old->size;
    drop(old);
  }
  return true;
}

void Memory::drop(Allocation *a) {
  munmap(a->raw, a->rawSize);
  if (a->init) munmap(a->init, a->size / 8 + 64);
  byEnd_.erase(a->base + a->size + kGuard);
}

Allocation *Memory::find(u64 addr) {
  auto it = byEnd_.upper_bound(addr);
  if (it == byEnd_.end()) return nullptr;
  Allocation *a = it->second.get();
  return addr >= a->base - kGuard ? a : nullptr;
}

u64 Memory::used(int device) const {
  u64 n = 0;
  for (auto &e : byEnd_)
    if (e.second->live && e.second->device == device && !e.second->host) n += e.second->size;
  return n;
}

void Memory::markInit(Allocation *a, u64 addr, u64 n) {
  if (!a->init) return;
  u64 i = addr - a->base, end = i + n;
  for (; i < end && (i & 7); ++i) a->init[i >> 3] |= u8(1u << (i & 7));
  if (end - i >= 8) {
    memset(a->init + (i >> 3), 0xff, (end - i) >> 3);
    i += (end - i) & ~7ull;
  }
  for (; i < end; ++i) a->init[i >> 3] |= u8(1u << (i & 7));
}

bool Memory::isInit(const Allocation *a, u64 addr, u64 n) const {
  if (!a->init) return true;
  u64 i = addr - a->base, end = i + n;
  for (; i < end && (i & 7); ++i)
    if (!(a->init[i >> 3] >> (i & 7) & 1)) return false;
  for (; i + 8 <= end; i += 8)
    if (a->init[i >> 3] != 0xff) return false;
  for (; i < end; ++i)
    if (!(a->init[i >> 3] >> (i & 7) & 1)) return false;
  return true;
}

std::string Memory::describe(u64 addr, u64 n) {
  Allocation *a = find(addr);
  if (!a) {
    if (addr < 65536) return strf("address 0x%llx (a null pointer plus offset)",
                                  (unsigned long long)addr);
    return strf("address 0x%llx, which belongs to no allocation", (unsigned long long)addr);
  }
  s64 off = s64(addr - a->base);
  return strf("bytes %lld..%lld of %s (%llu bytes%s)", (long long)off,
              (long long)(off + s64(n) - 1), a->what.c_str(), (unsigned long long)a->size,
              a->live ? "" : ", already freed");
}

bool Memory::guardsIntact(const Allocation *a, u64 *badOffset) const {
  for (u64 i = 0; i < kGuard; ++i) {
    for (u64 addr : {a->base - kGuard + i, a->base + a->size + i}) {
      if (*reinterpret_cast<u8 *>(addr) != kGuardByte) {
        *badOffset = addr - a->base;
        return false;
      }
    }
  }
  return true;
}

}  // namespace emu
