// tests/cpp/main.cpp: the main translation unit of weft_cpp_tests (Boost.Test, header-only form).
#define BOOST_TEST_MODULE weft
#include <boost/test/included/unit_test.hpp>
