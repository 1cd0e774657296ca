// cpp/bind/pch.hpp: precompiled for all units of the binding (CMakeLists.txt), which spend nine tenths of their compile
// time on these headers without it. No file includes this one: each unit names the headers that it uses, so it compiles
// without the precompiled form too. NumPy is not here: its macros must be set before its header (elements.hpp).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bind/arglist.hpp"
#include "bind/signatures.hpp"
#include "bind/wait.hpp"
