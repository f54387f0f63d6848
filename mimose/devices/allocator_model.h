// A model of PyTorch's CUDA caching allocator.
//
// It keeps books only: for a sequence of requests it decides what the caching allocator in its
// default (native) mode would have reserved from the device, and when it would have run out of
// memory. The rules are those of c10/cuda/CUDACachingAllocator.cpp for one stream and default
// settings, or, if asked for, with expandable segments: then either pool is one range of addresses,
// of which pages are mapped where they are needed and unmapped when the cache is handed back. Not
// thread-safe by itself.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace mimose {

constexpr int64_t kMinBlock = 512;           // requests are rounded up to a multiple of this
constexpr int64_t kSmallRequest = 1 << 20;   // up to here: small pool
constexpr int64_t kSmallSegment = 2 << 20;   // what the small pool reserves at a time
constexpr int64_t kLargeRequest = 10 << 20;  // below: the large pool reserves kLargeSegment
constexpr int64_t kLargeSegment = 20 << 20;
constexpr int64_t kLargeRound = 2 << 20;  // from kLargeRequest on: rounded up to a multiple of this
constexpr int64_t kNoLimit = -1;
constexpr int64_t kRange = int64_t{1} << 48;  // addresses of a pool with expandable segments
// Recorded events: a positive number requests that many bytes, a negative one frees the allocation
// of that number, and these two:
constexpr int64_t kRelease = 0;
constexpr int64_t kStepMark = std::numeric_limits<int64_t>::min();

inline int64_t round_up(int64_t size, int64_t to) { return (size + to - 1) / to * to; }

struct Block {
  int64_t address;
  int64_t size;
  bool small;
  bool live;
  bool mapped;     // false: addresses without memory, of an expandable segment
  int64_t id;      // number of the allocation in the recorded events
  int64_t log_id;  // number among all that were ever logged; 0 if it was not
  Block* previous;
  Block* next;
};

struct BySizeThenAddress {
  bool operator()(const Block* a, const Block* b) const {
    return a->size != b->size ? a->size < b->size : a->address < b->address;
  }
};

struct ByAddress {
  bool operator()(const Block* a, const Block* b) const { return a->address < b->address; }
};

struct Peak {
  int64_t allocated = 0;
  int64_t reserved = 0;
  void raise(const Peak& other) {
    allocated = std::max(allocated, other.allocated);
    reserved = std::max(reserved, other.reserved);
  }
};

// Mirrored field by field by ctypes; see mimose/devices/library.py.
struct Stats {
  int64_t allocated, reserved, foreign;
  int64_t peak_allocated, peak_reserved;            // since the model was made
  int64_t step_peak_allocated, step_peak_reserved;  // since begin_step
  int64_t num_alloc_retries, num_ooms;
  int64_t num_segments, largest_free_block;
};

// The requests (bytes, positive) and frees (minus the number of the allocation) of one step.
struct Log {
  std::vector<int64_t> events;
  int64_t first = 0;  // number of its first allocation, less one
  int64_t num_live = 0;
  bool closed = true;           // nothing older than the log was freed
  std::vector<Block*> replayed;  // blocks of a replay under way, by number
};

class Model {
 public:
  explicit Model(bool expandable = false) : expandable_(expandable) {
    for (int small = 0; expandable && small < 2; ++small) {
      // What a pool has of addresses on a GPU is bounded, by more than the GPU's memory.
      Block* range = new Block{small * kRange, kRange, small == 1, false, false,
                               0,              0,      nullptr,    nullptr};
      segments_.emplace(range->address, range);
      unmapped_[small].insert(range);
    }
  }
  ~Model() {
    for (auto& [address, first] : segments_) {
      for (Block* block = first; block != nullptr;) delete std::exchange(block, block->next);
    }
  }

