// Puts PyTorch's CPU allocator under a model of the CUDA caching allocator, and drives models on
// their own. The hook gives out ordinary memory and lets the model count it.
//
// Called over ctypes. Every entry point takes the one lock, so that all of them are thread-safe and
// a fork never copies a half-made change.

#include "allocator_model.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <new>
#include <string>

using mimose::Block;
using mimose::Model;
using mimose::Stats;

namespace {

// Lies before every allocation, so that freeing needs no look-up. As long as the alignment that
// c10::alloc_cpu promises.
struct alignas(64) Header {
  uint64_t generation;
  Block* block;    // null: on the host's account
  int64_t nbytes;
};

struct Hook {
  std::mutex mutex;
  Model* model = nullptr;  // null while closed
  // Counts openings. A block of an earlier opening is freed without touching the present model.
  uint64_t generation = 1;
  int64_t host_bytes = 0;
  int64_t host_peak = 0;
  c10::Allocator* previous = nullptr;
};

// An allocator is only ever replaced by one of the same or a higher priority; PyTorch's own has 0.
constexpr uint8_t kPriority = 100;

// Never destroyed: tensors are freed after static destructors have run.
Hook& hook = *new Hook;
thread_local int host_depth = 0;

std::unique_lock<std::mutex> locked() { return std::unique_lock<std::mutex>(hook.mutex); }

std::string text(int64_t bytes) {
  const char* unit = bytes >= 1 << 30 ? "GiB" : bytes >= 1 << 20 ? "MiB" : "KiB";
  const double factor = bytes >= 1 << 30 ? 1 << 30 : bytes >= 1 << 20 ? 1 << 20 : 1 << 10;
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.2f %s", static_cast<double>(bytes) / factor, unit);
  return buffer;
}

// Programs (accelerate among them) look for " out of memory." in the text.
[[noreturn]] void throw_out_of_memory(int64_t request, const Stats& stats, int64_t limit) {
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "CPU out of memory. Tried to allocate ", text(request),
      ". The budget is ", text(limit), ", of which ", text(stats.allocated), " is allocated and ",
      text(stats.reserved), " is reserved; the largest free block is ",
      text(stats.largest_free_block), ".");
}

void release(void* data) {
  if (data == nullptr) return;
  auto* header = static_cast<Header*>(data) - 1;
  {
    auto guard = locked();
    if (header->generation == hook.generation && hook.model != nullptr) {
      if (header->block != nullptr) {
        hook.model->free(header->block);
      } else {
        hook.host_bytes -= header->nbytes;
      }
    }
  }
  c10::profiledCPUMemoryReporter().Delete(data);
  c10::free_cpu(header);
}

class HookedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (nbytes == 0) return {nullptr, nullptr, &release, cpu};
    const auto request = static_cast<int64_t>(std::min(nbytes, size_t{1} << 62));
    Header* header = nullptr;
    try {
      header = static_cast<Header*>(c10::alloc_cpu(request + sizeof(Header)));
    } catch (const c10::Error&) {
      // What the budget refuses anyway is the budget's out-of-memory, not this machine's.
      auto guard = locked();
      if (counts() && hook.model->hopeless(request)) claim(request, guard);
      throw;
    }
    auto guard = locked();
    Block* block = nullptr;
    if (counts()) {
      try {
        block = claim(request, guard);
      } catch (...) {
        c10::free_cpu(header);
        throw;
      }
    } else if (hook.model != nullptr) {
      hook.host_bytes += request;
      hook.host_peak = std::max(hook.host_peak, hook.host_bytes);
    }
    new (header) Header{hook.model != nullptr ? hook.generation : 0, block, request};
    guard.unlock();
    c10::profiledCPUMemoryReporter().New(header + 1, nbytes);
    return {header + 1, header + 1, &release, cpu};
  }

  // oneDNN allocates its scratch memory through the raw interface and aborts without it.
  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  static bool counts() { return hook.model != nullptr && host_depth == 0; }

  static Block* claim(int64_t request, std::unique_lock<std::mutex>& guard) {
    Block* block = hook.model->malloc(request);
    if (block == nullptr) {
      const Stats stats = hook.model->stats();
      const int64_t limit = hook.model->limit();
      guard.unlock();
      throw_out_of_memory(request, stats, limit);
    }
    return block;
  }
};

