#include "transport/routed.h"

#include <sys/epoll.h>

#include "base/file_descriptor.h"

namespace gradwire {
namespace {

class RoutedTransport final : public Transport {
 public:
  RoutedTransport(std::unique_ptr<Transport> memory, const std::vector<std::uint32_t>& near,
                  std::unique_ptr<Transport> network, std::uint32_t count)
      : memory_(std::move(memory)),
        network_(std::move(network)),
        routes_(count, network_.get()),
        poll_(epoll_create1(EPOLL_CLOEXEC)) {
    for (const std::uint32_t peer : near) routes_[peer] = memory_.get();
    for (const Transport* part : {memory_.get(), network_.get()}) {
      epoll_event event{.events = EPOLLIN, .data = {}};
      epoll_ctl(poll_.get(), EPOLL_CTL_ADD, part->event(), &event);
    }
  }

  std::string_view name() const noexcept override { return "auto"; }
  std::span<std::byte> send_memory() noexcept override { return memory_->send_memory(); }
  void send(std::uint32_t peer, Tag tag, std::span<const std::byte> bytes,
            std::uint64_t ticket) noexcept override {
    routes_[peer]->send(peer, tag, bytes, ticket);
  }
  void release(const Arrival& arrival) noexcept override {
    routes_[arrival.peer]->release(arrival);
  }
  bool progress(Inbox& inbox) noexcept override {
    const bool near = memory_->progress(inbox);
    return network_->progress(inbox) || near;
  }
  int event() const noexcept override { return poll_.get(); }
  bool arm() noexcept override {
    const bool near = memory_->arm();
    return network_->arm() && near;
  }
  void ask(std::uint32_t peer) noexcept override { routes_[peer]->ask(peer); }
  void abort(std::uint32_t culprit, std::string_view reason) noexcept override {
    memory_->abort(culprit, reason);
    network_->abort(culprit, reason);
  }

 private:
  std::unique_ptr<Transport> memory_, network_;
  std::vector<Transport*> routes_;  // by rank
  FileDescriptor poll_;
};

}  // namespace

std::unique_ptr<Transport> route(std::unique_ptr<Transport> memory,
                                 const std::vector<std::uint32_t>& near,
                                 std::unique_ptr<Transport> network, std::uint32_t count) {
  if (!memory) return network;
  if (!network) return memory;
  return std::make_unique<RoutedTransport>(std::move(memory), near, std::move(network), count);
}

}  // namespace gradwire
