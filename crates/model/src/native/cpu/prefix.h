// Deduplication of shared prefixes of rows; see prefix.cpp.
#pragma once
#include <cstdint>
#include <vector>

namespace r1 {

// Packed rows.
struct Batch {
  std::vector<int64_t> ids, positions;
  std::vector<int64_t> starts;  // of the rows, then the number of tokens
};

// Tokens that follow the tokens of `parent` and attend to them. Segments of a tree are in
// depth-first order.
struct Segment {
  int64_t parent;         // -1: the root
  int64_t start, length;  // in the distinct tokens
  int64_t path;           // tokens before it in its rows
};

// The distinct tokens of a batch, as trees of segments.
struct Forest {
  std::vector<int64_t> ids, positions;
  std::vector<Segment> segments;
  std::vector<int64_t> trees;  // first segment of each, then the number of segments
  std::vector<int64_t> place;  // distinct token of each token of the batch
  // Tokens of the batch at distinct token t: members[first[t]] .. members[first[t + 1]].
  std::vector<int64_t> first, members;

  // One thread per key/value head processes a tree, which should fit in the cache: trees of up to
  // `tokens` tokens are always allowed; `heads` and `threads` limit their fraction of the batch.
  Forest(const Batch& batch, int64_t tokens, int64_t heads, int64_t threads);
  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
};

}  // namespace r1
