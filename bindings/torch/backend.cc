#include "backend.h"

#include <utility>

namespace gradwire::pytorch {

Backend::Backend(int rank, int size, BackendPtr cpu, BackendPtr cuda)
    : c10d::Backend(rank, size), cpu_(std::move(cpu)), cuda_(std::move(cuda)) {
  init();
}

c10d::Backend& Backend::serving(const at::Tensor& tensor) const {
  if (tensor.is_cpu() || tensor.device().type() == at::kCPU) return *cpu_;
  TORCH_CHECK(tensor.is_cuda() && cuda_, "gradwire has no backend for tensors on ", tensor.device(),
              "; it serves the CPU", cuda_ ? " and CUDA" : ", and CUDA where nccl is available");
  return *cuda_;
}

c10d::Backend& Backend::serving(const Tensors& tensors) const {
  return tensors.empty() ? *cpu_ : serving(tensors[0]);
}

template <class Call>
void Backend::for_each_inner(Call call) const {
  call(*cpu_);
  if (cuda_) call(*cuda_);
}

c10::intrusive_ptr<Backend::Options> Backend::getBackendOptions() {
  return cpu_->getBackendOptions();
}

// ---------------------------------------------------------------------------------------------
// Collectives

WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return serving(tensors).broadcast(tensors, options);
}
WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return serving(tensors).allreduce(tensors, options);
}
WorkPtr Backend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return serving(tensors).allreduce_sparse(tensors, options);
}
WorkPtr Backend::allreduce_coalesced(Tensors& tensors,
                                     const c10d::AllreduceCoalescedOptions& options) {
  return serving(tensors).allreduce_coalesced(tensors, options);
}
WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return serving(tensors).reduce(tensors, options);
}
WorkPtr Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions& options) {
  return serving(inputs).allgather(outputs, inputs, options);
}
WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                 const c10d::AllgatherOptions& options) {
  return serving(input)._allgather_base(output, input, options);
}
WorkPtr Backend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                     const c10d::AllgatherOptions& options) {
  return serving(inputs).allgather_coalesced(outputs, inputs, options);
}
WorkPtr Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
  return serving(inputs).allgather_into_tensor_coalesced(outputs, inputs, options);
}
WorkPtr Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::GatherOptions& options) {
  return serving(inputs).gather(outputs, inputs, options);
}
WorkPtr Backend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ScatterOptions& options) {
  return serving(outputs).scatter(outputs, inputs, options);
}
WorkPtr Backend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                const c10d::ReduceScatterOptions& options) {
  return serving(outputs).reduce_scatter(outputs, inputs, options);
}
WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                      const c10d::ReduceScatterOptions& options) {
  return serving(input)._reduce_scatter_base(output, input, options);
}
WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  return serving(inputs).reduce_scatter_tensor_coalesced(outputs, inputs, options);
}
WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                               std::vector<int64_t>& output_splits,
                               std::vector<int64_t>& input_splits,
                               const c10d::AllToAllOptions& options) {
  return serving(input).alltoall_base(output, input, output_splits, input_splits, options);
}
WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return serving(inputs).alltoall(outputs, inputs, options);
}
WorkPtr Backend::send(Tensors& tensors, int to, int tag) {
  return serving(tensors).send(tensors, to, tag);
}
WorkPtr Backend::recv(Tensors& tensors, int from, int tag) {
  return serving(tensors).recv(tensors, from, tag);
}
WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  return serving(tensors).recvAnysource(tensors, tag);
}
WorkPtr Backend::barrier(const c10d::BarrierOptions& options) { return cpu_->barrier(options); }
void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  cpu_->monitoredBarrier(options, wait_all_ranks);
}

// ---------------------------------------------------------------------------------------------
// The group as a whole

void Backend::setSequenceNumberForGroup() {
  for_each_inner([](c10d::Backend& inner) { inner.setSequenceNumberForGroup(); });
}
uint64_t Backend::getSequenceNumberForGroup() { return cpu_->getSequenceNumberForGroup(); }

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  for_each_inner([&](c10d::Backend& inner) { inner.setTimeout(timeout); });
}

void Backend::setGroupUid(const std::string& uid) {
  c10d::Backend::setGroupUid(uid);
  for_each_inner([&](c10d::Backend& inner) { inner.setGroupUid(uid); });
}

void Backend::eagerConnectSingleDevice(at::Device device) {
  if (device.is_cuda() && cuda_) cuda_->eagerConnectSingleDevice(device);
}

void Backend::adopt(std::shared_ptr<Channel> channel) {
  const std::lock_guard lock(mutex_);
  channels_.push_back(std::move(channel));
}

void Backend::close_channels() {
  std::vector<std::shared_ptr<Channel>> channels;
  {
    const std::lock_guard lock(mutex_);
    channels.swap(channels_);
  }
  for (const auto& channel : channels) channel->close();
}

void Backend::abort() {
  close_channels();
  for_each_inner([](c10d::Backend& inner) { inner.abort(); });
}

void Backend::shutdown() {
  close_channels();
  for_each_inner([](c10d::Backend& inner) { inner.shutdown(); });
}

}  // namespace gradwire::pytorch