  // Returns nullptr when out of memory.
  Block* malloc(int64_t request) {
    if (recording_) {
      events_.push_back(request);
      ++num_recorded_;
    }
    const int64_t size = round_up(std::max(request, kMinBlock), kMinBlock);
    const bool small = size <= kSmallRequest;
    Block* block = best_fit(size, small);
    if (block == nullptr && !(block = reserve(size, small))) {
      // As in the caching allocator, the flush counts as a retry even if it freed nothing.
      flush();
      ++num_alloc_retries_;
      block = reserve(size, small);
    }
    if (block == nullptr) {
      ++num_ooms_;
      return nullptr;
    }
    const int64_t rest = block->size - size;
    if (small || expandable_ ? rest >= kMinBlock : rest > kSmallRequest) {
      free_[small].insert(split(block, size));
    }
    block->live = true;
    block->id = num_recorded_;
    block->log_id = 0;
    if (log_ != nullptr) {
      log_->events.push_back(request);
      block->log_id = ++num_logged_;
      ++log_->num_live;
    }
    now_.allocated += block->size;
    since_mark_.raise(now_);
    return block;
  }

  void free(Block* block) {
    if (recording_) events_.push_back(-block->id);
    if (log_ != nullptr) {
      log_->closed &= block->log_id > log_->first;
      log_->events.push_back(log_->first - block->log_id);
      --log_->num_live;
    }
    now_.allocated -= block->size;
    block->live = false;
    // The lower block survives a merge: a segment's first block is the same one for ever.
    free_[block->small].insert(merged(block));
  }

  void release() {
    if (recording_) events_.push_back(kRelease);
    flush();
  }

  void start_log(Log* log) {
    *log = Log();
    log->first = num_logged_;
    log_ = log;
  }

  // Returns whether the log allocated and freed the same blocks, none of them older than itself.
  bool stop_log() {
    const Log* log = std::exchange(log_, nullptr);
    return log != nullptr && log->closed && log->num_live == 0;
  }

