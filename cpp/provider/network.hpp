// cpp/provider/network.hpp: other hosts: the secret and the listener of this process's NIC, and addresses of NICs
// there.
//
// The variables that say where a process listens, and with which secret, are the process's own: programs that differ in
// them share a policy helper, whose environment and socket name have none of them. A question for a domain carries
// them; the answer has the key that the helper made of the secret, and the files that may have libsodium.
#pragma once

#include <string>
#include <string_view>

#include "host/host.hpp"
#include "provider/record.hpp"
#include "wire/address.hpp"

namespace weft::provider {

struct Domain;

// Whether an entry NAME=VALUE of the environment is one of these variables.
bool is_of_network(std::string_view entry) noexcept;
// These variables, as far as they are set. The path of a file is absolute: the helper has another working directory.
Record network_variables();
// Gives a new NIC its secret, and listens, as the helper's answer says. Throws Error.
void open_network(host::HostNic& host, const Record& how);

// Reads weft://host:port[/nic[/vni[/pid]]]; false: the text is no such address, or its host is not known here.
bool parse_remote(const Domain& domain, std::string_view text, wire::EpAddress* out, bool* has_pid) noexcept;
// The text of an address with a host: of a NIC of another host or, for peers, of a NIC of this process if it listens.
// Empty: the address has no host.
std::string text_for_peers(const Domain& domain, const wire::EpAddress& address) noexcept;
std::string text_of_remote(const Domain& domain, const wire::EpAddress& address) noexcept;
// The number of a NIC of a CXI fabric, whose address has 20 bits, and the reverse.
uint32_t nic_of_fabric(const Domain& domain, uint32_t nic) noexcept;
uint32_t nic_in_fabric(const Domain& domain, uint32_t number) noexcept;
// Reads, from a domain's record, the NICs of its fabric that other hosts have.
void take_hosts(Domain& domain);

}  // namespace weft::provider
