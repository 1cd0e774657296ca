// cpp/nic/pch.hpp: precompiled for the NIC and the rooms above it (CMakeLists.txt), whose units spend a third of their
// compile time on these headers without it. No file includes this one: each unit names the headers that it uses.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "mem/guard.hpp"
#include "nic/group.hpp"
#include "nic/iov.hpp"
#include "nic/nic.hpp"
#include "nic/queue.hpp"