HookedAllocator& hooked = *new HookedAllocator;

void before_fork() { hook.mutex.lock(); }
void after_fork_in_parent() { hook.mutex.unlock(); }
// A data loader's worker inherits the hook: without this, the parent's budget would hit it.
void after_fork_in_child() {
  hook.model = nullptr;
  ++hook.generation;
  hook.mutex.unlock();
}

}  // namespace

extern "C" {

// Installs the hook. Returns the model that counts, or null if it is installed already.
Model* mimose_open() {
  static std::once_flag once;
  std::call_once(
      once, [] { pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); });
  auto guard = locked();
  if (hook.model != nullptr) return nullptr;
  hook.model = new Model;
  ++hook.generation;
  hook.host_bytes = hook.host_peak = 0;
  if (c10::GetCPUAllocator() != &hooked) {
    hook.previous = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&hooked, kPriority);
  }
  return hook.model;
}

// Reinstates the previous allocator. Does nothing if `model` is not the open one (after a fork).
void mimose_close(Model* model) {
  auto guard = locked();
  if (hook.model != model) return;
  delete hook.model;
  hook.model = nullptr;
  if (c10::GetCPUAllocator() == &hooked) c10::SetCPUAllocator(hook.previous, kPriority);
}

void mimose_enter_host() { ++host_depth; }
void mimose_leave_host() { --host_depth; }
void mimose_host_bytes(int64_t* now, int64_t* peak) {
  auto guard = locked();
  *now = hook.host_bytes;
  *peak = hook.host_peak;
}

Model* mimose_new() { return new Model; }
void mimose_delete(Model* model) {
  auto guard = locked();
  delete model;
}

Block* mimose_malloc(Model* model, int64_t size) {
  auto guard = locked();
  return model->malloc(size);
}
void mimose_free(Model* model, Block* block) {
  auto guard = locked();
  model->free(block);
}
void mimose_release(Model* model) {
  auto guard = locked();
  model->release();
}
void mimose_set_limit(Model* model, int64_t limit) {
  auto guard = locked();
  model->set_limit(limit);
}
void mimose_add_foreign(Model* model, int64_t bytes) {
  auto guard = locked();
  model->add_foreign(bytes);
}
void mimose_add_segment(
    Model* model, int small, const int64_t* sizes, int64_t count, Block** live) {
  auto guard = locked();
  model->add_segment(small != 0, sizes, count, live);
}
void mimose_add_address(Model* model, int64_t address) {
  auto guard = locked();
  model->add_address(address);
}
void mimose_begin_step(Model* model) {
  auto guard = locked();
  model->begin_step();
}
int64_t mimose_mark(Model* model, int64_t* allocated) {
  auto guard = locked();
  *allocated = model->allocated();
  return model->mark();
}
int64_t mimose_allocated(Model* model) {
  auto guard = locked();
  return model->allocated();
}
int64_t mimose_reserved(Model* model) {
  auto guard = locked();
  return model->reserved();
}
void mimose_stats(Model* model, Stats* stats) {
  auto guard = locked();
  *stats = model->stats();
}
void mimose_record(Model* model, int on) {
  auto guard = locked();
  on ? model->record() : model->stop_recording();
}
// Copies up to `capacity` recorded events; returns how many there are.
int64_t mimose_events(Model* model, int64_t* events, int64_t capacity) {
  auto guard = locked();
  const auto& recorded = model->events();
  const auto count = static_cast<int64_t>(recorded.size());
  std::copy_n(recorded.begin(), std::min(count, capacity), events);
  return count;
}
}
