#include "transport/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <vector>

#include "gradwire/error.h"
#include "transport/mpi_transport.h"
#include "transport/routed.h"
#include "transport/shm.h"
#include "transport/tcp.h"

namespace gradwire {
namespace {

/// What a rank tells all others: a line for its neighbourhood, one for what it takes connections to
/// need, then one per address.
struct Card {
  std::string neighbourhood;
  std::string terms;
  std::vector<std::string> addresses;

  std::string text() const {
    std::string lines = neighbourhood + "\n" + terms + "\n";
    for (const std::string& address : addresses) lines += address + "\n";
    return lines;
  }
  static Card read(const std::string& text) {
    Card card;
    std::istringstream lines(text);
    std::getline(lines, card.neighbourhood);
    std::getline(lines, card.terms);
    for (std::string line; std::getline(lines, line);) card.addresses.push_back(line);
    return card;
  }
};

/// What a rank writes to the store; if it does not, the error names it.
std::string written_by(std::uint32_t rank, Store& store, const std::string& key,
                       Deadline deadline) {
  try {
    return store.get(key, deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw;
    throw Error(error.code(), fmt::format("rank {} did not come: {}", rank, error.what()));
  }
}

/// Rank 0 draws the job; the others read it. With a secret the key is made of it and stays out of
/// the store.
Job deal_job(Store& store, const RendezvousOptions& options) {
  if (options.me == 0) {
    Job job = Job::random();
    std::string text(reinterpret_cast<const char*>(job.id.data()), job.id.size());
    if (options.secret.empty()) {
      text.append(reinterpret_cast<const char*>(job.key.data()), job.key.size());
    } else {
      job.set_key(options.secret);
    }
    store.set("job", text, options.deadline);
    return job;
  }
  Job job = Job::random();  // a key that nobody has, should none be dealt: terms will differ
  const std::string text = written_by(0, store, "job", options.deadline);
  const bool with_key = text.size() == job.id.size() + job.key.size();
  if (!with_key && text.size() != job.id.size()) {
    throw Error(ErrorCode::io, "the store holds something else than this job: use a new one");
  }
  std::memcpy(job.id.data(), text.data(), job.id.size());
  if (!options.secret.empty()) {
    job.set_key(options.secret);
  } else if (with_key) {
    std::memcpy(job.key.data(), text.data() + job.id.size(), job.key.size());
  }
  return job;
}

std::string terms_of(const RendezvousOptions& options, const Tls& tls) {
  const bool certificates = !options.encryption.files.certificate.empty();
  return fmt::format("{} and {}", options.secret.empty() ? "no secret" : "a secret",
                     !tls           ? "no encryption"
                     : certificates ? "TLS by certificates"
                                    : "TLS by the secret");
}

/// All ranks see all cards, so all of them get the error, at once.
void check_terms(const std::vector<Card>& cards, std::uint32_t me) {
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    if (cards[rank].terms == cards[me].terms) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank {} was given {}, and rank {} {}: give all ranks the same secret "
                            "and encryption",
                            me, cards[me].terms, rank, cards[rank].terms));
  }
}

std::vector<Card> exchange_cards(Store& store, const RendezvousOptions& options, const Job& job,
                                 const Card& own) {
  // The job's id in the key keeps cards of an earlier job in the same store apart.
  const auto key = [&](std::uint32_t rank) { return fmt::format("{}-{}", job.id_text(), rank); };
  store.set(key(options.me), own.text(), options.deadline);
  std::vector<Card> cards;
  for (std::uint32_t rank = 0; rank < options.count; ++rank) {
    cards.push_back(rank == options.me
                        ? own
                        : Card::read(written_by(rank, store, key(rank), options.deadline)));
  }
  return cards;
}

std::uint32_t ranks_per_host(const std::vector<Card>& cards) {
  std::size_t first = 1;
  while (first < cards.size() && cards[first].neighbourhood == cards[0].neighbourhood) ++first;
  if (cards.size() % first != 0) return 0;
  for (std::size_t i = 0; i < cards.size(); ++i) {
    const bool starts_host = i % first == 0;
    if (starts_host && i > 0 && cards[i].neighbourhood == cards[i - 1].neighbourhood) return 0;
    if (!starts_host && cards[i].neighbourhood != cards[i - 1].neighbourhood) return 0;
  }
  return static_cast<std::uint32_t>(first);
}

void check_transport(const std::string& name) {
  if (name == "auto" || name == "shm" || name == "tcp" || name == "mpi") return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("there is no transport '{}'; take auto, shm, tcp or mpi", name));
}

}  // namespace

Connected rendezvous(Store& store, const RendezvousOptions& options) {
  check_transport(options.transport);
  const bool by_mpi =
      options.transport == "mpi" || (options.transport == "auto" && options.launched_by_mpi);
  const Tls tls = choose_encryption(options.encryption, !options.secret.empty(),
                                    by_mpi ? "mpi" : options.transport);
  const Job job = deal_job(store, options);
  TcpListener listener;
  if (options.transport != "shm" && !by_mpi) {
    listener = listen_tcp(options.interface, options.port);
  }
  const std::vector<Card> cards = exchange_cards(
      store, options, job, {shm_neighbourhood(), terms_of(options, tls), listener.addresses});
  check_terms(cards, options.me);

  std::vector<std::uint32_t> near;
  std::vector<std::uint32_t> far;
  Connected result;
  result.per_host = ranks_per_host(cards);
  for (std::uint32_t rank = 0; rank < options.count; ++rank) {
    if (rank == options.me) continue;
    const bool same = cards[rank].neighbourhood == cards[options.me].neighbourhood;
    if (same) ++result.on_this_host;
    if (!same && options.transport == "shm") {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("rank {} is on another host (or in another container or user) than rank "
                      "{}: shm cannot reach it, take auto or tcp",
                      rank, options.me));
    }
    const bool in_memory = options.transport == "shm" || options.transport == "auto";
    (same && in_memory ? near : far).push_back(rank);
  }
  result.all_in_memory = far.empty();

  std::vector<std::vector<std::string>> addresses;
  for (const Card& card : cards) addresses.push_back(card.addresses);
  std::unique_ptr<Transport> memory;
  std::unique_ptr<Transport> network;
  if (!near.empty()) {
    memory = connect_shm(
        {job, options.me, options.count, near, options.message_bytes, options.deadline});
  }
  if (by_mpi && !far.empty()) {
    network =
        connect_mpi({options.me, options.count, far, options.message_bytes, options.deadline});
  } else if (!far.empty() || near.empty()) {
    network = connect_tcp({job, options.me, options.count, far, std::move(addresses),
                           options.message_bytes, options.deadline, tls},
                          std::move(listener));
  }
  result.transport = route(std::move(memory), near, std::move(network), options.count);
  return result;
}

}  // namespace gradwire
