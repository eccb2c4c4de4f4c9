// Counting through libtorch's RecordFunction; see operations.h.
#include "operations.h"

#include <string_view>
#include <utility>

namespace r1 {

namespace {

// Callbacks are plain functions, so that the counts are the thread's. A thread has one count at a
// time.
thread_local std::map<std::string, int64_t> counts;
thread_local bool counting = false;
// Operations of this thread that are running.
thread_local int64_t depth = 0;

struct Inside : at::ObserverContext {};

// A backward pass and its nodes are recorded as operations that call others.
bool is_backward(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  return name == "aten::_backward" || name.substr(0, 10) == "autograd::";
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  if (is_backward(function)) return nullptr;
  if (depth++ == 0) counts[function.name()]++;
  return std::make_unique<Inside>();
}

void end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context) depth--;
}

}  // namespace

Operations::Operations() {
  TORCH_CHECK(!counting, "operations are being counted already");
  handle = at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::FUNCTION}));
  counting = true;
  depth = 0;
  counts.clear();
}

Operations::~Operations() { finish(); }

std::map<std::string, int64_t> Operations::finish() {
  if (handle != 0) at::removeCallback(std::exchange(handle, 0));
  counting = false;
  return std::move(counts);
}

}  // namespace r1
