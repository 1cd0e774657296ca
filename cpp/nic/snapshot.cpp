// cpp/nic/snapshot.cpp: the state of a NIC as JSON, for viewers (`weft top`).
//
// One endpoint at a time is read under its domain's lock, so a snapshot delays an application by about a microsecond.
#include "nic/snapshot.hpp"

#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "nic/nic.hpp"
#include "nic/queue.hpp"

namespace weft::nic {

namespace {

constexpr size_t kPeersShown = 256;  // of each link

// Appends members to a JSON text. The caller opens and closes objects and arrays.
class Json {
 public:
  explicit Json(std::string& out) noexcept : out_(out) {}

  void open(char bracket, std::string_view key = {}) {
    begin(key);
    out_ += bracket;
    first_ = true;
  }
  void close(char bracket) {
    out_ += bracket;
    first_ = false;
  }
  void put(std::string_view key, std::unsigned_integral auto value) {
    begin(key);
    char digits[24];
    out_ += std::string_view(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
  }
  void put(std::string_view key, bool value) {
    begin(key);
    out_ += value ? "true" : "false";
  }
  void put(std::string_view key, std::string_view text) {
    begin(key);
    quote(text);
  }
  void put(std::string_view key, const char* text) { put(key, std::string_view(text)); }

 private:
  void begin(std::string_view key) {
    if (!first_) out_ += ',';
    first_ = false;
    if (key.empty()) return;
    quote(key);
    out_ += ':';
  }
  // Texts of peers may have any byte; others than printable ASCII are left out.
  void quote(std::string_view text) {
    out_ += '"';
    for (const char c : text) {
      if (c == '"' || c == '\\') out_ += '\\';
      if (c >= ' ' && c <= '~') out_ += c;
    }
    out_ += '"';
  }

  std::string& out_;
  bool first_ = true;
};

// The settings that are not at their defaults; arrays and names are left out.
void put_settings(Json& json, std::string_view key, const TableInfo& table, const void* object) {
  json.open('{', key);
  with_defaults(table, [&](const void* defaults) {
    for (const FieldInfo& field : table.fields) {
      if (equal(field, object, defaults) || field.count != 0 || field.kind == FieldKind::labels) continue;
      if (field.kind == FieldKind::table) {
        put_settings(json, field.name, field.table(), nested(field, object));
      } else if (field.kind == FieldKind::text) {
        json.put(field.name, std::string_view(*member<std::string>(field, object)));
      } else if (field.kind == FieldKind::choice) {
        json.put(field.name, name_of(*field.choices, value_of(field, object)));
      } else if (field.kind == FieldKind::boolean) {
        json.put(field.name, value_of(field, object) != 0);
      } else {
        json.put(field.name, value_of(field, object));
      }
    }
  });
  json.close('}');
}

void put_counter(Json& json, std::string_view name, const Counter* counter) {
  if (counter == nullptr) return;
  json.open('{', name);
  json.put("value", counter->value());
  json.put("errors", counter->errors());
  json.close('}');
}

void put_receive(Json& json, RxPort* port, const RxModeConfig& mode) {
  static constexpr const char* kStates[] = {"hardware", "changing", "software"};
  if (port == nullptr) return;
  const RxContext::Statistics rx = port->context().statistics();
  json.open('{', "receive");
  json.put("posted", uint64_t{rx.match.posted} + rx.waiting);
  json.put("unexpected", uint64_t{rx.match.unexpected} + rx.match.claimed);
  json.put("matched", rx.matched);
  json.put("kept", rx.unexpected);
  json.put("refused", rx.refused);
  json.put("mode", name_of(mode.mode));
  json.put("state", kStates[static_cast<size_t>(rx.mode.state)]);
  json.put("entries", uint64_t{rx.mode.receives} + rx.mode.messages + rx.mode.buffers);
  json.put("changes", rx.mode.changes);
  json.put("flow_controls", rx.mode.stops);
  json.put("pauses", rx.mode.pauses);
  json.put("no_entries", rx.mode.no_entries);
  json.close('}');
}

}  // namespace

std::string Nic::snapshot() {
  std::string text;
  Json json(text);
  json.open('{');
  json.put("version", 1u);
  json.put("time_ns", parts_.clock->now_ns());
  json.put("engine", has_engine());
  json.put("frames_served", frames_served_.value());
  json.put("engine_wakes", engine_wakes_.load(std::memory_order_relaxed));
  json.put("waiting_ops", waiting_ops_.load(std::memory_order_relaxed));
  json.put("deferred", uint64_t{deferred_count_.load(std::memory_order_relaxed)});
  json.put("regions", uint64_t{table().live_count()});
  json.put("registered_bytes", table().registered_bytes());
  json.put("allocated_bytes", uint64_t{segments().allocated_bytes()});
  json.open('[', "peers");
  for (link::Link* link : parts_.links) {
    size_t shown = 0;
    for (const auto& peer : link->peers()) {
      if (peer->same_process || ++shown > kPeersShown) continue;
      json.open('{');
      json.put("pid", static_cast<uint64_t>(peer->process_id));
      json.put("peer", peer->describe());
      json.put("path", !peer->table.valid() ? "frames" : peer->cma ? "direct+cma" : "direct");
      json.put("dead", peer->dead());
      json.close('}');
    }
  }
  json.close(']');
  const Guard objects(objects_mutex_);  // keeps domains and endpoints
  json.open('[', "domains");
  for (Domain* domain : domains_) {
    if (domain == nullptr) continue;
    const DomainLock guard(domain);
    const Domain::Statistics& s = domain->statistics;
    json.open('{');
    json.put("domain", domain->index());
    json.put("nic", domain->config().nic);
    json.put("direct", s.direct.value());
    json.put("cma", s.cma.value());
    json.put("framed", s.framed.value());
    json.put("failed", s.failed.value());
    json.put("bytes", s.bytes.value());
    json.close('}');
  }
  json.close(']');
  std::vector<std::pair<const CompletionQueue*, Domain*>> queues;
  json.open('[', "endpoints");
  for (const std::shared_ptr<Endpoint>& ep : eps_) {
    if (ep == nullptr) continue;
    json.open('{');
    ep->put_state([&](std::string_view key, auto value) { json.put(key, value); });
    put_receive(json, ep->port(), ep->config().messages.match);
    put_settings(json, "settings", table_of<EndpointConfig>(), &ep->config());
    json.open('{', "counters");
    put_counter(json, "write", ep->write_counter());
    put_counter(json, "read", ep->read_counter());
    put_counter(json, "send", ep->messages().counter().get());
    put_counter(json, "recv", ep->recv_counter());
    put_counter(json, "remote_write", ep->remote_counter(false));
    put_counter(json, "remote_read", ep->remote_counter(true));
    json.close('}');
    json.close('}');
    for (const CompletionQueue* queue : {ep->queue(), ep->rx_queue()}) {
      if (queue == nullptr || std::ranges::find(queues, queue, [](const auto& q) { return q.first; }) != queues.end())
        continue;
      queues.emplace_back(queue, ep->domain());
    }
  }
  json.close(']');
  json.open('[', "queues");
  for (const auto& [queue, domain] : queues) {
    const DomainLock guard(domain);
    json.open('{');
    json.put("queue", uint64_t{reinterpret_cast<uintptr_t>(queue)});
    json.put("domain", domain->index());
    json.put("capacity", queue->capacity());
    json.put("unread", queue->unread());
    json.put("reserved", queue->reserved());
    json.put("overrun", queue->overrun);
    json.close('}');
  }
  json.close(']');
  json.close('}');
  return text;
}

// Calls put(name, value) for each number and text that describes the endpoint.
template <typename Put>
void Endpoint::put_state(Put&& put) const {
  put("domain", domain_->index());
  put("index", index_);
  put("nic", address_.nic);
  put("pid", address_.pid);
  put("vni", uint32_t{address_.vni});
  put("address", std::string_view(domain_->nic()->text_of(address_, domain_->config().addresses)));
  put("connected", config_.connected);
  put("tx_cq", uint64_t{reinterpret_cast<uintptr_t>(tx_cq_.get())});
  put("rx_cq", uint64_t{reinterpret_cast<uintptr_t>(rx_cq_.get())});
  put("tx_size", config_.tx_size);
  put("outstanding", outstanding());
  put("batches", batches());
  put("page_requests", page_requests());
  const MessageSender::State send = messages_.state();
  put("again", again());
  put("retries", messages_.retries());
  put("tagged_ids", send.tagged_ids);
  put("untagged_ids", send.untagged_ids);
  put("no_id", send.no_id);
  put("stops", send.stops);
  put("stopped", send.stopped);
  put("stopped_ns", send.stopped_ns);
  const DomainLock guard(domain_);
  uint64_t flows = 0, waiting = 0, unanswered = 0;
  for (const std::shared_ptr<Flow>& flow : flows_) {
    if (flow == nullptr) continue;
    ++flows;
    unanswered += flow->unanswered;
    for (const Op* op = flow->first; op != nullptr; op = op->next) ++waiting;
  }
  put("flows", flows);
  put("waiting", waiting);
  put("unanswered", unanswered);
}

}  // namespace weft::nic
