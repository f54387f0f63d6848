// The table of rotor.py, column by column. Additions come in the order of the numpy version, so
// that both give the same numbers to the last bit.

#include <algorithm>
#include <cstdint>
#include <limits>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// So much of `after` for a few hundred stages and a few columns fits into a core's own cache.
constexpr int64_t kChunk = 256;
constexpr int64_t kMostColumns = 16;

int64_t ceil_div(int64_t size, int64_t unit) {
  return size > 0 ? (size + unit - 1) / unit : -(-size / unit);
}

}  // namespace

WIDE static void least_sum(double* __restrict out, const double* __restrict a,
                           const double* __restrict b, int64_t count) {
  for (int64_t m = 0; m < count; ++m) {
    const double sum = a[m] + b[m];
    out[m] = sum < out[m] ? sum : out[m];
  }
}

extern "C" {

// Fields are those of rotor.py's _Sizes, sizes in units but for those that end in _bytes.
struct RotorSizes {
  int64_t loss, unit, top, exact, store_all;
  const int64_t *x, *saved, *leaf, *reach, *keep_only;
  const int64_t *ends_bytes, *own_bytes;
  // widest[offsets[i] .. offsets[i + 1]): how far from stage i, and bytes.
  const int64_t *offsets, *distance, *widest_bytes;
  const double *forward, *backward, *again, *before;
};

}

namespace {

// The regions first..first + k of one `last`, in one stretch of memory.
struct Split {
  int64_t count, begin, end;
  int64_t from;  // With what the regions so far need.
  int64_t pair;  // The last pair of `widest` that counts.
};

int64_t beside(const RotorSizes& s, int64_t last, int64_t size) {
  return std::max<int64_t>(ceil_div(s.ends_bytes[last] + size, s.unit), 0);
}

int64_t widest(const RotorSizes& s, int64_t first, int64_t last) {  // The last pair before `last`.
  int64_t p = s.offsets[first];
  while (p + 1 < s.offsets[first + 1] && s.distance[p + 1] < last - first) ++p;
  return p;
}

void forget(const RotorSizes& s, int64_t first, int64_t last, int64_t k, Split& split,
            double* const* best, const double* after) {
  if (k >= split.count) return;
  if (s.exact && split.pair + 1 < s.offsets[first + 1] && s.distance[split.pair + 1] <= k)
    split.from = std::max(split.begin, beside(s, last, s.widest_bytes[++split.pair]));
  if (split.from >= split.end) return;
  least_sum(best[first] + (last - first) * s.top + split.from,
            best[first] + k * s.top + split.from,
            after + (first + 1 + k) * s.top + split.from, split.end - split.from);
}

}  // namespace

extern "C" {

// Fills best[first][last - first] for `count` stages `last` from `begin_last` on and every first.
// Each `last` has its own loss + 1 rows of top in `after`, and loss + 1 numbers in `low`, `enough`
// and `keep`. Several at once read what precedes them from memory once only.
void mimose_rotor_columns(const RotorSizes* s, int64_t begin_last, int64_t count,
                          double* const* best, double* all_after, int64_t* all_low,
                          int64_t* all_enough, int64_t* all_keep) {
  const int64_t top = s->top, stages = s->loss + 1, end_last = begin_last + count;
  for (int64_t last = begin_last; last < end_last; ++last) {
    const int64_t t = last - begin_last;
    int64_t *low = all_low + t * stages, *enough = all_enough + t * stages;
    int64_t* keep = all_keep + t * stages;
    int64_t so_far = s->leaf[last];
    for (int64_t first = last - 1; first >= 0; --first) {
      const bool may =
          s->store_all || (first + 1 == last && last == s->loss) || s->keep_only[first];
      const int64_t wide = s->widest_bytes[widest(*s, first, last)];
      const int64_t own = s->exact ? s->own_bytes[first] : wide;
      const int64_t need = std::max({s->leaf[first], s->saved[first], beside(*s, last, own)});
      so_far = std::max(so_far + s->saved[first], need);
      if (!may) so_far = top;
      keep[first] = may ? std::min(need, top) : top;
      enough[first] = std::min(so_far, top);
      low[first] = beside(*s, last, s->exact ? s->widest_bytes[s->offsets[first]] : wide);
    }
    double* after = all_after + t * stages * top;
    std::fill(after, after + (last + 1) * top, kNever);
  }
  // What a stage needs of later ones lies at the same amount of memory or less.
  for (int64_t start = 0; start < top; start += kChunk) {
    const int64_t stop = std::min(start + kChunk, top);
    for (int64_t first = end_last - 1; first >= 0; --first) {
      Split splits[kMostColumns];
      for (int64_t last = std::max(first, begin_last); last < end_last; ++last) {
        const int64_t t = last - begin_last;
        double* row = best[first] + (last - first) * top;
        std::fill(row + start, row + stop, kNever);
        if (first == last) continue;
        Split& split = splits[t];
        split.count = std::min(last, s->reach[first] + 1) - first;
        split.begin = split.from = std::max(start, all_low[t * stages + first]);
        split.end = std::min(stop, all_enough[t * stages + first]);
        split.pair = s->offsets[first];
      }
      for (int64_t k = 0; k < begin_last - first; ++k)
        for (int64_t last = std::max(first + 1, begin_last); last < end_last; ++last)
          forget(*s, first, last, k, splits[last - begin_last], best,
                 all_after + (last - begin_last) * stages * top);
      for (int64_t last = std::max(first, begin_last); last < end_last; ++last) {
        const int64_t t = last - begin_last;
        double* row = best[first] + (last - first) * top;
        double* after = all_after + t * stages * top;
        if (first == last) {
          const double time =
              (first == s->loss ? s->forward : s->again)[first] + s->backward[first];
          for (int64_t m = std::max(start, s->leaf[last]); m < stop; ++m) row[m] = time;
        } else {
          Split& split = splits[t];
          for (int64_t k = std::max<int64_t>(begin_last - first, 0); k < split.count; ++k)
            forget(*s, first, last, k, split, best, after);
          for (int64_t m = split.begin; m < split.end; ++m) row[m] -= s->before[first];
          const int64_t keep = all_keep[t * stages + first];
          if (keep < stop) {
            const double time = s->forward[first] + s->backward[first];
            const double* kept = best[first + 1] + (last - first - 1) * top - s->saved[first];
            for (int64_t m = std::max(start, keep); m < stop; ++m)
              row[m] = std::min(row[m], kept[m] + time);
          }
        }
        const int64_t size = s->x[first];
        const double more = s->before[first];
        double* shifted = after + first * top + size;
        for (int64_t m = start; m < std::min(stop, top - size); ++m) shifted[m] = row[m] + more;
      }
    }
  }
}

}  // extern "C"
