// Rows that begin alike, computed once; see prefix.cpp.
#pragma once
#include <cstdint>
#include <vector>

namespace r1 {

// Rows laid end to end.
struct Batch {
  std::vector<int64_t> ids, positions;
  std::vector<int64_t> starts;  // of the rows, then the number of tokens
};

// Tokens that follow the tokens of `parent`, which they see. Segments of a tree come in depth-first order.
struct Segment {
  int64_t parent;         // -1: the beginning of its rows
  int64_t start, length;  // in the distinct tokens
  int64_t path;           // tokens before it in its rows
};

// The distinct tokens of a batch, as trees of segments.
struct Forest {
  std::vector<int64_t> ids, positions;
  std::vector<Segment> segments;
  std::vector<int64_t> trees;  // first segment of each, then the number of segments
  std::vector<int64_t> place;  // of each token of the batch among the distinct ones
  // Tokens of the batch at distinct token t: members[first[t]] .. members[first[t + 1]].
  std::vector<int64_t> first, members;

  // A tree is walked by one thread for each key/value head, and should fit the cache: `tokens` is the size up to which
  // a tree is always welcome, `heads` and `threads` tell how large a part of the batch it may be.
  Forest(const Batch& batch, int64_t tokens, int64_t heads, int64_t threads);
  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
};

}  // namespace r1
