// Collectives between processes, by c10d's Gloo backend and TCP store; see process_group.rs.
#define USE_C10D_GLOO
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <cstring>

#include "guarded.h"

using r1::guarded;

namespace {

struct Group {
  c10::intrusive_ptr<c10d::TCPStore> store;
  // After all ranks have joined.
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
};

Group& group(void* pointer) { return *static_cast<Group*>(pointer); }

// Connects ranks that meet at `store`. `address` is this rank's, for the others. Without one it is
// the address of the network interface GLOO_SOCKET_IFNAME, as in torch.distributed, or of the name
// of this machine.
c10::intrusive_ptr<c10d::ProcessGroupGloo> connected(
    c10::intrusive_ptr<c10d::Store> store, const char* address, int64_t rank, int64_t size, int64_t milliseconds) {
  using c10d::ProcessGroupGloo;
  auto options = ProcessGroupGloo::Options::create(std::chrono::milliseconds(milliseconds));
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  const bool named = interface != nullptr && *interface != 0;
  options->devices.push_back(*address != 0 ? ProcessGroupGloo::createDeviceForHostname(address)
                             : named       ? ProcessGroupGloo::createDeviceForInterface(interface)
                                           : ProcessGroupGloo::createDefaultDevice());
  return c10::make_intrusive<ProcessGroupGloo>(
      std::move(store), static_cast<int>(rank), static_cast<int>(size), options);
}

}  // namespace

extern "C" {

// Connects to the store of rank 0, which runs it with the listening socket `socket`; -1 for others.
char* r1_group_connect(const char* host, int64_t port, int64_t socket, int64_t milliseconds, void** out) {
  return guarded([&] {
    // Only fatal messages: c10d prints each failure with a stack trace, beside the exception that
    // becomes r1's error.
    FLAGS_caffe2_log_level = 3;
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(port);
    options.isServer = socket >= 0;
    if (socket >= 0) options.masterListenFd = static_cast<int>(socket);
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(milliseconds);
    *out = new Group{c10::make_intrusive<c10d::TCPStore>(host, options), {}};
  });
}

char* r1_group_set(void* pointer, const char* key, const char* value, int64_t length) {
  return guarded([&] { group(pointer).store->set(key, std::vector<uint8_t>(value, value + length)); });
}

// Waits for the key. The result is freed with `r1_free_message`; null if it was not set in time.
char* r1_group_get(void* pointer, const char* key, int64_t milliseconds, char** out) {
  return guarded([&] {
    *out = nullptr;
    c10d::TCPStore& store = *group(pointer).store;
    try {
      store.wait({key}, std::chrono::milliseconds(milliseconds));
    } catch (const c10::DistStoreError&) {
      return;
    }
    const std::vector<uint8_t> value = store.get(key);
    *out = static_cast<char*>(std::malloc(value.size() + 1));
    TORCH_CHECK(*out != nullptr, "out of memory");
    std::memcpy(*out, value.data(), value.size());
    (*out)[value.size()] = 0;
  });
}

// Adds to a counter; a new one is 0.
char* r1_group_add(void* pointer, const char* key, int64_t amount, int64_t* out) {
  return guarded([&] { *out = group(pointer).store->add(key, amount); });
}

// Connects all ranks with each other.
char* r1_group_join(void* pointer, const char* address, int64_t rank, int64_t size, int64_t milliseconds) {
  return guarded([&] {
    Group& joined = group(pointer);
    joined.gloo = connected(joined.store, address, rank, size, milliseconds);
  });
}

// Connects some of the ranks as the group `name`, which has the same store.
char* r1_group_part(
    void* pointer, const char* name, const char* address, int64_t rank, int64_t size, int64_t milliseconds,
    void** out) {
  return guarded([&] {
    auto store = group(pointer).store;
    auto names = c10::make_intrusive<c10d::PrefixStore>(name, store);
    *out = new Group{store, connected(names, address, rank, size, milliseconds)};
  });
}

void r1_group_free(void* pointer) {
  std::free(guarded([&] { delete static_cast<Group*>(pointer); }));
}

// The tensor of each rank: `out` has the shape of `tensor` after a dimension for the ranks.
char* r1_group_gather(void* pointer, const void* tensor, const void* out) {
  return guarded([&] {
    const at::Tensor& all = *static_cast<const at::Tensor*>(out);
    std::vector<std::vector<at::Tensor>> outputs{all.unbind(0)};
    std::vector<at::Tensor> inputs{*static_cast<const at::Tensor*>(tensor)};
    group(pointer).gloo->allgather(outputs, inputs)->wait();
  });
}

// Sets the tensor to the one of the rank `from`.
char* r1_group_broadcast(void* pointer, const void* tensor, int64_t from) {
  return guarded([&] {
    std::vector<at::Tensor> tensors{*static_cast<const at::Tensor*>(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = from;
    group(pointer).gloo->broadcast(tensors, options)->wait();
  });
}

// Sends a tensor to another rank, and receives that rank's into `out`. Empty tensors are not sent.
char* r1_group_exchange(void* pointer, const void* tensor, int64_t with, const void* out) {
  return guarded([&] {
    c10d::ProcessGroupGloo& gloo = *group(pointer).gloo;
    std::vector<at::Tensor> sent{*static_cast<const at::Tensor*>(tensor)};
    std::vector<at::Tensor> received{*static_cast<const at::Tensor*>(out)};
    const int other = static_cast<int>(with);
    c10::intrusive_ptr<c10d::Work> receiving, sending;
    if (received[0].numel() > 0) receiving = gloo.recv(received, other, 0);
    if (sent[0].numel() > 0) sending = gloo.send(sent, other, 0);
    if (sending) sending->wait();
    if (receiving) receiving->wait();
  });
}

}  // extern "C"
