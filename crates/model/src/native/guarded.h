// Converts exceptions to messages for r1_free_message; null without an error.
#pragma once
#include <c10/util/Exception.h>

#include <cstring>

namespace r1 {

template <class F>
char* guarded(F f) {
  try {
    f();
    return nullptr;
  } catch (const c10::Error& error) {
    return strdup(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return strdup(error.what());
  } catch (...) {
    return strdup("unknown C++ exception");
  }
}

}  // namespace r1
