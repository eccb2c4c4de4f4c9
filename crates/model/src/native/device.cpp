// Waiting for a GPU and its memory, through libtorch's interface for any device; see device.rs.
#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>
#include <memory>

#include "guarded.h"

using r1::guarded;

extern "C" {

// Queues a copy to the GPU `index`, from pinned memory.
char* r1_upload(const void* tensor, int64_t index, void** out) {
  return guarded([&] {
    const at::Tensor& host = *static_cast<const at::Tensor*>(tensor);
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    *out = new at::Tensor(host.pin_memory().to(device, true));
  });
}

// An event after the work that is queued so far on the current stream of the GPU `index`.
char* r1_event_record(int64_t index, void** out) {
  return guarded([&] {
    const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
    auto event = std::make_unique<c10::Event>(c10::kCUDA);
    event->record(guard.getStream(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index))));
    *out = event.release();
  });
}

char* r1_event_wait(void* event) {
  return guarded([&] { static_cast<c10::Event*>(event)->synchronize(); });
}

void r1_event_free(void* event) {
  std::free(guarded([&] { delete static_cast<c10::Event*>(event); }));
}

// Gives the unused memory of libtorch's allocator back to the GPU.
char* r1_device_release() {
  return guarded([&] { c10::getDeviceAllocator(c10::kCUDA)->emptyCache(); });
}

// Frees the memory of a tensor's storage, which other tensors can share. Returns its bytes, 0 if it
// has none.
char* r1_storage_release(const void* tensor, int64_t* bytes) {
  return guarded([&] {
    c10::StorageImpl* storage = static_cast<const at::Tensor*>(tensor)->storage().unsafeGetStorageImpl();
    *bytes = static_cast<int64_t>(storage->nbytes());
    if (*bytes == 0) return;
    c10::Allocator* allocator = c10::GetAllocator(storage->device_type());
    storage->set_data_ptr_noswap(allocator->allocate(0));
    storage->set_nbytes(0);
  });
}

// Gives memory to a tensor's storage. The values are undefined.
char* r1_storage_restore(const void* tensor, int64_t bytes) {
  return guarded([&] {
    c10::StorageImpl* storage = static_cast<const at::Tensor*>(tensor)->storage().unsafeGetStorageImpl();
    if (storage->nbytes() > 0) return;
    c10::Allocator* allocator = c10::GetAllocator(storage->device_type());
    storage->set_data_ptr_noswap(allocator->allocate(static_cast<size_t>(bytes)));
    storage->set_nbytes(static_cast<size_t>(bytes));
  });
}

}  // extern "C"
