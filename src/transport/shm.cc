// `shm`: ranks on one host, as processes. Memory without a name (memfd) is handed from process to
// process over a Unix socket: only this job's processes have it, and it is gone when they are.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "gradwire/error.h"
#include "net/mesh.h"
#include "transport/memory_transport.h"
#include "transport/transport_kinds.h"

namespace gradwire {
namespace {

[[noreturn]] void fail(const char* what) {
  throw Error(ErrorCode::unavailable,
              fmt::format("shared memory cannot be used: {}: {}", what, std::strerror(errno)));
}

/// A memfd, mapped. Untouched pages cost nothing. Children of a fork have no part of it: it ends
/// with the ranks, and a child can tell nobody anything through it.
class SharedMemory final : public OutboxMemory {
 public:
  SharedMemory(FileDescriptor file, std::size_t size) : file_(std::move(file)), size_(size) {
    memory_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    if (memory_ == MAP_FAILED) fail("mmap");
    madvise(memory_, size, MADV_DONTFORK);
  }
  ~SharedMemory() override { munmap(memory_, size_); }

  static std::shared_ptr<SharedMemory> create(std::size_t size) {
    FileDescriptor file = FileDescriptor::not_inherited(
        [] { return memfd_create("gradwire", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
    if (!file) fail("memfd_create");
    if (ftruncate(file.get(), static_cast<off_t>(size)) != 0) fail("ftruncate");
    // A peer that could shrink it could kill us by SIGBUS.
    if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      fail("F_ADD_SEALS");
    }
    return std::make_shared<SharedMemory>(std::move(file), size);
  }

  /// A peer's: nothing is believed before it is checked.
  static std::shared_ptr<SharedMemory> open(FileDescriptor file, std::size_t size) {
    struct stat status;
    const int seals = fcntl(file.get(), F_GET_SEALS);
    const bool right = fstat(file.get(), &status) == 0 && seals >= 0 &&
                       (seals & F_SEAL_SHRINK) != 0 && status.st_size == static_cast<off_t>(size);
    if (!right)
      throw Error(ErrorCode::peer_failed, "a peer's shared memory is not what it should be");
    return std::make_shared<SharedMemory>(std::move(file), size);
  }

  int file() const { return file_.get(); }
  std::span<std::byte> bytes() const noexcept override {
    return {static_cast<std::byte*>(memory_), size_};
  }

 private:
  FileDescriptor file_;
  void* memory_;
  std::size_t size_;
};

struct AbstractAddress {
  sockaddr_un address{};
  socklen_t length = 0;

  /// False when the name is too long, as no listener's is.
  bool set(const std::string& name) {
    if (name.size() + 1 > sizeof(address.sun_path)) return false;
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path + 1, name.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    return true;
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

FileDescriptor call(const std::string& name) {
  // Where a crowd waits to be let in, a blocking call would wait with it, beyond all deadlines.
  FileDescriptor caller = FileDescriptor::not_inherited(
      [] { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  AbstractAddress there;
  const bool connected =
      caller && there.set(name) && connect(caller.get(), there.get(), there.length) == 0;
  return connected ? std::move(caller) : FileDescriptor();
}

constexpr std::size_t kHandedOver = 2;  // memory and event

Error ended(std::uint32_t peer) {
  return {ErrorCode::peer_failed,
          fmt::format("rank {} ended while shared memory was set up", peer)};
}

void hand_over(int socket, std::uint32_t peer, int memory, int event) {
  const int files[kHandedOver] = {memory, event};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(files))] = {};
  char byte = 0;
  iovec data{&byte, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(files));
  std::memcpy(CMSG_DATA(header), files, sizeof(files));
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != 1) throw ended(peer);
}

struct Received {
  FileDescriptor memory, event;
};

Received take_over(int socket, std::uint32_t peer, Deadline deadline) {
  while (Clock::now() < deadline) {
    pollfd polled{socket, POLLIN, 0};
    if (poll(&polled, 1, milliseconds_until(deadline)) <= 0) continue;
    int files[kHandedOver] = {-1, -1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(files))];
    char byte;
    iovec data{&byte, 1};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) throw ended(peer);
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_len != CMSG_LEN(sizeof(files))) throw ended(peer);
    std::memcpy(files, CMSG_DATA(header), sizeof(files));
    return {FileDescriptor::not_inherited([&] { return files[0]; }), FileDescriptor(files[1])};
  }
  throw Error(
      ErrorCode::timeout,
      fmt::format("rank {} did not share its memory before the deadline: is it stopped?", peer));
}

/// Where ranks of this host call: a Unix socket with an abstract name that nobody can guess, and
/// so cannot take before us. It has no file, and is gone with its socket.
Listener listen_shm(const std::string&, std::uint16_t) {
  const std::string name = fmt::format("gradwire-{}", random_name());
  FileDescriptor listener =
      FileDescriptor::not_inherited([] { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); });
  if (!listener) fail("socket");
  AbstractAddress here;
  here.set(name);
  if (bind(listener.get(), here.get(), here.length) != 0) fail("bind");
  if (listen(listener.get(), kBacklog) != 0) fail("listen");
  Listener result;
  result.sockets.push_back(std::move(listener));
  result.addresses.push_back(name);
  return result;
}

std::unique_ptr<Transport> connect_shm(const TransportOptions& options, Listener&& listener) {
  const std::size_t size = Outbox::size(options.count, options.message_bytes);
  const auto own = SharedMemory::create(size);
  Outbox(own->bytes(), options.count).create();
  auto wake = std::make_shared<FileDescriptor>(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!*wake) fail("eventfd");
  const auto call_rank = [&](std::uint32_t rank, std::size_t) {
    return call(options.addresses[rank].front());
  };
  std::vector<PeerConnection> connections =
      std::move(connect_mesh({.identity = {options.job, Purpose::shm, options.me},
                              .peers = options.peers,
                              .listeners = listener.descriptors(),
                              .call = call_rank,
                              .deadline = options.deadline})[0]);
  listener = {};  // nobody is waited for any more
  for (std::size_t i = 0; i < connections.size(); ++i) {
    hand_over(connections[i].socket.get(), options.peers[i], own->file(), wake->get());
  }
  std::vector<MemoryPeer> peers(options.count);
  for (std::size_t i = 0; i < connections.size(); ++i) {
    Received received = take_over(connections[i].socket.get(), options.peers[i], options.deadline);
    peers[options.peers[i]] = {SharedMemory::open(std::move(received.memory), size),
                               std::make_shared<FileDescriptor>(std::move(received.event)),
                               std::move(connections[i].socket)};
  }
  return std::make_unique<MemoryTransport>(options.me, own, std::move(wake), std::move(peers));
}

}  // namespace

const TransportKind kShm = {
    .name = "shm",
    .reach = TransportKind::Reach::host,
    .in_auto = TransportKind::Auto::always,
    .no_tls =
        "shared memory leaves no host and is not encrypted: take transport auto or tcp, or no "
        "encryption",
    .listen = listen_shm,
    .connect = connect_shm};

}  // namespace gradwire
