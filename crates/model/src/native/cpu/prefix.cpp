// Deduplication of shared prefixes of rows.
//
// The responses of a group share their prompt, and rows of a conversation can share more. The
// hidden state of a token depends only on the previous tokens of its row, so a prefix shared by
// several rows is computed once, forward and backward (with summed gradients of its copies). The
// rows form a tree of segments.
#include "prefix.h"

#include <algorithm>
#include <numeric>

namespace r1 {

namespace {

// Minimum number of saved tokens for a separate segment.
constexpr int64_t WORTH = 8;

struct Builder {
  const Batch& batch;
  Forest& forest;
  int64_t tokens, heads, threads;
  std::vector<int64_t> order;  // rows, sorted so that common prefixes are adjacent

  int64_t length(int64_t row) const { return batch.starts[row + 1] - batch.starts[row]; }
  bool same(int64_t a, int64_t b, int64_t depth) const {
    const int64_t x = batch.starts[a] + depth, y = batch.starts[b] + depth;
    return batch.ids[x] == batch.ids[y] && batch.positions[x] == batch.positions[y];
  }

  bool before(int64_t a, int64_t b) const {
    const int64_t shorter = std::min(length(a), length(b));
    for (int64_t i = 0; i < shorter; i++) {
      const int64_t x = batch.starts[a] + i, y = batch.starts[b] + i;
      if (batch.ids[x] != batch.ids[y]) return batch.ids[x] < batch.ids[y];
      if (batch.positions[x] != batch.positions[y]) return batch.positions[x] < batch.positions[y];
    }
    return length(a) != length(b) ? length(a) < length(b) : a < b;
  }

  int64_t add(int64_t parent, int64_t row, int64_t depth, int64_t count) {
    const int64_t index = static_cast<int64_t>(forest.segments.size()), from = batch.starts[row] + depth;
    if (parent < 0) forest.trees.push_back(index);
    forest.segments.push_back({parent, forest.tokens(), count, depth});
    forest.ids.insert(forest.ids.end(), batch.ids.begin() + from, batch.ids.begin() + from + count);
    forest.positions.insert(forest.positions.end(), batch.positions.begin() + from,
                            batch.positions.begin() + from + count);
    return index;
  }

  // Ends a row, which consists of the segment and its ancestors.
  void finish(int64_t row, int64_t segment) {
    for (; segment >= 0; segment = forest.segments[segment].parent) {
      const Segment& s = forest.segments[segment];
      std::iota(forest.place.begin() + batch.starts[row] + s.path,
                forest.place.begin() + batch.starts[row] + s.path + s.length, s.start);
    }
  }

  void leaf(int64_t row, int64_t depth, int64_t parent) {
    const int64_t rest = length(row) - depth;
    finish(row, rest > 0 ? add(parent, row, depth, rest) : parent);
  }

  // Rows order[low..high) share their first `depth` tokens, which `parent` and its ancestors
  // contain.
  void grow(int64_t low, int64_t high, int64_t depth, int64_t parent) {
    if (high - low == 1) return leaf(order[low], depth, parent);
    const int64_t shortest = std::min(length(order[low]), length(order[high - 1]));
    int64_t common = depth;
    while (common < shortest && same(order[low], order[high - 1], common)) common++;
    const int64_t saved = (common - depth) * (high - low - 1);
    bool shared = saved >= WORTH;
    if (shared && parent < 0) {
      int64_t all = 0;
      for (int64_t i = low; i < high; i++) all += length(order[i]);
      shared = all - saved <= tokens ||
               (10 * saved >= all && (all - saved) * threads <= batch.starts.back() * heads);
    }
    const int64_t node = shared ? add(parent, order[low], depth, common - depth) : parent;
    const int64_t covered = shared ? common : depth;
    int64_t next = low;
    for (; next < high && length(order[next]) == common; next++) leaf(order[next], covered, node);
    while (next < high) {
      int64_t end = next + 1;
      while (end < high && same(order[next], order[end], common)) end++;
      grow(next, end, covered, node);
      next = end;
    }
  }
};

}  // namespace

Forest::Forest(const Batch& batch, int64_t tokens, int64_t heads, int64_t threads) : place(batch.ids.size()) {
  Builder builder{batch, *this, tokens, heads, threads, {}};
  for (int64_t row = 0; row + 1 < static_cast<int64_t>(batch.starts.size()); row++)
    if (builder.length(row) > 0) builder.order.push_back(row);
  std::sort(builder.order.begin(), builder.order.end(), [&](int64_t a, int64_t b) { return builder.before(a, b); });
  if (!builder.order.empty()) builder.grow(0, static_cast<int64_t>(builder.order.size()), 0, -1);
  trees.push_back(static_cast<int64_t>(segments.size()));
  first.assign(ids.size() + 1, 0);
  for (const int64_t at : place) first[at + 1]++;
  std::partial_sum(first.begin(), first.end(), first.begin());
  members.resize(place.size());
  std::vector<int64_t> next(first.begin(), first.end() - 1);
  for (size_t token = 0; token < place.size(); token++) members[next[place[token]]++] = static_cast<int64_t>(token);
}

}  // namespace r1
