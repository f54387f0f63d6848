// Puts PyTorch's CPU allocator, or that of its meta device, under a model of the CUDA caching
// allocator, and drives models on their own. On the CPU the hook gives out ordinary memory and lets
// the model count it; on meta there is no memory, only the count.
//
// Called over ctypes. Every entry point takes the one lock, so that all of them are thread-safe and
// a fork never copies a half-made change.

#include "allocator_model.h"

#include <c10/core/Allocator.h>
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
using mimose::Log;
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
  Model* model = nullptr;  // null while closed
  // Counts openings. A block of an earlier opening is freed without touching the present model.
  uint64_t generation = 1;
  int64_t host_bytes = 0;
  int64_t host_peak = 0;
  std::string title;  // of the device, for messages
  c10::Allocator* previous = nullptr;

  void counted(Header* header) {
    if (header->generation != generation || model == nullptr) return;
    if (header->block != nullptr) {
      model->free(header->block);
    } else {
      host_bytes -= header->nbytes;
    }
  }
};

// An allocator is only ever replaced by one of the same or a higher priority; PyTorch's own has 0.
constexpr uint8_t kPriority = 100;

// Never destroyed: tensors are freed after static destructors have run.
std::mutex& mutex = *new std::mutex;
Hook& cpu_hook = *new Hook;
Hook& meta_hook = *new Hook;
thread_local int host_depth = 0;
thread_local int ignore_depth = 0;

std::unique_lock<std::mutex> locked() { return std::unique_lock<std::mutex>(mutex); }

std::string text(int64_t bytes) {
  const char* unit = bytes >= 1 << 30 ? "GiB" : bytes >= 1 << 20 ? "MiB" : "KiB";
  const double factor = bytes >= 1 << 30 ? 1 << 30 : bytes >= 1 << 20 ? 1 << 20 : 1 << 10;
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.2f %s", static_cast<double>(bytes) / factor, unit);
  return buffer;
}

// Says why the largest free block did not serve a request that it is large enough for, if so.
std::string other_pool(int64_t request, int64_t free) {
  if (free < request) return "";
  const bool small = request <= mimose::kSmallRequest;
  return std::string(", in the ") + (small ? "large" : "small") + " pool: requests of " +
         (small ? "up to " : "more than ") + text(mimose::kSmallRequest) + " are served from the " +
         (small ? "small" : "large") + " one";
}

// Programs (accelerate among them) look for " out of memory." in the text.
[[noreturn]] void throw_out_of_memory(
    const std::string& title, int64_t request, const Stats& stats, int64_t limit) {
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, title, " out of memory. Tried to allocate ", text(request),
      ". The budget is ", text(limit), ", of which ", text(stats.allocated), " is allocated and ",
      text(stats.reserved), " is reserved; the largest free block is ",
      text(stats.largest_free_block), other_pool(request, stats.largest_free_block), ".");
}

Block* claim(const Hook& hook, int64_t request, std::unique_lock<std::mutex>& guard) {
  Block* block = hook.model->malloc(request);
  if (block == nullptr) {
    const Stats stats = hook.model->stats();
    const int64_t limit = hook.model->limit();
    guard.unlock();
    throw_out_of_memory(hook.title, request, stats, limit);
  }
  return block;
}

// Counts an allocation of `request` bytes and describes it at `place`.
void count(Hook& hook, void* place, int64_t request, std::unique_lock<std::mutex>& guard) {
  Block* block = nullptr;
  int64_t on_host = 0;
  if (hook.model != nullptr && ignore_depth == 0) {
    if (host_depth == 0) {
      block = claim(hook, request, guard);
    } else {
      on_host = request;
      hook.host_bytes += request;
      hook.host_peak = std::max(hook.host_peak, hook.host_bytes);
    }
  }
  new (place) Header{hook.model != nullptr ? hook.generation : 0, block, on_host};
}

void release_cpu(void* data) {
  if (data == nullptr) return;
  auto* header = static_cast<Header*>(data) - 1;
  {
    auto guard = locked();
    cpu_hook.counted(header);
  }
  c10::profiledCPUMemoryReporter().Delete(data);
  c10::free_cpu(header);
}

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (nbytes == 0) return {nullptr, nullptr, &release_cpu, cpu};
    const auto request = static_cast<int64_t>(std::min(nbytes, size_t{1} << 62));
    Hook& hook = cpu_hook;
    Header* header = nullptr;
    try {
      header = static_cast<Header*>(c10::alloc_cpu(request + sizeof(Header)));
    } catch (const c10::Error&) {
      // What the budget refuses anyway is the budget's out-of-memory, not this machine's.
      auto guard = locked();
      const bool counts = hook.model != nullptr && host_depth == 0;
      if (counts && hook.model->hopeless(request)) claim(hook, request, guard);
      throw;
    }
    auto guard = locked();
    try {
      count(hook, header, request, guard);
    } catch (...) {
      c10::free_cpu(header);
      throw;
    }
    guard.unlock();
    c10::profiledCPUMemoryReporter().New(header + 1, nbytes);
    return {header + 1, header + 1, &release_cpu, cpu};
  }

  // oneDNN allocates its scratch memory through the raw interface and aborts without it.
  c10::DeleterFnPtr raw_deleter() const override { return &release_cpu; }

  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};

