// Takes the memory of a live storage away and gives it other memory.
//
// A storage's tensors, views of it and what autograd has saved included, refer to its StorageImpl.
// They keep doing so while it has no memory, and find the new memory where the old one was.

#include <c10/core/StorageImpl.h>
#include <torch/csrc/api/include/torch/version.h>

#include <utility>

namespace {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
// Versions up to 2.12 can forbid access to the data and have nothing public to allow it again. The
// language lets an explicit instantiation name a private member.
bool& forbidden(c10::StorageImpl& storage);

template <bool c10::StorageImpl::*Member>
struct Reach {
  friend bool& forbidden(c10::StorageImpl& storage) { return storage.*Member; }
};

template struct Reach<&c10::StorageImpl::throw_on_immutable_data_ptr_>;
#else
bool& forbidden(c10::StorageImpl& storage);
#endif

// Whoever asks for the address of data that is gone gets an error instead of an address of nothing.
void forbid(c10::StorageImpl* storage) {
  if (storage->device_type() != c10::DeviceType::Meta) {
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
        "the data of this tensor was evicted to keep a training step within its memory budget, "
        "and nothing that PyTorch's dispatcher sees has asked for it: read it after the "
        "optimizer's step, or through an operator, such as clone()");
  }
}

template <typename Storage>
void allow(Storage* storage) {
  if constexpr (requires { storage->clear_data_ptr_access_error_msg_(); }) {
    storage->clear_data_ptr_access_error_msg_();
  } else {
    forbidden(*storage) = false;  // What follows from it, set_data_ptr_noswap works out anew.
  }
}

}  // namespace

extern "C" {

// Frees the memory of a storage; its size stays.
void mimose_storage_drop(void* pointer) {
  auto* storage = static_cast<c10::StorageImpl*>(pointer);
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, storage->device()));
  forbid(storage);
}

// Gives a storage the memory of another one, which has none from then on.
void mimose_storage_move(void* target_pointer, void* source_pointer) {
  auto* target = static_cast<c10::StorageImpl*>(target_pointer);
  auto* source = static_cast<c10::StorageImpl*>(source_pointer);
  c10::DataPtr data = source->set_data_ptr(c10::DataPtr(nullptr, source->device()));
  allow(target);
  target->set_data_ptr_noswap(std::move(data));
}
}
