// Counts of the operations that a thread calls, by name.
#pragma once
#include <ATen/record_function.h>

#include <map>
#include <string>

namespace r1 {

// Counts from its creation on, on the thread that created it: the operations of libtorch's
// dispatcher that are not called by other operations. A backward pass on the CPU runs its
// operations on that thread.
class Operations {
 public:
  Operations();
  ~Operations();
  Operations(const Operations&) = delete;
  Operations& operator=(const Operations&) = delete;

  // Ends counting.
  std::map<std::string, int64_t> finish();

 private:
  at::CallbackHandle handle = 0;
};

}  // namespace r1