  // Repeats events [from, to). Returns -1, or the number of the event that ran out of memory.
  int64_t replay(Log& log, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const int64_t event = log.events[i];
      if (event > 0) {
        Block* block = malloc(event);
        if (block == nullptr) return i;
        log.replayed.push_back(block);
      } else {
        free(std::exchange(log.replayed[-event - 1], nullptr));
      }
    }
    if (to == static_cast<int64_t>(log.events.size())) log.replayed.clear();
    return -1;
  }

  // Frees what a replay that stopped half-way holds.
  void abandon(Log& log) {
    for (Block* block : log.replayed) {
      if (block != nullptr) free(block);
    }
    log.replayed.clear();
  }

  // Bytes that came from elsewhere but count here (negative: they went).
  void add_foreign(int64_t bytes) {
    foreign_ += bytes;
    now_.allocated += bytes;
    now_.reserved += bytes;
    since_mark_.raise(now_);
  }

  // Puts in a segment as it stood elsewhere: sizes of its blocks in order, negative for free ones.
  // Live blocks are written to `live`.
  void add_segment(bool small, const int64_t* sizes, int64_t count, Block** live) {
    int64_t total = 0;
    for (int64_t i = 0; i < count; ++i) total += std::abs(sizes[i]);
    int64_t address = next_address(total);
    Block* last = nullptr;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t size = std::abs(sizes[i]);
      Block* block = new Block{address, size, small, sizes[i] > 0, true, 0, 0, last, nullptr};
      if (last == nullptr) segments_.emplace(address, block);
      if (last != nullptr) last->next = block;
      if (block->live) {
        now_.allocated += size;
        *live++ = block;
      } else {
        free_[small].insert(block);
      }
      address += size;
      last = block;
    }
    now_.reserved += total;
    since_mark_.raise(now_);
  }

  void set_limit(int64_t limit) { limit_ = limit; }
  // Where the following segments will lie, instead of above all earlier ones.
  void add_address(int64_t address) { addresses_.push_back(address); }
  // Whether no flush could make room for a request.
  bool hopeless(int64_t request) const {
    return limit_ != kNoLimit && now_.allocated + request > limit_;
  }
  int64_t limit() const { return limit_; }
  int64_t allocated() const { return now_.allocated; }
  int64_t reserved() const { return now_.reserved; }

  int64_t mark() {
    fold();
    const int64_t peak = since_mark_.allocated;
    since_mark_ = now_;
    return peak;
  }

  void begin_step() {
    if (recording_) events_.push_back(kStepMark);
    fold();
    since_mark_ = in_step_ = now_;
  }

  Stats stats() {
    fold();
    return {now_.allocated,      now_.reserved,     foreign_,
            in_run_.allocated,   in_run_.reserved,  in_step_.allocated,
            in_step_.reserved,   num_alloc_retries_, num_ooms_,
            num_segments(),      largest_free_block()};
  }

  int64_t largest_free_block() const {
    int64_t largest = 0;
    for (const auto& pool : free_) {
      if (!pool.empty()) largest = std::max(largest, (*pool.rbegin())->size);
    }
    return largest;
  }

  // Reserved segments; with expandable ones, stretches of mapped addresses.
  int64_t num_segments() const {
    if (!expandable_) return static_cast<int64_t>(segments_.size());
    int64_t count = 0;
    for (const auto& [address, first] : segments_) {
      for (const Block* block = first; block != nullptr; block = block->next) {
        count += block->mapped && (block->previous == nullptr || !block->previous->mapped);
      }
    }
    return count;
  }

  bool expandable() const { return expandable_; }

  // Starts recording. The events begin with the present state: foreign bytes, then for each segment
  // by address its pool (1: small), its number of blocks and their sizes as add_segment takes them.
  // Live blocks get the first numbers.
  void record() {
    events_.assign({foreign_});
    num_recorded_ = 0;
    recording_ = true;
    for (auto& [address, first] : segments_) {
      const size_t head = events_.size();
      events_.insert(events_.end(), {first->small, 0});
      for (Block* block = first; block != nullptr; block = block->next) {
        if (block->live) block->id = ++num_recorded_;
        events_.push_back(block->live ? block->size : -block->size);
        ++events_[head + 1];
      }
    }
    events_.push_back(kStepMark);
  }

  void stop_recording() { recording_ = false; }
  const std::vector<int64_t>& events() const { return events_; }

 private:
  Block* best_fit(int64_t size, bool small) {
    Block key{std::numeric_limits<int64_t>::min(), size, small, false, true,
              0, 0, nullptr, nullptr};
    auto found = free_[small].lower_bound(&key);
    if (found == free_[small].end()) return nullptr;
    if (expandable_) {
      // Best fit goes by what a block can grow to, as long as that shrinks from block to block.
      for (auto next = std::next(found);
           next != free_[small].end() && room(*next) < room(*found); ++next) {
        found = next;
      }
    }
    Block* block = *found;
    free_[small].erase(found);
    return block;
  }

  Block* reserve(int64_t size, bool small) {
    const int64_t bytes = small                  ? kSmallSegment
                          : size < kLargeRequest ? kLargeSegment
                                                 : round_up(size, kLargeRound);
    if (limit_ != kNoLimit && now_.reserved + bytes > limit_) return nullptr;
    if (expandable_) return expand(size, small);
    const int64_t address = next_address(bytes);
    Block* block = new Block{address, bytes, small, false, true, 0, 0, nullptr, nullptr};
    segments_.emplace(address, block);
    now_.reserved += bytes;
    since_mark_.raise(now_);
    return block;
  }

  static int64_t room(const Block* block) {
    const bool grows = block->next != nullptr && !block->next->mapped;
    return block->size + (grows ? block->next->size : 0);
  }

  // Maps pages at the lowest address at which `size` bytes are free or unmapped in a row, a free
  // block right before them included. The limit was tested for the bytes of a segment, as CUDA's
  // does: rounding up to pages may exceed it by less than one.
  Block* expand(int64_t size, bool small) {
    for (Block* each : unmapped_[small]) {
      if (each->previous != nullptr && !each->previous->live) each = each->previous;
      int64_t bytes = 0;
      for (Block* b = each; b != nullptr && !b->live && bytes < size; b = b->next) {
        bytes += b->size;
      }
      if (bytes < size) continue;
      if (!each->mapped) each = map(each, std::min(each->size, size));
      while (each->size < size) {
        each = map(each->next, std::min(each->next->size, size - each->size));
      }
      free_[small].erase(each);
      return each;
    }
    return nullptr;
  }

  // Gives the first `bytes` of unmapped addresses memory, in pages, and returns the free block.
  Block* map(Block* block, int64_t bytes) {
    unmapped_[block->small].erase(block);
    bytes = round_up(bytes, page(block->small));
    if (bytes < block->size) unmapped_[block->small].insert(split(block, bytes));
    block->mapped = true;
    now_.reserved += block->size;
    since_mark_.raise(now_);
    block = merged(block);
    free_[block->small].insert(block);
    return block;
  }

  // Takes the whole pages of a free block back; what is left of it at either end stays.
  void unmap(Block* block) {
    const int64_t end = block->address + block->size;
    const int64_t from = round_up(block->address, page(block->small));
    const int64_t to = end / page(block->small) * page(block->small);
    if (from >= to) return;
    auto& pool = free_[block->small];
    pool.erase(block);
    if (to < end) pool.insert(split(block, to - block->address));
    if (from > block->address) {
      Block* upper = split(block, from - block->address);
      pool.insert(block);
      block = upper;
    }
    block->mapped = false;
    now_.reserved -= block->size;
    block = merged(block);
    unmapped_[block->small].insert(block);
  }

  static int64_t page(bool small) { return small ? kSmallSegment : kLargeSegment; }

  void flush() {
    if (expandable_) {
      for (auto& pool : free_) {
        const std::vector<Block*> blocks(pool.begin(), pool.end());
        for (Block* block : blocks) unmap(block);
      }
      return;
    }
    for (auto& pool : free_) {
      for (auto it = pool.begin(); it != pool.end();) {
        Block* block = *it;
        if (block->previous != nullptr || block->next != nullptr) {
          ++it;
          continue;
        }
        now_.reserved -= block->size;
        segments_.erase(block->address);
        delete block;
        it = pool.erase(it);
      }
    }
  }

  // Cuts a block in two and returns the upper part.
  static Block* split(Block* block, int64_t size) {
    Block* upper = new Block{block->address + size, block->size - size, block->small, false,
                             block->mapped,         0,                  0,            block,
                             block->next};
    if (upper->next != nullptr) upper->next->previous = upper;
    block->next = upper;
    block->size = size;
    return upper;
  }

  // Merges a block that is not live, and in no set, with its neighbours of the same kind.
  Block* merged(Block* block) {
    // The lower block survives a merge: a segment's first block is the same one for ever.
    Block* upper = block->next;
    if (upper != nullptr && !upper->live && upper->mapped == block->mapped) {
      take_out(upper);
      absorb(block, upper);
    }
    Block* lower = block->previous;
    if (lower != nullptr && !lower->live && lower->mapped == block->mapped) {
      take_out(lower);
      absorb(lower, block);
      block = lower;
    }
    return block;
  }

  void take_out(Block* block) {
    if (block->mapped) {
      free_[block->small].erase(block);
    } else {
      unmapped_[block->small].erase(block);
    }
  }

  static void absorb(Block* lower, Block* upper) {
    lower->size += upper->size;
    lower->next = upper->next;
    if (lower->next != nullptr) lower->next->previous = lower;
    delete upper;
  }

  int64_t next_address(int64_t bytes) {
    int64_t address = top_;
    if (!addresses_.empty()) {
      address = addresses_.front();
      addresses_.pop_front();
    }
    top_ = std::max(top_, round_up(address + bytes, kLargeRound));
    return address;
  }

  void fold() {
    in_step_.raise(since_mark_);
    in_run_.raise(since_mark_);
  }

  const bool expandable_;
  std::set<Block*, BySizeThenAddress> free_[2];  // [small]
  std::set<Block*, ByAddress> unmapped_[2];
  std::map<int64_t, Block*> segments_;           // address -> first block
  std::deque<int64_t> addresses_;
  int64_t top_ = kLargeRound;
  int64_t limit_ = kNoLimit;
  int64_t foreign_ = 0;
  Peak now_, since_mark_, in_step_, in_run_;
  int64_t num_alloc_retries_ = 0;
  int64_t num_ooms_ = 0;
  bool recording_ = false;
  int64_t num_recorded_ = 0;
  std::vector<int64_t> events_;
  Log* log_ = nullptr;
  int64_t num_logged_ = 0;
};

}  // namespace mimose