void release_meta(void* context) {
  auto* header = static_cast<Header*>(context);
  if (header == nullptr) return;
  {
    auto guard = locked();
    meta_hook.counted(header);
  }
  delete header;
}

class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    const c10::Device meta(c10::DeviceType::Meta);
    if (nbytes == 0) return {nullptr, nullptr, &release_meta, meta};
    const auto request = static_cast<int64_t>(std::min(nbytes, size_t{1} << 62));
    auto guard = locked();
    Header header;
    count(meta_hook, &header, request, guard);
    return {nullptr, new Header(header), &release_meta, meta};
  }

  void copy_data(void*, const void*, size_t) const override {}
};

CpuAllocator& cpu_allocator = *new CpuAllocator;
MetaAllocator& meta_allocator = *new MetaAllocator;

void before_fork() { mutex.lock(); }
void after_fork_in_parent() { mutex.unlock(); }
// A data loader's worker inherits the hooks: without this, the parent's budget would hit it.
void after_fork_in_child() {
  for (Hook* hook : {&cpu_hook, &meta_hook}) {
    hook->model = nullptr;
    ++hook->generation;
  }
  mutex.unlock();
}

Hook& hook_of(int meta) { return meta != 0 ? meta_hook : cpu_hook; }

c10::Allocator* installed(int meta) {
  return c10::GetAllocator(meta != 0 ? c10::DeviceType::Meta : c10::DeviceType::CPU);
}

c10::Allocator* ours(int meta) {
  if (meta != 0) return &meta_allocator;
  return &cpu_allocator;
}

void install(int meta, c10::Allocator* allocator) {
  if (meta != 0) {
    c10::SetAllocator(c10::DeviceType::Meta, allocator, kPriority);
  } else {
    c10::SetCPUAllocator(allocator, kPriority);
  }
}

}  // namespace

extern "C" {

// Installs the hook of the CPU or of meta. Returns the model that counts, or null if it is
// installed already.
Model* mimose_open(int meta, const char* title, int expandable) {
  static std::once_flag once;
  std::call_once(
      once, [] { pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); });
  auto guard = locked();
  Hook& hook = hook_of(meta);
  if (hook.model != nullptr) return nullptr;
  hook.model = new Model(expandable != 0);
  ++hook.generation;
  hook.host_bytes = hook.host_peak = 0;
  hook.title = title;
  if (installed(meta) != ours(meta)) {
    hook.previous = installed(meta);
    install(meta, ours(meta));
  }
  return hook.model;
}

// Reinstates the previous allocator. Does nothing if `model` is not the open one (after a fork).
void mimose_close(int meta, Model* model) {
  auto guard = locked();
  Hook& hook = hook_of(meta);
  if (hook.model != model) return;
  delete hook.model;
  hook.model = nullptr;
  // Where PyTorch had none of its own to give back (meta's may be built in), ours stays and counts
  // nothing.
  if (installed(meta) == ours(meta) && hook.previous != nullptr) install(meta, hook.previous);
}

// Allocations of this thread count nowhere between these two; a simulated operator's own
// temporaries are no real kernel's.
void mimose_enter_ignored() { ++ignore_depth; }
void mimose_leave_ignored() { --ignore_depth; }

void mimose_enter_host() { ++host_depth; }
void mimose_leave_host() { --host_depth; }
void mimose_host_bytes(int meta, int64_t* now, int64_t* peak) {
  auto guard = locked();
  *now = hook_of(meta).host_bytes;
  *peak = hook_of(meta).host_peak;
}

Model* mimose_new(int expandable) { return new Model(expandable != 0); }
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

// Allocates and frees what a kernel needs while it runs. Returns 0 when out of memory.
int mimose_workspace(Model* model, int64_t bytes) {
  auto guard = locked();
  Block* block = model->malloc(bytes);
  if (block != nullptr) model->free(block);
  return block != nullptr;
}

// -- steps that are remembered and replayed

Log* mimose_log_new() { return new Log; }
void mimose_log_delete(Log* log) { delete log; }
void mimose_log_start(Model* model, Log* log) {
  auto guard = locked();
  model->start_log(log);
}
// Returns whether the step left everything as it was, so that it may be replayed.
int mimose_log_stop(Model* model) {
  auto guard = locked();
  return model->stop_log() ? 1 : 0;
}
int64_t mimose_log_size(const Log* log) { return static_cast<int64_t>(log->events.size()); }
int64_t mimose_log_event(const Log* log, int64_t number) { return log->events[number]; }
// Replays events [from, to). Returns -1, or the number of the event that ran out of memory; then
// the caller abandons the replay.
int64_t mimose_log_replay(Model* model, Log* log, int64_t from, int64_t to) {
  auto guard = locked();
  return model->replay(*log, from, to);
}
// Frees what a replay that stopped half-way holds.
void mimose_log_abandon(Model* model, Log* log) {
  auto guard = locked();
  model->abandon(*log);
}
}
