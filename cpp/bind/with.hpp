// cpp/bind/with.hpp: __enter__ and __exit__ of objects that `with` uses often.
#pragma once

#include "bind/seam.hpp"

namespace weft::bind {

// A new reference, or null with an error.
using WithCall = PyObject* (*)(PyObject* self);

// Gives a type of the extension __enter__ and __exit__, which its subclasses inherit. __exit__ takes any arguments.
bool make_with(PyTypeObject* type, WithCall enter, WithCall exit);

}  // namespace weft::bind
